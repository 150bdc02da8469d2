//! The pacer: never above the rate by more than a bucket, and never hungry.

use super::super::{Allowance, Pace, Pacer};
use super::*;

const PACKET: u32 = 4178;

#[test]
fn bursts_shrink_with_the_rate() {
    let bucket = |rate| Pace::new(rate, PACKET, &tuning()).bucket_bytes();
    assert_eq!(bucket(Bps::from_gbps(40)), 64_000);
    assert_eq!(bucket(Bps::from_gbps(10)), 25_000);
    assert_eq!(bucket(Bps::from_gbps(1)), 2 * u64::from(PACKET));
    assert_eq!(bucket(Bps::from_mbps(10)), 2 * u64::from(PACKET));
}

#[test]
fn half_a_bucket_is_enough_and_a_late_look_finds_more() {
    let pace = Pace::new(Bps::from_gbps(10), PACKET, &tuning());
    let mut pacer = Pacer::new();
    let start = at_us(1000);
    assert_eq!(pacer.poll(start, &pace, u64::MAX), Allowance::Bytes(25_000));
    pacer.handle_sent(start, &pace, 25_000);
    assert_eq!(pacer.poll(start, &pace, u64::MAX), Allowance::Wait(at_us(1010)));
    assert_eq!(pacer.poll(at_us(1010), &pace, u64::MAX), Allowance::Bytes(12_500));
    assert_eq!(pacer.poll(at_us(1015), &pace, u64::MAX), Allowance::Bytes(18_750));
    assert_eq!(pacer.poll(at_us(9999), &pace, u64::MAX), Allowance::Bytes(25_000));
    // A small message need not wait for half a bucket.
    assert_eq!(pacer.poll(start, &pace, 1250), Allowance::Wait(at_us(1001)));
}

#[test]
fn a_drained_bucket_fills_from_now() {
    let pace = Pace::new(Bps::from_gbps(10), PACKET, &tuning());
    let mut pacer = Pacer::new();
    pacer.drain(at_us(1000));
    assert_eq!(pacer.poll(at_us(1000), &pace, u64::MAX), Allowance::Wait(at_us(1010)));
}

/// Times are in whole nanoseconds.
const ROUNDING: Duration = Duration::from_nanos(2);

/// What a worker does: how late it looks each time, and how much of what it may send it has.
fn turns() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec(
        (prop_oneof![Just(0), 0u64..30_000, 0u64..10_000_000], prop_oneof![Just(u64::MAX), 1u64..100_000]),
        2..80,
    )
}

proptest! {
    #[test]
    fn over_any_time_no_more_leaves_than_the_rate_and_one_bucket(
        mbps in 1u64..400_000, packet in 64u32..9000, burst_bytes in 0u32..200_000, turns in turns(),
    ) {
        let tuning = tuning().on(Line { burst_bytes, ..LINE });
        let pace = Pace::new(Bps::from_mbps(mbps), packet, &tuning);
        let (mut pacer, mut now, mut sent) = (Pacer::new(), at_us(1000), Vec::new());
        for (late, wanted) in turns {
            let allowance = pacer.poll(now, &pace, wanted);
            if let Allowance::Bytes(bytes) = allowance {
                prop_assert!(bytes <= pace.bucket_bytes());
                let bytes = bytes.min(wanted);
                pacer.handle_sent(now, &pace, bytes);
                sent.push((now, bytes));
            }
            match allowance {
                Allowance::Wait(at) => now = at + Duration::from_nanos(late),
                _ => now += Duration::from_nanos(late),
            }
        }
        for from in 0..sent.len() {
            let mut bytes = 0;
            for to in from..sent.len() {
                bytes += sent[to].1;
                let earned = pace_rate(mbps).bytes_in(sent[to].0.since(sent[from].0) + ROUNDING);
                prop_assert!(bytes <= earned + pace.bucket_bytes(), "{bytes} bytes, {earned} earned");
            }
        }
    }

    #[test]
    fn whoever_is_looked_at_in_time_gets_the_whole_rate(
        mbps in 1u64..400_000, packet in 64u32..9000, lateness in prop::collection::vec(0u64..=100, 200),
    ) {
        let pace = Pace::new(pace_rate(mbps), packet, &tuning());
        let (mut pacer, start, mut sent) = (Pacer::new(), at_us(1000), 0);
        let mut now = start;
        for percent in lateness {
            let Allowance::Wait(at) = pacer.poll(now, &pace, u64::MAX) else {
                let Allowance::Bytes(bytes) = pacer.poll(now, &pace, u64::MAX) else { unreachable!("one of the two") };
                // At most a packet less than allowed: only whole ones leave.
                let whole = bytes - bytes % u64::from(packet);
                prop_assert!(whole > 0, "an allowance that holds no packet");
                pacer.handle_sent(now, &pace, whole);
                sent += whole;
                continue;
            };
            prop_assert!(at > now, "it would spin");
            // Late by at most the half of the bucket that is left to fill.
            now = at + pace.time_to_fill() * (percent as u32) / 250;
        }
        let earned = pace_rate(mbps).bytes_in(now.since(start));
        // Rounding up costs a nanosecond a burst: a 64-byte packet at 400 Gb/s takes one itself.
        let rounding = pace_rate(mbps).bytes_in(Duration::from_nanos(400));
        prop_assert!(sent + pace.bucket_bytes() + rounding >= earned, "{sent} of {earned} bytes");
    }

    #[test]
    fn changing_rates_never_buy_more_than_the_time_there_is(
        rates in prop::collection::vec((1u64..400_000, 0u64..1_000_000), 2..60),
    ) {
        let (mut pacer, start) = (Pacer::new(), at_us(1_000_000));
        let (mut now, mut on_air, mut slowest) = (start, Duration::ZERO, Duration::ZERO);
        for (mbps, gap) in rates {
            let pace = Pace::new(pace_rate(mbps), PACKET, &tuning());
            slowest = slowest.max(pace.time_to_fill());
            if let Allowance::Bytes(bytes) = pacer.poll(now, &pace, u64::MAX) {
                pacer.handle_sent(now, &pace, bytes);
                on_air += pace_rate(mbps).time_for(bytes);
            }
            prop_assert!(on_air <= now.since(start) + slowest + Duration::from_nanos(60));
            now += Duration::from_nanos(gap);
        }
    }
}

fn pace_rate(mbps: u64) -> Bps {
    Bps::from_mbps(mbps)
}
