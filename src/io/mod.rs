//! Packet backends behind one [`Port`] trait, the links that they hang on, and the means to test both.
//!
//! ```text
//!             receive                                             send
//! packet      AF_PACKET, BPF filter, vnet header: whole           UDP sockets, one a lane (source port), unconnected,
//!             super-packets with IP ID, TTL, ECN                  UDP_SEGMENT: whole super-packets, IDs 0, 1, 2, …
//! udp         UDP socket on port 4791, UDP_GRO: whole             the same
//!             super-packets with TTL and ECN, ID unknown
//! ```
//!
//! Either is driven by plain system calls or by io_uring, see [`Driver`]. [`open`] finds out what this machine can do, takes the
//! best, and keeps the reasons in [`Capabilities::notes`]. `packet` also holds UDP port 4791, or the kernel would answer each
//! packet with an ICMP error.
//!
//! Around a port stand, where asked for, [`Faults`] (a bad network) and [`PcapTee`] (a capture). [`link`] follows the
//! interface, [`namespace`] makes networks to try all that in. A [`Tap`] takes every frame of an interface: for the emulated fabric.
//!
//! # The identification rule
//!
//! The ICRC covers the IPv4 identification, which the kernel writes. What it writes is known for the sockets used here, checked
//! when the process opens its first port (over loopback, in a network namespace that exists for a moment), and published as
//! [`BurstLimits::ip_id`](crate::transport::BurstLimits). Where a NIC would segment instead of Linux, `gso = auto` sends
//! single packets and says why.
//!
//! # Several workers
//!
//! Each worker opens a port of its own, with its [`Worker`](crate::engine::Worker). Packets are steered by the destination queue pair of a receive's
//! first packet: where queue pairs of several workers share a peer *and a lane*, a coalesced receive brings a worker packets of
//! another's, which it finds no queue pair for; the peer sends them again. Peers that spread queue pairs over lanes (all do) meet
//! this seldom.
#![allow(unsafe_code)]

mod arrival;
mod bpf;
mod ethtool;
mod faults;
mod lanes;
pub mod link;
mod mailbox;
pub mod namespace;
mod open;
mod outgoing;
mod packet;
mod pcap_tee;
mod port;
mod self_check;
mod sender;
mod socket_port;
mod sockopt;
mod tap;
mod udp;
mod uring;

#[cfg(test)]
mod tests;

pub(crate) use faults::SplitMix;
pub use faults::{Blackout, FaultCounts, FaultRates, Faults};
pub use open::{Gso, PortSettings, open};
pub use pcap_tee::{PcapLink, PcapTee};
pub use port::{Backend, Capabilities, Driver, Port, PortCounters, PortError, Refusal, RefusalReason};
pub use socket_port::SocketPort;
pub use tap::{Tap, VNET_HEADER_BYTES};
