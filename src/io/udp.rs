//! The UDP sockets bound to the RoCE port: backend `udp` receives by them, backend `packet` only holds the port.

use core::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::io;
use std::os::fd::OwnedFd;

use socket2::{Domain, SockAddr, Socket, Type};

use super::bpf;
use super::port::PortError;
use super::sockopt::{self, Direction};
use crate::engine::Worker;
use crate::wire::ROCE_PORT;

/// Holds the RoCE port of `address` and drops what comes: without it the kernel would answer each packet with an ICMP
/// "port unreachable". It asks for coalesced packets, so that the kernel does not cut super-packets up just to drop them.
pub(super) fn hold(address: IpAddr, interface: u32) -> Result<OwnedFd, PortError> {
    let socket = open(address).map_err(PortError::system("open a UDP socket"))?;
    bpf::attach(&socket, libc::SO_ATTACH_FILTER, &mut bpf::drop_all())
        .map_err(PortError::system("filter the socket that holds UDP port 4791"))?;
    // Before Linux 5.0 there is no UDP_GRO, and no GRO of UDP either.
    let _ = sockopt::set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    bind(&socket, address, interface)?;
    Ok(socket.into())
}

/// A socket that receives.
pub(super) struct UdpSocket {
    pub(super) socket: OwnedFd,
    pub(super) coalesces: bool,
    pub(super) buffer_bytes: usize,
}

impl UdpSocket {
    /// Opens it for one worker. The workers of one daemon open theirs in order: the kernel numbers them so.
    pub(super) fn open(
        address: IpAddr,
        interface: u32,
        worker: Worker,
        buffer_bytes: usize,
    ) -> Result<Self, PortError> {
        if worker.count() > 1 && worker.index() == 0 {
            // The shared bind below would also join another daemon's group: this one fails then.
            let alone = open(address).map_err(PortError::system("open a UDP socket"))?;
            bind(&alone, address, interface)?;
        }
        let socket = open(address).map_err(PortError::system("open a UDP socket"))?;
        let set = |level, name| sockopt::set_int(&socket, level, name, 1);
        let wanted = match address {
            IpAddr::V4(_) => [(libc::IPPROTO_IP, libc::IP_RECVTOS), (libc::IPPROTO_IP, libc::IP_RECVTTL)],
            IpAddr::V6(_) => {
                [(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS), (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)]
            }
        };
        for (level, name) in wanted {
            set(level, name).map_err(PortError::system("see the TOS and TTL of received packets"))?;
        }
        if address.is_ipv6() {
            // rxe and NICs send checksum 0 over IPv6 too (the ICRC covers more); the kernel would drop that.
            set(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX).map_err(PortError::system("accept UDP checksum 0 over IPv6"))?;
        }
        let coalesces = set(libc::SOL_UDP, libc::UDP_GRO).is_ok();
        let buffer_bytes = sockopt::set_buffer(&socket, Direction::Receive, buffer_bytes)
            .map_err(PortError::system("size the receive buffer"))?;
        if worker.count() > 1 {
            socket.set_reuse_port(true).map_err(PortError::system("share UDP port 4791 between workers"))?;
            bind(&socket, address, interface)?;
            let mut program = bpf::reuseport_program(worker);
            bpf::attach(&socket, libc::SO_ATTACH_REUSEPORT_CBPF, &mut program)
                .map_err(PortError::system("steer packets to workers"))?;
        } else {
            bind(&socket, address, interface)?;
        }
        Ok(Self { socket: socket.into(), coalesces, buffer_bytes })
    }
}

fn open(address: IpAddr) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(SocketAddr::new(address, ROCE_PORT)), Type::DGRAM.nonblocking(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

fn bind(socket: &Socket, address: IpAddr, interface: u32) -> Result<(), PortError> {
    let bound = match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => SocketAddrV6::new(v6, ROCE_PORT, 0, interface).into(),
        _ => SocketAddr::new(address, ROCE_PORT),
    };
    socket.bind(&SockAddr::from(bound)).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => PortError::PortTaken { address },
        Some(libc::EADDRNOTAVAIL) => PortError::NotOurAddress { address },
        _ => PortError::System { what: "bind UDP port 4791", source },
    })
}

/// Whether the kernel knows segmentation offload for UDP (Linux 4.18).
pub(super) fn probe_segmentation() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    sockopt::set_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1024)
}
