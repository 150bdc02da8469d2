//! One queue pair with a device around it.

use crate::memory::{Access, Backing, Keys, Mapping, Memory, PdId, Sge};
use crate::time::Instant;
use crate::transport::*;
use crate::wire::icrc;
use crate::wire::{Datagram, IpHeader, Ipv4, Packet, PathMtu, Qpn};
use core::net::{IpAddr, Ipv4Addr};
use std::collections::VecDeque;
use std::sync::Arc;

/// First address of an end's only region.
pub(super) const BASE: u64 = 0x1_0000;
/// Bytes of it.
pub(super) const REGION: u64 = 1 << 22;

/// A queue pair, its tables, and one region with every right.
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) memory: Memory,
    pub(super) completions: Completions,
    pub(super) srqs: SharedReceiveQueues,
    pub(super) events: VecDeque<Event>,
    pub(super) limits: TransportLimits,
    pub(super) pkeys: Vec<u16>,
    pub(super) burst_limits: BurstLimits,
    pub(super) pd: PdId,
    pub(super) cq: CqId,
    pub(super) keys: Keys,
    pub(super) mapping: Arc<Mapping>,
    pub(super) now: Instant,
}

/// How an end is made.
pub(super) struct Setup {
    pub(super) kind: QpType,
    pub(super) caps: QpCapabilities,
    pub(super) srq: bool,
    pub(super) sq_sig_all: bool,
    pub(super) attrs: QpAttributes,
    pub(super) limits: TransportLimits,
    pub(super) burst: BurstLimits,
}

pub(super) const ALICE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
pub(super) const BOB: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 3));

pub(super) fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::MW_BIND
}

impl Default for Setup {
    fn default() -> Self {
        let attrs = QpAttributes {
            access: all_access(),
            av: AddressVector::between(ALICE, BOB, 0xc001),
            path_mtu: PathMtu::B1024,
            timeout: 14,
            retry_count: 3,
            rnr_retry: 7,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            dest_qpn: Qpn::new(0x22),
            qkey: 0x1111_1111,
            ..QpAttributes::default()
        };
        let caps =
            QpCapabilities { max_send_sge: 4, max_recv_sge: 4, max_inline_data: 512, ..QpCapabilities::default() };
        Self {
            kind: QpType::Rc,
            caps,
            srq: false,
            sq_sig_all: false,
            attrs,
            limits: TransportLimits::default(),
            burst: BurstLimits::default(),
        }
    }
}

impl Setup {
    /// The other end of the connection.
    pub(super) fn mirrored(&self) -> QpAttributes {
        let av = AddressVector::between(self.attrs.av.destination, self.attrs.av.source, 0xc002);
        QpAttributes {
            av,
            dest_qpn: Qpn::new(0x11),
            sq_psn: self.attrs.rq_psn,
            rq_psn: self.attrs.sq_psn,
            ..self.attrs
        }
    }
}

impl End {
    /// An end in RESET.
    pub(super) fn new(qpn: u32, setup: &Setup) -> Self {
        let mut memory = Memory::new([qpn as u8; 32]);
        let pd = memory.create_pd(1);
        let mapping = Arc::new(Mapping::anonymous(REGION as usize).unwrap());
        let keys = memory.register(pd, Backing::Shared(Arc::clone(&mapping), 0), BASE, REGION, all_access()).unwrap();
        let mut completions = Completions::new();
        let cq = completions.create(4096).unwrap();
        let mut srqs = SharedReceiveQueues::new();
        let srq = setup.srq.then(|| srqs.create(pd, setup.caps.max_recv_wr, setup.caps.max_recv_sge).unwrap());
        let init = QpInit {
            pd,
            kind: setup.kind,
            send_cq: cq,
            recv_cq: cq,
            srq,
            caps: setup.caps,
            sq_sig_all: setup.sq_sig_all,
        };
        Self {
            qp: Qp::new(Qpn::new(qpn), &init).unwrap(),
            memory,
            completions,
            srqs,
            events: VecDeque::new(),
            limits: setup.limits,
            pkeys: vec![0xffff],
            burst_limits: setup.burst,
            pd,
            cq,
            keys,
            mapping,
            now: Instant::ZERO,
        }
    }

    /// An end in RTS.
    pub(super) fn ready(qpn: u32, setup: &Setup, attrs: &QpAttributes) -> Self {
        let mut end = Self::new(qpn, setup);
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            end.go(state, attrs).unwrap();
        }
        end
    }

    /// Goes to a state with all the attributes that the transition needs.
    pub(super) fn go(&mut self, state: QpState, attrs: &QpAttributes) -> Result<(), ModifyError> {
        use AttrMask as A;
        let must = match (state, self.qp.init().kind) {
            (QpState::Init, QpType::Rc | QpType::Uc) => A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS,
            (QpState::Init, QpType::Ud) => A::PKEY_INDEX | A::PORT | A::QKEY,
            (QpState::Init, QpType::Gsi) => A::PKEY_INDEX | A::QKEY,
            (QpState::Rtr, QpType::Rc) => {
                A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER
            }
            (QpState::Rtr, QpType::Uc) => A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN,
            (QpState::Rts, QpType::Rc) if self.qp.state() == QpState::Rtr => {
                A::SQ_PSN | A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC
            }
            (QpState::Rts, _) if self.qp.state() == QpState::Rtr => A::SQ_PSN,
            _ => A::empty(),
        };
        let attrs = QpAttributes { state, ..*attrs };
        self.with(|qp, cx| qp.modify(cx, &attrs, must | A::STATE))
    }

    /// Calls the queue pair with its context.
    pub(super) fn with<R>(&mut self, f: impl FnOnce(&mut Qp, &mut Context<'_>) -> R) -> R {
        let mut cx = Context {
            now: self.now,
            memory: &mut self.memory,
            completions: &mut self.completions,
            srqs: &mut self.srqs,
            events: &mut self.events,
            limits: &self.limits,
            pkeys: &self.pkeys,
        };
        f(&mut self.qp, &mut cx)
    }

    /// A piece of the region, `offset` bytes from its start.
    pub(super) fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: BASE + offset, length, lkey: self.keys.lkey }
    }

    pub(super) fn fill(&self, offset: u64, bytes: &[u8]) {
        assert!(self.mapping.write(offset, bytes));
    }

    pub(super) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.mapping.read(offset, &mut bytes));
        bytes
    }

    /// Posts a send of `len` bytes from `offset` on.
    pub(super) fn send(&mut self, wr_id: u64, op: SendOp, offset: u64, len: u32) -> Result<(), PostError> {
        self.send_with(wr_id, op, SendFlags::SIGNALED, offset, len)
    }

    pub(super) fn send_with(
        &mut self,
        wr_id: u64,
        op: SendOp,
        flags: SendFlags,
        offset: u64,
        len: u32,
    ) -> Result<(), PostError> {
        let sges = [self.sge(offset, len)];
        let data = Data::Sges(if op.is_local() { &[] } else { &sges });
        self.post(&SendRequest { wr_id, op, flags, data, datagram: None })
    }

    pub(super) fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.with(|qp, cx| qp.post_send(cx, request))
    }

    /// Posts a receive of `len` bytes at `offset`, to the QP's or its shared queue.
    pub(super) fn recv(&mut self, wr_id: u64, offset: u64, len: u32) {
        let sges = [self.sge(offset, len)];
        let request = RecvRequest { wr_id, sges: &sges };
        match self.qp.init().srq {
            Some(srq) => self.srqs.post(srq, &request).unwrap(),
            None => self.with(|qp, cx| qp.post_recv(cx, &request)).unwrap(),
        }
    }

    /// All that it sends now, burst by burst, one packet each entry. Every burst must keep the rules of super-packets.
    pub(super) fn transmit(&mut self) -> Vec<Vec<Vec<u8>>> {
        let mut bursts = Vec::new();
        loop {
            let mut burst = Burst::new(self.burst_limits);
            if self.with(|qp, cx| qp.poll_transmit(cx, &mut burst)) == Poll::Idle {
                assert!(burst.is_empty());
                return bursts;
            }
            let packets: Vec<_> = burst.bytes().chunks(burst.segment_bytes() as usize).map(<[u8]>::to_vec).collect();
            assert_eq!(packets.len(), usize::from(burst.packet_count()));
            assert!(
                burst.packet_count() <= self.burst_limits.max_packets
                    && burst.len_bytes() <= self.burst_limits.max_bytes as usize
            );
            for (index, packet) in packets.iter().enumerate() {
                let id = if self.burst_limits.ip_id == IpIdRule::AlwaysZero { 0 } else { index as u16 };
                let flow = burst.flow();
                assert!(
                    icrc::verify(&datagram(flow.source, flow.destination, flow.source_port, id, packet), 0).is_good()
                );
            }
            bursts.push(packets);
        }
    }

    /// Takes a packet that came from `from` and whose ICRC was checked.
    pub(super) fn receive(&mut self, from: IpAddr, bytes: &[u8]) -> Result<(), Refusal> {
        let packet = Packet::new_checked(bytes).expect("well-formed");
        let to = if from == ALICE { BOB } else { ALICE };
        let datagram = datagram(from, to, 0xc001, 0, bytes);
        self.with(|qp, cx| qp.handle_packet(cx, &packet, &datagram))
    }

    /// The completions so far.
    pub(super) fn completed(&mut self) -> Vec<Completion> {
        core::iter::from_fn(|| self.completions.pop(self.cq)).collect()
    }

    pub(super) fn wait(&mut self) -> Option<Wait> {
        self.with(|qp, cx| qp.waits_for(cx)).map(|waiting| waiting.reason)
    }
}

fn datagram(from: IpAddr, to: IpAddr, source_port: u16, id: u16, bytes: &[u8]) -> Datagram<'_> {
    let mut ip = IpHeader::new(from, to).unwrap();
    if let IpHeader::V4(Ipv4 { id: field, .. }) = &mut ip {
        *field = Some(id);
    }
    Datagram { ip, source_port, bytes }
}
