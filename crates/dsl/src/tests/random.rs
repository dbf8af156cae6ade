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
    let what = r.below(12);
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
                        assert_eq!(e.kind, base::Kind::Exists);
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
        _ => {
            let newest = ds.prev().unwrap().map(|s| s.phys());
            if newest.is_some_and(|s| s.next_snap_obj == ds.object()) {
                p.open.remove(&ds.object());
                p.dsl.rollback(tx, &ds).unwrap();
                let os = p.os(&ds);
                os.set_zil_header(tx, [0; 192]);
            }
        }
    });
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
