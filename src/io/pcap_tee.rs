//! Writes what passes a port into a capture file, for tshark and for `holdfast decode`.

use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::SystemTime;

use etherparse::UdpHeader;

use super::port::{Capabilities, Port, PortCounters, PortError, Refusal};
use crate::transport::{Burst, IpIdRule};
use crate::wire::{Datagram, IpHeader, ROCE_PORT, UDP_LEN};

/// Magic number of a capture with nanoseconds, in the byte order of who wrote it.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
/// `LINKTYPE_RAW`: packets begin with the IP header.
const LINKTYPE_RAW: u32 = 101;
/// `LINKTYPE_ETHERNET`.
const LINKTYPE_ETHERNET: u32 = 1;
const SNAP_BYTES: u32 = 65_535;

/// What packets in the capture begin with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PcapLink {
    /// The IP header.
    #[default]
    RawIp,
    /// An Ethernet header with addresses of zeroes, for tools that want one.
    Ethernet,
}

/// A port that also writes each packet, in both directions, as classic pcap with nanoseconds.
///
/// Super-packets are written as the packets that they are on the wire. Where the port does not see a field (the IPv4
/// identification and flags of backend `udp`), the one that the sender's rule gives stands instead. UDP checksums are
/// right, the ICRC is the packet's own.
pub struct PcapTee {
    inner: Box<dyn Port>,
    file: Capture,
}

struct Capture {
    writer: Box<dyn Write + Send>,
    link: PcapLink,
    record: Vec<u8>,
    /// The error that ended the capture.
    failed: Option<io::Error>,
}

impl PcapTee {
    /// Begins a capture. Give it a buffered writer; it is flushed when the port is dropped.
    pub fn new(inner: Box<dyn Port>, mut writer: Box<dyn Write + Send>, link: PcapLink) -> io::Result<Self> {
        let linktype = match link {
            PcapLink::RawIp => LINKTYPE_RAW,
            PcapLink::Ethernet => LINKTYPE_ETHERNET,
        };
        let [major, minor] = VERSION.map(u16::to_ne_bytes);
        let header = [
            MAGIC_NANOSECONDS,
            u32::from_ne_bytes([major[0], major[1], minor[0], minor[1]]),
            0,
            0,
            SNAP_BYTES,
            linktype,
        ];
        writer.write_all(&header.map(u32::to_ne_bytes).concat())?;
        let file = Capture { writer, link, record: Vec::new(), failed: None };
        Ok(Self { inner, file })
    }

    /// Why the capture ended early, if it did: the port itself goes on.
    pub fn failure(&self) -> Option<&io::Error> {
        self.file.failed.as_ref()
    }
}

impl Capture {
    fn write(&mut self, ip: &IpHeader, source_port: u16, payload: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if let Err(error) = self.write_record(ip, source_port, payload) {
            self.failed = Some(error);
        }
    }

    fn write_record(&mut self, ip: &IpHeader, source_port: u16, payload: &[u8]) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let length = u16::try_from(payload.len() + UDP_LEN).map_err(io::Error::other)?;
        let mut udp = UdpHeader { source_port, destination_port: ROCE_PORT, length, checksum: 0 };
        let record = &mut self.record;
        record.clear();
        if self.link == PcapLink::Ethernet {
            let ethertype = if matches!(ip, IpHeader::V4(_)) { [0x08, 0x00] } else { [0x86, 0xdd] };
            record.extend([0; 12]);
            record.extend(ethertype);
        }
        let checksum = match ip {
            IpHeader::V4(ip) => {
                record.extend(ip.emit(length));
                udp.calc_checksum_ipv4_raw(ip.src.octets(), ip.dst.octets(), payload)
            }
            IpHeader::V6(ip) => {
                record.extend(ip.emit(length));
                udp.calc_checksum_ipv6_raw(ip.src.octets(), ip.dst.octets(), payload)
            }
        };
        udp.checksum = checksum.map_err(io::Error::other)?;
        record.extend(udp.to_bytes());
        record.extend(payload);
        let bytes = record.len() as u32;
        let header = [now.as_secs() as u32, now.subsec_nanos(), bytes, bytes];
        self.writer.write_all(&header.map(u32::to_ne_bytes).concat())?;
        self.writer.write_all(record)
    }

    fn write_burst(&mut self, burst: &Burst, rule: IpIdRule) {
        for (index, packet) in burst.bytes().chunks(burst.segment_bytes().max(1) as usize).enumerate() {
            if let Some(ip) = sent_header(burst, index as u16, rule) {
                self.write(&ip, burst.flow().source_port, packet);
            }
        }
    }
}

/// The IP header that packet `index` of a burst leaves with; `None` if the addresses are of two families.
pub(super) fn sent_header(burst: &Burst, index: u16, rule: IpIdRule) -> Option<IpHeader> {
    let flow = burst.flow();
    let mut ip = IpHeader::new(flow.source, flow.destination)?;
    match &mut ip {
        IpHeader::V4(ip) => {
            (ip.tos, ip.ttl) = (flow.traffic_class, flow.hop_limit);
            ip.id = Some(if rule == IpIdRule::CountsFromZero { index } else { 0 });
        }
        IpHeader::V6(ip) => {
            (ip.traffic_class, ip.hop_limit, ip.flow_label) = (flow.traffic_class, flow.hop_limit, flow.flow_label);
        }
    }
    Some(ip)
}

impl Drop for PcapTee {
    fn drop(&mut self) {
        // Nobody is left to tell of an error.
        let _ = self.file.writer.flush();
    }
}

impl Port for PcapTee {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&Datagram<'_>)) -> Result<usize, PortError> {
        let Self { inner, file } = self;
        inner.receive(budget, &mut |datagram| {
            file.write(&datagram.ip, datagram.source_port, datagram.bytes);
            sink(datagram);
        })
    }

    fn send(&mut self, bursts: &[Burst]) -> Result<usize, PortError> {
        // The rule that the bursts were built by: a refusal in this very send may change it for those to come.
        let rule = self.inner.capabilities().burst.ip_id;
        let taken = self.inner.send(bursts)?;
        for burst in bursts.iter().take(taken) {
            self.file.write_burst(burst, rule);
        }
        Ok(taken)
    }

    fn readable(&self) -> BorrowedFd<'_> {
        self.inner.readable()
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
