//! The traversal of the block trees of a pool.
//!
//! [`walk`] visits the blocks of one object set: the object set block, the meta-dnode's tree, every object
//! in order of number, then the accounting objects. [`object`] visits the tree of one object. Freeing of
//! destroyed datasets, the check of metadata after a rewind and the audit of a pool are visitors of it.
//!
//! Invariants:
//!
//! 1. A subtree whose root was born at or before [`Spec::after`] is neither read nor visited. (A block is
//!    never older than what it points to, so nothing newer is below.)
//! 2. The order is that of OpenZFS's traversal, so a [`Zbookmark`] stored on disk by either implementation resumes
//!    the other's: children-first visits a parent after everything below it, parents-first before.
//! 3. A visit that was stopped at a place and resumed there visits each block exactly once, provided the tree
//!    is the same.
//! 4. A block that cannot be read, or is not what its place demands, is a [`Finding`]. Nothing below it is
//!    visited, and the traversal goes on. Only errors that are not about one block end it.
//! 5. Memory is bounded: one block per level of two trees (the meta-dnode's and the object's), and
//!    [`AHEAD`] blocks of metadata that are read ahead into the block cache.
//!
//! Start reading at [`walk`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
mod tests;
mod zbookmark;

pub use zbookmark::{Shape, Zbookmark, DESTROYED_OBJSET, META_DNODE, ROOT_LEVEL, SPILL_BLKID};

use base::mutation::{mutated, Mutation};
use base::{Block, Error, Result, Txg};
use disk::dnode::{DNODES_PER_BLOCK, DNODE_SIZE};
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, ObjType, BP_SIZE};
use zio::{Crypt, InUse, ReadSpec, Zio};

/// Blocks of metadata that are read ahead together, before the first of them is needed.
pub const AHEAD: usize = 32;
/// Deeper trees are damage: the format has at most 32 levels, in the meta-dnode's tree and in an object's.
const MAX_DEPTH: u32 = 80;

/// Whether a block is visited before or after what is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A block is told before what is below it.
    ParentsFirst,
    /// A block is told after what is below it.
    ChildrenFirst,
}

/// What to do after a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on, into what is below first.
    Descend,
    /// Go on, but leave out what is below. Children-first this is the same as [`Next::Descend`].
    Skip,
    /// End the traversal. The place of this visit is where to resume: it is visited again then.
    Stop,
}

/// What is wrong with a block.
#[derive(Clone, Debug)]
pub enum Problem {
    /// No copy of it could be read and verified.
    Unreadable(Error),
    /// It could be read, but is not what its place demands: wrong level or size, or not decodable.
    Malformed(Error),
}

impl Problem {
    /// The failure behind it.
    pub fn error(&self) -> &Error {
        match self {
            Problem::Unreadable(e) | Problem::Malformed(e) => e,
        }
    }

    /// Its number in the registry.
    pub fn damage(&self) -> base::Damage {
        match self {
            Problem::Unreadable(_) => base::Damage::BlockUnreadable,
            Problem::Malformed(_) => base::Damage::BlockMalformed,
        }
    }
}

/// A block whose subtree could not be visited.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The block; for a dnode that cannot be decoded, [`Zbookmark::object`] is its number, the level 0 and the block
    /// id 0.
    pub place: Zbookmark,
    /// The pointer that leads to it.
    pub bp: BlkPtr,
    /// What is wrong with it.
    pub problem: Problem,
}

/// Which holes a traversal visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// None.
    None,
    /// Those born after [`Spec::after`].
    Born,
    /// Those born after [`Spec::after`], and those without a birth: never written, or made before the feature
    /// `hole_birth` was enabled.
    All,
}

/// Which birth of a block counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Births {
    /// When its space was allocated: what snapshots and deadlists go by.
    Allocated,
    /// When its data were written. A block that was rewritten as it is (feature `physical_rewrite`) has an older one.
    Logical,
}

/// Who is told of blocks.
pub trait Visitor {
    /// A block, or a hole if [`Spec::holes`] asks for them. `dn` is the dnode of the object it belongs to,
    /// `None` for the object set block.
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, dn: Option<&DnodePhys>) -> Result<Next>;

    /// The object set block has been read. Called before anything below it is visited.
    fn objset(&mut self, _phys: &ObjsetPhys) -> Result<()> {
        Ok(())
    }

    /// A block of dnodes has been read. Called before its dnodes are visited, in either order, and again when a
    /// traversal is resumed below it. `b` is what [`Spec::crypt`] makes of it.
    fn dnodes(&mut self, _at: Zbookmark, _bp: &BlkPtr, _b: &Block) -> Result<()> {
        Ok(())
    }

    /// A dnode slot that is not in use. Not called for slots in front of the object in whose tree a traversal is
    /// resumed.
    fn free_slot(&mut self, _object: u64) -> Result<()> {
        Ok(())
    }

    /// A dnode in use. Called before its tree is visited, in either order, and again for the object in
    /// whose tree a traversal is resumed. [`Next::Skip`] leaves its tree out.
    fn dnode(&mut self, _object: u64, _dn: &DnodePhys) -> Result<Next> {
        Ok(Next::Descend)
    }

    /// A subtree that is left out because of damage. An error ends the traversal with it.
    fn finding(&mut self, finding: Finding) -> Result<()>;
}

/// What to visit.
pub struct Spec<'a> {
    /// Blocks born at or before this txg are left out, with everything below.
    pub after: Txg,
    /// What counts as birth.
    pub births: Births,
    /// Whether a block comes before or after what is below it.
    pub order: Order,
    /// Which holes are visited, too.
    pub holes: Holes,
    /// How dnode blocks are read. [`Crypt::Locked`] needs no key, but bonus buffers stay encrypted then.
    pub crypt: &'a Crypt,
    /// Where a traversal with the same order was stopped.
    pub resume: Option<Zbookmark>,
    /// What is known of the pointers: whether damage of the metadata read is charged to devices and repaired.
    pub in_use: InUse,
}

impl Spec<'_> {
    /// Everything, in the given order, without a key.
    pub fn all(order: Order) -> Spec<'static> {
        Spec {
            after: Txg::NONE,
            births: Births::Allocated,
            order,
            holes: Holes::None,
            crypt: &Crypt::Locked,
            resume: None,
            in_use: InUse::Now,
        }
    }

    /// Whether a block, or hole, is left out with everything below it.
    pub fn leaves_out(&self, bp: &BlkPtr) -> bool {
        match (bp.is_hole(), self.holes, self.births) {
            (true, Holes::None, _) => true,
            (true, Holes::Born, _) => bp.logical_birth() <= self.after,
            (true, Holes::All, _) => {
                !bp.logical_birth().is_none() && bp.logical_birth() <= self.after
            }
            (false, _, Births::Allocated) => bp.birth() <= self.after,
            (false, _, Births::Logical) => bp.logical_birth() <= self.after,
        }
    }
}

/// Visits the object set whose block `root` points to. Returns the place where the visitor stopped, `None` at the
/// end.
///
/// # Errors
/// Those of the visitor, and those of reading that are not about one block (a suspended pool).
pub fn walk(
    zio: &Zio,
    root: &BlkPtr,
    spec: &Spec,
    visitor: &mut dyn Visitor,
) -> Result<Option<Zbookmark>> {
    let mut w = Walker::new(zio, spec, visitor);
    let none = Shape {
        epbs: 0,
        indirect_size: 0,
    };
    w.visit(root, Zbookmark::ROOT, none, None, 0)?;
    Ok(w.stopped)
}

/// Visits the tree of one object, its spill block last. The rest is as for [`walk`].
pub fn object(
    zio: &Zio,
    object: u64,
    dn: &DnodePhys,
    spec: &Spec,
    visitor: &mut dyn Visitor,
) -> Result<Option<Zbookmark>> {
    let mut w = Walker::new(zio, spec, visitor);
    w.tree(object, dn, 0)?;
    Ok(w.stopped)
}

/// Visits the blocks of one object's tree by closures. Dnodes in its blocks are not visited: it may be a
/// meta-dnode. [`Zbookmark::object`] has no meaning. The spill block comes last.
///
/// # Errors
/// Those of the closures, and those of reading that are not about one block.
pub fn blocks(
    zio: &Zio,
    dn: &DnodePhys,
    spec: &Spec,
    f: &mut dyn FnMut(Zbookmark, &BlkPtr) -> Result<Next>,
    bad: &mut dyn FnMut(Finding) -> Result<()>,
) -> Result<()> {
    /// Any object but the meta-dnode.
    const SOME_OBJECT: u64 = 1;
    object(zio, SOME_OBJECT, dn, spec, &mut Closures(f, bad)).map(|_| ())
}

/// All blocks of one object's tree, parents first.
///
/// # Errors
/// A block that cannot be read.
pub fn all_blocks(zio: &Zio, dn: &DnodePhys) -> Result<Vec<(Zbookmark, BlkPtr)>> {
    let mut out = Vec::new();
    blocks(
        zio,
        dn,
        &Spec::all(Order::ParentsFirst),
        &mut |at, bp| {
            out.push((at, *bp));
            Ok(Next::Descend)
        },
        &mut |f| Err(f.problem.error().clone()),
    )?;
    Ok(out)
}

/// Of a block, and of a finding.
struct Closures<'a>(
    &'a mut dyn FnMut(Zbookmark, &BlkPtr) -> Result<Next>,
    &'a mut dyn FnMut(Finding) -> Result<()>,
);

impl Visitor for Closures<'_> {
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
        (self.0)(at, bp)
    }
    fn finding(&mut self, finding: Finding) -> Result<()> {
        (self.1)(finding)
    }
}

/// Going on, or stopped by the visitor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Stopped,
}

struct Walker<'a> {
    zio: &'a Zio,
    spec: &'a Spec<'a>,
    /// Taken when it has been reached.
    resume: Option<Zbookmark>,
    stopped: Option<Zbookmark>,
    visitor: &'a mut dyn Visitor,
}

impl<'a> Walker<'a> {
    fn new(zio: &'a Zio, spec: &'a Spec<'a>, visitor: &'a mut dyn Visitor) -> Walker<'a> {
        Walker {
            zio,
            spec,
            resume: spec.resume,
            stopped: None,
            visitor,
        }
    }

    fn visit(
        &mut self,
        bp: &BlkPtr,
        at: Zbookmark,
        s: Shape,
        dn: Option<&DnodePhys>,
        depth: u32,
    ) -> Result<Flow> {
        if self.spec.leaves_out(bp) {
            return Ok(Flow::On);
        }
        // What was done before the traversal was stopped: the block itself, and everything below it.
        let (mut seen, mut below) = (false, true);
        if let Some(r) = self.resume {
            if at.before(r, s) {
                return Ok(Flow::On);
            }
            match self.spec.order {
                Order::ChildrenFirst if at == r => {
                    self.resume = None;
                    below = false;
                }
                Order::ParentsFirst if at != r && at.contains(r, s) => seen = true,
                // A place that is a hole by now is passed without being met.
                _ if at == r || !at.contains(r, s) => self.resume = None,
                _ => {}
            }
        }
        below &= !bp.is_hole() && !bp.is_redacted();
        if self.spec.order == Order::ParentsFirst && !seen {
            match self.visitor.block(at, bp, dn)? {
                Next::Descend => {}
                Next::Skip => below = false,
                Next::Stop => return Ok(self.stop(at)),
            }
        }
        if below && self.below(bp, at, s, dn, depth)? == Flow::Stopped {
            return Ok(Flow::Stopped);
        }
        if self.spec.order == Order::ChildrenFirst && self.visitor.block(at, bp, dn)? == Next::Stop
        {
            return Ok(self.stop(at));
        }
        Ok(Flow::On)
    }

    fn stop(&mut self, at: Zbookmark) -> Flow {
        self.stopped = Some(at);
        Flow::Stopped
    }

    fn below(
        &mut self,
        bp: &BlkPtr,
        at: Zbookmark,
        s: Shape,
        dn: Option<&DnodePhys>,
        depth: u32,
    ) -> Result<Flow> {
        if depth > MAX_DEPTH {
            return self.malformed(at, bp, Error::damaged("block tree too deep"));
        }
        if at.level == ROOT_LEVEL {
            return self.objset(bp, at, depth);
        }
        if at.blkid == SPILL_BLKID {
            return Ok(Flow::On);
        }
        if at.level > 0 {
            return self.indirect(bp, at, s, dn, depth);
        }
        // A tree of dnodes is the meta-dnode's: files of this type do not exist.
        if at.object == META_DNODE && bp.obj_type() == ObjType::DNODE {
            return self.dnodes(bp, at, depth);
        }
        Ok(Flow::On)
    }

    fn read_spec(&self) -> ReadSpec<'a> {
        ReadSpec {
            in_use: self.spec.in_use,
            ..ReadSpec::with_key(self.spec.crypt)
        }
    }

    /// A block of metadata; `None` if there is a finding instead.
    fn read(&mut self, bp: &BlkPtr, at: Zbookmark) -> Result<Option<Block>> {
        match self.zio.read_with(bp, &self.read_spec()) {
            Ok(b) => Ok(Some(b)),
            Err(e) if e.is_damage() => {
                self.visitor.finding(Finding {
                    place: at,
                    bp: *bp,
                    problem: Problem::Unreadable(e),
                })?;
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    fn malformed(&mut self, place: Zbookmark, bp: &BlkPtr, e: Error) -> Result<Flow> {
        self.visitor.finding(Finding {
            place,
            bp: *bp,
            problem: Problem::Malformed(e),
        })?;
        Ok(Flow::On)
    }

    fn objset(&mut self, bp: &BlkPtr, at: Zbookmark, depth: u32) -> Result<Flow> {
        if bp.obj_type() != ObjType::OBJSET {
            let e = Error::damaged(format!("not an object set: {bp:?}"));
            return self.malformed(at, bp, e);
        }
        let Some(b) = self.read(bp, at)? else {
            return Ok(Flow::On);
        };
        let p = match ObjsetPhys::decode(&b) {
            Ok(p) => p,
            Err(e) => return self.malformed(at, bp, e),
        };
        self.visitor.objset(&p)?;
        if self.tree(META_DNODE, &p.meta, depth)? == Flow::Stopped {
            return Ok(Flow::Stopped);
        }
        // The last of the three has the smallest number.
        for (n, d) in p.special.iter().enumerate().rev() {
            let Some(d) = d else { continue };
            let object = u64::MAX - n as u64;
            if self.dnode(object, d, depth)? == Flow::Stopped {
                return Ok(Flow::Stopped);
            }
        }
        Ok(Flow::On)
    }

    fn indirect(
        &mut self,
        bp: &BlkPtr,
        at: Zbookmark,
        s: Shape,
        dn: Option<&DnodePhys>,
        depth: u32,
    ) -> Result<Flow> {
        if bp.lsize() != s.indirect_size || i64::from(bp.level()) != at.level {
            let e = Error::damaged(format!(
                "expected an indirect block of level {}: {bp:?}",
                at.level
            ));
            return self.malformed(at, bp, e);
        }
        let Some(b) = self.read(bp, at)? else {
            return Ok(Flow::On);
        };
        // Children that are metadata are read by the traversal itself, so they are asked for together.
        let metadata = at.level > 1 || at.object == META_DNODE;
        let count = b.len() / BP_SIZE;
        let first = usize::from(mutated(Mutation::WalkPassesFirst));
        for i in first..count {
            if metadata && i % AHEAD == 0 {
                self.read_ahead(&b, i..count.min(i + AHEAD));
            }
            let child = Zbookmark {
                object: at.object,
                level: at.level - 1,
                blkid: (at.blkid << s.epbs).wrapping_add(i as u64),
            };
            let flow = self.visit(&BlkPtr::at(&b, i)?, child, s, dn, depth + 1)?;
            if flow == Flow::Stopped {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn read_ahead(&self, b: &Block, which: std::ops::Range<usize>) {
        // A resumed traversal passes over most of what is in front of its place.
        if self.resume.is_some() {
            return;
        }
        let wanted: Vec<BlkPtr> = which
            .filter_map(|i| BlkPtr::at(b, i).ok())
            .filter(|bp| !bp.is_hole() && !bp.is_embedded() && !self.spec.leaves_out(bp))
            .collect();
        if wanted.len() > 1 {
            self.zio.read_ahead(&wanted, &self.read_spec());
        }
    }

    fn dnodes(&mut self, bp: &BlkPtr, at: Zbookmark, depth: u32) -> Result<Flow> {
        let Some(b) = self.read(bp, at)? else {
            return Ok(Flow::On);
        };
        self.visitor.dnodes(at, bp, &b)?;
        let mut i = 0;
        while (i + 1) * DNODE_SIZE <= b.len() {
            let object = at
                .blkid
                .wrapping_mul(DNODES_PER_BLOCK)
                .wrapping_add(i as u64);
            i += match DnodePhys::decode(&b[i * DNODE_SIZE..]) {
                Ok(Some(d)) => {
                    if self.dnode(object, &d, depth + 1)? == Flow::Stopped {
                        return Ok(Flow::Stopped);
                    }
                    usize::from(d.slots).max(1)
                }
                Ok(None) => {
                    if self.resume.is_none_or(|r| object >= r.object) {
                        self.visitor.free_slot(object)?;
                    }
                    1
                }
                Err(e) => {
                    let place = Zbookmark {
                        object,
                        level: 0,
                        blkid: 0,
                    };
                    self.malformed(place, bp, e)?;
                    1
                }
            };
        }
        Ok(Flow::On)
    }

    fn dnode(&mut self, object: u64, d: &DnodePhys, depth: u32) -> Result<Flow> {
        if let Some(r) = self.resume {
            if r.level == ROOT_LEVEL || (r.object != META_DNODE && object < r.object) {
                return Ok(Flow::On);
            }
        }
        match self.visitor.dnode(object, d)? {
            Next::Descend => self.tree(object, d, depth),
            Next::Skip => Ok(Flow::On),
            Next::Stop => Ok(self.stop(Zbookmark {
                object,
                level: i64::from(d.nlevels) - 1,
                blkid: 0,
            })),
        }
    }

    fn tree(&mut self, object: u64, d: &DnodePhys, depth: u32) -> Result<Flow> {
        let s = Shape {
            epbs: u32::from(d.indblkshift).saturating_sub(7),
            indirect_size: 1usize << d.indblkshift.min(30),
        };
        let level = i64::from(d.nlevels) - 1;
        for (i, bp) in d.blkptr.iter().enumerate() {
            let at = Zbookmark {
                object,
                level,
                blkid: i as u64,
            };
            if self.visit(bp, at, s, Some(d), depth + 1)? == Flow::Stopped {
                return Ok(Flow::Stopped);
            }
        }
        if let Some(bp) = &d.spill {
            let at = Zbookmark {
                object,
                level: 0,
                blkid: SPILL_BLKID,
            };
            return self.visit(bp, at, s, Some(d), depth + 1);
        }
        Ok(Flow::On)
    }
}
