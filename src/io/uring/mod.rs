//! io_uring as a driver: the same messages on the same sockets as plain system calls.

mod receive;
mod send;

pub(crate) use receive::RingInbox;
pub(crate) use send::RingSubmit;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;

use io_uring::IoUring;

use super::sender::Submit;

/// A ring; its completions are noticed by looking, so the kernel need not interrupt anybody.
fn ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder().setup_clamp().setup_coop_taskrun().setup_taskrun_flag().build(entries)
}

/// Why io_uring cannot be used here; `None` if it can.
///
/// It may be compiled out, switched off (sysctl `kernel.io_uring_disabled`), forbidden by seccomp (containers), or too old.
pub(crate) fn obstacle() -> Option<String> {
    let ring = match ring(4) {
        Ok(ring) => ring,
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Some("it needs Linux 5.19".to_owned()),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
            return Some(format!("seccomp or the sysctl kernel.io_uring_disabled forbids it ({e})"));
        }
        Err(e) => return Some(format!("the kernel refuses a ring ({e})")),
    };
    drop(ring);
    try_it().err().map(|e| format!("messages cannot be sent and received by it, which needs Linux 6.0 ({e})"))
}

/// A message through both halves.
fn try_it() -> io::Result<()> {
    let (to, from) = UnixDatagram::pair()?;
    let mut inbox = RingInbox::new(1)?;
    if inbox.next(to.as_fd())?.is_some() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let text = b"light";
    let mut piece = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
    // SAFETY: all zeroes is a valid value of this C struct.
    let mut header: libc::mmsghdr = unsafe { core::mem::zeroed() };
    (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (&raw mut piece, 1);
    // SAFETY: the header points to `piece`, that to `text`.
    match unsafe { RingSubmit::new()?.submit(&[from.as_raw_fd()], core::slice::from_mut(&mut header)) } {
        (1, None) => {}
        (_, errno) => return Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EIO))),
    }
    match inbox.next(to.as_fd())? {
        Some(message) if message.bytes == text => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
