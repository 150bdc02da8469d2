//! Bytes from the wire: as a frame, as an IP packet, as a RoCEv2 packet.

use holdfast::wire::icrc::{self, Seed, Verdict};
use holdfast::wire::{
    Aeth, AtomicEth, Bth, Datagram, Deth, HeaderBuf, ICRC_LEN, IpHeader, Ipv4, Ipv6, Mad, Packet, Reth, frame,
    pad_count,
};

/// No input makes the wire room panic, and what it reads, it writes.
pub fn run(data: &[u8]) {
    for parsed in [frame::parse_ethernet(data), frame::parse_ip(data)] {
        match parsed {
            Ok(frame) => {
                assert!(frame.payload.len() < data.len());
                if let Some(datagram) = frame.roce() {
                    check_datagram(&datagram);
                }
            }
            Err(error) => drop(error.to_string()),
        }
    }
    let four = Ipv4 { id: None, ..Ipv4::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()) };
    let six = Ipv6::new([0xfd00, 0, 0, 0, 0, 0, 0, 2].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 3].into());
    for ip in [IpHeader::V4(four), IpHeader::V6(six)] {
        check_datagram(&Datagram { ip, source_port: 0xc000, bytes: data });
    }
}

fn check_datagram(datagram: &Datagram<'_>) {
    let _ = datagram.grh();
    let verdict = icrc::verify(datagram, 0);
    match Packet::new_checked(datagram.bytes) {
        Ok(packet) => {
            check_packet(&packet);
            check_icrc(datagram, &packet, verdict);
        }
        Err(malformed) => drop(malformed.to_string()),
    }
}

/// The parts of a packet add up, and its headers survive being written.
fn check_packet(packet: &Packet<'_>) {
    let bth = packet.bth();
    assert_eq!(Bth::parse(&bth.emit()), bth);
    let mut headers = HeaderBuf::new(&bth);
    if let Some(h) = packet.deth() {
        assert_eq!(Deth::parse(&h.emit()), h);
        headers.push_deth(&h);
    }
    if let Some(h) = packet.reth() {
        assert_eq!(Reth::parse(&h.emit()), h);
        headers.push_reth(&h);
    }
    if let Some(h) = packet.atomic() {
        assert_eq!(AtomicEth::parse(&h.emit()), h);
        headers.push_atomic(&h);
    }
    if let Some(h) = packet.aeth() {
        assert_eq!(Aeth::parse(&h.emit()), h);
        headers.push_aeth(&h);
    }
    if let Some(original) = packet.atomic_ack() {
        headers.push_atomic_ack(original);
    }
    if let Some(immediate) = packet.immediate() {
        headers.push_immediate(immediate);
    }
    if let Some(rkey) = packet.invalidate_rkey() {
        headers.push_invalidate(rkey);
    }
    let pad = usize::from(bth.pad_count);
    assert_eq!(headers.as_bytes().len() + packet.payload().len() + pad, packet.covered().len());
    assert_eq!(pad_count(packet.payload().len()), bth.pad_count);
    if let Some(mad) = Mad::new_checked(packet.payload()) {
        // Two reserved bytes stand between attribute ID and modifier.
        assert_eq!(mad.header().emit()[..18], packet.payload()[..18]);
    }
}

/// A verdict holds, and an ID that a receiver does not see is recovered from the ICRC.
fn check_icrc(datagram: &Datagram<'_>, packet: &Packet<'_>, verdict: Verdict) {
    let IpHeader::V4(header) = datagram.ip else { return };
    let with_id = |id| IpHeader::V4(Ipv4 { id, ..header });
    if let Verdict::GoodWithId(id) = verdict {
        assert_eq!(icrc::verify(&Datagram { ip: with_id(Some(id)), ..*datagram }, 0), Verdict::Good);
    }
    let id = packet.icrc() as u16;
    let seed = Seed::new(&with_id(Some(0)), datagram.source_port, datagram.udp_len());
    assert_eq!(seed.with_id_xor(id), Seed::new(&with_id(Some(id)), datagram.source_port, datagram.udp_len()));
    let icrc = seed.with_id_xor(id).headers(packet.covered()).finish();
    let bytes = [packet.covered(), &icrc.to_le_bytes()].concat();
    assert_eq!(bytes.len(), packet.covered().len() + ICRC_LEN);
    let blind = Datagram { ip: with_id(None), bytes: &bytes, ..*datagram };
    assert_eq!(icrc::verify(&blind, id), Verdict::Good);
    assert_eq!(icrc::verify(&blind, !id), Verdict::GoodWithId(id));
}
