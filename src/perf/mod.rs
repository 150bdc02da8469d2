//! Bandwidth and latency between two hosts, and the stock pingpong programs' partner.
//!
//! `holdfast perf serve` waits on a TCP port; `holdfast perf write-bw HOST` and its sisters tell it what to measure, exchange
//! endpoints with it over that connection, and measure over RDMA. Every byte can be verified.
//!
//! | file | what it is for |
//! |---|---|
//! | `plan` | what is to be measured, and whether that makes sense |
//! | `exchange` | the TCP conversation of the two sides |
//! | `link` | queue pairs, memory and completions of one side, connected |
//! | `bandwidth`, `latency` | the loops that are measured |
//! | `serve`, `measure` | the two sides, from the first word to the last |
//! | `pattern`, `report` | bytes that can be checked; tables and JSON |
//! | `handshake`, `pingpong` | rdma-core's `ibv_*_pingpong` |

mod bandwidth;
mod exchange;
pub mod handshake;
mod latency;
mod link;
mod measure;
mod pattern;
pub mod pingpong;
mod plan;
mod report;
mod serve;

pub use measure::{Line, Progress, measure};
pub use pattern::Pattern;
pub use plan::{Measure, Operation, Plan, PlanError, Stop, Transport};
pub use report::{Bandwidth, Latency};
pub use serve::serve;

use crate::ipc::client;
use crate::transport::{PostError, WcStatus};
use std::io;

/// UDP and TCP have 4791 and 18515 for others; this is where `perf serve` listens.
pub const DEFAULT_PORT: u16 = 18_791;

/// What ends a measurement.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The plan makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The daemon refused something, or is gone.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A request could not be posted.
    #[error("a request was refused: {0}")]
    Post(#[from] PostError),
    /// A completion reported an error.
    #[error("a {what} completed with {status:?}; `holdfast qp show {qpn}` on either side may tell more")]
    Completion {
        /// What kind of request.
        what: &'static str,
        /// The status.
        status: WcStatus,
        /// Whose.
        qpn: u32,
    },
    /// The TCP connection failed.
    #[error("the connection to the other side failed: {0}")]
    Tcp(#[from] io::Error),
    /// The other side said something unexpected.
    #[error("the other side said '{0}', which is not the conversation of this version; are both sides of one version?")]
    Conversation(String),
    /// The other side refused or failed.
    #[error("the other side: {0}")]
    Peer(String),
    /// Nothing completed for a long time.
    #[error(
        "nothing completed for {seconds} s; does the path to the peer carry UDP port 4791, and is the MTU right? \
         Over UC and UD a lost packet is not sent again"
    )]
    Stalled {
        /// How long.
        seconds: u64,
    },
    /// A message of a pingpong was not as long as it was to be.
    #[error("message {message} has {bytes} bytes and not {want}; are both sides told the same --size?")]
    WrongLength {
        /// Which, from 0.
        message: u32,
        /// Bytes it has.
        bytes: u32,
        /// Bytes it should have.
        want: u32,
    },
    /// A message of a pingpong was not what the peer must have sent.
    #[error("{wrong} bytes of message {message} are wrong")]
    WrongBytes {
        /// Which, from 0.
        message: u32,
        /// How many.
        wrong: usize,
    },
    /// A message was lost where nobody sends it again.
    #[error("a message was lost, and over {transport} nobody sends it again: measure once more, or over RC")]
    Lost {
        /// Over what.
        transport: &'static str,
    },
    /// The device has no address to connect to.
    #[error("the device has no address")]
    NoAddress,
    /// A handshake with a stock pingpong failed.
    #[error(transparent)]
    Handshake(#[from] handshake::HandshakeError),
}
