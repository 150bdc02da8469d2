//! Several workers: each queue pair lives on one of them, and packets find it.

use crate::stage::{Pair, until};
use crate::traffic::Traffic;
use holdfast::io::namespace::run_test;
use std::thread;

const ROUNDS: u64 = 100;

/// Traffic between any two of four clients: of two daemons, each of which gives its clients to its two workers in turn.
fn two_workers_each(settings: &str) {
    let pair = Pair::start(&format!("workers.count = 2\n{settings}"));
    let attach = |daemon: usize| pair.daemons[daemon].attach();
    // Of each daemon the first, second, … client is on worker 0, 1, 0, 1, …
    let mut traffics = [
        ("across, worker 0 to 0", Traffic::new([attach(0), attach(1)])),
        ("across, worker 1 to 1", Traffic::new([attach(0), attach(1)])),
        ("within, worker 0 to 1", Traffic::new([attach(0), attach(0)])),
        ("within, worker 0 to 1 of the other", Traffic::new([attach(1), attach(1)])),
    ];
    // One more at the first daemon only: from here on the two daemons' turns differ.
    let idle = attach(0);
    let crossed = Traffic::new([attach(0), attach(1)]);
    thread::scope(|scope| {
        for (what, traffic) in traffics.iter_mut() {
            scope.spawn(move || {
                (0..ROUNDS).for_each(|_| traffic.round());
                assert_eq!(traffic.lost_datagrams(|_| false), 0, "{what}");
            });
        }
    });
    let mut crossed = crossed;
    (0..ROUNDS).for_each(|_| crossed.round());
    for daemon in &pair.daemons {
        until("the workers' queue pairs are counted", || {
            let metrics = daemon.metrics();
            ["0", "1"].iter().all(|worker| metrics.of("holdfast_queue_pairs", "worker", worker) >= 4)
        });
    }
    drop((idle, crossed, traffics));
    pair.end();
}

#[test]
fn two_workers_each_by_packet() {
    run_test("workers::two_workers_each_by_packet", || two_workers_each("port.backend = \"packet\"\n"));
}

#[test]
fn two_workers_each_by_udp() {
    run_test("workers::two_workers_each_by_udp", || two_workers_each("port.backend = \"udp\"\n"));
}
