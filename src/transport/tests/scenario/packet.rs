//! Packets as lines, and lines as packets.

use super::super::end::BASE;
use super::Words;
use crate::wire::{
    Aeth, AtomicEth, Bth, Deth, HeaderBuf, Nak, Opcode, Operation, Packet, Place, Psn, Qpn, Reth, RnrTimer, Service,
    Syndrome, pad_count,
};

const PLACES: [(Place, &str); 4] =
    [(Place::First, "FIRST"), (Place::Middle, "MIDDLE"), (Place::Last, "LAST"), (Place::Only, "ONLY")];

/// Every operation with its name here.
fn operations() -> Vec<(String, Operation)> {
    let mut all = Vec::new();
    for (place, name) in PLACES {
        for (immediate, invalidate, tail) in [(false, false, ""), (true, false, "_IMM"), (false, true, "_INV")] {
            all.push((format!("SEND_{name}{tail}"), Operation::Send { place, immediate, invalidate }));
        }
        for (immediate, tail) in [(false, ""), (true, "_IMM")] {
            all.push((format!("WRITE_{name}{tail}"), Operation::Write { place, immediate }));
        }
        all.push((format!("READ_RESPONSE_{name}"), Operation::ReadResponse(place)));
    }
    all.push(("READ_REQUEST".into(), Operation::ReadRequest));
    all.push(("ATOMIC_ACK".into(), Operation::AtomicAcknowledge));
    all.push(("CMP_SWAP".into(), Operation::CompareSwap));
    all.push(("FETCH_ADD".into(), Operation::FetchAdd));
    all
}

const NAKS: [(Nak, &str); 4] = [
    (Nak::SequenceError, "NAK_SEQUENCE"),
    (Nak::InvalidRequest, "NAK_INVALID"),
    (Nak::RemoteAccess, "NAK_ACCESS"),
    (Nak::RemoteOperational, "NAK_OPERATIONAL"),
];

/// A packet as a line: its name, its flags, its headers.
pub(super) fn describe(bytes: &[u8]) -> String {
    let packet = Packet::new_checked(bytes).unwrap();
    let bth = packet.bth();
    let name = match (packet.operation(), packet.aeth()) {
        (Some(Operation::Acknowledge), Some(Aeth { syndrome, .. })) => acknowledge_name(syndrome),
        (operation, _) => operations()
            .into_iter()
            .find(|(_, o)| Some(*o) == operation)
            .map(|(name, _)| name)
            .unwrap_or_else(|| format!("OPCODE_{:#x}", bth.opcode.byte())),
    };
    let prefix = match bth.opcode.service() {
        Service::Uc => "UC_",
        Service::Ud => "UD_",
        _ => "",
    };
    let mut line = format!("{prefix}{name}");
    for (flag, set) in [("ack", bth.ack_req), ("se", bth.solicited)] {
        if set {
            line += &format!(" {flag}");
        }
    }
    line += &format!(" psn={} len={} pkey={} dest_qp={}", bth.psn, packet.payload().len(), bth.pkey, bth.dest_qp);
    if let Some(Reth { va, dma_len, .. }) = packet.reth() {
        line += &format!(" va={} dma={dma_len}", va.wrapping_sub(BASE));
    }
    if let Some(AtomicEth { va, swap_or_add, compare, .. }) = packet.atomic() {
        line += &format!(" va={} swap={swap_or_add} add={swap_or_add} compare={compare}", va.wrapping_sub(BASE));
    }
    if let Some(Aeth { syndrome, msn }) = packet.aeth() {
        line += &format!(" msn={msn}");
        match syndrome {
            Syndrome::Ack(code) => line += &format!(" credits={code}"),
            Syndrome::RnrNak(timer) => line += &format!(" timer={}", timer.code()),
            _ => {}
        }
    }
    let deth = packet.deth();
    let values = [
        ("original", packet.atomic_ack()),
        ("imm", packet.immediate().map(u64::from)),
        ("inv", packet.invalidate_rkey().map(u64::from)),
        ("qkey", deth.map(|d| d.qkey.into())),
        ("src_qp", deth.map(|d| d.src_qp.get().into())),
    ];
    for (key, value) in values {
        if let Some(value) = value {
            line += &format!(" {key}={value}");
        }
    }
    line
}

fn acknowledge_name(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack(_) => "ACK".into(),
        Syndrome::RnrNak(_) => "RNR_NAK".into(),
        Syndrome::Nak(nak) => {
            NAKS.iter().find(|(n, _)| *n == nak).map_or_else(|| "NAK".into(), |(_, name)| (*name).into())
        }
        Syndrome::Reserved(_) => "RESERVED".into(),
    }
}

/// The packet that a line says, for our `qpn`; `rkey` is what its key stands for.
pub(super) fn build(words: &Words<'_>, qpn: Qpn, rkey: u32) -> Result<Vec<u8>, String> {
    let (service, name) = match words.name() {
        n if n.starts_with("UC_") => (Service::Uc, &n[3..]),
        n if n.starts_with("UD_") => (Service::Ud, &n[3..]),
        n => (Service::Rc, n),
    };
    let syndrome = syndrome(name, words)?;
    let opcode = match operations().into_iter().find(|(n, _)| n == name) {
        _ if syndrome.is_some() => Opcode::RC_ACKNOWLEDGE,
        Some((_, operation)) => Opcode::of(service, operation).ok_or("no such opcode")?,
        None => {
            let byte = name.strip_prefix("OPCODE_0x").and_then(|hex| u8::from_str_radix(hex, 16).ok());
            Opcode::from_byte(byte.ok_or("no such packet")?)
        }
    };
    let len = words.number_or("len", 0)? as usize;
    let bth = Bth {
        ack_req: words.flag("ack"),
        solicited: words.flag("se"),
        pad_count: pad_count(len),
        pkey: words.number_or("pkey", 0xffff)? as u16,
        ..Bth::new(opcode, qpn, Psn::new(words.number_or("psn", 0)? as u32))
    };
    let mut bytes = headers(words, &bth, syndrome, rkey, len as u32)?.as_bytes().to_vec();
    bytes.extend((0..len).map(|i| i as u8));
    bytes.resize(bytes.len() + usize::from(pad_count(len)), 0);
    // A queue pair sees only packets whose ICRC was checked.
    bytes.extend([0; 4]);
    Ok(bytes)
}

fn syndrome(name: &str, words: &Words<'_>) -> Result<Option<Syndrome>, String> {
    Ok(match name {
        "ACK" => Some(Syndrome::Ack(words.number_or("credits", 31)? as u8)),
        "RNR_NAK" => Some(Syndrome::RnrNak(RnrTimer::new(words.number_or("timer", 1)? as u8))),
        "RESERVED" => Some(Syndrome::Reserved(0x40)),
        _ => NAKS.iter().find(|(_, n)| *n == name).map(|(nak, _)| Syndrome::Nak(*nak)),
    })
}

fn headers(words: &Words<'_>, bth: &Bth, syndrome: Option<Syndrome>, rkey: u32, len: u32) -> Result<HeaderBuf, String> {
    let mut headers = HeaderBuf::new(bth);
    let va = BASE.wrapping_add(words.number_or("va", 0)?);
    if bth.opcode.service() == Service::Ud {
        let qkey = words.number_or("qkey", 0x1111_1111)? as u32;
        headers.push_deth(&Deth { qkey, src_qp: Qpn::new(words.number_or("src_qp", 0x22)? as u32) });
    }
    match bth.opcode.operation() {
        Some(Operation::Write { place: Place::First | Place::Only, .. } | Operation::ReadRequest) => {
            let dma_len = words.number_or("dma", len.into())? as u32;
            headers.push_reth(&Reth { va, rkey, dma_len });
        }
        Some(Operation::CompareSwap) => {
            let (swap_or_add, compare) = (words.number_or("swap", 0)?, words.number_or("compare", 0)?);
            headers.push_atomic(&AtomicEth { va, rkey, swap_or_add, compare });
        }
        Some(Operation::FetchAdd) => {
            let swap_or_add = words.number_or("add", 0)?;
            headers.push_atomic(&AtomicEth { va, rkey, swap_or_add, compare: 0 });
        }
        Some(Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse(_))
            if bth.opcode.operation() != Some(Operation::ReadResponse(Place::Middle)) =>
        {
            let syndrome = syndrome.unwrap_or(Syndrome::Ack(words.number_or("credits", 31)? as u8));
            headers.push_aeth(&Aeth { syndrome, msn: words.number_or("msn", 0)? as u32 });
        }
        _ => {}
    }
    match bth.opcode.operation() {
        Some(Operation::AtomicAcknowledge) => {
            headers.push_atomic_ack(words.number_or("original", 0)?);
        }
        Some(Operation::Send { immediate: true, .. } | Operation::Write { immediate: true, .. }) => {
            headers.push_immediate(words.number_or("imm", 0)? as u32);
        }
        Some(Operation::Send { invalidate: true, .. }) => {
            headers.push_invalidate(rkey);
        }
        _ => {}
    }
    Ok(headers)
}
