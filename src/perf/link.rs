//! Queue pairs, memory and completions of one side, connected to the other.

use super::exchange::Side;
use super::plan::{Measure, Operation, Plan, Transport};
use super::{Pattern, PerfError};
use crate::ipc::client::{
    Access, AddressHandle, Completion, CompletionChannel, CompletionQueue, ConnectionOptions, Context, Data,
    MemoryRegion, Pd, Psn, QpCapabilities, Qpn, QueuePair, RecvRequest, SendFlags, SendOp, SendRequest, UdAddress,
    WcOpcode, WcStatus,
};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A message's place: which queue pair, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub qp: usize,
    pub number: u64,
}

impl Message {
    const NUMBER_BITS: u32 = 48;

    /// As a work request's cookie.
    pub(super) const fn wr_id(self) -> u64 {
        (self.qp as u64) << Self::NUMBER_BITS | self.number & ((1 << Self::NUMBER_BITS) - 1)
    }

    /// Out of a completion's cookie.
    pub(super) const fn of(wr_id: u64) -> Self {
        Self { qp: (wr_id >> Self::NUMBER_BITS) as usize, number: wr_id & ((1 << Self::NUMBER_BITS) - 1) }
    }
}

/// Which of a side's two buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Buffer {
    /// What is sent from, or read by the peer.
    Out,
    /// What is received or read into, or written by the peer.
    In,
}

/// One side of a measurement.
pub(super) struct Link {
    pub plan: Plan,
    pub qps: Vec<QueuePair>,
    pub memory: MemoryRegion,
    pub peer: Option<Side>,
    cq: CompletionQueue,
    channel: CompletionChannel,
    psns: Vec<Psn>,
    /// Whom each queue pair sends to (UD).
    to: Vec<UdAddress>,
    by_number: HashMap<Qpn, usize>,
    batch: Vec<Completion>,
}

/// How long a side looks for the completion of the one message under way before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Without a completion for so long the measurement is given up: longer than the longest ACK timeout with its retries that
/// perf asks for.
const PATIENCE: Duration = Duration::from_secs(30);
const UNRELIABLE_PATIENCE: Duration = Duration::from_secs(3);
/// The queue key of all perf's datagrams.
const QKEY: u32 = 0x1111_1111;

impl Link {
    /// Makes everything that `plan` needs; not connected yet.
    pub(super) fn open(context: &Context, plan: &Plan) -> Result<Self, PerfError> {
        let pd = context.allocate_pd()?;
        let channel = context.create_channel()?;
        let depth = if plan.measure == Measure::Latency { 2 } else { plan.depth };
        // Sends and credits, receives and credits: two each at most.
        let entries = (plan.queue_pairs * depth * 4).max(64);
        let cq = context.create_cq(entries, Some(&channel))?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let bytes = u64::from(plan.queue_pairs) * (plan.out_bytes() + plan.in_bytes());
        let memory = pd.allocate(usize::try_from(bytes).unwrap_or(usize::MAX), rights)?;
        let qps = Self::queue_pairs(&pd, plan, &cq, depth)?;
        let by_number = qps.iter().enumerate().map(|(i, qp)| (qp.qpn(), i)).collect();
        // Any PSN will do; one that differs from QP to QP and run to run shows mistakes.
        let seed = std::process::id().wrapping_mul(0x9e37_79b9);
        let psns = qps.iter().map(|qp| Psn::new(seed ^ qp.qpn().get().wrapping_mul(0x85eb_ca6b))).collect();
        let batch = vec![Completion::default(); 64];
        Ok(Self { plan: plan.clone(), qps, memory, peer: None, to: Vec::new(), cq, channel, psns, by_number, batch })
    }

    fn queue_pairs(pd: &Pd, plan: &Plan, cq: &CompletionQueue, depth: u32) -> Result<Vec<QueuePair>, PerfError> {
        let caps = QpCapabilities {
            max_send_wr: 2 * depth + 1,
            max_recv_wr: 2 * depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: plan.inline_bytes,
        };
        (0..plan.queue_pairs)
            .map(|_| Ok(pd.queue_pair(plan.transport.qp_type(), cq, cq).capabilities(caps).create()?))
            .collect()
    }

    /// What the other side must know.
    pub(super) fn side(&self) -> Result<Side, PerfError> {
        let endpoints = self.qps.iter().zip(&self.psns).map(|(qp, psn)| qp.endpoint(*psn));
        Ok(Side {
            endpoints: endpoints.collect::<Option<_>>().ok_or(PerfError::NoAddress)?,
            address: self.memory.address(),
            length: self.memory.len(),
            rkey: self.memory.rkey(),
        })
    }

    /// Connects every queue pair to its opposite.
    pub(super) fn connect(&mut self, peer: Side) -> Result<(), PerfError> {
        if peer.endpoints.len() != self.qps.len() || peer.length != self.memory.len() {
            return Err(PerfError::Conversation(format!("{} endpoints, {} bytes", peer.endpoints.len(), peer.length)));
        }
        if self.plan.transport == Transport::Ud {
            for ((qp, psn), endpoint) in self.qps.iter().zip(&self.psns).zip(&peer.endpoints) {
                qp.activate(QKEY, *psn)?;
                self.to.push(AddressHandle::to(endpoint.address).queue_pair(endpoint.qpn, QKEY));
            }
            self.peer = Some(peer);
            return Ok(());
        }
        let options = ConnectionOptions {
            path_mtu: self.plan.path_mtu,
            timeout: self.plan.timeout,
            retry_count: self.plan.retry_count,
            ..ConnectionOptions::default()
        };
        for ((qp, psn), endpoint) in self.qps.iter().zip(&self.psns).zip(&peer.endpoints) {
            qp.connect(endpoint, *psn, &options)?;
        }
        self.peer = Some(peer);
        Ok(())
    }

    /// Offset of a message's place in the memory of either side.
    pub(super) fn offset(&self, buffer: Buffer, qp: usize, number: u64) -> u64 {
        let (plan, qp) = (&self.plan, qp as u64);
        let slot = number % plan.slots() * plan.stride();
        match buffer {
            Buffer::Out if plan.slides() => qp * plan.out_bytes() + Pattern::slide(number),
            Buffer::Out => qp * plan.out_bytes() + slot,
            Buffer::In => {
                let first = self.qps.len() as u64 * plan.out_bytes() + qp * plan.in_bytes();
                first + slot + plan.transport.receive_header_bytes()
            }
        }
    }

    /// What a verified message consists of.
    pub(super) fn content(&self, qp: usize, number: u64) -> Pattern {
        Pattern::of(qp as u32, 0).after(Pattern::slide(number) as usize)
    }

    /// Posts the send request of one message.
    pub(super) fn post(
        &self,
        message: Message,
        op: SendOp,
        source: u64,
        size: u32,
        signal: bool,
    ) -> Result<(), PerfError> {
        let Some(qp) = self.qps.get(message.qp) else { return Ok(()) };
        let mut flags = if signal { SendFlags::SIGNALED } else { SendFlags::empty() };
        let sges = [self.memory.sge(source..source + u64::from(size))];
        let mut inline = [0; QpCapabilities::MAX_INLINE as usize];
        let carries = matches!(op, SendOp::Write { .. } | SendOp::Send | SendOp::SendImm(_) | SendOp::WriteImm { .. });
        let mut data = if size == 0 { Data::Sges(&[]) } else { Data::Sges(&sges) };
        if carries
            && size > 0
            && size <= self.plan.inline_bytes
            && let Some(bytes) = inline.get_mut(..size as usize)
            && self.memory.read(source, bytes)
        {
            flags |= SendFlags::INLINE;
            data = Data::Inline(bytes);
        }
        Ok(qp.post_send(&SendRequest {
            wr_id: message.wr_id(),
            op,
            flags,
            data,
            datagram: self.to.get(message.qp).copied(),
        })?)
    }

    /// Posts a receive into a message's slot; `size` 0 is one without a place for bytes.
    pub(super) fn post_receive(&self, message: Message, size: u32) -> Result<(), PerfError> {
        let Some(qp) = self.qps.get(message.qp) else { return Ok(()) };
        let at = self.offset(Buffer::In, message.qp, message.number);
        let header = self.plan.transport.receive_header_bytes();
        let sges = [self.memory.sge(at - header..at + u64::from(size))];
        let sges = if size == 0 { &[][..] } else { &sges[..] };
        Ok(qp.post_recv(&RecvRequest { wr_id: message.wr_id(), sges })?)
    }

    /// Which queue pair a completion belongs to.
    pub(super) fn index_of(&self, completion: &Completion) -> usize {
        self.by_number.get(&completion.qpn).copied().unwrap_or(0)
    }

    /// Gives each completion there is to `each`; gives back how many there were. Never waits. One in error ends it.
    pub(super) fn poll(
        &mut self,
        mut each: impl FnMut(&mut Self, &Completion) -> Result<(), PerfError>,
    ) -> Result<usize, PerfError> {
        let mut batch = std::mem::take(&mut self.batch);
        let polled = self.cq.poll(&mut batch);
        let outcome = polled.map_err(PerfError::from).and_then(|n| {
            for completion in batch.iter().take(n) {
                check(completion)?;
                each(self, completion)?;
            }
            Ok(n)
        });
        self.batch = batch;
        outcome
    }

    /// As [`Self::poll`], but waits for the first for at most `limit`: spins for a while, or for ever if the plan says so, then
    /// sleeps.
    pub(super) fn wait(
        &mut self,
        limit: Duration,
        mut each: impl FnMut(&mut Self, &Completion) -> Result<(), PerfError>,
    ) -> Result<usize, PerfError> {
        let start = Instant::now();
        loop {
            let n = self.poll(&mut each)?;
            let waited = start.elapsed();
            if n > 0 || waited >= limit {
                return Ok(n);
            }
            // With many messages under way the processor is better left to the daemon.
            let spin = if self.plan.measure == Measure::Latency { SPIN } else { Duration::ZERO };
            if self.plan.spin || waited < spin {
                std::thread::yield_now();
                continue;
            }
            self.cq.arm(false);
            // What came before the arming makes no event.
            let n = self.poll(&mut each)?;
            if n > 0 {
                return Ok(n);
            }
            self.channel.wait(Some(limit.saturating_sub(waited)))?;
        }
    }

    /// As [`Self::wait`], but it is an error if nothing comes for a long time.
    pub(super) fn wait_patiently(
        &mut self,
        each: impl FnMut(&mut Self, &Completion) -> Result<(), PerfError>,
    ) -> Result<(), PerfError> {
        match self.wait(self.patience(), each)? {
            0 => Err(self.stalled()),
            _ => Ok(()),
        }
    }

    /// How long to wait for a message before giving up: one that was lost comes over a reliable service only.
    pub(super) const fn patience(&self) -> Duration {
        if self.plan.transport.is_reliable() { PATIENCE } else { UNRELIABLE_PATIENCE }
    }

    /// Nothing came for that long.
    pub(super) const fn stalled(&self) -> PerfError {
        match self.plan.transport.is_reliable() {
            true => PerfError::Stalled { seconds: PATIENCE.as_secs() },
            false => PerfError::Lost { transport: self.plan.transport.name() },
        }
    }

    /// Whether messages of this plan are acknowledged by the receiving program, so that none overwrites another unseen.
    pub(super) fn has_credits(&self) -> bool {
        self.plan.verify
            && self.plan.transport.is_reliable()
            && matches!(self.plan.operation, Operation::Write | Operation::Send)
    }
}

fn check(completion: &Completion) -> Result<(), PerfError> {
    if completion.status == WcStatus::Success {
        return Ok(());
    }
    let what = match completion.opcode {
        WcOpcode::Send => "SEND",
        WcOpcode::RdmaWrite => "WRITE",
        WcOpcode::RdmaRead => "READ",
        WcOpcode::CompareSwap | WcOpcode::FetchAdd => "atomic",
        _ => "request",
    };
    Err(PerfError::Completion { what, status: completion.status, qpn: completion.qpn.get() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_messages_place_survives_its_cookie() {
        let m = Message { qp: 4095, number: (1 << 48) - 1 };
        assert_eq!(Message::of(m.wr_id()), m);
    }
}
