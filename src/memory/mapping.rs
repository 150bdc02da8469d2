//! Memory mapped into this process: a client's memfd, or anonymous memory of our own.
//!
//! The bytes of a shared mapping belong to nobody: a client may write any of them at any time, and a buggy or hostile one
//! will. So no reference to them is ever made; they are only copied, by raw pointer, in and out, and what was copied is
//! what counts. A torn copy is then the client's own garbage, as it would be with a NIC's DMA.

use core::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::MemoryError;

/// A range of mapped memory, unmapped when the last owner lets go.
#[derive(Debug)]
pub struct Mapping {
    /// First byte of the mapping proper, page-aligned.
    base: NonNull<u8>,
    mapped_bytes: usize,
    /// What the range begins with: the part of its offset that is no whole page.
    lead_bytes: usize,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is plain memory, reachable from every thread, and it is only accessed by copies and atomics through
// raw pointers, which the other side may race with anyway (see the module's text).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a client's memfd from `offset` on, without copying. `offset` need not be page-aligned.
    ///
    /// The file must be a memfd with `F_SEAL_SHRINK`: were it to shrink, an access would kill the daemon by SIGBUS. One with
    /// `F_SEAL_WRITE` is mapped read-only. The descriptor is not needed afterwards and is closed.
    pub fn of_memfd(fd: OwnedFd, offset: u64, len: u64) -> Result<Self, MemoryError> {
        let seals = seals_of(fd.as_fd())?;
        if seals & libc::F_SEAL_SHRINK == 0 {
            return Err(MemoryError::NotSealed("a memfd without that seal"));
        }
        let have = file_bytes(fd.as_fd())?;
        let end = offset.saturating_add(len);
        let (Ok(start), Ok(len_usize), true) = (usize::try_from(offset), usize::try_from(len), end <= have) else {
            return Err(MemoryError::BeyondBacking { offset, end, have });
        };
        let writable = seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) == 0;
        let lead_bytes = start % page_bytes();
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let file_offset =
            libc::off_t::try_from(start - lead_bytes).map_err(|_| MemoryError::BeyondBacking { offset, end, have })?;
        Self::map(len_usize, lead_bytes, protection, libc::MAP_SHARED, Some((fd.as_fd(), file_offset)))
    }

    /// Zeroed memory of this process, for tests, simulators and the daemon's own queue pairs.
    pub fn anonymous(len: usize) -> Result<Self, MemoryError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::map(len, 0, libc::PROT_READ | libc::PROT_WRITE, flags, None)
    }

    fn map(
        len: usize,
        lead_bytes: usize,
        protection: libc::c_int,
        flags: libc::c_int,
        file: Option<(BorrowedFd<'_>, libc::off_t)>,
    ) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let Some(mapped_bytes) = len.checked_add(lead_bytes) else {
            return Err(MemoryError::AddressOverflow { start: lead_bytes as u64, length: len as u64 });
        };
        let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
        // SAFETY: a new mapping at an address of the kernel's choice replaces no memory of ours.
        let base = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, protection, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(MemoryError::last_os("mmap"));
        }
        let Some(base) = NonNull::new(base.cast::<u8>()) else {
            return Err(MemoryError::last_os("mmap"));
        };
        Ok(Self { base, mapped_bytes, lead_bytes, len, writable: protection & libc::PROT_WRITE != 0 })
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: a mapping has at least one byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte. Bytes may be accessed through it while the mapping lives, by whoever faces that others do the same.
    pub const fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: the range begins inside of the mapping.
        unsafe { self.base.add(self.lead_bytes) }
    }

    /// Whether bytes may be written.
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Copies bytes out; `false`, and nothing done, if some lie outside.
    #[must_use]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, to.len()) else { return false };
        // SAFETY: `at` has checked that the source lies in the mapping, which lives as long as `self`; the destination is a
        // slice of ours, which no shared mapping overlaps. The source may change meanwhile: then the copy is torn.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes in; `false`, and nothing done, if some lie outside or the mapping is read-only.
    #[must_use]
    pub fn write(&self, offset: u64, from: &[u8]) -> bool {
        let Some(to) = self.at(offset, from.len()).filter(|_| self.writable) else { return false };
        // SAFETY: as in `read`, with the directions exchanged; the mapping is writable.
        unsafe { copy_end_last(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }

    /// Copies `len` bytes from one mapping to another, or within one, where they may overlap. `false` as in `read`, `write`.
    #[must_use]
    pub fn copy(from: &Self, from_offset: u64, to: &Self, to_offset: u64, len: usize) -> bool {
        let (Some(source), Some(target)) = (from.at(from_offset, len), to.at(to_offset, len)) else { return false };
        if !to.writable {
            return false;
        }
        // SAFETY: both ranges were checked by `at`; `copy` allows overlap, also where two mappings show the same pages at
        // different addresses: the result is then torn, as with two racing writers, but no byte outside is touched.
        unsafe { copy_end_last(source.as_ptr(), target.as_ptr(), len) };
        true
    }

    /// The 8 bytes at `offset` as an atomic; `None` if they lie outside, are not aligned, or are read-only.
    pub fn atomic(&self, offset: u64) -> Option<&AtomicU64> {
        let at = self.at(offset, 8).filter(|at| self.writable && at.as_ptr().addr().is_multiple_of(8))?;
        // SAFETY: 8 bytes inside of the mapping, aligned, writable, alive as long as `self`. Other threads and processes may
        // access them at any time, which is what an atomic is for.
        Some(unsafe { AtomicU64::from_ptr(at.as_ptr().cast::<u64>()) })
    }

    /// Where `len` bytes at `offset` begin, if they lie inside.
    #[inline]
    pub(super) fn at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let offset = usize::try_from(offset).ok()?;
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: lead_bytes + offset <= lead_bytes + len = mapped_bytes, so the result is inside of the mapping or one past.
        Some(unsafe { self.base.add(self.lead_bytes + offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped, and nobody has a pointer into it any more: slices borrow the memory's table,
        // which owns an Arc of this.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert_eq!(result, 0, "munmap of our own mapping");
    }
}

/// Copies `len` bytes, of which the last ones become visible last.
///
/// Programs wait for a message by looking at its end (perftest's `ib_write_lat`, the eager RDMA of MPI, flags behind data): a
/// NIC's DMA writes ascending, a `memcpy` may write the end first. The ranges may overlap.
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes.
unsafe fn copy_end_last(from: *const u8, to: *mut u8, len: usize) {
    let end = to.addr() + len;
    let last = match len {
        0 => return,
        8.. if end.is_multiple_of(8) => 8,
        4.. if end.is_multiple_of(4) => 4,
        _ => 1,
    };
    let rest = len - last;
    // SAFETY: the last `last <= len` bytes of both ranges, the target's aligned to their width; they are read before anything is
    // written, because the ranges may overlap, and written by an atomic, which orders what was written before it.
    unsafe {
        let (from_end, to_end) = (from.add(rest), to.add(rest));
        match last {
            8 => {
                let word = from_end.cast::<u64>().read_unaligned();
                ptr::copy(from, to, rest);
                AtomicU64::from_ptr(to_end.cast()).store(word, Ordering::Release);
            }
            4 => {
                let word = from_end.cast::<u32>().read_unaligned();
                ptr::copy(from, to, rest);
                AtomicU32::from_ptr(to_end.cast()).store(word, Ordering::Release);
            }
            _ => {
                let byte = from_end.read();
                ptr::copy(from, to, rest);
                AtomicU8::from_ptr(to_end).store(byte, Ordering::Release);
            }
        }
    }
}

fn seals_of(fd: BorrowedFd<'_>) -> Result<libc::c_int, MemoryError> {
    // SAFETY: fcntl with a valid descriptor and no pointer.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } {
        -1 => Err(MemoryError::NotSealed("a file that has no seals")),
        seals => Ok(seals),
    }
}

fn file_bytes(fd: BorrowedFd<'_>) -> Result<u64, MemoryError> {
    let stat = nix::sys::stat::fstat(fd).map_err(|errno| MemoryError::Os { call: "fstat", source: errno.into() })?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}
