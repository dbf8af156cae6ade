//! What is in a snapshot, whatever else its txg does.

use base::Txg;
use disk::dnode::objset::ObjsetPhys;
use dsl::{CreateArgs, Dataset};
use pool::Pool;
use sim::rig::{self, Layout};
use std::sync::{Arc, Mutex};
use vdev::GroupKind;
use zpl::{Cred, New};

fn layout(version: u64) -> Layout {
    Layout {
        version,
        ..Layout::new(GroupKind::Single, 1)
    }
}

fn header_of(pool: &Pool, ds: &Dataset) -> [u8; 192] {
    let root = pool.zio().read(&ds.phys().bp).unwrap();
    ObjsetPhys::decode(&root).unwrap().zil_header
}

#[test]
fn before_version_27_the_log_is_emptied_for_a_snapshot_and_nothing_synced_is_lost() {
    for version in [15, 26, 28, 5000] {
        let l = layout(version);
        let (disks, pool) = rig::create(&l, 1);
        let config = pool.full_config(0, Txg::NONE, false);
        let fs = rig::mount(&pool, &l).unwrap();
        let root = fs.zfs.root().unwrap();
        let new = New::file(0o100644, 0);
        let z = fs.zfs.create(&root, b"a", &new, &Cred::root()).unwrap();
        let synced = |at: u64, data: &[u8]| {
            fs.zfs.write(&z, at, data, Default::default()).unwrap();
            fs.zfs.fsync(Some(&z)).unwrap();
        };
        synced(0, &[1; 5000]);
        synced(5000, &[2; 5000]);
        assert_ne!(fs.set.os.zil_header(), [0; 192], "there is a log");
        fs.snapshot("s").unwrap();
        let head = pool.dsl().root_dataset().unwrap();
        let snap = head.snapshot_named("s").unwrap().unwrap();
        assert_eq!(
            header_of(&pool, &snap) == [0; 192],
            version < 27,
            "version {version}"
        );
        synced(10_000, &[3; 5000]);
        synced(15_000, &[4; 5000]);
        rig::check(&pool).unwrap();
        // A crash.
        pool.tree().close();
        drop((root, z, fs, head, snap, pool));
        let pool = rig::open(&disks, &config, 2).unwrap();
        let fs = rig::mount(&pool, &l).unwrap();
        let root = fs.zfs.root().unwrap();
        let z = fs.zfs.lookup(&root, b"a", &Cred::root()).unwrap();
        let mut got = vec![0; 30_000];
        let n = fs.zfs.read(&z, 0, &mut got).unwrap();
        let want: Vec<u8> = (0..20_000).map(|i| 1 + (i / 5000) as u8).collect();
        assert_eq!(got[..n], want);
        drop((root, z));
        fs.unmount().unwrap();
        pool.export().unwrap();
    }
}

#[test]
fn temporary_holds_end_with_the_import_and_take_deferred_snapshots_along() {
    let l = layout(5000);
    let (disks, pool) = rig::create(&l, 1);
    let config = pool.full_config(0, Txg::NONE, false);
    let head = pool.dsl().root_dataset().unwrap();
    let snapshot = |name: &str| {
        let list = vec![(head.clone(), name.to_string())];
        pool.snapshot(list, |_, _| Ok(())).unwrap();
        head.snapshot_named(name).unwrap().unwrap()
    };
    let (kept, gone) = (snapshot("kept"), snapshot("gone"));
    pool.task(move |pool, tx| {
        pool.dsl().hold(tx, &kept, "stay", false)?;
        pool.dsl().hold(tx, &kept, ".send-1", true)?;
        pool.dsl().hold(tx, &gone, ".send-2", true)?;
        pool.dsl().destroy_snapshot_deferred(tx, &gone)
    })
    .unwrap();
    assert!(pool.dsl().has_temporary_holds().unwrap());
    assert_eq!(head.snapshot_names().unwrap().len(), 2);
    // A crash.
    pool.tree().close();
    drop((head, pool));
    let pool = rig::open(&disks, &config, 2).unwrap();
    let head = pool.dsl().root_dataset().unwrap();
    let names: Vec<String> = head
        .snapshot_names()
        .unwrap()
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    assert_eq!(names, ["kept"]);
    let kept = head.snapshot_named("kept").unwrap().unwrap();
    let tags: Vec<String> = kept
        .hold_list()
        .unwrap()
        .into_iter()
        .map(|(t, _)| t)
        .collect();
    assert_eq!(tags, ["stay"]);
    assert!(!pool.dsl().has_temporary_holds().unwrap());
    rig::check(&pool).unwrap();
    drop((head, kept));
    pool.export().unwrap();
}

#[test]
fn a_clone_and_its_snapshot_of_one_group_have_the_same_root() {
    let l = layout(5000);
    let (_, pool) = rig::create(&l, 1);
    let head = pool.dsl().root_dataset().unwrap();
    pool.snapshot(vec![(head, "s".into())], |_, _| Ok(()))
        .unwrap();
    let made: Arc<Mutex<Option<u64>>> = Arc::default();
    let out = made.clone();
    pool.task(move |pool, tx| {
        let origin = pool.dsl().dataset("tank@s")?;
        let root = pool.dsl().root()?;
        let args = CreateArgs::default();
        let ds = pool.dsl().create_clone(tx, &root, "c", &origin, args)?;
        let os = ds.open_objset(pool.write_policy(&ds)?, false)?;
        os.set_zil_header(tx, [0; 192]);
        pool.snapshot_in(tx, &[(ds, "t".into())])?;
        *out.lock().unwrap() = Some(tx.txg().number());
        Ok(())
    })
    .unwrap();
    let txg = made.lock().unwrap().unwrap();
    let clone = pool.dsl().dataset("tank/c").unwrap();
    let snap = pool.dsl().dataset("tank/c@t").unwrap();
    assert_eq!(snap.phys().bp, clone.phys().bp);
    assert_eq!(snap.phys().bp.birth(), Txg::new(txg));
    assert_eq!(snap.phys().creation_txg, Txg::new(txg));
    rig::check(&pool).unwrap();
    drop((clone, snap));
    for name in ["tank/c@t", "tank/c", "tank@s"] {
        let destroyed = pool.task(move |pool, tx| {
            let ds = pool.dsl().dataset(name)?;
            match ds.is_snapshot() {
                true => pool.dsl().destroy_snapshot(tx, &ds),
                false => pool.dsl().destroy_head(tx, &ds),
            }
        });
        destroyed.unwrap();
    }
    pool.sync().unwrap();
    rig::check(&pool).unwrap();
    pool.export().unwrap();
}

#[test]
fn two_requests_for_a_snapshot_of_one_head_in_one_group_are_both_carried_out() {
    let (_, pool) = rig::create(&layout(5000), 1);
    let head = pool.dsl().root_dataset().unwrap();
    let twice = {
        let head = head.clone();
        pool.task(move |pool, tx| {
            pool.snapshot_in(tx, &[(head.clone(), "a".into())])?;
            pool.snapshot_in(tx, &[(head, "b".into())])
        })
    };
    assert_eq!(twice.unwrap_err().kind, base::Kind::Again);
    assert!(pool.dsl().dataset("tank@a").is_ok());
    // Two threads, whose tasks may meet in one txg.
    std::thread::scope(|s| {
        for t in 0..2 {
            let (pool, head) = (&pool, &head);
            s.spawn(move || {
                for n in 0..20 {
                    let list = vec![(head.clone(), format!("t{t}n{n}"))];
                    pool.snapshot(list, |_, _| Ok(())).unwrap();
                }
            });
        }
    });
    assert_eq!(head.snapshot_count().unwrap(), 41);
    drop(head);
    rig::check(&pool).unwrap();
    pool.export().unwrap();
}

/// Who looks at a head before or beside whoever mounts it shares its object set, and takes nothing of its
/// writability; a snapshot is never written, whoever opens it how.
#[test]
fn writability_belongs_to_the_handle() {
    let l = layout(5000);
    let (_, pool) = rig::create(&l, 1);
    let head = pool.dsl().root_dataset().unwrap();
    let need = || dmu::Need::bytes(4096);
    let looking = head
        .open_objset(pool.write_policy(&head).unwrap(), true)
        .unwrap();
    let set = pool.open_dataset(&head).unwrap();
    assert!(!set.os.is_readonly());
    drop(set.os.tx(need()).unwrap());
    // Looking again takes nothing away.
    let again = head
        .open_objset(pool.write_policy(&head).unwrap(), true)
        .unwrap();
    assert!(Arc::ptr_eq(&looking, &again));
    drop(set.os.tx(need()).unwrap());
    drop((looking, again));

    pool.snapshot(vec![(head.clone(), "s".into())], |_, _| Ok(()))
        .unwrap();
    let snap = pool.dsl().dataset("tank@s").unwrap();
    let asked = snap
        .open_objset(pool.write_policy(&snap).unwrap(), false)
        .unwrap();
    let opened = pool.open_dataset(&snap).unwrap();
    for os in [&asked, &opened.os] {
        assert!(os.is_readonly());
        let e = os.tx(need()).map(drop).unwrap_err();
        assert_eq!(e.kind, base::Kind::ReadOnly);
    }
    assert!(opened.zil().is_none());
    // While the head goes on to be written.
    drop(set.os.tx(need()).unwrap());
    drop((asked, opened, snap, set));
    pool.close_dataset(head.object());
    drop(head);
    pool.export().unwrap();
}
