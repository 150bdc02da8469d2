//! Queue pairs of one engine.

use crate::pair::Device;
use holdfast::time::{Duration, Instant};
use holdfast::transport::{
    AddressVector, Completion, Data, QpState, QpType, SendFlags, SendOp, SendRequest, UdAddress, WcFlags, WcOpcode,
    WcStatus,
};
use holdfast::wire::Qpn;

const NOW: Instant = Instant::from_ns(1000);

/// Two connected queue pairs of one device.
fn pair(kind: QpType) -> (Device, Qpn, Qpn) {
    let mut d = Device::new(1);
    let (a, b) = (d.create(kind, None), d.create(kind, None));
    d.connect(a, (d.address, b));
    d.connect(b, (d.address, a));
    (d, a, b)
}

/// Lets it work; nothing may come out for the port.
fn run(d: &mut Device) -> Vec<Completion> {
    assert!(d.bursts(NOW).is_empty());
    d.completions()
}

#[test]
fn every_request_goes_by_one_copy() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut d, a, b) = pair(kind);
        let rkey = d.keys.rkey;
        d.write(0, b"0123456789abcdef");
        d.write(0x5000, &7u64.to_ne_bytes());
        let (large, small) = (d.sge(0, 300_000), d.sge(0, 16));
        d.receive(NOW, b, 100, d.sge(0x8_0000, 64));
        d.receive(NOW, b, 101, d.sge(0x8_1000, 64));
        d.send(NOW, a, 1, SendOp::Write { va: 0x9_0000, rkey }, large);
        d.send(NOW, a, 2, SendOp::SendImm(0xfeed), small);
        d.send(NOW, a, 3, SendOp::WriteImm { va: 0x8_2000, rkey, imm: 5 }, small);
        let mut expected = vec![1, 2, 3];
        if kind == QpType::Rc {
            d.send(NOW, a, 4, SendOp::Read { va: 0x9_0000, rkey }, d.sge(0x8_3000, 16));
            d.send(NOW, a, 5, SendOp::FetchAdd { va: 0x5000, rkey, add: 3 }, d.sge(0x8_4000, 8));
            d.send(NOW, a, 6, SendOp::CompareSwap { va: 0x5000, rkey, compare: 10, swap: 1 }, d.sge(0x8_5000, 8));
            expected.extend([4, 5, 6]);
        }
        let done = run(&mut d);
        assert!(done.iter().all(|c| c.status == WcStatus::Success), "{done:?}");
        let of = |qpn: Qpn| done.iter().filter(|c| c.qpn == qpn).map(|c| c.wr_id).collect::<Vec<_>>();
        assert_eq!((of(a), of(b)), (expected.clone(), vec![100, 101]));
        let received: Vec<_> = done.iter().filter(|c| c.qpn == b).collect();
        assert_eq!((received[0].opcode, received[0].imm, received[0].byte_len), (WcOpcode::Recv, Some(0xfeed), 16));
        assert_eq!((received[1].opcode, received[1].imm), (WcOpcode::RecvRdmaWithImm, Some(5)));
        for at in [0x9_0000, 0x8_0000, 0x8_2000] {
            assert_eq!(d.read(at, 16), b"0123456789abcdef");
        }
        if kind == QpType::Rc {
            assert_eq!(d.read(0x8_3000, 16), b"0123456789abcdef");
            assert_eq!(d.read(0x8_4000, 8), 7u64.to_ne_bytes());
            assert_eq!(d.read(0x8_5000, 8), 10u64.to_ne_bytes());
            assert_eq!(d.read(0x5000, 8), 1u64.to_ne_bytes());
        }
        let c = d.engine.counters();
        assert_eq!((c.looped_packets, c.transmitted_packets), (0, 0), "{kind:?}");
        assert_eq!(c.local_messages, expected.len() as u64);
        assert_eq!(d.engine.poll_timeout(), None);
    }
}

#[test]
fn without_a_receive_the_sender_waits_as_the_timer_code_says() {
    let (mut d, a, b) = pair(QpType::Rc);
    d.write(0, b"wait");
    let sge = d.sge(0, 4);
    d.send(NOW, a, 1, SendOp::Send, sge);
    assert_eq!(run(&mut d), []);
    assert_eq!(d.engine.qp(a).unwrap().counters().rnr_nak_retry_err, 1);
    d.receive(NOW, b, 100, d.sge(0x1000, 4));
    // Code 1: 10 us.
    let mut now = NOW;
    while d.engine.completions().is_empty(d.cq) {
        now = d.engine.poll_timeout().expect("it waits").max(now + Duration::from_nanos(1));
        assert!(now.since(NOW) < Duration::from_micros(60));
        d.engine.handle_timeout(now);
        assert!(d.bursts(now).is_empty());
    }
    assert!(now.since(NOW) >= Duration::from_micros(10));
    assert_eq!(d.completions().iter().map(|c| c.wr_id).collect::<Vec<_>>(), [100, 1]);
    assert_eq!(d.read(0x1000, 4), b"wait");
    // In step again: what follows goes by copy.
    d.receive(now, b, 101, d.sge(0x2000, 4));
    assert_eq!(d.engine.counters().local_messages, 0);
    let sge = d.sge(0, 4);
    d.send(now, a, 2, SendOp::Send, sge);
    assert!(d.bursts(now).is_empty());
    assert_eq!(d.completions().len(), 2);
    assert_eq!(d.engine.counters().local_messages, 1);
}

#[test]
fn what_the_peer_must_refuse_fails_as_over_the_wire() {
    type Wrong = (fn(u32) -> SendOp, WcStatus);
    let wrongs: [Wrong; 4] = [
        (|rkey| SendOp::Write { va: 0, rkey: !rkey }, WcStatus::RemoteAccess),
        (|rkey| SendOp::Read { va: crate::pair::MEMORY as u64 - 4, rkey }, WcStatus::RemoteAccess),
        (|rkey| SendOp::FetchAdd { va: 4, rkey, add: 1 }, WcStatus::RemoteInvalidRequest),
        (|_| SendOp::Send, WcStatus::RemoteInvalidRequest),
    ];
    for (op, status) in wrongs {
        let (mut d, a, b) = pair(QpType::Rc);
        let (op, sge) = (op(d.keys.rkey), d.sge(0, 8));
        d.receive(NOW, b, 100, d.sge(0x1000, 4));
        d.send(NOW, a, 1, op, sge);
        let done = run(&mut d);
        let sent = done.iter().find(|c| c.qpn == a).unwrap();
        assert_eq!((sent.wr_id, sent.status), (1, status), "{op:?}");
        assert!(done.iter().any(|c| c.qpn == b && c.status != WcStatus::Success));
        assert_eq!(d.engine.qp(b).unwrap().state(), QpState::Err);
        assert_eq!(d.engine.counters().local_messages, 0);
    }
}

#[test]
fn a_peer_that_is_gone_is_a_peer_that_does_not_answer() {
    let (mut d, a, b) = pair(QpType::Rc);
    d.engine.destroy_qp(b).unwrap();
    let (op, sge) = (SendOp::Write { va: 0, rkey: d.keys.rkey }, d.sge(0, 4));
    d.send(NOW, a, 1, op, sge);
    let mut now = NOW;
    while d.engine.completions().is_empty(d.cq) {
        assert!(d.bursts(now).is_empty());
        now = d.engine.poll_timeout().expect("a timer runs").max(now + Duration::from_nanos(1));
        d.engine.handle_timeout(now);
    }
    assert_eq!(d.completions()[0].status, WcStatus::RetryExceeded);
}

#[test]
fn a_datagram_goes_by_one_copy_with_its_grh() {
    let mut d = Device::new(1);
    let (a, b) = (d.create(QpType::Ud, None), d.create(QpType::Ud, None));
    d.connect(a, (d.address, b));
    d.connect(b, (d.address, a));
    d.write(0, b"datagram");
    let av = AddressVector::between(d.address, d.address, 0xc000);
    let sge = d.sge(0, 8);
    let send = |d: &mut Device, wr_id: u64, qkey: u32| {
        let datagram = Some(UdAddress { av, dest_qp: b, qkey });
        let op = SendOp::SendImm(9);
        let request = SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Sges(&[sge]), datagram };
        d.engine.post_send(NOW, a, &request).unwrap();
    };
    d.receive(NOW, b, 100, d.sge(0x1000, 64));
    // A wrong Q_Key is a silent drop; its sender is done all the same.
    send(&mut d, 1, 0x2222);
    let ids = |done: &[Completion]| done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>();
    assert_eq!(ids(&run(&mut d)), [(1, WcStatus::Success)]);
    send(&mut d, 2, 0x1111);
    let done = run(&mut d);
    assert_eq!(ids(&done), [(100, WcStatus::Success), (2, WcStatus::Success)]);
    let got = done[0];
    assert_eq!((got.byte_len, got.imm, got.src_qp), (48, Some(9), a));
    assert_eq!(got.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!(d.read(0x1000 + 40, 8), b"datagram");
    let grh = d.read(0x1000, 40);
    // 20 IP, 8 UDP, 12 BTH, 8 DETH, 4 ImmDt, 8 payload, 4 ICRC.
    assert_eq!((grh[20], grh[22..24].to_vec(), grh[32..36].to_vec()), (0x45, vec![0, 64], vec![198, 18, 0, 1]));
    assert_eq!(d.engine.counters().local_messages, 1);
}
