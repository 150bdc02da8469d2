//! Which circuit a path rides on, and what follows: its rate and round trip, how long it is held, how large its packets may be.

use super::{Engine, Entry};
use crate::congestion::{Bps, Line};
use crate::path::{Circuit, IpPrefix, PathChange};
use crate::time::Instant;
use core::net::IpAddr;

/// The circuits to some peers, as the settings say.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CircuitPlan {
    /// Whose paths ride which. Of several prefixes that hold a peer the longest counts.
    pub circuits: Vec<(IpPrefix, Circuit)>,
}

impl CircuitPlan {
    fn to(&self, peer: IpAddr) -> Option<Circuit> {
        let holding = self.circuits.iter().filter(|(prefix, _)| prefix.contains(peer));
        holding.max_by_key(|(prefix, _)| prefix.bits()).map(|(_, circuit)| *circuit)
    }
}

/// A line with what is known of its circuit.
pub(super) fn line_of(line: &Line, circuit: Option<&Circuit>) -> Line {
    let Some(circuit) = circuit else { return *line };
    let rate = circuit.rate.filter(|rate| *rate > Bps::ZERO).unwrap_or(line.rate);
    let rtt = if circuit.rtt.is_zero() { line.rtt } else { circuit.rtt };
    Line { rate, rtt, is_narrow: line.is_narrow || rate < line.rate, ..*line }
}

impl Engine {
    /// Changes which circuits the settings know. What a controller announced goes before.
    pub fn set_circuits(&mut self, now: Instant, plan: CircuitPlan) {
        self.now = self.now.max(now);
        self.circuits = plan;
        let all: Vec<u32> = self.paths.far().map(|(id, _)| id).collect();
        all.into_iter().for_each(|path| self.ride_circuit(now, path));
    }

    /// Puts a path on the circuit that holds for its peer now: the one last announced, or that of the settings.
    pub(super) fn ride_circuit(&mut self, now: Instant, path: u32) {
        let Some(peer) = self.paths.get(path).and_then(|on| on.peer) else { return };
        let announced = self.paths.ledger.changes_for(peer).find_map(|change| match change {
            PathChange::Circuit(circuit) => Some(circuit),
            _ => None,
        });
        let circuit = announced.flatten().or_else(|| self.circuits.to(peer));
        let Some((on, congestion)) = self.paths.with_policy(path) else { return };
        let (old, old_tuning, path_now) = (on.circuit, on.tuning, on.clock.at(now));
        if old == circuit {
            return;
        }
        let tuning = congestion.tuning_on(circuit.as_ref()).since_thaw_of(&old_tuning);
        let labels = [old, circuit].map(|circuit| circuit.map(|c| c.label));
        let has_moved = labels[0] != labels[1];
        (on.circuit, on.tuning) = (circuit, tuning);
        on.moves += u64::from(has_moved);
        on.life.set_circuit_hold_max(circuit.and_then(|circuit| circuit.hold_max));
        let members: Vec<u32> = on.members.iter().map(|(_, member)| member.slot).collect();
        for slot in members {
            let Some(Entry { qp, congestion, .. }) = self.qps.get_mut(slot as usize) else { continue };
            qp.set_carried_mtu(circuit.and_then(|circuit| circuit.mtu));
            if let Some(state) = congestion.as_mut().filter(|_| has_moved) {
                state.handle_move(path_now, labels, [&old_tuning, &tuning]);
            }
        }
        self.with_path(now, path, |_| {});
    }
}
