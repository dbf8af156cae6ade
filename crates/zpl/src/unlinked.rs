//! Objects without links: the delete queue and the freeing of what is on it (data format §20).

use crate::attr::flag;
use crate::names;
use crate::zfs::Zfs;
use crate::znode::Znode;
use base::{Kind, Result};
use std::sync::atomic::Ordering;

impl Zfs {
    /// Frees objects whose last link and last user have gone. Called at the end of operations; the
    /// door may call it after forgetting nodes.
    pub fn reap(&self) -> Result<()> {
        while let Some(object) = self.cache.reaper.pop() {
            // Somebody may have found it again through the kernel's memory of it, or given it a link.
            let in_use = self.cache.get(object).is_some() || self.cache.reaper.is_kept(object);
            if in_use {
                continue;
            }
            let destroyed = match self.load_unused(object) {
                Ok(z) if z.fixed().links > 0 => continue,
                Ok(z) => self.destroy(z),
                Err(e) => Err(e),
            };
            match destroyed {
                Ok(()) => {}
                // It stays on the queue for the next mount; the caller's own operation succeeded.
                // So does what is damaged: its blocks cannot be found, and nobody needs them.
                Err(e) if e.kind == Kind::NotFound || e.is_damage() => {}
                Err(e) => {
                    if matches!(e.kind, Kind::NoSpace | Kind::Quota) {
                        self.cache.reaper.push(object);
                        return Ok(());
                    }
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// A znode of an object of which nobody has one.
    fn load_unused(&self, object: u64) -> Result<Znode> {
        Znode::load(self.os.hold(object)?, self.sa.as_ref(), &self.cache)
    }

    /// Nobody uses the object by its number any more ([`Znode::keep_by_number`]). True if somebody did:
    /// [`Zfs::reap`] may then have something to free.
    pub fn let_go(&self, object: u64) -> bool {
        let was = self.cache.reaper.let_go(object);
        if was && self.cache.get(object).is_none() {
            self.cache.reaper.push(object);
        }
        was
    }

    /// The same for all objects.
    pub fn let_all_go(&self) {
        for object in self.cache.reaper.take_kept() {
            if self.cache.get(object).is_none() {
                self.cache.reaper.push(object);
            }
        }
    }

    /// How many objects are on the delete queue: those without a link that are in use or being freed, and
    /// those of which a block cannot be found.
    pub fn unlinked_count(&self) -> Result<u64> {
        names::count(&self.unlinked)
    }

    /// At mount: frees everything on the delete queue that nobody has adopted.
    pub(crate) fn drain_unlinked(&self) -> Result<()> {
        let mut objects = Vec::new();
        names::each(&self.unlinked, |_, v| {
            objects.extend(v.first().copied());
            Ok(())
        })?;
        for o in objects {
            if self.cache.reaper.is_kept(o) {
                continue;
            }
            match self.load_unused(o).and_then(|z| self.destroy(z)) {
                Ok(()) => {}
                // An entry without its object: nothing but the entry is left to remove.
                Err(e) if e.kind == Kind::NotFound => {
                    let tx = self.tx_free()?;
                    names::remove(&self.unlinked, &tx, format!("{o:x}").as_bytes())?;
                }
                // Damage in one file must not keep the file system from being used.
                Err(e) if e.is_damage() => {}
                Err(e) => return Err(e),
            }
        }
        self.reap()
    }

    /// Frees one object that is on the queue and that nobody uses.
    fn destroy(&self, z: Znode) -> Result<()> {
        let object = z.object;
        let f = z.fixed();
        let extra = z.extra();
        let external = z.legacy_acl_object();
        // Before anything is changed: an object of which a part cannot be found stays whole.
        z.dnode.check_free(0, u64::MAX)?;
        if f.is_dir() && f.flags & flag::XATTR != 0 {
            self.empty_xattr_dir(&z)?;
        }
        self.free_long(&z, 0, u64::MAX)?;
        let tx = self.tx_free()?;
        if extra.xattr != 0 {
            if let Ok(x) = self.get_any(extra.xattr) {
                x.update(&tx, |f| {
                    f.links = 0;
                    Ok(())
                })?;
                self.queue_add(&tx, &x)?;
            }
        }
        if external != 0 {
            self.os.free(&tx, external)?;
        }
        names::remove(&self.unlinked, &tx, format!("{object:x}").as_bytes())?;
        self.os.free(&tx, object)
    }

    /// Takes the links of everything in an extended-attribute directory.
    fn empty_xattr_dir(&self, dir: &Znode) -> Result<()> {
        let mut entries = Vec::new();
        names::each(&dir.dnode, |name, v| {
            entries.push((name.to_vec(), v.first().copied().unwrap_or(0)));
            Ok(())
        })?;
        for (name, value) in entries {
            let tx = self.tx_free()?;
            names::remove(&dir.dnode, &tx, &name)?;
            if let Ok(z) = self.get_any(value & crate::dir::OBJECT_MASK) {
                self.link_drop(&tx, &z)?;
            }
        }
        Ok(())
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.replaying.load(Ordering::Relaxed)
    }

    /// Whether an object with `flags` (of [`crate::attr::flag`]) must not be changed, since one of `bits` is set. A replay is
    /// never refused: what was logged was allowed when it was done, and a flag may have been set or cleared since.
    pub(crate) fn forbids(&self, flags: u64, bits: u64) -> bool {
        flags & bits != 0 && !self.is_replaying()
    }
}
