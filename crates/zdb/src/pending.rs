//! `-ddd`: what waits to be freed, and which txgs the devices lack.

use crate::{fmt, Session};
use base::{RangeSet, Result};
use disk::dsl::BptreePhys;
use disk::mos_keys;
use dsl::Bpobj;
use std::io::Write;
use vdev::{Vdev, VdevKind};
use zap::Zap;

/// Lists of the pool itself, then the devices.
pub fn show(s: &Session, depth: usize, out: &mut dyn Write) -> Result<()> {
    let mos = s.pool.mos();
    let named = |key: &str| Zap::new(&*mos.hold(1)?).get(key);
    for (key, name) in [
        ("sync_bplist", "Deferred frees"),
        ("free_bpobj", "Pool snapshot frees"),
        (mos_keys::OBSOLETE_BPOBJ, "Pool obsolete blocks"),
    ] {
        if let Some(object) = named(key)? {
            list(s, object, name, depth, out)?;
        }
    }
    if let Some(object) = named("bptree_obj")? {
        let t = BptreePhys::decode(&mos.hold(object)?.bonus())?;
        let sets = t.end.saturating_sub(t.begin);
        let bytes = s.num.nice(t.bytes);
        writeln!(out, "\n    Pool dataset frees: {sets} datasets, {bytes}")?;
    }
    writeln!(out, "\nDirty time logs:\n")?;
    writeln!(out, "\t{} [DTL-required]", s.pool.name())?;
    for top in s.pool.tree().tops().iter() {
        device(top, top, 4, out)?;
    }
    Ok(())
}

/// One list with the lists in it and, with enough detail, its blocks, the newest first.
pub fn list(s: &Session, object: u64, name: &str, depth: usize, out: &mut dyn Write) -> Result<()> {
    let mos = s.pool.mos();
    let top = Bpobj::open(mos, object)?;
    top.lists(mos, &mut |l, nested| match nested {
        0 => head(s, l, name, 0, out),
        _ => head(s, l, "subobj", nested, out),
    })?;
    if depth >= 5 {
        let mut all = Vec::new();
        top.for_each(mos, &mut |bp, free| {
            all.push((*bp, free));
            Ok(())
        })?;
        for (bp, free) in all.iter().rev() {
            let copies = if depth > 5 { 3 } else { 1 };
            writeln!(out, "\t{}", fmt::bp_listed(bp, copies, *free))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn head(s: &Session, l: &Bpobj, name: &str, nested: usize, out: &mut dyn Write) -> Result<()> {
    let p = &l.phys;
    let n = |v| s.num.nice(v);
    let head = format!(
        "    {name:>0$}: object {1}, {2}",
        nested * 8,
        l.object(),
        p.num_blkptrs
    );
    // The form of the list says whether it can hold entries of blocks that were freed.
    let freed = match p.size >= 56 {
        true => format!(", {} freed", p.num_freed),
        false => String::new(),
    };
    if p.subobjs == 0 {
        writeln!(out, "{head} blkptrs{freed}, {}", n(p.bytes))?;
    } else {
        writeln!(
            out,
            "{head} local blkptrs{freed}, {} subobjs in object {}, {} ({}/{} comp)",
            p.num_subobjs,
            p.subobjs,
            n(p.bytes),
            n(p.comp),
            n(p.uncomp)
        )?;
    }
    Ok(())
}

/// Deadlists of the origin of all file systems, which no dataset that is listed has.
pub fn origin(s: &Session, depth: usize, out: &mut dyn Write) -> Result<()> {
    let dsl = s.pool.dsl();
    let children = s.pool.mos().hold(dsl.root()?.phys().child_dir_zapobj)?;
    let Some(dir) = Zap::new(&*children).get("$ORIGIN")? else {
        return Ok(());
    };
    let head = dsl.dir_by_object(dir)?.head()?;
    deadlist(s, "Deadlist", head.phys().deadlist_obj, depth, out)?;
    let snapshot = head.phys().prev_snap_obj;
    if snapshot == 0 {
        return Ok(());
    }
    let list = dsl.dataset_by_object(snapshot)?.phys().deadlist_obj;
    deadlist(s, "Deadlist", list, depth, out)
}

/// A list of lists of blocks.
pub fn deadlist(
    s: &Session,
    name: &str,
    object: u64,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    if object == 0 {
        return Ok(());
    }
    let mos = s.pool.mos();
    if mos.hold(object)?.info().obj_type == disk::ObjType::BPOBJ {
        return list(s, object, "old-format deadlist", depth, out);
    }
    let deadlist = dsl::Deadlist::open(mos, object)?;
    let t = deadlist.space();
    let keys = deadlist.keys();
    let n = |v: i64| s.num.nice(v.max(0) as u64);
    writeln!(
        out,
        "\n    {name}: {} ({}/{} comp), {} entries",
        n(t.used),
        n(t.comp),
        n(t.uncomp),
        keys.len()
    )?;
    if depth < 4 {
        return Ok(());
    }
    writeln!(out)?;
    for (txg, object) in &keys {
        let name = format!("mintxg {txg} -> obj {object}");
        match depth >= 5 {
            true => list(s, *object, &name, depth, out)?,
            false => writeln!(out, "{name}")?,
        }
    }
    Ok(())
}

/// Txgs of which something is missing on a device, as OpenZFS sorts them: what a leaf lacks or, of a
/// group of devices, cannot be read; what any of its leaves lacks; and what cannot be read now.
#[derive(Default)]
struct Lacks {
    missing: RangeSet,
    partial: RangeSet,
    outage: RangeSet,
}

/// Of `v`, as if the leaf with the guid `gone` could not be read.
fn lacks(v: &Vdev, gone: u64) -> Lacks {
    if !v.is_concrete() {
        return Lacks::default();
    }
    if v.kind().is_leaf() {
        let missing = v.dtl();
        let outage = match v.state().usable() && v.guid() != gone {
            true => missing.clone(),
            false => {
                let mut all = RangeSet::new();
                all.insert(0, u64::MAX);
                all
            }
        };
        return Lacks {
            partial: missing.clone(),
            missing,
            outage,
        };
    }
    let children: Vec<Lacks> = v.children().iter().map(|c| lacks(c, gone)).collect();
    let least = match v.kind() {
        VdevKind::Raidz { nparity } | VdevKind::Draid { nparity, .. } => nparity + 1,
        _ => children.len(),
    };
    let outage = shared(children.iter().map(|c| &c.outage), least);
    Lacks {
        missing: outage.clone(),
        partial: shared(children.iter().map(|c| &c.partial), 1),
        outage,
    }
}

/// What is in at least `least` of the sets.
fn shared<'a>(sets: impl Iterator<Item = &'a RangeSet>, least: usize) -> RangeSet {
    let mut edges: Vec<(u64, i64)> = sets
        .flat_map(|set| set.iter())
        .flat_map(|(a, b)| [(a, 1), (b, -1)])
        .collect();
    edges.sort_unstable();
    let mut out = RangeSet::new();
    let (mut over, mut since) = (0, 0);
    for (at, step) in edges {
        if over >= least as i64 && at > since {
            out.insert(since, at);
        }
        over += step;
        since = at;
    }
    out
}

fn device(v: &Vdev, top: &Vdev, indent: usize, out: &mut dyn Write) -> Result<()> {
    let name = v.path().unwrap_or_else(|| {
        match v.kind() {
            VdevKind::Mirror => "mirror",
            VdevKind::Replacing => "replacing",
            VdevKind::Spare => "spare",
            VdevKind::Raidz { .. } => "raidz",
            VdevKind::Draid { .. } => "draid",
            VdevKind::Hole => "hole",
            VdevKind::Indirect => "indirect",
            _ => "missing",
        }
        .into()
    });
    let is_top = v.guid() == top.guid();
    let required = match is_top || !lacks(top, v.guid()).outage.is_empty() {
        true => "required",
        false => "expendable",
    };
    writeln!(out, "\t{:indent$}{name} [DTL-{required}]", "")?;
    let l = lacks(v, 0);
    for (what, set) in [
        ("missing", &l.missing),
        ("partial", &l.partial),
        ("outage", &l.outage),
    ] {
        for (a, b) in set.iter() {
            writeln!(
                out,
                "\t{:1$}{what} [{a},{b}) length {2}",
                "",
                indent + 2,
                b - a
            )?;
        }
    }
    for c in v.children() {
        device(c, top, indent + 4, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        let set = |list: &[(u64, u64)]| {
            let mut s = RangeSet::new();
            for (a, b) in list {
                s.insert(*a, *b);
            }
            s
        };
        let all = [set(&[(1, 5)]), set(&[(3, 8)]), set(&[(4, u64::MAX)])];
        let of = |n| shared(all.iter(), n).iter().collect::<Vec<_>>();
        assert_eq!(of(1), [(1, u64::MAX)]);
        assert_eq!(of(2), [(3, 8)]);
        assert_eq!(of(3), [(4, 5)]);
    }
}
