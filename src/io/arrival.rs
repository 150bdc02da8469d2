//! From what the kernel gives to datagrams: headers, coalesced or not, and cutting coalesced ones apart.

use core::mem;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::frame::{self, NotUdp};
use crate::wire::icrc::{self, Verdict};
use crate::wire::{Datagram, IpHeader, Ipv4, ROCE_PORT};

use super::mailbox::Message;
use super::port::PortCounters;
use super::tap::VNET_HEADER_BYTES;

const VNET_GSO_NONE: u8 = 0;
const VNET_GSO_UDP_L4: u8 = 5;
const VNET_GSO_ECN: u8 = 0x80;

/// One UDP datagram, or several of one flow and size that the kernel coalesced.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) ip: IpHeader,
    pub(crate) source_port: u16,
    pub(crate) payload: &'a [u8],
    /// Bytes of each datagram but the last; 0 if there is one only.
    pub(crate) segment_bytes: usize,
}

/// Why something that arrived is not shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drop {
    Truncated,
    Malformed,
    Fragment,
    NotOurs,
}

impl Drop {
    pub(crate) fn count(self, counters: &mut PortCounters) {
        match self {
            Self::Truncated => counters.dropped_truncated += 1,
            Self::Malformed => counters.dropped_malformed += 1,
            Self::Fragment => counters.dropped_fragment += 1,
            Self::NotOurs => counters.dropped_not_ours += 1,
        }
    }
}

/// What stands before the IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkHeader {
    Ethernet,
    /// A tunnel: nothing.
    None,
}

/// A frame of an `AF_PACKET` socket, behind a vnet header if `has_vnet`.
pub(crate) fn of_frame<'a>(
    message: &Message<'a>,
    link: LinkHeader,
    has_vnet: bool,
    addresses: &[IpAddr],
) -> Result<Arrival<'a>, Drop> {
    if message.is_truncated {
        return Err(Drop::Truncated);
    }
    let (frame, segment_bytes) = if has_vnet { vnet(message.bytes)? } else { (message.bytes, 0) };
    let parsed = match link {
        LinkHeader::Ethernet => frame::parse_ethernet(frame),
        LinkHeader::None => frame::parse_ip(frame),
    };
    let frame = parsed.map_err(|reason| match reason {
        NotUdp::Fragment => Drop::Fragment,
        _ => Drop::Malformed,
    })?;
    if frame.destination_port != ROCE_PORT || !addresses.contains(&frame.ip.destination()) {
        return Err(Drop::NotOurs);
    }
    Ok(Arrival { ip: frame.ip, source_port: frame.source_port, payload: frame.payload, segment_bytes })
}

/// The frame behind a vnet header, and its segment size. Checksums may be partial (a local sender leaves them to hardware
/// that is not there): the ICRC covers more than they do.
fn vnet(bytes: &[u8]) -> Result<(&[u8], usize), Drop> {
    let (header, frame) = bytes.split_first_chunk::<VNET_HEADER_BYTES>().ok_or(Drop::Truncated)?;
    match header[1] & !VNET_GSO_ECN {
        VNET_GSO_NONE => Ok((frame, 0)),
        VNET_GSO_UDP_L4 => Ok((frame, usize::from(u16::from_ne_bytes([header[4], header[5]])))),
        _ => Err(Drop::Malformed),
    }
}

/// A datagram of a UDP socket bound to `local`.
pub(crate) fn of_datagram<'a>(message: &Message<'a>, local: IpAddr) -> Result<Arrival<'a>, Drop> {
    if message.is_truncated {
        return Err(Drop::Truncated);
    }
    let (source, source_port) = source(message.name).ok_or(Drop::Malformed)?;
    let mut ip = IpHeader::new(source, local).ok_or(Drop::Malformed)?;
    if let IpHeader::V4(Ipv4 { id, .. }) = &mut ip {
        *id = None;
    }
    let mut segment_bytes = 0;
    for (level, kind, data) in control_messages(message.control) {
        let number = match *data {
            [byte] => i32::from(byte),
            [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]),
            _ => continue,
        };
        match (level, kind, &mut ip) {
            (libc::SOL_UDP, libc::UDP_GRO, _) => segment_bytes = usize::try_from(number).unwrap_or(0),
            (libc::IPPROTO_IP, libc::IP_TOS, IpHeader::V4(ip)) => ip.tos = number as u8,
            (libc::IPPROTO_IP, libc::IP_TTL, IpHeader::V4(ip)) => ip.ttl = number as u8,
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, IpHeader::V6(ip)) => ip.traffic_class = number as u8,
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, IpHeader::V6(ip)) => ip.hop_limit = number as u8,
            _ => {}
        }
    }
    Ok(Arrival { ip, source_port, payload: message.bytes, segment_bytes })
}

fn source(name: &libc::sockaddr_storage) -> Option<(IpAddr, u16)> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, which is smaller than the storage and needs no more alignment.
            let name = unsafe { &*core::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            Some((Ipv4Addr::from_bits(u32::from_be(name.sin_addr.s_addr)).into(), u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let name = unsafe { &*core::ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            Some((Ipv6Addr::from(name.sin6_addr.s6_addr).into(), u16::from_be(name.sin6_port)))
        }
        _ => None,
    }
}

/// Level, type and data of each control message.
pub(super) fn control_messages(mut control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    const HEADER: usize = mem::size_of::<libc::cmsghdr>();
    core::iter::from_fn(move || {
        let header = control.get(..HEADER)?;
        // SAFETY: HEADER bytes, of a C struct for which all bit patterns are values.
        let header = unsafe { header.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let len = header.cmsg_len;
        let data = control.get(HEADER..len)?;
        control = control.get(len.next_multiple_of(mem::align_of::<libc::cmsghdr>())..).unwrap_or_default();
        Some((header.cmsg_level, header.cmsg_type, data))
    })
}

/// Shows each datagram of `arrival` and gives back how many there were.
///
/// `ids_count_up` tells whether this kernel coalesces only what has equal or counting identifications (since 6.10).
pub(crate) fn split(arrival: &Arrival<'_>, ids_count_up: bool, sink: &mut dyn FnMut(&Datagram<'_>)) -> usize {
    let Arrival { ip, source_port, payload, segment_bytes } = *arrival;
    if segment_bytes == 0 || payload.len() <= segment_bytes {
        sink(&Datagram { ip, source_port, bytes: payload });
        return 1;
    }
    let segments = || payload.chunks(segment_bytes).map(|bytes| Datagram { ip, source_port, bytes });
    let ids = match ip {
        IpHeader::V4(ip) => Identifications::of(ip.id, segments(), ids_count_up),
        IpHeader::V6(_) => Identifications::Unknown,
    };
    let mut count = 0;
    for (index, mut datagram) in segments().enumerate() {
        if let IpHeader::V4(ip) = &mut datagram.ip
            && index > 0
        {
            ip.id = ids.of_segment(index as u16);
        }
        sink(&datagram);
        count += 1;
    }
    count
}

/// The identifications of a coalesced receive, of which the kernel tells at most the first.
///
/// What a local sender gave as one super-packet counts up from it. What GRO put together may have come from single sends,
/// all of identification 0. The ICRC of the second packet tells the two apart; a CRC is linear, so it takes one pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Identifications {
    CountFrom(u16),
    All(u16),
    Unknown,
}

impl Identifications {
    fn of<'a>(first_id: Option<u16>, mut segments: impl Iterator<Item = Datagram<'a>>, ids_count_up: bool) -> Self {
        if !ids_count_up {
            return Self::Unknown;
        }
        let (Some(first), Some(mut second)) = (segments.next(), segments.next()) else {
            return Self::Unknown;
        };
        let first_id = first_id.or_else(|| identification(&first, 0));
        let Some(first_id) = first_id else { return Self::Unknown };
        if let IpHeader::V4(ip) = &mut second.ip {
            ip.id = None;
        }
        let next = first_id.wrapping_add(1);
        match identification(&second, next) {
            Some(id) if id == next => Self::CountFrom(first_id),
            Some(id) if id == first_id => Self::All(first_id),
            _ => Self::Unknown,
        }
    }

    fn of_segment(self, index: u16) -> Option<u16> {
        match self {
            Self::CountFrom(first) => Some(first.wrapping_add(index)),
            Self::All(id) => Some(id),
            Self::Unknown => None,
        }
    }
}

/// The identification that makes the ICRC right, if there is one.
fn identification(datagram: &Datagram<'_>, hint: u16) -> Option<u16> {
    match icrc::verify(datagram, hint) {
        Verdict::Good => Some(hint),
        Verdict::GoodWithId(id) => Some(id),
        Verdict::Bad => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::wire::icrc::Icrc;

    const SEGMENT: usize = 64;

    /// Three packets of 64, 64 and 32 bytes whose ICRCs fit `ids`, and what a receiver sees of their identifications.
    fn seen(first_id: Option<u16>, ids: [u16; 3], ids_count_up: bool, damage: Option<usize>) -> Vec<Option<u16>> {
        let ip = |id| match IpHeader::new([198, 18, 0, 1].into(), [198, 18, 0, 2].into()) {
            Some(IpHeader::V4(ip)) => IpHeader::V4(Ipv4 { id, ..ip }),
            other => panic!("{other:?}"),
        };
        let mut payload = Vec::new();
        for (id, len) in ids.into_iter().zip([SEGMENT, SEGMENT, SEGMENT / 2]) {
            let covered = vec![id as u8; len - 4];
            payload.extend(&covered);
            payload.extend(Icrc::start(&ip(Some(id)), 0xc000, (len + 8) as u16, &covered).finish().to_le_bytes());
        }
        if let Some(at) = damage {
            payload[at] ^= 1;
        }
        let arrival = Arrival { ip: ip(first_id), source_port: 0xc000, payload: &payload, segment_bytes: SEGMENT };
        let mut seen = Vec::new();
        let count = split(&arrival, ids_count_up, &mut |datagram| match datagram.ip {
            IpHeader::V4(ip) => seen.push(ip.id),
            IpHeader::V6(_) => panic!(),
        });
        assert_eq!(count, 3);
        seen
    }

    #[test]
    fn identifications_of_a_coalesced_receive() {
        assert_eq!(seen(Some(7), [7, 8, 9], true, None), [Some(7), Some(8), Some(9)]);
        assert_eq!(seen(Some(u16::MAX), [u16::MAX, 0, 1], true, None), [Some(u16::MAX), Some(0), Some(1)]);
        assert_eq!(seen(Some(0), [0, 0, 0], true, None), [Some(0); 3], "single sends that GRO coalesced");
        // A UDP socket sees none: the first stays unknown, lest it vouch for itself.
        assert_eq!(seen(None, [0, 1, 2], true, None), [None, Some(1), Some(2)]);
        assert_eq!(seen(None, [5, 5, 5], true, None), [None, Some(5), Some(5)]);
        // Whatever does not fit is left to the ICRC.
        assert_eq!(seen(Some(7), [7, 99, 9], true, None), [Some(7), None, None]);
        assert_eq!(seen(Some(7), [7, 8, 9], true, Some(SEGMENT + 3)), [Some(7), None, None]);
        assert_eq!(seen(Some(7), [7, 8, 9], false, None), [Some(7), None, None], "before Linux 6.10");
    }

    #[test]
    fn a_segment_size_beyond_the_payload_is_one_packet() {
        let ip = IpHeader::new([1, 1, 1, 1].into(), [2, 2, 2, 2].into()).unwrap();
        for segment_bytes in [0, 10, 11] {
            let arrival = Arrival { ip, source_port: 1, payload: &[0; 10], segment_bytes };
            let mut lengths = Vec::new();
            split(&arrival, true, &mut |datagram| lengths.push(datagram.bytes.len()));
            assert_eq!(lengths, [10]);
        }
    }

    #[test]
    fn lying_vnet_headers_are_refused() {
        assert_eq!(vnet(&[0; 9]).err(), Some(Drop::Truncated));
        let header = |gso_type: u8| [0, gso_type, 0, 0, 1, 2, 0, 0, 0, 0, 9];
        assert_eq!(vnet(&header(0)), Ok((&[9][..], 0)));
        assert_eq!(vnet(&header(5 | 0x80)), Ok((&[9][..], usize::from(u16::from_ne_bytes([1, 2])))));
        assert_eq!(vnet(&header(1)).err(), Some(Drop::Malformed), "TCP");
    }
}
