//! The trait `Door` of `admin` implemented with FUSE mounts.

use crate::mount_parts::{told, Parts};
use crate::snapdir_mount::SnapdirMount;
use crate::view_door::{self, MemberMount, ViewHandle, Views};
use admin::{door, values, Admin, Door, Head, Mount, MountOptions, Mounted, Mounting, PoolEntry};
use base::sync::{CondvarExt, MutexExt};
use base::{bail, Cause, Error, Kind, Result};
use fuse::holders::{self, Holders};
use fuse::{Atime, Config, End, Filesystem, MountPoint, Session, Transport, Trouble, Unmount};
use fuse_zpl::{Adapter, Caching, Ending, Kernel, ViewMount, Written};
use pool::Pool;
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};
use vfs::{OfHead, Served, Snapdir, View, ViewRoot};
use zpl::AclType;

/// How long the kernel may take to let go of a file system that is gone from its place.
const RELEASE: Duration = Duration::from_secs(3);
/// How long it takes where nobody is in the way.
const MOMENT: Duration = Duration::from_millis(200);

/// Whether mounts may be opened to users other than their owner: always for root, for the others if
/// /etc/fuse.conf says `user_allow_other`.
fn others_allowed() -> bool {
    rustix::process::geteuid().is_root()
        || std::fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|t| t.lines().any(|l| l.trim() == "user_allow_other"))
}

/// Mounts through FUSE.
pub struct FuseDoor {
    /// What the kernel may cache.
    pub caching: Caching,
    /// How the kernel's requests come.
    pub transport: Transport,
    /// Mounts that show more than one file system.
    pub views: Views,
}

/// One mount.
pub struct FuseMount {
    path: PathBuf,
    parts: Parts,
    /// The view that it begins, if it does.
    view: Option<Arc<ViewHandle>>,
    mount: fuse::Mount,
    /// Percent, see [`fuse::Mount::set_most_dirty`]; 0: never set.
    most_dirty: AtomicU32,
    session: fuse::Handle,
    notifier: fuse::Notifier,
    place_owner: Option<u32>,
    /// The mount of its `.zfs`, if that is one of its own.
    snapdir: Mutex<Option<SnapdirMount>>,
    /// How the kernel's requests come, and what holds for access control lists.
    config: Config,
    /// As the kernel has them.
    options: Mutex<fuse::MountOptions>,
    /// The daemon itself ends it.
    leaving: Arc<AtomicBool>,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

/// The options of a view as the kernel gets them: being read-only is each file system's own business.
fn for_view(name: &str, o: &MountOptions, pool: &Pool) -> fuse::MountOptions {
    let read_only = o.read_only && pool.is_readonly();
    let kernel = for_kernel(name, o);
    fuse::MountOptions {
        read_only,
        ..kernel
    }
}

/// The options as the kernel gets them.
fn for_kernel(name: &str, o: &MountOptions) -> fuse::MountOptions {
    let mut k = fuse::MountOptions::new(name);
    k.allow_other = others_allowed();
    k.read_only = o.read_only;
    k.nosuid = o.nosuid;
    k.nodev = o.nodev;
    k.noexec = o.noexec;
    k.atime = match o.atime {
        door::Atime::Noatime => Atime::Noatime,
        door::Atime::Relatime => Atime::Relatime,
        door::Atime::Strictatime => Atime::Strictatime,
    };
    k.nodiratime = o.nodiratime;
    k.sync = o.sync;
    k.dirsync = o.dirsync;
    k.lazytime = o.lazytime;
    k.contexts = o.contexts.clone();
    k
}

/// What this door holds of a mount of its own.
pub fn of(m: &Mounted) -> Option<&FuseMount> {
    m.mount.as_any().downcast_ref()
}

/// The same of every file system, also of one that hangs in a view.
pub fn parts(m: &Mounted) -> Option<&Parts> {
    let member = || view_door::member(m).map(|m| &m.parts);
    of(m).map(|m| &m.parts).or_else(member)
}

/// Whether something hangs, in a view, in an object of a file system: number and generation.
pub fn holds(m: &Mounted, object: (u64, u32)) -> bool {
    match of(m) {
        Some(m) => m.view.as_ref().is_some_and(|v| v.holds(0, object)),
        None => view_door::member(m).is_some_and(|m| m.holds(object)),
    }
}

impl Door for FuseDoor {
    fn mount(&self, m: Mounting<'_>) -> Result<()> {
        let name = m.ds.full_name();
        let fail = |e: Error| {
            let text = e.to_string();
            let hint = if e.cause() == Some(Cause::HiddenMountPoint) {
                " (a place inside another mount of an ordinary user needs 'user_allow_other' in \
                 /etc/fuse.conf; or give another directory)"
            } else {
                ""
            };
            Error::sentence(e.kind, format!("cannot mount '{name}': {text}{hint}"))
        };
        let hung = m.still.is_none().then(|| self.views.around(&m)).flatten();
        if let Some(inside) = hung {
            return view_door::hang(&m, &inside).map_err(|e| match e.kind {
                Kind::NotEmpty => {
                    let place = m.path.display();
                    let text = format!("cannot mount '{place}': directory is not empty");
                    Error::sentence(e.kind, text)
                }
                _ => fail(e),
            });
        }
        let found = match m.user.or(m.place_of) {
            None => MountPoint::find(m.path, m.root, true),
            Some(uid) => MountPoint::find_for(m.path, m.root, &walker(uid)),
        };
        let place = found.map_err(|e| match e.trouble {
            Trouble::Create => Error::sentence(
                e.error.kind,
                format!(
                    "cannot mount '{}': failed to create mountpoint: {}",
                    m.path.display(),
                    strerror(e.error.kind)
                ),
            ),
            Trouble::Link => {
                let text = e.error.to_string();
                let advice = "remove it, or set another mountpoint";
                let text = format!("cannot mount '{name}': {text}; {advice}");
                Error::sentence(e.error.kind, text)
            }
            Trouble::Look | Trouble::NotDirectory | Trouble::Owner => fail(e.error),
        })?;
        // A directory that an ordinary user chose is this user's business.
        let closes = m.user.is_none() && values::closes_mount_point(m.ds).map_err(fail)?;
        let was_closed = m.user.is_none() && place.open_up().unwrap_or(false);
        let mode = |closed: bool| match (closed, was_closed) {
            (true, _) => place.close_up(),
            (false, true) => place.leave_open(),
            (false, false) => Ok(false),
        };
        let set_mode = |closed: bool| {
            if let Err(e) = mode(closed) {
                crate::log::warn(&format!("{}: its mode stays: {e}", m.path.display()));
            }
        };
        if !m.overlay && !place.is_new() && !place.is_empty().map_err(fail)? {
            set_mode(was_closed);
            return Err(Error::sentence(
                Kind::NotEmpty,
                format!(
                    "cannot mount '{}': directory is not empty",
                    m.path.display()
                ),
            ));
        }
        let r = match &m.still {
            Some(still) => mount_again(&m, still, &place),
            None => self.mount_on(&m, &place),
        };
        match &r {
            // Not one with something in it: it was somebody's before.
            Ok(()) => set_mode(closes && (was_closed || place.is_empty().unwrap_or(false))),
            Err(_) => {
                set_mode(was_closed);
                place.undo();
            }
        }
        r.map_err(fail)
    }

    fn others_allowed(&self) -> bool {
        others_allowed()
    }

    fn nests(&self, outer: &Mounted) -> bool {
        of(outer).is_some_and(|m| m.view.is_some()) || view_door::member(outer).is_some()
    }

    fn remove_dirs(&self, dirs: Vec<PathBuf>) {
        for d in dirs {
            fuse::remove_mount_point(&d);
        }
    }

    fn clear_dead(&self, which: &dyn Fn(&str, &Path) -> bool) -> usize {
        clear_dead(which)
    }

    fn reach(&self, place: &Path, root: Option<&Path>, user: Option<u32>) -> Result<()> {
        fuse::reach(place, root, user.map(walker).as_ref())
    }

    fn is_for_user(&self, place: &Path, root: Option<&Path>, user: u32) -> Result<()> {
        // As a mount does it. What is missing is made, and removed again.
        let found = MountPoint::find_for(place, root, &walker(user)).map_err(|e| e.error)?;
        found.undo();
        Ok(())
    }

    fn objection(&self, place: &Path) -> Option<String> {
        fuse::objection(place)
    }
}

/// The ordinary user a mount is for. Where it is not this user who asks, the groups are not known.
fn walker(uid: u32) -> fuse::Walker {
    let groups = admin::datasets::rights::groups();
    fuse::Walker { uid, groups }
}

/// Puts a file system that is gone from its place, but in use, into the tree again.
fn mount_again(ask: &Mounting<'_>, still: &Arc<Mounted>, place: &MountPoint) -> Result<()> {
    let Some(m) = of(still) else {
        bail!(Busy, "it is mounted through another door");
    };
    let (props, options) = ask.wanted(&still.head)?;
    let kernel = m.for_kernel(&options);
    m.grant(&options);
    let mount = fuse::mount_again(place, &kernel, &m.notifier).map_err(|_| {
        let busy = told(&holders::of(&[m.mount.device()]));
        Error::new(
            Kind::Busy,
            format!("it was unmounted, but is still in use{busy}"),
        )
    })?;
    if let Some(adapter) = m.parts.adapter.upgrade() {
        adapter.set_mount(mount.clone());
    }
    if let Some(view) = &m.view {
        view.set_mount(&mount);
    }
    still.apply(props);
    let path = mount.path().to_path_buf();
    let again = FuseMount {
        path: path.clone(),
        parts: m.parts.at(&mount),
        view: m.view.clone(),
        notifier: m.notifier.clone(),
        place_owner: place.owner(),
        snapdir: Mutex::default(),
        config: m.config.clone(),
        options: Mutex::new(kernel),
        leaving: m.leaving.clone(),
        mount,
        most_dirty: AtomicU32::new(m.most_dirty.load(Ordering::Relaxed)),
        session: m.session.clone(),
        ended: m.ended.clone(),
    };
    again.leaving.store(false, Ordering::SeqCst);
    again.parts.set_forced(false);
    ask.entry.add_mount(Mounted::new(
        still.head.clone(),
        path,
        (place.root().map(Path::to_path_buf), ask.user),
        Arc::new(again),
        ask.temporary.clone(),
        options,
    ));
    // The session cannot end while it is mounted; it may have, had somebody unmounted it since.
    if *m.ended.0.acquire() {
        ask.entry.remove_mount(still.object);
    }
    if let Some(again) = ask.entry.mounted(still.object) {
        again.mount.follow_snapdir();
    }
    Ok(())
}

impl FuseDoor {
    fn mount_on(&self, m: &Mounting<'_>, place: &MountPoint) -> Result<()> {
        let (entry, ds) = (m.entry, m.ds);
        let begins_view = view_door::begins(m)?;
        let (head, options) = m.open()?;
        let zfs = head.zfs();
        let forced: Arc<AtomicBool> = Arc::default();
        let snapshots = OfHead::new(m.admin, entry, ds, m.temporary.clone(), forced.clone());
        let served = Served::new(zfs.clone(), &entry.pool, Box::new(snapshots));
        let adapter = match begins_view {
            true => Adapter::in_view(&served, self.caching),
            false => Adapter::new(&served, self.caching),
        };
        let adapter = adapter.map_err(|e| Error::new(e.kind, "root node"))?;
        served.grant(!options.nosuid, !options.nodev);
        let kernel = match begins_view {
            true => for_view(&ds.full_name(), &options, &entry.pool),
            false => for_kernel(&ds.full_name(), &options),
        };
        let (fd, mount) = fuse::mount_at(place, &kernel)?;
        let mut config = Config {
            // In a view any of its file systems may have them.
            posix_acl: begins_view || zfs.props().acltype == AclType::Posix,
            transport: self.transport,
            zero_message_open: !begins_view && adapter.needs_no_open(),
            zero_message_opendir: adapter.needs_no_opendir(),
            ..Config::default()
        };
        if self.caching.no_ahead {
            config.max_readahead = 0;
        }
        mount.set_read_ahead(config.max_readahead);
        let new = New {
            head,
            options,
            kernel,
            forced,
            mount,
            config: config.clone(),
            adapter: Arc::downgrade(&adapter),
        };
        if !begins_view {
            let session = Session::new(adapter.clone(), fd, config);
            let kernel = Kernel::new(session.notifier(), new.mount.clone());
            adapter.set_kernel(kernel);
            drop((served, adapter));
            return serve(m, place, new, session, None);
        }
        let ids = ViewRoot::default();
        let owner = m.admin.process.user();
        let view = View::new(adapter.clone(), ids.clone(), owner);
        let view = ViewMount::new(view);
        let session = Session::new(view.clone(), fd, config);
        let notifier = session.notifier();
        let of_first = Kernel::in_view(notifier.clone(), new.mount.clone(), ids.ids());
        adapter.set_kernel(of_first);
        view.set_kernel(Kernel::new(notifier.clone(), new.mount.clone()));
        let connection = (&new.mount, &notifier);
        let handle = ViewHandle::new(m, &view, connection, self.caching, &new.options);
        self.views.add(&handle);
        drop((served, adapter, view));
        serve(m, place, new, session, Some((handle, ids)))
    }
}

/// What a mount is made of.
struct New {
    head: Arc<Head>,
    options: MountOptions,
    kernel: fuse::MountOptions,
    forced: Arc<AtomicBool>,
    mount: fuse::Mount,
    config: Config,
    adapter: Weak<Adapter>,
}

/// Registers a mount and serves its session, by a thread of its own.
fn serve<F: Filesystem + ?Sized>(
    m: &Mounting<'_>,
    place: &MountPoint,
    new: New,
    session: Session<F>,
    view: Option<(Arc<ViewHandle>, ViewRoot)>,
) -> Result<()> {
    let (entry, ds) = (m.entry, m.ds);
    let name = ds.full_name();
    let title = name.clone();
    session.tell_carried(move |how| {
        crate::log::info(&format!("{title}: requests come over {how}"));
    });
    let notifier = session.notifier();
    let adapter = new.adapter.upgrade();
    let Some(adapter) = adapter else {
        bail!(Busy, "the mount has just ended");
    };
    let mount = new.mount;
    let writers = adapter.door().writers();
    let mut written = Written::new(mount.clone(), notifier.clone(), writers);
    if let Some((_, ids)) = &view {
        written = written.with_ids(ids.ids());
    }
    let view = view.map(|(handle, _)| handle);
    let ended = Arc::new((Mutex::new(false), Condvar::new()));
    let path = mount.path().to_path_buf();
    let parts = Parts::new((&entry.pool, ds), &adapter, written, new.forced);
    let nfs = parts.nfs.clone();
    let fuse_mount = FuseMount {
        path: path.clone(),
        parts,
        view: view.clone(),
        session: session.handle(),
        mount,
        most_dirty: AtomicU32::new(0),
        notifier,
        place_owner: place.owner(),
        snapdir: Mutex::default(),
        config: new.config,
        options: Mutex::new(new.kernel),
        leaving: Arc::default(),
        ended: ended.clone(),
    };
    drop(adapter);
    let mounted = Mounted::new(
        new.head,
        path,
        (place.root().map(Path::to_path_buf), m.user),
        Arc::new(fuse_mount),
        m.temporary.clone(),
        new.options,
    );
    entry.add_mount(mounted.clone());
    let own = mounted.clone();
    let admin = Arc::downgrade(m.admin);
    let entry2 = entry.clone();
    std::thread::Builder::new()
        .name(format!("fuse {name}"))
        .spawn(move || {
            let served = session.handle();
            let end = session.run();
            let requests = served.requests();
            crate::log::debug(&format!("{}: served {requests}", mounted.ds.full_name()));
            if let Err(e) = &end {
                crate::log::error(&format!("{}: {e}", mounted.ds.full_name()));
            }
            let hung = view.map(|view| end_members(&entry2, &view));
            nfs.end();
            let r = mounted.settle();
            if let Err(e) = r {
                crate::log::error(&format!("unmounting {}: {e}", mounted.ds.full_name()));
            }
            // The kernel says the same of a connection that `umount -f` has aborted as of one that
            // was unmounted.
            let by_kernel = matches!(end, Ok(End::Aborted | End::Unmounted));
            // It may have been mounted again since.
            let last = entry2.mounted(mounted.object);
            let last = last.unwrap_or(mounted);
            let object = last.object;
            entry2.remove_mount(object);
            if let Some(admin) = admin.upgrade() {
                admin.shares_will_change();
            }
            // Who waits for the end may unload the key then: the head must be closed before.
            let aborted = by_kernel && last.mount.is_in_place();
            let last = aborted.then_some(last);
            let (lock, cv) = &*ended;
            *lock.acquire() = true;
            cv.notify_all();
            if let Some((admin, last)) = admin.upgrade().zip(last) {
                mount_after_abort(&admin, &entry2, &last, &hung.unwrap_or_default());
            }
        })
        .map_err(Error::from)?;
    own.mount.follow_snapdir();
    Ok(())
}

/// The session of a view has ended: so do the file systems that hang in it, which are returned in the order in which they came.
fn end_members(entry: &PoolEntry, view: &Arc<ViewHandle>) -> Vec<Arc<Mounted>> {
    let mut all = entry.all_mounts();
    all.retain(|m| view_door::member(m).is_some_and(|m| m.is_in(view)));
    for m in all.iter().rev() {
        if let Some(m) = view_door::member(m) {
            m.finish();
        }
    }
    all
}

/// Somebody else aborted the connection, but the mount is still there: `umount -f` of one in use
/// does both, aborts and fails. Nobody can use such a mount any more, so a new one takes its
/// place; files that were open stay unusable.
fn mount_after_abort(
    admin: &Arc<Admin>,
    entry: &Arc<PoolEntry>,
    m: &Arc<Mounted>,
    hung: &[Arc<Mounted>],
) {
    let Some(own) = of(m) else { return };
    if own.leaving.load(Ordering::SeqCst) || !m.is_in_place() {
        return;
    }
    let Ok(_gate) = entry.pass() else { return };
    let _names = entry.names.write();
    let name = m.ds.full_name();
    let here = entry.pool.dsl().dataset(&name);
    let same = here.is_ok_and(|d| d.object() == m.object);
    if !same || entry.mounted(m.object).is_some() || !m.is_in_place() {
        return;
    }
    crate::log::warn(&format!(
        "{name}: the connection was aborted by somebody else while the file system was in use; what \
         the kernel kept of written data is lost. It is mounted again"
    ));
    let again = own
        .mount
        .unmount(Unmount::Lazy)
        .and_then(|()| m.mount_again(admin, entry))
        .and_then(|()| hung.iter().try_for_each(|m| m.mount_again(admin, entry)));
    if let Err(e) = again {
        crate::log::error(&e.to_string());
    }
}

/// Until it is gone, the end of a mount may fail.
struct Staying<'a>(&'a AtomicBool);

impl Staying<'_> {
    /// It did not fail.
    fn gone(self) {
        std::mem::forget(self);
    }
}

impl Drop for Staying<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The words of the C library for what can keep a directory from being made.
fn strerror(kind: Kind) -> &'static str {
    match kind {
        Kind::Access | Kind::NotPermitted => "Permission denied",
        Kind::NotDir => "Not a directory",
        Kind::ReadOnly => "Read-only file system",
        Kind::NoSpace => "No space left on device",
        Kind::Quota => "Disk quota exceeded",
        Kind::NameTooLong => "File name too long",
        Kind::Loop => "Too many levels of symbolic links",
        Kind::Exists => "File exists",
        _ => "Input/output error",
    }
}

impl FuseMount {
    /// The options as the kernel gets them.
    fn for_kernel(&self, options: &MountOptions) -> fuse::MountOptions {
        match self.view {
            Some(_) => for_view(&self.parts.ds.full_name(), options, &self.parts.pool),
            None => for_kernel(&self.parts.ds.full_name(), options),
        }
    }

    /// As the kernel has it.
    pub fn kernel_mount(&self) -> fuse::Mount {
        self.mount.clone()
    }

    /// Whether a file system is seen in this mount.
    pub fn shows(&self, other: &Mounted) -> bool {
        let view = self.view.as_ref();
        view.is_some_and(|v| view_door::member(other).is_some_and(|m| m.is_in(v)))
    }

    /// The kernel is about to mount it with these options.
    fn grant(&self, options: &MountOptions) {
        if let Some(adapter) = self.parts.adapter.upgrade() {
            adapter.served().grant(!options.nosuid, !options.nodev);
        }
        if let Some(view) = &self.view {
            view.grant(options);
        }
    }

    /// Once it is gone from its place: waits until the session has ended and everything is settled.
    ///
    /// Errors: who has it, if the kernel does not let it go: somebody holds files of it open, or has it in a mount namespace
    /// of his own. That may last for ever. A mount of which nothing is in use is not waited for.
    fn wait(&self) -> std::result::Result<(), Holders> {
        if self.ended_within(MOMENT) {
            return Ok(());
        }
        let users = holders::of(&[self.mount.device()]);
        if users.are_elsewhere() {
            return Err(users);
        }
        if self.ended_within(RELEASE) {
            return Ok(());
        }
        Err(holders::of(&[self.mount.device()]))
    }

    /// Whether it ends within this time. What has begun to end is waited for.
    fn ended_within(&self, time: Duration) -> bool {
        let (lock, cv) = &*self.ended;
        let begin = Instant::now();
        let mut ended = lock.acquire();
        while !*ended {
            if begin.elapsed() > time && self.session.is_running() {
                return false;
            }
            ended = cv.wait_acquire_timeout(ended, MOMENT / 4);
        }
        true
    }

    /// Takes it from its place.
    ///
    /// Errors: busy; by force it is gone for everybody, but its place may not answer.
    fn take_away(&self, force: bool) -> Result<()> {
        let how = if force {
            Unmount::Force
        } else {
            Unmount::Normal
        };
        if !force && self.view.as_ref().is_some_and(|v| v.is_used()) {
            let place = self.path.display();
            let text = format!(
                "cannot unmount '{place}': pool or dataset is busy: other file systems are mounted in it"
            );
            return Err(Error::sentence(Kind::Busy, text));
        }
        self.end_snapdir(force)?;
        self.leaving.store(true, Ordering::SeqCst);
        let staying = Staying(&self.leaving);
        let going = force.then(|| {
            self.parts.set_forced(true);
            Staying(&self.parts.forced)
        });
        // Aborting the connection drops what the kernel has not sent yet.
        let hung = self.hung();
        let _refusing_writes = force.then(|| self.write_out_for_the_end(&hung));
        match self.mount.unmount(how) {
            Err(e) if force && e.kind == Kind::Again => {
                let place = self.path.display();
                crate::log::warn(&format!(
                    "{}: it has ended, and stays at {place} without a daemon: {e}",
                    self.parts.ds.full_name()
                ));
            }
            Err(e) => {
                drop((staying, going));
                let why = self.refused(e, &self.mount);
                self.follow_snapdir();
                return Err(why);
            }
            Ok(()) => {}
        }
        staying.gone();
        if let Some(going) = going {
            going.gone();
        }
        if force {
            self.session.stop();
        }
        Ok(())
    }

    /// Why it cannot be unmounted; `busy` is the mount that is in use.
    fn refused(&self, e: Error, busy: &fuse::Mount) -> Error {
        let why = match e.kind {
            Kind::Busy => format!(
                "pool or dataset is busy{}",
                told(&holders::of(&[busy.device()]))
            ),
            _ => e.to_string(),
        };
        let text = format!("cannot unmount '{}': {why}", self.path.display());
        Error::sentence(e.kind, text)
    }

    /// Ends the mount of `.zfs`, which would keep the one below it busy.
    ///
    /// Errors: busy, if something in it is in use.
    fn end_snapdir(&self, force: bool) -> Result<()> {
        let mut snapdir = self.snapdir.acquire();
        let Some(m) = &*snapdir else { return Ok(()) };
        match m.end(force) {
            // By force it goes with what it lies in.
            Err(e) if !force => return Err(self.refused(e, m.mounted())),
            _ => {}
        }
        *snapdir = None;
        Ok(())
    }

    /// Whether `.zfs` is to be a mount of its own. What an ordinary user mounts has it in its own: the helper that mounts for
    /// these may not enter the mount of the file system.
    fn wants_snapdir(&self) -> bool {
        !self.parts.ds.is_snapshot()
            && self.view.is_none()
            && !self.mount.by_helper()
            && self.parts.ctl.mode() == Snapdir::Visible
            && !self.leaving.load(Ordering::SeqCst)
    }

    /// The file systems that hang in the view that it begins.
    fn hung(&self) -> Vec<Arc<MemberMount>> {
        self.view.as_ref().map_or_else(Vec::new, |v| v.members())
    }

    /// Takes what the kernel keeps of written data, before the connection is aborted, also of what hangs in it.
    fn write_out_for_the_end<'a>(&'a self, hung: &'a [Arc<MemberMount>]) -> Vec<Ending<'a>> {
        let mut all: Vec<_> = self.parts.write_out_for_the_end().into_iter().collect();
        for m in hung {
            all.extend(m.parts.write_out_for_the_end());
            if let Some(lost) = m.parts.lost.acquire().take() {
                let mut own = self.parts.lost.acquire();
                let before = own.take().map(|text| text + "; ").unwrap_or_default();
                *own = Some(before + &lost);
            }
        }
        all
    }

    /// Percent of the machine's limit that the kernel may hold of what was written here.
    pub fn set_most_dirty(&self, percent: u32) {
        if self.most_dirty.swap(percent, Ordering::Relaxed) != percent {
            self.mount.set_most_dirty(percent);
        }
    }
}

impl Mount for FuseMount {
    fn is_in_place(&self) -> bool {
        self.mount.is_mounted().unwrap_or(true)
    }

    fn place_owner(&self) -> Option<u32> {
        self.place_owner
    }

    fn wait_if_gone(&self) -> bool {
        match self.mount.is_mounted() {
            Ok(false) => self.wait().is_ok(),
            _ => false,
        }
    }

    fn unmount(&self, force: bool) -> Result<()> {
        self.take_away(force)?;
        let Err(mut users) = self.wait() else {
            return Ok(());
        };
        if users.are_elsewhere() {
            // Nobody uses these copies. What the kernel keeps of written data comes first.
            let hung = self.hung();
            let _refusing_writes = self.write_out_for_the_end(&hung);
            self.mount.abort();
            self.session.stop();
            match self.wait() {
                Ok(()) => return Ok(()),
                Err(left) => users = left,
            }
        }
        let users = told(&users);
        let text = format!(
            "cannot unmount '{}': it is gone from there, but still in use: by open files, or in \
             another mount namespace{users}",
            self.path.display()
        );
        Err(Error::sentence(Kind::Busy, text))
    }

    fn leave(&self, force: bool) -> Result<Option<String>> {
        self.take_away(force)?;
        Ok(self.wait().err().map(|users| {
            let (name, users) = (self.parts.ds.full_name(), told(&users));
            format!("'{name}' is unmounted, but still in use in another mount namespace{users}")
        }))
    }

    fn reach(&self) -> Result<()> {
        self.mount.reach()
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

    fn is_fixed(&self) -> bool {
        self.mount.by_helper()
    }

    fn withhold(&self, programs: bool, devices: bool) {
        if let Some(adapter) = self.parts.adapter.upgrade() {
            adapter.served().withhold(programs, devices);
        }
    }

    fn remount(&self, options: &MountOptions) -> Result<()> {
        // The kernel would see to it with a mount that is read-only.
        if self.view.is_some() && options.read_only && self.parts.has_writers() {
            bail!(Busy, "files are open for writing");
        }
        self.grant(options);
        let options = self.for_kernel(options);
        self.mount.remount(&options)?;
        *self.options.acquire() = options.clone();
        match &*self.snapdir.acquire() {
            Some(m) => m.remount(options),
            None => Ok(()),
        }
    }

    fn follow_props(&self) {
        self.parts.follow_props();
    }

    fn follow_snapdir(&self) {
        let wanted = self.wants_snapdir();
        let mut snapdir = self.snapdir.acquire();
        match (&*snapdir, wanted) {
            (None, true) => {
                let Some(adapter) = self.parts.adapter.upgrade() else {
                    return;
                };
                let options = self.options.acquire().clone();
                match SnapdirMount::mount(&adapter, &self.path, options, &self.config) {
                    Ok(new) => *snapdir = Some(new),
                    Err(e) => crate::log::warn(&format!(
                        "{}: its .zfs stays in the same file system: {e}",
                        self.parts.ds.full_name()
                    )),
                }
            }
            (Some(m), false) => match m.end(false) {
                Ok(()) => *snapdir = None,
                // It follows when it is unmounted.
                Err(e) => crate::log::warn(&format!("{}: {e}", self.parts.ds.full_name())),
            },
            _ => {}
        }
    }

    fn tear_down(&self) -> Result<()> {
        self.leaving.store(true, Ordering::SeqCst);
        self.parts.set_forced(true);
        // What cannot be reached cannot be unmounted, but nothing must wait for it any more. What lies in it goes with it.
        let done = self.mount.unmount(Unmount::Force).inspect_err(|_| {
            self.mount.abort();
        });
        if let Some(m) = &*self.snapdir.acquire() {
            m.abort();
        }
        done
    }

    fn abort(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.parts.set_forced(true);
        self.mount.abort();
        if let Some(m) = &*self.snapdir.acquire() {
            m.abort();
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Takes away mounts without a daemon, the youngest first; how many they were. `which` is given the
/// source (`pool/dataset`) and the place.
fn clear_dead(which: &dyn Fn(&str, &Path) -> bool) -> usize {
    let mut cleared = 0;
    for info in fuse::mounted("zfs").unwrap_or_default().iter().rev() {
        if !which(&info.source.to_string_lossy(), &info.path) || !fuse::is_dead(&info.path) {
            continue;
        }
        match fuse::Mount::found(info).unmount(Unmount::Lazy) {
            Ok(()) => cleared += 1,
            Err(e) => crate::log::warn(&format!("{e}")),
        }
    }
    cleared
}
