//! A hierarchical timing wheel: one deadline a key, set and cancelled in O(1).
//!
//! Six levels of 64 slots over ticks of 8.192 us reach 6.5 days; what lies further is looked at again by then.
//! (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987, scheme 7.)

use crate::time::Instant;

/// Nanoseconds of a tick, as a shift: 8.192 us, below the shortest RNR delay (10 us).
const TICK_SHIFT: u32 = 13;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 6;
/// How far ahead a timer can stand: a slot less than the whole turn of the top level, so that it never laps itself.
const REACH_TICKS: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - (1 << (SLOT_BITS * (LEVELS as u32 - 1)));

/// Where a timer is not in any list.
const NOWHERE: u16 = u16::MAX;
/// The list of timers that are due.
const DUE: u16 = (LEVELS * SLOTS) as u16;
const END: u32 = u32::MAX;

/// Deadlines by key; keys are small numbers (slots of a table).
///
/// A deadline that moves *later* stays where it stands and is looked at again when its old slot comes up: restarting an
/// ACK timer at each ACK costs one store. So [`TimerWheel::next_check`] may be early, but [`TimerWheel::pop_due`] never is.
#[derive(Debug)]
pub struct TimerWheel {
    nodes: Vec<Node>,
    heads: Box<[u32; LEVELS * SLOTS + 1]>,
    /// Which slots of each level hold timers.
    occupied: [u64; LEVELS],
    /// All ticks up to this one have been looked at.
    elapsed: u64,
    due_tail: u32,
    armed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    deadline: Instant,
    prev: u32,
    next: u32,
    /// Index into `heads`, or `NOWHERE`.
    list: u16,
}

impl Node {
    const IDLE: Self = Self { deadline: Instant::MAX, prev: END, next: END, list: NOWHERE };
}

/// The first tick at or after `t`.
const fn tick_at_or_after(t: Instant) -> u64 {
    t.as_ns().div_ceil(1 << TICK_SHIFT)
}

const fn start_of(tick: u64) -> Instant {
    Instant::from_ns(tick.saturating_mul(1 << TICK_SHIFT))
}

impl TimerWheel {
    /// An empty wheel that begins at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            nodes: Vec::new(),
            heads: Box::new([END; LEVELS * SLOTS + 1]),
            occupied: [0; LEVELS],
            elapsed: now.as_ns() >> TICK_SHIFT,
            due_tail: END,
            armed: 0,
        }
    }

    /// Makes room for keys below `keys`, so that [`TimerWheel::set`] of one of them never allocates.
    pub fn reserve(&mut self, keys: usize) {
        if keys > self.nodes.len() {
            self.nodes.resize(keys, Node::IDLE);
        }
    }

    /// How many keys have a deadline.
    pub fn armed(&self) -> usize {
        self.armed
    }

    /// Gives `key` this deadline, or none.
    pub fn set(&mut self, key: u32, deadline: Option<Instant>) {
        self.reserve(key as usize + 1);
        let Some(node) = self.nodes.get_mut(key as usize) else { return };
        match deadline {
            None if node.list == NOWHERE => {}
            None => {
                self.unlink(key);
                self.armed -= 1;
            }
            Some(deadline) if node.list != NOWHERE && deadline >= node.deadline => node.deadline = deadline,
            Some(deadline) => {
                node.deadline = deadline;
                if node.list == NOWHERE {
                    self.armed += 1;
                } else {
                    self.unlink(key);
                }
                self.place(key);
            }
        }
    }

    /// When to look again: never later than the end of the tick in which the earliest deadline falls.
    pub fn next_check(&self) -> Option<Instant> {
        if self.heads[DUE as usize] != END {
            return Some(start_of(self.elapsed));
        }
        self.next_slot().map(|(_, _, tick)| start_of(tick))
    }

    /// Takes out one key whose deadline is at or before `now`; call until `None`. Keys that fall in one tick come in no set order.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let now_tick = now.as_ns() >> TICK_SHIFT;
        loop {
            let key = self.heads[DUE as usize];
            if let Some(node) = self.nodes.get(key as usize) {
                let really_due = node.deadline <= now;
                self.unlink(key);
                if really_due {
                    self.armed -= 1;
                    return Some(key);
                }
                // It moved later since it was placed.
                self.place(key);
                continue;
            }
            match self.next_slot() {
                Some((level, slot, tick)) if tick <= now_tick => {
                    self.elapsed = tick;
                    self.turn(level, slot);
                }
                _ => {
                    self.elapsed = self.elapsed.max(now_tick);
                    return None;
                }
            }
        }
    }

    /// Spreads the timers of a slot that has come up over lower levels, or makes them due.
    fn turn(&mut self, level: usize, slot: usize) {
        let list = level * SLOTS + slot;
        while self.heads[list] != END {
            let key = self.heads[list];
            self.unlink(key);
            self.place(key);
        }
    }

    /// The occupied slot that comes up first: its level, number and tick.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        // Everything on a level comes up before everything on the levels above it.
        let level = self.occupied.iter().position(|&o| o != 0)?;
        let shift = SLOT_BITS * level as u32;
        let here = (self.elapsed >> shift) as u32 % SLOTS as u32;
        let ahead = self.occupied[level].rotate_right(here).trailing_zeros();
        let slot = (here + ahead) as usize % SLOTS;
        // Slots behind us hold timers of the next turn (top level only).
        Some((level, slot, ((self.elapsed >> shift) + u64::from(ahead)) << shift))
    }

    /// Puts a key that is in no list where its deadline belongs.
    fn place(&mut self, key: u32) {
        let Some(node) = self.nodes.get_mut(key as usize) else { return };
        let tick = tick_at_or_after(node.deadline);
        if tick <= self.elapsed {
            self.push_due(key);
            return;
        }
        let tick = tick.min(self.elapsed + REACH_TICKS);
        // The level on which the two ticks stand in different slots.
        let differs = (self.elapsed ^ tick) | (SLOTS as u64 - 1);
        let level = ((differs.ilog2() / SLOT_BITS) as usize).min(LEVELS - 1);
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        let list = level * SLOTS + slot;
        let head = core::mem::replace(&mut self.heads[list], key);
        node.prev = END;
        node.next = head;
        node.list = list as u16;
        if let Some(head) = self.nodes.get_mut(head as usize) {
            head.prev = key;
        }
        self.occupied[level] |= 1 << slot;
    }

    fn push_due(&mut self, key: u32) {
        let tail = core::mem::replace(&mut self.due_tail, key);
        match self.nodes.get_mut(tail as usize) {
            Some(tail) => tail.next = key,
            None => self.heads[DUE as usize] = key,
        }
        if let Some(node) = self.nodes.get_mut(key as usize) {
            (node.prev, node.next, node.list) = (tail, END, DUE);
        }
    }

    fn unlink(&mut self, key: u32) {
        let Some(node) = self.nodes.get_mut(key as usize) else { return };
        let Node { prev, next, list, .. } = *node;
        (node.prev, node.next, node.list) = (END, END, NOWHERE);
        match self.nodes.get_mut(prev as usize) {
            Some(prev) => prev.next = next,
            None => self.heads[list as usize] = next,
        }
        match self.nodes.get_mut(next as usize) {
            Some(next) => next.prev = prev,
            None if list == DUE => self.due_tail = prev,
            None => {}
        }
        if list != DUE && self.heads[list as usize] == END {
            self.occupied[list as usize / SLOTS] &= !(1 << (list as usize % SLOTS));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn at(ns: u64) -> Instant {
        Instant::from_ns(ns)
    }

    fn drain(w: &mut TimerWheel, now: Instant) -> Vec<u32> {
        let mut out: Vec<u32> = std::iter::from_fn(|| w.pop_due(now)).collect();
        out.sort_unstable();
        out
    }

    #[test]
    fn fires_within_a_tick_after_the_deadline_and_never_before() {
        let mut w = TimerWheel::new(at(0));
        w.set(3, Some(at(10_000)));
        assert!(drain(&mut w, at(9_999)).is_empty());
        let check = w.next_check().unwrap();
        assert!(check >= at(10_000) && check < at(10_000 + (1 << TICK_SHIFT)));
        assert_eq!(drain(&mut w, check), [3]);
        assert_eq!(w.next_check(), None);
    }

    #[test]
    fn a_deadline_in_the_past_is_due_at_once_and_cancel_takes_it_back() {
        let mut w = TimerWheel::new(at(1 << 40));
        w.set(0, Some(at(5)));
        w.set(1, Some(at(6)));
        w.set(2, Some(at(7)));
        w.set(1, None);
        assert_eq!(w.armed(), 2);
        assert!(w.next_check().unwrap() <= at(1 << 40));
        assert_eq!(drain(&mut w, at(1 << 40)), [0, 2]);
        w.set(2, None);
        assert_eq!(w.armed(), 0);
    }

    #[test]
    fn the_end_of_time_does_not_overflow_and_is_never_due_early() {
        let mut w = TimerWheel::new(at(0));
        w.set(0, Some(Instant::MAX));
        let mut now = at(0);
        for _ in 0..200 {
            now = w.next_check().unwrap().max(now);
            assert_eq!(w.pop_due(now), None);
        }
        assert_eq!(w.pop_due(at(u64::MAX - 1)), None);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Set(u32, u64),
        Cancel(u32),
        Advance(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let spans = prop_oneof![0..100_000u64, 0..1u64 << 30, 0..1u64 << 45, 0..1u64 << 52];
        prop_oneof![
            4 => (0..40u32, spans.clone()).prop_map(|(k, d)| Step::Set(k, d)),
            1 => (0..40u32).prop_map(Step::Cancel),
            3 => spans.prop_map(Step::Advance),
        ]
    }

    proptest! {
        /// Against a sorted map: whatever is due (to the tick) comes out, nothing else does, and `next_check` is never late.
        #[test]
        fn agrees_with_a_sorted_map(start in 0..1u64 << 50, steps in prop::collection::vec(step(), 1..200)) {
            let mut now = start;
            let mut w = TimerWheel::new(at(now));
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for s in steps {
                match s {
                    Step::Set(k, d) => {
                        w.set(k, Some(at(now + d)));
                        model.insert(k, now + d);
                    }
                    Step::Cancel(k) => {
                        w.set(k, None);
                        model.remove(&k);
                    }
                    Step::Advance(d) => {
                        now += d;
                        for k in drain(&mut w, at(now)) {
                            let deadline = model.remove(&k);
                            prop_assert!(deadline.is_some_and(|t| t <= now), "key {k} at {now}: {deadline:?}");
                        }
                        for (k, t) in &model {
                            prop_assert!(*t + (1 << TICK_SHIFT) > now, "key {k} was due at {t}, now {now}");
                        }
                    }
                }
                prop_assert_eq!(w.armed(), model.len());
                let earliest = model.values().min();
                prop_assert_eq!(w.next_check().is_some(), earliest.is_some());
                if let (Some(check), Some(earliest)) = (w.next_check(), earliest) {
                    prop_assert!(check.as_ns() < earliest.max(&now) + (1 << TICK_SHIFT));
                }
            }
        }
    }
}
