//! The cache file: the pools to import at the next start, and those of them that could not be opened.

use crate::activity::{self, is_foreign, Verdict};
use crate::events::{Load, EREPORT};
use crate::registry::{Absent, Admin, PoolEntry};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use disk::{NvList, Value};
use pool::{OpenOptions, Pool};
use privilege::Replacing;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use vdev::keys::{self, pool as key};

/// Reads a cache file: configurations by name.
pub fn read(file: &Path) -> Result<NvList> {
    NvList::unpack(&std::fs::read(file)?)
}

/// Devices a configuration names.
pub fn device_paths(config: &NvList) -> Vec<String> {
    fn walk(vdev: &NvList, depth: usize, out: &mut Vec<String>) {
        // Deeper nesting than any pool has.
        if depth > 8 {
            return;
        }
        if let Some(p) = vdev.get_str(keys::PATH) {
            if !out.iter().any(|o| o == p) {
                out.push(p.into());
            }
        }
        for c in vdev.get_nvlist_array(keys::CHILDREN).unwrap_or(&[]) {
            walk(c, depth + 1, out);
        }
    }
    let mut out = Vec::new();
    if let Some(tree) = config.get_nvlist(key::VDEV_TREE) {
        walk(tree, 0, &mut out);
    }
    out
}

/// Keeps other daemons from changing cache files in a directory, until dropped. The lock is a file that
/// only the owner can open: what others can open they can lock, too.
///
/// Errors: busy, if somebody else has it for ten seconds.
fn lock_dir(dir: &Path) -> Result<std::os::fd::OwnedFd> {
    use rustix::fs::{flock, FlockOperation};
    const NAME: &str = ".zpool.cache.lock";
    let path = dir.join(NAME);
    let file = privilege::acts().open_lock(dir, NAME)?;
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                bail!(Busy, "another daemon holds {}", path.display())
            }
            Err(e) => return Err(std::io::Error::from(e).into()),
        }
    }
}

impl Admin {
    /// Pools of the cache file that could not be opened, locked.
    pub fn absent(&self) -> MutexGuard<'_, Vec<Absent>> {
        self.absent.acquire()
    }

    /// Forgets a pool that could not be opened; returns the cache file it is listed in.
    pub fn forget_absent(&self, guid: u64) -> Option<PathBuf> {
        let mut list = self.absent();
        let at = list.iter().position(|a| a.guid == guid)?;
        Some(list.remove(at).file)
    }

    /// Writes the list of pools that belong into `file`. Several daemons may share the file: each takes
    /// away what it put there (or found there at its start) and leaves the rest.
    pub fn write_cache(&self, file: &Path) -> Result<()> {
        let dir = match file.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let _locked = lock_dir(dir)?;
        let mut recorded = self.recorded.acquire();
        let ours = recorded.entry(file.to_path_buf()).or_default();
        let before = match read(file) {
            Ok(list) => list,
            Err(e) if e.kind == Kind::NotFound => NvList::new(),
            // Nobody can make use of it.
            Err(e) => {
                tracing::warn!("cache file {}: {e}", file.display());
                NvList::new()
            }
        };
        let guid_of = |config: &NvList| config.get_u64(key::POOL_GUID).unwrap_or(0);
        let absent: Vec<u64> = self.absent().iter().map(|a| a.guid).collect();
        let mut list = NvList::new();
        for (name, _) in before.iter() {
            let Some(config) = before.get_nvlist(name) else {
                continue;
            };
            // One that could not be opened here stays as it is, unless another daemon took it out.
            let guid = guid_of(config);
            if !ours.contains(&guid) || absent.contains(&guid) {
                list.set(name, Value::NvList(config.clone()));
            }
        }
        ours.retain(|guid| absent.contains(guid));
        for e in self.pools() {
            if e.cache_file().as_deref() == Some(file) {
                let c = e.pool.full_config(0, e.pool.synced_txg(), false);
                // By another name, say.
                let same = |name: &&str| {
                    list.get_nvlist(name)
                        .is_some_and(|c| guid_of(c) == e.pool.guid())
                };
                let old: Vec<String> = list
                    .iter()
                    .map(|(name, _)| name)
                    .filter(same)
                    .map(str::to_string)
                    .collect();
                for name in old {
                    list.remove(&name);
                }
                list.set(&e.pool.name(), Value::NvList(c));
                ours.insert(e.pool.guid());
            }
        }
        drop(recorded);
        if list.is_empty() {
            return match privilege::acts().remove_file(file) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
                _ => Ok(()),
            };
        }
        // Never half a file: a new one takes the place of the old.
        let how = Replacing {
            meanwhile: &file.with_extension("tmp"),
            mode: None,
            durable: true,
        };
        Ok(privilege::acts().replace_file(file, &list.pack_xdr(), how)?)
    }

    /// Rewrites a cache file; that it fails is logged and no reason to fail what was done.
    pub fn rewrite_cache(&self, file: Option<PathBuf>) -> bool {
        let Some(file) = file else {
            return true;
        };
        let written = self.write_cache(&file);
        if let Err(e) = &written {
            tracing::warn!("cache file {}: {e}", file.display());
        }
        written.is_ok()
    }

    /// The configuration of a pool changed: rewrites the cache file it is recorded in, and tells it.
    pub fn update_cache(&self, entry: &PoolEntry) {
        self.events.pool(&entry.pool, "config_sync");
        if !self.rewrite_cache(entry.cache_file()) {
            let (events, pool) = (&self.events, &entry.pool);
            events.post(EREPORT, "config_cache_write", pool, Vec::new());
        }
    }

    /// Imports and mounts what the cache file lists. Failures are logged, not fatal.
    pub fn import_cached(self: &Arc<Self>) {
        let file = self.settings.paths.cache_file.clone();
        let list = match read(&file) {
            Ok(l) => l,
            Err(e) if e.kind == Kind::NotFound => return,
            Err(e) => {
                tracing::warn!("cache file {}: {e}", file.display());
                return;
            }
        };
        let mut gone = false;
        for (name, _) in list.iter() {
            let Some(config) = list.get_nvlist(name) else {
                continue;
            };
            let guid = config.get_u64(key::POOL_GUID).unwrap_or(0);
            self.recorded
                .acquire()
                .entry(file.clone())
                .or_default()
                .insert(guid);
            let opened = self
                .open_cached(name, config)
                .and_then(|pool| self.adopt(pool, None, Some(file.clone()), Vec::new()));
            match opened {
                Ok(entry) => {
                    for (ds, e) in self.mount_pool(&entry) {
                        tracing::warn!("{ds}: {e}");
                    }
                }
                Err(e) if e.kind == Kind::NotFound => {
                    tracing::warn!("{e}");
                    gone = true;
                }
                Err(error) => {
                    tracing::error!("{error}");
                    self.events.load_failed("zpool", name, guid, Load::Open);
                    self.absent().push(Absent {
                        name: name.to_string(),
                        guid: config.get_u64(key::POOL_GUID).unwrap_or(0),
                        config: config.clone(),
                        file: file.clone(),
                        error,
                    });
                }
            }
        }
        if gone {
            self.rewrite_cache(Some(file));
        }
    }

    /// Opens a pool of the cache file: with what the labels on its devices say now, wherever these
    /// are.
    fn open_cached(&self, name: &str, config: &NvList) -> Result<Arc<Pool>> {
        let guid = config.get_u64(key::POOL_GUID).unwrap_or(0);
        let mut paths = device_paths(config);
        paths.iter().for_each(|p| self.process.named_device(p));
        let search = |paths: &[String]| {
            vdev::discover(&self.env, paths)
                .pools
                .into_iter()
                .find(|p| p.guid == guid)
        };
        let mut found = search(&paths);
        if found.as_ref().is_none_or(|f| !f.problems.is_empty()) {
            // Names of devices change from one start to the next.
            for p in self.process.devices(None).unwrap_or_default() {
                if !paths.contains(&p) {
                    paths.push(p);
                }
            }
            found = search(&paths);
        }
        let Some(found) = found else {
            bail!(
                NoDevice,
                "cannot import '{name}': none of its devices was found"
            );
        };
        match found.state {
            key::STATE_EXPORTED | key::STATE_DESTROYED => bail!(
                NotFound,
                "cannot import '{name}': it was exported or destroyed meanwhile"
            ),
            // Labels without host id are those of a system that had none: most likely this one.
            _ if found.hostid != 0 && is_foreign(self, &found) => bail!(
                Busy,
                "cannot import '{name}': it was last used by another system; \
                 use 'zpool import -f' if that no longer uses it"
            ),
            _ => {}
        }
        // What another pool has is not this one's name, whatever its labels say by now.
        disk::names::check_pool(&found.name, false)
            .map_err(|why| Error::new(Kind::Invalid, format!("cannot import '{name}': {why}")))?;
        let context = |e: Error| Error::new(e.kind, format!("cannot import '{name}': {e}"));
        let checked = activity::check(self, &found, true, &|| false).map_err(context)?;
        let activity = match checked {
            Verdict::Free(activity) => activity,
            Verdict::Refused(why) => {
                let refusal = activity::refusal(name, &found, why);
                bail!(Busy, "{}", refusal.message);
            }
        };
        let opts = OpenOptions {
            activity,
            multihost: self.settings.multihost,
            tunables: self.process.tunables(),
            // A temporary name ends with the daemon; one in the cache file is the pool's own.
            ..OpenOptions::default()
        };
        Pool::open(self.env.clone(), &found.config, opts)
    }
}
