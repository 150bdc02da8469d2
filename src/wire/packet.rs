//! A RoCEv2 packet: a checked view of a UDP payload, from the BTH to the ICRC.

use super::{
    Aeth, AtomicEth, BTH_LEN, Bth, Deth, ICRC_LEN, IpHeader, Opcode, Operation, Place, Psn, Qpn, ROCE_PORT, Reth,
    Service,
};

/// Why bytes are not a RoCEv2 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Shorter than BTH and ICRC.
    #[error("{len} bytes are too few for a BTH and an ICRC (16)")]
    TooShort {
        /// Bytes given.
        len: usize,
    },
    /// Headers and pad are padded to 4 bytes, so every packet is a multiple of 4 (IBTA 9.2.3).
    #[error("length {len} is no multiple of 4")]
    Unaligned {
        /// Bytes given.
        len: usize,
    },
    /// The transport header version is not 0 (IBTA 9.2.4).
    #[error("transport header version {version}, only 0 is defined")]
    Version {
        /// The version found.
        version: u8,
    },
    /// The opcode demands extension headers (and PadCnt a pad) for which there are no bytes.
    #[error("{len} bytes are too few for {opcode}: its headers, pad and ICRC take {needed}")]
    Truncated {
        /// What the packet says it is.
        opcode: Opcode,
        /// Bytes that it needs at least.
        needed: usize,
        /// Bytes given.
        len: usize,
    },
}

/// A checked view of one packet: BTH, extension headers, payload, pad, ICRC.
///
/// After [`Packet::new_checked`] no accessor panics. The ICRC is *not* checked here: see [`icrc::verify`](super::icrc::verify).
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bth: Bth,
    operation: Option<Operation>,
    /// The extension headers.
    extension: &'a [u8],
    payload: &'a [u8],
    /// All but the ICRC.
    covered: &'a [u8],
    icrc: [u8; ICRC_LEN],
}

impl<'a> Packet<'a> {
    /// Takes `bytes`, one whole UDP payload, apart.
    ///
    /// An opcode without a meaning is well-formed (its packet has no extension headers): who answers it must know that it came.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let len = bytes.len();
        let Some((covered, &icrc)) = bytes.split_last_chunk::<ICRC_LEN>() else {
            return Err(Malformed::TooShort { len });
        };
        let Some((bth, rest)) = covered.split_first_chunk::<BTH_LEN>() else {
            return Err(Malformed::TooShort { len });
        };
        let bth = Bth::parse(bth);
        if bth.version != 0 {
            return Err(Malformed::Version { version: bth.version });
        }
        if !len.is_multiple_of(4) {
            return Err(Malformed::Unaligned { len });
        }
        let extension_len = bth.opcode.extension_len();
        let pad = usize::from(bth.pad_count);
        let split = rest.len().checked_sub(pad).and_then(|end| rest.get(..end)?.split_at_checked(extension_len));
        let Some((extension, payload)) = split else {
            let needed = BTH_LEN + extension_len + pad + ICRC_LEN;
            return Err(Malformed::Truncated { opcode: bth.opcode, needed, len });
        };
        Ok(Self { bth, operation: bth.opcode.operation(), extension, payload, covered, icrc })
    }

    /// The Base Transport Header.
    pub const fn bth(&self) -> Bth {
        self.bth
    }

    /// What the packet is.
    pub const fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// What the packet does; `None` if its opcode has no meaning here.
    pub const fn operation(&self) -> Option<Operation> {
        self.operation
    }

    /// The queue pair it is for.
    pub const fn dest_qp(&self) -> Qpn {
        self.bth.dest_qp
    }

    /// Packet sequence number.
    pub const fn psn(&self) -> Psn {
        self.bth.psn
    }

    /// RDMA header of a WRITE First or Only, or of a READ request.
    pub fn reth(&self) -> Option<Reth> {
        match self.operation? {
            Operation::Write { place: Place::First | Place::Only, .. } | Operation::ReadRequest => {
                self.extension.first_chunk().map(Reth::parse)
            }
            _ => None,
        }
    }

    /// Acknowledge header of an answer (READ response Middle has none).
    pub fn aeth(&self) -> Option<Aeth> {
        match self.operation? {
            Operation::ReadResponse(Place::Middle) => None,
            Operation::ReadResponse(_) | Operation::Acknowledge | Operation::AtomicAcknowledge => {
                self.extension.first_chunk().map(Aeth::parse)
            }
            _ => None,
        }
    }

    /// Header of a CmpSwap or FetchAdd.
    pub fn atomic(&self) -> Option<AtomicEth> {
        match self.operation? {
            Operation::CompareSwap | Operation::FetchAdd => self.extension.first_chunk().map(AtomicEth::parse),
            _ => None,
        }
    }

    /// The original value that an ATOMIC Acknowledge brings (IBTA 9.3.5.3).
    pub fn atomic_ack(&self) -> Option<u64> {
        match self.operation? {
            Operation::AtomicAcknowledge => self.extension.last_chunk().copied().map(u64::from_be_bytes),
            _ => None,
        }
    }

    /// Datagram header of a UD packet.
    pub fn deth(&self) -> Option<Deth> {
        self.operation?;
        match self.bth.opcode.service() {
            Service::Ud => self.extension.first_chunk().map(Deth::parse),
            _ => None,
        }
    }

    /// Immediate data, in host order of the number on the wire. Verbs hands it to the application in network order.
    pub fn immediate(&self) -> Option<u32> {
        match self.operation? {
            Operation::Send { immediate: true, .. } | Operation::Write { immediate: true, .. } => self.last_word(),
            _ => None,
        }
    }

    /// The R_Key that a SEND with invalidate asks the responder to invalidate (IETH, IBTA 9.3.7).
    pub fn invalidate_rkey(&self) -> Option<u32> {
        match self.operation? {
            Operation::Send { invalidate: true, .. } => self.last_word(),
            _ => None,
        }
    }

    /// ImmDt and IETH are the last of the extension headers.
    fn last_word(&self) -> Option<u32> {
        self.extension.last_chunk().copied().map(u32::from_be_bytes)
    }

    /// The payload, without its pad.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The ICRC that the packet carries.
    pub const fn icrc(&self) -> u32 {
        u32::from_le_bytes(self.icrc)
    }

    /// The bytes that the ICRC covers besides IP and UDP: all but itself.
    pub const fn covered(&self) -> &'a [u8] {
        self.covered
    }
}

/// One RoCE packet as a port received it: what the IP and UDP headers said, and the UDP payload. The destination port is
/// [`ROCE_PORT`].
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// What is known of the IP header.
    pub ip: IpHeader,
    /// UDP source port: the sender's lane.
    pub source_port: u16,
    /// The UDP payload, BTH to ICRC.
    pub bytes: &'a [u8],
}

impl Datagram<'_> {
    /// UDP destination port.
    pub const DESTINATION_PORT: u16 = ROCE_PORT;

    /// The UDP length field: header and payload. Saturates at 65535, which no datagram from a wire exceeds.
    pub fn udp_len(&self) -> u16 {
        u16::try_from(self.bytes.len() + super::UDP_LEN).unwrap_or(u16::MAX)
    }

    /// The 40 bytes that stand before the payload in a UD receive: see [`IpHeader::grh`].
    pub fn grh(&self) -> [u8; 40] {
        self.ip.grh(self.udp_len())
    }
}
