//! `holdfast status`.

use super::Outcome;
use super::ask::{Ask, print_json};
use super::table::{Left, Right, Table, bytes, count, or_dash, time};
use crate::control::view::{Device, Percentiles, Status};
use crate::counters::Counter;
use std::io::{self, Write};

/// Show what the daemon is and how it fares: device, port, workers, programs, traffic.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    ask: Ask,
    /// All counters, also those that are zero.
    #[arg(long)]
    counters: bool,
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        let status = self.ask.run(|client| async move { client.status().await })?;
        if self.ask.json {
            return print_json(&status);
        }
        let out = &mut io::stdout().lock();
        write_device(out, &status)?;
        write_workers(out, &status)?;
        write_clients(out, &status)?;
        if self.counters {
            write_counters(out, &status)?
        } else {
            write_traffic(out, &status)?
        }
        Ok(())
    }
}

/// A counter of the status, in whole units.
pub(super) fn value(status: &Status, counter: Counter) -> f64 {
    let is_it =
        |c: &&crate::control::view::CounterValue| c.name == counter.metric() && c.label_value == counter.label_value();
    status.counters.iter().find(is_it).map_or(0.0, |c| c.value)
}

fn write_device(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let Device { name, version, pid, .. } = &status.device;
    writeln!(out, "{name}: holdfastd {version}, process {pid}, up {}", time(status.uptime_ns))?;
    let device = &status.device;
    let carrier = if device.link_up { "up" } else { "no carrier" };
    writeln!(
        out,
        "  interface  {}, {carrier}, MTU {} (RoCE MTU {})",
        device.interface.as_deref().unwrap_or("none, by addresses"),
        device.link_mtu_bytes,
        device.active_mtu_bytes
    )?;
    let bursts = if device.segmentation_offload { "super-packets" } else { "packet by packet" };
    writeln!(out, "  port       {} by {}, {bursts}", device.backend, device.driver)?;
    for note in &device.notes {
        writeln!(out, "             {note}")?;
    }
    for gid in &device.gids {
        writeln!(out, "  GID {:<6} {}", gid.index, gid.address)?;
    }
    let config = device.config.as_ref().map_or("none: defaults and options".into(), |c| c.display().to_string());
    writeln!(out, "  settings   {config}")
}

fn write_workers(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let mut table =
        Table::new(&[("WORKER", Right), ("CPU", Right), ("QPS", Right), ("MRS", Right), ("REGISTERED", Right)]);
    for w in &status.workers {
        table.row([
            w.index.to_string(),
            or_dash(w.cpu),
            w.queue_pairs.to_string(),
            w.memory_regions.to_string(),
            bytes(w.registered_bytes),
        ]);
    }
    writeln!(out)?;
    table.write(out)?;
    let problems = status.workers.iter().filter_map(|w| w.problem.as_ref());
    problems.into_iter().try_for_each(|problem| writeln!(out, "PROBLEM: {problem}"))
}

fn write_clients(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let mut table = Table::new(&[
        ("PID", Right),
        ("PROGRAM", Left),
        ("UID", Right),
        ("WORKER", Right),
        ("QPS", Right),
        ("MRS", Right),
        ("REGISTERED", Right),
        ("ATTACHED", Right),
    ]);
    for c in &status.clients {
        table.row([
            c.pid.to_string(),
            c.command.clone(),
            c.uid.to_string(),
            c.worker.to_string(),
            c.queue_pairs.to_string(),
            c.memory_regions.to_string(),
            bytes(c.registered_bytes),
            time(c.attached_ns),
        ]);
    }
    writeln!(out)?;
    if table.is_empty() { writeln!(out, "no program is attached") } else { table.write(out) }
}

fn write_traffic(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let whole = |counter| value(status, counter) as u64;
    let traffic = |packets, octets| format!("{} packets, {}", count(whole(packets)), bytes(whole(octets)));
    writeln!(out, "\nreceived     {}", traffic(Counter::ReceivedPackets, Counter::ReceivedBytes))?;
    writeln!(out, "transmitted  {}", traffic(Counter::TransmittedPackets, Counter::TransmittedBytes))?;
    let of = |metric: &str| {
        let members = status.counters.iter().filter(|c| c.name == metric && c.value != 0.0);
        members.map(|c| format!("{} {}", count(c.value as u64), c.label_value)).collect::<Vec<_>>().join(", ")
    };
    let drops = of(Counter::DropIcrc.metric());
    writeln!(out, "dropped      {}", if drops.is_empty() { "nothing" } else { &drops })?;
    let again = [(Counter::RetransmittedPackets, "packets"), (Counter::AckTimeouts, "ACK timeouts")];
    let again = again.map(|(counter, what)| format!("{} {what}", count(whole(counter)))).join(", ");
    writeln!(out, "sent again   {again}")?;
    match status.completion_latency.count {
        0 => writeln!(out, "completions  none"),
        n => writeln!(out, "completions  {}, {}", count(n), percentiles(&status.completion_latency)),
    }
}

/// Percentiles of completion latency since the daemon started.
pub(super) fn percentiles(latency: &Percentiles) -> String {
    // The last bucket has no upper bound to show.
    let bound = |ns: Option<u64>| ns.map_or("> 10 s".into(), |ns| format!("<= {}", time(ns)));
    let (p50, p99, p999) = (bound(latency.p50_ns), bound(latency.p99_ns), bound(latency.p999_ns));
    format!("p50 {p50}, p99 {p99}, p99.9 {p999}")
}

fn write_counters(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    let mut table = Table::new(&[("COUNTER", Left), ("LABEL", Left), ("VALUE", Right)]);
    for c in &status.counters {
        let label = if c.label.is_empty() { String::new() } else { format!("{}={}", c.label, c.label_value) };
        table.row([c.name.clone(), label, c.value.to_string()]);
    }
    writeln!(out)?;
    table.write(out)
}
