//! Queue pairs for programs: an API in the shape of verbs.
//!
//! | here | verbs |
//! |---|---|
//! | [`Context`] | `ibv_context` |
//! | [`Pd`], [`MemoryRegion`], [`MemoryWindow`] | `ibv_pd`, `ibv_mr`, `ibv_mw` |
//! | [`CompletionChannel`], [`CompletionQueue`], [`Completion`] | `ibv_comp_channel`, `ibv_cq`, `ibv_wc` |
//! | [`QueuePair`], [`SharedReceiveQueue`] | `ibv_qp`, `ibv_srq` |
//! | [`SendRequest`], [`RecvRequest`] | `ibv_send_wr`, `ibv_recv_wr` |
//! | [`AddressHandle`] | `ibv_ah`, but a value |
//! | [`AsyncEvent`] | `ibv_async_event` |
//!
//! Posting and polling touch shared memory only; a system call is made when the daemon sleeps and must be woken, and when the
//! program [waits](CompletionChannel::wait). Everything is `Send` and `Sync`: threads may share any object, and posts to one
//! queue wait for each other as with libibverbs. Objects keep what they depend on alive; each is destroyed when its last
//! clone is dropped.
//!
//! # Example
//! Two queue pairs of one program, connected to each other, and a WRITE from one to the other. The daemon is one in a thread of this
//! program ([`loopback`](super::loopback)); with a real one, say [`Context::open()`](Context::open).
//!
//! ```
//! use holdfast::ipc::client::*;
//! use holdfast::ipc::loopback::Loopback;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let daemon = Loopback::start()?;
//! let context = Context::connect(daemon.socket())?;
//! let pd = context.allocate_pd()?;
//! let cq = context.create_cq(16, None)?;
//!
//! let (a, b) = (
//!     pd.queue_pair(QpType::Rc, &cq, &cq).create()?,
//!     pd.queue_pair(QpType::Rc, &cq, &cq).create()?,
//! );
//! // What two programs would tell each other by other means.
//! let (psn_a, psn_b) = (Psn::new(100), Psn::new(200));
//! let endpoint_a = a.endpoint(psn_a).ok_or("the device has no address")?;
//! let endpoint_b = b.endpoint(psn_b).ok_or("the device has no address")?;
//! a.connect(&endpoint_b, psn_a, &ConnectionOptions::default())?;
//! b.connect(&endpoint_a, psn_b, &ConnectionOptions::default())?;
//!
//! let source = pd.allocate(4096, Access::LOCAL_WRITE)?;
//! let target = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! assert!(source.write(0, b"hold fast"));
//! a.post_send(&SendRequest {
//!     wr_id: 1,
//!     op: SendOp::Write { va: target.address(), rkey: target.rkey() },
//!     flags: SendFlags::SIGNALED,
//!     data: Data::Sges(&[source.sge(0..9)]),
//!     datagram: None,
//! })?;
//!
//! let completion = loop {
//!     if let Some(completion) = cq.poll_one()? {
//!         break completion;
//!     }
//! };
//! assert_eq!((completion.wr_id, completion.status), (1, WcStatus::Success));
//! let mut bytes = [0; 9];
//! assert!(target.read(0, &mut bytes));
//! assert_eq!(&bytes, b"hold fast");
//! # Ok(())
//! # }
//! ```

mod address;
mod channel;
mod context;
mod cq;
mod error;
mod events;
#[allow(unsafe_code)]
mod memory;
mod qp;
mod retired;
mod send;
mod srq;
mod wait;

pub use address::{AddressHandle, ConnectionOptions, Endpoint};
pub use channel::CompletionChannel;
pub use context::Context;
pub use cq::CompletionQueue;
pub use error::Error;
pub use events::{AsyncEvent, EventKind};
pub use memory::{MemoryRegion, MemoryWindow, Pd};
pub use qp::{QueuePair, QueuePairBuilder, SendBatch};
pub use srq::SharedReceiveQueue;

pub use crate::ipc::protocol::{DeviceAttributes, PortAttributes, PortState, Refusal};
pub use crate::memory::{Access, Sge};
pub use crate::transport::{
    AddressVector, AttrMask, Completion, Data, PostError, QpAttributes, QpCapabilities, QpState, QpType, RecvRequest,
    SendFlags, SendOp, SendRequest, UdAddress, WcFlags, WcOpcode, WcStatus,
};
pub use crate::wire::{Gid, PathMtu, Psn, Qpn};
