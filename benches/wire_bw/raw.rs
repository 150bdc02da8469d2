//! What a port carries raw: packets over a veth pair, without RDMA and without ICRC.
//!
//! One thread sends, at most a window ahead so that nothing is lost; one receives, and naps when there is nothing. CPU is
//! what the sends took (on a veth pair with what a receiving host's interrupts would take), and all that the receiving
//! thread took.

use std::net::IpAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use holdfast::io::namespace::{End, Namespace};
use holdfast::io::{Backend, Driver, Gso, Port, PortSettings, open};
use holdfast::transport::{AddressVector, Burst};

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2));
/// BTH and ICRC.
const OVERHEAD_BYTES: usize = 16;
/// How far the sender may be ahead, in bytes: well below the receive buffer.
const WINDOW_BYTES: u64 = 1 << 20;
/// Long enough for packets to gather, short enough not to let the window close.
const NAP: Duration = Duration::from_micros(20);
/// On a machine that is busy otherwise, threads wait long for their turn.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bursts offered in one send.
const BURSTS: usize = 4;

/// Every backend with every driver, as a table.
pub(crate) fn table(time: Duration) {
    println!("backend driver    payload  send     Gb/s   Mpkt/s  send ns/pkt  receive ns/pkt  pkts/receive");
    for payload in [1024, 4096] {
        for gso in [Gso::On, Gso::Off] {
            for backend in [Backend::Packet, Backend::Udp] {
                for driver in [Driver::Syscalls, Driver::IoUring] {
                    let outcome = run(Some(backend), Some(driver), gso, payload, time);
                    print(backend, driver, gso, payload, &outcome);
                }
            }
        }
    }
}

fn print(backend: Backend, driver: Driver, gso: Gso, payload: usize, outcome: &Outcome) {
    let Outcome { packets, lost, elapsed, send_cpu, receive_cpu, receives } = outcome;
    let count = *packets as f64;
    println!(
        "{:7} {:9} {payload:7}  {:6} {:6.1} {:8.3} {:12.0} {:15.0} {:13.1}{}",
        backend.to_string(),
        driver.to_string(),
        if gso == Gso::On { "super" } else { "single" },
        outcome.gbit_per_second(payload),
        count / elapsed.as_secs_f64() / 1e6,
        send_cpu.as_nanos() as f64 / count,
        receive_cpu.as_nanos() as f64 / count,
        count / *receives as f64,
        if *lost > 0 { format!("  {lost} lost") } else { String::new() },
    );
}

/// How one combination fared.
pub(crate) struct Outcome {
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    pub(crate) elapsed: Duration,
    pub(crate) send_cpu: Duration,
    pub(crate) receive_cpu: Duration,
    pub(crate) receives: u64,
}

impl Outcome {
    /// Gigabits a second of UDP payloads of `payload` bytes and their BTH and ICRC.
    pub(crate) fn gbit_per_second(&self, payload: usize) -> f64 {
        self.packets as f64 * (payload + OVERHEAD_BYTES) as f64 * 8.0 / self.elapsed.as_secs_f64() / 1e9
    }
}

/// Sends packets of `payload` bytes for `duration`.
pub(crate) fn run(
    backend: Option<Backend>,
    driver: Option<Driver>,
    gso: Gso,
    payload: usize,
    duration: Duration,
) -> Outcome {
    let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let end = |namespace, name, address| End { namespace, name, addresses: address };
    Namespace::connect(end(&a, "a0", &[(A, 24)]), end(&b, "b0", &[(B, 24)]), 4200).unwrap();
    let settings = |interface: &str, address| PortSettings {
        backend,
        driver,
        interface: Some(interface.to_owned()),
        addresses: vec![address],
        gso,
        ..PortSettings::default()
    };
    let (received, stop, ready) = (AtomicU64::new(0), AtomicBool::new(false), Barrier::new(2));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            b.enter().unwrap();
            let mut port = open(&settings("b0", B)).unwrap();
            let before = cpu_time();
            ready.wait();
            while !stop.load(Ordering::Acquire) {
                let count = port.receive(256, &mut |datagram| {
                    std::hint::black_box(datagram.bytes);
                });
                match count.unwrap() {
                    0 => thread::sleep(NAP),
                    count => _ = received.fetch_add(count as u64, Ordering::AcqRel),
                }
            }
            (port.counters(), cpu_time() - before)
        });
        let sender = scope.spawn(|| {
            a.enter().unwrap();
            let mut port = open(&settings("a0", A)).unwrap();
            ready.wait();
            send(&mut port, payload, duration, &received)
        });
        let (sent, elapsed, send_cpu) = sender.join().unwrap();
        stop.store(true, Ordering::Release);
        let (counters, receive_cpu) = receiver.join().unwrap();
        let packets = counters.received_packets;
        Outcome { packets, lost: sent - packets, elapsed, send_cpu, receive_cpu, receives: counters.receives }
    })
}

/// Packets sent, the time until the last had arrived, and the CPU time of it.
fn send(port: &mut impl Port, payload: usize, duration: Duration, received: &AtomicU64) -> (u64, Duration, Duration) {
    let limits = port.capabilities().burst;
    let flow = AddressVector {
        source: A,
        destination: B,
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    let packet = vec![0x5a; payload + OVERHEAD_BYTES];
    let bursts: Vec<Burst> = (0..BURSTS)
        .map(|_| {
            let mut burst = Burst::new(limits);
            while burst.packet_count() < limits.max_packets && burst.push_raw(&flow, &packet) {}
            burst
        })
        .collect();
    let window = WINDOW_BYTES / packet.len() as u64;
    let start = Instant::now();
    let (mut sent, mut busy) = (0, Duration::ZERO);
    while start.elapsed() < duration {
        let before = cpu_time();
        let taken = port.send(&bursts).unwrap();
        busy += cpu_time() - before;
        sent += bursts.iter().take(taken).map(|b| u64::from(b.packet_count())).sum::<u64>();
        while sent - received.load(Ordering::Acquire) > window && start.elapsed() < 2 * duration {
            thread::yield_now();
        }
    }
    // What is on its way arrives soon or never.
    let patience = Instant::now();
    while received.load(Ordering::Acquire) < sent && patience.elapsed() < PATIENCE {
        thread::yield_now();
    }
    assert_eq!(port.poll_refusal(), None);
    (sent, start.elapsed(), busy)
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}
