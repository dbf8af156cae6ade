//! Reads the blocks that a change needs before the change is made, so that the caller gets the error and not
//! the txg: indirect blocks, and blocks of which a part stays. [`crate::sync`] says what happens to damage
//! found later.

use crate::dnode::Dnode;
use crate::tree::{indirect_fits, Reader, Synced};
use base::sync::MutexExt;
use base::{Kind, Result};
use disk::{BlkPtr, BP_SIZE};
use zio::{Crypt, ReadSpec, READ_AGAIN};

/// Indirect blocks that are read side by side.
const BATCH: usize = 16;

impl Dnode {
    /// Whether blocks that lead to `[offset, offset + len)` can be read, so that a write there can be
    /// linked. Damage is an error ([`base::Error::is_damage`]) and reported. To be called before a
    /// transaction is opened, since it may read; [`Dnode::write`] asks again.
    pub fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        let mut turns = 0;
        loop {
            let (s, gen, size) = {
                let i = self.read_lock();
                if !i.s.exists || i.s.nlevels < 2 || len == 0 {
                    return Ok(());
                }
                (i.s.clone(), i.gen, i.f.block_size as u64)
            };
            let first = s.ancestor(1, offset / size);
            let last = s.ancestor(1, (offset.saturating_add(len - 1)) / size);
            let known = |id| *self.checked.acquire() == Some((gen, id));
            if first == last && known(first) {
                return Ok(());
            }
            let r = self.reader();
            let found = (first..=last).try_for_each(|id| {
                let blkid = id.checked_shl(s.epbs()).unwrap_or(u64::MAX);
                s.lookup(&r, blkid).map(|_| ())
            });
            match found {
                Ok(()) => {
                    *self.checked.acquire() = Some((gen, last));
                    return Ok(());
                }
                // Not the blocks are the matter: the txg waits for the devices.
                Err(e) if e.is_damage() && self.dmu.zio.devices_away() => return Ok(()),
                Err(e) => self.read_failed(e, gen, r.failed.get(), &mut turns)?,
            }
        }
    }

    /// Whether the blocks that a write of `[offset, offset + len)` changes in part can be read: the sync
    /// needs the rest of them. Blocks that are dirty already were looked at before. Damage is an error and
    /// reported. To be called before a transaction is opened.
    pub fn check_edges(&self, offset: u64, len: u64) -> Result<()> {
        let edges = {
            let i = self.read_lock();
            let size = i.f.block_size as u64;
            let end = offset.saturating_add(len);
            let (first, last) = (offset / size, end / size);
            let head = (offset % size != 0 || first == last).then_some(first);
            let tail = (last > first && end % size != 0).then_some(last);
            [head, tail].map(|b| b.filter(|b| len > 0 && i.needs_old(*b)))
        };
        edges
            .into_iter()
            .flatten()
            .try_for_each(|b| self.check_readable(b))
    }

    fn check_readable(&self, blkid: u64) -> Result<()> {
        let (mut turns, mut again) = (0, READ_AGAIN);
        loop {
            let r = self.reader();
            let (s, gen) = {
                let i = self.read_lock();
                if !i.needs_old(blkid) {
                    return Ok(());
                }
                (i.s.clone(), i.gen)
            };
            match s.read(&r, blkid) {
                Ok(_) => return Ok(()),
                // Not the block is the matter: the txg waits for the devices.
                Err(e) if e.is_damage() && self.dmu.zio.devices_away() => return Ok(()),
                // The sync does the same.
                Err(e) if e.kind == Kind::Io && again > 0 => {
                    again -= 1;
                    self.dmu.zio.pause_before(again);
                }
                Err(e) => self.read_failed(e, gen, r.failed.get(), &mut turns)?,
            }
        }
    }

    /// Whether all blocks that lead to data in `[offset, offset + len)` can be read, so that the data
    /// can be found and freed. Damage is an error and reported. To be called before a transaction
    /// is opened; [`Dnode::free_range`] and [`crate::Objset::free`] ask again.
    pub fn check_free(&self, offset: u64, len: u64) -> Result<()> {
        let mut turns = 0;
        loop {
            let (s, gen, size) = {
                let i = self.read_lock();
                if !i.s.exists || i.s.nlevels < 2 || len == 0 {
                    return Ok(());
                }
                (i.s.clone(), i.gen, i.f.block_size as u64)
            };
            let first = offset / size;
            let last = (offset.saturating_add(len - 1) / size).min(s.maxblkid);
            let r = self.reader();
            let top = u32::from(s.nlevels) - 1;
            match below(&s, &r, &s.blkptr, top, 0, (first, last)) {
                Ok(()) => return Ok(()),
                // Not the blocks are the matter: the txg waits for the devices.
                Err(e) if e.is_damage() && self.dmu.zio.devices_away() => return Ok(()),
                Err(e) => self.read_failed(e, gen, r.failed.get(), &mut turns)?,
            }
        }
    }
}

/// Reads all indirect blocks of `level` and below that lead to data blocks of the range (inclusive);
/// `bps` are the pointers of that level from block id `id` on.
fn below(
    s: &Synced,
    r: &Reader,
    bps: &[BlkPtr],
    level: u32,
    id: u64,
    range: (u64, u64),
) -> Result<()> {
    let (first, last) = (s.ancestor(level, range.0), s.ancestor(level, range.1));
    let wanted: Vec<(u64, BlkPtr)> = (id..)
        .zip(bps)
        .filter(|(id, bp)| (first..=last).contains(id) && !bp.is_hole())
        .map(|(id, bp)| (id, *bp))
        .collect();
    // Indirect blocks are not encrypted.
    let spec = ReadSpec {
        crypt: &Crypt::Plain,
        ..r.spec()
    };
    for some in wanted.chunks(BATCH) {
        for (id, bp) in some {
            indirect_fits(bp, level, s.indblkshift).inspect_err(|_| r.failed(bp, *id))?;
        }
        let list: Vec<BlkPtr> = some.iter().map(|(_, bp)| *bp).collect();
        for ((id, bp), b) in some.iter().zip(r.zio.read_many(&list, &spec)) {
            let b = b.inspect_err(|_| r.failed(bp, *id))?;
            if level > 1 {
                let children: Result<Vec<BlkPtr>> =
                    (0..b.len() / BP_SIZE).map(|i| BlkPtr::at(&b, i)).collect();
                below(s, r, &children?, level - 1, id << s.epbs(), range)?;
            }
        }
    }
    Ok(())
}
