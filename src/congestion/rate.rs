//! Rates, and bytes at a rate, in integers.

use crate::time::Duration;
use core::fmt;

const NS_PER_SECOND: u64 = 1_000_000_000;
const BITS: u64 = 8;

/// Bits a second. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bps(u64);

impl Bps {
    /// Nothing ever passes.
    pub const ZERO: Self = Self(0);
    /// More than any line has.
    pub const MAX: Self = Self(u64::MAX);

    /// `bits` a second.
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// 10^6 bits a second: the unit of NVIDIA's rate parameters.
    pub const fn from_mbps(megabits: u64) -> Self {
        Self(megabits.saturating_mul(1_000_000))
    }

    /// 10^9 bits a second: the unit of a line.
    pub const fn from_gbps(gigabits: u64) -> Self {
        Self(gigabits.saturating_mul(1_000_000_000))
    }

    /// Bits a second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// The sum.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference; zero if `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `times` as much.
    #[must_use]
    pub const fn saturating_mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// Half the way to `target`, which is above. Rounded up, so that repeating it arrives.
    #[must_use]
    pub(super) const fn halfway_to(self, target: Self) -> Self {
        Self(self.0.saturating_add(target.0.saturating_sub(self.0).div_ceil(2)))
    }

    /// `part` of 2^`shift` of the rate, rounded down.
    #[must_use]
    pub(super) const fn fraction(self, part: u32, shift: u32) -> Self {
        Self::of_wide((self.0 as u128 * part as u128) >> shift)
    }

    /// `percent` of the rate, rounded down.
    #[must_use]
    pub(super) const fn percent(self, percent: u8) -> Self {
        Self::of_wide(self.0 as u128 * percent as u128 / 100)
    }

    const fn of_wide(wide: u128) -> Self {
        Self(if wide > u64::MAX as u128 { u64::MAX } else { wide as u64 })
    }

    /// How long `bytes` take, rounded up to nanoseconds: who waits this long never exceeds the rate. At rate 0 the longest time there is.
    pub const fn time_for(self, bytes: u64) -> Duration {
        if self.0 == 0 {
            return Duration::from_nanos(if bytes == 0 { 0 } else { u64::MAX });
        }
        // All but absurd sizes fit in 64 bits, where dividing is several times faster.
        if let Some(bit_ns) = bytes.checked_mul(BITS * NS_PER_SECOND) {
            return Duration::from_nanos(bit_ns.div_ceil(self.0));
        }
        let ns = (bytes as u128 * (BITS * NS_PER_SECOND) as u128).div_ceil(self.0 as u128);
        Duration::from_nanos(if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 })
    }

    /// Bytes that pass within `time`, rounded down.
    pub const fn bytes_in(self, time: Duration) -> u64 {
        let ns = time.as_nanos();
        let ns = if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 };
        if let Some(bit_ns) = self.0.checked_mul(ns) {
            return bit_ns / (BITS * NS_PER_SECOND);
        }
        let bytes = self.0 as u128 * ns as u128 / (BITS * NS_PER_SECOND) as u128;
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }
}

/// In the unit that an operator would use, to thousandths of it: `40 Gb/s`, `625.5 Mb/s`.
impl fmt::Display for Bps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            1_000_000_000.. => (1_000_000_000, "Gb/s"),
            1_000_000.. => (1_000_000, "Mb/s"),
            1_000.. => (1_000, "kb/s"),
            _ => (1, "b/s"),
        };
        let thousandths = u64::try_from(u128::from(self.0 % unit) * 1000 / u128::from(unit)).unwrap_or(0);
        write!(f, "{}", self.0 / unit)?;
        if thousandths > 0 {
            write!(f, ".{}", format!("{thousandths:03}").trim_end_matches('0'))?;
        }
        write!(f, " {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_round_up_and_bytes_round_down() {
        let rate = Bps::from_gbps(40);
        assert_eq!(rate.time_for(5000), Duration::from_micros(1));
        assert_eq!(rate.time_for(5001), Duration::from_nanos(1001));
        assert_eq!(rate.bytes_in(Duration::from_nanos(1001)), 5005);
        assert_eq!(Bps::from_bps(7).bytes_in(Duration::from_secs(1)), 0);
        assert_eq!(Bps::ZERO.time_for(1), Duration::from_nanos(u64::MAX));
        assert_eq!(Bps::ZERO.time_for(0), Duration::ZERO);
        assert_eq!(Bps::MAX.bytes_in(Duration::MAX), u64::MAX);
    }

    #[test]
    fn halfway_arrives() {
        let (mut rate, target) = (Bps::from_mbps(1), Bps::from_gbps(400));
        for _ in 0..40 {
            rate = rate.halfway_to(target);
        }
        assert_eq!(rate, target);
    }

    #[test]
    fn rates_are_told_in_the_unit_that_fits() {
        let told = |bits| Bps::from_bps(bits).to_string();
        assert_eq!(told(40_000_000_000), "40 Gb/s");
        assert_eq!(told(625_500_000), "625.5 Mb/s");
        assert_eq!(told(1_050), "1.05 kb/s");
        assert_eq!(told(0), "0 b/s");
        assert_eq!(told(u64::MAX), "18446744073.709 Gb/s");
    }

    proptest! {
        #[test]
        fn waiting_for_bytes_earns_them(rate in 1u64.., bytes in any::<u64>()) {
            let rate = Bps::from_bps(rate);
            let time = rate.time_for(bytes);
            // Beyond the end of time there is no more waiting.
            prop_assert!(rate.bytes_in(time) >= bytes || time == Duration::from_nanos(u64::MAX));
            let exact = u128::from(bytes) * 8_000_000_000;
            prop_assert!(time.as_nanos() == exact.div_ceil(u128::from(rate.as_bps())).min(u128::from(u64::MAX)));
        }

        #[test]
        fn nothing_overflows(a in any::<u64>(), b in any::<u64>(), part: u32, percent: u8, ns: u64) {
            let (a, b) = (Bps::from_bps(a), Bps::from_bps(b));
            prop_assert!(a.saturating_add(b) >= a && a.saturating_sub(b) <= a);
            prop_assert!(a.halfway_to(b) >= a && a.halfway_to(b) <= a.max(b));
            prop_assert!(a.fraction(part, 32) <= a);
            prop_assert!(percent > 100 || a.percent(percent) <= a);
            prop_assert!(a.bytes_in(Duration::from_nanos(ns)) <= a.bytes_in(Duration::MAX));
        }
    }
}
