//! One object: its open view (fields, dirty blocks) over its synced view.

mod bonus;
mod job;
mod read;
mod write;

use crate::block_spec::Shape;
use crate::content::Content;
use crate::objset::Objset;
use crate::reading::Reading;
use crate::streams::Streams;
use crate::tree::{Reader, Synced};
use crate::tx::{Dmu, Tx, MOS_LOCKS};
use base::sync::{ReadGuard, RwLockExt, WriteGuard};
use base::{bail, Block, Error, Kind, PerTxg, RangeSet, Result, Txg};
use disk::{BlkPtr, Checksum, Compression, DnodePhys, ObjType};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use zio::{CompressionHistory, Crypt};

/// Memory that a dirty object takes from the change to the end of its txg: open and synced view,
/// what the sync takes over, the new dnode, its share of the blocks above; bytes.
const OBJECT_COST: u64 = 4096;

/// The same for a dirty block beside its content.
const BLOCK_COST: usize = 512;

/// Space that a dirty object takes on disk for itself and its share of the trees, logical bytes.
const OBJECT_SPACE: u64 = 4096;

/// No block takes less: that is the smallest unit of most devices.
const LEAST_SPACE: usize = 4096;

/// Fields of an object's dnode.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Type of the content.
    pub obj_type: ObjType,
    /// Type of the bonus.
    pub bonus_type: ObjType,
    /// Bytes of a data block.
    pub block_size: usize,
    /// Number of the last block of level 0; 0 if there is none.
    pub max_blkid: u64,
    /// Dnode slots of 512 bytes.
    pub slots: u8,
    /// Bytes on disk as of the last sync.
    pub used: u64,
    /// Levels of the block tree as of the last sync.
    pub nlevels: u8,
    /// log2 of the bytes of an indirect block.
    pub indblkshift: u8,
}

/// The fields of a dnode as the open txg sees them.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    /// False once the object has been freed.
    pub allocated: bool,
    /// Type of the content.
    pub obj_type: ObjType,
    /// Type of the bonus.
    pub bonus_type: ObjType,
    /// log2 of the bytes of an indirect block.
    pub indblkshift: u8,
    /// Block pointers in the dnode, 1 to 3.
    pub nblkptr: u8,
    /// Checksum of its blocks; `INHERIT` takes that of the object set.
    pub checksum: Checksum,
    /// Compression of its blocks; `INHERIT` takes that of the object set.
    pub compress: Compression,
    /// Bytes of a data block.
    pub block_size: usize,
    /// Number of the last block of level 0; 0 if there is none.
    pub maxblkid: u64,
    /// Dnode slots of 512 bytes.
    pub slots: u8,
    /// The bytes of the bonus in use.
    pub bonus: Vec<u8>,
    /// Least levels of its tree.
    pub nlevels: u8,
    /// All bytes of the bonus buffer as a raw stream brought them; `bonus` is the part in use.
    pub raw_bonus: Option<Arc<Vec<u8>>>,
}

impl Fields {
    /// What decides how blocks of data are written.
    pub fn shape(&self) -> Shape {
        Shape {
            obj_type: self.obj_type,
            compress: self.compress,
            checksum: self.checksum,
            indblkshift: self.indblkshift,
        }
    }
}

/// A dirty block.
pub(crate) struct Buf {
    /// Everything since the block was last on disk. What is missing is fetched when somebody reads
    /// the block or the txg is written.
    pub data: Content,
    /// Newest txg it is dirty in.
    pub txg: Txg,
    /// Written to its final place in `txg` already, as it is now (whole).
    pub placed: Option<Box<BlkPtr>>,
}

/// A dirty block taken over by a sync.
pub(crate) struct TakenBlock {
    /// Number of the block.
    pub blkid: u64,
    /// Its bytes.
    pub data: Content,
    /// Its pointer, if it was written early.
    pub placed: Option<Box<BlkPtr>>,
}

/// Changes of one txg.
#[derive(Default)]
pub(crate) struct Pending {
    /// Anything of the object changed.
    pub dirty: bool,
    /// Numbers of the blocks written.
    pub blocks: BTreeSet<u64>,
    /// Block ids freed, half-open; applied before `blocks`.
    pub frees: RangeSet,
    /// The spill block changed.
    pub spill: bool,
}

/// Spill block of the open view.
#[derive(Clone)]
pub(crate) enum Spill {
    /// As on disk.
    Synced,
    Removed(Txg),
    Data(Block, Txg),
    /// Written to its place already.
    Placed(Box<BlkPtr>, Txg),
}

/// What becomes of a spill block in a sync.
pub(crate) enum SpillChange {
    Removed,
    Data(Block),
    Placed(Box<BlkPtr>),
}

pub(crate) struct Inner {
    /// The fields of the open view.
    pub f: Fields,
    /// Dirty blocks by number.
    pub bufs: BTreeMap<u64, Buf>,
    /// Blocks of which pieces were written and the rest has not been read, see [`crate::unread_rests`]. Some may have become
    /// whole since.
    pub unread: BTreeSet<u64>,
    /// Changes of each txg not yet on disk.
    pub pend: PerTxg<Pending>,
    /// Frees of the txg being written: still to be seen as holes.
    pub syncing_frees: RangeSet,
    /// The spill block of the open view.
    pub spill: Spill,
    /// The synced view.
    pub s: Arc<Synced>,
    /// Changes whenever a clean block may have changed: a read that raced starts again.
    pub gen: u64,
}

/// An object. Obtained from [`Objset::hold`], shared as `Arc<Dnode>`.
pub struct Dnode {
    object: u64,
    os: Weak<Objset>,
    me: Weak<Dnode>,
    pub(crate) dmu: Arc<Dmu>,
    pub(crate) crypt: Crypt,
    pub(crate) reading: Arc<Reading>,
    pub(crate) inner: RwLock<Inner>,
    /// Some block of it could not be read: changes of parts of blocks look before they are accepted.
    hurt: AtomicBool,
    /// The last indirect block of level 1 that was found readable, behind the generation of the synced tree in which it was.
    pub(crate) checked: Mutex<Option<(u64, u64)>>,
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    /// What compressing its last blocks was good for.
    pub(crate) history: CompressionHistory,
    pub(crate) streams: Mutex<Streams>,
}

/// Most times a read is tried again because the txg under way is writing the block anew.
const MAX_TURNS: u32 = 1000;

/// Block id of a spill block in reports of damage.
const SPILL: u64 = u64::MAX;

/// What a sync takes over from a dirty object.
pub(crate) struct Job {
    /// The object.
    pub dn: Arc<Dnode>,
    /// Its fields when the txg closed.
    pub f: Fields,
    /// Its dirty blocks, by number.
    pub blocks: Vec<TakenBlock>,
    /// Block numbers freed, half-open; applied before `blocks`.
    pub frees: RangeSet,
    /// What becomes of the spill block, if it changed.
    pub spill: Option<SpillChange>,
    /// The synced view that is replaced.
    pub s: Arc<Synced>,
}

impl Dnode {
    pub(crate) fn new(
        object: u64,
        os: Weak<Objset>,
        dmu: Arc<Dmu>,
        crypt: &Crypt,
        reading: &Arc<Reading>,
        f: Fields,
        s: Synced,
    ) -> Arc<Dnode> {
        Arc::new_cyclic(|me| Dnode {
            object,
            os,
            me: me.clone(),
            dmu,
            crypt: crypt.clone(),
            reading: reading.clone(),
            inner: RwLock::new(Inner {
                f,
                bufs: BTreeMap::new(),
                unread: BTreeSet::new(),
                pend: Default::default(),
                syncing_frees: RangeSet::new(),
                spill: Spill::Synced,
                s: Arc::new(s),
                gen: 0,
            }),
            hurt: AtomicBool::new(false),
            checked: Mutex::default(),
            kept: OnceLock::new(),
            history: CompressionHistory::default(),
            streams: Mutex::default(),
        })
    }

    pub(crate) fn from_phys(
        object: u64,
        os: Weak<Objset>,
        dmu: Arc<Dmu>,
        crypt: &Crypt,
        reading: &Arc<Reading>,
        p: &DnodePhys,
    ) -> Arc<Dnode> {
        let f = Fields {
            allocated: true,
            obj_type: p.obj_type,
            bonus_type: p.bonus_type,
            indblkshift: p.indblkshift,
            nblkptr: p.blkptr.len() as u8,
            checksum: p.checksum,
            compress: p.compress,
            block_size: p.block_size(),
            maxblkid: p.maxblkid,
            slots: p.slots,
            bonus: p.bonus.clone(),
            nlevels: 1,
            raw_bonus: None,
        };
        Dnode::new(object, os, dmu, crypt, reading, f, Synced::of(p))
    }

    /// Reads its blocks as its dataset's properties say.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader {
            second: self.reading.second(),
            ..Reader::new(&self.dmu.zio, &self.crypt, self.reading.keep())
        }
    }

    pub(crate) fn weak(&self) -> Weak<Dnode> {
        self.me.clone()
    }

    pub(crate) fn me(&self) -> Option<Arc<Dnode>> {
        self.me.upgrade()
    }

    #[track_caller]
    pub(crate) fn read_lock(&self) -> ReadGuard<'_, Inner> {
        self.inner.acquire_read()
    }

    #[track_caller]
    pub(crate) fn write_lock(&self) -> WriteGuard<'_, Inner> {
        self.inner.acquire_write()
    }

    /// Object number.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// A lock for the room that knows the object's content. Objects whose numbers collide share it:
    /// whoever holds one must not ask for a second. Objects of the MOS share none with others: a txg that
    /// waits for its devices may hold one of them, and files are read on.
    pub fn lock(&self) -> &RwLock<()> {
        let (of_mos, others) = self.dmu.locks.split_at(MOS_LOCKS);
        match self.os.upgrade().map_or(0, |os| os.id()) {
            0 => &of_mos[(self.object % of_mos.len() as u64) as usize],
            os => {
                let n = self.object ^ os.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                &others[(n % others.len() as u64) as usize]
            }
        }
    }

    /// What the room that knows the object's content keeps with it in memory. There is one such room
    /// for each object: asking for a second type is an error of the program.
    pub fn kept<T: Any + Default + Send + Sync>(&self) -> &T {
        let kept = self.kept.get_or_init(|| Box::<T>::default());
        kept.downcast_ref().expect("one type for each object")
    }

    /// The object set it belongs to.
    pub fn objset(&self) -> Result<Arc<Objset>> {
        self.os
            .upgrade()
            .ok_or_else(|| Error::new(Kind::Stale, "the dataset was closed"))
    }

    /// The fields of the open view, and the space as of the last sync.
    pub fn info(&self) -> Info {
        let i = self.read_lock();
        Info {
            obj_type: i.f.obj_type,
            bonus_type: i.f.bonus_type,
            block_size: i.f.block_size,
            max_blkid: i.f.maxblkid,
            slots: i.f.slots,
            used: i.s.used,
            nlevels: i.s.nlevels,
            indblkshift: i.f.indblkshift,
        }
    }

    /// Marks the object changed in the transaction's txg.
    pub(crate) fn touch(&self, i: &mut Inner, tx: &Tx) -> Result<()> {
        base::mutation::panic_point("marking an object dirty");
        if !i.f.allocated {
            bail!(NotFound, "object {} was freed", self.object);
        }
        let p = &mut i.pend[tx.txg()];
        if !p.dirty {
            p.dirty = true;
            let me = self.me.upgrade().ok_or_else(|| Error::from(Kind::Stale))?;
            let os = self.objset()?;
            os.add_dirty(tx.txg(), me);
            os.add_space(tx.txg(), OBJECT_SPACE);
            // The dnode itself and its share of the trees above.
            self.dmu.add_dirty(tx.txg(), OBJECT_COST);
        }
        Ok(())
    }

    /// True if some txg not yet on disk changed the object.
    pub fn is_dirty(&self) -> bool {
        let i = self.read_lock();
        !i.bufs.is_empty() || i.pend.iter().any(|p| p.dirty) || !i.syncing_frees.is_empty()
    }

    /// Some block of it could not be read since it is in memory.
    pub(crate) fn is_hurt(&self) -> bool {
        self.hurt.load(Ordering::Relaxed)
    }

    /// True if it was freed, on disk or not yet.
    pub fn is_freed(&self) -> bool {
        !self.read_lock().f.allocated
    }
}

impl Inner {
    /// What `txg` changed is no longer in memory only.
    fn group_over(&mut self, txg: Txg) {
        let again = self.pend[txg].blocks.clone();
        self.bufs.retain(|k, b| b.txg > txg || again.contains(k));
        if !self.unread.is_empty() {
            let bufs = &self.bufs;
            self.unread
                .retain(|k| bufs.get(k).is_some_and(|b| b.data.lacks_old()));
        }
        match &self.spill {
            Spill::Removed(t) | Spill::Data(_, t) | Spill::Placed(_, t)
                if *t <= txg && !self.pend[txg].spill =>
            {
                self.spill = Spill::Synced
            }
            _ => {}
        }
        self.syncing_frees.clear();
        self.gen += 1;
    }

    /// True if a change of a part of the block may need the rest of it from disk.
    pub(crate) fn needs_old(&self, blkid: u64) -> bool {
        !self.bufs.contains_key(&blkid) && !self.is_known_hole(blkid)
    }

    /// True if the block has no data anywhere, known without I/O. Only meaningful without a buf.
    fn is_known_hole(&self, blkid: u64) -> bool {
        !self.s.exists
            || blkid > self.s.maxblkid
            || self.syncing_frees.contains(blkid, blkid + 1)
            || self.pend.iter().any(|p| p.frees.contains(blkid, blkid + 1))
    }

    pub(crate) fn put(&mut self, blkid: u64, data: Content, txg: Txg) {
        self.bufs.insert(
            blkid,
            Buf {
                data,
                txg,
                placed: None,
            },
        );
    }
}
