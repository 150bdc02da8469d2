//! BTH opcodes: a total enumeration.

use core::fmt;

/// A BTH opcode (IBTA 9.2.1, table 35): the service in bits 7..5, the operation in bits 4..0.
///
/// Total: every byte is an opcode, and one without a meaning has no [`Operation`]. So no table has holes to fall into.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

/// Transport service of an opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram (nobody implements it).
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification, opcodes 0x80 to 0x9f.
    Cnp,
    /// Extended reliable connection, opcodes 0xa0 to 0xbf.
    Xrc,
    /// Manufacturer specific, 0xc0 to 0xff.
    Manufacturer,
}

/// Which packet of its message this one is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// First and last.
    Only,
}

impl Place {
    /// Whether a message begins here.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What a packet does, without its service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// SEND; `immediate` and `invalidate` say which header follows.
    Send {
        /// Place in the message.
        place: Place,
        /// Carries ImmDt.
        immediate: bool,
        /// Carries IETH.
        invalidate: bool,
    },
    /// RDMA WRITE.
    Write {
        /// Place in the message.
        place: Place,
        /// Carries ImmDt.
        immediate: bool,
    },
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse(Place),
    /// ACK, NAK, RNR NAK.
    Acknowledge,
    /// Answer to an atomic.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Congestion notification packet.
    CongestionNotification,
}

const RC: u8 = 0x00;
const UC: u8 = 0x20;
const UD: u8 = 0x60;

impl Opcode {
    /// Congestion notification packet (annex A17.9.3).
    pub const CNP: Self = Self(0x81);
    /// RC RDMA READ request.
    pub const RC_READ_REQUEST: Self = Self(RC | 0x0c);
    /// RC acknowledge.
    pub const RC_ACKNOWLEDGE: Self = Self(RC | 0x11);
    /// RC atomic acknowledge.
    pub const RC_ATOMIC_ACKNOWLEDGE: Self = Self(RC | 0x12);
    /// RC compare and swap.
    pub const RC_COMPARE_SWAP: Self = Self(RC | 0x13);
    /// RC fetch and add.
    pub const RC_FETCH_ADD: Self = Self(RC | 0x14);
    /// UD SEND only.
    pub const UD_SEND_ONLY: Self = Self(UD | 0x04);
    /// UD SEND only with immediate.
    pub const UD_SEND_ONLY_IMM: Self = Self(UD | 0x05);

    /// The opcode that stands for `byte`.
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// The service it belongs to.
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            4 => Service::Cnp,
            5 => Service::Xrc,
            _ => Service::Manufacturer,
        }
    }

    /// The opcode of `operation` on `service`, where there is one.
    pub const fn of(service: Service, operation: Operation) -> Option<Self> {
        use Operation as O;
        use Place::{First, Last, Middle, Only};
        let low = match operation {
            O::Send { place: First, immediate: false, invalidate: false } => 0x00,
            O::Send { place: Middle, immediate: false, invalidate: false } => 0x01,
            O::Send { place: Last, immediate: false, invalidate: false } => 0x02,
            O::Send { place: Last, immediate: true, invalidate: false } => 0x03,
            O::Send { place: Only, immediate: false, invalidate: false } => 0x04,
            O::Send { place: Only, immediate: true, invalidate: false } => 0x05,
            O::Write { place: First, immediate: false } => 0x06,
            O::Write { place: Middle, immediate: false } => 0x07,
            O::Write { place: Last, immediate: false } => 0x08,
            O::Write { place: Last, immediate: true } => 0x09,
            O::Write { place: Only, immediate: false } => 0x0a,
            O::Write { place: Only, immediate: true } => 0x0b,
            O::ReadRequest => 0x0c,
            O::ReadResponse(First) => 0x0d,
            O::ReadResponse(Middle) => 0x0e,
            O::ReadResponse(Last) => 0x0f,
            O::ReadResponse(Only) => 0x10,
            O::Acknowledge => 0x11,
            O::AtomicAcknowledge => 0x12,
            O::CompareSwap => 0x13,
            O::FetchAdd => 0x14,
            O::Send { place: Last, immediate: false, invalidate: true } => 0x16,
            O::Send { place: Only, immediate: false, invalidate: true } => 0x17,
            O::CongestionNotification => return if matches!(service, Service::Cnp) { Some(Self::CNP) } else { None },
            O::Send { .. } | O::Write { .. } => return None,
        };
        match service {
            Service::Rc => Some(Self(RC | low)),
            Service::Uc if low <= 0x0b => Some(Self(UC | low)),
            Service::Ud if low == 0x04 || low == 0x05 => Some(Self(UD | low)),
            _ => None,
        }
    }

    /// Whether it answers a request on RC: ACK, READ response or atomic answer.
    #[inline]
    pub const fn is_answer(self) -> bool {
        matches!(
            self.operation(),
            Some(Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse(_))
        )
    }

    /// What it does; `None` if this byte has no meaning here (reserved, RD, XRC, FLUSH, ATOMIC WRITE, manufacturer).
    pub const fn operation(self) -> Option<Operation> {
        use Operation as O;
        use Place::{First, Last, Middle, Only};
        const fn send(place: Place, immediate: bool, invalidate: bool) -> Operation {
            O::Send { place, immediate, invalidate }
        }
        const fn write(place: Place, immediate: bool) -> Operation {
            O::Write { place, immediate }
        }
        if self.0 == Self::CNP.0 {
            return Some(O::CongestionNotification);
        }
        let low = self.0 & 0x1f;
        let known = match self.service() {
            Service::Rc => low <= 0x17,
            Service::Uc => low <= 0x0b,
            Service::Ud => low == 0x04 || low == 0x05,
            _ => false,
        };
        if !known {
            return None;
        }
        Some(match low {
            0x00 => send(First, false, false),
            0x01 => send(Middle, false, false),
            0x02 => send(Last, false, false),
            0x03 => send(Last, true, false),
            0x04 => send(Only, false, false),
            0x05 => send(Only, true, false),
            0x06 => write(First, false),
            0x07 => write(Middle, false),
            0x08 => write(Last, false),
            0x09 => write(Last, true),
            0x0a => write(Only, false),
            0x0b => write(Only, true),
            0x0c => O::ReadRequest,
            0x0d => O::ReadResponse(First),
            0x0e => O::ReadResponse(Middle),
            0x0f => O::ReadResponse(Last),
            0x10 => O::ReadResponse(Only),
            0x11 => O::Acknowledge,
            0x12 => O::AtomicAcknowledge,
            0x13 => O::CompareSwap,
            0x14 => O::FetchAdd,
            0x16 => send(Last, false, true),
            0x17 => send(Only, false, true),
            _ => return None,
        })
    }

    /// Bytes of the extension headers between BTH and payload.
    ///
    /// An opcode without a meaning has none: what follows its BTH is payload to us.
    pub const fn extension_len(self) -> usize {
        const LENGTHS: [u8; 256] = {
            let mut lengths = [0; 256];
            let mut byte = 0;
            while byte < 256 {
                lengths[byte] = Opcode(byte as u8).compute_extension_len() as u8;
                byte += 1;
            }
            lengths
        };
        LENGTHS[self.0 as usize] as usize
    }

    const fn compute_extension_len(self) -> usize {
        use super::headers::{Aeth, AtomicEth, Deth, Reth};
        let datagram = if matches!(self.service(), Service::Ud) { Deth::LEN } else { 0 };
        let own = match self.operation() {
            Some(Operation::Send { immediate, invalidate, .. }) => 4 * (immediate as usize + invalidate as usize),
            Some(Operation::Write { place, immediate }) => {
                (if place.starts() { Reth::LEN } else { 0 }) + 4 * immediate as usize
            }
            Some(Operation::ReadRequest) => Reth::LEN,
            Some(Operation::ReadResponse(Place::Middle)) => 0,
            Some(Operation::ReadResponse(_) | Operation::Acknowledge) => Aeth::LEN,
            Some(Operation::AtomicAcknowledge) => Aeth::LEN + 8,
            Some(Operation::CompareSwap | Operation::FetchAdd) => AtomicEth::LEN,
            Some(Operation::CongestionNotification) | None => 0,
        };
        match self.operation() {
            Some(_) => datagram + own,
            None => 0,
        }
    }

    /// Whether this is a request (towards a responder) rather than an answer to one.
    pub const fn is_request(self) -> bool {
        matches!(
            self.operation(),
            Some(
                Operation::Send { .. }
                    | Operation::Write { .. }
                    | Operation::ReadRequest
                    | Operation::CompareSwap
                    | Operation::FetchAdd
            )
        )
    }
}

/// The names of one service's operations, by bits 4..0, as IBTA table 35 spells them.
macro_rules! names {
    ($service:literal) => {
        [
            concat!($service, " SEND First"),
            concat!($service, " SEND Middle"),
            concat!($service, " SEND Last"),
            concat!($service, " SEND Last with Immediate"),
            concat!($service, " SEND Only"),
            concat!($service, " SEND Only with Immediate"),
            concat!($service, " RDMA WRITE First"),
            concat!($service, " RDMA WRITE Middle"),
            concat!($service, " RDMA WRITE Last"),
            concat!($service, " RDMA WRITE Last with Immediate"),
            concat!($service, " RDMA WRITE Only"),
            concat!($service, " RDMA WRITE Only with Immediate"),
            concat!($service, " RDMA READ Request"),
            concat!($service, " RDMA READ response First"),
            concat!($service, " RDMA READ response Middle"),
            concat!($service, " RDMA READ response Last"),
            concat!($service, " RDMA READ response Only"),
            concat!($service, " Acknowledge"),
            concat!($service, " ATOMIC Acknowledge"),
            concat!($service, " CmpSwap"),
            concat!($service, " FetchAdd"),
            concat!($service, " reserved"),
            concat!($service, " SEND Last with Invalidate"),
            concat!($service, " SEND Only with Invalidate"),
        ]
    };
}

impl Opcode {
    /// Its name in IBTA table 35, with the service before it: "RC SEND Only with Immediate", "RC RDMA READ response First",
    /// "UD SEND Only", "CNP". A byte that the table reserves is "RC reserved" and so on; FLUSH and ATOMIC WRITE (release
    /// 1.6) are named although not implemented.
    pub fn name(self) -> &'static str {
        const RC: [&str; 24] = names!("RC");
        const UC: [&str; 24] = names!("UC");
        const RD: [&str; 24] = names!("RD");
        const UD: [&str; 24] = names!("UD");
        const XRC: [&str; 24] = names!("XRC");
        let low = self.0 & 0x1f;
        let of = |names: &[&'static str; 24], highest: u8, reserved| match names.get(usize::from(low)) {
            Some(name) if low <= highest => *name,
            _ => reserved,
        };
        match (self.service(), low) {
            (Service::Rc, 0x1c) => "RC FLUSH",
            (Service::Rc, 0x1d) => "RC ATOMIC WRITE",
            (Service::Rd, 0x15) => "RD RESYNC",
            (Service::Ud, 0x00..=0x03) => "UD reserved",
            (Service::Rc, _) => of(&RC, 0x17, "RC reserved"),
            (Service::Uc, _) => of(&UC, 0x0b, "UC reserved"),
            (Service::Rd, _) => of(&RD, 0x14, "RD reserved"),
            (Service::Ud, _) => of(&UD, 0x05, "UD reserved"),
            (Service::Xrc, _) => of(&XRC, 0x17, "XRC reserved"),
            (Service::Cnp, 0x01) => "CNP",
            (Service::Cnp, _) => "CNP reserved",
            (Service::Manufacturer, _) => "manufacturer specific",
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode(0x{:02x} {})", self.0, self.name())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_an_opcode_and_known_ones_round_trip() {
        let mut known = 0;
        for b in 0..=255u8 {
            let o = Opcode::from_byte(b);
            assert_eq!(o.byte(), b);
            assert!(o.extension_len() <= 28);
            if let Some(op) = o.operation() {
                known += 1;
                assert_eq!(Opcode::of(o.service(), op), Some(o), "{o:?}");
            }
        }
        // RC 0x00-0x17 less 0x15, UC 0x20-0x2b, UD 2, CNP.
        assert_eq!(known, 23 + 12 + 2 + 1);
    }

    #[test]
    fn names_are_reserved_exactly_where_the_table_is() {
        for b in 0..=255u8 {
            let o = Opcode::from_byte(b);
            if o.operation().is_some() {
                assert!(!o.name().contains("reserved"), "{o:?}");
            }
        }
        let name = |b| Opcode::from_byte(b).name();
        assert_eq!(name(0x05), "RC SEND Only with Immediate");
        assert_eq!(name(0x0d), "RC RDMA READ response First");
        assert_eq!(name(0x13), "RC CmpSwap");
        assert_eq!(name(0x17), "RC SEND Only with Invalidate");
        assert_eq!(name(0x15), "RC reserved");
        assert_eq!(name(0x1f), "RC reserved");
        assert_eq!(name(0x2b), "UC RDMA WRITE Only with Immediate");
        assert_eq!(name(0x2c), "UC reserved");
        assert_eq!(name(0x64), "UD SEND Only");
        assert_eq!(name(0x66), "UD reserved");
        assert_eq!(name(0x81), "CNP");
    }
}
