//! `holdfast path list`, `show`, `watch` and `announce`.

use super::Outcome;
use super::ask::{Ask, print_json};
use super::qp::name;
use super::table::{Left, Right, Table, count, or_dash, time};
use crate::congestion::Bps;
use crate::control::proto;
use crate::control::proto::path_event::Change;
use crate::control::proto::prepare::When;
use crate::control::view::{Circuit, Path, PathNews, PathState, Watched};
use crate::settings::{Rate, Time};
use clap::Subcommand;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::SystemTime;

/// Show the paths to peers, and say what happens to them.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// All paths, one a line.
    List(Ask),
    /// The paths to one peer, whole.
    Show {
        #[command(flatten)]
        ask: Ask,
        /// The peer's address.
        peer: IpAddr,
    },
    /// All paths as they are, then what happens to them, one line each, until interrupted.
    Watch(Ask),
    /// Say what happens, or will happen, to the paths to some peers.
    Announce {
        #[command(flatten)]
        ask: Ask,
        /// Whose paths: an address or a prefix, such as 198.18.3.0/24.
        #[arg(long)]
        peers: String,
        /// The life of whoever announces; an event of a later one counts before all of an earlier one. The present, in seconds since
        /// 1970, if it is not given.
        #[arg(long)]
        epoch: Option<u64>,
        /// Counts the events of an epoch.
        #[arg(long, default_value_t = 0)]
        sequence: u64,
        #[command(subcommand)]
        what: What,
    },
}

#[derive(Subcommand)]
enum What {
    /// They will be dark.
    Prepare {
        /// So long from now.
        #[arg(long = "in", value_name = "TIME")]
        after: Time,
        /// For about so long; 0s if nobody knows.
        #[arg(long = "for", value_name = "TIME", default_value = "0s")]
        expected: Time,
    },
    /// They are dark.
    Down,
    /// They have light.
    Up,
    /// In the dark for longer, what waits fails.
    HoldMax {
        /// So long.
        time: Time,
    },
    /// They ride on this circuit from now on; without a label on that of the settings.
    Ride {
        /// Its name.
        label: Option<String>,
        /// Its rate; 0b/s: that of the line.
        #[arg(long, default_value = "0b/s")]
        rate: Rate,
        /// Its round trip without queues; 0s: that of the line.
        #[arg(long, default_value = "0s")]
        rtt: Time,
        /// The largest RoCE MTU that it carries; 0: that of the port.
        #[arg(long, default_value_t = 0)]
        mtu: u32,
        /// In the dark for longer, what waits fails; 0s: as for all paths.
        #[arg(long, default_value = "0s")]
        hold_max: Time,
    },
}

impl What {
    fn change(self) -> Change {
        match self {
            Self::Prepare { after, expected } => {
                Change::Prepare(proto::Prepare { when: Some(When::InNs(after.as_ns())), expected_ns: expected.as_ns() })
            }
            Self::Down => Change::Down(proto::Down {}),
            Self::Up => Change::Up(proto::Up {}),
            Self::HoldMax { time } => Change::HoldMax(proto::HoldMax { hold_max_ns: time.as_ns() }),
            Self::Ride { label, rate, rtt, mtu, hold_max } => {
                let circuit = label.map(|label| proto::Circuit {
                    label,
                    rate_bps: rate.bps().as_bps(),
                    rtt_ns: rtt.as_ns(),
                    mtu_bytes: mtu,
                    hold_max_ns: hold_max.as_ns(),
                });
                Change::Ride(proto::Ride { circuit })
            }
        }
    }
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        match self.command {
            Command::List(ask) => {
                let paths = ask.run(|client| async move { client.paths().await })?;
                if ask.json { print_json(&paths) } else { Ok(write_list(&mut io::stdout().lock(), &paths)?) }
            }
            Command::Show { ask, peer } => show(&ask, peer),
            Command::Watch(ask) => watch(&ask),
            Command::Announce { ask, peers, epoch, sequence, what } => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let epoch = epoch.unwrap_or(now.as_secs());
                let event = proto::PathEvent { peers, epoch, sequence, change: Some(what.change()) };
                let (paths, was_known) = ask.run(|client| async move { client.announce(event).await })?;
                if ask.json {
                    return print_json(&serde_json::json!({ "paths": paths, "was_known": was_known }));
                }
                let mut out = io::stdout().lock();
                Ok(match was_known {
                    true => writeln!(out, "it was said before: nothing changes"),
                    false => writeln!(out, "{paths} paths are told"),
                }?)
            }
        }
    }
}

fn show(ask: &Ask, peer: IpAddr) -> Outcome {
    let mut paths = ask.run(|client| async move { client.paths().await })?;
    paths.retain(|path| path.peer == peer.to_canonical());
    if paths.is_empty() {
        return Err(format!("no queue pair rides a path to {peer}").into());
    }
    if ask.json {
        return print_json(&paths);
    }
    let mut out = io::stdout().lock();
    paths.iter().try_for_each(|path| write_one(&mut out, path))?;
    Ok(())
}

fn watch(ask: &Ask) -> Outcome {
    let is_json = ask.json;
    // Whoever stops reading ends it.
    let tell = |watched: Watched| {
        let mut out = io::stdout().lock();
        let told = match is_json {
            true => serde_json::to_writer(&mut out, &watched).map_err(io::Error::from).and_then(|()| writeln!(out)),
            false => writeln!(out, "{}", line(&watched)),
        };
        told.and_then(|()| out.flush()).is_ok()
    };
    ask.run(|client| async move { client.watch_paths(tell).await })
}

/// What a watch tells, in a line.
fn line(watched: &Watched) -> String {
    match watched {
        Watched::Path(path) => format!(
            "{}: {} for {}, {} queue pairs, worker {}",
            path.peer,
            state(path),
            time(path.for_ns),
            path.queue_pairs,
            path.worker
        ),
        Watched::Event(news) => event(news),
        Watched::Missed(events) => format!("missed {events} events: they came faster than they were taken"),
    }
}

fn event(news: &PathNews) -> String {
    let what = match news.state {
        PathState::Lost => format!("lost: {} queue pairs failed", news.lost_queue_pairs),
        PathState::Dark => format!("dark ({})", or_dash(news.cause.map(|cause| name(&cause)))),
        _ => format!("light after {}", time(news.dark_ns)),
    };
    let (seconds, us) = (news.at_unix_ns / 1_000_000_000, news.at_unix_ns % 1_000_000_000 / 1_000);
    format!("{}: {what} at {seconds}.{us:06}, worker {}", news.peer, news.worker)
}

/// Where a path is, and who says so.
fn state(path: &Path) -> String {
    match path.cause {
        Some(cause) => format!("{} ({})", name(&path.state), name(&cause)),
        None => name(&path.state),
    }
}

fn write_list(out: &mut dyn Write, paths: &[Path]) -> io::Result<()> {
    let mut table = Table::new(&[
        ("PEER", Left),
        ("STATE", Left),
        ("FOR", Right),
        ("CIRCUIT", Left),
        ("QPS", Right),
        ("DARKS", Right),
        ("DARK-TIME", Right),
        ("LAST-DARK", Right),
        ("WORKER", Right),
    ]);
    for path in paths {
        table.row([
            path.peer.to_string(),
            state(path),
            time(path.for_ns),
            or_dash(path.circuit.as_ref().map(|circuit| &circuit.label)),
            path.queue_pairs.to_string(),
            path.darks.to_string(),
            time(path.dark_ns),
            time(path.last_dark_ns),
            path.worker.to_string(),
        ]);
    }
    if table.is_empty() { writeln!(out, "no paths: no queue pair is connected") } else { table.write(out) }
}

fn write_one(out: &mut dyn Write, path: &Path) -> io::Result<()> {
    let mut line = |name: &str, text: String| writeln!(out, "{name:<15} {text}");
    let kind = if path.is_holdfast { "a holdfast" } else { "not known as a holdfast" };
    line("path to", format!("{}, {kind}, worker {}", path.peer, path.worker))?;
    line("state", format!("{} for {}", state(path), time(path.for_ns)))?;
    line("circuit", path.circuit.as_ref().map_or_else(|| "not known".into(), circuit))?;
    line("queue pairs", path.queue_pairs.to_string())?;
    line("held", format!("for at most {}", time(path.hold_max_ns)))?;
    let dark =
        format!("{} times, {} in all, {} the last time", path.darks, time(path.dark_ns), time(path.last_dark_ns));
    line("dark", dark)?;
    line("lost", format!("{} times", count(path.lost)))?;
    line("moved", format!("{} times", count(path.moves)))
}

fn circuit(circuit: &Circuit) -> String {
    let mut text = circuit.label.clone();
    if circuit.rate_bps > 0 {
        text += &format!(", {}", Bps::from_bps(circuit.rate_bps));
    }
    if circuit.rtt_ns > 0 {
        text += &format!(", round trip {}", time(circuit.rtt_ns));
    }
    if circuit.mtu_bytes > 0 {
        text += &format!(", MTU {}", circuit.mtu_bytes);
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::control::view::DarkCause;

    fn path() -> Path {
        Path {
            peer: "198.18.0.2".parse().unwrap(),
            worker: 0,
            state: PathState::Dark,
            cause: Some(DarkCause::Silence),
            for_ns: 12_000_000,
            queue_pairs: 8,
            hold_max_ns: 30_000_000_000,
            circuit: Some(Circuit {
                label: "lambda-7".into(),
                rate_bps: 40_000_000_000,
                rtt_ns: 12_000,
                mtu_bytes: 4096,
                hold_max_ns: 0,
            }),
            moves: 1,
            darks: 3,
            dark_ns: 40_000_000,
            last_dark_ns: 10_000_000,
            lost: 0,
            is_holdfast: true,
        }
    }

    fn told(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_list_has_one_line_a_path() {
        let bare = Path { circuit: None, state: PathState::Lit, cause: None, ..path() };
        insta::assert_snapshot!(told(|out| write_list(out, &[path(), bare])), @r"
        PEER        STATE             FOR  CIRCUIT   QPS  DARKS  DARK-TIME  LAST-DARK  WORKER
        198.18.0.2  dark (silence)  12 ms  lambda-7    8      3      40 ms      10 ms       0
        198.18.0.2  lit             12 ms  -           8      3      40 ms      10 ms       0
        ");
    }

    #[test]
    fn one_path_is_told_whole() {
        insta::assert_snapshot!(told(|out| write_one(out, &path())), @r"
        path to         198.18.0.2, a holdfast, worker 0
        state           dark (silence) for 12 ms
        circuit         lambda-7, 40 Gb/s, round trip 12 us, MTU 4096
        queue pairs     8
        held            for at most 30 s
        dark            3 times, 40 ms in all, 10 ms the last time
        lost            0 times
        moved           1 times
        ");
    }

    #[test]
    fn what_happens_is_told_in_a_line() {
        let news = PathNews {
            peer: path().peer,
            worker: 1,
            state: PathState::Lit,
            cause: None,
            dark_ns: 10_200_000,
            lost_queue_pairs: 0,
            at_unix_ns: 1_800_000_000_000_250_000,
        };
        let lost = PathNews { state: PathState::Lost, lost_queue_pairs: 8, ..news };
        let dark = PathNews { state: PathState::Dark, cause: Some(DarkCause::Announced), ..news };
        let all = [
            Watched::Path(path()),
            Watched::Event(dark),
            Watched::Event(news),
            Watched::Event(lost),
            Watched::Missed(3),
        ];
        insta::assert_snapshot!(all.each_ref().map(line).join("\n"), @r"
        198.18.0.2: dark (silence) for 12 ms, 8 queue pairs, worker 0
        198.18.0.2: dark (announced) at 1800000000.000250, worker 1
        198.18.0.2: light after 10.2 ms at 1800000000.000250, worker 1
        198.18.0.2: lost: 8 queue pairs failed at 1800000000.000250, worker 1
        missed 3 events: they came faster than they were taken
        ");
    }
}
