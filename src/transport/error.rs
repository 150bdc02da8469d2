//! What a client did wrong.

use super::{AttrMask, QpCapabilities, QpState, QpType};

/// Why a request was not taken into a queue. The queue is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as many requests as it was created for.
    #[error("the queue is full with {capacity} requests: poll completions first, or create it larger")]
    QueueFull {
        /// Requests that fit.
        capacity: u32,
    },
    /// More scatter/gather entries than the queue was created for.
    #[error("{given} scatter/gather entries, but the queue was created for {max}")]
    TooManySges {
        /// Entries of the request.
        given: usize,
        /// Entries allowed.
        max: u32,
    },
    /// More inline bytes than the queue was created for.
    #[error("{given} bytes inline, but the queue was created for {max}")]
    InlineTooLong {
        /// Bytes of the request.
        given: usize,
        /// Bytes allowed.
        max: u32,
    },
    /// The message is longer than 2^31 bytes.
    #[error("a message of {given} bytes; the longest is 2^31")]
    MessageTooLong {
        /// Bytes of the request.
        given: u64,
    },
    /// READs and atomics cannot take their data inline; atomics take one 8-byte result.
    #[error("the data of this operation must be scatter/gather entries; an atomic takes 8 bytes")]
    WrongData,
    /// The service does not have this operation (IBTA table 38), or it is local and the QP is not RC or UC.
    #[error("a {0:?} queue pair does not have this operation")]
    WrongService(QpType),
    /// A datagram without an address, or an address on a connection.
    #[error("a datagram needs an address handle, a connection must not have one")]
    Address,
    /// READs or atomics on a QP whose `max_rd_atomic` is 0 can never be sent.
    #[error("max_rd_atomic is 0: this queue pair may not send READs or atomics")]
    NoReads,
    /// The state does not allow posting.
    #[error("the queue pair is in {0:?}: bring it to INIT for receives, to RTS for sends")]
    State(QpState),
    /// Receives of this QP come from its shared receive queue.
    #[error("this queue pair takes its receives from a shared receive queue: post there")]
    UsesSrq,
}

impl PostError {
    /// The errno that verbs return for it.
    pub const fn errno(self) -> i32 {
        match self {
            Self::QueueFull { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        }
    }
}

/// Why `ibv_modify_qp` was refused. The QP is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no such transition (IBTA 10.3.1).
    #[error("a {kind:?} queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// The QP's type.
        kind: QpType,
        /// Its state.
        from: QpState,
        /// The state wanted.
        to: QpState,
    },
    /// The transition needs attributes that were not given (IBTA table 91).
    #[error("{from:?} to {to:?} needs also {missing:?}")]
    Missing {
        /// Its state.
        from: QpState,
        /// The state wanted.
        to: QpState,
        /// What is missing.
        missing: AttrMask,
    },
    /// Attributes were given that this transition does not take.
    #[error("{from:?} to {to:?} does not take {forbidden:?}")]
    Forbidden {
        /// Its state.
        from: QpState,
        /// The state wanted.
        to: QpState,
        /// What is too much.
        forbidden: AttrMask,
    },
    /// `CUR_STATE` does not say the state that the QP is in.
    #[error("the queue pair is in {actual:?}, not in {claimed:?} as CUR_STATE says")]
    CurrentState {
        /// What the caller believes.
        claimed: QpState,
        /// What is so.
        actual: QpState,
    },
    /// A value is out of its range.
    #[error("{attribute} is {value}; it must be at most {max}")]
    Value {
        /// Which attribute.
        attribute: &'static str,
        /// What was given.
        value: u64,
        /// The largest allowed.
        max: u64,
    },
    /// The address vector leads nowhere.
    #[error("the address vector must have a unicast destination and a source of the same address family")]
    Address,
}

impl ModifyError {
    /// The errno that verbs return for it.
    pub const fn errno(self) -> i32 {
        libc::EINVAL
    }
}

/// Why a queue pair cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QpInitError {
    /// A size is beyond the device's.
    #[error("{size} is {given}; the device allows {max}")]
    Size {
        /// Which member of [`QpCapabilities`].
        size: &'static str,
        /// What was asked for.
        given: u32,
        /// The largest allowed.
        max: u32,
    },
    /// QP 1 does not draw from a shared receive queue.
    #[error("the general services queue pair cannot use a shared receive queue")]
    GsiOnSrq,
}

impl QpCapabilities {
    /// Whether the device has queues of these sizes.
    pub fn check(&self) -> Result<(), QpInitError> {
        let sizes = [
            ("max_send_wr", self.max_send_wr, Self::MAX_WR),
            ("max_recv_wr", self.max_recv_wr, Self::MAX_WR),
            ("max_send_sge", self.max_send_sge, Self::MAX_SGE),
            ("max_recv_sge", self.max_recv_sge, Self::MAX_SGE),
            ("max_inline_data", self.max_inline_data, Self::MAX_INLINE),
        ];
        match sizes.into_iter().find(|(_, given, max)| given > max) {
            Some((size, given, max)) => Err(QpInitError::Size { size, given, max }),
            None => Ok(()),
        }
    }
}
