//! Region to region in one copy, for two queue pairs of one daemon.

use super::{
    Access, AccessError, Backing, LocalUse, Located, Mapping, Memory, PdId, Process, Sge,
    process::{self, Direction},
    transfer::Parts,
};
use std::sync::Arc;

/// Where bytes come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A work request's list, from its byte `offset` on.
    Sges {
        /// The queue pair's protection domain.
        pd: PdId,
        /// The list.
        sges: &'a [Sge],
        /// First byte.
        offset: u64,
    },
    /// A peer's READ; needs [`Access::REMOTE_READ`].
    Remote {
        /// The responder's protection domain.
        pd: PdId,
        /// The responder.
        qpn: u32,
        /// The key presented.
        rkey: u32,
        /// First address.
        va: u64,
    },
    /// Inline data.
    Bytes(&'a [u8]),
}

/// Where bytes go.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A receive's or READ's list, from its byte `offset` on.
    Sges {
        /// The queue pair's protection domain.
        pd: PdId,
        /// The list.
        sges: &'a [Sge],
        /// First byte.
        offset: u64,
    },
    /// A peer's WRITE; needs [`Access::REMOTE_WRITE`].
    Remote {
        /// The responder's protection domain.
        pd: PdId,
        /// The responder.
        qpn: u32,
        /// The key presented.
        rkey: u32,
        /// First address.
        va: u64,
    },
}

/// Which side of a copy was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    /// The source.
    #[error("source: {0}")]
    Source(#[source] AccessError),
    /// The target.
    #[error("target: {0}")]
    Target(#[source] AccessError),
}

/// A contiguous run on one side of the copy.
enum Run<'a> {
    Region(Located),
    Bytes(&'a [u8]),
}

/// How a checked place is reached.
enum Reach {
    Here(Here),
    There(There),
}

/// Bytes of a mapping.
struct Here {
    mapping: Arc<Mapping>,
    offset: u64,
}

/// Bytes of a process.
struct There {
    process: Arc<Process>,
    address: u64,
    region: u32,
}

/// Bytes at once from one process to another.
const BOUNCE_BYTES: usize = 64 << 10;

impl Memory {
    /// Copies `len` bytes. Both sides are checked wholly before the first byte moves.
    ///
    /// Shared memory at one end at least: one copy. It takes as long as it takes: a fair caller copies a large message in turns.
    pub fn copy(&mut self, from: &Source<'_>, to: &Target<'_>, len: u64) -> Result<(), CopyError> {
        self.check_source(from, len).map_err(CopyError::Source)?;
        self.check_target(to, len).map_err(CopyError::Target)?;
        let mut done = 0;
        while done < len {
            let (source, source_len) = self.source_run(from, done, len - done).map_err(CopyError::Source)?;
            let (target, target_len) = self.target_run(to, done, len - done).map_err(CopyError::Target)?;
            let step = source_len.min(target_len);
            self.copy_run(&source, target, usize::try_from(step).unwrap_or(usize::MAX))?;
            done += step;
        }
        Ok(())
    }

    fn check_source(&self, from: &Source<'_>, len: u64) -> Result<(), AccessError> {
        match *from {
            Source::Sges { pd, sges, offset } => self.check_parts(pd, sges, offset, len, LocalUse::Read),
            Source::Remote { pd, qpn, rkey, va } => self.check_remote(pd, qpn, rkey, va, len, Access::REMOTE_READ),
            Source::Bytes(bytes) if len <= bytes.len() as u64 => Ok(()),
            Source::Bytes(bytes) => Err(AccessError::ShortList { offset: 0, end: len, total: bytes.len() as u64 }),
        }
    }

    fn check_target(&self, to: &Target<'_>, len: u64) -> Result<(), AccessError> {
        match *to {
            Target::Sges { pd, sges, offset } => self.check_parts(pd, sges, offset, len, LocalUse::Write),
            Target::Remote { pd, qpn, rkey, va } => self.check_remote(pd, qpn, rkey, va, len, Access::REMOTE_WRITE),
        }
    }

    fn check_parts(&self, pd: PdId, sges: &[Sge], offset: u64, len: u64, usage: LocalUse) -> Result<(), AccessError> {
        Parts::new(sges, offset, len)?.try_for_each(|part| {
            let part = part?;
            self.locate_local(pd, part.lkey, part.va, u64::from(part.len), usage.needs()).map(|_| ())
        })
    }

    fn source_run<'a>(&self, from: &Source<'a>, done: u64, left: u64) -> Result<(Run<'a>, u64), AccessError> {
        match *from {
            Source::Sges { pd, sges, offset } => {
                let (at, len) = self.part_at(pd, sges, offset.saturating_add(done), left, LocalUse::Read)?;
                Ok((Run::Region(at), len))
            }
            Source::Remote { pd, qpn, rkey, va } => {
                let at = self.locate_remote(pd, qpn, rkey, va.wrapping_add(done), left, Access::REMOTE_READ)?;
                Ok((Run::Region(at), left))
            }
            Source::Bytes(bytes) => {
                let rest = usize::try_from(done).ok().and_then(|done| bytes.get(done..)).unwrap_or_default();
                Ok((Run::Bytes(rest), left.min(rest.len() as u64)))
            }
        }
    }

    fn target_run(&self, to: &Target<'_>, done: u64, left: u64) -> Result<(Located, u64), AccessError> {
        match *to {
            Target::Sges { pd, sges, offset } => {
                self.part_at(pd, sges, offset.saturating_add(done), left, LocalUse::Write)
            }
            Target::Remote { pd, qpn, rkey, va } => {
                let at = self.locate_remote(pd, qpn, rkey, va.wrapping_add(done), left, Access::REMOTE_WRITE)?;
                Ok((at, left))
            }
        }
    }

    /// The contiguous bytes at `offset` of a list.
    fn part_at(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        left: u64,
        usage: LocalUse,
    ) -> Result<(Located, u64), AccessError> {
        let end = offset.saturating_add(left);
        let part =
            Parts::new(sges, offset, left)?.next().ok_or(AccessError::ShortList { offset, end, total: offset })??;
        let len = u64::from(part.len);
        Ok((self.locate_local(pd, part.lkey, part.va, len, usage.needs())?, len))
    }

    fn copy_run(&mut self, source: &Run<'_>, target: Located, len: usize) -> Result<(), CopyError> {
        let source = match *source {
            Run::Bytes(bytes) => {
                let bytes = bytes.get(..len).unwrap_or(bytes);
                return self.put(target, bytes).map_err(CopyError::Target);
            }
            Run::Region(source) => source,
        };
        let from = self.reach(source).map_err(CopyError::Source)?;
        let to = self.reach(target).map_err(CopyError::Target)?;
        match (from, to) {
            (Reach::Here(from), Reach::Here(to)) => {
                let copied = Mapping::copy(&from.mapping, from.offset, &to.mapping, to.offset, len);
                if copied { Ok(()) } else { Err(CopyError::Target(AccessError::Deregistered)) }
            }
            (Reach::Here(from), Reach::There(to)) => {
                self.exchange(Direction::Write, &from, &to, len).map_err(CopyError::Target)
            }
            (Reach::There(from), Reach::Here(to)) => {
                self.exchange(Direction::Read, &to, &from, len).map_err(CopyError::Source)
            }
            (Reach::There(_), Reach::There(_)) => self.bounce(source, target, len),
        }
    }

    fn reach(&self, at: Located) -> Result<Reach, AccessError> {
        match self.region(at.region).ok_or(AccessError::Deregistered)?.backing() {
            Backing::Shared(mapping, base) => {
                Ok(Reach::Here(Here { mapping: Arc::clone(mapping), offset: base + at.offset }))
            }
            Backing::Process(memory) => {
                let (process, address) = (Arc::clone(memory.process()), memory.address() + at.offset);
                Ok(Reach::There(There { process, address, region: at.region }))
            }
        }
    }

    /// Moves bytes between shared memory and a process, after what was staged.
    fn exchange(&mut self, direction: Direction, here: &Here, there: &There, len: usize) -> Result<(), AccessError> {
        self.flush();
        let region = self.region(there.region).ok_or(AccessError::Deregistered)?;
        region.intact()?;
        let local = here.mapping.at(here.offset, len).ok_or(AccessError::Deregistered)?;
        // SAFETY: `at` has checked the range, and the mapping lives longer than the call. A read from the process writes to the
        // mapping only as the target of a checked local or remote write, which read-only mappings cannot be registered for.
        let moved = unsafe { process::transfer_raw(&there.process, direction, local.as_ptr(), there.address, len) };
        moved.map_err(|cause| AccessError::Unreachable { key: region.key(), cause })
    }

    /// From process to process the bytes pass through a buffer of ours.
    fn bounce(&mut self, source: Located, target: Located, len: usize) -> Result<(), CopyError> {
        let mut buffer = core::mem::take(&mut self.bounce);
        let mut done = 0;
        let mut moved = Ok(());
        while done < len && moved.is_ok() {
            let step = BOUNCE_BYTES.min(len - done);
            buffer.resize(step, 0);
            let at = |place: Located| Located { offset: place.offset + done as u64, ..place };
            moved = self.fetch_into(at(source), &mut buffer).map_err(CopyError::Source);
            moved = moved.and_then(|()| self.put(at(target), &buffer).map_err(CopyError::Target));
            done += step;
        }
        self.bounce = buffer;
        moved
    }
}
