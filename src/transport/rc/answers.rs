//! What the responder sends: READ responses, atomic answers, ACKs and NAKs, in the order of the requests (IBTA 9.7.3.1).

use super::responder::{Owed, Query, QueryKind, Run};
use crate::transport::message::Fault;
use crate::transport::{Burst, BurstLimits, Context, Qp};
use crate::wire::{Aeth, BTH_LEN, Bth, HeaderBuf, Opcode, Operation, Place, Psn, Reth, Service, Syndrome, pad_count};

/// Bytes before the payload of an ACK, and of a READ response that is not in the middle.
const WITH_AETH: u32 = (BTH_LEN + Aeth::LEN) as u32;

impl Qp {
    /// Adds answers to the burst until it is full or all is said.
    pub(super) fn rc_send_answers(&mut self, cx: &mut Context<'_>, burst: &mut Burst) {
        while let Some(index) = self.resp.queries.iter().position(|q| q.pending) {
            let Some(query) = self.resp.queries.get(index).copied() else { return };
            let done = match query.kind {
                QueryKind::Atomic { original, .. } => self.rc_send_atomic_ack(cx, burst, &query, original),
                QueryKind::Read { reth, run } => self.rc_send_read_response(cx, burst, index, &reth, run),
            };
            match self.resp.queries.get_mut(index) {
                Some(query) if done => (query.pending, query.answered) = (false, true),
                // Its memory has gone meanwhile: a NAK is owed in its place.
                Some(query) if !query.pending => {}
                _ => return,
            }
        }
        let (psn, syndrome) = match self.resp.owed {
            Owed::Later(at) if at > cx.now => return,
            Owed::Nothing => return,
            Owed::Ack | Owed::Later(_) => (self.resp.expected.minus(1), self.rc_ack()),
            Owed::Nak(psn, syndrome) => (psn, syndrome),
        };
        if self.rc_push_ack(cx, burst, psn, syndrome) {
            self.resp.owed = Owed::Nothing;
        }
    }

    /// The ACK of what was completed, if one is owed, as a burst of its own: for a queue pair that goes before its next turn. Its
    /// client has seen the messages arrive, so the peer must not be left to send them again to nobody.
    pub fn take_last_ack(&mut self, cx: &mut Context<'_>) -> Option<Burst> {
        // Behind a READ that stays without its answer, an ACK would say that the answer was lost.
        let is_owed =
            matches!(self.resp.owed, Owed::Ack | Owed::Later(_)) && !self.resp.queries.iter().any(|q| q.pending);
        if !is_owed {
            return None;
        }
        self.resp.owed = Owed::Ack;
        let mut burst = Burst::new(BurstLimits { max_packets: 1, max_bytes: 64, ..BurstLimits::default() });
        self.rc_send_answers(cx, &mut burst);
        Some(burst)
    }

    /// Whether the ACK or NAK went into the burst.
    fn rc_push_ack(&mut self, cx: &mut Context<'_>, burst: &mut Burst, psn: Psn, syndrome: Syndrome) -> bool {
        if !burst.fits(&self.attrs.av, WITH_AETH, 0) {
            return false;
        }
        let mut headers = HeaderBuf::new(&self.bth(cx, Opcode::RC_ACKNOWLEDGE, psn));
        headers.push_aeth(&Aeth { syndrome, msn: self.resp.msn });
        let pushed = burst.push(cx.memory, &self.attrs.av, &headers, 0).is_ok();
        if pushed {
            self.count_sent(0);
            self.counters.acks_sent += 1;
        }
        pushed
    }

    fn rc_send_atomic_ack(&mut self, cx: &mut Context<'_>, burst: &mut Burst, query: &Query, original: u64) -> bool {
        if !burst.fits(&self.attrs.av, WITH_AETH + 8, 0) {
            return false;
        }
        let syndrome = self.rc_ack();
        let mut headers = HeaderBuf::new(&self.bth(cx, Opcode::RC_ATOMIC_ACKNOWLEDGE, query.psn));
        headers.push_aeth(&Aeth { syndrome, msn: query.msn }).push_atomic_ack(original);
        let pushed = burst.push(cx.memory, &self.attrs.av, &headers, 0).is_ok();
        if pushed {
            self.count_sent(0);
        }
        pushed
    }

    /// Adds packets of a READ's answer, as many as fit. Whether the answer is complete.
    fn rc_send_read_response(
        &mut self,
        cx: &mut Context<'_>,
        burst: &mut Burst,
        index: usize,
        reth: &Reth,
        run: Run,
    ) -> bool {
        let mtu = self.attrs.path_mtu.bytes();
        let first = Response::of(&run, run.next, mtu);
        if !burst.fits(&self.attrs.av, first.header(), first.payload) {
            return false;
        }
        let mut count = (run.stop - run.next).min(burst.room(first.header(), first.payload).max(1));
        if first.place == Place::First {
            // Its AETH makes it longer than those behind it: at most one of them may share its burst.
            count = count.min(2);
        }
        let (skip, pd, qpn) = (run.next * mtu, self.init.pd, self.qpn.get());
        let bytes = (run.end - skip).min(count.saturating_mul(mtu));
        let (va, memory) = (reth.va.wrapping_add(skip.into()), &mut *cx.memory);
        let staged = match bytes {
            0 => Ok(()),
            _ => burst.stage(|list| memory.gather_remote(pd, qpn, reth.rkey, va, bytes, list)),
        };
        let Some(query) = self.resp.queries.get(index).copied() else { return true };
        if staged.is_err() {
            // The region went while its answer was on the way.
            self.rc_refuse_at(cx, query.psn.plus(run.next), Fault::Access);
            return false;
        }
        for at in run.next..run.next + count {
            if !self.rc_push_response(cx, burst, &query, &Response::of(&run, at, mtu), at) {
                return false;
            }
            if let Some(Query { kind: QueryKind::Read { run, .. }, .. }) = self.resp.queries.get_mut(index) {
                run.next = at + 1;
            }
        }
        run.next + count == run.stop
    }

    fn rc_push_response(
        &mut self,
        cx: &mut Context<'_>,
        burst: &mut Burst,
        query: &Query,
        response: &Response,
        at: u32,
    ) -> bool {
        if !burst.fits(&self.attrs.av, response.header(), response.payload) {
            return false;
        }
        let opcode = Opcode::of(Service::Rc, Operation::ReadResponse(response.place)).unwrap_or(Opcode::RC_ACKNOWLEDGE);
        let pad_count = pad_count(response.payload as usize);
        let mut headers = HeaderBuf::new(&Bth { pad_count, ..self.bth(cx, opcode, query.psn.plus(at)) });
        if response.place != Place::Middle {
            let syndrome = self.rc_ack();
            headers.push_aeth(&Aeth { syndrome, msn: query.msn });
        }
        let pushed = burst.push(cx.memory, &self.attrs.av, &headers, response.payload).is_ok();
        if pushed {
            self.count_sent(response.payload);
        }
        pushed
    }
}

/// One packet of a READ's answer.
struct Response {
    place: Place,
    payload: u32,
}

impl Response {
    /// Packet `at` of a READ, when `run` is what is sent of it.
    fn of(run: &Run, at: u32, mtu: u32) -> Self {
        let place = match (at == run.start, at + 1 == run.stop) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
        };
        Self { place, payload: (run.end - at * mtu).min(mtu) }
    }

    fn header(&self) -> u32 {
        if self.place == Place::Middle { BTH_LEN as u32 } else { WITH_AETH }
    }
}
