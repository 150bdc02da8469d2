//! Packets of strangers and of a peer gone mad, at an engine with live queue pairs.

#[allow(unreachable_pub, reason = "shared with tests and benches")]
#[path = "../../tests/engine_pair/mod.rs"]
mod engine_pair;

use engine_pair::{CLIENT, MEMORY, Pair};
use holdfast::time::Duration;
use holdfast::transport::{Completion, QpState, QpType, SendOp, WcStatus};
use holdfast::wire::icrc::Icrc;
use holdfast::wire::{BTH_LEN, Datagram, ICRC_LEN, IpHeader, Qpn, ROCE_PORT};
use std::net::{IpAddr, Ipv4Addr};

/// Bytes before each packet of the input: where it comes from, whom it is for, its length (2).
const PREFIX: usize = 4;
/// The peer of the victims. It may say anything to them.
const MAD: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 66));
/// Nobody's peer.
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 77));

/// Whatever a peer sends to its own queue pairs, and a stranger to any: nothing panics, nobody loops, and the connection of two who
/// are well goes on undisturbed.
pub fn run(data: &[u8]) {
    let mut pair = Pair::new();
    let mut victims: Vec<Qpn> = Vec::new();
    let srq = pair.b.engine.create_srq(CLIENT, pair.b.pd, 8, 1).unwrap();
    for (kind, srq) in
        [(QpType::Rc, None), (QpType::Rc, Some(srq)), (QpType::Uc, None), (QpType::Ud, None), (QpType::Gsi, None)]
    {
        let qpn = pair.b.create(kind, srq);
        pair.b.connect(qpn, (MAD, Qpn::new(9)));
        victims.push(qpn);
    }
    busy(&mut pair, &victims);
    let mut rest = data;
    while let Some((&[from, whom, high, low], after)) = rest.split_first_chunk::<PREFIX>() {
        let len = usize::from(u16::from_be_bytes([high, low])).min(after.len());
        let (packet, after) = after.split_at(len);
        rest = after;
        deliver(&mut pair, &victims, from, whom, packet);
    }
    still_works(&mut pair);
}

/// Something is under way on every victim that may be answered.
fn busy(pair: &mut Pair, victims: &[Qpn]) {
    let (now, sge) = (pair.now, pair.b.sge(MEMORY as u64 / 2, 5000));
    for (n, &qpn) in victims.iter().enumerate() {
        if n != 1 {
            pair.b.receive(now, qpn, 1, sge);
        }
        if n < 2 {
            pair.b.send(now, qpn, 2, SendOp::Read { va: 0, rkey: 7 }, sge);
            pair.b.send(now, qpn, 3, SendOp::FetchAdd { va: 0, rkey: 7, add: 1 }, pair.b.sge(MEMORY as u64 / 2, 8));
        }
        if n < 3 {
            pair.b.send(now, qpn, 4, SendOp::Write { va: 0, rkey: 7 }, sge);
        }
    }
}

/// Addresses a packet, makes its ICRC right, and hands it over.
fn deliver(pair: &mut Pair, victims: &[Qpn], from: u8, whom: u8, packet: &[u8]) {
    let mut bytes = packet.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4).max(BTH_LEN + ICRC_LEN), 0);
    let mad = from & 1 == 0;
    // A stranger may name any queue pair, even the sound one; the peer of the victims stays among them (or aims at nobody).
    let target = match victims.get(usize::from(whom) % 8) {
        Some(qpn) => *qpn,
        None if mad => Qpn::new(0xab_cdef),
        None => pair.qpn_b,
    };
    bytes[5..8].copy_from_slice(&target.get().to_be_bytes()[1..]);
    let source = if mad { MAD } else { STRANGER };
    let Some(ip) = IpHeader::new(source, pair.b.address) else { return };
    let covered = bytes.len() - ICRC_LEN;
    let udp_len = Datagram { ip, source_port: ROCE_PORT, bytes: &bytes }.udp_len();
    let icrc = Icrc::start(&ip, ROCE_PORT, udp_len, &bytes[..covered]).finish();
    bytes[covered..].copy_from_slice(&icrc.to_le_bytes());
    pair.b.engine.handle_datagram(pair.now, &Datagram { ip, source_port: ROCE_PORT, bytes: &bytes });
    pair.now += Duration::from_micros(u64::from(from));
    pair.b.engine.handle_timeout(pair.now);
    // Answers for the mad one go nowhere. How much one packet can make us say is bounded.
    assert!(pair.exchange() < 10_000);
    assert!(pair.b.engine.poll_timeout().is_none_or(|t| t > pair.now), "time stands still");
}

/// The sound connection carries a message each way.
fn still_works(pair: &mut Pair) {
    let text = *b"undisturbed";
    assert!(pair.a.memory.write(0, &text));
    let (rkey, sge) = (pair.b.keys.rkey, pair.a.sge(0, text.len() as u32));
    let (landing, now) = (pair.b.sge(0x1000, 64), pair.now);
    pair.b.receive(now, pair.qpn_b, 1, landing);
    pair.a.send(now, pair.qpn_a, 1, SendOp::Send, sge);
    pair.a.send(now, pair.qpn_a, 2, SendOp::Write { va: 0x2000, rkey }, sge);
    pair.exchange();
    let mut out = [Completion::default(); 4];
    assert_eq!(pair.a.poll(&mut out), 2);
    assert!(out[..2].iter().all(|c| c.status == WcStatus::Success), "{out:?}");
    for at in [0x1000, 0x2000] {
        let mut got = [0; 11];
        assert!(pair.b.memory.read(at, &mut got) && got == text);
    }
    assert_eq!(pair.b.engine.qp(pair.qpn_b).map(|qp| qp.state()), Some(QpState::Rts));
}
