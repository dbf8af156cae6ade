//! The blocks that a redaction bookmark lists: those of files of a snapshot that none of the redaction
//! snapshots has any more.
//!
//! Each redaction snapshot descends from the snapshot, so that a traversal of what was born later finds the blocks it has
//! changed or freed. The list is where all of them have changed. Objects that are gone, or wait to be deleted, count as
//! changed throughout.

use base::{Result, Txg};
use disk::dnode::DNODES_PER_BLOCK;
use disk::dsl::RedactBlock;
use disk::{os_type, BlkPtr, DnodePhys, ObjType};
use dmu::Objset;
use std::collections::BTreeSet;
use walk::{
    Births, Finding, Holes, Next, Order, Spec, Visitor, Zbookmark, META_DNODE, SPILL_BLKID,
};
use zap::Zap;

/// Numbers of objects from here on are those of accounting.
const SPECIAL_OBJECTS: u64 = u64::MAX - 2;
/// Object of a file system whose entry leads to the files that wait to be deleted.
const MASTER_NODE: u64 = 1;

/// A place among all blocks of an object set: object, then block.
type At = (u64, u64);

/// Ranges of blocks, half-open, ascending, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed(Vec<(At, At)>);

impl Changed {
    /// Adds a range that does not begin before the last one.
    fn add(&mut self, from: At, to: At) {
        match self.0.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => self.0.push((from, to)),
        }
    }

    /// What is in both.
    pub fn and(&self, other: &Changed) -> Changed {
        let mut out = Changed::default();
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let (from, to) = (x.0.max(y.0), x.1.min(y.1));
            if from < to {
                out.0.push((from, to));
            }
            match x.1 <= y.1 {
                true => a.next(),
                false => b.next(),
            };
        }
        out
    }
}

struct Collector<'a> {
    changed: Changed,
    deleted: BTreeSet<u64>,
    go_on: &'a mut dyn FnMut() -> Result<()>,
}

impl Collector<'_> {
    fn whole(&mut self, object: u64) {
        self.changed.add((object, 0), (object.saturating_add(1), 0));
    }
}

impl Visitor for Collector<'_> {
    fn free_slot(&mut self, object: u64) -> Result<()> {
        if object != META_DNODE {
            self.whole(object);
        }
        Ok(())
    }

    fn dnode(&mut self, object: u64, _: &DnodePhys) -> Result<Next> {
        if object >= SPECIAL_OBJECTS {
            return Ok(Next::Skip);
        }
        if self.deleted.contains(&object) {
            self.whole(object);
            return Ok(Next::Skip);
        }
        Ok(Next::Descend)
    }

    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, dn: Option<&DnodePhys>) -> Result<Next> {
        (self.go_on)()?;
        let Some(dn) = dn.filter(|_| at.level >= 0 && at.blkid != SPILL_BLKID) else {
            return Ok(Next::Descend);
        };
        if !bp.is_hole() && (at.level > 0 || at.object == META_DNODE) {
            return Ok(Next::Descend);
        }
        let shift = at.level.clamp(0, 16) as u32 * dn.epb_shift();
        let Some(span) = 1u64.checked_shl(shift) else {
            return Ok(Next::Descend);
        };
        let first = span.saturating_mul(at.blkid);
        let end = first.saturating_add(span);
        match at.object {
            META_DNODE => self.changed.add(
                (first.saturating_mul(DNODES_PER_BLOCK).max(1), 0),
                (end.saturating_mul(DNODES_PER_BLOCK), 0),
            ),
            object => self.changed.add((object, first), (object, end)),
        }
        Ok(Next::Descend)
    }

    fn finding(&mut self, f: Finding) -> Result<()> {
        Err(f.problem.error().clone())
    }
}

/// The blocks that the snapshot `os` has changed since `after`.
///
/// # Errors
/// Those of reading its metadata; `Access` if it is encrypted and its key is not loaded; those of `go_on`, which is asked
/// at each block.
pub fn changed(os: &Objset, after: Txg, go_on: &mut dyn FnMut() -> Result<()>) -> Result<Changed> {
    let mut deleted = BTreeSet::new();
    if os.os_type() == os_type::ZFS {
        let master = os.hold(MASTER_NODE)?;
        if let Some(queue) = Zap::new(&master).get("DELETE_QUEUE")? {
            let queue = os.hold(queue)?;
            for e in Zap::new(&queue).iter() {
                deleted.insert(e?.value.to_u64()?);
            }
        }
    }
    let mut c = Collector {
        changed: Changed::default(),
        deleted,
        go_on,
    };
    let spec = Spec {
        after,
        births: Births::Logical,
        order: Order::ParentsFirst,
        holes: Holes::All,
        crypt: os.crypt(),
        resume: None,
        in_use: zio::InUse::Now,
    };
    walk::walk(&os.dmu().zio, &os.root(), &spec, &mut c)?;
    Ok(c.changed)
}

/// The redaction list of the snapshot `os`: of the ranges those that are blocks of files or volumes.
///
/// # Errors
/// Those of reading its dnodes.
pub fn list(os: &Objset, ranges: &Changed) -> Result<Vec<RedactBlock>> {
    let mut out: Vec<RedactBlock> = Vec::new();
    for (from, to) in &ranges.0 {
        // The object in which the range begins, then those behind it.
        let mut next = match from.0.checked_sub(1) {
            Some(before) => os.next_object(before)?,
            None => os.next_object(0)?,
        };
        while let Some(object) = next.filter(|o| (*o, 0) < *to) {
            let info = os.hold(object)?.info();
            let first = if object == from.0 { from.1 } else { 0 };
            let end = if object == to.0 { to.1 } else { u64::MAX };
            let end = end.min(info.max_blkid.saturating_add(1));
            let is_data = matches!(info.obj_type, ObjType::PLAIN_FILE_CONTENTS | ObjType::ZVOL);
            if is_data && first < end {
                out.push(RedactBlock {
                    object,
                    blkid: first,
                    block_size: info.block_size as u64,
                    count: end - first,
                });
            }
            next = os.next_object(object)?;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_all_snapshots_changed_is_in_the_list() {
        let of = |ranges: &[(At, At)]| {
            let mut c = Changed::default();
            ranges.iter().for_each(|(a, b)| c.add(*a, *b));
            c
        };
        let a = of(&[((1, 0), (1, 4)), ((1, 4), (1, 6)), ((5, 0), (8, 0))]);
        assert_eq!(a.0.len(), 2, "ranges that touch are one");
        let b = of(&[((1, 5), (1, 9)), ((6, 2), (6, 3)), ((7, 7), (9, 0))]);
        let both = of(&[((1, 5), (1, 6)), ((6, 2), (6, 3)), ((7, 7), (8, 0))]);
        assert_eq!(a.and(&b), both);
        assert_eq!(b.and(&a), both);
        assert_eq!(a.and(&Changed::default()), Changed::default());
    }
}
