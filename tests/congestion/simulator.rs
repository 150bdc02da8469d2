//! A bottleneck and who shares it, event by event: senders with a port each, one switch queue with RED marking, one circuit behind it.
//!
//! What decides is the room's own code: a [`Flow`] at each sender and at each receiver. Everything else is as simple as can be: no losses (the
//! paper's network has PFC), no packet overtakes another, CNPs find empty queues. The same set-up gives the same result to the last bit.

use holdfast::congestion::{Allowance, Bps, Flow, Line, Parameters, Tuning};
use holdfast::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Bytes on the wire of a packet with 4 KiB of payload.
pub const PACKET_BYTES: u32 = 4178;

/// When a switch marks: never below `min_bytes`, always above `max_bytes`, in between with a probability that rises to `max_ppm`.
#[derive(Clone, Copy, Debug)]
pub struct Red {
    pub min_bytes: u64,
    pub max_bytes: u64,
    pub max_ppm: u64,
}

impl Red {
    /// The paper's Kmin, Kmax and Pmax.
    pub const PAPER: Self = Self { min_bytes: 5_000, max_bytes: 200_000, max_ppm: 10_000 };

    fn marks(&self, queue_bytes: u64, dice_ppm: u64) -> bool {
        if queue_bytes <= self.min_bytes {
            return false;
        }
        let (above, range) = (queue_bytes - self.min_bytes, self.max_bytes - self.min_bytes);
        queue_bytes > self.max_bytes || dice_ppm < self.max_ppm * above / range
    }
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Setup {
    pub parameters: Parameters,
    pub red: Red,
    /// Of every port and of the circuit.
    pub line: Bps,
    /// Fibre between switch and receivers.
    pub circuit: Duration,
    /// What the reaction points are told of the round trip; `None`: what it is.
    pub told_rtt: Option<Duration>,
    /// When each flow begins and ends.
    pub flows: Vec<(Duration, Duration)>,
    /// Most bytes of a flow under way: the window of a reliable connection.
    pub window_bytes: u64,
    /// How late a worker may look at a flow whose time has come.
    pub late: Duration,
    /// From when to when the circuit is dark.
    pub dark: Option<(Duration, Duration)>,
    /// Whether flows are frozen in it; otherwise they only do not send.
    pub freezes: bool,
    pub lasts: Duration,
    pub sample_every: Duration,
}

/// Hosts, cables to the switch and the switch itself, one way.
const NEAR: Duration = Duration::from_nanos(500);

impl Setup {
    /// `flows` that begin together and last, at 40 Gb/s and 10 m.
    pub fn new(flows: usize, lasts: Duration) -> Self {
        Self {
            parameters: Parameters::default(),
            red: Red::PAPER,
            line: Bps::from_gbps(40),
            circuit: Duration::from_nanos(50),
            told_rtt: None,
            flows: vec![(Duration::ZERO, lasts); flows],
            window_bytes: 1 << 20,
            late: Duration::from_micros(2),
            dark: None,
            freezes: true,
            lasts,
            sample_every: Duration::from_micros(100),
        }
    }

    /// The round trip without queues.
    pub fn rtt(&self) -> Duration {
        2 * (NEAR + self.circuit)
    }

    fn tuning(&self) -> Tuning {
        let line = Line { rate: self.line, rtt: self.told_rtt.unwrap_or(self.rtt()), ..Line::default() };
        Tuning::new(self.parameters, line).expect("the parameters are good")
    }

    pub fn run(&self) -> Report {
        let mut bottleneck = Bottleneck::new(self);
        while bottleneck.step() {}
        bottleneck.report
    }
}

/// The end of each interval.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Duration,
    /// The largest queue since the last sample.
    pub peak_queue_bytes: u64,
    pub queue_bytes: u64,
    /// Bytes that each flow got through the circuit since the last sample.
    pub delivered: Vec<u64>,
    /// The rate of each flow.
    pub rates: Vec<Bps>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub samples: Vec<Sample>,
    pub line: Bps,
    pub cnps: u64,
}

impl Report {
    pub fn between(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |s| s.at > from && s.at <= to)
    }

    /// Jain's index of what `flows` got: 1 if all got the same, 1/n if one got all.
    pub fn jain(&self, flows: core::ops::Range<usize>, from: Duration, to: Duration) -> f64 {
        let shares: Vec<f64> = flows.map(|f| self.delivered(f, from, to) as f64).collect();
        let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|x| x * x).sum::<f64>());
        sum * sum / (shares.len() as f64 * squares)
    }

    pub fn delivered(&self, flow: usize, from: Duration, to: Duration) -> u64 {
        self.between(from, to).map(|s| s.delivered[flow]).sum()
    }

    /// Bits a second of one flow.
    pub fn throughput(&self, flow: usize, from: Duration, to: Duration) -> f64 {
        self.delivered(flow, from, to) as f64 * 8.0 / (to - from).as_secs_f64()
    }

    /// Which part of the circuit's rate was used.
    pub fn utilization(&self, from: Duration, to: Duration) -> f64 {
        let bytes: u64 = self.between(from, to).flat_map(|s| &s.delivered).sum();
        bytes as f64 * 8.0 / (to - from).as_secs_f64() / self.line.as_bps() as f64
    }

    pub fn peak_queue(&self, from: Duration, to: Duration) -> u64 {
        self.between(from, to).map(|s| s.peak_queue_bytes).max().unwrap_or(0)
    }

    /// The queue that a part of all samples does not exceed.
    pub fn queue_quantile(&self, part: f64, from: Duration, to: Duration) -> u64 {
        let mut queues: Vec<u64> = self.between(from, to).map(|s| s.queue_bytes).collect();
        queues.sort_unstable();
        let at = ((queues.len() as f64 * part) as usize).min(queues.len().saturating_sub(1));
        queues.get(at).copied().unwrap_or(0)
    }

    /// How much the flows' rates together swing around their mean: standard deviation over mean.
    pub fn swing(&self, from: Duration, to: Duration) -> f64 {
        let sums: Vec<f64> = self.between(from, to).map(|s| s.rates.iter().map(|r| r.as_bps() as f64).sum()).collect();
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        let variance = sums.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / sums.len() as f64;
        variance.sqrt() / mean
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A flow may want to send.
    Wake(usize),
    /// A packet is at the switch.
    Packet(usize),
    /// A packet leaves it.
    Leaves(usize),
    /// The sender learns that a packet arrived.
    Ack(usize),
    Cnp(usize),
    Dark,
    Lit,
    Sample,
}

struct End {
    sender: Flow,
    receiver: Flow,
    port_free: Instant,
    under_way: u64,
    /// A wake-up is in the queue of events, for then.
    wakes_at: Instant,
    delivered: u64,
}

struct Bottleneck<'a> {
    setup: &'a Setup,
    tuning: Tuning,
    events: BinaryHeap<Reverse<(Instant, u64, What)>>,
    sequence: u64,
    now: Instant,
    ends: Vec<End>,
    /// Until when the circuit has work, on a clock that stands still in the dark.
    busy: Instant,
    is_dark: bool,
    peak_queue_bytes: u64,
    dice: u64,
    report: Report,
}

fn at(time: Duration) -> Instant {
    Instant::ZERO + time
}

impl<'a> Bottleneck<'a> {
    fn new(setup: &'a Setup) -> Self {
        let end = || End {
            sender: Flow::new(),
            receiver: Flow::new(),
            port_free: Instant::ZERO,
            under_way: 0,
            wakes_at: Instant::MAX,
            delivered: 0,
        };
        let mut this = Self {
            setup,
            tuning: setup.tuning(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: Instant::ZERO,
            ends: setup.flows.iter().map(|_| end()).collect(),
            busy: Instant::ZERO,
            is_dark: false,
            peak_queue_bytes: 0,
            dice: 1,
            report: Report { line: setup.line, ..Report::default() },
        };
        for (flow, (start, _)) in setup.flows.iter().enumerate() {
            this.wake(flow, at(*start));
        }
        if let Some((from, to)) = setup.dark {
            this.push(at(from), What::Dark);
            this.push(at(to), What::Lit);
        }
        this.push(at(setup.sample_every), What::Sample);
        this
    }

    fn push(&mut self, when: Instant, what: What) {
        self.sequence += 1;
        self.events.push(Reverse((when, self.sequence, what)));
    }

    /// SplitMix64.
    fn roll(&mut self, below: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn step(&mut self) -> bool {
        let Some(Reverse((when, _, what))) = self.events.pop() else { return false };
        if when > at(self.setup.lasts) {
            return false;
        }
        self.now = when;
        match what {
            What::Wake(flow) if self.ends[flow].wakes_at == when => {
                self.ends[flow].wakes_at = Instant::MAX;
                self.send(flow);
            }
            What::Wake(_) => {}
            What::Packet(flow) => self.enqueue(flow),
            What::Leaves(flow) => self.dequeue(flow),
            What::Ack(flow) => {
                self.ends[flow].under_way -= u64::from(PACKET_BYTES);
                self.ends[flow].delivered += u64::from(PACKET_BYTES);
                if self.ends[flow].wakes_at == Instant::MAX {
                    self.wake(flow, when);
                }
            }
            What::Cnp(flow) => {
                self.report.cnps += 1;
                let _ = self.ends[flow].sender.handle_cnp(when, &self.tuning);
            }
            What::Dark => self.set_dark(true),
            What::Lit => self.set_dark(false),
            What::Sample => self.sample(),
        }
        true
    }

    fn wake(&mut self, flow: usize, when: Instant) {
        self.ends[flow].wakes_at = when;
        self.push(when, What::Wake(flow));
    }

    fn send(&mut self, flow: usize) {
        let (start, stop) = self.setup.flows[flow];
        if self.now < at(start) || self.now >= at(stop) || self.is_dark {
            return;
        }
        let packet = u64::from(PACKET_BYTES);
        let room = self.setup.window_bytes.saturating_sub(self.ends[flow].under_way);
        if room < packet {
            // An ACK wakes it.
            return;
        }
        if self.ends[flow].port_free > self.now {
            return self.wake(flow, self.ends[flow].port_free);
        }
        let (now, tuning) = (self.now, self.tuning);
        let bytes = match self.ends[flow].sender.poll_allowance(now, PACKET_BYTES, room, &tuning) {
            Allowance::Unlimited => u64::from(tuning.line().burst_bytes),
            Allowance::Bytes(bytes) => bytes,
            Allowance::Wait(until) => {
                let late = self.roll(self.setup.late.as_nanos() as u64 + 1);
                return self.wake(flow, until + Duration::from_nanos(late));
            }
        };
        let packets = bytes.min(room) / packet;
        for _ in 0..packets {
            let free = self.ends[flow].port_free.max(now) + self.setup.line.time_for(packet);
            self.ends[flow].port_free = free;
            self.push(free + NEAR, What::Packet(flow));
        }
        self.ends[flow].under_way += packets * packet;
        self.ends[flow].sender.handle_sent(now, PACKET_BYTES, packets * packet, &tuning);
        self.wake(flow, self.ends[flow].port_free);
    }

    /// The time that the circuit was lit until `when`, and back.
    fn lit(&self, when: Instant) -> Instant {
        match self.setup.dark {
            Some((from, to)) if when >= at(to) => when - (to - from),
            Some((from, _)) => when.min(at(from)),
            None => when,
        }
    }

    fn real(&self, lit: Instant) -> Instant {
        match self.setup.dark {
            Some((from, to)) if lit > at(from) => lit + (to - from),
            _ => lit,
        }
    }

    fn queue_bytes(&self) -> u64 {
        self.setup.line.bytes_in(self.busy.since(self.lit(self.now)))
    }

    fn enqueue(&mut self, flow: usize) {
        self.busy = self.busy.max(self.lit(self.now)) + self.setup.line.time_for(PACKET_BYTES.into());
        self.peak_queue_bytes = self.peak_queue_bytes.max(self.queue_bytes());
        self.push(self.real(self.busy), What::Leaves(flow));
    }

    /// A packet leaves the switch, marked by what it leaves behind.
    fn dequeue(&mut self, flow: usize) {
        let arrives = self.now + self.setup.circuit;
        let answer = arrives + self.setup.circuit + NEAR;
        self.push(answer, What::Ack(flow));
        let dice = self.roll(1_000_000);
        // What the receiver will do can be done now: packets arrive in the order in which they leave.
        if self.setup.red.marks(self.queue_bytes(), dice) && self.ends[flow].receiver.handle_ce(arrives, &self.tuning) {
            self.push(answer, What::Cnp(flow));
        }
    }

    fn set_dark(&mut self, is_dark: bool) {
        self.is_dark = is_dark;
        let (now, tuning) = (self.now, self.tuning);
        for flow in 0..self.ends.len() {
            if self.setup.freezes {
                let end = &mut self.ends[flow];
                for point in [&mut end.sender, &mut end.receiver] {
                    if is_dark { point.freeze(now, &tuning) } else { point.thaw(now, &tuning) }
                }
            }
            if !is_dark {
                self.wake(flow, now);
            }
        }
    }

    fn sample(&mut self) {
        let (now, tuning) = (self.now, self.tuning);
        let queue_bytes = self.queue_bytes();
        let mut sample = Sample {
            at: now.since(Instant::ZERO),
            peak_queue_bytes: self.peak_queue_bytes.max(queue_bytes),
            queue_bytes,
            delivered: Vec::with_capacity(self.ends.len()),
            rates: Vec::with_capacity(self.ends.len()),
        };
        for (end, (start, stop)) in self.ends.iter_mut().zip(&self.setup.flows) {
            end.sender.handle_timeout(now, &tuning);
            sample.delivered.push(std::mem::take(&mut end.delivered));
            let sends = (at(*start)..=at(*stop)).contains(&now);
            sample.rates.push(if sends { end.sender.reaction().rate(&tuning) } else { Bps::ZERO });
        }
        self.peak_queue_bytes = 0;
        self.report.samples.push(sample);
        self.push(now + self.setup.sample_every, What::Sample);
    }
}
