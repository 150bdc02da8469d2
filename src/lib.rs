//! # Holdfast
//!
//! A userspace RoCEv2 dataplane that terminates InfiniBand queue pairs over UDP port 4791 and does not let go of them when
//! the light goes out.
//!
//! ## The house
//!
//! The rooms stand on floors. A room may import only rooms of lower floors; `tests/floors.rs` reads the `use` lines and
//! enforces it.
//!
//! | floor | room | what it is for |
//! |---|---|---|
//! | 0 | [`wire`] | packet formats, opcodes, PSN arithmetic, ICRC: bytes to values and back |
//! | 0 | [`time`] | the only clock types that the core knows |
//! | 0 | [`counters`] | every number that a worker publishes, in one table; lock-free |
//! | 1 | [`memory`] | protection domains, regions, keys, bounds; ways to reach a client's bytes |
//! | 2 | [`transport`] | RC, UC and UD queue pairs, completion and shared receive queues |
//! | 2 | [`congestion`] | DCQCN: how fast a queue pair may send, and when to ask its peer for less |
//! | 3 | [`path`] | whether a path has light: hold, thaw, and what a controller announces |
//! | 4 | [`engine`] | the device, still sans-I/O: joins all the above |
//! | 5 | [`io`] | packet backends behind one `Port` trait |
//! | 5 | [`ipc`] | the shared-memory ABI, the attach protocol, and the Rust client |
//! | 6 | [`control`] | what operators and controllers ask and are told: gRPC over a Unix socket |
//! | 6 | [`metrics`] | Prometheus over HTTP |
//! | 6 | [`settings`] | the TOML file, the command line over it, reload, and the log |
//! | 7 | [`daemon`] | workers (port ↔ engine ↔ clients), and who looks after them |
//! | 8 | [`cli`] | the `holdfast` command, one file a subcommand |
//! | aside | [`perf`] | bandwidth, latency, and the stock pingpong programs' partner |
//! | aside | [`demo`] | two daemons and verified traffic |
//! | aside | [`fabric`] | an emulated optical fabric: circuits between veth ends that go dark, come back and move |
//! | aside | [`decode`] | what a capture file holds; knows `wire` only |
//!
//! Floors 0 to 4 are *sans-I/O*: they take a [`time::Instant`] and events and give back packets, completions and the next
//! deadline. The daemon, the simulator and the fuzzers drive the very same code.

pub mod cli;
pub mod congestion;
pub mod control;
pub mod counters;
pub mod daemon;
pub mod decode;
pub mod demo;
pub mod engine;
pub mod fabric;
pub mod io;
pub mod ipc;
pub mod memory;
pub mod metrics;
pub mod path;
pub mod perf;
pub mod settings;
pub mod time;
pub mod transport;
pub mod wire;
