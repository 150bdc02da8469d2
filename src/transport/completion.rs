//! Completions: what became of a request.

use crate::wire::Qpn;

/// Status of a completion, with the values of `enum ibv_wc_status` that a RoCE device uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    #[default]
    Success = 0,
    /// A message was longer than the receive that took it, or than the service allows.
    LocalLength = 1,
    /// An inconsistency inside this QP.
    LocalQpOperation = 2,
    /// A local key, address or permission was wrong.
    LocalProtection = 4,
    /// Not done: the QP went to the error state first.
    WrFlush = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// The peer answered with something else than what was asked.
    BadResponse = 7,
    /// A peer's WRITE with immediate could not be put away.
    LocalAccess = 8,
    /// The peer found the request invalid.
    RemoteInvalidRequest = 9,
    /// The peer's memory does not allow it.
    RemoteAccess = 10,
    /// The peer could not carry it out.
    RemoteOperation = 11,
    /// The peer did not answer within the retries allowed.
    RetryExceeded = 12,
    /// The peer had no receive within the RNR retries allowed.
    RnrRetryExceeded = 13,
    /// The device is unusable.
    Fatal = 19,
    /// Anything else.
    General = 21,
}

impl WcStatus {
    /// The status of `enum ibv_wc_status`, if it is one that a RoCE device uses.
    pub const fn from_verbs(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::Success,
            1 => Self::LocalLength,
            2 => Self::LocalQpOperation,
            4 => Self::LocalProtection,
            5 => Self::WrFlush,
            6 => Self::MwBind,
            7 => Self::BadResponse,
            8 => Self::LocalAccess,
            9 => Self::RemoteInvalidRequest,
            10 => Self::RemoteAccess,
            11 => Self::RemoteOperation,
            12 => Self::RetryExceeded,
            13 => Self::RnrRetryExceeded,
            19 => Self::Fatal,
            21 => Self::General,
            _ => return None,
        })
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error: a message longer than its receive, or than the service allows",
            Self::LocalQpOperation => "local QP operation error: the request makes no sense on this queue pair",
            Self::LocalProtection => "local protection error: an L_Key, address or permission of its own was wrong",
            Self::WrFlush => "flushed: the queue pair was in the error state already",
            Self::MwBind => "memory window bind error",
            Self::BadResponse => "bad response: the peer answered something else than was asked",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request: the peer does not accept it",
            Self::RemoteAccess => {
                "remote access error: the peer's memory does not allow it (R_Key, bounds, permission)"
            }
            Self::RemoteOperation => "remote operation error: the peer could not carry it out",
            Self::RetryExceeded => "retries exceeded: the peer did not answer",
            Self::RnrRetryExceeded => "RNR retries exceeded: the peer had no receive posted",
            Self::Fatal => "the device is unusable",
            Self::General => "general error",
        }
    }

    /// Whether this is [`Success`](Self::Success).
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

impl core::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.words())
    }
}

/// What completed, with the values of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum WcOpcode {
    /// A SEND of ours.
    #[default]
    Send = 0,
    /// An RDMA WRITE of ours.
    RdmaWrite = 1,
    /// An RDMA READ of ours.
    RdmaRead = 2,
    /// A compare and swap of ours.
    CompareSwap = 3,
    /// A fetch and add of ours.
    FetchAdd = 4,
    /// A window was bound.
    BindWindow = 5,
    /// A key was invalidated.
    LocalInvalidate = 6,
    /// A SEND of the peer arrived.
    Recv = 128,
    /// An RDMA WRITE with immediate of the peer arrived.
    RecvRdmaWithImm = 129,
}

impl WcOpcode {
    /// The opcode of `enum ibv_wc_opcode`, if it is one that the device has.
    pub const fn from_verbs(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::Send,
            1 => Self::RdmaWrite,
            2 => Self::RdmaRead,
            3 => Self::CompareSwap,
            4 => Self::FetchAdd,
            5 => Self::BindWindow,
            6 => Self::LocalInvalidate,
            128 => Self::Recv,
            129 => Self::RecvRdmaWithImm,
            _ => return None,
        })
    }
}

bitflags::bitflags! {
    /// What else a completion says, with the values of `enum ibv_wc_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive are the GRH area (UD).
        const GRH = 1 << 0;
        /// `imm` is set.
        const WITH_IMM = 1 << 1;
        /// `invalidated` is set.
        const WITH_INV = 1 << 3;
    }
}

/// What became of one request, as `ibv_wc`. If the status is an error only `wr_id`, `status`, `qpn` and `vendor_err` count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The request's cookie.
    pub wr_id: u64,
    /// How it went.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// What is set besides.
    pub flags: WcFlags,
    /// Bytes received, read or fetched; on UD the 40 of the GRH area count too.
    pub byte_len: u32,
    /// Immediate of the peer.
    pub imm: Option<u32>,
    /// The R_Key of ours that the peer's SEND invalidated.
    pub invalidated: Option<u32>,
    /// The queue pair that it completed on.
    pub qpn: Qpn,
    /// The sender (UD).
    pub src_qp: Qpn,
    /// Partition of the packet (GSI).
    pub pkey_index: u16,
    /// More about an error: the NAK code or syndrome that caused it; 0 if none.
    pub vendor_err: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_verbs_name_what_they_are_the_numbers_of() {
        let statuses: Vec<WcStatus> = (0..=u8::MAX).filter_map(WcStatus::from_verbs).collect();
        assert_eq!(statuses.len(), 15);
        assert!(statuses.iter().all(|s| WcStatus::from_verbs(*s as u8) == Some(*s)));
        let opcodes: Vec<WcOpcode> = (0..=u8::MAX).filter_map(WcOpcode::from_verbs).collect();
        assert_eq!(opcodes.len(), 9);
        assert!(opcodes.iter().all(|o| WcOpcode::from_verbs(*o as u8) == Some(*o)));
    }
}
