//! Circuits: which one a path rides on, and what a change of it does.

use crate::pair::Pair;
use holdfast::congestion::Bps;
use holdfast::engine::CircuitPlan;
use holdfast::path::{Circuit, PathChange, PathEvent, PathState, Stamp};
use holdfast::time::Duration;
use holdfast::transport::{SendOp, WcStatus};
use holdfast::wire::{IpHeader, PathMtu, build_cnp};

fn circuit(label: &str) -> Circuit {
    Circuit { label: label.parse().unwrap(), rate: None, rtt: Duration::ZERO, mtu: None, hold_max: None }
}

fn announce(pair: &mut Pair, sequence: u64, circuit: Option<Circuit>) -> u32 {
    let stamp = Stamp { epoch: 1, sequence };
    let event = PathEvent { stamp, peers: "198.18.0.2".parse().unwrap(), change: PathChange::Circuit(circuit) };
    pair.a.engine.handle_path_event(pair.now, &event).unwrap()
}

/// The label of A's circuit.
fn label(pair: &Pair) -> Option<String> {
    let status = pair.a.engine.path_of(pair.now, pair.qpn_a).unwrap();
    status.circuit.map(|circuit| circuit.label.to_string())
}

fn write(pair: &mut Pair, length: u32) -> WcStatus {
    let (op, sge) = (SendOp::Write { va: 0, rkey: pair.b.keys.rkey }, pair.a.sge(0, length));
    pair.a.send(pair.now, pair.qpn_a, 1, op, sge);
    pair.exchange();
    pair.a.completions()[0].status
}

fn slow_down(pair: &mut Pair) -> Bps {
    let ip = IpHeader::new(pair.b.address, pair.a.address).unwrap();
    let bytes = build_cnp(&ip, 0xc001, pair.qpn_a, 0xffff);
    let cnp = holdfast::wire::Datagram { ip, source_port: 0xc001, bytes: &bytes };
    pair.a.engine.handle_datagram(pair.now, &cnp);
    rate(pair)
}

fn rate(pair: &mut Pair) -> Bps {
    pair.a.engine.congestion_of(pair.now, pair.qpn_a).unwrap().rate
}

fn with_congestion(pair: &mut Pair) {
    let policy = holdfast::engine::CongestionPolicy { enabled: true, ..Default::default() };
    pair.a.engine.set_congestion_policy(pair.now, policy);
}

#[test]
fn the_longest_prefix_counts_and_the_controller_goes_before() {
    let mut pair = Pair::new();
    assert_eq!(label(&pair), None);
    let plan = ["198.18.0.0/15", "198.18.0.0/24", "198.18.1.0/24"].into_iter().zip(["wide", "near", "other"]);
    let circuits = plan.map(|(prefix, label)| (prefix.parse().unwrap(), circuit(label))).collect();
    pair.a.engine.set_circuits(pair.now, CircuitPlan { circuits });
    assert_eq!(label(&pair).as_deref(), Some("near"));
    assert_eq!(announce(&mut pair, 1, Some(circuit("told"))), 1);
    assert_eq!(label(&pair).as_deref(), Some("told"));
    assert_eq!(announce(&mut pair, 2, None), 1);
    assert_eq!(label(&pair).as_deref(), Some("near"));
    assert_eq!(pair.a.engine.path_of(pair.now, pair.qpn_a).unwrap().moves, 3);
}

#[test]
fn a_move_says_nothing_of_light_and_traffic_goes_on() {
    let mut pair = Pair::new();
    announce(&mut pair, 1, Some(circuit("a")));
    assert_eq!(write(&mut pair, 5000), WcStatus::Success);
    assert_eq!(pair.a.engine.path_of(pair.now, pair.qpn_a).unwrap().state, PathState::Lit);
}

#[test]
fn congestion_is_remembered_by_circuit() {
    let mut pair = Pair::new();
    with_congestion(&mut pair);
    announce(&mut pair, 1, Some(circuit("a")));
    let slow = slow_down(&mut pair);
    announce(&mut pair, 2, Some(circuit("b")));
    let fresh = rate(&mut pair);
    assert!(fresh > slow, "another light has another queue: {fresh} after {slow}");
    pair.now += Duration::from_secs(1);
    announce(&mut pair, 3, Some(circuit("a")));
    assert_eq!(rate(&mut pair), slow);
    pair.now += Duration::from_secs(1);
    assert_eq!(rate(&mut pair), fresh);
}

#[test]
fn a_slower_circuit_slows_its_queue_pairs() {
    let mut pair = Pair::new();
    with_congestion(&mut pair);
    let rate_of = Some(Bps::from_mbps(100));
    announce(&mut pair, 1, Some(Circuit { rate: rate_of, ..circuit("slow") }));
    let start = pair.now;
    let (op, sge) = (SendOp::Write { va: 0, rkey: pair.b.keys.rkey }, pair.a.sge(0, 200_000));
    pair.a.send(pair.now, pair.qpn_a, 1, op, sge);
    loop {
        pair.exchange();
        if let Some(done) = pair.a.completions().first() {
            assert_eq!(done.status, WcStatus::Success);
            break;
        }
        pair.now = pair.a.engine.poll_timeout().unwrap().max(pair.now + Duration::from_nanos(1));
        pair.a.engine.handle_timeout(pair.now);
        pair.b.engine.handle_timeout(pair.now);
    }
    let took = pair.now.since(start);
    assert!(took >= Duration::from_millis(15), "200 000 bytes at 100 Mb/s take 16 ms, not {took:?}");
    assert!(took < Duration::from_millis(30), "nor {took:?}");
}

#[test]
fn what_a_smaller_mtu_cannot_carry_fails_and_says_why_and_the_rest_goes_on() {
    let mut pair = Pair::new();
    let narrow = Circuit { mtu: Some(PathMtu::B512), ..circuit("narrow") };
    announce(&mut pair, 1, Some(narrow));
    assert_eq!(write(&mut pair, 512), WcStatus::Success);
    assert_eq!(write(&mut pair, 513), WcStatus::LocalLength);
    let failure = pair.a.engine.qp(pair.qpn_a).unwrap().failure().unwrap().to_string();
    assert!(failure.contains("carries packets of 512 bytes") && failure.contains("1024"), "{failure}");
}

#[test]
fn a_circuit_says_how_long_it_is_held_and_the_controller_more_so() {
    let mut pair = Pair::new();
    let hold_max = |pair: &Pair| pair.a.engine.path_of(pair.now, pair.qpn_a).unwrap().hold_max;
    announce(&mut pair, 1, Some(Circuit { hold_max: Some(Duration::from_secs(3)), ..circuit("brief") }));
    assert_eq!(hold_max(&pair), Duration::from_secs(3));
    let stamp = Stamp { epoch: 1, sequence: 2 };
    let change = PathChange::HoldMax(Duration::from_secs(60));
    let event = PathEvent { stamp, peers: "198.18.0.2".parse().unwrap(), change };
    assert_eq!(pair.a.engine.handle_path_event(pair.now, &event), Ok(1));
    assert_eq!(hold_max(&pair), Duration::from_secs(60));
}
