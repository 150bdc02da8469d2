//! What can be wrong with an access, a registration, or a client's memory.

use core::fmt;

use super::Access;

/// Why an access to memory was refused. Each names the check that failed; nothing was moved unless the variant says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// No region or window has, or had lately, this key.
    #[error("key {key:#010x} was never given out")]
    UnknownKey {
        /// The key presented.
        key: u32,
    },
    /// The key belonged to a region that is deregistered, or to an earlier binding of a window.
    #[error(
        "key {key:#010x} is stale: its region was deregistered or its window bound anew; ask the owner for the new key"
    )]
    StaleKey {
        /// The key presented.
        key: u32,
    },
    /// The key is good, but in another protection domain than the queue pair.
    #[error("key {key:#010x} belongs to another protection domain than the queue pair")]
    ForeignPd {
        /// The key presented.
        key: u32,
    },
    /// The window is bound to another queue pair (IBTA 10.6.7.2.2: type 2 windows serve one queue pair).
    #[error("window {key:#010x} is not bound to queue pair {qpn:#08x}")]
    ForeignQp {
        /// The window's key.
        key: u32,
        /// The queue pair that presented it.
        qpn: u32,
    },
    /// The window exists but is bound to no memory.
    #[error("window {key:#010x} is not bound to memory")]
    UnboundWindow {
        /// The window's key.
        key: u32,
    },
    /// A window's key was used as an L_Key.
    #[error("key {key:#010x} names a memory window; a scatter/gather element needs the L_Key of a region")]
    WindowAsLocalKey {
        /// The key presented.
        key: u32,
    },
    /// A region's key was given to an operation on windows.
    #[error("key {key:#010x} names a region; only memory windows can be invalidated or bound")]
    NotAWindow {
        /// The key presented.
        key: u32,
    },
    /// The window to bind is bound (IBTA 10.6.7.2.2: a type 2 window is invalidated before it is bound anew).
    #[error("window {key:#010x} is bound; invalidate it before binding it anew")]
    WindowBound {
        /// The window's key.
        key: u32,
    },
    /// A binding of no bytes.
    #[error("window {key:#010x} cannot be bound to no bytes; invalidate it instead")]
    EmptyWindow {
        /// The window's key.
        key: u32,
    },
    /// A right was asked for a window that windows do not have.
    #[error(
        "window {key:#010x} cannot have {access:?}: windows give REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC, ZERO_BASED"
    )]
    NotAWindowRight {
        /// The window's key.
        key: u32,
        /// The rights asked for.
        access: Access,
    },
    /// The key does not give the right.
    #[error("key {key:#010x} gives {have:?}, the operation needs {need:?}")]
    Denied {
        /// The key presented.
        key: u32,
        /// The right the operation needs.
        need: Access,
        /// The rights of the region or window.
        have: Access,
    },
    /// Some byte lies outside of the region or window.
    #[error("{len} bytes at {va:#x} leave the {length} bytes at {start:#x} of key {key:#010x}")]
    OutOfBounds {
        /// The key presented.
        key: u32,
        /// First address asked for.
        va: u64,
        /// Bytes asked for.
        len: u64,
        /// First address of the region or window.
        start: u64,
        /// Bytes of the region or window.
        length: u64,
    },
    /// `va + len` does not fit 64 bits.
    #[error("{len} bytes at {va:#x} wrap around the end of the address space (key {key:#010x})")]
    AddressOverflow {
        /// The key presented.
        key: u32,
        /// First address asked for.
        va: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// The scatter/gather list is shorter than the range asked for.
    #[error("bytes {offset} to {end} were asked of a scatter/gather list of {total}")]
    ShortList {
        /// First byte asked for, within the list.
        offset: u64,
        /// One past the last byte asked for (saturated).
        end: u64,
        /// Bytes of the list.
        total: u64,
    },
    /// An atomic's address, or the memory behind it, is not a multiple of 8.
    #[error("the 8 bytes of an atomic at {va:#x} (key {key:#010x}) are not aligned to 8")]
    Misaligned {
        /// The key presented.
        key: u32,
        /// The address asked for.
        va: u64,
    },
    /// The region is registered, but its process's memory could not be reached. Part of the bytes may have moved.
    #[error("region {key:#010x}: {cause}")]
    Unreachable {
        /// The region's key.
        key: u32,
        /// What the kernel said.
        cause: Unreachable,
    },
    /// A piece of a gather list outlived its region, or belongs to another list.
    #[error("the memory that a packet was gathered from is no longer registered")]
    Deregistered,
}

/// Why a process's memory could not be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unreachable {
    /// The process has exited.
    Exited,
    /// The kernel does not let us (`EPERM`).
    NotPermitted,
    /// Some page is not mapped, or not with the needed protection (`EFAULT`).
    Unmapped,
    /// Another error number.
    Os(i32),
}

impl Unreachable {
    pub(super) fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ESRCH => Self::Exited,
            libc::EPERM | libc::EACCES => Self::NotPermitted,
            libc::EFAULT | libc::EIO => Self::Unmapped,
            other => Self::Os(other),
        }
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited => f.write_str("the client process has exited"),
            Self::NotPermitted => f.write_str(
                "the kernel does not let this daemon reach the client's memory: run both under one user id, and let the \
                 client call prctl(PR_SET_PTRACER, daemon's pid) or set kernel.yama.ptrace_scope to 0; or register \
                 memory that can be shared as a memfd instead",
            ),
            Self::Unmapped => f.write_str(
                "a page of the registered range is not mapped in the client (or is read-only): do not unmap memory \
                 before deregistering it",
            ),
            Self::Os(errno) => write!(f, "process_vm access failed: {}", std::io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl std::error::Error for Unreachable {}

/// Why a protection domain, region, window or mapping could not be made or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The protection domain does not exist.
    #[error("no such protection domain")]
    UnknownPd,
    /// Something still refers to the object: remove it first.
    #[error("still in use by {0}")]
    Busy(&'static str),
    /// No region or window has this key.
    #[error("no region or window has the key {key:#010x}")]
    UnknownKey {
        /// The key given.
        key: u32,
    },
    /// Access flags with a meaning that this device does not offer.
    #[error("access flags {0:#x} are not supported")]
    UnsupportedAccess(u32),
    /// REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE (IBTA 10.6.3.1, `ibv_reg_mr(3)`).
    #[error("{0:?} lets a peer change memory that its owner may not: add LOCAL_WRITE")]
    NeedsLocalWrite(Access),
    /// LOCAL_WRITE on a mapping that can only be read.
    #[error("the memfd is sealed against writing: register it without LOCAL_WRITE")]
    ReadOnly,
    /// A region of no bytes.
    #[error("a region needs at least one byte")]
    Empty,
    /// The region's addresses, or the client's, do not fit 64 bits.
    #[error("{length} bytes at {start:#x} do not fit the address space")]
    AddressOverflow {
        /// First address.
        start: u64,
        /// Bytes.
        length: u64,
    },
    /// The region is not wholly inside of what backs it.
    #[error("bytes {offset} to {end} do not lie in the {have} bytes that back them")]
    BeyondBacking {
        /// First byte asked for.
        offset: u64,
        /// One past the last byte asked for (saturated).
        end: u64,
        /// Bytes there are.
        have: u64,
    },
    /// All 2^23 keys are in use.
    #[error("the device has no key left: deregister regions or windows")]
    TooManyKeys,
    /// The file is not a memfd, or could still shrink under us (an access would then kill the daemon by SIGBUS).
    #[error("shared memory must be a memfd sealed with F_SEAL_SHRINK, found {0}")]
    NotSealed(&'static str),
    /// The daemon could reach any process, the client only its own.
    #[error(
        "memory of a client of user {uid} is not reached by a daemon that holds CAP_SYS_PTRACE, as it could be led into a \
         set-user-id program: let the client share its memory as a memfd, run the daemon under user {uid} without that \
         capability, or vouch for the user"
    )]
    TooPrivileged {
        /// The client's user.
        uid: u32,
    },
    /// The client's memory cannot be reached.
    #[error("the client's memory cannot be reached: {0}")]
    Unreachable(#[from] Unreachable),
    /// The kernel refused a system call.
    #[error("{call} failed: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// What it said.
        source: std::io::Error,
    },
}

impl MemoryError {
    pub(super) fn last_os(call: &'static str) -> Self {
        Self::Os { call, source: std::io::Error::last_os_error() }
    }
}
