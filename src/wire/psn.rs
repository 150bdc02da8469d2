//! Packet sequence numbers and queue pair numbers: 24 bits each.

use core::fmt;

/// A packet sequence number, modulo 2^24 (IBTA 9.7.1).
///
/// Order is only defined within half the circle: `a` is before `b` if the way up from `a` to `b` is shorter than 2^23.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Takes the low 24 bits.
    pub const fn new(v: u32) -> Self {
        Self(v & 0x00ff_ffff)
    }

    /// The number, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` further up, around the wrap.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// The PSN `n` further down, around the wrap.
    #[must_use]
    pub const fn minus(self, n: u32) -> Self {
        Self::new(self.0.wrapping_sub(n))
    }

    /// The signed way from `other` to `self`, -2^23 to 2^23 - 1.
    pub const fn distance(self, other: Self) -> i32 {
        // Shifting to the top of the word and back extends bit 23 as the sign.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether `self` comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A queue pair number, 24 bits. 0 is the subnet management QP, 1 the general services QP (IBTA 3.5.10).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services QP (connection management).
    pub const GSI: Self = Self(1);

    /// Takes the low 24 bits.
    pub const fn new(v: u32) -> Self {
        Self(v & 0x00ff_ffff)
    }

    /// The number, 0 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_around_the_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert!(last.is_before(Psn::new(0)));
        assert_eq!(Psn::new(2).distance(last), 3);
        assert_eq!(last.distance(Psn::new(2)), -3);
    }

    #[test]
    fn half_the_circle_is_the_limit_of_order() {
        let a = Psn::new(5);
        assert!(a.is_before(a.plus((1 << 23) - 1)));
        // Just opposite, both ways are equally long: nobody may have that many PSNs under way.
        assert_eq!(a.plus(1 << 23).distance(a), -(1 << 23));
        assert_eq!(a.distance(a.plus(1 << 23)), -(1 << 23));
    }
}
