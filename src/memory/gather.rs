//! Gather lists: where the payload of a few packets is.

use core::ptr;

use super::{AccessError, Memory};

/// Payload, in order: ranges of shared regions, and bytes of its own (inline data, and what was read from a process).
///
/// A list holds no pointers. Its ranges are resolved by [`Memory::copy_piece`] when they are used, and a region that was
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
        self.len_bytes += added;
        let (start, added) = (arena_offset(start), arena_offset(added));
        match self.pieces.last_mut() {
            Some(Piece::Arena { start: before, len }) if *before + *len == start => *len += added,
            _ => self.pieces.push(Piece::Arena { start, len: added }),
        }
    }
}

/// A list is a burst of packets, at most some 64 KiB: an arena of 4 GiB cannot come to be.
const fn arena_offset(bytes: usize) -> u32 {
    debug_assert!(bytes <= u32::MAX as usize);
    bytes as u32
}

impl Memory {
    /// Appends the bytes of one piece of `list`, as they are now. A client may write them meanwhile: the copy is then torn, as
    /// a NIC's would be, but what is made of it afterwards (an ICRC) is made of the same bytes.
    pub fn copy_piece(&self, list: &GatherList, piece: &Piece, to: &mut Vec<u8>) -> Result<(), AccessError> {
        match *piece {
            Piece::Arena { start, len } => {
                let (start, len) = (start as usize, len as usize);
                let bytes =
                    list.arena.get(start..).and_then(|rest| rest.get(..len)).ok_or(AccessError::Deregistered)?;
                to.extend_from_slice(bytes);
            }
            Piece::Shared { region, generation, offset, len } => {
                let len = len as usize;
                let start = self.pointer(region, generation, offset, len).ok_or(AccessError::Deregistered)?;
                to.reserve(len);
                // SAFETY: `start..start + len` is readable as long as the region is registered, which `self` sees to, and the
                // room is reserved and ours. The source may change meanwhile, but each byte of the copy is initialised.
                unsafe {
                    ptr::copy_nonoverlapping(start.as_ptr(), to.spare_capacity_mut().as_mut_ptr().cast(), len);
                    to.set_len(to.len() + len);
                }
            }
        }
        Ok(())
    }

    /// Appends all bytes of `list`.
    pub fn copy_list(&self, list: &GatherList, to: &mut Vec<u8>) -> Result<(), AccessError> {
        list.pieces.iter().try_for_each(|piece| self.copy_piece(list, piece, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_pieces_stay_inside() {
        let shared = Piece::Shared { region: 3, generation: 7, offset: 100, len: 50 };
        assert_eq!(shared.part(10, 20), Piece::Shared { region: 3, generation: 7, offset: 110, len: 20 });
        assert_eq!(shared.part(40, 20).len(), 10);
        assert!(shared.part(50, 5).is_empty());
        assert_eq!(Piece::Arena { start: 4, len: 6 }.part(2, 9), Piece::Arena { start: 6, len: 4 });
    }

    #[test]
    fn bytes_of_its_own_that_follow_each_other_are_one_piece() {
        let mut list = GatherList::default();
        list.push_bytes(b"head");
        let mark = list.mark();
        list.push_bytes(b"abcdef");
        assert_eq!(list.pieces(), [Piece::Arena { start: 0, len: 10 }]);
        list.truncate(mark);
        list.push_shared(3, 7, 100, 50);
        list.push_bytes(b"tail");
        let shared = Piece::Shared { region: 3, generation: 7, offset: 100, len: 50 };
        let arena = |start| Piece::Arena { start, len: 4 };
        assert_eq!((list.len_bytes(), list.pieces()), (58, &[arena(0), shared, arena(4)][..]));
    }
}
