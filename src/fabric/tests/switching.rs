//! Where frames go, and what happens when circuits change.

use super::*;

fn perfect() -> LineSettings {
    LineSettings::default()
}

fn slow() -> LineSettings {
    LineSettings { rate_bps: 1_000_000_000, delay: ns(5 * US), ..LineSettings::default() }
}

/// What is out at once: port and number.
fn out(switch: &mut Switch, now: u64) -> Vec<(usize, u32)> {
    let mut out = Vec::new();
    while let Some((port, frame)) = switch.poll_frame(at(now)) {
        out.push((port.0, number(&frame)));
    }
    out.sort_unstable();
    out
}

fn news(switch: &mut Switch) -> Vec<(Phase, u64, Option<u64>)> {
    let next = || switch.poll_announcement().map(|a| (a.phase, a.at.as_ns(), a.lit_again.map(Instant::as_ns)));
    std::iter::from_fn(next).collect()
}

#[test]
fn circuits_carry_what_they_join_and_the_fallback_the_rest() {
    let mut switch = switch(&[("ab", perfect())], Some(slow()));
    switch.handle_frame(at(0), PortId(0), frame(0, 1, 1, 1250));
    switch.handle_frame(at(0), PortId(0), frame(0, 2, 2, 1250));
    switch.handle_frame(at(0), PortId(1), frame(1, 2, 3, 1250));
    // To itself.
    switch.handle_frame(at(0), PortId(1), frame(1, 1, 4, 1250));
    assert_eq!(out(&mut switch, 0), [(1, 1)]);
    // All of the fallback share one queue.
    let rest: Vec<_> = drain(&mut switch).iter().map(|(at, port, f)| (*at, port.0, number(f))).collect();
    assert_eq!(rest, [(15 * US, 2, 2), (25 * US, 2, 3)]);
    let stats = switch.stats();
    assert_eq!(
        (stats.circuits["ab"].counters.passed, stats.fallback.unwrap().passed, stats.ports["b"].no_path),
        (1, 2, 1)
    );
}

#[test]
fn without_fallback_there_is_no_path_but_circuits() {
    let mut switch = switch(&[("ab", perfect())], None);
    switch.handle_frame(at(0), PortId(0), frame(0, 2, 1, 60));
    switch.handle_frame(at(0), PortId(2), to_mac([0xff; 6], 2, 2, 60));
    switch.handle_frame(at(0), PortId(2), Frame::new(vec![1; 13]));
    assert!(drain(&mut switch).is_empty());
    let stats = switch.stats();
    assert_eq!((stats.ports["a"].no_path, stats.ports["c"].no_path, stats.ports["c"].malformed), (1, 1, 1));
}

#[test]
fn broadcasts_and_strangers_are_flooded_along_light() {
    let mut switch = switch(&[("ab", perfect()), ("bc", perfect())], None);
    switch.handle_frame(at(0), PortId(1), to_mac([0xff; 6], 1, 1, 60));
    assert_eq!(out(&mut switch, 0), [(0, 1), (2, 1)]);
    switch.handle_event(at(1), dark("bc", None)).unwrap();
    switch.handle_frame(at(1), PortId(1), to_mac([0x33, 0x33, 0, 0, 0, 1], 1, 2, 60));
    assert_eq!(out(&mut switch, 1), [(0, 2)]);
    assert_eq!(switch.stats().circuits["bc"].counters.lost_in_dark, 1);
    switch.handle_event(at(2), light("bc")).unwrap();
    switch.handle_frame(at(2), PortId(1), to_mac([2, 9, 9, 9, 9, 9], 1, 3, 60));
    assert_eq!(out(&mut switch, 2), [(0, 3), (2, 3)]);
    // Heard of, it is a stranger no longer; and where it goes, frames follow.
    for (port, others) in [(2, (2, 4)), (0, (0, 4))] {
        let mut hello = to_mac(mac(1), port, 0, 60);
        hello.bytes[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
        switch.handle_frame(at(3), PortId(port), hello);
        out(&mut switch, 3);
        switch.handle_frame(at(3), PortId(1), to_mac([2, 9, 9, 9, 9, 9], 1, 4, 60));
        assert_eq!(out(&mut switch, 3), [others]);
    }
}

#[test]
fn an_address_of_the_settings_stays_where_it_is() {
    let mut switch = switch(&[("ab", perfect()), ("bc", perfect())], None);
    switch.handle_frame(at(0), PortId(2), to_mac(mac(1), 0, 1, 60));
    switch.handle_frame(at(0), PortId(1), frame(1, 0, 2, 60));
    assert_eq!(out(&mut switch, 0), [(0, 2), (1, 1)]);
}

#[test]
fn the_dark_takes_what_waits_but_not_what_is_in_the_glass() {
    let mut switch = switch(&[("ab", slow())], None);
    for number in 0..3 {
        switch.handle_frame(at(0), PortId(0), frame(0, 1, number, 1250));
    }
    // The first left at 10 us and arrives at 15, the second was half sent.
    switch.handle_event(at(12 * US), dark("ab", Some(100 * US))).unwrap();
    switch.handle_frame(at(13 * US), PortId(0), frame(0, 1, 3, 1250));
    assert_eq!(out(&mut switch, 15 * US), [(1, 0)]);
    assert_eq!(switch.stats().circuits["ab"].counters.lost_in_dark, 3);
    assert!(!switch.stats().circuits["ab"].is_lit);
    // Lit again, it begins with an empty queue.
    switch.handle_frame(at(112 * US), PortId(0), frame(0, 1, 4, 1250));
    assert_eq!(out(&mut switch, 127 * US), [(1, 4)]);
    assert_eq!(
        news(&mut switch),
        [
            (Phase::Prepare, 12 * US, Some(112 * US)),
            (Phase::Down, 12 * US, Some(112 * US)),
            (Phase::Up, 112 * US, None)
        ]
    );
}

#[test]
fn a_moved_circuit_is_dark_for_its_reconfiguration_time() {
    let mut switch = switch(&[("ab", perfect())], None);
    switch.handle_event(at(0), FabricEvent::Move { circuit: "ab".into(), ends: [PortId(2), PortId(1)] }).unwrap();
    switch.handle_frame(at(1), PortId(1), frame(1, 2, 1, 60));
    switch.handle_frame(at(1), PortId(1), frame(1, 0, 2, 60));
    assert_eq!(out(&mut switch, 1), []);
    let stats = switch.stats();
    assert_eq!((stats.circuits["ab"].counters.lost_in_dark, stats.ports["b"].no_path), (1, 1));
    assert_eq!(stats.circuits["ab"].ends, ["c", "b"]);
    switch.handle_frame(at(20 * MS), PortId(1), frame(1, 2, 3, 60));
    assert_eq!(out(&mut switch, 20 * MS), [(2, 3)]);
    assert_eq!(
        news(&mut switch),
        [(Phase::Prepare, 0, Some(20 * MS)), (Phase::Down, 0, Some(20 * MS)), (Phase::Up, 20 * MS, None)]
    );
}

#[test]
fn the_dark_is_announced_before_it_comes_and_can_be_called_off() {
    let mut switch = Switch::new(SwitchSettings { notice: ns(MS), ..settings(&[("ab", perfect())], None) }).unwrap();
    switch.handle_event(at(0), dark("ab", Some(MS))).unwrap();
    assert_eq!(news(&mut switch), [(Phase::Prepare, MS, Some(2 * MS))]);
    switch.handle_frame(at(MS - 1), PortId(0), frame(0, 1, 1, 60));
    assert_eq!(out(&mut switch, MS - 1), [(1, 1)]);
    assert_eq!(switch.poll_timeout(), Some(at(MS)));
    switch.handle_frame(at(MS), PortId(0), frame(0, 1, 2, 60));
    assert_eq!(out(&mut switch, MS), []);
    switch.handle_timeout(at(2 * MS));
    assert_eq!(news(&mut switch), [(Phase::Down, MS, Some(2 * MS)), (Phase::Up, 2 * MS, None)]);

    switch.handle_event(at(3 * MS), dark("ab", None)).unwrap();
    switch.handle_event(at(3 * MS), light("ab")).unwrap();
    assert_eq!(news(&mut switch), [(Phase::Prepare, 4 * MS, None), (Phase::Up, 3 * MS, None)]);
    assert_eq!(switch.poll_timeout(), None);
    // What is so already is no news.
    switch.handle_event(at(3 * MS), light("ab")).unwrap();
    assert_eq!(news(&mut switch), []);
}

#[test]
fn two_ports_have_one_circuit_between_them() {
    let to = |label: &str, a, b| FabricEvent::Move { circuit: label.into(), ends: [PortId(a), PortId(b)] };
    let settings = SwitchSettings { notice: ns(MS), ..settings(&[("ab", perfect()), ("bc", perfect())], None) };
    let mut switch = Switch::new(settings.clone()).unwrap();
    let refusal = |switch: &mut Switch, event| switch.handle_event(at(0), event).unwrap_err().to_string();
    assert!(refusal(&mut switch, to("ab", 2, 1)).contains("\"bc\" joins those ports"));
    assert!(refusal(&mut switch, to("ab", 1, 1)).contains("a port to itself"));
    assert!(refusal(&mut switch, to("ab", 1, 7)).contains("no port \"7\""));
    assert_eq!(refusal(&mut switch, dark("xy", None)), "there is no circuit \"xy\"; there are: ab, bc");
    // Nor two that are about to come.
    switch.handle_event(at(0), to("ab", 0, 2)).unwrap();
    assert!(refusal(&mut switch, to("bc", 2, 0)).contains("\"ab\" joins those ports"));
    assert_eq!(news(&mut switch).len(), 1);

    let mut twice = settings.clone();
    twice.circuits.push(circuit("ba", perfect()));
    assert!(matches!(Switch::new(twice), Err(FabricError::Taken { .. })));
    let mut same = settings;
    same.ports[1].name = "a".into();
    assert!(matches!(Switch::new(same), Err(FabricError::SameName(_))));
}
