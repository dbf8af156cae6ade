//! Whether the metadata of a state are whole (behaviour §14.2): before others are given up for it.

use crate::Pool;
use base::{bail, Result, Txg};
use disk::dsl::DslDatasetPhys;
use disk::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, ObjType, BP_SIZE};

struct Check<'a> {
    pool: &'a Pool,
    after: Txg,
    /// Roots of datasets seen in the MOS.
    sets: Vec<BlkPtr>,
}

impl Pool {
    /// Reads all metadata born after a group; the first block that cannot be read is the error. Data
    /// of files are not looked at.
    pub(crate) fn check_metadata(&self, after: Txg) -> Result<()> {
        let mut c = Check {
            pool: self,
            after,
            sets: Vec::new(),
        };
        c.objset(&self.mos.root(), true)?;
        while let Some(bp) = c.sets.pop() {
            c.objset(&bp, false)?;
        }
        Ok(())
    }
}

impl Check<'_> {
    fn old(&self, bp: &BlkPtr) -> bool {
        bp.is_hole() || bp.is_embedded() || bp.birth() <= self.after
    }

    fn objset(&mut self, bp: &BlkPtr, mos: bool) -> Result<()> {
        if self.old(bp) {
            return Ok(());
        }
        if bp.obj_type() != ObjType::OBJSET {
            bail!(Damaged, "not an object set: {bp:?}");
        }
        let p = ObjsetPhys::decode(&self.pool.zio.read(bp)?)?;
        self.dnode(&p.meta, mos)?;
        for dn in p.special.iter().flatten() {
            self.dnode(dn, mos)?;
        }
        Ok(())
    }

    fn dnode(&mut self, dn: &DnodePhys, mos: bool) -> Result<()> {
        if mos && dn.bonus_type == ObjType::DSL_DATASET {
            self.sets.push(DslDatasetPhys::decode(&dn.bonus)?.bp);
        }
        for bp in &dn.blkptr {
            self.block(bp, dn, dn.nlevels.saturating_sub(1), mos)?;
        }
        match &dn.spill {
            Some(bp) if !self.old(bp) && !bp.is_encrypted() => self.pool.zio.read(bp).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn block(&mut self, bp: &BlkPtr, dn: &DnodePhys, level: u8, mos: bool) -> Result<()> {
        if self.old(bp) {
            return Ok(());
        }
        if bp.level() != level {
            bail!(Damaged, "expected a block of level {level}: {bp:?}");
        }
        if level > 0 {
            let b = self.pool.zio.read(bp)?;
            for i in 0..b.len() / BP_SIZE {
                self.block(&BlkPtr::at(&b, i)?, dn, level - 1, mos)?;
            }
            return Ok(());
        }
        if !dn.obj_type.is_metadata() || bp.uses_crypt() {
            return Ok(());
        }
        let b = self.pool.zio.read(bp)?;
        if dn.obj_type == ObjType::DNODE {
            let mut at = 0;
            while at < b.len() {
                match DnodePhys::decode(&b[at..])? {
                    Some(dn) => {
                        self.dnode(&dn, mos)?;
                        at += dn.size().max(512);
                    }
                    None => at += 512,
                }
            }
        }
        Ok(())
    }
}
