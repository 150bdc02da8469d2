//! Heartbeats: a question whether a host is alive, and its answer, between holdfast peers.
//!
//! They are vendor-class MADs to QP 1 (IBTA 16.5): a stock peer has nobody for the class and says nothing. A host that answers while
//! a queue pair of it does not is alive: the queue pair is gone, and not the light.

use crate::wire::{MAD_LEN, Mad, MadHeader};

/// A vendor class of the range whose MADs name their vendor (IBTA 16.5.1).
const CLASS: u8 = 0x4f;
/// A locally administered OUI: "HF" in its last bytes.
const OUI: [u8; 3] = [0x02, 0x48, 0x46];
const CLASS_VERSION: u8 = 1;
/// Attribute of a heartbeat.
const ATTRIBUTE: u16 = 0x0010;
const GET: u8 = 0x01;
const GET_RESPONSE: u8 = 0x81;
/// Where the OUI stands behind the header: after the RMPP header and a reserved byte.
const OUI_AT: usize = 13;

/// A question or its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Whether it is the answer.
    pub is_answer: bool,
    /// Of the question: who answers has heard it.
    pub nonce: u64,
}

impl Heartbeat {
    /// Reads the payload of a datagram to QP 1; `None` if it is no heartbeat.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let mad = Mad::new_checked(payload)?;
        let header = mad.header();
        let is_ours = header.class == CLASS
            && header.class_version == CLASS_VERSION
            && header.attribute_id == ATTRIBUTE
            && mad.data().get(OUI_AT..OUI_AT + 3) == Some(&OUI);
        let is_answer = match header.method {
            GET => false,
            GET_RESPONSE => true,
            _ => return None,
        };
        is_ours.then_some(Self { is_answer, nonce: header.transaction_id })
    }

    /// Writes it.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let header = MadHeader {
            class: CLASS,
            class_version: CLASS_VERSION,
            method: if self.is_answer { GET_RESPONSE } else { GET },
            status: 0,
            class_specific: 0,
            transaction_id: self.nonce,
            attribute_id: ATTRIBUTE,
            attribute_modifier: 0,
        };
        let mut bytes = [0; MAD_LEN];
        let (head, data) = bytes.split_at_mut(MadHeader::LEN);
        head.copy_from_slice(&header.emit());
        for (place, byte) in data.iter_mut().skip(OUI_AT).zip(OUI) {
            *place = byte;
        }
        bytes
    }
}
