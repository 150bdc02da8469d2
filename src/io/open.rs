//! Opening a port: which backend and driver, found out by trying, with the reasons kept.

use core::net::IpAddr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::ethtool;
use super::lanes::Lanes;
use super::packet::PacketSocket;
use super::port::{Backend, Capabilities, Driver, PortError};
use super::self_check::{self, Findings};
use super::sender::{Sender, Submit, Syscalls};
use super::socket_port::{Inbox, Receiver, SocketPort, Source};
use super::sockopt;
use super::udp::{self, UdpSocket};
use super::uring::{self, RingSubmit};
use crate::engine::Worker;
use crate::transport::{BurstLimits, IpIdRule};

/// How to open a port.
#[derive(Clone, Debug)]
pub struct PortSettings {
    /// Where packets come from and go to; `None`: `packet` if an interface is named and privilege allows, else `udp`.
    pub backend: Option<Backend>,
    /// How to talk to the kernel; `None`: what measured best, see [`Driver`].
    pub driver: Option<Driver>,
    /// The interface; also the one that packets leave by. `None`: the routes decide (backend `udp` only).
    pub interface: Option<String>,
    /// Own addresses. Packets for others are not taken.
    pub addresses: Vec<IpAddr>,
    /// Whether to send super-packets.
    pub gso: Gso,
    /// Which worker of how many. Workers open their ports in order, 0 first.
    pub worker: Worker,
    /// Receive buffer in the kernel, for each socket. Without `CAP_NET_ADMIN` the sysctl `net.core.rmem_max` limits it.
    pub receive_buffer_bytes: usize,
    /// Send buffer in the kernel, for each lane. Without `CAP_NET_ADMIN` the sysctl `net.core.wmem_max` limits it.
    pub send_buffer_bytes: usize,
    /// Messages taken from the kernel in one call at most, each 64 KiB of address space; fewer while they are long.
    pub batch: usize,
    /// Lanes open at a time, each one file descriptor.
    pub max_lanes: usize,
    /// Microseconds that a receive polls the device before it finds nothing (`SO_BUSY_POLL`).
    pub busy_poll_us: Option<u32>,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            backend: None,
            driver: None,
            interface: None,
            addresses: Vec::new(),
            gso: Gso::Auto,
            worker: Worker::ONLY,
            receive_buffer_bytes: 16 << 20,
            send_buffer_bytes: 4 << 20,
            batch: 32,
            max_lanes: 1024,
            busy_poll_us: None,
        }
    }
}

/// Whether to send super-packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Gso {
    /// Where the identifications of their segments are known: the ICRC covers them. That is where Linux segments, and not
    /// where a NIC does ([`PortSettings`]'s interface has `tx-udp-segmentation` on).
    #[default]
    Auto,
    /// Always; an error if the kernel cannot.
    On,
    /// Never.
    Off,
}

/// Largest UDP payload of an IPv4 datagram, and of all packets of a super-packet.
const MAX_UDP_PAYLOAD: u32 = 65_535 - 20 - 8;
/// `UDP_MAX_SEGMENTS` of kernels before 6.9 (128 since).
const MAX_SEGMENTS: u16 = 64;

/// Opens a port.
pub fn open(settings: &PortSettings) -> Result<SocketPort, PortError> {
    if settings.addresses.is_empty() {
        return Err(PortError::NoAddress);
    }
    let interface = match &settings.interface {
        None => 0,
        Some(name) => nix::net::if_::if_nametoindex(name.as_str())
            .map_err(|errno| PortError::UnknownInterface { name: name.clone(), source: errno.into() })?,
    };
    let mut notes = Vec::new();
    let driver = driver(settings.driver, &mut notes)?;
    let opened = match (settings.backend, interface) {
        (Some(Backend::Udp), _) => open_udp(settings, interface, driver)?,
        (Some(Backend::Packet), 0) => return Err(PortError::NoInterface),
        (Some(Backend::Packet), _) => open_packet(settings, interface, driver, &mut notes)?,
        (None, 0) => {
            notes.push("backend udp: no interface is named, as `packet` would need".to_owned());
            open_udp(settings, interface, driver)?
        }
        (None, _) => match open_packet(settings, interface, driver, &mut notes) {
            Err(error @ PortError::NotPrivileged) => {
                notes.push(format!("backend udp: {error}"));
                open_udp(settings, interface, driver)?
            }
            other => other?,
        },
    };
    let burst = burst_limits(settings, &mut notes)?;
    if let Some(us) = settings.busy_poll_us {
        busy_poll(&opened.receivers, us, &mut notes);
    }
    let buffer = opened.receive_buffer_bytes;
    if buffer < settings.receive_buffer_bytes {
        let wanted = settings.receive_buffer_bytes;
        notes.push(format!(
            "receive buffer: {buffer} bytes instead of {wanted}: raise net.core.rmem_max, or grant CAP_NET_ADMIN"
        ));
    }
    let lanes = Lanes::new(settings.max_lanes, settings.send_buffer_bytes);
    let submit: Box<dyn Submit> = match driver {
        Driver::Syscalls => Box::new(Syscalls),
        Driver::IoUring => Box::new(RingSubmit::new().map_err(PortError::system("make a ring"))?),
    };
    let sender = Sender::new(lanes, submit, interface);
    let capabilities = Capabilities {
        backend: opened.backend,
        driver,
        burst,
        header_visible: opened.backend == Backend::Packet,
        coalesced_receive: opened.coalesces,
        receive_buffer_bytes: buffer,
        notes,
    };
    SocketPort::new(capabilities, settings, interface, opened.receivers, opened.holders, sender)
        .map_err(PortError::system("watch the sockets"))
}

/// The driver to use: see [`Driver`] for what was measured.
fn driver(wanted: Option<Driver>, notes: &mut Vec<String>) -> Result<Driver, PortError> {
    let obstacle = uring::obstacle();
    match (wanted, obstacle) {
        (Some(Driver::IoUring), Some(reason)) => return Err(PortError::NoIoUring { reason }),
        (Some(driver), _) => return Ok(driver),
        (None, Some(reason)) => notes.push(format!("driver syscalls: io_uring cannot be used: {reason}")),
        (None, None) => notes.push("driver syscalls: io_uring could be used, but takes more CPU".to_owned()),
    }
    Ok(Driver::Syscalls)
}

struct Opened {
    backend: Backend,
    receivers: Vec<Receiver>,
    holders: Vec<(OwnedFd, IpAddr)>,
    coalesces: bool,
    receive_buffer_bytes: usize,
}

fn open_packet(
    settings: &PortSettings,
    interface: u32,
    driver: Driver,
    notes: &mut Vec<String>,
) -> Result<Opened, PortError> {
    let wants_vnet = match self_check::findings() {
        Ok(Findings { coalesced_packet, .. }) => *coalesced_packet,
        Err(_) => kernel() >= (6, 2),
    };
    let PortSettings { addresses, worker, receive_buffer_bytes, .. } = settings;
    let open = |interface| {
        PacketSocket::open(interface, addresses, *worker, wants_vnet, *receive_buffer_bytes).map_err(|e| {
            match e.kind() {
                io::ErrorKind::PermissionDenied => PortError::NotPrivileged,
                _ => PortError::System { what: "open an AF_PACKET socket", source: e },
            }
        })
    };
    let socket = open(interface)?;
    if !socket.has_vnet {
        notes.push("coalesced packets cannot be received by AF_PACKET: needs Linux 6.2".to_owned());
    }
    // One worker holds the port for all.
    let holds = if worker.index() == 0 { addresses.as_slice() } else { &[] };
    let holders = holds
        .iter()
        .map(|address| Ok((udp::hold(*address, interface)?, *address)))
        .collect::<Result<_, PortError>>()?;
    let (coalesces, receive_buffer_bytes) = (socket.has_vnet, socket.buffer_bytes);
    let mut sockets = vec![socket];
    // What workers send each other goes to our own addresses, and so through the loopback interface.
    let loopback = nix::net::if_::if_nametoindex("lo").unwrap_or(0);
    if worker.count() > 1 && ![0, interface].contains(&loopback) {
        sockets.push(open(loopback)?);
    }
    let receiver = |PacketSocket { socket, link, has_vnet, .. }| {
        let inbox = Inbox::new(driver, settings.batch).map_err(PortError::system("make a ring"))?;
        Ok(Receiver::new(socket, inbox, Source::Frames { link, has_vnet }))
    };
    let receivers = sockets.into_iter().map(receiver).collect::<Result<_, PortError>>()?;
    Ok(Opened { backend: Backend::Packet, receivers, holders, coalesces, receive_buffer_bytes })
}

fn open_udp(settings: &PortSettings, interface: u32, driver: Driver) -> Result<Opened, PortError> {
    let mut opened = Opened {
        backend: Backend::Udp,
        receivers: Vec::new(),
        holders: Vec::new(),
        coalesces: true,
        receive_buffer_bytes: usize::MAX,
    };
    for address in &settings.addresses {
        let udp = UdpSocket::open(*address, interface, settings.worker, settings.receive_buffer_bytes)?;
        opened.coalesces &= udp.coalesces;
        opened.receive_buffer_bytes = opened.receive_buffer_bytes.min(udp.buffer_bytes);
        let inbox = Inbox::new(driver, settings.batch).map_err(PortError::system("make a ring"))?;
        opened.receivers.push(Receiver::new(udp.socket, inbox, Source::Datagrams { local: *address }));
    }
    Ok(opened)
}

fn busy_poll(receivers: &[Receiver], us: u32, notes: &mut Vec<String>) {
    let us = i32::try_from(us).unwrap_or(i32::MAX);
    for receiver in receivers {
        if let Err(error) = sockopt::set_int(&receiver.socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, us) {
            notes.push(format!("busy polling refused: {error}"));
        }
    }
}

/// What may be sent in one burst, and what becomes of its identifications.
fn burst_limits(settings: &PortSettings, notes: &mut Vec<String>) -> Result<BurstLimits, PortError> {
    let single = BurstLimits { max_packets: 1, max_bytes: MAX_UDP_PAYLOAD, ip_id: IpIdRule::AlwaysZero };
    let segmented = BurstLimits { max_packets: MAX_SEGMENTS, ip_id: IpIdRule::CountsFromZero, ..single };
    let supported = udp::probe_segmentation();
    match (settings.gso, supported) {
        (Gso::Off, _) => {
            notes.push("single packets: gso = off".to_owned());
            return Ok(single);
        }
        (Gso::On, Err(source)) => return Err(PortError::NoSegmentation { source }),
        (Gso::Auto, Err(error)) => {
            notes.push(format!("single packets: the kernel knows no UDP_SEGMENT ({error})"));
            return Ok(single);
        }
        (_, Ok(())) => {}
    }
    let doubt = doubt(settings, notes);
    match (settings.gso, doubt) {
        (Gso::Auto, Some(doubt)) => {
            notes.push(format!("single packets: {doubt}"));
            Ok(single)
        }
        (_, Some(doubt)) => {
            notes.push(format!("super-packets, because gso = on, though {doubt}"));
            Ok(segmented)
        }
        (_, None) => Ok(segmented),
    }
}

/// Why the identifications of segments might not be 0, 1, 2, …
fn doubt(settings: &PortSettings, notes: &mut Vec<String>) -> Option<String> {
    match self_check::findings() {
        Ok(Findings { single_id, segment_ids, .. }) => {
            let counts_up = segment_ids.iter().enumerate().all(|(index, id)| usize::from(*id) == index);
            if *single_id != 0 || !counts_up || segment_ids.is_empty() {
                return Some(format!("this kernel gives the segments the identifications {segment_ids:?}"));
            }
        }
        Err(error) => notes.push(format!("the identification rule is taken on trust: {error}")),
    }
    let hardware = interfaces(settings).into_iter().find(|interface| segments_in_hardware(interface))?;
    Some(format!(
        "{hardware} segments UDP in hardware, and what identifications it writes is not known: \
         `ethtool -K {hardware} tx-udp-segmentation off` lets Linux do it, gso = on trusts the hardware"
    ))
}

/// The interfaces that packets are expected to leave by: the one named, or those that have our addresses.
fn interfaces(settings: &PortSettings) -> Vec<String> {
    if let Some(name) = &settings.interface {
        return vec![name.clone()];
    }
    let Ok(all) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let is_ours = |address: nix::sys::socket::SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        v4.or(v6).is_some_and(|address| settings.addresses.contains(&address))
    };
    all.filter(|interface| interface.address.is_some_and(is_ours)).map(|interface| interface.interface_name).collect()
}

/// Whether a NIC, and not Linux here or on the host of this virtual machine, cuts super-packets up.
fn segments_in_hardware(interface: &str) -> bool {
    let device = Path::new("/sys/class/net").join(interface).join("device");
    let is_virtio = std::fs::read_link(device.join("driver")).is_ok_and(|driver| driver.ends_with("virtio_net"));
    device.exists() && !is_virtio && matches!(ethtool::is_on(interface, ethtool::UDP_SEGMENTATION), Ok(Some(true)))
}

/// Major and minor version of the running kernel; (0, 0) if it does not say.
pub(super) fn kernel() -> (u32, u32) {
    let Ok(names) = nix::sys::utsname::uname() else { return (0, 0) };
    let mut numbers = names.release().to_str().unwrap_or("").split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}
