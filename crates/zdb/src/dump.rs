//! Configuration, datasets and objects as text.

use base::sizes::nice;
use base::{Error, Kind, Result};
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, NvList, ObjType};
use dmu::{Dnode, Objset};
use dsl::Dataset;
use pool::Pool;
use std::io::Write;
use std::sync::Arc;
use zap::Zap;

/// Most bytes of a packed nvlist that are believed.
const MAX_NVLIST: u64 = 64 << 20;

/// `-C`: the trusted configuration.
pub fn config(pool: &Pool, out: &mut dyn Write) -> Result<()> {
    let object = Zap::new(&pool.mos.hold(1)?)
        .get("config")?
        .ok_or_else(|| Error::damaged("the object directory names no config"))?;
    writeln!(out, "\nMOS Configuration:")?;
    write!(out, "{}", packed(&*pool.mos.hold(object)?)?.dump(8))?;
    Ok(())
}

fn packed(dn: &Dnode) -> Result<NvList> {
    let bonus = dn.bonus();
    let len = match bonus.get(..8).and_then(|b| <[u8; 8]>::try_from(b).ok()) {
        Some(b) => u64::from_le_bytes(b),
        None => return Err(Error::damaged("packed nvlist without a length")),
    };
    let i = dn.info();
    let room = (i.max_blkid.saturating_add(1)).saturating_mul(i.block_size as u64);
    if len > room.min(MAX_NVLIST) {
        return Err(Error::damaged(format!("packed nvlist of {len} bytes")));
    }
    let mut b = vec![0; len as usize];
    dn.read(0, &mut b)?;
    NvList::unpack(&b)
}

/// `-h`: all records of the history.
pub fn history(pool: &Pool, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\nHistory:")?;
    for (n, record) in pool.history_records()?.iter().enumerate() {
        writeln!(out, "record {n}")?;
        write!(out, "{}", record.dump(4))?;
    }
    Ok(())
}

/// `-m`: free space, metaslab by metaslab.
pub fn metaslabs(pool: &Pool, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\nMetaslabs:")?;
    for top in pool.tree.tops().iter().filter(|t| t.is_concrete()) {
        let count = pool.space.metaslab_count(top.id());
        writeln!(
            out,
            "\tvdev {:>6}   {} metaslabs   {}",
            top.id(),
            count,
            top.name()
        )?;
        for ms in 0..count {
            let (start, end) = pool.space.metaslab_bounds(top.id(), ms)?;
            let free = pool.maps().load(top.id(), ms)?;
            writeln!(
                out,
                "\tmetaslab {ms:>4}   offset {start:>12x}   size {:>6}   free {:>6}   segments {:>6}   largest {:>6}",
                nice(end - start, false),
                nice(free.total(), false),
                free.len(),
                nice(free.iter().map(|(s, e)| e - s).max().unwrap_or(0), false)
            )?;
        }
    }
    Ok(())
}

/// `-d`: the dataset named by `target`, or all of the pool; with `objects` only those. Gives the exit
/// status.
pub fn datasets(
    pool: &Pool,
    target: &str,
    objects: &[String],
    depth: usize,
    out: &mut dyn Write,
) -> Result<u8> {
    let mut numbers = Vec::new();
    for o in objects {
        let number = o.parse::<u64>();
        let bad = |_| Error::new(Kind::Invalid, format!("'{o}' is not an object number"));
        numbers.push(number.map_err(bad)?);
    }
    let mut bad = false;
    if target.contains(['/', '@']) {
        let ds = pool.dsl.dataset(target)?;
        bad |= dataset(pool, &ds, &numbers, depth, out)?;
        return Ok(if bad { crate::DAMAGED } else { 0 });
    }
    let mos = &pool.mos;
    writeln!(
        out,
        "Dataset mos [META], ID 0, {}, {} objects",
        nice(pool.dsl.root()?.phys().used_bytes, false),
        mos.object_count()
    )?;
    bad |= object_list(mos, &numbers, depth, out)?;
    if !numbers.is_empty() {
        return Ok(if bad { crate::DAMAGED } else { 0 });
    }
    let mut all = Vec::new();
    let collect = &mut |dir: &Arc<dsl::Dir>| {
        let head = dir.head()?;
        all.push(head.clone());
        let snapshots = head.snapshots()?;
        let at = all.len() - 1;
        all.splice(at..at, snapshots.into_iter().map(|(_, s)| s));
        Ok(())
    };
    let mut lost = Vec::new();
    pool.dsl.walk_past(&pool.dsl.root()?, collect, &mut |name, e| {
        lost.push(format!("Dataset {name}: {e}"));
        Ok(())
    })?;
    for line in lost {
        writeln!(out, "{line}")?;
        bad = true;
    }
    for ds in all {
        bad |= dataset(pool, &ds, &[], depth, out)?;
    }
    Ok(if bad { crate::DAMAGED } else { 0 })
}

fn dataset(
    pool: &Pool,
    ds: &Arc<Dataset>,
    objects: &[u64],
    depth: usize,
    out: &mut dyn Write,
) -> Result<bool> {
    let p = ds.phys();
    let os = match pool.open_dataset(ds) {
        Ok(set) => set.os.clone(),
        Err(e) => {
            writeln!(out, "Dataset {}: {e}", ds.full_name())?;
            return Ok(true);
        }
    };
    let kind = match os.os_type() {
        2 => "ZPL",
        3 => "ZVOL",
        _ => "OTHER",
    };
    writeln!(
        out,
        "Dataset {} [{kind}], ID {}, cr_txg {}, {}, {} objects, rootbp {:?}",
        ds.full_name(),
        ds.object(),
        p.creation_txg,
        nice(p.referenced_bytes, false),
        os.object_count(),
        p.bp
    )?;
    let bad = object_list(&os, objects, depth, out)?;
    pool.close_dataset(ds.object());
    Ok(bad)
}

fn object_list(os: &Arc<Objset>, only: &[u64], depth: usize, out: &mut dyn Write) -> Result<bool> {
    if depth < 2 && only.is_empty() {
        return Ok(false);
    }
    let head = "\n    Object  lvl   iblk   dblk  dsize  dnsize  lsize   type";
    writeln!(out, "{head}")?;
    let mut bad = false;
    let mut one = |number: u64, out: &mut dyn Write| -> Result<()> {
        let shown = match os.hold(number) {
            Ok(dn) => object(&dn, depth, out),
            Err(e) => Err(e),
        };
        if let Err(e) = shown {
            bad = true;
            writeln!(out, "{number:10}  {e}")?;
        }
        Ok(())
    };
    if only.is_empty() {
        let mut at = 0;
        while let Some(number) = os.next_object(at)? {
            one(number, out)?;
            at = number;
        }
    } else {
        for number in only {
            one(*number, out)?;
        }
    }
    writeln!(out)?;
    Ok(bad)
}

fn object(dn: &Dnode, depth: usize, out: &mut dyn Write) -> Result<()> {
    let i = dn.info();
    let size = |n: u64| nice(n, false);
    writeln!(
        out,
        "{:10}  {:3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}   {}",
        dn.object(),
        i.nlevels,
        size(1 << i.indblkshift.min(63)),
        size(i.block_size as u64),
        size(i.used),
        size(i.slots as u64 * 512),
        size(
            i.max_blkid
                .saturating_add(1)
                .saturating_mul(i.block_size as u64)
        ),
        i.obj_type.name()
    )?;
    if depth < 3 {
        return Ok(());
    }
    let bonus = dn.bonus();
    if !bonus.is_empty() {
        writeln!(out, "\tbonus {} {}", bonus.len(), i.bonus_type.name())?;
        for line in bonus.chunks(32) {
            let hex: Vec<String> = line.chunks(8).map(hex).collect();
            writeln!(out, "\t    {}", hex.join(" "))?;
        }
    }
    if i.obj_type.is_zap() {
        for entry in Zap::new(dn).iter() {
            let e = entry?;
            let ints = e.value.ints();
            let value = match (e.value.size, e.value.as_u64()) {
                (_, Some(v)) => v.to_string(),
                (1, _) => String::from_utf8_lossy(&e.value.data)
                    .trim_end_matches('\0')
                    .to_string(),
                _ => ints
                    .iter()
                    .map(u64::to_string)
                    .collect::<Vec<_>>()
                    .join(" "),
            };
            writeln!(out, "\t    {} = {value}", e.text().escape_debug())?;
        }
    } else if i.obj_type == ObjType::PACKED_NVLIST {
        write!(out, "{}", packed(dn)?.dump(12))?;
    }
    if depth >= 4 {
        let os = dn.objset()?;
        let zio = &os.dmu().zio;
        let phys = on_disk(zio, &os.root(), dn.object())?;
        for (at, bp) in walk::all_blocks(zio, &phys)? {
            writeln!(out, "\t    L{} {:x} {bp:?}", bp.level(), at.blkid)?;
        }
    }
    Ok(())
}

/// The dnode of an object as it is on disk.
fn on_disk(zio: &zio::Zio, root: &BlkPtr, object: u64) -> Result<DnodePhys> {
    let missing = || Error::damaged(format!("no dnode {object}"));
    let meta = ObjsetPhys::decode(&zio.read(root)?)?.meta;
    let per = (meta.block_size() / 512).max(1) as u64;
    let id = object / per;
    let shift = meta.epb_shift();
    let mut level = (meta.nlevels as u32).saturating_sub(1);
    let place = |level: u32| id.checked_shr(level * shift).unwrap_or(0);
    let mut bp = *meta.blkptr.get(place(level) as usize).ok_or_else(missing)?;
    while level > 0 {
        level -= 1;
        let b = zio.read(&bp)?;
        bp = BlkPtr::at(&b, (place(level) & ((1 << shift) - 1)) as usize)?;
    }
    let b = zio.read_with(&bp, &zio::ReadSpec::with_key(&zio::Crypt::Locked))?;
    let at = (object % per) as usize * 512;
    DnodePhys::decode(b.get(at..).unwrap_or_default())?.ok_or_else(missing)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
