//! Writes to processes' memory, collected so that one system call delivers many.

use core::mem;
use std::{collections::VecDeque, sync::Arc};

use super::{
    AccessError, Backing, Located, Memory, PdId, Process, Unreachable,
    process::{self, Span},
};

/// Bytes and spans after which a batch is delivered by itself.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_SPANS: usize = 1024;

/// A staged write that could not be delivered, although the operation it belongs to was accepted.
///
/// The region refuses every access from then on. Whoever gets this should fail the owner's queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteFailure {
    /// The region's protection domain.
    pub pd: PdId,
    /// The region's key.
    pub key: u32,
    /// What the kernel said.
    pub cause: Unreachable,
}

#[derive(Default)]
pub(super) struct Stage {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    failures: VecDeque<WriteFailure>,
}

impl Stage {
    pub(super) fn push(&mut self, region: u32, key: u32, address: u64, bytes: &[u8]) {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        match self.spans.last_mut() {
            // The packets of one message follow each other.
            Some(last) if last.region == region && last.address.checked_add(last.len as u64) == Some(address) => {
                last.len += bytes.len();
            }
            _ => self.spans.push(Span { address, offset, len: bytes.len(), region, key }),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.spans.len() >= BATCH_SPANS
    }
}

impl Memory {
    /// Delivers the staged writes to processes' memory. Call it before a completion that promises them is shown.
    ///
    /// A write that fails breaks its region, and nothing else: see [`Memory::poll_write_failure`].
    pub fn flush(&mut self) {
        if self.stage.spans.is_empty() {
            return;
        }
        let mut stage = mem::take(&mut self.stage);
        let mut rest = stage.spans.as_slice();
        while let Some((first, others)) = rest.split_first() {
            let Some(process) = self.reachable(first.region) else {
                rest = others;
                continue;
            };
            let run = rest.iter().take_while(|span| self.is_of(span.region, &process)).count();
            let (batch, later) = rest.split_at(run);
            rest = match process::write(&process, batch, &stage.bytes) {
                Ok(()) => later,
                Err((failed, cause)) => {
                    stage.failures.extend(batch.get(failed).and_then(|span| self.break_region(span.region, cause)));
                    rest.get(failed + 1..).unwrap_or_default()
                }
            };
        }
        stage.bytes.clear();
        stage.spans.clear();
        self.stage = stage;
    }

    /// The next region whose staged writes were lost, if any; each is told once.
    pub fn poll_write_failure(&mut self) -> Option<WriteFailure> {
        self.stage.failures.pop_front()
    }

    /// Writes bytes to a place that was checked.
    pub(super) fn put(&mut self, at: Located, bytes: &[u8]) -> Result<(), AccessError> {
        let region = self.region(at.region).ok_or(AccessError::Deregistered)?;
        match &region.backing {
            Backing::Shared(mapping, base) => {
                if mapping.write(base + at.offset, bytes) {
                    Ok(())
                } else {
                    Err(AccessError::Deregistered)
                }
            }
            Backing::Process(memory) => {
                let (key, address) = (region.key, memory.address() + at.offset);
                self.stage.push(at.region, key, address, bytes);
                if self.stage.is_full() {
                    self.flush();
                }
                Ok(())
            }
        }
    }

    /// The process whose memory the region is, unless it was found broken.
    fn reachable(&self, place: u32) -> Option<Arc<Process>> {
        let region = self.region(place).filter(|region| region.broken.is_none())?;
        match &region.backing {
            Backing::Process(memory) => Some(Arc::clone(memory.process())),
            Backing::Shared(..) => None,
        }
    }

    /// Whether the region is intact memory of that process.
    pub(super) fn is_of(&self, place: u32, process: &Arc<Process>) -> bool {
        self.region(place).is_some_and(|region| match &region.backing {
            Backing::Process(memory) => region.broken.is_none() && Arc::ptr_eq(memory.process(), process),
            Backing::Shared(..) => false,
        })
    }

    fn break_region(&mut self, place: u32, cause: Unreachable) -> Option<WriteFailure> {
        let region = self.region_mut(place)?;
        region.broken = Some(cause);
        Some(WriteFailure { pd: region.pd, key: region.key, cause })
    }
}
