//! One mounted file system: what its master node says, its live properties, its znodes.

use crate::attr::Time;
use crate::log::{IntentLog, Record};
use crate::names;
use crate::perm::Cred;
use crate::props::{Props, SyncMode};
use crate::sa::SaTables;
use crate::space_info::SpaceInfo;
use crate::znode::{Cache, DeviceForm, Znode};
use base::sync::RwLockExt;
use base::{bail, Error, Kind, Result};
use disk::types::os_type;
use dmu::{Dnode, Need, Objset, Tx};
use env::Clock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// Object number of the master node.
pub const MASTER_NODE: u64 = 1;
/// Newest version of the POSIX layer.
pub const ZPL_VERSION: u64 = 5;
/// First versions with FUIDs (and flags in the high half), and with system attributes.
pub const VERSION_FUID: u64 = 3;
/// See [`VERSION_FUID`].
pub const VERSION_SA: u64 = 5;

/// Newest ZPL version a pool of this version may hold (data format §17).
pub const fn max_zpl_version(pool_version: u64) -> u64 {
    match pool_version {
        0..=8 => 2,
        9..=14 => 3,
        15..=23 => 4,
        _ => 5,
    }
}

/// What mounting needs besides the object set.
pub struct Mount {
    /// Gives the times of changes.
    pub clock: Arc<dyn Clock>,
    /// Properties at the beginning.
    pub props: Props,
    /// Space and quotas of the dataset.
    pub space: Arc<dyn SpaceInfo>,
    /// The intent log.
    pub log: Arc<dyn IntentLog>,
    /// Pool version (1–28, or 5000).
    pub pool_version: u64,
    /// Version of the software that wrote the pool last, as its uberblock named it when it was opened.
    pub software_version: u64,
}

/// One mounted file system.
pub struct Zfs {
    pub(crate) os: Arc<Objset>,
    pub(crate) clock: Arc<dyn Clock>,
    props: RwLock<Arc<Props>>,
    pub(crate) space: Arc<dyn SpaceInfo>,
    log: RwLock<Arc<dyn IntentLog>>,
    /// Nothing is ever changed through this handle, whatever the properties say and whoever else has the
    /// object set open.
    read_only: bool,
    /// ZPL version.
    pub version: u64,
    /// Pool version, 1 to 28 or 5000.
    pub pool_version: u64,
    pub(crate) devices: DeviceForm,
    root: u64,
    /// Delete queue.
    pub(crate) unlinked: Arc<Dnode>,
    pub(crate) sa: Option<SaTables>,
    /// Normalization flags of directories, TOUPPER included if lookups ignore case.
    pub(crate) norm: u64,
    /// casesensitivity: 0 sensitive, 1 insensitive, 2 mixed.
    pub case: u64,
    /// Names must be UTF-8.
    pub utf8only: bool,
    pub(crate) cache: Arc<Cache>,
    /// Held while a directory moves to another one, so that the tree stands still for the check
    /// that it does not move below itself.
    pub(crate) moving: Mutex<()>,
    /// Held (briefly, inside a transaction) while an object gets its first link or loses its last,
    /// so that link count and delete queue agree.
    pub(crate) last_links: Mutex<()>,
    /// Records of a replay are not logged again.
    pub(crate) replaying: AtomicBool,
    /// Objects of the quota maps, 0 = none.
    pub(crate) quotas: [AtomicU64; 6],
    pub(crate) default_quotas: AtomicBool,
    pub(crate) keeper: OnceLock<Keeper>,
}

/// Told of objects that lose their last link while somebody uses them. Called in a transaction: it
/// must not wait.
pub type Keeper = Box<dyn Fn(&Arc<Znode>) + Send + Sync>;

impl Zfs {
    /// Whether a name of a directory has one spelling only: case is not ignored and names are not
    /// normalized.
    pub fn has_exact_names(&self) -> bool {
        self.norm == 0
    }

    /// Opens the file system in `os`. Nothing is written; call [`Zfs::start`] once the intent log has
    /// been replayed.
    pub fn open(os: &Arc<Objset>, m: Mount) -> Result<Arc<Zfs>> {
        if os.os_type() != os_type::ZFS {
            bail!(
                Invalid,
                "not a file system (object set type {})",
                os.os_type()
            );
        }
        let master = os.hold(MASTER_NODE).map_err(|e| e.context("master node"))?;
        let word = |name: &str| names::lookup(&master, name.as_bytes());
        let need = |name: &str| -> Result<u64> {
            word(name)?.ok_or_else(|| Error::damaged(format!("master node without {name}")))
        };
        let version = need("VERSION")?;
        if version == 0 || version > ZPL_VERSION {
            bail!(
                Unsupported,
                "file system version {version} is not supported"
            );
        }
        if version > max_zpl_version(m.pool_version) {
            bail!(
                Unsupported,
                "file system version {version} needs a newer pool version than {}",
                m.pool_version
            );
        }
        let norm = word("normalization")?.unwrap_or(0);
        let case = word("casesensitivity")?.unwrap_or(0);
        let utf8only = word("utf8only")?.unwrap_or(0) != 0 || norm != 0;
        let sa = match word("SA_ATTRS")? {
            Some(object) if version >= VERSION_SA => Some(SaTables::open(os, object)?),
            _ if version >= VERSION_SA => {
                bail!(Damaged, "master node of version {version} without SA_ATTRS")
            }
            _ => None,
        };
        let root = need("ROOT")?;
        let unlinked = os
            .hold(need("DELETE_QUEUE")?)
            .map_err(|e| e.context("delete queue"))?;
        let read_only = os.is_readonly() || m.space.read_only();
        let zfs = Arc::new(Zfs {
            os: os.clone(),
            clock: m.clock,
            props: RwLock::new(Arc::new(m.props)),
            space: m.space,
            log: RwLock::new(m.log),
            read_only,
            version,
            pool_version: m.pool_version,
            devices: DeviceForm::of(sa.is_some(), m.software_version),
            root,
            unlinked,
            sa,
            norm: norm | if case != 0 { 2 } else { 0 },
            case,
            utf8only,
            cache: Arc::default(),
            moving: Mutex::new(()),
            last_links: Mutex::new(()),
            replaying: false.into(),
            quotas: Default::default(),
            default_quotas: false.into(),
            keeper: OnceLock::new(),
        });
        zfs.reload_quotas()?;
        let dir = zfs.root().map_err(|e| e.context("root directory"))?;
        if !dir.is_dir() {
            bail!(Damaged, "the root of the file system is no directory");
        }
        Ok(zfs)
    }

    /// After open and replay of a writable file system: frees what was unlinked but open when it
    /// was last in use.
    pub fn start(&self) -> Result<()> {
        if self.props().readonly || self.read_only {
            return Ok(());
        }
        self.drain_unlinked()
    }

    /// Before the file system goes: frees what waits to be freed. Objects still in use stay on the
    /// delete queue for the next mount.
    pub fn stop(&self) -> Result<()> {
        self.reap()
    }

    /// Whom to tell when an object loses its last link. A door whose clients refer to objects by
    /// more than the references it holds keeps the znode then until they are done with it. The
    /// first one set stays.
    pub fn set_keeper(&self, keeper: Keeper) {
        let _ = self.keeper.set(keeper);
    }

    /// The root directory.
    pub fn root(&self) -> Result<Arc<Znode>> {
        self.get(self.root)
    }

    /// Object number of the root directory.
    pub fn root_object(&self) -> u64 {
        self.root
    }

    /// The object set.
    pub fn objset(&self) -> &Arc<Objset> {
        &self.os
    }

    /// The properties now.
    pub fn props(&self) -> Arc<Props> {
        self.props.acquire_read().clone()
    }

    /// New values take effect for operations that begin now.
    pub fn set_props(&self, change: impl FnOnce(&mut Props)) {
        let mut g = self.props.acquire_write();
        let mut p = (**g).clone();
        change(&mut p);
        *g = Arc::new(p);
    }

    /// Replaces the intent log (once the pool has opened it).
    pub fn set_log(&self, log: Arc<dyn IntentLog>) {
        *self.log.acquire_write() = log;
    }

    pub(crate) fn log(&self) -> Arc<dyn IntentLog> {
        self.log.acquire_read().clone()
    }

    /// Adds a record to the intent log. During replay the log only takes note that the record it is
    /// replaying is done in this txg.
    pub(crate) fn record(&self, tx: &Tx, rec: Record) {
        self.log().log(tx, rec);
    }

    /// At the end of an operation: waits for the log under `sync=always`.
    pub(crate) fn finish(&self, object: Option<u64>) -> Result<()> {
        if !self.cache.reaper.is_empty() {
            self.reap()?;
        }
        if self.props().sync == SyncMode::Always && !self.replaying.load(Ordering::Relaxed) {
            self.commit(object)?;
        }
        Ok(())
    }

    /// Makes everything that concerns the object durable; `None`: everything of the file system.
    ///
    /// Errors: also, once, what a txg before had to give up of the object's changes because of damage.
    pub fn fsync(&self, z: Option<&Znode>) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        let object = z.map(|z| z.object);
        match self.props().sync {
            SyncMode::Disabled => self.told_of_losses(object),
            _ => self.commit(object),
        }
    }

    /// Makes what the log has of the object durable, and tells what is lost of it.
    pub(crate) fn commit(&self, object: Option<u64>) -> Result<()> {
        base::waits::about_to_wait();
        self.log().commit(object)?;
        self.told_of_losses(object)
    }

    fn told_of_losses(&self, object: Option<u64>) -> Result<()> {
        match object {
            Some(object) => self.os.take_lost(object).map_or(Ok(()), Err),
            None if self.os.take_any_lost() => Err(Error::new(
                Kind::Io,
                "changes of damaged files are lost; zpool status -v lists the files",
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::now(&*self.clock)
    }

    /// High flags (ARCHIVE and others) exist from version 3 on.
    pub(crate) fn fuids(&self) -> bool {
        self.version >= VERSION_FUID
    }

    pub(crate) fn uses_sa(&self) -> bool {
        self.version >= VERSION_SA
    }

    pub(crate) fn tables(&self) -> Result<&SaTables> {
        self.sa.as_ref().ok_or_else(|| {
            Error::new(
                Kind::Unsupported,
                "this needs file system version 5 (system attributes)",
            )
        })
    }

    /// Whether nothing is ever changed through this handle.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn writable(&self) -> Result<Arc<Props>> {
        let p = self.props();
        if self.read_only || p.readonly && !self.replaying.load(Ordering::Relaxed) {
            return Err(Kind::ReadOnly.into());
        }
        Ok(p)
    }

    /// The same; but what a kernel with a write-back cache took in before the file system became
    /// read-only (`before`) is not lost by that.
    pub(crate) fn writable_since(&self, before: bool) -> Result<Arc<Props>> {
        match before && !self.read_only {
            true => Ok(self.props()),
            false => self.writable(),
        }
    }

    /// Longest name that can be there: those made while the property was on stay.
    pub(crate) fn name_max_found(&self) -> usize {
        match self.props().longname || self.space.has_long_names() {
            true => 1023,
            false => 255,
        }
    }

    /// Longest name that can be made.
    pub fn name_max(&self) -> usize {
        if self.props().longname {
            1023
        } else {
            255
        }
    }

    /// A transaction for an operation on names and attributes.
    pub(crate) fn tx_meta(&self) -> Result<Tx> {
        self.unless_given_up(self.os.tx(self.need(48 << 10))?)
    }

    /// Space for `bytes`. A replay may use a part of the slop space: what it brings back was acknowledged, and the log, which takes
    /// space as well, goes when it is done. Without that a pool that was full could not be mounted, nor emptied.
    fn need(&self, bytes: u64) -> Need {
        match self.is_replaying() {
            true => Need {
                bytes,
                ..Need::freeing()
            },
            false => Need::bytes(bytes),
        }
    }

    /// A transaction that frees more than it takes. Also for what goes on in several ones, once it has begun.
    pub(crate) fn tx_free(&self) -> Result<Tx> {
        self.os.tx(Need {
            bytes: 32 << 10,
            ..Need::freeing()
        })
    }

    pub(crate) fn tx_write(&self, bytes: u64) -> Result<Tx> {
        self.unless_given_up(self.os.tx(self.need(bytes + (16 << 10)))?)
    }

    /// A transaction that takes a name away.
    pub(crate) fn tx_remove(&self) -> Result<Tx> {
        self.unless_given_up(self.tx_free()?)
    }

    /// The caller of the operation may have been told that it was interrupted, while it waited for its locks or the transaction. It
    /// must not begin then: others may have come meanwhile.
    fn unless_given_up(&self, tx: Tx) -> Result<Tx> {
        base::cancel::may_change()?;
        Ok(tx)
    }

    /// The znode of an object that has links (or is in use without any). `Kind::NotFound` if there
    /// is none, `Kind::Stale` if it waits to be freed.
    pub fn get(&self, object: u64) -> Result<Arc<Znode>> {
        let z = self.get_any(object)?;
        if z.fixed().links == 0 && !z.doomed.load(Ordering::Acquire) {
            if !self.cache.reaper.is_kept(object) {
                return Err(Kind::Stale.into());
            }
            // Loaded again.
            z.doomed.store(true, Ordering::Release);
        }
        Ok(z)
    }

    /// Like [`Zfs::get`], also for NFS-like handles: the generation must match.
    pub fn get_generation(&self, object: u64, generation: u32) -> Result<Arc<Znode>> {
        let z = match self.get(object) {
            Err(e) if e.kind == Kind::NotFound => return Err(Kind::Stale.into()),
            r => r?,
        };
        if z.gen as u32 != generation {
            return Err(Kind::Stale.into());
        }
        Ok(z)
    }

    /// An object that somebody referred to in another state of the file system, by its number and
    /// generation. One without links stays until [`Zfs::let_go`].
    ///
    /// Errors: `Kind::Stale` if there is no such object.
    pub fn adopt(&self, object: u64, generation: u32) -> Result<Arc<Znode>> {
        let z = match self.get_any(object) {
            Err(e) if e.kind == Kind::NotFound => return Err(Kind::Stale.into()),
            r => r?,
        };
        if z.gen as u32 != generation {
            return Err(Kind::Stale.into());
        }
        if z.fixed().links == 0 {
            z.keep_by_number();
            z.doomed.store(true, Ordering::Release);
        }
        Ok(z)
    }

    /// User, group and project of an object, whether or not it has links.
    pub fn owners(&self, object: u64) -> Result<[u64; 3]> {
        let z = self.get_any(object)?;
        let f = z.fixed();
        Ok([f.uid, f.gid, z.extra().projid])
    }

    pub(crate) fn get_any(&self, object: u64) -> Result<Arc<Znode>> {
        self.cache.get_or_load(object, || {
            Znode::load(self.os.hold(object)?, self.sa.as_ref(), &self.cache)
        })
    }

    /// Znodes in use.
    pub fn in_use(&self) -> Vec<Arc<Znode>> {
        self.cache.all()
    }

    /// Checks `want` (see `crate::perm`) on an object; for access(2), and for every operation when
    /// the kernel does not check.
    pub fn access(&self, z: &Znode, want: u32, cred: &Cred) -> Result<()> {
        let f = z.fixed();
        if want & crate::perm::W != 0 && !crate::attr::mode::is_dev(f.mode32()) {
            let special = matches!(
                f.mode32() & crate::attr::mode::FMT,
                crate::attr::mode::FIFO | crate::attr::mode::SOCK
            );
            if (self.read_only || self.props().readonly) && !special {
                return Err(Kind::ReadOnly.into());
            }
            if f.flags & crate::attr::flag::IMMUTABLE != 0 {
                return Err(Kind::NotPermitted.into());
            }
        }
        if cred.privileged || cred.uid == f.uid32() {
            return crate::perm::access(cred, want, f.mode32(), f.uid32(), f.gid32(), None);
        }
        let acl = self.posix_acl(z, false)?;
        crate::perm::access(cred, want, f.mode32(), f.uid32(), f.gid32(), acl.as_ref())
    }

    /// [`Zfs::access`] unless the caller was checked already.
    pub(crate) fn check(&self, z: &Znode, want: u32, cred: &Cred) -> Result<()> {
        match cred.checked {
            true => Ok(()),
            false => self.access(z, want, cred),
        }
    }
}
