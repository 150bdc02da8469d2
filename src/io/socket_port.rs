//! The port over sockets: both backends, whatever drives them.

use core::net::IpAddr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::arrival::{self, Drop, LinkHeader};
use super::mailbox::{Mailbox, Message};
use super::open::{PortSettings, kernel};
use super::packet;
use super::port::{Backend, Capabilities, Driver, Port, PortCounters, PortError, Refusal};
use super::sender::Sender;
use super::sockopt;
use super::udp::{self, UdpSocket};
use super::uring::RingInbox;
use crate::transport::{Burst, IpIdRule};
use crate::wire::Datagram;

/// A port over `AF_PACKET` and UDP sockets, or UDP sockets alone. Made by [`open`](super::open).
pub struct SocketPort {
    capabilities: Capabilities,
    counters: PortCounters,
    settings: PortSettings,
    interface: u32,
    receivers: Vec<Receiver>,
    /// Which receiver is asked first next time.
    turn: usize,
    holders: Vec<(OwnedFd, IpAddr)>,
    sender: Sender,
    readable: Epoll,
    /// Since 6.10 GRO coalesces only what has equal or counting identifications.
    ids_count_up: bool,
}

/// One socket that receives.
pub(super) struct Receiver {
    pub(super) socket: OwnedFd,
    pub(super) inbox: Inbox,
    pub(super) source: Source,
    /// Drops of the socket, as the kernel counted them when last asked.
    pub(super) kernel_drops: u32,
}

/// How messages are taken from a socket.
pub(super) enum Inbox {
    Syscalls(Mailbox),
    IoUring(RingInbox),
}

/// What a receiver's messages are.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Frames { link: LinkHeader, has_vnet: bool },
    Datagrams { local: IpAddr },
}

impl Receiver {
    pub(super) fn new(socket: OwnedFd, inbox: Inbox, source: Source) -> Self {
        Self { socket, inbox, source, kernel_drops: 0 }
    }

    /// Makes `epoll` readable when there is something to receive.
    fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        let fd = match &self.inbox {
            Inbox::Syscalls(_) => self.socket.as_fd(),
            Inbox::IoUring(ring) => ring.as_fd(),
        };
        Ok(epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Shows the datagrams of the next message; `None` when there is none.
    fn receive_one(
        &mut self,
        addresses: &[IpAddr],
        ids_count_up: bool,
        counters: &mut PortCounters,
        sink: &mut dyn FnMut(&Datagram<'_>),
    ) -> io::Result<Option<usize>> {
        let Some(message) = self.inbox.next(self.socket.as_fd())? else { return Ok(None) };
        let arrival = match self.source {
            Source::Frames { link, has_vnet } => arrival::of_frame(&message, link, has_vnet, addresses),
            Source::Datagrams { local } => arrival::of_datagram(&message, local),
        };
        let shown = match arrival {
            Ok(arrival) => {
                counters.receives += 1;
                counters.received_bytes += arrival.payload.len() as u64;
                arrival::split(&arrival, ids_count_up, sink)
            }
            Err(drop) => {
                Drop::count(drop, counters);
                0
            }
        };
        counters.received_packets += shown as u64;
        Ok(Some(shown))
    }

    /// Drops since the last time, of packets or super-packets for which the receive buffer had no room.
    fn take_kernel_drops(&mut self) -> u32 {
        // `SO_MEMINFO` (Linux 4.12) gives nine words, the last of which counts drops.
        const SO_MEMINFO: i32 = 55;
        let Ok([.., drops]) = sockopt::get_words::<9>(&self.socket, libc::SOL_SOCKET, SO_MEMINFO) else { return 0 };
        drops.wrapping_sub(core::mem::replace(&mut self.kernel_drops, drops))
    }
}

impl Inbox {
    pub(super) fn new(driver: Driver, batch: usize) -> io::Result<Self> {
        Ok(match driver {
            Driver::Syscalls => Self::Syscalls(Mailbox::new(batch)),
            Driver::IoUring => Self::IoUring(RingInbox::new(batch)?),
        })
    }

    fn next(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<Message<'_>>> {
        match self {
            Self::Syscalls(mailbox) => mailbox.next(socket),
            Self::IoUring(ring) => ring.next(socket),
        }
    }
}

impl SocketPort {
    pub(super) fn new(
        capabilities: Capabilities,
        settings: &PortSettings,
        interface: u32,
        receivers: Vec<Receiver>,
        holders: Vec<(OwnedFd, IpAddr)>,
        sender: Sender,
    ) -> io::Result<Self> {
        let readable = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for receiver in &receivers {
            receiver.watch(&readable)?;
        }
        Ok(Self {
            capabilities,
            counters: PortCounters::default(),
            settings: settings.clone(),
            interface,
            receivers,
            turn: 0,
            holders,
            sender,
            readable,
            ids_count_up: kernel() >= (6, 10),
        })
    }

    /// Super-packets are over: the kernel, or the device that the route leads to, refuses them.
    fn stop_segmenting(&mut self, errno: i32) {
        let burst = &mut self.capabilities.burst;
        (burst.max_packets, burst.ip_id) = (1, IpIdRule::AlwaysZero);
        let error = io::Error::from_raw_os_error(errno);
        self.capabilities
            .notes
            .push(format!("single packets from now on: the kernel refused a super-packet ({error})"));
    }
}

/// Errors that say something of the link, not of the socket: it goes on receiving when the link is back.
fn is_of_the_link(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ECONNREFUSED))
}

impl Port for SocketPort {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> Result<usize, PortError> {
        let count = self.receivers.len();
        let (mut shown, mut idle) = (0, 0);
        while shown < budget && idle < count {
            self.turn = (self.turn + 1) % count;
            let Some(receiver) = self.receivers.get_mut(self.turn) else { break };
            match receiver.receive_one(&self.settings.addresses, self.ids_count_up, &mut self.counters, sink) {
                Ok(Some(more)) => (shown, idle) = (shown + more, 0),
                Ok(None) => idle += 1,
                Err(error) if is_of_the_link(&error) => idle += 1,
                Err(source) => return Err(PortError::System { what: "receive", source }),
            }
        }
        Ok(shown)
    }

    fn send(&mut self, bursts: &[Burst]) -> Result<usize, PortError> {
        let taken = self.sender.send(bursts, &mut self.counters);
        if let Some(errno) = self.sender.take_segmentation_failure() {
            self.stop_segmenting(errno);
        }
        Ok(taken)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.readable.0.as_fd()
    }

    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        self.sender.blocked_on()
    }

    fn poll_refusal(&mut self) -> Option<Refusal> {
        self.sender.poll_refusal()
    }

    fn counters(&mut self) -> PortCounters {
        for receiver in &mut self.receivers {
            self.counters.kernel_dropped += u64::from(receiver.take_kernel_drops());
        }
        self.counters
    }

    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), PortError> {
        if addresses.is_empty() {
            return Err(PortError::NoAddress);
        }
        match self.capabilities.backend {
            Backend::Packet => self.refilter(addresses)?,
            Backend::Udp => self.rebind(addresses)?,
        }
        self.settings.addresses = addresses.to_vec();
        Ok(())
    }
}

impl SocketPort {
    /// Backend `packet`: another filter, and the RoCE port of the new addresses held instead of the old.
    fn refilter(&mut self, addresses: &[IpAddr]) -> Result<(), PortError> {
        if self.settings.worker.index() == 0 {
            let kept = |(_, address): &(OwnedFd, IpAddr)| addresses.contains(address);
            self.holders.retain(kept);
            for address in addresses {
                if !self.holders.iter().any(|(_, held)| held == address) {
                    self.holders.push((udp::hold(*address, self.interface)?, *address));
                }
            }
        }
        for receiver in &self.receivers {
            packet::set_addresses(&receiver.socket, addresses, self.settings.worker)
                .map_err(PortError::system("filter the AF_PACKET socket"))?;
        }
        Ok(())
    }

    /// Backend `udp`: sockets for the new addresses, none for the old.
    fn rebind(&mut self, addresses: &[IpAddr]) -> Result<(), PortError> {
        self.receivers.retain(|receiver| match receiver.source {
            Source::Datagrams { local } => addresses.contains(&local),
            Source::Frames { .. } => true,
        });
        for address in addresses {
            let bound = |r: &Receiver| matches!(r.source, Source::Datagrams { local } if local == *address);
            if self.receivers.iter().any(bound) {
                continue;
            }
            let PortSettings { worker, receive_buffer_bytes, batch, .. } = self.settings;
            let socket = UdpSocket::open(*address, self.interface, worker, receive_buffer_bytes)?.socket;
            let inbox = Inbox::new(self.capabilities.driver, batch).map_err(PortError::system("make a ring"))?;
            let receiver = Receiver::new(socket, inbox, Source::Datagrams { local: *address });
            receiver.watch(&self.readable).map_err(PortError::system("watch a socket"))?;
            self.receivers.push(receiver);
        }
        Ok(())
    }
}
