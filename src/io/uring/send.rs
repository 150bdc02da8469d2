//! Sending by io_uring: all messages of a call, on whatever sockets, in one system call.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, opcode, squeue, types};

use crate::io::outgoing::MAX_MESSAGES;
use crate::io::sender::{Submit, Syscalls};

/// Sends by a ring. Should the ring ever break, it goes on by plain system calls.
pub(crate) struct RingSubmit {
    ring: Option<IoUring>,
}

impl RingSubmit {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { ring: Some(super::ring(MAX_MESSAGES as u32)?) })
    }
}

impl Submit for RingSubmit {
    unsafe fn submit(&mut self, fds: &[RawFd], headers: &mut [libc::mmsghdr]) -> (usize, Option<i32>) {
        let Some(ring) = &mut self.ring else {
            // SAFETY: the caller's promise is the same.
            return unsafe { Syscalls.submit(fds, headers) };
        };
        let count = fds.len().min(headers.len()).min(MAX_MESSAGES);
        for (i, (fd, header)) in fds.iter().zip(headers.iter()).take(count).enumerate() {
            // Linked: none is sent after one that failed. Not to wait: a full socket says EAGAIN at once, so nothing stays
            // behind in the kernel.
            let entry = opcode::SendMsg::new(types::Fd(*fd), &raw const header.msg_hdr)
                .flags(libc::MSG_DONTWAIT as u32)
                .build()
                .user_data(i as u64);
            let entry = if i + 1 < count { entry.flags(squeue::Flags::IO_LINK) } else { entry };
            // SAFETY: the header and what it points to are readable until the completion, which `complete` waits for.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                // The queue has room for MAX_MESSAGES and is empty between calls.
                break;
            }
        }
        let outcome = complete(ring, count);
        match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                self.ring = None;
                (0, Some(error.raw_os_error().unwrap_or(libc::EIO)))
            }
        }
    }
}

/// Submits all that is queued and waits for the completion of each.
///
/// An error means that the ring is to be dropped; none of its requests is under way then.
fn complete(ring: &mut IoUring, count: usize) -> io::Result<(usize, Option<i32>)> {
    let (mut completed, mut done, mut failed) = (0, 0, None);
    while completed < count {
        let left_before = ring.submission().len();
        match ring.submit_and_wait(count - completed) {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            // Nothing was taken, so nothing is under way.
            Err(e) if completed == 0 && left_before == count && ring.submission().len() == count => return Err(e),
            // Something is under way and must be waited for; the kernel is short of memory for the rest.
            Err(_) => std::thread::yield_now(),
        }
        for entry in ring.completion() {
            completed += 1;
            match entry.result() {
                0.. => done += 1,
                // Behind one that failed.
                error if error == -libc::ECANCELED => {}
                error => failed = Some(-error),
            }
        }
    }
    Ok((done, failed))
}
