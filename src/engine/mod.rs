//! The device, still sans-I/O: joins memory, queue pairs, completion queues, timers and addresses.
//!
//! An [`Engine`] is one worker's: it shares nothing with others. Whoever drives it (the daemon's worker, the simulator, a
//! fuzzer) reads the clock and moves the packets:
//!
//! 1. `handle_datagram` for each packet of a receive batch, `handle_timeout`, `post_send`, `post_recv`;
//! 2. `poll_transmit` until it gives no burst: answers to the whole batch come out here, so many packets of one queue pair make one
//!    ACK;
//! 3. `poll_dirty_cq`, `poll_cq`, `poll_event`: what to tell the clients. Unreliable sends complete when they are in a burst,
//!    so bursts leave before completions are shown;
//! 4. sleep until `poll_timeout`.
//!
//! | file | what it is for |
//! |---|---|
//! | `objects` | queue pairs, completion queues, shared receive queues: made, looked at, removed; the end of a client |
//! | `work` | posts and completions |
//! | `receive` | which queue pair a packet is for, and whether it may come in |
//! | `transmit` | whose turn it is to send; timers |
//! | `paths` | which path a queue pair rides, and what hangs off each |
//! | `circuits` | which circuit a path rides on, and what follows |
//! | `congestion` | DCQCN: who is told to slow down, and how fast a queue pair may send |
//! | `heartbeats` | asks silent hosts whether they are alive |
//! | `holding` | the dark and the light: freeze, probe, thaw, give up |
//! | `local` | queue pairs of one engine: one copy, no packets |
//! | `totals` | what all queue pairs counted |
//! | `qpn`, `ready`, `wheel` | numbers, turns, deadlines |
//!
//! In the steady state nothing allocates.

mod circuits;
mod congestion;
mod counters;
mod error;
mod heartbeats;
mod holding;
mod local;
mod objects;
mod paths;
mod qpn;
mod ready;
mod receive;
mod totals;
mod transmit;
mod wheel;
mod work;

pub use circuits::CircuitPlan;
pub use congestion::{CongestionPolicy, CongestionStatus};
pub use counters::{DropReason, EngineCounters};
pub use error::{ObjectError, QpError};
pub use holding::{PathNotice, PathStatus};
pub use objects::Release;
pub use qpn::{QpnTable, Worker};
pub use ready::ReadyQueue;
pub use wheel::TimerWheel;

use crate::memory::Memory;
use crate::path::HoldPolicy;
use crate::time::Instant;
use crate::transport::{
    Burst, BurstLimits, Completions, Context, Event, Qp, QpCounters, SharedReceiveQueues, TransportLimits,
};
use crate::wire::{PathMtu, Qpn};
use chacha20::ChaCha12Rng;
use chacha20::rand_core::SeedableRng;
use core::net::IpAddr;
use slab::Slab;
use std::collections::VecDeque;

/// What an engine is made of.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The device's addresses: packets for others are dropped.
    pub addresses: Vec<IpAddr>,
    /// The partition table.
    pub pkeys: Vec<u16>,
    /// Which worker this is.
    pub worker: Worker,
    /// Makes the keys of memory regions unguessable.
    pub key_secret: [u8; 32],
    /// Chooses the first queue pair number: unguessable too, so that packets of an earlier run find nobody.
    pub qpn_seed: u64,
    /// How large a burst the port takes.
    pub burst: BurstLimits,
    /// How far a queue pair may go before it waits.
    pub limits: TransportLimits,
    /// How paths are held in the dark.
    pub hold: HoldPolicy,
    /// How queue pairs share lines with others.
    pub congestion: CongestionPolicy,
    /// Which paths ride which circuits.
    pub circuits: CircuitPlan,
}

/// One worker's RoCEv2 device. See the [room](self).
pub struct Engine {
    addresses: Vec<IpAddr>,
    worker: Worker,
    link_up: bool,
    shared: Shared,
    qps: Slab<Entry>,
    numbers: QpnTable,
    /// Slot of QP 1.
    gsi: Option<u32>,
    owners: objects::Owners,
    paths: paths::Paths,
    circuits: CircuitPlan,
    /// Numbers of heartbeats that nobody guesses.
    nonces: ChaCha12Rng,
    path_notices: VecDeque<PathNotice>,
    /// Queue pairs that send one packet though their path is dark or silent.
    probing: VecDeque<paths::Seat>,
    /// The queue pair that was called last: what it needs is noted when another's turn comes, not after each packet of a batch.
    recent: Option<u32>,
    /// What no queue pair sends, and whom it is for: last ACKs of queue pairs that are gone, heartbeats.
    aside: VecDeque<(Qpn, Burst)>,
    counters: EngineCounters,
    totals: totals::Totals,
    /// The latest time that the driver told.
    now: Instant,
}

/// A queue pair and whose it is. Boxed: a growing table moves pointers, not queue pairs.
#[derive(Debug)]
struct Entry {
    owner: u64,
    seat: paths::Seat,
    qp: Box<Qp>,
    /// `None`: no mark and no CNP ever concerned it.
    congestion: Option<Box<congestion::Congested>>,
    /// What the totals know of its counters.
    counted: QpCounters,
}

/// What all queue pairs work with.
struct Shared {
    memory: Memory,
    completions: Completions,
    srqs: SharedReceiveQueues,
    events: VecDeque<Event>,
    limits: TransportLimits,
    pkeys: Vec<u16>,
}

impl Shared {
    /// Lends everything to a queue pair whose path shows `now`.
    fn context(&mut self, now: Instant) -> Context<'_> {
        Context {
            now,
            memory: &mut self.memory,
            completions: &mut self.completions,
            srqs: &mut self.srqs,
            events: &mut self.events,
            limits: &self.limits,
            pkeys: &self.pkeys,
        }
    }
}

/// Another stream of the secret than the keys of memory are drawn from.
fn nonces(secret: [u8; 32]) -> ChaCha12Rng {
    let mut random = ChaCha12Rng::from_seed(secret);
    random.set_stream(1);
    random
}

impl Engine {
    /// A device without objects.
    pub fn new(config: EngineConfig, now: Instant) -> Self {
        Self {
            addresses: config.addresses.iter().map(IpAddr::to_canonical).collect(),
            worker: config.worker,
            link_up: true,
            shared: Shared {
                memory: Memory::new(config.key_secret),
                completions: Completions::new(),
                srqs: SharedReceiveQueues::new(),
                events: VecDeque::with_capacity(64),
                limits: TransportLimits { pardons: holding::pardons(&config.hold), ..config.limits },
                pkeys: config.pkeys,
            },
            qps: Slab::new(),
            numbers: QpnTable::new(config.worker, config.qpn_seed),
            gsi: None,
            owners: objects::Owners::default(),
            paths: paths::Paths::new(config.hold, config.congestion, now),
            circuits: config.circuits,
            path_notices: VecDeque::new(),
            probing: VecDeque::new(),
            recent: None,
            aside: VecDeque::new(),
            nonces: nonces(config.key_secret),
            counters: EngineCounters::default(),
            totals: totals::Totals::default(),
            now,
        }
    }

    /// The device's addresses.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Changes the device's addresses. Queue pairs keep theirs; packets for one that is gone are dropped.
    pub fn set_addresses(&mut self, addresses: &[IpAddr]) {
        self.addresses.clear();
        self.addresses.extend(addresses.iter().map(IpAddr::to_canonical));
    }

    /// The partition table.
    pub fn pkeys(&self) -> &[u16] {
        &self.shared.pkeys
    }

    /// Which worker this is.
    pub fn worker(&self) -> Worker {
        self.worker
    }

    /// Regions, windows and protection domains.
    pub fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    /// Regions, windows and protection domains, to be changed.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.shared.memory
    }

    /// The completion queues.
    pub fn completions(&self) -> &Completions {
        &self.shared.completions
    }

    /// The shared receive queues.
    pub fn srqs(&self) -> &SharedReceiveQueues {
        &self.shared.srqs
    }

    /// The limits that hold for all queue pairs.
    pub fn limits(&self) -> &TransportLimits {
        &self.shared.limits
    }

    /// The link went up or down, or carries another path MTU: tells the clients by an event, limits datagrams, and darkens all paths
    /// while it is down.
    pub fn set_link(&mut self, now: Instant, is_up: bool, path_mtu: PathMtu) {
        self.now = self.now.max(now);
        self.shared.limits.port_mtu = path_mtu;
        if self.link_up != is_up {
            self.link_up = is_up;
            self.handle_carrier(now, is_up);
            self.shared.events.push_back(if is_up { Event::PortActive } else { Event::PortErr });
        }
    }

    /// Whether no queue pair has a send request that is not complete. Looks at all of them: for the end of the daemon.
    pub fn is_quiet(&self) -> bool {
        self.qps.iter().all(|(_, entry)| entry.qp.outstanding_sends() == 0)
    }

    /// What it counted.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}
