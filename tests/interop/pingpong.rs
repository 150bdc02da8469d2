//! rdma-core's own programs against `holdfast pingpong`, which compares every byte of every message; each as server and as
//! client of the other.

use crate::end::row;
use crate::lab::{Family, Lab, PATIENCE, Session, lab};
use serde_json::json;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Where the stock programs find holdfast, and where it finds them.
const OURS: &str = "198.18.0.1";
const THEIRS: &str = "198.18.0.2";
const PORT: u16 = 18_515;
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
const MIB: u32 = 1 << 20;

#[derive(Clone, Copy)]
struct Game {
    kind: &'static str,
    mtu: u32,
    size: u32,
    messages: u32,
    events: bool,
    family: Family,
}

impl Game {
    /// What both programs are told in the same words.
    fn arguments(&self) -> Vec<String> {
        let mut words = vec![format!("-s{}", self.size), format!("-n{}", self.messages)];
        if self.kind != "ud" {
            words.push(format!("-m{}", self.mtu));
        }
        if self.events {
            words.push("-e".into());
        }
        // A stock server then looks at the first byte of each page.
        if self.size == MIB {
            words.push("-c".into());
        }
        words
    }

    fn stock(&self) -> Vec<String> {
        let gid = if self.family == Family::V4 { "-g1" } else { "-g2" };
        let mut argv = vec![format!("ibv_{}_pingpong", self.kind), gid.into()];
        argv.extend(self.arguments());
        argv
    }

    fn holdfast(&self, lab: &Lab, host: Option<&str>) -> Child {
        let gid = lab.attach().addresses().iter().position(|address| self.family.matches(*address)).unwrap();
        Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args(["pingpong", &format!("--{}", self.kind), &format!("-g{gid}"), "--socket"])
            .arg(lab.socket())
            .args(self.arguments())
            .args(host)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The stock program waits for holdfast.
    fn meet_stock_server(&self, lab: &Lab, session: &mut Session) {
        let start = Instant::now();
        let server = session.ask("spawn", json!({"argv": self.stock(), "listen": PORT}));
        let ours = self.holdfast(lab, Some(THEIRS)).wait_with_output().unwrap();
        let theirs = session.ask("wait", json!({"job": server["job"]}));
        self.verdict("holdfast > stock", start.elapsed(), &ours, &theirs);
    }

    /// Holdfast waits for the stock program.
    fn meet_stock_client(&self, lab: &Lab, session: &mut Session) {
        let start = Instant::now();
        let server = self.holdfast(lab, None);
        wait_until_somebody_listens();
        let mut argv = self.stock();
        argv.push(OURS.into());
        let theirs = session.ask("run", json!({"argv": argv, "timeout_ms": PATIENCE.as_millis() as u64}));
        let ours = server.wait_with_output().unwrap();
        self.verdict("stock > holdfast", start.elapsed(), &ours, &theirs);
    }

    fn verdict(&self, way: &str, took: Duration, ours: &Output, theirs: &serde_json::Value) {
        let (said, complained) = (String::from_utf8_lossy(&ours.stdout), String::from_utf8_lossy(&ours.stderr));
        let output = theirs["output"].as_str().unwrap();
        let context = format!("{way}, {:?}: holdfast: {said}{complained}; stock: {output}", self.stock());
        assert!(ours.status.success() && theirs["status"] == 0, "{context}");
        let done = format!("{} iters in", self.messages);
        assert!(said.contains(&done) && output.contains(&done) && !output.contains("invalid data"), "{context}");
        let what = format!("ibv_{}_pingpong{}", self.kind, if self.events { " -e" } else { "" });
        let messages = 2 * u64::from(self.messages);
        row(&what, way, self.mtu, self.family, messages, messages * u64::from(self.size), took);
    }
}

fn wait_until_somebody_listens() {
    let start = Instant::now();
    let suffix = format!(":{PORT:04X}");
    loop {
        let sockets = std::fs::read_to_string("/proc/self/net/tcp6").unwrap();
        let listens = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() > 3 && words[1].ends_with(&suffix) && words[3] == "0A"
        };
        if sockets.lines().any(listens) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "holdfast pingpong does not listen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Both roles, one message size small and one of 1 MiB, at every path MTU, polling and sleeping on events.
fn every_mtu(kind: &'static str) {
    let Some(lab) = lab() else { return };
    let mut session = lab.session();
    for (n, (mtu, small)) in MTUS.into_iter().zip([1, 3, 1000, 4097, 65_537]).enumerate() {
        let family = if n == 2 { Family::V6 } else { Family::V4 };
        for (size, messages, events) in [(small, 50, n % 2 == 0), (MIB, 3, n % 2 == 1)] {
            let game = Game { kind, mtu, size, messages, events, family };
            game.meet_stock_server(&lab, &mut session);
            game.meet_stock_client(&lab, &mut session);
        }
    }
}

#[test]
fn reliable_connections() {
    every_mtu("rc");
}

#[test]
fn unreliable_connections() {
    every_mtu("uc");
}

#[test]
fn datagrams() {
    let Some(lab) = lab() else { return };
    let mut session = lab.session();
    let family = [Family::V4, Family::V6];
    for (n, size) in [1, 255, 1024, 2047, 4096].into_iter().enumerate() {
        let game =
            Game { kind: "ud", mtu: 4096, size, messages: 50, events: n % 2 == 0, family: family[usize::from(n > 2)] };
        game.meet_stock_server(&lab, &mut session);
        game.meet_stock_client(&lab, &mut session);
    }
}
