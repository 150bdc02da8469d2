//! A hundred thousand idle queue pairs at one daemon.

use crate::stage::{Pair, until};
use crate::traffic::Traffic;
use holdfast::io::namespace::run_test;
use holdfast::ipc::client::{Context, QpCapabilities, QpType, QueuePair};
use std::thread;

const CLIENTS: usize = 2;
const OF_EACH: usize = 50_000;
/// With its shortest queues.
const MOST_BYTES: u64 = 2048;

#[test]
fn a_hundred_thousand_idle_queue_pairs_take_little_and_others_go_on() {
    run_test("crowd::a_hundred_thousand_idle_queue_pairs_take_little_and_others_go_on", || {
        let pair = Pair::start("");
        let daemon = &pair.daemons[0];
        let mut traffic = Traffic::new(pair.attach());
        traffic.round();
        let contexts: Vec<Context> = (0..CLIENTS).map(|_| daemon.attach()).collect();
        let count = || daemon.metrics().total("holdfast_queue_pairs");
        until("the traffic's queue pairs are counted", || count() == 2);
        let (kib, holdings) = (daemon.resident_kib(), daemon.holdings());
        traffic.play_during(|| {
            let idle: Vec<Vec<QueuePair>> = thread::scope(|scope| {
                let makers: Vec<_> = contexts.iter().map(|context| scope.spawn(|| idle_queue_pairs(context))).collect();
                makers.into_iter().map(|maker| maker.join().unwrap()).collect()
            });
            let made = (CLIENTS * OF_EACH) as u64;
            until("all are counted", || count() == made + 2);
            let bytes = (daemon.resident_kib() - kib) * 1024 / made;
            println!("{bytes} bytes for each queue pair");
            assert!(bytes <= MOST_BYTES, "{bytes} bytes for each queue pair");
            drop(idle);
            until("all are gone", || daemon.holdings() == holdings);
        });
    });
}

fn idle_queue_pairs(context: &Context) -> Vec<QueuePair> {
    let pd = context.allocate_pd().unwrap();
    let cq = context.create_cq(16, None).unwrap();
    let caps = QpCapabilities { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    (0..OF_EACH).map(|_| pd.queue_pair(QpType::Rc, &cq, &cq).capabilities(caps).create().unwrap()).collect()
}
