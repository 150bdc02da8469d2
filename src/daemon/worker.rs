//! A worker: one thread that joins a port, an engine and the clients attached to it.
//!
//! Workers share nothing. The control plane reaches one only through its bounded channels and an eventfd; it publishes its
//! counters without locks. One turn of the loop receives, posts, transmits and completes, each within a budget, so that
//! neither a flood of packets nor a greedy client starves the others.

use super::answer;
use super::clients::{Clients, Place};
use super::clock::Clock;
use super::poll::{PollPolicy, Poller, Rest};
use super::publish::Publication;
use super::waiter::{Ready, Waiter, Waker};
use crate::control::worker::{Request, Requests};
use crate::counters::Publisher;
use crate::engine::{CircuitPlan, CongestionPolicy, Engine, PathNotice};
use crate::io::Port;
use crate::ipc::server::{Permissions, PortStatus, Server};
use crate::path::HoldPolicy;
use crate::time::{Duration, Instant};
use crate::transport::Burst;
use crate::wire::Datagram;
use crossbeam::channel::{Receiver, Sender};
use nix::errno::Errno;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use tracing::{debug, error, info, warn};

/// What the supervisor tells a worker.
#[derive(Debug)]
pub(super) enum Order {
    /// Serve this client: its connected socket.
    Attach(OwnedFd, Permissions, Place),
    /// Poll by another policy.
    Poll(PollPolicy),
    /// These are the circuits.
    Circuits(CircuitPlan),
    /// Share lines by another policy.
    Congestion(Box<CongestionPolicy>),
    /// Hold paths by another policy.
    Hold(HoldPolicy),
    /// The link has changed.
    Link(PortStatus),
    /// The addresses served have changed.
    Addresses(Vec<IpAddr>),
    /// End once nothing is outstanding of what has been posted by now, at the latest after this time.
    Drain(Duration),
}

/// Orders that may wait for one worker.
pub(super) const ORDER_QUEUE_DEPTH: usize = 256;

/// The supervisor's end of a worker.
#[derive(Clone, Debug)]
pub(super) struct Orders {
    sender: Sender<Order>,
    waker: Waker,
}

impl Orders {
    /// Gives an order; false if the worker has ended or does not keep up.
    pub(super) fn give(&self, order: Order) -> bool {
        let taken = self.sender.try_send(order).is_ok();
        self.waker.wake();
        taken
    }
}

/// Everything a worker is made of.
pub(super) struct Parts {
    /// Which worker, from 0.
    pub index: u32,
    /// The CPU that it is pinned to.
    pub cpu: Option<u32>,
    /// Its queue pairs.
    pub engine: Engine,
    /// Its way to the network.
    pub port: Box<dyn Port>,
    /// Its clients.
    pub server: Server,
    /// When it sleeps.
    pub policy: PollPolicy,
    /// The clock of the whole daemon.
    pub clock: Clock,
    /// Where it publishes its counters.
    pub publisher: Publisher,
    /// What the control plane asks.
    pub requests: Requests,
}

/// One worker.
pub(super) struct Worker {
    index: u32,
    cpu: Option<u32>,
    engine: Engine,
    port: Box<dyn Port>,
    clients: Clients,
    poller: Poller,
    clock: Clock,
    publication: Publication,
    requests: Requests,
    orders: Receiver<Order>,
    waiter: Waiter,
    ready: Vec<Ready>,
    outgoing: Outgoing,
    /// Clients have their turn to answer what came, before the engine does.
    is_answering: bool,
    /// Bursts that left last.
    sent: usize,
    next_look: Instant,
    next_publication: Instant,
    ends_at: Option<Instant>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Packets taken from the port in one turn.
const RECEIVE_BUDGET: usize = 256;
/// Work requests taken from clients in one turn.
const POST_BUDGET: usize = 256;
/// More than these are a stream.
const FEW_PACKETS: usize = 4;
/// Bursts under construction at a time.
const BURSTS: usize = 8;
/// Bursts handed to the port in one turn.
const TRANSMIT_BUDGET: usize = 32;
/// How often a busy worker looks at its clients' sockets and its orders.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// How often counters are published while the worker is awake.
const PUBLISH_EVERY: Duration = Duration::from_millis(20);
/// How often a draining worker asks whether it is done.
const DRAIN_EVERY: Duration = Duration::from_millis(5);

/// Bursts between the engine and the port: a port that is full leaves some for the next turn.
struct Outgoing {
    bursts: Vec<Burst>,
    head: usize,
    filled: usize,
    blocked: bool,
}

impl Worker {
    /// A worker, with the waker for its [`WorkerHandle`](crate::control::worker::WorkerHandle) made beforehand.
    ///
    /// # Errors
    /// The kernel's, if descriptors are short.
    pub(super) fn new(parts: Parts, waiter: Waiter) -> Result<(Self, Orders), Errno> {
        let Parts { index, cpu, engine, port, server, policy, clock, publisher, requests } = parts;
        let (sender, orders) = crossbeam::channel::bounded(ORDER_QUEUE_DEPTH);
        waiter.watch(port.readable(), Ready::Port)?;
        let limits = port.capabilities().burst;
        let orders_end = Orders { sender, waker: waiter.waker() };
        let worker = Self {
            index,
            cpu,
            engine,
            port,
            clients: Clients::new(server),
            poller: Poller::new(policy),
            clock,
            publication: Publication::new(publisher),
            requests,
            orders,
            waiter,
            ready: Vec::with_capacity(64),
            outgoing: Outgoing {
                bursts: (0..BURSTS).map(|_| Burst::new(limits)).collect(),
                head: 0,
                filled: 0,
                blocked: false,
            },
            is_answering: false,
            sent: 0,
            next_look: Instant::ZERO,
            next_publication: Instant::ZERO,
            ends_at: None,
        };
        Ok((worker, orders_end))
    }

    /// Works until it has drained.
    ///
    /// # Errors
    /// What the kernel refused that a worker cannot live without.
    pub(super) fn run(mut self) -> Result<(), WorkerError> {
        while !self.is_done() {
            let now = self.clock.now();
            if self.turn(now)? {
                self.poller.handle_work();
                self.publication.handle_turn(true);
                continue;
            }
            self.publication.handle_turn(false);
            match self.poller.handle_nothing(now) {
                // The processor may be needed by the very client that we wait for.
                Rest::Spin => std::thread::yield_now(),
                Rest::Sleep => self.sleep(now)?,
            }
        }
        self.clients.detach_all(self.clock.now(), &mut self.engine, &self.waiter);
        self.publish(self.clock.now());
        info!(worker = self.index, "worker has ended");
        Ok(())
    }

    /// A few packets that came alone are answered in the next turn: meanwhile their completions reach the clients, and what a
    /// client that polls posts at once leaves in one super-packet with the ACK of what it answers. In a stream nothing waits.
    fn turn(&mut self, now: Instant) -> Result<bool, WorkerError> {
        let received = self.receive(now)?;
        let mut worked = received > 0;
        if self.engine.poll_timeout().is_some_and(|t| t <= now) {
            self.engine.handle_timeout(now);
            worked = true;
        }
        worked |= self.clients.poll_doorbells(now, &mut self.engine, POST_BUDGET) > 0;
        self.is_answering = !self.is_answering && (1..=FEW_PACKETS).contains(&received) && self.sent <= 1;
        if !self.is_answering {
            self.sent = self.transmit(now)?;
            worked |= self.sent > 0;
        }
        worked |= self.clients.deliver(now, &mut self.engine, &self.waiter) > 0;
        self.tell_paths();
        // A path that goes dark does not wait for the next look.
        if now >= self.next_look || self.requests.is_waiting() {
            self.next_look = now + LOOK_EVERY;
            self.waiter.look(&mut self.ready)?;
            worked |= self.handle_ready(now);
        }
        if now >= self.next_publication {
            self.publish(now);
        }
        Ok(worked)
    }

    fn receive(&mut self, now: Instant) -> Result<usize, WorkerError> {
        let Self { port, engine, clients, .. } = self;
        let mut take = |datagram: &Datagram<'_>| clients.handle_datagram(now, engine, datagram);
        let received = port.receive(RECEIVE_BUDGET, &mut take)?;
        if received > 0 {
            self.publication.handle_receive(received);
        }
        Ok(received)
    }

    fn transmit(&mut self, now: Instant) -> Result<usize, WorkerError> {
        let Self { outgoing, engine, port, waiter, publication, .. } = self;
        let mut sent = 0;
        while sent < TRANSMIT_BUDGET {
            if outgoing.head == outgoing.filled {
                outgoing.head = 0;
                outgoing.filled = 0;
                while let Some(burst) = outgoing.bursts.get_mut(outgoing.filled) {
                    if !engine.poll_transmit(now, burst) {
                        break;
                    }
                    publication.handle_burst(burst);
                    outgoing.filled += 1;
                }
                if outgoing.filled == 0 {
                    break;
                }
            }
            let waiting = outgoing.bursts.get(outgoing.head..outgoing.filled).unwrap_or_default();
            let taken = port.send(waiting)?;
            outgoing.head += taken;
            sent += taken;
            let blocked = outgoing.head < outgoing.filled;
            if blocked != outgoing.blocked {
                outgoing.blocked = blocked;
                watch_writable(port.as_ref(), waiter, blocked)?;
            }
            if blocked {
                break;
            }
        }
        while let Some(refusal) = port.poll_refusal() {
            debug!(%refusal, "the kernel refused a burst");
        }
        Ok(sent)
    }

    fn handle_ready(&mut self, now: Instant) -> bool {
        let mut worked = false;
        for ready in std::mem::take(&mut self.ready) {
            worked |= self.clients.handle_ready(now, ready, &mut self.engine, &self.waiter);
        }
        while let Ok(order) = self.orders.try_recv() {
            self.handle_order(now, order);
            worked = true;
        }
        while let Some(request) = self.requests.poll_request() {
            self.answer(now, request);
            worked = true;
        }
        worked
    }

    fn handle_order(&mut self, now: Instant, order: Order) {
        match order {
            Order::Attach(socket, permissions, place) => {
                self.clients.attach(now, socket, permissions, place, &self.waiter);
            }
            Order::Poll(policy) => self.poller.set_policy(policy),
            Order::Circuits(plan) => self.engine.set_circuits(now, plan),
            Order::Congestion(policy) => self.engine.set_congestion_policy(now, *policy),
            Order::Hold(policy) => self.engine.set_hold_policy(now, policy),
            Order::Link(status) => {
                self.clients.set_port(status);
                self.engine.set_link(now, status.active, status.path_mtu);
            }
            Order::Addresses(addresses) => {
                if let Err(error) = self.port.set_addresses(&addresses) {
                    warn!(%error, "cannot serve the interface's new addresses");
                } else {
                    self.engine.set_addresses(&addresses);
                }
            }
            Order::Drain(limit) => {
                self.clients.close(now, &mut self.engine);
                self.ends_at = Some(now + limit);
            }
        }
    }

    fn answer(&mut self, now: Instant, request: Request) {
        match request {
            Request::Status { reply } => {
                let worker = answer::worker(self.index, self.cpu, &self.engine);
                reply.send((worker, answer::clients(self.index, now, &self.engine, &self.clients)));
            }
            Request::QueuePairs { from, reply } => {
                reply.send(answer::queue_pairs(self.index, now, &mut self.engine, self.clients.server(), from));
            }
            Request::QueuePair { qpn, reply } => {
                reply.send(answer::queue_pair(self.index, now, &mut self.engine, self.clients.server(), qpn));
            }
            Request::Paths { from, reply } => reply.send(answer::paths(self.index, now, &self.engine, from)),
            Request::Announce { announcement, reply } => {
                let now = self.clock.now();
                reply.send(self.engine.handle_path_event(now, &announcement.event(now)));
            }
            Request::MemoryRegions { from, reply } => {
                reply.send(answer::memory_regions(self.index, &self.engine, self.clients.server(), from));
            }
        }
    }

    fn sleep(&mut self, now: Instant) -> Result<(), WorkerError> {
        if !self.clients.may_sleep() {
            return Ok(());
        }
        self.publish(now);
        let deadline = self.engine.poll_timeout();
        let mut limit = deadline.map(|t| t.since(now));
        if self.ends_at.is_some() {
            limit = Some(limit.map_or(DRAIN_EVERY, |l| l.min(DRAIN_EVERY)));
        }
        let slept = self.waiter.sleep(limit, &mut self.ready);
        self.clients.woke();
        slept?;
        let woke = self.clock.now();
        self.publication.handle_sleep(woke.since(now));
        let timer_only = self.ready.iter().all(|r| *r == Ready::Deadline);
        self.poller.handle_wake(now, woke, timer_only);
        self.handle_ready(woke);
        Ok(())
    }

    /// Tells the log, and those who watch, what happened to paths.
    fn tell_paths(&mut self) {
        while let Some(notice) = self.engine.poll_path_notice() {
            self.requests.tell(answer::path_news(self.index, &notice));
            match notice {
                PathNotice::Dark { peer, cause } => info!(%peer, cause = cause.name(), "the path is dark"),
                PathNotice::Light { peer, dark } => info!(%peer, ?dark, "the path has light"),
                PathNotice::Lost { peer, queue_pairs } => {
                    warn!(%peer, queue_pairs, "the path was dark for longer than hold_max; what waited has failed");
                }
            }
        }
    }

    fn publish(&mut self, now: Instant) {
        self.tell_paths();
        self.next_publication = now + PUBLISH_EVERY;
        self.publication.publish(&mut self.engine, self.port.as_mut(), self.clients.server(), self.clients.visits());
    }

    fn is_done(&self) -> bool {
        self.ends_at.is_some_and(|end| self.engine.is_quiet() || self.clock.now() >= end)
    }
}

fn watch_writable(port: &dyn Port, waiter: &Waiter, blocked: bool) -> Result<(), Errno> {
    let Some(fd) = port.blocked_on() else { return Ok(()) };
    waiter.unwatch(fd);
    if blocked { waiter.watch(fd, Ready::PortWritable) } else { Ok(()) }
}

/// What ends a worker before its time.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Its port cannot go on.
    #[error("the port failed: {0}")]
    Port(#[from] crate::io::PortError),
    /// It can no longer wait for events.
    #[error("waiting for events failed: {0}")]
    Wait(#[from] Errno),
}

/// Runs a worker on a thread of its own, pinned where `cpu` says.
///
/// # Errors
/// If the thread cannot be made.
pub(super) fn spawn(
    worker: Worker,
    on_end: impl FnOnce(Result<(), WorkerError>) + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(format!("worker-{}", worker.index)).spawn(move || {
        if let Some(cpu) = worker.cpu {
            pin(cpu);
        }
        let index = worker.index;
        let ended = worker.run();
        if let Err(error) = &ended {
            error!(worker = index, %error, "worker failed");
        }
        on_end(ended);
    })
}

fn pin(cpu: u32) {
    let mut set = nix::sched::CpuSet::new();
    let pinned =
        set.set(cpu as usize).and_then(|()| nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set));
    if let Err(error) = pinned {
        warn!(cpu, %error, "cannot pin a worker to its CPU: it runs where the kernel likes");
    }
}
