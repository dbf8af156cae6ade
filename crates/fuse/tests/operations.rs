//! Every operation, by real system calls on a real mount.

mod common;

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use common::memfs::MemFs;
use common::{can_mount, config, TestMount};
use fuse::*;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags, CWD};

fn errno<T: std::fmt::Debug>(r: std::io::Result<T>) -> i32 {
    r.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn shown_in_proc_mounts_and_negotiated() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("shown");
    fs::metadata(&t.dir).unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let want = format!("testpool/shown\\040x,y {} fuse.zfs rw,", t.dir.display());
    assert!(mounts.lines().any(|l| l.starts_with(&want)), "{mounts}");
    let listed = mounted("zfs").unwrap();
    let me = listed.iter().find(|m| m.path == t.dir).unwrap();
    assert_eq!(me.source.to_str(), Some("testpool/shown x,y"));
    assert_eq!(Mount::found(me), t.mount);

    let n = t.handle.negotiated().unwrap();
    eprintln!("7.{}: {:?}", n.minor, n.names());
    for f in [
        abi::init::BIG_WRITES,
        abi::init::WRITEBACK_CACHE,
        abi::init::PARALLEL_DIROPS,
        abi::init::POSIX_ACL,
    ] {
        assert!(n.has(f & n.offered));
    }
    assert!(!n.has(abi::init::FLOCK_LOCKS) && !n.has(abi::init::POSIX_LOCKS));
    let fs = t.finish();
    assert_eq!(fs.counts.destroyed.load(SeqCst), 1);
}

#[test]
fn files() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("files");
    let p = t.path("a");
    fs::write(&p, b"hello").unwrap();
    assert_eq!(fs::read(&p).unwrap(), b"hello");
    let m = fs::metadata(&p).unwrap();
    assert_eq!(
        (m.len(), m.nlink(), m.mode() & libc::S_IFMT),
        (5, 1, libc::S_IFREG)
    );
    assert_eq!(
        errno(OpenOptions::new().write(true).create_new(true).open(&p)),
        libc::EEXIST
    );
    assert_eq!(errno(File::open(t.path("none"))), libc::ENOENT);
    assert_eq!(
        errno(File::open(t.path(&"n".repeat(256)))),
        libc::ENAMETOOLONG
    );
    File::create(t.path(&"n".repeat(255))).unwrap();

    // Overwritten in the middle, appended, truncated, read at odd places.
    let f = OpenOptions::new().read(true).write(true).open(&p).unwrap();
    f.write_all_at(b"EL", 1).unwrap();
    f.write_all_at(b"far", 300_000).unwrap();
    let mut b = vec![9; 300_003];
    f.read_exact_at(&mut b, 0).unwrap();
    assert_eq!(&b[..5], b"hELlo");
    assert!(b[5..300_000].iter().all(|&x| x == 0));
    assert_eq!(&b[300_000..], b"far");
    assert_eq!(f.read_at(&mut b, 300_003).unwrap(), 0);
    f.set_len(3).unwrap();
    f.set_len(6).unwrap();
    assert_eq!(fs::read(&p).unwrap(), b"hEL\0\0\0");
    let mut a = OpenOptions::new().append(true).open(&p).unwrap();
    a.write_all(b"end").unwrap();
    a.sync_all().unwrap();
    a.sync_data().unwrap();
    assert!(t.fs.counts.fsyncs.load(SeqCst) >= 2);
    assert_eq!(fs::read(&p).unwrap(), b"hEL\0\0\0end");
    drop((f, a));
    File::create(&p).unwrap(); // O_TRUNC
    assert_eq!(fs::metadata(&p).unwrap().len(), 0);

    // Removed while open.
    let mut f = File::options().read(true).write(true).open(&p).unwrap();
    fs::remove_file(&p).unwrap();
    f.write_all(b"ghost").unwrap();
    f.seek(SeekFrom::Start(0)).unwrap();
    let mut s = String::new();
    f.read_to_string(&mut s).unwrap();
    assert_eq!(s, "ghost");
    assert_eq!(f.metadata().unwrap().nlink(), 0);
    assert_eq!(errno(fs::metadata(&p)), libc::ENOENT);
    drop(f);
    let fs = t.finish();
    assert!(fs.counts.opens.load(SeqCst) > 5);
}

#[test]
fn large_requests_and_content() {
    if !can_mount() {
        return;
    }
    for writeback_cache in [true, false] {
        let config = Config {
            writeback_cache,
            ..config()
        };
        let t = TestMount::with("large", MemFs::new(), config);
        let p = t.path("big");
        let mut data = vec![0u8; 9 << 20];
        let mut x = 1u64;
        for b in data.iter_mut() {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            *b = (x >> 56) as u8;
        }
        fs::write(&p, &data).unwrap();
        let f = File::open(&p).unwrap();
        f.sync_all().unwrap();
        // Read from the daemon, not from the page cache.
        rustix::fs::fadvise(&f, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut back = Vec::new();
        (&f).read_to_end(&mut back).unwrap();
        assert!(back == data);
        let n = t.handle.negotiated().unwrap();
        let largest = t.fs.counts.largest_write.load(SeqCst);
        assert_eq!(largest, n.max_write as usize, "largest write");
        assert!(t.fs.counts.largest_read.load(SeqCst) >= 128 << 10);

        let d = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&p)
            .unwrap();
        let mut part = vec![0u8; 3 << 20];
        d.read_exact_at(&mut part, 4096).unwrap();
        assert!(part[..] == data[4096..4096 + (3 << 20)]);
        drop((f, d));
        t.finish();
    }
}

#[test]
fn mapped() {
    use rustix::mm::{mmap, msync, munmap, MapFlags, MsyncFlags, ProtFlags};
    if !can_mount() {
        return;
    }
    let t = TestMount::new("mapped");
    let p = t.path("m");
    let f = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&p)
        .unwrap();
    f.set_len(100_000).unwrap();
    // SAFETY: a fresh shared mapping of 100,000 bytes of a file that is as long, used within its
    // bounds and unmapped once.
    unsafe {
        let a = mmap(
            std::ptr::null_mut(),
            100_000,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &f,
            0,
        )
        .unwrap();
        let s = std::slice::from_raw_parts_mut(a as *mut u8, 100_000);
        s[0] = 1;
        s[99_999] = 2;
        s[50_000] = 3;
        msync(a, 100_000, MsyncFlags::SYNC).unwrap();
        munmap(a, 100_000).unwrap();
    }
    drop(f);
    let b = fs::read(&p).unwrap();
    assert_eq!((b[0], b[50_000], b[99_999], b[1]), (1, 3, 2, 0));
    assert!(t.fs.counts.writes.load(SeqCst) >= 3);
    t.finish();
}

#[test]
fn names() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("names");
    fs::create_dir(t.path("d")).unwrap();
    fs::create_dir(t.path("d/e")).unwrap();
    fs::write(t.path("d/f"), b"f").unwrap();
    fs::hard_link(t.path("d/f"), t.path("g")).unwrap();
    assert_eq!(fs::metadata(t.path("g")).unwrap().nlink(), 2);
    assert_eq!(
        fs::metadata(t.path("g")).unwrap().ino(),
        fs::metadata(t.path("d/f")).unwrap().ino()
    );
    assert_eq!(
        errno(fs::hard_link(t.path("d/f"), t.path("g"))),
        libc::EEXIST
    );
    let target = "x/".repeat(500);
    std::os::unix::fs::symlink(&target, t.path("s")).unwrap();
    for _ in 0..2 {
        assert_eq!(
            fs::read_link(t.path("s")).unwrap().to_str(),
            Some(&target[..])
        );
    }
    assert_eq!(errno(fs::remove_dir(t.path("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(t.path("d"))), libc::EISDIR);
    assert_eq!(errno(fs::remove_dir(t.path("g"))), libc::ENOTDIR);

    let rename = |a: &str, b: &str, f: RenameFlags| {
        rustix::fs::renameat_with(CWD, t.path(a), CWD, t.path(b), f).map_err(|e| e.raw_os_error())
    };
    fs::write(t.path("h"), b"h").unwrap();
    assert_eq!(rename("h", "g", RenameFlags::NOREPLACE), Err(libc::EEXIST));
    rename("h", "d", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(t.path("d")).unwrap(), b"h");
    assert!(fs::metadata(t.path("h/e")).unwrap().is_dir());
    assert_eq!(
        rename("h", "none", RenameFlags::EXCHANGE),
        Err(libc::ENOENT)
    );
    fs::rename(t.path("d"), t.path("h/f")).unwrap();
    assert_eq!(fs::read(t.path("h/f")).unwrap(), b"h");
    assert_eq!(fs::metadata(t.path("g")).unwrap().nlink(), 1);
    assert_eq!(
        errno(fs::rename(t.path("h"), t.path("h/e/x"))),
        libc::EINVAL
    );
    assert_eq!(errno(fs::metadata(t.path("d"))), libc::ENOENT);
    fs::create_dir(t.path("d")).unwrap(); // the negative entry is replaced
    fs::rename(t.path("h/e"), t.path("d")).unwrap();
    fs::remove_dir(t.path("d")).unwrap();

    // Nodes: fifo, socket, device.
    let c = |s: &str| CString::new(t.path(s).to_str().unwrap()).unwrap();
    let dev = libc::makedev(259, 70000);
    // SAFETY: valid NUL-terminated paths.
    unsafe {
        assert_eq!(libc::mkfifo(c("fifo").as_ptr(), 0o644), 0);
        assert_eq!(
            libc::mknod(c("blk").as_ptr(), libc::S_IFBLK | 0o600, dev),
            0
        );
    }
    assert!(fs::metadata(t.path("fifo")).unwrap().file_type().is_fifo());
    let m = fs::metadata(t.path("blk")).unwrap();
    assert!(m.file_type().is_block_device());
    assert_eq!(m.rdev(), dev);
    let l = std::os::unix::net::UnixListener::bind(t.path("sock")).unwrap();
    std::os::unix::net::UnixStream::connect(t.path("sock")).unwrap();

    drop(l); // a socket keeps the mount busy

    // A file without a name gets one.
    let f = rustix::fs::open(&t.dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).unwrap();
    let f = File::from(f);
    f.write_all_at(b"tmp", 0).unwrap();
    assert_eq!(f.metadata().unwrap().nlink(), 0);
    let fd = format!("/proc/self/fd/{}", f.as_raw_fd());
    rustix::fs::linkat(CWD, &fd, CWD, t.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(t.path("named")).unwrap(), b"tmp");
    assert_eq!(f.metadata().unwrap().nlink(), 1);
    drop(f);
    t.finish();
}

#[test]
fn attributes() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("attr");
    let p = t.path("a");
    fs::write(&p, b"12345").unwrap();
    let statx = |mask| rustix::fs::statx(CWD, &p, AtFlags::empty(), mask).unwrap();
    let s = statx(StatxFlags::BASIC_STATS | StatxFlags::BTIME);
    assert!(s.stx_mask & StatxFlags::BTIME.bits() != 0, "no birth time");
    assert!(s.stx_btime.tv_sec > 1_600_000_000);
    assert_eq!(s.stx_size, 5);
    assert!(t.fs.counts.statx.load(SeqCst) > 0);

    fs::set_permissions(&p, fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&p, Some(1234), Some(5678)).unwrap();
    let m = fs::metadata(&p).unwrap();
    assert_eq!((m.uid(), m.gid(), m.mode() & 0o777), (1234, 5678, 0o751));
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: -5,
            tv_nsec: 7,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 1 << 33,
            tv_nsec: 999_999_999,
        },
    };
    rustix::fs::utimensat(CWD, &p, &times, AtFlags::empty()).unwrap();
    let m = fs::metadata(&p).unwrap();
    assert_eq!((m.atime(), m.atime_nsec()), (-5, 7));
    assert_eq!((m.mtime(), m.mtime_nsec()), (1 << 33, 999_999_999));

    // Created with the umask and, in a sgid directory, its group.
    fs::create_dir(t.path("d")).unwrap();
    std::os::unix::fs::chown(t.path("d"), None, Some(77)).unwrap();
    fs::set_permissions(t.path("d"), fs::Permissions::from_mode(0o2777)).unwrap();
    let out = std::process::Command::new("sh")
        .args(["-c", "umask 027; >f; mkdir e; mkfifo p"])
        .current_dir(t.path("d"))
        .status()
        .unwrap();
    assert!(out.success());
    let mode = |n: &str| {
        let m = fs::metadata(t.path(n)).unwrap();
        (m.mode() & 0o7777, m.gid())
    };
    assert_eq!(mode("d/f"), (0o640, 77));
    assert_eq!(mode("d/e"), (0o2750, 77));
    assert_eq!(mode("d/p"), (0o640, 77));

    let v = rustix::fs::statvfs(&t.dir).unwrap();
    assert_eq!((v.f_frsize, v.f_blocks, v.f_ffree), (512, 1 << 20, 12345));
    assert_eq!(v.f_namemax, 255);
    t.finish();
}

#[test]
fn suid_is_taken_away_by_others_writes() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("suid");
    let p = t.path("prog");
    fs::write(&p, b"x").unwrap();
    let suid = fs::Permissions::from_mode(0o6777);
    for how in ["echo y >>prog", "echo y >prog", "truncate -s 9 prog"] {
        fs::set_permissions(&p, suid.clone()).unwrap();
        let st = std::process::Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "sh",
                "-c",
                how,
            ])
            .current_dir(&t.dir)
            .status();
        let Ok(st) = st else {
            eprintln!("skipped: no setpriv");
            return;
        };
        assert!(st.success(), "{how}");
        assert_eq!(fs::metadata(&p).unwrap().mode() & 0o7777, 0o777, "{how}");
    }
    // Root keeps it.
    fs::set_permissions(&p, suid).unwrap();
    fs::OpenOptions::new()
        .append(true)
        .open(&p)
        .unwrap()
        .write_all(b"z")
        .unwrap();
    assert_eq!(fs::metadata(&p).unwrap().mode() & 0o7777, 0o6777);
    t.finish();
}

#[test]
fn writes_do_not_ask_for_capabilities_again_and_again() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("caps");
    let mut f = File::create(t.path("f")).unwrap();
    for _ in 0..100 {
        f.write_all(&[1; 8192]).unwrap();
    }
    assert!(t.fs.counts.getxattrs.load(SeqCst) <= 1);
    drop(f);
    t.finish();
}

#[test]
fn xattrs() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("xattr");
    let p = t.path("a");
    fs::write(&p, b"").unwrap();
    let big: Vec<u8> = (0..65536u32).map(|i| (i * 7) as u8).collect();
    let set =
        |n: &str, v: &[u8], f| rustix::fs::setxattr(&p, n, v, f).map_err(|e| e.raw_os_error());
    let get = |n: &str, room: usize| {
        let mut b = vec![0u8; room];
        rustix::fs::getxattr(&p, n, &mut b[..])
            .map(|k| b[..k.min(room)].to_vec())
            .map_err(|e| e.raw_os_error())
    };
    assert_eq!(get("user.big", 10), Err(libc::ENODATA));
    set("user.big", &big, XattrFlags::CREATE).unwrap();
    assert_eq!(set("user.big", &big, XattrFlags::CREATE), Err(libc::EEXIST));
    assert_eq!(
        set("user.none", b"", XattrFlags::REPLACE),
        Err(libc::ENODATA)
    );
    assert_eq!(get("user.big", 65536).unwrap(), big);
    assert_eq!(get("user.big", 100), Err(libc::ERANGE));
    // How large? (With no room rustix reports the room.)
    let size = |list: bool| {
        let p = CString::new(p.to_str().unwrap()).unwrap();
        // SAFETY: valid strings, and no room to write to.
        unsafe {
            if list {
                libc::listxattr(p.as_ptr(), std::ptr::null_mut(), 0)
            } else {
                libc::getxattr(p.as_ptr(), c"user.big".as_ptr(), std::ptr::null_mut(), 0)
            }
        }
    };
    assert_eq!(size(false), 65536);
    set("user.empty", b"", XattrFlags::empty()).unwrap();
    assert_eq!(get("user.empty", 5).unwrap(), b"");
    set("trusted.t", b"T", XattrFlags::empty()).unwrap();
    let mut names = vec![0u8; 1000];
    let n = rustix::fs::listxattr(&p, &mut names[..]).unwrap();
    assert_eq!(&names[..n], b"trusted.t\0user.big\0user.empty\0");
    assert_eq!(size(true), n as isize);
    rustix::fs::removexattr(&p, "user.big").unwrap();
    assert_eq!(get("user.big", 10), Err(libc::ENODATA));
    t.finish();
}

#[test]
fn posix_acls_are_enforced() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("acl");
    let p = t.path("a");
    fs::write(&p, b"secret").unwrap();
    fs::set_permissions(&p, fs::Permissions::from_mode(0o600)).unwrap();
    let cat = || {
        std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
            .arg(&p)
            .output()
    };
    let Ok(out) = cat() else {
        eprintln!("skipped: no setpriv");
        return;
    };
    assert!(!out.status.success());
    // version 2; user::rw-, user:65534:r--, group::---, mask::r--, other::---
    let mut acl = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, perm, id) in [
        (1u16, 6u16, none),
        (2, 4, 65534),
        (4, 0, none),
        (16, 4, none),
        (32, 0, none),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    rustix::fs::setxattr(&p, "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
    let out = cat().unwrap();
    assert_eq!(out.stdout, b"secret");
    assert_eq!(fs::metadata(&p).unwrap().mode() & 0o777, 0o640);
    t.finish();
}

#[test]
fn holes_and_copies() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("holes");
    let f = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(t.path("a"))
        .unwrap();
    rustix::fs::fallocate(&f, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 1 << 20);
    rustix::fs::fallocate(&f, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 1 << 20);
    f.write_all_at(&[7; 4096], 512 << 10).unwrap();
    f.sync_all().unwrap();
    use rustix::fs::SeekFrom as S;
    assert_eq!(rustix::fs::seek(&f, S::Data(0)), Ok(512 << 10));
    assert_eq!(rustix::fs::seek(&f, S::Hole(0)), Ok(0));
    assert_eq!(rustix::fs::seek(&f, S::Hole(512 << 10)), Ok(640 << 10));
    assert_eq!(
        rustix::fs::seek(&f, S::Data(700 << 10)),
        Err(rustix::io::Errno::NXIO)
    );
    rustix::fs::fallocate(
        &f,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        512 << 10,
        2048,
    )
    .unwrap();
    let mut b = [1; 4096];
    f.read_exact_at(&mut b, 512 << 10).unwrap();
    assert!(b[..2048].iter().all(|&x| x == 0) && b[2048..].iter().all(|&x| x == 7));
    let e = rustix::fs::fallocate(&f, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(e, Err(rustix::io::Errno::OPNOTSUPP));

    let g = File::create(t.path("b")).unwrap();
    let (mut from, mut to) = (512 << 10, 100);
    let n = rustix::fs::copy_file_range(&f, Some(&mut from), &g, Some(&mut to), 1 << 20).unwrap();
    assert_eq!(n, 512 << 10);
    let c = fs::read(t.path("b")).unwrap();
    assert_eq!(c.len(), 100 + (512 << 10));
    assert_eq!(
        (
            c[99],
            c[100 + 2047],
            c[100 + 2048],
            c[100 + 4095],
            c[100 + 4096]
        ),
        (0, 0, 7, 7, 0)
    );
    drop((f, g));
    t.finish();
}

#[test]
fn ioctls() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("ioctl");
    let f = File::create(t.path("a")).unwrap();
    let mut flags: libc::c_int = 0x40;
    let mut version: libc::c_long = 0;
    let fd = f.as_raw_fd();
    // SAFETY: each request reads or writes at most the variable its pointer names.
    unsafe {
        assert_eq!(libc::ioctl(fd, ioctl::FS_IOC_SETFLAGS as _, &flags), 0);
        flags = 0;
        assert_eq!(libc::ioctl(fd, ioctl::FS_IOC_GETFLAGS as _, &mut flags), 0);
        assert_eq!(
            libc::ioctl(fd, ioctl::FS_IOC_GETVERSION as _, &mut version),
            0
        );
        assert_eq!(libc::ioctl(fd, 0x8004_1234u32 as _, &mut flags), -1);
    }
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOTTY)
    );
    assert_eq!((flags, version), (0x40, 77));
    let mut x = [0u8; 28];
    x[12] = 9; // project
               // SAFETY: fsxattr has 28 bytes.
    unsafe {
        assert_eq!(libc::ioctl(fd, ioctl::FS_IOC_FSSETXATTR as _, &x), 0);
        x = [0; 28];
        assert_eq!(libc::ioctl(fd, ioctl::FS_IOC_FSGETXATTR as _, &mut x), 0);
    }
    assert_eq!(x[12], 9);
    let d = File::open(&t.dir).unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            libc::ioctl(d.as_raw_fd(), ioctl::FS_IOC_GETFLAGS as _, &mut flags),
            0
        );
    }
    assert_eq!(flags, 0);
    drop((f, d));
    t.finish();
}

#[test]
fn a_directory_of_100000() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("many");
    let d = t.path("d");
    fs::create_dir(&d).unwrap();
    let n = 100_000;
    let dir = File::open(&d).unwrap();
    for i in 0..n {
        rustix::fs::mknodat(
            &dir,
            format!("name-{i}").as_str(),
            rustix::fs::FileType::RegularFile,
            Mode::RUSR,
            0,
        )
        .unwrap();
    }
    let mut seen = vec![false; n];
    for e in fs::read_dir(&d).unwrap() {
        let e = e.unwrap();
        let name = e.file_name();
        let i: usize = name.to_str().unwrap()[5..].parse().unwrap();
        assert!(!std::mem::replace(&mut seen[i], true), "{i} twice");
        if i % 10_000 == 0 {
            assert_eq!(e.metadata().unwrap().mode() & 0o777, 0o400);
        }
    }
    assert!(seen.iter().all(|&x| x));

    // seekdir: from remembered places the same names come again.
    let mut it = rustix::fs::Dir::read_from(&dir).unwrap();
    let mut marks = Vec::new();
    let mut count = 0;
    while let Some(e) = it.read() {
        let e = e.unwrap();
        count += 1;
        if count % 9_973 == 0 {
            let next = it.read().unwrap().unwrap();
            count += 1;
            marks.push((e.offset(), next.file_name().to_owned()));
        }
    }
    assert_eq!(count, n + 2);
    for (off, name) in marks.iter().rev() {
        it.seek(*off).unwrap();
        assert_eq!(it.read().unwrap().unwrap().file_name(), &name[..]);
    }
    assert!(t.fs.counts.readdirplus.load(SeqCst) > 0);

    // Removed while being read: every name that stays is seen once.
    let mut kept = 0;
    for (i, e) in fs::read_dir(&d).unwrap().enumerate() {
        let e = e.unwrap();
        if i % 2 == 0 {
            fs::remove_file(e.path()).unwrap();
        } else {
            kept += 1;
        }
    }
    assert_eq!(kept, n / 2);
    assert_eq!(fs::read_dir(&d).unwrap().count(), n / 2);
    drop((it, dir));
    t.finish();
}

#[test]
fn lookups_and_forgets_balance() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("forget");
    for i in 0..500 {
        fs::write(t.path(&format!("f{i}")), b"x").unwrap();
    }
    for _ in 0..3 {
        for e in fs::read_dir(&t.dir).unwrap() {
            e.unwrap().metadata().unwrap();
        }
    }
    let (nodes, lookups) = t.fs.usage();
    assert!(nodes == 501 && lookups >= 500);
    for e in fs::read_dir(&t.dir).unwrap() {
        fs::remove_file(e.unwrap().path()).unwrap();
    }
    // Forgets come later, by themselves.
    for _ in 0..500 {
        if t.fs.usage().0 == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(t.fs.usage().0, 1, "nodes that nobody forgot");
    assert!(t.fs.counts.forgets.load(SeqCst) > 0);
    t.finish();
}

#[test]
fn opened_by_handle() {
    if !can_mount() {
        return;
    }
    #[repr(C)]
    struct FileHandle {
        bytes: u32,
        kind: i32,
        data: [u8; 128],
    }
    let t = TestMount::new("handle");
    fs::create_dir(t.path("d")).unwrap();
    fs::write(t.path("d/f"), b"by handle").unwrap();
    let mut h = FileHandle {
        bytes: 128,
        kind: 0,
        data: [0; 128],
    };
    let mut id = 0i32;
    let path = CString::new(t.path("d/f").to_str().unwrap()).unwrap();
    let dir = File::open(&t.dir).unwrap();
    // SAFETY: the structure has the kernel's layout with room for the 128 bytes it announces.
    let fd = unsafe {
        let h = &mut h as *mut FileHandle;
        let r = libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            h,
            &mut id,
            0,
        );
        assert_eq!(r, 0);
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
        libc::syscall(
            libc::SYS_open_by_handle_at,
            dir.as_raw_fd(),
            h,
            libc::O_RDONLY,
        ) as i32
    };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    let link = fs::read(format!("/proc/self/fd/{fd}")).unwrap();
    assert_eq!(link, b"by handle");
    rustix::fs::fadvise(&dir, 0, None, rustix::fs::Advice::Normal).ok();
    // SAFETY: ours, and not used again.
    unsafe { libc::close(fd) };
    drop(dir);
    t.finish();
}

#[test]
fn sync_reaches_the_daemon_as_writes() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("sync");
    let mut f = File::create(t.path("a")).unwrap();
    f.write_all(&[1; 100_000]).unwrap();
    let before = t.fs.counts.writes.load(SeqCst);
    rustix::fs::syncfs(&f).unwrap();
    // It starts writing out but (Linux 6.16 and later, and in effect earlier too) does not wait.
    for _ in 0..500 {
        if t.fs.counts.writes.load(SeqCst) > before {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(t.fs.counts.writes.load(SeqCst) > before);
    eprintln!(
        "SYNCFS requests for one syncfs(2): {}",
        t.fs.counts.syncfs.load(SeqCst)
    );
    drop(f);
    t.finish();
}

#[test]
fn without_open_messages() {
    if !can_mount() {
        return;
    }
    let mut fs = MemFs::new();
    fs.no_open = true;
    let config = Config {
        zero_message_open: true,
        ..config()
    };
    let t = TestMount::with("noopen", fs, config);
    std::fs::write(t.path("a"), b"first").unwrap();
    for i in 0..50 {
        assert_eq!(std::fs::read(t.path("a")).unwrap(), b"first", "{i}");
    }
    std::fs::write(t.path("a"), b"2nd").unwrap(); // O_TRUNC
    assert_eq!(std::fs::read(t.path("a")).unwrap(), b"2nd");
    assert!(t.fs.counts.opens.load(SeqCst) <= 1);
    t.finish();
}

#[test]
fn directories_cached_by_the_kernel() {
    if !can_mount() {
        return;
    }
    for no_opendir in [false, true] {
        let mut fs = MemFs::new();
        fs.no_opendir = no_opendir;
        fs.opendir_flags = abi::fopen::CACHE_DIR | abi::fopen::KEEP_CACHE;
        let config = Config {
            zero_message_opendir: no_opendir,
            ..config()
        };
        let t = TestMount::with("dircache", fs, config);
        let list = || {
            let mut v: Vec<_> = std::fs::read_dir(&t.dir)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            v.sort();
            v
        };
        for i in 0..300 {
            std::fs::write(t.path(&format!("f{i:03}")), b"").unwrap();
        }
        let first = list();
        assert_eq!(first.len(), 300);
        list();
        let asked = t.fs.counts.readdir.load(SeqCst);
        for _ in 0..20 {
            assert_eq!(list(), first);
        }
        assert_eq!(t.fs.counts.readdir.load(SeqCst), asked, "asked again");
        // Changes through the mount show at once …
        std::fs::remove_file(t.path("f007")).unwrap();
        std::fs::rename(t.path("f008"), t.path("g")).unwrap();
        std::fs::create_dir(t.path("d")).unwrap();
        let second = list();
        assert_eq!(second.len(), 300);
        assert!(second.contains(&"d".into()) && !second.contains(&"f007".into()));
        // … changes beside it when the kernel is told.
        list();
        t.fs.mkdir(&Request::default(), ROOT, b"beside", 0o755)
            .unwrap();
        assert_eq!(list(), second);
        assert!(t.notifier.inval_inode(ROOT, 0, 0).unwrap());
        assert!(list().contains(&"beside".into()));
        t.finish();
    }
}

#[test]
fn locks_are_the_kernels() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("locks");
    let a = File::create(t.path("a")).unwrap();
    let b = File::open(t.path("a")).unwrap();
    a.lock().unwrap();
    assert!(b.try_lock().is_err());
    a.unlock().unwrap();
    b.try_lock().unwrap();
    drop((a, b));
    t.finish();
}

#[test]
fn runs_programs() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("exec");
    fs::copy("/bin/true", t.path("true")).unwrap();
    assert!(std::process::Command::new(t.path("true"))
        .status()
        .unwrap()
        .success());
    assert!(Path::new(&t.path("true")).exists());
    t.finish();
}
