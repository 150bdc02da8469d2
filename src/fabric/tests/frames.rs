//! Marks, checksums and super-packets.

use super::*;
use crate::wire::frame::parse_ethernet;
use crate::wire::{Ecn, IpHeader, Ipv4, Ipv6, frame::NotUdp};
use proptest::prelude::*;

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];

fn udp(payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() + 8) as u16;
    [&0xc000_u16.to_be_bytes()[..], &4791_u16.to_be_bytes(), &len.to_be_bytes(), &[0, 0], payload].concat()
}

fn ethernet(tags: &[u8], ethertype: [u8; 2], packet: &[u8]) -> Frame {
    Frame::new([&mac(1)[..], &mac(0), tags, &ethertype, packet].concat())
}

fn v4(tos: u8, id: u16, payload: &[u8]) -> Vec<u8> {
    let header = Ipv4 { tos, id: Some(id), ..Ipv4::new([198, 18, 0, 1].into(), [198, 18, 0, 2].into()) };
    let udp = udp(payload);
    [&header.emit(udp.len() as u16)[..], &udp].concat()
}

fn v6(traffic_class: u8, payload: &[u8]) -> Vec<u8> {
    let header = Ipv6 {
        traffic_class,
        flow_label: 0xf_ffff,
        ..Ipv6::new("2001:2::1".parse().unwrap(), "2001:2::2".parse().unwrap())
    };
    let udp = udp(payload);
    [&header.emit(udp.len() as u16)[..], &udp].concat()
}

/// RFC 791: the sum over a right header is all ones.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w.get(1).copied().unwrap_or(0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn ip(frame: &Frame) -> Result<IpHeader, NotUdp> {
    parse_ethernet(&frame.bytes).map(|f| f.ip)
}

/// The vnet header that Linux gives a super-packet of UDP behind `offset` bytes.
fn super_packet(mut frame: Frame, segment: u16, offset: u16) -> Frame {
    let halves = [offset + 8, segment, offset, 6].map(u16::to_ne_bytes);
    frame.vnet = [&[1, 5], halves.as_flattened()].concat().try_into().unwrap();
    frame
}

proptest! {
    #[test]
    fn a_mark_changes_the_ecn_bits_only_and_the_checksum_stays_right(
        tos: u8, id: u16, tagged: bool, payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let tags: &[u8] = if tagged { &[0x81, 0, 0, 5] } else { &[] };
        for (is_v4, before) in [(true, ethernet(tags, IPV4, &v4(tos, id, &payload))), (false, ethernet(tags, IPV6, &v6(tos, &payload)))] {
            let mut after = before.clone();
            let is_capable = matches!(Ecn::of(tos), Ecn::Ect0 | Ecn::Ect1);
            prop_assert_eq!(after.mark_ce(), is_capable);
            if !is_capable {
                prop_assert_eq!(&after, &before);
                continue;
            }
            let expected = if is_v4 { v4(tos | 3, id, &payload) } else { v6(tos | 3, &payload) };
            prop_assert_eq!(&after, &ethernet(tags, if is_v4 { IPV4 } else { IPV6 }, &expected));
            if is_v4 {
                prop_assert_eq!(sum(&after.bytes[14 + tags.len()..][..20]), 0xffff);
            }
        }
    }

    #[test]
    fn no_bytes_make_a_frame_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), vnet: [u8; 10]) {
        let mut frame = Frame { bytes, vnet };
        frame.mark_ce();
        let (packets, wire_bytes) = (frame.packets(), frame.wire_bytes());
        let parts = frame.into_packets();
        prop_assert!(parts.len() == 1 || parts.len() as u64 == packets);
        if parts.len() > 1 {
            prop_assert_eq!(parts.iter().map(|p| p.bytes.len() as u64).sum::<u64>(), wire_bytes);
        }
    }
}

#[test]
fn a_super_packet_counts_and_weighs_as_its_packets() {
    let payload: Vec<u8> = (0..2500_u16).map(|i| i as u8).collect();
    for (whole, offset) in [
        (ethernet(&[], IPV4, &v4(2, 0xffff, &payload)), 34),
        (ethernet(&[], IPV6, &v6(2, &payload)), 54),
        (ethernet(&[0x81, 0, 0, 5], IPV4, &v4(2, 0xffff, &payload)), 38),
    ] {
        let whole = super_packet(whole, 1000, offset);
        assert_eq!(whole.packets(), 3);
        assert_eq!(whole.wire_bytes(), 2500 + 3 * (u64::from(offset) + 8));
        let parts = whole.clone().into_packets();
        assert_eq!(parts.len(), 3);
        for (index, (part, bytes)) in parts.iter().zip(payload.chunks(1000)).enumerate() {
            let parsed = parse_ethernet(&part.bytes).unwrap();
            assert_eq!((parsed.payload, parsed.destination_port, part.packets()), (bytes, 4791, 1));
            if let IpHeader::V4(ip) = parsed.ip {
                assert_eq!(ip.id, Some(0xffff_u16.wrapping_add(index as u16)));
                assert_eq!(sum(&part.bytes[usize::from(offset) - 20..usize::from(offset)]), 0xffff);
            }
            // What the kernel completes: the sum from there on over what is sent, with the pseudo-header in its field.
            let mut completed = part.bytes.clone();
            let field = usize::from(offset) + 6;
            let checksum = !sum(&part.bytes[usize::from(offset)..]);
            completed[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
            let addresses = if offset == 54 { 22..54 } else { usize::from(offset) - 8..usize::from(offset) };
            let udp_len = (bytes.len() + 8) as u16;
            let pseudo = [&part.bytes[addresses], &[0, 17], &udp_len.to_be_bytes()].concat();
            assert_eq!(sum(&[&pseudo, &completed[usize::from(offset)..]].concat()), 0xffff);
            assert_eq!(part.vnet[..2], [1, 0]);
            assert_eq!(part.vnet[6..8], offset.to_ne_bytes());
        }
    }
}

#[test]
fn what_is_no_ip_is_not_marked() {
    let mut arp = to_mac([0xff; 6], 0, 2, 60);
    arp.bytes[12..14].copy_from_slice(&[0x08, 0x06]);
    let before = arp.clone();
    assert!(!arp.mark_ce());
    assert_eq!(arp, before);
    assert!(ip(&arp).is_err());
}
