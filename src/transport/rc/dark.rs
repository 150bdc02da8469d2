//! The dark: what a queue pair does when its path has light again, or never will.

use crate::time::{Duration, Instant};
use crate::transport::{Context, Failure, Qp, QpState, QpType, WcStatus};

impl Qp {
    /// Whether an answer of the peer is due: silence means something then.
    #[inline]
    pub fn awaits_answer(&self) -> bool {
        self.req.awaits() && self.req.rnr_until.is_none() && matches!(self.state(), QpState::Rts | QpState::Sqd)
    }

    /// There is light again, after packets were lost without a trace. Asks with one packet, the oldest unanswered one, how far the peer
    /// is; its answer says what is to be sent again. Costs no retry: the peer was not asked. `is_certain` if packets are known to be lost,
    /// and the peer not only slow.
    pub fn handle_light(&mut self, cx: &mut Context<'_>, is_certain: bool) {
        self.rc_doubt(cx, true, !is_certain);
        self.req.pardons = 0;
    }

    /// No answer has come for a while, from nobody on the path: asks as at the light. The ACK timer starts anew or runs on.
    pub fn handle_doubt(&mut self, cx: &mut Context<'_>, starts_anew: bool) {
        self.rc_doubt(cx, starts_anew, true);
    }

    fn rc_doubt(&mut self, cx: &mut Context<'_>, starts_anew: bool, is_cautious: bool) {
        if self.init.kind != QpType::Rc || !self.awaits_answer() {
            return;
        }
        let timer = self.req.timer.filter(|_| !starts_anew);
        self.rc_ask();
        if is_cautious {
            self.req.handle_silence();
        }
        self.req.timer = timer;
        self.rc_arm_timer(cx.now);
    }

    /// There will be no light: what waits fails as when a peer does not answer (IBV_WC_RETRY_EXC_ERR). Whether anything did.
    pub fn handle_lost(&mut self, cx: &mut Context<'_>) -> bool {
        let waits =
            self.init.kind == QpType::Rc && !self.sq.is_empty() && matches!(self.state(), QpState::Rts | QpState::Sqd);
        if waits {
            self.counters.retry_exceeded_err += 1;
            self.failure.get_or_insert(Failure::Dark);
            self.fail_send(cx, WcStatus::RetryExceeded, 0);
        }
        waits
    }

    /// For how long it has waited for an answer, if its ACK timer has run out.
    pub fn timed_out_after(&self, now: Instant) -> Option<Duration> {
        let at = self.req.timer.filter(|at| *at <= now)?;
        Some(self.rc_ack_timeout()? + now.since(at))
    }

    /// It rides another path, whose clock shows something else at the same moment.
    pub fn handle_clock_change(&mut self, was: Instant, is: Instant) {
        let moved = |at: Instant| is + at.since(was);
        self.req.timer = self.req.timer.map(moved);
        self.req.rnr_until = self.req.rnr_until.map(moved);
        self.resp.move_delayed_ack(moved);
    }
}
