//! Going back: timeouts, RNR waits, and their budgets (IBTA 9.7.6.1.3, 9.7.5.2.8).

use crate::time::{Duration, Instant};
use crate::transport::{Context, Qp, WcStatus};
use crate::wire::RnrTimer;

/// The value of `rnr_retry` that means "for ever" (IBTA 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;

impl Qp {
    /// The ACK timeout: 4.096 us * 2^t, never if t is 0. A peer may take up to four times that long by IBTA; we take it as it is.
    pub(super) fn rc_ack_timeout(&self) -> Option<Duration> {
        match self.attrs.timeout {
            0 => None,
            t => Some(Duration::from_nanos(4096 << t.min(31))),
        }
    }

    /// Something was sent: the timer runs if it did not already.
    pub(super) fn rc_arm_timer(&mut self, now: Instant) {
        if self.req.timer.is_none() {
            self.req.timer = self.rc_ack_timeout().map(|t| now + t);
        }
    }

    /// The peer gave a sign of life. Nothing is timed while nothing is under way, or while all of it is to be sent again.
    pub(super) fn rc_restart_timer(&mut self, now: Instant) {
        let under_way = self.req.awaits() && self.req.outstanding() > 0;
        self.req.timer = if under_way { self.rc_ack_timeout().map(|t| now + t) } else { None };
    }

    pub(super) fn rc_handle_ack_timeout(&mut self, cx: &mut Context<'_>) {
        if self.req.timer.is_some_and(|at| at <= cx.now) {
            self.req.timer = None;
            if self.req.awaits() {
                self.counters.local_ack_timeout_err += 1;
                self.req.asked_again = None;
                self.req.handle_silence();
                self.rc_go_back(cx, WcStatus::RetryExceeded);
            }
        }
    }

    /// The peer has no receive: wait as long as it says, then send again from there. The ACK timer rests meanwhile.
    pub(super) fn rc_handle_rnr(&mut self, cx: &mut Context<'_>, timer: RnrTimer) {
        self.counters.rnr_nak_retry_err += 1;
        if self.attrs.rnr_retry != RNR_FOR_EVER {
            match self.req.rnr_retries_left.checked_sub(1) {
                Some(left) => self.req.rnr_retries_left = left,
                None => {
                    self.counters.retry_rnr_exceeded_err += 1;
                    self.fail_send(cx, WcStatus::RnrRetryExceeded, 0);
                    return;
                }
            }
        }
        self.rc_rewind();
        self.req.rnr_until = Some(cx.now + timer.duration());
    }

    pub(super) fn rc_handle_rnr_over(&mut self, now: Instant) {
        if self.req.rnr_until.is_some_and(|at| at <= now) {
            self.req.rnr_until = None;
        }
    }

    /// Goes back and lets one packet ask how far the peer is.
    pub(super) fn rc_ask(&mut self) {
        self.rc_rewind();
        self.req.ask();
    }

    /// Sends again from the oldest unanswered PSN, if the budget allows.
    pub(super) fn rc_go_back(&mut self, cx: &mut Context<'_>, exhausted: WcStatus) {
        if self.req.pardons < cx.limits.pardons {
            self.req.pardons += 1;
            self.rc_rewind();
            return;
        }
        match self.req.retries_left.checked_sub(1) {
            Some(left) => self.req.retries_left = left,
            None => {
                self.counters.retry_exceeded_err += 1;
                self.fail_send(cx, exhausted, 0);
                return;
            }
        }
        self.rc_rewind();
    }

    fn rc_rewind(&mut self) {
        self.req.recovering = Some(self.req.sent);
        self.req.timer = None;
        self.req.unasked = 0;
        self.req.reads = 0;
        self.rc_seek_una();
    }

    /// Puts the cursor on `una`, which is in the oldest request or at its start.
    pub(super) fn rc_seek_una(&mut self) {
        let una = self.req.una;
        self.req.next = una;
        self.req.cursor = self.sq.head();
        self.req.offset = match self.sq.get(self.sq.head()) {
            Some(entry) if self.sq.head() < self.req.begun => una.minus(entry.first_psn.get()).get(),
            _ => 0,
        };
    }
}
