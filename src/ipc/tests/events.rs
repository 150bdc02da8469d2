//! Completion channels and asynchronous events.

use super::*;
use nix::poll::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;

fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, 0u8).unwrap() == 1
}

#[test]
fn an_armed_queue_wakes_its_channel_once() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let channel = a.context.create_channel().unwrap();
    let cqs = [0, 1].map(|_| a.context.create_cq(16, Some(&channel)).unwrap());
    let qp = a.pd.queue_pair(QpType::Rc, &cqs[0], &cqs[1]).create().unwrap();
    let peer = b.pd.queue_pair(QpType::Rc, &b.cq, &b.cq).create().unwrap();
    let (to_qp, to_peer) = (qp.endpoint(Psn::new(1)).unwrap(), peer.endpoint(Psn::new(2)).unwrap());
    qp.connect(&to_peer, Psn::new(1), &ConnectionOptions::default()).unwrap();
    peer.connect(&to_qp, Psn::new(2), &ConnectionOptions::default()).unwrap();

    let send = |flags| {
        let (data, op) = (Data::Sges(&[]), SendOp::Send);
        SendRequest { wr_id: 9, op, flags: SendFlags::SIGNALED | flags, data, datagram: None }
    };
    let receive = RecvRequest { wr_id: 8, sges: &[] };
    // Sleeps for each of a few messages, both ways.
    for round in 0..20 {
        cqs[0].arm(false);
        peer.post_recv(&receive).unwrap();
        qp.post_send(&send(SendFlags::empty())).unwrap();
        let woken = channel.wait(Some(LONG)).unwrap().expect("an event");
        assert_eq!(woken.handle(), cqs[0].handle(), "round {round}");
        assert_eq!(next(&woken).wr_id, 9);
        assert_eq!(next(&b.cq).wr_id, 8);
        assert!(channel.wait(Some(Duration::ZERO)).unwrap().is_none(), "one event an arm");
    }
    // Solicited only: the first message makes no event, the second does.
    cqs[1].arm(true);
    for (flags, event) in [(SendFlags::empty(), false), (SendFlags::SOLICITED, true)] {
        qp.post_recv(&receive).unwrap();
        peer.post_send(&send(flags)).unwrap();
        assert_eq!(next(&b.cq).wr_id, 9);
        assert_eq!(next(&cqs[1]).wr_id, 8);
        if event {
            let woken = channel.wait(Some(LONG)).unwrap().expect("an event");
            assert_eq!(woken.handle(), cqs[1].handle());
        }
        assert!(!readable(&channel));
    }
}

#[test]
fn events_of_a_queue_that_is_gone_are_nobodys() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let channel = a.context.create_channel().unwrap();
    let cq = a.context.create_cq(16, Some(&channel)).unwrap();
    let qp = a.pd.queue_pair(QpType::Rc, &cq, &cq).create().unwrap();
    cq.arm(false);
    qp.prepare(ALL).unwrap();
    qp.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).unwrap();
    qp.fail().unwrap();
    let deadline = Instant::now() + LONG;
    while !readable(&channel) {
        assert!(Instant::now() < deadline);
    }
    drop(qp);
    drop(cq);
    assert!(channel.wait(Some(Duration::ZERO)).unwrap().is_none());
    drop((b, channel));
}

#[test]
fn what_happens_to_a_queue_pair_is_told() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    // The peer writes where it must not: an access error here, a NAK there.
    a.send(1, SendOp::Write { va: 0, rkey: b.buffer.rkey() ^ 1 }, 0..8);
    assert_eq!(a.next().status, WcStatus::RemoteAccess);
    let event = b.context.next_event(Some(LONG)).unwrap().expect("an event");
    assert_eq!(event, AsyncEvent { kind: EventKind::QpAccessErr, qpn: Some(b.qp.qpn()), handle: b.qp.handle() });
    assert_eq!(b.context.next_event(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(b.qp.query().unwrap().state, QpState::Err);
}

#[test]
fn the_end_of_the_daemon_is_told_everywhere() {
    let Pair { a, b, _daemon } = Pair::new(QpType::Rc);
    let channel = a.context.create_channel().unwrap();
    let waiting = std::thread::spawn({
        let (channel, context) = (channel.clone(), a.context.clone());
        move || (channel.wait(None).map(|_| ()), context.next_event(None).unwrap())
    });
    drop(_daemon);
    let (channel_end, event) = waiting.join().unwrap();
    assert!(matches!(channel_end, Err(Error::DaemonGone)), "{channel_end:?}");
    assert_eq!(event.unwrap().kind, EventKind::DeviceFatal);
    assert!(matches!(a.context.allocate_pd(), Err(Error::DaemonGone)));
    // Who only polls learns it too.
    let deadline = Instant::now() + LONG;
    while !matches!(b.cq.poll_one(), Err(Error::DaemonGone)) {
        assert!(Instant::now() < deadline);
    }
}
