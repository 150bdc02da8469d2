//! The light between two daemons goes out: nobody says so, and no carrier is lost.

use crate::circuit::Circuit;
use crate::stage::{Daemon, Pair, until};
use crate::traffic::{Traffic, options};
use holdfast::io::namespace::run_test;
use holdfast::ipc::client::{ConnectionOptions, WcStatus};
use std::thread::sleep;
use std::time::Duration;

/// With these a stock queue pair is dead after a millisecond.
fn impatient() -> ConnectionOptions {
    ConnectionOptions { timeout: 8, retry_count: 0, ..options() }
}

/// Traffic of neighbours who have found each other, and how quickly they answer.
fn acquainted(pair: &Pair) -> Traffic {
    let mut traffic = Traffic::with(pair.attach(), &impatient());
    (0..50).for_each(|_| traffic.round());
    traffic
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn assert_unharmed(daemons: &[Daemon; 2]) {
    for daemon in daemons {
        let metrics = daemon.metrics();
        for name in ["holdfast_path_lost_queue_pairs_total", "holdfast_completion_errors_total"] {
            assert_eq!(metrics.total(name), 0, "{name}");
        }
        assert_eq!(metrics.total("holdfast_paths_dark"), 0);
    }
}

#[test]
fn flaps_cost_nothing_but_time() {
    run_test("dark::flaps_cost_nothing_but_time", || {
        let (pair, mut circuit) = Circuit::between("");
        let mut traffic = acquainted(&pair);
        traffic.play_during(|| {
            for dark in [1, 10, 100].into_iter().cycle().take(21).map(ms) {
                circuit.blink(dark);
                sleep(ms(10));
            }
        });
        let darks: u64 = pair.daemons.iter().map(|daemon| daemon.metrics().total("holdfast_path_darks_total")).sum();
        println!("21 flaps: {darks} found out by two daemons");
        assert!(darks >= 7, "those of 100 ms are found out, not only {darks}");
        assert_unharmed(&pair.daemons);
    });
}

#[test]
fn seconds_of_darkness_cost_nothing_but_time() {
    run_test("dark::seconds_of_darkness_cost_nothing_but_time", || {
        let (pair, mut circuit) = Circuit::between("");
        let mut traffic = acquainted(&pair);
        let qpn = traffic.sides[0].rc.qpn().to_string();
        traffic.play_during(|| {
            circuit.dark();
            until("the queue pair says what it waits for", || {
                pair.daemons[0].ask(&["qp", "show", &qpn])["waits_for"] == "dark"
            });
            sleep(ms(5_000));
            circuit.light();
            until("there is light", || pair.daemons[0].metrics().total("holdfast_paths_dark") == 0);
        });
        assert_unharmed(&pair.daemons);
    });
}

/// What every other stack does, and what `hold` is for.
#[test]
fn without_hold_the_same_darkness_kills() {
    run_test("dark::without_hold_the_same_darkness_kills", || {
        let (pair, mut circuit) = Circuit::between("hold.enabled = false\n");
        assert_eq!(fate(&pair, &mut circuit), WcStatus::RetryExceeded);
    });
}

#[test]
fn hold_max_ends_the_wait() {
    run_test("dark::hold_max_ends_the_wait", || {
        let (pair, mut circuit) = Circuit::between("hold.hold_max = \"300ms\"\n");
        assert_eq!(fate(&pair, &mut circuit), WcStatus::RetryExceeded);
        assert_eq!(pair.daemons[0].metrics().total("holdfast_path_lost_queue_pairs_total"), 1);
    });
}

/// How a WRITE ends that is posted after the light went out for good.
fn fate(pair: &Pair, circuit: &mut Circuit) -> WcStatus {
    // Some 20 ms; on a busy machine a single millisecond passes too easily.
    let options = ConnectionOptions { timeout: 10, retry_count: 3, ..options() };
    let mut traffic = Traffic::with(pair.attach(), &options);
    (0..10).for_each(|_| traffic.round());
    circuit.dark();
    traffic.write_alone()
}
