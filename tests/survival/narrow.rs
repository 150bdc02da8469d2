//! A circuit that is narrower than what its ends want to send: it says so by marks, and the daemons share it without losses.

use crate::circuit::Circuit;
use crate::stage::PATIENCE;
use holdfast::io::namespace::run_test;
use holdfast::ipc::client::*;
use serde_json::Value;
use std::time::Instant;

/// A hundredth of the paper's line. Its queue holds a small part of what four queue pairs may have under way.
const LINE: &str =
    "line = { rate_bps = 400_000_000, queue = \"512KiB\", ecn = { kmin = \"20KiB\", kmax = \"100KiB\", pmax = 0.2 } }";
/// So are these of the paper's parameters; the round trip is that of a queue of kmax.
const TUNED: &str = "congestion.line_rate = \"400Mb/s\"\ncongestion.line_rtt = \"2ms\"\ncongestion.rpg_ai_rate = \"1Mb/s\"\n\
                     congestion.rpg_hai_rate = \"4Mb/s\"\ncongestion.rpg_min_rate = \"1Mb/s\"\n";
const FLOWS: usize = 4;
const MESSAGE: u64 = 64 << 10;
const DEPTH: u64 = 8;
/// Messages of each queue pair.
const MESSAGES: u64 = 150;

/// Queue pairs of one side towards the other, all of which write as much as they can.
struct Flows {
    cq: CompletionQueue,
    flows: Vec<QueuePair>,
    from: MemoryRegion,
    to: MemoryRegion,
    _far: Vec<QueuePair>,
    _contexts: [Context; 2],
}

impl Flows {
    fn between(contexts: [Context; 2]) -> Self {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let bytes = FLOWS * MESSAGE as usize;
        let [near, far] = contexts.each_ref().map(|context| {
            let (pd, cq) = (context.allocate_pd().unwrap(), context.create_cq(256, None).unwrap());
            let memory = pd.allocate(bytes, rights).unwrap();
            let qps: Vec<_> = (0..FLOWS).map(|_| pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap()).collect();
            (cq, memory, qps)
        });
        let (cq, from, flows) = near;
        let (_, to, _far) = far;
        let psn = Psn::new(0);
        for (one, other) in flows.iter().zip(&_far) {
            let options = ConnectionOptions { timeout: 16, ..ConnectionOptions::default() };
            one.connect(&other.endpoint(psn).unwrap(), psn, &options).unwrap();
            other.connect(&one.endpoint(psn).unwrap(), psn, &options).unwrap();
        }
        let pattern: Vec<u8> = (0..bytes).map(|i| (i as u8) ^ ((i >> 8) as u8) ^ ((i >> 16) as u8)).collect();
        assert!(from.write(0, &pattern));
        Self { cq, flows, from, to, _far, _contexts: contexts }
    }

    fn post(&self, flow: usize) {
        let at = flow as u64 * MESSAGE;
        let sges = [self.from.sge(at..at + MESSAGE)];
        let op = SendOp::Write { va: self.to.address() + at, rkey: self.to.rkey() };
        let request =
            SendRequest { wr_id: flow as u64, op, flags: SendFlags::SIGNALED, data: Data::Sges(&sges), datagram: None };
        self.flows[flow].post_send(&request).unwrap();
    }

    /// All write so many messages; every byte of the last ones is compared.
    fn run(&self, messages: u64) {
        let (start, mut left) = (Instant::now(), [messages; FLOWS]);
        for flow in 0..FLOWS {
            (0..DEPTH).for_each(|_| self.post(flow));
        }
        let mut batch = [Completion::default(); 64];
        while left.iter().any(|left| *left > 0) {
            assert!(start.elapsed() < PATIENCE, "it does not end: {left:?} are left");
            let n = self.cq.poll(&mut batch).unwrap();
            for completion in &batch[..n] {
                assert!(completion.status.is_success(), "{completion:?}");
                let flow = completion.wr_id as usize;
                left[flow] -= 1;
                if left[flow] >= DEPTH {
                    self.post(flow);
                }
            }
            std::thread::yield_now();
        }
        let (mut sent, mut came) = (vec![0; FLOWS * MESSAGE as usize], vec![0; FLOWS * MESSAGE as usize]);
        assert!(self.from.read(0, &mut sent) && self.to.read(0, &mut came));
        assert!(sent == came, "what came is not what was sent");
    }
}

/// What the circuit dropped, and marked, once its ends knew each other; and what the daemons tell of the queue pairs.
fn run_over(settings: &str) -> ([u64; 2], [Value; 2]) {
    let (pair, mut circuit) = Circuit::like(LINE, settings);
    let flows = Flows::between(pair.attach());
    let mut counted = || {
        let stats = circuit.stats();
        ["dropped_by_queue", "marked"].map(|name| stats["circuits"]["ab"][name].as_u64().unwrap())
    };
    flows.run(30);
    let before = counted();
    flows.run(MESSAGES);
    let after = counted();
    let told = pair.daemons.each_ref().map(|daemon| daemon.ask(&["qp", "list"]));
    ([after[0] - before[0], after[1] - before[1]], told)
}

/// The sum of what is told of every queue pair's congestion.
fn sum(told: &Value, field: &str) -> u64 {
    let qps = told.as_array().unwrap();
    assert_eq!(qps.len(), FLOWS);
    qps.iter().map(|qp| qp["congestion"][field].as_u64().unwrap()).sum()
}

#[test]
fn marks_keep_the_queue_of_a_narrow_circuit_short() {
    run_test("narrow::marks_keep_the_queue_of_a_narrow_circuit_short", || {
        let ([dropped, marked], [near, far]) = run_over(TUNED);
        let ([dropped_unasked, marked_unasked], _) = run_over("congestion.enabled = false\n");
        assert_eq!(marked_unasked, 0, "who does not react does not say so");
        assert!(marked > 0);
        assert!(sum(&far, "marked_packets") > 0 && sum(&far, "cnps_sent") > 0, "{far:#}");
        assert!(sum(&near, "cnps_received") > 0 && sum(&near, "alpha_millionths") > 0, "{near:#}");
        assert!(near.as_array().unwrap().iter().any(|qp| qp["congestion"]["is_limited"] == true), "{near:#}");
        let (rate, target) = (sum(&near, "rate_bps"), sum(&near, "target_bps"));
        assert!(0 < rate && rate <= target && target <= FLOWS as u64 * 400_000_000, "{near:#}");
        println!("dropped: {dropped} packets; without reaction: {dropped_unasked}");
        assert!(dropped * 4 <= dropped_unasked, "{dropped} packets dropped, and {dropped_unasked} without reaction");
    });
}
