//! The trait [`Door`]: mounting file systems into a tree of files.

use crate::head::Head;
use crate::mounts::{self, Mounted};
use crate::registry::{Admin, PoolEntry};
use base::Result;
use dsl::Dataset;
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zpl::{Props, Zfs};

/// Which accesses count as such for access times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// After a change, or once a day.
    #[default]
    Relatime,
    /// At every access.
    Strictatime,
    /// Never.
    Noatime,
}

/// What holds for one mount, as far as whoever mounts goes by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Nothing can be changed.
    pub read_only: bool,
    /// Set-id bits have no effect.
    pub nosuid: bool,
    /// Device files cannot be opened.
    pub nodev: bool,
    /// Files cannot be executed.
    pub noexec: bool,
    /// When access times change.
    pub atime: Atime,
    /// Access times of directories do not change.
    pub nodiratime: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
    /// Times are written late.
    pub lazytime: bool,
    /// Security contexts, as the options of mount(8).
    pub contexts: Vec<String>,
}

impl MountOptions {
    /// Whether a mount with other options would be the same to the kernel.
    pub fn same_for_kernel(&self, other: &MountOptions) -> bool {
        let contexts = self.contexts.clone();
        *self
            == MountOptions {
                contexts,
                ..other.clone()
            }
    }
}

/// A file system about to be mounted.
pub struct Mounting<'a> {
    /// The registry the pool is in.
    pub admin: &'a Arc<Admin>,
    /// The pool.
    pub entry: &'a Arc<PoolEntry>,
    /// The dataset.
    pub ds: &'a Arc<Dataset>,
    /// Its directory is made if it is missing.
    pub path: &'a Path,
    /// Begins the path; nothing leads out of it.
    pub root: Option<&'a Path>,
    /// Properties overridden for this mount only.
    pub temporary: Vec<(String, String)>,
    /// A directory that is not empty will do.
    pub overlay: bool,
    /// The ordinary user it is mounted for: the directory must be this user's, or be made in one of this
    /// user's.
    pub user: Option<u32>,
    /// The ordinary user who has set the mount point ([`crate::setters`]): the directory must be this user's also where
    /// the owner mounts.
    pub place_of: Option<u32>,
    /// The ordinary user who chose the place, by the property or with the command.
    pub chosen_by: Option<u32>,
    /// It was unmounted by somebody else, but is still in use there.
    pub still: Option<Arc<Mounted>>,
}

impl Mounting<'_> {
    /// Opens the file system: once it is sure that there is a place for it.
    pub fn open(&self) -> Result<(Arc<Head>, MountOptions)> {
        let head = Head::open(&self.entry.pool, self.ds, &self.temporary)?;
        let props = head.zfs().props();
        let at = (&*self.entry.pool, &**self.ds);
        let options = mounts::mount_options(at, &props, &self.temporary, self.is_shared())?;
        Ok((head, options))
    }

    /// Whether it is root's process that mounts, for all users.
    fn is_shared(&self) -> bool {
        self.admin.process.user().0 == 0
    }

    /// What holds from now on for a file system that is still open.
    pub fn wanted(&self, head: &Head) -> Result<(Props, MountOptions)> {
        mounts::wanted(&self.entry.pool, head, &self.temporary, self.is_shared())
    }
}

/// Puts file systems into a tree of files.
pub trait Door: Send + Sync {
    /// Mounts a file system, and registers it ([`PoolEntry::add_mount`]) before anybody can use it.
    /// When the mount has ended, on whosever account, the door settles its head ([`Head::settle`]) and
    /// takes it out of the registry ([`PoolEntry::remove_mount`]).
    ///
    /// Errors: a sentence (`cannot mount …: …`). Nothing is left behind then, no directory either.
    fn mount(&self, mounting: Mounting<'_>) -> Result<()>;

    /// Whether somebody else than the owner may enter what is mounted.
    fn others_allowed(&self) -> bool;

    /// Whether file systems of the same pool that lie in this one are seen there, whoever may enter it.
    fn nests(&self, _outer: &Mounted) -> bool {
        false
    }

    /// Removes directories of former mounts as far as they are empty.
    fn remove_dirs(&self, dirs: Vec<PathBuf>);

    /// Takes away mounts that nobody answers any more, the youngest first; how many they were. `which`
    /// is given the dataset's name and the place.
    fn clear_dead(&self, which: &dyn Fn(&str, &Path) -> bool) -> usize;

    /// Walks to where something is to be mounted, for a user if that is said: to be called with no lock held, before a
    /// mount that takes some.
    ///
    /// Errors: again, if a file system on the way there does not answer.
    fn reach(&self, _place: &Path, _root: Option<&Path>, _user: Option<u32>) -> Result<()> {
        Ok(())
    }

    /// Asks whether a user may have something mounted at a place: to be called with no lock held.
    ///
    /// Errors: why not, as a sentence about the place; again, if a file system on the way there does not answer.
    fn is_for_user(&self, _place: &Path, _root: Option<&Path>, _user: u32) -> Result<()> {
        Ok(())
    }

    /// Why the root of a new pool cannot be mounted at a place, as the end of a sentence that begins with
    /// the place.
    fn objection(&self, place: &Path) -> Option<String>;
}

/// A mount whose requests wait. When this is dropped they go on in the file system they were in.
pub trait Held: Send {
    /// Goes on in `zfs`, another state of the file system. Handles of objects that are not in it are
    /// stale. Returns when nobody sees anything of the former state any more.
    ///
    /// Errors: the root directory cannot be read.
    fn resume(self: Box<Self>, zfs: &Arc<Zfs>) -> Result<()>;
}

/// One mount, as its door sees it.
pub trait Mount: Send + Sync {
    /// Whether it is at its place in the tree of files: not after `umount -l`, say, though files of it
    /// may be open.
    fn is_in_place(&self) -> bool;

    /// The user whose directory it is mounted on; none: it is not known.
    fn place_owner(&self) -> Option<u32>;

    /// If somebody else unmounted it: waits for its end. True when nothing is left of it.
    fn wait_if_gone(&self) -> bool;

    /// Unmounts; returns when everything of it is on disk and the dataset is closed.
    ///
    /// Errors: busy, if it is in use. By force (`force`) its users get errors instead; it fails if
    /// something still holds it. Copies in other mount namespaces in which nothing is in use end.
    fn unmount(&self, force: bool) -> Result<()>;

    /// Takes it from its place. What still uses it, in another mount namespace, goes on doing so, and is told in words.
    ///
    /// Errors: as [`Mount::unmount`].
    fn leave(&self, force: bool) -> Result<Option<String>> {
        self.unmount(force).map(|()| None)
    }

    /// Walks to it: to be called with no lock held, before something that takes some and unmounts.
    ///
    /// Errors: again, if a file system on the way there does not answer.
    fn reach(&self) -> Result<()> {
        Ok(())
    }

    /// Keeps from the kernel which programs and devices have power, as far as the mount, or a copy of it somewhere, may give it to
    /// them: its options may be out of reach. What is not named is shown again.
    fn withhold(&self, programs: bool, devices: bool);

    /// Takes what the kernel keeps of written data; the mount goes on. The error is a text.
    fn write_out(&self) -> std::result::Result<(), String>;

    /// Keeps requests out, and waits for those that are in, so that the head can be suspended. Not to be
    /// called by a thread that serves requests.
    ///
    /// Errors: busy, if the mount is held already or has ended.
    fn suspend(&self) -> Result<Box<dyn Held>>;

    /// What got lost when it was unmounted by force, in words.
    fn lost(&self) -> Option<String>;

    /// A txg is on disk: what changes with that is to be asked again.
    fn synced(&self);

    /// A snapshot or volume is no longer to be read through its `.zfs`.
    fn close(&self, object: u64);

    /// The same for those whose object is chosen: a key has gone.
    fn close_where(&self, which: &dyn Fn(u64) -> bool);

    /// Whether its options cannot change while it is mounted.
    fn is_fixed(&self) -> bool;

    /// Changes its options.
    ///
    /// Errors: busy, if it is to become read-only while files are open for writing, or something covers
    /// it; unsupported, if it [`Mount::is_fixed`].
    fn remount(&self, options: &MountOptions) -> Result<()>;

    /// Properties changed, which hold already: what the kernel keeps of directories may not be what they ask for.
    fn follow_props(&self) {}

    /// Properties changed: snapshots are seen with, or as, another file system.
    fn follow_snapdir(&self) {}

    /// Fails what waits for it and takes it from its place, without waiting for anything.
    fn tear_down(&self) -> Result<()>;

    /// Fails what waits for it.
    fn abort(&self);

    /// For its door.
    fn as_any(&self) -> &dyn Any;
}
