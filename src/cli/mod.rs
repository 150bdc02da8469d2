//! The `holdfast` command: one file a subcommand, each with its `Args` and their `run`.
//!
//! A subcommand writes to a locked stdout and gives errors back: whoever stops reading (`| head`) ends it quietly. `println!`
//! would panic there.

mod ask;
mod daemon;
mod decode;
mod demo;
mod fabric;
mod mr;
mod path;
mod perf;
mod pingpong;
mod qp;
mod status;
mod table;
mod terminal;
mod top;

use crate::control::client::ClientError;
use clap::{Parser, Subcommand};
use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  it failed; standard error says why
  2  wrong usage
  3  the daemon cannot be asked: it is not running, gives no permission, or is of another version";

/// RoCEv2 queue pairs in user space that do not let go when the light goes out.
#[derive(Parser)]
#[command(version, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Status(status::Args),
    Qp(qp::Args),
    Mr(mr::Args),
    Path(path::Args),
    Top(top::Args),
    Decode(decode::Args),
    Perf(perf::Args),
    Pingpong(pingpong::Args),
    Demo(demo::Args),
    Fabric(fabric::Args),
    #[command(hide = true)]
    Daemon(daemon::Args),
}

/// What a subcommand comes to. An error is printed and makes exit status 1.
type Outcome = Result<(), Box<dyn Error>>;

/// Runs the command line of the process.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Status(args) => args.run(),
        Command::Qp(args) => args.run(),
        Command::Mr(args) => args.run(),
        Command::Path(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Decode(args) => args.run(),
        Command::Perf(args) => args.run(),
        Command::Pingpong(args) => args.run(),
        Command::Demo(args) => args.run(),
        Command::Fabric(args) => args.run(),
        Command::Daemon(args) => return args.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody reads standard error either, the exit status still tells.
            let _ = writeln!(io::stderr(), "holdfast: {error}");
            exit_status(&*error)
        }
    }
}

fn exit_status(error: &(dyn Error + 'static)) -> ExitCode {
    match error.downcast_ref() {
        Some(ClientError::NotRunning(_) | ClientError::Permission(_) | ClientError::WrongVersion { .. }) => {
            ExitCode::from(3)
        }
        Some(_) | None => ExitCode::FAILURE,
    }
}

/// Whether the reader of our output went away.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let own = error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    own || error.source().is_some_and(is_broken_pipe)
}
