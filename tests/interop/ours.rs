//! Holdfast's end of a connection: a client of the daemon.

use crate::end::{Done, QKEY, Setup, Side, Work, pattern};
use crate::lab::{Lab, PATIENCE};
use holdfast::ipc::client::{
    Access, AddressHandle, Completion, CompletionChannel, CompletionQueue, ConnectionOptions, Context, Data, Endpoint,
    EventKind, MemoryRegion, MemoryWindow, PathMtu, Pd, Psn, QpCapabilities, QpType, QueuePair, RecvRequest, SendFlags,
    SendOp, SendRequest, Sge, SharedReceiveQueue, WcFlags,
};
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub(crate) struct Ours {
    setup: Setup,
    context: Context,
    pd: Pd,
    channel: CompletionChannel,
    cq: CompletionQueue,
    memory: MemoryRegion,
    srq: Option<SharedReceiveQueue>,
    qps: Vec<QueuePair>,
    windows: Vec<MemoryWindow>,
    regions: Vec<MemoryRegion>,
}

const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

const CAPABILITIES: QpCapabilities =
    QpCapabilities { max_send_wr: 256, max_recv_wr: 256, max_send_sge: 32, max_recv_sge: 32, max_inline_data: 512 };

impl Ours {
    pub(crate) fn new(lab: &Lab, setup: &Setup) -> Self {
        let context = lab.attach();
        let pd = context.allocate_pd().unwrap();
        let channel = context.create_channel().unwrap();
        let cq = context.create_cq(1024, Some(&channel)).unwrap();
        let memory = pd.allocate(setup.memory as usize, ACCESS).unwrap();
        let srq = setup.srq.then(|| pd.create_srq(64, 4).unwrap());
        let queue_pair = || {
            let builder = pd.queue_pair(setup.kind, &cq, &cq).capabilities(CAPABILITIES);
            let qp = srq.iter().fold(builder, |builder, srq| builder.shared_receive_queue(srq)).create().unwrap();
            match setup.kind {
                QpType::Ud | QpType::Gsi => qp.activate(QKEY, Psn::new(setup.psn)).unwrap(),
                QpType::Rc | QpType::Uc => qp.prepare(ConnectionOptions::default().access).unwrap(),
            }
            qp
        };
        let qps = (0..setup.qps).map(|_| queue_pair()).collect();
        let (windows, regions) = (Vec::new(), Vec::new());
        Self { setup: *setup, context, pd, channel, cq, memory, srq, qps, windows, regions }
    }

    fn address(&self) -> IpAddr {
        let fits = |address: &&IpAddr| self.setup.family.matches(**address);
        *self.context.addresses().iter().find(fits).unwrap()
    }

    fn sges(&self, parts: &[(u64, u32)]) -> Vec<Sge> {
        parts.iter().map(|&(offset, len)| self.memory.sge(offset..offset + u64::from(len))).collect()
    }

    fn bytes(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        assert!(self.memory.read(offset, &mut bytes), "{len} bytes at {offset} are not in the region");
        bytes
    }
}

impl Side for Ours {
    fn endpoint(&self, qp: usize) -> Endpoint {
        Endpoint { qpn: self.qps[qp].qpn(), psn: self.setup.psn, address: self.address() }
    }

    fn connect(&mut self, qp: usize, peer: &Endpoint) {
        if self.setup.kind.is_datagram() {
            return;
        }
        let options = ConnectionOptions {
            path_mtu: PathMtu::from_bytes(self.setup.mtu).unwrap(),
            timeout: self.setup.timeout,
            retry_count: self.setup.retry_count,
            rnr_retry: self.setup.rnr_retry,
            min_rnr_timer: self.setup.min_rnr_timer,
            max_rd_atomic: 4,
            ..ConnectionOptions::default()
        };
        self.qps[qp].connect(peer, Psn::new(self.setup.psn), &options).unwrap();
    }

    fn post(&mut self, qp: usize, work: &Work) {
        let sges = self.sges(&work.parts);
        let copied: Vec<u8> = if work.flags.contains(SendFlags::INLINE) {
            work.parts.iter().flat_map(|&(offset, len)| self.bytes(offset, len.into())).collect()
        } else {
            Vec::new()
        };
        let data = if work.flags.contains(SendFlags::INLINE) { Data::Inline(&copied) } else { Data::Sges(&sges) };
        let datagram = work.to.map(|(to, qkey)| AddressHandle::to(to.address).queue_pair(to.qpn, qkey));
        self.qps[qp]
            .post_send(&SendRequest { wr_id: work.wr_id, op: work.op, flags: work.flags, data, datagram })
            .unwrap();
    }

    fn receive(&mut self, qp: usize, wr_id: u64, parts: &[(u64, u32)]) {
        let request = RecvRequest { wr_id, sges: &self.sges(parts) };
        match &self.srq {
            Some(srq) => srq.post_recv(&request).unwrap(),
            None => self.qps[qp].post_recv(&request).unwrap(),
        }
    }

    /// Sleeps on completion events: the VM needs the processor more than a polling loop does.
    fn poll(&mut self, n: usize, limit: Duration) -> Vec<Done> {
        let start = Instant::now();
        let mut got = Vec::new();
        loop {
            while got.len() < n
                && let Some(completion) = self.cq.poll_one().unwrap()
            {
                got.push(done(&completion));
            }
            let left = limit.saturating_sub(start.elapsed());
            if got.len() == n || left.is_zero() {
                return got;
            }
            self.cq.arm(false);
            match self.cq.poll_one().unwrap() {
                Some(completion) => got.push(done(&completion)),
                None => drop(self.channel.wait(Some(left)).unwrap()),
            }
        }
    }

    fn there(&self) -> (u64, u32) {
        (self.memory.address(), self.memory.rkey())
    }

    fn open_window(&mut self, offset: u64, len: u64) -> u32 {
        let window = self.pd.allocate_window().unwrap();
        let rkey = window.next_rkey();
        self.windows.push(window);
        let op = SendOp::BindWindow {
            rkey,
            lkey: self.memory.lkey(),
            va: self.memory.address() + offset,
            length: len,
            access: Access::REMOTE_WRITE,
        };
        let request = SendRequest { wr_id: 7, op, flags: SendFlags::SIGNALED, data: Data::Sges(&[]), datagram: None };
        self.qps[0].post_send(&request).unwrap();
        let bound = self.poll(1, PATIENCE);
        assert!(bound[0].wr_id == 7 && bound[0].status.is_success(), "{bound:?}");
        rkey
    }

    fn read_only(&mut self) -> (u64, u32) {
        let region = self.pd.allocate(4096, Access::REMOTE_READ).unwrap();
        let there = (region.address(), region.rkey());
        self.regions.push(region);
        there
    }

    fn wait_for_event(&mut self, name: &str) {
        let kind = match name {
            "SRQ_LIMIT_REACHED" => EventKind::SrqLimitReached,
            "QP_ACCESS_ERR" => EventKind::QpAccessErr,
            "COMM_EST" => EventKind::CommEst,
            _ => panic!("who knows the event {name}?"),
        };
        loop {
            let event = self.context.next_event(Some(PATIENCE)).unwrap();
            if event.unwrap_or_else(|| panic!("no {name}")).kind == kind {
                return;
            }
        }
    }

    fn arm_limit(&mut self, limit: u32) {
        self.srq.as_ref().unwrap().arm_limit(limit).unwrap();
    }

    fn arm(&mut self, solicited: bool) {
        // Events of polls before are of no interest.
        while self.channel.wait(Some(Duration::ZERO)).unwrap().is_some() {}
        self.cq.arm(solicited);
    }

    fn hears_event(&mut self, limit: Duration) -> bool {
        self.channel.wait(Some(limit)).unwrap().is_some()
    }

    fn fill(&mut self, seed: u64, offset: u64, len: u64, at: u64) {
        assert!(self.memory.write(offset, &pattern(seed, len, at)));
    }

    fn check(&mut self, seed: u64, offset: u64, len: u64, at: u64) {
        let (got, want) = (self.bytes(offset, len), pattern(seed, len, at));
        if let Some(wrong) = (0..got.len()).find(|i| got[*i] != want[*i]) {
            panic!("holdfast: byte {wrong} of {len} at {offset} is {:#04x} and not {:#04x}", got[wrong], want[wrong]);
        }
    }

    fn word(&mut self, offset: u64) -> u64 {
        u64::from_le_bytes(self.bytes(offset, 8).try_into().unwrap())
    }

    fn set_word(&mut self, offset: u64, value: u64) {
        assert!(self.memory.write(offset, &value.to_le_bytes()));
    }
}

fn done(completion: &Completion) -> Done {
    Done {
        wr_id: completion.wr_id,
        status: completion.status,
        opcode: completion.opcode,
        len: completion.byte_len,
        imm: completion.imm,
        qpn: completion.qpn,
        src_qp: completion.flags.contains(WcFlags::GRH).then_some(completion.src_qp),
    }
}
