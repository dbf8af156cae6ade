//! `-b`, `-c`: walks every block of the pool; counts, verifies, compares with the space maps.

use crate::fmt::{self, DEFERRED, OTHER, ROWS, TOTAL};
use crate::raw::Set;
use crate::{spaces, Log, Session};
use base::sync::MutexExt;
use base::{Error, Kind, RangeSet, Result, Txg};
use disk::dsl::DslDatasetPhys;
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, Dva, ObjType};
use pool::Pool;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::sync::Mutex;
use walk::{Finding, Next, Place, Problem, Visitor};

/// Pointers verified together.
const BATCH: usize = 256;
/// Complaints of one kind that are printed.
const MOST: usize = 20;
/// Gangs within gangs.
const GANG_DEPTH: u32 = 3;
const GANG_HEADER: u64 = 512;
/// Blocks of more than 128 KiB are counted together.
const MOST_SECTORS: usize = 257;

/// What is counted of blocks: of one type and level.
#[derive(Clone, Default)]
struct Sum {
    blocks: u64,
    lsize: u64,
    psize: u64,
    asize: u64,
    /// Addresses that are gangs.
    gangs: u64,
    /// Blocks with several copies on one vdev, and in one metaslab.
    same_vdev: u64,
    same_metaslab: u64,
    /// Blocks by sectors.
    sectors: BTreeMap<usize, u64>,
}

impl Sum {
    fn merge(&mut self, o: Sum) {
        self.blocks += o.blocks;
        self.lsize += o.lsize;
        self.psize += o.psize;
        self.asize += o.asize;
        self.gangs += o.gangs;
        self.same_vdev += o.same_vdev;
        self.same_metaslab += o.same_metaslab;
        for (sectors, n) in o.sectors {
            *self.sectors.entry(sectors).or_default() += n;
        }
    }
}

/// Which block of which object.
#[derive(Clone, Copy, Debug)]
struct At {
    objset: u64,
    object: u64,
    level: i64,
    block: u64,
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "<{}, {}, {}, {:x}>",
            self.objset, self.object as i64, self.level, self.block
        )
    }
}

/// Blocks by the power of two of a size.
struct Sizes([(u64, u64); 64]);

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes([(0, 0); 64])
    }
}

impl Sizes {
    fn add(&mut self, n: u64) {
        let bin = &mut self.0[(63 - n.max(1).leading_zeros()) as usize];
        bin.0 += 1;
        bin.1 += n;
    }
}

struct Walker<'a> {
    s: &'a Session,
    pool: &'a Pool,
    /// Verify data: 0 no, 1 metadata, 2 all, 3 every copy.
    verify: usize,
    /// By level and row of the table; the last level is the sum of all.
    sums: BTreeMap<(u8, usize), Sum>,
    sizes: [Sizes; 3],
    /// Embedded pointers by type and bytes.
    embedded: BTreeMap<u8, BTreeMap<usize, u64>>,
    /// Blocks several pointers may lead to, seen already.
    known: HashSet<(u64, u64)>,
    /// Further pointers to them: bytes and number, by dedup and by cloning.
    deduped: (u64, u64),
    cloned: (u64, u64),
    /// Space of blocks, by vdev.
    seen: BTreeMap<u64, RangeSet>,
    /// Space that may or may not be marked in the maps: logs, trees being destroyed.
    maybe: BTreeMap<u64, RangeSet>,
    /// Blocks that may belong to several files.
    shared_allowed: bool,
    waiting: Vec<(BlkPtr, At)>,
    errors: Vec<(At, i32, String)>,
    shared: Vec<String>,
    /// What is wrong with the structure itself.
    broken: Vec<String>,
    /// In a tree that is being destroyed: what is free already is not counted.
    freed: bool,
    /// Free space of metaslabs looked at.
    free: HashMap<(u64, u64), RangeSet>,
}

/// The row of `all levels`.
const ALL: u8 = u8::MAX;

fn errno(e: &Error) -> i32 {
    match e.kind {
        // EBADE, which OpenZFS uses for wrong checksums.
        Kind::Checksum => 52,
        Kind::Damaged => 52,
        _ => 5,
    }
}

/// Walks and reports.
pub fn walk(s: &Session, out: &mut dyn Write) -> Result<()> {
    let pool = &*s.pool;
    let (depth, verify, compare) = (s.depth('b'), s.times('c'), !s.has('L'));
    let what = match (verify, compare) {
        (0, true) => "to verify nothing leaked ",
        (0, false) => "",
        (1, true) => "to verify metadata checksums and verify nothing leaked ",
        (1, false) => "to verify metadata checksums ",
        (_, true) => "to verify checksums and verify nothing leaked ",
        (_, false) => "to verify checksums ",
    };
    writeln!(out, "\nTraversing all blocks {what}...\n")?;
    out.flush()?;
    let features = pool.feature_store();
    let active = |guid: &str| {
        let list = features.map(|f| f.list()).unwrap_or_default();
        list.iter().any(|(g, count, _)| g == guid && *count > 0)
    };
    let mut w = Walker {
        s,
        pool,
        verify,
        sums: BTreeMap::new(),
        sizes: Default::default(),
        embedded: BTreeMap::new(),
        known: HashSet::new(),
        deduped: (0, 0),
        cloned: (0, 0),
        seen: BTreeMap::new(),
        maybe: BTreeMap::new(),
        shared_allowed: active("com.fudosecurity:block_cloning"),
        waiting: Vec::new(),
        errors: Vec::new(),
        shared: Vec::new(),
        broken: Vec::new(),
        freed: false,
        free: HashMap::new(),
    };
    w.objset(&pool.mos.root(), 0, 0, false);
    w.datasets();
    w.pending();
    w.flush();
    let mut counts = BTreeMap::new();
    for (i, (at, errno, why)) in w.errors.iter().enumerate() {
        *counts.entry(*errno).or_insert(0u64) += 1;
        if i < MOST || s.has('v') {
            writeln!(
                out,
                "zdb_blkptr_cb: Got error {errno} reading {at} {why} -- skipping"
            )?;
        }
    }
    if w.errors.len() > MOST && !s.has('v') {
        writeln!(out, "... and {} more", w.errors.len() - MOST)?;
    }
    if !counts.is_empty() {
        writeln!(out, "\nError counts:\n\n\terrno  count")?;
        for (errno, n) in counts {
            writeln!(out, "\t{errno:5}  {n}")?;
        }
    }
    for (what, list) in [("error", &w.broken), ("space in use twice", &w.shared)] {
        for line in list.iter().take(MOST) {
            writeln!(out, "{what}: {line}")?;
        }
        if list.len() > MOST {
            writeln!(out, "... and {} more", list.len() - MOST)?;
        }
    }
    let leaked = compare && w.compare(out)?;
    w.report(depth, out)?;
    if leaked || !w.shared.is_empty() || !w.broken.is_empty() {
        s.fail(2);
    } else if !w.errors.is_empty() {
        s.fail(3);
    }
    Ok(())
}

/// The blocks of one object set on their way to the sums.
struct Tree<'a, 'b> {
    walker: &'a mut Walker<'b>,
    objset: u64,
    /// Follow the intent log, too.
    log: bool,
}

impl Tree<'_, '_> {
    fn at(&self, p: Place) -> At {
        At {
            objset: self.objset,
            object: p.object,
            level: p.level,
            block: p.blkid,
        }
    }
}

impl Visitor for Tree<'_, '_> {
    fn block(&mut self, at: Place, bp: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
        if !bp.is_redacted() {
            self.walker.visit(bp, self.at(at));
        }
        Ok(Next::Descend)
    }

    fn objset(&mut self, phys: &ObjsetPhys) -> Result<()> {
        if self.log {
            self.walker.log(phys);
        }
        Ok(())
    }

    fn finding(&mut self, f: Finding) -> Result<()> {
        match f.problem {
            Problem::Unreadable(e) => self.walker.unreadable(self.at(f.place), &e),
            Problem::Malformed(e) => {
                let line = format!("object {} of {}: {e}", f.place.object, self.objset);
                self.walker.broken.push(line);
            }
        }
        Ok(())
    }
}

impl Walker<'_> {
    fn unreadable(&mut self, at: At, e: &Error) {
        self.errors.push((at, errno(e), String::new()));
    }

    /// Every dataset and snapshot, wherever it hangs; only what was born in it.
    fn datasets(&mut self) {
        let mut found = Vec::new();
        let mut bad = Vec::new();
        match Set::open(&self.pool.zio, &self.pool.mos.root()) {
            Ok(set) => {
                let each = set.each(
                    &mut |object, dn| {
                        if dn.bonus_type == ObjType::DSL_DATASET {
                            found.push((object, DslDatasetPhys::decode(&dn.bonus)));
                        }
                        Ok(())
                    },
                    // Counted when the tree of the object set itself was walked.
                    &mut |_, _| {},
                );
                if let Err(e) = each {
                    bad.push(e.to_string());
                }
            }
            Err(e) => bad.push(e.to_string()),
        }
        for (object, p) in found {
            match p {
                Ok(p) => self.objset(&p.bp, p.prev_snap_txg, object, !p.is_snapshot()),
                Err(e) => bad.push(format!("dataset {object}: {e}")),
            }
        }
        self.broken.append(&mut bad);
    }

    /// Blocks that nothing refers to any more but that are not free yet.
    fn pending(&mut self) {
        let mos = &self.pool.mos;
        let directory =
            |key: &str| -> Result<Option<u64>> { zap::Zap::new(&mos.hold(1)?).get(key) };
        for (key, counted) in [
            ("free_bpobj", true),
            ("sync_bplist", true),
            ("com.delphix:obsolete_bpobj", false),
        ] {
            let mut list = Vec::new();
            let read = directory(key).and_then(|o| match o {
                Some(o) => dsl::Bpobj::open(mos, o)?.for_each(mos, &mut |bp, _| {
                    list.push(*bp);
                    Ok(())
                }),
                None => Ok(()),
            });
            if let Err(e) = read {
                self.broken.push(format!("{key}: {e}"));
            }
            for bp in list.iter().filter(|_| counted) {
                self.count(bp, DEFERRED);
                self.space(bp, false, key);
            }
        }
        for (what, r) in [
            ("bptree_obj", self.destroyed()),
            ("com.delphix:deleted_clones", self.deleted_clones()),
            ("checkpoint", self.checkpoint()),
            ("removed devices", self.removed()),
        ] {
            if let Err(e) = r {
                self.broken.push(format!("{what}: {e}"));
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
        for i in phys.begin..phys.end.min(phys.begin.saturating_add(1 << 20)) {
            let mut b = [0; BPTREE_ENTRY_SIZE];
            dn.read(i.saturating_mul(BPTREE_ENTRY_SIZE as u64), &mut b)?;
            let e = BptreeEntry::decode(&b)?;
            // What is freed may have been written over: errors mean nothing here.
            let mut below = Walker {
                sums: BTreeMap::new(),
                sizes: Default::default(),
                embedded: BTreeMap::new(),
                known: HashSet::new(),
                seen: BTreeMap::new(),
                maybe: BTreeMap::new(),
                waiting: Vec::new(),
                errors: Vec::new(),
                shared: Vec::new(),
                broken: Vec::new(),
                free: HashMap::new(),
                verify: 0,
                shared_allowed: true,
                ..*self
            };
            below.freed = true;
            below.objset(&e.bp, e.birth_txg, 0, false);
            for (key, s) in below.sums {
                self.sums.entry(key).or_default().merge(s);
            }
            for (to, from) in self.sizes.iter_mut().zip(&below.sizes) {
                for (a, b) in to.0.iter_mut().zip(from.0) {
                    *a = (a.0 + b.0, a.1 + b.1);
                }
            }
            for (kind, sizes) in below.embedded {
                let own = self.embedded.entry(kind).or_default();
                for (bytes, n) in sizes {
                    *own.entry(bytes).or_default() += n;
                }
            }
            for (vdev, ranges) in below.seen {
                let maybe = self.maybe.entry(vdev).or_default();
                for (start, end) in ranges.iter() {
                    maybe.insert(start, end);
                }
            }
        }
        Ok(())
    }

    /// Livelists of clones that were destroyed: what they list and did not free is in use.
    fn deleted_clones(&mut self) -> Result<()> {
        let mos = &self.pool.mos;
        let Some(object) = zap::Zap::new(&mos.hold(1)?).get("com.delphix:deleted_clones")? else {
            return Ok(());
        };
        let mut lists = Vec::new();
        for e in zap::Zap::new(&mos.hold(object)?).iter() {
            lists.push(zap::parse_hex_key(&e?.name)?);
        }
        let mut live = Vec::new();
        for list in lists {
            let mut freed = HashSet::new();
            let mut all = Vec::new();
            dsl::Deadlist::open(mos, list)?.for_each(mos, &mut |bp| {
                all.push(*bp);
                Ok(())
            })?;
            let place = |bp: &BlkPtr| (bp.dva(0).vdev(), bp.dva(0).offset(), bp.birth());
            for bp in &all {
                if disk::dsl::bpobj_entry_is_free(bp) {
                    freed.insert(place(bp));
                }
            }
            live.extend(
                all.into_iter().filter(|bp| {
                    !disk::dsl::bpobj_entry_is_free(bp) && !freed.contains(&place(bp))
                }),
            );
        }
        for bp in live {
            self.count(&bp, DEFERRED);
            self.space(&bp, false, "deleted clone");
        }
        Ok(())
    }

    /// What was freed since the checkpoint is kept for it.
    fn checkpoint(&mut self) -> Result<()> {
        use disk::spacemap::{entries, Entry, SpaceMapPhys};
        let mos = &self.pool.mos;
        for top in self.pool.tree.tops().iter().filter(|t| t.is_concrete()) {
            let Some(z) = top.get_u64("com.delphix:vdev_zap_top").filter(|z| *z != 0) else {
                continue;
            };
            let key = "com.delphix:pool_checkpoint_sm";
            let Some(object) = zap::Zap::new(&mos.hold(z)?).get(key)? else {
                continue;
            };
            let dn = mos.hold(object)?;
            let p = SpaceMapPhys::decode(&dn.bonus())?;
            let i = dn.info();
            let room = i
                .max_blkid
                .saturating_add(1)
                .saturating_mul(i.block_size as u64);
            if p.length > room.min(1 << 32) {
                return Err(Error::damaged("a space map longer than its object"));
            }
            let mut b = vec![0; p.length as usize];
            dn.read(0, &mut b)?;
            let maybe = self.maybe.entry(top.id()).or_default();
            for e in entries(&b) {
                if let Entry::Range(r) = e? {
                    let (from, to) = r.bytes(top.ashift())?;
                    maybe.insert(from, to);
                }
            }
        }
        Ok(())
    }

    /// Where removed devices went: parts of it may be free by now.
    fn removed(&mut self) -> Result<()> {
        for top in self.pool.tree.tops().iter() {
            for d in spaces::moved(self.s, top)? {
                let (start, end) = (d.offset(), d.offset().saturating_add(d.asize()));
                self.maybe.entry(d.vdev()).or_default().insert(start, end);
            }
        }
        Ok(())
    }

    fn objset(&mut self, bp: &BlkPtr, after: Txg, objset: u64, log: bool) {
        let at = At {
            objset,
            object: 0,
            level: -1,
            block: 0,
        };
        if bp.is_hole() {
            return;
        }
        // What a snapshot has is counted there; but the log is that of the head.
        if bp.birth() <= after {
            if log {
                match self.pool.zio.read(bp).and_then(|b| ObjsetPhys::decode(&b)) {
                    Ok(phys) => self.log(&phys),
                    Err(e) => self.unreadable(at, &e),
                }
            }
            return;
        }
        let spec = walk::Spec {
            after,
            ..walk::Spec::all(walk::Order::ParentsFirst)
        };
        let pool = self.pool;
        let mut tree = Tree {
            walker: self,
            objset,
            log,
        };
        if let Err(e) = walk::walk(&pool.zio, bp, &spec, &mut tree) {
            self.broken.push(format!("object set {objset}: {e}"));
        }
    }

    /// Counts a block, notes its space, and has it verified.
    fn visit(&mut self, bp: &BlkPtr, at: At) {
        let row = match bp.obj_type().0 {
            _ if self.freed && !self.is_allocated(bp) => return,
            _ if self.freed => DEFERRED,
            t if t & 0x80 != 0 => OTHER,
            t => usize::from(t).min(OTHER),
        };
        self.count(bp, row);
        if bp.is_embedded() {
            return;
        }
        self.space(bp, false, &at.to_string());
        // Trees are read anyway.
        let metadata = bp.level() > 0 || bp.obj_type().is_metadata();
        if self.verify > 1 || (self.verify > 0 && metadata) {
            self.waiting.push((*bp, at));
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
            let Some((bp, at)) = list.get(i) else {
                return;
            };
            let note = |e: &Error, why: String| {
                let mut errors = errors.acquire();
                errors.push((i, *at, errno(e), why));
            };
            if let Err(e) = zio.read_raw(bp) {
                return note(&e, String::new());
            }
            for copy in 0..bp.dvas().len() {
                if self.verify < 3 || bp.is_gang() {
                    break;
                }
                let mut one = *bp;
                one.set_dva(0, bp.dva(copy));
                one.set_dva(1, Dva::default());
                if !bp.is_encrypted() {
                    one.set_dva(2, Dva::default());
                }
                if let Err(e) = zio.read_raw(&one) {
                    note(&e, format!("copy {copy}"));
                }
            }
        });
        let mut errors = errors.into_inner().unwrap_or_else(|e| e.into_inner());
        errors.sort_by_key(|e| e.0);
        for (_, at, errno, why) in errors {
            // What was met on the way down already is not counted again.
            let same = |e: &(At, i32, String)| {
                let o = e.0;
                let place = |a: At| (a.objset, a.object, a.level, a.block);
                place(o) == place(at) && e.2 == why
            };
            if !self.errors.iter().rev().take(4 * BATCH).any(same) {
                self.errors.push((at, errno, why));
            }
        }
    }

    fn count(&mut self, bp: &BlkPtr, row: usize) {
        let embedded = bp.is_embedded();
        let (lsize, psize, asize) = match embedded {
            true => (bp.lsize() as u64, 0, 0),
            false => (bp.lsize() as u64, bp.psize() as u64, bp.asize()),
        };
        let dvas = bp.dvas();
        let vdev = |i: usize| dvas.get(i).map(Dva::vdev);
        let same_vdev = (0..dvas.len()).any(|i| (0..i).any(|j| vdev(i) == vdev(j)));
        let same_metaslab = same_vdev && self.same_metaslab(&dvas);
        let add = |s: &mut Sum| {
            s.blocks += 1;
            s.lsize += lsize;
            s.psize += psize;
            s.asize += asize;
            s.gangs += dvas.iter().filter(|d| d.is_gang()).count() as u64;
            s.same_vdev += u64::from(same_vdev);
            s.same_metaslab += u64::from(same_metaslab);
            let sectors = (psize >> 9) as usize;
            *s.sectors.entry(sectors.min(MOST_SECTORS)).or_default() += 1;
        };
        for key in [
            (bp.level(), row),
            (ALL, row),
            (bp.level(), TOTAL),
            (ALL, TOTAL),
        ] {
            add(self.sums.entry(key).or_default());
        }
        if embedded {
            let kind = self.embedded.entry(bp.embedded_type()).or_default();
            *kind.entry(bp.psize()).or_default() += 1;
            return;
        }
        for (s, n) in self.sizes.iter_mut().zip([psize, lsize, asize]) {
            s.add(n);
        }
        // Several pointers may lead to blocks of dedup tables and to cloned ones.
        if bp.level() == 0 && (bp.is_dedup() || self.shared_allowed) {
            let d = bp.dva(0);
            if !self.known.insert((d.vdev(), d.offset())) {
                let sum = match bp.is_dedup() {
                    true => &mut self.deduped,
                    false => &mut self.cloned,
                };
                *sum = (sum.0 + asize, sum.1 + 1);
            }
        }
    }

    /// Whether the space maps say so.
    fn is_allocated(&mut self, bp: &BlkPtr) -> bool {
        let d = bp.dva(0);
        if bp.is_embedded() {
            return true;
        }
        let Ok(top) = self.pool.tree.top(d.vdev()) else {
            return false;
        };
        let ms = d.offset().checked_shr(top.metaslab_shift()).unwrap_or(0);
        let pool = self.pool;
        let free = self
            .free
            .entry((d.vdev(), ms))
            .or_insert_with(|| pool.maps.load(d.vdev(), ms).unwrap_or_default());
        !free.overlaps(d.offset(), d.offset() + 512)
    }

    fn same_metaslab(&self, dvas: &[Dva]) -> bool {
        let place = |d: &Dva| {
            let top = self.pool.tree.top(d.vdev()).ok()?;
            Some((d.vdev(), d.offset().checked_shr(top.metaslab_shift())?))
        };
        (0..dvas.len()).any(|i| (0..i).any(|j| place(&dvas[i]) == place(&dvas[j])))
    }

    /// Notes the space of a block; of a gang, of its headers and members.
    fn space(&mut self, bp: &BlkPtr, maybe: bool, what: &str) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        if let Err(e) = bp.sanity(self.pool.tree.tops().len() as u64) {
            return self.broken.push(format!("{what}: {e}"));
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
            self.mark(&d, size, maybe, bp, what, 0);
        }
        if !gang {
            return;
        }
        let header = (0..bp.dvas().len()).find_map(|i| self.pool.zio.gang_header(bp, i).ok());
        match header {
            Some(children) => {
                for c in children.iter().filter(|c| !c.is_hole()) {
                    self.gang(c, maybe, what, depth + 1);
                }
            }
            None => self.broken.push(format!("{what}: gang header of {bp:?}")),
        }
    }

    /// Marks a range; of a removed device, where it went.
    fn mark(&mut self, d: &Dva, size: u64, maybe: bool, bp: &BlkPtr, what: &str, depth: u32) {
        if let (Ok(top), true) = (self.pool.tree.top(d.vdev()), depth < 16) {
            if let Some(map) = top.indirect().filter(|_| !top.is_concrete()) {
                let pieces = map.resolve(d.offset(), size as usize).unwrap_or_default();
                for p in pieces {
                    let to = Dva::new(p.vdev, p.offset, p.len as u64, false);
                    self.mark(&to, p.len as u64, true, bp, what, depth + 1);
                }
                return;
            }
        }
        let (start, end) = (d.offset(), d.offset().saturating_add(size));
        let map = if maybe {
            &mut self.maybe
        } else {
            &mut self.seen
        };
        let new = map.entry(d.vdev()).or_default().insert(start, end);
        if new < size && !maybe && !self.shared_allowed && !bp.is_dedup() {
            self.shared.push(format!("{what}: {}", fmt::bp(bp)));
        }
    }

    /// The chain of log blocks. Those of the last groups are not in the maps.
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
                    walked.acquire().push(bp);
                }
                Ok(true)
            },
        );
        let vdevs = self.pool.tree.tops().len() as u64;
        for bp in found.iter().filter(|b| b.sanity(vdevs).is_ok()) {
            // What an import would claim is not part of the pool yet.
            if bp.logical_birth() < self.pool.first_txg {
                self.count(bp, usize::from(ObjType::INTENT_LOG.0));
            }
            self.gang(bp, true, "log", 0);
        }
        let written = walked.into_inner().unwrap_or_else(|e| e.into_inner());
        for bp in written
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
        let mut lines = 0;
        // What the maps say is in use, and how much of it was not found.
        let (mut alloc, mut missing) = (0, 0);
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
                alloc += leaked.total();
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
                missing += leaked.total() as i64 - lost.total() as i64;
                for (what, set) in [("leaked space", &leaked), ("in use but free", &lost)] {
                    for (s, e) in set.iter() {
                        lines += 1;
                        if lines <= MOST || self.s.has('v') {
                            writeln!(out, "{what}: vdev {vdev}, offset {s:#x}, size {}", e - s)?;
                        }
                    }
                }
            }
        }
        if lines > MOST && !self.s.has('v') {
            writeln!(out, "... and {} more", lines - MOST)?;
        }
        if lines > 0 {
            writeln!(
                out,
                "block traversal size {} != alloc {alloc} (leaked {missing})",
                alloc.saturating_add_signed(-missing)
            )?;
        } else {
            writeln!(out, "\n\tNo leaks (block sum matches space maps exactly)")?;
        }
        Ok(lines > 0)
    }

    fn report(&self, depth: usize, out: &mut dyn Write) -> Result<()> {
        let none = Sum::default();
        let all = self.sums.get(&(ALL, TOTAL)).unwrap_or(&none);
        let per = |n: u64| n / all.blocks.max(1);
        let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        writeln!(out)?;
        writeln!(out, "\t{:<16} {:14}", "bp count:", all.blocks)?;
        writeln!(out, "\t{:<16} {:14}", "ganged count:", all.gangs)?;
        writeln!(
            out,
            "\t{:<16} {:14}      avg: {:6}",
            "bp logical:",
            all.lsize,
            per(all.lsize)
        )?;
        for (name, n) in [("bp physical:", all.psize), ("bp allocated:", all.asize)] {
            writeln!(
                out,
                "\t{name:<16} {n:14}      avg: {:6}     compression: {:6.2}",
                per(n),
                part(all.lsize, n)
            )?;
        }
        writeln!(
            out,
            "\t{:<16} {:14}    ref>1: {:6}   deduplication: {:6.2}",
            "bp deduped:",
            self.deduped.0,
            self.deduped.1,
            part(self.deduped.0, all.asize) + 1.0
        )?;
        writeln!(
            out,
            "\t{:<16} {:14}    count: {:6}",
            "bp cloned:", self.cloned.0, self.cloned.1
        )?;
        let classes = spaces::classes(self.s)?;
        for (bias, name) in [
            ("", "Normal class:"),
            ("special", "Special class"),
            ("dedup", "Dedup class"),
        ] {
            if let Some((n, size)) = classes.get(bias) {
                let used = 100.0 * part(*n, *size);
                writeln!(out, "\t{name:<16} {n:14}     used: {used:5.2}%")?;
            }
        }
        let (n, size) = classes.get(spaces::EMBEDDED_LOG).copied().unwrap_or((0, 0));
        let used = 100.0 * part(n, size);
        writeln!(
            out,
            "\t{:<16} {n:14}     used: {used:5.2}%",
            "Embedded log class"
        )?;
        writeln!(out)?;
        for (kind, sizes) in &self.embedded {
            let n: u64 = sizes.values().sum();
            writeln!(out, "\tadditional, non-pointer bps of type {kind}: {n:10}")?;
            if depth >= 3 {
                writeln!(out, "\t number of (compressed) bytes:  number of bps")?;
                let mut h = [0; disk::blkptr::EMBEDDED_MAX + 1];
                for (bytes, n) in sizes {
                    if let Some(c) = h.get_mut(*bytes) {
                        *c = *n;
                    }
                }
                fmt::histogram(out, &h, 0)?;
            }
        }
        if all.same_vdev > 0 {
            writeln!(out, "\tDittoed blocks on same vdev: {}", all.same_vdev)?;
        }
        if all.same_metaslab > 0 {
            let n = all.same_metaslab;
            writeln!(out, "\tDittoed blocks in same metaslab: {n}")?;
        }
        for top in self.pool.tree.tops().iter() {
            let n = spaces::moved(self.s, top)?.len();
            if n > 0 {
                let id = top.id();
                writeln!(
                    out,
                    "\tindirect vdev id {id} has {n} segments ({n} in memory)"
                )?;
            }
        }
        if depth > 1 {
            self.table(all, depth, out)?;
            self.size_table(out)?;
        }
        Ok(writeln!(out)?)
    }

    /// All of metadata: levels of types that take space, their embedded blocks included.
    fn metadata(&self) -> Sum {
        let mut out = Sum::default();
        for ((level, row), sum) in &self.sums {
            let kind = u8::try_from(*row).map_or(ObjType::NONE, ObjType);
            let meta = *level != ALL && *row < DEFERRED && (*level > 0 || kind.is_metadata());
            if meta && sum.asize > 0 {
                out.merge(sum.clone());
            }
        }
        out
    }

    fn table(&self, all: &Sum, depth: usize, out: &mut dyn Write) -> Result<()> {
        let n = |v| self.s.num.nice(v);
        let part = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        let head = ["Blocks", "LSIZE", "PSIZE", "ASIZE", "  avg", " comp"];
        writeln!(out, "\n{}\t%Total\tType", head.join("\t"))?;
        let row = |s: &Sum, name: String, out: &mut dyn Write| -> Result<()> {
            writeln!(
                out,
                "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:5.2}\t{:6.2}\t{name}",
                n(s.blocks),
                n(s.lsize),
                n(s.psize),
                n(s.asize),
                n(s.asize / s.blocks.max(1)),
                part(s.lsize, s.psize),
                100.0 * part(s.asize, all.asize)
            )?;
            if depth >= 3 && s.gangs > 0 {
                writeln!(out, "\t number of ganged blocks: {}", n(s.gangs))?;
            }
            // Of all metadata there is none.
            if depth >= 4 && !s.sectors.is_empty() {
                writeln!(out, "psize (in 512-byte sectors): number of blocks")?;
                let last = s.sectors.keys().last().copied().unwrap_or(0);
                let mut h = vec![0; last + 1];
                for (sectors, n) in &s.sectors {
                    h[*sectors] = *n;
                }
                fmt::histogram(out, &h, 0)?;
            }
            Ok(())
        };
        for t in 0..ROWS {
            let name = fmt::row_name(t);
            // Nor are blocks a row that are all embedded.
            let Some(total) = self.sums.get(&(ALL, t)).filter(|s| s.asize > 0) else {
                let blank = "     -\t    -\t    -\t    -\t    -\t    -\t     -";
                writeln!(out, "{blank}\t{name}")?;
                continue;
            };
            if depth >= 3 {
                for level in (0..32u8).rev() {
                    let Some(s) = self.sums.get(&(level, t)) else {
                        continue;
                    };
                    if s.asize == 0 || (level == 0 && s.asize == total.asize) {
                        continue;
                    }
                    row(s, format!("    L{level} {name}"), out)?;
                }
            }
            row(total, name.into(), out)?;
        }
        let mut metadata = self.metadata();
        metadata.sectors.clear();
        row(&metadata, "Metadata Total".into(), out)
    }

    fn size_table(&self, out: &mut dyn Write) -> Result<()> {
        let n = |v| self.s.num.nice(v);
        writeln!(out, "\nBlock Size Histogram\n")?;
        writeln!(
            out,
            "  block   psize                lsize                asize"
        )?;
        let head = "Count   Size   Cum.";
        let plain = self.s.num.plain;
        if !plain {
            writeln!(out, "   size   {head}  {head}  {head}")?;
        } else {
            let head = "Count\tSize\tCum.";
            writeln!(out, "size\t{head}\t{head}\t{head}")?;
        }
        let mut sums = [0u64; 3];
        for bin in 9..=24 {
            match plain {
                true => write!(out, "{}", 1u64 << bin)?,
                false => write!(out, "{:>7}:", n(1u64 << bin))?,
            }
            for (s, sum) in self.sizes.iter().zip(&mut sums) {
                let (count, bytes) = s.0[bin];
                *sum += bytes;
                match plain {
                    true => write!(out, "\t{count}\t{bytes}\t{sum}")?,
                    false => write!(out, "{:>7} {:>6} {:>6}", n(count), n(bytes), n(*sum))?,
                }
            }
            writeln!(out)?;
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
