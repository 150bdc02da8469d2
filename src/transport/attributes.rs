//! What a queue pair is and how it may be set: types, states, capabilities and the attributes of `ibv_modify_qp`.

use crate::memory::Access;
use crate::wire::{IpHeader, PathMtu, Psn, Qpn};
use core::net::{IpAddr, Ipv4Addr};

/// Transport service of a queue pair (IBTA 9.7, 9.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The general services queue pair, QP 1: unreliable datagrams that carry MADs.
    Gsi,
}

impl QpType {
    /// Whether packets are datagrams (UD, GSI) rather than those of a connection (RC, UC).
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Gsi)
    }
}

/// State of a queue pair (IBTA 10.3.1), with the values of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum QpState {
    /// Fresh: nothing is sent, received or queued.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to receive and to send.
    Rts = 3,
    /// Send queue drained: what has begun is finished, nothing new begins.
    Sqd = 4,
    /// Send queue error (UC, UD): sends are flushed, receives go on.
    Sqe = 5,
    /// Error: everything is flushed.
    Err = 6,
}

impl QpState {
    /// The state of `enum ibv_qp_state` (0 to 6).
    pub const fn from_verbs(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }

    /// Whether packets are received (IBTA 10.3.1: RTR, RTS, SQD, SQE).
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

/// Sizes of a queue pair's queues, as `ibv_qp_cap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCapabilities {
    /// Send requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive requests that may be outstanding.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub max_inline_data: u32,
}

impl QpCapabilities {
    /// Scatter/gather entries that a request may have at most.
    pub const MAX_SGE: u32 = 32;
    /// Requests that a queue may hold at most.
    pub const MAX_WR: u32 = 1 << 15;
    /// Inline bytes that a request may have at most.
    pub const MAX_INLINE: u32 = 1024;
}

impl Default for QpCapabilities {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 256 }
    }
}

/// How packets reach a peer: the part of `ibv_ah_attr` that RoCEv2 has a use for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressVector {
    /// Our address: what `sgid_index` stands for. Of the same family as `destination`.
    pub source: IpAddr,
    /// The peer's address.
    pub destination: IpAddr,
    /// UDP source port: flow entropy, constant for a QP while anything is under way. Its *lane*.
    pub source_port: u16,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// TTL of IPv4, hop limit of IPv6.
    pub hop_limit: u8,
    /// Flow label of IPv6, 20 bits.
    pub flow_label: u32,
}

impl AddressVector {
    /// The IP header of a packet sent on it; `None` if it leads nowhere. `id` is for IPv4.
    pub fn ip_header(&self, id: u16) -> Option<IpHeader> {
        let mut ip = IpHeader::new(self.source, self.destination)?;
        match &mut ip {
            IpHeader::V4(ip) => (ip.tos, ip.ttl, ip.id) = (self.traffic_class, self.hop_limit, Some(id)),
            IpHeader::V6(ip) => {
                (ip.traffic_class, ip.hop_limit, ip.flow_label) = (self.traffic_class, self.hop_limit, self.flow_label);
            }
        }
        Some(ip)
    }

    /// The address vector of a fresh queue pair: leads nowhere.
    pub const UNSET: Self = Self {
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        destination: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };

    /// From `source` to `destination` with a hop limit of 64 and no traffic class.
    pub const fn between(source: IpAddr, destination: IpAddr, source_port: u16) -> Self {
        Self { source, destination, source_port, ..Self::UNSET }
    }
}

bitflags::bitflags! {
    /// Which attributes a modify sets, with the values of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AttrMask: u32 {
        /// The next state.
        const STATE = 1 << 0;
        /// The state that the caller believes the QP to be in.
        const CUR_STATE = 1 << 1;
        /// Ask for [`Event::SqDrained`](super::Event::SqDrained).
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What the peer may do.
        const ACCESS_FLAGS = 1 << 3;
        /// Index into the partition table.
        const PKEY_INDEX = 1 << 4;
        /// Physical port, 1.
        const PORT = 1 << 5;
        /// Queue key of a datagram QP.
        const QKEY = 1 << 6;
        /// Address vector.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// ACK timeout exponent.
        const TIMEOUT = 1 << 9;
        /// Retries after timeouts and sequence errors.
        const RETRY_CNT = 1 << 10;
        /// Retries after RNR NAKs.
        const RNR_RETRY = 1 << 11;
        /// First PSN expected.
        const RQ_PSN = 1 << 12;
        /// READs and atomics under way as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path (not supported on RoCE).
        const ALT_PATH = 1 << 14;
        /// RNR NAK timer code that we hand out.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics under way as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state (not supported on RoCE).
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes (fixed at creation).
        const CAP = 1 << 19;
        /// The peer's queue pair number.
        const DEST_QPN = 1 << 20;
        /// Packet pacing rate.
        const RATE_LIMIT = 1 << 25;
    }
}

/// The attributes of a queue pair, as `ibv_qp_attr`. An [`AttrMask`] says which of them a modify sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttributes {
    /// Next state in a modify, present state in a query.
    pub state: QpState,
    /// The state that the caller believes the QP to be in.
    pub current_state: QpState,
    /// Whether [`Event::SqDrained`](super::Event::SqDrained) is wanted when SQD has drained.
    pub sqd_notify: bool,
    /// What the peer may do on this QP.
    pub access: Access,
    /// Index into the partition table.
    pub pkey_index: u16,
    /// Physical port; always 1.
    pub port: u8,
    /// Queue key (UD, GSI).
    pub qkey: u32,
    /// How packets reach the peer (RC, UC).
    pub av: AddressVector,
    /// Payload of every packet of a message but its last.
    pub path_mtu: PathMtu,
    /// ACK timeout t, 0 to 31: 4.096 us * 2^t; 0 is never (IBTA 9.7.6.1.3).
    pub timeout: u8,
    /// Retries after timeouts and sequence errors without progress, 0 to 7; seven means seven.
    pub retry_count: u8,
    /// Retries after RNR NAKs without progress, 0 to 7; seven means for ever.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics that we may have under way.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have under way.
    pub max_dest_rd_atomic: u8,
    /// Code of the shortest time that a peer shall wait after our RNR NAK, 0 to 31.
    pub min_rnr_timer: u8,
    /// The peer's queue pair number (RC, UC).
    pub dest_qpn: Qpn,
    /// Packet pacing rate in kbit/s; 0 is unlimited. Kept for the engine's pacer.
    pub rate_limit_kbps: u32,
}

impl QpAttributes {
    /// READs and atomics under way at most, either way.
    pub const MAX_RD_ATOMIC: u8 = 16;

    /// Attributes with nothing but the next state, to be filled in.
    pub fn to(state: QpState) -> Self {
        Self { state, ..Self::default() }
    }
}

impl Default for QpAttributes {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            current_state: QpState::Reset,
            sqd_notify: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: 0,
            av: AddressVector::UNSET,
            path_mtu: PathMtu::B1024,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            dest_qpn: Qpn::new(0),
            rate_limit_kbps: 0,
        }
    }
}
