//! Type 2 memory windows (IBTA 10.6.7.2): keys that a work request binds to part of a region, for one queue pair, and that
//! LOCAL_INV or a peer's SEND with invalidate takes back.

use super::{
    Access, AccessError, Memory, MemoryError, PdId,
    region::{Binding, Object, Window},
};

/// What a BIND_MW work request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowBinding {
    /// The window's key from now on. Its upper 24 bits name the window; the low 8 are its owner's choice (`ibv_inc_rkey(3)`).
    pub rkey: u32,
    /// The region to bind to; it needs [`Access::MW_BIND`].
    pub lkey: u32,
    /// First address, in the region's address space.
    pub addr: u64,
    /// Bytes; at least one.
    pub length: u64,
    /// REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC; ZERO_BASED: peers address the window from 0, not from `addr`.
    pub access: Access,
}

const WINDOW_RIGHTS: Access =
    Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC).union(Access::ZERO_BASED);

impl Memory {
    /// Makes a window, bound to nothing, and tells its first R_Key.
    pub fn allocate_window(&mut self, pd: PdId) -> Result<u32, MemoryError> {
        if !self.pds.contains_key(&pd) {
            return Err(MemoryError::UnknownPd);
        }
        let place = self.place_of_next()?;
        let key = self.keys.insert(place).ok_or(MemoryError::TooManyKeys)?;
        self.count_window(pd)?;
        self.objects.insert(Object::Window(Window { pd, key, bound: None }));
        Ok(key)
    }

    /// Removes a window, bound or not.
    pub fn deallocate_window(&mut self, rkey: u32) -> Result<(), MemoryError> {
        let Ok((place, Object::Window(window))) = self.find(rkey) else {
            return Err(MemoryError::UnknownKey { key: rkey });
        };
        let (pd, bound) = (window.pd, window.bound);
        if let Some(bound) = bound {
            self.unbind(bound);
        }
        self.keys.remove(rkey);
        self.objects.try_remove(place as usize);
        self.uncount_window(pd);
        Ok(())
    }

    /// Binds an unbound window for queue pair `qpn` (IBTA 10.6.7.2.6). On an error nothing has changed.
    pub fn bind_window(&mut self, pd: PdId, qpn: u32, binding: &WindowBinding) -> Result<(), AccessError> {
        let WindowBinding { rkey, lkey, addr, length, access } = *binding;
        let place = self.unbound_window(pd, rkey)?;
        if length == 0 {
            return Err(AccessError::EmptyWindow { key: rkey });
        }
        if !WINDOW_RIGHTS.contains(access) {
            return Err(AccessError::NotAWindowRight { key: rkey, access });
        }
        let local = if access.changes_memory_remotely() { Access::LOCAL_WRITE } else { Access::empty() };
        let at = self.locate_local(pd, lkey, addr, length, Access::MW_BIND | local)?;

        let start = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        let bound = Binding { qpn, region: at.region, offset: at.offset, start, length, access };
        if let Some(Object::Window(window)) = self.objects.get_mut(place as usize) {
            window.key = self.keys.rename(window.key, rkey.to_le_bytes()[0]);
            window.bound = Some(bound);
        }
        if let Some(region) = self.region_mut(at.region) {
            region.windows += 1;
        }
        Ok(())
    }

    /// Takes a window's binding back, for LOCAL_INV and for SEND with invalidate (IBTA 10.6.7.2.7). The key stays the
    /// window's, bound to nothing, until the next binding.
    pub fn invalidate(&mut self, pd: PdId, rkey: u32, qpn: u32) -> Result<(), AccessError> {
        let (place, Object::Window(window)) = self.find(rkey)? else {
            return Err(AccessError::NotAWindow { key: rkey });
        };
        if window.pd != pd {
            return Err(AccessError::ForeignPd { key: rkey });
        }
        let bound = window.bound.ok_or(AccessError::UnboundWindow { key: rkey })?;
        if bound.qpn != qpn {
            return Err(AccessError::ForeignQp { key: rkey, qpn });
        }
        if let Some(Object::Window(window)) = self.objects.get_mut(place as usize) {
            window.bound = None;
        }
        self.unbind(bound);
        Ok(())
    }

    pub(super) fn windows(&self) -> impl Iterator<Item = &Window> {
        self.objects.iter().filter_map(|(_, object)| match object {
            Object::Window(window) => Some(window),
            Object::Region(_) => None,
        })
    }

    /// The place of the window that the upper 24 bits of `rkey` name.
    fn unbound_window(&self, pd: PdId, rkey: u32) -> Result<u32, AccessError> {
        let place = self.keys.find_base(rkey).ok_or(AccessError::UnknownKey { key: rkey })?;
        match self.objects.get(place as usize) {
            Some(Object::Window(window)) if window.pd != pd => Err(AccessError::ForeignPd { key: rkey }),
            Some(Object::Window(window)) if window.bound.is_some() => Err(AccessError::WindowBound { key: window.key }),
            Some(Object::Window(_)) => Ok(place),
            _ => Err(AccessError::NotAWindow { key: rkey }),
        }
    }

    fn unbind(&mut self, bound: Binding) {
        if let Some(region) = self.region_mut(bound.region) {
            region.windows -= 1;
        }
    }
}
