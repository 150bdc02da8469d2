//! The reaction point: how fast a queue pair may send.

use super::{Alpha, Bps, Tuning};
use crate::time::{Duration, Instant};

/// The sender's half of DCQCN (Zhu et al., SIGCOMM 2015, section 3.1, figure 7), for one queue pair.
///
/// A CNP cuts the rate by a part that follows alpha; after it a timer and a byte counter raise it again: half the way back each time
/// (fast recovery), then by steps beyond (additive, hyper increase). A queue pair at full rate is not limited and has no timer.
///
/// Nothing breaks where nobody calls [`ReactionPoint::handle_timeout`]: each call first does what was due before it, in O(1) however long
/// ago that was. So a queue pair with nothing to send needs no timer either.
///
/// # In the dark
///
/// [`ReactionPoint::freeze`] stops all timers, [`ReactionPoint::thaw`] lets them run on from where they were: a queue pair returns as
/// fast as it was, not at the full rate that some time without CNPs would give it. Marks and CNPs under way when the light went out tell of a
/// queue that is gone or is the dark's own; so CNPs count again only when they can be about what was sent after the thaw. A frozen one may be
/// kept, and thawed when its circuit is back. For all queue pairs of a path in one step: [`Tuning::handle_thaw`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReactionPoint {
    /// The paper's R_C and R_T; mean nothing while it is not limited.
    rate: Bps,
    target: Bps,
    alpha: Alpha,
    /// Raises by timer and by byte counter since the last cut.
    time_stage: u8,
    byte_stage: u8,
    is_limited: bool,
    /// A CNP came too soon after the last cut.
    cnp_waits: bool,
    bytes: u64,
    /// The last CNP that counted, or decay: alpha is as of then.
    alpha_since: Instant,
    raised_at: Instant,
    /// `Instant::MAX` before the first CNP.
    cut_at: Instant,
    /// `Instant::MAX` in the light.
    frozen_at: Instant,
    deaf_until: Instant,
}

/// What a CNP did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CnpEffect {
    /// The rate was cut.
    Cut,
    /// The last cut is too recent: it will be cut once when `rate_reduce_monitor_period` has passed.
    Deferred,
    /// It is about what was sent before the dark, or came in it.
    Discounted,
}

/// What raises the rate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Raise {
    Timer,
    Bytes,
}

/// After so many raises fast recovery is over (`rpg_threshold` is at most 31), and rate and target rise in parallel, to a bit a second.
const SETTLED: u64 = 64;

impl Default for ReactionPoint {
    fn default() -> Self {
        Self::new()
    }
}

impl ReactionPoint {
    /// One at full rate.
    pub const fn new() -> Self {
        Self {
            rate: Bps::MAX,
            target: Bps::MAX,
            alpha: Alpha::ZERO,
            time_stage: 0,
            byte_stage: 0,
            is_limited: false,
            cnp_waits: false,
            bytes: 0,
            alpha_since: Instant::ZERO,
            raised_at: Instant::ZERO,
            cut_at: Instant::MAX,
            frozen_at: Instant::MAX,
            deaf_until: Instant::ZERO,
        }
    }

    /// How fast it may send (R_C), as of the last call.
    pub fn rate(&self, tuning: &Tuning) -> Bps {
        if self.is_limited { tuning.clamp(self.rate) } else { tuning.max }
    }

    /// Where the rate is going (R_T).
    pub fn target(&self, tuning: &Tuning) -> Bps {
        if self.is_limited { tuning.clamp(self.target) } else { tuning.max }
    }

    /// How congested the way is believed to be.
    pub fn alpha(&self, now: Instant, tuning: &Tuning) -> Alpha {
        if self.cut_at == Instant::MAX {
            return Alpha::from_1024ths(tuning.parameters.initial_alpha_value);
        }
        let now = if self.is_frozen() { self.frozen_at } else { now };
        let (alpha, _) = self.decayed(now, tuning);
        alpha
    }

    /// Whether the rate is below the full one.
    pub const fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Whether it waits for the light.
    pub fn is_frozen(&self) -> bool {
        self.frozen_at != Instant::MAX
    }

    /// When [`ReactionPoint::handle_timeout`] has something to do.
    pub fn poll_timeout(&self, tuning: &Tuning) -> Option<Instant> {
        if self.is_frozen() {
            return None;
        }
        let cut = self.cnp_waits.then(|| self.cut_at + tuning.cut_every);
        let raise = self.is_limited.then(|| self.raised_at + tuning.raise_every);
        cut.into_iter().chain(raise).min()
    }

    /// Does what is due: cuts that had to wait, raises by the timer.
    pub fn handle_timeout(&mut self, now: Instant, tuning: &Tuning) {
        if self.is_frozen() {
            return;
        }
        if self.cnp_waits {
            let due = self.cut_at + tuning.cut_every;
            if tuning.thawed_between(self.cut_at, due) {
                // It came before the dark: after it CNPs are discounted for longer than one may wait.
                self.cnp_waits = false;
            } else if due <= now {
                self.raise_until(due, tuning);
                self.cut(due, tuning);
            }
        }
        self.raise_until(now, tuning);
    }

    /// A CNP came for this queue pair.
    pub fn handle_cnp(&mut self, now: Instant, tuning: &Tuning) -> CnpEffect {
        if self.is_frozen() || now < self.deaf_until || tuning.is_deaf(now) {
            return CnpEffect::Discounted;
        }
        self.handle_timeout(now, tuning);
        if self.cut_at != Instant::MAX && now < self.cut_at + tuning.cut_every {
            self.cnp_waits = true;
            return CnpEffect::Deferred;
        }
        if self.is_released(now, tuning) {
            self.cut_first(now, tuning);
        } else {
            self.cut(now, tuning);
        }
        CnpEffect::Cut
    }

    /// `bytes` went out.
    pub fn handle_sent(&mut self, now: Instant, bytes: u64, tuning: &Tuning) {
        if !self.is_limited || self.is_frozen() {
            return;
        }
        self.handle_timeout(now, tuning);
        if !self.is_limited || tuning.raise_bytes == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(bytes);
        let times = self.bytes / tuning.raise_bytes;
        if times > 0 {
            self.bytes %= tuning.raise_bytes;
            self.raise(times, Raise::Bytes, tuning);
        }
    }

    /// The light goes out: from now on no timer runs. Does nothing if it is out already.
    pub fn freeze(&mut self, now: Instant, tuning: &Tuning) {
        if self.is_frozen() {
            return;
        }
        self.handle_timeout(now, tuning);
        self.cnp_waits = false;
        self.frozen_at = now;
    }

    /// The light is back: timers run on. Where the driver's own clock stood still in the dark, `now` is the time of the freeze; what was on its
    /// way is discounted all the same. Does nothing if it is not frozen.
    pub fn thaw(&mut self, now: Instant, tuning: &Tuning) {
        if !self.is_frozen() {
            return;
        }
        let dark = now.since(self.frozen_at);
        self.frozen_at = Instant::MAX;
        self.alpha_since += dark;
        self.raised_at += dark;
        // Saturates: before the first CNP it stays where it is.
        self.cut_at += dark;
        self.deaf_until = now + tuning.cut_every;
    }

    /// Alpha at `now`, and since when it is that.
    fn decayed(&self, now: Instant, tuning: &Tuning) -> (Alpha, Instant) {
        let period = nanoseconds(tuning.decay_every);
        let times = nanoseconds(now.since(self.alpha_since)) / period;
        let since = self.alpha_since + Duration::from_nanos(times.saturating_mul(period));
        (self.alpha.decayed(tuning.parameters.dce_tcp_g, times), since)
    }

    /// Whether the next CNP is a first one: at full rate for as long as alpha takes to fall to 1/e. Earlier, what alpha knows is worth more: a
    /// queue pair whose bottleneck is little below its own line would be halved each time it gets to the top.
    fn is_released(&self, now: Instant, tuning: &Tuning) -> bool {
        self.cut_at == Instant::MAX || !self.is_limited && now.since(self.cut_at) >= tuning.release_after
    }

    fn cut_first(&mut self, now: Instant, tuning: &Tuning) {
        (self.alpha, self.alpha_since) = (Alpha::from_1024ths(tuning.parameters.initial_alpha_value), now);
        self.cut(now, tuning);
        let first = tuning.parameters.rate_to_set_on_first_cnp;
        if first != Bps::ZERO {
            (self.rate, self.target) = (tuning.clamp(first), tuning.clamp(first));
        }
    }

    /// R_T = R_C, R_C = R_C (1 - alpha/2), alpha = (1-g) alpha + g (the paper's equation 1).
    fn cut(&mut self, at: Instant, tuning: &Tuning) {
        let parameters = &tuning.parameters;
        let (alpha, _) = self.decayed(at, tuning);
        let rate = self.rate(tuning);
        let was_raised =
            self.byte_stage > 0 || parameters.clamp_tgt_rate_after_time_inc && self.time_stage > 0 || !self.is_limited;
        if parameters.clamp_tgt_rate || was_raised {
            self.target = rate;
        }
        let part = rate.fraction(alpha.raw(), Alpha::SHIFT_TO_1024THS + u32::from(parameters.rpg_gd));
        let least = rate.percent(parameters.rpg_min_dec_fac);
        self.rate = tuning.clamp(rate.saturating_sub(part).max(least));
        self.alpha = alpha.heard(parameters.dce_tcp_g);
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        (self.alpha_since, self.raised_at, self.cut_at) = (at, at, at);
        (self.is_limited, self.cnp_waits) = (true, false);
    }

    fn raise_until(&mut self, now: Instant, tuning: &Tuning) {
        if !self.is_limited {
            return;
        }
        let period = nanoseconds(tuning.raise_every);
        let times = nanoseconds(now.since(self.raised_at)) / period;
        if times > 0 {
            self.raised_at += Duration::from_nanos(times.saturating_mul(period));
            self.raise(times, Raise::Timer, tuning);
        }
    }

    /// `times` raises. What lies between the first and the last [`SETTLED`] is done in one step.
    fn raise(&mut self, times: u64, by: Raise, tuning: &Tuning) {
        (self.rate, self.target) = (tuning.clamp(self.rate), tuning.clamp(self.target));
        for _ in 0..times.min(SETTLED) {
            self.raise_once(by, tuning);
        }
        let rest = times.saturating_sub(SETTLED);
        if rest > SETTLED {
            let rise = self.step(tuning).saturating_mul(rest - SETTLED);
            self.rate = tuning.clamp(self.rate.saturating_add(rise));
            self.target = tuning.clamp(self.target.saturating_add(rise));
        }
        for _ in 0..rest.min(SETTLED) {
            self.raise_once(by, tuning);
        }
        if self.rate >= tuning.max {
            (self.is_limited, self.bytes) = (false, 0);
        }
    }

    fn raise_once(&mut self, by: Raise, tuning: &Tuning) {
        match by {
            Raise::Timer => self.time_stage = self.time_stage.saturating_add(1),
            Raise::Bytes => self.byte_stage = self.byte_stage.saturating_add(1),
        }
        self.target = tuning.clamp(self.target.saturating_add(self.step(tuning)));
        self.rate = self.rate.halfway_to(self.target);
    }

    /// What the target rises by: nothing in fast recovery, then R_AI, R_HAI when both timer and byte counter got that far (figure 7).
    fn step(&self, tuning: &Tuning) -> Bps {
        let parameters = &tuning.parameters;
        let (higher, lower) = (self.time_stage.max(self.byte_stage), self.time_stage.min(self.byte_stage));
        if higher < parameters.rpg_threshold {
            Bps::ZERO
        } else if lower > parameters.rpg_threshold {
            parameters.rpg_hai_rate
        } else {
            parameters.rpg_ai_rate
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
