//! Pools whose newest state is torn: opened at an older one, where the user asks for that.

use base::Txg;
use disk::feature;
use disk::label::DATA_START;
use env::Env;
use pool::{CreateSpec, OpenOptions, Pool, Rewind, Tunables};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, FsOptions};

fn env() -> Env {
    env_linux::linux_env()
}

/// A pool whose newest txgs say "one", "two" and "three" in their comment, closed as it is.
fn make(dir: &TempDir) -> PathBuf {
    let image = dir.image("d0.img", 128 << 20).unwrap();
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(
            GroupKind::Single,
            vec![DevSpec::file(image.to_str().unwrap())],
        )],
        version: 5000,
        features: feature::FEATURES
            .iter()
            .filter(|f| f.supported && f.default_on)
            .collect(),
        extra: vec![],
        command: "zpool create tank".into(),
        tunables: Tunables::default(),
    };
    let now = zpl::Time {
        sec: 1_700_000_000,
        nsec: 5,
    };
    let pool = Pool::create(env(), spec, &|_, os, tx| {
        create_fs(os, tx, &FsOptions::new(5000, now))
    })
    .unwrap();
    for word in ["one", "two", "three"] {
        pool.set_extra("comment", Some(word));
        pool.sync().unwrap();
    }
    pool.close().unwrap();
    image
}

/// Ruins the meta object set of the newest state.
fn tear(image: &Path) -> u64 {
    let disk = env()
        .disks
        .open(image.to_str().unwrap(), env::Access::Read)
        .unwrap();
    let ub = [9, 12]
        .iter()
        .filter_map(|ashift| vdev::label::best_uberblock(&*disk, *ashift, Txg::MAX))
        .max_by_key(|ub| ub.txg)
        .unwrap();
    let file = File::options().write(true).open(image).unwrap();
    for d in ub.rootbp.dvas() {
        file.write_all_at(&[0x5a; 512], DATA_START + d.offset())
            .unwrap();
    }
    ub.txg.number()
}

fn open(dir: &TempDir, options: OpenOptions) -> base::Result<Arc<Pool>> {
    let image = dir.path().join("d0.img").to_str().unwrap().to_string();
    let found = vdev::discover(&env(), &[image]).pools;
    Pool::open(env(), &found[0].config, options)
}

fn comment(p: &Pool) -> String {
    let s = p.shared();
    let found = s.extra.iter().find(|(k, _)| k == "comment");
    found.map(|(_, v)| v.clone()).unwrap_or_default()
}

#[test]
fn the_newest_state_that_is_whole() {
    let dir = TempDir::new("rewind").unwrap();
    let image = make(&dir);
    let p = open(&dir, OpenOptions::default()).unwrap();
    assert_eq!((comment(&p).as_str(), p.rewound()), ("three", None));
    p.set_extra("comment", Some("four"));
    p.sync().unwrap();
    p.close().unwrap();
    let torn = tear(&image);

    // Not without being asked.
    let e = open(&dir, OpenOptions::default()).map(|_| ()).unwrap_err();
    assert!(matches!(e.kind, base::Kind::Checksum), "{e}");
    let safe = OpenOptions {
        rewind: Rewind::Safe,
        ..OpenOptions::default()
    };
    let look = OpenOptions {
        readonly: true,
        ..safe.clone()
    };
    let p = open(&dir, look).unwrap();
    assert!(p.rewound().is_some() && p.synced_txg() >= Txg::new(torn));
    assert_eq!(comment(&p), "three");
    p.close().unwrap();

    // For good: txgs to come are numbered after the torn one, whose uberblock is still there.
    let p = open(&dir, safe).unwrap();
    assert_eq!(comment(&p), "three");
    assert!(p.rewound().is_some() && p.synced_txg() > Txg::new(torn));
    p.set_extra("comment", Some("five"));
    p.sync().unwrap();
    p.export().unwrap();
    let p = open(&dir, OpenOptions::default()).unwrap();
    assert_eq!((comment(&p).as_str(), p.rewound()), ("five", None));
    p.export().unwrap();
    if let Some(oz) = or_skip(OpenZfs::get()) {
        oz.check(dir.path(), "tank").unwrap();
    }
}

#[test]
fn a_state_by_its_number() {
    let dir = TempDir::new("rewind").unwrap();
    make(&dir);
    let p = open(&dir, OpenOptions::default()).unwrap();
    let newest = p.synced_txg();
    p.close().unwrap();
    let back = OpenOptions {
        readonly: true,
        txg: Some(newest.before(3)),
        ..OpenOptions::default()
    };
    let p = open(&dir, back).unwrap();
    assert!(p.rewound().is_some());
    p.close().unwrap();
    let none = OpenOptions {
        readonly: true,
        checkpoint: true,
        ..OpenOptions::default()
    };
    let e = open(&dir, none).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("checkpoint does not exist"), "{e}");
}
