//! The Base Transport Header and the extension headers, as values; `parse` and `emit` are total.

use super::{BTH_LEN, Opcode, Psn, Qpn};
use core::fmt;
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

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

impl Bth {
    /// A header as we send it (MigReq 1, version 0, the default P_Key); pad, solicited and AckReq are 0.
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad_count: 0,
            version: 0,
            pkey: super::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads a header; reserved bits are dropped.
    pub const fn parse(b: &[u8; BTH_LEN]) -> Self {
        Self {
            opcode: Opcode::from_byte(b[0]),
            solicited: b[1] & SOLICITED != 0,
            mig_req: b[1] & MIG_REQ != 0,
            pad_count: (b[1] >> 4) & 3,
            version: b[1] & 0x0f,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & FECN != 0,
            becn: b[4] & BECN != 0,
            dest_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & ACK_REQ != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    /// Writes the header with all reserved bits 0. Only the low 2 bits of the pad count and 4 of the version are used.
    pub const fn emit(&self) -> [u8; BTH_LEN] {
        const fn bit(set: bool, mask: u8) -> u8 {
            if set { mask } else { 0 }
        }
        let [_, q1, q2, q3] = self.dest_qp.get().to_be_bytes();
        let [_, p1, p2, p3] = self.psn.get().to_be_bytes();
        let [k0, k1] = self.pkey.to_be_bytes();
        [
            self.opcode.byte(),
            bit(self.solicited, SOLICITED)
                | bit(self.mig_req, MIG_REQ)
                | ((self.pad_count & 3) << 4)
                | (self.version & 0x0f),
            k0,
            k1,
            bit(self.fecn, FECN) | bit(self.becn, BECN),
            q1,
            q2,
            q3,
            bit(self.ack_req, ACK_REQ),
            p1,
            p2,
            p3,
        ]
    }
}

/// Bytes of padding that a payload of `len` bytes needs (IBTA 9.2.3): up to a multiple of 4.
pub const fn pad_count(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

fn be32(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn be64(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_be_bytes)
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

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { va: be64(b, 0), rkey: be32(b, 8), dma_len: be32(b, 12) }
    }

    /// Writes the header, reserved bits 0.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..].copy_from_slice(&self.dma_len.to_be_bytes());
        b
    }
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

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { va: be64(b, 0), rkey: be32(b, 8), swap_or_add: be64(b, 12), compare: be64(b, 20) }
    }

    /// Writes the header, reserved bits 0.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
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

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { qkey: be32(b, 0), src_qp: Qpn::new(be32(b, 4)) }
    }

    /// Writes the header, reserved bits 0.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&self.qkey.to_be_bytes());
        b[4..].copy_from_slice(&self.src_qp.get().to_be_bytes());
        b
    }
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

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { syndrome: Syndrome::parse(b[0]), msn: be32(b, 0) & 0x00ff_ffff }
    }

    /// Writes the header, reserved bits 0.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [_, m1, m2, m3] = self.msn.to_be_bytes();
        [self.syndrome.byte(), m1, m2, m3]
    }
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

/// Credit counts by code 0 to 30 (IBTA 9.7.7.2.5, table 46).
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144,
    8192, 12288, 16384, 24576, 32768,
];

impl Syndrome {
    /// The credit code of "no limit": what a responder with a shared receive queue sends.
    pub const NO_CREDIT_LIMIT: u8 = 0x1f;

    /// What the byte means.
    pub const fn parse(byte: u8) -> Self {
        let low = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack(low),
            0b001 => Self::RnrNak(RnrTimer::new(low)),
            0b011 => match low {
                0 => Self::Nak(Nak::SequenceError),
                1 => Self::Nak(Nak::InvalidRequest),
                2 => Self::Nak(Nak::RemoteAccess),
                3 => Self::Nak(Nak::RemoteOperational),
                4 => Self::Nak(Nak::InvalidRd),
                _ => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire. Only the low 5 bits of a credit code are used.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack(code) => code & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer.code(),
            Self::Nak(nak) => 0x60 | nak as u8,
            Self::Reserved(byte) => byte,
        }
    }

    /// The requests that an ACK still lets in; `None`: no limit, or not an ACK.
    pub fn credits(self) -> Option<u16> {
        match self {
            Self::Ack(code) => CREDITS.get(usize::from(code)).copied(),
            _ => None,
        }
    }

    /// The ACK that offers `count` credits, or as many fewer as there is a code for.
    pub fn ack_with_credits(count: u32) -> Self {
        let larger = CREDITS.partition_point(|&c| u32::from(c) <= count);
        Self::Ack(larger.saturating_sub(1) as u8)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(_) => match self.credits() {
                Some(credits) => write!(f, "ACK, {credits} credits"),
                None => f.write_str("ACK, no credit limit"),
            },
            Self::RnrNak(timer) => write!(f, "RNR NAK, {:?}", timer.duration()),
            Self::Nak(nak) => write!(f, "NAK, {nak}"),
            Self::Reserved(byte) => write!(f, "reserved syndrome 0x{byte:02x}"),
        }
    }
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

impl fmt::Display for Nak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SequenceError => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operational error",
            Self::InvalidRd => "invalid RD request",
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bth_bits_stand_where_the_table_says() {
        let bth = Bth {
            solicited: true,
            pad_count: 3,
            becn: true,
            ack_req: true,
            ..Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(0x0a0b0c), Psn::new(0x010203))
        };
        let bytes = [0x64, 0xf0, 0xff, 0xff, 0x40, 0x0a, 0x0b, 0x0c, 0x80, 1, 2, 3];
        assert_eq!(bth.emit(), bytes);
        assert_eq!(Bth::parse(&bytes), bth);
        let fecn = Bth { fecn: true, becn: false, mig_req: false, ..bth };
        assert_eq!((fecn.emit()[1], fecn.emit()[4]), (0xb0, 0x80));
    }

    #[test]
    fn every_syndrome_round_trips() {
        for byte in 0..=255u8 {
            assert_eq!(Syndrome::parse(byte).byte(), byte);
        }
        assert_eq!(Syndrome::parse(0x63), Syndrome::Nak(Nak::RemoteOperational));
        assert_eq!(Syndrome::parse(0x2e), Syndrome::RnrNak(RnrTimer::new(14)));
        assert_eq!(Syndrome::parse(0x65), Syndrome::Reserved(0x65));
        assert_eq!(Syndrome::parse(0x80), Syndrome::Reserved(0x80));
        let said = [0x0a, 0x1f, 0x2e, 0x60, 0x7f].map(|b| Syndrome::parse(b).to_string());
        let expected = ["ACK, 32 credits", "ACK, no credit limit", "RNR NAK, 1.28ms", "NAK, PSN sequence error"];
        assert_eq!(said[..4], expected);
        assert_eq!(said[4], "reserved syndrome 0x7f");
    }

    #[test]
    fn credits_are_rounded_down_to_a_code() {
        for code in 0..31 {
            let count = Syndrome::Ack(code).credits().unwrap();
            assert_eq!(Syndrome::ack_with_credits(u32::from(count)), Syndrome::Ack(code));
        }
        assert_eq!(Syndrome::ack_with_credits(5), Syndrome::Ack(4));
        assert_eq!(Syndrome::ack_with_credits(u32::MAX), Syndrome::Ack(30));
        assert_eq!(Syndrome::Ack(Syndrome::NO_CREDIT_LIMIT).credits(), None);
        assert_eq!(Syndrome::Nak(Nak::InvalidRequest).credits(), None);
    }

    #[test]
    fn rnr_codes_are_those_of_table_45() {
        let ms = |code| RnrTimer::new(code).duration().as_micros();
        assert_eq!([ms(0), ms(1), ms(12), ms(14), ms(20), ms(31)], [655_360, 10, 640, 1_280, 10_240, 491_520]);
    }

    #[test]
    fn pad_fills_up_to_four() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad_count), [0, 3, 2, 1, 0, 3]);
    }
}
