//! What a message costs in the transport room, both ends together and one copy for the wire between them:
//! `cargo bench --bench transport`.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../tests/transport_pair/mod.rs"]
mod transport_pair;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use holdfast::transport::SendOp;
use holdfast::wire::PathMtu;
use transport_pair::{BASE, Pair};

/// A WRITE from its post to its completion. The burst's ICRCs are computed, not checked.
fn write(c: &mut Criterion) {
    let mut group = c.benchmark_group("write");
    for (mtu, len) in [(PathMtu::B4096, 64 << 10), (PathMtu::B1024, 64 << 10), (PathMtu::B4096, 1 << 20)] {
        let mut pair = Pair::new(mtu);
        let rkey = pair.b.key();
        group.throughput(Throughput::Bytes(len.into()));
        group.bench_function(BenchmarkId::new(format!("mtu {}", mtu.bytes()), len), |b| {
            b.iter(|| {
                pair.a.send(SendOp::Write { va: BASE, rkey }, 0, len);
                pair.run();
                assert_eq!(pair.a.completed(), 1);
            });
        });
    }
    group.finish();
}

/// Small messages posted together.
fn small(c: &mut Criterion) {
    let mut group = c.benchmark_group("64 bytes");
    for depth in [1u64, 64] {
        for (name, send) in [("WRITE", false), ("SEND", true)] {
            let mut pair = Pair::new(PathMtu::B4096);
            let op = if send { SendOp::Send } else { SendOp::Write { va: BASE, rkey: pair.b.key() } };
            group.throughput(Throughput::Elements(depth));
            group.bench_function(BenchmarkId::new(name, depth), |b| {
                b.iter(|| {
                    for n in 0..depth {
                        if send {
                            pair.b.recv(n * 64, 64);
                        }
                        pair.a.send(op, n * 64, 64);
                    }
                    pair.run();
                    assert_eq!(
                        (pair.a.completed(), pair.b.completed()),
                        (depth as usize, depth as usize * usize::from(send))
                    );
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, write, small);
criterion_main!(benches);
