//! Pools of version 23 exchanged with the old zfs-fuse 0.7, and judged by OpenZFS's zdb.

use pool::{CreateSpec, OpenOptions, Pool, Tunables};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use testkit::{or_skip, OldZfsFuse, OpenZfs, TempDir};
use vdev::{DevSpec, GroupKind, TopSpec};
use zpl::{
    create_fs, Cred, FsOptions, Mount, New, NoLog, Props, SetAttr, SetTime, Space, SpaceInfo, Time,
    WriteOpts, Zfs, Znode,
};

struct Plenty;

impl SpaceInfo for Plenty {
    fn space(&self) -> Space {
        Space {
            available: 1 << 30,
            objects_free: 1 << 30,
            ..Space::default()
        }
    }
}

fn create(dir: &TempDir, version: u64) -> Arc<Pool> {
    let image = dir.image("d0.img", 128 << 20).unwrap();
    let spec = CreateSpec {
        name: "tank".into(),
        tops: vec![TopSpec::new(
            GroupKind::Single,
            vec![DevSpec::file(image.to_str().unwrap())],
        )],
        version,
        features: if version == 5000 {
            let all = disk::feature::FEATURES.iter();
            all.filter(|f| f.supported && f.default_on).collect()
        } else {
            Vec::new()
        },
        extra: vec![],
        command: "zpool create tank".into(),
        tunables: Tunables::default(),
    };
    Pool::create(env_linux::linux_env(), spec, &|_, os, tx| {
        let mut o = FsOptions::new(version, Time::new(1_700_000_000, 5));
        o.project_quota = version == 5000;
        create_fs(os, tx, &o)
    })
    .unwrap()
}

fn open(dir: &TempDir) -> Arc<Pool> {
    let env = env_linux::linux_env();
    let image = dir.path().join("d0.img").to_str().unwrap().to_string();
    let found = vdev::discover(&env, &[image]);
    Pool::open(env, &found.pools[0].config, OpenOptions::default()).unwrap()
}

fn mount(pool: &Arc<Pool>) -> Arc<Zfs> {
    let ds = pool.dsl().root_dataset().unwrap();
    let set = pool.open_dataset(&ds).unwrap();
    let zfs = Zfs::open(
        &set.os,
        Mount {
            clock: pool.env.clock.clone(),
            props: Props {
                project_quota: pool.version() == 5000,
                ..Props::default()
            },
            space: Arc::new(Plenty),
            log: Arc::new(NoLog),
            pool_version: pool.version(),
            software_version: pool.software_version(),
        },
    )
    .unwrap();
    zfs.start().unwrap();
    zfs
}

fn unmount(pool: &Arc<Pool>, zfs: Arc<Zfs>) {
    zfs.stop().unwrap();
    drop(zfs);
    pool.sync().unwrap();
    pool.export().unwrap();
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|i| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // Half of it compresses.
            if (i / 4096) % 2 == 0 {
                x as u8
            } else {
                (i / 100) as u8
            }
        })
        .collect()
}

/// A bit of everything.
fn populate(zfs: &Zfs) {
    let c = Cred::root();
    let root = zfs.root().unwrap();
    let reg = |m: u32| New::file(0o100000 | m, 0);
    let dir = zfs.create(&root, b"dir", &New::dir(0o2755, 0), &c).unwrap();
    for (i, len) in [
        0, 1, 511, 512, 513, 5000, 131_072, 131_073, 1_000_000, 3_333_333,
    ]
    .iter()
    .enumerate()
    {
        let name = format!("file{i}");
        let z = zfs
            .create(&dir, name.as_bytes(), &reg(0o600 + i as u32), &c)
            .unwrap();
        let data = noise(i as u64 + 1, *len);
        zfs.write(&z, 0, &data, WriteOpts::default()).unwrap();
        let set = SetAttr {
            uid: Some(1000 + i as u32),
            gid: Some(2000 + i as u32),
            atime: Some(SetTime::To(Time::new(1_111_111_111, 5))),
            mtime: Some(SetTime::To(Time::new(
                1_234_567_890 + i as i64,
                123_456_789,
            ))),
            ..SetAttr::default()
        };
        zfs.setattr(&z, &set, &c).unwrap();
        if i % 3 == 0 {
            zfs.link(&z, &root, format!("hard{i}").as_bytes(), &c)
                .unwrap();
        }
        zfs.setxattr(
            &z,
            b"user.note",
            format!("of {name}").as_bytes(),
            0,
            false,
            &c,
        )
        .unwrap();
    }
    let sparse = zfs.create(&root, b"sparse", &reg(0o644), &c).unwrap();
    zfs.write(&sparse, 50_000_000, b"end", WriteOpts::default())
        .unwrap();
    for len in [1, 40, 56, 57, 500, 4000] {
        let target = vec![b'x'; len];
        let name = format!("link{len}");
        zfs.create(&root, name.as_bytes(), &New::symlink(&target), &c)
            .unwrap();
    }
    zfs.create(&root, b"fifo", &New::device(0o010640, 0, 0), &c)
        .unwrap();
    zfs.create(&root, b"null", &New::device(0o020666, 0, 0x103), &c)
        .unwrap();
    zfs.create(&root, b"sda1", &New::device(0o060660, 0, 0x801), &c)
        .unwrap();
    let many = zfs.create(&root, b"many", &New::dir(0o700, 0), &c).unwrap();
    for i in 0..1500 {
        let name = format!("entry number {i} in a directory that needs a fat map");
        zfs.create(&many, name.as_bytes(), &reg(0o644), &c).unwrap();
    }
    for i in (0..1500).step_by(3) {
        let name = format!("entry number {i} in a directory that needs a fat map");
        zfs.unlink(&many, name.as_bytes(), &c).unwrap();
    }
}

/// A line for every entry, as [`SCRIPT`] prints them.
fn describe(zfs: &Zfs) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut todo = vec![(String::new(), zfs.root().unwrap())];
    while let Some((path, dir)) = todo.pop() {
        let mut names = Vec::new();
        zfs.readdir(&dir, 2, |e| {
            names.push(e.name.to_vec());
            Ok(true)
        })
        .unwrap();
        for n in names {
            let z: Arc<Znode> = zfs.lookup(&dir, &n, &Cred::root()).unwrap();
            let a = zfs.getattr(&z);
            let p = format!("{path}/{}", String::from_utf8(n).unwrap());
            let is_dir = a.mode >> 12 == 4;
            let mut line = format!("{:o} {}:{}", a.mode, a.uid, a.gid);
            if !is_dir {
                let _ = write!(line, " n{} s{}", a.nlink, a.size);
            }
            // The old zfs-fuse stores the rest but shows whole seconds only.
            let _ = write!(line, " {} ", a.mtime.sec);
            match a.mode >> 12 {
                8 => {
                    let mut b = vec![0; a.size as usize];
                    zfs.read(&z, 0, &mut b).unwrap();
                    for x in Sha256::digest(&b) {
                        let _ = write!(line, "{x:02x}");
                    }
                }
                10 => line += &String::from_utf8(zfs.readlink(&z).unwrap()).unwrap(),
                2 | 6 => {
                    let _ = write!(line, "{:x}:{:x}", a.rdev >> 8 & 0xfff, a.rdev & 0xff);
                }
                _ => {}
            }
            out.insert(p.clone(), line);
            if is_dir {
                todo.push((p, z));
            }
        }
    }
    out
}

/// Prints what [`describe`] does, with a tab behind the path.
const SCRIPT: &str = r#"cd /tank && find . -mindepth 1 | sed 's,^\.,,' | while IFS= read -r p; do
f=".$p"; m=$(printf %o 0x$(stat -c %f "$f")); u=$(stat -c %u:%g "$f"); t=$(stat -c %Y "$f")
n=" n$(stat -c %h "$f") s$(stat -c %s "$f")"; x=
if [ -L "$f" ]; then x=$(readlink "$f")
elif [ -d "$f" ]; then n=
elif [ -f "$f" ]; then x=$(sha256sum < "$f" | cut -c1-64)
elif [ -b "$f" ] || [ -c "$f" ]; then x=$(stat -c %t:%T "$f"); fi
printf '%s\t%s %s%s %s %s\n' "$p" "$m" "$u" "$n" "$t" "$x"
done"#;

fn parse(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|l| l.split_once('\t'))
        .map(|(p, l)| (p.to_string(), l.to_string()))
        .collect()
}

fn same(got: &BTreeMap<String, String>, want: &BTreeMap<String, String>) {
    let mut bad = 0;
    for (p, w) in want {
        let g = got.get(p);
        if g != Some(w) && bad < 20 {
            eprintln!("{p}: {g:?}, not {w:?}");
        }
        bad += usize::from(g != Some(w));
    }
    for p in got.keys().filter(|p| !want.contains_key(*p)) {
        eprintln!("{p}: not expected");
        bad += 1;
    }
    assert_eq!(bad, 0, "of {} entries", want.len());
}

#[test]
fn zdb_is_content() {
    let Some(oz) = or_skip(OpenZfs::get()) else {
        return;
    };
    for version in [5000, 23, 8, 1] {
        let dir = TempDir::new("zpl").unwrap();
        let pool = create(&dir, version);
        let zfs = mount(&pool);
        populate(&zfs);
        pool.sync().unwrap();
        let want = describe(&zfs);
        let c = Cred::root();
        let root = zfs.root().unwrap();
        zfs.rename(&root, b"many", &root, b"renamed", 0, &c)
            .unwrap();
        zfs.rename(&root, b"renamed", &root, b"many", 0, &c)
            .unwrap();
        let gone = zfs
            .create(&root, b"gone", &New::file(0o100600, 0), &c)
            .unwrap();
        zfs.write(&gone, 0, &noise(77, 2_000_000), WriteOpts::default())
            .unwrap();
        pool.sync().unwrap();
        zfs.unlink(&root, b"gone", &c).unwrap();
        drop((gone, root));
        unmount(&pool, zfs);
        drop(pool);
        if let Err(e) = oz.check(dir.path(), "tank") {
            panic!("version {version}: {e}");
        }
        let pool = open(&dir);
        let zfs = mount(&pool);
        same(&describe(&zfs), &want);
        unmount(&pool, zfs);
    }
}

#[test]
fn to_the_old_zfs_fuse_and_back() {
    let Some(old) = or_skip(OldZfsFuse::start()) else {
        return;
    };
    let dir = TempDir::new("exchange").unwrap();
    let pool = create(&dir, 23);
    let zfs = mount(&pool);
    populate(&zfs);
    let want = describe(&zfs);
    unmount(&pool, zfs);
    drop(pool);

    let at = dir.path().to_str().unwrap();
    old.zpool(&["import", "-d", at, "tank"]).unwrap();
    same(&parse(&old.sh(SCRIPT).unwrap()), &want);
    old.sh(
        "cd /tank; rm -r many; rm file3 dir/file3 hard3 -f; mkdir -p new/deep; \
         seq 300000 > new/numbers; seq 10 >> dir/file5; truncate -s 100000 dir/file9; \
         ln -s some/where new/soft; ln new/numbers new/deep/again; mkfifo new/pipe; \
         mknod new/dev c 4 64; mknod new/big b 259 3; chmod 1777 new; chown 5:6 new/numbers; \
         touch -d @1000000000.5 new/deep/again; mv dir/file6 new/; \
         for i in $(seq 400); do echo $i > new/deep/$i; done",
    )
    .unwrap();
    let want = parse(&old.sh(SCRIPT).unwrap());
    old.zpool(&["export", "tank"]).unwrap();

    let pool = open(&dir);
    let zfs = mount(&pool);
    same(&describe(&zfs), &want);
    let c = Cred::root();
    let f = zfs.lookup(&zfs.root().unwrap(), b"dir", &c).unwrap();
    let f = zfs.lookup(&f, b"file4", &c).unwrap();
    assert_eq!(zfs.getxattr(&f, b"user.note", &c).unwrap(), b"of file4");
    drop(f);
    // What it made can be changed here, and goes back once more.
    let root = zfs.root().unwrap();
    let new = zfs.lookup(&root, b"new", &c).unwrap();
    let n = zfs.lookup(&new, b"numbers", &c).unwrap();
    zfs.write(&n, 5, b"written here", WriteOpts::default())
        .unwrap();
    zfs.rename(&new, b"deep", &root, b"moved", 0, &c).unwrap();
    zfs.unlink(&new, b"soft", &c).unwrap();
    drop((n, new, root));
    let want = describe(&zfs);
    unmount(&pool, zfs);
    drop(pool);
    if let Some(oz) = or_skip(OpenZfs::get()) {
        oz.check(dir.path(), "tank").unwrap();
    }
    old.zpool(&["import", "-d", at, "tank"]).unwrap();
    same(&parse(&old.sh(SCRIPT).unwrap()), &want);
    old.zpool(&["export", "tank"]).unwrap();
    old.stop().unwrap();
}
