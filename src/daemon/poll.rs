//! When a worker looks again, and when it sleeps.
//!
//! A wake-up costs about 10 us of CPU and as much latency, a spin costs a core. So a worker that ran dry spins for a
//! *window* and only then sleeps. The window follows what sleeping brought, as KVM's halt polling does: a sleep that
//! ended soon says that a longer spin would have caught the event (the window doubles), a long one says that spinning
//! was in vain (the window halves, down to nothing: an idle daemon costs nothing).

use crate::time::{Duration, Instant};

/// How eagerly a worker polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollPolicy {
    /// Never sleep: for cores set apart, as on a DPU.
    pub always: bool,
    /// The longest spin before a sleep. Zero: sleep at once.
    pub spin_max: Duration,
}

impl Default for PollPolicy {
    fn default() -> Self {
        Self { always: false, spin_max: Duration::from_micros(200) }
    }
}

/// What a worker that found nothing to do does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    /// Look again at once.
    Spin,
    /// Sleep until an event, or until the next deadline of the engine.
    Sleep,
}

/// The first window after a fruitful sleep: what one wake-up costs.
const WAKE_COST: Duration = Duration::from_micros(10);

/// The adaptive window of one worker.
#[derive(Clone, Debug)]
pub(super) struct Poller {
    policy: PollPolicy,
    window: Duration,
    dry_since: Option<Instant>,
}

impl Poller {
    /// A poller that begins with the longest window.
    pub(super) fn new(policy: PollPolicy) -> Self {
        Self { policy, window: policy.spin_max, dry_since: None }
    }

    /// A turn of the loop did some work.
    pub(super) fn handle_work(&mut self) {
        self.dry_since = None;
    }

    /// A turn of the loop found nothing at `now`.
    pub(super) fn handle_nothing(&mut self, now: Instant) -> Rest {
        let since = *self.dry_since.get_or_insert(now);
        if self.policy.always || now.since(since) < self.window { Rest::Spin } else { Rest::Sleep }
    }

    /// A sleep from `slept` to `woke` is over; `deadline` says that a timer ended it rather than an event.
    ///
    /// A timer tells nothing about traffic: the window stays.
    pub(super) fn handle_wake(&mut self, slept: Instant, woke: Instant, deadline: bool) {
        self.dry_since = None;
        if deadline {
            return;
        }
        self.window = if woke.since(slept) <= self.policy.spin_max {
            (self.window * 2).max(WAKE_COST).min(self.policy.spin_max)
        } else if self.window <= WAKE_COST {
            Duration::ZERO
        } else {
            self.window / 2
        };
    }

    /// Takes a new policy, at a reload.
    pub(super) fn set_policy(&mut self, policy: PollPolicy) {
        self.policy = policy;
        self.window = self.window.min(policy.spin_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Instant {
        Instant::from_ns(n * 1000)
    }

    #[test]
    fn spins_for_its_window_and_then_sleeps() {
        let mut p = Poller::new(PollPolicy { always: false, spin_max: Duration::from_micros(100) });
        assert_eq!(p.handle_nothing(us(0)), Rest::Spin);
        assert_eq!(p.handle_nothing(us(99)), Rest::Spin);
        assert_eq!(p.handle_nothing(us(100)), Rest::Sleep);
        p.handle_work();
        assert_eq!(p.handle_nothing(us(101)), Rest::Spin);
    }

    #[test]
    fn long_sleeps_end_the_spinning_and_short_ones_bring_it_back() {
        let mut p = Poller::new(PollPolicy { always: false, spin_max: Duration::from_micros(100) });
        for _ in 0..8 {
            p.handle_wake(us(0), us(5000), false);
        }
        assert_eq!(p.window, Duration::ZERO);
        assert_eq!(p.handle_nothing(us(1)), Rest::Sleep);
        for _ in 0..8 {
            p.handle_wake(us(0), us(30), false);
        }
        assert_eq!(p.window, Duration::from_micros(100));
    }

    #[test]
    fn a_timer_leaves_the_window_alone() {
        let mut p = Poller::new(PollPolicy::default());
        p.handle_wake(us(0), us(1_000_000), true);
        assert_eq!(p.window, PollPolicy::default().spin_max);
    }

    #[test]
    fn always_never_sleeps() {
        let mut p = Poller::new(PollPolicy { always: true, spin_max: Duration::ZERO });
        assert_eq!(p.handle_nothing(us(0)), Rest::Spin);
        assert_eq!(p.handle_nothing(us(10_000_000)), Rest::Spin);
    }
}
