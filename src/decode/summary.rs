//! The end of the output: what the capture held.

use super::{Decoded, link::Skip};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Counts over a whole capture.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// RoCEv2 packets.
    pub packets: u64,
    /// Those of them whose ICRC is wrong.
    pub icrc_bad: u64,
    /// RoCEv2 packets by opcode.
    pub opcodes: BTreeMap<&'static str, u64>,
    /// Packets that were skipped, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// What is wrong with the file, if it could not be read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl Summary {
    pub(super) fn count(&mut self, decoded: &Decoded<'_>) {
        self.packets += 1;
        self.icrc_bad += u64::from(!decoded.icrc_ok);
        *self.opcodes.entry(decoded.packet.opcode().name()).or_default() += 1;
    }

    pub(super) fn skip(&mut self, skip: &Skip) {
        *self.skipped.entry(skip.reason()).or_default() += 1;
    }

    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let skipped: u64 = self.skipped.values().sum();
        let ok = self.packets - self.icrc_bad;
        writeln!(out, "{} RoCEv2 packets: ICRC ok {ok}, BAD {}; skipped {skipped}", self.packets, self.icrc_bad)?;
        for (opcode, count) in &self.opcodes {
            writeln!(out, "{count:>9} {opcode}")?;
        }
        for (reason, count) in &self.skipped {
            writeln!(out, "{count:>9} skipped: {reason}")?;
        }
        match &self.damage {
            Some(damage) => writeln!(out, "damaged: {damage}"),
            None => Ok(()),
        }
    }

    pub(super) fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            summary: &'a Summary,
        }
        serde_json::to_writer(&mut *out, &Line { summary: self })?;
        writeln!(out)
    }
}
