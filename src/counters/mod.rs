//! The published counters: every number that a worker shows to the rest of the daemon, in one table.
//!
//! A worker owns a [`Publisher`] and stores into it; everybody else holds the [`Published`] half and reads. Both sides are
//! plain relaxed 64-bit atomics: no locks, no allocation, no read-modify-write on the packet path (one writer by type).
//! A reader may see one counter newer than its neighbour; each single counter only grows.
//!
//! The [table](FAMILIES) names each counter once, with its help text and label. `/metrics`, `holdfast status` and
//! `holdfast top` and the reference page all read that table, so they cannot disagree.
//!
//! Floor 0: imports nothing, never blocks.

mod catalogue;
mod histogram;

pub use catalogue::{Counter, FAMILIES, Family, Kind, Scope};
pub use histogram::{Distribution, Histogram, HistogramSnapshot, Tally};

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The read side of one worker's counters.
///
/// Aligned so that two workers never write the same cache line.
#[derive(Debug)]
#[repr(align(128))]
pub struct Published {
    values: [AtomicU64; Counter::COUNT],
    histograms: [Histogram; Distribution::COUNT],
}

impl Published {
    /// The value of one counter: a running total, or for a gauge the present level.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Ordering::Relaxed)
    }

    /// A copy of one histogram.
    pub fn histogram(&self, which: Distribution) -> HistogramSnapshot {
        self.histograms[which as usize].snapshot(which)
    }
}

/// The write side of one worker's counters. There is one a worker: it cannot be cloned, and every write borrows it mutably.
#[derive(Debug)]
pub struct Publisher {
    shared: Arc<Published>,
}

impl Publisher {
    /// Counters at zero.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Published {
                values: [const { AtomicU64::new(0) }; Counter::COUNT],
                histograms: [const { Histogram::new() }; Distribution::COUNT],
            }),
        }
    }

    /// The read side, to hand to whoever shows the numbers.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.shared)
    }

    /// Publishes a running total that the worker keeps itself, or a gauge's level.
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.shared.values[counter as usize].store(value, Ordering::Relaxed);
    }

    /// Adds to a counter that the worker keeps only here.
    pub fn add(&mut self, counter: Counter, n: u64) {
        let cell = &self.shared.values[counter as usize];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Publishes a histogram that the worker keeps itself.
    pub fn set_histogram(&mut self, tally: &Tally) {
        self.shared.histograms[tally.distribution() as usize].publish(tally);
    }
}

impl Default for Publisher {
    fn default() -> Self {
        Self::new()
    }
}

/// What the daemon counts beside its workers: seldom, from several threads.
#[derive(Clone, Debug)]
pub struct SharedCounters {
    shared: Arc<Published>,
}

impl SharedCounters {
    /// Counters at zero.
    pub fn new() -> Self {
        Self { shared: Publisher::new().shared }
    }

    /// The read side.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.shared)
    }

    /// One more.
    pub fn count(&self, counter: Counter) {
        self.shared.values[counter as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl Default for SharedCounters {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_sees_what_the_worker_wrote() {
        let mut worker = Publisher::new();
        let reader = worker.published();
        worker.set(Counter::ReceivedPackets, 40);
        worker.add(Counter::ReceivedPackets, 2);
        let mut bursts = Tally::new(Distribution::TransmitBurst);
        bursts.record(60);
        worker.set_histogram(&bursts);
        assert_eq!(reader.get(Counter::ReceivedPackets), 42);
        assert_eq!(reader.get(Counter::TransmittedPackets), 0);
        let bursts = reader.histogram(Distribution::TransmitBurst);
        assert_eq!((bursts.count(), bursts.sum), (1, 60));
    }

    #[test]
    fn what_many_threads_count_adds_up() {
        let counters = SharedCounters::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| counters.count(Counter::ControlRefused)));
            }
        });
        assert_eq!(counters.published().get(Counter::ControlRefused), 4000);
    }

    #[test]
    fn a_reader_on_another_thread_sees_a_counter_only_grow() {
        let mut worker = Publisher::new();
        let reader = worker.published();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut last = 0;
                while last < 10_000 {
                    let now = reader.get(Counter::ReceivedBytes);
                    assert!(now >= last);
                    last = now;
                    std::hint::spin_loop();
                }
            });
            for _ in 0..10_000 {
                worker.add(Counter::ReceivedBytes, 1);
            }
        });
    }
}
