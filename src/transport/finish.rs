//! Completions, flush, and the way into the error states (IBTA 10.3.1, 10.8.5).

use super::receive_queue::Taken;
use super::send_queue::SendEntry;
use super::{Completion, Context, Event, Failure, Qp, QpState, QpType, SendFlags, WcFlags, WcOpcode, WcStatus};
use crate::wire::PathMtu;

impl Qp {
    /// Completes a send that was taken from its queue. An error makes a completion also for an unsignalled one (IBTA 10.8.5.1).
    pub(super) fn complete_send(&mut self, cx: &mut Context<'_>, entry: &SendEntry, status: WcStatus, vendor_err: u32) {
        match status {
            WcStatus::Success if !self.init.sq_sig_all && !entry.flags.contains(SendFlags::SIGNALED) => return,
            WcStatus::Success => {}
            WcStatus::WrFlush => self.counters.req_cqe_flush_error += 1,
            _ => self.counters.req_cqe_error += 1,
        }
        let completion = Completion {
            wr_id: entry.wr_id,
            status,
            opcode: entry.op.completion_opcode(),
            byte_len: entry.len,
            qpn: self.qpn,
            vendor_err,
            ..Completion::default()
        };
        cx.complete(self.init.send_cq, completion, false);
    }

    /// Completes the oldest send with an error and brings the QP into the state that follows from it: ERR on RC, SQE on UC and UD.
    pub(super) fn fail_send(&mut self, cx: &mut Context<'_>, status: WcStatus, vendor_err: u32) {
        if let Some(entry) = self.sq.pop() {
            self.complete_send(cx, &entry, status, vendor_err);
        }
        self.failure.get_or_insert(Failure::Send(status));
        match self.init.kind {
            QpType::Rc => {
                self.resp.silence();
                self.enter_error(cx);
            }
            _ => {
                self.attrs.state = QpState::Sqe;
                self.flush_sends(cx);
            }
        }
    }

    /// Fails the oldest send, which needs larger packets than the path carries.
    pub(super) fn fail_too_large(&mut self, cx: &mut Context<'_>, carried: PathMtu) {
        self.failure = Some(Failure::PathMtu { carried, agreed: self.attrs.path_mtu });
        self.fail_send(cx, WcStatus::LocalLength, 0);
    }

    /// Goes to ERR and flushes both queues, each in its order.
    pub(super) fn enter_error(&mut self, cx: &mut Context<'_>) {
        self.attrs.state = QpState::Err;
        self.flush_sends(cx);
        if let Some(taken) = self.inbound.receive.take() {
            self.complete_receive(cx, taken, flushed());
        }
        self.inbound.abort();
        self.flush_receives(cx);
        if self.init.srq.is_some() {
            cx.events.push_back(Event::QpLastWqeReached(self.qpn));
        }
    }

    pub(super) fn flush_sends(&mut self, cx: &mut Context<'_>) {
        while let Some(entry) = self.sq.pop() {
            self.complete_send(cx, &entry, WcStatus::WrFlush, 0);
        }
        self.req.forget(self.sq.tail());
    }

    pub(super) fn flush_receives(&mut self, cx: &mut Context<'_>) {
        while let Some(taken) = self.rq.take() {
            self.complete_receive(cx, taken, flushed());
        }
    }

    /// Takes the next receive from the QP's own or its shared queue.
    pub(super) fn take_receive(&mut self, cx: &mut Context<'_>) -> Option<Taken> {
        match self.init.srq {
            Some(srq) => cx.srqs.take(srq, cx.events),
            None => self.rq.take(),
        }
    }

    /// Gives the slot of a receive back without a completion.
    pub(super) fn release_receive(&mut self, cx: &mut Context<'_>, taken: Taken) {
        match self.init.srq {
            Some(srq) => cx.srqs.release(srq, taken),
            None => self.rq.release(taken),
        }
    }

    /// Completes a receive that was taken: `completion` says all but the cookie and the QP.
    pub(super) fn complete_receive(&mut self, cx: &mut Context<'_>, taken: Taken, completion: Received) {
        self.release_receive(cx, taken);
        match completion.completion.status {
            WcStatus::Success => {}
            WcStatus::WrFlush => self.counters.resp_cqe_flush_error += 1,
            _ => self.counters.resp_cqe_error += 1,
        }
        let filled = Completion { wr_id: taken.wr_id, qpn: self.qpn, ..completion.completion };
        cx.complete(self.init.recv_cq, filled, completion.solicited);
    }
}

/// What a receive's completion says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) completion: Completion,
    pub(super) solicited: bool,
}

impl Received {
    /// A receive that failed.
    pub(super) fn failed(status: WcStatus) -> Self {
        let completion = Completion { status, opcode: WcOpcode::Recv, ..Completion::default() };
        Self { completion, solicited: false }
    }

    /// A receive that a message of `byte_len` bytes took.
    pub(super) fn of(
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<u32>,
        invalidated: Option<u32>,
        solicited: bool,
    ) -> Self {
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, imm.is_some());
        flags.set(WcFlags::WITH_INV, invalidated.is_some());
        let completion = Completion { opcode, byte_len, imm, invalidated, flags, ..Completion::default() };
        Self { completion, solicited }
    }
}

fn flushed() -> Received {
    Received::failed(WcStatus::WrFlush)
}
