//! The switch: ports, the circuits that join them, and what else there is where no circuit does. Sans-I/O.

use super::event::{Announcement, FabricError, FabricEvent, Phase, PortId};
use super::frame::{Frame, Mac};
use super::line::{Line, LineCounters, LineSettings, Passage};
use crate::io::SplitMix;
use crate::time::{Duration, Instant};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

/// Addresses learned from frames; beyond so many, strangers' frames are flooded for ever.
const MAX_LEARNED: usize = 4096;
/// The bit of an address that means many: broadcast or multicast.
const GROUP: u8 = 1;

/// What a switch is made of.
#[derive(Clone, Debug, Default)]
pub struct SwitchSettings {
    /// The ports: [`PortId`] counts them.
    pub ports: Vec<PortSettings>,
    /// The circuits.
    pub circuits: Vec<CircuitSettings>,
    /// The packet-switched network that ports without a circuit between them share, all on one queue.
    pub fallback: Option<LineSettings>,
    /// How long before the dark it is announced.
    pub notice: Duration,
    /// All chance comes from here.
    pub seed: u64,
}

/// A port.
#[derive(Clone, Debug, Default)]
pub struct PortSettings {
    /// What people call it.
    pub name: String,
    /// Addresses known to be there, whatever frames say.
    pub macs: Vec<Mac>,
}

/// A circuit: light between two ports, both ways.
#[derive(Clone, Debug)]
pub struct CircuitSettings {
    /// What people call it.
    pub label: String,
    /// The ports.
    pub ends: [PortId; 2],
    /// Each direction.
    pub line: LineSettings,
    /// How long it is dark when it is moved.
    pub reconfiguration: Duration,
    /// Whether it begins in the dark.
    pub is_dark: bool,
}

/// What became of the packets of a port.
///
/// A packet received is malformed, without a path, or taken by a circuit or the fallback (once by each, if it is flooded).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct PortCounters {
    /// Packets that came in here.
    pub received: u64,
    /// Of those, cut short.
    pub malformed: u64,
    /// Of those, for a port that neither a circuit nor the fallback joins with this one, or for this port itself.
    pub no_path: u64,
    /// Packets that went out here.
    pub delivered: u64,
}

/// All counters, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Stats {
    /// By port.
    pub ports: BTreeMap<String, PortCounters>,
    /// By circuit.
    pub circuits: BTreeMap<String, CircuitStats>,
    /// The fallback, if there is one.
    pub fallback: Option<LineCounters>,
}

/// A circuit as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CircuitStats {
    /// The names of the ports that it joins.
    pub ends: [String; 2],
    /// Whether there is light.
    pub is_lit: bool,
    /// What became of its packets.
    #[serde(flatten)]
    pub counters: LineCounters,
}

/// Ports, the circuits that join them, and what else there is where no circuit does.
///
/// Sans-I/O: [`handle_frame`](Self::handle_frame), [`handle_event`](Self::handle_event) and [`handle_timeout`](Self::handle_timeout) take the
/// time; [`poll_frame`](Self::poll_frame), [`poll_announcement`](Self::poll_announcement) and [`poll_timeout`](Self::poll_timeout) say what
/// comes of it.
pub struct Switch {
    ports: Vec<Port>,
    circuits: Vec<Circuit>,
    fallback: Option<Fallback>,
    stations: HashMap<Mac, Station>,
    under_way: BinaryHeap<UnderWay>,
    /// Gives frames and changes of one moment an order.
    count: u64,
    agenda: BTreeMap<(Instant, u64), Step>,
    announcements: VecDeque<Announcement>,
    notice: Duration,
    random: SplitMix,
}

struct Port {
    name: String,
    counters: PortCounters,
}

struct Circuit {
    settings: CircuitSettings,
    is_lit: bool,
    /// From the first end to the second, and back.
    lines: [Line; 2],
    counters: LineCounters,
}

struct Fallback {
    settings: LineSettings,
    line: Line,
    counters: LineCounters,
}

#[derive(Clone, Copy)]
struct Station {
    port: PortId,
    is_fixed: bool,
}

/// What a frame travels on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The circuit of this index, in this direction.
    Circuit(usize, usize),
    Fallback,
}

struct UnderWay {
    passage: Passage,
    number: u64,
    way: Way,
    to: PortId,
    frame: Frame,
}

/// A change to come of the circuit with this index.
#[derive(Clone, Copy)]
enum Step {
    /// Dark, until this moment if it is known, and joined to other ports.
    Dark {
        circuit: usize,
        lit_again: Option<Instant>,
        moved: Option<[PortId; 2]>,
    },
    Light {
        circuit: usize,
    },
}

impl Step {
    const fn circuit(&self) -> usize {
        match *self {
            Self::Dark { circuit, .. } | Self::Light { circuit } => circuit,
        }
    }
}

fn joins(ends: [PortId; 2], a: PortId, b: PortId) -> bool {
    ends == [a, b] || ends == [b, a]
}

impl Switch {
    /// A switch at rest. Refuses names that are not unique, ends that do not exist or are one, two circuits between two ports.
    pub fn new(settings: SwitchSettings) -> Result<Self, FabricError> {
        let mut switch = Self {
            ports: Vec::new(),
            circuits: Vec::new(),
            fallback: settings.fallback.map(|s| Fallback {
                settings: s,
                line: Line::default(),
                counters: LineCounters::default(),
            }),
            stations: HashMap::new(),
            under_way: BinaryHeap::new(),
            count: 0,
            agenda: BTreeMap::new(),
            announcements: VecDeque::new(),
            notice: settings.notice,
            random: SplitMix::new(settings.seed),
        };
        for (index, port) in settings.ports.into_iter().enumerate() {
            if switch.ports.iter().any(|other| other.name == port.name) {
                return Err(FabricError::SameName(port.name));
            }
            let station = Station { port: PortId(index), is_fixed: true };
            switch.stations.extend(port.macs.into_iter().map(|mac| (mac, station)));
            switch.ports.push(Port { name: port.name, counters: PortCounters::default() });
        }
        for circuit in settings.circuits {
            if switch.circuits.iter().any(|other| other.settings.label == circuit.label) {
                return Err(FabricError::SameName(circuit.label));
            }
            switch.check_ends(&circuit.label, circuit.ends)?;
            switch.circuits.push(Circuit {
                is_lit: !circuit.is_dark,
                settings: circuit,
                lines: [Line::default(); 2],
                counters: LineCounters::default(),
            });
        }
        Ok(switch)
    }

    /// The port of this name.
    pub fn port(&self, name: &str) -> Result<PortId, FabricError> {
        let found = self.ports.iter().position(|port| port.name == name).map(PortId);
        let known = || self.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| FabricError::NoPort { name: name.to_owned(), known: known() })
    }

    /// The name of a port; empty if there is no such port.
    pub fn port_name(&self, port: PortId) -> &str {
        self.ports.get(port.0).map_or("", |p| &p.name)
    }

    /// All counters.
    pub fn stats(&self) -> Stats {
        let circuit = |c: &Circuit| CircuitStats {
            ends: c.settings.ends.map(|end| self.port_name(end).to_owned()),
            is_lit: c.is_lit,
            counters: c.counters,
        };
        Stats {
            ports: self.ports.iter().map(|p| (p.name.clone(), p.counters)).collect(),
            circuits: self.circuits.iter().map(|c| (c.settings.label.clone(), circuit(c))).collect(),
            fallback: self.fallback.as_ref().map(|f| f.counters),
        }
    }

    /// Packets that are neither out nor lost yet.
    pub fn packets_under_way(&self) -> u64 {
        self.under_way.iter().map(|held| held.frame.packets()).sum()
    }

    /// A frame came in at `port` (of which there must be one, else nothing happens).
    pub fn handle_frame(&mut self, now: Instant, port: PortId, frame: Frame) {
        self.handle_timeout(now);
        let Some(Port { counters, .. }) = self.ports.get_mut(port.0) else { return };
        let packets = frame.packets();
        counters.received += packets;
        let (Some(source), Some(destination)) = (frame.source(), frame.destination()) else {
            counters.malformed += packets;
            return;
        };
        self.learn(source, port);
        let station = self.stations.get(&destination).filter(|_| destination[0] & GROUP == 0);
        let took = match station {
            Some(&Station { port: to, .. }) => self.carry(now, port, to, frame),
            None => {
                let others = (0..self.ports.len()).map(PortId);
                others.filter(|to| self.carry(now, port, *to, frame.clone())).count() > 0
            }
        };
        if !took && let Some(Port { counters, .. }) = self.ports.get_mut(port.0) {
            counters.no_path += packets;
        }
    }

    fn learn(&mut self, source: Mac, port: PortId) {
        let has_room = self.stations.len() < MAX_LEARNED;
        match self.stations.get_mut(&source) {
            Some(station) if station.is_fixed => {}
            Some(station) => station.port = port,
            None if has_room && source[0] & GROUP == 0 => {
                self.stations.insert(source, Station { port, is_fixed: false });
            }
            None => {}
        }
    }

    /// Puts a frame on its way from port to port; `false` if there is none.
    fn carry(&mut self, now: Instant, from: PortId, to: PortId, frame: Frame) -> bool {
        if from == to {
            return false;
        }
        let joined = self.circuits.iter_mut().enumerate().find(|(_, c)| joins(c.settings.ends, from, to));
        let (way, sent) = match (joined, &mut self.fallback) {
            (Some((_, circuit)), _) if !circuit.is_lit => {
                circuit.counters.taken += frame.packets();
                circuit.counters.lost_in_dark += frame.packets();
                return true;
            }
            (Some((index, circuit)), _) => {
                let direction = usize::from(circuit.settings.ends[0] != from);
                let Circuit { settings, lines: [forth, back], counters, .. } = circuit;
                let line = if direction == 0 { forth } else { back };
                let sent = line.admit(now, frame, &settings.line, counters, &mut self.random);
                (Way::Circuit(index, direction), sent)
            }
            (None, Some(Fallback { settings, line, counters })) => {
                (Way::Fallback, line.admit(now, frame, settings, counters, &mut self.random))
            }
            (None, None) => return false,
        };
        for (passage, frame) in sent {
            self.count += 1;
            self.under_way.push(UnderWay { passage, number: self.count, way, to, frame });
        }
        true
    }

    /// Somebody wants a circuit to change.
    pub fn handle_event(&mut self, now: Instant, event: FabricEvent) -> Result<(), FabricError> {
        let circuit = self.circuit(event.circuit())?;
        if let FabricEvent::Move { circuit: label, ends } = &event {
            self.check_ends(label, *ends)?;
        }
        self.handle_timeout(now);
        // This takes the place of what was to happen.
        let is_awaited = |step: &Step| matches!(*step, Step::Dark { circuit: of, .. } if of == circuit);
        let was_prepared = self.agenda.values().any(is_awaited);
        self.agenda.retain(|_, step| step.circuit() != circuit);
        let at = now + self.notice;
        match event {
            // Who prepared for a dark that does not come is told, too.
            FabricEvent::Light { .. } if was_prepared && self.is_lit(circuit) => {
                self.announce(Phase::Up, circuit, now, None);
            }
            FabricEvent::Light { .. } => self.plan(now, Step::Light { circuit }),
            FabricEvent::Dark { lasting, .. } => self.plan_dark(at, circuit, lasting, None),
            FabricEvent::Move { ends, .. } => {
                let lasting = self.circuits.get(circuit).map(|c| c.settings.reconfiguration);
                self.plan_dark(at, circuit, lasting, Some(ends));
            }
        }
        self.handle_timeout(now);
        Ok(())
    }

    fn plan_dark(&mut self, at: Instant, circuit: usize, lasting: Option<Duration>, moved: Option<[PortId; 2]>) {
        let lit_again = lasting.map(|lasting| at + lasting);
        if moved.is_some() || self.is_lit(circuit) {
            self.announce(Phase::Prepare, circuit, at, lit_again);
        }
        self.plan(at, Step::Dark { circuit, lit_again, moved });
        if let Some(lit_again) = lit_again {
            self.plan(lit_again, Step::Light { circuit });
        }
    }

    fn plan(&mut self, at: Instant, step: Step) {
        self.count += 1;
        self.agenda.insert((at, self.count), step);
    }

    /// Changes whose time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, _), step) = entry.remove_entry();
            match step {
                Step::Dark { circuit, lit_again, moved } => self.darken(at, circuit, lit_again, moved),
                Step::Light { circuit } => self.lighten(at, circuit),
            }
        }
    }

    fn darken(&mut self, at: Instant, index: usize, lit_again: Option<Instant>, moved: Option<[PortId; 2]>) {
        let Some(circuit) = self.circuits.get_mut(index) else { return };
        let was_lit = core::mem::replace(&mut circuit.is_lit, false);
        let Circuit { settings, lines, counters, .. } = circuit;
        settings.ends = moved.unwrap_or(settings.ends);
        lines.iter_mut().for_each(|line| line.empty(at));
        // What has left is in the glass and arrives; what waits would be sent into the dark.
        self.under_way.retain(|held| {
            let is_lost = matches!(held.way, Way::Circuit(on, _) if on == index) && held.passage.departs > at;
            counters.lost_in_dark += if is_lost { held.frame.packets() } else { 0 };
            !is_lost
        });
        if was_lit || moved.is_some() {
            self.announce(Phase::Down, index, at, lit_again);
        }
    }

    fn lighten(&mut self, at: Instant, index: usize) {
        let Some(circuit) = self.circuits.get_mut(index) else { return };
        if !core::mem::replace(&mut circuit.is_lit, true) {
            self.announce(Phase::Up, index, at, None);
        }
    }

    fn announce(&mut self, phase: Phase, index: usize, at: Instant, lit_again: Option<Instant>) {
        if let Some(Circuit { settings, .. }) = self.circuits.get(index) {
            let (circuit, ends) = (settings.label.clone(), settings.ends);
            self.announcements.push_back(Announcement { phase, circuit, at, lit_again, ends });
        }
    }

    /// The next frame whose time has come, and the port that it goes out of.
    pub fn poll_frame(&mut self, now: Instant) -> Option<(PortId, Frame)> {
        self.handle_timeout(now);
        if self.under_way.peek()?.passage.arrives > now {
            return None;
        }
        let UnderWay { way, to, frame, .. } = self.under_way.pop()?;
        let counters = match way {
            Way::Circuit(index, _) => self.circuits.get_mut(index).map(|c| &mut c.counters),
            Way::Fallback => self.fallback.as_mut().map(|f| &mut f.counters),
        };
        if let Some(counters) = counters {
            counters.passed += frame.packets();
            counters.passed_bytes += frame.wire_bytes();
        }
        if let Some(Port { counters, .. }) = self.ports.get_mut(to.0) {
            counters.delivered += frame.packets();
        }
        Some((to, frame))
    }

    /// News of circuits, oldest first.
    pub fn poll_announcement(&mut self) -> Option<Announcement> {
        self.announcements.pop_front()
    }

    /// When to call [`Self::handle_timeout`] and [`Self::poll_frame`] next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let frame = self.under_way.peek().map(|held| held.passage.arrives);
        let change = self.agenda.first_key_value().map(|((at, _), _)| *at);
        frame.into_iter().chain(change).min()
    }

    fn is_lit(&self, circuit: usize) -> bool {
        self.circuits.get(circuit).is_some_and(|c| c.is_lit)
    }

    fn circuit(&self, label: &str) -> Result<usize, FabricError> {
        let known = || self.circuits.iter().map(|c| c.settings.label.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.circuits.iter().position(|c| c.settings.label == label);
        found.ok_or_else(|| FabricError::NoCircuit { label: label.to_owned(), known: known() })
    }

    /// Whether this circuit may join those ports: they exist, are two, and no other circuit joins them or is about to.
    fn check_ends(&self, label: &str, ends: [PortId; 2]) -> Result<(), FabricError> {
        let [a, b] = ends;
        if let Some(missing) = ends.iter().find(|end| end.0 >= self.ports.len()) {
            let known = format!("0 to {}", self.ports.len().saturating_sub(1));
            return Err(FabricError::NoPort { name: missing.0.to_string(), known });
        }
        if a == b {
            return Err(FabricError::SameEnds(label.to_owned()));
        }
        let now = self.circuits.iter().map(|c| (&c.settings.label, c.settings.ends));
        let soon = self.agenda.values().filter_map(|step| match *step {
            Step::Dark { circuit, moved: Some(ends), .. } => Some((&self.circuits.get(circuit)?.settings.label, ends)),
            _ => None,
        });
        match now.chain(soon).find(|(other, ends)| *other != label && joins(*ends, a, b)) {
            Some((other, _)) => Err(FabricError::Taken { label: label.to_owned(), other: other.clone() }),
            None => Ok(()),
        }
    }
}

impl Ord for UnderWay {
    /// The earliest is the greatest: a heap gives that first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.passage.arrives, other.number).cmp(&(self.passage.arrives, self.number))
    }
}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for UnderWay {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for UnderWay {}
