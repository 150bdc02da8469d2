//! Super-packets: what shares a burst. That all packets of one are of one size but the last, and that every ICRC is right, is checked of
//! every burst of every test, where an end sends.

use super::end::{ALICE, BASE, End, Setup};
use super::pair::Pair;
use crate::memory::{Backing, Process, ProcessMemory, Sge};
use crate::transport::*;
use crate::wire::{Packet, PathMtu};

/// Packets of each burst that an end sends.
fn shapes(end: &mut End) -> Vec<usize> {
    end.transmit().iter().map(Vec::len).collect()
}

fn rc() -> End {
    let setup = Setup::default();
    End::ready(0x11, &setup, &setup.attrs)
}

const WRITE: SendOp = SendOp::Write { va: BASE, rkey: 1 };

#[test]
fn a_send_fills_bursts_to_the_limit() {
    let mut setup = Setup { burst: BurstLimits { max_packets: 10, ..BurstLimits::default() }, ..Setup::default() };
    let mut end = End::ready(0x11, &setup, &setup.attrs);
    end.send(1, SendOp::Send, 0, 25 * 1024).unwrap();
    assert_eq!(shapes(&mut end), [10, 10, 5]);
    // 64000 bytes are 15 packets of 4096 and their headers.
    setup.burst = BurstLimits::default();
    setup.attrs.path_mtu = PathMtu::B4096;
    let mut end = End::ready(0x11, &setup, &setup.attrs);
    end.send(1, SendOp::Send, 0, 20 * 4096).unwrap();
    assert_eq!(shapes(&mut end), [15, 5]);
}

#[test]
fn a_first_write_packet_is_longer_and_takes_one_companion() {
    let mut end = rc();
    end.send(1, WRITE, 0, 16 * 1024).unwrap();
    end.send(2, WRITE, 0, 2000).unwrap();
    end.send(3, WRITE, 0, 16 * 1024).unwrap();
    assert_eq!(shapes(&mut end), [2, 14, 2, 2, 14]);
}

#[test]
fn small_messages_of_one_size_share_a_burst() {
    let mut end = rc();
    for n in 0..20 {
        end.send(n, WRITE, n * 64, 64).unwrap();
    }
    assert_eq!(shapes(&mut end), [20]);
    // A shorter one may be the last; a longer one begins a burst.
    for len in [64, 64, 60, 64, 68] {
        end.send(1, SendOp::Send, 0, len).unwrap();
    }
    assert_eq!(shapes(&mut end), [3, 1, 1]);
}

#[test]
fn the_end_of_a_message_and_the_start_of_the_next_share_a_burst() {
    let mut end = rc();
    end.send(1, SendOp::Send, 0, 4096).unwrap();
    end.send(2, SendOp::Send, 0, 2048).unwrap();
    end.send(3, SendOp::SendImm(1), 0, 2048).unwrap();
    // The last packet of the third has an immediate more than the others.
    assert_eq!(shapes(&mut end), [7, 1]);
}

#[test]
fn an_ack_rides_behind_requests() {
    let mut pair = Pair::new(&Setup::default());
    pair.b.send(1, SendOp::Write { va: BASE, rkey: pair.a.keys.rkey }, 0, 100).unwrap();
    let request = pair.b.transmit().concat();
    pair.a.receive(super::end::BOB, &request[0]).unwrap();
    pair.a.send(2, SendOp::Write { va: BASE, rkey: pair.b.keys.rkey }, 0, 100).unwrap();
    let bursts = pair.a.transmit();
    assert_eq!(bursts.len(), 1);
    assert_eq!(
        bursts[0].iter().map(|p| Packet::new_checked(p).unwrap().opcode().byte()).collect::<Vec<_>>(),
        [0x0a, 0x11]
    );
    for packet in &bursts[0] {
        pair.b.receive(ALICE, packet).unwrap();
    }
    assert_eq!(pair.b.completed().len(), 1);
}

#[test]
fn read_responses_and_requests_take_turns() {
    let mut setup = Setup::default();
    setup.attrs.path_mtu = PathMtu::B4096;
    let mut pair = Pair::new(&setup);
    pair.b.send(1, SendOp::Read { va: BASE, rkey: pair.a.keys.rkey }, 0, 200_000).unwrap();
    let request = pair.b.transmit().concat();
    pair.a.receive(super::end::BOB, &request[0]).unwrap();
    pair.a.send(2, SendOp::Write { va: BASE, rkey: pair.b.keys.rkey }, 0, 200_000).unwrap();
    let kinds: Vec<bool> =
        pair.a.transmit().iter().map(|burst| Packet::new_checked(&burst[0]).unwrap().opcode().is_request()).collect();
    let switches = kinds.windows(2).filter(|w| w[0] != w[1]).count();
    assert!(switches >= kinds.len() / 2, "{kinds:?}");
}

#[test]
fn a_port_without_segmentation_gets_one_packet_a_burst() {
    let burst = BurstLimits { max_packets: 1, max_bytes: 65_000, ip_id: IpIdRule::AlwaysZero };
    let setup = Setup { burst, ..Setup::default() };
    let mut end = End::ready(0x11, &setup, &setup.attrs);
    end.send(1, WRITE, 0, 3000).unwrap();
    assert_eq!(shapes(&mut end), [1, 1, 1]);
    let setup = Setup { burst: BurstLimits { max_packets: 8, ..burst }, ..Setup::default() };
    let mut end = End::ready(0x11, &setup, &setup.attrs);
    end.send(1, SendOp::Send, 0, 4096).unwrap();
    assert_eq!(shapes(&mut end), [4]);
}

#[test]
fn over_ipv6_no_identification_counts() {
    let mut setup = Setup::default();
    setup.attrs.av = AddressVector::between(
        "fe80::5054:ff:fe18:1".parse().unwrap(),
        "fe80::5054:ff:fe18:2".parse().unwrap(),
        0xc123,
    );
    let mut end = End::ready(0x11, &setup, &setup.attrs);
    end.send(1, SendOp::Send, 0, 10_000).unwrap();
    assert_eq!(shapes(&mut end), [10]);
}

#[test]
fn scatter_gather_lists_are_cut_anywhere() {
    let mut pair = Pair::new(&Setup::default());
    let data: Vec<u8> = (0..9000).map(|i| (i % 251) as u8).collect();
    pair.a.fill(0, &data);
    let sges = [pair.a.sge(0, 1), pair.a.sge(1, 1030), pair.a.sge(1031, 0), pair.a.sge(1031, 7969)];
    let op = SendOp::Write { va: BASE, rkey: pair.b.keys.rkey };
    let flags = SendFlags::SIGNALED;
    pair.a.post(&SendRequest { wr_id: 1, op, flags, data: Data::Sges(&sges), datagram: None }).unwrap();
    let sges = [pair.a.sge(20_000, 2000), pair.a.sge(30_000, 7000)];
    let op = SendOp::Read { va: BASE, rkey: pair.b.keys.rkey };
    pair.a.post(&SendRequest { wr_id: 2, op, flags, data: Data::Sges(&sges), datagram: None }).unwrap();
    assert_eq!(pair.finish().0.len(), 2);
    assert_eq!(pair.b.bytes(0, 9000), data);
    assert_eq!(pair.a.bytes(20_000, 2000), data[..2000]);
    assert_eq!(pair.a.bytes(30_000, 7000), data[2000..]);
}

#[test]
fn memory_of_a_process_is_gathered_into_the_burst() {
    let mut pair = Pair::new(&Setup::default());
    let data: Vec<u8> = (0..70_000).map(|i| (i % 241) as u8).collect();
    let process = std::sync::Arc::new(Process::open(std::process::id() as i32).unwrap());
    let backing = Backing::Process(ProcessMemory::new(process, data.as_ptr() as u64));
    let keys = pair.a.memory.register(pair.a.pd, backing, 0x5000, 70_000, super::end::all_access()).unwrap();
    for (n, len) in [70_000, 100, 5000].into_iter().enumerate() {
        let sges = [Sge { addr: 0x5000, length: len, lkey: keys.lkey }];
        let op = SendOp::Write { va: BASE + n as u64 * 100_000, rkey: pair.b.keys.rkey };
        let request = SendRequest { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Sges(&sges), datagram: None };
        pair.a.post(&request).unwrap();
    }
    assert_eq!(pair.finish().0.len(), 3);
    for (n, len) in [70_000, 100, 5000].into_iter().enumerate() {
        assert_eq!(pair.b.bytes(n as u64 * 100_000, len), data[..len]);
    }
}
