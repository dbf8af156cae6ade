//! Txgs that devices refuse: those that wait go on with nothing lost, those that cannot are given up.

use base::{Error, Kind};
use env_sim::MemDisk;
use pool::{Patience, Pool};
use sim::rig::{self, Layout};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::Arc;
use vdev::GroupKind;

/// Has the devices well again after some attempts, as a simulator on one thread does.
struct Mends {
    disks: Vec<Arc<MemDisk>>,
    attempts: AtomicU32,
    before: Box<dyn Fn(&MemDisk) + Send + Sync>,
}

impl Mends {
    fn after(disks: &[Arc<MemDisk>], attempts: u32) -> Mends {
        Mends {
            disks: disks.to_vec(),
            attempts: AtomicU32::new(attempts),
            before: Box::new(|_| {}),
        }
    }
}

impl Patience for Mends {
    fn again(&self, _: &Pool, _: &Error) -> bool {
        if self.attempts.fetch_sub(1, Relaxed) == 1 {
            for d in &self.disks {
                d.well();
                (self.before)(d);
            }
        }
        true
    }
}

fn store(pool: &Arc<Pool>, name: &'static str, n: u64) -> base::Result<()> {
    pool.task(move |pool, tx| pool.store_prop(tx, name, Some(&dsl::PropValue::Int(n))))
}

fn stored(pool: &Pool, name: &str) -> Option<dsl::PropValue> {
    let all = pool.stored_props().unwrap();
    all.into_iter().find(|(n, _)| n == name).map(|(_, v)| v)
}

fn refuse(d: &MemDisk, how: u32) {
    match how {
        0 => d.fail_writes.store(true, Relaxed),
        1 => d.fail_flush.store(true, Relaxed),
        2 => d.dead.store(true, Relaxed),
        // In the middle of whatever is written.
        n => d.left.store(i64::from(n), Relaxed),
    }
}

fn config(disks: &[Arc<MemDisk>]) -> disk::NvList {
    let (env, _) = rig::machine(disks, 1);
    let names: Vec<String> = (0..disks.len()).map(|i| format!("d{i}")).collect();
    let found = vdev::discover(&env, &names);
    found.pools[0].config.clone()
}

#[test]
fn a_txg_that_waited_for_its_devices_goes_on_with_nothing_lost() {
    let layouts = [
        Layout::new(GroupKind::Single, 1),
        Layout::new(GroupKind::Single, 1),
        Layout::new(GroupKind::Mirror, 2),
        Layout::new(GroupKind::Raidz { nparity: 1 }, 3),
    ];
    for (seed, layout) in layouts.iter().enumerate() {
        let (disks, pool) = rig::create(layout, seed as u64);
        pool.set_patience(Box::new(Mends::after(&disks, 3)));
        store(&pool, "a:before", 1).unwrap();
        drop(pool.close());
        drop(pool);
        for how in 0..40 {
            let pool = rig::open(&disks, &config(&disks), u64::from(how)).unwrap();
            pool.set_patience(Box::new(Mends::after(&disks, 3)));
            disks.iter().for_each(|d| refuse(d, how));
            store(&pool, "a:n", u64::from(how)).unwrap_or_else(|e| panic!("{how}: {e}"));
            assert!(pool.suspended().is_none());
            // What is missing after the power goes was not on the disks.
            let image: Vec<_> = disks.iter().map(|d| d.fork()).collect();
            let there = rig::open(&image, &config(&image), 9).unwrap();
            assert_eq!(stored(&there, "a:n"), Some(dsl::PropValue::Int(how.into())));
            rig::walk(&there).unwrap();
            for leaf in pool.tree().leaves() {
                assert!(
                    leaf.dtl_is_empty(),
                    "{how}: blamed for what it got after all"
                );
            }
            disks.iter().for_each(|d| d.well());
            pool.export().unwrap();
        }
    }
}

#[test]
fn a_device_that_lost_what_it_acknowledged_stops_the_pool_for_good() {
    let (disks, pool) = rig::create(&Layout::new(GroupKind::Single, 1), 3);
    store(&pool, "a:old", 1).unwrap();
    let on_disk = pool.synced_txg();
    let image = disks[0].fork();
    pool.set_patience(Box::new(Mends {
        // As if its cache had been lost.
        before: Box::new(move |d| {
            let mut chunks = Vec::new();
            d.for_each_chunk(&mut |at, b| chunks.push((at, vec![0; b.len()])));
            for (at, mut old) in chunks {
                image.peek(at, &mut old);
                d.poke(at, &old);
            }
        }),
        ..Mends::after(&disks, 2)
    }));
    disks[0].fail_flush.store(true, Relaxed);
    store(&pool, "a:new", 1).unwrap_err();
    let why = pool.stopped().unwrap().to_string();
    assert!(why.contains("lost what it had acknowledged"), "{why}");
    assert_eq!(pool.synced_txg(), on_disk);
    assert_eq!(store(&pool, "a:new", 2).unwrap_err().kind, Kind::Suspended);
    pool.close().unwrap_err();
    drop(pool);
    let pool = rig::open(&disks, &config(&disks), 4).unwrap();
    assert_eq!(stored(&pool, "a:old"), Some(dsl::PropValue::Int(1)));
    assert_eq!(stored(&pool, "a:new"), None);
    rig::walk(&pool).unwrap();
}

#[test]
fn a_pool_that_is_stopped_takes_no_changes() {
    let (disks, pool) = rig::create(&Layout::new(GroupKind::Single, 1), 3);
    pool.stop_for_good(Error::new(Kind::Damaged, "a test"));
    pool.stop_for_good(Error::new(Kind::Damaged, "another"));
    assert_eq!(pool.stopped().unwrap().to_string(), "a test");
    assert_eq!(
        pool.mos().tx(dmu::Need::default()).err().unwrap().kind,
        Kind::Suspended
    );
    assert_eq!(pool.sync().unwrap_err().kind, Kind::Suspended);
    drop(pool);
    drop(disks);
}

/// Whether the last try works or not, the devices are free afterwards.
#[test]
fn an_import_that_meets_write_errors_leaves_its_devices_free() {
    let (disks, pool) = rig::create(&Layout::new(GroupKind::Mirror, 2), 3);
    store(&pool, "a:old", 1).unwrap();
    pool.close().unwrap();
    drop(pool);
    let config = config(&disks);
    for left in (0..60).chain([-1]) {
        disks.iter().for_each(|d| d.left.store(left, Relaxed));
        match rig::open(&disks, &config, 5) {
            Ok(pool) => drop(pool.close()),
            Err(e) => assert_ne!(e.kind, Kind::Busy, "{left}: {e}"),
        }
    }
    let pool = rig::open(&disks, &config, 6).unwrap();
    assert_eq!(stored(&pool, "a:old"), Some(dsl::PropValue::Int(1)));
    rig::walk(&pool).unwrap();
}
