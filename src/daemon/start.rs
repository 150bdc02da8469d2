//! From settings to a running daemon.

use super::attach::{AttachError, AttachSocket};
use super::clock::Clock;
use super::device::{Facts, Served};
use super::poll::PollPolicy;
use super::waiter::Waiter;
use super::worker::{self, Orders, Parts, Worker, WorkerError};
use crate::control::worker::WorkerHandle;
use crate::control::{Access, ControlSocket, Overview, SocketError};
use crate::counters::Publisher;
use crate::engine::{self, CircuitPlan, CongestionPolicy, Engine, EngineConfig};
use crate::io::link::{LinkError, LinkWatcher};
use crate::io::{self, Capabilities, Gso, Port, PortError, PortSettings};
use crate::ipc::server::{Permissions, PortStatus, Server, ServerConfig};
use crate::metrics::{MetricsError, MetricsServer};
use crate::path::HoldPolicy;
use crate::settings::{self, Backend, CircuitSettings, Driver, Hold, Listen, Poll, Settings, SettingsError, Switch};
use crate::transport::TransportLimits;
use crate::wire::DEFAULT_PKEY;
use nix::errno::Errno;
use std::io::Read;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::{info, warn};

/// Why the daemon did not start, or had to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The log could not be set up.
    #[error(transparent)]
    Logging(#[from] settings::logging::LoggingError),
    /// Neither an interface nor an address is set.
    #[error("nothing to serve: name an interface (`holdfastd --interface IF`, or device.interface in the settings)")]
    NothingToServe,
    /// The interface cannot be watched.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The socket for programs could not be opened.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The control socket could not be opened.
    #[error(transparent)]
    Control(#[from] SocketError),
    /// The metrics endpoint could not be opened.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The kernel refused something that every process may have.
    #[error("cannot {0}: {1}")]
    System(&'static str, #[source] std::io::Error),
    /// A worker ended by itself.
    #[error("a worker ended: {}", .0.as_ref().map_or("it panicked".to_owned(), ToString::to_string))]
    WorkerEnded(Option<WorkerError>),
    /// A server of the control plane ended.
    #[error("{0} failed: {1}")]
    Serving(&'static str, String),
}

impl StartError {
    pub(super) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |e| Self::System(what, e.into())
    }
}

/// How a worker ended: tells even if it panics.
#[derive(Debug)]
pub(super) struct Farewell {
    to: mpsc::UnboundedSender<Result<(), Option<WorkerError>>>,
    said: bool,
}

impl Farewell {
    fn say(mut self, ended: Result<(), WorkerError>) {
        self.said = true;
        // The supervisor may be gone: then everything ends anyway.
        let _ = self.to.send(ended.map_err(Some));
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        if !self.said {
            let _ = self.to.send(Err(None));
        }
    }
}

/// A daemon that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub overview: Arc<Overview>,
    pub facts: Arc<Facts>,
    pub orders: Vec<Orders>,
    pub ended: mpsc::UnboundedReceiver<Result<(), Option<WorkerError>>>,
    pub attach: AttachSocket,
    pub control: ControlSocket,
    pub metrics: Option<MetricsServer>,
    pub link: Option<LinkWatcher>,
    pub served: Served,
    pub port: Capabilities,
}

/// Starts everything that `settings` describe: workers first, sockets last, so that nobody is let in before he can be served.
pub(super) fn start(settings: &Settings, config: Option<std::path::PathBuf>) -> Result<Running, StartError> {
    let link = match settings.device.interface.as_str() {
        "" => None,
        name => Some(LinkWatcher::open(name)?),
    };
    let served = Served::new(settings, link.as_ref().map(LinkWatcher::state));
    if link.is_none() && served.addresses.is_empty() {
        return Err(StartError::NothingToServe);
    }
    let clock = Clock::start();
    let (to, ended) = mpsc::unbounded_channel();
    let (mut orders, mut handles, mut port) = (Vec::new(), Vec::new(), None);
    for index in 0..settings.workers.count {
        let made = Made::new(settings, &served, index, clock.clone())?;
        port.get_or_insert_with(|| made.port.clone());
        let farewell = Farewell { to: to.clone(), said: false };
        worker::spawn(made.worker, |result| farewell.say(result)).map_err(StartError::system("start a worker"))?;
        orders.push(made.orders);
        handles.push(made.handle);
    }
    let port = port.ok_or(StartError::NothingToServe)?;
    tell(&served, &port);
    let overview = Arc::new(Overview::new(served.view(settings, config, &port), handles));
    let facts = Arc::new(Facts::new(Arc::clone(&overview), served.speed_mbps()));
    let metrics = match settings.metrics.listen {
        Listen::Off => None,
        Listen::At(address) => Some(MetricsServer::bind(address, Arc::clone(&facts) as _)?),
    };
    let control = ControlSocket::bind(
        &settings.control.socket,
        Access::for_group(&settings.control.group).with_controllers(&settings.control.controllers),
    )?;
    let attach = AttachSocket::bind(
        &settings.clients.socket,
        Access::for_group(&settings.clients.group),
        overview.counters().clone(),
    )?;
    Ok(Running { overview, facts, orders, ended, attach, control, metrics, link, served, port })
}

fn tell(served: &Served, port: &Capabilities) {
    info!(
        interface = served.interface.as_deref().unwrap_or("none"),
        addresses = ?served.addresses,
        mtu = served.link_mtu,
        backend = %port.backend,
        driver = %port.driver,
        packets_a_burst = port.burst.max_packets,
        "port open"
    );
    for note in &port.notes {
        info!("port: {note}");
    }
    if !served.link_up {
        warn!("the link is down; queue pairs wait for it");
    }
}

struct Made {
    worker: Worker,
    orders: Orders,
    handle: WorkerHandle,
    port: Capabilities,
}

impl Made {
    fn new(settings: &Settings, served: &Served, index: u32, clock: Clock) -> Result<Self, StartError> {
        let port = io::open(&port_settings(settings, served, index))?;
        let capabilities = port.capabilities().clone();
        let engine = engine(settings, served, index, &capabilities, &clock)?;
        let mut server = Server::new(
            ServerConfig {
                device_name: settings.device.name.clone(),
                firmware: env!("CARGO_PKG_VERSION").into(),
                node_guid: node_guid(served),
            },
            u64::from(index) << OWNER_BITS,
        );
        server.set_port(port_status(settings, served));
        let waiter = Waiter::new().map_err(StartError::system("make an epoll"))?;
        let waker = waiter.waker();
        let publisher = Publisher::new();
        let (handle, requests) = WorkerHandle::new(index, publisher.published(), move || waker.wake());
        let parts = Parts {
            index,
            cpu: settings.workers.cpus.get(index as usize).copied(),
            engine,
            port: Box::new(port),
            server,
            policy: poll_policy(&settings.workers),
            clock,
            publisher,
            requests,
        };
        let (worker, orders) = Worker::new(parts, waiter).map_err(StartError::system::<Errno>("watch the port"))?;
        Ok(Self { worker, orders, handle, port: capabilities })
    }
}

/// Owners of one worker are numbered apart from those of the others, so that a log line names one.
const OWNER_BITS: u32 = 48;

fn port_settings(settings: &Settings, served: &Served, index: u32) -> PortSettings {
    let port = &settings.port;
    PortSettings {
        backend: match port.backend {
            Backend::Auto => None,
            Backend::Packet => Some(io::Backend::Packet),
            Backend::Udp => Some(io::Backend::Udp),
        },
        driver: match port.driver {
            Driver::Auto => None,
            Driver::IoUring => Some(io::Driver::IoUring),
            Driver::Syscalls => Some(io::Driver::Syscalls),
        },
        interface: served.interface.clone(),
        addresses: served.addresses.clone(),
        gso: match port.segmentation_offload {
            Switch::Auto => Gso::Auto,
            Switch::On => Gso::On,
            Switch::Off => Gso::Off,
        },
        worker: worker(settings, index),
        receive_buffer_bytes: port.receive_buffer.bytes() as usize,
        send_buffer_bytes: port.send_buffer.bytes() as usize,
        max_lanes: port.max_lanes as usize,
        busy_poll_us: Some(port.busy_poll.duration().as_micros() as u32).filter(|us| *us > 0),
        ..PortSettings::default()
    }
}

fn engine(
    settings: &Settings,
    served: &Served,
    index: u32,
    port: &Capabilities,
    clock: &Clock,
) -> Result<Engine, StartError> {
    let transport = &settings.transport;
    let mut random = [0; 40];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut random))
        .map_err(StartError::system("read /dev/urandom"))?;
    let (secret, seed) = random.split_at(32);
    let config = EngineConfig {
        addresses: served.addresses.clone(),
        pkeys: vec![DEFAULT_PKEY],
        worker: worker(settings, index),
        key_secret: secret.try_into().unwrap_or_default(),
        qpn_seed: u64::from_le_bytes(seed.try_into().unwrap_or_default()),
        burst: port.burst,
        limits: TransportLimits {
            max_unacked_packets: transport.max_unacked_packets,
            max_unacked_bytes: transport.max_unacked.bytes() as u32,
            max_read_bytes: transport.max_read.bytes() as u32,
            ack_delay: transport.ack_delay.duration(),
            port_mtu: served.path_mtu(settings),
            ..TransportLimits::default()
        },
        hold: hold_policy(&settings.hold),
        congestion: congestion_policy(settings, served),
        circuits: circuits(settings),
    };
    Ok(Engine::new(config, clock.now()))
}

/// How paths are held in the dark.
pub(super) fn hold_policy(hold: &Hold) -> HoldPolicy {
    HoldPolicy {
        enabled: hold.enabled,
        detect: hold.detect.duration(),
        hold_max: hold.hold_max.duration(),
        probe_every: hold.probe_every.duration(),
    }
}

/// How queue pairs share lines with others.
pub(super) fn congestion_policy(settings: &Settings, served: &Served) -> CongestionPolicy {
    let congestion = &settings.congestion;
    CongestionPolicy {
        enabled: congestion.enabled,
        // They were checked with all other settings.
        tuning: congestion.tuning(served.speed_mbps()).unwrap_or_default(),
        reacting: congestion.reacting_peers.clone(),
    }
}

/// Which paths ride which circuits.
pub(super) fn circuits(settings: &Settings) -> CircuitPlan {
    CircuitPlan { circuits: settings.circuit.iter().flat_map(CircuitSettings::circuits).collect() }
}

/// Who worker `index` is: its queue pairs and the packets for them. Settings allow fewer than a QPN can name.
fn worker(settings: &Settings, index: u32) -> engine::Worker {
    engine::Worker::new(index as usize, settings.workers.count as usize).unwrap_or(engine::Worker::ONLY)
}

/// A GUID that is the same after a restart: of the first address, as RoCE drivers make it of the MAC.
fn node_guid(served: &Served) -> u64 {
    let Some(address) = served.addresses.first() else { return 0 };
    let [.., a, b, c, d, e, f, g, h] = crate::wire::Gid::from(*address).0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// What clients are told of the port.
pub(super) fn port_status(settings: &Settings, served: &Served) -> PortStatus {
    PortStatus {
        active: served.link_up && !served.addresses.is_empty(),
        path_mtu: served.path_mtu(settings),
        speed_mbps: served.speed_mbps(),
    }
}

/// The poll policy that settings ask for.
pub(super) fn poll_policy(workers: &settings::Workers) -> PollPolicy {
    PollPolicy { always: workers.poll == Poll::Always, spin_max: workers.spin_max.duration() }
}

/// What a program of user `uid` may have and do.
pub(super) fn permissions(limits: &settings::Clients, uid: u32) -> Permissions {
    let is_root = uid == 0;
    Permissions {
        max_queue_pairs: limits.max_queue_pairs,
        max_regions: limits.max_memory_regions,
        max_registered_bytes: limits.max_registered.bytes(),
        max_queue_depth: limits.max_queue_depth,
        max_queue_memory_bytes: limits.max_queue_memory.bytes(),
        general_services: is_root,
        privileged_qkeys: is_root,
        ..Permissions::default()
    }
}
