//! Every packet of the golden captures (see `tests/captures/README.md`) decodes, has a right ICRC, and re-encodes to the same bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use holdfast::wire::{
    Datagram, HeaderBuf, ICRC_LEN, IpHeader, Ipv4, Mad, MadHeader, Nak, Packet, Qpn, Syndrome,
    frame::{Frame, parse_ethernet},
    icrc::{self, Icrc, Seed, Verdict},
    pad_count,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Opcodes by capture.
#[rustfmt::skip]
const EXPECTED: &[(&str, &[(usize, &str)])] = &[
    ("rc_send", &[
        (24, "RC Acknowledge, ACK"),
        (7, "RC SEND First"),
        (4, "RC SEND Last"),
        (3, "RC SEND Last with Immediate"),
        (9, "RC SEND Middle"),
        (9, "RC SEND Only"),
        (8, "RC SEND Only with Immediate"),
    ]),
    ("rc_write", &[
        (22, "RC Acknowledge, ACK"),
        (6, "RC RDMA WRITE First"),
        (3, "RC RDMA WRITE Last"),
        (3, "RC RDMA WRITE Last with Immediate"),
        (8, "RC RDMA WRITE Middle"),
        (8, "RC RDMA WRITE Only"),
        (8, "RC RDMA WRITE Only with Immediate"),
    ]),
    ("rc_read", &[
        (15, "RC RDMA READ Request"),
        (8, "RC RDMA READ response First"),
        (8, "RC RDMA READ response Last"),
        (16, "RC RDMA READ response Middle"),
        (7, "RC RDMA READ response Only"),
    ]),
    ("atomics", &[
        (8, "RC ATOMIC Acknowledge"),
        (3, "RC CmpSwap"),
        (5, "RC FetchAdd"),
    ]),
    ("send_invalidate", &[
        (2, "RC Acknowledge, ACK"),
        (1, "RC Acknowledge, NAK remote access error"),
        (2, "RC RDMA WRITE Only"),
        (1, "RC SEND Only with Invalidate"),
    ]),
    ("ud_send", &[
        (10, "UD SEND Only"),
        (10, "UD SEND Only with Immediate"),
    ]),
    ("uc", &[
        (2, "UC RDMA WRITE First"),
        (1, "UC RDMA WRITE Last"),
        (1, "UC RDMA WRITE Last with Immediate"),
        (2, "UC RDMA WRITE Middle"),
        (2, "UC RDMA WRITE Only"),
        (3, "UC RDMA WRITE Only with Immediate"),
        (2, "UC SEND First"),
        (1, "UC SEND Last"),
        (1, "UC SEND Last with Immediate"),
        (2, "UC SEND Middle"),
        (3, "UC SEND Only"),
        (3, "UC SEND Only with Immediate"),
    ]),
    ("rnr", &[
        (2, "RC Acknowledge, ACK"),
        (13, "RC Acknowledge, NAK PSN sequence error"),
        (19, "RC Acknowledge, RNR NAK"),
        (14, "RC SEND First"),
        (14, "RC SEND Last"),
        (14, "RC SEND Middle"),
        (7, "RC SEND Only"),
    ]),
    ("rnr_exceeded", &[
        (4, "RC Acknowledge, RNR NAK"),
        (4, "RC SEND Only"),
    ]),
    ("lost_request", &[
        (2, "RC Acknowledge, ACK"),
        (2, "RC Acknowledge, NAK PSN sequence error"),
        (1, "RC RDMA WRITE First"),
        (2, "RC RDMA WRITE Last"),
        (11, "RC RDMA WRITE Middle"),
        (1, "RC SEND First"),
        (2, "RC SEND Last"),
        (5, "RC SEND Middle"),
    ]),
    ("lost_last", &[
        (4, "RC Acknowledge, ACK"),
        (2, "RC RDMA WRITE First"),
        (2, "RC RDMA WRITE Last"),
        (4, "RC RDMA WRITE Middle"),
    ]),
    ("duplicate", &[
        (2, "RC ATOMIC Acknowledge"),
        (6, "RC Acknowledge, ACK"),
        (2, "RC FetchAdd"),
        (2, "RC RDMA READ Request"),
        (2, "RC RDMA READ response First"),
        (2, "RC RDMA READ response Last"),
        (2, "RC RDMA READ response Middle"),
        (2, "RC RDMA WRITE Only"),
        (2, "RC SEND First"),
        (2, "RC SEND Last"),
        (2, "RC SEND Middle"),
    ]),
    ("access_error", &[
        (1, "RC Acknowledge, NAK invalid request"),
        (3, "RC Acknowledge, NAK remote access error"),
        (1, "RC Acknowledge, NAK remote operational error"),
        (2, "RC RDMA READ Request"),
        (2, "RC RDMA WRITE Only"),
        (1, "RC SEND First"),
        (1, "RC SEND Last"),
        (1, "RC SEND Middle"),
    ]),
    ("timeout", &[
        (1, "RC Acknowledge, ACK"),
        (4, "RC RDMA WRITE First"),
        (4, "RC RDMA WRITE Last"),
        (4, "RC RDMA WRITE Middle"),
        (5, "RC RDMA WRITE Only"),
    ]),
    ("spurious_retry", &[
        (159, "RC Acknowledge, ACK"),
        (1, "RC Acknowledge, NAK invalid request"),
        (13, "RC RDMA WRITE First"),
        (12, "RC RDMA WRITE Last"),
        (156, "RC RDMA WRITE Middle"),
        (1, "RC RDMA WRITE Only"),
    ]),
    ("mtu4096", &[
        (4, "RC Acknowledge, ACK"),
        (1, "RC RDMA READ Request"),
        (1, "RC RDMA READ response First"),
        (1, "RC RDMA READ response Last"),
        (2, "RC RDMA READ response Middle"),
        (1, "RC RDMA WRITE First"),
        (1, "RC RDMA WRITE Last"),
        (2, "RC RDMA WRITE Middle"),
        (1, "RC RDMA WRITE Only"),
        (2, "RC SEND First"),
        (1, "RC SEND Last"),
        (1, "RC SEND Last with Immediate"),
        (1, "RC SEND Middle"),
    ]),
    ("rc_send_ipv6", &[
        (24, "RC Acknowledge, ACK"),
        (7, "RC SEND First"),
        (4, "RC SEND Last"),
        (3, "RC SEND Last with Immediate"),
        (9, "RC SEND Middle"),
        (9, "RC SEND Only"),
        (8, "RC SEND Only with Immediate"),
    ]),
    ("rc_write_ipv6", &[
        (22, "RC Acknowledge, ACK"),
        (6, "RC RDMA WRITE First"),
        (3, "RC RDMA WRITE Last"),
        (3, "RC RDMA WRITE Last with Immediate"),
        (8, "RC RDMA WRITE Middle"),
        (8, "RC RDMA WRITE Only"),
        (8, "RC RDMA WRITE Only with Immediate"),
    ]),
    ("rc_read_ipv6", &[
        (15, "RC RDMA READ Request"),
        (8, "RC RDMA READ response First"),
        (8, "RC RDMA READ response Last"),
        (16, "RC RDMA READ response Middle"),
        (7, "RC RDMA READ response Only"),
    ]),
    ("ud_send_ipv6", &[
        (10, "UD SEND Only"),
        (10, "UD SEND Only with Immediate"),
    ]),
    ("cm", &[
        (10, "RC Acknowledge, ACK"),
        (2, "RC RDMA READ Request"),
        (2, "RC RDMA READ response Only"),
        (2, "RC RDMA WRITE Only"),
        (8, "RC SEND Only"),
        (5, "UD SEND Only"),
    ]),
    ("cm_ipv6", &[
        (10, "RC Acknowledge, ACK"),
        (2, "RC RDMA READ Request"),
        (2, "RC RDMA READ response Only"),
        (2, "RC RDMA WRITE Only"),
        (8, "RC SEND Only"),
        (5, "UD SEND Only"),
    ]),
    ("cm_reject", &[
        (2, "UD SEND Only"),
    ]),
];

/// The frames of a capture, link header first.
fn frames(capture: &str) -> Vec<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(capture).with_extension("pcap");
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (rest, capture) = pcap_parser::pcap::parse_pcap(&file).expect("a classic pcap");
    assert!(rest.is_empty(), "{}: {} bytes left over", path.display(), rest.len());
    capture.blocks.iter().map(|b| b.data.to_vec()).collect()
}

/// Calls `check` on every RoCE packet of every capture.
fn for_every_packet(mut check: impl FnMut(&str, &Frame<'_>, &Datagram<'_>, &Packet<'_>)) {
    for (capture, _) in EXPECTED {
        for (number, frame) in frames(capture).iter().enumerate() {
            let name = format!("{capture} packet {}", number + 1);
            let frame = parse_ethernet(frame).unwrap_or_else(|e| panic!("{name}: {e}"));
            let datagram = frame.roce().unwrap_or_else(|| panic!("{name}: not RoCE"));
            let packet = Packet::new_checked(datagram.bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
            check(&name, &frame, &datagram, &packet);
        }
    }
}

/// The opcode's name; for an acknowledge also what it says.
fn kind(packet: &Packet<'_>) -> String {
    let name = packet.opcode().name();
    if name != "RC Acknowledge" {
        return name.to_owned();
    }
    let says = match packet.aeth().expect("an acknowledge has an AETH").syndrome {
        Syndrome::Ack(_) => "ACK",
        Syndrome::RnrNak(_) => "RNR NAK",
        Syndrome::Nak(Nak::SequenceError) => "NAK PSN sequence error",
        Syndrome::Nak(Nak::InvalidRequest) => "NAK invalid request",
        Syndrome::Nak(Nak::RemoteAccess) => "NAK remote access error",
        Syndrome::Nak(Nak::RemoteOperational) => "NAK remote operational error",
        other => panic!("rxe never sends {other:?}"),
    };
    format!("{name}, {says}")
}

/// The packet made anew from values: headers, payload, pad, ICRC.
fn encode(datagram: &Datagram<'_>, packet: &Packet<'_>) -> Vec<u8> {
    let mut headers = HeaderBuf::new(&packet.bth());
    if let Some(h) = packet.deth() {
        headers.push_deth(&h);
    }
    if let Some(h) = packet.reth() {
        headers.push_reth(&h);
    }
    if let Some(h) = packet.atomic() {
        headers.push_atomic(&h);
    }
    if let Some(h) = packet.aeth() {
        headers.push_aeth(&h);
    }
    if let Some(h) = packet.atomic_ack() {
        headers.push_atomic_ack(h);
    }
    if let Some(h) = packet.immediate() {
        headers.push_immediate(h);
    }
    if let Some(h) = packet.invalidate_rkey() {
        headers.push_invalidate(h);
    }
    let pad = &[0; 3][..usize::from(pad_count(packet.payload().len()))];

    let mut crc = Icrc::start(&datagram.ip, datagram.source_port, datagram.udp_len(), headers.as_bytes());
    crc.update(packet.payload());
    crc.update(pad);
    [headers.as_bytes(), packet.payload(), pad, &crc.finish().to_le_bytes()].concat()
}

#[test]
fn the_captures_hold_the_opcodes_they_should() {
    for (capture, expected) in EXPECTED {
        let mut counts = BTreeMap::<String, usize>::new();
        for frame in frames(capture) {
            let datagram = parse_ethernet(&frame).ok().and_then(|f| f.roce()).expect("RoCE");
            *counts.entry(kind(&Packet::new_checked(datagram.bytes).expect("well-formed"))).or_default() += 1;
        }
        let expected = expected.iter().map(|&(count, name)| (name.to_owned(), count)).collect();
        assert_eq!(counts, expected, "{capture}");
    }
}

#[test]
fn every_icrc_is_right_and_every_packet_re_encodes_to_the_same_bytes() {
    let mut packets = 0;
    for_every_packet(|name, frame, datagram, packet| {
        packets += 1;
        assert_eq!(icrc::verify(datagram, 0), Verdict::Good, "{name}");
        assert_eq!(encode(datagram, packet), frame.payload, "{name}");
    });
    assert_eq!(packets, 1043);
}

#[test]
fn ip_headers_re_encode_to_the_same_bytes() {
    const ETHERNET_LEN: usize = 14;
    for (capture, _) in EXPECTED {
        for bytes in frames(capture) {
            let frame = parse_ethernet(&bytes).expect("a UDP frame");
            let udp_len = frame.roce().expect("RoCE").udp_len();
            let emitted = match frame.ip {
                IpHeader::V4(h) => h.emit(udp_len).to_vec(),
                IpHeader::V6(h) => h.emit(udp_len).to_vec(),
            };
            assert_eq!(emitted, bytes[ETHERNET_LEN..ETHERNET_LEN + emitted.len()], "{capture}");
        }
    }
}

#[test]
fn an_id_that_the_receiver_did_not_see_is_recovered() {
    let mut recovered = 0;
    for_every_packet(|name, _, datagram, _| {
        let IpHeader::V4(Ipv4 { id: Some(id), .. }) = datagram.ip else { return };
        let mut blind = *datagram;
        if let IpHeader::V4(h) = &mut blind.ip {
            h.id = None;
        }
        assert_eq!(icrc::verify(&blind, id), Verdict::Good, "{name}");
        assert_eq!(icrc::verify(&blind, !id), Verdict::GoodWithId(id), "{name}");
        assert!(matches!(icrc::verify(&blind, 0), Verdict::GoodWithId(found) if found == id) || id == 0, "{name}");
        recovered += 1;
    });
    assert!(recovered > 700, "{recovered}");
}

#[test]
fn a_seed_serves_every_id() {
    for_every_packet(|name, _, datagram, packet| {
        let IpHeader::V4(Ipv4 { id: Some(id), .. }) = datagram.ip else { return };
        let mut first = datagram.ip;
        if let IpHeader::V4(h) = &mut first {
            h.id = Some(0);
        }
        let seed = Seed::new(&first, datagram.source_port, datagram.udp_len()).with_id_xor(id);
        assert_eq!(seed.headers(packet.covered()).finish(), packet.icrc(), "{name}");
    });
}

#[test]
fn a_changed_bit_is_found_but_for_those_that_switches_may_change() {
    const RESV8A: usize = 4;
    let frame = &frames("rc_write")[0];
    let datagram = parse_ethernet(frame).ok().and_then(|f| f.roce()).expect("RoCE");
    for byte in 0..datagram.bytes.len() {
        for bit in 0..8 {
            let mut changed = datagram.bytes.to_vec();
            changed[byte] ^= 1 << bit;
            let verdict = icrc::verify(&Datagram { bytes: &changed, ..datagram }, 0);
            assert_eq!(verdict.is_good(), byte == RESV8A, "byte {byte} bit {bit}");
        }
    }
    let IpHeader::V4(header) = datagram.ip else { panic!("IPv4 capture") };
    let verdict = |ip| icrc::verify(&Datagram { ip: IpHeader::V4(ip), ..datagram }, 0);
    assert_eq!(verdict(Ipv4 { tos: 3, ttl: 1, ..header }), Verdict::Good);
    assert_eq!(verdict(Ipv4 { flags_fragment: 0, ..header }), Verdict::Bad);
    assert_eq!(verdict(Ipv4 { id: header.id.map(|id| id ^ 1), ..header }), Verdict::Bad);
    assert_eq!(icrc::verify(&Datagram { bytes: &datagram.bytes[..ICRC_LEN - 1], ..datagram }, 0), Verdict::Bad);
}

#[test]
fn connection_management_travels_in_mads() {
    let mut attributes = Vec::new();
    for frame in frames("cm") {
        let datagram = parse_ethernet(&frame).ok().and_then(|f| f.roce()).expect("RoCE");
        let packet = Packet::new_checked(datagram.bytes).expect("well-formed");
        if packet.dest_qp() == Qpn::GSI {
            let mad = Mad::new_checked(packet.payload()).expect("a MAD");
            assert_eq!(mad.header().class, MadHeader::CLASS_CM);
            assert_eq!(mad.header().emit(), packet.payload()[..MadHeader::LEN]);
            attributes.push(mad.header().attribute_id);
        }
    }
    // ConnectRequest, ConnectReply, ReadyToUse, DisconnectRequest, DisconnectReply (IBTA table 99).
    assert_eq!(attributes, [0x10, 0x13, 0x14, 0x15, 0x16]);
}
