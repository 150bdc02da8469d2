//! The latency of 8 bytes, beside a bare UDP ping-pong.
//!
//! Both sides poll. *udp*: two threads, one connected socket each, that receive without blocking, and send. *engine*: two threads
//! that do the same by an engine and a port each: what RDMA itself costs. *daemon*: two daemons and a program at each: four
//! threads that poll, which on a machine of fewer processors wait for each other. *udp relayed* is the yardstick for that:
//! a program at each end behind a thread that owns the socket, a word of shared memory between them.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use holdfast::perf::{Line, Measure, Operation, Plan};

use crate::engines;
use crate::stage::{self, Stage, median};

/// Each measurement.
const TIME: Duration = Duration::from_millis(700);
const PORT: u16 = 7471;
/// A packet that does not come for so long is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// All of it, `rounds` times.
pub(crate) fn table(rounds: usize) {
    let names = ["udp", "engine WRITE", "engine SEND", "udp relayed", "daemon WRITE", "daemon SEND", "daemon READ"];
    let mut figures = vec![vec![]; names.len()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        figures[0].push(ping_pong(false));
        figures[1].push(engines::ping_pong(true, TIME));
        figures[2].push(engines::ping_pong(false, TIME));
        figures[3].push(ping_pong(true));
        let stage = Stage::new(&["--set", "workers.poll=always"]);
        for (i, operation) in [Operation::Write, Operation::Send, Operation::Read].into_iter().enumerate() {
            figures[4 + i].push(p50(&stage, operation));
        }
    }
    let medians: Vec<f64> = figures.into_iter().map(median).collect();
    println!("8 bytes       p50 us  x udp  x udp relayed");
    for (name, us) in names.iter().zip(&medians) {
        println!("{name:12} {us:7.1} {:6.2} {:14.2}", us / medians[0], us / medians[3]);
    }
}

/// Half a round trip, in microseconds.
fn p50(stage: &Stage, operation: Operation) -> f64 {
    let plan = Plan { spin: true, ..stage::plan(operation, Measure::Latency, 8, TIME) };
    match stage.measure(&plan) {
        Line::Latency(line) => line.p50_us,
        Line::Bandwidth(_) => panic!("latency was asked for"),
    }
}

/// Half a round trip of two UDP sockets, in microseconds; with a thread between each socket and its program if `relayed`.
fn ping_pong(relayed: bool) -> f64 {
    let namespaces = stage::pair();
    let end = AtomicBool::new(false);
    let socket = |side: usize| {
        let bound = namespaces[side].run(|| UdpSocket::bind((stage::ADDRESSES[side], PORT))).unwrap().unwrap();
        bound.set_nonblocking(true).unwrap();
        bound.connect(SocketAddr::new(stage::ADDRESSES[1 - side], PORT)).unwrap();
        End { socket: bound, relay: relayed.then(Relay::default) }
    };
    let (ping, pong) = (socket(0), socket(1));
    let mut samples = Vec::new();
    thread::scope(|scope| {
        for one in [&ping, &pong] {
            if let Some(relay) = &one.relay {
                scope.spawn(|| relay.run(&one.socket, &end));
            }
        }
        scope.spawn(|| {
            while pong.receive(&end) {
                pong.send();
            }
        });
        let start = Instant::now();
        while start.elapsed() < TIME {
            let begin = Instant::now();
            ping.send();
            assert!(ping.receive(&end));
            samples.push(begin.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        end.store(true, Ordering::Relaxed);
    });
    median(samples)
}

/// One end of a UDP ping-pong.
struct End {
    socket: UdpSocket,
    relay: Option<Relay>,
}

/// How many packets a program has asked for, and how many have come.
#[derive(Default)]
struct Relay {
    posted: AtomicU64,
    arrived: AtomicU64,
}

impl Relay {
    fn run(&self, socket: &UdpSocket, end: &AtomicBool) {
        let mut sent = 0;
        while !end.load(Ordering::Relaxed) {
            if sent < self.posted.load(Ordering::Acquire) {
                sent += 1;
                socket.send(&[0; 8]).unwrap();
            } else if socket.recv(&mut [0; 64]).is_ok() {
                self.arrived.fetch_add(1, Ordering::AcqRel);
            } else {
                thread::yield_now();
            }
        }
    }
}

impl End {
    fn send(&self) {
        match &self.relay {
            Some(relay) => _ = relay.posted.fetch_add(1, Ordering::AcqRel),
            None => _ = self.socket.send(&[0; 8]).unwrap(),
        }
    }

    /// Polls until a packet has come; false at the end.
    fn receive(&self, end: &AtomicBool) -> bool {
        let start = Instant::now();
        while !end.load(Ordering::Relaxed) {
            let came = match &self.relay {
                Some(relay) => relay.arrived.swap(0, Ordering::AcqRel) > 0,
                None => self.socket.recv(&mut [0; 64]).is_ok(),
            };
            if came {
                return true;
            }
            assert!(start.elapsed() < PATIENCE, "a packet was lost");
            thread::yield_now();
        }
        false
    }
}
