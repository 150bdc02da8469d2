//! The engine, driven as a worker drives it: packets in, packets and completions out, time as the test says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A test is a crate of its own: what is `pub` in it is so among its files.
#![allow(unreachable_pub)]

mod admission;
mod allocations;
mod circuits;
mod congestion;
#[allow(unsafe_code)]
#[path = "../counting/mod.rs"]
mod counting;
mod frames;
mod holding;
mod local;
mod objects;
#[path = "../engine_pair/mod.rs"]
mod pair;
mod turns;
