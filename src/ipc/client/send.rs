//! Work requests into shared memory.

use super::context::Inner;
use super::retired::Half;
use super::{Data, PostError, QpCapabilities, QpState, QpType, RecvRequest, SendFlags, SendOp, SendRequest, UdAddress};
use crate::ipc::abi::{
    BindTarget, DatagramTarget, GID_BY_FAMILY, QueueGeometry, RdmaTarget, RecvWqe, SendWqe, SgeEntry,
};
use crate::ipc::protocol::Handle;
use crate::ipc::ring::{WorkRing, copy_in};
use crate::ipc::shm::Area;
use crate::memory::Sge;
use crate::wire::{Gid, MAX_MESSAGE_BYTES};
use core::net::IpAddr;
use core::sync::atomic::AtomicU64;

const SEND_WORDS: usize = size_of::<SendWqe>() / 8;
const RECV_WORDS: usize = size_of::<RecvWqe>() / 8;

/// A work queue as its client fills it.
#[derive(Debug)]
pub(super) struct Producer {
    geometry: QueueGeometry,
    half: Half,
    /// Requests written.
    posted: u32,
    /// Requests that the daemon was told of.
    published: u32,
}

impl Producer {
    pub(super) const fn new(geometry: QueueGeometry, half: Half) -> Self {
        Self { geometry, half, posted: 0, published: 0 }
    }

    pub(super) const fn posted(&self) -> u32 {
        self.posted
    }

    /// The next slot, if the queue is not full.
    fn slot<'a>(&self, context: &Inner, queue: Handle, area: &'a Area) -> Result<&'a [AtomicU64], PostError> {
        let outstanding = self.posted.wrapping_sub(context.retired.get(queue, self.half));
        match area.work_ring(&self.geometry) {
            Some(ring) if outstanding < self.geometry.depth => Ok(ring.slot(self.posted)),
            _ => Err(PostError::QueueFull { capacity: self.geometry.depth }),
        }
    }

    /// Tells the daemon of what was written.
    pub(super) fn publish(&mut self, context: &Inner, queue: Handle, area: &Area) {
        if self.published == self.posted {
            return;
        }
        self.published = self.posted;
        if let Some(ring) = area.work_ring(&self.geometry) {
            WorkRing::publish(&ring, self.posted);
            context.ring(queue);
        }
    }

    pub(super) fn push_receive(
        &mut self,
        context: &Inner,
        queue: Handle,
        area: &Area,
        max_sge: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        let given = request.sges.len();
        if given > max_sge as usize {
            return Err(PostError::TooManySges { given, max: max_sge });
        }
        let slot = self.slot(context, queue, area)?;
        let wqe = RecvWqe { wr_id: request.wr_id, count: given as u32, reserved: 0 };
        let head: [u64; RECV_WORDS] = zerocopy::transmute!(wqe);
        copy_in(&head, slot);
        write_sges(request.sges, slot.get(RECV_WORDS..).unwrap_or_default());
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    pub(super) fn push_send(
        &mut self,
        context: &Inner,
        queue: Handle,
        area: &Area,
        rules: &SendRules,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        rules.check(request)?;
        let target = match request.datagram {
            Some(to) => datagram(context.addresses(), &to)?,
            None => target(request.op),
        };
        let slot = self.slot(context, queue, area)?;
        let data = slot.get(SEND_WORDS..).unwrap_or_default();
        let (count, flags) = match request.data {
            Data::Sges(sges) => {
                write_sges(sges, data);
                (sges.len(), request.flags - SendFlags::INLINE)
            }
            Data::Inline(bytes) => {
                write_bytes(bytes, data);
                (bytes.len(), request.flags | SendFlags::INLINE)
            }
        };
        let (opcode, immediate) = opcode(request.op);
        let wqe =
            SendWqe { wr_id: request.wr_id, opcode, flags: flags.bits() as u8, count: count as u16, immediate, target };
        let head: [u64; SEND_WORDS] = zerocopy::transmute!(wqe);
        copy_in(&head, slot);
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }
}

/// What can be told of a request before it is posted. The daemon checks it all again.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRules {
    pub(super) kind: QpType,
    pub(super) state: QpState,
    pub(super) capabilities: QpCapabilities,
    pub(super) max_rd_atomic: u8,
}

impl SendRules {
    fn check(&self, request: &SendRequest<'_>) -> Result<(), PostError> {
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State(self.state));
        }
        let op = request.op;
        let offered = match self.kind {
            QpType::Rc => true,
            QpType::Uc => !op.is_read_or_atomic() && !matches!(op, SendOp::SendInvalidate(_)),
            QpType::Ud | QpType::Gsi => matches!(op, SendOp::Send | SendOp::SendImm(_)),
        };
        if !offered {
            return Err(PostError::WrongService(self.kind));
        }
        if request.datagram.is_some() != self.kind.is_datagram() {
            return Err(PostError::Address);
        }
        if op.is_read_or_atomic() && self.max_rd_atomic == 0 {
            return Err(PostError::NoReads);
        }
        self.check_data(op, request.data)
    }

    fn check_data(&self, op: SendOp, data: Data<'_>) -> Result<(), PostError> {
        let c = &self.capabilities;
        let bytes = match data {
            Data::Inline(_) if op.is_read_or_atomic() => return Err(PostError::WrongData),
            Data::Inline(bytes) if bytes.len() > c.max_inline_data as usize => {
                return Err(PostError::InlineTooLong { given: bytes.len(), max: c.max_inline_data });
            }
            Data::Inline(bytes) => bytes.len() as u64,
            Data::Sges(sges) if sges.len() > c.max_send_sge as usize => {
                return Err(PostError::TooManySges { given: sges.len(), max: c.max_send_sge });
            }
            Data::Sges(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        };
        if bytes > MAX_MESSAGE_BYTES.into() {
            return Err(PostError::MessageTooLong { given: bytes });
        }
        if op.is_atomic() && bytes != 8 || op.is_local() && bytes != 0 {
            return Err(PostError::WrongData);
        }
        Ok(())
    }
}

fn write_sges(sges: &[Sge], slot: &[AtomicU64]) {
    for (sge, words) in sges.iter().zip(slot.chunks_exact(2)) {
        let entry: [u64; 2] = zerocopy::transmute!(SgeEntry { address: sge.addr, length: sge.length, lkey: sge.lkey });
        copy_in(&entry, words);
    }
}

fn write_bytes(bytes: &[u8], slot: &[AtomicU64]) {
    for (chunk, word) in bytes.chunks(8).zip(slot.chunks(1)) {
        let mut value = [0; 8];
        value[..chunk.len()].copy_from_slice(chunk);
        copy_in(&[u64::from_ne_bytes(value)], word);
    }
}

/// `enum ibv_wr_opcode` and the immediate or key that goes with it.
const fn opcode(op: SendOp) -> (u8, u32) {
    match op {
        SendOp::Write { .. } => (0, 0),
        SendOp::WriteImm { imm, .. } => (1, imm),
        SendOp::Send => (2, 0),
        SendOp::SendImm(imm) => (3, imm),
        SendOp::Read { .. } => (4, 0),
        SendOp::CompareSwap { .. } => (5, 0),
        SendOp::FetchAdd { .. } => (6, 0),
        SendOp::LocalInvalidate(rkey) => (7, rkey),
        SendOp::BindWindow { .. } => (8, 0),
        SendOp::SendInvalidate(rkey) => (9, rkey),
    }
}

fn target(op: SendOp) -> [u64; 4] {
    let rdma = |address, rkey, compare_add, swap| {
        zerocopy::transmute!(RdmaTarget { address, rkey, reserved: 0, compare_add, swap })
    };
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::LocalInvalidate(_) => [0; 4],
        SendOp::Write { va, rkey } | SendOp::WriteImm { va, rkey, .. } | SendOp::Read { va, rkey } => {
            rdma(va, rkey, 0, 0)
        }
        SendOp::CompareSwap { va, rkey, compare, swap } => rdma(va, rkey, compare, swap),
        SendOp::FetchAdd { va, rkey, add } => rdma(va, rkey, add, 0),
        SendOp::BindWindow { rkey, lkey, va, length, access } => {
            let access = access.bits();
            zerocopy::transmute!(BindTarget { address: va, length, rkey, lkey, access, reserved: 0 })
        }
    }
}

fn datagram(own: &[IpAddr], to: &UdAddress) -> Result<[u64; 4], PostError> {
    let gid_index = gid_index(own, to.av.source).ok_or(PostError::Address)?;
    Ok(zerocopy::transmute!(DatagramTarget {
        gid: Gid::from(to.av.destination).0,
        qpn: to.dest_qp.get(),
        qkey: to.qkey,
        flow: to.av.flow_label & 0x000f_ffff | u32::from(gid_index) << 24,
        source_port: to.av.source_port,
        traffic_class: to.av.traffic_class,
        hop_limit: to.av.hop_limit,
    }))
}

/// The index of an address of ours; an unspecified one stands for whichever fits.
pub(super) fn gid_index(own: &[IpAddr], source: IpAddr) -> Option<u8> {
    if source.is_unspecified() {
        return Some(GID_BY_FAMILY);
    }
    own.iter().position(|address| *address == source.to_canonical()).and_then(|index| u8::try_from(index).ok())
}
