//! The TCP handshake of rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong`.
//!
//! Source: rdma-core, `libibverbs/examples/{rc,uc,ud}_pingpong.c`. A destination is one line of ASCII with its NUL:
//! `LLLL:QQQQQQ:PPPPPP:G…G`: LID in 4 hex digits (0 on RoCE), QPN and PSN in 6, the GID in 32 (four 32-bit words in network
//! order). The client sends its own, reads the server's, and says `done` with its NUL once it is ready to receive. Between
//! reading the client's line and sending its own the server makes itself ready to receive.

use crate::wire::{Gid, Psn, Qpn};
use std::io::{self, Read, Write};

/// Bytes of a destination line, NUL included.
pub const LINE_BYTES: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;
const DONE: &[u8; 5] = b"done\0";

/// Whom to talk to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination {
    /// Queue pair.
    pub qpn: Qpn,
    /// First PSN that it sends.
    pub psn: Psn,
    /// Its address.
    pub gid: Gid,
}

/// What can be wrong with a peer's handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection failed or ended early.
    #[error("the peer hung up during the handshake ({0}); is it the same kind of pingpong (rc, uc, ud)?")]
    Io(#[from] io::Error),
    /// The line is none of rdma-core's.
    #[error("the peer's line '{0}' is not LID:QPN:PSN:GID as ibv_*_pingpong writes it")]
    NotADestination(String),
    /// The peer did not say `done`.
    #[error("the peer said '{0}' where ibv_*_pingpong says 'done'")]
    NotDone(String),
}

impl Destination {
    /// The line for the peer, with its NUL.
    pub fn to_line(self) -> [u8; LINE_BYTES] {
        let mut text = format!("{:04x}:{:06x}:{:06x}:", 0, self.qpn.get(), self.psn.get());
        for byte in self.gid.0 {
            text.push_str(&format!("{byte:02x}"));
        }
        let mut line = [0; LINE_BYTES];
        line[..text.len()].copy_from_slice(text.as_bytes());
        line
    }

    /// Reads a peer's line. Like rdma-core, which uses `sscanf`, takes a QPN or PSN of any case.
    ///
    /// # Errors
    /// [`HandshakeError::NotADestination`] names the line.
    pub fn from_line(line: &[u8; LINE_BYTES]) -> Result<Self, HandshakeError> {
        let text = String::from_utf8_lossy(line.split(|b| *b == 0).next().unwrap_or_default()).into_owned();
        Self::parse(&text).ok_or(HandshakeError::NotADestination(text))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let mut number = |digits: usize| {
            let part = parts.next()?;
            (part.len() == digits).then(|| u32::from_str_radix(part, 16).ok()).flatten()
        };
        let (_lid, qpn, psn) = (number(4)?, number(6)?, number(6)?);
        let hex = parts.next().filter(|g| g.len() == 32 && g.is_ascii())?;
        let mut gid = [0; 16];
        for (byte, digits) in gid.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self { qpn: Qpn::new(qpn), psn: Psn::new(psn), gid: Gid(gid) })
    }
}

/// The client's half: tells `own`, learns the server's, lets `connect` make the queue pair ready, and says so.
///
/// # Errors
/// What went wrong on the connection, or in `connect`.
pub fn client<S: Read + Write, E: From<HandshakeError>>(
    mut stream: S,
    own: Destination,
    connect: impl FnOnce(Destination) -> Result<(), E>,
) -> Result<Destination, E> {
    stream.write_all(&own.to_line()).map_err(HandshakeError::from)?;
    let remote = read_line(&mut stream)?;
    connect(remote)?;
    stream.write_all(DONE).map_err(HandshakeError::from)?;
    Ok(remote)
}

/// The server's half: learns the client's destination, lets `connect` make the queue pair ready, tells `own`, and waits
/// until the client is ready.
///
/// # Errors
/// What went wrong on the connection, or in `connect`.
pub fn server<S: Read + Write, E: From<HandshakeError>>(
    mut stream: S,
    own: Destination,
    connect: impl FnOnce(Destination) -> Result<(), E>,
) -> Result<Destination, E> {
    let remote = read_line(&mut stream)?;
    connect(remote)?;
    stream.write_all(&own.to_line()).map_err(HandshakeError::from)?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done).map_err(HandshakeError::from)?;
    if &done != DONE {
        return Err(HandshakeError::NotDone(String::from_utf8_lossy(&done).into_owned()).into());
    }
    Ok(remote)
}

fn read_line(stream: &mut impl Read) -> Result<Destination, HandshakeError> {
    let mut line = [0; LINE_BYTES];
    stream.read_exact(&mut line)?;
    Destination::from_line(&line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn writes_what_rdma_core_writes() {
        let d = Destination {
            qpn: Qpn::new(0x11),
            psn: Psn::new(0xa1_b2c3),
            gid: Gid::from("198.18.0.2".parse::<std::net::IpAddr>().unwrap()),
        };
        let line = d.to_line();
        assert_eq!(&line[..], b"0000:000011:a1b2c3:00000000000000000000ffffc6120002\0");
        assert_eq!(Destination::from_line(&line).unwrap(), d);
    }

    #[test]
    fn names_what_is_no_destination() {
        for text in ["", "0000:000011:a1b2c3", "0000:000011:a1b2c3:zz000000000000000000ffffc6120002", "\u{fffd}"] {
            let mut line = [0; LINE_BYTES];
            line[..text.len()].copy_from_slice(text.as_bytes());
            let e = Destination::from_line(&line).unwrap_err().to_string();
            assert!(e.contains(&format!("'{text}'")), "{e}");
        }
    }
}
