//! Many hands at once: nothing may deadlock, leak or lose count.

use super::*;
use crate::attr::mode;
use crate::rename_flags::{EXCHANGE, NOREPLACE, WHITEOUT};
use std::sync::atomic::{AtomicBool, Ordering};

fn path(r: &mut Rand) -> String {
    let mut p = format!("d{}", r.below(3));
    for _ in 0..r.below(3) {
        p.push_str(&format!("/n{}", r.below(4)));
    }
    p
}

fn hand(fs: &Fs, seed: u64, steps: usize) {
    let mut r = Rand(seed);
    let c = Cred::root();
    let mut open: Vec<Arc<Znode>> = Vec::new();
    for _ in 0..steps {
        let (p, q) = (path(&mut r), path(&mut r));
        let allowed = [
            Kind::NotFound,
            Kind::Exists,
            Kind::NotDir,
            Kind::IsDir,
            Kind::NotEmpty,
            Kind::Invalid,
            Kind::NotPermitted,
            Kind::NoData,
            Kind::Stale,
        ];
        let result = match r.below(16) {
            0..=2 => fs
                .make(&p, New::file(mode::REG | 0o644, 0))
                .map(|z| open.push(z)),
            3 | 4 => fs.make(&p, New::dir(0o755, 0)).map(drop),
            5 => fs.unlink(&p),
            6 => fs.rmdir(&p),
            7..=9 => {
                let how = [0, 0, NOREPLACE, EXCHANGE, WHITEOUT][r.below(5) as usize];
                fs.rename(&p, &q, how)
            }
            10 => fs.at(&p).and_then(|z| fs.link(&z, &q)),
            11 => fs.at(&p).and_then(|z| {
                let n = format!("user.{}", r.below(3));
                let v = vec![1; r.below(3000) as usize];
                fs.zfs.setxattr(&z, n.as_bytes(), &v, 0, false, &c)
            }),
            12 => fs.at(&p).and_then(|z| fs.zfs.listxattr(&z, &c).map(drop)),
            13 => fs.at(&p).and_then(|z| {
                let set = SetAttr {
                    mode: Some(r.below(0o1000) as u32),
                    ..SetAttr::default()
                };
                fs.zfs.setattr(&z, &set, &c).map(drop)
            }),
            14 => match open.pop() {
                Some(z) => {
                    let data = vec![seed as u8; 1 + r.below(40_000) as usize];
                    let w = fs
                        .zfs
                        .write(&z, r.below(200_000), &data, WriteOpts::default());
                    if r.below(2) == 0 {
                        open.push(z);
                    }
                    w.map(drop)
                }
                None => Ok(()),
            },
            _ => fs.at(&p).and_then(|z| fs.zfs.readdir(&z, 0, |_| Ok(true))),
        };
        if let Err(e) = result {
            assert!(allowed.contains(&e.kind), "{p} {q}: {e:?}");
        }
    }
}

#[test]
fn many_hands_on_one_tree() {
    for round in 0..3u64 {
        let fs = Fs::new();
        let own = fs.rig.os.object_count() - 1;
        for d in 0..3 {
            fs.dir(&format!("d{d}"));
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let fs = &fs;
            let done = &done;
            let hands: Vec<_> = (0..6)
                .map(|t| s.spawn(move || hand(fs, round * 100 + t, 1200)))
                .collect();
            s.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    fs.rig.sync();
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            });
            for h in hands {
                let r = h.join();
                if r.is_err() {
                    done.store(true, Ordering::Relaxed);
                }
                r.unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        fs.zfs.reap().unwrap();
        fs.check_tree();
        let fs = fs.remount();
        let tree = fs.check_tree();
        let hidden: usize = tree
            .iter()
            .filter(|o| fs.zfs.get(**o).unwrap().extra().xattr != 0)
            .count();
        assert_eq!(hidden, 0, "small attributes need no directory");
        assert_eq!(
            fs.rig.os.object_count(),
            tree.len() as u64 + own,
            "objects leaked"
        );
    }
}

/// One file: writers, truncation, readers. What is read is always made of whole writes.
#[test]
fn readers_see_whole_writes() {
    let fs = Fs::new();
    let f = fs.file("f", &[1; 100_000]);
    std::thread::scope(|s| {
        for t in 2..5u8 {
            let (fs, f) = (&fs, &f);
            s.spawn(move || {
                for _ in 0..150 {
                    fs.put(f, 0, &[t; 100_000]);
                    if t == 2 {
                        fs.zfs.truncate(f, 50_000, &Cred::root()).unwrap();
                    }
                }
            });
        }
        let (fs, f) = (&fs, &f);
        s.spawn(move || {
            let mut b = vec![0; 100_000];
            for _ in 0..300 {
                let n = fs.zfs.read(f, 0, &mut b).unwrap();
                assert!(n == 100_000 || n == 50_000);
                assert!(b[..n].iter().all(|x| *x == b[0]));
            }
        });
        s.spawn(move || {
            for _ in 0..10 {
                fs.rig.sync();
            }
        });
    });
}

#[test]
fn appends_do_not_overlap() {
    let fs = Fs::new();
    let f = fs.file("f", b"");
    let append = WriteOpts {
        append: true,
        ..WriteOpts::default()
    };
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let (fs, f) = (&fs, &f);
            s.spawn(move || {
                for _ in 0..100 {
                    fs.zfs.write(f, 0, &[t; 777], append).unwrap();
                }
            });
        }
    });
    let got = fs.get(&f);
    assert_eq!(got.len(), 4 * 100 * 777);
    assert!(got.chunks(777).all(|c| c.iter().all(|b| *b == c[0])));
}

/// User and group quotas, as the last group on disk says.
#[test]
fn quotas() {
    struct Used;
    impl SpaceInfo for Used {
        fn space(&self) -> Space {
            Space {
                referenced: 7 << 20,
                available: 1 << 30,
                objects: 5,
                objects_free: 1 << 40,
            }
        }
        fn usage(&self, whose: Whose, id: u64) -> Result<Option<Usage>> {
            Ok(match (whose, id) {
                (Whose::User, 10) => Some(Usage {
                    bytes: 1000,
                    objects: 3,
                }),
                (Whose::Project, 42) => Some(Usage {
                    bytes: 3 << 20,
                    objects: 2,
                }),
                (Whose::Project, 43) => Some(Usage {
                    bytes: 5,
                    objects: 1,
                }),
                _ => Some(Usage::default()),
            })
        }
    }
    let fs = Fs::with(5000, |o| o.project_quota = true);
    let c = Cred::root();
    let d = fs.dir("d");
    fs.zfs.set_project(&d, 42, &c).unwrap();
    fs.zfs
        .set_fs_flags(&d, attr::fs_flag::PROJINHERIT, &c)
        .unwrap();
    drop(d);
    {
        let tx = fs.rig.tx();
        for (name, id, limit) in [
            ("userquota@", "a", 1000u64),
            ("userobjquota@", "b", 0),
            ("projectquota@", "2a", 10 << 20),
            ("projectquota@", "2b", 5),
            ("userquota@", "c", 1),
            ("userquota@", "c", 0),
        ] {
            set_quota(&fs.rig.os, &tx, name, id, limit).unwrap();
        }
    }
    let m = Mount {
        clock: fs.rig.dmu.env.clock.clone(),
        props: Props {
            project_quota: true,
            ..Props::default()
        },
        space: Arc::new(Used),
        log: Arc::new(NoLog),
        pool_version: 5000,
        software_version: 5000,
    };
    let zfs = Zfs::open(&fs.rig.os, m).unwrap();
    let root = zfs.root().unwrap();
    let new = New::file(mode::REG | 0o644, 0);
    let over = Cred::user(10, 1, &[]).already_checked();
    assert_eq!(kind(zfs.create(&root, b"x", &new, &over)), Kind::Quota);
    zfs.create(&root, b"y", &new, &Cred::user(11, 1, &[]).already_checked())
        .unwrap();
    let y = zfs.lookup(&root, b"y", &c).unwrap();
    let give = SetAttr {
        uid: Some(10),
        ..SetAttr::default()
    };
    assert_eq!(kind(zfs.setattr(&y, &give, &c)), Kind::Quota);
    assert_eq!(kind(zfs.set_project(&y, 43, &c)), Kind::Quota);
    zfs.set_project(&y, 42, &c).unwrap();
    // What the log says was allowed when it was done.
    let given = Record::SetAttr {
        object: y.object,
        mode: None,
        uid: Some(10),
        gid: None,
        size: None,
        atime: None,
        mtime: None,
        ctime: None,
        extended: None,
    };
    zfs.begin_replay();
    zfs.replay(&given, None).unwrap();
    zfs.end_replay();
    assert_eq!(y.fixed().uid, 10);
    let d = zfs.lookup(&root, b"d", &c).unwrap();
    zfs.create(&d, b"in", &new, &c).unwrap();
    let s = zfs.statfs(Some(&d)).unwrap();
    assert_eq!(s.bavail * s.bsize, 7 << 20);
    assert_eq!(s.blocks * s.bsize, 10 << 20);
    assert_eq!(zfs.statfs(Some(&root)).unwrap().bavail, 8192);
}

/// A killed process waits no longer for its request. What of it waits for locks must not come after what others did meanwhile.
#[test]
fn what_was_given_up_before_it_had_its_locks_is_not_done() {
    let fs = Fs::new();
    let c = Cred::root();
    let f = fs.file("f", b"content");
    fs.dir("d");
    let before = (f.mode(), f.fixed().links);
    std::thread::scope(|s| {
        s.spawn(|| {
            base::cancel::may_change_unless(|| true);
            let set = SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            };
            let punch = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
            let refused = [
                fs.make("new", New::file(mode::REG | 0o644, 0)).map(drop),
                fs.make("dir", New::dir(0o755, 0)).map(drop),
                fs.unlink("f"),
                fs.rmdir("d"),
                fs.rename("f", "g", 0),
                fs.rename("f", "d", EXCHANGE),
                fs.link(&f, "h"),
                fs.zfs
                    .write(&f, 0, b"other", WriteOpts::default())
                    .map(drop),
                fs.zfs.truncate(&f, 3, &c),
                fs.zfs.truncate(&f, 30, &c),
                fs.zfs.setattr(&f, &set, &c).map(drop),
                fs.zfs.fallocate(&f, 0, 4, punch),
                fs.zfs.setxattr(&f, b"user.a", b"b", 0, false, &c),
            ];
            for (n, r) in refused.into_iter().enumerate() {
                assert_eq!(kind(r), Kind::Interrupted, "{n}");
            }
        });
    });
    assert_eq!(fs.list(""), ["d", "f"]);
    assert_eq!(fs.get(&f), b"content");
    assert_eq!((f.mode(), f.fixed().links), before);
    fs.check_tree();
}
