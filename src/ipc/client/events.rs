//! Asynchronous events.

use super::Error;
use super::context::lock;
use super::wait::{Readable, read_whole, wait_readable};
use crate::ipc::abi::EventRecord;
use crate::wire::Qpn;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;
use zerocopy::FromBytes;

/// Something that no completion tells: `ibv_async_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventKind,
    /// The queue pair that it happened to, if it is one's event.
    pub qpn: Option<Qpn>,
    /// The handle of the queue pair, shared receive queue or completion queue.
    pub handle: u32,
}

/// What happened, with the values of `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u32)]
pub enum EventKind {
    /// A completion queue overran; its queue pairs are in the error state.
    CqErr = 0,
    /// A queue pair failed for a reason that no completion tells.
    QpFatal = 1,
    /// The peer sent an invalid request.
    QpReqErr = 2,
    /// The peer tried to reach memory that it must not.
    QpAccessErr = 3,
    /// The peer's first packet arrived in RTR.
    CommEst = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// The device is unusable: the daemon is gone.
    DeviceFatal = 8,
    /// The port came up.
    PortActive = 9,
    /// The port went down.
    PortErr = 10,
    /// A shared receive queue is unusable.
    SrqErr = 14,
    /// A shared receive queue ran below its limit.
    SrqLimitReached = 15,
    /// A queue pair on a shared receive queue has taken its last receive.
    QpLastWqeReached = 16,
}

impl EventKind {
    const ALL: [Self; 12] = [
        Self::CqErr,
        Self::QpFatal,
        Self::QpReqErr,
        Self::QpAccessErr,
        Self::CommEst,
        Self::SqDrained,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortErr,
        Self::SrqErr,
        Self::SrqLimitReached,
        Self::QpLastWqeReached,
    ];

    /// Whether it is a queue pair's.
    pub const fn is_of_qp(self) -> bool {
        matches!(
            self,
            Self::QpFatal
                | Self::QpReqErr
                | Self::QpAccessErr
                | Self::CommEst
                | Self::SqDrained
                | Self::QpLastWqeReached
        )
    }
}

const FATAL: AsyncEvent = AsyncEvent { kind: EventKind::DeviceFatal, qpn: None, handle: 1 };

/// The read end of the event pipe.
#[derive(Debug)]
pub(super) struct EventReader {
    pipe: OwnedFd,
    /// One reader at a time: what `poll` has seen is still there when it reads.
    reading: Mutex<()>,
}

impl EventReader {
    pub(super) fn new(pipe: OwnedFd) -> Self {
        Self { pipe, reading: Mutex::new(()) }
    }

    pub(super) fn next(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, Error> {
        let _reading = lock(&self.reading);
        match wait_readable(&self.pipe, timeout)? {
            Readable::No => return Ok(None),
            Readable::Closed => return Ok(Some(FATAL)),
            Readable::Yes => {}
        }
        let mut bytes = [0; size_of::<EventRecord>()];
        if !read_whole(&self.pipe, &mut bytes)? {
            return Ok(Some(FATAL));
        }
        let Ok(record) = EventRecord::read_from_bytes(&bytes) else { return Ok(None) };
        let known = EventKind::ALL.into_iter().find(|kind| *kind as u32 == record.kind);
        Ok(known.map(|kind| AsyncEvent {
            kind,
            qpn: kind.is_of_qp().then_some(Qpn::new(record.qpn)),
            handle: record.object,
        }))
    }
}

impl AsFd for EventReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
