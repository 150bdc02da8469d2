//! What this kernel really does with identifications and super-packets, found out once, before anything depends on it.
//!
//! In a network namespace that exists for a moment, over its `lo`. Where namespaces are forbidden the rule is taken on
//! trust, and the port's notes say so.

use core::net::{IpAddr, Ipv4Addr};
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::arrival::{self, Arrival};
use super::ethtool;
use super::lanes::Lanes;
use super::mailbox::Mailbox;
use super::namespace::Namespace;
use super::packet::PacketSocket;
use super::port::PortCounters;
use super::sender::{Sender, Syscalls};
use crate::engine::Worker;
use crate::transport::{AddressVector, Burst, BurstLimits};
use crate::wire::IpHeader;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Findings {
    /// The identification of a single send.
    pub(crate) single_id: u16,
    /// Those of the segments of one super-packet.
    pub(crate) segment_ids: Vec<u16>,
    /// Whether `AF_PACKET` sees a super-packet whole, with its segment size (Linux 6.2).
    pub(crate) coalesced_packet: bool,
}

/// The findings for this process's kernel, or why there are none.
pub(crate) fn findings() -> &'static Result<Findings, String> {
    static FINDINGS: OnceLock<Result<Findings, String>> = OnceLock::new();
    FINDINGS.get_or_init(|| {
        let namespace = Namespace::new().map_err(|e| e.to_string())?;
        namespace.run(check).map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    })
}

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LANE: u16 = 0xc000;
const SEGMENT_BYTES: usize = 64;
const SEGMENTS: usize = 3;
/// Loopback delivers in microseconds; a loaded machine may take its time.
const PATIENCE_MS: u16 = 2_000;
const BUFFER_BYTES: usize = 1 << 20;

fn check() -> io::Result<Findings> {
    let mut loopback = Loopback::open()?;
    let single_id = loopback.identifications(1)?.first().copied().unwrap_or(u16::MAX);
    let coalesced_packet = loopback.send(SEGMENTS)? == SEGMENTS
        && loopback.receive(|arrival| arrival.segment_bytes == SEGMENT_BYTES)?.is_some_and(|whole| whole);
    ethtool::switch_off("lo", ethtool::UDP_SEGMENTATION)?;
    // What an older kernel lost or cut up of the super-packet before is not to be mistaken for the segments to come.
    let mut loopback = Loopback::open()?;
    Ok(Findings { single_id, segment_ids: loopback.identifications(SEGMENTS)?, coalesced_packet })
}

/// A sender and a tap, both on `lo`.
struct Loopback {
    tap: PacketSocket,
    mailbox: Mailbox,
    sender: Sender,
}

impl Loopback {
    fn open() -> io::Result<Self> {
        let interface = nix::net::if_::if_nametoindex("lo")?;
        Ok(Self {
            tap: PacketSocket::open(interface, &[HERE], Worker::ONLY, true, BUFFER_BYTES)?,
            mailbox: Mailbox::new(1),
            sender: Sender::new(Lanes::new(1, BUFFER_BYTES), Box::new(Syscalls), interface),
        })
    }

    /// Sends one burst of so many packets; gives back how many the kernel took.
    fn send(&mut self, packets: usize) -> io::Result<usize> {
        let flow = AddressVector {
            source: HERE,
            destination: HERE,
            source_port: LANE,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        let mut burst = Burst::new(BurstLimits { max_packets: SEGMENTS as u16, ..BurstLimits::default() });
        for _ in 0..packets {
            burst.push_raw(&flow, &[0; SEGMENT_BYTES]);
        }
        let mut counters = PortCounters::default();
        self.sender.send(core::slice::from_ref(&burst), &mut counters);
        match self.sender.poll_refusal() {
            Some(refusal) => Err(io::Error::from_raw_os_error(refusal.errno)),
            None => Ok(counters.transmitted_packets as usize),
        }
    }

    fn identifications(&mut self, packets: usize) -> io::Result<Vec<u16>> {
        self.send(packets)?;
        let mut ids = Vec::new();
        while ids.len() < packets {
            let id = self.receive(|arrival| match arrival.ip {
                IpHeader::V4(ip) => ip.id,
                IpHeader::V6(_) => None,
            })?;
            let Some(id) = id.flatten() else { break };
            ids.push(id);
        }
        Ok(ids)
    }

    /// Waits for what comes next; `None` when nothing does.
    fn receive<T>(&mut self, look: impl FnOnce(&Arrival<'_>) -> T) -> io::Result<Option<T>> {
        let socket = self.tap.socket.as_fd();
        poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], PollTimeout::from(PATIENCE_MS))?;
        let Some(message) = self.mailbox.next(socket)? else { return Ok(None) };
        Ok(arrival::of_frame(&message, self.tap.link, self.tap.has_vnet, &[HERE]).ok().map(|arrival| look(&arrival)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::io::namespace;

    #[test]
    fn this_kernel_keeps_the_identification_rule() {
        namespace::run_test("io::self_check::tests::this_kernel_keeps_the_identification_rule", || {
            let findings = findings().as_ref().unwrap();
            assert_eq!((findings.single_id, findings.segment_ids.as_slice()), (0, &[0, 1, 2][..]));
        });
    }
}
