//! Who guesses a key, pretends to be somebody, or writes to a queue pair that is gone, is refused and counted; others notice nothing.

use crate::flood::{count, inject, spy};
use crate::forge::{Fate, Forger};
use crate::rng::Rng;
use crate::stage::{INTERFACE, PATIENCE, Pair, until};
use crate::traffic::{Traffic, options};
use holdfast::io::namespace::run_test;
use holdfast::ipc::client::*;
use std::thread;
use std::time::Instant;

/// Memory that is not to be touched, and two ends of a connection whose peer is up to no good.
struct Target {
    memory: MemoryRegion,
    pds: [Pd; 2],
    cqs: [CompletionQueue; 2],
}

impl Target {
    fn new(contexts: &[Context; 2]) -> Self {
        let pds = contexts.each_ref().map(|context| context.allocate_pd().unwrap());
        let cqs = contexts.each_ref().map(|context| context.create_cq(64, None).unwrap());
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = pds[1].allocate(4096, rights).unwrap();
        assert!(memory.write(0, &[0x5a; 4096]));
        Self { memory, pds, cqs }
    }

    /// A fresh connection from 0 to 1.
    fn connect(&self) -> [QueuePair; 2] {
        let qps =
            [0, 1].map(|i: usize| self.pds[i].queue_pair(QpType::Rc, &self.cqs[i], &self.cqs[i]).create().unwrap());
        let ends = qps.each_ref().map(|qp| qp.endpoint(Psn::new(5)).unwrap());
        qps[0].connect(&ends[1], Psn::new(5), &ConnectionOptions { timeout: 10, ..options() }).unwrap();
        qps[1].connect(&ends[0], Psn::new(5), &options()).unwrap();
        qps
    }

    /// What becomes of one request.
    fn outcome(&self, qp: &QueuePair, op: SendOp, sge: Sge) -> WcStatus {
        let data = Data::Sges(&[sge]);
        qp.post_send(&SendRequest { wr_id: 1, op, flags: SendFlags::SIGNALED, data, datagram: None }).unwrap();
        let start = Instant::now();
        loop {
            if let Some(completion) = self.cqs[0].poll_one().unwrap() {
                return completion.status;
            }
            assert!(start.elapsed() < PATIENCE, "{op:?} does not complete");
            thread::yield_now();
        }
    }

    fn is_untouched(&self) -> bool {
        let mut bytes = [0; 4096];
        self.memory.read(0, &mut bytes) && bytes == [0x5a; 4096]
    }
}

#[test]
fn guessed_keys_open_nothing() {
    run_test("strangers::guessed_keys_open_nothing", || {
        const GUESSES: u64 = 120;
        let pair = Pair::start("");
        let mut traffic = Traffic::new(pair.attach());
        let target = Target::new(&pair.attach());
        let right = target.memory.rkey();
        // A region of another domain of the same client, and one that is gone.
        let elsewhere = pair.daemons[1].attach().allocate_pd().unwrap().allocate(4096, Access::REMOTE_READ);
        let gone = target.pds[1].allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap().rkey();
        let known = [right ^ 1, right.wrapping_add(256), elsewhere.unwrap().rkey(), gone, 0, u32::MAX];
        let own = target.pds[0].allocate(64, Access::LOCAL_WRITE).unwrap();
        traffic.play_during(|| {
            let mut rng = Rng::new(7);
            for n in 0..GUESSES {
                let rkey = known.get(n as usize).copied().unwrap_or(rng.next() as u32);
                let va = target.memory.address();
                let (op, sge) = match n % 3 {
                    0 => (SendOp::Write { va, rkey }, own.whole()),
                    1 => (SendOp::Read { va, rkey }, own.whole()),
                    _ => (SendOp::FetchAdd { va, rkey, add: 1 }, own.sge(0..8)),
                };
                if rkey != right {
                    let qps = target.connect();
                    assert_eq!(target.outcome(&qps[0], op, sge), WcStatus::RemoteAccess, "{op:?}");
                }
            }
        });
        assert!(target.is_untouched());
        let refused = || pair.daemons[1].metrics().of("holdfast_naks_sent_total", "kind", "remote_access");
        until("each guess is counted", || refused() == GUESSES);
        let op = SendOp::Write { va: target.memory.address(), rkey: right };
        let qps = target.connect();
        assert_eq!(target.outcome(&qps[0], op, own.whole()), WcStatus::Success, "the right key is refused");
    });
}

#[test]
fn a_queue_pair_of_an_earlier_life_is_nobody() {
    run_test("strangers::a_queue_pair_of_an_earlier_life_is_nobody", || {
        let pair = Pair::start("");
        let target = Target::new(&pair.attach());
        let own = target.pds[0].allocate(64, Access::LOCAL_WRITE).unwrap();
        let op = SendOp::Write { va: target.memory.address(), rkey: target.memory.rkey() };
        let [ours, theirs] = target.connect();
        let qpn = theirs.qpn();
        drop(theirs);
        // Those made since have other numbers, and the packets find nobody.
        let others: Vec<QueuePair> = (0..50).map(|_| target.connect()[1].clone()).collect();
        assert!(others.iter().all(|other| other.qpn() != qpn));
        assert_eq!(target.outcome(&ours, op, own.whole()), WcStatus::RetryExceeded);
        assert!(target.is_untouched());
        // And those that asked whether it is the light that is gone.
        let sent = u64::from(options().retry_count) + 1;
        until("each packet is counted", || pair.daemons[1].metrics().dropped("unknown_qp") >= sent);
    });
}

#[test]
fn whoever_pretends_to_be_the_peer_is_refused_and_counted() {
    run_test("strangers::whoever_pretends_to_be_the_peer_is_refused_and_counted", || {
        const EACH: u64 = 2000;
        let pair = Pair::start("");
        let mut traffic = Traffic::new(pair.attach());
        let socket = pair.ends[0].frames(INTERFACE).unwrap();
        let mut forger = Forger::new(spy(&pair, &mut traffic, &socket), 3);
        traffic.play_during(|| {
            for fate in [Fate::WrongSource, Fate::UnknownQp, Fate::ForeignCnp, Fate::Qkey] {
                inject(&pair.ends[1], &socket, EACH, || forger.forge_of(fate));
                until("each packet is counted", || count(&pair.daemons[1].metrics(), fate) == EACH);
            }
        });
    });
}
