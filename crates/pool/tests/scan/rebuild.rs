//! Sequential rebuilds.

use crate::world::{finish, World};
use base::{Kind, Result, Txg};
use disk::feature::guid::DEVICE_REBUILD;
use disk::scan::{Function, RebuildState, ScanState};
use dsl::Features;
use pool::{AttachRefusal, Pool, ScrubRange};
use vdev::{keys, Attach, DevSpec, GroupKind, State, VdevKind};

pub fn dev(n: usize) -> DevSpec {
    DevSpec::file(format!("d{n}"))
}

/// Guid of the leaf on a disk.
pub fn leaf(pool: &Pool, n: usize) -> u64 {
    let path = format!("d{n}");
    let leaves = pool.tree().leaves().into_iter();
    let found = leaves
        .into_iter()
        .find(|l| l.path().as_ref() == Some(&path));
    found.unwrap().guid()
}

/// How often the feature is in use.
fn in_use(pool: &Pool) -> u64 {
    let features = pool.feature_store().unwrap();
    features.count(DEVICE_REBUILD).unwrap()
}

fn sync(pool: &Pool) {
    pool.sync().unwrap();
}

/// Writes txgs until no rebuild is under way.
pub fn rebuilt(pool: &Pool) -> Result<()> {
    for _ in 0..2000 {
        if !pool.is_rebuilding() {
            return Ok(());
        }
        pool.sync()?;
    }
    panic!("a rebuild does not end: {:?}", pool.rebuilds());
}

fn mirror(bench: usize) -> World {
    let w = World::with_bench(GroupKind::Mirror, 2, bench);
    w.fill("a", 400);
    w.snapshot("a", "s");
    w.write("a", 400);
    w
}

#[test]
fn a_rebuilt_side_stands_alone_and_is_scrubbed() {
    let mut w = mirror(1);
    let first = leaf(&w.pool, 0);
    w.pool
        .attach_sequentially(first, &dev(2), Attach::Mirror, None)
        .unwrap();
    assert_eq!((in_use(&w.pool), w.pool.is_rebuilding()), (1, true));
    w.write("a", 30);
    rebuilt(&w.pool).unwrap();
    let r = w.pool.rebuilds()[0];
    assert_eq!(
        (r.state, r.errors, in_use(&w.pool)),
        (RebuildState::Complete, 0, 0)
    );
    assert!(
        r.rebuilt > 0 && r.scanned >= r.issued && r.issued == r.rebuilt,
        "{r:?}"
    );
    let fresh = w.pool.tree().find(leaf(&w.pool, 2)).unwrap();
    assert!(fresh.dtl_is_empty() && fresh.get_u64(keys::REBUILD_TXG).is_none());
    let s = w.finish();
    assert_eq!(
        (s.function, s.state, s.errors, s.processed),
        (Function::Scrub, ScanState::Finished, 0, 0),
        "a scrub follows"
    );
    assert_eq!(w.pool.tree().state().0, State::Healthy);
    w.pool.sync().unwrap();
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.whole_on(&|i| i == 2);
}

#[test]
fn a_rebuild_goes_on_after_a_crash_and_an_export() {
    for cut in 0..12 {
        let mut w = mirror(1);
        let first = leaf(&w.pool, 0);
        w.pool
            .attach_sequentially(first, &dev(2), Attach::Mirror, None)
            .unwrap();
        w.config = w.pool.full_config(0, Txg::NONE, false);
        (0..cut).for_each(|_| sync(&w.pool));
        let before = w.pool.rebuilds()[0];
        match cut % 2 {
            0 => w.reopen(),
            _ => {
                w.pool.export().unwrap();
                w.reopen();
            }
        }
        let after = w.pool.rebuilds()[0];
        assert!(
            after.scanned + (64 << 10) >= before.scanned || cut % 2 == 0,
            "{before:?} {after:?}"
        );
        assert!(cut < 6 || after.scanned > 0, "{after:?}");
        rebuilt(&w.pool).unwrap();
        assert_eq!(
            (w.pool.rebuilds()[0].state, in_use(&w.pool)),
            (RebuildState::Complete, 0)
        );
        assert_eq!(w.finish().errors, 0);
        w.whole_on(&|i| i == 2);
    }
}

#[test]
fn a_disk_is_replaced_sequentially_and_leaves() {
    let mut w = mirror(1);
    let first = leaf(&w.pool, 0);
    w.pool
        .attach_sequentially(first, &dev(2), Attach::Replace, None)
        .unwrap();
    rebuilt(&w.pool).unwrap();
    w.finish();
    (0..4).for_each(|_| sync(&w.pool));
    assert!(w.pool.tree().find(first).is_none(), "{:?}", w.pool.tree());
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.whole_on(&|i| i == 2);
}

/// A disk that is replaced may be one that gives anything without an error: no checksum tells, so others are read.
#[test]
fn the_disk_that_is_replaced_is_not_read_where_others_have_everything() {
    let mut w = mirror(1);
    let first = leaf(&w.pool, 0);
    w.spoil(0, &|_| true);
    w.pool
        .attach_sequentially(first, &dev(2), Attach::Replace, None)
        .unwrap();
    rebuilt(&w.pool).unwrap();
    assert_eq!(w.pool.rebuilds()[0].errors, 0);
    let new = w.pool.tree().find(leaf(&w.pool, 2)).unwrap();
    w.finish();
    assert_eq!(new.stats.errors().2, 0, "checksum errors on the new disk");
    (0..4).for_each(|_| sync(&w.pool));
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.whole_on(&|i| i == 2);
}

#[test]
fn a_second_device_makes_a_rebuild_begin_anew() {
    let mut w = mirror(2);
    let first = leaf(&w.pool, 0);
    let attach = |n| {
        let done = w
            .pool
            .attach_sequentially(first, &dev(n), Attach::Mirror, None);
        done.unwrap()
    };
    attach(2);
    (0..8).for_each(|_| sync(&w.pool));
    assert!(w.pool.rebuilds()[0].scanned > 0);
    attach(3);
    assert_eq!((w.pool.rebuilds()[0].scanned, in_use(&w.pool)), (0, 1));
    rebuilt(&w.pool).unwrap();
    w.finish();
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.whole_on(&|i| i == 2);
    w.whole_on(&|i| i == 3);
}

#[test]
fn a_rebuild_without_anybody_to_fill_is_canceled() {
    let w = mirror(1);
    let first = leaf(&w.pool, 0);
    let new = w
        .pool
        .attach_sequentially(first, &dev(2), Attach::Mirror, None)
        .unwrap();
    (0..6).for_each(|_| sync(&w.pool));
    w.pool.detach(new).unwrap();
    rebuilt(&w.pool).unwrap();
    assert_eq!(
        (w.pool.rebuilds()[0].state, in_use(&w.pool)),
        (RebuildState::Canceled, 0)
    );
    assert!(
        w.pool.scan_progress().unwrap().is_none(),
        "nothing to be scrubbed"
    );
}

#[test]
fn rebuilds_and_resilvers_exclude_each_other() {
    let w = mirror(2);
    let first = leaf(&w.pool, 0);
    let command = || ("zpool scrub tank".to_string(), 0);
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    w.pool
        .attach_sequentially(first, &dev(2), Attach::Mirror, None)
        .unwrap();
    assert_eq!(
        w.pool.scan_state().unwrap().unwrap().state,
        ScanState::Canceled,
        "the scrub ends"
    );
    let refusal = |sequential| w.pool.attach_refusal(first, sequential).unwrap();
    assert_eq!(refusal(false), Some(AttachRefusal::Rebuilding));
    assert_eq!(refusal(true), None);
    let e = w.pool.attach(first, &dev(3), Attach::Mirror, None);
    assert_eq!(e.unwrap_err().kind, Kind::Busy);
    let scrub = w
        .pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap();
    assert_eq!(scrub, Err(pool::ScanRefusal::Resilvering));
    rebuilt(&w.pool).unwrap();
    w.finish();
    w.pool.attach(first, &dev(3), Attach::Mirror, None).unwrap();
    while w.pool.resilvered_txgs().is_none() {
        sync(&w.pool);
    }
    assert_eq!(refusal(true), Some(AttachRefusal::Resilvering));
    assert_eq!(refusal(false), None);
    let s = w.finish();
    assert_eq!((s.function, s.errors), (Function::Resilver, 0));
    assert!(w.pool.rebuilds().is_empty(), "the resilver is newer");

    let w = World::with_bench(GroupKind::Raidz { nparity: 1 }, 3, 1);
    let first = leaf(&w.pool, 0);
    let e = w
        .pool
        .attach_sequentially(first, &dev(3), Attach::Replace, None)
        .unwrap_err();
    let want = "only mirror and dRAID vdevs support sequential reconstruction";
    assert!(e.to_string().contains(want), "{e}");
}

#[test]
fn what_a_device_did_not_take_is_healed_after_the_rebuild() {
    use std::sync::atomic::Ordering::Relaxed;
    let mut w = mirror(1);
    let first = leaf(&w.pool, 0);
    w.pool
        .attach_sequentially(first, &dev(2), Attach::Mirror, None)
        .unwrap();
    (0..5).for_each(|_| sync(&w.pool));
    w.disks[2].write_errors.store(2, Relaxed);
    rebuilt(&w.pool).unwrap();
    let fresh = w.pool.tree().find(leaf(&w.pool, 2)).unwrap();
    if fresh.state() != State::Healthy {
        w.pool.online(fresh.guid()).unwrap();
    }
    let s = finish(&w.pool);
    assert_eq!(
        (s.function, s.state),
        (Function::Resilver, ScanState::Finished),
        "{s:?}"
    );
    (0..4).for_each(|_| sync(&w.pool));
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.whole_on(&|i| i == 2);
}

fn draid(bench: usize) -> World {
    let kind = GroupKind::Draid {
        nparity: 1,
        ndata: 2,
        nspares: 1,
    };
    let w = World::with_bench(kind, 5, bench);
    w.fill("a", 60);
    w.snapshot("a", "s");
    w.write("a", 60);
    w
}

/// Guid of the first distributed spare.
fn dspare(pool: &Pool) -> u64 {
    let aux = pool.aux_devices();
    aux.spares[0].get_u64(keys::GUID).unwrap()
}

/// A disk fails, the distributed spare takes its place, another disk fails, and nothing is lost; then a new disk comes, and the
/// spare goes back.
fn distributed(sequential: bool) {
    let mut w = draid(1);
    let victim = leaf(&w.pool, 1);
    let how = pool::Offline {
        temporary: false,
        fault: true,
    };
    w.pool.offline(victim, how).unwrap();
    w.write("a", 20);
    w.pool
        .attach_dspare(victim, dspare(&w.pool), sequential)
        .unwrap();
    assert_eq!(w.pool.is_rebuilding(), sequential);
    w.write("a", 20);
    rebuilt(&w.pool).unwrap();
    let s = w.finish();
    assert_eq!((s.state, s.errors), (ScanState::Finished, 0), "{s:?}");
    (0..4).for_each(|_| sync(&w.pool));
    let spare = w.pool.tree().find(dspare(&w.pool)).unwrap();
    assert_eq!(
        (spare.kind(), spare.name()),
        (VdevKind::Dspare, "draid1-0-0".into())
    );
    assert!(spare.dtl_is_empty(), "{:?}", spare.dtl());
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.reopen();
    for gone in [0, 2, 3, 4] {
        w.whole_on(&|i| i != 1 && i != gone);
    }
    // Rebalanced: what the spare had is on a disk of its own again.
    let attach = match sequential {
        true => Pool::attach_sequentially,
        false => Pool::attach,
    };
    attach(&w.pool, victim, &dev(5), Attach::Replace, None).unwrap();
    for _ in 0..2000 {
        if !w.pool.is_resilvering() && !w.pool.is_replacing() {
            break;
        }
        sync(&w.pool);
    }
    assert!(w.pool.tree().find(victim).is_none(), "{:?}", w.pool.tree());
    assert!(
        w.pool.tree().find(dspare(&w.pool)).is_none(),
        "{:?}",
        w.pool.tree()
    );
    assert_eq!(w.pool.tree().state().0, State::Healthy);
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.reopen();
    for gone in [0, 2, 3, 4] {
        w.whole_on(&|i| i != 1 && i != gone);
    }
    // It can be taken once more.
    let again = leaf(&w.pool, 5);
    w.pool
        .attach_dspare(again, dspare(&w.pool), sequential)
        .unwrap();
}

#[test]
fn a_distributed_spare_is_rebuilt_and_goes_back() {
    distributed(true);
}

#[test]
fn a_distributed_spare_is_resilvered_and_goes_back() {
    distributed(false);
}

/// A log that holds nothing, of one disk, with another one that is to be filled beside it.
#[test]
fn a_log_leaves_while_it_is_rebuilt() {
    let w = World::of(&sim::rig::Layout {
        slog: true,
        bench: 1,
        ..sim::rig::Layout::new(GroupKind::Mirror, 2)
    });
    let log = w.pool.tree().top_of(leaf(&w.pool, 2)).unwrap().id();
    w.pool
        .attach_sequentially(leaf(&w.pool, 2), &dev(3), Attach::Mirror, None)
        .unwrap();
    w.pool.pause_job("rebuild", true).unwrap();
    w.pool.remove_log(log).unwrap();
    w.pool.pause_job("rebuild", false).unwrap();
    (0..3).for_each(|_| sync(&w.pool));
    assert_eq!((in_use(&w.pool), w.pool.is_rebuilding()), (0, false));
    assert_eq!(w.pool.tree().holes(), [log]);
}

#[test]
fn a_record_with_absurd_numbers_stops_no_rebuild() {
    let mut w = mirror(1);
    let first = leaf(&w.pool, 0);
    w.pool
        .attach_sequentially(first, &dev(2), Attach::Mirror, None)
        .unwrap();
    w.config = w.pool.full_config(0, Txg::NONE, false);
    w.pool.pause_job("rebuild", true).unwrap();
    let object = w
        .pool
        .tree()
        .top(0)
        .unwrap()
        .get_u64(keys::ZAP_TOP)
        .unwrap();
    w.pool
        .task(move |pool, tx| {
            let dn = pool.mos().hold(object)?;
            let record = zap::Zap::new(&dn);
            let name = disk::mos_keys::VDEV_REBUILD;
            let mut words = record.get_value(name)?.unwrap().ints();
            // Time, bytes looked at, read and written, and those there are.
            words[6..=10].fill(u64::MAX);
            record.update(tx, name, &zap::Value::u64s(&words))
        })
        .unwrap();
    w.reopen();
    assert_eq!(w.pool.left_of("rebuild").unwrap(), Some(0));
    rebuilt(&w.pool).unwrap();
    assert_eq!(
        (w.pool.rebuilds()[0].state, in_use(&w.pool)),
        (RebuildState::Complete, 0)
    );
    w.finish();
    w.whole_on(&|i| i == 2);
}

/// Who has a spare take the place of a whole disk means it: the spare stays until one of the two is detached.
#[test]
fn a_spare_in_the_place_of_a_whole_disk_stays() {
    for sequential in [true, false] {
        let w = draid(0);
        let disk = leaf(&w.pool, 1);
        let spare = dspare(&w.pool);
        w.pool.attach_dspare(disk, spare, sequential).unwrap();
        rebuilt(&w.pool).unwrap();
        let s = finish(&w.pool);
        assert_eq!((s.state, s.errors), (ScanState::Finished, 0), "{s:?}");
        (0..6).for_each(|_| sync(&w.pool));
        let found = w.pool.tree().find(spare).expect("the spare has left");
        assert!(found.dtl_is_empty(), "{:?}", found.dtl());
        // From here on it has to be there for the disk only as long as that is away.
        let how = pool::Offline {
            temporary: false,
            fault: false,
        };
        w.pool.offline(disk, how).unwrap();
        (0..6).for_each(|_| sync(&w.pool));
        assert!(w.pool.tree().find(spare).is_some());
        w.pool.online(disk).unwrap();
        for _ in 0..2000 {
            if w.pool.tree().find(spare).is_none() {
                break;
            }
            sync(&w.pool);
        }
        assert!(w.pool.tree().find(spare).is_none(), "{:?}", w.pool.tree());
    }
}
