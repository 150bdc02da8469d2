//! Aligned tables, and numbers as people read them.

use std::io::{self, Write};

/// Where a column's text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}
pub(super) use Align::{Left, Right};

/// A table that grows by rows and knows its widths at the end.
pub(super) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell a column.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines of the table, its heading first, without blanks at their ends.
    pub(super) fn lines(&self) -> Vec<String> {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let all = || std::iter::once(&heading).chain(&self.rows);
        let width = |i: usize| all().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.columns).zip(&widths).map(|((cell, (_, align)), width)| match align {
                Left => format!("{cell:<width$}"),
                Right => format!("{cell:>width$}"),
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        all().map(line).collect()
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.lines().iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

/// A value in the largest of `units` that it reaches, with three digits.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut units) = (value, units.iter());
    let mut unit = units.next().copied().unwrap_or_default();
    for next in units {
        // What would be rounded up to the step belongs to the next unit.
        if value < step - 0.5 {
            break;
        }
        value /= step;
        unit = next;
    }
    let whole = value.fract() == 0.0 || value >= 99.95;
    let digits = if whole { 0 } else { 1 };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}

/// `1.5 GiB`
pub(super) fn bytes(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// `12.3 Gb/s`, from bytes a second.
pub(super) fn bit_rate(bytes_per_second: f64) -> String {
    scaled(bytes_per_second * 8.0, 1000.0, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"])
}

/// `1.2 M/s`
pub(super) fn rate(per_second: f64) -> String {
    scaled(per_second, 1000.0, &["/s", "k/s", "M/s", "G/s"])
}

/// `12 345 678`
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i != 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `1.5 ms`, `3 h 12 min`: short times in one unit, long ones in two.
pub(super) fn time(ns: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    match ns / 1_000_000_000 {
        0 => scaled(ns as f64, 1000.0, &["ns", "us", "ms", "s"]),
        s if s < MINUTE => format!("{s} s"),
        s if s < HOUR => format!("{} min {} s", s / MINUTE, s % MINUTE),
        s if s < DAY => format!("{} h {} min", s / HOUR, s % HOUR / MINUTE),
        s => format!("{} d {} h", s / DAY, s % DAY / HOUR),
    }
}

/// The value, or a dash.
pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |v| v.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("NAME", Left), ("N", Right), ("END", Left)]);
        table.row(["a".into(), "1000".into(), String::new()]);
        table.row(["größer".into(), "1".into(), "x".into()]);
        assert_eq!(table.lines(), ["NAME       N  END", "a       1000", "größer     1  x"]);
    }

    #[test]
    fn numbers_read_well_at_their_edges() {
        let sizes = [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (u64::MAX, "16384 PiB")];
        assert!(sizes.iter().all(|(n, text)| bytes(*n) == *text), "{:?}", sizes.map(|(n, _)| bytes(n)));
        assert_eq!((bit_rate(0.0).as_str(), bit_rate(12.5e9).as_str()), ("0 b/s", "100 Gb/s"));
        assert_eq!((rate(999.9).as_str(), rate(1_250_000.0).as_str()), ("1.0 k/s", "1.2 M/s"));
        assert_eq!((count(999).as_str(), count(1_234_567).as_str()), ("999", "1 234 567"));
        let times = [(0, "0 ns"), (1_500, "1.5 us"), (999_999_999, "1.0 s"), (61_000_000_000, "1 min 1 s")];
        assert!(times.iter().all(|(n, text)| time(*n) == *text), "{:?}", times.map(|(n, _)| time(n)));
        assert_eq!((time(3_661_000_000_000).as_str(), time(90_000_000_000_000).as_str()), ("1 h 1 min", "1 d 1 h"));
    }
}
