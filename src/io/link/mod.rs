//! The link that a port hangs on, followed by rtnetlink: state, MTU, addresses, neighbours, as plain values.
//!
//! # Which address is the device's GID
//!
//! A RoCE device shows exactly one RoCEv2 GID, at index 0: see [`LinkState::gid_address`].

pub(crate) mod netlink;

use core::net::IpAddr;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState as KernelNeighbourState,
};

use netlink::{Netlink, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_LINK, RTNLGRP_NEIGH};

/// An interface as the kernel has it now.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LinkState {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Whether it is administratively up.
    pub is_up: bool,
    /// Whether there is light (or a peer) at the other end.
    pub has_carrier: bool,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Link-layer address; empty where there is none.
    pub mac: Vec<u8>,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<LinkAddress>,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of its prefix in bits.
    pub prefix: u8,
    /// Whether packets may come from it now: not tentative (duplicate address detection runs), failed or deprecated.
    pub is_usable: bool,
    /// Whether it is valid beyond the link (not link-local, not host-local).
    pub is_global: bool,
    /// Whether it is one of several in its subnet and not the first (IPv4), or temporary (IPv6, RFC 8981).
    pub is_secondary: bool,
}

impl LinkState {
    /// Whether packets can leave and arrive.
    pub const fn is_running(&self) -> bool {
        self.is_up && self.has_carrier
    }

    /// The address that becomes the device's GID if the settings name none: of those usable, global and not secondary, the
    /// first of IPv4, or else the first of IPv6. Link-local addresses never are: they lead nowhere beyond the link.
    pub fn gid_address(&self) -> Option<IpAddr> {
        let is_candidate = |a: &&LinkAddress| a.is_usable && a.is_global && !a.is_secondary;
        let candidates = || self.addresses.iter().filter(is_candidate).map(|a| a.address);
        candidates().find(IpAddr::is_ipv4).or_else(|| candidates().next())
    }

    /// Addresses that packets may be for: all usable and global ones.
    pub fn usable_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter(|a| a.is_usable && a.is_global).map(|a| a.address)
    }
}

/// Something that happened to the link.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LinkEvent {
    /// It went up, administratively and with carrier.
    Up,
    /// It went down, or lost its carrier.
    Down,
    /// Its MTU is now this.
    Mtu(u32),
    /// It was renamed.
    Renamed(String),
    /// The address came, or became usable.
    AddressAdded(LinkAddress),
    /// The address went, or became unusable.
    AddressRemoved(LinkAddress),
    /// The neighbour can be reached (again), at this link-layer address.
    NeighbourReachable(IpAddr, Vec<u8>),
    /// The neighbour does not answer, or was forgotten.
    NeighbourLost(IpAddr),
    /// The interface is gone; a new one of the same name is another interface.
    Gone,
}

/// Why a link cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no such interface.
    #[error("there is no interface {name}; `ip link` lists those there are")]
    Unknown {
        /// The name given.
        name: String,
    },
    /// Netlink failed.
    #[error("cannot watch interface {name}: {source}")]
    Netlink {
        /// The name given.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Follows one interface. Sans-thread: whoever owns it puts [`LinkWatcher::as_fd`] into an epoll and asks for events.
#[derive(Debug)]
pub struct LinkWatcher {
    events: Netlink,
    state: LinkState,
    pending: VecDeque<LinkEvent>,
    is_gone: bool,
}

impl LinkWatcher {
    /// Begins to watch, in the network namespace of the calling thread.
    pub fn open(name: &str) -> Result<Self, LinkError> {
        let error = |source| LinkError::Netlink { name: name.to_owned(), source };
        let index = nix::net::if_::if_nametoindex(name).map_err(|_| LinkError::Unknown { name: name.to_owned() })?;
        let groups = [RTNLGRP_LINK, RTNLGRP_NEIGH, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];
        // Events first: what changes while the state is read comes twice rather than never.
        let events = Netlink::open(&groups).map_err(error)?;
        events.set_nonblocking().map_err(error)?;
        let state = read(index).map_err(error)?.ok_or_else(|| LinkError::Unknown { name: name.to_owned() })?;
        Ok(Self { events, state, pending: VecDeque::new(), is_gone: false })
    }

    /// The state after all events given out so far, and those that wait to be.
    pub fn state(&self) -> &LinkState {
        &self.state
    }

    /// Readable when [`LinkWatcher::poll_event`] may have something.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// The next event, if there is one. Never blocks.
    pub fn poll_event(&mut self) -> Result<Option<LinkEvent>, LinkError> {
        while self.pending.is_empty() && !self.is_gone {
            match self.read_events() {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Events were lost. The state is read anew and compared; only neighbours' changes are then missed.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => self.resynchronise()?,
                Err(source) => return Err(LinkError::Netlink { name: self.state.name.clone(), source }),
            }
        }
        Ok(self.pending.pop_front())
    }

    fn read_events(&mut self) -> io::Result<()> {
        let Self { events, state, pending, is_gone } = self;
        let index = state.index;
        events.receive(|message| match message {
            RouteNetlinkMessage::NewLink(link) if link.header.index == index => {
                let mut next = state.clone();
                update(&mut next, &link);
                compare(state, next, pending);
            }
            // A bridge reports the end of a membership as the end of a link, too.
            RouteNetlinkMessage::DelLink(link) if link.header.index == index && !is_of_a_bridge(&link) => {
                *is_gone = true;
                compare(state, LinkState { is_up: false, has_carrier: false, ..state.clone() }, pending);
                pending.push_back(LinkEvent::Gone);
            }
            RouteNetlinkMessage::NewAddress(message) if message.header.index == index => {
                let mut next = state.clone();
                if let Some(address) = link_address(&message) {
                    match next.addresses.iter_mut().find(|a| a.is_same(&address)) {
                        Some(known) => *known = address,
                        None => next.addresses.push(address),
                    }
                }
                compare(state, next, pending);
            }
            RouteNetlinkMessage::DelAddress(message) if message.header.index == index => {
                let mut next = state.clone();
                if let Some(address) = link_address(&message) {
                    next.addresses.retain(|a| !a.is_same(&address));
                }
                compare(state, next, pending);
            }
            RouteNetlinkMessage::NewNeighbour(message) if message.header.ifindex == index => {
                pending.extend(neighbour_event(&message));
            }
            RouteNetlinkMessage::DelNeighbour(message) if message.header.ifindex == index => {
                pending.extend(neighbour_address(&message).map(LinkEvent::NeighbourLost));
            }
            _ => {}
        })
    }

    fn resynchronise(&mut self) -> Result<(), LinkError> {
        let read =
            read(self.state.index).map_err(|source| LinkError::Netlink { name: self.state.name.clone(), source })?;
        match read {
            Some(next) => compare(&mut self.state, next, &mut self.pending),
            None => {
                self.is_gone = true;
                self.pending.push_back(LinkEvent::Gone);
            }
        }
        Ok(())
    }
}

/// The state of an interface; `None` if there is none of that index.
fn read(index: u32) -> io::Result<Option<LinkState>> {
    let mut netlink = Netlink::open(&[])?;
    let mut state = LinkState { index, ..LinkState::default() };
    let mut is_there = false;
    for message in netlink.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
        if let RouteNetlinkMessage::NewLink(link) = message
            && link.header.index == index
        {
            update(&mut state, &link);
            is_there = true;
        }
    }
    for message in netlink.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
        if let RouteNetlinkMessage::NewAddress(message) = message
            && message.header.index == index
        {
            state.addresses.extend(link_address(&message));
        }
    }
    Ok(is_there.then_some(state))
}

fn update(state: &mut LinkState, link: &LinkMessage) {
    state.is_up = link.header.flags.contains(LinkFlags::Up);
    state.has_carrier = link.header.flags.contains(LinkFlags::LowerUp);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => state.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => state.mtu = *mtu,
            LinkAttribute::Address(mac) => state.mac.clone_from(mac),
            _ => {}
        }
    }
}

/// Makes `next` the state, and events of what differs.
fn compare(state: &mut LinkState, next: LinkState, events: &mut VecDeque<LinkEvent>) {
    if state.name != next.name {
        events.push_back(LinkEvent::Renamed(next.name.clone()));
    }
    if state.mtu != next.mtu {
        events.push_back(LinkEvent::Mtu(next.mtu));
    }
    if state.is_running() != next.is_running() {
        events.push_back(if next.is_running() { LinkEvent::Up } else { LinkEvent::Down });
    }
    let usable = |state: &LinkState| state.addresses.iter().filter(|a| a.is_usable).copied().collect::<Vec<_>>();
    let (before, after) = (usable(state), usable(&next));
    let gone = before.iter().filter(|a| !after.iter().any(|b| b.is_same(a)));
    events.extend(gone.map(|a| LinkEvent::AddressRemoved(*a)));
    let new = after.iter().filter(|a| !before.iter().any(|b| b.is_same(a)));
    events.extend(new.map(|a| LinkEvent::AddressAdded(*a)));
    *state = next;
}

impl LinkAddress {
    fn is_same(&self, other: &Self) -> bool {
        (self.address, self.prefix) == (other.address, other.prefix)
    }
}

fn link_address(message: &AddressMessage) -> Option<LinkAddress> {
    let mut local = None;
    let mut remote = None;
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            // On a point-to-point link the peer's address; else the same as local, which IPv6 leaves out.
            AddressAttribute::Address(address) => remote = Some(*address),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let not_now = AddressFlags::Tentative | AddressFlags::Dadfailed | AddressFlags::Deprecated;
    let tentative_but_usable = flags.contains(AddressFlags::Optimistic);
    Some(LinkAddress {
        address: local.or(remote)?,
        prefix: message.header.prefix_len,
        is_usable: !flags.intersects(not_now) || tentative_but_usable,
        is_global: message.header.scope == AddressScope::Universe,
        is_secondary: flags.contains(AddressFlags::Secondary),
    })
}

fn neighbour_event(message: &NeighbourMessage) -> Option<LinkEvent> {
    let address = neighbour_address(message)?;
    match message.header.state {
        KernelNeighbourState::Reachable | KernelNeighbourState::Permanent => {
            let mac = message.attributes.iter().find_map(|attribute| match attribute {
                NeighbourAttribute::LinkLayerAddress(mac) => Some(mac.clone()),
                _ => None,
            });
            Some(LinkEvent::NeighbourReachable(address, mac?))
        }
        KernelNeighbourState::Failed => Some(LinkEvent::NeighbourLost(address)),
        // On the way from one to the other.
        _ => None,
    }
}

fn neighbour_address(message: &NeighbourMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

fn is_of_a_bridge(link: &LinkMessage) -> bool {
    link.header.interface_family == rtnetlink::packet_route::AddressFamily::Bridge
}

#[cfg(test)]
mod tests;
