//! The daemon's side of its clients, without threads, sockets' loops or clocks: whoever drives it has those.
//!
//! One [`Server`] belongs to one worker and its [`Engine`], and holds the [`Session`] of each client attached there. A turn of
//! the worker:
//!
//! 1. messages that came through attach sockets: [`handle_message`](Server::handle_message), and send the [`Answer`];
//! 2. [`poll_doorbells`](Server::poll_doorbells): work requests go from shared memory to the engine, at most so many a turn, so a
//!    client that floods waits for the others;
//! 3. the engine's bursts leave;
//! 4. [`deliver`](Server::deliver): completions and events go to the clients;
//! 5. nothing to do: [`may_sleep`](Server::may_sleep), wait for sockets, doorbells, packets and the engine's deadline,
//!    [`woke`](Server::woke).
//!
//! | file | what it is for |
//! |---|---|
//! | `session` | one client: attaching, its messages, its end |
//! | `objects`, `arena` | what a client has, and where its queues lie |
//! | `calls`, `queues` | what it can ask for |
//! | `decode`, `post` | work requests out of shared memory, validated |
//! | `deliver` | completions and events into shared memory and pipes |
//! | `counters` | what they did and were told |
//! | `permissions` | who it is and what it may |
//! | `pipe` | pipes that never block |
//!
//! # What a client cannot do
//! It cannot make the daemon panic, wait, or loop: each word of shared memory is read once and then checked, a producer or
//! consumer index that lies ends the session ([`Ended`]), a work request that the queue pair refuses fails that queue pair. It
//! cannot name objects of others: handles are its own, keys are checked against its protection domains. What it may have is
//! bounded by its [`Permissions`].

mod arena;
mod calls;
mod counters;
mod decode;
mod deliver;
mod objects;
mod permissions;
mod pipe;
mod post;
mod queues;
mod session;

pub use crate::memory::Trust;
pub use counters::{BadWorkCounters, EventCounters, RefusalCounters, SessionCounters};
pub use permissions::{Peer, Permissions};
use session::{Common, Desk, DeviceView};
pub use session::{Ended, Session};

use crate::counters::Tally;
use crate::engine::{Engine, Release};
use crate::ipc::protocol::{MAX_MESSAGE_BYTES, PortAttributes, PortState, Refusal};
use crate::time::Instant;
use crate::wire::{Datagram, MAX_MESSAGE_BYTES as MAX_ROCE_MESSAGE_BYTES, PathMtu};
use hashbrown::{HashMap, HashSet};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};

type Set<K> = HashSet<K, foldhash::fast::RandomState>;
type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Work requests that one client may post before the next one has its turn.
const TURN: usize = 64;
/// Looks for a receive that a packet needs: clients that flood must not hold the packets of others up.
const LOOKS: usize = 64;

/// What clients are told about the device.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its name, as in `ibv_devices`.
    pub device_name: String,
    /// The daemon's version.
    pub firmware: String,
    /// Node GUID, in host order.
    pub node_guid: u64,
}

/// What clients are told about the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortStatus {
    /// Whether the link is up.
    pub active: bool,
    /// The largest path MTU that the link has room for.
    pub path_mtu: PathMtu,
    /// Speed of the link in Mbit/s, 0 if it does not say.
    pub speed_mbps: u32,
}

/// Names a session of a [`Server`]. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(u64);

impl SessionId {
    /// The number under which the engine keeps what the client owns.
    pub const fn owner(self) -> u64 {
        self.0
    }
}

/// What to send to a client.
#[derive(Debug)]
pub struct Answer {
    /// The message.
    pub bytes: Vec<u8>,
    /// The descriptors that go with it.
    pub fds: Vec<OwnedFd>,
    /// Whether to close the socket afterwards.
    pub hang_up: bool,
}

const _: () = assert!(MAX_MESSAGE_BYTES >= 1024, "refusals with their texts must fit");

/// The clients of one worker. See the [module](self).
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    port: PortStatus,
    sessions: Vec<Session>,
    common: Common,
    /// Owners with so many queue pairs that they are released in several turns.
    releasing: Vec<SessionId>,
    ended: VecDeque<(SessionId, Ended)>,
    next_session: u64,
    /// The session that is first in the next turn.
    first: usize,
    /// Nothing more is posted.
    closed: bool,
    /// What the clients did that are gone.
    departed: SessionCounters,
}

impl Server {
    /// A server without clients. `first_owner` is where the numbers of its sessions begin: the owners that the daemon itself
    /// uses in the engine must be below.
    pub fn new(config: ServerConfig, first_owner: u64) -> Self {
        Self {
            config,
            port: PortStatus { active: true, path_mtu: PathMtu::B4096, speed_mbps: 0 },
            sessions: Vec::new(),
            common: Common::new(),
            releasing: Vec::new(),
            ended: VecDeque::new(),
            next_session: first_owner,
            first: 0,
            closed: false,
            departed: SessionCounters::default(),
        }
    }

    /// Changes what clients are told about the port. (Its events come from the engine.)
    pub fn set_port(&mut self, port: PortStatus) {
        self.port = port;
    }

    /// The sessions, oldest first.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter()
    }

    /// One session.
    pub fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(self.place(id)?)
    }

    /// How long send requests took that were done and told so, to the resolution of a turn: from the
    /// [`poll_doorbells`](Self::poll_doorbells) that took one to the [`deliver`](Self::deliver) that handed out its completion.
    pub fn latency(&self) -> &Tally {
        &self.common.latency
    }

    /// What all clients did, those included that are gone.
    pub fn totals(&self) -> SessionCounters {
        self.sessions.iter().fold(self.departed, |mut sum, session| {
            sum += *session.counters();
            sum
        })
    }

    /// The asynchronous events that there were.
    pub fn events(&self) -> &EventCounters {
        &self.common.events
    }

    /// A session's doorbell `eventfd`, which a client writes when [`may_sleep`](Self::may_sleep) has said that the worker sleeps.
    ///
    /// Wait for it with edge-triggered `epoll` (each write is an edge) and **never read it**: client and daemon share the
    /// file's flags, so a client could make a read block.
    pub fn doorbell(&self, id: SessionId) -> Option<BorrowedFd<'_>> {
        self.session(id).map(Session::doorbell)
    }

    /// Takes a client in that has connected. It is attached when its hello has been answered by
    /// [`handle_message`](Self::handle_message).
    ///
    /// # Errors
    /// The daemon has no descriptor or memory left.
    pub fn attach(&mut self, peer: Peer, permissions: Permissions) -> Result<SessionId, Refusal> {
        let id = SessionId(self.next_session);
        self.sessions.push(Session::new(id, peer, permissions)?);
        self.next_session += 1;
        Ok(id)
    }

    /// Takes one message of a client and says what to answer. An empty message is the socket's end, and not for here.
    ///
    /// # Errors
    /// The client does not keep the protocol: [`detach`](Self::detach) it and close its socket.
    pub fn handle_message(
        &mut self,
        now: Instant,
        id: SessionId,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        engine: &mut Engine,
    ) -> Result<Answer, Ended> {
        let place = self.place(id).ok_or(Ended::Unknown)?;
        let Some(session) = self.sessions.get_mut(place) else { return Err(Ended::Unknown) };
        let device = DeviceView { config: &self.config, port: port_attributes(&self.port, engine) };
        let mut desk = Desk { now, engine, common: &mut self.common };
        session.handle_message(&device, &mut desk, bytes, fds)
    }

    /// Ends a session and takes back all that its client had. Peers of its queue pairs see what they would see of a dying
    /// process's NIC: silence.
    pub fn detach(&mut self, now: Instant, id: SessionId, engine: &mut Engine) {
        if let Some(place) = self.place(id) {
            // Descriptors are closed and areas unmapped here.
            self.departed += *self.sessions.remove(place).counters();
            self.common.cqs.retain(|_, owner| *owner != id);
            self.releasing.push(id);
        }
        self.release(now, engine);
    }

    /// Goes on with taking back what very large clients had.
    fn release(&mut self, now: Instant, engine: &mut Engine) {
        self.releasing.retain(|id| engine.release(now, id.owner()) == Release::More);
    }

    /// The next session that ended because its client lied in shared memory. It is detached already: close its socket.
    pub fn poll_ended(&mut self) -> Option<(SessionId, Ended)> {
        self.ended.pop_front()
    }

    /// Hands a packet to the engine.
    ///
    /// One that takes a receive where the engine knows of none makes it look first what the clients have posted: a program that
    /// posts a receive and then lets its peer send must have that receive, however the turns of the driver fall.
    pub fn handle_datagram(&mut self, now: Instant, engine: &mut Engine, datagram: &Datagram<'_>) {
        for _ in 0..LOOKS {
            if !engine.lacks_receive(datagram) || self.poll_doorbells(now, engine, TURN) == 0 {
                break;
            }
        }
        engine.handle_datagram(now, datagram);
    }

    /// Posts work requests of all clients, about `budget` of them, in fair turns. Returns how many; if not 0 there may be more.
    pub fn poll_doorbells(&mut self, now: Instant, engine: &mut Engine, budget: usize) -> usize {
        self.release(now, engine);
        if self.closed {
            return 0;
        }
        let (count, mut posted, mut liars) = (self.sessions.len(), 0, Vec::new());
        let share = budget.checked_div(count).unwrap_or(0).max(TURN);
        for _ in 0..count {
            let Some(turn) = budget.checked_sub(posted).filter(|rest| *rest > 0) else { break };
            let place = self.first % count;
            self.first = place + 1;
            let Some(session) = self.sessions.get_mut(place) else { continue };
            let mut desk = Desk { now, engine, common: &mut self.common };
            match session.post(&mut desk, turn.min(share)) {
                Ok(n) => posted += n,
                Err(ended) => liars.push((session.id(), ended)),
            }
        }
        self.end(now, liars, engine);
        posted
    }

    /// The device is about to end: takes what all clients have posted so far, and nothing that they post from now on, so that an end
    /// comes.
    pub fn close(&mut self, now: Instant, engine: &mut Engine) {
        let mut liars = Vec::new();
        for session in &mut self.sessions {
            let mut desk = Desk { now, engine, common: &mut self.common };
            if let Err(ended) = session.drain_all(&mut desk) {
                liars.push((session.id(), ended));
            }
        }
        self.closed = true;
        self.end(now, liars, engine);
    }

    /// Hands completions and events to the clients. Returns how many completions.
    pub fn deliver(&mut self, now: Instant, engine: &mut Engine) -> usize {
        let (mut delivered, mut liars) = (0, Vec::new());
        while let Some((cq, notice)) = engine.poll_dirty_cq() {
            // A queue of the daemon's own, or of a client that is gone.
            let Some(place) = self.common.cqs.get(&cq).and_then(|id| self.place(*id)) else { continue };
            let Some(session) = self.sessions.get_mut(place) else { continue };
            let mut desk = Desk { now, engine, common: &mut self.common };
            match session.deliver(&mut desk, cq, Some(notice)) {
                Ok(n) => delivered += n,
                Err(ended) => liars.push((session.id(), ended)),
            }
        }
        while let Some(event) = engine.poll_event() {
            self.common.events.note(&event);
            for session in &mut self.sessions {
                let mut desk = Desk { now, engine, common: &mut self.common };
                session.handle_event(&mut desk, &event);
            }
        }
        self.end(now, liars, engine);
        delivered
    }

    fn end(&mut self, now: Instant, liars: Vec<(SessionId, Ended)>, engine: &mut Engine) {
        for (id, ended) in liars {
            self.detach(now, id, engine);
            self.ended.push_back((id, ended));
        }
    }

    /// Tells all clients that the worker is going to sleep and wants to be woken by their doorbells. False, and nothing is
    /// changed, if there is work.
    #[must_use]
    pub fn may_sleep(&mut self) -> bool {
        if !self.releasing.is_empty() {
            return false;
        }
        if self.closed {
            return true;
        }
        for (i, session) in self.sessions.iter().enumerate() {
            if !session.may_sleep() {
                self.sessions.iter().take(i).for_each(Session::woke);
                return false;
            }
        }
        true
    }

    /// Tells all clients that the worker is awake: no doorbell need be written.
    pub fn woke(&mut self) {
        self.sessions.iter().for_each(Session::woke);
    }

    fn place(&self, id: SessionId) -> Option<usize> {
        self.sessions.binary_search_by_key(&id, Session::id).ok()
    }
}

fn port_attributes(port: &PortStatus, engine: &Engine) -> PortAttributes {
    PortAttributes {
        state: if port.active { PortState::Active } else { PortState::Down },
        max_mtu: PathMtu::B4096 as u8,
        active_mtu: port.path_mtu as u8,
        gid_count: engine.addresses().len() as u32,
        pkey_count: engine.pkeys().len() as u16,
        speed_mbps: port.speed_mbps,
        max_message_bytes: MAX_ROCE_MESSAGE_BYTES,
    }
}

#[cfg(test)]
mod tests;
