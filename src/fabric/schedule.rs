//! What is to happen when, told beforehand.

use super::event::FabricEvent;
use crate::time::{Duration, Instant};

/// An event, once or again and again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Occasion {
    /// When it first happens, from the start on.
    pub at: Duration,
    /// How long from one time to the next.
    pub every: Duration,
    /// How often; `None` for ever.
    pub times: Option<u64>,
    /// What happens.
    pub event: FabricEvent,
}

/// Occasions that are yet to come.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    start: Instant,
    /// In the order of the file, which those of one moment keep.
    occasions: Vec<Occasion>,
}

impl Schedule {
    /// A schedule that begins at `start`. An occasion that happens no times, or for ever without a pause, happens once.
    pub fn new(start: Instant, mut occasions: Vec<Occasion>) -> Self {
        for occasion in &mut occasions {
            if occasion.every.is_zero() || occasion.times == Some(0) {
                occasion.times = Some(1);
            }
        }
        Self { start, occasions }
    }

    /// When the next event happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.occasions.iter().map(|occasion| self.start + occasion.at).min()
    }

    /// The next event whose time has come, and the time that it was for.
    pub fn poll_event(&mut self, now: Instant) -> Option<(Instant, FabricEvent)> {
        let (index, _) = self.occasions.iter().enumerate().min_by_key(|(_, occasion)| occasion.at)?;
        let start = self.start;
        let occasion = self.occasions.get_mut(index).filter(|occasion| start + occasion.at <= now)?;
        let (due, event) = (start + occasion.at, occasion.event.clone());
        occasion.at = occasion.at.saturating_add(occasion.every);
        occasion.times = occasion.times.map(|times| times.saturating_sub(1));
        if occasion.times == Some(0) {
            self.occasions.remove(index);
        }
        Some((due, event))
    }
}
