//! A daemon that runs, and how to ask it.

use holdfast::ipc::client::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A daemon on a loopback address of its own, until dropped.
pub(crate) struct Daemon {
    pub(crate) process: Child,
    directory: tempfile::TempDir,
    metrics: u16,
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

impl Daemon {
    /// Each test has its own address: they run side by side, and each wants UDP port 4791.
    pub(crate) fn start(address: Ipv4Addr, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let config = format!(
            "[device]\naddresses = [\"{address}\"]\n[port]\nbackend = \"udp\"\n[clients]\nsocket = \"{}\"\ngroup = \"\"\n\
             [control]\nsocket = \"{}\"\ngroup = \"\"\n[metrics]\nlisten = \"127.0.0.1:{metrics}\"\n",
            path("attach"),
            path("control"),
        );
        std::fs::write(directory.path().join("holdfast.toml"), config).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_holdfastd"))
            .args(["--config", &path("holdfast.toml")])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, directory, metrics }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn attach(&self) -> Context {
        let start = Instant::now();
        loop {
            match Context::connect(self.path("attach")) {
                Ok(context) => return context,
                Err(error) => assert!(start.elapsed() < PATIENCE, "the daemon does not listen: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args(arguments)
            .arg("--socket")
            .arg(self.path("control"))
            .output()
            .unwrap()
    }

    pub(crate) fn scrape(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Ends it as systemd would; gives back its log.
    pub(crate) fn end(mut self) -> String {
        self.signal(Signal::SIGTERM);
        let mut log = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        let status = self.process.wait().unwrap();
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
