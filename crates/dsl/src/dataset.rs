//! Datasets: heads and snapshots (data format §7.2), and what a sync tells them about blocks (§9).

use crate::core::{bump, is_zapified, Core, Triple};
use crate::{Bpobj, Deadlist, Dir};
use base::mutation::{mutated, Mutation};
use base::sync::MutexExt;
use base::{bail, bail_about, Error, PerTxg, Result, Txg};
use disk::dsl::{bookmark_flags, ds_flags, BookmarkPhys, DslDatasetPhys, Used};
use disk::feature::guid;
use disk::{BlkPtr, Checksum, Compression, DnodePhys, ObjType};
use dmu::{Dnode, Objset, SyncHooks, Tx, WritePolicy};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use zap::Zap;

/// Feature of datasets from which something was left out.
const REDACTED: &str = guid::REDACTED_DATASETS;

/// Dead blocks collected before they are written to the deadlist.
const DEAD_BATCH: usize = 8192;

/// A head or a snapshot. Shared; changed only by the syncing thread.
pub struct Dataset {
    pub(crate) core: Arc<Core>,
    pub(crate) dn: Arc<Dnode>,
    me: Weak<Dataset>,
    st: Mutex<State>,
    pend: Mutex<Pending>,
    objset: Mutex<Weak<Objset>>,
    /// How far a receive that can be resumed has come with a txg: object, offset, bytes.
    progress: Mutex<PerTxg<Option<(u64, u64, u64)>>>,
}

/// While it exists a snapshot is not destroyed: the attempt fails with `Kind::Busy`. In memory only, and it keeps nothing
/// of the snapshot in memory but its number.
pub struct InUse {
    core: Arc<Core>,
    object: u64,
}

impl InUse {
    /// The snapshot; it may have another name by now.
    pub fn dataset(&self) -> Result<Arc<Dataset>> {
        self.core.dataset(self.object)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut all = self.core.in_use.acquire();
        if let Entry::Occupied(mut n) = all.entry(self.object) {
            *n.get_mut() -= 1;
            if *n.get() == 0 {
                n.remove();
            }
        }
    }
}

struct State {
    phys: DslDatasetPhys,
    dir: Arc<Dir>,
    /// Name of a snapshot once known.
    snap_name: Option<String>,
    /// GUIDs of the per-dataset features it has.
    features: BTreeSet<String>,
    /// refquota, refreservation.
    limits: Option<(u64, u64)>,
    /// Names of the bookmarks that count what is freed, by creation of their snapshots, once known.
    marks: Option<Arc<Marks>>,
}

/// Names of bookmarks by creation of their snapshots.
pub(crate) type Marks = BTreeMap<Txg, Vec<String>>;

/// Changes collected while its object set is written.
#[derive(Default)]
struct Pending {
    /// Change of the three sizes.
    refd: Triple,
    /// Change of unique space; the same blocks are in the directory's HEAD class.
    unique: i64,
    /// The same blocks' space for the directory.
    head: Triple,
    to_snap: i64,
    prev_unique: i64,
    dead: Vec<(BlkPtr, Triple)>,
    later: Vec<BlkPtr>,
    later_space: Triple,
    features: BTreeSet<&'static str>,
    /// For the livelist, in order of time.
    changes: Vec<crate::deadlist::Change>,
    /// What bookmarks count as freed, by their creation.
    freed: BTreeMap<Txg, Triple>,
    /// There is a livelist; blocks born after that txg are in it.
    listing: Option<Txg>,
}

/// Whether a bookmark counts what is freed before the next snapshot.
pub(crate) fn counts(m: &BookmarkPhys) -> bool {
    m.flags & bookmark_flags::HAS_FBN != 0
}

impl Dataset {
    pub(crate) fn open(core: &Arc<Core>, object: u64) -> Result<Arc<Dataset>> {
        let dn = core.hold(object)?;
        if dn.info().bonus_type != ObjType::DSL_DATASET {
            return Err(Error::damaged(format!("object {object} is no dataset")));
        }
        let phys = DslDatasetPhys::decode(&dn.bonus())?;
        let dir = core.dir(phys.dir_obj)?;
        let mut features = BTreeSet::new();
        if is_zapified(&dn) {
            for e in Zap::new(&dn).iter() {
                let name = e?.text();
                if disk::feature::by_guid(&name).is_some_and(|f| f.flags.per_dataset) {
                    features.insert(name);
                }
            }
        }
        Ok(Arc::new_cyclic(|me| Dataset {
            core: core.clone(),
            dn,
            me: me.clone(),
            st: Mutex::new(State {
                phys,
                dir,
                snap_name: None,
                features,
                limits: None,
                marks: None,
            }),
            pend: Mutex::default(),
            objset: Mutex::new(Weak::new()),
            progress: Mutex::default(),
        }))
    }

    /// As [`Dir::is_as_stored`].
    pub(crate) fn is_as_stored(&self) -> Result<bool> {
        let stored = DslDatasetPhys::decode(&self.dn.bonus())?;
        Ok(!self.dn.is_freed() && stored == self.phys())
    }

    /// Number of its MOS object.
    pub fn object(&self) -> u64 {
        self.dn.object()
    }

    /// Keeps a snapshot from being destroyed.
    pub fn keep(&self) -> InUse {
        let object = self.object();
        *self.core.in_use.acquire().entry(object).or_default() += 1;
        InUse {
            core: self.core.clone(),
            object,
        }
    }

    /// Whether somebody keeps it from being destroyed.
    pub fn is_kept(&self) -> bool {
        self.core.in_use.acquire().contains_key(&self.object())
    }

    /// The bonus structure as it is now.
    pub fn phys(&self) -> DslDatasetPhys {
        self.st.acquire().phys.clone()
    }

    /// The directory it belongs to. A promotion can change that of a snapshot.
    pub fn dir(&self) -> Arc<Dir> {
        self.st.acquire().dir.clone()
    }

    /// A snapshot has moved to another directory.
    pub(crate) fn set_dir(&self, dir: Arc<Dir>) {
        self.st.acquire().dir = dir;
    }

    /// Whether all that is known of it is on disk: a snapshot that nobody has open.
    pub(crate) fn is_idle_snapshot(&self) -> bool {
        self.is_snapshot() && self.objset().is_none()
    }

    /// Whether it is a snapshot, as opposed to a head.
    pub fn is_snapshot(&self) -> bool {
        self.st.acquire().phys.is_snapshot()
    }

    /// Name behind the `@`; `None` for a head.
    pub fn snap_name(&self) -> Result<Option<String>> {
        if !self.is_snapshot() {
            return Ok(None);
        }
        if let Some(n) = self.st.acquire().snap_name.clone() {
            return Ok(Some(n));
        }
        let head = self.core.dataset(self.dir().phys().head_dataset_obj)?;
        let map = self.core.hold(head.phys().snapnames_zapobj)?;
        let name = Zap::new(&map)
            .name_of(self.object(), u64::MAX)?
            .ok_or_else(|| Error::damaged(format!("snapshot {} has no name", self.object())))?;
        let name = String::from_utf8_lossy(&name).into_owned();
        self.set_snap_name(Some(name.clone()));
        Ok(Some(name))
    }

    pub(crate) fn set_snap_name(&self, name: Option<String>) {
        self.st.acquire().snap_name = name;
    }

    /// `pool/a` or `pool/a@snap` (`@?` if the snapshot's name cannot be read).
    pub fn full_name(&self) -> String {
        let dir = self.dir().full_name();
        match self.snap_name() {
            Ok(None) => dir,
            Ok(Some(s)) => format!("{dir}@{s}"),
            Err(_) => format!("{dir}@?"),
        }
    }

    /// Changes the bonus structure.
    pub(crate) fn update<R>(&self, tx: &Tx, f: impl FnOnce(&mut DslDatasetPhys) -> R) -> Result<R> {
        base::mutation::panic_point("changing a dataset");
        self.core.need_syncing(tx)?;
        let mut st = self.st.acquire();
        let r = f(&mut st.phys);
        let b = st.phys.encode();
        self.dn.set_bonus(tx, &b)?;
        Ok(r)
    }

    // ---- object set ----------------------------------------------------------------------------

    /// The object set, opened with `policy` if it is not open (the policy of an open one stays). All who
    /// open it share it. With `readonly` the caller does not write, whoever else may; one of a snapshot,
    /// of a redacted dataset, or with a key from before the first release of encryption is never written.
    pub fn open_objset(&self, policy: WritePolicy, readonly: bool) -> Result<Arc<Objset>> {
        let mut slot = self.objset.acquire();
        let crypt = self.crypt()?;
        let p = self.phys();
        // Keys from before the first release of encryption are only good for saving what is there. What
        // was left out of a redacted dataset cannot be changed in part.
        let old = crypt.key().is_some() && self.dir().has_old_keys()?;
        let readonly = readonly || p.is_snapshot() || old || self.has_feature(REDACTED);
        if let Some(os) = slot.upgrade() {
            // The key may have been loaded since somebody opened it for what takes none.
            if os.crypt().key().is_some() == crypt.key().is_some() {
                if !readonly {
                    os.allow_writing();
                }
                return Ok(os);
            }
        }
        let dmu = self.core.dmu();
        let os = Objset::open_with(dmu, self.object(), &p.bp, policy, readonly, crypt)
            .map_err(|e| e.context(self.full_name()))?;
        self.attach(&mut slot, &os);
        Ok(os)
    }

    /// Gives a new dataset its object set of `size` bytes (1024, 2048 or 4096).
    pub fn create_objset(
        &self,
        tx: &Tx,
        os_type: u64,
        size: usize,
        policy: WritePolicy,
    ) -> Result<Arc<Objset>> {
        self.core.need_syncing(tx)?;
        let mut slot = self.objset.acquire();
        if slot.upgrade().is_some() || !self.phys().bp.is_hole() {
            bail!(Exists, "{} has an object set", self.full_name());
        }
        let crypt = self.crypt()?;
        if crypt.is_encrypted() && crypt.key().is_none() {
            bail_about!(Access, self.full_name(), "its key is not loaded");
        }
        let dmu = self.core.dmu();
        let os = Objset::create_with(dmu, self.object(), tx, os_type, size, policy, crypt)?;
        self.attach(&mut slot, &os);
        Ok(os)
    }

    /// The object set of a dataset that a stream fills, to be written: also of one from which the stream
    /// leaves something out.
    ///
    /// `raw`: without its key, as a raw stream brings it, with keys of that format version.
    pub fn open_received(&self, policy: WritePolicy, raw: Option<u64>) -> Result<Arc<Objset>> {
        let mut slot = self.objset.acquire();
        let p = self.phys();
        if !self.is_inconsistent() {
            bail_about!(Invalid, self.full_name(), "nothing is received into it");
        }
        if let Some(os) = slot.upgrade() {
            // One without a key may be open to be looked at.
            if matches!(os.crypt(), zio::Crypt::Raw(_)) == raw.is_some() {
                os.allow_writing();
                return Ok(os);
            }
        }
        let dmu = self.core.dmu();
        let crypt = match raw {
            Some(version) => zio::Crypt::Raw(version),
            None => self.crypt()?,
        };
        let os = Objset::open_with(dmu, self.object(), &p.bp, policy, false, crypt)
            .map_err(|e| e.context(self.full_name()))?;
        self.attach(&mut slot, &os);
        Ok(os)
    }

    /// Gives a new dataset the object set that a raw stream fills.
    pub fn create_raw_objset(
        &self,
        tx: &Tx,
        os_type: u64,
        size: usize,
        policy: WritePolicy,
        raw: (u64, dmu::RawMeta),
    ) -> Result<Arc<Objset>> {
        self.core.need_syncing(tx)?;
        let mut slot = self.objset.acquire();
        if slot.upgrade().is_some() || !self.phys().bp.is_hole() {
            bail!(Exists, "{} has an object set", self.full_name());
        }
        let dmu = self.core.dmu();
        let os = Objset::create_raw(dmu, self.object(), tx, os_type, size, policy, raw)?;
        self.attach(&mut slot, &os);
        Ok(os)
    }

    /// Notes that a record of a stream was applied in the open txg `txg`: what a receive that can be
    /// resumed stores with it.
    pub fn note_progress(&self, txg: Txg, object: u64, offset: u64, bytes: u64) {
        self.progress.acquire()[txg] = Some((object, offset, bytes));
    }

    fn attach(&self, slot: &mut Weak<Objset>, os: &Arc<Objset>) {
        let me: Weak<Dataset> = self.me.clone();
        os.set_admission(me);
        *slot = Arc::downgrade(os);
    }

    /// The object set if somebody has it open.
    pub fn objset(&self) -> Option<Arc<Objset>> {
        self.objset.acquire().upgrade()
    }

    /// Forgets the open object set (after a rollback its content is another one).
    pub(crate) fn detach_objset(&self) {
        *self.objset.acquire() = Weak::new();
    }

    // ---- features ------------------------------------------------------------------------------

    /// Whether the dataset uses a per-dataset feature, given by guid.
    pub fn has_feature(&self, guid: &str) -> bool {
        self.st.acquire().features.contains(guid)
    }

    /// Guids of all per-dataset features the dataset uses.
    pub fn features(&self) -> BTreeSet<String> {
        self.st.acquire().features.clone()
    }

    /// Notes that what is being written uses a per-dataset feature: it becomes active when the
    /// txg is on disk, if it is enabled.
    pub fn note_feature(&self, guid: &'static str) {
        if !self.has_feature(guid) {
            self.pend.acquire().features.insert(guid);
        }
    }

    /// Notes that the dataset uses a per-dataset feature from now on (nothing if it does already).
    /// The feature must be enabled.
    pub fn activate_feature(&self, tx: &Tx, guid: &str) -> Result<()> {
        self.core.need_syncing(tx)?;
        if self.has_feature(guid) {
            return Ok(());
        }
        if !self.core.features.is_enabled(guid) {
            bail!(Unsupported, "feature {guid} is not enabled");
        }
        self.core.zapify(tx, &self.dn)?;
        Zap::new(&self.dn).add_u64(tx, guid, 0)?;
        self.core.features.activate(tx, guid, 1)?;
        self.st.acquire().features.insert(guid.to_string());
        Ok(())
    }

    /// Takes over a feature another dataset has, with what it says of it.
    pub(crate) fn inherit_feature(&self, tx: &Tx, from: &Dataset, guid: &str) -> Result<()> {
        if self.has_feature(guid) {
            return Ok(());
        }
        let value = Zap::new(&from.dn).get_value(guid)?;
        self.activate_feature(tx, guid)?;
        match value {
            Some(v) if v.as_u64() != Some(0) => Zap::new(&self.dn).update(tx, guid, &v),
            _ => Ok(()),
        }
    }

    /// Takes all features away, counts included; with their keys unless the object goes anyway.
    pub(crate) fn deactivate_features(&self, tx: &Tx, keep_keys: bool) -> Result<()> {
        let all = std::mem::take(&mut self.st.acquire().features);
        for guid in all {
            self.core.features.activate(tx, &guid, -1)?;
            if !keep_keys {
                Zap::new(&self.dn).remove_if(tx, &guid)?;
            }
        }
        Ok(())
    }

    /// Takes one feature away that the dataset does not use any more.
    pub(crate) fn deactivate_feature(&self, tx: &Tx, guid: &str) -> Result<()> {
        if self.st.acquire().features.remove(guid) {
            self.core.features.activate(tx, guid, -1)?;
            Zap::new(&self.dn).remove_if(tx, guid)?;
        }
        Ok(())
    }

    /// One of the integers of a zapified dataset.
    pub(crate) fn extra(&self, key: &str) -> Result<Option<u64>> {
        match is_zapified(&self.dn) {
            true => Zap::new(&self.dn).get(key),
            false => Ok(None),
        }
    }

    /// Guids of the snapshots by which something was left out of it; `None` if it is whole.
    pub fn redact_snaps(&self) -> Result<Option<Vec<u64>>> {
        match self.has_feature(REDACTED) {
            true => {
                let value = Zap::new(&self.dn).get_value(REDACTED)?;
                Ok(Some(value.map_or(Vec::new(), |v| v.ints())))
            }
            false => Ok(None),
        }
    }

    /// Identifies the set of IVs of an encrypted snapshot.
    pub fn ivset_guid(&self) -> Result<Option<u64>> {
        self.extra(disk::crypt::keys::IVSET_GUID)
    }

    // ---- limits --------------------------------------------------------------------------------

    /// (refquota, refreservation), bytes, 0 = none; both 0 for snapshots.
    pub fn ref_limits(&self) -> (u64, u64) {
        if let Some(l) = self.st.acquire().limits {
            return l;
        }
        let limits = match self.is_snapshot() {
            true => (0, 0),
            false => {
                let dir = self.dir();
                let get = |n| dir.own_int(n).unwrap_or(0);
                (get("refquota"), get("refreservation"))
            }
        };
        self.st.acquire().limits = Some(limits);
        limits
    }

    /// The bookmarks that count what is freed, which the writing of every txg asks for.
    pub(crate) fn marks(&self) -> Result<Arc<Marks>> {
        if let Some(marks) = &self.st.acquire().marks {
            return Ok(marks.clone());
        }
        let mut marks = Marks::new();
        for (name, m) in self.bookmarks()? {
            if counts(&m) {
                marks.entry(m.creation_txg).or_default().push(name);
            }
        }
        let marks = Arc::new(marks);
        self.st.acquire().marks = Some(marks.clone());
        Ok(marks)
    }

    /// A bookmark of a snapshot made in `txg` comes, and counts what is freed.
    pub(crate) fn add_mark(&self, txg: Txg, name: &str) {
        if let Some(marks) = &mut self.st.acquire().marks {
            let names = Arc::make_mut(marks).entry(txg).or_default();
            names.push(name.to_string());
        }
    }

    /// A bookmark of a snapshot made in `txg` goes.
    pub(crate) fn drop_mark(&self, txg: Txg, name: &str) {
        if let Some(marks) = &mut self.st.acquire().marks {
            let marks = Arc::make_mut(marks);
            if let Some(names) = marks.get_mut(&txg) {
                names.retain(|n| n != name);
                if names.is_empty() {
                    marks.remove(&txg);
                }
            }
        }
    }

    pub(crate) fn forget_limits(&self) {
        self.st.acquire().limits = None;
    }

    /// Change of the directory's used space that a change `d` of unique space makes.
    pub(crate) fn with_refreservation(&self, unique: u64, d: i64) -> i64 {
        let r = self.ref_limits().1;
        unique.saturating_add_signed(d).max(r) as i64 - unique.max(r) as i64
    }

    // ---- relatives -----------------------------------------------------------------------------

    /// The previous snapshot, if any.
    pub fn prev(&self) -> Result<Option<Arc<Dataset>>> {
        match self.phys().prev_snap_obj {
            0 => Ok(None),
            o => self.core.dataset(o).map(Some),
        }
    }

    /// The deadlist, to be looked at.
    pub fn deadlist(&self) -> Result<Deadlist> {
        Deadlist::open(&self.core.mos, self.phys().deadlist_obj)
    }

    /// The same without the keys under which nothing is.
    pub(crate) fn filled_deadlist(&self) -> Result<Deadlist> {
        Deadlist::open_filled(&self.core, self.phys().deadlist_obj)
    }

    /// Changes the deadlist, in syncing context; or reads all its keys, which are likely to be in memory.
    pub(crate) fn with_deadlist<R>(&self, f: impl FnOnce(&mut Deadlist) -> Result<R>) -> Result<R> {
        let mut list = self.core.take_deadlist(self.phys().deadlist_obj)?;
        let r = f(&mut list)?;
        self.core.keep_deadlist(list);
        Ok(r)
    }

    /// Space of all blocks on its deadlist, at the same cost whatever the number of snapshots.
    pub(crate) fn deadlist_space(&self) -> Result<Triple> {
        Deadlist::space_of(&self.core.mos, self.phys().deadlist_obj)
    }

    /// Txgs of the previous snapshots of this dataset and all before it: keys of a deadlist.
    pub(crate) fn chain_keys(&self) -> Result<Vec<Txg>> {
        let mut p = self.phys();
        let mut keys = vec![p.prev_snap_txg];
        // Chains are as long as there are snapshots; a damaged one must end.
        for _ in 0..1 << 24 {
            if p.prev_snap_obj == 0 {
                return Ok(keys);
            }
            p = self.core.dataset(p.prev_snap_obj)?.phys();
            keys.push(p.prev_snap_txg);
        }
        Err(Error::damaged("chain of snapshots goes round"))
    }

    /// Unique space of a head as it follows from its previous snapshot and deadlist.
    pub(crate) fn recomputed_unique(&self) -> Result<u64> {
        let p = self.phys();
        let prev = match self.prev()? {
            Some(s) => s.phys().referenced_bytes as i64,
            None => 0,
        };
        let shared = prev - self.deadlist_space()?.used;
        Ok((p.referenced_bytes as i64 - shared).max(0) as u64)
    }

    /// Heads of pools from before version 9 may not know their unique space.
    pub(crate) fn make_unique_accurate(&self, tx: &Tx) -> Result<()> {
        if self.phys().flags & ds_flags::UNIQUE_ACCURATE != 0 || self.core.version() < 9 {
            return Ok(());
        }
        let unique = self.recomputed_unique()?;
        self.update(tx, |p| {
            p.unique_bytes = unique;
            p.flags |= ds_flags::UNIQUE_ACCURATE;
        })
    }

    // ---- writing -------------------------------------------------------------------------------

    /// What `dmu::Objset::sync` tells about blocks, for this txg. One at a time.
    pub fn hooks<'a>(&'a self, tx: &'a Tx) -> Result<DatasetSync<'a>> {
        let p = self.phys();
        let prev = self.prev()?;
        let prev = prev
            .map(|s| s.phys())
            .filter(|s| s.next_snap_obj == self.object());
        let dir = self.dir();
        let origin_txg = dir.origin_txg()?;
        self.pend.acquire().listing = dir.livelist()?.map(|_| origin_txg);
        let marks = self.counting_marks(p.prev_snap_txg)?;
        Ok(DatasetSync {
            ds: self,
            tx,
            marks,
            prev_txg: p.prev_snap_txg,
            // Blocks older than that were unique to no snapshot of ours.
            prev_prev_txg: prev.map_or(Txg::MAX, |s| s.prev_snap_txg),
            origin_txg,
            on_dnode: None,
        })
    }

    /// The object set was written: `root` is its new pointer. Applies everything its hooks heard.
    pub fn synced(&self, tx: &Tx, root: &BlkPtr) -> Result<()> {
        self.flush(tx)?;
        self.update(tx, |p| p.bp = *root)
    }

    /// Applies what the hooks have collected.
    pub(crate) fn flush(&self, tx: &Tx) -> Result<()> {
        base::mutation::panic_point("writing down a dataset's changes");
        let mut pend = std::mem::take(&mut *self.pend.acquire());
        let progress = std::mem::take(&mut self.progress.acquire()[tx.txg()]);
        if let Some((object, offset, bytes)) = progress {
            self.receive_progress(tx, object, offset, bytes)?;
        }
        for guid in std::mem::take(&mut pend.features) {
            if self.core.features.is_enabled(guid) {
                self.activate_feature(tx, guid)?;
            }
        }
        self.flush_dead(tx, std::mem::take(&mut pend.dead))?;
        let dir = self.dir();
        let charged = self.update(tx, |p| {
            bump(&mut p.referenced_bytes, pend.refd.used);
            bump(&mut p.compressed_bytes, pend.refd.comp);
            bump(&mut p.uncompressed_bytes, pend.refd.uncomp);
            let old = p.unique_bytes;
            bump(&mut p.unique_bytes, pend.unique);
            old
        })?;
        let a = self.with_refreservation(charged, pend.unique);
        let d = pend.head.used;
        let t = Triple {
            used: a + (d - pend.unique),
            ..pend.head
        };
        dir.diduse_split(tx, &[(Used::Head, d), (Used::RefRsrv, a - pend.unique)], t)?;
        if pend.to_snap != 0 {
            dir.transfer(tx, pend.to_snap, Used::Head, Used::Snap)?;
        }
        if pend.prev_unique != 0 {
            if let Some(s) = self.prev()? {
                s.update(tx, |p| bump(&mut p.unique_bytes, pend.prev_unique))?;
            }
        }
        self.flush_livelist(tx, &pend.changes)?;
        self.count_freed(tx, &pend.freed)?;
        if !pend.later.is_empty() {
            let mut b = self.core.free_bpobj()?;
            b.enqueue(tx, &pend.later, pend.later_space)?;
            self.core
                .free_dir()?
                .diduse(tx, Used::Head, pend.later_space)?;
        }
        Ok(())
    }

    fn flush_dead(&self, tx: &Tx, dead: Vec<(BlkPtr, Triple)>) -> Result<()> {
        match dead.is_empty() {
            true => Ok(()),
            false => self.with_deadlist(|list| list.insert(&self.core, tx, &dead)),
        }
    }

    pub(crate) fn born(&self, bp: &BlkPtr) {
        let t = self.core.triple(bp);
        let mut p = self.pend.acquire();
        p.refd += t;
        p.unique += t.used;
        p.head += t;
        if p.listing.is_some_and(|o| crate::deadlist::listed(bp, o)) {
            p.changes.push((*bp, t, false));
        }
        if !bp.is_embedded() && bp.lsize() > base::OLD_MAX_BLOCK {
            p.features.insert(guid::LARGE_BLOCKS);
        }
        match bp.checksum_alg() {
            Checksum::SHA512 => p.features.insert(guid::SHA512),
            Checksum::SKEIN => p.features.insert(guid::SKEIN),
            Checksum::EDONR => p.features.insert(guid::EDONR),
            Checksum::BLAKE3 => p.features.insert(guid::BLAKE3),
            _ => false,
        };
        if bp.compress() == Compression::ZSTD {
            p.features.insert(guid::ZSTD_COMPRESS);
        }
    }

    /// Whether a dataset's flag is set.
    pub fn is_inconsistent(&self) -> bool {
        self.phys().flags & ds_flags::INCONSISTENT != 0
    }
}

/// Listens to the writing of one dataset's object set.
pub struct DatasetSync<'a> {
    ds: &'a Dataset,
    tx: &'a Tx,
    /// Creation of bookmarks after the previous snapshot that count what is freed, ascending.
    marks: Vec<Txg>,
    prev_txg: Txg,
    prev_prev_txg: Txg,
    origin_txg: Txg,
    /// Also told of every dnode written: the accounting by owner.
    pub on_dnode: Option<&'a dyn Fn(u64, Option<&DnodePhys>, Option<&DnodePhys>) -> Result<()>>,
}

impl DatasetSync<'_> {
    /// `true` = free it at once.
    pub(crate) fn killed(&self, bp: &BlkPtr) -> Result<bool> {
        if bp.is_hole() || bp.is_redacted() {
            return Ok(false);
        }
        let core = &self.ds.core;
        let t = core.triple(bp);
        let mut p = self.ds.pend.acquire();
        p.refd -= t;
        if p.listing.is_some_and(|o| crate::deadlist::listed(bp, o)) {
            p.changes.push((*bp, t, true));
        }
        for mark in self.marks.iter().rev().take_while(|m| **m >= bp.birth()) {
            *p.freed.entry(*mark).or_default() += t;
        }
        if bp.birth() > self.prev_txg {
            p.unique -= t.used;
            p.head -= t;
            if core.version() >= 26 && (bp.is_gang() || core.dmu().zio.may_share(bp)) {
                // Freeing takes reads of a header, reads and writes of a table; that is done in the
                // background.
                p.later.push(*bp);
                p.later_space += t;
                return Ok(false);
            }
            return Ok(true);
        }
        if bp.birth() > self.prev_prev_txg {
            p.prev_unique += t.used;
        }
        if bp.birth() > self.origin_txg {
            p.to_snap += t.used;
        }
        p.dead.push((*bp, t));
        if p.dead.len() >= DEAD_BATCH {
            let dead = std::mem::take(&mut p.dead);
            drop(p);
            self.ds.flush_dead(self.tx, dead)?;
        }
        Ok(false)
    }
}

impl SyncHooks for DatasetSync<'_> {
    fn born(&self, bp: &BlkPtr) -> Result<()> {
        self.ds.born(bp);
        Ok(())
    }

    fn kill(&self, bp: &BlkPtr) -> Result<bool> {
        self.killed(bp)
    }

    fn dnode_synced(
        &self,
        object: u64,
        old: Option<&DnodePhys>,
        new: Option<&DnodePhys>,
    ) -> Result<()> {
        if new.is_some_and(|d| d.slots > 1) {
            self.ds.pend.acquire().features.insert(guid::LARGE_DNODE);
        }
        // Also where no block of that size was ever written: a raw stream has to say the size.
        let large = |d: &DnodePhys| d.block_size() > base::OLD_MAX_BLOCK;
        if new.is_some_and(large) && !mutated(Mutation::UnwrittenLargeBlocks) {
            self.ds.pend.acquire().features.insert(guid::LARGE_BLOCKS);
        }
        match self.on_dnode {
            Some(f) => f(object, old, new),
            None => Ok(()),
        }
    }
}

impl Core {
    /// The pool's list of blocks to free in the background.
    pub(crate) fn free_bpobj(&self) -> Result<Bpobj> {
        match self.directory_get("free_bpobj")? {
            Some(o) => Bpobj::open(&self.mos, o),
            None => Err(Error::damaged("MOS directory has no free_bpobj")),
        }
    }
}
