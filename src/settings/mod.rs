//! The settings of the daemon: a TOML file, overridden by the command line, checked as a whole.
//!
//! Every key has a default, so that no file is needed: `holdfastd --interface eth0` is enough. `config/holdfast.toml`
//! documents every key with its default. A key that is unknown, or a value that is not allowed, is refused with its line
//! and column, and what would have been allowed ([`SettingsError`]). Which keys a reload can change says
//! [`reload::RELOADABLE`].

mod circuit;
mod congestion;
mod load;
pub mod logging;
mod overrides;
pub mod reload;
pub(crate) mod units;

pub use circuit::CircuitSettings;
pub use congestion::Congestion;
pub use load::{SettingsError, parse, read};
pub use overrides::Overrides;
pub use units::{Rate, Size, Time};

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const US: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

/// Everything that can be set.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The RDMA device that applications see.
    pub device: Device,
    /// How packets reach the network.
    pub port: Port,
    /// The worker threads.
    pub workers: Workers,
    /// The RoCE transport.
    pub transport: Transport,
    /// What happens in the dark.
    pub hold: Hold,
    /// How queue pairs share lines with others.
    pub congestion: Congestion,
    /// What is known of circuits.
    pub circuit: Vec<CircuitSettings>,
    /// The programs that attach.
    pub clients: Clients,
    /// The control socket of the operator.
    pub control: Control,
    /// The metrics endpoint.
    pub metrics: Metrics,
    /// The log.
    pub log: Log,
    /// The end of the daemon.
    pub shutdown: Shutdown,
}

/// `[device]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// Name of the verbs device.
    pub name: String,
    /// Network interface to serve; empty if `addresses` say it.
    pub interface: String,
    /// Addresses to serve; empty for all of the interface.
    pub addresses: Vec<IpAddr>,
    /// Largest RoCE MTU in bytes, also where the link would carry more.
    #[serde(deserialize_with = "units::mtu")]
    pub max_mtu: u32,
}

impl Default for Device {
    fn default() -> Self {
        Self { name: "holdfast0".into(), interface: String::new(), addresses: Vec::new(), max_mtu: 4096 }
    }
}

/// `[port]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Port {
    /// The packet backend.
    pub backend: Backend,
    /// How it calls the kernel.
    pub driver: Driver,
    /// Whether bursts leave as super-packets.
    pub segmentation_offload: Switch,
    /// Kernel receive buffer of each socket.
    #[serde(deserialize_with = "units::size::<_, {64 * KIB}, GIB>")]
    pub receive_buffer: Size,
    /// Kernel send buffer of each lane.
    #[serde(deserialize_with = "units::size::<_, {64 * KIB}, GIB>")]
    pub send_buffer: Size,
    /// Lanes (UDP source ports) of a worker that are open at a time.
    #[serde(deserialize_with = "units::number::<_, 1, 16384>")]
    pub max_lanes: u32,
    /// How long the kernel polls the device in a receive; zero for not at all.
    #[serde(deserialize_with = "units::time::<_, 0, {1_000 * US}>")]
    pub busy_poll: Time,
}

impl Default for Port {
    fn default() -> Self {
        Self {
            backend: Backend::Auto,
            driver: Driver::Auto,
            segmentation_offload: Switch::Auto,
            receive_buffer: Size::from_mib(16),
            send_buffer: Size::from_mib(4),
            max_lanes: 1024,
            busy_poll: Time::from_secs(0),
        }
    }
}

/// The packet backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// `packet` where the process may, else `udp`.
    Auto,
    /// `AF_PACKET`: sees the IP header, takes super-packets; wants `CAP_NET_RAW`.
    Packet,
    /// Plain UDP sockets: no privileges.
    Udp,
}

/// How the port calls the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// `io_uring` where the kernel allows it, else `syscalls`.
    Auto,
    /// io_uring.
    IoUring,
    /// One system call after the other.
    Syscalls,
}

/// Something that can be probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// On where a probe finds that it works.
    Auto,
    /// On, and an error where it does not work.
    On,
    /// Off.
    Off,
}

/// `[workers]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    /// How many.
    #[serde(deserialize_with = "units::number::<_, 1, 64>")]
    pub count: u32,
    /// The CPU of each; empty to let the kernel choose.
    pub cpus: Vec<u32>,
    /// When they sleep.
    pub poll: Poll,
    /// The longest spin before a sleep.
    #[serde(deserialize_with = "units::time::<_, 0, {100_000 * US}>")]
    pub spin_max: Time,
}

impl Default for Workers {
    fn default() -> Self {
        Self { count: 1, cpus: Vec::new(), poll: Poll::Adaptive, spin_max: Time::from_micros(200) }
    }
}

/// When a worker sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Poll {
    /// After a while without work, which adapts to what sleeping brought.
    Adaptive,
    /// Never: for cores set apart.
    Always,
}

/// `[transport]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transport {
    /// Packets that a queue pair may have in flight.
    #[serde(deserialize_with = "units::number::<_, 1, 65536>")]
    pub max_unacked_packets: u32,
    /// Bytes that a queue pair may have in flight.
    #[serde(deserialize_with = "units::size::<_, {4 * KIB}, {256 * MIB}>")]
    pub max_unacked: Size,
    /// The largest piece in which a READ is asked for.
    #[serde(deserialize_with = "units::size::<_, {4 * KIB}, {256 * MIB}>")]
    pub max_read: Size,
    /// The longest that a responder holds an acknowledgement back.
    #[serde(deserialize_with = "units::time::<_, 0, {10_000 * US}>")]
    pub ack_delay: Time,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            max_unacked_packets: 512,
            max_unacked: Size::from_mib(1),
            max_read: Size::from_kib(256),
            ack_delay: Time::from_micros(100),
        }
    }
}

/// `[hold]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hold {
    /// Whether queue pairs are held while their path is dark.
    pub enabled: bool,
    /// Silence for so long while answers are due is darkness.
    #[serde(deserialize_with = "units::time::<_, {100 * US}, {60 * SECOND}>")]
    pub detect: Time,
    /// In the dark for longer, what waits fails.
    #[serde(deserialize_with = "units::time::<_, {1_000 * US}, {86_400 * SECOND}>")]
    pub hold_max: Time,
    /// How often the light is looked for.
    #[serde(deserialize_with = "units::time::<_, {50 * US}, {10 * SECOND}>")]
    pub probe_every: Time,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            enabled: true,
            detect: Time::from_micros(3_000),
            hold_max: Time::from_secs(30),
            probe_every: Time::from_micros(500),
        }
    }
}

/// `[clients]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clients {
    /// Where programs attach.
    pub socket: PathBuf,
    /// The group whose members may attach; empty for none beside root and the daemon's own user.
    pub group: String,
    /// Programs attached at once.
    #[serde(deserialize_with = "units::number::<_, 1, 65536>")]
    pub max_clients: u32,
    /// Queue pairs of one program.
    #[serde(deserialize_with = "units::number::<_, 1, 1_048_576>")]
    pub max_queue_pairs: u32,
    /// Memory regions of one program.
    #[serde(deserialize_with = "units::number::<_, 1, 1_048_576>")]
    pub max_memory_regions: u32,
    /// Requests that fit one queue.
    #[serde(deserialize_with = "units::number::<_, 1, 32768>")]
    pub max_queue_depth: u32,
    /// Shared memory for the queues of one program.
    #[serde(deserialize_with = "units::size::<_, MIB, {64 * GIB}>")]
    pub max_queue_memory: Size,
    /// Memory that one program may register.
    #[serde(deserialize_with = "units::size::<_, MIB, {1 << 50}>")]
    pub max_registered: Size,
}

impl Default for Clients {
    fn default() -> Self {
        Self {
            socket: "/run/holdfast/attach.sock".into(),
            group: "holdfast".into(),
            max_clients: 1024,
            max_queue_pairs: 131_072,
            max_memory_regions: 65_536,
            max_queue_depth: 16_384,
            max_queue_memory: Size::from_mib(1024),
            max_registered: Size::from_mib(1 << 20),
        }
    }
}

/// `[control]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Where the `holdfast` command finds the daemon.
    pub socket: PathBuf,
    /// The group whose members may ask; empty for none beside root and the daemon's own user.
    pub group: String,
    /// The group whose members may announce too; empty for none beside root and the daemon's own user.
    pub controllers: String,
}

impl Default for Control {
    fn default() -> Self {
        Self { socket: "/run/holdfast/control.sock".into(), group: "holdfast".into(), controllers: String::new() }
    }
}

/// `[metrics]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Where Prometheus scrapes.
    pub listen: Listen,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { listen: Listen::At(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9791)) }
    }
}

/// An address to listen on, or `"off"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listen {
    /// Do not listen.
    Off,
    /// Listen here; port 0 lets the kernel choose.
    At(SocketAddr),
}

impl Serialize for Listen {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => s.serialize_str("off"),
            Self::At(address) => s.collect_str(address),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::{Error, Unexpected};
        let text = String::deserialize(d)?;
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| {
            let allowed = "\"off\" or an address with its port, such as \"127.0.0.1:9791\" or \"[::]:9791\"";
            D::Error::invalid_value(Unexpected::Str(&text), &allowed)
        })
    }
}

/// `[log]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// What is worth a line.
    pub level: logging::Level,
    /// Where lines go and what they look like.
    pub format: logging::Format,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: logging::Level::Info, format: logging::Format::Auto }
    }
}

/// `[shutdown]`
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// How long SIGTERM waits for posted work to finish.
    #[serde(deserialize_with = "units::time::<_, 0, {600 * SECOND}>")]
    pub drain: Time,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { drain: Time::from_secs(5) }
    }
}

#[cfg(test)]
mod tests;
