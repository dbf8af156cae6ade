//! `-b`, `-c`: walks every block of the pool; counts, verifies, compares with the space maps.

use base::sizes::nice;
use base::{Block, RangeSet, Result, Txg};
use disk::dsl::DslDatasetPhys;
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, Dva, ObjType};
use pool::Pool;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use zil::LogBlocks;

/// Pointers verified together.
const BATCH: usize = 256;
/// Complaints of one kind that are printed.
const MOST: usize = 20;
/// Gangs within gangs.
const GANG_DEPTH: u32 = 3;
const GANG_HEADER: u64 = 512;

#[derive(Clone, Copy, Default)]
struct Sum {
    blocks: u64,
    lsize: u64,
    psize: u64,
    asize: u64,
}

struct Walker<'a> {
    pool: &'a Pool,
    /// Verify data: 0 no, 1 any copy, 2 every copy.
    verify: usize,
    sums: BTreeMap<(u8, u8), Sum>,
    /// Space of blocks, by vdev.
    seen: BTreeMap<u64, RangeSet>,
    /// Space that may or may not be marked in the maps: logs, trees being destroyed.
    maybe: BTreeMap<u64, RangeSet>,
    /// Blocks that may belong to several files.
    shared_allowed: bool,
    waiting: Vec<(BlkPtr, String)>,
    errors: Vec<String>,
    shared: Vec<String>,
    gangs: u64,
    embedded: u64,
}

/// Walks; gives the exit status.
pub fn walk(
    pool: &Pool,
    depth: usize,
    verify: usize,
    compare: bool,
    out: &mut dyn Write,
) -> Result<u8> {
    writeln!(out, "\nTraversing all blocks...\n")?;
    out.flush()?;
    let features = pool.feature_store();
    let active = |guid: &str| {
        let list = features.map(|f| f.list()).unwrap_or_default();
        list.iter().any(|(g, count, _)| g == guid && *count > 0)
    };
    let mut w = Walker {
        pool,
        verify,
        sums: BTreeMap::new(),
        seen: BTreeMap::new(),
        maybe: BTreeMap::new(),
        shared_allowed: active("com.fudosecurity:block_cloning"),
        waiting: Vec::new(),
        errors: Vec::new(),
        shared: Vec::new(),
        gangs: 0,
        embedded: 0,
    };
    w.objset(&pool.mos.root(), 0, "mos");
    w.datasets();
    w.pending();
    w.flush();
    let mut bad = false;
    for (what, list) in [("error", &w.errors), ("space in use twice", &w.shared)] {
        for line in list.iter().take(MOST) {
            writeln!(out, "{what}: {line}")?;
        }
        if list.len() > MOST {
            writeln!(out, "… and {} more", list.len() - MOST)?;
        }
        bad |= !list.is_empty();
    }
    if active("com.delphix:zpool_checkpoint") {
        writeln!(out, "\tA checkpoint exists: space is not compared.")?;
    } else if compare {
        bad |= w.compare(out)?;
    }
    w.report(depth, out)?;
    Ok(if bad { crate::DAMAGED } else { 0 })
}

impl Walker<'_> {
    /// Every dataset and snapshot, wherever it hangs; only what was born in it.
    fn datasets(&mut self) {
        let mos = &self.pool.mos;
        let mut at = 0;
        loop {
            let found = match mos.next_object(at) {
                Ok(Some(o)) => mos.hold(o),
                Ok(None) => return,
                Err(e) => {
                    self.errors.push(format!("list of objects: {e}"));
                    return;
                }
            };
            let dn = match found {
                Ok(dn) => dn,
                Err(e) => {
                    self.errors.push(format!("object behind {at}: {e}"));
                    at += 1;
                    continue;
                }
            };
            at = dn.object();
            if dn.info().bonus_type != ObjType::DSL_DATASET {
                continue;
            }
            match DslDatasetPhys::decode(&dn.bonus()) {
                Ok(p) => self.objset(&p.bp, p.prev_snap_txg, &format!("dataset {at}")),
                Err(e) => self.errors.push(format!("dataset {at}: {e}")),
            }
        }
    }

    /// Blocks that nothing refers to any more but that are not free yet.
    fn pending(&mut self) {
        let mos = &self.pool.mos;
        let directory =
            |key: &str| -> Result<Option<u64>> { zap::Zap::new(&mos.hold(1)?).get(key) };
        for key in ["free_bpobj", "sync_bplist"] {
            let mut list = Vec::new();
            let read = directory(key).and_then(|o| match o {
                Some(o) => dsl::Bpobj::open(mos, o)?.for_each(mos, &mut |bp, _| {
                    list.push(*bp);
                    Ok(())
                }),
                None => Ok(()),
            });
            if let Err(e) = read {
                self.errors.push(format!("{key}: {e}"));
            }
            for bp in list {
                self.space(&bp, false, key);
            }
        }
        if let Ok(Some(_)) = directory("bptree_obj") {
            if let Err(e) = self.destroyed() {
                self.errors.push(format!("bptree_obj: {e}"));
            }
        }
    }

    /// Trees of destroyed datasets; parts of them are free already.
    fn destroyed(&mut self) -> Result<()> {
        use disk::dsl::{BptreeEntry, BptreePhys, BPTREE_ENTRY_SIZE};
        let mos = &self.pool.mos;
        let Some(object) = zap::Zap::new(&mos.hold(1)?).get("bptree_obj")? else {
            return Ok(());
        };
        let dn = mos.hold(object)?;
        let phys = BptreePhys::decode(&dn.bonus())?;
        for i in phys.begin..phys.end {
            let mut b = [0; BPTREE_ENTRY_SIZE];
            dn.read(i * BPTREE_ENTRY_SIZE as u64, &mut b)?;
            let e = BptreeEntry::decode(&b)?;
            // What is freed may have been written over: errors mean nothing here.
            let mut below = Walker {
                sums: BTreeMap::new(),
                seen: BTreeMap::new(),
                maybe: BTreeMap::new(),
                waiting: Vec::new(),
                errors: Vec::new(),
                shared: Vec::new(),
                verify: 0,
                shared_allowed: true,
                ..*self
            };
            below.objset(&e.bp, e.birth_txg, "destroyed");
            for (vdev, ranges) in below.seen {
                let maybe = self.maybe.entry(vdev).or_default();
                for (start, end) in ranges.iter() {
                    maybe.insert(start, end);
                }
            }
        }
        Ok(())
    }

    fn objset(&mut self, bp: &BlkPtr, after: Txg, what: &str) {
        if bp.is_hole() || bp.birth() <= after {
            return;
        }
        self.count(bp, what);
        let phys = self.pool.zio.read(bp).and_then(|b| ObjsetPhys::decode(&b));
        let phys = match phys {
            Ok(p) => p,
            Err(e) => return self.errors.push(format!("{what}: {e}")),
        };
        self.log(&phys);
        self.dnode(&phys.meta, after, what);
        for (n, special) in phys.special.iter().enumerate() {
            if let Some(dn) = special {
                self.dnode(dn, after, &format!("{what} object -{}", n + 1));
            }
        }
    }

    fn dnode(&mut self, dn: &DnodePhys, after: Txg, what: &str) {
        for (i, bp) in dn.blkptr.iter().enumerate() {
            self.block(bp, dn, i as u64, after, what);
        }
        if let Some(bp) = &dn.spill {
            if !bp.is_hole() && bp.birth() > after {
                self.count(bp, what);
                self.check(bp, what);
            }
        }
    }

    fn block(&mut self, bp: &BlkPtr, dn: &DnodePhys, id: u64, after: Txg, what: &str) {
        if bp.is_hole() || bp.is_redacted() || bp.birth() <= after {
            return;
        }
        self.count(bp, what);
        if bp.level() > 0 {
            match self.pool.zio.read(bp) {
                Ok(b) => {
                    let per = b.len() / disk::BP_SIZE;
                    for i in 0..per {
                        if let Ok(child) = BlkPtr::at(&b, i) {
                            self.block(
                                &child,
                                dn,
                                id.wrapping_mul(per as u64) + i as u64,
                                after,
                                what,
                            );
                        }
                    }
                }
                Err(e) => self.errors.push(format!("{what}: {e}")),
            }
        } else if dn.obj_type == ObjType::DNODE {
            // What leads on is in clear in encrypted datasets as well.
            match self.pool.zio.read_with(bp, &zio::Crypt::Locked) {
                Ok(b) => self.dnodes(&b, id, after, what),
                Err(e) => self.errors.push(format!("{what}: {e}")),
            }
        } else {
            self.check(bp, &format!("{what} block {id}"));
        }
    }

    fn dnodes(&mut self, b: &Block, id: u64, after: Txg, what: &str) {
        let per = (b.len() / 512) as u64;
        let mut slot = 0;
        while slot < per {
            let object = id.wrapping_mul(per).wrapping_add(slot);
            match DnodePhys::decode(&b[slot as usize * 512..]) {
                Ok(Some(dn)) => {
                    self.dnode(&dn, after, &format!("{what} object {object}"));
                    slot += (dn.slots as u64).max(1);
                }
                Ok(None) => slot += 1,
                Err(e) => {
                    self.errors.push(format!("{what} object {object}: {e}"));
                    slot += 1;
                }
            }
        }
    }

    /// Reads data later, many blocks at a time.
    fn check(&mut self, bp: &BlkPtr, what: &str) {
        if self.verify > 0 && !bp.is_embedded() {
            self.waiting.push((*bp, what.to_string()));
            if self.waiting.len() >= BATCH {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let list = std::mem::take(&mut self.waiting);
        let errors = Mutex::new(Vec::new());
        let zio = &self.pool.zio;
        self.pool.env.cpu.par_io(list.len(), &|i| {
            let Some((bp, what)) = list.get(i) else {
                return;
            };
            let copies = if self.verify > 1 { bp.dvas().len() } else { 1 };
            for copy in 0..copies {
                let mut one = *bp;
                if self.verify > 1 && !bp.is_gang() {
                    one.set_dva(0, bp.dva(copy));
                    one.set_dva(1, Dva::default());
                    one.set_dva(2, Dva::default());
                }
                if let Err(e) = zio.read_raw(&one, 0) {
                    let line = format!("{what}: {e}");
                    errors.lock().unwrap_or_else(|e| e.into_inner()).push(line);
                }
            }
        });
        self.errors
            .append(&mut errors.into_inner().unwrap_or_else(|e| e.into_inner()));
    }

    fn count(&mut self, bp: &BlkPtr, what: &str) {
        let s = self.sums.entry((bp.obj_type().0, bp.level())).or_default();
        s.blocks += 1;
        s.lsize += bp.lsize() as u64;
        if bp.is_embedded() {
            self.embedded += 1;
            return;
        }
        s.psize += bp.psize() as u64;
        s.asize += bp.asize();
        self.space(bp, false, what);
    }

    /// Notes the space of a block; of a gang, of its headers and members.
    fn space(&mut self, bp: &BlkPtr, maybe: bool, what: &str) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        if let Err(e) = bp.sanity(self.pool.tree.tops().len() as u64) {
            return self.errors.push(format!("{what}: {e}"));
        }
        self.gang(bp, maybe, what, 0);
    }

    fn gang(&mut self, bp: &BlkPtr, maybe: bool, what: &str, depth: u32) {
        let gang = bp.is_gang() && depth <= GANG_DEPTH;
        for d in bp.dvas() {
            let size = match (gang, self.pool.tree.top(d.vdev())) {
                (true, Ok(top)) => top.asize_for(GANG_HEADER),
                _ => d.asize(),
            };
            self.mark(&d, size, maybe, bp, what);
        }
        if !gang {
            return;
        }
        self.gangs += 1;
        let header = (0..bp.dvas().len()).find_map(|i| self.pool.zio.gang_header(bp, i).ok());
        match header {
            Some(children) => {
                for c in children.iter().filter(|c| !c.is_hole()) {
                    self.gang(c, maybe, what, depth + 1);
                }
            }
            None => self.errors.push(format!("{what}: gang header of {bp:?}")),
        }
    }

    fn mark(&mut self, d: &Dva, size: u64, maybe: bool, bp: &BlkPtr, what: &str) {
        let (start, end) = (d.offset(), d.offset() + size);
        let map = if maybe {
            &mut self.maybe
        } else {
            &mut self.seen
        };
        let new = map.entry(d.vdev()).or_default().insert(start, end);
        if new < size && !maybe && !self.shared_allowed && !bp.is_dedup() {
            self.shared.push(format!("{what}: {bp:?}"));
        }
    }

    /// The chain of log blocks. Unclaimed ones are not in the maps.
    fn log(&mut self, phys: &ObjsetPhys) {
        let Ok(h) = disk::zil::ZilHeader::decode(&phys.zil_header) else {
            return;
        };
        let mut found = Vec::new();
        let walked = Mutex::new(Vec::new());
        let _ = zil::walk(
            &Log(self.pool),
            &h.log,
            (u64::MAX, u64::MAX),
            &mut |bp| {
                found.push(*bp);
                Ok(true)
            },
            &mut |r| {
                if let Some(bp) = r.write_bp() {
                    walked.lock().unwrap_or_else(|e| e.into_inner()).push(bp);
                }
                Ok(true)
            },
        );
        found.append(&mut walked.into_inner().unwrap_or_else(|e| e.into_inner()));
        let vdevs = self.pool.tree.tops().len() as u64;
        for bp in found
            .iter()
            .filter(|b| !b.is_hole() && b.sanity(vdevs).is_ok())
        {
            self.gang(bp, true, "log", 0);
        }
    }

    /// What the space maps say is in use, and what was found to be.
    fn compare(&self, out: &mut dyn Write) -> Result<bool> {
        let none = RangeSet::new();
        let (mut leaked, mut lost) = (RangeSet::new(), RangeSet::new());
        let mut bad = false;
        let mut lines = 0;
        for top in self.pool.tree.tops().iter().filter(|t| t.is_concrete()) {
            let vdev = top.id();
            let seen = self.seen.get(&vdev).unwrap_or(&none);
            let maybe = self.maybe.get(&vdev).unwrap_or(&none);
            for ms in 0..self.pool.space.metaslab_count(vdev) {
                let (start, end) = self.pool.space.metaslab_bounds(vdev, ms)?;
                let free = self.pool.maps.load(vdev, ms)?;
                leaked.clear();
                for (s, e) in free.gaps(start, end) {
                    leaked.insert(s, e);
                }
                for set in [seen, maybe] {
                    for (s, e) in parts(set, start, end) {
                        leaked.remove(s, e);
                    }
                }
                lost.clear();
                for (s, e) in parts(seen, start, end) {
                    for (fs, fe) in parts(&free, s, e) {
                        lost.insert(fs, fe);
                    }
                }
                for (what, set) in [("leaked space", &leaked), ("in use but free", &lost)] {
                    for (s, e) in set.iter() {
                        bad = true;
                        lines += 1;
                        if lines <= MOST {
                            writeln!(out, "{what}: vdev {vdev}, offset {s:#x}, size {:#x}", e - s)?;
                        }
                    }
                }
            }
        }
        if bad {
            writeln!(
                out,
                "\n\tblock traversal and space maps differ in {lines} places"
            )?;
        } else {
            writeln!(out, "\n\tNo leaks (block sum matches space maps exactly)")?;
        }
        Ok(bad)
    }

    fn report(&self, depth: usize, out: &mut dyn Write) -> Result<()> {
        let mut all = Sum::default();
        for s in self.sums.values() {
            all.blocks += s.blocks;
            all.lsize += s.lsize;
            all.psize += s.psize;
            all.asize += s.asize;
        }
        let per = |n: u64| n / all.blocks.max(1);
        writeln!(out)?;
        writeln!(out, "\tbp count:       {:>15}", all.blocks)?;
        writeln!(out, "\tganged count:   {:>15}", self.gangs)?;
        writeln!(out, "\tembedded count: {:>15}", self.embedded)?;
        for (name, n) in [
            ("logical", all.lsize),
            ("physical", all.psize),
            ("allocated", all.asize),
        ] {
            writeln!(out, "\tbp {name:<10}   {n:>15}      avg: {:>6}", per(n))?;
        }
        if depth > 1 {
            writeln!(out, "\nBlocks\tLSIZE\tPSIZE\tASIZE\tLevel\tType")?;
            for ((ty, level), s) in &self.sums {
                let n = |v| nice(v, false);
                writeln!(
                    out,
                    "{:>6}\t{:>5}\t{:>5}\t{:>5}\tL{level}\t{}",
                    n(s.blocks),
                    n(s.lsize),
                    n(s.psize),
                    n(s.asize),
                    ObjType(*ty).name()
                )?;
            }
        }
        Ok(())
    }
}

/// The ranges of a set inside `start..end`, cut to it.
fn parts(set: &RangeSet, start: u64, end: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut at = start;
    while let Some((s, e)) = set.next_from(at) {
        if s >= end {
            break;
        }
        out.push((s.max(start), e.min(end)));
        at = e;
        if e >= end {
            break;
        }
    }
    out
}

/// Log blocks, to be read only.
struct Log<'a>(&'a Pool);

impl LogBlocks for Log<'_> {
    fn read_block(&self, bp: &BlkPtr, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>> {
        let devices = &self.0.zio.devices;
        bp.sanity(devices.vdevs())?;
        devices.probe(&bp.dva(0), bp.psize(), bp.physical_birth(), verify)
    }

    fn read_data(&self, bp: &BlkPtr) -> Result<Block> {
        self.0.zio.read(bp)
    }

    fn claim(&self, _: &BlkPtr, _: Txg) -> Result<()> {
        base::bail!(ReadOnly, "zdb does not write")
    }

    fn free(&self, _: &BlkPtr, _: Txg) -> Result<()> {
        base::bail!(ReadOnly, "zdb does not write")
    }
}
