//! The two ends of a connection, in one shape: holdfast's client on one side, pyverbs over rxe on the other. So a scenario is
//! written once and played in both directions.

use crate::lab::{Family, Lab, PATIENCE};
use crate::ours::Ours;
use crate::theirs::Theirs;
use holdfast::ipc::client::{Endpoint, QpType, Qpn, SendFlags, SendOp, WcOpcode, WcStatus};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Bytes of each end's memory, unless a scenario wants more.
pub(crate) const MEMORY: u64 = 4 << 20;
/// The Q_Key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1111_1111;
/// What the area before a datagram takes.
pub(crate) const GRH: u32 = 40;

/// How a connection is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: QpType,
    pub(crate) family: Family,
    pub(crate) mtu: u32,
    /// Queue pairs, each connected to its counterpart.
    pub(crate) qps: usize,
    /// Whether receives go to a shared queue.
    pub(crate) srq: bool,
    /// First PSN, of both ends.
    pub(crate) psn: u32,
    pub(crate) memory: u64,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            kind: QpType::Rc,
            family: Family::V4,
            mtu: 1024,
            qps: 1,
            srq: false,
            psn: 0x1234,
            memory: MEMORY,
            timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
        }
    }
}

/// A request to send.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) op: SendOp,
    /// Offset and length of each part in this end's memory.
    pub(crate) parts: Vec<(u64, u32)>,
    pub(crate) flags: SendFlags,
    /// Of a datagram: whose, with which Q_Key.
    pub(crate) to: Option<(Endpoint, u32)>,
    pub(crate) wr_id: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) qpn: Qpn,
    /// Of a datagram: who sent it. `None` if the completion does not say that there is a GRH.
    pub(crate) src_qp: Option<Qpn>,
}

/// What either implementation can do.
pub(crate) trait Side {
    /// What its peer must know of queue pair `qp`.
    fn endpoint(&self, qp: usize) -> Endpoint;
    /// Brings queue pair `qp` to RTS, connected to `peer` (but for UD).
    fn connect(&mut self, qp: usize, peer: &Endpoint);
    fn post(&mut self, qp: usize, work: &Work);
    /// Posts a receive to queue pair `qp`, or to the shared queue.
    fn receive(&mut self, qp: usize, wr_id: u64, parts: &[(u64, u32)]);
    /// So many completions, or what came within `limit`.
    fn poll(&mut self, n: usize, limit: Duration) -> Vec<Done>;
    /// How the peer names the first byte of its memory: address and R_Key.
    fn there(&self) -> (u64, u32);
    /// Opens a memory window of queue pair 0 for the peer to write into; its key.
    fn open_window(&mut self, offset: u64, len: u64) -> u32;
    /// Another region that the peer may only read.
    fn read_only(&mut self) -> (u64, u32);
    /// Waits for an asynchronous event of this name of `enum ibv_event_type`.
    fn wait_for_event(&mut self, name: &str);
    /// Arms the limit event of the shared receive queue.
    fn arm_limit(&mut self, limit: u32);
    /// Asks for a completion event; true once one has come within `limit`.
    fn arm(&mut self, solicited: bool);
    fn hears_event(&mut self, limit: Duration) -> bool;
    fn fill(&mut self, seed: u64, offset: u64, len: u64, at: u64);
    /// Panics where a byte is not as `fill` would make it.
    fn check(&mut self, seed: u64, offset: u64, len: u64, at: u64);
    fn word(&mut self, offset: u64) -> u64;
    fn set_word(&mut self, offset: u64, value: u64);
}

/// `len` bytes, from byte `at` on, of the stream of words that `peer.py` describes.
pub(crate) fn pattern(seed: u64, len: u64, at: u64) -> Vec<u8> {
    let (first, last) = (at / 8, (at + len).div_ceil(8));
    let word = |i: u64| seed.wrapping_add((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
    let bytes: Vec<u8> = (first..last).flat_map(word).collect();
    let skip = (at - first * 8) as usize;
    bytes[skip..skip + len as usize].to_vec()
}

/// One end, with what is known of its requests.
pub(crate) struct End {
    pub(crate) side: Box<dyn Side>,
    pub(crate) name: &'static str,
    /// Send requests without completion, oldest first, by queue pair number.
    sends: HashMap<Qpn, VecDeque<(u64, SendOp)>>,
    receives: HashMap<u64, u64>,
    inbox: Vec<Done>,
    next_id: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// A receive that completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Where in memory it was to go.
    pub(crate) offset: u64,
    pub(crate) done: Done,
}

const SEND: u64 = 1 << 40;

impl End {
    fn new(side: Box<dyn Side>, name: &'static str) -> Self {
        let (sends, receives) = (HashMap::new(), HashMap::new());
        Self { side, name, sends, receives, inbox: Vec::new(), next_id: 0, messages: 0, bytes: 0 }
    }

    /// How the peer names a byte of this end's memory.
    pub(crate) fn there(&self, offset: u64) -> (u64, u32) {
        let (address, rkey) = self.side.there();
        (address + offset, rkey)
    }

    pub(crate) fn write_to(&self, offset: u64) -> SendOp {
        let (va, rkey) = self.there(offset);
        SendOp::Write { va, rkey }
    }

    pub(crate) fn read_from(&self, offset: u64) -> SendOp {
        let (va, rkey) = self.there(offset);
        SendOp::Read { va, rkey }
    }

    pub(crate) fn add_to(&self, offset: u64, add: u64) -> SendOp {
        let (va, rkey) = self.there(offset);
        SendOp::FetchAdd { va, rkey, add }
    }

    /// Posts a signaled request with data of one part.
    pub(crate) fn post(&mut self, op: SendOp, offset: u64, len: u32) {
        self.post_parts(0, op, SendFlags::SIGNALED, &[(offset, len)], None);
    }

    pub(crate) fn post_parts(
        &mut self,
        qp: usize,
        op: SendOp,
        flags: SendFlags,
        parts: &[(u64, u32)],
        to: Option<(Endpoint, u32)>,
    ) {
        self.next_id += 1;
        let wr_id = SEND | self.next_id;
        if flags.contains(SendFlags::SIGNALED) {
            self.sends.entry(self.side.endpoint(qp).qpn).or_default().push_back((wr_id, op));
        }
        self.messages += 1;
        self.bytes += parts.iter().map(|part| u64::from(part.1)).sum::<u64>();
        self.side.post(qp, &Work { op, parts: parts.to_vec(), flags, to, wr_id });
    }

    /// Posts a receive of one part.
    pub(crate) fn receive(&mut self, offset: u64, len: u32) {
        self.receive_parts(0, &[(offset, len)]);
    }

    pub(crate) fn receive_parts(&mut self, qp: usize, parts: &[(u64, u32)]) {
        self.next_id += 1;
        self.receives.insert(self.next_id, parts.first().map_or(0, |part| part.0));
        self.side.receive(qp, self.next_id, parts);
    }

    /// The next completion of a send, or of a receive.
    fn next(&mut self, send: bool, limit: Duration) -> Option<Done> {
        let start = Instant::now();
        loop {
            if let Some(at) = self.inbox.iter().position(|done| (done.wr_id & SEND != 0) == send) {
                return Some(self.inbox.remove(at));
            }
            let left = limit.checked_sub(start.elapsed())?;
            let got = self.side.poll(1, left);
            self.inbox.extend(got);
        }
    }

    /// The next send's completion, whatever it says; it must be that of its queue pair's oldest request.
    pub(crate) fn sent_with(&mut self, want: WcStatus) {
        let done = self.next(true, PATIENCE).unwrap_or_else(|| panic!("{}: no send completes", self.name));
        let oldest = self.sends.get_mut(&done.qpn).and_then(VecDeque::pop_front);
        let (wr_id, op) = oldest.unwrap_or_else(|| panic!("{}: a completion of nothing: {done:?}", self.name));
        assert_eq!((done.wr_id, done.status), (wr_id, want), "{}: {done:?} of {op:?}", self.name);
        if want.is_success() {
            assert_eq!(done.opcode, op.completion_opcode(), "{}: {done:?} of {op:?}", self.name);
        }
    }

    /// The next `n` sends are done.
    pub(crate) fn sent(&mut self, n: usize) {
        for _ in 0..n {
            self.sent_with(WcStatus::Success);
        }
    }

    /// The next receive is done.
    pub(crate) fn received(&mut self) -> Received {
        let done = self.next(false, PATIENCE).unwrap_or_else(|| panic!("{}: no receive completes", self.name));
        let offset = self.receives.remove(&done.wr_id);
        let offset = offset.unwrap_or_else(|| panic!("{}: a receive twice: {done:?}", self.name));
        assert!(done.status.is_success(), "{}: {done:?}", self.name);
        Received { offset, done }
    }

    /// The next receive is done, by a SEND of so many bytes as they stand in pattern `seed` from `at` on.
    pub(crate) fn received_send(&mut self, len: u32, seed: u64, at: u64) -> Received {
        let got = self.received();
        assert_eq!((got.done.opcode, got.done.len), (WcOpcode::Recv, len), "{}: {got:?}", self.name);
        self.side.check(seed, got.offset, len.into(), at);
        got
    }

    /// Nothing completes for so long. For what must not happen only: it cannot be waited for.
    pub(crate) fn hears_nothing(&mut self, limit: Duration) {
        let got = self.side.poll(1, limit);
        assert!(got.is_empty() && self.inbox.is_empty(), "{}: {got:?} {:?}", self.name, self.inbox);
    }

    /// Posts a request and sees it done.
    pub(crate) fn perform(&mut self, op: SendOp, offset: u64, len: u32) {
        self.post(op, offset, len);
        self.sent(1);
    }
}

/// Two connected ends; the first plays the active part.
pub(crate) fn connected(lab: &Lab, setup: &Setup, we_begin: bool) -> (End, End) {
    let mut ours = End::new(Box::new(Ours::new(lab, setup)), "holdfast");
    let mut theirs = End::new(Box::new(Theirs::new(lab, setup)), "rxe");
    connect(&mut ours, &mut theirs, setup.qps);
    if we_begin { (ours, theirs) } else { (theirs, ours) }
}

/// Connects each queue pair of one end with its counterpart.
pub(crate) fn connect(a: &mut End, b: &mut End, qps: usize) {
    for qp in 0..qps {
        let (one, other) = (a.side.endpoint(qp), b.side.endpoint(qp));
        a.side.connect(qp, &other);
        b.side.connect(qp, &one);
    }
}

/// Plays a scenario with holdfast in the active part, then with rxe in it; prints a line of the table for each.
pub(crate) fn both_ways(lab: &Lab, what: &str, setup: &Setup, scenario: impl Fn(&mut End, &mut End)) {
    for we_begin in [true, false] {
        one_way(lab, what, setup, we_begin, &scenario);
    }
}

/// One of the two.
pub(crate) fn one_way(lab: &Lab, what: &str, setup: &Setup, we_begin: bool, scenario: impl Fn(&mut End, &mut End)) {
    let start = Instant::now();
    let (mut a, mut b) = connected(lab, setup, we_begin);
    scenario(&mut a, &mut b);
    let way = if we_begin { "holdfast > rxe" } else { "rxe > holdfast" };
    row(what, way, setup.mtu, setup.family, a.messages + b.messages, a.bytes + b.bytes, start.elapsed());
}

/// A line of the table.
pub(crate) fn row(what: &str, way: &str, mtu: u32, family: Family, messages: u64, bytes: u64, took: Duration) {
    let (family, seconds) = (family.name(), took.as_secs_f64());
    println!("{what:<40} {way:<14} MTU {mtu:>4} {family} {messages:>6} messages {bytes:>10} bytes {seconds:>6.2} s");
}
