//! Two engines with a port each, polled by one thread each: RDMA without daemons and clients.

use std::slice;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time;

use holdfast::io::{Port, PortSettings, SocketPort, open};
use holdfast::memory::Keys;
use holdfast::time::Instant;
use holdfast::transport::{Burst, Completion, SendOp, WcOpcode, WcStatus};
use holdfast::wire::Qpn;

use crate::engine_pair::{Device, Pair};
use crate::stage;

/// A message that does not come for so long is lost.
const PATIENCE: time::Duration = time::Duration::from_secs(5);
const BYTES: u32 = 8;
/// Where messages arrive in each device's memory; they leave from its beginning.
const INBOX: u64 = 4096;

/// Half a round trip of 8-byte messages, in microseconds.
pub(crate) fn ping_pong(is_write: bool, time: time::Duration) -> f64 {
    let namespaces = stage::pair();
    let mut pair = Pair::new();
    assert_eq!(pair.exchange(), 0, "nothing is posted yet");
    let Pair { a, b, qpn_a, qpn_b, now } = pair;
    let (keys_a, keys_b) = (a.keys, b.keys);
    // In its namespace: a port makes sockets when it first needs them.
    let side = |index: usize, device, qpn, peer| {
        namespaces[index].enter().unwrap();
        let settings = PortSettings {
            interface: Some(stage::INTERFACES[index].to_owned()),
            addresses: vec![stage::ADDRESSES[index]],
            ..PortSettings::default()
        };
        Side::new(device, now, qpn, peer, open(&settings).unwrap(), is_write)
    };
    let (ready, end) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut pong = side(1, b, qpn_b, keys_a);
            ready.wait();
            while pong.receive(&end) {
                pong.send();
            }
        });
        let ping = scope.spawn(|| {
            let mut ping = side(0, a, qpn_a, keys_b);
            ready.wait();
            let (start, mut samples) = (time::Instant::now(), Vec::new());
            while start.elapsed() < time {
                let begin = time::Instant::now();
                ping.send();
                assert!(ping.receive(&end));
                samples.push(begin.elapsed().as_secs_f64() * 1e6 / 2.0);
            }
            end.store(true, Ordering::Relaxed);
            stage::median(samples)
        });
        ping.join().unwrap()
    })
}

struct Side {
    device: Device,
    qpn: Qpn,
    peer: Keys,
    port: SocketPort,
    burst: Burst,
    completions: Vec<Completion>,
    /// When `start` was, by the engine's clock.
    origin: Instant,
    start: time::Instant,
    is_write: bool,
    /// As in a worker, what came is answered in the next turn.
    is_answering: bool,
    sent: u64,
    received: u64,
    arrived: u64,
}

impl Side {
    fn new(mut device: Device, now: Instant, qpn: Qpn, peer: Keys, port: SocketPort, is_write: bool) -> Self {
        let inbox = device.sge(INBOX, BYTES);
        device.receive(now, qpn, 0, inbox);
        let burst = Burst::new(port.capabilities().burst);
        let (start, completions) = (time::Instant::now(), vec![Completion::default(); 16]);
        Self {
            device,
            qpn,
            peer,
            port,
            burst,
            completions,
            origin: now,
            start,
            is_write,
            is_answering: false,
            sent: 0,
            received: 0,
            arrived: 0,
        }
    }

    fn now(&self) -> Instant {
        self.origin + self.start.elapsed()
    }

    fn send(&mut self) {
        self.sent += 1;
        assert!(self.device.memory.write(0, &self.sent.to_ne_bytes()));
        let op = if self.is_write { SendOp::Write { va: INBOX, rkey: self.peer.rkey } } else { SendOp::Send };
        let (now, sge) = (self.now(), self.device.sge(0, BYTES));
        self.device.send(now, self.qpn, self.sent, op, sge);
        self.turn();
    }

    /// Polls until the next message has come; false at the end.
    fn receive(&mut self, end: &AtomicBool) -> bool {
        self.received += 1;
        let start = time::Instant::now();
        while !end.load(Ordering::Relaxed) {
            self.turn();
            let mut word = [0; BYTES as usize];
            assert!(self.device.memory.read(INBOX, &mut word));
            let has_come = self.is_write || self.arrived == self.received;
            if has_come && u64::from_ne_bytes(word) == self.received {
                return true;
            }
            assert!(start.elapsed() < PATIENCE, "a message was lost");
            thread::yield_now();
        }
        false
    }

    /// What a worker does.
    fn turn(&mut self) {
        let now = self.now();
        let Self { device, port, burst, .. } = self;
        let received = port.receive(16, &mut |datagram| device.engine.handle_datagram(now, datagram)).unwrap();
        self.is_answering = received > 0 && !self.is_answering;
        if device.engine.poll_timeout().is_some_and(|due| due <= now) {
            device.engine.handle_timeout(now);
        }
        while !self.is_answering && device.engine.poll_transmit(now, burst) {
            assert_eq!(port.send(slice::from_ref(burst)).unwrap(), 1);
        }
        let count = self.device.poll(&mut self.completions);
        for completion in self.completions.iter().take(count) {
            assert_eq!(completion.status, WcStatus::Success);
            if completion.opcode == WcOpcode::Recv {
                self.arrived += 1;
                let inbox = self.device.sge(INBOX, BYTES);
                self.device.receive(now, self.qpn, self.arrived, inbox);
            }
        }
    }
}
