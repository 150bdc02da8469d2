//! What RoCEv2 needs of the IP header.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the UDP header.
pub const UDP_LEN: usize = 8;
/// IP protocol number of UDP.
const UDP: u8 = 17;
/// The Don't Fragment bit in [`Ipv4::flags_fragment`].
const DONT_FRAGMENT: u16 = 0x4000;

/// Explicit congestion notification, the low 2 bits of TOS or traffic class (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not react to marks.
    NotEct = 0,
    /// ECN-capable, codepoint 1.
    Ect1 = 1,
    /// ECN-capable, codepoint 0: what RoCE data carries.
    Ect0 = 2,
    /// Congestion was experienced.
    Ce = 3,
}

impl Ecn {
    /// The codepoint in the low 2 bits of a TOS or traffic class.
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// Its name in RFC 3168.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotEct => "Not-ECT",
            Self::Ect1 => "ECT(1)",
            Self::Ect0 => "ECT(0)",
            Self::Ce => "CE",
        }
    }
}

/// IPv4 header fields (RFC 791).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification; `None` where the receiver does not see it (a UDP socket).
    pub id: Option<u16>,
    /// Flags (3 bits) and fragment offset (13 bits). A UDP socket does not show them either; senders of RoCE set DF.
    pub flags_fragment: u16,
    /// Bytes of the header: 20, or more with options (which the ICRC does not cover, as in rxe).
    pub header_len: u8,
}

impl Ipv4 {
    /// Bytes of the header without options.
    pub const LEN: usize = 20;

    /// A header as we send it: TOS 0, TTL 64, DF, ID 0.
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        Self { src, dst, tos: 0, ttl: 64, id: Some(0), flags_fragment: DONT_FRAGMENT, header_len: Self::LEN as u8 }
    }

    /// The first 20 bytes on the wire, with a right checksum (if there are no options); an unknown ID is 0.
    pub fn emit(&self, udp_len: u16) -> [u8; Self::LEN] {
        let mut b = self.emit_fields(udp_len, self.tos, self.ttl, 0);
        let sum: u32 = b.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        b[10..12].copy_from_slice(&checksum.to_be_bytes());
        b
    }

    /// The same as the ICRC sees it: TOS, TTL and checksum are ones.
    pub(super) fn emit_masked(&self, udp_len: u16) -> [u8; Self::LEN] {
        self.emit_fields(udp_len, 0xff, 0xff, 0xffff)
    }

    fn emit_fields(&self, udp_len: u16, tos: u8, ttl: u8, checksum: u16) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = 0x40 | (self.header_len >> 2) & 0x0f;
        b[1] = tos;
        b[2..4].copy_from_slice(&udp_len.saturating_add(u16::from(self.header_len)).to_be_bytes());
        b[4..6].copy_from_slice(&self.id.unwrap_or(0).to_be_bytes());
        b[6..8].copy_from_slice(&self.flags_fragment.to_be_bytes());
        b[8] = ttl;
        b[9] = UDP;
        b[10..12].copy_from_slice(&checksum.to_be_bytes());
        b[12..16].copy_from_slice(&self.src.octets());
        b[16..].copy_from_slice(&self.dst.octets());
        b
    }
}

/// IPv6 header fields (RFC 8200).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// The Next Header field: 17 (UDP) unless extension headers stand between.
    pub next_header: u8,
    /// Bytes of extension headers between IPv6 and UDP (the ICRC does not cover them, as in rxe).
    pub extension_len: u16,
}

impl Ipv6 {
    /// Bytes of the header.
    pub const LEN: usize = 40;

    /// A header as we send it: traffic class 0, flow label 0, hop limit 64, no extension headers.
    pub const fn new(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        Self { src, dst, traffic_class: 0, flow_label: 0, hop_limit: 64, next_header: UDP, extension_len: 0 }
    }

    /// The 40 bytes on the wire.
    pub fn emit(&self, udp_len: u16) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        b[..4].copy_from_slice(&first.to_be_bytes());
        b[4..6].copy_from_slice(&udp_len.saturating_add(self.extension_len).to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src.octets());
        b[24..].copy_from_slice(&self.dst.octets());
        b
    }
}

/// The IP header of a datagram: the fields that RoCEv2 makes use of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpHeader {
    /// IPv4.
    V4(Ipv4),
    /// IPv6.
    V6(Ipv6),
}

impl IpHeader {
    /// A header as we send it, `None` if the addresses are of two families. IPv4-mapped IPv6 addresses are IPv4.
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source.to_canonical(), destination.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4(Ipv4::new(src, dst))),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6(Ipv6::new(src, dst))),
            _ => None,
        }
    }

    /// Source address.
    pub const fn source(&self) -> IpAddr {
        match self {
            Self::V4(h) => IpAddr::V4(h.src),
            Self::V6(h) => IpAddr::V6(h.src),
        }
    }

    /// Destination address.
    pub const fn destination(&self) -> IpAddr {
        match self {
            Self::V4(h) => IpAddr::V4(h.dst),
            Self::V6(h) => IpAddr::V6(h.dst),
        }
    }

    /// TOS or traffic class: DSCP and ECN.
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(h) => h.tos,
            Self::V6(h) => h.traffic_class,
        }
    }

    /// Explicit congestion notification.
    pub const fn ecn(&self) -> Ecn {
        Ecn::of(self.traffic_class())
    }

    /// Differentiated services codepoint, 6 bits.
    pub const fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// The 40 bytes that stand before the payload in a UD receive, for a datagram with this UDP length (annex A17.4.4): the
    /// IPv6 header, or 20 bytes 0 and the IPv4 header.
    pub fn grh(&self, udp_len: u16) -> [u8; 40] {
        match self {
            Self::V4(h) => {
                let mut grh = [0; 40];
                grh[20..].copy_from_slice(&h.emit(udp_len));
                grh
            }
            Self::V6(h) => h.emit(udp_len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_checksum_and_grh_place() {
        // The header of RFC 1071 tutorials: 192.168.0.1 to 192.168.0.199, 115 bytes, DF, TTL 64.
        let h = Ipv4::new([192, 168, 0, 1].into(), [192, 168, 0, 199].into());
        let bytes = h.emit(95);
        assert_eq!(bytes, [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168, 0, 199]);
        let grh = IpHeader::V4(h).grh(95);
        assert_eq!((&grh[..20], &grh[20..]), (&[0; 20][..], &bytes[..]));
    }

    #[test]
    fn ipv6_fields_stand_where_they_belong() {
        let mut h = Ipv6::new("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        h.traffic_class = 0xb9;
        h.flow_label = 0xfff0_1234;
        let b = h.emit(0x1122);
        assert_eq!(b[..8], [0x6b, 0x90, 0x12, 0x34, 0x11, 0x22, 17, 64]);
        assert_eq!((b[8], b[23], b[24], b[39]), (0xfe, 1, 0xfe, 2));
        let ip = IpHeader::V6(h);
        assert_eq!((ip.ecn(), ip.dscp(), ip.grh(0x1122)), (Ecn::Ect1, 46, b));
    }

    #[test]
    fn families_do_not_mix() {
        let (four, six, mapped) = ("1.2.3.4", "::1", "::ffff:1.2.3.4");
        let new = |a: &str, b: &str| IpHeader::new(a.parse().unwrap(), b.parse().unwrap());
        assert_eq!(new(four, six), None);
        assert_eq!(new(four, mapped), new(four, four));
        assert!(matches!(new(six, six), Some(IpHeader::V6(_))));
    }
}
