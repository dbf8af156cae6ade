//! Pools on image files, judged by OpenZFS's zdb.

use base::Txg;
use disk::{feature, ObjType};
use env::Env;
use pool::{CreateSpec, OpenOptions, Pool, Tunables};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, FsOptions};

fn env() -> Env {
    env_linux::linux_env()
}

fn spec(dir: &TempDir, kind: GroupKind, n: usize, version: u64) -> CreateSpec {
    let devices = (0..n)
        .map(|i| {
            let p = dir.image(&format!("d{i}.img"), 128 << 20).unwrap();
            DevSpec::file(p.to_str().unwrap())
        })
        .collect();
    CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(kind, devices)],
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
        tunables: Tunables::default(),
    }
}

fn create(dir: &TempDir, kind: GroupKind, n: usize, version: u64) -> Arc<Pool> {
    let now = zpl::Time {
        sec: 1_700_000_000,
        nsec: 5,
    };
    Pool::create(env(), spec(dir, kind, n, version), &|_, os, tx| {
        let mut o = FsOptions::new(version, now);
        o.project_quota = version == 5000;
        create_fs(os, tx, &o)
    })
    .unwrap()
}

fn check(dir: &TempDir) {
    let Some(z) = or_skip(OpenZfs::get()) else {
        return;
    };
    if let Err(e) = z.check(dir.path(), "tank") {
        panic!("{e}");
    }
}

#[test]
fn empty_pools_of_every_version() {
    for version in [5000, 28, 26, 23, 22, 15, 11, 10, 5, 3, 2, 1] {
        eprintln!("version {version}");
        let dir = TempDir::new("empty").unwrap();
        let pool = create(&dir, GroupKind::Single, 1, version);
        pool.export().unwrap();
        check(&dir);
    }
}

fn reopen(dir: &TempDir, n: usize) -> Arc<Pool> {
    let path = |i| dir.path().join(format!("d{i}.img"));
    let images: Vec<String> = (0..n)
        .map(|i| path(i).to_str().unwrap().to_string())
        .collect();
    let found = vdev::discover(&env(), &images);
    Pool::open(env(), &found.pools[0].config, OpenOptions::default()).unwrap()
}

/// Two thirds of what a RAID-Z of three allocates is data; only pools of version 3 and later count
/// it so.
#[test]
fn raidz_space_is_counted_raw_below_version_3() {
    for (version, counted) in [(1, 384 << 10), (2, 384 << 10), (3, 341 * 768)] {
        let dir = TempDir::new("deflate").unwrap();
        let pool = create(&dir, GroupKind::Raidz { nparity: 1 }, 3, version);
        let raw = 384 << 10;
        assert_eq!(pool.zio().devices.deflate(0, raw), counted, "{version}");
        pool.export().unwrap();
        drop(pool);
        let pool = reopen(&dir, 3);
        assert_eq!(pool.zio().devices.deflate(0, raw), counted, "{version}");
        pool.export().unwrap();
        check(&dir);
    }
}

fn draid(nparity: usize, ndata: u64, nspares: u64) -> GroupKind {
    GroupKind::Draid {
        nparity,
        ndata,
        nspares,
    }
}

/// The pool's list of spares: read from a real pool, and written as that one has it.
#[test]
fn distributed_spares_are_listed() {
    let Some(dir) = or_skip(testkit::fixture::unpack("draid")) else {
        return;
    };
    let images: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path().to_str().unwrap().to_string())
        .collect();
    let found = vdev::discover(&env(), &images);
    let options = OpenOptions {
        readonly: true,
        ..OpenOptions::default()
    };
    let real = Pool::open(env(), &found.pools[0].config, options).unwrap();
    let keys = |p: &Pool| -> Vec<String> {
        let list = &p.aux_devices().spares;
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].get_str("path"), Some("draid2-0-0"));
        let top = p.tree().top(0).unwrap().guid();
        assert_eq!(list[0].get_u64("top_guid"), Some(top));
        let mut keys: Vec<String> = list[0].iter().map(|(k, _)| k.to_string()).collect();
        keys.sort();
        keys
    };
    let want = keys(&real);
    let dir = TempDir::new("spares").unwrap();
    let ours = create(&dir, draid(2, 4, 1), 9, 5000);
    assert_eq!(keys(&ours), want);
    ours.export().unwrap();
    drop(ours);
    let again = reopen(&dir, 9);
    assert_eq!(keys(&again), want);
    again.export().unwrap();
}

#[test]
fn layouts_and_reopening() {
    for (kind, n) in [
        (GroupKind::Single, 1),
        (GroupKind::Mirror, 2),
        (GroupKind::Raidz { nparity: 1 }, 3),
        (GroupKind::Raidz { nparity: 2 }, 5),
        (GroupKind::Raidz { nparity: 3 }, 6),
        (draid(2, 4, 1), 9),
        (draid(3, 1, 2), 6),
    ] {
        let dir = TempDir::new("layout").unwrap();
        let pool = create(&dir, kind, n, 5000);
        let config = pool.full_config(0, Txg::NONE, false);
        pool.close().unwrap();
        drop(pool);
        check(&dir);
        for round in 0..3 {
            let pool = Pool::open(env(), &config, OpenOptions::default()).unwrap();
            let root = pool.dsl().root().unwrap();
            pool.task(move |pool, tx| {
                let ds =
                    pool.dsl()
                        .create_fs(tx, &root, &format!("fs{round}"), Default::default())?;
                let os = pool.new_objset(tx, &ds, disk::os_type::ZFS)?;
                create_fs(
                    &os,
                    tx,
                    &FsOptions::new(5000, zpl::Time { sec: 1, nsec: 0 }),
                )
            })
            .unwrap();
            if round == 2 {
                pool.export().unwrap();
            } else {
                pool.close().unwrap();
            }
            drop(pool);
            check(&dir);
        }
    }
}

/// Large blocks of an encrypted file system where no large piece is free: OpenZFS finds their members
/// by headers as it writes them.
#[test]
fn gangs_of_an_encrypted_file_system() {
    const PIECE: u64 = 16 << 10;
    const BLOCK: usize = 128 << 10;
    let dir = TempDir::new("gangs").unwrap();
    let pool = create(&dir, GroupKind::Raidz { nparity: 1 }, 3, 5000);
    let root = pool.dsl().root().unwrap();
    let key = dsl::NewKey::Root {
        suite: codec::crypt::Suite::DEFAULT,
        key: Arc::new(codec::crypt::WrappingKey::from_bytes(&[7; 32]).unwrap()),
        params: dsl::KeyParams {
            format: 1,
            ..Default::default()
        },
        location: "prompt".into(),
    };
    pool.task(move |pool, tx| {
        let args = Default::default();
        let ds = pool
            .dsl()
            .create_encrypted(tx, &root, "secret", args, &key)?;
        let os = pool.new_objset(tx, &ds, disk::os_type::ZFS)?;
        let now = zpl::Time { sec: 1, nsec: 0 };
        create_fs(&os, tx, &FsOptions::new(5000, now))
    })
    .unwrap();
    pool.space().set_largest(PIECE);
    let ds = pool.dsl().dataset("tank/secret").unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let block = |n: u64| -> Vec<u8> {
        let mut x = n;
        let mut next = || {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (x >> 33) as u8
        };
        (0..BLOCK).map(|_| next()).collect()
    };
    // Encrypted ones, and those that have a MAC only.
    let kinds = [ObjType::PLAIN_FILE_CONTENTS, ObjType(26)];
    let objects = kinds.map(|obj_type| {
        let tx = set.os.tx(dmu::Need::bytes(4 * BLOCK as u64)).unwrap();
        let new = dmu::NewObject {
            obj_type,
            block_size: BLOCK,
            ..Default::default()
        };
        let dn = set.os.alloc(&tx, &new).unwrap();
        for n in 0..4 {
            dn.write(&tx, n * BLOCK as u64, &block(n)).unwrap();
        }
        dn.object()
    });
    drop((set, ds));
    pool.sync().unwrap();
    assert!(sim::rig::gangs(&pool) >= 8);
    let config = pool.full_config(0, Txg::NONE, false);
    pool.close().unwrap();
    drop(pool);
    check(&dir);

    // What was written is there, and can be freed.
    let pool = Pool::open(env(), &config, OpenOptions::default()).unwrap();
    let key = codec::crypt::WrappingKey::from_bytes(&[7; 32]).unwrap();
    let secret = pool.dsl().dir("tank/secret").unwrap();
    pool.dsl().load_key(&secret, key, false).unwrap();
    let ds = pool.dsl().dataset("tank/secret").unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    for object in objects {
        let dn = set.os.hold(object).unwrap();
        for n in 0..4 {
            let mut b = vec![0; BLOCK];
            dn.read(n * BLOCK as u64, &mut b).unwrap();
            assert!(b == block(n), "object {object}, block {n}");
        }
    }
    let tx = set.os.tx(dmu::Need::freeing()).unwrap();
    set.os.free(&tx, objects[0]).unwrap();
    set.os.free(&tx, objects[1]).unwrap();
    drop(tx);
    drop((set, ds, secret));
    pool.export().unwrap();
    drop(pool);
    check(&dir);
}
