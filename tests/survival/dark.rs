//! The light between two daemons goes out: nobody says so, and no carrier is lost.

use crate::circuit::Circuit;
use crate::stage::{Daemon, Pair, until, v4};
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

/// What `holdfast path show` says of the path to the other end.
fn path_of(daemon: &Daemon, peer: u8) -> serde_json::Value {
    daemon.ask(&["path", "show", &v4(peer).to_string()])[0].clone()
}

#[test]
fn a_controller_announces_and_nothing_fails() {
    run_test("dark::a_controller_announces_and_nothing_fails", || {
        let (pair, mut circuit) = Circuit::between("");
        let mut traffic = acquainted(&pair);
        let mut sequence = 0;
        let mut announce = |what: &[&str]| {
            sequence += 1;
            let sequence = sequence.to_string();
            let to = ["path", "announce", "--peers", "198.18.0.0/24", "--epoch", "1", "--sequence", &sequence];
            pair.daemons.each_ref().map(|daemon| daemon.ask(&[&to[..], what].concat()))
        };
        traffic.play_during(|| {
            for _ in 0..5 {
                let told = announce(&["prepare", "--in", "20ms", "--for", "50ms"]);
                assert_eq!(told.each_ref().map(|answer| answer["paths"].as_u64()), [Some(1), Some(1)]);
                circuit.dark();
                until("it is dark as announced", || {
                    (0..2).all(|i| {
                        let path = path_of(&pair.daemons[i], 2 - i as u8);
                        path["state"] == "dark" && path["cause"] == "announced"
                    })
                });
                sleep(ms(50));
                circuit.light();
                announce(&["up"]);
                until("there is light", || path_of(&pair.daemons[0], 2)["state"] == "lit");
            }
        });
        let path = path_of(&pair.daemons[0], 2);
        assert!(path["darks"].as_u64() >= Some(5) && path["last_dark_ns"].as_u64() >= Some(50_000_000), "{path}");
        assert_unharmed(&pair.daemons);
    });
}

#[test]
fn what_is_announced_too_late_or_by_mistake_changes_nothing() {
    run_test("dark::what_is_announced_too_late_or_by_mistake_changes_nothing", || {
        let (pair, _circuit) = Circuit::between("");
        let mut traffic = acquainted(&pair);
        let daemon = &pair.daemons[0];
        let say = |arguments: &[&str]| {
            let command = ["path", "announce", "--peers", "198.18.0.2", "--epoch", "1"];
            daemon.say(&[&command[..], arguments].concat())
        };
        assert_eq!(say(&["--sequence", "2", "up"]), Ok("1 paths are told\n".into()));
        assert_eq!(say(&["--sequence", "2", "up"]), Ok("it was said before: nothing changes\n".into()));
        let stale = say(&["--sequence", "1", "down"]).unwrap_err();
        assert!(stale.contains("refused: event 1.1 for 198.18.0.2 is stale: 1.2 is known"), "{stale}");
        let label = say(&["--sequence", "3", "ride", "no label"]).unwrap_err();
        assert!(label.contains("event.ride.circuit.label: \"no label\" is no label"), "{label}");
        assert_eq!(path_of(daemon, 2)["state"], "lit");
        // A darkness that is none: whoever hears the peer knows better.
        traffic.play_during(|| {
            assert_eq!(say(&["--sequence", "4", "down"]), Ok("1 paths are told\n".into()));
            until("what comes through is light", || path_of(daemon, 2)["state"] == "lit");
        });
        assert_unharmed(&pair.daemons);
    });
}

#[test]
fn a_circuit_that_is_announced_is_shown_and_ridden() {
    run_test("dark::a_circuit_that_is_announced_is_shown_and_ridden", || {
        let (pair, _circuit) = Circuit::between("");
        let mut traffic = acquainted(&pair);
        let daemon = &pair.daemons[0];
        let ride =
            ["path", "announce", "--peers", "198.18.0.2", "ride", "lambda-7", "--rate", "1Gb/s", "--rtt", "10us"];
        assert_eq!(daemon.say(&ride), Ok("1 paths are told\n".into()));
        let path = path_of(daemon, 2);
        assert_eq!((&path["circuit"]["label"], &path["moves"]), (&"lambda-7".into(), &1.into()), "{path}");
        assert_eq!(path["circuit"]["rate_bps"], 1_000_000_000);
        (0..20).for_each(|_| traffic.round());
        assert_unharmed(&pair.daemons);
    });
}
