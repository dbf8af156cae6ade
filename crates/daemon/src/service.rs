//! The state of the daemon: imported pools, their mounts, the cache file, the threads that ask for
//! groups to be written.

use crate::cache::Absent;
use crate::mounts::Mounted;
use crate::{values, waves};
use base::sync::{MutexExt, RwLockExt};
use base::{Error, Kind, Result};
use dsl::Dataset;
use env::Env;
use fuse::{Transport, Unmount};
use fuse_zpl::Caching;
use pool::{Pool, Tunables};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard};
use std::time::Duration;

/// How often a group is written when there is something to write.
const TXG_TIMEOUT: Duration = Duration::from_secs(5);

/// Where things are.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Pools to import at start.
    pub cache_file: PathBuf,
    /// Mount points of pools whose `mountpoint` is the default begin here: `/` for root.
    pub mount_root: PathBuf,
}

/// Whether mounts may be opened to users other than their owner: always for root, for the others if
/// /etc/fuse.conf says `user_allow_other`.
pub fn others_allowed() -> bool {
    rustix::process::geteuid().is_root()
        || std::fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|t| t.lines().any(|l| l.trim() == "user_allow_other"))
}

/// One imported pool.
pub struct Entry {
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
    pub names: crate::datasets::Names,
    /// Clearing, upgrading, export and destruction of the pool happen one at a time.
    pub changes: Mutex<()>,
    stop: AtomicBool,
    closed: AtomicBool,
    abandoned: AtomicBool,
    /// The threads of [`crate::activity`] run.
    pub(crate) beating: AtomicBool,
    /// Rung when the state of the pool changes; [`Service::adopt`].
    bell: Arc<Bell>,
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

/// Where a dataset belongs.
pub struct Place {
    pub path: PathBuf,
    /// The `mountpoint` property is set on the dataset itself.
    pub local: bool,
}

pub struct Service {
    pub env: Env,
    pub paths: Paths,
    /// Memory of everything, bytes.
    pub ceiling: u64,
    /// For a pool about to be opened; [`crate::budget::share`] takes it back to its share.
    pub tunables: Tunables,
    /// Mount options for every dataset of every pool.
    pub mount_options: Vec<String>,
    /// What the kernel may cache.
    pub caching: Caching,
    /// How the kernel's requests come.
    pub transport: Transport,
    /// Rules for heartbeats.
    pub multihost: pool::Multihost,
    /// Pools of the cache file that could not be opened.
    pub absent: Mutex<Vec<Absent>>,
    pools: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// Pools that this daemon is responsible for in each cache file, by guid.
    pub(crate) recorded: Mutex<HashMap<PathBuf, HashSet<u64>>>,
    /// Pools let go while transfers were under way.
    pub(crate) abandoned: Mutex<Vec<crate::letgo::Abandoned>>,
    pub(crate) claims: crate::claims::Claims,
    /// The daemon is about to end: no pool comes into service any more.
    ending: AtomicBool,
}

impl Entry {
    /// Replays the logs of volumes whose keys are loaded.
    pub fn replay_volumes(&self) {
        for (name, e) in self.pool.replay_volumes() {
            crate::log::error(&format!("{name}: {e}"));
        }
    }

    pub fn mounted(&self, object: u64) -> Option<Arc<Mounted>> {
        self.mounts.acquire().get(&object).cloned()
    }

    /// A snapshot or volume is about to be destroyed, rolled back or to lose its key: nobody reads
    /// it through a `.zfs` any more.
    pub fn close_in_ctldirs(&self, object: u64) {
        for m in self.all_mounts() {
            m.ctl.close(object);
        }
    }

    /// Cache file the pool is recorded in.
    pub fn cache_file(&self) -> Option<PathBuf> {
        self.cache_file.acquire().clone()
    }

    /// Holds the gate open for a request that looks or changes something inside the pool. It must not
    /// be held while anything waits for the caller: the pool could not be exported until he moves.
    ///
    /// Errors: stale if the pool has been taken out of service meanwhile.
    pub fn pass(&self) -> Result<RwLockReadGuard<'_, ()>> {
        loop {
            // Not to be had during an export, which does not end where devices do not answer.
            let gate = self.gate.try_acquire_read();
            if self.is_leaving() {
                return Err(Error::new(
                    Kind::Stale,
                    format!("pool '{}' was exported meanwhile", self.pool.name()),
                ));
            }
            match gate {
                Some(gate) => return Ok(gate),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// It was let go while transfers were under way ([`crate::letgo`]): nothing of it may be
    /// touched any more.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
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

    pub(crate) fn add_mount(&self, m: Arc<Mounted>) {
        self.mounts.acquire().insert(m.object, m);
    }

    pub(crate) fn remove_mount(&self, object: u64) {
        self.mounts.acquire().remove(&object);
    }
}

impl Service {
    pub fn new(
        env: Env,
        paths: Paths,
        ceiling: u64,
        mount_options: Vec<String>,
        caching: Caching,
        transport: Transport,
        multihost: pool::Multihost,
    ) -> Arc<Service> {
        Arc::new(Service {
            env,
            paths,
            ceiling,
            tunables: crate::budget::tunables(ceiling, 1),
            mount_options,
            caching,
            transport,
            multihost,
            absent: Mutex::default(),
            abandoned: Mutex::default(),
            pools: Mutex::default(),
            claims: Default::default(),
            ending: AtomicBool::new(false),
            recorded: Mutex::default(),
        })
    }

    /// All pools, by name.
    pub fn pools(&self) -> Vec<Arc<Entry>> {
        self.pools.acquire().values().cloned().collect()
    }

    pub fn find(&self, name: &str) -> Option<Arc<Entry>> {
        self.pools.acquire().get(name).cloned()
    }

    /// Takes a pool into service: from now on it is listed and its groups are written.
    ///
    /// Errors: exists, if a pool in service has its name or guid. The pool is closed then.
    pub fn adopt(
        self: &Arc<Self>,
        pool: Arc<Pool>,
        altroot: Option<PathBuf>,
        cache_file: Option<PathBuf>,
        mount_options: Vec<String>,
    ) -> Result<Arc<Entry>> {
        let entry = Arc::new(Entry {
            import_ns: self.env.clock.monotonic_ns(),
            load_guid: self.env.rng.u64() | 1,
            pool,
            altroot,
            cache_file: Mutex::new(cache_file),
            mount_options: [self.mount_options.clone(), mount_options].concat(),
            mounts: Mutex::default(),
            gate: RwLock::new(()),
            names: Default::default(),
            changes: Mutex::default(),
            stop: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            beating: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            bell: Arc::default(),
        });
        watch_devices(&entry);
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
        let e2 = entry.clone();
        let ceiling = self.ceiling;
        let started = std::thread::Builder::new()
            .name(format!("txg {name}"))
            .spawn(move || {
                let pool = &e2.pool;
                let serving = pool.serve();
                while !e2.is_leaving() {
                    let work = pool.wait_for_work(TXG_TIMEOUT);
                    if !work || e2.is_leaving() {
                        continue;
                    }
                    if serving.sync().is_err() {
                        // The pool is stopped, and told it: this thread has nothing to do any more.
                        return;
                    }
                }
            });
        let e3 = entry.clone();
        let care = std::thread::Builder::new().name(format!("care {name}"));
        let care = move || {
            care.spawn(move || {
                // Apart from the thread that syncs, which may wait for devices.
                let mut alert = crate::alert::Alert::new(&e3);
                let mut dirty = crate::dirty::Dirty::default();
                while !e3.is_leaving() {
                    e3.bell.wait(TXG_TIMEOUT);
                    alert.look(&e3);
                    dirty.look(&e3, ceiling);
                    for m in e3.all_mounts() {
                        m.ctl.expire();
                    }
                }
            })
        };
        if let Err(e) = started.and_then(|_| care()) {
            self.dismiss(&entry);
            let _ = entry.pool.close();
            return Err(e.into());
        }
        entry.pool.set_multihost_rules(self.multihost);
        if let Err(e) = crate::activity::start(&entry) {
            self.dismiss(&entry);
            let _ = entry.pool.close();
            return Err(e);
        }
        // Served by now: whoever waits for devices can be seen and helped.
        entry.replay_volumes();
        crate::budget::share(self);
        crate::log::info(&format!("pool {name} is in service"));
        Ok(entry)
    }

    /// A pool is about to be taken out of service: its groups are no longer written by themselves,
    /// and who comes for something inside it is refused.
    pub fn retire(&self, entry: &Entry) {
        entry.stop.store(true, Ordering::SeqCst);
        entry.bell.ring();
        dmu::Driver::kick(&*entry.pool);
    }

    /// Takes a pool out of service; its mounts must be gone.
    pub fn dismiss(&self, entry: &Entry) {
        self.retire(entry);
        entry.closed.store(true, Ordering::SeqCst);
        let mut pools = self.pools.acquire();
        // Not another one that has the name by now.
        pools.retain(|_, e| !std::ptr::eq(&**e, entry));
        drop(pools);
        crate::budget::share(self);
    }

    /// Where a file system belongs by its properties: `None` for legacy and none.
    pub fn mountpoint(&self, entry: &Entry, ds: &Dataset) -> Result<Option<Place>> {
        let (value, local) = values::mountpoint(self, entry, ds)?;
        Ok(match value.as_str() {
            "none" | "legacy" => None,
            path => Some(Place {
                path: PathBuf::from(path),
                local,
            }),
        })
    }

    /// Mounts everything of a pool that is to be mounted, parents first; returns what failed.
    pub fn mount_pool(self: &Arc<Self>, entry: &Arc<Entry>) -> Vec<(String, Error)> {
        let mut failed = Vec::new();
        let mut todo: Vec<(PathBuf, Arc<Dataset>)> = Vec::new();
        clear_dead_mounts(&entry.pool.name());
        let dsl = &entry.pool.dsl;
        let walk = dsl.root().and_then(|root| {
            dsl.walk(&root, &mut |d| {
                if d.phys().head_dataset_obj == 0 {
                    return Ok(());
                }
                let ds = d.head()?;
                let files = || {
                    !crate::datasets::objset_type(entry, &ds)
                        .is_ok_and(|t| t == disk::os_type::ZVOL)
                };
                let mounted = entry.mounted(ds.object()).is_some_and(|m| m.is_in_place());
                if values::mountable(&ds)? && !mounted && files() {
                    if let Some(place) = self.mountpoint(entry, &ds)? {
                        todo.push((place.path, ds));
                    }
                }
                Ok(())
            })
        });
        if let Err(e) = walk {
            failed.push((entry.pool.name(), e));
        }
        todo.sort_by(|a, b| a.0.cmp(&b.0));
        let temporary = values::options(&entry.mount_options).unwrap_or_default();
        let done = waves::run(
            &todo,
            |(path, _)| path,
            |(_, ds)| {
                let done = self.mount_default(entry, ds, temporary.clone(), false);
                done.map_err(|e| (ds.full_name(), e))
            },
        );
        failed.extend(done.into_iter().filter_map(|r| r.err()));
        failed
    }

    /// Orderly end: everything unmounted and written; pools stay recorded in their cache files.
    pub fn shutdown(&self) {
        self.ending.store(true, Ordering::SeqCst);
        while let Some(e) = self.pools().pop() {
            // The daemon is asked to end: it does not wait for devices any more.
            e.pool.give_up_waiting();
            let mut list = e.all_mounts();
            list.reverse();
            let done = waves::run(
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
                    Err(err) => crate::log::error(&err.to_string()),
                }
            }
            crate::mounts::remove_dirs(dirs);
            self.dismiss(&e);
            if let Err(err) = e.pool.close() {
                crate::log::error(&format!("pool {}: {err}", e.pool.name()));
            }
        }
    }
}

/// From now on a txg that the devices of a pool refuse waits for them, and the log tells of it.
fn watch_devices(entry: &Entry) {
    let (name, bell) = (entry.pool.name(), entry.bell.clone());
    entry.pool.wait_for_devices(Box::new(move |turn| {
        match turn {
            pool::Turn::Waits(why) => crate::log::error(&format!(
                "pool {name} is suspended, since its devices cannot be written: {why}. Nothing is lost \
                 so far; it goes on when they can be, at once after 'zpool clear {name}'"
            )),
            pool::Turn::Resumed => {
                crate::log::info(&format!("pool {name} goes on: its devices can be written again"));
            }
            pool::Turn::Stopped(why) => crate::log::error(&format!(
                "pool {name} is stopped: {why}. What the last transaction group on its devices lacks \
                 is lost; see 'zpool status {name}'"
            )),
        }
        bell.ring();
    }));
}

/// Takes away what a daemon that died left mounted of a pool: nobody answers there any more.
fn clear_dead_mounts(pool: &str) {
    clear_dead(|source, _| {
        source
            .strip_prefix(pool)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
}

/// Takes away mounts without a daemon, the youngest first; how many they were. `which` is given the
/// source (`pool/dataset`) and the place.
pub fn clear_dead(which: impl Fn(&str, &Path) -> bool) -> usize {
    let mut cleared = 0;
    for info in fuse::mounted("zfs").unwrap_or_default().iter().rev() {
        if !which(&info.source.to_string_lossy(), &info.path) || !is_dead(info.path.clone()) {
            continue;
        }
        match fuse::Mount::found(info).unmount(Unmount::Lazy) {
            Ok(()) => cleared += 1,
            Err(e) => crate::log::warn(&format!("{e}")),
        }
    }
    cleared
}

/// Whether the kernel says that a mount has no daemon. One that merely does not answer in time is
/// taken to be alive.
fn is_dead(path: PathBuf) -> bool {
    let (send, receive) = std::sync::mpsc::channel();
    let asked = std::thread::Builder::new().spawn(move || {
        let dead = matches!(rustix::fs::statfs(&path), Err(rustix::io::Errno::NOTCONN));
        let _ = send.send(dead);
    });
    asked.is_ok()
        && receive
            .recv_timeout(Duration::from_secs(2))
            .unwrap_or(false)
}
