//! What a veth pair carries: raw, and as RDMA between two daemons.
//!
//! ```text
//! cargo bench --bench wire_bw [-- PART... [ROUNDS]]
//! ```
//!
//! | part | what it measures |
//! |---|---|
//! | `raw` | packets through each backend and driver, no RDMA |
//! | `bandwidth` | WRITE, SEND and READ beside the raw wire and TCP |
//! | `latency` | 8 bytes beside a UDP ping-pong |
//! | `messages` | 64 bytes, many queue pairs: CPU time of each message |
//! | `idle` | a daemon at rest, and 100 000 idle queue pairs: their memory, and what they cost a busy one |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bandwidth;
#[allow(unreachable_pub)]
#[path = "../../tests/engine_pair/mod.rs"]
mod engine_pair;
mod engines;
mod idle;
mod latency;
mod messages;
mod raw;
mod stage;

use std::time::Duration;

use holdfast::io::namespace::{self, Namespace};

fn main() {
    let mut parts: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let rounds = parts.last().and_then(|a| a.parse().ok());
    if rounds.is_some() {
        parts.pop();
    }
    let rounds = rounds.unwrap_or(5);
    if Namespace::new().is_err()
        && let Err(error) = namespace::enter()
    {
        println!("skipped: {error}");
        return;
    }
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|p| p == part);
    if is_wanted("raw") {
        raw::table(Duration::from_millis(500));
    }
    if is_wanted("bandwidth") {
        bandwidth::table(rounds);
    }
    if is_wanted("latency") {
        latency::table(rounds);
    }
    if is_wanted("messages") {
        messages::table(rounds);
    }
    if is_wanted("idle") {
        idle::table(rounds);
    }
}
