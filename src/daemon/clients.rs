//! The clients of one worker: their sockets, and what comes over them.

use super::waiter::{Ready, Waiter};
use crate::engine::Engine;
use crate::ipc::protocol::socket;
use crate::ipc::server::{Ended, Peer, Permissions, PortStatus, Server, SessionId};
use crate::time::{Duration, Instant};
use crate::wire::Datagram;
use nix::sys::socket::MsgFlags;
use slab::Slab;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tracing::{debug, info, warn};

/// Clients that came, rang and went, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Visits {
    /// They attached.
    pub attached: u64,
    /// They closed their socket.
    pub detached: u64,
    /// Their process ended.
    pub died: u64,
    /// They broke the protocol.
    pub expelled: u64,
    /// They could not be served: no descriptor or memory was left.
    pub failed: u64,
    /// Times that one of them woke the worker.
    pub wakes: u64,
}

/// Clients attached to the whole daemon: a worker holds one for each of its own, the listener counts them.
#[derive(Clone, Debug, Default)]
pub(super) struct Attached(Arc<AtomicU32>);

/// One attached client, until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Attached);

impl Attached {
    /// A place for one more, if fewer than `limit` are taken.
    pub(super) fn take(&self, limit: u32) -> Option<Place> {
        let more = |n: u32| (n < limit).then_some(n + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The server, and the sockets that it does not know of.
#[derive(Debug)]
pub(super) struct Clients {
    server: Server,
    sockets: Slab<Client>,
    visits: Visits,
}

#[derive(Debug)]
struct Client {
    session: SessionId,
    socket: OwnedFd,
    exit: OwnedFd,
    pid: i32,
    attached: Instant,
    _place: Place,
}

/// Why a client leaves.
#[derive(Debug)]
enum Leaving {
    Detached,
    Died,
    Expelled(Ended),
    Deaf,
    Broken(io::Error),
}

/// Messages of one client handled in one turn; the rest waits for the next.
const MESSAGES_A_TURN: usize = 16;

impl Clients {
    /// No clients yet.
    pub(super) fn new(server: Server) -> Self {
        Self { server, sockets: Slab::new(), visits: Visits::default() }
    }

    /// The sessions.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Who came and went.
    pub(super) fn visits(&self) -> Visits {
        self.visits
    }

    /// How long a client has been attached.
    pub(super) fn attached_for(&self, session: SessionId, now: Instant) -> Duration {
        let client = self.sockets.iter().find(|(_, c)| c.session == session);
        client.map_or(Duration::ZERO, |(_, c)| now.since(c.attached))
    }

    /// Tells clients of the port's state.
    pub(super) fn set_port(&mut self, status: PortStatus) {
        self.server.set_port(status);
    }

    /// Serves a client that has connected.
    pub(super) fn attach(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        permissions: Permissions,
        place: Place,
        waiter: &Waiter,
    ) {
        match self.try_attach(now, socket, permissions, place, waiter) {
            Ok(pid) => {
                self.visits.attached += 1;
                info!(pid, "client attached");
            }
            Err(error) => {
                self.visits.failed += 1;
                warn!(%error, "cannot serve a client that connected");
            }
        }
    }

    fn try_attach(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        permissions: Permissions,
        place: Place,
        waiter: &Waiter,
    ) -> io::Result<i32> {
        let peer = Peer::of(socket.as_fd()).map_err(io::Error::other)?;
        let pid = peer.process().pid();
        let exit = peer.process().pidfd().try_clone_to_owned()?;
        let session = self.server.attach(peer, permissions).map_err(io::Error::other)?;
        let entry = self.sockets.vacant_entry();
        let token = entry.key() as u32;
        let client = entry.insert(Client { session, socket, exit, pid, attached: now, _place: place });
        let watched = waiter
            .watch(client.socket.as_fd(), Ready::Client(token))
            .and_then(|()| waiter.watch(client.exit.as_fd(), Ready::ClientExit(token)))
            .and_then(|()| self.server.doorbell(session).map_or(Ok(()), |bell| waiter.watch(bell, Ready::Doorbell)));
        watched.map_err(io::Error::from).map(|()| pid)
    }

    /// Takes what `ready` says; true if there was something.
    pub(super) fn handle_ready(&mut self, now: Instant, ready: Ready, engine: &mut Engine, waiter: &Waiter) -> bool {
        match ready {
            Ready::Client(token) => self.handle_socket(now, token as usize, engine, waiter),
            Ready::ClientExit(token) => self.leave(now, token as usize, &Leaving::Died, engine, waiter),
            Ready::Doorbell => {
                self.visits.wakes += 1;
                false
            }
            Ready::Port | Ready::PortWritable | Ready::Wake | Ready::Deadline => false,
        }
    }

    fn handle_socket(&mut self, now: Instant, token: usize, engine: &mut Engine, waiter: &Waiter) -> bool {
        for _ in 0..MESSAGES_A_TURN {
            match self.handle_message(now, token, engine) {
                Ok(true) => {}
                Ok(false) => break,
                Err(leaving) => {
                    self.leave(now, token, &leaving, engine, waiter);
                    break;
                }
            }
        }
        true
    }

    /// One message and its answer; false if there was none.
    fn handle_message(&mut self, now: Instant, token: usize, engine: &mut Engine) -> Result<bool, Leaving> {
        let Some(Client { session, socket, .. }) = self.sockets.get(token) else { return Ok(false) };
        let message = match socket::receive(socket, MsgFlags::MSG_DONTWAIT) {
            Ok(message) if message.bytes.is_empty() => return Err(Leaving::Detached),
            Ok(message) => message,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(Leaving::Detached),
            Err(e) => return Err(Leaving::Broken(e)),
        };
        let answer = self
            .server
            .handle_message(now, *session, &message.bytes, message.fds, engine)
            .map_err(Leaving::Expelled)?;
        let fds: Vec<BorrowedFd<'_>> = answer.fds.iter().map(AsFd::as_fd).collect();
        socket::send(socket, &answer.bytes, &fds, MsgFlags::MSG_DONTWAIT).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Leaving::Deaf,
            io::ErrorKind::BrokenPipe => Leaving::Detached,
            _ => Leaving::Broken(e),
        })?;
        if answer.hang_up { Err(Leaving::Detached) } else { Ok(true) }
    }

    /// Hands a packet to the engine, with the receives that clients have posted for it.
    pub(super) fn handle_datagram(&mut self, now: Instant, engine: &mut Engine, datagram: &Datagram<'_>) {
        self.server.handle_datagram(now, engine, datagram);
    }

    /// Posts what clients have put into their rings; gives back how many requests.
    pub(super) fn poll_doorbells(&mut self, now: Instant, engine: &mut Engine, budget: usize) -> usize {
        self.server.poll_doorbells(now, engine, budget)
    }

    /// Takes what clients have posted so far, and nothing from now on.
    pub(super) fn close(&mut self, now: Instant, engine: &mut Engine) {
        self.server.close(now, engine);
    }

    /// Hands completions and events to the clients; gives back how many. Clients that lied are shown the door.
    pub(super) fn deliver(&mut self, now: Instant, engine: &mut Engine, waiter: &Waiter) -> usize {
        let delivered = self.server.deliver(now, engine);
        while let Some((session, ended)) = self.server.poll_ended() {
            if let Some(token) = self.sockets.iter().find(|(_, c)| c.session == session).map(|(t, _)| t) {
                self.leave(now, token, &Leaving::Expelled(ended), engine, waiter);
            }
        }
        delivered
    }

    /// Tells every client that the worker is about to sleep; false if one has rung in between.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.server.may_sleep()
    }

    /// The worker is awake again.
    pub(super) fn woke(&mut self) {
        self.server.woke();
    }

    /// Everybody leaves: the daemon ends.
    pub(super) fn detach_all(&mut self, now: Instant, engine: &mut Engine, waiter: &Waiter) {
        let tokens: Vec<usize> = self.sockets.iter().map(|(token, _)| token).collect();
        for token in tokens {
            self.leave(now, token, &Leaving::Detached, engine, waiter);
        }
    }

    fn leave(&mut self, now: Instant, token: usize, why: &Leaving, engine: &mut Engine, waiter: &Waiter) -> bool {
        let Some(client) = self.sockets.try_remove(token) else { return false };
        waiter.unwatch(client.socket.as_fd());
        waiter.unwatch(client.exit.as_fd());
        if let Some(bell) = self.server.doorbell(client.session) {
            waiter.unwatch(bell);
        }
        self.server.detach(now, client.session, engine);
        let pid = client.pid;
        match why {
            Leaving::Detached => {
                self.visits.detached += 1;
                info!(pid, "client detached");
            }
            Leaving::Died => {
                self.visits.died += 1;
                info!(pid, "client's process ended; its queue pairs are gone");
            }
            Leaving::Expelled(reason) => {
                self.visits.expelled += 1;
                warn!(pid, %reason, "client expelled");
            }
            Leaving::Deaf => {
                self.visits.expelled += 1;
                warn!(pid, "client expelled: it sends requests and does not read the answers");
            }
            Leaving::Broken(error) => {
                self.visits.expelled += 1;
                debug!(pid, %error, "client's socket failed");
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let attached = Attached::default();
        let first = attached.take(2).unwrap();
        let second = attached.take(2).unwrap();
        assert!(attached.take(2).is_none());
        drop(first);
        let third = attached.take(2).unwrap();
        assert!(attached.take(2).is_none());
        drop((second, third));
        assert!(attached.take(1).is_some());
    }
}
