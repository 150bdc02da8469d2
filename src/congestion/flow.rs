//! A queue pair's whole congestion state.

use super::{Allowance, CnpEffect, NotificationPoint, Pace, Pacer, ReactionPoint, Tuning};
use crate::time::Instant;

/// What a queue pair holds: both points and the pacer. Plain data, 96 bytes.
///
/// ```
/// use holdfast::congestion::{Allowance, Bps, CnpEffect, Flow, Line, Parameters, Tuning};
/// use holdfast::time::{Duration, Instant};
///
/// let line = Line { rate: Bps::from_gbps(40), rtt: Duration::from_micros(4), ..Line::default() };
/// let tuning = Tuning::new(Parameters::default(), line)?;
/// let mut flow = Flow::new();
/// let now = Instant::from_ns(1);
///
/// // Whoever heard no CNP sends as fast as the port does.
/// assert_eq!(flow.poll_allowance(now, 4178, 1 << 20, &tuning), Allowance::Unlimited);
/// flow.handle_sent(now, 4178, 64_000, &tuning);
///
/// // The first one halves that, and from now on bursts are paced.
/// assert_eq!(flow.handle_cnp(now, &tuning), CnpEffect::Cut);
/// assert_eq!(flow.reaction().rate(&tuning).as_bps() / 1_000_000, 20_019);
/// let Allowance::Wait(at) = flow.poll_allowance(now, 4178, 1 << 20, &tuning) else { return Err("it waits".into()) };
/// assert!(matches!(flow.poll_allowance(at, 4178, 1 << 20, &tuning), Allowance::Bytes(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    reaction: ReactionPoint,
    notification: NotificationPoint,
    pacer: Pacer,
}

impl Flow {
    /// One at full rate, that heard and said nothing yet.
    pub const fn new() -> Self {
        Self { reaction: ReactionPoint::new(), notification: NotificationPoint::new(), pacer: Pacer::new() }
    }

    /// Rate, target, alpha.
    pub const fn reaction(&self) -> &ReactionPoint {
        &self.reaction
    }

    /// How much of the `wanted` bytes that wait may leave now, in packets of `packet_bytes`; bytes on the wire, headers included.
    pub fn poll_allowance(&mut self, now: Instant, packet_bytes: u32, wanted: u64, tuning: &Tuning) -> Allowance {
        if self.reaction.is_frozen() {
            return Allowance::Wait(Instant::MAX);
        }
        self.reaction.handle_timeout(now, tuning);
        match self.pace(packet_bytes, tuning) {
            Some(pace) => self.pacer.poll(now, &pace, wanted),
            None => Allowance::Unlimited,
        }
    }

    /// A burst of `bytes` left, in packets of `packet_bytes`. Also where that was not asked before (retransmissions, ACKs): what leaves counts.
    pub fn handle_sent(&mut self, now: Instant, packet_bytes: u32, bytes: u64, tuning: &Tuning) {
        match self.pace(packet_bytes, tuning) {
            Some(pace) => self.pacer.handle_sent(now, &pace, bytes),
            None => self.pacer.drain(now),
        }
        self.reaction.handle_sent(now, bytes, tuning);
    }

    /// A CNP came, from the peer's address and for this queue pair: the caller's to check, or a stranger slows it down.
    pub fn handle_cnp(&mut self, now: Instant, tuning: &Tuning) -> CnpEffect {
        self.reaction.handle_cnp(now, tuning)
    }

    /// A burst with CE marks came. Says whether to send a CNP.
    pub fn handle_ce(&mut self, now: Instant, tuning: &Tuning) -> bool {
        self.notification.handle_ce(now, tuning)
    }

    /// Does what is due. Need not be called: the other calls do it first.
    pub fn handle_timeout(&mut self, now: Instant, tuning: &Tuning) {
        self.reaction.handle_timeout(now, tuning);
    }

    /// When the rate changes next by itself.
    pub fn poll_timeout(&self, tuning: &Tuning) -> Option<Instant> {
        self.reaction.poll_timeout(tuning)
    }

    /// The light goes out.
    pub fn freeze(&mut self, now: Instant, tuning: &Tuning) {
        self.reaction.freeze(now, tuning);
        self.notification.freeze();
    }

    /// The light is back.
    pub fn thaw(&mut self, now: Instant, tuning: &Tuning) {
        if self.reaction.is_frozen() {
            self.reaction.thaw(now, tuning);
            self.notification.thaw(now, tuning);
            self.pacer.drain(now);
        }
    }

    /// `None`: not limited.
    fn pace(&self, packet_bytes: u32, tuning: &Tuning) -> Option<Pace> {
        let is_paced = self.reaction.is_limited() || tuning.always_paces();
        is_paced.then(|| Pace::new(self.reaction.rate(tuning), packet_bytes, tuning))
    }
}
