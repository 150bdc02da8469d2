//! Namespaces, a cable between them, and a daemon at each end.

use holdfast::io::link::LinkWatcher;
use holdfast::io::namespace::{End, Namespace};
use holdfast::ipc::client::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine: whoever waits so long waits in vain.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The interface in each namespace.
pub(crate) const INTERFACE: &str = "hf0";
/// Room for a RoCE MTU of 4096.
pub(crate) const LINK_MTU: u32 = 4500;

/// Waits for something that has no descriptor to wait for.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The two ends of a cable: 198.18.0.1 and .2, 2001:2::1 and ::2.
pub(crate) fn cable() -> [Arc<Namespace>; 2] {
    let ends = [Namespace::new().unwrap(), Namespace::new().unwrap()].map(Arc::new);
    let addresses = [1, 2].map(|n| [(v4(n), 24), (v6(n), 64)]);
    let end = |i: usize| End { namespace: &ends[i], name: INTERFACE, addresses: &addresses[i] };
    Namespace::connect(end(0), end(1), LINK_MTU).unwrap();
    ends
}

/// The IPv4 address of an end, 1 or 2.
pub(crate) fn v4(end: u8) -> IpAddr {
    IpAddr::from([198, 18, 0, end])
}

/// The IPv6 address of an end, 1 or 2.
pub(crate) fn v6(end: u8) -> IpAddr {
    IpAddr::from([0x2001, 2, 0, 0, 0, 0, 0, end.into()])
}

/// The MAC address of an interface.
pub(crate) fn mac(namespace: &Namespace, interface: &str) -> [u8; 6] {
    let state = namespace.run(|| LinkWatcher::open(interface).unwrap().state().clone()).unwrap();
    state.mac.try_into().unwrap()
}

/// Two daemons at the ends of a cable.
pub(crate) struct Pair {
    pub(crate) ends: [Arc<Namespace>; 2],
    pub(crate) daemons: [Daemon; 2],
}

impl Pair {
    /// Starts both with these settings (lines of TOML with dotted keys) beside the stage's own.
    pub(crate) fn start(settings: &str) -> Self {
        let ends = cable();
        let daemons = ends.each_ref().map(|end| Daemon::start(end, INTERFACE, settings));
        Self { ends, daemons }
    }

    pub(crate) fn attach(&self) -> [Context; 2] {
        self.daemons.each_ref().map(Daemon::attach)
    }

    /// Ends both as systemd would; gives back their logs.
    pub(crate) fn end(self) -> [String; 2] {
        self.daemons.map(Daemon::end)
    }
}

/// A `holdfastd` in a namespace. Killed when dropped.
pub(crate) struct Daemon {
    process: Child,
    namespace: Arc<Namespace>,
    directory: tempfile::TempDir,
}

impl Daemon {
    pub(crate) fn start(namespace: &Arc<Namespace>, interface: &str, settings: &str) -> Self {
        Self::start_as(namespace, interface, settings, program)
    }

    /// Starts the program that `command` makes of the path of its settings.
    pub(crate) fn start_as(
        namespace: &Arc<Namespace>,
        interface: &str,
        settings: &str,
        command: impl FnOnce(&str) -> Command,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let own = format!(
            "device.interface = \"{interface}\"\nclients.socket = \"{}\"\nclients.group = \"\"\ncontrol.socket = \"{}\"\n\
             control.group = \"\"\n",
            path("attach"),
            path("control"),
        );
        std::fs::write(path("holdfast.toml"), own + settings).unwrap();
        let process = spawn(namespace, &directory, command(&path("holdfast.toml")));
        Self { process, namespace: Arc::clone(namespace), directory }
    }

    /// Starts it anew, in the same directory, after it has ended or was killed.
    pub(crate) fn restart(&mut self) {
        let config = self.path("holdfast.toml").display().to_string();
        self.process = spawn(&self.namespace, &self.directory, program(&config));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Attaches as soon as it listens.
    pub(crate) fn attach(&self) -> Context {
        let start = Instant::now();
        loop {
            match Context::connect(self.path("attach")) {
                Ok(context) => return context,
                Err(error) => assert!(start.elapsed() < PATIENCE, "no daemon: {error}\n{}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What `holdfast ARGUMENTS --json` says.
    pub(crate) fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let (place, rest) = arguments.split_at(2.min(arguments.len()));
        let place = command.args(place).arg("--json").arg("--socket").arg(self.path("control"));
        let output = place.args(rest).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What `holdfast ARGUMENTS` says, or what it complains of.
    pub(crate) fn say(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        // Before the arguments of what is said.
        let (place, rest) = arguments.split_at(2);
        let output = command.args(place).arg("--socket").arg(self.path("control")).args(rest).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    /// What its HTTP endpoint answers, headers and all.
    pub(crate) fn get(&self, path: &str) -> String {
        let text = self.namespace.run(|| {
            let mut stream = TcpStream::connect(("127.0.0.1", 9791)).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        });
        text.unwrap()
    }

    /// All metrics, by name and labels as they stand in the scrape.
    pub(crate) fn metrics(&self) -> Metrics {
        let line = |line: &str| line.rsplit_once(' ').and_then(|(k, v)| Some((k.to_owned(), v.parse::<f64>().ok()?)));
        Metrics(self.get("/metrics").lines().filter_map(line).collect())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid().try_into().unwrap()), signal).unwrap();
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// What it holds for its clients: descriptors but for the UDP sockets of its lanes and the TCP sockets of who scrapes it, and
    /// mappings of shared memory.
    pub(crate) fn holdings(&self) -> Holdings {
        let metrics = self.metrics();
        let of = |name: &str| format!("/proc/{}/{name}", self.pid());
        let network = || {
            let inode = |line: &str| Some(PathBuf::from(format!("socket:[{}]", line.split_whitespace().nth(9)?)));
            let tables = ["net/udp", "net/udp6", "net/tcp", "net/tcp6"];
            let sockets = tables.iter().flat_map(|table| {
                let table = std::fs::read_to_string(of(table)).unwrap();
                table.lines().skip(1).filter_map(inode).collect::<Vec<_>>()
            });
            sockets.collect::<Vec<_>>()
        };
        // Before and after: a socket may come or go in between.
        let mut ignored = network();
        let open = std::fs::read_dir(of("fd")).unwrap().flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let open: Vec<_> = open.collect();
        ignored.extend(network());
        let maps = std::fs::read_to_string(of("maps")).unwrap();
        let mappings = maps.lines().filter(|line| line.contains("/memfd:holdfast-")).count();
        let count = |what| metrics.total(what);
        Holdings {
            descriptors: open.iter().filter(|target| !ignored.contains(target)).count(),
            mappings,
            clients: count("holdfast_clients"),
            queue_pairs: count("holdfast_queue_pairs"),
            memory_regions: count("holdfast_memory_regions"),
            registered_bytes: count("holdfast_registered_bytes"),
        }
    }

    /// Memory of its own, in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim_end_matches("kB").trim().parse().unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the end of a daemon", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Ends it as systemd would, and looks whether it ends well; gives back its log.
    pub(crate) fn end(mut self) -> String {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        let log = self.log();
        assert!(status.success(), "{status}\n{log}");
        assert!(!self.path("attach").exists() && !self.path("control").exists(), "sockets are left behind");
        log
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn program(config: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfastd"));
    command.args(["--config", config]);
    command
}

fn spawn(namespace: &Namespace, directory: &tempfile::TempDir, mut command: Command) -> Child {
    let log = File::options().append(true).create(true).open(directory.path().join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    namespace.run(|| command.spawn()).unwrap().unwrap()
}

/// What a daemon holds for its clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holdings {
    descriptors: usize,
    mappings: usize,
    clients: u64,
    queue_pairs: u64,
    memory_regions: u64,
    registered_bytes: u64,
}

/// What a daemon published.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(HashMap<String, f64>);

impl Metrics {
    /// The sum of a metric over all its labels.
    pub(crate) fn total(&self, name: &str) -> u64 {
        let is_of = |key: &str| key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'));
        self.0.iter().filter(|(key, _)| is_of(key)).map(|(_, value)| *value as u64).sum()
    }

    /// The sum of a metric over all workers where a label has this value.
    pub(crate) fn of(&self, name: &str, label: &str, value: &str) -> u64 {
        let label = format!("{label}=\"{value}\"");
        let is_it = |key: &str| key.strip_prefix(name).is_some_and(|k| k.starts_with('{') && k.contains(&label));
        self.0.iter().filter(|(key, _)| is_it(key)).map(|(_, value)| *value as u64).sum()
    }

    /// Packets dropped for a reason.
    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        self.of("holdfast_dropped_packets_total", "reason", reason)
    }
}
