//! Work requests out of shared memory into the engine.

use super::Ended;
use super::counters::{BadWorkCounters, SessionCounters};
use super::decode::BadRequest;
use super::objects::{Queue, QueuePair, Srq};
use super::session::{Desk, Session};
use crate::engine::{ObjectError, QpError};
use crate::ipc::protocol::Handle;
use crate::ipc::ring::{Bell, Lie};
use crate::ipc::shm::Area;
use crate::transport::{
    AttrMask, Completion, PostError, QpAttributes, QpState, RecvRequest, SendRequest, SrqError, WcOpcode, WcStatus,
};
use slab::Slab;
use std::collections::VecDeque;

/// Requests of one queue that are taken before the client's next queue has its turn.
const QUANTUM: usize = 32;

/// What came of reading a queue.
#[derive(Default)]
struct Progress {
    posted: usize,
    /// There is more.
    more: bool,
    /// The request that the queue pair refused: it is told as a completion, and the queue pair fails.
    refused: Option<(WcOpcode, u32)>,
}

impl Session {
    /// Posts at most `turn` work requests of this client.
    pub(super) fn post(&mut self, desk: &mut Desk<'_>, turn: usize) -> Result<usize, Ended> {
        self.take_rings();
        let (mut posted, mut left) = (0, turn);
        while left > 0 {
            let Some(handle) = self.pending.pop_front() else { break };
            set_pending(self.objects.queues.get_mut(handle as usize), false);
            let progress = self.post_queue(desk, handle, QUANTUM.min(left))?;
            posted += progress.posted;
            // Looking in vain costs too.
            left = left.saturating_sub(progress.posted.max(1));
            if progress.more {
                ring(&mut self.pending, self.objects.queues.get_mut(handle as usize), handle);
            }
        }
        Ok(posted)
    }

    /// Posts everything that a queue's client has posted so far, so that a call on the queue comes after it.
    pub(super) fn drain(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<(), Ended> {
        // As many as there can be now: a client that goes on posting does not keep us here.
        if self.post_queue(desk, handle, usize::MAX)?.more {
            ring(&mut self.pending, self.objects.queues.get_mut(handle as usize), handle);
        }
        Ok(())
    }

    /// Posts everything that the client has posted so far.
    pub(super) fn drain_all(&mut self, desk: &mut Desk<'_>) -> Result<(), Ended> {
        let handles: Vec<Handle> = self.objects.queues.iter().map(|(handle, _)| handle as Handle).collect();
        handles.into_iter().try_for_each(|handle| self.drain(desk, handle))
    }

    fn take_rings(&mut self) {
        let (pending, queues, rings) = (&mut self.pending, &mut self.objects.queues, &mut self.counters.rings);
        if let Some(bell) = bell(&self.area, queues) {
            bell.take(|handle| {
                *rings += 1;
                ring(pending, queues.get_mut(handle as usize), handle);
            });
        }
    }

    fn post_queue(&mut self, desk: &mut Desk<'_>, handle: Handle, most: usize) -> Result<Progress, Ended> {
        let progress = match self.objects.queues.get_mut(handle as usize) {
            Some(Queue::Qp(qp)) => qp.post(desk, most, &mut self.counters),
            Some(Queue::Srq(srq)) => srq.post(desk, most, &mut self.counters),
            None => Ok(Progress::default()),
        };
        let progress = progress.map_err(|lie| Ended::Lie { handle, lie })?;
        if let Some((opcode, wqe)) = progress.refused {
            self.fail_qp(desk, handle, opcode, wqe)?;
        }
        Ok(progress)
    }

    /// What a NIC does with a request that makes no sense: an error completion, and the queue pair goes to the error state.
    fn fail_qp(&mut self, desk: &mut Desk<'_>, handle: Handle, opcode: WcOpcode, wqe: u32) -> Result<(), Ended> {
        let Ok(QueuePair { qpn, send_cq, recv_cq, .. }) = self.objects.qp(handle) else { return Ok(()) };
        let (qpn, cq) = (*qpn, if opcode == WcOpcode::Recv { *recv_cq } else { *send_cq });
        // What was posted before completes before, if it can.
        self.deliver_qp(desk, handle)?;
        let status = WcStatus::LocalQpOperation;
        let completion = Completion { wr_id: wqe.into(), status, opcode, qpn, ..Completion::default() };
        self.complete(desk, cq, &[completion])?;
        // It can always be done, but from RESET, where nothing is to be failed.
        let _ = desk.engine.modify_qp(desk.now, qpn, &QpAttributes::to(QpState::Err), AttrMask::STATE);
        Ok(())
    }
}

impl QueuePair {
    /// Posts at most `most` send requests and as many receives.
    fn post(&mut self, desk: &mut Desk<'_>, most: usize, counters: &mut SessionCounters) -> Result<Progress, Lie> {
        let mut progress = Progress::default();
        // Receives first: a client that posts a receive and then a send expects the answer to find the receive.
        if let Some(queue) = &mut self.receive {
            let available = queue.available(&self.place.area)? as usize;
            progress.more |= available > most;
            for _ in 0..available.min(most) {
                let Some(ring) = queue.ring(&self.place.area) else { break };
                let wqe = queue.consumed;
                queue.consumed = wqe.wrapping_add(1);
                let posted = match desk.common.scratch.receive(ring.slot(wqe)) {
                    Ok(request) => {
                        let request = RecvRequest { wr_id: wqe.into(), ..request };
                        desk.engine.post_recv(desk.now, self.qpn, &request).map_err(bad)
                    }
                    Err(bad) => Err(bad),
                };
                if progress.count(posted, WcOpcode::Recv, wqe, &mut counters.receives, &mut counters.bad_work_requests)
                {
                    return Ok(progress);
                }
            }
        }
        let available = self.send.available(&self.place.area)? as usize;
        progress.more |= available > most;
        for _ in 0..available.min(most) {
            let Some(ring) = self.send.ring(&self.place.area) else { break };
            let wqe = self.send.consumed;
            self.send.consumed = wqe.wrapping_add(1);
            let slot = self.slot(wqe);
            if let Some(taken) = self.taken.get_mut(slot) {
                *taken = desk.now;
            }
            let own = self.datagram.then(|| (desk.engine.addresses(), self.qpn));
            let posted = match desk.common.scratch.send(ring.slot(wqe), own) {
                Ok(request) => {
                    let request = SendRequest { wr_id: wqe.into(), ..request };
                    desk.engine.post_send(desk.now, self.qpn, &request).map_err(bad)
                }
                Err(bad) => Err(bad),
            };
            if progress.count(posted, WcOpcode::Send, wqe, &mut counters.sends, &mut counters.bad_work_requests) {
                break;
            }
        }
        Ok(progress)
    }
}

impl Srq {
    fn post(&mut self, desk: &mut Desk<'_>, most: usize, counters: &mut SessionCounters) -> Result<Progress, Lie> {
        let mut progress = Progress::default();
        let available = self.queue.available(&self.place.area)? as usize;
        progress.more = available > most;
        for _ in 0..available.min(most) {
            let Some(ring) = self.queue.ring(&self.place.area) else { break };
            let wqe = self.queue.consumed;
            self.queue.consumed = wqe.wrapping_add(1);
            let posted = match desk.common.scratch.receive(ring.slot(wqe)) {
                Ok(request) => desk.engine.post_srq_recv(self.id, &request).map_err(bad_on_srq),
                Err(bad) => Err(bad),
            };
            progress.posted += 1;
            match posted {
                Ok(()) => counters.receives += 1,
                // No queue pair is there to tell it to. The slot is the client's loss.
                Err(bad) => counters.bad_work_requests.note(&bad),
            }
        }
        Ok(progress)
    }
}

impl Progress {
    /// Notes what became of a request. True if the queue pair refused it: nothing more is posted before it has failed.
    fn count(
        &mut self,
        posted: Result<(), BadRequest>,
        opcode: WcOpcode,
        wqe: u32,
        good: &mut u64,
        bad: &mut BadWorkCounters,
    ) -> bool {
        self.posted += 1;
        match posted {
            Ok(()) => *good += 1,
            Err(reason) => {
                bad.note(&reason);
                // Posted in a state that takes no posts: an honest client does not, and there is no completion for it.
                if !matches!(reason, BadRequest::Post(PostError::State(_))) {
                    self.refused = Some((opcode, wqe));
                    self.more = true;
                }
            }
        }
        self.refused.is_some()
    }
}

fn bad(error: QpError<PostError>) -> BadRequest {
    match error {
        QpError::Refused(error) => error.into(),
        // The queue pair went meanwhile.
        QpError::Unknown(_) => PostError::State(QpState::Reset).into(),
    }
}

fn bad_on_srq(error: ObjectError) -> BadRequest {
    match error {
        ObjectError::Srq(SrqError::Post(error)) => error.into(),
        _ => PostError::State(QpState::Reset).into(),
    }
}

/// The doorbells of the queues that there are. Others a client may ring as it likes.
pub(super) fn bell<'a>(area: &'a Area, queues: &Slab<Queue>) -> Option<Bell<'a>> {
    let whole = area.bell()?;
    // The slab's handles are as dense as they can be: none is beyond its capacity.
    let leaves = queues.capacity().div_ceil(64).min(whole.leaves.len());
    Some(Bell { leaves: whole.leaves.get(..leaves)?, summary: whole.summary.get(..leaves.div_ceil(64))?, ..whole })
}

fn set_pending(queue: Option<&mut Queue>, pending: bool) -> bool {
    let flag = match queue {
        Some(Queue::Qp(qp)) => &mut qp.pending,
        Some(Queue::Srq(srq)) => &mut srq.pending,
        // Rung for a queue that is not there: destroyed, or a lie that costs nothing.
        None => return true,
    };
    core::mem::replace(flag, pending)
}

/// Puts a queue into the list, if it is not there yet.
fn ring(pending: &mut VecDeque<Handle>, queue: Option<&mut Queue>, handle: Handle) {
    if !set_pending(queue, true) {
        pending.push_back(handle);
    }
}
