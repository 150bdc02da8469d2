//! Forged packets, each with what must become of it.

use crate::rng::Rng;
use crate::traffic::FIRST_PSN;
use holdfast::wire::{
    Aeth, AtomicEth, BTH_LEN, Bth, Datagram, Deth, HeaderBuf, IpHeader, Ipv4, Ipv6, Opcode, Psn, Qpn, ROCE_PORT, Reth,
    Syndrome, build_cnp, frame, icrc::Icrc,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// What must become of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Fate {
    /// The kernel's filter never shows it to the daemon, or cannot be relied on to: it is no RoCE packet for this host.
    Unseen,
    /// Dropped: no packet at all, or its ICRC is wrong.
    Damaged,
    /// Dropped: no queue pair has the number.
    UnknownQp,
    /// Dropped: not from the peer's address.
    WrongSource,
    /// Dropped: another partition.
    Pkey,
    /// Dropped: not the queue key.
    Qkey,
    /// Dropped: an opcode of another service.
    WrongService,
    /// Dropped: a congestion notification that is not from the peer.
    ForeignCnp,
    /// Taken: a congestion notification that nobody can tell from the peer's.
    Cnp,
    /// From the peer, as far as anybody can see, but of another place in the sequence: a duplicate, beyond a gap, or an answer to
    /// nothing.
    OutOfPlace,
}

/// What the forger knows: everything but what is in flight.
#[derive(Clone, Debug)]
pub(crate) struct Knowledge {
    /// Destination and source of its frames.
    pub(crate) macs: [[u8; 6]; 2],
    pub(crate) victim: (Ipv4Addr, Ipv6Addr),
    pub(crate) peer: (Ipv4Addr, Ipv6Addr),
    pub(crate) rc: Qpn,
    pub(crate) ud: Qpn,
    /// A queue pair that was destroyed.
    pub(crate) stale: Qpn,
    /// Numbers below this one's start and step are of nobody: all living ones.
    pub(crate) living: Vec<Qpn>,
    pub(crate) memory: u64,
    pub(crate) rkey: u32,
    /// Frames of the real traffic to the victim, whole.
    pub(crate) overheard: Vec<Vec<u8>>,
}

/// Makes one packet after the other.
pub(crate) struct Forger {
    know: Knowledge,
    rng: Rng,
    payload: Rng,
}

const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
/// SEND First, Last, Only; WRITE First, Middle, Only; READ Request, Compare Swap, Fetch Add (IBTA table 38).
const RC_REQUESTS: [u8; 9] = [0x00, 0x02, 0x04, 0x06, 0x07, 0x0a, 0x0c, 0x13, 0x14];
/// READ response Middle and Only, Acknowledge, ATOMIC Acknowledge.
const RC_RESPONSES: [u8; 4] = [0x0e, 0x10, 0x11, 0x12];
/// UC SEND Only and WRITE Only, UD SEND Only: with those an RC queue pair has nothing to do.
const OTHERS: [u8; 3] = [0x24, 0x2a, 0x64];
/// How far from every PSN of the real traffic a forged one stays: nobody could tell it from the peer's otherwise.
const FAR: u64 = 1 << 20;

impl Forger {
    pub(crate) fn new(know: Knowledge, seed: u64) -> Self {
        assert!(!know.overheard.is_empty());
        let mut rng = Rng::new(seed);
        let payload = rng.fork();
        Self { know, rng, payload }
    }

    /// One frame of this fate.
    pub(crate) fn forge_of(&mut self, fate: Fate) -> Vec<u8> {
        loop {
            let (frame, found) = self.forge();
            if found == fate {
                return frame;
            }
        }
    }

    /// One frame.
    pub(crate) fn forge(&mut self) -> (Vec<u8>, Fate) {
        match self.rng.below(100) {
            0..8 => self.noise(),
            8..30 => self.damaged(),
            30..40 => self.foreign_source(),
            40..48 => self.nobody(),
            48..52 => self.foreign_partition(),
            52..56 => self.foreign_service(),
            56..60 => self.wrong_qkey(),
            60..72 => self.out_of_place(),
            72..75 => self.cnp(),
            75..78 => self.mad(),
            78..84 => self.truncated(),
            84..88 => self.odd_ip_header(),
            88..92 => self.tagged(),
            92..96 => self.ipv6(),
            96..98 => self.fragment(),
            _ => self.somewhere_else(),
        }
    }

    fn v4(&self) -> Ipv4 {
        Ipv4::new(self.know.peer.0, self.know.victim.0)
    }

    fn stranger(&mut self) -> Ipv4 {
        let low = self.rng.between(3, 254) as u8;
        Ipv4::new(Ipv4Addr::new(198, 18, self.rng.next() as u8, low), self.know.victim.0)
    }

    fn far_behind(&mut self) -> Psn {
        Psn::new(FIRST_PSN[0]).minus(self.rng.between(FAR / 2, FAR) as u32)
    }

    fn random_bytes(&mut self, most: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.below(most) as usize];
        self.payload.fill(&mut bytes);
        bytes
    }

    /// Headers and payload of a packet whose parts are well formed: requests and responses at random.
    fn packet(&mut self, opcode: u8, qpn: Qpn, psn: Psn, pkey: u16) -> Vec<u8> {
        let (opcode, payload) = (Opcode::from_byte(opcode), self.random_bytes(300));
        let payload = if opcode.extension_len() > 16 { &[][..] } else { &payload[..] };
        let pad = payload.len().wrapping_neg() & 3;
        let bth = Bth { pkey, ack_req: true, pad_count: pad as u8, ..Bth::new(opcode, qpn, psn) };
        let mut headers = HeaderBuf::new(&bth);
        // Keys are guessed, or those of the real region.
        let rkey = if self.rng.permille(500) { self.know.rkey } else { self.rng.next() as u32 };
        let va = self.know.memory + self.rng.below(1 << 16) / 8 * 8;
        match opcode.extension_len() {
            4 => _ = headers.push_aeth(&Aeth { syndrome: Syndrome::parse(self.rng.next() as u8), msn: 1 }),
            8 if opcode == Opcode::UD_SEND_ONLY => {
                headers.push_deth(&Deth { qkey: self.rng.next() as u32 | 1 << 31, src_qp: Qpn::new(7) });
            }
            12 => {
                let aeth = Aeth { syndrome: Syndrome::parse(self.rng.next() as u8), msn: 1 };
                headers.push_aeth(&aeth).push_atomic_ack(self.rng.next());
            }
            16 => _ = headers.push_reth(&Reth { va, rkey, dma_len: payload.len() as u32 }),
            28 => {
                let (swap_or_add, compare) = (self.rng.next(), self.rng.next());
                headers.push_atomic(&AtomicEth { va, rkey, swap_or_add, compare });
            }
            _ => {}
        }
        [headers.as_bytes(), payload, &[0; 3][..pad]].concat()
    }

    /// Any RC packet.
    fn rc_packet(&mut self, qpn: Qpn, psn: Psn) -> Vec<u8> {
        let opcodes = if self.rng.permille(300) { &RC_RESPONSES[..] } else { &RC_REQUESTS };
        let opcode = *self.rng.pick(opcodes);
        self.packet(opcode, qpn, psn, 0xffff)
    }

    fn frame(&self, ethertype: u16, parts: &[&[u8]]) -> Vec<u8> {
        let [to, from] = &self.know.macs;
        [&[&to[..], &from[..], &ethertype.to_be_bytes()], parts].concat().concat()
    }

    fn datagram(&mut self, ip: &Ipv4, payload: &[u8]) -> Vec<u8> {
        let udp = self.udp(payload);
        self.frame(ETHERTYPE_V4, &[&ip.emit(udp.len() as u16), &udp])
    }

    fn udp(&mut self, payload: &[u8]) -> Vec<u8> {
        udp(0xc000 | self.rng.next() as u16, ROCE_PORT, payload)
    }

    /// A frame with a right ICRC.
    fn sealed(&mut self, ip: &Ipv4, packet: &[u8]) -> Vec<u8> {
        let port = 0xc000 | self.rng.next() as u16;
        let udp = udp(port, ROCE_PORT, &seal(&IpHeader::V4(*ip), port, packet));
        self.frame(ETHERTYPE_V4, &[&ip.emit(udp.len() as u16), &udp])
    }

    fn noise(&mut self) -> (Vec<u8>, Fate) {
        let bytes = self.random_bytes(200);
        let ip = self.v4();
        (self.datagram(&ip, &bytes), Fate::Damaged)
    }

    /// A real packet with up to three bits flipped, which a CRC of 32 bits always finds at this length.
    fn damaged(&mut self) -> (Vec<u8>, Fate) {
        let mut frame = self.rng.pick(&self.know.overheard).clone();
        // Ethernet 14, IPv4 20, UDP 8, then the BTH, whose byte 4 the ICRC does not cover.
        const START: u64 = 42;
        for _ in 0..self.rng.between(1, 3) {
            let at = match START + self.rng.below(frame.len() as u64 - START) {
                n if n == START + 4 => START,
                n => n,
            };
            frame[at as usize] ^= 1 << self.rng.below(7);
        }
        match frame::parse_ethernet(&frame).ok().and_then(|f| f.roce().map(|d| is_sealed(&d))) {
            // The flips took each other back.
            Some(true) => self.damaged(),
            _ => (frame, Fate::Damaged),
        }
    }

    fn foreign_source(&mut self) -> (Vec<u8>, Fate) {
        let (ip, psn, qpn) = (self.stranger(), Psn::new(self.rng.next() as u32), self.know.rc);
        let packet = self.rc_packet(qpn, psn);
        (self.sealed(&ip, &packet), Fate::WrongSource)
    }

    /// For a queue pair that is not there any more, or never was.
    fn nobody(&mut self) -> (Vec<u8>, Fate) {
        let qpn = match self.rng.below(2) {
            0 => self.know.stale,
            _ => Qpn::new(self.rng.between(2, (1 << 24) - 1) as u32),
        };
        if self.know.living.contains(&qpn) {
            return self.nobody();
        }
        let (ip, psn) = (self.v4(), Psn::new(self.rng.next() as u32));
        let packet = self.rc_packet(qpn, psn);
        (self.sealed(&ip, &packet), Fate::UnknownQp)
    }

    fn foreign_partition(&mut self) -> (Vec<u8>, Fate) {
        let (ip, psn, qpn) = (self.v4(), Psn::new(self.rng.next() as u32), self.know.rc);
        let pkey = self.rng.below(0x7fff) as u16;
        let opcode = *self.rng.pick(&RC_REQUESTS);
        let packet = self.packet(opcode, qpn, psn, pkey);
        (self.sealed(&ip, &packet), Fate::Pkey)
    }

    fn foreign_service(&mut self) -> (Vec<u8>, Fate) {
        let (ip, psn, qpn) = (self.v4(), Psn::new(self.rng.next() as u32), self.know.rc);
        let opcode = *self.rng.pick(&OTHERS);
        let packet = self.packet(opcode, qpn, psn, 0xffff);
        (self.sealed(&ip, &packet), Fate::WrongService)
    }

    /// A datagram with its queue key is anybody's right, so keys are wrong.
    fn wrong_qkey(&mut self) -> (Vec<u8>, Fate) {
        let (ip, psn, qpn) = (self.stranger(), Psn::new(self.rng.next() as u32), self.know.ud);
        let packet = self.packet(0x64, qpn, psn, 0xffff);
        (self.sealed(&ip, &packet), Fate::Qkey)
    }

    /// Everything right but the place in the sequence. Mostly behind: what is ahead makes the peer send again.
    fn out_of_place(&mut self) -> (Vec<u8>, Fate) {
        let ahead = self.rng.permille(20);
        let psn =
            if ahead { Psn::new(FIRST_PSN[0]).plus((1 << 22) + self.rng.below(FAR) as u32) } else { self.far_behind() };
        let (ip, qpn) = (self.v4(), self.know.rc);
        let packet = if ahead {
            let opcode = *self.rng.pick(&RC_REQUESTS);
            self.packet(opcode, qpn, psn, 0xffff)
        } else {
            // Of an answer, the place is in the victim's own sequence.
            let response = self.rng.permille(300);
            let psn = if response { Psn::new(FIRST_PSN[1]).minus(self.rng.between(FAR / 2, FAR) as u32) } else { psn };
            let opcode = if response { *self.rng.pick(&RC_RESPONSES) } else { *self.rng.pick(&RC_REQUESTS) };
            self.packet(opcode, qpn, psn, 0xffff)
        };
        (self.sealed(&ip, &packet), Fate::OutOfPlace)
    }

    fn cnp(&mut self) -> (Vec<u8>, Fate) {
        let (ip, fate) =
            if self.rng.permille(500) { (self.v4(), Fate::Cnp) } else { (self.stranger(), Fate::ForeignCnp) };
        let port = self.rng.next() as u16;
        let cnp = build_cnp(&IpHeader::V4(ip), port, self.know.rc, 0xffff);
        let udp = udp(port, ROCE_PORT, &cnp);
        (self.frame(ETHERTYPE_V4, &[&ip.emit(udp.len() as u16), &udp]), fate)
    }

    /// A management datagram for QP 1, which nobody has.
    fn mad(&mut self) -> (Vec<u8>, Fate) {
        let mut payload = [0; 256];
        self.rng.fill(&mut payload);
        payload[..4].copy_from_slice(&[1, 0x07, 2, 3]);
        let mut headers = HeaderBuf::new(&Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(self.rng.next() as u32)));
        headers.push_deth(&Deth { qkey: 0x8001_0000, src_qp: Qpn::GSI });
        let ip = self.v4();
        (self.sealed(&ip, &[headers.as_bytes(), &payload].concat()), Fate::UnknownQp)
    }

    /// Cut short at any place: within UDP's ports the filter cannot tell what it is; behind them somebody has to.
    fn truncated(&mut self) -> (Vec<u8>, Fate) {
        let mut frame = self.rng.pick(&self.know.overheard).clone();
        match self.rng.below(3) {
            // The frame.
            0 => {
                let length = self.rng.between(14, frame.len() as u64 - 1) as usize;
                frame.truncate(length);
                let fate = if length < 38 { Fate::Unseen } else { Fate::Damaged };
                (frame, fate)
            }
            // The UDP length, which is shorter or longer than what is there.
            1 => {
                let length = u16::from_be_bytes([frame[38], frame[39]]);
                // Zero would stand for "as long as there is" in jumbograms (RFC 2675), which RoCE has none of.
                let lie = if self.rng.permille(200) { 0 } else { length ^ self.rng.between(1, u16::MAX.into()) as u16 };
                frame[38..40].copy_from_slice(&lie.to_be_bytes());
                (frame, Fate::Damaged)
            }
            // The packet in a whole datagram.
            _ => {
                let bytes = frame[42..].to_vec();
                let length = self.rng.below(bytes.len() as u64) as usize;
                let ip = self.v4();
                (self.datagram(&ip, &bytes[..length]), Fate::Damaged)
            }
        }
    }

    /// Options, right or wrong, and header lengths that cannot be.
    fn odd_ip_header(&mut self) -> (Vec<u8>, Fate) {
        let (ip, psn, qpn) = (self.stranger(), Psn::new(self.rng.next() as u32), self.know.rc);
        let packet = self.rc_packet(qpn, psn);
        let words = self.rng.between(6, 15) as u8;
        let ip = Ipv4 { header_len: words * 4, ..ip };
        let mut options = vec![0; usize::from(words - 5) * 4];
        self.rng.fill(&mut options);
        let port = 0xc123;
        let udp = udp(port, ROCE_PORT, &seal(&IpHeader::V4(ip), port, &packet));
        let mut header = ip.emit(udp.len() as u16);
        match self.rng.below(3) {
            0 => {
                header[0] = 0x40 | self.rng.below(5) as u8;
                (self.frame(ETHERTYPE_V4, &[&header, &options, &udp]), Fate::Unseen)
            }
            1 => {
                // It says that it is longer than what is there.
                header[2..4].copy_from_slice(&u16::MAX.to_be_bytes());
                (self.frame(ETHERTYPE_V4, &[&header, &options, &udp]), Fate::Damaged)
            }
            // The ICRC does not cover options: it is right.
            _ => (self.frame(ETHERTYPE_V4, &[&header, &options, &udp]), Fate::WrongSource),
        }
    }

    /// VLAN tags: one is taken off by the kernel, of two the filter sees the second.
    fn tagged(&mut self) -> (Vec<u8>, Fate) {
        let (frame, _) = self.foreign_source();
        let tag = [&0x8100_u16.to_be_bytes()[..], &self.rng.below(4096).to_be_bytes()[6..]].concat();
        let tags = self.rng.between(1, 3) as usize;
        let frame = [&frame[..12], &tag.repeat(tags), &frame[12..]].concat();
        (frame, if tags == 1 { Fate::WrongSource } else { Fate::Unseen })
    }

    /// The same host, by its other address, with extension headers or without.
    fn ipv6(&mut self) -> (Vec<u8>, Fate) {
        let ip = Ipv6::new(self.know.peer.1, self.know.victim.1);
        let (psn, qpn) = (Psn::new(self.rng.next() as u32), self.know.rc);
        let packet = self.rc_packet(qpn, psn);
        let port = 0xc321;
        if self.rng.permille(500) {
            let udp = udp(port, ROCE_PORT, &seal(&IpHeader::V6(ip), port, &packet));
            return (self.frame(ETHERTYPE_V6, &[&ip.emit(udp.len() as u16), &udp]), Fate::WrongSource);
        }
        // Hop-by-hop, routing, fragment, destination options; of 8 bytes each, which say that UDP follows.
        let next = *self.rng.pick(&[0_u8, 43, 44, 60]);
        let ip = Ipv6 { next_header: next, extension_len: 8, ..ip };
        let udp = udp(port, ROCE_PORT, &seal(&IpHeader::V6(ip), port, &packet));
        let mut extension = [0; 8];
        self.rng.fill(&mut extension);
        extension[..2].copy_from_slice(&[17, 0]);
        (self.frame(ETHERTYPE_V6, &[&ip.emit(udp.len() as u16), &extension, &udp]), Fate::Unseen)
    }

    fn fragment(&mut self) -> (Vec<u8>, Fate) {
        let flags_fragment = match self.rng.below(3) {
            0 => 0x2000,
            1 => self.rng.between(1, 0x1fff) as u16,
            _ => 0x2000 | self.rng.between(1, 0x1fff) as u16,
        };
        let (ip, qpn, psn) = (Ipv4 { flags_fragment, ..self.v4() }, self.know.rc, self.far_behind());
        let packet = self.rc_packet(qpn, psn);
        (self.sealed(&ip, &packet), Fate::Unseen)
    }

    /// Another port, another host, no IP at all.
    fn somewhere_else(&mut self) -> (Vec<u8>, Fate) {
        let bytes = self.random_bytes(200);
        let frame = match self.rng.below(3) {
            0 => {
                let (ip, udp) = (self.v4(), udp(0xc000, ROCE_PORT + 1, &bytes));
                self.frame(ETHERTYPE_V4, &[&ip.emit(udp.len() as u16), &udp])
            }
            1 => {
                let ip = Ipv4::new(self.know.peer.0, Ipv4Addr::new(198, 18, 0, 99));
                self.datagram(&ip, &bytes)
            }
            // Local experimental EtherType: nobody is asked for his address by it.
            _ => self.frame(0x88b5, &[&bytes]),
        };
        (frame, Fate::Unseen)
    }
}

fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() + 8) as u16;
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat()
}

/// Puts the right ICRC behind a packet.
fn seal(ip: &IpHeader, source_port: u16, packet: &[u8]) -> Vec<u8> {
    let mut icrc = Icrc::start(ip, source_port, (8 + packet.len() + 4) as u16, &packet[..BTH_LEN]);
    icrc.update(&packet[BTH_LEN..]);
    [packet, &icrc.finish().to_le_bytes()].concat()
}

/// Whether a frame that was overheard is one whole packet with a right ICRC.
pub(crate) fn is_sealed(datagram: &Datagram<'_>) -> bool {
    holdfast::wire::icrc::verify(datagram, 0).is_good()
}
