//! An object set: its meta-dnode, its objects in memory, allocation of object numbers.

use crate::dnode::{Dnode, Fields, Job};
use crate::early_runs::Waiting;
use crate::lost::Lost;
use crate::reading::Reading;
use crate::rest_queue::RestQueue;
use crate::shape::{DnodeSeal, NewObject, WritePolicy};
use crate::tree::Synced;
use crate::tx::{Admission, Damage, Dmu, Need, Tx};
use crate::{GROUPUSED_OBJECT, PROJECTUSED_OBJECT, USERUSED_OBJECT};
use base::mutation::{mutated, Mutation};
use base::sync::{MutexExt, RwLockExt};
use base::{bail, Cause, Error, Kind, PerTxg, Result, Txg};
use codec::crypt::DatasetKey;
use disk::crypt::{objset_records, OBJSET_MACS, OBJSET_MAC_SIZE};
use disk::dnode::{DNODES_PER_BLOCK, DNODE_BLOCK, DNODE_SIZE, MAX_OBJECT, MAX_SLOTS};
use disk::objset::{ObjsetPhys, ZIL_HEADER_SIZE};
use disk::{BlkPtr, DnodePhys, ObjType};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, Weak};
use zio::Crypt;

/// Both MACs of an object set block (pool format §15.3).
pub(crate) fn objset_macs(key: &DatasetKey, block: &[u8]) -> Result<[u8; 2 * OBJSET_MAC_SIZE]> {
    let (portable, local) = objset_records(block, key.version())?;
    let mut macs = [0; 2 * OBJSET_MAC_SIZE];
    macs[..OBJSET_MAC_SIZE].copy_from_slice(&key.hmac(&portable)[..OBJSET_MAC_SIZE]);
    if let Some(l) = local {
        macs[OBJSET_MAC_SIZE..].copy_from_slice(&key.hmac(&l)[..OBJSET_MAC_SIZE]);
    }
    Ok(macs)
}

/// Whether the MACs stored in an object set are right. The second one protects the accounting by
/// owner; where that is not complete (`right` is zero then) it protects nothing and is made anew with
/// the next write. Software of before 2022 left any value there.
fn macs_fit(stored: &[u8], right: &[u8; 2 * OBJSET_MAC_SIZE]) -> bool {
    let (portable, local) = right.split_at(OBJSET_MAC_SIZE);
    stored.strip_prefix(portable).is_some_and(|stored| {
        stored == local || local.iter().all(|b| *b == 0) && stored.len() == local.len()
    })
}

const SHARDS: usize = 16;
/// Clean objects kept in memory per object set beyond those in use: there may be hundreds of object
/// sets, and reading an object again costs a look at a cached block.
const KEEP_CLEAN: usize = 1024;

pub(crate) struct State {
    /// The header of the intent log (pool format §26.1).
    pub zil_header: [u8; ZIL_HEADER_SIZE],
    /// [`disk::os_type`].
    pub os_type: u64,
    /// [`disk::objset`]: `USERACCT_COMPLETE` and its neighbours.
    pub os_flags: u64,
    /// The two MACs of an encrypted set; zero otherwise.
    pub macs: [u8; 64],
    /// Bytes of the object set block.
    pub size: usize,
    /// Pointer to the object set block as of the last sync.
    pub root: BlkPtr,
    /// Header fields changed.
    pub dirty: PerTxg<bool>,
}

#[derive(Default)]
struct Numbers {
    /// Next object number to look at.
    cursor: u64,
    /// Lowest number freed below the cursor and how many, since the cursor last went back.
    freed_low: u64,
    freed: u64,
    /// The same, already on disk.
    reusable: u64,
}

/// Objects in memory, by number.
#[derive(Default)]
struct Shard {
    map: HashMap<u64, Arc<Dnode>>,
    /// Size at which clean objects nobody uses are looked for, so that looking stays cheap even
    /// when most are in use.
    sweep_at: usize,
}

impl std::ops::Deref for Shard {
    type Target = HashMap<u64, Arc<Dnode>>;
    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl std::ops::DerefMut for Shard {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.map
    }
}

impl Shard {
    fn sweep(&mut self) {
        if self.map.len() < self.sweep_at.max(KEEP_CLEAN / SHARDS) {
            return;
        }
        self.map
            .retain(|_, dn| Arc::strong_count(dn) > 1 || dn.is_dirty() || dn.is_freed());
        self.sweep_at = self.map.len() * 2;
    }
}

/// An open object set.
pub struct Objset {
    id: u64,
    pub(crate) dmu: Arc<Dmu>,
    me: Weak<Objset>,
    policy: RwLock<Arc<WritePolicy>>,
    shards: [Mutex<Shard>; SHARDS],
    pub(crate) meta: Arc<Dnode>,
    pub(crate) special: [Mutex<Option<Arc<Dnode>>>; 3],
    pub(crate) state: Mutex<State>,
    numbers: Mutex<Numbers>,
    /// Objects whose freeing was written by the txg under way.
    gone: Mutex<Vec<u64>>,
    dirty: Mutex<PerTxg<BTreeMap<u64, Arc<Dnode>>>>,
    pub(crate) jobs: Mutex<Vec<Job>>,
    admission: OnceLock<Weak<dyn Admission>>,
    objects: AtomicI64,
    highest: AtomicU64,
    /// Nobody who has it open changes anything in it so far.
    readonly: AtomicBool,
    pub(crate) crypt: Crypt,
    pub(crate) reading: Arc<Reading>,
    /// Logical bytes to be written, and the txg they belong to: a txg that ended
    /// without this set does not count.
    space: Mutex<PerTxg<(Txg, u64)>>,
    /// Needs of transactions alive.
    pub(crate) promised: AtomicU64,
    /// Blocks that are to be written early.
    pub(crate) waiting: Mutex<Waiting<Dnode>>,
    pub(crate) rests: Arc<RestQueue<Dnode>>,
    /// How blocks of dnodes of a raw stream are sealed, by number, until they are written.
    pub(crate) raw_seals: Mutex<BTreeMap<u64, DnodeSeal>>,
    pub(crate) lost: Lost,
}

/// Unreadable blocks of dnodes that are passed over in search of a free one: as many as hang on one
/// indirect block of the usual size.
const DAMAGED_MOST: u32 = 1024;

impl Objset {
    /// Opens the object set whose block `root` points to. A hole means a data set that was never
    /// given one ([`Objset::create`] makes it).
    pub fn open(
        dmu: &Arc<Dmu>,
        id: u64,
        root: &BlkPtr,
        policy: WritePolicy,
        readonly: bool,
    ) -> Result<Arc<Objset>> {
        Self::open_with(dmu, id, root, policy, readonly, Crypt::Plain)
    }

    /// The same for the object set of an encrypted dataset. `Kind::Checksum`: the MACs in it are not
    /// the ones its key gives.
    pub fn open_with(
        dmu: &Arc<Dmu>,
        id: u64,
        root: &BlkPtr,
        policy: WritePolicy,
        readonly: bool,
        crypt: Crypt,
    ) -> Result<Arc<Objset>> {
        if root.is_hole() {
            return Err(Error::damaged(format!("dataset {id} has no object set")));
        }
        if root.obj_type() != ObjType::OBJSET {
            return Err(Error::damaged(format!("not an object set: {root:?}")));
        }
        let damaged = |why| {
            let damage = Damage {
                objset: id,
                object: 0,
                level: -1,
                blkid: 0,
                birth: root.logical_birth(),
            };
            dmu.damaged(&damage, why);
        };
        let b = dmu.zio.read(root).inspect_err(|e| {
            if e.is_damage() {
                damaged(e.cause());
            }
        })?;
        if let Some(key) = crypt.key() {
            let macs = objset_macs(key, &b)?;
            let stored = b.get(OBJSET_MACS..OBJSET_MACS + macs.len());
            if !stored.is_some_and(|s| macs_fit(s, &macs)) {
                dmu.zio.unrecoverable.fetch_add(1, Ordering::Relaxed);
                damaged(Some(Cause::NotAuthentic));
                bail!(
                    Checksum,
                    "authentication of the object set of dataset {id} failed"
                );
            }
        }
        let p = ObjsetPhys::decode(&b).map_err(|e| e.context(format!("dataset {id}")))?;
        // fill counts every allocated object, but old software stored too small a number
        let objects = root
            .fill()
            .max(p.meta.blkptr.iter().map(BlkPtr::fill).sum());
        Ok(Self::build(
            dmu, id, *root, p, policy, readonly, objects, crypt,
        ))
    }

    /// A new, empty object set; its first block is born with the next sync of `tx`'s txg. `size` is
    /// 1024, 2048 or 4096.
    pub fn create(
        dmu: &Arc<Dmu>,
        id: u64,
        tx: &Tx,
        os_type: u64,
        size: usize,
        policy: WritePolicy,
    ) -> Result<Arc<Objset>> {
        Self::create_with(dmu, id, tx, os_type, size, policy, Crypt::Plain)
    }

    /// The same in an encrypted dataset, whose key is needed.
    pub fn create_with(
        dmu: &Arc<Dmu>,
        id: u64,
        tx: &Tx,
        os_type: u64,
        size: usize,
        policy: WritePolicy,
        crypt: Crypt,
    ) -> Result<Arc<Objset>> {
        let shift = policy.indblkshift;
        let mut nlevels = 1u32;
        if !policy.is_mos {
            // Enough for 2^48 objects at once, so that it never grows.
            let epbs = shift as u32 - 7;
            while 3u128 << (epbs * (nlevels - 1)) < (1u128 << 48) / DNODES_PER_BLOCK as u128 {
                nlevels += 1;
            }
        }
        let meta = DnodePhys {
            obj_type: ObjType::DNODE,
            indblkshift: shift,
            nlevels: nlevels as u8,
            datablkszsec: (DNODE_BLOCK / 512) as u16,
            slots: 1,
            blkptr: vec![BlkPtr::HOLE; 3],
            ..DnodePhys::default()
        };
        let p = ObjsetPhys {
            meta,
            zil_header: [0; ZIL_HEADER_SIZE],
            os_type,
            os_flags: 0,
            macs: [0; 64],
            special: [None, None, None],
            size,
        };
        let os = Self::build(dmu, id, BlkPtr::HOLE, p, policy, false, 0, crypt);
        os.touch_header(tx);
        Ok(os)
    }

    pub(crate) fn build(
        dmu: &Arc<Dmu>,
        id: u64,
        root: BlkPtr,
        p: ObjsetPhys,
        policy: WritePolicy,
        readonly: bool,
        objects: u64,
        crypt: Crypt,
    ) -> Arc<Objset> {
        let reading = Arc::new(Reading::new(policy.keep, policy.second, policy.ahead));
        Arc::new_cyclic(|me: &Weak<Objset>| {
            let special = |n: usize, object: u64| {
                Mutex::new(p.special[n].as_ref().map(|p| {
                    Dnode::from_phys(object, me.clone(), dmu.clone(), &crypt, &reading, p)
                }))
            };
            Objset {
                id,
                dmu: dmu.clone(),
                me: me.clone(),
                policy: RwLock::new(Arc::new(policy)),
                shards: Default::default(),
                meta: Dnode::from_phys(0, me.clone(), dmu.clone(), &crypt, &reading, &p.meta),
                special: [
                    special(0, USERUSED_OBJECT),
                    special(1, GROUPUSED_OBJECT),
                    special(2, PROJECTUSED_OBJECT),
                ],
                highest: AtomicU64::new(if root.is_hole() {
                    0
                } else {
                    (p.meta.maxblkid + 1) * DNODES_PER_BLOCK
                }),
                state: Mutex::new(State {
                    zil_header: p.zil_header,
                    os_type: p.os_type,
                    os_flags: p.os_flags,
                    macs: p.macs,
                    size: p.size,
                    root,
                    dirty: PerTxg::default(),
                }),
                gone: Mutex::default(),
                numbers: Mutex::new(Numbers {
                    cursor: 1,
                    ..Numbers::default()
                }),
                dirty: Mutex::default(),
                jobs: Mutex::default(),
                admission: OnceLock::new(),
                objects: AtomicI64::new(objects as i64),
                readonly: readonly.into(),
                crypt,
                reading: reading.clone(),
                space: Mutex::default(),
                promised: AtomicU64::new(0),
                waiting: Mutex::default(),
                rests: Arc::default(),
                raw_seals: Mutex::default(),
                lost: Lost::default(),
            }
        })
    }

    /// Object number of the dataset in the MOS; 0 for the MOS itself.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The transaction engine of the pool.
    pub fn dmu(&self) -> &Arc<Dmu> {
        &self.dmu
    }

    /// How blocks are stored and read now.
    pub fn policy(&self) -> Arc<WritePolicy> {
        self.policy.acquire_read().clone()
    }

    /// New properties take effect for blocks written and read from now on.
    pub fn set_policy(&self, policy: WritePolicy) {
        self.reading.set(policy.keep, policy.second, policy.ahead);
        *self.policy.acquire_write() = Arc::new(policy);
    }

    /// Sets what decides whether there is space for a transaction; once.
    pub fn set_admission(&self, a: Weak<dyn Admission>) {
        let _ = self.admission.set(a);
    }

    /// Whether no transaction is opened for it. That it can be written does not mean that every handle
    /// to it may: those who only look share the set of whoever writes.
    pub fn is_readonly(&self) -> bool {
        self.readonly.load(Ordering::Acquire)
    }

    /// Somebody opens it for writing who shares it with others that only look.
    pub fn allow_writing(&self) {
        self.readonly.store(false, Ordering::Release);
    }

    /// Whether it is encrypted, and with which key.
    pub fn crypt(&self) -> &Crypt {
        &self.crypt
    }

    pub(crate) fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.acquire()
    }

    /// The txg is going to write `bytes` more.
    pub(crate) fn add_space(&self, txg: Txg, bytes: u64) {
        let mut s = self.space.acquire();
        let s = &mut s[txg];
        if s.0 != txg {
            *s = (txg, 0);
        }
        s.1 = s.1.saturating_add(bytes);
        self.dmu.add_space(txg, bytes);
    }

    /// See [`Admission::admit`].
    fn pending_space(&self) -> u64 {
        let synced = self.dmu.synced_txg();
        let s = *self.space.acquire();
        let known: u64 = s.iter().filter(|s| s.0 > synced).map(|s| s.1).sum();
        known + self.promised.load(Ordering::Relaxed)
    }

    /// The root block pointer as of the last sync.
    pub fn root(&self) -> BlkPtr {
        self.lock_state().root
    }

    /// [`disk::os_type`].
    pub fn os_type(&self) -> u64 {
        self.lock_state().os_type
    }

    /// [`disk::objset`]: `USERACCT_COMPLETE` and its neighbours.
    pub fn os_flags(&self) -> u64 {
        self.lock_state().os_flags
    }

    /// Bytes of the object set block.
    pub fn phys_size(&self) -> usize {
        self.lock_state().size
    }

    /// Replaces the flags, in the txg of `tx`.
    pub fn set_os_flags(&self, tx: &Tx, flags: u64) {
        self.lock_state().os_flags = flags;
        self.touch_header(tx);
    }

    /// Grows the object set block (to 2048 or 4096 bytes); never shrinks it.
    pub fn grow_phys(&self, tx: &Tx, size: usize) {
        {
            let mut s = self.lock_state();
            if s.size >= size {
                return;
            }
            s.size = size;
        }
        self.touch_header(tx);
    }

    /// The intent-log header (192 bytes, little-endian).
    pub fn zil_header(&self) -> [u8; ZIL_HEADER_SIZE] {
        self.lock_state().zil_header
    }

    /// Replaces the header of the intent log, in the txg of `tx`.
    pub fn set_zil_header(&self, tx: &Tx, header: [u8; ZIL_HEADER_SIZE]) {
        self.lock_state().zil_header = header;
        self.touch_header(tx);
    }

    /// Marks the object set block itself dirty.
    pub fn touch_header(&self, tx: &Tx) {
        self.lock_state().dirty[tx.txg()] = true;
        if let Some(me) = self.me.upgrade() {
            self.dmu.register(tx.txg(), &me);
        }
    }

    /// Opens a transaction that may change objects of this set.
    pub fn tx(&self, need: Need) -> Result<Tx> {
        if self.is_readonly() {
            bail!(ReadOnly, "dataset {} is read-only", self.id);
        }
        // Headers may change without a key: logs are given up that way.
        if matches!(self.crypt, Crypt::Locked) && !need.net_free {
            bail!(Access, "the key of dataset {} is not loaded", self.id);
        }
        if let (false, Some(a)) = (need.at_once, self.admission()) {
            a.admit(need, self.pending_space())?;
        }
        let mut tx = self.dmu.begin(need.at_once)?;
        if let Some(me) = self.me.upgrade() {
            tx.promise(me, need.bytes);
        }
        Ok(tx)
    }

    fn admission(&self) -> Option<Arc<dyn Admission>> {
        self.admission.get().and_then(Weak::upgrade)
    }

    /// Whether the dataset may take what is needed, as far as is known without waiting for txgs.
    /// `Kind::NoSpace`, `Kind::Quota`, or `Kind::Again` where that may be different after one.
    pub fn has_room(&self, need: Need) -> Result<()> {
        match self.admission() {
            Some(a) => a.has_room(need, self.pending_space()),
            None => Ok(()),
        }
    }

    /// Pointer to a block as of the last sync; `None` for holes and what is outside of the object. `object` 0 is the
    /// meta-dnode, `blkid` `u64::MAX` the spill block. `Kind::NotFound` if there is no such object.
    pub fn pointer_of(&self, object: u64, level: i64, blkid: u64) -> Result<Option<BlkPtr>> {
        let dn = match object {
            0 => self.meta.clone(),
            o => self.hold(o)?,
        };
        dn.pointer_of(level, blkid)
    }

    /// Allocated objects, those of unsynced txgs included.
    pub fn object_count(&self) -> u64 {
        self.objects.load(Ordering::Relaxed).max(0) as u64
    }

    pub(crate) fn count_objects(&self, d: i64) {
        self.objects.fetch_add(d, Ordering::Relaxed);
    }

    fn shard(&self, object: u64) -> MutexGuard<'_, Shard> {
        let n = (object ^ object >> 7) as usize % SHARDS;
        self.shards[n].acquire()
    }

    fn special_index(object: u64) -> Option<usize> {
        match object {
            USERUSED_OBJECT => Some(0),
            GROUPUSED_OBJECT => Some(1),
            PROJECTUSED_OBJECT => Some(2),
            _ => None,
        }
    }

    /// The object of that number; `NotFound` if there is none.
    pub fn hold(&self, object: u64) -> Result<Arc<Dnode>> {
        let none = || {
            Error::new(
                Kind::NotFound,
                format!("no object {object} in dataset {}", self.id),
            )
        };
        if let Some(n) = Self::special_index(object) {
            let s = self.special[n].acquire();
            return s.clone().ok_or_else(none);
        }
        if object == 0 || object > MAX_OBJECT {
            return Err(none());
        }
        loop {
            if let Some(dn) = self.shard(object).get(&object) {
                if !dn.read_lock().f.allocated {
                    return Err(none());
                }
                return Ok(dn.clone());
            }
            let gen = self.meta.read_lock().gen;
            let Some(p) = self.load(object)? else {
                if self.meta.read_lock().gen != gen || self.shard(object).contains_key(&object) {
                    continue;
                }
                return Err(none());
            };
            let mut m = self.shard(object);
            if m.contains_key(&object) || self.meta.read_lock().gen != gen {
                continue;
            }
            let dn = Dnode::from_phys(
                object,
                self.me.clone(),
                self.dmu.clone(),
                &self.crypt,
                &self.reading,
                &p,
            );
            m.insert(object, dn.clone());
            m.sweep();
            return Ok(dn);
        }
    }

    /// The dnode as it is on disk.
    fn load(&self, object: u64) -> Result<Option<DnodePhys>> {
        let blk = object / DNODES_PER_BLOCK;
        if blk > self.meta.info().max_blkid {
            return Ok(None);
        }
        let b = self.meta.block(blk)?;
        let want = (object % DNODES_PER_BLOCK) as usize;
        let mut slot = 0;
        while slot <= want {
            let at = slot * DNODE_SIZE;
            if slot == want {
                return DnodePhys::decode(&b[at..])
                    .map_err(|e| e.context(format!("object {object} of dataset {}", self.id)));
            }
            slot += if b[at] == 0 {
                1
            } else {
                b[at + 12] as usize + 1
            };
        }
        Ok(None) // interior of a large dnode
    }

    /// The dnode that a new object gets.
    pub(crate) fn shape_of(&self, new: &NewObject) -> Result<Fields> {
        self.fields(new)
    }

    fn fields(&self, new: &NewObject) -> Result<Fields> {
        let slots = new.slots.max(1);
        if slots as usize > MAX_SLOTS {
            bail!(Invalid, "dnode of {slots} slots");
        }
        let size = slots as usize * DNODE_SIZE;
        let nblkptr = if let Some(raw) = &new.raw {
            let room = size.saturating_sub(64 + 128 * usize::from(raw.nblkptr));
            if !(1..=3).contains(&raw.nblkptr)
                || !(1..=15).contains(&raw.nlevels)
                || !(10..=24).contains(&new.indblkshift)
                || raw.bonus.len() > room
                || raw.bonus.len() < new.bonus.len()
            {
                bail!(Invalid, "a dnode that cannot be");
            }
            usize::from(raw.nblkptr)
        } else if new.bonus_type == ObjType::SA || new.spills {
            1
        } else {
            (1 + size.saturating_sub(192 + new.bonus.len()) / 128).clamp(1, 3)
        };
        if 64 + 128 * nblkptr + new.bonus.len() > size {
            bail!(Invalid, "bonus of {} bytes does not fit", new.bonus.len());
        }
        let block_size = base::roundup(new.block_size.max(512) as u64, 512) as usize;
        if block_size > base::MAX_BLOCK {
            bail!(Invalid, "block size {block_size}");
        }
        let indblkshift = if new.indblkshift == 0 {
            self.policy().indblkshift
        } else {
            new.indblkshift
        };
        Ok(Fields {
            allocated: true,
            obj_type: new.obj_type,
            bonus_type: new.bonus_type,
            indblkshift,
            nblkptr: nblkptr as u8,
            checksum: new.checksum,
            compress: new.compress,
            block_size,
            maxblkid: new.raw.as_ref().map_or(0, |r| r.maxblkid),
            slots,
            bonus: new.bonus.clone(),
            nlevels: new.raw.as_ref().map_or(1, |r| r.nlevels),
            raw_bonus: new.raw.as_ref().map(|r| Arc::new(r.bonus.clone())),
        })
    }

    /// Makes an object under a free number.
    pub fn alloc(&self, tx: &Tx, new: &NewObject) -> Result<Arc<Dnode>> {
        let f = self.fields(new)?;
        let mut n = self.numbers.acquire();
        if n.reusable >= 64 && n.freed_low < n.cursor {
            n.cursor = n.freed_low.max(1);
            n.freed_low = u64::MAX;
            n.reusable = 0;
        }
        let slots = f.slots as u64;
        let mut damaged = 0;
        loop {
            if n.cursor > MAX_OBJECT {
                bail!(NoSpace, "dataset {} has no object number left", self.id);
            }
            let blk = n.cursor / DNODES_PER_BLOCK;
            let first = n.cursor % DNODES_PER_BLOCK;
            // A block of dnodes that cannot be read, or written, has no room for new ones.
            let way = match first {
                0 if !tx.is_syncing() => self.meta.check_write(blk * DNODE_BLOCK as u64, 1),
                _ => Ok(()),
            };
            let used = match way.and_then(|()| self.used_slots(blk)) {
                Err(e) if e.is_damage() && !tx.is_syncing() => {
                    damaged += 1;
                    if damaged > DAMAGED_MOST || self.dmu.zio.devices_away() {
                        return Err(e);
                    }
                    n.cursor = (blk + 1) * DNODES_PER_BLOCK;
                    continue;
                }
                used => used?,
            };
            let mask = |at: u64| ((1u64 << slots) - 1) << at;
            let fit = (first..=DNODES_PER_BLOCK.saturating_sub(slots))
                .find(|at| used & mask(*at) == 0 && at + slots <= DNODES_PER_BLOCK);
            match fit {
                Some(at) => {
                    let object = blk * DNODES_PER_BLOCK + at;
                    n.cursor = object + slots;
                    return self.insert_new(tx, object, f);
                }
                None => n.cursor = (blk + 1) * DNODES_PER_BLOCK,
            }
        }
    }

    /// Bit per slot of a meta-dnode block that must not be given out: allocated, or freed by a txg
    /// that is not on disk yet.
    fn used_slots(&self, blk: u64) -> Result<u64> {
        let mut used = u64::from(blk == 0);
        if blk <= self.meta.info().max_blkid {
            let b = self.meta.block(blk)?;
            let mut slot = 0;
            while slot < DNODES_PER_BLOCK as usize {
                let at = slot * DNODE_SIZE;
                let n = if b[at] == 0 {
                    1
                } else {
                    b[at + 12] as usize + 1
                };
                if b[at] != 0 {
                    for s in slot..(slot + n).min(32) {
                        used |= 1 << s;
                    }
                }
                slot += n;
            }
        }
        if blk * DNODES_PER_BLOCK <= self.highest.load(Ordering::Relaxed) {
            for slot in 0..DNODES_PER_BLOCK {
                let object = blk * DNODES_PER_BLOCK + slot;
                if let Some(dn) = self.shard(object).get(&object) {
                    for s in slot..(slot + dn.info().slots as u64).min(32) {
                        used |= 1 << s;
                    }
                }
            }
        }
        Ok(used)
    }

    /// Makes an object under that very number (log replay, receive). `Exists` if it is in use,
    /// `Again` if it was freed by a txg that is not on disk yet.
    pub fn claim(&self, tx: &Tx, object: u64, new: &NewObject) -> Result<Arc<Dnode>> {
        if let Some(n) = Self::special_index(object) {
            let f = self.fields(new)?;
            let dn = self.fresh(object, f);
            *self.special[n].acquire() = Some(dn.clone());
            dn.touch_new(tx)?;
            return Ok(dn);
        }
        if object == 0 || object > MAX_OBJECT {
            bail!(Invalid, "object number {object}");
        }
        let f = self.fields(new)?;
        let _n = self.numbers.acquire();
        let at = object % DNODES_PER_BLOCK;
        if at + f.slots as u64 > DNODES_PER_BLOCK {
            bail!(
                Invalid,
                "object {object} with {} slots crosses a block",
                f.slots
            );
        }
        let mask = ((1u64 << f.slots) - 1) << at;
        if self.used_slots(object / DNODES_PER_BLOCK)? & mask != 0 {
            if self
                .shard(object)
                .get(&object)
                .is_some_and(|d| !d.read_lock().f.allocated)
            {
                bail!(Again, "object {object} is still being freed");
            }
            bail!(Exists, "object {object} is in use");
        }
        self.insert_new(tx, object, f)
    }

    fn fresh(&self, object: u64, f: Fields) -> Arc<Dnode> {
        let s = Synced::none(f.nblkptr as usize, f.block_size, f.indblkshift);
        Dnode::new(
            object,
            self.me.clone(),
            self.dmu.clone(),
            &self.crypt,
            &self.reading,
            f,
            s,
        )
    }

    fn insert_new(&self, tx: &Tx, object: u64, f: Fields) -> Result<Arc<Dnode>> {
        base::mutation::panic_point("making an object");
        let end = object + f.slots as u64;
        let dn = self.fresh(object, f);
        self.shard(object).insert(object, dn.clone());
        self.highest.fetch_max(end, Ordering::Relaxed);
        dn.touch_new(tx)?;
        self.objects.fetch_add(1, Ordering::Relaxed);
        Ok(dn)
    }

    /// Frees an object with all its data. Damage ([`Error::is_damage`]): a block that leads to others
    /// cannot be read, so their space could not be freed; nothing was changed.
    pub fn free(&self, tx: &Tx, object: u64) -> Result<()> {
        let dn = self.hold(object)?;
        if !tx.is_syncing() {
            dn.check_free(0, u64::MAX)?;
        }
        dn.mark_freed(tx)?;
        self.objects.fetch_sub(1, Ordering::Relaxed);
        let mut n = self.numbers.acquire();
        n.freed += 1;
        if n.freed_low == 0 || object < n.freed_low {
            n.freed_low = object;
        }
        Ok(())
    }

    /// Gives the allocated objects of a block of dnodes to `take`, each with its slots, until that returns false.
    pub(crate) fn in_block(&self, blk: u64, take: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let first = blk * DNODES_PER_BLOCK;
        // Memory first, the disk then: what leaves memory in between is on disk by then.
        let mem: [Option<Arc<Dnode>>; DNODES_PER_BLOCK as usize] = std::array::from_fn(|slot| {
            let this = first + slot as u64;
            self.shard(this).get(&this).cloned()
        });
        let b = match blk <= self.meta.info().max_blkid {
            true => Some(self.meta.block(blk)?),
            false => None,
        };
        // From the start of the block, so that interior slots are not taken for dnodes.
        let mut slot = 0;
        while slot < DNODES_PER_BLOCK {
            let this = first + slot;
            let (allocated, n) = match (&mem[slot as usize], &b) {
                (Some(dn), _) => {
                    let f = &dn.read_lock().f;
                    (f.allocated, u64::from(f.slots))
                }
                (None, Some(b)) => {
                    let at = slot as usize * DNODE_SIZE;
                    match b[at] {
                        0 => (false, 1),
                        _ => (true, u64::from(b[at + 12]) + 1),
                    }
                }
                (None, None) => (false, 1),
            };
            if allocated && this != 0 && !take(this, n) {
                return Ok(());
            }
            slot += n.max(1);
        }
        Ok(())
    }

    /// The next allocated object number after `after`, `None` at the end.
    pub fn next_object(&self, after: u64) -> Result<Option<u64>> {
        let mut object = after + 1;
        loop {
            let blk = object / DNODES_PER_BLOCK;
            let on_disk = || blk <= self.meta.info().max_blkid;
            if object >= self.highest.load(Ordering::Relaxed) && !on_disk() {
                return Ok(None);
            }
            let mut found = None;
            self.in_block(blk, &mut |this, _| {
                found = Some(this).filter(|this| *this >= object);
                found.is_none()
            })?;
            if found.is_some() {
                return Ok(found);
            }
            let on_disk = on_disk();
            object = (blk + 1) * DNODES_PER_BLOCK;
            if on_disk && self.skip_holes(&mut object)? {
                return Ok(None);
            }
        }
    }

    /// Moves `object` past meta-dnode blocks that are holes; true at the end of everything.
    fn skip_holes(&self, object: &mut u64) -> Result<bool> {
        if *object < self.highest.load(Ordering::Relaxed) && self.meta.is_dirty()
        // blocks not on disk yet may be anywhere
        {
            return Ok(false);
        }
        let size = DNODE_BLOCK as u64;
        let highest = self.highest.load(Ordering::Relaxed);
        // As above: memory first.
        let in_memory = self.first_in_memory(*object);
        match self.meta.seek(*object / DNODES_PER_BLOCK * size, true)? {
            Some(at) => {
                let o = at / size * DNODES_PER_BLOCK;
                if in_memory.is_none_or(|m| m >= o) {
                    *object = o.max(*object);
                }
                Ok(false)
            }
            None => Ok(*object >= highest || in_memory.is_none()),
        }
    }

    /// The lowest object number in memory from `from` on.
    fn first_in_memory(&self, from: u64) -> Option<u64> {
        let lowest = |s: &Mutex<Shard>| {
            let s = s.acquire();
            s.keys().copied().filter(|k| *k >= from).min()
        };
        self.shards.iter().filter_map(lowest).min()
    }

    // ---- dirty lists and sync ------------------------------------------------------------------

    pub(crate) fn add_dirty(&self, txg: Txg, dn: Arc<Dnode>) {
        base::mutation::panic_point("a dirty object");
        self.dirty.acquire()[txg].insert(dn.object(), dn);
        if let Some(me) = self.me.upgrade() {
            self.dmu.register(txg, &me);
        }
    }

    pub(crate) fn take_dirty(&self, txg: Txg) -> Vec<Job> {
        let list = std::mem::take(&mut self.dirty.acquire()[txg]);
        list.values().map(|dn| dn.take_job(txg)).collect()
    }

    pub(crate) fn quiesce(&self, txg: Txg) {
        base::mutation::panic_point("taking over an object set");
        self.waiting.acquire().forget(txg);
        let jobs = self.take_dirty(txg);
        *self.jobs.acquire() = jobs;
    }

    /// True if `txg` still has changes of this set to write.
    pub fn is_dirty_in(&self, txg: Txg) -> bool {
        !self.jobs.acquire().is_empty() || self.is_changed_in(txg)
    }

    fn is_changed_in(&self, txg: Txg) -> bool {
        !self.dirty.acquire()[txg].is_empty() || self.lock_state().dirty[txg]
    }

    /// The newest txg that may have changes of this set that are not on disk; [`Txg::NONE`] if there is none. A txg that is being
    /// written counts until it is on disk, whatever it holds: once its changes are taken over, nothing here tells them.
    pub fn newest_dirty(&self) -> Txg {
        if mutated(Mutation::NewLogBelieved) {
            return Txg::NONE;
        }
        let open = self.dmu.open_txg();
        // One that is closed in this moment is on its way, too.
        let changed = self.is_changed_in(open) || self.dmu.open_txg() != open;
        let newest = if changed { open } else { open.before(1) };
        let newest = Some(newest).filter(|t| *t > self.dmu.synced_txg());
        newest.unwrap_or(Txg::NONE)
    }

    /// Changes come from an intent log: a txg that cannot read what they need fails, and does not go on without them.
    pub fn set_replaying(&self, on: bool) {
        self.lost.set_replaying(on);
    }

    pub(crate) fn weak(&self) -> Weak<Objset> {
        self.me.clone()
    }

    pub(crate) fn myself(&self) -> Option<Arc<Objset>> {
        self.me.upgrade()
    }

    /// What the txg changed is written, but not on disk yet: the numbers it freed are kept back, since
    /// what is made under them may be on disk before it, in the log.
    pub(crate) fn group_written(&self, txg: Txg, gone: impl Iterator<Item = u64>) {
        self.space.acquire()[txg] = (Txg::NONE, 0);
        let mut all = self.gone.acquire();
        all.extend(gone);
    }

    /// The txg is on disk: numbers freed by it may be given out again, clean objects nobody uses
    /// may leave memory.
    pub(crate) fn group_synced(&self) {
        base::mutation::panic_point("an object set that is on disk");
        self.rests.sweep();
        let gone = std::mem::take(&mut *self.gone.acquire());
        for object in &gone {
            self.lost.forget(*object);
            let mut m = self.shard(*object);
            if m.get(object).is_some_and(|d| !d.read_lock().f.allocated) {
                m.remove(object);
            }
        }
        {
            let mut n = self.numbers.acquire();
            n.reusable += n.freed;
            n.freed = 0;
        }
        for s in &self.shards {
            s.acquire().sweep();
        }
    }
}
