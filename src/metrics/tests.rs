#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::collector::HoldfastCollector;
use super::*;
use crate::counters::{Counter, Distribution, FAMILIES, Publisher, Scope, SharedCounters, Tally};
use prometheus::core::Collector;
use prometheus::proto::MetricType;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

/// Two workers with a little traffic.
struct Daemon {
    workers: Vec<Arc<Published>>,
    own: SharedCounters,
    stuck: AtomicBool,
}

impl Source for Daemon {
    fn device(&self) -> Device {
        Device {
            name: "holdfast0".into(),
            version: "1.2.3".into(),
            backend: "packet".into(),
            driver: "io_uring".into(),
            started_unix_seconds: 1.5e9,
            link_up: true,
            link_downed: 2,
            rate_bytes_per_second: Some(12_500_000_000),
        }
    }
    fn workers(&self) -> Vec<Arc<Published>> {
        self.workers.clone()
    }
    fn daemon(&self) -> Arc<Published> {
        self.own.published()
    }
    fn health(&self) -> Result<(), String> {
        if self.stuck.load(Ordering::Relaxed) { Err("worker 1 has not turned for 5 s".into()) } else { Ok(()) }
    }
}

fn daemon() -> Arc<Daemon> {
    let mut workers = [Publisher::new(), Publisher::new()];
    for (i, worker) in workers.iter_mut().enumerate() {
        worker.set(Counter::ReceivedPackets, 10 + i as u64);
        worker.set(Counter::DropIcrc, 3);
        worker.set(Counter::DropMalformed, 1);
        worker.set(Counter::AsleepNs, 2_500_000_000);
        let mut latency = Tally::new(Distribution::CompletionLatency);
        latency.record(1_500);
        latency.record(60_000_000_000);
        worker.set_histogram(&latency);
    }
    let own = SharedCounters::new();
    own.count(Counter::ReloadRefused);
    let workers = workers.iter().map(Publisher::published).collect();
    Arc::new(Daemon { workers, own, stuck: AtomicBool::new(false) })
}

/// Asks a real server over loopback; gives back the status and the body.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn loopback() -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)
}

async fn scrape() -> String {
    let server = MetricsServer::bind(loopback(), daemon()).unwrap();
    let address = server.local_address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(server.serve(async { stopped.await.unwrap_or_default() }));
    let (status, text) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    stop.send(()).unwrap();
    served.await.unwrap().unwrap();
    text
}

#[tokio::test]
async fn a_scrape_over_loopback_shows_own_and_standard_names() {
    let text = scrape().await;
    for line in [
        "holdfast_received_packets_total{worker=\"0\"} 10",
        "holdfast_received_packets_total{worker=\"1\"} 11",
        "holdfast_dropped_packets_total{worker=\"1\",reason=\"icrc\"} 3",
        "holdfast_worker_asleep_seconds_total{worker=\"0\"} 2.5",
        "holdfast_completion_latency_seconds_bucket{worker=\"0\",le=\"0.000001\"} 0",
        "holdfast_completion_latency_seconds_bucket{worker=\"0\",le=\"0.000002\"} 1",
        "holdfast_completion_latency_seconds_bucket{worker=\"0\",le=\"+Inf\"} 2",
        "holdfast_completion_latency_seconds_count{worker=\"0\"} 2",
        "node_infiniband_port_packets_received_total{device=\"holdfast0\",port=\"1\"} 21",
        "node_infiniband_port_errors_received_total{device=\"holdfast0\",port=\"1\"} 8",
        "node_infiniband_link_downed_total{device=\"holdfast0\",port=\"1\"} 2",
        "node_infiniband_state_id{device=\"holdfast0\",port=\"1\"} 4",
        "node_infiniband_rate_bytes_per_second{device=\"holdfast0\",port=\"1\"} 12500000000",
        "holdfast_build_info{device=\"holdfast0\",version=\"1.2.3\",backend=\"packet\",driver=\"io_uring\"} 1",
        "# TYPE holdfast_completion_latency_seconds histogram",
        "# TYPE holdfast_queue_pairs gauge",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    for family in FAMILIES {
        assert!(text.contains(&format!("# HELP {} {}\n", family.name, family.help)), "{}", family.name);
    }
}

#[tokio::test]
async fn promtool_finds_nothing_to_say() {
    let text = scrape().await;
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        println!("skipped: there is no promtool here (Debian: apt-get install prometheus)");
        return;
    };
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && said.is_empty(), "{said}");
}

#[tokio::test]
async fn health_follows_the_workers_and_other_paths_are_not_there() {
    let daemon = daemon();
    let source: Arc<dyn Source> = Arc::<Daemon>::clone(&daemon);
    let server = MetricsServer::bind(loopback(), source).unwrap();
    let address = server.local_address().unwrap();
    let served = tokio::spawn(server.serve(std::future::pending()));
    assert_eq!(get(address, "/healthz").await, (200, "ok\n".into()));
    daemon.stuck.store(true, Ordering::Relaxed);
    assert_eq!(get(address, "/healthz").await, (503, "worker 1 has not turned for 5 s\n".into()));
    assert_eq!(get(address, "/metricz").await.0, 404);
    assert!(get(address, "/").await.1.contains("/metrics"));
    served.abort();
}

#[test]
fn an_address_in_use_says_which_setting_to_change() {
    let taken = std::net::TcpListener::bind(loopback()).unwrap();
    let error = MetricsServer::bind(taken.local_addr().unwrap(), daemon()).unwrap_err().to_string();
    assert!(error.contains("metrics.listen"), "{error}");
}

#[test]
fn every_counter_and_label_is_bounded() {
    // One series for each counter, and a worker where workers count, a few for each histogram, one of each standard name.
    let collector = HoldfastCollector::new(daemon()).unwrap();
    let own = collector.collect().into_iter().filter(|f| f.name().starts_with("holdfast_"));
    let series: usize = own.filter(|f| f.get_field_type() != MetricType::HISTOGRAM).map(|f| f.get_metric().len()).sum();
    let of = |scope| FAMILIES.iter().filter(|f| f.scope == scope).map(|f| f.members.len()).sum::<usize>();
    assert_eq!(series, 2 * of(Scope::Worker) + of(Scope::Daemon) + 4);
}

/// The reference page is made from the tables. To write it anew: `HOLDFAST_WRITE_DOCS=1 cargo test --lib metrics`.
#[test]
fn the_reference_page_is_the_table() {
    let mut page = String::from("\n| metric | kind | labels | what it says |\n|---|---|---|---|\n");
    let mut families = HoldfastCollector::new(daemon()).unwrap().collect();
    families.sort_by(|a, b| a.name().cmp(b.name()));
    for family in families {
        let kind = format!("{:?}", family.get_field_type()).to_lowercase();
        let mut labels: Vec<&str> = family.get_metric()[0].get_label().iter().map(|l| l.name()).collect();
        labels.sort_unstable();
        writeln!(page, "| `{}` | {kind} | {} | {} |", family.name(), labels.join(", "), family.help()).unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics/METRICS.md");
    if std::env::var_os("HOLDFAST_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert!(committed == page, "src/metrics/METRICS.md is not what the tables say; write it anew, see this test");
}
