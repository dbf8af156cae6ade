//! Who may do what, when the kernel does not check.

use super::*;
use crate::attr::{flag, fs_flag, mode, SetTime};

const REG: u32 = mode::REG;

fn user(uid: u32) -> Cred {
    Cred::user(uid, uid, &[100])
}

fn set(fs: &Fs, path: &str, change: impl FnOnce(&mut SetAttr), c: &Cred) -> Result<Attr> {
    let mut s = SetAttr::default();
    change(&mut s);
    fs.zfs.setattr(&fs.at(path).unwrap(), &s, c)
}

fn chmod(fs: &Fs, path: &str, bits: u32, c: &Cred) -> Result<u32> {
    set(fs, path, |s| s.mode = Some(bits), c).map(|a| a.mode & mode::PERM)
}

fn chown(fs: &Fs, path: &str, uid: Option<u32>, gid: Option<u32>, c: &Cred) -> Result<Attr> {
    set(fs, path, |s| (s.uid, s.gid) = (uid, gid), c)
}

#[test]
fn directories_guard_their_names() {
    let fs = Fs::new();
    let u = user(10);
    fs.dir("d");
    fs.file("d/f", b"");
    for (bits, find, make) in [
        (0o777, true, true),
        (0o775, true, false),
        (0o776, false, false),
        (0o773, true, true),
        (0o772, false, false),
        (0o770, false, false),
    ] {
        chmod(&fs, "d", bits, &Cred::root()).unwrap();
        let d = fs.at("d").unwrap();
        assert_eq!(fs.zfs.lookup(&d, b"f", &u).is_ok(), find, "{bits:o}");
        let r = fs.make_as("d/new", New::file(REG | 0o644, 0), &u);
        assert_eq!(r.is_ok(), make, "{bits:o}");
        if let Ok(z) = r {
            let a = fs.zfs.getattr(&z);
            assert_eq!((a.uid, a.gid), (10, 10));
            fs.zfs.unlink(&d, b"new", &u).unwrap();
        } else {
            assert_eq!(kind(fs.zfs.unlink(&d, b"f", &u)), Kind::Access);
            assert_eq!(kind(fs.zfs.rename(&d, b"f", &d, b"g", 0, &u)), Kind::Access);
        }
        assert_eq!(fs.zfs.opendir(&d, &u).is_ok(), bits & 4 != 0);
    }
}

#[test]
fn sticky_directories() {
    let fs = Fs::new();
    fs.dir("t");
    chmod(&fs, "t", 0o1777, &Cred::root()).unwrap();
    let (a, b) = (user(1), user(2));
    fs.make_as("t/a", New::file(REG | 0o666, 0), &a).unwrap();
    fs.make_as("t/b", New::file(REG | 0o666, 0), &b).unwrap();
    let t = fs.at("t").unwrap();
    assert_eq!(kind(fs.zfs.unlink(&t, b"a", &b)), Kind::NotPermitted);
    assert_eq!(kind(fs.rename_as("t/a", "t/x", 0, &b)), Kind::NotPermitted);
    assert_eq!(kind(fs.rename_as("t/b", "t/a", 0, &b)), Kind::NotPermitted);
    fs.rename_as("t/b", "t/c", 0, &b).unwrap();
    fs.zfs.unlink(&t, b"c", &b).unwrap();
    chown(&fs, "t", Some(2), None, &Cred::root()).unwrap();
    fs.zfs.unlink(&t, b"a", &b).unwrap();
}

#[test]
fn moving_a_directory_needs_writing_it() {
    let fs = Fs::new();
    let u = user(5);
    for d in ["a", "b"] {
        fs.dir(d);
        chmod(&fs, d, 0o777, &Cred::root()).unwrap();
    }
    fs.dir("a/root-owned");
    assert_eq!(
        kind(fs.rename_as("a/root-owned", "b/x", 0, &u)),
        Kind::Access
    );
    fs.rename_as("a/root-owned", "a/renamed", 0, &u).unwrap();
}

#[test]
fn chmod_and_chown() {
    let fs = Fs::new();
    let (r, u) = (Cred::root(), user(10));
    fs.file("f", b"");
    assert_eq!(kind(chmod(&fs, "f", 0o777, &u)), Kind::NotPermitted);
    assert_eq!(
        kind(chown(&fs, "f", Some(10), None, &u)),
        Kind::NotPermitted
    );
    chown(&fs, "f", Some(10), Some(10), &r).unwrap();
    assert_eq!(chmod(&fs, "f", 0o6755, &u).unwrap(), 0o6755);
    // To one's own groups only; and it clears the set-id bits.
    assert_eq!(
        kind(chown(&fs, "f", None, Some(55), &u)),
        Kind::NotPermitted
    );
    assert_eq!(
        kind(chown(&fs, "f", Some(11), None, &u)),
        Kind::NotPermitted
    );
    let a = chown(&fs, "f", None, Some(100), &u).unwrap();
    assert_eq!((a.gid, a.mode & mode::PERM), (100, 0o755));
    // Set-group-id needs membership.
    chown(&fs, "f", None, Some(55), &r).unwrap();
    assert_eq!(chmod(&fs, "f", 0o2755, &u).unwrap(), 0o755);
    assert_eq!(chmod(&fs, "f", 0o2755, &r).unwrap(), 0o2755);
    // Root's chown clears them too.
    chmod(&fs, "f", 0o6755, &r).unwrap();
    assert_eq!(
        chown(&fs, "f", Some(1), None, &r).unwrap().mode & mode::PERM,
        0o755
    );
    chmod(&fs, "f", 0o6755, &r).unwrap();
    assert_eq!(
        chown(&fs, "f", None, None, &r).unwrap().mode & mode::PERM,
        0o755
    );
    // Directories keep theirs.
    fs.dir("d");
    chmod(&fs, "d", 0o6755, &r).unwrap();
    assert_eq!(
        chown(&fs, "d", Some(1), None, &r).unwrap().mode & mode::PERM,
        0o6755
    );
    fs.make("s", New::symlink(b"f")).unwrap();
    assert_eq!(kind(chmod(&fs, "s", 0o600, &r)), Kind::Unsupported);
    assert_eq!(chown(&fs, "s", Some(3), Some(4), &r).unwrap().uid, 3);
}

#[test]
fn writing_clears_set_ids() {
    let fs = Fs::new();
    let (r, u) = (Cred::root(), user(10));
    let f = fs.file("f", b"x");
    chown(&fs, "f", Some(10), Some(10), &r).unwrap();
    let kill = WriteOpts {
        kill_suidgid: true,
        ..WriteOpts::default()
    };
    chmod(&fs, "f", 0o6777, &r).unwrap();
    fs.zfs.write(&f, 0, b"y", WriteOpts::default()).unwrap();
    assert_eq!(f.mode() & mode::PERM, 0o6777);
    fs.zfs.write(&f, 0, b"y", kill).unwrap();
    assert_eq!(f.mode() & mode::PERM, 0o777);
    chmod(&fs, "f", 0o6767, &r).unwrap();
    fs.zfs.write(&f, 0, b"y", kill).unwrap();
    assert_eq!(
        f.mode() & mode::PERM,
        0o2767,
        "mandatory locking, not set-group-id"
    );
    chmod(&fs, "f", 0o6777, &r).unwrap();
    fs.zfs.truncate(&f, 0, &u).unwrap();
    assert_eq!(f.mode() & mode::PERM, 0o777);
}

#[test]
fn times_have_rules() {
    let fs = Fs::new();
    let u = user(10);
    fs.file("f", b"");
    chmod(&fs, "f", 0o666, &Cred::root()).unwrap();
    set(&fs, "f", |s| s.mtime = Some(SetTime::Now), &u).unwrap();
    let explicit = SetTime::To(Time::new(1, 1));
    let r = set(&fs, "f", |s| s.mtime = Some(explicit), &u);
    assert_eq!(kind(r), Kind::NotPermitted);
    chmod(&fs, "f", 0o644, &Cred::root()).unwrap();
    let r = set(&fs, "f", |s| s.mtime = Some(SetTime::Now), &u);
    assert_eq!(kind(r), Kind::Access);
    let r = set(&fs, "f", |s| s.size = Some(0), &u);
    assert_eq!(kind(r), Kind::Access);
    chown(&fs, "f", Some(10), None, &Cred::root()).unwrap();
    set(&fs, "f", |s| s.mtime = Some(explicit), &u).unwrap();
}

#[test]
fn groups_of_directories() {
    let fs = Fs::new();
    let u = user(10);
    fs.dir("d");
    chown(&fs, "d", None, Some(77), &Cred::root()).unwrap();
    chmod(&fs, "d", 0o2777, &Cred::root()).unwrap();
    let f = fs.make_as("d/f", New::file(REG | 0o2755, 0), &u).unwrap();
    let a = fs.zfs.getattr(&f);
    assert_eq!((a.gid, a.mode & mode::PERM), (77, 0o755));
    let s = fs.make_as("d/s", New::dir(0o755, 0o022), &u).unwrap();
    let a = fs.zfs.getattr(&s);
    assert_eq!((a.gid, a.mode & mode::PERM), (77, 0o2755));
}

#[test]
fn flags_bind_root_too() {
    let fs = Fs::new();
    let (r, u) = (Cred::root(), user(10));
    let f = fs.file("f", b"abc");
    let d = fs.dir("d");
    fs.file("d/in", b"");
    chown(&fs, "f", Some(10), None, &r).unwrap();
    assert_eq!(
        kind(fs.zfs.set_fs_flags(&f, fs_flag::IMMUTABLE, &u)),
        Kind::NotPermitted
    );
    fs.zfs.set_fs_flags(&f, fs_flag::NODUMP, &u).unwrap();
    assert_eq!(kind(fs.zfs.set_fs_flags(&f, 1, &r)), Kind::Unsupported);
    fs.zfs.set_fs_flags(&f, fs_flag::IMMUTABLE, &r).unwrap();
    let no = Kind::NotPermitted;
    assert_eq!(kind(fs.zfs.write(&f, 0, b"x", WriteOpts::default())), no);
    assert_eq!(kind(fs.unlink("f")), no);
    assert_eq!(kind(fs.rename("f", "g", 0)), no);
    assert_eq!(kind(fs.link(&f, "g")), no);
    assert_eq!(kind(chmod(&fs, "f", 0o600, &r)), no);
    assert_eq!(kind(fs.zfs.truncate(&f, 0, &r)), no);
    assert_eq!(kind(fs.zfs.setxattr(&f, b"user.x", b"", 0, false, &r)), no);
    assert_eq!(
        kind(fs.zfs.open_file(&f, false, true, false, false, &r)),
        no
    );
    fs.zfs.open_file(&f, true, false, false, false, &r).unwrap();
    fs.zfs.set_fs_flags(&f, fs_flag::APPEND, &r).unwrap();
    assert_eq!(kind(fs.zfs.write(&f, 0, b"x", WriteOpts::default())), no);
    fs.put(&f, 3, b"d");
    assert_eq!(kind(fs.zfs.truncate(&f, 0, &r)), no);
    // utime(f, NULL) as a kernel sends it that keeps times itself, and utime(f, ...).
    let (now, other) = (Time { sec: 77, nsec: 5 }, Time { sec: 76, nsec: 5 });
    let mut set = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::To(now)),
        ctime: Some(now),
        ..SetAttr::default()
    };
    assert_eq!(fs.zfs.setattr(&f, &set, &r).unwrap().mtime, now);
    set.mtime = Some(SetTime::To(other));
    assert_eq!(kind(fs.zfs.setattr(&f, &set, &r)), no);
    assert_eq!(kind(fs.unlink("f")), no);
    assert_eq!(
        kind(fs.zfs.open_file(&f, false, true, false, false, &r)),
        no
    );
    fs.zfs.open_file(&f, false, true, true, false, &r).unwrap();
    fs.zfs.set_fs_flags(&f, 0, &r).unwrap();
    fs.unlink("f").unwrap();
    fs.zfs.set_fs_flags(&d, fs_flag::APPEND, &r).unwrap();
    fs.file("d/more", b"");
    assert_eq!(kind(fs.unlink("d/in")), no);
    assert_eq!(kind(fs.rename("d/in", "d/x", 0)), no);
    fs.zfs.set_fs_flags(&d, fs_flag::IMMUTABLE, &r).unwrap();
    assert_eq!(kind(fs.make("d/x", New::file(REG, 0))), no);
    assert_eq!(kind(fs.rmdir("d")), no);
    drop((f, d));
    let fs = fs.remount();
    assert_eq!(
        fs.zfs.getattr(&fs.at("d").unwrap()).fs_flags,
        fs_flag::IMMUTABLE
    );
}

#[test]
fn dos_flags_are_for_owners_and_guarded_ones_for_root() {
    let fs = Fs::new();
    let (r, u) = (Cred::root(), user(10));
    let f = fs.file("f", b"abc");
    chown(&fs, "f", Some(10), None, &r).unwrap();
    let hidden = flag::HIDDEN | flag::SYSTEM;
    fs.zfs.set_dos_flags(&f, hidden, &u).unwrap();
    assert_eq!(fs.zfs.dos_flags(&f), hidden);
    assert_eq!(kind(fs.zfs.set_dos_flags(&f, 0, &user(11))), Kind::Access);
    let guarded = hidden | flag::IMMUTABLE;
    assert_eq!(
        kind(fs.zfs.set_dos_flags(&f, guarded, &u)),
        Kind::NotPermitted
    );
    assert_eq!(
        kind(fs.zfs.set_dos_flags(&f, flag::OPAQUE, &r)),
        Kind::Unsupported
    );
    // The others stay as they are.
    fs.zfs.set_fs_flags(&f, fs_flag::NODUMP, &u).unwrap();
    let touched = hidden | flag::NODUMP | flag::ARCHIVE;
    assert_eq!(fs.zfs.dos_flags(&f), touched);
    // Who has a file open for writing goes on; nobody opens it for writing any more.
    fs.zfs.set_dos_flags(&f, flag::READONLY, &u).unwrap();
    fs.put(&f, 0, b"x");
    assert_eq!(
        kind(fs.zfs.open_file(&f, false, true, false, false, &u)),
        Kind::NotPermitted
    );
    assert_eq!(kind(fs.zfs.truncate(&f, 0, &u)), Kind::NotPermitted);
    // But root, as with a mode that lets nobody write.
    fs.zfs.open_file(&f, false, true, false, false, &r).unwrap();
    fs.zfs.truncate(&f, 0, &r).unwrap();
    fs.zfs.set_dos_flags(&f, flag::NOUNLINK, &u).unwrap();
    assert_eq!(kind(fs.unlink("f")), Kind::NotPermitted);
    drop(f);
    let fs = fs.remount();
    assert_eq!(fs.zfs.dos_flags(&fs.at("f").unwrap()), flag::NOUNLINK);
}

/// What the kernel took in before a file system became read-only is written all the same.
#[test]
fn read_only_from_now_on() {
    let fs = Fs::new();
    let f = fs.file("f", b"before");
    fs.zfs.set_props(|p| p.readonly = true);
    let write = |cached| {
        let how = WriteOpts {
            cached,
            ..WriteOpts::default()
        };
        fs.zfs.write(&f, 0, b"BEFORE", how)
    };
    assert_eq!(kind(write(false)), Kind::ReadOnly);
    assert_eq!(write(true).unwrap(), 6);
    let times = |written_back| {
        let set = SetAttr {
            mtime: Some(SetTime::To(Time::new(5, 6))),
            written_back,
            ..SetAttr::default()
        };
        fs.zfs.setattr(&f, &set, &Cred::root())
    };
    assert_eq!(kind(times(false)), Kind::ReadOnly);
    assert_eq!(times(true).unwrap().mtime, Time::new(5, 6));
    assert_eq!(fs.get(&f), b"BEFORE");
}

#[test]
fn umask() {
    let fs = Fs::new();
    for (mask, m) in [(0o022, 0o644), (0o077, 0o600), (0, 0o666)] {
        let z = fs
            .make(&format!("u{mask}"), New::file(REG | 0o666, mask))
            .unwrap();
        assert_eq!(z.mode() & mode::PERM, m);
    }
}

#[test]
fn root_cannot_execute_what_nobody_can() {
    let fs = Fs::new();
    let f = fs.file("f", b"");
    assert_eq!(
        kind(fs.zfs.access(&f, perm::X, &Cred::root())),
        Kind::Access
    );
    chmod(&fs, "f", 0o010, &Cred::root()).unwrap();
    fs.zfs.access(&f, perm::X, &Cred::root()).unwrap();
}

/// A handle opened for reading changes nothing, whoever else has the object set open for writing and
/// whatever its properties are set to.
#[test]
fn a_read_only_handle_stays_so_beside_one_that_writes() {
    struct Looking;
    impl SpaceInfo for Looking {
        fn space(&self) -> Space {
            Space::default()
        }
        fn read_only(&self) -> bool {
            true
        }
    }
    let fs = Fs::new();
    let writes = WriteOpts::default();
    let f = fs.file("f", b"text");
    let m = Mount {
        clock: fs.rig.dmu.env.clock.clone(),
        props: props(),
        space: Arc::new(Looking),
        log: Arc::new(NoLog),
        pool_version: 5000,
        software_version: 5000,
    };
    let looking = Zfs::open(&fs.rig.os, m).unwrap();
    looking.set_props(|p| p.readonly = false);
    assert!(looking.is_read_only() && !fs.zfs.is_read_only());
    let root = Cred::root();
    let dir = looking.root().unwrap();
    let z = looking.lookup(&dir, b"f", &root).unwrap();
    let new = New::file(REG | 0o644, 0);
    let read_only = |k: Kind| assert_eq!(k, Kind::ReadOnly);
    read_only(kind(looking.create(&dir, b"g", &new, &root)));
    read_only(kind(looking.unlink(&dir, b"f", &root)));
    read_only(kind(looking.write(&z, 0, &b"x"[..], writes)));
    // What a kernel had accepted before, too: there was no before.
    let cached = WriteOpts {
        cached: true,
        ..writes
    };
    read_only(kind(looking.write(&z, 0, &b"x"[..], cached)));
    read_only(kind(looking.access(&z, crate::perm::W, &root)));
    assert!(!looking.atime_due(&z));
    // The other one goes on.
    fs.zfs.write(&f, 0, &b"T"[..], writes).unwrap();
    let mut got = [0; 4];
    looking.read(&z, 0, &mut got).unwrap();
    assert_eq!(&got, b"Text");
}

/// Two doors to one file system: the kernel has checked who comes through the one, nobody who comes
/// through the other.
#[test]
fn permissions_are_checked_for_whom_nobody_checked_before() {
    let fs = Fs::new();
    let z = fs.file("f", b"secret");
    let set = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    fs.zfs.setattr(&z, &set, &Cred::root()).unwrap();
    let unchecked = Cred::user(7, 7, &[]);
    let checked = unchecked.clone().already_checked();
    let open = |c: &Cred| fs.zfs.open_file(&z, true, false, false, false, c);
    assert_eq!(kind(open(&unchecked)), Kind::Access);
    open(&checked).unwrap();
    let new = New::file(REG | 0o644, 0);
    assert_eq!(kind(fs.make_as("g", new, &unchecked)), Kind::Access);
    let made = fs.make_as("g", new, &checked).unwrap();
    assert_eq!(made.fixed().uid32(), 7);
    // access(2) asks, whoever checks.
    assert_eq!(
        kind(fs.zfs.access(&z, crate::perm::R, &checked)),
        Kind::Access
    );
}
