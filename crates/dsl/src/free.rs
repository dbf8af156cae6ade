//! Freeing in the background: `free_bpobj`, then the bptree (data format §11.2, §11.3); and the walk
//! over all blocks of a dataset that both kinds of destroying use.

use crate::bptree::Bptree;
use crate::core::{Core, Triple};
use crate::{Bpobj, Dsl};
use base::{Error, Result, Txg};
use disk::dnode::objset::ObjsetPhys;
use disk::dnode::{DNODES_PER_BLOCK, DNODE_SIZE};
use disk::dsl::Used;
use disk::{BlkPtr, DnodePhys, ObjType, BP_SIZE};
use dmu::Tx;
use std::sync::Arc;
use zio::Zio;

/// Object set number in the bookmarks of destroyed datasets.
const DESTROYED_OBJSET: u64 = u64::MAX;
/// Level and object of the object set block itself.
const ROOT_LEVEL: i64 = -1;
/// Block id of spill blocks.
const SPILL_BLKID: u64 = u64::MAX - 1;
const META_DNODE: u64 = 0;

/// A place in the order of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pos {
    object: u64,
    level: i64,
    blkid: u64,
}

/// How blocks of an object are numbered.
#[derive(Clone, Copy)]
struct Shape {
    /// log2 of the pointers of an indirect block.
    epbs: u32,
    ind_size: usize,
}

impl Pos {
    fn words(self) -> [u64; 4] {
        [DESTROYED_OBJSET, self.object, self.level as u64, self.blkid]
    }

    fn of(w: [u64; 4]) -> Option<Pos> {
        match w {
            [0, 0, 0, 0] => None,
            [_, object, level, blkid] => Some(Pos {
                object,
                level: level as i64,
                blkid,
            }),
        }
    }

    /// Half-open range of level-0 blocks below.
    fn range(self, s: Shape) -> (u128, u128) {
        let shift = (self.level.clamp(0, 16) as u32 * s.epbs).min(100);
        let first = (self.blkid as u128) << shift.min(63);
        (first, first + (1u128 << shift.min(63)))
    }

    /// Whether everything here and below comes before `r`.
    fn before(self, r: Pos, s: Shape) -> bool {
        if r.level == ROOT_LEVEL {
            return self.level != ROOT_LEVEL;
        }
        if self.level == ROOT_LEVEL {
            return false;
        }
        if self.object == r.object {
            return self != r && self.range(s).1 <= r.range(s).0;
        }
        if self.object == META_DNODE {
            // A block of dnodes comes after all those objects.
            return self.range(s).1 * DNODES_PER_BLOCK as u128 <= r.object as u128;
        }
        if r.object == META_DNODE {
            // The children of the block at `r` are done, as well as all before it.
            return (self.object as u128) < r.range(s).1 * DNODES_PER_BLOCK as u128
                && self.object < u64::MAX - 2;
        }
        self.object < r.object
    }
}

/// Visits every block of a tree born after a txg, children before parents.
struct Walk<'a> {
    zio: &'a Zio,
    after: Txg,
    resume: Option<Pos>,
    /// Where the callback said stop.
    paused: Option<Pos>,
    /// Metadata that could not be read: what was below it is lost.
    lost: u64,
    f: &'a mut dyn FnMut(&BlkPtr) -> Result<bool>,
}

impl Walk<'_> {
    /// False: stopped.
    fn visit(&mut self, bp: &BlkPtr, at: Pos, s: Shape, depth: u32) -> Result<bool> {
        if bp.is_hole() || bp.birth() <= self.after {
            return Ok(true);
        }
        let mut children = true;
        if let Some(r) = self.resume {
            if at.before(r, s) {
                return Ok(true);
            }
            if at == r {
                self.resume = None;
                children = false;
            }
        }
        if children && !bp.is_redacted() && !self.below(bp, at, s, depth)? {
            return Ok(false);
        }
        if (self.f)(bp)? {
            return Ok(true);
        }
        self.paused = Some(at);
        Ok(false)
    }

    /// Reads metadata; what cannot be read is skipped, its block freed, its children lost.
    fn read(&mut self, bp: &BlkPtr) -> Result<Option<base::Block>> {
        // Destroying takes no key: pointers are in clear.
        match self.zio.read_with(bp, &zio::Crypt::Locked) {
            Ok(b) => Ok(Some(b)),
            Err(e) if e.is_damage() => {
                self.lost += 1;
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn below(&mut self, bp: &BlkPtr, at: Pos, s: Shape, depth: u32) -> Result<bool> {
        if depth > 64 {
            return Err(Error::damaged("block tree too deep"));
        }
        if at.level == ROOT_LEVEL {
            let Some(b) = self.read(bp)? else {
                return Ok(true);
            };
            let p = match ObjsetPhys::decode(&b) {
                Ok(p) => p,
                Err(_) => {
                    self.lost += 1;
                    return Ok(true);
                }
            };
            if !self.dnode(META_DNODE, &p.meta, depth)? {
                return Ok(false);
            }
            for (n, d) in p.special.iter().enumerate().rev() {
                if let Some(d) = d {
                    if !self.dnode(u64::MAX - n as u64, d, depth)? {
                        return Ok(false);
                    }
                }
            }
            return Ok(true);
        }
        if at.level > 0 {
            if bp.lsize() != s.ind_size || bp.level() as i64 != at.level {
                self.lost += 1;
                return Ok(true);
            }
            let Some(b) = self.read(bp)? else {
                return Ok(true);
            };
            for i in 0..b.len() / BP_SIZE {
                let blkid = (at.blkid << s.epbs).wrapping_add(i as u64);
                let child = Pos {
                    object: at.object,
                    level: at.level - 1,
                    blkid,
                };
                if !self.visit(&BlkPtr::at(&b, i)?, child, s, depth + 1)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        if at.object == META_DNODE && bp.obj_type() == ObjType::DNODE {
            let Some(b) = self.read(bp)? else {
                return Ok(true);
            };
            let mut i = 0;
            while (i + 1) * DNODE_SIZE <= b.len() {
                let slots = match DnodePhys::decode(&b[i * DNODE_SIZE..]) {
                    Ok(Some(d)) => {
                        let object = at.blkid.wrapping_mul(DNODES_PER_BLOCK) + i as u64;
                        if !self.dnode(object, &d, depth + 1)? {
                            return Ok(false);
                        }
                        d.slots.max(1) as usize
                    }
                    Ok(None) => 1,
                    Err(_) => {
                        self.lost += 1;
                        1
                    }
                };
                i += slots;
            }
        }
        Ok(true)
    }

    fn dnode(&mut self, object: u64, d: &DnodePhys, depth: u32) -> Result<bool> {
        let s = Shape {
            epbs: (d.indblkshift as u32).saturating_sub(7),
            ind_size: 1usize << d.indblkshift.min(30),
        };
        let level = d.nlevels as i64 - 1;
        for (i, bp) in d.blkptr.iter().enumerate() {
            let at = Pos {
                object,
                level,
                blkid: i as u64,
            };
            if !self.visit(bp, at, s, depth + 1)? {
                return Ok(false);
            }
        }
        if let Some(bp) = &d.spill {
            let at = Pos {
                object,
                level: 0,
                blkid: SPILL_BLKID,
            };
            return self.visit(bp, at, s, depth + 1);
        }
        Ok(true)
    }
}

/// Calls `f` for every block of an object set born after `after`, children before parents, the
/// object set block last.
pub(crate) fn each_block(
    core: &Core,
    root: &BlkPtr,
    after: Txg,
    f: &mut dyn FnMut(&BlkPtr) -> Result<()>,
) -> Result<()> {
    walk(core, root, after, None, &mut |bp| f(bp).map(|_| true)).map(|_| ())
}

/// The same from a place on; `f` says false to stop before a block. Returns that place.
fn walk(
    core: &Core,
    root: &BlkPtr,
    after: Txg,
    resume: Option<Pos>,
    f: &mut dyn FnMut(&BlkPtr) -> Result<bool>,
) -> Result<Option<Pos>> {
    let zio = core.dmu().zio.clone();
    let mut w = Walk {
        zio: &zio,
        after,
        resume,
        paused: None,
        lost: 0,
        f,
    };
    let at = Pos {
        object: META_DNODE,
        level: ROOT_LEVEL,
        blkid: 0,
    };
    w.visit(
        root,
        at,
        Shape {
            epbs: 0,
            ind_size: 0,
        },
        0,
    )?;
    Ok(w.paused)
}

impl Dsl {
    /// Frees up to `budget` blocks of those that wait, through `free` (which frees one block in this
    /// group). Returns how many were freed; less than `budget` means that nothing is left.
    pub fn free_some(
        &self,
        tx: &Tx,
        budget: u64,
        free: &mut dyn FnMut(&BlkPtr) -> Result<()>,
    ) -> Result<u64> {
        let core = &self.core;
        core.need_syncing(tx)?;
        let Some(free_dir) = core.special_dir("$FREE")? else {
            return Ok(0);
        };
        let mut done = 0;
        let mut one = |bp: &BlkPtr| -> Result<bool> {
            if done >= budget {
                return Ok(false);
            }
            done += 1;
            if !bp.is_embedded() {
                free(bp)?;
            }
            Ok(true)
        };
        if let Some(o) = core.directory_get("free_bpobj")? {
            let mut b = Bpobj::open(&core.mos, o)?;
            if !b.is_empty() {
                let (gone, empty) = b.drain(core, tx, &mut one)?;
                free_dir.diduse(tx, Used::Head, -gone)?;
                if !empty {
                    return Ok(done);
                }
            }
        }
        if let Some(mut tree) = Bptree::open(core)? {
            while let Some(e) = tree.first()? {
                let Some(mut e) = e else {
                    // An entry that cannot be read: what it led to is given up.
                    tree.pop(tx)?;
                    continue;
                };
                let mut gone = Triple::default();
                let at = walk(core, &e.bp, e.birth_txg, Pos::of(e.bookmark), &mut |bp| {
                    let go_on = one(bp)?;
                    if go_on {
                        gone += core.triple(bp);
                    }
                    Ok(go_on)
                })?;
                free_dir.diduse(tx, Used::Head, -gone)?;
                tree.count(tx, -gone)?;
                match at {
                    Some(pos) => {
                        e.bookmark = pos.words();
                        tree.put_first(tx, &e)?;
                        return Ok(done);
                    }
                    None => tree.pop(tx)?,
                }
            }
            tree.destroy(core, tx)?;
        }
        if !self.free_livelists(tx, &mut done, budget, free)? {
            return Ok(done.max(budget));
        }
        self.leak_rest(tx, &free_dir)?;
        Ok(done)
    }

    /// Space that was to be freed in this group and could not be found because of damage: `bytes`
    /// (deflated) of blocks that are no longer counted anywhere else.
    pub fn add_leaked(&self, tx: &Tx, bytes: u64) -> Result<()> {
        if bytes == 0 || self.core.special_dir("$FREE")?.is_none() {
            return Ok(());
        }
        let t = Triple {
            used: bytes as i64,
            ..Triple::default()
        };
        self.leak_dir(tx)?.diduse(tx, Used::Head, t)
    }

    fn leak_dir(&self, tx: &Tx) -> Result<Arc<crate::Dir>> {
        match self.core.special_dir("$LEAK")? {
            Some(d) => Ok(d),
            None => self.core.add_dir(tx, &self.root()?, "$LEAK"),
        }
    }

    /// What could not be found because of damage is space given up.
    fn leak_rest(&self, tx: &Tx, free_dir: &Arc<crate::Dir>) -> Result<()> {
        let p = free_dir.phys();
        let rest = Triple {
            used: p.used_bytes as i64,
            comp: p.compressed_bytes as i64,
            uncomp: p.uncompressed_bytes as i64,
        };
        if rest == Triple::default() {
            return Ok(());
        }
        let leak = self.leak_dir(tx)?;
        free_dir.diduse(tx, Used::Head, -rest)?;
        leak.diduse(tx, Used::Head, rest)
    }
}

#[cfg(test)]
impl Dsl {
    /// Blocks of a bptree entry that are not freed yet.
    pub(crate) fn blocks_left(&self, e: &disk::dsl::BptreeEntry) -> Result<Vec<BlkPtr>> {
        let mut out = Vec::new();
        walk(
            &self.core,
            &e.bp,
            e.birth_txg,
            Pos::of(e.bookmark),
            &mut |bp| {
                out.push(*bp);
                Ok(true)
            },
        )?;
        Ok(out)
    }
}
