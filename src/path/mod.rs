//! Paths: how packets to a peer travel, and whether there is light.
//!
//! ```text
//!         prepare(at)                    at, or down
//! Lit ──────────────► Draining ────────────────────────► Dark ── up, or a sign of life ──► Thawing ──► Lit
//!  ├──── no answers for most of `detect` ──► Suspect ─────┤
//!  └──── the carrier is lost, or down ────────────────────┘
//! Dark for longer than `hold_max` ──► Lost: what waits completes with IBV_WC_RETRY_EXC_ERR.
//! ```
//!
//! Sans-I/O. A [`Life`] is told of packets, of what the controller and the link say, and of the time; it says when to freeze, when
//! to probe, when to thaw and when to give up. It knows no queue pairs: whoever has them hangs them off a [`PathClock`], which
//! stands still in the dark, so that freezing all of them is one step.
//!
//! | file | what it is for |
//! |---|---|
//! | `life` | the states above, how silence becomes darkness, how light is found again |
//! | `circuit` | what a path rides on: label, rate, round trip, MTU |
//! | `clock` | time that stands still in the dark |
//! | `event` | what a controller announces, in which order, and for which peers |
//! | `heartbeat` | asks a holdfast peer whether its host is alive |
//! | `prefix` | the peers of an announcement |

mod circuit;
mod clock;
mod event;
mod heartbeat;
mod life;
mod prefix;

#[cfg(test)]
mod tests;

pub use circuit::{Circuit, Label, LabelError};
pub use clock::PathClock;
pub use event::{Ledger, PathChange, PathEvent, PathEventError, Stamp};
pub use heartbeat::Heartbeat;
pub use life::{Action, DarkCause, HoldPolicy, Life, PathRecord, PathState};
pub use prefix::{IpPrefix, PrefixError};
