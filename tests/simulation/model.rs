//! What a connection must do, in plain words of memory and order, without packets.

use holdfast::memory::Mapping;
use holdfast::transport::{Completion, WcOpcode, WcStatus};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The memory of each node as it must be.
pub type Images = Vec<Vec<u8>>;

/// The memory of each node as it is.
pub struct Memories(pub Vec<Arc<Mapping>>);

impl Memories {
    /// These bytes of a node.
    pub fn bytes(&self, node: usize, range: &Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        assert!(self.0[node].read(range.start as u64, &mut bytes), "outside of the node's memory");
        bytes
    }

    /// The bytes of these pieces, one after the other.
    pub fn gather(&self, node: usize, pieces: &[Range<usize>]) -> Vec<u8> {
        pieces.iter().flat_map(|r| self.bytes(node, r)).collect()
    }
}

/// What a send request does to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND, whose bytes the peer's next receive takes.
    Send,
    /// RDMA WRITE at this offset of the peer's memory.
    Write(usize),
    /// RDMA READ from there.
    Read(usize),
    /// Compare and swap there.
    CompareSwap { at: usize, compare: u64, swap: u64 },
    /// Fetch and add there.
    FetchAdd { at: usize, add: u64 },
    /// Nothing to the peer's memory: opens a window of our own to it.
    Bind,
    /// Closes it.
    LocalInvalidate,
}

/// A posted send request.
#[derive(Clone, Debug)]
pub struct Request {
    pub wr_id: u64,
    pub op: Op,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The R_Key that a SEND invalidates.
    pub invalidate: Option<u32>,
    /// What a SEND or WRITE carries.
    pub data: Vec<u8>,
    /// Where in the requester's memory it comes from or goes to.
    pub local: Vec<Range<usize>>,
    pub signaled: bool,
    /// The statuses with which it must fail; empty if it must succeed.
    pub doom: &'static [WcStatus],
}

impl Request {
    /// Whether the peer needs a posted receive for it.
    pub fn takes_receive(&self) -> bool {
        self.op == Op::Send || (matches!(self.op, Op::Write(_)) && self.imm.is_some())
    }

    fn wc_opcode(&self) -> WcOpcode {
        match self.op {
            Op::Send => WcOpcode::Send,
            Op::Write(_) => WcOpcode::RdmaWrite,
            Op::Read(_) => WcOpcode::RdmaRead,
            Op::CompareSwap { .. } => WcOpcode::CompareSwap,
            Op::FetchAdd { .. } => WcOpcode::FetchAdd,
            Op::Bind => WcOpcode::BindWindow,
            Op::LocalInvalidate => WcOpcode::LocalInvalidate,
        }
    }

    /// Does to the peer's memory what it does; `memory` begins at `base`. Whether anything may have changed.
    fn apply(&self, memory: &mut [u8], base: usize) -> bool {
        let (at, bytes) = match self.op {
            Op::Write(at) => (at - base, self.data.clone()),
            Op::CompareSwap { at, compare, swap } if word(memory, at - base) == compare => {
                (at - base, swap.to_ne_bytes().to_vec())
            }
            Op::FetchAdd { at, add } => (at - base, word(memory, at - base).wrapping_add(add).to_ne_bytes().to_vec()),
            _ => return false,
        };
        memory[at..at + bytes.len()].copy_from_slice(&bytes);
        true
    }
}

/// A posted receive request.
#[derive(Clone, Debug)]
pub struct Receive {
    pub wr_id: u64,
    /// Where in the receiver's memory the message goes.
    pub area: Vec<Range<usize>>,
}

/// What a connection promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// RC: everything once, in order.
    Reliable,
    /// UC: whole messages may be lost. It does not know duplicates (IBTA 9.8.2.2): a message of one packet that the network doubles or
    /// delays may come again, or late.
    Unreliable {
        /// The network does such things.
        shuffled: bool,
    },
}

/// One direction of a connection: what the requester posted, and what of it the responder has yet to see.
#[derive(Debug)]
pub struct Stream {
    /// Node of the requester and of the responder.
    pub from: usize,
    pub to: usize,
    /// The part of the responder's memory that this stream may change.
    pub target: Range<usize>,
    service: Service,
    /// Posted and not known to be complete.
    pub requests: VecDeque<Request>,
    /// Messages that the responder has yet to receive.
    messages: VecDeque<Request>,
    /// Requests that may or may not have been executed.
    uncertain: Vec<Request>,
    /// A request has failed: what is behind it is flushed.
    pub failed: bool,
}

fn word(memory: &[u8], at: usize) -> u64 {
    let mut b = [0; 8];
    b.copy_from_slice(&memory[at..at + 8]);
    u64::from_ne_bytes(b)
}

/// Lays `bytes` over these pieces.
pub fn scatter(memory: &mut [u8], pieces: &[Range<usize>], mut bytes: &[u8]) {
    for r in pieces {
        let n = bytes.len().min(r.len());
        memory[r.start..r.start + n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
    }
}

impl Stream {
    pub fn new(from: usize, to: usize, target: Range<usize>, service: Service) -> Self {
        Self {
            from,
            to,
            target,
            service,
            requests: VecDeque::new(),
            messages: VecDeque::new(),
            uncertain: Vec::new(),
            failed: false,
        }
    }

    /// Whether nothing may be lost.
    pub fn is_reliable(&self) -> bool {
        self.service == Service::Reliable
    }

    /// A request was posted.
    pub fn post(&mut self, request: Request) {
        if request.takes_receive() && request.doom.is_empty() {
            self.messages.push_back(request.clone());
        }
        self.requests.push_back(request);
    }

    /// Messages posted that the peer has not yet received.
    pub fn owed(&self) -> usize {
        self.messages.len()
    }

    /// A completion of the requester's send queue. `excused` says that the connection was broken on purpose.
    pub fn complete(
        &mut self,
        wc: &Completion,
        excused: bool,
        actual: &Memories,
        images: &mut Images,
    ) -> Result<(), String> {
        let position = self.requests.iter().position(|r| r.wr_id == wc.wr_id);
        let Some(position) = position else {
            return Err(format!("completion of a request that is not outstanding: {wc:?}"));
        };
        // READs whose answers were lost are flushed before the refused request that makes the connection fail.
        let cause = self.requests[position].doom.contains(&wc.status);
        if self.failed && (position != 0 || wc.status != WcStatus::WrFlush && !cause) {
            return Err(format!(
                "after a failure everything is flushed in order, got {wc:?} with {position} before it"
            ));
        }
        for _ in 0..position {
            let Some(passed) = self.requests.pop_front() else { break };
            if passed.signaled || !passed.doom.is_empty() {
                return Err(format!("{wc:?} came before the completion of {passed:?}"));
            }
            self.succeed(&passed, actual, images)?;
        }
        let Some(request) = self.requests.pop_front() else { return Ok(()) };
        if wc.status == WcStatus::Success {
            if !request.doom.is_empty() {
                return Err(format!("must fail with {:?}, but succeeded: {}", request.doom, brief(&request)));
            }
            if !request.signaled {
                return Err(format!("a completion nobody asked for: {wc:?}"));
            }
            if wc.opcode != request.wc_opcode() {
                return Err(format!("wrong opcode in {wc:?} for {}", brief(&request)));
            }
            return self.succeed(&request, actual, images);
        }
        let expected = request.doom.contains(&wc.status);
        let broken = excused && matches!(wc.status, WcStatus::WrFlush | WcStatus::RetryExceeded);
        if !expected && !broken && !self.failed {
            return Err(format!("unexpected {wc:?} for {}", brief(&request)));
        }
        // What a responder has refused, it has not executed; nor anything behind it.
        let refused = expected && self.uncertain.is_empty();
        if !refused && (!self.failed || !self.uncertain.is_empty()) {
            self.uncertain.push(request);
        } else if matches!(request.op, Op::Read(_)) {
            // Some responses may have arrived.
            let now = actual.gather(self.from, &request.local);
            scatter(&mut images[self.from], &request.local, &now);
        }
        self.failed = true;
        Ok(())
    }

    /// The queue pair stands in the error state and its completions are all here: what is left has succeeded in silence.
    pub fn conclude(&mut self, actual: &Memories, images: &mut Images) -> Result<Vec<Request>, String> {
        let mut concluded = Vec::new();
        while let Some(request) = self.requests.pop_front() {
            if request.signaled || self.failed {
                return Err(format!("no completion came for {}", brief(&request)));
            }
            self.succeed(&request, actual, images)?;
            concluded.push(request);
        }
        Ok(concluded)
    }

    /// The request has been executed, exactly once, after everything before it.
    fn succeed(&mut self, request: &Request, actual: &Memories, images: &mut Images) -> Result<(), String> {
        match request.op {
            Op::Read(at) => {
                let got = actual.gather(self.from, &request.local);
                self.check_read(request, at, &got, &images[self.to])?;
                scatter(&mut images[self.from], &request.local, &got);
            }
            Op::CompareSwap { at, .. } | Op::FetchAdd { at, .. } => {
                let before = images[self.to][at..at + 8].to_vec();
                let got = actual.gather(self.from, &request.local);
                if got != before {
                    return Err(format!("{} returned {got:x?}, the word was {before:x?}", brief(request)));
                }
                scatter(&mut images[self.from], &request.local, &got);
            }
            Op::Send | Op::Write(_) | Op::Bind | Op::LocalInvalidate => {}
        }
        if self.is_reliable() {
            request.apply(&mut images[self.to], 0);
        } else {
            self.uncertain.push(request.clone());
        }
        Ok(())
    }

    /// A READ may be executed again, so it may see what later requests wrote; but nothing else.
    fn check_read(&self, request: &Request, at: usize, got: &[u8], image: &[u8]) -> Result<(), String> {
        let seen = at - self.target.start..at - self.target.start + got.len();
        let mut memory = image[self.target.clone()].to_vec();
        let mut states = vec![memory[seen.clone()].to_vec()];
        for later in self.requests.iter().filter(|r| r.doom.is_empty()) {
            if later.apply(&mut memory, self.target.start) {
                states.push(memory[seen.clone()].to_vec());
            }
        }
        match explained(got, &states) {
            Ok(()) => Ok(()),
            Err(i) => Err(format!("byte {i} of {} is {:#x}, nobody wrote that", brief(request), got[i])),
        }
    }

    /// A completion of the responder's receive queue that took `receive`.
    pub fn receive(
        &mut self,
        wc: &Completion,
        receive: &Receive,
        actual: &Memories,
        images: &mut Images,
    ) -> Result<(), String> {
        let shuffled = self.service == Service::Unreliable { shuffled: true };
        for at in 0.. {
            // Of messages that may come again, none is ever done with.
            let next = if shuffled { self.messages.get(at).cloned() } else { self.messages.pop_front() };
            let Some(message) = next else { break };
            match self.matches(&message, wc, receive, actual) {
                Ok(()) => {
                    if message.op == Op::Send {
                        scatter(&mut images[self.to], &receive.area, &message.data);
                    }
                    return Ok(());
                }
                Err(why) if self.is_reliable() => return Err(format!("{why}: {wc:?} for {}", brief(&message))),
                // An unreliable connection may have lost this one.
                Err(_) => {}
            }
        }
        Err(format!("a message that nobody sent: {wc:?}"))
    }

    fn matches(
        &self,
        message: &Request,
        wc: &Completion,
        receive: &Receive,
        actual: &Memories,
    ) -> Result<(), &'static str> {
        let opcode = if message.op == Op::Send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        if wc.opcode != opcode {
            return Err("wrong opcode");
        }
        if wc.byte_len as usize != message.data.len() {
            return Err("wrong length");
        }
        if wc.imm != message.imm {
            return Err("wrong immediate");
        }
        if wc.invalidated != message.invalidate {
            return Err("wrong invalidated key");
        }
        if message.op == Op::Send {
            let got = actual.gather(self.to, &receive.area);
            if got[..message.data.len()] != message.data[..] {
                return Err("wrong bytes");
            }
        }
        Ok(())
    }

    /// The connection's life is over: what may have been executed is looked up in memory, and must be explained by it.
    pub fn settle(&mut self, actual: &Memories, images: &mut Images) -> Result<(), String> {
        let pending: Vec<Request> = self.uncertain.drain(..).chain(self.requests.drain(..)).collect();
        let mut memory = images[self.to][self.target.clone()].to_vec();
        let mut states = vec![memory.clone()];
        for request in pending.iter().filter(|r| r.doom.is_empty()) {
            if request.apply(&mut memory, self.target.start) {
                states.push(memory.clone());
            }
        }
        let now = actual.bytes(self.to, &self.target);
        if let Err(i) = explained(&now, &states) {
            return Err(format!(
                "byte {i} of the target of {}→{} is {:#x}, nobody wrote that",
                self.from, self.to, now[i]
            ));
        }
        images[self.to][self.target.clone()].copy_from_slice(&now);
        for request in &pending {
            if matches!(request.op, Op::Read(_) | Op::CompareSwap { .. } | Op::FetchAdd { .. }) {
                let now = actual.gather(self.from, &request.local);
                scatter(&mut images[self.from], &request.local, &now);
            }
        }
        self.messages.clear();
        self.failed = false;
        Ok(())
    }
}

/// Each byte must be what one of the states has there.
fn explained(got: &[u8], states: &[Vec<u8>]) -> Result<(), usize> {
    match (0..got.len()).find(|&i| states.iter().all(|s| s[i] != got[i])) {
        Some(i) => Err(i),
        None => Ok(()),
    }
}

/// A request without its bytes.
fn brief(r: &Request) -> String {
    format!("request {} {:?} imm {:?} of {} bytes", r.wr_id, r.op, r.imm, r.data.len())
}
