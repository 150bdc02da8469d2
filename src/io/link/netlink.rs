//! One routing netlink socket: requests with their answers, and events.
//!
//! Synchronous on purpose: the watcher is one fd in whoever's epoll, the namespace helpers run before any runtime exists.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Larger than any message that the kernel sends (a link with all its statistics is about 2 KiB; dumps come in 32 KiB pages).
const BUFFER_BYTES: usize = 64 << 10;

/// Multicast groups: what a socket is told of unasked.
pub(crate) const RTNLGRP_LINK: u32 = 1;
pub(crate) const RTNLGRP_NEIGH: u32 = 3;
pub(crate) const RTNLGRP_IPV4_IFADDR: u32 = 5;
pub(crate) const RTNLGRP_IPV6_IFADDR: u32 = 9;

#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// A socket in the network namespace of the calling thread, member of the multicast `groups`.
    pub(crate) fn open(groups: &[u32]) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        for group in groups {
            socket.add_membership(*group)?;
        }
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        self.socket.set_non_blocking(true)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks the kernel to do `request` and waits for its acknowledgement.
    pub(crate) fn execute(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.send(request, NLM_F_ACK)?;
        self.answers(|_| ())
    }

    /// Like [`Self::execute`], for an object that must not exist yet.
    pub(crate) fn create(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.send(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)?;
        self.answers(|_| ())
    }

    /// Asks for all objects of a kind.
    pub(crate) fn dump(&mut self, request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(request, NLM_F_DUMP)?;
        let mut found = Vec::new();
        self.answers(|message| found.push(message))?;
        Ok(found)
    }

    /// Reads what has come without being asked for. `WouldBlock` where nothing has; `ENOBUFS` where events were lost.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        self.page()?;
        for message in messages(&self.buffer) {
            if let NetlinkPayload::InnerMessage(inner) = message.payload {
                each(inner);
            }
        }
        Ok(())
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Reads until the acknowledgement or the end of the dump.
    fn answers(&mut self, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        loop {
            self.page()?;
            for message in messages(&self.buffer) {
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => each(inner),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    fn page(&mut self) -> io::Result<()> {
        self.buffer.clear();
        self.socket.recv(&mut self.buffer, 0).map(drop)
    }
}

/// The messages of one page. One that this crate cannot read (of a newer kernel) is left out.
fn messages(mut page: &[u8]) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> {
    core::iter::from_fn(move || {
        // A netlink header is 16 bytes and starts with the length of the message; messages are aligned to 4 bytes.
        let length = page.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes) as usize)?;
        let message = page.get(..length).filter(|message| message.len() >= 16)?;
        page = page.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage::deserialize(message))
    })
    .flatten()
}
