//! An emulated optical fabric: what joins the racks in demos, tests and benches where there is no optical switch.
//!
//! ```text
//!   namespace ── veth ── port a ─┐            ┌─ port b ── veth ── namespace
//!                                ├─ circuit ──┤       light, or dark: rate, delay, queue, loss, marks
//!                                └─ fallback ─┘       what all share that no circuit joins
//! ```
//!
//! [`Switch`] is the fabric itself and knows neither sockets nor clocks: frames and events go in, frames, announcements and the
//! next deadline come out. [`run`] drives one with packet sockets, a [`Schedule`] and the lines that people type; [`Config`] is its
//! file ([`EXAMPLE`]). It never looks into packets beyond their ECN bits, and never makes any up.

mod command;
mod config;
mod event;
mod frame;
mod line;
mod schedule;
mod shell;
mod switch;
#[cfg(test)]
mod tests;

pub use command::{Command, Malformed};
pub use config::{Config, ConfigError, EXAMPLE};
pub use event::{Announcement, FabricError, FabricEvent, Phase, PortId};
pub use frame::{Frame, Mac};
pub use line::{EcnSettings, LineCounters, LineSettings};
pub use schedule::{Occasion, Schedule};
pub use shell::{Announce, News, RunError, run};
pub use switch::{CircuitSettings, CircuitStats, PortCounters, PortSettings, Stats, Switch, SwitchSettings};
