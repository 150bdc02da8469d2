//! Two daemons at the ends of a veth pair, for benches that measure what a program gets.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use holdfast::io::namespace::{End, Namespace};
use holdfast::ipc::client::Context;
use holdfast::perf::{self, Line, Measure, Operation, Plan, Stop, Transport};
use holdfast::wire::PathMtu;

/// Room for a RoCE MTU of 4096 and the headers.
pub(crate) const LINK_MTU: u32 = 4200;
pub(crate) const ADDRESSES: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2))];
pub(crate) const INTERFACES: [&str; 2] = ["hfa", "hfb"];
const START_LIMIT: Duration = Duration::from_secs(20);

/// Both ends. What is dropped is gone: processes, namespaces, sockets.
pub(crate) struct Stage {
    pub(crate) namespaces: [Namespace; 2],
    daemons: Vec<Child>,
    directory: tempfile::TempDir,
}

impl Stage {
    /// Brings both daemons up; `more` are further arguments of theirs.
    pub(crate) fn new(more: &[&str]) -> Self {
        let namespaces = pair();
        let directory = tempfile::tempdir().unwrap();
        let mut stage = Self { namespaces, daemons: Vec::new(), directory };
        for (side, interface) in INTERFACES.into_iter().enumerate() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_holdfastd"));
            command.args(["--interface", interface, "--log-level", "warn"]);
            for (key, value) in [("clients.socket", stage.socket(side)), ("control.socket", stage.control(side))] {
                command.args(["--set", &format!("{key}={}", value.display())]);
            }
            command.args(["--set", "clients.group=", "--set", "control.group=", "--set", "metrics.listen=off"]);
            command.args(more).stdin(Stdio::null());
            stage.daemons.push(stage.namespaces[side].run(|| command.spawn()).unwrap().unwrap());
        }
        stage
    }

    fn socket(&self, side: usize) -> PathBuf {
        self.directory.path().join(format!("attach-{side}"))
    }

    fn control(&self, side: usize) -> PathBuf {
        self.directory.path().join(format!("control-{side}"))
    }

    /// A program attached at one end.
    pub(crate) fn attach(&self, side: usize) -> Context {
        let start = Instant::now();
        loop {
            match Context::connect(self.socket(side)) {
                Ok(context) => return context,
                Err(error) => assert!(start.elapsed() < START_LIMIT, "no daemon: {error}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// CPU time that a daemon has used.
    pub(crate) fn cpu_time(&self, side: usize) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.daemons[side].id())).unwrap();
        // After the name in parentheses: utime and stime are fields 14 and 15 of proc(5), in ticks of 10 ms.
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap().split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        Duration::from_millis((fields[11] + fields[12]) * 10)
    }

    /// Memory of a daemon's own.
    pub(crate) fn resident_kib(&self, side: usize) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemons[side].id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    }

    /// How often a thread of a daemon went to sleep and was woken.
    pub(crate) fn wake_ups(&self, side: usize) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.daemons[side].id())).unwrap();
        let switches = |thread: std::fs::DirEntry| {
            let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
            let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            count.trim().parse::<u64>().ok()
        };
        threads.flatten().filter_map(switches).sum()
    }

    /// One line of `holdfast perf`, from end 0 to end 1; it panics if a byte was wrong.
    pub(crate) fn measure(&self, plan: &Plan) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut lines = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| perf::serve(&self.attach(1), &listener, |_, _| false));
            let dial = || TcpStream::connect(to);
            perf::measure(&self.attach(0), plan, dial, |_| (), |line| lines.push(line.clone())).unwrap();
        });
        let line = lines.pop().unwrap();
        assert_eq!(line.wrong_bytes(), 0, "bytes were wrong: {line:?}");
        line
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            // It may have ended.
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Two namespaces with a veth pair between them.
pub(crate) fn pair() -> [Namespace; 2] {
    let [a, b] = [Namespace::new().unwrap(), Namespace::new().unwrap()];
    let end = |namespace, side: usize, addresses| End { namespace, name: INTERFACES[side], addresses };
    Namespace::connect(end(&a, 0, &[(ADDRESSES[0], 24)]), end(&b, 1, &[(ADDRESSES[1], 24)]), LINK_MTU).unwrap();
    [a, b]
}

/// A plan of one size over one RC queue pair.
pub(crate) fn plan(operation: Operation, measure: Measure, bytes: u32, time: Duration) -> Plan {
    Plan {
        operation,
        measure,
        transport: Transport::Rc,
        sizes: vec![bytes],
        path_mtu: PathMtu::B4096,
        queue_pairs: 1,
        depth: 1,
        bidirectional: false,
        stop: Stop::After(time),
        verify: false,
        spin: false,
        inline_bytes: 64,
        timeout: 14,
        retry_count: 7,
    }
}

/// The middle one.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
