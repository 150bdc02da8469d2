//! The systemd files, checked by systemd's own tools where they are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use holdfast::settings::Settings;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const UNIT: &str = "holdfastd.service";
/// `systemd-analyze security` rates 0 (locked up) to 100 (wide open). What is left is what the daemon is for: the network.
const MOST_EXPOSED: &str = "25";

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(source(name)).unwrap()
}

/// Runs a tool, or says aloud that it is not here.
fn run(tool: &str, args: &[&str]) -> Option<Output> {
    match Command::new(tool).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            println!("skipped: there is no {tool} here");
            None
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// The unit with the programs that were just built, so that systemd finds them.
fn unit_to_verify() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let unit = text(UNIT).replace("/usr/bin/holdfastd", env!("CARGO_BIN_EXE_holdfastd"));
    std::fs::write(dir.path().join(UNIT), unit).unwrap();
    let drop_ins = dir.path().join(format!("{UNIT}.d"));
    std::fs::create_dir(&drop_ins).unwrap();
    std::fs::copy(source("foreign-memory.conf"), drop_ins.join("foreign-memory.conf")).unwrap();
    dir
}

#[test]
fn the_unit_and_its_drop_in_are_valid() {
    let dir = unit_to_verify();
    let unit = dir.path().join(UNIT);
    let Some(verified) = run("systemd-analyze", &["verify", "--man=no", unit.to_str().unwrap()]) else { return };
    let said = said(&verified);
    // Other units of the machine may be at fault, too: only what is said of ours counts.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("holdfast")).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
    assert!(verified.status.success(), "{said}");
}

#[test]
fn the_unit_is_locked_up() {
    let unit = source(UNIT);
    let args =
        ["security", "--offline=yes", "--no-pager", &format!("--threshold={MOST_EXPOSED}"), unit.to_str().unwrap()];
    let Some(rated) = run("systemd-analyze", &args) else { return };
    let said = said(&rated);
    if said.contains("unrecognized option") {
        println!("skipped: this systemd-analyze cannot rate a unit that is not loaded");
        return;
    }
    assert!(said.contains("Overall exposure level for"), "{said}");
    assert!(rated.status.success(), "{said}");
}

#[test]
fn users_and_directories_are_made() {
    if !nix::unistd::Uid::effective().is_root() {
        println!("skipped: only root can make users and directories below another root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let at = format!("--root={}", root.path().display());
    std::fs::create_dir(root.path().join("etc")).unwrap();
    let Some(users) = run("systemd-sysusers", &[&at, source("holdfast.sysusers").to_str().unwrap()]) else { return };
    assert!(users.status.success(), "{}", said(&users));
    let passwd = std::fs::read_to_string(root.path().join("etc/passwd")).unwrap();
    let user = passwd.lines().find(|line| line.starts_with("holdfast:")).expect("a user holdfast");
    let uid: u32 = user.split(':').nth(2).unwrap().parse().unwrap();
    assert!(std::fs::read_to_string(root.path().join("etc/group")).unwrap().contains("holdfast:"));

    let files = source("holdfast.tmpfiles");
    let Some(made) = run("systemd-tmpfiles", &["--create", &at, files.to_str().unwrap()]) else { return };
    assert!(made.status.success(), "{}", said(&made));
    let directory = std::fs::metadata(root.path().join("run/holdfast")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((directory.uid(), directory.mode() & 0o7777), (uid, 0o755));
}

#[test]
fn the_files_agree_with_the_default_settings() {
    let defaults = Settings::default();
    for socket in [&defaults.clients.socket, &defaults.control.socket] {
        assert_eq!(socket.parent().unwrap(), Path::new("/run/holdfast"), "the unit's RuntimeDirectory");
    }
    assert!(text(UNIT).contains("\nRuntimeDirectory=holdfast\n"));
    for group in [&defaults.clients.group, &defaults.control.group] {
        assert!(text("holdfast.sysusers").contains(&format!("\nu {group} ")), "{group}");
    }
    let limit = |key: &str| {
        let sysctl = text("holdfast.sysctl");
        let line = sysctl.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    assert_eq!(limit("net.core.rmem_max"), defaults.port.receive_buffer.bytes());
    assert_eq!(limit("net.core.wmem_max"), defaults.port.send_buffer.bytes());
    let stop = text(UNIT).lines().find_map(|l| l.strip_prefix("TimeoutStopSec=")?.strip_suffix('s')?.parse().ok());
    assert!(stop.is_some_and(|s| std::time::Duration::from_secs(s) > defaults.shutdown.drain.duration()));
}
