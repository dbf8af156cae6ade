//! RAID-Z expanded by a device while the pool is in use.

use crate::rebuild::dev;
use crate::world::{finish, World};
use base::mutation::{mutate, Mutation};
use base::{Kind, Txg};
use disk::feature::guid::RAIDZ_EXPANSION;
use disk::scan::{Function, ScanState};
use disk::uberblock::scratch;
use dsl::Features;
use env_sim::{Event, MemDisk, SeededRng};
use pool::{ExpandRefusal, Pool};
use sim::rig::{self, Cutter, Fate, Layout, FATES};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::{ExpansionRefusal, GroupKind, State};

fn layout(nparity: usize, disks: usize, ashift: u32, bench: usize) -> Layout {
    Layout {
        ashift,
        bench,
        ..Layout::new(GroupKind::Raidz { nparity }, disks)
    }
}

/// Opens what is on the disks, as their labels say.
fn open(disks: &[Arc<MemDisk>], seed: u64) -> Result<Arc<Pool>, String> {
    let (env, all) = rig::machine(disks, seed);
    let found = vdev::discover(&env, &all.paths()).pools;
    let pool = found.first().ok_or("no pool is found")?;
    rig::open(disks, &pool.config, seed).map_err(|e| e.to_string())
}

/// Writes txgs until the expansion is over.
fn expanded(pool: &Pool) -> Result<(), String> {
    for _ in 0..3000 {
        if !pool.is_expanding() {
            return Ok(());
        }
        pool.sync().map_err(|e| e.to_string())?;
    }
    Err(format!(
        "the expansion does not end: {:?}",
        pool.expansion_progress()
    ))
}

/// The first expansion seems to be newer than the second, which is under way.
#[test]
fn no_checkpoint_is_taken_during_an_expansion_whatever_the_clock_says() {
    let l = layout(1, 3, 9, 0);
    let disks: Vec<_> = (0..8).map(|_| MemDisk::new(l.size)).collect();
    let clock = Arc::new(env_sim::ManualClock::default());
    clock.seconds.store(1_700_000_000, Relaxed);
    let env = env::Env {
        clock: clock.clone(),
        ..rig::machine(&disks, 1).0
    };
    let pool = rig::create_in(&l, env).unwrap();
    let second = vdev::TopSpec {
        ashift: Some(9),
        ..vdev::TopSpec::new(l.kind, (3..6).map(dev).collect())
    };
    let second = pool.add_top(&second).unwrap();
    pool.expand_raidz(0, &dev(6), None).unwrap();
    expanded(&pool).unwrap();
    clock.seconds.store(1_600_000_000, Relaxed);
    pool.expand_raidz(second, &dev(7), None).unwrap();
    assert!(pool.is_expanding());
    assert_eq!(pool.take_checkpoint().unwrap_err().kind, Kind::Busy);
    assert_eq!(pool.expansion().unwrap().unwrap().vdev, second);
    expanded(&pool).unwrap();
    pool.take_checkpoint().unwrap();
}

/// All choices of `n` of `of` disks.
fn choices(n: usize, of: usize) -> Vec<BTreeSet<usize>> {
    match (n, of) {
        (0, _) => vec![BTreeSet::new()],
        (n, of) if n > of => Vec::new(),
        (n, of) => {
            let mut out = choices(n, of - 1);
            out.extend(choices(n - 1, of - 1).into_iter().map(|mut c| {
                c.insert(of - 1);
                c
            }));
            out
        }
    }
}

/// Every block can be read whichever disks are away, as many as there is parity.
fn stands_losses(disks: &[Arc<MemDisk>], nparity: usize, few: bool) -> Result<(), String> {
    let gone = choices(nparity, disks.len());
    let every = if few { gone.len().div_ceil(3) } else { 1 };
    for gone in gone.iter().step_by(every) {
        let image: Vec<_> = (disks.iter().enumerate())
            .map(|(i, d)| match gone.contains(&i) {
                true => MemDisk::new(96 * rig::MIB),
                false => d.fork(),
            })
            .collect();
        let pool = open(&image, 5).map_err(|e| format!("without {gone:?}: {e}"))?;
        rig::walk(&pool).map_err(|e| format!("without {gone:?}: {e}"))?;
        let bad: u64 = pool.tree().all().iter().map(|v| v.stats.errors().2).sum();
        if bad > 0 {
            return Err(format!("without {gone:?}: {bad} checksum errors"));
        }
        pool.close().map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// So much that it reaches beyond the scratch area, in several metaslabs.
fn fill(w: &World) {
    w.fill("a", 700);
    w.snapshot("a", "s");
    w.pool.space().set_edges(1 << 24);
    w.write("a", 900);
    w.pool.space().set_edges(0);
    w.fill("b", 300);
    w.destroy("b");
}

#[test]
fn a_raidz_grows_and_stands_the_loss_of_as_many_disks() {
    for (nparity, disks, ashift) in [(1, 3, 9), (2, 4, 12), (3, 5, 9), (1, 2, 12)] {
        let mut w = World::of(&layout(nparity, disks, ashift, 2));
        fill(&w);
        let before = w.pool.space().stats().vdevs[0].size;
        for n in 0..2 {
            w.pool.expand_raidz(0, &dev(disks + n), None).unwrap();
            assert!(w.pool.is_expanding());
            assert_eq!(
                w.pool.expand_refusal(0).unwrap(),
                Some(ExpandRefusal::UnderWay)
            );
            w.write("a", 60);
            expanded(&w.pool).unwrap();
            let e = w.pool.expansion().unwrap().unwrap();
            assert_eq!((e.vdev, e.state), (0, ScanState::Finished));
            assert!(e.copied > 1 << 20 && e.end >= e.start, "{e:?}");
            let count = w.pool.feature_store().unwrap().count(RAIDZ_EXPANSION);
            assert_eq!(count.unwrap(), n as u64 + 1);
            let s = w.finish();
            assert_eq!(
                (s.function, s.state, s.errors, s.processed),
                (Function::Scrub, ScanState::Finished, 0, 0)
            );
            assert_eq!(w.pool.tree().state().0, State::Healthy);
            let now = w.pool.space().stats().vdevs[0].size;
            let disk = before / disks as u64;
            assert!(
                now > before + (n as u64 + 1) * disk - (32 << 20),
                "{before} {now}"
            );
            // Of the new width.
            w.write("a", 200);
            rig::check(&w.pool).unwrap();
            w.pool.export().unwrap();
            let used = &w.disks[..disks + n + 1];
            stands_losses(used, nparity, true).unwrap();
            if let Some(z) = or_skip(OpenZfs::get()) {
                let dir = TempDir::new("expansion").unwrap();
                rig::dump(used, dir.path()).unwrap();
                z.check(dir.path(), "tank").unwrap();
            }
            w.disks = w.image(&|_| true);
            w.pool = open(&w.disks, 9).unwrap();
        }
    }
}

/// What an expansion under load leaves when the power goes: at every flush, with every fate.
struct Cuts {
    seen: BTreeSet<u64>,
    images: usize,
}

fn cut_everywhere(mistake: Option<Mutation>, every: usize, zdb: bool) -> Result<Cuts, String> {
    let (nparity, disks) = (1, 3);
    let rng = SeededRng::new(3);
    let w = World::of(&layout(nparity, disks, 9, 1));
    fill(&w);
    let (journal, base) = rig::start_journal(&w.disks);
    w.pool.expand_raidz(0, &dev(disks), None).unwrap();
    mutate(mistake);
    for n in 0.. {
        w.write("a", 40);
        if n % 3 == 2 {
            w.snapshot("a", &format!("s{n}"));
        }
        if !w.pool.is_expanding() {
            break;
        }
    }
    w.write("a", 40);
    mutate(None);
    let events = journal.take();
    let flushes: Vec<usize> = (events.iter().enumerate())
        .filter(|(_, e)| matches!(e, Event::Flush { .. }))
        .map(|(i, _)| i)
        .collect();
    let total = events.len();
    // Around the use of the scratch area everywhere.
    let boot = disk::label::BOOT_AREA..disk::label::DATA_START;
    let scratch = events.iter().position(|e| match e {
        Event::Write { offset, .. } => boot.contains(offset),
        _ => false,
    });
    let scratch = scratch.ok_or("the scratch area is not used")?;
    let near = scratch.saturating_sub(20)..scratch + 120;
    let mut moments: Vec<(usize, Fate)> = Vec::new();
    let chosen = flushes.iter().enumerate();
    for (n, f) in chosen.filter(|(n, f)| near.contains(f) || n % every == 0) {
        moments.push((*f, FATES[n % 5]));
        moments.push((f + 1, FATES[(n + 1) % 5]));
    }
    moments.push((total, Fate::Lost));
    let mut cutter = Cutter::new(&base, events);
    let mut cuts = Cuts {
        seen: BTreeSet::new(),
        images: 0,
    };
    for (i, (at, fate)) in moments.into_iter().enumerate() {
        cutter.forward(at);
        let image = cutter.image(fate, &rng);
        let wrong = |e: String| format!("event {at} of {total} ({fate:?}): {e}");
        let state = newest_state(&image);
        let fresh = cuts.seen.insert(state);
        cuts.images += 1;
        if let Some(z) = or_skip(OpenZfs::get()).filter(|_| zdb && (fresh || i % 40 == 0)) {
            let dir = TempDir::new("expansion").unwrap();
            rig::dump(&image, dir.path()).unwrap();
            z.check(dir.path(), "tank")
                .map_err(|e| wrong(format!("{e:?}")))?;
        }
        judge(&image, nparity, i).map_err(wrong)?;
    }
    Ok(cuts)
}

/// State of the scratch area in the uberblock that an import finds.
fn newest_state(disks: &[Arc<MemDisk>]) -> u64 {
    let found = disks
        .iter()
        .filter_map(|d| vdev::label::best_uberblock(&**d, 9, Txg::MAX));
    let best = found.max_by_key(|u| u.rank()).unwrap();
    best.scratch_state()
}

fn judge(image: &[Arc<MemDisk>], nparity: usize, n: usize) -> Result<(), String> {
    // As it was left, with a disk missing.
    if n % 5 == 0 {
        stands_losses(image, nparity, true)?;
    }
    let pool = open(image, 3)?;
    rig::check(&pool)?;
    if n % 4 != 0 {
        return pool.close().map_err(|e| e.to_string());
    }
    if pool.expansion().map_err(|e| e.to_string())?.is_none() {
        // The power went before there was one.
        return pool.close().map_err(|e| e.to_string());
    }
    expanded(&pool)?;
    let s = finish(&pool);
    if (s.errors, s.processed) != (0, 0) {
        return Err(format!("the scrub behind it found {s:?}"));
    }
    rig::check(&pool)?;
    pool.close().map_err(|e| e.to_string())?;
    stands_losses(image, nparity, true)
}

#[test]
fn a_power_cut_anywhere_leaves_a_whole_pool_that_goes_on() {
    let cuts = cut_everywhere(None, 7, true).unwrap();
    assert!(cuts.images > 60, "{}", cuts.images);
    let want = [
        scratch::NOT_IN_USE,
        scratch::VALID,
        scratch::INVALID_SYNCED,
        scratch::INVALID_SYNCED_REFLOW,
    ];
    assert_eq!(cuts.seen, want.into_iter().collect());
}

#[test]
fn progress_a_row_ahead_is_found() {
    let found = cut_everywhere(Some(Mutation::ExpansionRowAhead), 3, false);
    assert!(found.is_err());
}

#[test]
fn a_scratch_area_given_up_early_is_found() {
    let found = cut_everywhere(Some(Mutation::ScratchClearedEarly), 50, false);
    assert!(found.is_err());
}

#[test]
fn writes_to_one_place_of_two_are_found() {
    let found = cut_everywhere(Some(Mutation::ExpansionWritesOnce), 3, false);
    assert!(found.is_err());
}

#[test]
fn an_expansion_waits_for_a_missing_disk_and_for_its_resilver() {
    let mut w = World::of(&layout(1, 4, 9, 1));
    fill(&w);
    w.pool.expand_raidz(0, &dev(4), None).unwrap();
    for _ in 0..9 {
        w.pool.sync().unwrap();
    }
    let stale: Vec<_> = w.disks.iter().map(|d| d.fork()).collect();
    let before = w.pool.expansion_progress().unwrap();
    assert!(before.0 > 0, "{before:?}");
    for lost in [1, 4] {
        w.disks = w.image(&|i| i != lost);
        w.pool = open(&w.disks, 7).unwrap();
        w.write("a", 100);
        for _ in 0..20 {
            w.pool.sync().unwrap();
        }
        assert!(w.pool.is_expanding() && w.pool.expansion_waits());
        w.pool.export().unwrap();
        w.disks[lost] = stale[lost].clone();
        w.disks = w.image(&|_| true);
        w.pool = open(&w.disks, 8).unwrap();
        if lost == 1 {
            // It comes back, and goes before it has everything.
            continue;
        }
        assert!(w.pool.is_expanding());
    }
    expanded(&w.pool).unwrap();
    assert_eq!(w.finish().errors, 0);
    rig::walk(&w.pool).unwrap();
    w.pool.export().unwrap();
    stands_losses(&w.disks, 1, false).unwrap();
}

/// What failed is not tried for half a minute, on a clock that stands here; but for a device that was away and is back.
#[test]
fn an_expansion_goes_on_at_once_when_the_device_that_failed_is_back() {
    let w = World::of(&layout(1, 4, 9, 1));
    fill(&w);
    w.pool.expand_raidz(0, &dev(4), None).unwrap();
    while w.pool.expansion_progress().unwrap().0 == 0 {
        w.pool.sync().unwrap();
    }
    w.disks[1].fail_reads.store(true, Relaxed);
    w.disks[1].fail_writes.store(true, Relaxed);
    for _ in 0..20 {
        if w.pool.expansion_waits() {
            break;
        }
        w.pool.sync().unwrap();
    }
    assert!(w.pool.is_expanding() && w.pool.expansion_waits());
    let leaf = crate::rebuild::leaf(&w.pool, 1);
    let how = pool::Offline {
        temporary: true,
        fault: false,
    };
    w.pool.offline(leaf, how).unwrap();
    w.pool.sync().unwrap();
    w.disks[1].fail_reads.store(false, Relaxed);
    w.disks[1].fail_writes.store(false, Relaxed);
    w.pool.online(leaf).unwrap();
    expanded(&w.pool).unwrap();
    assert_eq!(finish(&w.pool).errors, 0);
    rig::walk(&w.pool).unwrap();
}

#[test]
fn a_raidz_that_is_not_whole_or_a_device_that_does_not_fit_is_refused() {
    let w = World::of(&layout(1, 3, 9, 1));
    let small = MemDisk::new(64 << 20);
    let refused = |w: &World, want: &str| {
        let e = w.pool.expand_raidz(0, &dev(3), None).unwrap_err();
        assert!(e.to_string().contains(want), "{e}");
        assert!(!w.pool.is_expanding());
        assert_eq!(
            w.pool
                .feature_store()
                .unwrap()
                .count(RAIDZ_EXPANSION)
                .unwrap(),
            0
        );
    };
    let leaf = crate::rebuild::leaf(&w.pool, 1);
    let how = pool::Offline {
        temporary: false,
        fault: false,
    };
    w.pool.offline(leaf, how).unwrap();
    refused(&w, "offline or being replaced");
    assert_eq!(
        w.pool.expand_refusal(0).unwrap(),
        Some(ExpandRefusal::Vdev(ExpansionRefusal::NotWhole))
    );
    w.pool.online(leaf).unwrap();
    w.pool.sync().unwrap();
    while w.pool.expand_refusal(0).unwrap().is_some() {
        w.pool.sync().unwrap();
    }
    let mut disks = w.image(&|_| true);
    disks[3] = small;
    let w = World {
        pool: open(&disks, 3).unwrap(),
        disks,
        config: w.config.clone(),
    };
    refused(&w, "device is too small");
    let single = World::with_bench(GroupKind::Single, 1, 1);
    let e = single.pool.expand_raidz(0, &dev(1), None).unwrap_err();
    assert_eq!(e.kind, Kind::Unsupported);
}
