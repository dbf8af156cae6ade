//! Trim, autotrim and initialize. The disks fill with garbage what is discarded: a pool that is whole behind it has lost nothing.

use crate::rebuild::leaf;
use crate::world::{finish, World};
use base::Kind;
use disk::mos_keys as key;
use disk::scan::ScanState;
use dsl::PropValue;
use pool::{Pool, ScrubRange, Wear, WearAction, WearRefusal, WearState};
use std::sync::atomic::Ordering::Relaxed;
use vdev::{keys, GroupKind};
use zap::Zap;

const START: WearAction = WearAction::Start {
    rate: 0,
    secure: false,
};

fn wear(
    pool: &Pool,
    what: Wear,
    action: WearAction,
    guid: u64,
) -> std::result::Result<(), WearRefusal> {
    let done = pool.wear(what, action, &[guid], (String::new(), 0));
    done.unwrap().remove(0)
}

fn syncs(pool: &Pool, n: usize) {
    for _ in 0..n {
        pool.sync().unwrap();
    }
}

/// Writes txgs until nothing of the kind is under way.
fn done(pool: &Pool, what: Wear) {
    for _ in 0..5000 {
        if pool.left_of(what.name()).unwrap().is_none() {
            return;
        }
        pool.sync().unwrap();
    }
    panic!("{what:?} does not end");
}

fn begin_all(pool: &Pool, what: Wear) {
    for l in pool.tree().leaves() {
        wear(pool, what, START, l.guid()).unwrap();
    }
}

fn trimmed(pool: &Pool) -> u64 {
    let leaves = pool.tree().leaves();
    leaves
        .iter()
        .map(|l| l.stats.trim_bytes.load(Relaxed))
        .sum()
}

/// A number in the ZAP of a leaf.
fn stored(pool: &Pool, guid: u64, key: &str) -> Option<u64> {
    let leaf = pool.tree().find(guid).unwrap();
    let dn = pool
        .mos()
        .hold(leaf.get_u64(keys::ZAP_LEAF).unwrap())
        .unwrap();
    Zap::new(&dn).get(key).unwrap()
}

fn is_clean(w: &World) {
    w.pool
        .start_scrub(ScrubRange::default(), (String::new(), 0))
        .unwrap()
        .unwrap();
    let s = finish(&w.pool);
    assert_eq!(
        (s.state, s.errors, s.processed),
        (ScanState::Finished, 0, 0)
    );
    w.whole_on(&|_| true);
}

/// A pool some of whose blocks were freed.
fn used(kind: GroupKind, disks: usize) -> World {
    let w = World::new(kind, disks);
    for name in ["a", "b", "c"] {
        w.fill(name, 400);
    }
    w.destroy("b");
    syncs(&w.pool, 4);
    w.write("c", 100);
    w
}

const KINDS: [(GroupKind, usize); 5] = [
    (GroupKind::Single, 1),
    (GroupKind::Mirror, 2),
    (GroupKind::Raidz { nparity: 1 }, 3),
    (GroupKind::Raidz { nparity: 2 }, 5),
    (
        GroupKind::Draid {
            nparity: 1,
            ndata: 2,
            nspares: 1,
        },
        5,
    ),
];

/// All free space is worked on, once, and nothing else, on every layout.
#[test]
fn everything_free_is_trimmed_and_initialized_and_nothing_else() {
    for (kind, disks) in KINDS {
        for what in [Wear::Trim, Wear::Initialize] {
            let w = used(kind, disks);
            // Its discards are left out of the sum.
            set_autotrim(&w, Some(0));
            let before = trimmed(&w.pool);
            begin_all(&w.pool, what);
            w.write("a", 50);
            done(&w.pool, what);
            for l in w.pool.tree().leaves() {
                let s = w.pool.wear_status(what, l.guid());
                assert_eq!(
                    (s.state, s.done),
                    (WearState::Complete, s.total),
                    "{kind:?}"
                );
            }
            if what == Wear::Trim {
                let (bytes, s) = (
                    trimmed(&w.pool) - before,
                    w.pool.space().stats().vdevs[0].clone(),
                );
                let copies = if kind == GroupKind::Mirror { 2 } else { 1 };
                let free = (s.size - s.allocated - s.deferred) * copies;
                assert!(
                    bytes > free / 10 * 9 && bytes <= free + free / 10,
                    "{kind:?}: {bytes} of {free}"
                );
            }
            is_clean(&w);
        }
    }
}

#[test]
fn the_state_is_kept_as_openzfs_keeps_it() {
    let mut w = used(GroupKind::Mirror, 2);
    let guid = leaf(&w.pool, 0);
    assert_eq!(stored(&w.pool, guid, key::TRIM_STATE), None);
    let start = WearAction::Start {
        rate: 1 << 20,
        secure: false,
    };
    wear(&w.pool, Wear::Trim, start, guid).unwrap();
    for _ in 0..3 {
        w.pool.sync().unwrap();
    }
    wear(&w.pool, Wear::Trim, WearAction::Suspend, guid).unwrap();
    let suspended = w.pool.wear_status(Wear::Trim, guid);
    assert_eq!(suspended.state, WearState::Suspended);
    let read = |pool: &Pool, k| stored(pool, guid, k);
    assert_eq!(read(&w.pool, key::TRIM_STATE), Some(3));
    assert_eq!(read(&w.pool, key::TRIM_RATE), Some(1 << 20));
    assert_eq!(read(&w.pool, key::TRIM_TIME), Some(suspended.time));
    let place = read(&w.pool, key::TRIM_OFFSET).unwrap();
    assert!(place > 0, "it did something");
    w.reopen();
    assert_eq!(
        w.pool.wear_status(Wear::Trim, guid).state,
        WearState::Suspended
    );
    syncs(&w.pool, 3);
    assert_eq!(read(&w.pool, key::TRIM_OFFSET), Some(place), "it waits");
    // What is under way goes on behind a crash.
    wear(&w.pool, Wear::Trim, START, guid).unwrap();
    w.reopen();
    assert_eq!(
        w.pool.wear_status(Wear::Trim, guid).state,
        WearState::Active
    );
    wear(&w.pool, Wear::Trim, WearAction::Cancel, guid).unwrap();
    assert_eq!(read(&w.pool, key::TRIM_STATE), Some(2));
    wear(&w.pool, Wear::Trim, START, guid).unwrap();
    assert_eq!(
        read(&w.pool, key::TRIM_OFFSET),
        Some(0),
        "from the beginning"
    );
    assert_eq!(read(&w.pool, key::TRIM_RATE), Some(0));
    done(&w.pool, Wear::Trim);
    assert_eq!(read(&w.pool, key::TRIM_STATE), Some(4));
    // Initialize is forgotten on request.
    wear(&w.pool, Wear::Initialize, START, guid).unwrap();
    done(&w.pool, Wear::Initialize);
    assert_eq!(read(&w.pool, key::INITIALIZE_STATE), Some(4));
    wear(&w.pool, Wear::Initialize, WearAction::Forget, guid).unwrap();
    assert_eq!(read(&w.pool, key::INITIALIZE_STATE), None);
    let status = w.pool.wear_status(Wear::Initialize, guid);
    assert_eq!(status.state, WearState::None);
    is_clean(&w);
}

#[test]
fn what_is_refused() {
    let w = used(GroupKind::Mirror, 2);
    let guid = leaf(&w.pool, 0);
    let top = w.pool.tree().top(0).unwrap().guid();
    for what in [Wear::Trim, Wear::Initialize] {
        let ask = |action, guid| wear(&w.pool, what, action, guid).unwrap_err();
        assert_eq!(ask(START, 99), WearRefusal::NoDevice);
        assert_eq!(ask(START, top), WearRefusal::BadDevice);
        assert_eq!(ask(WearAction::Suspend, guid), WearRefusal::NotActive);
        assert_eq!(ask(WearAction::Cancel, guid), WearRefusal::NotActive);
        w.pool.pause_job(what.name(), true).unwrap();
        wear(&w.pool, what, START, guid).unwrap();
        assert_eq!(ask(START, guid), WearRefusal::Busy);
        assert_eq!(ask(WearAction::Forget, guid), WearRefusal::Busy);
        w.pool.pause_job(what.name(), false).unwrap();
        done(&w.pool, what);
    }
    let secure = WearAction::Start {
        rate: 0,
        secure: true,
    };
    let refused = wear(&w.pool, Wear::Trim, secure, guid);
    assert_eq!(refused, Err(WearRefusal::Unsupported));
    w.pool.tree().offline(guid, false).unwrap();
    let refused = wear(&w.pool, Wear::Trim, START, guid);
    assert_eq!(refused, Err(WearRefusal::BadDevice));
}

/// A leaf that goes offline waits, and goes on when it is back. Nothing is written for its sake meanwhile.
#[test]
fn a_leaf_out_of_use_waits() {
    let w = used(GroupKind::Mirror, 2);
    let guid = leaf(&w.pool, 1);
    w.pool.pause_job("trim", true).unwrap();
    wear(&w.pool, Wear::Trim, START, guid).unwrap();
    let how = pool::Offline {
        temporary: true,
        fault: false,
    };
    w.pool.offline(guid, how).unwrap();
    w.pool.pause_job("trim", false).unwrap();
    syncs(&w.pool, 10);
    assert!(w.pool.left_of("trim").unwrap().is_some());
    let jobs = w.pool.jobs().unwrap();
    assert!(jobs.iter().all(|j| j.name != "trim"), "{jobs:?}");
    w.pool.online(guid).unwrap();
    done(&w.pool, Wear::Trim);
    assert_eq!(
        w.pool.wear_status(Wear::Trim, guid).state,
        WearState::Complete
    );
}

fn set_autotrim(w: &World, value: Option<u64>) {
    let value = value.map(PropValue::Int);
    w.pool
        .task(move |pool, tx| pool.store_prop(tx, "autotrim", value.as_ref()))
        .unwrap();
}

/// Image files are told of what is freed unless the property says no.
#[test]
fn autotrim_of_image_files() {
    for (value, told) in [(None, true), (Some(1), true), (Some(0), false)] {
        for (kind, disks) in KINDS {
            let w = World::new(kind, disks);
            set_autotrim(&w, value);
            for name in ["a", "b", "c"] {
                w.fill(name, 400);
            }
            w.destroy("b");
            for n in 0..12 {
                w.write("a", 3 + n);
            }
            assert_eq!(trimmed(&w.pool) > 0, told, "{kind:?}, {value:?}");
            is_clean(&w);
        }
    }
}

/// A device that cannot do it ends a trim, and says so.
#[test]
fn errors_of_the_device_are_counted() {
    let w = used(GroupKind::Mirror, 2);
    let guid = leaf(&w.pool, 0);
    w.pool.pause_job("initialize", true).unwrap();
    wear(&w.pool, Wear::Initialize, START, guid).unwrap();
    let found = w.pool.tree().find(guid).unwrap();
    w.disks[0]
        .unwritable
        .lock()
        .unwrap()
        .insert(40 << 20, 41 << 20);
    w.pool.pause_job("initialize", false).unwrap();
    done(&w.pool, Wear::Initialize);
    assert!(found.stats.initialize_errors.load(Relaxed) > 0);
    let s = w.pool.wear_status(Wear::Initialize, guid);
    assert_eq!(s.state, WearState::Complete);
}

#[test]
fn a_pool_that_is_read_only_is_left_alone() {
    let w = used(GroupKind::Single, 1);
    let guid = leaf(&w.pool, 0);
    let disks = w.image(&|_| true);
    let (env, _) = sim::rig::machine(&disks, 3);
    let opts = pool::OpenOptions {
        readonly: true,
        ..Default::default()
    };
    let pool = Pool::open(env, &w.config, opts).unwrap();
    let e = pool.wear(Wear::Trim, START, &[guid], (String::new(), 0));
    assert_eq!(e.unwrap_err().kind, Kind::ReadOnly);
}

/// A file system is destroyed, and everything is trimmed at once. The state before, in which it is there still, is as whole as ever.
fn state_before_a_trim() -> Result<(), String> {
    let w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 400);
    syncs(&w.pool, 4);
    let before = w.pool.synced_txg();
    // One txg that frees it, and a slice behind that.
    w.pool.pause_job("trim", true).unwrap();
    let txg = w.pool.synced_txg();
    begin_all(&w.pool, Wear::Trim);
    w.destroy("a");
    w.pool.pause_job("trim", false).unwrap();
    assert!(txg >= before && w.pool.left_of("trim").unwrap().is_some());
    let disks = w.image(&|_| true);
    let newest = w.pool.synced_txg();
    let (env, _) = sim::rig::machine(&disks, 3);
    let opts = pool::OpenOptions {
        readonly: true,
        txg: Some(newest.before(2)),
        ..Default::default()
    };
    let pool = Pool::open(env, &w.config, opts).map_err(|e| e.to_string())?;
    sim::rig::walk(&pool)
}

#[test]
fn the_states_before_are_whole_behind_a_trim() {
    use base::mutation::{mutate, Mutation};
    state_before_a_trim().unwrap();
    mutate(Some(Mutation::TrimTakesDeferred));
    let found = state_before_a_trim();
    mutate(None);
    assert!(
        found.is_err(),
        "a trim of what was freed just now was not found"
    );
}

/// Each leaf is an instance of the job: one is paused while the other goes on.
#[test]
fn one_leaf_is_paused_and_the_other_goes_on() {
    let w = used(GroupKind::Mirror, 2);
    let (first, second) = (leaf(&w.pool, 0), leaf(&w.pool, 1));
    w.pool.pause_job("trim", true).unwrap();
    wear(&w.pool, Wear::Trim, START, first).unwrap();
    wear(&w.pool, Wear::Trim, START, second).unwrap();
    let of = pool::Subject::Leaf(first);
    w.pool.pause_instance("trim", of, true).unwrap();
    w.pool.pause_job("trim", false).unwrap();
    let state = |guid| w.pool.wear_status(Wear::Trim, guid).state;
    for _ in 0..1000 {
        if state(second) == WearState::Complete {
            break;
        }
        w.pool.sync().unwrap();
    }
    assert_eq!(
        (state(first), state(second)),
        (WearState::Active, WearState::Complete)
    );
    assert_eq!(w.pool.wear_status(Wear::Trim, first).done, 0);
    w.pool.pause_instance("trim", of, false).unwrap();
    done(&w.pool, Wear::Trim);
    assert_eq!(state(first), WearState::Complete);
    let gone = w.pool.pause_instance("trim", of, true).unwrap_err();
    assert_eq!(gone.kind, Kind::NotFound);
}
