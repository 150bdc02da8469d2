//! Strangers: clients that write shared memory and messages by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::engine::{CircuitPlan, CongestionPolicy, EngineConfig, Worker};
use crate::ipc::abi::{AttachArea, CQE_SHARED, Cqe, QueueGeometry, SendWqe, completion_area_bytes};
use crate::ipc::protocol::{
    Call, Handle, Hello, HelloAnswer, QpAttributesRecord, QpCapabilitiesRecord, Reply, Request, Response, decode,
    encode,
};
use crate::ipc::ring::copy_in;
use crate::ipc::shm::{Area, Side};
use crate::path::HoldPolicy;
use crate::time::Duration;
use crate::transport::{AttrMask, BurstLimits, TransportLimits};
use crate::wire::DEFAULT_PKEY;
use core::net::{IpAddr, Ipv4Addr};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::os::fd::AsFd;

const NOW: Instant = Instant::from_ns(1_000_000);

struct House {
    engine: Engine,
    server: Server,
}

impl House {
    fn new() -> Self {
        let config = EngineConfig {
            addresses: vec![IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1))],
            pkeys: vec![DEFAULT_PKEY],
            worker: Worker::ONLY,
            key_secret: [7; 32],
            qpn_seed: 7,
            burst: BurstLimits::default(),
            limits: TransportLimits::default(),
            hold: HoldPolicy::default(),
            congestion: CongestionPolicy::default(),
            circuits: CircuitPlan::default(),
        };
        let server = ServerConfig { device_name: "test0".into(), firmware: "1".into(), node_guid: 1 };
        Self { engine: Engine::new(config, Instant::ZERO), server: Server::new(server, 1) }
    }

    fn send(&mut self, id: SessionId, bytes: &[u8]) -> Result<Answer, Ended> {
        self.server.handle_message(NOW, id, bytes, Vec::new(), &mut self.engine)
    }

    fn turn(&mut self) -> usize {
        let posted = self.server.poll_doorbells(NOW, &mut self.engine, 1000);
        let mut burst = crate::transport::Burst::new(BurstLimits::default());
        while self.engine.poll_transmit(NOW, &mut burst) {}
        self.server.deliver(NOW, &mut self.engine);
        posted
    }

    fn attach(&mut self) -> Stranger {
        let (ours, _theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let id = self.server.attach(Peer::of(ours.as_fd()).unwrap(), Permissions::default()).unwrap();
        let answer = self.send(id, &Hello { lowest: 1, highest: 9 }.encode()).unwrap();
        assert!(matches!(HelloAnswer::decode(&answer.bytes), Ok(HelloAnswer::Welcome { version: 1, .. })));
        let area = Area::map(&answer.fds[0], size_of::<AttachArea>(), Side::Client).unwrap();
        let [_, doorbell, events] = <[OwnedFd; 3]>::try_from(answer.fds).unwrap();
        Stranger { id, area, doorbell, events }
    }
}

struct Stranger {
    id: SessionId,
    area: Area,
    doorbell: OwnedFd,
    events: OwnedFd,
}

struct StrangersQp {
    handle: Handle,
    qpn: u32,
    area: Area,
    send: QueueGeometry,
    cq: Area,
    depth: u32,
}

impl Stranger {
    fn ask(&self, house: &mut House, call: Call) -> (Reply, Vec<OwnedFd>) {
        let answer = house.send(self.id, &encode(&Request { id: 5, call }).unwrap()).unwrap();
        let response: Response = decode(&answer.bytes).unwrap();
        assert_eq!(response.id, 5);
        (response.result.unwrap(), answer.fds)
    }

    /// A queue pair in RTS that is connected to itself, and its completion queue.
    fn qp(&self, house: &mut House) -> StrangersQp {
        let (Reply::Pd { pd }, _) = self.ask(house, Call::AllocatePd) else { panic!() };
        let call = Call::CreateCompletionQueue { entries: 16, channel: None };
        let (Reply::CompletionQueue { cq, depth }, fds) = self.ask(house, call) else { panic!() };
        let cq_area = Area::map(&fds[0], completion_area_bytes(depth), Side::Client).unwrap();
        let capabilities = QpCapabilitiesRecord {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let call =
            Call::CreateQueuePair { pd, kind: 2, send_cq: cq, recv_cq: cq, srq: None, capabilities, signal_all: true };
        let (Reply::QueuePair { qp, qpn, send, area_bytes, .. }, fds) = self.ask(house, call) else { panic!() };
        let area = Area::map(&fds[0], area_bytes as usize, Side::Client).unwrap();
        self.connect(house, qp, qpn);
        StrangersQp { handle: qp, qpn, area, send, cq: cq_area, depth }
    }

    fn connect(&self, house: &mut House, qp: Handle, qpn: u32) {
        let mut attributes = QpAttributesRecord {
            state: 1,
            port: 1,
            path_mtu: 3,
            dest_qpn: qpn,
            timeout: 14,
            access: 2,
            ..QpAttributesRecord::default()
        };
        attributes.address.gid = crate::wire::Gid::from(house.engine.addresses()[0]).0;
        let to_init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let to_rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let to_rts = AttrMask::STATE
            | AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [(1, to_init), (2, to_rtr), (3, to_rts)] {
            attributes.state = state;
            let call = Call::ModifyQueuePair { qp, mask: mask.bits(), attributes };
            let (reply, _) = self.ask(house, call);
            assert_eq!(reply, Reply::QueuePairModified { state, srq_returned: 0 });
        }
    }
}

impl StrangersQp {
    /// Writes slot `index` and tells that there are `producer` of them.
    fn post(&self, stranger: &Stranger, index: u32, wqe: SendWqe, producer: u32) -> bool {
        let ring = self.area.work_ring(&self.send).unwrap();
        let words: [u64; 6] = zerocopy::transmute!(wqe);
        copy_in(&words, ring.slot(index));
        ring.publish(producer);
        stranger.area.bell().unwrap().ring(self.handle)
    }

    fn completion(&self, index: u32) -> Option<Cqe> {
        let words = self.cq.completion_ring(self.depth).unwrap().peek(index)?;
        Some(zerocopy::transmute!(words))
    }
}

/// A request that needs no memory: nothing is sent as it goes to the queue pair itself and finds no receive, but it is taken.
fn wqe(wr_id: u64) -> SendWqe {
    SendWqe { wr_id, opcode: 2, flags: 2, count: 0, immediate: 0, target: [0; 4] }
}

#[test]
fn the_first_message_is_a_hello() {
    let mut house = House::new();
    let (ours, _theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    let attach =
        |house: &mut House| house.server.attach(Peer::of(ours.as_fd()).unwrap(), Permissions::default()).unwrap();
    let id = attach(&mut house);
    let request = encode(&Request { id: 1, call: Call::QueryDevice }).unwrap();
    assert_eq!(house.send(id, &request).unwrap_err(), Ended::NotHello);
    house.server.detach(NOW, id, &mut house.engine);
    assert_eq!(house.send(id, &request).unwrap_err(), Ended::Unknown);

    let id = attach(&mut house);
    let answer = house.send(id, &Hello { lowest: 8, highest: 9 }.encode()).unwrap();
    assert!(answer.hang_up);
    let Ok(HelloAnswer::Refused { reason, .. }) = HelloAnswer::decode(&answer.bytes) else { panic!() };
    assert!(reason.contains("the daemon is too old"), "{reason}");
}

#[test]
fn gibberish_ends_the_session_and_what_it_had() {
    let mut house = House::new();
    let stranger = house.attach();
    let _qp = stranger.qp(&mut house);
    assert_eq!(house.engine.qp_count(), 1);
    let ended = house.send(stranger.id, &[0xff; 30]).unwrap_err();
    assert_eq!(ended, Ended::Malformed { bytes: 30, version: 1 });
    house.server.detach(NOW, stranger.id, &mut house.engine);
    assert_eq!((house.engine.qp_count(), house.server.sessions().count()), (0, 0));
    assert_eq!(house.engine.memory().usage(stranger.id.owner()), crate::memory::Usage::default());
    // The daemon's end of the event pipe is closed: the client can tell.
    assert_eq!(nix::unistd::read(&stranger.events, &mut [0; 16]), Ok(0));
}

#[test]
fn a_producer_that_lies_ends_its_session_and_no_other() {
    for lie in [17, 1000, u32::MAX, 1 << 31] {
        let mut house = House::new();
        let (liar, honest) = (house.attach(), house.attach());
        let (bad, good) = (liar.qp(&mut house), honest.qp(&mut house));
        bad.post(&liar, 0, wqe(1), lie);
        good.post(&honest, 0, wqe(2), 1);
        house.turn();
        let (id, ended) = house.server.poll_ended().expect("the liar is found");
        assert_eq!(id, liar.id);
        assert!(matches!(ended, Ended::Lie { handle, .. } if handle == bad.handle), "{ended}");
        assert_eq!(house.server.poll_ended(), None);
        assert_eq!(house.server.session(honest.id).unwrap().counters().sends, 1);
        assert_eq!(house.engine.qp_count(), 1);
    }
}

#[test]
fn a_producer_that_goes_back_lies() {
    let mut house = House::new();
    let stranger = house.attach();
    let qp = stranger.qp(&mut house);
    qp.post(&stranger, 0, wqe(1), 2);
    house.turn();
    qp.post(&stranger, 0, wqe(1), 1);
    house.turn();
    assert!(house.server.poll_ended().is_some());
}

#[test]
fn a_consumer_that_lies_ends_its_session() {
    let mut house = House::new();
    let stranger = house.attach();
    let qp = stranger.qp(&mut house);
    qp.cq.completion_ring(qp.depth).unwrap().release(1);
    // A completion is needed for the daemon to look.
    qp.post(&stranger, 0, SendWqe { opcode: 77, ..wqe(1) }, 1);
    house.turn();
    let (_, ended) = house.server.poll_ended().expect("the liar is found");
    assert!(matches!(ended, Ended::Lie { .. }), "{ended}");
}

#[test]
fn a_request_without_meaning_fails_its_queue_pair_in_the_ways_of_a_nic() {
    for bad in [
        SendWqe { opcode: 77, ..wqe(0) },
        // More entries than the slot has room for.
        SendWqe { count: 2, ..wqe(0) },
        SendWqe { count: u16::MAX, ..wqe(0) },
        SendWqe { flags: 8 | 2, count: 17, ..wqe(0) },
        // A READ on a queue pair that may have none under way.
        SendWqe { opcode: 4, ..wqe(0) },
        // An atomic of no bytes.
        SendWqe { opcode: 5, ..wqe(0) },
    ] {
        let mut house = House::new();
        let stranger = house.attach();
        let qp = stranger.qp(&mut house);
        qp.post(&stranger, 0, SendWqe { wr_id: 41, ..bad }, 1);
        house.turn();
        let cqe = qp.completion(0).expect("a completion");
        assert_eq!((cqe.wr_id, cqe.status, cqe.qpn, cqe.queue, cqe.wqe), (41, 2, qp.qpn, qp.handle, 0), "{bad:?}");
        assert_eq!(cqe.flags & CQE_SHARED, 0);
        let (Reply::QueuePairState { attributes }, _) =
            stranger.ask(&mut house, Call::QueryQueuePair { qp: qp.handle })
        else {
            panic!()
        };
        assert_eq!(attributes.state, 6, "in the error state");
        assert_eq!(house.server.session(stranger.id).unwrap().counters().bad_work_requests.total(), 1);
    }
}

#[test]
fn a_client_that_floods_waits_for_its_turn() {
    let mut house = House::new();
    let (flooder, modest) = (house.attach(), house.attach());
    let (many, one) = ([0; 16].map(|_| flooder.qp(&mut house)), modest.qp(&mut house));
    for qp in &many {
        for n in 0..16 {
            qp.post(&flooder, n, wqe(n.into()), n + 1);
        }
    }
    one.post(&modest, 0, wqe(1), 1);
    // Fewer than the flooder has: yet the other is served in the same turn.
    let posted = house.server.poll_doorbells(NOW, &mut house.engine, 100);
    assert!((65..=100).contains(&posted), "{posted} posted");
    let sends = |house: &House, of: &Stranger| house.server.session(of.id).unwrap().counters().sends;
    assert_eq!(sends(&house, &modest), 1);
    while house.server.poll_doorbells(NOW, &mut house.engine, 100) > 0 {}
    assert_eq!(sends(&house, &flooder), 256);
}

#[test]
fn rings_for_queues_that_are_not_there_cost_nothing() {
    let mut house = House::new();
    let stranger = house.attach();
    let area = stranger.area.attach().unwrap();
    for word in area.leaves.iter().chain(&area.summary) {
        word.store(u64::MAX, core::sync::atomic::Ordering::Relaxed);
    }
    assert_eq!(house.turn(), 0);
    assert!(house.server.may_sleep());
}

#[test]
fn a_sleeping_worker_is_woken_by_the_doorbell() {
    let mut house = House::new();
    let stranger = house.attach();
    let qp = stranger.qp(&mut house);
    assert!(!qp.post(&stranger, 0, wqe(1), 1), "the worker is awake");
    assert!(!house.server.may_sleep(), "there is work");
    house.turn();
    assert!(house.server.may_sleep());
    assert!(qp.post(&stranger, 1, wqe(2), 2), "the worker sleeps");
    assert!(!qp.post(&stranger, 2, wqe(3), 3), "somebody woke it already");
    // What both sides call the doorbell is one thing.
    nix::unistd::write(&stranger.doorbell, &1u64.to_ne_bytes()).unwrap();
    let mut count = [0; 8];
    assert_eq!(nix::unistd::read(house.server.doorbell(stranger.id).unwrap(), &mut count), Ok(8));
    house.server.woke();
    assert_eq!(house.turn(), 2);
}

#[test]
fn a_request_that_was_done_tells_its_latency_and_one_that_failed_does_not() {
    let latency = |house: &House| {
        let mut worker = crate::counters::Publisher::new();
        worker.set_histogram(house.server.latency());
        let seen = worker.published().histogram(house.server.latency().distribution());
        (seen.count(), seen.sum)
    };
    let mut house = House::new();
    let stranger = house.attach();
    let qp = stranger.qp(&mut house);
    // WRITEs of no bytes, around the ring; the last one makes no sense and fails.
    for n in 0..20 {
        qp.post(&stranger, n, SendWqe { opcode: if n < 19 { 0 } else { 77 }, ..wqe(n.into()) }, n + 1);
        let taken = NOW + Duration::from_millis(n.into());
        assert_eq!(house.server.poll_doorbells(taken, &mut house.engine, 100), 1);
        while house.engine.poll_transmit(taken, &mut crate::transport::Burst::new(BurstLimits::default())) {}
        house.server.deliver(taken + Duration::from_micros(3), &mut house.engine);
        assert_eq!(qp.completion(n).unwrap().status, if n < 19 { 0 } else { 2 });
        qp.cq.completion_ring(qp.depth).unwrap().release(n + 1);
    }
    assert_eq!(latency(&house), (19, 19 * 3_000));
    let before = house.server.totals();
    assert_eq!((before.sends, before.completions, before.bad_work_requests.malformed), (19, 20, 1));
    house.server.detach(NOW, stranger.id, &mut house.engine);
    assert_eq!(house.server.totals(), before, "totals only grow");
}

#[test]
fn handles_of_others_mean_nothing() {
    let mut house = House::new();
    let (owner, thief) = (house.attach(), house.attach());
    let _qp = owner.qp(&mut house);
    for call in [
        Call::DestroyQueuePair { qp: 0 },
        Call::QueryQueuePair { qp: 0 },
        Call::DestroyCompletionQueue { cq: 0 },
        Call::DeallocatePd { pd: 0 },
        Call::DestroyChannel { channel: 0 },
        Call::DestroySharedReceiveQueue { srq: 0 },
        Call::AllocateWindow { pd: 0 },
        Call::DeregisterMemory { lkey: 0 },
        Call::DeallocateWindow { rkey: 0 },
    ] {
        let answer = house.send(thief.id, &encode(&Request { id: 1, call }).unwrap()).unwrap();
        let response: Response = decode(&answer.bytes).unwrap();
        assert!(matches!(response.result, Err(Refusal::Unknown { .. })), "{response:?}");
    }
    assert_eq!(house.server.session(thief.id).unwrap().counters().refused.total(), 9);
    assert_eq!(house.engine.qp_count(), 1);
}

#[test]
fn events_that_nobody_reads_are_counted_and_block_nobody() {
    let mut house = House::new();
    let stranger = house.attach();
    let event = crate::transport::Event::PortActive;
    let Some(session) = house.server.sessions.first_mut() else { panic!() };
    let mut desk = Desk { now: NOW, engine: &mut house.engine, common: &mut house.server.common };
    for _ in 0..100_000 {
        session.handle_event(&mut desk, &event);
    }
    assert!(session.counters().events_lost > 0);
    drop(stranger);
    session.handle_event(&mut desk, &event);
}
