//! Every operation of a connection.

use super::*;

#[test]
fn send_arrives_in_posting_order_with_its_immediate() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    for n in 0..3 {
        b.recv(100 + n, n * 100..n * 100 + 100);
    }
    assert!(a.buffer.write(0, b"first second"));
    a.send(1, SendOp::Send, 0..5);
    a.send(2, SendOp::SendImm(0xdead_beef), 6..12);
    a.send(3, SendOp::Send, 0..0);
    for (n, (len, imm)) in [(5, None), (6, Some(0xdead_beef)), (0, None)].into_iter().enumerate() {
        let received = b.next();
        assert_eq!((received.wr_id, received.status), (100 + n as u64, WcStatus::Success));
        assert_eq!((received.byte_len, received.imm, received.opcode), (len, imm, WcOpcode::Recv));
        assert_eq!(received.qpn, b.qp.qpn());
        let sent = a.next();
        assert_eq!((sent.wr_id, sent.status, sent.opcode), (1 + n as u64, WcStatus::Success, WcOpcode::Send));
    }
    assert_eq!(b.bytes(0..5), b"first");
    assert_eq!(b.bytes(100..106), b"second");
}

#[test]
fn write_read_and_atomics_reach_the_peers_memory() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let (va, rkey) = (b.buffer.address(), b.buffer.rkey());
    let long: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
    assert!(a.buffer.write(0, &long));
    a.send(1, SendOp::Write { va: va + 3, rkey }, 0..20_000);
    assert_eq!((a.next().status, b.bytes(3..20_003)), (WcStatus::Success, long));

    a.send(2, SendOp::Read { va: va + 3, rkey }, 30_000..40_000);
    let read = a.next();
    assert_eq!((read.opcode, read.status, read.byte_len), (WcOpcode::RdmaRead, WcStatus::Success, 10_000));
    assert_eq!(a.bytes(30_000..40_000), b.bytes(3..10_003));

    let counter = b.buffer.atomic(40_000).unwrap();
    counter.store(5, core::sync::atomic::Ordering::SeqCst);
    a.send(3, SendOp::FetchAdd { va: va + 40_000, rkey, add: 10 }, 0..8);
    assert_eq!((a.next().opcode, a.bytes(0..8)), (WcOpcode::FetchAdd, 5u64.to_ne_bytes().to_vec()));
    a.send(4, SendOp::CompareSwap { va: va + 40_000, rkey, compare: 15, swap: 99 }, 0..8);
    assert_eq!((a.next().opcode, a.bytes(0..8)), (WcOpcode::CompareSwap, 15u64.to_ne_bytes().to_vec()));
    assert_eq!(counter.load(core::sync::atomic::Ordering::SeqCst), 99);

    b.recv(50, 0..0);
    a.send(5, SendOp::WriteImm { va, rkey, imm: 7 }, 0..1000);
    let arrived = b.next();
    assert_eq!((arrived.opcode, arrived.imm, arrived.byte_len), (WcOpcode::RecvRdmaWithImm, Some(7), 1000));
    assert_eq!(a.next().wr_id, 5);
}

#[test]
fn inline_data_and_lists_of_entries() {
    let capabilities = QpCapabilities { max_inline_data: 512, max_send_sge: 32, ..QpCapabilities::default() };
    let Pair { a, b, _daemon } = Pair::with(QpType::Rc, capabilities, &ConnectionOptions::default());
    assert!(a.qp.capabilities().max_inline_data >= 512);
    b.recv(1, 0..600);
    b.recv(2, 1000..2000);
    let mut inline: Vec<u8> = (0..511u32).map(|n| (n * 7) as u8).collect();
    let request = SendRequest {
        wr_id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: Data::Inline(&inline),
        datagram: None,
    };
    a.qp.post_send(&request).unwrap();
    let sent = inline.clone();
    // The request's bytes are the caller's again.
    inline.fill(0);
    assert_eq!((b.next().byte_len, b.bytes(0..511)), (511, sent));

    let bytes: Vec<u8> = (0..32u8).collect();
    assert!(a.buffer.write(0, &bytes));
    let entries: Vec<Sge> = (0..32).rev().map(|n| a.buffer.sge(n..n + 1)).collect();
    let data = Data::Sges(&entries);
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    a.qp.post_send(&SendRequest { wr_id: 2, op, flags, data, datagram: None }).unwrap();
    assert_eq!((b.next().byte_len, b.bytes(1000..1032)), (32, (0..32u8).rev().collect()));
}

#[test]
fn a_window_is_bound_used_and_taken_back() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let window = b.pd.allocate_window().unwrap();
    let rkey = window.next_rkey();
    let (va, access) = (b.buffer.address() + 4096, Access::REMOTE_WRITE);
    let bind = SendOp::BindWindow { rkey, lkey: b.buffer.lkey(), va, length: 4096, access };
    let none = Data::Sges(&[]);
    b.qp.post_send(&SendRequest { wr_id: 1, op: bind, flags: SendFlags::SIGNALED, data: none, datagram: None })
        .unwrap();
    let bound = b.next();
    assert_eq!((bound.status, bound.opcode), (WcStatus::Success, WcOpcode::BindWindow));

    assert!(a.buffer.write(0, b"through the window"));
    a.send(2, SendOp::Write { va, rkey }, 0..18);
    assert_eq!((a.next().status, b.bytes(4096..4114)), (WcStatus::Success, b"through the window".to_vec()));

    b.recv(3, 0..100);
    a.send(4, SendOp::SendInvalidate(rkey), 0..4);
    let invalidating = b.next();
    assert_eq!((invalidating.invalidated, invalidating.flags), (Some(rkey), WcFlags::WITH_INV));
    assert_eq!(a.next().wr_id, 4);
    a.send(5, SendOp::Write { va, rkey }, 0..1);
    assert_eq!(a.next().status, WcStatus::RemoteAccess);
    drop(window);
}

#[test]
fn memory_where_it_is_serves_as_well() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let mut own = vec![0u8; 5000];
    let start = core::ptr::NonNull::new(own.as_mut_ptr()).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: `own` outlives the region, and nothing looks at it before the read has completed and the region is gone.
    let region = match unsafe { b.pd.register(start, 5000, ALL) } {
        Ok(region) => region,
        Err(error) => panic!("{error}"),
    };
    let (va, rkey) = (region.address(), region.rkey());
    let bytes: Vec<u8> = (0..5000u32).map(|n| (n / 3) as u8).collect();
    assert!(a.buffer.write(0, &bytes));
    a.send(1, SendOp::Write { va, rkey }, 0..5000);
    assert_eq!(a.next().status, WcStatus::Success);
    a.send(2, SendOp::Read { va, rkey }, 10_000..15_000);
    assert_eq!(a.next().status, WcStatus::Success);
    assert_eq!(a.bytes(10_000..15_000), bytes);
    drop(region);
    assert_eq!(own, bytes);
}

#[test]
fn uc_connects_too() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Uc);
    b.recv(1, 0..9000);
    let bytes: Vec<u8> = (0..9000u32).map(|n| (n * 3) as u8).collect();
    assert!(a.buffer.write(0, &bytes));
    a.send(2, SendOp::Send, 0..9000);
    assert_eq!((b.next().byte_len, a.next().status), (9000, WcStatus::Success));
    assert_eq!(b.bytes(0..9000), bytes);
    let refused = a.qp.post_send(&SendRequest {
        wr_id: 3,
        op: SendOp::Read { va: 0, rkey: 0 },
        flags: SendFlags::empty(),
        data: Data::Sges(&[]),
        datagram: None,
    });
    assert_eq!(refused, Err(PostError::WrongService(QpType::Uc)));
}

#[test]
fn attributes_are_told_as_they_were_set() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let attributes = a.qp.query().unwrap();
    assert_eq!((attributes.state, attributes.dest_qpn), (QpState::Rts, b.qp.qpn()));
    assert_eq!(attributes.av.source, a.context.addresses()[0]);
    assert_eq!(attributes.av.destination, b.context.addresses()[0]);
    assert!(attributes.av.source_port >= 0xc000, "the daemon chose a lane");
    a.qp.fail().unwrap();
    assert_eq!((a.qp.state(), a.qp.query().unwrap().state), (QpState::Err, QpState::Err));
}

#[test]
fn a_queue_pair_can_be_reset_and_used_again() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    for round in 0..3 {
        b.recv(round, 0..10);
        a.send(round, SendOp::Send, 0..10);
        assert_eq!((a.next().wr_id, b.next().wr_id), (round, round));
        // Neither what waits nor what has completed and was not polled is seen any more.
        b.recv(1000, 0..10);
        b.recv(1001, 0..10);
        a.send(1002, SendOp::Send, 0..10);
        while b.cq.poll_one().unwrap().is_none() {}
        for side in [&a, &b] {
            side.qp.modify(&QpAttributes::to(QpState::Reset), AttrMask::STATE).unwrap();
            assert_eq!(side.cq.poll_one().unwrap(), None);
        }
        let (to_a, to_b) = (a.qp.endpoint(Psn::new(1)).unwrap(), b.qp.endpoint(Psn::new(2)).unwrap());
        a.qp.connect(&to_b, Psn::new(1), &ConnectionOptions::default()).unwrap();
        b.qp.connect(&to_a, Psn::new(2), &ConnectionOptions::default()).unwrap();
    }
}

#[test]
fn the_peer_of_a_client_that_is_gone_hears_nothing_more() {
    let options = ConnectionOptions { timeout: 8, retry_count: 1, ..ConnectionOptions::default() };
    let Pair { a, b, _daemon } = Pair::with(QpType::Rc, QpCapabilities::default(), &options);
    let op = SendOp::Write { va: b.buffer.address(), rkey: b.buffer.rkey() };
    a.send(1, op, 0..100);
    assert_eq!(a.next().status, WcStatus::Success);
    drop(b);
    a.send(2, op, 0..100);
    assert_eq!(a.next().status, WcStatus::RetryExceeded);
}

#[test]
fn both_directions_at_once() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let (mut completed, deadline) = (0, Instant::now() + LONG);
    while completed < 2000 {
        assert!(Instant::now() < deadline, "only {completed} completions came");
        for (side, peer) in [(&a, &b), (&b, &a)] {
            let op = SendOp::Write { va: peer.buffer.address(), rkey: peer.buffer.rkey() };
            let data = Data::Sges(&[side.buffer.sge(0..20_000)]);
            let request = SendRequest { wr_id: 0, op, flags: SendFlags::SIGNALED, data, datagram: None };
            while side.qp.post_send(&request).is_ok() {}
            let mut batch = [Completion::default(); 64];
            let n = side.cq.poll(&mut batch).unwrap();
            assert!(batch[..n].iter().all(|completion| completion.status == WcStatus::Success));
            completed += n;
        }
    }
}
