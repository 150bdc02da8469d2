//! `holdfast perf`: bandwidth and latency between two hosts.

use super::Outcome;
use crate::ipc::client::{Context, PathMtu};
use crate::perf::{
    Bandwidth, DEFAULT_PORT, Latency, Line, Measure, Operation, Plan, Progress, Stop, Transport, measure, serve,
};
use crate::settings::{Size, Time};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Measure bandwidth and latency between two hosts
#[derive(clap::Args)]
pub(super) struct Args {
    /// Attach socket of the daemon [default: HOLDFAST_SOCKET, or /run/holdfast/attach.sock]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Serve(Serve),
    /// RDMA WRITE: many under way
    WriteBw(Test),
    /// RDMA READ: many under way
    ReadBw(Test),
    /// SEND: many under way
    SendBw(Test),
    /// FETCH AND ADD: many under way
    AtomicBw(Test),
    /// RDMA WRITE: half a round trip
    WriteLat(Test),
    /// RDMA READ: a round trip
    ReadLat(Test),
    /// SEND: half a round trip
    SendLat(Test),
    /// FETCH AND ADD: a round trip
    AtomicLat(Test),
}

/// Wait for others to measure against this host
#[derive(clap::Args)]
struct Serve {
    /// TCP address to listen on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED))]
    listen: IpAddr,
    /// TCP port
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// End after one measurement
    #[arg(long)]
    once: bool,
}

#[derive(clap::Args)]
struct Test {
    /// Where `holdfast perf serve` runs
    host: String,
    /// Its TCP port
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// Message size, such as 64KiB, or a number of bytes [default: 64KiB for bandwidth, or a packet over UD; 8B for latency and atomics]
    #[arg(long, short, value_name = "SIZE", value_parser = parse_size)]
    size: Option<Size>,
    /// A table over all sizes from 2 bytes to 8 MiB, or to a packet over UD
    #[arg(long, short, conflicts_with = "size")]
    all: bool,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096 [default: the largest that the link has room for]
    #[arg(long, short, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Queue pairs side by side
    #[arg(long, short, default_value_t = 1)]
    qps: u32,
    /// Both sides send at once, each over queue pairs of its own; the figures are of both together
    #[arg(long, short)]
    bidirectional: bool,
    /// Messages under way on each queue pair
    #[arg(long, default_value_t = 128)]
    depth: u32,
    /// Time for each size
    #[arg(long, short = 'D', value_name = "TIME", default_value = "3s")]
    duration: Time,
    /// Messages for each size, instead of a time
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "duration")]
    iterations: Option<u64>,
    /// Service that carries the messages
    #[arg(long, value_enum, default_value = "rc")]
    transport: TransportArg,
    /// Compare every byte of every message
    #[arg(long)]
    verify: bool,
    /// Never sleep while waiting for completions
    #[arg(long)]
    spin: bool,
    /// Send messages up to this size inline
    #[arg(long, value_name = "SIZE", default_value = "64B", value_parser = parse_size)]
    inline: Size,
    /// ACK timeout exponent t of the queue pairs: 4.096 us * 2^t
    #[arg(long, default_value_t = 14)]
    timeout: u8,
    /// Retries after timeouts
    #[arg(long, default_value_t = 7)]
    retry: u8,
    /// Print one JSON object a size
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum TransportArg {
    Rc,
    Uc,
    Ud,
}

impl Args {
    pub(super) fn run(self) -> Outcome {
        let context = match &self.socket {
            Some(path) => Context::connect(path)?,
            None => Context::open()?,
        };
        let (operation, kind, test) = match self.command {
            Command::Serve(args) => return args.run(&context),
            Command::WriteBw(test) => (Operation::Write, Measure::Bandwidth, test),
            Command::ReadBw(test) => (Operation::Read, Measure::Bandwidth, test),
            Command::SendBw(test) => (Operation::Send, Measure::Bandwidth, test),
            Command::AtomicBw(test) => (Operation::Atomic, Measure::Bandwidth, test),
            Command::WriteLat(test) => (Operation::Write, Measure::Latency, test),
            Command::ReadLat(test) => (Operation::Read, Measure::Latency, test),
            Command::SendLat(test) => (Operation::Send, Measure::Latency, test),
            Command::AtomicLat(test) => (Operation::Atomic, Measure::Latency, test),
        };
        test.run(&context, operation, kind)
    }
}

impl Serve {
    fn run(self, context: &Context) -> Outcome {
        let address = SocketAddr::new(self.listen, self.port);
        let listener = TcpListener::bind(address).map_err(|e| format!("cannot listen on {address}: {e}"))?;
        let mut out = io::stdout().lock();
        writeln!(out, "waiting on {}", listener.local_addr()?)?;
        out.flush()?;
        let mut told = Ok(());
        serve(context, &listener, |from, ended| {
            told = match ended {
                Ok(plan) => writeln!(out, "{from}: {} measured", plan.operation.name()),
                Err(error) => writeln!(out, "{from}: {error}"),
            }
            .and_then(|()| out.flush());
            told.is_ok() && !self.once
        })?;
        Ok(told?)
    }
}

impl Test {
    fn run(self, context: &Context, operation: Operation, kind: Measure) -> Outcome {
        let plan = self.plan(context, operation, kind)?;
        let address = (self.host.as_str(), self.port);
        let addresses: Vec<SocketAddr> =
            address.to_socket_addrs().map_err(|e| format!("{}: {e}", self.host))?.collect();
        let dial = || TcpStream::connect(addresses.as_slice());
        let mut out = io::stdout().lock();
        if !self.json {
            writeln!(out, "{}", title(&plan))?;
            writeln!(out, "{}", if kind == Measure::Bandwidth { Bandwidth::header() } else { Latency::header() })?;
        }
        let show_progress = !self.json && io::stderr().is_terminal();
        let (mut written, mut wrong) = (Ok(()), 0);
        measure(
            context,
            &plan,
            dial,
            |progress| {
                if show_progress {
                    let _ = write!(io::stderr(), "\r{}", live(&progress, kind));
                }
            },
            |line| {
                wrong += line.wrong_bytes();
                if show_progress {
                    let _ = write!(io::stderr(), "\r\x1b[K");
                }
                written = print(&mut out, &plan, line, self.json);
            },
        )
        .map_err(|e| format!("{}: {e}", self.host))?;
        written?;
        if wrong > 0 { Err(format!("{wrong} bytes were not what was sent").into()) } else { Ok(()) }
    }

    fn plan(&self, context: &Context, operation: Operation, kind: Measure) -> Result<Plan, Box<dyn std::error::Error>> {
        let path_mtu = match self.mtu {
            Some(bytes) => PathMtu::from_bytes(bytes)
                .ok_or_else(|| format!("--mtu {bytes}: allowed are 256, 512, 1024, 2048 and 4096"))?,
            None => context.query_port()?.active_path_mtu(),
        };
        let small = kind == Measure::Latency || operation == Operation::Atomic;
        let transport = match self.transport {
            TransportArg::Rc => Transport::Rc,
            TransportArg::Uc => Transport::Uc,
            TransportArg::Ud => Transport::Ud,
        };
        let default = match transport {
            _ if small => 8,
            Transport::Ud => path_mtu.bytes(),
            Transport::Rc | Transport::Uc => 65_536,
        };
        let size = self.size.map_or(default, |s| u32::try_from(s.bytes()).unwrap_or(u32::MAX));
        let plan = Plan {
            operation,
            measure: kind,
            transport,
            sizes: if self.all && operation != Operation::Atomic {
                Plan::all_sizes(transport, path_mtu)
            } else {
                vec![size]
            },
            path_mtu,
            queue_pairs: if kind == Measure::Latency { 1 } else { self.qps },
            depth: self.depth,
            bidirectional: self.bidirectional,
            stop: self.iterations.map_or(Stop::After(self.duration.duration()), Stop::Messages),
            verify: self.verify,
            spin: self.spin,
            inline_bytes: u32::try_from(self.inline.bytes()).unwrap_or(u32::MAX),
            timeout: self.timeout,
            retry_count: self.retry,
        };
        plan.check()?;
        Ok(plan)
    }
}

/// A size as settings write it, or, as perftest takes it, a plain number of bytes.
fn parse_size(text: &str) -> Result<Size, <Size as std::str::FromStr>::Err> {
    if text.bytes().all(|b| b.is_ascii_digit()) { format!("{text}B").parse() } else { text.parse() }
}

/// What is measured, for a person.
fn title(plan: &Plan) -> String {
    let how = match plan.measure {
        Measure::Latency if plan.operation.is_half_a_round_trip() => "half a round trip",
        Measure::Latency => "a round trip",
        Measure::Bandwidth if plan.bidirectional => "both ways at once",
        Measure::Bandwidth => "one way",
    };
    let (operation, transport, mtu) = (plan.operation.name(), plan.transport.name(), plan.path_mtu.bytes());
    let title = format!("{operation} over {transport}, {how}, MTU {mtu}");
    match (plan.measure, plan.queue_pairs) {
        (Measure::Latency, _) => title,
        (Measure::Bandwidth, 1) => format!("{title}, 1 QP, depth {}", plan.depth),
        (Measure::Bandwidth, n) => format!("{title}, {n} QPs, depth {}", plan.depth),
    }
}

fn live(p: &Progress, kind: Measure) -> String {
    let seconds = p.elapsed.max(Duration::from_millis(1)).as_secs_f64();
    let so_far = match kind {
        Measure::Latency => format!("{:>10} round trips", p.messages),
        Measure::Bandwidth => {
            let rate = p.messages as f64 * f64::from(p.message_bytes) / seconds / f64::from(1 << 20);
            format!("{rate:>10.1} MiB/s")
        }
    };
    format!("{:>10} bytes: {so_far} after {seconds:.0} s", p.message_bytes)
}

/// A result with what it is of: a line of a file of many of them stands alone.
#[derive(Serialize)]
struct Record<'a> {
    operation: Operation,
    measure: Measure,
    transport: Transport,
    path_mtu_bytes: u32,
    queue_pairs: u32,
    depth: u32,
    bidirectional: bool,
    #[serde(flatten)]
    line: &'a Line,
    #[serde(skip_serializing_if = "Option::is_none")]
    gbit_per_second: Option<f64>,
}

impl<'a> Record<'a> {
    fn of(plan: &Plan, line: &'a Line) -> Self {
        Self {
            operation: plan.operation,
            measure: plan.measure,
            transport: plan.transport,
            path_mtu_bytes: plan.path_mtu.bytes(),
            queue_pairs: plan.queue_pairs,
            depth: if plan.measure == Measure::Latency { 1 } else { plan.depth },
            bidirectional: plan.bidirectional,
            line,
            gbit_per_second: match line {
                Line::Bandwidth(b) => Some(b.gbit_per_second()),
                Line::Latency(_) => None,
            },
        }
    }
}

fn print(out: &mut impl Write, plan: &Plan, line: &Line, json: bool) -> io::Result<()> {
    match line {
        line if json => writeln!(out, "{}", serde_json::to_string(&Record::of(plan, line))?),
        Line::Bandwidth(b) => writeln!(out, "{}", b.row()),
        Line::Latency(l) => writeln!(out, "{}", l.row()),
    }?;
    out.flush()
}
