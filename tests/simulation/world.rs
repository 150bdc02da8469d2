//! One run: nodes, connections and a network as the seed says, random work, and a model that must agree with all of it.

use crate::darkness::Darkness;
use crate::datagrams::Datagrams;
use crate::layout::{Layout, Places};
use crate::link::{Around, Link, LinkPlan};
use crate::model::{Images, Memories};
use crate::network::{Faults, Network, Tally};
use crate::node::Node;
use crate::rng::Rng;
use holdfast::congestion::{Bps, Line, Parameters, Tuning};
use holdfast::engine::{CircuitPlan, CongestionPolicy, EngineConfig, Worker};
use holdfast::path::{HoldPolicy, IpPrefix};
use holdfast::time::{Duration, Instant};
use holdfast::transport::{BurstLimits, Completion, IpIdRule, QpType, TransportLimits};
use holdfast::wire::PathMtu;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Longer than any run takes that gets anywhere.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// Events at one moment; more means that time stands still.
const EVENTS_AT_ONCE: u32 = 10_000;

/// What a run did, for the summary.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    pub network: Tally,
    pub completions: u64,
    pub repairs: u64,
    pub datagrams: u64,
    pub local_messages: u64,
    /// Darknesses that nodes lived through, and how many of them they were told of.
    pub darks: u64,
    pub told: u64,
    /// Congestion notifications that slowed somebody down.
    pub cnps: u64,
}

impl Summary {
    /// Adds what another run did.
    pub fn add(&mut self, other: &Self) {
        let (sum, more) = (&mut self.network, &other.network);
        sum.sent += more.sent;
        sum.lost += more.lost;
        sum.swallowed += more.swallowed;
        sum.doubled += more.doubled;
        sum.damaged += more.damaged;
        sum.marked += more.marked;
        self.completions += other.completions;
        self.repairs += other.repairs;
        self.datagrams += other.datagrams;
        self.local_messages += other.local_messages;
        self.darks += other.darks;
        self.told += other.told;
        self.cnps += other.cnps;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { network: n, completions, repairs, datagrams, local_messages, darks, told, cnps } = self;
        write!(f, "{} packets ({} lost, {} doubled, {} damaged), ", n.sent, n.lost, n.doubled, n.damaged)?;
        write!(
            f,
            "{completions} completions, {datagrams} datagrams, {local_messages} local messages, {repairs} reconnects, \
             {darks} darknesses, {} packets in them, {told} announcements, {} marks, {cnps} CNPs",
            n.swallowed, n.marked
        )
    }
}

/// What a seed decides.
#[derive(Debug)]
struct Plan {
    addresses: Vec<IpAddr>,
    faults: Faults,
    id_hidden: bool,
    burst: BurstLimits,
    links: Vec<LinkPlan>,
    mailboxes: Vec<usize>,
    shared: Vec<bool>,
    actions: u32,
    /// Chance in a thousand that an action is to break a connection.
    kill: u32,
    /// Chance in a thousand that an action is to stop a send queue, or let it go on.
    pause: u32,
    pace: Duration,
    congestion: CongestionPolicy,
}

const SHARED_DEPTH: u32 = 24;

impl Plan {
    fn new(rng: &mut Rng, mend_icrc: bool) -> Self {
        let nodes = rng.between(2, 3) as usize;
        let six = rng.permille(300);
        let id_hidden = !six && rng.permille(200) && !mend_icrc;
        let address = |n: usize| match six {
            false => IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1 + n as u8)),
            true => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1 + n as u16)),
        };
        let shared: Vec<bool> = (0..nodes).map(|_| rng.permille(400)).collect();
        let dooms = rng.permille(250);
        let faults = faults(rng, id_hidden, mend_icrc);
        // Then only the dark loses packets, and that costs no retry.
        let harmless = faults.loss + faults.corruption + faults.reordering + faults.mtu_step == 0;
        let shuffled = faults.duplication + faults.reordering > 0;
        let links =
            (0..rng.between(1, 5)).map(|_| link_plan(rng, nodes, &shared, dooms, [shuffled, harmless])).collect();
        let mailboxes = if rng.permille(400) { rng.between(1, 4) } else { 0 };
        Self {
            addresses: (0..nodes).map(address).collect(),
            faults,
            id_hidden,
            burst: BurstLimits {
                max_packets: rng.between(1, 60) as u16,
                max_bytes: rng.between(5_000, 64_000) as u32,
                ip_id: if rng.permille(500) { IpIdRule::CountsFromZero } else { IpIdRule::AlwaysZero },
            },
            links,
            mailboxes: (0..mailboxes).map(|_| rng.below(nodes as u64) as usize).collect(),
            shared,
            actions: rng.between(60, 700) as u32,
            kill: if rng.permille(250) { 10 } else { 0 },
            pause: if rng.permille(200) { 50 } else { 0 },
            pace: Duration::from_micros(rng.between(1, 60)),
            congestion: congestion(rng),
        }
    }
}

/// Lines from slow to fast, some of which are paced from the beginning. At the lowest rate a packet takes less than the shortest ACK timer.
fn congestion(rng: &mut Rng) -> CongestionPolicy {
    let rate = Bps::from_mbps(*rng.pick(&[300, 1_000, 100_000]));
    let line =
        Line { rate, rtt: Duration::from_micros(rng.below(300)), is_narrow: rng.permille(100), ..Line::default() };
    let max = if rng.permille(100) { Bps::from_mbps(rate.as_bps() / 2_000_000) } else { Bps::ZERO };
    let parameters =
        Parameters { rpg_max_rate: max, rpg_min_rate: Bps::from_mbps(rng.between(100, 150)), ..Parameters::default() };
    CongestionPolicy {
        enabled: rng.permille(900),
        tuning: Tuning::new(parameters, line).unwrap(),
        reacting: if rng.permille(500) { vec!["0.0.0.0/0".parse::<IpPrefix>().unwrap()] } else { vec![] },
    }
}

fn link_plan(rng: &mut Rng, nodes: usize, shared: &[bool], dooms: bool, [shuffled, harmless]: [bool; 2]) -> LinkPlan {
    let from = rng.below(nodes as u64) as usize;
    let to = if rng.permille(200) { from } else { (from + 1) % nodes };
    let kind = if rng.permille(250) { QpType::Uc } else { QpType::Rc };
    let mtu = *rng.pick(&[PathMtu::B256, PathMtu::B256, PathMtu::B512, PathMtu::B1024, PathMtu::B4096]);
    let message_max = *rng.pick(&[64, 700, 2048, 2048, 5000, 20_000]);
    let shares = |node: usize| kind == QpType::Rc && shared[node];
    LinkPlan {
        kind,
        nodes: [from, to],
        mtu,
        message_max: if shares(from) || shares(to) { 2048 } else { message_max },
        depth: rng.between(1, 16) as u32,
        shared_receives: [shares(from), shares(to)],
        retries: if harmless { 0 } else { 7 },
        timeout: rng.between(8, 12) as u8,
        rnr_timer: rng.between(1, 12) as u8,
        reads: rng.between(1, 8) as u8,
        inline: *rng.pick(&[0, 64, 512]),
        doom: if dooms { 40 } else { 0 },
        shuffled,
        windows: kind == QpType::Rc && rng.permille(300),
    }
}

fn faults(rng: &mut Rng, id_hidden: bool, mend_icrc: bool) -> Faults {
    let delay = Duration::from_micros(rng.between(1, 200));
    let marks = *rng.pick(&[0, 2, 30, 1000]);
    let harm = [0, 5, 20, 50][rng.below(4) as usize];
    let mut chance = |share: u32| if rng.permille(700) { rng.below(u64::from(harm * share / 2) + 1) as u32 } else { 0 };
    Faults {
        loss: chance(2),
        duplication: chance(2),
        // Without the IP ID the ICRC is a check of 16 bits: chance would get through.
        corruption: if id_hidden { 0 } else { chance(1) + if mend_icrc { 100 } else { 0 } },
        reordering: chance(4),
        marks,
        mtu_step: if harm > 0 && chance(1) > 0 { 1 } else { 0 },
        delay,
        detour: Duration::from_micros(rng.between(1, 3000)),
        mend_icrc,
    }
}

/// Runs one seed. The error says what was found wrong.
pub fn run(seed: u64, mend_icrc: bool, trace: bool) -> Result<Summary, String> {
    let mut rng = Rng::new(seed);
    let plan = Plan::new(&mut rng, mend_icrc);
    if trace {
        println!("{plan:#?}");
    }
    let mut world = World::new(rng, plan, trace);
    world.work()?;
    world.drain()?;
    world.check()
}

struct World {
    rng: Rng,
    plan: Plan,
    now: Instant,
    since: Instant,
    nodes: Vec<Node>,
    links: Vec<Link>,
    datagrams: Datagrams,
    network: Network,
    actual: Memories,
    images: Images,
    summary: Summary,
    events_now: u32,
    darkness: Darkness,
}

impl World {
    fn new(mut rng: Rng, plan: Plan, trace: bool) -> Self {
        let now = Instant::from_ns(rng.below(1 << 50));
        let mut layouts: Vec<Layout> = plan.addresses.iter().map(|_| Layout::default()).collect();
        let mut links: Vec<Link> = plan.links.iter().map(|p| Link::new(&mut rng, p.clone(), &mut layouts)).collect();
        let mut datagrams = Datagrams::new(&plan.mailboxes, &mut layouts);
        let shared: Vec<Option<Places>> = plan
            .shared
            .iter()
            .zip(&mut layouts)
            .map(|(&shares, layout)| shares.then(|| Places::new(layout, SHARED_DEPTH as usize, 2048 + 8)))
            .collect();
        let mut nodes = Vec::new();
        for (n, places) in shared.into_iter().enumerate() {
            let config = EngineConfig {
                addresses: vec![plan.addresses[n]],
                pkeys: vec![0xffff],
                worker: Worker::ONLY,
                key_secret: [rng.next() as u8; 32],
                qpn_seed: (rng.below(1 << 20) << 4) + ((n as u64) << 22),
                burst: plan.burst,
                limits: TransportLimits::default(),
                hold: HoldPolicy::default(),
                congestion: plan.congestion.clone(),
                circuits: CircuitPlan::default(),
            };
            let len = layouts[n].len().max(4096);
            let mut node = Node::new(&mut rng, config, len, now, plan.id_hidden);
            if let Some(places) = places {
                node.share_receives(places, SHARED_DEPTH);
            }
            nodes.push(node);
        }
        let mut images = nodes.iter().map(|n| vec![0; n.memory.len()]).collect();
        for link in &mut links {
            link.open(&mut Around { rng: &mut rng, nodes: &mut nodes, now, images: &mut images });
        }
        datagrams.open(&mut nodes, now);
        let actual = Memories(nodes.iter().map(|n| Arc::clone(&n.memory)).collect());
        let span = plan.pace * plan.actions;
        let darkness = Darkness::new(&mut rng, now, span, &plan.addresses);
        let network = Network::new(rng.fork(), plan.faults.clone(), darkness.blackouts.clone(), trace);
        Self {
            rng,
            plan,
            now,
            since: now,
            nodes,
            links,
            datagrams,
            network,
            actual,
            images,
            summary: Summary::default(),
            events_now: 0,
            darkness,
        }
    }

    /// Random work on a bad network.
    fn work(&mut self) -> Result<(), String> {
        let mut next_action = self.now;
        let mut actions = self.plan.actions;
        while actions > 0 {
            let next = self.next_event().map_or(next_action, |t| t.min(next_action));
            self.advance(next)?;
            if self.now >= next_action {
                self.act()?;
                actions -= 1;
                let pace = self.plan.pace.as_nanos() as u64;
                next_action = self.now + Duration::from_nanos(self.rng.below(2 * pace));
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), String> {
        let Self { rng, nodes, links, datagrams, images, now, .. } = self;
        let link = rng.below(links.len() as u64) as usize;
        let side = rng.below(2) as usize;
        let mut around = Around { rng, nodes, now: *now, images };
        match around.rng.below(20) {
            0..9 if links[link].broken.is_none() || around.rng.permille(200) => {
                links[link].post_random(side, &mut around)?;
            }
            9..14 if links[link].broken.is_none() => {
                for _ in 0..around.rng.between(1, 4) {
                    links[link].post_receive(side, &mut around)?;
                    around.nodes[links[link].ends[side].node].post_shared(around.rng);
                }
            }
            14..16 if !datagrams.boxes.is_empty() => {
                let at = around.rng.below(datagrams.boxes.len() as u64) as usize;
                datagrams.post_receive(at, &mut around)?;
                let at = around.rng.below(datagrams.boxes.len() as u64) as usize;
                datagrams.post_send(at, &mut around)?;
            }
            16..19 => {
                let node = around.rng.below(around.nodes.len() as u64) as usize;
                let most = around.rng.between(1, 40);
                self.poll(node, most)?;
            }
            _ => {}
        }
        if self.rng.permille(self.plan.pause) {
            let pause = self.rng.permille(400);
            self.links[link].pause(side, pause, &mut self.nodes, self.now);
        }
        let plan = &self.links[link].plan;
        // A new UC connection would take what is still under way for the old one.
        let can_be_cut = plan.kind == QpType::Rc && plan.shared_receives == [false; 2];
        if can_be_cut && self.rng.permille(self.plan.kill / 5) {
            self.poll_all()?;
            let Self { rng, nodes, links, actual, images, now, .. } = self;
            links[link]
                .cut_off(&mut Around { rng, nodes, now: *now, images }, actual)
                .map_err(|e| format!("connection {link}: {e}"))?;
            self.summary.repairs += 1;
        }
        if self.rng.permille(self.plan.kill) {
            let sides = *self.rng.pick(&[&[0][..], &[1], &[0, 1]]);
            self.links[link].kill(sides, &mut self.nodes, self.now);
        }
        self.repair(link)
    }

    fn repair(&mut self, link: usize) -> Result<(), String> {
        if self.links[link].broken.is_none() {
            return Ok(());
        }
        self.poll_all()?;
        let Self { rng, nodes, links, actual, images, now, .. } = self;
        let repaired = links[link]
            .repair(&mut Around { rng, nodes, now: *now, images }, actual)
            .map_err(|e| format!("connection {link}: {e}"))?;
        self.summary.repairs += u64::from(repaired);
        Ok(())
    }

    /// The network does no more harm: everything outstanding must come to its end.
    fn drain(&mut self) -> Result<(), String> {
        self.network.heal();
        for link in &mut self.links {
            (0..2).for_each(|side| link.pause(side, false, &mut self.nodes, self.now));
        }
        loop {
            self.poll_all()?;
            let mut settled = self.datagrams.outstanding() == 0;
            for link in 0..self.links.len() {
                self.repair(link)?;
                settled &= self.tend(link)?;
            }
            if settled {
                return Ok(());
            }
            let repair = self.links.iter().filter_map(|l| l.broken).map(|t| t + Duration::from_millis(41)).min();
            let Some(next) = self.next_event().into_iter().chain(repair).min() else {
                return Err(self.stuck("nothing more will happen"));
            };
            self.advance(next)?;
        }
    }

    /// Gives a connection what it needs to come to rest; says whether it has.
    fn tend(&mut self, link: usize) -> Result<bool, String> {
        let Self { rng, nodes, links, images, now, .. } = self;
        let link = &mut links[link];
        if link.broken.is_some() {
            return Ok(false);
        }
        let mut settled = true;
        let mut around = Around { rng, nodes, now: *now, images };
        for side in 0..2 {
            let stream = &link.streams[side];
            let reliable = stream.is_reliable();
            let owed = if reliable { stream.owed() } else { 0 };
            settled &= stream.requests.is_empty() && owed == 0;
            let unsignaled = stream.requests.back().is_some_and(|r| !r.signaled);
            if unsignaled {
                link.post_marker(side, &mut around)?;
            }
            if owed > link.ends[1 - side].receives.len() {
                link.post_receive(1 - side, &mut around)?;
                around.nodes[link.ends[1 - side].node].post_shared(around.rng);
            }
        }
        Ok(settled)
    }

    fn stuck(&self, why: &str) -> String {
        let mut text = format!("{why}, but work is outstanding:");
        for (n, link) in self.links.iter().enumerate() {
            for (side, stream) in link.streams.iter().enumerate() {
                text += &format!(
                    " [connection {n}.{side} {}: {} requests, {} messages owed, {} receives, broken {:?}]",
                    link.ends[side].qpn,
                    stream.requests.len(),
                    stream.owed(),
                    link.ends[side].receives.len(),
                    link.broken
                );
            }
        }
        text
    }

    /// The next moment at which something happens by itself.
    fn next_event(&self) -> Option<Instant> {
        let engines = self.nodes.iter().filter_map(|n| n.engine.poll_timeout());
        let word = self.darkness.words.first().map(|word| word.at.max(self.now));
        self.network.next_arrival().into_iter().chain(engines).chain(word).min()
    }

    /// Lets time pass until `to`, and happen what happens then.
    fn advance(&mut self, to: Instant) -> Result<(), String> {
        if to > self.now {
            self.now = to;
            self.events_now = 0;
        }
        self.events_now += 1;
        if self.events_now > EVENTS_AT_ONCE || self.now.since(self.since) > TIME_LIMIT {
            return Err(self.stuck("this does not come to an end"));
        }
        while self.darkness.words.first().is_some_and(|word| word.at <= self.now) {
            let word = self.darkness.words.remove(0);
            // Said of the same peers before, late: stale.
            let told = self.nodes[word.node].engine.handle_path_event(self.now, &word.event);
            self.summary.told += u64::from(told.is_ok());
        }
        while let Some(frame) = self.network.receive(self.now) {
            let to = frame.ip.destination();
            if let Some(node) = self.nodes.iter_mut().find(|n| n.address == to) {
                node.receive(self.now, frame);
            }
        }
        for node in &mut self.nodes {
            node.engine.handle_timeout(self.now);
            node.transmit(self.now, &mut self.network);
        }
        Ok(())
    }

    fn poll_all(&mut self) -> Result<(), String> {
        (0..self.nodes.len()).try_for_each(|node| self.poll(node, u64::MAX))
    }

    fn poll(&mut self, node: usize, most: u64) -> Result<(), String> {
        for _ in 0..most {
            let Some(wc) = self.nodes[node].poll() else { break };
            self.summary.completions += 1;
            self.complete(node, &wc).map_err(|e| format!("at {} ns: {e}", self.now.since(self.since).as_nanos()))?;
        }
        Ok(())
    }

    fn complete(&mut self, node: usize, wc: &Completion) -> Result<(), String> {
        let Self { nodes, links, datagrams, actual, images, plan, .. } = self;
        for (n, link) in links.iter_mut().enumerate() {
            if let Some(side) = (0..2).find(|&s| link.ends[s].node == node && link.ends[s].qpn == wc.qpn) {
                let mut shared = |wr_id| nodes[node].take_shared(wr_id);
                let done = link.complete(side, wc, &mut shared, actual, images);
                return done.map_err(|e| format!("connection {n} side {side} ({:?}): {e}", link.plan.kind));
            }
        }
        match datagrams.boxes.iter().position(|b| b.node == node && b.qpn == wc.qpn) {
            Some(at) => datagrams.complete(at, wc, &plan.addresses, actual, images),
            None => Err(format!("a completion of a queue pair that does not exist: {wc:?}")),
        }
    }

    /// At rest: the memory of every node must be what the model says, to the byte.
    fn check(mut self) -> Result<Summary, String> {
        for link in &mut self.links {
            for stream in &mut link.streams {
                stream.settle(&self.actual, &mut self.images)?;
            }
            link.forget_unreliable_receives(&self.actual, &mut self.images);
        }
        for (n, image) in self.images.iter().enumerate() {
            let now = self.actual.bytes(n, &(0..image.len()));
            if let Some(at) = (0..image.len()).find(|&at| now[at] != image[at]) {
                return Err(format!("node {n}: byte {at} is {:#x} and must be {:#x}", now[at], image[at]));
            }
        }
        for node in &self.nodes {
            self.summary.local_messages += node.engine.counters().local_messages;
            self.summary.darks += node.engine.counters().path_darks;
            self.summary.cnps += node.engine.counters().cnps_received;
            let lost = node.engine.counters().path_lost_queue_pairs;
            if lost > 0 {
                return Err(format!("{lost} queue pairs were given up in the dark"));
            }
        }
        self.summary.network = self.network.tally();
        self.summary.datagrams = self.datagrams.received;
        Ok(self.summary)
    }
}
