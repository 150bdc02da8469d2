//! The requester: which request goes when (IBTA 9.7.3, 9.7.7.2, 10.8.3.3).
//!
//! PSNs of the send queue, old to new:
//!
//! ```text
//!     una ........ acked ........ next ........ sent
//!      |  answered  |   under way   |  gone back  |
//! ```
//!
//! `una` is the oldest PSN whose answer is missing. `acked` runs ahead of it only while an ACK has passed a READ or atomic that is
//! not answered. `next` is the PSN to send; it is `sent` unless we went back.

use crate::memory::{AccessError, LocalUse, WindowBinding};
use crate::time::Instant;
use crate::transport::send_queue::SendEntry;
use crate::transport::{
    Burst, Context, Qp, QpAttributes, QpState, SendFlags, SendOp, TransportLimits, Wait, Waiting, WcStatus,
};
use crate::wire::{AtomicEth, Bth, HeaderBuf, Opcode, Operation, PathMtu, Place, Psn, Reth, Service, pad_count};

/// State of the sending half. See the module's text for the PSNs.
#[derive(Debug, Default)]
pub(in crate::transport) struct Requester {
    pub(in crate::transport) una: Psn,
    pub(in crate::transport) acked: Psn,
    pub(in crate::transport) next: Psn,
    pub(in crate::transport) sent: Psn,
    /// The request that `next` belongs to, and how many of its packets come before `next`.
    pub(in crate::transport) cursor: u64,
    pub(in crate::transport) offset: u32,
    /// One past the newest request that has begun: its PSNs are fixed.
    pub(in crate::transport) begun: u64,
    /// In SQD, with requests that have begun.
    pub(in crate::transport) draining: bool,
    /// READ requests and atomics under way.
    pub(super) reads: u8,
    /// Packets since the last one with AckReq.
    pub(super) unasked: u32,
    /// Number of the next new wire message, and the highest that the peer has credit for (IBTA 9.7.7.2).
    pub(super) ssn: u32,
    pub(super) credit: Option<u32>,
    /// The request whose first packet went without credit: the rest waits for its answer.
    pub(super) probing: Option<u64>,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// When the ACK timer expires.
    pub(super) timer: Option<Instant>,
    /// Until when the peer asked us to wait.
    pub(super) rnr_until: Option<Instant>,
    /// The PSN whose missing answer was asked for anew: once, until it moves (IBTA 9.7.5.2.4).
    pub(super) asked_again: Option<Psn>,
    /// After going back: all before this was sent before.
    pub(super) recovering: Option<Psn>,
    /// One packet asks how far the peer is: all else waits for its answer.
    asking: bool,
    /// Losses since the last progress that cost no retry.
    pub(super) pardons: u8,
    /// After silence: PSNs that may be under way. Grows by what is answered, until it is no limit any more.
    pub(super) cautious: Option<u32>,
}

/// PSNs that may be under way after silence. Perhaps nothing was lost and the peer is only slow: whole windows, again and again, would
/// bury it. Its first answer tells how far it is.
const CAUTIOUS_PACKETS: u32 = 16;

impl Requester {
    /// At the start of a connection. `cursor` is the request to begin with.
    pub(in crate::transport) fn new(attrs: &QpAttributes, cursor: u64) -> Self {
        let psn = attrs.sq_psn;
        Self {
            una: psn,
            acked: psn,
            next: psn,
            sent: psn,
            cursor,
            begun: cursor,
            ssn: 1,
            retries_left: attrs.retry_count,
            rnr_retries_left: attrs.rnr_retry,
            ..Self::default()
        }
    }

    /// The queue is empty up to `tail`: nothing is under way or timed any more.
    pub(in crate::transport) fn forget(&mut self, tail: u64) {
        (self.timer, self.rnr_until, self.recovering, self.probing, self.cautious) = (None, None, None, None, None);
        (self.asking, self.pardons) = (false, 0);
        (self.una, self.acked, self.next) = (self.sent, self.sent, self.sent);
        (self.cursor, self.offset, self.begun, self.reads) = (tail, 0, tail, 0);
    }

    /// What is left of the retry budgets: for timeouts and sequence errors, and for RNR.
    pub(in crate::transport) const fn budgets(&self) -> (u8, u8) {
        (self.retries_left, self.rnr_retries_left)
    }

    /// Nothing is under way, waited for or to be sent again.
    pub(in crate::transport) fn is_at_rest(&self) -> bool {
        self.una == self.sent && self.next == self.sent && self.rnr_until.is_none() && self.recovering.is_none()
    }

    /// All that was sent has arrived; credit is not known any more.
    pub(in crate::transport) fn arrived(&mut self) {
        (self.una, self.acked, self.credit) = (self.sent, self.sent, None);
    }

    /// PSNs under way.
    pub(super) fn outstanding(&self) -> u32 {
        self.next.minus(self.una.get()).get()
    }

    /// PSNs that may be under way.
    fn window(&self, limits: &TransportLimits, mtu: PathMtu) -> u32 {
        if self.asking {
            return 1;
        }
        let window = limits.window(mtu);
        self.cautious.map_or(window, |cautious| cautious.min(window))
    }

    /// The peer was silent for too long.
    pub(super) fn handle_silence(&mut self) {
        self.cautious = Some(CAUTIOUS_PACKETS);
    }

    /// All else waits for the answer to one packet.
    pub(super) fn ask(&mut self) {
        (self.asking, self.asked_again) = (true, None);
    }

    /// The peer was heard.
    pub(super) fn hear(&mut self) {
        self.asking = false;
    }

    /// The peer has answered `psns` more.
    pub(super) fn handle_answered(&mut self, psns: u32, limits: &TransportLimits, mtu: PathMtu) {
        let grown = self.cautious.map(|cautious| cautious.saturating_add(psns));
        self.cautious = grown.filter(|cautious| *cautious < limits.window(mtu));
    }

    /// Whether an answer is missing.
    pub(super) fn awaits(&self) -> bool {
        self.una != self.sent
    }

    /// Notes `n` PSNs of the present request as sent.
    pub(in crate::transport) fn advance(&mut self, n: u32, packets: u32) {
        self.next = self.next.plus(n);
        if self.sent.is_before(self.next) {
            self.sent = self.next;
        }
        self.offset += n;
        if self.offset >= packets {
            (self.cursor, self.offset) = (self.cursor + 1, 0);
        }
    }
}

/// Whether the burst may take more.
#[derive(PartialEq, Eq)]
enum Step {
    Next,
    Stop,
}

impl Qp {
    /// Why the next request may not go now; `None` if it may, or if there is none.
    fn rc_blocked(&self, entry: &SendEntry, limits: &TransportLimits) -> Option<Wait> {
        let req = &self.req;
        let fresh = req.cursor == req.begun;
        if fresh && self.state() == QpState::Sqd {
            return Some(Wait::Stopped);
        }
        if fresh && entry.flags.contains(SendFlags::FENCE) && req.reads > 0 {
            return Some(Wait::Fence);
        }
        if entry.op.is_local() {
            return None;
        }
        if entry.op.is_read_or_atomic() && req.reads >= self.attrs.max_rd_atomic {
            return Some(Wait::Reads);
        }
        let (_, psns) = self.rc_next_piece(entry, limits);
        let outstanding = req.outstanding();
        if outstanding > 0 && outstanding + psns > req.window(limits, self.attrs.path_mtu) {
            return Some(if req.recovering.is_some() { Wait::Loss } else { Wait::Window });
        }
        // Without credit one packet may go alone, to find out (IBTA 9.7.7.2.5).
        let out_of_credit = if fresh {
            entry.op.takes_receive() && self.rc_lacks_credit() && outstanding > 0
        } else {
            req.probing == Some(req.cursor) && req.una == entry.first_psn && req.offset > 0
        };
        out_of_credit.then_some(Wait::Credit)
    }

    fn rc_lacks_credit(&self) -> bool {
        // Message numbers have 24 bits, as the MSN they are compared with.
        self.req.credit.is_some_and(|limit| Psn::new(limit).is_before(Psn::new(self.req.ssn)))
    }

    pub(in crate::transport) fn rc_waits_for(&self, cx: &Context<'_>) -> Option<Waiting> {
        if let Some(until) = self.req.rnr_until {
            return Some(Waiting { reason: Wait::Rnr, waited: None, ends_in: Some(until.since(cx.now)) });
        }
        let reason = match self.sq.get(self.req.cursor) {
            Some(entry) => self.rc_blocked(entry, cx.limits)?,
            None if self.req.recovering.is_some() => Wait::Loss,
            None => Wait::Ack,
        };
        let ends_in = self.req.timer.map(|at| at.since(cx.now));
        let waited = ends_in.zip(self.rc_ack_timeout()).map(|(left, timeout)| timeout.saturating_sub(left));
        Some(Waiting { reason, waited, ends_in })
    }

    /// Adds requests to the burst until it is full or none may go.
    pub(super) fn rc_send_requests(&mut self, cx: &mut Context<'_>, burst: &mut Burst) {
        while self.req.rnr_until.is_none() {
            self.rc_skip_acknowledged();
            let Some(entry) = self.sq.get(self.req.cursor).copied() else { break };
            if self.rc_blocked(&entry, cx.limits).is_some() {
                break;
            }
            if let Some(mtu) = self.too_small_for(entry.len) {
                if self.sq.head() == self.req.cursor {
                    self.fail_too_large(cx, mtu);
                }
                break;
            }
            let step = match entry.op {
                SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => self.rc_do_local(cx, &entry),
                SendOp::Read { va, rkey } => self.rc_send_read(cx, burst, &entry, va, rkey),
                SendOp::CompareSwap { va, rkey, compare, swap } => {
                    let header = AtomicEth { va, rkey, swap_or_add: swap, compare };
                    self.rc_send_atomic(cx, burst, &entry, Opcode::RC_COMPARE_SWAP, &header)
                }
                SendOp::FetchAdd { va, rkey, add } => {
                    let header = AtomicEth { va, rkey, swap_or_add: add, compare: 0 };
                    self.rc_send_atomic(cx, burst, &entry, Opcode::RC_FETCH_ADD, &header)
                }
                _ => self.rc_send_message(cx, burst, &entry),
            };
            if step == Step::Stop {
                break;
            }
        }
    }

    /// After going back, what an ACK has covered meanwhile is not sent again; only unanswered READs and atomics before it are.
    fn rc_skip_acknowledged(&mut self) {
        while self.req.next.is_before(self.req.acked) {
            let Some(entry) = self.sq.get(self.req.cursor) else { break };
            if entry.op.is_read_or_atomic() || self.req.cursor >= self.req.begun {
                break;
            }
            let to_end = entry.packets - self.req.offset;
            let skipped = to_end.min(self.req.acked.minus(self.req.next.get()).get());
            let packets = entry.packets;
            self.req.advance(skipped, packets);
        }
    }

    /// Fixes the PSNs of a request that is about to begin, and notes a missing credit.
    pub(in crate::transport) fn rc_begin(&mut self, limits: &TransportLimits) {
        if self.req.cursor != self.req.begun {
            return;
        }
        let mtu = self.attrs.path_mtu;
        let (first_psn, ssn) = (self.req.next, self.req.ssn);
        let lacks_credit = self.rc_lacks_credit();
        let Some(entry) = self.sq.get_mut(self.req.cursor) else { return };
        let (packets, messages) = match entry.op {
            SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => (0, 0),
            SendOp::Read { .. } => {
                let packets = mtu.packets(entry.len);
                (packets, packets.div_ceil(limits.read_packets(mtu)))
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (1, 1),
            _ => (mtu.packets(entry.len), 1),
        };
        (entry.first_psn, entry.packets, entry.ssn) = (first_psn, packets, ssn);
        let probes = entry.op.takes_receive() && lacks_credit;
        self.req.probing = probes.then_some(self.req.cursor);
        self.req.ssn = Psn::new(ssn.wrapping_add(messages)).get();
        self.req.begun += 1;
    }

    /// Bytes from the request's start, and PSNs, that its next packet takes. A READ request takes the PSNs of its answer: a piece of
    /// the whole, cut at fixed places, so that asking again never straddles two pieces.
    pub(in crate::transport) fn rc_next_piece(&self, entry: &SendEntry, limits: &TransportLimits) -> (u32, u32) {
        let mtu = self.attrs.path_mtu;
        let start = self.req.offset * mtu.bytes();
        if !matches!(entry.op, SendOp::Read { .. }) {
            return (start, 1);
        }
        let (piece, packets) = (limits.read_packets(mtu), mtu.packets(entry.len));
        let end = (self.req.offset / piece + 1).saturating_mul(piece).min(packets);
        (start, end - self.req.offset)
    }

    /// LOCAL_INV and BIND_MW: done when their turn comes.
    fn rc_do_local(&mut self, cx: &mut Context<'_>, entry: &SendEntry) -> Step {
        if self.req.cursor < self.req.begun {
            // Done before we went back.
            self.req.advance(0, 0);
            return Step::Next;
        }
        let (pd, qpn) = (self.init.pd, self.qpn.get());
        let (result, status) = match entry.op {
            SendOp::BindWindow { rkey, lkey, va, length, access } => {
                let binding = WindowBinding { rkey, lkey, addr: va, length, access };
                (cx.memory.bind_window(pd, qpn, &binding), WcStatus::MwBind)
            }
            SendOp::LocalInvalidate(rkey) => (cx.memory.invalidate(pd, rkey, qpn), WcStatus::LocalQpOperation),
            _ => (Ok(()), WcStatus::General),
        };
        if result.is_err() {
            return self.rc_fail_local(cx, status);
        }
        self.rc_begin(cx.limits);
        self.req.advance(0, 0);
        self.rc_reap(cx);
        Step::Next
    }

    fn rc_send_read(&mut self, cx: &mut Context<'_>, burst: &mut Burst, entry: &SendEntry, va: u64, rkey: u32) -> Step {
        let (start, psns) = self.rc_next_piece(entry, cx.limits);
        if !burst.fits(&self.attrs.av, (crate::wire::BTH_LEN + Reth::LEN) as u32, 0) {
            return Step::Stop;
        }
        if cx.memory.check_local(self.init.pd, self.sq.sges(self.req.cursor), LocalUse::Write).is_err() {
            return self.rc_fail_local(cx, WcStatus::LocalProtection);
        }
        self.rc_begin(cx.limits);
        let len = (entry.len - start).min(psns * self.attrs.path_mtu.bytes());
        let bth = Bth { ack_req: true, ..self.bth(cx, Opcode::RC_READ_REQUEST, self.req.next) };
        let mut headers = HeaderBuf::new(&bth);
        headers.push_reth(&Reth { va: va.wrapping_add(start.into()), rkey, dma_len: len });
        self.rc_push_query(cx, burst, &headers, psns)
    }

    fn rc_send_atomic(
        &mut self,
        cx: &mut Context<'_>,
        burst: &mut Burst,
        entry: &SendEntry,
        opcode: Opcode,
        header: &AtomicEth,
    ) -> Step {
        debug_assert!(entry.op.is_atomic());
        if !burst.fits(&self.attrs.av, (crate::wire::BTH_LEN + AtomicEth::LEN) as u32, 0) {
            return Step::Stop;
        }
        if cx.memory.check_local(self.init.pd, self.sq.sges(self.req.cursor), LocalUse::Write).is_err() {
            return self.rc_fail_local(cx, WcStatus::LocalProtection);
        }
        self.rc_begin(cx.limits);
        let bth = Bth { ack_req: true, ..self.bth(cx, opcode, self.req.next) };
        let mut headers = HeaderBuf::new(&bth);
        headers.push_atomic(header);
        self.rc_push_query(cx, burst, &headers, 1)
    }

    /// Pushes a READ request or an atomic.
    fn rc_push_query(&mut self, cx: &mut Context<'_>, burst: &mut Burst, headers: &HeaderBuf, psns: u32) -> Step {
        if burst.push(cx.memory, &self.attrs.av, headers, 0).is_err() {
            return Step::Stop;
        }
        self.count_sent(0);
        self.rc_count_again(psns);
        self.req.unasked = 0;
        self.req.reads += 1;
        let packets = self.sq.get(self.req.cursor).map_or(0, |e| e.packets);
        self.req.advance(psns, packets);
        self.rc_arm_timer(cx.now);
        Step::Next
    }

    /// Pushes packets of a SEND or WRITE: as many as the window and the burst take.
    fn rc_send_message(&mut self, cx: &mut Context<'_>, burst: &mut Burst, entry: &SendEntry) -> Step {
        let mtu = self.attrs.path_mtu.bytes();
        let window = self.req.window(cx.limits, self.attrs.path_mtu);
        let packets = self.attrs.path_mtu.packets(entry.len);
        let first = Segment::of(entry, self.req.offset, packets, mtu);
        if !burst.fits(&self.attrs.av, first.header, first.payload) {
            return Step::Stop;
        }
        let room = window.saturating_sub(self.req.outstanding()).min(burst.room(first.header, first.payload)).max(1);
        let mut run = (packets - self.req.offset).min(room);
        if first.place == Place::First && matches!(entry.op, SendOp::Write { .. } | SendOp::WriteImm { .. }) {
            // Its RETH makes the first packet longer than those behind it: at most one of them may share its burst.
            run = run.min(2);
        }
        let start = self.req.offset * mtu;
        let bytes = (entry.len - start).min(run.saturating_mul(mtu));
        let (sq, cursor, pd, memory) = (&self.sq, self.req.cursor, self.init.pd, &mut *cx.memory);
        if burst.stage(|list| sq.gather(cursor, start, bytes, pd, memory, list)).is_err() {
            return self.rc_fail_local(cx, WcStatus::LocalProtection);
        }
        self.rc_begin(cx.limits);
        if self.req.probing == Some(cursor) && self.req.offset == 0 {
            run = 1;
        }
        for _ in 0..run {
            if self.rc_push_segment(cx, burst, entry, packets, window).is_err() {
                return Step::Stop;
            }
        }
        Step::Next
    }

    /// Pushes the next packet of a SEND or WRITE whose payload is staged. The error says that the burst takes no more.
    fn rc_push_segment(
        &mut self,
        cx: &mut Context<'_>,
        burst: &mut Burst,
        entry: &SendEntry,
        packets: u32,
        window: u32,
    ) -> Result<(), BurstFull> {
        let segment = Segment::of(entry, self.req.offset, packets, self.attrs.path_mtu.bytes());
        if !burst.fits(&self.attrs.av, segment.header, segment.payload) {
            return Err(BurstFull);
        }
        self.req.unasked += 1;
        let last_of_window = self.req.outstanding() + 1 >= window;
        // Often enough that the window never closes on packets that nobody was asked to acknowledge.
        let ack_req = segment.place.ends()
            || last_of_window
            || self.req.unasked >= (window / 4).max(1)
            || self.req.probing == Some(self.req.cursor);
        if ack_req {
            self.req.unasked = 0;
        }
        let bth = Bth {
            ack_req,
            solicited: segment.place.ends() && entry.is_solicited(),
            pad_count: pad_count(segment.payload as usize),
            ..self.bth(cx, segment.opcode(Service::Rc, entry.op), self.req.next)
        };
        let headers = segment.headers(&bth, entry);
        burst.push(cx.memory, &self.attrs.av, &headers, segment.payload).map_err(|_: AccessError| BurstFull)?;
        self.count_sent(segment.payload);
        self.rc_count_again(1);
        self.req.advance(1, packets);
        self.rc_arm_timer(cx.now);
        Ok(())
    }

    fn rc_count_again(&mut self, psns: u32) {
        if self.req.next.is_before(self.req.sent) {
            self.counters.retransmitted_packets += u64::from(psns);
        }
    }

    /// A request that our own memory does not allow fails when its turn to complete has come, so what is before it is not lost.
    fn rc_fail_local(&mut self, cx: &mut Context<'_>, status: WcStatus) -> Step {
        if self.sq.head() == self.req.cursor {
            self.fail_send(cx, status, 0);
        }
        Step::Stop
    }
}

/// The burst takes no more packets.
struct BurstFull;

/// One packet of a SEND or WRITE.
pub(in crate::transport) struct Segment {
    pub(in crate::transport) place: Place,
    /// Bytes before the payload.
    pub(in crate::transport) header: u32,
    pub(in crate::transport) payload: u32,
}

impl Segment {
    /// Packet number `offset` of a message of `packets`.
    pub(in crate::transport) fn of(entry: &SendEntry, offset: u32, packets: u32, mtu: u32) -> Self {
        let place = match (offset == 0, offset + 1 >= packets) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
        };
        let mut segment = Self { place, header: 0, payload: (entry.len - offset * mtu).min(mtu) };
        let extension = segment.opcode(Service::Rc, entry.op).extension_len();
        segment.header = (crate::wire::BTH_LEN + extension) as u32;
        segment
    }

    /// Its opcode on a connected service.
    pub(in crate::transport) fn opcode(&self, service: Service, op: SendOp) -> Opcode {
        let (place, ends) = (self.place, self.place.ends());
        let operation = match op {
            SendOp::Write { .. } => Operation::Write { place, immediate: false },
            SendOp::WriteImm { .. } => Operation::Write { place, immediate: ends },
            SendOp::SendImm(_) => Operation::Send { place, immediate: ends, invalidate: false },
            SendOp::SendInvalidate(_) => Operation::Send { place, immediate: false, invalidate: ends },
            _ => Operation::Send { place, immediate: false, invalidate: false },
        };
        // Every combination above exists on RC; UC refuses SEND with invalidate at the post.
        Opcode::of(service, operation).unwrap_or(Opcode::UD_SEND_ONLY)
    }

    /// Its headers behind `bth`.
    pub(in crate::transport) fn headers(&self, bth: &Bth, entry: &SendEntry) -> HeaderBuf {
        let mut headers = HeaderBuf::new(bth);
        match entry.op {
            SendOp::Write { va, rkey } | SendOp::WriteImm { va, rkey, .. } if self.place.starts() => {
                headers.push_reth(&Reth { va, rkey, dma_len: entry.len });
            }
            _ => {}
        }
        match entry.op {
            SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } if self.place.ends() => {
                headers.push_immediate(imm);
            }
            SendOp::SendInvalidate(rkey) if self.place.ends() => {
                headers.push_invalidate(rkey);
            }
            _ => {}
        }
        headers
    }
}
