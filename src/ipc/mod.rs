//! Clients and the daemon: the shared-memory ABI, the attach protocol and the Rust client.
//!
//! Floor 5. A client is a stranger: whatever it puts into shared memory or says over its socket is copied once, then validated,
//! and what it does wrong costs itself only.
//!
//! | module | what it is for |
//! |---|---|
//! | [`abi`] | the layout of shared memory, as a specification |
//! | [`ring`] | the rings over it, as both sides see them |
//! | [`protocol`] | what is said over the attach socket |
//! | [`shm`] | making, sealing and mapping areas of it |

pub mod abi;
pub mod protocol;
pub mod ring;
#[allow(unsafe_code)]
pub mod shm;
