//! Objects and the end of a client.

use crate::pair::{CLIENT, Device, Pair};
use holdfast::engine::{DropReason, ObjectError, QpError, Release};
use holdfast::memory::Access;
use holdfast::time::Instant;
use holdfast::transport::{
    AttrMask, PostError, QpAttributes, QpCapabilities, QpInit, QpState, QpType, RecvRequest, SendOp, WcStatus,
};
use holdfast::wire::Qpn;

#[test]
fn what_is_in_use_cannot_be_destroyed() {
    let mut d = Device::new(1);
    let srq = d.engine.create_srq(CLIENT, d.pd, 8, 1).unwrap();
    let qpn = d.create(QpType::Rc, Some(srq));
    let (cq, pd) = (d.cq, d.pd);
    assert!(matches!(d.engine.destroy_cq(cq), Err(ObjectError::CqBusy { users: 2, .. })));
    let busy = d.engine.destroy_srq(srq).unwrap_err();
    assert!(matches!(busy, ObjectError::SrqBusy { users: 1, .. }));
    assert_eq!(busy.errno(), libc::EBUSY);
    assert!(d.engine.memory_mut().destroy_pd(pd).is_err());
    d.engine.destroy_qp(qpn).unwrap();
    assert!(matches!(d.engine.destroy_qp(qpn), Err(ObjectError::UnknownQp(q)) if q == qpn));
    d.engine.destroy_srq(srq).unwrap();
    d.engine.destroy_cq(cq).unwrap();
    let lkey = d.keys.lkey;
    d.engine.memory_mut().deregister(lkey).unwrap();
    d.engine.memory_mut().destroy_pd(pd).unwrap();
}

#[test]
fn a_queue_pair_needs_objects_that_exist() {
    let mut d = Device::new(1);
    let good = QpInit {
        pd: d.pd,
        kind: QpType::Rc,
        send_cq: d.cq,
        recv_cq: d.cq,
        srq: None,
        caps: QpCapabilities::default(),
        sq_sig_all: false,
    };
    let cq = d.engine.create_cq(CLIENT, 1).unwrap();
    d.engine.destroy_cq(cq).unwrap();
    assert!(matches!(d.engine.create_qp(CLIENT, &QpInit { recv_cq: cq, ..good }), Err(ObjectError::Cq(_))));
    let pd = d.engine.memory_mut().create_pd(CLIENT);
    d.engine.memory_mut().destroy_pd(pd).unwrap();
    assert!(matches!(d.engine.create_qp(CLIENT, &QpInit { pd, ..good }), Err(ObjectError::Memory(_))));
    let caps = QpCapabilities { max_send_wr: u32::MAX, ..good.caps };
    assert!(matches!(d.engine.create_qp(CLIENT, &QpInit { caps, ..good }), Err(ObjectError::Qp(_))));
    let gsi = QpInit { kind: QpType::Gsi, ..good };
    assert_eq!(d.engine.create_qp(CLIENT, &gsi).unwrap(), Qpn::GSI);
    assert!(matches!(d.engine.create_qp(CLIENT, &gsi), Err(ObjectError::GsiTaken)));
    assert_eq!(d.engine.qp_count(), 1);
    d.engine.destroy_qp(Qpn::GSI).unwrap();
    let nobody = d.engine.post_recv(holdfast::time::Instant::ZERO, Qpn::GSI, &RecvRequest { wr_id: 1, sges: &[] });
    assert_eq!(nobody, Err(QpError::<PostError>::Unknown(Qpn::GSI)));
}

#[test]
fn queue_pairs_are_listed_by_number() {
    let mut d = Device::new(1);
    let gsi = d.create(QpType::Gsi, None);
    let qpns: Vec<Qpn> = (0..2000).map(|_| d.create(QpType::Ud, None)).collect();
    let listed = |from: Qpn| -> Vec<Qpn> { d.engine.qps_from(from).map(|qp| qp.qpn()).collect() };
    assert_eq!(listed(Qpn::new(0))[0], gsi);
    assert_eq!(listed(Qpn::new(0))[1..], qpns);
    assert_eq!(listed(qpns[1500]), qpns[1500..]);
    assert_eq!(listed(Qpn::new(qpns[1999].get() + 1)), []);
}

#[test]
fn a_dead_client_leaves_nothing_and_its_peers_get_no_answer() {
    let mut pair = Pair::new();
    let stranger = pair.b.engine.create_cq(CLIENT + 1, 4).unwrap();
    let (pd, cq) = (pair.b.pd, pair.b.cq);
    let srq = pair.b.engine.create_srq(CLIENT, pd, 4, 1).unwrap();
    let window = pair.b.engine.memory_mut().allocate_window(pd).unwrap();
    let many: Vec<Qpn> = (0..2500).map(|_| pair.b.create(QpType::Ud, None)).collect();
    let (op, sge) = (SendOp::Write { va: 0, rkey: pair.b.keys.rkey }, pair.a.sge(0, 5));
    pair.a.send(pair.now, pair.qpn_a, 1, op, sge);
    let frame = pair.a.bursts(pair.now).remove(0).remove(0);

    let mut calls = 1;
    while pair.b.engine.release(pair.now, CLIENT) == Release::More {
        calls += 1;
    }
    assert_eq!(calls, 3);
    assert_eq!(pair.b.engine.qp_count(), 0);
    assert!(pair.b.engine.qp(many[7]).is_none());
    assert!(!pair.b.engine.completions().contains(cq) && !pair.b.engine.srqs().contains(srq));
    assert_eq!(pair.b.engine.memory().regions().count(), 0);
    assert!(pair.b.engine.memory_mut().deallocate_window(window).is_err());
    assert!(pair.b.engine.completions().contains(stranger));
    assert_eq!(pair.b.engine.memory().usage(CLIENT), holdfast::memory::Usage::default());

    pair.b.engine.handle_datagram(pair.now, &frame.datagram());
    assert_eq!(pair.b.engine.counters().dropped(DropReason::UnknownQp), 1);
    assert!(pair.b.bursts(pair.now).is_empty());
    assert_eq!(pair.b.engine.poll_timeout(), None);
}

/// A program that has polled its last completion may destroy its queue pair at once.
#[test]
fn what_was_completed_is_acknowledged_though_its_queue_pair_goes_first() {
    let ways: [fn(&mut Device, Qpn, Instant); 4] = [
        |d, qpn, _| d.engine.destroy_qp(qpn).unwrap(),
        |d, _, now| assert_eq!(d.engine.release(now, CLIENT), Release::Done),
        |d, qpn, now| {
            d.engine.modify_qp(now, qpn, &QpAttributes::to(QpState::Err), AttrMask::STATE).unwrap();
        },
        |d, qpn, now| {
            d.engine.modify_qp(now, qpn, &QpAttributes::to(QpState::Reset), AttrMask::STATE).unwrap();
        },
    ];
    for (n, go) in ways.into_iter().enumerate() {
        let mut pair = Pair::new();
        let (inbox, out) = (pair.b.sge(64, 8), pair.a.sge(0, 8));
        pair.b.receive(pair.now, pair.qpn_b, 1, inbox);
        pair.a.send(pair.now, pair.qpn_a, 2, SendOp::Send, out);
        for frame in pair.a.bursts(pair.now).iter().flatten() {
            pair.b.engine.handle_datagram(pair.now, &frame.datagram());
        }
        assert_eq!(pair.b.completions().len(), 1);
        go(&mut pair.b, pair.qpn_b, pair.now);
        let answers = pair.b.bursts(pair.now);
        assert_eq!(answers.iter().flatten().count(), 1, "way {n}");
        pair.a.engine.handle_datagram(pair.now, &answers[0][0].datagram());
        assert_eq!(pair.a.completions()[0].status, WcStatus::Success, "way {n}");
        assert!(pair.b.bursts(pair.now).is_empty());
    }
}

/// The ACK of what came after a READ would say that the READ's answer was lost.
#[test]
fn a_queue_pair_that_goes_before_it_answers_a_read_acknowledges_nothing() {
    let mut pair = Pair::new();
    let (inbox, out, rkey) = (pair.b.sge(64, 8), pair.a.sge(0, 8), pair.b.keys.rkey);
    pair.b.receive(pair.now, pair.qpn_b, 1, inbox);
    pair.a.send(pair.now, pair.qpn_a, 2, SendOp::Read { va: 0, rkey }, out);
    pair.a.send(pair.now, pair.qpn_a, 3, SendOp::Send, out);
    for frame in pair.a.bursts(pair.now).iter().flatten() {
        pair.b.engine.handle_datagram(pair.now, &frame.datagram());
    }
    pair.b.engine.destroy_qp(pair.qpn_b).unwrap();
    assert!(pair.b.bursts(pair.now).is_empty());
}

#[test]
fn memory_that_cannot_be_reached_fails_its_queue_pairs_only() {
    use holdfast::memory::{Backing, Process, ProcessMemory};
    let mut pair = Pair::new();
    let other = pair.b.engine.memory_mut().create_pd(CLIENT);
    // A child that exits at once: its memory is gone when the write is delivered.
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let process = std::sync::Arc::new(Process::open(child.id() as i32).unwrap());
    let stack = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
    let line = stack.lines().find(|l| l.contains("[stack]")).unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let end = u64::from_str_radix(line.split(['-', ' ']).nth(1).unwrap(), 16).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let backing = Backing::Process(ProcessMemory::new(process, end - 4096));
    let pd = pair.b.pd;
    let keys = pair.b.engine.memory_mut().register(pd, backing, 0, 4096, access).unwrap();
    assert!(start < end - 4096);
    child.kill().unwrap();
    child.wait().unwrap();

    let (op, sge) = (SendOp::Write { va: 0, rkey: keys.rkey }, pair.a.sge(0, 5));
    pair.a.send(pair.now, pair.qpn_a, 1, op, sge);
    pair.exchange();
    assert_eq!(pair.b.engine.qp(pair.qpn_b).unwrap().state(), holdfast::transport::QpState::Err);
    assert_eq!(pair.b.engine.poll_event(), Some(holdfast::transport::Event::QpFatal(pair.qpn_b)));
    assert!(pair.a.completions().is_empty(), "acknowledged though nothing was written");
    pair.b.engine.memory_mut().destroy_pd(other).unwrap();
}
