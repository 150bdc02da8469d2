#![allow(clippy::unwrap_used)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::*;

struct Words {
    bell: (AtomicU32, [AtomicU64; 2], Vec<AtomicU64>),
    completions: (Vec<AtomicU64>, AtomicU32, AtomicU32, AtomicU32),
    work: (AtomicU32, Vec<AtomicU64>),
}

impl Words {
    fn new() -> Self {
        let words = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        Self {
            bell: (AtomicU32::new(0), [AtomicU64::new(0), AtomicU64::new(0)], words(128)),
            completions: (words(4 * CQE_WORDS), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)),
            work: (AtomicU32::new(0), words(4 * 8)),
        }
    }

    fn bell(&self) -> Bell<'_> {
        Bell { sleeping: &self.bell.0, summary: &self.bell.1, leaves: &self.bell.2 }
    }

    fn completions(&self) -> CompletionRing<'_> {
        let (entries, consumer, arm, told) = &self.completions;
        CompletionRing { entries, mask: 3, consumer, arm, told }
    }

    fn work(&self) -> WorkRing<'_> {
        WorkRing { producer: &self.work.0, slots: &self.work.1, mask: 3, slot_words: 8 }
    }
}

fn taken(bell: Bell<'_>) -> Vec<u32> {
    let mut queues = Vec::new();
    bell.take(|q| queues.push(q));
    queues
}

#[test]
fn every_queue_rings_once_until_taken() {
    let words = Words::new();
    let bell = words.bell();
    for queue in [8191, 0, 63, 64, 4096, 0, 64] {
        assert!(!bell.ring(queue), "nobody sleeps");
    }
    assert_eq!(taken(bell), [0, 63, 64, 4096, 8191]);
    assert_eq!(taken(bell), [0; 0]);
    assert!(!bell.ring(8192), "beyond the bitmap");
    assert_eq!(taken(bell), [0; 0]);
}

#[test]
fn a_sleeper_is_woken_once() {
    let words = Words::new();
    let bell = words.bell();
    let _ = bell.ring(3);
    assert!(!bell.may_sleep(), "something was rung");
    assert_eq!(taken(bell), [3]);
    assert!(bell.may_sleep());
    assert!(bell.ring(5));
    assert!(!bell.ring(6));
    bell.woke();
    assert_eq!(taken(bell), [5, 6]);
}

#[test]
fn completions_come_in_order_and_wrap() {
    let words = Words::new();
    let ring = words.completions();
    for index in 0..64u32 {
        assert_eq!(ring.peek(index), None);
        ring.push(index, &[index.into(); CQE_WORDS]);
        assert_eq!(ring.in_use(index + 1), Ok(1));
        let cqe = ring.peek(index).unwrap();
        assert_eq!(cqe[0], u64::from(index));
        let cqe: crate::ipc::abi::Cqe = zerocopy::transmute!(cqe);
        assert_eq!(cqe.sequence, index + 1);
        ring.release(index + 1);
    }
}

#[test]
fn indices_wrap_at_the_end_of_32_bits() {
    let words = Words::new();
    let ring = words.completions();
    let start = u32::MAX - 1;
    ring.release(start);
    for i in 0..4 {
        ring.push(start.wrapping_add(i), &[i.into(); CQE_WORDS]);
    }
    assert_eq!(ring.in_use(start.wrapping_add(4)), Ok(4));
    for i in 0..4 {
        assert_eq!(ring.peek(start.wrapping_add(i)).unwrap()[0], u64::from(i));
    }
    assert_eq!(ring.peek(start.wrapping_add(4)), None);
}

#[test]
fn a_lying_index_is_found() {
    let words = Words::new();
    let (work, completions) = (words.work(), words.completions());
    for (producer, consumed, available) in [(4, 0, Some(4)), (5, 0, None), (9, 10, None), (1, u32::MAX, Some(2))] {
        work.publish(producer);
        assert_eq!(work.available(consumed).ok(), available, "producer {producer}, consumed {consumed}");
    }
    for (consumer, produced, in_use) in [(0, 4, Some(4)), (0, 5, None), (6, 5, None), (u32::MAX, 1, Some(2))] {
        completions.release(consumer);
        assert_eq!(completions.in_use(produced).ok(), in_use, "consumer {consumer}, produced {produced}");
    }
}

#[test]
fn an_event_fires_once_for_what_it_was_armed_for() {
    let words = Words::new();
    let ring = words.completions();
    assert!(!ring.fire(true), "not armed");
    ring.arm(true);
    assert!(!ring.fire(false), "not solicited");
    assert!(ring.fire(true));
    assert!(!ring.fire(true), "one shot");
    ring.heard();
    ring.arm(false);
    ring.arm(true);
    assert!(ring.fire(false), "solicited only does not weaken any");
    ring.arm(false);
    assert!(!ring.fire(false), "the event before has not been read: it serves for both");
    ring.heard();
    ring.arm(false);
    assert!(ring.fire(false));
    words.completions.2.store(77, Ordering::Relaxed);
    ring.heard();
    assert!(ring.fire(false), "a word that means nothing counts as any");
}

#[test]
fn slots_are_apart() {
    let words = Words::new();
    let work = words.work();
    for index in 0..4u32 {
        copy_in(&[u64::from(index) + 1; 8], work.slot(index));
    }
    let mut copy = [0; 8];
    copy_out(work.slot(6), &mut copy);
    assert_eq!(copy, [3; 8]);
}
