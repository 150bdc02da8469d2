//! Send requests, from their post to their completion: a ring with its scatter lists and inline bytes beside it.

use super::{Data, PostError, QpCapabilities, SendFlags, SendOp, SendRequest, UdAddress};
use crate::memory::{AccessError, GatherList, Memory, PdId, Sge, Source};
use crate::wire::Psn;

/// One send request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendEntry {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    /// Bytes of the message.
    pub(super) len: u32,
    /// PSN of its first packet, once it was sent.
    pub(super) first_psn: Psn,
    /// PSNs that it takes; 0 for local operations.
    pub(super) packets: u32,
    /// Number of its first wire message (IBTA 9.7.7.2, SSN), once it was sent.
    pub(super) ssn: u32,
    sges: u8,
    inline: bool,
}

impl SendEntry {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        len: 0,
        first_psn: Psn::new(0),
        packets: 0,
        ssn: 0,
        sges: 0,
        inline: false,
    };

    /// Whether its last packet asks for the receiver's attention: only one that takes a receive can (IBTA 9.2.3).
    pub(super) fn is_solicited(&self) -> bool {
        self.op.takes_receive() && self.flags.contains(SendFlags::SOLICITED)
    }

    /// The PSN behind its last.
    pub(super) fn end_psn(&self) -> Psn {
        self.first_psn.plus(self.packets)
    }
}

/// A preallocated ring. Requests are named by a number that counts up for ever, so that old and new never mix.
#[derive(Debug)]
pub(super) struct SendQueue {
    entries: Box<[SendEntry]>,
    sges: Box<[Sge]>,
    inline: Box<[u8]>,
    /// One a slot on datagram QPs, none on others.
    addresses: Box<[UdAddress]>,
    caps: QpCapabilities,
    /// The oldest request that is not complete.
    head: u64,
    /// The number of the next post.
    tail: u64,
}

impl SendQueue {
    pub(super) fn new(caps: &QpCapabilities, datagrams: bool) -> Self {
        let slots = caps.max_send_wr as usize;
        Self {
            entries: vec![SendEntry::EMPTY; slots].into_boxed_slice(),
            sges: vec![Sge::default(); slots * caps.max_send_sge as usize].into_boxed_slice(),
            inline: vec![0; slots * caps.max_inline_data as usize].into_boxed_slice(),
            addresses: vec![UdAddress::UNSET; if datagrams { slots } else { 0 }].into_boxed_slice(),
            caps: *caps,
            head: 0,
            tail: 0,
        }
    }

    /// The oldest request that is not complete.
    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    /// One past the newest request.
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) const fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    fn slot(&self, index: u64) -> usize {
        index.checked_rem(self.entries.len() as u64).unwrap_or(0) as usize
    }

    pub(super) fn get(&self, index: u64) -> Option<&SendEntry> {
        if !(self.head..self.tail).contains(&index) {
            return None;
        }
        self.entries.get(self.slot(index))
    }

    pub(super) fn get_mut(&mut self, index: u64) -> Option<&mut SendEntry> {
        if !(self.head..self.tail).contains(&index) {
            return None;
        }
        let slot = self.slot(index);
        self.entries.get_mut(slot)
    }

    /// Appends a request of `len` bytes that the QP found to be in order.
    pub(super) fn push(&mut self, request: &SendRequest<'_>, len: u32) -> Result<(), PostError> {
        if self.len() >= self.caps.max_send_wr {
            return Err(PostError::QueueFull { capacity: self.caps.max_send_wr });
        }
        let slot = self.slot(self.tail);
        let (mut sges, mut inline) = (0, false);
        match request.data {
            Data::Sges(given) => {
                let max = self.caps.max_send_sge;
                let too_many = PostError::TooManySges { given: given.len(), max };
                if given.len() > max as usize {
                    return Err(too_many);
                }
                let first = slot * max as usize;
                let room = self.sges.get_mut(first..first + given.len()).ok_or(too_many)?;
                room.copy_from_slice(given);
                sges = given.len() as u8;
            }
            Data::Inline(given) => {
                let max = self.caps.max_inline_data;
                let too_long = PostError::InlineTooLong { given: given.len(), max };
                if given.len() > max as usize {
                    return Err(too_long);
                }
                let first = slot * max as usize;
                let room = self.inline.get_mut(first..first + given.len()).ok_or(too_long)?;
                room.copy_from_slice(given);
                inline = true;
            }
        }
        if let (Some(place), Some(address)) = (self.addresses.get_mut(slot), request.datagram) {
            *place = address;
        }
        if let Some(entry) = self.entries.get_mut(slot) {
            let (wr_id, op, flags) = (request.wr_id, request.op, request.flags);
            *entry = SendEntry { wr_id, op, flags, len, sges, inline, ..SendEntry::EMPTY };
        }
        self.tail += 1;
        Ok(())
    }

    /// Removes the oldest request.
    pub(super) fn pop(&mut self) -> Option<SendEntry> {
        let entry = *self.get(self.head)?;
        self.head += 1;
        Some(entry)
    }

    /// Forgets all requests.
    pub(super) fn clear(&mut self) {
        self.head = self.tail;
    }

    /// Whom a datagram is for.
    pub(super) fn address(&self, index: u64) -> Option<&UdAddress> {
        self.addresses.get(self.slot(index))
    }

    /// The scatter list of a request; empty if its data are inline.
    pub(super) fn sges(&self, index: u64) -> &[Sge] {
        let slot = self.slot(index);
        let count = self.entries.get(slot).map_or(0, |e| usize::from(e.sges));
        let first = slot * self.caps.max_send_sge as usize;
        self.sges.get(first..first + count).unwrap_or(&[])
    }

    /// `len` bytes of a request's data, from `offset` on, for a copy.
    pub(super) fn source(&self, index: u64, offset: u32, len: u32, pd: PdId) -> Source<'_> {
        let slot = self.slot(index);
        if !self.entries.get(slot).is_some_and(|e| e.inline) {
            return Source::Sges { pd, sges: self.sges(index), offset: offset.into() };
        }
        let first = slot * self.caps.max_inline_data as usize + offset as usize;
        Source::Bytes(self.inline.get(first..first + len as usize).unwrap_or(&[]))
    }

    /// Appends `len` bytes of a request's data, from `offset` on, to `list`.
    pub(super) fn gather(
        &self,
        index: u64,
        offset: u32,
        len: u32,
        pd: PdId,
        memory: &mut Memory,
        list: &mut GatherList,
    ) -> Result<(), AccessError> {
        let slot = self.slot(index);
        if !self.entries.get(slot).is_some_and(|e| e.inline) {
            return memory.gather(pd, self.sges(index), u64::from(offset), len, list);
        }
        let first = slot * self.caps.max_inline_data as usize + offset as usize;
        list.push_bytes(self.inline.get(first..first + len as usize).unwrap_or(&[]));
        Ok(())
    }
}
