//! A pool is split: both halves judged by walking every block and by OpenZFS, and with the plug pulled at each flush.

use base::sync::MutexExt;
use base::Kind;
use pool::{Pool, SplitSpec};
use sim::rig::{self, Cutter, Layout, FATES};
use std::sync::Arc;
use vdev::testing::SeededRng;
use vdev::{DevSpec, GroupKind, TopSpec};

/// Disks of [`create`]: a mirror of two, a log, a mirror of three, an idle one.
const DISKS: usize = 7;
const LOG: usize = 2;

/// A pool of two mirrors and a log.
fn create() -> (Vec<Arc<env_sim::MemDisk>>, Arc<Pool>) {
    let layout = Layout {
        slog: true,
        bench: DISKS - 3,
        ..Layout::new(GroupKind::Mirror, 2)
    };
    let (disks, pool) = rig::create(&layout, 1);
    let devs = (3..6).map(|i| DevSpec::file(format!("d{i}"))).collect();
    pool.add_top(&TopSpec {
        ashift: Some(9),
        ..TopSpec::new(GroupKind::Mirror, devs)
    })
    .unwrap();
    let fs = rig::mount(&pool, &layout).unwrap();
    fs.snapshot("before").unwrap();
    fs.unmount().unwrap();
    pool.sync().unwrap();
    (disks, pool)
}

/// Objects of the MOS that say which metaslabs of a top-level vdev have changes in logs; others have their type, too, in both halves.
fn unflushed_objects(pool: &Pool) -> usize {
    let (mut at, mut found) = (0, 0);
    while let Some(object) = pool.mos().next_object(at).unwrap() {
        let dn = pool.mos().hold(object).unwrap();
        found += usize::from(dn.info().obj_type == disk::ObjType::U64_METADATA);
        at = object;
    }
    found
}

/// Guid of the leaf on a disk.
fn on(pool: &Pool, disk: usize) -> u64 {
    let path = format!("d{disk}");
    let leaves = pool.tree().leaves();
    let of = |l: &&Arc<vdev::Vdev>| l.path().as_deref() == Some(&*path);
    leaves.iter().find(of).unwrap().guid()
}

fn ask(pool: &Pool, disks: &[usize]) -> SplitSpec {
    SplitSpec {
        name: "half".into(),
        guid: 4711,
        members: disks.iter().map(|d| on(pool, *d)).collect(),
        command: ("zpool split tank half".into(), 0),
        tunables: rig::tunables(),
        ..SplitSpec::default()
    }
}

fn paths() -> Vec<String> {
    (0..DISKS).map(|i| format!("d{i}")).collect()
}

#[test]
fn both_halves_are_whole() {
    let (disks, pool) = create();
    let old = pool.guid();
    let spec = ask(&pool, &[1, 4]);
    let members = spec.members.clone();
    assert_eq!(pool.split(spec).unwrap(), None);
    assert_eq!(pool.guid(), old);
    for guid in members {
        assert!(pool.tree().find(guid).is_none());
    }
    assert!(pool.tree().leaf_of(on(&pool, 0)).is_ok());
    rig::check(&pool).unwrap();
    pool.export().unwrap();
    let (env, _) = rig::machine(&disks, 3);
    let found = vdev::discover(&env, &paths()).pools;
    let names: Vec<&str> = found.iter().map(|p| &*p.name).collect();
    assert_eq!(names, ["half", "tank"]);
    assert!(found.iter().all(|p| p.state == 1 && p.problems.is_empty()));
    assert_eq!(found[0].guid, 4711);
    assert!(found[0].config.get_u64("split_guid").is_none());
    let mut unflushed = Vec::new();
    for p in &found {
        let pool = rig::open(&disks, &p.config, 5).unwrap();
        unflushed.push(unflushed_objects(&pool));
        rig::check(&pool).unwrap_or_else(|e| panic!("{}: {e}", p.name));
        let head = pool.dsl().root_dataset().unwrap();
        assert!(head.snapshot_named("before").unwrap().is_some());
        let history = pool.history_records().unwrap();
        let texts: Vec<&str> = history
            .iter()
            .filter_map(|r| r.get_str("history internal str"))
            .collect();
        let (told, log) = match &*p.name {
            "half" => ("from pool tank", false),
            _ => ("into pool half", true),
        };
        assert!(texts.iter().any(|t| t.contains(told)), "{texts:?}");
        assert_eq!(pool.has_log_device(), log);
        pool.export().unwrap();
    }
    // The log's is not in the new pool.
    assert_eq!(unflushed[0] + 1, unflushed[1]);
    let Some(oz) = testkit::or_skip(testkit::OpenZfs::get()) else {
        return;
    };
    let dir = testkit::TempDir::new("split").unwrap();
    rig::dump(&disks, dir.path()).unwrap();
    for p in found {
        oz.check(dir.path(), &p.name).unwrap();
    }
}

#[test]
fn what_cannot_be_split_is_refused() {
    let (_, pool) = create();
    let refused = |disks: &[usize], kind: Kind, words: &str| {
        let e = pool.split(ask(&pool, disks)).unwrap_err();
        assert!(
            e.kind == kind && e.to_string().contains(words),
            "{disks:?}: {e}"
        );
    };
    let most = "at most one disk from each mirror";
    refused(&[1], Kind::Invalid, most);
    refused(&[0, 1, 3], Kind::Invalid, most);
    refused(&[LOG, 3], Kind::Invalid, most);
    pool.take_checkpoint().unwrap();
    refused(&[1, 3], Kind::Exists, "checkpoint exists");
    pool.discard_checkpoint().unwrap();
    while pool.shares().checkpoint.is_discarding() {
        pool.prove_devices().unwrap();
    }
    let how = pool::Offline {
        temporary: false,
        fault: false,
    };
    let leaf = on(&pool, 1);
    pool.offline(leaf, how).unwrap();
    pool.prove_devices().unwrap();
    refused(&[1, 3], Kind::NoDevice, "not online");
    refused(&[0, 3], Kind::Busy, "not whole");
    pool.online(leaf).unwrap();
    for _ in 0..20 {
        pool.prove_devices().unwrap();
    }
    assert_eq!(pool.split(ask(&pool, &[1, 3])).unwrap(), None);
    // What is no mirror any more cannot be split again.
    let e = pool.split(ask(&pool, &[0, 4])).unwrap_err();
    assert!(e.to_string().contains("only of mirrors"), "{e}");
    rig::check(&pool).unwrap();
}

/// Time at which the allocator loses the log, once a device is out of use.
#[derive(Default)]
struct LosesTheLog(std::sync::Mutex<std::sync::Weak<Pool>>);

impl env::Clock for LosesTheLog {
    fn now(&self) -> (i64, u32) {
        let pool = self.0.acquire().upgrade();
        if let Some(pool) = pool {
            let (tops, leaves) = (pool.tree().tops(), pool.tree().leaves());
            if leaves.iter().any(|l| !l.state().usable()) {
                let log = tops.iter().find(|t| t.is_log()).unwrap();
                pool.space().remove_top(log.id());
                *self.0.acquire() = std::sync::Weak::new();
            }
        }
        (0, 0)
    }

    fn monotonic_ns(&self) -> u64 {
        0
    }

    fn pause(&self, _: u64) {}
}

/// The sides are taken out of use, and then the log cannot be used again.
#[test]
fn a_split_that_fails_behind_the_first_txg_brings_the_sides_back() {
    let (disks, pool) = create();
    pool.export().unwrap();
    let (mut env, _) = rig::machine(&disks, 3);
    let clock = Arc::new(LosesTheLog::default());
    env.clock = clock.clone();
    let found = vdev::discover(&env, &paths()).pools;
    let options = pool::OpenOptions {
        tunables: rig::tunables(),
        ..pool::OpenOptions::default()
    };
    let pool = Pool::open(env, &found[0].config, options).unwrap();
    *clock.0.acquire() = Arc::downgrade(&pool);
    let e = pool.split(ask(&pool, &[1, 4])).unwrap_err();
    assert!(e.to_string().contains("no top-level vdev"), "{e}");
    for leaf in pool.tree().leaves() {
        assert!(leaf.state().usable(), "{}: {:?}", leaf.name(), leaf.state());
    }
    assert_eq!(pool.tree().leaves().len(), 6);
}

/// Whatever is left after a power cut can be imported: the old pool, whole, or both.
#[test]
fn after_a_power_cut_there_are_one_pool_or_two() {
    let (live, pool) = create();
    let (journal, base) = rig::start_journal(&live);
    assert_eq!(pool.split(ask(&pool, &[1, 4])).unwrap(), None);
    let events = journal.take();
    pool.close().unwrap();
    let len = events.len();
    let mut cutter = Cutter::new(&base, events);
    let rng = SeededRng::new(7);
    let mut seen = [0; 3];
    for at in 0..=len {
        cutter.forward(at);
        for fate in FATES {
            let image = cutter.image(fate, &rng);
            let (env, _) = rig::machine(&image, 3);
            let found = vdev::discover(&env, &paths()).pools;
            let what = format!("event {at} of {len}, {fate:?}");
            assert!((1..=2).contains(&found.len()), "{what}: {}", found.len());
            seen[found.len()] += 1;
            for f in &found {
                let p = rig::open(&image, &f.config, 5);
                let p = p.unwrap_or_else(|e| panic!("{what}: {}: {e}", f.name));
                // Two at a time differ in little more than one write.
                if at % 4 == 0 {
                    rig::read_all(&p).unwrap_or_else(|e| panic!("{what}: {}: {e}", f.name));
                }
                if found.len() == 1 {
                    // Both sides are its own, and get what they missed.
                    assert_eq!(p.name(), "tank", "{what}");
                    assert_eq!(p.tree().leaves().len(), 6, "{what}");
                    let usable = |l: &Arc<vdev::Vdev>| l.state().usable();
                    assert!(p.tree().leaves().iter().all(usable), "{what}");
                }
                p.close().unwrap();
            }
        }
    }
    assert!(seen[1] > 0 && seen[2] > 0, "{seen:?}");
}
