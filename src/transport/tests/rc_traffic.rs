//! RC: every operation arrives, whatever the link does.

use super::end::{BASE, Setup};
use super::pair::{Fate, Pair, Side};
use crate::transport::*;
use crate::wire::PathMtu;

const SIZES: [u32; 12] = [0, 1, 3, 4, 255, 1023, 1024, 1025, 3000, 4096, 65536, 300_001];

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

fn statuses(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    completions.iter().map(|c| (c.wr_id, c.status)).collect()
}

#[test]
fn write_of_every_size_and_mtu() {
    for mtu in PathMtu::ALL {
        let mut setup = Setup::default();
        setup.attrs.path_mtu = mtu;
        let mut pair = Pair::new(&setup);
        for (n, len) in SIZES.into_iter().enumerate() {
            let data = pattern(len as usize, n as u8);
            pair.a.fill(0, &data);
            let op = SendOp::Write { va: BASE + 7, rkey: pair.b.keys.rkey };
            pair.a.send(n as u64, op, 0, len).unwrap();
            let (a, b) = pair.finish();
            assert_eq!(statuses(&a), [(n as u64, WcStatus::Success)], "{mtu:?} {len}");
            assert!(b.is_empty());
            assert_eq!(pair.b.bytes(7, len as usize), data, "{mtu:?} {len}");
        }
        assert_eq!(pair.a.qp.counters().retransmitted_packets, 0);
    }
}

#[test]
fn send_of_every_size_with_all_variants() {
    let mut pair = Pair::new(&Setup::default());
    for (n, len) in SIZES.into_iter().enumerate() {
        for imm in [None, Some(0xdead_0000 + len)] {
            let data = pattern(len as usize, n as u8);
            pair.a.fill(0, &data);
            pair.b.recv(99, 5, 400_000);
            pair.a.send(1, imm.map_or(SendOp::Send, SendOp::SendImm), 0, len).unwrap();
            let (a, b) = pair.finish();
            assert_eq!(statuses(&a), [(1, WcStatus::Success)]);
            assert_eq!((b[0].wr_id, b[0].byte_len, b[0].imm, b[0].opcode), (99, len, imm, WcOpcode::Recv));
            assert_eq!(pair.b.bytes(5, len as usize), data);
        }
    }
}

#[test]
fn read_of_every_size_and_mtu() {
    for mtu in PathMtu::ALL {
        let mut setup = Setup::default();
        setup.attrs.path_mtu = mtu;
        let mut pair = Pair::new(&setup);
        for (n, len) in SIZES.into_iter().enumerate() {
            let data = pattern(len as usize, n as u8);
            pair.b.fill(9, &data);
            let op = SendOp::Read { va: BASE + 9, rkey: pair.b.keys.rkey };
            pair.a.send(n as u64, op, 3, len).unwrap();
            let (a, _) = pair.finish();
            assert_eq!(statuses(&a), [(n as u64, WcStatus::Success)], "{mtu:?} {len}");
            assert_eq!((a[0].opcode, a[0].byte_len), (WcOpcode::RdmaRead, len));
            assert_eq!(pair.a.bytes(3, len as usize), data, "{mtu:?} {len}");
        }
    }
}

/// Posts one of everything and checks what became of it.
fn mixture(pair: &mut Pair) {
    let rkey = pair.b.keys.rkey;
    let data = pattern(200_000, 1);
    pair.a.fill(0, &data);
    pair.b.fill(1 << 20, &pattern(50_000, 2));
    pair.b.fill(2 << 20, &1000u64.to_ne_bytes());
    for n in 0..6 {
        pair.b.recv(100 + n, (3 << 20) + n * 20_000, 20_000);
    }
    let remote = BASE + (2 << 20);
    let ops = [
        (SendOp::Write { va: BASE, rkey }, 0, 70_000),
        (SendOp::Send, 0, 10_000),
        (SendOp::Read { va: BASE + (1 << 20), rkey }, 1 << 20, 50_000),
        (SendOp::FetchAdd { va: remote, rkey, add: 5 }, 2 << 20, 8),
        (SendOp::SendImm(7), 100, 1),
        (SendOp::CompareSwap { va: remote, rkey, compare: 1005, swap: 77 }, (2 << 20) + 8, 8),
        (SendOp::WriteImm { va: BASE + 150_000, rkey, imm: 9 }, 300, 3000),
        (SendOp::Read { va: BASE + (1 << 20), rkey }, (1 << 20) + 60_000, 1),
        (SendOp::CompareSwap { va: remote, rkey, compare: 1, swap: 99 }, (2 << 20) + 16, 8),
        (SendOp::Send, 500, 4097),
    ];
    for (n, (op, offset, len)) in ops.into_iter().enumerate() {
        pair.a.send(n as u64, op, offset, len).unwrap();
    }
    let (a, b) = pair.finish();
    assert_eq!(statuses(&a), (0..10).map(|n| (n, WcStatus::Success)).collect::<Vec<_>>());
    assert_eq!(pair.b.bytes(0, 70_000), data[..70_000]);
    assert_eq!(pair.b.bytes(150_000, 3000), data[300..3300]);
    assert_eq!(pair.a.bytes(1 << 20, 50_000), pattern(50_000, 2));
    let words: Vec<u64> =
        pair.a.bytes(2 << 20, 24).chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words, [1000, 1005, 77]);
    assert_eq!(pair.b.bytes(2 << 20, 8), 77u64.to_ne_bytes());
    let received: Vec<_> = b.iter().map(|c| (c.wr_id, c.byte_len, c.imm, c.status)).collect();
    let ok = WcStatus::Success;
    assert_eq!(
        received,
        [(100, 10_000, None, ok), (101, 1, Some(7), ok), (102, 3000, Some(9), ok), (103, 4097, None, ok)]
    );
    assert_eq!(pair.b.bytes(3 << 20, 10_000), data[..10_000]);
    assert_eq!(pair.b.bytes((3 << 20) + 60_000, 4097), data[500..4597]);
    assert!(pair.a.events.is_empty() && pair.b.events.is_empty());
}

#[test]
fn a_mixture_completes_in_order() {
    let mut pair = Pair::new(&Setup::default());
    mixture(&mut pair);
    assert_eq!(pair.a.qp.counters().retransmitted_packets, 0);
}

#[test]
fn any_one_packet_may_be_lost_doubled_or_late() {
    let (from_a, from_b) = {
        let mut pair = Pair::new(&Setup::default());
        mixture(&mut pair);
        (pair.sent(Side::A), pair.sent(Side::B))
    };
    assert!(from_a > 80 && from_b > 50, "{from_a} {from_b}");
    let late = Fate::Delay(core::time::Duration::from_micros(50));
    for (side, count) in [(Side::A, from_a), (Side::B, from_b)] {
        for nth in 0..count {
            for fate in [Fate::Drop, Fate::Duplicate, late] {
                let mut pair = Pair::new(&Setup::default());
                pair.script(move |s, n| if (s, n) == (side, nth) { fate } else { Fate::Pass });
                mixture(&mut pair);
            }
        }
    }
}

#[test]
fn a_bad_link_takes_longer_but_loses_nothing() {
    for seed in 1..=200u64 {
        let mut setup = Setup::default();
        setup.attrs.retry_count = 7;
        setup.attrs.timeout = 10;
        setup.attrs.sq_psn = crate::wire::Psn::new(0xff_ffe0);
        let mut pair = Pair::new(&setup);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        pair.script(move |_, _| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            match state % 100 {
                0..=4 => Fate::Drop,
                5..=9 => Fate::Duplicate,
                10..=19 => Fate::Delay(core::time::Duration::from_micros(state >> 32 & 0xff)),
                _ => Fate::Pass,
            }
        });
        mixture(&mut pair);
    }
}
