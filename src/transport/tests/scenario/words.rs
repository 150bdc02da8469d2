//! The words of a line: a name, flags and `key=value` pairs.

use crate::time::Duration;
use crate::transport::{Completion, QpState, Wait};

pub(super) struct Words<'a> {
    name: &'a str,
    flags: Vec<&'a str>,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(super) fn parse(line: &'a str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let name = words.next().ok_or("an empty line")?;
        let (mut flags, mut pairs) = (Vec::new(), Vec::new());
        for word in words {
            match word.split_once('=') {
                Some(pair) => pairs.push(pair),
                None => flags.push(word),
            }
        }
        Ok(Self { name, flags, pairs })
    }

    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.pairs.iter().copied()
    }

    pub(super) fn flag(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }

    pub(super) fn number_or(&self, key: &str, default: u64) -> Result<u64, String> {
        self.text(key).map_or(Ok(default), number)
    }

    /// All that is said here must be said there; `no_ack` says that the flag `ack` is not.
    pub(super) fn must_be_part_of(&self, whole: &Words<'_>) -> Result<(), String> {
        let equal = |a: &str, b: &str| a == b || number(a).is_ok_and(|a| number(b) == Ok(a));
        let flags = self.flags.iter().all(|f| match f.strip_prefix("no_") {
            Some(absent) => !whole.flag(absent),
            None => whole.flag(f),
        });
        let pairs = self.pairs().all(|(k, v)| whole.text(k).is_some_and(|w| equal(v, w)));
        if self.name == whole.name && flags && pairs { Ok(()) } else { Err(format!("it is {}", whole.whole())) }
    }

    fn whole(&self) -> String {
        let pairs = self.pairs().map(|(k, v)| format!(" {k}={v}"));
        self.name.to_string() + &self.flags.iter().map(|f| format!(" {f}")).chain(pairs).collect::<String>()
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| format!("{text} is no number"))
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let n = number(&text[..text.len() - unit.len()])?;
    match unit {
        "us" => Ok(Duration::from_micros(n)),
        "ms" => Ok(Duration::from_millis(n)),
        _ => Err(format!("{text} is no time in us or ms")),
    }
}

pub(super) fn state(text: &str) -> Result<QpState, String> {
    (0..=6)
        .filter_map(QpState::from_verbs)
        .find(|s| format!("{s:?}").eq_ignore_ascii_case(text))
        .ok_or_else(|| format!("no state {text}"))
}

pub(super) fn wait(text: &str) -> Result<Option<Wait>, String> {
    let all = [
        Wait::Rnr,
        Wait::Loss,
        Wait::Ack,
        Wait::Credit,
        Wait::Window,
        Wait::Reads,
        Wait::Fence,
        Wait::Stopped,
        Wait::Application,
    ];
    match text {
        "nothing" => Ok(None),
        _ => all
            .into_iter()
            .find(|w| format!("{w:?}").eq_ignore_ascii_case(text))
            .map(Some)
            .ok_or_else(|| format!("no reason {text}")),
    }
}

/// A completion as a line.
pub(super) fn completion(c: &Completion) -> String {
    let mut line = format!("{:?} wr={} op={:?} len={}", c.status, c.wr_id, c.opcode, c.byte_len);
    for (key, value) in [("imm", c.imm), ("inv", c.invalidated)] {
        if let Some(value) = value {
            line += &format!(" {key}={value}");
        }
    }
    if c.src_qp.get() != 0 {
        line += &format!(" src_qp={}", c.src_qp);
    }
    line
}
