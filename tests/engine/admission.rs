//! What may come in, and what is counted when it may not.

use crate::frames::Frame;
use crate::pair::Pair;
use holdfast::engine::DropReason;
use holdfast::transport::{QpType, Refusal, SendOp, WcStatus};
use holdfast::wire::icrc::Icrc;
use holdfast::wire::{BTH_LEN, Bth, Ecn, ICRC_LEN, IpHeader, Nak, Opcode, Packet, Psn, Qpn, Syndrome, build_cnp};

/// A WRITE of 5 bytes from a to b, as a port would hand it over.
fn good_write(pair: &mut Pair) -> Frame {
    let op = SendOp::Write { va: 0x100, rkey: pair.b.keys.rkey };
    let sge = pair.a.sge(0, 5);
    pair.a.send(pair.now, pair.qpn_a, 1, op, sge);
    pair.a.bursts(pair.now).remove(0).remove(0)
}

/// Changes the BTH (and mends the ICRC).
fn with_bth(mut frame: Frame, change: impl FnOnce(&mut Bth)) -> Frame {
    let mut bth = Packet::new_checked(&frame.bytes).unwrap().bth();
    change(&mut bth);
    frame.bytes[..BTH_LEN].copy_from_slice(&bth.emit());
    mended(frame)
}

fn mended(mut frame: Frame) -> Frame {
    let covered = frame.bytes.len() - ICRC_LEN;
    let udp_len = frame.datagram().udp_len();
    let icrc = Icrc::start(&frame.ip, frame.datagram().source_port, udp_len, &frame.bytes[..covered]).finish();
    frame.bytes[covered..].copy_from_slice(&icrc.to_le_bytes());
    frame
}

/// Hands a changed packet to b, which must drop it for this reason and say nothing.
fn refused(reason: DropReason, change: impl FnOnce(Frame, &mut Pair) -> Frame) {
    let mut pair = Pair::new();
    let frame = good_write(&mut pair);
    let frame = change(frame, &mut pair);
    pair.b.engine.handle_datagram(pair.now, &frame.datagram());
    assert_eq!(pair.b.engine.counters().dropped(reason), 1, "{reason:?}");
    assert_eq!(pair.b.engine.counters().dropped_total(), 1);
    assert!(pair.b.bursts(pair.now).is_empty(), "{reason:?} was answered");
    assert_eq!(pair.b.read(0x100, 5), [0; 5]);
}

#[test]
fn every_bad_packet_is_counted_under_its_reason_and_not_answered() {
    refused(DropReason::Malformed, |mut f, _| {
        f.bytes.truncate(15);
        f
    });
    refused(DropReason::Icrc, |mut f, _| {
        f.bytes[30] ^= 1;
        f
    });
    refused(DropReason::NotOurs, |mut f, _| {
        f.ip = IpHeader::new([198, 18, 0, 1].into(), [198, 18, 0, 9].into()).unwrap();
        mended(f)
    });
    refused(DropReason::UnknownQp, |f, _| with_bth(f, |bth| bth.dest_qp = Qpn::new(0x77_7777)));
    refused(DropReason::UnknownQp, |f, _| with_bth(f, |bth| bth.dest_qp = Qpn::GSI));
    refused(DropReason::Refused(Refusal::Pkey), |f, _| with_bth(f, |bth| bth.pkey = 0x8123));
    refused(DropReason::Refused(Refusal::Service), |f, _| with_bth(f, |bth| bth.opcode = Opcode::from_byte(0x2a)));
    refused(DropReason::Refused(Refusal::Service), |f, _| with_bth(f, |bth| bth.opcode = Opcode::from_byte(0xc5)));
    refused(DropReason::Refused(Refusal::Source), |mut f, _| {
        f.ip = IpHeader::new([198, 18, 0, 66].into(), [198, 18, 0, 2].into()).unwrap();
        mended(f)
    });
    refused(DropReason::Refused(Refusal::State), |f, pair| {
        let qpn = pair.b.create(QpType::Rc, None);
        with_bth(f, |bth| bth.dest_qp = qpn)
    });
}

#[test]
fn what_was_refused_does_not_disturb_what_is_good() {
    let mut pair = Pair::new();
    pair.a.write(0, b"hello");
    let frame = good_write(&mut pair);
    let mut bad = Frame { ip: frame.ip, bytes: frame.bytes.clone() };
    bad.bytes[20] ^= 0x40;
    pair.b.engine.handle_datagram(pair.now, &bad.datagram());
    pair.b.engine.handle_datagram(pair.now, &frame.datagram());
    pair.exchange();
    assert_eq!(pair.b.read(0x100, 5), b"hello");
    assert_eq!(pair.a.completions()[0].status, WcStatus::Success);
}

#[test]
fn a_hidden_ip_id_is_recovered_and_counted() {
    let mut pair = Pair::new();
    pair.a.write(0, b"hello");
    let mut frame = good_write(&mut pair);
    let IpHeader::V4(ip) = &mut frame.ip else { panic!("an IPv4 pair") };
    ip.id = Some(0x1234);
    let mut frame = mended(frame);
    let IpHeader::V4(ip) = &mut frame.ip else { panic!("an IPv4 pair") };
    ip.id = None;
    pair.b.engine.handle_datagram(pair.now, &frame.datagram());
    assert_eq!(pair.b.engine.counters().icrc_recovered_packets, 1);
    assert_eq!(pair.b.read(0x100, 5), b"hello");
}

#[test]
fn an_opcode_that_we_do_not_have_gets_nak_invalid_request() {
    // FLUSH and ATOMIC WRITE of newer kernels, and a hole.
    for opcode in [0x1c, 0x1d, 0x15] {
        let mut pair = Pair::new();
        let frame = good_write(&mut pair);
        let frame = with_bth(frame, |bth| bth.opcode = Opcode::from_byte(opcode));
        pair.b.engine.handle_datagram(pair.now, &frame.datagram());
        let answer = pair.b.bursts(pair.now).remove(0).remove(0);
        let packet = Packet::new_checked(&answer.bytes).unwrap();
        assert_eq!(packet.aeth().unwrap().syndrome, Syndrome::Nak(Nak::InvalidRequest), "{opcode:#x}");
        assert_eq!(packet.psn(), Psn::new(100));
        assert_eq!(packet.dest_qp(), pair.qpn_a);
    }
}

#[test]
fn a_congestion_notification_counts_only_from_the_peer() {
    let mut pair = Pair::new();
    let mut cnp = |host: u8, qpn: Qpn| {
        let mut ip = IpHeader::new([198, 18, 0, host].into(), [198, 18, 0, 2].into()).unwrap();
        if let IpHeader::V4(ip) = &mut ip {
            ip.tos = Ecn::Ce as u8;
        }
        let frame = Frame { ip, bytes: build_cnp(&ip, 0xc001, qpn, 0xffff).to_vec() };
        pair.b.engine.handle_datagram(pair.now, &frame.datagram());
        let c = pair.b.engine.counters();
        (c.cnps_received, c.dropped(DropReason::Cnp), c.dropped(DropReason::UnknownQp), c.ecn_marked_packets)
    };
    assert_eq!(cnp(1, pair.qpn_b), (1, 0, 0, 1));
    assert_eq!(cnp(66, pair.qpn_b), (1, 1, 0, 2));
    assert_eq!(cnp(1, Qpn::new(0x77_7777)), (1, 1, 1, 3));
    assert!(pair.b.bursts(pair.now).is_empty());
}
