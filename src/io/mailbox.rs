//! The receiving half by plain system calls: buffers that `recvmmsg` fills, used again for ever.

use core::mem;
use core::ptr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Room for the largest datagram there is (a super-packet of 64 KiB with its headers).
pub(crate) const BUFFER_BYTES: usize = (64 << 10) + 512;
/// Room for a segment size, traffic class and hop limit.
const CONTROL_WORDS: usize = 16;

/// One message as the kernel gave it.
pub(crate) struct Message<'a> {
    pub(crate) bytes: &'a [u8],
    /// Control messages, whole.
    pub(crate) control: &'a [u8],
    pub(crate) name: &'a libc::sockaddr_storage,
    pub(crate) is_truncated: bool,
}

/// What one call receives at most, so that the bytes are still in the second-level cache when they are looked at (measured: a
/// packet of 4 KiB in super-packets takes 240 ns to receive with 256 KiB a call, 310 ns with 1 MiB).
const CALL_BYTES: usize = 256 << 10;
/// Fewer messages a call would not pay for the call.
const MIN_MESSAGES: usize = 2;

/// Buffers for one socket, and what of the last receive is not looked at yet.
pub(crate) struct Mailbox {
    buffers: Vec<u8>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<[u64; CONTROL_WORDS]>,
    pieces: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    next: usize,
    filled: usize,
    /// How many messages to ask for.
    wanted: usize,
}

// SAFETY: the raw pointers in `pieces` and `headers` are into the other fields' heap memory, which moves with the value and
// stays where it is.
unsafe impl Send for Mailbox {}

impl Mailbox {
    /// Buffers for `batch` messages a call.
    pub(crate) fn new(batch: usize) -> Self {
        let batch = batch.clamp(1, 1024);
        // SAFETY: all zeroes is a valid value of these C structs.
        let (name, header) = unsafe { (mem::zeroed(), mem::zeroed()) };
        let mut mailbox = Self {
            buffers: vec![0; batch * BUFFER_BYTES],
            names: vec![name; batch],
            controls: vec![[0; CONTROL_WORDS]; batch],
            pieces: vec![libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; batch],
            headers: vec![header; batch],
            next: 0,
            filled: 0,
            wanted: batch,
        };
        mailbox.arm(batch);
        mailbox
    }

    /// The next message, received if need be; `None` when there is none.
    pub(crate) fn next(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<Message<'_>>> {
        if self.next >= self.filled {
            self.fill(socket)?;
        }
        let i = self.next;
        if i >= self.filled {
            return Ok(None);
        }
        self.next += 1;
        let (Some(header), Some(name), Some(control)) = (self.headers.get(i), self.names.get(i), self.controls.get(i))
        else {
            return Ok(None);
        };
        let length = (header.msg_len as usize).min(BUFFER_BYTES);
        let start = i * BUFFER_BYTES;
        let control_bytes = header.msg_hdr.msg_controllen.min(mem::size_of_val(control));
        // SAFETY: any initialised words may be read as bytes; the length is within them.
        let control = unsafe { core::slice::from_raw_parts(control.as_ptr().cast::<u8>(), control_bytes) };
        Ok(Some(Message {
            bytes: self.buffers.get(start..start + length).unwrap_or_default(),
            control,
            name,
            is_truncated: header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }))
    }

    fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // Those that the last call did not fill are as they were: a poll in vain costs as little as it can.
        self.arm(self.filled);
        (self.next, self.filled) = (0, 0);
        // SAFETY: each header points to its own name, control and buffer, all as long as it says (`arm`), and nothing else
        // looks at them during the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.wanted.min(self.headers.len()) as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        match usize::try_from(received) {
            Ok(received) => {
                self.filled = received.min(self.headers.len());
                self.adapt();
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Asks for as many messages as fit into the cache, if they are as long as those received now.
    fn adapt(&mut self) {
        let bytes: usize = self.headers.iter().take(self.filled).map(|header| header.msg_len as usize).sum();
        let mean = (bytes / self.filled.max(1)).max(1);
        self.wanted = (CALL_BYTES / mean).max(MIN_MESSAGES);
    }

    /// Points the first headers to their buffers; the kernel overwrites the lengths of those that it fills.
    fn arm(&mut self, count: usize) {
        let slots = self.names.iter_mut().zip(&mut self.controls).zip(self.buffers.chunks_exact_mut(BUFFER_BYTES));
        for (((name, control), buffer), (piece, header)) in
            slots.zip(self.pieces.iter_mut().zip(&mut self.headers)).take(count)
        {
            *piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let message = &mut header.msg_hdr;
            message.msg_name = ptr::from_mut(name).cast();
            message.msg_namelen = mem::size_of_val(name) as _;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = mem::size_of_val(control) as _;
            message.msg_iov = piece;
            message.msg_iovlen = 1;
            message.msg_flags = 0;
        }
    }
}
