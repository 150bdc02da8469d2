//! What an operator may tune, under NVIDIA's names.

use super::Bps;
use crate::time::Duration;

/// Parameters of DCQCN, under the names that NVIDIA's adapters have for them (`mlxconfig`, debugfs `cc_params`), which took most
/// of theirs from IEEE 802.1Qau. Rates, times and bytes have types; the unit in which NVIDIA's tools give a value stands beside it.
///
/// The defaults are the paper's (Zhu et al., SIGCOMM 2015) where it has one: a timer in software can keep up with them. NVIDIA's are tuned to
/// adapters that reckon each microsecond.
///
/// | parameter | unit there | default | NVIDIA's default | allowed |
/// |---|---|---|---|---|
/// | `clamp_tgt_rate` | | on | off | |
/// | `clamp_tgt_rate_after_time_inc` | | on | on | |
/// | `rpg_time_reset` | us | 55 us | 300 | 1 to 131 071 us |
/// | `rpg_byte_reset` | bytes | 10 MB | 32 767 | 0 (off), or 1 KB to 1 TB |
/// | `rpg_threshold` | | 5 | 1 | 1 to 31 |
/// | `rpg_max_rate` | Mb/s | 0: the line's | 0 | |
/// | `rpg_ai_rate` | Mb/s | 40 Mb/s | 5 | 1 Mb/s to 1 Tb/s |
/// | `rpg_hai_rate` | Mb/s | 400 Mb/s | 50 | 1 Mb/s to 1 Tb/s |
/// | `rpg_gd` | log2 | 11 | 11 | 10 to 15 |
/// | `rpg_min_dec_fac` | % | 50 | 50 | 1 to 100 |
/// | `rpg_min_rate` | Mb/s | 10 Mb/s | 1 | 1 Mb/s to `rpg_max_rate` |
/// | `rate_to_set_on_first_cnp` | Mb/s | 0: cut as usual | 0 | |
/// | `dce_tcp_g` | 1/1024 | 1020 | 1019 | 0 to 1023 |
/// | `dce_tcp_rtt` | us | 55 us | 1 | 1 to 131 071 us |
/// | `rate_reduce_monitor_period` | us | 50 us | 4 | 0 to 131 071 us |
/// | `initial_alpha_value` | 1/1024 | 1023 | 1023 | 1 to 1023 |
/// | `min_time_between_cnps` | us | 50 us | 4 | 0 to 131 071 us |
/// | `cnp_dscp` | | 48 | 48 | 0 to 63 |
/// | `cnp_802p_prio` | | 6 | 6 | 0 to 7 |
/// | `burst_time` (ours) | | 20 us | | 1 us to 1 ms |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Every CNP makes the rate at which it came the next target (the paper's rule). Otherwise a target is kept until the rate was
    /// raised by the byte counter since the last cut.
    pub clamp_tgt_rate: bool,
    /// Where `clamp_tgt_rate` is off: raising by the timer counts as well.
    pub clamp_tgt_rate_after_time_inc: bool,
    /// Time between raises while no CNP comes (the paper's T).
    pub rpg_time_reset: Duration,
    /// Bytes sent between raises while no CNP comes (the paper's B); 0 turns the byte counter off.
    pub rpg_byte_reset: u64,
    /// Raises by either timer or byte counter before fast recovery ends (the paper's F).
    pub rpg_threshold: u8,
    /// Rate above which no queue pair goes; 0 is that of the line.
    pub rpg_max_rate: Bps,
    /// What additive increase adds to the target (the paper's R_AI).
    pub rpg_ai_rate: Bps,
    /// What hyper increase adds to the target (the paper's R_HAI).
    pub rpg_hai_rate: Bps,
    /// A CNP cuts the rate by alpha / 2^`rpg_gd`, alpha in 1/1024: 11 is the paper's alpha / 2, 10 all of alpha.
    pub rpg_gd: u8,
    /// Least per cent of the rate that one cut leaves.
    pub rpg_min_dec_fac: u8,
    /// Rate below which no cut goes. At NVIDIA's 1 Mb/s a queue pair falls silent after an incast (a packet of 4 KiB takes 33 ms) and comes
    /// back too late to be told off: 64 of them swing for ever. Ten is steady (`benches/dcqcn`).
    pub rpg_min_rate: Bps,
    /// Rate and target after the first CNP; 0: cut as by any other.
    pub rate_to_set_on_first_cnp: Bps,
    /// How much of alpha stays when it is reckoned anew, in 1/1024: the paper's 1 - g. 1020 is g = 1/256.
    pub dce_tcp_g: u16,
    /// Time without a CNP after which alpha decays (the paper's K). Should be longer than `rate_reduce_monitor_period`: otherwise alpha
    /// decays also under constant congestion.
    pub dce_tcp_rtt: Duration,
    /// Least time between two cuts of a queue pair. CNPs that come meanwhile cut once when it has passed.
    pub rate_reduce_monitor_period: Duration,
    /// Alpha at the first CNP, in 1/1024.
    pub initial_alpha_value: u16,
    /// Notification point: least time between two CNPs to one queue pair (the paper's N); 0: one for each marked packet.
    pub min_time_between_cnps: Duration,
    /// DSCP of CNPs.
    pub cnp_dscp: u8,
    /// 802.1p priority of CNPs, on a VLAN.
    pub cnp_802p_prio: u8,
    /// Longest burst of a limited queue pair, in time at its rate. Not NVIDIA's: adapters pace packet by packet, we super-packet by
    /// super-packet.
    pub burst_time: Duration,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            clamp_tgt_rate: true,
            clamp_tgt_rate_after_time_inc: true,
            rpg_time_reset: Duration::from_micros(55),
            rpg_byte_reset: 10_000_000,
            rpg_threshold: 5,
            rpg_max_rate: Bps::ZERO,
            rpg_ai_rate: Bps::from_mbps(40),
            rpg_hai_rate: Bps::from_mbps(400),
            rpg_gd: 11,
            rpg_min_dec_fac: 50,
            rpg_min_rate: Bps::from_mbps(10),
            rate_to_set_on_first_cnp: Bps::ZERO,
            dce_tcp_g: 1020,
            dce_tcp_rtt: Duration::from_micros(55),
            rate_reduce_monitor_period: Duration::from_micros(50),
            initial_alpha_value: 1023,
            min_time_between_cnps: Duration::from_micros(50),
            cnp_dscp: 48,
            cnp_802p_prio: 6,
            burst_time: Duration::from_micros(20),
        }
    }
}

/// Why parameters cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadParameter {
    /// A number out of its range.
    #[error("{name} = {given}: must be {min} to {max}")]
    Number {
        /// The parameter.
        name: &'static str,
        /// Its value.
        given: u64,
        /// The least allowed.
        min: u64,
        /// The largest allowed.
        max: u64,
    },
    /// A time out of its range.
    #[error("{name} = {given:?}: must be {min:?} to {max:?}")]
    Time {
        /// The parameter.
        name: &'static str,
        /// Its value.
        given: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// A rate out of its range.
    #[error("{name} = {given}: must be {min} to {max}")]
    Rate {
        /// The parameter.
        name: &'static str,
        /// Its value.
        given: Bps,
        /// The least allowed.
        min: Bps,
        /// The largest allowed.
        max: Bps,
    },
    /// A queue pair could neither slow down nor speed up.
    #[error(
        "rpg_min_rate = {min} is above rpg_max_rate = {max}: lower the one or raise the other (0 is the line's rate)"
    )]
    MinAboveMax {
        /// `rpg_min_rate`.
        min: Bps,
        /// `rpg_max_rate`.
        max: Bps,
    },
    /// The first CNP would speed a queue pair up.
    #[error(
        "rate_to_set_on_first_cnp = {first} is outside rpg_min_rate = {min} to rpg_max_rate = {max}: 0 cuts as usual"
    )]
    FirstOutside {
        /// `rate_to_set_on_first_cnp`.
        first: Bps,
        /// `rpg_min_rate`.
        min: Bps,
        /// `rpg_max_rate`.
        max: Bps,
    },
}

/// Largest value of NVIDIA's 17-bit microsecond fields.
const LONGEST: Duration = Duration::from_micros(131_071);
const MICROSECOND: Duration = Duration::from_micros(1);
const SLOWEST: Bps = Bps::from_mbps(1);
const LARGEST_STEP: Bps = Bps::from_gbps(1000);

impl Parameters {
    /// Whether all values are in their ranges and fit together. Says what is wrong with the first that is not.
    pub fn check(&self) -> Result<(), BadParameter> {
        number("rpg_threshold", self.rpg_threshold.into(), 1, 31)?;
        number("rpg_gd", self.rpg_gd.into(), 10, 15)?;
        number("rpg_min_dec_fac", self.rpg_min_dec_fac.into(), 1, 100)?;
        number("dce_tcp_g", self.dce_tcp_g.into(), 0, 1023)?;
        number("initial_alpha_value", self.initial_alpha_value.into(), 1, 1023)?;
        number("cnp_dscp", self.cnp_dscp.into(), 0, 63)?;
        number("cnp_802p_prio", self.cnp_802p_prio.into(), 0, 7)?;
        if self.rpg_byte_reset != 0 {
            number("rpg_byte_reset", self.rpg_byte_reset, 1_000, 1_000_000_000_000)?;
        }
        time("rpg_time_reset", self.rpg_time_reset, MICROSECOND, LONGEST)?;
        time("dce_tcp_rtt", self.dce_tcp_rtt, MICROSECOND, LONGEST)?;
        time("rate_reduce_monitor_period", self.rate_reduce_monitor_period, Duration::ZERO, LONGEST)?;
        time("min_time_between_cnps", self.min_time_between_cnps, Duration::ZERO, LONGEST)?;
        time("burst_time", self.burst_time, MICROSECOND, Duration::from_millis(1))?;
        rate("rpg_ai_rate", self.rpg_ai_rate, SLOWEST, LARGEST_STEP)?;
        rate("rpg_hai_rate", self.rpg_hai_rate, SLOWEST, LARGEST_STEP)?;
        rate("rpg_min_rate", self.rpg_min_rate, SLOWEST, Bps::MAX)?;
        self.check_together()
    }

    fn check_together(&self) -> Result<(), BadParameter> {
        let (min, max) = (self.rpg_min_rate, self.rpg_max_rate);
        if max != Bps::ZERO && min > max {
            return Err(BadParameter::MinAboveMax { min, max });
        }
        let first = self.rate_to_set_on_first_cnp;
        let highest = if max == Bps::ZERO { Bps::MAX } else { max };
        if first != Bps::ZERO && !(min..=highest).contains(&first) {
            return Err(BadParameter::FirstOutside { first, min, max: highest });
        }
        Ok(())
    }
}

fn number(name: &'static str, given: u64, min: u64, max: u64) -> Result<(), BadParameter> {
    if (min..=max).contains(&given) { Ok(()) } else { Err(BadParameter::Number { name, given, min, max }) }
}

fn time(name: &'static str, given: Duration, min: Duration, max: Duration) -> Result<(), BadParameter> {
    if (min..=max).contains(&given) { Ok(()) } else { Err(BadParameter::Time { name, given, min, max }) }
}

fn rate(name: &'static str, given: Bps, min: Bps, max: Bps) -> Result<(), BadParameter> {
    if (min..=max).contains(&given) { Ok(()) } else { Err(BadParameter::Rate { name, given, min, max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(change: impl FnOnce(&mut Parameters)) -> String {
        let mut parameters = Parameters::default();
        change(&mut parameters);
        parameters.check().expect_err("it should be refused").to_string()
    }

    #[test]
    fn the_defaults_are_good() {
        assert_eq!(Parameters::default().check(), Ok(()));
    }

    #[test]
    fn nvidias_defaults_are_good() {
        let theirs = Parameters {
            clamp_tgt_rate: false,
            rpg_time_reset: Duration::from_micros(55),
            rpg_byte_reset: 32_767,
            rpg_threshold: 1,
            rpg_ai_rate: Bps::from_mbps(5),
            rpg_hai_rate: Bps::from_mbps(50),
            dce_tcp_g: 1019,
            dce_tcp_rtt: Duration::from_micros(1),
            rate_reduce_monitor_period: Duration::from_micros(4),
            min_time_between_cnps: Duration::from_micros(4),
            ..Parameters::default()
        };
        assert_eq!(theirs.check(), Ok(()));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_name_value_and_range() {
        assert_eq!(told(|p| p.rpg_threshold = 32), "rpg_threshold = 32: must be 1 to 31");
        assert_eq!(told(|p| p.rpg_time_reset = Duration::ZERO), "rpg_time_reset = 0ns: must be 1µs to 131.071ms");
        assert_eq!(told(|p| p.rpg_ai_rate = Bps::ZERO), "rpg_ai_rate = 0 b/s: must be 1 Mb/s to 1000 Gb/s");
        assert_eq!(told(|p| p.cnp_dscp = 64), "cnp_dscp = 64: must be 0 to 63");
        assert_eq!(told(|p| p.rpg_byte_reset = 1), "rpg_byte_reset = 1: must be 1000 to 1000000000000");
    }

    #[test]
    fn values_must_fit_together() {
        let bad = told(|p| (p.rpg_min_rate, p.rpg_max_rate) = (Bps::from_gbps(2), Bps::from_gbps(1)));
        assert!(bad.starts_with("rpg_min_rate = 2 Gb/s is above rpg_max_rate = 1 Gb/s"), "{bad}");
        let bad = told(|p| (p.rate_to_set_on_first_cnp, p.rpg_max_rate) = (Bps::from_gbps(2), Bps::from_gbps(1)));
        assert!(bad.starts_with("rate_to_set_on_first_cnp = 2 Gb/s is outside"), "{bad}");
    }
}
