//! `holdfast perf` between two daemons: every byte, over each service, one way and both.

use crate::running::Daemon;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};

/// `holdfast perf serve`, until dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn perf(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.arg("perf").args(arguments).arg("--socket").arg(daemon.path("attach"));
    command
}

fn text(output: &Output) -> (String, String) {
    let utf8 = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (utf8(&output.stdout), utf8(&output.stderr))
}

#[test]
fn measures_every_service_one_way_and_both() {
    let daemons = [12, 13].map(|n| Daemon::start(Ipv4Addr::new(127, 0, 1, n), &[]));
    daemons.iter().for_each(|daemon| drop(daemon.attach()));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut serving = perf(&daemons[1], &["serve", "--listen", "127.0.0.1", "--port", &port]);
    let mut server = Server(serving.stdout(Stdio::piped()).spawn().unwrap());
    // It says when it listens.
    let mut said = std::io::BufReader::new(server.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut said, &mut String::new()).unwrap();

    let run = |what: &str, more: &[&str]| {
        let all = [&[what, "127.0.0.1", "--port", &port, "--mtu", "1024"], more].concat();
        perf(&daemons[0], &all).output().unwrap()
    };
    let verified = ["--verify", "-n", "300", "--depth", "8", "--size", "1000", "--json"];
    for (what, more, messages) in [
        ("write-bw", &["--bidirectional", "--qps", "2"][..], 600),
        ("read-bw", &["-b"], 600),
        ("send-bw", &["-b"], 600),
        ("send-bw", &["--transport", "uc"], 300),
        ("send-bw", &["--transport", "ud"], 300),
        ("send-bw", &["--transport", "ud", "-b"], 600),
        ("send-lat", &["--transport", "ud"], 0),
        ("write-lat", &["--transport", "uc"], 0),
        ("read-lat", &[], 0),
    ] {
        let output = run(what, &[&verified[..], more].concat());
        let (out, errors) = text(&output);
        assert!(output.status.success(), "{what} {more:?}: {errors}");
        let line: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(line["wrong_bytes"], 0, "{line}");
        if messages > 0 {
            assert_eq!(line["messages"], messages, "{line}");
            let arrived = messages - line["lost_messages"].as_u64().unwrap();
            assert_eq!(line["verified_bytes"], arrived * 1000, "{line}");
        } else {
            assert_eq!(line["samples"], 300, "{line}");
            assert!(line["p999_us"].as_f64() >= line["p50_us"].as_f64(), "{line}");
        }
    }

    let table = text(&run("send-bw", &["--all", "-n", "20", "--transport", "ud"])).0;
    assert!(table.starts_with("SEND over UD, one way, MTU 1024, 1 QP"), "{table}");
    assert_eq!(table.lines().count(), 2 + 10, "2 bytes to 1024: {table}");
    for (what, more, why) in [
        ("write-bw", ["--transport", "ud"], "UD has no WRITE"),
        ("send-bw", ["--transport=ud", "--size=2KiB"], "at most 1024 bytes"),
        ("send-lat", ["-b", "--verify"], "goes both ways already"),
    ] {
        let (_, said) = text(&run(what, &more));
        assert!(said.contains(why), "{said}");
    }
}
