//! The simulator: engines on a seeded bad network, checked against a plain model.
//!
//! `cargo test --test simulation` runs 10 000 seeds; `-- --seed N` runs one, and `-- --seeds N` so many. A failing seed is
//! printed with the command that runs it again, and replays exactly; `--trace` besides shows each packet.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A test is a crate of its own: what is `pub` in it is so among its files.
#![allow(unreachable_pub)]

mod darkness;
mod datagrams;
mod layout;
mod link;
mod model;
mod network;
mod node;
mod rng;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use world::Summary;

const SEEDS: u64 = 10_000;
/// Seeds of the run on a network that mends the ICRC of what it damages.
const MUTANT_SEEDS: u64 = 40;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let (one, many) = (number_after(&arguments, "--seed"), number_after(&arguments, "--seeds"));
    let failed = match one {
        Some(seed) => {
            let run = run_caught(seed, false, arguments.iter().any(|a| a == "--trace"));
            match &run {
                Ok(summary) => println!("seed {seed}: {summary}"),
                Err(why) => println!("seed {seed} FAILED: {why}"),
            }
            report(1, usize::from(run.is_err()))
        }
        None => {
            let count = many.unwrap_or(SEEDS);
            let failures = sweep(count).len() + usize::from(!mutants_are_caught());
            report(count as usize + 1, failures)
        }
    };
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn number_after(arguments: &[String], name: &str) -> Option<u64> {
    let at = arguments.iter().position(|a| a == name)?;
    Some(arguments.get(at + 1).and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{name} needs a number")))
}

/// The closing line of a test run; whether anything failed.
fn report(count: usize, failures: usize) -> bool {
    let verdict = if failures == 0 { "ok" } else { "FAILED" };
    let passed = count - failures;
    println!("\ntest result: {verdict}. {passed} passed; {failures} failed; 0 ignored; 0 measured; 0 filtered out\n");
    failures > 0
}

/// Runs seeds on all cores; gives back those that failed.
fn sweep(count: u64) -> Vec<u64> {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Summary::default());
    let failures = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(count as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count || failures.lock().unwrap().len() >= 10 {
                        break;
                    }
                    match run_caught(seed, false, false) {
                        Ok(summary) => total.lock().unwrap().add(&summary),
                        Err(why) => {
                            println!(
                                "seed {seed} FAILED: {why}\n  again: cargo test --test simulation -- --seed {seed}"
                            );
                            failures.lock().unwrap().push(seed);
                        }
                    }
                }
            });
        }
    });
    println!("{count} seeds: {}", *total.lock().unwrap());
    failures.into_inner().unwrap()
}

/// A panic is a failure like any other.
fn run_caught(seed: u64, mend_icrc: bool, trace: bool) -> Result<Summary, String> {
    let run = catch_unwind(AssertUnwindSafe(|| world::run(seed, mend_icrc, trace)));
    run.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        Err(format!(
            "panic: {}",
            text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).into())).unwrap_or_default()
        ))
    })
}

/// The simulator can fail: where damage goes behind the ICRC's back, most seeds must be found wrong.
fn mutants_are_caught() -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = (0..MUTANT_SEEDS).filter(|&seed| run_caught(seed, true, false).is_err()).count() as u64;
    std::panic::set_hook(hook);
    println!("damage with a mended ICRC: found in {caught} of {MUTANT_SEEDS} seeds");
    caught * 2 > MUTANT_SEEDS
}
