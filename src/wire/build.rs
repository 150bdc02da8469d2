//! Building the headers of a packet without allocation.

use super::{Aeth, AtomicEth, BTH_LEN, Bth, Deth, Reth};

/// The headers of one packet, BTH first, in a fixed buffer.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBuf {
    bytes: [u8; Self::CAPACITY],
    len: u8,
}

impl HeaderBuf {
    /// Bytes it can hold: a BTH and more extension headers than any opcode has (28 bytes, AtomicETH).
    pub const CAPACITY: usize = 48;

    /// Begins with a BTH.
    pub fn new(bth: &Bth) -> Self {
        let mut bytes = [0; Self::CAPACITY];
        bytes[..BTH_LEN].copy_from_slice(&bth.emit());
        Self { bytes, len: BTH_LEN as u8 }
    }

    /// Appends raw bytes. What does not fit is left out whole: no opcode's headers come near the end.
    fn push<const N: usize>(&mut self, header: [u8; N]) -> &mut Self {
        let start = usize::from(self.len);
        let room = self.bytes.get_mut(start..start + N);
        debug_assert!(room.is_some(), "more headers than any opcode has");
        if let Some(room) = room {
            room.copy_from_slice(&header);
            self.len += N as u8;
        }
        self
    }

    /// Appends a RETH.
    pub fn push_reth(&mut self, h: &Reth) -> &mut Self {
        self.push(h.emit())
    }

    /// Appends an AtomicETH.
    pub fn push_atomic(&mut self, h: &AtomicEth) -> &mut Self {
        self.push(h.emit())
    }

    /// Appends an AETH.
    pub fn push_aeth(&mut self, h: &Aeth) -> &mut Self {
        self.push(h.emit())
    }

    /// Appends an AtomicAckETH: the original value.
    pub fn push_atomic_ack(&mut self, original: u64) -> &mut Self {
        self.push(original.to_be_bytes())
    }

    /// Appends a DETH.
    pub fn push_deth(&mut self, h: &Deth) -> &mut Self {
        self.push(h.emit())
    }

    /// Appends an ImmDt.
    pub fn push_immediate(&mut self, immediate: u32) -> &mut Self {
        self.push(immediate.to_be_bytes())
    }

    /// Appends an IETH: the R_Key to invalidate.
    pub fn push_invalidate(&mut self, rkey: u32) -> &mut Self {
        self.push(rkey.to_be_bytes())
    }

    /// What was built.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
