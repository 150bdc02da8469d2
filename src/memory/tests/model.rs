//! Random registrations, windows and accesses against a model so plain that it is right by inspection: every region a byte
//! vector, every address looked for by linear search, all sums in 128 bits.

use proptest::{collection::vec, prelude::*};

use super::*;

const REGION_BYTES: u64 = 600;

#[derive(Clone, Debug)]
enum Step {
    Register { pd: usize, iova: u64, length: u64, access: u32 },
    Deregister { region: usize },
    Allocate { pd: usize },
    Bind { window: usize, region: usize, pd: usize, qpn: u32, at: i64, length: u64, access: u32, low: u8 },
    Invalidate { window: usize, pd: usize, qpn: u32 },
    Write { key: usize, pd: usize, qpn: u32, at: i64, bytes: Vec<u8> },
    Read { key: usize, pd: usize, qpn: u32, at: i64, len: u32 },
    Atomic { key: usize, pd: usize, qpn: u32, at: i64, op: AtomicOp },
    Scatter { keys: Vec<(usize, i64, u32)>, pd: usize, offset: u64, bytes: Vec<u8> },
    Gather { keys: Vec<(usize, i64, u32)>, pd: usize, offset: u64, len: u32 },
}

/// Most steps do what is allowed, so that the state gets rich; each kind of misuse has its share.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let iova = prop_oneof![Just(0), Just(0x1000), Just(u64::MAX - 599), Just(u64::MAX - 300)];
    let length = prop_oneof![4 => 500..=REGION_BYTES, 1 => 0..=REGION_BYTES + 1];
    let access = prop_oneof![4 => Just(0x1f), 1 => 0_u32..0x40];
    let rights = prop_oneof![4 => Just(0x0e), 2 => Just(0x2e), 1 => 0_u32..0x40];
    // Inside, around both ends, and far off; half of them a multiple of 8.
    let at = || prop_oneof![12 => 0_i64..40, 12 => (0_i64..5).prop_map(|word| word * 8), 3 => -2_i64..620, 1 => any::<i64>()];
    let len = || prop_oneof![4 => 0_u32..300, 1 => 0_u32..620];
    let bytes = || vec(any::<u8>(), 0..400);
    let pd = || prop_oneof![15 => Just(0_usize), 1 => Just(1)];
    let qpn = || prop_oneof![15 => Just(0_u32), 1 => Just(1)];
    let key = any::<usize>;
    let sges = || vec((key(), at(), 0_u32..250), 0..6);
    let op = prop_oneof![
        any::<u64>().prop_map(|add| AtomicOp::FetchAdd { add }),
        (0..3_u64, any::<u64>()).prop_map(|(compare, swap)| AtomicOp::CompareSwap { compare, swap }),
    ];
    let step = prop_oneof![
        2 => (pd(), iova, length, access)
            .prop_map(|(pd, iova, length, access)| Step::Register { pd, iova, length, access }),
        1 => key().prop_map(|region| Step::Deregister { region }),
        1 => pd().prop_map(|pd| Step::Allocate { pd }),
        4 => (key(), key(), pd(), qpn(), at(), 0_u64..500, rights, any::<u8>()).prop_map(
            |(window, region, pd, qpn, at, length, access, low)| {
                Step::Bind { window, region, pd, qpn, at, length, access, low }
            }
        ),
        1 => (key(), pd(), qpn()).prop_map(|(window, pd, qpn)| Step::Invalidate { window, pd, qpn }),
        5 => (key(), pd(), qpn(), at(), bytes())
            .prop_map(|(key, pd, qpn, at, bytes)| Step::Write { key, pd, qpn, at, bytes }),
        5 => (key(), pd(), qpn(), at(), len())
            .prop_map(|(key, pd, qpn, at, len)| Step::Read { key, pd, qpn, at, len }),
        3 => (key(), pd(), qpn(), at(), op).prop_map(|(key, pd, qpn, at, op)| Step::Atomic { key, pd, qpn, at, op }),
        5 => (sges(), pd(), 0_u64..300, bytes())
            .prop_map(|(keys, pd, offset, bytes)| Step::Scatter { keys, pd, offset, bytes }),
        5 => (sges(), pd(), 0_u64..300, len())
            .prop_map(|(keys, pd, offset, len)| Step::Gather { keys, pd, offset, len }),
    ];
    vec(step, 1..80)
}

struct ModelRegion {
    key: u32,
    pd: usize,
    start: u64,
    access: Access,
    bytes: Vec<u8>,
    live: bool,
    mapping: Arc<Mapping>,
}

struct ModelWindow {
    key: u32,
    pd: usize,
    /// Queue pair, region, offset in it, start, length, rights.
    bound: Option<(u32, usize, usize, u64, u64, Access)>,
}

struct Pair {
    memory: Memory,
    pds: [PdId; 2],
    regions: Vec<ModelRegion>,
    windows: Vec<ModelWindow>,
}

/// Bytes of a model region.
struct Hit {
    region: usize,
    offset: usize,
}

fn inside(start: u64, length: u64, va: u64, len: u64) -> Option<usize> {
    let (start, end) = (u128::from(start), u128::from(start) + u128::from(length));
    let (first, last) = (u128::from(va), u128::from(va) + u128::from(len));
    (start <= first && last <= end).then(|| (first - start) as usize)
}

impl Pair {
    fn new() -> Self {
        let mut memory = Memory::new([3; 32]);
        let pds = [memory.create_pd(1), memory.create_pd(2)];
        let mut pair = Self { memory, pds, regions: Vec::new(), windows: Vec::new() };
        for iova in [0, 0x1000, u64::MAX - 599] {
            pair.register(0, iova, REGION_BYTES, 0x1f);
            pair.step(&Step::Allocate { pd: 0 });
        }
        pair
    }

    /// Some key that exists or existed, and the address `at` bytes into what it names; seldom, a key out of thin air.
    fn key(&self, pick: usize, at: i64) -> (u32, u64) {
        let count = self.regions.len() + self.windows.len();
        let pick = if pick.is_multiple_of(31) { count } else { pick % count };
        if let Some(region) = self.regions.get(pick) {
            return (region.key, region.start.wrapping_add_signed(at));
        }
        match self.windows.get(pick.wrapping_sub(self.regions.len())) {
            Some(window) => (window.key, window.bound.map_or(0, |bound| bound.3).wrapping_add_signed(at)),
            None => (0x1234_5678, at as u64),
        }
    }

    fn local(&self, pd: usize, key: u32, va: u64, len: u64, need: Access) -> Option<Hit> {
        let region = self.regions.iter().position(|region| region.live && region.key == key)?;
        let found = &self.regions[region];
        let offset = inside(found.start, found.bytes.len() as u64, va, len);
        let offset = if len == 0 { Some(0) } else { offset };
        (found.pd == pd && found.access.contains(need)).then_some(Hit { region, offset: offset? })
    }

    fn remote(&self, pd: usize, qpn: u32, key: u32, va: u64, len: u64, need: Access) -> Option<Hit> {
        let Some(window) = self.windows.iter().find(|window| window.key == key) else {
            return self.local(pd, key, va, len, need);
        };
        let (of_qpn, region, base, start, length, access) = window.bound?;
        let offset = inside(start, length, va, len);
        let offset = if len == 0 { Some(0) } else { offset };
        (window.pd == pd && of_qpn == qpn && access.contains(need)).then_some(Hit { region, offset: base + offset? })
    }

    /// The list's bytes as (region, offset in it) each; `None` if a check fails.
    fn list(&self, pd: usize, sges: &[Sge], offset: u64, len: u64, need: Access) -> Option<Vec<(usize, usize)>> {
        let mut places = Vec::new();
        let mut position = 0_u64;
        for sge in sges {
            // Only the part that is touched is checked.
            let from = offset.max(position);
            let to = (offset + len).min(position + u64::from(sge.length));
            if from < to {
                let va = sge.addr.checked_add(from - position)?;
                let hit = self.local(pd, sge.lkey, va, to - from, need)?;
                places.extend((0..(to - from) as usize).map(|i| (hit.region, hit.offset + i)));
            }
            position += u64::from(sge.length);
        }
        (offset + len <= position).then_some(places)
    }

    fn sges(&self, keys: &[(usize, i64, u32)]) -> Vec<Sge> {
        let sge = |&(pick, at, length): &(usize, i64, u32)| {
            // Seldom a window's key, which is none for a list.
            let pick = if pick.is_multiple_of(17) { pick } else { pick % self.regions.len() };
            let (lkey, addr) = self.key(pick, at);
            Sge { addr, length, lkey }
        };
        keys.iter().map(sge).collect()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Register { pd, iova, length, access } => self.register(*pd, *iova, *length, *access),
            Step::Deregister { region } => self.deregister(*region),
            Step::Allocate { pd } => {
                let key = self.memory.allocate_window(self.pds[*pd]).unwrap();
                self.windows.push(ModelWindow { key, pd: *pd, bound: None });
            }
            Step::Bind { .. } => self.bind(step),
            Step::Invalidate { window, pd, qpn } => self.invalidate(*window, *pd, *qpn),
            Step::Write { key, pd, qpn, at, bytes } => {
                let (key, va) = self.key(*key, *at);
                let hit = self.remote(*pd, *qpn, key, va, bytes.len() as u64, Access::REMOTE_WRITE);
                let done = self.memory.write_remote(self.pds[*pd], *qpn, key, va, bytes);
                assert_eq!(done.is_ok(), hit.is_some(), "{step:?}: {done:?}");
                if let Some(hit) = hit {
                    self.regions[hit.region].bytes[hit.offset..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            Step::Read { key, pd, qpn, at, len } => {
                let (key, va) = self.key(*key, *at);
                let hit = self.remote(*pd, *qpn, key, va, u64::from(*len), Access::REMOTE_READ);
                let mut list = GatherList::default();
                let done = self.memory.gather_remote(self.pds[*pd], *qpn, key, va, *len, &mut list);
                assert_eq!(done.is_ok(), hit.is_some(), "{step:?}: {done:?}");
                let bytes = bytes_of_list(&self.memory, &list);
                match hit {
                    Some(hit) => assert_eq!(bytes, self.regions[hit.region].bytes[hit.offset..][..*len as usize]),
                    None => assert!(bytes.is_empty()),
                }
            }
            Step::Atomic { key, pd, qpn, at, op } => self.atomic(*key, *pd, *qpn, *at, *op),
            Step::Scatter { keys, pd, offset, bytes } => {
                let sges = self.sges(keys);
                let places = self.list(*pd, &sges, *offset, bytes.len() as u64, Access::LOCAL_WRITE);
                let whole = self.memory.check_local(self.pds[*pd], &sges, LocalUse::Write);
                // What a list is checked for as a whole holds for its parts; a scatter whose list fails may have written some.
                if whole.is_ok() || places.is_some() {
                    let done = self.memory.scatter(self.pds[*pd], &sges, *offset, bytes);
                    assert_eq!(done.is_ok(), places.is_some(), "{step:?}: {done:?}");
                }
                for ((region, offset), byte) in places.into_iter().flatten().zip(bytes) {
                    self.regions[region].bytes[offset] = *byte;
                }
            }
            Step::Gather { keys, pd, offset, len } => {
                let sges = self.sges(keys);
                let places = self.list(*pd, &sges, *offset, u64::from(*len), Access::empty());
                let mut list = GatherList::default();
                let done = self.memory.gather(self.pds[*pd], &sges, *offset, *len, &mut list);
                assert_eq!(done.is_ok(), places.is_some(), "{step:?}: {done:?}");
                let places = places.unwrap_or_default();
                let expected: Vec<u8> =
                    places.iter().map(|&(region, offset)| self.regions[region].bytes[offset]).collect();
                assert_eq!(bytes_of_list(&self.memory, &list), expected);
            }
        }
    }

    fn register(&mut self, pd: usize, iova: u64, length: u64, access: u32) {
        let access = Access::from_bits_retain(access);
        let mapping = mapping(REGION_BYTES as usize);
        let done = self.memory.register(self.pds[pd], Backing::Shared(Arc::clone(&mapping), 0), iova, length, access);
        let start = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let fits = (1..=REGION_BYTES).contains(&length) && u128::from(start) + u128::from(length) <= 1 << 64;
        let expected = fits && (!writes || access.contains(Access::LOCAL_WRITE));
        assert_eq!(done.is_ok(), expected, "{done:?}");
        if let Ok(keys) = done {
            let bytes = vec![0; length as usize];
            self.regions.push(ModelRegion { key: keys.rkey, pd, start, access, bytes, live: true, mapping });
        }
    }

    fn deregister(&mut self, pick: usize) {
        let region = pick % self.regions.len();
        let busy = self.windows.iter().any(|window| window.bound.is_some_and(|bound| bound.1 == region));
        let done = self.memory.deregister(self.regions[region].key);
        assert_eq!(done.is_ok(), self.regions[region].live && !busy);
        self.regions[region].live &= busy;
    }

    fn bind(&mut self, step: &Step) {
        let Step::Bind { window, region, pd, qpn, at, length, access, low } = *step else { return };
        let (window, region) = (window % self.windows.len(), region % self.regions.len());
        let target = &self.regions[region];
        let access = Access::from_bits_retain(access);
        let addr = target.start.wrapping_add_signed(at);
        let rkey = self.windows[window].key & !0xff | u32::from(low);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let need = if writes { Access::MW_BIND | Access::LOCAL_WRITE } else { Access::MW_BIND };
        let hit = self.local(pd, target.key, addr, length, need);
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
        let free = self.windows[window].pd == pd && self.windows[window].bound.is_none();
        let expected = free && length > 0 && rights.contains(access);
        let hit = hit.filter(|_| expected);

        let binding = WindowBinding { rkey, lkey: target.key, addr, length, access };
        let done = self.memory.bind_window(self.pds[pd], qpn, &binding);
        assert_eq!(done.is_ok(), hit.is_some(), "{step:?}: {done:?}");
        if let Some(hit) = hit {
            let start = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
            let bound = Some((qpn, region, hit.offset, start, length, access));
            self.windows[window] = ModelWindow { key: rkey, pd, bound };
        }
    }

    fn invalidate(&mut self, window: usize, pd: usize, qpn: u32) {
        let count = self.windows.len();
        let window = &mut self.windows[window % count];
        let expected = window.pd == pd && window.bound.is_some_and(|bound| bound.0 == qpn);
        assert_eq!(self.memory.invalidate(self.pds[pd], window.key, qpn).is_ok(), expected);
        if expected {
            window.bound = None;
        }
    }

    fn atomic(&mut self, key: usize, pd: usize, qpn: u32, at: i64, op: AtomicOp) {
        let (key, va) = self.key(key, at);
        let hit = self.remote(pd, qpn, key, va, 8, Access::REMOTE_ATOMIC);
        // Mappings are aligned, so the memory behind an aligned address is aligned if the region's offset is.
        let hit = hit.filter(|hit| va.is_multiple_of(8) && hit.offset.is_multiple_of(8));
        let done = self.memory.atomic(self.pds[pd], qpn, key, va, op);
        assert_eq!(done.is_ok(), hit.is_some(), "{done:?}");
        if let Some(hit) = hit {
            let word = &mut self.regions[hit.region].bytes[hit.offset..][..8];
            let original = u64::from_ne_bytes(word.try_into().unwrap());
            assert_eq!(done, Ok(original));
            let changed = match op {
                AtomicOp::FetchAdd { add } => original.wrapping_add(add),
                AtomicOp::CompareSwap { compare, swap } if compare == original => swap,
                AtomicOp::CompareSwap { .. } => original,
            };
            word.copy_from_slice(&changed.to_ne_bytes());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn memory_does_what_the_model_does(steps in steps()) {
        let mut pair = Pair::new();
        steps.iter().for_each(|step| pair.step(step));
        for region in &pair.regions {
            prop_assert_eq!(bytes_of(&region.mapping, 0, region.bytes.len()), &region.bytes[..]);
        }
        let live = pair.regions.iter().filter(|region| region.live).count();
        prop_assert_eq!(pair.memory.regions().count(), live);
    }
}
