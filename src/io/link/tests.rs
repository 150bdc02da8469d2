#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::io::namespace::{End, Namespace, run_test};

const A: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 18, 0, 1));
const A2: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 18, 1, 1));
const B: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 18, 0, 2));

fn cable() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let end = |namespace, name, addresses| End { namespace, name, addresses };
    Namespace::connect(end(&a, "a0", &[(A, 24)]), end(&b, "b0", &[(B, 24)]), 1500).unwrap();
    (a, b)
}

/// The next event that `wanted` picks.
fn next<T>(watcher: &mut LinkWatcher, wanted: impl Fn(&LinkEvent) -> Option<T>) -> T {
    loop {
        while let Some(event) = watcher.poll_event().unwrap() {
            if let Some(found) = wanted(&event) {
                return found;
            }
        }
        let ready = poll(&mut [PollFd::new(watcher.as_fd(), PollFlags::POLLIN)], PollTimeout::from(5_000u16)).unwrap();
        assert_ne!(ready, 0, "no event; the state is {:?}", watcher.state());
    }
}

fn expect(watcher: &mut LinkWatcher, event: &LinkEvent) {
    next(watcher, |found| (found == event).then_some(()));
}

#[test]
fn state_mtu_and_carrier_are_followed() {
    run_test("io::link::tests::state_mtu_and_carrier_are_followed", || {
        let (a, b) = cable();
        let mut watcher = a.run(|| LinkWatcher::open("a0").unwrap()).unwrap();
        let state = watcher.state().clone();
        assert_eq!((state.name.as_str(), state.mtu, state.mac.len()), ("a0", 1500, 6));
        assert!(state.is_running());
        assert_eq!(state.gid_address(), Some(A));

        a.set_mtu("a0", 9000).unwrap();
        expect(&mut watcher, &LinkEvent::Mtu(9000));
        a.set_up("a0", false).unwrap();
        expect(&mut watcher, &LinkEvent::Down);
        assert!(!watcher.state().is_up);
        a.set_up("a0", true).unwrap();
        expect(&mut watcher, &LinkEvent::Up);
        b.set_up("b0", false).unwrap();
        expect(&mut watcher, &LinkEvent::Down);
        assert!(watcher.state().is_up && !watcher.state().has_carrier);
        drop(b);
        expect(&mut watcher, &LinkEvent::Gone);
        assert_eq!(watcher.poll_event().unwrap(), None);
    });
}

#[test]
fn addresses_and_neighbours_are_followed() {
    run_test("io::link::tests::addresses_and_neighbours_are_followed", || {
        let (a, b) = cable();
        let mut watcher = a.run(|| LinkWatcher::open("a0").unwrap()).unwrap();
        a.add_address("a0", A2, 24).unwrap();
        let added = next(&mut watcher, |event| match event {
            LinkEvent::AddressAdded(a) if a.address == A2 => Some(*a),
            _ => None,
        });
        assert!(added.is_usable && added.is_global && !added.is_secondary);
        a.remove_address("a0", A, 24).unwrap();
        next(&mut watcher, |event| match event {
            LinkEvent::AddressRemoved(a) if a.address == A => Some(()),
            _ => None,
        });
        assert_eq!(watcher.state().gid_address(), Some(A2));
        a.add_address("a0", A, 24).unwrap();

        let socket = a.run(|| std::net::UdpSocket::bind((A, 0)).unwrap()).unwrap();
        let _port = b.run(|| std::net::UdpSocket::bind((B, 4791)).unwrap()).unwrap();
        socket.send_to(b"who has", (B, 4791)).unwrap();
        let mac = next(&mut watcher, |event| match event {
            LinkEvent::NeighbourReachable(B, mac) => Some(mac.clone()),
            _ => None,
        });
        assert_eq!(mac, b.run(|| LinkWatcher::open("b0").unwrap().state().mac.clone()).unwrap());
    });
}

#[test]
fn lost_events_are_made_up_for() {
    run_test("io::link::tests::lost_events_are_made_up_for", || {
        let (a, _b) = cable();
        let mut watcher = a.run(|| LinkWatcher::open("a0").unwrap()).unwrap();
        a.run(|| {
            a.set_mtu("a0", 1400).unwrap();
            // As after ENOBUFS, which takes hundreds of events to provoke.
            watcher.resynchronise().unwrap();
        })
        .unwrap();
        expect(&mut watcher, &LinkEvent::Mtu(1400));
        assert_eq!(watcher.state().mtu, 1400);
    });
}

#[test]
fn an_unknown_interface_is_named() {
    let error = LinkWatcher::open("nosuchlink0").err().unwrap();
    assert!(matches!(&error, LinkError::Unknown { name } if name == "nosuchlink0"), "{error}");
}

#[test]
fn the_gid_is_the_first_primary_ipv4_else_ipv6() {
    let address = |text: &str| LinkAddress {
        address: text.parse().unwrap(),
        prefix: 24,
        is_usable: true,
        is_global: true,
        is_secondary: false,
    };
    let with = |addresses: &[LinkAddress]| LinkState { addresses: addresses.to_vec(), ..LinkState::default() };
    let (v4, v6) = (address("198.18.0.1"), address("2001:2::1"));
    let link_local = LinkAddress { is_global: false, ..address("fe80::1") };
    let secondary = LinkAddress { is_secondary: true, ..address("198.18.0.9") };
    let tentative = LinkAddress { is_usable: false, ..address("2001:2::2") };
    assert_eq!(with(&[link_local, v6, secondary, v4]).gid_address(), Some(v4.address));
    assert_eq!(with(&[secondary, link_local, tentative, v6]).gid_address(), Some(v6.address));
    assert_eq!(with(&[secondary, link_local, tentative]).gid_address(), None);
}
