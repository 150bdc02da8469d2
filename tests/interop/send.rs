//! SEND on RC, and what receives it.

use crate::end::{End, Setup, both_ways, one_way};
use crate::lab::{Family, lab};
use holdfast::ipc::client::{SendFlags, SendOp, WcStatus};
use std::time::Duration;

const SIZES: [u32; 8] = [0, 1, 3, 255, 1025, 4096, 65_537, 1 << 20];
const SEED: u64 = 43;
const SOURCE: u64 = 0;
const TARGET: u64 = 2 << 20;
/// Long enough for what should not come to have come.
const QUIET: Duration = Duration::from_millis(200);

fn sends(a: &mut End, b: &mut End) {
    a.side.fill(SEED, SOURCE, (1 << 20) + 8, 0);
    for (n, len) in (0..).zip(SIZES) {
        b.receive(TARGET, 1 << 20);
        a.perform(SendOp::Send, SOURCE + n, len);
        assert_eq!(b.received_send(len, SEED, n).done.imm, None);
        b.receive(TARGET, 1 << 20);
        let imm = 0xdead_0000 | n as u32;
        a.perform(SendOp::SendImm(imm), SOURCE + n, len);
        assert_eq!(b.received_send(len, SEED, n).done.imm, Some(imm));
    }
}

#[test]
fn sends_of_every_size() {
    let Some(lab) = lab() else { return };
    for family in Family::BOTH {
        for mtu in [256, 1024, 4096] {
            both_ways(&lab, "SEND, with immediate, 0 B to 1 MiB", &Setup { family, mtu, ..Setup::default() }, sends);
        }
    }
}

/// The window admits a WRITE; a SEND with invalidate closes it; the next WRITE is refused.
#[test]
fn a_send_invalidates_a_window() {
    let Some(lab) = lab() else { return };
    both_ways(&lab, "SEND with invalidate, then WRITE refused", &Setup::default(), |a, b| {
        a.side.fill(SEED, SOURCE, 4096, 0);
        let rkey = b.side.open_window(TARGET, 4096);
        let (va, _) = b.there(TARGET);
        a.perform(SendOp::Write { va, rkey }, SOURCE, 3000);
        b.side.check(SEED, TARGET, 3000, 0);
        b.receive(0, 4096);
        a.perform(SendOp::SendInvalidate(rkey), SOURCE, 3000);
        b.received_send(3000, SEED, 0);
        // That its bytes would differ shows that it was not carried out.
        a.post(SendOp::Write { va, rkey }, SOURCE + 1, 3000);
        a.sent_with(WcStatus::RemoteAccess);
        b.side.check(SEED, TARGET, 3000, 0);
    });
}

#[test]
fn two_queue_pairs_share_their_receives() {
    let Some(lab) = lab() else { return };
    let setup = Setup { qps: 2, srq: true, ..Setup::default() };
    both_ways(&lab, "SRQ of two QPs, limit event", &setup, |a, b| {
        a.side.fill(SEED, SOURCE, 65_536, 0);
        b.side.arm_limit(2);
        for n in 0..8 {
            b.receive(TARGET + n * 4096, 4096);
        }
        for (n, len) in (0_usize..).zip([1000, 2000, 3000, 4096, 0, 17]) {
            a.post_parts(n % 2, SendOp::Send, SendFlags::SIGNALED, &[(SOURCE + n as u64, len)], None);
            a.sent(1);
            let got = b.received_send(len, SEED, n as u64);
            assert_eq!((got.offset, got.done.qpn), (TARGET + n as u64 * 4096, b.side.endpoint(n % 2).qpn));
        }
        a.post_parts(0, SendOp::Send, SendFlags::SIGNALED, &[(SOURCE, 5)], None);
        a.sent(1);
        b.received_send(5, SEED, 0);
        b.side.wait_for_event("SRQ_LIMIT_REACHED");
    });
}

/// A SEND, a SEND that takes several packets and a WRITE with immediate wait for their receives.
#[test]
fn a_late_receiver_is_waited_for() {
    let Some(lab) = lab() else { return };
    // 10.24 ms between two tries.
    for family in Family::BOTH {
        let setup = Setup { family, min_rnr_timer: 20, timeout: 18, ..Setup::default() };
        both_ways(&lab, "RNR: the receive comes late", &setup, |a, b| {
            a.side.fill(SEED, SOURCE, 65_536, 0);
            for len in [64, 65_536] {
                a.post(SendOp::Send, SOURCE, len);
                a.hears_nothing(QUIET);
                b.receive(TARGET, 65_536);
                a.sent(1);
                b.received_send(len, SEED, 0);
            }
            let (va, rkey) = b.there(TARGET + 1);
            a.post(SendOp::WriteImm { va, rkey, imm: 9 }, SOURCE, 2000);
            a.hears_nothing(QUIET);
            b.receive(0, 0);
            a.sent(1);
            assert_eq!(b.received().done.imm, Some(9));
            b.side.check(SEED, TARGET + 1, 2000, 0);
        });
    }
}

#[test]
fn a_receiver_that_never_comes_is_given_up() {
    let Some(lab) = lab() else { return };
    let setup = Setup { min_rnr_timer: 14, rnr_retry: 2, ..Setup::default() };
    both_ways(&lab, "RNR: budget spent", &setup, |a, _| {
        a.post(SendOp::Send, SOURCE, 64);
        a.post(SendOp::Send, SOURCE, 64);
        a.sent_with(WcStatus::RnrRetryExceeded);
        a.sent_with(WcStatus::WrFlush);
    });
}

#[test]
fn only_solicited_sends_raise_a_solicited_event() {
    let Some(lab) = lab() else { return };
    both_ways(&lab, "solicited events", &Setup::default(), |a, b| {
        b.receive(TARGET, 64);
        b.receive(TARGET, 64);
        b.side.arm(true);
        a.perform(SendOp::Send, SOURCE, 10);
        assert!(!b.side.hears_event(QUIET));
        a.post_parts(0, SendOp::Send, SendFlags::SIGNALED | SendFlags::SOLICITED, &[(SOURCE, 10)], None);
        a.sent(1);
        assert!(b.side.hears_event(crate::lab::PATIENCE));
        b.received();
        b.received();
    });
}

/// Unsignaled requests make no completion, and their places in the queue come back.
#[test]
fn unsignaled_requests_complete_in_silence() {
    let Some(lab) = lab() else { return };
    one_way(&lab, "unsignaled, 1000 of them", &Setup::default(), true, |a, b| {
        a.side.fill(SEED, SOURCE, 65_536, 0);
        for batch in 0..10 {
            for n in 0..100 {
                let flags = if n == 99 { SendFlags::SIGNALED } else { SendFlags::empty() };
                let at = (batch * 100 + n) * 64;
                a.post_parts(0, b.write_to(TARGET + at), flags, &[(SOURCE + at, 64)], None);
            }
            a.sent(1);
        }
        b.side.check(SEED, TARGET, 64_000, 0);
    });
}
