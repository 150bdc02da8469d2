//! Type 2 memory windows.

use super::*;

const IOVA: u64 = 0x1000;

fn bound(access: Access) -> (Memory, PdId, u32, u32) {
    let (mut memory, pd) = memory();
    let (lkey, _) = region(&mut memory, pd, IOVA, 100, Access::LOCAL_WRITE | Access::MW_BIND);
    let rkey = memory.allocate_window(pd).unwrap();
    let binding = WindowBinding { rkey, lkey, addr: IOVA + 10, length: 20, access };
    memory.bind_window(pd, QPN, &binding).unwrap();
    (memory, pd, lkey, rkey)
}

#[test]
fn a_window_shows_its_part_to_its_queue_pair() {
    let (mut memory, pd, lkey, rkey) = bound(Access::REMOTE_READ);
    let mut list = GatherList::default();
    memory.gather_remote(pd, QPN, rkey, IOVA + 10, 20, &mut list).unwrap();
    assert_eq!(bytes_of_list(&memory, &list), (10..30).collect::<Vec<u8>>());

    let check = |qpn, va, len, need| memory.check_remote(pd, qpn, rkey, va, len, need);
    let need = Access::REMOTE_READ;
    assert_eq!(check(QPN + 1, IOVA + 10, 1, need), Err(AccessError::ForeignQp { key: rkey, qpn: QPN + 1 }));
    for (va, len) in [(IOVA + 9, 1), (IOVA + 10, 21), (IOVA + 30, 1)] {
        let outside = AccessError::OutOfBounds { key: rkey, va, len, start: IOVA + 10, length: 20 };
        assert_eq!(check(QPN, va, len, need), Err(outside));
    }
    assert!(matches!(check(QPN, IOVA + 10, 1, Access::REMOTE_WRITE), Err(AccessError::Denied { .. })));
    // The region itself gives peers nothing, and the window is no L_Key.
    assert!(matches!(memory.check_remote(pd, QPN, lkey, IOVA, 1, need), Err(AccessError::Denied { .. })));
    let sge = [Sge { addr: IOVA + 10, length: 1, lkey: rkey }];
    assert_eq!(memory.check_local(pd, &sge, LocalUse::Read), Err(AccessError::WindowAsLocalKey { key: rkey }));
}

#[test]
fn a_zero_based_window_counts_from_its_start() {
    let (mut memory, pd, _, rkey) = bound(Access::REMOTE_WRITE | Access::ZERO_BASED);
    memory.write_remote(pd, QPN, rkey, 19, &[0xff]).unwrap();
    assert!(memory.write_remote(pd, QPN, rkey, 20, &[0xff]).is_err());
    let bytes = match memory.regions().next().unwrap().backing() {
        Backing::Shared(mapping, _) => bytes_of(mapping, 28, 3),
        Backing::Process(_) => panic!("registered as shared"),
    };
    assert_eq!(bytes, [28, 0xff, 30]);
}

#[test]
fn invalidation_ends_it_and_a_new_binding_has_a_new_key() {
    let (mut memory, pd, lkey, rkey) = bound(Access::REMOTE_READ);
    assert!(matches!(memory.deregister(lkey), Err(MemoryError::Busy(_))));
    assert_eq!(memory.invalidate(pd, rkey, QPN + 1), Err(AccessError::ForeignQp { key: rkey, qpn: QPN + 1 }));
    assert_eq!(memory.invalidate(pd, lkey, QPN), Err(AccessError::NotAWindow { key: lkey }));
    memory.invalidate(pd, rkey, QPN).unwrap();
    assert_eq!(memory.invalidate(pd, rkey, QPN), Err(AccessError::UnboundWindow { key: rkey }));
    let check = |memory: &Memory, key| memory.check_remote(pd, QPN, key, IOVA + 10, 1, Access::REMOTE_READ);
    assert_eq!(check(&memory, rkey), Err(AccessError::UnboundWindow { key: rkey }));

    // ibv_inc_rkey: only the low byte changes.
    let next = rkey & !0xff | (rkey.wrapping_add(1) & 0xff);
    let binding = WindowBinding { rkey: next, lkey, addr: IOVA, length: 20, access: Access::REMOTE_READ };
    memory.bind_window(pd, QPN, &binding).unwrap();
    assert_eq!(check(&memory, next), Ok(()));
    assert_eq!(check(&memory, rkey), Err(AccessError::StaleKey { key: rkey }));
    assert_eq!(memory.bind_window(pd, QPN, &binding), Err(AccessError::WindowBound { key: next }));
    assert!(matches!(memory.deallocate_window(rkey), Err(MemoryError::UnknownKey { .. })));
    memory.deallocate_window(next).unwrap();
    memory.deregister(lkey).unwrap();
}

#[test]
fn a_binding_is_checked_like_an_access() {
    let (mut memory, pd) = memory();
    let other = memory.create_pd(2);
    let (plain, _) = region(&mut memory, pd, IOVA, 100, Access::LOCAL_WRITE);
    let (readable, _) = region(&mut memory, pd, IOVA, 100, Access::MW_BIND);
    let (foreign, _) = region(&mut memory, other, IOVA, 100, ALL);
    let rkey = memory.allocate_window(pd).unwrap();
    let good = WindowBinding { rkey, lkey: readable, addr: IOVA, length: 100, access: Access::REMOTE_READ };
    let mut bind = |pd, binding: WindowBinding| memory.bind_window(pd, QPN, &binding);

    let need = Access::MW_BIND;
    let denied = AccessError::Denied { key: plain, need, have: Access::LOCAL_WRITE };
    assert_eq!(bind(pd, WindowBinding { lkey: plain, ..good }), Err(denied));
    let need = Access::MW_BIND | Access::LOCAL_WRITE;
    let denied = AccessError::Denied { key: readable, need, have: Access::MW_BIND };
    assert_eq!(bind(pd, WindowBinding { access: Access::REMOTE_WRITE, ..good }), Err(denied));
    assert_eq!(bind(pd, WindowBinding { lkey: foreign, ..good }), Err(AccessError::ForeignPd { key: foreign }));
    assert_eq!(bind(other, good), Err(AccessError::ForeignPd { key: rkey }));
    assert_eq!(bind(pd, WindowBinding { length: 0, ..good }), Err(AccessError::EmptyWindow { key: rkey }));
    assert!(matches!(bind(pd, WindowBinding { length: 101, ..good }), Err(AccessError::OutOfBounds { .. })));
    assert_eq!(bind(pd, WindowBinding { rkey: readable, ..good }), Err(AccessError::NotAWindow { key: readable }));
    let access = Access::LOCAL_WRITE;
    assert_eq!(bind(pd, WindowBinding { access, ..good }), Err(AccessError::NotAWindowRight { key: rkey, access }));
    // None of it has bound anything.
    assert_eq!(memory.invalidate(pd, rkey, QPN), Err(AccessError::UnboundWindow { key: rkey }));
    assert!(memory.regions().all(|region| region.windows() == 0));
}
