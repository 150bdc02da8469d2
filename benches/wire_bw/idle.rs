//! A daemon with a hundred thousand idle queue pairs: what they take, and what they cost a busy one. And what an idle daemon costs,
//! and how often a busy one is woken.
//!
//! Memory is the daemon's own (`RssAnon`), that is without the work queues, which lie in memory shared with the client. Sizes of
//! the queues inside the daemon follow from the depth asked for: here 1 send and 1 receive.
use holdfast::ipc::client::{Context, QpCapabilities, QpType, QueuePair};
use holdfast::perf::{Line, Measure, Operation};
use std::time::{Duration, Instant};

use crate::stage::{Stage, median, plan};

/// One program can have 65 536 queues.
const OF_ONE_CLIENT: usize = 50_000;
const LOOK: Duration = Duration::from_secs(3);
const MEASURE: Duration = Duration::from_secs(1);
const QUEUE_PAIRS: usize = 100_000;
const SMALL: u32 = 64;

/// All of it; the busy queue pair `rounds` times with the idle ones and without.
pub(crate) fn table(rounds: usize) {
    // Two of everything: one daemon pair gets the idle queue pairs, the other none, and they are measured in turns.
    let (crowded, empty) = (Stage::new(&[]), Stage::new(&[]));
    let contexts: Vec<Context> = (0..QUEUE_PAIRS.div_ceil(OF_ONE_CLIENT)).map(|_| crowded.attach(0)).collect();
    let kib = crowded.resident_kib(0);
    let start = Instant::now();
    let idle: Vec<QueuePair> = contexts
        .iter()
        .enumerate()
        .flat_map(|(i, context)| create(context, OF_ONE_CLIENT.min(QUEUE_PAIRS - i * OF_ONE_CLIENT)))
        .collect();
    let took = start.elapsed();
    let bytes = (crowded.resident_kib(0) - kib) * 1024 / idle.len() as u64;
    println!(
        "{} queue pairs: {:.1} us each to make, {bytes} bytes each in the daemon",
        idle.len(),
        micros(took, idle.len())
    );
    print_idle("idle daemon with all of them", &crowded);
    print_idle("idle daemon without", &empty);
    print_busy(&crowded, &empty, rounds);
    let start = Instant::now();
    drop((idle, contexts));
    println!("{:.1} us each to destroy", micros(start.elapsed(), QUEUE_PAIRS));
}

fn create(context: &Context, count: usize) -> Vec<QueuePair> {
    let pd = context.allocate_pd().unwrap();
    let cq = context.create_cq(16, None).unwrap();
    let caps = QpCapabilities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    (0..count).map(|_| pd.queue_pair(QpType::Rc, &cq, &cq).capabilities(caps).create().unwrap()).collect()
}

fn micros(took: Duration, of: usize) -> f64 {
    took.as_secs_f64() * 1e6 / of as f64
}

fn print_idle(what: &str, stage: &Stage) {
    let (before, woken) = (stage.cpu_time(0), stage.wake_ups(0));
    std::thread::sleep(LOOK);
    let share = (stage.cpu_time(0) - before).as_secs_f64() / LOOK.as_secs_f64();
    let rate = (stage.wake_ups(0) - woken) as f64 / LOOK.as_secs_f64();
    println!("{what}: {:.2} % of a core, woken {rate:.1} times a second", share * 100.0);
}

/// CPU of the sending daemon for each message, with the idle queue pairs and without, in turns.
fn print_busy(crowded: &Stage, empty: &Stage, rounds: usize) {
    let mut busy = plan(Operation::Write, Measure::Bandwidth, SMALL, MEASURE);
    busy.depth = 64;
    let one = |stage: &Stage| {
        let (before, woken) = (stage.cpu_time(0), stage.wake_ups(0));
        let Line::Bandwidth(line) = stage.measure(&busy) else { panic!("a bandwidth was asked for") };
        let messages = line.messages as f64;
        let ns = (stage.cpu_time(0) - before).as_nanos() as f64 / messages;
        (ns, (stage.wake_ups(0) - woken) as f64 / messages)
    };
    let (mut with, mut without, mut ratios, mut wakes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let ((a, _), (b, woken)) = (one(crowded), one(empty));
        with.push(a);
        without.push(b);
        ratios.push(a / b);
        wakes.push(woken);
    }
    println!(
        "WRITE of {SMALL} B, one queue pair: {:.0} ns of CPU a message with them, {:.0} without, ratio {:.3}; {:.5} wake-ups a message",
        median(with),
        median(without),
        median(ratios),
        median(wakes)
    );
}
