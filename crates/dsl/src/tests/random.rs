//! Random changes.

use super::audit::audit;
use super::*;

fn pick<T: Clone>(r: &mut Rand, list: &[T]) -> Option<T> {
    match list.len() {
        0 => None,
        n => Some(list[r.below(n as u64) as usize].clone()),
    }
}

fn heads(p: &Pool) -> Vec<Arc<Dataset>> {
    let mut out = Vec::new();
    p.dsl
        .walk(&p.dsl.root().unwrap(), &mut |d| {
            out.push(d.head()?);
            Ok(())
        })
        .unwrap();
    out
}

fn snaps(p: &Pool) -> Vec<Arc<Dataset>> {
    heads(p)
        .iter()
        .flat_map(|h| h.snapshots().unwrap())
        .map(|(_, s)| s)
        .collect()
}

fn step(p: &mut Pool, r: &mut Rand, n: u64) {
    for h in heads(p) {
        if r.below(3) == 0 {
            let count = 1 + r.below(40);
            p.scribble(&h, r, count);
        }
    }
    let what = r.below(18);
    let all = heads(p);
    let ds = pick(r, &all).unwrap();
    let snap = pick(r, &snaps(p));
    let args = CreateArgs::default();
    let pick_to = pick(r, &all).unwrap();
    let amount = r.below(4) * 100_000;
    p.sync_with(|p, tx| match what {
        0 | 1 => {
            if all.len() < 12 {
                let new = p
                    .dsl
                    .create_fs(tx, &ds.dir(), &format!("fs{n}"), args)
                    .unwrap();
                p.fill_new(tx, &new);
            }
        }
        2..=4 => {
            p.dsl.snapshot(tx, &ds, &format!("s{n}")).unwrap();
        }
        5 => {
            if let (Some(s), true) = (snap, all.len() < 12) {
                let c = p
                    .dsl
                    .create_clone(tx, &ds.dir(), &format!("clone{n}"), &s, args)
                    .unwrap();
                let os = p.os(&c);
                os.set_zil_header(tx, [0; 192]);
            }
        }
        6 | 7 => {
            if let Some(s) = snap {
                match p.dsl.destroy_snapshot(tx, &s) {
                    Ok(()) => {}
                    Err(e) => {
                        assert!(matches!(e.kind, base::Kind::Exists | base::Kind::Busy));
                        p.dsl.destroy_snapshot_deferred(tx, &s).unwrap();
                    }
                }
            }
        }
        8 => {
            if p.dsl.check_destroy(&ds).is_ok() {
                p.open.remove(&ds.object());
                p.dsl.destroy_head(tx, &ds).unwrap();
            }
        }
        9 => {
            let name = format!("moved{n}");
            if p.dsl.check_rename(&ds.dir(), &pick_to.dir(), &name).is_ok() {
                let _ = p.dsl.rename(tx, &ds.dir(), &pick_to.dir(), &name);
            }
        }
        10 => {
            let name = match amount % 3 {
                0 => "refreservation",
                _ => "reservation",
            };
            if p.version >= 9 || name == "reservation" {
                let v = local(amount * 3);
                p.dsl.set_prop(tx, &ds, name, &v).unwrap();
            }
        }
        11 | 12 => {
            if p.version >= 11 && ds.dir().origin().unwrap().is_some() {
                // Names of snapshots are used once only.
                p.dsl.promote(tx, &ds).unwrap();
            }
        }
        13 => {
            if let (Some(s), true) = (snap, p.version >= 18) {
                match s.hold_time("kept").unwrap() {
                    None => p.dsl.hold(tx, &s, "kept", amount == 0).unwrap(),
                    Some(_) => p.dsl.release(tx, &s, "kept").unwrap(),
                }
            }
        }
        14 | 15 => {
            if let (Some(s), true) = (snap, p.version == 5000 && p.has_bookmarks()) {
                bookmark(p, tx, s, n, amount == 0);
            }
        }
        16 => {
            let marks = ds.bookmarks().unwrap();
            if let Some((name, _)) = marks.get(amount as usize % marks.len().max(1)) {
                p.dsl.destroy_bookmark(tx, &ds, name).unwrap();
            }
        }
        _ => {
            let newest = ds.prev().unwrap().map(|s| s.phys());
            let after = newest.as_ref().map_or(Txg::NONE, |s| s.creation_txg);
            let younger = !ds.bookmarks_after(after).unwrap().is_empty();
            if newest.is_some_and(|s| s.next_snap_obj == ds.object()) && !younger {
                p.open.remove(&ds.object());
                p.dsl.rollback(tx, &ds).unwrap();
                let os = p.os(&ds);
                os.set_zil_header(tx, [0; 192]);
            }
        }
    });
}

/// A bookmark of a snapshot, and (`and_copy`) one of that bookmark.
fn bookmark(p: &mut Pool, tx: &Tx, s: Arc<Dataset>, n: u64, and_copy: bool) {
    let tree = super::audit::blocks(p, &s.phys().bp, Txg::NONE);
    let mark = tree.iter().filter_map(|bp| {
        let used = p.dsl.core.triple(bp).used;
        super::audit::id(bp).map(|i| (i, used))
    });
    let key = (s.phys().guid, s.phys().creation_txg);
    p.marks.insert(key, mark.collect());
    let head = s.dir().head().unwrap();
    let name = format!("b{n}");
    let of = BookmarkSource::Snapshot(s);
    p.dsl.create_bookmark(tx, &head, &name, &of).unwrap();
    if and_copy {
        let of = BookmarkSource::Bookmark(head.clone(), name);
        let copy = format!("copy{n}");
        p.dsl.create_bookmark(tx, &head, &copy, &of).unwrap();
    }
}

fn local(n: u64) -> props::PropChange {
    props::PropChange::Local(PropValue::Int(n))
}

fn run(version: u64, features: &[&str], seed: u64, steps: u64, budget: u64) {
    run_upgrading(version, features, seed, steps, budget, &[]);
}

fn run_upgrading(
    version: u64,
    features: &[&str],
    seed: u64,
    steps: u64,
    budget: u64,
    upgrades: &[u64],
) {
    let mut upgrades = upgrades.iter().copied();
    let mut r = Rand(seed);
    let mut p = Pool::new(version, features);
    p.budget = budget;
    audit(&p);
    for n in 0..steps {
        step(&mut p, &mut r, n);
        audit(&p);
        if n % 17 == 16 {
            if let Some(v) = upgrades.next() {
                p.upgrade(v);
                audit(&p);
            }
            p = p.reopen();
            audit(&p);
        }
    }
    // Destroy all but the root: what is deferred goes with the last clone.
    for _ in 0..100 {
        if heads(&p).len() == 1 {
            break;
        }
        p.sync_with(|p, tx| {
            for ds in heads(p) {
                // What is a clone of something below itself would never go.
                let origin = ds.dir().origin().unwrap();
                let below = format!("{}/", ds.full_name());
                if origin.is_some_and(|o| o.full_name().starts_with(&below)) {
                    p.dsl.promote(tx, &ds).unwrap();
                }
            }
            for ds in heads(p) {
                for (_, s) in ds.snapshots().unwrap() {
                    if s.hold_time("kept").unwrap().is_some() {
                        p.dsl.release(tx, &s, "kept").unwrap();
                    }
                }
                for (_, s) in ds.snapshots().unwrap() {
                    p.dsl.destroy_snapshot_deferred(tx, &s).unwrap();
                }
                if p.dsl.check_destroy(&ds).is_ok() {
                    p.open.remove(&ds.object());
                    p.dsl.destroy_head(tx, &ds).unwrap();
                }
            }
        });
        audit(&p);
    }
    assert_eq!(heads(&p).len(), 1);
    p.budget = 1 << 30;
    p.sync();
    p.sync();
    audit(&p);
    assert_eq!(p.dsl.freeing().unwrap(), 0);
}

#[test]
fn modern() {
    for seed in 0..4 {
        run(
            5000,
            MODERN,
            seed,
            120,
            if seed == 0 { 1 << 30 } else { 37 },
        );
    }
}

#[test]
fn modern_with_livelists() {
    let features = [MODERN, &["livelist"]].concat();
    for seed in 1..4 {
        run(5000, &features, seed, 120, 23);
    }
}

#[test]
fn modern_without_features() {
    run(5000, &[], 11, 80, 1000);
}

#[test]
fn legacy() {
    for (i, v) in [28, 26, 23, 15, 13, 11, 10, 9, 3, 1]
        .into_iter()
        .enumerate()
    {
        run(v, &[], 20 + i as u64, 60, 100);
    }
}

#[test]
fn upgraded() {
    run_upgrading(1, &[], 40, 100, 50, &[9, 15, 28, 5000]);
    run_upgrading(9, &[], 41, 80, 50, &[26]);
    run_upgrading(1, &[], 42, 80, 50, &[5000]);
}
