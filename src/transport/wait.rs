//! Why a queue pair does not send: what it waits for, or what made it fail.

use super::WcStatus;
use crate::time::Duration;
use crate::wire::PathMtu;

/// What a queue pair waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Wait {
    /// The peer had no receive and asked us to wait (RNR NAK).
    Rnr,
    /// Something was lost: what follows waits until it has arrived.
    Loss,
    /// All that was posted is sent; the peer's answer is missing.
    Ack,
    /// The peer gave no credit for another receive (IBTA 9.7.7.2).
    Credit,
    /// As many packets are under way as may be.
    Window,
    /// As many READs and atomics are under way as may be.
    Reads,
    /// A fence: READs and atomics before it are under way.
    Fence,
    /// The application has stopped the queue (SQD).
    Stopped,
    /// The application has posted nothing.
    Application,
    /// The path is dark.
    Dark,
    /// CNPs have slowed it down: its next burst is not due yet.
    Congestion,
}

/// A wait, and how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// For what.
    pub reason: Wait,
    /// Since the peer's last sign of life, or our last attempt to get one; `None` if no answer is missing.
    pub waited: Option<Duration>,
    /// Until a timer ends the wait: the peer's RNR timer, or our ACK timer; `None` if none runs.
    pub ends_in: Option<Duration>,
}

/// What brought a queue pair into an error state: the first cause, not what followed from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A send request that completed with this status.
    Send(WcStatus),
    /// A receive that completed with this status.
    Receive(WcStatus),
    /// A request of the peer that breaks a rule of the protocol.
    PeerInvalidRequest,
    /// A request of the peer for memory that it may not reach.
    PeerAccess,
    /// Its path was dark for longer than it is held.
    Dark,
    /// Its path carries smaller packets now than both ends agreed on, and a request needs larger ones.
    PathMtu {
        /// What the path carries.
        carried: PathMtu,
        /// The path MTU of the connection.
        agreed: PathMtu,
    },
    /// Somebody modified it to ERR: its program, or the daemon for it.
    Modified,
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Send(status) => write!(f, "a send request failed: {status}"),
            Self::Receive(status) => write!(f, "a receive failed: {status}"),
            Self::PeerInvalidRequest => f.write_str("the peer sent an invalid request"),
            Self::PeerAccess => {
                f.write_str("the peer asked for memory that it may not reach (key, bounds or permission)")
            }
            Self::Dark => {
                f.write_str("its path was dark for longer than hold_max: a send request ended with RETRY_EXC_ERR")
            }
            Self::PathMtu { carried, agreed } => write!(
                f,
                "its circuit carries packets of {} bytes, and a request needs those of {} that it was connected for: connect with the \
                 smaller path MTU",
                carried.bytes(),
                agreed.bytes()
            ),
            Self::Modified => f.write_str(
                "brought to ERR by its program, or by the daemon: a work request without meaning, a completion queue \
                 that overran, or memory that was taken away",
            ),
        }
    }
}
