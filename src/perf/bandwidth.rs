//! Many messages under way: the sending and the receiving side.

use super::exchange::{Exchange, Line, Seen, unexpected};
use super::link::{Buffer, Link, Message};
use super::plan::{Operation, Stop};
use super::{Pattern, PerfError};
use crate::ipc::client::{Completion, SendOp, WcOpcode};
use std::time::{Duration, Instant};

/// What the sending side did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub messages: u64,
    pub elapsed: Duration,
    pub seen: Seen,
}

/// How often progress is told.
pub(super) const SHOW_EVERY: Duration = Duration::from_secs(1);
/// Messages between two signalled ones, and between two credits, at most.
const LARGEST_BATCH: u64 = 16;

/// Messages between two signalled ones, and between two credits.
fn batch(link: &Link) -> u64 {
    LARGEST_BATCH.min(u64::from(link.plan.depth).div_ceil(4)).max(1)
}

/// One queue pair of the sending side.
#[derive(Clone, Copy, Default, Debug)]
struct Lane {
    posted: u64,
    completed: u64,
    /// Messages that the receiving program has compared.
    credited: u64,
    tail_is_signalled: bool,
}

/// The sending side of one message size.
struct Sender<'a> {
    link: &'a mut Link,
    size: u32,
    lanes: Vec<Lane>,
    signal_every: u64,
    seen: Seen,
}

/// Sends messages of `size` until the plan's end; `progress` hears of the messages completed so far.
pub(super) fn send(link: &mut Link, size: u32, mut progress: impl FnMut(u64, Duration)) -> Result<Sent, PerfError> {
    let every_one = matches!(link.plan.operation, Operation::Read | Operation::Atomic);
    let signal_every = if every_one { 1 } else { batch(link) };
    let lanes = vec![Lane::default(); link.qps.len()];
    let mut sender = Sender { link, size, lanes, signal_every, seen: Seen::default() };
    sender.prepare()?;
    let start = Instant::now();
    let mut shown = start;
    loop {
        let now = Instant::now();
        let is_over = sender.is_over(now - start);
        for qp in 0..sender.lanes.len() {
            sender.post(qp, is_over)?;
        }
        if is_over && sender.is_drained() {
            break;
        }
        sender.wait()?;
        if now - shown >= SHOW_EVERY {
            shown = now;
            progress(sender.completed(), now - start);
        }
    }
    Ok(Sent { messages: sender.completed(), elapsed: start.elapsed(), seen: sender.seen })
}

impl Sender<'_> {
    /// Bytes that can be checked, and receives for the credits of the other side.
    fn prepare(&mut self) -> Result<(), PerfError> {
        if self.link.plan.slides() {
            for qp in 0..self.lanes.len() {
                let (at, bytes) = (self.link.offset(Buffer::Out, qp, 0), self.link.plan.out_bytes());
                fill(self.link, at, bytes, self.link.content(qp, 0));
            }
        }
        if self.link.has_credits() {
            for qp in 0..self.lanes.len() {
                for number in 0..u64::from(self.link.plan.depth) {
                    self.link.post_receive(Message { qp, number }, 0)?;
                }
            }
        }
        Ok(())
    }

    fn completed(&self) -> u64 {
        self.lanes.iter().map(|l| l.completed).sum()
    }

    fn is_over(&self, elapsed: Duration) -> bool {
        match self.link.plan.stop {
            Stop::After(limit) => elapsed >= limit,
            Stop::Messages(_) => (0..self.lanes.len()).all(|qp| self.share_left(qp) == Some(0)),
        }
    }

    /// Of so many messages each queue pair sends its share: how many it has left.
    fn share_left(&self, qp: usize) -> Option<u64> {
        let Stop::Messages(n) = self.link.plan.stop else { return None };
        let lanes = self.lanes.len() as u64;
        let share = n / lanes + u64::from((qp as u64) < n % lanes);
        Some(share.saturating_sub(self.lanes.get(qp)?.posted))
    }

    fn is_drained(&self) -> bool {
        self.lanes.iter().all(|l| l.completed == l.posted)
    }

    /// Fills a queue pair's pipe; when the time is over only what is needed to hear of the last message.
    fn post(&mut self, qp: usize, is_over: bool) -> Result<(), PerfError> {
        let depth = u64::from(self.link.plan.depth);
        let credits = self.link.has_credits();
        while let Some(lane) = self.lanes.get(qp).copied() {
            let acknowledged = if credits { lane.completed.min(lane.credited) } else { lane.completed };
            let needs_tail = is_over && lane.posted > lane.completed && !lane.tail_is_signalled;
            let room = lane.posted - acknowledged < depth;
            let left = self.share_left(qp);
            if (is_over && !needs_tail) || !room || left == Some(0) {
                return Ok(());
            }
            let signal = needs_tail || left == Some(1) || (lane.posted + 1).is_multiple_of(self.signal_every);
            self.post_one(Message { qp, number: lane.posted }, signal)?;
            if let Some(lane) = self.lanes.get_mut(qp) {
                lane.posted += 1;
                lane.tail_is_signalled = signal;
            }
        }
        Ok(())
    }

    fn post_one(&mut self, message: Message, signal: bool) -> Result<(), PerfError> {
        let Self { link, size, .. } = self;
        let Some((address, rkey)) = link.peer.as_ref().map(|p| (p.address, p.rkey)) else { return Ok(()) };
        let Message { qp, number } = message;
        let out = link.offset(Buffer::Out, qp, number);
        let into = link.offset(Buffer::In, qp, number);
        let imm = number as u32;
        let (op, local) = match link.plan.operation {
            Operation::Write if link.plan.verify => (SendOp::WriteImm { va: address + into, rkey, imm }, out),
            Operation::Write => (SendOp::Write { va: address + into, rkey }, out),
            Operation::Send if link.plan.verify => (SendOp::SendImm(imm), out),
            Operation::Send => (SendOp::Send, out),
            Operation::Read => (SendOp::Read { va: address + link.offset(Buffer::Out, qp, number * 7), rkey }, into),
            Operation::Atomic => {
                (SendOp::FetchAdd { va: address + link.offset(Buffer::In, qp, 0), rkey, add: 1 }, into)
            }
        };
        link.post(message, op, local, *size, signal)
    }

    fn wait(&mut self) -> Result<(), PerfError> {
        let Self { link, size, lanes, seen, .. } = self;
        link.wait_patiently(|link, completion| {
            let qp = link.index_of(completion);
            let Some(lane) = lanes.get_mut(qp) else { return Ok(()) };
            if completion.opcode == WcOpcode::Recv {
                // So many have been compared by now, modulo 2^32.
                let more = completion.imm.unwrap_or(0).wrapping_sub(lane.credited as u32);
                lane.credited += u64::from(more);
                return link.post_receive(Message { qp, number: 0 }, 0);
            }
            let number = Message::of(completion.wr_id).number;
            lane.completed = number + 1;
            if link.plan.verify {
                check_answer(link, qp, number, *size, seen);
            }
            Ok(())
        })
    }
}

/// Compares what a READ or an atomic brought.
fn check_answer(link: &Link, qp: usize, number: u64, size: u32, seen: &mut Seen) {
    let at = link.offset(Buffer::In, qp, number);
    match link.plan.operation {
        Operation::Read => {
            let slot = (number * 7) % link.plan.slots();
            compare(link, at, size, Pattern::of(qp as u32, slot), seen);
        }
        Operation::Atomic => {
            let mut former = [0; 8];
            let is_right = link.memory.read(at, &mut former) && u64::from_ne_bytes(former) == number;
            seen.verified_bytes += 8;
            seen.wrong_bytes += if is_right { 0 } else { 8 };
        }
        Operation::Write | Operation::Send => {}
    }
}

/// What is written or compared at once: it stays in the first-level cache.
const PART_BYTES: usize = 8 << 10;

/// The parts of `size` bytes: where each begins, and how long it is.
fn parts(size: u64) -> impl Iterator<Item = (usize, usize)> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    (0..size).step_by(PART_BYTES).map(move |at| (at, PART_BYTES.min(size - at)))
}

/// Writes a pattern into this side's memory.
pub(super) fn fill(link: &Link, at: u64, size: u64, pattern: Pattern) {
    let mut buffer = [0; PART_BYTES];
    for (from, len) in parts(size) {
        let bytes = buffer.get_mut(..len).unwrap_or_default();
        pattern.after(from).fill(bytes);
        // The slot lies inside by construction.
        let _ = link.memory.write(at + from as u64, bytes);
    }
}

/// Compares this side's memory with a pattern.
pub(super) fn compare(link: &Link, at: u64, size: u32, pattern: Pattern, seen: &mut Seen) {
    let mut buffer = [0; PART_BYTES];
    for (from, len) in parts(size.into()) {
        let bytes = buffer.get_mut(..len).unwrap_or_default();
        let is_read = link.memory.read(at + from as u64, bytes);
        seen.verified_bytes += len as u64;
        seen.wrong_bytes += if is_read { pattern.after(from).count_wrong(bytes) } else { len as u64 };
    }
}

/// After the last message was sent over UC, how long the receiving side waits for stragglers.
const STRAGGLERS: Duration = Duration::from_millis(200);
/// How long the receiving side waits for messages before it looks whether the other side has said something.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Makes the receiving side ready for messages of `size`: receives posted, patterns laid out, counters at zero.
pub(super) fn prepare_to_receive(link: &Link, size: u32) -> Result<(), PerfError> {
    for qp in 0..link.qps.len() {
        match link.plan.operation {
            Operation::Send | Operation::Write if receives_complete(link) => {
                let room = if link.plan.operation == Operation::Send { size } else { 0 };
                for number in 0..u64::from(link.plan.depth) {
                    link.post_receive(Message { qp, number }, room)?;
                }
            }
            Operation::Read => {
                for slot in 0..link.plan.slots() {
                    fill(link, link.offset(Buffer::Out, qp, slot), size.into(), Pattern::of(qp as u32, slot));
                }
            }
            Operation::Atomic => {
                // The slot lies inside by construction.
                let _ = link.memory.write(link.offset(Buffer::In, qp, 0), &[0; 8]);
            }
            Operation::Write | Operation::Send => {}
        }
    }
    Ok(())
}

/// Whether the receiving side can count messages.
pub(super) fn receives_complete(link: &Link) -> bool {
    link.plan.operation == Operation::Send || (link.plan.operation == Operation::Write && link.plan.verify)
}

/// Receives messages of `size` until the other side is done.
pub(super) fn receive(link: &mut Link, size: u32, exchange: &mut Exchange) -> Result<Seen, PerfError> {
    let mut receiver = Receiver { size, seen: Seen::default(), numbers: vec![0; link.qps.len()] };
    let mut sent = None;
    let mut last = Instant::now();
    loop {
        let n = link.wait(LOOK_EVERY, |link, completion| receiver.handle(link, completion))?;
        if n > 0 {
            last = Instant::now();
        }
        if sent.is_none() && n == 0 && exchange.is_waiting()? {
            sent = match exchange.hear()? {
                Line::Done(messages) => Some(messages),
                other => return Err(unexpected(&other)),
            };
        }
        let Some(sent) = sent else { continue };
        let all = receiver.seen.messages >= sent || !receives_complete(link);
        let lost = !link.plan.transport.is_reliable() && last.elapsed() >= STRAGGLERS;
        if all || lost {
            return Ok(receiver.seen);
        }
    }
}

struct Receiver {
    size: u32,
    seen: Seen,
    /// Messages received on each queue pair.
    numbers: Vec<u64>,
}

impl Receiver {
    fn handle(&mut self, link: &mut Link, completion: &Completion) -> Result<(), PerfError> {
        if !matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            return Ok(());
        }
        let qp = link.index_of(completion);
        let slot = Message::of(completion.wr_id).number;
        let Some(number) = self.numbers.get_mut(qp) else { return Ok(()) };
        if link.plan.verify {
            let imm = completion.imm.unwrap_or(u32::MAX);
            let expected = *number as u32;
            // Over UC and UD messages may be missing: the immediate tells which one this is.
            let this = if link.plan.transport.is_reliable() { *number } else { u64::from(imm) };
            let at = if link.plan.operation == Operation::Send { slot } else { this };
            let pattern = link.content(qp, this);
            compare(link, link.offset(Buffer::In, qp, at), self.size, pattern, &mut self.seen);
            if link.plan.transport.is_reliable() && imm != expected {
                self.seen.wrong_bytes += u64::from(self.size);
            }
        }
        *number += 1;
        self.seen.messages += 1;
        let room = if link.plan.operation == Operation::Send { self.size } else { 0 };
        link.post_receive(Message { qp, number: slot }, room)?;
        if link.has_credits() && number.is_multiple_of(batch(link)) {
            link.post(Message { qp, number: 0 }, SendOp::SendImm(*number as u32), 0, 0, true)?;
        }
        Ok(())
    }
}
