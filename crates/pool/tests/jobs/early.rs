//! Early tasks: before anything of the txg is dirtied or freed in syncing context.

use crate::world::World;
use base::Txg;
use std::sync::mpsc;
use std::time::Duration;

/// What a task of a txg sees of the file system `tank/a`, which is dirty in that txg.
#[derive(Debug, PartialEq)]
struct Seen {
    txg: Txg,
    /// Birth of its root block.
    root: Txg,
    /// Blocks of the file system that were freed.
    freed: bool,
    mos_dirty: bool,
}

/// Dirties `tank/a`, queues a task and behind it an early task for the same txg, and returns what both saw: the early
/// one first. `None`: a thread was so late that they were in different txgs.
fn one_txg(w: &World) -> Option<(Seen, Seen)> {
    let pool = &w.pool;
    let ds = pool.dsl().dataset("tank/a").unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let look = |seen_ds: std::sync::Arc<dsl::Dataset>| {
        let before = seen_ds.phys().referenced_bytes;
        move |p: &pool::Pool, tx: &dmu::Tx| {
            let phys = seen_ds.phys();
            Ok(Seen {
                txg: tx.txg(),
                root: phys.bp.birth(),
                freed: phys.referenced_bytes < before,
                mos_dirty: p.mos().is_dirty_in(tx.txg()),
            })
        }
    };
    let pair = std::thread::scope(|s| {
        // A task that keeps the syncing thread until the others have been queued.
        let (in_txg, holds) = mpsc::channel();
        let (go, held) = mpsc::channel::<()>();
        let holder = s.spawn(move || {
            pool.task(move |_, _| {
                let _ = in_txg.send(());
                let _ = held.recv();
                Ok(())
            })
        });
        holds.recv().unwrap();
        // A third of the file goes, the rest is dirty.
        let tx = set.os.tx(dmu::Need::freeing()).unwrap();
        let object = (1..)
            .find(|o| {
                let dn = set.os.hold(*o);
                dn.is_ok_and(|d| d.info().max_blkid > 100)
            })
            .unwrap();
        let dn = set.os.hold(object).unwrap();
        let end = (dn.info().max_blkid + 1) * 4096;
        dn.free_range(&tx, end - 40 * 4096, u64::MAX).unwrap();
        drop((tx, dn));
        let late = s.spawn({
            let look = look(ds.clone());
            move || pool.task(look)
        });
        std::thread::sleep(Duration::from_millis(50));
        let early = s.spawn({
            let look = look(ds.clone());
            move || pool.early_task(look)
        });
        std::thread::sleep(Duration::from_millis(50));
        go.send(()).unwrap();
        holder.join().unwrap().unwrap();
        let early = early.join().unwrap().unwrap();
        (early, late.join().unwrap().unwrap())
    });
    (pair.0.txg == pair.1.txg).then_some(pair)
}

#[test]
fn an_early_task_sees_the_pool_as_the_uberblock_before_its_txg_has_it() {
    let w = World::new();
    w.fill("a", 2000);
    let (early, late) = (0..20).find_map(|_| one_txg(&w)).unwrap();
    assert!(early.root < early.txg, "{early:?}");
    assert!(!early.freed && !early.mos_dirty, "{early:?}");
    // The file system has been written when other tasks run, though they were queued before.
    assert_eq!(late.root, late.txg);
    assert!(late.freed && late.mos_dirty, "{late:?}");
    w.pool.export().unwrap();
}

#[test]
fn what_an_early_task_changes_is_on_disk_when_it_returns() {
    let w = World::new();
    let root = w.pool.dsl().root().unwrap();
    let made = w.pool.early_task(move |pool, tx| {
        let ds = pool
            .dsl()
            .create_fs(tx, &root, "early", Default::default())?;
        pool.new_objset(tx, &ds, disk::os_type::ZFS)?;
        Ok(tx.txg())
    });
    assert!(made.unwrap() <= w.pool.synced_txg());
    let found = w.open(&w.image());
    let ds = found.dsl().dataset("tank/early").unwrap();
    assert!(!ds.phys().bp.is_hole());
    sim::rig::check(&found).unwrap();
    found.export().unwrap();
    let failed = w
        .pool
        .early_task(|_, _| -> base::Result<()> { base::bail!(Invalid, "no") });
    assert_eq!(failed.unwrap_err().kind, base::Kind::Invalid);
}

/// A task finds that an invariant is broken: nothing of its txg is committed, and the caller learns that it is no error of its own.
#[test]
fn a_broken_invariant_in_a_task_stops_the_pool() {
    let w = World::new();
    let before = w.pool.synced_txg();
    let r = w
        .pool
        .task(|_, _| -> base::Result<()> { base::bail!(Bug, "two and two are five") });
    let e = r.unwrap_err();
    assert_eq!((e.kind, e.errno()), (base::Kind::Bug, 131));
    assert!(w.pool.task(|_, _| Ok(())).is_err());
    assert_eq!(w.pool.synced_txg(), before);
    sim::rig::check(&w.open(&w.image())).unwrap();
}

/// The same in a thread that serves a request: no later txg is committed.
#[test]
fn a_broken_invariant_of_the_allocator_stops_the_pool() {
    let w = World::new();
    let before = w.pool.synced_txg();
    let e = w.pool.space().free(0, 0, 4096, base::Txg::INITIAL);
    assert_eq!(e.unwrap_err().kind, base::Kind::Bug);
    assert!(w.pool.task(|_, _| Ok(())).is_err());
    assert!(w.pool.suspended().is_some());
    assert_eq!(w.pool.synced_txg(), before);
    sim::rig::check(&w.open(&w.image())).unwrap();
}
