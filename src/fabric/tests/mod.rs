//! The switch, driven without sockets or clocks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod configuration;
mod frames;
mod lines;
mod switching;

use super::*;
use crate::time::{Duration, Instant};

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;

pub(super) fn at(ns: u64) -> Instant {
    Instant::from_ns(ns)
}

pub(super) const fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

/// The address of the station at a port.
pub(super) const fn mac(port: usize) -> Mac {
    [2, 0, 0, 0, 0, port as u8]
}

/// A frame between stations with a number in it, `len` bytes long.
pub(super) fn frame(from: usize, to: usize, number: u32, len: usize) -> Frame {
    to_mac(mac(to), from, number, len)
}

pub(super) fn to_mac(to: Mac, from: usize, number: u32, len: usize) -> Frame {
    let mut bytes = [&to[..], &mac(from), &[0x88, 0xb5], &number.to_be_bytes()].concat();
    bytes.resize(len.max(bytes.len()), 0);
    Frame::new(bytes)
}

/// The number in a frame.
pub(super) fn number(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.bytes[14..18].try_into().unwrap())
}

/// A circuit between the ports that its label names, `a` being port 0.
pub(super) fn circuit(label: &str, line: LineSettings) -> CircuitSettings {
    let end = |i: usize| PortId(usize::from(label.as_bytes()[i] - b'a'));
    CircuitSettings { label: label.into(), ends: [end(0), end(1)], line, reconfiguration: ns(20 * MS), is_dark: false }
}

/// Ports `a`, `b`, `c` with a known station each.
pub(super) fn settings(circuits: &[(&str, LineSettings)], fallback: Option<LineSettings>) -> SwitchSettings {
    let port = |i: usize| PortSettings { name: ["a", "b", "c"][i].into(), macs: vec![mac(i)] };
    SwitchSettings {
        ports: (0..3).map(port).collect(),
        circuits: circuits.iter().map(|(label, line)| circuit(label, *line)).collect(),
        fallback,
        notice: Duration::ZERO,
        seed: 7,
    }
}

pub(super) fn switch(circuits: &[(&str, LineSettings)], fallback: Option<LineSettings>) -> Switch {
    Switch::new(settings(circuits, fallback)).unwrap()
}

/// All that comes out, each with its moment, until nothing is to come.
pub(super) fn drain(switch: &mut Switch) -> Vec<(u64, PortId, Frame)> {
    let mut out = Vec::new();
    while let Some(due) = switch.poll_timeout() {
        switch.handle_timeout(due);
        while let Some((port, frame)) = switch.poll_frame(due) {
            out.push((due.as_ns(), port, frame));
        }
    }
    out
}

pub(super) fn dark(circuit: &str, lasting: Option<u64>) -> FabricEvent {
    FabricEvent::Dark { circuit: circuit.into(), lasting: lasting.map(ns) }
}

pub(super) fn light(circuit: &str) -> FabricEvent {
    FabricEvent::Light { circuit: circuit.into() }
}
