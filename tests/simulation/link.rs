//! A connection between two queue pairs, RC or UC, and what is done with it.

use crate::layout::{Layout, Places};
use crate::model::{Images, Memories, Op, Receive, Request, Service, Stream, scatter};
use crate::node::{EVERYTHING, Node};
use crate::rng::Rng;
use holdfast::engine::QpError;
use holdfast::memory::Access;
use holdfast::time::{Duration, Instant};
use holdfast::transport::{
    AddressVector, AttrMask, Completion, Data, PostError, QpAttributes, QpCapabilities, QpState, QpType, RecvRequest,
    SendFlags, SendOp, SendRequest, WcStatus,
};
use holdfast::wire::{PathMtu, Psn, Qpn};
use std::collections::VecDeque;
use std::ops::Range;

/// Work requests whose number has this bit are receives.
pub const RECEIVE: u64 = 1 << 63;
/// How long a broken connection may take to notice by itself.
const PATIENCE: Duration = Duration::from_millis(40);

/// What a seed decided about a connection.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    pub kind: QpType,
    pub nodes: [usize; 2],
    pub mtu: PathMtu,
    /// The longest message.
    pub message_max: usize,
    pub depth: u32,
    pub shared_receives: [bool; 2],
    /// ACK timeout exponent.
    pub timeout: u8,
    pub rnr_timer: u8,
    pub reads: u8,
    pub inline: u32,
    /// Chance in a thousand that a request is one that must fail.
    pub doom: u32,
    /// The network doubles or reorders packets.
    pub shuffled: bool,
    /// Both ends open and close memory windows to each other.
    pub windows: bool,
}

/// A memory window of one end onto its target, through which the other end may reach it as through the region.
struct Window {
    key: u32,
    offer: Offer,
    /// The request that will open or close it.
    wr_id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Offer {
    Closed,
    Opening,
    Open,
    /// Nobody may use it any more.
    Closing,
}

/// One queue pair of a connection.
pub struct End {
    pub node: usize,
    pub qpn: Qpn,
    pub shared_receives: bool,
    send_places: Places,
    receive_places: Places,
    /// Posted, oldest first.
    pub receives: VecDeque<Receive>,
    target_iova: u64,
    rkey: u32,
    lkey: u32,
    window: Option<Window>,
    /// In SQD.
    paused: bool,
    lane: u16,
}

pub struct Link {
    pub plan: LinkPlan,
    pub ends: [End; 2],
    /// `streams[i]` goes from `ends[i]` to the other.
    pub streams: [Stream; 2],
    /// Something was done to it that makes requests fail.
    pub broken: Option<Instant>,
    next_wr: u64,
    /// The first PSNs of its present life.
    psns: Option<[Psn; 2]>,
}

impl Link {
    /// Lays out the memory of both ends. [`Link::open`] comes next, when the nodes exist.
    pub fn new(rng: &mut Rng, plan: LinkPlan, layouts: &mut [Layout]) -> Self {
        let depth = plan.depth as usize;
        let mut targets = Vec::new();
        let mut end = |rng: &mut Rng, side: usize| {
            let layout = &mut layouts[plan.nodes[side]];
            targets.push(layout.take(plan.message_max.max(64)));
            End {
                node: plan.nodes[side],
                qpn: Qpn::new(0),
                shared_receives: plan.shared_receives[side],
                send_places: Places::new(layout, depth, plan.message_max + 64),
                receive_places: Places::new(layout, depth, plan.message_max + 8),
                receives: VecDeque::new(),
                target_iova: rng.below(1 << 40) << 6,
                rkey: 0,
                lkey: 0,
                window: None,
                paused: false,
                lane: 0xc000 | rng.below(0x4000) as u16,
            }
        };
        let ends = [end(rng, 0), end(rng, 1)];
        let service = match plan.kind {
            QpType::Rc => Service::Reliable,
            _ => Service::Unreliable { shuffled: plan.shuffled },
        };
        let stream =
            |from: usize| Stream::new(plan.nodes[from], plan.nodes[1 - from], targets[1 - from].clone(), service);
        let streams = [stream(0), stream(1)];
        Self { plan, ends, streams, broken: None, next_wr: 1, psns: None }
    }

    /// Creates the queue pairs and connects them.
    pub fn open(&mut self, rng: &mut Rng, nodes: &mut [Node], now: Instant) {
        for side in 0..2 {
            let target = self.streams[1 - side].target.clone();
            let end = &mut self.ends[side];
            let keys = nodes[end.node].register(target, end.target_iova, EVERYTHING);
            (end.rkey, end.lkey) = (keys.rkey, keys.lkey);
            self.create(side, nodes);
        }
        self.connect(rng, nodes, now);
    }

    fn create(&mut self, side: usize, nodes: &mut [Node]) {
        let caps = QpCapabilities {
            max_send_wr: self.plan.depth,
            max_recv_wr: self.plan.depth,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: self.plan.inline,
        };
        let end = &mut self.ends[side];
        let node = &mut nodes[end.node];
        end.qpn = node.create_qp(self.plan.kind, caps, end.shared_receives);
        end.paused = false;
    }

    /// Brings both queue pairs from RESET to RTS.
    fn connect(&mut self, rng: &mut Rng, nodes: &mut [Node], now: Instant) {
        let psns = match self.psns {
            None => [(); 2].map(|()| match rng.permille(300) {
                true => Psn::new(0xff_fff0 + rng.below(16) as u32),
                false => Psn::new(rng.next() as u32),
            }),
            // Far from those before: packets of the earlier life are still under way.
            Some(old) => old.map(|psn| psn.plus((1 << 22) + rng.below(1 << 20) as u32)),
        };
        self.psns = Some(psns);
        let rc = self.plan.kind == QpType::Rc;
        for side in 0..2 {
            self.renew_window(side, nodes);
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            let av = AddressVector::between(nodes[end.node].address, nodes[peer.node].address, end.lane);
            let attributes = QpAttributes {
                access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
                av,
                path_mtu: self.plan.mtu,
                timeout: self.plan.timeout,
                retry_count: 7,
                rnr_retry: 7,
                rq_psn: psns[1 - side],
                sq_psn: psns[side],
                max_rd_atomic: self.plan.reads,
                max_dest_rd_atomic: self.plan.reads,
                min_rnr_timer: self.plan.rnr_timer,
                dest_qpn: peer.qpn,
                ..QpAttributes::default()
            };
            let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
            let mut rtr = AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
            let mut rts = AttrMask::STATE | AttrMask::SQ_PSN;
            if rc {
                rtr |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
                rts |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
            }
            let (qpn, engine) = (end.qpn, &mut nodes[end.node].engine);
            for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
                engine.modify_qp(now, qpn, &QpAttributes { state, ..attributes }, mask).expect("transition");
            }
        }
    }

    /// A window serves the queue pair that it was bound for: a new connection takes a new one.
    fn renew_window(&mut self, side: usize, nodes: &mut [Node]) {
        let end = &mut self.ends[side];
        let node = &mut nodes[end.node];
        if let Some(old) = end.window.take() {
            // A bind may have been carried out though its completion was flushed.
            let memory = node.engine.memory_mut();
            let gone = memory.deallocate_window(old.key).or_else(|_| memory.deallocate_window(next_key(old.key)));
            gone.expect("our window");
        }
        if self.plan.windows {
            let key = node.engine.memory_mut().allocate_window(node.pd).expect("a window");
            end.window = Some(Window { key, offer: Offer::Closed, wr_id: 0 });
        }
    }

    /// Stops a send queue (SQD), or lets it go on.
    pub fn pause(&mut self, side: usize, pause: bool, nodes: &mut [Node], now: Instant) {
        let end = &mut self.ends[side];
        if self.broken.is_some() || end.paused == pause {
            return;
        }
        let to = QpAttributes::to(if pause { QpState::Sqd } else { QpState::Rts });
        nodes[end.node].engine.modify_qp(now, end.qpn, &to, AttrMask::STATE).expect("RTS to SQD and back");
        end.paused = pause;
    }

    /// Takes a connection down without a flush (RESET), and connects it anew. What was posted may or may not have been done.
    pub fn cut_off(
        &mut self,
        rng: &mut Rng,
        nodes: &mut [Node],
        now: Instant,
        actual: &Memories,
        images: &mut Images,
    ) -> Result<(), String> {
        for end in &mut self.ends {
            let to = QpAttributes::to(QpState::Reset);
            nodes[end.node].engine.modify_qp(now, end.qpn, &to, AttrMask::STATE).expect("to RESET from anywhere");
            end.paused = false;
        }
        for side in 0..2 {
            for request in &self.streams[side].requests {
                self.ends[side].send_places.give(&request.local);
            }
            self.streams[side].settle(actual, images)?;
            let end = &mut self.ends[side];
            for receive in std::mem::take(&mut end.receives) {
                let now = actual.gather(end.node, &receive.area);
                scatter(&mut images[end.node], &receive.area, &now);
                end.receive_places.give(&receive.area);
            }
        }
        self.broken = None;
        self.connect(rng, nodes, now);
        Ok(())
    }

    /// Puts one queue pair, or both, into the error state.
    pub fn kill(&mut self, sides: &[usize], nodes: &mut [Node], now: Instant) {
        self.broken.get_or_insert(now);
        for &side in sides {
            let end = &self.ends[side];
            let to = QpAttributes::to(QpState::Err);
            nodes[end.node].engine.modify_qp(now, end.qpn, &to, AttrMask::STATE).expect("to ERR from anywhere");
        }
    }

    /// Looks after a broken connection: once everything is flushed it is connected anew.
    pub fn repair(
        &mut self,
        rng: &mut Rng,
        nodes: &mut [Node],
        now: Instant,
        actual: &Memories,
        images: &mut Images,
    ) -> Result<bool, String> {
        let Some(since) = self.broken else { return Ok(false) };
        if now.since(since) < PATIENCE {
            return Ok(false);
        }
        self.kill(&[0, 1], nodes, now);
        for side in 0..2 {
            if !nodes[self.ends[side].node].engine.completions().is_empty(nodes[self.ends[side].node].cq) {
                return Ok(false);
            }
        }
        for side in 0..2 {
            for r in self.streams[side].conclude(actual, images)? {
                self.ends[side].send_places.give(&r.local);
            }
            if let Some(receive) = self.ends[side].receives.front() {
                return Err(format!("receive {} was not flushed", receive.wr_id));
            }
            self.streams[side].settle(actual, images)?;
        }
        let anew = rng.permille(500);
        for side in 0..2 {
            let end = &self.ends[side];
            let engine = &mut nodes[end.node].engine;
            if anew {
                engine.destroy_qp(end.qpn).expect("destroy");
                self.create(side, nodes);
            } else {
                let to = QpAttributes::to(QpState::Reset);
                engine.modify_qp(now, end.qpn, &to, AttrMask::STATE).expect("to RESET from anywhere");
            }
            self.ends[side].paused = false;
        }
        self.connect(rng, nodes, now);
        self.broken = None;
        Ok(true)
    }

    /// Posts a receive on this side, if there is room.
    pub fn post_receive(&mut self, side: usize, rng: &mut Rng, nodes: &mut [Node], now: Instant) -> Result<(), String> {
        let end = &mut self.ends[side];
        if end.shared_receives {
            return Ok(());
        }
        let Some(place) = end.receive_places.take() else { return Ok(()) };
        let wr_id = self.next_wr | RECEIVE;
        self.next_wr += 1;
        let area = cut(rng, place);
        let node = &mut nodes[end.node];
        let sges = node.sges(&area);
        node.engine
            .post_recv(now, end.qpn, &RecvRequest { wr_id, sges: &sges })
            .map_err(|e| format!("a receive was refused: {e}"))?;
        end.receives.push_back(Receive { wr_id, area });
        Ok(())
    }

    /// Posts a random request on this side, if there is room.
    pub fn post_random(
        &mut self,
        side: usize,
        rng: &mut Rng,
        nodes: &mut [Node],
        now: Instant,
        images: &mut Images,
    ) -> Result<(), String> {
        if self.broken.is_none() && self.tend_window(side, rng, nodes, now, images)? {
            return Ok(());
        }
        let (op, len) = self.choose(side, rng);
        let doomed = self.plan.kind == QpType::Rc && self.broken.is_none() && rng.permille(self.plan.doom);
        let signaled = doomed || rng.permille(700);
        let Some(place) = self.ends[side].send_places.take() else { return Ok(()) };
        self.post(side, Wish { op, len, signaled, doomed, place: Some(place) }, rng, nodes, now, images)
    }

    /// Opens or closes this side's window now and then; says whether it posted something for it.
    fn tend_window(
        &mut self,
        side: usize,
        rng: &mut Rng,
        nodes: &mut [Node],
        now: Instant,
        images: &mut Images,
    ) -> Result<bool, String> {
        let idle = self.streams[1 - side].requests.is_empty();
        let Some(window) = &mut self.ends[side].window else { return Ok(false) };
        let op = match window.offer {
            Offer::Closed if rng.permille(300) => Op::Bind,
            // Nobody is using it.
            Offer::Open if idle && rng.permille(100) => Op::LocalInvalidate,
            _ => return Ok(false),
        };
        window.offer = if op == Op::Bind { Offer::Opening } else { Offer::Closing };
        window.wr_id = self.next_wr;
        let outstanding = self.streams[side].requests.len();
        self.post(side, Wish { op, len: 0, signaled: true, doomed: false, place: None }, rng, nodes, now, images)?;
        if self.streams[side].requests.len() == outstanding
            && let Some(window) = &mut self.ends[side].window
        {
            // The queue was full.
            window.offer = if op == Op::Bind { Offer::Closed } else { Offer::Open };
        }
        Ok(true)
    }

    /// Posts an empty signalled WRITE: its completion tells the fate of everything before it.
    pub fn post_marker(
        &mut self,
        side: usize,
        rng: &mut Rng,
        nodes: &mut [Node],
        now: Instant,
        images: &mut Images,
    ) -> Result<(), String> {
        let at = self.streams[side].target.start;
        // Unsignalled requests may hold all places: it takes none.
        let request = Wish { op: Op::Write(at), len: 0, signaled: true, doomed: false, place: None };
        self.post(side, request, rng, nodes, now, images)
    }

    fn choose(&self, side: usize, rng: &mut Rng) -> (Op, usize) {
        let target = &self.streams[side].target;
        let mtu = self.plan.mtu.bytes() as usize;
        let len = match rng.below(8) {
            0 => 0,
            1 => rng.below(16) as usize,
            2 => mtu * rng.between(1, 4) as usize,
            3 => mtu * rng.between(1, 4) as usize + 1,
            4 => (mtu * rng.between(1, 4) as usize).saturating_sub(1),
            5 => self.plan.message_max,
            _ => rng.below(self.plan.message_max as u64 + 1) as usize,
        }
        .min(self.plan.message_max);
        let at = target.start + rng.below((target.len() - len) as u64 + 1) as usize;
        let word = target.start + 8 * rng.below(target.len() as u64 / 8) as usize;
        let reads = self.plan.kind == QpType::Rc;
        match rng.below(if reads { 10 } else { 6 }) {
            0..3 => (Op::Send, len),
            3..6 => (Op::Write(at), len),
            6 | 7 => (Op::Read(at), len),
            8 => (Op::FetchAdd { at: word, add: rng.next() }, 8),
            _ => (Op::CompareSwap { at: word, compare: rng.below(2), swap: rng.next() }, 8),
        }
    }

    fn post(
        &mut self,
        side: usize,
        wish: Wish,
        rng: &mut Rng,
        nodes: &mut [Node],
        now: Instant,
        images: &mut Images,
    ) -> Result<(), String> {
        let mut peer = (self.ends[1 - side].rkey, self.ends[1 - side].target_iova);
        // Through the window, if one is open, and now and then closing it: behind a fence, or a READ that must be asked for again
        // would find it closed.
        let window = self.ends[1 - side].window.as_mut().filter(|w| w.offer == Offer::Open && !wish.doomed);
        let mut invalidate = None;
        if let Some(window) = window {
            if wish.op == Op::Send && wish.place.is_some() && rng.permille(300) {
                window.offer = Offer::Closing;
                invalidate = Some(window.key);
            } else if rng.permille(500) {
                peer.0 = window.key;
            }
        }
        let target = self.streams[side].target.clone();
        let end = &mut self.ends[side];
        let node = &mut nodes[end.node];
        let (start, room) = wish.place.as_ref().map_or((0, 0), |p| (p.start, p.len()));
        let len = match wish.op {
            Op::Send if wish.doomed => room,
            Op::Write(_) | Op::Read(_) if wish.doomed => wish.len.max(1),
            _ => wish.len,
        };
        let local = wish.place.map_or_else(Vec::new, |_| cut(rng, start..start + len));
        let carries = matches!(wish.op, Op::Send | Op::Write(_));
        let mut data = vec![0; if carries { len } else { 0 }];
        rng.fill(&mut data);
        let inline = carries && len <= self.plan.inline as usize && rng.permille(500);
        if carries && !inline {
            node.write(start, &data);
            images[end.node][start..start + data.len()].copy_from_slice(&data);
        }
        let imm = (carries && room > 0 && invalidate.is_none() && rng.permille(300)).then(|| rng.next() as u32);
        let mut request = Request {
            wr_id: self.next_wr,
            op: wish.op,
            imm,
            invalidate,
            data,
            local,
            signaled: wish.signaled,
            doom: &[],
        };
        self.next_wr += 1;
        let va = |at: usize| peer.1 + (at - target.start) as u64;
        let mut op = match (wish.op, &end.window) {
            (Op::Bind, Some(window)) => SendOp::BindWindow {
                rkey: next_key(window.key),
                lkey: end.lkey,
                va: end.target_iova,
                length: self.streams[1 - side].target.len() as u64,
                access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            },
            (Op::LocalInvalidate, Some(window)) => SendOp::LocalInvalidate(window.key),
            _ => send_op(&request, peer.0, va),
        };
        if wish.doomed {
            (op, request.doom) = doom(rng, op);
        }
        let sges = node.sges(&request.local);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, wish.signaled);
        flags.set(SendFlags::INLINE, inline);
        flags.set(SendFlags::FENCE, invalidate.is_some() || rng.permille(200));
        flags.set(SendFlags::SOLICITED, rng.permille(100));
        let data = if inline { Data::Inline(&request.data) } else { Data::Sges(&sges) };
        let posted =
            node.engine.post_send(now, end.qpn, &SendRequest { wr_id: request.wr_id, op, flags, data, datagram: None });
        match posted {
            Ok(()) => {
                if wish.doomed {
                    self.broken.get_or_insert(now);
                }
                self.streams[side].post(request);
                Ok(())
            }
            // Requests whose success nobody was told of may be in the queue still.
            Err(QpError::Refused(PostError::QueueFull { .. }))
                if self.streams[side].requests.len() >= self.plan.depth as usize =>
            {
                self.ends[side].send_places.give(&request.local);
                if let Some(window) = self.ends[1 - side].window.as_mut().filter(|_| invalidate.is_some()) {
                    window.offer = Offer::Open;
                }
                Ok(())
            }
            Err(e) => {
                let outstanding = self.streams[side].requests.len();
                Err(format!("a request was refused though only {outstanding} are outstanding: {e}"))
            }
        }
    }

    /// Receives that wait on an unreliable connection may hold the beginning of a message that broke off.
    pub fn forget_unreliable_receives(&self, actual: &Memories, images: &mut Images) {
        for end in self.ends.iter().filter(|_| self.plan.kind == QpType::Uc) {
            for receive in &end.receives {
                let now = actual.gather(end.node, &receive.area);
                scatter(&mut images[end.node], &receive.area, &now);
            }
        }
    }

    /// A completion of one of the two queue pairs.
    pub fn complete(
        &mut self,
        side: usize,
        wc: &Completion,
        shared: &mut dyn FnMut(u64) -> Option<Receive>,
        actual: &Memories,
        images: &mut Images,
    ) -> Result<(), String> {
        let excused = self.broken.is_some();
        if wc.wr_id & RECEIVE == 0 {
            let stream = &mut self.streams[side];
            let before: Vec<Request> = stream.requests.iter().cloned().collect();
            stream.complete(wc, excused, actual, images)?;
            let done = before.len() - stream.requests.len();
            for r in &before[..done] {
                self.ends[side].send_places.give(&r.local);
            }
            let window = self.ends[side].window.as_mut();
            if let Some(window) = window.filter(|w| w.wr_id == wc.wr_id && wc.status == WcStatus::Success) {
                if window.offer == Offer::Opening {
                    window.key = next_key(window.key);
                }
                window.offer = if window.offer == Offer::Opening { Offer::Open } else { Offer::Closed };
            }
            return Ok(());
        }
        if let Some(window) = self.ends[side].window.as_mut().filter(|w| wc.invalidated == Some(w.key)) {
            window.offer = Offer::Closed;
        }
        let end = &mut self.ends[side];
        let receive = if end.shared_receives {
            shared(wc.wr_id).ok_or_else(|| format!("no such shared receive: {wc:?}"))?
        } else {
            end.receives
                .pop_front()
                .filter(|r| r.wr_id == wc.wr_id)
                .ok_or_else(|| format!("receives out of order: {wc:?}"))?
        };
        if wc.status == WcStatus::Success {
            self.streams[1 - side].receive(wc, &receive, actual, images)?;
        } else if !(excused && matches!(wc.status, WcStatus::WrFlush | WcStatus::LocalLength)) {
            return Err(format!("a receive failed on a sound connection: {wc:?}"));
        }
        // Where a message was cut off, or replaced by a later one, its bytes may stand behind the good ones.
        let rest = actual.gather(end.node, &receive.area);
        if wc.status != WcStatus::Success || !self.streams[1 - side].is_reliable() {
            scatter(&mut images[end.node], &receive.area, &rest);
        }
        if !end.shared_receives {
            end.receive_places.give(&receive.area);
        }
        Ok(())
    }
}

/// The key that a window gets with its next binding, as `ibv_inc_rkey(3)`.
const fn next_key(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

/// A request to be posted.
struct Wish {
    op: Op,
    len: usize,
    signaled: bool,
    doomed: bool,
    /// Where its data are.
    place: Option<Range<usize>>,
}

/// Cuts a buffer into one to four pieces, some of them empty. The first begins where the buffer begins.
pub fn cut(rng: &mut Rng, buffer: Range<usize>) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> =
        (0..rng.below(4)).map(|_| buffer.start + rng.below(buffer.len() as u64 + 1) as usize).collect();
    cuts.push(buffer.end);
    cuts.sort_unstable();
    let mut start = buffer.start;
    cuts.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect()
}

fn send_op(request: &Request, rkey: u32, va: impl Fn(usize) -> u64) -> SendOp {
    match (request.op, request.imm) {
        (Op::Send, Some(imm)) => SendOp::SendImm(imm),
        (Op::Send, None) => request.invalidate.map_or(SendOp::Send, SendOp::SendInvalidate),
        (Op::Write(at), Some(imm)) => SendOp::WriteImm { va: va(at), rkey, imm },
        (Op::Write(at), None) => SendOp::Write { va: va(at), rkey },
        (Op::Read(at), _) => SendOp::Read { va: va(at), rkey },
        (Op::CompareSwap { at, compare, swap }, _) => SendOp::CompareSwap { va: va(at), rkey, compare, swap },
        (Op::FetchAdd { at, add }, _) => SendOp::FetchAdd { va: va(at), rkey, add },
        (Op::Bind | Op::LocalInvalidate, _) => unreachable!("these are of the requester's own window"),
    }
}

/// Makes a request one that the peer must refuse, and says how.
fn doom(rng: &mut Rng, op: SendOp) -> (SendOp, &'static [WcStatus]) {
    const ACCESS: &[WcStatus] = &[WcStatus::RemoteAccess];
    const INVALID: &[WcStatus] = &[WcStatus::RemoteInvalidRequest];
    const EITHER: &[WcStatus] = &[WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccess];
    /// Beyond every region.
    const FAR: u64 = 1 << 50;
    let (wrong_key, wrong_va) = if rng.permille(500) { (1, 0) } else { (0, FAR) };
    let doomed = match op {
        SendOp::FetchAdd { va, rkey, add } => return (SendOp::FetchAdd { va: va + 4, rkey, add }, INVALID),
        // Longer than any receive: see `post`.
        SendOp::Send | SendOp::SendImm(_) if wrong_key == 0 => return (op, INVALID),
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => {
            return (SendOp::SendInvalidate(rng.next() as u32), EITHER);
        }
        SendOp::Write { va, rkey } => SendOp::Write { va: va + wrong_va, rkey: rkey ^ wrong_key },
        SendOp::WriteImm { va, rkey, imm } => SendOp::WriteImm { va: va + wrong_va, rkey: rkey ^ wrong_key, imm },
        SendOp::Read { va, rkey } => SendOp::Read { va: va + wrong_va, rkey: rkey ^ wrong_key },
        SendOp::CompareSwap { va, rkey, compare, swap } => {
            SendOp::CompareSwap { va: va + wrong_va, rkey: rkey ^ wrong_key, compare, swap }
        }
        SendOp::LocalInvalidate(_) | SendOp::BindWindow { .. } => op,
    };
    (doomed, ACCESS)
}
