//! The control plane's side of the daemon: what can be asked, and the values that answer.
//!
//! Floor 6: touches a queue pair only by message to the worker that owns it ([`worker`]).

mod overview;
pub mod view;
pub mod worker;

pub use overview::Overview;

/// Where the daemon listens for the `holdfast` command if nothing else is set.
pub const DEFAULT_SOCKET: &str = "/run/holdfast/control.sock";
