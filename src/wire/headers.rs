//! The Base Transport Header and the extension headers, as values.

use super::{Opcode, Psn, Qpn};
use core::time::Duration;

/// Base Transport Header (IBTA 9.2), 12 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event.
    pub solicited: bool,
    /// Migration state; ConnectX sends 1, rxe 0. We send 1 and ignore it on receive.
    pub mig_req: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad_count: u8,
    /// Transport header version; must be 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification; set in a CNP.
    pub becn: bool,
    /// The queue pair it is for.
    pub dest_qp: Qpn,
    /// The responder must acknowledge.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header (IBTA 9.3.3), 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// The responder's key.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;
}

/// Atomic extended transport header (IBTA 9.3.4), 28 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Virtual address at the responder, a multiple of 8.
    pub va: u64,
    /// The responder's key.
    pub rkey: u32,
    /// What to swap in, or to add.
    pub swap_or_add: u64,
    /// What to compare with (compare and swap only).
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;
}

/// Datagram extended transport header (IBTA 9.3.1), 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// The sender's queue pair.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;
}

/// ACK extended transport header (IBTA 9.3.5), 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// What kind of answer.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
}

/// AETH syndrome (IBTA 9.7.5.1.1, tables 45 to 47): total over the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// ACK with a credit code: 0 to 30 encode a count ([`Syndrome::credits`]), 31 is "no limit".
    Ack(u8),
    /// Receiver not ready: wait as long as the timer code says.
    RnrNak(RnrTimer),
    /// NAK.
    Nak(Nak),
    /// Bits 6..5 are 10, or the NAK code is unknown, or bit 7 is set: the raw byte. Ignored on receive.
    Reserved(u8),
}

/// NAK codes (IBTA table 47).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Nak {
    /// PSN sequence error.
    SequenceError = 0,
    /// Invalid request.
    InvalidRequest = 1,
    /// Remote access error.
    RemoteAccess = 2,
    /// Remote operational error.
    RemoteOperational = 3,
    /// Invalid RD request (RD only).
    InvalidRd = 4,
}

/// RNR NAK timer code, 5 bits (IBTA table 45): code 0 is the longest, 655.36 ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Hundredths of milliseconds by code.
    const HUNDREDTHS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// Takes the low 5 bits.
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long to wait.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(10 * Self::HUNDREDTHS[(self.0 & 0x1f) as usize] as u64)
    }
}
