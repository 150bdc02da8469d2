//! What a packet costs in the wire room: `cargo bench --bench wire`.

#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use holdfast::wire::icrc::{self, Seed, Verdict};
use holdfast::wire::{Bth, Datagram, HeaderBuf, IpHeader, Ipv4, Opcode, Packet, Psn, Qpn, Reth, frame};
use std::hint::black_box;

const SOURCE_PORT: u16 = 0xc000;
const WRITE_ONLY: Opcode = Opcode::from_byte(0x0a);

fn header(id: Option<u16>) -> IpHeader {
    IpHeader::V4(Ipv4 { id, ..Ipv4::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()) })
}

fn headers(payload_len: usize) -> HeaderBuf {
    let mut headers = HeaderBuf::new(&Bth::new(WRITE_ONLY, Qpn::new(0x11), Psn::new(7)));
    headers.push_reth(&Reth { va: 0x7f00_0000_1000, rkey: 0x1234, dma_len: payload_len as u32 });
    headers
}

/// A WRITE Only with a right ICRC, as UDP payload.
fn packet(payload_len: usize, id: u16) -> Vec<u8> {
    let headers = headers(payload_len);
    let payload = vec![0x5a; payload_len];
    let udp_len = (8 + headers.as_bytes().len() + payload_len + 4) as u16;
    let mut crc = Seed::new(&header(Some(id)), SOURCE_PORT, udp_len).headers(headers.as_bytes());
    crc.update(&payload);
    [headers.as_bytes(), &payload, &crc.finish().to_le_bytes()].concat()
}

fn crc(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    for payload_len in [64, 1024, 4096] {
        let bytes = packet(payload_len, 0);
        group.throughput(Throughput::Bytes(payload_len as u64));
        let datagram = |id| Datagram { ip: header(id), source_port: SOURCE_PORT, bytes: &bytes };
        group.bench_function(BenchmarkId::new("verify", payload_len), |b| {
            b.iter(|| assert_eq!(icrc::verify(black_box(&datagram(Some(0))), 0), Verdict::Good));
        });
        group.bench_function(BenchmarkId::new("verify_recovering_the_id", payload_len), |b| {
            b.iter(|| assert_eq!(icrc::verify(black_box(&datagram(None)), 0x1234), Verdict::GoodWithId(0)));
        });
        let (headers, payload) = (headers(payload_len), vec![0x5a; payload_len]);
        let seed = Seed::new(&header(Some(0)), SOURCE_PORT, 8 + bytes.len() as u16);
        group.bench_function(BenchmarkId::new("compute_in_a_burst", payload_len), |b| {
            b.iter(|| {
                let mut crc = black_box(seed).with_id_xor(5).headers(black_box(headers.as_bytes()));
                crc.update(black_box(&payload));
                crc.finish()
            });
        });
    }
    group.finish();
}

fn parse(c: &mut Criterion) {
    let packet = packet(1024, 0);
    let udp_len = (8 + packet.len()) as u16;
    let IpHeader::V4(ip) = header(Some(0)) else { return };
    let udp = [SOURCE_PORT, 4791, udp_len, 0].map(u16::to_be_bytes);
    let frame = [&[2; 12][..], &[8, 0], &ip.emit(udp_len), udp.as_flattened(), &packet].concat();
    c.bench_function("parse/frame", |b| b.iter(|| frame::parse_ethernet(black_box(&frame)).unwrap().source_port));
    c.bench_function("parse/packet", |b| b.iter(|| Packet::new_checked(black_box(&packet)).unwrap().reth()));
    c.bench_function("emit/headers", |b| b.iter(|| headers(black_box(1024))));
}

criterion_group!(benches, crc, parse);
criterion_main!(benches);
