//! Why the daemon refuses a request.

use super::Handle;
use serde::{Deserialize, Serialize};

/// Kinds of objects that a client has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectKind {
    /// Protection domain.
    Pd,
    /// Memory region.
    Region,
    /// Memory window.
    Window,
    /// Completion channel.
    Channel,
    /// Completion queue.
    CompletionQueue,
    /// Shared receive queue.
    SharedReceiveQueue,
    /// Queue pair.
    QueuePair,
}

impl core::fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Pd => "protection domain",
            Self::Region => "memory region",
            Self::Window => "memory window",
            Self::Channel => "completion channel",
            Self::CompletionQueue => "completion queue",
            Self::SharedReceiveQueue => "shared receive queue",
            Self::QueuePair => "queue pair",
        })
    }
}

/// What a client may have only so much of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LimitKind {
    /// Objects of a kind.
    Objects(ObjectKind),
    /// Work requests or completions in a queue.
    QueueDepth,
    /// Gather/scatter entries of a work request.
    Sges,
    /// Inline bytes of a work request.
    InlineBytes,
    /// Bytes of shared memory for all queues of a client.
    QueueMemoryBytes,
    /// Bytes of all memory regions of a client.
    RegisteredBytes,
    /// Queues and regions in shared memory of a client, each of which the daemon has to map.
    Mappings,
}

impl core::fmt::Display for LimitKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Objects(kind) => write!(f, "{kind}s"),
            Self::QueueDepth => f.write_str("entries in a queue"),
            Self::Sges => f.write_str("gather/scatter entries in a work request"),
            Self::InlineBytes => f.write_str("inline bytes in a work request"),
            Self::QueueMemoryBytes => f.write_str("bytes of queue memory"),
            Self::RegisteredBytes => f.write_str("bytes of registered memory"),
            Self::Mappings => f.write_str("queues and memory regions that the daemon has to map"),
        }
    }
}

/// Why the daemon refuses a request. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such object, or it is another client's.
    #[error("this client has no {kind} {handle}")]
    Unknown {
        /// What was looked for.
        kind: ObjectKind,
        /// Its handle.
        handle: Handle,
    },
    /// Other objects depend on it.
    #[error("{kind} {handle} is in use by {users} other objects: destroy those first")]
    Busy {
        /// What it is.
        kind: ObjectKind,
        /// Its handle.
        handle: Handle,
        /// How many depend on it.
        users: u32,
    },
    /// The client has, or asks for, more than it may.
    #[error(
        "a client may have {limit} {kind}, not {wanted}: ask for less, or raise the limits in holdfastd's [clients] settings"
    )]
    Limit {
        /// Of what.
        kind: LimitKind,
        /// As many as it may have.
        limit: u64,
        /// As many as it would have had.
        wanted: u64,
    },
    /// The client may not do this.
    #[error("this client may not {action}: {remedy}")]
    NotPermitted {
        /// What it wanted.
        action: String,
        /// What would allow it.
        remedy: String,
    },
    /// The request makes no sense, or the object's state does not allow it.
    #[error("{reason}")]
    Invalid {
        /// Why.
        reason: String,
        /// As verbs would say it.
        errno: i32,
    },
    /// The operating system has no descriptor, mapping or memory left.
    #[error("holdfastd could not {action}: {reason}")]
    System {
        /// What it tried.
        action: String,
        /// What the kernel said.
        reason: String,
        /// As verbs would say it.
        errno: i32,
    },
}

impl Refusal {
    /// The request makes no sense: `EINVAL`.
    pub fn invalid(reason: impl core::fmt::Display) -> Self {
        Self::Invalid { reason: reason.to_string(), errno: libc::EINVAL }
    }

    /// The kernel refused `action`.
    pub fn system(action: &str, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::System { action: action.into(), reason: error.to_string(), errno }
    }

    /// The error number that verbs return for it.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Unknown { .. } => libc::EINVAL,
            Self::Busy { .. } => libc::EBUSY,
            // As providers: too many objects are ENOMEM, a size out of range is EINVAL.
            Self::Limit { kind: LimitKind::QueueDepth | LimitKind::Sges | LimitKind::InlineBytes, .. } => libc::EINVAL,
            Self::Limit { .. } => libc::ENOMEM,
            Self::NotPermitted { .. } => libc::EPERM,
            Self::Invalid { errno, .. } | Self::System { errno, .. } => *errno,
        }
    }
}
