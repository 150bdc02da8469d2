//! Completion rings: written by the daemon, taken by the client.

use super::Lie;
use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// 64-bit words of a completion entry.
pub const CQE_WORDS: usize = 8;
/// The entry's last word: its upper half (in memory: the last four bytes) is the sequence.
const LAST: usize = CQE_WORDS - 1;

const NONE: u32 = 0;
const SOLICITED: u32 = 1;
const ANY: u32 = 2;

/// The shared words of a completion queue, as both sides use them.
#[derive(Clone, Copy, Debug)]
pub struct CompletionRing<'a> {
    /// `depth` entries of [`CQE_WORDS`] words.
    pub entries: &'a [AtomicU64],
    /// Entries, less one; `depth` is a power of two.
    pub mask: u32,
    /// `CompletionHeader::consumer`.
    pub consumer: &'a AtomicU32,
    /// `CompletionHeader::arm`.
    pub arm: &'a AtomicU32,
    /// `CompletionHeader::told`.
    pub told: &'a AtomicU32,
}

/// The last word of an entry with `sequence`; the four bytes before it are reserved.
const fn last_word(sequence: u32) -> u64 {
    if cfg!(target_endian = "little") { (sequence as u64) << 32 } else { sequence as u64 }
}

const fn sequence_of(last_word: u64) -> u32 {
    if cfg!(target_endian = "little") { (last_word >> 32) as u32 } else { last_word as u32 }
}

impl CompletionRing<'_> {
    fn entry(&self, index: u32) -> Option<&[AtomicU64]> {
        let start = (index & self.mask) as usize * CQE_WORDS;
        self.entries.get(start..start + CQE_WORDS)
    }

    /// Daemon: how many entries the client has not taken yet, `produced` having been written.
    ///
    /// # Errors
    /// A consumer index that no honest client could have stored.
    pub fn in_use(&self, produced: u32) -> Result<u32, Lie> {
        let consumer = self.consumer.load(Ordering::Acquire);
        let in_use = produced.wrapping_sub(consumer);
        if in_use > self.mask + 1 {
            Err(Lie { index: consumer, expected: produced, depth: self.mask + 1 })
        } else {
            Ok(in_use)
        }
    }

    /// Daemon: writes entry number `index`, which must be free. The sequence is put in here.
    pub fn push(&self, index: u32, cqe: &[u64; CQE_WORDS]) {
        let Some(entry) = self.entry(index) else { return };
        for (word, value) in entry.iter().zip(cqe).take(LAST) {
            word.store(*value, Ordering::Relaxed);
        }
        entry[LAST].store(last_word(index.wrapping_add(1)), Ordering::Release);
    }

    /// Daemon: after pushing, whether an event must be written into the channel. `solicited` tells that one of the entries was
    /// solicited or failed.
    #[must_use]
    pub fn fire(&self, solicited: bool) -> bool {
        // Either this load sees the client's arm, or the client's poll after arming sees the entries.
        fence(Ordering::SeqCst);
        match self.arm.load(Ordering::Relaxed) {
            NONE => return false,
            SOLICITED if !solicited => return false,
            _ => {}
        }
        self.arm.swap(NONE, Ordering::AcqRel);
        self.told.swap(1, Ordering::AcqRel) == 0
    }

    /// Daemon: takes over what the client wished of the ring that this one replaces.
    pub fn inherit(&self, old: &Self) {
        self.told.store(old.told.load(Ordering::Acquire), Ordering::Relaxed);
        self.arm.store(old.arm.swap(NONE, Ordering::AcqRel), Ordering::Release);
    }

    /// Client: entry number `index`, if the daemon has written it.
    pub fn peek(&self, index: u32) -> Option<[u64; CQE_WORDS]> {
        let entry = self.entry(index)?;
        let last = entry[LAST].load(Ordering::Acquire);
        if sequence_of(last) != index.wrapping_add(1) {
            return None;
        }
        let mut cqe = [0; CQE_WORDS];
        for (value, word) in cqe.iter_mut().zip(entry).take(LAST) {
            *value = word.load(Ordering::Relaxed);
        }
        cqe[LAST] = last;
        Some(cqe)
    }

    /// Client: everything before `index` has been taken.
    pub fn release(&self, index: u32) {
        self.consumer.store(index, Ordering::Release);
    }

    /// Client: wants one event, for the next solicited completion or for the next of any kind. What has come before is
    /// not told: poll once more after arming.
    pub fn arm(&self, solicited_only: bool) {
        // A request for any completion is not weakened by one for solicited completions (IBTA 11.4.2.2).
        self.arm.fetch_max(if solicited_only { SOLICITED } else { ANY }, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Client: has read this queue's event from the channel.
    pub fn heard(&self) {
        self.told.swap(0, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }
}
