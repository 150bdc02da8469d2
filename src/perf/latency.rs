//! One message under way: round trips.
//!
//! A WRITE is seen by the program whose memory it reaches when its last byte changes, so both programs look at memory: as
//! perftest does. SENDs complete at the receiver. READs and atomics are round trips by themselves.

use super::bandwidth::{SHOW_EVERY, compare, fill};
use super::exchange::{Exchange, Line, Seen, unexpected};
use super::link::{Buffer, Link, Message};
use super::plan::{Operation, Stop};
use super::{Pattern, PerfError};
use crate::ipc::client::{Completion, SendOp, WcOpcode};
use hdrhistogram::Histogram;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Round trips before those that count: caches, branch predictors and the daemon's polling warm up.
const WARM_UP: u64 = 100;
/// Looks at memory between two offers of the processor: some 100 ns. Where processors are few, the daemon needs this one.
const LOOKS: u32 = 64;
/// Offers of the processor between two looks at the clock, at completions, and at the other side's words.
const ROUNDS: u32 = 64;

/// Completions that have come and that nobody has asked for yet: a message of the peer may overtake the completion of our own.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    sends: u32,
    receives: u32,
}

impl Tally {
    fn note(&mut self, completion: &Completion) {
        match completion.opcode {
            WcOpcode::Recv => self.receives += 1,
            _ => self.sends += 1,
        }
    }

    /// Waits for completions of so many sends and receives.
    fn collect(&mut self, link: &mut Link, sends: u32, receives: u32) -> Result<(), PerfError> {
        while self.sends < sends || self.receives < receives {
            link.wait_patiently(|_, completion| {
                self.note(completion);
                Ok(())
            })?;
        }
        self.sends -= sends;
        self.receives -= receives;
        Ok(())
    }
}

/// Measures round trips of `size`, in nanoseconds; `progress` hears how many so far. Gives back how many messages were sent, warm-up included.
pub(super) fn measure(
    link: &mut Link,
    size: u32,
    samples: &mut Histogram<u64>,
    mut progress: impl FnMut(u64, Duration),
) -> Result<(u64, Seen), PerfError> {
    let (mut seen, mut tally) = (Seen::default(), Tally::default());
    let start = Instant::now();
    let mut shown = start;
    let mut number = 0;
    loop {
        let begin = Instant::now();
        round_trip(link, &mut tally, size, number, &mut seen)?;
        let end = Instant::now();
        number += 1;
        if number > WARM_UP {
            samples.saturating_record(u64::try_from((end - begin).as_nanos()).unwrap_or(u64::MAX));
        }
        if end - shown >= SHOW_EVERY {
            shown = end;
            progress(number, end - start);
        }
        let is_over = match link.plan.stop {
            Stop::After(limit) => end - start >= limit && number > WARM_UP,
            Stop::Messages(n) => number >= n + WARM_UP,
        };
        if is_over {
            return Ok((number, seen));
        }
    }
}

fn round_trip(link: &mut Link, tally: &mut Tally, size: u32, number: u64, seen: &mut Seen) -> Result<(), PerfError> {
    let Some((address, rkey)) = link.peer.as_ref().map(|p| (p.address, p.rkey)) else { return Ok(()) };
    let (out, into) = (link.offset(Buffer::Out, 0, 0), link.offset(Buffer::In, 0, 0));
    let message = Message { qp: 0, number };
    match link.plan.operation {
        Operation::Write => {
            write(link, size, number)?;
            await_write(link, tally, size, number, || Ok(false))?;
            tally.collect(link, 1, 0)?;
            verify(link, size, number, seen);
        }
        Operation::Send => {
            link.post_receive(Message { qp: 0, number: 0 }, size)?;
            send(link, size, number)?;
            tally.collect(link, 1, 1)?;
            verify(link, size, number, seen);
        }
        Operation::Read => {
            link.post(message, SendOp::Read { va: address + out, rkey }, into, size, true)?;
            tally.collect(link, 1, 0)?;
            if link.plan.verify {
                compare(link, into, size, Pattern::of(0, 0), seen);
            }
        }
        Operation::Atomic => {
            link.post(message, SendOp::FetchAdd { va: address + into, rkey, add: 1 }, into, 8, true)?;
            tally.collect(link, 1, 0)?;
            let mut former = [0; 8];
            let is_right = link.memory.read(into, &mut former) && u64::from_ne_bytes(former) == number;
            if link.plan.verify {
                seen.verified_bytes += 8;
                seen.wrong_bytes += if is_right { 0 } else { 8 };
            }
        }
    }
    Ok(())
}

/// Answers round trips of `size` until the other side is done.
pub(super) fn answer(link: &mut Link, size: u32, exchange: &mut Exchange) -> Result<Seen, PerfError> {
    let (mut seen, mut tally) = (Seen::default(), Tally::default());
    let mut number = 0;
    loop {
        let came = match link.plan.operation {
            Operation::Write => await_write(link, &mut tally, size, number, || exchange.is_waiting())?,
            Operation::Send => await_send(link, &mut tally, exchange)?,
            Operation::Read | Operation::Atomic => false,
        };
        if !came {
            return match exchange.hear()? {
                Line::Done(_) => Ok(Seen { messages: number, ..seen }),
                other => Err(unexpected(&other)),
            };
        }
        verify(link, size, number, &mut seen);
        match link.plan.operation {
            Operation::Write => {
                write(link, size, number)?;
                tally.collect(link, 1, 0)?;
            }
            _ => {
                link.post_receive(Message { qp: 0, number: 0 }, size)?;
                send(link, size, number)?;
                tally.collect(link, 1, 0)?;
            }
        }
        number += 1;
    }
}

/// Makes the answering side ready.
pub(super) fn prepare_to_answer(link: &Link, size: u32) -> Result<(), PerfError> {
    let into = link.offset(Buffer::In, 0, 0);
    match link.plan.operation {
        Operation::Send => link.post_receive(Message { qp: 0, number: 0 }, size)?,
        Operation::Read => fill(link, link.offset(Buffer::Out, 0, 0), size.into(), Pattern::of(0, 0)),
        // The slot lies inside by construction.
        Operation::Write | Operation::Atomic => drop(link.memory.write(into, &vec![0; size as usize])),
    }
    Ok(())
}

/// Makes the measuring side ready: what the last size left is no message of this one.
pub(super) fn prepare_to_measure(link: &Link, size: u32) {
    // The slot lies inside by construction.
    let _ = link.memory.write(link.offset(Buffer::In, 0, 0), &vec![0; size as usize]);
}

/// The last byte of message `number`: never that of the one before, never zero.
const fn mark(number: u64) -> u8 {
    (number % 255) as u8 + 1
}

fn lay_out(link: &Link, size: u32, number: u64) {
    let out = link.offset(Buffer::Out, 0, 0);
    if link.plan.verify {
        fill(link, out, size.into(), Pattern::of(0, number));
    }
    // The slot lies inside by construction.
    let _ = link.memory.write(out + u64::from(size) - 1, &[mark(number)]);
}

fn verify(link: &Link, size: u32, number: u64, seen: &mut Seen) {
    if link.plan.verify {
        let into = link.offset(Buffer::In, 0, 0);
        compare(link, into, size - 1, Pattern::of(0, number), seen);
        let mut last = [0];
        seen.verified_bytes += 1;
        let is_right = link.memory.read(into + u64::from(size) - 1, &mut last) && last == [mark(number)];
        seen.wrong_bytes += u64::from(!is_right);
    }
}

fn write(link: &Link, size: u32, number: u64) -> Result<(), PerfError> {
    let Some((address, rkey)) = link.peer.as_ref().map(|p| (p.address, p.rkey)) else { return Ok(()) };
    lay_out(link, size, number);
    let va = address + link.offset(Buffer::In, 0, 0);
    link.post(Message { qp: 0, number }, SendOp::Write { va, rkey }, link.offset(Buffer::Out, 0, 0), size, true)
}

fn send(link: &Link, size: u32, number: u64) -> Result<(), PerfError> {
    lay_out(link, size, number);
    link.post(Message { qp: 0, number }, SendOp::Send, link.offset(Buffer::Out, 0, 0), size, true)
}

/// Looks at memory until message `number` has arrived; false if `stop` said so meanwhile.
fn await_write(
    link: &mut Link,
    tally: &mut Tally,
    size: u32,
    number: u64,
    mut stop: impl FnMut() -> Result<bool, PerfError>,
) -> Result<bool, PerfError> {
    let last = link.offset(Buffer::In, 0, 0) + u64::from(size) - 1;
    let shift = (last % 8) * 8;
    let start = Instant::now();
    let mut rounds = 0_u32;
    loop {
        for _ in 0..LOOKS {
            let word = link.memory.atomic(last - last % 8).map_or(0, |w| w.load(Ordering::Acquire));
            if (u64::from_le(word) >> shift) as u8 == mark(number) {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
        rounds += 1;
        if !rounds.is_multiple_of(ROUNDS) {
            continue;
        }
        if stop()? {
            return Ok(false);
        }
        // Completions in error must end the wait.
        link.poll(|_, completion| {
            tally.note(completion);
            Ok(())
        })?;
        if start.elapsed() > link.patience() {
            return Err(link.stalled());
        }
    }
}

fn await_send(link: &mut Link, tally: &mut Tally, exchange: &mut Exchange) -> Result<bool, PerfError> {
    let start = Instant::now();
    while tally.receives == 0 {
        link.wait(Duration::from_millis(5), |_, completion| {
            tally.note(completion);
            Ok(())
        })?;
        if tally.receives == 0 && exchange.is_waiting()? {
            return Ok(false);
        }
        if start.elapsed() > link.patience() {
            return Err(link.stalled());
        }
    }
    tally.receives -= 1;
    Ok(true)
}
