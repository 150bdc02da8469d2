//! The side that waits: `holdfast perf serve`.

use super::exchange::{Exchange, Line, unexpected};
use super::link::Link;
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
        let outcome = serve_one(context, stream);
        if !ended(&from.ip().to_canonical().to_string(), outcome.as_ref()) {
            return outcome.map(drop);
        }
    }
}

fn serve_one(context: &Context, stream: TcpStream) -> Result<Plan, PerfError> {
    let mut exchange = Exchange::new(stream, PATIENCE)?;
    let plan = match exchange.hear()? {
        Line::Plan(plan) => plan,
        other => return Err(unexpected(&other)),
    };
    let outcome = answer(context, &plan, &mut exchange);
    if let Err(error) = &outcome {
        // The other side may be gone; what matters is what happened here.
        let _ = exchange.say(&Line::Failed(error.to_string()));
    }
    outcome.map(|()| plan)
}

fn answer(context: &Context, plan: &Plan, exchange: &mut Exchange) -> Result<(), PerfError> {
    plan.check()?;
    let mut link = Link::open(context, plan)?;
    exchange.say(&Line::Side(link.side()?))?;
    match exchange.hear()? {
        Line::Side(side) => link.connect(side)?,
        other => return Err(unexpected(&other)),
    }
    exchange.say(&Line::Ready)?;
    for _ in &plan.sizes {
        let size = match exchange.hear()? {
            Line::Begin(size) if plan.sizes.contains(&size) => size,
            other => return Err(unexpected(&other)),
        };
        // Each size begins with fresh queues: receives posted for the last one are gone.
        let seen = match plan.measure {
            Measure::Bandwidth => {
                bandwidth::prepare_to_receive(&link, size)?;
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
    }
    // Only when the other side has gone are its queue pairs done with ours.
    let _ = exchange.hear();
    Ok(())
}
