//! Where a worker sleeps: one epoll over all that can give it work, and a timer for the engine's next deadline.

use crate::time::Duration;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// What woke a worker, or is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    /// Packets may be received.
    Port,
    /// A blocked send may go on.
    PortWritable,
    /// The control plane, a new client, or the end.
    Wake,
    /// The engine's next deadline has come.
    Deadline,
    /// A client rang while the worker slept: its rings have work.
    Doorbell,
    /// A client's socket: a message, or its end.
    Client(u32),
    /// A client's process has ended.
    ClientExit(u32),
}

impl Ready {
    const fn token(self) -> u64 {
        match self {
            Self::Port => 1,
            Self::PortWritable => 2,
            Self::Wake => 3,
            Self::Deadline => 4,
            Self::Doorbell => 5,
            Self::Client(id) => 1 << 32 | id as u64,
            Self::ClientExit(id) => 2 << 32 | id as u64,
        }
    }

    const fn of(token: u64) -> Option<Self> {
        Some(match (token >> 32, token as u32) {
            (0, 1) => Self::Port,
            (0, 2) => Self::PortWritable,
            (0, 3) => Self::Wake,
            (0, 4) => Self::Deadline,
            (0, 5) => Self::Doorbell,
            (1, id) => Self::Client(id),
            (2, id) => Self::ClientExit(id),
            _ => return None,
        })
    }
}

/// Wakes a worker from any thread.
#[derive(Clone, Debug)]
pub(super) struct Waker(Arc<EventFd>);

impl Waker {
    /// Wakes it, or keeps it from falling asleep.
    pub(super) fn wake(&self) {
        // The only refusal of a non-blocking eventfd is "the count is full": then it is awake already.
        let _ = self.0.write(1);
    }
}

/// The epoll of one worker.
#[derive(Debug)]
pub(super) struct Waiter {
    epoll: Epoll,
    wake: Arc<EventFd>,
    timer: TimerFd,
    events: Vec<EpollEvent>,
}

const EVENTS_AT_ONCE: usize = 64;

impl Waiter {
    /// An epoll with the wake-up and the timer in it.
    ///
    /// # Errors
    /// The kernel's, if descriptors are short.
    pub(super) fn new() -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        epoll.add(wake.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, Ready::Wake.token()))?;
        epoll.add(timer.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, Ready::Deadline.token()))?;
        Ok(Self { epoll, wake, timer, events: vec![EpollEvent::empty(); EVENTS_AT_ONCE] })
    }

    /// Something with which other threads wake this worker.
    pub(super) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// Reports `ready` when `fd` becomes readable.
    ///
    /// # Errors
    /// The kernel's; `EEXIST` if it is there already.
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, ready: Ready) -> Result<(), Errno> {
        let flags = match ready {
            Ready::PortWritable => EpollFlags::EPOLLOUT,
            // Nobody reads a doorbell: only its edges tell.
            Ready::Doorbell => EpollFlags::EPOLLIN | EpollFlags::EPOLLET,
            _ => EpollFlags::EPOLLIN,
        };
        self.epoll.add(fd, EpollEvent::new(flags, ready.token()))
    }

    /// Forgets `fd`. One that is not there is no matter.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = self.epoll.delete(fd);
    }

    /// Sleeps until something is ready, or `limit` is over (`None`: no limit), and says what is ready in `out`.
    ///
    /// # Errors
    /// The kernel's. A signal is none.
    pub(super) fn sleep(&mut self, limit: Option<Duration>, out: &mut Vec<Ready>) -> Result<(), Errno> {
        match limit {
            // The timer takes zero for "never", so the shortest sleep is a nanosecond.
            Some(d) => self.timer.set(
                Expiration::OneShot(TimeSpec::from_duration(d.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::empty(),
            )?,
            None => self.timer.unset()?,
        }
        self.collect(EpollTimeout::NONE, out)
    }

    /// Says what is ready now, without sleeping.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn look(&mut self, out: &mut Vec<Ready>) -> Result<(), Errno> {
        self.collect(EpollTimeout::ZERO, out)
    }

    fn collect(&mut self, timeout: EpollTimeout, out: &mut Vec<Ready>) -> Result<(), Errno> {
        let n = match self.epoll.wait(&mut self.events, timeout) {
            Ok(n) => n,
            Err(Errno::EINTR) => 0,
            Err(e) => return Err(e),
        };
        for event in self.events.iter().take(n) {
            let Some(ready) = Ready::of(event.data()) else { continue };
            match ready {
                // Both were seen; a failed read means that another wake-up or setting took it.
                Ready::Wake => drop(self.wake.read()),
                Ready::Deadline => drop(self.timer.wait()),
                _ => {}
            }
            out.push(ready);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_round_trip() {
        for r in [
            Ready::Port,
            Ready::PortWritable,
            Ready::Wake,
            Ready::Deadline,
            Ready::Doorbell,
            Ready::Client(7),
            Ready::ClientExit(u32::MAX),
        ] {
            assert_eq!(Ready::of(r.token()), Some(r));
        }
        assert_eq!(Ready::of(0), None);
    }

    #[test]
    fn a_wake_before_the_sleep_is_not_lost_and_a_deadline_ends_it() {
        let mut w = Waiter::new().unwrap();
        let mut out = Vec::new();
        w.waker().wake();
        w.waker().wake();
        w.sleep(None, &mut out).unwrap();
        assert_eq!(out, [Ready::Wake]);
        out.clear();
        w.look(&mut out).unwrap();
        assert_eq!(out, []);
        w.sleep(Some(Duration::ZERO), &mut out).unwrap();
        assert_eq!(out, [Ready::Deadline]);
    }
}
