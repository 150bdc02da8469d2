//! The clock of a path and the timers that hang off it.

use super::wheel::TimerWheel;
use crate::time::{Duration, Instant};

/// A path's own time: the engine's, less the time for which it was stopped.
///
/// Every deadline of a queue pair is in the time of its path. Stopping the clock therefore freezes the timers of all queue
/// pairs of the path in one step, however many they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathClock {
    lost: Duration,
    stopped_at: Option<Instant>,
}

impl PathClock {
    /// Path time when the engine's time is `now`.
    pub fn at(&self, now: Instant) -> Instant {
        self.stopped_at.unwrap_or(now) - self.lost
    }

    /// When the engine's time reaches the path time `deadline`; `None` while the clock stands.
    pub fn when(&self, deadline: Instant) -> Option<Instant> {
        self.stopped_at.is_none().then(|| deadline + self.lost)
    }

    /// Stops; without effect if it stands already.
    pub fn stop(&mut self, now: Instant) {
        self.stopped_at.get_or_insert(now);
    }

    /// Runs on from where it stopped.
    pub fn start(&mut self, now: Instant) {
        if let Some(stopped_at) = self.stopped_at.take() {
            self.lost += now.since(stopped_at);
        }
    }
}

/// One path's clock and the timers of its queue pairs, by their slot.
#[derive(Debug)]
pub struct PathTimers {
    /// The path's clock.
    pub clock: PathClock,
    wheel: TimerWheel,
}

impl PathTimers {
    /// A running clock that shows the engine's time.
    pub fn new(now: Instant) -> Self {
        Self { clock: PathClock::default(), wheel: TimerWheel::new(now) }
    }

    /// Makes room for slots below `slots`.
    pub fn reserve(&mut self, slots: usize) {
        self.wheel.reserve(slots);
    }

    /// Gives a queue pair its deadline, in path time.
    pub fn set(&mut self, slot: u32, deadline: Option<Instant>) {
        self.wheel.set(slot, deadline);
    }

    /// When to call [`PathTimers::pop_due`] next, in the engine's time.
    pub fn next_check(&self) -> Option<Instant> {
        self.wheel.next_check().and_then(|t| self.clock.when(t))
    }

    /// One queue pair whose deadline has come; `now` is the engine's time.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.wheel.pop_due(self.clock.at(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_holds_every_timer_of_the_path() {
        let ms = |n: u64| Instant::from_ns(n * 1_000_000);
        let mut path = PathTimers::new(ms(0));
        for slot in 0..1000 {
            path.set(slot, Some(ms(10)));
        }
        path.clock.stop(ms(9));
        path.clock.stop(ms(50));
        assert_eq!(path.next_check(), None);
        assert_eq!(path.pop_due(ms(5_000)), None);
        path.clock.start(ms(5_000));
        assert_eq!(path.pop_due(ms(5_000)), None);
        assert_eq!(path.pop_due(Instant::from_ns(ms(5_001).as_ns() - 1)), None);
        let check = path.next_check();
        assert!(check.is_some_and(|t| t >= ms(5_001) && t < ms(5_002)), "{check:?}");
        assert_eq!(std::iter::from_fn(|| path.pop_due(ms(5_002))).count(), 1000);
    }
}
