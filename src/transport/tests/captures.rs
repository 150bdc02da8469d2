//! What real SoftRoCE sent (`tests/captures`), played to a queue pair of ours: as responder it must answer as rxe did, as requester it
//! must send what rxe sent.

use super::end::{BOB, End, Setup, all_access};
use crate::memory::Backing;
use crate::transport::*;
use crate::wire::frame::parse_ethernet;
use crate::wire::{BTH_LEN, Operation, Packet, PathMtu, Place, Psn, Qpn, Service, Syndrome};
use core::net::IpAddr;
use std::sync::Arc;

/// A packet of a capture.
struct Captured {
    from: IpAddr,
    bytes: Vec<u8>,
}

impl Captured {
    fn packet(&self) -> Packet<'_> {
        Packet::new_checked(&self.bytes).unwrap()
    }
}

/// The RC and UC packets of a capture of the classic format.
fn capture(name: &str) -> Vec<Captured> {
    let path = format!("{}/tests/captures/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).unwrap();
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while let Some((header, body)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (frame, next) = body.split_at(len);
        rest = next;
        let Some(datagram) = parse_ethernet(frame).ok().and_then(|f| f.roce()) else { continue };
        let packet = Captured { from: datagram.ip.source(), bytes: datagram.bytes.to_vec() };
        if matches!(packet.packet().opcode().service(), Service::Rc | Service::Uc) {
            packets.push(packet);
        }
    }
    packets
}

/// One connection: the requester's packets and the responder's, each in order; `true` for the requester's.
fn connection(name: &str) -> Vec<(bool, Captured)> {
    let packets = capture(name);
    let requester = packets[0].from;
    let mut all: Vec<_> = packets.into_iter().map(|p| (p.from == requester, p)).collect();
    let qp = all[0].1.packet().dest_qp();
    let back = all.iter().find(|(from_a, _)| !from_a).map(|(_, p)| p.packet().dest_qp());
    all.retain(|(from_a, p)| if *from_a { p.packet().dest_qp() == qp } else { Some(p.packet().dest_qp()) == back });
    all
}

/// The addresses that the requests of a connection touch.
fn touched(packets: &[(bool, Captured)]) -> (u64, u64) {
    let ranges = packets.iter().filter_map(|(_, p)| {
        let packet = p.packet();
        packet.reth().map(|r| (r.va, r.va + u64::from(r.dma_len))).or(packet.atomic().map(|a| (a.va, a.va + 8)))
    });
    ranges.fold((u64::MAX, 0), |(low, high), (from, to)| (low.min(from), high.max(to)))
}

/// An end with a region of so many bytes at `va` besides its own. Its key.
fn with_region(setup: &Setup, va: u64, len: u64) -> (End, u32) {
    let mut end = End::ready(0x11, setup, &setup.attrs);
    let backing = Backing::Shared(Arc::clone(&end.mapping), va % 8);
    let keys = end.memory.register(end.pd, backing, va, len.max(1), all_access()).unwrap();
    (end, keys.rkey)
}

/// The packet with another R_Key.
fn with_rkey(captured: &Captured, rkey: u32) -> Vec<u8> {
    let mut bytes = captured.bytes.clone();
    let packet = captured.packet();
    if packet.reth().is_some() || packet.atomic().is_some() {
        bytes[BTH_LEN + 8..BTH_LEN + 12].copy_from_slice(&rkey.to_be_bytes());
    }
    bytes
}

/// What counts of an answer. Not the credit: rxe gives none, we give what is posted.
fn answer(bytes: &[u8]) -> String {
    let packet = Packet::new_checked(bytes).unwrap();
    let aeth = packet.aeth().map(|a| {
        let syndrome = match a.syndrome {
            Syndrome::Ack(_) => "ACK".to_string(),
            other => format!("{other:?}"),
        };
        (syndrome, a.msn)
    });
    format!(
        "{} psn={} len={} {aeth:?} {:?}",
        packet.opcode(),
        packet.psn(),
        packet.payload().len(),
        packet.atomic_ack()
    )
}

/// Plays the requests of a capture but those that `lost` says (by their number) to a responder of ours. Its answers and rxe's.
fn respond(name: &str, mtu: PathMtu, lost: &[usize]) -> (Vec<String>, Vec<String>, QpState) {
    play(name, &connection(name), mtu, lost)
}

fn play(name: &str, packets: &[(bool, Captured)], mtu: PathMtu, lost: &[usize]) -> (Vec<String>, Vec<String>, QpState) {
    let (va, high) = touched(packets);
    let (va, len) = if va == u64::MAX { (0x1000, 1) } else { (va, high - va) };
    let mut setup = Setup::default();
    setup.attrs.path_mtu = mtu;
    setup.attrs.rq_psn = packets[0].1.packet().psn();
    setup.attrs.max_dest_rd_atomic = 16;
    let (mut end, rkey) = with_region(&setup, va, len);
    if name == "atomics" || name == "duplicate" {
        let counter = packets.iter().find_map(|(_, p)| p.packet().atomic()).unwrap().va;
        end.fill(va % 8 + (counter - va), &1000u64.to_ne_bytes());
    }
    for n in 0..100 {
        end.recv(n, 1 << 20, 100_000);
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut number = 0;
    for (request, captured) in packets {
        if !request {
            theirs.push(answer(&captured.bytes));
            continue;
        }
        if !lost.contains(&number) {
            // A refusal shows in the answers.
            let _ = end.receive(BOB, &with_rkey(captured, rkey));
            ours.extend(end.transmit().into_iter().flatten().map(|b| answer(&b)));
        }
        number += 1;
    }
    (ours, theirs, end.qp.state())
}

#[test]
fn answers_are_those_of_rxe() {
    use PathMtu::{B1024, B4096};
    // Lost behind the capture: the third packet of each message.
    for (name, mtu, lost) in [
        ("rc_write", B1024, &[][..]),
        ("rc_send", B1024, &[]),
        ("rc_read", B1024, &[]),
        ("atomics", B1024, &[]),
        ("mtu4096", B4096, &[]),
        ("lost_request", B1024, &[2, 16]),
        ("duplicate", B1024, &[]),
    ] {
        let (ours, theirs, state) = respond(name, mtu, lost);
        assert!(!theirs.is_empty());
        assert_eq!(ours, theirs, "{name}");
        assert_eq!(state, QpState::Rts, "{name}");
    }
}

/// The requests of a connection as work requests, with the number of their first packet.
fn work_requests(packets: &[(bool, Captured)]) -> Vec<(SendOp, SendFlags, Vec<u8>, u32)> {
    let mut requests: Vec<(SendOp, SendFlags, Vec<u8>, u32)> = Vec::new();
    for (_, captured) in packets.iter().filter(|(request, _)| *request) {
        let packet = captured.packet();
        let reth = packet.reth();
        let fresh = match packet.operation().unwrap() {
            Operation::Send { place, .. } if place.starts() => Some(SendOp::Send),
            Operation::Write { place, .. } if place.starts() => reth.map(|r| SendOp::Write { va: r.va, rkey: r.rkey }),
            Operation::ReadRequest => reth.map(|r| SendOp::Read { va: r.va, rkey: r.rkey }),
            Operation::CompareSwap => packet.atomic().map(|a| SendOp::CompareSwap {
                va: a.va,
                rkey: a.rkey,
                compare: a.compare,
                swap: a.swap_or_add,
            }),
            Operation::FetchAdd => {
                packet.atomic().map(|a| SendOp::FetchAdd { va: a.va, rkey: a.rkey, add: a.swap_or_add })
            }
            _ => None,
        };
        if let Some(op) = fresh {
            let len = match op {
                SendOp::Read { .. } => reth.unwrap().dma_len,
                SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 8,
                _ => 0,
            };
            requests.push((op, SendFlags::SIGNALED, Vec::new(), len));
        }
        let (op, flags, data, len) = requests.last_mut().unwrap();
        data.extend_from_slice(packet.payload());
        *len += packet.payload().len() as u32;
        if packet.bth().solicited {
            *flags |= SendFlags::SOLICITED;
        }
        if let Some(imm) = packet.immediate() {
            *op = match *op {
                SendOp::Write { va, rkey } => SendOp::WriteImm { va, rkey, imm },
                _ => SendOp::SendImm(imm),
            };
        }
    }
    requests
}

/// What counts of a request: all but the MigReq bit, the ICRC and rxe's QP number.
fn request(bytes: &[u8]) -> String {
    let packet = Packet::new_checked(bytes).unwrap();
    let bth = packet.bth();
    format!(
        "{} psn={} ack={} se={} pad={} pkey={:x} {:?} {:?} {:?} {:?}",
        bth.opcode,
        bth.psn,
        bth.ack_req,
        bth.solicited,
        bth.pad_count,
        bth.pkey,
        packet.reth(),
        packet.atomic(),
        packet.immediate(),
        packet.payload()
    )
}

#[test]
fn requests_are_those_of_rxe() {
    use PathMtu::{B1024, B4096};
    for (name, mtu, kind) in [
        ("rc_write", B1024, QpType::Rc),
        ("rc_send", B1024, QpType::Rc),
        ("rc_read", B1024, QpType::Rc),
        ("atomics", B1024, QpType::Rc),
        ("mtu4096", B4096, QpType::Rc),
        ("uc", B1024, QpType::Uc),
    ] {
        let packets = connection(name);
        let mut setup = Setup { kind, ..Setup::default() };
        setup.attrs.path_mtu = mtu;
        setup.attrs.sq_psn = packets[0].1.packet().psn();
        setup.attrs.max_rd_atomic = 16;
        setup.attrs.dest_qpn = Qpn::new(0x22);
        let mut end = End::ready(0x11, &setup, &setup.attrs);
        let mut theirs = packets.iter().filter(|(request, _)| *request).map(|(_, p)| request(&p.bytes));
        let wanted = work_requests(&packets);
        for (n, (op, flags, data, len)) in wanted.iter().enumerate() {
            end.fill(0, data);
            end.send_with(n as u64, *op, *flags, 0, *len).unwrap();
            let sent: Vec<_> = end.transmit().into_iter().flatten().collect();
            for bytes in &sent {
                assert_eq!(Some(request(bytes)), theirs.next(), "{name}, request {n}");
            }
            // Answers that reach as far as what was sent, as the capture has them, let the next go.
            if kind == QpType::Rc {
                let last = Packet::new_checked(sent.last().unwrap()).unwrap().psn();
                let reads = matches!(op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
                let first = if reads { last } else { Psn::new(u32::MAX) };
                let end_psn = if let SendOp::Read { .. } = op { last.plus(mtu.packets(*len)) } else { last.plus(1) };
                for (_, answer) in packets.iter().filter(|(request, p)| {
                    !request && p.packet().psn().is_before(end_psn) && (!reads || !p.packet().psn().is_before(first))
                }) {
                    let _ = end.receive(BOB, &answer.bytes);
                }
            }
        }
        assert_eq!(theirs.next(), None, "{name}");
        let completed = end.completed();
        assert_eq!(completed.len(), wanted.len(), "{name}");
        assert!(completed.iter().all(|c| c.status.is_success()));
    }
}

/// rxe 6.1 confuses its PSNs after a needless retry; at last its message does not add up, and the only answer is NAK invalid request. Until
/// then, and after it, we say what rxe says.
#[test]
fn a_spurious_retry_is_survived() {
    let packets = connection("spurious_retry");
    assert!(packets.iter().any(|(request, p)| {
        let packet = p.packet();
        *request
            && matches!(packet.operation(), Some(Operation::Write { place: Place::Only, .. }))
            && packet.payload().is_empty()
    }));
    // The capture begins with the last packet of a message, and 63 messages were before it.
    let (ours, theirs, state) = play("spurious_retry", &packets[1..], PathMtu::B4096, &[]);
    assert!(theirs.last().unwrap().contains("psn=1280 len=0 Some((\"Nak(InvalidRequest)\", 63))"));
    // rxe notices at the last packet, for which no bytes are left; we at the one before, a middle that takes them all.
    assert!(ours.last().unwrap().contains("psn=1279 len=0 Some((\"Nak(InvalidRequest)\", 0))"));
    assert_eq!(state, QpState::Err);
    // What it was not: a duplicate, however odd, never is the end.
    let before = packets.iter().position(|(request, p)| *request && p.packet().psn() == Psn::new(1279)).unwrap();
    let (_, _, state) = play("spurious_retry", &packets[1..before], PathMtu::B4096, &[]);
    assert_eq!(state, QpState::Rts);
}
