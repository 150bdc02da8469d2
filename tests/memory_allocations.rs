//! The steady state of the data path allocates nothing: a counting allocator proves it.
#![allow(unsafe_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod counting;

use counting::allocations;
use std::sync::Arc;

use holdfast::memory::{
    Access, AtomicOp, Backing, GatherList, LocalUse, Mapping, Memory, Process, ProcessMemory, Sge, Source, Target,
    WindowBinding,
};

const QPN: u32 = 1;
const BYTES: usize = 1 << 16;

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn the_data_path_allocates_nothing_once_warm() {
    let mut memory = Memory::new([1; 32]);
    let pd = memory.create_pd(1);
    let all = Access::from_bits_retain(0x1f);
    let shared = Backing::Shared(Arc::new(Mapping::anonymous(BYTES).unwrap()), 0);
    let near = memory.register(pd, shared.clone(), 0, BYTES as u64, all).unwrap().lkey;
    let far = memory.register(pd, shared, 0, BYTES as u64, all).unwrap().rkey;
    let mut buffer = vec![0_u64; BYTES / 8];
    let process = Arc::new(Process::open(i32::try_from(std::process::id()).unwrap()).unwrap());
    let backing = Backing::Process(ProcessMemory::new(process, buffer.as_mut_ptr().expose_provenance() as u64));
    let private = memory.register(pd, backing, 0, BYTES as u64, all).unwrap().rkey;
    let window = memory.allocate_window(pd).unwrap();

    let payload = [7_u8; 4096];
    let mut list = GatherList::default();
    let mut flat = Vec::new();
    let mut round = || {
        for key in [near, private] {
            let sges = [(0, 100), (300, 4000), (9000, 5000)].map(|(addr, length)| Sge { addr, length, lkey: key });
            memory.check_local(pd, &sges, LocalUse::Write).unwrap();
            list.clear();
            flat.clear();
            for packet in 0..2 {
                list.push_bytes(&[0; 44]);
                memory.gather(pd, &sges, packet * 4096, 4096, &mut list).unwrap();
            }
            memory.gather_remote(pd, QPN, key, 0, 4096, &mut list).unwrap();
            memory.copy_list(&list, &mut flat).unwrap();
            memory.scatter(pd, &sges, 50, &payload).unwrap();
            memory.write_remote(pd, QPN, key, 60_000, &payload[..8]).unwrap();
            memory.atomic(pd, QPN, key, 64, AtomicOp::FetchAdd { add: 1 }).unwrap();
            let source = Source::Sges { pd, sges: &sges, offset: 0 };
            memory.copy(&source, &Target::Remote { pd, qpn: QPN, rkey: far, va: 0 }, 9100).unwrap();
            memory.copy(&source, &Target::Remote { pd, qpn: QPN, rkey: private, va: 20_000 }, 9100).unwrap();
        }
        memory.flush();
        let binding = WindowBinding { rkey: window, lkey: near, addr: 0, length: 8, access: Access::REMOTE_READ };
        memory.bind_window(pd, QPN, &binding).unwrap();
        memory.invalidate(pd, window, QPN).unwrap();
    };
    // Buffers take their sizes.
    round();
    assert_eq!(allocations(|| (0..100).for_each(|_| round())), 0);
}
