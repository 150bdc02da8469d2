//! The operator's commands, the real binary, against a real control plane over its Unix socket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use holdfast::control::worker::{Request, Requests, WorkerHandle};
use holdfast::control::{Access, ControlSocket, Overview, serve, view};
use holdfast::counters::{Counter, Publisher};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::openpty;
use std::fs::{File, Permissions, set_permissions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// A control plane with one worker, on a socket of its own, until dropped.
struct Plane {
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl Plane {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut counters = Publisher::new();
        counters.set(Counter::ReceivedPackets, 1_234_567);
        counters.set(Counter::DropIcrc, 3);
        let (wake, woken) = channel();
        let (handle, requests) = WorkerHandle::new(0, counters.published(), move || wake.send(()).unwrap_or_default());
        std::thread::spawn(move || answer(&requests, &woken));
        let device = view::Device {
            name: "holdfast0".into(),
            version: "1.2.3".into(),
            interface: Some("eth0".into()),
            link_up: true,
            backend: "packet".into(),
            driver: "io_uring".into(),
            notes: vec!["packet: CAP_NET_RAW is there".into()],
            gids: vec![view::Gid { index: 0, address: "198.18.0.1".parse().unwrap() }],
            ..Default::default()
        };
        let socket = ControlSocket::bind(&dir.path().join("control.sock"), Access::for_group("")).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(serve(socket, Arc::new(Overview::new(device, vec![handle])), std::future::pending()));
        Self { dir, runtime }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn holdfast(&self, args: &[&str]) -> Output {
        holdfast(&self.socket(), args).output().unwrap()
    }

    fn stop(self) {
        self.runtime.shutdown_background();
    }
}

fn holdfast(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(args).arg("--socket").arg(socket);
    command
}

/// A worker with one queue pair and one region. It counts on at each look.
fn answer(requests: &Requests, woken: &Receiver<()>) {
    let mut sent_bytes = 0;
    while woken.recv().is_ok() {
        while let Some(request) = requests.poll_request() {
            sent_bytes += 1_000_000;
            let counters = view::QpCounters { sent_bytes, ..Default::default() };
            let qp = view::QueuePair {
                qpn: 17,
                state: view::QpState::Rts,
                client_pid: 4711,
                counters,
                ..Default::default()
            };
            match request {
                Request::Status { reply } => {
                    let client = view::Client { pid: 4711, command: "ib_write_bw".into(), ..Default::default() };
                    reply.send((view::Worker { queue_pairs: 1, ..Default::default() }, vec![client]));
                }
                Request::QueuePairs { reply, .. } => reply.send(view::Page { entries: vec![qp], next: None }),
                Request::QueuePair { qpn, reply } => reply.send((qpn == 17).then_some(qp)),
                Request::Paths { reply, .. } => reply.send(view::Page { entries: vec![], next: None }),
                Request::Announce { reply, .. } => reply.send(Ok(3)),
                Request::MemoryRegions { reply, .. } => {
                    let region = view::MemoryRegion { slot: 1, length_bytes: 4096, access: 7, ..Default::default() };
                    reply.send(view::Page { entries: vec![region], next: None });
                }
            }
        }
    }
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&stdout(output)).unwrap()
}

#[test]
fn status_reads_well_and_has_everything_in_json() {
    let plane = Plane::start();
    let text = stdout(&plane.holdfast(&["status"]));
    for part in [
        "holdfast0: holdfastd 1.2.3",
        "interface  eth0, up",
        "packet by io_uring, packet by packet\n             packet: CAP_NET_RAW is there",
        "GID 0      198.18.0.1",
        "4711  ib_write_bw",
        "received     1 234 567 packets",
        "dropped      3 icrc",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let status = json(&plane.holdfast(&["status", "--json"]));
    assert_eq!(status["device"]["gids"][0]["address"], "198.18.0.1");
    assert_eq!(status["counters"].as_array().unwrap().len(), Counter::COUNT);
    assert!(stdout(&plane.holdfast(&["status", "--counters"])).contains("reason=icrc"));
    plane.stop();
}

#[test]
fn queue_pairs_and_regions_are_listed_shown_and_filtered() {
    let plane = Plane::start();
    assert_eq!(stdout(&plane.holdfast(&["qp", "list"])).lines().count(), 2);
    assert_eq!(stdout(&plane.holdfast(&["qp", "list", "--state", "error"])), "no queue pairs\n");
    assert_eq!(json(&plane.holdfast(&["qp", "list", "--json", "--pid", "4711"]))[0]["state"], "rts");
    assert!(stdout(&plane.holdfast(&["qp", "show", "0x11"])).starts_with("queue pair      17 (0x000011), RC, RTS\n"));
    assert_eq!(json(&plane.holdfast(&["qp", "show", "17", "--json"]))["qpn"], 17);
    assert!(stdout(&plane.holdfast(&["mr", "list"])).contains("local-write,remote-write,remote-read"));
    assert_eq!(json(&plane.holdfast(&["mr", "list", "--json"]))[0]["length_bytes"], 4096);
    plane.stop();
}

#[test]
fn what_goes_wrong_says_what_to_do_and_has_its_exit_status() {
    let plane = Plane::start();
    let wrong = |output: Output| (output.status.code(), String::from_utf8(output.stderr).unwrap());
    let (status, said) = wrong(plane.holdfast(&["qp", "show", "99"]));
    assert_eq!((status, said.as_str()), (Some(1), "holdfast: there is no queue pair 99\n"));
    assert_eq!(wrong(plane.holdfast(&["qp", "show", "x"])).0, Some(2));
    let nowhere = plane.dir.path().join("nowhere.sock");
    let (status, said) = wrong(holdfast(&nowhere, &["status"]).output().unwrap());
    assert_eq!(status, Some(3));
    assert!(said.contains("holdfastd is not running") && said.contains("systemctl start holdfastd"), "{said}");
    plane.stop();
}

#[test]
fn a_stranger_is_refused_by_the_file_and_by_the_daemon() {
    const NOBODY: u32 = 65534;
    if !nix::unistd::Uid::effective().is_root() {
        println!("skipped: only root can run the command as another user");
        return;
    }
    let plane = Plane::start();
    // Another user may not be able to reach the build directory.
    let command = plane.dir.path().join("holdfast");
    // Copied by another process: a child that a neighbouring test forks meanwhile would hold our writable descriptor, and the
    // file could not be run (ETXTBSY).
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_holdfast")).arg(&command).status().unwrap();
    assert!(copied.success());
    set_permissions(plane.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let ask = || {
        let mut as_nobody = Command::new(&command);
        as_nobody.uid(NOBODY).gid(NOBODY).current_dir("/").args(["status", "--socket"]).arg(plane.socket());
        as_nobody.output().unwrap()
    };
    for mode in [0o600, 0o666] {
        set_permissions(plane.socket(), Permissions::from_mode(mode)).unwrap();
        let refused = ask();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(3), "mode {mode:o}: {said}");
        assert!(said.contains("no permission") && said.contains("usermod -aG holdfast"), "{said}");
    }
    plane.stop();
}

#[test]
fn top_without_a_terminal_measures_once() {
    let plane = Plane::start();
    let text = stdout(&plane.holdfast(&["top", "--interval", "0.1"]));
    assert!(text.starts_with("holdfast0 on eth0, up") && text.contains("17  RC    RTS"), "{text}");
    let rates = json(&plane.holdfast(&["top", "--interval", "0.1", "--json"]));
    assert!(rates["queue_pairs"][0]["sent_bytes"].as_f64().unwrap() > 0.0, "{rates}");
    plane.stop();
}

#[test]
fn top_on_a_terminal_draws_until_q_and_gives_the_terminal_back() {
    let plane = Plane::start();
    let pty = openpty(None, None).unwrap();
    let before = nix::sys::termios::tcgetattr(&pty.slave).unwrap();
    let end = || Stdio::from(pty.slave.try_clone().unwrap());
    let mut top = holdfast(&plane.socket(), &["top", "--interval", "0.1"]);
    let mut top = top.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    let mut keyboard = File::from(pty.master);
    let drawn = read_until(&mut keyboard, "RECEIVED");
    assert!(drawn.contains("\x1b[?1049h"), "the other screen: {drawn:?}");
    // An arrow key is no reason to go, and does not hide the q behind it.
    keyboard.write_all(b"\x1b[Aq").unwrap();
    let rest = read_until(&mut keyboard, "\x1b[?1049l");
    assert!(rest.contains("\x1b[?25h"), "the cursor is back: {rest:?}");
    assert!(top.wait().unwrap().success());
    let after = nix::sys::termios::tcgetattr(&pty.slave).unwrap();
    assert_eq!(after.local_flags, before.local_flags);
    plane.stop();
}

/// Reads what was drawn, up to and with `end`. Gives up when nothing comes for a minute.
fn read_until(from: &mut File, end: &str) -> String {
    let mut seen = Vec::new();
    let mut some = [0; 4096];
    while !String::from_utf8_lossy(&seen).contains(end) {
        let ready = poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], PollTimeout::from(60_000_u16)).unwrap();
        assert_eq!(ready, 1, "no {end:?} in {:?}", String::from_utf8_lossy(&seen));
        let n = from.read(&mut some).unwrap();
        seen.extend_from_slice(&some[..n]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}
