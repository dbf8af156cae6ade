//! The check of a resilver: the devices it read from are taken away, and what it wrote must be enough.

use disk::scan::ScanState;
use pool::Pool;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use vdev::{Vdev, VdevKind};

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

/// Number of the disk that a leaf is on.
fn disk_of(leaf: &Vdev) -> Option<usize> {
    leaf.path()?.strip_prefix("/d")?.parse().ok()
}

/// Sets of disks of which each may be taken away, so that what is left is mostly what the newest resilver wrote. `spoilt`: disks
/// that may hold anything. None while a device lacks something, or is being replaced.
pub fn removable(pool: &Pool, spoilt: &BTreeSet<usize>) -> Vec<Vec<usize>> {
    let tops = pool.tree.tops();
    let Some(top) = tops.first() else {
        return Vec::new();
    };
    let whole = |l: &Arc<Vdev>| l.state().usable() && l.dtl_is_empty();
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
