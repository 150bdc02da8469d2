//! `holdfast top`: what moves right now.

use super::Outcome;
use super::ask::{Ask, print_json};
use super::qp;
use super::status::{percentiles, value};
use super::table::{Left, Right, Table, bit_rate, rate, time};
use super::terminal::{Key, Screen};
use crate::control::client::{Client, ClientError};
use crate::control::view::{QueuePair, Status};
use crate::counters::Counter;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Queue pairs that are looked at. A list of all of them each second would be work for the daemon.
const LOOK_AT: usize = 4096;
/// Lines shown where the output is no terminal.
const PLAIN_LINES: usize = 24;

/// Show traffic as it happens, the busiest queue pairs first. Quit with q or ctrl-C.
///
/// Where the output is no terminal, or with --json, one interval is measured and shown.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    ask: Ask,
    /// Seconds between two looks.
    #[arg(long, short = 'd', default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds.filter(|s| (0.1..=3600.0).contains(s)).ok_or_else(|| "an interval is 0.1 to 3600 seconds".into())
}

/// What was seen at one moment.
struct Look {
    at: Instant,
    status: Status,
    queue_pairs: Vec<QueuePair>,
}

/// What happened between two looks, in units a second.
#[derive(Serialize)]
struct Rates {
    interval_seconds: f64,
    received_packets: f64,
    received_bytes: f64,
    transmitted_packets: f64,
    transmitted_bytes: f64,
    retransmitted_packets: f64,
    dropped_packets: f64,
    /// Completions handed to programs.
    completions: f64,
    /// Share of the workers' time that they slept, 0 to 1.
    asleep: f64,
    /// The busiest first.
    queue_pairs: Vec<QpRates>,
}

#[derive(Serialize)]
struct QpRates {
    sent_bytes: f64,
    received_bytes: f64,
    retransmitted_packets: f64,
    queue_pair: QueuePair,
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        let interval = Duration::from_secs_f64(self.interval);
        // Whether it is a terminal decides the form; JSON is for programs.
        let screen = if self.ask.json { None } else { Screen::open()? };
        match screen {
            Some(mut screen) => self.ask.run(|client| async move { Ok(live(&client, interval, &mut screen).await) })?,
            None => {
                let (status, rates) = self.ask.run(|client| async move { measure(&client, interval).await })?;
                if self.ask.json {
                    return print_json(&rates);
                }
                let mut out = io::stdout().lock();
                lines(&status, Some(&rates), PLAIN_LINES).iter().try_for_each(|line| writeln!(out, "{line}"))?;
                Ok(())
            }
        }
    }
}

async fn look(client: &Client) -> Result<Look, ClientError> {
    let at = Instant::now();
    Ok(Look { at, status: client.status().await?, queue_pairs: client.queue_pairs(LOOK_AT).await? })
}

async fn measure(client: &Client, interval: Duration) -> Result<(Status, Rates), ClientError> {
    let before = look(client).await?;
    tokio::time::sleep(interval).await;
    let now = look(client).await?;
    let rates = rates(&before, &now);
    Ok((now.status, rates))
}

async fn live(client: &Client, interval: Duration, screen: &mut Screen) -> Outcome {
    let mut before: Option<Look> = None;
    loop {
        let now = look(client).await?;
        // A daemon that restarted counts from zero: there is nothing to compare with.
        let comparable = before.as_ref().filter(|b| b.status.uptime_ns <= now.status.uptime_ns);
        let rates = comparable.map(|b| rates(b, &now));
        screen.draw(|rows| lines(&now.status, rates.as_ref(), rows))?;
        let next = now.at + interval;
        before = Some(now);
        while let Some(left) = next.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            match screen.key(left)? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Other) => {}
                None => break,
            }
        }
    }
}

fn rates(before: &Look, now: &Look) -> Rates {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
    let change = |counter| (value(&now.status, counter) - value(&before.status, counter)).max(0.0) / seconds;
    let drops = |status: &Status| {
        let dropped = status.counters.iter().filter(|c| c.name == Counter::DropIcrc.metric());
        dropped.map(|c| c.value).sum::<f64>()
    };
    let workers = now.status.workers.len().max(1) as f64;
    Rates {
        interval_seconds: seconds,
        received_packets: change(Counter::ReceivedPackets),
        received_bytes: change(Counter::ReceivedBytes),
        transmitted_packets: change(Counter::TransmittedPackets),
        transmitted_bytes: change(Counter::TransmittedBytes),
        retransmitted_packets: change(Counter::RetransmittedPackets),
        dropped_packets: (drops(&now.status) - drops(&before.status)).max(0.0) / seconds,
        completions: change(Counter::Completions),
        asleep: (change(Counter::AsleepNs) / workers).min(1.0),
        queue_pairs: qp_rates(before, now, seconds),
    }
}

fn qp_rates(before: &Look, now: &Look, seconds: f64) -> Vec<QpRates> {
    // A number that now belongs to another process is another queue pair.
    let key = |q: &QueuePair| (q.qpn, q.client_pid);
    let earlier: HashMap<_, _> = before.queue_pairs.iter().map(|q| (key(q), q.counters)).collect();
    let rate = |q: &QueuePair| {
        let old = earlier.get(&key(q)).copied().unwrap_or_default();
        let change = |now: u64, old: u64| now.saturating_sub(old) as f64 / seconds;
        QpRates {
            sent_bytes: change(q.counters.sent_bytes, old.sent_bytes),
            received_bytes: change(q.counters.received_bytes, old.received_bytes),
            retransmitted_packets: change(q.counters.retransmitted_packets, old.retransmitted_packets),
            queue_pair: q.clone(),
        }
    };
    let mut all: Vec<QpRates> = now.queue_pairs.iter().map(rate).collect();
    let busy = |q: &QpRates| q.sent_bytes + q.received_bytes;
    all.sort_by(|a, b| busy(b).total_cmp(&busy(a)).then(a.queue_pair.qpn.cmp(&b.queue_pair.qpn)));
    all
}

/// The picture, at most `rows` lines high. Without rates yet: what can be told at once.
fn lines(status: &Status, rates: Option<&Rates>, rows: usize) -> Vec<String> {
    let device = &status.device;
    let carrier = if device.link_up { "up" } else { "NO CARRIER" };
    let mut lines = vec![format!(
        "{} on {}, {carrier}, up {}, {} programs",
        device.name,
        device.interface.as_deref().unwrap_or("addresses"),
        time(status.uptime_ns),
        status.clients.len()
    )];
    lines.extend(status.workers.iter().filter_map(|w| w.problem.as_ref()).map(|p| format!("PROBLEM: {p}")));
    let Some(r) = rates else {
        lines.push("measuring ...".into());
        return lines;
    };
    lines.push(format!(
        "receive  {:>10}  {:>10}   dropped    {:>9}",
        bit_rate(r.received_bytes),
        rate(r.received_packets),
        rate(r.dropped_packets)
    ));
    lines.push(format!(
        "transmit {:>10}  {:>10}   sent again {:>9}   workers asleep {:.0} %",
        bit_rate(r.transmitted_bytes),
        rate(r.transmitted_packets),
        rate(r.retransmitted_packets),
        r.asleep * 100.0
    ));
    if status.completion_latency.count > 0 {
        let since = percentiles(&status.completion_latency);
        lines.push(format!("complete {:>10}   latency since start: {since}", rate(r.completions)));
    }
    lines.push(String::new());
    let room = rows.saturating_sub(lines.len() + 1);
    lines.extend(queue_pairs(&r.queue_pairs, room).lines());
    lines.truncate(rows);
    lines
}

fn queue_pairs(all: &[QpRates], room: usize) -> Table {
    let mut table = Table::new(&[
        ("QPN", Right),
        ("TYPE", Left),
        ("STATE", Left),
        ("PEER", Left),
        ("PID", Right),
        ("SENT", Right),
        ("RECEIVED", Right),
        ("AGAIN", Right),
        ("WAITS-FOR", Left),
    ]);
    for q in all.iter().take(room) {
        let qp = &q.queue_pair;
        table.row([
            qp.qpn.to_string(),
            qp::kind(qp.kind),
            qp::state(qp.state),
            qp::peer(qp),
            qp.client_pid.to_string(),
            bit_rate(q.sent_bytes),
            bit_rate(q.received_bytes),
            rate(q.retransmitted_packets),
            qp::waits_for(qp.waits_for),
        ]);
    }
    table
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::control::view::{CounterValue, Device, Percentiles, QpCounters, Worker};

    fn look(at: Instant, packets: f64, qps: &[(u32, u64)]) -> Look {
        let counter = |c: Counter, value| CounterValue {
            name: c.metric().into(),
            label: String::new(),
            label_value: c.label_value().into(),
            value,
        };
        let status = Status {
            device: Device {
                name: "holdfast0".into(),
                interface: Some("eth0".into()),
                link_up: true,
                ..Default::default()
            },
            uptime_ns: 60_000_000_000,
            workers: vec![Worker::default(), Worker::default()],
            clients: Vec::new(),
            counters: vec![
                counter(Counter::ReceivedPackets, packets),
                counter(Counter::ReceivedBytes, packets * 1000.0),
                counter(Counter::DropIcrc, packets / 10.0),
                counter(Counter::DropGhost, packets / 10.0),
                counter(Counter::AsleepNs, packets / 1000.0),
            ],
            completion_latency: Percentiles::default(),
        };
        let qp = |(qpn, sent_bytes): &(u32, u64)| QueuePair {
            qpn: *qpn,
            counters: QpCounters { sent_bytes: *sent_bytes, ..Default::default() },
            ..Default::default()
        };
        Look { at, status, queue_pairs: qps.iter().map(qp).collect() }
    }

    #[test]
    fn rates_are_differences_over_time_and_the_busiest_comes_first() {
        let start = Instant::now();
        let before = look(start, 1000.0, &[(16, 0), (17, 100)]);
        let now = look(start + Duration::from_secs(2), 3000.0, &[(16, 2_000), (17, 100), (18, 8_000)]);
        let r = rates(&before, &now);
        assert_eq!((r.received_packets, r.received_bytes), (1000.0, 1e6));
        assert_eq!(r.dropped_packets, 200.0, "all reasons together");
        assert_eq!(r.asleep, 0.5, "one second each of two, for two workers");
        let order: Vec<_> = r.queue_pairs.iter().map(|q| (q.queue_pair.qpn, q.sent_bytes)).collect();
        assert_eq!(order, [(18, 4000.0), (16, 1000.0), (17, 0.0)]);
    }

    #[test]
    fn the_picture_fits_the_screen() {
        let start = Instant::now();
        let qps: Vec<(u32, u64)> = (16..100).map(|q| (q, 0)).collect();
        let (before, now) = (look(start, 0.0, &qps), look(start + Duration::from_secs(1), 5e6, &qps));
        let r = rates(&before, &now);
        insta::assert_snapshot!(lines(&now.status, Some(&r), 8).join("\n"), @r"
        holdfast0 on eth0, up, up 1 min 0 s, 0 programs
        receive     40 Gb/s       5 M/s   dropped        1 M/s
        transmit      0 b/s        0 /s   sent again      0 /s   workers asleep 100 %

        QPN  TYPE  STATE  PEER  PID   SENT  RECEIVED  AGAIN  WAITS-FOR
         16  RC    RESET  -       0  0 b/s     0 b/s   0 /s  -
         17  RC    RESET  -       0  0 b/s     0 b/s   0 /s  -
         18  RC    RESET  -       0  0 b/s     0 b/s   0 /s  -
        ");
        for rows in 0..30 {
            assert!(lines(&now.status, Some(&r), rows).len() <= rows);
        }
        assert_eq!(lines(&now.status, None, 24).last().unwrap(), "measuring ...");
    }

    #[test]
    fn intervals_are_checked() {
        assert_eq!(parse_interval("0.5"), Ok(0.5));
        assert!(["0", "-1", "nan", "inf", "1e9", "x"].iter().all(|t| parse_interval(t).is_err()));
    }
}
