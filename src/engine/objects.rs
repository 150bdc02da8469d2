//! Queue pairs, completion queues and shared receive queues: made, looked at, removed; and the end of a client.

use super::paths::{NEAR, Needs};
use super::{Engine, Entry, ObjectError, QpError};
use crate::memory::PdId;
use crate::time::Instant;
use crate::transport::{
    AttrMask, CqId, ModifyError, Qp, QpAttributes, QpCounters, QpInit, QpState, QpType, SrqId, Wait, Waiting,
};
use crate::wire::Qpn;

/// Queue pairs of a dead client that go in one call.
const RELEASED_AT_ONCE: usize = 1024;

/// Whether all that a client had is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Nothing is left.
    Done,
    /// There is more: call again, after others had their turn.
    More,
}

/// Whose the completion and shared receive queues are, and how many queue pairs use them.
#[derive(Debug, Default)]
pub(super) struct Owners {
    cqs: Vec<Option<Held<()>>>,
    srqs: Vec<Option<Held<PdId>>>,
}

#[derive(Clone, Copy, Debug)]
struct Held<T> {
    owner: u64,
    users: u32,
    on: T,
}

fn hold<T: Clone>(table: &mut Vec<Option<Held<T>>>, id: u32, owner: u64, on: T) {
    let at = id as usize;
    if table.len() <= at {
        table.resize(at + 1, None);
    }
    if let Some(place) = table.get_mut(at) {
        *place = Some(Held { owner, users: 0, on });
    }
}

fn users<T>(table: &mut [Option<Held<T>>], id: u32) -> Option<&mut u32> {
    table.get_mut(id as usize)?.as_mut().map(|held| &mut held.users)
}

fn owned<T>(table: &[Option<Held<T>>], owner: u64) -> Vec<u32> {
    let is_owned = |(_, held): &(usize, &Option<Held<T>>)| held.as_ref().is_some_and(|h| h.owner == owner);
    table.iter().enumerate().filter(is_owned).map(|(id, _)| id as u32).collect()
}

// Completion queues and shared receive queues.
impl Engine {
    /// Makes a completion queue of `entries`. `owner` is the caller's number for a client.
    pub fn create_cq(&mut self, owner: u64, entries: u32) -> Result<CqId, ObjectError> {
        let id = self.shared.completions.create(entries)?;
        hold(&mut self.owners.cqs, id.0, owner, ());
        Ok(id)
    }

    /// Changes the size of a completion queue and keeps what waits in it.
    pub fn resize_cq(&mut self, id: CqId, entries: u32) -> Result<(), ObjectError> {
        Ok(self.shared.completions.resize(id, entries)?)
    }

    /// Removes a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, id: CqId) -> Result<(), ObjectError> {
        if let Some(users @ 1..) = users(&mut self.owners.cqs, id.0).copied() {
            return Err(ObjectError::CqBusy { id, users });
        }
        self.shared.completions.destroy(id)?;
        if let Some(place) = self.owners.cqs.get_mut(id.0 as usize) {
            *place = None;
        }
        Ok(())
    }

    /// Makes a shared receive queue of `max_wr` requests with up to `max_sge` entries each.
    pub fn create_srq(&mut self, owner: u64, pd: PdId, max_wr: u32, max_sge: u32) -> Result<SrqId, ObjectError> {
        self.shared.memory.retain_pd(pd)?;
        let id = self.shared.srqs.create(pd, max_wr, max_sge).inspect_err(|_| self.shared.memory.release_pd(pd))?;
        hold(&mut self.owners.srqs, id.0, owner, pd);
        Ok(id)
    }

    /// Arms a shared receive queue's limit event; 0 disarms it.
    pub fn set_srq_limit(&mut self, id: SrqId, limit: u32) -> Result<(), ObjectError> {
        Ok(self.shared.srqs.set_limit(id, limit)?)
    }

    /// Removes a shared receive queue that no queue pair draws from.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), ObjectError> {
        if let Some(users @ 1..) = users(&mut self.owners.srqs, id.0).copied() {
            return Err(ObjectError::SrqBusy { id, users });
        }
        self.shared.srqs.destroy(id)?;
        if let Some(held) = self.owners.srqs.get_mut(id.0 as usize).and_then(Option::take) {
            self.shared.memory.release_pd(held.on);
        }
        Ok(())
    }
}

// Queue pairs.
impl Engine {
    /// Makes a queue pair in RESET. One of kind [`QpType::Gsi`] is QP 1, and there is one only.
    pub fn create_qp(&mut self, owner: u64, init: &QpInit) -> Result<Qpn, ObjectError> {
        for cq in [init.send_cq, init.recv_cq] {
            if !self.shared.completions.contains(cq) {
                return Err(crate::transport::CqError::Unknown(cq).into());
            }
        }
        if let Some(srq) = init.srq.filter(|srq| !self.shared.srqs.contains(*srq)) {
            return Err(crate::transport::SrqError::Unknown(srq).into());
        }
        let gsi = init.kind == QpType::Gsi;
        if gsi && !self.worker.owns(Qpn::GSI) {
            return Err(ObjectError::GsiElsewhere);
        }
        if gsi && self.gsi.is_some() {
            return Err(ObjectError::GsiTaken);
        }
        init.caps.check()?;
        self.shared.memory.retain_pd(init.pd)?;
        let qpn = self.insert_qp(owner, init, gsi).inspect_err(|_| self.shared.memory.release_pd(init.pd))?;
        self.count_uses(init, 1);
        Ok(qpn)
    }

    fn insert_qp(&mut self, owner: u64, init: &QpInit, gsi: bool) -> Result<Qpn, ObjectError> {
        let slot = self.qps.vacant_key();
        let key = slot as u32;
        let qpn = if gsi { Qpn::GSI } else { self.numbers.allocate(key).ok_or(ObjectError::NoNumber)? };
        let qp = Qp::new(qpn, init).inspect_err(|_| self.numbers.free(qpn))?;
        if gsi {
            self.gsi = Some(key);
        }
        let seat = self.paths.seat(NEAR, key).ok_or(ObjectError::NoNumber)?;
        self.qps.insert(Entry { owner, seat, qp: Box::new(qp), congestion: None, counted: QpCounters::default() });
        Ok(qpn)
    }

    fn count_uses(&mut self, init: &QpInit, by: i32) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(users) = users(&mut self.owners.cqs, cq.0) {
                *users = users.saturating_add_signed(by);
            }
        }
        if let Some(users) = init.srq.and_then(|srq| users(&mut self.owners.srqs, srq.0)) {
            *users = users.saturating_add_signed(by);
        }
    }

    /// Sets attributes of a queue pair, as `ibv_modify_qp`.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attributes: &QpAttributes,
        mask: AttrMask,
    ) -> Result<(), QpError<ModifyError>> {
        if mask.contains(AttrMask::STATE)
            && matches!(attributes.state, QpState::Reset | QpState::Err)
            && let Some(slot) = self.slot(qpn)
        {
            self.keep_last_ack(slot);
        }
        self.with_qp(now, qpn, |qp, cx| qp.modify(cx, attributes, mask))?;
        if let Some(slot) = self.slot(qpn) {
            self.ride(now, slot);
            self.called(slot);
        }
        Ok(())
    }

    /// Removes a queue pair with all that is in it. Its completions stay in their queues. What it has completed is acknowledged; else
    /// peers are told nothing: what they send from now on is dropped as for an unknown queue pair, as a NIC does.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ObjectError> {
        let slot = self.slot(qpn).ok_or(ObjectError::UnknownQp(qpn))?;
        self.remove_slot(slot);
        Ok(())
    }

    fn remove_slot(&mut self, slot: u32) {
        self.keep_last_ack(slot);
        self.recent.take_if(|recent| *recent == slot);
        let Some(mut entry) = self.qps.try_remove(slot as usize) else { return };
        self.totals.retire(slot, &mut entry);
        let Entry { mut qp, seat, .. } = entry;
        let now = self.paths.time(seat.path, self.now);
        // Gives back what it holds of a shared receive queue. RESET can be reached from anywhere.
        let reset = qp.modify(&mut self.shared.context(now), &QpAttributes::to(QpState::Reset), AttrMask::STATE);
        debug_assert!(reset.is_ok());
        self.paths.unseat(self.now, seat);
        if self.gsi == Some(slot) {
            self.gsi = None;
        } else {
            self.numbers.free(qp.qpn());
        }
        self.count_uses(qp.init(), -1);
        self.shared.memory.release_pd(qp.init().pd);
    }

    /// A queue pair.
    pub fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps.get(self.slot(qpn)? as usize).map(|e| &*e.qp)
    }

    /// Whose a queue pair is.
    pub fn owner(&self, qpn: Qpn) -> Option<u64> {
        self.qps.get(self.slot(qpn)? as usize).map(|e| e.owner)
    }

    /// How many queue pairs there are.
    pub fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// The queue pairs with numbers of at least `from`, by number.
    pub fn qps_from(&self, from: Qpn) -> impl Iterator<Item = &Qp> {
        let gsi = self.gsi.filter(|_| from <= Qpn::GSI);
        gsi.into_iter()
            .chain(self.numbers.slots_from(from))
            .filter_map(|slot| self.qps.get(slot as usize).map(|e| &*e.qp))
    }

    /// What a queue pair waits for before it sends more.
    pub fn waits_for(&mut self, now: Instant, qpn: Qpn) -> Option<Waiting> {
        let slot = self.slot(qpn)?;
        let Entry { qp, seat, .. } = self.qps.get(slot as usize)?;
        let path = self.paths.get(seat.path)?;
        let Some(waiting) = qp.waits_for(&self.shared.context(path.clock.at(now))) else {
            return self.paced(now, slot);
        };
        if path.life.is_open() || waiting.reason == Wait::Application {
            return Some(waiting);
        }
        let for_ = now.since(path.life.since());
        let ends_in = path.life.hold_max().saturating_sub(for_);
        Some(Waiting { reason: Wait::Dark, waited: Some(for_), ends_in: Some(ends_in) })
    }

    #[inline]
    pub(super) fn slot(&self, qpn: Qpn) -> Option<u32> {
        if qpn == Qpn::GSI { self.gsi } else { self.numbers.slot(qpn) }
    }
}

// The end of a client.
impl Engine {
    /// Removes all that an owner has: queue pairs, then shared receive queues, completion queues, windows, regions and domains. A
    /// client with very many queue pairs takes several calls, so that the others do not wait.
    ///
    /// Peers are told nothing. A NIC whose process dies destroys its queue pairs, and answers nothing to what comes for them later:
    /// requests of peers run into their retry limit (`IBV_WC_RETRY_EXC_ERR`). rxe does the same (`rxe_qp_do_cleanup`, then
    /// `rxe_rcv` finds no QP).
    pub fn release(&mut self, now: Instant, owner: u64) -> Release {
        self.now = self.now.max(now);
        let slots: Vec<u32> = self
            .qps
            .iter()
            .filter(|(_, entry)| entry.owner == owner)
            .map(|(slot, _)| slot as u32)
            .take(RELEASED_AT_ONCE + 1)
            .collect();
        for &slot in slots.iter().take(RELEASED_AT_ONCE) {
            self.remove_slot(slot);
        }
        if slots.len() > RELEASED_AT_ONCE {
            return Release::More;
        }
        // Nothing of another owner can hold these: the client side hands out numbers only to their owner.
        for id in owned(&self.owners.srqs, owner) {
            let gone = self.destroy_srq(SrqId(id));
            debug_assert!(gone.is_ok());
        }
        for id in owned(&self.owners.cqs, owner) {
            let gone = self.destroy_cq(CqId(id));
            debug_assert!(gone.is_ok());
        }
        let gone = self.shared.memory.release_owner(owner);
        debug_assert!(gone.is_ok());
        Release::Done
    }

    /// Puts the queue pairs of a protection domain into the error state: memory that they promised to have written is not reachable.
    pub(super) fn fail_pd(&mut self, pd: PdId) {
        let now = self.now;
        for (_, entry) in self.qps.iter_mut().filter(|(_, e)| e.qp.init().pd == pd) {
            let path_now = self.paths.time(entry.seat.path, now);
            let failed =
                entry.qp.modify(&mut self.shared.context(path_now), &QpAttributes::to(QpState::Err), AttrMask::STATE);
            debug_assert!(failed.is_ok());
            self.shared.events.push_back(crate::transport::Event::QpFatal(entry.qp.qpn()));
            self.paths.note(now, entry.seat, Needs::of(&entry.qp, false));
        }
    }
}
