//! The side that measures: `holdfast perf write-bw HOST` and its sisters.

use super::exchange::{Exchange, Line as Word, Seen, unexpected};
use super::link::Link;
use super::plan::{Measure, Operation};
use super::report::{Bandwidth, Latency};
use super::{PerfError, Plan, bandwidth, latency};
use crate::ipc::client::Context;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::net::TcpStream;
use std::time::Duration;

/// The result of one message size.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Line {
    /// Many messages under way.
    Bandwidth(Bandwidth),
    /// One message under way.
    Latency(Latency),
}

impl Line {
    /// Bytes that were not what was sent.
    pub fn wrong_bytes(&self) -> u64 {
        match self {
            Self::Bandwidth(b) => b.wrong_bytes,
            Self::Latency(l) => l.wrong_bytes,
        }
    }
}

/// How far a measurement is, about once a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// Bytes of a message.
    pub message_bytes: u32,
    /// Messages completed of this size.
    pub messages: u64,
    /// Time since its first.
    pub elapsed: Duration,
}

/// The other side may prepare gigabytes before it answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first size begins with fresh queue pairs, and so does each other: receives of one size do not serve the next.
const SIZES_A_CONNECTION: usize = 1;

/// Measures what `plan` says against the server at the other end of what `dial` connects. Each line is given to `each` as soon as it
/// stands.
///
/// # Errors
/// See [`PerfError`].
pub fn measure(
    context: &Context,
    plan: &Plan,
    mut dial: impl FnMut() -> std::io::Result<TcpStream>,
    mut progress: impl FnMut(Progress),
    mut each: impl FnMut(&Line),
) -> Result<(), PerfError> {
    plan.check()?;
    for sizes in plan.sizes.chunks(SIZES_A_CONNECTION) {
        let plan = Plan { sizes: sizes.to_vec(), ..plan.clone() };
        let mut exchange = Exchange::new(dial()?, PATIENCE)?;
        exchange.say(&Word::Plan(plan.clone()))?;
        let side = match exchange.hear()? {
            Word::Side(side) => side,
            other => return Err(unexpected(&other)),
        };
        let mut link = Link::open(context, &plan)?;
        exchange.say(&Word::Side(link.side()?))?;
        link.connect(side)?;
        exchange.expect_ready()?;
        for size in sizes {
            each(&measure_size(&mut link, *size, &mut exchange, &mut progress)?);
        }
    }
    Ok(())
}

fn measure_size(
    link: &mut Link,
    size: u32,
    exchange: &mut Exchange,
    progress: &mut impl FnMut(Progress),
) -> Result<Line, PerfError> {
    exchange.say(&Word::Begin(size))?;
    match link.plan.measure {
        Measure::Bandwidth => {
            exchange.expect_ready()?;
            let sent = bandwidth::send(link, size, |messages, elapsed| {
                progress(Progress { message_bytes: size, messages, elapsed });
            })?;
            let seen = finish(exchange, sent.messages)?;
            Ok(Line::Bandwidth(Bandwidth {
                message_bytes: size,
                messages: sent.messages,
                seconds: sent.elapsed.as_secs_f64(),
                verified_bytes: sent.seen.verified_bytes + seen.verified_bytes,
                wrong_bytes: sent.seen.wrong_bytes + seen.wrong_bytes,
            }))
        }
        Measure::Latency => {
            latency::prepare_to_measure(link, size);
            exchange.expect_ready()?;
            // Three digits, up to 30 s: more is a stall, which ends the measurement.
            let mut samples =
                Histogram::new_with_bounds(1, 30_000_000_000, 3).map_err(|e| PerfError::Conversation(e.to_string()))?;
            let (messages, own) = latency::measure(link, size, &mut samples)?;
            let seen = finish(exchange, messages)?;
            let halve = matches!(link.plan.operation, Operation::Write | Operation::Send);
            Ok(Line::Latency(Latency::of(size, &samples, halve, own.wrong_bytes + seen.wrong_bytes)))
        }
    }
}

fn finish(exchange: &mut Exchange, messages: u64) -> Result<Seen, PerfError> {
    exchange.say(&Word::Done(messages))?;
    match exchange.hear()? {
        Word::Result(seen) => Ok(seen),
        other => Err(unexpected(&other)),
    }
}
