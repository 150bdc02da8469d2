//! What is to be measured, and whether that makes sense.

use super::Pattern;
use crate::ipc::client::QpType;
use crate::wire::PathMtu;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the messages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
    /// FETCH AND ADD of 8 bytes.
    Atomic,
}

impl Operation {
    /// As tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Send => "SEND",
            Self::Atomic => "FETCH_ADD",
        }
    }

    /// Whether its latency is told as half of a measured round trip: of one that is answered by another, as perftest does.
    /// A READ or an atomic is a round trip by nature.
    pub const fn is_half_a_round_trip(self) -> bool {
        matches!(self, Self::Write | Self::Send)
    }
}

/// What is measured of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// How many a second, many under way.
    Bandwidth,
    /// How long one takes, one under way.
    Latency,
}

/// The service that carries them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams: SENDs of one packet each.
    Ud,
}

impl Transport {
    /// The queue pair's type.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// As tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        }
    }

    /// Whether what is lost is sent again.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc)
    }

    /// Bytes before a message in its receive: the GRH area of a datagram.
    pub(super) const fn receive_header_bytes(self) -> u64 {
        match self {
            Self::Ud => 40,
            Self::Rc | Self::Uc => 0,
        }
    }
}

/// When a size has been measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// After this time.
    After(Duration),
    /// After so many messages.
    Messages(u64),
}

/// Messages are this far apart at least, so that none shares a cache line.
const ALIGN: u64 = 64;

/// A measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What the messages are.
    pub operation: Operation,
    /// What is measured of them.
    pub measure: Measure,
    /// What carries them.
    pub transport: Transport,
    /// Message sizes in bytes, each measured on its own.
    pub sizes: Vec<u32>,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Queue pairs side by side (bandwidth).
    pub queue_pairs: u32,
    /// Messages under way on each queue pair (bandwidth).
    pub depth: u32,
    /// Both sides send at once, over queue pairs of their own (bandwidth).
    pub bidirectional: bool,
    /// When to stop each size.
    pub stop: Stop,
    /// Compare every byte.
    pub verify: bool,
    /// Never sleep while waiting.
    pub spin: bool,
    /// Messages up to so many bytes go inline.
    pub inline_bytes: u32,
    /// ACK timeout exponent of the queue pairs.
    pub timeout: u8,
    /// Their retry count.
    pub retry_count: u8,
}

/// Why a plan makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// A size is out of range.
    #[error("a message of {0} bytes: allowed are 1 byte to {max}", max = Plan::MAX_MESSAGE_BYTES)]
    Size(u32),
    /// No sizes.
    #[error("no message size is given")]
    NoSize,
    /// An atomic of other than 8 bytes.
    #[error("atomics have 8 bytes, not {0}")]
    AtomicSize(u32),
    /// Queue pairs or depth out of range.
    #[error("{what} {value}: allowed are 1 to {max}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The largest allowed.
        max: u32,
    },
    /// UC has no READs and atomics, UD has SENDs only.
    #[error("{} has no {operation}: take another --transport", transport.name())]
    NoSuchOperation {
        /// The operation.
        operation: &'static str,
        /// Where it was asked for.
        transport: Transport,
    },
    /// A datagram is one packet.
    #[error("a datagram carries at most {mtu} bytes at this MTU, not {size}")]
    DatagramSize {
        /// Bytes of the message.
        size: u32,
        /// Bytes of the path MTU.
        mtu: u32,
    },
    /// All buffers together are too large.
    #[error("{bytes} bytes of buffers: at most {max} are allowed; take a smaller --size, --depth or --qps", max = Plan::MAX_BUFFER_BYTES)]
    Buffers {
        /// What it would take.
        bytes: u64,
    },
    /// A latency test has one message under way: it goes both ways already.
    #[error("--bidirectional is for bandwidth: a latency test goes both ways already")]
    BidirectionalLatency,
}

impl Plan {
    /// The largest message: 64 MiB fill any pipe.
    pub const MAX_MESSAGE_BYTES: u32 = 64 << 20;
    /// All message buffers of one side together.
    pub const MAX_BUFFER_BYTES: u64 = 8 << 30;
    /// Queue pairs.
    pub const MAX_QUEUE_PAIRS: u32 = 4096;
    /// Messages under way on one queue pair.
    pub const MAX_DEPTH: u32 = 8192;

    /// Message sizes of `--all`: powers of two from 2 bytes to 8 MiB, as perftest's; datagrams end at the path MTU.
    pub fn all_sizes(transport: Transport, path_mtu: PathMtu) -> Vec<u32> {
        let largest = if transport == Transport::Ud { path_mtu.bytes() } else { 8 << 20 };
        (1..=23).map(|bits| 1 << bits).filter(|size| *size <= largest).collect()
    }

    /// Says what is wrong with it, if something is.
    ///
    /// # Errors
    /// See [`PlanError`]. Both sides check: a server trusts no client.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.sizes.is_empty() {
            return Err(PlanError::NoSize);
        }
        if let Some(size) = self.sizes.iter().find(|s| !(1..=Self::MAX_MESSAGE_BYTES).contains(*s)) {
            return Err(PlanError::Size(*size));
        }
        if self.operation == Operation::Atomic
            && let Some(size) = self.sizes.iter().find(|s| **s != 8)
        {
            return Err(PlanError::AtomicSize(*size));
        }
        for (what, value, max) in
            [("--qps", self.queue_pairs, Self::MAX_QUEUE_PAIRS), ("--depth", self.depth, Self::MAX_DEPTH)]
        {
            if !(1..=max).contains(&value) {
                return Err(PlanError::OutOfRange { what, value, max });
            }
        }
        let exists = match self.transport {
            Transport::Rc => true,
            Transport::Uc => matches!(self.operation, Operation::Write | Operation::Send),
            Transport::Ud => self.operation == Operation::Send,
        };
        if !exists {
            let (operation, transport) = (self.operation.name(), self.transport);
            return Err(PlanError::NoSuchOperation { operation, transport });
        }
        let mtu = self.path_mtu.bytes();
        if self.transport == Transport::Ud && self.largest() > mtu {
            return Err(PlanError::DatagramSize { size: self.largest(), mtu });
        }
        if self.bidirectional && self.measure == Measure::Latency {
            return Err(PlanError::BidirectionalLatency);
        }
        let bytes = u64::from(self.queue_pairs) * (self.out_bytes() + self.in_bytes());
        if bytes > Self::MAX_BUFFER_BYTES {
            return Err(PlanError::Buffers { bytes });
        }
        Ok(())
    }

    /// The largest message.
    pub fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Message buffers of each queue pair: one for every message under way where its bytes are compared or received, else
    /// as few as keep the processor's caches warm.
    pub fn slots(&self) -> u64 {
        let depth = u64::from(if self.measure == Measure::Latency { 1 } else { self.depth });
        if self.verify || self.operation == Operation::Send {
            return depth;
        }
        (u64::from(4u32 << 20) / u64::from(self.largest().max(1))).clamp(1, depth)
    }

    /// Whether each message is sent from another place of one long pattern, so that none is like the one before it in its slot
    /// and nothing has to be written before each.
    pub(super) fn slides(&self) -> bool {
        self.verify
            && self.measure == Measure::Bandwidth
            && matches!(self.operation, Operation::Write | Operation::Send)
    }

    /// Distance of two slots.
    pub(super) fn stride(&self) -> u64 {
        (self.transport.receive_header_bytes() + u64::from(self.largest())).next_multiple_of(ALIGN)
    }

    /// Bytes that each queue pair sends from.
    pub(super) fn out_bytes(&self) -> u64 {
        if self.slides() { self.stride() + Pattern::LONGEST_SLIDE } else { self.slots() * self.stride() }
    }

    /// Bytes that each queue pair receives into.
    pub(super) fn in_bytes(&self) -> u64 {
        self.slots() * self.stride()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn plan() -> Plan {
        Plan {
            operation: Operation::Write,
            measure: Measure::Bandwidth,
            transport: Transport::Rc,
            sizes: vec![65536],
            path_mtu: PathMtu::B4096,
            queue_pairs: 1,
            depth: 128,
            bidirectional: false,
            stop: Stop::Messages(1000),
            verify: false,
            spin: false,
            inline_bytes: 0,
            timeout: 14,
            retry_count: 7,
        }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        assert_eq!(plan().check(), Ok(()));
        let broken: [(Plan, &str); 10] = [
            (Plan { sizes: vec![], ..plan() }, "no message size"),
            (Plan { sizes: vec![0], ..plan() }, "0 bytes"),
            (Plan { operation: Operation::Atomic, ..plan() }, "atomics have 8"),
            (Plan { depth: 0, ..plan() }, "--depth 0"),
            (Plan { queue_pairs: 5000, ..plan() }, "--qps 5000"),
            (Plan { operation: Operation::Read, transport: Transport::Uc, ..plan() }, "UC has no READ"),
            (Plan { transport: Transport::Ud, ..plan() }, "UD has no WRITE"),
            (Plan { operation: Operation::Send, transport: Transport::Ud, ..plan() }, "at most 4096 bytes"),
            (Plan { measure: Measure::Latency, bidirectional: true, ..plan() }, "goes both ways already"),
            (Plan { verify: true, sizes: vec![64 << 20], depth: 256, ..plan() }, "of buffers"),
        ];
        for (plan, says) in broken {
            let error = plan.check().map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|e| e.contains(says)), "{error:?} should say {says}");
        }
    }

    #[test]
    fn sizes_of_all_are_perftests() {
        let sizes = Plan::all_sizes(Transport::Rc, PathMtu::B1024);
        assert_eq!((sizes.first(), sizes.last(), sizes.len()), (Some(&2), Some(&8_388_608), 23));
        assert_eq!(Plan::all_sizes(Transport::Ud, PathMtu::B1024).last(), Some(&1024));
    }
}
