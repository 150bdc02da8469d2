//! How far a queue pair may go before it waits.

use crate::wire::PathMtu;
use core::time::Duration;

/// Limits that hold for every queue pair of a device, for all its life: where READs are cut must not move while one is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransportLimits {
    /// PSNs that a requester has under way at most: more would only fill, and overflow, the peer's socket buffer.
    pub max_unacked_packets: u32,
    /// The same in bytes: a large path MTU lowers the number of packets, though never below 16.
    pub max_unacked_bytes: u32,
    /// A READ is asked for in pieces of at most so many bytes, so that its answer does not overflow our own buffers.
    pub max_read_bytes: u32,
    /// How long an acknowledgement that nobody asked for may be held back.
    pub ack_delay: Duration,
    /// The port's MTU: the longest datagram.
    pub port_mtu: PathMtu,
    /// Losses without progress that cost a request no retry: a flicker of the light, too short to be noticed, is not its fault.
    pub pardons: u8,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            max_unacked_packets: 512,
            max_unacked_bytes: 1 << 20,
            max_read_bytes: 256 << 10,
            ack_delay: Duration::from_micros(100),
            port_mtu: PathMtu::B4096,
            pardons: 0,
        }
    }
}

impl TransportLimits {
    /// Outstanding PSNs may never reach 2^23, or old and new could not be told apart (IBTA 9.7.2).
    pub const MAX_OUTSTANDING: u32 = (1 << 23) - 1;

    /// PSNs that may be under way at `mtu`.
    pub fn window(&self, mtu: PathMtu) -> u32 {
        let by_bytes = (self.max_unacked_bytes / mtu.bytes()).max(16);
        self.max_unacked_packets.min(by_bytes).clamp(1, Self::MAX_OUTSTANDING)
    }

    /// PSNs that one READ request takes at most at `mtu`.
    pub fn read_packets(&self, mtu: PathMtu) -> u32 {
        (self.max_read_bytes / mtu.bytes()).clamp(1, self.window(mtu))
    }
}
