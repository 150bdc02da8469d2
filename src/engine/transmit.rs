//! Whose turn it is to send; timers.

use super::{Engine, Entry};
use crate::time::{Duration, Instant};
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
        while let Some((peer, ack)) = self.last_acks.pop_front() {
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
            let Some(slot) = self.ready.pop() else { return false };
            let exchanged = self.exchange(now, slot);
            let filled = self.fill(now, slot, burst);
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

    /// Gives one queue pair its turn. If it sent it goes to the end of the queue: there may be more.
    fn fill(&mut self, now: Instant, slot: u32, burst: &mut Burst) -> bool {
        let Some(Entry { qp, .. }) = self.qps.get_mut(slot as usize) else { return false };
        let poll = qp.poll_transmit(&mut self.shared.context(self.timers.clock.at(now)), burst);
        self.timers.set(slot, qp.poll_timeout());
        self.totals.note(slot);
        if poll == Poll::Filled {
            self.ready.push(slot);
        }
        poll == Poll::Filled
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
        let now = self.timers.clock.at(self.now);
        let Some(Entry { qp, .. }) = self.qps.get_mut(slot as usize) else { return };
        let peer = qp.attributes().dest_qpn;
        self.last_acks.extend(qp.take_last_ack(&mut self.shared.context(now)).map(|ack| (peer, ack)));
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

    /// Does what is due at `now`: ACK timeouts, ends of RNR waits, delayed ACKs.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some(slot) = self.timers.pop_due(now) {
            let Some(Entry { qp, .. }) = self.qps.get_mut(slot as usize) else { continue };
            let path_now = self.timers.clock.at(now);
            qp.handle_timeout(&mut self.shared.context(path_now));
            // What is due is done now; a deadline that stays in the past must not hold us here.
            let soonest = path_now + Duration::from_nanos(1);
            self.timers.set(slot, qp.poll_timeout().map(|deadline| deadline.max(soonest)));
            self.ready.push(slot);
        }
    }

    /// When to call again though nothing arrives: the present, if somebody waits for a turn to send.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ready.is_empty() { self.timers.next_check() } else { Some(self.now) }
    }
}
