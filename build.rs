//! Compiles `proto/` with a compiler written in Rust: nothing but cargo is needed.

use protox::prost::Message;
use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

const PROTOS: &[&str] = &[
    "proto/holdfast/v1/status.proto",
    "proto/holdfast/v1/queue_pairs.proto",
    "proto/holdfast/v1/memory.proto",
    "proto/holdfast/v1/paths.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    // Reflection serves the descriptors as they are.
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    fs::write(out.join("holdfast.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
