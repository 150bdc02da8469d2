//! Work rings: written by the client, copied out once by the daemon.

use super::Lie;
use super::atomic::{AtomicU32, AtomicU64, Ordering};

/// The shared words of a work queue, as both sides use them.
#[derive(Clone, Copy, Debug)]
pub struct WorkRing<'a> {
    /// `QueueHeader::producer`.
    pub producer: &'a AtomicU32,
    /// `depth` slots of [`slot_words`](Self::slot_words) words.
    pub slots: &'a [AtomicU64],
    /// Slots, less one; `depth` is a power of two.
    pub mask: u32,
    /// 64-bit words of a slot.
    pub slot_words: u32,
}

impl<'a> WorkRing<'a> {
    /// The words of slot number `index`.
    pub fn slot(&self, index: u32) -> &'a [AtomicU64] {
        let start = (index & self.mask) as usize * self.slot_words as usize;
        self.slots.get(start..start + self.slot_words as usize).unwrap_or_default()
    }

    /// Client: makes every slot before `index` visible to the daemon.
    pub fn publish(&self, index: u32) {
        self.producer.store(index, Ordering::Release);
    }

    /// Daemon: how many slots the client has filled beyond `consumed`.
    ///
    /// # Errors
    /// A producer index that no honest client could have stored.
    pub fn available(&self, consumed: u32) -> Result<u32, Lie> {
        let producer = self.producer.load(Ordering::Acquire);
        let available = producer.wrapping_sub(consumed);
        if available > self.mask + 1 {
            Err(Lie { index: producer, expected: consumed, depth: self.mask + 1 })
        } else {
            Ok(available)
        }
    }
}

/// Copies words out of shared memory, each once. Words that are not there stay as they are.
pub fn copy_out(from: &[AtomicU64], to: &mut [u64]) {
    for (value, word) in to.iter_mut().zip(from) {
        *value = word.load(Ordering::Relaxed);
    }
}

/// Copies words into shared memory.
pub fn copy_in(from: &[u64], to: &[AtomicU64]) {
    for (word, value) in to.iter().zip(from) {
        word.store(*value, Ordering::Relaxed);
    }
}
