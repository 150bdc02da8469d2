//! Each check of the data path, and the bytes that pass it.

use super::*;

const IOVA: u64 = 0x7000_0000_1000;

#[test]
fn gather_joins_elements_and_skips_an_offset() {
    let (mut memory, pd) = memory();
    let (a, _) = region(&mut memory, pd, IOVA, 1000, Access::empty());
    let (b, _) = region(&mut memory, pd, 0, 64, Access::empty());
    let sges = [
        Sge { addr: IOVA + 10, length: 600, lkey: a },
        Sge { addr: 0xdead, length: 0, lkey: 0xdead },
        Sge { addr: 8, length: 16, lkey: b },
    ];
    assert_eq!(memory.check_local(pd, &sges, LocalUse::Read), Ok(616));

    let mut list = GatherList::default();
    list.push_bytes(b"head");
    memory.gather(pd, &sges, 20, 590, &mut list).unwrap();
    let mut expected = b"head".to_vec();
    expected.extend((30..610).map(|i| i as u8));
    expected.extend(8..18);
    assert_eq!(bytes_of_list(&memory, &list), expected);
    assert_eq!(list.pieces().len(), 3);

    let short = memory.gather(pd, &sges, 600, 17, &mut list);
    assert_eq!(short, Err(AccessError::ShortList { offset: 600, end: 617, total: 616 }));
    assert_eq!(bytes_of_list(&memory, &list), expected);
}

#[test]
fn scatter_fills_elements_from_an_offset() {
    let (mut memory, pd) = memory();
    let (a, first) = region(&mut memory, pd, IOVA, 8, Access::LOCAL_WRITE);
    let (b, second) = region(&mut memory, pd, 0, 8, Access::LOCAL_WRITE);
    let sges = [Sge { addr: IOVA + 4, length: 4, lkey: a }, Sge { addr: 0, length: 4, lkey: b }];
    memory.scatter(pd, &sges, 2, b"abcd").unwrap();
    assert_eq!(bytes_of(&first, 0, 8), [0, 1, 2, 3, 4, 5, b'a', b'b']);
    assert_eq!(bytes_of(&second, 0, 8), [b'c', b'd', 2, 3, 4, 5, 6, 7]);
    assert_eq!(memory.scatter(pd, &sges, 6, b"abc"), Err(AccessError::ShortList { offset: 6, end: 9, total: 8 }));
}

#[test]
fn bounds_are_exact_to_the_byte() {
    let (mut memory, pd) = memory();
    let (key, _) = region(&mut memory, pd, IOVA, 100, ALL);
    let check = |va, len| memory.check_remote(pd, QPN, key, va, len, Access::REMOTE_READ);
    let outside = |va, len| Err(AccessError::OutOfBounds { key, va, len, start: IOVA, length: 100 });
    assert_eq!(check(IOVA, 100), Ok(()));
    assert_eq!(check(IOVA + 99, 1), Ok(()));
    assert_eq!(check(IOVA, 101), outside(IOVA, 101));
    assert_eq!(check(IOVA + 100, 1), outside(IOVA + 100, 1));
    assert_eq!(check(IOVA - 1, 1), outside(IOVA - 1, 1));
    assert_eq!(check(IOVA - 1, 102), outside(IOVA - 1, 102));
    assert_eq!(check(u64::MAX, 1), Err(AccessError::AddressOverflow { key, va: u64::MAX, len: 1 }));
    assert_eq!(check(IOVA, u64::MAX), Err(AccessError::AddressOverflow { key, va: IOVA, len: u64::MAX }));
    // Nothing is never outside, wherever it is said to be.
    for va in [0, IOVA - 1, IOVA + 100, IOVA + 101, u64::MAX] {
        assert_eq!(check(va, 0), Ok(()));
    }
}

#[test]
fn a_region_may_end_where_the_address_space_ends() {
    let (mut memory, pd) = memory();
    let (key, _) = region(&mut memory, pd, u64::MAX - 15, 16, ALL);
    assert_eq!(memory.check_remote(pd, QPN, key, u64::MAX, 1, Access::REMOTE_READ), Ok(()));
    assert_eq!(
        memory.check_remote(pd, QPN, key, u64::MAX, 2, Access::REMOTE_READ),
        Err(AccessError::AddressOverflow { key, va: u64::MAX, len: 2 })
    );
    // An element that wraps is refused as a whole and in parts.
    let (low, _) = region(&mut memory, pd, 0, 64, ALL);
    let wrapping = [Sge { addr: u64::MAX - 9, length: 40, lkey: low }];
    assert!(matches!(memory.check_local(pd, &wrapping, LocalUse::Read), Err(AccessError::AddressOverflow { .. })));
    let part = memory.gather(pd, &wrapping, 20, 10, &mut GatherList::default());
    assert!(matches!(part, Err(AccessError::AddressOverflow { .. })));
}

#[test]
fn each_right_is_asked_for() {
    let (mut memory, pd) = memory();
    let (none, _) = region(&mut memory, pd, 0, 64, Access::empty());
    let denied = |need| AccessError::Denied { key: none, need, have: Access::empty() };
    let sge = [Sge { addr: 0, length: 8, lkey: none }];
    assert_eq!(memory.check_local(pd, &sge, LocalUse::Read), Ok(8));
    assert_eq!(memory.check_local(pd, &sge, LocalUse::Write), Err(denied(Access::LOCAL_WRITE)));
    assert_eq!(memory.scatter(pd, &sge, 0, &[1]), Err(denied(Access::LOCAL_WRITE)));
    let mut list = GatherList::default();
    assert_eq!(memory.gather_remote(pd, QPN, none, 0, 8, &mut list), Err(denied(Access::REMOTE_READ)));
    assert_eq!(memory.write_remote(pd, QPN, none, 0, &[1]), Err(denied(Access::REMOTE_WRITE)));
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(memory.atomic(pd, QPN, none, 0, add), Err(denied(Access::REMOTE_ATOMIC)));
}

#[test]
fn keys_of_others_and_of_nobody_are_told_apart() {
    let (mut memory, pd) = memory();
    let other = memory.create_pd(2);
    let (key, _) = region(&mut memory, pd, 0, 64, ALL);
    let check = |memory: &Memory, pd, key| memory.check_remote(pd, QPN, key, 0, 1, Access::REMOTE_READ);
    assert_eq!(check(&memory, other, key), Err(AccessError::ForeignPd { key }));
    let guess = key ^ 0x8000_0000;
    assert_eq!(check(&memory, pd, guess), Err(AccessError::UnknownKey { key: guess }));
    assert_eq!(check(&memory, pd, 0), Err(AccessError::UnknownKey { key: 0 }));
    memory.deregister(key).unwrap();
    assert_eq!(check(&memory, pd, key), Err(AccessError::StaleKey { key }));
    assert!(matches!(memory.deregister(key), Err(MemoryError::UnknownKey { .. })));
}

#[test]
fn atomics_return_the_original_and_want_alignment() {
    let (mut memory, pd) = memory();
    let (key, mapping) = region(&mut memory, pd, IOVA, 64, ALL);
    assert!(mapping.write(8, &40_u64.to_ne_bytes()));
    let word = |mapping: &Mapping| u64::from_ne_bytes(bytes_of(mapping, 8, 8).try_into().unwrap());

    assert_eq!(memory.atomic(pd, QPN, key, IOVA + 8, AtomicOp::FetchAdd { add: 2 }), Ok(40));
    assert_eq!(word(&mapping), 42);
    let miss = AtomicOp::CompareSwap { compare: 1, swap: 9 };
    assert_eq!(memory.atomic(pd, QPN, key, IOVA + 8, miss), Ok(42));
    assert_eq!(word(&mapping), 42);
    let hit = AtomicOp::CompareSwap { compare: 42, swap: u64::MAX };
    assert_eq!(memory.atomic(pd, QPN, key, IOVA + 8, hit), Ok(42));
    assert_eq!(memory.atomic(pd, QPN, key, IOVA + 8, AtomicOp::FetchAdd { add: 2 }), Ok(u64::MAX));
    assert_eq!(word(&mapping), 1);

    let va = IOVA + 12;
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(memory.atomic(pd, QPN, key, va, add), Err(AccessError::Misaligned { key, va }));
    let va = IOVA + 60;
    let outside = AccessError::OutOfBounds { key, va, len: 8, start: IOVA, length: 64 };
    assert_eq!(memory.atomic(pd, QPN, key, va, add), Err(outside));
    // The address is a multiple of 8, the memory behind it is not.
    let shifted = memory.register(pd, Backing::Shared(mapping, 4), 0, 32, ALL).unwrap().rkey;
    assert_eq!(memory.atomic(pd, QPN, shifted, 8, add), Err(AccessError::Misaligned { key: shifted, va: 8 }));
}

#[test]
fn client_threads_and_remote_atomics_count_together() {
    const ROUNDS: u64 = if cfg!(miri) { 50 } else { 20_000 };
    let (mut memory, pd) = memory();
    let (key, mapping) = region(&mut memory, pd, 0, 8, ALL);
    assert!(mapping.write(0, &[0; 8]));
    let client = Arc::clone(&mapping);
    let thread = std::thread::spawn(move || {
        for _ in 0..ROUNDS {
            client.atomic(0).unwrap().fetch_add(1, core::sync::atomic::Ordering::SeqCst);
        }
    });
    for _ in 0..ROUNDS {
        memory.atomic(pd, QPN, key, 0, AtomicOp::FetchAdd { add: 1 }).unwrap();
    }
    thread.join().unwrap();
    assert_eq!(u64::from_ne_bytes(bytes_of(&mapping, 0, 8).try_into().unwrap()), 2 * ROUNDS);
}

#[test]
fn a_list_goes_back_to_its_mark() {
    let (mut memory, pd) = memory();
    let (key, _) = region(&mut memory, pd, 0, 1000, ALL);
    let mut list = GatherList::default();
    list.push_bytes(b"one");
    let mark = list.mark();
    list.push_bytes(b"two");
    memory.gather_remote(pd, QPN, key, 0, 1000, &mut list).unwrap();
    list.push_bytes(b"three");
    list.truncate(mark);
    assert_eq!(list.mark(), mark);
    assert_eq!(bytes_of_list(&memory, &list), b"one");
    list.push_bytes(b"!");
    assert_eq!((bytes_of_list(&memory, &list), list.pieces().len()), (b"one!".to_vec(), 1));
    list.clear();
    assert!(list.is_empty() && list.pieces().is_empty());
}
