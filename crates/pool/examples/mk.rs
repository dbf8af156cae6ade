//! Makes a pool on image files: `mk VERSION KIND IMAGE…`; for looking at it with zdb.
use disk::feature;
use pool::{CreateSpec, Pool, Tunables};
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{create_fs, FsOptions};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let version: u64 = args[0].parse().unwrap();
    let kind = match args[1].as_str() {
        "single" => GroupKind::Single,
        "mirror" => GroupKind::Mirror,
        k => GroupKind::Raidz {
            nparity: k.trim_start_matches("raidz").parse().unwrap(),
        },
    };
    let devices = args[2..].iter().map(DevSpec::file).collect();
    let spec = CreateSpec {
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
    };
    let pool = Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
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
    .unwrap();
    pool.export().unwrap();
}
