//! Receiving by io_uring: one request that goes on for ever and puts messages into buffers that we give back.
//!
//! A look into the completion queue tells without a system call that nothing has come: for a worker that polls.

use core::mem;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::types::{BufRingEntry, CancelBuilder, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::io::mailbox::{BUFFER_BYTES, Message};

const GROUP: u16 = 0;
/// The request that does nothing.
const WAKE: u64 = 1;
const HEADER_BYTES: usize = 16;
const NAME_BYTES: usize = mem::size_of::<libc::sockaddr_storage>();
const CONTROL_BYTES: usize = 128;
/// What the kernel puts before the payload: its header, name and control messages.
const PREFIX_BYTES: usize = HEADER_BYTES + NAME_BYTES + CONTROL_BYTES;
/// Whole pages, so that each buffer starts a page.
const STRIDE: usize = (PREFIX_BYTES + BUFFER_BYTES).next_multiple_of(PAGE);
const PAGE: usize = 4096;

/// Buffers for one socket, which the kernel fills as messages come.
pub(crate) struct RingInbox {
    /// Closed before the buffers are unmapped: fields are dropped in order.
    ring: IoUring,
    buffers: Buffers,
    is_armed: bool,
    /// The buffer whose message was given out last.
    held: Option<u16>,
}

impl RingInbox {
    /// Buffers for `batch` messages (made a power of two).
    ///
    /// The request is made by the thread that first asks for a message, for the kernel delivers by way of that thread. To make
    /// it ask, the ring is readable at once.
    pub(crate) fn new(batch: usize) -> io::Result<Self> {
        let count = batch.clamp(1, 1024).next_power_of_two() as u16;
        let ring = super::ring(u32::from(count))?;
        let buffers = Buffers::new(count)?;
        // SAFETY: the entries are mapped and stay so until `Drop` has cancelled what uses them, or for ever.
        unsafe { ring.submitter().register_buf_ring_with_flags(buffers.map.as_ptr() as u64, count, GROUP, 0)? };
        let mut inbox = Self { ring, buffers, is_armed: false, held: None };
        inbox.request(&opcode::Nop::new().build().user_data(WAKE))?;
        Ok(inbox)
    }

    /// Readable when messages have come.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor lives as long as the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// The next message; `None` when there is none.
    pub(crate) fn next(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<Message<'_>>> {
        if let Some(buffer) = self.held.take() {
            self.buffers.give(buffer);
        }
        if !self.is_armed {
            self.arm(socket)?;
        }
        let Some((length, flags)) = self.completion(socket)? else { return Ok(None) };
        let Some(buffer) = cqueue::buffer_select(flags) else { return Ok(None) };
        self.held = Some(buffer);
        Ok(message(self.buffers.bytes(buffer, length)))
    }

    /// Asks the kernel for messages, until it says that it stops.
    fn arm(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let template = core::ptr::from_ref(self.buffers.template());
        let request = opcode::RecvMsgMulti::new(Fd(socket.as_raw_fd()), template, GROUP).build();
        self.is_armed = true;
        self.request(&request)
    }

    fn request(&mut self, request: &squeue::Entry) -> io::Result<()> {
        // SAFETY: template and buffers, which a request refers to, live until `Drop` has cancelled it, or for ever.
        unsafe { self.ring.submission().push(request) }.map_err(|_| io::ErrorKind::WouldBlock)?;
        self.enter()
    }

    /// Length and flags of the next message.
    fn completion(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<(usize, u32)>> {
        loop {
            let Some(entry) = self.peek()? else { return Ok(None) };
            if entry.user_data() == WAKE {
                continue;
            }
            if !cqueue::more(entry.flags()) {
                self.is_armed = false;
            }
            match entry.result() {
                length @ 0.. => return Ok(Some((length as usize, entry.flags()))),
                // The buffers were all in use (they are not now), or the thread that asked is gone: ask again.
                error if matches!(-error, libc::ENOBUFS | libc::ECANCELED | libc::EINTR) => self.arm(socket)?,
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
        }
    }

    fn peek(&mut self) -> io::Result<Option<cqueue::Entry>> {
        if let Some(entry) = self.ring.completion().next() {
            return Ok(Some(entry));
        }
        // Messages that came are put into buffers when this thread next enters the kernel.
        if self.ring.submission().taskrun() || self.ring.submission().cq_overflow() {
            self.enter()?;
        }
        Ok(self.ring.completion().next())
    }

    fn enter(&mut self) -> io::Result<()> {
        match self.ring.submit() {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(e),
            _ => Ok(()),
        }
    }
}

impl Drop for RingInbox {
    fn drop(&mut self) {
        let cancelled = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
        let is_idle = match cancelled {
            Ok(()) => true,
            // Nothing was under way.
            Err(e) => e.raw_os_error() == Some(libc::ENOENT),
        };
        if !is_idle {
            // The kernel may still write into the buffers and read the template: they must not be used for anything else.
            self.buffers.leak();
        }
    }
}

/// What is in a buffer: `struct io_uring_recvmsg_out` (lengths of name, control messages and payload; flags), then name and
/// control messages, each with all the room that the request gave them, then the payload.
fn message(buffer: &[u8]) -> Option<Message<'_>> {
    let (header, rest) = buffer.split_first_chunk::<HEADER_BYTES>()?;
    let word = |i: usize| header.get(4 * i..)?.first_chunk().map(|word| u32::from_ne_bytes(*word));
    let (control_bytes, payload_bytes, flags) = (word(1)? as usize, word(2)? as usize, word(3)?);
    let (name, rest) = rest.split_at_checked(NAME_BYTES)?;
    let (control, payload) = rest.split_at_checked(CONTROL_BYTES)?;
    // SAFETY: NAME_BYTES bytes, for which any value is one of a sockaddr_storage; buffers start at a page, so that behind the
    // header it is aligned.
    let name = unsafe { &*name.as_ptr().cast::<libc::sockaddr_storage>() };
    Some(Message {
        bytes: payload,
        control: control.get(..control_bytes).unwrap_or(control),
        name,
        is_truncated: flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) as u32 != 0 || payload_bytes > payload.len(),
    })
}

/// A page-aligned mapping of all that the kernel may use at any time: the ring of free buffers, a page with the request's
/// message header, the buffers.
struct Buffers {
    map: NonNull<u8>,
    map_bytes: usize,
    count: u16,
    /// Buffers given so far.
    tail: u16,
}

// SAFETY: the pointer is to a mapping that the value owns.
unsafe impl Send for Buffers {}

impl Buffers {
    fn new(count: u16) -> io::Result<Self> {
        let map_bytes = Self::ring_bytes(count) + PAGE + usize::from(count) * STRIDE;
        let length = NonZeroUsize::new(map_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh anonymous mapping at an address that the kernel chooses.
        let map = unsafe {
            mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)?
        };
        let mut buffers = Self { map: map.cast(), map_bytes, count, tail: 0 };
        // SAFETY: all zeroes is a valid value of this C struct.
        let mut template: libc::msghdr = unsafe { mem::zeroed() };
        template.msg_namelen = NAME_BYTES as _;
        template.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: the page behind the ring is ours, aligned, and nothing refers to it yet.
        unsafe { buffers.template_start().write(template) };
        for buffer in 0..count {
            buffers.give(buffer);
        }
        Ok(buffers)
    }

    fn template_start(&self) -> *mut libc::msghdr {
        // SAFETY: within the mapping: one page behind the ring is set apart for it.
        unsafe { self.map.as_ptr().add(Self::ring_bytes(self.count)).cast() }
    }

    /// What the request says of names and control messages.
    fn template(&self) -> &libc::msghdr {
        // SAFETY: written in `new`, and only read since, by us and by the kernel.
        unsafe { &*self.template_start() }
    }

    const fn ring_bytes(count: u16) -> usize {
        (count as usize * mem::size_of::<BufRingEntry>()).next_multiple_of(PAGE)
    }

    fn start(&self, buffer: u16) -> *mut u8 {
        let offset = Self::ring_bytes(self.count) + PAGE + usize::from(buffer % self.count) * STRIDE;
        // SAFETY: within the mapping, which has room for `count` buffers behind ring and template.
        unsafe { self.map.as_ptr().add(offset) }
    }

    /// What the kernel has put into a buffer that it has handed to us.
    fn bytes(&self, buffer: u16, length: usize) -> &[u8] {
        // SAFETY: mapped and initialised (anonymous memory is zero); the kernel does not write a buffer before it is given
        // back, which takes `&mut self`.
        unsafe { core::slice::from_raw_parts(self.start(buffer), length.min(STRIDE)) }
    }

    /// Lets the kernel fill a buffer.
    fn give(&mut self, buffer: u16) {
        let slot = usize::from(self.tail & (self.count - 1));
        let base = self.map.cast::<BufRingEntry>().as_ptr();
        // SAFETY: the slot is one of `count` (a power of two) entries at the start of the mapping; the kernel reads it only
        // once the tail has passed it. The fields are set one by one, because the tail lies within the first entry.
        let entry = unsafe { &mut *base.add(slot) };
        entry.set_addr(self.start(buffer) as u64);
        entry.set_len(STRIDE as u32);
        entry.set_bid(buffer % self.count);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is a 16-bit word within the mapping, aligned; the kernel only reads it.
        unsafe { AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut()) }.store(self.tail, Ordering::Release);
    }

    fn leak(&mut self) {
        self.map_bytes = 0;
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.map_bytes > 0 {
            // SAFETY: our own mapping; whoever drops us has seen to it that the kernel uses it no more.
            let _ = unsafe { munmap(self.map.cast(), self.map_bytes) };
        }
    }
}
