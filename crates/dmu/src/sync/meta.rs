//! Writing the blocks of dnodes and the object set block.

use super::data::{Out, BATCH_BLOCKS};
use super::tree::Changes;
use super::{Pass, Shape};
use crate::content::Content;
use crate::dnode::{Dnode, Job};
use crate::objset::{objset_macs, Objset};
use crate::shape::DnodeSeal;
use crate::tree::{Reader, Synced};
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{Block, RangeSet, Result};
use codec::compress;
use disk::crypt::OBJSET_MACS;
use disk::dnode::{self, objset::ObjsetPhys, DNODES_PER_BLOCK, DNODE_BLOCK, DNODE_SIZE};
use disk::{BlkPtr, Checksum, Compression, DnodePhys, ObjType};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use zio::{Crypt, RawSeal, ReadSpec};

/// Blocks of dnodes that were found readable before anything of their objects was written.
#[derive(Default)]
pub(super) struct DnodeBlocks {
    /// `None`: not readable.
    pub(super) known: BTreeMap<u64, Option<Block>>,
    pub(super) held: usize,
}

/// Blocks of dnodes held in memory over the writing of their objects; further ones are read again.
pub(super) const HELD_DNODE_BLOCKS: usize = 2048;

/// The bytes behind the pointers of a dnode at `at`, up to the pointer of its spill block: they are
/// encrypted as a whole. `None` if the dnode has another shape now.
fn stored_bonus(
    b: &[u8],
    at: usize,
    before: Option<&DnodePhys>,
    now: &DnodePhys,
) -> Option<Arc<Vec<u8>>> {
    let before = before.filter(|d| {
        d.slots == now.slots
            && d.blkptr.len() == now.blkptr.len()
            && d.spill.is_some() == now.spill.is_some()
    })?;
    let from = at + dnode::DNODE_CORE + before.blkptr.len() * disk::BP_SIZE;
    let bytes = b.get(from..from + before.bonus_space())?;
    Some(Arc::new(bytes.to_vec()))
}

/// Puts such bytes back.
fn put_bonus(b: &mut [u8], at: usize, phys: &DnodePhys, bytes: &[u8]) {
    let from = at + dnode::DNODE_CORE + phys.blkptr.len() * disk::BP_SIZE;
    let n = bytes.len().min(phys.bonus_space());
    if let (Some(to), Some(bytes)) = (b.get_mut(from..from + n), bytes.get(..n)) {
        to.copy_from_slice(bytes);
    }
}

impl DnodeBlocks {
    fn take(&mut self, blk: u64) -> Option<Block> {
        let b = self.known.remove(&blk).flatten()?;
        (b.len() == DNODE_BLOCK).then_some(b)
    }
}

impl Objset {
    /// A block of dnodes as it is on disk, empty where there is none yet; `None` if it cannot be read.
    pub(super) fn dnode_block(&self, p: &Pass, s: &Synced, blk: u64) -> Result<Option<Block>> {
        let r = Reader::new(p.zio, p.crypt, p.policy.keep);
        let read = || match s.lookup(&r, blk)? {
            bp if bp.is_hole() => Ok(Block::default()),
            bp => r.read(&bp, blk),
        };
        match (read(), r.failed.get()) {
            (Ok(b), _) => Ok(Some(b)),
            (Err(e), _) if self.lost.must_stay(&e) => Err(e),
            (Err(e), Some(spot))
                if e.is_damage() && !p.policy.is_mos && spot.physical_birth < p.txg =>
            {
                self.meta.note_damage(&e, spot);
                Ok(None)
            }
            (Err(e), _) => Err(e),
        }
    }

    pub(super) fn dnode_phys(
        p: &Pass,
        job: &Job,
        blkptr: Vec<BlkPtr>,
        nlevels: u8,
        maxblkid: u64,
        spill: Option<BlkPtr>,
        used: i64,
    ) -> DnodePhys {
        let f = &job.f;
        let used = used.max(0) as u64;
        let mut flags = job.s.flags & !dnode::flags::SPILL_BLKPTR;
        if job.dn.object() < crate::PROJECTUSED_OBJECT {
            flags |= p.policy.accounting_flags;
            if let Crypt::Raw(_) = p.crypt {
                // Nobody was charged for it.
                flags &= !(dnode::flags::USERUSED_ACCOUNTED | dnode::flags::USEROBJUSED_ACCOUNTED);
            }
        }
        if p.policy.used_bytes {
            flags |= dnode::flags::USED_BYTES;
        }
        DnodePhys {
            obj_type: f.obj_type,
            indblkshift: f.indblkshift,
            nlevels,
            bonus_type: f.bonus_type,
            checksum: f.checksum,
            compress: f.compress,
            flags,
            datablkszsec: (f.block_size / 512) as u16,
            slots: f.slots,
            maxblkid,
            used: if flags & dnode::flags::USED_BYTES != 0 {
                used
            } else {
                used / 512
            },
            blkptr,
            bonus: f.bonus.clone(),
            spill,
        }
    }

    /// Writes the changed dnodes into the meta-dnode and returns its new form.
    pub(super) fn sync_meta(
        &self,
        p: &Pass,
        by_block: &BTreeMap<u64, Vec<usize>>,
        blocks: &mut DnodeBlocks,
        done: &[(Arc<Dnode>, Option<DnodePhys>)],
    ) -> Result<DnodePhys> {
        base::mutation::panic_point("writing the objects' block");
        let (s, f) = {
            let i = self.meta.read_lock();
            (i.s.clone(), i.f.clone())
        };
        let shape = Shape {
            obj_type: ObjType::DNODE,
            compress: Compression::INHERIT,
            checksum: Checksum::INHERIT,
            indblkshift: f.indblkshift,
        };
        let spec = p.spec(&shape, ObjType::DNODE, 0, false);
        let mut outs = Vec::new();
        let mut writes = [BTreeMap::new()];
        let mut deltas = [0];
        let mut maxblkid = f.maxblkid;
        let mut used = s.used as i64;
        for (blk, list) in by_block {
            maxblkid = maxblkid.max(*blk);
            let old = s.lookup(&Reader::new(p.zio, p.crypt, p.policy.keep), *blk)?;
            let mut b = match blocks.take(*blk) {
                Some(b) => b.to_vec(),
                None if old.is_hole() => vec![0; DNODE_BLOCK],
                None => p
                    .zio
                    .read_with(&old, &ReadSpec::with_key(p.crypt))?
                    .to_vec(),
            };
            for &n in list {
                let (dn, phys) = &done[n];
                let at = (dn.object() % DNODES_PER_BLOCK) as usize * DNODE_SIZE;
                let before = DnodePhys::decode(&b[at..])?;
                self.report(p, dn.object(), before.as_ref(), phys.as_ref())?;
                let kept = match (&self.crypt, phys) {
                    (Crypt::Raw(_), Some(phys)) => {
                        let raw = dn.read_lock().f.raw_bonus.clone();
                        raw.or_else(|| stored_bonus(&b, at, before.as_ref(), phys))
                    }
                    _ => None,
                };
                if let Some(before) = &before {
                    b[at..at + before.size()].fill(0);
                }
                if let Some(phys) = phys {
                    phys.encode(&mut b[at..at + phys.size()]);
                    if let Some(kept) = kept {
                        put_bonus(&mut b, at, phys, &kept);
                    }
                }
            }
            let mut fill = 0;
            let mut slot = 0;
            while slot < DNODES_PER_BLOCK as usize {
                let at = slot * DNODE_SIZE;
                fill += u64::from(b[at] != 0);
                slot += if b[at] == 0 {
                    1
                } else {
                    b[at + 12] as usize + 1
                };
            }
            let raw = self.raw_seal(*blk, &old, compress::is_zero(&b));
            outs.push(Out {
                job: 0,
                blkid: *blk,
                data: Content::Whole(Arc::new(b)),
                size: DNODE_BLOCK,
                spec,
                old,
                fill,
                partial: false,
                raw,
            });
            if outs.len() >= BATCH_BLOCKS {
                self.flush_outs(p, &[], &mut outs, &mut writes, &mut deltas)?;
            }
        }
        self.flush_outs(p, &[], &mut outs, &mut writes, &mut deltas)?;
        used += deltas[0];
        let changes = Changes {
            frees: &RangeSet::new(),
            writes: &writes[0],
            lsize0: DNODE_BLOCK,
        };
        let (blkptr, nlevels, d) = p.tree(&shape, &s, 3, (f.nlevels, maxblkid), &changes)?;
        used += d;
        let mut flags = s.flags;
        if p.policy.used_bytes {
            flags |= dnode::flags::USED_BYTES;
        }
        let used = used.max(0) as u64;
        Ok(DnodePhys {
            obj_type: ObjType::DNODE,
            indblkshift: f.indblkshift,
            nlevels,
            checksum: f.checksum,
            compress: f.compress,
            flags,
            datablkszsec: (DNODE_BLOCK / 512) as u16,
            slots: 1,
            maxblkid,
            used: if flags & dnode::flags::USED_BYTES != 0 {
                used
            } else {
                used / 512
            },
            blkptr,
            ..DnodePhys::default()
        })
    }

    /// How a block of dnodes is sealed in an object set that a raw stream fills. One without dnodes of which the stream says nothing is a
    /// hole, as on the sender's side.
    fn raw_seal(&self, blk: u64, old: &BlkPtr, is_empty: bool) -> Option<DnodeSeal> {
        if !matches!(self.crypt, Crypt::Raw(_)) {
            return None;
        }
        let mut seals = self.raw_seals.acquire();
        // Objects of the last one may still come, in a later txg.
        let told = match seals.last_key_value() {
            Some((last, seal)) if *last == blk => Some(*seal),
            _ => seals.remove(&blk),
        };
        drop(seals);
        let told = told.filter(|_| !mutated(Mutation::DnodeSealKept));
        // One that was written before has them in its pointer.
        let kept = || match old.is_encrypted() && !is_empty {
            true => DnodeSeal {
                seal: RawSeal {
                    salt: old.salt(),
                    iv: old.iv(),
                    mac: old.mac(),
                },
                big_endian: !old.is_little_endian(),
            },
            false => DnodeSeal::default(),
        };
        Some(told.unwrap_or_else(kept))
    }

    fn report(
        &self,
        p: &Pass,
        object: u64,
        old: Option<&DnodePhys>,
        new: Option<&DnodePhys>,
    ) -> Result<()> {
        p.hooks.dnode_synced(object, old, new)
    }

    pub(super) fn sync_root(
        &self,
        p: &Pass,
        meta: &DnodePhys,
        done: &[(Arc<Dnode>, Option<DnodePhys>)],
    ) -> Result<BlkPtr> {
        base::mutation::panic_point("writing the root block");
        let new: HashMap<u64, &Option<DnodePhys>> =
            done.iter().map(|(dn, phys)| (dn.object(), phys)).collect();
        let special = |object: u64, slot: &Mutex<Option<Arc<Dnode>>>| match new.get(&object) {
            Some(p) => (*p).clone(),
            None => slot.acquire().as_ref().and_then(|dn| dn.synced_phys()),
        };
        let special = [
            special(crate::USERUSED_OBJECT, &self.special[0]),
            special(crate::GROUPUSED_OBJECT, &self.special[1]),
            special(crate::PROJECTUSED_OBJECT, &self.special[2]),
        ];
        let (phys, old) = {
            let s = self.lock_state();
            (
                ObjsetPhys {
                    meta: meta.clone(),
                    zil_header: s.zil_header,
                    os_type: s.os_type,
                    os_flags: s.os_flags,
                    macs: s.macs,
                    special,
                    size: s.size,
                },
                s.root,
            )
        };
        let shape = Shape {
            obj_type: ObjType::OBJSET,
            compress: Compression::INHERIT,
            checksum: Checksum::INHERIT,
            indblkshift: 17,
        };
        let spec = p.spec(&shape, ObjType::OBJSET, 0, false);
        let mut data = phys.encode();
        if let Crypt::Raw(_) = p.crypt {
            // The MAC that no key of ours can make came with the stream.
        } else if let Some(key) = p.crypt.key() {
            let macs = objset_macs(key, &data)?;
            if let Some(to) = data.get_mut(OBJSET_MACS..OBJSET_MACS + macs.len()) {
                to.copy_from_slice(&macs);
            }
            self.lock_state().macs = macs;
        }
        let data = Arc::new(data);
        let prepared = p.prepare(&spec, &data)?;
        let fill = meta.blkptr.iter().map(BlkPtr::fill).sum();
        let (root, _) = p.replace(&spec, &prepared, &old, fill)?;
        p.zio.cache.insert(&root, data);
        Ok(root)
    }
}
