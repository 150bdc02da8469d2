//! One end of the network: an engine, the memory of its only client, and its completion queue.

use crate::layout::Places;
use crate::link::{RECEIVE, cut};
use crate::model::Receive;
use crate::network::{Frame, Network};
use crate::rng::Rng;
use holdfast::engine::{Engine, EngineConfig};
use holdfast::memory::{Access, Backing, Keys, Mapping, PdId, Sge};
use holdfast::time::Instant;
use holdfast::transport::{Burst, Completion, CqId, QpCapabilities, QpInit, QpType, RecvRequest, SrqId};
use holdfast::wire::{Datagram, IpHeader, Qpn};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// Rights of a region that peers may use for everything.
pub const EVERYTHING: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// The only client of a node.
const CLIENT: u64 = 1;
/// Completions that a node's queue holds.
const CQ_ENTRIES: u32 = 2048;

pub struct Node {
    pub engine: Engine,
    pub address: IpAddr,
    pub pd: PdId,
    pub cq: CqId,
    pub memory: Arc<Mapping>,
    /// Receives that several queue pairs share.
    pub srq: Option<SharedReceives>,
    /// Where the client sees its memory, and its key for it.
    base: u64,
    lkey: u32,
    burst: Burst,
    /// Its port does not see the IP ID of what it receives.
    id_hidden: bool,
}

/// A shared receive queue and what stands in it.
pub struct SharedReceives {
    pub id: SrqId,
    places: Places,
    posted: Vec<Receive>,
    next_wr: u64,
}

impl Node {
    pub fn new(rng: &mut Rng, config: EngineConfig, memory_len: usize, now: Instant, id_hidden: bool) -> Self {
        let address = config.addresses[0];
        let burst = Burst::new(config.burst);
        let mut engine = Engine::new(config, now);
        let memory = Arc::new(Mapping::anonymous(memory_len).expect("memory"));
        let pd = engine.memory_mut().create_pd(CLIENT);
        let cq = engine.create_cq(CLIENT, CQ_ENTRIES).expect("completion queue");
        let mut node = Self { engine, address, pd, cq, memory, srq: None, base: 0, lkey: 0, burst, id_hidden };
        let base = rng.below(1 << 40) << 12;
        node.lkey = node.register(0..memory_len, base, Access::LOCAL_WRITE).lkey;
        node.base = base;
        node
    }

    /// Registers a part of the memory at `iova`.
    pub fn register(&mut self, part: Range<usize>, iova: u64, access: Access) -> Keys {
        let backing = Backing::Shared(Arc::clone(&self.memory), part.start as u64);
        self.engine.memory_mut().register(self.pd, backing, iova, part.len() as u64, access).expect("region")
    }

    /// Makes a shared receive queue.
    pub fn share_receives(&mut self, places: Places, depth: u32) {
        let id = self.engine.create_srq(CLIENT, self.pd, depth, 4).expect("shared receive queue");
        self.srq = Some(SharedReceives { id, places, posted: Vec::new(), next_wr: 1 << 32 });
    }

    /// Posts a shared receive, if there is room.
    pub fn post_shared(&mut self, rng: &mut Rng) {
        let Some(srq) = &mut self.srq else { return };
        let Some(place) = srq.places.take() else { return };
        let receive = Receive { wr_id: srq.next_wr | RECEIVE, area: cut(rng, place) };
        srq.next_wr += 1;
        let id = srq.id;
        let sges = self.sges(&receive.area);
        self.engine
            .post_srq_recv(id, &RecvRequest { wr_id: receive.wr_id, sges: &sges })
            .expect("room for a shared receive");
        if let Some(srq) = &mut self.srq {
            srq.posted.push(receive);
        }
    }

    /// Takes out the shared receive that a completion names.
    pub fn take_shared(&mut self, wr_id: u64) -> Option<Receive> {
        let srq = self.srq.as_mut()?;
        let receive = srq.posted.iter().position(|r| r.wr_id == wr_id).map(|at| srq.posted.remove(at))?;
        srq.places.give(&receive.area);
        Some(receive)
    }

    pub fn create_qp(&mut self, kind: QpType, caps: QpCapabilities, shared_receives: bool) -> Qpn {
        let srq = self.srq.as_ref().filter(|_| shared_receives).map(|s| s.id);
        let init = QpInit { pd: self.pd, kind, send_cq: self.cq, recv_cq: self.cq, srq, caps, sq_sig_all: false };
        self.engine.create_qp(CLIENT, &init).expect("queue pair")
    }

    /// Scatter/gather entries of these pieces.
    pub fn sges(&self, pieces: &[Range<usize>]) -> Vec<Sge> {
        let sge = |r: &Range<usize>| Sge { addr: self.base + r.start as u64, length: r.len() as u32, lkey: self.lkey };
        pieces.iter().map(sge).collect()
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.memory.write(at as u64, bytes), "outside of the node's memory");
    }

    pub fn poll(&mut self) -> Option<Completion> {
        let mut out = [Completion::default()];
        (self.engine.poll_cq(self.cq, &mut out) == 1).then_some(out[0])
    }

    pub fn receive(&mut self, now: Instant, mut frame: Frame) {
        if let (true, IpHeader::V4(ip)) = (self.id_hidden, &mut frame.ip) {
            ip.id = None;
        }
        self.engine.handle_datagram(now, &frame.datagram());
    }

    /// Puts everything that the engine wants to send onto the network. Says how many packets.
    pub fn transmit(&mut self, now: Instant, network: &mut Network) -> usize {
        let mut packets = 0;
        while self.engine.poll_transmit(now, &mut self.burst) {
            for Datagram { ip, source_port, bytes } in self.burst.datagrams() {
                network.send(now, Frame { ip, source_port, bytes: bytes.to_vec() });
                packets += 1;
            }
        }
        packets
    }
}
