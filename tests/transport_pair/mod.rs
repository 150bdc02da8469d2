//! Two connected queue pairs that hand each other bursts, for the allocation test and the bench. After the first round nothing here
//! allocates either.

use holdfast::memory::{Access, Backing, Mapping, Memory, PdId, Sge};
use holdfast::time::Instant;
use holdfast::transport::*;
use holdfast::wire::{DEFAULT_PKEY, Datagram, IpHeader, Packet, PathMtu, Psn, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// First address of each end's region.
pub(super) const BASE: u64 = 0x1000;
/// Bytes of it.
pub(super) const REGION: u64 = 2 << 20;

/// A queue pair with its tables.
pub(super) struct End {
    pub(super) qp: Qp,
    memory: Memory,
    completions: Completions,
    srqs: SharedReceiveQueues,
    events: VecDeque<Event>,
    limits: TransportLimits,
    cq: CqId,
    key: u32,
    address: IpAddr,
    /// Out of here only while it is filled.
    burst: Option<Burst>,
}

impl End {
    fn new(qpn: u32, mtu: PathMtu, source: IpAddr, destination: IpAddr, peer: u32) -> Self {
        let mut memory = Memory::new([qpn as u8; 32]);
        let pd: PdId = memory.create_pd(0);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let backing = Backing::Shared(Arc::new(Mapping::anonymous(REGION as usize).unwrap()), 0);
        let key = memory.register(pd, backing, BASE, REGION, access).unwrap().lkey;
        let mut completions = Completions::new();
        let cq = completions.create(1024).unwrap();
        let caps = QpCapabilities { max_send_wr: 256, max_recv_wr: 256, ..QpCapabilities::default() };
        let init = QpInit { pd, kind: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: true };
        let mut end = Self {
            qp: Qp::new(Qpn::new(qpn), &init).unwrap(),
            memory,
            completions,
            srqs: SharedReceiveQueues::new(),
            events: VecDeque::new(),
            limits: TransportLimits::default(),
            cq,
            key,
            address: source,
            burst: Some(Burst::new(BurstLimits::default())),
        };
        end.connect(&QpAttributes {
            access,
            av: AddressVector::between(source, destination, 0xc000),
            path_mtu: mtu,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            sq_psn: Psn::new(100),
            rq_psn: Psn::new(100),
            dest_qpn: Qpn::new(peer),
            ..QpAttributes::default()
        });
        end
    }

    fn connect(&mut self, attrs: &QpAttributes) {
        use AttrMask as A;
        for (state, mask) in [
            (QpState::Init, A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS),
            (QpState::Rtr, A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER),
            (QpState::Rts, A::SQ_PSN | A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC),
        ] {
            let attrs = QpAttributes { state, ..*attrs };
            self.with(|qp, cx| qp.modify(cx, &attrs, mask | A::STATE)).unwrap();
        }
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut Qp, &mut Context<'_>) -> R) -> R {
        let mut cx = Context {
            now: Instant::ZERO,
            memory: &mut self.memory,
            completions: &mut self.completions,
            srqs: &mut self.srqs,
            events: &mut self.events,
            limits: &self.limits,
            pkeys: &[DEFAULT_PKEY],
        };
        f(&mut self.qp, &mut cx)
    }

    /// Its key, for itself and for the peer.
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    pub(super) fn send(&mut self, op: SendOp, offset: u64, length: u32) {
        let sges = [Sge { addr: BASE + offset, length, lkey: self.key }];
        let data = Data::Sges(&sges);
        let request = SendRequest { wr_id: 0, op, flags: SendFlags::empty(), data, datagram: None };
        self.with(|qp, cx| qp.post_send(cx, &request)).unwrap();
    }

    pub(super) fn recv(&mut self, offset: u64, length: u32) {
        let sges = [Sge { addr: BASE + offset, length, lkey: self.key }];
        self.with(|qp, cx| qp.post_recv(cx, &RecvRequest { wr_id: 0, sges: &sges })).unwrap();
    }

    /// Fills its burst; false if there is nothing to send.
    pub(super) fn fill(&mut self) -> bool {
        let Some(mut burst) = self.burst.take() else { return false };
        burst.clear();
        let poll = self.with(|qp, cx| qp.poll_transmit(cx, &mut burst));
        self.burst = Some(burst);
        poll == Poll::Filled
    }

    /// Takes the packets of a burst that `from` filled. The ICRC is the engine's business.
    pub(super) fn take(&mut self, from: &mut Self) {
        let Some(burst) = &from.burst else { return };
        let ip = IpHeader::new(from.address, self.address).unwrap();
        for bytes in burst.bytes().chunks(burst.segment_bytes() as usize) {
            let packet = Packet::new_checked(bytes).unwrap();
            let datagram = Datagram { ip, source_port: 0xc000, bytes };
            self.with(|qp, cx| qp.handle_packet(cx, &packet, &datagram)).unwrap();
        }
    }

    /// How many completions there are; all must be good.
    pub(super) fn completed(&mut self) -> usize {
        let mut n = 0;
        while let Some(completion) = self.completions.pop(self.cq) {
            assert!(completion.status.is_success());
            n += 1;
        }
        while self.completions.poll_dirty().is_some() {}
        n
    }
}

/// Both ends of a connection.
pub(super) struct Pair {
    pub(super) a: End,
    pub(super) b: End,
}

impl Pair {
    pub(super) fn new(mtu: PathMtu) -> Self {
        let (a, b) = (IpAddr::from([198, 18, 0, 2]), IpAddr::from([198, 18, 0, 3]));
        Self { a: End::new(0x11, mtu, a, b, 0x22), b: End::new(0x22, mtu, b, a, 0x11) }
    }

    /// Until both ends are silent.
    pub(super) fn run(&mut self) {
        loop {
            let mut quiet = true;
            while self.a.fill() {
                self.b.take(&mut self.a);
                quiet = false;
            }
            while self.b.fill() {
                self.a.take(&mut self.b);
                quiet = false;
            }
            if quiet {
                return;
            }
        }
    }
}
