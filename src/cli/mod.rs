//! The `holdfast` command: one file a subcommand, each with its `Args` and their `run`.
//!
//! A subcommand writes to a locked stdout and gives errors back: whoever stops reading (`| head`) ends it quietly. `println!`
//! would panic there.

mod decode;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

/// RoCEv2 queue pairs in user space that do not let go when the light goes out.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Decode(decode::Args),
}

/// What a subcommand comes to. An error is printed and makes exit status 1.
type Outcome = Result<(), Box<dyn Error>>;

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Decode(args) => args.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody reads standard error either, the exit status still tells.
            let _ = writeln!(io::stderr(), "holdfast: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output went away.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let own = error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    own || error.source().is_some_and(is_broken_pipe)
}
