//! A port that misbehaves on purpose: a bad network for tests and the demo, on any machine, repeatable by its seed.

use core::net::IpAddr;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::pcap_tee::sent_header;
use super::port::{Capabilities, Port, PortCounters, PortError, Refusal};
use crate::transport::{AddressVector, Burst, BurstLimits, IpIdRule};
use crate::wire::icrc::Icrc;
use crate::wire::{Datagram, Ecn, ICRC_LEN, IpHeader, UDP_LEN};

/// Single packets that wait for the kernel to take them, at most; beyond that the port takes no bursts.
const MAX_OUTBOX: usize = 1024;

/// What goes wrong in one direction. Probabilities are from 0 (never) to 1 (always), each packet's on its own.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct FaultRates {
    /// The packet is lost.
    pub drop: f64,
    /// It comes twice.
    pub duplicate: f64,
    /// It is held back for [`FaultRates::reorder_by`], and others overtake it.
    pub reorder: f64,
    /// How long a reordered packet is held back.
    pub reorder_by: Duration,
    /// One of its bits is flipped.
    pub corrupt: f64,
    /// It is marked Congestion Experienced, if its sender's transport is ECN-capable.
    pub mark: f64,
    /// Every packet is delayed so long.
    pub delay: Duration,
}

/// What went wrong, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FaultCounts {
    /// Packets lost by chance.
    pub dropped: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Packets damaged.
    pub corrupted: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets lost in the dark.
    pub darkened: u64,
}

/// The switch of a blackout: while it is dark, no packet passes, either way. Copies switch the same port.
#[derive(Clone, Default, Debug)]
pub struct Blackout(Arc<AtomicBool>);

impl Blackout {
    /// Lights go out, or on.
    pub fn set(&self, is_dark: bool) {
        self.0.store(is_dark, Ordering::Release);
    }

    /// Whether it is dark.
    pub fn is_dark(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A port behind a bad network.
///
/// Bursts are taken apart, so that each packet has its own fate, and leave as single packets, their ICRCs made good for
/// identification 0. It copies and allocates: it is for tests.
pub struct Faults {
    inner: Box<dyn Port>,
    incoming: Line<Incoming>,
    outgoing: Line<AddressVector>,
    counts: FaultCounts,
    random: SplitMix,
    blackout: Blackout,
    /// Packets whose time has come but which the kernel had no room for.
    outbox: VecDeque<Burst>,
    readable: Epoll,
    timer: TimerFd,
}

impl Faults {
    /// A port whose received and sent packets suffer these faults; the same seed decides alike.
    pub fn new(inner: Box<dyn Port>, seed: u64, receive: FaultRates, send: FaultRates) -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let readable = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        readable.add(inner.readable(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        readable.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, 1))?;
        Ok(Self {
            inner,
            incoming: Line::new(receive),
            outgoing: Line::new(send),
            counts: FaultCounts::default(),
            random: SplitMix::new(seed),
            blackout: Blackout::default(),
            outbox: VecDeque::new(),
            readable,
            timer,
        })
    }

    /// The switch that makes it dark.
    pub fn blackout(&self) -> Blackout {
        self.blackout.clone()
    }

    /// What went wrong so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts
    }

    /// Hands over what is due to be sent.
    fn flush(&mut self) -> Result<(), PortError> {
        let limits = self.inner.capabilities().burst;
        while let Some((flow, bytes)) = self.outgoing.take_due(Instant::now()) {
            let mut burst = Burst::new(BurstLimits { max_packets: 1, max_bytes: bytes.len() as u32, ..limits });
            burst.push_raw(&flow, &bytes);
            self.outbox.push_back(burst);
        }
        let taken = self.inner.send(self.outbox.make_contiguous())?;
        self.outbox.drain(..taken.min(self.outbox.len()));
        self.set_timer();
        Ok(())
    }

    /// Wakes whoever waits when the next packet is due.
    fn set_timer(&self) {
        let due = [self.incoming.next_due(), self.outgoing.next_due()].into_iter().flatten().min();
        // A timer cannot be set to now, nor fail to be set to a moment ahead.
        let _ = match due {
            Some(due) => {
                let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
                self.timer.set(Expiration::OneShot(TimeSpec::from_duration(left)), TimerSetTimeFlags::empty())
            }
            None => self.timer.unset(),
        };
    }
}

impl Port for Faults {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> Result<usize, PortError> {
        let Self { inner, incoming, counts, random, blackout, .. } = self;
        let is_dark = blackout.is_dark();
        inner.receive(budget, &mut |datagram| {
            if is_dark {
                counts.darkened += 1;
                return;
            }
            let Datagram { ip, source_port, bytes } = *datagram;
            incoming.admit(Incoming { ip, source_port }, bytes.to_vec(), random, counts);
        })?;
        let mut shown = 0;
        while shown < budget
            && let Some((Incoming { ip, source_port }, bytes)) = self.incoming.take_due(Instant::now())
        {
            sink(&Datagram { ip, source_port, bytes: &bytes });
            shown += 1;
        }
        self.flush()?;
        Ok(shown)
    }

    fn send(&mut self, bursts: &[Burst]) -> Result<usize, PortError> {
        let rule = self.inner.capabilities().burst.ip_id;
        let mut taken = 0;
        for burst in bursts {
            if self.outbox.len() >= MAX_OUTBOX {
                break;
            }
            taken += 1;
            for (index, packet) in burst.bytes().chunks(burst.segment_bytes().max(1) as usize).enumerate() {
                if self.blackout.is_dark() {
                    self.counts.darkened += 1;
                    continue;
                }
                let mut bytes = packet.to_vec();
                refit(&mut bytes, burst, index as u16, rule);
                self.outgoing.admit(*burst.flow(), bytes, &mut self.random, &mut self.counts);
            }
        }
        self.flush()?;
        Ok(taken)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.readable.0.as_fd()
    }

    fn blocked_on(&self) -> Option<BorrowedFd<'_>> {
        self.inner.blocked_on()
    }

    fn poll_refusal(&mut self) -> Option<Refusal> {
        self.inner.poll_refusal()
    }

    fn counters(&mut self) -> PortCounters {
        self.inner.counters()
    }

    fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), PortError> {
        self.inner.set_addresses(addresses)
    }
}

/// Changes an ICRC that is right at its place in a burst into one that is right for a packet sent alone; a wrong one stays
/// wrong.
fn refit(packet: &mut [u8], burst: &Burst, index: u16, rule: IpIdRule) {
    let (Some(inside), Some(alone)) = (sent_header(burst, index, rule), sent_header(burst, 0, rule)) else { return };
    let udp_len = u16::try_from(packet.len() + UDP_LEN).unwrap_or(u16::MAX);
    let Some((covered, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() else { return };
    let of = |ip: &IpHeader| Icrc::start(ip, burst.flow().source_port, udp_len, covered).finish();
    let corrected = u32::from_le_bytes(*icrc) ^ of(&inside) ^ of(&alone);
    *icrc = corrected.to_le_bytes();
}

/// What a received packet came with.
#[derive(Clone, Copy)]
struct Incoming {
    ip: IpHeader,
    source_port: u16,
}

/// Where the ECN bits are.
trait TrafficClass: Copy {
    fn traffic_class(&mut self) -> &mut u8;
}

impl TrafficClass for Incoming {
    fn traffic_class(&mut self) -> &mut u8 {
        match &mut self.ip {
            IpHeader::V4(ip) => &mut ip.tos,
            IpHeader::V6(ip) => &mut ip.traffic_class,
        }
    }
}

impl TrafficClass for AddressVector {
    fn traffic_class(&mut self) -> &mut u8 {
        &mut self.traffic_class
    }
}

/// One direction: packets under way, by the moment that they arrive.
struct Line<T> {
    rates: FaultRates,
    held: BinaryHeap<Held<T>>,
    /// Counts packets, so that those of one moment keep their order.
    count: u64,
}

impl<T: TrafficClass> Line<T> {
    fn new(rates: FaultRates) -> Self {
        Self { rates, held: BinaryHeap::new(), count: 0 }
    }

    fn admit(&mut self, mut with: T, mut bytes: Vec<u8>, random: &mut SplitMix, counts: &mut FaultCounts) {
        let rates = self.rates;
        // All dice are thrown for each packet: one rate does not shift the fates that another decides.
        let chances = [rates.drop, rates.corrupt, rates.mark, rates.reorder, rates.duplicate];
        let [drops, corrupts, marks, reorders, duplicates] = chances.map(|chance| random.happens(chance));
        let damage = random.next() as usize;
        if drops {
            counts.dropped += 1;
            return;
        }
        if corrupts && !bytes.is_empty() {
            counts.corrupted += 1;
            let bit = damage % (8 * bytes.len());
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
        let class = with.traffic_class();
        if marks && !matches!(Ecn::of(*class), Ecn::NotEct | Ecn::Ce) {
            counts.marked += 1;
            *class |= Ecn::Ce as u8;
        }
        let mut due = Instant::now() + rates.delay;
        if reorders {
            counts.reordered += 1;
            due += rates.reorder_by;
        }
        if duplicates {
            counts.duplicated += 1;
            self.hold(due, with, bytes.clone());
        }
        self.hold(due, with, bytes);
    }

    fn hold(&mut self, due: Instant, with: T, bytes: Vec<u8>) {
        self.count += 1;
        self.held.push(Held { due, number: self.count, with, bytes });
    }

    fn next_due(&self) -> Option<Instant> {
        self.held.peek().map(|held| held.due)
    }

    fn take_due(&mut self, now: Instant) -> Option<(T, Vec<u8>)> {
        if self.next_due()? > now {
            return None;
        }
        self.held.pop().map(|held| (held.with, held.bytes))
    }
}

struct Held<T> {
    due: Instant,
    number: u64,
    with: T,
    bytes: Vec<u8>,
}

impl<T> Ord for Held<T> {
    /// The earliest is the greatest: a heap gives that first.
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Held<T> {}

/// SplitMix64 (Steele, Lea and Flood 2014): ten lines, and good enough to throw dice.
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }
}
