//! Whatever a peer sends: no panic, and every request completes exactly once.

use super::end::{BASE, BOB, End, Setup};
use crate::time::{Duration, Instant};
use crate::transport::*;
use crate::wire::{Aeth, AtomicEth, Bth, Deth, HeaderBuf, Opcode, Psn, Qpn, Reth, Syndrome, pad_count};
use std::collections::{BTreeMap, HashMap};

/// Completions by status.
type Seen = HashMap<WcStatus, u32>;

/// xorshift: a failing seed replays.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A packet that a decent peer could send now: a whole request, or an acknowledgement of something under way.
fn decent(r: &mut Random, end: &End, kind: QpType) -> Vec<u8> {
    let progress = end.qp.progress();
    let service = if kind == QpType::Uc { 0x20 } else { 0 };
    let len = r.below(257) as u32;
    if kind == QpType::Rc && r.one_in(2) {
        let under_way = progress.next_psn.minus(progress.oldest_unacknowledged_psn.get()).get();
        let psn = progress.oldest_unacknowledged_psn.plus(r.below(u64::from(under_way) + 1) as u32);
        let syndrome = match r.below(40) {
            0 => Syndrome::parse(r.pick(&[0x61, 0x62, 0x63])),
            1 | 2 => Syndrome::parse(0x60),
            3 | 4 => Syndrome::parse(0x21),
            _ => Syndrome::Ack(r.pick(&[0, 4, 31])),
        };
        let mut headers = HeaderBuf::new(&Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11), psn));
        headers.push_aeth(&Aeth { syndrome, msn: r.below(100) as u32 });
        return [headers.as_bytes(), &[0; 4]].concat();
    }
    let (op, reads) = r.pick(&[(0x04, false), (0x0a, false), (0x0c, true), (0x14, true)]);
    let (op, len) = if reads && kind == QpType::Uc { (0x0a, len) } else { (op, len) };
    let payload = if op > 0x0a { 0 } else { len as usize };
    let pad = pad_count(payload);
    let opcode = Opcode::from_byte(service + op);
    let bth = Bth { ack_req: true, pad_count: pad, ..Bth::new(opcode, Qpn::new(0x11), progress.expected_psn) };
    let mut headers = HeaderBuf::new(&bth);
    let (va, rkey) = (BASE + 8 * r.below(1000), end.keys.rkey);
    match op {
        0x0a | 0x0c => {
            headers.push_reth(&Reth { va, rkey, dma_len: len });
        }
        0x14 => {
            headers.push_atomic(&AtomicEth { va, rkey, swap_or_add: 1, compare: 0 });
        }
        _ => {}
    }
    let mut bytes = headers.as_bytes().to_vec();
    bytes.resize(bytes.len() + payload + usize::from(pad) + 4, 0x5a);
    bytes
}

/// A packet of any opcode, more often than not nearly right.
fn packet(r: &mut Random, end: &End, kind: QpType) -> Vec<u8> {
    let byte = match kind {
        _ if r.one_in(20) => r.next() as u8,
        QpType::Rc => r.below(0x18) as u8,
        QpType::Uc => 0x20 + r.below(0x0c) as u8,
        QpType::Ud | QpType::Gsi => 0x64 + r.below(2) as u8,
    };
    let opcode = Opcode::from_byte(byte);
    let progress = end.qp.progress();
    let base = if opcode.is_request() { progress.expected_psn } else { progress.oldest_unacknowledged_psn };
    let psn = match r.below(10) {
        0 => Psn::new(r.next() as u32),
        1 | 2 => base.plus(r.below(8) as u32),
        3 => base.minus(r.below(20) as u32),
        _ => base,
    };
    let lengths = [0, 1, 8, 255, 256, 256, 256, 1000, r.below(300) as usize];
    let len = if opcode.is_request() || r.one_in(3) { r.pick(&lengths) } else { 256 };
    let bth = Bth {
        ack_req: r.one_in(2),
        solicited: r.one_in(4),
        pad_count: pad_count(len),
        ..Bth::new(opcode, Qpn::new(0x11), psn)
    };
    let rkey = if r.one_in(10) { r.next() as u32 } else { end.keys.rkey };
    let va = if r.one_in(10) { r.next() } else { BASE + 8 * r.below(1000) };
    let mut headers = HeaderBuf::new(&bth);
    if matches!(kind, QpType::Ud | QpType::Gsi) {
        headers.push_deth(&Deth { qkey: r.pick(&[0x1111_1111, 0x8001_0000, 3]), src_qp: Qpn::new(r.next() as u32) });
    }
    let want = opcode.extension_len();
    let dma_len = r.pick(&[0, len as u32, 512, 700, u32::MAX, 1 << 31]);
    let code = r.pick(&[0, 1, 5, 31, 0x20, 0x3f, 0x60, 0x61, 0x62, 0x63, 0x64, 0x7f, 0x80, 0xff]);
    match want {
        16 | 20 => {
            headers.push_reth(&Reth { va, rkey, dma_len });
        }
        28 => {
            headers.push_atomic(&AtomicEth { va, rkey, swap_or_add: r.next(), compare: r.next() });
        }
        4 | 12 if !opcode.is_request() => {
            let syndrome = if r.one_in(2) { Syndrome::Ack(31) } else { Syndrome::parse(code) };
            headers.push_aeth(&Aeth { syndrome, msn: r.next() as u32 & 0xff_ffff });
        }
        _ => {}
    }
    let mut bytes = headers.as_bytes().to_vec();
    bytes.resize(12 + want, 0);
    bytes.resize(12 + want + len + usize::from(pad_count(len)) + 4, 0x5a);
    bytes
}

fn post(r: &mut Random, end: &mut End, kind: QpType, wr_id: u64) -> bool {
    let (va, rkey) = (BASE, 1);
    let kinds = if r.one_in(10) { 8 } else { 6 };
    let op = match r.below(kinds) {
        0 => SendOp::Send,
        1 => SendOp::SendImm(1),
        2 => SendOp::Write { va, rkey },
        3 => SendOp::WriteImm { va, rkey, imm: 2 },
        4 => SendOp::Read { va, rkey },
        5 => SendOp::FetchAdd { va, rkey, add: 1 },
        6 => SendOp::LocalInvalidate(r.next() as u32),
        _ => SendOp::SendInvalidate(1),
    };
    let len = if op.is_atomic() { 8 } else { r.below(2000) as u32 };
    let mut sge = end.sge(r.below(4096), len);
    if r.one_in(100) {
        sge.lkey ^= 1;
    }
    let flags = if r.one_in(4) { SendFlags::FENCE } else { SendFlags::empty() };
    let datagram = matches!(kind, QpType::Ud | QpType::Gsi).then(|| UdAddress {
        av: end.qp.attributes().av,
        dest_qp: Qpn::new(5),
        qkey: 1,
    });
    let sges = [sge];
    let data = Data::Sges(if op.is_local() { &[] } else { &sges });
    end.post(&SendRequest { wr_id, op, flags, data, datagram }).is_ok()
}

/// One life of a queue pair among strangers, from RTS to ERR.
fn life(seed: u64, kind: QpType, seen: &mut Seen) {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut setup = Setup { kind, sq_sig_all: true, srq: kind == QpType::Rc && r.one_in(3), ..Setup::default() };
    setup.attrs.path_mtu = crate::wire::PathMtu::B256;
    setup.attrs.sq_psn = Psn::new(r.pick(&[0, 0xff_fff0]));
    setup.attrs.rq_psn = Psn::new(r.pick(&[5, 0xff_fff5]));
    setup.attrs.max_rd_atomic = 1 + r.below(4) as u8;
    setup.attrs.max_dest_rd_atomic = r.below(4) as u8;
    setup.limits.max_unacked_packets = 1 + r.below(40) as u32;
    setup.limits.max_read_bytes = 256 + r.below(1000) as u32;
    let attrs = QpAttributes { av: AddressVector::between(super::end::ALICE, BOB, 0xc001), ..setup.attrs };
    let mut end = End::ready(0x11, &setup, &attrs);
    // Some peers are worse than others.
    let decency = r.pick(&[0, 3, 30, 300]);
    let mut posted: BTreeMap<u64, u32> = BTreeMap::new();
    for n in 0..400u64 {
        match r.below(8) {
            0 | 1 if post(&mut r, &mut end, kind, n) => {
                posted.insert(n, 0);
            }
            2 if end.qp.waiting_receives() < 50 && end.qp.init().srq.is_none() => {
                let len = r.below(700) as u32;
                end.recv(n, 8192, len);
                posted.insert(n, 0);
            }
            3 => drop(end.transmit()),
            4 => {
                end.now = Instant::from_ns(end.now.as_ns() + r.pick(&[1_000, 100_000, 70_000_000]));
                if end.qp.poll_timeout().is_some_and(|at| at <= end.now) {
                    end.with(|qp, cx| qp.handle_timeout(cx));
                    let after = end.qp.poll_timeout();
                    drop(end.transmit());
                    assert!(after.is_none_or(|at| at > end.now - Duration::from_nanos(1)));
                }
            }
            5 if r.one_in(40) => {
                let to = r.pick(&[QpState::Sqd, QpState::Rts]);
                let _ = end.go(to, &attrs);
            }
            _ => {
                let nasty = decency == 0 || kind == QpType::Ud || r.one_in(decency);
                let bytes = if nasty { packet(&mut r, &end, kind) } else { decent(&mut r, &end, kind) };
                let _ = end.receive(BOB, &bytes);
            }
        }
        let _ = end.wait();
        assert!(end.qp.outstanding_sends() <= setup.caps.max_send_wr);
    }
    end.go(QpState::Err, &attrs).unwrap();
    for c in end.completed() {
        *posted.get_mut(&c.wr_id).expect("completes nothing that was not posted") += 1;
        *seen.entry(c.status).or_default() += 1;
    }
    assert!(posted.values().all(|n| *n == 1), "seed {seed}: {posted:?}");
    assert_eq!(end.qp.poll_timeout(), None);
    assert!(end.transmit().is_empty());
}

#[test]
fn every_request_completes_once_whatever_arrives() {
    let mut seen = Seen::new();
    for seed in 0..1500 {
        for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
            life(seed, kind, &mut seen);
        }
    }
    use WcStatus as S;
    // The strangers got far enough for all of these.
    for status in [
        S::Success,
        S::LocalLength,
        S::LocalQpOperation,
        S::LocalProtection,
        S::WrFlush,
        S::BadResponse,
        S::RemoteInvalidRequest,
        S::RemoteAccess,
        S::RemoteOperation,
        S::RetryExceeded,
    ] {
        assert!(seen.get(&status).is_some_and(|n| *n > 10), "{status:?}: {seen:?}");
    }
}
