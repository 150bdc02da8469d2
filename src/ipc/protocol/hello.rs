//! The first exchange, whose layout never changes.

use super::{DeviceAttributes, PortAttributes, decode, encode};
use serde::{Deserialize, Serialize};

/// First bytes of every hello and its answer.
const MAGIC: [u8; 4] = *b"HFST";
/// Bytes of a hello, and of the fixed part of an answer.
const HELLO_BYTES: usize = 8;

/// What a client says first: the versions of layout and protocol that it speaks.
///
/// | offset | bytes | |
/// |---|---|---|
/// | 0 | 4 | `"HFST"` |
/// | 4 | 2 | lowest version |
/// | 6 | 2 | highest version |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The oldest version that the client speaks.
    pub lowest: u16,
    /// The newest.
    pub highest: u16,
}

/// What the daemon answers.
///
/// | offset | bytes | |
/// |---|---|---|
/// | 0 | 4 | `"HFST"` |
/// | 4 | 2 | 0 welcome, 1 refused |
/// | 6 | 2 | the version agreed on, or that the daemon speaks |
/// | 8 | … | a [`Welcome`] in the encoding of that version, or the reason for the refusal in UTF-8 |
#[derive(Clone, PartialEq, Debug)]
pub enum HelloAnswer {
    /// The client is attached.
    Welcome {
        /// The version that both speak from now on.
        version: u16,
        /// What the client should know at once.
        welcome: Box<Welcome>,
    },
    /// The client is not attached, and the daemon closes the socket.
    Refused {
        /// The version that the daemon speaks.
        version: u16,
        /// Why, for a person to read.
        reason: String,
    },
}

/// What a client should know at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The device.
    pub device: DeviceAttributes,
    /// Its port.
    pub port: PortAttributes,
    /// The daemon's process, for `prctl(PR_SET_PTRACER)` before memory is registered where it is.
    pub daemon_pid: i32,
}

/// Bytes that are no hello, or no answer to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this is no holdfast attach socket, or its other end is no holdfast client: the first message was not a hello")]
pub struct NotHello;

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl Hello {
    /// The bytes of this hello.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.lowest.to_ne_bytes());
        bytes[6..].copy_from_slice(&self.highest.to_ne_bytes());
        bytes
    }

    /// The hello that `bytes` begin with. What stands behind it is for versions to come.
    ///
    /// # Errors
    /// Anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotHello> {
        match (bytes.starts_with(&MAGIC), half(bytes, 4), half(bytes, 6)) {
            (true, Some(lowest), Some(highest)) if lowest <= highest => Ok(Self { lowest, highest }),
            _ => Err(NotHello),
        }
    }

    /// The newest version that both this client and a daemon of `oldest` to `newest` speak.
    ///
    /// # Errors
    /// None: the text says which of the two to upgrade.
    pub fn agree(&self, oldest: u16, newest: u16) -> Result<u16, String> {
        let version = self.highest.min(newest);
        if version >= self.lowest && version >= oldest {
            return Ok(version);
        }
        let (old, action) =
            if self.highest < oldest { ("client", "the client program") } else { ("daemon", "holdfastd") };
        Err(format!(
            "the {old} is too old: the client speaks versions {} to {} of the attach protocol, the daemon {oldest} to {newest}; \
             upgrade {action}",
            self.lowest, self.highest
        ))
    }
}

impl HelloAnswer {
    /// The bytes of this answer.
    ///
    /// # Errors
    /// None that a value of this type can bring about.
    pub fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        let (status, version, body) = match self {
            Self::Welcome { version, welcome } => (0u16, version, encode(welcome)?),
            Self::Refused { version, reason } => (1, version, reason.clone().into_bytes()),
        };
        Ok([&MAGIC[..], &status.to_ne_bytes(), &version.to_ne_bytes(), &body].concat())
    }

    /// The answer that `bytes` are.
    ///
    /// # Errors
    /// Anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotHello> {
        let body = bytes.get(HELLO_BYTES..).ok_or(NotHello)?;
        let version = half(bytes, 6).ok_or(NotHello)?;
        match (bytes.starts_with(&MAGIC), half(bytes, 4)) {
            (true, Some(0)) => Ok(Self::Welcome { version, welcome: decode(body).map_err(|_| NotHello)? }),
            (true, Some(1)) => Ok(Self::Refused { version, reason: String::from_utf8_lossy(body).into_owned() }),
            _ => Err(NotHello),
        }
    }
}
