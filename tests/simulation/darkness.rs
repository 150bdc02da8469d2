//! Blackouts, and what the nodes are told of them: in time, late, wrongly or not at all.

use crate::rng::Rng;
use holdfast::path::{IpPrefix, PathChange, PathEvent, Stamp};
use holdfast::time::{Duration, Instant};
use std::net::IpAddr;

/// A time without light.
#[derive(Clone, Copy, Debug)]
pub struct Blackout {
    pub begins: Instant,
    pub ends: Instant,
    /// Only packets to there are lost; `None` for both directions.
    pub towards: Option<IpAddr>,
}

impl Blackout {
    /// Whether it swallows a packet that is under way between these moments.
    pub fn swallows(&self, sent: Instant, arrives: Instant, to: IpAddr) -> bool {
        sent < self.ends && arrives >= self.begins && self.towards.is_none_or(|towards| towards == to)
    }
}

/// What a node is told, and when.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub at: Instant,
    pub node: usize,
    pub event: PathEvent,
}

/// All blackouts of a run, and all that is said of them, in the order of time.
#[derive(Clone, Default, Debug)]
pub struct Darkness {
    pub blackouts: Vec<Blackout>,
    pub words: Vec<Word>,
}

impl Darkness {
    /// A few blackouts within `span` after `start`; in more than half of the runs none.
    pub fn new(rng: &mut Rng, start: Instant, span: Duration, addresses: &[IpAddr]) -> Self {
        let mut darkness = Self::default();
        if rng.permille(550) {
            return darkness;
        }
        let mut sequence = 0;
        for _ in 0..rng.between(1, 4) {
            let begins = start + Duration::from_nanos(rng.below(span.as_nanos() as u64 + 1));
            let most_us = *rng.pick(&[20, 300, 2_000, 8_000, 50_000, 400_000]);
            let ends = begins + Duration::from_micros(rng.between(1, most_us));
            let towards = rng.permille(250).then(|| *rng.pick(addresses));
            darkness.blackouts.push(Blackout { begins, ends, towards });
            for node in 0..addresses.len() {
                darkness.tell(rng, node, begins, ends, addresses, &mut sequence);
            }
        }
        darkness.words.sort_by_key(|word| word.at);
        darkness
    }

    fn tell(
        &mut self,
        rng: &mut Rng,
        node: usize,
        begins: Instant,
        ends: Instant,
        peers: &[IpAddr],
        sequence: &mut u64,
    ) {
        if rng.permille(400) {
            return;
        }
        // Of the dark path, of another one, or of all.
        let peers =
            if rng.permille(500) { IpPrefix::new(peers[0], 0).unwrap() } else { IpPrefix::host(*rng.pick(peers)) };
        let mut say = |words: &mut Vec<Word>, at: Instant, change| {
            *sequence += 1;
            let event = PathEvent { stamp: Stamp { epoch: 1, sequence: *sequence }, peers, change };
            words.push(Word { at, node, event });
        };
        let late = |rng: &mut Rng| Duration::from_micros(if rng.permille(700) { 0 } else { rng.below(3_000) });
        if rng.permille(300) {
            let lead = Duration::from_micros(rng.below(2_000));
            let change = PathChange::Prepare { at: begins, expected: ends.since(begins) };
            say(&mut self.words, begins - lead, change);
        }
        if rng.permille(800) {
            say(&mut self.words, begins + late(rng), PathChange::Down);
        }
        if rng.permille(800) {
            say(&mut self.words, ends + late(rng), PathChange::Up);
        }
    }
}
