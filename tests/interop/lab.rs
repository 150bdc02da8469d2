//! The lab as a test sees it: a daemon of its own beside the VM, and sessions with the VM's peer.

use holdfast::ipc::client::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// How long anything may take: an emulated VM on a busy machine stops for seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The interface that the daemon serves: the lab's bridge.
const INTERFACE: &str = "lab0";

/// A `holdfastd` on the lab's bridge.
pub(crate) struct Lab {
    daemon: Child,
    directory: tempfile::TempDir,
    peer: String,
}

/// The lab, if the test runs in it; says aloud if not.
pub(crate) fn lab() -> Option<Lab> {
    match std::env::var("HOLDFAST_LAB_PEER") {
        Ok(peer) => Some(Lab::start(peer)),
        Err(_) => {
            println!("skipped: HOLDFAST_LAB_PEER is not set; `tests/all lab` runs this test beside a VM");
            None
        }
    }
}

impl Lab {
    fn start(peer: String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let config = format!(
            "[device]\ninterface = \"{INTERFACE}\"\n[clients]\nsocket = {:?}\ngroup = \"\"\n\
             [control]\nsocket = {:?}\ngroup = \"\"\n[metrics]\nlisten = \"off\"\n",
            path("attach"),
            path("control"),
        );
        std::fs::write(path("holdfast.toml"), config).unwrap();
        let daemon = Command::new(env!("CARGO_BIN_EXE_holdfastd"))
            .arg("--config")
            .arg(path("holdfast.toml"))
            .stderr(File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        Self { daemon, directory, peer }
    }

    /// The daemon's attach socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("attach")
    }

    /// Attaches to the daemon, once it listens.
    pub(crate) fn attach(&self) -> Context {
        let start = Instant::now();
        loop {
            match Context::connect(self.socket()) {
                Ok(context) => return context,
                Err(error) => {
                    assert!(start.elapsed() < PATIENCE, "the daemon does not listen: {error}\n{}", self.log())
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A session with the peer.
    pub(crate) fn session(&self) -> Session {
        Session::open(&self.peer)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Lab {
    /// Ends the daemon as systemd would; it must go in peace.
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the daemon's log:\n{}", self.log());
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
            return;
        }
        kill(Pid::from_raw(self.daemon.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        let status = self.daemon.wait().unwrap();
        assert!(status.success(), "the daemon ended with {status}:\n{}", self.log());
    }
}

/// The IP version that a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// As the peer calls its GID.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    pub(crate) const fn matches(self, address: IpAddr) -> bool {
        matches!((self, address), (Self::V4, IpAddr::V4(_)) | (Self::V6, IpAddr::V6(_)))
    }
}

/// A session with `peer.py`, whose first page says what it can be asked.
pub(crate) struct Session {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Session {
    fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        Self { stream, lines }
    }

    /// Asks for something that must succeed.
    pub(crate) fn ask(&mut self, command: &str, mut arguments: Value) -> Value {
        arguments["do"] = command.into();
        writeln!(self.stream, "{arguments}").unwrap();
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let reply: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{command}: {e}: '{line}'"));
        assert_eq!(reply["ok"], true, "{arguments}: {}", reply["error"]);
        reply
    }

    /// Makes the weather: arguments for netem, in this direction of the VM.
    pub(crate) fn netem(&mut self, direction: &str, arguments: &str) {
        self.ask("netem", json!({"dir": direction, "args": arguments}));
    }

    /// Ends it; tells how many packets came through, and how many were dropped.
    pub(crate) fn calm(&mut self, direction: &str) -> (u64, u64) {
        let end = self.ask("netem", json!({"dir": direction, "args": null}));
        (end["packets"].as_u64().unwrap(), end["dropped"].as_u64().unwrap())
    }
}
