//! A million packets that a stranger made, at a busy daemon: the real traffic loses nothing, each forged packet is counted under
//! its reason, and memory does not grow.
//!
//! Not among them: packets with the number of a living connection, its peer's address, a right ICRC and a PSN in the window (nor
//! datagrams with the queue key): those are the peer's as far as anybody can tell.

use crate::forge::{Fate, Forger, Knowledge, is_sealed};
use crate::stage::{Daemon, INTERFACE, Metrics, PATIENCE, Pair, mac, until, v4, v6};
use crate::traffic::Traffic;
use holdfast::io::namespace::{Namespace, run_test};
use holdfast::ipc::client::QpType;
use holdfast::wire::frame;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;
use std::time::Instant;

const PACKETS: u64 = 1_000_000;
/// Before memory is measured for the first time: buffers are touched, tables have grown.
const WARM_UP: u64 = 50_000;
/// A word leaked with every packet would be twice as much.
const GROWTH_KIB: u64 = 4096;
/// The victim's receive buffer is never filled beyond this, so that what is lost is not lost there.
const BACKLOG_BYTES: u64 = 2 << 20;
/// Packets between two looks at the backlog.
const STEP: u64 = 256;

#[test]
fn a_million_forged_packets_cost_the_real_traffic_nothing() {
    run_test("flood::a_million_forged_packets_cost_the_real_traffic_nothing", || {
        let pair = Pair::start("");
        let mut traffic = Traffic::new(pair.attach());
        let socket = pair.ends[0].frames(INTERFACE).unwrap();
        let know = spy(&pair, &mut traffic, &socket);
        let victim = &pair.daemons[1];
        let [first, last] = traffic.play_during(|| {
            let mut forger = Forger::new(know, 0x686f_6c64);
            let (before, dropped) = (victim.metrics(), kernel_drops());
            let mut fates = HashMap::new();
            let mut forge = || {
                let (frame, fate) = forger.forge();
                *fates.entry(fate).or_default() += 1;
                frame
            };
            inject(&pair.ends[1], &socket, WARM_UP, &mut forge);
            let kib = [0, 1].map(|i: usize| pair.daemons[i].resident_kib());
            inject(&pair.ends[1], &socket, PACKETS, &mut forge);
            let after = settle(victim, &before, dropped, &fates);
            for (i, before) in kib.into_iter().enumerate() {
                let after = pair.daemons[i].resident_kib();
                assert!(after < before + GROWTH_KIB, "memory of daemon {i} grows: {before} KiB before, {after} after");
            }
            [before, after]
        });
        println!("{} rounds of real traffic", traffic.rounds);
        let lost = traffic.lost_datagrams(|lost| kernel_drops() + kernel_dropped(&pair) >= lost);
        println!("{lost} datagrams lost by the kernel");
        assert_eq!(last.total("holdfast_queue_pairs"), first.total("holdfast_queue_pairs"));
        drop(traffic);
        for log in pair.end() {
            assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        }
    });
}

/// Listens to the real traffic for a while.
pub(crate) fn spy(pair: &Pair, traffic: &mut Traffic, socket: &socket2::Socket) -> Knowledge {
    let victim = &traffic.sides[1];
    let stale = {
        let pd = victim.context.allocate_pd().unwrap();
        pd.queue_pair(QpType::Rc, &victim.cq, &victim.cq).create().unwrap().qpn()
    };
    let mut know = Knowledge {
        macs: [mac(&pair.ends[1], INTERFACE), mac(&pair.ends[0], INTERFACE)],
        victim: addresses(2),
        peer: addresses(1),
        rc: victim.rc.qpn(),
        ud: victim.ud.qpn(),
        stale,
        living: vec![victim.rc.qpn(), victim.ud.qpn()],
        memory: victim.memory.address(),
        rkey: victim.memory.rkey(),
        overheard: Vec::new(),
    };
    let mut buffer = vec![0; 1 << 17];
    while know.overheard.len() < 500 {
        traffic.round();
        while let Ok(length) = std::io::Read::read(&mut &*socket, &mut buffer) {
            let frame = &buffer[..length];
            let datagram = frame::parse_ethernet(frame).ok().and_then(|f| f.roce().filter(is_sealed).map(|_| f.ip));
            // Single packets; a super-packet's ICRC is not that of the whole.
            if datagram.is_some_and(|ip| ip.destination() == v4(2)) {
                know.overheard.push(frame.to_vec());
            }
        }
    }
    know
}

fn addresses(end: u8) -> (Ipv4Addr, Ipv6Addr) {
    match (v4(end), v6(end)) {
        (IpAddr::V4(v4), IpAddr::V6(v6)) => (v4, v6),
        _ => unreachable!("an address of each family"),
    }
}

/// Sends so many packets, no faster than the victim takes them.
pub(crate) fn inject(victim: &Namespace, socket: &socket2::Socket, packets: u64, mut forge: impl FnMut() -> Vec<u8>) {
    let mut sent = 0;
    while sent < packets {
        for _ in 0..STEP.min(packets - sent) {
            let frame = forge();
            while let Err(error) = socket.send(&frame) {
                assert!(
                    matches!(error.kind(), std::io::ErrorKind::WouldBlock) || error.raw_os_error() == Some(105),
                    "{error}"
                );
                thread::yield_now();
            }
            sent += 1;
        }
        until("the victim takes what waits", || {
            thread::yield_now();
            backlog_bytes(victim) < BACKLOG_BYTES
        });
    }
}

/// What waits in the packet sockets of a namespace.
fn backlog_bytes(namespace: &Namespace) -> u64 {
    let table = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/packet").unwrap()).unwrap();
    // sk RefCnt Type Proto Iface R Rmem User Inode
    table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(6)?.parse::<u64>().ok()).sum()
}

/// Packets that the kernel dropped on their way up, on the whole machine.
fn kernel_drops() -> u64 {
    let table = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    table.lines().filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()).sum()
}

fn kernel_dropped(pair: &Pair) -> u64 {
    pair.daemons.iter().map(|daemon| daemon.metrics().total("holdfast_kernel_dropped_packets_total")).sum()
}

/// Waits until every packet has been counted, but for those that the kernel dropped; looks whether each was counted as what it is.
fn settle(victim: &Daemon, before: &Metrics, dropped_before: u64, fates: &HashMap<Fate, u64>) -> Metrics {
    let sent = |fate| fates.get(&fate).copied().unwrap_or(0);
    let counted = |after: &Metrics, fate| count(after, fate) - count(before, fate);
    let start = Instant::now();
    loop {
        let after = victim.metrics();
        let name = "holdfast_kernel_dropped_packets_total";
        let lost = kernel_drops() - dropped_before + after.total(name) - before.total(name);
        let missing = |fate| sent(fate).saturating_sub(counted(&after, fate));
        let table = EXACT.iter().chain([&Fate::OutOfPlace]).map(|fate| {
            assert!(sent(*fate) > 0, "{fate:?}: none was sent");
            (*fate, sent(*fate), counted(&after, *fate))
        });
        let table: Vec<_> = table.collect();
        if table.iter().map(|(fate, ..)| missing(*fate)).sum::<u64>() <= lost {
            println!("fate, sent, counted: {table:?}; lost by the kernel: {lost}; unseen: {}", sent(Fate::Unseen));
            for fate in EXACT {
                assert!(counted(&after, fate) <= sent(fate), "counted as {fate:?} and is not");
            }
            return after;
        }
        assert!(start.elapsed() < PATIENCE, "fate, sent, counted: {table:?}; lost by the kernel: {lost}");
        thread::yield_now();
    }
}

/// What the real traffic never is.
const EXACT: [Fate; 8] = [
    Fate::Damaged,
    Fate::UnknownQp,
    Fate::WrongSource,
    Fate::Pkey,
    Fate::Qkey,
    Fate::WrongService,
    Fate::ForeignCnp,
    Fate::Cnp,
];

/// How many packets a daemon has counted as this.
pub(crate) fn count(metrics: &Metrics, fate: Fate) -> u64 {
    match fate {
        Fate::Unseen => 0,
        Fate::Damaged => metrics.dropped("malformed") + metrics.dropped("icrc"),
        Fate::UnknownQp => metrics.dropped("unknown_qp"),
        Fate::WrongSource => metrics.dropped("wrong_source"),
        Fate::Pkey => metrics.dropped("pkey"),
        Fate::Qkey => metrics.dropped("qkey"),
        Fate::WrongService => metrics.dropped("wrong_service"),
        Fate::ForeignCnp => metrics.dropped("cnp"),
        Fate::Cnp => metrics.total("holdfast_cnps_received_total"),
        // What is repeated to make up for it is among them.
        Fate::OutOfPlace => {
            metrics.total("holdfast_duplicate_requests_total")
                + metrics.total("holdfast_out_of_sequence_packets_total")
                + metrics.dropped("ghost")
        }
    }
}
