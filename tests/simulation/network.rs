//! A network that loses, doubles, reorders, delays and damages packets, as its seed says.

use crate::darkness::Blackout;
use crate::rng::Rng;
use holdfast::time::{Duration, Instant};
use holdfast::wire::icrc::Icrc;
use holdfast::wire::{Datagram, Ecn, ICRC_LEN, IpHeader, Packet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What the network does to packets; chances are in thousandths.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Chance that a packet is lost.
    pub loss: u32,
    /// Chance that it arrives twice.
    pub duplication: u32,
    /// Chance that bits of it are flipped.
    pub corruption: u32,
    /// Chance that it is marked with CE, if its sender reacts to that.
    pub marks: u32,
    /// Chance that it is overtaken by later ones.
    pub reordering: u32,
    /// How long a packet takes.
    pub delay: Duration,
    /// How much longer one that is overtaken takes at most.
    pub detour: Duration,
    /// Chance that a packet begins a time in which large packets are lost (the MTU of a hop has shrunk).
    pub mtu_step: u32,
    /// Mends the ICRC of damaged packets: the run must then be found wrong. This is how the simulator shows that it can fail.
    pub mend_icrc: bool,
}

impl Faults {
    /// A perfect network.
    pub fn none(delay: Duration) -> Self {
        Self {
            loss: 0,
            duplication: 0,
            corruption: 0,
            marks: 0,
            reordering: 0,
            delay,
            detour: Duration::ZERO,
            mtu_step: 0,
            mend_icrc: false,
        }
    }
}

/// What the network did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Packets handed to it.
    pub sent: u64,
    /// Packets lost, to chance or to a small MTU.
    pub lost: u64,
    /// Packets lost in the dark.
    pub swallowed: u64,
    /// Packets sent twice.
    pub doubled: u64,
    /// Packets damaged.
    pub damaged: u64,
    /// Packets marked.
    pub marked: u64,
}

/// One packet as it travels: what a port will see of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// IP header.
    pub ip: IpHeader,
    /// UDP source port.
    pub source_port: u16,
    /// BTH to ICRC.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// As the engine takes it.
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram { ip: self.ip, source_port: self.source_port, bytes: &self.bytes }
    }
}

#[derive(PartialEq, Eq)]
struct InFlight {
    at: Instant,
    order: u64,
    frame: Frame,
}

impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Packets under way.
pub struct Network {
    rng: Rng,
    faults: Faults,
    under_way: BinaryHeap<Reverse<InFlight>>,
    order: u64,
    small_until: Instant,
    tally: Tally,
    blackouts: Vec<Blackout>,
    trace: bool,
}

/// Packets above this are lost while a hop's MTU is small.
const SMALL_MTU: usize = 600;
/// Between two such times, so that no retry budget is used up.
const STEP_PAUSE: Duration = Duration::from_millis(50);

impl Network {
    /// An empty network.
    pub fn new(rng: Rng, faults: Faults, blackouts: Vec<Blackout>, trace: bool) -> Self {
        Self {
            rng,
            faults,
            under_way: BinaryHeap::new(),
            order: 0,
            small_until: Instant::ZERO,
            tally: Tally::default(),
            blackouts,
            trace,
        }
    }

    /// From now on it does no harm. Blackouts end by themselves.
    pub fn heal(&mut self) {
        self.faults = Faults::none(self.faults.delay);
        self.small_until = Instant::ZERO;
    }

    /// What it did so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// When the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(p)| p.at)
    }

    /// Takes a packet that has arrived by `now`.
    pub fn receive(&mut self, now: Instant) -> Option<Frame> {
        if self.next_arrival()? > now {
            return None;
        }
        self.under_way.pop().map(|Reverse(p)| p.frame)
    }

    /// Sends a packet.
    pub fn send(&mut self, now: Instant, frame: Frame) {
        self.tally.sent += 1;
        if self.rng.permille(self.faults.mtu_step) && now.since(self.small_until) > STEP_PAUSE {
            self.small_until = now + Duration::from_micros(self.rng.between(100, 3000));
        }
        if self.trace {
            println!("{:>12} {}", now.as_ns() % 1_000_000_000_000, describe(&frame));
        }
        let too_large = now < self.small_until && frame.bytes.len() > SMALL_MTU;
        if too_large || self.rng.permille(self.faults.loss) {
            self.tally.lost += 1;
            if self.trace {
                println!("{:>12} lost", "");
            }
            return;
        }
        if self.rng.permille(self.faults.duplication) {
            self.tally.doubled += 1;
            self.forward(now, frame.clone());
        }
        self.forward(now, frame);
    }

    fn forward(&mut self, now: Instant, mut frame: Frame) {
        if self.rng.permille(self.faults.corruption) {
            self.tally.damaged += 1;
            self.damage(&mut frame);
        }
        if frame.ip.ecn() == Ecn::Ect0 && self.rng.permille(self.faults.marks) {
            self.tally.marked += 1;
            match &mut frame.ip {
                IpHeader::V4(ip) => ip.tos |= Ecn::Ce as u8,
                IpHeader::V6(ip) => ip.traffic_class |= Ecn::Ce as u8,
            }
        }
        let mut at = now + self.faults.delay;
        if self.rng.permille(self.faults.reordering) {
            at += Duration::from_nanos(self.rng.below(self.faults.detour.as_nanos() as u64));
        }
        let to = frame.ip.destination();
        if self.blackouts.iter().any(|blackout| blackout.swallows(now, at, to)) {
            self.tally.swallowed += 1;
            if self.trace {
                println!("{:>12} swallowed", "");
            }
            return;
        }
        self.order += 1;
        self.under_way.push(Reverse(InFlight { at, order: self.order, frame }));
    }

    /// Flips one to three bits, as a cable does; with `mend_icrc`, bits of the payload behind the CRC's back.
    fn damage(&mut self, frame: &mut Frame) {
        let first = if self.faults.mend_icrc { frame.bytes.len().saturating_sub(8).min(60) } else { 0 };
        let bits = (frame.bytes.len() - first) as u64 * 8;
        for _ in 0..self.rng.between(1, 3) {
            let bit = first * 8 + self.rng.below(bits) as usize;
            frame.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        if self.faults.mend_icrc {
            mend(frame);
        }
    }
}

/// Puts the right ICRC at the end of a packet.
pub fn mend(frame: &mut Frame) {
    let Some((covered, _)) = frame.bytes.split_last_chunk::<ICRC_LEN>() else { return };
    let covered_len = covered.len();
    let icrc = Icrc::start(&frame.ip, frame.source_port, frame.datagram().udp_len(), covered).finish();
    frame.bytes[covered_len..].copy_from_slice(&icrc.to_le_bytes());
}

/// One packet in a line.
fn describe(frame: &Frame) -> String {
    let Ok(packet) = Packet::new_checked(&frame.bytes) else { return "malformed".into() };
    let bth = packet.bth();
    let mut text = format!(
        "{} > {} {} qp {} psn {}{} {} bytes",
        frame.ip.source(),
        frame.ip.destination(),
        bth.opcode.name(),
        bth.dest_qp,
        bth.psn,
        if bth.ack_req { " AckReq" } else { "" },
        packet.payload().len()
    );
    if let Some(aeth) = packet.aeth() {
        text += &format!(" {:?} msn {}", aeth.syndrome, aeth.msn);
    }
    if let Some(reth) = packet.reth() {
        text += &format!(" va {:#x} dma_len {}", reth.va, reth.dma_len);
    }
    text
}
