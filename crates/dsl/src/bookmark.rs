//! Bookmarks (data format §12): what remains of a snapshot when it is gone, kept true while the file
//! system goes on.

use crate::core::{
    bump, Core, Triple, BOOKMARKS, BOOKMARK_V2, BOOKMARK_WRITTEN, REDACTION_BOOKMARKS,
    REDACTION_SPILL,
};
use crate::{Dataset, Dsl};
use base::{Error, Kind, Result, Txg};
use disk::dsl::{bookmark_flags, BookmarkPhys};
use dmu::{Dnode, Tx};
use std::collections::BTreeMap;
use std::sync::Arc;
use zap::{Value, Zap};

/// Words of the long form.
const LONG: usize = 12;

/// Whether it counts what is freed before the next snapshot.
fn counts(m: &BookmarkPhys) -> bool {
    m.flags & bookmark_flags::HAS_FBN != 0
}

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
            Some(o) if !self.is_snapshot() => self.core.hold(o).map(Some),
            _ => Ok(None),
        }
    }

    /// Bookmarks of a head by creation, with their names.
    pub fn bookmarks(&self) -> Result<Vec<(String, BookmarkPhys)>> {
        let mut out = Vec::new();
        if let Some(map) = self.bookmark_map()? {
            for e in Zap::new(&map).iter() {
                let e = e?;
                out.push((e.text(), BookmarkPhys::from_words(&e.value.ints())?));
            }
        }
        out.sort_by(|a, b| (a.1.creation_txg, &a.0).cmp(&(b.1.creation_txg, &b.0)));
        Ok(out)
    }

    /// Creation of the bookmarks that count what is freed before the next snapshot, ascending, each
    /// once.
    pub(crate) fn counting_marks(&self) -> Result<Vec<Txg>> {
        let mut out: Vec<Txg> = self
            .bookmarks()?
            .iter()
            .filter(|(_, m)| counts(m))
            .map(|(_, m)| m.creation_txg)
            .collect();
        out.dedup();
        Ok(out)
    }

    /// Changes bookmarks for which `f` says so.
    fn change_bookmarks(
        &self,
        tx: &Tx,
        f: &mut dyn FnMut(&mut BookmarkPhys) -> Result<bool>,
    ) -> Result<()> {
        let Some(map) = self.bookmark_map()? else {
            return Ok(());
        };
        for (name, mut m) in self.bookmarks()? {
            if f(&mut m)? {
                Zap::new(&map).update(tx, &name, &Value::u64s(&m.to_words(true)))?;
            }
        }
        Ok(())
    }

    /// Adds what a txg has freed, by creation of the bookmark.
    pub(crate) fn count_freed(&self, tx: &Tx, freed: &BTreeMap<Txg, Triple>) -> Result<()> {
        if freed.is_empty() {
            return Ok(());
        }
        self.change_bookmarks(tx, &mut |m| {
            let t = freed.get(&m.creation_txg).filter(|_| counts(m));
            if let Some(t) = t {
                add(m, *t);
            }
            Ok(t.is_some())
        })
    }

    /// The head went back to its newest snapshot: nothing has been freed since.
    pub(crate) fn bookmarks_rolled_back(&self, tx: &Tx) -> Result<()> {
        let newest = self.phys().prev_snap_txg;
        self.change_bookmarks(tx, &mut |m| {
            let hit = counts(m) && m.creation_txg >= newest;
            if hit {
                m.freed_before_next = [0; 3];
            }
            Ok(hit)
        })
    }

    /// The snapshot `snap` of this head is about to be destroyed; `next` comes after it. True: a
    /// bookmark still needs the keys of that time in deadlists.
    pub(crate) fn bookmarks_lose(&self, tx: &Tx, snap: &Dataset, next: &Dataset) -> Result<bool> {
        let s = snap.phys();
        let core = self.core.clone();
        let mut keep = false;
        let deadlist = next.deadlist()?;
        self.change_bookmarks(tx, &mut |m| {
            if !counts(m) {
                return Ok(false);
            }
            if m.creation_txg == s.creation_txg {
                m.flags &= !bookmark_flags::SNAPSHOT_EXISTS;
                keep = true;
                return Ok(true);
            }
            if m.creation_txg < s.prev_snap_txg || m.creation_txg > s.creation_txg {
                return Ok(false);
            }
            add(m, deadlist.space_range(&core, 0, m.creation_txg)?);
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
        // The key of its time stayed in deadlists for its sake.
        let other = head
            .bookmarks()?
            .iter()
            .any(|(_, o)| counts(o) && o.creation_txg == m.creation_txg);
        if counts(&m)
            && m.flags & bookmark_flags::SNAPSHOT_EXISTS == 0
            && !other
            && m.creation_txg < head.phys().prev_snap_txg
        {
            head.deadlist()?.remove_key(core, tx, m.creation_txg)?;
            core.remove_clone_keys(tx, &head.dir(), m.creation_txg, 0)?;
        }
        if Zap::new(map).count()? == 0 {
            let o = map.object();
            Zap::new(&head.dn).remove(tx, BOOKMARKS)?;
            core.free_object(tx, o)?;
            core.features.activate(tx, BOOKMARKS, -1)?;
        }
        Ok(())
    }
}
