//! Administration for simulators and tests: one thread, and a map in memory in place of the tree of files.
//! Mounted file systems are used through [`MemoryMount::head`].

use crate::door::{Door, Held, Mount, MountOptions, Mounting};
use crate::head::Head;
use crate::mounts::Mounted;
use crate::process::{DeviceUse, Process};
use crate::registry::{Admin, Paths, PoolEntry, Settings};
use api::{PoolCreate, VdevClass, VdevKind, VdevSpec};
use base::sync::MutexExt;
use base::{bail, Error, Kind, Result};
use env::{Access, Env};
use pool::Tunables;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use zpl::Zfs;

/// No cache file; mounts begin at `/`.
pub fn settings() -> Settings {
    Settings {
        paths: Paths {
            cache_file: "none".into(),
            mount_root: "/".into(),
        },
        mount_options: Vec::new(),
        multihost: pool::Multihost::default(),
        ivsets_unchecked: false,
    }
}

/// `zpool create NAME DISK`, without a cache file.
pub fn pool_on(name: &str, disk: &str) -> PoolCreate {
    PoolCreate {
        name: name.into(),
        vdevs: vec![VdevSpec {
            kind: VdevKind::Disk,
            class: VdevClass::Normal,
            path: Some(disk.into()),
            children: Vec::new(),
        }],
        props: vec![("cachefile".into(), "none".into())],
        command: format!("zpool create {name} {disk}"),
        ..PoolCreate::default()
    }
}

/// A process of one thread, in which nothing happens beside operations: whoever drives it writes the txgs.
pub struct Alone {
    env: Env,
    tunables: Tunables,
}

impl Alone {
    /// `tunables`: for every pool.
    pub fn new(env: Env, tunables: Tunables) -> Alone {
        Alone { env, tunables }
    }
}

impl Process for Alone {
    fn in_service(&self, _: &Arc<Admin>, _: &Arc<PoolEntry>) -> Result<()> {
        Ok(())
    }

    /// Nobody would come and help.
    fn waits_for_devices(&self) -> bool {
        false
    }

    fn beat(&self, _: &Arc<PoolEntry>) -> Result<()> {
        bail!(Unsupported, "nobody writes heartbeats here");
    }

    fn share(&self, _: &Admin) {}

    fn tunables(&self) -> Tunables {
        self.tunables
    }

    /// Does it now.
    fn spawn(&self, _: &str, job: Box<dyn FnOnce() + Send>) -> Result<()> {
        job();
        Ok(())
    }

    /// One after the other, in order.
    fn together(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..jobs).for_each(job);
    }

    /// Time does not pass by waiting.
    fn pause(&self, _: Duration, stop: &dyn Fn() -> bool) -> bool {
        !stop()
    }

    fn user(&self) -> (u32, u32) {
        (0, 0)
    }

    fn command(&self, _: i32) -> Option<String> {
        None
    }

    /// UTC, as a number: there is no place, and so no zone.
    fn date(&self, seconds: u64) -> String {
        format!("{seconds} s after 1970")
    }

    fn no_dumps(&self) {}

    /// Disks are known by name only.
    fn devices(&self, folder: Option<&str>) -> Result<Vec<String>> {
        Ok(folder.map(str::to_string).into_iter().collect())
    }

    fn identity(&self, path: &str) -> Option<(bool, u64, u64)> {
        self.env.disks.open(path, Access::Read).ok()?;
        let name = path.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        Some((true, name, 0))
    }

    /// There are no others.
    fn is_held(&self, _: &str) -> bool {
        false
    }

    /// Whatever uses a disk is in its labels.
    fn device_use(&self, _: &str) -> Result<DeviceUse> {
        Ok(DeviceUse::Labels)
    }
}

/// What is done meanwhile.
type Hook = Arc<dyn Fn() + Send + Sync>;

/// What a mounted file system is used through, beside its head.
pub trait Service: Send + Sync {
    /// See [`Mount::suspend`].
    fn suspend(&self) -> Result<Box<dyn Held>>;

    /// See [`Mount::close`].
    fn close(&self, object: u64);

    /// See [`Mount::close_where`].
    fn close_where(&self, which: &dyn Fn(u64) -> bool);

    /// It is unmounted: nobody uses it any more.
    fn end(&self);
}

/// What puts a mounted file system into service.
type Serve = Arc<dyn Fn(&Mounting<'_>, &Arc<Head>) -> Result<Arc<dyn Service>> + Send + Sync>;

/// A tree of files in memory: places, and which dataset is mounted there.
#[derive(Default)]
pub struct MemoryDoor {
    serve: Mutex<Option<Serve>>,
    places: Arc<Mutex<BTreeMap<PathBuf, Vec<u64>>>>,
    /// No user but the owner may mount there.
    owners: Mutex<Vec<PathBuf>>,
    unmounting: Arc<Mutex<Option<Hook>>>,
}

/// One mount of a [`MemoryDoor`].
pub struct MemoryMount {
    /// The file system that is mounted.
    pub head: Arc<Head>,
    path: PathBuf,
    entry: Weak<PoolEntry>,
    places: Arc<Mutex<BTreeMap<PathBuf, Vec<u64>>>>,
    options: Mutex<MountOptions>,
    /// The user it was mounted for. Places here belong to nobody.
    owner: Option<u32>,
    gone: AtomicBool,
    /// Another mount lies over it: its options cannot change.
    covered: AtomicBool,
    withheld: Mutex<(bool, bool)>,
    unmounting: Arc<Mutex<Option<Hook>>>,
    service: Option<Arc<dyn Service>>,
}

impl MemoryDoor {
    /// From now on what is mounted is put into service by this.
    pub fn serve_with(
        &self,
        serve: impl Fn(&Mounting<'_>, &Arc<Head>) -> Result<Arc<dyn Service>> + Send + Sync + 'static,
    ) {
        *self.serve.acquire() = Some(Arc::new(serve));
    }

    /// What is mounted, by place: the datasets' objects, the youngest last.
    pub fn places(&self) -> BTreeMap<PathBuf, Vec<u64>> {
        self.places.acquire().clone()
    }

    /// From now on this is done in the middle of each unmount, as if it took long.
    pub fn while_unmounting(&self, work: impl Fn() + Send + Sync + 'static) {
        *self.unmounting.acquire() = Some(Arc::new(work));
    }

    /// From now on a place is for the owner alone.
    pub fn reserve(&self, place: &str) {
        self.owners.acquire().push(place.into());
    }
}

impl Door for MemoryDoor {
    fn mount(&self, m: Mounting<'_>) -> Result<()> {
        let name = m.ds.full_name();
        if m.still.is_some() {
            return Err(Error::sentence(
                Kind::Busy,
                format!("cannot mount '{name}': it is still in use"),
            ));
        }
        let taken = self.places.acquire().contains_key(m.path);
        if taken && !m.overlay {
            return Err(Error::sentence(
                Kind::NotEmpty,
                format!(
                    "cannot mount '{}': directory is not empty",
                    m.path.display()
                ),
            ));
        }
        let (head, options) = m
            .open()
            .map_err(|e| Error::sentence(e.kind, format!("cannot mount '{name}': {e}")))?;
        let serve = self.serve.acquire().clone();
        let service = serve.map(|serve| serve(&m, &head)).transpose()?;
        let mut places = self.places.acquire();
        places
            .entry(m.path.to_path_buf())
            .or_default()
            .push(head.object);
        drop(places);
        let mount = MemoryMount {
            head: head.clone(),
            path: m.path.to_path_buf(),
            entry: Arc::downgrade(m.entry),
            places: self.places.clone(),
            options: Mutex::new(options.clone()),
            owner: m.user.or(m.place_of),
            gone: AtomicBool::new(false),
            covered: AtomicBool::default(),
            withheld: Mutex::default(),
            unmounting: self.unmounting.clone(),
            service,
        };
        m.entry.add_mount(Mounted::new(
            head,
            m.path.to_path_buf(),
            (m.root.map(Path::to_path_buf), m.user),
            Arc::new(mount),
            m.temporary.clone(),
            options,
        ));
        Ok(())
    }

    fn others_allowed(&self) -> bool {
        true
    }

    /// Directories are there as long as something is mounted on them.
    fn remove_dirs(&self, _: Vec<PathBuf>) {}

    fn clear_dead(&self, _: &dyn Fn(&str, &Path) -> bool) -> usize {
        0
    }

    fn is_for_user(&self, place: &Path, _: Option<&Path>, user: u32) -> Result<()> {
        match self.owners.acquire().iter().any(|o| o == place) {
            true => Err(Error::sentence(
                Kind::NotPermitted,
                format!(
                    "the directory '{}' does not belong to user {user}",
                    place.display()
                ),
            )),
            false => Ok(()),
        }
    }

    fn objection(&self, place: &Path) -> Option<String> {
        let taken = self.places.acquire().contains_key(place);
        taken.then(|| "exists and is not empty".to_string())
    }
}

impl MemoryMount {
    /// What its users go by.
    pub fn options(&self) -> MountOptions {
        self.options.acquire().clone()
    }

    /// Which power of programs and of devices is kept from its users, whatever its options say.
    pub fn withheld(&self) -> (bool, bool) {
        *self.withheld.acquire()
    }

    /// From now on another mount lies over it, and its options cannot change.
    pub fn cover(&self) {
        self.covered.store(true, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
        let mut places = self.places.acquire();
        if let Some(list) = places.get_mut(&self.path) {
            list.retain(|o| *o != self.head.object);
            if list.is_empty() {
                places.remove(&self.path);
            }
        }
        drop(places);
        if let Some(entry) = self.entry.upgrade() {
            entry.remove_mount(self.head.object);
        }
    }
}

/// There is nobody to lead into another state.
struct Nobody;

impl Held for Nobody {
    fn resume(self: Box<Self>, _: &Arc<Zfs>) -> Result<()> {
        Ok(())
    }
}

impl Mount for MemoryMount {
    fn place_owner(&self) -> Option<u32> {
        self.owner
    }

    fn is_in_place(&self) -> bool {
        !self.gone.load(Ordering::SeqCst)
    }

    fn wait_if_gone(&self) -> bool {
        !self.is_in_place()
    }

    /// Waits for operations under way; there are no open files that could hold it. By force it goes
    /// although the pool was stopped.
    fn unmount(&self, force: bool) -> Result<()> {
        let covered = {
            let places = self.places.acquire();
            let inner = |p: &&PathBuf| **p != self.path && p.starts_with(&self.path);
            let here = places.get(&self.path).and_then(|l| l.last());
            places.keys().any(|p| inner(&p)) || here.is_some_and(|o| *o != self.head.object)
        };
        if covered {
            return Err(Error::sentence(
                Kind::Busy,
                format!(
                    "cannot unmount '{}': pool or dataset is busy",
                    self.path.display()
                ),
            ));
        }
        let hook = self.unmounting.acquire().clone();
        if let Some(work) = hook {
            work();
        }
        if let Some(service) = &self.service {
            service.end();
        }
        let done = self.head.settle();
        self.leave();
        match done {
            Err(e) if force && e.kind == base::Kind::Suspended => Ok(()),
            done => done,
        }
    }

    fn write_out(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    /// Users that come through the head are made to wait there.
    fn suspend(&self) -> Result<Box<dyn Held>> {
        match &self.service {
            Some(service) => service.suspend(),
            None => Ok(Box::new(Nobody)),
        }
    }

    fn lost(&self) -> Option<String> {
        None
    }

    fn synced(&self) {}

    fn close(&self, object: u64) {
        if let Some(service) = &self.service {
            service.close(object);
        }
    }

    fn close_where(&self, which: &dyn Fn(u64) -> bool) {
        if let Some(service) = &self.service {
            service.close_where(which);
        }
    }

    fn is_fixed(&self) -> bool {
        false
    }

    fn withhold(&self, programs: bool, devices: bool) {
        *self.withheld.acquire() = (programs, devices);
    }

    fn remount(&self, options: &MountOptions) -> Result<()> {
        if self.covered.load(Ordering::SeqCst) {
            return Err(Kind::Busy.into());
        }
        *self.options.acquire() = options.clone();
        Ok(())
    }

    fn tear_down(&self) -> Result<()> {
        self.leave();
        Ok(())
    }

    fn abort(&self) {
        self.leave();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
