//! Hold and thaw: what darkness and light do to queue pairs.
//!
//! In the dark a path's clock stands and nobody on it has a turn; whoever posts or is posted to waits in the path's queues. At the
//! light each queue pair that waits for an answer sends one packet that asks for it, and from what the answer says only what was lost
//! goes again. They do so a few at a time, faster as answers come, so that a thousand of them make no incast.

use super::paths::{NEAR, Needs, Path, Seat, soonest_after};
use super::{Engine, Entry};
use crate::path::{
    Action, Circuit, DarkCause, HoldPolicy, IpPrefix, PathChange, PathEvent, PathEventError, PathRecord, PathState,
};
use crate::time::{Duration, Instant};
use core::net::IpAddr;

/// Queue pairs that go on at the light, at each answer after it, and when no answer comes.
const THAW_FIRST: u32 = 16;
const THAW_MORE: u32 = 2;
const THAW_EVERY: Duration = Duration::from_micros(100);

/// Losses without progress that cost a queue pair no retry where paths are held: a flicker that is too short to be found out costs a
/// queue pair no more than one that is.
pub(super) const fn pardons(hold: &HoldPolicy) -> u8 {
    if hold.enabled { 3 } else { 0 }
}

/// A path, for those who look at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathStatus {
    /// The peer's address.
    pub peer: IpAddr,
    /// Where in its life it is.
    pub state: PathState,
    /// Who says that it is dark.
    pub cause: Option<DarkCause>,
    /// For how long it has been in its state.
    pub for_: Duration,
    /// Queue pairs that ride it.
    pub queue_pairs: u32,
    /// In the dark for longer, what waits fails.
    pub hold_max: Duration,
    /// What it has been through.
    pub record: PathRecord,
    /// What it rides on, if that is known.
    pub circuit: Option<Circuit>,
    /// How often that was another.
    pub moves: u64,
    /// Whether the peer is a holdfast too, as far as is known.
    pub is_kin: bool,
}

/// A path went dark or has light again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathNotice {
    /// It went dark.
    Dark {
        /// The peer's address.
        peer: IpAddr,
        /// Who says so.
        cause: DarkCause,
    },
    /// There is light.
    Light {
        /// The peer's address.
        peer: IpAddr,
        /// How long it was dark.
        dark: Duration,
    },
    /// What waited was failed.
    Lost {
        /// The peer's address.
        peer: IpAddr,
        /// Queue pairs that failed.
        queue_pairs: u32,
    },
}

// What is said of paths.
impl Engine {
    /// A controller's announcement: says how many paths it is for now. Who comes later is told too.
    pub fn handle_path_event(&mut self, now: Instant, event: &PathEvent) -> Result<u32, PathEventError> {
        self.now = self.now.max(now);
        self.paths.ledger.handle_event(event)?;
        if let PathChange::Circuit(_) = event.change {
            let meant = self.paths_to(Some(event.peers));
            meant.iter().for_each(|path| self.ride_circuit(now, *path));
            return Ok(meant.len() as u32);
        }
        Ok(self.with_paths(now, Some(event.peers), |path| path.life.handle_change(now, event.change)))
    }

    /// The carrier came or went: without one all paths are dark.
    pub(super) fn handle_carrier(&mut self, now: Instant, is_up: bool) {
        self.with_paths(now, None, |path| path.life.handle_carrier(now, is_up));
    }

    /// Changes how paths are held. What a controller said of a path stands.
    pub fn set_hold_policy(&mut self, now: Instant, policy: HoldPolicy) {
        self.now = self.now.max(now);
        self.shared.limits.pardons = pardons(&policy);
        self.paths.set_policy(policy);
        self.with_paths(now, None, |path| path.life.set_policy(now, policy));
    }

    /// All paths that queue pairs ride, by number.
    pub fn paths(&self, now: Instant) -> impl Iterator<Item = (u32, PathStatus)> {
        self.paths.far().filter_map(move |(id, path)| Some((id, status(now, path)?)))
    }

    /// How many paths are dark.
    pub fn dark_paths(&self) -> usize {
        self.paths.far().filter(|(_, path)| !path.life.is_open()).count()
    }

    /// The path of a queue pair; `None` if it rides none that can be dark.
    pub fn path_of(&self, now: Instant, qpn: crate::wire::Qpn) -> Option<PathStatus> {
        let entry = self.qps.get(self.slot(qpn)? as usize)?;
        status(now, self.paths.get(entry.seat.path)?)
    }

    /// What happened to paths since, oldest first.
    pub fn poll_path_notice(&mut self) -> Option<PathNotice> {
        self.path_notices.pop_front()
    }
}

fn status(now: Instant, path: &Path) -> Option<PathStatus> {
    Some(PathStatus {
        peer: path.peer?,
        state: path.life.state(),
        cause: path.life.cause(),
        for_: now.since(path.life.since()),
        queue_pairs: path.members.len() as u32,
        hold_max: path.life.hold_max(),
        record: *path.life.record(),
        circuit: path.circuit,
        moves: path.moves,
        is_kin: path.life.is_kin(),
    })
}

// Which path a queue pair rides.
impl Engine {
    /// Puts a queue pair whose attributes may have changed on the path to its peer.
    pub(super) fn ride(&mut self, now: Instant, slot: u32) {
        let Some(Entry { qp, seat, .. }) = self.qps.get(slot as usize) else { return };
        let (old, to) = (*seat, qp.attributes().av.destination.to_canonical());
        let is_far =
            !qp.init().kind.is_datagram() && qp.state().receives() && !to.is_unspecified() && !self.is_ours(to);
        let (path, is_new) = if is_far { self.paths.open(now, to) } else { (NEAR, false) };
        if is_new {
            self.tell_of_past(now, path, to);
        }
        if path == old.path {
            return;
        }
        let Some(new) = self.paths.seat(path, slot) else { return };
        let (was, is) = (self.paths.time(old.path, now), self.paths.time(path, now));
        let carried = self.paths.get(path).and_then(|on| on.circuit?.mtu);
        self.paths.unseat(now, old);
        if let Some(entry) = self.qps.get_mut(slot as usize) {
            entry.qp.handle_clock_change(was, is);
            entry.congestion = None;
            entry.qp.set_carried_mtu(carried);
            entry.seat = new;
        }
    }

    /// A path begins as what was said before demands.
    fn tell_of_past(&mut self, now: Instant, path: u32, peer: IpAddr) {
        let past: Vec<PathChange> = self.paths.ledger.changes_for(peer).collect();
        let is_up = self.link_up;
        self.with_path(now, path, |path| {
            for change in past {
                path.life.handle_change(now, change);
            }
            if !is_up {
                path.life.handle_carrier(now, false);
            }
        });
        self.ride_circuit(now, path);
    }
}

// What follows from it.
impl Engine {
    /// Tells the paths to some peers, or to all, something, and does what follows; how many they are.
    fn with_paths(&mut self, now: Instant, to: Option<IpPrefix>, tell: impl Fn(&mut Path)) -> u32 {
        let meant = self.paths_to(to);
        for path in &meant {
            self.with_path(now, *path, &tell);
        }
        meant.len() as u32
    }

    /// The paths to some peers, or to all.
    fn paths_to(&self, to: Option<IpPrefix>) -> Vec<u32> {
        let is_meant = |peer: Option<IpAddr>| peer.is_some_and(|peer| to.is_none_or(|to| to.contains(peer)));
        self.paths.far().filter(|(_, path)| is_meant(path.peer)).map(|(id, _)| id).collect()
    }

    /// Tells a path something, and does what follows.
    pub(super) fn with_path(&mut self, now: Instant, path: u32, tell: impl FnOnce(&mut Path)) {
        let Some(on) = self.paths.get_mut(path) else { return };
        tell(on);
        self.follow(now, path);
    }

    /// A packet of the peer came.
    #[inline]
    pub(super) fn hear(&mut self, now: Instant, path: u32, is_answer: bool) {
        let Some(on) = self.paths.get_mut(path) else { return };
        on.life.handle_packet(now, is_answer);
        if !on.life.is_calm() {
            self.follow(now, path);
            if is_answer {
                self.thaw_more(now, path, THAW_MORE);
            }
        }
    }

    /// Does what a path wants done.
    fn follow(&mut self, now: Instant, path: u32) {
        while let Some(action) = self.paths.get_mut(path).and_then(|on| on.life.poll_action()) {
            match action {
                Action::Freeze(cause) => self.freeze(now, path, cause),
                Action::Question { is_first } => self.ask_host(now, path, is_first),
                Action::Probe => self.probe(now, path),
                Action::Thaw { dark, is_loss } => self.thaw(now, path, dark, is_loss),
                Action::GiveUp => self.give_up(now, path),
            }
        }
        self.paths.refresh(path, soonest_after(now));
    }

    fn freeze(&mut self, now: Instant, path: u32, cause: DarkCause) {
        let Some(on) = self.paths.get_mut(path) else { return };
        on.clock.stop(now);
        on.darkness += 1;
        on.thaws_at = None;
        self.counters.path_darks += 1;
        self.path_notices.extend(on.peer.map(|peer| PathNotice::Dark { peer, cause }));
    }

    /// Has one queue pair ask for an answer, in turn.
    fn probe(&mut self, now: Instant, path: u32) {
        let Some(on) = self.paths.get_mut(path) else { return };
        let Some(member) = on.first_awaiting().or_else(|| on.first_ready()) else { return };
        let is_dark = !on.life.is_open();
        on.life.handle_probed(now);
        on.move_back(member);
        self.counters.path_probes += 1;
        let seat = Seat { path, member };
        self.ask(now, seat, is_dark);
        self.probing.push_back(seat);
    }

    /// Has a queue pair send again, beginning with one packet that asks how far the peer is; `anew` if its ACK timer starts anew too.
    fn ask(&mut self, now: Instant, seat: Seat, anew: bool) {
        let Some(slot) = self.paths.slot(seat) else { return };
        let Some(Entry { qp, .. }) = self.qps.get_mut(slot as usize) else { return };
        let Some(path) = self.paths.get(seat.path) else { return };
        let mut cx = self.shared.context(path.clock.at(now));
        if anew {
            qp.handle_light(&mut cx, path.life.is_kin());
        } else {
            qp.handle_doubt(&mut cx, false);
        }
        self.paths.note(now, seat, Needs::of(qp, true));
    }

    fn thaw(&mut self, now: Instant, path: u32, dark: Duration, is_loss: bool) {
        let Some(on) = self.paths.get_mut(path) else { return };
        on.clock.start(now);
        on.tuning.handle_thaw(on.clock.at(now));
        // As if it had not been: nobody on it asks anew.
        on.darkness -= u64::from(!is_loss);
        self.counters.path_dark_ns += u64::try_from(dark.as_nanos()).unwrap_or(u64::MAX);
        self.path_notices.extend(on.peer.map(|peer| PathNotice::Light { peer, dark }));
        self.thaw_more(now, path, THAW_FIRST);
    }

    /// Lets some more queue pairs that wait for an answer go on.
    fn thaw_more(&mut self, now: Instant, path: u32, count: u32) {
        for _ in 0..count {
            let Some(on) = self.paths.get_mut(path).filter(|on| on.life.is_open()) else { return };
            let next =
                on.first_awaiting().filter(|m| on.members.get(*m as usize).is_some_and(|m| m.seen != on.darkness));
            let Some(member) = next else {
                on.thaws_at = None;
                on.life.handle_thawed(now);
                return;
            };
            on.thaws_at = Some(now + THAW_EVERY);
            self.enlighten(now, Seat { path, member });
        }
    }

    /// A queue pair that has not seen the light yet sees it. Whether it was so.
    pub(super) fn enlighten(&mut self, now: Instant, seat: Seat) -> bool {
        let Some(path) = self.paths.get_mut(seat.path) else { return false };
        let darkness = path.darkness;
        let Some(member) = path.members.get_mut(seat.member as usize).filter(|m| m.seen != darkness) else {
            return false;
        };
        member.seen = darkness;
        path.move_back(seat.member);
        self.ask(now, seat, true);
        true
    }

    /// Fails what waits for a peer that was in the dark for too long.
    fn give_up(&mut self, now: Instant, path: u32) {
        let Some(on) = self.paths.get(path) else { return };
        let (peer, path_now) = (on.peer, on.clock.at(now));
        let members: Vec<(Seat, u32)> =
            on.members.iter().map(|(member, m)| (Seat { path, member: member as u32 }, m.slot)).collect();
        let mut failed = 0;
        for (seat, slot) in members {
            let Some(Entry { qp, .. }) = self.qps.get_mut(slot as usize) else { continue };
            if !qp.handle_lost(&mut self.shared.context(path_now)) {
                continue;
            }
            failed += 1;
            self.paths.note(now, seat, Needs::of(qp, false));
            self.totals.note(slot);
        }
        self.counters.path_lost_queue_pairs += u64::from(failed);
        self.path_notices.extend(peer.map(|peer| PathNotice::Lost { peer, queue_pairs: failed }));
        if let Some(on) = self.paths.get_mut(path) {
            on.life.handle_given_up(now);
        }
    }

    /// What is due on one path.
    pub(super) fn handle_path_timeout(&mut self, now: Instant, path: u32) {
        self.with_path(now, path, |on| {
            if on.life.poll_timeout().is_some_and(|at| at <= now) {
                on.life.handle_timeout(now);
            }
        });
        if self.paths.get(path).and_then(|on| on.thaws_at).is_some_and(|at| at <= now) {
            self.thaw_more(now, path, THAW_FIRST);
        }
        while let Some(member) = self.paths.get_mut(path).and_then(|on| on.pop_due(now)) {
            self.handle_member_timeout(now, Seat { path, member });
        }
        self.paths.refresh(path, soonest_after(now));
    }

    fn handle_member_timeout(&mut self, now: Instant, seat: Seat) {
        if self.enlighten(now, seat) {
            return;
        }
        let Some(slot) = self.paths.slot(seat) else { return };
        let Some(on) = self.paths.get_mut(seat.path) else { return };
        let path_now = on.clock.at(now);
        let Some(Entry { qp, .. }) = self.qps.get_mut(slot as usize) else { return };
        let timed_out = qp.timed_out_after(path_now);
        let unheard = timed_out.is_some_and(|waited| on.life.is_silent_for(now, waited));
        if timed_out.is_some() {
            on.life.handle_probed(now);
        }
        if unheard {
            // Nothing was heard of anybody there meanwhile: that is no news of this queue pair.
            qp.handle_doubt(&mut self.shared.context(path_now), true);
        } else {
            qp.handle_timeout(&mut self.shared.context(path_now));
        }
        let mut needs = Needs::of(qp, true);
        needs.deadline = needs.deadline.map(|deadline| deadline.max(soonest_after(path_now)));
        self.paths.note(now, seat, needs);
        if timed_out.is_some() {
            self.doubt_host(now, seat.path);
        }
    }
}
