//! What a message costs in the engine, both ends together, ICRC computed and checked, and one copy for the wire between them:
//! `cargo bench --bench engine`.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "../tests/engine_pair/mod.rs"]
mod engine_pair;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine_pair::{CLIENT, Device, MEMORY, Pair};
use holdfast::time::Duration;
use holdfast::transport::{Completion, QpCapabilities, QpInit, QpType, SendOp};
use holdfast::wire::Qpn;
use std::hint::black_box;

const BATCH: u64 = 64;

/// `count` WRITEs of 64 bytes, from their post to their completions.
fn writes(pair: &mut Pair, count: u64) {
    let (rkey, sge) = (pair.b.keys.rkey, pair.a.sge(0, 64));
    for n in 0..count {
        pair.a.send(pair.now, pair.qpn_a, n, SendOp::Write { va: 64 * n, rkey }, sge);
    }
    pair.exchange();
    let mut out = [Completion::default(); BATCH as usize];
    assert_eq!(pair.a.poll(&mut out), count as usize);
    black_box(&out);
}

/// `count` SENDs of 64 bytes into receives posted for them.
fn sends(pair: &mut Pair, count: u64) {
    let (from, to) = (pair.a.sge(0, 64), pair.b.sge(0, 64));
    for n in 0..count {
        pair.b.receive(pair.now, pair.qpn_b, n, to);
        pair.a.send(pair.now, pair.qpn_a, n, SendOp::Send, from);
    }
    pair.exchange();
    let mut out = [Completion::default(); BATCH as usize];
    assert_eq!((pair.a.poll(&mut out), pair.b.poll(&mut out)), (count as usize, count as usize));
    black_box(&out);
}

/// One request and its ACK; then a batch, which shares bursts and one ACK.
fn messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("64 bytes");
    for count in [1, BATCH] {
        let mut pair = Pair::new();
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("WRITE, {count} at once"), |b| b.iter(|| writes(&mut pair, count)));
        group.bench_function(format!("SEND, {count} at once"), |b| b.iter(|| sends(&mut pair, count)));
        assert!(pair.a.memory.write(0, &[7; 64]));
        sends(&mut pair, 1);
        assert!(arrived(&pair), "measured, but not moved");
    }
    group.finish();
}

/// The same, by one copy between two queue pairs of one engine.
fn local(c: &mut Criterion) {
    let mut group = c.benchmark_group("local WRITE");
    for len in [64, (MEMORY / 4) as u32] {
        let mut device = Device::new(1);
        let (a, b) = (device.create(QpType::Rc, None), device.create(QpType::Rc, None));
        let address = device.address;
        device.connect(a, (address, b));
        device.connect(b, (address, a));
        let mut pair = Pair { qpn_a: a, qpn_b: b, a: device, ..Pair::new() };
        let (rkey, sge) = (pair.a.keys.rkey, pair.a.sge(0, len));
        group.throughput(Throughput::Bytes(len.into()));
        group.bench_function(format!("{len} bytes"), |bencher| {
            bencher.iter(|| {
                pair.a.send(pair.now, a, 1, SendOp::Write { va: MEMORY as u64 / 2, rkey }, sge);
                assert_eq!(pair.exchange(), 0);
                assert_eq!(pair.a.poll(&mut [Completion::default()]), 1);
            });
        });
    }
    group.finish();
}

/// What was sent has arrived.
fn arrived(pair: &Pair) -> bool {
    let mut bytes = [0; 64];
    pair.b.memory.read(0, &mut bytes) && bytes == [7; 64]
}

/// A busy queue pair beside 100 000 idle ones that are connected.
fn idle(c: &mut Criterion) {
    let mut group = c.benchmark_group("WRITE of 64 bytes beside idle queue pairs");
    group.throughput(Throughput::Elements(BATCH));
    for idle in [0u32, 100_000] {
        let mut pair = Pair::new();
        let before = resident_bytes();
        let caps =
            QpCapabilities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (pd, cq, address) = (pair.b.pd, pair.b.cq, pair.a.address);
        let init = QpInit { pd, kind: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
        for n in 0..idle {
            let qpn = pair.b.engine.create_qp(CLIENT, &init).unwrap();
            pair.b.connect(qpn, (address, Qpn::new(2 + n)));
        }
        if let Some(each) = (resident_bytes() - before).checked_div(idle.into()) {
            println!("{idle} idle queue pairs: {each} bytes each, with queues of one request");
        }
        // Those that were just connected have their one turn.
        pair.exchange();
        pair.now += Duration::from_secs(1);
        group.bench_function(format!("{idle} idle"), |b| b.iter(|| writes(&mut pair, BATCH)));
    }
    group.finish();
}

/// Memory of this process that is in use.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
}

criterion_group!(benches, messages, local, idle);
criterion_main!(benches);
