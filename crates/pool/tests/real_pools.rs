//! Pools made by OpenZFS: everything their datasets say about space, deadlists and names is recomputed;
//! then they are changed and destroyed, and zdb judges what is left.

use base::Txg;
use disk::{BlkPtr, DnodePhys};
use dsl::Dataset;
use pool::{OpenOptions, Pool};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use testkit::{fixture, or_skip, OpenZfs, TempDir};
use zap::{Match, Zap};

type Id = (u64, u64, u64);

/// Where a block is; OpenZFS may have told one dataset where it went from a removed vdev, and another
/// one not.
fn id(p: &Pool, bp: &BlkPtr) -> Option<Id> {
    let d = *bp.dvas().first()?;
    let whole = vdev::Piece {
        vdev: d.vdev(),
        offset: d.offset(),
        len: d.asize() as usize,
        birth: Txg::NONE,
    };
    let at = p.tree().locate(whole, &mut |_, _, _| {}).unwrap();
    Some((at[0].vdev, at[0].offset, bp.birth().number()))
}

fn places(p: &Pool, tree: &[BlkPtr]) -> HashSet<Id> {
    tree.iter().filter_map(|bp| id(p, bp)).collect()
}

fn found(dir: &TempDir) -> Vec<vdev::PoolFound> {
    let images: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path().to_str().unwrap().to_string())
        .filter(|p| p.ends_with(".img"))
        .collect();
    vdev::discover(&env_linux::linux_env(), &images).pools
}

/// Every block of an object set.
fn tree(p: &Pool, root: &BlkPtr) -> Vec<BlkPtr> {
    let mut out = vec![];
    if root.is_hole() {
        return out;
    }
    let spec = walk::Spec::all(walk::Order::ParentsFirst);
    walk::walk(p.zio(), root, &spec, &mut Blocks(&mut out)).unwrap();
    out
}

struct Blocks<'a>(&'a mut Vec<BlkPtr>);

impl walk::Visitor for Blocks<'_> {
    fn block(
        &mut self,
        _: walk::Zbookmark,
        bp: &BlkPtr,
        _: Option<&DnodePhys>,
    ) -> base::Result<walk::Next> {
        self.0.push(*bp);
        Ok(walk::Next::Descend)
    }
    fn finding(&mut self, f: walk::Finding) -> base::Result<()> {
        Err(f.problem.error().clone())
    }
}

/// Every entry of every ZAP is found again by its name and by its cookie.
fn check_zaps(os: &Arc<dmu::Objset>) {
    let mut at = 0;
    while let Some(o) = os.next_object(at).unwrap() {
        at = o;
        let dn = os.hold(o).unwrap();
        if !dn.info().obj_type.is_zap() || dn.block(0).unwrap().iter().all(|b| *b == 0) {
            continue;
        }
        let z = Zap::new(&dn).longname(true).large_micro(true);
        let mut n = 0;
        let mut last = None;
        for e in z.iter() {
            let e = e.unwrap();
            assert!(last < Some((e.hash, e.cd)));
            last = Some((e.hash, e.cd));
            n += 1;
            let again = z.cursor(e.cookie).next().unwrap().unwrap();
            assert_eq!(again, e);
            let head = dn.block(0).unwrap();
            if head[0] == 1 && head[96] & 2 != 0 {
                assert_eq!(z.get_value(&e.words()[..]).unwrap(), Some(e.value));
                continue;
            }
            let f = z.find(&e.name, Match::Exact).unwrap().unwrap();
            assert_eq!((f.value, f.cd), (e.value, e.cd));
            assert!(z.find(&e.name, Match::Normalized).unwrap().is_some());
        }
        assert_eq!(n, z.count().unwrap());
    }
}

fn recompute(p: &Pool) {
    check_zaps(p.mos());
    let mut dirs = vec![];
    p.dsl()
        .walk(&p.dsl().root().unwrap(), &mut |d| {
            dirs.push(d.clone());
            Ok(())
        })
        .unwrap();
    for d in &dirs {
        assert!(d.breakdown_is_right());
        let head = d.head().unwrap();
        let mut chain: Vec<Arc<Dataset>> = head
            .snapshots()
            .unwrap()
            .into_iter()
            .map(|(_, s)| s)
            .collect();
        chain.push(head);
        let mut before: HashSet<Id> = match d.origin().unwrap() {
            Some(o) => places(p, &tree(p, &o.phys().bp)),
            None => HashSet::new(),
        };
        let mut ids: HashMap<u64, HashSet<Id>> = HashMap::new();
        let mut trees = vec![];
        for ds in &chain {
            let name = ds.full_name();
            let ph = ds.phys();
            let t = tree(p, &ph.bp);
            let sums = t.iter().fold([0; 3], |s, bp| {
                [
                    s[0] + p.zio().dsize(bp),
                    s[1] + bp.acct_psize(),
                    s[2] + bp.ucsize(),
                ]
            });
            let want = [
                ph.referenced_bytes,
                ph.compressed_bytes,
                ph.uncompressed_bytes,
            ];
            assert_eq!(sums, want, "{name}");
            let here = places(p, &t);
            let mut dead = HashSet::new();
            ds.deadlist()
                .unwrap()
                .for_each(p.mos(), &mut |bp| {
                    dead.extend(id(p, bp));
                    Ok(())
                })
                .unwrap();
            assert_eq!(
                dead,
                before.difference(&here).copied().collect(),
                "deadlist of {name}"
            );
            before = here.clone();
            ids.insert(ds.object(), here);
            trees.push(t);
            let os = ds.open_objset(p.write_policy(ds).unwrap(), true).unwrap();
            check_zaps(&os);
        }
        for (ds, t) in chain.iter().zip(&trees) {
            let ph = ds.phys();
            let next = ids.get(&ph.next_snap_obj);
            let unique: u64 = t
                .iter()
                .filter(|bp| bp.birth() > ph.prev_snap_txg)
                .filter(|bp| id(p, bp).is_some_and(|i| next.is_none_or(|n| !n.contains(&i))))
                .map(|bp| p.zio().dsize(bp))
                .sum();
            assert_eq!(unique, ph.unique_bytes, "unique of {}", ds.full_name());
        }
    }
}

#[test]
fn datasets_add_up() {
    for name in [
        "snapshots",
        "nofeatures",
        "legacy-v1",
        "legacy-v28",
        "names",
        "dedup-fast",
        "removal",
        "raidz-expanded",
    ] {
        let Some(dir) = or_skip(fixture::unpack(name)) else {
            return;
        };
        for f in found(&dir) {
            let opts = OpenOptions {
                readonly: true,
                ..Default::default()
            };
            let p = Pool::open(env_linux::linux_env(), &f.config, opts).unwrap();
            recompute(&p);
        }
    }
}

fn heads(p: &Pool) -> Vec<Arc<Dataset>> {
    let mut v = vec![];
    p.dsl()
        .walk(&p.dsl().root().unwrap(), &mut |d| {
            v.push(d.head()?);
            Ok(())
        })
        .unwrap();
    v
}

fn export_and_judge(dir: &TempDir, p: Arc<Pool>) {
    let name = p.name();
    p.export().unwrap();
    drop(p);
    let Some(z) = or_skip(OpenZfs::get()) else {
        return;
    };
    z.check(dir.path(), &name).unwrap();
    z.objects(dir.path(), &name).unwrap();
}

/// Changes of the tree that OpenZFS has not ended are looked at without going on with them.
#[test]
fn half_done_changes_of_the_tree_can_be_read_only() {
    for name in ["raidz-expanding", "removal-stopped"] {
        let Some(dir) = or_skip(fixture::unpack(name)) else {
            return;
        };
        let config = found(&dir).remove(0).config;
        let opts = OpenOptions {
            readonly: true,
            ..Default::default()
        };
        let p = Pool::open(env_linux::linux_env(), &config, opts).unwrap();
        recompute(&p);
        // There is never anything to write, and who asks for it does no harm.
        assert!(!p.wait_for_work(std::time::Duration::ZERO));
        p.sync().unwrap();
        assert!(p.suspended().is_none());
        p.export().unwrap();
    }
}

/// A removal that OpenZFS began and an export stopped goes on here to its end, or is given up here. OpenZFS's removal of one
/// device stays readable.
#[test]
fn a_removal_of_openzfs_is_continued_or_canceled() {
    for cancel in [false, true] {
        let Some(dir) = or_skip(fixture::unpack("removal-stopped")) else {
            return;
        };
        let config = found(&dir).remove(0).config;
        let opts = OpenOptions::default();
        let p = Pool::open(env_linux::linux_env(), &config, opts).unwrap();
        assert!(p.is_removing() && p.left_of("remove").unwrap() > Some(0));
        if cancel {
            p.cancel_removal().unwrap();
        }
        for _ in 0..10_000 {
            if !p.is_removing() {
                break;
            }
            p.task(|_, _| Ok(())).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let r = p.removal().unwrap().unwrap();
        let want = match cancel {
            true => disk::scan::ScanState::Canceled,
            false => disk::scan::ScanState::Finished,
        };
        assert_eq!(r.state, want);
        assert!(cancel || r.copied == r.to_copy, "{r:?}");
        let top = p.tree().top(0).unwrap();
        assert_eq!(top.is_concrete(), cancel);
        recompute(&p);
        sim::rig::walk(&p).unwrap_or_else(|e| panic!("{e}"));
        export_and_judge(&dir, p);
    }
}

/// An expansion that OpenZFS began is brought to its end; OpenZFS finds the pool clean half-way, at the end, and without a disk.
#[test]
fn an_expansion_of_openzfs_goes_on() {
    let Some(dir) = or_skip(fixture::unpack("raidz-expanding")) else {
        return;
    };
    let open = || {
        let config = found(&dir).remove(0).config;
        Pool::open(env_linux::linux_env(), &config, OpenOptions::default()).unwrap()
    };
    let p = open();
    let (size, before) = (
        p.space().stats().vdevs[0].size,
        p.expansion_progress().unwrap(),
    );
    recompute(&p);
    p.sync().unwrap();
    p.export().unwrap();
    let clean = |dir: &TempDir| {
        if let Some(z) = or_skip(OpenZfs::get()) {
            z.check(dir.path(), &found(dir)[0].name).unwrap();
        }
    };
    clean(&dir);
    let p = open();
    for _ in 0..1000 {
        if !p.is_expanding() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        p.sync().unwrap();
    }
    let e = p.expansion().unwrap().unwrap();
    assert_eq!(e.state, disk::scan::ScanState::Finished);
    assert!(e.copied >= before.0);
    assert!(p.space().stats().vdevs[0].size > size + (64 << 20));
    recompute(&p);
    p.export().unwrap();
    clean(&dir);
    for n in 0..4 {
        let name = dir.path().join(format!("d{n}.img"));
        let away = dir.path().join(format!("d{n}.away"));
        std::fs::rename(&name, &away).unwrap();
        clean(&dir);
        std::fs::rename(&away, &name).unwrap();
    }
}

#[test]
fn snapshots_and_destroying() {
    for name in [
        "async-destroy",
        "quotas",
        "upgraded",
        "legacy-v15",
        "checksums",
        "removal",
    ] {
        eprintln!("{name}");
        let Some(dir) = or_skip(fixture::unpack(name)) else {
            return;
        };
        let config = found(&dir).remove(0).config;
        let open = || Pool::open(env_linux::linux_env(), &config, OpenOptions::default()).unwrap();
        let idle = |p: &Pool| (0..4).for_each(|_| p.task(|_, _| Ok(())).unwrap());
        let p = open();
        let all = heads(&p).into_iter().map(|h| (h, "new".to_string()));
        p.snapshot(all.collect(), |_, _| Ok(())).unwrap();
        export_and_judge(&dir, p);

        let p = open();
        p.task(|p, tx| {
            for h in heads(p) {
                for (_, s) in h.snapshots()?.into_iter().step_by(2) {
                    p.dsl().destroy_snapshot_deferred(tx, &s)?;
                }
            }
            Ok(())
        })
        .unwrap();
        idle(&p);
        recompute(&p);
        export_and_judge(&dir, p);

        let p = open();
        for h in heads(&p) {
            let set = p.open_dataset(&h).unwrap();
            if let Some(z) = set.zil() {
                z.destroy().unwrap();
            }
        }
        idle(&p);
        while heads(&p).len() > 1 {
            p.task(|p, tx| {
                for h in heads(p) {
                    for (_, s) in h.snapshots()? {
                        p.dsl().destroy_snapshot_deferred(tx, &s)?;
                    }
                    if p.dsl().check_destroy(&h).is_ok() {
                        p.close_dataset(h.object());
                        p.dsl().destroy_head(tx, &h)?;
                    }
                }
                Ok(())
            })
            .unwrap();
        }
        idle(&p);
        assert_eq!(p.dsl().freeing().unwrap(), 0);
        export_and_judge(&dir, p);
    }
}

fn copy_of_images(dir: &TempDir) -> TempDir {
    let copy = TempDir::new("zvol-crash").unwrap();
    for e in std::fs::read_dir(dir.path()).unwrap() {
        let e = e.unwrap();
        if e.path().extension().is_some_and(|x| x == "img") {
            std::fs::copy(e.path(), copy.path().join(e.file_name())).unwrap();
        }
    }
    copy
}

/// What a crash left in the log of a volume is in the volume afterwards.
#[test]
fn logs_of_volumes() {
    use disk::zil::{Body, Record};
    use zil::{Form, Itx};
    let Some(dir) = or_skip(fixture::unpack("zvol")) else {
        return;
    };
    let env = env_linux::linux_env;
    let open = |dir: &TempDir, readonly| {
        let opts = OpenOptions {
            readonly,
            ..Default::default()
        };
        Pool::open(env(), &found(dir)[0].config, opts).unwrap()
    };
    let content = |p: &Pool, name: &str| {
        let ds = p.dsl().dataset(name).unwrap();
        let set = p.open_dataset(&ds).unwrap();
        let size = Zap::new(&set.os.hold(2).unwrap()).get("size").unwrap();
        let mut b = vec![0; size.unwrap() as usize];
        set.os.hold(1).unwrap().read(0, &mut b).unwrap();
        p.close_dataset(ds.object());
        b
    };
    let names = ["amber0/v8K", "amber0/v128K"];
    let p = open(&dir, false);
    assert!(p.replay_volumes().is_empty());
    let before: Vec<Vec<u8>> = names.iter().map(|n| content(&p, n)).collect();
    let mut after = before.clone();
    let write = |set: &pool::OpenSet, offset: u64, bytes: &[u8], form| {
        let tx = set.os.tx(dmu::Need::freeing()).unwrap();
        let dn = set.os.hold(1).unwrap();
        dn.write(&tx, offset, bytes).unwrap();
        let body = zil::Body::Write {
            generation: 0,
            offset,
            length: bytes.len() as u64,
            form,
        };
        let itx = Itx {
            object: 1,
            ordered: true,
            body,
        };
        set.zil().unwrap().log(tx.txg(), itx);
    };
    // The first record makes a log begin with the next txg.
    for (name, was) in names.iter().zip(&before) {
        let set = p.open_dataset(&p.dsl().dataset(name).unwrap()).unwrap();
        set.zil().unwrap().start().unwrap();
        write(&set, 0, &was[..512], Form::NeedCopy);
        let _ = set.zil().unwrap().commit(None);
    }
    p.sync().unwrap();
    for (name, want) in names.iter().zip(&mut after) {
        let set = p.open_dataset(&p.dsl().dataset(name).unwrap()).unwrap();
        let log = set.zil().unwrap();
        let dn = set.os.hold(1).unwrap();
        let block = dn.info().block_size as u64;
        // As data in the record, as a block of its own, and a range given back.
        let forms = [
            (5000, 300, Form::NeedCopy),
            (block, block, Form::Indirect { block }),
        ];
        for (i, (offset, length, form)) in forms.into_iter().enumerate() {
            let bytes = vec![0x51 + i as u8; length as usize];
            write(&set, offset, &bytes, form);
            want[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let (offset, length) = (3 * block, block);
        let tx = set.os.tx(dmu::Need::freeing()).unwrap();
        dn.free_range(&tx, offset, length).unwrap();
        want[offset as usize..][..length as usize].fill(0);
        let record = Record {
            txg: Txg::NONE,
            seq: 0,
            ignore_case: false,
            body: Body::Truncate {
                object: 1,
                offset,
                length,
            },
        };
        log.log(
            tx.txg(),
            Itx {
                object: 1,
                ordered: true,
                body: zil::Body::Record(record.encode()),
            },
        );
        drop(tx);
        assert!(matches!(log.commit(None), zil::Committed::Durable));
    }
    // The power goes before the txg is written.
    let later = copy_of_images(&dir);
    for name in names {
        p.close_dataset(p.dsl().dataset(name).unwrap().object());
    }
    p.close().unwrap();
    drop(p);

    let p = open(&later, true);
    assert!(p.replay_volumes().is_empty());
    for (name, want) in names.iter().zip(&before) {
        assert!(content(&p, name) == *want, "{name}, only read");
    }
    p.close().unwrap();
    drop(p);
    let p = open(&later, false);
    let failed = p.replay_volumes();
    assert!(failed.is_empty(), "{failed:?}");
    for (name, want) in names.iter().zip(&after) {
        assert!(content(&p, name) == *want, "{name}");
        let ds = p.dsl().dataset(name).unwrap();
        let set = p.open_dataset(&ds).unwrap();
        assert!(!set.zil().unwrap().needs_replay());
        p.close_dataset(ds.object());
    }
    export_and_judge(&later, p);
}
