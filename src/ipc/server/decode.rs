//! Work requests out of shared memory: copied once into our own memory, then read from there.

use crate::ipc::abi::{BindTarget, DatagramTarget, MAX_INLINE, MAX_SGE, RdmaTarget, RecvWqe, SendWqe, SgeEntry};
use crate::ipc::protocol::source;
use crate::ipc::ring::copy_out;
use crate::memory::{Access, Sge};
use crate::transport::{AddressVector, Data, PostError, RecvRequest, SendFlags, SendOp, SendRequest, UdAddress};
use crate::wire::{Gid, Qpn};
use core::net::IpAddr;
use core::sync::atomic::AtomicU64;
use zerocopy::IntoBytes;

const SEND_WORDS: usize = size_of::<SendWqe>() / 8;
const RECV_WORDS: usize = size_of::<RecvWqe>() / 8;
const SGE_WORDS: usize = size_of::<SgeEntry>() / 8;
const DATA_WORDS: usize = if MAX_INLINE as usize / 8 > MAX_SGE as usize * SGE_WORDS {
    MAX_INLINE as usize / 8
} else {
    MAX_SGE as usize * SGE_WORDS
};

/// Where a work request is copied to.
#[derive(Debug)]
pub(super) struct Scratch {
    data: [u64; DATA_WORDS],
    sges: [Sge; MAX_SGE as usize],
}

impl Default for Scratch {
    fn default() -> Self {
        Self { data: [0; DATA_WORDS], sges: [Sge::default(); MAX_SGE as usize] }
    }
}

/// A work request that says nothing an engine could be asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum BadRequest {
    /// More data than a slot of the queue has room for.
    #[error("{count} entries or inline bytes, more than the queue's slots hold")]
    Count {
        /// What it said.
        count: u32,
    },
    /// Not one of `enum ibv_wr_opcode` that the device has.
    #[error("work request opcode {0} is not supported")]
    Opcode(u8),
    /// The datagram's own address has no entry in the GID table.
    #[error("the device has no address for this datagram")]
    Source,
    /// The queue pair refused it.
    #[error(transparent)]
    Post(#[from] PostError),
}

impl Scratch {
    /// The send request in `slot`. What `datagram` says decides how its target is read; `own` are the device's addresses.
    pub(super) fn send<'a>(
        &'a mut self,
        slot: &[AtomicU64],
        datagram: Option<(&[IpAddr], Qpn)>,
    ) -> Result<SendRequest<'a>, BadRequest> {
        let mut head = [0; SEND_WORDS];
        copy_out(slot, &mut head);
        let wqe: SendWqe = zerocopy::transmute!(head);
        let op = operation(&wqe)?;
        let flags = SendFlags::from_bits_truncate(wqe.flags.into());
        let to = datagram.map(|(own, qpn)| address(&wqe, own, qpn)).transpose()?;
        let data = slot.get(SEND_WORDS..).unwrap_or_default();
        let data = if flags.contains(SendFlags::INLINE) {
            Data::Inline(self.inline(data, wqe.count.into())?)
        } else {
            Data::Sges(self.entries(data, wqe.count.into())?)
        };
        Ok(SendRequest { wr_id: wqe.wr_id, op, flags, data, datagram: to })
    }

    /// The receive request in `slot`.
    pub(super) fn receive<'a>(&'a mut self, slot: &[AtomicU64]) -> Result<RecvRequest<'a>, BadRequest> {
        let mut head = [0; RECV_WORDS];
        copy_out(slot, &mut head);
        let wqe: RecvWqe = zerocopy::transmute!(head);
        let sges = self.entries(slot.get(RECV_WORDS..).unwrap_or_default(), wqe.count)?;
        Ok(RecvRequest { wr_id: wqe.wr_id, sges })
    }

    fn inline(&mut self, data: &[AtomicU64], count: u32) -> Result<&[u8], BadRequest> {
        let words = (count as usize).div_ceil(8);
        let (Some(from), Some(to)) = (data.get(..words), self.data.get_mut(..words)) else {
            return Err(BadRequest::Count { count });
        };
        copy_out(from, to);
        to.as_bytes().get(..count as usize).ok_or(BadRequest::Count { count })
    }

    fn entries(&mut self, data: &[AtomicU64], count: u32) -> Result<&[Sge], BadRequest> {
        let (Some(from), Some(sges)) = (data.get(..count as usize * SGE_WORDS), self.sges.get_mut(..count as usize))
        else {
            return Err(BadRequest::Count { count });
        };
        for (words, sge) in from.chunks_exact(SGE_WORDS).zip(sges.iter_mut()) {
            let mut entry = [0; SGE_WORDS];
            copy_out(words, &mut entry);
            let SgeEntry { address, length, lkey } = zerocopy::transmute!(entry);
            *sge = Sge { addr: address, length, lkey };
        }
        Ok(sges)
    }
}

fn operation(wqe: &SendWqe) -> Result<SendOp, BadRequest> {
    let RdmaTarget { address: va, rkey, compare_add, swap, .. } = zerocopy::transmute!(wqe.target);
    Ok(match wqe.opcode {
        0 => SendOp::Write { va, rkey },
        1 => SendOp::WriteImm { va, rkey, imm: wqe.immediate },
        2 => SendOp::Send,
        3 => SendOp::SendImm(wqe.immediate),
        4 => SendOp::Read { va, rkey },
        5 => SendOp::CompareSwap { va, rkey, compare: compare_add, swap },
        6 => SendOp::FetchAdd { va, rkey, add: compare_add },
        7 => SendOp::LocalInvalidate(wqe.immediate),
        8 => {
            let BindTarget { address: va, length, rkey, lkey, access, .. } = zerocopy::transmute!(wqe.target);
            SendOp::BindWindow { rkey, lkey, va, length, access: Access::from_bits_retain(access) }
        }
        9 => SendOp::SendInvalidate(wqe.immediate),
        other => return Err(BadRequest::Opcode(other)),
    })
}

fn address(wqe: &SendWqe, own: &[IpAddr], own_qpn: Qpn) -> Result<UdAddress, BadRequest> {
    let to: DatagramTarget = zerocopy::transmute!(wqe.target);
    let (destination, dest_qp) = (Gid(to.gid).address(), Qpn::new(to.qpn));
    let [gid_index, ..] = to.flow.to_be_bytes();
    let flow_label = to.flow & 0x000f_ffff;
    let source_port =
        if to.source_port == 0 { super::queues::lane(flow_label, own_qpn, dest_qp) } else { to.source_port };
    let hop_limit = if to.hop_limit == 0 { AddressVector::UNSET.hop_limit } else { to.hop_limit };
    let av = AddressVector {
        source: source(gid_index, destination, own).ok_or(BadRequest::Source)?,
        destination,
        source_port,
        traffic_class: to.traffic_class,
        hop_limit,
        flow_label,
    };
    Ok(UdAddress { av, dest_qp, qkey: to.qkey })
}
