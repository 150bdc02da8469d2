//! The one place that reads a clock for the core.

use crate::time::Instant;

/// Monotonic time since its making, from the processor's counter where that is trustworthy (about 10 ns a reading).
#[derive(Clone, Debug)]
pub struct Clock {
    source: quanta::Clock,
    start: u64,
}

impl Clock {
    /// A clock whose epoch is now. Calibrates once a process, which takes some milliseconds the first time.
    pub fn start() -> Self {
        let source = quanta::Clock::new();
        let start = source.raw();
        Self { source, start }
    }

    /// What time it is.
    pub fn now(&self) -> Instant {
        Instant::from_ns(self.source.delta_as_nanos(self.start, self.source.raw()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_forward() {
        let clock = Clock::start();
        let (a, b) = (clock.now(), clock.now());
        assert!(a <= b);
    }
}
