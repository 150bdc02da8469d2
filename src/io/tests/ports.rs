//! Every backend by every driver.

use etherparse::UdpHeader;
use socket2::{Domain, Socket, Type};

use super::*;
use crate::engine::Worker;
use crate::io::{Capabilities, Gso, RefusalReason, packet as packet_sockets};
use crate::wire::{Ecn, Packet};

#[test]
fn super_packets_arrive_whole_with_right_icrc() {
    every_kind("ports::super_packets_arrive_whole_with_right_icrc", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        assert!(limits.max_packets >= 15, "{:?}", a.capabilities());
        for (flow, id_seen) in [(flow(A4, B4), backend == Backend::Packet), (flow(A6, B6), false)] {
            cable.send(&mut a, &[burst(limits, &flow, 15, 4096, 1000), burst(limits, &flow, 1, 64, 64)]);
            let received = receive(&mut b, 16);
            for (i, packet) in received.iter().enumerate() {
                let (psn, payload) = (i % 15, if i < 14 { 4096 } else { [1000, 64][i - 14] });
                let expected = self::packet(&flow, 0x10, psn as u32, payload, psn as u16);
                assert!(packet.bytes == expected, "packet {i}");
                assert_eq!((packet.source_port, packet.verdict), (LANE, Verdict::Good), "packet {i}: {packet:?}");
                assert_eq!((packet.ip.source(), packet.ip.destination()), (flow.source, flow.destination));
                if let IpHeader::V4(ip) = packet.ip {
                    assert!(!id_seen || ip.id == Some(psn as u16), "packet {i}: {ip:?}");
                    assert_eq!((ip.ttl, ip.tos), (64, 0));
                }
            }
        }
        let (sent, got) = (a.counters(), b.counters());
        assert_eq!((sent.sends, sent.transmitted_packets), (4, 32));
        assert_eq!((got.receives, got.received_packets), (4, 32), "super-packets were not kept whole");
        assert_eq!((got.kernel_dropped, got.received_bytes), (0, sent.transmitted_bytes));
        assert!(is_empty(&mut a), "{backend} sees its own packets");
    });
}

#[test]
fn the_smallest_super_packet_arrives_whole() {
    every_kind("ports::the_smallest_super_packet_arrives_whole", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        for flow in [flow(A4, B4), flow(A6, B6)] {
            // A SEND of 8 bytes and an ACK; one of nothing and an ACK.
            for (first, last) in [(8, 4), (4, 4), (4, 0)] {
                cable.send(&mut a, &[burst(limits, &flow, 2, first, last)]);
                for (psn, packet) in receive(&mut b, 2).iter().enumerate() {
                    let payload = [first, last][psn];
                    assert!(packet.bytes == self::packet(&flow, 0x10, psn as u32, payload, psn as u16), "{packet:?}");
                    assert_eq!(packet.verdict, Verdict::Good, "{packet:?}");
                }
            }
        }
        assert_eq!((b.counters().receives, b.counters().received_packets), (6, 12));
    });
}

#[test]
fn single_packets_have_identification_zero() {
    every_kind("ports::single_packets_have_identification_zero", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(PortSettings { gso: Gso::Off, ..settings(backend, driver) }).unwrap();
        // More packets than buffers.
        let mut b = cable.open_b(PortSettings { batch: 4, ..settings(backend, driver) }).unwrap();
        let limits = a.capabilities().burst;
        assert_eq!((limits.max_packets, limits.ip_id), (1, IpIdRule::AlwaysZero));
        let bursts: Vec<Burst> = (0..40).map(|_| burst(limits, &flow(A4, B4), 1, 1024, 1024)).collect();
        cable.send(&mut a, &bursts);
        for packet in receive(&mut b, 40) {
            assert_eq!(packet.verdict, Verdict::Good);
            let IpHeader::V4(ip) = packet.ip else { panic!("{packet:?}") };
            assert_eq!(ip.id, (backend == Backend::Packet).then_some(0));
        }
    });
}

#[test]
fn tos_ttl_ecn_and_lane_are_those_of_the_flow() {
    every_kind("ports::tos_ttl_ecn_and_lane_are_those_of_the_flow", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        for (from, to) in [(A4, B4), (A6, B6)] {
            let ce = 26 << 2 | Ecn::Ce as u8;
            let flow = AddressVector {
                source_port: 0xffff,
                traffic_class: ce,
                hop_limit: 7,
                flow_label: 0xabcde,
                ..flow(from, to)
            };
            cable.send(&mut a, &[burst(limits, &flow, 3, 256, 256)]);
            for packet in receive(&mut b, 3) {
                assert_eq!((packet.verdict, packet.source_port, packet.ip.ecn()), (Verdict::Good, 0xffff, Ecn::Ce));
                assert_eq!(packet.ip.dscp(), 26);
                match packet.ip {
                    IpHeader::V4(ip) => assert_eq!(ip.ttl, 7),
                    IpHeader::V6(ip) => {
                        assert_eq!(ip.hop_limit, 7);
                        assert!(backend == Backend::Udp || ip.flow_label == 0xabcde, "{ip:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn a_packet_beyond_the_mtu_is_refused_as_such() {
    every_kind("ports::a_packet_beyond_the_mtu_is_refused_as_such", |backend, driver| {
        let cable = Cable::lay();
        cable.a.set_mtu("a0", 1500).unwrap();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        for (from, to) in [(A4, B4), (A6, B6)] {
            let flow = flow(from, to);
            let bursts = [
                burst(limits, &flow, 1, 2048, 2048),
                burst(limits, &flow, 5, 2048, 2048),
                burst(limits, &flow, 5, 1024, 1024),
            ];
            cable.send(&mut a, &bursts);
            assert_eq!(receive(&mut b, 5).len(), 5, "what fits goes on");
            for _ in 0..2 {
                let refusal = a.poll_refusal().unwrap();
                assert_eq!((refusal.reason, refusal.destination), (RefusalReason::TooLarge, to), "{refusal}");
                assert_eq!(refusal.packet_bytes, 2048 + 16);
            }
        }
        assert_eq!(a.poll_refusal(), None);
        assert_eq!(a.counters().refused_too_large, 4);
        assert_eq!(a.capabilities().burst, limits, "a small MTU is not a kernel that cannot segment");
    });
}

#[test]
fn a_downed_interface_makes_the_destination_unreachable() {
    every_kind("ports::a_downed_interface_makes_the_destination_unreachable", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        let stranger = "198.18.0.9".parse().unwrap();
        cable.send(&mut a, &[burst(limits, &flow(stranger, B4), 1, 64, 64)]);
        assert_eq!(a.poll_refusal().unwrap().source_port, LANE, "a source address that is not ours");
        cable.a.set_up("a0", false).unwrap();
        cable.send(&mut a, &[burst(limits, &flow(A4, B4), 2, 64, 64), Burst::new(limits)]);
        let refusal = a.poll_refusal().unwrap();
        assert_eq!((refusal.reason, refusal.destination), (RefusalReason::Unreachable, B4), "{refusal}");
        assert_eq!((a.counters().sends, a.counters().refused_unreachable), (0, 2));
        assert!(is_empty(&mut a), "a link that is down is no error of the port");

        cable.a.set_up("a0", true).unwrap();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        cable.send(&mut a, &[burst(limits, &flow(A4, B4), 2, 64, 64)]);
        assert_eq!(receive(&mut b, 2).len(), 2, "the port survives its link");
    });
}

#[test]
fn a_taken_port_or_lane_is_named() {
    every_kind("ports::a_taken_port_or_lane_is_named", |backend, driver| {
        let cable = Cable::lay();
        let mut first = cable.open_a(settings(backend, driver)).unwrap();
        let two = PortSettings { worker: Worker::new(0, 2).unwrap(), ..settings(backend, driver) };
        for again in [settings(backend, driver), two] {
            let error = cable.open_a(again).err().unwrap();
            assert!(matches!(error, PortError::PortTaken { address } if address == A4), "{error}");
            assert!(error.to_string().contains("rdma_rxe"), "{error}");
        }
        let foreign = PortSettings { addresses: vec![B4], ..settings(backend, driver) };
        let error =
            cable.a.run(|| open(&PortSettings { interface: Some("a0".into()), ..foreign })).unwrap().err().unwrap();
        assert!(matches!(error, PortError::NotOurAddress { address } if address == B4), "{error}");

        let _other = cable.a.run(|| std::net::UdpSocket::bind(("0.0.0.0", LANE)).unwrap()).unwrap();
        let limits = first.capabilities().burst;
        cable.send(&mut first, &[burst(limits, &flow(A4, B4), 1, 64, 64)]);
        let refusal = first.poll_refusal().unwrap();
        assert_eq!((refusal.reason, refusal.source_port), (RefusalReason::LaneTaken, LANE), "{refusal}");
    });
}

#[test]
fn workers_get_the_queue_pairs_that_name_them() {
    every_kind("ports::workers_get_the_queue_pairs_that_name_them", |backend, driver| {
        for count in [2, 3] {
            let cable = Cable::lay();
            let mut a = cable.open_a(settings(backend, driver)).unwrap();
            let workers: Vec<Worker> = (0..count).map(|index| Worker::new(index, count).unwrap()).collect();
            let mut ports: Vec<SocketPort> = workers
                .iter()
                .map(|worker| cable.open_b(PortSettings { worker: *worker, ..settings(backend, driver) }).unwrap())
                .collect();
            let limits = a.capabilities().burst;
            // QP 1 and numbers whose low bits name no worker are for worker 0.
            let numbers = [0x10, 0x11, 0x12, 0x13, 1, 0xff_ffff, 0xff_fffe];
            for (from, to) in [(A4, B4), (A6, B6)] {
                for (psn, qpn) in numbers.into_iter().enumerate() {
                    // A lane each, lest they be coalesced: a coalesced receive goes where its first packet goes.
                    let flow = AddressVector { source_port: LANE + psn as u16, ..flow(from, to) };
                    let mut burst = Burst::new(limits);
                    assert!(burst.push_raw(&flow, &packet(&flow, qpn, 0, 64, 0)));
                    cable.send(&mut a, &[burst]);
                }
                for (port, worker) in ports.iter_mut().zip(&workers) {
                    let expected: Vec<u32> = numbers.into_iter().filter(|n| worker.owns(Qpn::new(*n))).collect();
                    let received = receive(port, expected.len());
                    let mut got: Vec<u32> =
                        received.iter().map(|p| Packet::new_checked(&p.bytes).unwrap().dest_qp().get()).collect();
                    got.sort_by_key(|n| numbers.iter().position(|other| other == n));
                    assert_eq!(got, expected, "{worker:?}");
                    assert!(is_empty(port));
                }
            }
        }
    });
}

#[test]
fn tagged_frames_without_udp_checksum_are_received() {
    every_kind("ports::tagged_frames_without_udp_checksum_are_received", |backend, driver| {
        let cable = Cable::lay();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        let (a_mac, b_mac) = (mac(&cable.a, "a0"), mac(&cable.b, "b0"));
        // A priority tag (VLAN 0) is for whoever has the address; VLAN 5 is of an interface that is not there, but the wire's.
        let tags = if backend == Backend::Packet { &[0xa000u16, 5][..] } else { &[0xa000][..] };
        for (psn, tag) in tags.iter().enumerate() {
            for (from, to) in [(A4, B4), (A6, B6)] {
                let flow = flow(from, to);
                let bytes = packet(&flow, 0x10, psn as u32, 100, 0);
                let mut frame = [b_mac, a_mac].concat();
                frame.extend([0x81, 0]);
                frame.extend(tag.to_be_bytes());
                frame.extend(ip_packet(&flow, &bytes));
                send_frame(&cable.a, "a0", &frame);
                let received = receive(&mut b, 1);
                assert_eq!((&received[0].bytes, received[0].verdict), (&bytes, Verdict::Good), "{tag:x} {from}");
            }
        }
        assert!(is_empty(&mut b));
    });
}

fn mac(namespace: &Namespace, interface: &str) -> [u8; 6] {
    namespace
        .run(|| {
            nix::ifaddrs::getifaddrs()
                .unwrap()
                .filter(|i| i.interface_name == interface)
                .find_map(|i| i.address?.as_link_addr()?.addr())
                .unwrap()
        })
        .unwrap()
}

/// EtherType, IP, UDP with checksum 0 as rxe sends it in both families, payload.
fn ip_packet(flow: &AddressVector, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() + UDP_LEN) as u16;
    let udp = UdpHeader { source_port: flow.source_port, destination_port: 4791, length, checksum: 0 };
    let ip = match IpHeader::new(flow.source, flow.destination).unwrap() {
        IpHeader::V4(ip) => [&[8, 0][..], &ip.emit(length)].concat(),
        IpHeader::V6(ip) => [&[0x86, 0xdd][..], &ip.emit(length)].concat(),
    };
    [&ip, &udp.to_bytes()[..], payload].concat()
}

fn send_frame(namespace: &Namespace, interface: &str, frame: &[u8]) {
    namespace
        .run(|| {
            let socket = Socket::new_raw(Domain::PACKET, Type::RAW, None).unwrap();
            packet_sockets::bind(&socket, nix::net::if_::if_nametoindex(interface).unwrap()).unwrap();
            assert_eq!(socket.send(frame).unwrap(), frame.len());
        })
        .unwrap();
}

#[test]
fn addresses_change_while_the_port_is_open() {
    every_kind("ports::addresses_change_while_the_port_is_open", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        let only_v6 = PortSettings { addresses: vec![B6], interface: Some("b0".into()), ..settings(backend, driver) };
        let mut b = cable.b.run(|| open(&only_v6).unwrap()).unwrap();
        let both = [burst(limits, &flow(A4, B4), 1, 64, 64), burst(limits, &flow(A6, B6), 1, 64, 64)];
        cable.send(&mut a, &both);
        assert_eq!(receive(&mut b, 1)[0].ip.destination(), B6);
        cable.b.run(|| b.set_addresses(&[B4])).unwrap().unwrap();
        cable.send(&mut a, &both);
        cable.send(&mut a, &both[..1]);
        for packet in receive(&mut b, 2) {
            assert_eq!(packet.ip.destination(), B4);
        }
        let error = cable.b.run(|| b.set_addresses(&[A4])).unwrap().unwrap_err();
        assert!(matches!(error, PortError::NotOurAddress { address } if address == A4), "{error}");
        assert!(matches!(b.set_addresses(&[]), Err(PortError::NoAddress)));
    });
}

#[test]
fn what_is_no_roce_packet_for_us_is_not_shown() {
    every_kind("ports::what_is_no_roce_packet_for_us_is_not_shown", |backend, driver| {
        let cable = Cable::lay();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        let b_other = "198.18.0.3".parse().unwrap();
        cable.b.add_address("b0", b_other, 24).unwrap();
        let socket = cable.a.run(|| std::net::UdpSocket::bind((A4, LANE)).unwrap()).unwrap();
        socket.send_to(b"another port", (B4, 4790)).unwrap();
        socket.send_to(b"another address", (b_other, 4791)).unwrap();
        socket.send_to(&[7; 9000], (B4, 4791)).unwrap();
        socket.send_to(b"last", (B4, 4791)).unwrap();
        let expected: &[&[u8]] = match backend {
            // The kernel puts fragments together for a UDP socket.
            Backend::Udp => &[&[7; 9000], b"last"],
            Backend::Packet => &[b"last"],
        };
        let received = receive(&mut b, expected.len());
        assert!(received.iter().map(|p| p.bytes.as_slice()).eq(expected.iter().copied()), "{received:?}");
        assert!(received.iter().all(|p| p.verdict == Verdict::Bad));
        assert!(is_empty(&mut b));
    });
}

#[test]
fn an_overflowing_receive_buffer_is_counted() {
    every_kind("ports::an_overflowing_receive_buffer_is_counted", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let small = PortSettings { receive_buffer_bytes: 128 << 10, ..settings(backend, driver) };
        let mut b = cable.open_b(small).unwrap();
        let limits = a.capabilities().burst;
        let bursts: Vec<Burst> = (0..200).map(|_| burst(limits, &flow(A4, B4), 1, 4096, 4096)).collect();
        cable.send(&mut a, &bursts);
        let mut counters = b.counters();
        while counters.received_packets + counters.kernel_dropped < 200 {
            assert!(wait(b.readable(), PollFlags::POLLIN), "{counters:?}");
            is_empty(&mut b);
            counters = b.counters();
        }
        assert!(counters.kernel_dropped > 0, "{counters:?}");
        assert_eq!(counters.received_packets + counters.kernel_dropped, 200);
        assert_eq!(b.counters().kernel_dropped, counters.kernel_dropped, "counted twice");
    });
}

#[test]
fn a_budget_is_kept_up_to_one_super_packet() {
    every_kind("ports::a_budget_is_kept_up_to_one_super_packet", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let mut b = cable.open_b(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        let bursts: Vec<Burst> = (0..6).map(|_| burst(limits, &flow(A4, B4), 10, 256, 256)).collect();
        cable.send(&mut a, &bursts);
        let mut turns = Vec::new();
        while turns.iter().sum::<usize>() < 60 {
            assert!(!turns.is_empty() || wait(b.readable(), PollFlags::POLLIN));
            turns.push(b.receive(15, &mut |_| {}).unwrap());
        }
        assert_eq!(turns.iter().sum::<usize>(), 60);
        assert!(turns.iter().all(|shown| *shown <= 20), "{turns:?}");
        assert_eq!(b.receive(0, &mut |_| panic!("beyond the budget")).unwrap(), 0);
    });
}

#[test]
fn full_kernel_buffers_hold_bursts_back() {
    every_kind("ports::full_kernel_buffers_hold_bursts_back", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(PortSettings { send_buffer_bytes: 32 << 10, ..settings(backend, driver) }).unwrap();
        let limits = a.capabilities().burst;
        // Until somebody answers for the address, the kernel keeps the packets.
        let absent: IpAddr = "198.18.0.9".parse().unwrap();
        let bursts: Vec<Burst> = (0..30).map(|_| burst(limits, &flow(A4, absent), 1, 2048, 2048)).collect();
        let taken = cable.a.run(|| a.send(&bursts).unwrap()).unwrap();
        assert!(0 < taken && taken < bursts.len(), "{taken}");
        assert_eq!((a.counters().backpressure, a.counters().sends), (1, taken as u64));
        assert!(a.blocked_on().is_some());

        cable.b.add_address("b0", absent, 24).unwrap();
        let b_settings =
            PortSettings { addresses: vec![absent], interface: Some("b0".into()), ..settings(backend, driver) };
        let mut b = cable.b.run(|| open(&b_settings).unwrap()).unwrap();
        // It asks for A's link-layer address, and so tells its own.
        cable.b.run(|| send_all(&mut b, &[burst(limits, &flow(absent, A4), 1, 64, 64)])).unwrap();
        assert!(wait(a.blocked_on().unwrap(), PollFlags::POLLOUT));
        cable.send(&mut a, &bursts[taken..]);
        assert_eq!(receive(&mut b, bursts.len()).len(), bursts.len());
        assert_eq!(a.poll_refusal(), None);
    });
}

#[test]
fn a_port_says_what_it_is_and_why() {
    run_test("io::tests::ports::a_port_says_what_it_is_and_why", || {
        let cable = Cable::lay();
        let open = |settings: PortSettings| {
            let settings = PortSettings { addresses: vec![A4], ..settings };
            cable.a.run(|| open(&settings)).unwrap()
        };
        let interface = || Some("a0".to_owned());
        let port = open(PortSettings { interface: interface(), ..PortSettings::default() }).unwrap();
        let Capabilities { backend, driver, header_visible, coalesced_receive, notes, .. } = port.capabilities();
        assert_eq!(
            (*backend, *driver, *header_visible, *coalesced_receive),
            (Backend::Packet, Driver::Syscalls, true, true)
        );
        assert!(notes.iter().any(|note| note.contains("io_uring")), "{notes:?}");
        drop(port);
        let port = open(PortSettings::default()).unwrap();
        assert_eq!(port.capabilities().backend, Backend::Udp);
        assert!(
            port.capabilities().notes.iter().any(|note| note.contains("no interface")),
            "{:?}",
            port.capabilities()
        );
        drop(port);

        let nowhere = PortSettings { interface: Some("nosuchlink0".into()), ..PortSettings::default() };
        assert!(matches!(open(nowhere), Err(PortError::UnknownInterface { name, .. }) if name == "nosuchlink0"));
        let unnamed = PortSettings { backend: Some(Backend::Packet), ..PortSettings::default() };
        assert!(matches!(open(unnamed), Err(PortError::NoInterface)));
    });
}

#[test]
fn over_loopback_each_packet_comes_once() {
    every_kind("ports::over_loopback_each_packet_comes_once", |backend, driver| {
        let namespace = Namespace::new().unwrap();
        let here = IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
        let here_settings =
            PortSettings { interface: Some("lo".into()), addresses: vec![here], ..settings(backend, driver) };
        let mut port = namespace.run(|| open(&here_settings).unwrap()).unwrap();
        let limits = port.capabilities().burst;
        let flow = flow(here, here);
        namespace
            .run(|| send_all(&mut port, &[burst(limits, &flow, 10, 512, 512), burst(limits, &flow, 1, 64, 64)]))
            .unwrap();
        let received = receive(&mut port, 11);
        assert!(received.iter().all(|packet| packet.verdict == Verdict::Good), "{received:?}");
        assert!(is_empty(&mut port), "lo shows what is sent and what is received");
    });
}

#[test]
fn a_port_can_be_dropped_with_packets_in_hand() {
    every_kind("ports::a_port_can_be_dropped_with_packets_in_hand", |backend, driver| {
        let cable = Cable::lay();
        let mut a = cable.open_a(settings(backend, driver)).unwrap();
        let limits = a.capabilities().burst;
        let bursts: Vec<Burst> = (0..12).map(|_| burst(limits, &flow(A4, B4), 15, 4096, 4096)).collect();
        for _ in 0..5 {
            let mut b = cable.open_b(PortSettings { batch: 8, ..settings(backend, driver) }).unwrap();
            cable.send(&mut a, &bursts);
            for packet in receive(&mut b, 15) {
                assert_eq!(packet.verdict, Verdict::Good);
            }
        }
    });
}
