//! Receive requests in the order that they were posted; one queue serves a QP or, shared, many.

use super::{PostError, QpCapabilities, RecvRequest};
use crate::memory::Sge;

/// A receive that was taken from its queue and is not yet complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    /// The slot; its scatter list stays there until the release.
    slot: u32,
    /// The client's cookie.
    pub(super) wr_id: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    wr_id: u64,
    sges: u8,
}

/// A preallocated queue. Slots are released in any order, as the messages of different QPs on a shared queue complete.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    slots: Box<[Slot]>,
    /// `max_sge` entries a slot.
    sges: Box<[Sge]>,
    max_sge: u32,
    /// Posted slots, oldest at `head`.
    waiting: Box<[u32]>,
    head: u32,
    len: u32,
    /// Slots that hold nothing: a stack of `free_len`.
    free: Box<[u32]>,
    free_len: u32,
}

impl ReceiveQueue {
    /// A queue of `max_wr` requests with `max_sge` entries each. The caller keeps both within [`QpCapabilities`].
    pub(super) fn new(max_wr: u32, max_sge: u32) -> Self {
        let (wr, sge) = (max_wr.min(QpCapabilities::MAX_WR), max_sge.min(QpCapabilities::MAX_SGE));
        Self {
            slots: vec![Slot::default(); wr as usize].into_boxed_slice(),
            sges: vec![Sge::default(); (wr * sge) as usize].into_boxed_slice(),
            max_sge: sge,
            waiting: vec![0; wr as usize].into_boxed_slice(),
            head: 0,
            len: 0,
            free: (0..wr).rev().collect(),
            free_len: wr,
        }
    }

    /// Requests that fit.
    pub(super) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Requests that wait for a message.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Requests that wait, and those that were taken and not released.
    pub(super) fn in_use(&self) -> u32 {
        self.capacity() - self.free_len
    }

    pub(super) fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let given = request.sges.len();
        if given > self.max_sge as usize {
            return Err(PostError::TooManySges { given, max: self.max_sge });
        }
        let full = PostError::QueueFull { capacity: self.capacity() };
        let top = self.free_len.checked_sub(1).ok_or(full)?;
        let slot = *self.free.get(top as usize).ok_or(full)?;
        let at = ((self.head + self.len) % self.capacity().max(1)) as usize;
        let first = (slot * self.max_sge) as usize;
        let (Some(entry), Some(sges), Some(place)) =
            (self.slots.get_mut(slot as usize), self.sges.get_mut(first..first + given), self.waiting.get_mut(at))
        else {
            return Err(full);
        };
        *entry = Slot { wr_id: request.wr_id, sges: given as u8 };
        sges.copy_from_slice(request.sges);
        *place = slot;
        self.free_len = top;
        self.len += 1;
        Ok(())
    }

    /// Takes the oldest request.
    pub(super) fn take(&mut self) -> Option<Taken> {
        if self.len == 0 {
            return None;
        }
        let slot = *self.waiting.get(self.head as usize)?;
        let wr_id = self.slots.get(slot as usize)?.wr_id;
        self.head = if self.head + 1 == self.capacity() { 0 } else { self.head + 1 };
        self.len -= 1;
        Some(Taken { slot, wr_id })
    }

    /// The scatter list of a request that was taken.
    pub(super) fn sges(&self, taken: Taken) -> &[Sge] {
        let count = self.slots.get(taken.slot as usize).map_or(0, |s| usize::from(s.sges));
        let first = (taken.slot * self.max_sge) as usize;
        self.sges.get(first..first + count).unwrap_or(&[])
    }

    /// Forgets all that waits.
    pub(super) fn clear(&mut self) {
        while let Some(taken) = self.take() {
            self.release(taken);
        }
    }

    /// Gives the slot of a request back, once per take.
    pub(super) fn release(&mut self, taken: Taken) {
        if let Some(place) = self.free.get_mut(self.free_len as usize) {
            *place = taken.slot;
            self.free_len += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sge(addr: u64) -> Sge {
        Sge { addr, length: 1, lkey: 7 }
    }

    #[test]
    fn first_posted_first_taken_and_released_in_any_order() {
        let mut q = ReceiveQueue::new(3, 2);
        for round in 0..4u64 {
            for n in 0..3 {
                let id = round * 10 + n;
                q.post(&RecvRequest { wr_id: id, sges: &[sge(id), sge(id + 1)][..(n as usize).min(2)] }).unwrap();
            }
            assert_eq!(q.post(&RecvRequest { wr_id: 0, sges: &[] }), Err(PostError::QueueFull { capacity: 3 }));
            let taken = [0, 1, 2].map(|_| q.take().unwrap());
            assert_eq!((q.len(), q.in_use()), (0, 3));
            assert_eq!(taken.map(|t| t.wr_id), [round * 10, round * 10 + 1, round * 10 + 2]);
            assert_eq!(q.sges(taken[2]), &[sge(round * 10 + 2), sge(round * 10 + 3)]);
            assert!(q.sges(taken[0]).is_empty());
            assert_eq!(q.take(), None);
            for t in [1, 2, 0] {
                q.release(taken[t]);
            }
        }
    }

    #[test]
    fn a_queue_of_nothing_takes_nothing() {
        let mut q = ReceiveQueue::new(0, 0);
        assert_eq!(q.post(&RecvRequest { wr_id: 1, sges: &[] }), Err(PostError::QueueFull { capacity: 0 }));
        assert_eq!(q.take(), None);
        let mut q = ReceiveQueue::new(1, 1);
        let two = [sge(1), sge(2)];
        assert_eq!(q.post(&RecvRequest { wr_id: 1, sges: &two }), Err(PostError::TooManySges { given: 2, max: 1 }));
        assert_eq!((q.len(), q.capacity()), (0, 1));
    }
}
