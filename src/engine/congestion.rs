//! DCQCN at work: which packets say that their sender reacts, who is told to slow down, and how fast a queue pair may send.
//!
//! A queue pair that no mark and no CNP ever concerned has no state here and sends as fast as its turn comes. The parameters and the line
//! belong to the path, whose clock stands still in the dark, and with it every rate.

use super::circuits::line_of;
use super::paths::{NEAR, Path, Seat};
use super::{DropReason, Engine, Entry};
use crate::congestion::{Allowance, Bps, Flow, Tuning};
use crate::path::{Circuit, IpPrefix, Label};
use crate::time::Instant;
use crate::transport::{AddressVector, Burst, BurstLimits, PACKET_OVERHEAD, Qp, Wait, Waiting};
use crate::wire::{CNP_LEN, Datagram, Ecn, Qpn, build_cnp};

/// Bytes of headers in the largest packet beside its payload: BTH, RETH, immediate, ICRC, and what is around it on the line.
const MOST_HEADERS: u32 = 12 + 16 + 4 + 4 + PACKET_OVERHEAD;

/// How queue pairs share lines with others.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CongestionPolicy {
    /// Whether marks and CNPs mean anything.
    pub enabled: bool,
    /// Parameters, and the line of paths of which nothing else is known.
    pub tuning: Tuning,
    /// Stock peers that answer marked packets with CNPs and slow down when they get some. Other holdfasts are found out by themselves.
    pub reacting: Vec<IpPrefix>,
}

impl CongestionPolicy {
    /// What holds for a path on a circuit.
    pub(super) fn tuning_on(&self, circuit: Option<&Circuit>) -> Tuning {
        if self.enabled { self.tuning.on(line_of(self.tuning.line(), circuit)) } else { Tuning::default() }
    }

    /// Whether a peer is known to react before it has said anything.
    pub(super) fn lists(&self, peer: Option<core::net::IpAddr>) -> bool {
        peer.is_some_and(|peer| self.reacting.iter().any(|prefix| prefix.contains(peer)))
    }
}

/// What a queue pair has to do with congestion.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Congested {
    flow: Flow,
    marked: u64,
    cnps_sent: u64,
    cnps_received: u64,
    /// The circuit that it was on before, and what it was there.
    before: Option<(Option<Label>, Flow)>,
}

impl Congested {
    /// Its path rides on another circuit: nothing is known of that, or what was when it was last there. What is known of the old one stands
    /// still meanwhile.
    pub(super) fn handle_move(&mut self, path_now: Instant, labels: [Option<Label>; 2], tunings: [&Tuning; 2]) {
        let [old, new] = labels;
        self.flow.freeze(path_now, tunings[0]);
        let known = self.before.filter(|(label, _)| *label == new).map(|(_, flow)| flow);
        self.before = Some((old, self.flow));
        self.flow = known.unwrap_or_default();
        self.flow.thaw(path_now, tunings[1]);
    }
}

/// The congestion state of a queue pair, for those who look at it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CongestionStatus {
    /// How fast it may send.
    pub rate: Bps,
    /// Where its rate is on the way to.
    pub target: Bps,
    /// The estimate of congestion, 0 to 1.
    pub alpha: f64,
    /// Whether CNPs hold its rate below the line's.
    pub is_limited: bool,
    /// Packets of the peer that came marked.
    pub marked_packets: u64,
    /// CNPs that told the peer so.
    pub cnps_sent: u64,
    /// CNPs of the peer.
    pub cnps_received: u64,
}

impl Entry {
    /// How much may leave now.
    #[inline]
    pub(super) fn poll_allowance(&mut self, path_now: Instant, tuning: &Tuning) -> Allowance {
        if self.congestion.is_none() && tuning.always_paces() {
            self.congestion = Some(Box::default());
        }
        match &mut self.congestion {
            None => Allowance::Unlimited,
            Some(state) => {
                let (packet, waiting) = waiting_bytes(&self.qp);
                state.flow.poll_allowance(path_now, packet, waiting, tuning)
            }
        }
    }

    /// A burst left.
    #[inline]
    pub(super) fn handle_sent(&mut self, path_now: Instant, burst: &Burst, tuning: &Tuning) {
        if let Some(state) = &mut self.congestion {
            let packet = burst.segment_bytes() + PACKET_OVERHEAD;
            state.flow.handle_sent(path_now, packet, burst.line_bytes(), tuning);
        }
    }
}

/// Bytes on the line of the largest packet of a queue pair, and of all that it has to send.
fn waiting_bytes(qp: &Qp) -> (u32, u64) {
    let packet = qp.attributes().path_mtu.bytes() + MOST_HEADERS;
    (packet, qp.unsent_bytes().map_or(u64::MAX, |bytes| u64::from(bytes) + u64::from(MOST_HEADERS)))
}

impl Engine {
    /// Changes how queue pairs share lines. Rates found so far stay where they are allowed.
    pub fn set_congestion_policy(&mut self, now: Instant, policy: CongestionPolicy) {
        self.now = self.now.max(now);
        self.paths.set_congestion(policy);
    }

    /// The congestion state of a queue pair; `None` if nothing ever concerned it.
    pub fn congestion_of(&mut self, now: Instant, qpn: Qpn) -> Option<CongestionStatus> {
        let entry = self.qps.get_mut(self.slot(qpn)? as usize)?;
        let path = self.paths.get(entry.seat.path)?;
        let state = entry.congestion.as_mut()?;
        state.flow.handle_timeout(path.clock.at(now), &path.tuning);
        let reaction = state.flow.reaction();
        Some(CongestionStatus {
            rate: reaction.rate(&path.tuning),
            target: reaction.target(&path.tuning),
            alpha: reaction.alpha(path.clock.at(now), &path.tuning).as_f64(),
            is_limited: reaction.is_limited(),
            marked_packets: state.marked,
            cnps_sent: state.cnps_sent,
            cnps_received: state.cnps_received,
        })
    }

    /// Whether, and until when, its rate holds a queue pair back.
    pub(super) fn paced(&mut self, now: Instant, slot: u32) -> Option<Waiting> {
        let entry = self.qps.get_mut(slot as usize)?;
        let path = self.paths.get(entry.seat.path)?;
        let path_now = path.clock.at(now);
        match entry.poll_allowance(path_now, &path.tuning) {
            Allowance::Wait(at) => {
                Some(Waiting { reason: Wait::Congestion, waited: None, ends_in: Some(at.since(path_now)) })
            }
            _ => None,
        }
    }

    /// A packet that fits a connection came marked: its sender is told, if it is one who cares.
    #[cold]
    pub(super) fn handle_mark(&mut self, now: Instant, slot: u32, seat: Seat) {
        let Some(path) = self.paths.get(seat.path).filter(|_| seat.path != NEAR) else { return };
        let Some(entry) = self.qps.get_mut(slot as usize) else { return };
        let state = entry.congestion.get_or_insert_default();
        state.marked += 1;
        let path_now = path.clock.at(now);
        if !self.paths.reacts(path) || !state.flow.handle_ce(path_now, &path.tuning) {
            return;
        }
        let Some(cnp) = cnp_to(&entry.qp, path, &self.shared.pkeys) else { return };
        state.cnps_sent += 1;
        self.counters.cnps_sent += 1;
        self.aside.push_back((entry.qp.attributes().dest_qpn, cnp));
    }

    /// A congestion notification counts only if it comes from the peer of a connection: anybody can write a QPN.
    pub(super) fn take_cnp(&mut self, now: Instant, qpn: Qpn, datagram: &Datagram<'_>) -> Result<(), DropReason> {
        let slot = self.slot(qpn).ok_or(DropReason::UnknownQp)?;
        let entry = self.qps.get_mut(slot as usize).ok_or(DropReason::UnknownQp)?;
        let from_peer = !entry.qp.init().kind.is_datagram()
            && entry.qp.state().receives()
            && entry.qp.attributes().av.destination == datagram.ip.source();
        if !from_peer {
            return Err(DropReason::Cnp);
        }
        self.counters.cnps_received += 1;
        let Some(path) = self.paths.get(entry.seat.path).filter(|_| self.paths.obeys_cnps()) else { return Ok(()) };
        let state = entry.congestion.get_or_insert_default();
        state.cnps_received += 1;
        state.flow.handle_cnp(path.clock.at(now), &path.tuning);
        Ok(())
    }
}

/// The packet that tells a connection's peer to slow down: with a DSCP of its own, and never marked itself.
fn cnp_to(qp: &Qp, path: &Path, pkeys: &[u16]) -> Option<Burst> {
    let attributes = qp.attributes();
    let av = AddressVector { traffic_class: path.tuning.parameters().cnp_dscp << 2, ..attributes.av };
    let pkey = pkeys.get(usize::from(attributes.pkey_index)).copied()?;
    let packet = build_cnp(&av.ip_header(0)?, av.source_port, attributes.dest_qpn, pkey);
    let limits = BurstLimits { max_packets: 1, max_bytes: CNP_LEN as u32, ..BurstLimits::default() };
    let mut burst = Burst::new(limits);
    burst.push_raw(&av, &packet).then_some(burst)
}

/// Marks a burst's packets as those of a sender that reacts to CNPs, unless its program chose otherwise.
#[inline]
pub(super) fn mark_capable(burst: &mut Burst) {
    if burst.flow().traffic_class & 3 == Ecn::NotEct as u8 {
        burst.set_ecn(Ecn::Ect0);
    }
}
