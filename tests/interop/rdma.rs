//! RDMA operations on RC.

use crate::end::{End, Setup, both_ways};
use crate::lab::{Family, lab};
use holdfast::ipc::client::{SendFlags, SendOp, WcOpcode};

/// Around what matters: nothing, padding, one packet more, many.
const SIZES: [u32; 8] = [0, 1, 3, 255, 1025, 4096, 65_537, 1 << 20];
const SEED: u64 = 42;
/// Where data come from, where WRITEs go at the peer, where READs go at home.
const SOURCE: u64 = 0;
const TARGET: u64 = 1 << 20;
const COPY: u64 = 2 << 20;

fn write_and_read(a: &mut End, b: &mut End) {
    a.side.fill(SEED, SOURCE, 1 << 20, 0);
    for (n, len) in (0..).zip(SIZES) {
        // Never the same bytes twice, and no alignment: the source begins at n.
        let from = if len < 1 << 20 { n } else { 0 };
        a.perform(b.write_to(TARGET + 5), SOURCE + from, len);
        b.side.check(SEED, TARGET + 5, len.into(), from);
        a.perform(b.read_from(TARGET + 5), COPY + 3, len);
        a.side.check(SEED, COPY + 3, len.into(), from);
    }
}

#[test]
fn writes_and_reads() {
    let Some(lab) = lab() else { return };
    for family in Family::BOTH {
        for mtu in [256, 512, 1024, 2048, 4096] {
            both_ways(&lab, "WRITE and READ, 0 B to 1 MiB", &Setup { family, mtu, ..Setup::default() }, write_and_read);
        }
    }
}

#[test]
fn a_message_of_eight_mebibytes() {
    const LEN: u32 = 8 << 20;
    let Some(lab) = lab() else { return };
    let setup = Setup { mtu: 4096, memory: 2 * u64::from(LEN), ..Setup::default() };
    both_ways(&lab, "WRITE and SEND of 8 MiB, READ back", &setup, |a, b| {
        a.side.fill(SEED, 0, LEN.into(), 0);
        a.perform(b.write_to(0), 0, LEN);
        b.side.check(SEED, 0, LEN.into(), 0);
        a.perform(b.read_from(0), LEN.into(), LEN);
        a.side.check(SEED, LEN.into(), LEN.into(), 0);
        b.receive(LEN.into(), LEN);
        a.perform(SendOp::Send, 0, LEN);
        b.received_send(LEN, SEED, 0);
    });
}

#[test]
fn writes_with_immediate() {
    let Some(lab) = lab() else { return };
    both_ways(&lab, "WRITE with immediate", &Setup::default(), |a, b| {
        a.side.fill(SEED, SOURCE, 1 << 20, 0);
        for (n, len) in (0..).zip(SIZES) {
            b.receive(0, 0);
            let (va, rkey) = b.there(TARGET);
            let imm = 0x0102_0304 + n;
            a.perform(SendOp::WriteImm { va, rkey, imm }, SOURCE, len);
            let got = b.received().done;
            assert_eq!((got.opcode, got.imm, got.len), (WcOpcode::RecvRdmaWithImm, Some(imm), len));
            b.side.check(SEED, TARGET, len.into(), 0);
        }
    });
}

#[test]
fn atomics() {
    let Some(lab) = lab() else { return };
    for family in Family::BOTH {
        both_ways(&lab, "CMP_AND_SWP, FETCH_AND_ADD", &Setup { family, ..Setup::default() }, |a, b| {
            b.side.set_word(TARGET, 1000);
            let (va, rkey) = b.there(TARGET);
            let swap = |compare, swap| SendOp::CompareSwap { va, rkey, compare, swap };
            for (op, before, after) in [
                (b.add_to(TARGET, 5), 1000, 1005),
                (b.add_to(TARGET, u64::MAX), 1005, 1004),
                (swap(1004, 77), 1004, 77),
                (swap(1, 99), 77, 77),
                (swap(77, 1 << 63 | 9), 77, 1 << 63 | 9),
            ] {
                a.perform(op, COPY, 8);
                assert_eq!((a.side.word(COPY), b.side.word(TARGET)), (before, after), "{op:?}");
            }
        });
    }
}

/// READs and atomics beyond what may be outstanding, WRITEs between them, all posted at once: they complete in order, and the fence
/// makes a WRITE of what a READ brought correct.
#[test]
fn a_deep_pipeline_with_fences() {
    let Some(lab) = lab() else { return };
    both_ways(&lab, "64 requests at once, fenced", &Setup::default(), |a, b| {
        b.side.fill(SEED, SOURCE, 65_536, 0);
        b.side.set_word(TARGET, 0);
        for n in 0..16 {
            let from = n * 3000;
            a.post(b.read_from(from), from, 3000);
            let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
            a.post_parts(0, b.write_to(COPY + from), fenced, &[(from, 3000)], None);
            a.post(b.add_to(TARGET, 1), COPY + 8 * n, 8);
            a.post(b.write_to(COPY + 100_000), 0, 1);
        }
        a.sent(64);
        b.side.check(SEED, COPY, 48_000, 0);
        a.side.check(SEED, 0, 48_000, 0);
        for n in 0..16 {
            assert_eq!(a.side.word(COPY + 8 * n), n);
        }
        assert_eq!(b.side.word(TARGET), 16);
    });
}

#[test]
fn gathers_and_scatters() {
    let Some(lab) = lab() else { return };
    both_ways(&lab, "SGE lists up to 32, inline data", &Setup::default(), |a, b| {
        a.side.fill(SEED, SOURCE, 65_536, 0);
        // 32 parts of lengths that are no multiple of anything, in order, next to each other.
        let mut at = 0;
        let parts: Vec<(u64, u32)> = (0..32)
            .map(|n| {
                let part = (at, 1 + n * 7 % 301);
                at += u64::from(part.1);
                part
            })
            .collect();
        let total = at as u32;
        // Scattered into 32 others with gaps between.
        let each = u64::from(total).div_ceil(32);
        let targets: Vec<(u64, u32)> = (0..32).map(|n| (TARGET + n * 1000, each as u32)).collect();
        b.receive_parts(0, &targets);
        a.post_parts(0, SendOp::Send, SendFlags::SIGNALED, &parts, None);
        a.sent(1);
        assert_eq!(b.received().done.len, total);
        for n in 0..32 {
            let len = each.min(u64::from(total).saturating_sub(n * each));
            b.side.check(SEED, TARGET + n * 1000, len, n * each);
        }
        a.post_parts(0, b.write_to(COPY), SendFlags::SIGNALED, &parts, None);
        a.post_parts(0, b.read_from(COPY), SendFlags::SIGNALED, &targets, None);
        a.sent(2);
        b.side.check(SEED, COPY, total.into(), 0);
        for n in 0..32 {
            let len = each.min(u64::from(total).saturating_sub(n * each));
            a.side.check(SEED, TARGET + n * 1000, len, n * each);
        }
        for len in [0, 1, 60, 333, 400] {
            let inline = SendFlags::SIGNALED | SendFlags::INLINE;
            b.receive(TARGET, 512);
            a.post_parts(0, SendOp::Send, inline, &[(SOURCE, len)], None);
            a.post_parts(0, b.write_to(COPY), inline, &[(SOURCE, len)], None);
            a.sent(2);
            b.received_send(len, SEED, 0);
            b.side.check(SEED, COPY, len.into(), 0);
        }
    });
}

#[test]
fn the_psn_wraps() {
    let Some(lab) = lab() else { return };
    for family in Family::BOTH {
        // It wraps within the first WRITE, the first READ, the SEND.
        for psn in [0xff_ffff, 0xff_fffc, 0xff_fff6] {
            both_ways(&lab, "PSN wrap", &Setup { family, psn, ..Setup::default() }, |a, b| {
                a.side.fill(SEED, SOURCE, 65_536, 0);
                b.receive(TARGET, 65_536);
                a.post(b.write_to(COPY), SOURCE, 6000);
                a.post(b.read_from(COPY), TARGET, 6000);
                a.post(SendOp::Send, SOURCE, 6001);
                a.post(b.add_to(COPY + 8000, 1), TARGET + 8000, 8);
                a.sent(4);
                b.side.check(SEED, COPY, 6000, 0);
                a.side.check(SEED, TARGET, 6000, 0);
                b.received_send(6001, SEED, 0);
                assert_eq!(b.side.word(COPY + 8000), 1);
            });
        }
    }
}
