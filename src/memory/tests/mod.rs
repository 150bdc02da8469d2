#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod checks;
mod copies;
#[cfg(not(miri))] // Miri has no memfd, pidfd and process_vm calls.
mod kernel;
#[cfg(not(miri))] // Thousands of cases.
mod model;
mod registrations;
mod windows;

use std::sync::Arc;

use super::*;

/// The queue pair that tests use where any will do.
pub(super) const QPN: u32 = 0x11;

pub(super) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

pub(super) fn memory() -> (Memory, PdId) {
    let mut memory = Memory::new([7; 32]);
    let pd = memory.create_pd(1);
    (memory, pd)
}

pub(super) fn mapping(len: usize) -> Arc<Mapping> {
    Arc::new(Mapping::anonymous(len).unwrap())
}

/// Registers the whole of a new anonymous mapping, whose bytes count up.
pub(super) fn region(memory: &mut Memory, pd: PdId, iova: u64, len: usize, access: Access) -> (u32, Arc<Mapping>) {
    let mapping = mapping(len);
    let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
    assert!(mapping.write(0, &bytes));
    let keys = memory.register(pd, Backing::Shared(Arc::clone(&mapping), 0), iova, len as u64, access).unwrap();
    (keys.lkey, mapping)
}

pub(super) fn bytes_of(mapping: &Mapping, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert!(mapping.read(offset, &mut bytes));
    bytes
}

pub(super) fn bytes_of_list(memory: &Memory, list: &GatherList) -> Vec<u8> {
    let mut bytes = Vec::new();
    memory.copy_list(list, &mut bytes).unwrap();
    assert_eq!(bytes.len(), list.len_bytes());
    bytes
}
