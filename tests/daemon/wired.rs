//! What tables, settings and messages promise is wired up: every counter is written and scraped, every setting is read, every
//! field of an answer is there.

use crate::running::{Daemon, PATIENCE};
use crate::traffic;
use holdfast::counters::{Counter, Distribution, FAMILIES};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Instant;

/// All Rust text below some places of `src`, without comments and unit tests.
fn source(places: &[&str]) -> String {
    fn collect(path: &Path, text: &mut String) {
        if path.is_dir() {
            std::fs::read_dir(path).unwrap().for_each(|entry| collect(&entry.unwrap().path(), text));
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            let whole = std::fs::read_to_string(path).unwrap();
            let code = whole.split("#[cfg(test)]").next().unwrap();
            for line in code.lines() {
                text.push_str(line.split("//").next().unwrap());
                text.push('\n');
            }
        }
    }
    let mut text = String::new();
    for place in places {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(place);
        assert!(path.exists(), "{}", path.display());
        collect(&path, &mut text);
    }
    text
}

/// Whether `word` stands in `text` as a word of its own.
fn has_word(text: &str, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, behind) = (text[..at].chars().next_back(), text[at + word.len()..].chars().next());
        !before.is_some_and(is_name) && !behind.is_some_and(is_name)
    })
}

#[test]
fn every_counter_is_written() {
    let (all, counters) =
        (source(&["daemon", "control/socket.rs"]), Counter::ALL.iter().map(|c| format!("Counter::{c:?}")));
    let tallies = source(&["daemon", "ipc/server"]);
    let silent: Vec<String> = counters
        .filter(|name| !has_word(&all, name))
        .chain(
            Distribution::ALL.iter().map(|d| format!("Distribution::{d:?}")).filter(|name| !has_word(&tallies, name)),
        )
        .collect();
    assert!(silent.is_empty(), "always zero on /metrics: publish or delete {}", silent.join(", "));
}

#[test]
fn every_counter_is_scraped_with_its_help() {
    let daemon = Daemon::start(Ipv4Addr::new(127, 0, 1, 10), &[]);
    let context = daemon.attach();
    let kept = traffic(&context, 20);
    let start = Instant::now();
    let mut text = daemon.scrape("/metrics");
    // What was counted is published within 20 ms.
    while !text.contains("holdfast_completion_latency_seconds_count{worker=\"0\"} 20\n") {
        assert!(start.elapsed() < PATIENCE, "{text}");
        text = daemon.scrape("/metrics");
    }
    let series: Vec<&str> = text.lines().filter(|l| l.starts_with("holdfast_") || l.starts_with("node_")).collect();
    for family in FAMILIES {
        assert!(text.contains(&format!("# HELP {} {}\n", family.name, family.help)), "no HELP of {}", family.name);
        for member in family.members {
            let label = family.label.map(|label| format!("{label}=\"{}\"", member.label_value()));
            let is_it = |line: &&&str| {
                let rest = line.strip_prefix(family.name);
                rest.is_some_and(|r| r.starts_with(['{', ' ']) && label.as_ref().is_none_or(|l| r.contains(l.as_str())))
            };
            assert_eq!(series.iter().filter(is_it).count(), 1, "{} {label:?}", family.name);
        }
    }
    for which in Distribution::ALL {
        assert!(text.contains(&format!("# HELP {} {}\n", which.name(), which.help())), "no HELP of {}", which.name());
        assert!(text.contains(&format!("{}_bucket{{", which.name())), "{}", which.name());
    }
    for line in series {
        let name = line.split(['{', ' ']).next().unwrap();
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let helped = |name: &str| text.contains(&format!("# HELP {name} "));
        assert!(helped(name) || helped(stem), "no HELP of {name}");
    }
    let moved = |name: &str, label: &str| {
        let mut lines = text.lines().filter(|l| l.starts_with(name) && l.contains(label));
        assert!(lines.any(|l| !l.ends_with(" 0")), "{name} {label}");
    };
    moved("holdfast_work_requests_total{", "queue=\"send\"");
    moved("holdfast_doorbells_total{", "kind=\"ring\"");
    moved("holdfast_client_requests_total{", "");
    moved("holdfast_completions_total{", "");
    drop(kept);
}

#[test]
fn every_setting_is_read() {
    let congestion = source(&["settings/congestion.rs"]);
    let readers = source(&["daemon", "settings/logging.rs"]) + congestion.split_once("fn parameters").unwrap().1;
    let shown: toml::Table = toml::from_str(include_str!("../../config/holdfast.toml")).unwrap();
    let keys = shown.iter().flat_map(|(section, keys)| keys.as_table().unwrap().keys().map(move |key| (section, key)));
    let unread: Vec<String> = keys
        .filter(|(section, key)| !has_word(&readers, section) || !has_word(&readers, key))
        .map(|(section, key)| format!("{section}.{key}"))
        .collect();
    assert!(unread.is_empty(), "settings that change nothing: read or delete {}", unread.join(", "));
}

/// The fields of a message and of the messages in it, as paths such as `device.gids.index`, from the `.proto` files.
fn fields(message: &str) -> Vec<String> {
    let mut messages: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for file in ["status.proto", "queue_pairs.proto", "memory.proto"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/holdfast/v1").join(file);
        let mut current = None;
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let words: Vec<&str> =
                line.trim().trim_start_matches("optional ").trim_start_matches("repeated ").split(' ').collect();
            match words[..] {
                ["message", name, "{"] => current = Some(messages.entry(name.to_owned()).or_default()),
                ["}"] => current = None,
                [kind, name, "=", _] => {
                    if let Some(fields) = &mut current {
                        fields.push((kind.to_owned(), name.to_owned()));
                    }
                }
                _ => {}
            }
        }
    }
    fn walk(messages: &BTreeMap<String, Vec<(String, String)>>, message: &str, prefix: &str, paths: &mut Vec<String>) {
        for (kind, name) in &messages[message] {
            paths.push(format!("{prefix}{name}"));
            if messages.contains_key(kind) {
                walk(messages, kind, &format!("{prefix}{name}."), paths);
            }
        }
    }
    let mut paths = Vec::new();
    walk(&messages, message, "", &mut paths);
    assert!(!paths.is_empty());
    paths
}

/// Whether some value at `path` is there and says something: not null, not an empty text or list.
fn is_filled(value: &Value, path: &str) -> bool {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    match value {
        Value::Array(all) => all.iter().any(|one| is_filled(one, path)),
        Value::Object(fields) if !path.is_empty() => fields.get(first).is_some_and(|inner| is_filled(inner, rest)),
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        _ => path.is_empty(),
    }
}

fn unfilled(value: &Value, message: &str) -> Vec<String> {
    let mut missing = fields(message);
    missing.retain(|path| !is_filled(value, path));
    missing
}

#[test]
fn every_field_of_an_answer_is_filled() {
    let daemon = Daemon::start(Ipv4Addr::new(127, 0, 1, 11), &["--interface", "lo", "--set", "workers.cpus=[0]"]);
    let context = daemon.attach();
    let kept = traffic(&context, 20);
    let json = |arguments: &[&str]| -> Value { serde_json::from_slice(&daemon.ask(arguments).stdout).unwrap() };
    let start = Instant::now();
    // The percentiles follow when the worker has published.
    let status = loop {
        let status = json(&["status", "--json"]);
        if status["completion_latency"]["count"] == 20 {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "{status}");
    };
    // Only where something is wrong.
    assert_eq!(unfilled(&status, "GetStatusResponse"), ["workers.problem"], "{status:#}");
    let qp = json(&["qp", "list", "--json"]);
    // No shared receive queue, no answer that is missing, no failure. (Labels of counters are among the counters.)
    let mut empty = vec!["shared_receive_queue", "waited_ns", "wait_ends_in_ns", "failure"];
    // Queue pairs of one daemon share no line: tests/survival/narrow.rs fills what is told of one.
    empty.extend(["congestion", "congestion.rate_bps", "congestion.target_bps", "congestion.alpha_millionths"]);
    empty.extend([
        "congestion.is_limited",
        "congestion.marked_packets",
        "congestion.cnps_sent",
        "congestion.cnps_received",
    ]);
    assert_eq!(unfilled(&qp, "QueuePair"), empty, "{qp:#}");
    assert_eq!(unfilled(&json(&["mr", "list", "--json"]), "MemoryRegion"), [""; 0]);
    drop(kept);
}
