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
    /// The frame ends within its link header or a VLAN tag.
    #[error("{len} bytes end within the link header")]
    TooShort {
        /// Bytes there.
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
    /// The UDP length is 0, as in jumbograms (RFC 2675), which RoCEv2 has none of. The ICRC covers the length.
    #[error("UDP length 0")]
    NoLength,
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
    let split = frame.get(ADDRESSES_LEN..).and_then(<[u8]>::split_first_chunk);
    let (&ethertype, rest) = split.ok_or(NotUdp::TooShort { len: frame.len() })?;
    parse_ethertype(u16::from_be_bytes(ethertype), rest)
}

/// Takes apart what stands behind an EtherType: VLAN tags, then an IP packet.
pub fn parse_ethertype(mut ethertype: u16, mut rest: &[u8]) -> Result<Frame<'_>, NotUdp> {
    loop {
        match ethertype {
            IPV4 | IPV6 => return parse_ip(rest),
            tag if VLAN.contains(&tag) => {
                let Some((&[_, _, high, low], behind)) = rest.split_first_chunk() else {
                    return Err(NotUdp::TooShort { len: rest.len() });
                };
                (ethertype, rest) = (u16::from_be_bytes([high, low]), behind);
            }
            other => return Err(NotUdp::NotIp(other)),
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
    if udp.length() == 0 {
        return Err(NotUdp::NoLength);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP datagram of `payload` to port 4791.
    fn udp(payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() + 8) as u16;
        let ports = [0xc1_u16, 0x23].map(|b| b as u8);
        [&ports[..], &ROCE_PORT.to_be_bytes(), &len.to_be_bytes(), &[0, 0], payload].concat()
    }

    fn ipv4(header: &Ipv4, options: &[u8], udp: &[u8]) -> Vec<u8> {
        [&header.emit(udp.len() as u16)[..], options, udp].concat()
    }

    fn ethernet(tags: &[[u8; 4]], ethertype: u16, packet: &[u8]) -> Vec<u8> {
        [&[0x02; ADDRESSES_LEN][..], tags.as_flattened(), &ethertype.to_be_bytes(), packet].concat()
    }

    fn header() -> Ipv4 {
        Ipv4 { tos: 0xba, id: Some(0x1234), ..Ipv4::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()) }
    }

    #[test]
    fn tags_and_trailing_pad_are_skipped() {
        let mut packet = ipv4(&header(), &[], &udp(b"payload!"));
        packet.extend([0xee; 18]);
        for tags in [&[][..], &[[0x81, 0, 0, 5]], &[[0x88, 0xa8, 0, 5], [0x81, 0, 0xe0, 6]]] {
            let frame = ethernet(tags, IPV4, &packet);
            let frame = parse_ethernet(&frame).unwrap();
            assert_eq!(
                (frame.ip, frame.source_port, frame.payload),
                (IpHeader::V4(header()), 0xc123, &b"payload!"[..])
            );
            assert!(frame.roce().is_some());
        }
    }

    #[test]
    fn options_and_extension_headers_are_skipped_and_counted() {
        let with_options = Ipv4 { header_len: 24, ..header() };
        let packet = ipv4(&with_options, &[1, 1, 1, 0], &udp(b"pay"));
        let frame = parse_ip(&packet).unwrap();
        assert_eq!((frame.ip, frame.payload), (IpHeader::V4(with_options), &b"pay"[..]));

        // Hop-by-hop, then destination options, each 8 bytes.
        let header = Ipv6 {
            next_header: 0,
            extension_len: 16,
            flow_label: 0xabcde,
            ..Ipv6::new("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap())
        };
        let options = |next| [next, 0, 1, 4, 0, 0, 0, 0];
        let udp = udp(b"pay");
        let packet = [&header.emit(udp.len() as u16)[..], &options(60), &options(17), &udp].concat();
        let frame = parse_ethertype(IPV6, &packet).unwrap();
        assert_eq!((frame.ip, frame.payload), (IpHeader::V6(header), &b"pay"[..]));
    }

    #[test]
    fn what_is_no_whole_datagram_is_refused_with_its_reason() {
        let whole = ipv4(&header(), &[], &udp(b"payload!"));
        let fragment = Ipv4 { flags_fragment: 0x2000, ..header() };
        let later_fragment = Ipv4 { flags_fragment: 1, ..header() };
        for h in [fragment, later_fragment] {
            assert_eq!(parse_ip(&ipv4(&h, &[], &udp(b""))).unwrap_err(), NotUdp::Fragment);
        }
        let mut tcp = whole.clone();
        tcp[9] = 6;
        assert_eq!(parse_ip(&tcp).unwrap_err(), NotUdp::NotUdp(6));
        assert_eq!(parse_ethernet(&ethernet(&[], 0x0806, &whole)).unwrap_err(), NotUdp::NotIp(0x0806));
        let mut lying = whole.clone();
        lying[25] = 200;
        assert!(matches!(parse_ip(&lying), Err(NotUdp::Udp(_))));
        // A length of 0 is a lie too: with the length that is there the ICRC would be right.
        lying[25] = 0;
        assert_eq!(parse_ip(&lying).unwrap_err(), NotUdp::NoLength);

        let frame = ethernet(&[[0x81, 0, 0, 5]], IPV4, &whole);
        for len in 0..frame.len() {
            let error = parse_ethernet(&frame[..len]).unwrap_err();
            assert_eq!(matches!(error, NotUdp::TooShort { .. }), len < 18, "{len}: {error}");
        }
    }
}
