//! Which queue pair a packet is for, and whether it may come in.

use super::{DropReason, Engine, Entry};
use crate::time::Instant;
use crate::wire::icrc::{self, Verdict};
use crate::wire::{Datagram, Ecn, Opcode, Operation, Packet, Qpn};

impl Engine {
    /// Takes a packet that a port received. Its answer comes out of `poll_transmit`, one for all packets handed in before.
    ///
    /// What is wrong with a packet is counted under its reason, and never answered, unless the transport has a NAK for it.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &Datagram<'_>) {
        self.now = self.now.max(now);
        self.counters.received_packets += 1;
        self.counters.received_bytes += datagram.bytes.len() as u64;
        self.counters.ecn_marked_packets += u64::from(datagram.ip.ecn() == Ecn::Ce);
        self.take_datagram(now, datagram);
    }

    /// Whether a packet begins (or is) something that takes a receive, and its queue pair has none. Who posts for clients looks once
    /// more what they have posted before it hands such a packet in: a receive that was posted before the peer sent must be found.
    pub fn lacks_receive(&self, datagram: &Datagram<'_>) -> bool {
        let &[opcode, _, _, _, _, a, b, c, ..] = datagram.bytes else { return false };
        let takes = match Opcode::from_byte(opcode).operation() {
            Some(Operation::Send { place, .. }) => place.starts(),
            Some(Operation::Write { immediate, .. }) => immediate,
            _ => false,
        };
        takes
            && self.qp(Qpn::new(u32::from_be_bytes([0, a, b, c]))).is_some_and(|qp| match qp.init().srq {
                Some(srq) => self.shared.srqs.is_empty(srq),
                None => qp.waiting_receives() == 0,
            })
    }

    /// Takes a packet from a port or from ourselves.
    pub(super) fn take_datagram(&mut self, now: Instant, datagram: &Datagram<'_>) {
        if let Err(reason) = self.admit(now, datagram) {
            self.counters.note_drop(reason);
        }
    }

    fn admit(&mut self, now: Instant, datagram: &Datagram<'_>) -> Result<(), DropReason> {
        let packet = Packet::new_checked(datagram.bytes).map_err(|_| DropReason::Malformed)?;
        if !self.is_ours(datagram.ip.destination()) {
            return Err(DropReason::NotOurs);
        }
        match icrc::verify(datagram, 0) {
            Verdict::Good => {}
            Verdict::GoodWithId(_) => self.counters.icrc_recovered_packets += 1,
            Verdict::Bad => return Err(DropReason::Icrc),
        }
        if packet.opcode() == Opcode::CNP {
            return self.take_cnp(now, packet.dest_qp(), datagram);
        }
        if packet.opcode() == Opcode::UD_SEND_ONLY
            && let Some(taken) = self.take_heartbeat(now, &packet, datagram)
        {
            return taken;
        }
        let slot = self.slot(packet.dest_qp()).ok_or(DropReason::UnknownQp)?;
        let Entry { qp, seat, .. } = self.qps.get_mut(slot as usize).ok_or(DropReason::UnknownQp)?;
        let seat = *seat;
        let taken = qp.handle_packet(&mut self.shared.context(self.paths.time(seat.path, now)), &packet, datagram);
        // Only what fits the connection is a sign of life: anybody can write a QPN.
        if taken.is_ok() {
            self.hear(now, seat.path, packet.opcode().is_answer());
            if datagram.ip.ecn() == Ecn::Ce {
                self.handle_mark(now, slot, seat);
            }
        }
        self.called(slot);
        taken.map_err(DropReason::Refused)
    }
}
