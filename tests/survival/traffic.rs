//! Verified traffic of every kind between two daemons: RC WRITE, SEND, READ and FETCH_ADD both ways, and datagrams.

use crate::stage::PATIENCE;
use holdfast::ipc::client::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// The first PSN of each side: the million numbers before it and the four million behind its traffic are never in a window.
pub(crate) const FIRST_PSN: [u32; 2] = [0x60_0000, 0xa0_0000];
/// What datagrams must name.
pub(crate) const QKEY: u32 = 0x1357_9bdf;

const AREA: u64 = 64 << 10;
const OUT: u64 = 0;
const WRITTEN: u64 = AREA;
const READ: u64 = 2 * AREA;
const RECEIVED: u64 = 3 * AREA;
const ATOMIC: u64 = 4 * AREA;
const ATOMIC_RESULT: u64 = ATOMIC + 8;
const DATAGRAM_OUT: u64 = ATOMIC + 4096;
const DATAGRAMS: u64 = 5 * AREA;
const DATAGRAM_BYTES: u64 = 2048;
const DATAGRAM_RECEIVES: u64 = 256;
const MEMORY: u64 = DATAGRAMS + DATAGRAM_BYTES * DATAGRAM_RECEIVES;
const GRH: u64 = 40;

/// What of a side's work in a round is done.
const WROTE: u64 = 1;
const SENT: u64 = 2;
const GOT: u64 = 3;
const ADDED: u64 = 4;
const CAME: u64 = 5;
const DATAGRAM_SENT: u64 = 6;
const DATAGRAM_CAME: u64 = 7;
/// All but the arrival of datagrams, on which nobody can rely.
const ROUND: u32 = 1 << WROTE | 1 << SENT | 1 << GOT | 1 << ADDED | 1 << CAME | 1 << DATAGRAM_SENT;

/// One side: everything that it has.
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) cq: CompletionQueue,
    pub(crate) rc: QueuePair,
    pub(crate) ud: QueuePair,
    pub(crate) memory: MemoryRegion,
    done: u32,
    /// Rounds whose datagrams the other side has sent and this one has not seen.
    awaited: VecDeque<u64>,
    pub(crate) lost_datagrams: u64,
}

/// Both sides, connected.
pub(crate) struct Traffic {
    pub(crate) sides: [Side; 2],
    /// Rounds played.
    pub(crate) rounds: u64,
}

/// How the connections are to be.
pub(crate) fn options() -> ConnectionOptions {
    // A daemon that does not get a processor for a while is no loss.
    ConnectionOptions { timeout: 18, ..ConnectionOptions::default() }
}

impl Side {
    fn new(context: Context) -> Self {
        let pd = context.allocate_pd().unwrap();
        let cq = context.create_cq(1024, None).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = pd.allocate(MEMORY as usize, rights).unwrap();
        let rc = pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
        let caps = QpCapabilities { max_recv_wr: DATAGRAM_RECEIVES as u32, ..ud_capabilities() };
        let ud = pd.queue_pair(QpType::Ud, &cq, &cq).capabilities(caps).create().unwrap();
        ud.activate(QKEY, Psn::new(0)).unwrap();
        let side = Self { context, cq, rc, ud, memory, done: 0, awaited: VecDeque::new(), lost_datagrams: 0 };
        (0..DATAGRAM_RECEIVES).for_each(|slot| side.post_datagram_receive(slot));
        side
    }

    fn post_datagram_receive(&self, slot: u64) {
        let start = DATAGRAMS + slot * DATAGRAM_BYTES;
        let sges = [self.memory.sge(start..start + DATAGRAM_BYTES)];
        self.ud.post_recv(&RecvRequest { wr_id: DATAGRAM_CAME << 32 | slot, sges: &sges }).unwrap();
    }

    fn post_receive(&self) {
        let sges = [self.memory.sge(RECEIVED..RECEIVED + AREA)];
        self.rc.post_recv(&RecvRequest { wr_id: CAME << 32, sges: &sges }).unwrap();
    }

    /// Posts one round's requests.
    fn post(&self, round: u64, peer: &Peer) {
        let length = length(round);
        let va = |offset| peer.memory + offset;
        let rkey = peer.rkey;
        let out = [self.memory.sge(OUT..OUT + length)];
        let read = [self.memory.sge(READ..READ + length)];
        let atomic = [self.memory.sge(ATOMIC_RESULT..ATOMIC_RESULT + 8)];
        let requests = [
            (WROTE, SendOp::Write { va: va(WRITTEN), rkey }, &out),
            (SENT, SendOp::Send, &out),
            (GOT, SendOp::Read { va: va(OUT), rkey }, &read),
            (ADDED, SendOp::FetchAdd { va: va(ATOMIC), rkey, add: round + 1 }, &atomic),
        ];
        for (what, op, sges) in requests {
            let data = Data::Sges(sges);
            let request = SendRequest { wr_id: what << 32, op, flags: SendFlags::SIGNALED, data, datagram: None };
            self.rc.post_send(&request).unwrap();
        }
        let datagram = [self.memory.sge(DATAGRAM_OUT..DATAGRAM_OUT + 1000)];
        self.ud
            .post_send(&SendRequest {
                wr_id: DATAGRAM_SENT << 32,
                op: SendOp::Send,
                flags: SendFlags::SIGNALED,
                data: Data::Sges(&datagram),
                datagram: Some(peer.ud),
            })
            .unwrap();
    }

    /// Takes what has completed.
    fn poll(&mut self) {
        let mut batch = [Completion::default(); 64];
        let n = self.cq.poll(&mut batch).unwrap();
        for completion in &batch[..n] {
            assert!(completion.status.is_success(), "{completion:?}");
            let what = completion.wr_id >> 32;
            if what == DATAGRAM_CAME {
                self.take_datagram(completion.wr_id & 0xffff_ffff, completion.byte_len);
            } else {
                assert_eq!(self.done & 1 << what, 0, "twice: {completion:?}");
                self.done |= 1 << what;
            }
        }
    }

    /// Looks at a datagram: one of those awaited, whole. Those sent before it are lost.
    fn take_datagram(&mut self, slot: u64, byte_len: u32) {
        assert_eq!(u64::from(byte_len), GRH + 1000);
        let mut bytes = [0; 1000];
        assert!(self.memory.read(DATAGRAMS + slot * DATAGRAM_BYTES + GRH, &mut bytes));
        let round = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let place = self.awaited.iter().position(|awaited| *awaited == round);
        let place = place.unwrap_or_else(|| panic!("a datagram of round {round}, awaited {:?}", self.awaited));
        self.lost_datagrams += place as u64;
        self.awaited.drain(..=place);
        assert_eq!(bytes, datagram(round));
        self.post_datagram_receive(slot);
    }
}

/// What a side must know of the other.
struct Peer {
    memory: u64,
    rkey: u32,
    ud: UdAddress,
}

/// Bytes of a round's messages.
fn length(round: u64) -> u64 {
    round.wrapping_mul(7919) % 12_000 + 1
}

fn pattern(round: u64, side: usize) -> Vec<u8> {
    let seed = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (side as u64) << 63;
    (0..length(round)).map(|i| (seed.rotate_left(i as u32 & 63) as u8) ^ i as u8).collect()
}

fn datagram(round: u64) -> [u8; 1000] {
    let mut bytes: [u8; 1000] = core::array::from_fn(|i| i as u8 ^ round as u8);
    bytes[..8].copy_from_slice(&round.to_le_bytes());
    bytes
}

fn ud_capabilities() -> QpCapabilities {
    QpCapabilities { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
}

impl Traffic {
    /// Connects queue pairs of two contexts.
    pub(crate) fn new(contexts: [Context; 2]) -> Self {
        Self::with(contexts, &options())
    }

    /// Connects queue pairs of two contexts in this way.
    pub(crate) fn with(contexts: [Context; 2], options: &ConnectionOptions) -> Self {
        let sides = contexts.map(Side::new);
        let endpoints = [0, 1].map(|i: usize| sides[i].rc.endpoint(Psn::new(FIRST_PSN[i])).unwrap());
        for (i, side) in sides.iter().enumerate() {
            side.rc.connect(&endpoints[1 - i], Psn::new(FIRST_PSN[i]), options).unwrap();
        }
        Self { sides, rounds: 0 }
    }

    fn peer(&self, of: usize) -> Peer {
        let side = &self.sides[1 - of];
        let to = AddressHandle::to(side.context.addresses()[0]);
        Peer { memory: side.memory.address(), rkey: side.memory.rkey(), ud: to.queue_pair(side.ud.qpn(), QKEY) }
    }

    /// One message of each kind each way, every byte compared.
    pub(crate) fn round(&mut self) {
        let round = self.rounds;
        let peers = [self.peer(0), self.peer(1)];
        for i in [0, 1] {
            let side = &mut self.sides[i];
            assert!(side.memory.write(OUT, &pattern(round, i)));
            assert!(side.memory.write(DATAGRAM_OUT, &datagram(round)));
            side.done = 0;
            side.awaited.push_back(round);
            side.post_receive();
        }
        for (side, peer) in self.sides.iter().zip(&peers) {
            side.post(round, peer);
        }
        let start = Instant::now();
        while self.sides.iter().any(|side| side.done != ROUND) {
            assert!(
                start.elapsed() < PATIENCE,
                "round {round} does not end: {:?}",
                self.sides.each_ref().map(|s| s.done)
            );
            self.sides.iter_mut().for_each(Side::poll);
            thread::yield_now();
        }
        for i in [0, 1] {
            let (expected, from_peer) = (pattern(round, i), pattern(round, 1 - i));
            let bytes = |side: &Side, offset| {
                let mut bytes = vec![0; expected.len()];
                assert!(side.memory.read(offset, &mut bytes));
                bytes
            };
            assert!(bytes(&self.sides[1 - i], WRITTEN) == expected, "round {round}: a WRITE is wrong");
            assert!(bytes(&self.sides[1 - i], RECEIVED) == expected, "round {round}: a SEND is wrong");
            assert!(bytes(&self.sides[i], READ) == from_peer, "round {round}: a READ is wrong");
            let mut before = [0; 8];
            assert!(self.sides[i].memory.read(ATOMIC_RESULT, &mut before));
            assert_eq!(u64::from_ne_bytes(before), round * (round + 1) / 2, "round {round}: a FETCH_ADD is wrong");
        }
        self.rounds += 1;
    }

    /// A WRITE of one side, and how it ends.
    pub(crate) fn write_alone(&mut self) -> WcStatus {
        let peer = self.peer(0);
        let side = &mut self.sides[0];
        let out = [side.memory.sge(OUT..OUT + 8)];
        let op = SendOp::Write { va: peer.memory + WRITTEN, rkey: peer.rkey };
        let data = Data::Sges(&out);
        side.rc.post_send(&SendRequest { wr_id: 0, op, flags: SendFlags::SIGNALED, data, datagram: None }).unwrap();
        let start = Instant::now();
        let mut batch = [Completion::default(); 64];
        loop {
            let n = side.cq.poll(&mut batch).unwrap();
            // Datagrams that were under way may come meanwhile.
            if let Some(completion) = batch[..n].iter().find(|completion| completion.wr_id == 0) {
                return completion.status;
            }
            assert!(start.elapsed() < PATIENCE, "the WRITE does not end");
            thread::yield_now();
        }
    }

    /// Plays rounds while `f` runs, and at least ten; gives back what `f` did.
    pub(crate) fn play_during<T>(&mut self, f: impl FnOnce() -> T) -> T {
        /// Also when `f` panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let is_over = AtomicBool::new(false);
        let enough = self.rounds + 10;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) || self.rounds < enough {
                    self.round();
                }
            });
            let _stop = Stop(&is_over);
            f()
        })
    }

    /// Datagrams that did not come, once `is_over` says that none can be on its way any more.
    pub(crate) fn lost_datagrams(&mut self, mut is_over: impl FnMut(u64) -> bool) -> u64 {
        let start = Instant::now();
        loop {
            self.sides.iter_mut().for_each(Side::poll);
            let lost = self.sides.iter().map(|side| side.lost_datagrams + side.awaited.len() as u64).sum();
            if lost == 0 || is_over(lost) {
                return lost;
            }
            assert!(start.elapsed() < PATIENCE, "{lost} datagrams are lost, and nobody says where");
            thread::yield_now();
        }
    }
}
