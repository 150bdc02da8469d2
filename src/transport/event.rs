//! Asynchronous events.

use super::{CqId, SrqId};
use crate::wire::Qpn;

/// Something that no completion tells (IBTA 11.6.3), as `ibv_async_event`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A completion queue overran.
    CqErr(CqId),
    /// A queue pair failed for a reason that no completion can tell.
    QpFatal(Qpn),
    /// The peer sent an invalid request; the QP is in the error state.
    QpReqErr(Qpn),
    /// The peer tried to reach memory that it must not; the QP is in the error state.
    QpAccessErr(Qpn),
    /// A packet arrived in RTR: the peer is ready though its connection message may be lost.
    CommEst(Qpn),
    /// The send queue has drained.
    SqDrained(Qpn),
    /// A QP on a shared receive queue failed and has taken its last receive.
    QpLastWqeReached(Qpn),
    /// A shared receive queue ran below its limit; the limit is disarmed.
    SrqLimitReached(SrqId),
    /// The port came up.
    PortActive,
    /// The port went down.
    PortErr,
}

impl Event {
    /// The value of `enum ibv_event_type`.
    pub const fn verbs(self) -> u32 {
        match self {
            Self::CqErr(_) => 0,
            Self::QpFatal(_) => 1,
            Self::QpReqErr(_) => 2,
            Self::QpAccessErr(_) => 3,
            Self::CommEst(_) => 4,
            Self::SqDrained(_) => 5,
            Self::PortActive => 9,
            Self::PortErr => 10,
            Self::SrqLimitReached(_) => 15,
            Self::QpLastWqeReached(_) => 16,
        }
    }
}
