//! Alpha: how congested a queue pair's way is believed to be.

/// Bits behind the binary point.
const SHIFT: u32 = 30;
const ONE: u32 = 1 << SHIFT;
/// NVIDIA's parameters have 10 bits behind theirs.
const FROM_NVIDIA: u32 = SHIFT - 10;

/// An estimate of congestion from 0 (none) to 1, in steps of 2^-30: with the 10 bits of NVIDIA's parameters it would stop decaying at a
/// quarter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Alpha(u32);

impl Alpha {
    /// No congestion.
    pub const ZERO: Self = Self(0);
    /// From [`Alpha::raw`] to 1/1024.
    pub(super) const SHIFT_TO_1024THS: u32 = FROM_NVIDIA;

    /// From 1/1024, at most 1.
    pub(super) fn from_1024ths(value: u16) -> Self {
        Self(u32::from(value.min(1024)) << FROM_NVIDIA)
    }

    /// In 1/1024, NVIDIA's unit, rounded down.
    pub const fn as_1024ths(self) -> u16 {
        (self.0 >> FROM_NVIDIA) as u16
    }

    /// In 2^-30.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// For display.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(ONE)
    }

    /// A CNP came: alpha = (1-g) alpha + g, where `stays` is 1-g in 1/1024 (the paper's equation 1).
    #[must_use]
    pub(super) fn heard(self, stays: u16) -> Self {
        let stays = Self::from_1024ths(stays).0;
        Self(product(self.0, stays).saturating_add(ONE - stays).min(ONE))
    }

    /// `times` periods without a CNP: alpha = (1-g) alpha, each time (the paper's equation 2). At most 128 multiplications.
    #[must_use]
    pub(super) fn decayed(self, stays: u16, mut times: u64) -> Self {
        let (mut alpha, mut factor) = (self.0, Self::from_1024ths(stays).0);
        while times > 0 && alpha > 0 {
            if times & 1 == 1 {
                alpha = product(alpha, factor);
            }
            factor = product(factor, factor);
            times >>= 1;
        }
        Self(alpha)
    }
}

/// Of two numbers up to 1, rounded down.
fn product(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> SHIFT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decaying_at_once_is_decaying_step_by_step(start in 0u16..=1024, stays in 0u16..=1024, times in 0u64..2000) {
            let exact = f64::from(start) / 1024.0 * (f64::from(stays) / 1024.0).powi(times as i32);
            let at_once = Alpha::from_1024ths(start).decayed(stays, times).as_f64();
            prop_assert!((at_once - exact).abs() < 1e-5, "{at_once} {exact}");
        }

        #[test]
        fn alpha_stays_between_0_and_1(start: u16, stays: u16, times: u64) {
            let alpha = Alpha::from_1024ths(start);
            prop_assert!(alpha.heard(stays).0 <= ONE && alpha.heard(stays) >= alpha.min(Alpha::from_1024ths(1023)));
            prop_assert!(alpha.decayed(stays, times) <= alpha);
        }
    }

    #[test]
    fn it_rises_to_1_and_falls_to_0() {
        let mut alpha = Alpha::default();
        for _ in 0..10_000 {
            alpha = alpha.heard(1020);
        }
        assert!(alpha.as_f64() > 0.999_999);
        assert_eq!(alpha.decayed(1020, 1 << 40), Alpha::default());
    }
}
