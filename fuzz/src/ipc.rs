//! A client that lies: any bytes as messages, anything anywhere in shared memory, at any time.

use core::net::{IpAddr, Ipv4Addr};
use core::sync::atomic::Ordering;
use holdfast::engine::{CircuitPlan, CongestionPolicy, Engine, EngineConfig, Worker};
use holdfast::ipc::abi::{AttachArea, completion_area_bytes};
use holdfast::ipc::protocol::{
    Call, Hello, MemorySource, QpAttributesRecord, QpCapabilitiesRecord, Reply, Request, Response, decode, encode,
};
use holdfast::ipc::server::{Peer, Permissions, Server, ServerConfig, SessionId};
use holdfast::ipc::shm::{Area, NewArea, Side};
use holdfast::memory::Usage;
use holdfast::path::HoldPolicy;
use holdfast::time::Instant;
use holdfast::transport::{Burst, BurstLimits, TransportLimits};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Work requests that a turn may post.
const BUDGET: usize = 64;

/// No lie makes the daemon panic or stay, and when the client is gone nothing of it is left.
pub fn run(data: &[u8]) {
    let mut house = House::new();
    let mut input = Input(data);
    house.furnish();
    while let Some(step) = input.byte() {
        house.step(step, &mut input);
    }
    house.turn();
    house.leave();
}

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        self.take(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn small(&mut self) -> u32 {
        self.byte().unwrap_or(0).into()
    }
}

struct House {
    engine: Engine,
    server: Server,
    id: SessionId,
    alive: bool,
    now: Instant,
    areas: Vec<Shared>,
    /// The key of a region of 4096 bytes at address 0.
    lkey: u32,
    burst: Burst,
    _socket: (UnixStream, UnixStream),
}

/// An area and its 64-bit words.
struct Shared {
    area: Area,
    words: usize,
}

impl House {
    fn new() -> Self {
        let config = EngineConfig {
            addresses: vec![IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1))],
            pkeys: vec![0xffff],
            worker: Worker::ONLY,
            key_secret: [1; 32],
            qpn_seed: 1,
            burst: BurstLimits::default(),
            limits: TransportLimits::default(),
            hold: HoldPolicy::default(),
            congestion: CongestionPolicy::default(),
            circuits: CircuitPlan::default(),
        };
        let server = ServerConfig { device_name: "fuzz0".into(), firmware: "0".into(), node_guid: 0 };
        let mut server = Server::new(server, 1);
        let socket = UnixStream::pair().expect("a socket pair");
        let peer = Peer::of(socket.0.as_fd()).expect("our own credentials");
        let permissions = Permissions {
            max_queue_depth: 64,
            max_completion_queue_depth: 64,
            max_registered_bytes: 1 << 20,
            max_queue_memory_bytes: 1 << 20,
            ..Permissions::default()
        };
        let id = server.attach(peer, permissions).expect("descriptors");
        Self {
            engine: Engine::new(config, Instant::ZERO),
            server,
            id,
            alive: true,
            now: Instant::from_ns(1),
            areas: Vec::new(),
            lkey: 0,
            burst: Burst::new(BurstLimits::default()),
            _socket: socket,
        }
    }

    /// What an honest client would have made first, so that lies have something to be about.
    fn furnish(&mut self) {
        let greeting = self.say(&Hello { lowest: 1, highest: 1 }.encode(), Vec::new());
        if let Some((_, fds)) = greeting {
            self.keep(&fds[0], size_of::<AttachArea>());
        }
        let NewArea { fd, .. } = Area::create("fuzz", 4096, Side::Writer).expect("a memfd");
        self.call(Call::AllocatePd, vec![]);
        let source = MemorySource::Shared { offset: 0 };
        let register = Call::RegisterMemory { pd: 0, source, iova: 0, length: 4096, access: 0x1f };
        if let Some(Reply::Region { lkey, .. }) = self.call(register, vec![fd]) {
            self.lkey = lkey;
        }
        self.call(Call::CreateChannel, vec![]);
        for _ in 0..2 {
            self.call(Call::CreateCompletionQueue { entries: 16, channel: Some(0) }, vec![]);
        }
        self.call(Call::CreateSharedReceiveQueue { pd: 0, max_wr: 8, max_sge: 2, limit: 1 }, vec![]);
        let capabilities = QpCapabilitiesRecord {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        let mut qpns = Vec::new();
        for (kind, srq) in [(2, None), (2, Some(0)), (3, None), (4, None)] {
            let call =
                Call::CreateQueuePair { pd: 0, kind, send_cq: 0, recv_cq: 1, srq, capabilities, signal_all: true };
            if let Some(Reply::QueuePair { qp, qpn, .. }) = self.call(call, vec![]) {
                qpns.push((qp, qpn, kind));
            }
        }
        for (at, &(qp, _, kind)) in qpns.iter().enumerate() {
            // The two of kind RC with each other, the others with themselves.
            let dest_qpn = qpns[if at < 2 { 1 - at } else { at }].1;
            self.connect(qp, dest_qpn, kind);
        }
    }

    fn connect(&mut self, qp: u32, dest_qpn: u32, kind: u32) {
        let mut attributes = QpAttributesRecord {
            access: 0xf,
            port: 1,
            qkey: 1,
            path_mtu: 1,
            timeout: 14,
            retry_count: 1,
            rnr_retry: 1,
            dest_qpn,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..QpAttributesRecord::default()
        };
        attributes.address.gid = Ipv4Addr::new(198, 18, 0, 1).to_ipv6_mapped().octets();
        let masks = match kind {
            2 => [0x39, 0x12_9181, 0x1_2e01],
            3 => [0x39, 0x10_1181, 0x1_0001],
            _ => [0x71, 0x1, 0x1_0001],
        };
        for (state, mask) in (1..).zip(masks) {
            attributes.state = state;
            self.call(Call::ModifyQueuePair { qp, mask, attributes }, vec![]);
        }
    }

    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        match step % 8 {
            0 => {
                let length = input.small() as usize;
                self.say(input.take(length), Vec::new());
            }
            1 => {
                let length = input.small() as usize;
                if let Ok(call) = decode::<Call>(input.take(length)) {
                    let memfd = Area::create("fuzz", 4096, Side::Writer).map(|new| new.fd);
                    self.call(call, memfd.into_iter().collect());
                }
            }
            2 => {
                let (area, at, value) = (input.small() as usize, input.number(), input.number());
                self.poke(area, at, value);
            }
            3 => {
                let (area, at, length) = (input.small() as usize, input.number(), input.small());
                for word in 0..u64::from(length % 16) {
                    let value = input.number();
                    self.poke(area, at.wrapping_add(word), value);
                }
            }
            4 => {
                let queue = input.small();
                if let Some(bell) = self.areas.first().and_then(|shared| shared.area.bell()) {
                    let _ = bell.ring(queue);
                }
            }
            5 => self.now = Instant::from_ns(self.now.as_ns().saturating_add(input.number() >> 24)),
            // Half of what there is to do is to let the daemon look.
            _ => self.turn(),
        }
    }

    /// Writes one word of an area. No input can know a key: all ones in the upper half stand for one, as in an entry of a
    /// scatter list.
    fn poke(&mut self, area: usize, at: u64, value: u64) {
        let value = if value >> 32 == 0xffff_ffff { u64::from(self.lkey) << 32 | value & 0xffff_ffff } else { value };
        let count = self.areas.len().max(1);
        let words =
            self.areas.get(area % count).and_then(|shared| shared.area.words(0, shared.words)).unwrap_or_default();
        let at = usize::try_from(at % words.len().max(1) as u64).unwrap_or(0);
        if let Some(word) = words.get(at) {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn keep(&mut self, fd: &OwnedFd, bytes: usize) {
        if let Ok(area) = Area::map(fd, bytes, Side::Writer) {
            self.areas.push(Shared { area, words: bytes / 8 });
        }
    }

    /// Says something; keeps the areas that the answer brings.
    fn say(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        if !self.alive {
            return None;
        }
        match self.server.handle_message(self.now, self.id, bytes, fds, &mut self.engine) {
            Ok(answer) => Some((answer.bytes, answer.fds)),
            Err(ended) => {
                drop(ended.to_string());
                self.server.detach(self.now, self.id, &mut self.engine);
                self.alive = false;
                None
            }
        }
    }

    fn call(&mut self, call: Call, fds: Vec<OwnedFd>) -> Option<Reply> {
        let (bytes, fds) = self.say(&encode(&Request { id: 0, call }).ok()?, fds)?;
        match decode::<Response>(&bytes).expect("the daemon speaks its own protocol").result {
            Ok(reply) => {
                let bytes = match &reply {
                    Reply::CompletionQueue { depth, .. } => completion_area_bytes(*depth),
                    Reply::SharedReceiveQueue { area_bytes, .. } | Reply::QueuePair { area_bytes, .. } => {
                        usize::try_from(*area_bytes).unwrap_or(0)
                    }
                    _ => 0,
                };
                if let Some(fd) = fds.first().filter(|_| bytes > 0) {
                    self.keep(fd, bytes);
                }
                Some(reply)
            }
            Err(refusal) => {
                drop(refusal.to_string());
                None
            }
        }
    }

    fn turn(&mut self) {
        self.engine.handle_timeout(self.now);
        let posted = self.server.poll_doorbells(self.now, &mut self.engine, BUDGET);
        assert!(posted <= BUDGET, "{posted} posted of a budget of {BUDGET}");
        // A burst to itself does not come out; one to elsewhere is lost.
        for _ in 0..BUDGET {
            if !self.engine.poll_transmit(self.now, &mut self.burst) {
                break;
            }
        }
        self.server.deliver(self.now, &mut self.engine);
        while let Some((id, ended)) = self.server.poll_ended() {
            assert_eq!(id, self.id);
            drop(ended.to_string());
            self.alive = false;
        }
        if self.server.may_sleep() {
            self.server.woke();
        }
    }

    fn leave(mut self) {
        self.server.detach(self.now, self.id, &mut self.engine);
        assert_eq!(self.server.sessions().count(), 0);
        assert_eq!(self.engine.qp_count(), 0);
        assert_eq!(self.engine.memory().usage(self.id.owner()), Usage::default());
    }
}
