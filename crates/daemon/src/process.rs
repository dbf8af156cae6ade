//! The trait `Process` of `admin` implemented by the daemon: threads that write txgs, watch devices and mounts,
//! and write heartbeats; shares of memory; the machine's devices.

use crate::dirty::Dirty;
use crate::health_watch::HealthWatch;
use crate::{budget, door};
use admin::pools::agent::Agent;
use admin::{Admin, DeviceUse, PoolEntry, Process};
use base::sync::MutexExt;
use base::{Error, Kind, Result};
use env_linux::{find, inuse};
use fuse_zpl::Caching;
use pool::Tunables;
use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a txg is written when there is something to write.
const TXG_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest sleep between two looks at whether a command or pool is still there.
/// How often cache devices are written.
const CACHE_EVERY: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);
/// Jobs that mostly wait, at a time.
const TOGETHER: usize = 8;
/// How long a pool may wait for its devices while the daemon starts.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// The daemon.
pub struct Threads {
    /// Memory of everything, bytes.
    ceiling: u64,
    /// What the kernel may cache.
    caching: Caching,
    /// Pools whose heartbeats are written, by [`PoolEntry::load_guid`].
    beating: Mutex<Vec<u64>>,
}

/// Sleeps; `false` as soon as `stop` says so.
fn sleep(time: Duration, stop: &dyn Fn() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if stop() {
            return false;
        }
        match time.checked_sub(begin.elapsed()) {
            Some(left) if !left.is_zero() => std::thread::sleep(left.min(TICK)),
            _ => return true,
        }
    }
}

impl Threads {
    /// `ceiling`: bytes the daemon may hold.
    pub fn new(ceiling: u64, caching: Caching) -> Arc<Threads> {
        Arc::new(Threads {
            ceiling,
            caching,
            beating: Mutex::default(),
        })
    }
}

impl Process for Threads {
    fn in_service(&self, admin: &Arc<Admin>, entry: &Arc<PoolEntry>) -> Result<()> {
        let name = entry.pool.name();
        let e2 = entry.clone();
        std::thread::Builder::new()
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
                    // There is less room now, or more.
                    e2.ring();
                }
            })?;
        let e4 = entry.clone();
        std::thread::Builder::new()
            .name(format!("l2arc {name}"))
            .spawn(move || {
                while sleep(CACHE_EVERY, &|| e4.is_leaving()) {
                    e4.pool.feed_caches();
                }
            })?;
        let (e3, ceiling) = (entry.clone(), self.ceiling);
        // Not to keep it alive: it is over when the pools are.
        let admin = Arc::downgrade(admin);
        std::thread::Builder::new()
            .name(format!("care {name}"))
            .spawn(move || {
                // Apart from the thread that syncs, which may wait for devices.
                let mut health = HealthWatch::new(&e3);
                let mut dirty = Dirty::default();
                let mut agent = Agent::default();
                while !e3.is_leaving() {
                    e3.wait_for_turn(TXG_TIMEOUT);
                    if let Some(admin) = admin.upgrade() {
                        agent.look(&admin, &e3);
                    }
                    health.look(&e3);
                    dirty.look(&e3, ceiling);
                    for m in e3.all_mounts() {
                        if let Some(m) = door::parts(&m) {
                            m.ctl.expire();
                        }
                    }
                }
            })?;
        Ok(())
    }

    fn waits_for_devices(&self) -> bool {
        true
    }

    fn beat(&self, entry: &Arc<PoolEntry>) -> Result<()> {
        let mut beating = self.beating.acquire();
        if beating.contains(&entry.load_guid) {
            return Ok(());
        }
        let job = |name: &str, work: fn(&pool::Pool) -> Duration| {
            let entry = entry.clone();
            std::thread::Builder::new()
                .name(format!("{name} {}", entry.pool.name()))
                .spawn(move || while sleep(work(&entry.pool), &|| entry.is_closed()) {})
        };
        job("mmp", pool::Pool::heartbeat)?;
        job("mmp watch", pool::Pool::watch_heartbeat)?;
        beating.push(entry.load_guid);
        Ok(())
    }

    fn share(&self, admin: &Admin) {
        let pools = admin.pools();
        let there = |load: &u64| pools.iter().any(|e| e.load_guid == *load);
        self.beating.acquire().retain(there);
        for e in &pools {
            let share = budget::tunables(self.ceiling, pools.len());
            e.pool.set_memory(share);
            // File data are in the kernel's cache, if it may have one.
            e.pool.keep_streams(self.caching.direct);
            e.pool.read_ahead(!self.caching.no_ahead);
        }
    }

    fn tunables(&self) -> Tunables {
        budget::tunables(self.ceiling, 1)
    }

    fn spawn(&self, name: &str, job: Box<dyn FnOnce() + Send>) -> Result<()> {
        std::thread::Builder::new().name(name.into()).spawn(job)?;
        Ok(())
    }

    fn together(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                n if n < jobs => job(n),
                _ => return,
            }
        };
        std::thread::scope(|s| {
            for _ in 1..TOGETHER.min(jobs) {
                // Without another thread this one does it all.
                if std::thread::Builder::new().spawn_scoped(s, work).is_err() {
                    break;
                }
            }
            work();
        });
    }

    fn pause(&self, time: Duration, stop: &dyn Fn() -> bool) -> bool {
        sleep(time, stop)
    }

    fn user(&self) -> (u32, u32) {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        (user.as_raw(), group.as_raw())
    }

    fn account(&self, uid: u32) -> u32 {
        control::accounts::account(uid)
    }

    fn date(&self, seconds: u64) -> String {
        cli::time::ctime(seconds, &cli::time::zone())
    }

    fn command(&self, pid: i32) -> Option<String> {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(name.trim_end().to_string())
    }

    fn no_dumps(&self) {
        use rustix::process::{set_dumpable_behavior, DumpableBehavior};
        if let Err(e) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            let why = base::io_text(&e.into());
            crate::log::warn(&format!("core dumps may contain keys: {why}"));
        }
    }

    fn devices(&self, folder: Option<&str>) -> Result<Vec<String>> {
        match folder {
            Some(folder) => find::candidates(folder),
            None => Ok(find::default_candidates()),
        }
    }

    fn named_device(&self, path: &str) {
        env_linux::remote::allow(path);
    }

    fn identity(&self, path: &str) -> Option<(bool, u64, u64)> {
        if base::is_network_device(path) {
            // No device of this machine has the number. What is no address is refused when it is opened.
            return Some((
                true,
                u64::MAX,
                env_linux::remote::identity(path).unwrap_or_default(),
            ));
        }
        let whole = |_| std::fs::metadata(env_linux::part::split(path).map_or(path, |p| p.0));
        let meta = std::fs::metadata(path).or_else(whole).ok()?;
        Some(if meta.file_type().is_block_device() {
            (true, meta.rdev(), 0)
        } else {
            (false, meta.dev(), meta.ino())
        })
    }

    fn is_held(&self, path: &str) -> bool {
        inuse::is_held(path)
    }

    fn device_use(&self, path: &str) -> Result<DeviceUse> {
        self.named_device(path);
        let found = inuse::check(path)?;
        if let Some(at) = &found.mounted {
            return Ok(DeviceUse::Fatal(format!(
                "{path} is in use and is mounted at '{at}'"
            )));
        }
        if found.swap {
            return Ok(DeviceUse::Fatal(format!("{path} is in use as swap space")));
        }
        if !found.holders.is_empty() {
            return Ok(DeviceUse::Fatal(format!(
                "{path} is in use by {}",
                found.holders.join(", ")
            )));
        }
        if found.busy {
            return Ok(DeviceUse::Fatal(format!(
                "{path} is in use: device or resource busy"
            )));
        }
        Ok(match found.signature {
            None => DeviceUse::Free,
            Some(inuse::Signature::Zfs) => DeviceUse::Labels,
            Some(s) if s.is_table() => {
                DeviceUse::Overridable(format!("{path} contains a partition table ({})", s.name()))
            }
            Some(inuse::Signature::Swap) => {
                DeviceUse::Overridable(format!("{path} contains swap space"))
            }
            Some(s) => DeviceUse::Overridable(format!(
                "{path} is in use and contains a {} filesystem",
                s.name()
            )),
        })
    }
}

/// While the daemon starts nobody can reach it: a pool that waits for its devices then is stopped
/// after a moment, so that the others come into service and commands are answered. What its log has
/// stays there for the next import.
pub struct Starting(Arc<AtomicBool>);

impl Starting {
    pub fn watch(admin: &Arc<Admin>) -> Starting {
        let on = Arc::new(AtomicBool::new(true));
        let (watched, admin) = (on.clone(), admin.clone());
        let watch = move || {
            let mut since: HashMap<u64, Instant> = HashMap::new();
            while watched.load(Ordering::SeqCst) {
                for e in admin.pools() {
                    let guid = e.pool.guid();
                    if !e.pool.is_waiting() {
                        since.remove(&guid);
                    } else if since.entry(guid).or_insert_with(Instant::now).elapsed()
                        > START_PATIENCE
                    {
                        e.pool.stop_for_good(Error::new(
                            Kind::Io,
                            "its devices could not be written when the daemon started",
                        ));
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        let thread = std::thread::Builder::new().name("starting".into());
        if let Err(e) = thread.spawn(watch) {
            let why = base::io_text(&e);
            crate::log::warn(&format!("no thread to watch the start: {why}"));
        }
        Starting(on)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_wait_for_each_other_end() {
        let threads = Threads::new(64 << 20, Caching::default());
        let inside = AtomicUsize::new(0);
        threads.together(3, &|n| {
            // Each waits until all three are there: alone none would ever see the others.
            inside.fetch_add(1, Ordering::SeqCst);
            let begin = Instant::now();
            while inside.load(Ordering::SeqCst) < 3 {
                assert!(begin.elapsed() < Duration::from_secs(60), "{n} is alone");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(inside.load(Ordering::SeqCst), 3);
    }
}
