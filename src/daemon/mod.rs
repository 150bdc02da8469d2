//! The daemon: workers, and who looks after them.
//!
//! | file | what it is for |
//! |---|---|
//! | `start` | settings to parts: port, engine and server of each worker, the sockets |
//! | `supervise` | signals, reload, link changes, watchdog, the end |
//! | `worker` | one thread: port ↔ engine ↔ clients, turn by turn |
//! | `clients` | the sockets of a worker's clients |
//! | `attach` | the socket where programs attach |
//! | `poll` | when a worker spins and when it sleeps |
//! | `waiter`, `clock` | where it sleeps, what time it is |
//! | `publish`, `answer` | what it shows: counters and views |
//!
//! No protocol logic lives here: what a packet means is the engine's business, what a client asks the server's.

mod answer;
mod attach;
mod clients;
mod clock;
mod device;
mod poll;
mod publish;
mod start;
mod supervise;
mod waiter;
mod worker;

pub use attach::AttachError;
pub use clock::Clock;
pub use poll::PollPolicy;
pub use start::StartError;

use crate::settings::Overrides;
use clap::Parser;
use std::process::ExitCode;

/// RoCEv2 queue pairs in user space that do not let go when the light goes out.
#[derive(Parser)]
#[command(name = "holdfastd", version)]
struct CommandLine {
    #[command(flatten)]
    overrides: Overrides,
}

/// Runs the daemon with the command line of the process, until SIGTERM or SIGINT. Exit status 1 if it could not start or
/// had to stop, 2 for a wrong command line.
pub fn main() -> ExitCode {
    run(&CommandLine::parse().overrides)
}

/// Runs the daemon with these options, as [`main`] does.
pub fn run(overrides: &Overrides) -> ExitCode {
    match supervise::run(overrides) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            tracing::error!("{error}");
            // Before the log stands, and for whoever started it by hand.
            let _ = writeln!(std::io::stderr(), "holdfastd: {error}");
            ExitCode::FAILURE
        }
    }
}
