//! The completer: answers of the peer (IBTA 9.7.5, 9.7.6.1).

use crate::transport::{Context, Qp, QpState, Refusal, SendOp, WcStatus};
use crate::wire::{Aeth, Nak, Operation, Packet, Place, Psn, Syndrome};

impl Qp {
    /// Takes an answer. One to nothing that is under way is a ghost: of an earlier life of the QPN, or late.
    pub(in crate::transport) fn rc_handle_response(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        operation: Operation,
    ) -> Result<(), Refusal> {
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            return Err(Refusal::State);
        }
        let psn = packet.psn();
        let aeth = packet.aeth();
        if operation == Operation::Acknowledge && psn == self.req.una.minus(1) {
            return self.rc_handle_repeated_ack(cx, aeth);
        }
        self.req.hear();
        let ahead = psn.distance(self.req.una);
        if ahead < 0 || ahead >= self.req.sent.distance(self.req.una) {
            return Err(Refusal::Ghost);
        }
        let result = match operation {
            Operation::ReadResponse(place) => self.rc_handle_read_response(cx, packet, place),
            Operation::AtomicAcknowledge => self.rc_handle_atomic_ack(cx, packet),
            _ => self.rc_handle_ack(cx, psn, aeth.ok_or(Refusal::BadResponse)?),
        };
        if let Some(Aeth { syndrome: syndrome @ Syndrome::Ack(_), msn }) = aeth {
            self.rc_note_credit(syndrome, msn);
        }
        self.note_drained(cx);
        result
    }

    /// An ACK of what was acknowledged before: a sign of life, perhaps with new credit.
    fn rc_handle_repeated_ack(&mut self, cx: &mut Context<'_>, aeth: Option<Aeth>) -> Result<(), Refusal> {
        let Some(Aeth { syndrome: syndrome @ Syndrome::Ack(_), msn }) = aeth else { return Err(Refusal::Ghost) };
        self.rc_note_credit(syndrome, msn);
        if self.req.timer.is_some() {
            self.rc_restart_timer(cx.now);
        }
        Ok(())
    }

    fn rc_handle_ack(&mut self, cx: &mut Context<'_>, psn: Psn, aeth: Aeth) -> Result<(), Refusal> {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.rc_acknowledge(cx, psn.plus(1));
                self.rc_check_passed(cx, psn.plus(1));
            }
            Syndrome::RnrNak(timer) => {
                self.rc_acknowledge(cx, psn);
                if !self.rc_check_passed(cx, psn) {
                    self.rc_handle_rnr(cx, timer);
                }
            }
            Syndrome::Nak(Nak::SequenceError) => {
                self.rc_acknowledge(cx, psn);
                self.counters.packet_seq_err += 1;
                if self.req.una == psn && self.req.next != psn {
                    self.rc_go_back(cx, WcStatus::RetryExceeded);
                } else {
                    self.rc_check_passed(cx, psn);
                }
            }
            Syndrome::Nak(nak) => {
                self.rc_acknowledge(cx, psn);
                self.rc_handle_refusal(cx, psn, nak)?;
            }
            Syndrome::Reserved(_) => return Err(Refusal::BadResponse),
        }
        Ok(())
    }

    /// The peer refused the request at `psn` for good.
    fn rc_handle_refusal(&mut self, cx: &mut Context<'_>, psn: Psn, nak: Nak) -> Result<(), Refusal> {
        let status = match nak {
            Nak::InvalidRequest => {
                self.counters.req_remote_invalid_request += 1;
                WcStatus::RemoteInvalidRequest
            }
            Nak::RemoteAccess => {
                self.counters.req_remote_access_errors += 1;
                WcStatus::RemoteAccess
            }
            Nak::RemoteOperational => WcStatus::RemoteOperation,
            Nak::SequenceError | Nak::InvalidRd => return Err(Refusal::BadResponse),
        };
        // READs before it whose answers were lost will never be answered now.
        while let Some(entry) = self.sq.get(self.sq.head()).filter(|e| !psn.is_before(e.end_psn())) {
            let entry = *entry;
            self.sq.pop();
            self.complete_send(cx, &entry, WcStatus::WrFlush, 0);
        }
        self.fail_send(cx, status, nak as u32);
        Ok(())
    }

    /// If an answer for what is before `psn` came but `una` stands still, an answer in between was lost: an implied NAK
    /// (IBTA 9.7.5.2.4). Asks again, once. Whether it was so.
    fn rc_check_passed(&mut self, cx: &mut Context<'_>, psn: Psn) -> bool {
        if !self.req.una.is_before(psn) || !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            return false;
        }
        if self.req.asked_again != Some(self.req.una) {
            self.counters.implied_nak_seq_err += 1;
            self.req.asked_again = Some(self.req.una);
            self.rc_go_back(cx, WcStatus::RetryExceeded);
        }
        true
    }

    fn rc_handle_read_response(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        place: Place,
    ) -> Result<(), Refusal> {
        let psn = packet.psn();
        self.rc_acknowledge(cx, psn);
        if self.rc_check_passed(cx, psn) || self.req.una != psn {
            return Err(Refusal::Ghost);
        }
        let (head, mtu) = (self.sq.head(), self.attrs.path_mtu.bytes());
        let Some(entry) = self.sq.get(head).copied().filter(|e| matches!(e.op, SendOp::Read { .. })) else {
            return self.rc_bad_response(cx);
        };
        let index = psn.minus(entry.first_psn.get()).get();
        let offset = index * mtu;
        let expected = (entry.len - offset).min(mtu);
        let piece = cx.limits.read_packets(self.attrs.path_mtu);
        let last = index + 1 == entry.packets || (index + 1).is_multiple_of(piece);
        if packet.payload().len() != expected as usize || place.ends() != last {
            return self.rc_bad_response(cx);
        }
        if cx.memory.scatter(self.init.pd, self.sq.sges(head), offset.into(), packet.payload()).is_err() {
            self.fail_send(cx, WcStatus::LocalProtection, 0);
            return Ok(());
        }
        self.rc_answered(cx, last);
        Ok(())
    }

    fn rc_handle_atomic_ack(&mut self, cx: &mut Context<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
        let psn = packet.psn();
        self.rc_acknowledge(cx, psn);
        if self.rc_check_passed(cx, psn) || self.req.una != psn {
            return Err(Refusal::Ghost);
        }
        let head = self.sq.head();
        let atomic = self.sq.get(head).is_some_and(|e| e.op.is_atomic());
        let (true, Some(original)) = (atomic, packet.atomic_ack()) else {
            return self.rc_bad_response(cx);
        };
        // Verbs gives the former value in the host's byte order.
        if cx.memory.scatter(self.init.pd, self.sq.sges(head), 0, &original.to_ne_bytes()).is_err() {
            self.fail_send(cx, WcStatus::LocalProtection, 0);
            return Ok(());
        }
        self.rc_answered(cx, true);
        Ok(())
    }

    /// The right PSN, but not what was asked for (IBTA 9.9.2.1.1, unexpected opcode or length).
    fn rc_bad_response(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        self.fail_send(cx, WcStatus::BadResponse, 0);
        Err(Refusal::BadResponse)
    }

    /// One more PSN of a READ or atomic is answered; `ends` if that ends what was asked for with one packet.
    fn rc_answered(&mut self, cx: &mut Context<'_>, ends: bool) {
        self.req.una = self.req.una.plus(1);
        if self.req.acked.is_before(self.req.una) {
            self.req.acked = self.req.una;
        }
        // Otherwise we went back, and have not asked again yet.
        let asked = !self.req.next.is_before(self.req.una);
        if ends && asked {
            self.req.reads = self.req.reads.saturating_sub(1);
        }
        self.rc_reap(cx);
        self.rc_made_progress(cx, 1);
    }

    /// All before `end` has arrived, but for READs and atomics, which need an answer of their own (IBTA 9.7.5.1.2).
    fn rc_acknowledge(&mut self, cx: &mut Context<'_>, end: Psn) {
        if self.req.acked.is_before(end) {
            self.req.acked = end;
        }
        let before = self.req.una;
        self.rc_reap(cx);
        if self.req.una != before {
            self.rc_made_progress(cx, self.req.una.minus(before.get()).get());
        }
    }

    /// Moves `una` as far as `acked` allows and completes, in order, what lies behind it.
    pub(in crate::transport) fn rc_reap(&mut self, cx: &mut Context<'_>) {
        while self.sq.head() < self.req.begun {
            let Some(entry) = self.sq.get(self.sq.head()) else { break };
            let end = entry.end_psn();
            if !entry.op.is_read_or_atomic() {
                let to = if self.req.acked.is_before(end) { self.req.acked } else { end };
                if self.req.una.is_before(to) {
                    self.req.una = to;
                }
            }
            if self.req.una != end {
                break;
            }
            if let Some(entry) = self.sq.pop() {
                self.complete_send(cx, &entry, WcStatus::Success, 0);
            }
        }
    }

    /// `psns` more are answered: both budgets are full again, the timer starts anew, and what was answered need not be sent again.
    fn rc_made_progress(&mut self, cx: &Context<'_>, psns: u32) {
        self.req.handle_answered(psns, cx.limits, self.attrs.path_mtu);
        self.req.retries_left = self.attrs.retry_count;
        self.req.rnr_retries_left = self.attrs.rnr_retry;
        (self.req.asked_again, self.req.pardons) = (None, 0);
        self.req.rnr_until = None;
        if self.req.recovering.is_some_and(|end| !self.req.una.is_before(end)) {
            self.req.recovering = None;
        }
        if self.req.next.is_before(self.req.una) {
            self.rc_seek_una();
        }
        self.rc_restart_timer(cx.now);
    }

    /// Credit only grows (IBTA 9.7.7.2.3): an older ACK that comes late takes none away.
    fn rc_note_credit(&mut self, ack: Syndrome, msn: u32) {
        let Some(credits) = ack.credits() else {
            self.req.credit = None;
            return;
        };
        let limit = Psn::new(msn).plus(u32::from(credits));
        let grows = self.req.credit.is_none_or(|old| Psn::new(old).is_before(limit));
        if grows {
            self.req.credit = Some(limit.get());
        }
    }
}
