//! What the fuzz targets do with their input.
//!
//! libFuzzer runs them (`cargo +nightly fuzz run TARGET`), and `tests/fuzz.rs` runs the same functions on a stable compiler, over
//! `fuzz/corpus/TARGET` and seeded mutations of it. A new target: a module with `run` here, a row in [`TARGETS`], a file in
//! `fuzz_targets/` and its `[[bin]]` in Cargo.toml, and a corpus of a few small inputs with names that say what they are
//! (libFuzzer's own finds are named by hash, and ignored by git).

pub mod decode;
pub mod engine;
pub mod ipc;
pub mod settings;
pub mod wire;

/// A fuzz target: it panics if a property does not hold.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("wire", wire::run),
    ("decode", decode::run),
    ("settings", settings::run),
    ("engine", engine::run),
    ("ipc", ipc::run),
];
