//! What the memory room adds to a packet: checks, gathering, hashing, scattering, atomics.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{hint::black_box, sync::Arc};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use holdfast::memory::{
    Access, AtomicOp, Backing, GatherList, LocalUse, Mapping, Memory, PdId, Process, ProcessMemory, Sge,
};

const QPN: u32 = 1;
const REGIONS: u64 = 1000;
const REGION_BYTES: u64 = 1 << 20;

/// A table as a busy client has it, and one of its keys.
fn table() -> (Memory, PdId, u32) {
    let mut memory = Memory::new([1; 32]);
    let pd = memory.create_pd(1);
    let mapping = Arc::new(Mapping::anonymous(REGION_BYTES as usize).unwrap());
    assert!(mapping.write(0, &vec![1; REGION_BYTES as usize]));
    let register = |_| {
        let backing = Backing::Shared(Arc::clone(&mapping), 0);
        memory.register(pd, backing, 0x10_0000, REGION_BYTES, Access::from_bits_retain(0xf)).unwrap().rkey
    };
    let key = (0..REGIONS).map(register).last().unwrap();
    (memory, pd, key)
}

fn checks(c: &mut Criterion) {
    let (mut memory, pd, key) = table();
    let sge = [Sge { addr: 0x10_1000, length: 4096, lkey: key }];
    c.bench_function("memory/check_local_1_sge", |b| {
        b.iter(|| memory.check_local(pd, black_box(&sge), LocalUse::Read))
    });
    c.bench_function("memory/check_remote", |b| {
        b.iter(|| memory.check_remote(pd, QPN, black_box(key), black_box(0x10_1000), 4096, Access::REMOTE_WRITE))
    });
    c.bench_function("memory/check_remote_wrong_key", |b| {
        b.iter(|| memory.check_remote(pd, QPN, black_box(key ^ 1), black_box(0x10_1000), 4096, Access::REMOTE_WRITE))
    });
    let op = AtomicOp::FetchAdd { add: 1 };
    c.bench_function("memory/fetch_add", |b| b.iter(|| memory.atomic(pd, QPN, black_box(key), 0x10_1000, op)));
}

fn gathers(c: &mut Criterion) {
    let (mut memory, pd, key) = table();
    let mut list = GatherList::default();
    for len in [8_u32, 64, 256, 4096] {
        let sge = [Sge { addr: 0x10_1000, length: len, lkey: key }];
        c.bench_function(&format!("memory/check_and_gather_{len}"), |b| {
            b.iter(|| {
                list.clear();
                memory.check_local(pd, black_box(&sge), LocalUse::Read).unwrap();
                memory.gather(pd, black_box(&sge), 0, len, &mut list).unwrap();
            })
        });
    }
    let process = Arc::new(Process::open(std::process::id() as i32).unwrap());
    let buffer = vec![1_u8; 8192];
    let backing = Backing::Process(ProcessMemory::new(process, buffer.as_ptr().expose_provenance() as u64));
    let private = memory.register(pd, backing, 0, 8192, Access::LOCAL_WRITE).unwrap().lkey;
    let sge = [Sge { addr: 0, length: 4096, lkey: private }];
    c.bench_function("memory/gather_process_4096", |b| {
        b.iter(|| {
            list.clear();
            memory.gather(pd, black_box(&sge), 0, 4096, &mut list).unwrap();
        })
    });
}

fn bytes(c: &mut Criterion) {
    let (mut memory, pd, key) = table();
    let mut group = c.benchmark_group("memory");
    for len in [1024_u32, 4096] {
        group.throughput(Throughput::Bytes(u64::from(len)));
        let mut list = GatherList::default();
        memory.gather_remote(pd, QPN, key, 0x10_1000, len, &mut list).unwrap();
        let mut packet = Vec::new();
        group.bench_function(format!("copy_and_hash_{len}"), |b| {
            b.iter(|| {
                packet.clear();
                memory.copy_list(&list, &mut packet).unwrap();
                crc32fast::hash(&packet)
            })
        });
        let payload = vec![2_u8; len as usize];
        group.bench_function(format!("write_remote_{len}"), |b| {
            b.iter(|| memory.write_remote(pd, QPN, key, 0x10_1000, black_box(&payload)))
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(1));
    targets = checks, gathers, bytes
}
criterion_main!(benches);
