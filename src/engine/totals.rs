//! What all queue pairs counted together, the gone ones too.
//!
//! Each queue pair counts for itself. Those that had a turn since the last look are remembered, so that a look costs nothing for the
//! idle ones, be there a hundred thousand.

use super::{Engine, Entry, ReadyQueue};
use crate::transport::QpCounters;

/// Sums, and who may have counted since they were made.
#[derive(Debug, Default)]
pub(super) struct Totals {
    sum: QpCounters,
    active: ReadyQueue,
}

impl Totals {
    /// `slot` had its turn.
    pub(super) fn note(&mut self, slot: u32) {
        self.active.push(slot);
    }

    /// Takes what a queue pair counted since the last time into the sums.
    fn take(&mut self, entry: &mut Entry) {
        self.sum.add_growth(entry.qp.counters(), &entry.counted);
        entry.counted = *entry.qp.counters();
    }

    /// A queue pair goes: its counts stay.
    pub(super) fn retire(&mut self, slot: u32, entry: &mut Entry) {
        self.active.remove(slot);
        self.take(entry);
    }
}

impl Engine {
    /// What all queue pairs, of now and of the past, have counted.
    pub fn totals(&mut self) -> &QpCounters {
        while let Some(slot) = self.totals.active.pop() {
            if let Some(entry) = self.qps.get_mut(slot as usize) {
                self.totals.take(entry);
            }
        }
        &self.totals.sum
    }
}
