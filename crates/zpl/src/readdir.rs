//! Listing directories with positions that stay valid (data format §20).

use crate::dir::OBJECT_MASK;
use crate::names;
use crate::perm::{Cred, R};
use crate::zfs::Zfs;
use crate::znode::Znode;
use base::Result;
use disk::ObjType;
use dmu::{Dnode, Objset};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Positions of `.`, `..` and (in the root) `.zfs`; anything up to 3 means the first real entry.
pub const DOT: u64 = 0;
/// See [`DOT`].
pub const DOTDOT: u64 = 1;
/// See [`DOT`].
pub const FIRST: u64 = 3;

/// One entry handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Object number.
    pub object: u64,
    /// Type as in `st_mode` >> 12 (`DT_*`), 0 if the directory does not say (ZPL version 1).
    pub dtype: u8,
    /// Position behind this entry.
    pub next: u64,
}

/// Entries of a directory whose objects are brought into memory in one batch.
const BATCH: usize = 512;
/// Directories with no more entries are not worth the trouble.
const FEW: u64 = 16;
/// Most entries that are looked at ahead of who lists a directory.
const MOST_AHEAD: usize = 200_000;

/// Directories in a directory that are looked at ahead of who walks down a tree, and how many at a time.
const MOST_DIRS: usize = 512;
const DIRS: usize = 32;
/// Directories of more bytes are read ahead when somebody lists them.
const SMALL: u64 = 128 << 10;
/// `DT_DIR`.
const IS_DIR: u64 = 4;

/// Brings the objects of a directory into memory, in the order in which they are listed, and if `deep`
/// what is in the directories among them. Ends where all is there already.
fn objects_ahead(dir: &Dnode, deep: bool) {
    let Ok(os) = dir.objset() else { return };
    let (mut batch, mut seen, mut known) = (Vec::with_capacity(BATCH), 0, 0);
    let mut dirs = Vec::new();
    let _ = names::walk(dir, 0, |_, value, _| {
        batch.push(value & OBJECT_MASK);
        if deep && value >> 60 == IS_DIR && dirs.len() < MOST_DIRS {
            dirs.push(value & OBJECT_MASK);
        }
        if batch.len() == BATCH {
            seen += BATCH;
            match os.read_ahead(batch.drain(..)) {
                0 => known += 1,
                _ => known = 0,
            }
        }
        Ok(known < 2 && seen < MOST_AHEAD && !os.dmu().ahead_stopped())
    });
    os.read_ahead(batch.into_iter());
    for some in dirs.chunks(DIRS) {
        if os.dmu().ahead_stopped() || !entries_ahead(&os, some) {
            break;
        }
    }
}

/// Brings the entries of these directories into memory, then the objects; whether anything was not
/// there.
fn entries_ahead(os: &Objset, dirs: &[u64]) -> bool {
    let dirs: Vec<_> = dirs
        .iter()
        .filter_map(|o| os.hold(*o).ok())
        .filter(|d| {
            let i = d.info();
            let bytes = i
                .max_blkid
                .saturating_add(1)
                .saturating_mul(i.block_size as u64);
            i.obj_type == ObjType::DIRECTORY_CONTENTS && bytes <= SMALL
        })
        .collect();
    let missing = os.contents_ahead(&dirs);
    let mut objects = Vec::new();
    for d in &dirs {
        let _ = names::walk(d, 0, |_, value, _| {
            objects.push(value & OBJECT_MASK);
            Ok(true)
        });
    }
    missing + os.read_ahead(objects.into_iter()) > 0
}

impl Zfs {
    /// Somebody is going to list the directory from its beginning, with the attributes of all that is
    /// in it if `plus`: has it read ahead. Who lists a directory after the one it is in walks down a
    /// tree, as a rule, so that the directories in it come next.
    pub fn list_ahead(&self, dir: &Znode, plus: bool) {
        let blocks = dir.dnode.info().max_blkid + 1;
        if blocks > 1 {
            dir.dnode.prefetch(0, u64::MAX);
        }
        if !plus {
            return;
        }
        let fixed = dir.fixed();
        let above = self.cache.get(fixed.parent);
        let walked = above.is_some_and(|z| z.listed.load(Ordering::Relaxed));
        dir.listed.store(true, Ordering::Relaxed);
        // Each directory in it is a link to it.
        let deep = walked && fixed.links > 2;
        // A few are had as fast without.
        if deep || fixed.size > FEW {
            let dn = Arc::downgrade(&dir.dnode);
            dir.dnode.later(move || {
                if let Some(dn) = dn.upgrade() {
                    objects_ahead(&dn, deep);
                }
            });
        }
    }

    /// Hands entries from position `at` on to `f` until it returns false or there are no more.
    /// Positions survive changes of the directory, remounts and reboots. Checks nothing: opening the
    /// directory does ([`Zfs::opendir`]).
    pub fn readdir(
        &self,
        dir: &Znode,
        at: u64,
        f: impl FnMut(DirEntry<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.entries(dir, at, f)?;
        self.accessed(dir);
        Ok(())
    }

    /// The same. Nothing notes that the directory was read.
    pub fn entries(
        &self,
        dir: &Znode,
        at: u64,
        mut f: impl FnMut(DirEntry<'_>) -> Result<bool>,
    ) -> Result<()> {
        Self::must_dir(dir)?;
        let fixed = dir.fixed();
        if at == DOT {
            let e = DirEntry {
                name: b".",
                object: dir.object,
                dtype: 4,
                next: DOTDOT,
            };
            if !f(e)? {
                return Ok(());
            }
        }
        if at <= DOTDOT {
            let e = DirEntry {
                name: b"..",
                object: fixed.parent,
                dtype: 4,
                next: FIRST,
            };
            if !f(e)? {
                return Ok(());
            }
        }
        let cookie = if at <= FIRST { 0 } else { at };
        names::walk(&dir.dnode, cookie, |name, value, next| {
            f(DirEntry {
                name,
                object: value & OBJECT_MASK,
                dtype: if self.version >= 2 {
                    (value >> 60) as u8
                } else {
                    0
                },
                next,
            })
        })
    }

    /// Hands every name of a directory with its object on to `f` until it returns false. Nothing notes
    /// that the directory was read.
    pub fn names(&self, dir: &Znode, mut f: impl FnMut(&[u8], u64) -> Result<bool>) -> Result<()> {
        Self::must_dir(dir)?;
        names::walk(&dir.dnode, 0, |name, value, _| f(name, value & OBJECT_MASK))
    }

    /// May the directory be listed?
    pub fn opendir(&self, dir: &Znode, cred: &Cred) -> Result<()> {
        Self::must_dir(dir)?;
        self.check(dir, R, cred)
    }
}
