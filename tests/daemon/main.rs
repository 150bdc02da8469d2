//! The daemon as its users meet it: started, asked, scraped, reloaded, ended; and the demo.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod measuring;
mod running;
mod waiting;
mod wired;

use holdfast::ipc::client::{
    Access, ConnectionOptions, Context, Data, MemoryRegion, Psn, QpType, QueuePair, SendFlags, SendOp, SendRequest,
};
use nix::sys::signal::Signal;
use running::{Daemon, PATIENCE};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Writes through a pair of queue pairs of one program, `messages` times.
fn traffic(context: &Context, messages: u64) -> ([QueuePair; 2], [MemoryRegion; 2]) {
    let pd = context.allocate_pd().unwrap();
    let cq = context.create_cq(64, None).unwrap();
    let qp = || pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
    let (a, b) = (qp(), qp());
    let (ours, theirs) = (a.endpoint(Psn::new(1)).unwrap(), b.endpoint(Psn::new(9)).unwrap());
    a.connect(&theirs, Psn::new(1), &ConnectionOptions::default()).unwrap();
    b.connect(&ours, Psn::new(9), &ConnectionOptions::default()).unwrap();
    let source = pd.allocate(4096, Access::LOCAL_WRITE).unwrap();
    let target = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    for n in 0..messages {
        assert!(source.write(0, &n.to_ne_bytes()));
        a.post_send(&SendRequest {
            wr_id: n,
            op: SendOp::Write { va: target.address(), rkey: target.rkey() },
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&[source.whole()]),
            datagram: None,
        })
        .unwrap();
        let start = Instant::now();
        let completion = loop {
            match cq.poll_one().unwrap() {
                Some(completion) => break completion,
                None => assert!(start.elapsed() < PATIENCE, "message {n} does not complete"),
            }
        };
        assert!(completion.status.is_success(), "{completion:?}");
        let mut there = [0; 8];
        assert!(target.read(0, &mut there));
        assert_eq!((completion.wr_id, u64::from_ne_bytes(there)), (n, n));
    }
    ([a, b], [source, target])
}

#[test]
fn serves_a_program_and_shows_it() {
    let daemon = Daemon::start(Ipv4Addr::new(127, 0, 1, 1), &[]);
    let context = daemon.attach();
    assert_eq!(context.addresses(), [IpAddr::from([127, 0, 1, 1])]);
    let (qps, regions) = traffic(&context, 20);

    let status = String::from_utf8(daemon.ask(&["status"]).stdout).unwrap();
    assert!(status.contains("127.0.1.1") && status.contains("udp"), "{status}");
    let list = daemon.ask(&["qp", "list", "--json"]);
    let list = String::from_utf8(list.stdout).unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    for qp in &qps {
        let found = list.as_array().unwrap().iter().find(|q| q["qpn"] == qp.qpn().get()).unwrap();
        assert_eq!((&found["client_pid"], &found["state"]), (&std::process::id().into(), &"rts".into()), "{found}");
    }
    let one = daemon.ask(&["qp", "show", &qps[0].qpn().to_string()]);
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    let list = daemon.ask(&["mr", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert!(list.as_array().unwrap().iter().all(|r| r["length_bytes"] == 4096 && r["backing"] == "shared"), "{list}");
    assert_eq!(list.as_array().unwrap().len(), regions.len(), "{list}");

    // What the worker counts reaches the scrape within its publication interval.
    let start = Instant::now();
    loop {
        let metrics = daemon.scrape("/metrics");
        let value = |name: &str| {
            let line = metrics.lines().find(|l| l.starts_with(name))?;
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        if value("holdfast_queue_pairs") == Some(2.0) && value("holdfast_memory_regions") == Some(2.0) {
            assert_eq!(value("holdfast_clients"), Some(1.0), "{metrics}");
            assert!(metrics.contains("node_infiniband_"), "{metrics}");
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{metrics}");
    }
    assert!(daemon.scrape("/healthz").starts_with("HTTP/1.1 200"));
    drop((qps, regions, context));
    daemon.end();
}

#[test]
fn reloads_and_says_what_needs_a_restart() {
    let mut daemon = Daemon::start(Ipv4Addr::new(127, 0, 1, 2), &[]);
    drop(daemon.attach());
    let file = daemon.path("holdfast.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}[workers]\nspin_max = \"5us\"\ncount = 2\n")).unwrap();
    daemon.signal(Signal::SIGHUP);
    // It says so when it is done.
    let mut log = String::new();
    let mut lines = BufReader::new(daemon.process.stderr.take().unwrap());
    while !log.contains("need a restart") {
        assert_ne!(lines.read_line(&mut log).unwrap(), 0, "{log}");
    }
    daemon.process.stderr = Some(lines.into_inner());
    daemon.end();
    assert!(log.contains("workers.spin_max") && log.contains("workers.count"), "{log}");
}

#[test]
fn a_program_that_outlives_the_daemon_is_told() {
    let daemon = Daemon::start(Ipv4Addr::new(127, 0, 1, 3), &[]);
    let context = daemon.attach();
    let pd = context.allocate_pd().unwrap();
    daemon.end();
    let error = pd.allocate(4096, Access::LOCAL_WRITE).unwrap_err();
    assert!(error.to_string().contains("holdfastd has closed the connection"), "{error}");
}

#[test]
fn says_what_is_wrong_with_its_start() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_holdfastd")).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&[]).contains("neither an interface nor addresses"), "{}", run(&[]));
    assert!(run(&["--interface", "nosuch0"]).contains("no interface nosuch0"));
    assert!(run(&["--set", "workers.count=0"]).contains("workers.count"));
    assert!(run(&["--address", "192.0.2.77", "--set", "metrics.listen=off"]).contains("192.0.2.77"));
}

#[test]
fn the_demo_finds_every_byte_right() {
    let output = Command::new(env!("CARGO_BIN_EXE_holdfast")).args(["demo", "--messages", "50"]).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{errors}");
    assert_eq!(text.matches("every byte").count(), 8, "{text}");
    assert!(text.contains("was compared and was right"), "{text}");
    assert!(!Path::new("/tmp").read_dir().unwrap().flatten().any(|e| {
        e.file_name().to_string_lossy().starts_with("holdfast-demo-") && is_of_a_dead(&e.file_name().to_string_lossy())
    }));
}

/// Whether a demo's directory belongs to no living process.
fn is_of_a_dead(directory: &str) -> bool {
    let pid = directory.rsplit('-').next().unwrap_or_default();
    !Path::new("/proc").join(pid).exists()
}
