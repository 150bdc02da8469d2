//! A frame as the fabric carries it: Ethernet bytes, and what the kernel's vnet header says of them.

use crate::io::VNET_HEADER_BYTES;
use crate::wire::{Ecn, UDP_LEN};

/// Bytes of the two addresses and the EtherType.
const ETHERNET_LEN: usize = 14;
/// 802.1Q, 802.1ad and the older number of stacked tags.
const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const VLAN_LEN: usize = 4;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const IPV6_LEN: usize = 40;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds the sum of the pseudo-header only.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const GSO_UDP: u8 = 5;

/// A hardware address.
pub type Mac = [u8; 6];

/// An Ethernet frame, or a *super-packet*: many packets of one flow that a sender left to segmentation offload, as one frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// From the destination address on, without frame check sequence.
    pub bytes: Vec<u8>,
    /// `struct virtio_net_hdr` in the host's byte order: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
    pub vnet: [u8; VNET_HEADER_BYTES],
}

/// Where the headers are.
#[derive(Clone, Copy)]
struct Headers {
    /// Offset of the IP header.
    ip: usize,
    is_ipv6: bool,
    /// Offset of the transport header.
    transport: usize,
    /// Offset of the transport's payload.
    payload: usize,
}

impl Frame {
    /// A frame of one packet.
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, vnet: [0; VNET_HEADER_BYTES] }
    }

    /// Where it goes to; `None` if it is too short to say.
    pub fn destination(&self) -> Option<Mac> {
        self.bytes.first_chunk().copied()
    }

    /// Where it comes from; `None` if it is too short to say.
    pub fn source(&self) -> Option<Mac> {
        self.bytes.get(6..ETHERNET_LEN)?.first_chunk().copied()
    }

    /// Packets in it: 1, or as many as a super-packet has segments.
    pub fn packets(&self) -> u64 {
        self.payload_and_segment().map_or(1, |(payload, segment)| payload.div_ceil(segment).max(1) as u64)
    }

    /// Bytes that its packets take on the wire, headers repeated in each; preamble, check sequence and gap not counted.
    pub fn wire_bytes(&self) -> u64 {
        let repeated = match (self.payload_and_segment(), self.headers()) {
            (Some(_), Some(headers)) => (self.packets() - 1) * headers.payload as u64,
            _ => 0,
        };
        self.bytes.len() as u64 + repeated
    }

    /// Bytes of payload, and of each segment's, in a super-packet.
    fn payload_and_segment(&self) -> Option<(usize, usize)> {
        let segment = usize::from(self.vnet_word(4));
        let payload = self.bytes.len().checked_sub(self.headers()?.payload)?;
        (self.vnet[1] != 0 && segment != 0).then_some((payload, segment))
    }

    fn vnet_word(&self, at: usize) -> u16 {
        self.vnet.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_ne_bytes(*b))
    }

    fn half(&self, at: usize) -> Option<u16> {
        self.bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
    }

    /// Where the IP header is, and whether it is one of IPv6.
    fn ip(&self) -> Option<(usize, bool)> {
        let mut at = ETHERNET_LEN;
        loop {
            let (expected, is_ipv6) = match self.half(at.checked_sub(2)?)? {
                IPV4 => (4, false),
                IPV6 => (6, true),
                tag if VLAN.contains(&tag) => {
                    at += VLAN_LEN;
                    continue;
                }
                _ => return None,
            };
            return (self.bytes.get(at)? >> 4 == expected).then_some((at, is_ipv6));
        }
    }

    /// Headers of TCP and UDP without IPv6 extension headers.
    fn headers(&self) -> Option<Headers> {
        let (ip, is_ipv6) = self.ip()?;
        let (protocol, transport) = if is_ipv6 {
            (*self.bytes.get(ip + 6)?, ip + IPV6_LEN)
        } else {
            (*self.bytes.get(ip + 9)?, ip + 4 * usize::from(self.bytes.get(ip)? & 0x0f))
        };
        let length = match protocol {
            UDP => UDP_LEN,
            TCP => 4 * usize::from(self.bytes.get(transport + 12)? >> 4),
            _ => return None,
        };
        Some(Headers { ip, is_ipv6, transport, payload: transport + length })
    }

    /// Marks that congestion was experienced, if the packet is ECN-capable and not marked yet (RFC 3168, section 5); tells
    /// whether it did. The checksum of an IPv4 header stays right (or wrong, by as much).
    pub fn mark_ce(&mut self) -> bool {
        let Some((ip, is_ipv6)) = self.ip() else { return false };
        // The traffic class straddles the first two bytes of an IPv6 header, the TOS is the second of an IPv4 header.
        let (field, shift) = (ip + 1, if is_ipv6 { 4 } else { 0 });
        let Some(byte) = self.bytes.get_mut(field) else { return false };
        if !matches!(Ecn::of(*byte >> shift), Ecn::Ect0 | Ecn::Ect1) {
            return false;
        }
        let before = *byte;
        *byte |= (Ecn::Ce as u8) << shift;
        let after = *byte;
        if !is_ipv6 && let Some(checksum) = self.half(ip + 10) {
            // RFC 1624, equation 3: HC' = ~(~HC + ~m + m'). The words differ in their low byte only.
            let sum = u32::from(!checksum) + u32::from(!u16::from(before)) + u32::from(after);
            self.set_half(ip + 10, !fold(sum));
        }
        true
    }

    fn set_half(&mut self, at: usize, value: u16) {
        if let Some(half) = self.bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
            *half = value.to_be_bytes();
        }
    }

    /// Takes a super-packet of UDP apart as the sender's kernel would have (`__udp_gso_segment`): lengths of their own, IPv4
    /// identifications that count up. Anything else stays whole.
    pub fn into_packets(self) -> Vec<Self> {
        let (Some((payload, segment)), Some(headers)) = (self.payload_and_segment(), self.headers()) else {
            return vec![self];
        };
        // The high bit of the type tells of congestion marks.
        if payload <= segment || self.vnet[1] & 0x7f != GSO_UDP {
            return vec![self];
        }
        let (head, payload) = self.bytes.split_at_checked(headers.payload).unwrap_or_default();
        let packet = |(index, chunk): (usize, &[u8])| Self::segment(head, headers, index, chunk);
        payload.chunks(segment).enumerate().map(packet).collect()
    }

    fn segment(head: &[u8], headers: Headers, index: usize, payload: &[u8]) -> Self {
        let mut frame = Self::new([head, payload].concat());
        let Headers { ip, is_ipv6, transport, .. } = headers;
        let udp_len = (UDP_LEN + payload.len()) as u16;
        if is_ipv6 {
            frame.set_half(ip + 4, udp_len);
        } else {
            let id = frame.half(ip + 4).unwrap_or(0).wrapping_add(index as u16);
            frame.set_half(ip + 2, udp_len + (transport - ip) as u16);
            frame.set_half(ip + 4, id);
            frame.set_half(ip + 10, 0);
            frame.set_half(ip + 10, !frame.sum(ip, transport));
        }
        frame.set_half(transport + 4, udp_len);
        // The kernel completes the checksum from here: the sum of the pseudo-header.
        let addresses = if is_ipv6 { ip + 8 } else { ip + 12 };
        let pseudo = fold(u32::from(frame.sum(addresses, transport)) + u32::from(UDP) + u32::from(udp_len));
        frame.set_half(transport + 6, pseudo);
        frame.vnet[0] = NEEDS_CHECKSUM;
        frame.vnet[6..8].copy_from_slice(&(transport as u16).to_ne_bytes());
        frame.vnet[8..10].copy_from_slice(&6_u16.to_ne_bytes());
        frame
    }

    /// One's complement sum of the 16-bit words of a range.
    fn sum(&self, from: usize, to: usize) -> u16 {
        let words = self.bytes.get(from..to).unwrap_or_default().chunks_exact(2);
        fold(words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum())
    }
}

/// Carries added in, twice (RFC 1071).
const fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}
