//! Clients and the daemon: the shared-memory ABI, the attach protocol and the Rust client.
//!
//! Floor 5. A client is a stranger: whatever it puts into shared memory or says over its socket is copied once, then validated,
//! and what it does wrong costs itself only.
//!
//! | module | what it is for |
//! |---|---|
//! | [`client`] | queue pairs for programs, in the shape of verbs |
//! | [`loopback`] | a daemon in a thread, for tests of such programs |
//! | [`abi`] | the layout of shared memory, as a specification |
//! | [`ring`] | the rings over it, as both sides see them |
//! | [`protocol`] | what is said over the attach socket |
//! | [`server`] | the daemon's side of its clients |
//! | [`shm`] | making, sealing and mapping areas of it |

pub mod abi;
pub mod client;
pub mod loopback;
pub mod protocol;
pub mod ring;
pub mod server;
#[allow(unsafe_code)]
pub mod shm;

#[cfg(test)]
mod tests;
