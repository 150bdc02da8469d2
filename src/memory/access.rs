//! The words of a memory access: rights, scatter/gather elements, keys, atomic operations.

use bitflags::bitflags;

bitflags! {
    /// What a region or window may be used for. The values are those of `enum ibv_access_flags`.
    ///
    /// Local reads need no right (IBTA 10.6.3.1). Bits 20 to 29 are verbs' optional range: a provider that does not
    /// know one of them ignores it.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// Receives, READ responses and atomic results may be written here.
        const LOCAL_WRITE = 1;
        /// A peer may write here. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read here.
        const REMOTE_READ = 1 << 2;
        /// A peer may do atomics here. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to this region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the start of the region or window, not from its virtual address.
        const ZERO_BASED = 1 << 5;
        /// A hint that the memory consists of huge pages; taken and ignored.
        const HUGETLB = 1 << 7;
        /// The optional `IBV_ACCESS_RELAXED_ORDERING`; taken and ignored.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// The bits that a provider may ignore when it does not know them (`IBV_ACCESS_OPTIONAL_RANGE`).
    const OPTIONAL_RANGE: u32 = 0x3ff0_0000;

    /// Whether each bit is one that this device knows or may ignore.
    pub(super) const fn is_supported(self) -> bool {
        self.bits() & !(Self::all().bits() | Self::OPTIONAL_RANGE) == 0
    }

    /// Whether it gives a peer a right to change memory.
    pub(super) const fn changes_memory_remotely(self) -> bool {
        self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
    }
}

/// A scatter/gather element, laid out as `struct ibv_sge`.
///
/// An element of length zero names no memory: neither its key nor its address is looked at.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// First byte, in the region's address space.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The region's L_Key.
    pub lkey: u32,
}

/// The keys of a region. Both have one value, as on most hardware: what the key permits depends on who presents it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys {
    /// For work requests of the owner.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

/// What a work request does with its scatter/gather list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalUse {
    /// The list is the source of a message.
    Read,
    /// The list receives bytes: needs [`Access::LOCAL_WRITE`].
    Write,
}

impl LocalUse {
    pub(super) const fn needs(self) -> Access {
        match self {
            Self::Read => Access::empty(),
            Self::Write => Access::LOCAL_WRITE,
        }
    }
}

/// An atomic on 8 bytes of memory in the host's byte order (IBTA 9.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// CMP_AND_SWP: store `swap` if the memory holds `compare`.
    CompareSwap {
        /// The value expected.
        compare: u64,
        /// The value stored when the expectation holds.
        swap: u64,
    },
    /// FETCH_AND_ADD, modulo 2^64.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

impl AtomicOp {
    /// What the memory holds afterwards if it held `original` before.
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if compare == original => swap,
            Self::CompareSwap { .. } => original,
            Self::FetchAdd { add } => original.wrapping_add(add),
        }
    }
}
