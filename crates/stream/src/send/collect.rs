//! The visitor that turns a traversal into items, in the order of the stream.
//!
//! 1. Only what is newer than the base is visited, but for three things: blocks that the base left out (its redaction list),
//!    blocks that this stream leaves out, which the base may have told, and spill blocks of objects whose dnode block is newer.
//! 2. Blocks of the redaction list are never read.

use super::emit::Emitter;
use super::fetch::Fetcher;
use super::item::Item;
use super::redacted::{Cursor, Run};
use base::{bail, Block, Error, Result};
use codec::compress;
use disk::dnode::{DNODES_PER_BLOCK, DNODE_CORE, DNODE_SIZE};
use disk::objset::ObjsetPhys;
use disk::stream::feature;
use disk::{BlkPtr, Compression, DnodePhys, BP_SIZE};
use dmu::Objset;
use walk::{Finding, Next, Visitor, Zbookmark, META_DNODE, ROOT_LEVEL, SPILL_BLKID};

/// Numbers of objects from here on are those of accounting.
const SPECIAL_OBJECTS: u64 = u64::MAX - 2;

/// Visits the snapshot that is sent.
pub(super) struct Collector<'a, 'o> {
    pub os: &'a Objset,
    pub features: u64,
    pub from_txg: base::Txg,
    pub fetcher: Fetcher<'a>,
    pub emitter: Emitter<'o>,
    /// First object of a stream that goes on, 0 else.
    pub resume_object: u64,
    /// Blocks to be left out.
    pub redact: Option<Cursor>,
    /// Blocks the base left out, which it does not have.
    pub lacking: Option<Cursor>,
    /// Asked now and then: whether to go on.
    pub check: &'a mut dyn FnMut() -> Result<()>,
    /// The dnode block being visited; raw streams only: stored bytes, decompressed, whether they are swapped, and the
    /// first object.
    dnodes: Option<(Vec<u8>, bool, u64)>,
}

/// What a collector starts from.
pub(super) struct Start<'a, 'o> {
    pub os: &'a Objset,
    pub features: u64,
    pub fetcher: Fetcher<'a>,
    pub emitter: Emitter<'o>,
    pub resume_object: u64,
    pub check: &'a mut dyn FnMut() -> Result<()>,
}

impl<'a, 'o> Collector<'a, 'o> {
    pub fn new(s: Start<'a, 'o>) -> Collector<'a, 'o> {
        Collector {
            os: s.os,
            features: s.features,
            from_txg: s.emitter.from_txg,
            fetcher: s.fetcher,
            emitter: s.emitter,
            resume_object: s.resume_object,
            redact: None,
            lacking: None,
            check: s.check,
            dnodes: None,
        }
    }

    /// Of the lists, what is in front of a place (object, block) was sent before.
    pub fn pass_to(&mut self, at: (u64, u64)) -> Result<()> {
        let lists = [&mut self.redact, &mut self.lacking];
        lists.into_iter().flatten().try_for_each(|c| c.pass_to(at))
    }

    fn is_raw(&self) -> bool {
        self.features & feature::RAW != 0
    }

    fn add(&mut self, item: Item) -> Result<()> {
        let e = &mut self.emitter;
        self.fetcher.add(item, &mut |i, got| e.item(i, got))
    }

    /// Writes all that was found.
    pub fn finish(&mut self) -> Result<()> {
        self.add_unvisited((u64::MAX, u64::MAX))?;
        let e = &mut self.emitter;
        self.fetcher.finish(&mut |i, got| e.item(i, got))?;
        self.emitter.flush()
    }

    /// Adds what the traversal does not come by, up to a place (object, block): blocks that the base lacks, and blocks of the
    /// redaction list that are as they were.
    fn add_unvisited(&mut self, up_to: (u64, u64)) -> Result<()> {
        loop {
            let lacking = match &mut self.lacking {
                Some(c) => c.peek(up_to)?.map(|r| (r.object, r.first)),
                None => None,
            };
            // What is lacking may be redacted, too: in order.
            let up_to = lacking.unwrap_or(up_to);
            let hidden = match &mut self.redact {
                Some(c) => c.peek(up_to)?,
                None => None,
            };
            match (hidden, lacking) {
                (Some(run), _) => self.hide(run)?,
                (None, Some(at)) => self.add_lacking(at)?,
                (None, None) => return Ok(()),
            }
        }
    }

    /// Blocks of the redaction list, which the cursor passes.
    fn hide(&mut self, run: Run) -> Result<()> {
        if let Some(c) = &mut self.redact {
            c.pass_to((run.object, run.first.saturating_add(run.count)))?;
        }
        self.add(Item::Redacted {
            object: run.object,
            start: run.first,
            count: run.count,
            block_size: run.block_size,
        })
    }

    /// A block of the base's list, which the cursor passes.
    fn add_lacking(&mut self, (object, blkid): (u64, u64)) -> Result<()> {
        if let Some(c) = &mut self.lacking {
            c.pass_to((object, blkid.saturating_add(1)))?;
        }
        let dn = match self.os.hold(object) {
            Ok(dn) => dn,
            Err(e) if e.kind == base::Kind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        let info = dn.info();
        let (bp, block_size) = (dn.block_pointer(blkid)?, info.block_size);
        if bp.is_hole() || bp.logical_birth() > self.from_txg {
            // Not there any more, or visited anyway.
            return Ok(());
        }
        self.data(object, blkid, bp, info.obj_type.0, block_size)
    }

    fn data(
        &mut self,
        object: u64,
        blkid: u64,
        bp: BlkPtr,
        obj_type: u8,
        block_size: usize,
    ) -> Result<()> {
        let behind = (object, blkid.saturating_add(1));
        let hidden = match &mut self.redact {
            Some(c) => {
                let hidden = c.peek(behind)?;
                c.pass_to(behind)?;
                hidden.is_some()
            }
            None => false,
        };
        if hidden || bp.is_redacted() {
            return self.add(Item::Redacted {
                object,
                start: blkid,
                count: 1,
                block_size: block_size as u64,
            });
        }
        self.add(Item::Data {
            object,
            blkid,
            bp,
            obj_type,
            block_size,
        })
    }

    /// A hole. What is redacted of it is told apart, though there is nothing to hide.
    fn hole(&mut self, object: u64, start: u64, end: u64, block_size: u64) -> Result<()> {
        let mut from = start;
        while from < end {
            let run = match &mut self.redact {
                Some(c) => c.peek((object, end))?,
                None => None,
            };
            let first = run.as_ref().map_or(end, |r| r.first);
            if first > from {
                self.add(Item::Hole {
                    object,
                    start: from,
                    end: first,
                    block_size,
                })?;
            }
            from = first;
            if let Some(run) = run {
                from += run.count;
                self.hide(run)?;
            }
        }
        Ok(())
    }

    /// The bonus as it is stored, from the end of the pointers to that of the dnode.
    fn raw_bonus(&self, object: u64, dn: &DnodePhys) -> Result<(Vec<u8>, bool)> {
        let Some((b, swapped, first)) = &self.dnodes else {
            bail!(Damaged, "object {object}: its dnode block is not there");
        };
        let at = object.saturating_sub(*first) as usize * DNODE_SIZE;
        let from = at + DNODE_CORE + dn.blkptr.len() * BP_SIZE;
        match b.get(from..from + dn.bonus_space()) {
            Some(bonus) if !dn.bonus.is_empty() => Ok((bonus.to_vec(), *swapped)),
            Some(_) => Ok((Vec::new(), *swapped)),
            None => bail!(Damaged, "object {object}: dnode cut short"),
        }
    }

    /// A hole, a redacted block or a block of data of an object.
    fn found(&mut self, at: Zbookmark, bp: &BlkPtr, dn: &DnodePhys) -> Result<()> {
        let block_size = dn.block_size();
        if at.blkid == SPILL_BLKID {
            return match bp.is_hole() {
                true => Ok(()),
                false => self.add(Item::Spill {
                    object: at.object,
                    bp: *bp,
                }),
            };
        }
        let shift = at.level.clamp(0, 16) as u32 * dn.epb_shift();
        let span = 1u64.checked_shl(shift);
        let Some((span, start)) = span.and_then(|s| Some((s, s.checked_mul(at.blkid)?))) else {
            // No block can be that far behind: a hole that was never anything else.
            return Ok(());
        };
        if start > dn.maxblkid && !dn.obj_type.is_metadata() {
            return Ok(());
        }
        self.add_unvisited((at.object, start))?;
        if bp.is_hole() {
            let end = start.saturating_add(span);
            return self.hole(at.object, start, end, block_size as u64);
        }
        self.data(at.object, start, *bp, dn.obj_type.0, block_size)
    }
}

impl Visitor for Collector<'_, '_> {
    fn objset(&mut self, phys: &ObjsetPhys) -> Result<()> {
        self.emitter.set_meta(&phys.meta);
        Ok(())
    }

    fn dnodes(&mut self, at: Zbookmark, bp: &BlkPtr, b: &Block) -> Result<()> {
        (self.check)()?;
        if !self.is_raw() {
            return Ok(());
        }
        let first = at.blkid.saturating_mul(DNODES_PER_BLOCK);
        let slots = (b.len() / DNODE_SIZE) as u64;
        // Bonus buffers must stay as they are, also of a block of the other byte order.
        let stored = match bp.is_little_endian() {
            true => b.to_vec(),
            false => {
                let raw = self.os.dmu().zio.read_raw(bp)?;
                match bp.compress() {
                    Compression::OFF => raw,
                    c => compress::decompress(c, &raw, bp.lsize())?,
                }
            }
        };
        self.dnodes = Some((stored, !bp.is_little_endian(), first));
        self.add(Item::ObjectRange {
            first,
            slots,
            bp: *bp,
        })
    }

    fn free_slot(&mut self, object: u64) -> Result<()> {
        if object == META_DNODE {
            return Ok(());
        }
        self.add(Item::FreeSlots {
            first: object,
            count: 1,
        })
    }

    fn dnode(&mut self, object: u64, dn: &DnodePhys) -> Result<Next> {
        if object >= SPECIAL_OBJECTS {
            return Ok(Next::Skip);
        }
        if object < self.resume_object {
            return Ok(Next::Skip);
        }
        self.add_unvisited((object, 0))?;
        let (bonus, swapped) = match self.is_raw() {
            true => self.raw_bonus(object, dn)?,
            false => (dn.bonus.clone(), false),
        };
        self.add(Item::Object {
            object,
            dn: Box::new(dn.clone()),
            bonus,
            swapped,
        })?;
        match &dn.spill {
            // Receivers of old versions lose a spill block when the object changes in some ways.
            Some(bp) if bp.logical_birth() <= self.from_txg && !bp.is_hole() => {
                self.add(Item::Spill { object, bp: *bp })?
            }
            _ => {}
        }
        Ok(Next::Descend)
    }

    fn block(&mut self, at: Zbookmark, bp: &BlkPtr, dn: Option<&DnodePhys>) -> Result<Next> {
        let Some(dn) = dn.filter(|_| at.level > ROOT_LEVEL) else {
            return Ok(Next::Descend);
        };
        if at.object >= SPECIAL_OBJECTS {
            return Ok(Next::Skip);
        }
        if self.is_raw() && !bp.is_hole() && !bp.uses_crypt() {
            bail!(
                Damaged,
                "object {}: a block that is not encrypted in an encrypted dataset",
                at.object
            );
        }
        let is_tree = at.level > 0 || at.object == META_DNODE;
        if !bp.is_hole() && is_tree {
            return Ok(Next::Descend);
        }
        (self.check)()?;
        self.found(at, bp, dn)?;
        Ok(Next::Descend)
    }

    fn finding(&mut self, f: Finding) -> Result<()> {
        let e: &Error = f.problem.error();
        Err(e.clone().context(format!("object {}", f.place.object)))
    }
}
