//! The ports with real sockets, over cables that the tests lay themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod middleware;
mod ports;

use core::net::IpAddr;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::namespace::{End, Namespace, run_test};
use super::{Backend, Driver, Port, PortError, PortSettings, SocketPort, open};
use crate::transport::{AddressVector, Burst, BurstLimits, IpIdRule};
use crate::wire::icrc::{Icrc, Verdict, verify};
use crate::wire::{Bth, Datagram, HeaderBuf, IpHeader, Opcode, Psn, Qpn, UDP_LEN};

/// What arrives is there in microseconds; what fails to arrive ends the test after this.
const PATIENCE_MS: u16 = 5_000;
const LANE: u16 = 0xc123;
const MTU: u32 = 4200;
/// RC SEND Middle: no extension headers.
const SEND_MIDDLE: u8 = 1;

const BACKENDS: [Backend; 2] = [Backend::Packet, Backend::Udp];
const DRIVERS: [Driver; 2] = [Driver::Syscalls, Driver::IoUring];

/// Two namespaces and a cable; the same addresses in every test.
struct Cable {
    a: Namespace,
    b: Namespace,
}

const A4: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 18, 0, 1));
const B4: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(198, 18, 0, 2));
const A6: IpAddr = IpAddr::V6(core::net::Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1));
const B6: IpAddr = IpAddr::V6(core::net::Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2));

impl Cable {
    fn lay() -> Self {
        let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        Namespace::connect(
            End { namespace: &a, name: "a0", addresses: &[(A4, 24), (A6, 64)] },
            End { namespace: &b, name: "b0", addresses: &[(B4, 24), (B6, 64)] },
            MTU,
        )
        .unwrap();
        Self { a, b }
    }

    fn open_a(&self, settings: PortSettings) -> Result<SocketPort, PortError> {
        let settings = PortSettings { interface: Some("a0".into()), addresses: vec![A4, A6], ..settings };
        self.a.run(|| open(&settings)).unwrap()
    }

    fn open_b(&self, settings: PortSettings) -> Result<SocketPort, PortError> {
        let settings = PortSettings { interface: Some("b0".into()), addresses: vec![B4, B6], ..settings };
        self.b.run(|| open(&settings)).unwrap()
    }

    /// Sends from A's namespace: lanes are opened where the caller is.
    fn send(&self, port: &mut dyn Port, bursts: &[Burst]) {
        self.a.run(|| send_all(port, bursts)).unwrap();
    }
}

fn settings(backend: Backend, driver: Driver) -> PortSettings {
    PortSettings { backend: Some(backend), driver: Some(driver), ..PortSettings::default() }
}

fn flow(source: IpAddr, destination: IpAddr) -> AddressVector {
    AddressVector { source, destination, source_port: LANE, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

/// A UD-less SEND of `payload` bytes to `qpn`, whose ICRC fits the IPv4 identification `id`.
fn packet(flow: &AddressVector, qpn: u32, psn: u32, payload: usize, id: u16) -> Vec<u8> {
    let headers = HeaderBuf::new(&Bth::new(Opcode::from_byte(SEND_MIDDLE), Qpn::new(qpn), Psn::new(psn)));
    let mut bytes = headers.as_bytes().to_vec();
    bytes.extend((0..payload).map(|i| (i as u32 * 7 + psn) as u8));
    let mut ip = IpHeader::new(flow.source, flow.destination).unwrap();
    if let IpHeader::V4(ip) = &mut ip {
        ip.id = Some(id);
    }
    let udp_len = (bytes.len() + 4 + UDP_LEN) as u16;
    let icrc = Icrc::start(&ip, flow.source_port, udp_len, &bytes).finish();
    bytes.extend(icrc.to_le_bytes());
    bytes
}

/// A burst of packets with PSNs from 0, for QP 0x10; the last is `last` payload bytes long.
fn burst(limits: BurstLimits, flow: &AddressVector, packets: u32, payload: usize, last: usize) -> Burst {
    let mut burst = Burst::new(limits);
    for psn in 0..packets {
        let payload = if psn + 1 == packets { last } else { payload };
        let id = if limits.ip_id == IpIdRule::CountsFromZero { psn as u16 } else { 0 };
        assert!(burst.push_raw(flow, &packet(flow, 0x10, psn, payload, id)));
    }
    burst
}

fn send_all(port: &mut dyn Port, bursts: &[Burst]) {
    let mut taken = 0;
    while taken < bursts.len() {
        taken += port.send(&bursts[taken..]).unwrap();
        if let Some(fd) = port.blocked_on() {
            assert!(wait(fd, PollFlags::POLLOUT));
        }
    }
}

/// Waits for `fd`; io_uring's work may interrupt that.
fn wait(fd: BorrowedFd<'_>, events: PollFlags) -> bool {
    loop {
        match poll(&mut [PollFd::new(fd, events)], PollTimeout::from(PATIENCE_MS)) {
            Err(Errno::EINTR) => {}
            other => break other.unwrap() > 0,
        }
    }
}

/// A received packet, owned.
#[derive(Debug)]
struct Received {
    ip: IpHeader,
    source_port: u16,
    bytes: Vec<u8>,
    verdict: Verdict,
}

fn receive(port: &mut dyn Port, count: usize) -> Vec<Received> {
    let mut received = Vec::new();
    while received.len() < count {
        assert!(
            wait(port.readable(), PollFlags::POLLIN),
            "{} of {count} packets came: {:?}",
            received.len(),
            port.counters()
        );
        received.extend(receive_now(port));
    }
    received
}

fn receive_now(port: &mut dyn Port) -> Vec<Received> {
    let mut received = Vec::new();
    port.receive(64, &mut |d| {
        let Datagram { ip, source_port, bytes } = *d;
        received.push(Received { ip, source_port, bytes: bytes.to_vec(), verdict: verify(d, 0) });
    })
    .unwrap();
    received
}

fn is_empty(port: &mut dyn Port) -> bool {
    port.receive(64, &mut |_| {}).unwrap() == 0
}

fn every_kind(test: &str, body: impl Fn(Backend, Driver)) {
    run_test(&format!("io::tests::{test}"), || {
        for driver in DRIVERS {
            if let (Driver::IoUring, Some(reason)) = (driver, super::uring::obstacle()) {
                println!("skipped: {driver}: {reason}");
                continue;
            }
            for backend in BACKENDS {
                println!("{backend} by {driver}");
                body(backend, driver);
            }
        }
    });
}
