//! What an engine counts.

use crate::transport::Refusal;

/// Why a received packet went no further. Every dropped packet is counted under exactly one of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// Not a RoCE packet: too short for its headers, or of a transport version that nobody defined.
    Malformed,
    /// The ICRC is wrong: damaged on the way.
    Icrc,
    /// The IP destination is none of this device's addresses.
    NotOurs,
    /// No queue pair has this number (any more).
    UnknownQp,
    /// A congestion notification from somebody who is not the peer of the queue pair that it names.
    Cnp,
    /// An answer to a heartbeat that was not sent, or not to there.
    Heartbeat,
    /// The queue pair refused it.
    Refused(Refusal),
}

impl DropReason {
    /// The reasons of the engine itself.
    const OWN: [Self; 6] = [Self::Malformed, Self::Icrc, Self::NotOurs, Self::UnknownQp, Self::Cnp, Self::Heartbeat];
    /// How many reasons there are.
    pub const COUNT: usize = Self::OWN.len() + Refusal::ALL.len();

    /// All reasons, in the order of their index.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::OWN.into_iter().chain(Refusal::ALL.into_iter().map(Self::Refused))
    }

    /// The reason's name, as a metric's label shows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Icrc => "icrc",
            Self::NotOurs => "not_ours",
            Self::UnknownQp => "unknown_qp",
            Self::Cnp => "cnp",
            Self::Heartbeat => "heartbeat",
            Self::Refused(refusal) => refusal.name(),
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Malformed => 0,
            Self::Icrc => 1,
            Self::NotOurs => 2,
            Self::UnknownQp => 3,
            Self::Cnp => 4,
            Self::Heartbeat => 5,
            Self::Refused(refusal) => Self::OWN.len() + refusal as usize,
        }
    }
}

/// Running totals of one engine; they only grow.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct EngineCounters {
    /// Packets that a port handed in, good or not.
    pub received_packets: u64,
    /// Their bytes, BTH to ICRC.
    pub received_bytes: u64,
    /// Packets handed out for a port.
    pub transmitted_packets: u64,
    /// Their bytes, BTH to ICRC.
    pub transmitted_bytes: u64,
    /// Packets received with Congestion Experienced set.
    pub ecn_marked_packets: u64,
    /// Good packets whose IP ID the port did not see and the ICRC gave away.
    pub icrc_recovered_packets: u64,
    /// Congestion notifications for a queue pair, from its peer.
    pub cnps_received: u64,
    /// Congestion notifications sent to peers whose packets came marked.
    pub cnps_sent: u64,
    /// Packets between queue pairs of this engine, which no port saw.
    pub looped_packets: u64,
    /// Messages between queue pairs of this engine that went by one copy, without packets.
    pub local_messages: u64,
    /// Their bytes.
    pub local_bytes: u64,
    /// How often a path went dark.
    pub path_darks: u64,
    /// For how long paths that have light again were dark, in nanoseconds.
    pub path_dark_ns: u64,
    /// Packets sent to find out whether a silent or dark path has light.
    pub path_probes: u64,
    /// Queue pairs that failed because their path was dark for too long.
    pub path_lost_queue_pairs: u64,
    dropped: [u64; DropReason::COUNT],
}

impl EngineCounters {
    /// Packets dropped for this reason.
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason.index()]
    }

    /// Packets dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    pub(super) fn note_drop(&mut self, reason: DropReason) {
        self.dropped[reason.index()] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_place_and_name() {
        let mut names: Vec<_> = DropReason::all().map(DropReason::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::COUNT);
        let mut c = EngineCounters::default();
        for (i, r) in DropReason::all().enumerate() {
            assert_eq!(r.index(), i);
            c.note_drop(r);
            assert_eq!((c.dropped(r), c.dropped_total()), (1, i as u64 + 1));
        }
    }
}
