//! Every interleaving of a client and the daemon at the rings they share. See `Cargo.toml` for the command.
#![cfg(all(loom, test))]

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
// Each file serves the client and the daemon in the crate; a model here uses what can interleave.
#[path = "../../../src/ipc/ring/bell.rs"]
#[allow(dead_code)]
mod bell;
#[path = "../../../src/ipc/ring/completion.rs"]
#[allow(dead_code)]
mod completion;
#[path = "../../../src/ipc/ring/work.rs"]
#[allow(dead_code)]
mod work;

/// As in `src/ipc/ring/mod.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lie {
    pub index: u32,
    pub expected: u32,
    pub depth: u32,
}

use atomic::{AtomicU32, AtomicU64, Ordering};
use bell::Bell;
use completion::{CQE_WORDS, CompletionRing};
use loom::sync::Arc;
use loom::thread;
use work::{WorkRing, copy_in, copy_out};

/// The shared words of one client with two queues of two slots and one completion queue of two entries, and the two descriptors.
struct Shared {
    sleeping: AtomicU32,
    summary: [AtomicU64; 1],
    leaves: [AtomicU64; 1],
    producers: [AtomicU32; 2],
    slots: [AtomicU64; 4],
    entries: Vec<AtomicU64>,
    consumer: AtomicU32,
    arm: AtomicU32,
    told: AtomicU32,
    /// The doorbell eventfd: how often it was written.
    doorbell: AtomicU32,
    /// The completion channel: how many events are in it.
    channel: AtomicU32,
}

impl Shared {
    fn new() -> Arc<Self> {
        let word = || AtomicU64::new(0);
        let half = || AtomicU32::new(0);
        Arc::new(Self {
            sleeping: half(),
            summary: [word()],
            leaves: [word()],
            producers: [half(), half()],
            slots: [word(), word(), word(), word()],
            entries: (0..2 * CQE_WORDS).map(|_| word()).collect(),
            consumer: half(),
            arm: half(),
            told: half(),
            doorbell: half(),
            channel: half(),
        })
    }

    fn bell(&self) -> Bell<'_> {
        Bell { sleeping: &self.sleeping, summary: &self.summary, leaves: &self.leaves }
    }

    fn work(&self, queue: usize) -> WorkRing<'_> {
        WorkRing { producer: &self.producers[queue], slots: &self.slots[queue * 2..][..2], mask: 1, slot_words: 1 }
    }

    fn completions(&self) -> CompletionRing<'_> {
        CompletionRing { entries: &self.entries, mask: 1, consumer: &self.consumer, arm: &self.arm, told: &self.told }
    }

    /// Client: posts request number `index`, whose only word is `value`.
    fn post(&self, queue: usize, index: u32, value: u64) {
        let work = self.work(queue);
        copy_in(&[value], work.slot(index));
        work.publish(index + 1);
        if self.bell().ring(queue as u32) {
            self.doorbell.fetch_add(1, Ordering::Release);
        }
    }

    /// Daemon: takes what was rung; adds up the values.
    fn take(&self, consumed: &mut [u32; 2]) -> u64 {
        let mut sum = 0;
        self.bell().take(|queue| {
            let (work, consumed) = (self.work(queue as usize), &mut consumed[queue as usize]);
            for _ in 0..work.available(*consumed).unwrap() {
                let mut slot = [0];
                copy_out(work.slot(*consumed), &mut slot);
                assert_ne!(slot[0], 0, "a slot is whole when its producer is seen");
                sum += slot[0];
                *consumed += 1;
            }
        });
        sum
    }
}

/// The worker either finds what was posted or is woken for it.
#[test]
fn no_doorbell_is_lost() {
    loom::model(|| {
        let shared = Shared::new();
        let client = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.post(0, 0, 1);
                shared.post(0, 1, 10);
            })
        };
        let mut consumed = [0; 2];
        let mut sum = shared.take(&mut consumed);
        let asleep = shared.bell().may_sleep();
        client.join().unwrap();
        let woken = shared.doorbell.load(Ordering::Acquire);
        assert!(woken <= 1, "one wake-up a sleep");
        if sum != 11 {
            assert!(!asleep || woken == 1, "asleep with {sum} of 11 taken and nobody to wake the worker");
        }
        shared.bell().woke();
        sum += shared.take(&mut consumed);
        assert_eq!(sum, 11);
    });
}

/// Two threads of the client ring two queues that share every word of the bitmap.
#[test]
fn threads_of_a_client_do_not_lose_each_others_doorbells() {
    // Three threads: with every preemption tried it takes minutes, with three of them seconds.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new();
        let clients = [0, 1].map(|queue| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.post(queue, 0, 1))
        });
        let mut consumed = [0; 2];
        let mut sum = 0;
        let asleep = shared.bell().may_sleep();
        if !asleep {
            sum += shared.take(&mut consumed);
        }
        for client in clients {
            client.join().unwrap();
        }
        let woken = shared.doorbell.load(Ordering::Acquire);
        assert!(woken <= 1);
        assert!(!asleep || woken == 1, "asleep, and nobody woke the worker");
        sum += shared.take(&mut consumed);
        assert_eq!(sum, 2);
    });
}

/// Daemon: completes request `index`.
fn complete(shared: &Shared, index: u32, solicited: bool) {
    let ring = shared.completions();
    assert!(ring.in_use(index).unwrap() < 2);
    ring.push(index, &[u64::from(index) + 1; CQE_WORDS]);
    if ring.fire(solicited) {
        shared.channel.fetch_add(1, Ordering::Release);
    }
}

/// Client: takes everything from `index` on; returns the new index.
fn poll(shared: &Shared, mut index: u32) -> u32 {
    let ring = shared.completions();
    while let Some(cqe) = ring.peek(index) {
        assert_eq!(cqe[0], u64::from(index) + 1, "an entry is whole when its sequence is seen");
        index += 1;
        ring.release(index);
    }
    index
}

/// Poll, arm, poll, wait: the client either has every completion or there is an event in its channel.
#[test]
fn no_completion_event_is_lost() {
    loom::model(|| {
        let shared = Shared::new();
        let daemon = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                complete(&shared, 0, false);
                complete(&shared, 1, false);
            })
        };
        let mut taken = poll(&shared, 0);
        shared.completions().arm(false);
        taken = poll(&shared, taken);
        daemon.join().unwrap();
        let events = shared.channel.load(Ordering::Acquire);
        assert!(events <= 1, "one event an arm");
        assert!(taken == 2 || events == 1, "waits for ever with {taken} of 2 taken");
        assert_eq!(poll(&shared, taken), 2);
    });
}

/// An event that was read, armed again, and one that was not read: at most one a queue is in the channel, and what was pushed
/// before the daemon left it out is seen by whoever reads the one that is there.
#[test]
fn an_unread_event_stands_for_the_next() {
    loom::model(|| {
        let shared = Shared::new();
        shared.completions().arm(false);
        let daemon = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                complete(&shared, 0, false);
                complete(&shared, 1, true);
            })
        };
        // Armed again without having read the channel.
        shared.completions().arm(true);
        let mut taken = 0;
        if shared.channel.load(Ordering::Acquire) > 0 {
            shared.channel.fetch_sub(1, Ordering::AcqRel);
            shared.completions().heard();
            shared.completions().arm(false);
            taken = poll(&shared, taken);
        }
        daemon.join().unwrap();
        let events = shared.channel.load(Ordering::Acquire);
        assert!(events <= 1, "at most one event of a queue is unread");
        assert!(taken == 2 || events == 1, "waits for ever with {taken} of 2 taken");
    });
}
