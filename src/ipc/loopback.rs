//! A daemon in a thread of the calling program, for tests of programs that use the [`client`](super::client): no privileges, no
//! configuration, no network.
//!
//! It has one device or several, which are linked by a wire that loses nothing. Everything but the packet I/O is what `holdfastd`
//! does: sessions, shared memory, engines, RoCEv2 packets with their ICRC.

use super::protocol::{Refusal, socket};
use super::server::{Peer, Permissions, Server, ServerConfig, SessionId};
use crate::engine::{CircuitPlan, CongestionPolicy, Engine, EngineConfig, Worker};
use crate::path::HoldPolicy;
use crate::time::{Duration, Instant};
use crate::transport::{Burst, BurstLimits, TransportLimits};
use crate::wire::DEFAULT_PKEY;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, listen};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Work requests that a device takes in one turn.
const BUDGET: usize = 256;
/// Messages that a client is answered in one turn.
const MESSAGES: usize = 64;
/// Bursts that a device sends in one turn.
const BURSTS: usize = 16;

/// A running daemon; it stops when dropped.
#[derive(Debug)]
pub struct Loopback {
    folder: PathBuf,
    sockets: Vec<PathBuf>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Loopback {
    /// One device with ordinary clients' permissions.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start() -> io::Result<Self> {
        Self::with_devices(1, &Permissions::default())
    }

    /// So many devices on one wire, with the addresses 198.18.0.1, 198.18.0.2, … and 2001:2::1, 2001:2::2, …
    ///
    /// # Errors
    /// What the kernel says.
    pub fn with_devices(count: u8, permissions: &Permissions) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("holdfast-loopback-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?;
        let (clients, queue_pairs) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), wake, clients, queue_pairs });
        // Dropped, and the folder removed, if anything fails from here on.
        let mut daemon = Self { folder, sockets: Vec::new(), shared, thread: None };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&daemon.shared.wake, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        let mut devices = Vec::new();
        for index in 1..=count {
            let path = daemon.folder.join(format!("{index}.sock"));
            devices.push(Device::new(index, &path, permissions, &epoll)?);
            daemon.sockets.push(path);
        }
        let shared = Arc::clone(&daemon.shared);
        let wire = Wire { devices, epoll, shared, clock: std::time::Instant::now() };
        daemon.thread = Some(std::thread::Builder::new().name("holdfast-loopback".into()).spawn(move || wire.run())?);
        Ok(daemon)
    }

    /// The attach socket of the first device.
    pub fn socket(&self) -> &Path {
        self.sockets.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Clients that are attached now.
    pub fn clients(&self) -> usize {
        self.shared.clients.load(Ordering::Relaxed)
    }

    /// Queue pairs that exist now.
    pub fn queue_pairs(&self) -> usize {
        self.shared.queue_pairs.load(Ordering::Relaxed)
    }

    /// The attach sockets of all devices.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.shared.wake.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// All devices and what connects them.
struct Wire {
    devices: Vec<Device>,
    epoll: Epoll,
    shared: Arc<Shared>,
    clock: std::time::Instant,
}

/// What the thread and its owner share: the wish to stop and what wakes the thread for it, and how much there is.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    wake: EventFd,
    clients: AtomicUsize,
    queue_pairs: AtomicUsize,
}

struct Device {
    engine: Engine,
    server: Server,
    permissions: Permissions,
    listener: OwnedFd,
    clients: Vec<(OwnedFd, SessionId)>,
    burst: Burst,
}

impl Wire {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = Instant::from_ns(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let mut busy = false;
            for index in 0..self.devices.len() {
                busy |= self.turn(now, index);
            }
            self.count();
            if busy {
                continue;
            }
            if self.devices.iter_mut().all(|device| device.server.may_sleep()) {
                self.sleep(now);
            }
            self.devices.iter_mut().for_each(|device| device.server.woke());
        }
    }

    fn count(&self) {
        let clients = self.devices.iter().map(|device| device.server.sessions().count()).sum();
        let queue_pairs = self.devices.iter().map(|device| device.engine.qp_count()).sum();
        self.shared.clients.store(clients, Ordering::Relaxed);
        self.shared.queue_pairs.store(queue_pairs, Ordering::Relaxed);
    }

    /// One turn of a device; whether there was anything to do.
    fn turn(&mut self, now: Instant, index: usize) -> bool {
        let Some(device) = self.devices.get_mut(index) else { return false };
        device.serve(now, &self.epoll);
        device.engine.handle_timeout(now);
        let posted = device.server.poll_doorbells(now, &mut device.engine, BUDGET);
        let mut bursts = 0;
        while bursts < BURSTS && self.transmit(now, index) {
            bursts += 1;
        }
        let Some(device) = self.devices.get_mut(index) else { return false };
        let delivered = device.server.deliver(now, &mut device.engine);
        posted + bursts + delivered > 0
    }

    /// Carries one burst over the wire.
    fn transmit(&mut self, now: Instant, index: usize) -> bool {
        let Some(sender) = self.devices.get_mut(index) else { return false };
        if !sender.engine.poll_transmit(now, &mut sender.burst) {
            return false;
        }
        let to = sender.burst.flow().destination;
        let mut burst = Burst::new(BurstLimits::default());
        core::mem::swap(&mut burst, &mut sender.burst);
        if let Some(receiver) = self.devices.iter_mut().find(|d| d.engine.addresses().contains(&to)) {
            for datagram in burst.datagrams() {
                receiver.server.handle_datagram(now, &mut receiver.engine, &datagram);
            }
        }
        if let Some(sender) = self.devices.get_mut(index) {
            sender.burst = burst;
        }
        true
    }

    fn sleep(&self, now: Instant) {
        let deadline = self.devices.iter().filter_map(|device| device.engine.poll_timeout()).min();
        let timeout = deadline.map_or(EpollTimeout::NONE, |deadline| {
            let left: Duration = deadline.since(now);
            EpollTimeout::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(EpollTimeout::MAX)
        });
        let mut events = [EpollEvent::empty(); 8];
        // Whatever woke us: the next turn looks everywhere.
        let _ = self.epoll.wait(&mut events, timeout);
    }
}

impl Device {
    fn new(index: u8, path: &Path, permissions: &Permissions, epoll: &Epoll) -> io::Result<Self> {
        let listener = nix::sys::socket::socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?;
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&listener, Backlog::new(64)?)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        let v6 = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, index.into());
        let config = EngineConfig {
            addresses: vec![IpAddr::V4(Ipv4Addr::new(198, 18, 0, index)), IpAddr::V6(v6)],
            pkeys: vec![DEFAULT_PKEY],
            worker: Worker::ONLY,
            key_secret: [index; 32],
            qpn_seed: u64::from(index),
            burst: BurstLimits::default(),
            limits: TransportLimits::default(),
            hold: HoldPolicy::default(),
            congestion: CongestionPolicy::default(),
            circuits: CircuitPlan::default(),
        };
        let server = ServerConfig {
            device_name: format!("loopback{}", index - 1),
            firmware: env!("CARGO_PKG_VERSION").into(),
            node_guid: index.into(),
        };
        Ok(Self {
            engine: Engine::new(config, Instant::ZERO),
            server: Server::new(server, 1),
            permissions: permissions.clone(),
            listener,
            clients: Vec::new(),
            burst: Burst::new(BurstLimits::default()),
        })
    }

    /// Lets clients in, answers them, and lets them go.
    fn serve(&mut self, now: Instant, epoll: &Epoll) {
        while let Ok(client) = accept4(&self.listener, SockFlag::SOCK_CLOEXEC) {
            if let Ok(session) = self.attach(&client, epoll) {
                self.clients.push((client, session));
            }
        }
        let (server, engine) = (&mut self.server, &mut self.engine);
        while let Some((ended, _)) = server.poll_ended() {
            self.clients.retain(|(_, session)| *session != ended);
        }
        self.clients.retain(|(client, session)| {
            let stays = answer(now, client, *session, server, engine);
            if !stays {
                server.detach(now, *session, engine);
            }
            stays
        });
    }

    fn attach(&mut self, client: &OwnedFd, epoll: &Epoll) -> Result<SessionId, Refusal> {
        let session = self.server.attach(Peer::of(client.as_fd())?, self.permissions.clone())?;
        let watch = |fd: BorrowedFd<'_>, flags| epoll.add(fd, EpollEvent::new(flags, 0));
        let watched = watch(client.as_fd(), EpollFlags::EPOLLIN).and_then(|()| match self.server.doorbell(session) {
            Some(doorbell) => watch(doorbell, EpollFlags::EPOLLIN | EpollFlags::EPOLLET),
            None => Ok(()),
        });
        watched.map_err(|errno| Refusal::system("watch a client", &errno.into())).map(|()| session)
    }
}

/// Answers what a client has asked; whether it stays.
fn answer(now: Instant, client: &OwnedFd, session: SessionId, server: &mut Server, engine: &mut Engine) -> bool {
    for _ in 0..MESSAGES {
        let message = match socket::receive(client, MsgFlags::MSG_DONTWAIT) {
            Ok(message) if message.bytes.is_empty() => return false,
            Ok(message) => message,
            Err(error) => return error.raw_os_error() == Some(Errno::EAGAIN as i32),
        };
        let Ok(answer) = server.handle_message(now, session, &message.bytes, message.fds, engine) else { return false };
        let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(AsFd::as_fd).collect();
        if socket::send(client, &answer.bytes, &fds, MsgFlags::MSG_DONTWAIT).is_err() || answer.hang_up {
            return false;
        }
    }
    // There may be more: the socket stays readable.
    true
}
