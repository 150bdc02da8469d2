//! Packets and descriptors over the attach socket.

use super::{MAX_DESCRIPTORS, MAX_MESSAGE_BYTES};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors that the kernel lets a message carry (`SCM_MAX_FD`): room for all of them, so that none is cut off.
const SCM_MAX_FD: usize = 253;
/// Room for the control message that carries them, in words, which align it.
const CONTROL_WORDS: usize = 2 + (SCM_MAX_FD * size_of::<RawFd>()).div_ceil(size_of::<u64>()) + 8;

/// A message as it came out of the socket.
#[derive(Debug)]
pub struct Received {
    /// The message; empty if the other side has closed.
    pub bytes: Vec<u8>,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// Sends one message with descriptors.
///
/// # Errors
/// What the kernel says; `WouldBlock` where `flags` has `MSG_DONTWAIT` and the other side does not read.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: MsgFlags) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let (socket, flags) = (socket.as_fd().as_raw_fd(), flags | MsgFlags::MSG_NOSIGNAL);
    loop {
        match sendmsg::<()>(socket, &[IoSlice::new(bytes)], control, flags, None) {
            Err(Errno::EINTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Receives one message with its descriptors, which are closed on `exec`.
///
/// # Errors
/// What the kernel says; `InvalidData` for a message that is too long or brings too many descriptors. Those are closed.
pub fn receive(socket: impl AsFd, flags: MsgFlags) -> io::Result<Received> {
    let mut bytes = vec![0u8; MAX_MESSAGE_BYTES];
    let mut control = [0u64; CONTROL_WORDS];
    let mut buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid `msghdr`: no name, no buffers, no control.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut buffer;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let length = loop {
        // SAFETY: the header's pointers lead to `bytes` and `control`, which outlive the call, with their true lengths.
        let result = unsafe {
            libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags.bits() | libc::MSG_CMSG_CLOEXEC)
        };
        match Errno::result(result) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(length) => break usize::try_from(length).unwrap_or(0),
        }
    };
    // Whatever is wrong with the message, its descriptors are owned first: none leaks.
    let fds = descriptors(&header);
    if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 || fds.len() > MAX_DESCRIPTORS {
        let text = format!("a message of more than {MAX_MESSAGE_BYTES} bytes or {MAX_DESCRIPTORS} descriptors");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    bytes.truncate(length);
    Ok(Received { bytes, fds })
}

/// The descriptors in the control messages of a header that `recvmsg` has filled.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: `recvmsg` has set the length of the control buffer that `header` points to, which is alive and aligned.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: `next` is null or a whole control message header inside the buffer: so CMSG_FIRSTHDR and CMSG_NXTHDR promise.
    while let Some(message) = unsafe { next.as_ref() } {
        if message.cmsg_level == libc::SOL_SOCKET && message.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN only computes.
            let bytes = message.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            // SAFETY: the data follow the header inside the buffer.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<RawFd>();
            for i in 0..bytes / size_of::<RawFd>() {
                // SAFETY: the kernel wrote `bytes` bytes of descriptors there.
                let fd = unsafe { data.add(i).read_unaligned() };
                // SAFETY: the kernel made this descriptor for this message; nobody else knows it.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR; `next` came from it.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    fds
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use std::fs::File;
    use std::io::Read;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
    }

    #[test]
    fn messages_keep_their_bounds_and_bring_descriptors() {
        let (a, b) = pair();
        let (read_end, write_end) = nix::unistd::pipe().unwrap();
        send(&a, b"first", &[read_end.as_fd()], MsgFlags::empty()).unwrap();
        send(&a, b"second", &[], MsgFlags::empty()).unwrap();
        drop(read_end);
        let first = receive(&b, MsgFlags::empty()).unwrap();
        assert_eq!((first.bytes.as_slice(), first.fds.len()), (&b"first"[..], 1));
        let second = receive(&b, MsgFlags::empty()).unwrap();
        assert_eq!((second.bytes.as_slice(), second.fds.len()), (&b"second"[..], 0));
        nix::unistd::write(&write_end, b"x").unwrap();
        drop(write_end);
        let mut text = String::new();
        File::from(first.fds.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        drop(a);
        assert!(receive(&b, MsgFlags::empty()).unwrap().bytes.is_empty());
    }

    #[test]
    fn what_is_too_long_or_brings_too_much_is_refused_and_leaves_no_descriptor() {
        let (a, b) = pair();
        send(&a, &[0; MAX_MESSAGE_BYTES + 1], &[], MsgFlags::empty()).unwrap();
        assert_eq!(receive(&b, MsgFlags::empty()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        for many in [MAX_DESCRIPTORS + 1, SCM_MAX_FD] {
            let (read_end, write_end) = nix::unistd::pipe().unwrap();
            send(&a, b"x", &vec![write_end.as_fd(); many], MsgFlags::empty()).unwrap();
            drop(write_end);
            assert_eq!(receive(&b, MsgFlags::empty()).unwrap_err().kind(), io::ErrorKind::InvalidData);
            // The pipe's last writer is gone: no copy of it was left open.
            assert_eq!(nix::unistd::read(&read_end, &mut [0]), Ok(0));
        }
        assert_eq!(receive(&b, MsgFlags::MSG_DONTWAIT).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
