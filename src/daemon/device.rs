//! What the daemon is, as the control plane and the metrics show it.

use crate::control::{Overview, view};
use crate::counters::Published;
use crate::io::Capabilities;
use crate::io::link::LinkState;
use crate::metrics;
use crate::settings::Settings;
use crate::wire::PathMtu;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The part of the network that the daemon serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Served {
    /// The interface's name; `None` if only addresses were given.
    pub interface: Option<String>,
    /// Whether it has carrier.
    pub link_up: bool,
    /// Bytes of an IP packet that it carries.
    pub link_mtu: u32,
    /// The addresses, the device's GIDs in their order.
    pub addresses: Vec<IpAddr>,
}

/// The MTU of a device that is bound to addresses only: what the loopback interface and most paths carry.
const UNKNOWN_LINK_MTU: u32 = 1500;

impl Served {
    /// What settings and the link's state make of it.
    pub(super) fn new(settings: &Settings, link: Option<&LinkState>) -> Self {
        let mut addresses = settings.device.addresses.clone();
        if let (true, Some(link)) = (addresses.is_empty(), link) {
            // The one that programs should use first, then the others.
            addresses.extend(link.gid_address());
            let others: Vec<IpAddr> = link.usable_addresses().filter(|a| !addresses.contains(a)).collect();
            addresses.extend(others);
        }
        Self {
            interface: link.map(|l| l.name.clone()),
            link_up: link.is_none_or(LinkState::is_running),
            link_mtu: link.map_or(UNKNOWN_LINK_MTU, |l| l.mtu),
            addresses,
        }
    }

    /// The largest path MTU that fits the link and the settings.
    pub(super) fn path_mtu(&self, settings: &Settings) -> PathMtu {
        let allowed = PathMtu::from_bytes(settings.device.max_mtu).unwrap_or(PathMtu::B4096);
        PathMtu::largest_for(self.link_mtu).unwrap_or(PathMtu::B256).min(allowed)
    }

    /// Speed of the link in Mbit/s; 0 if it has none (veth, loopback).
    pub(super) fn speed_mbps(&self) -> u32 {
        let Some(interface) = &self.interface else { return 0 };
        let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed"));
        text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    }

    /// As the control plane shows it.
    pub(super) fn view(&self, settings: &Settings, config: Option<PathBuf>, port: &Capabilities) -> view::Device {
        view::Device {
            name: settings.device.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            config,
            interface: self.interface.clone(),
            link_up: self.link_up,
            link_mtu_bytes: self.link_mtu,
            active_mtu_bytes: self.path_mtu(settings).bytes(),
            gids: (0..).zip(&self.addresses).map(|(index, address)| view::Gid { index, address: *address }).collect(),
            backend: port.backend.to_string(),
            driver: port.driver.to_string(),
            notes: port.notes.clone(),
            segmentation_offload: port.burst.max_packets > 1,
        }
    }
}

/// What the metrics ask.
#[derive(Debug)]
pub(super) struct Facts {
    overview: Arc<Overview>,
    started_unix_seconds: f64,
    link_downed: AtomicU64,
    rate_bytes_per_second: Option<u64>,
    is_healthy: AtomicBool,
}

impl Facts {
    pub(super) fn new(overview: Arc<Overview>, speed_mbps: u32) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            overview,
            started_unix_seconds: now.as_secs_f64(),
            link_downed: AtomicU64::new(0),
            rate_bytes_per_second: (speed_mbps > 0).then(|| u64::from(speed_mbps) * 125_000),
            is_healthy: AtomicBool::new(true),
        }
    }

    /// The interface lost its carrier.
    pub(super) fn note_link_down(&self) {
        self.link_downed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether every worker answered last time.
    pub(super) fn set_healthy(&self, healthy: bool) {
        self.is_healthy.store(healthy, Ordering::Relaxed);
    }
}

impl metrics::Source for Facts {
    fn device(&self) -> metrics::Device {
        let device = self.overview.device();
        metrics::Device {
            name: device.name.clone(),
            version: device.version.clone(),
            backend: device.backend.clone(),
            driver: device.driver.clone(),
            started_unix_seconds: self.started_unix_seconds,
            link_up: device.link_up,
            link_downed: self.link_downed.load(Ordering::Relaxed),
            rate_bytes_per_second: self.rate_bytes_per_second,
        }
    }

    fn workers(&self) -> Vec<Arc<Published>> {
        self.overview.workers().iter().map(|w| w.published()).collect()
    }

    fn daemon(&self) -> Arc<Published> {
        self.overview.counters().published()
    }

    fn health(&self) -> Result<(), String> {
        if self.is_healthy.load(Ordering::Relaxed) { Ok(()) } else { Err("a worker does not answer".into()) }
    }
}
