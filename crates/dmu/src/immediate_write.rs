//! Writing dirty blocks to their final addresses before their txg is written, for the intent log.

use crate::block_spec::{spec_for, with_nonce};
use crate::content::Content;
use crate::dnode::{Buf, Dnode};
use crate::sync::Transform;
use crate::tx::Tx;
use base::sync::MutexExt;
use base::{Block, Error, Kind, Result};
use disk::BlkPtr;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zio::{Prepared, WriteSpec};

/// A block on its way.
struct Placing {
    /// Index of the request.
    at: usize,
    data: Block,
    spec: WriteSpec,
    /// What is on disk, where the block may stay there.
    old: BlkPtr,
}

/// What is known of a block before anything is written.
enum Begun {
    Done(Option<BlkPtr>),
    Place(Block, WriteSpec, BlkPtr),
}

/// Writes dirty blocks of the transaction's (open) txg to their final places now, in one batch,
/// transformed on all cores; the sync of the txg then only links them. All objects belong to one
/// set. For each block its pointer, or `None`: not dirty in this txg, being changed at the
/// moment, or without a place of its own (holes, and what is to stay where it is since the same
/// bytes are there). Nothing is flushed.
pub fn write_now(tx: &Tx, blocks: &[(Arc<Dnode>, u64)]) -> Vec<Result<Option<BlkPtr>>> {
    place(tx, blocks, false)
}

/// The same for those that are whole, before anybody needs them there.
pub(crate) fn write_early(tx: &Tx, blocks: &[(Arc<Dnode>, u64)]) {
    place(tx, blocks, true);
}

fn place(tx: &Tx, blocks: &[(Arc<Dnode>, u64)], early: bool) -> Vec<Result<Option<BlkPtr>>> {
    let mut out: Vec<Option<Result<Option<BlkPtr>>>> = blocks.iter().map(|_| None).collect();
    // A block that is asked for twice is written once.
    let mut first: HashMap<(u64, u64), usize> = HashMap::new();
    let same: Vec<usize> = blocks
        .iter()
        .enumerate()
        .map(|(n, (dn, blkid))| *first.entry((dn.object(), *blkid)).or_insert(n))
        .collect();
    let wanted: Vec<usize> = (0..blocks.len()).filter(|n| same[*n] == *n).collect();
    if !early {
        complete(blocks, &wanted);
    }
    // Where the reader has a cache of its own nobody is likely to ask for them.
    let keep = |dn: &Dnode| dn.dmu.zio.cache.keeps_streams();
    let let_go = early && !blocks.first().is_some_and(|(dn, _)| keep(dn));
    let mut placing = Vec::new();
    for n in wanted {
        let (dn, blkid) = &blocks[n];
        match dn.begin_placing(tx, *blkid, early) {
            Ok(Begun::Done(r)) => out[n] = Some(Ok(r)),
            Ok(Begun::Place(data, spec, old)) => placing.push(Placing {
                at: n,
                data,
                spec,
                old,
            }),
            Err(e) => out[n] = Some(Err(e)),
        }
    }
    if placing
        .first()
        .is_some_and(|p| blocks[p.at].0.dmu.is_scarce())
    {
        // The sync needs what there is.
        placing.clear();
    }
    if let Some((dn, _)) = placing.first().map(|p| &blocks[p.at]) {
        for (p, r) in placing.iter().zip(store(tx, dn, blocks, &placing)) {
            let (dn, blkid) = &blocks[p.at];
            out[p.at] = Some(r.and_then(|bp| match bp {
                Some(bp) => dn.end_placing(tx, *blkid, &p.data, bp, let_go),
                None => Ok(None),
            }));
        }
    }
    let lost = || Err(Error::damaged("a placed block was lost"));
    (0..blocks.len())
        .map(|n| out[same[n]].clone().unwrap_or_else(lost))
        .collect()
}

/// Fetches in one batch what partly written blocks lack. What cannot be had that way is left.
fn complete(blocks: &[(Arc<Dnode>, u64)], wanted: &[usize]) {
    let Some((one, _)) = blocks.first() else {
        return;
    };
    let reader = one.reader();
    let (mut bps, mut who) = (Vec::new(), Vec::new());
    for &n in wanted {
        let (dn, blkid) = &blocks[n];
        let (s, gen) = {
            let i = dn.read_lock();
            match i.bufs.get(blkid) {
                Some(b) if b.data.lacks_old() => (i.s.clone(), i.gen),
                _ => continue,
            }
        };
        match s.lookup(&reader, *blkid) {
            Ok(bp) if !bp.is_hole() && bp.lsize() == s.block_size => {
                bps.push(bp);
                who.push((n, gen));
            }
            _ => {}
        }
    }
    if bps.len() < 2 {
        return;
    }
    let zio = &one.dmu.zio;
    let got = zio.read_many(&bps, &reader.whole());
    for ((n, gen), base) in who.into_iter().zip(got) {
        let (dn, blkid) = &blocks[n];
        if let Ok(base) = base {
            dn.complete_with(*blkid, gen, base);
        }
    }
}

/// Transforms and writes; one result for each block.
fn store(
    tx: &Tx,
    dn: &Dnode,
    blocks: &[(Arc<Dnode>, u64)],
    placing: &[Placing],
) -> Vec<Result<Option<BlkPtr>>> {
    let zio = &dn.dmu.zio;
    let rng = dn.dmu.env.rng.clone();
    let random = move |b: &mut [u8]| rng.fill(b);
    let out = Transform {
        zio,
        crypt: &dn.crypt,
        random: &random,
    };
    let slots: Vec<Mutex<Option<Result<Prepared>>>> =
        placing.iter().map(|_| Mutex::new(None)).collect();
    dn.dmu.env.cpu.par_for(placing.len(), &|n| {
        let of = blocks.get(placing[n].at).map(|(dn, _)| &**dn);
        let r = out.prepare_of(&placing[n].spec, &placing[n].data, of);
        *slots[n].acquire() = Some(r);
    });
    let prepared: Vec<Result<Prepared>> = slots
        .into_iter()
        .map(|s| {
            s.into_inner()
                .unwrap_or_else(|e| e.into_inner())
                .unwrap_or_else(|| Err(Error::damaged("a transform was lost")))
        })
        .collect();
    // What may stay where it is, is left to the sync.
    let is_new = |(p, r): &(&Placing, &Result<Prepared>)| match r {
        Ok(r) => !zio.is_kept(&p.spec, r, &p.old),
        Err(_) => false,
    };
    let new: Vec<bool> = placing.iter().zip(&prepared).map(|x| is_new(&x)).collect();
    let ready: Vec<(&WriteSpec, &Prepared)> = placing
        .iter()
        .zip(&prepared)
        .filter(is_new)
        .filter_map(|(p, r)| r.as_ref().ok().map(|r| (&p.spec, r)))
        .collect();
    let mut written = zio.write_through(&ready, tx.txg()).into_iter();
    let results = prepared
        .into_iter()
        .zip(new)
        .map(|(r, new)| match (r, new) {
            (Err(e), _) => Err(e),
            (Ok(_), true) => written.next().unwrap_or(Ok(None)),
            (Ok(_), false) => Ok(None),
        });
    results.collect()
}

impl Dnode {
    /// [`write_now`] for one block.
    pub fn write_now(&self, tx: &Tx, blkid: u64) -> Result<Option<BlkPtr>> {
        let me = self.me().ok_or_else(|| Error::from(Kind::Stale))?;
        write_now(tx, &[(me, blkid)]).pop().unwrap_or(Ok(None))
    }

    fn begin_placing(&self, tx: &Tx, blkid: u64, early: bool) -> Result<Begun> {
        base::mutation::panic_point("placing a block");
        if !early && self.placed(tx, blkid).is_none() {
            self.complete(blkid)?;
        }
        let (shape, ty, data) = {
            let i = self.read_lock();
            let data = match i.bufs.get(&blkid) {
                Some(b) if b.txg == tx.txg() && i.pend[tx.txg()].blocks.contains(&blkid) => {
                    if let Some(bp) = &b.placed {
                        return Ok(Begun::Done(Some(**bp)));
                    }
                    b.data.whole().cloned()
                }
                _ => None,
            };
            let Some(data) = data else {
                return Ok(Begun::Done(None));
            };
            let shape = i.f.shape();
            (shape, i.f.obj_type, data)
        };
        let policy = self.objset()?.policy();
        if policy.dedup.is_some() {
            // The tables are asked by the sync only.
            return Ok(Begun::Done(None));
        }
        let mut spec = spec_for(&policy, 1, &shape, ty, 0, false);
        // The log needs a place; else a block that fits into its pointer is left to the sync.
        spec.embed &= early;
        // One that may stay has no place of its own in this txg: the log gets its bytes.
        let old = match spec.may_keep() && !self.crypt.is_encrypted() {
            true => self.on_disk(blkid),
            false => BlkPtr::HOLE,
        };
        Ok(Begun::Place(data, with_nonce(spec, &self.crypt), old))
    }

    /// The block's pointer in the last txg that was written; a hole if it cannot be found.
    fn on_disk(&self, blkid: u64) -> BlkPtr {
        let s = self.read_lock().s.clone();
        s.lookup(&self.reader(), blkid).unwrap_or(BlkPtr::HOLE)
    }

    /// Where the block was placed in this txg, as it is now.
    fn placed(&self, tx: &Tx, blkid: u64) -> Option<BlkPtr> {
        let i = self.read_lock();
        let b = i.bufs.get(&blkid).filter(|b| b.txg == tx.txg())?;
        b.placed.as_deref().copied()
    }

    /// The block is where `bp` says, if nobody changed it meanwhile; its bytes need not stay in memory
    /// if `let_go`.
    fn end_placing(
        &self,
        tx: &Tx,
        blkid: u64,
        data: &Block,
        bp: BlkPtr,
        let_go: bool,
    ) -> Result<Option<BlkPtr>> {
        base::mutation::panic_point("a block that got its place");
        let mut i = self.write_lock();
        // Whoever changed the block meanwhile got a copy of the bytes.
        let same = |b: &&mut Buf| {
            b.txg == tx.txg() && b.data.whole().is_some_and(|w| Arc::ptr_eq(w, data))
        };
        let other = match i.bufs.get_mut(&blkid).filter(same) {
            Some(b) => match &b.placed {
                None => {
                    b.placed = Some(Box::new(bp));
                    if let_go {
                        b.data = Content::Stored(Box::new(bp));
                        self.dmu.let_go(tx.txg(), data.len() as u64);
                    }
                    return Ok(Some(bp));
                }
                // Somebody else was faster.
                Some(other) => Some(**other),
            },
            None => None,
        };
        drop(i);
        self.dmu.zio.free_space(&bp, tx.txg())?;
        Ok(other)
    }

    /// Makes a partly written block whole, if what is on disk is still `base`.
    fn complete_with(&self, blkid: u64, gen: u64, base: Block) {
        let mut i = self.write_lock();
        if i.gen != gen {
            return;
        }
        let size = i.f.block_size;
        if let Some(b) = i.bufs.get_mut(&blkid).filter(|b| b.data.lacks_old()) {
            let more = size - b.data.held().min(size);
            self.dmu.add_dirty(b.txg, more as u64);
            b.data = Content::Whole(b.data.onto(base, size));
        }
    }
}
