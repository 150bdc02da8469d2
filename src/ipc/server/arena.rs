//! Shared memory for the work queues of one client: few large areas, cut up.
//!
//! An area for each queue pair would take a descriptor, a mapping in either process (the kernel allows 65 530, `vm.max_map_count`)
//! and two pages of its own. So an area is grown to hold hundreds of queue pairs, and goes when the last of them goes. A client
//! that still writes to a queue that is gone writes into others of its own.

use super::Map;
use crate::ipc::protocol::Refusal;
use crate::ipc::shm::{Area, NewArea};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The first area of a client, and the largest that holds more than one queue pair.
const FIRST_BYTES: u64 = 64 << 10;
const LARGEST_BYTES: u64 = 4 << 20;
/// Queues begin at cache lines.
const ALIGN: usize = 64;

/// The areas of one client that hold work queues.
#[derive(Debug, Default)]
pub(super) struct Arenas {
    arenas: Map<u32, Arena>,
    /// Where the next queue goes, unless there is a hole of its size.
    current: Option<u32>,
    /// Places that were given back, by their size.
    holes: Map<usize, Vec<(u32, usize)>>,
    bytes: u64,
    next_id: u32,
}

#[derive(Debug)]
struct Arena {
    area: Arc<Area>,
    fd: OwnedFd,
    /// Where the part begins that no queue has had.
    fresh: usize,
    places: u32,
}

/// A piece of an area.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The area that it is in.
    pub(super) area: Arc<Area>,
    /// Its number. Never used again.
    pub(super) arena: u32,
    /// Where in the area it begins.
    pub(super) offset: u32,
    bytes: usize,
}

impl Arenas {
    /// How large the next area should be, if it is to hold a place of `bytes`.
    pub(super) fn next_bytes(&self, bytes: usize) -> usize {
        let grown = self.bytes.next_power_of_two().clamp(FIRST_BYTES, LARGEST_BYTES);
        usize::try_from(grown).unwrap_or(bytes).max(bytes.next_multiple_of(ALIGN))
    }

    /// A place of `bytes` in an area that there is.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Place> {
        let bytes = bytes.next_multiple_of(ALIGN);
        if let Some((id, offset)) = self.holes.get_mut(&bytes).and_then(Vec::pop) {
            return self.place(id, offset, bytes);
        }
        let id = self.current?;
        let arena = self.arenas.get_mut(&id)?;
        let offset = arena.fresh;
        let end = offset.checked_add(bytes).filter(|end| *end <= arena.area.len())?;
        arena.fresh = end;
        self.place(id, offset, bytes)
    }

    fn place(&mut self, id: u32, offset: usize, bytes: usize) -> Option<Place> {
        let arena = self.arenas.get_mut(&id)?;
        arena.places += 1;
        Some(Place { area: Arc::clone(&arena.area), arena: id, offset: u32::try_from(offset).ok()?, bytes })
    }

    /// Takes an area in, which the next places come from.
    pub(super) fn add(&mut self, NewArea { area, fd }: NewArea) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.bytes += area.len() as u64;
        self.current = Some(id);
        self.arenas.insert(id, Arena { area: Arc::new(area), fd, fresh: 0, places: 0 });
    }

    /// The descriptor of a place's area, for the client.
    pub(super) fn descriptor(&self, place: &Place) -> Result<OwnedFd, Refusal> {
        let arena = self.arenas.get(&place.arena).ok_or(io::Error::from(io::ErrorKind::NotFound));
        let copy = arena.and_then(|arena| arena.fd.as_fd().try_clone_to_owned());
        copy.map_err(|error| Refusal::system("hand out shared memory for a queue", &error))
    }

    /// Makes the first `bytes` of a place zero. (The daemon's mapping is for reading only.)
    pub(super) fn clear(&self, place: &Place, bytes: usize) -> Result<(), Refusal> {
        let Some(arena) = self.arenas.get(&place.arena) else { return Ok(()) };
        let written = nix::sys::uio::pwrite(&arena.fd, &vec![0; bytes], place.offset.into());
        written.map(drop).map_err(|errno| Refusal::system("clear shared memory for a queue", &errno.into()))
    }

    /// Takes a place back; if its area is empty now, that goes, and its bytes are returned.
    pub(super) fn give_back(&mut self, place: &Place) -> Option<u64> {
        let arena = self.arenas.get_mut(&place.arena)?;
        arena.places = arena.places.saturating_sub(1);
        if arena.places > 0 {
            self.holes.entry(place.bytes).or_default().push((place.arena, place.offset as usize));
            return None;
        }
        let gone = self.arenas.remove(&place.arena)?.area.len() as u64;
        self.bytes -= gone;
        self.current = self.current.filter(|current| *current != place.arena);
        self.holes.retain(|_, holes| {
            holes.retain(|(arena, _)| *arena != place.arena);
            !holes.is_empty()
        });
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ipc::shm::Side;

    fn grow(arenas: &mut Arenas, bytes: usize) {
        let bytes = arenas.next_bytes(bytes);
        arenas.add(Area::create("holdfast-test", bytes, Side::Reader).unwrap());
    }

    fn allocate(arenas: &mut Arenas, bytes: usize) -> Place {
        arenas.take(bytes).unwrap_or_else(|| {
            grow(arenas, bytes);
            arenas.take(bytes).unwrap()
        })
    }

    #[test]
    fn places_do_not_overlap_and_holes_are_filled() {
        let mut arenas = Arenas::default();
        let places: Vec<Place> = (0..500).map(|n| allocate(&mut arenas, 1000 + n % 3 * 64)).collect();
        for (i, a) in places.iter().enumerate() {
            for b in places.iter().skip(i + 1).filter(|b| b.arena == a.arena) {
                let apart = a.offset as usize + a.bytes <= b.offset as usize
                    || b.offset as usize + b.bytes <= a.offset as usize;
                assert!(apart, "{a:?} {b:?}");
            }
        }
        let areas = arenas.arenas.len();
        assert!(areas < 10, "{areas} areas for 500 queues");
        arenas.give_back(&places[7]);
        let again = allocate(&mut arenas, places[7].bytes);
        assert_eq!((again.arena, again.offset), (places[7].arena, places[7].offset));
    }

    #[test]
    fn an_area_goes_with_its_last_place_and_its_number_never_comes_again() {
        let mut arenas = Arenas::default();
        let (first, second) = (allocate(&mut arenas, 100), allocate(&mut arenas, 200));
        assert_eq!(first.arena, second.arena);
        assert_eq!(arenas.give_back(&first), None);
        assert_eq!(arenas.give_back(&second), Some(FIRST_BYTES));
        assert_eq!((arenas.bytes, arenas.arenas.len(), arenas.holes.len()), (0, 0, 0));
        assert_ne!(allocate(&mut arenas, 100).arena, first.arena);
    }

    #[test]
    fn a_very_large_queue_has_an_area_of_its_own() {
        let mut arenas = Arenas::default();
        let place = allocate(&mut arenas, 10 << 20);
        assert_eq!(place.area.len(), 10 << 20);
    }

    #[test]
    fn what_a_queue_left_behind_is_cleared() {
        let mut arenas = Arenas::default();
        let place = allocate(&mut arenas, 256);
        let client = Area::map(&arenas.descriptor(&place).unwrap(), place.area.len(), Side::Client).unwrap();
        let words = client.words(place.offset as usize, 32).unwrap();
        words.iter().for_each(|word| word.store(u64::MAX, core::sync::atomic::Ordering::Relaxed));
        arenas.clear(&place, 128).unwrap();
        let seen: Vec<u64> = words.iter().map(|word| word.load(core::sync::atomic::Ordering::Relaxed)).collect();
        assert_eq!((&seen[..16], &seen[16..]), (&[0; 16][..], &[u64::MAX; 16][..]));
    }
}
