//! The side that measures: `holdfast perf write-bw HOST` and its sisters.

use super::exchange::{Exchange, Line as Word, Seen, unexpected};
use super::link::Link;
use super::plan::Measure;
use super::report::{Bandwidth, Latency};
use super::serve::answer;
use super::{PerfError, Plan, bandwidth, latency};
use crate::ipc::client::Context;
use crossbeam::channel;
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
/// Measures what `plan` says against the server at the other end of what `dial` connects, one connection a size (two where both
/// sides send). Each line is given to `each` as soon as it stands.
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
    for size in &plan.sizes {
        // Fresh queue pairs: receives of one size do not serve the next.
        let plan = Plan { sizes: vec![*size], ..plan.clone() };
        let mut exchange = Exchange::new(dial()?, PATIENCE)?;
        let line = if plan.bidirectional {
            let mirror = Exchange::new(dial()?, PATIENCE)?;
            both_ways(context, &plan, &mut exchange, mirror, &mut progress)?
        } else {
            one_way(context, &plan, &mut exchange, || (), &mut progress)?
        };
        each(&line);
    }
    Ok(())
}

/// Measures the one size of `plan`. When everything is ready, `start` says when to begin.
pub(super) fn one_way(
    context: &Context,
    plan: &Plan,
    exchange: &mut Exchange,
    start: impl FnOnce(),
    progress: &mut impl FnMut(Progress),
) -> Result<Line, PerfError> {
    exchange.say(&Word::Plan(plan.clone()))?;
    let side = match exchange.hear()? {
        Word::Side(side) => side,
        other => return Err(unexpected(&other)),
    };
    let mut link = Link::open(context, plan)?;
    exchange.say(&Word::Side(link.side()?))?;
    link.connect(side)?;
    exchange.expect_ready()?;
    measure_size(&mut link, plan.largest(), exchange, start, progress)
}

/// Measures while the server measures us. Neither begins before both can.
fn both_ways(
    context: &Context,
    plan: &Plan,
    exchange: &mut Exchange,
    mut mirror: Exchange,
    progress: &mut impl FnMut(Progress),
) -> Result<Line, PerfError> {
    let ((we_can, can_we), (they_can, can_they)) = (channel::bounded(1), channel::bounded(1));
    // Where one of the two has failed, its end of the channel is gone, and the other does not wait for it.
    let when_both = |tell: channel::Sender<()>, hear: channel::Receiver<()>| {
        move || {
            let _ = tell.send(());
            let _ = hear.recv();
        }
    };
    let (ours, theirs) = std::thread::scope(|scope| {
        let answering = scope.spawn(move || -> Result<Bandwidth, PerfError> {
            mirror.say(&Word::Mirror)?;
            let _link = answer(context, &mut mirror, when_both(they_can, can_we))?;
            match mirror.hear()? {
                Word::Measured(bandwidth) => Ok(bandwidth),
                other => Err(unexpected(&other)),
            }
        });
        let ours = one_way(context, plan, exchange, when_both(we_can, can_they), progress);
        (ours, answering.join())
    });
    let theirs = theirs.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    match (ours?, theirs?) {
        (Line::Bandwidth(ours), theirs) => Ok(Line::Bandwidth(ours.beside(&theirs))),
        (latency, _) => Ok(latency),
    }
}

fn measure_size(
    link: &mut Link,
    size: u32,
    exchange: &mut Exchange,
    start: impl FnOnce(),
    progress: &mut impl FnMut(Progress),
) -> Result<Line, PerfError> {
    exchange.say(&Word::Begin(size))?;
    let progress = |messages, elapsed| progress(Progress { message_bytes: size, messages, elapsed });
    match link.plan.measure {
        Measure::Bandwidth => {
            exchange.expect_ready()?;
            start();
            let sent = bandwidth::send(link, size, progress)?;
            let seen = finish(exchange, sent.messages)?;
            let loses = !link.plan.transport.is_reliable() && bandwidth::receives_complete(link);
            Ok(Line::Bandwidth(Bandwidth {
                message_bytes: size,
                messages: sent.messages,
                lost_messages: if loses { sent.messages.saturating_sub(seen.messages) } else { 0 },
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
            let (messages, own) = latency::measure(link, size, &mut samples, progress)?;
            let seen = finish(exchange, messages)?;
            let halves = link.plan.operation.is_half_a_round_trip();
            Ok(Line::Latency(Latency::of(size, &samples, halves, own.wrong_bytes + seen.wrong_bytes)))
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
