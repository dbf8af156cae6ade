//! Imports whose caller goes away: they end wherever they are, and a later import finds everything.

use crate::Machine;
use admin::commands::ROOT;
use admin::{cancel, pools};
use base::Kind;
use std::cell::Cell;
use std::rc::Rc;

/// Imports; the caller goes away when it is asked for the `limit`-th time. Returns the answer, and how often it was asked.
fn import(m: &Machine, limit: u64) -> (admin::Answer<api::Imported>, u64) {
    let asked = Rc::new(Cell::new(0));
    let gone = {
        let asked = asked.clone();
        move || {
            asked.set(asked.get() + 1);
            asked.get() >= limit
        }
    };
    let ask = api::PoolImport {
        rewind: true,
        ..m.ask()
    };
    let done = cancel::with(Box::new(gone), || {
        pools::import::import(&m.admin, ROOT, ask, &cancel::is_cancelled)
    });
    (done, asked.get())
}

/// Of a machine that was switched off: file systems with logs, a pool with logs of space maps.
fn busy() -> Machine {
    let m = Machine::with_pool(false);
    for n in 0..8 {
        let fs = format!("p/f{n}");
        m.create(&fs, &[]);
        m.put(&fs, "first");
        m.entry().pool.sync().unwrap();
    }
    for n in 0..8 {
        for file in 0..20 {
            m.put(&format!("p/f{n}"), &format!("second{file}"));
        }
    }
    m.switched_off(1)
}

fn everything_is_there(m: &Machine) {
    for n in 0..8 {
        let fs = format!("p/f{n}");
        assert!(m.has(&fs, "first"), "{fs}");
        for file in 0..20 {
            assert!(m.has(&fs, &format!("second{file}")), "{fs}: {file}");
        }
    }
}

/// At every place where it is asked, up to the one where everything is done.
#[test]
fn an_import_ends_wherever_its_caller_goes_away() {
    let disks = busy();
    let before = disks.hashes();
    let (mut limit, mut refused) = (1, 0);
    loop {
        let m = disks.forked(1);
        let (done, asked) = import(&m, limit);
        match done {
            Err(e) => {
                assert_eq!(e.code, Kind::Interrupted.errno(), "{limit}: {e:?}");
                assert!(m.admin.find("p").is_none());
                assert!(asked <= limit + 2, "{limit}: it went on to {asked}");
                refused += 1;
            }
            Ok(done) if asked >= limit => {
                // It was too late to refuse: what was not mounted is named.
                for (name, e) in &done.failed_mounts {
                    assert_eq!(e.code, Kind::Interrupted.errno(), "{limit}: {name}: {e:?}");
                }
                for n in 0..8 {
                    let fs = format!("p/f{n}");
                    let named = done.failed_mounts.iter().any(|(name, _)| *name == fs);
                    assert_ne!(m.zfs(&fs).is_some(), named, "{limit}: {fs}");
                }
            }
            Ok(_) => {
                everything_is_there(&m);
                break;
            }
        }
        let again = m.switched_off(1);
        again.import().unwrap();
        everything_is_there(&again);
        // Not every record and every block of a log: each such place many times.
        limit += 1 + limit / 12;
    }
    assert!(refused >= 20, "{refused}");
    assert!(disks.hashes() == before);
}

/// How often the caller is asked grows with what is to be read: no loop goes on without asking.
#[test]
fn each_file_system_and_each_log_record_asks() {
    let m = busy();
    let (done, asked) = import(&m, u64::MAX);
    done.unwrap();
    // Eight file systems with the blocks and records of 20 files; they are rehearsed, claimed and replayed.
    assert!(asked > 3 * 8 * 20, "{asked}");
}
