//! RDMA over a veth pair, beside what the same wire carries without RDMA.
//!
//! Each round measures everything once, so that a noisy machine hurts all of it alike; what is printed are medians and their
//! ratios. *raw*: the port's super-packets, nothing done with them, one thread a side. *tcp*: `iperf3`, one stream, if it is
//! installed. The RDMA lines are two daemons with a program each; ICRCs are computed and checked, and where it says
//! *verified* the programs write each message's own bytes and compare all that arrive.

use std::process::{Command, Stdio};
use std::time::Duration;

use holdfast::io::Gso;
use holdfast::perf::{Line, Measure, Operation, Plan};
use holdfast::wire::PathMtu;

use crate::raw;
use crate::stage::{self, Stage, median};

/// Each measurement.
const TIME: Duration = Duration::from_millis(700);

/// A line of the table.
struct Row {
    operation: Operation,
    bytes: u32,
    path_mtu: PathMtu,
    verify: bool,
}

/// All of it, `rounds` times.
pub(crate) fn table(rounds: usize) {
    let mut rows = Vec::new();
    for path_mtu in [PathMtu::B4096, PathMtu::B1024] {
        for (operation, bytes) in [
            (Operation::Write, 64 << 10),
            (Operation::Write, 1 << 20),
            (Operation::Send, 64 << 10),
            (Operation::Read, 64 << 10),
        ] {
            rows.extend([true, false].map(|verify| Row { operation, bytes, path_mtu, verify }));
        }
    }
    let mut raw = [vec![], vec![]];
    let mut tcp = vec![];
    let mut rdma = vec![[vec![], vec![], vec![]]; rows.len()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (of_mtu, payload) in raw.iter_mut().zip([4096, 1024]) {
            of_mtu.push(raw::run(None, None, Gso::On, payload, TIME).gbit_per_second(payload));
        }
        tcp.extend(iperf3());
        let stage = Stage::new(&[]);
        for (row, figures) in rows.iter().zip(&mut rdma) {
            for (figures, figure) in figures.iter_mut().zip(measure(&stage, row)) {
                figures.push(figure);
            }
        }
    }
    let raw = raw.map(median);
    let tcp = (!tcp.is_empty()).then(|| median(tcp));
    println!("raw super-packets, MTU 4096: {:.1} Gb/s; MTU 1024: {:.1} Gb/s", raw[0], raw[1]);
    match tcp {
        Some(tcp) => println!("TCP (iperf3, one stream): {tcp:.1} Gb/s"),
        None => println!("TCP: skipped: iperf3 is not installed"),
    }
    println!("operation      bytes   mtu  verified    Gb/s  of raw  x TCP  CPU ns/KiB: requester  responder");
    for (row, figures) in rows.iter().zip(rdma) {
        let [figure, requester, responder] = figures.map(median);
        println!(
            "{:9} {:10} {:5}  {:8} {figure:7.1} {:6.0}% {}  {requester:21.0} {responder:10.0}",
            row.operation.name(),
            row.bytes,
            row.path_mtu.bytes(),
            if row.verify { "yes" } else { "no" },
            100.0 * figure / raw[usize::from(row.path_mtu == PathMtu::B1024)],
            tcp.map_or("     -".into(), |tcp| format!("{:6.2}", figure / tcp)),
        );
    }
}

/// Gb/s, and the CPU time of both daemons for each KiB in nanoseconds.
fn measure(stage: &Stage, row: &Row) -> [f64; 3] {
    let plan = Plan {
        path_mtu: row.path_mtu,
        depth: (2 << 20) / row.bytes,
        verify: row.verify,
        ..stage::plan(row.operation, Measure::Bandwidth, row.bytes, TIME)
    };
    let before = [0, 1].map(|side| stage.cpu_time(side));
    let Line::Bandwidth(line) = stage.measure(&plan) else { panic!("bandwidth was asked for") };
    let kib = line.messages as f64 * f64::from(row.bytes) / 1024.0;
    let [requester, responder] = [0, 1].map(|side| (stage.cpu_time(side) - before[side]).as_nanos() as f64 / kib);
    [line.gbit_per_second(), requester, responder]
}

/// One stream over a veth pair of the same MTU.
fn iperf3() -> Option<f64> {
    let [a, b] = stage::pair();
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = b.run(|| server.spawn()).unwrap().ok()?;
    let mut client = Command::new("iperf3");
    let (to, time) = (stage::ADDRESSES[1].to_string(), TIME.as_secs_f64().ceil().to_string());
    client.args(["-J", "-c", &to, "-t", &time]);
    let mut output = None;
    for _ in 0..50 {
        output = a.run(|| client.output()).unwrap().ok().filter(|o| o.status.success());
        if output.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20)); // it does not listen yet
    }
    let _ = server.kill();
    let _ = server.wait();
    let report: serde_json::Value = serde_json::from_slice(&output?.stdout).ok()?;
    report["end"]["sum_received"]["bits_per_second"].as_f64().map(|bits| bits / 1e9)
}
