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
            match action {
                Action::GiveUp => life.handle_given_up(at),
                Action::Probe => life.handle_probed(at),
                _ => {}
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

/// A path whose peer has answered quickly of late, at rest since 100 us; a kin has answered a question too.
fn known(is_kin: bool) -> Life {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_awaiting(us(0), true);
    if is_kin {
        life.handle_alive(us(1), false);
    }
    (2..=100).for_each(|n| life.handle_packet(us(n), true));
    assert_eq!(life.poll_action(), Some(AGAIN), "it is asked whether it is a kin");
    life.handle_awaiting(us(100), false);
    life
}

/// The same, with an answer due since 1 ms.
fn waiting(is_kin: bool) -> Life {
    let mut life = known(is_kin);
    assert_eq!(life.poll_timeout(), None);
    life.handle_awaiting(us(1_000), true);
    life
}

const FIRST: Action = Action::Question { is_first: true };
const AGAIN: Action = Action::Question { is_first: false };
const FREEZE: Action = Action::Freeze(DarkCause::Silence);

#[test]
fn silence_is_found_in_time_and_light_by_any_packet() {
    let mut life = waiting(false);
    assert_eq!(live(&mut life, us(3_000)), [FIRST, Action::Probe]);
    assert_eq!(life.state(), PathState::Suspect);
    assert_eq!(live(&mut life, us(4_000)), [FREEZE]);
    assert_eq!(live(&mut life, us(14_000)), [AGAIN, Action::Probe].repeat(20));
    assert_eq!(life.state(), PathState::Dark);
    life.handle_packet(us(14_100), false);
    assert_eq!(life.poll_action(), Some(Action::Thaw { dark: Duration::from_micros(10_100), is_loss: true }));
    life.handle_thawed(us(14_200));
    assert_eq!((life.state(), life.record().darks), (PathState::Lit, 1));
}

#[test]
fn a_stranger_gets_more_patience_than_who_has_answered() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_awaiting(us(0), true);
    assert_eq!(live(&mut life, us(199_999)), [FIRST, Action::Probe]);
    assert_eq!(live(&mut life, us(200_000)), [FREEZE]);
}

#[test]
fn a_kin_is_asked_by_questions_only() {
    let mut life = waiting(true);
    assert_eq!(live(&mut life, us(4_000)), [FIRST, FREEZE]);
    assert_eq!(live(&mut life, us(14_000)), [AGAIN].repeat(20));
    // It answers a question of the dark: those before it are lost, and with them perhaps what queue pairs sent.
    life.handle_alive(us(14_100), false);
    assert!(matches!(life.poll_action(), Some(Action::Thaw { is_loss: true, .. })));
}

#[test]
fn a_kin_that_answers_the_first_question_late_was_only_slow() {
    let mut life = waiting(true);
    live(&mut life, us(14_000));
    life.handle_alive(us(14_100), true);
    assert!(matches!(life.poll_action(), Some(Action::Thaw { is_loss: false, .. })));
    // Or what was sent before it was even suspect.
    let mut life = waiting(true);
    live(&mut life, us(14_000));
    life.handle_packet(us(14_100), true);
    assert!(matches!(life.poll_action(), Some(Action::Thaw { is_loss: false, .. })));
    // It gets patience.
    life.handle_thawed(us(14_100));
    assert_eq!(live(&mut life, us(14_100 + 30_000)), []);
}

#[test]
fn a_host_that_is_alive_though_its_queue_pairs_are_silent_is_asked_ever_more_seldom() {
    let mut life = waiting(true);
    let mut asked = Vec::new();
    while asked.len() < 6 {
        let at = life.poll_timeout().unwrap();
        life.handle_timeout(at);
        assert_eq!((life.poll_action(), life.state()), (Some(FIRST), PathState::Suspect));
        asked.push(at);
        life.handle_alive(at, true);
        // The path is lit, so its packets are lost, or it is gone.
        assert_eq!((life.poll_action(), life.state()), (Some(Action::Probe), PathState::Lit));
    }
    let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1].since(pair[0]).as_millis()).collect();
    assert_eq!(pauses, [4, 8, 16, 32, 64]);
}

#[test]
fn a_slow_stock_peer_is_not_buried_in_probes() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_awaiting(us(0), true);
    (1..=100).for_each(|n| life.handle_packet(us(n * 10_000), true));
    assert_eq!(life.poll_action(), Some(AGAIN));
    let since = 1_000_000;
    let actions = live(&mut life, us(since + 40_000));
    assert_eq!(actions, [FIRST, Action::Probe, FREEZE]);
    let actions = live(&mut life, us(since + 50_000));
    assert_eq!(actions.iter().filter(|action| **action == Action::Probe).count(), 1);
}

/// What a short darkness seemed to say is forgotten with the answers that follow; what a long one would say is not believed.
#[test]
fn patience_fades_with_quick_answers() {
    for dark in [10_000, 1_000_000] {
        let mut life = waiting(false);
        live(&mut life, us(dark));
        life.handle_packet(us(dark), true);
        while life.poll_action().is_some() {}
        life.handle_thawed(us(dark));
        let answers = if dark == 10_000 { 24 } else { 0 };
        (1..=answers).for_each(|n| life.handle_packet(us(dark + n * 20), true));
        let last = dark + answers * 20;
        assert!(live(&mut life, us(last + 3_000)).contains(&FREEZE), "{dark}");
    }
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
    assert_eq!(live(&mut life, us(15_000)), [AGAIN]);
}

#[test]
fn hold_max_ends_the_wait_and_can_be_changed() {
    let mut life = Life::new(HoldPolicy::default(), us(0));
    life.handle_change(us(0), PathChange::HoldMax(Duration::from_millis(2)));
    life.handle_change(us(0), PathChange::Down);
    assert!(!live(&mut life, us(1_999)).contains(&Action::GiveUp));
    assert!(live(&mut life, us(2_000)).contains(&Action::GiveUp));
    // What is announced goes on, for who comes now.
    assert_eq!((life.record().lost, life.state()), (1, PathState::Dark));
    let mut life = waiting(false);
    life.handle_change(us(1_000), PathChange::HoldMax(Duration::from_millis(2)));
    let actions = live(&mut life, us(6_000));
    // Of silence nothing is left.
    let dark = Duration::from_millis(2);
    assert_eq!(actions.last(), Some(&Action::Thaw { dark, is_loss: true }));
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
                        Action::Probe => life.handle_probed(us(now)),
                        Action::Question { .. } => {}
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
                _ => life.handle_alive(us(now), later % 2 == 0),
            }
        }
    }
}
