//! The life of a connection: made, stopped and let go on, broken, cut off, connected anew.

use super::{Around, Link, Offer, Window, next_key};
use crate::model::Memories;
use crate::node::Node;
use holdfast::memory::Access;
use holdfast::time::{Duration, Instant};
use holdfast::transport::{AddressVector, AttrMask, QpAttributes, QpCapabilities, QpState, QpType};
use holdfast::wire::Psn;

/// How long a broken connection may take to notice by itself.
const PATIENCE: Duration = Duration::from_millis(40);

impl Link {
    pub(super) fn create(&mut self, side: usize, nodes: &mut [Node]) {
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
    pub(super) fn connect(&mut self, around: &mut Around<'_>) {
        let Around { rng, nodes, now, .. } = around;
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
                retry_count: self.plan.retries,
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
                engine.modify_qp(*now, qpn, &QpAttributes { state, ..attributes }, mask).expect("transition");
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
        end.turn(if pause { QpState::Sqd } else { QpState::Rts }, nodes, now);
        end.paused = pause;
    }

    /// Takes a connection down without a flush (RESET), and connects it anew. What was posted may or may not have been done.
    pub fn cut_off(&mut self, around: &mut Around<'_>, actual: &Memories) -> Result<(), String> {
        for end in &mut self.ends {
            end.turn(QpState::Reset, around.nodes, around.now);
            end.paused = false;
        }
        for side in 0..2 {
            for request in &self.streams[side].requests {
                self.ends[side].send_places.give(&request.local);
            }
            self.streams[side].settle(actual, around.images)?;
            let end = &mut self.ends[side];
            for receive in std::mem::take(&mut end.receives) {
                end.accept(&receive, actual, around.images);
                end.receive_places.give(&receive.area);
            }
        }
        self.broken = None;
        self.connect(around);
        Ok(())
    }

    /// Puts one queue pair, or both, into the error state.
    pub fn kill(&mut self, sides: &[usize], nodes: &mut [Node], now: Instant) {
        self.broken.get_or_insert(now);
        for &side in sides {
            self.ends[side].turn(QpState::Err, nodes, now);
        }
    }

    /// Looks after a broken connection: once everything is flushed it is connected anew.
    pub fn repair(&mut self, around: &mut Around<'_>, actual: &Memories) -> Result<bool, String> {
        let Some(since) = self.broken else { return Ok(false) };
        if around.now.since(since) < PATIENCE {
            return Ok(false);
        }
        self.kill(&[0, 1], around.nodes, around.now);
        if self.ends.iter().map(|end| &around.nodes[end.node]).any(|n| !n.engine.completions().is_empty(n.cq)) {
            return Ok(false);
        }
        for side in 0..2 {
            for r in self.streams[side].conclude(actual, around.images)? {
                self.ends[side].send_places.give(&r.local);
            }
            if let Some(receive) = self.ends[side].receives.front() {
                return Err(format!("receive {} was not flushed", receive.wr_id));
            }
            self.streams[side].settle(actual, around.images)?;
        }
        let anew = around.rng.permille(500);
        for side in 0..2 {
            let end = &self.ends[side];
            if anew {
                around.nodes[end.node].engine.destroy_qp(end.qpn).expect("destroy");
                self.create(side, around.nodes);
            } else {
                end.turn(QpState::Reset, around.nodes, around.now);
            }
            self.ends[side].paused = false;
        }
        self.connect(around);
        self.broken = None;
        Ok(true)
    }
}
