//! What stands around a port: faults and capture.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::io::faults::SplitMix;
use crate::io::{FaultCounts, FaultRates, Faults, PcapLink, PcapTee};
use crate::wire::{Ecn, Packet, frame};

fn syscalls() -> PortSettings {
    settings(Backend::Packet, Driver::Syscalls)
}

/// Fifty packets after they went through `receive` at B, or `send` at A, and what was done to them.
fn through(
    seed: u64,
    receive_rates: FaultRates,
    send_rates: FaultRates,
    count: usize,
) -> (Vec<Received>, [FaultCounts; 2]) {
    let cable = Cable::lay();
    let a = Box::new(cable.open_a(syscalls()).unwrap());
    let b = Box::new(cable.open_b(syscalls()).unwrap());
    let mut a = Faults::new(a, seed, FaultRates::default(), send_rates).unwrap();
    let mut b = Faults::new(b, seed, receive_rates, FaultRates::default()).unwrap();
    let limits = a.capabilities().burst;
    let flow = AddressVector { traffic_class: Ecn::Ect0 as u8, ..flow(A4, B4) };
    cable.send(&mut a, &[burst(limits, &flow, 50, 200, 100)]);
    let received = cable.a.run(|| receive_both(&mut b, &mut a, count)).unwrap();
    assert!(is_empty(&mut b), "more than {count} packets");
    (received, [a.counts(), b.counts()])
}

/// Receives at `b`, while `a` sends what it holds back.
fn receive_both(b: &mut Faults, a: &mut Faults, count: usize) -> Vec<Received> {
    let mut received = Vec::new();
    while received.len() < count {
        let mut fds = [b.readable(), a.readable()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        assert!(poll(&mut fds, PollTimeout::from(PATIENCE_MS)).unwrap() > 0, "{} of {count} came", received.len());
        is_empty(a);
        received.extend(receive_now(b));
    }
    received
}

fn psn(packet: &Received) -> u32 {
    Packet::new_checked(&packet.bytes).unwrap().psn().get()
}

#[test]
fn without_faults_nothing_changes() {
    run_test("io::tests::middleware::without_faults_nothing_changes", || {
        let (received, counts) = through(1, FaultRates::default(), FaultRates::default(), 50);
        assert!(received.iter().map(psn).eq(0..50));
        assert!(received.iter().all(|p| p.verdict == Verdict::Good && p.ip.ecn() == Ecn::Ect0), "{received:?}");
        assert_eq!(counts, [FaultCounts::default(); 2]);
    });
}

#[test]
fn each_fault_does_what_it_says_in_each_direction() {
    run_test("io::tests::middleware::each_fault_does_what_it_says_in_each_direction", || {
        let none = FaultRates::default();
        for sends in [true, false] {
            let go = |rates: FaultRates, count| {
                let (received, counts) =
                    if sends { through(7, none, rates, count) } else { through(7, rates, none, count) };
                (received, counts[usize::from(!sends)])
            };
            let (received, counts) = go(FaultRates { mark: 1.0, duplicate: 1.0, ..none }, 100);
            assert!(received.iter().map(psn).eq((0..50).flat_map(|psn| [psn, psn])));
            assert!(received.iter().all(|p| p.ip.ecn() == Ecn::Ce && p.verdict == Verdict::Good));
            assert_eq!((counts.duplicated, counts.marked), (50, 50));

            let (received, counts) = go(FaultRates { corrupt: 1.0, ..none }, 50);
            assert!(received.iter().all(|p| p.verdict == Verdict::Bad || damage_is_masked(p)), "{received:?}");
            assert_eq!(counts.corrupted, 50);

            let late = FaultRates {
                reorder: 0.3,
                reorder_by: Duration::from_millis(20),
                delay: Duration::from_millis(1),
                ..none
            };
            let (received, counts) = go(late, 50);
            let order: Vec<u32> = received.iter().map(psn).collect();
            assert!(!order.is_sorted() && counts.reordered > 0, "{order:?}");
        }
    });
}

/// Byte 4 of the BTH is not covered by the ICRC.
fn damage_is_masked(packet: &Received) -> bool {
    packet.bytes[4] != 0
}

#[test]
fn the_same_seed_loses_the_same_packets() {
    run_test("io::tests::middleware::the_same_seed_loses_the_same_packets", || {
        let lossy = FaultRates { drop: 0.25, ..FaultRates::default() };
        let mut dice = SplitMix::new(3);
        let survives = |_: &u32| {
            let is_lost = dice.happens(lossy.drop);
            // The dice of the other faults.
            (0..5).for_each(|_| _ = dice.next());
            !is_lost
        };
        let kept: Vec<u32> = (0..50).filter(survives).collect();
        assert!((25..45).contains(&kept.len()), "{kept:?}");
        let (received, counts) = through(3, lossy, FaultRates::default(), kept.len());
        assert_eq!(received.iter().map(psn).collect::<Vec<_>>(), kept);
        assert_eq!(counts[1].dropped as usize, 50 - kept.len());
    });
}

#[test]
fn in_the_dark_nothing_passes() {
    run_test("io::tests::middleware::in_the_dark_nothing_passes", || {
        let cable = Cable::lay();
        let a = Box::new(cable.open_a(syscalls()).unwrap());
        let mut a = Faults::new(a, 0, FaultRates::default(), FaultRates::default()).unwrap();
        let mut b = cable.open_b(syscalls()).unwrap();
        let limits = a.capabilities().burst;
        let light = a.blackout();
        light.set(true);
        cable.send(&mut a, &[burst(limits, &flow(A4, B4), 3, 64, 64)]);
        let back = burst(limits, &flow(B4, A4), 3, 64, 64);
        cable.b.run(|| send_all(&mut b, &[back])).unwrap();
        while a.counts().darkened < 6 {
            assert!(wait(a.readable(), PollFlags::POLLIN));
            assert!(is_empty(&mut a));
        }
        light.set(false);
        cable.send(&mut a, &[burst(limits, &flow(A4, B4), 1, 64, 64)]);
        assert_eq!(receive(&mut b, 1).len(), 1);
        assert!(is_empty(&mut b));
    });
}

/// A writer whose bytes outlive it.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The packets of a capture.
fn records(capture: &[u8]) -> Vec<&[u8]> {
    let mut rest = &capture[24..];
    let mut records = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_ne_bytes(rest[8..12].try_into().unwrap()) as usize;
        records.push(&rest[16..16 + length]);
        rest = &rest[16 + length..];
    }
    records
}

#[test]
fn a_capture_shows_both_directions_with_good_icrcs() {
    run_test("io::tests::middleware::a_capture_shows_both_directions_with_good_icrcs", || {
        for (backend, link) in [(Backend::Packet, PcapLink::Ethernet), (Backend::Udp, PcapLink::RawIp)] {
            let cable = Cable::lay();
            let file = Bytes::default();
            let a = Box::new(cable.open_a(settings(backend, Driver::Syscalls)).unwrap());
            let mut a = PcapTee::new(a, Box::new(file.clone()), link).unwrap();
            let mut b = cable.open_b(settings(backend, Driver::Syscalls)).unwrap();
            let limits = a.capabilities().burst;
            let mut expected = Vec::new();
            for (from, to) in [(A4, B4), (A6, B6)] {
                let (out, back) =
                    (burst(limits, &flow(from, to), 4, 512, 100), burst(limits, &flow(to, from), 1, 64, 64));
                cable.send(&mut a, &[out]);
                cable.b.run(|| send_all(&mut b, &[back])).unwrap();
                receive(&mut a, 1);
                expected.extend([from, from, from, from, to]);
            }
            assert!(a.failure().is_none());
            drop(a);
            let bytes = file.0.lock().unwrap();
            let linktype = if link == PcapLink::Ethernet { 1u32 } else { 101 };
            assert_eq!((&bytes[..4], &bytes[20..24]), (&0xa1b2_3c4du32.to_ne_bytes()[..], &linktype.to_ne_bytes()[..]));
            let records = records(&bytes);
            assert_eq!(records.len(), expected.len());
            for (record, source) in records.into_iter().zip(expected) {
                let parse = if link == PcapLink::Ethernet { frame::parse_ethernet } else { frame::parse_ip };
                let datagram = parse(record).unwrap().roce().unwrap();
                assert_eq!((datagram.ip.source(), verify(&datagram, 0)), (source, Verdict::Good));
            }
        }
    });
}
