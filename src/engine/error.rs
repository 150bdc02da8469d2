//! What can be wrong with a call.

use crate::memory::{MemoryError, PdId};
use crate::transport::{CqError, CqId, ModifyError, PostError, QpInitError, SrqError, SrqId};
use crate::wire::Qpn;

/// Why an object was not made or not removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// There is no such queue pair.
    #[error("no queue pair {0}")]
    UnknownQp(Qpn),
    /// There is no such protection domain.
    #[error("no protection domain {0:?}")]
    UnknownPd(PdId),
    /// Queue pairs still use the completion queue.
    #[error("{users} queue pairs complete on {id:?}: destroy them first")]
    CqBusy {
        /// The completion queue.
        id: CqId,
        /// Uses by queue pairs; one that sends and receives on it counts twice.
        users: u32,
    },
    /// Queue pairs still draw from the shared receive queue.
    #[error("{users} queue pairs draw from {id:?}: destroy them first")]
    SrqBusy {
        /// The shared receive queue.
        id: SrqId,
        /// Queue pairs that draw from it.
        users: u32,
    },
    /// QP 1 exists once.
    #[error("the general services queue pair (QP 1) exists already")]
    GsiTaken,
    /// QP 1 lives on worker 0, where its packets are steered.
    #[error("the general services queue pair (QP 1) lives on worker 0, and this client is on another")]
    GsiElsewhere,
    /// All 2^24 numbers are taken.
    #[error("no queue pair number is free: destroy queue pairs")]
    NoNumber,
    /// The queue pair's sizes or kind.
    #[error(transparent)]
    Qp(#[from] QpInitError),
    /// A completion queue.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// A shared receive queue.
    #[error(transparent)]
    Srq(#[from] SrqError),
    /// A protection domain or what hangs on it.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl ObjectError {
    /// The errno that verbs return for it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::CqBusy { .. } | Self::SrqBusy { .. } | Self::GsiTaken | Self::Memory(MemoryError::Busy(_)) => {
                libc::EBUSY
            }
            Self::NoNumber => libc::ENOMEM,
            _ => libc::EINVAL,
        }
    }
}

/// Why something was not done with a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QpError<E> {
    /// There is no such queue pair.
    #[error("no queue pair {0}")]
    Unknown(Qpn),
    /// The queue pair refused.
    #[error(transparent)]
    Refused(#[from] E),
}

impl QpError<PostError> {
    /// The errno that verbs return for it.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Unknown(_) => libc::EINVAL,
            Self::Refused(e) => e.errno(),
        }
    }
}

impl QpError<ModifyError> {
    /// The errno that verbs return for it.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Unknown(_) => libc::EINVAL,
            Self::Refused(e) => e.errno(),
        }
    }
}
