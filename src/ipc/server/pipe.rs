//! Pipes on which clients wait for events.

use crate::ipc::protocol::Refusal;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::os::fd::OwnedFd;

/// The daemon's end of a pipe: it never waits.
///
/// A pipe and not an `eventfd`, because its two ends have flags of their own: whatever the client does to its end, writing to ours
/// does not block.
#[derive(Debug)]
pub(super) struct EventPipe {
    write_end: OwnedFd,
    capacity_bytes: usize,
}

/// What became of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Written {
    /// The client can read it.
    Yes,
    /// The client has let so many events lie that the pipe is full.
    Full,
    /// The client has closed its end.
    Closed,
}

impl EventPipe {
    /// A pipe of about `bytes` bytes (what the kernel grants), and the end for the client, on which reads wait.
    pub(super) fn new(bytes: i32) -> Result<(Self, OwnedFd), Refusal> {
        let refuse = |errno: Errno| Refusal::system("make a pipe for events", &errno.into());
        let (read_end, write_end) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(refuse)?;
        fcntl(&write_end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(refuse)?;
        // A user who has many pipes gets smaller ones: then it is as large as it is.
        let _ = fcntl(&write_end, FcntlArg::F_SETPIPE_SZ(bytes));
        let capacity = fcntl(&write_end, FcntlArg::F_GETPIPE_SZ).map_err(refuse)?;
        Ok((Self { write_end, capacity_bytes: usize::try_from(capacity).unwrap_or(0) }, read_end))
    }

    /// Bytes that fit while nobody reads.
    pub(super) const fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Writes one event, which is whole or not there at all (it is shorter than `PIPE_BUF`).
    pub(super) fn write(&self, event: &[u8]) -> Written {
        loop {
            match nix::unistd::write(&self.write_end, event) {
                Ok(_) => return Written::Yes,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Written::Full,
                Err(_) => return Written::Closed,
            }
        }
    }
}
