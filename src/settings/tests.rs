#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;
use std::path::Path;

const DOCUMENTED: &str = include_str!("../../config/holdfast.toml");

fn parse(text: &str) -> Result<Settings, SettingsError> {
    Settings::parse(text, Path::new("holdfast.toml"))
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

fn options(args: &[&str]) -> Overrides {
    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        overrides: Overrides,
    }
    <Command as clap::Parser>::parse_from(std::iter::once(&"holdfastd").chain(args)).overrides
}

#[test]
fn the_documented_file_is_the_default() {
    assert_eq!(parse(DOCUMENTED).unwrap(), Settings::default());
    assert_eq!(parse("").unwrap(), Settings::default());
}

#[test]
fn the_documented_file_shows_every_key_with_its_default() {
    let shown: toml::Table = toml::from_str(DOCUMENTED).unwrap();
    for (key, value) in Settings::default().leaves() {
        let (section, name) = key.split_once('.').unwrap();
        assert_eq!(shown.get(section).and_then(|s| s.get(name)), Some(&value), "{key}");
    }
}

#[test]
fn circuits_say_who_is_reached_over_them() {
    let text =
        "[[circuit]]\nlabel = \"l7\"\npeers = [\"198.18.3.0/24\", \"2001:2::1\"]\nrate = \"40Gb/s\"\nmtu = 1024\n";
    let settings = parse(text).unwrap();
    let circuits: Vec<_> = settings.circuit[0].circuits().collect();
    assert_eq!(circuits.len(), 2);
    let (peers, circuit) = circuits[0];
    assert_eq!((peers.to_string(), circuit.label.as_str(), circuit.hold_max), ("198.18.3.0/24".into(), "l7", None));
    assert_eq!(circuit.mtu.map(crate::wire::PathMtu::bytes), Some(1024));
    // As `--set` and a reload read them again.
    let again = settings.with("log.level", "debug".into()).unwrap();
    assert_eq!(again.circuit, settings.circuit);
    assert_eq!(Settings::default().reload(&settings).applied, ["circuit"]);
    let refused = |line: &str| refusal(&format!("[[circuit]]\nlabel = \"l7\"\npeers = []\n{line}\n"));
    assert!(
        refusal("[[circuit]]\nlabel = \"\"\npeers = []\n")
            .starts_with("holdfast.toml:2:9: circuit.label: \"\" is no label")
    );
    assert!(
        refused("rate = \"fast\"")
            .starts_with("holdfast.toml:4:8: circuit.rate: invalid value: string \"fast\", expected a rate")
    );
    assert!(
        refused("mtu = 1500")
            .starts_with("holdfast.toml:4:7: circuit.mtu: invalid value: integer `1500`, expected 256")
    );
    let twice = Settings { circuit: [&settings.circuit[..], &settings.circuit[..]].concat(), ..settings };
    let device = Device { interface: "eth0".into(), ..Device::default() };
    let conflict = Settings { device, ..twice }.check().unwrap_err().to_string();
    assert!(conflict.starts_with("circuit.label: \"l7\" appears twice"), "{conflict}");
}

#[test]
fn the_documented_file_marks_what_a_reload_changes() {
    // A mark stands in the comment above a key, and covers the keys down to the next comment.
    let (mut section, mut marked, mut found) = (String::new(), false, Vec::new());
    let (mut in_comment, mut preamble) = (false, true);
    for line in DOCUMENTED.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
            (marked, preamble) = (false, false);
        } else if line.starts_with('#') && !preamble {
            marked = line.contains("[r]") || (in_comment && marked);
        } else if let Some((key, _)) = line.split_once(" = ")
            && marked
        {
            found.push(format!("{section}.{key}"));
        }
        in_comment = line.starts_with('#');
    }
    assert_eq!(found, reload::RELOADABLE);
}

#[test]
fn an_interface_is_enough() {
    let settings = options(&["--interface", "eth0"]).settings().unwrap();
    assert_eq!(settings.device.interface, "eth0");
    assert_eq!(Settings { device: Device::default(), ..settings }, Settings::default());
    let nothing = options(&[]).settings().unwrap_err().to_string();
    assert!(nothing.contains("--interface IF"), "{nothing}");
}

#[test]
fn refusals_say_where_which_key_and_what_is_allowed() {
    let cases = [
        (
            "[workers]\ncount = 0\n",
            "holdfast.toml:2:9: workers.count: invalid value: integer `0`, expected a whole number from 1 to 64",
        ),
        (
            "[workers]\n  cuont = 1\n",
            "holdfast.toml:2:3: workers.cuont: unknown field `cuont`, expected one of `count`,",
        ),
        ("[wrokers]\n", "holdfast.toml:1:2: wrokers: unknown field `wrokers`, expected one of `device`,"),
        (
            "[port]\nbackend = \"xdp\"\n",
            "holdfast.toml:2:11: port.backend: unknown variant `xdp`, expected one of `auto`,",
        ),
        (
            "[port]\nreceive_buffer = \"1KiB\"\n",
            "holdfast.toml:2:18: port.receive_buffer: invalid value: string \"1KiB\", expected a size from 64KiB to 1GiB",
        ),
        (
            "port.send_buffer = 4096\n",
            "holdfast.toml:1:20: port.send_buffer: invalid type: integer `4096`, expected a size from 64KiB to 1GiB, with its unit",
        ),
        (
            "[transport]\nack_delay = \"5\"\n",
            "holdfast.toml:2:13: transport.ack_delay: invalid value: string \"5\", expected a time such as",
        ),
        (
            "[device]\nmax_mtu = 1500\n",
            "holdfast.toml:2:11: device.max_mtu: invalid value: integer `1500`, expected 256, 512, 1024, 2048 or 4096",
        ),
        ("[device]\naddresses = [\"10.0.0\"]\n", "holdfast.toml:2:14: device.addresses: invalid IP address"),
        (
            "[metrics]\nlisten = \"9791\"\n",
            "holdfast.toml:2:10: metrics.listen: invalid value: string \"9791\", expected \"off\" or",
        ),
        ("[log]\nlevel = \"loud\"\n", "holdfast.toml:2:9: log.level: unknown variant `loud`, expected one of `error`,"),
        ("[log]\nlevel =\n", "holdfast.toml:2:8: "),
        ("[log]\n[log]\n", "holdfast.toml:2:2: "),
    ];
    for (text, expected) in cases {
        let refused = refusal(text);
        assert!(refused.starts_with(expected), "{text:?}\n  says     {refused}\n  expected {expected}");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let with = |args: &[&str]| {
        let mut all = vec!["--interface", "eth0"];
        all.extend(args);
        options(&all).settings().unwrap_err().to_string()
    };
    assert!(with(&["--set", "workers.cpus=[0, 1]"]).starts_with("workers.cpus: 2 CPUs for 1 workers"));
    assert!(with(&["--workers=2", "--set", "workers.cpus=[3, 3]"]).starts_with("workers.cpus: CPU 3 appears twice"));
    assert!(with(&["--set", "device.name=../x"]).starts_with("device.name: \"../x\" is no device name"));
    assert!(with(&["--set", "control.socket=/run/holdfast/attach.sock"]).starts_with("control.socket: is the same"));
}

#[test]
fn the_command_line_overrides_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("holdfast.toml");
    std::fs::write(&path, "[device]\ninterface = \"eth0\"\n[workers]\ncount = 2\n[log]\nlevel = \"warn\"\n").unwrap();
    let path = path.to_str().unwrap();
    let settings = options(&[
        "--config",
        path,
        "--workers=3",
        "--address=198.18.0.1",
        "--address=::1",
        "--backend=udp",
        "--set=transport.ack_delay=20us",
        "--set=workers.cpus=[1,2,3]",
        "--set=metrics.listen=off",
    ])
    .settings()
    .unwrap();
    assert_eq!((settings.workers.count, settings.device.interface.as_str()), (3, "eth0"));
    assert_eq!(settings.device.addresses.len(), 2);
    assert_eq!(settings.port.backend, Backend::Udp);
    assert_eq!(settings.transport.ack_delay, Time::from_micros(20));
    assert_eq!((settings.workers.cpus.as_slice(), settings.metrics.listen), (&[1, 2, 3][..], Listen::Off));
    assert_eq!(settings.log.level, logging::Level::Warn);
}

#[test]
fn options_that_are_not_allowed_say_so() {
    let say = |args: &[&str]| options(args).settings().unwrap_err().to_string();
    assert!(say(&["--backend=xdp"]).starts_with("--backend xdp: unknown variant `xdp`, expected one of `auto`,"));
    assert!(say(&["--workers=65"]).starts_with("--workers 65: invalid value: integer `65`, expected a whole number"));
    assert!(say(&["--set=workers"]).starts_with("--set workers: expected KEY=VALUE"));
    assert!(
        say(&["--set=workers.speed=9"])
            .starts_with("--set workers.speed=9: there is no key workers.speed; the keys are")
    );
    assert!(say(&["--set=workers=9"]).contains("there is no key workers;"));
    assert!(say(&["--config=/nonexistent/x"]).contains("check the path given to --config"));
}

#[test]
fn a_reload_applies_what_it_can_and_names_the_rest() {
    let old = parse("[device]\ninterface = \"eth0\"\n").unwrap();
    let new =
        parse("[device]\ninterface = \"eth1\"\n[log]\nlevel = \"debug\"\n[workers]\nspin_max = \"50us\"\n").unwrap();
    let reload = old.reload(&new);
    assert_eq!(reload.applied, ["log.level", "workers.spin_max"]);
    assert_eq!(reload.needs_restart, ["device.interface"]);
    assert_eq!(reload.settings.device.interface, "eth0");
    assert_eq!(reload.settings.log.level, logging::Level::Debug);
    let again = reload.settings.reload(&reload.settings);
    assert!(again.applied.is_empty() && again.needs_restart.is_empty());
}

#[test]
fn every_reloadable_key_exists() {
    let keys: Vec<String> = Settings::default().leaves().into_iter().map(|(key, _)| key).collect();
    for key in reload::RELOADABLE {
        assert!(keys.iter().any(|k| k == key), "{key}");
    }
}

proptest! {
    /// Whatever a file says, reading it ends in settings or in a refusal inside the file.
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
        check_refusal(&text);
    }

    /// The documented file with a few characters replaced.
    #[test]
    fn a_damaged_file_never_panics(edits in prop::collection::vec((0..DOCUMENTED.len(), "[\\[\\]=\".#a-z0-9\\né]{0,3}"), 1..6)) {
        let mut text = DOCUMENTED.to_owned();
        for (at, with) in edits {
            if text.is_char_boundary(at) && text.is_char_boundary(at + 1) {
                text.replace_range(at..=at, &with);
            }
        }
        check_refusal(&text);
    }

    /// What is written is read back.
    #[test]
    fn settings_survive_being_written(count in 1_u32..=64, spin in 0_u64..=100_000, interface in "[a-z]{1,8}") {
        let mut settings = Settings::default();
        settings.workers.count = count;
        settings.workers.spin_max = Time::from_micros(spin);
        settings.device.interface = interface;
        prop_assert_eq!(parse(&toml::to_string(&settings).unwrap()).unwrap(), settings);
    }
}

fn check_refusal(text: &str) {
    match parse(text) {
        Ok(settings) => drop(settings.check()),
        Err(SettingsError::Refused { line, problem, .. }) => {
            assert!((1..=text.matches('\n').count() + 1).contains(&line));
            assert!(!problem.is_empty());
        }
        Err(other) => panic!("{other}"),
    }
}
