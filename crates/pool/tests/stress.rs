//! A file system under random changes while txgs are written, reopened and judged by OpenZFS's
//! zdb; contents against an in-memory copy.

use base::Txg;
use disk::feature;
use pool::{CreateSpec, OpenOptions, Pool, Tunables};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, Cred, FsOptions, Mount, New, NoLog, Props, SpaceInfo, WriteOpts, Zfs};

struct Rich;
impl SpaceInfo for Rich {
    fn space(&self) -> zpl::Space {
        zpl::Space {
            referenced: 0,
            available: 1 << 30,
            objects: 0,
            objects_free: 1 << 40,
        }
    }
}

struct Lcg(u64);
impl Lcg {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n.max(1)
    }
}

fn make(dir: &TempDir, kind: GroupKind, n: usize, version: u64, ashift: u32) -> Arc<Pool> {
    let devices = (0..n)
        .map(|i| {
            DevSpec::file(
                dir.image(&format!("d{i}.img"), 200 << 20)
                    .unwrap()
                    .to_str()
                    .unwrap(),
            )
        })
        .collect();
    let mut top = TopSpec::new(kind, devices);
    top.ashift = Some(ashift);
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![top],
        version,
        features: if version == 5000 {
            feature::FEATURES
                .iter()
                .filter(|f| f.supported && f.default_on)
                .collect()
        } else {
            Vec::new()
        },
        extra: vec![],
        command: "zpool create tank".into(),
        tunables: Tunables {
            cache_bytes: 32 << 20,
            dirty_max: 16 << 20,
            ..Tunables::default()
        },
    };
    Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        let mut o = FsOptions::new(
            version,
            zpl::Time {
                sec: 1_700_000_000,
                nsec: 5,
            },
        );
        o.project_quota = version == 5000;
        create_fs(os, tx, &o)
    })
    .unwrap()
}

fn open_fs(pool: &Arc<Pool>) -> Arc<Zfs> {
    let ds = pool.dsl().root_dataset().unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    if let Some(z) = set.zil() {
        z.start().unwrap();
    }
    let zfs = Zfs::open(
        &set.os,
        Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                project_quota: pool.version() == 5000,
                ..Props::default()
            },
            space: Arc::new(Rich),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
    .unwrap();
    zfs.start().unwrap();
    zfs
}

fn run(kind: GroupKind, n: usize, version: u64, ashift: u32, seed: u64) {
    eprintln!("{kind:?} x{n} version {version} ashift {ashift} seed {seed}");
    let dir = TempDir::new("stress").unwrap();
    let mut pool = make(&dir, kind, n, version, ashift);
    let root = Cred::root();
    let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut r = Lcg(seed);
    for round in 0..3 {
        let zfs = open_fs(&pool);
        let stop = Arc::new(AtomicBool::new(false));
        let (p2, s2) = (pool.clone(), stop.clone());
        let syncer = std::thread::spawn(move || {
            while !s2.load(Ordering::Relaxed) {
                p2.sync().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let top = zfs.root().unwrap();
        for (name, data) in &model {
            let z = zfs.lookup(&top, name.as_bytes(), &root).unwrap();
            assert_eq!(z.size(), data.len() as u64, "{name}");
            let mut buf = vec![0; data.len()];
            assert_eq!(zfs.read(&z, 0, &mut buf).unwrap(), data.len());
            assert!(buf == *data, "{name} differs in round {round}");
        }
        for _ in 0..1200 {
            let name = format!("file{}", r.next(150));
            match r.next(10) {
                0..=1 => {
                    if model.remove(&name).is_some() {
                        zfs.unlink(&top, name.as_bytes(), &root).unwrap();
                    }
                }
                2 => {
                    if let Some(d) = model.get_mut(&name) {
                        let size = r.next(400_000);
                        let z = zfs.lookup(&top, name.as_bytes(), &root).unwrap();
                        zfs.truncate(&z, size, &root).unwrap();
                        d.resize(size as usize, 0);
                    }
                }
                3 => {
                    let to = format!("file{}", r.next(150));
                    if let Some(d) = model.get(&name).cloned() {
                        zfs.rename(&top, name.as_bytes(), &top, to.as_bytes(), 0, &root)
                            .unwrap();
                        model.remove(&name);
                        model.insert(to, d);
                    }
                }
                _ => {
                    if !model.contains_key(&name) {
                        let new = New::file(0o100644, 0);
                        zfs.create(&top, name.as_bytes(), &new, &root).unwrap();
                        model.insert(name.clone(), Vec::new());
                    }
                    let z = zfs.lookup(&top, name.as_bytes(), &root).unwrap();
                    let d = model.get_mut(&name).unwrap();
                    let off = r.next(300_000) as usize;
                    let len = r.next(60_000) as usize;
                    let kind = r.next(3);
                    let data: Vec<u8> = (0..len)
                        .map(|i| match kind {
                            0 => r.next(256) as u8,
                            1 => (i / 100) as u8,
                            _ => 0,
                        })
                        .collect();
                    zfs.write(&z, off as u64, &data, WriteOpts::default())
                        .unwrap();
                    if len > 0 {
                        if d.len() < off + len {
                            d.resize(off + len, 0);
                        }
                        d[off..off + len].copy_from_slice(&data);
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        syncer.join().unwrap();
        zfs.stop().unwrap();
        drop(top);
        let ds = pool.dsl().root_dataset().unwrap();
        drop(zfs);
        pool.sync().unwrap();
        pool.close_dataset(ds.object());
        let config = pool.full_config(0, Txg::NONE, false);
        drop(ds);
        if round == 1 {
            pool.export().unwrap();
        } else {
            pool.close().unwrap();
        }
        drop(pool);
        if let Some(z) = or_skip(OpenZfs::get()) {
            if let Err(e) = z.check(dir.path(), "tank") {
                panic!("{e}");
            }
        }
        pool = Pool::open(env_linux::linux_env(), &config, OpenOptions::default()).unwrap();
    }
    pool.close().unwrap();
}

#[test]
fn single_modern() {
    run(GroupKind::Single, 1, 5000, 9, 1);
}

#[test]
fn raidz2_modern() {
    run(GroupKind::Raidz { nparity: 2 }, 5, 5000, 12, 2);
}

#[test]
fn mirror_version_23() {
    run(GroupKind::Mirror, 2, 23, 9, 3);
}

#[test]
fn raidz1_version_28() {
    run(GroupKind::Raidz { nparity: 1 }, 3, 28, 9, 4);
}
