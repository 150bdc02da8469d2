//! The responder: requests of the peer (IBTA 9.7.4, 9.7.5.1).

use crate::memory::{Access, AtomicOp};
use crate::time::Instant;
use crate::transport::message::Fault;
use crate::transport::{Context, Event, Qp, QpState, Refusal};
use crate::wire::{AtomicEth, MAX_MESSAGE_BYTES, Nak, Operation, Packet, Psn, Reth, RnrTimer, Syndrome};
use std::collections::VecDeque;

/// State of the receiving half.
#[derive(Debug, Default)]
pub(in crate::transport) struct Responder {
    /// PSN of the next new request.
    pub(in crate::transport) expected: Psn,
    /// Requests completed (IBTA 9.7.7.1), modulo 2^24.
    pub(super) msn: u32,
    /// A gap was told of: silence until the expected PSN arrives.
    nak_sent: bool,
    /// What is to be said after all READs and atomics are answered.
    pub(super) owed: Owed,
    /// The last READs and atomics, oldest first, answered or not. Never more than `depth`.
    pub(super) queries: VecDeque<Query>,
    depth: u8,
    /// The peer was last told that it has no credit.
    pub(super) told_no_credit: bool,
    /// Answers were left over when a burst was full.
    pub(super) goes_first: bool,
}

/// An acknowledgement to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Owed {
    #[default]
    Nothing,
    /// An ACK that nobody asked for, at the latest then.
    Later(Instant),
    /// An ACK.
    Ack,
    /// A NAK or RNR NAK of this PSN.
    Nak(Psn, Syndrome),
}

/// A READ or atomic of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query {
    pub(super) psn: Psn,
    pub(super) packets: u32,
    /// The MSN that its answer carries.
    pub(super) msn: u32,
    pub(super) kind: QueryKind,
    /// An answer is to be sent.
    pub(super) pending: bool,
    /// Its answer was sent as a whole before.
    pub(super) answered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum QueryKind {
    Read {
        reth: Reth,
        run: Run,
    },
    /// Executed; the former value.
    Atomic {
        request: AtomicEth,
        original: u64,
    },
}

/// The part of a READ's answer that is to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// First packet, next packet, one past the last packet.
    pub(super) start: u32,
    pub(super) next: u32,
    pub(super) stop: u32,
    /// One past the last byte, of the READ's.
    pub(super) end: u32,
}

impl Responder {
    pub(in crate::transport) fn new(expected: Psn, depth: u8) -> Self {
        let queries = VecDeque::with_capacity(depth.into());
        Self { expected, depth, queries, ..Self::default() }
    }

    /// Changes how many READs and atomics are kept.
    pub(in crate::transport) fn resize(&mut self, depth: u8) {
        self.depth = depth;
        self.queries.reserve_exact(usize::from(depth).saturating_sub(self.queries.len()));
    }

    /// Nothing is to be said.
    pub(in crate::transport) fn is_at_rest(&self) -> bool {
        self.owed == Owed::Nothing && !self.nak_sent && !self.answers_queries()
    }

    /// Whether the peer may have READs and atomics under way.
    pub(in crate::transport) fn takes_queries(&self) -> bool {
        self.depth > 0
    }

    /// Says nothing any more.
    pub(in crate::transport) fn silence(&mut self) {
        self.owed = Owed::Nothing;
        self.queries.clear();
    }

    /// Requests completed, modulo 2^24.
    pub(in crate::transport) const fn msn(&self) -> u32 {
        self.msn
    }

    /// Whether answers to READs or atomics are to be sent.
    pub(in crate::transport) fn answers_queries(&self) -> bool {
        self.queries.iter().any(|q| q.pending)
    }

    /// Whether anything is to be sent at `now`.
    pub(super) fn has_answers(&self, now: Instant) -> bool {
        let owed = match self.owed {
            Owed::Nothing => false,
            Owed::Later(at) => at <= now,
            Owed::Ack | Owed::Nak(..) => true,
        };
        owed || self.answers_queries()
    }

    pub(super) fn delayed_ack(&self) -> Option<Instant> {
        match self.owed {
            Owed::Later(at) => Some(at),
            _ => None,
        }
    }

    /// Its delayed ACK is due at another time.
    pub(super) fn move_delayed_ack(&mut self, moved: impl FnOnce(Instant) -> Instant) {
        if let Some(at) = self.delayed_ack() {
            self.owed = Owed::Later(moved(at));
        }
    }

    pub(super) fn ack_is_due(&mut self, now: Instant) {
        if self.delayed_ack().is_some_and(|at| at <= now) {
            self.owed = Owed::Ack;
        }
    }

    /// Makes room for one more query: the oldest goes if it was answered, even if a duplicate wants it answered again. Who sends
    /// more has got the answer.
    fn make_room(&mut self) -> Result<(), Fault> {
        if self.queries.len() < usize::from(self.depth) {
            return Ok(());
        }
        match self.queries.front() {
            Some(oldest) if oldest.answered => {
                self.queries.pop_front();
                Ok(())
            }
            // More under way than we allowed the peer, or none allowed (IBTA 9.7.4.1.4).
            _ => Err(Fault::Invalid),
        }
    }

    /// The query that a duplicate is of.
    fn query_at(&mut self, psn: Psn) -> Option<&mut Query> {
        self.queries.iter_mut().rev().find(|q| (0..q.packets as i32).contains(&psn.distance(q.psn)))
    }
}

impl Qp {
    /// Takes a request (IBTA 9.7.1 to 9.7.4): new, beyond a gap, or a duplicate. `operation` is `None` for opcodes that we do not have.
    pub(in crate::transport) fn rc_handle_request(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        operation: Option<Operation>,
    ) -> Result<(), Refusal> {
        match packet.psn().distance(self.resp.expected) {
            0 => {
                self.rc_execute(cx, packet, operation);
                Ok(())
            }
            1.. => {
                self.counters.out_of_sequence += 1;
                if self.resp.nak_sent {
                    return Err(Refusal::OutOfSequence);
                }
                self.resp.nak_sent = true;
                self.resp.owed = Owed::Nak(self.resp.expected, Syndrome::Nak(Nak::SequenceError));
                Ok(())
            }
            _ => {
                self.counters.duplicate_request += 1;
                self.rc_handle_duplicate(cx, packet, operation)
            }
        }
    }

    fn rc_execute(&mut self, cx: &mut Context<'_>, packet: &Packet<'_>, operation: Option<Operation>) {
        let done = match operation {
            Some(op @ (Operation::Send { .. } | Operation::Write { .. })) => self.rc_execute_message(cx, packet, op),
            Some(Operation::ReadRequest) => self.rc_execute_read(cx, packet),
            Some(Operation::CompareSwap | Operation::FetchAdd) => self.rc_execute_atomic(cx, packet, operation),
            _ => Err(Fault::Invalid),
        };
        match done {
            Ok(packets) => {
                self.resp.expected = self.resp.expected.plus(packets);
                self.resp.nak_sent = false;
            }
            Err(fault) => self.rc_refuse(cx, fault),
        }
    }

    fn rc_execute_message(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        operation: Operation,
    ) -> Result<u32, Fault> {
        let ended = self.place(cx, packet, operation)?;
        if ended {
            self.rc_count_message();
        }
        self.resp.owed = match self.resp.owed {
            _ if packet.bth().ack_req => Owed::Ack,
            // The packet that the NAK asked for came before the NAK went.
            Owed::Nak(..) => Owed::Ack,
            Owed::Nothing if ended => Owed::Later(cx.now + cx.limits.ack_delay),
            owed => owed,
        };
        Ok(1)
    }

    fn rc_execute_read(&mut self, cx: &mut Context<'_>, packet: &Packet<'_>) -> Result<u32, Fault> {
        let reth = packet.reth().ok_or(Fault::Invalid)?;
        let allowed = self.attrs.access.contains(Access::REMOTE_READ) && reth.dma_len <= MAX_MESSAGE_BYTES;
        if !allowed || self.inbound.is_within() {
            return Err(Fault::Invalid);
        }
        self.check_read(cx, &reth)?;
        self.resp.make_room()?;
        let packets = self.attrs.path_mtu.packets(reth.dma_len);
        self.rc_count_message();
        self.counters.rx_read_requests += 1;
        let kind = QueryKind::Read { reth, run: Run { start: 0, next: 0, stop: packets, end: reth.dma_len } };
        self.rc_queue(packet.psn(), packets, kind);
        Ok(packets)
    }

    /// A READ of no bytes checks no key (IBTA 9.7.4.1.5).
    pub(in crate::transport) fn check_read(&self, cx: &Context<'_>, reth: &Reth) -> Result<(), Fault> {
        if reth.dma_len == 0 {
            return Ok(());
        }
        let (pd, qpn) = (self.init.pd, self.qpn.get());
        let checked = cx.memory.check_remote(pd, qpn, reth.rkey, reth.va, reth.dma_len.into(), Access::REMOTE_READ);
        checked.map_err(|_| Fault::Access)
    }

    fn rc_execute_atomic(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        operation: Option<Operation>,
    ) -> Result<u32, Fault> {
        let request = packet.atomic().ok_or(Fault::Invalid)?;
        let AtomicEth { va, rkey, swap_or_add, compare } = request;
        let allowed = self.attrs.access.contains(Access::REMOTE_ATOMIC) && va.is_multiple_of(8);
        if !allowed || self.inbound.is_within() || !packet.payload().is_empty() {
            return Err(Fault::Invalid);
        }
        self.resp.make_room()?;
        let op = match operation {
            Some(Operation::CompareSwap) => AtomicOp::CompareSwap { compare, swap: swap_or_add },
            _ => AtomicOp::FetchAdd { add: swap_or_add },
        };
        let result = cx.memory.atomic(self.init.pd, self.qpn.get(), rkey, va, op);
        let original = result.map_err(|_| Fault::Access)?;
        self.rc_count_message();
        self.counters.rx_atomic_requests += 1;
        self.rc_queue(packet.psn(), 1, QueryKind::Atomic { request, original });
        Ok(1)
    }

    /// Its answer will acknowledge all before it.
    fn rc_queue(&mut self, psn: Psn, packets: u32, kind: QueryKind) {
        self.resp.owed = Owed::Nothing;
        self.resp.queries.push_back(Query { psn, packets, msn: self.resp.msn, kind, pending: true, answered: false });
    }

    pub(in crate::transport) fn rc_count_message(&mut self) {
        self.resp.msn = Psn::new(self.resp.msn + 1).get();
    }

    /// A duplicate is acknowledged, a READ executed again, an atomic answered from what was kept (IBTA 9.7.5.1.5). What is wrong with
    /// one harms only who waits for its answer: it may as well be a late copy made by the network.
    fn rc_handle_duplicate(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        operation: Option<Operation>,
    ) -> Result<(), Refusal> {
        match operation {
            Some(Operation::ReadRequest) => self.rc_repeat_read(cx, packet),
            Some(Operation::CompareSwap | Operation::FetchAdd) => self.rc_repeat_atomic(packet),
            _ => {
                // A NAK that waits says as much, and more.
                if !matches!(self.resp.owed, Owed::Nak(..)) {
                    self.resp.owed = Owed::Ack;
                }
                Ok(())
            }
        }
    }

    /// May begin in the middle and end early, but must be part of what was asked for the first time.
    fn rc_repeat_read(&mut self, cx: &mut Context<'_>, packet: &Packet<'_>) -> Result<(), Refusal> {
        let (psn, mtu) = (packet.psn(), self.attrs.path_mtu);
        let again = packet.reth().ok_or(Refusal::StaleDuplicate)?;
        if self.check_read(cx, &again).is_err() {
            return self.rc_refuse_duplicate(psn, Nak::RemoteAccess);
        }
        let query = self.resp.query_at(psn).ok_or(Refusal::StaleDuplicate)?;
        let first = psn.minus(query.psn.get()).get();
        let QueryKind::Read { reth, run } = &mut query.kind else { return Err(Refusal::StaleDuplicate) };
        let skipped = first * mtu.bytes();
        let is_part = again.va == reth.va.wrapping_add(skipped.into())
            && again.dma_len <= reth.dma_len.saturating_sub(skipped)
            && (again.dma_len == 0 || again.rkey == reth.rkey);
        if !is_part {
            return Err(Refusal::StaleDuplicate);
        }
        let stop = first + mtu.packets(again.dma_len);
        *run = Run { start: first, next: first, stop, end: skipped + again.dma_len };
        query.pending = true;
        Ok(())
    }

    fn rc_repeat_atomic(&mut self, packet: &Packet<'_>) -> Result<(), Refusal> {
        let asked = packet.atomic();
        match self.resp.query_at(packet.psn()) {
            Some(Query { kind: QueryKind::Atomic { request, .. }, pending, .. }) if asked == Some(*request) => {
                *pending = true;
                Ok(())
            }
            _ => self.rc_refuse_duplicate(packet.psn(), Nak::InvalidRequest),
        }
    }

    /// Says NAK at the PSN of a duplicate, if there is nothing better to say.
    fn rc_refuse_duplicate(&mut self, psn: Psn, nak: Nak) -> Result<(), Refusal> {
        if self.resp.owed == Owed::Nothing {
            self.resp.owed = Owed::Nak(psn, Syndrome::Nak(nak));
        }
        Err(Refusal::StaleDuplicate)
    }

    /// Answers a request that cannot be carried out (IBTA 9.7.4.1, table 58).
    fn rc_refuse(&mut self, cx: &mut Context<'_>, fault: Fault) {
        if fault == Fault::NotReady {
            // What follows the refused packet is out of order: it gets no NAK of its own.
            self.resp.nak_sent = true;
            self.counters.out_of_buffer += 1;
            let timer = RnrTimer::new(self.attrs.min_rnr_timer);
            self.resp.owed = Owed::Nak(self.resp.expected, Syndrome::RnrNak(timer));
            return;
        }
        self.rc_refuse_at(cx, self.resp.expected, fault);
    }

    /// Says NAK at `psn` and goes to ERR. What was asked for before is still answered.
    pub(super) fn rc_refuse_at(&mut self, cx: &mut Context<'_>, psn: Psn, fault: Fault) {
        let nak = match fault {
            Fault::Access => {
                self.counters.resp_remote_access_errors += 1;
                cx.events.push_back(Event::QpAccessErr(self.qpn));
                Nak::RemoteAccess
            }
            Fault::LocalProtection => Nak::RemoteOperational,
            Fault::TooLong => {
                self.counters.resp_invalid_requests += 1;
                Nak::InvalidRequest
            }
            Fault::Invalid | Fault::NotReady => {
                self.counters.resp_invalid_requests += 1;
                cx.events.push_back(Event::QpReqErr(self.qpn));
                Nak::InvalidRequest
            }
        };
        for query in self.resp.queries.iter_mut().filter(|q| q.pending) {
            // A READ that failed in its middle ends there; later ones are not answered.
            let end = query.psn.plus(query.packets);
            query.pending = !psn.is_before(end);
        }
        self.resp.owed = Owed::Nak(psn, Syndrome::Nak(nak));
        self.fail_inbound(cx, fault);
    }

    /// Receives were posted: a peer that was told it has no credit may go on (IBTA 9.7.7.2.6, unsolicited ACK).
    pub(in crate::transport) fn rc_receive_posted(&mut self) {
        let receives = matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd);
        if receives && self.resp.told_no_credit && self.resp.owed == Owed::Nothing {
            self.resp.owed = Owed::Ack;
        }
    }

    /// An ACK with credit for the receives that wait. A shared queue promises nothing to anyone.
    pub(super) fn rc_ack(&mut self) -> Syndrome {
        if self.init.srq.is_some() {
            return Syndrome::Ack(Syndrome::NO_CREDIT_LIMIT);
        }
        // The one that a message is filling counts: its message is not in the MSN yet.
        let receives = self.rq.len() + u32::from(self.inbound.receive.is_some());
        self.resp.told_no_credit = receives == 0;
        Syndrome::ack_with_credits(receives)
    }
}
