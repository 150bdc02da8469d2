//! Tests of the room: two queue pairs over a scripted link (`pair`), one against a written trace (`scenario`), and one against what a
//! real peer sent (`captures`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod captures;
mod end;
mod pair;
mod rc_traffic;
mod scenario;
