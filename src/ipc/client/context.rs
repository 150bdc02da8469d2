//! The connection to the daemon.

use super::channel::CompletionChannel;
use super::cq::CompletionQueue;
use super::events::{AsyncEvent, EventReader};
use super::memory::Pd;
use super::retired::Retired;
use super::wait::hung_up;
use super::{DeviceAttributes, Error, PortAttributes};
use crate::ipc::abi::{AttachArea, MAX_QUEUES, VERSION};
use crate::ipc::protocol::{
    Call, DEFAULT_SOCKET, Hello, HelloAnswer, Reply, Request, Response, SOCKET_VARIABLE, Welcome, decode, encode,
    socket,
};
use crate::ipc::shm::{Area, Side};
use crate::wire::Gid;
use core::net::IpAddr;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, socket as new_socket};
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The oldest version of the attach protocol that this client speaks.
const OLDEST_VERSION: u16 = 1;
/// How long the daemon is waited for: it answers within microseconds, a very busy one within milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A device, opened: `ibv_context`. Cheap to clone; closed when the last object made of it is gone.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) inner: Arc<Inner>,
}

/// What all objects of a context share.
#[derive(Debug)]
pub(super) struct Inner {
    connection: Mutex<Connection>,
    area: Area,
    doorbell: OwnedFd,
    events: EventReader,
    welcome: Welcome,
    addresses: Vec<IpAddr>,
    /// Areas of work queues, by their numbers.
    areas: Mutex<HashMap<u32, Weak<Area>>>,
    pub(super) retired: Retired,
    /// Held while handles of work queues are given or taken back: what is known of the old owner of a handle is forgotten
    /// before there is a new one.
    pub(super) handles: Mutex<()>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    next_id: u32,
    /// The answer to an earlier request was not waited for to the end.
    owes_answer: bool,
}

/// Locks, also after a panic of another thread: what the locks of this module guard is consistent at each step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// Attaches to the daemon whose socket `HOLDFAST_SOCKET` names, or to the one in the usual place.
    ///
    /// # Errors
    /// [`Error::NotRunning`], [`Error::NotPermitted`] and others, which say what to do.
    pub fn open() -> Result<Self, Error> {
        let path = std::env::var_os(SOCKET_VARIABLE).map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from);
        Self::connect(path)
    }

    /// Attaches to the daemon that listens on this socket.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_within(path, PATIENCE)
    }

    /// Attaches to the daemon that listens on this socket, which is waited for so long at most: here, and in each call that asks the
    /// daemon for something. (Posting and polling do not.)
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::DaemonSilent`].
    pub fn connect_within(path: impl AsRef<Path>, patience: Duration) -> Result<Self, Error> {
        let path = path.as_ref();
        let socket = dial(path, patience)?;
        let hello = Hello { lowest: OLDEST_VERSION, highest: VERSION };
        socket::send(&socket, &hello.encode(), &[], MsgFlags::empty()).map_err(failure("greet holdfastd"))?;
        let answer = socket::receive(&socket, MsgFlags::empty()).map_err(failure("read holdfastd's greeting"))?;
        if answer.bytes.is_empty() {
            return Err(Error::DaemonGone);
        }
        let foreign = |_| Error::NotHoldfast { path: path.into() };
        let welcome = match HelloAnswer::decode(&answer.bytes).map_err(foreign)? {
            HelloAnswer::Welcome { welcome, .. } => *welcome,
            HelloAnswer::Refused { reason, .. } => return Err(Error::NotAttached(reason)),
        };
        let [area, doorbell, events] =
            <[OwnedFd; 3]>::try_from(answer.fds).map_err(|_| Error::NotHoldfast { path: path.into() })?;
        Self::attach(socket, welcome, &area, doorbell, events)
    }

    fn attach(
        socket: OwnedFd,
        welcome: Welcome,
        area: &OwnedFd,
        doorbell: OwnedFd,
        events: OwnedFd,
    ) -> Result<Self, Error> {
        let area = map(area, size_of::<AttachArea>())?;
        let queues = welcome.device.max_qp.saturating_add(welcome.device.max_srq).min(MAX_QUEUES);
        let mut inner = Inner {
            connection: Mutex::new(Connection { socket, next_id: 0, owes_answer: false }),
            area,
            doorbell,
            events: EventReader::new(events),
            addresses: Vec::new(),
            areas: Mutex::default(),
            retired: Retired::new(queues),
            handles: Mutex::default(),
            welcome,
        };
        for index in 0..inner.welcome.port.gid_count {
            inner.addresses.push(inner.gid(index)?.address());
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device's attributes, as they were when the context was opened. Its limits are this client's own.
    pub fn device(&self) -> &DeviceAttributes {
        &self.inner.welcome.device
    }

    /// The port's attributes as they are now.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn query_port(&self) -> Result<PortAttributes, Error> {
        match self.inner.call(Call::QueryPort, &[])? {
            (Reply::Port(port), _) => Ok(port),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Entry `index` of the GID table.
    ///
    /// # Errors
    /// There is no such entry, or the daemon is gone.
    pub fn query_gid(&self, index: u32) -> Result<Gid, Error> {
        self.inner.gid(index)
    }

    /// Entry `index` of the P_Key table.
    ///
    /// # Errors
    /// There is no such entry, or the daemon is gone.
    pub fn query_pkey(&self, index: u16) -> Result<u16, Error> {
        match self.inner.call(Call::QueryPkey { index }, &[])? {
            (Reply::Pkey(pkey), _) => Ok(pkey),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The device's addresses, as they were when the context was opened: GID 0 first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.inner.addresses
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// A limit, or the daemon is gone.
    pub fn allocate_pd(&self) -> Result<Pd, Error> {
        Pd::allocate_in(self)
    }

    /// Makes a completion channel.
    ///
    /// # Errors
    /// A limit, or the daemon is gone.
    pub fn create_channel(&self) -> Result<CompletionChannel, Error> {
        CompletionChannel::create(self)
    }

    /// Makes a completion queue for at least `entries` completions, whose events go to `channel`.
    ///
    /// # Errors
    /// A limit, or the daemon is gone.
    pub fn create_cq(&self, entries: u32, channel: Option<&CompletionChannel>) -> Result<CompletionQueue, Error> {
        CompletionQueue::create(self, entries, channel)
    }

    /// The next asynchronous event; waits for it as long as `timeout` says, without one for ever. If the daemon goes, that is
    /// [`EventKind::DeviceFatal`](super::EventKind::DeviceFatal).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, Error> {
        self.inner.events.next(timeout)
    }

    /// Asks the daemon for what no method asks for.
    #[cfg(test)]
    pub(in crate::ipc) fn inner_call(&self, call: Call) -> Result<Reply, Error> {
        self.inner.call(call, &[]).map(|(reply, _)| reply)
    }

    /// A descriptor that is readable when [`next_event`](Self::next_event) has something.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.inner.events.as_fd()
    }
}

impl Inner {
    /// Asks the daemon and waits for its answer.
    pub(super) fn call(&self, call: Call, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let mut connection = lock(&self.connection);
        let id = connection.send(call, fds, MsgFlags::empty())?;
        connection.receive(id)
    }

    /// A call that only has to succeed. For drops, where nobody could be told more: a daemon that has kept a caller waiting in vain
    /// is told and not waited for again.
    pub(super) fn call_quietly(&self, call: Call) {
        let mut connection = lock(&self.connection);
        if connection.owes_answer {
            let _ = connection.send(call, &[], MsgFlags::MSG_DONTWAIT);
        } else if let Ok(id) = connection.send(call, &[], MsgFlags::empty()) {
            let _ = connection.receive(id);
        }
    }

    fn gid(&self, index: u32) -> Result<Gid, Error> {
        match self.call(Call::QueryGid { index }, &[])? {
            (Reply::Gid(gid), _) => Ok(Gid(gid)),
            (other, _) => Err(unexpected(&other)),
        }
    }

    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The area of a work queue, mapped once for all of its queues.
    pub(super) fn queue_area(&self, number: u32, bytes: u64, fd: &OwnedFd) -> Result<Arc<Area>, Error> {
        let mut areas = lock(&self.areas);
        if let Some(area) = areas.get(&number).and_then(Weak::upgrade) {
            return Ok(area);
        }
        let area = Arc::new(map(fd, usize::try_from(bytes).unwrap_or(usize::MAX))?);
        areas.retain(|_, area| area.strong_count() > 0);
        areas.insert(number, Arc::downgrade(&area));
        Ok(area)
    }

    pub(super) fn daemon_pid(&self) -> i32 {
        self.welcome.daemon_pid
    }

    /// Tells the daemon that a queue has something new; wakes it if it sleeps.
    pub(super) fn ring(&self, queue: u32) {
        if self.area.bell().is_some_and(|bell| bell.ring(queue)) {
            // The count of an eventfd does not overflow here: one write for each sleep of the daemon.
            let _ = nix::unistd::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Whether the daemon is still there, without waiting.
    pub(super) fn is_alive(&self) -> bool {
        let Ok(connection) = self.connection.try_lock() else { return true };
        !hung_up(&connection.socket)
    }
}

impl Connection {
    /// Sends a request; its number.
    fn send(&mut self, call: Call, fds: &[BorrowedFd<'_>], flags: MsgFlags) -> Result<u32, Error> {
        let id = self.next_id;
        let bytes = encode(&Request { id, call }).map_err(|_| Error::Unexpected("nothing"))?;
        socket::send(&self.socket, &bytes, fds, flags).map_err(failure("ask holdfastd"))?;
        self.next_id = id.wrapping_add(1);
        Ok(id)
    }

    /// Waits for the answer to request `id`. Those to earlier ones, which nobody waits for any more, are thrown away.
    fn receive(&mut self, id: u32) -> Result<(Reply, Vec<OwnedFd>), Error> {
        loop {
            self.owes_answer = true;
            let received = socket::receive(&self.socket, MsgFlags::empty()).map_err(failure("hear holdfastd"))?;
            if received.bytes.is_empty() {
                return Err(Error::DaemonGone);
            }
            let response: Response = decode(&received.bytes).map_err(|_| Error::Unexpected("gibberish"))?;
            match response.id.wrapping_sub(id).cast_signed() {
                0 => {
                    self.owes_answer = false;
                    return Ok((response.result?, received.fds));
                }
                1.. => return Err(Error::Unexpected("another request")),
                _ => {}
            }
        }
    }
}

/// Connects. Sends and receives on the socket wait no longer than `patience`.
fn dial(path: &Path, patience: Duration) -> Result<OwnedFd, Error> {
    let address = UnixAddr::new(path).map_err(Error::errno_system("use this path as a socket's"))?;
    let socket = new_socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
        .map_err(Error::errno_system("make a socket"))?;
    // Zero would be "for ever".
    let patience = Some(patience.max(Duration::from_micros(1)));
    let bounded = SockRef::from(&socket);
    bounded
        .set_read_timeout(patience)
        .and_then(|()| bounded.set_write_timeout(patience))
        .map_err(Error::system("bound the wait for holdfastd"))?;
    loop {
        return match connect(socket.as_raw_fd(), &address) {
            Ok(()) => Ok(socket),
            Err(Errno::EINTR) => continue,
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => Err(Error::NotRunning { path: path.into() }),
            Err(Errno::EACCES | Errno::EPERM) => Err(Error::NotPermitted { path: path.into() }),
            // So many wait to be accepted that there is no more room.
            Err(Errno::EAGAIN | Errno::ETIMEDOUT) => Err(Error::DaemonSilent),
            Err(Errno::EPROTOTYPE) => Err(Error::NotHoldfast { path: path.into() }),
            Err(errno) => Err(Error::errno_system("connect to holdfastd")(errno)),
        };
    }
}

/// What it means that a send or receive failed.
fn failure(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Error::DaemonGone,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::DaemonSilent,
        _ => Error::system(action)(error),
    }
}

/// Maps an area that the daemon has made.
pub(super) fn map(fd: &OwnedFd, bytes: usize) -> Result<Area, Error> {
    Area::map(fd, bytes, Side::Client).map_err(Error::system("map the memory shared with holdfastd"))
}

/// The one descriptor that a reply brings.
pub(super) fn single(fds: Vec<OwnedFd>) -> Result<OwnedFd, Error> {
    fds.into_iter().next().ok_or(Error::Unexpected("without the descriptor"))
}

/// A reply of the wrong kind.
pub(super) fn unexpected(reply: &Reply) -> Error {
    Error::Unexpected(match reply {
        Reply::Done => "\"done\"",
        Reply::Device(_) => "a device",
        Reply::Port(_) => "a port",
        Reply::Gid(_) => "a GID",
        Reply::Pkey(_) => "a P_Key",
        Reply::Pd { .. } => "a protection domain",
        Reply::Region { .. } => "a memory region",
        Reply::Window { .. } => "a memory window",
        Reply::Channel { .. } => "a completion channel",
        Reply::CompletionQueue { .. } => "a completion queue",
        Reply::SharedReceiveQueue { .. } | Reply::SharedReceiveQueueState { .. } => "a shared receive queue",
        Reply::QueuePair { .. } | Reply::QueuePairModified { .. } | Reply::QueuePairState { .. } => "a queue pair",
    })
}
