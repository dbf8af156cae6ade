//! One block is lost in all its copies: of the root of a file system, of its properties, of the list of what is below it.

use crate::Machine;
use admin::commands::ROOT;
use admin::datasets::{destroy, get, look, mount, rename, send, snapshots};
use api::{ApiError, DatasetDestroy, DatasetGet, DatasetKind, Select, SnapshotCreate};
use disk::BlkPtr;
use dsl::Dataset;
use pool::Pool;
use std::sync::Arc;

/// Three file systems side by side, one below each, with a file in each that is in the log alone; the machine is off.
/// `p/b`, encrypted if it is `sealed`, has lost what `victim` picks.
fn lost_of(sealed: bool, victim: &dyn Fn(&Pool, &Arc<Dataset>) -> BlkPtr) -> Machine {
    lost_with(sealed, 0, victim)
}

/// The same with so many snapshots of `p/b`.
fn lost_with(sealed: bool, snaps: u32, victim: &dyn Fn(&Pool, &Arc<Dataset>) -> BlkPtr) -> Machine {
    let m = Machine::with_pool(false);
    // Too much for the block that leads to it.
    let long = |seed: u32| {
        let word = |n: u32| format!("{:08x}", n.wrapping_mul(2_654_435_761).wrapping_add(seed));
        (0..60).map(word).collect::<String>()
    };
    for fs in ["p/a", "p/b", "p/c"] {
        let mut props = vec![("user:long", long(7)), ("user:more", long(8))];
        if sealed && fs == "p/b" {
            props.extend([("encryption", "on".into()), ("keyformat", "raw".into())]);
        }
        m.create(fs, &props);
        for n in 0..40 {
            m.create(
                &format!("{fs}/below{n:02}{}", &long(n)[..40]),
                &[("canmount", "off".into())],
            );
        }
        m.create(
            &format!("{fs}/low"),
            &[("mountpoint", format!("/{fs}.low"))],
        );
    }
    for n in 0..snaps {
        let name = format!("p/b@{}", &long(n)[..40]);
        take(&m, &name, false).unwrap();
    }
    let pool = m.entry().pool.clone();
    for fs in ["p/a", "p/c", "p/b/low"] {
        m.put(fs, "first");
    }
    pool.sync().unwrap();
    let ds = pool.dsl().dataset("p/b").unwrap();
    let bp = victim(&pool, &ds);
    for fs in ["p/a", "p/c", "p/b/low"] {
        m.put(fs, "second");
    }
    assert_eq!(victim(&pool, &ds), bp, "the block moved");
    drop((pool, ds));
    let m = m.switched_off(1);
    m.spoil(&bp);
    m
}

fn lost(victim: &dyn Fn(&Pool, &Arc<Dataset>) -> BlkPtr) -> Machine {
    lost_of(false, victim)
}

fn root(_: &Pool, ds: &Arc<Dataset>) -> BlkPtr {
    ds.phys().bp
}

fn properties(pool: &Pool, ds: &Arc<Dataset>) -> BlkPtr {
    let object = ds.dir().phys().props_zapobj;
    pool.mos().pointer_of(object, 0, 0).unwrap().unwrap()
}

fn children(pool: &Pool, ds: &Arc<Dataset>) -> BlkPtr {
    let object = ds.dir().phys().child_dir_zapobj;
    pool.mos().pointer_of(object, 0, 0).unwrap().unwrap()
}

fn snapshot_names(pool: &Pool, ds: &Arc<Dataset>) -> BlkPtr {
    let object = ds.phys().snapnames_zapobj;
    pool.mos().pointer_of(object, 0, 0).unwrap().unwrap()
}

fn take(m: &Machine, name: &str, recursive: bool) -> Result<Option<String>, ApiError> {
    let ask = SnapshotCreate {
        names: vec![name.into()],
        recursive,
        ..SnapshotCreate::default()
    };
    snapshots::create(&m.admin, ROOT, &ask)
}

fn key(pool: &Pool, ds: &Arc<Dataset>) -> BlkPtr {
    let object = ds.dir().key_object_number().unwrap().unwrap();
    pool.mos().pointer_of(object, 0, 0).unwrap().unwrap()
}

/// The pool is imported, `p/b` is named, and the others are as they were promised to be.
fn goes_on(m: &Machine, low: bool) {
    let done = m.import().unwrap();
    let named: Vec<&str> = done.failed_mounts.iter().map(|f| f.0.as_str()).collect();
    assert!(named.contains(&"p/b"), "{named:?}");
    for fs in ["p/a", "p/c"] {
        assert!(m.has(fs, "first") && m.has(fs, "second"), "{fs}");
    }
    if low {
        assert!(m.has("p/b/low", "first") && m.has("p/b/low", "second"));
    }
    // It is in use.
    m.put("p/a", "third");
    m.entry().pool.sync().unwrap();
    m.export();
    m.import().unwrap();
    assert!(m.has("p/a", "third"));
}

#[test]
fn a_file_system_without_its_root_stays_alone() {
    let m = lost(&root);
    goes_on(&m, true);
    assert!(m.zfs("p/b").is_none());
    // `zpool status -v` names it.
    let log = m.entry().pool.error_count();
    assert!(log.is_some_and(|n| n > 0), "{log:?}");
}

#[test]
fn a_file_system_without_its_properties_stays_alone() {
    let m = lost(&properties);
    goes_on(&m, false);
    assert!(m.zfs("p/b").is_none());
}

#[test]
fn a_file_system_without_its_keys_stays_alone() {
    let m = lost_of(true, &key);
    goes_on(&m, false);
    assert!(m.zfs("p/b").is_none());
}

/// Which file systems are below it is not known any more.
#[test]
fn a_file_system_without_the_list_of_those_below_it() {
    goes_on(&lost(&children), false);
}

/// What nobody tried to mount is named all the same.
#[test]
fn an_import_without_mounts_names_what_is_damaged() {
    let m = lost(&root);
    let ask = api::PoolImport {
        no_mount: true,
        ..m.ask()
    };
    let done = m.import_as(ask).unwrap();
    assert_eq!(done.failed_mounts.len(), 1, "{:?}", done.failed_mounts);
    assert_eq!(done.failed_mounts[0].0, "p/b");
    assert!(m.zfs("p/a").is_none());
}

/// Names of everything that is listed, and of what is said to be damaged.
fn listed(m: &Machine, kind: DatasetKind) -> (Vec<String>, Vec<String>) {
    let ask = DatasetGet {
        roots: vec!["p".into()],
        kinds: vec![kind],
        depth: None,
        props: Select::All,
        listsnapshots: false,
    };
    let (mut names, mut failed) = (Vec::new(), Vec::new());
    let last = get::get(&m.admin, admin::commands::ROOT, &ask, &mut |part| {
        names.extend(part.found.into_iter().map(|d| d.name));
        failed.extend(part.failed.into_iter().map(|f| f.0));
        Ok(())
    });
    let last = last.unwrap();
    names.extend(last.found.into_iter().map(|d| d.name));
    failed.extend(last.failed.into_iter().map(|f| f.0));
    (names, failed)
}

/// What walks all file systems goes on past the damaged one.
#[test]
fn commands_go_on_past_a_damaged_file_system() {
    for (sealed, victim) in [
        (false, root as fn(&Pool, &Arc<Dataset>) -> BlkPtr),
        (false, properties),
        (true, key),
    ] {
        let m = lost_of(sealed, &victim);
        m.import().unwrap();
        let (names, failed) = listed(&m, DatasetKind::Filesystem);
        let all: Vec<&String> = names.iter().chain(&failed).collect();
        for fs in ["p", "p/a", "p/b", "p/b/low", "p/c", "p/c/low"] {
            assert!(all.iter().any(|n| *n == fs), "{fs} in {all:?}");
        }
        let done = mount::mount_all(&m.admin, ROOT, None, &[], false, false, &mut |_| ());
        let failed: Vec<String> = done.unwrap().failed.into_iter().map(|f| f.0).collect();
        assert!(failed.iter().all(|n| n.starts_with("p/b")), "{failed:?}");
        let ask = SnapshotCreate {
            names: vec!["p@s".into()],
            recursive: true,
            ..SnapshotCreate::default()
        };
        snapshots::create(&m.admin, ROOT, &ask).unwrap();
        let (names, failed) = listed(&m, DatasetKind::Snapshot);
        for snap in ["p@s", "p/a@s", "p/c@s", "p/c/low@s"] {
            assert!(names.iter().any(|n| n == snap), "{snap} in {names:?}");
        }
        let named = |n: &String| n.starts_with("p/b");
        assert!(names.iter().chain(&failed).any(named), "{names:?}");
        for name in ["p@s", "p/b"] {
            let ask = DatasetDestroy {
                name: name.into(),
                recursive: true,
                ..DatasetDestroy::default()
            };
            let done = destroy::destroy(&m.admin, ROOT, &ask).unwrap();
            assert!(done.failed.is_empty(), "{:?}", done.failed);
        }
        // Nothing is damaged any more.
        m.export();
        let done = m.import().unwrap();
        assert!(done.failed_mounts.is_empty(), "{:?}", done.failed_mounts);
        assert!(m.has("p/a", "second") && m.has("p/c", "second"));
    }
}

/// What hangs below a file system, or which snapshots it has, is not known any more. All others are served, and that one is
/// named.
#[test]
fn recursive_commands_go_on_past_a_damaged_list() {
    let lists: [fn(&Pool, &Arc<Dataset>) -> BlkPtr; 2] = [children, snapshot_names];
    for (n, victim) in lists.into_iter().enumerate() {
        let of_children = n == 0;
        let m = lost_with(false, 30, &victim);
        m.import().unwrap();
        let names_b = |e: &ApiError| {
            let said = format!("{e:?}");
            assert!(said.contains("p/b is damaged"), "{said}");
            assert!(!said.contains("p/a") && !said.contains("p/c"), "{said}");
        };
        let there = |name: &str| m.entry().pool.dsl().dataset(name).is_ok();
        // list -r and get -r, which `upgrade -a` begins with.
        let (names, failed) = listed(&m, DatasetKind::Filesystem);
        let all: Vec<&String> = names.iter().chain(&failed).collect();
        for fs in ["p", "p/a", "p/a/low", "p/b", "p/c", "p/c/low"] {
            assert!(all.iter().any(|n| *n == fs), "{fs} in {all:?}");
        }
        assert!(failed.iter().all(|n| n == "p/b"), "{failed:?}");
        assert_eq!(names.iter().any(|n| n == "p/b/low"), !of_children);
        assert!(!of_children || !failed.is_empty());
        let (_, failed) = listed(&m, DatasetKind::Snapshot);
        assert!(failed.iter().any(|n| n == "p/b"), "{failed:?}");
        // snapshot -r: what is sound has it, all in one txg.
        names_b(&take(&m, "p@s", true).unwrap_err());
        let sound = ["p", "p/a", "p/a/low", "p/c", "p/c/low"];
        let mut txgs = sound.map(|fs| {
            let snap = m.entry().pool.dsl().dataset(&format!("{fs}@s")).unwrap();
            snap.phys().creation_txg
        });
        txgs.sort();
        assert_eq!(txgs[0], txgs[4]);
        assert_eq!(there("p/b@s"), of_children);
        // rename -r
        let how = rename::How {
            recursive: true,
            ..rename::How::default()
        };
        let done = rename::rename(&m.admin, ROOT, "p@s", "p@t", how, String::new());
        names_b(&done.unwrap_err());
        assert!(sound.iter().all(|fs| there(&format!("{fs}@t"))));
        assert!(sound.iter().all(|fs| !there(&format!("{fs}@s"))));
        // send -R: whoever receives with -F must not lose the copy of what is damaged unasked.
        let mut ask = api::Send {
            target: "p@t".into(),
            replicate: true,
            dry_run: true,
            ..api::Send::default()
        };
        let e = send::send(&m.admin, ROOT, &ask, None, &mut |_| {}).unwrap_err();
        names_b(&e);
        assert!(e.hint.is_some_and(|h| h.contains("'-s'")));
        ask.skip_missing = true;
        let plan = send::send(&m.admin, ROOT, &ask, None, &mut |_| {}).unwrap();
        assert!(plan.failed);
        let said = plan.warnings.join("\n");
        assert!(
            said.contains("skipping dataset p/b and its children"),
            "{said}"
        );
        // hold -r, holds -r, release -r
        let holding = api::Holding {
            tag: "keep".into(),
            snapshots: vec!["p@t".into()],
            recursive: true,
            ..api::Holding::default()
        };
        let failed = |b: api::Batch| b.failed.into_iter().map(|f| f.0).collect::<Vec<_>>();
        let held = snapshots::hold(&m.admin, ROOT, &holding).unwrap();
        assert_eq!(failed(held), ["p/b@t"]);
        let holds = look::holds(&m.admin, &["p@t".into()], true, &mut |_| Ok(())).unwrap();
        assert!(holds.found.iter().any(|h| h.snapshot == "p/c/low@t"));
        assert_eq!(holds.failed.len(), 1);
        let released = snapshots::release(&m.admin, ROOT, &holding).unwrap();
        assert_eq!(failed(released), ["p/b@t"]);
        // destroy -r of snapshots, and of everything.
        let destroyed = |name: &str| {
            let ask = DatasetDestroy {
                name: name.into(),
                recursive: true,
                ..DatasetDestroy::default()
            };
            destroy::destroy(&m.admin, ROOT, &ask)
        };
        let done = destroyed("p@t").unwrap();
        let left: Vec<_> = done.failed.iter().map(|f| f.0.as_str()).collect();
        assert_eq!(left, ["p/b"]);
        assert!(sound.iter().all(|fs| !there(&format!("{fs}@t"))));
        // What is below it would stay allocated for good, and nobody would know.
        let before = m.entry().pool.dsl().dataset("p/b").unwrap().object();
        let done = destroyed("p/b").unwrap();
        assert_eq!(done.failed.len(), 1, "{:?}", done.failed);
        let (name, e) = &done.failed[0];
        assert_eq!(name, "p/b");
        assert!(e.message.contains("damaged and stays"), "{e:?}");
        assert_eq!(
            m.entry().pool.dsl().dataset("p/b").unwrap().object(),
            before
        );
        let done = destroyed("p").unwrap();
        let left: Vec<_> = done.failed.iter().map(|f| f.0.as_str()).collect();
        assert!(left.contains(&"p/b") && !left.contains(&"p"), "{left:?}");
        for fs in ["p/a", "p/c", "p/a/low"] {
            assert!(!there(fs), "{fs}");
        }
        assert!(there("p/b"));
        m.export();
        m.import().unwrap();
        assert!(there("p/b") && !there("p/a"));
    }
}
