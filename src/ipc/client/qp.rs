//! Queue pairs.

use super::address::{ConnectionOptions, Endpoint};
use super::context::{lock, single, unexpected};
use super::memory::{Pd, PdInner};
use super::retired::Half;
use super::send::{Producer, SendRules, gid_index};
use super::{
    AddressVector, AttrMask, CompletionQueue, Error, PostError, QpAttributes, QpCapabilities, QpState, QpType,
    RecvRequest, SendRequest, SharedReceiveQueue,
};
use crate::ipc::abi::GID_BY_FAMILY;
use crate::ipc::protocol::{Call, Handle, QpAttributesRecord, Reply};
use crate::ipc::shm::Area;
use crate::memory::Access;
use crate::wire::{Psn, Qpn};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A queue pair about to be made. See [`Pd::queue_pair`].
#[derive(Clone, Debug)]
pub struct QueuePairBuilder {
    pd: Pd,
    kind: QpType,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    capabilities: QpCapabilities,
    signal_all: bool,
}

impl QueuePairBuilder {
    pub(super) fn new(pd: &Pd, kind: QpType, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self {
            pd: pd.clone(),
            kind,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            capabilities: QpCapabilities::default(),
            signal_all: false,
        }
    }

    /// What its queues shall hold at least.
    #[must_use]
    pub const fn capabilities(mut self, capabilities: QpCapabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Takes its receives from a shared queue.
    #[must_use]
    pub fn shared_receive_queue(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Every send makes a completion, whether its request asks for one or not.
    #[must_use]
    pub const fn signal_all(mut self) -> Self {
        self.signal_all = true;
        self
    }

    /// Makes it, in RESET.
    ///
    /// # Errors
    /// A limit, or the daemon is gone.
    pub fn create(self) -> Result<QueuePair, Error> {
        let context = &self.pd.inner.context;
        let handles = lock(&context.handles);
        let call = Call::CreateQueuePair {
            pd: self.pd.inner.handle,
            kind: verbs_type(self.kind),
            send_cq: self.send_cq.inner.handle,
            recv_cq: self.recv_cq.inner.handle,
            srq: self.srq.as_ref().map(|srq| srq.inner.handle),
            capabilities: self.capabilities.into(),
            signal_all: self.signal_all,
        };
        let (reply, fds) = context.call(call, &[])?;
        let Reply::QueuePair { qp: handle, qpn, capabilities, send, receive, area, area_bytes } = reply else {
            return Err(unexpected(&reply));
        };
        let area = context.queue_area(area, area_bytes, &single(fds)?)?;
        for half in [Half::Send, Half::Receive] {
            context.retired.set(handle, half, 0);
        }
        drop(handles);
        let inner = QpInner {
            pd: Arc::clone(&self.pd.inner),
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            kind: self.kind,
            handle,
            qpn: Qpn::new(qpn),
            capabilities: capabilities.into(),
            area,
            sends: Mutex::new(Producer::new(send, Half::Send)),
            receives: receive.map(|queue| Mutex::new(Producer::new(queue, Half::Receive))),
            state: AtomicU8::new(QpState::Reset as u8),
            max_rd_atomic: AtomicU8::new(0),
        };
        Ok(QueuePair { inner: Arc::new(inner) })
    }
}

const fn verbs_type(kind: QpType) -> u32 {
    match kind {
        QpType::Gsi => 1,
        QpType::Rc => 2,
        QpType::Uc => 3,
        QpType::Ud => 4,
    }
}

/// A queue pair: `ibv_qp`. Cheap to clone; any thread may post. Destroyed when the last clone is gone.
#[derive(Clone, Debug)]
pub struct QueuePair {
    inner: Arc<QpInner>,
}

#[derive(Debug)]
struct QpInner {
    pd: Arc<PdInner>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    kind: QpType,
    handle: Handle,
    qpn: Qpn,
    capabilities: QpCapabilities,
    area: Arc<Area>,
    sends: Mutex<Producer>,
    receives: Option<Mutex<Producer>>,
    /// As the last modify or query has left it; the daemon may have gone on to an error state.
    state: AtomicU8,
    max_rd_atomic: AtomicU8,
}

// Getters.
impl QueuePair {
    /// Its number on the wire.
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn
    }

    /// Its handle, by which [events](super::AsyncEvent) name it.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Its service.
    pub fn kind(&self) -> QpType {
        self.inner.kind
    }

    /// What its queues hold.
    pub fn capabilities(&self) -> QpCapabilities {
        self.inner.capabilities
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &CompletionQueue {
        &self.inner.send_cq
    }

    /// Where its receives complete.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.inner.recv_cq
    }

    /// Its state as the last modify or query has left it. It may have gone to an error state since.
    pub fn state(&self) -> QpState {
        QpState::from_verbs(self.inner.state.load(Ordering::Relaxed)).unwrap_or(QpState::Err)
    }

    /// What a peer must know to connect to it: with this first PSN, and the device's first address.
    pub fn endpoint(&self, psn: Psn) -> Option<Endpoint> {
        let address = *self.inner.pd.context.addresses().first()?;
        Some(Endpoint { qpn: self.qpn(), psn: psn.get(), address })
    }
}

// States.
impl QueuePair {
    /// Sets attributes: `ibv_modify_qp`. An unspecified source address stands for the device's first address of the destination's IP
    /// version, a source port of 0 for one that the daemon chooses.
    ///
    /// # Errors
    /// What the transition asks for or forbids; the daemon is gone.
    pub fn modify(&self, attributes: &QpAttributes, mask: AttrMask) -> Result<(), Error> {
        let gid_index = gid_index(self.inner.pd.context.addresses(), attributes.av.source);
        self.modify_by_record(&QpAttributesRecord::of(attributes, gid_index.unwrap_or(GID_BY_FAMILY - 1)), mask.bits())
    }

    /// As [`modify`](Self::modify), in the numbers of verbs.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn modify_by_record(&self, attributes: &QpAttributesRecord, mask: u32) -> Result<(), Error> {
        let call = Call::ModifyQueuePair { qp: self.inner.handle, mask, attributes: *attributes };
        let (state, srq_returned) = match self.inner.pd.context.call(call, &[])? {
            (Reply::QueuePairModified { state, srq_returned }, _) => (state, srq_returned),
            (other, _) => return Err(unexpected(&other)),
        };
        let mask = AttrMask::from_bits_retain(mask);
        if mask.contains(AttrMask::MAX_QP_RD_ATOMIC) {
            self.inner.max_rd_atomic.store(attributes.max_rd_atomic, Ordering::Relaxed);
        }
        self.inner.state.store(state, Ordering::Relaxed);
        if mask.contains(AttrMask::STATE) && attributes.state == QpState::Reset as u8 {
            self.inner.forget(srq_returned);
        }
        Ok(())
    }

    /// Its attributes now: `ibv_query_qp`.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn query(&self) -> Result<QpAttributes, Error> {
        let record = self.query_record()?;
        let own = self.inner.pd.context.addresses();
        let source = record.address.source(own).unwrap_or(AddressVector::UNSET.source);
        let mask = AttrMask::STATE | AttrMask::CUR_STATE | AttrMask::PATH_MTU;
        record.attributes(mask, source).map_err(|_| Error::Unexpected("attributes without meaning"))
    }

    /// As [`query`](Self::query), in the numbers of verbs.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn query_record(&self) -> Result<QpAttributesRecord, Error> {
        match self.inner.pd.context.call(Call::QueryQueuePair { qp: self.inner.handle }, &[])? {
            (Reply::QueuePairState { attributes }, _) => {
                self.inner.state.store(attributes.state, Ordering::Relaxed);
                Ok(attributes)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Brings an RC or UC queue pair from RESET to RTS, connected to `peer`. `psn` is the first PSN that it sends: the one that its own
    /// [`endpoint`](Self::endpoint) told the peer.
    ///
    /// A peer may send as soon as it is connected, so post receives before: call [`prepare`](Self::prepare), post, then this.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect(&self, peer: &Endpoint, psn: Psn, options: &ConnectionOptions) -> Result<(), Error> {
        if self.state() == QpState::Reset {
            self.prepare(options.access)?;
        }
        let reliable = self.kind() == QpType::Rc;
        let by_family = *super::AddressHandle::to(peer.address).vector();
        let source = options.source.unwrap_or(by_family.source);
        let attributes = QpAttributes {
            av: AddressVector { source, traffic_class: options.traffic_class, ..by_family },
            path_mtu: options.path_mtu,
            timeout: options.timeout,
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            rq_psn: peer.first_psn(),
            sq_psn: psn,
            max_rd_atomic: options.max_rd_atomic,
            max_dest_rd_atomic: options.max_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
            dest_qpn: peer.qpn,
            ..QpAttributes::to(QpState::Rtr)
        };
        let mut to_rtr = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let mut to_rts = AttrMask::STATE | AttrMask::SQ_PSN;
        if reliable {
            to_rtr |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            to_rts |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
        }
        self.modify(&attributes, to_rtr)?;
        self.modify(&QpAttributes { state: QpState::Rts, ..attributes }, to_rts)
    }

    /// Brings an RC or UC queue pair from RESET to INIT, where receives can be posted. `access` is what the peer may do.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn prepare(&self, access: Access) -> Result<(), Error> {
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        // A UC queue pair has no READs or atomics to allow.
        let access =
            if self.kind() == QpType::Uc { access & (Access::LOCAL_WRITE | Access::REMOTE_WRITE) } else { access };
        self.modify(&QpAttributes { access, ..QpAttributes::to(QpState::Init) }, mask)
    }

    /// Brings a UD queue pair from RESET to RTS. `qkey` is what peers must know to reach it.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn activate(&self, qkey: u32, psn: Psn) -> Result<(), Error> {
        let attributes = QpAttributes { qkey, sq_psn: psn, ..QpAttributes::to(QpState::Init) };
        let to_init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        self.modify(&attributes, to_init)?;
        self.modify(&QpAttributes { state: QpState::Rtr, ..attributes }, AttrMask::STATE)?;
        self.modify(&QpAttributes { state: QpState::Rts, ..attributes }, AttrMask::STATE | AttrMask::SQ_PSN)
    }

    /// Brings it to the error state: everything posted completes, with [`WcStatus::WrFlush`](super::WcStatus::WrFlush).
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn fail(&self) -> Result<(), Error> {
        self.modify(&QpAttributes::to(QpState::Err), AttrMask::STATE)
    }
}

// Posts.
impl QueuePair {
    /// Posts a send request: `ibv_post_send`.
    ///
    /// # Errors
    /// What can be told at once; what cannot comes as a completion.
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let mut batch = self.send_batch();
        batch.push(request)
    }

    /// Begins several send requests, of which the daemon is told once, when the batch is dropped. Others who post wait that long.
    pub fn send_batch(&self) -> SendBatch<'_> {
        SendBatch { qp: &self.inner, rules: self.inner.rules(), queue: lock(&self.inner.sends) }
    }

    /// Posts a receive request: `ibv_post_recv`.
    ///
    /// # Errors
    /// The queue is full, there are too many entries, the queue pair is in RESET or uses a shared receive queue.
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.post_recvs(core::slice::from_ref(request)).map_err(|(_, error)| error)
    }

    /// Posts several receive requests, of which the daemon is told once.
    ///
    /// # Errors
    /// As [`post_recv`](Self::post_recv), with the index of the request that was refused. Those before it are posted.
    pub fn post_recvs(&self, requests: &[RecvRequest<'_>]) -> Result<(), (usize, PostError)> {
        let QpInner { pd, handle, area, receives, capabilities, srq, .. } = &*self.inner;
        let none = if srq.is_some() { PostError::UsesSrq } else { PostError::QueueFull { capacity: 0 } };
        let mut queue = lock(receives.as_ref().ok_or((0, none))?);
        if self.state() == QpState::Reset {
            return Err((0, PostError::State(QpState::Reset)));
        }
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(error) = queue.push_receive(&pd.context, *handle, area, capabilities.max_recv_sge, request) {
                result = Err((index, error));
                break;
            }
        }
        queue.publish(&pd.context, *handle, area);
        result
    }
}

/// Send requests of which the daemon is told at once. See [`QueuePair::send_batch`].
#[derive(Debug)]
pub struct SendBatch<'a> {
    qp: &'a QpInner,
    rules: SendRules,
    queue: MutexGuard<'a, Producer>,
}

impl SendBatch<'_> {
    /// Adds a request.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`]. Those added before stay.
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let QpInner { pd, handle, area, .. } = self.qp;
        self.queue.push_send(&pd.context, *handle, area, &self.rules, request)
    }
}

impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        self.queue.publish(&self.qp.pd.context, self.qp.handle, &self.qp.area);
    }
}

impl QpInner {
    fn rules(&self) -> SendRules {
        SendRules {
            kind: self.kind,
            state: QpState::from_verbs(self.state.load(Ordering::Relaxed)).unwrap_or(QpState::Err),
            capabilities: self.capabilities,
            max_rd_atomic: self.max_rd_atomic.load(Ordering::Relaxed),
        }
    }

    /// Nothing that was posted will complete any more, and what has completed is not polled any more: the queue pair was reset or
    /// destroyed.
    fn forget(&self, srq_returned: u32) {
        self.send_cq.inner.forget(self.qpn);
        self.recv_cq.inner.forget(self.qpn);
        let retired = &self.pd.context.retired;
        retired.set(self.handle, Half::Send, lock(&self.sends).posted());
        if let Some(receives) = &self.receives {
            retired.set(self.handle, Half::Receive, lock(receives).posted());
        }
        if let Some(srq) = &self.srq {
            retired.add(srq.inner.handle, Half::Receive, srq_returned);
        }
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let _handles = lock(&self.pd.context.handles);
        let reply = self.pd.context.call(Call::DestroyQueuePair { qp: self.handle }, &[]);
        if let Ok((Reply::QueuePairModified { srq_returned, .. }, _)) = reply {
            self.forget(srq_returned);
        }
    }
}

/// Where an address of the peer leads, for those who have only that.
impl From<IpAddr> for super::AddressHandle {
    fn from(address: IpAddr) -> Self {
        Self::to(address)
    }
}
