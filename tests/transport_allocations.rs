//! The steady state of queue pairs allocates nothing: a counting allocator proves it.
#![allow(unsafe_code, unreachable_pub, clippy::unwrap_used)]

mod counting;
mod transport_pair;

use counting::allocations;
use holdfast::transport::SendOp;
use holdfast::wire::PathMtu;
use transport_pair::{BASE, Pair};

/// One of everything, both ways; completions at the requester and at the responder.
fn round(pair: &mut Pair) -> (usize, usize) {
    let rkey = pair.b.key();
    for _ in 0..20 {
        pair.b.recv(1 << 20, 20_000);
    }
    for n in 0..16 {
        pair.a.send(SendOp::Write { va: BASE, rkey }, n * 64, 64);
    }
    pair.a.send(SendOp::Write { va: BASE, rkey }, 0, 300_000);
    pair.a.send(SendOp::Read { va: BASE, rkey }, 1 << 19, 300_000);
    pair.a.send(SendOp::FetchAdd { va: BASE, rkey, add: 1 }, 1 << 19, 8);
    for n in 0..20 {
        pair.a.send(SendOp::SendImm(n), 0, 1000 * n);
    }
    pair.run();
    (pair.a.completed(), pair.b.completed())
}

#[test]
fn requests_answers_and_completions_allocate_nothing() {
    for mtu in [PathMtu::B1024, PathMtu::B4096] {
        let mut made = None;
        assert!(allocations(|| made = Some(Pair::new(mtu))) > 0, "the count counts");
        let mut pair = made.unwrap();
        for _ in 0..10 {
            assert_eq!(allocations(|| assert_eq!(round(&mut pair), (39, 20))), 0, "{mtu:?}");
        }
    }
}
