//! Completion queues: a table of preallocated rings.

use super::{Completion, Event};
use slab::Slab;
use std::collections::VecDeque;

/// Names a completion queue of one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CqId(pub u32);

/// What happened on a completion queue since it was last asked: what an armed queue notifies about (IBTA 11.4.2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Notice {
    /// A completion was added.
    pub any: bool,
    /// One was added that is solicited or an error.
    pub solicited: bool,
}

/// Why a completion queue could not be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// There is no such queue.
    #[error("no completion queue {0:?}")]
    Unknown(CqId),
    /// A queue holds between 1 and [`Completions::MAX_ENTRIES`].
    #[error("a completion queue of {0} entries; allowed are 1 to {max}", max = Completions::MAX_ENTRIES)]
    Size(u32),
    /// More completions wait than the new size holds.
    #[error("{waiting} completions wait, more than {wanted}: poll them first")]
    TooFull {
        /// Completions in the queue.
        waiting: u32,
        /// The size asked for.
        wanted: u32,
    },
}

#[derive(Debug)]
struct Cq {
    ring: Box<[Completion]>,
    head: u32,
    len: u32,
    overrun: bool,
    /// In the list of queues that somebody should look at.
    dirty: bool,
    notice: Notice,
}

impl Cq {
    fn new(entries: u32) -> Self {
        let ring = vec![Completion::default(); entries as usize].into_boxed_slice();
        Self { ring, head: 0, len: 0, overrun: false, dirty: false, notice: Notice::default() }
    }

    fn capacity(&self) -> u32 {
        self.ring.len() as u32
    }

    fn push(&mut self, completion: Completion) -> bool {
        if self.len == self.capacity() {
            return false;
        }
        let at = (u64::from(self.head) + u64::from(self.len)) % self.ring.len() as u64;
        if let Some(slot) = self.ring.get_mut(at as usize) {
            *slot = completion;
            self.len += 1;
        }
        true
    }

    fn pop(&mut self) -> Option<Completion> {
        if self.len == 0 {
            return None;
        }
        let completion = self.ring.get(self.head as usize).copied();
        self.head = if self.head + 1 == self.capacity() { 0 } else { self.head + 1 };
        self.len -= 1;
        completion
    }
}

/// The completion queues of one engine.
#[derive(Debug, Default)]
pub struct Completions {
    queues: Slab<Cq>,
    dirty: VecDeque<CqId>,
}

impl Completions {
    /// Entries that a queue may have at most.
    pub const MAX_ENTRIES: u32 = 1 << 22;

    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a queue of `entries` completions.
    pub fn create(&mut self, entries: u32) -> Result<CqId, CqError> {
        check_size(entries)?;
        let id = CqId(self.queues.insert(Cq::new(entries)) as u32);
        // Each queue is in the list at most once: no push allocates later.
        self.dirty.reserve(self.queues.len().saturating_sub(self.dirty.len()));
        Ok(id)
    }

    /// Changes a queue's size and keeps what waits in it.
    pub fn resize(&mut self, id: CqId, entries: u32) -> Result<(), CqError> {
        check_size(entries)?;
        let cq = self.queues.get_mut(id.0 as usize).ok_or(CqError::Unknown(id))?;
        if cq.len > entries {
            return Err(CqError::TooFull { waiting: cq.len, wanted: entries });
        }
        let mut fresh = Cq { overrun: cq.overrun, dirty: cq.dirty, notice: cq.notice, ..Cq::new(entries) };
        while let Some(completion) = cq.pop() {
            fresh.push(completion);
        }
        *cq = fresh;
        Ok(())
    }

    /// Removes a queue. The caller knows that no QP uses it.
    pub fn destroy(&mut self, id: CqId) -> Result<(), CqError> {
        self.queues.try_remove(id.0 as usize).ok_or(CqError::Unknown(id))?;
        self.dirty.retain(|d| *d != id);
        Ok(())
    }

    /// Whether the queue exists.
    pub fn contains(&self, id: CqId) -> bool {
        self.queues.contains(id.0 as usize)
    }

    /// Completions that wait in the queue.
    pub fn len(&self, id: CqId) -> u32 {
        self.queues.get(id.0 as usize).map_or(0, |cq| cq.len)
    }

    /// Whether nothing waits in the queue.
    pub fn is_empty(&self, id: CqId) -> bool {
        self.len(id) == 0
    }

    /// Adds a completion; `solicited` if the peer asked for the receiver's attention. A queue that overruns makes one
    /// [`Event::CqErr`] and is dead from then on (IBTA 11.6.3.1).
    pub(super) fn push(&mut self, id: CqId, completion: Completion, solicited: bool, events: &mut VecDeque<Event>) {
        let Some(cq) = self.queues.get_mut(id.0 as usize) else { return };
        if cq.overrun {
            return;
        }
        if !cq.push(completion) {
            cq.overrun = true;
            events.push_back(Event::CqErr(id));
            return;
        }
        cq.notice.any = true;
        cq.notice.solicited |= solicited || !completion.status.is_success();
        if !cq.dirty {
            cq.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Takes the oldest completion of the queue.
    pub fn pop(&mut self, id: CqId) -> Option<Completion> {
        self.queues.get_mut(id.0 as usize)?.pop()
    }

    /// Takes completions of the queue, oldest first, as many as there are and fit; says how many.
    pub fn poll(&mut self, id: CqId, out: &mut [Completion]) -> usize {
        let Some(cq) = self.queues.get_mut(id.0 as usize) else { return 0 };
        let mut n = 0;
        for slot in out {
            let Some(completion) = cq.pop() else { break };
            *slot = completion;
            n += 1;
        }
        n
    }

    /// The next queue to which something was added since it was last returned here, and what.
    pub fn poll_dirty(&mut self) -> Option<(CqId, Notice)> {
        let id = self.dirty.pop_front()?;
        let cq = self.queues.get_mut(id.0 as usize)?;
        cq.dirty = false;
        Some((id, core::mem::take(&mut cq.notice)))
    }
}

fn check_size(entries: u32) -> Result<(), CqError> {
    if (1..=Completions::MAX_ENTRIES).contains(&entries) { Ok(()) } else { Err(CqError::Size(entries)) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::transport::WcStatus;

    fn completion(wr_id: u64) -> Completion {
        Completion { wr_id, ..Completion::default() }
    }

    #[test]
    fn keeps_order_around_the_ring_and_tells_dirt_once() {
        let (mut cqs, mut events) = (Completions::new(), VecDeque::new());
        let id = cqs.create(3).unwrap();
        for round in 0..5 {
            cqs.push(id, completion(round), false, &mut events);
            cqs.push(id, completion(round + 100), true, &mut events);
            assert_eq!(cqs.poll_dirty(), Some((id, Notice { any: true, solicited: true })));
            assert_eq!(cqs.poll_dirty(), None);
            assert_eq!(cqs.pop(id).unwrap().wr_id, round);
            let mut out = [Completion::default(); 4];
            assert_eq!(cqs.poll(id, &mut out), 1);
            assert_eq!(out[0].wr_id, round + 100);
        }
        assert!(events.is_empty());
    }

    #[test]
    fn an_error_counts_as_solicited() {
        let (mut cqs, mut events) = (Completions::new(), VecDeque::new());
        let id = cqs.create(2).unwrap();
        cqs.push(id, completion(1), false, &mut events);
        assert_eq!(cqs.poll_dirty(), Some((id, Notice { any: true, solicited: false })));
        cqs.push(id, Completion { status: WcStatus::WrFlush, ..completion(2) }, false, &mut events);
        assert_eq!(cqs.poll_dirty(), Some((id, Notice { any: true, solicited: true })));
    }

    #[test]
    fn an_overrun_is_told_once_and_kills_the_queue() {
        let (mut cqs, mut events) = (Completions::new(), VecDeque::new());
        let id = cqs.create(1).unwrap();
        for n in 0..3 {
            cqs.push(id, completion(n), false, &mut events);
        }
        assert_eq!(events, [Event::CqErr(id)]);
        assert_eq!(cqs.pop(id).unwrap().wr_id, 0);
        cqs.push(id, completion(9), false, &mut events);
        assert!(cqs.is_empty(id));
    }

    #[test]
    fn resize_keeps_what_waits() {
        let (mut cqs, mut events) = (Completions::new(), VecDeque::new());
        let id = cqs.create(2).unwrap();
        cqs.push(id, completion(1), false, &mut events);
        cqs.push(id, completion(2), false, &mut events);
        assert_eq!(cqs.resize(id, 1), Err(CqError::TooFull { waiting: 2, wanted: 1 }));
        cqs.resize(id, 3).unwrap();
        cqs.push(id, completion(3), false, &mut events);
        assert_eq!([1, 2, 3].map(|_| cqs.pop(id).unwrap().wr_id), [1, 2, 3]);
        assert_eq!(cqs.create(0), Err(CqError::Size(0)));
        cqs.destroy(id).unwrap();
        assert_eq!(cqs.destroy(id), Err(CqError::Unknown(id)));
    }
}
