//! Areas of shared memory: made and sealed by the daemon, mapped by both sides.
//!
//! No reference to plain memory of an area is ever made, for the other side may write any byte at any time: all that can be had
//! are references to atomic words, which is what two parties that write at the same time may share.

use core::mem::size_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};

use super::abi::{AttachArea, CompletionHeader, Cqe, QueueGeometry, QueueHeader};
use super::ring::{Bell, CQE_WORDS, CompletionRing, WorkRing};

/// A mapped area. Unmapped when dropped.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an `Area` owns its mapping, whose address is good in every thread, and only hands out atomics.
unsafe impl Send for Area {}
// SAFETY: as above: atomics may be used by many threads at once.
unsafe impl Sync for Area {}

/// Which side maps an area, and so what it may do there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Reads and writes.
    Writer,
    /// Only reads: the daemon's view of work queues.
    Reader,
    /// Reads and writes, and a forked child does not inherit it: the client's view.
    Client,
}

/// The daemon's half of making an area: its own mapping, and the descriptor to hand to the client.
#[derive(Debug)]
pub struct NewArea {
    /// The daemon's mapping.
    pub area: Area,
    /// The sealed memfd.
    pub fd: OwnedFd,
}

impl Area {
    /// Makes an area of zeros, sealed so that neither side can resize it (a shrunken file would kill the other by SIGBUS).
    ///
    /// # Errors
    /// What the kernel says: too many descriptors or mappings, no memory.
    pub fn create(name: &'static str, bytes: usize, side: Side) -> io::Result<NewArea> {
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        nix::unistd::ftruncate(&fd, i64::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(NewArea { area: Self::map(&fd, bytes, side)?, fd })
    }

    /// Maps the first `bytes` bytes of a sealed memfd.
    ///
    /// # Errors
    /// `InvalidData` if the file is shorter or could still shrink; otherwise what the kernel says.
    pub fn map(fd: &OwnedFd, bytes: usize, side: Side) -> io::Result<Self> {
        let seals = SealFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GET_SEALS)?);
        let stat = nix::sys::stat::fstat(fd.as_fd())?;
        if !seals.contains(SealFlag::F_SEAL_SHRINK) || usize::try_from(stat.st_size).unwrap_or(0) < bytes {
            let text = format!(
                "an area of {bytes} bytes came as descriptor {} of {} bytes, {seals:?}",
                fd.as_raw_fd(),
                stat.st_size
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = match side {
            Side::Reader => ProtFlags::PROT_READ,
            Side::Writer | Side::Client => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that Rust knows of.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, 0)? };
        let area = Self { base: base.cast(), bytes };
        if side == Side::Client {
            // SAFETY: the range is the mapping just made; what a forked child does not inherit, it cannot post to.
            unsafe { madvise(base, bytes, MmapAdvise::MADV_DONTFORK)? };
        }
        Ok(area)
    }

    /// Bytes of the mapping.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it is empty: never.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The `T` at `offset`, if it lies inside and is aligned. `T` is one of the headers: nothing but atomics.
    fn header<T>(&self, offset: usize) -> Option<&T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.bytes || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds and aligned (the mapping begins at a page); `T` is private to this file's callers below and
        // consists of atomic integers, for which every bit pattern is valid and which others may write meanwhile. The
        // reference lives no longer than the mapping.
        Some(unsafe { self.base.add(offset).cast::<T>().as_ref() })
    }

    /// `count` 64-bit words at `offset`, if they lie inside.
    pub fn words(&self, offset: usize, count: usize) -> Option<&[AtomicU64]> {
        let end = offset.checked_add(count.checked_mul(8)?)?;
        if end > self.bytes || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: as in `header`: in bounds, aligned, atomics.
        Some(unsafe { core::slice::from_raw_parts(self.base.add(offset).cast::<AtomicU64>().as_ptr(), count) })
    }

    /// The area as an [`AttachArea`], if it is large enough.
    pub fn attach(&self) -> Option<&AttachArea> {
        self.header(0)
    }

    /// The doorbells of an attach area.
    pub fn bell(&self) -> Option<Bell<'_>> {
        let area = self.attach()?;
        Some(Bell { sleeping: &area.sleeping, summary: &area.summary, leaves: &area.leaves })
    }

    /// The work queue at `geometry`, if it lies inside and is well formed.
    pub fn work_ring(&self, geometry: &QueueGeometry) -> Option<WorkRing<'_>> {
        let QueueGeometry { header, slots, depth, stride } = *geometry;
        if !depth.is_power_of_two() || stride == 0 || !stride.is_multiple_of(8) {
            return None;
        }
        let header: &QueueHeader = self.header(header as usize)?;
        let slot_words = stride / 8;
        let slots = self.words(slots as usize, depth as usize * slot_words as usize)?;
        Some(WorkRing { producer: &header.producer, slots, mask: depth - 1, slot_words })
    }

    /// The completion queue of `depth` entries that fills the area, if it does.
    pub fn completion_ring(&self, depth: u32) -> Option<CompletionRing<'_>> {
        if !depth.is_power_of_two() {
            return None;
        }
        let CompletionHeader { consumer, arm, told, .. } = self.header(0)?;
        let entries = self.words(size_of::<CompletionHeader>(), depth as usize * CQE_WORDS)?;
        Some(CompletionRing { entries, mask: depth - 1, consumer, arm, told })
    }
}

const _: () = assert!(size_of::<Cqe>() == CQE_WORDS * 8 && size_of::<AtomicU32>() == 4);

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone and every reference into it has ended, for each borrows `self`.
        // The call can only fail for a range that is no mapping.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use core::sync::atomic::Ordering;

    use super::*;
    use crate::ipc::abi::completion_area_bytes;

    #[test]
    fn both_sides_see_one_memory_and_neither_can_resize_it() {
        let NewArea { area, fd } = Area::create("holdfast-test", completion_area_bytes(4), Side::Writer).unwrap();
        let other = Area::map(&fd, area.len(), Side::Client).unwrap();
        area.completion_ring(4).unwrap().consumer.store(7, Ordering::Relaxed);
        assert_eq!(other.completion_ring(4).unwrap().consumer.load(Ordering::Relaxed), 7);
        for bytes in [0, area.len() as i64 + 4096] {
            assert_eq!(nix::unistd::ftruncate(&fd, bytes), Err(nix::errno::Errno::EPERM));
        }
    }

    #[test]
    fn what_does_not_lie_inside_is_refused() {
        let NewArea { area, fd } = Area::create("holdfast-test", 4096, Side::Writer).unwrap();
        let fits = QueueGeometry { header: 0, slots: 64, depth: 32, stride: 64 };
        assert!(area.work_ring(&fits).is_some());
        for wrong in [
            QueueGeometry { depth: 64, ..fits },
            QueueGeometry { depth: 31, ..fits },
            QueueGeometry { depth: 0, ..fits },
            QueueGeometry { stride: 0, ..fits },
            QueueGeometry { stride: 12, ..fits },
            QueueGeometry { stride: 1 << 31, ..fits },
            QueueGeometry { slots: u32::MAX, ..fits },
            QueueGeometry { slots: 60, ..fits },
            QueueGeometry { header: 4096, ..fits },
            QueueGeometry { header: 32, ..fits },
        ] {
            assert!(area.work_ring(&wrong).is_none(), "{wrong:?}");
        }
        assert!(area.completion_ring(64).is_none());
        assert!(area.completion_ring(3).is_none());
        assert!(area.attach().is_none());
        assert_eq!(Area::map(&fd, 4097, Side::Reader).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let unsealed = memfd_create("holdfast-test", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&unsealed, 4096).unwrap();
        assert_eq!(Area::map(&unsealed, 4096, Side::Reader).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
