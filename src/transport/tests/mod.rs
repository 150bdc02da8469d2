//! Tests of the room: two queue pairs over a scripted link (`pair`), one against written traces (`scenario`), and one against what a
//! real peer sent (`captures`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bursts;
mod captures;
mod end;
mod modifies;
mod pair;
mod rc_traffic;
mod scenario;
mod services;
mod strangers;
