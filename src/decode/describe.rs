//! One packet as a line of text or as a JSON object.

use super::Decoded;
use super::capture::Timestamp;
use crate::wire::{Bth, Operation};
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;

const NS_PER_S: u64 = 1_000_000_000;

/// The time of the day in UTC.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, ns) = (self.0 / NS_PER_S % 86_400, self.0 % NS_PER_S);
        write!(f, "{:02}:{:02}:{:02}.{ns:09}", s / 3600, s / 60 % 60, s % 60)
    }
}

pub(super) fn write_text(d: &Decoded<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (packet, bth, ip) = (&d.packet, d.packet.bth(), &d.datagram.ip);
    write!(out, "{:>5} ", d.number)?;
    match d.time {
        Some(time) => write!(out, "{time}")?,
        None => write!(out, "{:<18}", "no time")?,
    }
    write!(out, " {} > {} {} {}", ip.source(), ip.destination(), ip.ecn().name(), bth.opcode)?;
    if packet.operation().is_none() {
        write!(out, " (0x{:02x})", bth.opcode.byte())?;
    }
    write!(out, " qp 0x{:06x} psn {}", bth.dest_qp.get(), bth.psn)?;
    let flags = [(bth.ack_req, "AckReq"), (bth.solicited, "solicited"), (bth.fecn, "FECN"), (bth.becn, "BECN")];
    for (_, name) in flags.iter().filter(|(set, _)| *set) {
        write!(out, " {name}")?;
    }
    write_headers(d, out)?;
    writeln!(out, " len {} icrc {}", packet.payload().len(), if d.icrc_ok { "ok" } else { "BAD" })
}

/// The extension headers, each in brackets.
fn write_headers(d: &Decoded<'_>, out: &mut dyn Write) -> io::Result<()> {
    let packet = &d.packet;
    if let Some(h) = packet.deth() {
        write!(out, " [DETH qkey 0x{:08x} src_qp 0x{:06x}]", h.qkey, h.src_qp.get())?;
    }
    if let Some(h) = packet.reth() {
        write!(out, " [RETH va 0x{:016x} rkey 0x{:08x} dma_len {}]", h.va, h.rkey, h.dma_len)?;
    }
    if let Some(h) = packet.atomic() {
        write!(out, " [AtomicETH va 0x{:016x} rkey 0x{:08x}", h.va, h.rkey)?;
        match packet.operation() {
            Some(Operation::CompareSwap) => {
                write!(out, " swap 0x{:016x} compare 0x{:016x}]", h.swap_or_add, h.compare)?;
            }
            _ => write!(out, " add 0x{:016x}]", h.swap_or_add)?,
        }
    }
    if let Some(h) = packet.aeth() {
        write!(out, " [AETH {} msn {}]", h.syndrome, h.msn)?;
    }
    if let Some(original) = packet.atomic_ack() {
        write!(out, " [AtomicAckETH original 0x{original:016x}]")?;
    }
    if let Some(immediate) = packet.immediate() {
        write!(out, " [ImmDt 0x{immediate:08x}]")?;
    }
    if let Some(rkey) = packet.invalidate_rkey() {
        write!(out, " [IETH rkey 0x{rkey:08x}]")?;
    }
    Ok(())
}

/// One packet in JSON. Numbers of 64 bits are hexadecimal strings: JSON's own lose their low bits in many readers.
#[derive(Serialize)]
struct Json {
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_ns: Option<u64>,
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    ecn: &'static str,
    dscp: u8,
    opcode: &'static str,
    dest_qp: u32,
    psn: u32,
    ack_req: bool,
    payload_len: usize,
    icrc_ok: bool,
    bth: JsonBth,
    #[serde(skip_serializing_if = "Option::is_none")]
    deth: Option<JsonDeth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reth: Option<JsonReth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic_eth: Option<JsonAtomic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aeth: Option<JsonAeth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic_ack_eth: Option<JsonAtomicAck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    immdt: Option<JsonImmediate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ieth: Option<JsonInvalidate>,
}

#[derive(Serialize)]
struct JsonBth {
    opcode: u8,
    solicited: bool,
    mig_req: bool,
    pad_count: u8,
    pkey: u16,
    fecn: bool,
    becn: bool,
}

#[derive(Serialize)]
struct JsonDeth {
    qkey: u32,
    src_qp: u32,
}

#[derive(Serialize)]
struct JsonReth {
    va: Hex,
    rkey: u32,
    dma_len: u32,
}

#[derive(Serialize)]
struct JsonAtomic {
    va: Hex,
    rkey: u32,
    swap_or_add: Hex,
    compare: Hex,
}

#[derive(Serialize)]
struct JsonAeth {
    syndrome: u8,
    meaning: String,
    msn: u32,
}

#[derive(Serialize)]
struct JsonAtomicAck {
    original: Hex,
}

#[derive(Serialize)]
struct JsonImmediate {
    immediate: u32,
}

#[derive(Serialize)]
struct JsonInvalidate {
    rkey: u32,
}

/// 64 bits as `"0x…"`.
struct Hex(u64);

impl Serialize for Hex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("0x{:016x}", self.0))
    }
}

impl From<Bth> for JsonBth {
    fn from(b: Bth) -> Self {
        Self {
            opcode: b.opcode.byte(),
            solicited: b.solicited,
            mig_req: b.mig_req,
            pad_count: b.pad_count,
            pkey: b.pkey,
            fecn: b.fecn,
            becn: b.becn,
        }
    }
}

pub(super) fn write_json(d: &Decoded<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (packet, bth, ip) = (&d.packet, d.packet.bth(), &d.datagram.ip);
    let json = Json {
        number: d.number,
        time_ns: d.time.map(|t| t.0),
        src: ip.source(),
        dst: ip.destination(),
        src_port: d.datagram.source_port,
        ecn: ip.ecn().name(),
        dscp: ip.dscp(),
        opcode: bth.opcode.name(),
        dest_qp: bth.dest_qp.get(),
        psn: bth.psn.get(),
        ack_req: bth.ack_req,
        payload_len: packet.payload().len(),
        icrc_ok: d.icrc_ok,
        bth: bth.into(),
        deth: packet.deth().map(|h| JsonDeth { qkey: h.qkey, src_qp: h.src_qp.get() }),
        reth: packet.reth().map(|h| JsonReth { va: Hex(h.va), rkey: h.rkey, dma_len: h.dma_len }),
        atomic_eth: packet.atomic().map(|h| JsonAtomic {
            va: Hex(h.va),
            rkey: h.rkey,
            swap_or_add: Hex(h.swap_or_add),
            compare: Hex(h.compare),
        }),
        aeth: packet.aeth().map(|h| JsonAeth {
            syndrome: h.syndrome.byte(),
            meaning: h.syndrome.to_string(),
            msn: h.msn,
        }),
        atomic_ack_eth: packet.atomic_ack().map(|original| JsonAtomicAck { original: Hex(original) }),
        immdt: packet.immediate().map(|immediate| JsonImmediate { immediate }),
        ieth: packet.invalidate_rkey().map(|rkey| JsonInvalidate { rkey }),
    };
    serde_json::to_writer(&mut *out, &json)?;
    writeln!(out)
}
