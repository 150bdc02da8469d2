//! What is posted on a connection: random requests, some of which must fail, and the windows that they go through.

use super::{Around, Link, Offer, RECEIVE, next_key};
use crate::model::{Op, Receive, Request};
use crate::rng::Rng;
use holdfast::engine::QpError;
use holdfast::memory::Access;
use holdfast::transport::{Data, PostError, QpType, RecvRequest, SendFlags, SendOp, SendRequest, WcStatus};
use std::ops::Range;

impl Link {
    /// Posts a receive on this side, if there is room.
    pub fn post_receive(&mut self, side: usize, around: &mut Around<'_>) -> Result<(), String> {
        let end = &mut self.ends[side];
        if end.shared_receives {
            return Ok(());
        }
        let Some(place) = end.receive_places.take() else { return Ok(()) };
        let wr_id = self.next_wr | RECEIVE;
        self.next_wr += 1;
        let area = cut(around.rng, place);
        let node = &mut around.nodes[end.node];
        let sges = node.sges(&area);
        node.engine
            .post_recv(around.now, end.qpn, &RecvRequest { wr_id, sges: &sges })
            .map_err(|e| format!("a receive was refused: {e}"))?;
        end.receives.push_back(Receive { wr_id, area });
        Ok(())
    }

    /// Posts a random request on this side, if there is room.
    pub fn post_random(&mut self, side: usize, around: &mut Around<'_>) -> Result<(), String> {
        if self.broken.is_none() && self.tend_window(side, around)? {
            return Ok(());
        }
        let (op, len) = self.choose(side, around.rng);
        let doomed = self.plan.kind == QpType::Rc && self.broken.is_none() && around.rng.permille(self.plan.doom);
        let signaled = doomed || around.rng.permille(700);
        let Some(place) = self.ends[side].send_places.take() else { return Ok(()) };
        self.post(side, Wish { op, len, signaled, doomed, place: Some(place) }, around)
    }

    /// Opens or closes this side's window now and then; says whether it posted something for it.
    fn tend_window(&mut self, side: usize, around: &mut Around<'_>) -> Result<bool, String> {
        let idle = self.streams[1 - side].requests.is_empty();
        let Some(window) = &mut self.ends[side].window else { return Ok(false) };
        let op = match window.offer {
            Offer::Closed if around.rng.permille(300) => Op::Bind,
            // Nobody is using it.
            Offer::Open if idle && around.rng.permille(100) => Op::LocalInvalidate,
            _ => return Ok(false),
        };
        window.offer = if op == Op::Bind { Offer::Opening } else { Offer::Closing };
        window.wr_id = self.next_wr;
        let outstanding = self.streams[side].requests.len();
        self.post(side, Wish { op, len: 0, signaled: true, doomed: false, place: None }, around)?;
        if self.streams[side].requests.len() == outstanding
            && let Some(window) = &mut self.ends[side].window
        {
            // The queue was full.
            window.offer = if op == Op::Bind { Offer::Closed } else { Offer::Open };
        }
        Ok(true)
    }

    /// Posts an empty signalled WRITE: its completion tells the fate of everything before it.
    pub fn post_marker(&mut self, side: usize, around: &mut Around<'_>) -> Result<(), String> {
        let at = self.streams[side].target.start;
        // Unsignalled requests may hold all places: it takes none.
        let request = Wish { op: Op::Write(at), len: 0, signaled: true, doomed: false, place: None };
        self.post(side, request, around)
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

    fn post(&mut self, side: usize, wish: Wish, around: &mut Around<'_>) -> Result<(), String> {
        let Around { rng, nodes, now, images } = around;
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
        let posted = node.engine.post_send(
            *now,
            end.qpn,
            &SendRequest { wr_id: request.wr_id, op, flags, data, datagram: None },
        );
        match posted {
            Ok(()) => {
                if wish.doomed {
                    self.broken.get_or_insert(*now);
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
