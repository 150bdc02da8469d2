//! Sizes, times and rates as people write them, and the bounds of numbers.

use crate::congestion::Bps;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const SIZE_UNITS: &[(&str, u64)] =
    &[("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)];
const TIME_UNITS: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const RATE_UNITS: &[(&str, u64)] =
    &[("Tb/s", 1_000_000_000_000), ("Gb/s", 1_000_000_000), ("Mb/s", 1_000_000), ("kb/s", 1_000), ("b/s", 1)];

/// A number of bytes, written `"64MiB"` or as a plain number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Size(u64);

impl Size {
    /// A size of so many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size of so many KiB.
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// A size of so many MiB.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Its bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// A span of time, written `"200us"`, `"30s"`; it always carries its unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// So many microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// So many seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// Its nanoseconds.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The span as the standard library's type.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Time {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        time.duration()
    }
}

/// Bits a second, written `"100Gb/s"`; it always carries its unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rate(u64);

impl Rate {
    /// So many 10^6 bits a second.
    pub const fn from_mbps(mbps: u64) -> Self {
        Self(mbps.saturating_mul(1_000_000))
    }

    /// As congestion control reckons.
    pub const fn bps(self) -> Bps {
        Bps::from_bps(self.0)
    }
}

impl From<Bps> for Rate {
    fn from(rate: Bps) -> Self {
        Self(rate.as_bps())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format(self.0, RATE_UNITS, "b/s"))
    }
}

impl FromStr for Rate {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, RATE_UNITS).map(Self).ok_or("a rate such as \"100Gb/s\" (b/s, kb/s, Mb/s, Gb/s or Tb/s)")
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(|expected| D::Error::invalid_value(Unexpected::Str(&text), &expected))
    }
}

/// For `with`: what is written as text.
pub(super) mod text {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer, T: fmt::Display>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(value)
    }

    pub(in super::super) fn deserialize<'de, D, T>(d: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: fmt::Display>,
    {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

/// For `with`: a list of what is written as text.
pub(super) mod texts {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer, T: fmt::Display>(list: &[T], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(list.iter().map(T::to_string))
    }

    pub(in super::super) fn deserialize<'de, D, T>(d: D) -> Result<Vec<T>, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: fmt::Display>,
    {
        Vec::<String>::deserialize(d)?.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

/// `"12unit"` as 12 times the unit; `None` if the number or the unit is none, or the product does not fit.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// The shortest exact form: the largest unit that divides the value.
fn format(value: u64, units: &[(&str, u64)], smallest_first: &str) -> String {
    match units.iter().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor)) {
        Some((name, factor)) => format!("{}{name}", value / factor),
        None => format!("{value}{smallest_first}"),
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format(self.0, SIZE_UNITS, "B"))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format(self.0, TIME_UNITS, "s"))
    }
}

impl FromStr for Size {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, SIZE_UNITS).map(Self).ok_or("a size such as \"64MiB\" (B, KiB, MiB, GiB or TiB)")
    }
}

impl FromStr for Time {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, TIME_UNITS).map(Self).ok_or("a time such as \"30s\" (ns, us, ms, s, min or h)")
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Reads `T` between two bounds, and says in the error what is allowed.
struct Between<T> {
    what: &'static str,
    min: T,
    max: T,
}

impl<T: fmt::Display> Between<T> {
    fn refuse<E: Error>(&self, found: Unexpected<'_>) -> E {
        E::invalid_value(found, &format!("{} from {} to {}", self.what, self.min, self.max).as_str())
    }
}

impl Visitor<'_> for Between<i64> {
    type Value = i64;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}", self.what, self.min, self.max)
    }
    fn visit_i64<E: Error>(self, v: i64) -> Result<i64, E> {
        if (self.min..=self.max).contains(&v) { Ok(v) } else { Err(self.refuse(Unexpected::Signed(v))) }
    }
}

impl Visitor<'_> for Between<Size> {
    type Value = Size;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}, with its unit (B, KiB, MiB, GiB, TiB)", self.what, self.min, self.max)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
        let found = Unexpected::Str(text);
        let size: Size = text.parse().map_err(|expected| E::invalid_value(found, &expected))?;
        if (self.min..=self.max).contains(&size) { Ok(size) } else { Err(self.refuse(found)) }
    }
}

impl Visitor<'_> for Between<Time> {
    type Value = Time;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}, with its unit (ns, us, ms, s, min, h)", self.what, self.min, self.max)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Time, E> {
        let found = Unexpected::Str(text);
        let time: Time = text.parse().map_err(|expected| E::invalid_value(found, &expected))?;
        if (self.min..=self.max).contains(&time) { Ok(time) } else { Err(self.refuse(found)) }
    }
}

/// For `deserialize_with`: a whole number from `MIN` to `MAX`.
pub(super) fn number<'de, D: Deserializer<'de>, const MIN: u32, const MAX: u32>(d: D) -> Result<u32, D::Error> {
    let v = d.deserialize_i64(Between { what: "a whole number", min: i64::from(MIN), max: i64::from(MAX) })?;
    // The bounds are u32, and the value lies between them.
    Ok(u32::try_from(v).unwrap_or(MAX))
}

/// For `deserialize_with`: a size from `MIN` to `MAX` bytes.
pub(crate) fn size<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(d: D) -> Result<Size, D::Error> {
    d.deserialize_str(Between { what: "a size", min: Size(MIN), max: Size(MAX) })
}

/// For `deserialize_with`: a time from `MIN` to `MAX` nanoseconds.
pub(crate) fn time<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(d: D) -> Result<Time, D::Error> {
    d.deserialize_str(Between { what: "a time", min: Time(MIN), max: Time(MAX) })
}

/// For `deserialize_with`: a RoCE MTU in bytes.
pub(super) fn mtu<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    let v = i64::deserialize(d)?;
    let known = u32::try_from(v).ok().and_then(crate::wire::PathMtu::from_bytes);
    known
        .map(crate::wire::PathMtu::bytes)
        .ok_or_else(|| D::Error::invalid_value(Unexpected::Signed(v), &"256, 512, 1024, 2048 or 4096"))
}

/// For `deserialize_with`: a RoCE MTU in bytes, where there may be none.
pub(super) fn some_mtu<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    mtu(d).map(Some)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_write_the_same() {
        for text in ["64MiB", "1B", "4KiB", "3GiB", "1025B", "0B"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        assert_eq!("1 GiB".parse::<Size>().unwrap(), Size::from_mib(1024));
    }

    #[test]
    fn times_read_and_write_the_same() {
        for text in ["30s", "200us", "5ms", "1h", "90s", "0s", "7ns", "2min"] {
            assert_eq!(text.parse::<Time>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn rates_read_and_write_the_same() {
        for text in ["100Gb/s", "40Mb/s", "1500kb/s", "7b/s", "0b/s", "1Tb/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert!("100".parse::<Rate>().is_err() && "100GB/s".parse::<Rate>().is_err());
    }

    #[test]
    fn a_size_without_a_unit_is_in_bytes() {
        assert_eq!("64".parse::<Size>().unwrap().to_string(), "64B");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "MiB", "-1MiB", "1.5MiB", "64mib", "99999999999GiB", "1 2B", "1é"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        for text in ["", "s", "1m", "5", "1s2", "99999999999999h"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }
}
