//! What the subcommands that ask the daemon have in common.

use super::Outcome;
use crate::control::DEFAULT_SOCKET;
use crate::control::client::{Client, ClientError};
use serde::Serialize;
use std::future::Future;
use std::io::{self, Write};
use std::path::PathBuf;

/// Where the daemon is, and how to show its answer.
#[derive(clap::Args)]
pub(super) struct Ask {
    /// The control socket of holdfastd (its setting control.socket).
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

impl Ask {
    /// Connects and runs `question` to its end.
    pub(super) fn run<T, F>(&self, question: impl FnOnce(Client) -> F) -> Result<T, Box<dyn std::error::Error>>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(async { question(Client::connect(&self.socket).await?).await })?)
    }
}

/// What all lists have in common.
#[derive(clap::Args)]
pub(super) struct Listing {
    #[command(flatten)]
    ask: Ask,
    /// Only those of this process.
    #[arg(long)]
    pid: Option<u32>,
}

impl Listing {
    /// Asks for entries and shows those of the process that is wanted; `pid_of` tells whose one is.
    pub(super) fn run<T: Serialize, F>(
        self,
        question: impl FnOnce(Client) -> F,
        pid_of: impl Fn(&T) -> u32,
        write: impl FnOnce(&mut dyn Write, &[T]) -> io::Result<()>,
    ) -> Outcome
    where
        F: Future<Output = Result<Vec<T>, ClientError>>,
    {
        let mut entries = self.ask.run(question)?;
        entries.retain(|entry| self.pid.is_none_or(|pid| pid_of(entry) == pid));
        if self.ask.json { print_json(&entries) } else { Ok(write(&mut io::stdout().lock(), &entries)?) }
    }
}

/// Writes an answer as JSON, readable and with a newline at its end.
pub(super) fn print_json(answer: &impl Serialize) -> Outcome {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, answer).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
