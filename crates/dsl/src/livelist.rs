//! Livelists (data format §11.1): the blocks that a clone has allocated and freed since its creation. With them a
//! clone is destroyed without a walk over the blocks it shares with its origin.
//!
//! A clone is destroyed in steps, over as many txgs as it takes: each frees blocks from the end of a sub-list and leaves a
//! livelist of the rest, in the same txg ([`Dsl::free_some`]).

use crate::bpobj::is_unreadable;
use crate::core::{Triple, LIVELIST};
use crate::deadlist::Change;
use crate::{Bpobj, Dataset, Deadlist, Dir, Dsl};
use base::mutation::{mutated, Mutation};
use base::Result;
use disk::dsl::Used;
use disk::{BlkPtr, ObjType};
use dmu::Tx;
use std::collections::BTreeSet;
use std::sync::Arc;
use zap::Zap;

/// Object-directory key: the livelists of destroyed clones.
const DELETED: &str = disk::mos_keys::DELETED_CLONES;
/// Entries after which a new sub-list begins.
const MAX_ENTRIES: u64 = 500_000;
/// A livelist is given up when the clone shares at most this percentage of its bytes with its origin.
const MIN_SHARED: u64 = 75;
/// Entries of a destroyed clone's list that a step reads: 32 MiB. More only where they are FREEs whose ALLOCs are still to come.
const READ_AT_ONCE: u64 = if cfg!(test) { 64 } else { 1 << 18 };
/// FREEs whose ALLOCs are still to come, for which a step has memory: some 150 MiB. A sub-list has no more than it ever had
/// blocks at once, so [`MAX_ENTRIES`] and those of one txg.
const MOST_FREES: usize = 8 * MAX_ENTRIES as usize;
/// Sub-lists that a step takes away at most, however little is in them.
const SUBLISTS_AT_ONCE: u64 = 4096;
/// Destroyed clones that are looked up at once.
const LISTS_AT_ONCE: usize = 1024;

impl Dir {
    /// The object of the livelist, if there is one.
    pub(crate) fn livelist(&self) -> Result<Option<u64>> {
        self.extra(LIVELIST)
    }

    /// Gives a new clone its livelist.
    pub(crate) fn start_livelist(&self, tx: &Tx) -> Result<()> {
        let core = &self.core;
        if !core.features.is_enabled(LIVELIST) {
            return Ok(());
        }
        core.zapify(tx, &self.dn)?;
        // The feature is active before the lists are made: their form depends on it.
        core.features.activate(tx, LIVELIST, 1)?;
        let list = Deadlist::create(core, tx)?;
        Zap::new(&self.dn).add_u64(tx, LIVELIST, list.object())
    }

    /// Takes the livelist away, for example because the clone becomes something else. Without it,
    /// destroying the clone takes longer.
    pub(crate) fn drop_livelist(&self, tx: &Tx) -> Result<()> {
        let core = &self.core;
        let Some(o) = self.livelist()? else {
            return Ok(());
        };
        Deadlist::open(&core.mos, o)?.free(core, tx)?;
        Zap::new(&self.dn).remove(tx, LIVELIST)?;
        core.features.activate(tx, LIVELIST, -1)
    }
}

impl Dataset {
    /// Appends what a txg has allocated and freed, in that order of time.
    pub(crate) fn flush_livelist(&self, tx: &Tx, changes: &[Change]) -> Result<()> {
        let dir = self.dir();
        let Some(o) = dir.livelist()? else {
            return Ok(());
        };
        let core = &self.core;
        let referenced = self.phys().referenced_bytes;
        let own = dir.phys().used(Used::Head);
        let shared = referenced.saturating_sub(own);
        if referenced != 0 && shared.saturating_mul(100) / referenced <= MIN_SHARED {
            return dir.drop_livelist(tx);
        }
        if changes.is_empty() {
            return Ok(());
        }
        let mut list = Deadlist::open(&core.mos, o)?;
        let last = list.keys().into_iter().next_back();
        let full = match last {
            None => true,
            Some((_, o)) if o == core.empty_bpobj()? => false,
            Some((_, o)) => {
                let p = Bpobj::open(&core.mos, o)?.phys;
                p.num_blkptrs.saturating_sub(p.num_freed.saturating_mul(2)) > MAX_ENTRIES
            }
        };
        if full {
            list.add_key(core, tx, tx.txg().before(1))?;
        }
        list.insert_changes(core, tx, changes)
    }
}

impl Dsl {
    /// Instead of freeing the blocks of a destroyed clone: leaves its livelist to the background.
    /// False: it has none.
    pub(crate) fn leave_livelist(&self, tx: &Tx, dir: &Arc<Dir>) -> Result<bool> {
        let core = &self.core;
        let Some(o) = dir.livelist()? else {
            return Ok(false);
        };
        let top = core.directory()?;
        let map = match Zap::new(&top).get(DELETED)? {
            Some(m) => core.hold(m)?,
            None => {
                let dn = core.new_zap(tx, ObjType::ZAP_METADATA, 0)?;
                Zap::new(&top).add_u64(tx, DELETED, dn.object())?;
                dn
            }
        };
        Zap::new(&map).add_int(tx, o)?;
        let t = Deadlist::space_of(&core.mos, o)?;
        let gone = Triple {
            // Blocks embedded in their pointers are in no list.
            uncomp: -(dir.phys().uncompressed_bytes as i64),
            ..-t
        };
        dir.diduse(tx, Used::Head, gone)?;
        core.free_dir()?.diduse(tx, Used::Head, t)?;
        Zap::new(&dir.dn).remove(tx, LIVELIST)?;
        Ok(true)
    }

    /// Frees what destroyed clones had, while `one` frees a block and says that it did. False: something is left.
    pub(crate) fn free_livelists(
        &self,
        tx: &Tx,
        one: &mut dyn FnMut(&BlkPtr) -> Result<bool>,
    ) -> Result<bool> {
        let core = &self.core;
        let top = core.directory()?;
        let Some(map) = Zap::new(&top).get(DELETED)? else {
            return Ok(true);
        };
        let dn = core.hold(map)?;
        let mut read = 0;
        loop {
            let some: Result<Vec<u64>> = Zap::new(&dn)
                .iter()
                .take(LISTS_AT_ONCE)
                .map(|e| e?.value.to_u64())
                .collect();
            let some = some?;
            if some.is_empty() {
                break;
            }
            for o in some {
                let mut list = Deadlist::open(&core.mos, o)?;
                while let Some((key, sub)) = list.keys().into_iter().next() {
                    if read >= READ_AT_ONCE
                        || !self.free_sublist(tx, &mut list, sub, &mut read, one)?
                    {
                        return Ok(false);
                    }
                    list.remove_list(core, tx, key)?;
                }
                list.free(core, tx)?;
                Zap::new(&dn).remove_int(tx, o)?;
                core.features.activate(tx, LIVELIST, -1)?;
            }
        }
        Zap::new(&top).remove(tx, DELETED)?;
        core.free_object(tx, map)?;
        Ok(true)
    }

    /// Frees what a sub-list has, from its end, until `one` says no or enough was read, and counts what it reads. False:
    /// something is left; what the sub-list then holds is a livelist of exactly that.
    ///
    /// A FREE takes back an ALLOC before it. So what the end of a sub-list allocates and does not free is in use, and
    /// the FREEs in it that have no ALLOC there belong to ALLOCs further to the front: they have to stay.
    fn free_sublist(
        &self,
        tx: &Tx,
        list: &mut Deadlist,
        sub: u64,
        read: &mut u64,
        one: &mut dyn FnMut(&BlkPtr) -> Result<bool>,
    ) -> Result<bool> {
        let core = &self.core;
        *read += READ_AT_ONCE / SUBLISTS_AT_ONCE;
        if sub == core.empty_bpobj()? {
            return Ok(true);
        }
        // Of what cannot be read, and of what contradicts itself, nobody can say which blocks are still there: none is
        // freed, and their space is given up.
        let mut entries = match Bpobj::open(&core.mos, sub) {
            Err(e) if is_unreadable(&e) => return Ok(true),
            b => b?,
        };
        if entries.phys.num_freed > entries.phys.num_blkptrs / 2 {
            return Ok(true);
        }
        let mut tail = Tail::new(entries.phys.num_blkptrs);
        let whole = entries.each_backwards(&mut |i, bp, freed| {
            if tail.is_enough() {
                return Ok(false);
            }
            if freed {
                return Ok(tail.free(i, bp));
            }
            if !tail.allocate(bp) {
                if !one(bp)? {
                    return Ok(false);
                }
                tail.gone += core.triple(bp);
            }
            tail.start = i;
            Ok(true)
        })?;
        *read += tail.read();
        core.free_dir()?.diduse(tx, Used::Head, -tail.gone)?;
        if !whole || tail.start == 0 || tail.frees.len() > MOST_FREES {
            return Ok(true);
        }
        if tail.start < entries.phys.num_blkptrs {
            let mut kept: Vec<u64> = tail.frees.iter().map(|(.., i)| *i).collect();
            kept.sort_unstable();
            if mutated(Mutation::LivelistForgetsFrees) {
                kept.clear();
            }
            entries.cut(tx, tail.start, &kept, tail.pairs, tail.gone)?;
            list.add_total(tx, -tail.gone)?;
        }
        Ok(false)
    }
}

/// The end of a sub-list, as far as a step has come.
struct Tail {
    /// Entries of the sub-list, and the first one of the tail.
    count: u64,
    start: u64,
    /// FREEs that have no ALLOC in the tail: vdev, offset, number of the entry.
    frees: BTreeSet<(u64, u64, u64)>,
    /// FREEs that have one.
    pairs: u64,
    /// Space of what was freed.
    gone: Triple,
}

impl Tail {
    fn new(count: u64) -> Tail {
        Tail {
            count,
            start: count,
            frees: BTreeSet::new(),
            pairs: 0,
            gone: Triple::default(),
        }
    }

    fn read(&self) -> u64 {
        self.count - self.start
    }

    /// A step has read enough, and the sub-list gets shorter by half of that at least.
    fn is_enough(&self) -> bool {
        self.read() >= READ_AT_ONCE && self.read() / 2 >= self.frees.len() as u64
    }

    /// Takes in a FREE. False: there are too many.
    fn free(&mut self, i: u64, bp: &BlkPtr) -> bool {
        let d = bp.dva(0);
        self.frees.insert((d.vdev(), d.offset(), i));
        self.start = i;
        self.frees.len() <= MOST_FREES
    }

    /// Whether a later FREE takes an ALLOC back.
    fn allocate(&mut self, bp: &BlkPtr) -> bool {
        let d = bp.dva(0);
        let (vdev, offset) = (d.vdev(), d.offset());
        let all = (vdev, offset, 0)..=(vdev, offset, u64::MAX);
        let Some(later) = self.frees.range(all).next().copied() else {
            return false;
        };
        self.frees.remove(&later);
        self.pairs += 1;
        true
    }
}
