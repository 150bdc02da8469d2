//! UC and UD: nothing is lost here, because nothing drops packets between the lab's two ends.

use crate::end::{GRH, QKEY, Setup, both_ways};
use crate::lab::{Family, lab};
use holdfast::ipc::client::{QpType, SendFlags, SendOp, WcOpcode};

const SEED: u64 = 44;
const SOURCE: u64 = 0;
const TARGET: u64 = 2 << 20;

#[test]
fn connections() {
    let Some(lab) = lab() else { return };
    for family in Family::BOTH {
        for (mtu, psn) in [(256, 0), (1024, 0xff_fffe), (4096, 0xff_fffb)] {
            let setup = Setup { kind: QpType::Uc, family, mtu, psn, ..Setup::default() };
            both_ways(&lab, "UC SEND and WRITE, 0 B to 1 MiB, PSN wrap", &setup, |a, b| {
                a.side.fill(SEED, SOURCE, 1 << 20, 0);
                for (n, len) in (0..).zip([0, 1, 255, 1025, 65_537, 1 << 20]) {
                    b.receive(TARGET, 1 << 20);
                    a.perform(SendOp::SendImm(n), SOURCE, len);
                    assert_eq!(b.received_send(len, SEED, 0).done.imm, Some(n));
                    // Nothing tells a sender that its WRITE has arrived; the SEND behind it does, and so does an immediate.
                    let at = TARGET + 1 + u64::from(n);
                    b.receive(0, 64);
                    b.receive(0, 0);
                    a.perform(b.write_to(at), SOURCE, len / 2);
                    a.perform(SendOp::Send, SOURCE, 7);
                    b.received_send(7, SEED, 0);
                    b.side.check(SEED, at, (len / 2).into(), 0);
                    let (va, rkey) = b.there(at + 5);
                    a.perform(SendOp::WriteImm { va, rkey, imm: n }, SOURCE, len / 2);
                    let got = b.received().done;
                    assert_eq!((got.opcode, got.imm), (WcOpcode::RecvRdmaWithImm, Some(n)));
                    b.side.check(SEED, at + 5, (len / 2).into(), 0);
                }
            });
        }
    }
}

#[test]
fn datagrams() {
    let Some(lab) = lab() else { return };
    for family in Family::BOTH {
        let setup = Setup { kind: QpType::Ud, family, mtu: 4096, psn: 0xff_ffff, ..Setup::default() };
        both_ways(&lab, "UD with GRH and immediate", &setup, |a, b| {
            a.side.fill(SEED, SOURCE, 65_536, 0);
            let (from, to) = (a.side.endpoint(0), b.side.endpoint(0));
            for (n, len) in (0..).zip([0, 1, 3, 255, 1000, 4095, 4096]) {
                b.receive(TARGET, GRH + 4096);
                a.post_parts(0, SendOp::SendImm(n), SendFlags::SIGNALED, &[(SOURCE + 8, len)], Some((to, QKEY)));
                a.sent(1);
                let got = b.received();
                assert_eq!((got.done.opcode, got.done.len), (WcOpcode::Recv, GRH + len), "{got:?}");
                assert_eq!((got.done.imm, got.done.src_qp), (Some(n), Some(from.qpn)), "{got:?}");
                b.side.check(SEED, TARGET + u64::from(GRH), len.into(), 8);
            }
        });
    }
}

/// The wrong one comes first: had it been taken, the receive would hold it.
#[test]
fn a_wrong_q_key_is_dropped() {
    let Some(lab) = lab() else { return };
    let setup = Setup { kind: QpType::Ud, mtu: 4096, ..Setup::default() };
    both_ways(&lab, "UD: a wrong Q_Key is dropped", &setup, |a, b| {
        a.side.fill(SEED, SOURCE, 4096, 0);
        let to = b.side.endpoint(0);
        b.receive(TARGET, GRH + 4096);
        for (n, qkey) in [(1, QKEY ^ 1), (2, 0), (3, QKEY)] {
            a.post_parts(0, SendOp::SendImm(n), SendFlags::SIGNALED, &[(SOURCE, 100)], Some((to, qkey)));
            a.sent(1);
        }
        assert_eq!(b.received().done.imm, Some(3));
        b.side.check(SEED, TARGET + u64::from(GRH), 100, 0);
    });
}
