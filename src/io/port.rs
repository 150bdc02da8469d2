//! What the daemon asks of a packet backend, and what a backend says of itself.

use core::fmt;
use core::net::IpAddr;
use std::io;
use std::os::fd::BorrowedFd;

use crate::transport::{Burst, BurstLimits};
use crate::wire::Datagram;

/// A way for RoCE packets in and out: one a worker.
///
/// Neither method blocks. In the steady state neither allocates.
pub trait Port: Send {
    /// What it can do, and why it was chosen.
    fn capabilities(&self) -> &Capabilities;

    /// Takes packets from the kernel and shows each to `sink`, until there are none or at least `budget` were shown.
    ///
    /// A coalesced receive is shown to its end, so the number given back may exceed the budget by one super-packet. Packets
    /// that are not whole RoCE datagrams for this port are dropped and counted, not shown.
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> Result<usize, PortError>;

    /// Hands bursts to the kernel, in order, and gives back how many it took.
    ///
    /// Fewer than all: the kernel's buffers are full; offer the rest again when [`Port::blocked_on`] is writable. When it
    /// returns, the kernel is done with the bytes of the bursts taken. A burst that the kernel refuses for a reason that
    /// waiting does not cure counts as taken, and [`Port::poll_refusal`] tells of it: to the transport it is a lost packet.
    fn send(&mut self, bursts: &[Burst]) -> Result<usize, PortError>;

    /// Becomes readable when [`Port::receive`] has something to do: for the worker's epoll. The same for the port's life.
    ///
    /// A receive that ended because of its budget may have more in hand: call it again before waiting.
    fn readable(&self) -> BorrowedFd<'_>;

    /// After a send that took fewer bursts than offered: becomes writable when more can be taken.
    fn blocked_on(&self) -> Option<BorrowedFd<'_>>;

    /// The next burst refused since the last time, oldest first. Bounded: if nobody asks, the oldest are forgotten (and
    /// stay counted).
    fn poll_refusal(&mut self) -> Option<Refusal>;

    /// Counts since the port was opened.
    fn counters(&mut self) -> PortCounters;

    /// Changes the addresses that packets must be for; the kernel drops others.
    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), PortError>;
}

/// What a port can do.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Where packets come from and go to.
    pub backend: Backend,
    /// How it talks to the kernel.
    pub driver: Driver,
    /// What a burst may be.
    pub burst: BurstLimits,
    /// Whether receive sees the IP header whole: identification, TTL, flow label.
    pub header_visible: bool,
    /// Whether coalesced packets can be received.
    pub coalesced_receive: bool,
    /// Bytes of the receive buffer in the kernel, as the kernel counts (payload and bookkeeping).
    pub receive_buffer_bytes: usize,
    /// Each choice and each thing that had to be done without, and why: for the log and for `holdfast status`.
    pub notes: Vec<String>,
}

/// Where a port's packets come from and go to.
///
/// `packet` is preferred because it sees the identification of every packet, whoever sent it. On a veth pair it takes more CPU
/// than `udp` (4 KiB super-packets: 460 against 420 ns to receive, and 640 against 530 ns for the sender): the kernel gives
/// the pages of `AF_PACKET` back on the receiver's CPU, not on the sender's, where they would still be in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// Receives by `AF_PACKET`, sends by UDP sockets. Needs `CAP_NET_RAW`.
    Packet,
    /// UDP sockets only; needs no privilege.
    Udp,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Packet => "packet",
            Self::Udp => "udp",
        })
    }
}

/// How a port talks to the kernel.
///
/// Left to itself, a port uses plain system calls: they took less CPU everywhere. Measured by `cargo bench --bench wire_bw -- raw` on Linux 6.18,
/// veth pair, two threads of a Xeon core, backend `packet`, median of three runs, ns a packet. (A call carries many packets of
/// a super-packet, so there is little to save; what io_uring adds is the bookkeeping of each request, and the interruptions
/// by which it delivers.)
///
/// | payload, send | send: syscalls | send: io_uring | receive: syscalls | receive: io_uring |
/// |---|---|---|---|---|
/// | 1 KiB, super-packets | 153 | 162 | 150 | 180 |
/// | 1 KiB, single | 2 120 | 4 190 | 1 330 | 3 390 |
/// | 4 KiB, super-packets | 640 | 740 | 460 | 700 |
/// | 4 KiB, single | 2 550 | 3 140 | 1 550 | 3 030 |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    /// `recvmmsg` and `sendmmsg`.
    Syscalls,
    /// Linked `SENDMSG` requests, all done when the send returns; one multishot `RECVMSG` with a ring of buffers. A worker
    /// that polls learns without a system call that nothing has come.
    IoUring,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syscalls => "syscalls",
            Self::IoUring => "io_uring",
        })
    }
}

/// What a port counts. Packets are RoCE packets, not super-packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortCounters {
    /// Packets shown to the sink.
    pub received_packets: u64,
    /// Their bytes, BTH to ICRC.
    pub received_bytes: u64,
    /// Receives from the kernel, each one packet or several coalesced.
    pub receives: u64,
    /// Packets that the kernel took.
    pub transmitted_packets: u64,
    /// Their bytes, BTH to ICRC.
    pub transmitted_bytes: u64,
    /// Sends that the kernel took, each one burst.
    pub sends: u64,
    /// Times that a send found the kernel's buffers full.
    pub backpressure: u64,
    /// Bursts refused: larger than the interface's MTU.
    pub refused_too_large: u64,
    /// Bursts refused: no route, no neighbour, interface down.
    pub refused_unreachable: u64,
    /// Bursts refused: firewall, no permission, lane in use by another program, source address not ours.
    pub refused_forbidden: u64,
    /// Bursts refused for any other reason.
    pub refused_other: u64,
    /// Receives dropped: larger than any buffer, or cut short by the kernel.
    pub dropped_truncated: u64,
    /// Receives dropped: no whole UDP datagram.
    pub dropped_malformed: u64,
    /// Receives dropped: IP fragments.
    pub dropped_fragment: u64,
    /// Receives dropped: for another port or address.
    pub dropped_not_ours: u64,
    /// Packets or super-packets that the kernel dropped because nobody took them in time.
    pub kernel_dropped: u64,
}

/// A burst that the kernel refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Where it was to go.
    pub destination: IpAddr,
    /// By which lane.
    pub source_port: u16,
    /// Bytes of its largest packet, BTH to ICRC.
    pub packet_bytes: usize,
    /// Why.
    pub reason: RefusalReason,
    /// What the kernel said.
    pub errno: i32,
}

/// Why the kernel refused a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RefusalReason {
    /// `EMSGSIZE`: the packet and its headers exceed the MTU of the interface that the route names.
    TooLarge,
    /// No route, no neighbour, or the interface is down.
    Unreachable,
    /// A firewall, a missing permission, or a source address that this host has not.
    Forbidden,
    /// Another program holds the lane's UDP port.
    LaneTaken,
    /// Something else: see the errno.
    Other,
}

impl RefusalReason {
    /// What an errno of a send means, if it is not to be waited out.
    pub(crate) fn of_errno(errno: i32) -> Self {
        match errno {
            libc::EMSGSIZE => Self::TooLarge,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN | libc::ENODEV | libc::ENXIO => {
                Self::Unreachable
            }
            libc::EPERM | libc::EACCES | libc::EADDRNOTAVAIL => Self::Forbidden,
            libc::EADDRINUSE => Self::LaneTaken,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { destination, source_port, packet_bytes, reason, errno } = self;
        let error = io::Error::from_raw_os_error(*errno);
        match reason {
            RefusalReason::TooLarge => write!(
                f,
                "a packet of {packet_bytes} bytes to {destination} exceeds the interface's MTU: raise the MTU on the way, or use a smaller path MTU"
            ),
            RefusalReason::Unreachable => write!(f, "{destination} cannot be reached: {error}"),
            RefusalReason::Forbidden => {
                write!(
                    f,
                    "sending to {destination} is forbidden ({error}): look at the firewall and at the source address"
                )
            }
            RefusalReason::LaneTaken => {
                write!(f, "UDP port {source_port}, a lane to {destination}, is held by another program")
            }
            RefusalReason::Other => write!(f, "sending to {destination} failed: {error}"),
        }
    }
}

/// What can go wrong with a port as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// Something else receives on UDP port 4791 of that address.
    #[error(
        "UDP port 4791 of {address} is taken: another holdfastd runs on this address, or the kernel's RoCE driver has it \
         (`lsmod | grep rdma_rxe`, then `rdma link delete` its links and `modprobe -r rdma_rxe`); `ss -ulpn sport = 4791` shows who"
    )]
    PortTaken {
        /// Which address.
        address: IpAddr,
    },
    /// The address is not configured on this host.
    #[error("{address} is not an address of this host: configure it on the interface first")]
    NotOurAddress {
        /// Which.
        address: IpAddr,
    },
    /// No address was given to serve.
    #[error("no address to serve: give the interface an IPv4 or global IPv6 address, or name one in the settings")]
    NoAddress,
    /// The backend needs an interface by name.
    #[error("backend `packet` receives on one interface: name it")]
    NoInterface,
    /// There is no interface of that name.
    #[error("there is no interface {name}: {source}")]
    UnknownInterface {
        /// The name given.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// `AF_PACKET` sockets are not allowed.
    #[error(
        "backend `packet` needs CAP_NET_RAW: grant it (systemd: AmbientCapabilities=CAP_NET_RAW), or use backend `udp`"
    )]
    NotPrivileged,
    /// io_uring was asked for and cannot be had.
    #[error("driver `io_uring` cannot be used: {reason}; use driver `auto` or `syscalls`")]
    NoIoUring {
        /// Why.
        reason: String,
    },
    /// Segmentation offload was asked for and cannot be had.
    #[error("gso = on, but the kernel refuses UDP_SEGMENT ({source}): use gso = auto or off")]
    NoSegmentation {
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call failed that should not.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PortError {
    /// For `map_err`.
    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
