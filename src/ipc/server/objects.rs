//! What a client has.

use super::arena::{Arenas, Place};
use super::pipe::EventPipe;
use super::{Map, Set};
use crate::ipc::abi::QueueGeometry;
use crate::ipc::protocol::{Handle, ObjectKind, Refusal};
use crate::ipc::ring::{CompletionRing, Lie, WorkRing};
use crate::ipc::shm::Area;
use crate::memory::PdId;
use crate::time::Instant;
use crate::transport::{CqId, SrqId};
use crate::wire::Qpn;
use slab::Slab;

/// A client's objects. QPs and SRQs share one table: their handles are the bits of the doorbell bitmap.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) pds: Slab<PdId>,
    pub(super) channels: Slab<Channel>,
    pub(super) cqs: Slab<Cq>,
    pub(super) queues: Slab<Queue>,
    /// L_Keys of regions, and whether the region's memory is mapped here.
    pub(super) regions: Map<u32, bool>,
    /// Upper 24 bits of the keys of windows.
    pub(super) windows: Set<u32>,
    /// Mappings of areas and regions.
    pub(super) mappings: u32,
    pub(super) cqs_by_id: Map<CqId, Handle>,
    pub(super) qps_by_number: Map<Qpn, Handle>,
    pub(super) srqs_by_id: Map<SrqId, Handle>,
    /// Bytes of all areas.
    pub(super) area_bytes: u64,
    /// Areas of the work queues.
    pub(super) arenas: Arenas,
}

/// A completion channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) pipe: EventPipe,
    /// Completion queues that tell their events there.
    pub(super) cqs: u32,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) id: CqId,
    pub(super) area: Area,
    pub(super) depth: u32,
    /// Entries written.
    pub(super) produced: u32,
    pub(super) channel: Option<Handle>,
    /// Once an entry found no room, no more are written (IBTA 11.6.3.1).
    pub(super) overrun: bool,
}

impl Cq {
    pub(super) fn ring(&self) -> Option<CompletionRing<'_>> {
        self.area.completion_ring(self.depth)
    }
}

/// A work queue and how far it has been read.
#[derive(Debug)]
pub(super) struct WorkQueue {
    pub(super) geometry: QueueGeometry,
    pub(super) consumed: u32,
}

impl WorkQueue {
    pub(super) const fn new(geometry: QueueGeometry) -> Self {
        Self { geometry, consumed: 0 }
    }

    pub(super) fn ring<'a>(&self, area: &'a Area) -> Option<WorkRing<'a>> {
        area.work_ring(&self.geometry)
    }

    /// Requests that the client has posted and nobody has read.
    pub(super) fn available(&self, area: &Area) -> Result<u32, Lie> {
        self.ring(area).map_or(Ok(0), |ring| ring.available(self.consumed))
    }

    /// The number of the slot that the client gave `wr_id` when it completes: what the engine was told instead.
    pub(super) fn wr_id(&self, area: &Area, wqe: u32) -> u64 {
        let mut word = [0];
        if let Some(ring) = self.ring(area) {
            // Not read since the post, and only ever given back to the client that wrote it.
            crate::ipc::ring::copy_out(ring.slot(wqe), &mut word);
        }
        word[0]
    }
}

/// What can ring a doorbell.
#[derive(Debug)]
pub(super) enum Queue {
    Qp(QueuePair),
    Srq(Srq),
}

/// A queue pair's half in shared memory.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) qpn: Qpn,
    pub(super) place: Place,
    pub(super) send: WorkQueue,
    pub(super) receive: Option<WorkQueue>,
    pub(super) send_cq: Handle,
    pub(super) recv_cq: Handle,
    pub(super) srq: Option<Handle>,
    pub(super) datagram: bool,
    /// When each send request was taken, by its slot.
    pub(super) taken: Box<[Instant]>,
    /// Waits in the list of queues that have something new.
    pub(super) pending: bool,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) id: SrqId,
    pub(super) place: Place,
    pub(super) queue: WorkQueue,
    /// Requests that came back to the client: completed, or returned when a QP went.
    pub(super) retired: u32,
    /// Waits in the list of queues that have something new.
    pub(super) pending: bool,
}

impl QueuePair {
    /// When send request `wqe` was taken from the ring.
    pub(super) fn taken_at(&self, wqe: u32) -> Instant {
        self.taken.get(self.slot(wqe)).copied().unwrap_or_default()
    }

    pub(super) fn slot(&self, wqe: u32) -> usize {
        // As many as the ring has, a power of two.
        wqe as usize & self.taken.len().wrapping_sub(1)
    }
}

impl Objects {
    pub(super) fn pd(&self, handle: Handle) -> Result<PdId, Refusal> {
        self.pds.get(handle as usize).copied().ok_or(Refusal::Unknown { kind: ObjectKind::Pd, handle })
    }

    pub(super) fn cq(&self, handle: Handle) -> Result<&Cq, Refusal> {
        self.cqs.get(handle as usize).ok_or(Refusal::Unknown { kind: ObjectKind::CompletionQueue, handle })
    }

    pub(super) fn cq_mut(&mut self, handle: Handle) -> Result<&mut Cq, Refusal> {
        self.cqs.get_mut(handle as usize).ok_or(Refusal::Unknown { kind: ObjectKind::CompletionQueue, handle })
    }

    pub(super) fn channel_mut(&mut self, handle: Handle) -> Result<&mut Channel, Refusal> {
        self.channels.get_mut(handle as usize).ok_or(Refusal::Unknown { kind: ObjectKind::Channel, handle })
    }

    pub(super) fn qp(&self, handle: Handle) -> Result<&QueuePair, Refusal> {
        match self.queues.get(handle as usize) {
            Some(Queue::Qp(qp)) => Ok(qp),
            _ => Err(Refusal::Unknown { kind: ObjectKind::QueuePair, handle }),
        }
    }

    pub(super) fn srq(&self, handle: Handle) -> Result<&Srq, Refusal> {
        match self.queues.get(handle as usize) {
            Some(Queue::Srq(srq)) => Ok(srq),
            _ => Err(Refusal::Unknown { kind: ObjectKind::SharedReceiveQueue, handle }),
        }
    }

    pub(super) fn srq_mut(&mut self, handle: Handle) -> Option<&mut Srq> {
        match self.queues.get_mut(handle as usize) {
            Some(Queue::Srq(srq)) => Some(srq),
            _ => None,
        }
    }
}
