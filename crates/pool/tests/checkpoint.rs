//! The checkpoint of a pool: taken, refused, gone back to and discarded, judged by OpenZFS.

use base::Kind;
use disk::feature::guid;
use disk::ObjType;
use dmu::{NewObject, Objset};
use dsl::Features;
use pool::{CreateSpec, OpenOptions, OpenSet, Pool, Tunables};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::{Attach, DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, FsOptions};

const BLOCK: usize = 128 << 10;

fn image(dir: &TempDir, name: &str) -> DevSpec {
    let p = dir.image(name, 128 << 20).unwrap();
    DevSpec::file(p.to_str().unwrap())
}

/// A pool of a mirror. Jobs handle little in each txg, so that discarding takes several.
fn create(dir: &TempDir, without: &[&str]) -> Arc<Pool> {
    let devices = vec![image(dir, "d0.img"), image(dir, "d1.img")];
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(GroupKind::Mirror, devices)],
        version: 5000,
        features: disk::feature::FEATURES
            .iter()
            .filter(|f| f.supported && f.default_on && !without.contains(&f.name))
            .collect(),
        extra: vec![],
        command: "zpool create tank".into(),
        tunables: few(),
    };
    Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        let now = zpl::Time { sec: 1, nsec: 0 };
        create_fs(os, tx, &FsOptions::new(5000, now))
    })
    .unwrap()
}

fn few() -> Tunables {
    Tunables {
        job_bytes: 4096,
        ..Tunables::default()
    }
}

fn try_open(dir: &TempDir, options: OpenOptions) -> base::Result<Arc<Pool>> {
    let images: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path().to_str().unwrap().to_string())
        .collect();
    let env = env_linux::linux_env();
    let found = vdev::discover(&env, &images).pools;
    let options = OpenOptions {
        tunables: few(),
        ..options
    };
    Pool::open(env, &found[0].config, options)
}

fn open(dir: &TempDir) -> Arc<Pool> {
    try_open(dir, OpenOptions::default()).unwrap()
}

fn open_at_checkpoint(dir: &TempDir) -> base::Result<Arc<Pool>> {
    let back = OpenOptions {
        checkpoint: true,
        ..OpenOptions::default()
    };
    try_open(dir, back)
}

fn root(pool: &Arc<Pool>) -> Arc<OpenSet> {
    let ds = pool.dsl().root_dataset().unwrap();
    pool.open_dataset(&ds).unwrap()
}

fn block(seed: u64, n: u64) -> Vec<u8> {
    let word = |i: usize| (seed << 40 | n << 20 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BLOCK / 8).flat_map(|i| word(i).to_le_bytes()).collect()
}

/// Writes blocks of an object, which is made if it is 0.
fn write(os: &Arc<Objset>, object: u64, seed: u64, blocks: u64) -> u64 {
    let object = match object {
        0 => {
            let tx = os.tx(dmu::Need::bytes(BLOCK as u64)).unwrap();
            let new = NewObject {
                obj_type: ObjType::PLAIN_FILE_CONTENTS,
                block_size: BLOCK,
                ..Default::default()
            };
            os.alloc(&tx, &new).unwrap().object()
        }
        object => object,
    };
    let dn = os.hold(object).unwrap();
    for n in 0..blocks {
        let tx = os.tx(dmu::Need::bytes(BLOCK as u64)).unwrap();
        dn.write(&tx, n * BLOCK as u64, &block(seed, n)).unwrap();
    }
    object
}

fn verify(os: &Arc<Objset>, object: u64, seed: u64, blocks: u64) {
    let dn = os.hold(object).unwrap();
    let mut b = vec![0; BLOCK];
    for n in 0..blocks {
        dn.read(n * BLOCK as u64, &mut b).unwrap();
        assert!(b == block(seed, n), "object {object}, block {n}");
    }
}

fn judged(dir: &TempDir) {
    if let Some(oz) = or_skip(OpenZfs::get()) {
        oz.check(dir.path(), "tank").unwrap();
    }
}

/// Overwrites the object again and again, so that space that is free is used.
fn churn(pool: &Arc<Pool>, set: &OpenSet, object: u64, blocks: u64) {
    for seed in 10..14 {
        write(&set.os, object, seed, blocks);
        pool.sync().unwrap();
    }
}

fn active(pool: &Pool) -> bool {
    pool.feature_store()
        .unwrap()
        .is_active(guid::ZPOOL_CHECKPOINT)
}

#[test]
fn what_the_checkpoint_has_is_there_when_it_is_gone_back_to() {
    let dir = TempDir::new("checkpoint").unwrap();
    let pool = create(&dir, &[]);
    let set = root(&pool);
    let object = write(&set.os, 0, 1, 100);
    pool.sync().unwrap();
    let taken = pool.take_checkpoint().unwrap();
    assert!(taken < pool.synced_txg() && active(&pool));
    let free = pool.space().stats();
    churn(&pool, &set, object, 100);
    let kept = pool.shares().checkpoint.kept_sum();
    assert!(kept >= 100 * BLOCK as u64, "{kept} bytes are kept");
    drop(free);

    let e = pool.take_checkpoint().unwrap_err();
    assert_eq!(
        (e.kind, e.to_string()),
        (Kind::Exists, "checkpoint exists".into())
    );
    // Nothing that changes which devices there are, but for new ones.
    let leaf = pool.tree().leaves()[0].guid();
    let e = pool.detach(leaf).unwrap_err();
    assert_eq!(e.to_string(), "checkpoint exists");
    let new = image(&dir, "new.img");
    let e = pool.attach(leaf, &new, Attach::Mirror, None).unwrap_err();
    assert_eq!(e.to_string(), "checkpoint exists");
    let devices = vec![image(&dir, "d2.img"), image(&dir, "d3.img")];
    let added = pool.add_top(&TopSpec::new(GroupKind::Mirror, devices));
    assert_eq!(added.unwrap(), 1);
    write(&set.os, 0, 30, 100);
    drop(set);
    pool.export().unwrap();
    judged(&dir);

    let pool = open_at_checkpoint(&dir).unwrap();
    assert_eq!(pool.tree().tops().len(), 1);
    assert!(pool.shares().checkpoint.txg().is_none() && !active(&pool));
    let set = root(&pool);
    verify(&set.os, object, 1, 100);
    churn(&pool, &set, object, 100);
    drop(set);
    pool.export().unwrap();
    judged(&dir);
    let pool = open(&dir);
    verify(&root(&pool).os, object, 13, 100);
    pool.close().unwrap();
}

#[test]
fn a_discarded_checkpoint_gives_back_its_space_also_after_imports() {
    let dir = TempDir::new("discard").unwrap();
    let pool = create(&dir, &[]);
    let set = root(&pool);
    let object = write(&set.os, 0, 1, 60);
    pool.sync().unwrap();
    let e = pool.discard_checkpoint().unwrap_err();
    assert_eq!(
        (e.kind, e.to_string()),
        (Kind::NotFound, "checkpoint does not exist".into())
    );
    let used = |pool: &Pool| pool.space().stats().vdevs[0].allocated;
    pool.take_checkpoint().unwrap();
    churn(&pool, &set, object, 60);
    let with = used(&pool);
    pool.discard_checkpoint().unwrap();
    let c = &pool.shares().checkpoint;
    if c.is_discarding() {
        let e = pool.take_checkpoint().unwrap_err();
        assert_eq!(
            (e.kind, e.to_string()),
            (Kind::Busy, "currently discarding checkpoint".into())
        );
        assert_eq!(pool.discard_checkpoint().unwrap_err().kind, Kind::Busy);
    }
    drop(set);
    pool.close().unwrap();
    let e = open_at_checkpoint(&dir).map(drop).unwrap_err();
    assert!(e.to_string().contains("checkpoint does not exist"), "{e}");

    let pool = open(&dir);
    for _ in 0..200 {
        if !pool.shares().checkpoint.is_discarding() {
            break;
        }
        pool.prove_devices().unwrap();
    }
    assert!(!pool.shares().checkpoint.is_discarding() && !active(&pool));
    assert_eq!(pool.shares().checkpoint.kept_sum(), 0);
    for _ in 0..4 {
        pool.prove_devices().unwrap();
    }
    let without = used(&pool);
    assert!(without + 60 * BLOCK as u64 <= with, "{without} of {with}");
    verify(&root(&pool).os, object, 13, 60);
    // There may be another one.
    pool.take_checkpoint().unwrap();
    pool.discard_checkpoint().unwrap();
    pool.export().unwrap();
    judged(&dir);
}

/// OpenZFS takes an entry of the map of a device for one that lies within a metaslab.
#[test]
fn ranges_of_neighbouring_metaslabs_are_noted_apart() {
    let dir = TempDir::new("metaslabs").unwrap();
    let pool = create(&dir, &[]);
    let shift = pool.tree().tops()[0].metaslab_shift();
    pool.take_checkpoint().unwrap();
    let c = &pool.shares().checkpoint;
    let edge = 3 << shift;
    let old = c.txg().unwrap();
    // As if two blocks were freed that touch where a metaslab ends.
    assert!(c.has(old));
    c.keep(0, edge - 4096, 4096).unwrap();
    c.keep(0, edge, 8192).unwrap();
    pool.prove_devices().unwrap();
    let zap = pool.tree().tops()[0].get_u64(vdev::keys::ZAP_TOP).unwrap();
    let map = zap::Zap::new(&pool.mos().hold(zap).unwrap())
        .get(disk::mos_keys::CHECKPOINT_SPACEMAP)
        .unwrap()
        .unwrap();
    let header = pool.mos().hold(map).unwrap().bonus();
    let p = disk::spacemap::SpaceMapPhys::decode(&header).unwrap();
    let ashift = pool.tree().tops()[0].ashift();
    let mut found = Vec::new();
    pool::map_pieces(pool.mos(), map, p.length, &mut |piece| {
        for e in disk::spacemap::entries(piece) {
            if let disk::spacemap::Entry::Range(r) = e? {
                found.push(r.bytes(ashift)?);
            }
        }
        Ok(())
    })
    .unwrap();
    assert!(found.contains(&(edge - 4096, edge)), "{found:?}");
    assert!(found.contains(&(edge, edge + 8192)), "{found:?}");
    pool.close().unwrap();
}

#[test]
fn without_the_feature_no_checkpoint_is_taken() {
    let dir = TempDir::new("featureless").unwrap();
    let pool = create(&dir, &["zpool_checkpoint"]);
    let e = pool.take_checkpoint().unwrap_err();
    assert_eq!(e.kind, Kind::Unsupported);
    assert!(
        e.to_string()
            .starts_with("operation not supported on this type of pool"),
        "{e}"
    );
    pool.close().unwrap();
}
