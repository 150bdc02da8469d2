//! Whose turn it is to send; timers.

use super::congestion::mark_capable;
use super::paths::{NEAR, Needs};
use super::{Engine, Entry};
use crate::congestion::Allowance;
use crate::time::Instant;
use crate::transport::{Burst, Poll};
use crate::wire::Qpn;

/// Turns in which queue pairs of this engine only serve each other, before the port has its turn again.
const LOCAL_TURNS: u32 = 32;

impl Engine {
    /// Fills `burst` with packets of the queue pair whose turn it is; false, and an empty burst, if none has any now.
    ///
    /// Fair: one burst a turn. What queue pairs of this engine send each other does not come out here.
    pub fn poll_transmit(&mut self, now: Instant, burst: &mut Burst) -> bool {
        self.now = self.now.max(now);
        // An ACK promises that what it acknowledges is in the client's memory.
        self.deliver_writes();
        while let Some((peer, ack)) = self.aside.pop_front() {
            burst.clear();
            burst.push_raw(ack.flow(), ack.bytes());
            if !self.stays_here(Some(peer), burst) {
                self.count_leaving(burst);
                return true;
            }
            self.loop_back(now, burst);
        }
        let mut local_turns = LOCAL_TURNS;
        while local_turns > 0 {
            burst.clear();
            let Some((slot, is_probe)) = self.next_turn(now) else {
                self.paths.settle();
                return false;
            };
            let exchanged = self.exchange(now, slot);
            let filled = self.fill(now, slot, is_probe, burst);
            if filled && !self.stays_here(self.peer_of(slot), burst) {
                self.count_leaving(burst);
                return true;
            }
            if filled {
                self.loop_back(now, burst);
            }
            local_turns -= u32::from(exchanged || filled);
        }
        burst.clear();
        false
    }

    /// The queue pair whose turn it is, and whether it looks for the light; those who have it come after.
    fn next_turn(&mut self, now: Instant) -> Option<(u32, bool)> {
        self.settle_recent();
        while let Some(seat) = self.probing.pop_front() {
            if let Some(slot) = self.paths.slot(seat) {
                return Some((slot, true));
            }
        }
        let seat = self.paths.pop_turn()?;
        if seat.path != NEAR {
            self.enlighten(now, seat);
        }
        Some((self.paths.slot(seat)?, false))
    }

    /// Gives one queue pair its turn. If it sent it goes to the end of the queue: there may be more. If its rate holds it back it has
    /// another turn when that is over; what looks for the light is one packet, and not held back.
    fn fill(&mut self, now: Instant, slot: u32, is_probe: bool, burst: &mut Burst) -> bool {
        let Some(entry) = self.qps.get_mut(slot as usize) else { return false };
        let Some(path) = self.paths.get(entry.seat.path) else { return false };
        let path_now = path.clock.at(now);
        let mut held_until = None;
        match entry.poll_allowance(path_now, &path.tuning) {
            Allowance::Unlimited => {}
            _ if is_probe => {}
            Allowance::Bytes(bytes) => burst.set_allowance(bytes),
            Allowance::Wait(at) => {
                burst.set_allowance(0);
                held_until = Some(at);
            }
        }
        let filled = entry.qp.poll_transmit(&mut self.shared.context(path_now), burst) == Poll::Filled;
        if filled {
            entry.handle_sent(path_now, burst, &path.tuning);
            if self.paths.reacts(path) {
                mark_capable(burst);
            }
        }
        let mut needs = Needs::of(&entry.qp, filled);
        needs.deadline = [needs.deadline, held_until].into_iter().flatten().min();
        self.paths.note(now, entry.seat, needs);
        self.totals.note(slot);
        filled
    }

    /// Whether a burst is for queue pairs of this engine. Those of other workers are reached through the port.
    fn stays_here(&self, peer: Option<Qpn>, burst: &Burst) -> bool {
        self.is_ours(burst.flow().destination)
            && (self.worker.is_only() || peer.is_some_and(|qpn| self.worker.owns(qpn)))
    }

    fn count_leaving(&mut self, burst: &Burst) {
        self.counters.transmitted_packets += u64::from(burst.packet_count());
        self.counters.transmitted_bytes += burst.len_bytes() as u64;
    }

    /// Takes the ACK that a queue pair owes out of it, before it goes.
    pub(super) fn keep_last_ack(&mut self, slot: u32) {
        self.deliver_writes();
        let Some(Entry { qp, seat, .. }) = self.qps.get_mut(slot as usize) else { return };
        let now = self.paths.time(seat.path, self.now);
        let peer = qp.attributes().dest_qpn;
        self.aside.extend(qp.take_last_ack(&mut self.shared.context(now)).map(|ack| (peer, ack)));
    }

    /// Whom a connection is with.
    fn peer_of(&self, slot: u32) -> Option<Qpn> {
        let qp = &self.qps.get(slot as usize)?.qp;
        (!qp.init().kind.is_datagram()).then(|| qp.attributes().dest_qpn)
    }

    /// Hands a burst to ourselves.
    fn loop_back(&mut self, now: Instant, burst: &Burst) {
        self.counters.looped_packets += u64::from(burst.packet_count());
        for datagram in burst.datagrams() {
            self.take_datagram(now, &datagram);
        }
    }

    /// Does what is due at `now`: ACK timeouts, ends of RNR waits, delayed ACKs; silence, probes and the end of patience of paths.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.settle_recent();
        self.paths.settle();
        while let Some(path) = self.paths.pop_due(now) {
            self.handle_path_timeout(now, path);
        }
    }

    /// When to call again though nothing arrives: the present, if somebody waits for a turn to send.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_settled = self.recent.is_none() && self.paths.is_idle();
        if is_settled && self.probing.is_empty() && self.aside.is_empty() {
            self.paths.next_check()
        } else {
            Some(self.now)
        }
    }
}
