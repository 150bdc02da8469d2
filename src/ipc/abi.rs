//! The shared-memory layout between a client and the daemon, as a specification.
//!
//! Everything here is version [`VERSION`] of the layout; a field that moves, grows or changes its meaning makes a new version,
//! which the two sides negotiate when they attach ([`protocol`](super::protocol)). Integers are in the machine's byte order
//! (both sides are processes of one machine), every structure is `repr(C)` without hidden padding, and the sizes and offsets in
//! the tables below are asserted at compile time at the end of this file.
//!
//! # Areas
//!
//! The daemon makes every area as a `memfd`, sealed against shrinking, growing and further seals, and hands the descriptor to
//! the client (that of a queue area with each of its queues). An area holds nothing but words that either side accesses atomically.
//!
//! | area | one for each | holds |
//! |---|---|---|
//! | [`AttachArea`] | attached client | doorbell bitmap, the daemon's sleeping word |
//! | queue area | few QPs and SRQs of a client, or many | one [`QueueHeader`] and one ring of work requests for each queue ([`QueueGeometry`] says where) |
//! | completion area | CQ | one [`CompletionHeader`], then a ring of [`Cqe`] |
//!
//! # Work queues
//!
//! A work queue is a ring of `depth` slots (a power of two) of `stride` bytes (a multiple of 32). The client writes a slot, then
//! stores the free-running [`QueueHeader::producer`] with release ordering; slot *n* is `n & (depth - 1)`. The daemon keeps
//! its own consumer index where the client cannot reach it and publishes none: **a slot belongs to the client again when the
//! completion that retires it has been polled**, as with a NIC. [`Cqe::queue`] and [`Cqe::wqe`] say which slot that is: a send
//! completion retires its own slot and those of the unsignalled requests before it, a receive completion retires its own,
//! and a completion with [`CQE_SHARED`] gives back one slot of the shared receive queue.
//!
//! A producer more than `depth` ahead of the daemon, or behind it, is a lie, and ends the client's session.
//!
//! # Doorbells
//!
//! After storing a producer the client sets the queue's bit in [`AttachArea::leaves`] (bit `q % 64` of word `q / 64`), then the
//! leaf's bit in [`AttachArea::summary`], and only if [`AttachArea::sleeping`] is 1 and it was the one who swapped it to 0
//! does it write the doorbell `eventfd`. The daemon takes bits by swapping words with 0. Every pattern of bits is meaningful, so
//! there is no index to lie about.
//!
//! # Completion queues
//!
//! A CQ's ring holds `depth` (a power of two) entries of [`Cqe`]. The daemon writes entry *n* with its
//! [`sequence`](Cqe::sequence) `n + 1` last, with release ordering: an entry whose sequence is the client's consumer index + 1
//! is new. The client publishes [`CompletionHeader::consumer`] when it has taken entries.
//!
//! The client asks for an event by raising [`CompletionHeader::arm`] to [`ARM_SOLICITED`] or [`ARM_ANY`] and polling once more.
//! The daemon, having pushed, swaps it with [`ARM_NONE`] and writes the CQ's handle (4 bytes) into the completion channel's pipe,
//! unless [`CompletionHeader::told`] is still 1 because an earlier event of this CQ has not been read. So a channel holds at most one
//! event for each of its CQs.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of this layout and of the attach protocol.
pub const VERSION: u16 = 1;
/// The first word of an [`AttachArea`]: "HOLDFAST", read as a little-endian number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HOLDFAST");
/// Queues (QPs and SRQs together) that one client can have: bits of the doorbell bitmap.
pub const MAX_QUEUES: u32 = 1 << 16;
/// Entries of a gather/scatter list that a work request can have.
pub const MAX_SGE: u32 = 32;
/// Inline bytes that a send queue can be made for.
pub const MAX_INLINE: u32 = 1024;
/// Slots that a work or completion queue can have.
pub const MAX_DEPTH: u32 = 1 << 20;

/// A GID index that stands for the first of our GIDs that is of the same IP version as the destination.
pub const GID_BY_FAMILY: u8 = 0xff;

/// Words of [`AttachArea::summary`].
pub const SUMMARY_WORDS: usize = MAX_QUEUES as usize / (64 * 64);
/// Words of [`AttachArea::leaves`].
pub const LEAF_WORDS: usize = MAX_QUEUES as usize / 64;

/// [`CompletionHeader::arm`]: no event wanted.
pub const ARM_NONE: u32 = 0;
/// [`CompletionHeader::arm`]: an event for the next solicited or failed completion.
pub const ARM_SOLICITED: u32 = 1;
/// [`CompletionHeader::arm`]: an event for the next completion.
pub const ARM_ANY: u32 = 2;

/// [`Cqe::flags`]: the receive buffer begins with a GRH (`IBV_WC_GRH`).
pub const CQE_GRH: u16 = 1;
/// [`Cqe::flags`]: [`Cqe::immediate`] is immediate data (`IBV_WC_WITH_IMM`).
pub const CQE_WITH_IMM: u16 = 2;
/// [`Cqe::flags`]: [`Cqe::immediate`] is the R_Key that the sender invalidated (`IBV_WC_WITH_INV`).
pub const CQE_WITH_INV: u16 = 8;
/// [`Cqe::flags`]: the request came from the shared receive queue [`Cqe::queue`].
pub const CQE_SHARED: u16 = 1 << 15;

/// The area that every client has one of.
///
/// | offset | bytes | field | written by |
/// |---|---|---|---|
/// | 0 | 8 | `magic` | daemon, once |
/// | 8 | 4 | `version` | daemon, once |
/// | 64 | 4 | `sleeping` | both |
/// | 128 | 128 | `summary` | both |
/// | 256 | 8192 | `leaves` | both |
#[repr(C, align(64))]
#[derive(Debug)]
pub struct AttachArea {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    reserved: [AtomicU32; 13],
    /// 1 while the daemon sleeps and wants its `eventfd` written; swapped to 0 by the one who will write it.
    pub sleeping: AtomicU32,
    reserved1: [AtomicU32; 15],
    /// Bit *i* of word *j*: leaf `64 j + i` has a bit set.
    pub summary: [AtomicU64; SUMMARY_WORDS],
    /// Bit *i* of word *j*: queue `64 j + i` has something new.
    pub leaves: [AtomicU64; LEAF_WORDS],
}

/// A work queue's index, on a cache line of its own.
///
/// | offset | bytes | field | written by |
/// |---|---|---|---|
/// | 0 | 4 | `producer` | client |
#[repr(C, align(64))]
#[derive(Debug)]
pub struct QueueHeader {
    /// Work requests posted since the queue was made, modulo 2^32.
    pub producer: AtomicU32,
    reserved: [AtomicU32; 15],
}

/// A completion queue's indices and words.
///
/// | offset | bytes | field | written by |
/// |---|---|---|---|
/// | 0 | 4 | `consumer` | client |
/// | 64 | 4 | `arm` | both |
/// | 68 | 4 | `told` | both |
///
/// The ring of entries begins at offset 128.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CompletionHeader {
    /// Completions taken since the queue was made, modulo 2^32.
    pub consumer: AtomicU32,
    reserved: [AtomicU32; 15],
    /// [`ARM_NONE`], [`ARM_SOLICITED`] or [`ARM_ANY`].
    pub arm: AtomicU32,
    /// 1 from the moment the daemon writes an event into the channel to the moment the client has read it.
    pub told: AtomicU32,
    reserved1: [AtomicU32; 14],
}

/// Where a work queue lies in its area.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct QueueGeometry {
    /// Offset of its [`QueueHeader`].
    pub header: u32,
    /// Offset of its first slot.
    pub slots: u32,
    /// Number of slots, a power of two.
    pub depth: u32,
    /// Bytes of a slot, a multiple of 32.
    pub stride: u32,
}

impl QueueGeometry {
    /// Offset of the first byte behind the queue.
    pub const fn end(&self) -> usize {
        self.slots as usize + self.depth as usize * self.stride as usize
    }

    /// The same queue, `offset` bytes further on.
    #[must_use]
    pub const fn at(self, offset: u32) -> Self {
        Self { header: self.header + offset, slots: self.slots + offset, ..self }
    }

    /// A send queue that begins at `offset` of its area.
    pub fn send(header: u32, slots: u32, depth: u32, max_sge: u32, max_inline: u32) -> Self {
        let data = (max_sge * size_of::<SgeEntry>() as u32).max(max_inline);
        let stride = (size_of::<SendWqe>() as u32 + data).next_multiple_of(64);
        Self { header, slots, depth: depth.max(1).next_power_of_two(), stride }
    }

    /// A receive queue that begins at `offset` of its area.
    pub fn receive(header: u32, slots: u32, depth: u32, max_sge: u32) -> Self {
        let stride = (size_of::<RecvWqe>() as u32 + max_sge * size_of::<SgeEntry>() as u32).next_multiple_of(32);
        Self { header, slots, depth: depth.max(1).next_power_of_two(), stride }
    }

    /// Inline bytes that a slot of a send queue holds.
    pub const fn inline_capacity(&self) -> u32 {
        self.stride - size_of::<SendWqe>() as u32
    }
}

/// A gather or scatter entry: `struct ibv_sge`.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `address` |
/// | 8 | 4 | `length` |
/// | 12 | 4 | `lkey` |
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SgeEntry {
    /// Virtual address (in the region's own address space: its `iova`).
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

/// The fixed part of a send queue's slot. `data` follows it at offset 48: [`SgeEntry`]s, or the payload itself if
/// [`flags`](Self::flags) has `IBV_SEND_INLINE`.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `wr_id` |
/// | 8 | 1 | `opcode` |
/// | 9 | 1 | `flags` |
/// | 10 | 2 | `count` |
/// | 12 | 4 | `immediate` |
/// | 16 | 32 | `target`: [`RdmaTarget`], [`DatagramTarget`] or [`BindTarget`] |
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct SendWqe {
    /// The client's own number; the daemon copies it into the completion.
    pub wr_id: u64,
    /// `enum ibv_wr_opcode`.
    pub opcode: u8,
    /// `enum ibv_send_flags`.
    pub flags: u8,
    /// Number of [`SgeEntry`]s, or of inline bytes.
    pub count: u16,
    /// Immediate data (as a number, not in network order), or the R_Key to invalidate.
    pub immediate: u32,
    /// What the request acts on, by opcode and kind of QP; zero where nothing.
    pub target: [u64; 4],
}

/// [`SendWqe::target`] of RDMA and atomic operations.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `address` |
/// | 8 | 4 | `rkey` |
/// | 16 | 8 | `compare_add` |
/// | 24 | 8 | `swap` |
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RdmaTarget {
    /// Remote virtual address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Zero.
    pub reserved: u32,
    /// Operand of compare-and-swap (what is expected) or fetch-and-add (what is added).
    pub compare_add: u64,
    /// What compare-and-swap stores.
    pub swap: u64,
}

/// [`SendWqe::target`] of a datagram. An address handle is a value that travels in each request: there is nothing to create in
/// the daemon, and nothing to leak.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 16 | `gid` |
/// | 16 | 4 | `qpn` |
/// | 20 | 4 | `qkey` |
/// | 24 | 4 | `flow` |
/// | 28 | 2 | `source_port` |
/// | 30 | 1 | `traffic_class` |
/// | 31 | 1 | `hop_limit` |
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct DatagramTarget {
    /// Destination GID; `::ffff:a.b.c.d` for IPv4.
    pub gid: [u8; 16],
    /// Destination QP.
    pub qpn: u32,
    /// Q_Key; with its high bit set the QP's own is used.
    pub qkey: u32,
    /// Bits 0 to 19: IPv6 flow label. Bits 24 to 31: index of our own GID, or [`GID_BY_FAMILY`].
    pub flow: u32,
    /// UDP source port, or 0 to let the daemon choose from the flow label or the two QPNs.
    pub source_port: u16,
    /// IP traffic class (TOS).
    pub traffic_class: u8,
    /// IP hop limit (TTL); 0 for the daemon's default.
    pub hop_limit: u8,
}

/// [`SendWqe::target`] of a memory window's bind.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `address` |
/// | 8 | 8 | `length` |
/// | 16 | 4 | `rkey` |
/// | 20 | 4 | `lkey` |
/// | 24 | 4 | `access` |
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct BindTarget {
    /// First byte of the window.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The R_Key that the window shall have: its upper 24 bits name the window, the lower 8 are free to choose.
    pub rkey: u32,
    /// The region's local key.
    pub lkey: u32,
    /// `enum ibv_access_flags`.
    pub access: u32,
    /// Zero.
    pub reserved: u32,
}

/// The fixed part of a receive queue's slot; `count` [`SgeEntry`]s follow at offset 16.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `wr_id` |
/// | 8 | 4 | `count` |
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RecvWqe {
    /// The client's own number; the daemon copies it into the completion.
    pub wr_id: u64,
    /// Number of [`SgeEntry`]s.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// A completion: one cache line.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 8 | `wr_id` |
/// | 8 | 1 | `status` |
/// | 9 | 1 | `opcode` |
/// | 10 | 2 | `flags` |
/// | 12 | 4 | `byte_len` |
/// | 16 | 4 | `immediate` |
/// | 20 | 4 | `vendor_err` |
/// | 24 | 4 | `qpn` |
/// | 28 | 4 | `src_qp` |
/// | 32 | 4 | `queue` |
/// | 36 | 4 | `wqe` |
/// | 40 | 2 | `pkey_index` |
/// | 48 | 8 | `timestamp_ns` |
/// | 60 | 4 | `sequence` |
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Cqe {
    /// The number the client gave its request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u8,
    /// `enum ibv_wc_opcode`; bit 7 set for completions of receives, also where the status is an error.
    pub opcode: u8,
    /// [`CQE_GRH`], [`CQE_WITH_IMM`], [`CQE_WITH_INV`], [`CQE_SHARED`].
    pub flags: u16,
    /// Bytes received (UD: the 40 of the GRH area included) or read.
    pub byte_len: u32,
    /// Immediate data as a number, or the invalidated R_Key, by `flags`.
    pub immediate: u32,
    /// The daemon's own reason for a failure.
    pub vendor_err: u32,
    /// The QP that completed the request.
    pub qpn: u32,
    /// UD: the QP that sent.
    pub src_qp: u32,
    /// The queue that the request was posted to: what rang its doorbell.
    pub queue: u32,
    /// The free-running number of the slot in that queue.
    pub wqe: u32,
    /// UD: index of the P_Key.
    pub pkey_index: u16,
    /// Zero.
    pub reserved: [u16; 3],
    /// When the daemon saw it complete, in nanoseconds of the daemon's clock.
    pub timestamp_ns: u64,
    /// Zero.
    pub reserved1: u32,
    /// The entry's free-running number + 1, written last.
    pub sequence: u32,
}

/// [`Cqe::opcode`] has this bit for completions of receives (`IBV_WC_RECV`).
pub const CQE_RECEIVE: u8 = 1 << 7;

/// An asynchronous event, as it stands in the event pipe: 16 bytes, written at once.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 4 | `kind` |
/// | 4 | 4 | `object` |
/// | 8 | 4 | `qpn` |
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct EventRecord {
    /// `enum ibv_event_type`.
    pub kind: u32,
    /// Handle of the QP, SRQ or CQ; the port's number for events of a port.
    pub object: u32,
    /// For events of a QP its number, otherwise 0.
    pub qpn: u32,
    /// Zero.
    pub reserved: u32,
}

/// Bytes of a completion area of `depth` entries.
pub const fn completion_area_bytes(depth: u32) -> usize {
    size_of::<CompletionHeader>() + depth as usize * size_of::<Cqe>()
}

// The tables above, held by the compiler.
const _: () = {
    assert!(size_of::<AttachArea>() == 256 + 8192);
    assert!(offset_of!(AttachArea, version) == 8);
    assert!(offset_of!(AttachArea, sleeping) == 64);
    assert!(offset_of!(AttachArea, summary) == 128);
    assert!(offset_of!(AttachArea, leaves) == 256);

    assert!(size_of::<QueueHeader>() == 64);
    assert!(size_of::<CompletionHeader>() == 128);
    assert!(offset_of!(CompletionHeader, arm) == 64);
    assert!(offset_of!(CompletionHeader, told) == 68);

    assert!(size_of::<SgeEntry>() == 16);
    assert!(offset_of!(SgeEntry, length) == 8);
    assert!(offset_of!(SgeEntry, lkey) == 12);

    assert!(size_of::<SendWqe>() == 48);
    assert!(offset_of!(SendWqe, opcode) == 8);
    assert!(offset_of!(SendWqe, flags) == 9);
    assert!(offset_of!(SendWqe, count) == 10);
    assert!(offset_of!(SendWqe, immediate) == 12);
    assert!(offset_of!(SendWqe, target) == 16);

    assert!(size_of::<RdmaTarget>() == 32);
    assert!(offset_of!(RdmaTarget, rkey) == 8);
    assert!(offset_of!(RdmaTarget, compare_add) == 16);
    assert!(offset_of!(RdmaTarget, swap) == 24);

    assert!(size_of::<DatagramTarget>() == 32);
    assert!(offset_of!(DatagramTarget, qpn) == 16);
    assert!(offset_of!(DatagramTarget, qkey) == 20);
    assert!(offset_of!(DatagramTarget, flow) == 24);
    assert!(offset_of!(DatagramTarget, source_port) == 28);
    assert!(offset_of!(DatagramTarget, traffic_class) == 30);
    assert!(offset_of!(DatagramTarget, hop_limit) == 31);

    assert!(size_of::<BindTarget>() == 32);
    assert!(offset_of!(BindTarget, length) == 8);
    assert!(offset_of!(BindTarget, rkey) == 16);
    assert!(offset_of!(BindTarget, lkey) == 20);
    assert!(offset_of!(BindTarget, access) == 24);

    assert!(size_of::<RecvWqe>() == 16);
    assert!(offset_of!(RecvWqe, count) == 8);

    assert!(size_of::<Cqe>() == 64);
    assert!(offset_of!(Cqe, status) == 8);
    assert!(offset_of!(Cqe, opcode) == 9);
    assert!(offset_of!(Cqe, flags) == 10);
    assert!(offset_of!(Cqe, byte_len) == 12);
    assert!(offset_of!(Cqe, immediate) == 16);
    assert!(offset_of!(Cqe, vendor_err) == 20);
    assert!(offset_of!(Cqe, qpn) == 24);
    assert!(offset_of!(Cqe, src_qp) == 28);
    assert!(offset_of!(Cqe, queue) == 32);
    assert!(offset_of!(Cqe, wqe) == 36);
    assert!(offset_of!(Cqe, pkey_index) == 40);
    assert!(offset_of!(Cqe, timestamp_ns) == 48);
    assert!(offset_of!(Cqe, sequence) == 60);

    assert!(size_of::<EventRecord>() == 16);
    assert!(size_of::<EventRecord>() < libc::PIPE_BUF);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_what_the_queue_was_made_for() {
        for (sge, inline, stride) in [(1, 0, 64), (1, 16, 64), (2, 0, 128), (4, 512, 576), (32, 0, 576), (32, 512, 576)]
        {
            let q = QueueGeometry::send(0, 128, 100, sge, inline);
            assert_eq!((q.stride, q.depth), (stride, 128), "{sge} SGEs, {inline} inline bytes");
            assert!(q.inline_capacity() >= inline.max(sge * 16));
        }
        assert_eq!(QueueGeometry::receive(0, 64, 1, 1).stride, 32);
        assert_eq!(QueueGeometry::receive(0, 64, 0, 32), QueueGeometry { header: 0, slots: 64, depth: 1, stride: 544 });
        // The largest queues that the limits allow still lie within 32-bit offsets.
        assert!(QueueGeometry::send(0, 128, MAX_DEPTH, MAX_SGE, MAX_INLINE).end() < u32::MAX as usize);
    }
}
