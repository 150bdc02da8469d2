//! The invariant CRC (IBTA 7.8.1, annex A17.3.3).
//!
//! CRC-32 (Ethernet polynomial, reflected), little-endian on the wire, over eight bytes of ones (the LRH that is not there), the
//! IP header, UDP, BTH and all that follows, pad included. What a switch may change counts as ones: TOS, TTL and checksum of
//! IPv4; traffic class, flow label and hop limit of IPv6; the UDP checksum; byte 4 of the BTH (FECN, BECN).
//!
//! **The IPv4 identification is covered.** A UDP socket does not show it to its receiver. But a CRC is linear: the difference
//! between the CRC found and the one computed with another ID depends on nothing but the difference of the IDs and the
//! number of bytes behind them. [`verify`] goes that way back; what remains is a check of 16 bits instead of 32. [`Seed::with_id_xor`]
//! goes it forth, so the packets of a burst share one pass over the IP header.

use super::{Datagram, ICRC_LEN, IpHeader, Ipv4, Ipv6, ROCE_PORT, UDP_LEN, crc_math};
use crc32fast::Hasher;

/// The CRC of eight bytes of ones.
const AFTER_LRH: u32 = 0x2144_df1c;
/// The byte of the BTH that counts as ones.
const RESV8A: usize = 4;
/// IPv4 and UDP bytes behind the identification field.
const BEHIND_ID: usize = Ipv4::LEN - 6 + UDP_LEN;

/// The CRC over IP and UDP headers: where the packets of one flow and size begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seed(u32);

impl Seed {
    /// Hashes the headers of a datagram to [`ROCE_PORT`]; `udp_len` counts UDP header and payload, ICRC included. An unknown IPv4
    /// ID counts as 0.
    pub fn new(ip: &IpHeader, source_port: u16, udp_len: u16) -> Self {
        let mut b = [0xff; Ipv6::LEN + UDP_LEN];
        let ip_len = match ip {
            IpHeader::V4(h) => {
                b[..Ipv4::LEN].copy_from_slice(&h.emit_masked(udp_len));
                Ipv4::LEN
            }
            IpHeader::V6(h) => {
                b[..Ipv6::LEN].copy_from_slice(&h.emit(udp_len));
                b[0] |= 0x0f;
                b[1..4].fill(0xff);
                b[7] = 0xff;
                Ipv6::LEN
            }
        };
        // The UDP checksum stays ones.
        b[ip_len..ip_len + 2].copy_from_slice(&source_port.to_be_bytes());
        b[ip_len + 2..ip_len + 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        b[ip_len + 4..ip_len + 6].copy_from_slice(&udp_len.to_be_bytes());
        let mut hasher = Hasher::new_with_initial(AFTER_LRH);
        hasher.update(&b[..ip_len + UDP_LEN]);
        Self(hasher.finalize())
    }

    /// The seed of the same IPv4 headers with another ID, the old one exclusive-or `ids`. Two look-ups, no pass over the header.
    #[must_use]
    pub fn with_id_xor(self, ids: u16) -> Self {
        Self(self.0 ^ crc_math::advance_u16::<BEHIND_ID>(ids))
    }

    /// Hashes the packet from the BTH on, as far as `bytes` goes (at least the BTH must be in it), with byte 4 as ones.
    ///
    /// In one pass, which the CRC takes at full speed: what byte 4 lacks to ones is added to the seed instead.
    pub fn headers(self, bytes: &[u8]) -> Icrc {
        let lacking = bytes.get(RESV8A).map_or(0, |byte| !byte);
        let mut hasher = Hasher::new_with_initial(self.0 ^ crc_math::before_fifth_byte(lacking));
        hasher.update(bytes);
        Icrc(hasher)
    }
}

/// An ICRC under way, past the headers.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Begins with IP, UDP and the transport headers: see [`Seed::new`] and [`Seed::headers`].
    pub fn start(ip: &IpHeader, source_port: u16, udp_len: u16, headers: &[u8]) -> Self {
        Seed::new(ip, source_port, udp_len).headers(headers)
    }

    /// Hashes a piece of payload, or the pad.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The ICRC; on the wire it is little-endian.
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }
}

/// What the ICRC says of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Right. Where the IPv4 ID is unknown: right with the ID that was guessed.
    Good,
    /// The IPv4 ID is unknown, and this one makes the ICRC right: 16 bits of proof instead of 32.
    GoodWithId(u16),
    /// Wrong: count it, drop it, answer nothing.
    Bad,
}

impl Verdict {
    /// Whether the packet may be used.
    pub const fn is_good(self) -> bool {
        !matches!(self, Self::Bad)
    }
}

/// Checks the ICRC of a received packet. `id_hint` is the IPv4 ID to try first where the header is unknown (the sender's rule: 0,
/// or the index in a coalesced receive).
pub fn verify(datagram: &Datagram<'_>, id_hint: u16) -> Verdict {
    let Some((covered, carried)) = datagram.bytes.split_last_chunk::<ICRC_LEN>() else {
        return Verdict::Bad;
    };
    let Datagram { ip, source_port, .. } = datagram;
    let seed = Seed::new(ip, *source_port, datagram.udp_len());
    let carried = u32::from_le_bytes(*carried);
    let computed = |seed: Seed| seed.headers(covered).finish();
    match ip {
        IpHeader::V4(Ipv4 { id: None, .. }) => match carried ^ computed(seed.with_id_xor(id_hint)) {
            0 => Verdict::Good,
            difference => match crc_math::rewind_u16(difference, BEHIND_ID + covered.len()) {
                Some(ids) => Verdict::GoodWithId(id_hint ^ ids),
                None => Verdict::Bad,
            },
        },
        _ if carried == computed(seed) => Verdict::Good,
        _ => Verdict::Bad,
    }
}
