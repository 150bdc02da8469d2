//! Region to region.

use super::*;
use crate::memory::Mapping;
use core::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn lists_of_different_shape_copy_into_each_other() {
    let (mut memory, pd) = memory();
    let other = memory.create_pd(2);
    let (a, _) = region(&mut memory, pd, 0, 100, Access::empty());
    let (b, target) = region(&mut memory, other, 0x100, 100, Access::LOCAL_WRITE);
    let from = [5, 50, 20].map(|addr| Sge { addr, length: 10, lkey: a });
    let to = [Sge { addr: 0x100, length: 7, lkey: b }, Sge { addr: 0x120, length: 40, lkey: b }];
    let source = Source::Sges { pd, sges: &from, offset: 4 };
    memory.copy(&source, &Target::Sges { pd: other, sges: &to, offset: 2 }, 26).unwrap();
    let expected: Vec<u8> = (9..15).chain(50..60).chain(20..30).collect();
    assert_eq!(bytes_of(&target, 2, 5), expected[..5]);
    assert_eq!(bytes_of(&target, 0x20, 21), expected[5..]);
    assert_eq!(bytes_of(&target, 7, 1), [7]);
}

#[test]
fn writes_reads_and_inline_data_reach_a_peer() {
    let (mut memory, pd) = memory();
    let (a, near) = region(&mut memory, pd, 0, 64, Access::LOCAL_WRITE);
    let (b, far) = region(&mut memory, pd, 0x9000, 64, ALL);
    let sges = [Sge { addr: 16, length: 16, lkey: a }];
    let remote = |va| Target::Remote { pd, qpn: QPN, rkey: b, va };
    memory.copy(&Source::Sges { pd, sges: &sges, offset: 0 }, &remote(0x9000), 16).unwrap();
    assert_eq!(bytes_of(&far, 0, 16), (16..32).collect::<Vec<u8>>());
    memory.copy(&Source::Bytes(b"inline"), &remote(0x9010), 6).unwrap();
    assert_eq!(bytes_of(&far, 16, 6), b"inline");
    let read = Source::Remote { pd, qpn: QPN, rkey: b, va: 0x9010 };
    memory.copy(&read, &Target::Sges { pd, sges: &sges, offset: 3 }, 6).unwrap();
    assert_eq!(bytes_of(&near, 19, 6), b"inline");
    memory.copy(&Source::Bytes(b""), &remote(0), 0).unwrap();
}

#[test]
fn a_refused_copy_moves_nothing_and_names_the_side() {
    let (mut memory, pd) = memory();
    let (a, _) = region(&mut memory, pd, 0, 64, Access::empty());
    let (b, far) = region(&mut memory, pd, 0, 64, ALL);
    let good = Sge { addr: 40, length: 16, lkey: a };
    let bad = Sge { addr: 60, length: 16, lkey: a };
    let target = Target::Remote { pd, qpn: QPN, rkey: b, va: 0 };
    let refused = memory.copy(&Source::Sges { pd, sges: &[good, bad], offset: 0 }, &target, 32);
    assert!(matches!(refused, Err(CopyError::Source(AccessError::OutOfBounds { .. }))));
    let beyond = Target::Remote { pd, qpn: QPN, rkey: b, va: 60 };
    let refused = memory.copy(&Source::Sges { pd, sges: &[good], offset: 0 }, &beyond, 16);
    assert!(matches!(refused, Err(CopyError::Target(AccessError::OutOfBounds { .. }))));
    let read_only = [Sge { addr: 0, length: 16, lkey: a }];
    let refused = memory.copy(&Source::Bytes(&[0; 16]), &Target::Sges { pd, sges: &read_only, offset: 0 }, 16);
    assert!(matches!(refused, Err(CopyError::Target(AccessError::Denied { .. }))));
    let refused = memory.copy(&Source::Bytes(&[0; 4]), &target, 5);
    assert!(matches!(refused, Err(CopyError::Source(AccessError::ShortList { .. }))));
    assert_eq!(bytes_of(&far, 0, 64), (0..64).collect::<Vec<u8>>());
}

#[test]
fn ranges_of_one_region_may_overlap() {
    let (mut memory, pd) = memory();
    let (key, mapping) = region(&mut memory, pd, 0, 64, ALL);
    let sges = [Sge { addr: 0, length: 32, lkey: key }];
    let target = Target::Remote { pd, qpn: QPN, rkey: key, va: 8 };
    memory.copy(&Source::Sges { pd, sges: &sges, offset: 0 }, &target, 32).unwrap();
    assert_eq!(bytes_of(&mapping, 8, 32), (0..32).collect::<Vec<u8>>());
}

/// Programs that look at the end of a message to see it whole (perftest's `ib_write_lat`): both kinds of copy, at any alignment, of
/// lengths of which a `memcpy` writes the end before what is in front of it.
#[test]
#[cfg_attr(miri, ignore = "races on purpose, as a client may")]
fn who_sees_the_end_of_what_is_written_sees_all_of_it() {
    const LARGEST: usize = 512;
    let shared = Mapping::anonymous(LARGEST).unwrap();
    let (from, seen) = (Mapping::anonymous(LARGEST).unwrap(), AtomicU64::new(0));
    let mark = |round: u64| (round % 255) as u8 + 1;
    let place = |round: u64| (round % 61, 65 + (round / 61 % 193) as usize);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut all = [0; LARGEST];
            for round in 1..=ROUNDS {
                let ((offset, len), mark) = (place(round), mark(round));
                let end = offset + len as u64 - 1;
                let word = shared.atomic(end & !7).unwrap();
                while u64::from_le(word.load(Ordering::Acquire)).to_le_bytes()[(end % 8) as usize] != mark {
                    std::hint::spin_loop();
                }
                assert!(shared.read(offset, &mut all[..len]));
                let wrong = all[..len].iter().filter(|byte| **byte != mark).count();
                seen.store(round, Ordering::Release);
                assert_eq!(wrong, 0, "of {len} bytes at {offset}, round {round}");
            }
        });
        for round in 1..=ROUNDS {
            let ((offset, len), bytes) = (place(round), [mark(round); LARGEST]);
            assert!(shared.write(0, &[0; LARGEST]));
            if round % 2 == 0 {
                assert!(shared.write(offset, &bytes[..len]));
            } else {
                assert!(from.write(0, &bytes) && Mapping::copy(&from, 0, &shared, offset, len));
            }
            let start = Instant::now();
            while seen.load(Ordering::Acquire) != round {
                assert!(start.elapsed() < Duration::from_secs(10), "the reader has gone");
                std::hint::spin_loop();
            }
        }
    });
}

const ROUNDS: u64 = 500_000;
