//! Writing a block: transform, allocate, queue (pool format §13, §14; behaviour §9).

use super::{Prepared, PreparedKind, StoredForm, WriteSpec, Zio};
use crate::cache::Key;
use crate::compression_history::CompressionHistory;
use crate::crypt::{self, Seal, Sealed};
use crate::seam::{Dedup, Purpose};
use base::{bail, roundup, Block, Kind, Result, Txg};
use codec::{checksum, compress};
use disk::{BlkPtr, Compression, ObjType};
use std::sync::Arc;

/// What compressing makes of a block.
enum Shrunk {
    /// All of it is zero.
    Hole,
    /// So little that it fits into the pointer.
    Embedded(Vec<u8>),
    /// These bytes, padded to what is allocated.
    To(Vec<u8>),
    /// Nothing that saves enough, or it was not tried.
    Not,
}

impl WriteSpec {
    /// Whether a block may stay that has the same bytes already; see [`Zio::is_kept`]. As in OpenZFS, not where compression is
    /// off.
    pub fn may_keep(&self) -> bool {
        checksum::is_nopwrite(self.checksum)
            && self.compress != Compression::OFF
            && !self.dedup
            && self.level == 0
            && !self.obj_type.is_metadata()
    }

    /// What a block of that stored size is for.
    pub(super) fn purpose(&self, psize: usize) -> Purpose {
        if matches!(self.obj_type, ObjType::DDT_ZAP | ObjType::DDT_STATS) {
            Purpose::Dedup
        } else if self.level > 0 || self.obj_type.is_metadata() {
            Purpose::Metadata
        } else if psize as u64 <= self.small {
            Purpose::SmallData
        } else {
            Purpose::Data
        }
    }
}

impl Zio {
    /// Compresses and checksums; needs no address, so many blocks may be prepared in parallel.
    pub fn prepare(&self, spec: &WriteSpec, data: &Block) -> Result<Prepared> {
        self.prepare_with(spec, data, None)
    }

    /// The same for a block of an encrypted dataset, which is encrypted or authenticated as its type
    /// asks for. An object set's MACs have to be in it already.
    pub fn prepare_with(
        &self,
        spec: &WriteSpec,
        data: &Block,
        seal: Option<&Seal>,
    ) -> Result<Prepared> {
        self.prepare_of(spec, data, seal, None)
    }

    /// The same for a block of an object of that history. Metadata are compressed whatever it says. So are blocks
    /// of a dedup table, and those that may stay where they are: equal ones must be stored equally.
    pub fn prepare_of(
        &self,
        spec: &WriteSpec,
        data: &Block,
        seal: Option<&Seal>,
        history: Option<&CompressionHistory>,
    ) -> Result<Prepared> {
        let mut spec = *spec;
        if seal.is_some() {
            spec.embed = false;
            let bare = spec.obj_type == ObjType::DNODE || spec.obj_type == ObjType::OBJSET;
            if spec.level == 0 && bare {
                spec.compress = Compression::EMPTY;
            }
        }
        let lsize = data.len();
        let hole = |kind| Prepared {
            data: Arc::new(Vec::new()),
            kind,
            lsize,
        };
        let body = match self.shrink(&spec, data, history) {
            Shrunk::Hole => return Ok(hole(PreparedKind::Hole)),
            Shrunk::Embedded(c) => return Ok(hole(PreparedKind::Embedded(c, spec.compress))),
            Shrunk::To(c) => Some((c, spec.compress)),
            Shrunk::Not => None,
        };
        let whole = data;
        let (data, compress) = match body {
            Some((c, alg)) => (Arc::new(c), alg),
            None => (data.clone(), Compression::OFF),
        };
        let (data, sealed) = match seal {
            Some(s) => {
                let (d, x) = crypt::seal(s, spec.obj_type, spec.level, whole, data)?;
                (d, Some(x))
            }
            None => (data, None),
        };
        let mut checksum = checksum::compute(spec.checksum, &data, false, &self.salt())?;
        if let Some(x) = &sealed {
            checksum = x.words(spec.checksum, checksum, false);
        }
        Ok(Prepared {
            data,
            kind: PreparedKind::Stored {
                compress,
                checksum,
                sealed,
                big_endian: false,
            },
            lsize,
        })
    }

    /// Compresses a block, if its spec asks for that and it saves an eighth.
    fn shrink(
        &self,
        spec: &WriteSpec,
        data: &Block,
        history: Option<&CompressionHistory>,
    ) -> Shrunk {
        if spec.compress == Compression::OFF {
            return Shrunk::Not;
        }
        // The dnode and objset blocks of an object set always hold something, so this can
        // only make holes of data, directories of nothing and indirect blocks of holes.
        if compress::is_zero(data) {
            return Shrunk::Hole;
        }
        if spec.compress == Compression::EMPTY {
            return Shrunk::Not;
        }
        let content = spec.level == 0 && !spec.obj_type.is_metadata();
        let as_ever = spec.dedup || spec.may_keep();
        let Some(history) = history.filter(|_| content && !as_ever) else {
            return self.compressed(spec, data);
        };
        let shrunk = match history.worth_trying(spec.compress, data) {
            true => self.compressed(spec, data),
            false => Shrunk::Not,
        };
        history.note(!matches!(shrunk, Shrunk::Not));
        shrunk
    }

    fn compressed(&self, spec: &WriteSpec, data: &Block) -> Shrunk {
        let lsize = data.len();
        let unit = self.devices.min_alloc();
        let room = (lsize - lsize / 8) / unit * unit;
        let embed = spec.embed
            && spec.level == 0
            && spec.obj_type != ObjType::DNODE
            && spec.obj_type != ObjType::OBJSET;
        let limit = match embed {
            true => room.max(disk::blkptr::EMBEDDED_MAX),
            false => room,
        };
        let (alg, level) = (spec.compress, spec.zstd_level);
        if limit == 0 || compress::is_hopeless(alg, level, data, limit) {
            return Shrunk::Not;
        }
        let Some(mut c) = compress::compress(alg, level, data, limit) else {
            return Shrunk::Not;
        };
        if embed && c.len() <= disk::blkptr::EMBEDDED_MAX {
            return Shrunk::Embedded(c);
        }
        let psize = roundup(c.len() as u64, unit as u64) as usize;
        if c.len() > room || psize >= lsize {
            return Shrunk::Not;
        }
        c.resize(psize, 0);
        Shrunk::To(c)
    }

    /// A block that is in its stored form already: `data`, a multiple of 512 bytes, stands for `lsize`
    /// bytes.
    ///
    /// Errors: invalid, if the sizes cannot be those of a block.
    pub fn stored(
        &self,
        spec: &WriteSpec,
        data: Block,
        lsize: usize,
        form: &StoredForm,
    ) -> Result<Prepared> {
        let whole = |n: usize| n != 0 && n % 512 == 0 && n <= base::MAX_BLOCK;
        if !whole(data.len()) || !whole(lsize) || data.len() > lsize {
            bail!(
                Invalid,
                "a stored block of {} bytes that stands for {lsize}",
                data.len()
            );
        }
        let sealed = form.sealed.map(|s| {
            match spec.obj_type.is_encrypted() || spec.obj_type == ObjType::DNODE {
                true => Sealed::Encrypted(s.salt, s.iv, s.mac),
                false => Sealed::Mac(s.mac),
            }
        });
        let mut checksum = checksum::compute(spec.checksum, &data, form.big_endian, &self.salt())?;
        if let Some(x) = &sealed {
            checksum = x.words(spec.checksum, checksum, form.big_endian);
        }
        Ok(Prepared {
            data,
            kind: PreparedKind::Stored {
                compress: form.compress,
                checksum,
                sealed,
                big_endian: form.big_endian,
            },
            lsize,
        })
    }

    /// Whether `old` stores these very bytes, in the way that `spec` asks for: then it can stay, and nothing needs to be
    /// written (nop-write, pool format §13.2). Only checksums that prove sameness tell. Gangs and blocks of a dedup table are
    /// written anew, and so is whatever is encrypted, since equal data differ there, and, as in OpenZFS, what lies on a removed vdev: its
    /// mapping shrinks with every block that leaves it.
    ///
    /// It says nothing of whether `old` can still be read.
    pub fn is_kept(&self, spec: &WriteSpec, p: &Prepared, old: &BlkPtr) -> bool {
        let PreparedKind::Stored {
            compress,
            checksum,
            sealed: None,
            big_endian: false,
        } = &p.kind
        else {
            return false;
        };
        spec.may_keep()
            && !old.is_hole()
            && !old.is_embedded()
            && !old.is_gang()
            && !old.is_dedup()
            && !old.is_encrypted()
            && old.is_little_endian()
            && (old.obj_type(), old.level()) == (spec.obj_type, spec.level)
            && (old.checksum_alg(), old.compress()) == (spec.checksum, *compress)
            && (old.lsize(), old.psize()) == (p.lsize, p.data.len())
            && old.dvas().len() == usize::from(spec.copies)
            && old.checksum() == *checksum
            && !old.dvas().iter().any(|d| self.devices.is_removed(d.vdev()))
    }

    /// Gives the prepared block an address and queues it. `old` is the pointer it replaces: if that
    /// was born in this very txg with the same physical size, or is compressed to more than this
    /// one needs, its place is used again (so that the sync passes converge). Fill is 0 or, for embedded blocks, implied; the caller sets it.
    pub fn issue(&self, spec: &WriteSpec, p: &Prepared, txg: Txg, old: &BlkPtr) -> Result<BlkPtr> {
        base::mutation::panic_point("issuing the write of a block");
        self.check_writable()?;
        let (compress, sum, sealed, big_endian) = match &p.kind {
            PreparedKind::Hole => {
                // A hole over a hole stays what it was: its birth says when data ended here.
                if old.is_hole() {
                    return Ok(*old);
                }
                return Ok(if spec.hole_birth {
                    BlkPtr::hole_born(spec.obj_type, spec.level, p.lsize, txg)
                } else {
                    BlkPtr::HOLE
                });
            }
            PreparedKind::Embedded(payload, alg) => {
                return Ok(BlkPtr::embedded(
                    spec.obj_type,
                    spec.level,
                    p.lsize,
                    *alg,
                    payload,
                    txg,
                ));
            }
            PreparedKind::Stored {
                compress,
                checksum,
                sealed,
                big_endian,
            } => (*compress, *checksum, sealed, *big_endian),
        };
        let (mut data, mut sum) = (p.data.clone(), sum);
        if let Some(psize) = Self::roomier(old, txg, p) {
            let mut longer = Vec::with_capacity(psize);
            longer.extend_from_slice(&data);
            longer.resize(psize, 0);
            data = Arc::new(longer);
            sum = checksum::compute(spec.checksum, &data, false, &self.salt())?;
        }
        let psize = data.len();
        let mut bp = BlkPtr::new(
            spec.obj_type,
            spec.level,
            p.lsize,
            psize,
            compress,
            spec.checksum,
            txg,
        );
        bp.set_checksum(sum);
        bp.set_big_endian(big_endian);
        if let Some(x) = sealed {
            x.mark(&mut bp);
        }
        // Equal data are different blocks once encrypted.
        if spec.dedup && sealed.is_none() {
            if let Some(bp) = self.dedup(&mut bp, spec, &data, txg)? {
                return Ok(bp);
            }
        }
        if !bp.is_dedup() && Self::reusable(old, txg, psize) {
            // Not what else may stand in the place of the third.
            for (i, d) in old.dvas().into_iter().enumerate() {
                bp.set_dva(i, d);
            }
            // Same address, same birth. Without a checksum the cache could not tell them apart.
            if Key::of(old) == Key::of(&bp) {
                self.cache.remove(old);
            }
            if old.is_gang() {
                self.rewrite_gang(&bp, &data, txg, 0)?;
                return Ok(bp);
            }
            for d in bp.dvas() {
                self.enqueue(&d, data.clone(), txg)?;
            }
            return Ok(bp);
        }
        self.place(&mut bp, spec.purpose(psize), &data, spec, txg, 0)?;
        if bp.is_dedup() {
            if let Some(s) = self.sharing() {
                s.insert(&bp, spec.copies)?;
            }
        }
        Ok(bp)
    }

    /// Marks the block as one of the dedup table, if it is to be. `Some`: it is there already.
    pub(super) fn dedup(
        &self,
        bp: &mut BlkPtr,
        spec: &WriteSpec,
        data: &Block,
        txg: Txg,
    ) -> Result<Option<BlkPtr>> {
        let Some(s) = self.sharing() else {
            return Ok(None);
        };
        bp.set_dedup(true);
        let same = |there: &BlkPtr| -> Result<bool> {
            match self.read_raw(there) {
                Ok(b) => Ok(b == **data),
                // What cannot be read is not the same.
                Err(e) if e.is_damage() => Ok(false),
                Err(e) => Err(e),
            }
        };
        let verify: Option<&dyn Fn(&BlkPtr) -> Result<bool>> = match spec.verify {
            true => Some(&same),
            false => None,
        };
        match s.find(bp, spec.copies, verify)? {
            Dedup::Same(dvas, born) => {
                for (i, d) in dvas.into_iter().enumerate() {
                    bp.set_dva(i, d);
                }
                debug_assert!(born <= txg);
                bp.set_physical_birth(born);
                Ok(Some(*bp))
            }
            Dedup::New => Ok(None),
            Dedup::Apart => {
                bp.set_dedup(false);
                Ok(None)
            }
        }
    }

    /// Whether `issue` will write over `old` in place, i.e. nothing is born and nothing dies.
    pub(super) fn reusable(old: &BlkPtr, txg: Txg, psize: usize) -> bool {
        !old.is_hole()
            && !old.is_embedded()
            && old.logical_birth() == txg
            && old.physical_birth() == txg
            && old.psize() == psize
            && !old.is_dedup()
    }

    /// PSIZE to which a compressed block grows, with zeros, to take the place `old` got in an earlier
    /// pass. Without it a space map that shrinks by a sector because it has to tell of its own
    /// new place, and grows again by telling of the next, keeps the passes from converging.
    fn roomier(old: &BlkPtr, txg: Txg, p: &Prepared) -> Option<usize> {
        let PreparedKind::Stored {
            compress,
            sealed: None,
            ..
        } = &p.kind
        else {
            return None;
        };
        let psize = old.psize();
        let fits = *compress != Compression::OFF && (p.data.len() + 1..p.lsize).contains(&psize);
        (fits && old.compress() != Compression::OFF && Self::reusable(old, txg, psize))
            .then_some(psize)
    }

    /// True if `new` took over the place of `old`. One of a dedup table never does: that it is at the
    /// same place means one reference more.
    pub fn same_place(old: &BlkPtr, new: &BlkPtr) -> bool {
        !old.is_hole()
            && !old.is_embedded()
            && !new.is_embedded()
            && !new.is_dedup()
            && old.dva(0) == new.dva(0)
            && old.physical_birth() == new.physical_birth()
    }

    /// Salt and nonce take the third place.
    pub(super) fn most_copies(bp: &BlkPtr) -> u8 {
        if bp.is_encrypted() {
            2
        } else {
            disk::blkptr::DVAS as u8
        }
    }

    pub(super) fn place(
        &self,
        bp: &mut BlkPtr,
        purpose: Purpose,
        data: &Block,
        spec: &WriteSpec,
        txg: Txg,
        depth: u32,
    ) -> Result<()> {
        let psize = data.len() as u64;
        let copies = spec.copies.clamp(1, Self::most_copies(bp)) as usize;
        let size_on = |v: u64| self.devices.asize_in(v, psize, txg);
        match self.allocator.alloc(purpose, psize, copies, txg, &size_on) {
            Ok(dvas) => {
                for (i, d) in dvas.iter().take(disk::blkptr::DVAS).enumerate() {
                    bp.set_dva(i, *d);
                    self.enqueue(d, data.clone(), txg)?;
                }
                Ok(())
            }
            Err(e) if e.kind == Kind::NoSpace && psize > 512 => self
                .place_gang(bp, purpose, data, spec, txg, depth)
                .map_err(|g| if g.kind == Kind::NoSpace { e } else { g }),
            Err(e) => Err(e),
        }
    }
}
