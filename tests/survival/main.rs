//! The daemon among bad neighbours, dying clients and changing links: real processes, on cables between network namespaces.
//!
//! | file | what it is for |
//! |---|---|
//! | `stage` | namespaces, a cable, daemons; what they show of themselves |
//! | `traffic` | verified traffic of every kind between two daemons, while something else goes on |
//! | `dark` | the light between two daemons goes out, unannounced: short, long, for good |
//! | `circuit` | that light: the emulated fabric in a process of its own |
//! | `narrow` | a circuit slower than its ends: marks keep its queue short |
//! | `crowd` | a hundred thousand idle queue pairs |
//! | `deaths` | clients killed at any moment leave nothing behind |
//! | `liars` | clients that lie, flood or never finish cost themselves only |
//! | `endings` | SIGTERM, SIGKILL, SIGSTOP and SIGHUP in the middle of traffic |
//! | `workers` | queue pairs on several workers, of two daemons and of one |
//! | `links` | backends, drivers and VLANs; MTU, neighbours and carrier that change under traffic |
//! | `supervision` | a daemon at rest, and one with a worker that hangs |
//! | `flood` | a million forged packets at a busy daemon |
//! | `forge` | the packets of the flood, each with what must become of it |
//! | `strangers` | guessed keys, foreign sources, queue pairs of an earlier life: refused and counted |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod circuit;
mod crowd;
mod dark;
mod deaths;
mod endings;
mod flood;
mod forge;
mod liars;
mod links;
mod narrow;
#[allow(unreachable_pub)]
#[path = "../simulation/rng.rs"]
mod rng;
mod stage;
mod strangers;
mod supervision;
mod traffic;
mod workers;
