//! Turns the published counters into metric families, at each scrape.

use super::infiniband::{LINK_DOWNED, PHYSICAL_STATE, RATE, STANDARD, STATE};
use super::{Device, Source};
use crate::counters::{Counter, Distribution, FAMILIES, Family, Kind, Published, Scope};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::HashMap;
use std::sync::Arc;

/// The device's port: there is one, and verbs counts from 1.
const PORT: &str = "1";

/// Reads the [`Source`] whenever it is collected. Keeps no numbers of its own.
pub(super) struct HoldfastCollector {
    source: Arc<dyn Source>,
    descriptions: Vec<Desc>,
}

impl HoldfastCollector {
    pub(super) fn new(source: Arc<dyn Source>) -> Result<Self, prometheus::Error> {
        let mut collector = Self { source, descriptions: Vec::new() };
        // What a scrape shows is what is registered: the two cannot differ.
        collector.descriptions = collector.collect().iter().map(describe).collect::<Result<_, _>>()?;
        Ok(collector)
    }
}

impl Collector for HoldfastCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (device, workers) = (self.source.device(), self.source.workers());
        let healthy = healthy(&device, self.source.health().is_ok());
        let mut families = vec![info(&device), start_time(&device), healthy, link_up(&device)];
        let everybody = [workers.clone(), vec![self.source.daemon()]].concat();
        families.extend(FAMILIES.iter().map(|f| match f.scope {
            Scope::Worker => by_worker(f, &workers),
            Scope::Daemon => of_daemon(f, &everybody),
        }));
        families.extend(Distribution::ALL.iter().map(|d| distribution(*d, &workers)));
        families.extend(standard(&device, &workers));
        families
    }
}

fn describe(family: &MetricFamily) -> Result<Desc, prometheus::Error> {
    let metric = family.get_metric().first();
    let labels = metric.map(Metric::get_label).unwrap_or_default();
    let names = labels.iter().map(|l| l.name().to_owned()).collect();
    Desc::new(family.name().into(), family.help().into(), names, HashMap::new())
}

fn info(device: &Device) -> MetricFamily {
    let labels = [
        ("device", device.name.as_str()),
        ("version", &device.version),
        ("backend", &device.backend),
        ("driver", &device.driver),
    ];
    let help = "What the daemon is; the value is always 1.";
    family("holdfast_build_info", help, Kind::Gauge, vec![number(Kind::Gauge, 1.0, &labels)])
}

fn start_time(device: &Device) -> MetricFamily {
    let metric = number(Kind::Gauge, device.started_unix_seconds, &[("device", &device.name)]);
    family("holdfast_start_time_seconds", "When the daemon started, since the Unix epoch.", Kind::Gauge, vec![metric])
}

fn healthy(device: &Device, is_healthy: bool) -> MetricFamily {
    let metric = number(Kind::Gauge, f64::from(u8::from(is_healthy)), &[("device", &device.name)]);
    family(
        "holdfast_healthy",
        "Whether every worker answered when last asked (1) or not (0).",
        Kind::Gauge,
        vec![metric],
    )
}

fn link_up(device: &Device) -> MetricFamily {
    let metric = number(Kind::Gauge, f64::from(u8::from(device.link_up)), &[("device", &device.name)]);
    family("holdfast_link_up", "Whether the interface has carrier (1) or not (0).", Kind::Gauge, vec![metric])
}

/// A family of the table, by worker and by its own label.
fn by_worker(table: &Family, workers: &[Arc<Published>]) -> MetricFamily {
    let mut metrics = Vec::with_capacity(workers.len() * table.members.len());
    for (index, worker) in workers.iter().enumerate() {
        let index = index.to_string();
        for member in table.members {
            let mut labels = vec![("worker", index.as_str())];
            labels.extend(table.label.map(|label| (label, member.label_value())));
            metrics.push(number(table.kind, worker.get(*member) as f64 / table.unit(), &labels));
        }
    }
    family(table.name, table.help, table.kind, metrics)
}

/// A family of the table that the daemon counts as a whole, whichever of its threads did.
fn of_daemon(table: &Family, everybody: &[Arc<Published>]) -> MetricFamily {
    let one = |member: &Counter| {
        let value = total(everybody, *member) as f64 / table.unit();
        let label = table.label.map(|label| (label, member.label_value()));
        number(table.kind, value, label.as_slice())
    };
    family(table.name, table.help, table.kind, table.members.iter().map(one).collect())
}

fn total(of: &[Arc<Published>], counter: Counter) -> u64 {
    of.iter().fold(0, |sum, p| sum.wrapping_add(p.get(counter)))
}

fn distribution(which: Distribution, workers: &[Arc<Published>]) -> MetricFamily {
    let by_worker = workers.iter().enumerate().map(|(index, worker)| {
        let seen = worker.histogram(which);
        let mut histogram = proto::Histogram::default();
        let (mut count, mut buckets) = (0, Vec::with_capacity(seen.buckets.len()));
        for (bound, n) in seen.bounds.iter().zip(&seen.buckets) {
            count += n;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound as f64 / which.unit());
            bucket.set_cumulative_count(count);
            buckets.push(bucket);
        }
        histogram.set_bucket(buckets);
        histogram.set_sample_count(seen.count());
        histogram.set_sample_sum(seen.sum as f64 / which.unit());
        let mut metric = labelled(&[("worker", &index.to_string())]);
        metric.set_histogram(histogram);
        metric
    });
    let mut family = family(which.name(), which.help(), Kind::Gauge, by_worker.collect());
    family.set_field_type(MetricType::HISTOGRAM);
    family
}

/// The names of node_exporter, summed over the workers.
fn standard<'a>(device: &'a Device, workers: &'a [Arc<Published>]) -> impl Iterator<Item = MetricFamily> + 'a {
    let labels = [("device", device.name.as_str()), ("port", PORT)];
    let one =
        move |(name, help): (&str, &str), kind, value| family(name, help, kind, vec![number(kind, value, &labels)]);
    let sums = STANDARD.iter().map(move |s| {
        let value = s.sum_of.iter().map(|c| total(workers, *c)).fold(0, u64::wrapping_add);
        one((s.name, s.help), Kind::Counter, value as f64)
    });
    // IBTA: port state 4 is active, 1 down; physical state 5 is link up, 3 disabled.
    let (state, physical) = if device.link_up { (4.0, 5.0) } else { (1.0, 3.0) };
    let port = [
        Some(one(STATE, Kind::Gauge, state)),
        Some(one(PHYSICAL_STATE, Kind::Gauge, physical)),
        Some(one(LINK_DOWNED, Kind::Counter, device.link_downed as f64)),
        device.rate_bytes_per_second.map(|rate| one(RATE, Kind::Gauge, rate as f64)),
    ];
    sums.chain(port.into_iter().flatten())
}

fn family(name: &str, help: &str, kind: Kind, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(match kind {
        Kind::Counter | Kind::Seconds => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
    });
    family.set_metric(metrics);
    family
}

fn number(kind: Kind, value: f64, labels: &[(&str, &str)]) -> Metric {
    let mut metric = labelled(labels);
    match kind {
        Kind::Counter | Kind::Seconds => {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        Kind::Gauge => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
    }
    metric
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).into());
        pair.set_value((*value).into());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}
