//! The file, the schedule, the commands.

use super::*;
use crate::settings::Time;
use std::path::Path;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("fabric.toml"))
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

/// Two ports, a circuit, and more.
fn with(more: &str) -> String {
    "port = [{ name = \"a\", interface = \"fa\" }, { name = \"b\", interface = \"fb\" }]\n\
     [[circuit]]\nlabel = \"ab\"\nends = [\"a\", \"b\"]\n"
        .to_owned()
        + more
}

#[test]
fn the_example_is_a_fabric_and_shows_its_schedule() {
    let config = parse(EXAMPLE).unwrap();
    let stats = config.switch().unwrap().stats();
    assert_eq!(stats.ports.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!((stats.circuits["ab"].is_lit, stats.fallback.is_some()), (true, true));
    let mut schedule = config.schedule(at(MS)).unwrap();
    let mut happened = Vec::new();
    while let Some(due) = schedule.poll_timeout() {
        assert_eq!(schedule.poll_event(Instant::from_ns(due.as_ns() - 1)), None);
        let (at, event) = schedule.poll_event(at(u64::MAX)).unwrap();
        assert_eq!(at, due);
        happened.push((due.as_ns() / MS, event));
    }
    let blackout = || dark("ab", Some(200 * MS));
    let moved = FabricEvent::Move { circuit: "ab".into(), ends: [PortId(1), PortId(2)] };
    assert_eq!(
        happened,
        [(1001, blackout()), (2001, blackout()), (3001, blackout()), (5001, moved), (6001, light("ab"))]
    );
    assert_eq!(config.end(at(5)), None);
}

#[test]
fn what_is_left_out_is_as_the_example_says() {
    let config = parse(&with("")).unwrap();
    let mut switch = config.switch().unwrap();
    switch.handle_frame(at(0), PortId(0), to_mac([0xff; 6], 0, 1, 60));
    assert_eq!(switch.poll_frame(at(0)).map(|(port, _)| port), Some(PortId(1)));
    assert_eq!(config.schedule(at(0)).unwrap().poll_timeout(), None);
    assert_eq!(parse(&("duration = \"3s\"\n".to_owned() + &with(""))).unwrap().end(at(1)), Some(at(3_000 * MS + 1)));
}

#[test]
fn an_event_without_times_happens_for_ever() {
    let mut schedule =
        parse(&with("[[event]]\nat = \"1ms\"\nlight = \"ab\"\nevery = \"2ms\"\n")).unwrap().schedule(at(0)).unwrap();
    for round in 0..1000 {
        assert_eq!(schedule.poll_timeout(), Some(at(MS + 2 * MS * round)));
        let now = at(MS + 2 * MS * round);
        assert_eq!(schedule.poll_event(now), Some((now, light("ab"))));
    }
}

#[test]
fn what_is_wrong_is_refused_with_its_place_and_reason() {
    for (more, expected) in [
        ("speed = 1\n", "fabric.toml:5:1: circuit.speed: unknown field `speed`, expected one of `label`"),
        (
            "line = { loss = 1.5 }\n",
            "fabric.toml:5:17: circuit.line.loss: invalid value: floating point `1.5`, expected a probability",
        ),
        ("line = { delay = \"5\" }\n", "circuit.line.delay: invalid value: string \"5\", expected a time"),
        (
            "line = { ecn = { kmin = \"2KiB\", kmax = \"1KiB\", pmax = 1.0 } }\n",
            "fabric.toml: ab: kmin is greater than kmax",
        ),
        ("[[circuit]]\nlabel = \"x\"\nends = [\"a\", \"z\"]\n", "there is no port \"z\"; there are: a, b"),
        ("[[circuit]]\nlabel = \"x\"\nends = [\"b\", \"a\"]\n", "circuit \"ab\" joins those ports"),
        ("[[event]]\nat = \"1s\"\ndark = \"x\"\n", "there is no circuit \"x\"; there are: ab"),
        ("[[event]]\nat = \"1s\"\n", "event 1: it needs one of dark, light and move"),
        ("[[event]]\nat = \"1s\"\ndark = \"ab\"\nlight = \"ab\"\n", "event 1: it needs one of"),
        ("[[event]]\nat = \"1s\"\nmove = \"ab\"\n", "event 1: move and to belong together"),
        ("[[event]]\nat = \"1s\"\nlight = \"ab\"\nfor = \"1s\"\n", "event 1: \"for\" says how long it is dark"),
        ("[[event]]\nat = \"1s\"\nlight = \"ab\"\ntimes = 3\n", "event 1: times needs every"),
        ("[[event]]\nat = \"1s\"\nlight = \"ab\"\ntimes = 0\n", "event 1: times is 0"),
    ] {
        let refusal = refusal(&with(more));
        assert!(refusal.contains(expected), "{more}: {refusal}");
    }
    assert!(refusal("").contains("missing field `port`"), "{}", refusal(""));
    let port = "[[port]]\nname = \"c\"\ninterface = \"fc\"\nmacs = [\"02:00\"]\n";
    assert!(
        refusal(port).contains("port.macs: invalid value: string \"02:00\", expected an address"),
        "{}",
        refusal(port)
    );
}

#[test]
fn lines_are_commands() {
    let ten_ms: Time = "10ms".parse().unwrap();
    for (line, command) in [
        ("dark ab", Command::Dark { label: "ab".into(), lasting: None }),
        ("  dark  ab 10ms ", Command::Dark { label: "ab".into(), lasting: Some(ten_ms) }),
        ("light ab", Command::Light { label: "ab".into() }),
        ("move ab a c", Command::Move { label: "ab".into(), ends: ["a".into(), "c".into()] }),
        ("stats", Command::Stats),
        ("quit", Command::Quit),
    ] {
        assert_eq!(line.parse(), Ok(command));
    }
    for (line, expected) in [
        ("bright ab", "\"bright ab\" is no command: dark LABEL [TIME], light LABEL, move LABEL PORT PORT, stats, quit"),
        ("move ab a", "\"move ab a\" is no command"),
        ("dark ab soon", "\"soon\" is no time: a time such as"),
    ] {
        let error = line.parse::<Command>().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let fabric = switch(&[("ab", LineSettings::default())], None);
    let event = |line: &str| line.parse::<Command>().unwrap().event(&fabric);
    assert_eq!(event("dark ab 10ms"), Ok(Some(dark("ab", Some(10 * MS)))));
    assert_eq!(
        event("move ab c a"),
        Ok(Some(FabricEvent::Move { circuit: "ab".into(), ends: [PortId(2), PortId(0)] }))
    );
    assert_eq!(event("stats"), Ok(None));
    assert!(matches!(event("move ab c z"), Err(FabricError::NoPort { .. })));
}
