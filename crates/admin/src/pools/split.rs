//! `zpool split`: one side of every mirror becomes a pool of its own.

use super::devices::{begin, failed, finish, sentence};
use super::{import, write_out};
use crate::pools::open;
use crate::registry::Admin;
use crate::Answer;
use api::{ApiError, Peer, PoolImport, PoolSplit, Split};
use base::Kind;
use pool::{Pool, SplitSpec};
use std::sync::Arc;
use vdev::{Vdev, VdevKind};

/// Answers `PoolSplit`.
///
/// # Errors
/// The name is taken or none; the pool has other vdevs than mirrors; those of [`Pool::split`].
pub fn split(admin: &Arc<Admin>, peer: Peer, ask: &PoolSplit) -> Answer<Split> {
    let entry = open(admin, &ask.pool)?;
    let action = format!("Unable to split {}", ask.pool);
    disk::names::check_pool(&ask.name, true).map_err(|why| failed(&action, Kind::Invalid, why))?;
    let import = PoolImport {
        props: ask.props.clone(),
        ..PoolImport::default()
    };
    let wanted =
        import::wanted(admin, &import).map_err(|e| failed(&action, Kind::Invalid, e.message))?;
    for name in ["altroot", "cachefile"] {
        if ask.props.iter().any(|(n, _)| n == name) {
            let why = format!("property '{name}' can only be set at import time");
            return Err(failed(&action, Kind::Invalid, why));
        }
    }
    if wanted.readonly {
        let why = "property readonly can only be set at import time";
        return Err(failed(&action, Kind::Invalid, why));
    }
    let leaves = choose(&entry.pool, &ask.devices, &action)?;
    let mut done = Split {
        guid: 0,
        members: leaves.iter().map(|l| l.guid()).collect(),
        paths: leaves.iter().filter_map(|l| l.path()).collect(),
        warning: None,
    };
    if ask.dry_run {
        return Ok(done);
    }
    // Takes requests to the file systems, so no lock is held meanwhile.
    let left = write_out(&entry);
    let _one = begin(&entry, &action)?;
    let exists = || failed(&action, Kind::Exists, "pool already exists");
    if admin.absent().iter().any(|a| a.name == ask.name) {
        return Err(exists());
    }
    done.guid = new_guid(admin);
    let _claim = admin
        .claim(&ask.name, done.guid)
        .map_err(|e| match e.kind {
            Kind::Exists => exists(),
            _ => failed(&action, e.kind, e),
        })?;
    let spec = SplitSpec {
        name: ask.name.clone(),
        guid: done.guid,
        members: done.members.clone(),
        props: wanted.stored,
        comment: wanted.comment,
        command: (ask.command.clone(), u64::from(peer.uid)),
        tunables: admin.process.tunables(),
    };
    let split = entry.pool.split(spec);
    let told = split.map_err(|e| match e.kind {
        // Why is said behind OpenZFS's word for it.
        Kind::Busy => failed(&action, e.kind, format!("pool is busy: {e}")),
        Kind::NoDevice => failed(
            &action,
            e.kind,
            format!("one or more devices is currently unavailable: {e}"),
        ),
        _ => sentence(&action)(e),
    })?;
    let lines: Vec<String> = left.into_iter().chain(told).collect();
    done.warning = (!lines.is_empty()).then(|| lines.join("\n"));
    finish(admin, &entry, peer, &ask.command, ("", None))?;
    Ok(done)
}

fn new_guid(admin: &Admin) -> u64 {
    loop {
        match admin.env.rng.u64() {
            0 => {}
            guid => return guid,
        }
    }
}

/// The leaf that leaves each mirror: the one of `names`, or the last.
fn choose(pool: &Pool, names: &[String], action: &str) -> Answer<Vec<Arc<Vdev>>> {
    let refuse = |why: &str| -> ApiError { failed(action, Kind::Invalid, why) };
    let named: Vec<Option<Arc<Vdev>>> = names.iter().map(|n| pool.tree().find_by_name(n)).collect();
    let mut found = 0;
    let mut out = Vec::new();
    for top in pool.tree().tops().iter() {
        if top.is_log() || !top.is_concrete() {
            continue;
        }
        if top.kind() != VdevKind::Mirror {
            return Err(refuse("Source pool must be composed only of mirrors"));
        }
        let is_named = |c: &&Arc<Vdev>| {
            let mut all = named.iter().flatten();
            all.any(|n| n.guid() == c.guid())
        };
        let leaf = match top.children().iter().find(is_named) {
            Some(leaf) => {
                found += 1;
                Some(leaf)
            }
            None => top.children().last(),
        };
        out.extend(leaf.cloned());
    }
    match found == names.len() {
        true => Ok(out),
        false => Err(refuse(
            "Device list must include at most one disk from each mirror",
        )),
    }
}
