//! The pacer: when the next burst may leave, and how large it may be.

use super::{Bps, Tuning};
use crate::time::{Duration, Instant};

/// A leaky bucket, for one queue pair.
///
/// It holds what a rate earns in `burst_time`, at most a super-packet and at least two packets: the slower a queue pair, the smaller its
/// bursts. Once half of that is there it may leave, all that is there. So a worker that looks at it somewhat late loses nothing, and over any
/// time no more leaves than the rate allows and one bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pacer {
    /// When the bucket was empty, or will have been filled up to empty.
    empty_at: Instant,
}

/// What a queue pair may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowance {
    /// As much as it likes: it is not limited.
    Unlimited,
    /// So many bytes.
    Bytes(u64),
    /// Nothing before then; `Instant::MAX` in the dark, until the thaw.
    Wait(Instant),
}

/// A rate, and the bucket that goes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    rate: Bps,
    bucket_bytes: u64,
    packet_bytes: u64,
}

impl Pace {
    /// For packets of `packet_bytes`, headers included.
    pub fn new(rate: Bps, packet_bytes: u32, tuning: &Tuning) -> Self {
        let packet_bytes = u64::from(packet_bytes.max(1));
        let earned = rate.bytes_in(tuning.parameters.burst_time);
        let bucket_bytes = earned.min(tuning.line().burst_bytes.into()).max(2 * packet_bytes);
        Self { rate, bucket_bytes, packet_bytes }
    }

    /// The largest burst.
    pub const fn bucket_bytes(&self) -> u64 {
        self.bucket_bytes
    }

    /// How long an empty bucket takes to fill.
    pub const fn time_to_fill(&self) -> Duration {
        self.rate.time_for(self.bucket_bytes)
    }
}

impl Pacer {
    /// One with a full bucket.
    pub const fn new() -> Self {
        Self { empty_at: Instant::ZERO }
    }

    /// How much of `wanted` bytes may leave now, or when some may. A packet always fits, where `wanted` holds one.
    pub fn poll(&self, now: Instant, pace: &Pace, wanted: u64) -> Allowance {
        let earned = now.since(self.empty_at).min(pace.time_to_fill());
        let there = pace.rate.bytes_in(earned).min(pace.bucket_bytes);
        let enough = (pace.bucket_bytes / 2).max(pace.packet_bytes).min(wanted.max(1));
        if there >= enough {
            return Allowance::Bytes(there);
        }
        Allowance::Wait(self.empty_at + pace.rate.time_for(enough))
    }

    /// `bytes` left.
    pub fn handle_sent(&mut self, now: Instant, pace: &Pace, bytes: u64) {
        self.empty_at = self.empty_at.max(now - pace.time_to_fill()) + pace.rate.time_for(bytes);
    }

    /// Starts with an empty bucket: what left before was not paced, or the light is back.
    pub fn drain(&mut self, now: Instant) {
        self.empty_at = self.empty_at.max(now);
    }
}
