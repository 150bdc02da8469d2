//! Turns, batches and timers.

use crate::pair::Pair;
use holdfast::time::{Duration, Instant};
use holdfast::transport::{Qp, QpType, SendOp, WcOpcode, WcStatus};
use holdfast::wire::Packet;
use std::collections::HashMap;

#[test]
fn a_batch_of_messages_makes_one_ack() {
    let mut pair = Pair::new();
    let op = SendOp::Write { va: 0, rkey: pair.b.keys.rkey };
    for n in 0..20 {
        let sge = pair.a.sge(0, 64);
        pair.a.send(pair.now, pair.qpn_a, n, op, sge);
    }
    for frame in pair.a.bursts(pair.now).iter().flatten() {
        pair.b.engine.handle_datagram(pair.now, &frame.datagram());
    }
    let answers = pair.b.bursts(pair.now);
    assert_eq!(answers.iter().flatten().count(), 1);
    pair.a.engine.handle_datagram(pair.now, &answers[0][0].datagram());
    assert_eq!(pair.a.completions().len(), 20);
}

#[test]
fn queue_pairs_take_turns_of_one_burst() {
    let mut pair = Pair::new();
    let mut qpns = vec![pair.qpn_a];
    for _ in 0..3 {
        let (a, b) = (pair.a.create(QpType::Rc, None), pair.b.create(QpType::Rc, None));
        pair.a.connect(a, (pair.b.address, b));
        pair.b.connect(b, (pair.a.address, a));
        qpns.push(a);
    }
    let op = SendOp::Write { va: 0, rkey: pair.b.keys.rkey };
    for &qpn in &qpns {
        let sge = pair.a.sge(0, 200 << 10);
        pair.a.send(pair.now, qpn, 1, op, sge);
    }
    let bursts = pair.a.bursts(pair.now);
    let whose = |burst: &[crate::frames::Frame]| Packet::new_checked(&burst[0].bytes).unwrap().dest_qp();
    for round in bursts.chunks(4) {
        let turns: HashMap<_, usize> = round.iter().fold(HashMap::new(), |mut turns, burst| {
            *turns.entry(whose(burst)).or_default() += 1;
            turns
        });
        assert!(turns.values().all(|&n| n == 1), "{turns:?}");
    }
    assert!(bursts.len() > 12);
}

#[test]
fn a_lost_packet_is_sent_again_when_its_timer_says_so() {
    let mut pair = Pair::new();
    pair.a.write(0, b"again");
    let (op, sge) = (SendOp::Write { va: 8, rkey: pair.b.keys.rkey }, pair.a.sge(0, 5));
    pair.a.send(pair.now, pair.qpn_a, 1, op, sge);
    // Lost.
    assert_eq!(pair.a.bursts(pair.now).len(), 1);
    let mut steps = 0;
    while pair.a.completions().first().is_none_or(|c| c.status != WcStatus::Success) {
        pair.now = pair.a.engine.poll_timeout().expect("a timer runs").max(pair.now + Duration::from_nanos(1));
        pair.a.engine.handle_timeout(pair.now);
        pair.exchange();
        steps += 1;
        assert!(steps < 20, "not sent again");
    }
    // 4.096 us * 2^10, and no more than a few ticks of the wheel later.
    let took = pair.now.since(Instant::from_ns(1000));
    assert!(took > Duration::from_micros(4194) && took < Duration::from_micros(4260), "{took:?}");
    assert_eq!(pair.b.read(8, 5), b"again");
}

#[test]
fn an_idle_queue_pair_is_small() {
    let bytes = size_of::<Qp>();
    println!("an idle queue pair: {bytes} bytes without its queues");
    assert!(bytes <= 2048, "{bytes}");
}

#[test]
fn an_acknowledgement_rides_with_the_answer_of_a_client_that_is_quick() {
    for is_write in [true, false] {
        let mut pair = Pair::new();
        let (mut now, mut rides) = (pair.now, 0);
        let (inbox_a, inbox_b) = (pair.a.sge(4096, 8), pair.b.sge(4096, 8));
        pair.a.receive(now, pair.qpn_a, 0, inbox_a);
        pair.b.receive(now, pair.qpn_b, 0, inbox_b);
        let Pair { mut a, mut b, mut qpn_a, mut qpn_b, .. } = pair;
        for n in 0..20 {
            now += Duration::from_micros(3);
            let op = if is_write { SendOp::Write { va: 4096, rkey: b.keys.rkey } } else { SendOp::Send };
            let sge = a.sge(0, 8);
            a.send(now, qpn_a, n, op, sge);
            let bursts = a.bursts(now);
            assert_eq!(bursts.len(), 1, "message {n}");
            rides += usize::from(bursts[0].len() == 2);
            for frame in &bursts[0] {
                b.engine.handle_datagram(now, &frame.datagram());
            }
            for completion in b.completions() {
                assert_eq!(completion.status, WcStatus::Success);
                if completion.opcode == WcOpcode::Recv {
                    let inbox = b.sge(4096, 8);
                    b.receive(now, qpn_b, n, inbox);
                }
            }
            core::mem::swap(&mut a, &mut b);
            core::mem::swap(&mut qpn_a, &mut qpn_b);
        }
        assert_eq!(rides, 19, "is_write: {is_write}");
        assert_eq!(a.engine.qp(qpn_a).unwrap().counters().out_of_sequence, 0);
    }
}
