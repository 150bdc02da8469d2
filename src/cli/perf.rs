//! `holdfast perf`: bandwidth and latency between two hosts.

use super::Outcome;
use crate::ipc::client::{Context, PathMtu};
use crate::perf::{
    Bandwidth, DEFAULT_PORT, Latency, Line, Measure, Operation, Plan, Progress, Stop, Transport, measure, serve,
};
use crate::settings::{Size, Time};
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
    /// Message size, such as 64KiB [default: 64KiB for bandwidth, 8B for latency and atomics]
    #[arg(long, short, value_name = "SIZE")]
    size: Option<Size>,
    /// A table over all sizes from 2 bytes to 8 MiB
    #[arg(long, short, conflicts_with = "size")]
    all: bool,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096 [default: the largest that the link has room for]
    #[arg(long, short, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Queue pairs side by side
    #[arg(long, short, default_value_t = 1)]
    qps: u32,
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
    #[arg(long, value_name = "SIZE", default_value = "64B")]
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
            writeln!(
                out,
                "{} over {}, MTU {}, {} QP(s)",
                operation.name(),
                if plan.transport == Transport::Rc { "RC" } else { "UC" },
                plan.path_mtu.bytes(),
                plan.queue_pairs
            )?;
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
                    let _ = write!(io::stderr(), "\r{}", live(&progress));
                }
            },
            |line| {
                wrong += line.wrong_bytes();
                if show_progress {
                    let _ = write!(io::stderr(), "\r\x1b[K");
                }
                written = print(&mut out, line, self.json);
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
        let default = if small { 8 } else { 65_536 };
        let size = self.size.map_or(default, |s| u32::try_from(s.bytes()).unwrap_or(u32::MAX));
        let plan = Plan {
            operation,
            measure: kind,
            transport: match self.transport {
                TransportArg::Rc => Transport::Rc,
                TransportArg::Uc => Transport::Uc,
            },
            sizes: if self.all && operation != Operation::Atomic { Plan::all_sizes() } else { vec![size] },
            path_mtu,
            queue_pairs: if kind == Measure::Latency { 1 } else { self.qps },
            depth: self.depth,
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

fn live(p: &Progress) -> String {
    let seconds = p.elapsed.max(Duration::from_millis(1)).as_secs_f64();
    let rate = p.messages as f64 * f64::from(p.message_bytes) / seconds / f64::from(1 << 20);
    format!("{:>10} bytes: {rate:>10.1} MiB/s after {seconds:.0} s", p.message_bytes)
}

fn print(out: &mut impl Write, line: &Line, json: bool) -> io::Result<()> {
    match line {
        line if json => writeln!(out, "{}", serde_json::to_string(line)?),
        Line::Bandwidth(b) => writeln!(out, "{}", b.row()),
        Line::Latency(l) => writeln!(out, "{}", l.row()),
    }?;
    out.flush()
}
