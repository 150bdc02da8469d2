//! What must be refused, is: by holdfast for rxe, and by rxe for holdfast, with the same words.

use crate::end::{End, MEMORY, Setup, both_ways, one_way};
use crate::lab::{Family, lab};
use holdfast::ipc::client::{SendOp, WcStatus};

const SEED: u64 = 45;
const SOURCE: u64 = 0;

/// One request that is refused, and one behind it that is flushed.
fn refused(a: &mut End, b: &mut End, op: SendOp, len: u32, want: WcStatus) {
    a.side.fill(SEED, SOURCE, 65_536, 0);
    a.post(op, SOURCE, len);
    a.post(b.write_to(0), SOURCE, 100);
    a.sent_with(want);
    a.sent_with(WcStatus::WrFlush);
    // Not a byte of either.
    assert_eq!([b.side.word(0), b.side.word(MEMORY - 8)], [0, 0]);
}

type Wrong = fn(&mut End, &mut End) -> (SendOp, u32);

const ACCESSES: [(&str, Wrong); 9] = [
    ("WRITE, wrong R_Key", |_, b| {
        let (va, rkey) = b.there(0);
        (SendOp::Write { va, rkey: rkey ^ 0x0010_0100 }, 3000)
    }),
    ("READ, wrong R_Key", |_, b| {
        let (va, rkey) = b.there(0);
        (SendOp::Read { va, rkey: rkey ^ 1 }, 3000)
    }),
    ("FETCH_AND_ADD, wrong R_Key", |_, b| {
        let (va, rkey) = b.there(0);
        (SendOp::FetchAdd { va, rkey: rkey ^ 1, add: 1 }, 8)
    }),
    ("WRITE, the last byte beyond the end", |_, b| (b.write_to(MEMORY - 2999), 3000)),
    ("WRITE, before the beginning", |_, b| {
        let (va, rkey) = b.there(0);
        (SendOp::Write { va: va - 1, rkey }, 3000)
    }),
    ("READ, beyond the end", |_, b| (b.read_from(MEMORY - 1), 2)),
    ("CMP_AND_SWP, beyond the end", |_, b| {
        let (va, rkey) = b.there(MEMORY);
        (SendOp::CompareSwap { va, rkey, compare: 0, swap: 1 }, 8)
    }),
    ("WRITE to a read-only region", |_, b| {
        let (va, rkey) = b.side.read_only();
        (SendOp::Write { va, rkey }, 16)
    }),
    ("FETCH_AND_ADD on a read-only region", |_, b| {
        let (va, rkey) = b.side.read_only();
        (SendOp::FetchAdd { va, rkey, add: 1 }, 8)
    }),
];

#[test]
fn accesses_that_the_peer_does_not_allow() {
    let Some(lab) = lab() else { return };
    for (what, wrong) in ACCESSES {
        both_ways(&lab, what, &Setup::default(), |a, b| {
            let (op, len) = wrong(a, b);
            refused(a, b, op, len, WcStatus::RemoteAccess);
        });
    }
}

/// One way only: rxe refuses to post one.
#[test]
fn a_misaligned_atomic() {
    let Some(lab) = lab() else { return };
    one_way(&lab, "a misaligned atomic", &Setup { family: Family::V6, ..Setup::default() }, true, |a, b| {
        refused(a, b, b.add_to(4, 1), 8, WcStatus::RemoteInvalidRequest);
    });
}
