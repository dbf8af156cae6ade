//! Bookmarks (data format §12): the txg, guid and sizes of a snapshot, kept after the snapshot is destroyed and
//! updated while the file system changes.

use crate::core::{
    bump, check_component, listed, Core, Triple, BOOKMARKS, BOOKMARK_V2, BOOKMARK_WRITTEN,
    FULL_NAME_MAX, REDACTION_BOOKMARKS, REDACTION_SPILL,
};
use crate::dataset::counts;
use crate::{Dataset, Dsl};
use base::mutation::{mutated, Mutation};
use base::{bail_about, Cause, Error, Kind, Result, Txg};
use disk::dsl::{bookmark_flags, BookmarkPhys};
use disk::ObjType;
use dmu::{Dnode, Tx};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use zap::{Entry, Value, Zap};

/// Words of the long form.
const LONG: usize = 12;

fn add(m: &mut BookmarkPhys, t: Triple) {
    for (w, d) in m
        .freed_before_next
        .iter_mut()
        .zip([t.used, t.comp, t.uncomp])
    {
        bump(w, d);
    }
}

impl Dataset {
    fn bookmark_map(&self) -> Result<Option<Arc<Dnode>>> {
        match self.extra(BOOKMARKS)? {
            Some(o) if !self.is_snapshot() => listed(&self.dn, BOOKMARKS, o, || self.core.hold(o)),
            _ => Ok(None),
        }
    }

    /// What `read` finds in the map of bookmarks; the default if there is none, or none any more.
    fn in_bookmarks<R: Default>(&self, read: impl FnOnce(&Arc<Dnode>) -> Result<R>) -> Result<R> {
        let Some(map) = self.bookmark_map()? else {
            return Ok(R::default());
        };
        match read(&map) {
            Err(e) if e.kind == Kind::NotFound && map.is_freed() => Ok(R::default()),
            found => found,
        }
    }

    /// Bookmarks of a head by creation, with their names.
    pub fn bookmarks(&self) -> Result<Vec<(String, BookmarkPhys)>> {
        let one = |e: Entry| Ok((e.text(), BookmarkPhys::from_words(&e.value.ints())?));
        let mut out: Vec<(String, BookmarkPhys)> =
            self.in_bookmarks(|map| Zap::new(map).iter().map(|e| one(e?)).collect())?;
        out.sort_by(|a, b| (a.1.creation_txg, &a.0).cmp(&(b.1.creation_txg, &b.0)));
        Ok(out)
    }

    /// Bookmarks of a head with their integers as they are stored, 3 or 12, by name.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn bookmark_words(&self) -> Result<Vec<(String, Vec<u64>)>> {
        let mut out = Vec::new();
        if let Some(map) = self.bookmark_map()? {
            for e in Zap::new(&map).iter() {
                let e = e?;
                out.push((e.text(), e.value.ints()));
            }
        }
        out.sort();
        Ok(out)
    }

    /// The bookmark of that name of this head.
    pub fn bookmark(&self, name: &str) -> Result<Option<BookmarkPhys>> {
        self.in_bookmarks(|map| match Zap::new(map).get_value(name)? {
            Some(v) => BookmarkPhys::from_words(&v.ints()).map(Some),
            None => Ok(None),
        })
    }

    /// Bookmarks of a head made of snapshots younger than `txg`.
    pub fn bookmarks_after(&self, txg: Txg) -> Result<Vec<(String, BookmarkPhys)>> {
        let mut all = self.bookmarks()?;
        all.retain(|(_, m)| m.creation_txg > txg);
        Ok(all)
    }

    /// The snapshot of `txg` has another successor, on whose deadlist `freed` lies.
    pub(crate) fn bookmarks_have_next(&self, tx: &Tx, txg: Txg, freed: Triple) -> Result<()> {
        self.change_marks(tx, txg..=txg, &mut |m| {
            m.freed_before_next = [0; 3];
            add(m, freed);
            Ok(true)
        })
    }

    /// Creation of the bookmarks that count what is freed before the next snapshot, ascending, each
    /// once; those from `since` on.
    pub(crate) fn counting_marks(&self, since: Txg) -> Result<Vec<Txg>> {
        Ok(self.marks()?.range(since..).map(|(txg, _)| *txg).collect())
    }

    /// Changes bookmarks that count what is freed, of snapshots made in these txgs, where `f` says so.
    fn change_marks(
        &self,
        tx: &Tx,
        txgs: RangeInclusive<Txg>,
        f: &mut dyn FnMut(&mut BookmarkPhys) -> Result<bool>,
    ) -> Result<()> {
        if txgs.is_empty() {
            return Ok(());
        }
        let marks = self.marks()?;
        let mut names = marks.range(txgs).flat_map(|(_, names)| names).peekable();
        if names.peek().is_none() {
            return Ok(());
        }
        let Some(map) = self.bookmark_map()? else {
            return Ok(());
        };
        let map = Zap::new(&map);
        for name in names {
            let Some(v) = map.get_value(name.as_str())? else {
                return Err(Error::damaged(format!("bookmark '{name}' is gone")));
            };
            let mut m = BookmarkPhys::from_words(&v.ints())?;
            if f(&mut m)? {
                map.update(tx, name, &Value::u64s(&m.to_words(true)))?;
            }
        }
        Ok(())
    }

    /// Adds what a txg has freed, by creation of the bookmark.
    pub(crate) fn count_freed(&self, tx: &Tx, freed: &BTreeMap<Txg, Triple>) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        let Some(map) = self.bookmark_map()? else {
            return Ok(());
        };
        let map = Zap::new(&map);
        let marks = self.marks()?;
        for (txg, t) in freed {
            for name in marks.get(txg).into_iter().flatten() {
                let Some(v) = map.get_value(name.as_str())? else {
                    return Err(Error::damaged(format!("bookmark '{name}' is gone")));
                };
                let mut m = BookmarkPhys::from_words(&v.ints())?;
                add(&mut m, *t);
                map.update(tx, name, &Value::u64s(&m.to_words(true)))?;
            }
        }
        Ok(())
    }

    /// The head went back to its newest snapshot: nothing has been freed since.
    pub(crate) fn bookmarks_rolled_back(&self, tx: &Tx) -> Result<()> {
        let newest = self.phys().prev_snap_txg;
        self.change_marks(tx, newest..=Txg::MAX, &mut |m| {
            m.freed_before_next = [0; 3];
            Ok(true)
        })
    }

    /// The snapshot `snap` of this head is about to be destroyed; `next` comes after it. True: a
    /// bookmark still needs the keys of that time in deadlists.
    pub(crate) fn bookmarks_lose(&self, tx: &Tx, snap: &Dataset, next: &Dataset) -> Result<bool> {
        let s = snap.phys();
        let core = self.core.clone();
        let mut keep = false;
        let mut deadlist = None;
        self.change_marks(tx, s.prev_snap_txg..=s.creation_txg, &mut |m| {
            if m.creation_txg == s.creation_txg {
                m.flags &= !bookmark_flags::SNAPSHOT_EXISTS;
                keep = true;
                return Ok(true);
            }
            let list = match &deadlist {
                Some(list) => list,
                None => deadlist.insert(next.filled_deadlist()?),
            };
            add(m, list.space_range(&core, Txg::NONE, m.creation_txg)?);
            Ok(true)
        })?;
        Ok(keep)
    }
}

impl Core {
    /// Takes back what one bookmark counts in features, and its redaction list.
    fn forget_bookmark(&self, tx: &Tx, words: &[u64]) -> Result<()> {
        let m = BookmarkPhys::from_words(words)?;
        if words.len() >= LONG {
            self.features.activate(tx, BOOKMARK_V2, -1)?;
        }
        if counts(&m) {
            self.features.activate(tx, BOOKMARK_WRITTEN, -1)?;
        }
        if m.redaction_obj != 0 {
            let dn = self.hold(m.redaction_obj)?;
            if dn.spill()?.is_some() {
                self.features.activate(tx, REDACTION_SPILL, -1)?;
            }
            self.free_object(tx, m.redaction_obj)?;
            self.features.activate(tx, REDACTION_BOOKMARKS, -1)?;
        }
        Ok(())
    }

    /// The bookmarks of a head that is being destroyed.
    pub(crate) fn forget_bookmarks(&self, tx: &Tx, ds: &Dataset) -> Result<()> {
        let Some(map) = ds.extra(BOOKMARKS)? else {
            return Ok(());
        };
        let dn = self.hold(map)?;
        for e in Zap::new(&dn).iter() {
            self.forget_bookmark(tx, &e?.value.ints())?;
        }
        self.free_object(tx, map)?;
        self.features.activate(tx, BOOKMARKS, -1)
    }
}

impl Dsl {
    /// Destroys the bookmark `name` of a head; `Kind::NotFound` if there is none.
    pub fn destroy_bookmark(&self, tx: &Tx, head: &Arc<Dataset>, name: &str) -> Result<()> {
        self.core.need_syncing(tx)?;
        let not_found = || {
            let full = format!("{}#{name}", head.full_name());
            Error::new(Kind::NotFound, format!("bookmark '{full}' does not exist"))
        };
        let map = head.bookmark_map()?.ok_or_else(not_found)?;
        let words = match Zap::new(&map).get_value(name)? {
            Some(v) => v.ints(),
            None => return Err(not_found()),
        };
        if mutated(Mutation::BookmarkStays) {
            return Ok(());
        }
        self.core
            .must(self.remove_bookmark(tx, head, &map, name, &words))
    }

    fn remove_bookmark(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        map: &Arc<Dnode>,
        name: &str,
        words: &[u64],
    ) -> Result<()> {
        let core = &self.core;
        let m = BookmarkPhys::from_words(words)?;
        core.forget_bookmark(tx, words)?;
        Zap::new(map).remove(tx, name)?;
        head.drop_mark(m.creation_txg, name);
        // The key of its time stayed in deadlists for its sake.
        let other = head.marks()?.contains_key(&m.creation_txg);
        if counts(&m)
            && m.flags & bookmark_flags::SNAPSHOT_EXISTS == 0
            && !other
            && m.creation_txg < head.phys().prev_snap_txg
        {
            head.with_deadlist(|list| list.remove_key(core, tx, m.creation_txg))?;
            core.remove_clone_keys(tx, &head.dir(), m.creation_txg, 0)?;
        }
        core.drop_empty_map(tx, head, map)
    }

    /// Whether the bookmark `name` of a head can be made of `source`.
    ///
    /// Errors: unsupported without the feature `bookmarks`; `Kind::Exists`; `Kind::Invalid` if
    /// the name is wrong, or the source is not of the history of this head; `Kind::NotFound` if
    /// the source is a bookmark that is not there.
    pub fn check_bookmark(&self, head: &Arc<Dataset>, name: &str, source: &Source) -> Result<()> {
        let core = &self.core;
        let full = format!("{}#{name}", head.full_name());
        if !core.features.is_enabled(BOOKMARKS) {
            let e = Error::about(Kind::Unsupported, &full, "feature bookmarks is not enabled");
            return Err(e.because(Cause::FeatureOff));
        }
        check_component(name)?;
        if full.len() > FULL_NAME_MAX {
            bail_about!(NameTooLong, &full, "bookmark name is too long");
        }
        if head.bookmark(name)?.is_some() {
            bail_about!(Exists, &full, "bookmark exists");
        }
        match source {
            Source::Snapshot(s) if s.is_snapshot() && core.is_before(s, head)? => Ok(()),
            Source::Snapshot(s) => {
                let text = format!("{} is not an ancestor of this dataset", s.full_name());
                let e = Error::about(Kind::Invalid, &full, text);
                Err(e.because(Cause::NotAnAncestor))
            }
            Source::Bookmark(of, from) => match of.bookmark(from)? {
                Some(m) if shares_history(head, of, m.creation_txg)? => Ok(()),
                Some(_) => {
                    let text = format!("{}#{from} is not of this dataset's past", of.full_name());
                    let e = Error::about(Kind::Invalid, &full, text);
                    Err(e.because(Cause::NotAnAncestor))
                }
                None => {
                    let text = format!("bookmark '{}#{from}' does not exist", of.full_name());
                    Err(Error::new(Kind::NotFound, text))
                }
            },
        }
    }

    /// Makes a bookmark of a snapshot, or of another bookmark, of the same head or of what it is a clone of.
    ///
    /// Errors: those of [`check_bookmark`](Self::check_bookmark).
    pub fn create_bookmark(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        name: &str,
        source: &Source,
    ) -> Result<()> {
        let core = &self.core;
        core.need_syncing(tx)?;
        self.check_bookmark(head, name, source)?;
        let (mark, of) = match source {
            Source::Snapshot(s) => (core.mark_of(s)?, s.object()),
            Source::Bookmark(of, from) => match of.bookmark(from)? {
                // The copy is a bookmark like others: the list stays with the one that was made with it.
                Some(m) => (
                    BookmarkPhys {
                        redaction_obj: 0,
                        ..m
                    },
                    0,
                ),
                None => return Err(Kind::NotFound.into()),
            },
        };
        let long = core.features.is_enabled(BOOKMARK_V2) && (mark.ivset_guid != 0 || counts(&mark));
        let text = format!(
            "name={name} creation_txg={} target_snap={of} redact_obj=0",
            mark.creation_txg
        );
        core.must(core.count_bookmark(tx, head, name, &mark, long))?;
        core.note("bookmark", head, text);
        Ok(())
    }
}

impl Dsl {
    /// Stores a bookmark of a snapshot that has a redaction list.
    pub(crate) fn mark_redaction(
        &self,
        tx: &Tx,
        head: &Arc<Dataset>,
        name: &str,
        snap: &Arc<Dataset>,
        list: u64,
    ) -> Result<()> {
        let core = &self.core;
        let mark = BookmarkPhys {
            redaction_obj: list,
            ..core.mark_of(snap)?
        };
        let text = format!(
            "name={name} creation_txg={} target_snap={} redact_obj={list}",
            mark.creation_txg,
            snap.object()
        );
        // Only the long form has room for the list; the feature is what redaction bookmarks depend on.
        core.count_bookmark(tx, head, name, &mark, true)?;
        core.note("bookmark", head, text);
        Ok(())
    }
}

/// What a bookmark is made of.
#[derive(Clone)]
pub enum Source {
    /// A snapshot.
    Snapshot(Arc<Dataset>),
    /// A bookmark of a head: of the same one, or of one whose history it shares up to the bookmark.
    Bookmark(Arc<Dataset>, String),
}

/// Whether what `other` was at a txg is in the history of a head: it is the same, or a clone made of it later.
fn shares_history(head: &Dataset, other: &Dataset, txg: Txg) -> Result<bool> {
    let (want, mut dir) = (other.dir().object(), head.dir());
    for _ in 0..1 << 16 {
        if dir.object() == want {
            return Ok(true);
        }
        match dir.origin()? {
            Some(origin) if txg <= origin.phys().creation_txg => dir = origin.dir(),
            _ => return Ok(false),
        }
    }
    Err(Error::damaged("chain of origins goes round"))
}

impl Core {
    /// Whether a snapshot is in the history of a dataset: of its chain, or of that of its origin.
    fn is_before(self: &Arc<Self>, snap: &Dataset, ds: &Arc<Dataset>) -> Result<bool> {
        // Of its own snapshots no chain has to be followed, which may be long.
        if snap.dir().object() == ds.dir().object() {
            return Ok(true);
        }
        let want = snap.phys().creation_txg;
        let mut at = ds.phys();
        for _ in 0..1 << 24 {
            if at.prev_snap_obj == snap.object() {
                return Ok(true);
            }
            if at.prev_snap_obj == 0 || at.prev_snap_txg < want {
                return Ok(false);
            }
            at = self.dataset(at.prev_snap_obj)?.phys();
        }
        Err(Error::damaged("chain of snapshots goes round"))
    }

    /// What a bookmark keeps of a snapshot.
    fn mark_of(self: &Arc<Self>, snap: &Arc<Dataset>) -> Result<BookmarkPhys> {
        let p = snap.phys();
        let mut m = BookmarkPhys {
            guid: p.guid,
            creation_txg: p.creation_txg,
            creation_time: p.creation_time,
            redaction_obj: 0,
            flags: 0,
            referenced: [0; 3],
            freed_before_next: [0; 3],
            ivset_guid: 0,
        };
        if self.features.is_enabled(BOOKMARK_WRITTEN) && self.features.is_enabled(BOOKMARK_V2) {
            m.flags = bookmark_flags::HAS_FBN | bookmark_flags::SNAPSHOT_EXISTS;
            m.referenced = [p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes];
            add(&mut m, snap.next()?.deadlist_space()?);
        }
        if self.features.is_enabled(BOOKMARK_V2) {
            m.ivset_guid = snap.extra(disk::crypt::keys::IVSET_GUID)?.unwrap_or(0);
        }
        Ok(m)
    }

    /// Stores a new bookmark and counts its features.
    fn count_bookmark(
        self: &Arc<Self>,
        tx: &Tx,
        head: &Dataset,
        name: &str,
        mark: &BookmarkPhys,
        long: bool,
    ) -> Result<()> {
        if long {
            self.features.activate(tx, BOOKMARK_V2, 1)?;
        }
        if long && counts(mark) {
            self.features.activate(tx, BOOKMARK_WRITTEN, 1)?;
        }
        self.put_bookmark(tx, head, name, &mark.to_words(long))
    }

    /// Stores the integers of a bookmark in the map of a head.
    pub(crate) fn put_bookmark(
        self: &Arc<Self>,
        tx: &Tx,
        head: &Dataset,
        name: &str,
        words: &[u64],
    ) -> Result<()> {
        let map = match head.bookmark_map()? {
            Some(map) => map,
            None => {
                self.zapify(tx, &head.dn)?;
                let dn = self.new_zap(tx, ObjType::ZAP_METADATA, zap::norm::TOUPPER)?;
                Zap::new(&head.dn).add_u64(tx, BOOKMARKS, dn.object())?;
                self.features.activate(tx, BOOKMARKS, 1)?;
                dn
            }
        };
        Zap::new(&map).add(tx, name, &Value::u64s(words))?;
        let m = BookmarkPhys::from_words(words)?;
        if counts(&m) {
            head.add_mark(m.creation_txg, name);
        }
        Ok(())
    }

    /// Takes a bookmark out of the map of a head; what it counts in features stays counted.
    pub(crate) fn take_bookmark(&self, tx: &Tx, head: &Dataset, name: &str) -> Result<()> {
        let Some(map) = head.bookmark_map()? else {
            return Ok(());
        };
        let Some(v) = Zap::new(&map).get_value(name)? else {
            return Err(Kind::NotFound.into());
        };
        Zap::new(&map).remove(tx, name)?;
        head.drop_mark(BookmarkPhys::from_words(&v.ints())?.creation_txg, name);
        self.drop_empty_map(tx, head, &map)
    }

    fn drop_empty_map(&self, tx: &Tx, head: &Dataset, map: &Arc<Dnode>) -> Result<()> {
        if Zap::new(map).count()? > 0 {
            return Ok(());
        }
        let o = map.object();
        Zap::new(&head.dn).remove(tx, BOOKMARKS)?;
        self.free_object(tx, o)?;
        self.features.activate(tx, BOOKMARKS, -1)
    }
}
