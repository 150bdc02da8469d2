//! Placing the payload of SENDs and WRITEs that arrive, for RC and UC.

use super::finish::Received;
use super::receive_queue::Taken;
use super::{Context, Failure, Qp, QpState, SharedReceiveQueues, WcOpcode, WcStatus};
use crate::memory::{Access, PdId, Sge};
use crate::wire::{MAX_MESSAGE_BYTES, Operation, Packet, Place, Reth};

/// The message that is arriving.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    pub(super) message: Message,
    /// The receive that a SEND is filling. On UC it stays for the next message if this one breaks off.
    pub(super) receive: Option<Taken>,
    /// A packet has arrived in RTR.
    pub(super) established: bool,
}

#[derive(Debug, Default)]
pub(super) enum Message {
    /// Between messages.
    #[default]
    None,
    /// A SEND: bytes placed, and bytes that its receive holds.
    Send { placed: u64, capacity: u64 },
    /// A WRITE: where the next byte goes, and bytes to come.
    Write { va: u64, rkey: u32, left: u32, total: u32 },
}

impl Inbound {
    /// Whether the next packet must go on with a message.
    pub(super) fn is_within(&self) -> bool {
        !matches!(self.message, Message::None)
    }

    /// Forgets the message; its receive stays.
    pub(super) fn abort(&mut self) {
        self.message = Message::None;
    }
}

/// Why a request cannot be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// There is no receive.
    NotReady,
    /// The request breaks a rule of the protocol, or of this QP.
    Invalid,
    /// Memory does not allow it.
    Access,
    /// A SEND is longer than its receive.
    TooLong,
    /// The receive's own scatter list is wrong.
    LocalProtection,
}

/// Whether a message ended with the packet.
pub(super) type Ended = bool;

impl Qp {
    /// Places a packet of a SEND or WRITE. Nothing has changed if it fails with [`Fault::NotReady`].
    pub(super) fn place(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        operation: Operation,
    ) -> Result<Ended, Fault> {
        match operation {
            Operation::Send { place, .. } => {
                self.check_place(packet, place, matches!(self.inbound.message, Message::Send { .. }))?;
                self.place_send(cx, packet, place)
            }
            Operation::Write { place, immediate } => {
                self.check_place(packet, place, matches!(self.inbound.message, Message::Write { .. }))?;
                self.place_write(cx, packet, place, immediate)
            }
            _ => Err(Fault::Invalid),
        }
    }

    /// The sequence of opcodes (IBTA 9.7.4.1.3 and table 37) and the payload of each place (9.7.4.1.6).
    fn check_place(&self, packet: &Packet<'_>, place: Place, continues: bool) -> Result<(), Fault> {
        let in_sequence = if place.starts() { !self.inbound.is_within() } else { continues };
        let (len, mtu) = (packet.payload().len(), self.attrs.path_mtu.bytes() as usize);
        let fits = match place {
            Place::First | Place::Middle => len == mtu,
            Place::Last => (1..=mtu).contains(&len),
            Place::Only => len <= mtu,
        };
        if in_sequence && fits { Ok(()) } else { Err(Fault::Invalid) }
    }

    fn place_send(&mut self, cx: &mut Context<'_>, packet: &Packet<'_>, place: Place) -> Result<Ended, Fault> {
        let (mut placed, capacity) = match self.inbound.message {
            Message::Send { placed, capacity } => (placed, capacity),
            _ => {
                self.ensure_receive(cx)?;
                (0, self.receive_capacity(cx.srqs))
            }
        };
        let payload = packet.payload();
        if placed + payload.len() as u64 > capacity {
            self.counters.resp_local_length_error += 1;
            return Err(Fault::TooLong);
        }
        self.fill_receive(cx, placed, payload)?;
        placed += payload.len() as u64;
        if !place.ends() {
            self.inbound.message = Message::Send { placed, capacity };
            return Ok(false);
        }
        let invalidated = packet.invalidate_rkey();
        if let Some(rkey) = invalidated {
            cx.memory.invalidate(self.init.pd, rkey, self.qpn.get()).map_err(|_| Fault::Access)?;
        }
        self.inbound.abort();
        let solicited = packet.bth().solicited;
        let received = Received::of(WcOpcode::Recv, placed as u32, packet.immediate(), invalidated, solicited);
        self.complete_current(cx, received);
        Ok(true)
    }

    fn place_write(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        place: Place,
        immediate: bool,
    ) -> Result<Ended, Fault> {
        let payload = packet.payload();
        let len = payload.len() as u32;
        let (va, rkey, left, total) = match self.inbound.message {
            Message::Write { va, rkey, left, total } => (va, rkey, left, total),
            _ => {
                let reth = packet.reth().ok_or(Fault::Invalid)?;
                self.check_write(cx, &reth)?;
                (reth.va, reth.rkey, reth.dma_len, reth.dma_len)
            }
        };
        // The whole must be as long as the RETH said (IBTA 9.7.4.1.6).
        let consistent = if place.ends() { len == left } else { len < left };
        if !consistent {
            return Err(Fault::Invalid);
        }
        if immediate {
            self.ensure_receive(cx)?;
        }
        if len > 0 {
            let written = cx.memory.write_remote(self.init.pd, self.qpn.get(), rkey, va, payload);
            written.map_err(|_| Fault::Access)?;
        }
        if !place.ends() {
            self.inbound.message = Message::Write { va: va.wrapping_add(len.into()), rkey, left: left - len, total };
            return Ok(false);
        }
        self.inbound.abort();
        self.counters.rx_write_requests += 1;
        if immediate {
            let solicited = packet.bth().solicited;
            let received = Received::of(WcOpcode::RecvRdmaWithImm, total, packet.immediate(), None, solicited);
            self.complete_current(cx, received);
        }
        Ok(true)
    }

    /// The whole target is checked at the first packet (IBTA 9.7.4.1.5); a WRITE of no bytes has none.
    pub(super) fn check_write(&self, cx: &Context<'_>, reth: &Reth) -> Result<(), Fault> {
        if !self.attrs.access.contains(Access::REMOTE_WRITE) || reth.dma_len > MAX_MESSAGE_BYTES {
            return Err(Fault::Invalid);
        }
        if reth.dma_len == 0 {
            return Ok(());
        }
        let (pd, qpn) = (self.init.pd, self.qpn.get());
        let checked = cx.memory.check_remote(pd, qpn, reth.rkey, reth.va, reth.dma_len.into(), Access::REMOTE_WRITE);
        checked.map_err(|_| Fault::Access)
    }

    pub(super) fn ensure_receive(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        if self.inbound.receive.is_none() {
            self.inbound.receive = self.take_receive(cx);
        }
        if self.inbound.receive.is_some() { Ok(()) } else { Err(Fault::NotReady) }
    }

    /// The scatter list that is being filled, and the domain it belongs to.
    pub(super) fn receive_list<'a>(&'a self, srqs: &'a SharedReceiveQueues) -> Option<(PdId, &'a [Sge])> {
        let taken = self.inbound.receive?;
        match self.init.srq {
            None => Some((self.init.pd, self.rq.sges(taken))),
            Some(srq) => srqs.sges(srq, taken),
        }
    }

    /// Bytes that the receive being filled holds.
    pub(super) fn receive_capacity(&self, srqs: &SharedReceiveQueues) -> u64 {
        self.receive_list(srqs).map_or(0, |(_, sges)| sges.iter().map(|s| u64::from(s.length)).sum())
    }

    /// Writes to the receive that is being filled.
    pub(super) fn fill_receive(&self, cx: &mut Context<'_>, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (pd, sges) = self.receive_list(cx.srqs).ok_or(Fault::LocalProtection)?;
        cx.memory.scatter(pd, sges, offset, bytes).map_err(|_| Fault::LocalProtection)
    }

    /// Completes the receive that is being filled.
    pub(super) fn complete_current(&mut self, cx: &mut Context<'_>, received: Received) {
        if let Some(taken) = self.inbound.receive.take() {
            self.complete_receive(cx, taken, received);
        }
    }

    /// Brings the QP to ERR for a request that cannot be carried out; a receive at fault says so.
    pub(super) fn fail_inbound(&mut self, cx: &mut Context<'_>, fault: Fault) {
        let failure = match fault {
            Fault::TooLong => Failure::Receive(WcStatus::LocalLength),
            Fault::LocalProtection => Failure::Receive(WcStatus::LocalProtection),
            Fault::NotReady | Fault::Invalid => Failure::PeerInvalidRequest,
            Fault::Access => Failure::PeerAccess,
        };
        if let Failure::Receive(status) = failure {
            self.complete_current(cx, Received::failed(status));
        }
        self.failure.get_or_insert(failure);
        debug_assert_ne!(self.state(), QpState::Err);
        self.enter_error(cx);
    }
}
