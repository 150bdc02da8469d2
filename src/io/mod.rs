//! Packet backends behind one [`Port`] trait, the links that they hang on, and the means to test both.
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
mod udp;
mod uring;

#[cfg(test)]
mod tests;

pub use faults::{Blackout, FaultCounts, FaultRates, Faults};
pub use open::{Gso, PortSettings, open};
pub use pcap_tee::{PcapLink, PcapTee};
pub use port::{Backend, Capabilities, Driver, Port, PortCounters, PortError, Refusal, RefusalReason, Steering};
pub use socket_port::SocketPort;
