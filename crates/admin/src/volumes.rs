//! Volumes in service: those that clients of some door have open. A volume is opened for its first client, shared by all, and closed
//! with the last one.
//!
//! 1. A volume with clients is busy: it is not destroyed, its key not unloaded, and its pool not exported, unless that is forced. Then
//!    its clients are cut off first.
//! 2. It goes on under its clients through renames, snapshots, rollbacks, received streams and a new size ([`Volumes::change`]).

use crate::registry::{Admin, PoolEntry};
use crate::{cancel, datasets, Answer};
use api::ApiError;
use base::sync::{CondvarExt, MutexExt};
use base::{bail, Error, Kind, Result};
use disk::os_type;
use dsl::Dataset;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use zvol::Zvol;

/// `volmode=none`: the volume is shown nowhere.
const VOLMODE_NONE: u64 = 3;
/// `snapdev=visible`: snapshots of the volume are listed.
const SNAPDEV_VISIBLE: u64 = 1;
/// How long clients that were cut off may take to be gone.
const CUT_OFF: Duration = Duration::from_secs(10);

/// Cuts a client off. Called without any lock; the client's [`Client`] is dropped soon afterwards.
pub type HangUp = Arc<dyn Fn() + Send + Sync>;

/// Those of one pool.
#[derive(Default)]
pub struct Volumes {
    served: Mutex<BTreeMap<u64, Served>>,
    /// One of them was closed.
    closed: Condvar,
}

struct Served {
    /// None while it is closed.
    zvol: Option<Arc<Zvol>>,
    clients: Vec<(u64, HangUp)>,
    next: u64,
}

/// A client of a volume. When it is dropped the client has left.
pub struct Client {
    entry: Arc<PoolEntry>,
    zvol: Arc<Zvol>,
    object: u64,
    number: u64,
}

impl Client {
    /// The volume.
    pub fn zvol(&self) -> &Zvol {
        &self.zvol
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.entry.volumes.leave(self.object, self.number);
    }
}

impl Volumes {
    /// Adds a client to the volume, which is opened for the first one.
    fn enter(&self, entry: &Arc<PoolEntry>, ds: &Arc<Dataset>, hang_up: HangUp) -> Result<Client> {
        let object = ds.object();
        let mut served = self.served.acquire();
        while served.get(&object).is_some_and(|s| s.zvol.is_none()) {
            served = self.closed.wait_acquire(served);
        }
        let one = match served.entry(object) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => free.insert(Served {
                zvol: Some(Zvol::open(&entry.pool, ds)?),
                clients: Vec::new(),
                next: 0,
            }),
        };
        let Served {
            zvol: Some(zvol),
            clients,
            next,
        } = one
        else {
            return Err(Kind::Stale.into());
        };
        let number = *next;
        *next += 1;
        clients.push((number, hang_up));
        Ok(Client {
            entry: entry.clone(),
            zvol: zvol.clone(),
            object,
            number,
        })
    }

    fn leave(&self, object: u64, number: u64) {
        let last = {
            let mut served = self.served.acquire();
            let Some(s) = served.get_mut(&object) else {
                return;
            };
            s.clients.retain(|(n, _)| *n != number);
            match s.clients.is_empty() {
                true => s.zvol.take(),
                false => None,
            }
        };
        // Not under the lock: this waits for a txg.
        if let Some(zvol) = last {
            if let Err(e) = zvol.close() {
                tracing::error!("{}: {e}", zvol.dataset().full_name());
            }
            self.served.acquire().remove(&object);
            self.closed.notify_all();
        }
    }

    /// Those of the volumes `which` names that have clients, with the number of clients. What is being closed is waited for.
    fn in_use(&self, which: &dyn Fn(u64) -> bool) -> Vec<(Arc<Zvol>, usize)> {
        let mut served = self.served.acquire();
        loop {
            let of_these = || served.iter().filter(|(object, _)| which(**object));
            if of_these().all(|(_, s)| s.zvol.is_some()) {
                let line = |(_, s): (_, &Served)| Some((s.zvol.clone()?, s.clients.len()));
                return of_these().filter_map(line).collect();
            }
            served = self.closed.wait_acquire(served);
        }
    }

    /// Cuts off all clients of the volumes that `which` names, and waits until these are closed, ten seconds at most.
    ///
    /// # Errors
    /// Busy: a client is still there.
    pub fn cut_off(&self, which: &dyn Fn(u64) -> bool) -> Result<()> {
        let begin = Instant::now();
        loop {
            let mut calls: Vec<HangUp> = Vec::new();
            let mut there = false;
            for (_, s) in self.served.acquire().iter().filter(|(o, _)| which(**o)) {
                there = true;
                s.zvol.iter().for_each(|z| z.stop_waiting());
                calls.extend(s.clients.iter().map(|(_, c)| c.clone()));
            }
            if !there {
                return Ok(());
            }
            if begin.elapsed() > CUT_OFF {
                bail!(Busy, "clients of a volume do not leave");
            }
            calls.iter().for_each(|c| c());
            let served = self.served.acquire();
            let _ = self.closed.wait_timeout(served, Duration::from_millis(50));
        }
    }

    /// Carries out what replaces the content or the size of a volume. Its clients wait meanwhile, and go on in what is there then.
    pub fn change<R>(&self, object: u64, work: impl FnOnce() -> Answer<R>) -> Answer<R> {
        let Some((zvol, _)) = self.in_use(&|o| o == object).pop() else {
            return work();
        };
        let suspended = match zvol.suspend() {
            Ok(suspended) => suspended,
            // Its last client has just left.
            Err(e) if e.kind == Kind::Stale => return work(),
            Err(e) => return Err(crate::errors::answer(e)),
        };
        let done = work();
        let name = zvol.dataset().full_name();
        if let Err(e) = suspended.resume() {
            let e = e.context(format!(
                "{name} cannot be opened again; its clients get errors"
            ));
            tracing::error!("{e}");
            return done.and(Err(crate::errors::answer(e)));
        }
        done
    }

    /// Properties changed.
    pub fn refresh(&self, which: &dyn Fn(&Dataset) -> bool) {
        let all: Vec<Arc<Zvol>> = {
            let served = self.served.acquire();
            served.values().filter_map(|s| s.zvol.clone()).collect()
        };
        for z in all.iter().filter(|z| which(z.dataset())) {
            if let Err(e) = z.refresh() {
                tracing::warn!("{}: {e}", z.dataset().full_name());
            }
        }
    }

    /// Returns when the volumes that `which` names have no clients: by force these are cut off.
    ///
    /// # Errors
    /// Busy, with how many clients there are.
    pub fn let_go(&self, which: &dyn Fn(u64) -> bool, force: bool) -> Answer<()> {
        if force {
            self.cut_off(which).map_err(crate::errors::answer)?;
        }
        let used = self.in_use(which);
        if used.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = used
            .into_iter()
            .map(|(zvol, clients)| {
                let (name, s) = (
                    zvol.dataset().full_name(),
                    if clients == 1 { "" } else { "s" },
                );
                format!("volume '{name}' is in use by {clients} client{s}")
            })
            .collect();
        Err(ApiError::reason(Kind::Busy, "dataset is busy").hint(lines.join("\n")))
    }
}

/// Opens a volume or a snapshot of one for a client.
///
/// # Errors
/// `Kind::NotFound`: there is no such volume, or `volmode=none` hides it. Those of [`Zvol::open`]. `Kind::Stale`: the pool is being taken out
/// of service.
pub fn open(admin: &Admin, name: &str, hang_up: HangUp) -> Result<Client> {
    let nothing = || Error::new(Kind::NotFound, format!("there is no volume '{name}'"));
    let Some(entry) = admin.find(datasets::pool_of(name)) else {
        return Err(nothing());
    };
    let _gate = entry.pass()?;
    let _names = entry.names.read();
    let ds = datasets::find_anyway(&entry, name).map_err(|_| nothing())?;
    if entry.objset_type(&ds)? != os_type::ZVOL || mode(&ds)? == VOLMODE_NONE {
        return Err(nothing());
    }
    if !ds.is_snapshot() && !entry.pool.is_readonly() && entry.pool.is_unplayed(&ds)? {
        entry.replay_volumes();
    }
    entry.volumes.enter(&entry, &ds, hang_up)
}

fn mode(ds: &Dataset) -> Result<u64> {
    pool::prop_number(ds, "volmode")
}

/// Names of all volumes, and of their snapshots where `snapdev=visible`. What cannot be read is left out.
pub fn names(admin: &Admin) -> Vec<String> {
    let mut out = Vec::new();
    for entry in admin.pools() {
        let Ok(_gate) = entry.pass() else { continue };
        let _names = entry.names.read();
        let mut left: Vec<_> = entry.pool.root_dir().into_iter().collect();
        while let Some(dir) = left.pop() {
            if cancel::is_cancelled() {
                break;
            }
            left.extend(dir.children().unwrap_or_default());
            if let Ok(head) = dir.head() {
                out.extend(shown(&entry, &head));
            }
        }
    }
    out.retain(|name| !name.contains(['$', '%']));
    out.sort();
    out
}

/// Names under which a dataset is listed: none unless it is a volume.
fn shown(entry: &PoolEntry, ds: &Arc<Dataset>) -> Vec<String> {
    if !entry.objset_type(ds).is_ok_and(|t| t == os_type::ZVOL)
        || !mode(ds).is_ok_and(|m| m != VOLMODE_NONE)
    {
        return Vec::new();
    }
    let name = ds.full_name();
    let mut out = vec![name.clone()];
    if pool::prop_number(ds, "snapdev").is_ok_and(|s| s == SNAPDEV_VISIBLE) {
        let snapshots = ds.snapshot_names().unwrap_or_default();
        out.extend(snapshots.into_iter().map(|(s, _)| format!("{name}@{s}")));
    }
    out
}
