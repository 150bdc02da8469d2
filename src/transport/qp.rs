//! The queue pair.

use super::context::pkeys_match;
use super::message::Inbound;
use super::rc::{Requester, Responder};
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use super::{
    Burst, Context, CqId, Data, Event, Failure, PostError, QpAttributes, QpCapabilities, QpCounters, QpInitError,
    QpState, QpType, RecvRequest, Refusal, SendOp, SendRequest, SrqId, Wait, Waiting,
};
use crate::memory::PdId;
use crate::time::Instant;
use crate::wire::{Bth, Datagram, MAX_MESSAGE_BYTES, Opcode, Operation, Packet, PathMtu, Psn, Qpn, Service};

/// What a queue pair is made of, as `ibv_qp_init_attr`. None of it changes later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Service.
    pub kind: QpType,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Where receives come from, if not from the QP's own queue.
    pub srq: Option<SrqId>,
    /// Queue sizes.
    pub caps: QpCapabilities,
    /// Every send makes a completion, signalled or not.
    pub sq_sig_all: bool,
}

/// What [`Qp::poll_transmit`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// There is nothing to send now: the burst is as before.
    Idle,
    /// The burst holds packets. There may be more to send: poll again, after others had their turn.
    Filled,
}

/// How far a queue pair is, for whoever looks inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// PSN of the next packet that it sends.
    pub next_psn: Psn,
    /// The oldest PSN that is not acknowledged; equal to `next_psn` when nothing is under way.
    pub oldest_unacknowledged_psn: Psn,
    /// PSN of the next new request of the peer.
    pub expected_psn: Psn,
    /// Requests of the peer that were completed, modulo 2^24.
    pub msn: u32,
    /// What is left of `retry_count`.
    pub retries_left: u8,
    /// What is left of `rnr_retry`.
    pub rnr_retries_left: u8,
}

/// A queue pair: plain data, one state machine. See the [room](super).
#[derive(Debug)]
pub struct Qp {
    pub(super) qpn: Qpn,
    pub(super) init: QpInit,
    pub(super) attrs: QpAttributes,
    pub(super) sq: SendQueue,
    pub(super) rq: ReceiveQueue,
    pub(super) req: Requester,
    pub(super) inbound: Inbound,
    pub(super) resp: Responder,
    pub(super) counters: QpCounters,
    /// Why it is in an error state.
    pub(super) failure: Option<Failure>,
    /// The largest MTU that its path carries, if it is known.
    pub(super) carried_mtu: Option<PathMtu>,
}

// Getters.
impl Qp {
    /// The number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What it was made of.
    pub const fn init(&self) -> &QpInit {
        &self.init
    }

    /// The state.
    pub const fn state(&self) -> QpState {
        self.attrs.state
    }

    /// The attributes, as `ibv_query_qp`.
    pub const fn attributes(&self) -> QpAttributes {
        QpAttributes { current_state: self.attrs.state, ..self.attrs }
    }

    /// What it counted.
    pub const fn counters(&self) -> &QpCounters {
        &self.counters
    }

    /// Send requests posted and not complete.
    pub const fn outstanding_sends(&self) -> u32 {
        self.sq.len()
    }

    /// Receives posted to the QP's own queue that no message has taken.
    pub const fn waiting_receives(&self) -> u32 {
        self.rq.len()
    }

    /// How far it is: PSNs and budgets.
    pub fn progress(&self) -> Progress {
        let (retries_left, rnr_retries_left) = self.req.budgets();
        Progress {
            next_psn: self.req.next,
            oldest_unacknowledged_psn: self.req.una,
            expected_psn: self.resp.expected,
            msn: self.resp.msn(),
            retries_left,
            rnr_retries_left,
        }
    }

    /// Payload bytes that it has to send; `None` if more than one message waits, or answers to READs do.
    pub fn unsent_bytes(&self) -> Option<u32> {
        let next = if self.init.kind == QpType::Rc { self.req.cursor } else { self.sq.head() };
        if self.resp.answers_queries() || self.sq.get(next + 1).is_some() {
            return None;
        }
        let sent = self.req.offset.saturating_mul(self.attrs.path_mtu.bytes());
        Some(self.sq.get(next).map_or(0, |entry| entry.len.saturating_sub(sent)))
    }

    /// What it waits for before it sends more; `None` if it could send now, or never in its state.
    pub fn waits_for(&self, cx: &Context<'_>) -> Option<Waiting> {
        let forever = |reason| Waiting { reason, waited: None, ends_in: None };
        match (self.state(), self.init.kind) {
            (QpState::Rts, _) if self.sq.is_empty() => Some(forever(Wait::Application)),
            (QpState::Rts | QpState::Sqd, QpType::Rc) if !self.sq.is_empty() => self.rc_waits_for(cx),
            (QpState::Sqd, _) => Some(forever(Wait::Stopped)),
            _ => None,
        }
    }

    /// What brought it into its error state; `None` in other states.
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }
}

// What it is told of its path.
impl Qp {
    /// From now on its path carries packets of this MTU at most, as far as is known. A request that needs larger ones fails when its turn
    /// comes: both ends agreed on the path MTU when they connected, and the standard has no way to change it (IBTA 11.2.4.2).
    pub fn set_carried_mtu(&mut self, mtu: Option<PathMtu>) {
        self.carried_mtu = mtu;
    }

    /// The MTU that is too small for a request of `len` bytes, asked for or sent.
    pub(super) fn too_small_for(&self, len: u32) -> Option<PathMtu> {
        self.carried_mtu.filter(|mtu| *mtu < self.attrs.path_mtu && len > mtu.bytes())
    }
}

// Posts.
impl Qp {
    /// A queue pair in RESET.
    pub fn new(qpn: Qpn, init: &QpInit) -> Result<Self, QpInitError> {
        init.caps.check()?;
        if init.kind == QpType::Gsi && init.srq.is_some() {
            return Err(QpInitError::GsiOnSrq);
        }
        let (recv_wr, recv_sge) = match init.srq {
            Some(_) => (0, 0),
            None => (init.caps.max_recv_wr, init.caps.max_recv_sge),
        };
        Ok(Self {
            qpn,
            init: *init,
            attrs: QpAttributes::default(),
            sq: SendQueue::new(&init.caps, init.kind.is_datagram()),
            rq: ReceiveQueue::new(recv_wr, recv_sge),
            req: Requester::default(),
            inbound: Inbound::default(),
            resp: Responder::default(),
            counters: QpCounters::default(),
            failure: None,
            carried_mtu: None,
        })
    }

    /// Appends a send request. In the error states it is flushed at once (IBTA 10.3.1).
    pub fn post_send(&mut self, cx: &mut Context<'_>, request: &SendRequest<'_>) -> Result<(), PostError> {
        let state = self.state();
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(state));
        }
        let len = self.check_send(request)?;
        self.sq.push(request, len)?;
        if matches!(state, QpState::Sqe | QpState::Err) {
            self.flush_sends(cx);
        }
        Ok(())
    }

    /// Appends a receive to the QP's own queue. In the error state it is flushed at once.
    pub fn post_recv(&mut self, cx: &mut Context<'_>, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.init.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        match self.state() {
            QpState::Reset => return Err(PostError::State(QpState::Reset)),
            QpState::Err => {
                self.rq.post(request)?;
                self.flush_receives(cx);
            }
            _ => {
                self.rq.post(request)?;
                if self.init.kind == QpType::Rc {
                    self.rc_receive_posted();
                }
            }
        }
        Ok(())
    }

    /// What can be told at the post; keys and addresses are checked when the request is carried out. The message's length.
    fn check_send(&self, request: &SendRequest<'_>) -> Result<u32, PostError> {
        use SendOp as O;
        let kind = self.init.kind;
        let offered = match kind {
            QpType::Rc => true,
            QpType::Uc => !request.op.is_read_or_atomic() && !matches!(request.op, O::SendInvalidate(_)),
            QpType::Ud | QpType::Gsi => matches!(request.op, O::Send | O::SendImm(_)),
        };
        if !offered {
            return Err(PostError::WrongService(kind));
        }
        if request.datagram.is_some() != kind.is_datagram()
            || request.datagram.is_some_and(|to| !to.av.leads_somewhere())
        {
            return Err(PostError::Address);
        }
        if request.op.is_read_or_atomic() && self.attrs.max_rd_atomic == 0 {
            return Err(PostError::NoReads);
        }
        let given = match request.data {
            Data::Inline(_) if request.op.is_read_or_atomic() => return Err(PostError::WrongData),
            Data::Inline(bytes) => bytes.len() as u64,
            Data::Sges(sges) => sges.iter().map(|s| u64::from(s.length)).sum(),
        };
        if given > u64::from(MAX_MESSAGE_BYTES) {
            return Err(PostError::MessageTooLong { given });
        }
        if request.op.is_atomic() && given != 8 || request.op.is_local() && given != 0 {
            return Err(PostError::WrongData);
        }
        Ok(given as u32)
    }
}

// What happens to it.
impl Qp {
    /// Takes a packet that is for this QP and whose ICRC is right. The refusal is counted here too.
    pub fn handle_packet(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        let result = self.dispatch(cx, packet, datagram);
        result.map_err(|reason| self.counters.refuse(reason))
    }

    fn dispatch(&mut self, cx: &mut Context<'_>, packet: &Packet<'_>, datagram: &Datagram<'_>) -> Result<(), Refusal> {
        let kind = self.init.kind;
        if !self.state().receives() {
            return Err(Refusal::State);
        }
        let service = match kind {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud | QpType::Gsi => Service::Ud,
        };
        if packet.opcode().service() != service {
            return Err(Refusal::Service);
        }
        if !kind.is_datagram() && datagram.ip.source() != self.attrs.av.destination {
            return Err(Refusal::Source);
        }
        // QP 1 takes every partition of the port (IBTA 10.9.4).
        let pkey = packet.bth().pkey;
        let in_partition = match kind {
            QpType::Gsi => cx.pkeys.iter().any(|ours| pkeys_match(*ours, pkey)),
            _ => pkeys_match(cx.pkey(self.attrs.pkey_index), pkey),
        };
        if !in_partition {
            return Err(Refusal::Pkey);
        }
        self.counters.received_packets += 1;
        self.counters.received_bytes += packet.payload().len() as u64;
        match (kind, packet.operation()) {
            (
                QpType::Rc,
                Some(op @ (Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse(_))),
            ) => self.rc_handle_response(cx, packet, op),
            (QpType::Rc, operation) => {
                self.communication_established(cx);
                self.rc_handle_request(cx, packet, operation)
            }
            (QpType::Uc, operation) => {
                self.communication_established(cx);
                self.uc_handle_packet(cx, packet, operation)
            }
            (QpType::Ud | QpType::Gsi, _) => self.ud_handle_packet(cx, packet, datagram),
        }
    }

    /// The first packet in RTR says that the peer is ready, though its connection message may be lost (IBTA 11.6.3.1).
    pub(super) fn communication_established(&mut self, cx: &mut Context<'_>) {
        if self.state() == QpState::Rtr && !self.inbound.established {
            self.inbound.established = true;
            cx.events.push_back(Event::CommEst(self.qpn));
        }
    }

    /// Does what is due at `cx.now`: ACK timeouts, ends of RNR waits, delayed ACKs.
    pub fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        if self.init.kind == QpType::Rc {
            self.rc_handle_timeout(cx);
        }
    }

    /// Adds packets to the burst, as many as it takes and may go now.
    ///
    /// UC and UD sends complete here: show completions to the client only when the burst has left.
    pub fn poll_transmit(&mut self, cx: &mut Context<'_>, burst: &mut Burst) -> Poll {
        let before = burst.packet_count();
        match self.init.kind {
            QpType::Rc => self.rc_fill(cx, burst),
            QpType::Uc => self.uc_fill(cx, burst),
            QpType::Ud | QpType::Gsi => self.ud_fill(cx, burst),
        }
        if burst.packet_count() == before { Poll::Idle } else { Poll::Filled }
    }

    /// A header for the peer of the connection.
    pub(super) fn bth(&self, cx: &Context<'_>, opcode: Opcode, psn: Psn) -> Bth {
        Bth { pkey: cx.pkey(self.attrs.pkey_index), ..Bth::new(opcode, self.attrs.dest_qpn, psn) }
    }

    /// A packet went into a burst.
    pub(super) fn count_sent(&mut self, payload: u32) {
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += u64::from(payload);
    }

    /// When [`Qp::handle_timeout`] is due, in path time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.init.kind {
            QpType::Rc => self.rc_deadline(),
            _ => None,
        }
    }
}
