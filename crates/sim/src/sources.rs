//! The check of a resilver: the devices it read from are taken away, and what it wrote must be enough.

use disk::scan::ScanState;
use pool::Pool;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use vdev::{keys, Vdev, VdevKind};

/// Txgs in which every scan has ended.
const LONGEST: usize = 20_000;
/// Txgs in which devices that were replaced leave.
const LEAVE: usize = 8;

/// Writes txgs until no scrub, resilver or rebuild is under way or due; false: the pool has stopped or waits for a device.
///
/// # Errors
/// A scan does not end.
pub fn settle(pool: &Pool) -> Result<bool, String> {
    let text = |e: base::Error| e.to_string();
    for _ in 0..LONGEST {
        if pool.suspended().is_some() || pool.stopped().is_some() {
            return Ok(false);
        }
        let scan = pool.scan_progress().map_err(text)?;
        let runs = scan.is_some_and(|s| s.state.state == ScanState::Scanning && !s.state.paused);
        if !runs && !pool.is_resilvering() {
            for _ in 0..LEAVE {
                pool.sync().map_err(text)?;
            }
            return Ok(true);
        }
        pool.sync().map_err(text)?;
    }
    Err(format!("a scan does not end: {:?}", pool.scan_progress()))
}

/// Number of the disk that a leaf is on, or of a distributed spare.
fn disk_of(leaf: &Vdev) -> Option<usize> {
    if leaf.kind() == VdevKind::Dspare {
        // `draid1-0-2`: those of the first dRAID have the first numbers.
        let name = leaf.path()?;
        let top: u64 = name.split('-').nth(1)?.parse().ok()?;
        return Some(spare(top * MOST_SPARES + leaf.get_u64(keys::SPARE_ID)?));
    }
    leaf.path()?.strip_prefix("/d")?.parse().ok()
}

/// Numbers from which on distributed spares are numbered, behind those of disks.
const SPARES: usize = 1000;

/// A dRAID has fewer.
const MOST_SPARES: u64 = 100;

/// What stands for distributed spare `n` in sets of disks.
pub fn spare(n: u64) -> usize {
    SPARES + n as usize
}

/// Whether a number stands for a distributed spare.
pub fn is_spare(disk: usize) -> bool {
    disk >= SPARES
}

/// The disks and distributed spares of the tree that can be used.
pub fn in_use(pool: &Pool) -> BTreeSet<usize> {
    let usable = |l: &Arc<Vdev>| l.kind() == VdevKind::Dspare || l.state().usable();
    let all = pool.tree().dtl_holders();
    all.iter()
        .filter(|l| usable(l))
        .filter_map(|l| disk_of(l))
        .collect()
}

/// The distributed spares that stand in for something.
pub fn spares_in_use(pool: &Pool) -> Vec<usize> {
    in_use(pool).into_iter().filter(|d| is_spare(*d)).collect()
}

/// The distributed spare that stands in for leaf `guid`.
pub fn spare_for(pool: &Pool, guid: u64) -> Option<Arc<Vdev>> {
    let stands_in =
        |g: &Arc<Vdev>| g.kind() == VdevKind::Spare && g.leaves().iter().any(|l| l.guid() == guid);
    let group = pool.tree().all().into_iter().find(stands_in)?;
    let mut spares = group.dtl_holders().into_iter();
    spares.rfind(|v| v.kind() == VdevKind::Dspare)
}

/// Whether a disk or distributed spare has everything.
pub fn whole(l: &Arc<Vdev>) -> bool {
    (l.kind() == VdevKind::Dspare || l.state().usable()) && l.dtl_is_empty()
}

/// Sets of disks of which each may be taken away, so that what is left is mostly what the newest resilver wrote. `spoilt`: disks
/// that may hold anything. None while a device lacks something, or is being replaced.
pub fn removable(pool: &Pool, spoilt: &BTreeSet<usize>) -> Vec<Vec<usize>> {
    let tops = pool.tree().tops();
    let data = tops.iter().filter(|t| t.is_concrete() && !t.is_log());
    data.flat_map(|top| removable_of(pool, top, spoilt))
        .collect()
}

/// The same of one top-level vdev.
fn removable_of(pool: &Pool, top: &Arc<Vdev>, spoilt: &BTreeSet<usize>) -> Vec<Vec<usize>> {
    if let VdevKind::Draid { nparity, .. } = top.kind() {
        return removable_of_draid(top, nparity, spoilt);
    }
    let leaves = top.leaves();
    if !leaves.iter().all(whole) || pool.is_replacing() {
        return Vec::new();
    }
    let written = |l: &Vdev| l.stats.scan_bytes.load(Relaxed) > 0;
    let all: Vec<(usize, bool)> = leaves
        .iter()
        .filter_map(|l| Some((disk_of(l)?, written(l))))
        .collect();
    if all.len() < 2 {
        return Vec::new();
    }
    let sound = |d: &usize| !spoilt.contains(d);
    match top.kind() {
        VdevKind::Mirror => {
            let stays = all.iter().filter(|(d, written)| *written && sound(d));
            let others = |one: usize| all.iter().map(|(d, _)| *d).filter(move |d| *d != one);
            stays.map(|(d, _)| others(*d).collect()).collect()
        }
        VdevKind::Raidz { nparity } => {
            let bad = all.iter().filter(|(d, _)| !sound(d)).count();
            let mut gone: Vec<(usize, bool)> = all.into_iter().filter(|(d, _)| sound(d)).collect();
            // What was not written to first.
            gone.sort_by_key(|(_, written)| *written);
            gone.truncate(nparity.saturating_sub(bad));
            let gone: Vec<usize> = gone.into_iter().map(|(d, _)| d).collect();
            if gone.is_empty() {
                return Vec::new();
            }
            vec![gone]
        }
        _ => Vec::new(),
    }
}

/// The same of a dRAID. Each of its children must have a disk, or a distributed spare, that lacks nothing. A disk that is taken
/// away costs each stripe one column: its own, or that of a spare that has its place there.
fn removable_of_draid(
    top: &Arc<Vdev>,
    nparity: usize,
    spoilt: &BTreeSet<usize>,
) -> Vec<Vec<usize>> {
    let complete = |child: &Arc<Vdev>| child.dtl_holders().iter().any(whole);
    let replacing = |v: &Arc<Vdev>| v.kind() == VdevKind::Replacing;
    let below = |c: &Arc<Vdev>| c.children().iter().any(replacing) || replacing(c);
    if !top.children().iter().all(complete) || top.children().iter().any(below) {
        return Vec::new();
    }
    let all = top.dtl_holders();
    let (there, gone): (Vec<&Arc<Vdev>>, Vec<&Arc<Vdev>>) = all.iter().partition(|l| whole(l));
    let number =
        |list: &[&Arc<Vdev>]| -> Vec<usize> { list.iter().filter_map(|l| disk_of(l)).collect() };
    let bad = number(&there).iter().filter(|d| spoilt.contains(d)).count();
    // Nobody may need what lacks something.
    let gone: Vec<usize> = number(&gone)
        .into_iter()
        .filter(|d| !is_spare(*d))
        .collect();
    let written = |l: &&Arc<Vdev>| l.stats.scan_bytes.load(Relaxed) > 0;
    let mut good: Vec<&Arc<Vdev>> = there
        .into_iter()
        .filter(|l| disk_of(l).is_some_and(|d| !is_spare(d) && !spoilt.contains(&d)))
        .collect();
    // What was not written to first.
    good.sort_by_key(written);
    let good = number(&good);
    let most = nparity.saturating_sub(bad).min(good.len());
    // A disk costs nothing where a spare has all of it.
    let stood_in: Vec<usize> = (top.children().iter())
        .filter(|c| {
            let spares = number(
                &c.dtl_holders()
                    .iter()
                    .filter(|l| whole(l))
                    .collect::<Vec<_>>(),
            );
            spares.iter().any(|d| is_spare(*d) && !spoilt.contains(d))
        })
        .flat_map(|c| number(&c.leaves().iter().collect::<Vec<_>>()))
        .filter(|d| good.contains(d))
        .collect();
    let needed: Vec<usize> = good
        .iter()
        .copied()
        .filter(|d| !stood_in.contains(d))
        .collect();
    // Each group is on some of the disks only: every disk is taken away once.
    let few = most.min(needed.len()).max(1);
    let with = |some: &[usize], more: &[usize]| [&gone[..], some, more].concat();
    let mut sets: Vec<Vec<usize>> = match most {
        0 => vec![with(&stood_in, &[])],
        _ => needed
            .chunks(few)
            .map(|some| with(&stood_in, some))
            .collect(),
    };
    if !stood_in.is_empty() {
        sets.push(with(&[], &good[good.len() - most..]));
    }
    sets.retain(|s| s.len() > gone.len());
    sets
}
