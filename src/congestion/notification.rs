//! The notification point: when a receiver asks for less.

use super::Tuning;
use crate::time::Instant;

/// The receiver's half of DCQCN (Zhu et al., SIGCOMM 2015, section 3.1, figure 6), for one queue pair: at most one CNP in
/// `min_time_between_cnps`, whatever arrives marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NotificationPoint {
    next_at: Instant,
    /// `Instant::MAX` in the dark.
    deaf_until: Instant,
}

impl NotificationPoint {
    /// One that never sent a CNP.
    pub const fn new() -> Self {
        Self { next_at: Instant::ZERO, deaf_until: Instant::ZERO }
    }

    /// A packet with CE came, or a burst with some. Says whether the peer is to be sent a CNP now.
    pub fn handle_ce(&mut self, now: Instant, tuning: &Tuning) -> bool {
        if now < self.deaf_until || now < self.next_at || tuning.is_deaf(now) {
            return false;
        }
        self.next_at = now + tuning.parameters.min_time_between_cnps;
        true
    }

    /// The light goes out.
    pub const fn freeze(&mut self) {
        self.deaf_until = Instant::MAX;
    }

    /// The light is back. Marks from a queue that stood before the dark, or grew in it, count for nothing for a while: as long as the peer's
    /// reaction point is deaf.
    pub fn thaw(&mut self, now: Instant, tuning: &Tuning) {
        if self.deaf_until == Instant::MAX {
            self.deaf_until = now + tuning.cut_every;
        }
    }
}
