//! Bursts: super-packets under construction.
//!
//! A burst holds packets of one flow that the kernel takes in one segmentation-offload send. All are of one size, only the last
//! may be shorter, as that is how the kernel cuts them apart again. Their bytes stand one behind the other, payload copied
//! from where it is: so the ICRC is that of the bytes that leave, also where a client writes them meanwhile (which is its
//! right while a peer READs), and the kernel takes a burst in one piece, from the cache.

use super::AddressVector;
use crate::memory::{AccessError, GatherList, Memory};
use crate::wire::icrc::Seed;
use crate::wire::{Datagram, Ecn, HeaderBuf, ICRC_LEN, IpHeader, Ipv4, UDP_LEN, pad_count};
use core::net::Ipv4Addr;

/// Bytes around each packet on an Ethernet line: preamble and gap 20, Ethernet 18, IPv4 20, UDP 8.
pub const PACKET_OVERHEAD: u32 = 66;

/// What the port writes into the IPv4 identification of a burst's packets. The ICRC covers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum IpIdRule {
    /// 0, 1, 2, … within a burst: the kernel's segmentation.
    #[default]
    CountsFromZero,
    /// 0 in every packet.
    AlwaysZero,
}

/// How large a burst the port takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstLimits {
    /// Packets.
    pub max_packets: u16,
    /// UDP payload bytes of all packets together.
    pub max_bytes: u32,
    /// What becomes of the IPv4 identification.
    pub ip_id: IpIdRule,
}

impl Default for BurstLimits {
    fn default() -> Self {
        Self { max_packets: 60, max_bytes: 64_000, ip_id: IpIdRule::CountsFromZero }
    }
}

/// One super-packet under construction. Cleared and used again it allocates nothing.
#[derive(Debug)]
pub struct Burst {
    limits: BurstLimits,
    av: AddressVector,
    bytes: Vec<u8>,
    packets: u16,
    /// UDP payload bytes of every packet but the last.
    segment: u32,
    /// A packet shorter than the segment was added: nothing may follow.
    closed: bool,
    /// Bytes on the line that packets with payload may make it.
    allowance: u64,
    /// Headers of a full segment, hashed.
    seed: Option<Seed>,
    /// Payload to be cut into packets.
    staged: GatherList,
    /// The first piece of `staged` that is not used up, and how many of its bytes are.
    next: usize,
    used: u32,
}

impl Burst {
    /// An empty burst for a port with these limits.
    pub fn new(limits: BurstLimits) -> Self {
        Self {
            limits,
            av: AddressVector::UNSET,
            bytes: Vec::with_capacity(limits.max_bytes as usize),
            packets: 0,
            segment: 0,
            closed: false,
            allowance: u64::MAX,
            seed: None,
            staged: GatherList::with_capacity(0, 64),
            next: 0,
            used: 0,
        }
    }

    /// Empties the burst; its memory stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.staged.clear();
        (self.packets, self.segment, self.closed, self.seed, self.next, self.used) = (0, 0, false, None, 0, 0);
        self.allowance = u64::MAX;
    }

    /// Limits it until it is cleared: no packet with payload is added that would make it more than so many bytes on the line. What
    /// carries none may go: holding answers back would hold the peer back.
    pub const fn set_allowance(&mut self, line_bytes: u64) {
        self.allowance = line_bytes;
    }

    /// Bytes that it takes on an Ethernet line.
    pub fn line_bytes(&self) -> u64 {
        self.bytes.len() as u64 + u64::from(self.packets) * u64::from(PACKET_OVERHEAD)
    }

    /// Where it goes and how.
    pub const fn flow(&self) -> &AddressVector {
        &self.av
    }

    /// Sets the ECN bits of all packets (the ICRC does not cover them): ECT(0) where the peer reacts to CNPs.
    pub const fn set_ecn(&mut self, ecn: Ecn) {
        self.av.traffic_class = self.av.traffic_class & !3 | ecn as u8;
    }

    /// Packets in it.
    pub const fn packet_count(&self) -> u16 {
        self.packets
    }

    /// Whether it holds no packet.
    pub const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// UDP payload bytes of every packet but the last, which may have fewer.
    pub const fn segment_bytes(&self) -> u32 {
        self.segment
    }

    /// UDP payload bytes of all packets.
    pub const fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The UDP payloads of all packets, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The packets as a receiver sees them.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let (av, rule) = (self.av, self.limits.ip_id);
        let packets = self.bytes.chunks(self.segment.max(1) as usize).enumerate();
        packets.filter_map(move |(n, bytes)| {
            let id = if rule == IpIdRule::CountsFromZero { n as u16 } else { 0 };
            Some(Datagram { ip: av.ip_header(id)?, source_port: av.source_port, bytes })
        })
    }

    /// Packets with `header` bytes before `payload` bytes that still fit.
    pub(super) fn room(&self, header: u32, payload: u32) -> u32 {
        let packet = packet_len(header, payload);
        let left = self.limits.max_bytes.saturating_sub(self.len_bytes() as u32);
        let room = u32::from(self.limits.max_packets.saturating_sub(self.packets)).min(left / packet);
        if self.allowance == u64::MAX {
            return room;
        }
        let allowed = self.allowance.saturating_sub(self.line_bytes()) / u64::from(packet + PACKET_OVERHEAD);
        room.min(u32::try_from(allowed).unwrap_or(u32::MAX))
    }

    /// Whether a packet with `header` bytes before `payload` bytes may follow on this flow. The first packet always may that the
    /// allowance covers.
    pub(super) fn fits(&self, av: &AddressVector, header: u32, payload: u32) -> bool {
        let len = packet_len(header, payload);
        self.fits_len(av, len) && (payload == 0 || self.allowance == u64::MAX || self.is_allowed(len))
    }

    fn is_allowed(&self, len: u32) -> bool {
        self.line_bytes() + u64::from(len + PACKET_OVERHEAD) <= self.allowance
    }

    fn fits_len(&self, av: &AddressVector, len: u32) -> bool {
        if self.is_empty() {
            return true;
        }
        !self.closed
            && len <= self.segment
            && self.packets < self.limits.max_packets
            && self.len_bytes() as u32 + len <= self.limits.max_bytes
            && self.av == *av
    }

    /// Gathers payload for the packets to come. What an earlier call gathered and no packet took is forgotten.
    pub(super) fn stage(
        &mut self,
        gather: impl FnOnce(&mut GatherList) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        (self.next, self.used) = (0, 0);
        self.staged.clear();
        gather(&mut self.staged)
    }

    /// Adds a packet: headers, the next `payload` bytes of what was staged, pad and ICRC. Only after [`Burst::fits`].
    ///
    /// The error is that of memory deregistered since it was staged; the burst is then as before.
    pub(super) fn push(
        &mut self,
        memory: &Memory,
        av: &AddressVector,
        headers: &HeaderBuf,
        payload: u32,
    ) -> Result<(), AccessError> {
        let headers = headers.as_bytes();
        let len = packet_len(headers.len() as u32, payload);
        if self.is_empty() {
            self.av = *av;
            self.segment = len;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(headers);
        let added = self.push_payload(memory, payload);
        if let Err(e) = added {
            self.bytes.truncate(start);
            return Err(e);
        }
        self.bytes.extend_from_slice(&[0; 3][..usize::from(pad_count(payload as usize))]);
        let icrc = self.seed_for(len).headers(self.bytes.get(start..).unwrap_or_default()).finish();
        self.bytes.extend_from_slice(&icrc.to_le_bytes());
        self.packets += 1;
        self.closed = len < self.segment;
        Ok(())
    }

    /// Adds a packet that no queue pair sends: `headers`, `payload`, pad and ICRC. `false` if it does not fit.
    pub fn push_bytes(&mut self, memory: &Memory, av: &AddressVector, headers: &HeaderBuf, payload: &[u8]) -> bool {
        let (header, len) = (headers.as_bytes().len() as u32, payload.len() as u32);
        let stage = |list: &mut GatherList| {
            list.push_bytes(payload);
            Ok(())
        };
        self.fits(av, header, len) && self.stage(stage).is_ok() && self.push(memory, av, headers, len).is_ok()
    }

    /// Adds a packet made elsewhere, from BTH to ICRC: for fault injection and measuring. `false` if it does not fit.
    pub fn push_raw(&mut self, av: &AddressVector, packet: &[u8]) -> bool {
        let len = packet.len() as u32;
        if !self.fits_len(av, len) {
            return false;
        }
        if self.is_empty() {
            self.av = *av;
            self.segment = len;
        }
        self.bytes.extend_from_slice(packet);
        self.packets += 1;
        self.closed = len < self.segment;
        true
    }

    fn push_payload(&mut self, memory: &Memory, mut payload: u32) -> Result<(), AccessError> {
        while payload > 0 {
            let Some(piece) = self.staged.pieces().get(self.next) else {
                // Fewer bytes were staged than the caller said: a list that shrank under us.
                return Err(AccessError::Deregistered);
            };
            let take = (piece.len() - self.used).min(payload);
            let is_whole = self.used + take == piece.len();
            memory.copy_piece(&self.staged, &piece.part(self.used, take), &mut self.bytes)?;
            payload -= take;
            self.used += take;
            if is_whole {
                (self.next, self.used) = (self.next + 1, 0);
            }
        }
        Ok(())
    }

    /// The hashed IP and UDP headers of the packet to be added.
    fn seed_for(&mut self, len: u32) -> Seed {
        let udp_len = u16::try_from(len as usize + UDP_LEN).unwrap_or(u16::MAX);
        let fresh = |av: &AddressVector| {
            // An address vector of two families is refused where it is set: its packet would go nowhere.
            let nowhere = IpHeader::V4(Ipv4::new(Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED));
            Seed::new(&IpHeader::new(av.source, av.destination).unwrap_or(nowhere), av.source_port, udp_len)
        };
        let base = match self.seed {
            Some(seed) if len == self.segment => seed,
            _ if len == self.segment => *self.seed.insert(fresh(&self.av)),
            _ => fresh(&self.av),
        };
        match self.limits.ip_id {
            IpIdRule::CountsFromZero if self.av.source.to_canonical().is_ipv4() => base.with_id_xor(self.packets),
            _ => base,
        }
    }
}

fn packet_len(header: u32, payload: u32) -> u32 {
    header + payload + u32::from(pad_count(payload as usize)) + ICRC_LEN as u32
}
