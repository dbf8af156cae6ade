//! Every refusal of an import leaves the devices as they are, bit for bit.
//!
//! Without a test of their own are refusals
//! * of a place that cannot be searched, and of a pool that was given up while its devices do not answer: no device of the pool is opened;
//! * of labels that contradict one another, name features that cannot be read, or describe vdevs that nobody knows: labels are read by
//!   the search, which opens every device for reading;
//! * of going back behind an expansion, of tables and maps in the MOS that are damaged: they come
//!   before [`pool::Pool`] writes anything, behind the same call that refuses the damaged objects below.
//!
//! A missing key is no reason to refuse an import: the file system is not mounted. What fails after the first write is no refusal, but
//! an import that was cut short, as by a power cut.

use crate::Machine;
use admin::commands::ROOT;
use admin::pools;
use api::PoolImport;
use base::{Result, Txg};
use disk::uberblock::Uberblock;
use dmu::Tx;
use dsl::PropValue;
use pool::Pool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Mutex;
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

/// A pool in whose MOS something was changed, on a machine that was switched off then.
fn forged(change: fn(&Pool, &Tx) -> Result<()>) -> Machine {
    let m = Machine::with_pool(false);
    m.put("p", "first");
    m.entry().pool.task(change).unwrap();
    m.switched_off(1)
}

/// Makes `key` of the directory of the MOS point to `object`.
fn lead(pool: &Pool, tx: &Tx, key: &str, object: u64) -> Result<()> {
    let directory = pool.mos().hold(1)?;
    Zap::new(&directory).update_u64(tx, key, object)
}

fn feature(pool: &Pool, tx: &Tx, list: &str) -> Result<()> {
    let directory = pool.mos().hold(1)?;
    let object = Zap::new(&directory).get(list)?;
    let features = pool.mos().hold(object.unwrap_or(0))?;
    Zap::new(&features).add_u64(tx, "org.example:from_the_future", 1)
}

#[test]
fn a_feature_is_unknown() {
    for change in [
        (|pool, tx| feature(pool, tx, "features_for_write")) as fn(&Pool, &Tx) -> Result<()>,
        |pool, tx| feature(pool, tx, "features_for_read"),
    ] {
        let m = forged(change);
        m.refused(m.ask(), "from_the_future");
    }
}

/// Objects of the pool itself that are not there, or are something else.
#[test]
fn something_in_the_mos_is_wrong() {
    const NOWHERE: u64 = 100_000;
    let changes: [(&str, fn(&Pool, &Tx) -> Result<()>); 7] = [
        ("config", |pool, tx| {
            let directory = pool.mos().hold(1)?;
            Zap::new(&directory).remove(tx, "config").map(|_| ())
        }),
        ("", |pool, tx| lead(pool, tx, "config", 1)),
        ("root_dataset", |pool, tx| {
            let directory = pool.mos().hold(1)?;
            Zap::new(&directory).remove(tx, "root_dataset").map(|_| ())
        }),
        ("", |pool, tx| lead(pool, tx, "root_dataset", NOWHERE)),
        ("salt", |pool, tx| {
            lead(pool, tx, disk::mos_keys::CHECKSUM_SALT, 1)
        }),
        ("", |pool, tx| lead(pool, tx, "sync_bplist", NOWHERE)),
        ("", |pool, tx| {
            lead(pool, tx, disk::mos_keys::LOG_SPACEMAP_ZAP, NOWHERE)
        }),
    ];
    for (word, change) in changes {
        let m = forged(change);
        m.refused(m.ask(), word);
    }
}

/// A pool with an uberblock that is newer than all others, and says something else.
fn with_uberblock(change: fn(&mut Uberblock)) -> Machine {
    let m = Machine::with_pool(false);
    m.put("p", "first");
    let pool = m.entry().pool.clone();
    pool.sync().unwrap();
    let (mut ub, _) = pool.tree().best_uberblock(Txg::MAX).unwrap();
    ub.timestamp += 10;
    change(&mut ub);
    for leaf in pool.tree().leaves() {
        pool.tree().write_heartbeat(&ub, &leaf).unwrap();
    }
    drop(pool);
    m.switched_off(1)
}

#[test]
fn the_uberblock_says_what_nobody_knows() {
    let m = with_uberblock(|ub| ub.version = 29);
    m.refused(m.ask(), "version");
    let m = with_uberblock(|ub| ub.guid_sum = ub.guid_sum.wrapping_add(1));
    m.refused(m.ask(), "");
    let m = with_uberblock(|ub| ub.txg = Txg::MAX);
    m.refused(m.ask(), "txg");
}

#[test]
fn there_is_no_state_to_go_back_to() {
    let m = crashed(false);
    let checkpoint = PoolImport {
        checkpoint: true,
        ..m.ask()
    };
    m.refused(checkpoint, "checkpoint does not exist");
    let early = PoolImport {
        txg: Some(1),
        rewind: true,
        extreme: true,
        ..m.ask()
    };
    m.refused(early, "uberblock");
    comes_back(&m);
}

#[test]
fn another_pool_has_the_name() {
    let m = crashed(false);
    let other = m.with_another("/dev/other", "p");
    let guid = vdev::discover(
        &other.admin.env,
        &["/dev/a".to_string(), "/dev/b".to_string()],
    )
    .pools[0]
        .guid;
    let ask = PoolImport {
        pool: guid.to_string(),
        ..other.ask()
    };
    other.refused(ask, "already exists");
    // In service, and nothing else has that name.
    let alone = PoolImport {
        search: api::ImportScan {
            places: vec!["/dev/other".into()],
            ..Default::default()
        },
        ..other.ask()
    };
    other.refused(alone, "already");
    // Both are there, none is in service.
    let both = other.switched_off(1);
    both.refused(both.ask(), "more than one");
    let nobody = PoolImport {
        pool: "q".into(),
        ..both.ask()
    };
    both.refused(nobody, "no such pool");
}

/// Sets `multihost=on`; whoever calls this has them written.
fn heartbeats(m: &Machine) {
    let on = |pool: &Pool, tx: &Tx| pool.store_prop(tx, "multihost", Some(&PropValue::Int(1)));
    m.entry().pool.task(on).unwrap();
    assert!(m.entry().pool.is_multihost());
}

/// A pool with `multihost=on`, on a machine that is switched off.
fn protected(id: u64) -> Machine {
    let m = Machine::with_pool(false);
    heartbeats(&m);
    m.put("p", "first");
    m.entry().pool.sync().unwrap();
    m.put("p", "second");
    m.switched_off(id)
}

/// What an activity check writes is taken back where the import is refused for another reason.
#[test]
fn a_host_that_used_it_with_multihost_is_dead() {
    let m = protected(2);
    m.refused(m.ask(), "another system");
    let wrong = PoolImport {
        force: true,
        checkpoint: true,
        ..m.ask()
    };
    m.refused(wrong, "checkpoint does not exist");
    // Nobody writes heartbeats here.
    let mut look = PoolImport {
        force: true,
        ..m.ask()
    };
    look.props.push(("readonly".into(), "on".into()));
    m.import_as(look).unwrap();
    assert!(m.has("p", "first"));
}

#[test]
fn a_host_without_an_id_does_not_use_multihost() {
    let m = protected(0);
    m.refused(m.ask(), "hostid is not set");
}

/// Heartbeats go on while the import looks.
#[test]
fn another_host_uses_it_with_multihost() {
    let m = Machine::with_pool(false);
    heartbeats(&m);
    m.put("p", "first");
    let pool = m.entry().pool.clone();
    pool.sync().unwrap();
    let other = Machine::new(2, m.disks.clone());
    for force in [false, true] {
        let last = Mutex::new(other.hashes());
        let beat = || {
            m.clock.pass(100_000_000);
            other.clock.pass(100_000_000);
            pool.heartbeat();
            *last.lock().unwrap() = other.hashes();
            false
        };
        let ask = PoolImport {
            force,
            ..other.ask()
        };
        let e = pools::import::import(&other.admin, ROOT, ask, &beat).unwrap_err();
        assert!(e.message.contains("pool is imported on"), "{e:?}");
        assert!(
            other.hashes() == *last.lock().unwrap(),
            "the import has written"
        );
    }
    // It goes on.
    m.put("p", "second");
    pool.sync().unwrap();
    assert!(pool.suspended().is_none() && m.has("p", "second"));
}

/// The root block of the newest state, and of all others: then there is none to go back to.
#[test]
fn the_objects_of_the_pool_are_damaged() {
    let m = Machine::with_pool(false);
    m.put("p", "first");
    m.entry().pool.sync().unwrap();
    let root = m.entry().pool.mos().root();
    let tree = m.entry().pool.tree().clone();
    let states = tree.uberblock_txgs().into_iter();
    let older: Vec<_> = states
        .filter_map(|txg| Some(tree.best_uberblock(txg)?.0.rootbp))
        .filter(|bp| !bp.is_hole())
        .collect();
    let m = m.switched_off(1);
    m.spoil(&root);
    m.refused(m.ask(), "");
    older.iter().for_each(|bp| m.spoil(bp));
    for extreme in [false, true] {
        let back = PoolImport {
            rewind: true,
            extreme,
            ..m.ask()
        };
        m.refused(back, "");
    }
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
    for (name, value, word) in [
        ("bootfs", "p", "bootfs"),
        ("nonsense", "p", "nonsense"),
        ("version", "28", "version"),
        ("feature@async_destroy", "enabled", "feature@async_destroy"),
        ("compatibility", "off", "compatibility"),
        ("failmode", "perhaps", "failmode"),
    ] {
        let mut ask = m.ask();
        ask.props.push((name.into(), value.into()));
        m.refused(ask, word);
    }
    let mut ask = m.ask();
    ask.props = [("readonly", "on"), ("comment", "words")]
        .map(|(n, v)| (n.to_string(), v.to_string()))
        .into();
    m.refused(ask, "read-only");
    let options = PoolImport {
        mount_options: vec!["no-such-option".into()],
        ..m.ask()
    };
    m.refused(options, "no-such-option");
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
    let ds = pool.dsl().root_dataset().unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let log = set.zil().unwrap().header().log;
    drop((pool, ds, set));
    let m = m.switched_off(1);
    let dva = log.dva(0);
    let (_, disk) = &m.disks[dva.vdev() as usize];
    let at = crate::FRONT + dva.offset();
    disk.bad_ranges.lock().unwrap().insert(at, at + dva.asize());
    m.refused(m.ask(), "intent log of p");
    // What can be done about a sector that stays bad is said.
    m.refused(m.ask(), "zpool import -m");
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
    let ds = pool.dsl().root_dataset().unwrap();
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
