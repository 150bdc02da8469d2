//! Regions and windows as the table holds them, and the arithmetic of their bounds.

use std::sync::Arc;

use super::{Access, AccessError, Mapping, PdId, ProcessMemory, Unreachable};

/// What a region's bytes are.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Memory mapped here, from a byte of the mapping on: no copy on the way to the kernel.
    Shared(Arc<Mapping>, u64),
    /// Memory that only the client has mapped: one copy more, and a system call for each gather.
    Process(ProcessMemory),
}

/// A registered region.
#[derive(Debug)]
pub struct Region {
    pub(super) pd: PdId,
    pub(super) access: Access,
    pub(super) key: u32,
    pub(super) generation: u32,
    /// First address in the region's own address space; zero if it is zero-based.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) windows: u32,
    /// Set when a staged write could not be delivered: the client's memory is not what peers were told.
    pub(super) broken: Option<Unreachable>,
    pub(super) backing: Backing,
}

impl Region {
    /// The protection domain.
    pub const fn pd(&self) -> PdId {
        self.pd
    }

    /// The value of its L_Key and R_Key.
    pub const fn key(&self) -> u32 {
        self.key
    }

    /// What it may be used for.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Its first address, as work requests and peers name it.
    pub const fn iova(&self) -> u64 {
        self.start
    }

    /// Bytes.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Windows bound to it.
    pub const fn windows(&self) -> u32 {
        self.windows
    }

    /// What its bytes are.
    pub const fn backing(&self) -> &Backing {
        &self.backing
    }

    pub(super) const fn bounds(&self) -> Bounds {
        Bounds { key: self.key, access: self.access, start: self.start, length: self.length }
    }
}

/// A type 2 memory window (IBTA 10.6.7.2).
#[derive(Debug)]
pub(super) struct Window {
    pub(super) pd: PdId,
    pub(super) key: u32,
    pub(super) bound: Option<Binding>,
}

/// What a window shows of which region to whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) qpn: u32,
    pub(super) region: u32,
    /// Where the window begins within the region.
    pub(super) offset: u64,
    /// How peers address the window's first byte.
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) access: Access,
}

#[derive(Debug)]
pub(super) enum Object {
    Region(Region),
    Window(Window),
}

/// Rights and range of a key.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) key: u32,
    pub(super) access: Access,
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Bounds {
    /// Where `len` bytes at `va` lie, counted from the start, if the key gives the right and they lie wholly inside.
    #[inline]
    pub(super) fn locate(&self, va: u64, len: u64, need: Access) -> Result<u64, AccessError> {
        if !self.access.contains(need) {
            return Err(AccessError::Denied { key: self.key, need, have: self.access });
        }
        // No sum of untrusted numbers, so nothing can overflow. An address before the start becomes an offset beyond `length`,
        // as `start + length` does not pass the end of the address space.
        let offset = va.wrapping_sub(self.start);
        if offset <= self.length && len <= self.length - offset {
            return Ok(offset);
        }
        if len == 0 { Ok(0) } else { Err(self.outside(va, len)) }
    }

    #[cold]
    fn outside(&self, va: u64, len: u64) -> AccessError {
        let key = self.key;
        match va.checked_add(len) {
            None => AccessError::AddressOverflow { key, va, len },
            Some(_) => AccessError::OutOfBounds { key, va, len, start: self.start, length: self.length },
        }
    }
}
