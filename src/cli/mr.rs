//! `holdfast mr list`.

use super::Outcome;
use super::ask::Listing;
use super::qp::name;
use super::table::{Left, Right, Table, bytes};
use crate::control::client::Client;
use crate::control::view::MemoryRegion;
use crate::memory::Access;
use clap::Subcommand;
use std::io::{self, Write};

/// Show memory regions.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All memory regions, one a line. Keys are not shown: they are between a program and its peers.
    List(Listing),
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        let Command::List(listing) = self.command;
        let all = |client: Client| async move { client.memory_regions(usize::MAX).await };
        listing.run(all, |region| region.client_pid, write_list)
    }
}

fn access(bits: u32) -> String {
    let names: Vec<String> =
        Access::from_bits_retain(bits).iter_names().map(|(name, _)| name.to_lowercase().replace('_', "-")).collect();
    if names.is_empty() { "local-read".into() } else { names.join(",") }
}

fn write_list(out: &mut dyn Write, regions: &[MemoryRegion]) -> io::Result<()> {
    let mut table = Table::new(&[
        ("WORKER", Right),
        ("SLOT", Right),
        ("PID", Right),
        ("PD", Right),
        ("ADDRESS", Right),
        ("LENGTH", Right),
        ("BACKING", Left),
        ("ACCESS", Left),
    ]);
    for r in regions {
        table.row([
            r.worker.to_string(),
            r.slot.to_string(),
            r.client_pid.to_string(),
            r.protection_domain.to_string(),
            format!("{:#x}", r.iova),
            bytes(r.length_bytes),
            name(&r.backing),
            access(r.access),
        ]);
    }
    if table.is_empty() { writeln!(out, "no memory regions") } else { table.write(out) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::control::view::Backing;

    #[test]
    fn a_list_has_one_aligned_line_a_region() {
        let regions = [
            MemoryRegion {
                slot: 1,
                client_pid: 4711,
                iova: 0x7f00_0000_0000,
                length_bytes: 1 << 30,
                access: 7,
                ..Default::default()
            },
            MemoryRegion { slot: 12, backing: Backing::Process, length_bytes: 100, ..Default::default() },
        ];
        let mut out = Vec::new();
        write_list(&mut out, &regions).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        WORKER  SLOT   PID  PD         ADDRESS  LENGTH  BACKING  ACCESS
             0     1  4711   0  0x7f0000000000   1 GiB  shared   local-write,remote-write,remote-read
             0    12     0   0             0x0   100 B  process  local-read
        ");
    }
}
