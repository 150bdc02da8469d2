//! Two queue pairs on a virtual clock over a scripted link.

use super::end::{End, Setup};
use crate::time::{Duration, Instant};
use crate::transport::{Completion, QpAttributes};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    A,
    B,
}

/// What the link does to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Pass,
    Drop,
    Duplicate,
    /// Arrives so much later than it would.
    Delay(Duration),
}

/// A packet on the link.
struct Flying {
    at: Instant,
    order: u64,
    to: Side,
    bytes: Vec<u8>,
}

/// Decides a packet's fate by its sender and its number among those of this sender.
pub(super) type Script = Box<dyn FnMut(Side, u64) -> Fate>;

pub(super) struct Pair {
    pub(super) a: End,
    pub(super) b: End,
    pub(super) now: Instant,
    pub(super) latency: Duration,
    script: Script,
    flying: Vec<Flying>,
    sent: [u64; 2],
    order: u64,
}

impl Pair {
    /// Two connected ends in RTS; `setup` is A's, B is its mirror.
    pub(super) fn new(setup: &Setup) -> Self {
        Self::with_attrs(setup, &setup.attrs, &setup.mirrored())
    }

    pub(super) fn with_attrs(setup: &Setup, a: &QpAttributes, b: &QpAttributes) -> Self {
        Self {
            a: End::ready(0x11, setup, a),
            b: End::ready(0x22, setup, b),
            now: Instant::ZERO,
            latency: Duration::from_micros(5),
            script: Box::new(|_, _| Fate::Pass),
            flying: Vec::new(),
            sent: [0; 2],
            order: 0,
        }
    }

    pub(super) fn script(&mut self, script: impl FnMut(Side, u64) -> Fate + 'static) {
        self.script = Box::new(script);
    }

    /// Packets that a side has put on the link.
    pub(super) fn sent(&self, side: Side) -> u64 {
        self.sent[side as usize]
    }

    /// Both ends send what they can.
    fn transmit(&mut self) {
        for side in [Side::A, Side::B] {
            let (end, to) = match side {
                Side::A => (&mut self.a, Side::B),
                Side::B => (&mut self.b, Side::A),
            };
            end.now = self.now;
            for bytes in end.transmit().into_iter().flatten() {
                let fate = (self.script)(side, self.sent[side as usize]);
                self.sent[side as usize] += 1;
                let arrival = self.now + self.latency;
                let copies = match fate {
                    Fate::Drop => vec![],
                    Fate::Pass => vec![arrival],
                    Fate::Duplicate => vec![arrival, arrival],
                    Fate::Delay(d) => vec![arrival + d],
                };
                for at in copies {
                    self.flying.push(Flying { at, order: self.order, to, bytes: bytes.clone() });
                    self.order += 1;
                }
            }
        }
    }

    /// Goes on to the next thing that happens, if it happens before `end`.
    pub(super) fn step(&mut self, end: Instant) -> bool {
        self.transmit();
        let deadlines = [self.a.qp.poll_timeout(), self.b.qp.poll_timeout()];
        let next = self.flying.iter().map(|f| f.at).chain(deadlines.into_iter().flatten()).min();
        let Some(next) = next.filter(|at| *at <= end) else { return false };
        self.now = self.now.max(next);
        for e in [&mut self.a, &mut self.b] {
            e.now = self.now;
            if e.qp.poll_timeout().is_some_and(|at| at <= self.now) {
                e.with(|qp, cx| qp.handle_timeout(cx));
            }
        }
        let mut due: Vec<_> = self.flying.extract_if(.., |f| f.at <= self.now).collect();
        due.sort_by_key(|f| (f.at, f.order));
        for Flying { to, bytes, .. } in due {
            let (end, from) = match to {
                Side::A => (&mut self.a, super::end::BOB),
                Side::B => (&mut self.b, super::end::ALICE),
            };
            // A refusal is counted by the end itself.
            let _ = end.receive(from, &bytes);
        }
        true
    }

    /// Runs until nothing happens any more, for at most so long.
    pub(super) fn run(&mut self, at_most: Duration) {
        let end = self.now + at_most;
        while self.step(end) {}
    }

    /// Runs a second and gives the completions of both ends.
    pub(super) fn finish(&mut self) -> (Vec<Completion>, Vec<Completion>) {
        self.run(Duration::from_secs(60));
        (self.a.completed(), self.b.completed())
    }
}
