//! Two devices with a client each, and the wire between them.

use crate::engine::{Engine, EngineConfig, Worker};
use crate::memory::{Access, Backing, Keys, Mapping, PdId, Sge};
use crate::time::{Duration, Instant};
use crate::transport::{
    AddressVector, AttrMask, Burst, BurstLimits, Completion, CqId, Data, QpAttributes, QpCapabilities, QpInit, QpState,
    QpType, RecvRequest, SendFlags, SendOp, SendRequest, SrqId, TransportLimits,
};
use crate::wire::{Datagram, IpHeader, PathMtu, Psn, Qpn};
use core::net::IpAddr;
use std::sync::Arc;

/// The owner of everything in [`Device`].
pub(super) const CLIENT: u64 = 7;
/// Bytes of each device's memory, which begins at address 0.
pub(super) const MEMORY: usize = 1 << 20;
const EVERYTHING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// One engine and what its client made.
pub(super) struct Device {
    pub(super) engine: Engine,
    pub(super) address: IpAddr,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) memory: Arc<Mapping>,
    pub(super) keys: Keys,
}

/// A packet on its way.
pub(super) struct Frame {
    pub(super) ip: IpHeader,
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    pub(super) fn datagram(&self) -> Datagram<'_> {
        Datagram { ip: self.ip, source_port: 0xc001, bytes: &self.bytes }
    }
}

impl Device {
    pub(super) fn new(host: u8) -> Self {
        let address = IpAddr::from([198, 18, 0, host]);
        let config = EngineConfig {
            addresses: vec![address],
            pkeys: vec![0xffff],
            worker: Worker::ONLY,
            key_secret: [host; 32],
            qpn_seed: u64::from(host) << 16,
            burst: BurstLimits::default(),
            limits: TransportLimits::default(),
        };
        let mut engine = Engine::new(config, Instant::ZERO);
        let memory = Arc::new(Mapping::anonymous(MEMORY).unwrap());
        let pd = engine.memory_mut().create_pd(CLIENT);
        let backing = Backing::Shared(Arc::clone(&memory), 0);
        let keys = engine.memory_mut().register(pd, backing, 0, MEMORY as u64, EVERYTHING).unwrap();
        let cq = engine.create_cq(CLIENT, 1024).unwrap();
        Self { engine, address, pd, cq, memory, keys }
    }

    pub(super) fn create(&mut self, kind: QpType, srq: Option<SrqId>) -> Qpn {
        let caps = QpCapabilities { max_send_wr: 64, max_recv_wr: 64, ..QpCapabilities::default() };
        let init = QpInit { pd: self.pd, kind, send_cq: self.cq, recv_cq: self.cq, srq, caps, sq_sig_all: true };
        self.engine.create_qp(CLIENT, &init).unwrap()
    }

    /// Brings a queue pair to RTS; a connected one towards `peer`.
    pub(super) fn connect(&mut self, qpn: Qpn, peer: (IpAddr, Qpn)) {
        let rc = self.engine.qp(qpn).unwrap().init().kind;
        let (mut init, mut rtr, mut rts) = (AttrMask::STATE | AttrMask::PKEY_INDEX, AttrMask::STATE, AttrMask::STATE);
        rts |= AttrMask::SQ_PSN;
        match rc {
            QpType::Ud | QpType::Gsi => init |= AttrMask::PORT | AttrMask::QKEY,
            _ => {
                init |= AttrMask::PORT | AttrMask::ACCESS_FLAGS;
                rtr |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
            }
        }
        if rc == QpType::Rc {
            rtr |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            rts |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        }
        let attributes = QpAttributes {
            access: EVERYTHING.difference(Access::LOCAL_WRITE),
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

    pub(super) fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: self.keys.lkey }
    }

    /// Posts a signalled request with data from (or to) `sge`.
    pub(super) fn send(&mut self, now: Instant, qpn: Qpn, wr_id: u64, op: SendOp, sge: Sge) {
        let request = SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Sges(&[sge]), datagram: None };
        self.engine.post_send(now, qpn, &request).unwrap();
    }

    pub(super) fn receive(&mut self, now: Instant, qpn: Qpn, wr_id: u64, sge: Sge) {
        self.engine.post_recv(now, qpn, &RecvRequest { wr_id, sges: &[sge] }).unwrap();
    }

    /// All packets that it has to send, burst by burst.
    pub(super) fn bursts(&mut self, now: Instant) -> Vec<Vec<Frame>> {
        let mut burst = Burst::new(BurstLimits::default());
        let mut out = Vec::new();
        while self.engine.poll_transmit(now, &mut burst) {
            let mut bytes = Vec::new();
            self.engine.memory().copy_list(burst.gather(), &mut bytes).unwrap();
            out.push(burst.datagrams(&bytes).map(|d| Frame { ip: d.ip, bytes: d.bytes.to_vec() }).collect());
        }
        out
    }

    pub(super) fn completions(&mut self) -> Vec<Completion> {
        let mut out = vec![Completion::default(); 64];
        let n = self.engine.poll_cq(self.cq, &mut out);
        out.truncate(n);
        out
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.memory.write(at, bytes));
    }

    pub(super) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(at, &mut bytes));
        bytes
    }
}

/// Two devices and an RC connection between them.
pub(super) struct Pair {
    pub(super) a: Device,
    pub(super) b: Device,
    pub(super) qpn_a: Qpn,
    pub(super) qpn_b: Qpn,
    pub(super) now: Instant,
}

impl Pair {
    pub(super) fn new() -> Self {
        let (mut a, mut b) = (Device::new(1), Device::new(2));
        let (qpn_a, qpn_b) = (a.create(QpType::Rc, None), b.create(QpType::Rc, None));
        a.connect(qpn_a, (b.address, qpn_b));
        b.connect(qpn_b, (a.address, qpn_a));
        Self { a, b, qpn_a, qpn_b, now: Instant::from_ns(1000) }
    }

    /// Carries packets to and fro until both are silent; says how many.
    pub(super) fn exchange(&mut self) -> usize {
        let mut packets = 0;
        loop {
            let (from_a, from_b) = (self.a.bursts(self.now), self.b.bursts(self.now));
            if from_a.is_empty() && from_b.is_empty() {
                return packets;
            }
            for frame in from_a.iter().flatten() {
                self.b.engine.handle_datagram(self.now, &frame.datagram());
                packets += 1;
            }
            for frame in from_b.iter().flatten() {
                self.a.engine.handle_datagram(self.now, &frame.datagram());
                packets += 1;
            }
            self.now += Duration::from_micros(5);
        }
    }
}
