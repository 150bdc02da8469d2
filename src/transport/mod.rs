//! Queue pairs: RC, UC and UD, their completion queues and shared receive queues.
//!
//! Sans-I/O: a [`Qp`] is told of posts, packets and the time, and gives back completions, events, [`Burst`]s of packets and its next
//! deadline. It is plain data; what it works on is lent to it for each call as a [`Context`].
//!
//! | file | what it is for |
//! |---|---|
//! | `qp` | the queue pair: its face, and who gets which packet |
//! | `modify` | states and attributes (`ibv_modify_qp`) |
//! | `send_queue`, `receive_queue`, `srq`, `cq` | preallocated queues |
//! | `finish` | completions, flush, the way into the error state |
//! | `rc/requester` | which request goes when: window, credits, fence, READ pieces |
//! | `rc/completer` | answers of the peer |
//! | `rc/dark` | light after the dark: one packet asks how far the peer is |
//! | `rc/retry` | timeouts, RNR waits, going back |
//! | `rc/responder` | requests of the peer: order, duplicates, execution |
//! | `rc/answers` | READ responses, ACKs, NAKs |
//! | `message` | placing SEND and WRITE payload, for RC and UC |
//! | `uc`, `ud` | the unreliable services |
//! | `local` | two queue pairs of one engine: one copy, no packets |
//! | `burst` | super-packets under construction |
//!
//! Section numbers in comments are those of the InfiniBand Architecture Specification, volume 1.

mod attributes;
mod burst;
mod completion;
mod context;
mod counters;
mod cq;
mod error;
mod event;
mod finish;
mod limits;
mod local;
mod message;
mod modify;
mod qp;
mod rc;
mod receive_queue;
mod send_queue;
mod srq;
mod uc;
mod ud;
mod wait;
mod work;

#[cfg(test)]
mod tests;

pub use attributes::{AddressVector, AttrMask, QpAttributes, QpCapabilities, QpState, QpType};
pub use burst::{Burst, BurstLimits, IpIdRule, PACKET_OVERHEAD};
pub use completion::{Completion, WcFlags, WcOpcode, WcStatus};
pub use context::Context;
pub use counters::{QpCounters, Refusal};
pub use cq::{Completions, CqError, CqId, Notice};
pub use error::{ModifyError, PostError, QpInitError};
pub use event::Event;
pub use limits::TransportLimits;
pub use qp::{Poll, Progress, Qp, QpInit};
pub use srq::{SharedReceiveQueues, SrqError, SrqId};
pub use wait::{Failure, Wait, Waiting};
pub use work::{Data, RecvRequest, SendFlags, SendOp, SendRequest, UdAddress};
