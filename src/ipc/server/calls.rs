//! What a client can ask for: device, port, protection domains, memory, channels. Queues are in `queues`.

use super::objects::Channel;
use super::permissions::{one_more, within};
use super::pipe::EventPipe;
use super::session::{Desk, DeviceView, Session, Stop};
use crate::engine::ObjectError;
use crate::ipc::protocol::{Call, Handle, LimitKind, MemorySource, ObjectKind, Refusal, Reply};
use crate::memory::{Access, Backing, Mapping, MemoryError, ProcessMemory};
use crate::wire::Gid;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of a completion channel's pipe: 16 Ki events, and as many completion queues.
const CHANNEL_PIPE_BYTES: i32 = 64 << 10;
/// Bytes of an event in it: a handle.
pub(super) const CHANNEL_EVENT_BYTES: usize = size_of::<Handle>();

/// A reply and the descriptors that go with it.
pub(super) type Answered<E = Stop> = Result<(Reply, Vec<OwnedFd>), E>;

/// A reply without descriptors.
fn plain(reply: Reply) -> (Reply, Vec<OwnedFd>) {
    (reply, Vec::new())
}

impl From<MemoryError> for Refusal {
    fn from(error: MemoryError) -> Self {
        let errno = match &error {
            MemoryError::Busy(_) => libc::EBUSY,
            MemoryError::TooManyKeys => libc::ENOMEM,
            MemoryError::Unreachable(_) => libc::EFAULT,
            MemoryError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        };
        Self::Invalid { reason: error.to_string(), errno }
    }
}

impl From<ObjectError> for Refusal {
    fn from(error: ObjectError) -> Self {
        Self::Invalid { reason: error.to_string(), errno: error.errno() }
    }
}

impl Session {
    pub(super) fn handle_call(
        &mut self,
        device: &DeviceView<'_>,
        desk: &mut Desk<'_>,
        call: Call,
        fds: Vec<OwnedFd>,
    ) -> Answered {
        let reply = match call {
            Call::QueryDevice => Reply::Device(self.device_attributes(device)),
            Call::QueryPort => Reply::Port(device.port),
            Call::QueryGid { index } => {
                let address = desk.engine.addresses().get(index as usize).copied();
                Reply::Gid(address.map(Gid::from).ok_or_else(|| beyond("GID", index))?.0)
            }
            Call::QueryPkey { index } => {
                let pkey = desk.engine.pkeys().get(usize::from(index)).copied();
                Reply::Pkey(pkey.ok_or_else(|| beyond("P_Key", index.into()))?)
            }
            Call::AllocatePd => self.allocate_pd(desk)?,
            Call::DeallocatePd { pd } => self.deallocate_pd(desk, pd)?,
            Call::RegisterMemory { pd, source, iova, length, access } => {
                let backing = self.backing(source, length, fds)?;
                self.register(desk, pd, backing, iova, length, access)?
            }
            Call::DeregisterMemory { lkey } => {
                self.own(lkey, ObjectKind::Region)?;
                desk.engine.memory_mut().deregister(lkey).map_err(Refusal::from)?;
                let mapped = self.objects.regions.remove(&lkey).unwrap_or(false);
                self.objects.mappings -= u32::from(mapped);
                Reply::Done
            }
            Call::AllocateWindow { pd } => self.allocate_window(desk, pd)?,
            Call::DeallocateWindow { rkey } => {
                self.own(rkey, ObjectKind::Window)?;
                desk.engine.memory_mut().deallocate_window(rkey).map_err(Refusal::from)?;
                self.objects.windows.remove(&(rkey >> 8));
                Reply::Done
            }
            Call::CreateChannel => return Ok(self.create_channel()?),
            Call::DestroyChannel { channel } => self.destroy_channel(channel)?,
            call => return self.handle_queue_call(desk, call),
        };
        Ok(plain(reply))
    }

    fn allocate_pd(&mut self, desk: &mut Desk<'_>) -> Result<Reply, Refusal> {
        one_more(ObjectKind::Pd, self.objects.pds.len(), self.permissions.max_pds)?;
        let pd = desk.engine.memory_mut().create_pd(self.id().owner());
        Ok(Reply::Pd { pd: self.objects.pds.insert(pd) as Handle })
    }

    fn deallocate_pd(&mut self, desk: &mut Desk<'_>, handle: Handle) -> Result<Reply, Refusal> {
        let pd = self.objects.pd(handle)?;
        desk.engine.memory_mut().destroy_pd(pd)?;
        self.objects.pds.remove(handle as usize);
        Ok(Reply::Done)
    }

    fn backing(&self, source: MemorySource, length: u64, fds: Vec<OwnedFd>) -> Result<Backing, Refusal> {
        match source {
            MemorySource::Shared { offset } => {
                let fd = fds.into_iter().next().ok_or_else(|| {
                    Refusal::invalid("shared memory was to be registered, but no memfd came with the message")
                })?;
                Ok(Backing::Shared(Arc::new(Mapping::of_memfd(fd, offset, length)?), 0))
            }
            MemorySource::Process { .. } if !self.permissions.may_reach(self.peer()) => Err(Refusal::NotPermitted {
                action: "have memory registered that is not shared".into(),
                remedy: "allocate buffers with Pd::allocate, or allow process memory in holdfastd's [clients] settings"
                    .into(),
            }),
            MemorySource::Process { address } => {
                Ok(Backing::Process(ProcessMemory::new(Arc::clone(self.peer().process()), address)))
            }
        }
    }

    fn register(
        &mut self,
        desk: &mut Desk<'_>,
        pd: Handle,
        backing: Backing,
        iova: u64,
        length: u64,
        access: u32,
    ) -> Result<Reply, Refusal> {
        one_more(ObjectKind::Region, self.objects.regions.len(), self.permissions.max_regions)?;
        self.one_more_mapping()?;
        let id = self.objects.pd(pd)?;
        let memory = desk.engine.memory_mut();
        let bytes = memory.usage(self.id().owner()).registered_bytes.saturating_add(length);
        within(LimitKind::RegisteredBytes, bytes, self.permissions.max_registered_bytes)?;
        let mapped = matches!(backing, Backing::Shared(..));
        let keys = memory.register(id, backing, iova, length, Access::from_bits_retain(access))?;
        self.objects.regions.insert(keys.lkey, mapped);
        self.objects.mappings += u32::from(mapped);
        Ok(Reply::Region { lkey: keys.lkey, rkey: keys.rkey })
    }

    pub(super) fn one_more_mapping(&self) -> Result<(), Refusal> {
        let wanted = u64::from(self.objects.mappings) + 1;
        within(LimitKind::Mappings, wanted, self.permissions.max_mappings.into())
    }

    fn allocate_window(&mut self, desk: &mut Desk<'_>, pd: Handle) -> Result<Reply, Refusal> {
        one_more(ObjectKind::Window, self.objects.windows.len(), self.permissions.max_windows)?;
        let rkey = desk.engine.memory_mut().allocate_window(self.objects.pd(pd)?)?;
        self.objects.windows.insert(rkey >> 8);
        Ok(Reply::Window { rkey })
    }

    /// Whether a key is of an object of this client.
    fn own(&self, key: u32, kind: ObjectKind) -> Result<(), Refusal> {
        let known = match kind {
            ObjectKind::Window => self.objects.windows.contains(&(key >> 8)),
            _ => self.objects.regions.contains_key(&key),
        };
        if known { Ok(()) } else { Err(Refusal::Unknown { kind, handle: key }) }
    }

    fn create_channel(&mut self) -> Answered<Refusal> {
        one_more(ObjectKind::Channel, self.objects.channels.len(), self.permissions.max_channels)?;
        let (pipe, read_end) = EventPipe::new(CHANNEL_PIPE_BYTES)?;
        let channel = self.objects.channels.insert(Channel { pipe, cqs: 0 }) as Handle;
        Ok((Reply::Channel { channel }, vec![read_end]))
    }

    fn destroy_channel(&mut self, handle: Handle) -> Result<Reply, Refusal> {
        match self.objects.channel_mut(handle)?.cqs {
            0 => {
                self.objects.channels.remove(handle as usize);
                Ok(Reply::Done)
            }
            users => Err(Refusal::Busy { kind: ObjectKind::Channel, handle, users }),
        }
    }
}

fn beyond(table: &str, index: u32) -> Refusal {
    Refusal::invalid(format_args!("the {table} table has no entry {index}"))
}
