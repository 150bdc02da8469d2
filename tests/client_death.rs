//! A client killed at any moment, mid-traffic, leaves nothing behind in the daemon: no descriptor, no mapping, no queue pair.
//!
//! This file holds one test, so that nobody else opens descriptors in its process meanwhile. The killed client is this very program, told by
//! an environment variable what to be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use holdfast::ipc::client::*;
use holdfast::ipc::loopback::Loopback;
use holdfast::ipc::server::Permissions;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Names the sockets of two devices to the child.
const SOCKETS: &str = "HOLDFAST_TEST_SOCKETS";
const CYCLES: usize = 100;
/// Longer than the daemon needs on a busy machine to notice.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn nothing_is_left_of_a_killed_client() {
    if let Ok(sockets) = std::env::var(SOCKETS) {
        let sockets: Vec<&str> = sockets.split(':').collect();
        traffic_for_ever(sockets[0], sockets[1]);
    }
    let daemon = Loopback::with_devices(2, &Permissions::default()).unwrap();
    let (descriptors, mappings) = (open_descriptors(), shared_mappings());
    assert_eq!(mappings, 0);
    for cycle in 0..CYCLES {
        // Each a little later in the life of the client, the first while it is still being attached.
        kill_after(&daemon, cycle * 7);
        let deadline = Instant::now() + LONG;
        loop {
            let now = (open_descriptors(), shared_mappings(), daemon.clients(), daemon.queue_pairs());
            if now == (descriptors, mappings, 0, 0) {
                break;
            }
            let what = "descriptors, mappings, clients, queue pairs";
            assert!(
                Instant::now() < deadline,
                "cycle {cycle}: {now:?} {what}; at first {descriptors}, {mappings}, 0, 0"
            );
            std::thread::yield_now();
        }
    }
}

/// Starts a client and kills it when it has told of so many completions.
fn kill_after(daemon: &Loopback, completions: usize) {
    let sockets = daemon.sockets().iter().map(|path| path.to_str().unwrap()).collect::<Vec<_>>().join(":");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["nothing_is_left_of_a_killed_client", "--exact", "--nocapture"])
        .env(SOCKETS, sockets)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut signs = vec![0; completions];
    let read = child.stderr.take().unwrap().read_exact(&mut signs);
    child.kill().unwrap();
    child.wait().unwrap();
    read.expect("the client has told of its completions");
    assert!(signs.iter().all(|sign| *sign == b'.'), "{}", String::from_utf8_lossy(&signs));
}

/// The client: WRITEs both ways between two queue pairs, and says a dot for each.
fn traffic_for_ever(first: &str, second: &str) -> ! {
    let sides = [first, second].map(|socket| {
        let context = Context::connect(socket).unwrap();
        let pd = context.allocate_pd().unwrap();
        let cq = context.create_cq(256, Some(&context.create_channel().unwrap())).unwrap();
        let qp = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
        let buffer = pd.allocate(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        (cq, qp, buffer)
    });
    let endpoints = [0, 1].map(|side: usize| sides[side].1.endpoint(Psn::new(0)).unwrap());
    for side in [0, 1] {
        sides[side].1.connect(&endpoints[1 - side], Psn::new(0), &ConnectionOptions::default()).unwrap();
    }
    loop {
        for side in [0, 1] {
            let (cq, qp, buffer) = &sides[side];
            let peer = &sides[1 - side].2;
            let op = SendOp::Write { va: peer.address(), rkey: peer.rkey() };
            let data = Data::Sges(&[buffer.sge(0..100_000)]);
            while qp.post_send(&SendRequest { wr_id: 0, op, flags: SendFlags::SIGNALED, data, datagram: None }).is_ok()
            {
            }
            let mut batch = [Completion::default(); 64];
            let completed = cq.poll(&mut batch).unwrap();
            for completion in &batch[..completed] {
                assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
            }
            let _ = std::io::stderr().write_all(&b".".repeat(completed));
        }
    }
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Mappings of memory that is shared with clients.
fn shared_mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("/memfd:holdfast-")).count()
}
