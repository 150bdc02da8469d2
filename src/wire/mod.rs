//! Packet formats: bytes to values and back.
//!
//! Floor 0: never allocates, keeps no state, does no I/O. After a checked constructor has succeeded, no accessor panics.
//!
//! ```
//! use holdfast::wire::{CNP_LEN, Datagram, IpHeader, Opcode, Packet, Qpn, build_cnp, icrc};
//!
//! // What a sender builds …
//! let ip = IpHeader::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()).ok_or("one family")?;
//! let bytes: [u8; CNP_LEN] = build_cnp(&ip, 0xc000, Qpn::new(0x11), 0xffff);
//!
//! // … a port receives (`frame` takes raw frames apart), and the ICRC decides.
//! let datagram = Datagram { ip, source_port: 0xc000, bytes: &bytes };
//! assert!(icrc::verify(&datagram, 0).is_good());
//! let packet = Packet::new_checked(datagram.bytes)?;
//! assert_eq!((packet.opcode(), packet.dest_qp()), (Opcode::CNP, Qpn::new(0x11)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sources: InfiniBand Architecture Specification volume 1 (release 1.4+), chapter 9 (transport), annex A17 (RoCEv2).

mod build;
mod cnp;
mod crc_math;
pub mod frame;
mod gid;
mod headers;
pub mod icrc;
mod ip;
mod mad;
mod mtu;
mod opcode;
mod packet;
mod psn;

pub use build::HeaderBuf;
pub use cnp::{CNP_LEN, build_cnp};
pub use gid::Gid;
pub use headers::{Aeth, AtomicEth, Bth, Deth, Nak, Reth, RnrTimer, Syndrome, pad_count};
pub use ip::{Ecn, IpHeader, Ipv4, Ipv6, UDP_LEN};
pub use mad::{GSI_QKEY, MAD_LEN, Mad, MadHeader};
pub use mtu::PathMtu;
pub use opcode::{Opcode, Operation, Place, Service};
pub use packet::{Datagram, Malformed, Packet};
pub use psn::{Psn, Qpn};

/// UDP destination port of RoCEv2 (IANA; IBTA annex A17.4.1).
pub const ROCE_PORT: u16 = 4791;
/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;
/// Bytes of the Base Transport Header.
pub const BTH_LEN: usize = 12;
/// The default partition key, full member.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// The largest message (IBTA 9.7.6): 2^31 bytes.
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;
