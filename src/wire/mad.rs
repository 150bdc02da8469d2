//! Management datagrams (IBTA 13.4): the envelope that connection management and our heartbeats travel in.

/// Queue key of the general services QPs (IBTA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Bytes of every MAD.
pub const MAD_LEN: usize = 256;

/// The common MAD header (IBTA 13.4.3), 24 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadHeader {
    /// Management class: 0x07 is communication management.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method; bit 7 says response.
    pub method: u8,
    /// Status of a response.
    pub status: u16,
    /// Class specific.
    pub class_specific: u16,
    /// Transaction ID.
    pub transaction_id: u64,
    /// Attribute ID: the kind of message.
    pub attribute_id: u16,
    /// Attribute modifier.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 24;
    /// The only base version.
    pub const BASE_VERSION: u8 = 1;
    /// Management class of communication management.
    pub const CLASS_CM: u8 = 0x07;

    /// Reads the header; `None` if the base version is not 1.
    pub const fn parse(b: &[u8; Self::LEN]) -> Option<Self> {
        if b[0] != Self::BASE_VERSION {
            return None;
        }
        Some(Self {
            class: b[1],
            class_version: b[2],
            method: b[3],
            status: u16::from_be_bytes([b[4], b[5]]),
            class_specific: u16::from_be_bytes([b[6], b[7]]),
            transaction_id: u64::from_be_bytes([b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]]),
            attribute_id: u16::from_be_bytes([b[16], b[17]]),
            attribute_modifier: u32::from_be_bytes([b[20], b[21], b[22], b[23]]),
        })
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..4].copy_from_slice(&[Self::BASE_VERSION, self.class, self.class_version, self.method]);
        b[4..6].copy_from_slice(&self.status.to_be_bytes());
        b[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        b[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        b[16..18].copy_from_slice(&self.attribute_id.to_be_bytes());
        b[20..].copy_from_slice(&self.attribute_modifier.to_be_bytes());
        b
    }
}

/// A checked view of one MAD: the payload of a UD SEND to QP 1.
#[derive(Clone, Copy, Debug)]
pub struct Mad<'a> {
    header: MadHeader,
    data: &'a [u8; MAD_LEN - MadHeader::LEN],
}

impl<'a> Mad<'a> {
    /// `None` if the payload is not 256 bytes of base version 1.
    pub fn new_checked(payload: &'a [u8]) -> Option<Self> {
        let (header, data) = payload.split_first_chunk()?;
        Some(Self { header: MadHeader::parse(header)?, data: data.try_into().ok()? })
    }

    /// The header.
    pub const fn header(&self) -> MadHeader {
        self.header
    }

    /// What the class defines: everything behind the header.
    pub const fn data(&self) -> &'a [u8; MAD_LEN - MadHeader::LEN] {
        self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_strangers_are_refused() {
        let header = MadHeader {
            class: MadHeader::CLASS_CM,
            class_version: 2,
            method: 3,
            status: 0x0405,
            class_specific: 0x0607,
            transaction_id: 0x0809_0a0b_0c0d_0e0f,
            attribute_id: 0x1011,
            attribute_modifier: 0x1415_1617,
        };
        let mut bytes = [0; MAD_LEN];
        bytes[..MadHeader::LEN].copy_from_slice(&header.emit());
        bytes[255] = 9;
        let mad = Mad::new_checked(&bytes).unwrap();
        assert_eq!((mad.header(), mad.data()[231]), (header, 9));
        assert!(Mad::new_checked(&bytes[..255]).is_none());
        bytes[0] = 2;
        assert!(Mad::new_checked(&bytes).is_none());
    }
}
