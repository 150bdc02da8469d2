//! Registering and deregistering regions.

use super::{
    Access, AccessError, Backing, Keys, Memory, MemoryError, PdId,
    region::{Object, Region},
};

impl Memory {
    /// Registers `length` bytes of `backing`, which work requests and peers address from `iova` on (from 0 if zero-based).
    ///
    /// The keys are new each time. The rules of `ibv_reg_mr(3)` hold: a right for peers to change memory needs
    /// [`Access::LOCAL_WRITE`]. A process's memory is probed at both ends, so that a missing permission is told here.
    pub fn register(
        &mut self,
        pd: PdId,
        backing: Backing,
        iova: u64,
        length: u64,
        access: Access,
    ) -> Result<Keys, MemoryError> {
        if !self.pds.contains_key(&pd) {
            return Err(MemoryError::UnknownPd);
        }
        check_rights(access)?;
        let start = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        check_range(start, length)?;
        check_backing(&backing, length, access)?;

        let place = self.place_of_next()?;
        let key = self.keys.insert(place).ok_or(MemoryError::TooManyKeys)?;
        self.count_region(pd, length)?;
        let generation = self.next_generation;
        // Comes around after 2^32 registrations; a gather list lives for microseconds.
        self.next_generation = generation.wrapping_add(1);
        let region = Region { pd, access, key, generation, start, length, windows: 0, broken: None, backing };
        self.objects.insert(Object::Region(region));
        Ok(Keys { lkey: key, rkey: key })
    }

    /// Removes a region to which no window is bound.
    ///
    /// When it returns nothing reads or writes the memory any more: staged writes are delivered, and packets that were gathered
    /// from it and have not left can no longer be resolved.
    pub fn deregister(&mut self, lkey: u32) -> Result<(), MemoryError> {
        let Ok((place, Object::Region(region))) = self.find(lkey) else {
            return Err(MemoryError::UnknownKey { key: lkey });
        };
        if region.windows > 0 {
            return Err(MemoryError::Busy("memory windows bound to it"));
        }
        let (pd, length) = (region.pd, region.length);
        if matches!(region.backing, Backing::Process(_)) {
            // A failure is kept for `poll_write_failure`; the region goes in any case.
            self.flush();
        }
        self.keys.remove(lkey);
        self.objects.try_remove(place as usize);
        self.uncount_region(pd, length);
        Ok(())
    }

    /// The place in the table that the next object will take.
    pub(super) fn place_of_next(&self) -> Result<u32, MemoryError> {
        u32::try_from(self.objects.vacant_key()).map_err(|_| MemoryError::TooManyKeys)
    }
}

impl Region {
    /// Whether its memory still holds what peers were told it does.
    #[inline]
    pub(super) fn intact(&self) -> Result<(), AccessError> {
        match self.broken {
            None => Ok(()),
            Some(cause) => Err(AccessError::Unreachable { key: self.key, cause }),
        }
    }
}

fn check_rights(access: Access) -> Result<(), MemoryError> {
    if !access.is_supported() {
        return Err(MemoryError::UnsupportedAccess(access.bits()));
    }
    if access.changes_memory_remotely() && !access.contains(Access::LOCAL_WRITE) {
        return Err(MemoryError::NeedsLocalWrite(access));
    }
    Ok(())
}

/// The last byte, not the one behind it, must have an address.
fn check_range(start: u64, length: u64) -> Result<(), MemoryError> {
    match length.checked_sub(1) {
        None => Err(MemoryError::Empty),
        Some(last) => match start.checked_add(last) {
            None => Err(MemoryError::AddressOverflow { start, length }),
            Some(_) => Ok(()),
        },
    }
}

fn check_backing(backing: &Backing, length: u64, access: Access) -> Result<(), MemoryError> {
    match backing {
        Backing::Shared(mapping, offset) => {
            let (have, end) = (mapping.len() as u64, offset.saturating_add(length));
            if end > have {
                return Err(MemoryError::BeyondBacking { offset: *offset, end, have });
            }
            if access.contains(Access::LOCAL_WRITE) && !mapping.is_writable() {
                return Err(MemoryError::ReadOnly);
            }
            Ok(())
        }
        Backing::Process(memory) => {
            check_range(memory.address(), length)?;
            Ok(memory.probe(length)?)
        }
    }
}
