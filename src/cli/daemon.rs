//! `holdfast daemon`: `holdfastd` out of the same file, for the demo and for tests.

use crate::daemon;
use crate::settings::Overrides;
use std::process::ExitCode;

/// Run the daemon, as holdfastd does
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    overrides: Overrides,
}

impl Args {
    pub(super) fn run(&self) -> ExitCode {
        daemon::run(&self.overrides)
    }
}
