//! Histograms with fixed buckets: counted by one worker for itself, published for any number of readers.

use core::sync::atomic::{AtomicU64, Ordering};

/// The most finite bucket bounds that any distribution has.
const MAX_BOUNDS: usize = 20;

/// What a histogram measures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Distribution {
    /// Nanoseconds from when the worker took a send request from its queue until it handed out its completion. Requests that
    /// complete without a completion (unsignalled ones) are not in it.
    CompletionLatency,
    /// Packets in a burst handed to the kernel in one send.
    TransmitBurst,
    /// Packets taken from the kernel in one receive.
    ReceiveBurst,
}

/// 1, 2, 5 steps from a microsecond (one hop of a good fabric) to ten seconds (a long dark).
const LATENCY_NS: &[u64] = &[
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// The kernel takes at most 128 segments in one send.
const BURST_PACKETS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128];

impl Distribution {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::CompletionLatency, Self::TransmitBurst, Self::ReceiveBurst];

    /// The metric's name, in base units.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CompletionLatency => "holdfast_completion_latency_seconds",
            Self::TransmitBurst => "holdfast_transmit_burst_packets",
            Self::ReceiveBurst => "holdfast_receive_burst_packets",
        }
    }

    /// What the metric says, for its HELP line.
    pub const fn help(self) -> &'static str {
        match self {
            Self::CompletionLatency => {
                "Time from when a send request was taken from its program to when its completion was handed back; unsignalled requests are not counted."
            }
            Self::TransmitBurst => "Packets handed to the kernel in one send.",
            Self::ReceiveBurst => "Packets taken from the kernel in one receive.",
        }
    }

    /// How many of a sample's units make one unit of the metric: samples of latency are nanoseconds, the metric is seconds.
    pub const fn unit(self) -> f64 {
        match self {
            Self::CompletionLatency => 1e9,
            Self::TransmitBurst | Self::ReceiveBurst => 1.0,
        }
    }

    /// Upper bounds of the finite buckets (inclusive, ascending), in the samples' unit.
    pub const fn bounds(self) -> &'static [u64] {
        match self {
            Self::CompletionLatency => LATENCY_NS,
            Self::TransmitBurst | Self::ReceiveBurst => BURST_PACKETS,
        }
    }
}

/// Samples by bucket, as the worker that takes them counts them; the last bucket has no upper bound.
#[derive(Clone, Debug)]
pub struct Tally {
    which: Distribution,
    buckets: [u64; MAX_BOUNDS + 1],
    sum: u64,
    /// The last sample and its bucket: requests that came in one turn and go in another have the same latency.
    last: (u64, usize),
}

impl Tally {
    /// No samples yet.
    pub const fn new(which: Distribution) -> Self {
        Self { which, buckets: [0; MAX_BOUNDS + 1], sum: 0, last: (0, 0) }
    }

    /// Notes a sample, in the distribution's own unit ([`Distribution::unit`]).
    #[inline]
    pub fn record(&mut self, sample: u64) {
        if sample != self.last.0 {
            self.last = (sample, self.which.bounds().partition_point(|bound| *bound < sample));
        }
        let bucket = &mut self.buckets[self.last.1];
        *bucket = bucket.wrapping_add(1);
        self.sum = self.sum.wrapping_add(sample);
    }

    /// What it measures.
    pub const fn distribution(&self) -> Distribution {
        self.which
    }
}

/// A published [`Tally`].
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; MAX_BOUNDS + 1],
    sum: AtomicU64,
}

impl Histogram {
    pub(super) const fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; MAX_BOUNDS + 1], sum: AtomicU64::new(0) }
    }

    pub(super) fn publish(&self, tally: &Tally) {
        for (cell, n) in self.buckets.iter().zip(&tally.buckets) {
            cell.store(*n, Ordering::Relaxed);
        }
        self.sum.store(tally.sum, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self, which: Distribution) -> HistogramSnapshot {
        let buckets = &self.buckets[..=which.bounds().len()];
        HistogramSnapshot {
            bounds: which.bounds(),
            buckets: buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect(),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// A histogram as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistogramSnapshot {
    /// Upper bounds of all buckets but the last, in the samples' unit.
    pub bounds: &'static [u64],
    /// Samples in each bucket (not cumulative); one longer than `bounds`.
    pub buckets: Vec<u64>,
    /// Sum of all samples, in their unit.
    pub sum: u64,
}

impl HistogramSnapshot {
    /// How many samples there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |n, b| n.wrapping_add(*b))
    }

    /// Adds another worker's samples of the same distribution.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.wrapping_add(*theirs);
        }
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The bound that at least the share `q` (0 to 1) of the samples does not exceed; `None` without samples or when the
    /// answer lies beyond the last bound.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((count as f64) * q.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        for (bound, n) in self.bounds.iter().zip(&self.buckets) {
            seen = seen.wrapping_add(*n);
            if seen >= rank {
                return Some(*bound);
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_and_fit_the_array() {
        for which in Distribution::ALL {
            assert!(which.bounds().len() <= MAX_BOUNDS, "{which:?}");
            assert!(which.bounds().is_sorted_by(|a, b| a < b), "{which:?}");
        }
    }

    fn published(tally: &Tally) -> HistogramSnapshot {
        let histogram = Histogram::new();
        histogram.publish(tally);
        histogram.snapshot(tally.distribution())
    }

    #[test]
    fn a_sample_on_a_bound_belongs_below_it() {
        let mut tally = Tally::new(Distribution::ReceiveBurst);
        for sample in [0, 1, 2, 3, 128, 129, u64::MAX] {
            tally.record(sample);
        }
        let seen = published(&tally);
        assert_eq!(seen.buckets, [2, 1, 1, 0, 0, 0, 0, 1, 2]);
        assert_eq!(seen.count(), 7);
    }

    #[test]
    fn quantiles_are_the_bounds_that_hold_them() {
        let mut tally = Tally::new(Distribution::CompletionLatency);
        (0..99).for_each(|_| tally.record(1_500));
        tally.record(20_000_000_000);
        let seen = published(&tally);
        assert_eq!(seen.sum, 99 * 1_500 + 20_000_000_000);
        assert_eq!(seen.quantile(0.5), Some(2_000));
        assert_eq!(seen.quantile(0.99), Some(2_000));
        assert_eq!(seen.quantile(1.0), None, "beyond the last bound");
        let mut both = seen.clone();
        both.merge(&seen);
        assert_eq!((both.count(), both.sum), (200, 2 * seen.sum));
    }

    #[test]
    fn without_samples_there_is_no_quantile() {
        assert_eq!(published(&Tally::new(Distribution::TransmitBurst)).quantile(0.5), None);
    }
}
