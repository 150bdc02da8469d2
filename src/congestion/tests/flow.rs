//! Both points and the pacer together.

use super::super::{Allowance, CnpEffect, Flow, NotificationPoint};
use super::*;

#[test]
fn it_is_small_and_says_how_small() {
    assert_eq!(size_of::<Flow>(), 96);
}

#[test]
fn one_cnp_in_min_time_between_cnps() {
    let tuning = tuning();
    let mut point = NotificationPoint::new();
    let due: Vec<u64> = (0..200).filter(|us| point.handle_ce(at_us(*us), &tuning)).collect();
    assert_eq!(due, [0, 50, 100, 150]);
    let each = tuned(|p| p.min_time_between_cnps = Duration::ZERO);
    assert!((0..9).all(|_| point.handle_ce(at_us(200), &each)));
}

#[test]
fn marks_of_the_dark_ask_for_nothing() {
    let tuning = tuning();
    let mut flow = Flow::new();
    flow.freeze(at_us(100), &tuning);
    assert!(!flow.handle_ce(at_us(200), &tuning));
    flow.thaw(at_us(300), &tuning);
    assert!(!flow.handle_ce(at_us(349), &tuning));
    assert!(flow.handle_ce(at_us(350), &tuning));

    let mut tuning = tuning;
    tuning.handle_thaw(at_us(400));
    assert!(!flow.handle_ce(at_us(449), &tuning));
    assert!(flow.handle_ce(at_us(450), &tuning));
}

#[test]
fn a_frozen_flow_sends_nothing_and_a_thawed_one_begins_with_an_empty_bucket() {
    let tuning = tuning();
    let mut flow = Flow::new();
    flow.handle_cnp(at_us(1000), &tuning);
    flow.freeze(at_us(1000), &tuning);
    assert_eq!(flow.poll_allowance(at_us(2000), 1000, 1 << 20, &tuning), Allowance::Wait(Instant::MAX));
    flow.thaw(at_us(3000), &tuning);
    let Allowance::Wait(at) = flow.poll_allowance(at_us(3000), 1000, 1 << 20, &tuning) else { panic!("it is paced") };
    assert!(at > at_us(3000) && at < at_us(3011));
    // Without a freeze before it a thaw is nothing.
    let before = flow;
    flow.thaw(at_us(3001), &tuning);
    assert_eq!(flow, before);
}

#[test]
fn what_left_unlimited_is_not_saved_up() {
    let tuning = tuning();
    let mut flow = Flow::new();
    flow.handle_sent(at_us(1000), 1000, 64_000, &tuning);
    flow.handle_cnp(at_us(1001), &tuning);
    assert!(matches!(flow.poll_allowance(at_us(1001), 1000, 1 << 20, &tuning), Allowance::Wait(_)));
}

#[test]
fn below_the_lines_rate_a_maximum_paces_always() {
    let tuning = tuned(|p| p.rpg_max_rate = Bps::from_gbps(8));
    let mut flow = Flow::new();
    let Allowance::Bytes(bytes) = flow.poll_allowance(at_us(1000), 1000, 1 << 20, &tuning) else {
        panic!("it is paced")
    };
    assert_eq!(bytes, 20_000);
    flow.handle_sent(at_us(1000), 1000, bytes, &tuning);
    assert_eq!(flow.poll_allowance(at_us(1000), 1000, 1 << 20, &tuning), Allowance::Wait(at_us(1010)));
    assert!(!flow.reaction().is_limited());
}

#[test]
fn nobody_needs_to_call_its_timer() {
    let tuning = tuning();
    let mut flow = Flow::new();
    assert_eq!(flow.handle_cnp(at_us(1000), &tuning), CnpEffect::Cut);
    assert!(flow.poll_timeout(&tuning).is_some());
    assert_eq!(flow.poll_allowance(at_us(1_000_000), 1000, 1 << 20, &tuning), Allowance::Unlimited);
}
