//! Instructions that the steps of a packet take, counted by valgrind: `benches/instructions/compare`, see `benches/README.md`.

#![allow(missing_docs, clippy::unwrap_used)]

#[allow(unreachable_pub, reason = "shared with the tests of the engine")]
#[path = "../../tests/engine_pair/mod.rs"]
mod engine_pair;

use engine_pair::Pair;
use gungraun::prelude::*;
use holdfast::transport::{Completion, SendOp};
use holdfast::wire::icrc::{self, Seed, Verdict};
use holdfast::wire::{Bth, Datagram, HeaderBuf, IpHeader, Ipv4, Opcode, Packet, Psn, Qpn, Reth, frame};
use std::hint::black_box;

const SOURCE_PORT: u16 = 0xc000;
const WRITE_ONLY: Opcode = Opcode::from_byte(0x0a);

fn ip(id: Option<u16>) -> Ipv4 {
    Ipv4 { id, ..Ipv4::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()) }
}

fn headers(payload_len: usize) -> HeaderBuf {
    let mut headers = HeaderBuf::new(&black_box(Bth::new(WRITE_ONLY, Qpn::new(0x11), Psn::new(7))));
    headers.push_reth(&Reth { va: 0x7f00_0000_1000, rkey: 0x1234, dma_len: payload_len as u32 });
    headers
}

/// A WRITE Only of ID 0 with a right ICRC, as UDP payload. Leaked, for freeing it is not what is measured; nor is the first look at
/// the CPU's features, which happens here.
fn packet(payload_len: usize) -> &'static [u8] {
    let headers = headers(payload_len);
    let payload = vec![0x5a; payload_len];
    let udp_len = (8 + headers.as_bytes().len() + payload_len + 4) as u16;
    let mut crc = Seed::new(&IpHeader::V4(ip(Some(0))), SOURCE_PORT, udp_len).headers(headers.as_bytes());
    crc.update(&payload);
    [headers.as_bytes(), &payload, &crc.finish().to_le_bytes()].concat().leak()
}

/// The packet in an Ethernet frame.
fn ethernet(payload_len: usize) -> &'static [u8] {
    let packet = packet(payload_len);
    let udp_len = (8 + packet.len()) as u16;
    let udp = [SOURCE_PORT, 4791, udp_len, 0].map(u16::to_be_bytes);
    [&[2; 12][..], &[8, 0], &ip(Some(0)).emit(udp_len), udp.as_flattened(), packet].concat().leak()
}

fn burst(payload_len: usize) -> (Seed, HeaderBuf, &'static [u8]) {
    let seed = Seed::new(&IpHeader::V4(ip(Some(0))), SOURCE_PORT, (8 + packet(payload_len).len()) as u16);
    (seed, headers(payload_len), vec![0x5a; payload_len].leak())
}

fn datagram(payload_len: usize) -> Datagram<'static> {
    Datagram { ip: IpHeader::V4(ip(Some(0))), source_port: SOURCE_PORT, bytes: packet(payload_len) }
}

/// As a UDP socket gives it.
fn blind_datagram(payload_len: usize) -> Datagram<'static> {
    Datagram { ip: IpHeader::V4(ip(None)), ..datagram(payload_len) }
}

#[library_benchmark]
#[benches::bytes(args = [64, 1024, 4096], setup = datagram)]
fn icrc_verify(datagram: Datagram<'_>) -> Verdict {
    icrc::verify(black_box(&datagram), 0)
}

#[library_benchmark]
#[benches::bytes(args = [1024], setup = blind_datagram)]
fn icrc_verify_recovering_the_id(datagram: Datagram<'_>) -> Verdict {
    icrc::verify(black_box(&datagram), 0x1234)
}

#[library_benchmark]
#[benches::bytes(args = [1024, 4096], setup = burst)]
fn icrc_compute_in_a_burst((seed, headers, payload): (Seed, HeaderBuf, &[u8])) -> u32 {
    let mut crc = black_box(seed).with_id_xor(5).headers(black_box(headers.as_bytes()));
    crc.update(black_box(payload));
    crc.finish()
}

#[library_benchmark]
#[benches::bytes(args = [1024], setup = ethernet)]
fn parse_frame(frame: &[u8]) -> (u16, usize) {
    let frame = frame::parse_ethernet(black_box(frame)).unwrap();
    (frame.source_port, frame.payload.len())
}

#[library_benchmark]
#[benches::bytes(args = [1024], setup = packet)]
fn parse_packet(bytes: &[u8]) -> (Option<Reth>, usize) {
    let packet = Packet::new_checked(black_box(bytes)).unwrap();
    (packet.reth(), packet.payload().len())
}

#[library_benchmark]
#[benches::bytes(args = [1024])]
fn emit_headers(payload_len: usize) -> HeaderBuf {
    headers(black_box(payload_len))
}

/// `count` WRITEs and `count` SENDs of 64 bytes, from their posts to their completions: both engines, ICRC computed and checked.
fn messages(pair: &mut Pair, count: u64) -> usize {
    let (rkey, from, to) = (pair.b.keys.rkey, pair.a.sge(0, 64), pair.b.sge(64, 64));
    for n in 0..count {
        pair.b.receive(pair.now, pair.qpn_b, n, to);
        pair.a.send(pair.now, pair.qpn_a, n, SendOp::Send, from);
        pair.a.send(pair.now, pair.qpn_a, n, SendOp::Write { va: 128, rkey }, from);
    }
    pair.exchange();
    let mut out = [Completion::default(); 64];
    pair.a.poll(&mut out) + pair.b.poll(&mut out)
}

/// Two engines that have met: what is allocated at first use is.
fn met(count: u64) -> (&'static mut Pair, u64) {
    let pair: &'static mut Pair = Box::leak(Box::new(Pair::new()));
    assert!(pair.a.memory.write(0, &[0x5a; 64]));
    for _ in 0..3 {
        assert_eq!(messages(pair, count), 3 * count as usize);
    }
    (pair, count)
}

#[library_benchmark]
#[benches::messages(args = [1, 16], setup = met)]
fn requests_and_their_ack((pair, count): (&mut Pair, u64)) -> usize {
    messages(black_box(pair), black_box(count))
}

library_benchmark_group!(name = engine, benchmarks = [requests_and_their_ack]);
library_benchmark_group!(
    name = wire,
    benchmarks =
        [icrc_verify, icrc_verify_recovering_the_id, icrc_compute_in_a_burst, parse_frame, parse_packet, emit_headers]
);

main!(library_benchmark_groups = wire, engine);
