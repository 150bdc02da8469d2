//! `holdfast fabric` as it runs: a real process between network namespaces, real traffic of the kernel's own sockets through it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod stage;

use holdfast::io::Tap;
use holdfast::io::namespace::run_test;
use holdfast::wire::frame::parse_ethernet;
use holdfast::wire::{Ecn, Ipv4};
use nix::sys::signal::Signal;
use socket2::SockRef;
use stage::{PATIENCE, Stage, address, until};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Three racks; `ab` and `ac` as they come, no light between `b` and `c`.
const TWO_CIRCUITS: &str = "
[[circuit]]
label = \"ab\"
ends = [\"a\", \"b\"]
reconfiguration = \"1ms\"
[[circuit]]
label = \"ac\"
ends = [\"a\", \"c\"]
";

#[test]
fn light_passes_dark_drops_all_and_light_again_passes() {
    run_test("light_passes_dark_drops_all_and_light_again_passes", || {
        let mut stage = Stage::start(TWO_CIRCUITS, &["--announce", "json"]);
        let [a, b, c] = stage.sockets();
        a.send_to(b"before", address(1)).unwrap();
        assert_eq!(stage::receive(&b), b"before");

        assert_eq!(stage.ask("dark ab"), "ok dark ab");
        for _ in 0..10 {
            a.send_to(b"dark", address(1)).unwrap();
        }
        // Frames keep their order up to the switch: when this one is through, the others have met the dark.
        a.send_to(b"witness", address(2)).unwrap();
        assert_eq!(stage::receive(&c), b"witness");
        assert_eq!(stage.ask("light ab"), "ok light ab");
        b.send_to(b"after", address(0)).unwrap();
        assert_eq!(stage::receive(&a), b"after");
        a.send_to(b"after", address(1)).unwrap();
        assert_eq!(stage::receive(&b), b"after");

        let stats = stage.stats();
        assert!(stats["circuits"]["ab"]["lost_in_dark"].as_u64().unwrap() >= 10, "{stats}");
        assert!(stats["circuits"]["ab"]["passed"].as_u64().unwrap() >= 3, "{stats}");
        assert_eq!(stats["circuits"]["ac"]["lost_in_dark"], 0, "{stats}");
        assert_eq!(stats["sockets"]["a"], serde_json::json!({ "missed": 0, "refused": 0 }), "{stats}");

        let news: Vec<&str> = stage.news().iter().map(|news| news["event"].as_str().unwrap()).collect();
        assert_eq!(news, ["prepare", "down", "up"]);
        let [prepare, down, up] = [0, 1, 2].map(|i| &stage.news()[i]);
        assert_eq!((&down["circuit"], &down["ports"]), (&"ab".into(), &serde_json::json!(["a", "b"])));
        assert_eq!((&prepare["at_ns"], &prepare["lit_again_ns"]), (&down["at_ns"], &serde_json::Value::Null));
        assert!(up["at_ns"].as_u64() > down["at_ns"].as_u64());
        stage.quit();
    });
}

#[test]
fn a_circuit_moves_and_takes_the_path_with_it() {
    run_test("a_circuit_moves_and_takes_the_path_with_it", || {
        let mut stage = Stage::start(TWO_CIRCUITS, &["--announce", "json"]);
        let [a, b, c] = stage.sockets();
        assert!(stage.ask("move ab a c").starts_with("error circuit \"ac\" joins those ports"));
        assert!(stage.ask("move ab a z").starts_with("error there is no port \"z\"; there are: a, b, c"));
        assert!(stage.ask("bright ab").starts_with("error \"bright ab\" is no command"));
        assert_eq!(stage.ask("move ab b c"), "ok move ab b c");
        stage.await_news("up");
        b.send_to(b"new path", address(2)).unwrap();
        assert_eq!(stage::receive(&c), b"new path");
        a.send_to(b"old path", address(2)).unwrap();
        assert_eq!(stage::receive(&c), b"old path");
        assert_eq!(stage.stats()["circuits"]["ab"]["ends"], serde_json::json!(["b", "c"]));
        stage.quit();
    });
}

#[test]
fn marks_appear_behind_a_queue_on_packets_that_can_carry_them() {
    run_test("marks_appear_behind_a_queue_on_packets_that_can_carry_them", || {
        let line = "line = { rate_bps = 1_000_000, ecn = { kmin = \"0B\", kmax = \"0B\", pmax = 1.0 } }\n";
        let circuit = "[[circuit]]\nlabel = \"ab\"\nends = [\"a\", \"b\"]\n".to_owned() + line;
        let mut stage = Stage::start(&circuit, &[]);
        let [a, b, _] = stage.sockets();
        a.send_to(b"hello", address(1)).unwrap();
        assert_eq!(stage::receive(&b), b"hello");
        let mut tap = stage.end(1).run(|| Tap::open(stage::INTERFACE)).unwrap().unwrap();
        for (ecn, expected) in [(Ecn::Ect0, Ecn::Ce), (Ecn::NotEct, Ecn::NotEct)] {
            SockRef::from(&a).set_tos_v4(ecn as u32).unwrap();
            // While it sleeps they gather before it; it takes them all at one moment.
            stage.signal(Signal::SIGSTOP);
            for _ in 0..4 {
                a.send_to(&[7; 500], address(1)).unwrap();
            }
            stage.signal(Signal::SIGCONT);
            let mut seen = Vec::new();
            until("the packets arrive", || {
                tap.receive(64, &mut |_, bytes| {
                    if let Ok(frame) = parse_ethernet(&bytes)
                        && frame.payload == [7; 500]
                    {
                        seen.push(frame.ip.ecn());
                    }
                })
                .unwrap();
                seen.len() >= 4
            });
            // Before the first there is something only if the kernel looked for routers just then.
            assert_eq!(seen[1..], [expected; 3]);
            assert!(seen[0] == ecn || seen[0] == expected, "{seen:?}");
            // The kernel gives packets with a wrong checksum to nobody.
            for _ in 0..4 {
                assert_eq!(stage::receive(&b), [7; 500]);
            }
        }
        let stats = stage.stats();
        assert!(stats["circuits"]["ab"]["marked"].as_u64().unwrap() >= 3, "{stats}");
        stage.quit();
    });
}

#[test]
fn super_packets_pass_whole_or_in_pieces() {
    run_test("super_packets_pass_whole_or_in_pieces", || {
        let lossy = "[circuit.line]\nloss = 0.2\n";
        let mut stage = Stage::start(&(TWO_CIRCUITS.to_owned() + lossy), &[]);
        let [a, b, c] = stage.sockets();
        nix::sys::socket::setsockopt(&a, nix::sys::socket::sockopt::UdpGsoSegment, &1000).unwrap();
        let payload: Vec<u8> = (0..50_u8).flat_map(|number| [number; 1000]).collect();
        a.send_to(&payload, address(1)).unwrap();
        for number in 0..50 {
            assert_eq!(stage::receive(&b), [number; 1000]);
        }
        assert!(stage.stats()["circuits"]["ab"]["passed"].as_u64().unwrap() >= 50);

        // Each packet has its own fate on the other circuit. Lost, too, are requests for addresses.
        c.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut arrived = 0;
        until("packets pass and are lost", || {
            a.send_to(&payload, address(2)).unwrap();
            let mut bytes = [0; 2000];
            loop {
                match c.recv(&mut bytes) {
                    Ok(length) => {
                        assert_eq!(bytes[..length], [bytes[0]; 1000]);
                        arrived += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        break;
                    }
                }
            }
            let stats = stage.stats();
            let of = |what: &str| stats["circuits"]["ac"][what].as_u64().unwrap();
            assert!(arrived <= of("passed"));
            arrived > 0 && arrived % 50 != 0 && of("lost_by_chance") > 0
        });
        stage.quit();
    });
}

#[test]
fn vlan_tags_keep_their_place() {
    run_test("vlan_tags_keep_their_place", || {
        let mut stage = Stage::start(TWO_CIRCUITS, &[]);
        let [from, mut to] = [0, 1].map(|rack| stage.end(rack).run(|| Tap::open(stage::INTERFACE)).unwrap().unwrap());
        // The kernel takes the tag out of the frame at each hop, and counts the place of an unfinished checksum without it.
        let udp = [&[0xc0, 0, 0x1b, 0x58][..], &(8 + 100_u16).to_be_bytes(), &[0; 2], &[9; 100]].concat();
        let ip = Ipv4::new([198, 18, 5, 1].into(), [198, 18, 5, 2].into()).emit(udp.len() as u16);
        let addresses = [2, 9, 0, 0, 0, 2, 2, 9, 0, 0, 0, 1];
        let tagged = [&addresses[..], &[0x81, 0, 0xa0, 5], &[8, 0], &ip, &udp].concat();
        let place = [38, 6].map(u16::to_ne_bytes);
        let unfinished = [&[1, 0, 0, 0, 0, 0], place.as_flattened()].concat().try_into().unwrap();
        for vnet in [[0; 10], unfinished] {
            from.send(&vnet, &tagged).unwrap();
            let mut seen = Vec::new();
            until("the frame arrives", || {
                let mut sink = |vnet, bytes: Vec<u8>| {
                    if bytes.starts_with(&addresses) {
                        seen.push((vnet, bytes));
                    }
                };
                to.receive(64, &mut sink).unwrap();
                !seen.is_empty()
            });
            assert_eq!(seen, [(vnet, tagged.clone())]);
        }
        let stats = stage.stats();
        assert_eq!(stats["sockets"]["b"], serde_json::json!({ "missed": 0, "refused": 0 }), "{stats}");
        stage.quit();
    });
}

#[test]
fn tcp_with_its_super_packets_goes_through_a_slow_long_circuit() {
    run_test("tcp_with_its_super_packets_goes_through_a_slow_long_circuit", || {
        let line =
            "[circuit.line]\nrate_bps = 500_000_000\ndelay = \"200us\"\nqueue = \"512KiB\"\nreordering = 0.001\n";
        let mut stage = Stage::start(&("[[circuit]]\nlabel = \"ab\"\nends = [\"a\", \"b\"]\n".to_owned() + line), &[]);
        let listener = stage.end(1).run(|| TcpListener::bind(address(1))).unwrap().unwrap();
        let mut sender = stage.end(0).run(|| TcpStream::connect_timeout(&address(1), PATIENCE)).unwrap().unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let sent: Vec<u8> = (0..4_000_000_u32).map(|i| (i % 251) as u8).collect();
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                sender.write_all(&sent).unwrap();
                sender.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut received = Vec::new();
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            receiver.read_to_end(&mut received).unwrap();
            received
        });
        assert!(received == sent, "{} bytes arrived of {}, or others", received.len(), sent.len());
        let stats = stage.stats();
        assert!(stats["circuits"]["ab"]["passed_bytes"].as_u64().unwrap() > 4_000_000, "{stats}");
        stage.quit();
    });
}

#[test]
fn ports_may_be_in_namespaces_of_their_own_and_a_schedule_ends() {
    run_test("ports_may_be_in_namespaces_of_their_own_and_a_schedule_ends", || {
        let more = "[[event]]\nat = \"10ms\"\ndark = \"ab\"\nfor = \"10ms\"\nevery = \"30ms\"\ntimes = 2\n";
        let circuit = "[[circuit]]\nlabel = \"ab\"\nends = [\"a\", \"b\"]\n".to_owned() + more;
        let mut stage = Stage::start_apart("duration = \"300ms\"\n", &circuit, &["--announce", "json"]);
        let stats = stage.last_stats();
        assert_eq!(stats["circuits"]["ab"]["is_lit"], true, "{stats}");
        let news: Vec<&str> = stage.news().iter().map(|news| news["event"].as_str().unwrap()).collect();
        assert_eq!(news, ["prepare", "down", "up", "prepare", "down", "up"]);
        let lasted = stage.news()[2]["at_ns"].as_u64().unwrap() - stage.news()[1]["at_ns"].as_u64().unwrap();
        assert_eq!(lasted, 10_000_000);
    });
}

#[test]
fn what_cannot_run_says_why() {
    run_test("what_cannot_run_says_why", || {
        for (text, expected) in [
            ("port = [{ name = \"a\", interface = \"nowhere0\" }]", "port \"a\": interface nowhere0: "),
            (
                "port = [{ name = \"a\", interface = \"lo\", netns = \"/proc/self/status\" }]",
                "cannot open the network namespace",
            ),
            ("port = [{ name = \"a\", colour = \"red\" }]", ".toml:1:23: port.colour: unknown field `colour`"),
        ] {
            let error = stage::refusal(text);
            assert!(error.starts_with("holdfast: ") && error.contains(expected), "{error}");
        }
    });
}
