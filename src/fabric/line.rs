//! One direction of a circuit, or the packet-switched fallback: a queue, a rate, a length, and bad luck.

use super::frame::Frame;
use crate::io::SplitMix;
use crate::time::{Duration, Instant};
use serde::Serialize;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// What a line is like. The default is a perfect one: no delay, no loss, as fast as frames come.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LineSettings {
    /// Bits a second; 0 for no limit.
    pub rate_bps: u64,
    /// From when the last bit leaves to when it arrives.
    pub delay: Duration,
    /// What waits to leave may be at most so many bytes; 0 for no limit. Without a rate nothing waits.
    pub queue_bytes: u64,
    /// Probability that a packet is lost on its way.
    pub loss: f64,
    /// Probability that a packet is overtaken by those behind it.
    pub reordering: f64,
    /// How much later than it should an overtaken packet arrives.
    pub reordered_by: Duration,
    /// Marks of congestion; `None` for none.
    pub ecn: Option<EcnSettings>,
}

/// When packets are marked, by the bytes that wait before them: never up to `kmin`, from there with a probability that grows to
/// `pmax` at `kmax`, always beyond (DCQCN, SIGCOMM 2015, figure 5).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EcnSettings {
    /// Bytes.
    pub kmin: u64,
    /// Bytes.
    pub kmax: u64,
    /// Probability, 0 to 1.
    pub pmax: f64,
}

impl EcnSettings {
    /// The probability of a mark behind so many waiting bytes.
    pub fn probability(&self, waiting: u64) -> f64 {
        match waiting {
            _ if waiting <= self.kmin => 0.0,
            _ if waiting > self.kmax => 1.0,
            _ => self.pmax * (waiting - self.kmin) as f64 / (self.kmax - self.kmin).max(1) as f64,
        }
    }
}

/// What became of the packets of a circuit or the fallback, both directions together.
///
/// `taken` is the sum of `passed`, `lost_in_dark`, `lost_by_chance`, `dropped_by_queue` and what is still under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LineCounters {
    /// Packets given to it.
    pub taken: u64,
    /// Packets that came out at the other end.
    pub passed: u64,
    /// Bytes of those, headers included.
    pub passed_bytes: u64,
    /// Packets that met the dark.
    pub lost_in_dark: u64,
    /// Packets lost by chance.
    pub lost_by_chance: u64,
    /// Packets that found the queue full.
    pub dropped_by_queue: u64,
    /// Packets that others may have overtaken.
    pub reordered: u64,
    /// Packets marked with congestion experienced.
    pub marked: u64,
}

/// When a frame on a line leaves its queue, and when it arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Passage {
    pub(super) departs: Instant,
    pub(super) arrives: Instant,
}

/// The state of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// When all that waits has left.
    busy_until: Instant,
}

impl Line {
    /// A frame enters. What comes out is what is not lost, with its passage; all else is counted.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        frame: Frame,
        settings: &LineSettings,
        counters: &mut LineCounters,
        random: &mut SplitMix,
    ) -> Vec<(Passage, Frame)> {
        counters.taken += frame.packets();
        // A super-packet has one fate where nothing happens by chance.
        if settings.loss > 0.0 || settings.reordering > 0.0 {
            let packets = frame.into_packets().into_iter();
            packets.filter_map(|packet| self.admit_one(now, packet, settings, counters, random)).collect()
        } else {
            self.admit_one(now, frame, settings, counters, random).into_iter().collect()
        }
    }

    fn admit_one(
        &mut self,
        now: Instant,
        mut frame: Frame,
        settings: &LineSettings,
        counters: &mut LineCounters,
        random: &mut SplitMix,
    ) -> Option<(Passage, Frame)> {
        let packets = frame.packets();
        // All dice are thrown for each frame: one rate does not shift the fates that another decides.
        let waiting = self.waiting_bytes(now, settings);
        let marks = settings.ecn.map_or(0.0, |ecn| ecn.probability(waiting));
        let [is_lost, is_overtaken, is_marked] =
            [settings.loss, settings.reordering, marks].map(|probability| random.happens(probability));
        let bytes = frame.wire_bytes();
        if settings.queue_bytes != 0 && waiting + bytes > settings.queue_bytes {
            counters.dropped_by_queue += packets;
            return None;
        }
        let departs = self.busy_until.max(now) + serialisation(bytes, settings.rate_bps);
        self.busy_until = departs;
        if is_lost {
            counters.lost_by_chance += packets;
            return None;
        }
        if is_marked && frame.mark_ce() {
            counters.marked += packets;
        }
        let mut arrives = departs + settings.delay;
        if is_overtaken {
            counters.reordered += packets;
            arrives += settings.reordered_by;
        }
        Some((Passage { departs, arrives }, frame))
    }

    /// Bytes that have not left yet.
    fn waiting_bytes(&self, now: Instant, settings: &LineSettings) -> u64 {
        let bits = self.busy_until.since(now).as_nanos() * u128::from(settings.rate_bps) / NS_PER_SECOND;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }

    /// What waited is lost; the next frame leaves at once.
    pub(super) fn empty(&mut self, now: Instant) {
        self.busy_until = self.busy_until.min(now);
    }
}

/// How long so many bytes take at a rate, rounded up: a line is never faster than it says.
fn serialisation(bytes: u64, rate_bps: u64) -> Duration {
    let ns = (u128::from(bytes) * 8 * NS_PER_SECOND).div_ceil(u128::from(rate_bps.max(1)));
    if rate_bps == 0 { Duration::ZERO } else { Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)) }
}
