//! Work requests: what a client asks of a queue pair.

use super::AddressVector;
use super::completion::WcOpcode;
use crate::memory::{Access, Sge};
use crate::wire::Qpn;

bitflags::bitflags! {
    /// How a send request is to be treated, with the values of `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Begin only when all earlier READs and atomics are complete (IBTA 10.8.3.3).
        const FENCE = 1 << 0;
        /// Make a completion also on success.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// The data stand in the request itself.
        const INLINE = 1 << 3;
    }
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate (host value of the 32 bits on the wire).
    SendImm(u32),
    /// SEND that invalidates this R_Key of the receiver.
    SendInvalidate(u32),
    /// RDMA WRITE.
    Write {
        /// Where at the peer.
        va: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// RDMA WRITE with immediate: takes a receive of the peer.
    WriteImm {
        /// Where at the peer.
        va: u64,
        /// The peer's key.
        rkey: u32,
        /// The immediate.
        imm: u32,
    },
    /// RDMA READ into the request's scatter list.
    Read {
        /// Where at the peer.
        va: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Compare and swap of 8 bytes; the former value goes into the request's scatter list.
    CompareSwap {
        /// Where at the peer, a multiple of 8.
        va: u64,
        /// The peer's key.
        rkey: u32,
        /// Swapped in only if this was there.
        compare: u64,
        /// What to swap in.
        swap: u64,
    },
    /// Fetch and add of 8 bytes; the former value goes into the request's scatter list.
    FetchAdd {
        /// Where at the peer, a multiple of 8.
        va: u64,
        /// The peer's key.
        rkey: u32,
        /// What to add, modulo 2^64.
        add: u64,
    },
    /// Invalidate a key of our own, in order with the other requests.
    LocalInvalidate(u32),
    /// Bind a type 2 memory window, in order with the other requests.
    BindWindow {
        /// Key of the window.
        rkey: u32,
        /// Key of the region that it opens into.
        lkey: u32,
        /// First address.
        va: u64,
        /// Bytes.
        length: u64,
        /// What peers may do through it.
        access: Access,
    },
}

impl SendOp {
    /// The completion's opcode.
    pub const fn completion_opcode(self) -> WcOpcode {
        match self {
            Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) => WcOpcode::Send,
            Self::Write { .. } | Self::WriteImm { .. } => WcOpcode::RdmaWrite,
            Self::Read { .. } => WcOpcode::RdmaRead,
            Self::CompareSwap { .. } => WcOpcode::CompareSwap,
            Self::FetchAdd { .. } => WcOpcode::FetchAdd,
            Self::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
            Self::BindWindow { .. } => WcOpcode::BindWindow,
        }
    }

    /// READ or an atomic: what `max_rd_atomic` counts and a fence waits for.
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Compare and swap, or fetch and add.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Done by ourselves, without a packet.
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::BindWindow { .. })
    }

    /// Whether it takes a receive of the peer, and so an end-to-end credit (IBTA 9.7.7.2).
    pub const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) | Self::WriteImm { .. })
    }
}

/// Where the bytes of a request are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Here; copied at the post.
    Inline(&'a [u8]),
}

/// Whom a datagram is for (UD, GSI).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdAddress {
    /// How it travels.
    pub av: AddressVector,
    /// The receiving queue pair.
    pub dest_qp: Qpn,
    /// The receiver's queue key; with its high bit set the QP's own is used (IBTA 10.2.5).
    pub qkey: u32,
}

impl UdAddress {
    pub(super) const UNSET: Self = Self { av: AddressVector::UNSET, dest_qp: Qpn::new(0), qkey: 0 };
}

/// A send request, as `ibv_send_wr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a> {
    /// The client's cookie, given back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// With what.
    pub data: Data<'a>,
    /// To whom, on UD and GSI.
    pub datagram: Option<UdAddress>,
}

/// A receive request, as `ibv_recv_wr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRequest<'a> {
    /// The client's cookie, given back in the completion.
    pub wr_id: u64,
    /// Where the bytes go.
    pub sges: &'a [Sge],
}
