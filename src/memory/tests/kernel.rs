//! What the kernel has a say in: memfds and processes' memory, here of this process. `tests/memory_two_processes.rs` has a real peer.

use std::os::{
    fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    unix::net::UnixStream,
};

use super::*;

const PAGE: usize = 4096;

fn memfd(len: usize, seals: i32) -> OwnedFd {
    // SAFETY: the name is a C string; the result is a new descriptor.
    let fd = unsafe {
        OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING))
    };
    nix::unistd::ftruncate(&fd, len as i64).unwrap();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    fd
}

fn this_process() -> Arc<Process> {
    Arc::new(Process::open(i32::try_from(std::process::id()).unwrap()).unwrap())
}

/// Registers a buffer of this process as if it were a client's.
fn own(memory: &mut Memory, pd: PdId, process: &Arc<Process>, buffer: &mut [u8]) -> u32 {
    let backing =
        Backing::Process(ProcessMemory::new(Arc::clone(process), buffer.as_mut_ptr().expose_provenance() as u64));
    memory.register(pd, backing, 0, buffer.len() as u64, ALL).unwrap().lkey
}

#[test]
fn a_memfd_is_shared_from_any_offset() {
    let fd = memfd(3 * PAGE, libc::F_SEAL_SHRINK);
    let whole = Mapping::of_memfd(fd.try_clone().unwrap(), 0, 3 * PAGE as u64).unwrap();
    let part = Mapping::of_memfd(fd, PAGE as u64 + 100, 2 * PAGE as u64 - 100).unwrap();
    assert!(whole.write(PAGE as u64 + 100, b"shared"));
    assert_eq!(bytes_of(&part, 0, 6), b"shared");
    let last = part.len() as u64 - 1;
    assert!(part.write(last, b"!") && !part.write(last, b"!!") && !part.read(u64::MAX, &mut [0]));
    assert_eq!(bytes_of(&whole, 3 * PAGE as u64 - 1, 1), b"!");
}

#[test]
fn what_could_shrink_or_is_too_short_is_refused() {
    let refused = Mapping::of_memfd(memfd(PAGE, 0), 0, 1);
    assert!(matches!(refused, Err(MemoryError::NotSealed(_))));
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(Mapping::of_memfd(file.into(), 0, 1), Err(MemoryError::NotSealed(_))));
    let (socket, _peer) = UnixStream::pair().unwrap();
    assert!(matches!(Mapping::of_memfd(socket.into(), 0, 1), Err(MemoryError::NotSealed(_))));
    let map = |offset, len| Mapping::of_memfd(memfd(PAGE, libc::F_SEAL_SHRINK), offset, len);
    assert!(matches!(map(0, PAGE as u64 + 1), Err(MemoryError::BeyondBacking { .. })));
    assert!(matches!(map(u64::MAX, 2), Err(MemoryError::BeyondBacking { .. })));
    assert!(matches!(map(PAGE as u64, 0), Err(MemoryError::Empty)));
    assert!(matches!(Mapping::anonymous(0), Err(MemoryError::Empty)));
}

#[test]
fn a_memfd_sealed_against_writing_is_read_only() {
    let (mut memory, pd) = memory();
    let fd = memfd(PAGE, libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE);
    let mapping = Arc::new(Mapping::of_memfd(fd, 0, PAGE as u64).unwrap());
    assert!(!mapping.is_writable() && !mapping.write(0, b"x") && mapping.atomic(0).is_none());
    let backing = Backing::Shared(mapping, 0);
    let refused = memory.register(pd, backing.clone(), 0, 8, Access::LOCAL_WRITE);
    assert!(matches!(refused, Err(MemoryError::ReadOnly)));
    memory.register(pd, backing, 0, 8, Access::REMOTE_READ).unwrap();
}

#[test]
fn a_process_is_read_at_once_and_written_at_flush() {
    let (mut memory, pd) = memory();
    let mut bytes = vec![0_u8; 2000];
    let key = own(&mut memory, pd, &this_process(), &mut bytes);
    memory.write_remote(pd, QPN, key, 10, b"staged ").unwrap();
    memory.write_remote(pd, QPN, key, 17, b"writes").unwrap();
    let at_once = bytes.iter().all(|byte| *byte == 0);
    memory.flush();
    assert!(at_once, "writes wait for flush");
    assert_eq!(&bytes[10..23], b"staged writes");

    // Reading sees what was written before, flushed or not, and elements arrive in order.
    memory.write_remote(pd, QPN, key, 1000, b"new").unwrap();
    let sges = [(1000, 3), (12, 4), (1999, 1), (10, 600)].map(|(addr, length)| Sge { addr, length, lkey: key });
    let mut list = GatherList::default();
    list.push_bytes(b">");
    memory.gather(pd, &sges, 1, 9, &mut list).unwrap();
    assert_eq!(bytes_of_list(&memory, &list), b">ewaged\0st"[..]);
    assert_eq!(list.pieces().len(), 1);
    assert_eq!(memory.poll_write_failure(), None);
}

#[test]
fn more_spans_than_one_call_takes_all_arrive() {
    let (mut memory, pd) = memory();
    let mut bytes = vec![0_u8; 4000];
    let key = own(&mut memory, pd, &this_process(), &mut bytes);
    for i in 0..2000_u64 {
        memory.write_remote(pd, QPN, key, 2 * i, &[i as u8 | 1]).unwrap();
    }
    memory.flush();
    assert!((0..2000).all(|i| bytes[2 * i] == i as u8 | 1 && bytes[2 * i + 1] == 0));
    let sges: Vec<Sge> = (0..200).map(|i| Sge { addr: 20 * i, length: 1, lkey: key }).collect();
    let mut list = GatherList::default();
    memory.gather(pd, &sges, 0, 200, &mut list).unwrap();
    assert_eq!(bytes_of_list(&memory, &list), (0..200).map(|i| (10 * i) as u8 | 1).collect::<Vec<_>>());
}

#[test]
fn atomics_on_a_process_see_staged_writes() {
    let (mut memory, pd) = memory();
    let mut words = vec![0_u64; 3];
    let address = words.as_mut_ptr().expose_provenance() as u64;
    let process = this_process();
    let at = |address| Backing::Process(ProcessMemory::new(Arc::clone(&process), address));
    let key = memory.register(pd, at(address), 0, 24, ALL).unwrap().rkey;
    memory.write_remote(pd, QPN, key, 8, &41_u64.to_ne_bytes()).unwrap();
    assert_eq!(memory.atomic(pd, QPN, key, 8, AtomicOp::FetchAdd { add: 1 }), Ok(41));
    let swap = AtomicOp::CompareSwap { compare: 42, swap: 7 };
    assert_eq!(memory.atomic(pd, QPN, key, 8, swap), Ok(42));
    assert_eq!(memory.atomic(pd, QPN, key, 8, swap), Ok(7));
    memory.flush();
    assert_eq!(words, [0, 7, 0]);
    let shifted = memory.register(pd, at(address + 4), 0, 16, ALL).unwrap().rkey;
    assert!(matches!(memory.atomic(pd, QPN, shifted, 0, swap), Err(AccessError::Misaligned { .. })));
}

#[test]
fn copies_between_processes_and_shared_memory() {
    let (mut memory, pd) = memory();
    let process = this_process();
    let (mut from, mut to) = (vec![0_u8; 200_000], vec![0_u8; 200_000]);
    from.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7) as u8);
    let a = own(&mut memory, pd, &process, &mut from);
    let b = own(&mut memory, pd, &process, &mut to);
    let (shared, mapping) = region(&mut memory, pd, 0, 200_000, ALL);
    let remote = |rkey, va| Target::Remote { pd, qpn: QPN, rkey, va };
    let read = |rkey, va| Source::Remote { pd, qpn: QPN, rkey, va };

    memory.copy(&read(a, 5), &remote(b, 10), 150_000).unwrap();
    memory.flush();
    assert_eq!(to[10..150_010], from[5..150_005]);
    memory.copy(&read(a, 1), &remote(shared, 2), 100_000).unwrap();
    assert_eq!(bytes_of(&mapping, 2, 100_000), from[1..100_001]);
    memory.copy(&read(shared, 50_000), &remote(b, 0), 50_000).unwrap();
    assert_eq!(to[..50_000], from[49_999..99_999]);
}

/// Three pages of this process, of which the middle one is unmapped.
struct HoledPages(u64);

impl HoledPages {
    fn new() -> Self {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, of which one page is unmapped again; nothing refers to it but the kernel.
        let base = unsafe {
            let base = libc::mmap(core::ptr::null_mut(), 3 * PAGE, protection, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::munmap(base.byte_add(PAGE), PAGE), 0);
            base.expose_provenance() as u64
        };
        Self(base)
    }

    /// Registers some of the pages' bytes, of which the first and the last are mapped.
    fn register(&self, memory: &mut Memory, pd: PdId, offset: usize, length: usize) -> Result<u32, MemoryError> {
        let backing = Backing::Process(ProcessMemory::new(this_process(), self.0 + offset as u64));
        memory.register(pd, backing, 0, length as u64, ALL).map(|keys| keys.rkey)
    }
}

impl Drop for HoledPages {
    fn drop(&mut self) {
        for page in [0, 2 * PAGE as u64] {
            let left = core::ptr::with_exposed_provenance_mut((self.0 + page) as usize);
            // SAFETY: one of the two pages that are left of our mapping.
            let unmapped = unsafe { libc::munmap(left, PAGE) };
            assert_eq!(unmapped, 0);
        }
    }
}

#[test]
fn unmapped_pages_fail_their_own_region_only() {
    let (mut memory, pd) = memory();
    let pages = HoledPages::new();
    let refused = pages.register(&mut memory, pd, PAGE, 10);
    assert!(matches!(refused, Err(MemoryError::Unreachable(Unreachable::Unmapped))));
    // Both ends are mapped, so the hole shows when it is used.
    let holed = pages.register(&mut memory, pd, 0, 3 * PAGE).unwrap();
    let mut bytes = vec![0_u8; 64];
    let good = own(&mut memory, pd, &this_process(), &mut bytes);

    let mut list = GatherList::default();
    list.push_bytes(b"kept");
    let cause = Unreachable::Unmapped;
    let unreachable = AccessError::Unreachable { key: holed, cause };
    assert_eq!(memory.gather_remote(pd, QPN, holed, PAGE as u64 - 4, 8, &mut list), Err(unreachable));
    assert_eq!(bytes_of_list(&memory, &list), b"kept");

    memory.write_remote(pd, QPN, holed, PAGE as u64, b"lost").unwrap();
    memory.write_remote(pd, QPN, good, 0, b"arrives").unwrap();
    memory.write_remote(pd, QPN, holed, 0, b"skipped").unwrap();
    memory.flush();
    assert_eq!(memory.poll_write_failure(), Some(WriteFailure { pd, key: holed, cause }));
    assert_eq!(memory.poll_write_failure(), None);
    assert_eq!(&bytes[..7], b"arrives");
    assert_eq!(memory.write_remote(pd, QPN, holed, 0, b"x"), Err(unreachable));
    memory.deregister(holed).unwrap();
}

#[test]
fn a_region_does_not_answer_for_its_neighbour() {
    let (mut memory, pd) = memory();
    let pages = HoledPages::new();
    let before = pages.register(&mut memory, pd, 0, PAGE - 4).unwrap();
    let holed = pages.register(&mut memory, pd, PAGE - 4, 2 * PAGE).unwrap();
    // The second write follows the first without a gap, and leaves the mapped page after four bytes.
    memory.write_remote(pd, QPN, before, PAGE as u64 - 8, b"last").unwrap();
    memory.write_remote(pd, QPN, holed, 0, b"overhang").unwrap();
    memory.flush();
    let cause = Unreachable::Unmapped;
    assert_eq!(memory.poll_write_failure(), Some(WriteFailure { pd, key: holed, cause }));
    let mut list = GatherList::default();
    memory.gather_remote(pd, QPN, before, PAGE as u64 - 8, 4, &mut list).unwrap();
    assert_eq!(bytes_of_list(&memory, &list), b"last");
}

#[test]
fn a_process_that_exits_is_told_from_one_that_lives() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let process = Arc::new(Process::open(i32::try_from(child.id()).unwrap()).unwrap());
    assert!(process.is_alive());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!process.is_alive());
    let (mut memory, pd) = memory();
    let refused = memory.register(pd, Backing::Process(ProcessMemory::new(process, 0x1000)), 0, 8, ALL);
    assert!(matches!(refused, Err(MemoryError::Unreachable(Unreachable::Exited))));
}

#[test]
fn a_peer_is_known_by_its_socket() {
    let (socket, _peer) = UnixStream::pair().unwrap();
    let process = Process::of_peer(socket.as_fd(), Trust::Vouched).unwrap();
    assert_eq!(process.pid(), i32::try_from(std::process::id()).unwrap());
    assert!(process.is_alive());
    assert!(Process::open(-1).is_err());
    assert!(Process::of_peer(memfd(1, 0).as_fd(), Trust::Vouched).is_err());
}
