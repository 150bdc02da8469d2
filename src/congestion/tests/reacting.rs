//! The reaction point: CNPs too many, timers too late, the dark, and extremes.

use super::super::{Bps, CnpEffect, Flow, ReactionPoint, Tuning};
use super::*;

fn cut_once(tuning: &Tuning) -> ReactionPoint {
    let mut point = ReactionPoint::new();
    assert_eq!(point.handle_cnp(at_us(1000), tuning), CnpEffect::Cut);
    point
}

#[test]
fn whoever_heard_no_cnp_is_not_limited() {
    let tuning = tuning();
    let mut point = ReactionPoint::new();
    point.handle_sent(at_us(1), 1 << 40, &tuning);
    assert!(!point.is_limited());
    assert_eq!((point.rate(&tuning), point.poll_timeout(&tuning)), (LINE.rate, None));
}

#[test]
fn cnps_too_close_together_cut_once_more_when_the_period_is_over() {
    let tuning = tuning();
    let mut point = cut_once(&tuning);
    let once = point.rate(&tuning);
    for n in 1..40 {
        assert_eq!(point.handle_cnp(at_us(1000 + n), &tuning), CnpEffect::Deferred);
    }
    assert_eq!(point.rate(&tuning), once);
    assert_eq!(point.poll_timeout(&tuning), Some(at_us(1050)));
    point.handle_timeout(at_us(1049), &tuning);
    assert_eq!(point.rate(&tuning), once);
    point.handle_timeout(at_us(1050), &tuning);
    let twice = point.rate(&tuning);
    assert!(twice < once.percent(51) && twice > once.percent(49));
    // And only once.
    assert_eq!(point.poll_timeout(&tuning), Some(at_us(1105)));
}

#[test]
fn a_cut_leaves_at_least_rpg_min_dec_fac_and_rpg_min_rate() {
    let gentle = tuned(|p| p.rpg_min_dec_fac = 95);
    assert_eq!(cut_once(&gentle).rate(&gentle), Bps::from_gbps(38));
    let floor = tuned(|p| p.rpg_min_rate = Bps::from_gbps(30));
    assert_eq!(cut_once(&floor).rate(&floor), Bps::from_gbps(30));
}

#[test]
fn rpg_gd_is_a_shift() {
    let all = tuned(|p| (p.rpg_gd, p.rpg_min_dec_fac) = (10, 1));
    assert_eq!(cut_once(&all).rate(&all), Bps::from_mbps(400));
    let quarter = tuned(|p| p.rpg_gd = 12);
    assert_eq!(cut_once(&quarter).rate(&quarter).as_bps() / 1_000_000, 30_009);
}

#[test]
fn the_first_cnp_may_set_the_rate() {
    let tuning = tuned(|p| p.rate_to_set_on_first_cnp = Bps::from_gbps(2));
    let mut point = cut_once(&tuning);
    assert_eq!((point.rate(&tuning), point.target(&tuning)), (Bps::from_gbps(2), Bps::from_gbps(2)));
    point.handle_cnp(at_us(1050), &tuning);
    assert!(point.rate(&tuning) < Bps::from_gbps(2) && point.rate(&tuning) > Bps::from_mbps(990));
}

#[test]
fn without_clamp_tgt_rate_the_target_outlasts_cuts_in_a_row() {
    let kept = tuned(|p| p.clamp_tgt_rate = false);
    let mut point = cut_once(&kept);
    point.handle_cnp(at_us(1050), &kept);
    assert_eq!(point.target(&kept), LINE.rate);
    // A raise by the timer between them makes the rate the target.
    point.handle_timeout(at_us(1110), &kept);
    let raised = point.rate(&kept);
    point.handle_cnp(at_us(1111), &kept);
    assert_eq!(point.target(&kept), raised);

    let by_bytes_only = tuned(|p| (p.clamp_tgt_rate, p.clamp_tgt_rate_after_time_inc) = (false, false));
    let mut point = cut_once(&by_bytes_only);
    point.handle_timeout(at_us(1060), &by_bytes_only);
    point.handle_cnp(at_us(1061), &by_bytes_only);
    assert_eq!(point.target(&by_bytes_only), LINE.rate);
}

#[test]
fn a_byte_counter_that_is_off_never_raises() {
    let off = tuned(|p| p.rpg_byte_reset = 0);
    let mut point = cut_once(&off);
    let before = point;
    point.handle_sent(at_us(1001), 1 << 50, &off);
    assert_eq!(point, before);
}

#[test]
fn after_recovery_it_is_not_limited_and_the_next_cnp_after_long_silence_is_a_first_one() {
    let tuning = tuning();
    let mut point = cut_once(&tuning);
    point.handle_timeout(at_us(500_000), &tuning);
    assert!(!point.is_limited());
    assert_eq!(point.poll_timeout(&tuning), None);
    point.handle_cnp(at_us(500_000), &tuning);
    assert_eq!(point.rate(&tuning).as_bps() / 1_000_000, 20_019);

    // Soon after, what alpha knows counts.
    let quick = tuned(|p| p.rpg_ai_rate = Bps::from_gbps(40));
    let mut point = cut_once(&quick);
    point.handle_timeout(at_us(11_000), &quick);
    assert!(!point.is_limited());
    point.handle_cnp(at_us(11_000), &quick);
    let (rate, alpha) = (point.rate(&quick).as_bps() as f64, point.alpha(at_us(11_000), &quick).as_f64());
    assert!(rate > 25e9 && alpha < 0.6, "{rate} {alpha}");
}

#[test]
fn in_the_dark_nothing_moves() {
    let tuning = tuning();
    let mut point = cut_once(&tuning);
    point.handle_cnp(at_us(1010), &tuning);
    point.handle_timeout(at_us(1040), &tuning);
    let (rate, alpha) = (point.rate(&tuning), point.alpha(at_us(1040), &tuning));
    point.freeze(at_us(1040), &tuning);
    point.freeze(at_us(1041), &tuning);
    let frozen = point;
    assert_eq!(point.poll_timeout(&tuning), None);
    point.handle_timeout(at_us(9_000_000), &tuning);
    point.handle_sent(at_us(9_000_000), 1 << 40, &tuning);
    assert_eq!(point.handle_cnp(at_us(9_000_000), &tuning), CnpEffect::Discounted);
    assert_eq!((point, point.alpha(at_us(9_000_000), &tuning)), (frozen, alpha));

    // 40 of 55 us of the timer had run.
    point.thaw(at_us(9_000_000), &tuning);
    assert_eq!((point.rate(&tuning), point.alpha(at_us(9_000_000), &tuning)), (rate, alpha));
    assert_eq!(point.poll_timeout(&tuning), Some(at_us(9_000_015)));
    // The CNP that waited is forgotten, those under way are discounted, and what comes later counts.
    assert_eq!(point.handle_cnp(at_us(9_000_049), &tuning), CnpEffect::Discounted);
    assert_eq!(point.handle_cnp(at_us(9_000_050), &tuning), CnpEffect::Cut);
}

#[test]
fn a_path_whose_clock_stood_still_thaws_all_its_queue_pairs_at_once() {
    let mut tuning = tuning();
    let (mut waiting, quiet) = (cut_once(&tuning), cut_once(&tuning));
    waiting.handle_cnp(at_us(1010), &tuning);
    // Here nobody looked before the dark, though it was time.
    let mut due = ReactionPoint::new();
    due.handle_cnp(at_us(960), &tuning);
    due.handle_cnp(at_us(1001), &tuning);
    tuning.handle_thaw(at_us(1020));
    let tuning = tuning.on(LINE);
    for (mut point, cuts) in [(waiting, 1), (due, 2), (quiet, 1)] {
        point.handle_timeout(at_us(1054), &tuning);
        let rate = point.rate(&tuning);
        assert_eq!(rate < Bps::from_gbps(11), cuts == 2, "{rate} after {cuts} cuts");
        assert_eq!(point.handle_cnp(at_us(1069), &tuning), CnpEffect::Discounted);
        assert_eq!(point.handle_cnp(at_us(1070), &tuning), CnpEffect::Cut);
    }
}

#[test]
fn after_a_thaw_cnps_count_again_a_round_trip_later() {
    let tuning = tuning().on(Line { rtt: us(110), ..LINE });
    let mut point = ReactionPoint::new();
    point.freeze(at_us(5), &tuning);
    // The driver's clock stood still.
    point.thaw(at_us(5), &tuning);
    assert_eq!(point.handle_cnp(at_us(114), &tuning), CnpEffect::Discounted);
    assert_eq!(point.handle_cnp(at_us(115), &tuning), CnpEffect::Cut);
}

#[test]
fn over_a_long_circuit_cuts_come_once_a_round_trip() {
    let tuning = tuning().on(Line { rtt: us(110), ..LINE });
    let mut point = cut_once(&tuning);
    assert_eq!(point.handle_cnp(at_us(1109), &tuning), CnpEffect::Deferred);
    assert_eq!(point.poll_timeout(&tuning), Some(at_us(1110)));
}

#[test]
fn a_remembered_rate_fits_the_line_it_comes_back_to() {
    let tuning = tuning();
    let point = cut_once(&tuning);
    let slow = tuning.on(Line { rate: Bps::from_gbps(10), ..LINE });
    assert_eq!(point.rate(&slow), Bps::from_gbps(10));
}

#[test]
fn the_dark_is_no_silence_that_makes_the_next_cnp_a_first_one() {
    let quick = tuned(|p| p.rpg_ai_rate = Bps::from_gbps(40));
    let mut point = cut_once(&quick);
    point.handle_timeout(at_us(11_000), &quick);
    point.freeze(at_us(11_000), &quick);
    point.thaw(at_us(5_000_000), &quick);
    point.handle_cnp(at_us(5_000_050), &quick);
    assert!(point.rate(&quick) > Bps::from_gbps(25));
}

/// Something that can happen to a flow: when, and what.
fn any_event() -> impl Strategy<Value = (u64, u8, u64)> {
    (prop_oneof![0u64..10_000_000, any::<u64>()], any::<u8>(), any::<u64>())
}

proptest! {
    #[test]
    fn a_late_timer_is_made_up_for(cnps in prop::collection::vec(50u64..2_000, 1..20), wait in 0u64..400_000) {
        let tuning = tuning();
        let (mut on_time, mut late) = (ReactionPoint::new(), ReactionPoint::new());
        let mut now = 1000;
        for gap in cnps {
            now += gap;
            while let Some(due) = on_time.poll_timeout(&tuning).filter(|due| *due <= at_us(now)) {
                on_time.handle_timeout(due, &tuning);
            }
            on_time.handle_cnp(at_us(now), &tuning);
            late.handle_cnp(at_us(now), &tuning);
        }
        let end = at_us(now + wait);
        while let Some(due) = on_time.poll_timeout(&tuning).filter(|due| *due <= end) {
            on_time.handle_timeout(due, &tuning);
        }
        late.handle_timeout(end, &tuning);
        let (a, b) = (on_time.rate(&tuning).as_bps(), late.rate(&tuning).as_bps());
        // Far from the last cut it is reckoned in one step: to some bits a second.
        prop_assert!(a.abs_diff(b) <= 1000, "{a} {b}");
        prop_assert_eq!(on_time.is_limited(), late.is_limited());
    }

    #[test]
    fn no_parameters_line_or_times_overflow_or_leave_the_range(
        parameters in any_parameters(),
        line in any_line(),
        events in prop::collection::vec(any_event(), 1..60),
    ) {
        let mut tuning = Tuning::new(parameters, line).unwrap();
        let mut flow = Flow::new();
        let mut now = Instant::ZERO;
        for (gap, what, value) in events {
            // Small ones add up; large ones jump, also back.
            now = if gap < 10_000_000 { now + Duration::from_nanos(gap) } else { Instant::from_ns(gap) };
            match what % 9 {
                0 | 1 => { flow.handle_cnp(now, &tuning); }
                2 => flow.handle_sent(now, value as u32, value, &tuning),
                3 => { flow.handle_ce(now, &tuning); }
                4 => flow.handle_timeout(now, &tuning),
                5 => flow.freeze(now, &tuning),
                6 => flow.thaw(now, &tuning),
                7 => tuning.handle_thaw(now),
                _ => { flow.poll_allowance(now, value as u32, value, &tuning); }
            }
            flow.poll_timeout(&tuning);
            let (rate, target) = (flow.reaction().rate(&tuning), flow.reaction().target(&tuning));
            prop_assert!(rate <= tuning.max_rate() && rate >= tuning.min, "rate {}", rate);
            prop_assert!(target <= tuning.max_rate() && target >= tuning.min, "target {}", target);
            prop_assert!(flow.reaction().alpha(now, &tuning).as_f64() <= 1.0);
        }
    }
}
