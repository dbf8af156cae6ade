//! Engine speed without FUSE: `bench IMAGE MIB`. Writes a file in 1 MiB pieces, syncs, reads it cold
//! and warm, makes and removes small files; prints rates.
use base::Txg;
use disk::feature;
use pool::{CreateSpec, OpenOptions, Pool, Tunables};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, Cred, FsOptions, Mount, New, NoLog, Props, SpaceInfo, WriteOpts, Zfs};

struct Rich;
impl SpaceInfo for Rich {
    fn space(&self) -> zpl::Space {
        zpl::Space {
            referenced: 0,
            available: 1 << 40,
            objects: 0,
            objects_free: 1 << 40,
        }
    }
}

fn open_fs(pool: &Arc<Pool>) -> Arc<Zfs> {
    let set = pool
        .open_dataset(&pool.dsl().root_dataset().unwrap())
        .unwrap();
    Zfs::open(
        &set.os,
        Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                project_quota: true,
                ..Props::default()
            },
            space: Arc::new(Rich),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
    .unwrap()
}

fn make_pool(device: &str, tunables: Tunables) -> Arc<Pool> {
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(GroupKind::Single, vec![DevSpec::file(device)])],
        version: 5000,
        features: feature::FEATURES
            .iter()
            .filter(|f| f.supported && f.default_on)
            .collect(),
        extra: vec![],
        command: String::new(),
        tunables,
    };
    Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        let mut o = FsOptions::new(5000, zpl::Time { sec: 1, nsec: 5 });
        o.project_quota = true;
        create_fs(os, tx, &o)
    })
    .unwrap()
}

/// Writes and reads one file of so many MiB.
fn one_file(pool: &Pool, zfs: &Zfs, name: &str, noise: bool, mib: u64) {
    let (root, cred) = (zfs.root().unwrap(), Cred::root());
    let mut x = 88172645463325252u64;
    let data: Vec<u8> = (0..1 << 20)
        .map(|i| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            if noise || i % 4 == 0 {
                x as u8
            } else {
                b'a'
            }
        })
        .collect();
    let z = zfs
        .create(&root, name.as_bytes(), &New::file(0o100644, 0), &cred)
        .unwrap();
    let t0 = Instant::now();
    for i in 0..mib {
        zfs.write(&z, i << 20, &data, WriteOpts::default()).unwrap();
    }
    let t1 = t0.elapsed();
    pool.sync().unwrap();
    let t2 = t0.elapsed();
    println!(
        "{name}: write {:.0} MiB/s, with sync {:.0} MiB/s",
        mib as f64 / t1.as_secs_f64(),
        mib as f64 / t2.as_secs_f64()
    );
    for how in ["cold", "warm"] {
        if how == "cold" {
            pool.zio().cache.clear();
        }
        let n = if how == "cold" { mib } else { mib.min(100) };
        let t0 = Instant::now();
        let mut buf = vec![0; 1 << 20];
        for i in 0..n {
            zfs.read(&z, (mib - n + i) << 20, &mut buf).unwrap();
        }
        println!(
            "{name}: {how} read {:.0} MiB/s",
            n as f64 / t0.elapsed().as_secs_f64()
        );
    }
    let t0 = Instant::now();
    let mut x = 1u64;
    for _ in 0..20000 {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let off = (x >> 33) % (mib << 8) * 4096;
        zfs.write(&z, off, &data[..4096], WriteOpts::default())
            .unwrap();
    }
    let t1 = t0.elapsed();
    pool.sync().unwrap();
    println!(
        "{name}: random 4K writes {:.0}/s, with sync {:.0}/s",
        20000.0 / t1.as_secs_f64(),
        20000.0 / t0.elapsed().as_secs_f64()
    );
}

/// Makes, finds and removes small files.
fn many_files(pool: &Pool, zfs: &Zfs) {
    let (root, cred) = (zfs.root().unwrap(), Cred::root());
    let n = 50000;
    let t0 = Instant::now();
    for i in 0..n {
        let name = format!("f{i}");
        let z = zfs
            .create(&root, name.as_bytes(), &New::file(0o100644, 0), &cred)
            .unwrap();
        zfs.write(&z, 0, name.as_bytes(), WriteOpts::default())
            .unwrap();
    }
    let t1 = t0.elapsed();
    pool.sync().unwrap();
    println!(
        "create+write {:.0}/s, with sync {:.0}/s",
        n as f64 / t1.as_secs_f64(),
        n as f64 / t0.elapsed().as_secs_f64()
    );
    let t0 = Instant::now();
    for i in 0..n {
        zfs.lookup(&root, format!("f{i}").as_bytes(), &cred)
            .unwrap();
    }
    println!("lookup {:.0}/s", n as f64 / t0.elapsed().as_secs_f64());
    let t0 = Instant::now();
    for i in 0..n {
        zfs.unlink(&root, format!("f{i}").as_bytes(), &cred)
            .unwrap();
    }
    let t1 = t0.elapsed();
    zfs.reap().unwrap();
    pool.sync().unwrap();
    println!(
        "unlink {:.0}/s, with sync {:.0}/s",
        n as f64 / t1.as_secs_f64(),
        n as f64 / t0.elapsed().as_secs_f64()
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mib: u64 = args[1].parse().unwrap();
    let tunables = Tunables {
        cache_bytes: 256 << 20,
        dirty_max: 256 << 20,
        ..Tunables::default()
    };
    let pool = make_pool(&args[0], tunables);
    let stop = Arc::new(AtomicBool::new(false));
    let (p2, s2) = (pool.clone(), stop.clone());
    let t = std::thread::spawn(move || {
        while !s2.load(Ordering::Relaxed) {
            if p2.wait_for_work(std::time::Duration::from_secs(5)) {
                p2.sync().unwrap();
            }
        }
    });
    let zfs = open_fs(&pool);
    for (name, noise) in [("compressible", false), ("noise", true)] {
        one_file(&pool, &zfs, name, noise, mib);
    }
    many_files(&pool, &zfs);
    stop.store(true, Ordering::Relaxed);
    dmu::Driver::kick(&*pool);
    t.join().unwrap();
    drop(zfs);
    let config = pool.full_config(0, Txg::NONE, false);
    pool.close().unwrap();
    let t0 = Instant::now();
    let p = Pool::open(env_linux::linux_env(), &config, OpenOptions::default()).unwrap();
    println!("import {:.0} ms", t0.elapsed().as_secs_f64() * 1000.0);
    p.close().unwrap();
}
