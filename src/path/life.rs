//! The life of a path.

use super::PathChange;
use crate::time::{Duration, Instant};

/// How a path is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldPolicy {
    /// Without it nothing is held, and timeouts do what the standard says.
    pub enabled: bool,
    /// Silence for so long while answers are due is darkness. A path whose peer is slower has more patience.
    pub detect: Duration,
    /// In the dark for longer, what waits fails.
    pub hold_max: Duration,
    /// How often the light is looked for.
    pub probe_every: Duration,
}

impl Default for HoldPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            detect: Duration::from_millis(3),
            hold_max: Duration::from_secs(30),
            probe_every: Duration::from_micros(500),
        }
    }
}

/// Where in its life a path is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PathState {
    /// There is light.
    Lit,
    /// Darkness is announced.
    Draining,
    /// Answers are due, and nothing comes.
    Suspect,
    /// Nothing is sent, no timer runs.
    Dark,
    /// There is light again; queue pairs go on one after the other.
    Thawing,
    /// Dark for too long: what waits is failed.
    Lost,
}

impl PathState {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [Self::Lit, Self::Draining, Self::Suspect, Self::Dark, Self::Thawing, Self::Lost];

    /// In lower case, for lists and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lit => "lit",
            Self::Draining => "draining",
            Self::Suspect => "suspect",
            Self::Dark => "dark",
            Self::Thawing => "thawing",
            Self::Lost => "lost",
        }
    }
}

/// Who said that it is dark.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DarkCause {
    /// The controller.
    Announced,
    /// The link.
    Carrier,
    /// The peer's silence.
    Silence,
}

impl DarkCause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Announced, Self::Carrier, Self::Silence];

    /// In lower case, for lists and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Announced => "announced",
            Self::Carrier => "carrier",
            Self::Silence => "silence",
        }
    }
}

/// What whoever has the queue pairs does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Stop the clock, send nothing.
    Freeze(DarkCause),
    /// Ask the peer's host whether it is alive.
    Question {
        /// Whether suspicion begins with it: the host that answers this very question was never in the dark.
        is_first: bool,
    },
    /// Have one queue pair send one packet that asks for an answer.
    Probe,
    /// Start the clock.
    Thaw {
        /// How long it was dark.
        dark: Duration,
        /// Whether packets are lost: queue pairs that wait for an answer ask anew, one after the other. Else the peer was only slow.
        is_loss: bool,
    },
    /// Fail what waits, then tell by [`Life::handle_given_up`].
    GiveUp,
}

/// What a path has been through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathRecord {
    /// How often it was dark.
    pub darks: u64,
    /// For how long in all, the present time not counted, in nanoseconds.
    pub dark_ns: u64,
    /// How long the last darkness was, in nanoseconds.
    pub last_dark_ns: u64,
    /// How often what waited was failed.
    pub lost: u64,
}

/// A packet that was under way when the dark began is no sign of light.
const GUARD: Duration = Duration::from_micros(500);
/// A peer is waited for so many times as long as its answers lately took.
const PATIENCE: u32 = 4;
/// What a peer's answers take that has not given any yet.
const UNKNOWN: Duration = Duration::from_millis(50);
/// After so many answers the peer is asked whether it is a kin.
const INTRODUCTION: u32 = 16;
/// What takes longer says nothing of the peer: it was dark.
const SLOWEST: Duration = Duration::from_millis(250);
/// What answers took fades by this part with each that comes sooner.
const FADING: u32 = 8;

/// Doublings of the patience with a peer whose host is alive.
const MOST_CALM: u32 = 5;

/// Who says that there is no light.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Causes {
    announced: bool,
    carrier: bool,
    silence: bool,
}

impl Causes {
    fn first(self) -> Option<DarkCause> {
        let causes = [self.announced, self.carrier, self.silence];
        DarkCause::ALL.into_iter().zip(causes).find_map(|(cause, holds)| holds.then_some(cause))
    }
}

/// A path's life, see the [room](super). Times are the engine's, not the path's.
#[derive(Clone, Debug)]
pub struct Life {
    policy: HoldPolicy,
    /// What the controller said of this path, and what is said of its circuit.
    hold_max: Option<Duration>,
    circuit_hold_max: Option<Duration>,
    state: PathState,
    causes: Causes,
    /// Of the present state.
    since: Instant,
    /// When the present darkness began, or the last one.
    dark_since: Instant,
    /// When the announced darkness begins.
    drains_at: Option<Instant>,
    /// How long it shall be dark.
    expected: Duration,
    /// Since when answers are due; `None` if none is.
    asked: Option<Instant>,
    /// When a queue pair was last made to ask once more.
    probed: Instant,
    /// Whether it has ever answered a question: then questions find out what only packets of queue pairs could else.
    is_kin: bool,
    /// When the last answer came.
    answered: Instant,
    /// The time that answers took lately: the longest, fading.
    slowest: Duration,
    /// How many answers came, until it was introduced.
    answers: u32,
    /// How often in a row the peer's host was alive though no queue pair of it answered.
    calm: u32,
    next_probe: Option<Instant>,
    action: Option<Action>,
    question: Option<bool>,
    probe: bool,
    record: PathRecord,
}

// Getters.
impl Life {
    /// A path with light.
    pub fn new(policy: HoldPolicy, now: Instant) -> Self {
        Self {
            policy,
            hold_max: None,
            circuit_hold_max: None,
            state: PathState::Lit,
            causes: Causes::default(),
            since: now,
            dark_since: now,
            drains_at: None,
            expected: Duration::ZERO,
            asked: None,
            answered: now,
            probed: now,
            is_kin: false,
            slowest: UNKNOWN,
            answers: 0,
            calm: 0,
            next_probe: None,
            action: None,
            question: None,
            probe: false,
            record: PathRecord::default(),
        }
    }

    /// Where it is.
    pub fn state(&self) -> PathState {
        self.state
    }

    /// Who says that it is dark.
    pub fn cause(&self) -> Option<DarkCause> {
        self.causes.first()
    }

    /// Since when it is in its state.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// How it is held.
    pub fn policy(&self) -> &HoldPolicy {
        &self.policy
    }

    /// How long it is held in the dark: as the controller says, or its circuit demands, or else as all paths.
    pub fn hold_max(&self) -> Duration {
        self.hold_max.or(self.circuit_hold_max).unwrap_or(self.policy.hold_max)
    }

    /// What it has been through.
    pub fn record(&self) -> &PathRecord {
        &self.record
    }

    /// Whether the peer is a holdfast too, as far as is known.
    pub fn is_kin(&self) -> bool {
        self.is_kin
    }

    /// Whether there is light, and was before, and nothing is to be done.
    #[inline]
    pub fn is_calm(&self) -> bool {
        matches!(self.state, PathState::Lit | PathState::Draining) && self.question.is_none()
    }

    /// Whether packets may go.
    #[inline]
    pub fn is_open(&self) -> bool {
        !matches!(self.state, PathState::Dark | PathState::Lost)
    }

    /// Whether no answer has come for `waited`: whose timer runs out then has learnt nothing of its queue pair.
    pub fn is_silent_for(&self, now: Instant, waited: Duration) -> bool {
        self.policy.enabled && now.since(self.answered) >= waited
    }

    /// How long answers may take.
    fn patience(&self) -> Duration {
        self.policy.detect.max(self.slowest * PATIENCE) * (1 << self.calm)
    }

    /// Since when answers are due and none came.
    fn silent_since(&self) -> Option<Instant> {
        self.asked.map(|asked| asked.max(self.answered)).filter(|_| self.policy.enabled)
    }
}

// What happens to it.
impl Life {
    /// Whether any queue pair waits for an answer.
    #[inline]
    pub fn handle_awaiting(&mut self, now: Instant, awaits: bool) {
        match (awaits, self.asked) {
            (true, None) => self.asked = Some(now),
            (false, Some(_)) => self.asked = None,
            _ => {}
        }
    }

    /// A packet of the peer came; `is_answer` if it answers a request of ours.
    #[inline]
    pub fn handle_packet(&mut self, now: Instant, is_answer: bool) {
        if is_answer {
            self.handle_answer(now);
        }
        if !self.is_open() {
            // Nobody has asked a kin's queue pairs in the dark: they answer what came before it.
            self.handle_sign_of_life(now, !(self.is_kin && is_answer));
        }
    }

    fn handle_answer(&mut self, now: Instant) {
        if let Some(asked) = self.asked {
            // In the light an answer to a probe is no slow one to what was lost.
            let asked = if self.is_open() { asked.max(self.probed) } else { asked };
            let took = now.since(asked.max(self.answered));
            self.slowest -= self.slowest / FADING;
            if took > self.slowest && took <= SLOWEST {
                self.slowest = took;
            }
        }
        (self.answered, self.calm) = (now, 0);
        if self.answers < INTRODUCTION {
            self.answers += 1;
            self.question = self.question.or((self.answers == INTRODUCTION).then_some(false));
        }
        if self.state == PathState::Suspect {
            self.enter_light(now);
        }
    }

    /// The peer's host answers a question, perhaps the first of those since it is suspect: if a queue pair of it does not answer, it
    /// is not for want of light. What came before the question has been answered, so what is not answered is lost.
    pub fn handle_alive(&mut self, now: Instant, is_first: bool) {
        self.is_kin = true;
        // It was asked when a timer was started, perhaps at this very moment: the word came after that.
        self.answered = now + Duration::from_nanos(1);
        if self.state == PathState::Suspect {
            self.calm = (self.calm + 1).min(MOST_CALM);
            self.enter_light(now);
            self.probe = true;
        }
        if !self.is_open() {
            self.handle_sign_of_life(now, !is_first);
        }
    }

    /// Who hears in the dark knows better than who announced it: an event may be late or lost.
    fn handle_sign_of_life(&mut self, now: Instant, is_loss: bool) {
        let by_silence = self.causes == Causes { silence: true, ..Causes::default() };
        if by_silence || now.since(self.dark_since) >= GUARD && !self.causes.carrier {
            self.causes = Causes::default();
            self.enter_thaw(now, is_loss || !by_silence);
        }
    }

    /// Changes how it is held from now on. Where nothing is held any more there is light.
    pub fn set_policy(&mut self, now: Instant, policy: HoldPolicy) {
        self.policy = policy;
        if !policy.enabled {
            (self.causes, self.drains_at) = (Causes::default(), None);
            self.settle(now);
        }
    }

    /// The controller's word.
    pub fn handle_change(&mut self, now: Instant, change: PathChange) {
        match change {
            PathChange::Prepare { .. } | PathChange::Down if !self.policy.enabled => {}
            PathChange::Prepare { at, expected } => {
                self.expected = expected;
                if at <= now {
                    self.causes.announced = true;
                } else {
                    self.drains_at = Some(at);
                    if self.state == PathState::Lit {
                        self.enter_light(now);
                    }
                }
            }
            PathChange::Down => (self.causes.announced, self.drains_at) = (true, None),
            PathChange::Up => {
                self.drains_at = None;
                (self.causes.announced, self.causes.silence) = (false, false);
                if self.state == PathState::Draining {
                    self.enter_light(now);
                }
            }
            PathChange::HoldMax(hold_max) => self.hold_max = Some(hold_max),
            // Whoever has the circuits looks after that.
            PathChange::Circuit(_) => {}
        }
        self.settle(now);
    }

    /// Its circuit demands to be held so long.
    pub fn set_circuit_hold_max(&mut self, hold_max: Option<Duration>) {
        self.circuit_hold_max = hold_max;
    }

    /// The link's word.
    pub fn handle_carrier(&mut self, now: Instant, is_up: bool) {
        self.causes.carrier = !is_up && self.policy.enabled;
        if is_up {
            self.causes.silence = false;
        }
        self.settle(now);
    }

    /// A queue pair was made to ask once more.
    pub fn handle_probed(&mut self, now: Instant) {
        self.probed = now;
    }

    /// All queue pairs go on again.
    pub fn handle_thawed(&mut self, now: Instant) {
        if self.state == PathState::Thawing {
            self.enter_light(now);
        }
    }

    /// What waited is failed. An announced darkness goes on for who comes now; of silence there is nothing left.
    pub fn handle_given_up(&mut self, now: Instant) {
        if self.state != PathState::Lost {
            return;
        }
        self.causes.silence = false;
        self.asked = None;
        if self.causes.first().is_some() {
            self.enter(now, PathState::Dark);
        } else {
            self.settle(now);
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.drains_at.is_some_and(|at| at <= now) {
            self.drains_at = None;
            self.causes.announced = true;
        }
        if self.is_open() {
            self.look_for_silence(now);
        } else if self.state == PathState::Dark {
            if self.next_probe.is_some_and(|at| at <= now) {
                self.question = Some(false);
                self.next_probe = Some(now + self.policy.probe_every);
                // A slow peer, who cannot be told from a dark one, is not buried in probes.
                self.probe = !self.is_kin && now.since(self.probed) >= self.slowest.max(self.policy.probe_every);
            }
            if now.since(self.since) >= self.hold_max() {
                self.record.lost += 1;
                self.enter(now, PathState::Lost);
                self.action = Some(Action::GiveUp);
            }
        }
        self.settle(now);
    }

    fn look_for_silence(&mut self, now: Instant) {
        let Some(since) = self.silent_since() else { return };
        if now >= since + self.patience() {
            self.causes.silence = true;
        } else if now >= since + self.patience() * 2 / 3 && matches!(self.state, PathState::Lit | PathState::Thawing) {
            self.enter(now, PathState::Suspect);
            (self.question, self.probe) = (Some(true), !self.is_kin);
        }
    }

    fn enter(&mut self, now: Instant, state: PathState) {
        (self.state, self.since) = (state, now);
    }

    /// There is light, and perhaps an announcement that there will be none.
    fn enter_light(&mut self, now: Instant) {
        self.enter(now, if self.drains_at.is_some() { PathState::Draining } else { PathState::Lit });
    }

    /// Goes into the dark or out of it, as the causes say.
    fn settle(&mut self, now: Instant) {
        match (self.causes.first(), self.is_open()) {
            (Some(cause), true) => {
                self.record.darks += 1;
                self.enter(now, PathState::Dark);
                self.dark_since = now;
                (self.question, self.probe) = (None, false);
                let wait = if cause == DarkCause::Announced { self.expected } else { Duration::ZERO };
                self.next_probe = Some(now + wait.max(self.policy.probe_every));
                self.action = Some(Action::Freeze(cause));
            }
            (None, false) => self.enter_thaw(now, true),
            _ => {}
        }
    }

    fn enter_thaw(&mut self, now: Instant, is_loss: bool) {
        let dark = now.since(self.dark_since);
        self.record.last_dark_ns = u64::try_from(dark.as_nanos()).unwrap_or(u64::MAX);
        self.record.dark_ns = self.record.dark_ns.saturating_add(self.record.last_dark_ns);
        (self.next_probe, self.question, self.probe) = (None, None, false);
        if self.drains_at.is_none() {
            self.expected = Duration::ZERO;
        }
        // The silence of the dark is not to be held against who has light again.
        self.asked = self.asked.map(|_| now);
        self.enter(now, PathState::Thawing);
        self.action = Some(Action::Thaw { dark, is_loss });
    }
}

// What it wants.
impl Life {
    /// What to do now.
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.action.take();
        let action = action.or_else(|| self.question.take().map(|is_first| Action::Question { is_first }));
        action.or_else(|| core::mem::take(&mut self.probe).then_some(Action::Probe))
    }

    /// When [`Life::handle_timeout`] is due.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.state == PathState::Dark {
            let ends = self.since + self.hold_max();
            // Without a carrier there is no use in probes.
            return Some(self.next_probe.filter(|_| !self.causes.carrier).map_or(ends, |at| at.min(ends)));
        }
        if self.state == PathState::Lost {
            return None;
        }
        let silence = self.silent_since().map(|since| match self.state {
            PathState::Lit | PathState::Thawing => since + self.patience() * 2 / 3,
            _ => since + self.patience(),
        });
        [silence, self.drains_at].into_iter().flatten().min()
    }
}
