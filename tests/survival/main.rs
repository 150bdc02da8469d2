//! The daemon among bad neighbours, dying clients and changing links: real processes, on cables between network namespaces.
//!
//! | file | what it is for |
//! |---|---|
//! | `stage` | namespaces, a cable, daemons; what they show of themselves |
//! | `traffic` | verified traffic of every kind between two daemons, while something else goes on |
//! | `flood` | a million forged packets at a busy daemon |
//! | `forge` | the packets of the flood, each with what must become of it |
//! | `strangers` | guessed keys, foreign sources, queue pairs of an earlier life: refused and counted |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod flood;
mod forge;
#[allow(unreachable_pub)]
#[path = "../simulation/rng.rs"]
mod rng;
mod stage;
mod strangers;
mod traffic;
