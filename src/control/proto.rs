//! The generated messages and services of `proto/holdfast/v1`, for programs that speak to the daemon directly.
#![allow(missing_docs, clippy::all, unreachable_pub)]

tonic::include_proto!("holdfast.v1");

/// The compiled descriptors of all messages and services, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/holdfast.v1.bin"));
