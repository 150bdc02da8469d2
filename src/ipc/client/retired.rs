//! Which slots of the work queues have come back.

use core::sync::atomic::{AtomicU32, Ordering};

/// For each queue of a context, by its handle, how many requests have been retired: their completions, or later ones, have been
/// polled. Written by whoever polls a completion queue, read by whoever posts.
pub(super) struct Retired(Box<[Counts]>);

impl core::fmt::Debug for Retired {
    /// Not one by one: there may be a hundred thousand.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Retired({} queues)", self.0.len())
    }
}

#[derive(Debug, Default)]
struct Counts {
    sends: AtomicU32,
    receives: AtomicU32,
}

/// Which of a queue's two halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Half {
    Send,
    Receive,
}

impl Retired {
    pub(super) fn new(queues: u32) -> Self {
        Self((0..queues).map(|_| Counts::default()).collect())
    }

    fn count(&self, queue: u32, half: Half) -> Option<&AtomicU32> {
        let counts = self.0.get(queue as usize)?;
        Some(match half {
            Half::Send => &counts.sends,
            Half::Receive => &counts.receives,
        })
    }

    /// Requests retired so far, modulo 2^32.
    pub(super) fn get(&self, queue: u32, half: Half) -> u32 {
        self.count(queue, half).map_or(0, |count| count.load(Ordering::Acquire))
    }

    /// Everything up to request `wqe` is retired. Only its completion queue's holder calls this for a queue.
    pub(super) fn up_to(&self, queue: u32, half: Half, wqe: u32) {
        if let Some(count) = self.count(queue, half) {
            let next = wqe.wrapping_add(1);
            // A request that failed on its own may complete before earlier ones.
            if next.wrapping_sub(count.load(Ordering::Relaxed)).cast_signed() > 0 {
                count.store(next, Ordering::Release);
            }
        }
    }

    /// `n` requests more are retired, whichever.
    pub(super) fn add(&self, queue: u32, half: Half, n: u32) {
        if let Some(count) = self.count(queue, half) {
            count.fetch_add(n, Ordering::AcqRel);
        }
    }

    /// Everything is, `posted` having been posted: a fresh queue, or a reset one.
    pub(super) fn set(&self, queue: u32, half: Half, posted: u32) {
        if let Some(count) = self.count(queue, half) {
            count.store(posted, Ordering::Release);
        }
    }
}
