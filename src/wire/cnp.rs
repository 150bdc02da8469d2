//! Congestion notification packets (annex A17.9.3).

use super::{BTH_LEN, Bth, ICRC_LEN, IpHeader, Opcode, Psn, Qpn, UDP_LEN, icrc::Icrc};

/// Bytes reserved after the BTH, all 0.
const RESERVED_LEN: usize = 16;
/// Bytes of a CNP, BTH to ICRC.
pub const CNP_LEN: usize = BTH_LEN + RESERVED_LEN + ICRC_LEN;

/// The packet that asks `dest_qp` at the destination of `ip` to slow down: BECN 1, PSN 0, ICRC over the headers that it will travel
/// under. Its DSCP is the caller's (`ip`); it is never marked itself.
pub fn build_cnp(ip: &IpHeader, source_port: u16, dest_qp: Qpn, pkey: u16) -> [u8; CNP_LEN] {
    let bth = Bth { becn: true, pkey, ..Bth::new(Opcode::CNP, dest_qp, Psn::new(0)) };
    let mut packet = [0; CNP_LEN];
    packet[..BTH_LEN].copy_from_slice(&bth.emit());
    let covered = CNP_LEN - ICRC_LEN;
    let icrc = Icrc::start(ip, source_port, (UDP_LEN + CNP_LEN) as u16, &packet[..covered]).finish();
    packet[covered..].copy_from_slice(&icrc.to_le_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::super::{Datagram, Packet, icrc};
    use super::*;

    #[test]
    fn a_cnp_is_a_well_formed_packet() {
        let ip = IpHeader::new([198, 18, 0, 2].into(), [198, 18, 0, 3].into()).unwrap();
        let bytes = build_cnp(&ip, 0xc123, Qpn::new(0x11), 0xffff);
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.opcode(), packet.dest_qp(), packet.psn().get()), (Opcode::CNP, Qpn::new(0x11), 0));
        assert!(packet.bth().becn && !packet.bth().fecn);
        assert_eq!(packet.payload(), [0; RESERVED_LEN]);
        let datagram = Datagram { ip, source_port: 0xc123, bytes: &bytes };
        assert_eq!(icrc::verify(&datagram, 0), icrc::Verdict::Good);
    }
}
