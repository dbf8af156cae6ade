//! The dataset that a receive fills. It is created when the receive begins, and exchanged with its target or given a
//! snapshot when the receive ends (data format §31, §10.7).
//!
//! 1. Until the end the dataset is INCONSISTENT: it is not mounted, and the next import destroys it,
//!    unless it keeps the state with which the stream can be resumed.
//! 2. An existing target is filled through its child `%recv`, a clone of the base. It keeps its own
//!    content until the one txg in which everything changes.

use crate::bptree::Bptree;
use crate::core::{check_component, Core, Triple};
use crate::history::NOTHING;
use crate::props::PropChange;
use crate::snapshot::space_after;
use crate::{CreateArgs, Dataset, Dir, Dsl, NewKey, PropValue, ReceivedKey, SnapshotEntry};
use base::mutation::{mutated, Mutation};
use base::{bail, bail_about, Cause, Error, Kind, Result, Txg};
use disk::dsl::{ds_flags, Used};
use dmu::Tx;
use std::collections::HashMap;
use std::sync::Arc;
use zap::{Value, Zap};

/// Bytes by which what is received may exceed the refquota: as many as one transaction of OpenZFS may take. The sender may have
/// come so far beyond the same refquota.
const REFQUOTA_SLACK: u64 = (64 << 20) * 24;

/// Name of the child through which an existing dataset is received into.
pub const RECV: &str = "%recv";

/// Keys of the state of a receive that can be resumed, in the zapified dataset.
mod keys {
    /// `u64`: guid of the base.
    pub const FROM_GUID: &str = "com.delphix:resume_fromguid";
    /// String: name of the snapshot.
    pub const TO_NAME: &str = "com.delphix:resume_toname";
    /// `u64`: guid of the snapshot.
    pub const TO_GUID: &str = "com.delphix:resume_toguid";
    /// `u64`: object of the last record.
    pub const OBJECT: &str = "com.delphix:resume_object";
    /// `u64`: offset of the last record in that object.
    pub const OFFSET: &str = "com.delphix:resume_offset";
    /// `u64`: bytes of the stream so far.
    pub const BYTES: &str = "com.delphix:resume_bytes";
    /// `u8`, 1: the stream has blocks above 128 KiB.
    pub const LARGE_BLOCKS: &str = "com.delphix:resume_largeblockok";
    /// `u8`, 1: the stream has embedded blocks.
    pub const EMBEDDED: &str = "com.delphix:resume_embedok";
    /// `u8`, 1: the stream has compressed blocks.
    pub const COMPRESSED: &str = "com.delphix:resume_compressok";
    /// `u8`, 1: the stream is raw.
    pub const RAW: &str = "com.datto:resume_rawok";
    /// Array of `u64`: guids of the snapshots by which the base is redacted.
    pub const BOOK_SNAPS: &str = "com.delphix:resume_redact_book_snaps";
    /// All of them; entries to be removed when the receive ends.
    pub const ALL: [&str; 11] = [
        FROM_GUID,
        TO_NAME,
        TO_GUID,
        OBJECT,
        OFFSET,
        BYTES,
        LARGE_BLOCKS,
        EMBEDDED,
        COMPRESSED,
        RAW,
        BOOK_SNAPS,
    ];
}

/// How far a receive that can be resumed has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumeState {
    /// 0: a full stream.
    pub from_guid: u64,
    /// Guid of the snapshot that is received.
    pub to_guid: u64,
    /// Name of the snapshot on the sending system.
    pub to_name: String,
    /// The last record that was applied, and the bytes of the stream up to it.
    pub object: u64,
    /// Offset of that record in the object.
    pub offset: u64,
    /// Bytes of the stream up to and with that record.
    pub bytes: u64,
    /// The stream has blocks above 128 KiB.
    pub large_blocks: bool,
    /// The stream has embedded blocks.
    pub embedded: bool,
    /// The stream has compressed blocks.
    pub compressed: bool,
    /// The stream is raw.
    pub raw: bool,
    /// By which snapshots something is left out of the stream; kept as a feature of the dataset.
    pub redact_snaps: Option<Vec<u64>>,
    /// By which snapshots something was left out of the base.
    pub book_redact_snaps: Option<Vec<u64>>,
}

/// Where a stream goes.
pub enum ReceiveTarget<'a> {
    /// A new file system or volume.
    New {
        /// The directory it is made in.
        parent: &'a Arc<Dir>,
        /// Its name there.
        name: &'a str,
    },
    /// Through `%recv` into a head that exists.
    Existing(&'a Arc<Dataset>),
}

/// What a receive begins with.
pub struct ReceiveBegin<'a> {
    /// The dataset that is made or changed.
    pub target: ReceiveTarget<'a>,
    /// The snapshot the stream is an increment to, or the origin of a clone.
    pub base: Option<&'a Arc<Dataset>>,
    /// How a dataset without a base is encrypted.
    pub key: Option<&'a NewKey>,
    /// The key of a raw stream.
    pub raw: Option<&'a ReceivedKey>,
    /// Names of the file system do not distinguish case.
    pub case_insensitive: bool,
    /// What is kept so that the stream can be resumed.
    pub resume: Option<&'a ResumeState>,
    /// Per-dataset features that the stream brings.
    pub features: &'a [&'static str],
}

/// How a receive ends.
pub struct ReceiveEnd<'a> {
    /// The dataset that was filled.
    pub filled: &'a Arc<Dataset>,
    /// The head that it is to replace; `None`: it is the target itself.
    pub target: Option<&'a Arc<Dataset>>,
    /// Name of the snapshot behind the `@`.
    pub name: &'a str,
    /// Guid of the snapshot, as on the sending system.
    pub guid: u64,
    /// Seconds since 1970.
    pub creation_time: u64,
    /// What the target has beyond the base is given up.
    pub force: bool,
    /// Identifies the set of IVs of a raw stream.
    pub ivset_guid: Option<u64>,
    /// The key as the raw stream has it: the sender may have changed what wraps it.
    pub key: Option<&'a ReceivedKey>,
}

impl Dataset {
    /// The state of a receive that can be resumed; `None` if there is none.
    pub fn resume_state(&self) -> Result<Option<ResumeState>> {
        let Some(to_guid) = self.extra(keys::TO_GUID)? else {
            return Ok(None);
        };
        let zap = Zap::new(&self.dn);
        let num = |key: &str| -> Result<u64> { Ok(zap.get(key)?.unwrap_or(0)) };
        let has = |key: &str| -> Result<bool> { Ok(zap.get_value(key)?.is_some()) };
        Ok(Some(ResumeState {
            from_guid: num(keys::FROM_GUID)?,
            to_guid,
            to_name: match zap.get_value(keys::TO_NAME)? {
                Some(v) => v.to_text()?,
                None => String::new(),
            },
            object: num(keys::OBJECT)?,
            offset: num(keys::OFFSET)?,
            bytes: num(keys::BYTES)?,
            large_blocks: has(keys::LARGE_BLOCKS)?,
            embedded: has(keys::EMBEDDED)?,
            compressed: has(keys::COMPRESSED)?,
            raw: has(keys::RAW)?,
            redact_snaps: self.redact_snaps()?,
            book_redact_snaps: zap.get_value(keys::BOOK_SNAPS)?.map(|v| v.ints()),
        }))
    }

    /// Whether it changed since `snap`, of which its content was the same once: its objects are compared,
    /// not its intent log.
    pub fn is_modified_since(&self, snap: &Dataset) -> Result<bool> {
        let (h, s) = (self.phys(), snap.phys());
        if mutated(Mutation::ChangesUnseen) || h.bp == s.bp || h.bp.birth() <= s.creation_txg {
            return Ok(false);
        }
        if h.bp.is_hole() || s.bp.is_hole() {
            return Ok(true);
        }
        let zio = &self.core.dmu().zio;
        let read = |bp| -> Result<Vec<u8>> {
            let b = zio.read(bp)?;
            Ok(b.get(..disk::dnode::DNODE_SIZE).unwrap_or(&b).to_vec())
        };
        Ok(read(&h.bp)? != read(&s.bp)?)
    }

    /// The child through which the head is received into, if there is one.
    pub fn receiving(&self) -> Result<Option<Arc<Dataset>>> {
        match self.dir().child(RECV)? {
            Some(dir) => dir.head().map(Some),
            None => Ok(None),
        }
    }

    fn store_resume(&self, tx: &Tx, r: &ResumeState) -> Result<()> {
        self.core.zapify(tx, &self.dn)?;
        let zap = Zap::new(&self.dn);
        if r.from_guid != 0 {
            zap.update_u64(tx, keys::FROM_GUID, r.from_guid)?;
        }
        zap.update_u64(tx, keys::TO_GUID, r.to_guid)?;
        zap.update(tx, keys::TO_NAME, &Value::string(&r.to_name))?;
        for (key, on) in [
            (keys::LARGE_BLOCKS, r.large_blocks),
            (keys::EMBEDDED, r.embedded),
            (keys::COMPRESSED, r.compressed),
            (keys::RAW, r.raw),
        ] {
            if on {
                zap.update(tx, key, &Value::bytes(&[1]))?;
            }
        }
        if let Some(snaps) = &r.book_redact_snaps {
            zap.update(tx, keys::BOOK_SNAPS, &Value::u64s(snaps))?;
        }
        self.receive_progress(tx, r.object, r.offset, r.bytes)
    }

    /// Stores how far a receive that can be resumed has come, in the txg in which that is on disk.
    pub fn receive_progress(&self, tx: &Tx, object: u64, offset: u64, bytes: u64) -> Result<()> {
        let zap = Zap::new(&self.dn);
        zap.update_u64(tx, keys::OBJECT, object)?;
        zap.update_u64(tx, keys::OFFSET, offset)?;
        zap.update_u64(tx, keys::BYTES, bytes)
    }

    fn forget_resume(&self, tx: &Tx) -> Result<()> {
        if self.extra(keys::TO_GUID)?.is_some() {
            for key in keys::ALL {
                Zap::new(&self.dn).remove_if(tx, key)?;
            }
        }
        Ok(())
    }
}

impl Dsl {
    /// Makes the dataset that a stream fills. A clone has the object set of its base; any other one
    /// gets none yet.
    ///
    /// Errors: those of [`Dsl::check_create`]; `Kind::Busy` if the target is received into already.
    pub fn receive_begin(&self, tx: &Tx, r: &ReceiveBegin) -> Result<Arc<Dataset>> {
        self.core.need_syncing(tx)?;
        let (parent, name) = match &r.target {
            ReceiveTarget::New { parent, name } => (Arc::clone(parent), *name),
            ReceiveTarget::Existing(head) => {
                if head.receiving()?.is_some() {
                    bail_about!(
                        Busy,
                        head.full_name(),
                        "it is being received into, or keeps part of a stream"
                    );
                }
                (head.dir(), RECV)
            }
        };
        let args = CreateArgs {
            case_insensitive: r.case_insensitive,
            internal: name == RECV,
        };
        for guid in r.features {
            if !self.core.features.is_enabled(guid) {
                bail!(Unsupported, "feature {guid} is not enabled");
            }
        }
        if r.resume.is_some() && !self.core.features.is_enabled(crate::core::EXTENSIBLE) {
            bail!(Unsupported, "feature extensible_dataset is not enabled");
        }
        let ds = match (r.base, r.key) {
            (Some(base), _) => self.create_clone(tx, &parent, name, base, args)?,
            (None, Some(key)) => self.create_encrypted(tx, &parent, name, args, key)?,
            (None, None) => self.create_fs(tx, &parent, name, args)?,
        };
        self.core.must(self.begin_in(tx, &ds, r))?;
        self.core.note("receive", &ds, NOTHING);
        Ok(ds)
    }

    fn begin_in(&self, tx: &Tx, ds: &Arc<Dataset>, r: &ReceiveBegin) -> Result<()> {
        ds.update(tx, |p| p.flags |= ds_flags::INCONSISTENT)?;
        // What the base leaves out is for the stream to say.
        ds.deactivate_feature(tx, disk::feature::guid::REDACTED_DATASETS)?;
        for guid in r.features {
            ds.activate_feature(tx, guid)?;
        }
        if let (Some(key), None) = (r.raw, r.base) {
            self.core.encrypt_received(tx, ds, key)?;
        }
        match r.resume {
            Some(state) => ds.store_resume(tx, state),
            None => Ok(()),
        }
    }

    /// Whether a receive can end: what is to be given up is free to go, the snapshot can be made.
    pub fn check_receive_end(&self, e: &ReceiveEnd) -> Result<()> {
        check_component(e.name)?;
        let Some(head) = e.target else {
            return match e.filled.snapshot_count()? {
                0 => Ok(()),
                _ => bail_about!(Exists, e.filled.full_name(), "destination has snapshots"),
            };
        };
        if let (Some(key), Some(have)) = (e.key, head.dir().key_object()?) {
            // The other key would take the place of the one all its blocks are encrypted with.
            if have.wrapped.guid != key.wrapped.guid {
                bail_about!(
                    Access,
                    head.full_name(),
                    "the stream is encrypted with another key"
                );
            }
        }
        let base = self.base_of(e.filled)?;
        let later = self.later_snapshots(head, base.as_deref())?;
        for later in &later {
            if !e.force {
                bail_about!(
                    Exists,
                    head.full_name(),
                    "destination has snapshots that the stream does not know"
                );
            }
            self.check_destroy_snapshot(&*head.named_snapshot(later)?)?;
        }
        if let (Some(base), false) = (&base, e.force) {
            if head.is_modified_since(base)? {
                bail_about!(
                    Busy,
                    head.full_name(),
                    "destination has been modified since most recent snapshot"
                );
            }
        }
        if let Some(found) = head.snapshot_named(e.name)? {
            if !later.iter().any(|s| s.object == found.object()) {
                bail_about!(Exists, found.full_name(), "snapshot already exists");
            }
        }
        let (refquota, _) = head.ref_limits();
        let most = refquota.saturating_add(REFQUOTA_SLACK);
        if refquota != 0 && e.filled.phys().referenced_bytes > most {
            let e = Error::about(
                Kind::Quota,
                head.full_name(),
                "the stream is larger than refquota",
            );
            return Err(e.because(Cause::Refquota));
        }
        Ok(())
    }

    /// The snapshot a dataset begins with, unless it is that of all new ones.
    fn base_of(&self, ds: &Dataset) -> Result<Option<Arc<Dataset>>> {
        let prev = ds.prev()?;
        let origin = self.core.origin_snap()?;
        Ok(prev.filter(|p| p.object() != origin))
    }

    /// Snapshots of a head after `base`, oldest first; all if there is none.
    fn later_snapshots(
        &self,
        head: &Dataset,
        base: Option<&Dataset>,
    ) -> Result<Vec<SnapshotEntry>> {
        let txg = base.map_or(Txg::NONE, |b| b.phys().creation_txg);
        // Back from the head, so that those before the base are not asked.
        let mut list = Vec::new();
        let mut at = head.phys().prev_snap_obj;
        while at != 0 {
            let p = self.core.dataset(at)?.phys();
            if p.dir_obj != head.phys().dir_obj || p.creation_txg <= txg {
                break;
            }
            if list.last().is_some_and(|(_, txg)| p.creation_txg >= *txg) {
                return Err(Error::damaged("chain of snapshots goes round"));
            }
            list.push((at, p.creation_txg));
            at = p.prev_snap_obj;
        }
        if list.is_empty() {
            return Ok(Vec::new());
        }
        let names = head.snapshot_names()?.into_iter();
        let mut names: HashMap<u64, String> = names.map(|(name, o)| (o, name)).collect();
        let entry = |(object, creation_txg)| {
            let name = names.remove(&object)?;
            Some(SnapshotEntry {
                name,
                object,
                creation_txg,
            })
        };
        Ok(list.into_iter().rev().filter_map(entry).collect())
    }

    /// Ends a receive, in one txg: what is later than the base goes if it may, the head takes over what
    /// was received, the snapshot is made. Nobody may have either object set open, and both must be
    /// written. Returns the snapshot.
    ///
    /// Errors: those of [`check_receive_end`](Self::check_receive_end); nothing was changed then.
    pub fn receive_end(&self, tx: &Tx, e: &ReceiveEnd) -> Result<Arc<Dataset>> {
        self.core.need_syncing(tx)?;
        self.check_receive_end(e)?;
        let snap = self.core.must(self.end_checked(tx, e))?;
        let head = e.target.unwrap_or(e.filled);
        self.core
            .note("finish receiving", head, format!("snap={}", e.name));
        Ok(snap)
    }

    fn end_checked(&self, tx: &Tx, e: &ReceiveEnd) -> Result<Arc<Dataset>> {
        let core = &self.core;
        let head = match e.target {
            None => e.filled,
            Some(head) => {
                let base = self.base_of(e.filled)?;
                for later in self.later_snapshots(head, base.as_deref())?.iter().rev() {
                    let snap = head.named_snapshot(later)?;
                    core.note("destroy", &snap, NOTHING);
                    core.destroy_snap(tx, &snap)?;
                }
                self.replace(tx, head, e.filled, base.as_ref())?;
                head
            }
        };
        if let (Some(key), Some(_)) = (e.key, e.target) {
            core.rewrap_received(tx, &head.dir(), key)?;
        }
        head.forget_resume(tx)?;
        head.update(tx, |p| p.flags &= !ds_flags::INCONSISTENT)?;
        let snap = core.snapshot_head(tx, head, e.name, tx.txg())?;
        snap.update(tx, |p| {
            p.guid = e.guid;
            p.creation_time = e.creation_time;
            p.flags &= !ds_flags::INCONSISTENT;
        })?;
        if let Some(guid) = e.ivset_guid {
            core.zapify(tx, &snap.dn)?;
            Zap::new(&snap.dn).update_u64(tx, disk::crypt::keys::IVSET_GUID, guid)?;
        }
        Ok(snap)
    }

    /// The head becomes what was received; the dataset that was filled is destroyed.
    fn replace(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        filled: &Arc<Dataset>,
        base: Option<&Arc<Dataset>>,
    ) -> Result<()> {
        let core = &self.core;
        core.note(
            "clone swap",
            filled,
            format!("parent={}", head.dir().name()),
        );
        match base {
            Some(base) => self.roll_back(tx, head, base)?,
            None => self.give_up_content(tx, head)?,
        }
        core.take_over(tx, head, filled, base)?;
        filled.forget_resume(tx)?;
        self.check_destroy(filled)?;
        self.destroy_checked(tx, filled)
    }

    /// Frees all that a head without snapshots has.
    fn give_up_content(&self, tx: &Tx, head: &Arc<Dataset>) -> Result<()> {
        let core = &self.core;
        head.flush(tx)?;
        head.make_unique_accurate(tx)?;
        core.scan_head_gone(tx, head.object())?;
        head.dir().drop_livelist(tx)?;
        let h = head.phys();
        if core.frees_later()? {
            let given = Triple {
                used: h.unique_bytes as i64,
                comp: h.compressed_bytes as i64,
                uncomp: h.uncompressed_bytes as i64,
            };
            if h.bp.birth() > h.prev_snap_txg {
                Bptree::add(core, tx, &h.bp, h.prev_snap_txg, given)?;
                core.free_dir()?.diduse(tx, Used::Head, given)?;
            }
            let d = -(h.unique_bytes as i64);
            let a = head.with_refreservation(h.unique_bytes, d);
            let t = Triple { used: a, ..-given };
            head.dir()
                .diduse_split(tx, &[(Used::Head, d), (Used::RefRsrv, a - d)], t)?;
        } else {
            crate::free::kill_own(head, tx)?;
        }
        head.update(tx, |p| {
            p.bp = disk::BlkPtr::HOLE;
            p.referenced_bytes = 0;
            p.compressed_bytes = 0;
            p.uncompressed_bytes = 0;
            p.unique_bytes = 0;
        })?;
        head.detach_objset();
        Ok(())
    }

    /// Destroys a dataset that a stream filled in part. Its object set must be closed and written.
    pub fn receive_abandon(&self, tx: &Tx, ds: &Arc<Dataset>) -> Result<()> {
        self.core.need_syncing(tx)?;
        if !ds.is_inconsistent() {
            bail_about!(Invalid, ds.full_name(), "it is complete");
        }
        self.check_destroy(ds)?;
        ds.detach_objset();
        self.core.must(self.destroy_checked(tx, ds))
    }

    /// Stores values a stream brought. With `all`, received values of properties other than `keep` that it
    /// does not bring are forgotten, and the first time local values with them.
    pub fn receive_props(
        &self,
        tx: &Tx,
        ds: &Arc<Dataset>,
        new: &[(String, PropValue)],
        all: bool,
        keep: &[&str],
    ) -> Result<()> {
        let received = self.core.version() >= 22;
        if all && received {
            let first = !ds.has_received()?;
            for name in ds.received_names(first)? {
                let stays = keep.contains(&name.as_str()) || new.iter().any(|(n, _)| *n == name);
                if !stays {
                    self.set_prop(tx, ds, &name, &PropChange::ForgetReceived)?;
                }
                // What was set here before there were received values gives way to them.
                if first && !keep.contains(&name.as_str()) {
                    self.set_prop(tx, ds, &name, &PropChange::RevertToReceived)?;
                }
            }
            self.set_has_received(tx, ds)?;
        }
        for (name, value) in new {
            let change = match received {
                true => PropChange::Received(value.clone()),
                false => PropChange::Local(value.clone()),
            };
            match self.set_prop(tx, ds, name, &change) {
                Ok(()) => {}
                // A limit that does not fit here is no reason to refuse the data.
                Err(e) if matches!(e.kind, Kind::NoSpace | Kind::Quota | Kind::Unsupported) => {
                    tracing::warn!("cannot receive {name} property on {}: {e}", ds.full_name());
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Notes that the dataset lacks what the snapshots of these guids leave out.
    pub fn mark_redacted(&self, tx: &Tx, ds: &Arc<Dataset>, snaps: &[u64]) -> Result<()> {
        const REDACTED: &str = disk::feature::guid::REDACTED_DATASETS;
        ds.activate_feature(tx, REDACTED)?;
        Zap::new(&ds.dn).update(tx, REDACTED, &Value::u64s(snaps))
    }

    /// What receives that ended with the process left behind and nobody can resume. Datasets that cannot be read are passed over.
    pub fn broken_receives(&self) -> Result<Vec<Arc<Dataset>>> {
        let mut out = Vec::new();
        let mut look = |dir: &Arc<Dir>| -> Result<()> {
            let head = match dir.head() {
                Err(e) if e.kind == Kind::NotFound => return Ok(()),
                head => head?,
            };
            if head.is_inconsistent() && head.resume_state()?.is_none() {
                out.push(head);
            }
            Ok(())
        };
        let both = &mut |dir: &Arc<Dir>| {
            // One does not keep the other.
            let hidden = dir
                .child(RECV)
                .and_then(|c| c.iter().try_for_each(&mut look));
            look(dir).and(hidden)
        };
        self.walk_past(&self.root()?, both, &mut |name, e| {
            tracing::warn!("{name}: whether a receive of it was broken off is not known: {e}");
            Ok(())
        })?;
        Ok(out)
    }
}

impl Core {
    /// `head`, which is what `base` is (without one: nothing), becomes what `filled` is, which began with
    /// the same and is left with nothing.
    fn take_over(
        self: &Arc<Self>,
        tx: &Tx,
        head: &Arc<Dataset>,
        filled: &Arc<Dataset>,
        base: Option<&Arc<Dataset>>,
    ) -> Result<()> {
        filled.flush(tx)?;
        let (from, to) = (filled.dir(), head.dir());
        from.drop_livelist(tx)?;
        to.drop_livelist(tx)?;
        self.scan_received(tx, filled.object(), head.object())?;
        let (c, h) = (filled.phys(), head.phys());
        if h.prev_snap_obj != c.prev_snap_obj || h.unique_bytes != 0 {
            return Err(Error::damaged(format!(
                "{} and what was received for it do not begin with the same",
                head.full_name()
            )));
        }
        // The blocks change their owner.
        let d = from.phys();
        let given = Triple {
            used: d.used_bytes as i64,
            comp: d.compressed_bytes as i64,
            uncomp: d.uncompressed_bytes as i64,
        };
        from.diduse(tx, Used::Head, -given)?;
        let a = head.with_refreservation(0, c.unique_bytes as i64);
        let t = Triple {
            used: a + given.used - c.unique_bytes as i64,
            ..given
        };
        let reserved = a - c.unique_bytes as i64;
        to.diduse_split(
            tx,
            &[(Used::Head, given.used), (Used::RefRsrv, reserved)],
            t,
        )?;
        let deadlist = filled.deadlist()?;
        let gone = space_after(self, &deadlist, to.origin_txg()?)?;
        to.transfer(tx, gone, Used::Head, Used::Snap)?;
        if let Some(base) = base {
            let own = deadlist.space_range(self, base.phys().prev_snap_txg, Txg::MAX)?;
            base.update(tx, |p| crate::core::bump(&mut p.unique_bytes, own.used))?;
            head.bookmarks_have_next(tx, base.phys().creation_txg, deadlist.space())?;
        }
        head.deactivate_features(tx, false)?;
        for guid in filled.features() {
            head.inherit_feature(tx, filled, &guid)?;
        }
        head.update(tx, |p| {
            p.bp = c.bp;
            p.deadlist_obj = c.deadlist_obj;
            p.referenced_bytes = c.referenced_bytes;
            p.compressed_bytes = c.compressed_bytes;
            p.uncompressed_bytes = c.uncompressed_bytes;
            p.unique_bytes = c.unique_bytes;
            p.flags &= !ds_flags::CI_DATASET;
            p.flags |= c.flags & ds_flags::CI_DATASET;
        })?;
        filled.update(tx, |p| {
            p.bp = disk::BlkPtr::HOLE;
            p.deadlist_obj = h.deadlist_obj;
            p.referenced_bytes = 0;
            p.compressed_bytes = 0;
            p.uncompressed_bytes = 0;
            p.unique_bytes = 0;
        })?;
        head.detach_objset();
        filled.detach_objset();
        Ok(())
    }
}
