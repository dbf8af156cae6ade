//! The allocator against a naive bitmap: nothing is handed out twice, nothing too early, everything
//! comes back, and what the space maps would say is what is in memory.

use base::{Kind, RangeSet, Txg};
use space::{replay, AllocReq, Class, Extent, Loader, MsHint, SmOp, Space, TopSpec, Unflushed};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

fn spec(id: u64, asize: u64, ms_shift: u32) -> TopSpec {
    TopSpec {
        id,
        asize,
        ashift: 12,
        ms_shift,
        class: Class::Normal,
        deflate_ratio: 512,
        children: 1,
        align: 0,
    }
}

fn take(
    space: &Space,
    class: Class,
    copies: usize,
    txg: u64,
    size: u64,
) -> base::Result<Vec<Extent>> {
    space.alloc(&AllocReq {
        class,
        copies,
        txg: Txg::new(txg),
        size_on: &|_| size,
        hint: 0,
    })
}

fn one(space: &Space, txg: u64, size: u64) -> base::Result<Extent> {
    take(space, Class::Normal, 1, txg, size).map(|v| v[0])
}

/// Takes the changes and ends the txg.
fn sync(space: &Space, txg: u64) {
    space.take_changes(Txg::new(txg));
    space.sync_done(Txg::new(txg)).unwrap();
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Cell {
    Free,
    Used,
    /// Freed; reusable once this many txgs have synced.
    Until(u64),
}

/// What is on disk: per metaslab, entries in order; handed out by the loader.
#[derive(Default)]
struct Maps {
    ops: Mutex<BTreeMap<(u64, u64), Vec<SmOp>>>,
    bounds: Mutex<BTreeMap<(u64, u64), (u64, u64)>>,
}

impl Maps {
    fn record(&self, space: &Space, txg: u64) {
        for c in space.take_changes(Txg::new(txg)) {
            let mut all = self.ops.lock().unwrap();
            let list = all.entry((c.vdev, c.ms)).or_default();
            for (free, set) in [(false, &c.allocs), (true, &c.frees)] {
                for (s, e) in set.iter() {
                    list.push(SmOp {
                        free,
                        offset: s,
                        len: e - s,
                    });
                }
            }
        }
    }

    fn free(&self, vdev: u64, ms: u64) -> base::Result<RangeSet> {
        let (s, e) = self.bounds.lock().unwrap()[&(vdev, ms)];
        let all = self.ops.lock().unwrap();
        let ops = all.get(&(vdev, ms)).cloned().unwrap_or_default();
        replay(s, e, ops.into_iter().map(Ok))
    }
}

impl Loader for Maps {
    fn load(&self, vdev: u64, ms: u64) -> base::Result<RangeSet> {
        self.free(vdev, ms)
    }
}

struct Model {
    dice: Dice,
    space: Space,
    maps: Arc<Maps>,
    cells: BTreeMap<u64, Vec<Cell>>,
    live: Vec<Extent>,
    txg: u64,
    synced: u64,
    unit: u64,
}

impl Model {
    fn new(seed: u64, vdevs: u64, parity_unit: u64) -> Model {
        let space = Space::new();
        let maps = Arc::new(Maps::default());
        let mut cells = BTreeMap::new();
        for id in 0..vdevs {
            // Not a whole number of metaslabs: the tail must never be used.
            let asize = (6 + id) * (1 << 20) + 12345;
            space.add_top(spec(id, asize, 20)).unwrap();
            let n = space.metaslab_count(id);
            for ms in 0..n {
                let b = space.metaslab_bounds(id, ms).unwrap();
                maps.bounds.lock().unwrap().insert((id, ms), b);
            }
            cells.insert(id, vec![Cell::Free; (n << 20 >> 12) as usize]);
        }
        space.set_loader(Some(maps.clone()));
        Model {
            dice: Dice(seed),
            space,
            maps,
            cells,
            live: Vec::new(),
            txg: 4,
            synced: 0,
            unit: parity_unit,
        }
    }

    fn span<'a>(cells: &'a mut BTreeMap<u64, Vec<Cell>>, e: &Extent) -> &'a mut [Cell] {
        let (a, b) = (e.offset >> 12, (e.offset + e.asize) >> 12);
        &mut cells.get_mut(&e.vdev).unwrap()[a as usize..b as usize]
    }

    fn alloc(&mut self) {
        let size = (1 + self.dice.below(12)) * self.unit * 4096;
        let copies = 1 + self.dice.below(3) as usize;
        let hint = self.dice.below(5);
        let r = self.space.alloc(&AllocReq {
            class: Class::Normal,
            copies,
            txg: Txg::new(self.txg),
            size_on: &|_| size,
            hint,
        });
        match r {
            Ok(v) => {
                assert_eq!(v.len(), copies);
                let vdevs: HashSet<u64> = v.iter().map(|e| e.vdev).collect();
                if self.space.stats().normal.allocated < 1 << 20 {
                    assert_eq!(vdevs.len(), copies.min(self.cells.len()));
                }
                for e in v {
                    assert_eq!(e.asize, size);
                    assert_eq!(e.offset >> 20, (e.offset + e.asize - 1) >> 20, "straddles");
                    let synced = self.synced;
                    for c in Self::span(&mut self.cells, &e) {
                        match *c {
                            Cell::Free => {}
                            Cell::Until(n) if n <= synced => {}
                            other => panic!("handed out {e:?} while {other:?} at {synced}"),
                        }
                        *c = Cell::Used;
                    }
                    self.live.push(e);
                }
            }
            Err(e) => {
                assert_eq!(e.kind, Kind::NoSpace);
                if copies == 1 {
                    // Really nothing that large?
                    for cells in self.cells.values() {
                        for ms in cells.chunks(256) {
                            let mut run = 0;
                            for c in ms {
                                let free = *c == Cell::Free
                                    || matches!(*c, Cell::Until(n) if n <= self.synced);
                                run = if free { run + 1 } else { 0 };
                                assert!(run * 4096 < size, "gave up with {run} units free");
                            }
                        }
                    }
                }
            }
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let i = self.dice.below(self.live.len() as u64) as usize;
        let e = self.live.swap_remove(i);
        self.space
            .free(e.vdev, e.offset, e.asize, Txg::new(self.txg))
            .unwrap();
        // Synced so far, then this txg, then two more.
        let until = self.synced + 3;
        Self::span(&mut self.cells, &e).fill(Cell::Until(until));
        // A second free is caught and changes nothing.
        let again = self
            .space
            .free(e.vdev, e.offset, e.asize, Txg::new(self.txg));
        assert_eq!(again.unwrap_err().kind, Kind::Damaged);
    }

    fn sync(&mut self) {
        for _ in 0..self.dice.below(3) {
            self.maps.record(&self.space, self.txg);
            self.alloc();
            if self.dice.below(2) == 0 {
                self.free();
            }
        }
        self.maps.record(&self.space, self.txg);
        assert!(!self.space.has_changes(Txg::new(self.txg)));
        self.space.sync_done(Txg::new(self.txg)).unwrap();
        self.synced += 1;
        self.txg += 1;
        self.check();
    }

    /// Nothing pending: maps, memory, and the bitmap agree.
    fn check(&self) {
        let mut allocated = 0;
        for (&vdev, cells) in &self.cells {
            for ms in 0..self.space.metaslab_count(vdev) {
                let mut want = RangeSet::new();
                for (i, c) in cells.iter().enumerate().skip((ms * 256) as usize).take(256) {
                    if *c == Cell::Used {
                        allocated += 4096;
                    } else {
                        let at = i as u64 * 4096;
                        want.insert(at, at + 4096);
                    }
                }
                assert_eq!(self.maps.free(vdev, ms).unwrap(), want);
                assert_eq!(self.space.free_ranges(vdev, ms).unwrap(), want);
            }
        }
        let s = self.space.stats();
        assert_eq!(s.normal.allocated, allocated);
        let waiting = self
            .cells
            .values()
            .flatten()
            .filter(|c| matches!(c, Cell::Until(n) if *n > self.synced))
            .count() as u64;
        assert_eq!(s.normal.deferred, waiting * 4096);
    }
}

fn run(seed: u64, vdevs: u64, unit: u64) {
    let mut m = Model::new(seed, vdevs, unit);
    for round in 0..400 {
        // Phases of growth and of shrinking, so that it gets full and fragmented.
        let grow = (round / 50) % 2 == 0;
        match m.dice.below(20) {
            0 => m.sync(),
            1..=6 => m.free(),
            7..=8 if !grow => m.free(),
            9..=10 => {
                // Alloc that is not used.
                if let Ok(e) = one(&m.space, m.txg, 4096 * unit) {
                    m.space
                        .unalloc(e.vdev, e.offset, e.asize, Txg::new(m.txg))
                        .unwrap();
                }
            }
            12 => {
                // With changes pending: memory knows what the maps say.
                let vdev = m.dice.below(vdevs);
                let ms = m.dice.below(m.space.metaslab_count(vdev));
                let now = m.space.free_ranges(vdev, ms).unwrap();
                assert_eq!(now, m.maps.free(vdev, ms).unwrap());
            }
            11 => {
                m.sync();
                m.sync();
                m.sync();
                // Everything may leave memory and comes back from the maps.
                m.space.unload_idle(Txg::new(u64::MAX / 2), 0);
            }
            _ => m.alloc(),
        }
    }
    while !m.live.is_empty() {
        m.free();
    }
    for _ in 0..3 {
        m.maps.record(&m.space, m.txg);
        m.space.sync_done(Txg::new(m.txg)).unwrap();
        m.txg += 1;
    }
    let s = m.space.stats();
    assert_eq!((s.normal.allocated, s.normal.deferred), (0, 0));
    for v in &s.vdevs {
        for ms in 0..v.metaslabs {
            assert_eq!(m.space.free_ranges(v.id, ms).unwrap().len(), 1);
        }
    }
    // All are loaded now: whole metaslabs of 1 MiB.
    assert_eq!(m.space.stats().fragmentation, Some(20));
}

#[test]
fn agrees_with_a_bitmap() {
    for seed in 0..25 {
        run(seed, 1 + seed % 4, 1);
    }
}

/// raidz2: all sizes are multiples of three sectors.
#[test]
fn raidz_sizes_agree_with_a_bitmap() {
    for seed in 100..110 {
        run(seed, 1 + seed % 2, 3);
    }
}

#[test]
fn reuse_waits_for_two_more_groups() {
    let space = Space::new();
    space.add_top(spec(0, 1 << 20, 20)).unwrap();
    let all: Vec<Extent> = (0..256).map(|_| one(&space, 10, 4096).unwrap()).collect();
    assert_eq!(one(&space, 10, 4096).unwrap_err().kind, Kind::NoSpace);
    sync(&space, 10);
    let e = all[77];
    space.free(e.vdev, e.offset, e.asize, Txg::new(11)).unwrap();
    for txg in 11..14 {
        assert_eq!(one(&space, txg, 4096).unwrap_err().kind, Kind::NoSpace);
        assert_eq!(space.class_stats(Class::Normal).deferred, 4096);
        sync(&space, txg);
    }
    assert_eq!(space.class_stats(Class::Normal).deferred, 0);
    assert_eq!(one(&space, 14, 4096).unwrap(), e);
}

#[test]
fn groups_that_are_not_on_disk_give_nothing_back() {
    let space = Space::new();
    space.add_top(spec(0, 1 << 20, 20)).unwrap();
    let all: Vec<Extent> = (0..256).map(|_| one(&space, 10, 4096).unwrap()).collect();
    sync(&space, 10);
    assert!(!space.is_tight(), "nothing is deferred");
    let e = all[77];
    space.free(e.vdev, e.offset, e.asize, Txg::new(11)).unwrap();
    assert_eq!(
        space.sync_skipped(Txg::new(11)).unwrap_err().kind,
        Kind::Bug
    );
    sync(&space, 11);
    for txg in 12..20 {
        space.sync_skipped(Txg::new(txg)).unwrap();
        assert_eq!(one(&space, txg + 1, 4096).unwrap_err().kind, Kind::NoSpace);
    }
    assert!(space.is_tight(), "all that is free is deferred");
    sync(&space, 20);
    assert_eq!(one(&space, 21, 4096).unwrap_err().kind, Kind::NoSpace);
    sync(&space, 21);
    assert!(!space.is_tight());
    assert_eq!(one(&space, 22, 4096).unwrap(), e);
    // A skipped txg is over like any other.
    sync(&space, 22);
    space.sync_skipped(Txg::new(23)).unwrap();
    assert_eq!(
        space
            .free(e.vdev, e.offset, e.asize, Txg::new(23))
            .unwrap_err()
            .kind,
        Kind::Bug
    );
}

#[test]
fn changes_come_once_and_must_be_taken() {
    let space = Space::new();
    space.add_top(spec(3, 2 << 20, 20)).unwrap();
    let a = one(&space, 5, 8192).unwrap();
    // The next txg is open already.
    let b = one(&space, 6, 4096).unwrap();
    assert_eq!(space.sync_done(Txg::new(5)).unwrap_err().kind, Kind::Bug);
    let c = space.take_changes(Txg::new(5));
    assert_eq!(c.len(), 1);
    assert_eq!(
        c[0].allocs.iter().collect::<Vec<_>>(),
        [(a.offset, a.offset + 8192)]
    );
    assert!(space.take_changes(Txg::new(5)).is_empty());
    // Freed in a later pass of the same txg: recorded, but not reusable at once.
    space.unalloc(3, a.offset, 8192, Txg::new(5)).unwrap();
    let c = space.take_changes(Txg::new(5));
    assert!(c[0].allocs.is_empty());
    assert_eq!(c[0].frees.total(), 8192);
    space.sync_done(Txg::new(5)).unwrap();
    assert_eq!(one(&space, 5, 4096).unwrap_err().kind, Kind::Bug);
    let c = space.take_changes(Txg::new(6));
    assert_eq!(
        c[0].allocs.iter().collect::<Vec<_>>(),
        [(b.offset, b.offset + 4096)]
    );
}

#[test]
fn claims() {
    let space = Space::new();
    space.add_top(spec(0, 4 << 20, 20)).unwrap();
    space.claim(0, 1 << 20, 8192, Txg::new(9)).unwrap();
    assert_eq!(
        space
            .claim(0, (1 << 20) + 4096, 4096, Txg::new(9))
            .unwrap_err()
            .kind,
        Kind::Damaged
    );
    assert!(!space.claimable(0, 1 << 20, 4096).unwrap());
    assert!(space.claimable(0, (1 << 20) + 8192, 4096).unwrap());
    // Over the edge of a metaslab, past the end, no such vdev, odd offset, empty.
    for (v, off, len) in [
        (0, (2 << 20) - 4096, 8192),
        (0, 4 << 20, 4096),
        (1, 0, 4096),
        (0, 100, 4096),
        (0, 0, 0),
        (0, u64::MAX - 4095, 4096),
        (0, 1 << 62, 1 << 62),
    ] {
        assert_eq!(
            space.claim(v, off, len, Txg::new(9)).unwrap_err().kind,
            Kind::Damaged
        );
        assert_eq!(
            space.free(v, off, len, Txg::new(9)).unwrap_err().kind,
            Kind::Damaged
        );
    }
    let c = space.take_changes(Txg::new(9));
    assert_eq!((c.len(), c[0].ms, c[0].allocs.total()), (1, 1, 8192));
}

#[test]
fn streams_are_sequential() {
    let space = Space::new();
    space.add_top(spec(0, 16 << 24, 24)).unwrap();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut jumps = 0;
    for _ in 0..500 {
        for (hint, size) in [(0, 128 << 10), (1, 16 << 10)] {
            let e = space
                .alloc(&AllocReq {
                    class: Class::Normal,
                    copies: 1,
                    txg: Txg::new(4),
                    size_on: &|_| size,
                    hint,
                })
                .unwrap()[0];
            if last.insert(hint, e.offset + e.asize) != Some(e.offset) {
                jumps += 1;
            }
        }
    }
    // 62.5 MiB and 8 MiB in metaslabs of 16 MiB.
    assert!(jumps <= 10, "{jumps} jumps");
}

#[test]
fn spreads_by_free_space() {
    let space = Space::new();
    space.add_top(spec(0, 64 << 24, 24)).unwrap();
    space.add_top(spec(1, 64 << 24, 24)).unwrap();
    space.add_top(spec(2, 192 << 24, 24)).unwrap();
    let mut per = [0u64; 3];
    let mut switches = 0;
    let mut last = 9;
    for _ in 0..8000 {
        let e = one(&space, 4, 128 << 10).unwrap();
        per[e.vdev as usize] += e.asize;
        switches += (e.vdev != last) as u32;
        last = e.vdev;
    }
    let mib = |i: usize| per[i] >> 20;
    assert!(
        (170..230).contains(&mib(0)) && (170..230).contains(&mib(1)),
        "{per:?}"
    );
    assert!((550..650).contains(&mib(2)), "{per:?}");
    // Runs of about 2 MiB, not block by block.
    assert!(switches < 700, "{switches}");
    space.set_allocating(2, false).unwrap();
    space.set_writable(0, false).unwrap();
    for _ in 0..100 {
        assert_eq!(one(&space, 4, 4096).unwrap().vdev, 1);
    }
    space.set_writable(1, false).unwrap();
    assert_eq!(one(&space, 4, 4096).unwrap_err().kind, Kind::NoSpace);
}

#[test]
fn copies_are_far_apart() {
    let space = Space::new();
    space.add_top(spec(0, 32 << 20, 20)).unwrap();
    for _ in 0..300 {
        let v = take(&space, Class::Normal, 3, 4, 4096).unwrap();
        for (i, a) in v.iter().enumerate() {
            for b in &v[..i] {
                assert!(a.offset.abs_diff(b.offset) >= 3 << 20, "{v:?}");
            }
        }
    }
    space.add_top(spec(1, 32 << 20, 20)).unwrap();
    space.add_top(spec(2, 32 << 20, 20)).unwrap();
    for _ in 0..300 {
        let v = take(&space, Class::Normal, 3, 4, 4096).unwrap();
        let vdevs: HashSet<u64> = v.iter().map(|e| e.vdev).collect();
        assert_eq!(vdevs.len(), 3);
    }
}

/// All or nothing: a failed second copy gives the first one back.
#[test]
fn no_space_for_all_copies_changes_nothing() {
    let space = Space::new();
    space.add_top(spec(0, 1 << 20, 20)).unwrap();
    one(&space, 4, 512 << 10).unwrap();
    let e = take(&space, Class::Normal, 2, 4, 300 << 10).unwrap_err();
    assert_eq!(e.kind, Kind::NoSpace);
    assert_eq!(space.stats().normal.allocated, 512 << 10);
    assert!(one(&space, 4, 512 << 10).is_ok());
}

#[test]
fn classes_fall_back() {
    let space = Space::new();
    let with = |id, class| TopSpec {
        class,
        ..spec(id, 1 << 20, 20)
    };
    space.add_top(with(0, Class::Normal)).unwrap();
    let vdev = |class| take(&space, class, 1, 4, 64 << 10).map(|v| v[0].vdev);
    for c in [Class::Normal, Class::Log, Class::Special, Class::Dedup] {
        assert_eq!(vdev(c), Ok(0));
    }
    space.add_top(with(1, Class::Special)).unwrap();
    assert_eq!(vdev(Class::Special), Ok(1));
    assert_eq!(vdev(Class::Dedup), Ok(1));
    assert_eq!(vdev(Class::Log), Ok(1));
    space.add_top(with(2, Class::Log)).unwrap();
    space.add_top(with(3, Class::Dedup)).unwrap();
    for _ in 0..16 {
        assert_eq!(vdev(Class::Log), Ok(2));
        assert_eq!(vdev(Class::Dedup), Ok(3));
    }
    // Both full: on to special, and when that is full, to normal.
    for _ in 0..13 {
        assert_eq!(vdev(Class::Dedup), Ok(1));
    }
    assert_eq!(vdev(Class::Log), Ok(0));
    while vdev(Class::Special).is_ok() {}
    assert_eq!(space.stats().normal.allocated, 1 << 20);
    // Normal data never goes anywhere else.
    space.remove_top(2);
    assert_eq!(vdev(Class::Normal).unwrap_err().kind, Kind::NoSpace);
}

#[test]
fn embedded_log() {
    let space = Space::new();
    space.add_top(spec(0, 80 << 20, 20)).unwrap();
    space.choose_embedded_logs(64);
    let s = space.stats();
    assert_eq!((s.normal.size, s.embedded_log.size), (79 << 20, 1 << 20));
    let log = take(&space, Class::Log, 1, 4, 4096).unwrap()[0];
    let ms = log.offset >> 20;
    assert!(space.is_embedded_log(0, ms));
    let mut n = 0;
    while let Ok(e) = one(&space, 4, 1 << 20) {
        assert_ne!(e.offset >> 20, ms);
        n += 1;
    }
    assert_eq!(n, 79);
    space.free(0, log.offset, log.asize, Txg::new(4)).unwrap();
    assert_eq!(space.stats().embedded_log.deferred, 4096);
    for t in 4..7 {
        sync(&space, t);
    }
    assert_eq!(space.stats().embedded_log.deferred, 0);
}

/// A huge sparse pool: metaslabs are read only when wanted, a bad one is passed over.
#[test]
fn lazy_loading() {
    struct Lazy(Mutex<Vec<u64>>);
    impl Loader for Lazy {
        fn load(&self, _: u64, ms: u64) -> base::Result<RangeSet> {
            self.0.lock().unwrap().push(ms);
            if ms == 7 {
                return Err(base::Error::damaged("torn map"));
            }
            let mut r = RangeSet::new();
            // The last byte of the metaslab is in use: 4 KiB.
            r.insert(ms << 33, ((ms + 1) << 33) - 4096);
            Ok(r)
        }
    }
    let space = Space::new();
    space.add_top(spec(0, 1 << 40, 33)).unwrap();
    let lazy = Arc::new(Lazy(Mutex::new(Vec::new())));
    space.set_loader(Some(lazy.clone()));
    for ms in 0..128 {
        let mut h = [0; 32];
        // Metaslab 7 looks best, then 9; 3 is full.
        h[if ms == 7 {
            20
        } else if ms == 9 {
            19
        } else {
            8
        }] = 1;
        let allocated = if ms == 3 { 1 << 33 } else { 4096 };
        let hint = MsHint {
            allocated,
            histogram: Some(h),
        };
        space.set_hint(0, ms, hint).unwrap();
    }
    assert_eq!(space.stats().normal.allocated, (1 << 33) + 127 * 4096);
    for i in 0..1000 {
        let e = one(&space, 4, 128 << 10).unwrap();
        assert_eq!(e.offset, (9 << 33) + i * (128 << 10));
    }
    assert_eq!(*lazy.0.lock().unwrap(), [7, 9]);
    assert_eq!(space.load_errors().len(), 1);
    // Frees of metaslabs that are not read need no reading.
    space.free(0, 3 << 33, 1 << 20, Txg::new(4)).unwrap();
    assert_eq!(space.histogram(0, 3).unwrap()[8], 2);
    assert_eq!(lazy.0.lock().unwrap().len(), 2);
    sync(&space, 4);
    // Read while the range is deferred: the reader sees it free already, it must not be handed out.
    struct AllFree;
    impl Loader for AllFree {
        fn load(&self, _: u64, ms: u64) -> base::Result<RangeSet> {
            let mut r = RangeSet::new();
            r.insert(ms << 33, (ms << 33) + (1 << 20));
            Ok(r)
        }
    }
    space.set_loader(Some(Arc::new(AllFree)));
    space.ensure_loaded(0, 3).unwrap();
    assert_eq!(
        space.claim(0, 3 << 33, 4096, Txg::new(5)).unwrap_err().kind,
        Kind::Damaged
    );
    assert_eq!(space.free_ranges(0, 3).unwrap().total(), 1 << 20);
    sync(&space, 5);
    sync(&space, 6);
    space.claim(0, 3 << 33, 4096, Txg::new(7)).unwrap();
}

/// A stale histogram must not turn space into ENOSPC.
#[test]
fn doubts_the_histogram_before_giving_up() {
    struct Whole;
    impl Loader for Whole {
        fn load(&self, _: u64, ms: u64) -> base::Result<RangeSet> {
            let mut r = RangeSet::new();
            r.insert((ms << 20) + (64 << 10), (ms + 1) << 20);
            Ok(r)
        }
    }
    let space = Space::new();
    space.add_top(spec(0, 2 << 20, 20)).unwrap();
    space.set_loader(Some(Arc::new(Whole)));
    for ms in 0..2 {
        let hint = MsHint {
            allocated: 64 << 10,
            histogram: Some([0; 32]),
        };
        space.set_hint(0, ms, hint).unwrap();
    }
    assert!(one(&space, 4, 512 << 10).is_ok());
}

#[test]
fn fragmented_space_is_used_up() {
    let space = Space::new();
    space.add_top(spec(0, 4 << 20, 20)).unwrap();
    let all: Vec<Extent> = (0..1024).map(|_| one(&space, 4, 4096).unwrap()).collect();
    for e in all.iter().filter(|e| (e.offset >> 12) % 2 == 0) {
        space.free(0, e.offset, 4096, Txg::new(4)).unwrap();
    }
    for t in 4..7 {
        sync(&space, t);
    }
    let s = space.stats();
    // Half in holes of 4 KiB: weight 95.
    assert_eq!(s.fragmentation, Some(95));
    assert_eq!(s.vdevs[0].largest_free, 4096);
    assert_eq!(space.histogram(0, 0).unwrap()[0], 128);
    assert_eq!(one(&space, 7, 8192).unwrap_err().kind, Kind::NoSpace);
    for _ in 0..512 {
        one(&space, 7, 4096).unwrap();
    }
    assert_eq!(one(&space, 7, 4096).unwrap_err().kind, Kind::NoSpace);
}

#[test]
fn deflated_sums_and_growing() {
    let space = Space::new();
    let s = TopSpec {
        deflate_ratio: 341,
        ..spec(0, 10 << 20, 20)
    };
    space.add_top(s).unwrap();
    one(&space, 4, 12288).unwrap();
    let c = space.class_stats(Class::Normal);
    assert_eq!((c.dsize, c.dallocated), (20480 * 341, 24 * 341));
    assert_eq!(space.grow_top(0, (12 << 20) + 5, Txg::NONE).unwrap(), 2);
    assert_eq!(space.class_stats(Class::Normal).size, 12 << 20);
    assert!(space.grow_top(0, 1 << 20, Txg::NONE).is_err());
    assert!(space.add_top(s).is_err());
    assert!(space.add_top(spec(1, 1000, 20)).is_err());
    assert!(space
        .add_top(TopSpec {
            ms_shift: 64,
            ..spec(1, 1 << 20, 20)
        })
        .is_err());
    assert!(space.add_top(spec(1, u64::MAX, 20)).is_err());
}

/// A vdev and metaslabs that are made in a txg take only blocks of it until it is on disk, and afterwards all.
#[test]
fn blocks_of_later_txgs_wait_for_the_txg_that_makes_their_metaslabs() {
    let at = Txg::new;
    let space = Space::new();
    space.add_top(spec(0, 2 << 20, 20)).unwrap();
    let log = TopSpec {
        class: Class::Log,
        ..spec(1, 2 << 20, 20)
    };
    space.add_top_in(log, at(5)).unwrap();
    let place = |txg| take(&space, Class::Log, 1, txg, 4096).unwrap()[0].vdev;
    assert_eq!(place(6), 0, "the txg that makes it is not on disk");
    assert_eq!(place(5), 1);
    sync(&space, 5);
    assert_eq!(place(6), 1);
    // The same where a vdev grows.
    while one(&space, 6, 4096).is_ok() {}
    assert_eq!(space.grow_top(0, 3 << 20, at(6)).unwrap(), 1);
    assert_eq!(one(&space, 7, 4096).unwrap_err().kind, Kind::NoSpace);
    assert!(one(&space, 6, 4096).unwrap().offset >= 2 << 20);
    sync(&space, 6);
    assert!(one(&space, 7, 4096).unwrap().offset >= 2 << 20);
}

/// dRAID: everything is a multiple of the group width, which is no power of two.
#[test]
fn group_alignment() {
    let space = Space::new();
    let s = TopSpec {
        align: 3 * 4096,
        ..spec(0, 8 << 20, 20)
    };
    space.add_top(s).unwrap();
    let mut n = 0;
    while let Ok(e) = one(&space, 4, 3 * 4096) {
        assert_eq!(e.offset % (3 * 4096), 0);
        assert_eq!(e.offset >> 20, (e.offset + e.asize - 1) >> 20);
        n += 1;
    }
    assert!(n >= 8 * 84, "{n}");
    assert_eq!(one(&space, 4, 4096).unwrap_err().kind, Kind::Bug);
}

/// With edges every 24 MiB: one in the middle of the second metaslab, the others at ends of metaslabs.
#[test]
fn edges_are_used_first() {
    const MIB: u64 = 1 << 20;
    let space = Space::new();
    let align = 3 << 12;
    space
        .add_top(TopSpec {
            align,
            ..spec(0, 64 * MIB, 24)
        })
        .unwrap();
    space.set_edges(24 * MIB);
    let before = |edge: u64| edge.saturating_sub(256 << 10) / align * align;
    let firsts: Vec<u64> = (0..4)
        .map(|m| space.metaslab_bounds(0, m).unwrap())
        .map(|(start, end)| before(end.min((start / (24 * MIB) + 1) * 24 * MIB)))
        .collect();
    assert_eq!(firsts[1], before(24 * MIB));
    let size = 16 * align;
    let first = one(&space, 5, size).unwrap();
    assert!(
        firsts.contains(&first.offset),
        "{first:?} is at no edge: {firsts:?}"
    );
    let crosses = |e: Extent| e.offset < 24 * MIB && e.offset + e.asize > 24 * MIB;
    let mut over = 0;
    while let Ok(e) = one(&space, 5, size) {
        assert_eq!(e.offset % align, 0);
        over += usize::from(crosses(e));
    }
    assert_eq!(over, 1, "one block lies over the edge");
}

/// What goes through the real entry codec, a log map and a condensed map comes back.
#[test]
fn through_the_codec() {
    use disk::spacemap::Writer;
    use space::replay::{log_ops, map_ops, should_condense, write_condensed, write_log, write_map};
    let space = Space::new();
    space.add_top(spec(5, 4 << 20, 20)).unwrap();
    let mut dice = Dice(77);
    let mut own = Writer::new(4096, 0, true);
    let mut log = Writer::new(4096, 0, true);
    let mut live = Vec::new();
    for txg in 4..60 {
        for _ in 0..20 {
            if let Ok(e) = one(&space, txg, 4096 * (1 + dice.below(5))) {
                live.push(e);
            }
            if dice.below(3) > 0 && !live.is_empty() {
                let e = live.swap_remove(dice.below(live.len() as u64) as usize);
                space.free(5, e.offset, e.asize, Txg::new(txg)).unwrap();
            }
        }
        let c = space.take_changes(Txg::new(txg));
        for c in c.iter().filter(|c| c.ms == 2) {
            write_map(
                &mut own,
                (&c.allocs, &c.frees),
                2 << 20,
                12,
                1,
                Txg::new(txg),
            )
            .unwrap();
        }
        write_log(&mut log, &c, 1, Txg::new(txg)).unwrap();
        space.sync_done(Txg::new(txg)).unwrap();
    }
    let (s, e) = space.metaslab_bounds(5, 2).unwrap();
    let want = space.free_ranges(5, 2).unwrap();
    let bytes = own.finish();
    assert_eq!(replay(s, e, map_ops(&bytes, 12, s)).unwrap(), want);
    let mut u = Unflushed::default();
    for op in log_ops(&log.finish()) {
        let (vdev, op) = op.unwrap();
        assert_eq!(vdev, 5);
        if op.offset >> 20 == 2 {
            u.add(op).unwrap();
        }
    }
    let mut free = RangeSet::new();
    free.insert(s, e);
    u.apply_to(&mut free, s, e).unwrap();
    assert_eq!(free, want);
    assert_eq!(u.net() as u64, (1 << 20) - want.total());
    let mut w = Writer::new(4096, 0, true);
    write_condensed(&mut w, (s, e), &want, 12, 1, Txg::new(60)).unwrap();
    let short = w.finish();
    assert!(short.len() < bytes.len());
    assert_eq!(replay(s, e, map_ops(&short, 12, s)).unwrap(), want);
    assert!(!should_condense(short.len() as u64, 512, &want));
}

/// Several threads at once: no range twice.
#[test]
fn threads() {
    let space = Space::new();
    space.add_top(spec(0, 64 << 20, 20)).unwrap();
    space.add_top(spec(1, 64 << 20, 20)).unwrap();
    let all = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for t in 0..4 {
            let (space, all) = (&space, &all);
            s.spawn(move || {
                let mut mine = Vec::new();
                for i in 0..500 {
                    let req = AllocReq {
                        class: Class::Normal,
                        copies: 1 + i % 2,
                        txg: Txg::new(4),
                        size_on: &|_| 4096 * (1 + (i as u64 % 7)),
                        hint: t,
                    };
                    mine.extend(space.alloc(&req).unwrap());
                }
                all.lock().unwrap().extend(mine);
            });
        }
    });
    let mut v = all.into_inner().unwrap();
    v.sort();
    for w in v.windows(2) {
        assert!(w[0].vdev != w[1].vdev || w[0].offset + w[0].asize <= w[1].offset);
    }
}
