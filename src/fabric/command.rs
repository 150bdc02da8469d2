//! The lines by which people and tests steer a running fabric.

use super::event::{FabricError, FabricEvent};
use super::switch::Switch;
use crate::settings::Time;
use std::str::FromStr;

/// A line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// `dark LABEL [TIME]`: the light goes out, for so long or until it is told to come back.
    Dark {
        /// The circuit.
        label: String,
        /// How long.
        lasting: Option<Time>,
    },
    /// `light LABEL`
    Light {
        /// The circuit.
        label: String,
    },
    /// `move LABEL PORT PORT`
    Move {
        /// The circuit.
        label: String,
        /// The names of the ports that it is to join.
        ends: [String; 2],
    },
    /// `stats`: all counters.
    Stats,
    /// `quit`
    Quit,
}

/// A line that is no command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Unknown, or with too few or too many words.
    #[error("\"{0}\" is no command: dark LABEL [TIME], light LABEL, move LABEL PORT PORT, stats, quit")]
    Unknown(String),
    /// The time is none.
    #[error("\"{text}\" is no time: {expected}")]
    Time {
        /// What was given.
        text: String,
        /// What would have been allowed.
        expected: &'static str,
    },
}

impl FromStr for Command {
    type Err = Malformed;

    fn from_str(line: &str) -> Result<Self, Malformed> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let time = |text: &str| text.parse().map_err(|expected| Malformed::Time { text: text.to_owned(), expected });
        Ok(match *words {
            ["dark", label] => Self::Dark { label: label.to_owned(), lasting: None },
            ["dark", label, lasting] => Self::Dark { label: label.to_owned(), lasting: Some(time(lasting)?) },
            ["light", label] => Self::Light { label: label.to_owned() },
            ["move", label, a, b] => Self::Move { label: label.to_owned(), ends: [a.to_owned(), b.to_owned()] },
            ["stats"] => Self::Stats,
            ["quit"] => Self::Quit,
            _ => return Err(Malformed::Unknown(line.trim().to_owned())),
        })
    }
}

impl Command {
    /// The event that the line wants of this switch, if it wants one.
    pub fn event(self, switch: &Switch) -> Result<Option<FabricEvent>, FabricError> {
        Ok(Some(match self {
            Self::Dark { label, lasting } => FabricEvent::Dark { circuit: label, lasting: lasting.map(Time::duration) },
            Self::Light { label } => FabricEvent::Light { circuit: label },
            Self::Move { label, ends: [a, b] } => {
                FabricEvent::Move { circuit: label, ends: [switch.port(&a)?, switch.port(&b)?] }
            }
            Self::Stats | Self::Quit => return Ok(None),
        }))
    }
}
