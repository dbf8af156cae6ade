//! Mounted file systems: from a dataset to a directory and back.

use crate::holders;
use crate::service::{Entry, Service};
use crate::snapshots::OfMount;
use crate::values;
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use dsl::Dataset;
use fuse::{Atime, Config, End, MountOptions, MountPoint, Session, Trouble, Unmount};
use fuse_zpl::{Adapter, Ctldir, Ending, Fresh, Left, Written};
use pool::{OpenSet, Pool};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use zap::Zap;
use zpl::{
    AclInherit, AclMode, AclType, IntentLog, LogBias, NoLog, Props, SpaceInfo, SyncMode, Whose,
    XattrMode, Zfs, ZilLog,
};

const LONGNAME: &str = "org.zfsonlinux:longname";

/// How long the kernel may take to let go of a file system that is gone from its place.
const RELEASE: Duration = Duration::from_secs(3);

static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// One mounted file system.
pub struct Mounted {
    /// Dataset object.
    pub object: u64,
    pub path: PathBuf,
    /// The alternate root it does not leave, without links.
    pub root: Option<PathBuf>,
    /// Grows with every mount of this process.
    pub sequence: u64,
    pub zfs: Arc<Zfs>,
    pub ds: Arc<Dataset>,
    /// Its `.zfs`.
    pub ctl: Arc<Ctldir>,
    /// Properties overridden for this mount only (`-o`).
    temporary: Mutex<Vec<(String, String)>>,
    intent: Option<Arc<ZilLog>>,
    mount: fuse::Mount,
    /// Percent, see [`fuse::Mount::set_most_dirty`]; 0: never set.
    most_dirty: AtomicU32,
    /// What the kernel was told last.
    options: Mutex<MountOptions>,
    session: fuse::Handle,
    /// What the kernel keeps of what was written.
    written: Written,
    fresh: Arc<Fresh>,
    notifier: fuse::Notifier,
    /// What got lost at the end, in words.
    lost: Mutex<Option<String>>,
    /// The daemon itself ends it.
    leaving: Arc<AtomicBool>,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

/// Figures of a dataset for statfs and quotas.
struct Figures {
    ds: Arc<Dataset>,
    set: Arc<OpenSet>,
    readonly: bool,
}

impl SpaceInfo for Figures {
    fn space(&self) -> zpl::Space {
        let objects = self.set.os.object_count();
        let available = self.ds.available().bytes;
        zpl::Space {
            referenced: self.ds.phys().referenced_bytes,
            available,
            objects,
            objects_free: (1u64 << 48) - objects,
        }
    }

    fn usage(&self, whose: Whose, id: u64) -> Result<Option<zpl::Usage>> {
        let object = match whose {
            Whose::User => dmu::USERUSED_OBJECT,
            Whose::Group => dmu::GROUPUSED_OBJECT,
            Whose::Project => dmu::PROJECTUSED_OBJECT,
        };
        if self.set.os.policy().accounting_flags == 0 {
            return Ok(None);
        }
        let dn = match self.set.os.hold(object) {
            Ok(dn) => dn,
            Err(e) if e.kind == Kind::NotFound => return Ok(Some(zpl::Usage::default())),
            Err(e) => return Err(e),
        };
        let z = Zap::new(&dn);
        let key = zap::hex_key(id);
        let bytes = z.get(key.as_str())?.unwrap_or(0);
        let objects = z.get(format!("obj-{key}").as_str())?.unwrap_or(0);
        Ok(Some(zpl::Usage { bytes, objects }))
    }

    fn read_only(&self) -> bool {
        self.readonly
    }

    fn has_long_names(&self) -> bool {
        self.ds.has_feature(LONGNAME)
    }

    fn long_name_made(&self) {
        self.ds.note_feature(LONGNAME);
    }

    fn fsid(&self) -> u64 {
        self.ds.phys().fsid_guid
    }
}

/// Stands for the figures of a file system that is only looked at.
struct NoFigures;

impl SpaceInfo for NoFigures {
    fn space(&self) -> zpl::Space {
        zpl::Space::default()
    }
    fn read_only(&self) -> bool {
        true
    }
}

/// A file system that is not mounted, to look something up in it.
pub fn read_only_view(pool: &Pool, ds: &Dataset) -> Result<Arc<Zfs>> {
    let readonly = pool.is_readonly() || ds.is_snapshot();
    let os = ds.open_objset(pool.write_policy(ds)?, readonly)?;
    Zfs::open(
        &os,
        zpl::Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                readonly: true,
                ..Props::default()
            },
            space: Arc::new(NoFigures),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
}

/// What the POSIX layer does, from properties (and the overrides of one mount).
pub fn zpl_props(pool: &Pool, ds: &Dataset, temporary: &[(String, String)]) -> Result<Props> {
    let num = |name: &str| values::number(ds, name, temporary);
    let enabled = |guid: &str| {
        pool.feature_store()
            .is_some_and(|f| dsl::Features::is_enabled(&**f, guid))
    };
    Ok(Props {
        readonly: num("readonly")? != 0 || pool.is_readonly() || ds.is_snapshot(),
        atime: num("atime")? != 0,
        relatime: num("relatime")? != 0,
        diratime: values::option(temporary, "diratime") != Some("off"),
        recordsize: num("recordsize")? as usize,
        xattr: match num("xattr")? {
            0 => XattrMode::Off,
            1 => XattrMode::Dir,
            _ => XattrMode::Sa,
        },
        acltype: match num("acltype")? {
            1 => AclType::Posix,
            _ => AclType::Off,
        },
        aclmode: match num("aclmode")? {
            2 => AclMode::Groupmask,
            3 => AclMode::Passthrough,
            4 => AclMode::Restricted,
            _ => AclMode::Discard,
        },
        aclinherit: match num("aclinherit")? {
            0 => AclInherit::Discard,
            1 => AclInherit::NoAllow,
            3 => AclInherit::Passthrough,
            5 => AclInherit::PassthroughX,
            _ => AclInherit::Restricted,
        },
        dnode_slots: match num("dnodesize")? {
            0 => 1,
            1 => 2,
            n => (n / 512).clamp(1, 32) as u8,
        },
        sync: match num("sync")? {
            // What comes to the daemon is durable when it is answered; what does not is up to the
            // kernel, which has the same options.
            _ if ["sync-writes", "dirsync"]
                .iter()
                .any(|o| values::option(temporary, o) == Some("on")) =>
            {
                SyncMode::Always
            }
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        },
        logbias: match num("logbias")? {
            1 => LogBias::Throughput,
            _ => LogBias::Latency,
        },
        direct: num("direct")? == 2,
        longname: enabled(LONGNAME) && num("longname")? != 0,
        project_quota: enabled("org.zfsonlinux:project_quota"),
        xattr_compat: false,
    })
}

/// The file system in a snapshot, for reading. The pool has it open until
/// [`Pool::close_dataset`].
pub fn open_snapshot(
    pool: &Pool,
    ds: &Arc<Dataset>,
    temporary: &[(String, String)],
) -> Result<Arc<Zfs>> {
    let set = pool.open_dataset(ds)?;
    let props = zpl_props(pool, ds, temporary)?;
    let figures = Figures {
        ds: ds.clone(),
        set: set.clone(),
        readonly: true,
    };
    Zfs::open(
        &set.os,
        zpl::Mount {
            clock: pool.env.clock.clone(),
            props,
            space: Arc::new(figures),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
}

fn mount_options(
    name: &str,
    ds: &Dataset,
    p: &Props,
    temporary: &[(String, String)],
) -> Result<MountOptions> {
    let on = |prop: &str| values::number(ds, prop, temporary).map(|v| v != 0);
    let mut o = MountOptions::new(name);
    o.allow_other = crate::service::others_allowed();
    o.read_only = p.readonly;
    o.nosuid = !on("setuid")?;
    o.nodev = !on("devices")?;
    o.noexec = !on("exec")?;
    o.atime = match (p.atime, p.relatime) {
        (false, _) => Atime::Noatime,
        (true, true) => Atime::Relatime,
        (true, false) => Atime::Strictatime,
    };
    let option = |name: &str| values::option(temporary, name).is_some_and(|v| v == "on");
    o.nodiratime = !p.diratime;
    o.sync = option("sync-writes");
    o.dirsync = option("dirsync");
    o.lazytime = option("lazytime");
    let contexts = temporary.iter().filter(|(n, _)| n == "context");
    o.contexts = contexts.map(|(_, v)| v.clone()).collect();
    Ok(o)
}

impl Service {
    /// Mounts a file system on `path`, whose directory is made if it is missing. With a `root`, which
    /// begins the path, nothing leads out of that root.
    pub fn mount(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        ds: &Arc<Dataset>,
        path: &Path,
        root: Option<&Path>,
        temporary: Vec<(String, String)>,
        overlay: bool,
    ) -> Result<()> {
        let name = ds.full_name();
        let fail = |e: Error| {
            let text = e.to_string();
            let hint = if text.contains("failed to access mountpoint") {
                " (a place inside another mount of an ordinary user needs 'user_allow_other' in \
                 /etc/fuse.conf; or give another directory)"
            } else {
                ""
            };
            Error::new(e.kind, format!("cannot mount '{name}': {text}{hint}"))
        };
        let there = entry.mounted(ds.object());
        if there.as_ref().is_some_and(|m| m.is_in_place()) {
            bail!(Busy, "cannot mount '{name}': filesystem already mounted");
        }
        // Unmounted by somebody else, or lazily; files of it may be open.
        let still = there.filter(|m| !m.wait_if_gone());
        let place = MountPoint::find(path, root, true).map_err(|e| match e.trouble {
            Trouble::Create => Error::new(
                e.error.kind,
                format!(
                    "cannot mount '{}': failed to create mountpoint: {}",
                    path.display(),
                    strerror(e.error.kind)
                ),
            ),
            Trouble::Link => {
                let text = e.error.to_string();
                let advice = "remove it, or set another mountpoint";
                let text = format!("cannot mount '{name}': {text}; {advice}");
                Error::new(e.error.kind, text)
            }
            Trouble::Look | Trouble::NotDirectory => fail(e.error),
        })?;
        if !overlay && !place.is_new() && !place.is_empty().map_err(Error::from).map_err(fail)? {
            bail!(
                NotEmpty,
                "cannot mount '{}': directory is not empty",
                path.display()
            );
        }
        let r = match still {
            Some(m) => self.mount_again(entry, &m, &place, temporary),
            None => self.mount_on(entry, ds, &place, temporary),
        };
        if r.is_err() {
            place.undo();
        }
        r.map_err(fail)
    }

    /// Puts a file system that is gone from its place, but in use, into the tree again.
    fn mount_again(
        &self,
        entry: &Arc<Entry>,
        m: &Arc<Mounted>,
        place: &MountPoint,
        temporary: Vec<(String, String)>,
    ) -> Result<()> {
        let (props, options) = m.wanted(&entry.pool, &temporary)?;
        let mount = fuse::mount_again(place, &options, &m.notifier).map_err(|_| {
            let busy = holders::of(&[m.mount.device()]);
            Error::new(
                Kind::Busy,
                format!("it was unmounted, but is still in use{busy}"),
            )
        })?;
        m.apply(props);
        let again = Arc::new(Mounted {
            object: m.object,
            path: mount.path().to_path_buf(),
            root: place.root().map(Path::to_path_buf),
            sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
            zfs: m.zfs.clone(),
            ds: m.ds.clone(),
            ctl: m.ctl.clone(),
            temporary: Mutex::new(temporary),
            intent: m.intent.clone(),
            written: m.written.at(&mount),
            fresh: m.fresh.clone(),
            notifier: m.notifier.clone(),
            lost: Mutex::default(),
            leaving: m.leaving.clone(),
            mount,
            most_dirty: AtomicU32::new(m.most_dirty.load(Ordering::Relaxed)),
            options: Mutex::new(options),
            session: m.session.clone(),
            ended: m.ended.clone(),
        });
        again.leaving.store(false, Ordering::SeqCst);
        entry.add_mount(again);
        // The session cannot end while it is mounted; it may have, had somebody unmounted it since.
        if *m.ended.0.acquire() {
            entry.remove_mount(m.object);
        }
        Ok(())
    }

    fn mount_on(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        ds: &Arc<Dataset>,
        place: &MountPoint,
        temporary: Vec<(String, String)>,
    ) -> Result<()> {
        let pool = &entry.pool;
        let name = ds.full_name();
        if ds.is_inconsistent() {
            bail!(
                Busy,
                "the dataset is incomplete: a receive or destroy was interrupted"
            );
        }
        if matches!(ds.crypt()?, zio::Crypt::Locked) {
            bail!(Access, "encryption key not loaded");
        }
        let set = pool.open_dataset(ds)?;
        let props = zpl_props(pool, ds, &temporary)?;
        let intent = set
            .zil()
            .map(|z| Arc::new(ZilLog::new(z.clone(), &set.os, pool.has_log_device())));
        let log: Arc<dyn IntentLog> = match &intent {
            Some(l) => {
                l.set_throughput(props.logbias == LogBias::Throughput);
                l.clone()
            }
            None => Arc::new(NoLog),
        };
        let figures = Figures {
            ds: ds.clone(),
            set: set.clone(),
            readonly: pool.is_readonly() || ds.is_snapshot(),
        };
        let zfs = Zfs::open(
            &set.os,
            zpl::Mount {
                clock: pool.env.clock.clone(),
                props: props.clone(),
                space: Arc::new(figures),
                log,
                pool_version: pool.version(),
                software_version: pool.software_version(),
            },
        )?;
        if let Some(zil) = set.zil() {
            zfs.replay_log(zil).map_err(|e| e.context(&name))?;
            zfs.start()?;
        }
        let options = mount_options(&name, ds, &props, &temporary)?;
        let snapshots = OfMount::new(entry, ds, temporary.clone());
        let snapshots = Box::new(snapshots);
        let adapter = Adapter::new(zfs.clone(), pool, snapshots, self.caching)
            .map_err(|e| Error::new(e.kind, "root node"))?;
        let (fd, mount) = fuse::mount_at(place, &options)?;
        let mut config = Config {
            posix_acl: props.acltype == AclType::Posix,
            transport: self.transport,
            ..Config::default()
        };
        if self.caching.no_ahead {
            config.max_readahead = 0;
        }
        mount.set_read_ahead(config.max_readahead);
        let session = Session::new(adapter.clone(), fd, config);
        let title = name.clone();
        session.tell_carried(move |how| {
            crate::log::info(&format!("{title}: requests come over {how}"))
        });
        let notifier = session.notifier();
        adapter.set_notifier(notifier.clone());
        let written = Written::new(mount.clone(), notifier.clone(), adapter.writers());
        let fresh = adapter.fresh();
        let ctl = adapter.ctl();
        drop(adapter);
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let mounted = Arc::new(Mounted {
            object: ds.object(),
            path: mount.path().to_path_buf(),
            root: place.root().map(Path::to_path_buf),
            sequence: SEQUENCE.fetch_add(1, Ordering::Relaxed),
            zfs: zfs.clone(),
            ds: ds.clone(),
            ctl,
            temporary: Mutex::new(temporary),
            intent,
            session: session.handle(),
            mount,
            most_dirty: AtomicU32::new(0),
            options: Mutex::new(options),
            written,
            fresh,
            notifier,
            lost: Mutex::default(),
            leaving: Arc::default(),
            ended: ended.clone(),
        });
        entry.add_mount(mounted.clone());
        let service = Arc::downgrade(self);
        let entry2 = entry.clone();
        std::thread::Builder::new()
            .name(format!("fuse {name}"))
            .spawn(move || {
                let end = session.run();
                if let Err(e) = &end {
                    crate::log::error(&format!("{}: {e}", mounted.ds.full_name()));
                }
                let r = mounted.settle(&entry2, &set);
                if let Err(e) = r {
                    crate::log::error(&format!("unmounting {}: {e}", mounted.ds.full_name()));
                }
                // It may have been mounted again since.
                let last = entry2.mounted(mounted.object);
                let last = last.unwrap_or_else(|| mounted.clone());
                entry2.remove_mount(mounted.object);
                let (m, cv) = &*ended;
                *m.acquire() = true;
                cv.notify_all();
                // The kernel says the same of a connection that `umount -f` has aborted as of one that
                // was unmounted.
                let by_kernel = matches!(end, Ok(End::Aborted | End::Unmounted));
                if let Some(service) = service.upgrade().filter(|_| by_kernel) {
                    service.mount_after_abort(&entry2, &last);
                }
            })
            .map_err(Error::from)?;
        Ok(())
    }

    /// Somebody else aborted the connection, but the mount is still there: `umount -f` of one in use
    /// does both, aborts and fails. Nobody can use such a mount any more, so a new one takes its
    /// place; files that were open stay unusable.
    fn mount_after_abort(self: &Arc<Self>, entry: &Arc<Entry>, m: &Arc<Mounted>) {
        if m.leaving.load(Ordering::SeqCst) || !m.is_in_place() {
            return;
        }
        let Ok(_gate) = entry.pass() else { return };
        let _names = entry.names.write();
        let name = m.ds.full_name();
        let here = entry.pool.dsl.dataset(&name);
        let same = here.is_ok_and(|d| d.object() == m.object);
        if !same || entry.mounted(m.object).is_some() || !m.is_in_place() {
            return;
        }
        crate::log::warn(&format!(
            "{name}: the connection was aborted by somebody else while the file system was in use; what \
             the kernel kept of written data is lost. It is mounted again"
        ));
        let again = m.mount.unmount(Unmount::Lazy).and_then(|()| {
            self.mount(
                entry,
                &m.ds,
                &m.path,
                m.root.as_deref(),
                m.temporary(),
                true,
            )
        });
        if let Err(e) = again {
            crate::log::error(&e.to_string());
        }
    }

    /// Mounts a file system where its properties say. `Ok(false)`: it is not to be mounted
    /// (legacy, none, canmount=off …) and nobody insisted.
    pub fn mount_default(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        ds: &Arc<Dataset>,
        temporary: Vec<(String, String)>,
        overlay: bool,
    ) -> Result<bool> {
        let Some(place) = self.mountpoint(entry, ds)? else {
            return Ok(false);
        };
        let overlay = overlay || values::number(ds, "overlay", &temporary)? != 0;
        let root = entry.altroot.as_deref();
        let own = root.and_then(|r| place.path.strip_prefix(r).ok());
        let own = own.unwrap_or(&place.path);
        if own.components().any(|c| c == Component::ParentDir) {
            bail!(
                Invalid,
                "cannot mount '{}': its mountpoint '{}' contains '..'; set another mountpoint",
                ds.full_name(),
                place.path.display()
            );
        }
        let path = self.outside_of_others(place.path);
        // Beside an alternate root that is itself a mount only its owner may enter.
        let root = root.filter(|r| path.starts_with(r));
        self.mount(entry, ds, &path, root, temporary, overlay)?;
        Ok(true)
    }

    /// Where an ordinary user's file system goes whose place lies inside another one that is no
    /// ancestor of it, and that only he may enter: beside that one, like those of
    /// [`values::mountpoint`].
    fn outside_of_others(&self, path: PathBuf) -> PathBuf {
        if crate::service::others_allowed() {
            return path;
        }
        let pools = self.pools();
        let mounts = pools.iter().flat_map(|e| e.all_mounts());
        let around = mounts.filter(|m| path != m.path && path.starts_with(&m.path));
        let Some(outer) = around.max_by_key(|m| m.path.as_os_str().len()) else {
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
    pub fn unmount(&self, entry: &Arc<Entry>, m: &Arc<Mounted>, force: bool) -> Result<()> {
        remove_dirs(self.unmount_first(entry, m, force)?);
        Ok(())
    }

    /// The same, but returns the directory, if it is one to be removed. When a whole pool is
    /// unmounted that comes last: directories inside its own file systems stay where they are, and
    /// the pool can be mounted read-only the next time.
    pub fn unmount_first(
        &self,
        entry: &Arc<Entry>,
        m: &Arc<Mounted>,
        force: bool,
    ) -> Result<Option<PathBuf>> {
        let place = self.mountpoint(entry, &m.ds);
        self.unmount_keep(entry, m, force)?;
        let ours = place.is_ok_and(|p| p.is_some_and(|p| !p.local && p.path == m.path));
        Ok(ours.then(|| m.path.clone()))
    }

    /// The same, but the directory stays.
    pub fn unmount_keep(&self, entry: &Arc<Entry>, m: &Arc<Mounted>, force: bool) -> Result<()> {
        let how = if force {
            Unmount::Force
        } else {
            Unmount::Normal
        };
        m.leaving.store(true, Ordering::SeqCst);
        let staying = Staying(&m.leaving);
        // Aborting the connection drops what the kernel has not sent yet.
        let _refusing_writes = force.then(|| m.write_out_for_the_end(&entry.pool));
        m.mount.unmount(how).map_err(|e| {
            let why = match e.kind {
                Kind::Busy => format!(
                    "pool or dataset is busy{}",
                    holders::of(&[m.mount.device()])
                ),
                _ => e.to_string(),
            };
            Error::new(
                e.kind,
                format!("cannot unmount '{}': {why}", m.path.display()),
            )
        })?;
        staying.gone();
        if force {
            m.session.stop();
        }
        if m.wait() {
            return Ok(());
        }
        bail!(
            Busy,
            "cannot unmount '{}': it is gone from there, but still in use: by open files, or in another \
             mount namespace{}",
            m.path.display(),
            holders::of(&[m.mount.device()])
        );
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

/// Removes directories of former mounts as far as they are empty.
pub fn remove_dirs(dirs: impl IntoIterator<Item = PathBuf>) {
    for d in dirs {
        fuse::remove_mount_point(&d);
    }
}

/// The words of the C library for what can keep a directory from being made.
fn strerror(kind: Kind) -> &'static str {
    match kind {
        Kind::Access | Kind::NotPermitted => "Permission denied",
        Kind::NotDir => "Not a directory",
        Kind::ReadOnly => "Read-only file system",
        Kind::NoSpace => "No space left on device",
        Kind::NameTooLong => "File name too long",
        Kind::Loop => "Too many levels of symbolic links",
        Kind::Exists => "File exists",
        _ => "Input/output error",
    }
}

/// The options that the kernel goes by itself.
fn for_kernel(o: &MountOptions) -> ([bool; 8], Atime) {
    let flags = [
        o.read_only,
        o.nosuid,
        o.nodev,
        o.noexec,
        o.nodiratime,
        o.sync,
        o.dirsync,
        o.lazytime,
    ];
    (flags, o.atime)
}

impl Mounted {
    /// Once it is gone from its place: waits until the session has ended and everything is settled.
    /// `false` if the kernel does not let it go, because somebody holds files of it open, or has it
    /// in a mount namespace of his own. That may last for ever.
    fn wait(&self) -> bool {
        let (lock, cv) = &*self.ended;
        let begin = Instant::now();
        let mut ended = lock.acquire();
        while !*ended {
            if begin.elapsed() > RELEASE && self.session.is_running() {
                return false;
            }
            ended = match cv.wait_timeout(ended, RELEASE / 10) {
                Ok((ended, _)) => ended,
                Err(e) => e.into_inner().0,
            };
        }
        true
    }

    /// Takes what the kernel keeps of written data, before the connection is aborted. What could not
    /// be taken is logged, and told by [`Mounted::lost`].
    fn write_out_for_the_end(&self, pool: &Pool) -> Option<Ending<'_>> {
        let files = self.written.files();
        if files == 0 {
            return None;
        }
        let (ending, done) = match pool.suspended() {
            None => {
                let (ending, done) = self.written.end();
                (Some(ending), done)
            }
            // It would get no further than memory.
            Some(_) => {
                let why = "I/O of the pool is suspended".to_string();
                (None, Err(Left { files, why }))
            }
        };
        if let Err(left) = done {
            let text = format!("{}: {left}", self.ds.full_name());
            crate::log::error(&text);
            *self.lost.acquire() = Some(text);
        }
        ending
    }

    /// What got lost when it was unmounted by force, in words.
    pub fn lost(&self) -> Option<String> {
        self.lost.acquire().clone()
    }

    /// Takes what the kernel keeps of written data; the mount goes on.
    pub fn write_out(&self) -> std::result::Result<(), Left> {
        self.written.take()
    }

    /// Has the kernel ask again for attributes that it keeps for a moment: a txg is on disk, and the
    /// space files take is known.
    pub fn forget_fresh(&self) {
        self.fresh.forget(&self.notifier);
    }

    /// Fails what waits for it and takes it from its place; what its threads do goes on.
    pub fn tear_down(&self) -> Result<()> {
        self.leaving.store(true, Ordering::SeqCst);
        // What cannot be reached cannot be unmounted, but nothing must wait for it any more.
        self.mount.unmount(Unmount::Force).inspect_err(|_| {
            self.mount.abort();
        })
    }

    /// Percent of the machine's limit that the kernel may hold of what was written here.
    pub fn set_most_dirty(&self, percent: u32) {
        if self.most_dirty.swap(percent, Ordering::Relaxed) != percent {
            self.mount.set_most_dirty(percent);
        }
    }

    /// Fails what waits for it.
    pub fn abort(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.mount.abort();
    }

    /// Whether it is at its place in the tree of mounts: not after `umount -l`, say, though files of it
    /// may be open.
    pub fn is_in_place(&self) -> bool {
        self.mount.is_mounted().unwrap_or(true)
    }

    /// If somebody else unmounted it (`umount`, `fusermount3 -u`): waits for its end. True when
    /// nothing is left of it.
    pub fn wait_if_gone(&self) -> bool {
        match self.mount.is_mounted() {
            Ok(false) => self.wait(),
            _ => false,
        }
    }

    /// After the session has ended: everything on disk, the log empty, the dataset closed.
    fn settle(&self, entry: &Entry, set: &OpenSet) -> Result<()> {
        let pool = &entry.pool;
        let r = (|| {
            self.zfs.stop()?;
            if let Some(zil) = set.zil() {
                pool.sync()?;
                if !zil.has_no_blocks() {
                    zil.destroy()?;
                    pool.sync()?;
                }
            }
            Ok(())
        })();
        pool.close_dataset(self.object);
        r
    }

    /// Properties overridden for this mount only.
    pub fn temporary(&self) -> Vec<(String, String)> {
        let list = self.temporary.acquire();
        list.clone()
    }

    /// What the layers above the pool and the kernel are to do by properties and overrides.
    fn wanted(&self, pool: &Pool, temporary: &[(String, String)]) -> Result<(Props, MountOptions)> {
        let p = zpl_props(pool, &self.ds, temporary)?;
        let options = mount_options(&self.ds.full_name(), &self.ds, &p, temporary)?;
        Ok((p, options))
    }

    fn apply(&self, p: Props) {
        if let Some(l) = &self.intent {
            l.set_throughput(p.logbias == LogBias::Throughput);
        }
        self.zfs.set_props(|old| *old = p);
    }

    /// Properties changed: what can follow at once does. Mount options of the kernel follow where
    /// remounting is allowed.
    pub fn refresh(&self, pool: &Pool) -> Result<()> {
        let (p, options) = self.wanted(pool, &self.temporary())?;
        self.apply(p);
        let mut told = self.options.acquire();
        if for_kernel(&told) == for_kernel(&options) {
            return Ok(());
        }
        match self.mount.remount(&options) {
            Ok(()) => *told = options,
            // An ordinary user's mount, or one with another one over it, follows when it is
            // mounted the next time.
            Err(e) if matches!(e.kind, Kind::Unsupported | Kind::Busy) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// `zfs mount -o remount,…`: other overrides instead of those there are. `Kind::Busy` if the
    /// mount is to become read-only while files are open for writing; nothing has changed then.
    pub fn change(&self, pool: &Pool, temporary: Vec<(String, String)>) -> Result<()> {
        let (p, options) = self.wanted(pool, &temporary)?;
        let mut told = self.options.acquire();
        let writable = !p.readonly;
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
        if for_kernel(&told) != for_kernel(&options) {
            if self.mount.by_helper() {
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
                    self.zfs.set_props(|old| old.readonly = false);
                }
                if let Err(e) = self.mount.remount(&options) {
                    if told.read_only {
                        self.zfs.set_props(|old| old.readonly = true);
                    }
                    return Err(e);
                }
                *told = options;
            }
        }
        let was_writable = !self.zfs.props().readonly;
        self.apply(p);
        *self.temporary.acquire() = temporary;
        drop(told);
        if was_writable && !writable {
            pool.sync()?;
        }
        Ok(())
    }

    /// Whether only a new mount makes the kernel follow a changed property: it refuses what the
    /// mount forbids, and the mount of an ordinary user cannot be changed.
    pub fn must_remount(&self, property: &str, new: u64) -> bool {
        let told = self.options.acquire();
        self.mount.by_helper()
            && match property {
                // Read-only is our own business, too.
                "readonly" => new == 0 && told.read_only,
                "exec" => (new == 0) != told.noexec,
                _ => false,
            }
    }
}
