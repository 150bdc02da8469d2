//! The steady state allocates nothing: a counting allocator proves it.

use crate::counting::allocations;
use crate::pair::Pair;
use holdfast::transport::{Completion, QpType, SendOp};

/// One of everything between the devices, and from one to the other queue pair of `a`. How many completions there were.
fn round(pair: &mut Pair, local: (holdfast::wire::Qpn, holdfast::wire::Qpn)) -> usize {
    let (now, remote, own) = (pair.now, pair.b.keys.rkey, pair.a.keys.rkey);
    let (small, large) = (pair.a.sge(0, 64), pair.a.sge(0, 100_000));
    let (results, receives) = (pair.a.sge(1 << 19, 100_000), pair.b.sge(1 << 19, 2_000));
    for n in 0..16 {
        pair.b.receive(now, pair.qpn_b, n, receives);
        pair.a.send(now, pair.qpn_a, n, SendOp::Send, small);
    }
    for (qpn, rkey) in [(pair.qpn_a, remote), (local.0, own)] {
        let word = pair.a.sge(1 << 19, 8);
        pair.a.send(now, qpn, 20, SendOp::Write { va: 0, rkey }, large);
        pair.a.send(now, qpn, 21, SendOp::Read { va: 0, rkey }, results);
        pair.a.send(now, qpn, 22, SendOp::FetchAdd { va: 1 << 18, rkey, add: 1 }, word);
    }
    let landing = pair.a.sge(1 << 19, 64);
    pair.a.receive(now, local.1, 30, landing);
    pair.a.send(now, local.0, 31, SendOp::SendImm(1), small);
    // Without a receive: packets, RNR NAK, timer.
    pair.a.send(now, local.1, 32, SendOp::Send, small);
    pair.exchange();
    pair.a.receive(now, local.0, 33, landing);
    while let Some(next) = pair.a.engine.poll_timeout().or(pair.b.engine.poll_timeout()) {
        pair.now = next.max(pair.now);
        pair.a.engine.handle_timeout(pair.now);
        pair.b.engine.handle_timeout(pair.now);
        pair.exchange();
    }
    let mut out = [Completion::default(); 64];
    pair.a.poll(&mut out) + pair.b.poll(&mut out)
}

#[test]
fn packets_copies_timers_and_completions_allocate_nothing_once_warm() {
    let mut pair = Pair::new();
    let local = (pair.a.create(QpType::Rc, None), pair.a.create(QpType::Rc, None));
    let address = pair.a.address;
    pair.a.connect(local.0, (address, local.1));
    pair.a.connect(local.1, (address, local.0));
    // The first round makes the room that the others use: the count counts.
    assert!(allocations(|| assert_eq!(round(&mut pair, local), 42)) > 0);
    // After 16 answers the other host is asked, once, what it is.
    (0..16).for_each(|_| assert_eq!(round(&mut pair, local), 42));
    for _ in 0..10 {
        assert_eq!(allocations(|| assert_eq!(round(&mut pair, local), 42)), 0);
    }
    let counters = pair.a.engine.counters();
    assert!(counters.local_messages > 0 && counters.looped_packets > 0, "{counters:?}");
}
