//! What DCQCN does at a simulated bottleneck of 40 Gb/s: `cargo bench --bench dcqcn`. Nothing is timed: the figures are the same on every
//! machine. A table goes to standard output, a CSV file and a drawing of each run to `target/dcqcn/`.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![allow(unreachable_pub)]

#[path = "../../tests/congestion/simulator.rs"]
mod simulator;
mod svg;

use holdfast::congestion::{Bps, Parameters};
use holdfast::time::Duration;
use simulator::{Report, Setup};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use svg::{Chart, Panel};

/// One line of the table.
struct Run {
    name: &'static str,
    what: &'static str,
    setup: Setup,
    /// From when to when it should have settled.
    settled: (Duration, Duration),
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const TEN_KM: Duration = Duration::from_micros(50);
const HUNDRED_KM: Duration = Duration::from_micros(500);

fn run(name: &'static str, what: &'static str, flows: usize, change: impl FnOnce(&mut Setup)) -> Run {
    let mut setup = Setup::new(flows, ms(200));
    change(&mut setup);
    Run { name, what, setup, settled: (ms(100), ms(200)) }
}

/// NVIDIA's default values. Its adapters reckon alpha otherwise (once each `dce_tcp_rtt`), so this says nothing about them.
fn nvidia() -> Parameters {
    Parameters {
        clamp_tgt_rate: false,
        rpg_time_reset: Duration::from_micros(300),
        rpg_byte_reset: 32_767,
        rpg_threshold: 1,
        rpg_ai_rate: Bps::from_mbps(5),
        rpg_hai_rate: Bps::from_mbps(50),
        rpg_min_rate: Bps::from_mbps(1),
        dce_tcp_g: 1019,
        dce_tcp_rtt: Duration::from_micros(1),
        rate_reduce_monitor_period: Duration::from_micros(4),
        min_time_between_cnps: Duration::from_micros(4),
        ..Parameters::default()
    }
}

fn runs() -> Vec<Run> {
    let joining = |setup: &mut Setup| {
        setup.flows = vec![(ms(0), ms(200)), (ms(30), ms(130)), (ms(60), ms(160))];
    };
    vec![
        run("2", "2 flows, 10 m", 2, |_| {}),
        run("10", "10 flows, 10 m", 10, |_| {}),
        run("20", "20:1 incast, 10 m", 20, |_| {}),
        run("64", "64 flows, 10 m", 64, |_| {}),
        run("20-first", "20:1, rate_to_set_on_first_cnp 2 Gb/s", 20, |s| {
            s.parameters.rate_to_set_on_first_cnp = Bps::from_gbps(2);
        }),
        run("64-min-1", "64 flows, rpg_min_rate 1 Mb/s", 64, |s| s.parameters.rpg_min_rate = Bps::from_mbps(1)),
        run("20-nvidia", "20:1, NVIDIA's default values, our equations", 20, |s| s.parameters = nvidia()),
        run("2-10km", "2 flows, 10 km", 2, |s| s.circuit = TEN_KM),
        run("10-10km", "10 flows, 10 km", 10, |s| s.circuit = TEN_KM),
        run("20-10km", "20:1 incast, 10 km", 20, |s| s.circuit = TEN_KM),
        run("64-10km", "64 flows, 10 km", 64, |s| s.circuit = TEN_KM),
        run("64-10km-untold", "64 flows, 10 km, round trip not told", 64, |s| {
            (s.circuit, s.told_rtt) = (TEN_KM, Some(Duration::ZERO));
        }),
        run("10-100km", "10 flows, 100 km", 10, |s| s.circuit = HUNDRED_KM),
        run("10-100km-untold", "10 flows, 100 km, round trip not told", 10, |s| {
            (s.circuit, s.told_rtt) = (HUNDRED_KM, Some(Duration::ZERO));
        }),
        Run { settled: (ms(100), ms(130)), ..run("join", "2 join at 30, 60 ms, leave at 130, 160", 3, joining) },
        Run {
            settled: (ms(150), ms(200)),
            ..run("dark", "10 flows, dark 100 to 150 ms", 10, |s| s.dark = Some((ms(100), ms(150))))
        },
        Run {
            settled: (ms(150), ms(200)),
            ..run("dark-unfrozen", "the same, timers run on", 10, |s| {
                (s.dark, s.freezes) = (Some((ms(100), ms(150))), false);
            })
        },
    ]
}

fn main() {
    // target/tmp, wherever target is.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("dcqcn");
    std::fs::create_dir_all(&directory).expect("target is writable");
    println!(
        "40 Gb/s, RED {:?}; queues in KB; all but the first are of the time when it should have settled\n",
        simulator::Red::PAPER
    );
    println!("| run | highest queue | Jain | used | swing | median queue | 99 % | highest | CNPs/ms |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for run in runs() {
        let report = run.setup.run();
        println!("{}", row(&run, &report));
        std::fs::write(file(&directory, &run, "csv"), csv(&report)).expect("a file in target");
        std::fs::write(file(&directory, &run, "svg"), drawing(&run, &report)).expect("a file in target");
    }
    println!("\nEach run is drawn in {}", directory.display());
}

fn file(directory: &Path, run: &Run, extension: &str) -> PathBuf {
    directory.join(run.name).with_extension(extension)
}

fn row(run: &Run, report: &Report) -> String {
    let (from, to) = run.settled;
    let kb = |bytes: u64| bytes / 1000;
    format!(
        "| {} | {} | {:.3} | {:.1} % | {:.1} % | {} | {} | {} | {:.1} |",
        run.what,
        kb(report.peak_queue(Duration::ZERO, run.setup.lasts)),
        report.jain(0..run.setup.flows.len(), from, to),
        100.0 * report.utilization(from, to),
        100.0 * report.swing(from, to),
        kb(report.queue_quantile(0.5, from, to)),
        kb(report.queue_quantile(0.99, from, to)),
        kb(report.peak_queue(from, to)),
        report.cnps as f64 / run.setup.lasts.as_secs_f64() / 1000.0,
    )
}

/// One line a sample: time, largest queue since the one before, then rate and bytes of each flow.
fn csv(report: &Report) -> String {
    let flows = report.samples.first().map_or(0, |sample| sample.rates.len());
    let mut text = String::from("us,peak_queue_bytes");
    for flow in 0..flows {
        let _ = write!(text, ",rate_bps_{flow},delivered_bytes_{flow}");
    }
    for sample in &report.samples {
        let _ = write!(text, "\n{},{}", sample.at.as_micros(), sample.peak_queue_bytes);
        for (rate, delivered) in sample.rates.iter().zip(&sample.delivered) {
            let _ = write!(text, ",{},{delivered}", rate.as_bps());
        }
    }
    text.push('\n');
    text
}

fn drawing(run: &Run, report: &Report) -> String {
    let step = ms(1);
    let ends: Vec<Duration> = (1..=run.setup.lasts.as_millis() as u32).map(|n| step * n).collect();
    let milliseconds = |at: &Duration| at.as_secs_f64() * 1000.0;
    let throughput = |flow: usize| -> Vec<(f64, f64)> {
        ends.iter().map(|end| (milliseconds(end), report.throughput(flow, *end - step, *end) / 1e9)).collect()
    };
    let queue = ends.iter().map(|end| (milliseconds(end), report.peak_queue(*end - step, *end) as f64 / 1000.0));
    let chart = Chart {
        title: format!("{}, 40 Gb/s", run.what),
        x_axis: "ms",
        panels: vec![
            Panel { y_axis: "Gb/s of each flow", series: (0..run.setup.flows.len()).map(throughput).collect() },
            Panel { y_axis: "peak queue, KB", series: vec![queue.collect()] },
        ],
    };
    chart.to_string()
}
