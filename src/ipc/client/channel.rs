//! Completion channels: sleeping until something completes.

use super::Error;
use super::context::{Context, Inner, lock, single, unexpected};
use super::cq::{CompletionQueue, CqInner};
use super::wait::{Readable, read_whole, wait_readable};
use crate::ipc::protocol::{Call, Handle, Reply};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A completion channel: `ibv_comp_channel`. Its descriptor is readable when a queue that was
/// [armed](CompletionQueue::arm) has an event. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(super) inner: Arc<ChannelInner>,
}

#[derive(Debug)]
pub(super) struct ChannelInner {
    context: Arc<Inner>,
    pub(super) handle: Handle,
    pipe: OwnedFd,
    /// One reader at a time: what `poll` has seen is still there when it reads.
    reading: Mutex<()>,
    pub(super) cqs: Mutex<HashMap<Handle, Weak<CqInner>>>,
}

impl CompletionChannel {
    pub(super) fn create(context: &Context) -> Result<Self, Error> {
        let (handle, pipe) = match context.inner.call(Call::CreateChannel, &[])? {
            (Reply::Channel { channel }, fds) => (channel, single(fds)?),
            (other, _) => return Err(unexpected(&other)),
        };
        let (context, reading, cqs) = (Arc::clone(&context.inner), Mutex::default(), Mutex::default());
        Ok(Self { inner: Arc::new(ChannelInner { context, handle, pipe, reading, cqs }) })
    }

    /// The next queue that has an event: `ibv_get_cq_event`. Waits as long as `timeout` says, without one for ever; `None` if
    /// nothing came.
    ///
    /// Then [arm](CompletionQueue::arm) the queue again, and poll it until it is empty.
    ///
    /// # Errors
    /// [`Error::DaemonGone`]; what the kernel says.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CompletionQueue>, Error> {
        let _reading = lock(&self.inner.reading);
        loop {
            match wait_readable(&self.inner.pipe, timeout)? {
                Readable::No => return Ok(None),
                Readable::Closed => return Err(Error::DaemonGone),
                Readable::Yes => {}
            }
            let mut event = [0; size_of::<Handle>()];
            if !read_whole(&self.inner.pipe, &mut event)? {
                return Err(Error::DaemonGone);
            }
            // The event of a queue that was destroyed meanwhile is nobody's.
            let cq = lock(&self.inner.cqs).get(&Handle::from_ne_bytes(event)).and_then(Weak::upgrade);
            if let Some(inner) = cq {
                let cq = CompletionQueue { inner };
                cq.heard();
                return Ok(Some(cq));
            }
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.pipe.as_fd()
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        self.context.call_quietly(Call::DestroyChannel { channel: self.handle });
    }
}
