//! What the control plane shows: plain values, copied out of the engine by the worker that owns it.
//!
//! They serialise to the JSON that `holdfast --json` prints; field names carry their units. No key of a memory region appears here: an R_Key is a secret between a client and its peer.

pub use super::path_view::{Circuit, DarkCause, Path, PathNews, PathState, Watched};
use serde::Serialize;
use std::net::IpAddr;
use std::path::PathBuf;

/// The device as a whole; what no worker needs to be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Device {
    /// Name of the verbs device, such as `holdfast0`.
    pub name: String,
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// The file that the settings came from; `None` without one.
    pub config: Option<PathBuf>,
    /// The network interface; `None` when the daemon is bound to addresses only.
    pub interface: Option<String>,
    /// Whether the interface has carrier.
    pub link_up: bool,
    /// MTU of the interface, in bytes of an IP packet.
    pub link_mtu_bytes: u32,
    /// The largest RoCE MTU that fits it, in bytes of payload.
    pub active_mtu_bytes: u32,
    /// The GID table; index 0 is the one that applications use.
    pub gids: Vec<Gid>,
    /// The port backend in use: `packet`, `udp`.
    pub backend: String,
    /// How it calls the kernel: `io_uring`, `syscalls`.
    pub driver: String,
    /// Why these were chosen and what had to be done without, in words for an operator.
    pub notes: Vec<String>,
    /// Whether bursts leave as super-packets (UDP segmentation offload).
    pub segmentation_offload: bool,
}

/// One entry of the GID table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// The address that the GID stands for (an IPv4 address is the GID `::ffff:a.b.c.d`).
    pub address: IpAddr,
}

/// Everything that `holdfast status` shows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// The device.
    pub device: Device,
    /// How long the daemon has run.
    pub uptime_ns: u64,
    /// The workers, in order of their index.
    pub workers: Vec<Worker>,
    /// Attached clients of all workers.
    pub clients: Vec<Client>,
    /// All counters, summed over the workers, in the order of [`crate::counters::FAMILIES`].
    pub counters: Vec<CounterValue>,
    /// Percentiles of the time from posting to completion.
    pub completion_latency: Percentiles,
}

/// One worker thread.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Worker {
    /// Its index, which is also in the low bits of its QPNs.
    pub index: u32,
    /// The CPU that it is pinned to, if it is.
    pub cpu: Option<u32>,
    /// Queue pairs that it owns.
    pub queue_pairs: u32,
    /// Memory regions registered with it.
    pub memory_regions: u32,
    /// Bytes in those regions.
    pub registered_bytes: u64,
    /// Why it did not answer; all but the index is then empty. The control plane fills it in.
    pub problem: Option<String>,
}

/// One attached client process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Client {
    /// Its process id, from the socket's peer credentials.
    pub pid: u32,
    /// Its user id, from the same place.
    pub uid: u32,
    /// The name of its program, as the kernel tells it; empty if it would not.
    pub command: String,
    /// The worker that serves it.
    pub worker: u32,
    /// Queue pairs that it owns.
    pub queue_pairs: u32,
    /// Memory regions that it registered.
    pub memory_regions: u32,
    /// Bytes in those regions.
    pub registered_bytes: u64,
    /// How long it has been attached.
    pub attached_ns: u64,
}

/// One counter with its labels resolved.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CounterValue {
    /// The metric's name.
    pub name: String,
    /// The label that tells its members apart; empty if there is none.
    pub label: String,
    /// The label's value; empty if there is none.
    pub label_value: String,
    /// The value, in the metric's base unit.
    pub value: f64,
}

/// Percentiles of a histogram: upper bounds of the buckets that hold them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// Samples seen.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_ns: Option<u64>,
    /// 99 % of them took no longer.
    pub p99_ns: Option<u64>,
    /// 99.9 % of them took no longer.
    pub p999_ns: Option<u64>,
}

/// The kind of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QpKind {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The general services interface: QP 1.
    Gsi,
}

/// The state of a queue pair (IBTA 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QpState {
    /// Reset.
    #[default]
    Reset,
    /// Initialised: takes receive requests.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained, or draining.
    Sqd,
    /// Send queue in error.
    Sqe,
    /// Error: everything is flushed.
    Error,
}

/// What a queue pair waits for before it sends more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// The path is dark.
    Dark,
    /// The congestion control's rate.
    Congestion,
    /// The peer said that it has no receive posted.
    Rnr,
    /// Something was lost and is being sent again.
    Loss,
    /// All that was posted is sent; the peer's answer is missing.
    Ack,
    /// The peer gave no credit for another message.
    Credit,
    /// As many packets are in flight as may be.
    Window,
    /// As many READs and atomics are in flight as may be.
    Reads,
    /// A fence: READs and atomics before it are in flight.
    Fence,
    /// The application has stopped the send queue.
    Stopped,
    /// The application posted nothing.
    Application,
}

/// How full a queue is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Depth {
    /// Requests posted and not completed.
    pub posted: u32,
    /// Requests that fit.
    pub capacity: u32,
}

/// The far end of a connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Its queue pair number.
    pub qpn: u32,
    /// Our UDP source port towards it, which picks the way through an ECMP fabric.
    pub source_port: u16,
    /// Traffic class (DSCP and ECN) of packets to it.
    pub traffic_class: u8,
    /// Hop limit of packets to it.
    pub hop_limit: u8,
}

/// One queue pair, whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct QueuePair {
    /// Its number.
    pub qpn: u32,
    /// Its kind.
    pub kind: QpKind,
    /// Its state.
    pub state: QpState,
    /// The worker that owns it.
    pub worker: u32,
    /// The process that owns it; 0 for the daemon's own.
    pub client_pid: u32,
    /// Its protection domain.
    pub protection_domain: u32,
    /// The completion queue of its send queue.
    pub send_cq: u32,
    /// The completion queue of its receive queue.
    pub receive_cq: u32,
    /// The shared receive queue that it takes from, if any.
    pub shared_receive_queue: Option<u32>,
    /// The far end, once connected.
    pub peer: Option<Peer>,
    /// RoCE MTU of the path, in bytes of payload.
    pub path_mtu_bytes: u32,
    /// ACK timeout as configured; zero means never.
    pub ack_timeout_ns: u64,
    /// How often it sends again without progress.
    pub retry_count: u32,
    /// Of those, how many are left now.
    pub retries_left: u32,
    /// How often it bears RNR without progress; 7 means for ever.
    pub rnr_retry: u32,
    /// Of those, how many are left now.
    pub rnr_retries_left: u32,
    /// How long it asks peers to wait when it has no receive posted.
    pub min_rnr_timer_ns: u64,
    /// READs and atomics that it may have outstanding.
    pub max_rd_atomic: u32,
    /// READs and atomics that it accepts from its peer at once.
    pub max_dest_rd_atomic: u32,
    /// PSN of the next packet that it sends.
    pub send_psn: u32,
    /// The oldest PSN that is not acknowledged; equal to `send_psn` when nothing is in flight.
    pub unacknowledged_psn: u32,
    /// PSN that it expects next.
    pub expected_psn: u32,
    /// Message sequence number of its responder.
    pub msn: u32,
    /// Its send queue.
    pub send_queue: Depth,
    /// Its receive queue; empty with a shared receive queue.
    pub receive_queue: Depth,
    /// What it waits for before it sends more; `None` if it sends, or never will in its state.
    pub waits_for: Option<Wait>,
    /// Since the peer's last sign of life, or our last attempt to get one; `None` if no answer is missing.
    pub waited_ns: Option<u64>,
    /// Until a timer ends the wait: the peer's RNR timer, or our ACK timer.
    pub wait_ends_in_ns: Option<u64>,
    /// What brought it into an error state, in words.
    pub failure: Option<String>,
    /// What congestion control does to it; `None` while no mark and no notification ever concerned it.
    pub congestion: Option<Congestion>,
    /// What it has counted.
    pub counters: QpCounters,
}

/// The DCQCN state of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Congestion {
    /// How fast it may send, in bits a second.
    pub rate_bps: u64,
    /// Where its rate is on the way to.
    pub target_bps: u64,
    /// The estimate of congestion, 0 to 1000000.
    pub alpha_millionths: u32,
    /// Whether notifications hold the rate below the line's.
    pub is_limited: bool,
    /// Packets of the peer that came marked (CE).
    pub marked_packets: u64,
    /// CNPs that told it so.
    pub cnps_sent: u64,
    /// CNPs of the peer.
    pub cnps_received: u64,
}

/// What a queue pair has counted since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct QpCounters {
    /// Packets sent, answers and repetitions included.
    pub sent_packets: u64,
    /// Payload bytes in them.
    pub sent_bytes: u64,
    /// Packets received that were for it and well-formed.
    pub received_packets: u64,
    /// Payload bytes in them.
    pub received_bytes: u64,
    /// Request packets sent again.
    pub retransmitted_packets: u64,
    /// Expiries of the ACK timer.
    pub ack_timeouts: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Sequence NAKs received.
    pub sequence_naks_received: u64,
    /// RNR NAKs received.
    pub rnr_naks_received: u64,
    /// Answers that passed an unanswered READ or atomic.
    pub implied_naks: u64,
    /// READ requests of the peer that were executed.
    pub read_requests: u64,
    /// WRITE requests of the peer that were executed.
    pub write_requests: u64,
    /// Atomics of the peer that were executed.
    pub atomic_requests: u64,
    /// Requests received again.
    pub duplicate_requests: u64,
    /// Requests received beyond a gap.
    pub out_of_sequence_packets: u64,
    /// Requests that found no receive posted.
    pub out_of_buffer: u64,
    /// Packets dropped, for whatever reason.
    pub dropped_packets: u64,
    /// Send requests completed in error, flushed ones apart.
    pub send_errors: u64,
    /// Send requests flushed.
    pub send_flushed: u64,
    /// Receive requests completed in error, flushed ones apart.
    pub receive_errors: u64,
    /// Receive requests flushed.
    pub receive_flushed: u64,
}

/// Where a region's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Memory that the daemon has mapped: no copy beyond the packet's own.
    #[default]
    Shared,
    /// The client's address space, read and written by `process_vm_readv` and `process_vm_writev`.
    Process,
}

/// One registered memory region.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct MemoryRegion {
    /// Its slot in the worker's table; not a key.
    pub slot: u32,
    /// The worker that owns it.
    pub worker: u32,
    /// The process that registered it.
    pub client_pid: u32,
    /// Its protection domain.
    pub protection_domain: u32,
    /// The address that peers use for its first byte.
    pub iova: u64,
    /// Its length in bytes.
    pub length_bytes: u64,
    /// What is allowed, as bits of `ibv_access_flags`.
    pub access: u32,
    /// Where the bytes are.
    pub backing: Backing,
}

/// One page of a long list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T> {
    /// The entries, in ascending order of their number.
    pub entries: Vec<T>,
    /// Where to go on; `None` at the end.
    pub next: Option<u32>,
}
