//! Waiting for the pipes that the daemon writes.

use super::Error;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// What waiting for a pipe came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readable {
    /// There is something.
    Yes,
    /// Nothing came in time.
    No,
    /// The daemon is gone, and everything that it wrote is read.
    Closed,
}

/// Waits until there is something to read, at most so long, without a timeout for ever.
pub(super) fn wait_readable(pipe: &OwnedFd, timeout: Option<Duration>) -> Result<Readable, Error> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Rounded up: `poll` counts milliseconds, and must not spin through the last one.
        let left = left.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, left) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::errno_system("wait for an event")(errno)),
            Ok(0) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
            Ok(0) => return Ok(Readable::No),
            Ok(_) if fds[0].revents().is_some_and(|flags| flags.contains(PollFlags::POLLIN)) => {
                return Ok(Readable::Yes);
            }
            Ok(_) => return Ok(Readable::Closed),
        }
    }
}

/// Reads one record, which the daemon has written at once. False if the daemon is gone.
pub(super) fn read_whole(pipe: &OwnedFd, record: &mut [u8]) -> Result<bool, Error> {
    loop {
        match nix::unistd::read(pipe, record) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::errno_system("read an event")(errno)),
            Ok(n) => return Ok(n == record.len()),
        }
    }
}

/// Whether the other end of a socket is closed, without waiting.
pub(super) fn hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0].revents().is_some_and(|flags| flags.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
}
