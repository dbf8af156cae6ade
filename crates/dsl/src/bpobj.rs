//! Lists of block pointers (data format §8.1).

use crate::triple::{bump, Triple};
use base::{bail, Error, Kind, Result};
use disk::bytes::u64_at;
use disk::dsl::{bpobj_entry, bpobj_entry_is_free, BpobjPhys};
use disk::{BlkPtr, Compression, ObjType, BP_SIZE};
use dmu::{Dnode, NewObject, Objset, Tx};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Block size of bpobjs and of their sub-object lists.
pub(crate) const BLOCK: usize = 128 << 10;
/// Deepest nesting of sub-objects that is followed.
const MAX_DEPTH: usize = 64;

/// An open bpobj. Not shared: whoever changes it holds its owner's lock or is the syncing thread.
pub struct Bpobj {
    dn: Arc<Dnode>,
    /// The bonus: sums and sub-objects.
    pub phys: BpobjPhys,
}

/// The list of a bpobj's sub-objects. One block of it is in memory at a time.
struct Subobjs {
    dn: Arc<Dnode>,
    count: u64,
    block: Option<(u64, base::Block)>,
}

impl Subobjs {
    /// Numbers in a block.
    fn per(&self) -> u64 {
        (self.dn.info().block_size / 8) as u64
    }

    /// The `i`-th sub-object; 0 where the list has a hole.
    fn number(&mut self, i: u64) -> Result<u64> {
        let (blk, at) = (i / self.per(), (i % self.per()) as usize * 8);
        let block = match &self.block {
            Some((b, block)) if *b == blk => block,
            _ => &self.block.insert((blk, self.dn.block(blk)?)).1,
        };
        u64_at(block, at)
    }

    /// The `i`-th sub-object. `Damaged`: the list has a hole there.
    fn get(&mut self, i: u64) -> Result<u64> {
        match self.number(i)? {
            0 => bail!(Damaged, "list {} of bpobjs has a hole", self.dn.object()),
            object => Ok(object),
        }
    }

    /// All of them, if they are in one block.
    fn if_one_block(list: Option<Subobjs>) -> Result<Option<(Arc<Dnode>, Vec<u64>)>> {
        let Some(mut list) = list.filter(|l| l.count <= l.per()) else {
            return Ok(None);
        };
        let all = (0..list.count)
            .map(|i| list.get(i))
            .collect::<Result<_>>()?;
        Ok(Some((list.dn, all)))
    }
}

/// Whether a list, or its dnode, is damaged or gone.
pub(crate) fn is_unreadable(e: &Error) -> bool {
    e.is_damage() || e.kind == Kind::NotFound
}

impl Bpobj {
    /// Opens the list in MOS object `object`. `Damaged`: the object is no bpobj, or its bonus is
    /// malformed.
    pub fn open(mos: &Objset, object: u64) -> Result<Bpobj> {
        let dn = mos
            .hold(object)
            .map_err(|e| e.context(format!("bpobj {object}")))?;
        let info = dn.info();
        if info.bonus_type != ObjType::BPOBJ_HDR {
            return Err(Error::damaged(format!(
                "object {object} is no bpobj but {:?}",
                info.obj_type
            )));
        }
        let phys = BpobjPhys::decode(&dn.bonus())?;
        Ok(Bpobj { dn, phys })
    }

    /// A new, empty one. The pool's list of deferred frees has blocks of 16 KiB and compression off
    /// (`compress` 2); everything else 128 KiB and 0 (inherit).
    pub fn create_with(
        mos: &Objset,
        tx: &Tx,
        version: u64,
        livelist_active: bool,
        block_size: usize,
        compress: Compression,
    ) -> Result<Bpobj> {
        let phys = BpobjPhys::new(BpobjPhys::size_for(version, livelist_active));
        let dn = mos.alloc(
            tx,
            &NewObject {
                obj_type: ObjType::BPOBJ,
                block_size,
                bonus_type: ObjType::BPOBJ_HDR,
                bonus: phys.encode(),
                compress,
                ..NewObject::default()
            },
        )?;
        Ok(Bpobj { dn, phys })
    }

    /// Number of its MOS object.
    pub fn object(&self) -> u64 {
        self.dn.object()
    }

    /// Totals, sub-objects included.
    pub fn space(&self) -> Triple {
        Triple {
            used: self.phys.bytes as i64,
            comp: self.phys.comp as i64,
            uncomp: self.phys.uncomp as i64,
        }
    }

    /// Whether it has neither block pointers nor sub-objects.
    pub fn is_empty(&self) -> bool {
        self.phys.num_blkptrs == 0 && self.phys.num_subobjs == 0
    }

    fn add_space(&mut self, t: Triple) {
        bump(&mut self.phys.bytes, t.used);
        if self.phys.has_comp() {
            bump(&mut self.phys.comp, t.comp);
            bump(&mut self.phys.uncomp, t.uncomp);
        }
    }

    fn store(&self, tx: &Tx) -> Result<()> {
        self.dn.set_bonus(tx, &self.phys.encode())
    }

    /// Appends pointers; `total` is their space. Holes must have been left out.
    pub fn enqueue(&mut self, tx: &Tx, bps: &[BlkPtr], total: Triple) -> Result<()> {
        base::mutation::panic_point("appending to a list of blocks");
        if bps.is_empty() {
            return Ok(());
        }
        let list: Vec<(BlkPtr, bool)> = bps.iter().map(|bp| (*bp, false)).collect();
        self.enqueue_changes(tx, &list, total)
    }

    /// Appends entries of a livelist: pointers and whether they were freed; `total` counts those
    /// negatively.
    pub(crate) fn enqueue_changes(
        &mut self,
        tx: &Tx,
        list: &[(BlkPtr, bool)],
        total: Triple,
    ) -> Result<()> {
        let mut bytes = Vec::with_capacity(list.len() * BP_SIZE);
        for (bp, free) in list {
            bytes.extend_from_slice(&bpobj_entry(bp, *free).to_bytes());
        }
        self.dn.write(
            tx,
            self.phys.num_blkptrs.saturating_mul(BP_SIZE as u64),
            &bytes,
        )?;
        self.phys.num_blkptrs += list.len() as u64;
        if self.phys.has_freed() {
            self.phys.num_freed += list.iter().filter(|(_, free)| *free).count() as u64;
        }
        self.add_space(total);
        self.store(tx)
    }

    /// The list of sub-objects; `None`: there is none.
    fn subobjs(&self, mos: &Objset) -> Result<Option<Subobjs>> {
        if self.phys.subobjs == 0 {
            return Ok(None);
        }
        let dn = mos.hold(self.phys.subobjs)?;
        let info = dn.info();
        let room = (info.max_blkid.saturating_add(1)).saturating_mul(info.block_size as u64) / 8;
        if self.phys.num_subobjs > room || room > 1 << 26 {
            return Err(Error::damaged(format!(
                "bpobj {}: {} sub-objects",
                self.object(),
                self.phys.num_subobjs
            )));
        }
        Ok(Some(Subobjs {
            dn,
            count: self.phys.num_subobjs,
            block: None,
        }))
    }

    fn append_subobjs(&mut self, mos: &Objset, tx: &Tx, list: &[u64]) -> Result<()> {
        let dn = match self.phys.subobjs {
            0 => {
                let dn = mos.alloc(
                    tx,
                    &NewObject {
                        obj_type: ObjType::BPOBJ_SUBOBJ,
                        block_size: BLOCK,
                        ..NewObject::default()
                    },
                )?;
                self.phys.subobjs = dn.object();
                dn
            }
            o => mos.hold(o)?,
        };
        let bytes: Vec<u8> = list.iter().flat_map(|o| o.to_le_bytes()).collect();
        dn.write(tx, self.phys.num_subobjs * 8, &bytes)?;
        self.phys.num_subobjs += list.len() as u64;
        Ok(())
    }

    /// Takes over the content of `sub`, which must not be the shared empty one: as a sub-object,
    /// or by moving what it holds if that is little (data format §8.1).
    pub fn enqueue_subobj(&mut self, mos: &Objset, tx: &Tx, sub: u64) -> Result<()> {
        if !self.phys.has_subobjs() {
            bail!(
                Unsupported,
                "bpobj {} cannot have sub-objects",
                self.object()
            );
        }
        let mut s = Bpobj::open(mos, sub)?;
        if s.is_empty() {
            return s.free_now(mos, tx);
        }
        let total = s.space();
        let mut moved = true;
        if s.phys.num_subobjs > 0 {
            match s.subobjs(mos).and_then(Subobjs::if_one_block) {
                // What cannot be read is taken over as it is.
                Err(e) if e.is_damage() => moved = false,
                Err(e) => return Err(e),
                Ok(Some((dn, list))) => {
                    self.append_subobjs(mos, tx, &list)?;
                    mos.free(tx, dn.object())?;
                    (s.phys.subobjs, s.phys.num_subobjs) = (0, 0);
                    s.store(tx)?;
                }
                Ok(None) => moved = false,
            }
        }
        let room = (s.dn.info().block_size / BP_SIZE) as u64;
        moved &= s.phys.num_blkptrs <= room && s.phys.num_freed == 0;
        let mut bytes = Vec::new();
        if moved {
            bytes.resize(s.phys.num_blkptrs as usize * BP_SIZE, 0);
            match s.dn.read(0, &mut bytes) {
                Err(e) if e.is_damage() => moved = false,
                r => r?,
            }
        }
        if moved {
            self.dn.write(
                tx,
                self.phys.num_blkptrs.saturating_mul(BP_SIZE as u64),
                &bytes,
            )?;
            self.phys.num_blkptrs += s.phys.num_blkptrs;
            mos.free(tx, sub)?;
        } else {
            self.append_subobjs(mos, tx, &[sub])?;
        }
        self.add_space(total);
        if self.phys.has_freed() {
            self.phys.num_freed += s.phys.num_freed;
        }
        self.store(tx)
    }

    /// Frees the object with its sub-objects, not the blocks it lists.
    pub fn free_now(self, mos: &Objset, tx: &Tx) -> Result<()> {
        self.free_depth(mos, tx, 0)
    }

    fn free_depth(self, mos: &Objset, tx: &Tx, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::damaged("bpobjs nested too deep"));
        }
        if let Some(mut list) = self.subobjs(mos)? {
            for i in 0..list.count {
                Bpobj::open(mos, list.get(i)?)?.free_depth(mos, tx, depth + 1)?;
            }
            mos.free(tx, list.dn.object())?;
        }
        mos.free(tx, self.object())
    }

    /// Calls `f` with every pointer (second argument: it is a FREE entry of a livelist), sub-objects
    /// included, in no particular order.
    pub fn for_each(
        &self,
        mos: &Objset,
        f: &mut dyn FnMut(&BlkPtr, bool) -> Result<()>,
    ) -> Result<()> {
        self.lists(mos, &mut |list, _| list.each_own(f))
    }

    /// Calls `f` with this list and each list in it, before those in that one, and how deep it lies.
    /// Errors: those of `f`; `Kind::Damaged` if a list is in two lists or in itself, so that the walk ends
    /// whatever a pool says, or they are nested too deep.
    pub fn lists(
        &self,
        mos: &Objset,
        f: &mut dyn FnMut(&Bpobj, usize) -> Result<()>,
    ) -> Result<()> {
        self.lists_below(mos, f, 0, &mut BTreeSet::new())
    }

    fn lists_below(
        &self,
        mos: &Objset,
        f: &mut dyn FnMut(&Bpobj, usize) -> Result<()>,
        depth: usize,
        seen: &mut BTreeSet<u64>,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            bail!(Damaged, "bpobjs nested too deep");
        }
        if !seen.insert(self.object()) {
            bail!(
                Damaged,
                "bpobj {} is in two lists, or in itself",
                self.object()
            );
        }
        f(self, depth)?;
        if let Some(mut list) = self.subobjs(mos)? {
            for i in 0..list.count {
                Bpobj::open(mos, list.get(i)?)?.lists_below(mos, f, depth + 1, seen)?;
            }
        }
        Ok(())
    }

    fn each_own(&self, f: &mut dyn FnMut(&BlkPtr, bool) -> Result<()>) -> Result<()> {
        let per = (self.dn.info().block_size / BP_SIZE).max(1) as u64;
        for blk in 0..self.checked_count()?.div_ceil(per) {
            let b = self.dn.block(blk)?;
            // No list has pointers of holes in it, so that holes cannot make one long.
            if b.iter().all(|x| *x == 0) {
                bail!(Damaged, "block {blk} of bpobj {} is a hole", self.object());
            }
            let n = (self.phys.num_blkptrs - blk * per).min(per) as usize;
            for i in 0..n {
                let bp = BlkPtr::at(&b, i)?;
                f(&bp, bpobj_entry_is_free(&bp))?;
            }
        }
        Ok(())
    }

    /// Calls `f` with the entries of a livelist from the last to the first: their number, the pointer and whether it is a
    /// FREE; until `f` says false. Returns false if entries cannot be read.
    pub(crate) fn each_backwards(
        &self,
        f: &mut dyn FnMut(u64, &BlkPtr, bool) -> Result<bool>,
    ) -> Result<bool> {
        let Ok(count) = self.checked_count() else {
            return Ok(false);
        };
        let per = (self.dn.info().block_size / BP_SIZE).max(1) as u64;
        for blk in (0..count.div_ceil(per)).rev() {
            let b = match self.dn.block(blk) {
                Err(e) if e.is_damage() => return Ok(false),
                b => b?,
            };
            for i in (blk * per..count.min((blk + 1) * per)).rev() {
                let bp = BlkPtr::at(&b, (i - blk * per) as usize)?;
                if !f(i, &bp, bpobj_entry_is_free(&bp))? {
                    return Ok(true);
                }
            }
        }
        // A livelist has none; what is in them is not known.
        Ok(self.phys.num_subobjs == 0)
    }

    /// Leaves of a livelist the entries before `end` and, behind them, the FREEs `kept` of those after it (numbers of
    /// entries, ascending). Gone are so many other FREEs with their ALLOCs, and ALLOCs of so much space.
    pub(crate) fn cut(
        &mut self,
        tx: &Tx,
        end: u64,
        kept: &[u64],
        pairs: u64,
        gone: Triple,
    ) -> Result<()> {
        let per = (self.dn.info().block_size / BP_SIZE).max(1) as u64;
        let mut at = end;
        // They move to the front or stay where they are, so none is written over before it was read.
        for part in kept.chunk_by(|a, b| a / per == b / per) {
            let b = self.dn.block(part[0] / per)?;
            let mut bytes = Vec::with_capacity(part.len() * BP_SIZE);
            for i in part {
                bytes.extend_from_slice(&BlkPtr::at(&b, (i % per) as usize)?.to_bytes());
            }
            self.dn.write(tx, at * BP_SIZE as u64, &bytes)?;
            at += part.len() as u64;
        }
        self.dn.free_range(tx, at * BP_SIZE as u64, u64::MAX)?;
        self.phys.num_blkptrs = at;
        self.phys.num_freed = self.phys.num_freed.saturating_sub(pairs);
        self.add_space(-gone);
        self.store(tx)
    }

    /// The number of pointers, if the object can hold as many.
    fn checked_count(&self) -> Result<u64> {
        let info = self.dn.info();
        let room = info
            .max_blkid
            .saturating_add(1)
            .saturating_mul((info.block_size / BP_SIZE) as u64);
        if self.phys.num_blkptrs > room {
            return Err(Error::damaged(format!(
                "bpobj {}: {} pointers",
                self.object(),
                self.phys.num_blkptrs
            )));
        }
        Ok(self.phys.num_blkptrs)
    }

    /// Hands out pointers from the end and removes them, until `f` returns false (that pointer
    /// stays). Emptied sub-objects are freed. Returns the space removed and whether it is empty now.
    /// Pointers in blocks that cannot be read are dropped; their space is not in what is returned.
    pub(crate) fn drain(
        &mut self,
        mos: &Objset,
        tx: &Tx,
        f: &mut dyn FnMut(&BlkPtr) -> Result<bool>,
    ) -> Result<(Triple, bool)> {
        self.drain_depth(mos, tx, f, 0)
    }

    fn drain_depth(
        &mut self,
        mos: &Objset,
        tx: &Tx,
        f: &mut dyn FnMut(&BlkPtr) -> Result<bool>,
        depth: usize,
    ) -> Result<(Triple, bool)> {
        if depth > MAX_DEPTH {
            return Err(Error::damaged("bpobjs nested too deep"));
        }
        let mut gone = Triple::default();
        let block_size = self.dn.info().block_size as u64;
        let per = (block_size / BP_SIZE as u64).max(1);
        let before = self.phys.num_blkptrs;
        if self.checked_count().is_err() {
            self.phys.num_blkptrs = 0;
        }
        let mut go_on = true;
        'blocks: while self.phys.num_blkptrs > 0 {
            let blk = (self.phys.num_blkptrs - 1) / per;
            let b = match self.dn.block(blk) {
                Err(e) if e.is_damage() => {
                    self.phys.num_blkptrs = blk * per;
                    continue;
                }
                b => b?,
            };
            while self.phys.num_blkptrs > blk * per {
                let i = (self.phys.num_blkptrs - 1 - blk * per) as usize;
                let bp = BlkPtr::at(&b, i)?;
                if !f(&bp)? {
                    go_on = false;
                    break 'blocks;
                }
                gone += Triple::of(mos.dmu(), &bp);
                self.phys.num_blkptrs -= 1;
            }
        }
        if self.phys.num_blkptrs != before {
            self.dn
                .free_range(tx, self.phys.num_blkptrs * BP_SIZE as u64, u64::MAX)?;
        }
        if go_on && self.phys.num_subobjs > 0 {
            let mut list = match self.subobjs(mos) {
                Err(e) if is_unreadable(&e) => None,
                r => r?,
            };
            while self.phys.num_subobjs > 0 {
                let i = self.phys.num_subobjs - 1;
                let Some(list) = &mut list else {
                    self.phys.num_subobjs = 0;
                    break;
                };
                let o = match list.number(i) {
                    Err(e) if e.is_damage() => {
                        // The others in that block are gone, too.
                        self.phys.num_subobjs = i / list.per() * list.per();
                        continue;
                    }
                    o => o?,
                };
                match (o != 0).then(|| Bpobj::open(mos, o)) {
                    None => {}
                    Some(Err(e)) if is_unreadable(&e) => {}
                    Some(sub) => {
                        let (t, empty) = sub?.drain_depth(mos, tx, f, depth + 1)?;
                        gone += t;
                        if !empty {
                            go_on = false;
                            break;
                        }
                        mos.free(tx, o)?;
                    }
                }
                self.phys.num_subobjs -= 1;
            }
            if self.phys.num_subobjs == 0 {
                match mos.free(tx, self.phys.subobjs) {
                    Err(e) if is_unreadable(&e) => {}
                    r => r?,
                }
                self.phys.subobjs = 0;
            }
        }
        self.add_space(-gone);
        let empty = self.is_empty();
        if empty {
            // Nothing left must mean nothing counted, whatever was rounded or damaged before.
            (self.phys.bytes, self.phys.comp, self.phys.uncomp) = (0, 0, 0);
        }
        if empty || self.phys.num_blkptrs != before || gone != Triple::default() {
            self.store(tx)?;
        }
        Ok((gone, go_on && empty))
    }
}
