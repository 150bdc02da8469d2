//! The clock of a path.

use crate::time::Instant;

/// A path's own time: the engine's, less the time for which it was stopped.
///
/// Every deadline of a queue pair is in the time of its path. Stopping the clock therefore freezes the timers of all queue
/// pairs of the path in one step, however many they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathClock {
    /// For each packet: whole nanoseconds are cheaper than a duration.
    lost_ns: u64,
    stopped_at: Option<Instant>,
}

impl PathClock {
    /// Path time when the engine's time is `now`.
    pub fn at(&self, now: Instant) -> Instant {
        Instant::from_ns(self.stopped_at.unwrap_or(now).as_ns().saturating_sub(self.lost_ns))
    }

    /// When the engine's time reaches the path time `deadline`; `None` while the clock stands.
    pub fn when(&self, deadline: Instant) -> Option<Instant> {
        self.stopped_at.is_none().then(|| Instant::from_ns(deadline.as_ns().saturating_add(self.lost_ns)))
    }

    /// Stops; without effect if it stands already.
    pub fn stop(&mut self, now: Instant) {
        self.stopped_at.get_or_insert(now);
    }

    /// Runs on from where it stopped.
    pub fn start(&mut self, now: Instant) {
        if let Some(stopped_at) = self.stopped_at.take() {
            self.lost_ns += now.as_ns().saturating_sub(stopped_at.as_ns());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_while_it_stands_is_lost() {
        let ms = |n: u64| Instant::from_ns(n * 1_000_000);
        let mut clock = PathClock::default();
        assert_eq!((clock.at(ms(5)), clock.when(ms(5))), (ms(5), Some(ms(5))));
        clock.stop(ms(9));
        clock.stop(ms(50));
        assert_eq!((clock.at(ms(70)), clock.when(ms(10))), (ms(9), None));
        clock.start(ms(109));
        clock.start(ms(500));
        assert_eq!((clock.at(ms(110)), clock.when(ms(10))), (ms(10), Some(ms(110))));
    }
}
