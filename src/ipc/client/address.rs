//! Where datagrams go, and how two programs tell each other where they are.

use super::{AddressVector, UdAddress};
use crate::memory::Access;
use crate::wire::{PathMtu, Psn, Qpn};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};

/// How datagrams reach a host: `ibv_ah`. A plain value: the daemon knows nothing of it, and there is nothing to destroy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressHandle(AddressVector);

impl AddressHandle {
    /// To this address, from the device's first address of the same IP version, over a path that the daemon chooses.
    pub const fn to(destination: IpAddr) -> Self {
        let source = match destination {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Self(AddressVector::between(source, destination, 0))
    }

    /// With all that an address vector can say. An unspecified source stands for the device's first address of the destination's
    /// IP version, a source port of 0 for one that the daemon chooses.
    pub const fn new(vector: AddressVector) -> Self {
        Self(vector)
    }

    /// What it says.
    pub const fn vector(&self) -> &AddressVector {
        &self.0
    }

    /// A queue pair of that host, for a request's [`datagram`](super::SendRequest::datagram).
    pub const fn queue_pair(&self, qpn: Qpn, qkey: u32) -> UdAddress {
        UdAddress { av: self.0, dest_qp: qpn, qkey }
    }
}

/// What a peer must know to connect to a queue pair. How it gets there is the programs' business.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub psn: u32,
    /// The device's address.
    pub address: IpAddr,
}

impl Endpoint {
    /// The first PSN that it sends.
    pub const fn first_psn(&self) -> Psn {
        Psn::new(self.psn)
    }
}

/// How a connection is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionOptions {
    /// Which of the device's addresses to use; without one, the first of the peer's IP version.
    pub source: Option<IpAddr>,
    /// Payload of every packet of a message but its last.
    pub path_mtu: PathMtu,
    /// What the peer may do.
    pub access: Access,
    /// ACK timeout t: 4.096 us * 2^t; 0 for never.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 for ever.
    pub rnr_retry: u8,
    /// Code of the shortest time that the peer shall wait after our RNR NAK.
    pub min_rnr_timer: u8,
    /// READs and atomics under way, each way.
    pub max_rd_atomic: u8,
    /// IP traffic class (TOS).
    pub traffic_class: u8,
}

impl Default for ConnectionOptions {
    /// The peer may do everything; a lost packet is sent again after 67 ms, seven times; a peer that is not ready is waited for.
    fn default() -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Self {
            source: None,
            path_mtu: PathMtu::B1024,
            access,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            traffic_class: 0,
        }
    }
}
