//! What POSIX and Linux say files and directories do.

use super::*;
use crate::attr::{mode, SetTime};
use crate::rename_flags::*;

const REG: u32 = mode::REG | 0o644;

#[test]
fn empty_file_system() {
    let fs = Fs::new();
    let r = fs.root();
    let a = fs.zfs.getattr(&r);
    assert_eq!(a.mode, mode::DIR | 0o755);
    assert_eq!((a.nlink, a.size), (2, 2));
    assert_eq!(r.fixed().parent, r.object);
    assert!(fs.list("").is_empty());
    let up = fs.zfs.lookup(&r, b"..", &Cred::root()).unwrap();
    assert_eq!(up.object, r.object);
    assert_eq!(kind(fs.at("x")), Kind::NotFound);
    drop((r, up));
    let fs = fs.remount();
    assert_eq!(fs.check_tree().len(), 1);
}

#[test]
fn names() {
    let fs = Fs::new();
    let long = "n".repeat(255);
    fs.file(&long, b"x");
    assert_eq!(
        kind(fs.make(&"n".repeat(256), New::file(REG, 0))),
        Kind::NameTooLong
    );
    assert_eq!(kind(fs.at(&"n".repeat(256))), Kind::NameTooLong);
    assert_eq!(kind(fs.make(&long, New::file(REG, 0))), Kind::Exists);
    let root = fs.root();
    let c = Cred::root();
    for n in [&b"."[..], b".."] {
        assert_eq!(
            kind(fs.zfs.create(&root, n, &New::dir(0o755, 0), &c)),
            Kind::Exists
        );
        assert_eq!(
            kind(fs.zfs.link(&fs.at(&long).unwrap(), &root, n, &c)),
            Kind::Exists
        );
        assert_eq!(
            kind(fs.zfs.rename(&root, n, &root, b"q", 0, &c)),
            Kind::Invalid
        );
    }
    assert_eq!(kind(fs.zfs.rmdir(&root, b".", &c)), Kind::Invalid);
    assert_eq!(kind(fs.zfs.rmdir(&root, b"..", &c)), Kind::NotEmpty);
    fs.zfs
        .create(&root, b"\xff\xfe \n", &New::file(REG, 0), &c)
        .unwrap();
    assert!(fs.zfs.lookup(&root, b"\xff\xfe \n", &c).is_ok());
    drop(root);
    let fs = fs.remount();
    assert_eq!(fs.get(&fs.at(&long).unwrap()), b"x");
    fs.check_tree();
}

#[test]
fn not_a_directory() {
    let fs = Fs::new();
    let f = fs.file("f", b"");
    let c = Cred::root();
    assert_eq!(kind(fs.zfs.lookup(&f, b"x", &c)), Kind::NotDir);
    assert_eq!(
        kind(fs.zfs.create(&f, b"x", &New::file(REG, 0), &c)),
        Kind::NotDir
    );
    assert_eq!(kind(fs.zfs.unlink(&f, b"x", &c)), Kind::NotDir);
    assert_eq!(kind(fs.zfs.rmdir(&f, b"x", &c)), Kind::NotDir);
    assert_eq!(kind(fs.rmdir("f")), Kind::NotDir);
    fs.dir("d");
    assert_eq!(kind(fs.unlink("d")), Kind::IsDir);
    assert_eq!(kind(fs.link(&fs.at("d").unwrap(), "e")), Kind::NotPermitted);
    let d = fs.at("d").unwrap();
    assert_eq!(kind(fs.zfs.read(&d, 0, &mut [0])), Kind::IsDir);
    assert_eq!(
        kind(fs.zfs.write(&d, 0, b"x", WriteOpts::default())),
        Kind::IsDir
    );
    assert_eq!(kind(fs.zfs.truncate(&d, 0, &c)), Kind::IsDir);
    assert_eq!(kind(fs.zfs.readlink(&d)), Kind::Invalid);
    assert_eq!(kind(fs.zfs.readdir(&f, 0, |_| Ok(true))), Kind::NotDir);
}

#[test]
fn all_types() {
    let fs = Fs::new();
    for (i, t) in [mode::FIFO, mode::CHR, mode::BLK, mode::REG, mode::SOCK]
        .iter()
        .enumerate()
    {
        let dev = 0x12_3456 + i as u64;
        let z = fs
            .make(&format!("n{i}"), New::device(t | 0o640, 0o022, dev))
            .unwrap();
        let a = fs.zfs.getattr(&z);
        assert_eq!(a.mode, t | 0o640);
        assert_eq!(a.nlink, 1);
        assert_eq!(a.rdev, if mode::is_dev(*t) { dev } else { 0 });
    }
    let short = b"target".to_vec();
    let long = vec![b'l'; SYMLINK_MAX];
    fs.make("s", New::symlink(&short)).unwrap();
    fs.make("l", New::symlink(&long)).unwrap();
    assert_eq!(
        kind(fs.make("m", New::symlink(&[b'l'; SYMLINK_MAX + 1]))),
        Kind::NameTooLong
    );
    for len in [1, 100, 143, 144, 145, 151, 152, 153, 160, 200, 300, 1000] {
        fs.make(&format!("s{len}"), New::symlink(&vec![b'x'; len]))
            .unwrap();
    }
    let fs = fs.remount();
    assert_eq!(fs.zfs.readlink(&fs.at("s").unwrap()).unwrap(), short);
    let l = fs.at("l").unwrap();
    assert_eq!(fs.zfs.readlink(&l).unwrap(), long);
    assert_eq!(fs.zfs.getattr(&l).size, SYMLINK_MAX as u64);
    assert_eq!(fs.zfs.getattr(&l).mode, mode::LNK | 0o777);
    for len in [1, 100, 143, 144, 145, 151, 152, 153, 160, 200, 300, 1000] {
        let z = fs.at(&format!("s{len}")).unwrap();
        assert_eq!(fs.zfs.readlink(&z).unwrap(), vec![b'x'; len]);
    }
    assert_eq!(fs.zfs.getattr(&fs.at("n1").unwrap()).rdev, 0x12_3457);
    fs.check_tree();
}

#[test]
fn reading_and_writing() {
    let fs = Fs::new();
    let f = fs.file("f", b"hello");
    fs.put(&f, 5, b" world");
    fs.put(&f, 0, b"J");
    assert_eq!(fs.get(&f), b"Jello world");
    fs.put(&f, 1000, b"x");
    let mut want = b"Jello world".to_vec();
    want.resize(1000, 0);
    want.push(b'x');
    assert_eq!(fs.get(&f), want);
    let mut b = [1; 4];
    assert_eq!(fs.zfs.read(&f, 1001, &mut b).unwrap(), 0);
    assert_eq!(fs.zfs.read(&f, u64::MAX - 2, &mut b).unwrap(), 0);
    assert_eq!(fs.zfs.read(&f, 999, &mut b).unwrap(), 2);
    let append = WriteOpts {
        append: true,
        ..WriteOpts::default()
    };
    fs.zfs.write(&f, 0, b"tail", append).unwrap();
    want.extend_from_slice(b"tail");
    assert_eq!(fs.get(&f), want);
    drop(f);
    let fs = fs.remount();
    assert_eq!(fs.get(&fs.at("f").unwrap()), want);
}

#[test]
fn limits_of_size() {
    let fs = Fs::new();
    let f = fs.file("f", b"");
    let c = Cred::root();
    // Beyond the end of all numbers, where the first block would be the one that grows.
    for at in [MAX_SIZE, u64::MAX - 5, u64::MAX] {
        let o = WriteOpts::default();
        assert_eq!(
            kind(fs.zfs.write(&f, at, b"0123456789", o)),
            Kind::FileTooBig
        );
    }
    fs.zfs.truncate(&f, MAX_SIZE, &c).unwrap();
    assert_eq!(fs.zfs.getattr(&f).size, i64::MAX as u64);
    assert_eq!(
        kind(fs.zfs.truncate(&f, MAX_SIZE + 1, &c)),
        Kind::FileTooBig
    );
    let o = WriteOpts::default();
    assert_eq!(kind(fs.zfs.write(&f, MAX_SIZE, b"x", o)), Kind::FileTooBig);
    assert_eq!(fs.zfs.write(&f, MAX_SIZE - 2, b"xyz", o).unwrap(), 2);
    let mut b = [9; 4];
    assert_eq!(fs.zfs.read(&f, MAX_SIZE - 3, &mut b).unwrap(), 3);
    assert_eq!(&b[..3], b"\0xy");
    assert_eq!(
        fs.zfs.seek(&f, 0, true).unwrap() / (128 << 10),
        MAX_SIZE / (128 << 10)
    );
    drop(f);
    let fs = fs.remount();
    let f = fs.at("f").unwrap();
    assert_eq!(fs.zfs.read(&f, MAX_SIZE - 3, &mut b).unwrap(), 3);
    assert_eq!(&b[..3], b"\0xy");
    fs.zfs.truncate(&f, 3, &Cred::root()).unwrap();
    assert_eq!(fs.get(&f), [0; 3]);
}

#[test]
fn truncate_zeroes_what_it_cut() {
    let fs = Fs::new();
    for size in [10u64, 511, 512, 4096, 131_072, 131_073, 400_000] {
        let f = fs.file(&format!("f{size}"), &vec![7; size as usize]);
        for cut in [0, 1, size / 2, size - 1] {
            fs.put(&f, 0, &vec![7; size as usize]);
            fs.zfs.truncate(&f, cut, &Cred::root()).unwrap();
            fs.zfs.truncate(&f, size, &Cred::root()).unwrap();
            let mut want = vec![7; cut as usize];
            want.resize(size as usize, 0);
            assert!(fs.get(&f) == want, "size {size} cut {cut}");
        }
    }
}

/// Before a txg has written them, and after: programs that look for holes in what was mapped see the same either way.
#[test]
fn zeros_that_compression_makes_holes_of_are_holes_at_once() {
    for compression in [disk::Compression::LZ4, disk::Compression::OFF] {
        let fs = Fs::new();
        let policy = dmu::WritePolicy {
            compress: compression,
            ..dmu::WritePolicy::default()
        };
        fs.rig.os.set_policy(policy);
        const B: u64 = 128 << 10;
        let f = fs.file("f", &vec![1; 8 * B as usize]);
        let seek = |at, data| fs.zfs.seek(&f, at, data).ok();
        fs.rig.sync();
        // Over data, in one piece and in several, and behind the end.
        fs.put(&f, B, &vec![0; B as usize]);
        for at in 0..32 {
            fs.put(&f, 4 * B + at * 4096, &[0; 4096]);
        }
        fs.put(&f, 10 * B, &[2; 10]);
        fs.put(&f, 9 * B, &vec![0; B as usize]);
        let holes = |on: &[(u64, u64)]| {
            let (mut at, mut found) = (0, Vec::new());
            while let Some(hole) = seek(at, false).filter(|h| *h < 10 * B + 10) {
                at = seek(hole, true).unwrap();
                found.push((hole / B, at / B));
            }
            assert_eq!(found, on);
        };
        let want: &[(u64, u64)] = match compression {
            disk::Compression::OFF => &[(8, 9)],
            _ => &[(1, 2), (4, 5), (8, 10)],
        };
        holes(want);
        fs.rig.sync();
        holes(want);
        // Data again.
        fs.put(&f, B + 5, &[3]);
        assert_eq!(seek(B, true), Some(B));
    }
}

#[test]
fn holes() {
    let fs = Fs::new();
    const B: u64 = 128 << 10;
    let f = fs.file("f", b"");
    fs.put(&f, 4 * B, &vec![1; 2 * B as usize]);
    fs.zfs.truncate(&f, 10 * B, &Cred::root()).unwrap();
    let check = |fs: &Fs| {
        let f = fs.at("f").unwrap();
        let s = |at, data| fs.zfs.seek(&f, at, data);
        assert_eq!(s(0, true).unwrap(), 4 * B);
        assert_eq!(s(0, false).unwrap(), 0);
        assert_eq!(s(4 * B + 5, true).unwrap(), 4 * B + 5);
        assert_eq!(s(4 * B + 5, false).unwrap(), 6 * B);
        assert_eq!(kind(s(6 * B, true)), Kind::NoDevice);
        assert_eq!(s(6 * B + 1, false).unwrap(), 6 * B + 1);
        assert_eq!(kind(s(10 * B, false)), Kind::NoDevice);
        assert_eq!(kind(s(u64::MAX, true)), Kind::NoDevice);
    };
    check(&fs);
    drop(f);
    let fs = fs.remount();
    check(&fs);
    let f = fs.at("f").unwrap();
    use falloc::*;
    let fa = |at, len, how| fs.zfs.fallocate(&f, at, len, how);
    fa(4 * B + 100, B, PUNCH_HOLE | KEEP_SIZE).unwrap();
    let got = fs.get(&f);
    for (i, b) in got.iter().enumerate() {
        let i = i as u64;
        let data = (4 * B..4 * B + 100).contains(&i) || (5 * B + 100..6 * B).contains(&i);
        assert_eq!(*b, u8::from(data), "at {i}");
    }
    assert_eq!(f.size(), 10 * B);
    fa(9 * B, 5 * B, ZERO_RANGE | KEEP_SIZE).unwrap();
    assert_eq!(f.size(), 10 * B);
    fa(9 * B, 5 * B, ZERO_RANGE).unwrap();
    assert_eq!(f.size(), 14 * B);
    fa(0, 20 * B, KEEP_SIZE).unwrap();
    assert_eq!(f.size(), 14 * B);
    fa(0, 20 * B, 0).unwrap();
    assert_eq!(f.size(), 20 * B);
    assert_eq!(kind(fa(0, 1 << 40, 0)), Kind::NoSpace);
    assert_eq!(kind(fa(0, 0, 0)), Kind::Invalid);
    assert_eq!(kind(fa(0, B, 8)), Kind::Unsupported);
    assert_eq!(kind(fa(MAX_SIZE, B, 0)), Kind::FileTooBig);
    assert_eq!(kind(fa(0, B, PUNCH_HOLE)), Kind::Unsupported);
    assert_eq!(kind(fs.zfs.fallocate(&fs.root(), 0, 1, 0)), Kind::IsDir);
}

#[test]
fn hard_links() {
    let fs = Fs::new();
    let f = fs.file("a", b"one");
    fs.dir("d");
    let before = fs.zfs.getattr(&f);
    fs.link(&f, "d/b").unwrap();
    let after = fs.zfs.getattr(&f);
    assert_eq!(after.nlink, 2);
    assert!(after.ctime > before.ctime);
    assert_eq!(after.mtime, before.mtime);
    assert_eq!(kind(fs.link(&f, "d/b")), Kind::Exists);
    assert_eq!(f.fixed().parent, fs.at("d").unwrap().object);
    fs.unlink("a").unwrap();
    assert_eq!(fs.zfs.getattr(&f).nlink, 1);
    drop(f);
    let fs = fs.remount();
    assert_eq!(fs.get(&fs.at("d/b").unwrap()), b"one");
    assert_eq!(fs.list("d"), ["b"]);
    fs.check_tree();
}

#[test]
fn unlinked_but_open() {
    let fs = Fs::new();
    let n = fs.rig.os.object_count();
    let f = fs.file("f", &[3; 300_000]);
    fs.unlink("f").unwrap();
    assert_eq!(fs.zfs.getattr(&f).nlink, 0);
    assert_eq!(kind(fs.at("f")), Kind::NotFound);
    fs.put(&f, 300_000, &[4; 10]);
    assert_eq!(fs.get(&f).len(), 300_010);
    // Like /proc/self/fd with AT_SYMLINK_FOLLOW: a file that lost its last link can get one again.
    fs.link(&f, "again").unwrap();
    assert_eq!(fs.zfs.getattr(&f).nlink, 1);
    fs.unlink("again").unwrap();
    let object = f.object;
    drop(f);
    fs.zfs.reap().unwrap();
    assert_eq!(kind(fs.zfs.get(object)), Kind::NotFound);
    assert_eq!(fs.rig.os.object_count(), n);
}

#[test]
fn a_file_without_links_that_is_kept_by_its_number_stays_until_it_is_let_go() {
    let fs = Fs::new();
    let n = fs.rig.os.object_count();
    let f = fs.file("f", &[3; 5_000]);
    let other = fs.file("g", b"other");
    let (object, gen) = (f.object, f.gen as u32);
    fs.unlink("f").unwrap();
    fs.unlink("g").unwrap();
    f.keep_by_number();
    other.keep_by_number();
    drop(f);
    fs.zfs.reap().unwrap();
    fs.rig.sync();
    // No znode of it is in memory any more.
    assert!(fs.zfs.in_use().iter().all(|z| z.object != object));
    let f = fs.zfs.get_generation(object, gen).unwrap();
    assert!(f.is_doomed());
    assert_eq!(fs.get(&f), [3; 5_000]);
    fs.put(&f, 2, b"new");
    drop(f);
    fs.zfs.reap().unwrap();
    // One that gets a name again is not freed with the number.
    fs.link(&other, "again").unwrap();
    assert!(!fs.zfs.let_go(other.object));
    drop(other);
    assert!(fs.zfs.let_go(object));
    fs.zfs.reap().unwrap();
    assert_eq!(kind(fs.zfs.get(object)), Kind::NotFound);
    assert_eq!(fs.get(&fs.at("again").unwrap()), b"other");
    fs.unlink("again").unwrap();
    fs.zfs.reap().unwrap();
    fs.rig.sync();
    assert_eq!(fs.rig.os.object_count(), n);
    fs.check_tree();
}

#[test]
fn crash_with_unlinked_open_files() {
    let fs = Fs::new();
    let n = fs.rig.os.object_count();
    let f = fs.file("f", &[3; 300_000]);
    let d = fs.dir("d");
    fs.zfs
        .setxattr(&f, b"user.big", &[1; 50_000], 0, false, &Cred::root())
        .unwrap();
    fs.unlink("f").unwrap();
    fs.rmdir("d").unwrap();
    fs.rig.sync();
    // Both are still in use when the power goes.
    let zfs = fs.zfs.clone();
    let fs = Fs {
        rig: fs.rig.reopen(),
        ..fs
    };
    drop((f, d, zfs));
    let fs = Fs {
        zfs: mount(&fs.rig, 5000, props(), Arc::new(NoLog)),
        ..fs
    };
    fs.zfs.reap().unwrap();
    fs.rig.sync();
    assert_eq!(fs.rig.os.object_count(), n);
    fs.check_tree();
}

#[test]
fn tmpfile() {
    let fs = Fs::new();
    let n = fs.rig.os.object_count();
    let root = fs.root();
    let new = New::file(REG, 0);
    let t = fs.zfs.tmpfile(&root, &new, &Cred::root()).unwrap();
    fs.put(&t, 0, b"content");
    assert_eq!(fs.zfs.getattr(&t).nlink, 0);
    fs.link(&t, "named").unwrap();
    assert_eq!(fs.zfs.getattr(&t).nlink, 1);
    let gone = fs.zfs.tmpfile(&root, &new, &Cred::root()).unwrap();
    fs.put(&gone, 0, b"content");
    assert!(fs
        .zfs
        .tmpfile(&root, &New::dir(0o755, 0), &Cred::root())
        .is_err());
    drop((t, gone, root));
    let fs = fs.remount();
    assert_eq!(fs.get(&fs.at("named").unwrap()), b"content");
    assert_eq!(fs.rig.os.object_count(), n + 1);
    fs.check_tree();
}

#[test]
fn directories_count() {
    let fs = Fs::new();
    fs.dir("d");
    fs.dir("d/e");
    fs.file("d/f", b"");
    let d = fs.at("d").unwrap();
    assert_eq!((d.fixed().links, d.size()), (3, 4));
    assert_eq!(kind(fs.rmdir("d")), Kind::NotEmpty);
    fs.rmdir("d/e").unwrap();
    assert_eq!(kind(fs.rmdir("d")), Kind::NotEmpty);
    fs.unlink("d/f").unwrap();
    fs.rmdir("d").unwrap();
    assert_eq!(fs.zfs.getattr(&d).nlink, 0);
    // Nothing can be made in a directory that is gone but in use.
    let c = Cred::root();
    assert_eq!(
        kind(fs.zfs.create(&d, b"x", &New::file(REG, 0), &c)),
        Kind::NotFound
    );
    assert_eq!(kind(fs.zfs.lookup(&d, b"x", &c)), Kind::NotFound);
    assert_eq!(fs.root().fixed().links, 2);
}

#[test]
fn rename_rules() {
    let fs = Fs::new();
    fs.file("a", b"a");
    fs.file("b", b"b");
    fs.dir("d");
    fs.dir("d/sub");
    fs.dir("empty");
    fs.file("d/f", b"f");
    // Types of source and target.
    assert_eq!(kind(fs.rename("a", "d", 0)), Kind::IsDir);
    assert_eq!(kind(fs.rename("d", "a", 0)), Kind::NotDir);
    assert_eq!(kind(fs.rename("empty", "d", 0)), Kind::NotEmpty);
    assert_eq!(kind(fs.rename("nothing", "x", 0)), Kind::NotFound);
    // Below itself.
    assert_eq!(kind(fs.rename("d", "d/sub/x", 0)), Kind::Invalid);
    assert_eq!(kind(fs.rename("d", "d/x", 0)), Kind::Invalid);
    // An ancestor is never empty.
    assert_eq!(kind(fs.rename("d/sub", "d", 0)), Kind::NotEmpty);
    // Flags.
    assert_eq!(kind(fs.rename("a", "b", NOREPLACE)), Kind::Exists);
    assert_eq!(
        kind(fs.rename("a", "b", NOREPLACE | EXCHANGE)),
        Kind::Invalid
    );
    assert_eq!(kind(fs.rename("a", "b", 64)), Kind::Invalid);
    assert_eq!(kind(fs.rename("a", "nothing", EXCHANGE)), Kind::NotFound);
    assert_eq!(kind(fs.rename("d", "d/sub", EXCHANGE)), Kind::Invalid);
    assert_eq!(kind(fs.rename("d/sub", "d", EXCHANGE)), Kind::Invalid);
    // Itself, and two names of one object.
    fs.rename("a", "a", 0).unwrap();
    let a = fs.at("a").unwrap();
    fs.link(&a, "a2").unwrap();
    fs.rename("a", "a2", 0).unwrap();
    assert_eq!(fs.list(""), ["a", "a2", "b", "d", "empty"]);
    fs.unlink("a2").unwrap();
    // Replacing a file.
    let b = fs.at("b").unwrap();
    fs.rename("a", "b", 0).unwrap();
    assert_eq!(fs.get(&fs.at("b").unwrap()), b"a");
    assert_eq!(fs.zfs.getattr(&b).nlink, 0);
    // Replacing an empty directory, across directories.
    fs.rename("empty", "d/sub", 0).unwrap();
    assert_eq!(fs.list("d"), ["f", "sub"]);
    assert_eq!(
        fs.at("d/sub").unwrap().fixed().parent,
        fs.at("d").unwrap().object
    );
    fs.check_tree();
    // Moving a directory up and down.
    fs.rename("d/sub", "top", 0).unwrap();
    assert_eq!(fs.root().fixed().links, 4);
    fs.rename("d", "top/d", NOREPLACE).unwrap();
    assert_eq!(fs.list("top/d"), ["f"]);
    let up = fs
        .zfs
        .lookup(&fs.at("top/d").unwrap(), b"..", &Cred::root())
        .unwrap();
    assert_eq!(up.object, fs.at("top").unwrap().object);
    fs.check_tree();
    drop((a, b, up));
    let fs = fs.remount();
    assert_eq!(fs.list(""), ["b", "top"]);
    fs.check_tree();
}

#[test]
fn rename_exchange_and_whiteout() {
    let fs = Fs::new();
    fs.file("f", b"file");
    fs.dir("d");
    fs.dir("d/in");
    fs.dir("other");
    fs.rename("f", "d/in", EXCHANGE).unwrap();
    assert_eq!(fs.get(&fs.at("d/in").unwrap()), b"file");
    assert!(fs.at("f").unwrap().is_dir());
    fs.check_tree();
    fs.rename("f", "other", EXCHANGE).unwrap();
    fs.check_tree();
    fs.rename("d/in", "d/out", WHITEOUT).unwrap();
    let w = fs.zfs.getattr(&fs.at("d/in").unwrap());
    assert_eq!((w.mode, w.rdev), (mode::CHR, 0));
    assert_eq!(fs.list("d"), ["in", "out"]);
    fs.check_tree();
}

#[test]
fn times() {
    let fs = Fs::new();
    let c = Cred::root();
    let d = fs.dir("d");
    let f = fs.file("d/f", b"");
    let t0 = fs.zfs.getattr(&f);
    assert_eq!(
        (t0.atime, t0.mtime, t0.ctime),
        (t0.btime, t0.btime, t0.btime)
    );
    assert!(fs.zfs.getattr(&d).mtime >= t0.btime);
    fs.put(&f, 0, b"x");
    let t1 = fs.zfs.getattr(&f);
    assert!(t1.mtime > t0.mtime && t1.ctime == t1.mtime && t1.btime == t0.btime);
    let set = SetAttr {
        mtime: Some(SetTime::To(Time::new(-5, 999_999_999))),
        atime: Some(SetTime::To(Time::new(7, 8))),
        ..SetAttr::default()
    };
    let t2 = fs.zfs.setattr(&f, &set, &c).unwrap();
    assert_eq!(t2.mtime, Time::new(-5, 999_999_999));
    assert_eq!(t2.atime, Time::new(7, 8));
    assert!(t2.ctime > t1.ctime);
    let set = SetAttr {
        atime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let t3 = fs.zfs.setattr(&f, &set, &c).unwrap();
    assert!(t3.atime > t2.ctime && t3.mtime == t2.mtime);
    // Truncating to the same size is a change.
    let before = fs.zfs.getattr(&f);
    fs.zfs.truncate(&f, 1, &c).unwrap();
    assert!(fs.zfs.getattr(&f).mtime > before.mtime);
    // relatime: the first read after a change sets it, the second does not.
    fs.get(&f);
    let a1 = fs.zfs.getattr(&f).atime;
    assert!(a1 > t3.atime);
    fs.get(&f);
    assert_eq!(fs.zfs.getattr(&f).atime, a1);
    let left = fs.zfs.atime_due_after(&f);
    assert!(!left.is_zero() && left <= crate::A_DAY, "{left:?}");
    fs.zfs.set_props(|p| p.relatime = false);
    assert!(fs.zfs.atime_due_after(&f).is_zero());
    fs.get(&f);
    let a2 = fs.zfs.getattr(&f).atime;
    assert!(a2 > a1);
    fs.zfs.set_props(|p| p.atime = false);
    fs.get(&f);
    assert_eq!(fs.zfs.getattr(&f).atime, a2);
    assert_eq!(fs.zfs.atime_due_after(&f), crate::A_DAY);
    // Unlinking changes ctime of the file and mtime of the directory.
    fs.link(&f, "g").unwrap();
    let (df, ff) = (fs.zfs.getattr(&d), fs.zfs.getattr(&f));
    fs.unlink("d/f").unwrap();
    assert!(fs.zfs.getattr(&d).mtime > df.mtime);
    assert!(fs.zfs.getattr(&f).ctime > ff.ctime);
    assert_eq!(fs.zfs.getattr(&f).mtime, ff.mtime);
    // Rename too.
    let ff = fs.zfs.getattr(&f);
    fs.rename("g", "d/g", 0).unwrap();
    assert!(fs.zfs.getattr(&f).ctime > ff.ctime);
}

#[test]
fn big_directory_positions() {
    let fs = Fs::new();
    let d = fs.dir("d");
    const N: usize = 3000;
    for i in 0..N {
        fs.make(&format!("d/file-number-{i}"), New::file(REG, 0))
            .unwrap();
    }
    drop(d);
    let fs = fs.remount();
    let d = fs.at("d").unwrap();
    // In small steps, as a door with a small buffer asks.
    let mut at = 0;
    let mut all = Vec::new();
    loop {
        let mut batch = Vec::new();
        fs.zfs
            .readdir(&d, at, |e| {
                batch.push((e.name.to_vec(), e.next));
                Ok(batch.len() < 7)
            })
            .unwrap();
        let Some(last) = batch.last() else { break };
        at = last.1;
        assert!(at as i64 > 0, "positions must fit a signed offset");
        all.extend(batch);
    }
    assert_eq!(all.len(), N + 2);
    let mut names: Vec<_> = all.iter().map(|e| e.0.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), N + 2);
    // Any position can be gone back to, also after entries before it were removed.
    for i in (0..N).step_by(2) {
        fs.unlink(&format!("d/file-number-{i}")).unwrap();
    }
    let from = 1500;
    let mut rest = Vec::new();
    fs.zfs
        .readdir(&d, all[from].1, |e| {
            rest.push(e.name.to_vec());
            Ok(true)
        })
        .unwrap();
    let want: Vec<_> = all[from + 1..]
        .iter()
        .filter(|e| fs.zfs.lookup(&d, &e.0, &Cred::root()).is_ok())
        .map(|e| e.0.clone())
        .collect();
    assert_eq!(rest, want);
    fs.check_tree();
}

#[test]
fn read_only() {
    let fs = Fs::new();
    let f = fs.file("f", b"x");
    let c = Cred::root();
    fs.zfs.set_props(|p| p.readonly = true);
    let ro = Kind::ReadOnly;
    assert_eq!(kind(fs.make("g", New::file(REG, 0))), ro);
    assert_eq!(kind(fs.unlink("f")), ro);
    assert_eq!(kind(fs.rmdir("f")), ro);
    assert_eq!(kind(fs.rename("f", "g", 0)), ro);
    assert_eq!(kind(fs.link(&f, "g")), ro);
    assert_eq!(kind(fs.zfs.write(&f, 0, b"y", WriteOpts::default())), ro);
    assert_eq!(kind(fs.zfs.truncate(&f, 0, &c)), ro);
    assert_eq!(kind(fs.zfs.setxattr(&f, b"user.x", b"", 0, false, &c)), ro);
    assert_eq!(kind(fs.zfs.access(&f, perm::W, &c)), ro);
    let chmod = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    assert_eq!(kind(fs.zfs.setattr(&f, &chmod, &c)), ro);
    assert_eq!(fs.get(&f), b"x");
    fs.zfs.set_props(|p| p.readonly = false);
    fs.unlink("f").unwrap();
}

#[test]
fn copying_inside() {
    let fs = Fs::new();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let a = fs.file("a", &data);
    let b = fs.file("b", b"0123456789");
    assert_eq!(
        fs.zfs.copy_range(&a, 5, &b, 2, u64::MAX).unwrap(),
        data.len() as u64 - 5
    );
    let got = fs.get(&b);
    assert_eq!(&got[..2], b"01");
    assert!(got[2..] == data[5..]);
    assert_eq!(kind(fs.zfs.copy_range(&a, 0, &a, 10, 20)), Kind::Invalid);
    assert_eq!(fs.zfs.copy_range(&a, 0, &a, 20, 20).unwrap(), 20);
    assert!(fs.get(&a)[20..40] == data[..20]);
    assert_eq!(fs.zfs.copy_range(&a, 1 << 40, &b, 0, 5).unwrap(), 0);
}

#[test]
fn statfs() {
    let fs = Fs::new();
    let s = fs.zfs.statfs(None).unwrap();
    assert_eq!((s.bsize, s.bfree, s.blocks), (128 << 10, 8192, 8200));
    assert_eq!((s.files, s.ffree), (2_097_162, 2_097_152));
    assert_eq!(s.namelen, 255);
}

#[test]
fn stale_handles() {
    let fs = Fs::new();
    let f = fs.file("f", b"");
    let (o, g) = (f.object, f.gen as u32);
    assert!(fs.zfs.get_generation(o, g).is_ok());
    assert_eq!(kind(fs.zfs.get_generation(o, g + 1)), Kind::Stale);
    drop(f);
    fs.unlink("f").unwrap();
    assert_eq!(kind(fs.zfs.get_generation(o, g)), Kind::Stale);
    // Objects that are no files.
    assert!(fs.zfs.get(1).is_err());
    assert_eq!(kind(fs.zfs.get(1 << 40)), Kind::NotFound);
}

#[test]
fn forgotten_znodes_leave_nothing() {
    let fs = Fs::new();
    for i in 0..500 {
        fs.file(&format!("f{i}"), b"");
    }
    let open: Vec<_> = (0..10).map(|i| fs.at(&format!("f{i}")).unwrap()).collect();
    assert_eq!(fs.zfs.cache.len(), 10);
    assert_eq!(fs.zfs.in_use().len(), 10);
    drop(open);
    assert_eq!(fs.zfs.cache.len(), 0);
}

#[test]
fn concurrent_work_in_one_directory() {
    let fs = Fs::new();
    fs.dir("d");
    fs.dir("e");
    std::thread::scope(|s| {
        for t in 0..4 {
            let fs = &fs;
            s.spawn(move || {
                for i in 0..150 {
                    let p = format!("d/{t}-{i}");
                    let f = fs.file(&p, format!("{t}{i}").as_bytes());
                    if i % 3 == 0 {
                        fs.rename(&p, &format!("e/{t}-{i}"), 0).unwrap();
                    } else if i % 3 == 1 {
                        fs.unlink(&p).unwrap();
                    }
                    fs.dir(&format!("d/dir{t}"));
                    fs.rename(&format!("d/dir{t}"), &format!("e/dir{t}"), 0)
                        .unwrap();
                    fs.rmdir(&format!("e/dir{t}")).unwrap();
                    assert_eq!(fs.get(&f), format!("{t}{i}").as_bytes());
                }
            });
        }
        let fs = &fs;
        s.spawn(move || {
            for _ in 0..20 {
                fs.rig.sync();
                std::thread::yield_now();
            }
        });
    });
    assert_eq!(fs.list("d").len(), 200);
    assert_eq!(fs.list("e").len(), 200);
    fs.check_tree();
    let fs = fs.remount();
    assert_eq!(fs.check_tree().len(), 403);
    assert_eq!(fs.get(&fs.at("e/3-0").unwrap()), b"30");
}

/// Who walks down a tree finds in memory what is below the directory he lists; who lists but one
/// directory has nothing of what is below it read.
#[test]
fn trees_are_read_ahead_of_who_walks_through_them() {
    use std::sync::atomic::Ordering::Relaxed;
    const DIRS: usize = 40;
    const FILES: usize = 20;
    let fs = Fs::new();
    fs.dir("tree");
    for d in 0..DIRS {
        fs.dir(&format!("tree/d{d}"));
        for f in 0..FILES {
            fs.file(&format!("tree/d{d}/file{f}"), b"");
        }
        // One behind the other they would all be in few blocks.
        for f in 0..64 {
            fs.file(&format!("between{d}-{f}"), b"");
        }
    }
    let fs = fs.remount();
    let reads = || fs.rig.devices.reads.load(Relaxed);
    let list = |path: &str| {
        let z = fs.at(path).unwrap();
        fs.zfs.list_ahead(&z, true);
        let before = reads();
        let mut seen = 0;
        fs.zfs
            .readdir(&z, crate::readdir::FIRST, |e| {
                fs.zfs.get(e.object)?;
                seen += 1;
                Ok(true)
            })
            .unwrap();
        (seen, reads() - before)
    };
    assert_eq!(list("tree"), (DIRS, 0));
    let (seen, read) = list("tree/d0");
    assert_eq!(seen, FILES);
    assert!(read < 2, "its own block is read when it is listed: {read}");

    let fs = fs.remount();
    let reads = || fs.rig.devices.reads.load(Relaxed);
    let list = |path: &str| {
        let z = fs.at(path).unwrap();
        fs.zfs.list_ahead(&z, true);
        z
    };
    let above = [list(""), list("tree")];
    let before = reads();
    for d in 0..DIRS {
        for f in 0..FILES {
            fs.at(&format!("tree/d{d}/file{f}")).unwrap();
        }
    }
    assert_eq!(reads() - before, 0, "all of it is there");
    drop(above);
}
