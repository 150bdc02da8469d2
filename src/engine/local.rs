//! Queue pairs of one engine: one copy, no packets.

use super::Engine;
use super::paths::NEAR;
use crate::time::Instant;

/// Bytes and messages of one queue pair's turn.
const TURN_BYTES: u32 = 512 << 10;
const TURN_RUNS: u32 = 32;

impl Engine {
    /// Lets a queue pair exchange with others of this engine what it can; says whether anything moved. If there may be
    /// more it goes to the end of the ready queue.
    pub(super) fn exchange(&mut self, now: Instant, slot: u32) -> bool {
        let (mut bytes, mut runs) = (0, 0);
        while let Some(moved) = self.exchange_run(now, slot) {
            bytes += moved;
            runs += 1;
            if bytes >= TURN_BYTES || runs >= TURN_RUNS {
                self.called(slot);
                break;
            }
        }
        runs > 0
    }

    /// Both must ride the near path: they share one clock.
    fn exchange_run(&mut self, now: Instant, slot: u32) -> Option<u32> {
        let (address, qpn) = self.qps.get(slot as usize)?.qp.next_destination()?;
        let peer = self.slot(qpn).filter(|peer| *peer != slot && self.is_ours(address))?;
        let (here, there) = self.qps.get2_mut(slot as usize, peer as usize)?;
        if (here.seat.path, there.seat.path) != (NEAR, NEAR) {
            return None;
        }
        let unfinished = here.qp.outstanding_sends();
        let moved = here.qp.exchange(&mut there.qp, &mut self.shared.context(now))?;
        self.counters.local_messages += u64::from(unfinished - here.qp.outstanding_sends());
        self.counters.local_bytes += u64::from(moved);
        Some(moved)
    }
}
