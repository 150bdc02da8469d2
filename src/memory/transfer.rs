//! The data path: check, gather, scatter, remote writes, atomics.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::{
    Access, AccessError, AtomicOp, Backing, GatherList, LocalUse, Located, Memory, PdId, Sge, Unreachable,
    process::{self, Span},
};

impl Memory {
    /// Checks a work request's list as a whole and tells its length.
    pub fn check_local(&self, pd: PdId, sges: &[Sge], usage: LocalUse) -> Result<u64, AccessError> {
        let mut total = 0;
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            self.locate_local(pd, sge.lkey, sge.addr, u64::from(sge.length), usage.needs())?;
            total += u64::from(sge.length);
        }
        Ok(total)
    }

    /// Checks a peer's access as a whole. `need` are REMOTE_WRITE, REMOTE_READ or REMOTE_ATOMIC.
    ///
    /// A length of zero is never out of bounds; whether its key is checked at all is the caller's business (IBTA 9.4.3: not).
    pub fn check_remote(
        &self,
        pd: PdId,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.locate_remote(pd, qpn, rkey, va, len, need).map(|_| ())
    }

    /// Appends bytes `offset` to `offset + len` of a scatter/gather list. On an error `list` is as it was.
    pub fn gather(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        len: u32,
        list: &mut GatherList,
    ) -> Result<(), AccessError> {
        let mark = list.mark();
        let appended = self.append_parts(pd, sges, offset, len, list).and_then(|()| self.fetch(list));
        appended.inspect_err(|_| list.truncate(mark))
    }

    /// Appends `len` bytes that a peer reads. On an error `list` is as it was.
    pub fn gather_remote(
        &mut self,
        pd: PdId,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: u32,
        list: &mut GatherList,
    ) -> Result<(), AccessError> {
        let at = self.locate_remote(pd, qpn, rkey, va, u64::from(len), Access::REMOTE_READ)?;
        let mark = list.mark();
        self.reads.clear();
        let appended = self.append(at, len, list).and_then(|()| self.fetch(list));
        appended.inspect_err(|_| list.truncate(mark))
    }

    /// Writes `bytes` to a scatter/gather list from its byte `offset` on.
    pub fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let mut rest = bytes;
        for part in Parts::new(sges, offset, bytes.len() as u64)? {
            let part = part?;
            let (now, later) = rest.split_at_checked(part.len as usize).unwrap_or((rest, &[]));
            let at = self.locate_local(pd, part.lkey, part.va, u64::from(part.len), Access::LOCAL_WRITE)?;
            self.put(at, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes a peer's bytes.
    pub fn write_remote(&mut self, pd: PdId, qpn: u32, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let at = self.locate_remote(pd, qpn, rkey, va, bytes.len() as u64, Access::REMOTE_WRITE)?;
        if bytes.is_empty() { Ok(()) } else { self.put(at, bytes) }
    }

    /// Does a peer's atomic on the 8 bytes at `va` and tells what they held before, in the host's byte order.
    pub fn atomic(&mut self, pd: PdId, qpn: u32, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let at = self.locate_remote(pd, qpn, rkey, va, 8, Access::REMOTE_ATOMIC)?;
        let misaligned = AccessError::Misaligned { key: rkey, va };
        if !va.is_multiple_of(8) {
            return Err(misaligned);
        }
        let region = self.region(at.region).ok_or(AccessError::Deregistered)?;
        match &region.backing {
            Backing::Shared(mapping, base) => {
                let word = mapping.atomic(base + at.offset).ok_or(misaligned)?;
                Ok(match op {
                    AtomicOp::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
                    AtomicOp::CompareSwap { compare, swap } => word
                        .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                        .unwrap_or_else(|held| held),
                })
            }
            Backing::Process(memory) => {
                if !(memory.address() + at.offset).is_multiple_of(8) {
                    return Err(misaligned);
                }
                self.atomic_of_process(at, op)
            }
        }
    }

    fn atomic_of_process(&mut self, at: Located, op: AtomicOp) -> Result<u64, AccessError> {
        let mut word = [0; 8];
        self.fetch_into(at, &mut word)?;
        let original = u64::from_ne_bytes(word);
        let changed = op.apply(original);
        if changed != original {
            self.put(at, &changed.to_ne_bytes())?;
        }
        Ok(original)
    }

    fn append_parts(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        len: u32,
        list: &mut GatherList,
    ) -> Result<(), AccessError> {
        self.reads.clear();
        for part in Parts::new(sges, offset, u64::from(len))? {
            let part = part?;
            let at = self.locate_local(pd, part.lkey, part.va, u64::from(part.len), LocalUse::Read.needs())?;
            self.append(at, part.len, list)?;
        }
        Ok(())
    }

    /// Appends bytes of a region, or room for them and an entry in `reads`.
    fn append(&mut self, at: Located, len: u32, list: &mut GatherList) -> Result<(), AccessError> {
        let region = self.region(at.region).ok_or(AccessError::Deregistered)?;
        let generation = region.generation;
        match &region.backing {
            _ if len == 0 => Ok(()),
            Backing::Shared(..) => {
                list.push_shared(at.region, generation, at.offset, len);
                Ok(())
            }
            Backing::Process(memory) => {
                let (address, len) = (memory.address() + at.offset, len as usize);
                let span = Span { address, offset: list.arena_len(), len, region: at.region, key: region.key };
                list.push_room(len);
                self.reads.push(span);
                Ok(())
            }
        }
    }

    /// Does the reads that `append` left: one system call for each process, which a list has at most one of.
    fn fetch(&mut self, list: &mut GatherList) -> Result<(), AccessError> {
        if self.reads.is_empty() {
            return Ok(());
        }
        // What was written must be read.
        self.flush();
        let mut rest = self.reads.as_slice();
        while let Some(first) = rest.first() {
            let process = self.process_at(first)?;
            let run = rest.iter().take_while(|span| self.is_of(span.region, process)).count();
            let (batch, later) = rest.split_at(run);
            process::read(process, batch, list.arena_mut())
                .map_err(|(failed, cause)| unreachable(batch, failed, cause))?;
            rest = later;
        }
        Ok(())
    }

    /// Reads bytes of a process's memory at a place that was checked, after the writes that were staged.
    pub(super) fn fetch_into(&mut self, at: Located, to: &mut [u8]) -> Result<(), AccessError> {
        self.flush();
        let region = self.region(at.region).ok_or(AccessError::Deregistered)?;
        region.intact()?;
        let Backing::Process(memory) = &region.backing else {
            return Err(AccessError::Deregistered);
        };
        let address = memory.address() + at.offset;
        let span = Span { address, offset: 0, len: to.len(), region: at.region, key: region.key };
        process::read(memory.process(), &[span], to)
            .map_err(|(_, cause)| AccessError::Unreachable { key: region.key, cause })
    }

    fn process_at(&self, span: &Span) -> Result<&Arc<process::Process>, AccessError> {
        let region = self.region(span.region).ok_or(AccessError::Deregistered)?;
        region.intact()?;
        match &region.backing {
            Backing::Process(memory) => Ok(memory.process()),
            Backing::Shared(..) => Err(AccessError::Deregistered),
        }
    }
}

fn unreachable(batch: &[Span], failed: usize, cause: Unreachable) -> AccessError {
    let key = batch.get(failed).map_or(0, |span| span.key);
    AccessError::Unreachable { key, cause }
}

/// A contiguous part of a scatter/gather list.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) lkey: u32,
    pub(super) va: u64,
    pub(super) len: u32,
}

/// The parts that bytes `offset` to `offset + len` of a list consist of.
pub(super) struct Parts<'a> {
    sges: core::slice::Iter<'a, Sge>,
    skip: u64,
    left: u64,
}

impl<'a> Parts<'a> {
    pub(super) fn new(sges: &'a [Sge], offset: u64, len: u64) -> Result<Self, AccessError> {
        let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        let end = offset.saturating_add(len);
        if end > total {
            return Err(AccessError::ShortList { offset, end, total });
        }
        Ok(Self { sges: sges.iter(), skip: offset, left: len })
    }
}

impl Iterator for Parts<'_> {
    type Item = Result<Part, AccessError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            let sge = self.sges.next()?;
            // `skip` is below `length`, so it fits 32 bits.
            let Some(here) = u64::from(sge.length).checked_sub(self.skip).filter(|here| *here > 0) else {
                self.skip -= u64::from(sge.length);
                continue;
            };
            let len = here.min(self.left);
            let Some(va) = sge.addr.checked_add(self.skip) else {
                self.left = 0;
                return Some(Err(AccessError::AddressOverflow {
                    key: sge.lkey,
                    va: sge.addr,
                    len: u64::from(sge.length),
                }));
            };
            self.skip = 0;
            self.left -= len;
            return Some(Ok(Part { lkey: sge.lkey, va, len: len as u32 }));
        }
        None
    }
}
