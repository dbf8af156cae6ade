//! A top-level vdev comes to an open pool: with readers at work, judged by OpenZFS, and with the plug pulled.

use disk::ObjType;
use dmu::{NewObject, Objset};
use pool::{CreateSpec, OpenOptions, Pool, Tunables};
use sim::rig::{self, Cutter, Layout, FATES};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::testing::{Event, MemDisk, SeededRng};
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, FsOptions};

const BLOCK: usize = 128 << 10;

fn block(seed: u64, n: u64) -> Vec<u8> {
    let mut x = seed << 32 | n;
    let mut next = || {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (x >> 33) as u8
    };
    (0..BLOCK).map(|_| next()).collect()
}

/// Writes an object of so many blocks.
fn write(os: &Arc<Objset>, seed: u64, blocks: u64) -> u64 {
    let tx = os.tx(dmu::Need::bytes(BLOCK as u64)).unwrap();
    let new = NewObject {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: BLOCK,
        ..Default::default()
    };
    let dn = os.alloc(&tx, &new).unwrap();
    drop(tx);
    for n in 0..blocks {
        let tx = os.tx(dmu::Need::bytes(BLOCK as u64)).unwrap();
        dn.write(&tx, n * BLOCK as u64, &block(seed, n)).unwrap();
    }
    dn.object()
}

fn verify(os: &Arc<Objset>, object: u64, seed: u64, blocks: u64) {
    let dn = os.hold(object).unwrap();
    let mut b = vec![0; BLOCK];
    for n in 0..blocks {
        dn.read(n * BLOCK as u64, &mut b).unwrap();
        assert!(b == block(seed, n), "object {object}, block {n}");
    }
}

fn image(dir: &TempDir, name: &str, mib: u64) -> DevSpec {
    let p = dir.image(name, mib << 20).unwrap();
    DevSpec::file(p.to_str().unwrap())
}

fn create(dir: &TempDir, features: bool) -> Arc<Pool> {
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(
            GroupKind::Single,
            vec![image(dir, "d0.img", 128)],
        )],
        version: if features { 5000 } else { 28 },
        features: disk::feature::FEATURES
            .iter()
            .filter(|f| features && f.supported && f.default_on)
            .collect(),
        extra: vec![],
        command: "zpool create tank".into(),
        // Little, so that readers come to the devices.
        tunables: Tunables {
            cache_bytes: 4 << 20,
            ..Tunables::default()
        },
    };
    let version = spec.version;
    Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        let now = zpl::Time { sec: 1, nsec: 0 };
        create_fs(os, tx, &FsOptions::new(version, now))
    })
    .unwrap()
}

fn reopen(dir: &TempDir) -> Arc<Pool> {
    let images: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path().to_str().unwrap().to_string())
        .collect();
    let found = vdev::discover(&env_linux::linux_env(), &images);
    let config = &found.pools[0].config;
    Pool::open(env_linux::linux_env(), config, OpenOptions::default()).unwrap()
}

/// Bytes allocated on a top-level vdev.
fn allocated(pool: &Pool, id: u64) -> u64 {
    let count = pool.space().metaslab_count(id);
    (0..count)
        .map(|m| {
            let (start, end) = pool.space().metaslab_bounds(id, m).unwrap();
            end - start - pool.space().free_ranges(id, m).unwrap().total()
        })
        .sum()
}

#[test]
fn vdevs_come_to_an_open_pool_while_it_is_read_and_openzfs_agrees() {
    for features in [true, false] {
        let dir = TempDir::new("tops").unwrap();
        let pool = create(&dir, features);
        let ds = pool.dsl().root_dataset().unwrap();
        let set = pool.open_dataset(&ds).unwrap();
        let first = write(&set.os, 1, 200);
        pool.sync().unwrap();
        let stop = AtomicBool::new(false);
        let mut objects = vec![(first, 1, 200)];
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        verify(&set.os, first, 1, 200);
                        let tops = pool.tree().tops();
                        assert!(tops.iter().enumerate().all(|(i, t)| t.id() == i as u64));
                    }
                });
            }
            let mirror = vec![image(&dir, "d1.img", 128), image(&dir, "d2.img", 128)];
            let raidz = (3..6).map(|i| image(&dir, &format!("d{i}.img"), 128));
            let mut log = TopSpec::new(GroupKind::Single, vec![image(&dir, "d6.img", 64)]);
            log.is_log = true;
            for (n, spec) in [
                TopSpec::new(GroupKind::Mirror, mirror),
                TopSpec::new(GroupKind::Raidz { nparity: 1 }, raidz.collect()),
                log.clone(),
            ]
            .into_iter()
            .enumerate()
            {
                let had = pool.space().dataset_space();
                let id = pool.add_top(&spec).unwrap();
                assert_eq!(id, n as u64 + 1);
                assert_eq!(pool.space().dataset_space() > had, !spec.is_log);
                let seed = id + 1;
                objects.push((write(&set.os, seed, 120), seed, 120));
                pool.sync().unwrap();
                assert!(spec.is_log || allocated(&pool, id) > 1 << 20, "{n}");
            }
            assert!(pool.has_log_device());
            let draid = TopSpec::new(
                GroupKind::Draid {
                    ndata: 2,
                    nparity: 1,
                    nspares: 1,
                },
                (7..12)
                    .map(|i| image(&dir, &format!("d{i}.img"), 128))
                    .collect(),
            );
            match features {
                true => {
                    let id = pool.add_top(&draid).unwrap();
                    objects.push((write(&set.os, 7, 120), 7, 120));
                    pool.sync().unwrap();
                    assert!(allocated(&pool, id) > 1 << 20);
                    let spares = &pool.aux_devices().spares;
                    let path = |s: &disk::NvList| s.get_str("path").map(str::to_string);
                    assert_eq!(
                        spares.iter().filter_map(path).collect::<Vec<_>>(),
                        ["draid1-4-0"]
                    );
                }
                false => assert!(pool.add_top(&draid).is_err(), "its feature is missing"),
            }
            let tops = 4 + usize::from(features);
            let used = TopSpec::new(GroupKind::Single, log.devices.clone());
            assert!(pool.add_top(&used).is_err(), "its device is in use");
            assert_eq!(pool.tree().tops().len(), tops);
            stop.store(true, Ordering::Relaxed);
        });
        drop((set, ds));
        pool.export().unwrap();
        drop(pool);
        let tops = 4 + usize::from(features);
        if let Some(z) = or_skip(OpenZfs::get()) {
            if let Err(e) = z.check(dir.path(), "tank") {
                panic!("{e}");
            }
            for d in 0..7 {
                let path = dir.path().join(format!("d{d}.img"));
                let text = z.labels(&path).unwrap();
                assert!(text.contains(&format!("vdev_children: {tops}")), "{text}");
            }
        }
        let pool = reopen(&dir);
        assert_eq!(pool.tree().tops().len(), tops);
        let ds = pool.dsl().root_dataset().unwrap();
        let set = pool.open_dataset(&ds).unwrap();
        for (object, seed, blocks) in &objects {
            verify(&set.os, *object, *seed, *blocks);
        }
        let after = write(&set.os, 9, 20);
        pool.sync().unwrap();
        verify(&set.os, after, 9, 20);
        drop((set, ds));
        rig::check(&pool).unwrap();
        pool.export().unwrap();
    }
}

/// Where the plug was pulled while a vdev was added, the pool is there with all data: as before, or with the vdev, which
/// then can be written to.
#[test]
fn a_crash_while_a_vdev_is_added_leaves_it_in_the_pool_or_out_of_it() {
    let l = Layout::new(GroupKind::Single, 1);
    let disks = vec![MemDisk::new(l.size), MemDisk::new(l.size)];
    let (env, _) = rig::machine(&disks, 1);
    let pool = rig::create_in(&l, env).unwrap();
    let ds = pool.dsl().root_dataset().unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let first = write(&set.os, 1, 20);
    pool.sync().unwrap();
    let (journal, base) = rig::start_journal(&disks);
    let spec = TopSpec {
        ashift: Some(l.ashift),
        ..TopSpec::new(GroupKind::Single, vec![DevSpec::file("d1")])
    };
    pool.add_top(&spec).unwrap();
    let second = write(&set.os, 2, 200);
    pool.sync().unwrap();
    assert!(allocated(&pool, 1) > 0);
    drop((set, ds));
    let events = journal.take();
    pool.close().unwrap();
    drop(pool);

    let mut moments: Vec<usize> = Vec::new();
    for (i, e) in events.iter().enumerate() {
        if matches!(e, Event::Flush { .. }) {
            moments.extend([i, i + 1]);
        }
    }
    let rng = SeededRng::new(7);
    let mut cutter = Cutter::new(&base, events);
    let (mut out, mut half, mut whole) = (0, 0, 0);
    for (n, at) in moments.into_iter().enumerate() {
        cutter.forward(at);
        let image = cutter.image(FATES[n % FATES.len()], &rng);
        // What discovery makes of labels that may be from before, from after, or both.
        let (env, _) = rig::machine(&image, 3);
        let found = vdev::discover(&env, &["d0".into(), "d1".into()]);
        let config = found.pools[0].config.clone();
        let readonly = OpenOptions {
            readonly: true,
            tunables: rig::tunables(),
            ..OpenOptions::default()
        };
        let look = Pool::open(env, &config, readonly).unwrap_or_else(|e| panic!("at {at}: {e}"));
        let added = look.tree().top(1).ok().map(|t| t.metaslab_array());
        look.close().unwrap();
        drop(look);
        match added {
            None => out += 1,
            Some(0) => half += 1,
            Some(_) => whole += 1,
        }
        if added == Some(0) && half == 1 {
            if let Some(z) = or_skip(OpenZfs::get()) {
                let dir = TempDir::new("half").unwrap();
                rig::dump(&image, dir.path()).unwrap();
                if let Err(e) = z.check(dir.path(), "tank") {
                    panic!("at {at}: {e}");
                }
            }
        }
        let pool = rig::open(&image, &config, 4).unwrap_or_else(|e| panic!("at {at}: {e}"));
        rig::check(&pool).unwrap_or_else(|e| panic!("at {at}: {e}"));
        assert_eq!(pool.tree().tops().len(), 1 + usize::from(added.is_some()));
        let ds = pool.dsl().root_dataset().unwrap();
        let set = pool.open_dataset(&ds).unwrap();
        verify(&set.os, first, 1, 20);
        if added.is_some() {
            assert!(pool.tree().top(1).unwrap().metaslab_array() != 0);
            write(&set.os, 3, 200);
            pool.sync().unwrap();
            assert!(allocated(&pool, 1) > 0, "at {at}");
        } else {
            assert!(set.os.hold(second).is_err(), "at {at}");
        }
        drop((set, ds));
        rig::check(&pool).unwrap_or_else(|e| panic!("at {at}: {e}"));
        pool.export().unwrap();
    }
    assert!(out > 0 && half > 0 && whole > 0, "{out} {half} {whole}");
}
