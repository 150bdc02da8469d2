//! Memory of another process, reached by `process_vm_readv(2)` and `process_vm_writev(2)`.
//!
//! For clients whose memory cannot be shared. The kernel checks at every call that this daemon may (`ptrace(2)`, access mode
//! `PTRACE_MODE_ATTACH_REALCREDS`): so across user ids only with CAP_SYS_PTRACE, and under Yama's `ptrace_scope` 1 only if the
//! client names the daemon by `prctl(PR_SET_PTRACER)`.
//!
//! The calls take a process id, and ids are used again. A [`Process`] therefore holds a pidfd of the peer of the Unix socket,
//! and a process that the pidfd shows alive *after* a call had its id all along. For a read that is proof. A write
//! is checked before as well; what remains is a process that exits, is reaped, and has its id taken by another process that
//! this daemon may trace, within the microsecond before the call.
//!
//! # Whom to trust with it
//! Two things the kernel does not guard against, so [`Process::of_peer`] asks for a [`Trust`]:
//! - With CAP_SYS_PTRACE the daemon may write to a set-user-id program that the client has executed since.
//! - A client whose pages are served by its own userfaultfd or FUSE server decides how long a call takes.
//!
//! A client under the daemon's own user id gains nothing by either: it may trace the daemon itself. Strangers share memfds.

use core::ptr;
use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Arc,
};

use super::{MemoryError, Unreachable};

/// Spans that one system call moves: more than the 32 elements of a scatter/gather list.
const SPANS_PER_CALL: usize = 64;

/// `SO_PEERPIDFD` (Linux 6.5), which the libc crate does not know for all targets.
const SO_PEERPIDFD: libc::c_int = 77;

/// Which peers' memory may be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Those that the kernel lets an ordinary process reach: of the daemon's own user id. If the daemon holds CAP_SYS_PTRACE,
    /// so that the kernel would refuse nothing, only root's.
    AsTheKernelDoes,
    /// Also this one, for whose user the operator vouches.
    Vouched,
}

/// A process, identified for as long as this lives.
#[derive(Debug)]
pub struct Process {
    pid: libc::pid_t,
    pidfd: OwnedFd,
}

impl Process {
    /// The process at the other end of a connected Unix socket, as it was when it connected.
    ///
    /// Kernels before 6.5 only tell the peer's id, which may have been used again if the peer has gone by now: attach while
    /// the peer waits for an answer.
    pub fn of_peer(socket: BorrowedFd<'_>, trust: Trust) -> Result<Self, MemoryError> {
        let credentials = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)
            .map_err(|errno| MemoryError::Os { call: "getsockopt(SO_PEERCRED)", source: errno.into() })?;
        let uid = credentials.uid();
        if trust == Trust::AsTheKernelDoes && uid != 0 && may_trace_anyone() {
            return Err(MemoryError::TooPrivileged { uid });
        }
        match peer_pidfd(socket) {
            Some(pidfd) => Ok(Self { pid: credentials.pid(), pidfd }),
            None => Self::open(credentials.pid()),
        }
    }

    /// The process that has this id now.
    pub fn open(pid: i32) -> Result<Self, MemoryError> {
        // SAFETY: pidfd_open takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let Some(fd) = libc::c_int::try_from(fd).ok().filter(|fd| *fd >= 0) else {
            return Err(MemoryError::last_os("pidfd_open"));
        };
        // SAFETY: a new descriptor that nobody else knows.
        Ok(Self { pid, pidfd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// The process's id.
    pub const fn pid(&self) -> i32 {
        self.pid
    }

    /// Becomes readable when the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether it has not exited: then its id is still its own.
    pub fn is_alive(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: one valid pollfd, which the call only uses while it runs.
            match unsafe { libc::poll(&raw mut poll, 1, 0) } {
                0 => return true,
                -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
    }
}

/// Not to know counts as yes.
fn may_trace_anyone() -> bool {
    caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_PTRACE).unwrap_or(true)
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is one int, and `size` says so; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast::<libc::c_void>(),
            &raw mut size,
        )
    };
    if result != 0 || fd < 0 {
        return None;
    }
    // SAFETY: a new descriptor, which the kernel made for this call.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A range of a process's memory that starts at `address`; the region says how long it is.
#[derive(Clone, Debug)]
pub struct ProcessMemory {
    process: Arc<Process>,
    address: u64,
}

impl ProcessMemory {
    /// Memory of `process` from `address` on.
    pub const fn new(process: Arc<Process>, address: u64) -> Self {
        Self { process, address }
    }

    /// The process.
    pub const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// First address, in the process.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Reads the first and the last byte, so that a registration fails with a reason and not the first transfer.
    pub(super) fn probe(&self, length: u64) -> Result<(), Unreachable> {
        let mut bytes = [0_u8; 2];
        let span = |address, offset| Span { address, offset, len: 1, region: 0, key: 0 };
        let spans = [span(self.address, 0), span(self.address.saturating_add(length.saturating_sub(1)), 1)];
        read(&self.process, &spans, &mut bytes).map_err(|(_, cause)| cause)
    }
}

/// One contiguous transfer: `len` bytes at `address` of the process, at `offset` of our buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) offset: usize,
    pub(super) len: usize,
    /// The region it belongs to, to tell who failed.
    pub(super) region: u32,
    pub(super) key: u32,
}

/// Reads all spans into `buffer`, in order. The error names the span that failed.
pub(super) fn read(process: &Process, spans: &[Span], buffer: &mut [u8]) -> Result<(), (usize, Unreachable)> {
    if let Some(bad) = first_outside(spans, buffer.len()) {
        return Err((bad, Unreachable::Unmapped));
    }
    // SAFETY: every span's local side lies in `buffer`, which is ours to write.
    let moved = unsafe { transfer(process, Direction::Read, buffer.as_mut_ptr(), spans) };
    // Alive after the last byte: it was this process that the bytes came from.
    if process.is_alive() { moved } else { Err((0, Unreachable::Exited)) }
}

/// Writes all spans from `buffer`, in order. The error names the span that failed; those before it are written.
pub(super) fn write(process: &Process, spans: &[Span], buffer: &[u8]) -> Result<(), (usize, Unreachable)> {
    if let Some(bad) = first_outside(spans, buffer.len()) {
        return Err((bad, Unreachable::Unmapped));
    }
    if !process.is_alive() {
        return Err((0, Unreachable::Exited));
    }
    // SAFETY: every span's local side lies in `buffer`, and a write only reads from it.
    let moved = unsafe { transfer(process, Direction::Write, buffer.as_ptr().cast_mut(), spans) };
    if process.is_alive() { moved } else { Err((0, Unreachable::Exited)) }
}

/// Moves `len` bytes between one range of the process and memory at `local`.
///
/// # Safety
/// `local` must be valid for `len` bytes: for writes if `direction` is `Read`, else for reads. Others may access it meanwhile.
pub(super) unsafe fn transfer_raw(
    process: &Process,
    direction: Direction,
    local: *mut u8,
    address: u64,
    len: usize,
) -> Result<(), Unreachable> {
    if direction == Direction::Write && !process.is_alive() {
        return Err(Unreachable::Exited);
    }
    let span = Span { address, offset: 0, len, region: 0, key: 0 };
    // SAFETY: the caller promises what the one span needs.
    let moved = unsafe { transfer(process, direction, local, &[span]) };
    if process.is_alive() { moved.map_err(|(_, cause)| cause) } else { Err(Unreachable::Exited) }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// From the process to us.
    Read,
    /// From us to the process.
    Write,
}

fn first_outside(spans: &[Span], buffer: usize) -> Option<usize> {
    spans.iter().position(|span| span.offset.checked_add(span.len).is_none_or(|end| end > buffer))
}

/// # Safety
/// For each span, `base + offset` must be valid for `len` bytes: for writes if `direction` is `Read`, else for reads.
unsafe fn transfer(
    process: &Process,
    direction: Direction,
    base: *mut u8,
    spans: &[Span],
) -> Result<(), (usize, Unreachable)> {
    let mut first = 0; // first span that is not done
    let mut done = 0; // bytes of it that are
    while first < spans.len() {
        let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let (mut local, mut remote) = ([none; SPANS_PER_CALL], [none; SPANS_PER_CALL]);
        let mut count = 0;
        for (span, (ours, theirs)) in spans.iter().skip(first).zip(local.iter_mut().zip(&mut remote)) {
            let skip = if count == 0 { done } else { 0 };
            let iov_len = span.len - skip;
            *ours = libc::iovec { iov_base: base.wrapping_add(span.offset + skip).cast(), iov_len };
            let there = usize::try_from(span.address).map_err(|_| (first + count, Unreachable::Unmapped))?;
            *theirs = libc::iovec { iov_base: ptr::without_provenance_mut(there.wrapping_add(skip)), iov_len };
            count += 1;
        }
        let call = match direction {
            Direction::Read => libc::process_vm_readv,
            Direction::Write => libc::process_vm_writev,
        };
        let vectors = count as libc::c_ulong;
        // SAFETY: `count` entries of both arrays are set; the local ones are valid by the caller's promise. Remote addresses are
        // the kernel's to judge.
        let moved = unsafe { call(process.pid, local.as_ptr(), vectors, remote.as_ptr(), vectors, 0) };
        let Ok(mut moved) = usize::try_from(moved) else {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            if errno == libc::EINTR {
                continue;
            }
            return Err((first, Unreachable::from_errno(errno)));
        };
        let before = (first, done);
        while let Some(span) = spans.get(first).filter(|span| moved >= span.len - done) {
            moved -= span.len - done;
            (first, done) = (first + 1, 0);
        }
        done += moved;
        if (first, done) == before {
            return Err((first, Unreachable::Unmapped));
        }
    }
    Ok(())
}
