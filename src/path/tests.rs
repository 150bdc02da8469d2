#![allow(clippy::unwrap_used)]

use super::*;
use crate::time::{Duration, Instant};
use core::net::IpAddr;
use proptest::prelude::*;

fn us(n: u64) -> Instant {
    Instant::from_ns(n * 1000)
}

fn prefix(text: &str) -> IpPrefix {
    text.parse().unwrap()
}

fn event(peers: &str, epoch: u64, sequence: u64, change: PathChange) -> PathEvent {
    PathEvent { stamp: Stamp { epoch, sequence }, peers: prefix(peers), change }
}

/// Takes what is due until `until`, and gives back what the path wanted.
fn live(life: &mut Life, until: Instant) -> Vec<Action> {
    let mut actions = Vec::new();
    while let Some(at) = life.poll_timeout().filter(|at| *at <= until) {
        life.handle_timeout(at);
        while let Some(action) = life.poll_action() {
            if action == Action::GiveUp {
                life.handle_given_up(at);
            }
            actions.push(action);
        }
    }
    actions
}

#[test]
fn prefixes_are_read_and_written() {
    for text in ["198.18.3.7", "198.18.0.0/15", "0.0.0.0/0", "2001:2::1", "2001:2::/48", "::/0"] {
        assert_eq!(prefix(text).to_string(), text);
    }
    assert_eq!(prefix("198.19.3.7/15"), prefix("198.18.0.0/15"));
    assert!(prefix("198.18.0.0/15").contains("::ffff:198.19.255.255".parse().unwrap()));
    assert!(!prefix("198.18.0.0/15").contains("198.20.0.0".parse().unwrap()));
    assert!(!prefix("0.0.0.0/0").contains("2001:2::1".parse().unwrap()));
    for (text, word) in
        [("", "no address"), ("1.2.3", "no address"), ("1.2.3.4/x", "no address"), ("1.2.3.4/33", "32 bits")]
    {
        let refusal = text.parse::<IpPrefix>().unwrap_err().to_string();
        assert!(refusal.contains(word), "{refusal}");
    }
}

#[test]
fn the_ledger_takes_each_event_once_and_in_order() {
    let mut ledger = Ledger::default();
    let (all, one) = ("198.18.0.0/15", "198.18.0.1");
    assert_eq!(ledger.handle_event(&event(all, 1, 5, PathChange::Down)), Ok(()));
    for (epoch, sequence) in [(1, 5), (1, 4), (0, 9)] {
        let refused = ledger.handle_event(&event(all, epoch, sequence, PathChange::Up));
        assert!(matches!(refused, Err(PathEventError::Stale { .. })), "{refused:?}");
    }
    let hold = PathChange::HoldMax(Duration::from_secs(3));
    ledger.handle_event(&event(one, 1, 6, hold)).unwrap();
    let of = |ledger: &Ledger, peer: &str| ledger.changes_for(peer.parse().unwrap()).collect::<Vec<_>>();
    assert_eq!(of(&ledger, "198.18.0.1"), [hold, PathChange::Down]);
    assert_eq!(of(&ledger, "198.18.0.2"), [PathChange::Down]);
    assert!(of(&ledger, "10.0.0.1").is_empty());
    // The newest word counts, whoever else it was for.
    ledger.handle_event(&event(one, 2, 0, PathChange::Up)).unwrap();
    assert_eq!(of(&ledger, "198.18.0.1"), [hold, PathChange::Up]);
}

#[test]
fn a_controller_cannot_fill_the_ledger() {
    let mut ledger = Ledger::default();
    let refusals = (0..5000u32).filter(|n| {
        let peers = IpPrefix::host(IpAddr::from((0xc612_0000 + n).to_be_bytes()));
        let event = PathEvent { stamp: Stamp { epoch: 1, sequence: 1 }, peers, change: PathChange::Down };
        matches!(ledger.handle_event(&event), Err(PathEventError::TooMany { .. }))
    });
    assert_eq!(refusals.count(), 5000 - 4096);
}

#[test]
fn heartbeats_round_trip_and_others_are_none() {
    for is_answer in [false, true] {
        let heartbeat = Heartbeat { is_answer, nonce: 0x0102_0304_0506_0708 };
        let bytes = heartbeat.emit();
        assert_eq!(Heartbeat::parse(&bytes), Some(heartbeat));
        for at in [0, 1, 2, 3, 17, 24 + 13, 24 + 15] {
            let mut damaged = bytes;
            damaged[at] ^= 0x40;
            assert_eq!(Heartbeat::parse(&damaged), None, "byte {at}");
        }
        assert_eq!(Heartbeat::parse(&bytes[1..]), None);
    }
}

#[test]
fn silence_is_found_in_time_and_light_by_any_packet() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    assert_eq!(life.poll_timeout(), None);
    life.handle_awaiting(us(100), true);
    assert_eq!(live(&mut life, us(2_100)), [Action::Probe]);
    assert_eq!(life.state(), PathState::Suspect);
    assert_eq!(live(&mut life, us(3_100)), [Action::Freeze(DarkCause::Silence)]);
    let probes = live(&mut life, us(13_100));
    assert_eq!((probes.len(), probes[0], life.state()), (20, Action::Probe, PathState::Dark));
    life.handle_packet(us(13_200), false);
    assert_eq!(life.poll_action(), Some(Action::Thaw { dark: Duration::from_micros(10_100) }));
    life.handle_thawed(us(13_300));
    assert_eq!((life.state(), life.record().darks), (PathState::Lit, 1));
}

#[test]
fn a_slow_peer_gets_patience_and_an_answer_ends_suspicion() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_awaiting(us(0), true);
    assert_eq!(live(&mut life, us(2_500)), [Action::Probe]);
    life.handle_packet(us(2_950), true);
    assert_eq!(life.state(), PathState::Lit);
    // Four times as long as it took since it was asked again, at 2 ms.
    assert_eq!(live(&mut life, us(2_950 + 3_799)), [Action::Probe]);
    assert_eq!(live(&mut life, us(2_950 + 3_800)), [Action::Freeze(DarkCause::Silence)]);
}

/// A second flap is found as soon as the first: that no answer came in the dark says nothing of the peer.
#[test]
fn a_darkness_does_not_make_a_peer_slow() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_awaiting(us(0), true);
    assert!(live(&mut life, us(3_000)).contains(&Action::Freeze(DarkCause::Silence)));
    let light = 103_000;
    live(&mut life, us(light));
    life.handle_packet(us(light), true);
    assert!(matches!(life.poll_action(), Some(Action::Thaw { .. })));
    life.handle_thawed(us(light));
    assert!(live(&mut life, us(light + 3_000)).contains(&Action::Freeze(DarkCause::Silence)));
}

/// What a short one seemed to say is forgotten with the answers that follow.
#[test]
fn patience_fades_with_quick_answers() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_awaiting(us(0), true);
    live(&mut life, us(10_000));
    life.handle_packet(us(10_000), true);
    assert!(matches!(life.poll_action(), Some(Action::Thaw { .. })));
    life.handle_thawed(us(10_000));
    for answer in 1..=24 {
        life.handle_packet(us(10_000 + answer * 20), true);
    }
    let last = 10_000 + 24 * 20;
    assert!(live(&mut life, us(last + 3_000)).contains(&Action::Freeze(DarkCause::Silence)));
}

#[test]
fn a_darkness_before_the_prepared_one_does_not_undo_it() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_change(us(0), PathChange::Prepare { at: us(9_000), expected: Duration::from_millis(10) });
    life.handle_carrier(us(1_000), false);
    life.handle_carrier(us(2_000), true);
    while life.poll_action().is_some() {}
    life.handle_thawed(us(2_000));
    assert_eq!(life.state(), PathState::Draining);
    assert_eq!(live(&mut life, us(18_999)), [Action::Freeze(DarkCause::Announced)]);
}

#[test]
fn a_policy_that_holds_nothing_lights_what_is_dark_and_a_controllers_word_survives_a_reload() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_change(us(0), PathChange::HoldMax(Duration::from_secs(7)));
    life.handle_change(us(1), PathChange::Down);
    assert!(matches!(life.poll_action(), Some(Action::Freeze(_))));
    life.set_policy(us(2), HoldPolicy { hold_max: Duration::from_secs(9), ..HoldPolicy::default() });
    assert_eq!((life.poll_action(), life.hold_max()), (None, Duration::from_secs(7)));
    life.set_policy(us(3), HoldPolicy { enabled: false, ..HoldPolicy::default() });
    assert!(matches!(life.poll_action(), Some(Action::Thaw { .. })));
}

#[test]
fn each_cause_of_darkness_must_go() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_change(us(1), PathChange::Down);
    life.handle_carrier(us(2), false);
    assert_eq!(life.poll_action(), Some(Action::Freeze(DarkCause::Announced)));
    life.handle_change(us(3), PathChange::Up);
    assert_eq!((life.poll_action(), life.cause()), (None, Some(DarkCause::Carrier)));
    // Nothing can have come without a carrier.
    life.handle_packet(us(9_000), true);
    assert_eq!(life.poll_action(), None);
    life.handle_carrier(us(10_000), true);
    assert!(matches!(life.poll_action(), Some(Action::Thaw { .. })));
}

#[test]
fn packets_under_way_at_the_beginning_are_no_light() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_change(us(0), PathChange::Down);
    life.handle_packet(us(499), true);
    assert_eq!(life.state(), PathState::Dark);
    life.handle_packet(us(500), false);
    assert_eq!(life.state(), PathState::Thawing);
}

#[test]
fn a_prepared_darkness_begins_when_it_was_said_and_is_probed_when_it_shall_end() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    let (at, expected) = (us(5_000), Duration::from_millis(10));
    life.handle_change(us(0), PathChange::Prepare { at, expected });
    assert_eq!((life.state(), life.is_open()), (PathState::Draining, true));
    assert_eq!(live(&mut life, us(5_000)), [Action::Freeze(DarkCause::Announced)]);
    assert_eq!(live(&mut life, us(14_999)), []);
    assert_eq!(live(&mut life, us(15_000)), [Action::Probe]);
}

#[test]
fn hold_max_ends_the_wait_and_can_be_changed() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_change(us(0), PathChange::HoldMax(Duration::from_millis(2)));
    life.handle_awaiting(us(0), true);
    let actions = live(&mut life, us(3_000 + 2_000));
    assert_eq!((actions.last(), life.record().lost), (Some(&Action::Thaw { dark: Duration::from_millis(2) }), 1));
    assert!(actions.contains(&Action::GiveUp));
}

#[test]
fn without_hold_nothing_darkens() {
    let mut life = Life::new(HoldPolicy { enabled: false, ..HoldPolicy::default() }, us(0));
    life.handle_awaiting(us(0), true);
    life.handle_change(us(1), PathChange::Down);
    life.handle_carrier(us(2), false);
    life.handle_change(us(3), PathChange::Prepare { at: us(4), expected: Duration::ZERO });
    assert_eq!((live(&mut life, us(60_000_000)), life.state()), (vec![], PathState::Lit));
}

proptest! {
    /// Whatever happens in whatever order: freeze and thaw take turns, what is open is not frozen, and time goes on.
    #[test]
    fn every_freeze_has_its_thaw(steps in prop::collection::vec((0..9_u8, 0..4_000_u64), 1..200)) {
        let mut life = Life::new(HoldPolicy { hold_max: Duration::from_millis(20), ..HoldPolicy::default() }, us(0));
        let (mut now, mut frozen) = (0, false);
        for (what, later) in steps {
            now += later;
            let mut turns = 0;
            loop {
                while let Some(action) = life.poll_action() {
                    match action {
                        Action::Freeze(_) => prop_assert!(!core::mem::replace(&mut frozen, true)),
                        Action::Thaw { .. } => prop_assert!(core::mem::replace(&mut frozen, false)),
                        Action::GiveUp => { prop_assert!(frozen); life.handle_given_up(us(now)); }
                        Action::Probe => {}
                    }
                }
                prop_assert_eq!(life.is_open(), !frozen);
                prop_assert_eq!(life.cause().is_some(), frozen);
                if life.poll_timeout().is_none_or(|at| at > us(now)) { break; }
                life.handle_timeout(us(now));
                turns += 1;
                prop_assert!(turns < 10, "time stands still");
            }
            match what {
                0 => life.handle_awaiting(us(now), true),
                1 => life.handle_awaiting(us(now), false),
                2 => life.handle_packet(us(now), true),
                3 => life.handle_packet(us(now), false),
                4 => life.handle_change(us(now), PathChange::Down),
                5 => life.handle_change(us(now), PathChange::Up),
                6 => life.handle_carrier(us(now), later % 2 == 0),
                7 => life.handle_change(us(now), PathChange::Prepare { at: us(now + later), expected: Duration::ZERO }),
                _ => life.handle_alive(us(now)),
            }
        }
    }
}
