//! Completions into shared memory, events into pipes.

use super::Ended;
use super::calls::CHANNEL_EVENT_BYTES;
use super::objects::{Cq, Objects, Queue};
use super::pipe::Written;
use super::session::{Desk, Session};
use crate::ipc::abi::{CQE_GRH, CQE_RECEIVE, CQE_SHARED, CQE_WITH_IMM, CQE_WITH_INV, Cqe};
use crate::ipc::protocol::Handle;
use crate::ipc::ring::Lie;
use crate::transport::{AttrMask, Completion, CqId, Event, Notice, QpAttributes, QpState, WcFlags};
use crate::wire::Qpn;

/// Completions that are taken from the engine at once.
const BATCH: usize = 32;

impl Session {
    /// Hands out what waits in one completion queue. `notice` is what the engine says has come since it was last asked; without it,
    /// no event is made yet. Returns how many.
    pub(super) fn deliver(&mut self, desk: &mut Desk<'_>, id: CqId, notice: Option<Notice>) -> Result<usize, Ended> {
        let Some(handle) = self.objects.cqs_by_id.get(&id).copied() else { return Ok(0) };
        let (mut batch, mut delivered) = ([Completion::default(); BATCH], 0);
        loop {
            let n = desk.engine.poll_cq(id, &mut batch);
            self.complete(desk, handle, batch.get(..n).unwrap_or_default())?;
            delivered += n;
            if n < BATCH {
                break;
            }
        }
        if let Some(notice) = notice.filter(|notice| notice.any) {
            self.fire(handle, notice.solicited);
        }
        Ok(delivered)
    }

    /// Hands out what a queue pair has completed.
    pub(super) fn deliver_qp(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<(), Ended> {
        let Ok(qp) = self.objects.qp(handle) else { return Ok(()) };
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Ok(id) = self.objects.cq(cq).map(|cq| cq.id) {
                self.deliver(desk, id, None)?;
            }
        }
        Ok(())
    }

    /// Hands out what all queues have.
    pub(super) fn deliver_all(&mut self, desk: &mut Desk<'_>) -> Result<(), Ended> {
        let ids: Vec<CqId> = self.objects.cqs.iter().map(|(_, cq)| cq.id).collect();
        ids.into_iter().try_for_each(|id| self.deliver(desk, id, None).map(drop))
    }

    /// Writes completions into a queue's ring. One that overruns is dead (IBTA 11.6.3.1), and its queue pairs fail.
    pub(super) fn complete(&mut self, desk: &mut Desk<'_>, handle: Handle, batch: &[Completion]) -> Result<(), Ended> {
        let written = write(&mut self.objects, handle, batch, desk).map_err(|lie| Ended::Lie { handle, lie })?;
        self.counters.completions += written as u64;
        let lost = batch.len() - written;
        self.counters.completions_lost += lost as u64;
        if lost > 0 {
            self.overrun(desk, handle);
        }
        Ok(())
    }

    /// A completion queue had no room: its client is told once, and its queue pairs fail.
    fn overrun(&mut self, desk: &mut Desk<'_>, handle: Handle) {
        let Some(cq) = self.objects.cqs.get_mut(handle as usize).filter(|cq| !cq.overrun) else { return };
        cq.overrun = true;
        let event = Event::CqErr(cq.id);
        desk.common.events.note(&event);
        self.tell(event.verbs(), handle, 0);
        let to_error = QpAttributes::to(QpState::Err);
        for (_, queue) in &self.objects.queues {
            let Queue::Qp(qp) = queue else { continue };
            if qp.send_cq == handle || qp.recv_cq == handle {
                // Refused in RESET only, where there is nothing to fail.
                let _ = desk.engine.modify_qp(desk.now, qp.qpn, &to_error, AttrMask::STATE);
            }
        }
    }

    /// Writes an event into the queue's channel if the client has armed it.
    fn fire(&mut self, handle: Handle, solicited: bool) {
        let Ok(cq) = self.objects.cq(handle) else { return };
        let Some(channel) = cq.channel.and_then(|channel| self.objects.channels.get(channel as usize)) else { return };
        if !cq.ring().is_some_and(|ring| ring.fire(solicited)) {
            return;
        }
        let event: [u8; CHANNEL_EVENT_BYTES] = handle.to_ne_bytes();
        match channel.pipe.write(&event) {
            Written::Yes => self.counters.channel_events += 1,
            Written::Full => self.counters.events_lost += 1,
            Written::Closed => {}
        }
    }

    /// Passes an asynchronous event on, if it concerns this client.
    pub(super) fn handle_event(&mut self, desk: &mut Desk<'_>, event: &Event) {
        let (object, qpn) = match *event {
            Event::QpFatal(qpn)
            | Event::QpReqErr(qpn)
            | Event::QpAccessErr(qpn)
            | Event::CommEst(qpn)
            | Event::SqDrained(qpn)
            | Event::QpLastWqeReached(qpn) => (self.objects.qps_by_number.get(&qpn).copied(), qpn.get()),
            Event::SrqLimitReached(srq) => (self.objects.srqs_by_id.get(&srq).copied(), 0),
            Event::CqErr(cq) => {
                if let Some(handle) = self.objects.cqs_by_id.get(&cq).copied() {
                    self.overrun(desk, handle);
                }
                return;
            }
            Event::PortActive | Event::PortErr => (Some(1), 0),
        };
        if let Some(object) = object {
            self.tell(event.verbs(), object, qpn);
        }
    }
}

/// Writes as many completions as there is room for; says how many.
fn write(objects: &mut Objects, handle: Handle, batch: &[Completion], desk: &mut Desk<'_>) -> Result<usize, Lie> {
    let Some(Cq { id: _, produced, depth, overrun: false, .. }) = objects.cqs.get(handle as usize) else {
        return Ok(0);
    };
    let (mut produced, depth) = (*produced, *depth);
    let mut last: Option<(Qpn, Handle)> = None;
    let mut room = 0;
    let mut written = 0;
    for completion in batch {
        if room == 0 {
            let Some(ring) = objects.cqs.get(handle as usize).and_then(Cq::ring) else { break };
            room = depth - ring.in_use(produced)?;
            if room == 0 {
                break;
            }
        }
        written += 1;
        let qp = match last {
            Some((qpn, qp)) if qpn == completion.qpn => Some(qp),
            _ => objects.qps_by_number.get(&completion.qpn).copied(),
        };
        // Of a queue pair that is destroyed: nobody wants it.
        let Some(qp) = qp else { continue };
        last = Some((completion.qpn, qp));
        let cqe = entry(objects, qp, completion, desk);
        if let Some(ring) = objects.cqs.get(handle as usize).and_then(Cq::ring) {
            ring.push(produced, &zerocopy::transmute!(cqe));
            produced = produced.wrapping_add(1);
            room -= 1;
        }
    }
    if let Some(cq) = objects.cqs.get_mut(handle as usize) {
        cq.produced = produced;
    }
    Ok(written)
}

/// The entry for a completion: as the engine has it, but with the number that the client gave its request, and the slot that is
/// the client's again.
fn entry(objects: &mut Objects, qp: Handle, completion: &Completion, desk: &mut Desk<'_>) -> Cqe {
    let receive = completion.opcode as u8 & CQE_RECEIVE != 0;
    let mut flags = 0;
    for (flag, value) in [(WcFlags::GRH, CQE_GRH), (WcFlags::WITH_IMM, CQE_WITH_IMM), (WcFlags::WITH_INV, CQE_WITH_INV)]
    {
        if completion.flags.contains(flag) {
            flags |= value;
        }
    }
    let wqe = completion.wr_id as u32;
    let (mut wr_id, mut queue) = (completion.wr_id, qp);
    if let Ok(pair) = objects.qp(qp) {
        match (receive, &pair.receive, pair.srq) {
            (false, _, _) => {
                wr_id = pair.send.wr_id(&pair.place.area, wqe);
                if completion.status.is_success() {
                    desk.common.latency.record(desk.now.as_ns().saturating_sub(pair.taken_at(wqe).as_ns()));
                }
            }
            (true, Some(receives), _) => wr_id = receives.wr_id(&pair.place.area, wqe),
            // The engine was told the client's own number: requests of a shared queue complete in any order.
            (true, None, Some(srq)) => {
                queue = srq;
                flags |= CQE_SHARED;
            }
            (true, None, None) => {}
        }
    }
    if let Some(srq) = objects.srq_mut(queue).filter(|_| flags & CQE_SHARED != 0) {
        srq.retired = srq.retired.wrapping_add(1);
    }
    Cqe {
        wr_id,
        status: completion.status as u8,
        opcode: completion.opcode as u8,
        flags,
        byte_len: completion.byte_len,
        immediate: completion.imm.or(completion.invalidated).unwrap_or(0),
        vendor_err: completion.vendor_err,
        qpn: completion.qpn.get(),
        src_qp: completion.src_qp.get(),
        queue,
        wqe,
        pkey_index: completion.pkey_index,
        timestamp_ns: desk.now.as_ns(),
        ..Cqe::default()
    }
}
