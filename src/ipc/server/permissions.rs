//! Who a client is, and what it may have and do.

use crate::ipc::abi;
use crate::ipc::protocol::{LimitKind, ObjectKind, Refusal};
use crate::memory::{MemoryError, Process, Trust};
use crate::transport::QpCapabilities;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The process at the other end of an attach socket, as the kernel vouches for it.
#[derive(Clone, Debug)]
pub struct Peer {
    process: Arc<Process>,
    /// Whether its memory may be reached though nobody vouches for it.
    reachable: bool,
    uid: u32,
    gid: u32,
}

impl Peer {
    /// The peer of a connected Unix socket (`SO_PEERCRED`, `SO_PEERPIDFD`).
    ///
    /// # Errors
    /// The peer is gone already, or there is no descriptor left.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, MemoryError> {
        let credentials = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)
            .map_err(|errno| MemoryError::Os { call: "getsockopt(SO_PEERCRED)", source: errno.into() })?;
        // To know when it ends is no harm to anybody.
        let process = Arc::new(Process::of_peer(socket, Trust::Vouched)?);
        let reachable = Process::of_peer(socket, Trust::AsTheKernelDoes).is_ok();
        Ok(Self { process, reachable, uid: credentials.uid(), gid: credentials.gid() })
    }

    /// The process, identified beyond its exit.
    pub const fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Its effective user id when it connected.
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Its effective group id when it connected.
    pub const fn gid(&self) -> u32 {
        self.gid
    }
}

/// What a client may have and do. The daemon decides when it attaches one, by its [`Peer`] and the settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permissions {
    /// Protection domains.
    pub max_pds: u32,
    /// Memory regions.
    pub max_regions: u32,
    /// Bytes of all memory regions together.
    pub max_registered_bytes: u64,
    /// Memory windows.
    pub max_windows: u32,
    /// Completion channels: each is a pipe.
    pub max_channels: u32,
    /// Completion queues.
    pub max_completion_queues: u32,
    /// Shared receive queues.
    pub max_shared_receive_queues: u32,
    /// Queue pairs. Together with the SRQs at most [`abi::MAX_QUEUES`].
    pub max_queue_pairs: u32,
    /// Requests in a work queue, before it is rounded up to a power of two.
    pub max_queue_depth: u32,
    /// Entries in a completion queue, before it is rounded up to a power of two.
    pub max_completion_queue_depth: u32,
    /// Bytes of shared memory for all queues together.
    pub max_queue_memory_bytes: u64,
    /// Mappings in the daemon: one for each queue pair, shared receive queue, completion queue, and region in shared memory. The daemon
    /// has `vm.max_map_count` of them (65 530 unless raised) for all clients.
    pub max_mappings: u32,
    /// Whether memory may be registered where it is, to be reached by `process_vm_readv(2)`. A client that is not trusted could
    /// make the daemon wait by it: see [`Trust`].
    pub process_memory: Option<Trust>,
    /// Whether it may have QP 1 and so speak for the whole device in connection management.
    pub general_services: bool,
    /// Whether it may set a Q_Key with its high bit set, which only privileged programs have (IBTA 10.2.5; Linux asks for
    /// `CAP_NET_RAW`).
    pub privileged_qkeys: bool,
}

impl Default for Permissions {
    /// What an ordinary client gets.
    fn default() -> Self {
        Self {
            max_pds: 1024,
            max_regions: 65_536,
            max_registered_bytes: u64::MAX,
            max_windows: 65_536,
            max_channels: 256,
            max_completion_queues: 16_384,
            max_shared_receive_queues: 4096,
            max_queue_pairs: 16_384,
            max_queue_depth: 16_384,
            max_completion_queue_depth: 1 << 20,
            max_queue_memory_bytes: 1 << 30,
            max_mappings: 32_000,
            process_memory: Some(Trust::AsTheKernelDoes),
            general_services: false,
            privileged_qkeys: false,
        }
    }
}

impl Permissions {
    /// Whether the daemon may reach into this peer's memory.
    pub(super) fn may_reach(&self, peer: &Peer) -> bool {
        match self.process_memory {
            None => false,
            Some(Trust::AsTheKernelDoes) => peer.reachable,
            Some(Trust::Vouched) => true,
        }
    }

    /// The deepest work queue: what this client may have, and what the device can do.
    pub(super) fn work_depth(&self) -> u32 {
        self.max_queue_depth.min(QpCapabilities::MAX_WR)
    }

    /// The deepest completion queue.
    pub(super) fn completion_depth(&self) -> u32 {
        self.max_completion_queue_depth.min(abi::MAX_DEPTH)
    }
}

/// Refuses what would go beyond a limit.
pub(super) fn within(kind: LimitKind, wanted: u64, limit: u64) -> Result<(), Refusal> {
    if wanted > limit { Err(Refusal::Limit { kind, limit, wanted }) } else { Ok(()) }
}

/// Refuses one object more than `limit`.
pub(super) fn one_more(kind: ObjectKind, have: usize, limit: u32) -> Result<(), Refusal> {
    within(LimitKind::Objects(kind), have as u64 + 1, limit.into())
}
