//! Depths, wrap-around, shared receive queues, resizing, many threads.

use super::*;
use core::sync::atomic::{AtomicU64, Ordering};

fn small() -> QpCapabilities {
    QpCapabilities { max_send_wr: 4, max_recv_wr: 4, ..QpCapabilities::default() }
}

#[test]
fn a_full_queue_says_so_and_is_free_again_when_completions_are_polled() {
    let Pair { a, b, _daemon } = Pair::with(QpType::Rc, small(), &ConnectionOptions::default());
    let op = SendOp::Write { va: b.buffer.address(), rkey: b.buffer.rkey() };
    let request = |wr_id, flags| SendRequest { wr_id, op, flags, data: Data::Sges(&[]), datagram: None };
    for round in 0..50 {
        // Three unsignalled, one signalled: the completion of the last frees all four.
        for n in 0..3 {
            a.qp.post_send(&request(n, SendFlags::empty())).unwrap();
        }
        a.qp.post_send(&request(round, SendFlags::SIGNALED)).unwrap();
        let full = Err(PostError::QueueFull { capacity: 4 });
        assert_eq!(a.qp.post_send(&request(9, SendFlags::SIGNALED)), full);
        assert_eq!(a.next().wr_id, round);
    }
    for n in 0..4 {
        b.recv(n, 0..1);
    }
    let more = RecvRequest { wr_id: 5, sges: &[] };
    assert_eq!(b.qp.post_recv(&more), Err(PostError::QueueFull { capacity: 4 }));
}

#[test]
fn requests_that_the_queue_was_not_made_for_are_refused_at_once() {
    let capabilities = QpCapabilities { max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16, ..small() };
    let Pair { a, b, _daemon } = Pair::with(QpType::Rc, capabilities, &ConnectionOptions::default());
    let two = [a.buffer.sge(0..1), a.buffer.sge(1..2)];
    let request =
        SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, data: Data::Sges(&two), datagram: None };
    assert_eq!(a.qp.post_send(&request), Err(PostError::TooManySges { given: 2, max: 1 }));
    let inline = Data::Inline(&[0; 17]);
    assert_eq!(
        a.qp.post_send(&SendRequest { data: inline, ..request }),
        Err(PostError::InlineTooLong { given: 17, max: 16 })
    );
    assert_eq!(b.qp.post_recv(&RecvRequest { wr_id: 1, sges: &two }), Err(PostError::TooManySges { given: 2, max: 1 }));
    let huge = [Sge { length: 1 << 31, ..a.buffer.whole() }];
    assert!(a.qp.post_send(&SendRequest { data: Data::Sges(&huge), ..request }).is_ok());
    let cas = SendOp::CompareSwap { va: 0, rkey: 0, compare: 0, swap: 0 };
    let data = Data::Sges(&huge);
    assert_eq!(a.qp.post_send(&SendRequest { op: cas, data, ..request }), Err(PostError::WrongData));
    let fresh = a.pd.queue_pair(QpType::Rc, &a.cq, &a.cq).create().unwrap();
    let data = Data::Sges(&[]);
    assert_eq!(fresh.post_send(&SendRequest { data, ..request }), Err(PostError::State(QpState::Reset)));
    assert_eq!(fresh.post_recv(&RecvRequest { wr_id: 1, sges: &[] }), Err(PostError::State(QpState::Reset)));
}

#[test]
fn a_batch_is_told_at_once() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let op = SendOp::Write { va: b.buffer.address(), rkey: b.buffer.rkey() };
    let mut batch = a.qp.send_batch();
    for wr_id in 0..100 {
        let data = Data::Sges(&[]);
        batch.push(&SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, datagram: None }).unwrap();
    }
    assert_eq!(a.cq.poll_one().unwrap(), None, "the daemon has not been told");
    drop(batch);
    for wr_id in 0..100 {
        assert_eq!(a.next().wr_id, wr_id);
    }
    let receives: Vec<_> = (0..130).map(|wr_id| RecvRequest { wr_id, sges: &[] }).collect();
    let full = PostError::QueueFull { capacity: 128 };
    assert_eq!(b.qp.post_recvs(&receives), Err((128, full)));
}

#[test]
fn queue_pairs_share_receives_and_those_that_go_give_theirs_back() {
    let daemon = Loopback::with_devices(2, &Permissions::default()).unwrap();
    let sender = Side::new(&daemon.sockets()[0], QpType::Rc, QpCapabilities::default());
    let Side { context, pd, cq, buffer, .. } = Side::new(&daemon.sockets()[1], QpType::Rc, QpCapabilities::default());
    let srq = pd.create_srq(8, 2).unwrap();
    assert_eq!(srq.capacity(), 8);
    srq.arm_limit(2).unwrap();
    assert_eq!(srq.limit().unwrap(), 2);
    let post = |wr_id| srq.post_recv(&RecvRequest { wr_id, sges: &[buffer.sge(wr_id..wr_id + 1)] });
    for round in 0..5 {
        for wr_id in 0..8 {
            post(wr_id).unwrap();
        }
        assert_eq!(post(9), Err(PostError::QueueFull { capacity: 8 }));
        for wr_id in (0..8).step_by(2) {
            // Two queue pairs in turn, each for a short time.
            let ours = pd.queue_pair(QpType::Rc, &cq, &cq).shared_receive_queue(&srq).create().unwrap();
            let refused = ours.post_recv(&RecvRequest { wr_id, sges: &[] });
            assert_eq!(refused, Err(PostError::UsesSrq));
            let theirs = sender.pd.queue_pair(QpType::Rc, &sender.cq, &sender.cq).create().unwrap();
            let (to_ours, to_theirs) = (ours.endpoint(Psn::new(1)).unwrap(), theirs.endpoint(Psn::new(2)).unwrap());
            ours.connect(&to_theirs, Psn::new(1), &ConnectionOptions::default()).unwrap();
            theirs.connect(&to_ours, Psn::new(2), &ConnectionOptions::default()).unwrap();
            for _ in 0..2 {
                let data = Data::Sges(&[sender.buffer.sge(0..1)]);
                let flags = SendFlags::SIGNALED;
                theirs.post_send(&SendRequest { wr_id: 7, op: SendOp::Send, flags, data, datagram: None }).unwrap();
                assert_eq!(sender.next().status, WcStatus::Success);
            }
            let first = next(&cq);
            assert_eq!((first.wr_id, first.qpn), (wr_id, ours.qpn()));
            // The second completion is not polled: it goes with the queue pair, and its slot comes back.
        }
        if round == 0 {
            let limit = context.next_event(Some(LONG)).unwrap().expect("the limit event");
            assert_eq!((limit.kind, limit.handle), (EventKind::SrqLimitReached, srq.handle()));
            assert_eq!(srq.limit().unwrap(), 0);
        }
    }
}

#[test]
fn a_resize_keeps_what_completes_meanwhile() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let op = SendOp::Write { va: b.buffer.address(), rkey: b.buffer.rkey() };
    let (mut posted, mut seen) = (0, 0);
    for size in [512, 16, 128, 1024, 256] {
        for _ in 0..10 {
            a.send(posted, op, 0..8);
            posted += 1;
        }
        a.cq.resize(size).unwrap();
        assert_eq!(a.cq.depth(), size);
        while seen + 5 < posted {
            assert_eq!(a.next().wr_id, seen);
            seen += 1;
        }
    }
    while seen < posted {
        assert_eq!(a.next().wr_id, seen);
        seen += 1;
    }
    assert_eq!(a.cq.poll_one().unwrap(), None);
}

#[test]
fn a_queue_that_overruns_is_told_of_and_dead() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let tiny = a.context.create_cq(2, None).unwrap();
    let qp = a.pd.queue_pair(QpType::Rc, &tiny, &tiny).create().unwrap();
    let peer = b.pd.queue_pair(QpType::Rc, &b.cq, &b.cq).create().unwrap();
    let (to_qp, to_peer) = (qp.endpoint(Psn::new(1)).unwrap(), peer.endpoint(Psn::new(2)).unwrap());
    qp.connect(&to_peer, Psn::new(1), &ConnectionOptions::default()).unwrap();
    peer.connect(&to_qp, Psn::new(2), &ConnectionOptions::default()).unwrap();
    let op = SendOp::Write { va: b.buffer.address(), rkey: b.buffer.rkey() };
    for wr_id in 0..3 {
        let data = Data::Sges(&[]);
        qp.post_send(&SendRequest { wr_id, op, flags: SendFlags::SIGNALED, data, datagram: None }).unwrap();
    }
    let event = a.context.next_event(Some(LONG)).unwrap().expect("an event");
    assert_eq!((event.kind, event.handle), (EventKind::CqErr, tiny.handle()));
    assert_eq!(qp.query().unwrap().state, QpState::Err);
    assert_eq!((next(&tiny).wr_id, next(&tiny).wr_id), (0, 1));
    assert_eq!(tiny.poll_one().unwrap(), None, "what found no room is lost");
    // Others go on.
    a.send(5, op, 0..8);
    assert_eq!(a.next().wr_id, 5);
}

#[test]
fn threads_share_a_queue_pair_and_its_completion_queue() {
    const THREADS: u64 = 4;
    const EACH: u64 = 2000;
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let op = SendOp::Write { va: b.buffer.address(), rkey: b.buffer.rkey() };
    let (seen, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, seen, sum) = (&a, &seen, &sum);
            scope.spawn(move || {
                let mut posted = 0;
                let mut batch = [Completion::default(); 16];
                let deadline = Instant::now() + LONG;
                while seen.load(Ordering::Relaxed) < THREADS * EACH {
                    assert!(Instant::now() < deadline, "only {} completions came", seen.load(Ordering::Relaxed));
                    if posted < EACH {
                        let wr_id = thread * EACH + posted;
                        let data = Data::Inline(&[1, 2, 3]);
                        let flags = SendFlags::SIGNALED;
                        match a.qp.post_send(&SendRequest { wr_id, op, flags, data, datagram: None }) {
                            Ok(()) => posted += 1,
                            Err(PostError::QueueFull { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    let n = a.cq.poll(&mut batch).unwrap();
                    for completion in &batch[..n] {
                        assert_eq!(completion.status, WcStatus::Success);
                        sum.fetch_add(completion.wr_id, Ordering::Relaxed);
                    }
                    seen.fetch_add(n as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let all = THREADS * EACH;
    assert_eq!((seen.into_inner(), sum.into_inner()), (all, all * (all - 1) / 2));
}
