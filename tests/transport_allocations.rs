//! The steady state of queue pairs allocates nothing: a counting allocator proves it.
#![allow(unsafe_code, clippy::unwrap_used)]

mod transport_pair;

use holdfast::transport::SendOp;
use holdfast::wire::PathMtu;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use transport_pair::{BASE, Pair};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all work is the system allocator's; counting touches a thread-local without a destructor, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
fn requests_answers_and_completions_allocate_nothing_once_warm() {
    for mtu in [PathMtu::B1024, PathMtu::B4096] {
        let mut pair = Pair::new(mtu);
        assert_eq!(round(&mut pair), (39, 20));
        let before = ALLOCATIONS.get();
        assert!(before > 0);
        for _ in 0..10 {
            assert_eq!(round(&mut pair), (39, 20));
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{mtu:?}");
    }
}
