//! Freeing in the background: `free_bpobj`, then the bptree (data format §11.2, §11.3); and all blocks
//! of a dataset, which both kinds of destroying need.

use crate::bptree::Bptree;
use crate::core::{Core, Triple};
use crate::{Bpobj, Dataset, Dsl};
use base::mutation::{mutated, Mutation};
use base::{Result, Txg};
use disk::dsl::Used;
use disk::{BlkPtr, DnodePhys};
use dmu::{SyncHooks, Tx};
use std::sync::Arc;
use walk::{Finding, Next, Order, Spec, Visitor, Zbookmark};

/// Passes blocks on; damage costs only what is below it, whose space `$LEAK` takes over at the end.
struct EachBlock<'a>(&'a mut dyn FnMut(&BlkPtr) -> Result<bool>);

impl Visitor for EachBlock<'_> {
    fn block(&mut self, _: Zbookmark, bp: &BlkPtr, _: Option<&DnodePhys>) -> Result<Next> {
        Ok(match (self.0)(bp)? {
            true => Next::Descend,
            false => Next::Stop,
        })
    }

    fn finding(&mut self, _: Finding) -> Result<()> {
        Ok(())
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
    some_blocks(core, root, after, None, &mut |bp| f(bp).map(|_| true)).map(|_| ())
}

/// Has a head let go of every block born after its newest snapshot, at once: freed is what no snapshot has.
pub(crate) fn kill_own(head: &Dataset, tx: &Tx) -> Result<()> {
    let (core, p) = (&head.core, head.phys());
    let hooks = head.hooks(tx)?;
    each_block(core, &p.bp, p.prev_snap_txg, &mut |bp| {
        if hooks.kill(bp)? {
            core.dmu().zio.free(bp, tx.txg())?;
        }
        Ok(())
    })?;
    head.flush(tx)
}

/// The same from a place on; `f` says false to stop before a block. Returns that place.
fn some_blocks(
    core: &Core,
    root: &BlkPtr,
    after: Txg,
    resume: Option<Zbookmark>,
    f: &mut dyn FnMut(&BlkPtr) -> Result<bool>,
) -> Result<Option<Zbookmark>> {
    // Destroying takes no key: pointers are in clear.
    let spec = Spec {
        after,
        resume,
        ..Spec::all(Order::ChildrenFirst)
    };
    walk::walk(&core.dmu().zio, root, &spec, &mut EachBlock(f))
}

/// What [`Dsl::free_some`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Blocks freed.
    pub blocks: u64,
    /// Something is left.
    pub more: bool,
}

impl Dsl {
    /// Frees blocks of those that wait, through `free` (which frees one block in this txg).
    ///
    /// `take(n)` is asked before `n` blocks are freed and says whether they may be; `take(0)` asks whether any more may.
    /// When it says no, how far the work has come is stored, and the next call goes on there.
    pub fn free_some(
        &self,
        tx: &Tx,
        take: &mut dyn FnMut(u64) -> bool,
        free: &mut dyn FnMut(&BlkPtr) -> Result<()>,
    ) -> Result<Freed> {
        let core = &self.core;
        core.need_syncing(tx)?;
        let Some(free_dir) = core.special_dir("$FREE")? else {
            return Ok(Freed::default());
        };
        let left = |blocks| Freed { blocks, more: true };
        let mut done = 0;
        let mut one = |bp: &BlkPtr| -> Result<bool> {
            if !take(1) {
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
                let (gone, empty) = b.drain(&core.mos, tx, &mut one)?;
                free_dir.diduse(tx, Used::Head, -gone)?;
                if !empty {
                    return Ok(left(done));
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
                let from = Zbookmark::from_words(e.bookmark);
                let at = some_blocks(core, &e.bp, e.birth_txg, from, &mut |bp| {
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
                        e.bookmark = pos.destroyed_words();
                        if !mutated(Mutation::FreeingPlaceLost) {
                            tree.put_first(tx, &e)?;
                        }
                        return Ok(left(done));
                    }
                    None => tree.pop(tx)?,
                }
            }
            tree.destroy(core, tx)?;
        }
        if !self.free_livelists(tx, &mut one)? {
            return Ok(left(done));
        }
        self.leak_rest(tx, &free_dir)?;
        Ok(Freed {
            blocks: done,
            more: false,
        })
    }

    /// Space that was to be freed in this txg and could not be found because of damage: `bytes`
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
        some_blocks(
            &self.core,
            &e.bp,
            e.birth_txg,
            Zbookmark::from_words(e.bookmark),
            &mut |bp| {
                out.push(*bp);
                Ok(true)
            },
        )?;
        Ok(out)
    }
}
