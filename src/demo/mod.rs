//! The demo: two daemons, a veth pair between two network namespaces, and verified traffic through real packets.
//!
//! Works as root, as an ordinary user (in a user namespace), and where namespaces are forbidden: then both daemons sit on loopback
//! addresses and use the `udp` backend.

mod stage;

use crate::ipc::client::{Context, PathMtu};
use crate::perf::{Line, Measure, Operation, PerfError, Plan, Stop, Transport, measure, serve};
use stage::{Stage, StageError};
use std::io::{self, Write};

/// Why the demo did not show what it should.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The daemons could not be brought up.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A measurement failed.
    #[error("{what} failed: {source}")]
    Traffic {
        /// Of what.
        what: String,
        /// Why.
        source: PerfError,
    },
    /// Bytes arrived that nobody sent.
    #[error("{0} bytes were wrong")]
    Wrong(u64),
    /// The result could not be shown.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

struct Act {
    operation: Operation,
    size: u32,
    queue_pairs: u32,
}

const ACTS: [Act; 8] = [
    Act { operation: Operation::Write, size: 64, queue_pairs: 4 },
    Act { operation: Operation::Write, size: 65_536, queue_pairs: 1 },
    Act { operation: Operation::Write, size: 1 << 20, queue_pairs: 1 },
    Act { operation: Operation::Read, size: 65_536, queue_pairs: 1 },
    Act { operation: Operation::Read, size: 5_000, queue_pairs: 4 },
    Act { operation: Operation::Send, size: 65_536, queue_pairs: 1 },
    Act { operation: Operation::Send, size: 1_021, queue_pairs: 4 },
    Act { operation: Operation::Atomic, size: 8, queue_pairs: 4 },
];
/// As wide as the lines of [`play`].
const TITLES: &str = "what            bytes  QPs  messages        MiB      MiB/s  verified";
/// No act moves more than this: a large message counts for many.
const MAX_BYTES_AN_ACT: u64 = 256 << 20;

/// Runs the demo and prints its table to `out`. `inside` says that this process is alone in namespaces made for it.
///
/// # Errors
/// See [`DemoError`]; whatever was wrong is one.
pub fn run(messages: u64, inside: bool, out: &mut impl Write) -> Result<(), DemoError> {
    let stage = match Stage::set(inside)? {
        stage::Setting::Here(stage) => stage,
        stage::Setting::PlayedInside => return Ok(()),
    };
    writeln!(out, "{}", stage.describe())?;
    let contexts = [stage.attach(0)?, stage.attach(1)?];
    writeln!(out, "\n{TITLES}")?;
    let mut wrong = 0;
    for act in &ACTS {
        wrong += play(&stage, &contexts, act, messages, out)?;
    }
    drop(contexts);
    stage.strike()?;
    if wrong > 0 {
        return Err(DemoError::Wrong(wrong));
    }
    writeln!(out, "\nEvery byte of every message was compared and was right.")?;
    Ok(())
}

fn play(
    stage: &Stage,
    [a, b]: &[Context; 2],
    act: &Act,
    messages: u64,
    out: &mut impl Write,
) -> Result<u64, DemoError> {
    let what = act.operation.name();
    let fail = |source| DemoError::Traffic { what: format!("{what} of {} bytes", act.size), source };
    let plan = Plan {
        operation: act.operation,
        measure: Measure::Bandwidth,
        transport: Transport::Rc,
        sizes: vec![act.size],
        path_mtu: a.query_port().map_err(|e| fail(e.into()))?.active_path_mtu().min(PathMtu::B4096),
        queue_pairs: act.queue_pairs,
        depth: 32,
        bidirectional: false,
        stop: Stop::Messages(messages.min(MAX_BYTES_AN_ACT / u64::from(act.size)).max(1)),
        verify: true,
        spin: false,
        inline_bytes: 64,
        timeout: 14,
        retry_count: 7,
    };
    let listener = stage.listen()?;
    let address = listener.local_addr()?;
    let mut result = None;
    let served = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(b, &listener, |_, _| false));
        let measured = measure(a, &plan, || stage.dial(address), |_| {}, |line| result = Some(line.clone()));
        // Without a client the server would wait for ever.
        if measured.is_err() {
            drop(stage.dial(address));
        }
        let served = server.join().unwrap_or(Ok(()));
        measured.and(served)
    });
    served.map_err(fail)?;
    let Some(Line::Bandwidth(line)) = result else { return Ok(0) };
    writeln!(
        out,
        "{what:<10} {:>10} {:>4} {:>9} {:>10.1} {:>10.1}  {}",
        line.message_bytes,
        act.queue_pairs,
        line.messages,
        line.verified_bytes as f64 / f64::from(1 << 20),
        line.mib_per_second(),
        if line.wrong_bytes == 0 { "every byte".to_owned() } else { format!("{} BYTES WRONG", line.wrong_bytes) }
    )?;
    out.flush()?;
    Ok(line.wrong_bytes)
}
