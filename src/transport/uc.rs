//! Unreliable connection (IBTA 9.8.2): no answers, no repeats; a message with a hole is dropped whole.

use super::message::Fault;
use super::rc::Segment;
use super::send_queue::SendEntry;
use super::{Burst, Context, Qp, QpState, Refusal, SendOp, WcStatus};
use crate::memory::WindowBinding;
use crate::wire::{Bth, Operation, Packet, Place, Service, pad_count};

impl Qp {
    /// Adds packets until the burst is full. A request completes when its last packet is in a burst.
    pub(super) fn uc_fill(&mut self, cx: &mut Context<'_>, burst: &mut Burst) {
        while matches!(self.state(), QpState::Rts | QpState::Sqd) {
            let Some(entry) = self.sq.get(self.sq.head()).copied() else { break };
            let fresh = self.sq.head() == self.req.begun;
            if fresh && self.state() == QpState::Sqd {
                break;
            }
            let went_on = match entry.op {
                SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => self.uc_do_local(cx, &entry),
                _ => self.uc_send_message(cx, burst, &entry),
            };
            if !went_on {
                break;
            }
        }
        self.note_drained(cx);
    }

    fn uc_do_local(&mut self, cx: &mut Context<'_>, entry: &SendEntry) -> bool {
        let (pd, qpn) = (self.init.pd, self.qpn.get());
        let (result, status) = match entry.op {
            SendOp::BindWindow { rkey, lkey, va, length, access } => {
                let binding = WindowBinding { rkey, lkey, addr: va, length, access };
                (cx.memory.bind_window(pd, qpn, &binding), WcStatus::MwBind)
            }
            SendOp::LocalInvalidate(rkey) => (cx.memory.invalidate(pd, rkey, qpn), WcStatus::LocalQpOperation),
            _ => (Ok(()), WcStatus::General),
        };
        match result {
            Ok(()) => self.unreliable_sent(cx),
            Err(_) => self.fail_send(cx, status, 0),
        }
        result.is_ok()
    }

    /// Pushes packets of the oldest request. Whether all of it is in bursts now.
    fn uc_send_message(&mut self, cx: &mut Context<'_>, burst: &mut Burst, entry: &SendEntry) -> bool {
        if let Some(carried) = self.too_small_for(entry.len) {
            self.fail_too_large(cx, carried);
            return false;
        }
        let mtu = self.attrs.path_mtu.bytes();
        let packets = self.attrs.path_mtu.packets(entry.len);
        let first = Segment::of(entry, self.req.offset, packets, mtu);
        if !burst.fits(&self.attrs.av, first.header, first.payload) {
            return false;
        }
        let mut run = (packets - self.req.offset).min(burst.room(first.header, first.payload).max(1));
        if first.place == Place::First && first.header > BTH {
            run = run.min(2);
        }
        let start = self.req.offset * mtu;
        let bytes = (entry.len - start).min(run.saturating_mul(mtu));
        let (sq, head, pd, memory) = (&self.sq, self.sq.head(), self.init.pd, &mut *cx.memory);
        if burst.stage(|list| sq.gather(head, start, bytes, pd, memory, list)).is_err() {
            self.fail_send(cx, WcStatus::LocalProtection, 0);
            return false;
        }
        self.req.begun = head + 1;
        for _ in 0..run {
            let segment = Segment::of(entry, self.req.offset, packets, mtu);
            if !burst.fits(&self.attrs.av, segment.header, segment.payload) {
                return false;
            }
            let bth = Bth {
                solicited: segment.place.ends() && entry.is_solicited(),
                pad_count: pad_count(segment.payload as usize),
                ..self.bth(cx, segment.opcode(Service::Uc, entry.op), self.req.next)
            };
            let headers = segment.headers(&bth, entry);
            if burst.push(cx.memory, &self.attrs.av, &headers, segment.payload).is_err() {
                return false;
            }
            self.count_sent(segment.payload);
            self.req.next = self.req.next.plus(1);
            self.req.offset += 1;
        }
        if self.req.offset < packets {
            return false;
        }
        self.unreliable_sent(cx);
        true
    }

    /// The oldest request is all sent: on an unreliable service it is complete.
    pub(super) fn unreliable_sent(&mut self, cx: &mut Context<'_>) {
        if let Some(entry) = self.sq.pop() {
            self.complete_send(cx, &entry, WcStatus::Success, 0);
        }
        self.req.offset = 0;
        self.req.begun = self.sq.head();
    }

    /// Takes a packet. After a hole, and after any fault, what belongs to the broken message is dropped until the next one begins
    /// (IBTA 9.8.2.2).
    pub(super) fn uc_handle_packet(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        operation: Option<Operation>,
    ) -> Result<(), Refusal> {
        let Some(op @ (Operation::Send { place, .. } | Operation::Write { place, .. })) = operation else {
            return Err(Refusal::Service);
        };
        let in_order = packet.psn() == self.resp.expected;
        self.resp.expected = packet.psn().plus(1);
        if !in_order {
            self.counters.out_of_sequence += 1;
        }
        if !in_order || place.starts() {
            self.inbound.abort();
        }
        if !place.starts() && !self.inbound.is_within() {
            return Err(Refusal::MessageGap);
        }
        self.place(cx, packet, op).map(drop).map_err(|fault| {
            self.inbound.abort();
            match fault {
                Fault::NotReady => {
                    self.counters.out_of_buffer += 1;
                    Refusal::NoReceive
                }
                Fault::Invalid => Refusal::InvalidUnreliable,
                Fault::Access => Refusal::Access,
                Fault::TooLong | Fault::LocalProtection => Refusal::ReceiveTooShort,
            }
        })
    }
}

/// Bytes of a header with nothing but the BTH.
const BTH: u32 = crate::wire::BTH_LEN as u32;
