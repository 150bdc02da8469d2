//! Queue pair numbers: handing them out, and finding their queue pair without hashing.

use crate::wire::Qpn;

const PAGE_BITS: u32 = 10;
const PAGE: usize = 1 << PAGE_BITS;
const SPACE: u32 = 1 << 24;
const NONE: u32 = u32::MAX;
/// 0 and 1 are the management QPs, the highest is the multicast QPN (IBTA 3.5.10).
const RESERVED: [u32; 3] = [0, 1, SPACE - 1];

/// Which worker of how many. A QPN names its worker in its low bits, as many as the count of workers takes, so that receive can be
/// steered without a table. Numbers whose low bits name no worker, and QP 1, are steered to worker 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Worker {
    index: u8,
    count: u16,
}

impl Worker {
    /// The only worker: everything is for it.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Worker `index` of `count`; `None` unless `index < count` and `count` is 1 to 256.
    pub const fn new(index: usize, count: usize) -> Option<Self> {
        if index < count && count <= 256 { Some(Self { index: index as u8, count: count as u16 }) } else { None }
    }

    /// Which, from 0.
    pub const fn index(self) -> u16 {
        self.index as u16
    }

    /// Of how many.
    pub const fn count(self) -> u16 {
        self.count
    }

    /// The low bits of a QPN that name a worker.
    pub const fn mask(self) -> u32 {
        (self.count as u32).next_power_of_two() - 1
    }

    /// Whether there are no others.
    pub const fn is_only(self) -> bool {
        self.count == 1
    }

    /// Whether packets for `qpn` are steered to this worker.
    pub const fn owns(self, qpn: Qpn) -> bool {
        let low = qpn.get() & self.mask();
        let owner = if qpn.get() == Qpn::GSI.get() || low >= self.count as u32 { 0 } else { low };
        owner == self.index as u32
    }

    /// Whether this worker hands `qpn` out: its low bits are the worker's.
    const fn numbers(self, qpn: Qpn) -> bool {
        qpn.get() & self.mask() == self.index as u32
    }

    const fn bits(self) -> u32 {
        self.mask().count_ones()
    }
}

/// The QPNs of one worker: a two-level table over the whole number space.
///
/// Numbers are handed out upwards from an unguessable start and come again only when the space has been gone through:
/// a packet of an earlier life of a QPN, or of an earlier run of the daemon, finds nobody.
#[derive(Debug)]
pub struct QpnTable {
    worker: Worker,
    next: u32,
    pages: Box<[Option<Box<Page>>]>,
    live: usize,
}

#[derive(Debug)]
struct Page {
    slots: [u32; PAGE],
    live: usize,
}

impl QpnTable {
    /// An empty table; `seed` chooses the first number.
    pub fn new(worker: Worker, seed: u64) -> Self {
        let pages = SPACE >> worker.bits() >> PAGE_BITS;
        Self {
            worker,
            next: (seed % u64::from(SPACE)) as u32,
            pages: (0..pages.max(1)).map(|_| None).collect(),
            live: 0,
        }
    }

    /// How many numbers are taken.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether no number is taken.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The slot of a queue pair.
    #[inline]
    pub fn slot(&self, qpn: Qpn) -> Option<u32> {
        if !self.worker.numbers(qpn) {
            return None;
        }
        let index = (qpn.get() >> self.worker.bits()) as usize;
        let slot = self.pages.get(index / PAGE)?.as_ref()?.slots[index % PAGE];
        (slot != NONE).then_some(slot)
    }

    /// The slots of numbers of at least `from`, by number.
    pub fn slots_from(&self, from: Qpn) -> impl Iterator<Item = u32> {
        let first =
            (from.get().saturating_sub(u32::from(self.worker.index))).div_ceil(1 << self.worker.bits()) as usize;
        let pages = self.pages.iter().enumerate().skip(first / PAGE);
        pages
            .filter_map(|(n, page)| page.as_ref().map(|page| (n * PAGE, page)))
            .flat_map(move |(base, page)| page.slots.iter().skip(first.saturating_sub(base)))
            .copied()
            .filter(|slot| *slot != NONE)
    }

    /// Takes the next free number for `slot`; `None` if every number is taken.
    pub fn allocate(&mut self, slot: u32) -> Option<Qpn> {
        let stride = 1u32 << self.worker.bits();
        for _ in 0..SPACE / stride {
            let number = (self.next & !self.worker.mask()) | u32::from(self.worker.index);
            self.next = (self.next + stride) % SPACE;
            let qpn = Qpn::new(number);
            if !RESERVED.contains(&number) && self.slot(qpn).is_none() {
                self.insert(qpn, slot);
                return Some(qpn);
            }
        }
        None
    }

    /// Gives a number back.
    pub fn free(&mut self, qpn: Qpn) {
        if self.slot(qpn).is_none() {
            return;
        }
        let index = (qpn.get() >> self.worker.bits()) as usize;
        let Some(entry) = self.pages.get_mut(index / PAGE) else { return };
        if let Some(page) = entry {
            page.slots[index % PAGE] = NONE;
            page.live -= 1;
            self.live -= 1;
            if page.live == 0 {
                *entry = None;
            }
        }
    }

    fn insert(&mut self, qpn: Qpn, slot: u32) {
        let index = (qpn.get() >> self.worker.bits()) as usize;
        if let Some(entry) = self.pages.get_mut(index / PAGE) {
            let page = entry.get_or_insert_with(|| Box::new(Page { slots: [NONE; PAGE], live: 0 }));
            page.slots[index % PAGE] = slot;
            page.live += 1;
            self.live += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn numbers_name_their_worker_and_find_their_slot() {
        let worker = Worker::new(2, 3).unwrap();
        assert_eq!(worker.mask(), 3);
        let mut t = QpnTable::new(worker, 0xdead_beef_1234);
        let qpns: Vec<Qpn> = (0..5000).map(|s| t.allocate(s).unwrap()).collect();
        for (s, &q) in qpns.iter().enumerate() {
            assert_eq!(q.get() & 3, 2);
            assert_eq!(t.slot(q), Some(s as u32));
            assert_eq!(t.slot(Qpn::new(q.get() ^ 1)), None);
        }
        for &q in &qpns {
            t.free(q);
            t.free(q);
            assert_eq!(t.slot(q), None);
        }
        assert!(t.is_empty());
        assert!(t.pages.iter().all(Option::is_none));
    }

    #[test]
    fn a_number_comes_again_only_after_all_others() {
        // 256 workers leave 65536 numbers to each; worker 255 also owns the multicast QPN.
        let mut t = QpnTable::new(Worker::new(255, 256).unwrap(), 77 << 8);
        let first = t.allocate(0).unwrap();
        t.free(first);
        let mut lives = 1;
        loop {
            let q = t.allocate(1).unwrap();
            t.free(q);
            if q == first {
                break;
            }
            lives += 1;
        }
        assert_eq!(lives, 65535);
    }

    #[test]
    fn every_number_has_one_owner_and_the_management_qp_the_first() {
        for count in [1, 2, 3, 5, 256] {
            for number in (0..600).chain([SPACE - 2, SPACE - 1]).map(Qpn::new) {
                let owners: Vec<_> = (0..count).filter(|i| Worker::new(*i, count).unwrap().owns(number)).collect();
                assert_eq!(owners.len(), 1, "{number} of {count}");
                if number == Qpn::GSI {
                    assert_eq!(owners, [0]);
                }
            }
        }
    }

    #[test]
    fn a_number_whose_low_bits_name_nobody_is_found_nowhere() {
        let mut t = QpnTable::new(Worker::new(0, 3).unwrap(), 400);
        let qpn = t.allocate(7).unwrap();
        assert_eq!(t.slot(qpn), Some(7));
        assert_eq!(t.slot(Qpn::new(qpn.get() | 3)), None);
    }

    #[test]
    fn reserved_numbers_are_never_given_and_a_full_space_says_so() {
        let mut t = QpnTable::new(Worker::new(0, 256).unwrap(), (1 << 24) - 1);
        let mut given = 0;
        while let Some(q) = t.allocate(given) {
            assert!(q.get() > 1);
            given += 1;
        }
        assert_eq!((given, t.len()), (65535, 65535));
        let q = Qpn::new(0x100);
        t.free(q);
        assert_eq!(t.allocate(9), Some(q));
        assert!(Worker::new(3, 3).is_none() && Worker::new(0, 257).is_none() && Worker::new(0, 0).is_none());
    }
}
