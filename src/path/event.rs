//! What a controller announces.

use super::{Circuit, IpPrefix};
use crate::time::{Duration, Instant};
use core::net::IpAddr;
use std::collections::BTreeMap;

/// When a controller said something, in its own count: a later epoch (a restarted controller) beats every sequence of an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp {
    /// Grows with each life of the controller.
    pub epoch: u64,
    /// Grows with each event of an epoch.
    pub sequence: u64,
}

impl core::fmt::Display for Stamp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}

/// What happens to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathChange {
    /// It goes dark at a time, for about so long.
    Prepare {
        /// When.
        at: Instant,
        /// For how long; zero if nobody knows.
        expected: Duration,
    },
    /// It is dark.
    Down,
    /// There is light.
    Up,
    /// Changes how long it is held in the dark.
    HoldMax(Duration),
    /// It rides on this circuit from now on, or on that of the settings. Says nothing of light.
    Circuit(Option<Circuit>),
}

/// An announcement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEvent {
    /// Its place in the order.
    pub stamp: Stamp,
    /// Whose paths.
    pub peers: IpPrefix,
    /// What happens.
    pub change: PathChange,
}

/// Why an announcement has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathEventError {
    /// Something newer, or this very event, was said of these peers.
    #[error("event {given} for {peers} is stale: {known} is known; count the sequence up, or begin a new epoch")]
    Stale {
        /// Of the event.
        given: Stamp,
        /// The newest known.
        known: Stamp,
        /// Of the event.
        peers: IpPrefix,
    },
    /// There is no room for another set of peers.
    #[error("{most} different sets of peers were announced already: announce prefixes, not single addresses")]
    TooMany {
        /// How many are remembered.
        most: usize,
    },
}

/// Sets of peers that a ledger remembers.
const MOST_SCOPES: usize = 4096;

/// What was announced, by the peers that it was announced for: what is said twice, or late, has no effect, and who comes later is told.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    known: BTreeMap<IpPrefix, Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    stamp: Stamp,
    light: Option<(Stamp, PathChange)>,
    hold_max: Option<(Stamp, Duration)>,
    circuit: Option<(Stamp, Option<Circuit>)>,
}

impl Ledger {
    /// Enters an event, or says why it has no effect. The very same stamp again is an error too: who repeats may ignore it.
    pub fn handle_event(&mut self, event: &PathEvent) -> Result<(), PathEventError> {
        let PathEvent { stamp, peers, change } = *event;
        if let Some(known) = self.known.get(&peers).map(|k| k.stamp).filter(|known| *known >= stamp) {
            return Err(PathEventError::Stale { given: stamp, known, peers });
        }
        if self.known.len() >= MOST_SCOPES && !self.known.contains_key(&peers) {
            return Err(PathEventError::TooMany { most: MOST_SCOPES });
        }
        let known = self.known.entry(peers).or_insert(Known { stamp, light: None, hold_max: None, circuit: None });
        known.stamp = stamp;
        match change {
            PathChange::HoldMax(hold_max) => known.hold_max = Some((stamp, hold_max)),
            PathChange::Circuit(circuit) => known.circuit = Some((stamp, circuit)),
            light => known.light = Some((stamp, light)),
        }
        Ok(())
    }

    /// What holds for a peer, also one that was not known when it was said: its circuit, how long it is held, whether it goes or is dark.
    pub fn changes_for(&self, peer: IpAddr) -> impl Iterator<Item = PathChange> {
        let known = || self.known.iter().filter(|(peers, _)| peers.contains(peer)).map(|(_, known)| known);
        let light = known().filter_map(|k| k.light).max_by_key(|(stamp, _)| *stamp);
        let hold_max = known().filter_map(|k| k.hold_max).max_by_key(|(stamp, _)| *stamp);
        let hold_max = hold_max.map(|(_, hold_max)| PathChange::HoldMax(hold_max));
        let circuit = known().filter_map(|k| k.circuit).max_by_key(|(stamp, _)| *stamp);
        let circuit = circuit.map(|(_, circuit)| PathChange::Circuit(circuit));
        circuit.into_iter().chain(hold_max).chain(light.map(|(_, change)| change))
    }
}
