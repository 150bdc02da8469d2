//! Gather lists: what a packet consists of, without copying a client's bytes.

use core::{marker::PhantomData, ptr, ptr::NonNull};

use super::{AccessError, Memory};

/// The parts of one or several packets, in order: bytes of its own (headers, small or staged payload) and ranges of regions.
///
/// A list holds no pointers. Its ranges are resolved by [`Memory::slice`] when they are used, and a region that was
/// deregistered meanwhile is refused. Cleared and used again, a list allocates nothing.
#[derive(Debug, Default)]
pub struct GatherList {
    arena: Vec<u8>,
    pieces: Vec<Piece>,
    len_bytes: usize,
}

/// One contiguous part of a [`GatherList`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes of the list's own arena.
    Arena {
        /// First byte in the arena.
        start: u32,
        /// Bytes.
        len: u32,
    },
    /// Bytes of a region backed by shared memory.
    Shared {
        /// The region's place in the table.
        region: u32,
        /// Which registration had that place.
        generation: u32,
        /// First byte, within the region.
        offset: u64,
        /// Bytes.
        len: u32,
    },
}

impl Piece {
    /// Bytes.
    pub const fn len(&self) -> u32 {
        match self {
            Self::Arena { len, .. } | Self::Shared { len, .. } => *len,
        }
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` of its bytes from the `skip`th on; of what it does not have, nothing.
    #[must_use]
    pub const fn part(self, skip: u32, len: u32) -> Self {
        let had = self.len();
        let skip = if skip < had { skip } else { had };
        let part = if len < had - skip { len } else { had - skip };
        match self {
            Self::Arena { start, .. } => Self::Arena { start: start + skip, len: part },
            Self::Shared { region, generation, offset, .. } => {
                Self::Shared { region, generation, offset: offset + skip as u64, len: part }
            }
        }
    }
}

/// A state of a [`GatherList`] to go back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    arena: usize,
    pieces: usize,
    len_bytes: usize,
}

impl GatherList {
    /// An empty list with room for so many bytes of its own and so many pieces.
    pub fn with_capacity(arena_bytes: usize, pieces: usize) -> Self {
        Self { arena: Vec::with_capacity(arena_bytes), pieces: Vec::with_capacity(pieces), len_bytes: 0 }
    }

    /// Appends bytes of the list's own.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        let start = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.cover_arena(start);
    }

    /// Bytes in all pieces.
    pub const fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// How many pieces there are: one entry each in an `iovec`.
    pub fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Forgets everything but the capacity.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.pieces.clear();
        self.len_bytes = 0;
    }

    /// The present state, for [`GatherList::truncate`].
    pub fn mark(&self) -> Mark {
        Mark { arena: self.arena.len(), pieces: self.pieces.len(), len_bytes: self.len_bytes }
    }

    /// Takes back what was appended since `mark`. A mark that is not of this list's past changes nothing that lies before it.
    pub fn truncate(&mut self, mark: Mark) {
        self.arena.truncate(mark.arena);
        self.pieces.truncate(mark.pieces);
        let end = self.arena.len();
        if let Some(Piece::Arena { start, len }) = self.pieces.last_mut() {
            // The last piece may have grown since the mark.
            *len = (*len).min(arena_offset(end).saturating_sub(*start));
        }
        self.len_bytes = self.len_bytes.min(mark.len_bytes);
    }

    /// Takes the pieces appended since `mark` out of the list, into `into`; those in the arena keep their bytes there. So payload
    /// that was gathered at once can be put between the headers of several packets by [`GatherList::push_piece`].
    pub fn take_since(&mut self, mark: Mark, into: &mut Vec<Piece>) {
        // Bytes may have been added to the piece that was the last one.
        if let Some(Piece::Arena { start, len }) = mark.pieces.checked_sub(1).and_then(|last| self.pieces.get_mut(last))
        {
            let grown = (*start + *len).saturating_sub(arena_offset(mark.arena));
            if grown > 0 {
                *len -= grown;
                into.push(Piece::Arena { start: arena_offset(mark.arena), len: grown });
            }
        }
        into.extend(self.pieces.drain(mark.pieces.min(self.pieces.len())..));
        self.len_bytes = self.len_bytes.min(mark.len_bytes);
    }

    /// Appends a piece that was taken out of this list, or a part of one.
    pub fn push_piece(&mut self, piece: Piece) {
        self.len_bytes += piece.len() as usize;
        match (self.pieces.last_mut(), piece) {
            (Some(Piece::Arena { start, len }), Piece::Arena { start: next, len: more }) if *start + *len == next => {
                *len += more;
            }
            _ => self.pieces.push(piece),
        }
    }

    pub(super) fn push_shared(&mut self, region: u32, generation: u32, offset: u64, len: u32) {
        self.pieces.push(Piece::Shared { region, generation, offset, len });
        self.len_bytes += len as usize;
    }

    /// Appends `len` bytes for the caller to fill.
    pub(super) fn push_room(&mut self, len: usize) -> &mut [u8] {
        let start = self.arena.len();
        self.arena.resize(start + len, 0);
        self.cover_arena(start);
        self.arena.get_mut(start..).unwrap_or_default()
    }

    pub(super) const fn arena_len(&self) -> usize {
        self.arena.len()
    }

    pub(super) fn arena_mut(&mut self) -> &mut [u8] {
        &mut self.arena
    }

    /// Makes the arena's bytes from `start` on part of the list.
    fn cover_arena(&mut self, start: usize) {
        let added = self.arena.len() - start;
        if added == 0 {
            return;
        }
        self.push_piece(Piece::Arena { start: arena_offset(start), len: arena_offset(added) });
    }
}

/// A list is a burst of packets, at most some 64 KiB: an arena of 4 GiB cannot come to be.
const fn arena_offset(bytes: usize) -> u32 {
    debug_assert!(bytes <= u32::MAX as usize);
    bytes as u32
}

/// Bytes that can be copied or handed to the kernel, but not borrowed: their owner may write them at any time.
///
/// It borrows the memory's table, so the region cannot be deregistered, nor its mapping go away, while it lives.
#[derive(Clone, Copy, Debug)]
pub struct SharedSlice<'a> {
    start: NonNull<u8>,
    len: usize,
    /// The bytes, if they are a list's own: nobody else writes those.
    own: Option<&'a [u8]>,
    _borrow: PhantomData<&'a [u8]>,
}

impl<'a> SharedSlice<'a> {
    fn of_arena(bytes: &'a [u8]) -> Self {
        Self { start: NonNull::from(bytes).cast(), len: bytes.len(), own: Some(bytes), _borrow: PhantomData }
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For `writev`, `sendmsg` and the like, which only read through it. Not to be used after `'a`.
    pub const fn as_iovec(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.as_ptr().cast(), iov_len: self.len }
    }

    /// Appends a copy of the bytes.
    pub fn copy_to(&self, to: &mut Vec<u8>) {
        to.reserve(self.len);
        let room = to.spare_capacity_mut();
        debug_assert!(room.len() >= self.len);
        // SAFETY: `start..start + len` is readable for `'a` (checked by whoever made the slice), the room is reserved and
        // ours. The source may change meanwhile: the copy is then torn, but each of its bytes is initialised.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr(), room.as_mut_ptr().cast(), self.len);
            to.set_len(to.len() + self.len);
        }
    }

    /// Adds the bytes to a CRC.
    ///
    /// A client that changes them before the packet has left makes its own ICRC wrong: the peer drops the packet as damaged
    /// and it is sent anew.
    pub fn hash_into(&self, hasher: &mut crc32fast::Hasher) {
        if let Some(bytes) = self.own {
            return hasher.update(bytes);
        }
        // The hasher wants a `&[u8]`, which these bytes cannot be (see `mapping`), so they pass through a buffer that stays in the
        // first-level cache.
        let mut buffer = [core::mem::MaybeUninit::<u8>::uninit(); HASH_CHUNK_BYTES];
        let mut done = 0;
        while done < self.len {
            let chunk = HASH_CHUNK_BYTES.min(self.len - done);
            // SAFETY: `done + chunk <= len`, so the source is inside of the slice; the buffer has room for `chunk` bytes, and
            // exactly those that were written are read.
            let bytes = unsafe {
                ptr::copy_nonoverlapping(self.start.as_ptr().add(done), buffer.as_mut_ptr().cast::<u8>(), chunk);
                core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), chunk)
            };
            hasher.update(bytes);
            done += chunk;
        }
    }
}

/// The largest payload of a packet. Measured: smaller chunks keep the CRC from its wide path and cost twice as much.
const HASH_CHUNK_BYTES: usize = 4096;

impl Memory {
    /// The bytes of one piece of `list`, as they are now.
    pub fn slice<'a>(&'a self, list: &'a GatherList, piece: &Piece) -> Result<SharedSlice<'a>, AccessError> {
        match *piece {
            Piece::Arena { start, len } => {
                let (start, len) = (start as usize, len as usize);
                let bytes = list.arena.get(start..).and_then(|rest| rest.get(..len));
                bytes.map(SharedSlice::of_arena).ok_or(AccessError::Deregistered)
            }
            Piece::Shared { region, generation, offset, len } => {
                let len = len as usize;
                let start = self.pointer(region, generation, offset, len).ok_or(AccessError::Deregistered)?;
                Ok(SharedSlice { start, len, own: None, _borrow: PhantomData })
            }
        }
    }

    /// Appends a copy of all bytes of `list`: for tests, taps and backends that want one buffer.
    pub fn copy_list(&self, list: &GatherList, to: &mut Vec<u8>) -> Result<(), AccessError> {
        list.pieces.iter().try_for_each(|piece| self.slice(list, piece).map(|slice| slice.copy_to(to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_taken_out_are_put_between_others() {
        let mut list = GatherList::default();
        list.push_bytes(b"head");
        let mark = list.mark();
        // Grows the last piece, then adds one.
        list.push_bytes(b"abcdef");
        list.push_shared(3, 7, 100, 50);
        let mut taken = Vec::new();
        list.take_since(mark, &mut taken);
        assert_eq!((list.len_bytes(), list.pieces()), (4, &[Piece::Arena { start: 0, len: 4 }][..]));
        assert_eq!(taken[0], Piece::Arena { start: 4, len: 6 });
        list.push_piece(taken[0].part(0, 2));
        list.push_bytes(b"1");
        list.push_piece(taken[0].part(2, 9));
        list.push_piece(taken[1].part(10, 20));
        list.push_bytes(b"2");
        let shared = Piece::Shared { region: 3, generation: 7, offset: 110, len: 20 };
        let arena = |start, len| Piece::Arena { start, len };
        assert_eq!(list.pieces(), [arena(0, 6), arena(10, 1), arena(6, 4), shared, arena(11, 1)]);
        assert_eq!(list.len_bytes(), 4 + 2 + 1 + 4 + 20 + 1);
        assert!(shared.part(20, 5).is_empty());
    }
}
