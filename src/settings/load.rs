//! Reading, checking, and saying exactly what is wrong where.

use super::Settings;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// Why settings were refused. Each says where, and what would have been allowed.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file could not be read.
    #[error("cannot read settings from {}: {source}; check the path given to --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The file holds something that is not allowed.
    #[error("{}:{line}:{column}: {}{problem}", path.display(), Key(key))]
    Refused {
        /// The file.
        path: PathBuf,
        /// Line of the value, from 1.
        line: usize,
        /// Column of the value in characters, from 1.
        column: usize,
        /// The key, such as `workers.count`; empty where the text is no TOML.
        key: String,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// An option of the command line is not allowed.
    #[error("{option}: {problem}")]
    Option {
        /// The option as given.
        option: String,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// Settings that are well-formed but do not go together.
    #[error("{key}: {problem}")]
    Conflict {
        /// The key at fault.
        key: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
}

/// A key with the colon behind it, or nothing.
struct Key<'a>(&'a str);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

impl Settings {
    /// Reads a file and checks each value by itself; [`Settings::check`] then checks the whole.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        Self::parse(&read(path)?, path)
    }

    /// Reads `text`, which came from `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SettingsError> {
        parse(text, path)
    }

    /// Checks what single values cannot tell: that they go together, and that there is something to serve.
    pub fn check(&self) -> Result<(), SettingsError> {
        let refuse = |key, problem: String| Err(SettingsError::Conflict { key, problem });
        if self.device.interface.is_empty() && self.device.addresses.is_empty() {
            return refuse(
                "device.interface",
                "neither an interface nor addresses are set: start with --interface IF, or set device.interface".into(),
            );
        }
        if !is_device_name(&self.device.name) {
            return refuse(
                "device.name",
                format!("\"{}\" is no device name: 1 to 63 letters, digits, '_' and '-'", self.device.name),
            );
        }
        let (count, cpus) = (self.workers.count as usize, self.workers.cpus.len());
        if cpus != 0 && cpus != count {
            return refuse("workers.cpus", format!("{cpus} CPUs for {count} workers: name one CPU a worker, or none"));
        }
        if let Some(twice) = first_repeated(&self.workers.cpus) {
            return refuse("workers.cpus", format!("CPU {twice} appears twice: workers do not share a core"));
        }
        if let Err(problem) = self.congestion.tuning(0) {
            return refuse("congestion", problem.to_string());
        }
        let mut labels: Vec<_> = self.circuit.iter().map(|circuit| circuit.label).collect();
        labels.sort_unstable();
        if let Some([twice, ..]) = labels.windows(2).find(|pair| matches!(pair, [a, b] if a == b)) {
            return refuse(
                "circuit.label",
                format!("\"{twice}\" appears twice: a circuit has one entry, with all its peers"),
            );
        }
        if self.clients.socket == self.control.socket {
            return refuse("control.socket", "is the same as clients.socket: two sockets need two paths".into());
        }
        Ok(())
    }

    /// All keys with their values, as `section.key`, in alphabetical order.
    pub(super) fn leaves(&self) -> Vec<(String, toml::Value)> {
        // Serialisation of plain structs with string keys cannot fail; an empty list would fail the tests that use it.
        let table = toml::Table::try_from(self).unwrap_or_default();
        let mut leaves = Vec::new();
        for (section, keys) in table {
            if let toml::Value::Table(keys) = keys {
                leaves.extend(keys.into_iter().map(|(key, value)| (format!("{section}.{key}"), value)));
            }
        }
        leaves
    }

    /// These settings with one key replaced; the error says what is allowed.
    pub(super) fn with(&self, key: &str, value: toml::Value) -> Result<Self, String> {
        let mut table = toml::Table::try_from(self).map_err(|e| e.to_string())?;
        let known = key.split_once('.').and_then(|(section, name)| table.get_mut(section)?.get_mut(name));
        let Some(slot) = known else {
            return Err(format!("there is no key {key}; the keys are {}", keys()));
        };
        *slot = value;
        Self::deserialize(table).map_err(|e| e.message().trim().to_owned())
    }
}

fn keys() -> String {
    let names: Vec<String> = Settings::default().leaves().into_iter().map(|(key, _)| key).collect();
    names.join(", ")
}

/// Reads a file as text.
pub fn read(path: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path).map_err(|source| SettingsError::Unreadable { path: path.to_owned(), source })
}

/// Reads TOML `text`, which came from `path`, into any type whose values check themselves.
pub fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, SettingsError> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let (line, column) = position(text, span.start);
        let key = key_at(text, &span).unwrap_or_default();
        SettingsError::Refused { path: path.to_owned(), line, column, key, problem: error.message().trim().to_owned() }
    })
}

/// What the verbs library can show under `/sys/class/infiniband`.
fn is_device_name(name: &str) -> bool {
    (1..=63).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn first_repeated(numbers: &[u32]) -> Option<u32> {
    numbers.iter().enumerate().find(|(i, n)| numbers.iter().take(*i).any(|m| m == *n)).map(|(_, n)| *n)
}

/// Line and column (from 1, in characters) of a byte of `text`.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

/// The dotted key whose name or value holds the span; `None` where the text is no TOML.
fn key_at(text: &str, span: &Range<usize>) -> Option<String> {
    fn descend(table: &DeTable<'_>, span: &Range<usize>, path: &str) -> Option<String> {
        table.iter().find_map(|(key, value)| {
            let name = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            let inner = match value.get_ref() {
                DeValue::Table(inner) => descend(inner, span, &name),
                DeValue::Array(items) => items.iter().find_map(|item| match item.get_ref() {
                    DeValue::Table(inner) => descend(inner, span, &name),
                    _ => None,
                }),
                _ => None,
            };
            let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
            inner.or_else(|| (holds(key.span()) || holds(value.span())).then_some(name))
        })
    }
    descend(DeTable::parse(text).ok()?.get_ref(), span, "")
}
