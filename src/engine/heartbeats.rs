//! Heartbeats on the wire: asked when a path is silent, answered whoever asks.

use super::{DropReason, Engine, Entry};
use crate::path::Heartbeat;
use crate::time::Instant;
use crate::transport::{AddressVector, Burst, BurstLimits};
use crate::wire::{Bth, Datagram, Deth, GSI_QKEY, HeaderBuf, MAD_LEN, Opcode, Packet, Psn, Qpn};
use chacha20::rand_core::Rng;
use core::net::IpAddr;

/// Answers that wait to be sent; more questions get none.
const MOST_WAITING: usize = 64;

impl Engine {
    /// Asks the host at the far end of a path whether it is alive; `is_first` if suspicion begins with it.
    pub(super) fn ask_host(&mut self, now: Instant, path: u32, is_first: bool) {
        let Some(on) = self.paths.get_mut(path) else { return };
        let nonce = on.questions.ask(now, is_first, || self.nonces.next_u64());
        let Some(slot) = on.members.iter().next().map(|(_, member)| member.slot) else { return };
        let Some(Entry { qp, .. }) = self.qps.get(slot as usize) else { return };
        // The answer comes to a queue pair number of this worker.
        let (av, asker) = (qp.attributes().av, qp.qpn());
        self.send_heartbeat(&av, asker, Qpn::GSI, Heartbeat { is_answer: false, nonce });
    }

    /// A queue pair of the host did not answer: its answer, or silence, says what that means. Asked not more often than for light.
    pub(super) fn doubt_host(&mut self, now: Instant, path: u32) {
        let Some(on) = self.paths.get(path).filter(|on| on.life.is_open() && on.peer.is_some()) else { return };
        let every = on.life.policy().probe_every;
        if on.life.policy().enabled && !on.questions.is_fresh(now, every) {
            self.ask_host(now, path, false);
        }
    }

    /// Takes a datagram if it is a heartbeat. The error is that of an answer to nothing that was asked.
    pub(super) fn take_heartbeat(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
    ) -> Option<Result<(), DropReason>> {
        let deth = packet.deth().filter(|deth| deth.qkey == GSI_QKEY)?;
        let heartbeat = Heartbeat::parse(packet.payload())?;
        let from = datagram.ip.source();
        if !heartbeat.is_answer {
            if self.aside.len() < MOST_WAITING {
                let av = AddressVector::between(datagram.ip.destination(), from, datagram.source_port);
                let answer = Heartbeat { is_answer: true, ..heartbeat };
                self.send_heartbeat(&av, Qpn::GSI, deth.src_qp, answer);
            }
            self.ask_back(now, from.to_canonical());
            return Some(Ok(()));
        }
        let path = self.paths.of_peer(from.to_canonical());
        let taken = path.and_then(|path| Some((path, self.paths.get_mut(path)?.questions.take(heartbeat.nonce)?)));
        let Some((path, is_first)) = taken else { return Some(Err(DropReason::Heartbeat)) };
        self.with_path(now, path, |on| on.life.handle_alive(now, is_first));
        Some(Ok(()))
    }

    /// Who asks says that it is a holdfast; its answer proves it. So one that only ever answers requests gets to know its peer.
    fn ask_back(&mut self, now: Instant, from: IpAddr) {
        let Some((path, on)) = self.paths.of_peer(from).and_then(|path| Some((path, self.paths.get(path)?))) else {
            return;
        };
        if !on.life.is_kin() && !on.questions.is_fresh(now, on.life.policy().probe_every) {
            self.ask_host(now, path, false);
        }
    }

    fn send_heartbeat(&mut self, av: &AddressVector, from: Qpn, to: Qpn, heartbeat: Heartbeat) {
        let pkey = self.shared.pkeys.first().copied().unwrap_or(crate::wire::DEFAULT_PKEY);
        let mut headers = HeaderBuf::new(&Bth { pkey, ..Bth::new(Opcode::UD_SEND_ONLY, to, Psn::new(0)) });
        headers.push_deth(&Deth { qkey: GSI_QKEY, src_qp: from });
        let limits = BurstLimits { max_packets: 1, max_bytes: 2 * MAD_LEN as u32, ..BurstLimits::default() };
        let mut burst = Burst::new(limits);
        if burst.push_bytes(&self.shared.memory, av, &headers, &heartbeat.emit()) {
            self.aside.push_back((to, burst));
        }
    }
}
