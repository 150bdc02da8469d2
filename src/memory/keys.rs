//! Key table: 32-bit keys that cannot be guessed, looked up without hashing.
//!
//! A key is drawn at random (ChaCha12, seeded with the daemon's secret) until its *slot*, which is its top bits, is free.
//! So a look-up is a shift, a load and a comparison of all 32 bits, and a key tells nothing about any other key: who guesses
//! hits a given region with probability 2^-32 a try, and any of `n` live ones with `n`·2^-32.
//!
//! The table doubles before it is half full. A key's slot in the doubled table is given by one more of its own bits, so keys
//! never change and never collide. There are at most 2^24 slots: the low 8 bits of a key are never part of the slot, as
//! verbs lets the owner of a window choose them anew at each binding (`ibv_inc_rkey(3)`).
//!
//! A freed slot remembers its last key, so that a stale key can be told from a wrong one until the slot is used again.

use chacha20::{
    ChaCha12Rng,
    rand_core::{Rng, SeedableRng},
};

/// Slots of the first table, as a power of two.
const FIRST_BITS: u32 = 6;
/// Slots of the largest table, as a power of two.
const MOST_BITS: u32 = 24;

#[derive(Clone, Copy)]
struct Slot {
    key: u32,
    object: u32,
}

impl Slot {
    const VACANT: u32 = u32::MAX;
    const NEW: Self = Self { key: 0, object: Self::VACANT };

    const fn is_vacant(self) -> bool {
        self.object == Self::VACANT
    }
}

/// What the table knows about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// The object's index.
    Live(u32),
    Stale,
    Unknown,
}

pub(super) struct KeyTable {
    slots: Vec<Slot>,
    /// 32 less the table's bits: a key's slot is `key >> shift`.
    shift: u32,
    live: usize,
    random: ChaCha12Rng,
}

impl KeyTable {
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Self {
            slots: vec![Slot::NEW; 1 << FIRST_BITS],
            shift: 32 - FIRST_BITS,
            live: 0,
            random: ChaCha12Rng::from_seed(secret),
        }
    }

    /// Draws a key for the object. `None`: all keys are in use.
    pub(super) fn insert(&mut self, object: u32) -> Option<u32> {
        if (self.live + 1) * 2 > self.slots.len() {
            self.grow()?;
        }
        // At most half of the slots are taken, so this ends after two draws on average.
        loop {
            let key = self.random.next_u32();
            // Applications take the key 0 for "none"; a window's owner may choose any low byte.
            if key >> 8 == 0 {
                continue;
            }
            let slot = self.slot_mut(key)?;
            if slot.is_vacant() && slot.key != key {
                *slot = Slot { key, object };
                self.live += 1;
                return Some(key);
            }
        }
    }

    #[inline]
    pub(super) fn find(&self, key: u32) -> Found {
        match self.slots.get((key >> self.shift) as usize) {
            Some(slot) if slot.key == key && !slot.is_vacant() => Found::Live(slot.object),
            Some(slot) if slot.key >> 8 == key >> 8 && key >> 8 != 0 => Found::Stale,
            _ => Found::Unknown,
        }
    }

    /// The live object whose key differs from this one in its low byte at most.
    pub(super) fn find_base(&self, key: u32) -> Option<u32> {
        let slot = self.slots.get((key >> self.shift) as usize)?;
        (slot.key >> 8 == key >> 8 && !slot.is_vacant()).then_some(slot.object)
    }

    /// Frees a live key; its slot keeps it as stale.
    pub(super) fn remove(&mut self, key: u32) {
        if let Found::Live(_) = self.find(key)
            && let Some(slot) = self.slot_mut(key)
        {
            slot.object = Slot::VACANT;
            self.live -= 1;
        }
    }

    /// Changes the low byte of a live key.
    pub(super) fn rename(&mut self, key: u32, low: u8) -> u32 {
        let renamed = key & !0xff | u32::from(low);
        if let Found::Live(_) = self.find(key)
            && let Some(slot) = self.slot_mut(key)
        {
            slot.key = renamed;
        }
        renamed
    }

    fn slot_mut(&mut self, key: u32) -> Option<&mut Slot> {
        self.slots.get_mut((key >> self.shift) as usize)
    }

    fn grow(&mut self) -> Option<()> {
        if self.shift <= 32 - MOST_BITS {
            return None;
        }
        let doubled = self.slots.len() * 2;
        let old = core::mem::replace(&mut self.slots, vec![Slot::NEW; doubled]);
        self.shift -= 1;
        for entry in old.into_iter().filter(|slot| slot.key != Slot::NEW.key) {
            if let Some(slot) = self.slot_mut(entry.key) {
                *slot = entry;
            }
        }
        Some(())
    }
}
