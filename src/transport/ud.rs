//! Unreliable datagrams (IBTA 9.8.3), and the general services QP.

use super::finish::Received;
use super::message::Fault;
use super::send_queue::SendEntry;
use super::{Burst, Context, Qp, QpState, QpType, Refusal, SendOp, UdAddress, WcFlags, WcOpcode, WcStatus};
use crate::wire::{BTH_LEN, Bth, Datagram, Deth, GSI_QKEY, HeaderBuf, Opcode, Operation, Packet, Place, pad_count};

/// In a request: use the QP's own queue key.
pub(super) const QKEY_OF_QP: u32 = 0x8000_0000;
/// Bytes before the payload of a receive (IBTA 11.4.1.2).
pub(super) const GRH_BYTES: u64 = 40;

impl Qp {
    /// Adds datagrams until the burst is full. A request completes when it is in a burst.
    pub(super) fn ud_fill(&mut self, cx: &mut Context<'_>, burst: &mut Burst) {
        while self.state() == QpState::Rts {
            let Some(entry) = self.sq.get(self.sq.head()).copied() else { break };
            let Some(address) = self.sq.address(self.sq.head()).copied() else { break };
            if !self.ud_send(cx, burst, &entry, &address) {
                break;
            }
        }
    }

    fn ud_send(&mut self, cx: &mut Context<'_>, burst: &mut Burst, entry: &SendEntry, to: &UdAddress) -> bool {
        if entry.len > cx.limits.port_mtu.bytes() {
            self.fail_send(cx, WcStatus::LocalLength, 0);
            return false;
        }
        let opcode = match entry.op {
            SendOp::SendImm(_) => Opcode::UD_SEND_ONLY_IMM,
            _ => Opcode::UD_SEND_ONLY,
        };
        let header = (BTH_LEN + opcode.extension_len()) as u32;
        if !burst.fits(&to.av, header, entry.len) {
            return false;
        }
        let (sq, head, pd, memory) = (&self.sq, self.sq.head(), self.init.pd, &mut *cx.memory);
        if burst.stage(|list| sq.gather(head, 0, entry.len, pd, memory, list)).is_err() {
            self.fail_send(cx, WcStatus::LocalProtection, 0);
            return false;
        }
        let bth = Bth {
            pkey: cx.pkey(self.attrs.pkey_index),
            solicited: entry.is_solicited(),
            pad_count: pad_count(entry.len as usize),
            ..Bth::new(opcode, to.dest_qp, self.req.next)
        };
        let qkey = if to.qkey & QKEY_OF_QP != 0 { self.ud_qkey() } else { to.qkey };
        let mut headers = HeaderBuf::new(&bth);
        headers.push_deth(&Deth { qkey, src_qp: self.qpn });
        if let SendOp::SendImm(imm) = entry.op {
            headers.push_immediate(imm);
        }
        if burst.push(cx.memory, &to.av, &headers, entry.len).is_err() {
            return false;
        }
        self.count_sent(entry.len);
        self.req.next = self.req.next.plus(1);
        self.unreliable_sent(cx);
        true
    }

    pub(super) fn ud_qkey(&self) -> u32 {
        match self.init.kind {
            QpType::Gsi => GSI_QKEY,
            _ => self.attrs.qkey,
        }
    }

    /// Takes a datagram; all that is wrong with one is a silent drop (IBTA 9.8.3.2).
    pub(super) fn ud_handle_packet(
        &mut self,
        cx: &mut Context<'_>,
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        let (Some(Operation::Send { place: Place::Only, .. }), Some(deth)) = (packet.operation(), packet.deth()) else {
            return Err(Refusal::Service);
        };
        if deth.qkey != self.ud_qkey() {
            return Err(Refusal::Qkey);
        }
        let payload = packet.payload();
        if payload.len() > cx.limits.port_mtu.bytes() as usize {
            return Err(Refusal::InvalidUnreliable);
        }
        // A datagram that did not fit left its receive to the next one.
        if self.inbound.receive.is_none() {
            self.inbound.receive = self.take_receive(cx);
        }
        if self.inbound.receive.is_none() {
            self.counters.out_of_buffer += 1;
            return Err(Refusal::NoReceive);
        }
        let len = GRH_BYTES + payload.len() as u64;
        if len > self.receive_capacity(cx.srqs) {
            self.counters.resp_local_length_error += 1;
            return Err(Refusal::ReceiveTooShort);
        }
        let filled = self.fill_receive(cx, 0, &datagram.grh()).and_then(|()| self.fill_receive(cx, GRH_BYTES, payload));
        if filled.is_err() {
            self.fail_inbound(cx, Fault::LocalProtection);
            return Ok(());
        }
        let mut received = Received::of(WcOpcode::Recv, len as u32, packet.immediate(), None, packet.bth().solicited);
        received.completion.flags |= WcFlags::GRH;
        received.completion.src_qp = deth.src_qp;
        let pkey = packet.bth().pkey;
        let index = cx.pkeys.iter().position(|ours| super::context::pkeys_match(*ours, pkey));
        received.completion.pkey_index = index.unwrap_or(0) as u16;
        self.complete_current(cx, received);
        Ok(())
    }
}
