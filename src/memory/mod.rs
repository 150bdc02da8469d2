//! Protection domains, regions, windows, keys and bounds; ways to reach a client's bytes.
//!
//! [`Memory`] is one worker's table. Everything that a work request or a packet says about memory passes its checks: the key
//! exists, belongs to the queue pair's protection domain, gives the right, and the bytes lie wholly inside. Each check has
//! its own [`AccessError`].
//!
//! A region's bytes are either *shared* (the client's memfd, mapped here: packets are gathered from it and scattered to it
//! without a copy between) or *of a process* (reached by `process_vm_readv` in batches, see [`ProcessMemory`]). Writes to
//! the latter are staged; [`Memory::flush`] delivers them, and must be called before a completion that promises them is
//! shown to the client.
//!
//! # Deregistration
//! No pointer outlives a call. A [`GatherList`] names regions by place and generation; [`Memory::copy_piece`] resolves that when
//! the bytes are used, and borrows the table meanwhile. So after [`Memory::deregister`] returns nobody reads or writes the
//! client's memory any more, whatever is in flight: a packet gathered before is not sent ([`AccessError::Deregistered`]).
//!
//! # Atomics
//! On shared memory they are the CPU's own, so they compose with the client's atomics and those of other workers
//! (`IBV_ATOMIC_GLOB`). On a process's memory they are a read and a write: atomic among the queue pairs of this worker
//! (`IBV_ATOMIC_HCA`, as all queue pairs of a client live on one worker), but not against the client's own CPU.
#![allow(unsafe_code)]

mod access;
mod copy;
mod error;
mod gather;
mod keys;
mod mapping;
mod pd;
mod process;
mod region;
mod registration;
mod stage;
mod transfer;
mod window;

#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use std::collections::BTreeMap;

use keys::{Found, KeyTable};
use pd::Pd;
use region::{Bounds, Object};
use slab::Slab;
use stage::Stage;

pub use access::{Access, AtomicOp, Keys, LocalUse, Sge};
pub use copy::{CopyError, Source, Target};
pub use error::{AccessError, MemoryError, Unreachable};
pub use gather::{GatherList, Mark, Piece};
pub use mapping::Mapping;
pub use pd::{PdId, Usage};
pub use process::{Process, ProcessMemory, Trust};
pub use region::{Backing, Region};
pub use stage::WriteFailure;
pub use window::WindowBinding;

/// The memory that one worker's queue pairs may reach. See the module's text.
pub struct Memory {
    keys: KeyTable,
    objects: Slab<Object>,
    pds: BTreeMap<PdId, Pd>,
    usage: BTreeMap<u64, Usage>,
    next_pd: u64,
    next_generation: u32,
    /// Reads of one gather from processes' memory, kept for its capacity.
    reads: Vec<process::Span>,
    stage: Stage,
    /// Bytes on their way from one process to another, kept for its capacity.
    bounce: Vec<u8>,
}

/// Where an access lies: a region, and bytes from its start.
#[derive(Clone, Copy)]
struct Located {
    region: u32,
    offset: u64,
}

impl Memory {
    /// An empty table. Keys follow from `secret`: unguessable if it is, and the same in each run if it is.
    pub fn new(secret: [u8; 32]) -> Self {
        Self {
            keys: KeyTable::new(secret),
            objects: Slab::new(),
            pds: BTreeMap::new(),
            usage: BTreeMap::new(),
            next_pd: 0,
            next_generation: 0,
            reads: Vec::new(),
            stage: Stage::default(),
            bounce: Vec::new(),
        }
    }

    /// The regions, in order of their place in the table.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions_from(0).map(|(_, region)| region)
    }

    /// The regions at places of at least `from`, with their places, ascending.
    pub fn regions_from(&self, from: u32) -> impl Iterator<Item = (u32, &Region)> {
        self.objects.iter().skip_while(move |(place, _)| *place < from as usize).filter_map(|(place, object)| {
            match object {
                Object::Region(region) => Some((place as u32, region)),
                Object::Window(_) => None,
            }
        })
    }

    #[inline]
    fn find(&self, key: u32) -> Result<(u32, &Object), AccessError> {
        match self.keys.find(key) {
            Found::Live(place) => match self.objects.get(place as usize) {
                Some(object) => Ok((place, object)),
                None => Err(AccessError::UnknownKey { key }),
            },
            Found::Stale => Err(AccessError::StaleKey { key }),
            Found::Unknown => Err(AccessError::UnknownKey { key }),
        }
    }

    fn region(&self, place: u32) -> Option<&Region> {
        match self.objects.get(place as usize) {
            Some(Object::Region(region)) => Some(region),
            _ => None,
        }
    }

    fn region_mut(&mut self, place: u32) -> Option<&mut Region> {
        match self.objects.get_mut(place as usize) {
            Some(Object::Region(region)) => Some(region),
            _ => None,
        }
    }

    /// All checks of a local access; `len` is not zero.
    #[inline]
    fn locate_local(&self, pd: PdId, lkey: u32, va: u64, len: u64, need: Access) -> Result<Located, AccessError> {
        let (place, Object::Region(region)) = self.find(lkey)? else {
            return Err(AccessError::WindowAsLocalKey { key: lkey });
        };
        if region.pd != pd {
            return Err(AccessError::ForeignPd { key: lkey });
        }
        let offset = region.bounds().locate(va, len, need)?;
        region.intact()?;
        Ok(Located { region: place, offset })
    }

    /// All checks of a peer's access.
    #[inline]
    fn locate_remote(
        &self,
        pd: PdId,
        qpn: u32,
        rkey: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<Located, AccessError> {
        match self.find(rkey)? {
            (place, Object::Region(region)) => {
                if region.pd != pd {
                    return Err(AccessError::ForeignPd { key: rkey });
                }
                let offset = region.bounds().locate(va, len, need)?;
                region.intact()?;
                Ok(Located { region: place, offset })
            }
            (_, Object::Window(window)) => {
                if window.pd != pd {
                    return Err(AccessError::ForeignPd { key: rkey });
                }
                let Some(bound) = window.bound else {
                    return Err(AccessError::UnboundWindow { key: rkey });
                };
                if bound.qpn != qpn {
                    return Err(AccessError::ForeignQp { key: rkey, qpn });
                }
                let bounds = Bounds { key: rkey, access: bound.access, start: bound.start, length: bound.length };
                let offset = bounds.locate(va, len, need)? + bound.offset;
                self.region(bound.region).ok_or(AccessError::UnboundWindow { key: rkey })?.intact()?;
                Ok(Located { region: bound.region, offset })
            }
        }
    }

    /// Where bytes of a shared region are, if it is still the registration meant.
    fn pointer(&self, place: u32, generation: u32, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let region = self.region(place).filter(|region| region.generation == generation)?;
        let end = offset.checked_add(len as u64)?;
        match &region.backing {
            Backing::Shared(mapping, base) if end <= region.length => mapping.at(base + offset, len),
            _ => None,
        }
    }
}
