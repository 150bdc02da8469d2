//! What paths ride on: circuits, and what is known of each.

use crate::congestion::Bps;
use crate::time::Duration;
use crate::wire::PathMtu;
use core::fmt;
use core::str::FromStr;

/// What a circuit is called: 1 to [`Label::MOST`] bytes of letters, digits, `-`, `_`, `.`, `:` and `/`, as the optical switch names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    bytes: [u8; Self::MOST],
    len: u8,
}

/// Why a text is no label.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no label: 1 to {most} letters, digits, '-', '_', '.', ':' and '/'", most = Label::MOST)]
pub struct LabelError(String);

impl Label {
    /// Bytes of the longest label.
    pub const MOST: usize = 39;

    /// The text.
    pub fn as_str(&self) -> &str {
        // It was ASCII when it was read.
        self.bytes.get(..self.len.into()).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/".contains(&b);
        let mut bytes = [0; Self::MOST];
        match bytes.get_mut(..text.len()) {
            Some(room) if !text.is_empty() && text.bytes().all(is_allowed) => room.copy_from_slice(text.as_bytes()),
            _ => return Err(LabelError(text.to_owned())),
        }
        Ok(Self { bytes, len: text.len() as u8 })
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// A circuit: a lambda between two racks, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Circuit {
    /// Its name. Another name is another light: congestion is remembered by it.
    pub label: Label,
    /// Bits a second, if they are fewer than the port's.
    pub rate: Option<Bps>,
    /// Round trip without queues; zero if unknown.
    pub rtt: Duration,
    /// The largest RoCE MTU that it carries; `None`: as the port.
    pub mtu: Option<PathMtu>,
    /// In the dark for longer, what waits fails; `None`: as all paths.
    pub hold_max: Option<Duration>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn labels_are_names_and_nothing_else() {
        let longest = "x".repeat(Label::MOST);
        for text in ["7", "lambda-7", "oxc1/port_3:1550.12", &longest] {
            let label: Label = text.parse().unwrap();
            assert_eq!((label.as_str(), label.to_string().as_str()), (text, text));
        }
        for text in ["", "a b", "λ", "x\n", &(longest + "x")] {
            assert!(text.parse::<Label>().unwrap_err().to_string().contains("1 to 39 letters"), "{text:?}");
        }
    }
}
