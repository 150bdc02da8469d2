//! One client: attaching, its messages, its end.

use super::counters::{EventCounters, SessionCounters};
use super::decode::Scratch;
use super::objects::Objects;
use super::permissions::{Peer, Permissions};
use super::pipe::{EventPipe, Written};
use super::post::bell;
use super::{Answer, Map, ServerConfig, SessionId};
use crate::counters::{Distribution, Tally};
use crate::engine::Engine;
use crate::ipc::abi::{self, AttachArea, EventRecord};
use crate::ipc::protocol::{
    DeviceAttributes, Handle, Hello, HelloAnswer, PortAttributes, Refusal, Request, Response, Welcome, decode, encode,
};
use crate::ipc::ring::{Bell, Lie};
use crate::ipc::shm::{Area, NewArea, Side};
use crate::time::Instant;
use crate::transport::{CqId, QpAttributes, QpCapabilities};
use core::sync::atomic::Ordering;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::IntoBytes;

/// The oldest version of the attach protocol that this daemon speaks.
const OLDEST_VERSION: u16 = 1;
/// Bytes of the pipe for asynchronous events: 16 Ki of them may lie unread.
const EVENT_PIPE_BYTES: i32 = 256 << 10;

/// Why a session ended by its client's fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// There is no such session: it was detached.
    #[error("there is no such session")]
    Unknown,
    /// The first message was not a hello.
    #[error("the client's first message was not a hello")]
    NotHello,
    /// A message was no request of the version agreed on.
    #[error("a message of {bytes} bytes is no request of version {version} of the attach protocol")]
    Malformed {
        /// Its length.
        bytes: usize,
        /// The version.
        version: u16,
    },
    /// An index in shared memory lied.
    #[error("in shared memory of queue {handle}, {lie}")]
    Lie {
        /// The queue's handle.
        handle: Handle,
        /// What was found.
        lie: Lie,
    },
}

/// What a call works with besides its session.
pub(super) struct Desk<'a> {
    pub(super) now: Instant,
    pub(super) engine: &'a mut Engine,
    pub(super) common: &'a mut Common,
}

/// What all sessions of a server share.
#[derive(Debug)]
pub(super) struct Common {
    /// Who has which completion queue.
    pub(super) cqs: Map<CqId, SessionId>,
    pub(super) scratch: Box<Scratch>,
    pub(super) latency: Tally,
    pub(super) events: EventCounters,
}

impl Common {
    pub(super) fn new() -> Self {
        Self {
            cqs: Map::default(),
            scratch: Box::default(),
            latency: Tally::new(Distribution::CompletionLatency),
            events: EventCounters::default(),
        }
    }
}

/// The device as its clients see it.
pub(super) struct DeviceView<'a> {
    pub(super) config: &'a ServerConfig,
    pub(super) port: PortAttributes,
}

/// One attached client. See the [module](super).
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    peer: Peer,
    pub(super) permissions: Permissions,
    /// The version agreed on, once the hello is answered.
    version: Option<u16>,
    pub(super) area: Area,
    doorbell: EventFd,
    events: EventPipe,
    /// What the client gets with its welcome: the attach area and the read end of the event pipe.
    offer: Vec<OwnedFd>,
    pub(super) objects: Objects,
    /// Queues that have something new, in the order in which they rang.
    pub(super) pending: VecDeque<Handle>,
    pub(super) counters: SessionCounters,
}

impl Session {
    pub(super) fn new(id: SessionId, peer: Peer, permissions: Permissions) -> Result<Self, Refusal> {
        let refuse = |error: std::io::Error| Refusal::system("make the attach area", &error);
        let NewArea { area, fd } =
            Area::create("holdfast-attach", size_of::<AttachArea>(), Side::Writer).map_err(refuse)?;
        if let Some(area) = area.attach() {
            area.magic.store(abi::MAGIC, Ordering::Relaxed);
            area.version.store(abi::VERSION.into(), Ordering::Relaxed);
        }
        let doorbell = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| refuse(errno.into()))?;
        let (events, read_end) = EventPipe::new(EVENT_PIPE_BYTES)?;
        Ok(Self {
            id,
            peer,
            permissions,
            version: None,
            area,
            doorbell,
            events,
            offer: vec![fd, read_end],
            objects: Objects::default(),
            pending: VecDeque::new(),
            counters: SessionCounters::default(),
        })
    }

    /// Its name.
    pub const fn id(&self) -> SessionId {
        self.id
    }

    /// Who it is.
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    /// What it may.
    pub const fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// What it did.
    pub const fn counters(&self) -> &SessionCounters {
        &self.counters
    }

    /// Queue pairs that it has.
    pub fn queue_pairs(&self) -> usize {
        self.objects.qps_by_number.len()
    }

    /// Completion queues that it has.
    pub fn completion_queues(&self) -> usize {
        self.objects.cqs.len()
    }

    /// Bytes of shared memory that its queues take.
    pub fn queue_bytes(&self) -> u64 {
        self.objects.area_bytes
    }

    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    fn bell(&self) -> Option<Bell<'_>> {
        bell(&self.area, &self.objects.queues)
    }

    pub(super) fn may_sleep(&self) -> bool {
        self.pending.is_empty() && self.bell().is_none_or(|bell| bell.may_sleep())
    }

    pub(super) fn woke(&self) {
        if let Some(bell) = self.bell() {
            bell.woke();
        }
    }

    pub(super) fn handle_message(
        &mut self,
        device: &DeviceView<'_>,
        desk: &mut Desk<'_>,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, Ended> {
        let Some(version) = self.version else { return self.handle_hello(device, bytes) };
        let malformed = |_| Ended::Malformed { bytes: bytes.len(), version };
        let Request { id, call } = decode(bytes).map_err(malformed)?;
        self.counters.requests += 1;
        let (result, fds) = match self.handle_call(device, desk, call, fds) {
            Ok((reply, fds)) => (Ok(reply), fds),
            Err(Stop::Refused(refusal)) => {
                self.counters.refused.note(&refusal);
                (Err(refusal), Vec::new())
            }
            Err(Stop::Ended(ended)) => return Err(ended),
        };
        let bytes = encode(&Response { id, result }).map_err(malformed)?;
        Ok(Answer { bytes, fds, hang_up: false })
    }

    fn handle_hello(&mut self, device: &DeviceView<'_>, bytes: &[u8]) -> Result<Answer, Ended> {
        let hello = Hello::decode(bytes).map_err(|_| Ended::NotHello)?;
        let (answer, fds) = match hello.agree(OLDEST_VERSION, abi::VERSION) {
            Ok(version) => {
                self.version = Some(version);
                let welcome = Box::new(Welcome {
                    device: self.device_attributes(device),
                    port: device.port,
                    daemon_pid: nix::unistd::getpid().as_raw(),
                });
                (HelloAnswer::Welcome { version, welcome }, self.welcome_descriptors())
            }
            Err(reason) => {
                self.counters.hellos_refused += 1;
                (HelloAnswer::Refused { version: abi::VERSION, reason }, Ok(Vec::new()))
            }
        };
        let answer = match &fds {
            Ok(_) => answer,
            Err(refusal) => HelloAnswer::Refused { version: abi::VERSION, reason: refusal.to_string() },
        };
        let hang_up = matches!(answer, HelloAnswer::Refused { .. });
        let bytes = answer.encode().map_err(|_| Ended::NotHello)?;
        Ok(Answer { bytes, fds: fds.unwrap_or_default(), hang_up })
    }

    fn welcome_descriptors(&mut self) -> Result<Vec<OwnedFd>, Refusal> {
        let refuse = |error: std::io::Error| Refusal::system("hand out the doorbell", &error);
        let doorbell = self.doorbell.as_fd().try_clone_to_owned().map_err(refuse)?;
        let mut fds = core::mem::take(&mut self.offer);
        fds.insert(1, doorbell);
        Ok(fds)
    }

    pub(super) fn device_attributes(&self, device: &DeviceView<'_>) -> DeviceAttributes {
        let p = &self.permissions;
        DeviceAttributes {
            name: device.config.device_name.clone(),
            firmware: device.config.firmware.clone(),
            node_guid: device.config.node_guid,
            max_qp: p.max_queue_pairs,
            max_qp_wr: p.work_depth(),
            max_sge: QpCapabilities::MAX_SGE,
            max_inline_data: QpCapabilities::MAX_INLINE,
            max_cq: p.max_completion_queues,
            max_cqe: p.completion_depth(),
            max_mr: p.max_regions,
            max_mr_size: p.max_registered_bytes,
            max_mw: p.max_windows,
            max_pd: p.max_pds,
            max_srq: p.max_shared_receive_queues,
            max_srq_wr: p.work_depth(),
            max_qp_rd_atom: QpAttributes::MAX_RD_ATOMIC,
            process_memory: p.may_reach(&self.peer),
        }
    }

    /// Writes an asynchronous event for the client to read.
    pub(super) fn tell(&mut self, kind: u32, object: Handle, qpn: u32) {
        let record = EventRecord { kind, object, qpn, reserved: 0 };
        if self.events.write(record.as_bytes()) == Written::Full {
            self.counters.events_lost += 1;
        }
    }
}

/// Why a call gives no reply.
pub(super) enum Stop {
    /// It is refused; the session goes on.
    Refused(Refusal),
    /// On the way a lie was found.
    Ended(Ended),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Ended> for Stop {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

const _: () = assert!(QpCapabilities::MAX_SGE == abi::MAX_SGE && QpCapabilities::MAX_INLINE <= abi::MAX_INLINE);
