//! Unreliable datagrams: each may be lost or doubled, but what arrives is what somebody sent.

use crate::layout::{Layout, Places};
use crate::link::{Around, RECEIVE, cut};
use crate::model::{Images, Memories, Receive, scatter};
use crate::node::Node;
use holdfast::time::Instant;
use holdfast::transport::{
    AddressVector, AttrMask, Completion, Data, QpAttributes, QpCapabilities, QpState, QpType, RecvRequest, SendFlags,
    SendOp, SendRequest, UdAddress, WcFlags, WcOpcode, WcStatus,
};
use holdfast::wire::Qpn;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;

/// Bytes before the payload of a received datagram.
const GRH: usize = 40;
/// The longest datagram here.
const PAYLOAD_MAX: usize = 1024;
const DEPTH: usize = 8;
const QKEY: u32 = 0x1ee7_c0de;

struct Letter {
    to: usize,
    from: Qpn,
    imm: Option<u32>,
    data: Vec<u8>,
    good_key: bool,
}

struct PostedSend {
    wr_id: u64,
    local: Vec<Range<usize>>,
    signaled: bool,
}

/// A UD queue pair.
pub struct Mailbox {
    pub node: usize,
    pub qpn: Qpn,
    send_places: Places,
    receive_places: Places,
    receives: VecDeque<Receive>,
    sends: VecDeque<PostedSend>,
}

/// All UD queue pairs of a run, each of which may write to each.
pub struct Datagrams {
    pub boxes: Vec<Mailbox>,
    sent: Vec<Letter>,
    next_wr: u64,
    pub received: u64,
}

impl Datagrams {
    pub fn new(nodes: &[usize], layouts: &mut [Layout]) -> Self {
        let mailbox = |&node: &usize| Mailbox {
            node,
            qpn: Qpn::new(0),
            send_places: Places::new(&mut layouts[node], DEPTH, PAYLOAD_MAX + 8),
            receive_places: Places::new(&mut layouts[node], DEPTH, PAYLOAD_MAX + GRH),
            receives: VecDeque::new(),
            sends: VecDeque::new(),
        };
        Self { boxes: nodes.iter().map(mailbox).collect(), sent: Vec::new(), next_wr: 1, received: 0 }
    }

    pub fn open(&mut self, nodes: &mut [Node], now: Instant) {
        let caps = QpCapabilities { max_send_wr: DEPTH as u32, max_recv_wr: DEPTH as u32, ..QpCapabilities::default() };
        for mailbox in &mut self.boxes {
            let node = &mut nodes[mailbox.node];
            mailbox.qpn = node.create_qp(QpType::Ud, caps, false);
            let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
            let attributes = QpAttributes { qkey: QKEY, ..QpAttributes::default() };
            for (state, mask) in [
                (QpState::Init, init),
                (QpState::Rtr, AttrMask::STATE),
                (QpState::Rts, AttrMask::STATE | AttrMask::SQ_PSN),
            ] {
                let attributes = QpAttributes { state, ..attributes };
                node.engine.modify_qp(now, mailbox.qpn, &attributes, mask).expect("transition");
            }
        }
    }

    pub fn post_receive(&mut self, at: usize, around: &mut Around<'_>) -> Result<(), String> {
        let Around { rng, nodes, now, .. } = around;
        let mailbox = &mut self.boxes[at];
        let Some(place) = mailbox.receive_places.take() else { return Ok(()) };
        let receive = Receive { wr_id: self.next_wr | RECEIVE, area: cut(rng, place) };
        self.next_wr += 1;
        let node = &mut nodes[mailbox.node];
        let sges = node.sges(&receive.area);
        node.engine
            .post_recv(*now, mailbox.qpn, &RecvRequest { wr_id: receive.wr_id, sges: &sges })
            .map_err(|e| format!("a UD receive was refused: {e}"))?;
        mailbox.receives.push_back(receive);
        Ok(())
    }

    pub fn post_send(&mut self, at: usize, around: &mut Around<'_>) -> Result<(), String> {
        let Around { rng, nodes, now, images } = around;
        let to = rng.below(self.boxes.len() as u64) as usize;
        let (dest_qp, dest) = (self.boxes[to].qpn, nodes[self.boxes[to].node].address);
        let mailbox = &mut self.boxes[at];
        let Some(place) = mailbox.send_places.take() else { return Ok(()) };
        let mut data = vec![0; rng.below(PAYLOAD_MAX as u64 + 1) as usize];
        rng.fill(&mut data);
        let local = cut(rng, place.start..place.start + data.len());
        let node = &mut nodes[mailbox.node];
        node.write(place.start, &data);
        images[mailbox.node][place.start..place.start + data.len()].copy_from_slice(&data);
        let imm = rng.permille(500).then(|| rng.next() as u32);
        let good_key = rng.permille(950);
        let signaled = rng.permille(800);
        let av = AddressVector::between(node.address, dest, 0xc000 | at as u16);
        let request = SendRequest {
            wr_id: self.next_wr,
            op: imm.map_or(SendOp::Send, SendOp::SendImm),
            flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
            data: Data::Sges(&node.sges(&local)),
            datagram: Some(UdAddress { av, dest_qp, qkey: if good_key { QKEY } else { QKEY ^ 1 } }),
        };
        node.engine.post_send(*now, mailbox.qpn, &request).map_err(|e| format!("a datagram was refused: {e}"))?;
        mailbox.sends.push_back(PostedSend { wr_id: self.next_wr, local, signaled });
        self.sent.push(Letter { to, from: mailbox.qpn, imm, data, good_key });
        self.next_wr += 1;
        Ok(())
    }

    pub fn complete(
        &mut self,
        at: usize,
        wc: &Completion,
        addresses: &[IpAddr],
        actual: &Memories,
        images: &mut Images,
    ) -> Result<(), String> {
        if wc.status != WcStatus::Success {
            return Err(format!("a datagram failed: {wc:?}"));
        }
        let mailbox = &mut self.boxes[at];
        if wc.wr_id & RECEIVE == 0 {
            loop {
                let Some(sent) = mailbox.sends.pop_front() else { return Err(format!("nobody sent that: {wc:?}")) };
                mailbox.send_places.give(&sent.local);
                if sent.wr_id == wc.wr_id {
                    return if sent.signaled { Ok(()) } else { Err(format!("not asked for: {wc:?}")) };
                }
                if sent.signaled {
                    return Err(format!("{wc:?} came before the completion of {}", sent.wr_id));
                }
            }
        }
        let receive = mailbox.receives.pop_front().filter(|r| r.wr_id == wc.wr_id);
        let receive = receive.ok_or_else(|| format!("receives out of order: {wc:?}"))?;
        let got = actual.gather(mailbox.node, &receive.area);
        scatter(&mut images[mailbox.node], &receive.area, &got);
        mailbox.receive_places.give(&receive.area);
        self.received += 1;
        let len = (wc.byte_len as usize).checked_sub(GRH).ok_or("a datagram without a GRH")?;
        if wc.opcode != WcOpcode::Recv || !wc.flags.contains(WcFlags::GRH) {
            return Err(format!("not as a datagram is received: {wc:?}"));
        }
        let letter = self.sent.iter().find(|l| {
            l.to == at && l.from == wc.src_qp && l.good_key && l.imm == wc.imm && l.data[..] == got[GRH..GRH + len]
        });
        let letter = letter.ok_or_else(|| format!("nobody sent this datagram of {len} bytes: {wc:?}"))?;
        let sender = self.boxes.iter().find(|b| b.qpn == letter.from).ok_or("a sender that is gone")?;
        check_grh(&got[..GRH], addresses[sender.node], addresses[self.boxes[at].node])
    }

    /// Sends whose fate is not known.
    pub fn outstanding(&self) -> usize {
        self.boxes.iter().map(|b| b.sends.iter().filter(|s| s.signaled).count()).sum()
    }
}

/// The addresses must stand where verbs puts them: an IPv4 header in the last 20 bytes.
fn check_grh(grh: &[u8], source: IpAddr, destination: IpAddr) -> Result<(), String> {
    let right = match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => grh[20] == 0x45 && grh[32..36] == s.octets() && grh[36..40] == d.octets(),
        (IpAddr::V6(s), IpAddr::V6(d)) => grh[0] >> 4 == 6 && grh[8..24] == s.octets() && grh[24..40] == d.octets(),
        _ => false,
    };
    if right { Ok(()) } else { Err(format!("wrong GRH for {source} to {destination}: {grh:02x?}")) }
}
