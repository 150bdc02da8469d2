//! Attributes of the device, its port and a queue pair, in the numbers that verbs use.

use crate::wire::PathMtu;
use serde::{Deserialize, Serialize};

/// What the device can do: the part of `ibv_device_attr` that means something here. Limits are this client's own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceAttributes {
    /// Name, as in `ibv_devices`.
    pub name: String,
    /// Version of the daemon.
    pub firmware: String,
    /// Node GUID, in host order.
    pub node_guid: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in a queue.
    pub max_qp_wr: u32,
    /// Gather/scatter entries of a work request.
    pub max_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of all memory regions.
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// READs and atomics under way in each direction on one QP.
    pub max_qp_rd_atom: u8,
    /// Whether memory may be registered where it is ([`MemorySource::Process`](super::MemorySource::Process)).
    pub process_memory: bool,
}

/// State of the port, with the values of `enum ibv_port_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum PortState {
    /// No link.
    #[default]
    Down = 1,
    /// Traffic flows.
    Active = 4,
}

/// The port: the part of `ibv_port_attr` that means something on Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortAttributes {
    /// Whether the link is up.
    pub state: PortState,
    /// `enum ibv_mtu`: the largest path MTU that the device can do.
    pub max_mtu: u8,
    /// `enum ibv_mtu`: the largest that the link's MTU has room for.
    pub active_mtu: u8,
    /// GIDs in the table.
    pub gid_count: u32,
    /// P_Keys in the table.
    pub pkey_count: u16,
    /// Speed of the link in Mbit/s, 0 if the link does not say.
    pub speed_mbps: u32,
    /// Bytes of the longest message.
    pub max_message_bytes: u32,
}

impl PortAttributes {
    /// The largest path MTU that the link has room for.
    pub fn active_path_mtu(&self) -> PathMtu {
        PathMtu::from_verbs(self.active_mtu).unwrap_or(PathMtu::B256)
    }
}

/// How packets reach a peer: what `ibv_ah_attr` says, as far as RoCEv2 has a use for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AddressVectorRecord {
    /// The peer's GID; `::ffff:a.b.c.d` for IPv4.
    pub gid: [u8; 16],
    /// Our address, by its index in the GID table, or [`GID_BY_FAMILY`](crate::ipc::abi::GID_BY_FAMILY).
    pub gid_index: u8,
    /// IP traffic class (TOS).
    pub traffic_class: u8,
    /// IP hop limit (TTL); 0 for the daemon's default.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// UDP source port, or 0 to let the daemon choose one from the flow label or the two QPNs.
    pub source_port: u16,
}

/// What a QP's queues hold: `ibv_qp_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QpCapabilitiesRecord {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests.
    pub max_recv_wr: u32,
    /// Gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter entries of a receive request.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
}

/// Attributes of a queue pair: `ibv_qp_attr`. A mask (`enum ibv_qp_attr_mask`) says which of them count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QpAttributesRecord {
    /// `enum ibv_qp_state`: the next state, or the present one in a query.
    pub state: u8,
    /// `enum ibv_qp_state`: the state that the client believes the QP to be in.
    pub current_state: u8,
    /// Whether `IBV_EVENT_SQ_DRAINED` is wanted.
    pub sqd_notify: bool,
    /// `enum ibv_access_flags`.
    pub access: u32,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// 1.
    pub port: u8,
    /// Q_Key.
    pub qkey: u32,
    /// How packets reach the peer.
    pub address: AddressVectorRecord,
    /// `enum ibv_mtu`.
    pub path_mtu: u8,
    /// ACK timeout: 4.096 us * 2^t, 0 for never.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 for ever.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// READs and atomics under way as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics under way as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// The peer's QPN.
    pub dest_qpn: u32,
    /// Packet pacing rate in kbit/s, 0 for unlimited.
    pub rate_limit_kbps: u32,
}
