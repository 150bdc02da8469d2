//! What a run came to, as tables and as JSON.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// One line of a bandwidth table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bytes of one message.
    pub message_bytes: u32,
    /// Messages completed.
    pub messages: u64,
    /// From the first post to the last completion, in seconds.
    pub seconds: f64,
    /// Of those, lost on the way, where nobody sends them again and the receiver counts (UC, UD).
    pub lost_messages: u64,
    /// Bytes that were compared; 0 without verification.
    pub verified_bytes: u64,
    /// Bytes that were not what was sent.
    pub wrong_bytes: u64,
}

impl Bandwidth {
    /// This and what went the other way at the same time.
    #[must_use]
    pub fn beside(&self, other: &Self) -> Self {
        Self {
            message_bytes: self.message_bytes,
            messages: self.messages + other.messages,
            seconds: self.seconds.max(other.seconds),
            lost_messages: self.lost_messages + other.lost_messages,
            verified_bytes: self.verified_bytes + other.verified_bytes,
            wrong_bytes: self.wrong_bytes + other.wrong_bytes,
        }
    }

    /// Messages that arrived.
    const fn arrived(&self) -> f64 {
        self.messages.saturating_sub(self.lost_messages) as f64
    }

    /// Gigabits a second of payload.
    pub fn gbit_per_second(&self) -> f64 {
        self.arrived() * f64::from(self.message_bytes) * 8.0 / self.seconds / 1e9
    }

    /// Mebibytes a second of payload, the unit that perftest prints.
    pub fn mib_per_second(&self) -> f64 {
        self.arrived() * f64::from(self.message_bytes) / self.seconds / f64::from(1 << 20)
    }

    /// Million messages a second.
    pub fn million_messages_per_second(&self) -> f64 {
        self.arrived() / self.seconds / 1e6
    }

    /// Column titles, as wide as [`Self::row`].
    pub fn header() -> String {
        format!("{:>10} {:>12} {:>10} {:>10} {:>10}  {}", "bytes", "messages", "MiB/s", "Gb/s", "Mmsg/s", "verified")
    }

    /// The line for a person.
    pub fn row(&self) -> String {
        let verified = match (self.verified_bytes, self.wrong_bytes) {
            (0, 0) => "-".to_owned(),
            (_, 0) => "every byte".to_owned(),
            (_, wrong) => format!("{wrong} BYTES WRONG"),
        };
        let lost = match self.lost_messages {
            0 => String::new(),
            lost => format!(", {lost} lost"),
        };
        format!(
            "{:>10} {:>12} {:>10.1} {:>10.3} {:>10.4}  {verified}{lost}",
            self.message_bytes,
            self.messages,
            self.mib_per_second(),
            self.gbit_per_second(),
            self.million_messages_per_second(),
        )
    }
}

/// One line of a latency table, in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Bytes of one message.
    pub message_bytes: u32,
    /// Samples taken.
    pub samples: u64,
    /// The shortest.
    pub min_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Bytes that were not what was sent.
    pub wrong_bytes: u64,
}

impl Latency {
    /// Sums up samples in nanoseconds; `halve` gives one way of a measured round trip (perftest's convention for WRITE and
    /// SEND; a READ or an atomic is a round trip by nature).
    pub fn of(message_bytes: u32, samples_ns: &Histogram<u64>, halve: bool, wrong_bytes: u64) -> Self {
        let scale = if halve { 2000.0 } else { 1000.0 };
        let at = |q: f64| samples_ns.value_at_quantile(q) as f64 / scale;
        Self {
            message_bytes,
            samples: samples_ns.len(),
            min_us: samples_ns.min() as f64 / scale,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: samples_ns.max() as f64 / scale,
            wrong_bytes,
        }
    }

    /// Column titles, as wide as [`Self::row`].
    pub fn header() -> String {
        format!(
            "{:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  (us)",
            "bytes", "samples", "min", "p50", "p90", "p99", "p99.9", "max"
        )
    }

    /// The line for a person.
    pub fn row(&self) -> String {
        let wrong = if self.wrong_bytes > 0 { format!("  {} BYTES WRONG", self.wrong_bytes) } else { String::new() };
        format!(
            "{:>10} {:>10} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2}{wrong}",
            self.message_bytes,
            self.samples,
            self.min_us,
            self.p50_us,
            self.p90_us,
            self.p99_us,
            self.p999_us,
            self.max_us
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rates_are_of_payload_and_rows_are_as_wide_as_their_titles() {
        let b = Bandwidth {
            message_bytes: 1 << 20,
            messages: 1024,
            seconds: 2.0,
            lost_messages: 0,
            verified_bytes: 0,
            wrong_bytes: 0,
        };
        assert!((b.mib_per_second() - 512.0).abs() < 1e-9);
        assert!((b.gbit_per_second() - 4.294_967_296).abs() < 1e-9);
        assert_eq!(b.row().find('-'), Bandwidth::header().find("verified"));
        let both = b.beside(&Bandwidth { messages: 1000, seconds: 4.0, lost_messages: 24, ..b });
        assert!((both.mib_per_second() - 500.0).abs() < 1e-9, "what was lost does not count");
        assert!(both.row().ends_with("-, 24 lost"));
        let wrong = Bandwidth { verified_bytes: 5, wrong_bytes: 2, ..b };
        assert!(wrong.row().ends_with("2 BYTES WRONG"));
    }

    #[test]
    fn latency_halves_round_trips_only_when_told() {
        let mut h = Histogram::<u64>::new(3).unwrap();
        for v in [1000, 2000, 3000] {
            h.record(v).unwrap();
        }
        assert_eq!(Latency::of(8, &h, true, 0).p50_us, 1.0);
        assert_eq!(Latency::of(8, &h, false, 0).max_us.round(), 3.0);
    }
}
