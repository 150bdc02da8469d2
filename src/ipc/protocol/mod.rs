//! The attach protocol: what a client and the daemon say to each other over a Unix socket.
//!
//! The socket is of type `SOCK_SEQPACKET`: a message is a packet, descriptors ride along as `SCM_RIGHTS`. The first exchange is the
//! [`Hello`], in a layout that no version will ever change, so that a client and a daemon of any two versions can tell each
//! other who must be upgraded. After it both sides speak the version agreed on: `postcard` encodings of [`Request`] and
//! [`Response`], matched by number. A client may have several requests under way; answers come in order.
//!
//! Nothing on the packet path goes through the socket: work requests and completions are in shared memory ([`abi`](super::abi)),
//! events come through pipes.
//!
//! | what a reply brings | descriptors, in order |
//! |---|---|
//! | [`Welcome`] | attach area, doorbell `eventfd`, read end of the event pipe |
//! | [`Reply::Channel`] | read end of the channel's pipe |
//! | [`Reply::CompletionQueue`] | completion area |
//! | [`Reply::SharedReceiveQueue`], [`Reply::QueuePair`] | queue area |
//!
//! An address handle has no message: it is a value that travels in each work request.

mod attributes;
mod convert;
mod hello;
mod refusal;
#[allow(unsafe_code)]
pub mod socket;

pub use attributes::{
    AddressVectorRecord, DeviceAttributes, PortAttributes, PortState, QpAttributesRecord, QpCapabilitiesRecord,
};
pub use convert::InvalidAttribute;
pub(in crate::ipc) use convert::source;
pub use hello::{Hello, HelloAnswer, NotHello, Welcome};
pub use refusal::{LimitKind, ObjectKind, Refusal};

use super::abi::QueueGeometry;
use serde::{Deserialize, Serialize};

/// Where the daemon listens if neither its configuration nor `HOLDFAST_SOCKET` says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/holdfast/attach.sock";
/// The environment variable that names the daemon's socket for clients.
pub const SOCKET_VARIABLE: &str = "HOLDFAST_SOCKET";
/// The longest message. A longer one ends the session.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Descriptors that a message carries at most.
pub const MAX_DESCRIPTORS: usize = 3;

/// Names an object of a client to its daemon. Each kind has numbers of its own, except that QPs and SRQs share one
/// sequence: theirs are the bits of the doorbell bitmap.
pub type Handle = u32;

/// A client's question. `id` comes back in the [`Response`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The client's own number.
    pub id: u32,
    /// What it asks for.
    pub call: Call,
}

/// The daemon's answer to the [`Request`] with the same `id`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Response {
    /// The request's number.
    pub id: u32,
    /// What came of it.
    pub result: Result<Reply, Refusal>,
}

/// What a client can ask for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Call {
    /// → [`Reply::Device`]
    QueryDevice,
    /// → [`Reply::Port`]
    QueryPort,
    /// Entry `index` of the GID table → [`Reply::Gid`]
    QueryGid {
        /// 0 is the device's first address.
        index: u32,
    },
    /// Entry `index` of the P_Key table → [`Reply::Pkey`]
    QueryPkey {
        /// 0 is the default partition.
        index: u16,
    },
    /// → [`Reply::Pd`]
    AllocatePd,
    /// → [`Reply::Done`]
    DeallocatePd {
        /// The PD.
        pd: Handle,
    },
    /// Registers memory; [`MemorySource::Shared`] brings a descriptor → [`Reply::Region`]
    RegisterMemory {
        /// The PD that it belongs to.
        pd: Handle,
        /// Where it is.
        source: MemorySource,
        /// The virtual address that work requests and peers call its first byte by.
        iova: u64,
        /// Bytes.
        length: u64,
        /// `enum ibv_access_flags`.
        access: u32,
    },
    /// → [`Reply::Done`]: nobody touches the memory any more.
    DeregisterMemory {
        /// The region's L_Key.
        lkey: u32,
    },
    /// Makes a type 2 memory window → [`Reply::Window`]
    AllocateWindow {
        /// The PD that it belongs to.
        pd: Handle,
    },
    /// → [`Reply::Done`]
    DeallocateWindow {
        /// The window's R_Key, as the last bind that was carried out has left it.
        rkey: u32,
    },
    /// Makes a completion channel → [`Reply::Channel`]
    CreateChannel,
    /// → [`Reply::Done`]
    DestroyChannel {
        /// The channel.
        channel: Handle,
    },
    /// → [`Reply::CompletionQueue`]
    CreateCompletionQueue {
        /// Completions that it shall hold at least.
        entries: u32,
        /// Where its events go.
        channel: Option<Handle>,
    },
    /// Gives the queue a new area; what is in the old one stays there for the client to take first → [`Reply::CompletionQueue`]
    ResizeCompletionQueue {
        /// The queue.
        cq: Handle,
        /// Completions that it shall hold at least.
        entries: u32,
    },
    /// → [`Reply::Done`]
    DestroyCompletionQueue {
        /// The queue.
        cq: Handle,
    },
    /// → [`Reply::SharedReceiveQueue`]
    CreateSharedReceiveQueue {
        /// The PD whose memory its receives use.
        pd: Handle,
        /// Requests that it shall hold at least.
        max_wr: u32,
        /// Scatter entries of a request.
        max_sge: u32,
        /// The limit to arm, 0 for none.
        limit: u32,
    },
    /// Arms the limit → [`Reply::Done`]
    ModifySharedReceiveQueue {
        /// The queue.
        srq: Handle,
        /// Fewer requests than this make an event, once; 0 disarms.
        limit: u32,
    },
    /// → [`Reply::SharedReceiveQueueState`]
    QuerySharedReceiveQueue {
        /// The queue.
        srq: Handle,
    },
    /// → [`Reply::Done`]
    DestroySharedReceiveQueue {
        /// The queue.
        srq: Handle,
    },
    /// → [`Reply::QueuePair`]
    CreateQueuePair {
        /// The PD whose memory it uses.
        pd: Handle,
        /// `enum ibv_qp_type`: 2 RC, 3 UC, 4 UD; 1 is the general services QP.
        kind: u32,
        /// Where completions of sends go.
        send_cq: Handle,
        /// Where completions of receives go.
        recv_cq: Handle,
        /// Where receives come from, if not from a queue of its own.
        srq: Option<Handle>,
        /// What its queues shall hold at least.
        capabilities: QpCapabilitiesRecord,
        /// Whether every send makes a completion.
        signal_all: bool,
    },
    /// → [`Reply::QueuePairModified`]
    ModifyQueuePair {
        /// The QP.
        qp: Handle,
        /// `enum ibv_qp_attr_mask`: which of `attributes` to set.
        mask: u32,
        /// The values.
        attributes: QpAttributesRecord,
    },
    /// → [`Reply::QueuePairState`]
    QueryQueuePair {
        /// The QP.
        qp: Handle,
    },
    /// → [`Reply::QueuePairModified`]
    DestroyQueuePair {
        /// The QP.
        qp: Handle,
    },
}

/// Where the bytes of a region are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MemorySource {
    /// In the memfd that comes with the request, from `offset` on. It must be sealed against shrinking.
    Shared {
        /// Bytes from the file's start.
        offset: u64,
    },
    /// In the client's own memory, from this address on, which the daemon reaches by `process_vm_readv(2)`.
    Process {
        /// The first byte's address in the client.
        address: u64,
    },
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// The device.
    Device(DeviceAttributes),
    /// The port.
    Port(PortAttributes),
    /// A GID.
    Gid([u8; 16]),
    /// A P_Key.
    Pkey(u16),
    /// A PD.
    Pd {
        /// Its name.
        pd: Handle,
    },
    /// A region.
    Region {
        /// For the client's own work requests, and its name.
        lkey: u32,
        /// For its peers.
        rkey: u32,
    },
    /// A memory window.
    Window {
        /// Its first key. The upper 24 bits are its name; each bind may choose the lower 8 anew.
        rkey: u32,
    },
    /// A completion channel: events are handles of CQs, 4 bytes each.
    Channel {
        /// Its name.
        channel: Handle,
    },
    /// A completion queue, or its new area.
    CompletionQueue {
        /// Its name.
        cq: Handle,
        /// Entries of the ring, which fills the area.
        depth: u32,
    },
    /// A shared receive queue.
    SharedReceiveQueue {
        /// Its name.
        srq: Handle,
        /// Where it is in its area.
        queue: QueueGeometry,
        /// The area, which it may share with others of this client: never another one's number. Its descriptor comes with each reply.
        area: u32,
        /// Bytes of the area.
        area_bytes: u64,
    },
    /// State of a shared receive queue.
    SharedReceiveQueueState {
        /// The limit that is armed, 0 if none.
        limit: u32,
    },
    /// A queue pair.
    QueuePair {
        /// Its name.
        qp: Handle,
        /// Its number on the wire.
        qpn: u32,
        /// What its queues hold.
        capabilities: QpCapabilitiesRecord,
        /// Where its send queue is in its area.
        send: QueueGeometry,
        /// Where its receive queue is, if it has one.
        receive: Option<QueueGeometry>,
        /// The area, which it may share with others of this client: never another one's number. Its descriptor comes with each reply.
        area: u32,
        /// Bytes of the area.
        area_bytes: u64,
    },
    /// A queue pair was modified or destroyed.
    QueuePairModified {
        /// Its state (`enum ibv_qp_state`) as it is now.
        state: u8,
        /// Requests that were taken from its shared receive queue and will never complete: as many slots are the client's again.
        srq_returned: u32,
    },
    /// A queue pair's attributes.
    QueuePairState {
        /// The values.
        attributes: QpAttributesRecord,
    },
}

/// Encodes a message.
///
/// # Errors
/// None that a value of these types can bring about: the encoder's own.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_stdvec(message)
}

/// Decodes a message that takes up all of `bytes`.
///
/// # Errors
/// Bytes that are no such message.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, postcard::Error> {
    match postcard::take_from_bytes(bytes)? {
        (message, []) => Ok(message),
        _ => Err(postcard::Error::SerdeDeCustom),
    }
}

#[cfg(test)]
mod tests;
