//! Every frame that arrives at an interface, and any frame out of it: for who stands in for a network, see
//! [`fabric`](crate::fabric).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::uio::writev;
use socket2::{Domain, Protocol, Socket, Type};

use super::arrival::control_messages;
use super::mailbox::{Mailbox, Message};
use super::packet;
use super::sockopt::{self, Direction};

/// Bytes of `struct virtio_net_hdr`, in the host's byte order: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
pub const VNET_HEADER_BYTES: usize = 10;

/// Frames a call, and the kernel's buffers.
const BATCH: usize = 32;
const BUFFER_BYTES: usize = 64 << 20;
/// Offset of the EtherType, where a VLAN tag belongs.
const TAG_AT: usize = 12;
/// `TP_STATUS_VLAN_VALID` of `struct tpacket_auxdata`: the kernel keeps the frame's VLAN tag aside.
const HAS_TAG: u32 = 1 << 4;

/// `struct packet_mreq` (packet(7)).
#[repr(C)]
#[derive(Clone, Copy)]
struct Membership {
    interface: i32,
    kind: u16,
    address_bytes: u16,
    address: [u8; 8],
}

/// A packet socket on one interface that sees all that arrives there, super-packets whole, VLAN tags in place.
///
/// The network stack of its namespace sees the frames as well: give the interface no addresses.
pub struct Tap {
    socket: OwnedFd,
    mailbox: Mailbox,
    missed: u64,
}

impl Tap {
    /// Opens it in the calling thread's network namespace. Wants `CAP_NET_RAW`.
    pub fn open(interface: &str) -> io::Result<Self> {
        let index = nix::net::if_::if_nametoindex(interface)?;
        // Protocol 0: nothing arrives before all is set and the socket is bound.
        let socket = Socket::new_raw(Domain::PACKET, Type::RAW.nonblocking(), Some(Protocol::from(0)))?;
        for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA] {
            sockopt::set_int(&socket, libc::SOL_PACKET, option, 1)?;
        }
        for direction in [Direction::Receive, Direction::Send] {
            sockopt::set_buffer(&socket, direction, BUFFER_BYTES)?;
        }
        packet::bind(&socket, index)?;
        let promiscuous = Membership {
            interface: index as i32,
            kind: libc::PACKET_MR_PROMISC as u16,
            address_bytes: 0,
            address: [0; 8],
        };
        sockopt::set(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous)?;
        Ok(Self { socket: socket.into(), mailbox: Mailbox::new(BATCH), missed: 0 })
    }

    /// Becomes readable when a frame arrives.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Shows at most `budget` frames that have arrived, each with its vnet header; gives back how many there were.
    pub fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut([u8; VNET_HEADER_BYTES], Vec<u8>),
    ) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            let Some(message) = self.mailbox.next(self.socket.as_fd())? else { break };
            count += 1;
            match whole(&message) {
                Some((vnet, frame)) => sink(vnet, frame),
                None => self.missed += 1,
            }
        }
        Ok(count)
    }

    /// Sends a frame. `WouldBlock` when the kernel has no room, `EMSGSIZE` when it is longer than the interface's MTU allows.
    pub fn send(&self, vnet: &[u8; VNET_HEADER_BYTES], frame: &[u8]) -> io::Result<()> {
        writev(&self.socket, &[IoSlice::new(vnet), IoSlice::new(frame)])?;
        Ok(())
    }

    /// Frames that arrived, but which the kernel had no room for or which were longer than any buffer.
    pub fn missed(&mut self) -> u64 {
        // The kernel's numbers, of frames and of those dropped, begin anew with each question.
        if let Ok([_, dropped]) = sockopt::get_words::<2>(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS) {
            self.missed += u64::from(dropped);
        }
        self.missed
    }
}

/// The vnet header and the frame of a message, its VLAN tag back in its place; `None` if it is cut short.
fn whole(message: &Message<'_>) -> Option<([u8; VNET_HEADER_BYTES], Vec<u8>)> {
    if message.is_truncated {
        return None;
    }
    let (vnet, frame) = message.bytes.split_first_chunk::<VNET_HEADER_BYTES>()?;
    let is_aux = |&(level, kind, _): &(i32, i32, _)| level == libc::SOL_PACKET && kind == libc::PACKET_AUXDATA;
    let aux = control_messages(message.control).find(is_aux).map(|(_, _, data)| data);
    let (Some(tag), Some((addresses, rest))) = (aux.and_then(vlan_tag), frame.split_at_checked(TAG_AT)) else {
        return Some((*vnet, frame.to_vec()));
    };
    Some((moved(*vnet, tag.len() as u16), [addresses, &tag, rest].concat()))
}

/// The tag that the kernel keeps aside, of `struct tpacket_auxdata`: status, two lengths, two offsets, TCI, TPID.
fn vlan_tag(aux: &[u8]) -> Option<[u8; 4]> {
    let half = |at: usize| aux.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b));
    let status = u32::from_ne_bytes(*aux.first_chunk()?);
    let [[a, b], [c, d]] = [half(18)?, half(16)?].map(u16::to_be_bytes);
    (status & HAS_TAG != 0).then_some([a, b, c, d])
}

/// A vnet header whose offsets lie so many bytes further on.
fn moved(mut vnet: [u8; VNET_HEADER_BYTES], by: u16) -> [u8; VNET_HEADER_BYTES] {
    let needs_checksum = vnet[0] & 1 != 0;
    for (at, is_offset) in [(2, vnet[1] != 0), (6, needs_checksum)] {
        if let Some(field) = vnet.get_mut(at..).and_then(|b| b.first_chunk_mut())
            && is_offset
        {
            *field = u16::from_ne_bytes(*field).saturating_add(by).to_ne_bytes();
        }
    }
    vnet
}
