//! What a device sends and tells, to look at.

use crate::pair::Device;
use holdfast::time::Instant;
use holdfast::transport::{Burst, BurstLimits, Completion};
use holdfast::wire::{Datagram, IpHeader};

/// A packet on its way.
#[derive(Clone)]
pub struct Frame {
    pub ip: IpHeader,
    pub bytes: Vec<u8>,
}

impl Frame {
    pub fn datagram(&self) -> Datagram<'_> {
        Datagram { ip: self.ip, source_port: 0xc001, bytes: &self.bytes }
    }
}

impl Device {
    /// All packets that it has to send, burst by burst.
    pub fn bursts(&mut self, now: Instant) -> Vec<Vec<Frame>> {
        let mut burst = Burst::new(BurstLimits::default());
        let mut out = Vec::new();
        while self.engine.poll_transmit(now, &mut burst) {
            out.push(burst.datagrams().map(|d| Frame { ip: d.ip, bytes: d.bytes.to_vec() }).collect());
        }
        out
    }

    pub fn completions(&mut self) -> Vec<Completion> {
        let mut out = vec![Completion::default(); 64];
        let n = self.poll(&mut out);
        out.truncate(n);
        out
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        assert!(self.memory.write(at, bytes));
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.memory.read(at, &mut bytes));
        bytes
    }
}
