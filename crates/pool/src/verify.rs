//! The check after a rewind: whether all metadata of an older state can be read (behaviour §14.2).

use base::{Result, Txg};
use disk::dsl::DslDatasetPhys;
use disk::{BlkPtr, DnodePhys, ObjType};
use dmu::Objset;
use walk::{Finding, Next, Order, Spec, Visitor, Zbookmark};
use zio::Zio;

struct Check<'a> {
    zio: &'a Zio,
    /// Whether this is the MOS.
    mos: bool,
    /// Roots of datasets seen in the MOS.
    sets: Vec<BlkPtr>,
}

/// Reads all metadata of a pool born after a txg; the first block that cannot be read is the error. Data of files are not
/// looked at.
pub(crate) fn check_metadata(zio: &Zio, mos: &Objset, after: Txg) -> Result<()> {
    let mut c = Check {
        zio,
        mos: true,
        sets: Vec::new(),
    };
    let spec = Spec {
        after,
        ..Spec::all(Order::ParentsFirst)
    };
    walk::walk(zio, &mos.root(), &spec, &mut c)?;
    c.mos = false;
    for root in std::mem::take(&mut c.sets) {
        walk::walk(zio, &root, &spec, &mut c)?;
    }
    Ok(())
}

impl Visitor for Check<'_> {
    /// The traversal reads trees and dnodes by itself; the rest of metadata is read here.
    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, dn: Option<&DnodePhys>) -> Result<Next> {
        base::cancel::check()?;
        let Some(dn) = dn else {
            return Ok(Next::Descend);
        };
        let spill = at.blkid == walk::SPILL_BLKID;
        let metadata = spill || (dn.obj_type.is_metadata() && dn.obj_type != ObjType::DNODE);
        if at.level == 0 && metadata && !bp.is_embedded() && !bp.uses_crypt() {
            self.zio.read(bp)?;
        }
        Ok(Next::Descend)
    }

    fn dnode(&mut self, _: u64, dn: &DnodePhys) -> Result<Next> {
        if self.mos && dn.bonus_type == ObjType::DSL_DATASET {
            self.sets.push(DslDatasetPhys::decode(&dn.bonus)?.bp);
        }
        Ok(Next::Descend)
    }

    fn finding(&mut self, f: Finding) -> Result<()> {
        Err(f.problem.error().clone())
    }
}
