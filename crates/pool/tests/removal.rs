//! Top-level vdevs with data are removed: under churn, with the plug pulled, given up half-way, over other removals, with devices
//! that fail; and with deliberate mistakes, which must be found.

use base::mutation::{mutate, Mutation};
use base::sync::MutexExt;
use base::Kind;
use disk::scan::ScanState;
use disk::ObjType;
use dmu::{NewObject, Objset};
use env_sim::ManualClock;
use pool::{Offline, OpenOptions, OpenSet, Pool, RemovalRefusal};
use sim::rig::{self, Cutter, Layout, FATES, MIB};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::testing::{Event, MemDisk, SeededRng};
use vdev::{DevSpec, GroupKind, TopSpec};

const BLOCK: usize = 16 << 10;
/// Blocks of an object.
const BLOCKS: u64 = 12;

fn block(seed: u64, n: u64) -> Vec<u8> {
    let mut x = (seed << 32 | n).wrapping_mul(2_862_933_555_777_941_757);
    let mut next = || {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (x >> 33) as u8
    };
    (0..BLOCK).map(|_| next()).collect()
}

fn write(os: &Arc<Objset>, seed: u64) -> u64 {
    let tx = os.tx(dmu::Need::bytes(BLOCK as u64 * BLOCKS)).unwrap();
    let new = NewObject {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: BLOCK,
        ..Default::default()
    };
    let dn = os.alloc(&tx, &new).unwrap();
    for n in 0..BLOCKS {
        dn.write(&tx, n * BLOCK as u64, &block(seed, n)).unwrap();
    }
    dn.object()
}

fn verify(os: &Arc<Objset>, object: u64, seed: u64) {
    let dn = os.hold(object).unwrap();
    let mut b = vec![0; BLOCK];
    for n in 0..BLOCKS {
        dn.read(n * BLOCK as u64, &mut b).unwrap();
        assert!(b == block(seed, n), "object {object}, block {n}");
    }
}

fn single(disk: usize) -> TopSpec {
    TopSpec {
        ashift: Some(9),
        ..TopSpec::new(GroupKind::Single, vec![DevSpec::file(format!("d{disk}"))])
    }
}

/// A pool of `d0` with data, to which large disks come.
struct World {
    disks: Vec<Arc<MemDisk>>,
    clock: Arc<ManualClock>,
    pool: Arc<Pool>,
    set: Option<Arc<OpenSet>>,
    /// Object and seed.
    objects: Vec<(u64, u64)>,
    seed: u64,
}

impl World {
    fn new() -> World {
        World::of(&Layout {
            size: 64 * MIB,
            ..Layout::new(GroupKind::Single, 1)
        })
    }

    fn of(l: &Layout) -> World {
        let mut disks: Vec<_> = (0..l.disks).map(|_| MemDisk::new(l.size)).collect();
        disks.extend([640, 1536].map(|mib| MemDisk::new(mib * MIB)));
        let clock = Arc::new(ManualClock::default());
        clock.pass(1_700_000_000 * 1_000_000_000);
        let env = env::Env {
            clock: clock.clone(),
            ..rig::machine(&disks, 1).0
        };
        let pool = rig::create_in(l, env).unwrap();
        let mut w = World {
            disks,
            clock,
            pool,
            set: None,
            objects: Vec::new(),
            seed: 0,
        };
        w.open_set();
        for _ in 0..110 {
            w.write();
        }
        w.pool.sync().unwrap();
        // Gaps, short and long.
        for i in [3, 4, 9, 20, 21, 22] {
            w.free(i);
        }
        w.pool.sync().unwrap();
        w
    }

    fn open_set(&mut self) {
        let ds = self.pool.dsl().root_dataset().unwrap();
        self.set = Some(self.pool.open_dataset(&ds).unwrap());
    }

    fn os(&self) -> &Arc<Objset> {
        &self.set.as_ref().unwrap().os
    }

    fn write(&mut self) {
        self.seed += 1;
        let object = write(self.os(), self.seed);
        self.objects.push((object, self.seed));
    }

    fn free(&mut self, index: usize) {
        let (object, _) = self.objects.remove(index);
        let os = self.os();
        let tx = os.tx(dmu::Need::freeing()).unwrap();
        os.free(&tx, object).unwrap();
    }

    fn add(&self, disk: usize) -> u64 {
        self.pool.add_top(&single(disk)).unwrap()
    }

    fn add_mirror(&self) {
        let devices = vec![DevSpec::file("d2"), DevSpec::file("d3")];
        let mirror = TopSpec {
            ashift: Some(9),
            ..TopSpec::new(GroupKind::Mirror, devices)
        };
        self.pool.add_top(&mirror).unwrap();
    }

    /// A txg in which something is written and something freed, here and there.
    fn churn(&mut self, n: usize) {
        if self.objects.len() > 8 {
            self.free(n * 7 % self.objects.len());
        }
        if n % 3 == 0 {
            self.write();
        }
        // A block of another object is written anew.
        let (object, seed) = self.objects[n * 5 % self.objects.len()];
        let os = self.os();
        let tx = os.tx(dmu::Need::bytes(BLOCK as u64)).unwrap();
        let dn = os.hold(object).unwrap();
        let at = n as u64 % BLOCKS;
        dn.write(&tx, at * BLOCK as u64, &block(seed, at)).unwrap();
        drop(tx);
        self.pool.task(|_, _| Ok(())).unwrap();
    }

    /// Until no removal is under way; returns the txgs it took.
    fn finish(&mut self, churn: bool) -> usize {
        for n in 0..20_000 {
            if !self.pool.is_removing() {
                return n;
            }
            match churn {
                true => self.churn(n),
                false => self.pool.task(|_, _| Ok(())).unwrap(),
            }
        }
        panic!("the removal does not end");
    }

    fn state(&self) -> ScanState {
        self.pool.removal().unwrap().unwrap().state
    }

    fn verify(&self) {
        for (object, seed) in &self.objects {
            verify(self.os(), *object, *seed);
        }
    }

    fn check(&self) {
        if let Err(e) = rig::check(&self.pool) {
            panic!("{e}");
        }
    }

    /// Exports the pool and imports it, without the disks `gone`.
    fn reimport(&mut self, gone: &[usize]) {
        self.set = None;
        self.pool.export().unwrap();
        for i in gone {
            self.disks[*i] = MemDisk::new(64 * MIB);
        }
        let (env, _) = rig::machine(&self.disks, 3);
        let paths: Vec<String> = (0..self.disks.len()).map(|i| format!("d{i}")).collect();
        let found = vdev::discover(&env, &paths);
        let opts = OpenOptions {
            tunables: rig::tunables(),
            ..OpenOptions::default()
        };
        self.pool = Pool::open(env, &found.pools[0].config, opts).unwrap();
        self.open_set();
    }

    fn judged_by_openzfs(&self) {
        let Some(z) = or_skip(OpenZfs::get()) else {
            return;
        };
        let dir = TempDir::new("removal").unwrap();
        let disks: Vec<_> = self.disks.iter().map(|d| d.fork()).collect();
        rig::dump(&disks, dir.path()).unwrap();
        z.check(dir.path(), "tank")
            .unwrap_or_else(|e| panic!("{e}"));
        z.objects(dir.path(), "tank")
            .unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn a_vdev_is_removed_under_churn_and_its_disk_taken_away() {
    let mut w = World::new();
    w.add(1);
    assert!(w.pool.removal_estimate(0).unwrap() > 0);
    w.pool.remove_top(0).unwrap();
    assert!(w.pool.is_removing());
    let again = w.pool.remove_top(1).unwrap_err();
    assert!(matches!(again.kind, Kind::Busy | Kind::NoSpace), "{again}");
    let txgs = w.finish(true);
    assert!(txgs > 10, "{txgs}");
    let r = w.pool.removal().unwrap().unwrap();
    assert_eq!((r.state, r.copied), (ScanState::Finished, r.to_copy));
    assert!(w.pool.mapping_bytes() > 0);
    w.verify();
    w.check();
    w.reimport(&[0]);
    w.verify();
    w.check();
    assert!(w.pool.tree().find_by_name("d0").is_none());
    w.judged_by_openzfs();
    // Everything is freed: nothing of it is left anywhere, and the mapping goes away.
    let before = w.pool.mapping_bytes();
    w.pool.set_least_condensed(0);
    while w.objects.len() > 4 {
        w.free(0);
    }
    for _ in 0..60 {
        w.pool.task(|_, _| Ok(())).unwrap();
    }
    assert!(w.pool.mapping_bytes() < before / 2, "{before}");
    w.verify();
    w.check();
    w.reimport(&[]);
    w.verify();
    w.check();
    w.set = None;
    w.pool.export().unwrap();
    w.judged_by_openzfs();
}

#[test]
fn a_removal_over_a_removal_leads_to_the_last_place() {
    let mut w = World::new();
    w.add(1);
    w.pool.remove_top(0).unwrap();
    w.finish(false);
    w.add(2);
    w.pool.remove_top(1).unwrap();
    let txgs = w.finish(true);
    assert!(txgs > 5, "{txgs}");
    w.verify();
    w.check();
    w.reimport(&[0, 1]);
    w.verify();
    w.check();
    while w.objects.len() > 2 {
        w.free(0);
    }
    for n in 0..4 {
        w.churn(n);
    }
    w.verify();
    w.check();
    w.set = None;
    w.pool.export().unwrap();
    w.judged_by_openzfs();
}

/// What is freed on removed vdevs while there is a checkpoint is kept where it is now.
#[test]
fn a_checkpoint_keeps_what_lay_on_removed_vdevs() {
    let mut w = World::new();
    w.add(1);
    w.pool.remove_top(0).unwrap();
    w.finish(false);
    w.add(2);
    w.pool.remove_top(1).unwrap();
    w.finish(false);
    let then = w.objects.clone();
    w.pool.take_checkpoint().unwrap();
    for n in 0..30 {
        w.churn(n);
    }
    while w.objects.len() > then.len() / 2 {
        w.free(0);
    }
    w.pool.sync().unwrap();
    assert!(w.pool.shares().checkpoint.kept(2) > MIB);
    w.verify();
    w.check();
    w.set = None;
    w.pool.export().unwrap();
    w.judged_by_openzfs();
    // One future of the pool goes back, the other goes on.
    let disks: Vec<_> = w.disks.iter().map(|d| d.fork()).collect();
    w.reimport_closed();
    w.pool.discard_checkpoint().unwrap();
    while w.pool.shares().checkpoint.is_discarding() {
        w.pool.task(|_, _| Ok(())).unwrap();
    }
    w.verify();
    w.check();
    w.set = None;
    w.pool.export().unwrap();
    w.judged_by_openzfs();
    let now = std::mem::replace(&mut w.disks, disks);
    drop(now);
    w.objects = then;
    w.reimport_with(OpenOptions {
        tunables: rig::tunables(),
        checkpoint: true,
        ..OpenOptions::default()
    });
    w.verify();
    w.check();
    w.set = None;
    w.pool.export().unwrap();
    w.judged_by_openzfs();
}

#[test]
fn a_canceled_removal_gives_everything_back() {
    for steps in [0, 1, 5, 17, 40] {
        let mut w = World::new();
        w.add(1);
        w.pool.remove_top(0).unwrap();
        for n in 0..steps {
            w.churn(n);
        }
        assert!(w.pool.is_removing(), "{steps}");
        w.pool.cancel_removal().unwrap();
        assert_eq!(w.state(), ScanState::Canceled);
        assert_eq!(w.pool.cancel_removal().unwrap_err().kind, Kind::NotFound);
        w.verify();
        w.check();
        for n in 0..5 {
            w.churn(n);
        }
        w.check();
        // And it may begin anew.
        w.pool.remove_top(0).unwrap();
        w.finish(true);
        assert_eq!(w.state(), ScanState::Finished);
        w.reimport(&[0]);
        w.verify();
        w.check();
    }
}

#[test]
fn an_exported_removal_goes_on_after_the_import() {
    let mut w = World::new();
    w.add(1);
    w.pool.remove_top(0).unwrap();
    for n in 0..4 {
        w.churn(n);
        w.reimport(&[]);
        assert!(w.pool.is_removing());
        w.verify();
        w.check();
    }
    w.set = None;
    w.pool.export().unwrap();
    w.judged_by_openzfs();
    w.reimport_closed();
    w.finish(true);
    let r = w.pool.removal().unwrap().unwrap();
    assert_eq!((r.state, r.copied), (ScanState::Finished, r.to_copy));
    w.reimport(&[0]);
    w.verify();
    w.check();
}

impl World {
    /// Imports a pool that is exported already.
    fn reimport_closed(&mut self) {
        self.reimport_with(OpenOptions {
            tunables: rig::tunables(),
            ..OpenOptions::default()
        });
    }

    fn reimport_with(&mut self, opts: OpenOptions) {
        let (env, _) = rig::machine(&self.disks, 3);
        let paths: Vec<String> = (0..self.disks.len()).map(|i| format!("d{i}")).collect();
        let found = vdev::discover(&env, &paths);
        self.pool = Pool::open(env, &found.pools[0].config, opts).unwrap();
        self.open_set();
    }
}

#[test]
fn what_rules_a_removal_out_is_refused_and_changes_nothing() {
    let w = World::new();
    let refused = |id| w.pool.removal_refusal(id).unwrap();
    // The last one.
    assert_eq!(refused(0), Some(RemovalRefusal::NoSpace));
    let e = w.pool.remove_top(0).unwrap_err();
    assert_eq!(
        (e.kind, e.to_string().as_str()),
        (Kind::NoSpace, "out of space")
    );
    w.add(1);
    assert_eq!(refused(0), None);
    assert!(w.pool.remove_top(9).is_err());
    // Another sector size.
    let other = TopSpec {
        ashift: Some(12),
        ..single(2)
    };
    w.pool.add_top(&other).unwrap();
    assert_eq!(refused(0), Some(RemovalRefusal::Layout));
    let e = w.pool.remove_top(0).unwrap_err();
    assert!(
        e.to_string().contains("must have the same sector size"),
        "{e}"
    );
    assert!(w.pool.space().is_allocating(0));
    w.check();
}

#[test]
fn sectors_that_cannot_be_read_cancel_the_removal() {
    let mut w = World::new();
    w.add(1);
    w.pool.remove_top(0).unwrap();
    for n in 0..3 {
        w.churn(n);
    }
    let place = |(object, _): &(u64, u64)| {
        let bp = w.os().pointer_of(*object, 0, 3).unwrap().unwrap();
        let d = bp.dva(0);
        (d.vdev() == 0).then(|| d.offset())
    };
    let at = 4 * MIB + w.objects.iter().filter_map(place).max().unwrap();
    w.disks[0].bad_ranges.acquire().insert(at, at + 512);
    w.finish(false);
    w.disks[0].well();
    assert_eq!(w.state(), ScanState::Canceled);
    w.verify();
    rig::walk(&w.pool).unwrap_or_else(|e| panic!("{e}"));
}

/// Where the plug was pulled, the pool is there with all data, and the removal goes on to its end or was given up.
#[test]
fn a_crash_at_any_state_of_a_removal_loses_nothing() {
    for cancel in [false, true] {
        let mut w = World::new();
        w.add(1);
        w.pool.sync().unwrap();
        let kept: Vec<_> = w.objects.drain(..12).collect();
        let (journal, base) = rig::start_journal(&w.disks);
        w.pool.remove_top(0).unwrap();
        if cancel {
            for n in 0..12 {
                w.churn(n);
            }
            w.pool.cancel_removal().unwrap();
        } else {
            w.finish(true);
        }
        for n in 0..3 {
            w.churn(n);
        }
        w.set = None;
        let events = journal.take();
        w.pool.close().unwrap();

        let flushes = events.iter().enumerate();
        let flushes = flushes.filter(|(_, e)| matches!(e, Event::Flush { .. }));
        let mut moments: Vec<usize> = flushes.flat_map(|(i, _)| [i, i + 1]).collect();
        // Every state takes long: some of them, the last ones among them.
        let every = (moments.len() / 30).max(1);
        let count = moments.len();
        let mut n = 0;
        moments.retain(|_| {
            n += 1;
            n % every == 0 || n + 12 > count
        });
        let rng = SeededRng::new(11);
        let mut cutter = Cutter::new(&base, events);
        let mut states = [0, 0];
        for (n, at) in moments.into_iter().enumerate() {
            cutter.forward(at);
            let image = cutter.image(FATES[n % FATES.len()], &rng);
            let (env, _) = rig::machine(&image, 3);
            let paths: Vec<String> = (0..image.len()).map(|i| format!("d{i}")).collect();
            let found = vdev::discover(&env, &paths);
            let config = found.pools[0].config.clone();
            let pool = rig::open(&image, &config, 4).unwrap_or_else(|e| panic!("at {at}: {e}"));
            states[usize::from(pool.is_removing())] += 1;
            rig::check(&pool).unwrap_or_else(|e| panic!("at {at}: {e}"));
            for _ in 0..20_000 {
                if !pool.is_removing() {
                    break;
                }
                pool.task(|_, _| Ok(())).unwrap();
            }
            assert!(!pool.is_removing(), "at {at}");
            rig::check(&pool).unwrap_or_else(|e| panic!("at {at}, afterwards: {e}"));
            let ds = pool.dsl().root_dataset().unwrap();
            let set = pool.open_dataset(&ds).unwrap();
            for (object, seed) in &kept {
                verify(&set.os, *object, *seed);
            }
            drop((set, ds));
            pool.export().unwrap();
        }
        assert!(states.iter().all(|n| *n > 0), "{states:?}");
    }
}

/// Frees of what is being copied are handled with the txg of the copy: who forgets them is found out. (A free across the regions is
/// rare here; a unit test of the regions finds who handles one of them only.)
#[test]
fn a_free_of_what_is_being_copied_that_is_forgotten_is_found() {
    let mistake = Mutation::RemovalForgetsFlight;
    let mut w = World::new();
    w.add(1);
    w.pool.remove_top(0).unwrap();
    mutate(Some(mistake));
    let mut found = false;
    for n in 0..400 {
        if !w.pool.is_removing() {
            break;
        }
        w.churn(n);
        found |= rig::walk(&w.pool).is_err();
        if found {
            break;
        }
    }
    mutate(None);
    assert!(found, "{mistake:?}");
}

/// Copies that differ on the sides of a mirror stay apart on a mirror, so that the good one is still there.
#[test]
fn the_good_copy_of_a_mirror_survives_the_removal() {
    let mut w = mirror_pool();
    w.add_mirror();
    // Everything on one side rots, but its labels.
    let (start, end) = (4 * MIB, 63 * MIB);
    w.disks[0].poke(start, &vec![0x5a; (end - start) as usize]);
    w.pool.remove_top(0).unwrap();
    w.finish(false);
    assert_eq!(w.state(), ScanState::Finished);
    w.reimport(&[0, 1]);
    w.verify();
    rig::walk(&w.pool).unwrap_or_else(|e| panic!("{e}"));
}

fn mirror_pool() -> World {
    World::of(&Layout {
        size: 64 * MIB,
        ..Layout::new(GroupKind::Mirror, 2)
    })
}

/// What is in use on the first vdev.
fn in_use(w: &World) -> base::RangeSet {
    let mut out = base::RangeSet::new();
    for ms in 0..w.pool.space().metaslab_count(0) {
        w.pool.space().ensure_loaded(0, ms).unwrap();
        for (s, e) in w.pool.space().in_use(0, ms).unwrap().iter() {
            out.insert(s, e);
        }
    }
    out
}

/// Where which side is right is not known, and the other vdev has no room for both, the vdev stays. After a scrub it goes.
#[test]
fn sides_that_differ_are_not_removed_to_fewer_devices() {
    for one_away in [false, true] {
        let mut w = mirror_pool();
        match one_away {
            true => {
                w.add_mirror();
                let side = w.pool.tree().find_by_name("d3").unwrap().guid();
                let how = Offline {
                    temporary: true,
                    fault: false,
                };
                w.pool.offline(side, how).unwrap();
            }
            false => drop(w.add(2)),
        }
        // Everything on one side rots, but its labels.
        let (start, end) = (4 * MIB, 63 * MIB);
        w.disks[0].poke(start, &vec![0x5a; (end - start) as usize]);
        w.pool.remove_top(0).unwrap();
        w.finish(false);
        assert_eq!(w.state(), ScanState::Canceled);
        assert!(w.pool.tree().top(0).unwrap().is_concrete());
        let scrub = pool::ScrubRange::default();
        let begun = w.pool.start_scrub(scrub, ("scrub".into(), 0)).unwrap();
        begun.unwrap();
        while w.pool.scan_progress().unwrap().unwrap().state.state == ScanState::Scanning {
            w.pool.task(|_, _| Ok(())).unwrap();
        }
        w.pool.remove_top(0).unwrap();
        w.finish(true);
        assert_eq!(w.state(), ScanState::Finished);
        w.reimport(&[0, 1]);
        w.verify();
        rig::walk(&w.pool).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// What the sides have where nothing is in use is nobody's concern.
#[test]
fn sides_that_differ_in_free_space_are_removed_to_one_device() {
    let mut w = mirror_pool();
    w.add(2);
    for n in 0..20 {
        w.churn(n);
    }
    w.pool.remove_top(0).unwrap();
    let used = in_use(&w);
    let mut gaps = 0;
    for (s, e) in used.gaps(0, 32 * MIB) {
        w.disks[0].poke(4 * MIB + s, &vec![0x5a; (e - s) as usize]);
        gaps += usize::from(e - s <= 32 << 10);
    }
    assert!(gaps > 2, "{gaps}");
    w.finish(false);
    assert_eq!(w.state(), ScanState::Finished);
    w.reimport(&[0, 1]);
    w.verify();
    w.check();
}

/// Sectors that nobody needs, or that the other side has, do not end a removal.
#[test]
fn bad_sectors_that_cost_nothing_do_not_cancel_a_removal() {
    let mut w = World::new();
    w.add(1);
    for n in 0..20 {
        w.churn(n);
    }
    w.pool.remove_top(0).unwrap();
    let short = |(s, e): &(u64, u64)| e - s <= 32 << 10;
    let gaps: Vec<_> = in_use(&w).gaps(0, 32 * MIB);
    assert!(gaps.iter().filter(|g| short(g)).count() > 2);
    for (s, _) in gaps.into_iter().filter(short) {
        let at = 4 * MIB + s;
        w.disks[0].bad_ranges.acquire().insert(at, at + 512);
    }
    w.finish(false);
    assert_eq!(w.state(), ScanState::Finished);
    w.reimport(&[0]);
    w.verify();
    w.check();

    let mut w = mirror_pool();
    w.add(2);
    w.pool.remove_top(0).unwrap();
    for (s, e) in in_use(&w).iter().step_by(3) {
        for at in (s..e).step_by(96 << 10) {
            let at = 4 * MIB + at;
            w.disks[0].bad_ranges.acquire().insert(at, at + 512);
            let other = (at + 512).min(4 * MIB + e);
            w.disks[1].bad_ranges.acquire().insert(other, other + 512);
        }
    }
    w.finish(false);
    assert_eq!(w.state(), ScanState::Finished);
    w.reimport(&[0, 1]);
    w.verify();
    w.check();
}

/// Space runs out for a moment, down to the smallest piece there is on sectors of 4,096 bytes. The removal waits, and goes on with large
/// pieces. What a txg needs itself is on a special vdev.
#[test]
fn a_removal_that_finds_no_space_for_a_sector_waits() {
    let mut w = World::of(&Layout {
        size: 64 * MIB,
        ashift: 12,
        ..Layout::new(GroupKind::Single, 1)
    });
    let wide = |disk| TopSpec {
        ashift: Some(12),
        ..single(disk)
    };
    let special = TopSpec {
        bias: Some(vdev::Bias::Special),
        ..wide(2)
    };
    w.pool.add_top(&special).unwrap();
    w.pool.add_top(&wide(1)).unwrap();
    w.pool.remove_top(0).unwrap();
    w.pool.space().set_allocating(2, false).unwrap();
    for _ in 0..10 {
        w.pool.task(|_, _| Ok(())).unwrap();
    }
    assert!(w.pool.is_removing());
    w.pool.space().set_allocating(2, true).unwrap();
    w.clock.pass(10_000_000_000);
    w.finish(false);
    assert_eq!(w.state(), ScanState::Finished);
    let entries = w.pool.mapping_bytes() / 24;
    assert!(entries < 400, "{entries}");
    w.reimport(&[0]);
    w.verify();
    w.check();
}

/// The removal of a mirror to another one, of which a side is away from txg `away` of the copying on, and back in txg `back`. When it has
/// been resilvered, every other disk is taken away.
fn a_side_misses_copies(away: usize, back: usize) -> Result<(), String> {
    let mut w = mirror_pool();
    w.add_mirror();
    let side = w.pool.tree().find_by_name("d3").unwrap().guid();
    w.pool.remove_top(0).unwrap();
    let mut txgs = 0;
    let mut step = |w: &mut World| {
        if txgs == away {
            let how = Offline {
                temporary: true,
                fault: false,
            };
            w.pool.offline(side, how).unwrap();
        }
        if txgs == back {
            w.pool.online(side).unwrap();
        }
        w.churn(txgs);
        txgs += 1;
        txgs
    };
    while step(&mut w) < back + 2 || w.pool.is_removing() || w.pool.is_resilvering() {
        assert!(w.state() != ScanState::Canceled);
    }
    assert_eq!(w.state(), ScanState::Finished);
    let lacks = w.pool.tree().find(side).unwrap().dtl();
    if !lacks.is_empty() {
        return Err(format!("it still lacks {lacks:?}"));
    }
    w.reimport(&[0, 1, 2]);
    let done = rig::walk(&w.pool);
    if done.is_ok() {
        w.verify();
    }
    done
}

/// Txgs of the copying from which on a side of the destination is away, and in which it comes back: so early that a resilver ends before
/// the removal, later, and behind the removal.
const MISSED: [(usize, usize); 3] = [(5, 12), (25, 35), (20, 400)];

/// Copies are found by pointers of old txgs only, and by none before the removal ends.
#[test]
fn copies_that_a_device_missed_are_resilvered() {
    for (away, back) in MISSED {
        let found = a_side_misses_copies(away, back);
        found.unwrap_or_else(|e| panic!("away from txg {away} on: {e}"));
    }
}

#[test]
fn a_resilver_that_forgets_copies_is_found() {
    for (away, back) in MISSED {
        mutate(Some(Mutation::ResilverForgetsCopies));
        let found = a_side_misses_copies(away, back);
        mutate(None);
        found.expect_err(&format!("away from txg {away} on"));
    }
}

/// All copies of a block are spoilt while its vdev is removed, or afterwards, and mended as a stream mends them.
#[test]
fn a_block_is_mended_on_a_vdev_that_is_removed() {
    let mut w = World::new();
    w.add(1);
    w.pool.sync().unwrap();
    let on_first = |w: &World, (object, _): &(u64, u64)| {
        let bp = w.os().pointer_of(*object, 0, 3).unwrap().unwrap();
        (bp.dva(0).vdev() == 0).then_some(bp)
    };
    let all: Vec<_> = w.objects.iter().filter_map(|o| on_first(&w, o)).collect();
    assert!(all.len() > 20, "{}", all.len());
    let spoil_and_mend = |w: &World| {
        for bp in &all {
            let (dva, birth) = (bp.dva(0), bp.physical_birth());
            let right = w.pool.zio().read_raw(bp).unwrap();
            let wrong: Vec<u8> = right.iter().map(|b| b ^ 0x5a).collect();
            let devices = &w.pool.zio().devices;
            devices.mend(&dva, birth, &wrong).unwrap();
            assert!(w.pool.zio().probe_raw(bp).is_err());
            assert!(devices.mend(&dva, birth, &right).unwrap().written > 0);
            w.pool.zio().probe_raw(bp).unwrap();
        }
    };
    w.pool.remove_top(0).unwrap();
    for _ in 0..12 {
        w.pool.task(|_, _| Ok(())).unwrap();
    }
    assert!(w.pool.is_removing());
    // What is copied while it is spoilt is mended where it was copied to.
    let kept: Vec<(u64, Vec<u8>)> = (all.iter().enumerate())
        .map(|(n, bp)| (n as u64, w.pool.zio().read_raw(bp).unwrap()))
        .collect();
    for (n, right) in &kept {
        let bp = &all[*n as usize];
        let wrong: Vec<u8> = right.iter().map(|b| b ^ 0x5a).collect();
        let devices = &w.pool.zio().devices;
        devices
            .mend(&bp.dva(0), bp.physical_birth(), &wrong)
            .unwrap();
    }
    for _ in 0..6 {
        w.pool.task(|_, _| Ok(())).unwrap();
    }
    assert!(w.pool.is_removing());
    for (n, right) in &kept {
        let bp = &all[*n as usize];
        let devices = &w.pool.zio().devices;
        devices
            .mend(&bp.dva(0), bp.physical_birth(), right)
            .unwrap();
    }
    spoil_and_mend(&w);
    w.finish(false);
    w.verify();
    spoil_and_mend(&w);
    w.verify();
    w.reimport(&[0]);
    w.verify();
    rig::walk(&w.pool).unwrap_or_else(|e| panic!("{e}"));
}
