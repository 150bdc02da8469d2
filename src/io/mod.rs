//! Packet backends behind one `Port` trait, the links that they hang on, and the means to test both.
#![allow(unsafe_code)]

pub mod link;
pub mod namespace;
