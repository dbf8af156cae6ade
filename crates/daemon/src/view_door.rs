//! File systems that hang in a view: one mount shows them all ([`vfs::View`], [`fuse_zpl::ViewMount`]).
//!
//! 1. What is to be mounted inside a view of its pool hangs in it ([`Views::around`]); the kernel is not asked to mount.
//! 2. To everybody else it is mounted as any other: it has a head, an entry in the registry of mounts, and is unmounted one by one.
//! 3. It cannot have more power than the mount of the view: where the view forbids programs of others, devices or execution, so does it.
//! 4. It ends once ([`MemberMount::finish`]): when it is unmounted, or with the session of the view.

use crate::mount_parts::{told, Parts};
use admin::door::{self, MountOptions};
use admin::{setters, values, Admin, Head, Mount, Mounted, Mounting, PoolEntry};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use fuse::holders;
use fuse_zpl::{Adapter, Caching, Kernel, ViewMount, Written};
use pool::Pool;
use std::any::Any;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use vfs::{OfHead, Served, Spare, View};

/// How long a file may count as open after its last descriptor was closed: the kernel tells later.
const IN_USE: Duration = Duration::from_millis(500);

/// The mount of a view.
pub struct ViewHandle {
    served: Weak<ViewMount>,
    pool: Arc<Pool>,
    /// Where it was to be mounted, and where that is without links.
    asked: PathBuf,
    path: PathBuf,
    user: Option<u32>,
    mount: Mutex<fuse::Mount>,
    notifier: fuse::Notifier,
    caching: Caching,
    /// What the kernel forbids: programs with set-id bits, and devices.
    forbidden: Mutex<(bool, bool)>,
    members: Mutex<Vec<Weak<MemberMount>>>,
}

impl ViewHandle {
    /// That of a view that was just mounted.
    pub fn new(
        m: &Mounting<'_>,
        served: &Arc<ViewMount>,
        (mount, notifier): (&fuse::Mount, &fuse::Notifier),
        caching: Caching,
        options: &MountOptions,
    ) -> Arc<ViewHandle> {
        Arc::new(ViewHandle {
            served: Arc::downgrade(served),
            pool: m.entry.pool.clone(),
            asked: m.path.to_path_buf(),
            path: mount.path().to_path_buf(),
            user: m.user,
            mount: Mutex::new(mount.clone()),
            notifier: notifier.clone(),
            caching,
            forbidden: Mutex::new((options.nosuid, options.nodev)),
            members: Mutex::default(),
        })
    }

    /// The file systems that hang in it.
    pub fn members(&self) -> Vec<Arc<MemberMount>> {
        let mut members = self.members.acquire();
        members.retain(|m| m.strong_count() > 0);
        let all = members.iter().filter_map(Weak::upgrade);
        all.filter(|m| !m.has_ended()).collect()
    }

    fn mount(&self) -> fuse::Mount {
        self.mount.acquire().clone()
    }

    /// It is mounted at another place from now on.
    pub fn set_mount(&self, mount: &fuse::Mount) {
        *self.mount.acquire() = mount.clone();
        if let Some(served) = self.served.upgrade() {
            for adapter in served.view().others() {
                adapter.set_mount(mount.clone());
            }
        }
        for member in self.members() {
            member.parts.written.set_mount(mount);
        }
    }

    /// The mount is about to have these options.
    pub fn grant(&self, options: &MountOptions) {
        *self.forbidden.acquire() = (options.nosuid, options.nodev);
        if let Some(served) = self.served.upgrade() {
            for adapter in served.view().others() {
                adapter.served().grant(!options.nosuid, !options.nodev);
            }
        }
    }

    /// Whether something hangs in an object of the file system that it begins with, or of another one by its number in it.
    pub fn holds(&self, number: u32, object: (u64, u32)) -> bool {
        let served = self.served.upgrade();
        served.is_some_and(|s| s.view().holds(number, object))
    }

    /// Whether a file system hangs in it.
    pub fn is_used(&self) -> bool {
        let served = self.served.upgrade();
        served.is_some_and(|s| !s.view().others().is_empty())
    }
}

/// The views of the process.
#[derive(Default)]
pub struct Views(Mutex<Vec<Weak<ViewHandle>>>);

/// A place inside a view.
pub struct Inside {
    view: Arc<ViewHandle>,
    path: Vec<Vec<u8>>,
}

impl Views {
    /// One more.
    pub fn add(&self, view: &Arc<ViewHandle>) {
        let mut views = self.0.acquire();
        views.retain(|v| v.strong_count() > 0);
        views.push(Arc::downgrade(view));
    }

    /// The view in which a place is, if nothing else is mounted between them.
    pub fn around(&self, m: &Mounting<'_>) -> Option<Inside> {
        let views: Vec<_> = self.0.acquire().iter().filter_map(Weak::upgrade).collect();
        let mut best: Option<(Inside, usize)> = None;
        for view in views {
            let rest = m.path.strip_prefix(&view.asked);
            let Ok(rest) = rest.or_else(|_| m.path.strip_prefix(&view.path)) else {
                continue;
            };
            let names: Option<Vec<_>> = rest
                .components()
                .map(|c| match c {
                    Component::Normal(name) => Some(name.as_bytes().to_vec()),
                    _ => None,
                })
                .collect();
            let Some(path) = names.filter(|n| !n.is_empty()) else {
                continue;
            };
            let is_it = Arc::ptr_eq(&view.pool, &m.entry.pool)
                && view.user == m.user
                && view.served.strong_count() > 0
                && view.mount().is_mounted().unwrap_or(false);
            let depth = path.len();
            if is_it && best.as_ref().is_none_or(|(_, least)| depth < *least) {
                best = Some((Inside { view, path }, depth));
            }
        }
        let (inside, depth) = best?;
        // What is mounted by itself inside of the view has its own inside.
        let between = |other: &Mounted| {
            let nearer = other.path.components().count() + depth > m.path.components().count();
            nearer
                && m.path != other.path
                && m.path.starts_with(&other.path)
                && member(other).is_none()
        };
        m.entry.find_mount(&between).is_none().then_some(inside)
    }
}

/// Whether a file system that is to be mounted begins a view: by the option `view` or `noview`, by the property, and without either
/// where ordinary users mount for themselves.
///
/// # Errors
/// The property is neither `on` nor `off`.
pub fn begins(m: &Mounting<'_>) -> Result<bool> {
    if m.ds.is_snapshot() {
        return Ok(false);
    }
    if let Some(said) = values::option(&m.temporary, "view") {
        return Ok(said == "on");
    }
    let own = !rustix::process::geteuid().is_root();
    Ok(setters::view(m.ds)?.unwrap_or(own))
}

/// What this door holds of a file system that hangs in a view.
pub fn member(m: &Mounted) -> Option<&MemberMount> {
    m.mount.as_any().downcast_ref()
}

/// A file system that hangs in a view.
pub struct MemberMount {
    /// What all mounts have.
    pub parts: Parts,
    view: Arc<ViewHandle>,
    number: u32,
    head: Arc<Head>,
    entry: Weak<PoolEntry>,
    admin: Weak<Admin>,
    path: PathBuf,
    /// The same without links, as the kernel tells of it.
    real: PathBuf,
    place_owner: u32,
    /// What its own options forbid: programs with set-id bits, and devices; and what is kept from clients beside.
    own: Mutex<[(bool, bool); 2]>,
    ended: Mutex<bool>,
}

/// A directory that keeps the place of a file system whose key is not loaded.
fn stand(m: &Mounting<'_>, served: &ViewMount, spare: Spare) {
    let (pool, name, object) = (
        Arc::downgrade(&m.entry.pool),
        m.ds.full_name(),
        m.ds.object(),
    );
    let stands = move || {
        let Some(pool) = pool.upgrade() else {
            return false;
        };
        let here = pool.dsl().dataset(&name);
        here.is_ok_and(|ds| ds.object() == object && values::is_locked(&ds.dir()).unwrap_or(true))
    };
    if let Err(e) = served.view().stand(spare, Box::new(stands)) {
        crate::log::debug(&format!("{}: {e}", m.ds.full_name()));
    }
}

/// Hangs a file system in a view.
///
/// # Errors
/// Those of its place, and of opening it; nothing is left then.
pub fn hang(m: &Mounting<'_>, inside: &Inside) -> Result<()> {
    let view = &inside.view;
    let Some(served) = view.served.upgrade() else {
        bail!(Busy, "{}: the mount has just ended", view.path.display());
    };
    if m.still.is_some() {
        bail!(Busy, "it was unmounted, but is still in use");
    }
    let path: Vec<&[u8]> = inside.path.iter().map(Vec::as_slice).collect();
    let user = m.user.or(m.place_of);
    let spare = served.view().spare(&path, m.overlay, user)?;
    let (head, options) = match m.open() {
        Ok(opened) => opened,
        Err(e) => {
            match values::is_locked(&m.ds.dir()) {
                Ok(true) => stand(m, &served, spare),
                _ => served.view().tidy(&spare),
            }
            return Err(e);
        }
    };
    let names = inside.path.iter().map(|n| OsStr::from_bytes(n));
    let real: PathBuf = [view.path.as_os_str()].into_iter().chain(names).collect();
    let made = MemberMount::new(m, view, (&served, &spare, &real), &head, &options);
    let (mount, shadows) = match made {
        Ok(mount) => (Arc::new(mount), spare.shadows),
        Err(e) => {
            served.view().tidy(&spare);
            if let Err(e) = head.settle() {
                crate::log::error(&format!("{}: {e}", m.ds.full_name()));
            }
            return Err(e);
        }
    };
    mount.obey(&options);
    view.members.acquire().push(Arc::downgrade(&mount));
    let mounted = Mounted::new(
        head,
        m.path.to_path_buf(),
        (m.root.map(Path::to_path_buf), m.user),
        mount.clone(),
        m.temporary.clone(),
        options,
    );
    m.entry.add_mount(mounted);
    if let Err(e) = served.view().hang(spare, mount.number) {
        mount.finish();
        return Err(e);
    }
    if shadows {
        let place = m.path.display();
        crate::log::warn(&format!(
            "{}: the directory {place} is not empty; what it holds is hidden while the file system is mounted",
            m.ds.full_name()
        ));
    }
    Ok(())
}

impl MemberMount {
    fn new(
        m: &Mounting<'_>,
        view: &Arc<ViewHandle>,
        (served, spare, real): (&Arc<ViewMount>, &Spare, &Path),
        head: &Arc<Head>,
        options: &MountOptions,
    ) -> Result<MemberMount> {
        let (entry, ds) = (m.entry, m.ds);
        let forced: Arc<AtomicBool> = Arc::default();
        let snapshots = OfHead::new(m.admin, entry, ds, m.temporary.clone(), forced.clone());
        let files = Served::new(head.zfs(), &entry.pool, Box::new(snapshots));
        let (nosuid, nodev) = *view.forbidden.acquire();
        files.grant(!nosuid, !nodev);
        let mount = view.mount();
        let join = |ids: vfs::ViewIds| {
            let adapter = Adapter::in_view(&files, view.caching)?;
            adapter.set_kernel(Kernel::in_view(view.notifier.clone(), mount.clone(), ids));
            served.welcome(&adapter);
            Ok(adapter)
        };
        let (number, adapter) = served.view().join(ds.object(), join)?;
        // The kernel may have said in between what it can do, and the mount may have got power.
        served.welcome(&adapter);
        let (nosuid, nodev) = *view.forbidden.acquire();
        files.grant(!nosuid, !nodev);
        let writers = adapter.door().writers();
        let written = Written::new(mount.clone(), view.notifier.clone(), writers)
            .with_ids(served.view().ids(number));
        Ok(MemberMount {
            parts: Parts::new((&entry.pool, ds), &adapter, written, forced),
            view: view.clone(),
            number,
            head: head.clone(),
            entry: Arc::downgrade(entry),
            admin: Arc::downgrade(m.admin),
            path: m.path.to_path_buf(),
            real: real.to_path_buf(),
            place_owner: spare.owner,
            own: Mutex::new([(options.nosuid, options.nodev), (false, false)]),
            ended: Mutex::new(false),
        })
    }

    /// The mount of its view, and where it is there, without links.
    pub fn place(&self) -> (fuse::Mount, PathBuf) {
        (self.view.mount(), self.real.clone())
    }

    /// Whether something hangs in an object of it.
    pub fn holds(&self, object: (u64, u32)) -> bool {
        self.view.holds(self.number, object)
    }

    /// Whether it hangs in this view.
    pub fn is_in(&self, view: &Arc<ViewHandle>) -> bool {
        Arc::ptr_eq(&self.view, view)
    }

    fn has_ended(&self) -> bool {
        // One that is ending is not waited for.
        self.ended.try_acquire().is_none_or(|ended| *ended)
    }

    fn obey(&self, options: &MountOptions) {
        self.own.acquire()[0] = (options.nosuid, options.nodev);
        if let Some(served) = self.view.served.upgrade() {
            served.view().set_noexec(self.number, options.noexec);
        }
        self.hide();
    }

    fn hide(&self) {
        let [own, told] = *self.own.acquire();
        if let Some(adapter) = self.parts.adapter.upgrade() {
            adapter.served().withhold(own.0 || told.0, own.1 || told.1);
        }
    }

    /// Who uses it, if somebody does. What was just closed is waited for.
    fn users(&self) -> Option<holders::Holders> {
        let begin = Instant::now();
        let open = || {
            let adapter = self.parts.adapter.upgrade();
            adapter.is_some_and(|a| a.door().has_open_files())
        };
        loop {
            let mut users = holders::of(&[self.view.mount().device()]);
            users.list.retain(|h| h.path.starts_with(&self.real));
            if users.list.is_empty() && !open() {
                return None;
            }
            if begin.elapsed() >= IN_USE {
                return Some(users);
            }
            std::thread::sleep(IN_USE / 20);
        }
    }

    fn busy(&self) -> Result<()> {
        let Some(users) = self.users() else {
            return Ok(());
        };
        let users = told(&users);
        let path = self.path.display();
        let text = format!("cannot unmount '{path}': pool or dataset is busy{users}");
        Err(Error::sentence(Kind::Busy, text))
    }

    fn take_away(&self, force: bool) -> Result<()> {
        let Some(served) = self.view.served.upgrade() else {
            self.finish();
            return Ok(());
        };
        let view = served.view();
        if *self.ended.acquire() || !view.is_hung(self.number) {
            self.finish();
            return Ok(());
        }
        match force {
            true => self.take_inner_away(view)?,
            false => self.busy()?,
        }
        self.parts.set_forced(force);
        let _refusing_writes = force.then(|| self.parts.write_out_for_the_end());
        let spare = view.unhang(self.number).map_err(|e| {
            self.parts.set_forced(false);
            let text = format!("cannot unmount '{}': {e}", self.path.display());
            Error::sentence(e.kind, text)
        })?;
        // Nobody comes any more; somebody may have come meanwhile.
        if let (false, Err(e)) = (force, self.busy()) {
            if let Err(e) = view.hang(spare, self.number) {
                crate::log::error(&format!("{}: {e}", self.parts.ds.full_name()));
            }
            return Err(e);
        }
        view.tidy(&spare);
        self.finish();
        Ok(())
    }

    /// By force, what hangs in its directories goes with it, the youngest first, as what is mounted in a mount does.
    fn take_inner_away(&self, view: &View<Adapter>) -> Result<()> {
        let mut members = self.view.members();
        members.retain(|m| view.hangs_in_a_directory(m.number, self.number));
        members.iter().rev().try_for_each(|m| m.take_away(true))
    }

    /// Ends it, once: everything is on disk, and it is out of the registry, when this returns.
    pub fn finish(&self) {
        let mut ended = self.ended.acquire();
        if std::mem::replace(&mut *ended, true) {
            return;
        }
        let adapter = self.parts.adapter.upgrade();
        if let Some(served) = self.view.served.upgrade() {
            served.view().end(self.number);
        }
        self.parts.nfs.end();
        if let Some(adapter) = adapter {
            adapter.door().close();
        }
        if let Err(e) = self.head.settle() {
            crate::log::error(&format!("unmounting {}: {e}", self.parts.ds.full_name()));
        }
        if let Some(entry) = self.entry.upgrade() {
            let own = |m: &Mounted| member(m).is_some_and(|m| std::ptr::eq(m, self));
            if entry
                .mounted(self.parts.ds.object())
                .is_some_and(|m| own(&m))
            {
                entry.remove_mount(self.parts.ds.object());
            }
        }
        if let Some(admin) = self.admin.upgrade() {
            admin.shares_will_change();
        }
    }
}

impl Mount for MemberMount {
    fn is_in_place(&self) -> bool {
        let served = self.view.served.upgrade();
        served.is_some_and(|s| s.view().is_hung(self.number))
            && self.view.mount().is_mounted().unwrap_or(true)
    }

    fn place_owner(&self) -> Option<u32> {
        Some(self.place_owner)
    }

    fn wait_if_gone(&self) -> bool {
        // One that is ending is not waited for: its pool may wait for devices.
        self.ended.try_acquire().is_some_and(|ended| *ended)
    }

    fn unmount(&self, force: bool) -> Result<()> {
        self.take_away(force)
    }

    fn reach(&self) -> Result<()> {
        self.view.mount().reach()
    }

    fn write_out(&self) -> std::result::Result<(), String> {
        self.parts.write_out()
    }

    fn suspend(&self) -> Result<Box<dyn door::Held>> {
        self.parts.suspend()
    }

    fn lost(&self) -> Option<String> {
        self.parts.lost.acquire().clone()
    }

    fn synced(&self) {
        self.parts.synced();
    }

    fn close(&self, object: u64) {
        self.parts.ctl.close(object);
    }

    fn close_where(&self, which: &dyn Fn(u64) -> bool) {
        self.parts.ctl.close_chosen(which);
    }

    /// The kernel has nothing to do with it.
    fn is_fixed(&self) -> bool {
        false
    }

    fn withhold(&self, programs: bool, devices: bool) {
        self.own.acquire()[1] = (programs, devices);
        self.hide();
    }

    fn remount(&self, options: &MountOptions) -> Result<()> {
        let is_new = options.read_only && !self.head.zfs().props().readonly;
        if is_new && self.parts.has_writers() {
            bail!(Busy, "files are open for writing");
        }
        self.obey(options);
        Ok(())
    }

    fn follow_props(&self) {
        self.parts.follow_props();
    }

    fn tear_down(&self) -> Result<()> {
        // It goes with the view, which is torn down as well.
        self.parts.set_forced(true);
        Ok(())
    }

    fn abort(&self) {
        self.parts.set_forced(true);
        if let Some(adapter) = self.parts.adapter.upgrade() {
            adapter.served().cut_off();
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
