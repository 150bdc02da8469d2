//! Parameters, fitted to a line.

use super::{BadParameter, Bps, Parameters};
use crate::time::{Duration, Instant};

/// What the congestion state of a queue pair has to know of the line that it sends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// Bits a second of the port.
    pub rate: Bps,
    /// Round trip without queues; zero if unknown. 10 m of fibre are 100 ns, 10 km 100 us, hosts and switches not counted.
    pub rtt: Duration,
    /// Bytes of the largest super-packet that the port takes.
    pub burst_bytes: u32,
    /// It is slower than the port: who sends faster only fills a queue, so bursts are paced though no CNP came.
    pub is_narrow: bool,
}

impl Default for Line {
    /// One of which nothing is known: that of fast adapters, in a hall.
    fn default() -> Self {
        Self { rate: Bps::from_gbps(100), rtt: Duration::ZERO, burst_bytes: 64_000, is_narrow: false }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::fit(Parameters::default(), Line::default())
    }
}

/// [`Parameters`], checked and fitted to a [`Line`]: lent to every call. All queue pairs of a path share one; a reload or another
/// circuit is nothing but another one from the next call on.
///
/// # Long circuits
///
/// DCQCN acts once a timer period and sees the effect a round trip later. The paper's periods are those of a hall, where the round trip
/// vanishes beside them. Where light alone takes 100 us (10 km), every cut and raise would be done several times over before the first
/// is felt, and the queue swings (Zhu et al., "ECN or Delay", CoNEXT 2016). So nothing acts more often than its effect can
/// be seen: cuts come at most once a round trip, and the timers of raises and of alpha, and with them the byte counter, are stretched
/// by the round trip. At 10 m, hosts and switch included, that is some two per cent.
///
/// # In the dark
///
/// Where the path has a clock that stands still in the dark and every call is given its time, queue pairs need not be frozen one by one: no
/// timer runs anyway. [`Tuning::handle_thaw`] then has all of them discount at once what was under way when the light went out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tuning {
    pub(super) parameters: Parameters,
    line: Line,
    pub(super) min: Bps,
    pub(super) max: Bps,
    pub(super) raise_every: Duration,
    pub(super) raise_bytes: u64,
    pub(super) decay_every: Duration,
    pub(super) cut_every: Duration,
    pub(super) release_after: Duration,
    thawed_at: Option<Instant>,
}

impl Tuning {
    /// Fits `parameters` to `line`, or says what is wrong with them.
    pub fn new(parameters: Parameters, line: Line) -> Result<Self, BadParameter> {
        parameters.check()?;
        Ok(Self::fit(parameters, line))
    }

    fn fit(parameters: Parameters, line: Line) -> Self {
        let max = if parameters.rpg_max_rate == Bps::ZERO { line.rate } else { parameters.rpg_max_rate.min(line.rate) };
        let raise_every = parameters.rpg_time_reset.saturating_add(line.rtt);
        let decay_every = parameters.dce_tcp_rtt.saturating_add(line.rtt);
        // In 1/g decays alpha falls to 1/e.
        let time_constant = u32::from(1024 / (1024 - parameters.dce_tcp_g.min(1023)));
        Self {
            parameters,
            line,
            min: parameters.rpg_min_rate.min(max),
            max,
            raise_every,
            raise_bytes: stretched(parameters.rpg_byte_reset, raise_every, parameters.rpg_time_reset),
            decay_every,
            cut_every: parameters.rate_reduce_monitor_period.max(line.rtt),
            release_after: decay_every.saturating_mul(time_constant),
            thawed_at: None,
        }
    }

    /// The same parameters for another line.
    #[must_use]
    pub fn on(&self, line: Line) -> Self {
        Self { thawed_at: self.thawed_at, ..Self::fit(self.parameters, line) }
    }

    /// These parameters and this line, for a path that thawed when `other` says.
    #[must_use]
    pub const fn since_thaw_of(&self, other: &Self) -> Self {
        Self { thawed_at: other.thawed_at, ..*self }
    }

    /// The path has light again: CNPs and marks from before the dark count for nothing, for any of its queue pairs.
    pub const fn handle_thaw(&mut self, now: Instant) {
        self.thawed_at = Some(now);
    }

    /// The parameters.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The line.
    pub const fn line(&self) -> &Line {
        &self.line
    }

    /// The highest rate: that of the line or `rpg_max_rate`.
    pub const fn max_rate(&self) -> Bps {
        self.max
    }

    /// Whether a queue pair that no CNP limits is paced still, because `rpg_max_rate` is below the line's, or the line's below the port's.
    pub fn always_paces(&self) -> bool {
        self.line.is_narrow || self.max < self.line.rate
    }

    /// Whether what comes at `now` may still be about what was sent before the dark.
    pub(super) fn is_deaf(&self, now: Instant) -> bool {
        self.thawed_at.is_some_and(|thaw| now < thaw + self.cut_every)
    }

    /// Whether the path thawed between two moments.
    pub(super) fn thawed_between(&self, from: Instant, to: Instant) -> bool {
        self.thawed_at.is_some_and(|thaw| (from..=to).contains(&thaw))
    }

    /// A rate that limits a queue pair, whatever was remembered from another line.
    pub(super) fn clamp(&self, rate: Bps) -> Bps {
        rate.clamp(self.min, self.max)
    }
}

/// `bytes`, as many times as `to` is `from`.
fn stretched(bytes: u64, to: Duration, from: Duration) -> u64 {
    let wide = u128::from(bytes).saturating_mul(to.as_nanos()) / from.as_nanos().max(1);
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(rtt: Duration) -> Line {
        Line { rate: Bps::from_gbps(40), rtt, ..Line::default() }
    }

    #[test]
    fn a_hall_keeps_the_papers_periods_and_a_long_circuit_stretches_them() {
        let hall = Tuning::new(Parameters::default(), line(Duration::from_nanos(100))).unwrap();
        assert_eq!(hall.cut_every, Duration::from_micros(50));
        assert_eq!(hall.raise_every, Duration::from_nanos(55_100));
        let long = hall.on(line(Duration::from_micros(110)));
        assert_eq!((long.cut_every, long.raise_every), (Duration::from_micros(110), Duration::from_micros(165)));
        assert_eq!(long.raise_bytes, 30_000_000);
        assert!(long.decay_every > long.cut_every);
    }

    #[test]
    fn a_slow_line_lowers_both_ends() {
        let slow = Line { rate: Bps::from_bps(500), ..line(Duration::ZERO) };
        let tuning = Tuning::new(Parameters::default(), slow).unwrap();
        assert_eq!((tuning.min, tuning.max), (slow.rate, slow.rate));
    }

    #[test]
    fn bad_parameters_do_not_get_in() {
        let bad = Parameters { rpg_gd: 0, ..Parameters::default() };
        assert_eq!(
            Tuning::new(bad, line(Duration::ZERO)),
            Err(BadParameter::Number { name: "rpg_gd", given: 0, min: 10, max: 15 })
        );
    }
}
