//! Shared receive queues.

use super::context::{lock, single, unexpected};
use super::memory::{Pd, PdInner};
use super::retired::Half;
use super::send::Producer;
use super::{Error, PostError, RecvRequest};
use crate::ipc::protocol::{Call, Handle, Reply};
use crate::ipc::shm::Area;
use std::sync::{Arc, Mutex};

/// A shared receive queue: `ibv_srq`. Many queue pairs take their receives from it. Cheap to clone; any thread may post.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    pub(super) inner: Arc<SrqInner>,
}

#[derive(Debug)]
pub(super) struct SrqInner {
    pd: Arc<PdInner>,
    pub(super) handle: Handle,
    area: Arc<Area>,
    capacity: u32,
    max_sge: u32,
    queue: Mutex<Producer>,
}

impl SharedReceiveQueue {
    pub(super) fn create(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self, Error> {
        let context = &pd.inner.context;
        let _handles = lock(&context.handles);
        let call = Call::CreateSharedReceiveQueue { pd: pd.inner.handle, max_wr, max_sge, limit: 0 };
        let (handle, geometry, area) = match context.call(call, &[])? {
            (Reply::SharedReceiveQueue { srq, queue, area, area_bytes }, fds) => {
                (srq, queue, context.queue_area(area, area_bytes, &single(fds)?)?)
            }
            (other, _) => return Err(unexpected(&other)),
        };
        context.retired.set(handle, Half::Receive, 0);
        let queue = Mutex::new(Producer::new(geometry, Half::Receive));
        let pd = Arc::clone(&pd.inner);
        Ok(Self { inner: Arc::new(SrqInner { pd, handle, area, capacity: geometry.depth, max_sge, queue }) })
    }

    /// Its handle, by which [events](super::AsyncEvent) name it.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Requests that it holds.
    pub fn capacity(&self) -> u32 {
        self.inner.capacity
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The queue is full, or there are too many entries.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let SrqInner { pd, handle, area, max_sge, queue, .. } = &*self.inner;
        let mut queue = lock(queue);
        queue.push_receive(&pd.context, *handle, area, *max_sge, request)?;
        queue.publish(&pd.context, *handle, area);
        Ok(())
    }

    /// Arms the limit: an event comes, once, when fewer than `limit` receives wait. 0 disarms.
    ///
    /// # Errors
    /// A limit above the capacity, or the daemon is gone.
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        let call = Call::ModifySharedReceiveQueue { srq: self.inner.handle, limit };
        self.inner.pd.context.call(call, &[]).map(drop)
    }

    /// The limit that is armed, 0 if none.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn limit(&self) -> Result<u32, Error> {
        match self.inner.pd.context.call(Call::QuerySharedReceiveQueue { srq: self.inner.handle }, &[])? {
            (Reply::SharedReceiveQueueState { limit }, _) => Ok(limit),
            (other, _) => Err(unexpected(&other)),
        }
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let _handles = lock(&self.pd.context.handles);
        self.pd.context.call_quietly(Call::DestroySharedReceiveQueue { srq: self.handle });
    }
}
