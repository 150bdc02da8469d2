//! Clients killed at any moment, mid-traffic: nothing is left of them, and nobody else notices.
//!
//! The killed client is this very program, told by an environment variable what to be.

use crate::stage::{Holdings, PATIENCE, Pair};
use crate::traffic::{Traffic, options};
use holdfast::io::namespace::run_test;
use holdfast::ipc::client::*;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

/// Names the sockets of the daemons to the child.
const SOCKETS: &str = "HOLDFAST_TEST_SOCKETS";
const CYCLES: usize = 40;
/// Memory of a daemon after so many cycles is compared with memory at the end.
const WARM_UP: usize = 8;
/// A queue pair of each cycle would be as much.
const GROWTH_KIB: u64 = 512;

#[test]
fn nothing_is_left_of_killed_clients_and_others_notice_nothing() {
    const NAME: &str = "deaths::nothing_is_left_of_killed_clients_and_others_notice_nothing";
    if let Some(sockets) = std::env::var_os(SOCKETS) {
        traffic_for_ever(std::env::split_paths(&sockets).collect());
    }
    run_test(NAME, || {
        let pair = Pair::start("");
        let mut innocent = Traffic::new(pair.attach());
        innocent.round();
        let baseline = settled(&pair);
        innocent.play_during(|| {
            let mut resident = [0; 2];
            for cycle in 0..CYCLES {
                // Each a little later in the life of the client, the first while it is still being attached.
                let mut child = start(NAME, &pair);
                read_dots(&mut child, cycle * 11);
                child.kill().unwrap();
                child.wait().unwrap();
                await_baseline(&pair, &baseline, cycle);
                let now = pair.daemons.each_ref().map(|daemon| daemon.resident_kib());
                if cycle < WARM_UP {
                    resident = now;
                }
                assert!((0..2).all(|i| now[i] < resident[i] + GROWTH_KIB), "memory grows: {resident:?}, {now:?} KiB");
            }
        });
    });
}

/// What both daemons hold, once it has come through to the metrics.
fn settled(pair: &Pair) -> [Holdings; 2] {
    let start = Instant::now();
    loop {
        let metrics = pair.daemons.each_ref().map(|daemon| daemon.metrics());
        if metrics.iter().all(|m| (m.total("holdfast_queue_pairs"), m.total("holdfast_memory_regions")) == (2, 1)) {
            return pair.daemons.each_ref().map(|daemon| daemon.holdings());
        }
        assert!(start.elapsed() < PATIENCE, "{metrics:?}");
    }
}

fn await_baseline(pair: &Pair, baseline: &[Holdings; 2], cycle: usize) {
    let start = Instant::now();
    loop {
        let now = pair.daemons.each_ref().map(|daemon| daemon.holdings());
        if now == *baseline {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "cycle {cycle}: {now:#?} instead of {baseline:#?}");
        thread::yield_now();
    }
}

fn start(name: &str, pair: &Pair) -> Child {
    let sockets = std::env::join_paths(pair.daemons.each_ref().map(|daemon| daemon.path("attach"))).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env(SOCKETS, sockets);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for so many completions of the child.
fn read_dots(child: &mut Child, completions: usize) {
    let mut dots = vec![0; completions];
    let read = child.stderr.as_mut().unwrap().read_exact(&mut dots);
    assert!(read.is_ok() && dots.iter().all(|dot| *dot == b'.'), "{}", String::from_utf8_lossy(&dots));
}

/// The child: WRITEs both ways between queue pairs at the two daemons, and says a dot for each.
fn traffic_for_ever(sockets: Vec<PathBuf>) -> ! {
    let sides: Vec<_> = sockets
        .iter()
        .map(|socket| {
            let context = Context::connect(socket).unwrap();
            let pd = context.allocate_pd().unwrap();
            let cq = context.create_cq(256, Some(&context.create_channel().unwrap())).unwrap();
            let srq = pd.create_srq(64, 1).unwrap();
            let idle = pd.queue_pair(QpType::Uc, &cq, &cq).shared_receive_queue(&srq).create().unwrap();
            let qp = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            (cq, qp, pd.allocate(1 << 20, rights).unwrap(), pd.allocate_window().unwrap(), idle)
        })
        .collect();
    let ends = [0, 1].map(|side: usize| sides[side].1.endpoint(Psn::new(0)).unwrap());
    for side in [0, 1] {
        sides[side].1.connect(&ends[1 - side], Psn::new(0), &options()).unwrap();
    }
    loop {
        for side in [0, 1] {
            let (cq, qp, buffer, ..) = &sides[side];
            let peer = &sides[1 - side].2;
            let op = SendOp::Write { va: peer.address(), rkey: peer.rkey() };
            let data = Data::Sges(&[buffer.sge(0..100_000)]);
            while qp.post_send(&SendRequest { wr_id: 0, op, flags: SendFlags::SIGNALED, data, datagram: None }).is_ok()
            {
            }
            let mut batch = [Completion::default(); 64];
            let completed = cq.poll(&mut batch).unwrap();
            assert!(batch[..completed].iter().all(|c| c.status.is_success()), "{:?}", &batch[..completed]);
            let _ = std::io::stderr().write_all(&b".".repeat(completed));
        }
    }
}
