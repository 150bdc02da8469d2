//! Protection domains, and what each owner has registered.

use super::{Memory, MemoryError};

/// A protection domain. Numbers are never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PdId(u64);

impl PdId {
    /// Its number, for whoever looks inside.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// What an owner holds, for limits such as RLIMIT_MEMLOCK. Bytes registered twice count twice, as pinned pages do in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Protection domains.
    pub pds: u32,
    /// Regions.
    pub regions: u32,
    /// Memory windows.
    pub windows: u32,
    /// Bytes of all regions.
    pub registered_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Pd {
    pub(super) owner: u64,
    regions: u32,
    windows: u32,
    /// Queue pairs, shared receive queues and address handles.
    holders: u32,
}

impl Memory {
    /// Makes a protection domain. `owner` is the caller's number for a client: usage is counted under it.
    pub fn create_pd(&mut self, owner: u64) -> PdId {
        let pd = PdId(self.next_pd);
        self.next_pd += 1;
        self.pds.insert(pd, Pd { owner, regions: 0, windows: 0, holders: 0 });
        self.usage.entry(owner).or_default().pds += 1;
        pd
    }

    /// Removes a protection domain that nothing refers to.
    pub fn destroy_pd(&mut self, pd: PdId) -> Result<(), MemoryError> {
        let held = self.pds.get(&pd).ok_or(MemoryError::UnknownPd)?;
        match held {
            Pd { regions: 1.., .. } => return Err(MemoryError::Busy("regions")),
            Pd { windows: 1.., .. } => return Err(MemoryError::Busy("memory windows")),
            Pd { holders: 1.., .. } => {
                return Err(MemoryError::Busy("queue pairs, shared receive queues or address handles"));
            }
            Pd { owner, .. } => {
                let owner = *owner;
                self.account(owner, |usage| usage.pds -= 1);
            }
        }
        self.pds.remove(&pd);
        Ok(())
    }

    /// Notes that an object outside of this room (a queue pair, a shared receive queue) refers to the protection domain.
    pub fn retain_pd(&mut self, pd: PdId) -> Result<(), MemoryError> {
        self.pds.get_mut(&pd).ok_or(MemoryError::UnknownPd)?.holders += 1;
        Ok(())
    }

    /// Takes one [`Memory::retain_pd`] back.
    pub fn release_pd(&mut self, pd: PdId) {
        if let Some(pd) = self.pds.get_mut(&pd) {
            pd.holders = pd.holders.saturating_sub(1);
        }
    }

    /// Whose a protection domain is.
    pub fn owner(&self, pd: PdId) -> Option<u64> {
        self.pds.get(&pd).map(|pd| pd.owner)
    }

    /// What all owners hold now.
    pub fn total_usage(&self) -> Usage {
        self.usage.values().fold(Usage::default(), |sum, one| Usage {
            pds: sum.pds + one.pds,
            regions: sum.regions + one.regions,
            windows: sum.windows + one.windows,
            registered_bytes: sum.registered_bytes.saturating_add(one.registered_bytes),
        })
    }

    /// What an owner holds now.
    pub fn usage(&self, owner: u64) -> Usage {
        self.usage.get(&owner).copied().unwrap_or_default()
    }

    /// Removes all that an owner has: windows, regions and protection domains. For a client that is gone.
    ///
    /// [`MemoryError::Busy`], and nothing removed, while a queue pair or the like still refers to one of the domains.
    pub fn release_owner(&mut self, owner: u64) -> Result<(), MemoryError> {
        let owned = |pd: &Pd| pd.owner == owner;
        if self.pds.values().any(|pd| owned(pd) && pd.holders > 0) {
            return Err(MemoryError::Busy("queue pairs, shared receive queues or address handles"));
        }
        let is_owned = |memory: &Self, pd: PdId| memory.pds.get(&pd).is_some_and(owned);
        let windows: Vec<u32> =
            self.windows().filter(|window| is_owned(self, window.pd)).map(|window| window.key).collect();
        windows.into_iter().try_for_each(|rkey| self.deallocate_window(rkey))?;
        let regions: Vec<u32> =
            self.regions().filter(|region| is_owned(self, region.pd)).map(|region| region.key).collect();
        regions.into_iter().try_for_each(|lkey| self.deregister(lkey))?;
        self.pds.retain(|_, pd| !owned(pd));
        self.usage.remove(&owner);
        Ok(())
    }

    pub(super) fn count_region(&mut self, pd: PdId, bytes: u64) -> Result<(), MemoryError> {
        let held = self.pds.get_mut(&pd).ok_or(MemoryError::UnknownPd)?;
        held.regions += 1;
        let owner = held.owner;
        self.account(owner, |usage| {
            usage.regions += 1;
            // Bytes registered several times can sum to more than 2^64, at least in a test.
            usage.registered_bytes = usage.registered_bytes.saturating_add(bytes);
        });
        Ok(())
    }

    pub(super) fn uncount_region(&mut self, pd: PdId, bytes: u64) {
        if let Some(held) = self.pds.get_mut(&pd) {
            held.regions -= 1;
            let owner = held.owner;
            self.account(owner, |usage| {
                usage.regions -= 1;
                usage.registered_bytes = usage.registered_bytes.saturating_sub(bytes);
            });
        }
    }

    pub(super) fn count_window(&mut self, pd: PdId) -> Result<(), MemoryError> {
        let held = self.pds.get_mut(&pd).ok_or(MemoryError::UnknownPd)?;
        held.windows += 1;
        let owner = held.owner;
        self.account(owner, |usage| usage.windows += 1);
        Ok(())
    }

    pub(super) fn uncount_window(&mut self, pd: PdId) {
        if let Some(held) = self.pds.get_mut(&pd) {
            held.windows -= 1;
            let owner = held.owner;
            self.account(owner, |usage| usage.windows -= 1);
        }
    }

    /// Changes an owner's usage; an owner that holds nothing is forgotten.
    fn account(&mut self, owner: u64, change: impl FnOnce(&mut Usage)) {
        let usage = self.usage.entry(owner).or_default();
        change(usage);
        if *usage == Usage::default() {
            self.usage.remove(&owner);
        }
    }
}
