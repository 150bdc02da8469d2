//! The rings over shared memory, as both sides see them.
//!
//! The algorithms stand on references to atomic words, wherever those lie: [`shm`](super::shm) finds them in a mapped area,
//! `tests/loom` includes these very files and finds them in loom's model, so that every interleaving is tried:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release --manifest-path tests/loom/Cargo.toml
//! ```

mod atomic {
    pub(super) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
mod bell;
mod completion;
mod work;

pub use bell::Bell;
pub use completion::{CQE_WORDS, CompletionRing};
pub use work::{WorkRing, copy_in, copy_out};

/// An index in shared memory that no honest peer could have stored: it went backwards, or further than the ring is deep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a ring of {depth} slots has index {index} where its other end stands at {expected}")]
pub struct Lie {
    /// What was found.
    pub index: u32,
    /// The other end's own index.
    pub expected: u32,
    /// Slots of the ring.
    pub depth: u32,
}

#[cfg(test)]
mod tests;
