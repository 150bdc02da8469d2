//! A daemon at rest costs next to nothing, and one with a worker that hangs says so.

use crate::stage::{Daemon, INTERFACE, Pair, cable, until};
use holdfast::io::namespace::run_test;
use holdfast::ipc::client::QpType;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

/// CPU time that a process has used, in the kernel's ticks of 10 ms.
fn ticks(daemon: &Daemon) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    // After the name in parentheses: utime and stime are fields 14 and 15 of proc(5).
    let fields: Vec<u64> =
        stat.rsplit(')').next().unwrap().split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    fields[11] + fields[12]
}

#[test]
fn clients_that_do_nothing_cost_next_to_nothing() {
    run_test("supervision::clients_that_do_nothing_cost_next_to_nothing", || {
        let pair = Pair::start("workers.count = 2\n");
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let context = pair.daemons[0].attach();
                let cq = context.create_cq(16, Some(&context.create_channel().unwrap())).unwrap();
                let pd = context.allocate_pd().unwrap();
                let qps: Vec<_> = (0..16).map(|_| pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap()).collect();
                cq.arm(false);
                (context, qps)
            })
            .collect();
        // CPU time, not time: a machine that is busy with other things makes it no longer. The promise is 2 %, and a worker
        // that does not sleep takes 100 %.
        let before = ticks(&pair.daemons[0]);
        std::thread::sleep(Duration::from_secs(2));
        let used = ticks(&pair.daemons[0]) - before;
        assert!(used <= 20, "an idle daemon used {used} ticks of 200");
        drop(clients);
    });
}

#[test]
fn a_worker_that_hangs_is_told_and_the_watchdog_is_not_fed() {
    run_test("supervision::a_worker_that_hangs_is_told_and_the_watchdog_is_not_fed", || {
        const FED: &str = "WATCHDOG=1";
        let ends = cable();
        let directory = tempfile::tempdir().unwrap();
        let systemd = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        systemd.set_nonblocking(true).unwrap();
        let heard = |what: &str| {
            let mut buffer = [0; 4096];
            let mut count = 0;
            while let Ok(length) = systemd.recv(&mut buffer) {
                count += String::from_utf8_lossy(&buffer[..length]).matches(what).count();
            }
            count
        };
        let daemon = Daemon::start_as(&ends[0], INTERFACE, "", |config| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_holdfastd"));
            command.args(["--config", config]).env("WATCHDOG_USEC", "200000");
            command.env("NOTIFY_SOCKET", directory.path().join("notify"));
            command
        });
        until("it is ready", || heard("READY=1") > 0);
        until("it feeds the watchdog", || heard(FED) > 0);
        assert!(daemon.get("/healthz").starts_with("HTTP/1.1 200"));

        let worker = stop_thread(&daemon, "worker-0");
        let complaints = || daemon.log().matches("worker 0 did not answer").count();
        // Who does not listen to a daemon that talks holds it up.
        until("the log says so", || {
            heard(FED);
            complaints() > 0
        });
        heard(FED);
        let first = complaints();
        let mut fed = 0;
        until("it is asked again", || {
            fed += heard(FED);
            complaints() > first
        });
        assert_eq!(fed, 0, "the watchdog is fed though a worker hangs");
        assert!(daemon.get("/healthz").starts_with("HTTP/1.1 503"));
        assert_eq!(daemon.metrics().total("holdfast_healthy"), 0);

        ptrace::detach(worker, None).unwrap();
        until("it feeds the watchdog again", || heard(FED) > 0);
        until("it is well again", || {
            heard(FED);
            daemon.metrics().total("holdfast_healthy") == 1
        });
    });
}

/// Stops one thread of a daemon, as a debugger does.
fn stop_thread(daemon: &Daemon, name: &str) -> Pid {
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let named = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    let thread = threads.flatten().find(named).unwrap();
    let pid = Pid::from_raw(thread.file_name().to_str().unwrap().parse().unwrap());
    ptrace::seize(pid, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(pid).unwrap();
    waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
    pid
}
