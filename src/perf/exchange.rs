//! The TCP conversation of the two sides: one JSON value a line.
//!
//! ```text
//! client                                server
//! Plan(plan)                     ──►
//!                                ◄──    Side(endpoints, memory)   or Failed(why)
//! Side(endpoints, memory)        ──►
//!                                ◄──    Ready                     both are connected
//! Begin(size)                    ──►                              for each size:
//!                                ◄──    Ready                     receives are posted
//!          … messages over RDMA …
//! Done(messages)                 ──►
//!                                ◄──    Result(messages, verified, wrong)
//! ```
//!
//! Both ways at once takes two connections. On the second the client says `Mirror`; from there on the two sides have changed their
//! parts, and at the end the server tells the result: `Measured`.

use super::PerfError;
use super::plan::Plan;
use super::report::Bandwidth;
use crate::ipc::client::Endpoint;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What one side must know of the other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Side {
    /// Its queue pairs.
    pub endpoints: Vec<Endpoint>,
    /// Address of its buffer.
    pub address: u64,
    /// Bytes of its buffer.
    pub length: u64,
    /// Key of its buffer.
    pub rkey: u32,
}

/// What the receiving side saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Messages, where it can tell (receives complete).
    pub messages: u64,
    /// Bytes compared.
    pub verified_bytes: u64,
    /// Of those, wrong.
    pub wrong_bytes: u64,
}

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// What is to be measured.
    Plan(Plan),
    /// A side's endpoints and memory.
    Side(Side),
    /// Go on.
    Ready,
    /// The next size.
    Begin(u32),
    /// So many messages were sent.
    Done(u64),
    /// What the receiving side saw.
    Result(Seen),
    /// The server may measure the client.
    Mirror,
    /// What the server has measured.
    Measured(Bandwidth),
    /// It went wrong.
    Failed(String),
}

/// A line of 4096 endpoints takes less than half a megabyte.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// One end of the conversation.
#[derive(Debug)]
pub(super) struct Exchange {
    read: BufReader<TcpStream>,
    write: TcpStream,
}

impl Exchange {
    /// Over a connected stream. `patience` is how long the other side may keep silent.
    pub(super) fn new(stream: TcpStream, patience: Duration) -> Result<Self, PerfError> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { read: BufReader::new(stream.try_clone()?), write: stream })
    }

    /// Says one line.
    pub(super) fn say(&mut self, line: &Line) -> Result<(), PerfError> {
        let mut text = serde_json::to_string(line).map_err(|e| PerfError::Conversation(e.to_string()))?;
        text.push('\n');
        Ok(self.write.write_all(text.as_bytes())?)
    }

    /// Hears one line; a failure of the other side is an error here.
    pub(super) fn hear(&mut self) -> Result<Line, PerfError> {
        let mut text = String::new();
        (&mut self.read).take(MAX_LINE_BYTES).read_line(&mut text)?;
        if text.is_empty() {
            return Err(PerfError::Peer("it has closed the connection".into()));
        }
        match serde_json::from_str(&text) {
            Ok(Line::Failed(why)) => Err(PerfError::Peer(why)),
            Ok(line) => Ok(line),
            Err(_) => Err(PerfError::Conversation(text.trim_end().chars().take(80).collect())),
        }
    }

    /// Hears the line that is due now.
    pub(super) fn expect_ready(&mut self) -> Result<(), PerfError> {
        match self.hear()? {
            Line::Ready => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the other side has said something, or gone.
    pub(super) fn is_waiting(&mut self) -> Result<bool, PerfError> {
        if !self.read.buffer().is_empty() {
            return Ok(true);
        }
        self.write.set_nonblocking(true)?;
        let peeked = self.write.peek(&mut [0]);
        self.write.set_nonblocking(false)?;
        match peeked {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// The other side said something that is not due.
pub(super) fn unexpected(line: &Line) -> PerfError {
    PerfError::Conversation(format!("{line:?}").chars().take(80).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Exchange, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (Exchange::new(client, Duration::from_secs(5)).unwrap(), server)
    }

    #[test]
    fn lines_round_trip_and_failures_are_errors() {
        let (mut a, stream) = pair();
        let mut b = Exchange::new(stream, Duration::from_secs(5)).unwrap();
        assert!(!a.is_waiting().unwrap());
        b.say(&Line::Result(Seen { messages: 1, verified_bytes: 2, wrong_bytes: 3 })).unwrap();
        b.say(&Line::Failed("no room".into())).unwrap();
        assert!(matches!(a.hear().unwrap(), Line::Result(Seen { wrong_bytes: 3, .. })));
        assert!(a.is_waiting().unwrap());
        assert_eq!(a.hear().unwrap_err().to_string(), "the other side: no room");
        drop(b);
        assert!(a.hear().unwrap_err().to_string().contains("closed"));
    }

    #[test]
    fn nonsense_is_quoted() {
        let (mut a, mut stream) = pair();
        stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert!(a.hear().unwrap_err().to_string().contains("GET / HTTP/1.1"));
    }
}
