//! The bptree: block trees of destroyed datasets that are freed in the background (data format §11.2).

use crate::core::{bump, Core, Triple, ASYNC_DESTROY};
use base::{Error, Result, Txg};
use disk::dsl::{BptreeEntry, BptreePhys, BPTREE_ENTRY_SIZE};
use disk::{BlkPtr, ObjType};
use dmu::{Dnode, NewObject, Tx};
use std::sync::Arc;
use zap::Zap;

const KEY: &str = "bptree_obj";

pub(crate) struct Bptree {
    dn: Arc<Dnode>,
    /// The bonus: first and last entry, and sums.
    pub phys: BptreePhys,
}

impl Bptree {
    /// The pool's, if there is one.
    pub fn open(core: &Core) -> Result<Option<Bptree>> {
        let Some(o) = core.directory_get(KEY)? else {
            return Ok(None);
        };
        let dn = core.hold(o)?;
        let phys = BptreePhys::decode(&dn.bonus())?;
        let i = dn.info();
        let room = i
            .max_blkid
            .saturating_add(1)
            .saturating_mul(i.block_size as u64);
        if phys.begin > phys.end || phys.end.saturating_mul(BPTREE_ENTRY_SIZE as u64) > room {
            return Err(Error::damaged("bptree: impossible bounds"));
        }
        Ok(Some(Bptree { dn, phys }))
    }

    fn create(core: &Core, tx: &Tx) -> Result<Bptree> {
        let phys = BptreePhys::default();
        let dn = core.new_object(
            tx,
            NewObject {
                obj_type: ObjType::U64_METADATA,
                block_size: 128 << 10,
                bonus_type: ObjType::U64_METADATA,
                bonus: phys.encode(),
                ..NewObject::default()
            },
        )?;
        Zap::new(&core.directory()?).add_u64(tx, KEY, dn.object())?;
        core.features.activate(tx, ASYNC_DESTROY, 1)?;
        Ok(Bptree { dn, phys })
    }

    /// Adds the blocks below `bp` born after `after`, whose space is `t`.
    pub fn add(core: &Core, tx: &Tx, bp: &BlkPtr, after: Txg, t: Triple) -> Result<()> {
        let mut me = match Bptree::open(core)? {
            Some(b) => b,
            None => Bptree::create(core, tx)?,
        };
        let e = BptreeEntry {
            bp: *bp,
            birth_txg: after,
            bookmark: [0; 4],
        };
        let at = me.phys.end * BPTREE_ENTRY_SIZE as u64;
        me.dn.write(tx, at, &e.encode())?;
        me.phys.end += 1;
        me.count(tx, t)
    }

    /// Adds to the sums (or takes away, if negative) and stores the bonus.
    pub fn count(&mut self, tx: &Tx, t: Triple) -> Result<()> {
        bump(&mut self.phys.bytes, t.used);
        bump(&mut self.phys.comp, t.comp);
        bump(&mut self.phys.uncomp, t.uncomp);
        self.dn.set_bonus(tx, &self.phys.encode())
    }

    /// The first entry, if there is one; `Some(None)` if it cannot be read.
    pub fn first(&self) -> Result<Option<Option<BptreeEntry>>> {
        if self.phys.begin >= self.phys.end {
            return Ok(None);
        }
        let mut b = [0; BPTREE_ENTRY_SIZE];
        let at = self.phys.begin * BPTREE_ENTRY_SIZE as u64;
        let e = self.dn.read(at, &mut b);
        match e.and_then(|()| BptreeEntry::decode(&b)) {
            Err(e) if e.is_damage() => Ok(Some(None)),
            e => Ok(Some(Some(e?))),
        }
    }

    /// Stores how far the first entry has come.
    pub fn put_first(&self, tx: &Tx, e: &BptreeEntry) -> Result<()> {
        let at = self.phys.begin * BPTREE_ENTRY_SIZE as u64;
        self.dn.write(tx, at, &e.encode())
    }

    /// The first entry is finished.
    pub fn pop(&mut self, tx: &Tx) -> Result<()> {
        let at = self.phys.begin * BPTREE_ENTRY_SIZE as u64;
        match self.dn.free_range(tx, at, BPTREE_ENTRY_SIZE as u64) {
            // It goes with the whole list.
            Err(e) if e.is_damage() => {}
            r => r?,
        }
        self.phys.begin += 1;
        self.dn.set_bonus(tx, &self.phys.encode())
    }

    /// Takes an empty one away.
    pub fn destroy(self, core: &Core, tx: &Tx) -> Result<()> {
        Zap::new(&core.directory()?).remove(tx, KEY)?;
        core.features.activate(tx, ASYNC_DESTROY, -1)?;
        core.free_object(tx, self.dn.object())
    }
}
