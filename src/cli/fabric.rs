//! `holdfast fabric`.

use super::Outcome;
use crate::fabric::{self, Announce, Config, News};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

const COMMANDS: &str = "\
Commands on standard input, each answered by one line:
  dark LABEL [TIME]     the light of a circuit goes out, for so long or until `light`
  light LABEL           there is light again
  move LABEL PORT PORT  dark for its reconfiguration time, then it joins these ports
  stats                 all counters, as one JSON object
  quit";

/// An emulated optical fabric: circuits between veth ends that go dark, come back and move
#[derive(clap::Args)]
#[command(after_help = COMMANDS)]
pub(super) struct Args {
    /// Ports, circuits and schedule: config/examples/fabric.toml shows every key
    config: PathBuf,
    /// Tell of each change of a circuit on standard output: one JSON object a line
    #[arg(long, value_name = "FORMAT")]
    announce: Option<Format>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Json,
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        let config = Config::load(&self.config)?;
        let mut announce: Box<dyn Announce> = match self.announce {
            Some(Format::Json) => Box::new(JsonLines),
            None => Box::new(()),
        };
        fabric::run(&config, io::stdin().as_fd(), &mut io::stdout(), &mut *announce)?;
        Ok(())
    }
}

/// News on standard output.
struct JsonLines;

impl Announce for JsonLines {
    fn announce(&mut self, news: &News) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, news)?;
        writeln!(stdout)
    }
}
