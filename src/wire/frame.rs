//! From a frame on the wire to the datagram in it: Ethernet II, VLAN tags, IPv4, IPv6, UDP.

use super::{Datagram, IpHeader, Ipv4, Ipv6, ROCE_PORT};
use etherparse::{IpNumber, IpSlice, UdpSlice, err};

/// 802.1Q, 802.1ad and the older number of stacked tags.
const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Bytes of the two addresses of an Ethernet header.
const ADDRESSES_LEN: usize = 12;
/// EtherType of IPv4.
const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
const IPV6: u16 = 0x86dd;

/// Why a frame holds no whole UDP datagram.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotUdp {
    /// The frame ends within its link header.
    #[error("{len} bytes end within the link header")]
    TooShort {
        /// Bytes given.
        len: usize,
    },
    /// Neither IPv4 nor IPv6.
    #[error("EtherType 0x{0:04x} is not IP")]
    NotIp(u16),
    /// The IP header or its extension headers are wrong, or longer than the bytes there.
    #[error("IP header: {0}")]
    Ip(err::ip::SliceError),
    /// A fragment: RoCEv2 is never fragmented (annex A17.4.5).
    #[error("IP fragment")]
    Fragment,
    /// Another protocol.
    #[error("IP protocol {0} is not UDP")]
    NotUdp(u8),
    /// The UDP header is cut short, or its length is not that of the bytes there.
    #[error("UDP header: {0}")]
    Udp(err::LenError),
}

/// A UDP datagram and what its headers said.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The IP header.
    pub ip: IpHeader,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
    /// UDP payload, without what Ethernet or a super-packet's sender put behind it.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The datagram, if it goes to the RoCEv2 port.
    pub fn roce(&self) -> Option<Datagram<'a>> {
        (self.destination_port == ROCE_PORT).then_some(Datagram {
            ip: self.ip,
            source_port: self.source_port,
            bytes: self.payload,
        })
    }
}

/// Takes an Ethernet II frame apart; any number of VLAN tags is skipped.
pub fn parse_ethernet(frame: &[u8]) -> Result<Frame<'_>, NotUdp> {
    let short = NotUdp::TooShort { len: frame.len() };
    match frame.get(ADDRESSES_LEN..) {
        Some(rest) => parse_ethertype(rest).ok_or(short)?,
        None => Err(short),
    }
}

/// `None`: ends within a tag.
fn parse_ethertype(mut rest: &[u8]) -> Option<Result<Frame<'_>, NotUdp>> {
    loop {
        let (&ethertype, behind) = rest.split_first_chunk()?;
        match u16::from_be_bytes(ethertype) {
            tag if VLAN.contains(&tag) => rest = behind.get(2..)?,
            IPV4 | IPV6 => return Some(parse_ip(behind)),
            other => return Some(Err(NotUdp::NotIp(other))),
        }
    }
}

/// Takes an IP packet apart. Bytes behind its end (an Ethernet pad) are ignored.
pub fn parse_ip(packet: &[u8]) -> Result<Frame<'_>, NotUdp> {
    let slice = IpSlice::from_slice(packet).map_err(NotUdp::Ip)?;
    let payload = slice.payload();
    if slice.is_fragmenting_payload() {
        return Err(NotUdp::Fragment);
    }
    if payload.ip_number != IpNumber::UDP {
        return Err(NotUdp::NotUdp(payload.ip_number.0));
    }
    let udp = UdpSlice::from_slice(payload.payload).map_err(NotUdp::Udp)?;
    Ok(Frame {
        ip: ip_header(&slice),
        source_port: udp.source_port(),
        destination_port: udp.destination_port(),
        payload: udp.payload(),
    })
}

fn ip_header(slice: &IpSlice<'_>) -> IpHeader {
    match slice {
        IpSlice::Ipv4(v4) => {
            let h = v4.header();
            let flags = u16::from(h.dont_fragment()) << 14 | u16::from(h.more_fragments()) << 13;
            IpHeader::V4(Ipv4 {
                src: h.source_addr(),
                dst: h.destination_addr(),
                tos: h.dcp().value() << 2 | h.ecn().value(),
                ttl: h.ttl(),
                id: Some(h.identification()),
                flags_fragment: flags | h.fragments_offset().value(),
                header_len: h.slice().len() as u8,
            })
        }
        IpSlice::Ipv6(v6) => {
            let h = v6.header();
            IpHeader::V6(Ipv6 {
                src: h.source_addr(),
                dst: h.destination_addr(),
                traffic_class: h.traffic_class(),
                flow_label: h.flow_label().value(),
                hop_limit: h.hop_limit(),
                next_header: h.next_header().0,
                extension_len: v6.extensions().slice().len() as u16,
            })
        }
    }
}
