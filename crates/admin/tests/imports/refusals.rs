//! Every refusal of an import leaves the devices as they are, bit for bit.

use crate::Machine;
use api::PoolImport;
use std::sync::atomic::Ordering::Relaxed;
use zap::Zap;

/// A machine that was switched off with a file in the log alone.
fn crashed(log: bool) -> Machine {
    let m = Machine::with_pool(log);
    m.put("p", "first");
    m.entry().pool.sync().unwrap();
    m.put("p", "second");
    m.switched_off(1)
}

fn comes_back(m: &Machine) {
    m.import().unwrap();
    assert!(m.has("p", "first") && m.has("p", "second"));
}

#[test]
fn a_device_is_missing() {
    let m = crashed(false);
    m.disks[1].1.gone.store(true, Relaxed);
    m.refused(m.ask(), "unavailable");
    let force = PoolImport {
        force: true,
        rewind: true,
        ..m.ask()
    };
    m.refused(force, "unavailable");
    m.disks[1].1.well();
    comes_back(&m);
}

#[test]
fn the_log_device_is_missing() {
    let m = crashed(true);
    m.disks[2].1.gone.store(true, Relaxed);
    m.refused(m.ask(), "log");
    m.disks[2].1.well();
    comes_back(&m);
}

#[test]
fn another_host_has_used_it() {
    let m = crashed(false).switched_off(2);
    m.refused(m.ask(), "another system");
    let force = PoolImport {
        force: true,
        ..m.ask()
    };
    m.import_as(force).unwrap();
    assert!(m.has("p", "second"));
}

#[test]
fn a_feature_is_unknown() {
    let m = Machine::with_pool(false);
    let pool = m.entry().pool.clone();
    pool.task(|pool, tx| {
        let directory = pool.mos.hold(1)?;
        let object = Zap::new(&directory).get("features_for_write")?;
        let features = pool.mos.hold(object.unwrap_or(0))?;
        Zap::new(&features).add_u64(tx, "org.example:from_the_future", 1)
    })
    .unwrap();
    drop(pool);
    let m = m.switched_off(1);
    m.refused(m.ask(), "from_the_future");
}

/// Its root block in every uberblock: there is no other state to go back to.
#[test]
fn the_objects_of_the_pool_are_damaged() {
    let m = Machine::with_pool(false);
    m.put("p", "first");
    m.entry().pool.sync().unwrap();
    let root = m.entry().pool.mos.root();
    let m = m.switched_off(1);
    m.spoil(&root);
    m.refused(m.ask(), "");
}

#[test]
fn the_name_is_taken_or_impossible() {
    let m = crashed(false);
    for (name, word) in [("mirror", "reserved"), ("p/q", "name")] {
        let ask = PoolImport {
            new_name: Some(name.into()),
            ..m.ask()
        };
        m.refused(ask, word);
    }
    comes_back(&m);
}

#[test]
fn properties_that_an_import_cannot_give() {
    let m = crashed(false);
    for (name, word) in [("bootfs", "bootfs"), ("nonsense", "nonsense")] {
        let mut ask = m.ask();
        ask.props.push((name.into(), "p".into()));
        m.refused(ask, word);
    }
    comes_back(&m);
}

/// The first block of a log cannot be read, in a pool that has not been replayed yet.
#[test]
fn a_device_does_not_read_the_log() {
    let m = Machine::with_pool(false);
    m.put("p", "first");
    m.entry().pool.sync().unwrap();
    m.put("p", "second");
    let pool = m.entry().pool.clone();
    let ds = pool.dsl.root_dataset().unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let log = set.zil().unwrap().header().log;
    drop((pool, ds, set));
    let m = m.switched_off(1);
    let dva = log.dva(0);
    let (_, disk) = &m.disks[dva.vdev() as usize];
    let at = crate::FRONT + dva.offset();
    disk.bad_ranges.lock().unwrap().insert(at, at + dva.asize());
    m.refused(m.ask(), "intent log of p");
    disk.well();
    comes_back(&m);
}

/// The same where it is known that the log is not wanted.
#[test]
fn with_m_an_unreadable_log_is_given_up() {
    let m = Machine::with_pool(false);
    m.put("p", "first");
    m.entry().pool.sync().unwrap();
    m.put("p", "second");
    let pool = m.entry().pool.clone();
    let ds = pool.dsl.root_dataset().unwrap();
    let log = pool.open_dataset(&ds).unwrap().zil().unwrap().header().log;
    drop((pool, ds));
    let m = m.switched_off(1);
    let dva = log.dva(0);
    let (_, disk) = &m.disks[dva.vdev() as usize];
    let at = crate::FRONT + dva.offset();
    let bad = &disk.bad_ranges;
    bad.lock().unwrap().insert(at, at + dva.asize());
    let ask = PoolImport {
        missing_log: true,
        ..m.ask()
    };
    m.import_as(ask).unwrap();
    assert!(m.has("p", "first") && !m.has("p", "second"));
    m.put("p", "third");
    assert!(m.has("p", "third"));
}
