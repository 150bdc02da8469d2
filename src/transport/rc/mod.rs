//! Reliable connection (IBTA 9.7).

mod answers;
mod completer;
mod dark;
mod requester;
mod responder;
mod retry;

pub(super) use requester::{Requester, Segment};
pub(super) use responder::Responder;

use super::{Burst, Context, Qp, QpState};
use crate::time::Instant;

impl Qp {
    /// Fills a burst with requests and answers. They take turns: answers go first only after requests left them no room.
    pub(super) fn rc_fill(&mut self, cx: &mut Context<'_>, burst: &mut Burst) {
        let answers_first = self.resp.goes_first;
        if answers_first {
            self.rc_send_answers(cx, burst);
        }
        if matches!(self.state(), QpState::Rts | QpState::Sqd) {
            self.rc_send_requests(cx, burst);
        }
        // An ACK is short: it may stand behind the last request of a burst.
        self.rc_send_answers(cx, burst);
        self.resp.goes_first = !answers_first && self.resp.has_answers(cx.now);
    }

    pub(super) fn rc_deadline(&self) -> Option<Instant> {
        [self.req.timer, self.req.rnr_until, self.resp.delayed_ack()].into_iter().flatten().min()
    }

    pub(super) fn rc_handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.resp.ack_is_due(cx.now);
        self.rc_handle_rnr_over(cx.now);
        self.rc_handle_ack_timeout(cx);
    }
}
