//! Two queue pairs of one engine: one copy from region to region, no packets.
//!
//! A short cut of what goes well, and nothing else. It moves a run of a message, and both ends stand afterwards as if the packets of the
//! run had been sent, received and acknowledged. So it begins only where nothing is under way between the two, and whatever is not
//! plain success (no receive, no right, a wrong length) is left to the packets, which the engine hands to itself: there is one
//! set of rules for errors, not two.

use super::finish::Received;
use super::message::{Fault, Message};
use super::send_queue::SendEntry;
use super::ud::{GRH_BYTES, QKEY_OF_QP};
use super::{Context, Qp, QpState, QpType, SendFlags, SendOp, WcFlags, WcOpcode, WcStatus};
use crate::memory::{Access, AtomicOp, LocalUse, Source, Target};
use crate::wire::{BTH_LEN, Deth, ICRC_LEN, Qpn, Reth, UDP_LEN, pad_count};
use core::net::IpAddr;

/// Bytes of a message that go in one turn.
const RUN_BYTES: u32 = 256 << 10;

/// What is to be put away at the other end.
struct Run<'a> {
    op: SendOp,
    /// Bytes of the whole message.
    total: u32,
    starts: bool,
    ends: bool,
    solicited: bool,
    source: Source<'a>,
    bytes: u32,
}

impl Qp {
    /// Whom the oldest request is for; `None` if there is none that may go.
    pub fn next_destination(&self) -> Option<(IpAddr, Qpn)> {
        if self.state() != QpState::Rts || self.sq.is_empty() {
            return None;
        }
        if !self.init.kind.is_datagram() {
            return Some((self.attrs.av.destination, self.attrs.dest_qpn));
        }
        self.sq.address(self.sq.head()).map(|to| (to.av.destination, to.dest_qp))
    }

    /// Moves a run of the oldest request to `peer`, which is whom it is for, and completes the request at its end. The bytes moved;
    /// `None` if the request must go by packets.
    pub fn exchange(&mut self, peer: &mut Self, cx: &mut Context<'_>) -> Option<u32> {
        let entry = *self.sq.get(self.sq.head())?;
        if self.state() != QpState::Rts || !peer.state().receives() || !self.shares_partition(peer, cx) {
            return None;
        }
        if self.init.kind.is_datagram() {
            return self.exchange_datagram(peer, cx, &entry);
        }
        if !self.is_in_step_with(peer) {
            return None;
        }
        peer.communication_established(cx);
        match entry.op {
            SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => None,
            SendOp::Read { va, rkey } => self.exchange_read(peer, cx, &entry, va, rkey),
            SendOp::CompareSwap { va, rkey, compare, swap } => {
                self.exchange_atomic(peer, cx, va, rkey, AtomicOp::CompareSwap { compare, swap })
            }
            SendOp::FetchAdd { va, rkey, add } => self.exchange_atomic(peer, cx, va, rkey, AtomicOp::FetchAdd { add }),
            _ => self.exchange_message(peer, cx, &entry),
        }
    }

    fn shares_partition(&self, peer: &Self, cx: &Context<'_>) -> bool {
        super::context::pkeys_match(cx.pkey(self.attrs.pkey_index), cx.pkey(peer.attrs.pkey_index))
    }

    /// Whether the two are connected to each other and nothing is under way from here to there.
    fn is_in_step_with(&self, peer: &Self) -> bool {
        let connected = self.init.kind == peer.init.kind
            && peer.attrs.dest_qpn == self.qpn
            && peer.attrs.av.destination == self.attrs.av.source
            && peer.attrs.path_mtu == self.attrs.path_mtu;
        let reliable = self.init.kind == QpType::Rc;
        connected
            && self.req.next == peer.resp.expected
            && (self.req.offset > 0) == peer.inbound.is_within()
            && (!reliable || self.req.cursor == self.sq.head() && self.req.is_at_rest() && peer.resp.is_at_rest())
    }

    fn exchange_message(&mut self, peer: &mut Self, cx: &mut Context<'_>, entry: &SendEntry) -> Option<u32> {
        let (mtu, offset, head) = (self.attrs.path_mtu.bytes(), self.req.offset, self.sq.head());
        let packets = self.attrs.path_mtu.packets(entry.len);
        let run = (packets - offset).min(RUN_BYTES / mtu);
        let start = offset * mtu;
        let bytes = (entry.len - start).min(run * mtu);
        let ends = offset + run == packets;
        let run_of_message = Run {
            op: entry.op,
            total: entry.len,
            starts: offset == 0,
            ends,
            solicited: entry.flags.contains(SendFlags::SOLICITED),
            source: self.sq.source(head, start, bytes, self.init.pd),
            bytes,
        };
        peer.put_away(cx, &run_of_message).ok()?;
        peer.resp.expected = peer.resp.expected.plus(run);
        if self.init.kind == QpType::Rc {
            if ends {
                peer.rc_count_message();
            }
            self.rc_exchanged(cx, run, packets);
            return Some(bytes);
        }
        self.req.begun = head + 1;
        self.req.next = self.req.next.plus(run);
        self.req.offset += run;
        if ends {
            self.unreliable_sent(cx);
        }
        Some(bytes)
    }

    /// `psns` of the oldest request's `packets` have gone and are acknowledged.
    fn rc_exchanged(&mut self, cx: &mut Context<'_>, psns: u32, packets: u32) {
        self.req.arrived();
        self.rc_begin(cx.limits);
        self.req.advance(psns, packets);
        self.req.arrived();
        self.rc_reap(cx);
    }

    /// The receiving half of a run.
    fn put_away(&mut self, cx: &mut Context<'_>, run: &Run<'_>) -> Result<(), Fault> {
        match run.op {
            SendOp::Write { va, rkey } => self.put_write(cx, run, va, rkey, None),
            SendOp::WriteImm { va, rkey, imm } => self.put_write(cx, run, va, rkey, Some(imm)),
            SendOp::SendImm(imm) => self.put_send(cx, run, Some(imm), None),
            SendOp::SendInvalidate(rkey) => self.put_send(cx, run, None, Some(rkey)),
            _ => self.put_send(cx, run, None, None),
        }
    }

    fn put_write(
        &mut self,
        cx: &mut Context<'_>,
        run: &Run<'_>,
        va: u64,
        rkey: u32,
        imm: Option<u32>,
    ) -> Result<(), Fault> {
        let (va, left) = match self.inbound.message {
            Message::Write { va, left, .. } if !run.starts => (va, left),
            _ => {
                self.check_write(cx, &Reth { va, rkey, dma_len: run.total })?;
                (va, run.total)
            }
        };
        if imm.is_some() && run.ends {
            self.ensure_receive(cx)?;
        }
        if run.bytes > 0 {
            let target = Target::Remote { pd: self.init.pd, qpn: self.qpn.get(), rkey, va };
            cx.memory.copy(&run.source, &target, run.bytes.into()).map_err(|_| Fault::Access)?;
        }
        if !run.ends {
            let (va, left) = (va.wrapping_add(run.bytes.into()), left.saturating_sub(run.bytes));
            self.inbound.message = Message::Write { va, rkey, left, total: run.total };
            return Ok(());
        }
        self.inbound.abort();
        self.counters.rx_write_requests += 1;
        if imm.is_some() {
            let received = Received::of(WcOpcode::RecvRdmaWithImm, run.total, imm, None, run.solicited);
            self.complete_current(cx, received);
        }
        Ok(())
    }

    fn put_send(
        &mut self,
        cx: &mut Context<'_>,
        run: &Run<'_>,
        imm: Option<u32>,
        invalidate: Option<u32>,
    ) -> Result<(), Fault> {
        let (placed, capacity) = match self.inbound.message {
            Message::Send { placed, capacity } if !run.starts => (placed, capacity),
            _ => {
                self.ensure_receive(cx)?;
                (0, self.receive_capacity(cx.srqs))
            }
        };
        if u64::from(run.total) > capacity {
            return Err(Fault::TooLong);
        }
        if run.bytes > 0 {
            self.copy_to_receive(cx, &run.source, placed, run.bytes)?;
        }
        let placed = placed + u64::from(run.bytes);
        if !run.ends {
            self.inbound.message = Message::Send { placed, capacity };
            return Ok(());
        }
        if let Some(rkey) = invalidate {
            cx.memory.invalidate(self.init.pd, rkey, self.qpn.get()).map_err(|_| Fault::Access)?;
        }
        self.inbound.abort();
        self.complete_current(cx, Received::of(WcOpcode::Recv, run.total, imm, invalidate, run.solicited));
        Ok(())
    }

    fn copy_to_receive(&self, cx: &mut Context<'_>, source: &Source<'_>, offset: u64, bytes: u32) -> Result<(), Fault> {
        let (pd, sges) = self.receive_list(cx.srqs).ok_or(Fault::LocalProtection)?;
        let target = Target::Sges { pd, sges, offset };
        cx.memory.copy(source, &target, bytes.into()).map_err(|_| Fault::LocalProtection)
    }

    /// One piece of a READ, as large as one READ request asks for.
    fn exchange_read(
        &mut self,
        peer: &mut Self,
        cx: &mut Context<'_>,
        entry: &SendEntry,
        va: u64,
        rkey: u32,
    ) -> Option<u32> {
        let (start, psns) = self.rc_next_piece(entry, cx.limits);
        let bytes = (entry.len - start).min(psns.saturating_mul(self.attrs.path_mtu.bytes()));
        if !self.may_query(peer, Access::REMOTE_READ) {
            return None;
        }
        let va = va.wrapping_add(start.into());
        if bytes > 0 {
            let source = Source::Remote { pd: peer.init.pd, qpn: peer.qpn.get(), rkey, va };
            let target = Target::Sges { pd: self.init.pd, sges: self.sq.sges(self.sq.head()), offset: start.into() };
            cx.memory.copy(&source, &target, bytes.into()).ok()?;
        }
        peer.counters.rx_read_requests += 1;
        peer.rc_count_message();
        peer.resp.expected = peer.resp.expected.plus(psns);
        self.rc_exchanged(cx, psns, self.attrs.path_mtu.packets(entry.len));
        Some(bytes)
    }

    fn exchange_atomic(
        &mut self,
        peer: &mut Self,
        cx: &mut Context<'_>,
        va: u64,
        rkey: u32,
        op: AtomicOp,
    ) -> Option<u32> {
        let (pd, head) = (self.init.pd, self.sq.head());
        let sound = va.is_multiple_of(8)
            && self.may_query(peer, Access::REMOTE_ATOMIC)
            && cx.memory.check_local(pd, self.sq.sges(head), LocalUse::Write).is_ok();
        if !sound {
            return None;
        }
        let original = cx.memory.atomic(peer.init.pd, peer.qpn.get(), rkey, va, op).ok()?;
        peer.counters.rx_atomic_requests += 1;
        peer.rc_count_message();
        peer.resp.expected = peer.resp.expected.plus(1);
        if cx.memory.scatter(pd, self.sq.sges(head), 0, &original.to_ne_bytes()).is_err() {
            self.fail_send(cx, WcStatus::LocalProtection, 0);
            return Some(8);
        }
        self.rc_exchanged(cx, 1, 1);
        Some(8)
    }

    fn may_query(&self, peer: &Self, right: Access) -> bool {
        self.attrs.max_rd_atomic > 0 && peer.attrs.access.contains(right) && peer.resp.takes_queries()
    }

    fn exchange_datagram(&mut self, peer: &mut Self, cx: &mut Context<'_>, entry: &SendEntry) -> Option<u32> {
        let to = *self.sq.address(self.sq.head())?;
        let qkey = if to.qkey & QKEY_OF_QP != 0 { self.ud_qkey() } else { to.qkey };
        let fits = peer.init.kind.is_datagram() && qkey == peer.ud_qkey() && entry.len <= cx.limits.port_mtu.bytes();
        if !fits || peer.ensure_receive(cx).is_err() {
            return None;
        }
        let len = GRH_BYTES + u64::from(entry.len);
        if len > peer.receive_capacity(cx.srqs) {
            return None;
        }
        let imm = if let SendOp::SendImm(imm) = entry.op { Some(imm) } else { None };
        let headers = UDP_LEN + BTH_LEN + Deth::LEN + 4 * usize::from(imm.is_some());
        let padded = entry.len + u32::from(pad_count(entry.len as usize));
        let udp_len = u16::try_from(headers + padded as usize + ICRC_LEN).ok()?;
        peer.fill_receive(cx, 0, &to.av.ip_header(0)?.grh(udp_len)).ok()?;
        let source = self.sq.source(self.sq.head(), 0, entry.len, self.init.pd);
        peer.copy_to_receive(cx, &source, GRH_BYTES, entry.len).ok()?;
        let solicited = entry.flags.contains(SendFlags::SOLICITED);
        let mut received = Received::of(WcOpcode::Recv, len as u32, imm, None, solicited);
        received.completion.flags |= WcFlags::GRH;
        received.completion.src_qp = self.qpn;
        received.completion.pkey_index = peer.attrs.pkey_index;
        peer.complete_current(cx, received);
        self.req.next = self.req.next.plus(1);
        self.unreliable_sent(cx);
        Some(entry.len)
    }
}
