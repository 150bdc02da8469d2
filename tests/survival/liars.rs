//! Clients that lie, flood or never finish what they began: it costs them only.

use crate::rng::Rng;
use crate::stage::{PATIENCE, Pair, until};
use crate::traffic::Traffic;
use holdfast::io::namespace::run_test;
use holdfast::ipc::abi::{AttachArea, VERSION, completion_area_bytes};
use holdfast::ipc::client::*;
use holdfast::ipc::protocol::{
    Call, Hello, HelloAnswer, MAX_MESSAGE_BYTES, MemorySource, QpAttributesRecord, QpCapabilitiesRecord, Reply,
    Request, Response, decode, encode, socket,
};
use holdfast::ipc::shm::{Area, Side};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, socket as new_socket};
use socket2::SockRef;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A client that keeps to no rules.
struct Liar {
    socket: OwnedFd,
    attach: Option<Area>,
    doorbell: Option<OwnedFd>,
    next_id: u32,
}

impl Liar {
    /// Connects and says nothing.
    fn connect(path: &Path) -> Self {
        let socket = new_socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        SockRef::from(&socket).set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, attach: None, doorbell: None, next_id: 0 }
    }

    /// Attaches as it should.
    fn attach(path: &Path) -> Self {
        let mut liar = Self::connect(path);
        liar.say(&Hello { lowest: VERSION, highest: VERSION }.encode(), &[]).unwrap();
        let welcome = socket::receive(&liar.socket, MsgFlags::empty()).unwrap();
        assert!(matches!(HelloAnswer::decode(&welcome.bytes), Ok(HelloAnswer::Welcome { .. })));
        let [area, doorbell, _events] = <[OwnedFd; 3]>::try_from(welcome.fds).unwrap();
        liar.attach = Some(Area::map(&area, size_of::<AttachArea>(), Side::Writer).unwrap());
        liar.doorbell = Some(doorbell);
        liar
    }

    fn say(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        socket::send(&self.socket, bytes, fds, MsgFlags::MSG_DONTWAIT)
    }

    /// Whether it has been shown the door.
    fn is_expelled(&self) -> bool {
        loop {
            match socket::receive(&self.socket, MsgFlags::empty()) {
                Ok(message) if message.bytes.is_empty() => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Asks; `None` if it was refused.
    fn ask(&mut self, call: Call) -> Option<(Reply, Vec<OwnedFd>)> {
        let id = self.next_id;
        self.next_id += 1;
        self.say(&encode(&Request { id, call }).unwrap(), &[]).unwrap();
        let answer = socket::receive(&self.socket, MsgFlags::empty()).unwrap();
        let response: Response = decode(&answer.bytes).unwrap();
        assert_eq!(response.id, id);
        response.result.ok().map(|reply| (reply, answer.fds))
    }
}

/// Runs `mischief` against the second daemon of a pair while an innocent client's traffic is verified; then everything that the
/// mischief took must have come back.
fn while_others_work(name: &str, mischief: impl FnOnce(&Path) + Send) {
    run_test(name, || {
        let pair = Pair::start("");
        let mut innocent = Traffic::new(pair.attach());
        innocent.round();
        let victim = &pair.daemons[1];
        until("the innocent client is counted", || victim.metrics().total("holdfast_memory_regions") == 1);
        let baseline = victim.holdings();
        innocent.play_during(|| mischief(&victim.path("attach")));
        until("all comes back that the liars had", || victim.holdings() == baseline);
    });
}

#[test]
fn who_only_knocks_takes_no_more_than_a_place() {
    while_others_work("liars::who_only_knocks_takes_no_more_than_a_place", |path| {
        let silent: Vec<Liar> = (0..300).map(|_| Liar::connect(path)).collect();
        for _ in 0..300 {
            drop(Liar::connect(path));
        }
        for words in
            [&b""[..], b"HFST", b"GET / HTTP/1.1\r\n\r\n", &[0xff; MAX_MESSAGE_BYTES], &[0; MAX_MESSAGE_BYTES + 1]]
        {
            // A worker that is still busy with those above turns newcomers away unheard.
            until("a greeting is heard", || {
                let liar = Liar::connect(path);
                let heard = liar.say(words, &[]).is_ok();
                assert!(!heard || liar.is_expelled(), "{} bytes of greeting", words.len());
                heard
            });
        }
        drop(silent);
    });
}

#[test]
fn garbage_over_the_socket_ends_the_session() {
    while_others_work("liars::garbage_over_the_socket_ends_the_session", |path| {
        let mut rng = Rng::new(11);
        let null = File::open("/dev/null").unwrap();
        for length in [1, 7, 64, 1000, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1] {
            let liar = Liar::attach(path);
            let mut bytes = vec![0; length];
            rng.fill(&mut bytes);
            bytes[0] |= 0x80;
            // A number that does not end is no number of a request.
            bytes.iter_mut().take(10).for_each(|byte| *byte |= 0x80);
            let fds = vec![null.as_fd(); 1 + length % 200];
            liar.say(&bytes, &fds).unwrap();
            assert!(liar.is_expelled(), "{length} bytes of garbage");
        }
    });
}

#[test]
fn forged_handles_and_huge_wishes_are_refused() {
    while_others_work("liars::forged_handles_and_huge_wishes_are_refused", |path| {
        let mut rng = Rng::new(12);
        let mut liar = Liar::attach(path);
        for _ in 0..3000 {
            let handle = if rng.permille(500) { rng.below(8) as u32 } else { rng.next() as u32 };
            let call = wish(&mut rng, handle);
            // Some are granted, as to anybody; the bounds hold.
            let _ = liar.ask(call);
        }
        assert!(liar.ask(Call::QueryDevice).is_some(), "it is still attached: it has only wished");
    });
}

fn wish(rng: &mut Rng, handle: u32) -> Call {
    let huge = rng.next() as u32 | 1 << 24;
    let capabilities = QpCapabilitiesRecord {
        max_send_wr: huge,
        max_recv_wr: rng.next() as u32,
        max_send_sge: rng.next() as u32,
        max_recv_sge: rng.next() as u32,
        max_inline_data: rng.next() as u32,
    };
    let some = rng.permille(500).then_some(handle);
    match rng.below(16) {
        0 => Call::DeallocatePd { pd: handle },
        1 => Call::RegisterMemory {
            pd: handle,
            source: MemorySource::Shared { offset: rng.next() },
            iova: rng.next(),
            length: rng.next(),
            access: rng.next() as u32,
        },
        2 => Call::RegisterMemory {
            pd: handle,
            source: MemorySource::Process { address: rng.next() },
            iova: rng.next(),
            length: rng.next(),
            access: rng.next() as u32,
        },
        3 => Call::DeregisterMemory { lkey: handle },
        4 => Call::DeallocateWindow { rkey: handle },
        5 => Call::DestroyChannel { channel: handle },
        6 => Call::CreateCompletionQueue { entries: huge, channel: some },
        7 => Call::ResizeCompletionQueue { cq: handle, entries: rng.next() as u32 },
        8 => Call::DestroyCompletionQueue { cq: handle },
        9 => Call::CreateSharedReceiveQueue { pd: handle, max_wr: huge, max_sge: huge, limit: huge },
        10 => Call::CreateQueuePair {
            pd: handle,
            kind: rng.below(12) as u32,
            send_cq: handle,
            recv_cq: rng.below(4) as u32,
            srq: some,
            capabilities,
            signal_all: true,
        },
        11 => Call::ModifyQueuePair { qp: handle, mask: rng.next() as u32, attributes: QpAttributesRecord::default() },
        12 => Call::DestroyQueuePair { qp: handle },
        13 => Call::QueryGid { index: handle },
        14 => Call::AllocatePd,
        _ => Call::CreateChannel,
    }
}

#[test]
fn garbage_in_shared_memory_hurts_nobody_else() {
    while_others_work("liars::garbage_in_shared_memory_hurts_nobody_else", |path| {
        let mut rng = Rng::new(13);
        for cycle in 0..60 {
            let mut liar = Liar::attach(path);
            let areas = furnish(&mut liar);
            for _ in 0..200 {
                for (area, words) in &areas {
                    let words = area.words(0, *words).unwrap();
                    // In half of the cycles indices that are off by little, else anything anywhere.
                    for _ in 0..8 {
                        let value = if cycle % 2 == 0 { rng.next() } else { rng.below(40) };
                        rng.pick(words).store(value, Ordering::Relaxed);
                    }
                }
                ring(&liar, rng.next());
            }
        }
    });
}

/// A completion queue, a shared receive queue and two queue pairs; their areas, with the attach area, and how many words they have.
fn furnish(liar: &mut Liar) -> Vec<(Area, usize)> {
    let Some((Reply::Pd { pd }, _)) = liar.ask(Call::AllocatePd) else { panic!("no domain") };
    let mut areas = Vec::new();
    let mut keep = |fd: &OwnedFd, bytes: usize| areas.push((Area::map(fd, bytes, Side::Writer).unwrap(), bytes / 8));
    let Some((Reply::CompletionQueue { cq, depth }, fds)) =
        liar.ask(Call::CreateCompletionQueue { entries: 64, channel: None })
    else {
        panic!("no completion queue")
    };
    keep(&fds[0], completion_area_bytes(depth));
    let wish = Call::CreateSharedReceiveQueue { pd, max_wr: 16, max_sge: 2, limit: 0 };
    let Some((Reply::SharedReceiveQueue { srq, area_bytes, .. }, fds)) = liar.ask(wish) else { panic!("no SRQ") };
    keep(&fds[0], area_bytes as usize);
    for srq in [None, Some(srq)] {
        let capabilities = QpCapabilitiesRecord { max_send_wr: 16, max_recv_wr: 16, ..QpCapabilitiesRecord::default() };
        let wish = Call::CreateQueuePair { pd, kind: 2, send_cq: cq, recv_cq: cq, srq, capabilities, signal_all: true };
        let Some((Reply::QueuePair { area_bytes, .. }, fds)) = liar.ask(wish) else { panic!("no queue pair") };
        keep(&fds[0], area_bytes as usize);
    }
    areas
}

/// Rings doorbells, of queues that are there and others.
fn ring(liar: &Liar, which: u64) {
    let bell = liar.attach.as_ref().unwrap().bell().unwrap();
    for queue in [0, 1, 2, which as u32 % (1 << 16)] {
        let _ = bell.ring(queue);
    }
    let _ = nix::unistd::write(liar.doorbell.as_ref().unwrap(), &1u64.to_ne_bytes());
}

#[test]
fn who_asks_and_does_not_listen_is_expelled() {
    while_others_work("liars::who_asks_and_does_not_listen_is_expelled", |path| {
        for _ in 0..10 {
            let liar = Liar::attach(path);
            let request = encode(&Request { id: 0, call: Call::QueryDevice }).unwrap();
            // Both ways have room for some; then one of the two is full for good.
            until("it is expelled", || match liar.say(&request, &[]) {
                Ok(()) => false,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
                Err(error) => {
                    assert!(matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)), "{error}");
                    true
                }
            });
        }
    });
}

#[test]
fn doorbells_rung_without_end_take_no_turn_from_others() {
    while_others_work("liars::doorbells_rung_without_end_take_no_turn_from_others", |path| {
        let mut liar = Liar::attach(path);
        let _areas = furnish(&mut liar);
        for n in 0..200_000 {
            ring(&liar, n);
        }
    });
}

#[test]
fn descriptors_of_the_wrong_kind_are_refused() {
    while_others_work("liars::descriptors_of_the_wrong_kind_are_refused", |path| {
        let context = Context::connect(path).unwrap();
        let pd = context.allocate_pd().unwrap();
        let memfd = |flags, bytes| {
            let fd = memfd_create("liar", flags).unwrap();
            nix::unistd::ftruncate(&fd, bytes).unwrap();
            fd
        };
        let sealing = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let short = memfd(sealing, 4095);
        fcntl(&short, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        let read_only = memfd(sealing, 4096);
        fcntl(&read_only, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE)).unwrap();
        let (pipe, _write_end) = nix::unistd::pipe().unwrap();
        let file: OwnedFd = File::open(std::env::current_exe().unwrap()).unwrap().into();
        let wrong: Vec<(&str, OwnedFd)> = vec![
            ("unsealed", memfd(MFdFlags::MFD_CLOEXEC, 4096)),
            ("not sealed against shrinking", memfd(sealing, 4096)),
            ("short", short),
            ("sealed against writing", read_only),
            ("a pipe", pipe),
            ("a file", file),
            ("/dev/zero", File::open("/dev/zero").unwrap().into()),
            ("a directory", File::open("/").unwrap().into()),
            ("an epoll", nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty()).unwrap().0),
        ];
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        for (what, fd) in &wrong {
            let refused = pd.register_memfd(fd.as_fd(), 0, 4096, 0, rights);
            assert!(matches!(refused, Err(Error::Refused(_))), "{what}: {refused:?}");
        }
        // Neither what the daemon made nor what it was given gets smaller under it.
        let region = pd.allocate(4096, rights).unwrap();
        assert!(region.write(0, &[1]));
        let mut liar = Liar::attach(path);
        let wish = Call::CreateCompletionQueue { entries: 4, channel: None };
        let Some((Reply::CompletionQueue { .. }, fds)) = liar.ask(wish) else { panic!("no completion queue") };
        assert_eq!(nix::unistd::ftruncate(&fds[0], 0), Err(nix::errno::Errno::EPERM));
    });
}

#[test]
fn more_than_the_limits_is_refused_and_the_limits_can_be_reached() {
    while_others_work("liars::more_than_the_limits_is_refused_and_the_limits_can_be_reached", |path| {
        let context = Context::connect(path).unwrap();
        let pd = context.allocate_pd().unwrap();
        let device = context.device().clone();
        let channels: Vec<_> = (0..).map_while(|_| context.create_channel().ok()).take(2000).collect();
        assert!(channels.len() < 2000, "channels are without limit");
        let refused = context.create_cq(device.max_cqe + 1, None);
        assert!(matches!(refused, Err(Error::Refused(_))));
        let queues: Vec<_> = (0..64).map_while(|_| context.create_cq(device.max_cqe, None).ok()).collect();
        assert!(queues.len() < 64, "queue memory is without limit");
        let counted = AtomicU64::new(0);
        let windows: Vec<_> = (0..)
            .map_while(|_| pd.allocate_window().ok())
            .inspect(|_| _ = counted.fetch_add(1, Ordering::Relaxed))
            .take(1 << 17)
            .collect();
        assert_eq!((windows.len(), counted.into_inner()), (device.max_mw as usize, u64::from(device.max_mw)));
    });
}
