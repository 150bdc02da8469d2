//! Protection domains, memory regions and windows.

use super::context::{Context, Inner, unexpected};
use super::qp::QueuePairBuilder;
use super::srq::SharedReceiveQueue;
use super::{CompletionQueue, Error};
use crate::ipc::protocol::{Call, Handle, MemorySource, Reply};
use crate::memory::{Access, Mapping, Sge};
use crate::transport::QpType;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A protection domain: `ibv_pd`. What belongs to one domain cannot be reached by queue pairs of another. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pd {
    pub(super) inner: Arc<PdInner>,
}

#[derive(Debug)]
pub(super) struct PdInner {
    pub(super) context: Arc<Inner>,
    pub(super) handle: Handle,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.context.call_quietly(Call::DeallocatePd { pd: self.handle });
    }
}

impl Pd {
    pub(super) fn allocate_in(context: &Context) -> Result<Self, Error> {
        match context.inner.call(Call::AllocatePd, &[])? {
            (Reply::Pd { pd: handle }, _) => {
                Ok(Self { inner: Arc::new(PdInner { context: Arc::clone(&context.inner), handle }) })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Makes a buffer of `len` zero bytes and registers it. Daemon and client share its pages, so payload is not copied between them.
    ///
    /// # Errors
    /// A limit, no memory, or the daemon is gone.
    pub fn allocate(&self, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let make = Error::errno_system::<nix::errno::Errno>("make shared memory");
        let fd = memfd_create("holdfast-mr", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).map_err(&make)?;
        nix::unistd::ftruncate(&fd, libc::off_t::try_from(len).unwrap_or(libc::off_t::MAX)).map_err(&make)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).map_err(&make)?;
        let shared = fd.try_clone().map_err(Error::system("make shared memory"))?;
        let buffer = Mapping::of_memfd(shared, 0, len as u64)
            .map_err(|e| Error::system("map shared memory")(std::io::Error::other(e)))?;
        let iova = buffer.as_ptr().addr().get() as u64;
        let keys = self.register_call(MemorySource::Shared { offset: 0 }, iova, len as u64, access, &[fd.as_fd()])?;
        Ok(self.region(Bytes::Own(buffer), iova, len as u64, keys))
    }

    /// Registers `len` bytes of a memfd that is sealed against shrinking, from `offset` on. Work requests and peers call them by
    /// addresses from `iova` on.
    ///
    /// # Errors
    /// The file is not sealed or too short, a limit, or the daemon is gone.
    pub fn register_memfd(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        let keys = self.register_call(MemorySource::Shared { offset }, iova, len, access, &[fd])?;
        Ok(self.region(Bytes::Elsewhere, iova, len, keys))
    }

    /// Registers `len` bytes of this process where they are. The daemon reaches them by `process_vm_readv(2)`: one copy more than
    /// with [`allocate`](Self::allocate), and atomics are atomic among queue pairs only.
    ///
    /// # Safety
    /// Until the region is dropped the daemon may read the bytes, and where `access` allows it write them, at any time. They
    /// must stay mapped, and nothing in Rust may rely on their values: no reference to them may be used that promises
    /// exclusive or unchanging access.
    ///
    /// # Errors
    /// The daemon does not offer it to this client, a limit, or the daemon is gone.
    pub unsafe fn register(&self, start: NonNull<u8>, len: usize, access: Access) -> Result<MemoryRegion, Error> {
        let address = start.addr().get() as u64;
        self.admit_daemon();
        let keys = self.register_call(MemorySource::Process { address }, address, len as u64, access, &[])?;
        Ok(self.region(Bytes::Foreign(start), address, len as u64, keys))
    }

    /// Where Yama guards `ptrace(2)`, a process must name who may reach its memory.
    fn admit_daemon(&self) {
        let pid = self.inner.context.daemon_pid();
        // SAFETY: this prctl takes a process id and touches no memory of ours. It fails where there is no Yama: then nothing
        // need be allowed.
        let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) };
    }

    fn register_call(
        &self,
        source: MemorySource,
        iova: u64,
        length: u64,
        access: Access,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(u32, u32), Error> {
        let call = Call::RegisterMemory { pd: self.inner.handle, source, iova, length, access: access.bits() };
        match self.inner.context.call(call, fds)? {
            (Reply::Region { lkey, rkey }, _) => Ok((lkey, rkey)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn region(&self, bytes: Bytes, iova: u64, len: u64, (lkey, rkey): (u32, u32)) -> MemoryRegion {
        MemoryRegion { pd: Arc::clone(&self.inner), bytes, iova, len, lkey, rkey }
    }

    /// Makes a type 2 memory window. A [`SendOp::BindWindow`](super::SendOp::BindWindow) request opens it.
    ///
    /// # Errors
    /// A limit, or the daemon is gone.
    pub fn allocate_window(&self) -> Result<MemoryWindow, Error> {
        match self.inner.context.call(Call::AllocateWindow { pd: self.inner.handle }, &[])? {
            (Reply::Window { rkey }, _) => Ok(MemoryWindow { pd: Arc::clone(&self.inner), rkey: AtomicU32::new(rkey) }),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Begins a queue pair whose sends complete on `send_cq` and receives on `recv_cq`.
    pub fn queue_pair(&self, kind: QpType, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> QueuePairBuilder {
        QueuePairBuilder::new(self, kind, send_cq, recv_cq)
    }

    /// Makes a shared receive queue for at least `max_wr` requests of up to `max_sge` entries.
    ///
    /// # Errors
    /// A limit, or the daemon is gone.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<SharedReceiveQueue, Error> {
        SharedReceiveQueue::create(self, max_wr, max_sge)
    }
}

/// Whose bytes a region has.
#[derive(Debug)]
enum Bytes {
    /// The region's own buffer.
    Own(Mapping),
    /// The program's memory.
    Foreign(NonNull<u8>),
    /// A memfd that this process need not have mapped.
    Elsewhere,
}

/// Registered memory: `ibv_mr`. Deregistered when dropped; then nobody touches the bytes any more.
#[derive(Debug)]
pub struct MemoryRegion {
    pd: Arc<PdInner>,
    bytes: Bytes,
    iova: u64,
    len: u64,
    lkey: u32,
    rkey: u32,
}

// SAFETY: the pointer of a foreign region is only handed out, never used here; a mapping may be used by any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// The key for work requests of this client.
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers.
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The address by which work requests and peers call its first byte.
    pub const fn address(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes: never.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A gather/scatter entry for these bytes of it. What lies beyond its end is refused when the request is carried out.
    pub const fn sge(&self, range: Range<u64>) -> Sge {
        let length = range.end.saturating_sub(range.start);
        let length = if length > u32::MAX as u64 { u32::MAX } else { length as u32 };
        Sge { addr: self.iova.wrapping_add(range.start), length, lkey: self.lkey }
    }

    /// A gather/scatter entry for all of it (or its first 4 GiB).
    pub const fn whole(&self) -> Sge {
        self.sge(0..self.len)
    }

    /// Its first byte in this process, if it has it.
    ///
    /// The daemon may access the bytes at any time, so a reference to them is sound only while no request and no peer does.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        match &self.bytes {
            Bytes::Own(mapping) => Some(mapping.as_ptr()),
            Bytes::Foreign(start) => Some(*start),
            Bytes::Elsewhere => None,
        }
    }

    /// Copies bytes out of the region's own buffer. False, and nothing is done, if they do not lie inside, or if the region was
    /// not made by [`Pd::allocate`].
    #[must_use]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        matches!(&self.bytes, Bytes::Own(mapping) if mapping.read(offset, to))
    }

    /// Copies bytes into the region's own buffer. False as for [`read`](Self::read).
    #[must_use]
    pub fn write(&self, offset: u64, from: &[u8]) -> bool {
        matches!(&self.bytes, Bytes::Own(mapping) if mapping.write(offset, from))
    }

    /// The 8 bytes at `offset` of the region's own buffer as an atomic, which is atomic with those of peers too.
    pub fn atomic(&self, offset: u64) -> Option<&AtomicU64> {
        match &self.bytes {
            Bytes::Own(mapping) => mapping.atomic(offset),
            _ => None,
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.pd.context.call_quietly(Call::DeregisterMemory { lkey: self.lkey });
    }
}

/// A type 2 memory window: `ibv_mw`. A key that a request opens for part of a region, for the peer of one queue pair.
#[derive(Debug)]
pub struct MemoryWindow {
    pd: Arc<PdInner>,
    rkey: AtomicU32,
}

impl MemoryWindow {
    /// The key that it has.
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Relaxed)
    }

    /// The key to bind it by next time: another one, so that peers with the old one find it closed (`ibv_inc_rkey(3)`).
    /// Pass it to [`SendOp::BindWindow`](super::SendOp::BindWindow).
    pub fn next_rkey(&self) -> u32 {
        let next = |rkey: u32| rkey & !0xff | rkey.wrapping_add(1) & 0xff;
        next(self.rkey.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |rkey| Some(next(rkey))).unwrap_or(0))
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        self.pd.context.call_quietly(Call::DeallocateWindow { rkey: self.rkey() });
    }
}
