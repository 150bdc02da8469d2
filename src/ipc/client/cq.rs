//! Completion queues.

use super::channel::CompletionChannel;
use super::context::{Context, Inner, lock, map, single, unexpected};
use super::retired::Half;
use super::{Completion, Error, WcFlags, WcOpcode, WcStatus};
use crate::ipc::abi::{CQE_RECEIVE, CQE_SHARED, CQE_WITH_IMM, CQE_WITH_INV, Cqe, completion_area_bytes};
use crate::ipc::protocol::{Call, Handle, Reply};
use crate::ipc::ring::CompletionRing;
use crate::ipc::shm::Area;
use crate::wire::Qpn;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Empty polls between two offers of the processor.
const IDLE_POLLS: u32 = 1 << 7;
/// Empty polls between two looks whether the daemon is still there.
const LIVENESS_POLLS: u32 = 1 << 14;

/// A completion queue: `ibv_cq`. Cheap to clone; any thread may poll it.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    pub(super) inner: Arc<CqInner>,
}

#[derive(Debug)]
pub(super) struct CqInner {
    pub(super) context: Arc<Inner>,
    pub(super) handle: Handle,
    channel: Option<CompletionChannel>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    area: Area,
    depth: u32,
    consumer: u32,
    /// What was in the ring before a resize or the end of a queue pair.
    kept: VecDeque<Cqe>,
    /// Polls in a row that found nothing.
    idle: u32,
}

impl State {
    fn ring(&self) -> Option<CompletionRing<'_>> {
        self.area.completion_ring(self.depth)
    }

    /// The next entry, and that it is taken.
    fn take(&mut self) -> Option<Cqe> {
        if let Some(cqe) = self.kept.pop_front() {
            return Some(cqe);
        }
        let words = self.ring()?.peek(self.consumer)?;
        self.consumer = self.consumer.wrapping_add(1);
        Some(zerocopy::transmute!(words))
    }

    fn release(&self) {
        if let Some(ring) = self.ring() {
            ring.release(self.consumer);
        }
    }

    /// Moves what is in the ring aside, but for what `wanted` does not want.
    fn keep(&mut self, wanted: impl Fn(&Cqe) -> bool) -> Vec<Cqe> {
        let mut unwanted = Vec::new();
        let mut kept = VecDeque::new();
        while let Some(cqe) = self.take() {
            if wanted(&cqe) { kept.push_back(cqe) } else { unwanted.push(cqe) }
        }
        self.kept = kept;
        self.release();
        unwanted
    }
}

impl CompletionQueue {
    pub(super) fn create(context: &Context, entries: u32, channel: Option<&CompletionChannel>) -> Result<Self, Error> {
        let call = Call::CreateCompletionQueue { entries, channel: channel.map(|channel| channel.inner.handle) };
        let (handle, depth, fd) = match context.inner.call(call, &[])? {
            (Reply::CompletionQueue { cq, depth }, fds) => (cq, depth, single(fds)?),
            (other, _) => return Err(unexpected(&other)),
        };
        let area = map(&fd, completion_area_bytes(depth))?;
        let state = Mutex::new(State { area, depth, consumer: 0, kept: VecDeque::new(), idle: 0 });
        let (context, channel) = (Arc::clone(&context.inner), channel.cloned());
        let inner = Arc::new(CqInner { context, handle, channel, state });
        if let Some(channel) = &inner.channel {
            lock(&channel.inner.cqs).insert(handle, Arc::downgrade(&inner));
        }
        Ok(Self { inner })
    }

    /// Its handle, by which [events](super::AsyncEvent) name it.
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Completions that it holds.
    pub fn depth(&self) -> u32 {
        lock(&self.inner.state).depth
    }

    /// The channel of its events.
    pub fn channel(&self) -> Option<&CompletionChannel> {
        self.inner.channel.as_ref()
    }

    /// Takes completions, oldest first, as many as there are and fit; says how many. Never waits.
    ///
    /// # Errors
    /// [`Error::DaemonGone`], which is looked for now and then while the queue is empty.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        let mut slots = out.iter_mut();
        self.poll_entries(slots.len(), |cqe| {
            if let Some(slot) = slots.next() {
                *slot = completion(&cqe);
            }
        })
    }

    /// Takes the oldest completion, if there is one. Never waits.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_one(&self) -> Result<Option<Completion>, Error> {
        let mut one = [Completion::default()];
        Ok((self.poll(&mut one)? == 1).then_some(one[0]))
    }

    /// Takes at most `most` completions as the entries that the daemon wrote; says how many. For those who want other
    /// types than [`Completion`].
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_entries(&self, most: usize, mut each: impl FnMut(Cqe)) -> Result<usize, Error> {
        let mut state = lock(&self.inner.state);
        let mut taken = 0;
        while taken < most {
            let Some(cqe) = state.take() else { break };
            self.inner.retire(&cqe);
            each(cqe);
            taken += 1;
        }
        if taken > 0 {
            state.idle = 0;
            state.release();
        } else if most > 0 {
            state.idle = state.idle.wrapping_add(1);
            let idle = state.idle;
            drop(state);
            self.inner.idle(idle)?;
        }
        Ok(taken)
    }

    /// Asks for one event in the channel: for the next completion, or for the next that is solicited or failed. What has completed
    /// before makes none: poll until the queue is empty after arming. `ibv_req_notify_cq`.
    pub fn arm(&self, solicited_only: bool) {
        if let Some(ring) = lock(&self.inner.state).ring() {
            ring.arm(solicited_only);
        }
    }

    /// Changes how many completions it holds. What is in it stays.
    ///
    /// # Errors
    /// More are in it than the new size holds, a limit, or the daemon is gone.
    pub fn resize(&self, entries: u32) -> Result<(), Error> {
        // Nobody arms or polls meanwhile.
        let mut state = lock(&self.inner.state);
        let call = Call::ResizeCompletionQueue { cq: self.inner.handle, entries };
        let (depth, fd) = match self.inner.context.call(call, &[])? {
            (Reply::CompletionQueue { depth, .. }, fds) => (depth, single(fds)?),
            (other, _) => return Err(unexpected(&other)),
        };
        state.keep(|_| true);
        state.area = map(&fd, completion_area_bytes(depth))?;
        (state.depth, state.consumer) = (depth, 0);
        Ok(())
    }

    /// The event has been read from the channel. Under the lock, so that it does not fall between two areas of a resize.
    pub(super) fn heard(&self) {
        if let Some(ring) = lock(&self.inner.state).ring() {
            ring.heard();
        }
    }
}

impl CqInner {
    /// Drops what a queue pair has completed and nobody has polled: it was reset or destroyed.
    pub(super) fn forget(&self, qpn: Qpn) {
        for cqe in lock(&self.state).keep(|cqe| cqe.qpn != qpn.get()) {
            self.retire(&cqe);
        }
    }

    fn retire(&self, cqe: &Cqe) {
        let half = if cqe.opcode & CQE_RECEIVE == 0 { Half::Send } else { Half::Receive };
        if cqe.flags & CQE_SHARED != 0 {
            self.context.retired.add(cqe.queue, half, 1);
        } else {
            self.context.retired.up_to(cqe.queue, half, cqe.wqe);
        }
    }

    /// A program that only polls would keep a daemon on the same core from ever completing anything, and would never learn that it is gone.
    fn idle(&self, polls: u32) -> Result<(), Error> {
        if !polls.is_multiple_of(IDLE_POLLS) {
            core::hint::spin_loop();
            return Ok(());
        }
        if polls.is_multiple_of(LIVENESS_POLLS) && !self.context.is_alive() {
            return Err(Error::DaemonGone);
        }
        std::thread::yield_now();
        Ok(())
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            lock(&channel.inner.cqs).remove(&self.handle);
        }
        self.context.call_quietly(Call::DestroyCompletionQueue { cq: self.handle });
    }
}

/// A completion as the rest of the house knows it.
fn completion(cqe: &Cqe) -> Completion {
    Completion {
        wr_id: cqe.wr_id,
        status: WcStatus::from_verbs(cqe.status).unwrap_or(WcStatus::General),
        opcode: WcOpcode::from_verbs(cqe.opcode).unwrap_or_default(),
        flags: WcFlags::from_bits_truncate((cqe.flags & !CQE_SHARED).into()),
        byte_len: cqe.byte_len,
        imm: (cqe.flags & CQE_WITH_IMM != 0).then_some(cqe.immediate),
        invalidated: (cqe.flags & CQE_WITH_INV != 0).then_some(cqe.immediate),
        qpn: Qpn::new(cqe.qpn),
        src_qp: Qpn::new(cqe.src_qp),
        pkey_index: cqe.pkey_index,
        vendor_err: cqe.vendor_err,
    }
}
