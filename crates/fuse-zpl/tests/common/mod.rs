//! A pool in an image file, and its root file system mounted.
#![allow(dead_code)]

use fuse::{Config, Handle, Mount, MountOptions, Requests, Session, Unmount};
use fuse_zpl::{Adapter, Caching, Kernel, Written};
use pool::{CreateSpec, OpenOptions, Pool, Tunables};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use testkit::TempDir;
use vdev::{DevSpec, GroupKind, TopSpec};
use vfs::{Content, Figures, Key, Served, Snapdir, Snapshots};
use zpl::{create_fs, FsOptions, NoLog, Props, Space, SpaceInfo, Time, Zfs};

/// Whether tests that mount can run here; says so if not.
pub fn can_mount() -> bool {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return false;
    }
    true
}

/// Room without end.
pub struct Plenty {
    pub readonly: bool,
}

impl SpaceInfo for Plenty {
    fn space(&self) -> Space {
        Space {
            available: 1 << 40,
            objects_free: 1 << 30,
            ..Space::default()
        }
    }

    fn read_only(&self) -> bool {
        self.readonly
    }
}

/// The snapshots of the root file system.
struct Snaps(Arc<Pool>);

impl Snapshots for Snaps {
    fn snapdir(&self) -> Snapdir {
        Snapdir::Hidden
    }

    fn list(&self) -> base::Result<Vec<(String, u64)>> {
        self.0.dsl().root_dataset()?.snapshot_names()
    }

    fn count(&self) -> u64 {
        self.list().map_or(0, |l| l.len() as u64)
    }

    fn changed(&self) -> Option<Time> {
        None
    }

    fn find(&self, name: &str) -> base::Result<Key> {
        let head = self.0.dsl().root_dataset()?;
        let ds = head.snapshot_named(name)?.ok_or(base::Kind::NotFound)?;
        Ok(Key {
            object: ds.object(),
            guid: ds.phys().guid,
        })
    }

    fn has_volumes(&self) -> base::Result<bool> {
        Ok(false)
    }

    fn volumes(&self) -> base::Result<Vec<(String, u64)>> {
        Ok(Vec::new())
    }

    fn find_volume(&self, _: &str) -> base::Result<Key> {
        Err(base::Kind::NotFound.into())
    }

    fn owner(&self) -> (u32, u32) {
        (0, 0)
    }

    fn figures(&self, _: u64) -> Option<Figures> {
        None
    }

    fn open(&self, key: Key) -> base::Result<Content> {
        let ds = self.0.dsl().dataset_by_object(key.object)?;
        Ok(Content::Files(open(&self.0, &ds.full_name())))
    }

    fn close(&self, object: u64) {
        self.0.close_dataset(object);
    }
}

pub fn pool(dir: &TempDir) -> Arc<Pool> {
    let image = dir.image("d0.img", 256 << 20).unwrap();
    let all = disk::feature::FEATURES.iter();
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(
            GroupKind::Single,
            vec![DevSpec::file(image.to_str().unwrap())],
        )],
        version: 5000,
        features: all.filter(|f| f.supported && f.default_on).collect(),
        extra: vec![],
        command: "zpool create tank".into(),
        tunables: Tunables::default(),
    };
    Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        create_fs(os, tx, &FsOptions::new(5000, Time::new(1_700_000_000, 5)))
    })
    .unwrap()
}

/// The file system in a dataset.
pub fn open(pool: &Arc<Pool>, name: &str) -> Arc<Zfs> {
    let ds = pool.dsl().dataset(name).unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let readonly = ds.is_snapshot() || pool.is_readonly();
    Zfs::open(
        &set.os,
        zpl::Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                readonly,
                ..Props::default()
            },
            space: Arc::new(Plenty { readonly }),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
    .unwrap()
}

/// A mounted root file system.
pub struct Mounted {
    pub pool: Arc<Pool>,
    pub adapter: Arc<Adapter>,
    pub served: Arc<Served>,
    pub at: TempDir,
    pub mount: Mount,
    pub written: Written,
    pub zfs: Weak<Zfs>,
    handle: Handle,
    serving: Option<JoinHandle<()>>,
    // Last: the pool is in there.
    dir: Option<TempDir>,
}

impl Mounted {
    pub fn new(tag: &str) -> Mounted {
        let dir = TempDir::new(tag).unwrap();
        let pool = pool(&dir);
        let m = Mounted::of(pool, dir);
        m.zfs.upgrade().unwrap().start().unwrap();
        m
    }

    /// The same pool, in use read-only from now on.
    pub fn read_only(mut self) -> Mounted {
        self.end();
        let dir = self.dir.take().unwrap();
        self.pool.close().unwrap();
        drop(self);
        let env = env_linux::linux_env();
        let image = dir.path().join("d0.img").to_str().unwrap().to_string();
        let found = vdev::discover(&env, &[image]);
        let options = OpenOptions {
            readonly: true,
            ..OpenOptions::default()
        };
        let pool = Pool::open(env, &found.pools[0].config, options).unwrap();
        Mounted::of(pool, dir)
    }

    fn of(pool: Arc<Pool>, dir: TempDir) -> Mounted {
        let zfs = open(&pool, "tank");
        let weak = Arc::downgrade(&zfs);
        let snaps = Box::new(Snaps(pool.clone()));
        let served = Served::new(zfs, &pool, snaps);
        let adapter = Adapter::new(&served, Caching::default()).unwrap();
        let at = TempDir::new("mnt").unwrap();
        let mut options = MountOptions::new("tank");
        options.allow_other = true;
        options.read_only = pool.is_readonly();
        let (fd, mount) = fuse::mount(at.path(), &options).unwrap();
        let config = Config {
            zero_message_open: adapter.needs_no_open(),
            zero_message_opendir: adapter.needs_no_opendir(),
            ..Config::default()
        };
        let session = Session::new(adapter.clone(), fd, config);
        let (handle, notifier) = (session.handle(), session.notifier());
        adapter.set_kernel(Kernel::new(notifier.clone(), mount.clone()));
        let written = Written::new(mount.clone(), notifier, adapter.door().writers());
        let serving = std::thread::spawn(move || {
            let _ = session.run();
        });
        Mounted {
            pool,
            adapter,
            served,
            at,
            mount,
            written,
            zfs: weak,
            handle,
            serving: Some(serving),
            dir: Some(dir),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.at.path().join(name)
    }

    /// How many requests of each kind were served.
    pub fn requests(&self) -> Requests {
        self.handle.requests()
    }

    /// What is in the kernel's cache, too.
    pub fn snapshot(&self, name: &str) {
        self.written.take().unwrap();
        let head = self.pool.dsl().root_dataset().unwrap();
        self.pool
            .snapshot(vec![(head, name.into())], |_, _| Ok(()))
            .unwrap();
    }

    /// Makes the root dataset what its newest snapshot is, and opens it again.
    pub fn roll_back(&self) -> Arc<Zfs> {
        let object = self.pool.dsl().root_dataset().unwrap().object();
        self.pool.close_dataset(object);
        self.pool
            .task(move |pool, tx| {
                let ds = pool.dsl().root_dataset()?;
                pool.dsl().rollback(tx, &ds)?;
                let os = ds.open_objset(pool.write_policy(&ds)?, false)?;
                os.set_zil_header(tx, [0; 192]);
                Ok(())
            })
            .unwrap();
        open(&self.pool, "tank")
    }
}

impl Mounted {
    fn end(&mut self) {
        let _ = self.mount.unmount(Unmount::Force);
        self.handle.stop();
        if let Some(s) = self.serving.take() {
            let _ = s.join();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.end();
    }
}
