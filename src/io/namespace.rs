//! Network namespaces of our own: where tests, the demo and the benches may lay cables without touching the machine.
//!
//! A [`Namespace`] lives as long as its value (and threads or sockets within it); its devices go with it, also after a
//! panic. Making one needs `CAP_SYS_ADMIN`: root has it, and an ordinary user gets it in a user namespace of its own, see
//! [`isolate`] and [`enter`]. Addresses come from 198.18.0.0/15 (RFC 2544, benchmarking) by custom of the callers.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::link::netlink::{Netlink, RTNLGRP_LINK};

/// Why a namespace could not be made, entered or furnished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The kernel, a container runtime or a sysctl forbids it.
    #[error(
        "this process may not make {what} namespaces ({source}): run as root, or allow unprivileged user namespaces \
         (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; \
         in a container: --privileged)"
    )]
    Forbidden {
        /// Which kind.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no network namespace at this path.
    #[error("cannot open the network namespace {path}: {source}; `ip netns` lists those with a name, under /run/netns")]
    Unknown {
        /// The path given.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Namespaces exist, but a device or address in one could not be set up.
    #[error("cannot {what} {name} in the namespace: {source}")]
    Device {
        /// What was tried.
        what: &'static str,
        /// On which device.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// `ioctl_nsfs(2)`: which kind of namespace a file is.
const NS_GET_NSTYPE: libc::c_ulong = 0xb703;

/// A network namespace, its `lo` up.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

/// One end of a cable: where it is, how it is called, what it carries.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The namespace that it is in.
    pub namespace: &'a Namespace,
    /// Interface name, at most 15 bytes.
    pub name: &'a str,
    /// Addresses and their prefix lengths.
    pub addresses: &'a [(IpAddr, u8)],
}

impl Namespace {
    /// Makes one.
    pub fn new() -> Result<Self, NamespaceError> {
        // A thread of its own: the caller stays where it is.
        let file = thread::scope(|scope| scope.spawn(fresh).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread that was to make the namespace died")))
            .map_err(|source| NamespaceError::Forbidden { what: "network", source })?;
        let namespace = Self { file };
        namespace.set_link("lo", |link| up(link, true))?;
        Ok(namespace)
    }

    /// One that exists already: `/run/netns/NAME` as `ip netns` makes them, or `/proc/PID/ns/net`. It lives on without this value.
    pub fn open(path: &Path) -> Result<Self, NamespaceError> {
        let open = || {
            let file = File::open(path)?;
            // SAFETY: the call takes no pointers; on what is no namespace it fails.
            let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
            if kind == libc::CLONE_NEWNET { Ok(file) } else { Err(io::Error::other("it is no network namespace")) }
        };
        let file = open().map_err(|source| NamespaceError::Unknown { path: path.display().to_string(), source })?;
        Ok(Self { file })
    }

    /// Moves the calling thread into it, for the rest of the thread's life.
    pub fn enter(&self) -> Result<(), NamespaceError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(|errno| NamespaceError::Forbidden { what: "network", source: errno.into() })
    }

    /// Runs `f` on a thread in the namespace and gives back its result; a panic in `f` goes on in the caller.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        let outcome = thread::scope(|scope| scope.spawn(|| self.enter().map(|()| f())).join());
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// `ip link set NAME up`, or down.
    pub fn set_up(&self, name: &str, is_up: bool) -> Result<(), NamespaceError> {
        self.set_link(name, |link| up(link, is_up))
    }

    /// `ip link set NAME mtu MTU`.
    pub fn set_mtu(&self, name: &str, mtu: u32) -> Result<(), NamespaceError> {
        self.set_link(name, |link| link.attributes.push(LinkAttribute::Mtu(mtu)))
    }

    /// `ip link set NAME address MAC`.
    pub fn set_mac(&self, name: &str, mac: [u8; 6]) -> Result<(), NamespaceError> {
        self.set_link(name, |link| link.attributes.push(LinkAttribute::Address(mac.to_vec())))
    }

    /// `ip link add link PARENT name NAME type vlan id ID`, and up.
    pub fn add_vlan(&self, parent: &str, name: &str, id: u16) -> Result<(), NamespaceError> {
        self.netlink("lay a VLAN over", parent, |netlink, index| {
            let mut link = named(name);
            link.attributes.push(LinkAttribute::Link(index));
            link.attributes.push(LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(id)])),
            ]));
            netlink.create(RouteNetlinkMessage::NewLink(link))
        })?;
        self.set_up(name, true)
    }

    /// `ip address add ADDRESS/PREFIX dev NAME`, without waiting for duplicate address detection.
    pub fn add_address(&self, name: &str, address: IpAddr, prefix: u8) -> Result<(), NamespaceError> {
        let message = address_message(address, prefix);
        self.netlink("add an address to", name, |netlink, index| {
            netlink.create(RouteNetlinkMessage::NewAddress(at(message, index)))
        })
    }

    /// `ip address delete ADDRESS/PREFIX dev NAME`.
    pub fn remove_address(&self, name: &str, address: IpAddr, prefix: u8) -> Result<(), NamespaceError> {
        let message = address_message(address, prefix);
        self.netlink("remove an address from", name, |netlink, index| {
            netlink.execute(RouteNetlinkMessage::DelAddress(at(message, index)))
        })
    }

    /// A socket that sends frames out of interface `name` as they are, right or wrong, and receives what passes there either way.
    pub fn frames(&self, name: &str) -> Result<socket2::Socket, NamespaceError> {
        let open = || {
            let socket = socket2::Socket::new_raw(socket2::Domain::PACKET, socket2::Type::RAW.nonblocking(), None)?;
            super::packet::bind(&socket, nix::net::if_::if_nametoindex(name)?)?;
            Ok(socket)
        };
        self.run(open)?.map_err(|source| NamespaceError::Device {
            what: "send frames out of",
            name: name.to_owned(),
            source,
        })
    }

    /// Lays a cable between two namespaces: a veth pair, both ends up with their addresses, this MTU.
    pub fn connect(a: End<'_>, b: End<'_>, mtu: u32) -> Result<(), NamespaceError> {
        // Interfaces number themselves from 1 in every namespace, and the kernel takes its time (a second) to notice the carrier of
        // a cable whose ends have one number.
        static NEXT_INDEX: AtomicU32 = AtomicU32::new(1000);
        let mut peer = named(b.name);
        peer.header.index = NEXT_INDEX.fetch_add(2, Ordering::Relaxed);
        peer.attributes.push(LinkAttribute::Mtu(mtu));
        peer.attributes.push(LinkAttribute::NetNsFd(b.namespace.file.as_raw_fd()));
        let mut link = named(a.name);
        link.header.index = peer.header.index + 1;
        link.attributes.push(LinkAttribute::Mtu(mtu));
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        a.namespace.netlink("lay the cable", "lo", |netlink, _| netlink.create(RouteNetlinkMessage::NewLink(link)))?;
        for end in [a, b] {
            for (address, prefix) in end.addresses {
                end.namespace.add_address(end.name, *address, *prefix)?;
            }
            end.namespace.set_up(end.name, true)?;
        }
        // An interface that is up drops what it is to send until the kernel has noticed its carrier and given it a queue.
        for end in [a, b] {
            end.namespace.netlink("wait for the carrier of", end.name, |_, index| wait_for_carrier(index))?;
        }
        Ok(())
    }

    fn set_link(&self, name: &str, change: impl FnOnce(&mut LinkMessage) + Send) -> Result<(), NamespaceError> {
        self.netlink("change", name, |netlink, index| {
            let mut link = LinkMessage::default();
            link.header.index = index;
            change(&mut link);
            netlink.execute(RouteNetlinkMessage::SetLink(link))
        })
    }

    fn netlink(
        &self,
        what: &'static str,
        name: &str,
        request: impl FnOnce(&mut Netlink, u32) -> io::Result<()> + Send,
    ) -> Result<(), NamespaceError> {
        self.run(|| request(&mut Netlink::open(&[])?, nix::net::if_::if_nametoindex(name)?))?
            .map_err(|source| NamespaceError::Device { what, name: name.to_owned(), source })
    }
}

fn fresh() -> io::Result<File> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    File::open("/proc/thread-self/ns/net")
}

/// The kernel notices a carrier within a moment, on a loaded machine within a second.
const CARRIER_TIMEOUT_MS: u16 = 10_000;

fn wait_for_carrier(index: u32) -> io::Result<()> {
    let is_up = |message: &RouteNetlinkMessage| match message {
        RouteNetlinkMessage::NewLink(link) if link.header.index == index => {
            link.attributes.contains(&LinkAttribute::OperState(State::Up))
        }
        _ => false,
    };
    let mut events = Netlink::open(&[RTNLGRP_LINK])?;
    let links = Netlink::open(&[])?.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let mut found = links.iter().any(is_up);
    while !found {
        let ready = poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLIN)], PollTimeout::from(CARRIER_TIMEOUT_MS))?;
        if ready == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        events.receive(|message| found |= is_up(&message))?;
    }
    Ok(())
}

fn named(name: &str) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link
}

fn up(link: &mut LinkMessage, is_up: bool) {
    link.header.change_mask = LinkFlags::Up;
    link.header.flags = if is_up { LinkFlags::Up } else { LinkFlags::empty() };
}

fn address_message(address: IpAddr, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.prefix_len = prefix;
    message.header.scope = AddressScope::Universe;
    message.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    if address.is_ipv6() {
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message
}

fn at(mut message: AddressMessage, index: u32) -> AddressMessage {
    message.header.index = index;
    message
}

/// Puts this process into user and network namespaces of its own, where it is root and may make further [`Namespace`]s.
///
/// Works for an ordinary user. The process must have one thread only: call it first thing in `main`.
pub fn enter() -> Result<(), NamespaceError> {
    become_root_within().map_err(|source| NamespaceError::Forbidden { what: "user and network", source })
}

/// Lets `command` start in user and network namespaces of its own, as [`enter`] does; where that is forbidden, spawning
/// the command fails with `EPERM`, `ENOSPC` or `EINVAL`.
pub fn isolate(command: &mut Command) -> &mut Command {
    // SAFETY: runs in the forked child, which has one thread. Other threads of the parent may have held the allocator's
    // lock at the fork: `become_root_within` only makes system calls and formats into a buffer on its stack.
    unsafe { command.pre_exec(become_root_within) }
}

/// No allocation here: see [`isolate`].
fn become_root_within() -> io::Result<()> {
    let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)?;
    // user_namespaces(7): without privilege outside, setgroups must be given up before a gid can be mapped.
    write_file(c"/proc/self/setgroups", format_args!("deny"))?;
    write_file(c"/proc/self/uid_map", format_args!("0 {uid} 1"))?;
    write_file(c"/proc/self/gid_map", format_args!("0 {gid} 1"))
}

fn write_file(path: &core::ffi::CStr, text: core::fmt::Arguments<'_>) -> io::Result<()> {
    use io::Write;
    let mut buffer = [0u8; 64];
    let mut cursor = io::Cursor::new(&mut buffer[..]);
    cursor.write_fmt(text)?;
    let length = cursor.position() as usize;
    let file = nix::fcntl::open(path, nix::fcntl::OFlag::O_WRONLY, nix::sys::stat::Mode::empty())?;
    nix::unistd::write(&file, buffer.get(..length).unwrap_or_default())?;
    Ok(())
}

/// Runs the body of the test called `name` (as `--exact` knows it, with its module path) where namespaces can be made.
///
/// As root: here. As an ordinary user: in a child, this test binary again with only that test, in a user namespace. Where
/// neither is allowed it prints `skipped:` and the reason.
///
/// # Panics
///
/// When the test fails in the child.
pub fn run_test(name: &str, body: impl FnOnce()) {
    const INSIDE: &str = "HOLDFAST_TEST_ISOLATED";
    match Namespace::new() {
        Ok(_) => return body(),
        Err(error) if std::env::var_os(INSIDE).is_some() => return println!("skipped: {name}: {error}"),
        Err(_) => {}
    }
    let child = std::env::current_exe().and_then(|exe| {
        let mut command = Command::new(exe);
        command.args([name, "--exact", "--nocapture"]).env(INSIDE, "1");
        isolate(&mut command).output()
    });
    match child {
        Err(source) => {
            println!("skipped: {name}: {}", NamespaceError::Forbidden { what: "user and network", source });
        }
        Ok(output) => {
            println!("{}", String::from_utf8_lossy(&output.stdout));
            assert!(
                output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
                "{name} failed in its namespace:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_cable_carries_datagrams_and_goes_with_its_namespaces() {
        run_test("io::namespace::tests::a_cable_carries_datagrams_and_goes_with_its_namespaces", || {
            let (a, b) = (Namespace::new().unwrap(), Namespace::new().unwrap());
            let address = |n: u8| IpAddr::from([198, 18, 0, n]);
            Namespace::connect(
                End { namespace: &a, name: "a0", addresses: &[(address(1), 24)] },
                End { namespace: &b, name: "b0", addresses: &[(address(2), 24), ("2001:2::2".parse().unwrap(), 64)] },
                9000,
            )
            .unwrap();
            let receiver = b.run(|| UdpSocket::bind((address(2), 4791)).unwrap()).unwrap();
            let sender = a.run(|| UdpSocket::bind((address(1), 0)).unwrap()).unwrap();
            sender.send_to(b"light", (address(2), 4791)).unwrap();
            let mut bytes = [0; 16];
            let (length, from) = receiver.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..length], from.ip()), (&b"light"[..], address(1)));
            let error = a.add_address("b0", address(3), 24).unwrap_err();
            assert!(error.to_string().contains("b0"), "{error}");
        });
    }

    #[test]
    fn an_isolated_command_is_root_in_a_network_of_its_own() {
        let mut command = Command::new("cat");
        match isolate(command.args(["/proc/self/uid_map", "/proc/net/dev"])).output() {
            Err(error) => println!("skipped: user namespaces are forbidden: {error}"),
            Ok(output) => {
                let text = String::from_utf8(output.stdout).unwrap();
                let map: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
                let outside = nix::unistd::geteuid().to_string();
                assert_eq!(map, ["0", outside.as_str(), "1"]);
                let devices: Vec<&str> =
                    text.lines().filter_map(|l| l.split_once(':')).map(|(d, _)| d.trim()).collect();
                assert_eq!(devices, ["lo"]);
            }
        }
    }
}
