//! The registry: imported pools, their mounts, and pools of the cache file that could not be opened.

use crate::abandoned::Abandoned;
use crate::door::Door;
use crate::mounts::Mounted;
use crate::process::Process;
use crate::shares::{Sharer, SmbServer};
use crate::{cancel, parallel, values, Answer};
use base::sync::{MutexExt, ReadGuard, RwLockExt, WriteGuard};
use base::{Error, Kind, Result};
use disk::{os_type, BlkPtr, NvList};
use dsl::Dataset;
use env::Env;
use pool::Pool;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, RwLock, TryLockError};
use std::time::Duration;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Pools to import at start.
    pub cache_file: PathBuf,
    /// Mount points of pools whose `mountpoint` is the default begin here: `/` for root.
    pub mount_root: PathBuf,
}

/// One imported pool.
pub struct PoolEntry {
    /// The pool.
    pub pool: Arc<Pool>,
    /// Prefix of all mount points, for this import.
    pub altroot: Option<PathBuf>,
    /// Cache file the pool is recorded in; `None`: in none.
    pub cache_file: Mutex<Option<PathBuf>>,
    /// Mount options given at import, for every dataset.
    pub mount_options: Vec<String>,
    /// Monotonic nanoseconds of the import.
    pub import_ns: u64,
    /// Differs with every import.
    pub load_guid: u64,
    mounts: Mutex<BTreeMap<u64, Arc<Mounted>>>,
    /// Requests that change the shape of the pool (export, destroy) hold it for writing.
    pub gate: RwLock<()>,
    /// Lock of the names of its datasets.
    pub names: Names,
    /// Streams that are received.
    pub streams: Arc<crate::streams::Streams>,
    /// Numbers what `zfs diff` makes for as long as it runs.
    pub(crate) comparisons: AtomicU64,
    /// Volumes that clients have open.
    pub volumes: crate::volumes::Volumes,
    /// Who has streams sent and received.
    pub users: crate::streams::Users,
    /// Clearing, upgrading, export and destruction of the pool happen one at a time.
    pub changes: Mutex<()>,
    stop: AtomicBool,
    closed: AtomicBool,
    abandoned: AtomicBool,
    /// Rung when the state of the pool changes; [`PoolEntry::wait_for_turn`].
    bell: Arc<Bell>,
}

/// The lock of the names of a pool's datasets: keeps requests from using names that another one changes.
#[derive(Default)]
pub struct Names {
    /// Held for reading to create datasets or to change values, for writing to mount, unmount, rename or
    /// destroy.
    lock: RwLock<()>,
    /// Object set types of datasets by GUID; they never change.
    pub(crate) types: Mutex<HashMap<u64, u64>>,
}

impl Names {
    /// Names do not change while the guard is held.
    pub fn read(&self) -> ReadGuard<'_, ()> {
        self.lock.acquire_read()
    }

    /// No other request uses or changes names or mounts while the guard is held.
    pub fn write(&self) -> WriteGuard<'_, ()> {
        self.lock.acquire_write()
    }

    /// [`Names::read`] for a request that the holder of the lock may be waiting for: a system call on a mount that is
    /// unmounted by force.
    ///
    /// Errors: interrupted if the request is cancelled.
    pub fn read_unless_cancelled(&self) -> Answer<ReadGuard<'_, ()>> {
        until_cancelled(|| self.lock.try_acquire_read(), || self.read())
    }

    /// As [`Names::read_unless_cancelled`], to write.
    pub fn write_unless_cancelled(&self) -> Answer<WriteGuard<'_, ()>> {
        until_cancelled(|| self.lock.try_acquire_write(), || self.write())
    }
}

/// Who cannot be ended by others waits in line.
fn until_cancelled<G>(attempt: impl Fn() -> Option<G>, wait: impl Fn() -> G) -> Answer<G> {
    loop {
        cancel::check()?;
        if !cancel::may_be_ended() {
            return Ok(wait());
        }
        match attempt() {
            Some(guard) => return Ok(guard),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Wakes the thread that looks after a pool.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Bell {
    fn ring(&self) {
        *self.0.acquire() = true;
        self.1.notify_all();
    }

    /// Waits until it is rung, `most` at most.
    fn wait(&self, most: Duration) {
        let rung = self.0.acquire();
        let waited = self.1.wait_timeout_while(rung, most, |rung| !*rung);
        *waited.unwrap_or_else(|e| e.into_inner()).0 = false;
    }
}

/// The mount point of a dataset by its properties.
pub struct Mountpoint {
    /// Absolute path of the mount point.
    pub path: PathBuf,
    /// The `mountpoint` property is set on the dataset itself.
    pub local: bool,
}

/// A pool of the cache file that could not be opened. It stays listed there, and is shown with what
/// its configuration says, until it is imported or exported.
#[derive(Clone)]
pub struct Absent {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Its configuration in the cache file.
    pub config: NvList,
    /// The cache file.
    pub file: PathBuf,
    /// Why.
    pub error: Error,
}

/// What holds for every pool.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Files and folders of the process.
    pub paths: Paths,
    /// Mount options for every dataset of every pool.
    pub mount_options: Vec<String>,
    /// Rules for heartbeats.
    pub multihost: pool::Multihost,
    /// Raw increments are received although it is not known whether they continue the very snapshot they go onto
    /// (`zfs_disable_ivset_guid_check`).
    pub ivsets_unchecked: bool,
}

/// The pools of one process; operations on them take it.
pub struct Admin {
    /// Clock, randomness, threads and disks.
    pub env: Env,
    /// What holds for every pool.
    pub settings: Settings,
    /// Mounts file systems.
    pub door: Arc<dyn Door>,
    /// Threads and devices of the machine.
    pub process: Arc<dyn Process>,
    /// What happened to pools and devices.
    pub events: crate::events::Events,
    /// Pools of the cache file that could not be opened.
    pub(crate) absent: Mutex<Vec<Absent>>,
    pools: Mutex<BTreeMap<String, Arc<PoolEntry>>>,
    /// Pools that this process is responsible for in each cache file, by guid.
    pub(crate) recorded: Mutex<HashMap<PathBuf, HashSet<u64>>>,
    /// Pools let go while transfers were under way.
    pub(crate) abandoned: Mutex<Vec<Abandoned>>,
    pub(crate) claims: crate::claims::Claims,
    /// The process is about to end: no pool comes into service any more.
    ending: AtomicBool,
    /// Serves shares.
    sharer: OnceLock<Arc<dyn Sharer>>,
    smb: OnceLock<Arc<dyn SmbServer>>,
}

impl PoolEntry {
    /// Replays the logs of volumes whose keys are loaded.
    pub fn replay_volumes(&self) {
        for (name, e) in self.pool.replay_volumes() {
            tracing::error!("{name}: {e}");
        }
    }

    /// The mount of the dataset with this object number.
    pub fn mounted(&self, object: u64) -> Option<Arc<Mounted>> {
        self.mounts.acquire().get(&object).cloned()
    }

    /// A snapshot or volume is about to be destroyed, rolled back or to lose its key: nobody reads
    /// it through a `.zfs` any more.
    pub fn close_in_ctldirs(&self, object: u64) {
        for m in self.all_mounts() {
            m.mount.close(object);
        }
    }

    /// Cache file the pool is recorded in.
    pub fn cache_file(&self) -> Option<PathBuf> {
        self.cache_file.acquire().clone()
    }

    /// The right to change the pool, then its gate: the order in which an export takes them.
    ///
    /// Errors: those of [`PoolEntry::right_to_change`] and [`PoolEntry::pass`].
    pub fn pass_to_change(&self) -> Result<(MutexGuard<'_, ()>, ReadGuard<'_, ()>)> {
        Ok((self.right_to_change()?, self.pass()?))
    }

    /// The right to change the pool: one change at a time.
    ///
    /// Errors: stale if the pool is being taken out of service; suspended if somebody else has the right and the pool
    /// waits for its devices, since that change may wait with it; interrupted if the caller has gone away.
    pub fn right_to_change(&self) -> Result<MutexGuard<'_, ()>> {
        loop {
            match self.changes.try_lock() {
                Ok(one) => return Ok(one),
                Err(TryLockError::Poisoned(p)) => return Ok(p.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            if self.is_leaving() {
                return Err(self.exported());
            }
            if let Some(why) = self.pool.suspended() {
                return Err(Error::new(
                    Kind::Suspended,
                    format!("a change of the pool is under way, and its I/O is currently suspended: {why}"),
                ));
            }
            if cancel::is_cancelled() {
                return Err(Error::new(Kind::Interrupted, "the command was cancelled"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn exported(&self) -> Error {
        let name = self.pool.name();
        Error::new(Kind::Stale, format!("pool '{name}' was exported meanwhile"))
    }

    /// Holds the gate open for a request that looks or changes something inside the pool. It must not
    /// be held while anything waits for the caller: the pool could not be exported until he moves.
    ///
    /// Errors: stale if the pool has been taken out of service meanwhile.
    pub fn pass(&self) -> Result<ReadGuard<'_, ()>> {
        self.pass_until(|| false)
    }

    /// The same for a request that an export may be waiting for: it stops trying once it is cancelled.
    ///
    /// Errors: as [`PoolEntry::pass`]; interrupted if the request is cancelled.
    pub fn pass_unless_cancelled(&self) -> Result<ReadGuard<'_, ()>> {
        self.pass_until(cancel::is_cancelled)
    }

    fn pass_until(&self, cancelled: impl Fn() -> bool) -> Result<ReadGuard<'_, ()>> {
        loop {
            // Not to be had during an export, which does not end where devices do not answer.
            let gate = self.gate.try_acquire_read();
            if self.is_leaving() {
                return Err(self.exported());
            }
            match gate {
                Some(gate) => return Ok(gate),
                None if cancelled() => {
                    return Err(Error::new(Kind::Interrupted, "the command was cancelled"))
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Type of a dataset's object set, without opening it.
    pub fn objset_type(&self, ds: &Dataset) -> Result<u64> {
        let phys = ds.phys();
        let types = || self.names.types.acquire();
        if let Some(t) = types().get(&phys.guid) {
            return Ok(*t);
        }
        if phys.bp.is_hole() {
            return Ok(os_type::ZFS);
        }
        // A snapshot is of the kind its head is of. Looking into each of ten thousand would be as many
        // reads. If the head does not tell, the snapshot does.
        let head = match ds.is_snapshot() {
            true => ds.dir().head().ok().filter(|h| !h.phys().bp.is_hole()),
            false => None,
        };
        let of_head = head.and_then(|h| self.objset_type(&h).ok());
        let t = match of_head {
            Some(t) => t,
            None => objset_type_in(&self.pool, ds)?,
        };
        types().insert(phys.guid, t);
        Ok(t)
    }

    /// Until this is dropped, the thread does not wait for locks of a txg that waits for its devices: for
    /// commands that only look, whose answer lacks what they cannot have.
    pub fn unwilling(&self) -> base::sync::Unwilling {
        let pool = self.pool.clone();
        base::sync::unwilling_when(move || pool.is_waiting())
    }

    /// It was let go while transfers were under way ([`crate::pools::abandon`]): nothing of it may be
    /// touched any more.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    /// Whoever looks after the pool is to look now.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Waits until the state of the pool changes, somebody rings or it leaves, `most` at most.
    pub fn wait_for_turn(&self, most: Duration) {
        self.bell.wait(most);
    }

    /// It is out of service.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// It is being exported, destroyed or closed.
    pub fn is_leaving(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// All mounts in the order in which they were made. The other way round they can be unmounted:
    /// only a younger one can be on top of, or below, an older one.
    pub fn all_mounts(&self) -> Vec<Arc<Mounted>> {
        let mut v: Vec<_> = self.mounts.acquire().values().cloned().collect();
        v.sort_by_key(|m| m.sequence);
        v
    }

    /// A mount of which this is true.
    pub fn find_mount(&self, is_it: &dyn Fn(&Mounted) -> bool) -> Option<Arc<Mounted>> {
        let mounts = self.mounts.acquire();
        mounts.values().find(|m| is_it(m)).cloned()
    }

    /// Registers a mount, in place of an older one of the same dataset.
    pub fn add_mount(&self, m: Arc<Mounted>) {
        self.mounts.acquire().insert(m.object, m);
        self.ring();
    }

    /// The mount of a dataset has ended.
    pub fn remove_mount(&self, object: u64) {
        self.mounts.acquire().remove(&object);
    }
}

impl Admin {
    /// Without any pool yet.
    pub fn new(
        env: Env,
        settings: Settings,
        door: Arc<dyn Door>,
        process: Arc<dyn Process>,
    ) -> Arc<Admin> {
        Arc::new(Admin {
            events: crate::events::Events::new(env.clock.clone()),
            env,
            settings,
            door,
            process,
            absent: Mutex::default(),
            abandoned: Mutex::default(),
            pools: Mutex::default(),
            claims: Default::default(),
            ending: AtomicBool::new(false),
            sharer: OnceLock::new(),
            smb: OnceLock::new(),
            recorded: Mutex::default(),
        })
    }

    /// Who serves shares from now on. The first one set stays.
    pub fn set_sharer(&self, sharer: Arc<dyn Sharer>) {
        let _ = self.sharer.set(sharer);
    }

    /// Who serves shares.
    pub fn sharer(&self) -> Option<&Arc<dyn Sharer>> {
        self.sharer.get()
    }

    /// Who serves shares over SMB from now on. The first one set stays.
    pub fn set_smb(&self, smb: Arc<dyn SmbServer>) {
        let _ = self.smb.set(smb);
    }

    /// Who serves shares over SMB.
    pub fn smb(&self) -> Option<&Arc<dyn SmbServer>> {
        self.smb.get()
    }

    /// Has clients see what is shared now.
    ///
    /// # Errors
    /// Why they may not.
    pub fn shares_changed(&self) -> Result<()> {
        let nfs = self.sharer.get().map_or(Ok(()), |s| s.changed());
        let smb = self.smb.get().map_or(Ok(()), |s| s.changed());
        nfs.and(smb)
    }

    /// A mount has come or gone.
    pub fn shares_will_change(&self) {
        if let Some(sharer) = self.sharer.get() {
            sharer.will_change();
        }
        if let Some(smb) = self.smb.get() {
            smb.will_change();
        }
    }

    /// All pools, by name.
    pub fn pools(&self) -> Vec<Arc<PoolEntry>> {
        self.pools.acquire().values().cloned().collect()
    }

    /// The pool of this name.
    pub fn find(&self, name: &str) -> Option<Arc<PoolEntry>> {
        self.pools.acquire().get(name).cloned()
    }

    /// Takes a pool into service: from now on it is listed and its txgs are written.
    ///
    /// Errors: exists, if a pool in service has its name or guid. The pool is closed then.
    pub fn adopt(
        self: &Arc<Self>,
        pool: Arc<Pool>,
        altroot: Option<PathBuf>,
        cache_file: Option<PathBuf>,
        mount_options: Vec<String>,
    ) -> Result<Arc<PoolEntry>> {
        let entry = Arc::new(PoolEntry {
            import_ns: self.env.clock.monotonic_ns(),
            load_guid: self.env.rng.u64() | 1,
            pool,
            altroot,
            cache_file: Mutex::new(cache_file),
            mount_options: [self.settings.mount_options.clone(), mount_options].concat(),
            mounts: Mutex::default(),
            gate: RwLock::new(()),
            names: Default::default(),
            streams: Default::default(),
            volumes: Default::default(),
            comparisons: AtomicU64::new(0),
            users: Default::default(),
            changes: Mutex::default(),
            stop: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            bell: Arc::default(),
        });
        if self.process.waits_for_devices() {
            watch_devices(&entry);
        }
        let admin = Arc::downgrade(self);
        entry.pool.observe(Box::new(move |pool, notice| {
            if let Some(admin) = admin.upgrade() {
                admin.events.notice(pool, notice);
            }
        }));
        let name = entry.pool.name();
        {
            let mut pools = self.pools.acquire();
            let guid = entry.pool.guid();
            if pools
                .values()
                .any(|e| e.pool.name() == name || e.pool.guid() == guid)
            {
                drop(pools);
                let _ = entry.pool.close();
                let text = format!("a pool named '{name}' or with guid {guid} is in service");
                return Err(Error::new(Kind::Exists, text));
            }
            if self.ending.load(Ordering::SeqCst) {
                drop(pools);
                let _ = entry.pool.close();
                return Err(Error::new(Kind::Again, "the daemon is ending"));
            }
            pools.insert(name.clone(), entry.clone());
        }
        let served = self.process.in_service(self, &entry).and_then(|()| {
            entry.pool.set_multihost_rules(self.settings.multihost);
            match entry.pool.is_multihost() {
                true => self.process.beat(&entry),
                false => Ok(()),
            }
        });
        if let Err(e) = served {
            self.dismiss(&entry);
            let _ = entry.pool.close();
            return Err(e);
        }
        // Served by now: whoever waits for devices can be seen and helped.
        entry.replay_volumes();
        self.process.share(self);
        tracing::info!("pool {name} is in service");
        Ok(entry)
    }

    /// A pool is about to be taken out of service: its txgs are no longer written by themselves,
    /// and who comes for something inside it is refused.
    pub fn retire(&self, entry: &PoolEntry) {
        entry.stop.store(true, Ordering::SeqCst);
        entry.bell.ring();
        dmu::Driver::kick(&*entry.pool);
    }

    /// Takes a pool out of service; its mounts must be gone.
    pub fn dismiss(&self, entry: &PoolEntry) {
        self.retire(entry);
        entry.closed.store(true, Ordering::SeqCst);
        let mut pools = self.pools.acquire();
        // Not another one that has the name by now.
        pools.retain(|_, e| !std::ptr::eq(&**e, entry));
        drop(pools);
        self.process.share(self);
    }

    /// The property `mountpoint` in effect: a path with the altroot in front, `none` or `legacy`; and whether it is set on
    /// the dataset itself.
    pub fn effective_mountpoint(&self, entry: &PoolEntry, ds: &Dataset) -> Result<(String, bool)> {
        let roots = values::Roots {
            mounts: &self.settings.paths.mount_root,
            alternate: entry.altroot.as_deref(),
        };
        values::mountpoint(&roots, ds)
    }

    /// Where a file system belongs by its properties: `None` for legacy and none.
    pub fn mountpoint(&self, entry: &PoolEntry, ds: &Dataset) -> Result<Option<Mountpoint>> {
        let (value, local) = self.effective_mountpoint(entry, ds)?;
        Ok(match value.as_str() {
            "none" | "legacy" => None,
            path => Some(Mountpoint {
                path: PathBuf::from(path),
                local,
            }),
        })
    }

    /// Mounts everything of a pool that is to be mounted, parents first; returns what failed.
    pub fn mount_pool(self: &Arc<Self>, entry: &Arc<PoolEntry>) -> Vec<(String, Error)> {
        let mut failed = Vec::new();
        let mut todo: Vec<(PathBuf, Arc<Dataset>)> = Vec::new();
        self.clear_dead_mounts(&entry.pool.name());
        let dsl = entry.pool.dsl();
        let collect = &mut |d: &Arc<dsl::Dir>| {
            if d.phys().head_dataset_obj == 0 {
                return Ok(());
            }
            let ds = d.head()?;
            let files = || !entry.objset_type(&ds).is_ok_and(|t| t == os_type::ZVOL);
            let mounted = entry.mounted(ds.object()).is_some_and(|m| m.is_in_place());
            if values::mountable(&ds)? && !mounted && files() {
                if let Some(place) = self.mountpoint(entry, &ds)? {
                    todo.push((place.path, ds));
                }
            }
            Ok(())
        };
        // What is damaged keeps nobody else from being mounted.
        let lost = &mut |name: &str, e: Error| {
            failed.push((name.to_string(), e));
            Ok(())
        };
        let walk = dsl
            .root()
            .and_then(|root| dsl.walk_past(&root, collect, lost));
        if let Err(e) = walk {
            failed.push((entry.pool.name(), e));
        }
        todo.sort_by(|a, b| a.0.cmp(&b.0));
        let temporary = values::options(&entry.mount_options).unwrap_or_default();
        // Only this thread knows the caller.
        let ended = Arc::new(AtomicBool::new(cancel::is_cancelled()));
        let missing = parallel::Missing::default();
        let done = parallel::run(
            &*self.process,
            &todo,
            |(path, _)| path,
            |(path, ds)| {
                // A log that is being replayed stays where its caller goes away.
                let _ended = cancel::ended_by(ended.clone());
                let _asking = base::cancel::asking(cancel::is_cancelled);
                let done = base::cancel::check()
                    .and_then(|()| missing.must_not_be_above(path))
                    .and_then(|()| self.mount_default(entry, ds, temporary.clone(), false, None))
                    .inspect_err(|e| missing.note(path, ds.full_name(), e));
                if cancel::is_cancelled() {
                    ended.store(true, Ordering::Relaxed);
                }
                done.map_err(|e| (ds.full_name(), e))
            },
        );
        failed.extend(done.into_iter().filter_map(|r| r.err()));
        failed
    }

    /// Takes away what a process that died left mounted of a pool: nobody answers there any more.
    fn clear_dead_mounts(&self, pool: &str) {
        self.door.clear_dead(&|source, _| {
            source
                .strip_prefix(pool)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    }

    /// Orderly end: everything unmounted and written; pools stay recorded in their cache files.
    pub fn shutdown(&self) {
        self.ending.store(true, Ordering::SeqCst);
        while let Some(e) = self.pools().pop() {
            // The daemon is asked to end: it does not wait for devices any more.
            e.pool.give_up_waiting();
            if let Err(err) = e.volumes.cut_off(&|_| true) {
                tracing::error!("pool {}: {err}", e.pool.name());
            }
            let mut list = e.all_mounts();
            list.reverse();
            let done = parallel::run(
                &*self.process,
                &list,
                |m| &m.path,
                |m| {
                    let done = self.unmount_first(&e, m, false);
                    done.or_else(|_| self.unmount_first(&e, m, true))
                },
            );
            let mut dirs = Vec::new();
            for d in done {
                match d {
                    Ok(dir) => dirs.extend(dir),
                    Err(err) => tracing::error!("{err}"),
                }
            }
            self.door.remove_dirs(dirs);
            self.dismiss(&e);
            if let Err(err) = e.pool.close() {
                tracing::error!("pool {}: {err}", e.pool.name());
            }
        }
    }
}

/// From now on a txg that the devices of a pool refuse waits for them, and the log tells of it.
fn watch_devices(entry: &PoolEntry) {
    let (name, bell) = (entry.pool.name(), entry.bell.clone());
    entry.pool.wait_for_devices(Box::new(move |turn| {
        match turn {
            pool::Turn::Waits(why) => tracing::error!("pool {name} is suspended, since its devices cannot be written: {why}. Nothing is lost \
                 so far; it goes on when they can be, at once after 'zpool clear {name}'"),
            pool::Turn::Resumed => {
                tracing::info!("pool {name} goes on: its devices can be written again");
            }
            pool::Turn::Stopped(why) => tracing::error!("pool {name} is stopped: {why}. What the last transaction group on its devices lacks \
                 is lost; see 'zpool status {name}'"),
        }
        bell.ring();
    }));
}

/// The same, of a pool, asking its cache of blocks each time.
pub fn objset_type_in(pool: &Pool, ds: &Dataset) -> Result<u64> {
    match ds.phys().bp {
        bp if bp.is_hole() => Ok(os_type::ZFS),
        bp => Ok(read_objset(pool, ds, &bp)?.os_type),
    }
}

/// The block a dataset begins with. The pool goes on meanwhile: the block may be replaced and, much
/// later, overwritten, so a failure is tried again with the pointer of then.
fn read_objset(pool: &Pool, ds: &Dataset, bp: &BlkPtr) -> Result<disk::objset::ObjsetPhys> {
    let read = |bp: &BlkPtr| {
        let block = pool.zio().read(bp)?;
        disk::objset::ObjsetPhys::decode(&block)
    };
    read(bp).or_else(|e| match ds.phys().bp {
        now if now == *bp => Err(e),
        now => read(&now),
    })
}
