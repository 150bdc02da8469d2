//! From a captured record to the datagram in it, by link type.

use super::capture::Record;
use crate::wire::frame::{self, Frame, NotUdp};
use crate::wire::{Datagram, Malformed};
use pcap_parser::Linktype;

/// Bytes of the pseudo-headers that stand before the packet: `LINUX_SLL` ends with the EtherType, `LINUX_SLL2` begins with it, `NULL` and
/// `LOOP` name an address family that the IP version tells as well.
const SLL_LEN: usize = 16;
const SLL2_LEN: usize = 20;
const NULL_LEN: usize = 4;

/// Why a record is skipped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Skip {
    #[error("truncated: {captured} bytes captured of {original}")]
    Truncated { captured: usize, original: u32 },
    #[error("link type {0} is not supported")]
    LinkType(i32),
    #[error("its interface is not described in the file")]
    NoInterface,
    #[error(transparent)]
    Frame(NotUdp),
    #[error("UDP port {0}, not RoCEv2")]
    OtherPort(u16),
    #[error("malformed RoCEv2 packet: {0}")]
    Malformed(Malformed),
}

impl Skip {
    /// A healthy packet of another protocol.
    pub(super) fn is_foreign(&self) -> bool {
        match self {
            Self::OtherPort(_) => true,
            Self::Frame(e) => matches!(e, NotUdp::NotIp(_) | NotUdp::NotUdp(_)),
            Self::Truncated { .. } | Self::LinkType(_) | Self::NoInterface | Self::Malformed(_) => false,
        }
    }

    /// The reason in few words, for counting.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated by the capture",
            Self::LinkType(_) => "unsupported link type",
            Self::NoInterface => "interface not described",
            Self::Frame(NotUdp::NotIp(_)) => "not IP",
            Self::Frame(NotUdp::NotUdp(_)) => "not UDP",
            Self::Frame(NotUdp::Fragment) => "IP fragment",
            Self::Frame(NotUdp::TooShort { .. } | NotUdp::Ip(_) | NotUdp::Udp(_) | NotUdp::NoLength) => {
                "damaged headers"
            }
            Self::OtherPort(_) => "another UDP port",
            Self::Malformed(_) => "malformed RoCEv2",
        }
    }
}

/// The RoCEv2 datagram of a record.
pub(super) fn parse<'a>(record: &Record<'a>) -> Result<Datagram<'a>, Skip> {
    let link = record.link.ok_or(Skip::NoInterface)?;
    let frame = parse_frame(link, record.data)?.map_err(|e| {
        let captured = record.data.len();
        let damaged = matches!(e, NotUdp::TooShort { .. } | NotUdp::Ip(_) | NotUdp::Udp(_) | NotUdp::NoLength);
        match u32::try_from(captured) {
            Ok(len) if damaged && len < record.original_len => {
                Skip::Truncated { captured, original: record.original_len }
            }
            _ => Skip::Frame(e),
        }
    })?;
    frame.roce().ok_or(Skip::OtherPort(frame.destination_port))
}

fn parse_frame(link: Linktype, data: &[u8]) -> Result<Result<Frame<'_>, NotUdp>, Skip> {
    let short = NotUdp::TooShort { len: data.len() };
    let behind = |len| data.get(len..).ok_or(short.clone());
    let ethertype = |at| data.get(at..).and_then(|d| d.first_chunk()).map(|&b| u16::from_be_bytes(b));
    Ok(match link {
        Linktype::ETHERNET => frame::parse_ethernet(data),
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => frame::parse_ip(data),
        Linktype::NULL | Linktype::LOOP => behind(NULL_LEN).and_then(frame::parse_ip),
        Linktype::LINUX_SLL => {
            behind(SLL_LEN).and_then(|d| frame::parse_ethertype(ethertype(SLL_LEN - 2).unwrap_or_default(), d))
        }
        Linktype::LINUX_SLL2 => {
            behind(SLL2_LEN).and_then(|d| frame::parse_ethertype(ethertype(0).unwrap_or_default(), d))
        }
        other => return Err(Skip::LinkType(other.0)),
    })
}
