//! What a client can ask for: completion queues, shared receive queues, queue pairs.

use super::arena::Place;
use super::calls::{Answered, CHANNEL_EVENT_BYTES};
use super::objects::{Cq, Queue, QueuePair, Srq, WorkQueue};
use super::permissions::{one_more, within};
use super::session::{Desk, Session, Stop};
use crate::engine::QpError;
use crate::ipc::abi::{self, GID_BY_FAMILY, QueueGeometry, QueueHeader, completion_area_bytes};
use crate::ipc::protocol::{
    Call, Handle, InvalidAttribute, LimitKind, ObjectKind, QpAttributesRecord, QpCapabilitiesRecord, Refusal, Reply,
};
use crate::ipc::shm::{Area, NewArea, Side};
use crate::time::Instant;
use crate::transport::{AttrMask, ModifyError, QpCapabilities, QpInit, QpState, QpType};
use crate::wire::Qpn;
use core::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

/// What a client asks a new queue pair to be.
struct QueuePairWish {
    pd: Handle,
    kind: u32,
    send_cq: Handle,
    recv_cq: Handle,
    srq: Option<Handle>,
    capabilities: QpCapabilitiesRecord,
    signal_all: bool,
}

impl From<QpError<ModifyError>> for Refusal {
    fn from(error: QpError<ModifyError>) -> Self {
        Self::Invalid { reason: error.to_string(), errno: error.errno() }
    }
}

impl From<InvalidAttribute> for Refusal {
    fn from(error: InvalidAttribute) -> Self {
        Self::invalid(error)
    }
}

impl Session {
    pub(super) fn handle_queue_call(&mut self, desk: &mut Desk<'_>, call: Call) -> Answered {
        let reply = match call {
            Call::CreateCompletionQueue { entries, channel } => return Ok(self.create_cq(desk, entries, channel)?),
            Call::ResizeCompletionQueue { cq, entries } => return self.resize_cq(desk, cq, entries),
            Call::DestroyCompletionQueue { cq } => self.destroy_cq(desk, cq)?,
            Call::CreateSharedReceiveQueue { pd, max_wr, max_sge, limit } => {
                return Ok(self.create_srq(desk, pd, max_wr, max_sge, limit)?);
            }
            Call::ModifySharedReceiveQueue { srq, limit } => {
                // What was posted before counts.
                self.drain(desk, srq)?;
                let id = self.objects.srq(srq)?.id;
                desk.engine.set_srq_limit(id, limit).map_err(Refusal::from)?;
                Reply::Done
            }
            Call::QuerySharedReceiveQueue { srq } => {
                let id = self.objects.srq(srq)?.id;
                let limit = desk.engine.srqs().limit(id).map_err(Refusal::invalid)?;
                Reply::SharedReceiveQueueState { limit }
            }
            Call::DestroySharedReceiveQueue { srq } => self.destroy_srq(desk, srq)?,
            Call::CreateQueuePair { pd, kind, send_cq, recv_cq, srq, capabilities, signal_all } => {
                let wish = QueuePairWish { pd, kind, send_cq, recv_cq, srq, capabilities, signal_all };
                return Ok(self.create_qp(desk, &wish)?);
            }
            Call::ModifyQueuePair { qp, mask, attributes } => self.modify_qp(desk, qp, mask, &attributes)?,
            Call::QueryQueuePair { qp } => self.query_qp(desk, qp)?,
            Call::DestroyQueuePair { qp } => self.destroy_qp(desk, qp)?,
            _ => return Err(Refusal::invalid("this daemon does not know the request").into()),
        };
        Ok((reply, Vec::new()))
    }

    /// Makes an area for queues, within the client's limit.
    fn new_area(&mut self, name: &'static str, bytes: usize, side: Side) -> Result<NewArea, Refusal> {
        let total = self.objects.area_bytes + bytes as u64;
        within(LimitKind::QueueMemoryBytes, total, self.permissions.max_queue_memory_bytes)?;
        self.one_more_mapping()?;
        let new = Area::create(name, bytes, side).map_err(|e| Refusal::system("make shared memory for a queue", &e))?;
        self.objects.area_bytes = total;
        self.objects.mappings += 1;
        Ok(new)
    }

    /// Makes room for work queues that end at `bytes`, the first `headers` bytes zero; also gives the descriptor for the client.
    fn new_place(&mut self, bytes: usize, headers: usize) -> Result<(Place, OwnedFd), Refusal> {
        let place = match self.objects.arenas.take(bytes) {
            Some(place) => place,
            None => {
                let grown = self.objects.arenas.next_bytes(bytes);
                // Close to the limit, no more than is needed.
                let new = self.new_area("holdfast-queues", grown, Side::Reader);
                let new =
                    new.or_else(|_| self.new_area("holdfast-queues", bytes.next_multiple_of(64), Side::Reader))?;
                self.objects.arenas.add(new);
                let missing = || Refusal::system("find room for a queue", &std::io::ErrorKind::OutOfMemory.into());
                self.objects.arenas.take(bytes).ok_or_else(missing)?
            }
        };
        let ready = self.objects.arenas.clear(&place, headers);
        match ready.and_then(|()| self.objects.arenas.descriptor(&place)) {
            Ok(fd) => Ok((place, fd)),
            Err(refusal) => {
                self.free_place(&place);
                Err(refusal)
            }
        }
    }

    fn free_place(&mut self, place: &Place) {
        if let Some(bytes) = self.objects.arenas.give_back(place) {
            self.objects.area_bytes -= bytes;
            self.objects.mappings -= 1;
        }
    }

    fn free_area(&mut self, area: Area) {
        self.objects.area_bytes -= area.len() as u64;
        self.objects.mappings -= 1;
    }
}

// Completion queues.
impl Session {
    fn completion_depth(&self, entries: u32) -> Result<u32, Refusal> {
        within(LimitKind::QueueDepth, entries.into(), self.permissions.completion_depth().into())?;
        Ok(entries.max(1).next_power_of_two())
    }

    fn create_cq(&mut self, desk: &mut Desk<'_>, entries: u32, channel: Option<Handle>) -> Answered<Refusal> {
        one_more(ObjectKind::CompletionQueue, self.objects.cqs.len(), self.permissions.max_completion_queues)?;
        let depth = self.completion_depth(entries)?;
        if let Some(handle) = channel {
            let channel = self.objects.channel_mut(handle)?;
            // So the channel's pipe has room for an unread event of each of its queues.
            let most = channel.pipe.capacity_bytes() / CHANNEL_EVENT_BYTES;
            one_more(ObjectKind::CompletionQueue, channel.cqs as usize, u32::try_from(most).unwrap_or(u32::MAX))?;
        }
        let NewArea { area, fd } = self.new_area("holdfast-cq", completion_area_bytes(depth), Side::Writer)?;
        let id = match desk.engine.create_cq(self.id().owner(), depth) {
            Ok(id) => id,
            Err(error) => {
                self.free_area(area);
                return Err(error.into());
            }
        };
        let cq = self.objects.cqs.insert(Cq { id, area, depth, produced: 0, channel, overrun: false }) as Handle;
        if let Some(channel) = channel {
            self.objects.channel_mut(channel)?.cqs += 1;
        }
        self.objects.cqs_by_id.insert(id, cq);
        desk.common.cqs.insert(id, self.id());
        Ok((Reply::CompletionQueue { cq, depth }, vec![fd]))
    }

    fn resize_cq(&mut self, desk: &mut Desk<'_>, handle: Handle, entries: u32) -> Answered {
        let depth = self.completion_depth(entries)?;
        let id = self.objects.cq(handle)?.id;
        self.deliver(desk, id, None)?;
        let cq = self.objects.cq(handle)?;
        let lie = |lie| super::Ended::Lie { handle, lie };
        let in_use = cq.ring().map_or(Ok(0), |ring| ring.in_use(cq.produced)).map_err(lie)?;
        if in_use > depth {
            let text = format!("{in_use} completions wait, more than {depth}: poll them first");
            return Err(Refusal::invalid(text).into());
        }
        let NewArea { area, fd } = self.new_area("holdfast-cq", completion_area_bytes(depth), Side::Writer)?;
        if let Err(error) = desk.engine.resize_cq(id, depth) {
            self.free_area(area);
            return Err(Refusal::from(error).into());
        }
        let cq = self.objects.cq_mut(handle)?;
        let new = Cq { area, depth, produced: 0, id, channel: cq.channel, overrun: cq.overrun };
        let old = core::mem::replace(cq, new);
        // The wish for an event moves along; the client waits for this answer and does not arm meanwhile.
        if let (Some(from), Some(to)) = (old.ring(), cq.ring()) {
            to.inherit(&from);
        }
        self.free_area(old.area);
        Ok((Reply::CompletionQueue { cq: handle, depth }, vec![fd]))
    }

    fn destroy_cq(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<Reply, Refusal> {
        let id = self.objects.cq(handle)?.id;
        desk.engine.destroy_cq(id)?;
        desk.common.cqs.remove(&id);
        self.objects.cqs_by_id.remove(&id);
        let cq = self.objects.cqs.remove(handle as usize);
        self.free_area(cq.area);
        if let Some(channel) = cq.channel {
            self.objects.channel_mut(channel)?.cqs -= 1;
        }
        Ok(Reply::Done)
    }
}

// Shared receive queues.
impl Session {
    fn create_srq(
        &mut self,
        desk: &mut Desk<'_>,
        pd: Handle,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
    ) -> Answered<Refusal> {
        let have = self.objects.srqs_by_id.len();
        one_more(ObjectKind::SharedReceiveQueue, have, self.permissions.max_shared_receive_queues)?;
        self.one_more_queue()?;
        within(LimitKind::QueueDepth, max_wr.into(), self.permissions.work_depth().into())?;
        within(LimitKind::Sges, max_sge.into(), abi::MAX_SGE.into())?;
        let owner = self.id().owner();
        let pd = self.objects.pd(pd)?;
        let header = size_of::<QueueHeader>();
        let geometry = QueueGeometry::receive(0, header as u32, max_wr, max_sge.max(1));
        let (place, fd) = self.new_place(geometry.end(), header)?;
        let geometry = geometry.at(place.offset);
        let made = desk.engine.create_srq(owner, pd, geometry.depth, max_sge.max(1)).and_then(|id| {
            desk.engine.set_srq_limit(id, limit).map(|()| id).inspect_err(|_| {
                let _ = desk.engine.destroy_srq(id);
            })
        });
        let id = match made {
            Ok(id) => id,
            Err(error) => {
                self.free_place(&place);
                return Err(error.into());
            }
        };
        let (area, area_bytes) = (place.arena, place.area.len() as u64);
        let srq = Srq { id, place, queue: WorkQueue::new(geometry), retired: 0, pending: false };
        let srq = self.objects.queues.insert(Queue::Srq(srq)) as Handle;
        self.objects.srqs_by_id.insert(id, srq);
        Ok((Reply::SharedReceiveQueue { srq, queue: geometry, area, area_bytes }, vec![fd]))
    }

    fn destroy_srq(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<Reply, Refusal> {
        let id = self.objects.srq(handle)?.id;
        desk.engine.destroy_srq(id)?;
        self.objects.srqs_by_id.remove(&id);
        if let Some(Queue::Srq(srq)) = self.objects.queues.try_remove(handle as usize) {
            self.free_place(&srq.place);
        }
        self.pending.retain(|pending| *pending != handle);
        Ok(Reply::Done)
    }

    fn one_more_queue(&self) -> Result<(), Refusal> {
        one_more(ObjectKind::QueuePair, self.objects.queues.len(), abi::MAX_QUEUES)
    }

    /// How many requests of a shared receive queue are neither with the client nor anywhere in the engine: a queue pair that was
    /// reset or destroyed had taken them.
    fn return_to_srq(&mut self, desk: &Desk<'_>, srq: Option<Handle>) -> u32 {
        let Some(srq) = srq.and_then(|handle| self.objects.srq_mut(handle)) else { return 0 };
        let out = srq.queue.consumed.wrapping_sub(srq.retired);
        let returned = out.saturating_sub(desk.engine.srqs().in_use(srq.id));
        srq.retired = srq.retired.wrapping_add(returned);
        returned
    }
}

// Queue pairs.
impl Session {
    fn create_qp(&mut self, desk: &mut Desk<'_>, wish: &QueuePairWish) -> Answered<Refusal> {
        one_more(ObjectKind::QueuePair, self.queue_pairs(), self.permissions.max_queue_pairs)?;
        self.one_more_queue()?;
        let kind = self.qp_kind(wish.kind)?;
        let (send, receive) = self.qp_geometry(wish)?;
        let capabilities = QpCapabilities {
            max_send_wr: send.depth,
            max_recv_wr: receive.map_or(0, |q| q.depth),
            ..wish.capabilities.into()
        };
        let init = QpInit {
            pd: self.objects.pd(wish.pd)?,
            kind,
            send_cq: self.objects.cq(wish.send_cq)?.id,
            recv_cq: self.objects.cq(wish.recv_cq)?.id,
            srq: wish.srq.map(|srq| self.objects.srq(srq).map(|s| s.id)).transpose()?,
            caps: capabilities,
            sq_sig_all: wish.signal_all,
        };
        let bytes = receive.map_or(send.end(), |q| q.end());
        let (place, fd) = self.new_place(bytes, 2 * size_of::<QueueHeader>())?;
        let (send, receive) = (send.at(place.offset), receive.map(|queue| queue.at(place.offset)));
        let qpn = match desk.engine.create_qp(self.id().owner(), &init) {
            Ok(qpn) => qpn,
            Err(error) => {
                self.free_place(&place);
                return Err(error.into());
            }
        };
        let (area, area_bytes) = (place.arena, place.area.len() as u64);
        let qp = QueuePair {
            qpn,
            place,
            send: WorkQueue::new(send),
            receive: receive.map(WorkQueue::new),
            send_cq: wish.send_cq,
            recv_cq: wish.recv_cq,
            srq: wish.srq,
            datagram: kind.is_datagram(),
            taken: vec![Instant::ZERO; send.depth as usize].into_boxed_slice(),
            pending: false,
        };
        let qp = self.objects.queues.insert(Queue::Qp(qp)) as Handle;
        self.objects.qps_by_number.insert(qpn, qp);
        let (qpn, capabilities) = (qpn.get(), capabilities.into());
        Ok((Reply::QueuePair { qp, qpn, capabilities, send, receive, area, area_bytes }, vec![fd]))
    }

    fn qp_kind(&self, kind: u32) -> Result<QpType, Refusal> {
        match kind {
            1 if self.permissions.general_services => Ok(QpType::Gsi),
            1 => Err(Refusal::NotPermitted {
                action: "have the general services queue pair (QP 1)".into(),
                remedy: "run it as the user that [clients] in holdfastd's settings trusts".into(),
            }),
            2 => Ok(QpType::Rc),
            3 => Ok(QpType::Uc),
            4 => Ok(QpType::Ud),
            other => Err(Refusal::Invalid {
                reason: format!("queue pairs of type {other} are not supported; RC (2), UC (3) and UD (4) are"),
                errno: libc::EOPNOTSUPP,
            }),
        }
    }

    fn qp_geometry(&self, wish: &QueuePairWish) -> Result<(QueueGeometry, Option<QueueGeometry>), Refusal> {
        let c = &wish.capabilities;
        let depth = u64::from(self.permissions.work_depth());
        within(LimitKind::QueueDepth, c.max_send_wr.into(), depth)?;
        within(LimitKind::QueueDepth, c.max_recv_wr.into(), depth)?;
        within(LimitKind::Sges, c.max_send_sge.max(c.max_recv_sge).into(), abi::MAX_SGE.into())?;
        within(LimitKind::InlineBytes, c.max_inline_data.into(), QpCapabilities::MAX_INLINE.into())?;
        let header = size_of::<QueueHeader>() as u32;
        let send = QueueGeometry::send(0, 2 * header, c.max_send_wr, c.max_send_sge, c.max_inline_data);
        // A queue of the largest depth allowed ends far below 4 GiB.
        let receive = QueueGeometry::receive(header, send.end() as u32, c.max_recv_wr, c.max_recv_sge);
        Ok((send, (wish.srq.is_none() && c.max_recv_wr > 0).then_some(receive)))
    }

    fn modify_qp(
        &mut self,
        desk: &mut Desk<'_>,
        handle: Handle,
        mask: u32,
        record: &QpAttributesRecord,
    ) -> Result<Reply, Stop> {
        let mask = AttrMask::from_bits_retain(mask);
        if mask.contains(AttrMask::QKEY) && record.qkey >> 31 == 1 && !self.permissions.privileged_qkeys {
            let remedy = "choose a Q_Key below 0x80000000".into();
            return Err(Refusal::NotPermitted { action: "set a Q_Key with its high bit set".into(), remedy }.into());
        }
        let unset = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let source = record.address.source(desk.engine.addresses()).unwrap_or(unset);
        if mask.contains(AttrMask::AV) && source == unset {
            let text = "the device has no address (GID) of that index, or none of the destination's IP version";
            return Err(Refusal::invalid(text).into());
        }
        let mut attributes = record.attributes(mask, source).map_err(Refusal::from)?;
        // Program order: what was posted before is there before.
        self.drain(desk, handle)?;
        let qpn = self.objects.qp(handle)?.qpn;
        if attributes.av.source_port == 0 {
            let peer = if mask.contains(AttrMask::DEST_QPN) { attributes.dest_qpn } else { self.dest_qpn(desk, qpn) };
            attributes.av.source_port = lane(attributes.av.flow_label, qpn, peer);
        }
        self.deliver_before(desk, handle)?;
        desk.engine.modify_qp(desk.now, qpn, &attributes, mask).map_err(Refusal::from)?;
        let state = desk.engine.qp(qpn).map_or(QpState::Reset, |qp| qp.state());
        let reset = mask.contains(AttrMask::STATE) && attributes.state == QpState::Reset;
        let srq = self.objects.qp(handle)?.srq;
        let srq_returned = if reset { self.return_to_srq(desk, srq) } else { 0 };
        Ok(Reply::QueuePairModified { state: state as u8, srq_returned })
    }

    /// Hands out what has completed so far: on a shared receive queue all of it, so that what is missing then can be counted.
    fn deliver_before(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<(), Stop> {
        match self.objects.qp(handle)?.srq {
            Some(_) => self.deliver_all(desk)?,
            None => self.deliver_qp(desk, handle)?,
        }
        Ok(())
    }

    fn dest_qpn(&self, desk: &Desk<'_>, qpn: Qpn) -> Qpn {
        desk.engine.qp(qpn).map_or(qpn, |qp| qp.attributes().dest_qpn)
    }

    fn query_qp(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<Reply, Stop> {
        self.drain(desk, handle)?;
        let qpn = self.objects.qp(handle)?.qpn;
        let unknown = Refusal::Unknown { kind: ObjectKind::QueuePair, handle };
        let attributes = desk.engine.qp(qpn).map(|qp| qp.attributes()).ok_or(unknown)?;
        let place = desk.engine.addresses().iter().position(|a| *a == attributes.av.source);
        let gid_index = place.and_then(|i| u8::try_from(i).ok()).unwrap_or(GID_BY_FAMILY);
        Ok(Reply::QueuePairState { attributes: QpAttributesRecord::of(&attributes, gid_index) })
    }

    fn destroy_qp(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<Reply, Stop> {
        let &QueuePair { qpn, srq, .. } = self.objects.qp(handle)?;
        // Whatever completed before is in the client's ring before the answer is.
        self.deliver_before(desk, handle)?;
        desk.engine.destroy_qp(qpn).map_err(Refusal::from)?;
        self.objects.qps_by_number.remove(&qpn);
        if let Some(Queue::Qp(qp)) = self.objects.queues.try_remove(handle as usize) {
            self.free_place(&qp.place);
        }
        self.pending.retain(|pending| *pending != handle);
        let srq_returned = self.return_to_srq(desk, srq);
        Ok(Reply::QueuePairModified { state: QpState::Reset as u8, srq_returned })
    }
}

/// The UDP source port of a connection whose client left the choice to us: from the flow label, or from both QPNs as Linux
/// does (`rdma_flow_label_to_udp_sport`, `rdma_calc_flow_label`), so that flows spread over a fabric's paths.
pub(super) fn lane(flow_label: u32, own: Qpn, peer: Qpn) -> u16 {
    let label = if flow_label == 0 {
        let product = u64::from(own.get()) * u64::from(peer.get());
        ((product ^ (product >> 20) ^ (product >> 40)) & 0xf_ffff) as u32
    } else {
        flow_label & 0xf_ffff
    };
    0xc000 | ((label & 0x3fff) ^ (label >> 14)) as u16
}
