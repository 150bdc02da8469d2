#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod local;
mod objects;
mod pair;
mod turns;
