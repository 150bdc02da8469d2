//! `holdfast decode`: what a capture file holds, packet by packet.
//!
//! In JSON, a packet is an object with `number`, `time_ns` (since 1970; absent where the file has no time), `src`, `dst`, `src_port`, `ecn`,
//! `dscp`, `opcode` (its IBTA name), `dest_qp`, `psn`, `ack_req`, `payload_len` (without pad), `icrc_ok`, `bth`, and those of `deth`,
//! `reth`, `atomic_eth`, `aeth`, `atomic_ack_eth`, `immdt`, `ieth` that the packet has. Numbers of 64 bits are strings, `"0x…"`.
//!
//! Aside of the house: knows [`wire`](crate::wire) only. Input is a stranger's: what is truncated, foreign or damaged is
//! named and skipped.

mod capture;
mod describe;
mod link;
mod segments;
mod summary;

pub use capture::CaptureError;
pub use summary::Summary;

use crate::wire::icrc::{self, Verdict};
use crate::wire::{Datagram, Packet};
use capture::{Record, Timestamp};
use link::Skip;
use std::io::{self, Read, Write};

/// How to write packets down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One line a packet, then a table.
    Text,
    /// One JSON object a line, the last is `{"summary": …}`.
    Json,
}

/// Why decoding came to no end.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The input is no capture, or cannot be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// What was decoded cannot be written.
    #[error("cannot write: {0}")]
    Write(#[source] io::Error),
}

/// One RoCEv2 packet of a capture.
struct Decoded<'a> {
    /// Counts from 1, as Wireshark does.
    number: u64,
    time: Option<Timestamp>,
    datagram: Datagram<'a>,
    packet: Packet<'a>,
    icrc_ok: bool,
}

/// Decodes a pcap or pcapng stream to `out`; packets that are truncated or malformed, and damage to the file, are named on `notes`, one
/// line each. Packets that are well-formed but not RoCEv2 are only counted.
pub fn decode(
    input: impl Read,
    format: Format,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<Summary, DecodeError> {
    let mut summary = Summary::default();
    let end = capture::read(input, &mut |record| {
        let skipped = match link::parse(&record) {
            Ok(datagram) => decode_datagram(&record, &datagram, &mut summary, format, out)?,
            Err(skip) => Some(skip),
        };
        if let Some(skip) = skipped {
            if !skip.is_foreign() {
                writeln!(notes, "packet {}: {skip}; skipped", record.number)?;
            }
            summary.skip(&skip);
        }
        Ok(())
    });
    match end {
        Ok(None) => {}
        Ok(Some(damage)) => {
            writeln!(notes, "{damage}; the rest is skipped").map_err(DecodeError::Write)?;
            summary.damage = Some(damage.to_string());
        }
        Err(capture::ReadError::Capture(error)) => return Err(error.into()),
        Err(capture::ReadError::Visitor(error)) => return Err(DecodeError::Write(error)),
    }
    match format {
        Format::Text => summary.write_text(out),
        Format::Json => summary.write_json(out),
    }
    .map_err(DecodeError::Write)?;
    Ok(summary)
}

/// Writes the packet of a datagram, or the packets if the kernel had not yet segmented it. Gives back why it is none.
fn decode_datagram(
    record: &Record<'_>,
    datagram: &Datagram<'_>,
    summary: &mut Summary,
    format: Format,
    out: &mut dyn Write,
) -> io::Result<Option<Skip>> {
    for datagram in segments::split(datagram) {
        let packet = match Packet::new_checked(datagram.bytes) {
            Ok(packet) => packet,
            Err(malformed) => return Ok(Some(Skip::Malformed(malformed))),
        };
        let icrc_ok = icrc::verify(&datagram, 0) == Verdict::Good;
        let decoded = Decoded { number: record.number, time: record.time, datagram, packet, icrc_ok };
        match format {
            Format::Text => describe::write_text(&decoded, out)?,
            Format::Json => describe::write_json(&decoded, out)?,
        }
        summary.count(&decoded);
    }
    Ok(None)
}
