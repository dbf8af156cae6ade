//! Writing data blocks: transformed on all cores in batches, placed in order.

use super::{Pass, OVERLAP_BYTES};
use crate::content::Content;
use crate::dnode::{Job, TakenBlock};
use crate::objset::Objset;
use crate::shape::DnodeSeal;
use crate::tree::{Reader, Spot};
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, Block, Error, Kind, Result};
use codec::compress;
use disk::BlkPtr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use zio::{Prepared, WriteSpec};

/// Blocks and bytes prepared in parallel at a time.
pub(super) const BATCH_BLOCKS: usize = 512;

/// See [`BATCH_BLOCKS`].
pub(super) const BATCH_BYTES: usize = 16 << 20;

/// One block on its way out.
pub(super) struct Out {
    pub(super) job: usize,
    pub(super) blkid: u64,
    pub(super) data: Content,
    /// Of the block, bytes.
    pub(super) size: usize,
    pub(super) spec: WriteSpec,
    pub(super) old: BlkPtr,
    pub(super) fill: u64,
    /// Only parts of it were written.
    pub(super) partial: bool,
    /// It is in its stored form, sealed so.
    pub(super) raw: Option<DnodeSeal>,
}

/// Which of the blocks stay where they are, since the same bytes are stored there. Who writes a block that is damaged there
/// has it written anew.
fn kept(p: &Pass, outs: &[Out], prepared: &[Prepared]) -> BTreeSet<usize> {
    let is_same = |n: &usize| {
        let o = &outs[*n];
        o.raw.is_none() && p.zio.is_kept(&o.spec, &prepared[*n], &o.old)
    };
    let same: Vec<usize> = (0..outs.len()).filter(is_same).collect();
    if same.is_empty() {
        return BTreeSet::new();
    }
    let bps: Vec<BlkPtr> = same.iter().map(|n| outs[*n].old).collect();
    let reader = Reader::new(p.zio, p.crypt, p.policy.keep);
    let got = p.zio.read_many(&bps, &reader.whole());
    let legible = same.into_iter().zip(got).filter(|(_, b)| b.is_ok());
    legible.map(|(n, _)| n).collect()
}

impl Objset {
    pub(super) fn write_data(
        &self,
        p: &Pass,
        jobs: &[Job],
        writes: &mut [BTreeMap<u64, BlkPtr>],
        deltas: &mut [i64],
    ) -> Result<()> {
        let mut outs: Vec<Out> = Vec::new();
        let mut bytes = 0;
        for (n, job) in jobs.iter().enumerate() {
            if !job.f.allocated {
                continue;
            }
            let shape = job.f.shape();
            let spec = p.spec(&shape, job.f.obj_type, 0, false);
            for TakenBlock {
                blkid,
                data,
                placed,
                ..
            } in &job.blocks
            {
                let reader = Reader::new(p.zio, p.crypt, p.policy.keep);
                let freed = job.frees.contains(*blkid, blkid + 1);
                let found = || match freed {
                    true => Ok(BlkPtr::HOLE),
                    false => job.s.lookup(&reader, *blkid),
                };
                let old = match found() {
                    Ok(bp) => bp,
                    Err(e) if self.lost.must_stay(&e) => return Err(e),
                    Err(e) if e.is_damage() && !p.policy.is_mos => {
                        // It leads nowhere.
                        if let Some(spot) = reader.failed.get() {
                            job.dn.note_damage(&e, spot);
                        }
                        self.lost.lose(job.dn.object(), &e);
                        if let Some(bp) = placed {
                            p.zio.free_space(bp, p.txg)?;
                        }
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                if let Some(bp) = placed {
                    // Already where it belongs: early, or for the intent log.
                    let mut bp = **bp;
                    if !bp.is_embedded() {
                        bp.set_fill(1);
                    }
                    deltas[n] += p.zio.dsize(&bp) as i64;
                    p.hooks.born(&bp)?;
                    if let Some(b) = data.whole().filter(|_| !bp.is_embedded()) {
                        p.zio.cache.insert_whole(&bp, b.clone());
                    }
                    writes[n].insert(*blkid, bp);
                    continue;
                }
                if data.stored().is_some() {
                    bail!(Bug, "a block written early has no place");
                }
                bytes += job.f.block_size;
                outs.push(Out {
                    job: n,
                    blkid: *blkid,
                    data: data.clone(),
                    size: job.f.block_size,
                    spec,
                    old,
                    fill: 1,
                    partial: false,
                    raw: None,
                });
                if outs.len() >= BATCH_BLOCKS || bytes >= BATCH_BYTES {
                    self.flush_outs(p, jobs, &mut outs, writes, deltas)?;
                    bytes = 0;
                }
            }
        }
        self.flush_outs(p, jobs, &mut outs, writes, deltas)
    }

    /// Transforms a batch on all cores, then places the blocks in order.
    pub(super) fn flush_outs(
        &self,
        p: &Pass,
        jobs: &[Job],
        outs: &mut Vec<Out>,
        writes: &mut [BTreeMap<u64, BlkPtr>],
        deltas: &mut [i64],
    ) -> Result<()> {
        if outs.is_empty() {
            return Ok(());
        }
        // Fetch what partly written blocks lack.
        let partial: Vec<usize> = (0..outs.len())
            .filter(|n| outs[*n].data.needs_base())
            .collect();
        if !partial.is_empty() {
            let bps: Vec<BlkPtr> = partial.iter().map(|n| outs[*n].old).collect();
            // Read again where a device fails now and then: in syncing context `zio` does that.
            let reader = Reader::new(p.zio, p.crypt, p.policy.keep);
            let got = p.zio.read_many(&bps, &reader.whole());
            let mut lost = Vec::new();
            for (n, base) in partial.into_iter().zip(got) {
                let o = &mut outs[n];
                let base = match base {
                    _ if o.old.is_hole() => Block::default(),
                    Ok(b) => b,
                    // What a device does not read may be whole. In the meta object set others rest on what is
                    // written here, space maps above all: the txg must not go on without it.
                    Err(e) if e.kind == Kind::Io && p.policy.is_mos => return Err(e),
                    Err(e) if self.lost.must_stay(&e) => return Err(e),
                    // The rest of the block is gone for good. It stays as it is, an error for who
                    // reads it, rather than becoming something it never was. The pool's own metadata must
                    // not go missing.
                    Err(e) if e.is_damage() && !p.policy.is_mos => {
                        let spot = Spot {
                            level: 0,
                            blkid: o.blkid,
                            birth: o.old.logical_birth(),
                            physical_birth: o.old.physical_birth(),
                        };
                        if let Some(job) = jobs.get(o.job) {
                            job.dn.note_damage(&e, spot);
                            self.lost.lose(job.dn.object(), &e);
                        }
                        lost.push(n);
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                o.data = Content::Whole(o.data.onto(base, o.size));
                o.partial = true;
            }
            for n in lost.into_iter().rev() {
                outs.remove(n);
            }
        }
        let blocks: Vec<Block> = outs.iter().map(|o| o.data.over(&[], o.size)).collect();
        let slots: Vec<Mutex<Option<Result<Prepared>>>> =
            outs.iter().map(|_| Mutex::new(None)).collect();
        let cpu = &self.dmu.env.cpu;
        let (zio, txg, out) = (p.zio, p.txg, p.out);
        let transform = || {
            cpu.par_for(outs.len(), &|n| {
                let r = match outs[n].raw {
                    Some(raw) if raw != DnodeSeal::default() || !compress::is_zero(&blocks[n]) => {
                        out.prepare_dnodes(&outs[n].spec, &blocks[n], raw)
                    }
                    _ => {
                        let dn = jobs.get(outs[n].job).map(|job| &*job.dn);
                        out.prepare_of(&outs[n].spec, &blocks[n], dn)
                    }
                };
                *slots[n].acquire() = Some(r);
            });
        };
        if zio.queued_bytes() >= OVERLAP_BYTES {
            // The previous batch goes to the devices meanwhile.
            cpu.par_io(2, &|n| match n {
                0 => zio.drain_some(txg),
                _ => transform(),
            });
        } else {
            transform();
        }
        let streamed = self.dmu.is_streaming(txg);
        let prepared = slots.into_iter().map(|slot| {
            slot.into_inner()
                .unwrap_or_else(|e| e.into_inner())
                .unwrap_or_else(|| Err(Error::damaged("a transform was lost")))
        });
        let prepared: Vec<Prepared> = prepared.collect::<Result<_>>()?;
        let kept = kept(p, outs, &prepared);
        for (n, ((o, prepared), block)) in outs.drain(..).zip(prepared).zip(blocks).enumerate() {
            if kept.contains(&n) {
                // Nothing changes: neither this block nor those that lead to it.
                if mutated(Mutation::KeptBlockFreed) {
                    p.kill(&o.old)?;
                }
                p.zio.cache.insert_whole(&o.old, block);
                continue;
            }
            let (new, delta) = p.put(&o.spec, &prepared, &o.old, o.fill)?;
            // What is stored encrypted is not what readers with the key want.
            if !new.is_hole() && !new.is_embedded() && o.raw.is_none() {
                // Small changes come again to where they were; long streams do not.
                match o.partial || !streamed {
                    true => p.zio.cache.insert(&new, block),
                    false => p.zio.cache.insert_whole(&new, block),
                }
            }
            writes[o.job].insert(o.blkid, new);
            deltas[o.job] += delta;
        }
        Ok(())
    }
}
