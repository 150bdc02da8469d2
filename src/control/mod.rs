//! The control plane: what operators and controllers ask and are told, by gRPC over a Unix socket.
//!
//! ```text
//! holdfast qp list ── client ──► control.sock ──► server ── Request ──► worker
//!                                (peer checked)          ◄── view::* ──  (between two turns of its loop)
//! ```
//!
//! Floor 6: touches a queue pair only by message to the worker that owns it ([`worker`]). The services are described in
//! `proto/holdfast/v1`; reflection and health are on, so `grpcurl -unix` and its like work without a copy of the files.

mod announcement;
pub mod client;
mod convert;
mod overview;
mod path_view;
mod paths;
pub mod proto;
mod server;
mod socket;
pub mod view;
pub mod worker;

pub use announcement::{Announced, Announcement, AnnouncementError};
pub use convert::UnknownValue;
pub use overview::Overview;
pub use server::{ServeError, serve};
pub use socket::{Access, ControlSocket, SocketError};

/// Where the daemon listens for the `holdfast` command if nothing else is set.
pub const DEFAULT_SOCKET: &str = "/run/holdfast/control.sock";

#[cfg(test)]
mod tests;
