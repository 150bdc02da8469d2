//! Doorbells: which queues have something new, and whether the daemon must be woken for it.

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The doorbell words of an attached client, as both sides use them.
///
/// Many threads of the client ring at once; one worker of the daemon takes. No ring is lost: a queue whose producer was stored
/// before [`ring`](Self::ring) is seen by a [`take`](Self::take) after it, and a worker that went to sleep meanwhile is woken
/// exactly once (`tests/loom` explores every interleaving).
#[derive(Clone, Copy, Debug)]
pub struct Bell<'a> {
    /// `AttachArea::sleeping`.
    pub sleeping: &'a AtomicU32,
    /// `AttachArea::summary`: a bit a leaf.
    pub summary: &'a [AtomicU64],
    /// `AttachArea::leaves`: a bit a queue.
    pub leaves: &'a [AtomicU64],
}

impl Bell<'_> {
    /// Client: queue `queue` has something new. Returns whether the caller must write the doorbell `eventfd`.
    ///
    /// A queue beyond the bitmap is ignored: the daemon never gives such a number.
    #[must_use]
    pub fn ring(&self, queue: u32) -> bool {
        let leaf = queue as usize / 64;
        let (Some(word), Some(top)) = (self.leaves.get(leaf), self.summary.get(leaf / 64)) else { return false };
        let bit = 1 << (queue % 64);
        // Either this load sees that the daemon has taken the bit, or the daemon's load of the producer, behind the fence
        // in `take`, sees what was stored before this fence.
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) & bit != 0 {
            return false; // Whoever set it finishes the ring.
        }
        word.fetch_or(bit, Ordering::AcqRel);
        top.fetch_or(1 << (leaf % 64), Ordering::AcqRel);
        // Pairs with the fence in `may_sleep`.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) == 1 && self.sleeping.swap(0, Ordering::AcqRel) == 1
    }

    /// Daemon: takes every queue that was rung since, and forgets that it was.
    pub fn take(&self, mut rung: impl FnMut(u32)) {
        for (i, top) in self.summary.iter().enumerate() {
            if top.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut leaves = top.swap(0, Ordering::AcqRel);
            while leaves != 0 {
                let leaf = i * 64 + leaves.trailing_zeros() as usize;
                leaves &= leaves - 1;
                let Some(word) = self.leaves.get(leaf) else { break };
                let mut queues = word.swap(0, Ordering::AcqRel);
                fence(Ordering::SeqCst);
                while queues != 0 {
                    rung(leaf as u32 * 64 + queues.trailing_zeros());
                    queues &= queues - 1;
                }
            }
        }
    }

    /// Daemon: announces that it is going to sleep. Returns false, and takes it back, if something was rung meanwhile.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        self.sleeping.store(1, Ordering::Relaxed);
        // Either the load below sees the client's bit, or the client's load of `sleeping` sees 1.
        fence(Ordering::SeqCst);
        if self.summary.iter().all(|top| top.load(Ordering::Relaxed) == 0) {
            return true;
        }
        self.woke();
        false
    }

    /// Daemon: is awake, so no client need pay for a wake-up.
    pub fn woke(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }
}
