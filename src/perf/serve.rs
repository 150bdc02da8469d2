//! The side that waits: `holdfast perf serve`.

use super::exchange::{Exchange, Line, unexpected};
use super::link::Link;
use super::measure::{self, one_way};
use super::plan::Measure;
use super::{PerfError, Plan, bandwidth, latency};
use crate::ipc::client::Context;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The other side may think, warm up and run between two words: longer than its own patience.
const PATIENCE: Duration = Duration::from_secs(600);

/// Serves measurements on `listener`, one at a time; after each, `ended` hears who it was and how it went, and says whether
/// to go on. A failed measurement harms none that follow.
///
/// # Errors
/// The listener's own.
pub fn serve(
    context: &Context,
    listener: &TcpListener,
    mut ended: impl FnMut(&str, Result<&Plan, &PerfError>) -> bool,
) -> Result<(), PerfError> {
    loop {
        let (stream, from) = listener.accept()?;
        let outcome = serve_one(context, listener, stream);
        if !ended(&from.ip().to_canonical().to_string(), outcome.as_ref()) {
            return outcome.map(drop);
        }
    }
}

fn serve_one(context: &Context, listener: &TcpListener, stream: TcpStream) -> Result<Plan, PerfError> {
    let mut exchange = Exchange::new(stream, PATIENCE)?;
    let plan = match exchange.hear()? {
        Line::Plan(plan) => plan,
        other => return Err(unexpected(&other)),
    };
    let answered = if plan.bidirectional {
        both_ways(context, listener, &plan, &mut exchange)
    } else {
        answer_plan(context, &plan, &mut exchange, || ())
    };
    match answered {
        Ok(_link) => {
            // Only when the other side has gone are its queue pairs done with ours.
            let _ = exchange.hear();
            Ok(plan)
        }
        Err(error) => {
            // The other side may be gone; what matters is what happened here.
            let _ = exchange.say(&Line::Failed(error.to_string()));
            Err(error)
        }
    }
}

/// Measures the client while it measures us.
fn both_ways(
    context: &Context,
    listener: &TcpListener,
    plan: &Plan,
    exchange: &mut Exchange,
) -> Result<Link, PerfError> {
    plan.check()?;
    let mut mirror = accept_mirror(listener)?;
    let back = Plan { bidirectional: false, ..plan.clone() };
    std::thread::scope(|scope| {
        let measuring = scope.spawn(move || match one_way(context, &back, &mut mirror, || (), &mut |_| ()) {
            Ok(measure::Line::Bandwidth(bandwidth)) => mirror.say(&Line::Measured(bandwidth)),
            Ok(measure::Line::Latency(_)) => Ok(()),
            Err(error) => mirror.say(&Line::Failed(error.to_string())).and(Err(error)),
        });
        let answered = answer_plan(context, plan, exchange, || ());
        let measured = measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        measured.and(answered)
    })
}

/// The second connection of a client, which it made before it said anything on its first. Others come later.
fn accept_mirror(listener: &TcpListener) -> Result<Exchange, PerfError> {
    loop {
        let mut exchange = Exchange::new(listener.accept()?.0, PATIENCE)?;
        match exchange.hear() {
            Ok(Line::Mirror) => return Ok(exchange),
            _ => drop(exchange.say(&Line::Failed("somebody else measures here: try again later".into()))),
        }
    }
}

/// Answers the measurement that the other side names. `start` says, when everything is ready, when to let it begin. The link is to
/// be kept until the other side is done with it.
pub(super) fn answer(context: &Context, exchange: &mut Exchange, start: impl FnOnce()) -> Result<Link, PerfError> {
    match exchange.hear()? {
        Line::Plan(plan) => answer_plan(context, &plan, exchange, start),
        other => Err(unexpected(&other)),
    }
}

fn answer_plan(
    context: &Context,
    plan: &Plan,
    exchange: &mut Exchange,
    start: impl FnOnce(),
) -> Result<Link, PerfError> {
    plan.check()?;
    let mut link = Link::open(context, plan)?;
    exchange.say(&Line::Side(link.side()?))?;
    match exchange.hear()? {
        Line::Side(side) => link.connect(side)?,
        other => return Err(unexpected(&other)),
    }
    exchange.say(&Line::Ready)?;
    let size = match exchange.hear()? {
        Line::Begin(size) if plan.sizes.contains(&size) => size,
        other => return Err(unexpected(&other)),
    };
    let seen = match plan.measure {
        Measure::Bandwidth => {
            bandwidth::prepare_to_receive(&link, size)?;
            start();
            exchange.say(&Line::Ready)?;
            bandwidth::receive(&mut link, size, exchange)?
        }
        Measure::Latency => {
            latency::prepare_to_answer(&link, size)?;
            exchange.say(&Line::Ready)?;
            latency::answer(&mut link, size, exchange)?
        }
    };
    exchange.say(&Line::Result(seen))?;
    Ok(link)
}
