//! `holdfast decode`.

use super::Outcome;
use crate::decode::{DecodeError, Format, decode};
use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Show the RoCEv2 packets of a capture, one a line, and check their ICRC.
///
/// Damaged and truncated packets are named on standard error and skipped. Exit status 1: the file is no capture.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A pcap or pcapng file, or - for standard input.
    file: PathBuf,
    /// One JSON object a line; the last is the summary.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        let format = if self.json { Format::Json } else { Format::Text };
        let mut out = BufWriter::new(io::stdout().lock());
        let mut notes = io::stderr().lock();
        let file: Box<dyn Read> = if self.file == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            Box::new(File::open(&self.file).map_err(|e| self.about(&e))?)
        };
        match decode(file, format, &mut out, &mut notes) {
            Err(DecodeError::Capture(e)) => return Err(self.about(&e)),
            outcome => outcome?,
        };
        out.flush()?;
        Ok(())
    }

    /// The error, with the name of the file.
    fn about(&self, error: &dyn Error) -> Box<dyn Error> {
        format!("{}: {error}", self.file.display()).into()
    }
}
