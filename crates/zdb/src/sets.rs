//! `-d`: datasets, and their objects.

use crate::context::Ctx;
use crate::fmt;
use crate::object;
use crate::raw::Set;
use crate::{pending, refcounts, zil_dump, Session};
use base::{bail, Error, Kind, Result};
use disk::mos_keys;
use disk::{os_type, DnodePhys, ObjType};
use dsl::{Dataset, Dir};
use std::io::Write;
use std::sync::Arc;
use zap::Zap;

/// Depth of the tree of file systems: names would be too long below.
const MAX_DEPTH: usize = 256;

const HEAD: &str = "\n    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type";

/// Kinds of objects to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    dir: bool,
    file: bool,
    map: bool,
    zap: bool,
    rest: bool,
}

impl Kinds {
    const ALL: Kinds = Kinds {
        dir: true,
        file: true,
        map: true,
        zap: true,
        rest: true,
    };
    const NONE: Kinds = Kinds {
        dir: false,
        file: false,
        map: false,
        zap: false,
        rest: false,
    };

    fn has(&self, t: ObjType) -> bool {
        match t {
            ObjType::DIRECTORY_CONTENTS => self.dir,
            ObjType::PLAIN_FILE_CONTENTS => self.file,
            ObjType::SPACE_MAP => self.map,
            t if t.is_zap() => self.zap,
            _ => self.rest,
        }
    }

    fn read(text: &str) -> Result<Kinds> {
        let mut k = Kinds::NONE;
        let mut on = true;
        for c in text.chars() {
            match c {
                '-' if on => {
                    on = false;
                    continue;
                }
                'A' => {
                    k = match on {
                        true => Kinds::ALL,
                        false => Kinds::NONE,
                    }
                }
                'd' => k.dir = on,
                'f' => k.file = on,
                'm' => k.map = on,
                'z' => k.zap = on,
                _ => bail!(Invalid, "'{c}' is no kind of object: A, d, f, m, z or -"),
            }
            on = true;
        }
        if text.is_empty() || !on {
            bail!(Invalid, "'{text}' names no kinds of objects");
        }
        Ok(k)
    }
}

/// An object, or a range of objects of some kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    first: u64,
    last: u64,
    kinds: Kinds,
}

impl Wanted {
    /// `5`, `0x5`, `-1`, `0:100`, `0:-1:A-d`.
    pub fn read(text: &str) -> Result<Wanted> {
        let number = |t: &str| -> Result<u64> {
            let plain = |t: &str| match t.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).ok(),
                None => t.parse().ok(),
            };
            let n = match t.strip_prefix('-') {
                Some(t) => plain(t).map(u64::wrapping_neg),
                None => plain(t),
            };
            n.ok_or_else(|| Error::new(Kind::Invalid, format!("'{t}' is not an object number")))
        };
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [one] => {
                let n = number(one)?;
                Ok(Wanted {
                    first: n,
                    last: n,
                    kinds: Kinds::ALL,
                })
            }
            [first, last] | [first, last, _] if number(first)? <= number(last)? => Ok(Wanted {
                first: number(first)?,
                last: number(last)?,
                kinds: match parts.get(2) {
                    Some(k) => Kinds::read(k)?,
                    None => Kinds::ALL,
                },
            }),
            _ => bail!(Invalid, "'{text}' is not a range of objects"),
        }
    }
}

/// All datasets of the pool: those below a file system first, then its snapshots, then itself, as
/// their directories list them. What cannot be read is given to `bad`.
pub fn each(
    s: &Session,
    f: &mut dyn FnMut(&Arc<Dataset>) -> Result<()>,
    bad: &mut dyn FnMut(String, Error),
) -> Result<()> {
    let root = s.pool.dsl().root()?;
    below(s, &root, 0, f, bad)
}

fn below(
    s: &Session,
    dir: &Arc<Dir>,
    depth: usize,
    f: &mut dyn FnMut(&Arc<Dataset>) -> Result<()>,
    bad: &mut dyn FnMut(String, Error),
) -> Result<()> {
    if depth > MAX_DEPTH {
        bail!(Damaged, "the tree of file systems is a loop");
    }
    let (dsl, mos) = (s.pool.dsl(), s.pool.mos());
    let list = |object: u64| -> Result<Vec<(String, u64)>> {
        let mut out = Vec::new();
        if object != 0 {
            for e in Zap::new(&mos.hold(object)?).iter() {
                let e = e?;
                out.push((e.text(), e.value.as_u64().unwrap_or(0)));
            }
        }
        Ok(out)
    };
    match list(dir.phys().child_dir_zapobj) {
        Ok(children) => {
            for (name, object) in children {
                // Space of the pool itself, not of a file system.
                if depth == 0 && name.starts_with('$') {
                    continue;
                }
                match dsl.dir_by_object(object) {
                    Ok(child) => below(s, &child, depth + 1, f, bad)?,
                    Err(e) => bad(format!("{}/{name}", dir.full_name()), e),
                }
            }
        }
        Err(e) => bad(dir.full_name(), e),
    }
    let head = match dir.head() {
        Ok(h) => h,
        Err(e) => {
            bad(dir.full_name(), e);
            return Ok(());
        }
    };
    match list(head.phys().snapnames_zapobj) {
        Ok(snapshots) => {
            for (name, object) in snapshots {
                match dsl.dataset_by_object(object) {
                    Ok(ds) => f(&ds)?,
                    Err(e) => bad(format!("{}@{name}", dir.full_name()), e),
                }
            }
        }
        Err(e) => bad(head.full_name(), e),
    }
    f(&head)
}

/// The dataset that `target` names, by name or (`by_number`, or if there is no such name) by the
/// number of its object.
pub fn find(s: &Session, target: &str, by_number: bool) -> Result<Arc<Dataset>> {
    let (_, rest) = target.split_once('/').unwrap_or((target, ""));
    let number = rest.parse::<u64>().ok();
    let with_number = || match number {
        Some(n) => s.pool.dsl().dataset_by_object(n),
        None => bail!(Invalid, "'{rest}' is not the number of a dataset"),
    };
    if by_number {
        return with_number();
    }
    let name = match rest.is_empty() {
        true => target.trim_end_matches('/'),
        false => target,
    };
    // A pool found under another name than it is opened by still has its own.
    let (pool, own) = (s.pool.name(), name.split(['/', '@']).next().unwrap_or(name));
    let full = format!("{pool}{}", &name[own.len()..]);
    match s.pool.dsl().dataset(&full) {
        Err(e) if e.kind == Kind::NotFound && number.is_some() => with_number().map_err(|_| e),
        r => r,
    }
}

/// A bookmark: what it remembers of its snapshot, and by which snapshots it was redacted; from depth 6 on which blocks its
/// redaction list has.
fn bookmark(s: &Session, fs: &str, name: &str, depth: usize, out: &mut dyn Write) -> Result<()> {
    let Some(mark) = find(s, fs, false)?.bookmark(name)? else {
        bail!(NotFound, "bookmark '{fs}#{name}' does not exist");
    };
    writeln!(
        out,
        "\t#{name}: {{guid: {:x} creation_txg: {} creation_time: {} redaction_obj: {}}}",
        mark.guid,
        mark.creation_txg.number(),
        mark.creation_time,
        mark.redaction_obj
    )?;
    if mark.redaction_obj == 0 {
        return Ok(());
    }
    let list = s.pool.dsl().redaction_list(mark.redaction_obj)?;
    let snaps: Vec<String> = list.snaps().iter().map(u64::to_string).collect();
    writeln!(out, "\t\tRedacted:\n\t\t\tProgress: complete")?;
    writeln!(out, "\t\t\tSnapshots: [{}]", snaps.join(", "))?;
    writeln!(out, "\t\t\tLength: {}", list.len())?;
    if depth < 6 {
        return Ok(());
    }
    writeln!(out, "\t\t\tRedaction List:")?;
    const CHUNK: u64 = 1024;
    for first in (0..list.len()).step_by(CHUNK as usize) {
        for b in list.read(first, CHUNK)? {
            writeln!(
                out,
                "\t\t\t\tobject: {} block: {} count: {} size: {}",
                b.object, b.blkid, b.count, b.block_size
            )?;
        }
    }
    Ok(())
}

/// `-d`: the dataset `target`, or all of the pool; with `objects` only those.
pub fn show(s: &Session, target: &str, objects: &[String], out: &mut dyn Write) -> Result<()> {
    let wanted: Vec<Wanted> = objects
        .iter()
        .map(|o| Wanted::read(o))
        .collect::<Result<_>>()?;
    let depth = s.depth('d').max(s.depth('i').min(1)).max(1);
    if let Some((fs, name)) = target.split_once('#') {
        return bookmark(s, fs, name, depth, out);
    }
    if s.has('N') || target.contains(['/', '@']) {
        let ds = find(s, target, s.has('N'))?;
        return dataset(s, &ds, &wanted, depth, out);
    }
    mos(s, &wanted, depth, out)?;
    if !wanted.is_empty() {
        return Ok(());
    }
    if depth >= 3 {
        if let Err(e) = pending::show(s, depth, out) {
            s.complain(out, &format!("    frees and dirty time logs: {e}"), 2)?;
        }
    }
    let mut failed = Vec::new();
    let mut counts = refcounts::Counts::default();
    each(
        s,
        &mut |ds| {
            counts.dataset(s, ds);
            dataset(s, ds, &[], depth, out)
        },
        &mut |name, e| failed.push((name, e)),
    )?;
    for (name, e) in failed {
        s.complain(out, &format!("Dataset {name}: {e}"), 2)?;
    }
    if depth >= 3 {
        if let Err(e) = pending::origin(s, depth, out) {
            s.complain(out, &format!("    Deadlist: {e}"), 2)?;
        }
    }
    counts.compare(s, out)
}

fn mos(s: &Session, wanted: &[Wanted], depth: usize, out: &mut dyn Write) -> Result<()> {
    let pool = &s.pool;
    let set = Set::open(pool.zio(), &pool.mos().root())?;
    // The space of the meta object set is kept in a directory of its own.
    let own = Zap::new(
        &*pool
            .mos()
            .hold(pool.dsl().root()?.phys().child_dir_zapobj)?,
    )
    .get("$MOS")
    .and_then(|o| match o {
        Some(o) => Ok(pool.dsl().dir_by_object(o)?.phys().used_bytes),
        None => Ok(0),
    });
    let used = own.unwrap_or(0);
    write!(
        out,
        "Dataset mos [META], ID 0, cr_txg 4, {}, {} objects",
        s.num.nice(used),
        set.root.fill()
    )?;
    finish_line(&set, depth, out)?;
    let c = Ctx::mos(s, &set);
    list(s, &c, wanted, depth, out)
}

fn finish_line(set: &Set, depth: usize, out: &mut dyn Write) -> Result<()> {
    if depth >= 4 {
        write!(out, ", rootbp {}", fmt::bp(&set.root))?;
    }
    Ok(writeln!(out)?)
}

/// One dataset.
pub fn dataset(
    s: &Session,
    ds: &Arc<Dataset>,
    wanted: &[Wanted],
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let p = ds.phys();
    let name = ds.full_name();
    let set = match Set::of(s.pool.zio(), ds) {
        Ok(set) => set,
        Err(e) => return s.complain(out, &format!("Dataset {name}: {e}"), 2),
    };
    let kind = match set.phys.os_type {
        os_type::NONE => "NONE",
        os_type::META => "META",
        os_type::ZFS => "ZPL",
        os_type::ZVOL => "ZVOL",
        os_type::OTHER => "OTHER",
        _ => "UNKNOWN",
    };
    let objects = set.root.fill();
    write!(
        out,
        "Dataset {name} [{kind}], ID {}, cr_txg {}, {}, {objects} objects",
        ds.object(),
        p.creation_txg,
        s.num.nice(p.referenced_bytes)
    )?;
    finish_line(&set, depth, out)?;
    if wanted.is_empty() {
        let logs = s.depth('i').max(if depth >= 2 { depth } else { 0 });
        if logs > 0 {
            zil_dump::show(s, &set, ds.is_snapshot(), logs, out)?;
        }
        if depth >= 3 {
            if let Err(e) = freed(s, ds, depth, out) {
                s.complain(out, &format!("    Deadlist: {e}"), 2)?;
            }
        }
    }
    let opened = s.pool.open_dataset(ds);
    let c = Ctx::dataset(s, &set, opened.as_ref().ok().map(|o| o.os.clone()));
    let r = list(s, &c, wanted, depth, out);
    s.pool.close_dataset(ds.object());
    r
}

/// What a dataset keeps of blocks that are no longer its own, or may come not to be.
fn freed(s: &Session, ds: &Dataset, depth: usize, out: &mut dyn Write) -> Result<()> {
    let mos = s.pool.mos();
    let p = ds.phys();
    pending::deadlist(s, "Deadlist", p.deadlist_obj, depth, out)?;
    // An attribute of an object that is a ZAP, too.
    let more = |object: u64, key: &str| -> Result<Option<u64>> {
        let dn = mos.hold(object)?;
        match dn.info().obj_type.is_zap() {
            true => Zap::new(&dn).get(key),
            false => Ok(None),
        }
    };
    if !ds.is_snapshot() {
        if let Some(o) = more(p.dir_obj, mos_keys::LIVELIST)? {
            pending::deadlist(s, "Livelist", o, depth, out)?;
        }
    }
    if let Some(o) = more(ds.object(), mos_keys::REMAP_DEADLIST)? {
        writeln!(out, "ds_remap_deadlist:")?;
        pending::deadlist(s, "Deadlist", o, depth, out)?;
    }
    Ok(())
}

/// The objects of a set: those wanted, or from the second degree of detail on all.
fn list(s: &Session, c: &Ctx, wanted: &[Wanted], depth: usize, out: &mut dyn Write) -> Result<()> {
    if depth < 2 && wanted.is_empty() {
        return Ok(());
    }
    let mut head = true;
    let mut slots = (0u64, 0u64);
    let mut one = |object: u64, dn: &DnodePhys, out: &mut dyn Write| -> Result<()> {
        if std::mem::take(&mut head) {
            writeln!(out, "{HEAD}")?;
        }
        if depth > 3 {
            head = true;
        }
        object::show(c, object, dn, depth, out)
    };
    if !wanted.is_empty() {
        for w in wanted {
            if w.first == w.last {
                match c.set.dnode(w.first) {
                    Ok(Some(dn)) => one(w.first, &dn, out)?,
                    Ok(None) => {
                        let n = w.first as i64;
                        s.complain(out, &format!("object {n}: No such file or directory"), 1)?
                    }
                    Err(e) => s.complain(out, &format!("object {}: {e}", w.first as i64), 1)?,
                }
                continue;
            }
            range(s, c, w, &mut one, out)?;
        }
        return Ok(());
    }
    one(0, &c.set.phys.meta, out)?;
    for (i, dn) in c.set.phys.special.iter().enumerate() {
        if let Some(dn) = dn {
            one((i as u64 + 1).wrapping_neg(), dn, out)?;
        }
    }
    let mut seen = 0u64;
    let mut bad = Vec::new();
    c.set.each(
        &mut |object, dn| {
            seen += 1;
            slots.0 += u64::from(dn.slots);
            slots.1 = object + u64::from(dn.slots) - 1;
            one(object, dn, out)
        },
        &mut |at, e| bad.push((at, e)),
    )?;
    let lost = !bad.is_empty();
    for (at, e) in bad {
        s.complain(out, &format!("{at:10}  {e}"), 2)?;
    }
    writeln!(out)?;
    writeln!(out, "    Dnode slots:")?;
    writeln!(out, "\tTotal used:    {:10}", slots.0)?;
    writeln!(out, "\tMax used:      {:10}", slots.1)?;
    let empty = slots.1.saturating_sub(slots.0) as f64 * 100.0 / slots.1.max(1) as f64;
    writeln!(out, "\tPercent empty: {empty:10.6}\n")?;
    let expected = c.set.root.fill();
    if seen != expected && !lost {
        let line = format!("object count {seen}, but the block pointer says {expected}");
        s.complain(out, &line, 2)?;
    }
    Ok(())
}

fn range(
    s: &Session,
    c: &Ctx,
    w: &Wanted,
    one: &mut dyn FnMut(u64, &DnodePhys, &mut dyn Write) -> Result<()>,
    out: &mut dyn Write,
) -> Result<()> {
    if w.first == 0 && w.kinds.has(ObjType::DNODE) {
        one(0, &c.set.phys.meta, out)?;
    }
    let mut bad = Vec::new();
    c.set.each(
        &mut |object, dn| match (w.first..=w.last).contains(&object) && w.kinds.has(dn.obj_type) {
            true => one(object, dn, out),
            false => Ok(()),
        },
        &mut |at, e| bad.push((at, e)),
    )?;
    for (at, e) in bad {
        s.complain(out, &format!("{at:10}  {e}"), 2)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let w = |t: &str| Wanted::read(t).unwrap();
        assert_eq!((w("5").first, w("5").last), (5, 5));
        assert_eq!(w("-1").first, u64::MAX);
        assert_eq!((w("3:9").first, w("3:9").last), (3, 9));
        let k = w("0:-1:A-d").kinds;
        assert!(!k.dir && k.file && k.map && k.zap && k.rest);
        let k = w("0:-1:df").kinds;
        assert!(k.dir && k.file && !k.map && !k.zap && !k.rest);
        assert_eq!((w("0x1f:0x20").first, w("0x1f:0x20").last), (31, 32));
        let bad_kinds = ["1:2:", "1:2:-", "1:2:A-", "1:2:A--", "1:2:q"];
        for bad in bad_kinds
            .into_iter()
            .chain(["", "x", "1:", "2:1", "1:2:3:4", "--1", "0x", "0xg"])
        {
            assert!(Wanted::read(bad).is_err(), "{bad}");
        }
    }
}
