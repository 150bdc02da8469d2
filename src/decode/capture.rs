//! Reading pcap and pcapng: both byte orders, micro- and nanoseconds, as a stream of records.

use pcap_parser::{
    Block, LegacyPcapBlock, LegacyPcapReader, Linktype, PcapBlockOwned, PcapError, PcapNGReader,
    traits::{PcapNGPacketBlock, PcapReaderIterator},
};
use std::io::{self, Read};

/// Bytes that the reader's buffer holds at first.
const BUFFER_BYTES: usize = 1 << 16;
/// Bytes that it grows to, and so the largest record: above every capture tool's largest snapshot length (256 KiB).
const MAX_RECORD_BYTES: usize = 1 << 20;
/// First word of a pcapng section header, the same in both byte orders.
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// In the link type of classic pcap: what stands above says how long the frame check sequence is.
const LINK_TYPE_BITS: i32 = 0x03ff_ffff;
const NS_PER_S: u128 = 1_000_000_000;

/// Why the input is no capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It begins neither as pcap nor as pcapng, or ends within the file header.
    #[error("no capture: {0}")]
    NotACapture(&'static str),
    /// It cannot be read.
    #[error("cannot read: {0}")]
    Read(#[source] io::Error),
}

/// Why reading ended early.
pub(super) enum ReadError {
    Capture(CaptureError),
    /// The visitor's own error.
    Visitor(io::Error),
}

impl From<CaptureError> for ReadError {
    fn from(e: CaptureError) -> Self {
        Self::Capture(e)
    }
}

/// What is wrong with the file from some point on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Damage {
    #[error("the file ends within the record after packet {0}")]
    Truncated(u64),
    #[error("the record after packet {0} is damaged")]
    Record(u64),
    #[error("the record after packet {0} claims more than 1 MiB")]
    TooLarge(u64),
}

/// When a packet was captured, in nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Timestamp(pub(super) u64);

/// One packet of the file.
pub(super) struct Record<'a> {
    /// Counts from 1.
    pub(super) number: u64,
    pub(super) time: Option<Timestamp>,
    /// `None`: the file says nothing of the interface.
    pub(super) link: Option<Linktype>,
    pub(super) data: &'a [u8],
    /// Bytes that the packet had on the wire.
    pub(super) original_len: u32,
}

type Visitor<'v> = dyn FnMut(Record<'_>) -> io::Result<()> + 'v;

/// Shows every record of the capture to `visit`; `Some` if the file is damaged, after the last record before it.
pub(super) fn read(input: impl Read, visit: &mut Visitor<'_>) -> Result<Option<Damage>, ReadError> {
    let mut input = Fill(input);
    let mut magic = [0; 4];
    let got = input.read(&mut magic).map_err(CaptureError::Read)?;
    let whole = Fill(io::Cursor::new(magic).take(got as u64).chain(input));
    let reader: Result<Box<dyn PcapReaderIterator + '_>, _> = if magic == PCAPNG_MAGIC {
        PcapNGReader::new(BUFFER_BYTES, whole).map(|r| Box::new(r) as _)
    } else {
        LegacyPcapReader::new(BUFFER_BYTES, whole).map(|r| Box::new(r) as _)
    };
    let mut reader = reader.map_err(|e| match e {
        PcapError::ReadError => CaptureError::Read(io::Error::other("the first bytes")),
        PcapError::Incomplete(_) | PcapError::Eof => CaptureError::NotACapture("it ends within the file header"),
        _ => CaptureError::NotACapture("it begins neither as pcap nor as pcapng"),
    })?;
    read_blocks(&mut *reader, visit)
}

fn read_blocks(reader: &mut dyn PcapReaderIterator, visit: &mut Visitor<'_>) -> Result<Option<Damage>, ReadError> {
    let mut state = State::default();
    let mut may_grow = true;
    loop {
        match reader.next() {
            Ok((len, block)) => {
                state.block(block, visit).map_err(ReadError::Visitor)?;
                reader.consume(len);
            }
            Err(PcapError::Eof) => return Ok(None),
            Err(PcapError::Incomplete(_)) => {
                reader.refill().map_err(|_| CaptureError::Read(io::Error::other("the middle of the file")))?;
            }
            Err(PcapError::UnexpectedEof) => return Ok(Some(Damage::Truncated(state.packets))),
            Err(PcapError::BufferTooSmall) if may_grow => may_grow = !reader.grow(MAX_RECORD_BYTES),
            Err(PcapError::BufferTooSmall) => return Ok(Some(Damage::TooLarge(state.packets))),
            Err(_) => return Ok(Some(Damage::Record(state.packets))),
        }
    }
}

/// What must be known of a file to understand its next record.
#[derive(Default)]
struct State {
    packets: u64,
    /// Of the section; a classic pcap has one.
    interfaces: Vec<Interface>,
}

struct Interface {
    link: Linktype,
    clock: Clock,
}

/// How time stamps count.
#[derive(Clone, Copy, Debug)]
struct Clock {
    ticks_per_s: u128,
    offset_s: i64,
}

impl Clock {
    fn timestamp(self, ticks: u64) -> Option<Timestamp> {
        let ns = u128::from(ticks).checked_mul(NS_PER_S)? / self.ticks_per_s;
        let ns = i128::try_from(ns).ok()? + i128::from(self.offset_s) * NS_PER_S as i128;
        u64::try_from(ns).ok().map(Timestamp)
    }

    /// The resolution of pcapng's `if_tsresol`: a negative power of ten, or of two if bit 7 is set.
    fn pcapng(resolution: u8, offset_s: i64) -> Self {
        let exponent = u32::from(resolution & 0x7f);
        let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
        // A clock finer than any: the time is 0, but the packets count.
        Self { ticks_per_s: base.checked_pow(exponent).unwrap_or(u128::MAX), offset_s }
    }
}

impl State {
    fn block(&mut self, block: PcapBlockOwned<'_>, visit: &mut Visitor<'_>) -> io::Result<()> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => {
                let ticks_per_s = if header.is_nanosecond_precision() { NS_PER_S } else { 1_000_000 };
                self.interfaces = vec![Interface {
                    link: Linktype(header.network.0 & LINK_TYPE_BITS),
                    clock: Clock { ticks_per_s, offset_s: 0 },
                }];
                Ok(())
            }
            PcapBlockOwned::Legacy(LegacyPcapBlock { ts_sec, ts_usec, origlen, data, .. }) => {
                let ticks_per_s = self.interfaces.first().map_or(1_000_000, |i| i.clock.ticks_per_s as u64);
                let ticks = u64::from(ts_sec) * ticks_per_s + u64::from(ts_usec);
                self.packet(0, Some(ticks), data, origlen, visit)
            }
            PcapBlockOwned::NG(Block::SectionHeader(_)) => {
                self.interfaces.clear();
                Ok(())
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(i)) => {
                let clock = Clock::pcapng(i.if_tsresol, i.if_tsoffset);
                self.interfaces.push(Interface { link: i.linktype, clock });
                Ok(())
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(p)) => {
                let ticks = u64::from(p.ts_high) << 32 | u64::from(p.ts_low);
                self.packet(p.if_id as usize, Some(ticks), p.packet_data(), p.origlen, visit)
            }
            PcapBlockOwned::NG(Block::SimplePacket(p)) => self.packet(0, None, p.packet_data(), p.origlen, visit),
            // Statistics, names, secrets: nothing on the wire.
            PcapBlockOwned::NG(_) => Ok(()),
        }
    }

    fn packet(
        &mut self,
        interface: usize,
        ticks: Option<u64>,
        data: &[u8],
        original_len: u32,
        visit: &mut Visitor<'_>,
    ) -> io::Result<()> {
        self.packets += 1;
        let interface = self.interfaces.get(interface);
        let time = ticks.zip(interface).and_then(|(ticks, i)| i.clock.timestamp(ticks));
        visit(Record { number: self.packets, time, link: interface.map(|i| i.link), data, original_len })
    }
}

/// Reads until the buffer is full or the input at its end: the parsers take a short read from a pipe for a short file.
struct Fill<R>(R);

impl<R: Read> Read for Fill<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.0.read(rest) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }
}
