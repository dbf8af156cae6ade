//! `-D`, `-S`: dedup tables, and what one would look like. `-T`: block reference tables.

use crate::fmt;
use crate::raw::{self, Set};
use crate::{sets, Session};
use base::{Error, Result};
use codec::compress;
use disk::brt::{brt_name, BrtPhys};
use disk::bytes::u16_at;
use disk::ddt::{
    DdtClass, DdtEntry, DdtHistogram, DdtKey, DdtLogPhys, DdtLogRecord, FLAG_FLAT, FLAG_LOG,
    FLAT_SIZE, LOG_CHECKPOINT, LOG_FLUSHING, TRADITIONAL_SIZE,
};
use disk::{BlkPtr, Checksum, Compression, DnodePhys};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use zap::Zap;

/// Checksums that have tables, in the order of their numbers.
const CHECKSUMS: [Checksum; 5] = [
    Checksum::SHA256,
    Checksum::SHA512,
    Checksum::SKEIN,
    Checksum::EDONR,
    Checksum::BLAKE3,
];
/// Most different blocks a simulation keeps in memory.
const MAX_SIMULATED: usize = 50_000_000;

/// One table.
struct Table {
    checksum: Checksum,
    version: u64,
    flags: u64,
    /// The ZAP that names its objects.
    root: u64,
    statistics: u64,
}

impl Table {
    fn name(&self) -> &'static str {
        self.checksum.name().unwrap_or("unknown")
    }

    fn object_name(&self, class: DdtClass) -> String {
        format!("DDT-{}-zap-{}", self.name(), class.name())
    }

    fn lookup(&self, s: &Session, name: &str) -> Result<Option<u64>> {
        Zap::new(&*s.pool.mos().hold(self.root)?).get(name)
    }

    fn histogram(&self, s: &Session, class: DdtClass) -> Result<DdtHistogram> {
        if self.statistics == 0 {
            return Ok(DdtHistogram::default());
        }
        let dn = s.pool.mos().hold(self.statistics)?;
        let v = Zap::new(&*dn).get_value(&self.object_name(class))?;
        Ok(DdtHistogram::from_words(
            v.map(|v| v.ints()).unwrap_or_default(),
        ))
    }
}

fn tables(s: &Session) -> Result<Vec<Table>> {
    let directory = s.pool.mos().hold(1)?;
    let directory = Zap::new(&*directory);
    let statistics = directory.get("DDT-statistics")?.unwrap_or(0);
    let mut out = Vec::new();
    for checksum in CHECKSUMS {
        let name = checksum.name().unwrap_or("unknown");
        if let Some(root) = directory.get(&format!("DDT-{name}"))? {
            let dn = s.pool.mos().hold(root)?;
            let zap = Zap::new(&*dn);
            out.push(Table {
                checksum,
                version: zap.get("version")?.unwrap_or(0),
                flags: zap.get("flags")?.unwrap_or(0),
                root,
                statistics,
            });
            continue;
        }
        let t = Table {
            checksum,
            version: 0,
            flags: 0,
            root: 1,
            statistics,
        };
        for class in DdtClass::ALL {
            if directory.contains(&t.object_name(class))? {
                out.push(t);
                break;
            }
        }
    }
    Ok(out)
}

fn dnode(set: &Set, object: u64) -> Result<DnodePhys> {
    set.dnode(object)?
        .ok_or_else(|| Error::damaged(format!("no object {object}")))
}

/// `-D`.
pub fn show(s: &Session, out: &mut dyn Write) -> Result<()> {
    let depth = s.depth('D');
    let set = Set::open(s.pool.zio(), &s.pool.mos().root())?;
    let mut sum = DdtHistogram::default();
    let add = |sum: &mut DdtHistogram, h: &DdtHistogram| {
        for (a, b) in sum.0.iter_mut().zip(&h.0) {
            *a = a.wrapping_add(*b);
        }
    };
    for t in tables(s)? {
        let kind = match t.version {
            0 => "LEGACY",
            1 => "FDT",
            _ => "UNKNOWN",
        };
        write!(
            out,
            "DDT-{}: version={} [{kind}]; flags=0x{:02x}",
            t.name(),
            t.version,
            t.flags
        )?;
        let mut names = Vec::new();
        for (bit, name) in [(FLAG_FLAT, "FLAT"), (FLAG_LOG, "LOG")] {
            if t.flags & bit != 0 {
                names.push(name);
            }
        }
        if !names.is_empty() {
            write!(out, " [{}]", names.join(" "))?;
        }
        writeln!(out, "; rootobj={}", t.root)?;
        for class in DdtClass::ALL {
            let h = t.histogram(s, class)?;
            add(&mut sum, &h);
            if let Err(e) = class_of(s, &set, &t, class, &h, depth, out) {
                s.complain(out, &format!("{}: {e}", t.object_name(class)), 2)?;
            }
        }
        if t.flags & FLAG_LOG != 0 {
            let mut live = BTreeMap::new();
            for i in 0..2 {
                if let Err(e) = log(s, &set, &t, i, depth, &mut live, out) {
                    s.complain(out, &format!("DDT-log-{}-{i}: {e}", t.name()), 2)?;
                }
            }
            for (key, r) in &live {
                if r.entry.references() > 0 {
                    let deflate = |d: &disk::Dva| s.pool.zio().devices.deflate(d.vdev(), d.asize());
                    sum.count(&r.entry.figures(key, deflate), true);
                }
            }
        }
    }
    let total = sum.total();
    if total[0] == 0 {
        writeln!(out, "All DDTs are empty")?;
        return Ok(());
    }
    if depth > 1 {
        writeln!(out, "\nDDT histogram (aggregated over all DDTs):")?;
        buckets(s, &sum, true, out)?;
    }
    ratios(&total, out)
}

fn class_of(
    s: &Session,
    set: &Set,
    t: &Table,
    class: DdtClass,
    h: &DdtHistogram,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let name = t.object_name(class);
    let Some(object) = t.lookup(s, &name)? else {
        return Ok(());
    };
    let dn = dnode(set, object)?;
    let held = s.pool.mos().hold(object)?;
    let zap = Zap::new(&*held);
    let entries = zap.count()?;
    if entries == 0 {
        return Ok(());
    }
    let fill: u64 = dn.blkptr.iter().map(BlkPtr::fill).sum();
    // OpenZFS counts it in blocks of 512 bytes.
    let dspace = dn.used_bytes().saturating_add(256) >> 9 << 9;
    writeln!(
        out,
        "{name}: dspace={dspace}; mspace={}; entries={entries}",
        fill.saturating_mul(dn.block_size() as u64)
    )?;
    if depth < 3 {
        return Ok(());
    }
    writeln!(out, "{name}: object={object}")?;
    buckets(s, h, false, out)?;
    if depth < 4 || (depth < 5 && class == DdtClass::Unique) {
        return Ok(());
    }
    writeln!(out, "{name} contents:\n")?;
    for e in zap.iter() {
        let e = e?;
        let key = DdtKey::from_words(&e.words())?;
        let (flat, swap, body) = unpack(&e.value.data, t.flags & FLAG_FLAT != 0)?;
        entry(t, e.next, &key, &DdtEntry::decode(&body, flat, swap)?, out)?;
    }
    Ok(writeln!(out)?)
}

/// The body of a stored value: whether it is flat, of the other byte order, and its bytes.
fn unpack(value: &[u8], flat: bool) -> Result<(bool, bool, Vec<u8>)> {
    let Some((version, body)) = value.split_first() else {
        return Err(Error::damaged("dedup table: empty value"));
    };
    let len = if flat { FLAT_SIZE } else { TRADITIONAL_SIZE };
    let bytes = match Compression::new(version & 0x7f) {
        Compression::OFF => body.to_vec(),
        alg => compress::decompress(alg, body, len)?,
    };
    Ok((flat, version & 0x80 == 0, bytes))
}

/// `index`: where one would go on behind it.
fn entry(t: &Table, index: u64, key: &DdtKey, e: &DdtEntry, out: &mut dyn Write) -> Result<()> {
    for (p, slot) in e.slots().iter().enumerate() {
        if slot.birth.is_none() {
            continue;
        }
        writeln!(
            out,
            "index {index:x} refcnt {} phys {p} {}",
            slot.refcount,
            fmt::bp(&key.pointer(t.checksum, slot))
        )?;
    }
    Ok(())
}

fn log(
    s: &Session,
    set: &Set,
    t: &Table,
    i: usize,
    depth: usize,
    live: &mut BTreeMap<DdtKey, DdtLogRecord>,
    out: &mut dyn Write,
) -> Result<()> {
    let name = format!("DDT-log-{}-{i}", t.name());
    let Some(object) = t.lookup(s, &name)? else {
        return Ok(());
    };
    let dn = dnode(set, object)?;
    let p = DdtLogPhys::decode(&dn.bonus)?;
    let mut own = BTreeMap::new();
    let block = dn.block_size().max(1) as u64;
    for id in 0..p.length.div_ceil(block).min(dn.maxblkid.saturating_add(1)) {
        for r in DdtLogRecord::decode_block(&set.block(&dn, id)?)? {
            if p.flags & LOG_CHECKPOINT != 0 && r.key <= p.checkpoint {
                continue;
            }
            own.insert(r.key, r);
        }
    }
    let mut names = Vec::new();
    for (bit, n) in [(LOG_FLUSHING, "FLUSHING"), (LOG_CHECKPOINT, "CHECKPOINT")] {
        if p.flags & bit != 0 {
            names.push(n);
        }
    }
    write!(out, "{name}: flags=0x{:02x}", p.flags)?;
    if !names.is_empty() {
        write!(out, " [{}]", names.join(" "))?;
    }
    writeln!(
        out,
        "; obj={object}; len={}; txg={}; entries={}",
        p.length,
        p.first_txg,
        own.len()
    )?;
    if depth >= 4 && !own.is_empty() {
        writeln!(out, "{name} contents:\n")?;
        for (key, r) in &own {
            // Logs are in the order of their keys.
            entry(t, key.0[0] >> 16 | 1 << 48, key, &r.entry, out)?;
        }
        writeln!(out)?;
    }
    // What is in the log being filled is newer than what is in the one being flushed.
    for (key, r) in own {
        match p.flags & LOG_FLUSHING != 0 {
            true => {
                live.entry(key).or_insert(r);
            }
            false => {
                live.insert(key, r);
            }
        }
    }
    Ok(())
}

fn buckets(s: &Session, h: &DdtHistogram, total: bool, out: &mut dyn Write) -> Result<()> {
    let (number, bytes) = (|n| s.num.nice(n), |n| s.num.nice_bytes(n));
    let text = cli::dedup_table::table(&h.0, total, &number, &bytes);
    Ok(out.write_all(text.as_bytes())?)
}

fn ratios(t: &[u64; 8], out: &mut dyn Write) -> Result<()> {
    if t[0] == 0 {
        return Ok(());
    }
    let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
    let (dedup, compress, copies) = (part(t[7], t[3]), part(t[5], t[6]), part(t[7], t[6]));
    let all = dedup * compress / copies.max(f64::MIN_POSITIVE);
    Ok(writeln!(
        out,
        "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, dedup * compress / copies = {all:.2}\n"
    )?)
}

/// `-S`: what a dedup table of all data of the pool would look like.
pub fn simulate(s: &Session, out: &mut dyn Write) -> Result<()> {
    // Words of the key, then blocks by copies would be kept apart: what counts here is the sum.
    let mut all: HashMap<DdtKey, [u64; 3]> = HashMap::new();
    let mut bad = Vec::new();
    let mut full = false;
    let mut roots = Vec::new();
    sets::each(
        s,
        &mut |ds| {
            let p = ds.phys();
            roots.push((p.bp, p.prev_snap_txg));
            Ok(())
        },
        &mut |name, e| bad.push(format!("{name}: {e}")),
    )?;
    for (root, after) in roots {
        let set = match Set::open(s.pool.zio(), &root) {
            Ok(set) => set,
            Err(_) if root.is_hole() => continue,
            Err(e) => {
                bad.push(e.to_string());
                continue;
            }
        };
        let mut lost = Vec::new();
        let spec = walk::Spec {
            after,
            ..walk::Spec::all(walk::Order::ParentsFirst)
        };
        set.each(
            &mut |_, dn| {
                raw::tree(
                    s.pool.zio(),
                    dn,
                    &spec,
                    &mut |bp, level, _| {
                        if level > 0 || bp.is_embedded() || bp.obj_type().is_metadata() {
                            return Ok(());
                        }
                        // Nothing tells blocks without a checksum apart.
                        if bp.checksum_alg() == Checksum::OFF {
                            return Ok(());
                        }
                        if all.len() >= MAX_SIMULATED {
                            full = true;
                            return Ok(());
                        }
                        let e = all.entry(DdtKey::of(bp)).or_default();
                        let (asize, dsize) = (bp.asize(), s.pool.zio().dsize(bp));
                        *e = [e[0] + 1, asize, dsize];
                        Ok(())
                    },
                    &mut |bp, e| lost.push(format!("{}: {e}", fmt::bp_short(bp, 3))),
                )
            },
            &mut |at, e| bad.push(format!("object {at}: {e}")),
        )?;
        bad.append(&mut lost);
    }
    let mut h = DdtHistogram::default();
    for (key, [refs, _, dsize]) in &all {
        let one = [1, key.lsize() as u64, key.psize() as u64, *dsize];
        let mut f = [0u64; 8];
        for (i, v) in one.into_iter().enumerate() {
            f[i] = v;
            f[4 + i] = v.wrapping_mul(*refs);
        }
        let bucket = (63 - refs.max(&1).leading_zeros()) as usize;
        h.count(&(bucket, f), true);
    }
    writeln!(out, "Simulated DDT histogram:")?;
    buckets(s, &h, true, out)?;
    ratios(&h.total(), out)?;
    if full {
        s.complain(out, "too many different blocks: not all were counted", 1)?;
    }
    for line in bad {
        s.complain(out, &line, 2)?;
    }
    Ok(())
}

/// `-T`: block reference tables.
pub fn references(s: &Session, out: &mut dyn Write) -> Result<()> {
    let depth = s.depth('T');
    let set = Set::open(s.pool.zio(), &s.pool.mos().root())?;
    let directory = s.pool.mos().hold(1)?;
    let mut found = Vec::new();
    for v in s.pool.tree().tops().iter() {
        if let Some(object) = Zap::new(&*directory).get(&brt_name(v.id()))? {
            let dn = dnode(&set, object)?;
            let p = BrtPhys::decode(&dn.bonus)?;
            found.push((v.id(), p, dn));
        }
    }
    let used: u64 = found.iter().fold(0, |a, f| a.wrapping_add(f.1.used));
    let saved: u64 = found.iter().fold(0, |a, f| a.wrapping_add(f.1.saved));
    if used == 0 {
        writeln!(out, "BRT: empty")?;
        return Ok(());
    }
    let n = |v: u64| s.num.nice(v);
    // As OpenZFS: truncated to hundredths.
    let ratio = used.saturating_add(saved).saturating_mul(100) / used.max(1);
    writeln!(
        out,
        "BRT: used {}; saved {}; ratio {}.{:02}x",
        n(used),
        n(saved),
        ratio / 100,
        ratio % 100
    )?;
    if depth < 2 {
        return Ok(());
    }
    for (id, p, dn) in &found {
        if p.total == 0 {
            writeln!(out, "BRT: vdev {id}: empty")?;
            continue;
        }
        writeln!(
            out,
            "BRT: vdev {id}: refcnt {}; used {}; saved {}",
            n(p.total),
            n(p.used),
            n(p.saved)
        )?;
        if depth < 3 {
            continue;
        }
        let held = s.pool.mos().hold(p.entries)?;
        let mut counts = [0u64; 64];
        let mut lines = Vec::new();
        for e in Zap::new(&*held).iter() {
            let e = e?;
            let offset = e.words().first().copied().unwrap_or(0);
            let refs = match (e.value.size, <[u8; 8]>::try_from(&e.value.data[..])) {
                (1, Ok(b)) if p.big_endian => u64::from_be_bytes(b),
                (1, Ok(b)) => u64::from_le_bytes(b),
                _ => e.value.as_u64().unwrap_or(0),
            };
            counts[(63 - refs.max(1).leading_zeros()) as usize] += 1;
            lines.push(format!("{:<16} {:<10}", format!("{id}:{offset:x}"), refs));
        }
        if depth == 3 {
            writeln!(out, "\nBRT: vdev {id}: DVAs with 2^n refcnts:")?;
            fmt::histogram(out, &counts, 0)?;
            continue;
        }
        writeln!(out, "\n{:<16} {:<10}", "DVA", "REFCNT")?;
        for line in lines {
            writeln!(out, "{line}")?;
        }
        if depth > 4 {
            for id in 0..=dn.maxblkid {
                let b = set.block(dn, id)?;
                for (i, at) in (0..b.len()).step_by(2).enumerate() {
                    let c = u16_at(&b, at)?;
                    if c != 0 {
                        let per = (dn.block_size() / 2) as u64;
                        let region = (id * per + i as u64).saturating_mul(p.range);
                        writeln!(out, "region {region:#x}: {c} entries")?;
                    }
                }
            }
        }
    }
    Ok(())
}
