//! Mounted file systems: their mount points and options, and changes of these.

use crate::door::{Atime, Mount, MountOptions, Mounting};
use crate::errors;
use crate::head::{zpl_props, Head};
use crate::registry::{Admin, PoolEntry};
use crate::setters;
use crate::shares::{self, Candidate, Share};
use crate::values;
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use dsl::Dataset;
use pool::Pool;
use std::ops::Deref;
use std::path::{Component, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use zpl::Props;

static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// One mounted file system: its head, its place, and what its door holds.
pub struct Mounted {
    /// The file system.
    pub head: Arc<Head>,
    /// The mount point, absolute.
    pub path: PathBuf,
    /// The alternate root it does not leave, without links.
    pub root: Option<PathBuf>,
    /// The ordinary user it was mounted for, see [`Mounting::user`]: also when it is put back.
    pub user: Option<u32>,
    /// Grows with every mount of this process.
    pub sequence: u64,
    /// What the door holds of it.
    pub mount: Arc<dyn Mount>,
    /// Properties overridden for this mount only (`-o`).
    temporary: Mutex<Vec<(String, String)>>,
    /// What the door was told last.
    options: Mutex<MountOptions>,
    /// How it is shared over NFS, if it is.
    share: Mutex<Option<Arc<Share>>>,
    /// It is shared over SMB.
    smb: AtomicBool,
    /// See [`Mounted::chosen_by`].
    chosen_by: OnceLock<Option<u32>>,
}

impl Deref for Mounted {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// What holds for the mount of a file system, from its properties and the overrides of the mount.
/// `shared`: it is mounted for others than the user of this process ([`setters::is_distrusted`] counts).
pub(crate) fn mount_options(
    (pool, ds): (&Pool, &Dataset),
    p: &Props,
    temporary: &[(String, String)],
    shared: bool,
) -> Result<MountOptions> {
    let on = |prop: &str| values::number(ds, prop, temporary).map(|v| v != 0);
    // What cannot be told is not trusted.
    let distrusted = shared && setters::is_distrusted(pool, ds).unwrap_or(true);
    let power = |prop: &str| -> Result<bool> {
        let said = || values::option(temporary, prop) == Some("on");
        Ok(on(prop)? && (!distrusted || said() || setters::is_allowed(ds, prop)?))
    };
    let option = |name: &str| values::option(temporary, name).is_some_and(|v| v == "on");
    let contexts = temporary.iter().filter(|(n, _)| n == "context");
    Ok(MountOptions {
        read_only: p.readonly,
        nosuid: !power("setuid")?,
        nodev: !power("devices")?,
        noexec: !on("exec")?,
        atime: match (p.atime, p.relatime) {
            (false, _) => Atime::Noatime,
            (true, true) => Atime::Relatime,
            (true, false) => Atime::Strictatime,
        },
        nodiratime: !p.diratime,
        sync: option("sync-writes"),
        dirsync: option("dirsync"),
        lazytime: option("lazytime"),
        contexts: contexts.map(|(_, v)| v.clone()).collect(),
    })
}

/// Which power of programs and of devices nobody gets through a mount with these options, since others than the owner may have put
/// them there.
fn withheld((pool, ds): (&Pool, &Dataset), o: &MountOptions, shared: bool) -> (bool, bool) {
    let distrusted = shared && setters::is_distrusted(pool, ds).unwrap_or(true);
    (distrusted && o.nosuid, distrusted && o.nodev)
}

/// What the layers above the pool and the door are to do by properties and overrides.
pub(crate) fn wanted(
    pool: &Pool,
    head: &Head,
    temporary: &[(String, String)],
    shared: bool,
) -> Result<(Props, MountOptions)> {
    let p = zpl_props(pool, &head.ds, temporary)?;
    let options = mount_options((pool, &head.ds), &p, temporary, shared)?;
    Ok((p, options))
}

/// What an ordinary user mounts through the owner's process has neither devices nor set-user-id programs.
pub(crate) fn restrict(temporary: &mut Vec<(String, String)>, user: Option<u32>) {
    if user.is_some() {
        for name in ["setuid", "devices"] {
            temporary.push((name.into(), "off".into()));
        }
    }
}

/// Mounts a file system. What an ordinary user may not have is left out, and whether it is still in use elsewhere is found
/// out here.
pub fn mount(mut m: Mounting<'_>) -> Result<()> {
    restrict(&mut m.temporary, m.user);
    let there = m.entry.mounted(m.ds.object());
    if there.as_ref().is_some_and(|m| m.is_in_place()) {
        let name = m.ds.full_name();
        let text = format!("cannot mount '{name}': filesystem already mounted");
        return Err(Error::sentence(Kind::Busy, text));
    }
    // Unmounted by somebody else, or lazily; files of it may be open.
    m.still = there.filter(|m| !m.mount.wait_if_gone());
    let (admin, entry, object) = (m.admin, m.entry, m.ds.object());
    let chosen_by = m.chosen_by;
    admin.door.mount(m)?;
    if let Some(m) = entry.mounted(object) {
        m.chosen_by.get_or_init(|| chosen_by);
        begin_to_share(admin, &m);
    }
    Ok(())
}

/// Shares a file system that was just mounted, as its property says. What cannot be shared is told in the log.
fn begin_to_share(admin: &Admin, m: &Mounted) {
    let share = shares::wanted(&m.ds).and_then(|share| match share {
        Some(share) => shares::check(admin.sharer(), &m.candidate(), &share).map(|()| Some(share)),
        None => Ok(None),
    });
    match share {
        Ok(share) => drop(m.set_share(share.map(Arc::new))),
        Err(e) => tracing::warn!("{} is not shared: {e}", m.ds.full_name()),
    }
    let smb = shares::smb::wanted(&m.ds).and_then(|wanted| match (wanted, admin.smb()) {
        (true, Some(smb)) => smb.is_installed().map(|()| true),
        _ => Ok(false),
    });
    match smb {
        Ok(shared) => drop(m.set_smb_shared(shared)),
        Err(e) => tracing::warn!("{} is not shared over SMB: {e}", m.ds.full_name()),
    }
    // Also where this one is not shared: it may be seen where another one is.
    admin.shares_will_change();
}

impl Admin {
    /// Mounts a file system where its properties say. `Ok(false)`: it is not to be mounted
    /// (legacy, none, canmount=off …) and nobody insisted.
    pub fn mount_default(
        self: &Arc<Self>,
        entry: &Arc<PoolEntry>,
        ds: &Arc<Dataset>,
        temporary: Vec<(String, String)>,
        overlay: bool,
        user: Option<u32>,
    ) -> Result<bool> {
        let Some(place) = self.mountpoint(entry, ds)? else {
            return Ok(false);
        };
        // A directory of somebody else is not covered by what a user has given its name, unless the owner insists.
        let named = user.is_none() && setters::is_named_by_others(ds)?;
        let overlay = overlay || !named && values::number(ds, "overlay", &temporary)? != 0;
        let place_of = setters::of_mountpoint(ds)?;
        let root = entry.altroot.as_deref();
        let own = root.and_then(|r| place.path.strip_prefix(r).ok());
        let own = own.unwrap_or(&place.path);
        if own.components().any(|c| c == Component::ParentDir) {
            return Err(Error::sentence(
                Kind::Invalid,
                format!(
                    "cannot mount '{}': its mountpoint '{}' contains '..'; set another mountpoint",
                    ds.full_name(),
                    place.path.display()
                ),
            ));
        }
        let path = self.outside_of_others(entry, place.path);
        // Beside an alternate root that is itself a mount only its owner may enter.
        let root = root.filter(|r| path.starts_with(r));
        mount(Mounting {
            admin: self,
            entry,
            ds,
            path: &path,
            root,
            temporary,
            overlay,
            user,
            place_of,
            chosen_by: place_of,
            still: None,
        })?;
        Ok(true)
    }

    /// Where an ordinary user's file system goes whose place lies inside another one, that only its owner may enter, and that is
    /// no view of the same pool: beside that one, with `+`, which no name contains, instead of `/`. fusermount3 looks at the place as
    /// root, and could not mount it there.
    fn outside_of_others(&self, entry: &PoolEntry, path: PathBuf) -> PathBuf {
        if self.door.others_allowed() {
            return path;
        }
        let pools = self.pools();
        let around = |m: &Mounted| path != m.path && path.starts_with(&m.path);
        let nests = |e: &PoolEntry, m: &Mounted| std::ptr::eq(e, entry) && self.door.nests(m);
        let mounts = pools.iter().flat_map(|e| {
            let list = e.all_mounts().into_iter();
            let inside = list.filter(|m| around(m));
            inside.map(|m| (nests(e, &m), m)).collect::<Vec<_>>()
        });
        let outer = mounts.max_by_key(|(_, m)| m.path.as_os_str().len());
        let Some((false, outer)) = outer else {
            return path;
        };
        let (Some(outer), Ok(rest)) = (outer.path.to_str(), path.strip_prefix(&outer.path)) else {
            return path;
        };
        PathBuf::from(format!(
            "{outer}+{}",
            rest.to_string_lossy().replace('/', "+")
        ))
    }

    /// Unmounts; returns when everything of it is on disk and the dataset is closed. Its directory
    /// is removed if it is empty and its place is not one the user has set.
    pub fn unmount(&self, entry: &Arc<PoolEntry>, m: &Arc<Mounted>, force: bool) -> Result<()> {
        let dir = self.unmount_first(entry, m, force)?;
        self.door.remove_dirs(dir.into_iter().collect());
        Ok(())
    }

    /// Whether the directory of a mount goes with it: its place is not one the user has set.
    pub(crate) fn may_remove_place(&self, entry: &Arc<PoolEntry>, m: &Mounted) -> bool {
        let place = self.mountpoint(entry, &m.ds);
        place.is_ok_and(|p| p.is_some_and(|p| !p.local && p.path == m.path))
    }

    /// The same, but returns the directory, if it is one to be removed. When a whole pool is
    /// unmounted that comes last: directories inside its own file systems stay where they are, and
    /// the pool can be mounted read-only the next time.
    pub fn unmount_first(
        &self,
        entry: &Arc<PoolEntry>,
        m: &Arc<Mounted>,
        force: bool,
    ) -> Result<Option<PathBuf>> {
        let ours = self.may_remove_place(entry, m);
        m.mount.unmount(force)?;
        Ok(ours.then(|| m.path.clone()))
    }
}

impl Mounted {
    /// A mount that its door has made; [`PoolEntry::add_mount`] registers it.
    pub fn new(
        head: Arc<Head>,
        path: PathBuf,
        (root, user): (Option<PathBuf>, Option<u32>),
        mount: Arc<dyn Mount>,
        temporary: Vec<(String, String)>,
        options: MountOptions,
    ) -> Arc<Mounted> {
        Arc::new(Mounted {
            head,
            path,
            root,
            user,
            sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
            mount,
            temporary: Mutex::new(temporary),
            options: Mutex::new(options),
            share: Mutex::default(),
            smb: AtomicBool::new(false),
            chosen_by: OnceLock::new(),
        })
    }

    /// The ordinary user who chose its place, see [`Mounting::chosen_by`].
    pub fn chosen_by(&self) -> Option<u32> {
        self.chosen_by.get().copied().flatten()
    }

    /// It, for whoever shares it.
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate {
            ds: &self.ds,
            path: &self.path,
            chosen_by: self.chosen_by(),
            mount: self.mount.as_any(),
        }
    }

    /// How it is shared over NFS, if it is.
    pub fn share(&self) -> Option<Arc<Share>> {
        self.share.acquire().clone()
    }

    /// It is shared so from now on, or not at all; how it was before.
    pub(crate) fn set_share(&self, share: Option<Arc<Share>>) -> Option<Arc<Share>> {
        std::mem::replace(&mut *self.share.acquire(), share)
    }

    /// Whether it is shared over SMB.
    pub fn is_smb_shared(&self) -> bool {
        self.smb.load(Ordering::Relaxed)
    }

    /// It is shared over SMB from now on, or not; whether it was before.
    pub(crate) fn set_smb_shared(&self, shared: bool) -> bool {
        self.smb.swap(shared, Ordering::Relaxed)
    }

    /// Mounts it again as it was.
    pub fn mount_again(&self, admin: &Arc<Admin>, entry: &Arc<PoolEntry>) -> Result<()> {
        let place = admin.mountpoint(entry, &self.ds)?;
        let place_of = match place.is_some_and(|p| p.path == self.path) {
            true => setters::of_mountpoint(&self.ds)?,
            false => None,
        };
        mount(Mounting {
            admin,
            entry,
            ds: &self.ds,
            path: &self.path,
            root: self.root.as_deref(),
            temporary: self.temporary(),
            overlay: true,
            user: self.user,
            place_of,
            chosen_by: self.chosen_by(),
            still: None,
        })
    }

    /// Whether it is at its place in the tree of files.
    pub fn is_in_place(&self) -> bool {
        self.mount.is_in_place()
    }

    /// Properties overridden for this mount only.
    pub fn temporary(&self) -> Vec<(String, String)> {
        let list = self.temporary.acquire();
        list.clone()
    }

    /// Properties changed: what this process does itself follows at once. The kernel is told by [`Mounted::tell_kernel`].
    pub fn refresh(&self, pool: &Pool) -> Result<()> {
        let shared = !self.mount.is_fixed();
        let (p, options) = wanted(pool, self, &self.temporary(), shared)?;
        // First: what follows may be out of reach.
        let (programs, devices) = withheld((pool, &self.ds), &options, shared);
        self.mount.withhold(programs, devices);
        self.follow(pool, p, !self.zfs().props().readonly);
        self.mount.follow_snapdir();
        Ok(())
    }

    /// Mount options of the kernel follow changed properties where remounting is allowed. Its place is walked to: nobody
    /// should wait for this with a lock of the pool.
    pub fn tell_kernel(&self, pool: &Pool) -> Result<()> {
        let shared = !self.mount.is_fixed();
        let (_, options) = wanted(pool, self, &self.temporary(), shared)?;
        let mut told = self.options.acquire();
        if told.same_for_kernel(&options) {
            return Ok(());
        }
        match self.mount.remount(&options) {
            Ok(()) => *told = options,
            // An ordinary user's mount, or one with another one over it, follows when it is
            // mounted the next time. What must not wait for that has been withheld.
            Err(e) if matches!(e.kind, Kind::Unsupported | Kind::Busy) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Takes over properties. Owners are charged when a file system becomes writable.
    fn follow(&self, pool: &Pool, p: Props, was_writable: bool) {
        let writable = !p.readonly;
        self.apply(p);
        self.mount.follow_props();
        if writable && !was_writable {
            if let Err(e) = self.count_owners(pool) {
                tracing::warn!("{}: owners are not charged: {e}", self.ds.full_name());
            }
        }
    }

    /// Opens the file system anew if it is older than what its pool counts by owner, which counts it. One that is
    /// mounted read-only is left as it is.
    ///
    /// # Errors
    /// Those of reading its properties, and of opening it.
    pub fn count_owners(&self, pool: &Pool) -> crate::Answer<()> {
        if self.zfs().props().readonly {
            return Ok(());
        }
        let lacks = |set: Arc<pool::OpenSet>| pool.lacks_accounting(&self.ds, &set.os);
        match pool.open_dataset(&self.ds).and_then(lacks) {
            Ok(true) => self.replace(|| Ok(())),
            Ok(false) => Ok(()),
            Err(e) => Err(errors::answer(e.context(self.ds.full_name()))),
        }
    }

    /// `zfs mount -o remount,…`: other overrides instead of those there are. `Kind::Busy` if the
    /// mount is to become read-only while files are open for writing; nothing has changed then.
    pub fn change(&self, pool: &Pool, temporary: Vec<(String, String)>) -> Result<()> {
        let shared = !self.mount.is_fixed();
        let (p, options) = wanted(pool, self, &temporary, shared)?;
        let (programs, devices) = withheld((pool, &self.ds), &options, shared);
        let mut told = self.options.acquire();
        let (writable, was_writable) = (!p.readonly, !self.zfs().props().readonly);
        let asked = temporary.iter().rev().find(|(n, _)| n == "readonly");
        if !writable && asked.is_some_and(|(_, v)| v == "off") {
            bail!(ReadOnly, "the pool or dataset is read-only");
        }
        if !options.contexts.is_empty() && told.contexts != options.contexts {
            bail!(
                Unsupported,
                "a security context cannot change while the file system is mounted"
            );
        }
        if !told.same_for_kernel(&options) {
            if self.mount.is_fixed() {
                // Being read-only is our own business, and so are access times.
                let same = |o: &MountOptions| (o.nosuid, o.nodev, o.noexec, o.sync, o.lazytime);
                if same(&told) != same(&options) || told.read_only && writable {
                    bail!(
                        Unsupported,
                        "the kernel's options of an ordinary user's mount cannot change; \
                         unmount it and mount it again"
                    );
                }
            } else {
                // The kernel writes back what it holds before it makes a mount read-only; and
                // before it lets writes through they must be welcome.
                if writable {
                    self.zfs().set_props(|old| old.readonly = false);
                }
                if let Err(e) = self.mount.remount(&options) {
                    if told.read_only {
                        self.zfs().set_props(|old| old.readonly = true);
                    }
                    return Err(e);
                }
                *told = options;
            }
        }
        *self.temporary.acquire() = temporary;
        drop(told);
        self.mount.withhold(programs, devices);
        self.follow(pool, p, was_writable);
        if was_writable && !writable {
            pool.sync()?;
        }
        Ok(())
    }

    /// Has `change` replace what the dataset holds (rollback, receive), under those who use it: requests
    /// wait meanwhile, and go on in what is there afterwards, also if the change fails. What the kernel
    /// has of written data comes first.
    ///
    /// Errors: what the change says; or the dataset cannot be opened again: the mount is dead then.
    pub fn replace<R>(&self, change: impl FnOnce() -> crate::Answer<R>) -> crate::Answer<R> {
        let name = self.ds.full_name();
        if let Err(why) = self.mount.write_out() {
            tracing::warn!("{name}: {why}");
        }
        let dead = |e: Error| {
            self.mount.abort();
            tracing::error!("{name}: {e}");
            errors::answer(e.context(format!(
                "{name} cannot be opened again; unmount and mount it"
            )))
        };
        // It is opened again with these, also if it is wrapped under a key by then that is not loaded.
        let _keys = self.ds.crypt();
        let held = self.mount.suspend().map_err(errors::answer)?;
        let suspended = match self.head.suspend() {
            Ok(suspended) => suspended,
            Err(e) => {
                // It may have been opened again.
                held.resume(&self.head.zfs()).map_err(dead)?;
                return Err(errors::answer(e));
            }
        };
        let done = change();
        let mut held = Some(held);
        let shown = suspended.resume(|zfs| {
            zfs.root()?;
            held.take().map_or(Ok(()), |h| h.resume(zfs))
        });
        // Requests are let in only after the connection is gone.
        shown.map_err(dead)?;
        done
    }

    /// Whether only a new mount makes the kernel follow a changed property: it refuses what the
    /// mount forbids, and the mount of an ordinary user cannot be changed.
    pub fn must_remount(&self, property: &str, new: u64) -> bool {
        let told = self.options.acquire();
        self.mount.is_fixed()
            && match property {
                // Read-only is our own business, too.
                "readonly" => new == 0 && told.read_only,
                "exec" => (new == 0) != told.noexec,
                _ => false,
            }
    }
}

/// What was lost of files that were open when their file systems were unmounted by force.
pub fn unwritten(mounts: &[Arc<Mounted>]) -> Option<String> {
    let lines: Vec<String> = mounts.iter().filter_map(|m| m.mount.lost()).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
