//! What happens to circuits, and how it is told.

use crate::time::{Duration, Instant};
use serde::Serialize;

/// A port of the fabric, by its place in the list that made the switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub usize);

/// A change that somebody wants, at once (or after [`notice`](super::SwitchSettings::notice), where it brings the dark).
///
/// It takes the place of whatever was still to happen to that circuit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FabricEvent {
    /// The light goes out.
    Dark {
        /// The circuit's label.
        circuit: String,
        /// Light comes back after so long; `None`: when somebody says so.
        lasting: Option<Duration>,
    },
    /// There is light.
    Light {
        /// The circuit's label.
        circuit: String,
    },
    /// The mirrors turn: dark for the circuit's reconfiguration time, then light between these two ports.
    Move {
        /// The circuit's label.
        circuit: String,
        /// The ports that it is to join.
        ends: [PortId; 2],
    },
}

impl FabricEvent {
    /// The label of the circuit.
    pub fn circuit(&self) -> &str {
        match self {
            Self::Dark { circuit, .. } | Self::Light { circuit } | Self::Move { circuit, .. } => circuit,
        }
    }
}

/// Why an event, or a fabric, was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FabricError {
    /// No circuit has this label.
    #[error("there is no circuit \"{label}\"; there are: {known}")]
    NoCircuit {
        /// The label given.
        label: String,
        /// Those that exist.
        known: String,
    },
    /// No port has this name.
    #[error("there is no port \"{name}\"; there are: {known}")]
    NoPort {
        /// The name given.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// Two ports or two circuits are called the same.
    #[error("\"{0}\" names two things: give each port and each circuit a name of its own")]
    SameName(String),
    /// A circuit from a port to itself.
    #[error("circuit \"{0}\" would join a port to itself: name two ports")]
    SameEnds(String),
    /// Another circuit joins those ports, or is about to.
    #[error(
        "circuit \"{other}\" joins those ports: at most one circuit joins two ports, move \"{other}\" away before \"{label}\""
    )]
    Taken {
        /// The circuit that was to go there.
        label: String,
        /// The one that is there.
        other: String,
    },
}

/// What is told of a circuit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It will be dark at `at`.
    Prepare,
    /// It is dark.
    Down,
    /// There is light.
    Up,
}

/// News of a circuit, in the order in which things happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// What.
    pub phase: Phase,
    /// The circuit's label.
    pub circuit: String,
    /// When: of [`Phase::Prepare`] the moment to come, else the moment that was.
    pub at: Instant,
    /// When there will be light again, if that is known; of [`Phase::Up`] nothing.
    pub lit_again: Option<Instant>,
    /// The ports that it joins from then on.
    pub ends: [PortId; 2],
}
