//! Paths: silence, darkness, light, and peers that are gone.

use crate::pair::{Device, Pair};
use holdfast::engine::{DropReason, PathNotice};
use holdfast::path::{DarkCause, IpPrefix, PathChange, PathEvent, PathState, Stamp};
use holdfast::time::{Duration, Instant};
use holdfast::transport::{QpType, SendOp, Wait, WcStatus};
use holdfast::wire::{PathMtu, Qpn};

/// Lets time pass until `until`; what A and B send goes to the other while `is_lit`.
fn pass(pair: &mut Pair, until: Instant, is_lit: bool) {
    loop {
        if is_lit {
            pair.exchange();
        } else {
            pair.a.bursts(pair.now);
            pair.b.bursts(pair.now);
        }
        let due = [pair.a.engine.poll_timeout(), pair.b.engine.poll_timeout()].into_iter().flatten().min();
        let Some(due) = due.filter(|due| *due <= until) else { break };
        pair.now = due.max(pair.now + Duration::from_nanos(1));
        pair.a.engine.handle_timeout(pair.now);
        pair.b.engine.handle_timeout(pair.now);
    }
    pair.now = pair.now.max(until);
}

/// A pair that has exchanged so many messages that A knows how quickly B answers.
fn acquainted() -> Pair {
    let mut pair = Pair::new();
    for wr_id in 0..60 {
        write(&mut pair, wr_id);
        pair.exchange();
        assert_eq!(pair.a.completions()[0].status, WcStatus::Success);
    }
    pair
}

fn announce(device: &mut Device, now: Instant, sequence: u64, change: PathChange) -> u32 {
    let event = PathEvent { stamp: Stamp { epoch: 1, sequence }, peers: everybody(), change };
    device.engine.handle_path_event(now, &event).unwrap()
}

fn everybody() -> IpPrefix {
    IpPrefix::new([0, 0, 0, 0].into(), 0).unwrap()
}

fn write(pair: &mut Pair, wr_id: u64) {
    let (op, sge) = (SendOp::Write { va: 8, rkey: pair.b.keys.rkey }, pair.a.sge(0, 5));
    pair.a.send(pair.now, pair.qpn_a, wr_id, op, sge);
}

fn state(pair: &Pair) -> PathState {
    pair.a.engine.path_of(pair.now, pair.qpn_a).unwrap().state
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn seconds_of_silence_cost_nothing_but_time() {
    let mut pair = acquainted();
    pair.a.write(0, b"light");
    write(&mut pair, 1);
    let start = pair.now;
    pass(&mut pair, start + ms(10), false);
    assert_eq!(state(&pair), PathState::Dark);
    let waiting = pair.a.engine.waits_for(pair.now, pair.qpn_a).unwrap();
    assert_eq!(waiting.reason, Wait::Dark);
    pass(&mut pair, start + ms(20_000), false);
    assert!(pair.a.completions().is_empty());
    assert_eq!(pair.a.engine.qp(pair.qpn_a).unwrap().progress().retries_left, 7);
    pass(&mut pair, start + ms(20_001), true);
    assert_eq!(pair.a.completions()[0].status, WcStatus::Success);
    assert_eq!((pair.b.read(8, 5), state(&pair)), (b"light".to_vec(), PathState::Lit));
    let notices: Vec<_> = std::iter::from_fn(|| pair.a.engine.poll_path_notice()).collect();
    let [PathNotice::Dark { cause: DarkCause::Silence, .. }, PathNotice::Light { dark, .. }] = notices[..] else {
        panic!("{notices:?}")
    };
    assert!(dark > ms(19_990) && dark < ms(20_000), "{dark:?}");
}

#[test]
fn what_is_dark_for_longer_than_hold_max_fails_as_programs_expect() {
    let mut pair = Pair::new();
    write(&mut pair, 1);
    write(&mut pair, 2);
    let start = pair.now;
    pass(&mut pair, start + ms(29_000), false);
    assert!(pair.a.completions().is_empty());
    pass(&mut pair, start + ms(31_000), false);
    let statuses: Vec<_> = pair.a.completions().iter().map(|c| c.status).collect();
    assert_eq!(statuses, [WcStatus::RetryExceeded, WcStatus::WrFlush]);
    assert_eq!(pair.a.engine.counters().path_lost_queue_pairs, 1);
    let failure = pair.a.engine.qp(pair.qpn_a).unwrap().failure().unwrap();
    assert!(failure.to_string().contains("hold_max"), "{failure}");
}

#[test]
fn an_announced_darkness_freezes_at_once_and_light_wakes() {
    let mut pair = Pair::new();
    write(&mut pair, 1);
    let now = pair.now;
    assert_eq!(announce(&mut pair.a, now, 1, PathChange::Down), 1);
    assert_eq!(state(&pair), PathState::Dark);
    // Nobody has a turn, and no timer but those of the path runs: the first probe.
    assert!(pair.a.bursts(pair.now).is_empty());
    assert_eq!(announce(&mut pair.a, now + ms(1), 2, PathChange::Up), 1);
    pair.now += ms(1);
    assert_eq!(pair.a.bursts(pair.now).len(), 1);
}

#[test]
fn without_a_carrier_nothing_is_tried() {
    let mut pair = Pair::new();
    pair.a.engine.set_link(pair.now, false, PathMtu::B1024);
    write(&mut pair, 1);
    let start = pair.now;
    pass(&mut pair, start + ms(5_000), false);
    assert_eq!(pair.a.engine.counters().path_probes, 0);
    assert!(pair.a.completions().is_empty());
    pair.a.engine.set_link(pair.now, true, PathMtu::B1024);
    pass(&mut pair, start + ms(5_001), true);
    assert_eq!(pair.a.completions()[0].status, WcStatus::Success);
}

#[test]
fn who_connects_in_the_dark_waits_for_the_light() {
    let mut pair = Pair::new();
    let now = pair.now;
    announce(&mut pair.a, now, 1, PathChange::Down);
    // The path goes with its only queue pair; what was said of it does not.
    pair.a.engine.destroy_qp(pair.qpn_a).unwrap();
    assert_eq!(pair.a.engine.paths(now).count(), 0);
    pair.qpn_a = pair.a.create(QpType::Rc, None);
    pair.a.connect(pair.qpn_a, (pair.b.address, pair.qpn_b));
    assert_eq!(state(&pair), PathState::Dark);
}

/// The light is there, the queue pair is not: timeouts do what the standard says.
#[test]
fn a_queue_pair_that_is_gone_is_not_the_dark() {
    for is_local in [false, true] {
        let mut pair = Pair::new();
        if is_local {
            let qpn: Qpn = pair.a.create(QpType::Rc, None);
            pair.a.connect(qpn, (pair.a.address, pair.qpn_a));
            pair.a.engine.destroy_qp(pair.qpn_a).unwrap();
            pair.qpn_a = qpn;
        } else {
            pair.b.engine.destroy_qp(pair.qpn_b).unwrap();
        }
        write(&mut pair, 1);
        let start = pair.now;
        pass(&mut pair, start + ms(400), true);
        let statuses: Vec<_> = pair.a.completions().iter().map(|c| c.status).collect();
        assert_eq!(statuses, [WcStatus::RetryExceeded], "local: {is_local}");
        assert_eq!(pair.a.engine.counters().path_lost_queue_pairs, 0);
    }
}

/// Whoever knows a QPN can send a packet to it; only one that fits the connection says that there is light.
#[test]
fn ghosts_are_no_sign_of_life() {
    let mut pair = acquainted();
    let mut ghost = None;
    for wr_id in 1..=2 {
        write(&mut pair, wr_id);
        for frame in pair.a.bursts(pair.now).iter().flatten() {
            pair.b.engine.handle_datagram(pair.now, &frame.datagram());
        }
        let answer = pair.b.bursts(pair.now)[0][0].clone();
        pair.a.engine.handle_datagram(pair.now, &answer.datagram());
        ghost.get_or_insert(answer);
    }
    write(&mut pair, 3);
    let start = pair.now;
    pass(&mut pair, start + ms(10), false);
    assert_eq!(state(&pair), PathState::Dark);
    pair.a.engine.handle_datagram(pair.now, &ghost.unwrap().datagram());
    assert_eq!(state(&pair), PathState::Dark);
    pass(&mut pair, start + ms(11), true);
    assert_eq!(state(&pair), PathState::Lit);
}

/// A long circuit: the light is asked for many times before the first answer can come.
#[test]
fn a_host_whose_answer_comes_after_the_next_question_is_heard() {
    let mut pair = acquainted();
    write(&mut pair, 1);
    let start = pair.now;
    let mut questions = Vec::new();
    while pair.now < start + ms(6) {
        questions.extend(pair.a.bursts(pair.now).into_iter().flatten());
        pair.now = pair.a.engine.poll_timeout().unwrap().max(pair.now + Duration::from_nanos(1));
        pair.a.engine.handle_timeout(pair.now);
    }
    assert_eq!(state(&pair), PathState::Dark);
    // Only what goes to QP 1: the host is alive, the queue pair says nothing.
    pair.b.engine.destroy_qp(pair.qpn_b).unwrap();
    let first = questions.iter().find(|frame| frame.bytes[5..8] == [0, 0, 1]).unwrap();
    pair.b.engine.handle_datagram(pair.now, &first.datagram());
    let answer = pair.b.bursts(pair.now)[0][0].clone();
    pair.a.engine.handle_datagram(pair.now, &answer.datagram());
    assert_ne!(state(&pair), PathState::Dark);
    // An answer counts once.
    pair.a.engine.handle_datagram(pair.now, &answer.datagram());
    assert_eq!(pair.a.engine.counters().dropped(DropReason::Heartbeat), 1);
}

#[test]
fn stale_announcements_have_no_effect() {
    let mut pair = Pair::new();
    let now = pair.now;
    announce(&mut pair.a, now, 7, PathChange::Up);
    for sequence in [7, 6] {
        let stamp = Stamp { epoch: 1, sequence };
        let event = PathEvent { stamp, peers: everybody(), change: PathChange::Down };
        let refusal = pair.a.engine.handle_path_event(now, &event).unwrap_err();
        assert!(refusal.to_string().contains("stale"), "{refusal}");
    }
    assert_eq!(state(&pair), PathState::Lit);
    let event = PathEvent { stamp: Stamp { epoch: 2, sequence: 0 }, peers: everybody(), change: PathChange::Down };
    assert_eq!(pair.a.engine.handle_path_event(now, &event), Ok(1));
}

#[test]
fn a_thousand_queue_pairs_go_on_a_few_at_a_time() {
    let mut pair = Pair::new();
    let mut qpns = Vec::new();
    for _ in 0..1000 {
        let (a, b) = (pair.a.create(QpType::Rc, None), pair.b.create(QpType::Rc, None));
        pair.a.connect(a, (pair.b.address, b));
        pair.b.connect(b, (pair.a.address, a));
        qpns.push(a);
    }
    for (n, qpn) in qpns.iter().enumerate() {
        let (op, sge) = (SendOp::Write { va: 8, rkey: pair.b.keys.rkey }, pair.a.sge(0, 5));
        pair.a.send(pair.now, *qpn, n as u64, op, sge);
    }
    assert_eq!(pair.a.bursts(pair.now).len(), 1000);
    let now = pair.now;
    announce(&mut pair.a, now, 1, PathChange::Down);
    pair.now += ms(100);
    let now = pair.now;
    announce(&mut pair.a, now, 2, PathChange::Up);
    let first = pair.a.bursts(pair.now).len();
    assert!((1..=32).contains(&first), "{first} at once");
    pass(&mut pair, now + ms(10), true);
    let done: Vec<_> =
        std::iter::repeat_with(|| pair.a.completions()).take_while(|batch| !batch.is_empty()).flatten().collect();
    assert_eq!(done.len(), 1000);
    assert!(done.iter().all(|c| c.status == WcStatus::Success));
}
