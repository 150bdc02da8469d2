//! A connection between two queue pairs, RC or UC, and what is done with it.

mod life;
mod requests;

pub use requests::cut;

use crate::layout::{Layout, Places};
use crate::model::{Images, Memories, Receive, Request, Service, Stream, scatter};
use crate::node::{EVERYTHING, Node};
use crate::rng::Rng;
use holdfast::time::Instant;
use holdfast::transport::{AttrMask, Completion, QpAttributes, QpState, QpType, WcStatus};
use holdfast::wire::{PathMtu, Psn, Qpn};
use std::collections::VecDeque;

/// Work requests whose number has this bit are receives.
pub const RECEIVE: u64 = 1 << 63;

/// The world around a connection.
pub struct Around<'a> {
    pub rng: &'a mut Rng,
    pub nodes: &'a mut [Node],
    pub now: Instant,
    /// What memory must look like.
    pub images: &'a mut Images,
}

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
    /// Retries without progress.
    pub retries: u8,
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

impl End {
    /// Modifies the queue pair to a state that it can go to from where it is.
    fn turn(&self, state: QpState, nodes: &mut [Node], now: Instant) {
        let engine = &mut nodes[self.node].engine;
        engine.modify_qp(now, self.qpn, &QpAttributes::to(state), AttrMask::STATE).expect("a transition");
    }

    /// Takes what stands in a receive as it is: a message may have been cut off in it.
    fn accept(&self, receive: &Receive, actual: &Memories, images: &mut Images) {
        scatter(&mut images[self.node], &receive.area, &actual.gather(self.node, &receive.area));
    }
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
    pub fn open(&mut self, around: &mut Around<'_>) {
        for side in 0..2 {
            let target = self.streams[1 - side].target.clone();
            let end = &mut self.ends[side];
            let keys = around.nodes[end.node].register(target, end.target_iova, EVERYTHING);
            (end.rkey, end.lkey) = (keys.rkey, keys.lkey);
            self.create(side, around.nodes);
        }
        self.connect(around);
    }

    /// Receives that wait on an unreliable connection may hold the beginning of a message that broke off.
    pub fn forget_unreliable_receives(&self, actual: &Memories, images: &mut Images) {
        for end in self.ends.iter().filter(|_| self.plan.kind == QpType::Uc) {
            for receive in &end.receives {
                end.accept(receive, actual, images);
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
        if wc.status != WcStatus::Success || !self.streams[1 - side].is_reliable() {
            end.accept(&receive, actual, images);
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
