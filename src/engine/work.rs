//! Posts and completions.

use super::paths::Needs;
use super::{Engine, Entry, ObjectError, QpError};
use crate::time::Instant;
use crate::transport::{Completion, Context, CqId, Notice, PostError, Qp, RecvRequest, SendRequest, SrqId};
use crate::wire::Qpn;

impl Engine {
    /// Appends a send request.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, request: &SendRequest<'_>) -> Result<(), QpError<PostError>> {
        self.with_qp(now, qpn, |qp, cx| qp.post_send(cx, request))
    }

    /// Appends a receive to a queue pair's own queue.
    pub fn post_recv(&mut self, now: Instant, qpn: Qpn, request: &RecvRequest<'_>) -> Result<(), QpError<PostError>> {
        self.with_qp(now, qpn, |qp, cx| qp.post_recv(cx, request))
    }

    /// Appends a receive to a shared queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, request: &RecvRequest<'_>) -> Result<(), ObjectError> {
        Ok(self.shared.srqs.post(srq, request)?)
    }

    /// Takes completions of a queue, oldest first, as many as there are and fit; says how many. What they promise to be in a
    /// client's memory is there.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> usize {
        self.deliver_writes();
        self.shared.completions.poll(cq, out)
    }

    /// The next completion queue to which something was added since it was last returned here, and what.
    pub fn poll_dirty_cq(&mut self) -> Option<(CqId, Notice)> {
        self.shared.completions.poll_dirty()
    }

    /// Lends a queue pair what it needs, and looks after its timer and its turn.
    pub(super) fn with_qp<T, E>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        f: impl FnOnce(&mut Qp, &mut Context<'_>) -> Result<T, E>,
    ) -> Result<T, QpError<E>> {
        self.now = self.now.max(now);
        let slot = self.slot(qpn).ok_or(QpError::Unknown(qpn))?;
        let Some(Entry { qp, seat, .. }) = self.qps.get_mut(slot as usize) else { return Err(QpError::Unknown(qpn)) };
        let result = f(qp, &mut self.shared.context(self.paths.time(seat.path, now)));
        if result.is_ok() {
            self.called(slot);
        }
        result.map_err(QpError::Refused)
    }

    /// A queue pair was called: its timer and its turn are looked after before they can matter.
    #[inline]
    pub(super) fn called(&mut self, slot: u32) {
        if self.recent != Some(slot) {
            self.settle_recent();
            self.recent = Some(slot);
        }
    }

    /// Looks after the timer and the turn of the queue pair that was called last.
    #[inline]
    pub(super) fn settle_recent(&mut self) {
        let Some(slot) = self.recent.take() else { return };
        let Some(Entry { qp, seat, .. }) = self.qps.get(slot as usize) else { return };
        self.paths.note(self.now, *seat, Needs::of(qp, true));
    }

    /// Brings what was written to processes' memory there, and fails the queue pairs of a process whose memory is gone.
    pub(super) fn deliver_writes(&mut self) {
        self.shared.memory.flush();
        while let Some(failure) = self.shared.memory.poll_write_failure() {
            self.fail_pd(failure.pd);
        }
    }
}
