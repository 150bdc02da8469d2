//! Prometheus metrics over HTTP.
//!
//! A scrape reads what the workers [publish](crate::counters) and formats it; no worker is asked, none waits. The names of
//! node_exporter for hardware HCAs are there too, so that dashboards made for NICs work. All metrics:
#![doc = include_str!("METRICS.md")]

mod collector;
mod http;
mod infiniband;

pub use http::{MetricsError, MetricsServer};

use crate::counters::Published;
use std::sync::Arc;

/// What the metrics are made from. The daemon implements it.
pub trait Source: Send + Sync + 'static {
    /// What the daemon is, and its port.
    fn device(&self) -> Device;
    /// The counters of each worker, in order of their index.
    fn workers(&self) -> Vec<Arc<Published>>;
    /// What the daemon counts beside its workers.
    fn daemon(&self) -> Arc<Published>;
    /// Whether the daemon does its work; else what is wrong, in words.
    fn health(&self) -> Result<(), String>;
}

/// Facts of the device that stand in labels and gauges.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Device {
    /// Name of the verbs device.
    pub name: String,
    /// Version of the daemon.
    pub version: String,
    /// The packet backend in use.
    pub backend: String,
    /// How it calls the kernel.
    pub driver: String,
    /// When the daemon started, in seconds since the Unix epoch.
    pub started_unix_seconds: f64,
    /// Whether the interface has carrier.
    pub link_up: bool,
    /// How often it lost its carrier.
    pub link_downed: u64,
    /// The speed of the interface; `None` where it has none (veth, loopback).
    pub rate_bytes_per_second: Option<u64>,
}

#[cfg(test)]
mod tests;
