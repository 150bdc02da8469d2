//! Backend `packet`: receives every frame's IP header by `AF_PACKET`, coalesced packets whole.

use core::mem;
use core::net::IpAddr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::arrival::LinkHeader;
use super::bpf;
use super::sockopt::{self, Direction};
use crate::engine::Worker;

/// Hardware types whose frames begin with an Ethernet header.
const ETHERNET_LIKE: [u16; 2] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK];

/// An `AF_PACKET` socket that sees RoCE packets for us.
pub(super) struct PacketSocket {
    pub(super) socket: OwnedFd,
    pub(super) link: LinkHeader,
    pub(super) has_vnet: bool,
    pub(super) buffer_bytes: usize,
}

impl PacketSocket {
    /// Opens it on the interface with this index. `wants_vnet`: see super-packets whole, where this kernel can.
    pub(super) fn open(
        interface: u32,
        addresses: &[IpAddr],
        worker: Worker,
        wants_vnet: bool,
        buffer_bytes: usize,
    ) -> io::Result<Self> {
        // Protocol 0: nothing arrives before the filter is in place and the socket is bound.
        let socket = Socket::new_raw(Domain::PACKET, Type::RAW.nonblocking(), Some(Protocol::from(0)))?;
        bpf::attach(&socket, libc::SO_ATTACH_FILTER, &mut bpf::packet_filter(addresses, worker))?;
        // Spares the kernel a clone of each packet that we send (Linux 4.20); without it the filter drops the clones.
        let _ = sockopt::set_int(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        let has_vnet = wants_vnet && sockopt::set_int(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1).is_ok();
        let buffer_bytes = sockopt::set_buffer(&socket, Direction::Receive, buffer_bytes)?;
        bind(&socket, interface)?;
        let link =
            if ETHERNET_LIKE.contains(&hardware_type(&socket)?) { LinkHeader::Ethernet } else { LinkHeader::None };
        Ok(Self { socket: socket.into(), link, has_vnet, buffer_bytes })
    }
}

/// Replaces the filter of an open socket; no packet slips through meanwhile.
pub(super) fn set_addresses(socket: &OwnedFd, addresses: &[IpAddr], worker: Worker) -> io::Result<()> {
    bpf::attach(socket, libc::SO_ATTACH_FILTER, &mut bpf::packet_filter(addresses, worker))
}

fn link_address(interface: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as _,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

pub(super) fn bind(socket: &Socket, interface: u32) -> io::Result<()> {
    let address = link_address(interface);
    // SAFETY: pointer and length describe `address`, which the kernel only reads.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            core::ptr::from_ref(&address).cast(),
            mem::size_of_val(&address) as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn hardware_type(socket: &Socket) -> io::Result<u16> {
    let mut address = link_address(0);
    let mut length = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, for which all bit patterns are values.
    let result =
        unsafe { libc::getsockname(socket.as_raw_fd(), core::ptr::from_mut(&mut address).cast(), &raw mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(address.sll_hatype) }
}
