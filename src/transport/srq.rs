//! Shared receive queues (IBTA 10.2.9.3): receives that many queue pairs draw from.

use super::receive_queue::{ReceiveQueue, Taken};
use super::{Event, PostError, QpCapabilities, RecvRequest};
use crate::memory::{PdId, Sge};
use slab::Slab;
use std::collections::VecDeque;

/// Names a shared receive queue of one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SrqId(pub u32);

/// Why a shared receive queue could not be made, changed or used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SrqError {
    /// There is no such queue.
    #[error("no shared receive queue {0:?}")]
    Unknown(SrqId),
    /// Sizes out of range.
    #[error("{max_wr} requests of {max_sge} entries; allowed are 1 to {wr} of 1 to {sge}", wr = QpCapabilities::MAX_WR, sge = QpCapabilities::MAX_SGE)]
    Size {
        /// Requests asked for.
        max_wr: u32,
        /// Entries asked for.
        max_sge: u32,
    },
    /// A limit above the queue's size can never be armed.
    #[error("a limit of {limit} on a queue of {capacity}")]
    Limit {
        /// The limit asked for.
        limit: u32,
        /// Requests that fit.
        capacity: u32,
    },
    /// The request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
}

#[derive(Debug)]
struct Srq {
    pd: PdId,
    queue: ReceiveQueue,
    /// Armed if not 0: fewer waiting than this make an event, once.
    limit: u32,
}

/// The shared receive queues of one engine.
#[derive(Debug, Default)]
pub struct SharedReceiveQueues {
    queues: Slab<Srq>,
}

impl SharedReceiveQueues {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a queue of `max_wr` requests with up to `max_sge` entries; its memory is that of `pd`.
    pub fn create(&mut self, pd: PdId, max_wr: u32, max_sge: u32) -> Result<SrqId, SrqError> {
        if !(1..=QpCapabilities::MAX_WR).contains(&max_wr) || !(1..=QpCapabilities::MAX_SGE).contains(&max_sge) {
            return Err(SrqError::Size { max_wr, max_sge });
        }
        let queue = ReceiveQueue::new(max_wr, max_sge);
        Ok(SrqId(self.queues.insert(Srq { pd, queue, limit: 0 }) as u32))
    }

    /// Arms the limit: once fewer than `limit` receives wait, [`Event::SrqLimitReached`] comes, once. 0 disarms.
    pub fn set_limit(&mut self, id: SrqId, limit: u32) -> Result<(), SrqError> {
        let srq = self.get_mut(id)?;
        let capacity = srq.queue.capacity();
        if limit > capacity {
            return Err(SrqError::Limit { limit, capacity });
        }
        srq.limit = limit;
        Ok(())
    }

    /// The limit that is armed, 0 if none.
    pub fn limit(&self, id: SrqId) -> Result<u32, SrqError> {
        self.queues.get(id.0 as usize).map(|s| s.limit).ok_or(SrqError::Unknown(id))
    }

    /// Receives that wait.
    pub fn len(&self, id: SrqId) -> u32 {
        self.queues.get(id.0 as usize).map_or(0, |s| s.queue.len())
    }

    /// Receives that wait, and those that a queue pair has taken and not yet completed.
    pub fn in_use(&self, id: SrqId) -> u32 {
        self.queues.get(id.0 as usize).map_or(0, |s| s.queue.in_use())
    }

    /// Whether no receive waits.
    pub fn is_empty(&self, id: SrqId) -> bool {
        self.len(id) == 0
    }

    /// Whether the queue exists.
    pub fn contains(&self, id: SrqId) -> bool {
        self.queues.contains(id.0 as usize)
    }

    /// Posts a receive.
    pub fn post(&mut self, id: SrqId, request: &RecvRequest<'_>) -> Result<(), SrqError> {
        Ok(self.get_mut(id)?.queue.post(request)?)
    }

    /// Removes a queue with all that waits in it. The caller knows that no QP uses it.
    pub fn destroy(&mut self, id: SrqId) -> Result<(), SrqError> {
        self.queues.try_remove(id.0 as usize).map(drop).ok_or(SrqError::Unknown(id))
    }

    pub(super) fn take(&mut self, id: SrqId, events: &mut VecDeque<Event>) -> Option<Taken> {
        let srq = self.queues.get_mut(id.0 as usize)?;
        let taken = srq.queue.take()?;
        if srq.queue.len() < srq.limit {
            srq.limit = 0;
            events.push_back(Event::SrqLimitReached(id));
        }
        Some(taken)
    }

    pub(super) fn sges(&self, id: SrqId, taken: Taken) -> Option<(PdId, &[Sge])> {
        self.queues.get(id.0 as usize).map(|srq| (srq.pd, srq.queue.sges(taken)))
    }

    pub(super) fn release(&mut self, id: SrqId, taken: Taken) {
        if let Some(srq) = self.queues.get_mut(id.0 as usize) {
            srq.queue.release(taken);
        }
    }

    fn get_mut(&mut self, id: SrqId) -> Result<&mut Srq, SrqError> {
        self.queues.get_mut(id.0 as usize).ok_or(SrqError::Unknown(id))
    }
}
