//! Regions, keys and protection domains: what may be made, and what is left when they go.

use std::collections::HashSet;

use super::*;

#[test]
fn rights_of_peers_to_write_need_the_local_one() {
    let (mut memory, pd) = memory();
    let shared = Backing::Shared(mapping(64), 0);
    for right in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = memory.register(pd, shared.clone(), 0, 64, right);
        assert!(matches!(refused, Err(MemoryError::NeedsLocalWrite(_))));
        memory.register(pd, shared.clone(), 0, 64, right | Access::LOCAL_WRITE).unwrap();
    }
    memory.register(pd, shared.clone(), 0, 64, Access::REMOTE_READ).unwrap();
    // On-demand paging is a promise; relaxed ordering and its unknown neighbours are hints.
    let on_demand = Access::from_bits_retain(1 << 6);
    assert!(matches!(memory.register(pd, shared.clone(), 0, 64, on_demand), Err(MemoryError::UnsupportedAccess(0x40))));
    memory.register(pd, shared, 0, 64, Access::from_bits_retain(1 << 20 | 1 << 29)).unwrap();
}

#[test]
fn ranges_must_fit_what_backs_them() {
    let (mut memory, pd) = memory();
    let shared = mapping(100);
    let mut register = |offset, iova, length| {
        memory.register(pd, Backing::Shared(Arc::clone(&shared), offset), iova, length, Access::empty()).map(|_| ())
    };
    register(0, 0, 100).unwrap();
    register(99, 0, 1).unwrap();
    assert!(matches!(register(0, 0, 0), Err(MemoryError::Empty)));
    assert!(matches!(register(0, 0, 101), Err(MemoryError::BeyondBacking { end: 101, have: 100, .. })));
    assert!(matches!(register(100, 0, 1), Err(MemoryError::BeyondBacking { .. })));
    assert!(matches!(register(u64::MAX, 0, 2), Err(MemoryError::BeyondBacking { .. })));
    assert!(matches!(register(0, u64::MAX, 2), Err(MemoryError::AddressOverflow { .. })));
    register(0, u64::MAX, 1).unwrap();
}

#[test]
fn a_zero_based_region_counts_from_its_start() {
    let (mut memory, pd) = memory();
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    let (key, _) = region(&mut memory, pd, 0x5000, 64, access);
    let mut list = GatherList::default();
    memory.gather_remote(pd, QPN, key, 3, 2, &mut list).unwrap();
    assert_eq!(bytes_of_list(&memory, &list), [3, 4]);
    let refused = memory.check_remote(pd, QPN, key, 0x5000, 1, Access::REMOTE_READ);
    assert!(matches!(refused, Err(AccessError::OutOfBounds { .. })));
}

#[test]
fn keys_change_at_each_registration_and_survive_growth() {
    const REGIONS: usize = if cfg!(miri) { 100 } else { 5_000 };
    let (mut memory, pd) = memory();
    let shared = mapping(64);
    let mut seen = HashSet::new();
    let mut live = Vec::new();
    for i in 0..REGIONS {
        let backing = Backing::Shared(Arc::clone(&shared), 0);
        let key = memory.register(pd, backing, i as u64 * 64, 64, Access::REMOTE_READ).unwrap().rkey;
        assert!(seen.insert(key), "key {key:#x} was given out twice");
        live.push((i, key));
        if i % 3 == 0 {
            memory.deregister(live.swap_remove(i % live.len()).1).unwrap();
        }
    }
    for (i, key) in &live {
        let va = *i as u64 * 64;
        assert_eq!(memory.check_remote(pd, QPN, *key, va, 64, Access::REMOTE_READ), Ok(()));
        assert!(memory.check_remote(pd, QPN, *key, va + 1, 64, Access::REMOTE_READ).is_err());
    }
    assert_eq!(memory.regions().count(), live.len());
    assert_eq!(memory.usage(1).registered_bytes, live.len() as u64 * 64);
}

#[test]
fn keys_follow_from_the_secret_alone() {
    let keys = |secret| {
        let mut memory = Memory::new([secret; 32]);
        let pd = memory.create_pd(1);
        (0..50).map(|_| region(&mut memory, pd, 0, 8, ALL).0).collect::<Vec<_>>()
    };
    assert_eq!(keys(1), keys(1));
    let (one, two) = (keys(1), keys(2));
    assert!(one.iter().all(|key| !two.contains(key)));
}

#[test]
fn a_packet_in_flight_does_not_outlive_its_region() {
    let (mut memory, pd) = memory();
    let (key, mapping) = region(&mut memory, pd, 0, 1000, ALL);
    let mut list = GatherList::default();
    memory.gather_remote(pd, QPN, key, 0, 1000, &mut list).unwrap();
    memory.deregister(key).unwrap();
    assert_eq!(Arc::strong_count(&mapping), 1, "the table let go of the mapping");
    // A new region takes the same place in the table, and is not mistaken for the old one.
    region(&mut memory, pd, 0, 1000, ALL);
    let piece = list.pieces()[0];
    assert_eq!(memory.copy_piece(&list, &piece, &mut Vec::new()), Err(AccessError::Deregistered));
    assert_eq!(memory.copy_list(&list, &mut Vec::new()), Err(AccessError::Deregistered));
}

#[test]
fn pieces_made_up_by_a_caller_are_refused() {
    let (mut memory, pd) = memory();
    region(&mut memory, pd, 0, 1000, ALL);
    let list = GatherList::default();
    for (region, generation, offset, len) in
        [(0, 0, 999, 2), (0, 0, u64::MAX, 1), (0, 0, 0, 1001), (0, 1, 0, 1), (1, 0, 0, 1), (u32::MAX, 0, 0, 1)]
    {
        let piece = Piece::Shared { region, generation, offset, len };
        assert_eq!(memory.copy_piece(&list, &piece, &mut Vec::new()), Err(AccessError::Deregistered));
    }
    for (start, len) in [(0, 1), (u32::MAX, u32::MAX)] {
        assert!(memory.copy_piece(&list, &Piece::Arena { start, len }, &mut Vec::new()).is_err());
    }
}

#[test]
fn a_domain_in_use_stays() {
    let (mut memory, pd) = memory();
    let (key, _) = region(&mut memory, pd, 0, 64, ALL);
    assert!(matches!(memory.destroy_pd(pd), Err(MemoryError::Busy("regions"))));
    memory.deregister(key).unwrap();
    let window = memory.allocate_window(pd).unwrap();
    assert!(matches!(memory.destroy_pd(pd), Err(MemoryError::Busy("memory windows"))));
    memory.deallocate_window(window).unwrap();
    memory.retain_pd(pd).unwrap();
    assert!(matches!(memory.destroy_pd(pd), Err(MemoryError::Busy(_))));
    memory.release_pd(pd);
    memory.destroy_pd(pd).unwrap();
    assert!(matches!(memory.destroy_pd(pd), Err(MemoryError::UnknownPd)));
    assert!(matches!(memory.allocate_window(pd), Err(MemoryError::UnknownPd)));
    assert_ne!(memory.create_pd(1), pd);
}

#[test]
fn an_owner_leaves_with_all_it_had() {
    let (mut memory, pd) = memory();
    let theirs = memory.create_pd(2);
    let (kept, _) = region(&mut memory, theirs, 0, 64, ALL);
    let (key, mapping) = region(&mut memory, pd, 0, 4096, ALL);
    region(&mut memory, pd, 0, 100, ALL);
    let window = memory.allocate_window(pd).unwrap();
    let binding = WindowBinding { rkey: window, lkey: key, addr: 0, length: 8, access: Access::REMOTE_READ };
    memory.bind_window(pd, QPN, &binding).unwrap();
    assert_eq!(memory.usage(1), Usage { pds: 1, regions: 2, windows: 1, registered_bytes: 4196 });

    memory.retain_pd(pd).unwrap();
    assert!(matches!(memory.release_owner(1), Err(MemoryError::Busy(_))));
    assert_eq!(memory.usage(1).regions, 2);
    memory.release_pd(pd);
    memory.release_owner(1).unwrap();
    assert_eq!(memory.usage(1), Usage::default());
    assert_eq!(Arc::strong_count(&mapping), 1);
    assert_eq!(memory.regions().map(Region::key).collect::<Vec<_>>(), [kept]);
    assert_eq!(memory.usage(2), Usage { pds: 1, regions: 1, windows: 0, registered_bytes: 64 });
}
