//! `holdfast decode`, the real binary, on the golden captures, on every container and link type, and on what is no capture.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use holdfast::decode::{DecodeError, Format, Summary, decode};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn capture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name).with_extension("pcap")
}

fn holdfast_decode(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.arg("decode").args(args);
    command
}

/// Runs the binary on `input` as its standard input.
fn run_on(input: &[u8], args: &[&str]) -> Output {
    let piped = Stdio::piped;
    let mut child = holdfast_decode(args).arg("-").stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    // A refused input may be left unread.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Runs the decoder in this process: what it wrote, what it noted.
fn decode_bytes(input: &[u8]) -> (Result<Summary, DecodeError>, String, String) {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let summary = decode(input, Format::Json, &mut out, &mut notes);
    (summary, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
}

fn assert_no_panic(output: &Output) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(output.status.code().is_some(), "killed: {:?}", output.status);
}

#[test]
fn captures_read_as_they_always_did() {
    for name in ["atomics", "send_invalidate", "rnr_exceeded", "access_error", "cm_reject", "rc_read_ipv6"] {
        let file = capture(name);
        let text = holdfast_decode(&[file.to_str().unwrap()]).output().unwrap();
        assert!(text.status.success());
        assert_eq!(String::from_utf8(text.stderr).unwrap(), "");
        insta::assert_snapshot!(format!("{name}_text"), String::from_utf8(text.stdout).unwrap());
    }
    for name in ["atomics", "send_invalidate", "cm_reject"] {
        let file = capture(name);
        let json = holdfast_decode(&["--json", file.to_str().unwrap()]).output().unwrap();
        assert!(json.status.success());
        insta::assert_snapshot!(format!("{name}_json"), String::from_utf8(json.stdout).unwrap());
    }
}

#[test]
fn json_is_one_object_a_line_and_the_summary_adds_up() {
    let mut total = 0;
    for entry in std::fs::read_dir(capture("x").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pcap") {
            continue;
        }
        let output = holdfast_decode(&["--json", path.to_str().unwrap()]).output().unwrap();
        assert!(output.status.success());
        let stdout = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<serde_json::Value> = stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let (summary, packets) = lines.split_last().unwrap();
        for packet in packets {
            assert_eq!(packet["icrc_ok"], true);
            for key in ["opcode", "psn", "dest_qp", "src", "dst", "payload_len"] {
                assert!(!packet[key].is_null(), "{key} in {packet}");
            }
        }
        let counts = summary["summary"]["opcodes"].as_object().unwrap();
        assert_eq!(counts.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), packets.len() as u64);
        assert_eq!(summary["summary"]["packets"], packets.len());
        total += packets.len();
    }
    assert_eq!(total, 1043);
}

/// Bytes of the file header, of a record header, of an Ethernet header.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
const ETHERNET: usize = 14;

#[test]
fn a_file_cut_anywhere_gives_what_is_whole_and_says_so() {
    let file = std::fs::read(capture("rnr_exceeded")).unwrap();
    let mut most = 0;
    for len in 0..=file.len() {
        let (summary, _, notes) = decode_bytes(&file[..len]);
        match summary {
            Err(DecodeError::Capture(_)) => assert!(len < FILE_HEADER, "{len}"),
            Err(e) => panic!("{len}: {e}"),
            Ok(summary) => {
                assert!(len >= FILE_HEADER && summary.packets >= most, "{len}");
                most = summary.packets;
                assert_eq!(summary.damage.is_some(), notes.contains("ends within the record"), "{len}");
                assert_eq!(summary.icrc_bad, 0);
            }
        }
    }
    assert_eq!(most, 8);
    // The binary's exit status, one length of each class: nothing, magic, file header, record header, packet, whole records.
    let record = FILE_HEADER + RECORD_HEADER;
    for (len, code) in [(0, 1), (3, 1), (4, 1), (23, 1), (24, 0), (25, 0), (39, 0), (40, 0), (record + 30, 0), (600, 0)]
    {
        let output = run_on(&file[..len], &[]);
        assert_no_panic(&output);
        assert_eq!(output.status.code(), Some(code), "{len}: {output:?}");
        let says = !output.stderr.is_empty();
        assert_eq!(says, len != FILE_HEADER, "{len}: {output:?}");
    }
}

#[test]
fn garbage_is_no_capture() {
    let mut garbage = vec![0; 100_000];
    let mut state = 1_u32;
    for byte in &mut garbage {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    for input in [&garbage[..], &[0; 1000], b"#!/bin/sh\nexit 0\n", b""] {
        let output = run_on(input, &[]);
        assert_no_panic(&output);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8(output.stderr).unwrap().starts_with("holdfast: -: no capture"));
        assert!(output.stdout.is_empty());
    }
    let missing = holdfast_decode(&["no/such/file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8(missing.stderr).unwrap().contains("no/such/file: No such file"));
}

#[test]
fn whoever_stops_reading_ends_it_quietly() {
    let file = capture("spurious_retry");
    let mut child = holdfast_decode(&["--json", file.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    // A small buffer, so that most of the output is never taken.
    BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
    assert!(line.starts_with("{\"number\":1,"));

    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = holdfast_decode(&[file.to_str().unwrap()]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write: No space left"));
}

/// Packets to put into files of other kinds.
struct Source {
    /// Nanoseconds since 1970, and the Ethernet frame.
    frames: Vec<(u64, Vec<u8>)>,
    json: String,
}

impl Source {
    fn new(name: &str) -> Self {
        let file = std::fs::read(capture(name)).unwrap();
        let (_, parsed) = pcap_parser::pcap::parse_pcap(&file).unwrap();
        let ns = |s: u32, us: u32| u64::from(s) * 1_000_000_000 + u64::from(us) * 1000;
        let frames = parsed.blocks.iter().map(|b| (ns(b.ts_sec, b.ts_usec), b.data.to_vec())).collect();
        Self { frames, json: decode_bytes(&file).1 }
    }

    /// The same packets in other frames.
    fn reframe(&self, frame: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        let frames = self.frames.iter().map(|(t, f)| (*t, frame(f))).collect();
        Self { frames, json: self.json.clone() }
    }

    /// The file must decode as the original did.
    fn assert_same(&self, file: &[u8], what: &str) {
        let (summary, json, notes) = decode_bytes(file);
        assert_eq!(notes, "", "{what}");
        assert!(summary.unwrap().packets > 0, "{what}");
        for (line, expected) in json.lines().zip(self.json.lines()) {
            assert_eq!(line, expected, "{what}");
        }
        assert_eq!(json.len(), self.json.len(), "{what}");
    }
}

/// Numbers in one byte order or the other.
#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u16(self, v: u16) -> Vec<u8> {
        (if self.big { v.to_be_bytes() } else { v.to_le_bytes() }).to_vec()
    }

    fn u32(self, v: u32) -> Vec<u8> {
        (if self.big { v.to_be_bytes() } else { v.to_le_bytes() }).to_vec()
    }

    fn u32s(self, words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|&w| self.u32(w)).collect()
    }

    fn pcap(self, link: u32, nanoseconds: bool, source: &Source) -> Vec<u8> {
        let (magic, ns_a_tick) = if nanoseconds { (0xa1b2_3c4d, 1) } else { (0xa1b2_c3d4, 1000) };
        let mut file = [self.u32(magic), self.u16(2), self.u16(4), self.u32s(&[0, 0, 262_144, link])].concat();
        for (ns, frame) in &source.frames {
            let (s, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
            let len = frame.len() as u32;
            file.extend(self.u32s(&[s as u32, (rest / ns_a_tick) as u32, len, len]));
            file.extend(frame);
        }
        file
    }

    fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let pad = vec![0; body.len().next_multiple_of(4) - body.len()];
        let len = (body.len() + pad.len() + 12) as u32;
        [&self.u32s(&[kind, len])[..], body, &pad, &self.u32(len)].concat()
    }

    /// A section with one interface, whose clock has `if_tsresol` and ticks `ticks_per_s` times a second.
    fn pcapng(self, link: u16, tsresol: u8, ticks_per_s: u128, source: &Source) -> Vec<u8> {
        let section = [self.u32(0x1a2b_3c4d), self.u16(1), self.u16(0), vec![0xff; 8]].concat();
        let option = [self.u16(9), self.u16(1), vec![tsresol, 0, 0, 0], self.u32(0)].concat();
        let interface = [self.u16(link), self.u16(0), self.u32(0), option].concat();
        let mut file = [self.block(0x0a0d_0d0a, &section), self.block(1, &interface)].concat();
        for (ns, frame) in &source.frames {
            let ticks = (u128::from(*ns) * ticks_per_s / 1_000_000_000) as u64;
            let len = frame.len() as u32;
            let header = self.u32s(&[0, (ticks >> 32) as u32, ticks as u32, len, len]);
            file.extend(self.block(6, &[header, frame.clone()].concat()));
        }
        file
    }
}

const ORDERS: [Order; 2] = [Order { big: false }, Order { big: true }];

#[test]
fn every_container_reads_the_same() {
    let source = Source::new("cm");
    for order in ORDERS {
        for nanoseconds in [false, true] {
            source.assert_same(&order.pcap(1, nanoseconds, &source), &format!("big {} ns {nanoseconds}", order.big));
            // The frame check sequence length in the link type's upper bits.
            source.assert_same(&order.pcap(0x4400_0001, nanoseconds, &source), "FCS bits");
        }
        for (tsresol, ticks_per_s) in [(6, 1_000_000), (9, 1_000_000_000)] {
            let file = order.pcapng(1, tsresol, ticks_per_s, &source);
            source.assert_same(&file, &format!("pcapng big {} tsresol {tsresol}", order.big));
        }
        // Two sections, the second in the other byte order: numbers and interfaces begin anew, packets do not.
        let other = Order { big: !order.big };
        let file = [order.pcapng(1, 6, 1_000_000, &source), other.pcapng(1, 9, 1_000_000_000, &source)].concat();
        let (summary, ..) = decode_bytes(&file);
        assert_eq!(summary.unwrap().packets, 2 * source.frames.len() as u64);
    }
}

#[test]
fn clocks_of_pcapng_that_are_no_power_of_ten() {
    let source = Source::new("cm_reject");
    let (summary, json, _) = decode_bytes(&ORDERS[0].pcapng(1, 0x80 | 30, 1 << 30, &source));
    assert_eq!(summary.unwrap().packets, 2);
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    // A tick of 2^-30 s is just below a nanosecond.
    assert!(source.frames[0].0 - first["time_ns"].as_u64().unwrap() <= 1);
    for tsresol in [0x7f, 0xff, 20, 0xc0] {
        let (summary, ..) = decode_bytes(&ORDERS[0].pcapng(1, tsresol, 1, &source));
        assert_eq!(summary.unwrap().packets, 2, "{tsresol}");
    }
}

#[test]
fn every_link_type_reads_the_same() {
    for name in ["cm", "cm_ipv6"] {
        let source = Source::new(name);
        let prefixed = |prefix: Vec<u8>| source.reframe(move |f| [&prefix[..], &f[ETHERNET..]].concat());
        let ethertype = source.frames[0].1[12..14].to_vec();
        let tagged = source.reframe(|f| [&f[..12], &[0x81, 0, 0, 7], &f[12..]].concat());
        let sll = prefixed([vec![0; 14], ethertype.clone()].concat());
        let sll2 = prefixed([ethertype, vec![0; 18]].concat());
        let raw = prefixed(Vec::new());
        let null = prefixed(vec![0; 4]);
        let own = if name == "cm" { 228 } else { 229 };
        for (link, frames) in
            [(1, &tagged), (113, &sll), (276, &sll2), (101, &raw), (own, &raw), (0, &null), (108, &null)]
        {
            source.assert_same(&ORDERS[0].pcap(link, false, frames), &format!("{name} link type {link}"));
        }
    }
}

#[test]
fn foreign_truncated_and_damaged_packets_are_named() {
    let cm = Source::new("cm");
    let udp = 34;
    let change = |number: usize, at: usize, value: u8| {
        let mut frame = cm.frames[number].1.clone();
        frame[at] = value;
        (0, frame)
    };
    let frames = vec![
        change(0, 12, 0x12),                                // EtherType
        change(1, 23, 6),                                   // TCP
        change(2, udp + 3, 0),                              // UDP port
        change(3, 20, 0x20),                                // more fragments
        (0, cm.frames[4].1[..50].to_vec()),                 // cut
        (0, cm.frames[5].1[..10].to_vec()),                 // cut
        change(6, udp + 8 + 1, 0x0f),                       // transport version
        change(7, udp + 8 + 20, cm.frames[7].1[62] ^ 0x55), // payload
        cm.frames[8].clone(),
    ];
    let file = ORDERS[0].pcap(1, false, &Source { frames, json: String::new() });
    let output = run_on(&file, &[]);
    assert!(output.status.success());
    insta::assert_snapshot!("damaged_packets_text", String::from_utf8(output.stdout).unwrap());
    insta::assert_snapshot!("damaged_packets_notes", String::from_utf8(output.stderr).unwrap());

    let unknown_link = ORDERS[0].pcap(147, false, &cm);
    let (summary, _, notes) = decode_bytes(&unknown_link);
    assert_eq!(summary.unwrap().skipped["unsupported link type"], cm.frames.len() as u64);
    assert!(notes.starts_with("packet 1: link type 147 is not supported; skipped\n"), "{notes}");

    let large = |len| Source { frames: vec![(0, vec![0; len]), cm.frames[0].clone()], json: String::new() };
    let (summary, ..) = decode_bytes(&ORDERS[0].pcap(1, false, &large(300_000)));
    assert_eq!(summary.unwrap().packets, 1);
    let (summary, _, notes) = decode_bytes(&ORDERS[0].pcap(1, false, &large(2_000_000)));
    assert_eq!(summary.unwrap().packets, 0);
    assert_eq!(notes, "the record after packet 0 claims more than 1 MiB; the rest is skipped\n");

    let mut snapped =
        ORDERS[0].pcap(1, false, &Source { frames: vec![(0, cm.frames[0].1[..64].to_vec())], json: String::new() });
    snapped[FILE_HEADER + 12..FILE_HEADER + 16].copy_from_slice(&1000_u32.to_le_bytes());
    let (_, _, notes) = decode_bytes(&snapped);
    assert_eq!(notes, "packet 1: truncated: 64 bytes captured of 1000; skipped\n");
}
