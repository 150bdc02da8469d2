//! Rate, delay, queue, marks and bad luck.

use super::*;
use crate::io::SplitMix;
use proptest::prelude::*;

fn line() -> impl Strategy<Value = LineSettings> {
    let ecn = (0..4_000_u64, 0..4_000_u64, 0.0..=1.0).prop_map(|(kmin, more, pmax)| EcnSettings {
        kmin,
        kmax: kmin + more,
        pmax,
    });
    let chance = || prop_oneof![Just(0.0), 0.0..=1.0];
    let rate = prop_oneof![Just(0), 1_000_000..10_000_000_000_u64];
    (rate, 0..100 * US, prop_oneof![Just(0), 100..20_000_u64], chance(), chance(), prop::option::of(ecn)).prop_map(
        |(rate_bps, delay, queue_bytes, loss, reordering, ecn)| LineSettings {
            rate_bps,
            delay: ns(delay),
            queue_bytes,
            loss,
            reordering,
            reordered_by: ns(30 * US),
            ecn,
        },
    )
}

/// What happens at a random moment.
#[derive(Clone, Debug)]
enum Act {
    Frame { from: usize, to: usize, len: usize },
    Broadcast { from: usize },
    Event(FabricEvent),
}

fn act() -> impl Strategy<Value = (u64, Act)> {
    let moved = (0..3_usize, 0..3_usize)
        .prop_map(|(a, b)| FabricEvent::Move { circuit: "ab".into(), ends: [PortId(a), PortId(b)] });
    let what = prop_oneof![
        20 => (0..3_usize, 0..3_usize, 18..1500_usize).prop_map(|(from, to, len)| Act::Frame { from, to, len }),
        2 => (0..3_usize).prop_map(|from| Act::Broadcast { from }),
        1 => prop::option::of(0..200 * US).prop_map(|lasting| Act::Event(dark("ab", lasting))),
        1 => Just(Act::Event(light("ab"))),
        1 => moved.prop_map(Act::Event),
    ];
    (0..50 * US, what)
}

proptest! {
    /// Every packet that comes in goes out once, or is counted under one reason.
    #[test]
    fn nothing_vanishes_and_nothing_is_made_up(
        lines in [line(), line()], fallback in prop::option::of(line()), notice in 0..100 * US, acts in prop::collection::vec(act(), 1..200),
    ) {
        let mut switch = Switch::new(SwitchSettings { notice: ns(notice), ..settings(&[("ab", lines[0]), ("bc", lines[1])], fallback) }).unwrap();
        let (mut now, mut sent, mut out, mut broadcasts) = (0, 0, Vec::new(), 0);
        for (number, (pause, act)) in acts.into_iter().enumerate() {
            now += pause;
            while let Some(frame) = switch.poll_frame(at(now)) {
                out.push(frame);
            }
            match act {
                Act::Frame { from, to, len } => {
                    switch.handle_frame(at(now), PortId(from), frame(from, to, number as u32, len));
                    sent += 1;
                }
                Act::Broadcast { from } => {
                    switch.handle_frame(at(now), PortId(from), to_mac([0xff; 6], from, number as u32, 60));
                    broadcasts += 1;
                }
                // A move to where it cannot go is refused.
                Act::Event(event) => drop(switch.handle_event(at(now), event)),
            }
            let stats = switch.stats();
            let lines = || stats.circuits.values().map(|c| c.counters).chain(stats.fallback);
            let ports = || stats.ports.values();
            let all = |f: fn(&LineCounters) -> u64| lines().map(|c| f(&c)).sum::<u64>();
            prop_assert_eq!(ports().map(|p| p.received).sum::<u64>(), sent + broadcasts);
            let taken = all(|c| c.taken) + ports().map(|p| p.no_path + p.malformed).sum::<u64>();
            prop_assert!(taken >= sent + broadcasts && taken <= sent + 2 * broadcasts, "{taken}");
            let fates = all(|c| c.passed + c.lost_in_dark + c.lost_by_chance + c.dropped_by_queue);
            prop_assert_eq!(all(|c| c.taken), fates + switch.packets_under_way());
            prop_assert_eq!(ports().map(|p| p.delivered).sum::<u64>(), out.len() as u64);
            prop_assert_eq!(all(|c| c.passed), out.len() as u64);
        }
        out.extend(drain(&mut switch).into_iter().map(|(_, port, frame)| (port, frame)));
        prop_assert_eq!(switch.packets_under_way(), 0);
        let mut copies: Vec<(PortId, u32)> = out.iter().map(|(port, frame)| (*port, number(frame))).collect();
        let count = copies.len();
        copies.sort_unstable();
        copies.dedup();
        prop_assert_eq!(copies.len(), count, "a frame came out twice");
        for (port, frame) in &out {
            let to = frame.destination().unwrap();
            prop_assert!(to == [0xff; 6] || to == mac(port.0));
        }
    }

    /// Without reordering frames keep their order, never faster than the rate, never earlier than the delay.
    #[test]
    fn order_rate_and_delay_are_kept(line in line(), frames in prop::collection::vec((0..20 * US, 18..1500_usize), 1..200)) {
        let line = LineSettings { reordering: 0.0, ..line };
        let mut switch = switch(&[("ab", line)], None);
        let (mut now, mut moments) = (0, Vec::new());
        for (number, (pause, len)) in frames.iter().enumerate() {
            now += pause;
            moments.push(now);
            switch.handle_frame(at(now), PortId(0), frame(0, 1, number as u32, *len));
        }
        let out = drain(&mut switch);
        let mut line_free_at = 0;
        for pair in out.windows(2) {
            prop_assert!(number(&pair[0].2) < number(&pair[1].2));
        }
        for (arrived, _, frame) in &out {
            let entered = moments[number(frame) as usize];
            let takes = (frame.bytes.len() as u128 * 8_000_000_000).checked_div(u128::from(line.rate_bps)).unwrap_or(0) as u64;
            line_free_at = entered.max(line_free_at) + takes;
            prop_assert!(*arrived >= line_free_at + line.delay.as_nanos() as u64);
        }
    }

    /// The same seed decides alike.
    #[test]
    fn a_seed_replays(line in line(), lens in prop::collection::vec(18..1500_usize, 1..50)) {
        let run = || {
            let mut switch = switch(&[("ab", line)], None);
            for (number, len) in lens.iter().enumerate() {
                switch.handle_frame(at(0), PortId(0), frame(0, 1, number as u32, *len));
            }
            drain(&mut switch)
        };
        prop_assert_eq!(run(), run());
    }
}

#[test]
fn a_frame_takes_its_bits_at_the_rate_and_then_the_delay() {
    // 1250 bytes at 1 Gb/s: 10 us.
    let line = LineSettings { rate_bps: 1_000_000_000, delay: ns(5 * US), ..LineSettings::default() };
    let mut switch = switch(&[("ab", line)], None);
    for number in 0..3 {
        switch.handle_frame(at(0), PortId(0), frame(0, 1, number, 1250));
    }
    // The other direction is its own.
    switch.handle_frame(at(0), PortId(1), frame(1, 0, 9, 1250));
    let moments: Vec<_> = drain(&mut switch).iter().map(|(at, port, f)| (*at, port.0, number(f))).collect();
    assert_eq!(moments, [(15 * US, 1, 0), (15 * US, 0, 9), (25 * US, 1, 1), (35 * US, 1, 2)]);
}

#[test]
fn the_queue_holds_what_it_holds() {
    let line = LineSettings { rate_bps: 1_000_000_000, queue_bytes: 3000, ..LineSettings::default() };
    let mut switch = switch(&[("ab", line)], None);
    for number in 0..5 {
        switch.handle_frame(at(0), PortId(0), frame(0, 1, number, 1000));
    }
    // One has left by 8 us.
    switch.handle_frame(at(8 * US), PortId(0), frame(0, 1, 5, 1000));
    let numbers: Vec<u32> = drain(&mut switch).iter().map(|(.., f)| number(f)).collect();
    assert_eq!(numbers, [0, 1, 2, 5]);
    assert_eq!(switch.stats().circuits["ab"].counters.dropped_by_queue, 2);
}

#[test]
fn marks_begin_at_kmin_and_are_certain_beyond_kmax() {
    let ecn = EcnSettings { kmin: 1000, kmax: 2000, pmax: 0.5 };
    assert_eq!([0, 1000, 1500, 2000, 2001].map(|waiting| ecn.probability(waiting)), [0.0, 0.0, 0.25, 0.5, 1.0]);
    let certain = EcnSettings { kmin: 0, kmax: 0, pmax: 1.0 };
    assert_eq!([0, 1].map(|waiting| certain.probability(waiting)), [0.0, 1.0]);
}

#[test]
fn chances_come_true_as_often_as_they_say() {
    let line = LineSettings { loss: 0.2, reordering: 0.1, reordered_by: ns(50), ..LineSettings::default() };
    let mut switch = switch(&[("ab", line)], None);
    for number in 0..10_000 {
        switch.handle_frame(at(u64::from(number)), PortId(0), frame(0, 1, number, 60));
    }
    let out = drain(&mut switch);
    let counters = switch.stats().circuits["ab"].counters;
    // Five standard deviations.
    assert!((1800..2200).contains(&counters.lost_by_chance), "{counters:?}");
    assert!((680..920).contains(&counters.reordered), "{counters:?}");
    assert_eq!(out.len() as u64 + counters.lost_by_chance, 10_000);
    let overtaken = out.windows(2).filter(|pair| number(&pair[0].2) > number(&pair[1].2)).count();
    assert!(overtaken as u64 > counters.reordered / 2, "{overtaken} of {counters:?}");
}

#[test]
fn each_packet_of_a_super_packet_has_its_own_fate_where_there_is_chance() {
    let mut random = SplitMix::new(1);
    let mut counters = LineCounters::default();
    let lossy = LineSettings { loss: 0.5, ..LineSettings::default() };
    let udp = [&[0xc0, 0, 0x12, 0xb7][..], &(8 + 1000_u16).to_be_bytes(), &[0; 2 + 1000]].concat();
    let ip = crate::wire::Ipv4::new([198, 18, 0, 1].into(), [198, 18, 0, 2].into()).emit(udp.len() as u16);
    let bytes = [&mac(1)[..], &mac(0), &[8, 0], &ip, &udp].concat();
    let halves = [42, 10, 34, 6].map(u16::to_ne_bytes);
    let whole = Frame { bytes, vnet: [&[1, 5], halves.as_flattened()].concat().try_into().unwrap() };
    let mut line = super::super::line::Line::default();
    let sent = line.admit(at(0), whole.clone(), &lossy, &mut counters, &mut random);
    assert_eq!((sent.len() as u64 + counters.lost_by_chance, counters.taken), (100, 100));
    assert!((20..80).contains(&sent.len()), "{counters:?}");
    let sent = line.admit(at(0), whole, &LineSettings::default(), &mut counters, &mut random);
    assert_eq!((sent.len(), sent[0].1.packets()), (1, 100));
}
