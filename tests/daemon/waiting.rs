//! "Why is this queue pair waiting?": `holdfast qp show` says so.

use crate::running::{Daemon, PATIENCE};
use holdfast::ipc::client::{
    Access, CompletionQueue, ConnectionOptions, Context, Data, MemoryRegion, Pd, Psn, QpType, QueuePair, RecvRequest,
    SendFlags, SendOp, SendRequest,
};
use std::net::Ipv4Addr;
use std::time::Instant;

/// A program at one daemon.
struct Program {
    pd: Pd,
    cq: CompletionQueue,
    memory: MemoryRegion,
    _context: Context,
}

impl Program {
    fn at(daemon: &Daemon) -> Self {
        let context = daemon.attach();
        let pd = context.allocate_pd().unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let memory = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Self { pd, cq, memory, _context: context }
    }

    fn queue_pair(&self) -> QueuePair {
        self.pd.queue_pair(QpType::Rc, &self.cq, &self.cq).create().unwrap()
    }

    fn post(&self, qp: &QueuePair, op: SendOp) {
        let sges = [self.memory.whole()];
        let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
        qp.post_send(&SendRequest { wr_id: 7, op, flags, data, datagram: None }).unwrap();
    }
}

fn connect(a: &QueuePair, b: &QueuePair, options: &ConnectionOptions) {
    let psn = Psn::new(0);
    let (ours, theirs) = (a.endpoint(psn).unwrap(), b.endpoint(psn).unwrap());
    a.connect(&theirs, psn, options).unwrap();
    b.connect(&ours, psn, options).unwrap();
}

/// Asks until the answer holds `words`.
fn shown(daemon: &Daemon, qp: &QueuePair, words: &str) -> String {
    let start = Instant::now();
    loop {
        let text = String::from_utf8(daemon.ask(&["qp", "show", &qp.qpn().to_string()]).stdout).unwrap();
        if text.contains(words) {
            return text;
        }
        assert!(start.elapsed() < PATIENCE, "no {words:?} in\n{text}");
    }
}

#[test]
fn for_a_peer_that_has_posted_no_receive() {
    let daemons = [4, 5].map(|n| Daemon::start(Ipv4Addr::new(127, 0, 1, n), &[]));
    let [sender, receiver] = [0, 1].map(|i| Program::at(&daemons[i]));
    let (a, b) = (sender.queue_pair(), receiver.queue_pair());
    // Code 0 is the longest wait that a peer can ask for, 655 ms; it asks again for ever.
    connect(&a, &b, &ConnectionOptions { min_rnr_timer: 0, ..Default::default() });
    shown(&daemons[0], &a, "waits for       its program: nothing is posted");

    sender.post(&a, SendOp::Send);
    let text = shown(&daemons[0], &a, "waits for       the peer to post a receive (RNR NAK); asks again in ");
    assert!(text.contains("send queue      1 of "), "{text}");
    shown(&daemons[1], &b, "the peer's sends find none (");
    let list = String::from_utf8(daemons[0].ask(&["qp", "list"]).stdout).unwrap();
    assert!(list.contains(" rnr "), "{list}");

    b.post_recv(&RecvRequest { wr_id: 8, sges: &[receiver.memory.whole()] }).unwrap();
    let start = Instant::now();
    while sender.cq.poll_one().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "the send does not complete");
    }
    shown(&daemons[0], &a, "waits for       its program: nothing is posted");
}

#[test]
fn for_a_peer_that_does_not_answer() {
    let daemons = [6, 7].map(|n| Daemon::start(Ipv4Addr::new(127, 0, 1, n), &[]));
    let [sender, receiver] = [0, 1].map(|i| Program::at(&daemons[i]));
    // Queue pairs whose peers are gone: their packets arrive and find nobody.
    let [patient, retrying, failing] = [(0, 7), (19, 7), (8, 1)].map(|(timeout, retry_count)| {
        let (a, b) = (sender.queue_pair(), receiver.queue_pair());
        connect(&a, &b, &ConnectionOptions { timeout, retry_count, ..Default::default() });
        drop(b);
        sender.post(&a, SendOp::Write { va: 0, rkey: 0 });
        a
    });
    // Without an ACK timer no retry is ever spent, but the silent path is asked for light.
    shown(&daemons[0], &patient, "waits for       what was lost to arrive; no answer, 7 of 7 retries left");
    let failed =
        shown(&daemons[0], &failing, "failed by       a send request failed: retries exceeded: the peer did not");
    assert!(failed.contains(", ERROR\n") && failed.contains("waits for       nothing more: it has failed"), "{failed}");
    let text = shown(&daemons[0], &retrying, "waits for       what was lost to arrive; no answer for ");
    assert!(text.contains("; sends again in ") && text.contains(" of 7 retries left"), "{text}");
    let metrics = daemons[1].scrape("/metrics");
    let dropped =
        metrics.lines().find(|l| l.starts_with("holdfast_dropped_packets_total{") && l.contains("unknown_qp"));
    assert!(dropped.is_some_and(|l| !l.ends_with(" 0")), "{dropped:?}");
}

#[test]
fn a_queue_pair_that_failed_tells_the_cause_at_both_ends() {
    let daemons = [8, 9].map(|n| Daemon::start(Ipv4Addr::new(127, 0, 1, n), &[]));
    let [sender, receiver] = [0, 1].map(|i| Program::at(&daemons[i]));
    let (a, b) = (sender.queue_pair(), receiver.queue_pair());
    connect(&a, &b, &ConnectionOptions::default());
    sender.post(&a, SendOp::Write { va: receiver.memory.address(), rkey: receiver.memory.rkey() ^ 1 });
    shown(&daemons[0], &a, "failed by       a send request failed: remote access error: ");
    shown(&daemons[1], &b, "failed by       the peer asked for memory that it may not reach");
    let (c, d) = (receiver.queue_pair(), sender.queue_pair());
    connect(&c, &d, &ConnectionOptions::default());
    c.fail().unwrap();
    shown(&daemons[1], &c, "failed by       brought to ERR by its program, or by the daemon");
}
