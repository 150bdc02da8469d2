//! Super-packets: a capture on the sending or coalescing host shows several RoCE packets as one UDP datagram.
//!
//! The file does not say where one ends and the next begins, but the ICRC does: the segment size is the one that makes the first
//! segment's ICRC right. Segments have one size, the last may be shorter, and IPv4 IDs count up.

use crate::wire::icrc::{self, Verdict};
use crate::wire::{BTH_LEN, Datagram, ICRC_LEN, IpHeader};

/// The largest packet: BTH, AtomicETH, 4096 bytes of payload, ICRC.
const LARGEST: usize = BTH_LEN + 28 + 4096 + ICRC_LEN;

/// The packets of a datagram; itself, if it is one (also a bad one).
pub(super) fn split<'a>(datagram: &Datagram<'a>) -> impl Iterator<Item = Datagram<'a>> + use<'a> {
    let size = match icrc::verify(datagram, 0) {
        Verdict::Bad => segment_size(datagram).unwrap_or(datagram.bytes.len()),
        _ => datagram.bytes.len(),
    };
    let datagram = *datagram;
    // An empty datagram is one segment too, for its emptiness to be told.
    let segments = datagram.bytes.len().div_ceil(size.max(1)).max(1);
    (0..segments).map(move |i| segment(&datagram, i, size))
}

fn segment<'a>(datagram: &Datagram<'a>, index: usize, size: usize) -> Datagram<'a> {
    let rest = datagram.bytes.get(index * size..).unwrap_or_default();
    let mut ip = datagram.ip;
    if let IpHeader::V4(h) = &mut ip {
        h.id = h.id.map(|id| id.wrapping_add(index as u16));
    }
    Datagram { ip, bytes: rest.get(..size).unwrap_or(rest), ..*datagram }
}

fn segment_size(datagram: &Datagram<'_>) -> Option<usize> {
    let largest = LARGEST.min(datagram.bytes.len().saturating_sub(1));
    (BTH_LEN + ICRC_LEN..=largest)
        .step_by(4)
        .find(|&size| icrc::verify(&segment(datagram, 0, size), 0) == Verdict::Good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::icrc::Seed;
    use crate::wire::{Bth, Opcode, Psn, Qpn, UDP_LEN};

    const MIDDLE: Opcode = Opcode::from_byte(0x07);

    /// A burst as a segmenting sender hands it down: every packet with the ICRC of its own ID and length.
    fn burst(ip: &IpHeader, payloads: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (i, &len) in payloads.iter().enumerate() {
            let bth = Bth::new(MIDDLE, Qpn::new(0x11), Psn::new(i as u32)).emit();
            let packet = [&bth[..], &vec![i as u8; len]].concat();
            let udp_len = (UDP_LEN + packet.len() + ICRC_LEN) as u16;
            let crc = Seed::new(ip, 0xc000, udp_len).with_id_xor(if ip.source().is_ipv4() { i as u16 } else { 0 });
            let icrc = crc.headers(&packet).finish();
            bytes.extend(packet);
            bytes.extend(icrc.to_le_bytes());
        }
        bytes
    }

    fn lengths(datagram: &Datagram<'_>) -> Vec<usize> {
        split(datagram)
            .map(|d| if icrc::verify(&d, 0) == Verdict::Good { d.bytes.len() - BTH_LEN - ICRC_LEN } else { 0 })
            .collect()
    }

    #[test]
    fn bursts_are_taken_apart_and_single_packets_are_left_alone() {
        let four = IpHeader::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()).unwrap();
        let six = IpHeader::new("fd00::2".parse().unwrap(), "fd00::3".parse().unwrap()).unwrap();
        for ip in [four, six] {
            for payloads in [&[1024][..], &[1024, 1024, 1024], &[4096, 4096, 8], &[64, 64, 64, 0]] {
                let bytes = burst(&ip, payloads);
                assert_eq!(lengths(&Datagram { ip, source_port: 0xc000, bytes: &bytes }), payloads);
            }
        }
    }

    #[test]
    fn a_bad_packet_stays_one() {
        let ip = IpHeader::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()).unwrap();
        let mut bytes = burst(&ip, &[1024]);
        bytes[100] ^= 1;
        let datagram = Datagram { ip, source_port: 0xc000, bytes: &bytes };
        assert_eq!(split(&datagram).map(|d| d.bytes.len()).collect::<Vec<_>>(), [bytes.len()]);
        assert_eq!(split(&Datagram { bytes: &[], ..datagram }).count(), 1);
    }
}
