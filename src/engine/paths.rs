//! The paths that queue pairs ride: whose turn it is to send, timers, and who waits for an answer, each by path. So the dark freezes
//! all queue pairs of a path in one step, however many they are.

use super::congestion::CongestionPolicy;
use super::ready::ReadyQueue;
use super::wheel::TimerWheel;
use crate::congestion::Tuning;
use crate::path::{Circuit, HoldPolicy, Ledger, Life, PathClock};
use crate::time::{Duration, Instant};
use crate::transport::Qp;
use core::net::IpAddr;
use slab::Slab;
use std::collections::HashMap;

/// The path of datagrams, and of queue pairs that have no peer yet or one of this engine: it is never dark.
pub(super) const NEAR: u32 = 0;

/// Which path a queue pair rides, and its place there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seat {
    pub(super) path: u32,
    pub(super) member: u32,
}

/// A queue pair of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) slot: u32,
    /// The darkness of the path that it knows of.
    pub(super) seen: u64,
}

/// What a queue pair needs after a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// When it is to be called, in path time.
    pub(super) deadline: Option<Instant>,
    /// Whether an answer of the peer is due.
    pub(super) answer: bool,
    /// Whether it may have something to send.
    pub(super) turn: bool,
}

impl Needs {
    /// What a queue pair needs; `turn` if it may have something to send.
    #[inline]
    pub(super) fn of(qp: &Qp, turn: bool) -> Self {
        Self { deadline: qp.poll_timeout(), answer: qp.awaits_answer(), turn }
    }
}

/// What the peer's host was asked, and answered: numbers that count up from one that nobody guesses.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Questions {
    first: Option<u64>,
    asked: u64,
    answered: u64,
    /// The question with which the last suspicion began.
    suspected: u64,
    last: Option<Instant>,
}

impl Questions {
    /// The number of the next question, which may begin a suspicion; `first` makes the first one.
    pub(super) fn ask(&mut self, now: Instant, is_suspicion: bool, first: impl FnOnce() -> u64) -> u64 {
        self.last = Some(now);
        if is_suspicion {
            self.suspected = self.asked;
        }
        self.asked += 1;
        self.first.get_or_insert_with(first).wrapping_add(self.asked - 1)
    }

    /// Takes an answer: whether it is to the question with which suspicion began. `None` if it is to none of those since the last that
    /// was answered.
    pub(super) fn take(&mut self, nonce: u64) -> Option<bool> {
        let number = nonce.wrapping_sub(self.first?);
        (self.answered..self.asked).contains(&number).then(|| {
            self.answered = number + 1;
            number == self.suspected
        })
    }

    /// Whether it was asked within `every` before `now`.
    pub(super) fn is_fresh(&self, now: Instant, every: Duration) -> bool {
        self.last.is_some_and(|last| now.since(last) < every)
    }
}

/// One path.
#[derive(Debug)]
pub(super) struct Path {
    /// The peer's address; `None` for the near path.
    pub(super) peer: Option<IpAddr>,
    pub(super) life: Life,
    pub(super) clock: PathClock,
    pub(super) members: Slab<Member>,
    wheel: TimerWheel,
    ready: ReadyQueue,
    /// Who waits for an answer; those first whom the light has not reached yet.
    awaiting: ReadyQueue,
    /// Counts darknesses.
    pub(super) darkness: u64,
    pub(super) questions: Questions,
    /// When the next queue pairs go on, while it thaws.
    pub(super) thaws_at: Option<Instant>,
    /// How its queue pairs share its line with others.
    pub(super) tuning: Tuning,
    /// What it rides on, and how often that was another.
    pub(super) circuit: Option<Circuit>,
    pub(super) moves: u64,
    /// The peer is known to react to CNPs, though it may be no holdfast.
    is_listed: bool,
}

impl Path {
    fn new(peer: Option<IpAddr>, policy: HoldPolicy, congestion: &CongestionPolicy, now: Instant) -> Self {
        Self {
            peer,
            life: Life::new(policy, now),
            clock: PathClock::default(),
            members: Slab::new(),
            wheel: TimerWheel::new(now),
            ready: ReadyQueue::default(),
            awaiting: ReadyQueue::default(),
            darkness: 0,
            questions: Questions::default(),
            thaws_at: None,
            tuning: congestion.tuning_on(None),
            circuit: None,
            moves: 0,
            is_listed: congestion.lists(peer),
        }
    }

    /// The oldest member that waits for an answer.
    pub(super) fn first_awaiting(&self) -> Option<u32> {
        self.awaiting.front()
    }

    /// The member whose turn is next.
    pub(super) fn first_ready(&self) -> Option<u32> {
        self.ready.front()
    }

    /// Moves a member that waits for an answer behind all others.
    pub(super) fn move_back(&mut self, member: u32) {
        if self.awaiting.remove(member) {
            self.awaiting.push(member);
        }
    }

    /// Notes what a member needs.
    #[inline]
    fn note(&mut self, now: Instant, member: u32, needs: Needs) {
        self.wheel.set(member, needs.deadline);
        if self.peer.is_some() {
            if needs.answer {
                self.awaiting.push(member);
            } else {
                self.awaiting.remove(member);
            }
            self.life.handle_awaiting(now, !self.awaiting.is_empty());
        }
        if needs.turn {
            self.ready.push(member);
        }
    }

    /// When to look after it, in the engine's time.
    fn next_check(&self) -> Option<Instant> {
        let timers = self.wheel.next_check().and_then(|at| self.clock.when(at));
        [timers, self.life.poll_timeout(), self.thaws_at].into_iter().flatten().min()
    }

    /// A queue pair whose deadline has come: its member number.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.clock.when(Instant::ZERO)?;
        self.wheel.pop_due(self.clock.at(now))
    }
}

/// All paths of an engine.
#[derive(Debug)]
pub(super) struct Paths {
    table: Slab<Path>,
    by_peer: HashMap<IpAddr, u32>,
    /// Lit paths on which somebody has something to send.
    turns: ReadyQueue,
    /// When to look after each path, but for those touched since.
    deadlines: TimerWheel,
    touched: ReadyQueue,
    pub(super) ledger: Ledger,
    policy: HoldPolicy,
    congestion: CongestionPolicy,
}

impl Paths {
    pub(super) fn new(policy: HoldPolicy, congestion: CongestionPolicy, now: Instant) -> Self {
        let mut table = Slab::new();
        table.insert(Path::new(None, HoldPolicy { enabled: false, ..policy }, &CongestionPolicy::default(), now));
        let mut paths = Self {
            table,
            by_peer: HashMap::new(),
            turns: ReadyQueue::default(),
            deadlines: TimerWheel::new(now),
            touched: ReadyQueue::default(),
            ledger: Ledger::default(),
            policy,
            congestion,
        };
        paths.reserve();
        paths
    }

    /// Makes room, so that what comes later allocates nothing.
    fn reserve(&mut self) {
        self.turns.reserve(self.table.len());
        self.deadlines.reserve(self.table.len());
        self.touched.reserve(self.table.len());
    }

    pub(super) fn get(&self, path: u32) -> Option<&Path> {
        self.table.get(path as usize)
    }

    pub(super) fn get_mut(&mut self, path: u32) -> Option<&mut Path> {
        self.table.get_mut(path as usize)
    }

    /// The path to a peer, if queue pairs ride it.
    pub(super) fn of_peer(&self, peer: IpAddr) -> Option<u32> {
        self.by_peer.get(&peer).copied()
    }

    /// All but the near one.
    pub(super) fn far(&self) -> impl Iterator<Item = (u32, &Path)> {
        self.table.iter().map(|(id, path)| (id as u32, path)).filter(|(id, _)| *id != NEAR)
    }

    /// Changes how later paths are held.
    pub(super) fn set_policy(&mut self, policy: HoldPolicy) {
        self.policy = policy;
    }

    /// Changes how queue pairs share lines.
    pub(super) fn set_congestion(&mut self, congestion: CongestionPolicy) {
        for (_, path) in self.table.iter_mut().filter(|(id, _)| *id != NEAR as usize) {
            path.tuning = congestion.tuning_on(path.circuit.as_ref()).since_thaw_of(&path.tuning);
            path.is_listed = congestion.lists(path.peer);
        }
        self.congestion = congestion;
    }

    /// A path, and how its queue pairs share its line.
    pub(super) fn with_policy(&mut self, path: u32) -> Option<(&mut Path, &CongestionPolicy)> {
        Some((self.table.get_mut(path as usize)?, &self.congestion))
    }

    /// Whether CNPs slow queue pairs down.
    pub(super) fn obeys_cnps(&self) -> bool {
        self.congestion.enabled
    }

    /// Whether the peer reacts to marks and CNPs: another holdfast, or one that is listed.
    pub(super) fn reacts(&self, path: &Path) -> bool {
        self.congestion.enabled && (path.is_listed || path.life.is_kin())
    }

    /// The path to a peer, made if there is none; and whether it was made.
    pub(super) fn open(&mut self, now: Instant, peer: IpAddr) -> (u32, bool) {
        if let Some(path) = self.of_peer(peer) {
            return (path, false);
        }
        let path = self.table.insert(Path::new(Some(peer), self.policy, &self.congestion, now)) as u32;
        self.by_peer.insert(peer, path);
        self.reserve();
        (path, true)
    }

    /// Puts a queue pair on a path.
    pub(super) fn seat(&mut self, path: u32, slot: u32) -> Option<Seat> {
        let on = self.get_mut(path)?;
        let member = on.members.insert(Member { slot, seen: on.darkness }) as u32;
        let room = on.members.len().max(member as usize + 1);
        on.wheel.reserve(room);
        on.ready.reserve(room);
        on.awaiting.reserve(room);
        Some(Seat { path, member })
    }

    /// Takes a queue pair off its path. A path without queue pairs goes: what is announced of it stands in the ledger.
    pub(super) fn unseat(&mut self, now: Instant, seat: Seat) {
        let Some(path) = self.get_mut(seat.path) else { return };
        path.members.try_remove(seat.member as usize);
        path.wheel.set(seat.member, None);
        path.ready.remove(seat.member);
        path.awaiting.remove(seat.member);
        if path.members.is_empty() && seat.path != NEAR {
            self.turns.remove(seat.path);
            self.deadlines.set(seat.path, None);
            self.touched.remove(seat.path);
            if let Some(peer) = self.table.try_remove(seat.path as usize).and_then(|path| path.peer) {
                self.by_peer.remove(&peer);
            }
            return;
        }
        let awaits = !path.awaiting.is_empty();
        path.life.handle_awaiting(now, awaits);
        if path.ready.is_empty() {
            self.turns.remove(seat.path);
        }
    }

    /// The time on a path.
    pub(super) fn time(&self, path: u32, now: Instant) -> Instant {
        self.get(path).map_or(now, |path| path.clock.at(now))
    }

    /// The queue pair that rides there.
    pub(super) fn slot(&self, seat: Seat) -> Option<u32> {
        self.get(seat.path)?.members.get(seat.member as usize).map(|member| member.slot)
    }

    /// Notes what a queue pair needs.
    #[inline]
    pub(super) fn note(&mut self, now: Instant, seat: Seat, needs: Needs) {
        let Some(path) = self.table.get_mut(seat.path as usize) else { return };
        path.note(now, seat.member, needs);
        self.touched.push(seat.path);
        if needs.turn && path.life.is_open() {
            self.turns.push(seat.path);
        }
    }

    /// Looks anew when those paths are due that were touched: once a turn, not once a packet.
    pub(super) fn settle(&mut self) {
        while let Some(path) = self.touched.pop() {
            self.deadlines.set(path, self.table.get(path as usize).and_then(Path::next_check));
        }
    }

    /// Looks anew whether a path may send, and when it is due.
    pub(super) fn refresh(&mut self, path: u32, not_before: Instant) {
        let Some(on) = self.table.get(path as usize) else { return };
        if on.life.is_open() && !on.ready.is_empty() {
            self.turns.push(path);
        } else {
            self.turns.remove(path);
        }
        self.deadlines.set(path, on.next_check().map(|at| at.max(not_before)));
        self.touched.remove(path);
    }

    /// The queue pair whose turn it is. Paths take turns, and on each its queue pairs.
    pub(super) fn pop_turn(&mut self) -> Option<Seat> {
        while let Some(path) = self.turns.pop() {
            let Some(on) = self.table.get_mut(path as usize) else { continue };
            let member = on.ready.pop();
            if !on.ready.is_empty() {
                self.turns.push(path);
            }
            if let Some(member) = member {
                return Some(Seat { path, member });
            }
        }
        None
    }

    /// Whether nobody waits for a turn that may have one, and it is known when each path is due.
    pub(super) fn is_idle(&self) -> bool {
        self.turns.is_empty() && self.touched.is_empty()
    }

    /// A path that is due. Only after [`Paths::settle`].
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        self.deadlines.pop_due(now)
    }

    /// When the first path is due.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.deadlines.next_check()
    }
}

/// After what is due was done, the soonest that it can be due again: a deadline that stays in the past must not hold us.
pub(super) fn soonest_after(now: Instant) -> Instant {
    now + Duration::from_nanos(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::path::PathChange;
    use core::net::Ipv4Addr;

    #[test]
    fn an_answer_counts_once_and_none_before_it() {
        let (now, mut questions) = (Instant::ZERO, Questions::default());
        assert_eq!(questions.take(u64::MAX), None);
        let asked = [false, true, false].map(|is_suspicion| questions.ask(now, is_suspicion, || u64::MAX));
        assert_eq!(asked, [u64::MAX, 0, 1]);
        assert_eq!(questions.take(2), None);
        assert_eq!(questions.take(0), Some(true));
        assert_eq!((questions.take(0), questions.take(u64::MAX)), (None, None));
        assert_eq!(questions.take(1), Some(false));
    }

    #[test]
    fn the_dark_holds_every_timer_and_turn_of_a_path_and_of_no_other() {
        let ms = |n: u64| Instant::from_ns(n * 1_000_000);
        let mut paths = Paths::new(HoldPolicy::default(), CongestionPolicy::default(), ms(0));
        let [dark, lit] = [1, 2].map(|n| paths.open(ms(0), Ipv4Addr::new(198, 18, 0, n).into()).0);
        let needs = Needs { deadline: Some(ms(10)), answer: false, turn: true };
        for slot in 0..1000 {
            let seat = paths.seat(dark, slot).unwrap();
            paths.note(ms(0), seat, needs);
        }
        let other = paths.seat(lit, 1000).unwrap();
        paths.note(ms(0), other, needs);
        let path = paths.get_mut(dark).unwrap();
        path.life.handle_change(ms(9), PathChange::Down);
        path.clock.stop(ms(9));
        paths.refresh(dark, ms(9));
        assert_eq!(std::iter::from_fn(|| paths.pop_turn()).collect::<Vec<_>>(), [other]);
        assert_eq!(paths.get_mut(dark).unwrap().pop_due(ms(5_000)), None);
        assert_eq!(paths.get_mut(lit).unwrap().pop_due(ms(11)), Some(0));
        let path = paths.get_mut(dark).unwrap();
        path.life.handle_change(ms(5_000), PathChange::Up);
        path.clock.start(ms(5_000));
        paths.refresh(dark, ms(5_000));
        assert_eq!(std::iter::from_fn(|| paths.pop_turn()).count(), 1000);
        let path = paths.get_mut(dark).unwrap();
        assert_eq!(path.pop_due(Instant::from_ns(ms(5_001).as_ns() - 1)), None);
        assert_eq!(std::iter::from_fn(|| path.pop_due(ms(5_002))).count(), 1000);
    }
}
