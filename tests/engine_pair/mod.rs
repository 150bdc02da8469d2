//! Two devices with a client each, and a wire between them that allocates nothing once it is warm. For tests, the bench and the fuzz
//! target of the engine.

use holdfast::engine::{CircuitPlan, CongestionPolicy, Engine, EngineConfig, Worker};
use holdfast::memory::{Access, Backing, Keys, Mapping, PdId, Sge};
use holdfast::path::HoldPolicy;
use holdfast::time::{Duration, Instant};
use holdfast::transport::{
    AddressVector, AttrMask, Burst, BurstLimits, Completion, CqId, Data, QpAttributes, QpCapabilities, QpInit, QpState,
    QpType, RecvRequest, SendFlags, SendOp, SendRequest, SrqId, TransportLimits,
};
use holdfast::wire::{PathMtu, Psn, Qpn};
use std::net::IpAddr;
use std::sync::Arc;

/// The owner of everything in a [`Device`].
pub const CLIENT: u64 = 7;
/// Bytes of each device's memory, which begins at address 0.
pub const MEMORY: usize = 1 << 20;

const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// One engine and what its client made.
pub struct Device {
    pub engine: Engine,
    pub address: IpAddr,
    pub pd: PdId,
    pub cq: CqId,
    pub memory: Arc<Mapping>,
    pub keys: Keys,
    burst: Burst,
}

impl Device {
    pub fn new(host: u8) -> Self {
        let address = IpAddr::from([198, 18, 0, host]);
        let config = EngineConfig {
            addresses: vec![address],
            pkeys: vec![0xffff],
            worker: Worker::ONLY,
            key_secret: [host; 32],
            qpn_seed: u64::from(host) << 16,
            burst: BurstLimits::default(),
            limits: TransportLimits::default(),
            hold: HoldPolicy::default(),
            congestion: CongestionPolicy::default(),
            circuits: CircuitPlan::default(),
        };
        let burst = Burst::new(config.burst);
        let mut engine = Engine::new(config, Instant::ZERO);
        let memory = Arc::new(Mapping::anonymous(MEMORY).unwrap());
        let pd = engine.memory_mut().create_pd(CLIENT);
        let (backing, access) = (Backing::Shared(Arc::clone(&memory), 0), RIGHTS | Access::LOCAL_WRITE);
        let keys = engine.memory_mut().register(pd, backing, 0, MEMORY as u64, access).unwrap();
        let cq = engine.create_cq(CLIENT, 1024).unwrap();
        Self { engine, address, pd, cq, memory, keys, burst }
    }

    pub fn create(&mut self, kind: QpType, srq: Option<SrqId>) -> Qpn {
        let caps = QpCapabilities { max_send_wr: 64, max_recv_wr: 64, ..QpCapabilities::default() };
        let init = QpInit { pd: self.pd, kind, send_cq: self.cq, recv_cq: self.cq, srq, caps, sq_sig_all: true };
        self.engine.create_qp(CLIENT, &init).unwrap()
    }

    /// Brings a queue pair to RTS; a connected one towards `peer`.
    pub fn connect(&mut self, qpn: Qpn, peer: (IpAddr, Qpn)) {
        let kind = self.engine.qp(qpn).unwrap().init().kind;
        let (mut init, mut rtr) = (AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT, AttrMask::STATE);
        let mut rts = AttrMask::STATE | AttrMask::SQ_PSN;
        if kind.is_datagram() {
            init |= AttrMask::QKEY;
        } else {
            init |= AttrMask::ACCESS_FLAGS;
            rtr |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        }
        if kind == QpType::Rc {
            rtr |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            rts |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        }
        let attributes = QpAttributes {
            access: RIGHTS,
            av: AddressVector::between(self.address, peer.0, 0xc001),
            path_mtu: PathMtu::B1024,
            dest_qpn: peer.1,
            rq_psn: Psn::new(100),
            sq_psn: Psn::new(100),
            timeout: 10,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            qkey: 0x1111,
            ..QpAttributes::default()
        };
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            self.engine.modify_qp(Instant::ZERO, qpn, &QpAttributes { state, ..attributes }, mask).unwrap();
        }
    }

    pub fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: self.keys.lkey }
    }

    /// Posts a signalled request with data from (or to) `sge`.
    pub fn send(&mut self, now: Instant, qpn: Qpn, wr_id: u64, op: SendOp, sge: Sge) {
        let data = Data::Sges(&[sge]);
        let request = SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, datagram: None };
        self.engine.post_send(now, qpn, &request).unwrap();
    }

    pub fn receive(&mut self, now: Instant, qpn: Qpn, wr_id: u64, sge: Sge) {
        self.engine.post_recv(now, qpn, &RecvRequest { wr_id, sges: &[sge] }).unwrap();
    }

    /// Takes completions; says how many.
    pub fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.engine.poll_cq(self.cq, out)
    }

    /// Hands one burst over to `to`; how many packets.
    fn carry(&mut self, to: &mut Self, now: Instant) -> usize {
        if !self.engine.poll_transmit(now, &mut self.burst) {
            return 0;
        }
        for datagram in self.burst.datagrams() {
            to.engine.handle_datagram(now, &datagram);
        }
        usize::from(self.burst.packet_count())
    }
}

/// Two devices and an RC connection between them.
pub struct Pair {
    pub a: Device,
    pub b: Device,
    pub qpn_a: Qpn,
    pub qpn_b: Qpn,
    pub now: Instant,
}

impl Pair {
    pub fn new() -> Self {
        let (mut a, mut b) = (Device::new(1), Device::new(2));
        let (qpn_a, qpn_b) = (a.create(QpType::Rc, None), b.create(QpType::Rc, None));
        a.connect(qpn_a, (b.address, qpn_b));
        b.connect(qpn_b, (a.address, qpn_a));
        Self { a, b, qpn_a, qpn_b, now: Instant::from_ns(1000) }
    }

    /// Carries packets to and fro until both are silent; says how many.
    pub fn exchange(&mut self) -> usize {
        let mut packets = 0;
        loop {
            let carried = self.a.carry(&mut self.b, self.now) + self.b.carry(&mut self.a, self.now);
            if carried == 0 {
                return packets;
            }
            packets += carried;
            self.now += Duration::from_micros(5);
        }
    }
}
