//! `zfs space`: how the space of a file system or volume divides over itself, its snapshots and descendants.

use crate::cancel;
use crate::datasets::{self, Answer};
use crate::registry::{Admin, PoolEntry};
use api::{HeldBy, HeldSpace};
use base::{Kind, Result};
use disk::dsl::Used;
use dsl::Dataset;
use std::sync::Arc;

/// What is told of one file system or volume, or of it and all below.
pub fn held(admin: &Arc<Admin>, name: &str, recursive: bool) -> Answer<Vec<HeldSpace>> {
    let entry = datasets::entry_of(admin, name)?;
    let _gate = entry.pass().map_err(crate::errors::answer)?;
    let top = datasets::find(&entry, name)?;
    let plain = |e| datasets::plain(e, name);
    let heads = match recursive {
        true => datasets::subtree(&top.dir()).map_err(plain)?,
        false => vec![top],
    };
    let mut out = Vec::new();
    for head in heads {
        cancel::check()?;
        out.push(of_head(&entry, &head).map_err(plain)?);
    }
    Ok(out)
}

fn is_pinned(snap: &Dataset) -> Result<bool> {
    Ok(snap.phys().num_children > 1 || snap.holds()? > 0)
}

fn of_head(entry: &Arc<PoolEntry>, head: &Arc<Dataset>) -> Result<HeldSpace> {
    let dir = head.dir().phys();
    let by = |class: Used| dir.used_breakdown[class as usize];
    let mut list = Vec::new();
    // What the runs between pinned snapshots would give back.
    let (mut free, mut run) = (0u64, 0u64);
    head.held_space(&is_pinned, &mut |held| {
        if cancel::is_cancelled() {
            return Err(Kind::Interrupted.into());
        }
        let p = held.snap.phys();
        let clones: Vec<String> = match p.num_children > 1 {
            true => datasets::clones(entry, &held.snap)?
                .iter()
                .map(|dir| dir.full_name())
                .collect(),
            false => Vec::new(),
        };
        match held.with_run {
            Some(bytes) => run = bytes,
            None => free = free.saturating_add(std::mem::take(&mut run)),
        }
        list.push(HeldBy {
            snapshot: held.name,
            creation: p.creation_time,
            referenced: p.referenced_bytes,
            alone: p.unique_bytes,
            with_older: held.with_run,
            holds: held
                .snap
                .hold_list()?
                .into_iter()
                .map(|(tag, _)| tag)
                .collect(),
            clones,
        });
        Ok(())
    })?;
    free = free.saturating_add(run);
    let snapshots = by(Used::Snap);
    Ok(HeldSpace {
        dataset: head.full_name(),
        used: dir.used_bytes,
        head: by(Used::Head),
        snapshots,
        pinned: snapshots.saturating_sub(free),
        refreservation: by(Used::RefRsrv),
        children: by(Used::Child).saturating_add(by(Used::ChildRsrv)),
        list,
    })
}
