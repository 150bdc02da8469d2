//! Small messages: 64 bytes, 16 queue pairs, 128 under way on each.
//!
//! The daemons' CPU time, which a busy machine lengthens less than the run. Both workers sleep where they have nothing to do.

use std::time::Duration;

use holdfast::perf::{Line, Measure, Operation, Plan};

use crate::stage::{self, Stage, median};

/// Each measurement: long beside the 10 ms in which the kernel tells CPU time.
const TIME: Duration = Duration::from_secs(2);

/// All of it, `rounds` times.
pub(crate) fn table(rounds: usize) {
    let operations = [Operation::Write, Operation::Send];
    let mut figures = vec![[vec![], vec![], vec![]]; operations.len()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let stage = Stage::new(&[]);
        for (operation, figures) in operations.into_iter().zip(&mut figures) {
            let plan = Plan { queue_pairs: 16, depth: 128, ..stage::plan(operation, Measure::Bandwidth, 64, TIME) };
            let before = [0, 1].map(|side| stage.cpu_time(side));
            let Line::Bandwidth(line) = stage.measure(&plan) else { panic!("bandwidth was asked for") };
            figures[0].push(line.million_messages_per_second());
            for (side, before) in before.into_iter().enumerate() {
                let cpu = stage.cpu_time(side) - before;
                figures[1 + side].push(cpu.as_secs_f64() * 1e9 / line.messages as f64);
            }
        }
    }
    println!("64 bytes, 16 QPs, depth 128   Mmsg/s   requester ns   responder ns");
    for (operation, figures) in operations.into_iter().zip(figures) {
        let [rate, requester, responder] = figures.map(median);
        println!("{:28} {rate:8.2} {requester:14.0} {responder:14.0}", operation.name());
    }
}
