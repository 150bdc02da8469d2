//! The ways in and out: every backend with every driver, VLANs; and a link that changes under traffic.

use crate::stage::{Daemon, INTERFACE, LINK_MTU, Pair, cable, mac, until, v4};
use crate::traffic::{Traffic, options};
use holdfast::io::namespace::{Namespace, NamespaceError, run_test};
use holdfast::ipc::client::{ConnectionOptions, Context, EventKind, PathMtu, PortState};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;

fn device(daemon: &Daemon) -> serde_json::Value {
    daemon.ask(&["status"])["device"].clone()
}

fn by(backend: &str, driver: &str) {
    let pair = Pair::start(&format!("port.backend = \"{backend}\"\nport.driver = \"{driver}\"\n"));
    let mut traffic = Traffic::new(pair.attach());
    (0..300).for_each(|_| traffic.round());
    assert_eq!(traffic.lost_datagrams(|_| false), 0);
    for daemon in &pair.daemons {
        let device = device(daemon);
        assert_eq!((&device["backend"], &device["driver"]), (&backend.into(), &driver.into()), "{device}");
    }
    drop(traffic);
    pair.end();
}

#[test]
fn packet_by_syscalls() {
    run_test("links::packet_by_syscalls", || by("packet", "syscalls"));
}

#[test]
fn packet_by_io_uring() {
    run_test("links::packet_by_io_uring", || by("packet", "io_uring"));
}

#[test]
fn udp_by_syscalls() {
    run_test("links::udp_by_syscalls", || by("udp", "syscalls"));
}

#[test]
fn udp_by_io_uring() {
    run_test("links::udp_by_io_uring", || by("udp", "io_uring"));
}

/// Says to this test binary that it is to become a daemon that may not use io_uring.
const CONFINED: &str = "HOLDFAST_TEST_CONFINED";

/// Forbids io_uring to this process as a container runtime does, and becomes what `command` is.
fn become_confined(config: &str) -> ! {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let filter = SeccompFilter::new(
        calls.into_iter().map(|call| (call, Vec::new())).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
    panic!("{}", Command::new(env!("CARGO_BIN_EXE_holdfastd")).args(["--config", config]).exec());
}

#[test]
fn where_io_uring_is_forbidden_the_daemon_does_without_and_says_so() {
    const NAME: &str = "links::where_io_uring_is_forbidden_the_daemon_does_without_and_says_so";
    if let Ok(config) = std::env::var(CONFINED) {
        become_confined(&config);
    }
    run_test(NAME, || {
        let ends = cable();
        let program = std::env::current_exe().unwrap();
        let confined = |config: &str| {
            let mut command = Command::new(&program);
            command.args([NAME, "--exact", "--nocapture"]).env(CONFINED, config);
            command
        };
        let daemons = [Daemon::start_as(&ends[0], INTERFACE, "", confined), Daemon::start(&ends[1], INTERFACE, "")];
        let mut traffic = Traffic::new(daemons.each_ref().map(Daemon::attach));
        traffic.round();
        let told = "io_uring cannot be used: seccomp or the sysctl kernel.io_uring_disabled forbids it";
        let device = device(&daemons[0]);
        assert_eq!(device["driver"], "syscalls");
        assert!(
            device["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains(told)),
            "{device}"
        );
        assert!(daemons[0].log().contains(told), "{}", daemons[0].log());
        drop((traffic, daemons));

        let mut refused = Daemon::start_as(&ends[0], INTERFACE, "port.driver = \"io_uring\"\n", confined);
        assert!(!refused.wait().success());
        let log = refused.log();
        assert!(log.contains("driver `io_uring` cannot be used") && log.contains("use driver `auto`"), "{log}");
    });
}

#[test]
fn a_vlan_device_is_an_interface_like_others() {
    run_test("links::a_vlan_device_is_an_interface_like_others", || {
        const VLAN: &str = "hf0.7";
        let ends = cable();
        let address = |n: u8| IpAddr::from([198, 19, 0, n]);
        for (n, end) in (1..).zip(&ends) {
            match end.add_vlan(INTERFACE, VLAN, 7) {
                Err(NamespaceError::Device { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    return println!("skipped: this kernel has no VLAN devices (module 8021q)");
                }
                added => added.unwrap(),
            }
            end.add_address(VLAN, address(n), 24).unwrap();
        }
        for backend in ["packet", "udp"] {
            let settings = format!("port.backend = \"{backend}\"\n");
            let daemons = ends.each_ref().map(|end| Daemon::start(end, VLAN, &settings));
            let contexts = daemons.each_ref().map(Daemon::attach);
            assert_eq!(contexts[0].addresses(), [address(1)]);
            let mut traffic = Traffic::new(contexts);
            (0..100).for_each(|_| traffic.round());
            drop(traffic);
            daemons.into_iter().for_each(|daemon| drop(daemon.end()));
        }
    });
}

/// The path MTU of each side, as programs see it.
fn path_mtus(contexts: &[Context; 2]) -> [PathMtu; 2] {
    contexts.each_ref().map(|context| context.query_port().unwrap().active_path_mtu())
}

fn set_mtu(ends: &[std::sync::Arc<Namespace>; 2], mtu: u32) {
    ends.iter().for_each(|end| end.set_mtu(INTERFACE, mtu).unwrap());
}

#[test]
fn an_mtu_that_changes_is_followed_and_costs_no_message() {
    run_test("links::an_mtu_that_changes_is_followed_and_costs_no_message", || {
        let pair = Pair::start("");
        let contexts = pair.attach();
        assert_eq!(path_mtus(&contexts), [PathMtu::B4096; 2]);
        let mut small = Traffic::new(pair.attach());
        // Too large for the link while that is small: it waits, and goes on.
        let patient = ConnectionOptions { path_mtu: PathMtu::B4096, ..options() };
        let mut large = Traffic::with(pair.attach(), &patient);
        large.round();
        small.play_during(|| {
            for _ in 0..5 {
                set_mtu(&pair.ends, 1500);
                until("the smaller MTU is told", || path_mtus(&contexts) == [PathMtu::B1024; 2]);
                assert_eq!(device(&pair.daemons[0])["active_mtu_bytes"], 1024);
                set_mtu(&pair.ends, LINK_MTU);
                until("the larger MTU is told", || path_mtus(&contexts) == [PathMtu::B4096; 2]);
            }
            set_mtu(&pair.ends, 1500);
            std::thread::scope(|scope| {
                let large = scope.spawn(|| large.round());
                let refused =
                    || pair.daemons[0].metrics().of("holdfast_transmit_refused_bursts_total", "reason", "too_large");
                until("a packet is too large", || refused() > 0);
                set_mtu(&pair.ends, LINK_MTU);
                large.join().unwrap();
            });
        });
        drop((small, large, contexts));
        pair.end();
    });
}

/// An announcement of a new hardware address (RFC 5227).
fn announcement(mac: [u8; 6], address: IpAddr) -> Vec<u8> {
    let IpAddr::V4(address) = address else { panic!("ARP is of IPv4") };
    let address = address.octets();
    // Hardware Ethernet, protocol IPv4, lengths 6 and 4, request.
    let fixed = [0, 1, 8, 0, 6, 4, 0, 1];
    [&[0xff; 6][..], &mac, &[8, 6], &fixed, &mac, &address, &[0; 6], &address].concat()
}

#[test]
fn a_neighbour_with_a_new_hardware_address_is_found_again() {
    run_test("links::a_neighbour_with_a_new_hardware_address_is_found_again", || {
        let pair = Pair::start("");
        let mut traffic = Traffic::new(pair.attach());
        traffic.round();
        let told = |mac: [u8; 6]| pair.daemons[0].log().contains(&format!("NeighbourReachable(198.18.0.2, {mac:?})"));
        let mut new = mac(&pair.ends[1], INTERFACE);
        for n in 1..4 {
            new[5] ^= n;
            traffic.play_during(|| {
                pair.ends[1].set_mac(INTERFACE, new).unwrap();
                let socket = pair.ends[1].frames(INTERFACE).unwrap();
                // The kernel takes no second word about a neighbour within a second of the first.
                until("the neighbour is found", || {
                    socket.send(&announcement(new, v4(2))).unwrap();
                    told(new)
                });
            });
        }
        drop(traffic);
        pair.end();
    });
}

#[test]
fn a_link_that_goes_down_comes_back_and_traffic_goes_on() {
    run_test("links::a_link_that_goes_down_comes_back_and_traffic_goes_on", || {
        for backend in ["packet", "udp"] {
            let pair = Pair::start(&format!("port.backend = \"{backend}\"\n"));
            let contexts = pair.attach();
            let mut traffic = Traffic::new(pair.attach());
            let states = || contexts.each_ref().map(|context| context.query_port().unwrap().state);
            // The near side knows by its flags, the far side by its carrier.
            for side in [0, 1, 0, 1] {
                traffic.round();
                traffic.play_during(|| {
                    pair.ends[side].set_up(INTERFACE, false).unwrap();
                    until("both know that the link is down", || states() == [PortState::Down; 2]);
                    pair.ends[side].set_up(INTERFACE, true).unwrap();
                    until("both know that the link is up", || states() == [PortState::Active; 2]);
                });
            }
            let events = std::iter::from_fn(|| contexts[0].next_event(Some(std::time::Duration::ZERO)).unwrap());
            let events: Vec<EventKind> = events.map(|event| event.kind).collect();
            assert_eq!(events, [EventKind::PortErr, EventKind::PortActive].repeat(4), "{backend}");
            drop((traffic, contexts));
            pair.end();
        }
    });
}

#[test]
fn an_interface_that_is_gone_ends_no_daemon() {
    run_test("links::an_interface_that_is_gone_ends_no_daemon", || {
        for backend in ["packet", "udp"] {
            let [near, far] = cable();
            let mut daemon = Daemon::start(&near, INTERFACE, &format!("port.backend = \"{backend}\"\n"));
            let context = daemon.attach();
            drop(far);
            let event = context.next_event(Some(crate::stage::PATIENCE)).unwrap().unwrap();
            assert_eq!(event.kind, EventKind::PortErr, "{backend}");
            until("it says so", || daemon.log().contains("a restart is needed"));
            assert_eq!(context.query_port().unwrap().state, PortState::Down);
            assert!(!daemon.has_ended());
            drop(context);
            daemon.end();
        }
    });
}
