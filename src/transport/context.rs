//! What a queue pair works with while it handles one event.

use super::{Completion, Completions, CqId, Event, SharedReceiveQueues, TransportLimits};
use crate::memory::Memory;
use crate::time::Instant;
use std::collections::VecDeque;

/// What the driver lends a queue pair for one call: the time and the tables of the device.
pub struct Context<'a> {
    /// The time on the QP's path: its clock stands still while the path is dark.
    pub now: Instant,
    /// Regions and windows.
    pub memory: &'a mut Memory,
    /// Completion queues.
    pub completions: &'a mut Completions,
    /// Shared receive queues.
    pub srqs: &'a mut SharedReceiveQueues,
    /// Where asynchronous events go.
    pub events: &'a mut VecDeque<Event>,
    /// Limits of the device.
    pub limits: &'a TransportLimits,
    /// The partition table.
    pub pkeys: &'a [u16],
}

impl core::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Context").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Context<'_> {
    pub(super) fn complete(&mut self, cq: CqId, completion: Completion, solicited: bool) {
        self.completions.push(cq, completion, solicited, self.events);
    }

    /// The partition key at `index`; 0, which matches no packet, if there is none.
    pub(super) fn pkey(&self, index: u16) -> u16 {
        self.pkeys.get(usize::from(index)).copied().unwrap_or(0)
    }
}

/// Whether a packet's key matches ours: the same partition, and one of the two a full member (IBTA 10.9.3).
pub(super) const fn pkeys_match(a: u16, b: u16) -> bool {
    const MEMBERSHIP: u16 = 0x8000;
    a & !MEMBERSHIP == b & !MEMBERSHIP && (a | b) & MEMBERSHIP != 0 && a & !MEMBERSHIP != 0
}
