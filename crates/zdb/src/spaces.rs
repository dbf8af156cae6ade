//! `-m`, `-M`: metaslabs, their space maps, the logs of space maps.

use crate::fmt;
use crate::raw::Set;
use crate::Session;
use base::{Error, RangeSet, Result, Txg};
use disk::bytes::u64_at;
use disk::mos_keys;
use disk::spacemap::{entries, Entry, SpaceMapPhys, HISTOGRAM_SIZE};
use disk::{DnodePhys, Dva};
use std::collections::BTreeMap;
use std::io::Write;
use vdev::{Vdev, VdevKind};
use zap::Zap;

/// Longest space map that is read.
const MAX_MAP: u64 = 1 << 32;
/// Percent that free space in segments of 2^(9+i) bytes counts as fragmented, as OpenZFS 2.3 has it; 0
/// for larger ones.
const WEIGHTS: [u64; 20] = [
    100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 8, 5, 2,
];

/// What OpenZFS shows as the vdev of entries that name none.
const NO_VDEV: u32 = 1 << 24;
/// OpenZFS keeps free segments by their size from this size on, and counts those it keeps.
const KEPT_BY_SIZE: u64 = 16 << 10;

const RULE: &str = "\t---------------   -------------------   ---------------   ------------";

/// One space map: its header, and its entries when asked for.
struct Map {
    object: u64,
    phys: SpaceMapPhys,
    dn: DnodePhys,
}

impl Map {
    fn open(set: &Set, object: u64) -> Result<Map> {
        let dn = set
            .dnode(object)?
            .ok_or_else(|| Error::damaged(format!("no space map {object}")))?;
        Ok(Map {
            object,
            phys: SpaceMapPhys::decode(&dn.bonus)?,
            dn,
        })
    }

    /// Calls `f` with every entry and its words. One block of the map is in memory at a time.
    fn each(&self, set: &Set, f: &mut dyn FnMut(Entry, usize) -> Result<()>) -> Result<()> {
        let block = self.dn.block_size() as u64;
        let room = self.dn.maxblkid.saturating_add(1).saturating_mul(block);
        let (object, length) = (self.object, self.phys.length);
        if length > room.min(MAX_MAP) {
            base::bail!(Damaged, "space map {object} claims {length} bytes");
        }
        for id in 0..length.div_ceil(block) {
            let left = (length - id * block).min(block) as usize;
            let b = set.block(&self.dn, id)?;
            // Two words of zeros would allocate the first unit twice.
            let b = match b.is_empty() {
                true if left > 8 => {
                    base::bail!(Damaged, "block {id} of space map {object} is a hole")
                }
                true => &[0; 8][..left],
                false => b.get(..left).unwrap_or(&b),
            };
            let mut all = entries(b);
            loop {
                let at = all.position();
                let Some(e) = all.next() else { break };
                f(e?, (all.position() - at) / 8)?;
            }
        }
        Ok(())
    }

    fn header(&self, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "space map object {}:", self.object)?;
        writeln!(out, "  smp_length = {:#x}", self.phys.length)?;
        Ok(writeln!(out, "  smp_alloc = {:#x}", self.phys.alloc)?)
    }

    /// Every entry, numbered. `start` is where the region of the map begins.
    fn list(&self, set: &Set, shift: u32, start: u64, out: &mut dyn Write) -> Result<()> {
        let mut i = 0;
        self.each(set, &mut |e, words| {
            match e {
                Entry::Debug {
                    txg: Txg::NONE,
                    pass: 0,
                    ..
                } => {
                    writeln!(out, "\t    [{i:6}] PADDING")?;
                }
                Entry::Debug { free, pass, txg } => {
                    let what = if free { "FREE" } else { "ALLOC" };
                    writeln!(out, "\t    [{i:6}] {what}: txg {txg} pass {pass}")?;
                }
                Entry::Range(r) => {
                    let (from, to) = r.bytes(shift)?;
                    let what = if r.free { "F" } else { "A" };
                    writeln!(
                        out,
                        "\t    [{i:6}]    {what}  range: {:010x}-{:010x}  size: {:06x} vdev: {:06} words: {}",
                        start.wrapping_add(from),
                        start.wrapping_add(to),
                        to - from,
                        if words == 1 { NO_VDEV } else { r.vdev },
                        words
                    )?;
                }
            }
            i += 1;
            Ok(())
        })
    }
}

/// Start and end of a metaslab: those of dRAID begin and end with a row.
fn bounds(s: &Session, t: &Top, i: usize) -> (u64, u64) {
    let even = 1u64 << t.ms_shift.min(40);
    match s.pool.space().metaslab_bounds(t.id, i as u64) {
        Ok(bounds) => bounds,
        Err(_) => (even * i as u64, even * (i as u64 + 1)),
    }
}

/// Percent; 0 if nothing is free.
fn fragmentation(histogram: &[u64; HISTOGRAM_SIZE], shift: u32) -> u64 {
    let (mut total, mut weighted) = (0u128, 0u128);
    for (i, n) in histogram.iter().enumerate() {
        let log = i as u32 + shift;
        let space = u128::from(*n) << log.min(63);
        let weight = WEIGHTS.get((log as usize).saturating_sub(9)).unwrap_or(&0);
        total += space;
        weighted += space * u128::from(*weight);
    }
    match total {
        0 => 0,
        t => (weighted / t) as u64,
    }
}

/// Where the maps of one top-level vdev are.
struct Top {
    id: u64,
    ashift: u32,
    ms_shift: u32,
    /// Maps of its metaslabs; 0 = none yet.
    maps: Vec<u64>,
    /// The object that holds, for each, the txg from which on logs count; 0 = no logs.
    unflushed_object: u64,
    unflushed: Vec<u64>,
    bias: &'static str,
}

fn numbers(set: &Set, object: u64, count: usize) -> Result<Vec<u64>> {
    let mut out = Vec::new();
    if object != 0 {
        let dn = set
            .dnode(object)?
            .ok_or_else(|| Error::damaged(format!("no object {object}")))?;
        let per = (dn.block_size() / 8).max(1);
        for id in 0..count.div_ceil(per) as u64 {
            let b = set.block(&dn, id)?;
            out.extend(b.chunks_exact(8).map(|w| u64_at(w, 0).unwrap_or(0)));
            out.resize((id as usize + 1) * per, 0);
        }
    }
    out.resize(count, 0);
    Ok(out)
}

impl Top {
    fn open(s: &Session, set: &Set, v: &Vdev) -> Result<Top> {
        let count = match v.is_concrete() {
            true => v.metaslab_count().min(1 << 24) as usize,
            false => 0,
        };
        let mut unflushed_object = 0;
        let mut bias = None;
        if let Some(z) = v.get_u64(vdev::keys::ZAP_TOP).filter(|z| *z != 0) {
            let dn = s.pool.mos().hold(z)?;
            unflushed_object = Zap::new(&*dn).get(mos_keys::UNFLUSHED_TXGS)?.unwrap_or(0);
            bias = Zap::new(&*dn)
                .get_value(mos_keys::ALLOCATION_BIAS)?
                .map(|b| {
                    String::from_utf8_lossy(&b.data)
                        .trim_end_matches('\0')
                        .to_string()
                });
        }
        let bias = match bias.as_deref() {
            Some("special") => "special",
            Some("dedup") => "dedup",
            _ if v.is_log() => "log",
            _ => "",
        };
        Ok(Top {
            id: v.id(),
            ashift: v.ashift(),
            ms_shift: v.metaslab_shift(),
            maps: numbers(set, v.metaslab_array(), count)?,
            unflushed_object,
            unflushed: numbers(set, unflushed_object, count)?,
            bias,
        })
    }

    fn head(&self, out: &mut dyn Write) -> Result<()> {
        write!(out, "\tvdev {:10}   ", self.id)?;
        if !self.bias.is_empty() {
            write!(out, "{}   ", self.bias)?;
        }
        if self.unflushed_object != 0 {
            write!(out, "   ms_unflushed_phys object {}", self.unflushed_object)?;
        }
        writeln!(
            out,
            "\n\t{:<10}{:5}   {:<19}   {:<15}   {:<12}",
            "metaslabs",
            self.maps.len(),
            "offset",
            "spacemap",
            "free"
        )?;
        Ok(writeln!(out, "{RULE}")?)
    }
}

/// `-m [vdev [metaslab…]]`.
pub fn show(s: &Session, operands: &[String], out: &mut dyn Write) -> Result<()> {
    let depth = s.depth('m');
    let set = Set::open(s.pool.zio(), &s.pool.mos().root())?;
    let wanted = operands
        .iter()
        .map(|o| s.number(o))
        .collect::<Result<Vec<u64>>>()?;
    writeln!(out, "\nMetaslabs:")?;
    let mut tops = BTreeMap::new();
    for v in s.pool.tree().tops().iter() {
        if v.kind() == VdevKind::Hole || v.kind() == VdevKind::Missing {
            continue;
        }
        let t = match Top::open(s, &set, v) {
            Ok(t) => t,
            Err(e) => {
                s.complain(out, &format!("\tvdev {}: {e}", v.id()), 2)?;
                continue;
            }
        };
        if wanted.first().is_none_or(|w| *w == v.id()) {
            one(
                s,
                &set,
                v,
                &t,
                wanted.get(1..).unwrap_or_default(),
                depth,
                out,
            )?;
        }
        tops.insert(v.id(), t);
    }
    if let Some(w) = wanted.first().filter(|w| !tops.contains_key(w)) {
        base::bail!(Invalid, "there is no vdev {w}");
    }
    if wanted.is_empty() {
        logs(s, &set, &tops, depth, out)?;
    }
    Ok(())
}

fn one(
    s: &Session,
    set: &Set,
    v: &Vdev,
    t: &Top,
    only: &[u64],
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    t.head(out)?;
    if let Some(bad) = only.iter().find(|m| **m >= t.maps.len() as u64) {
        base::bail!(Invalid, "vdev {} has no metaslab {bad}", t.id);
    }
    if v.kind() == VdevKind::Indirect || v.get_u64(vdev::keys::INDIRECT_OBJECT).is_some() {
        if let Err(e) = indirect(s, set, v, depth, out) {
            s.complain(out, &format!("indirect mapping: {e}"), 2)?;
        }
    }
    for (i, object) in t.maps.iter().enumerate() {
        if !only.is_empty() && !only.contains(&(i as u64)) {
            continue;
        }
        if let Err(e) = metaslab(s, set, t, i, *object, depth, out) {
            s.complain(out, &format!("\tmetaslab {i:6}   {e}"), 2)?;
        }
    }
    Ok(writeln!(out)?)
}

fn metaslab(
    s: &Session,
    set: &Set,
    t: &Top,
    i: usize,
    object: u64,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let map = match object {
        0 => None,
        o => Some(Map::open(set, o)),
    };
    let map = map.transpose()?;
    let (start, end) = bounds(s, t, i);
    let size = end.saturating_sub(start);
    let allocated = map.as_ref().map_or(0, |m| m.phys.alloc.max(0) as u64);
    writeln!(
        out,
        "\tmetaslab {i:6}   offset {start:12x}   spacemap {object:6}   free    {:>5}",
        s.num.nice(size.saturating_sub(allocated))
    )?;
    if depth > 2 {
        // As the map has it, without the logs of what came after: so is the room in the line above.
        let mut free = RangeSet::new();
        free.insert(0, size);
        if let Some(m) = &map {
            m.each(set, &mut |e, _| {
                let Entry::Range(r) = e else { return Ok(()) };
                match (r.bytes(t.ashift)?, r.free) {
                    ((a, b), true) => free.insert(a, b),
                    ((a, b), false) => free.remove(a, b),
                };
                Ok(())
            })?;
        }
        let mut h = [0; HISTOGRAM_SIZE];
        let (mut largest, mut kept) = (0, 0);
        for (a, b) in free.iter() {
            SpaceMapPhys::histogram_add(&mut h, t.ashift, b - a);
            largest = (b - a).max(largest);
            kept += usize::from(b - a >= KEPT_BY_SIZE);
        }
        if kept == 0 {
            kept = free.len();
        }
        writeln!(
            out,
            "\t {:>25} {:10}   {:<7} {:>6}   {:<7} {:>4}%",
            "segments",
            kept,
            "maxsize",
            s.num.nice(largest),
            "freepct",
            free.total() * 100 / size.max(1)
        )?;
        writeln!(out, "\tIn-memory histogram:")?;
        fmt::histogram(out, &h, t.ashift as usize)?;
    }
    if let (true, Some(m)) = (depth > 1, &map) {
        if let Some(h) = &m.phys.histogram {
            let f = fragmentation(h, t.ashift);
            writeln!(out, "\tOn-disk histogram:\t\tfragmentation {f}")?;
            fmt::histogram(out, &h[..], t.ashift as usize)?;
        }
    }
    if let Some(m) = &map {
        m.header(out)?;
        if depth > 3 {
            m.list(set, t.ashift, start, out)?;
        }
    }
    if t.unflushed_object != 0 {
        let txg = t.unflushed.get(i).copied().unwrap_or(0);
        writeln!(out, "\tFlush data:\n\tunflushed txg={txg}\n")?;
    }
    Ok(())
}

fn indirect(s: &Session, set: &Set, v: &Vdev, depth: usize, out: &mut dyn Write) -> Result<()> {
    let open = |key: &str| -> Result<Option<(u64, DnodePhys)>> {
        match v.get_u64(key).filter(|o| *o != 0) {
            Some(o) => Ok(set.dnode(o)?.map(|d| (o, d))),
            None => Ok(None),
        }
    };
    if let Some((o, dn)) = open("com.delphix:indirect_births")? {
        let count = u64_at(&dn.bonus, 0)?;
        writeln!(out, "indirect births obj {o}:\n    vib_count = {count}")?;
        let words = numbers(set, o, (count.min(1 << 20) * 2) as usize)?;
        for b in words.chunks_exact(2).take(count as usize) {
            writeln!(out, "\toffset {:x} -> txg {}", b[0], b[1])?;
        }
        writeln!(out)?;
    }
    if let Some((o, dn)) = open(vdev::keys::INDIRECT_OBJECT)? {
        let word = |i: usize| u64_at(&dn.bonus, 8 * i);
        writeln!(out, "indirect mapping obj {o}:")?;
        writeln!(out, "    vim_max_offset = {:#x}", word(0)?)?;
        writeln!(out, "    vim_bytes_mapped = {:#x}", word(1)?)?;
        writeln!(out, "    vim_count = {}", word(2)?)?;
        if depth > 3 {
            let count = word(2)?.min(1 << 24) as usize;
            let words = numbers(set, o, count * 3)?;
            let counts = obsolete(set, &dn, count)?;
            for (e, gone) in words.chunks_exact(3).zip(counts) {
                let d = Dva {
                    word0: e[1],
                    word1: e[2],
                };
                writeln!(
                    out,
                    "\t<{:x}:{:x}:{:x}> -> <{:x}:{:x}:{:x}> ({gone:x} obsolete)",
                    v.id(),
                    (e[0] & !(1 << 63)) << 9,
                    d.asize(),
                    d.vdev(),
                    d.offset(),
                    d.asize()
                )?;
            }
            if let Some(m) = obsolete_map(s, set, v)? {
                writeln!(out, "\nobsolete space map object {}:", m.object)?;
                m.header(out)?;
                m.list(set, 0, 0, out)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The map of what is no longer referred to on a removed vdev; its units are bytes.
fn obsolete_map(s: &Session, set: &Set, v: &Vdev) -> Result<Option<Map>> {
    let Some(z) = v.get_u64(vdev::keys::ZAP_TOP).filter(|z| *z != 0) else {
        return Ok(None);
    };
    let map = Zap::new(&*s.pool.mos().hold(z)?).get(mos_keys::OBSOLETE_SPACEMAP)?;
    map.map(|o| Map::open(set, o)).transpose()
}

/// Bytes of each of the `n` entries of a mapping that are counted as no longer referred to; what is in
/// the map is not counted yet.
fn obsolete(set: &Set, dn: &DnodePhys, n: usize) -> Result<Vec<u64>> {
    let object = u64_at(&dn.bonus, 24).unwrap_or(0);
    let words = numbers(set, object, n.div_ceil(2))?;
    let two = |w: u64| [w & 0xffff_ffff, w >> 32];
    Ok(words.into_iter().flat_map(two).collect())
}

/// The logs of space maps, and how many of their entries still count.
fn logs(
    s: &Session,
    set: &Set,
    tops: &BTreeMap<u64, Top>,
    depth: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let directory = s.pool.mos().hold(1)?;
    let Some(object) = Zap::new(&*directory).get(mos_keys::LOG_SPACEMAP_ZAP)? else {
        return Ok(());
    };
    let mut list = BTreeMap::new();
    for e in Zap::new(&*s.pool.mos().hold(object)?).iter() {
        let e = e?;
        list.insert(zap::parse_hex_key(&e.name)?, e.value.to_u64()?);
    }
    writeln!(out, "\nLog Space Maps in Pool:")?;
    let mut lines = Vec::new();
    let mut sums = (0u64, 0u64);
    for (txg, object) in list {
        writeln!(out, "Log Spacemap object {object} txg {txg}")?;
        let map = Map::open(set, object)?;
        map.header(out)?;
        let (mut valid, mut all) = (0u64, 0u64);
        map.each(set, &mut |e, _| {
            let Entry::Range(r) = e else { return Ok(()) };
            all += 1;
            let Some(t) = tops.get(&u64::from(r.vdev)) else {
                return Ok(());
            };
            let (from, _) = r.bytes(base::SECTOR_SHIFT)?;
            let ms = from.checked_shr(t.ms_shift).unwrap_or(0) as usize;
            let since = t.unflushed.get(ms).copied().unwrap_or(0);
            valid += u64::from(since != 0 && txg >= since);
            Ok(())
        })?;
        if depth > 3 {
            map.list(set, 9, 0, out)?;
        }
        sums = (sums.0 + valid, sums.1 + all);
        lines.push(format!(
            "{valid:<8} valid entries out of {all:<8} - txg {txg}"
        ));
    }
    writeln!(out, "\nLog Space Map Obsolete Entry Statistics:")?;
    for line in lines {
        writeln!(out, "{line}")?;
    }
    let (valid, all) = sums;
    writeln!(out, "{valid:<8} valid entries out of {all:<8} - total\n")?;
    Ok(())
}

/// The row of metaslabs that are kept for the intent log, in [`classes`].
pub const EMBEDDED_LOG: &str = "embedded log";

/// Bytes in use according to the space maps, without their logs, and in all: by class.
pub fn classes(s: &Session) -> Result<BTreeMap<&'static str, (u64, u64)>> {
    let set = Set::open(s.pool.zio(), &s.pool.mos().root())?;
    let mut out: BTreeMap<&'static str, (u64, u64)> = BTreeMap::new();
    for v in s.pool.tree().tops().iter().filter(|v| v.is_concrete()) {
        let t = Top::open(s, &set, v)?;
        for (i, object) in t.maps.iter().enumerate() {
            let kept = s.pool.space().is_embedded_log(t.id, i as u64);
            let class = if kept { EMBEDDED_LOG } else { t.bias };
            let sum = out.entry(class).or_default();
            let (start, end) = bounds(s, &t, i);
            sum.1 += end.saturating_sub(start);
            if *object != 0 {
                sum.0 += Map::open(&set, *object)?.phys.alloc.max(0) as u64;
            }
        }
    }
    Ok(out)
}

/// `-M`: sums over the metaslabs of each vdev and of the pool.
pub fn groups(s: &Session, out: &mut dyn Write) -> Result<()> {
    let depth = s.depth('M');
    let set = Set::open(s.pool.zio(), &s.pool.mos().root())?;
    let mut pool = [0u64; 64];
    let (mut weighted, mut weight) = (0u64, 0u64);
    for v in s.pool.tree().tops().iter().filter(|v| v.is_concrete()) {
        let t = Top::open(s, &set, v)?;
        // OpenZFS has special devices in it, too, without saying so, and no others.
        if !(t.bias.is_empty() || t.bias == "special" && depth > 1) {
            continue;
        }
        let mut h = [0u64; 64];
        // Metaslabs count by what is free in them.
        let (mut sum, mut all) = (0u128, 0u128);
        for object in &t.maps {
            let size = 1u64 << t.ms_shift.min(40);
            if *object == 0 {
                all += u128::from(size);
                continue;
            }
            let phys = Map::open(&set, *object)?.phys;
            let free = u128::from(size.saturating_sub(phys.alloc.max(0) as u64));
            all += free;
            let Some(m) = phys.histogram else {
                continue;
            };
            sum += u128::from(fragmentation(&m, t.ashift)) * free;
            for (i, n) in m.iter().enumerate() {
                h[(i + t.ashift as usize).min(63)] += n;
            }
        }
        let f = (sum / all.max(1)) as u64;
        write!(out, "\tvdev {:10}\t", t.id)?;
        writeln!(out, "\tmetaslabs{:5}\t\tfragmentation{f:3}%", t.maps.len())?;
        fmt::histogram(out, &h, 0)?;
        if t.bias.is_empty() {
            for (a, b) in pool.iter_mut().zip(h) {
                *a += b;
            }
            let size = (t.maps.len() as u64) << t.ms_shift.min(40);
            weighted += f * (size >> 9);
            weight += size >> 9;
        }
    }
    let name = s.pool.name();
    writeln!(
        out,
        "\tpool {name}\tfragmentation{:3}%",
        weighted / weight.max(1)
    )?;
    Ok(fmt::histogram(out, &pool, 0)?)
}
