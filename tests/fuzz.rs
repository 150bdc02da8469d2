//! The fuzz targets of `fuzz/` on a stable compiler: over their corpora, and over seeded mutations of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(unreachable_pub, reason = "there it is the root of a crate")]
#[path = "../fuzz/src/lib.rs"]
mod bodies;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Mutated inputs a target.
const MUTATIONS: u64 = 20_000;
/// Inputs do not grow beyond this by mutation.
const MAX_LEN: usize = 8192;

/// The inputs of a target that are kept, in a fixed order.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| (file.clone(), std::fs::read(&file).unwrap())).collect()
}

/// Runs a target on one input; a panic tells the input.
fn run(target: &str, body: bodies::Target, input: &[u8], origin: &str) {
    if catch_unwind(AssertUnwindSafe(|| body(input))).is_err() {
        let hex: String = input.iter().map(|b| format!("{b:02x}")).collect();
        panic!("fuzz target {target} failed on {origin}:\n{hex}");
    }
}

/// Xorshift64: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// One change of the kinds that libFuzzer makes.
fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len());
    let end = at + random.below(input.len() - at + 1).min(64);
    match random.below(8) {
        0 if !input.is_empty() => input[at] ^= 1 << random.below(8),
        1 if !input.is_empty() => input[at] = random.next() as u8,
        2 if !input.is_empty() => input[at] = *[0, 1, 0x7f, 0x80, 0xff].get(random.below(5)).unwrap(),
        3 => input.truncate(at),
        4 => drop(input.drain(at..end)),
        5 => {
            let piece = input[at..end].to_vec();
            drop(input.splice(at..at, piece));
        }
        6 => {
            let from = random.below(other.len());
            let piece = &other[from..other.len().min(from + 64)];
            drop(input.splice(at..end, piece.iter().copied()));
        }
        _ => input.extend(random.next().to_ne_bytes()),
    }
    input.truncate(MAX_LEN);
}

fn fuzz(target: &str) {
    let (_, body) = bodies::TARGETS.iter().find(|(name, _)| *name == target).expect("a target of this name");
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "no corpus for {target}");
    for (file, input) in &corpus {
        run(target, *body, input, &file.display().to_string());
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for iteration in 0..MUTATIONS {
        let (file, seed) = &corpus[random.below(corpus.len())];
        let (_, other) = &corpus[random.below(corpus.len())];
        let mut input = seed.clone();
        for _ in 0..=random.below(8) {
            mutate(&mut input, other, &mut random);
        }
        run(target, *body, &input, &format!("mutation {iteration} of {}", file.display()));
    }
}

/// A test for each target.
macro_rules! targets {
    ($($target:ident),*) => {
        $(#[test] fn $target() { fuzz(stringify!($target)); })*
        const TESTED: &[&str] = &[$(stringify!($target)),*];
    };
}

targets!(wire, decode, settings, engine, ipc);

#[test]
fn no_target_is_forgotten() {
    let named: Vec<&str> = bodies::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, TESTED);
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/Cargo.toml")).unwrap();
    for name in named {
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"")), "{name}");
    }
}
