//! What the control plane holds of a running daemon.

use super::view::{Device, Percentiles};
use super::worker::WorkerHandle;
use crate::counters::{Counter, Distribution, HistogramSnapshot, SharedCounters};
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A running daemon as the control plane and the metrics see it: the device, which the daemon republishes when the port
/// changes, and the workers.
#[derive(Debug)]
pub struct Overview {
    started: Instant,
    device: ArcSwap<Device>,
    workers: Vec<WorkerHandle>,
    counters: SharedCounters,
}

impl Overview {
    /// A daemon that starts now.
    pub fn new(device: Device, workers: Vec<WorkerHandle>) -> Self {
        Self {
            started: Instant::now(),
            device: ArcSwap::from_pointee(device),
            workers,
            counters: SharedCounters::new(),
        }
    }

    /// Publishes a change of the device: carrier, MTU, addresses.
    pub fn set_device(&self, device: Device) {
        self.device.store(Arc::new(device));
    }

    /// The device as last published.
    pub fn device(&self) -> Arc<Device> {
        self.device.load_full()
    }

    /// The workers, in order of their index.
    pub fn workers(&self) -> &[WorkerHandle] {
        &self.workers
    }

    /// How long the daemon has run.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// What the daemon counts beside its workers.
    pub fn counters(&self) -> &SharedCounters {
        &self.counters
    }

    /// A counter summed over all workers and the daemon itself.
    pub fn total(&self, counter: Counter) -> u64 {
        self.workers
            .iter()
            .fold(self.counters.published().get(counter), |sum, w| sum.wrapping_add(w.counters().get(counter)))
    }

    /// A histogram summed over all workers; `None` without workers.
    pub fn histogram(&self, which: Distribution) -> Option<HistogramSnapshot> {
        let mut all = self.workers.iter().map(|w| w.counters().histogram(which));
        let mut sum = all.next()?;
        all.for_each(|h| sum.merge(&h));
        Some(sum)
    }

    /// Percentiles of the time from posting to completion, over all workers.
    pub fn completion_latency(&self) -> Percentiles {
        let Some(h) = self.histogram(Distribution::CompletionLatency) else { return Percentiles::default() };
        Percentiles { count: h.count(), p50_ns: h.quantile(0.5), p99_ns: h.quantile(0.99), p999_ns: h.quantile(0.999) }
    }
}
