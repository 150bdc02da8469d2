//! The floors of the house: a room imports rooms of lower floors only, and the core does no I/O.
//!
//! Clippy's `disallowed-methods` knows whole crates only; what may be called differs from room to room, so this test reads the
//! sources. It sees tokens, not text: comments and strings do not count, macro bodies do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Which rooms a room may import.
#[derive(Clone, Copy)]
enum Place {
    /// All of lower floors.
    Floor(u8),
    /// These only. A room on a floor may not import a room aside.
    Aside(&'static [&'static str]),
}
use Place::{Aside, Floor};

const ROOMS: &[(&str, Place)] = &[
    ("wire", Floor(0)),
    ("time", Floor(0)),
    ("counters", Floor(0)),
    ("memory", Floor(1)),
    ("transport", Floor(2)),
    ("congestion", Floor(2)),
    ("conntrack", Floor(2)),
    ("path", Floor(3)),
    ("engine", Floor(4)),
    ("io", Floor(5)),
    ("ipc", Floor(5)),
    ("control", Floor(6)),
    ("metrics", Floor(6)),
    ("settings", Floor(6)),
    ("daemon", Floor(7)),
    ("decode", Aside(&["wire"])),
    // Packet sockets and namespaces are of `io`; its file is written as the daemon's.
    ("fabric", Aside(&["wire", "time", "io", "settings"])),
    ("perf", Aside(&["wire", "time", "memory", "transport", "ipc"])),
    // Its stage is made of namespaces.
    (
        "demo",
        Aside(&["wire", "time", "memory", "transport", "io", "ipc", "settings", "control", "daemon", "perf", "fabric"]),
    ),
    // The command knows everybody.
    (
        "cli",
        Aside(&[
            "wire",
            "time",
            "counters",
            "memory",
            "transport",
            "congestion",
            "conntrack",
            "path",
            "ipc",
            "control",
            "metrics",
            "settings",
            "daemon",
            "decode",
            "fabric",
            "perf",
            "demo",
        ]),
    ),
];

/// Floors up to this one are sans-I/O.
const CORE: u8 = 4;
/// What the core does not mention, except in its tests.
const NOT_IN_THE_CORE: &[&[&str]] =
    &[&["std", "net"], &["std", "thread"], &["tokio"], &["Instant", "now"], &["SystemTime"], &["quanta"], &["rand"]];
/// Rooms that may allow unsafe code.
const UNSAFE: &[&str] = &["memory", "io", "ipc"];

fn place(room: &str) -> Option<Place> {
    ROOMS.iter().find(|(name, _)| *name == room).map(|(_, place)| *place)
}

/// Why `from` may not import `to`.
fn refusal(from: &str, to: &str) -> Option<String> {
    let to_place = place(to)?;
    match (place(from)?, to_place) {
        _ if from == to => None,
        (Floor(own), Floor(other)) if other < own => None,
        (Floor(own), Floor(other)) => {
            Some(format!("`{from}` (floor {own}) may import lower floors only, `{to}` is on floor {other}"))
        }
        (Floor(own), Aside(_)) => Some(format!("`{from}` (floor {own}) may not need `{to}`, which stands aside")),
        (Aside(allowed), _) if allowed.contains(&to) => None,
        (Aside(allowed), _) => Some(format!("`{from}` may import {allowed:?} only, not `{to}`")),
    }
}

/// What a source file mentions.
#[derive(Default)]
struct Mentions {
    /// Rooms, by a path from the root of the crate.
    rooms: BTreeSet<String>,
    /// Paths, as far as two names go, outside tests.
    paths: BTreeSet<Vec<String>>,
    /// Every name.
    names: BTreeSet<String>,
}

impl Mentions {
    /// Reads the tokens of a module that is `depth` modules below the root.
    fn read(&mut self, tokens: TokenStream, depth: usize, test: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut i = 0;
        while i < tokens.len() {
            match &tokens[i] {
                TokenTree::Ident(name) if name == "mod" => {
                    if let [TokenTree::Ident(name), TokenTree::Group(body), ..] = &tokens[i + 1..] {
                        self.read(body.stream(), depth + 1, test || name == "tests");
                        i += 2;
                    }
                }
                TokenTree::Ident(_) => {
                    let (path, group) = path(&tokens[i..]);
                    i += 3 * (path.len() - 1);
                    self.names.extend(path.iter().cloned());
                    self.see(&path, group, depth, test);
                }
                TokenTree::Group(group) => self.read(group.stream(), depth, test),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            i += 1;
        }
    }

    /// A path, and the braces behind it: `crate::{wire, time::Instant}`.
    fn see(&mut self, path: &[String], group: Option<TokenStream>, depth: usize, test: bool) {
        let supers = path.iter().take_while(|name| *name == "super").count();
        let from_root = match path[0].as_str() {
            "crate" | "holdfast" => Some(1),
            "super" if supers == depth => Some(supers),
            _ => None,
        };
        let first_names: Vec<String> = group.into_iter().flat_map(branches).collect();
        if let Some(start) = from_root {
            match path.get(start) {
                Some(room) => drop(self.rooms.insert(room.clone())),
                None => self.rooms.extend(first_names.iter().cloned()),
            }
        }
        if test {
            return;
        }
        self.paths.extend(path.windows(2).map(<[String]>::to_vec));
        self.paths.extend(path.iter().map(|name| vec![name.clone()]));
        self.paths.extend(first_names.into_iter().map(|name| vec![path[path.len() - 1].clone(), name]));
    }
}

/// The path at the start of `tokens`, `a::b::c`, and the group that ends it, if it ends in `::{…}`.
fn path(tokens: &[TokenTree]) -> (Vec<String>, Option<TokenStream>) {
    let mut names = Vec::new();
    let mut rest = tokens;
    while let [TokenTree::Ident(name), behind @ ..] = rest {
        names.push(name.to_string());
        match behind {
            [TokenTree::Punct(a), TokenTree::Punct(b), next @ ..] if a.as_char() == ':' && b.as_char() == ':' => {
                match next {
                    [TokenTree::Group(g), ..] if g.delimiter() == Delimiter::Brace => return (names, Some(g.stream())),
                    _ => rest = next,
                }
            }
            _ => break,
        }
    }
    (names, None)
}

/// The first name of each branch of a `use` group.
fn branches(group: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = group.into_iter().collect();
    let comma = |t: &TokenTree| matches!(t, TokenTree::Punct(p) if p.as_char() == ',');
    let first = |branch: &[TokenTree]| match branch.first() {
        Some(TokenTree::Ident(name)) => Some(name.to_string()),
        _ => None,
    };
    tokens.split(comma).filter_map(first).collect()
}

/// The room of a file, and how many modules below the root its own module is. `None`: the root, or a binary.
fn room(path: &Path) -> Option<(String, usize)> {
    let mut parts: Vec<String> = path.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    match parts.first().map(String::as_str) {
        None | Some("lib" | "bin") => None,
        Some(room) => Some((room.to_owned(), parts.len())),
    }
}

/// Everything that is wrong in a source tree: paths relative to `src`, and their text.
fn violations(files: &[(PathBuf, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, text) in files {
        let Some((room, depth)) = room(file) else { continue };
        let at = format!("src/{}", file.display());
        let Some(own) = place(&room) else {
            wrong.push(format!("{at}: room `{room}` has no floor: give it one in tests/floors.rs"));
            continue;
        };
        let tokens = text.parse().unwrap_or_else(|e| panic!("{at} is no Rust: {e}"));
        let mut mentions = Mentions::default();
        mentions.read(tokens, depth, file.iter().any(|p| p == "tests" || p == "tests.rs"));
        wrong.extend(mentions.rooms.iter().filter_map(|to| refusal(&room, to)).map(|why| format!("{at}: {why}")));
        if matches!(own, Floor(floor) if floor <= CORE) {
            let named =
                |path: &&&[&str]| mentions.paths.contains(&path.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
            wrong.extend(NOT_IN_THE_CORE.iter().filter(named).map(|path| {
                format!("{at}: floors 0 to {CORE} are sans-I/O, `{}` has no place there", path.join("::"))
            }));
        }
        if mentions.names.contains("unsafe_code") && !UNSAFE.contains(&room.as_str()) {
            wrong.push(format!("{at}: unsafe code is for {UNSAFE:?} only"));
        }
    }
    wrong
}

/// All Rust files below `folder`.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push((path.strip_prefix(folder).unwrap().to_owned(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}

#[test]
fn rooms_import_downwards_and_the_core_does_no_io() {
    let files = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(files.iter().any(|(path, _)| path == Path::new("wire/packet.rs")), "the sources were not found");
    let wrong = violations(&files);
    let mut report = String::new();
    wrong.iter().for_each(|w| writeln!(report, "  {w}").unwrap());
    assert!(wrong.is_empty(), "the floors of the house (src/lib.rs) do not hold:\n{report}");
}

/// What is wrong with one made-up file.
fn check(path: &str, text: &str) -> Vec<String> {
    violations(&[(PathBuf::from(path), text.to_owned())])
}

#[test]
fn upward_imports_are_found_however_they_are_written() {
    let upward = "src/wire/a.rs: `wire` (floor 0) may import lower floors only, `engine` is on floor 4";
    for text in [
        "use crate::engine::Engine;",
        "use crate::{time, engine::Engine};",
        "use crate::{\n    // a comment\n    engine,\n};",
        "fn f() { crate::engine::run() }",
        "fn f() { println!(\"{}\", crate::engine::N) }",
        "use super::super::engine;",
        "mod deeper { use super::super::super::{engine}; }",
        "mod tests { use crate::engine; }",
        "pub use holdfast::engine;",
    ] {
        let expected = if text.contains("time") { 2 } else { 1 };
        let wrong = check("wire/a.rs", text);
        assert_eq!(wrong.len(), expected, "{text}: {wrong:?}");
        assert_eq!(wrong[0], upward, "{text}");
    }
    assert_eq!(check("time.rs", "use super::wire;").len(), 1, "rooms of one floor do not import each other");
    assert_eq!(check("daemon/mod.rs", "use super::decode::decode;").len(), 1);
    assert_eq!(check("decode/mod.rs", "use crate::{wire::Packet, time};").len(), 1);
}

#[test]
fn downward_imports_comments_and_strings_are_not() {
    for text in [
        "use crate::{time::Instant, wire};",
        "// use crate::daemon\n/* crate::io */ const A: &str = \"crate::daemon\";",
        "/// See [`crate::daemon`].\nfn f() {}",
        "use super::super::memory;",
        "use super::daemon;", // A module of the room itself.
        "mod daemon { use super::super::io; }",
    ] {
        assert_eq!(check("engine/a.rs", text), [""; 0], "{text}");
    }
    assert_eq!(check("lib.rs", "pub mod daemon; use crate::daemon;"), [""; 0]);
    assert_eq!(check("bin/holdfastd.rs", "use holdfast::daemon;"), [""; 0]);
}

#[test]
fn io_in_the_core_and_strange_rooms_are_found() {
    for text in [
        "use std::net::UdpSocket;",
        "use std::{fmt, net::IpAddr};",
        "fn f() { let t = std::time::Instant::now(); }",
        "use std::thread;",
        "async fn f() { tokio::spawn(g()) }",
        "fn f() { SystemTime::now(); }",
    ] {
        let wrong = check("transport/qp.rs", text);
        assert_eq!(wrong.len(), 1, "{text}: {wrong:?}");
        assert!(wrong[0].contains("has no place there"), "{wrong:?}");
        assert_eq!(check("daemon/worker.rs", text), [""; 0]);
        assert_eq!(check("transport/tests.rs", text), [""; 0]);
        assert_eq!(check("transport/qp.rs", &format!("mod tests {{ {text} }}")), [""; 0]);
    }
    assert_eq!(check("transport/qp.rs", "use core::net::IpAddr; use crate::time::Instant;"), [""; 0]);
    assert_eq!(check("utils.rs", "").len(), 1);
    assert_eq!(check("engine/mod.rs", "#![allow(unsafe_code)]").len(), 1);
    assert_eq!(check("memory/mod.rs", "#![allow(unsafe_code)]"), [""; 0]);
}
