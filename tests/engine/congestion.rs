//! DCQCN on the wire: who is marked as one that reacts, who is told, who slows down, and that strangers change nothing.

use crate::frames::Frame;
use crate::pair::{Device, Pair};
use holdfast::congestion::Bps;
use holdfast::engine::{CongestionPolicy, DropReason};
use holdfast::path::{PathChange, PathEvent, Stamp};
use holdfast::time::{Duration, Instant};
use holdfast::transport::{PACKET_OVERHEAD, SendOp, Wait, WcStatus};
use holdfast::wire::{Ecn, IpHeader, Opcode, Packet, Qpn, build_cnp};
use std::net::IpAddr;

const BYTES: u32 = 200_000;

/// A pair of devices that take each other for peers that react.
fn listed() -> Pair {
    let mut pair = Pair::new();
    for device in [&mut pair.a, &mut pair.b] {
        let reacting = vec!["198.18.0.0/24".parse().unwrap()];
        let policy = CongestionPolicy { enabled: true, reacting, ..CongestionPolicy::default() };
        device.engine.set_congestion_policy(Instant::ZERO, policy);
    }
    pair
}

/// A pair whose A got CNPs for a millisecond.
fn slowed() -> Pair {
    let mut pair = listed();
    for _ in 0..20 {
        let cnp = cnp_from(&pair, [198, 18, 0, 2]);
        take(&mut pair.a, pair.now, &[cnp]);
        pair.now += Duration::from_micros(50);
    }
    pair
}

fn write(pair: &mut Pair, length: u32) {
    let op = SendOp::Write { va: 0, rkey: pair.b.keys.rkey };
    let sge = pair.a.sge(0, length);
    pair.a.send(pair.now, pair.qpn_a, 1, op, sge);
}

fn opcode(frame: &Frame) -> Opcode {
    Packet::new_checked(&frame.bytes).unwrap().opcode()
}

fn mark(frame: &mut Frame) {
    match &mut frame.ip {
        IpHeader::V4(ip) => ip.tos |= Ecn::Ce as u8,
        IpHeader::V6(ip) => ip.traffic_class |= Ecn::Ce as u8,
    }
}

fn take(device: &mut Device, now: Instant, frames: &[Frame]) {
    frames.iter().for_each(|frame| device.engine.handle_datagram(now, &frame.datagram()));
}

/// Packets that B sends after all that A has to send came to it marked.
fn answers_to_marked(pair: &mut Pair) -> Vec<Frame> {
    let mut frames: Vec<Frame> = pair.a.bursts(pair.now).concat();
    frames.iter_mut().for_each(mark);
    take(&mut pair.b, pair.now, &frames);
    pair.b.bursts(pair.now).concat()
}

/// A CNP for A's queue pair, as `from` would send it.
fn cnp_from(pair: &Pair, from: [u8; 4]) -> Frame {
    let ip = IpHeader::new(IpAddr::from(from), pair.a.address).unwrap();
    Frame { ip, bytes: build_cnp(&ip, 0xc001, pair.qpn_a, 0xffff).to_vec() }
}

/// Bytes on the line that A sends until `until`, and when; what it sends goes nowhere.
fn leaving(pair: &mut Pair, until: Instant) -> Vec<(Instant, u64)> {
    let mut left = Vec::new();
    loop {
        let bytes = |burst: &Vec<Frame>| burst.iter().map(|f| f.bytes.len() as u64 + u64::from(PACKET_OVERHEAD)).sum();
        left.extend(pair.a.bursts(pair.now).iter().map(bytes).map(|bytes: u64| (pair.now, bytes)));
        let due = pair.a.engine.poll_timeout().filter(|due| *due <= until);
        let Some(due) = due else { return left };
        pair.now = due.max(pair.now + Duration::from_nanos(1));
        pair.a.engine.handle_timeout(pair.now);
    }
}

#[test]
fn only_packets_to_those_who_react_say_that_they_react() {
    let mut plain = Pair::new();
    write(&mut plain, 100);
    assert!(plain.a.bursts(plain.now).concat().iter().all(|frame| frame.ip.ecn() == Ecn::NotEct));
    let mut pair = listed();
    write(&mut pair, 100);
    let frames = pair.a.bursts(pair.now).concat();
    assert!(!frames.is_empty() && frames.iter().all(|frame| frame.ip.ecn() == Ecn::Ect0), "{}", frames.len());
}

#[test]
fn a_holdfast_is_found_out_by_its_heartbeats() {
    let mut pair = Pair::new();
    for device in [&mut pair.a, &mut pair.b] {
        let policy = CongestionPolicy { enabled: true, ..CongestionPolicy::default() };
        device.engine.set_congestion_policy(Instant::ZERO, policy);
    }
    for _ in 0..40 {
        write(&mut pair, 100);
        pair.exchange();
        pair.a.completions();
    }
    write(&mut pair, 100);
    assert!(pair.a.bursts(pair.now).concat().iter().all(|frame| frame.ip.ecn() == Ecn::Ect0));
    // Also by one that never asked for anything itself.
    write(&mut pair, 100);
    assert!(answers_to_marked(&mut pair).iter().any(|frame| opcode(frame) == Opcode::CNP));
}

#[test]
fn marks_are_answered_by_one_cnp_a_period_which_is_never_marked_itself() {
    let mut pair = listed();
    write(&mut pair, 20_000);
    let answers = answers_to_marked(&mut pair);
    let cnps: Vec<&Frame> = answers.iter().filter(|frame| opcode(frame) == Opcode::CNP).collect();
    assert_eq!(cnps.len(), 1);
    assert_eq!((cnps[0].ip.ecn(), cnps[0].ip.dscp()), (Ecn::NotEct, 48));
    assert_eq!(Packet::new_checked(&cnps[0].bytes).unwrap().dest_qp(), pair.qpn_a);
    let status = pair.b.engine.congestion_of(pair.now, pair.qpn_b).unwrap();
    assert_eq!((status.cnps_sent, status.marked_packets), (1, 20));
    take(&mut pair.a, pair.now, &answers);
    let status = pair.a.engine.congestion_of(pair.now, pair.qpn_a).unwrap();
    assert!(status.is_limited && status.rate < Bps::from_gbps(51), "{status:?}");
    assert_eq!(pair.a.completions()[0].status, WcStatus::Success);
}

#[test]
fn a_peer_that_does_not_react_gets_no_cnp() {
    let mut pair = Pair::new();
    write(&mut pair, 20_000);
    let answers = answers_to_marked(&mut pair);
    assert!(!answers.is_empty() && answers.iter().all(|frame| opcode(frame) != Opcode::CNP));
    assert_eq!(pair.b.engine.counters().cnps_sent, 0);
}

#[test]
fn a_slowed_queue_pair_sends_no_more_than_its_rate_and_one_burst() {
    let mut pair = slowed();
    let rate = pair.a.engine.congestion_of(pair.now, pair.qpn_a).unwrap().rate;
    assert!(rate < Bps::from_mbps(200), "{rate}");
    write(&mut pair, BYTES);
    let start = pair.now;
    // Before it is raised for the first time.
    let left = leaving(&mut pair, start + Duration::from_micros(50));
    let sent: u64 = left.iter().map(|(_, bytes)| bytes).sum();
    let allowed = rate.bytes_in(Duration::from_micros(50)) + 3 * (1024 + 16 + 16 + u64::from(PACKET_OVERHEAD));
    assert!(sent > 0 && sent <= allowed, "{sent} bytes at {rate}, not more than {allowed}");
    let waiting = pair.a.engine.waits_for(pair.now, pair.qpn_a).unwrap();
    assert_eq!(waiting.reason, Wait::Congestion);
    assert!(waiting.ends_in.unwrap() < Duration::from_millis(1), "{waiting:?}");
}

#[test]
fn all_arrives_however_slow_it_is() {
    let mut pair = slowed();
    let bytes: Vec<u8> = (0..BYTES).map(|n| n as u8 ^ (n >> 8) as u8).collect();
    pair.a.write(0, &bytes);
    write(&mut pair, BYTES);
    let mut cnps = 0;
    for _ in 0..100_000 {
        let mut frames: Vec<Frame> = pair.a.bursts(pair.now).concat();
        frames.iter_mut().for_each(mark);
        take(&mut pair.b, pair.now, &frames);
        let answers = pair.b.bursts(pair.now).concat();
        cnps += answers.iter().filter(|frame| opcode(frame) == Opcode::CNP).count();
        take(&mut pair.a, pair.now, &answers);
        if let Some(done) = pair.a.completions().first() {
            assert_eq!(done.status, WcStatus::Success);
            assert!(cnps > 10, "{cnps}");
            assert_eq!(pair.b.read(0, BYTES as usize), bytes);
            return;
        }
        let due = [pair.a.engine.poll_timeout(), pair.b.engine.poll_timeout()].into_iter().flatten().min().unwrap();
        pair.now = due.max(pair.now + Duration::from_nanos(1));
        pair.a.engine.handle_timeout(pair.now);
        pair.b.engine.handle_timeout(pair.now);
    }
    panic!("it does not end");
}

#[test]
fn cnps_of_strangers_change_nothing_and_are_counted() {
    let mut pair = listed();
    let stranger = cnp_from(&pair, [198, 18, 0, 9]);
    let mut unknown = cnp_from(&pair, [198, 18, 0, 2]);
    unknown.bytes = build_cnp(&unknown.ip, 0xc001, Qpn::new(0x77_7777), 0xffff).to_vec();
    take(&mut pair.a, pair.now, &[stranger, unknown]);
    assert_eq!(pair.a.engine.congestion_of(pair.now, pair.qpn_a), None);
    let counters = pair.a.engine.counters();
    assert_eq!(counters.cnps_received, 0);
    assert_eq!((counters.dropped(DropReason::Cnp), counters.dropped(DropReason::UnknownQp)), (1, 1));
}

#[test]
fn rates_stand_still_in_the_dark() {
    let mut pair = listed();
    let cnp = cnp_from(&pair, [198, 18, 0, 2]);
    take(&mut pair.a, pair.now, &[cnp]);
    let status = |pair: &mut Pair| {
        let status = pair.a.engine.congestion_of(pair.now, pair.qpn_a).unwrap();
        (status.rate, status.target, (status.alpha * 1e6) as u64)
    };
    let before = status(&mut pair);
    let say = |pair: &mut Pair, sequence, change| {
        let event = PathEvent { stamp: Stamp { epoch: 1, sequence }, peers: "198.18.0.0/24".parse().unwrap(), change };
        assert_eq!(pair.a.engine.handle_path_event(pair.now, &event), Ok(1));
    };
    say(&mut pair, 1, PathChange::Down);
    pair.now += Duration::from_secs(10);
    assert_eq!(status(&mut pair), before);
    say(&mut pair, 2, PathChange::Up);
    assert_eq!(status(&mut pair), before);
    // What is said now is about what was sent before the dark.
    let cnp = cnp_from(&pair, [198, 18, 0, 2]);
    take(&mut pair.a, pair.now, &[cnp]);
    assert_eq!(status(&mut pair), before);
    pair.now += Duration::from_millis(1);
    assert!(status(&mut pair).0 > before.0, "it recovers in the light");
}
