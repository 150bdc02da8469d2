//! Interoperation with real SoftRoCE: a `holdfastd` in the lab's namespace, programs of holdfast's client on one side, Linux
//! rxe in a VM (pyverbs, `ibv_*_pingpong`) on the other. Every byte is compared and every completion checked.
//!
//! `tests/all lab` runs it with all it needs; by hand: `tests/lab/vm host cargo test --test interop -- --nocapture
//! --test-threads=1`. Without a lab each test says "skipped: ...". Each scenario prints a line of a table.
//!
//! | file | what it shows |
//! |---|---|
//! | `rdma` | WRITE, READ, atomics, SGE lists, inline data, PSN wrap |
//! | `send` | SEND in all forms, windows and their invalidation, SRQ, RNR |
//! | `unreliable` | UC and UD |
//! | `refusal` | access errors, exhausted budgets |
//! | `weather` | all of it with loss, reordering and duplication |
//! | `pingpong` | rdma-core's own programs against `holdfast pingpong` |
//! | `lab`, `end`, `ours`, `theirs` | what they stand on |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod end;
mod lab;
mod ours;
mod pingpong;
mod rdma;
mod refusal;
mod send;
mod theirs;
mod unreliable;
mod weather;
