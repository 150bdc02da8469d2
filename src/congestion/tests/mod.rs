//! The room as a whole.

mod flow;
mod pacing;
mod paper;
mod reacting;

use super::{Bps, Line, Parameters, Tuning};
use crate::time::{Duration, Instant};
use proptest::prelude::*;

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn at_us(us: u64) -> Instant {
    Instant::from_ns(us * 1000)
}

/// 40 Gb/s, no round trip: the paper's set-up.
const LINE: Line = Line { rate: Bps::from_gbps(40), rtt: Duration::ZERO, burst_bytes: 64_000, is_narrow: false };

fn tuning() -> Tuning {
    Tuning::new(Parameters::default(), LINE).unwrap()
}

fn tuned(change: impl FnOnce(&mut Parameters)) -> Tuning {
    let mut parameters = Parameters::default();
    change(&mut parameters);
    Tuning::new(parameters, LINE).unwrap()
}

/// A number that is often at an end of its range.
fn number(min: u64, max: u64) -> impl Strategy<Value = u64> {
    prop_oneof![Just(min), Just(max), min..=max]
}

prop_compose! {
    /// Whatever passes [`Parameters::check`].
    fn any_parameters()(
        flags in any::<(bool, bool)>(),
        times in (number(1, 131_071), number(1, 131_071), number(0, 131_071), number(0, 131_071), number(1, 1000)),
        rates in (number(1, 1_000_000), number(1, 1_000_000), number(1, 100_000), number(0, 200_000), any::<bool>()),
        bytes in prop_oneof![Just(0), number(1000, 1_000_000_000_000)],
        small in (number(1, 31), number(10, 15), number(1, 100), number(0, 1023), number(1, 1023)),
    ) -> Parameters {
        let (ai, hai, min, max, sets_first) = rates;
        let max = if max < min { 0 } else { max };
        Parameters {
            clamp_tgt_rate: flags.0,
            clamp_tgt_rate_after_time_inc: flags.1,
            rpg_time_reset: us(times.0),
            dce_tcp_rtt: us(times.1),
            rate_reduce_monitor_period: us(times.2),
            min_time_between_cnps: us(times.3),
            burst_time: us(times.4),
            rpg_byte_reset: bytes,
            rpg_ai_rate: Bps::from_mbps(ai),
            rpg_hai_rate: Bps::from_mbps(hai),
            rpg_min_rate: Bps::from_mbps(min),
            rpg_max_rate: Bps::from_mbps(max),
            rate_to_set_on_first_cnp: if sets_first { Bps::from_mbps(min) } else { Bps::ZERO },
            rpg_threshold: small.0 as u8,
            rpg_gd: small.1 as u8,
            rpg_min_dec_fac: small.2 as u8,
            dce_tcp_g: small.3 as u16,
            initial_alpha_value: small.4 as u16,
            ..Parameters::default()
        }
    }
}

prop_compose! {
    /// Any line at all.
    fn any_line()(rate in number(0, u64::MAX), rtt in number(0, u64::MAX), burst_bytes in any::<u32>(), is_narrow: bool) -> Line {
        Line { rate: Bps::from_bps(rate), rtt: Duration::from_nanos(rtt), burst_bytes, is_narrow }
    }
}
