//! UC and UD over a link, shared receive queues, and the largest messages.

use super::end::{ALICE, BASE, BOB, End, Setup};
use super::pair::{Fate, Pair, Side};
use crate::memory::{Access, Backing, Mapping, Sge};
use crate::time::Duration;
use crate::transport::*;
use crate::wire::{Packet, PathMtu, Psn, Qpn};
use std::sync::Arc;

/// A link that loses every `n`th packet of A.
fn lossy(pair: &mut Pair, n: u64) {
    pair.script(move |side, nth| if side == Side::A && nth % n == n - 1 { Fate::Drop } else { Fate::Pass });
}

#[test]
fn uc_delivers_whole_messages_or_none() {
    for every in 2..12 {
        let mut pair = Pair::new(&Setup { kind: QpType::Uc, ..Setup::default() });
        lossy(&mut pair, every);
        for n in 0..40u64 {
            pair.a.fill(0, &vec![n as u8 + 1; 3000]);
            pair.b.recv(n, n * 4096, 4096);
            pair.a.send(n, SendOp::SendImm(n as u32), 0, 3000).unwrap();
            pair.run(Duration::from_millis(1));
        }
        let (sent, received) = pair.finish();
        assert_eq!(sent.len(), 40);
        assert!(sent.iter().all(|c| c.status.is_success()));
        // Three packets a message: a loss of every nth leaves some messages whole if n is more than 3, and spoils some in any case.
        assert!(received.len() < 40 && (every <= 3 || !received.is_empty()));
        for c in received {
            assert_eq!(c.byte_len, 3000);
            let imm = c.imm.unwrap() as u8 + 1;
            assert_eq!(pair.b.bytes(c.wr_id * 4096, 3000), vec![imm; 3000]);
        }
    }
}

#[test]
fn datagrams_arrive_with_their_header_and_share_bursts() {
    let mut pair = Pair::new(&Setup { kind: QpType::Ud, ..Setup::default() });
    let to = UdAddress { av: AddressVector::between(ALICE, BOB, 0xc001), dest_qp: Qpn::new(0x22), qkey: 0x1111_1111 };
    for n in 0..10u64 {
        pair.b.recv(n, n * 2048, 1064);
        pair.a.fill(n * 2048, &[n as u8 + 1; 1024]);
        let sges = [pair.a.sge(n * 2048, 1024)];
        let request = SendRequest {
            wr_id: n,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            data: Data::Sges(&sges),
            datagram: Some(to),
        };
        pair.a.post(&request).unwrap();
    }
    let bursts = pair.a.transmit();
    assert_eq!(bursts.iter().map(Vec::len).collect::<Vec<_>>(), [10]);
    for packet in bursts.concat() {
        pair.b.receive(ALICE, &packet).unwrap();
    }
    let received = pair.b.completed();
    assert_eq!((pair.a.completed().len(), received.len()), (10, 10));
    for c in received {
        assert_eq!((c.byte_len, c.flags, c.src_qp), (1064, WcFlags::GRH, Qpn::new(0x11)));
        let bytes = pair.b.bytes(c.wr_id * 2048, 1064);
        // An IPv4 header in the last 20 of the 40 bytes: version, protocol, addresses.
        assert_eq!((bytes[20], bytes[29], &bytes[32..40]), (0x45, 17, &[198, 18, 0, 2, 198, 18, 0, 3][..]));
        assert_eq!(bytes[40..], [c.wr_id as u8 + 1; 1024]);
    }
}

#[test]
fn a_shared_queue_serves_a_pair_under_loss() {
    let mut pair = Pair::new(&Setup { srq: true, ..Setup::default() });
    lossy(&mut pair, 7);
    for n in 0..30u64 {
        pair.a.fill(0, &vec![n as u8; 2500]);
        pair.b.recv(n, n * 4096, 4096);
        pair.a.send(n, SendOp::Send, 0, 2500).unwrap();
        pair.run(Duration::from_secs(1));
        assert_eq!(pair.b.bytes(n * 4096, 2500), vec![n as u8; 2500]);
    }
    assert_eq!((pair.a.completed().len(), pair.b.completed().len()), (30, 30));
}

#[test]
fn receives_posted_late_stall_but_lose_nothing() {
    let mut setup = Setup::default();
    setup.attrs.min_rnr_timer = 12;
    let mut pair = Pair::new(&setup);
    for n in 0..50 {
        pair.a.send(n, SendOp::Send, 0, 1500).unwrap();
    }
    for n in 0..50 {
        pair.run(Duration::from_millis(1));
        pair.b.recv(n, 0, 1500);
    }
    let (sent, received) = pair.finish();
    assert_eq!((sent.len(), received.len()), (50, 50));
    assert!(sent.iter().chain(&received).all(|c| c.status.is_success()));
}

#[test]
fn both_sides_at_once() {
    let mut pair = Pair::new(&Setup::default());
    lossy(&mut pair, 9);
    let (a_key, b_key) = (pair.a.keys.rkey, pair.b.keys.rkey);
    pair.a.fill(0, &[1; 100_000]);
    pair.b.fill(0, &[2; 100_000]);
    for n in 0..4 {
        pair.a.send(n, SendOp::Write { va: BASE + (1 << 20), rkey: b_key }, 0, 100_000).unwrap();
        pair.a.send(n + 10, SendOp::Read { va: BASE, rkey: b_key }, 2 << 20, 100_000).unwrap();
        pair.b.send(n, SendOp::Read { va: BASE, rkey: a_key }, 2 << 20, 100_000).unwrap();
        pair.b.send(n + 10, SendOp::Write { va: BASE + (1 << 20), rkey: a_key }, 0, 100_000).unwrap();
    }
    let (a, b) = pair.finish();
    assert_eq!((a.len(), b.len()), (8, 8));
    assert!(a.iter().chain(&b).all(|c| c.status.is_success()));
    assert_eq!(pair.b.bytes(1 << 20, 100_000), [1; 100_000]);
    assert_eq!(pair.a.bytes(1 << 20, 100_000), [2; 100_000]);
    assert_eq!(pair.a.bytes(2 << 20, 100_000), [2; 100_000]);
    assert_eq!(pair.b.bytes(2 << 20, 100_000), [1; 100_000]);
}

/// An end with 2^31 bytes of memory that nobody touches but as far as the test goes; its key.
fn huge(setup: &Setup) -> (End, u32) {
    let mut end = End::ready(0x11, setup, &setup.attrs);
    let mapping = Arc::new(Mapping::anonymous(1 << 31).unwrap());
    let backing = Backing::Shared(mapping, 0);
    let keys = end.memory.register(end.pd, backing, 0, 1 << 31, super::end::all_access()).unwrap();
    (end, keys.lkey)
}

fn post_huge(end: &mut End, op: SendOp, lkey: u32) {
    // One entry cannot hold 2^31 bytes and more.
    let sges = [Sge { addr: 0, length: 1 << 30, lkey }, Sge { addr: 1 << 30, length: 1 << 30, lkey }];
    let request = SendRequest { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Sges(&sges), datagram: None };
    end.post(&request).unwrap();
}

#[test]
fn a_message_of_two_gib_takes_half_the_psns_but_never_has_that_many_under_way() {
    let mut setup = Setup::default();
    setup.attrs.path_mtu = PathMtu::B256;
    setup.attrs.sq_psn = Psn::new(100);
    // As wide as limits can say: what holds is the protocol's own bound.
    setup.limits.max_unacked_packets = u32::MAX;
    setup.limits.max_unacked_bytes = u32::MAX;
    setup.limits.max_read_bytes = u32::MAX;
    let (mut end, lkey) = huge(&setup);
    post_huge(&mut end, SendOp::Read { va: 0, rkey: 1 }, lkey);
    let requests = end.transmit().concat();
    let reths: Vec<_> = requests.iter().map(|p| Packet::new_checked(p).unwrap().reth().unwrap()).collect();
    // 2^23 - 1 PSNs at once, and one more when they are answered.
    assert_eq!(reths.iter().map(|r| r.dma_len).collect::<Vec<_>>(), [(1 << 31) - 256]);
    assert_eq!(end.wait(), Some(Wait::Window));

    let too_long = [Sge { addr: 0, length: 1 << 31, lkey }, Sge { addr: 0, length: 1, lkey }];
    let op = SendOp::Write { va: 0, rkey: 1 };
    let request = SendRequest { wr_id: 1, op, flags: SendFlags::empty(), data: Data::Sges(&too_long), datagram: None };
    assert_eq!(end.post(&request), Err(PostError::MessageTooLong { given: (1 << 31) + 1 }));
}

#[test]
fn a_write_of_two_gib_is_accepted_as_a_whole_or_not_at_all() {
    let mut setup = Setup::default();
    setup.attrs.path_mtu = PathMtu::B4096;
    let (mut a, lkey) = huge(&setup);
    let (mut b, rkey) = huge(&setup);
    post_huge(&mut a, SendOp::Write { va: 0, rkey }, lkey);
    let first = a.transmit().concat().swap_remove(0);
    assert_eq!(Packet::new_checked(&first).unwrap().reth().unwrap().dma_len, 1 << 31);
    b.receive(BOB, &first).unwrap();
    assert_eq!(b.qp.state(), QpState::Rts);
    // One byte further does not fit.
    let (mut a, _) = huge(&setup);
    post_huge(&mut a, SendOp::Write { va: 1, rkey }, lkey);
    let refused = a.transmit().concat().swap_remove(0);
    let mut b = huge(&setup).0;
    b.receive(BOB, &refused).unwrap();
    assert_eq!((b.qp.state(), b.events.pop_front()), (QpState::Err, Some(Event::QpAccessErr(Qpn::new(0x11)))));
}

#[test]
fn a_cq_that_overruns_tells_it() {
    let setup = Setup::default();
    let mut pair = Pair::new(&setup);
    let small = pair.a.completions.create(1).unwrap();
    let init = QpInit { send_cq: small, ..*pair.a.qp.init() };
    pair.a.qp = Qp::new(Qpn::new(0x11), &init).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        pair.a.go(state, &setup.attrs).unwrap();
    }
    for n in 0..2 {
        pair.a.send(n, SendOp::Write { va: BASE, rkey: pair.b.keys.rkey }, 0, 8).unwrap();
    }
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.a.events, [Event::CqErr(small)]);
}

#[test]
fn a_window_that_is_bound_by_request_serves_this_queue_pair() {
    let mut pair = Pair::new(&Setup::default());
    let window = pair.b.memory.allocate_window(pair.b.pd).unwrap();
    let rkey = window & !0xff | 0x42;
    let lkey = pair.b.keys.lkey;
    let bind = SendOp::BindWindow { rkey, lkey, va: BASE, length: 64, access: Access::REMOTE_WRITE };
    pair.b.send(1, bind, 0, 0).unwrap();
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.b.completed()[0].opcode, WcOpcode::BindWindow);
    pair.a.fill(0, &[7; 64]);
    pair.a.send(2, SendOp::Write { va: BASE, rkey }, 0, 64).unwrap();
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.b.bytes(0, 64), [7; 64]);
    // Beyond the window, though inside of the region.
    pair.a.send(3, SendOp::Write { va: BASE + 1, rkey }, 0, 64).unwrap();
    pair.run(Duration::from_secs(1));
    let statuses: Vec<_> = pair.a.completed().iter().map(|c| c.status).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::RemoteAccess]);
}
