//! `holdfast demo`.

use super::Outcome;
use crate::demo;
use std::io;

/// Two daemons, a veth pair, verified traffic: see it work, as root or as an ordinary user
#[derive(clap::Args)]
pub(super) struct Args {
    /// Messages of each kind and size
    #[arg(long, default_value_t = 2000)]
    messages: u64,
    /// Inside the namespaces that the demo made for itself
    #[arg(long, hide = true)]
    inside: bool,
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        Ok(demo::run(self.messages, self.inside, &mut io::stdout().lock())?)
    }
}
