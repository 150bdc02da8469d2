//! The daemon told to end, killed, stopped and told to read its settings again, each in the middle of traffic.

use crate::stage::{PATIENCE, Pair, until};
use crate::traffic::{Traffic, options};
use holdfast::io::namespace::run_test;
use holdfast::ipc::client::*;
use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MESSAGE: u64 = 1 << 20;

/// One end of a connection over which WRITEs go.
struct End {
    context: Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    qp: QueuePair,
    memory: MemoryRegion,
}

impl End {
    fn new(context: Context) -> Self {
        let pd = context.allocate_pd().unwrap();
        let channel = context.create_channel().unwrap();
        let cq = context.create_cq(256, Some(&channel)).unwrap();
        let qp = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
        let memory = pd.allocate(MESSAGE as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Self { context, channel, cq, qp, memory }
    }

    fn pair(pair: &Pair) -> [Self; 2] {
        let ends = pair.attach().map(Self::new);
        let endpoints = ends.each_ref().map(|end| end.qp.endpoint(Psn::new(1)).unwrap());
        for (i, end) in ends.iter().enumerate() {
            end.qp.connect(&endpoints[1 - i], Psn::new(1), &options()).unwrap();
        }
        ends
    }

    fn post(&self, peer: &Self, wr_id: u64) -> Result<(), PostError> {
        let op = SendOp::Write { va: peer.memory.address(), rkey: peer.memory.rkey() };
        let data = Data::Sges(&[self.memory.whole()]);
        self.qp.post_send(&SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, datagram: None })
    }

    /// All completions until the daemon is gone.
    fn completions_to_the_end(&self) -> Vec<Completion> {
        let (start, mut all) = (Instant::now(), Vec::new());
        loop {
            match self.cq.poll_one() {
                Ok(Some(completion)) => all.push(completion),
                Ok(None) => assert!(start.elapsed() < PATIENCE, "the daemon does not end"),
                Err(error) => {
                    assert!(matches!(error, Error::DaemonGone), "{error}");
                    return all;
                }
            }
        }
    }
}

#[test]
fn what_was_posted_before_sigterm_is_done_before_the_end() {
    run_test("endings::what_was_posted_before_sigterm_is_done_before_the_end", || {
        const MESSAGES: u64 = 64;
        // Whoever waits for the end of this time waits in vain.
        let pair = Pair::start("shutdown.drain = \"10min\"\n");
        let [ours, theirs] = End::pair(&pair);
        let bystander = pair.daemons[0].attach();
        assert!(ours.memory.write(0, &[7; MESSAGE as usize]));
        for n in 0..MESSAGES {
            ours.post(&theirs, n).unwrap();
        }
        let [mut first, _second] = pair.daemons;
        first.signal(Signal::SIGTERM);
        let completions = ours.completions_to_the_end();
        assert!(completions.iter().map(|c| (c.wr_id, c.status)).eq((0..MESSAGES).map(|n| (n, WcStatus::Success))));
        let mut bytes = vec![0; MESSAGE as usize];
        assert!(theirs.memory.read(0, &mut bytes) && bytes == vec![7; MESSAGE as usize]);
        for context in [&ours.context, &bystander] {
            let event = context.next_event(Some(PATIENCE)).unwrap().unwrap();
            assert_eq!(event.kind, EventKind::DeviceFatal);
            assert!(matches!(context.allocate_pd(), Err(Error::DaemonGone)));
        }
        assert!(first.wait().success(), "{}", first.log());
        assert!(matches!(Context::connect(first.path("attach")), Err(Error::NotRunning { .. })));
    });
}

#[test]
fn a_client_that_never_stops_does_not_hold_up_the_end() {
    run_test("endings::a_client_that_never_stops_does_not_hold_up_the_end", || {
        let pair = Pair::start("shutdown.drain = \"10min\"\n");
        let [ours, theirs] = End::pair(&pair);
        let is_gone = AtomicBool::new(false);
        let [mut first, _second] = pair.daemons;
        thread::scope(|scope| {
            let poster = scope.spawn(|| {
                let mut completed = 0_u64;
                while !is_gone.load(Ordering::Relaxed) {
                    let _ = ours.post(&theirs, 0);
                    completed += u64::from(ours.cq.poll_one().is_ok_and(|c| c.is_some()));
                }
                completed
            });
            until("there is traffic", || {
                first.metrics().total("holdfast_transmitted_packets_total") > 1000 || poster.is_finished()
            });
            first.signal(Signal::SIGTERM);
            let status = first.wait();
            is_gone.store(true, Ordering::Relaxed);
            assert!(status.success(), "{status}\n{}", first.log());
            assert!(poster.join().unwrap() > 0);
        });
    });
}

#[test]
fn work_that_cannot_end_is_given_up_after_the_drain_time() {
    run_test("endings::work_that_cannot_end_is_given_up_after_the_drain_time", || {
        let pair = Pair::start("shutdown.drain = \"300ms\"\n");
        let [ours, theirs] = End::pair(&pair);
        pair.daemons[1].signal(Signal::SIGSTOP);
        ours.post(&theirs, 0).unwrap();
        let [mut first, second] = pair.daemons;
        first.signal(Signal::SIGTERM);
        assert!(first.wait().success(), "{}", first.log());
        assert!(ours.completions_to_the_end().is_empty());
        second.signal(Signal::SIGCONT);
    });
}

#[test]
fn a_killed_daemon_is_told_to_all_who_wait_and_comes_back_at_once() {
    run_test("endings::a_killed_daemon_is_told_to_all_who_wait_and_comes_back_at_once", || {
        let mut pair = Pair::start("");
        let [ours, theirs] = End::pair(&pair);
        thread::scope(|scope| {
            let event = scope.spawn(|| ours.context.next_event(None));
            let completion = scope.spawn(|| ours.channel.wait(None));
            let poll = scope.spawn(|| {
                while ours.post(&theirs, 0).is_ok() {}
                ours.completions_to_the_end()
            });
            pair.daemons[0].signal(Signal::SIGKILL);
            assert_eq!(event.join().unwrap().unwrap().unwrap().kind, EventKind::DeviceFatal);
            assert!(matches!(completion.join().unwrap(), Err(Error::DaemonGone)));
            assert!(poll.join().unwrap().iter().all(|c| c.status.is_success()));
        });
        assert!(matches!(ours.context.allocate_pd(), Err(Error::DaemonGone)));
        let Err(gone) = ours.context.query_port() else { panic!("an answer of the dead") };
        assert!(gone.to_string().contains("open a new context"), "{gone}");
        // Its sockets lie about, its port is free.
        pair.daemons[0].wait();
        assert!(pair.daemons[0].path("attach").exists());
        assert!(matches!(Context::connect(pair.daemons[0].path("attach")), Err(Error::NotRunning { .. })));
        pair.daemons[0].restart();
        let mut traffic = Traffic::new(pair.attach());
        traffic.round();
        drop((traffic, ours, theirs));
        pair.end();
    });
}

#[test]
fn nobody_hangs_at_a_daemon_that_is_stopped() {
    run_test("endings::nobody_hangs_at_a_daemon_that_is_stopped", || {
        const SHORT: Duration = Duration::from_millis(100);
        let pair = Pair::start("");
        let attach = pair.daemons[0].path("attach");
        drop(pair.daemons[0].attach());
        let context = Context::connect_within(&attach, SHORT).unwrap();
        let pd = context.allocate_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qps: Vec<QueuePair> = (0..100).map(|_| pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap()).collect();
        let regions: Vec<_> = (0..100).map(|_| pd.allocate(4096, Access::LOCAL_WRITE).unwrap()).collect();
        pair.daemons[0].signal(Signal::SIGSTOP);
        let silent = |error: Error| assert!(matches!(error, Error::DaemonSilent), "{error}");
        silent(Context::connect_within(&attach, SHORT).unwrap_err());
        silent(context.allocate_pd().unwrap_err());
        silent(context.create_cq(16, None).unwrap_err());
        silent(pd.allocate(4096, Access::LOCAL_WRITE).unwrap_err());
        silent(qps[0].fail().unwrap_err());
        assert_eq!(cq.poll_one().unwrap(), None);
        assert_eq!(context.next_event(Some(SHORT)).unwrap(), None);
        // More wait to be accepted than there is room for.
        let mut backlog = Vec::new();
        while backlog.len() < 4000 {
            let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            if socket.connect(&socket2::SockAddr::unix(&attach).unwrap()).is_err() {
                break;
            }
            backlog.push(socket);
        }
        silent(Context::connect_within(&attach, SHORT).unwrap_err());
        drop(backlog);
        // The daemon is told, and not waited for a hundred times.
        drop(qps);
        drop(regions);
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args(["status", "--socket"])
            .arg(pair.daemons[0].path("control"))
            .output()
            .unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{output:?}");
        pair.daemons[0].signal(Signal::SIGCONT);
        until("it answers again", || context.query_port().is_ok());
        let end = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
        assert_eq!(end.query().unwrap().state, QpState::Reset);
        drop((end, cq, pd, context));
        pair.end();
    });
}

#[test]
fn settings_are_read_again_under_traffic_and_bad_ones_are_refused_aloud() {
    run_test("endings::settings_are_read_again_under_traffic_and_bad_ones_are_refused_aloud", || {
        let pair = Pair::start("");
        let mut traffic = Traffic::new(pair.attach());
        let daemon = &pair.daemons[0];
        let file = daemon.path("holdfast.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let occurs = |what: &str| daemon.log().matches(what).count();
        traffic.play_during(|| {
            for n in 1..=20 {
                let spin = if n % 2 == 0 { "0us" } else { "100us" };
                std::fs::write(&file, format!("{text}workers.spin_max = \"{spin}\"\nclients.max_clients = 2\n"))
                    .unwrap();
                daemon.signal(Signal::SIGHUP);
                until("the settings are read", || occurs("settings read again") == n);
                std::fs::write(&file, format!("{text}clients.max_clients = 3\nworkers.spin_max = \"5 apples\"\n"))
                    .unwrap();
                daemon.signal(Signal::SIGHUP);
                until("the settings are refused", || occurs("the settings stay as they are") == n);
            }
        });
        let log = daemon.log();
        assert!(log.contains("5 apples") && log.contains("holdfast.toml") && log.contains("workers.spin_max"), "{log}");
        // Two may attach, as the last good file said: not three.
        let second = daemon.attach();
        assert!(Context::connect(daemon.path("attach")).is_err());
        drop((second, traffic));
        pair.end();
    });
}
