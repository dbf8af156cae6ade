//! Mounting, remounting, unmounting, stopping, dying, ordinary users, notifications.

mod common;
#[path = "common/stalled_changes.rs"]
mod stalled_changes;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use common::memfs::MemFs;
use common::{can_mount, config, mount_point, TestMount};
use fuse::*;

fn eventually(what: &str, mut f: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !f() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn busy_then_lazy() {
    if !can_mount() {
        return;
    }
    let mut t = TestMount::new("lazy");
    let mut f = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(t.path("a"))
        .unwrap();
    let e = t.mount.unmount(Unmount::Normal).unwrap_err();
    assert_eq!(e.kind, base::Kind::Busy);
    assert!(t.mount.is_mounted().unwrap());
    t.mount.unmount(Unmount::Lazy).unwrap();
    assert!(!t.mount.is_mounted().unwrap());
    // The open file still works; the session lasts as long.
    f.write_all(b"still here").unwrap();
    f.sync_all().unwrap();
    assert!(t.handle.is_running());
    drop(f);
    let end = t.join().unwrap();
    assert!(common::by_kernel(end), "{end:?}");
    t.mount.unmount(Unmount::Normal).unwrap(); // not mounted: nothing to do
}

#[test]
fn force_ends_it() {
    if !can_mount() {
        return;
    }
    let mut t = TestMount::new("force");
    let f = File::create(t.path("a")).unwrap();
    t.mount.unmount(Unmount::Force).unwrap();
    let end = t.join().unwrap();
    assert!(common::by_kernel(end), "{end:?}");
    assert!(f.metadata().is_err());
    assert!(!t.mount.is_mounted().unwrap());
}

/// Makes pages of a file dirty after its last close.
fn make_dirty(file: &std::path::Path) {
    use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
    // Pages made dirty after the last close are written out by nobody but the unmount.
    let f = File::options().read(true).write(true).open(file).unwrap();
    // SAFETY: a fresh shared mapping of part of the file, used within its bounds, unmapped once.
    unsafe {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let p = mmap(
            std::ptr::null_mut(),
            2_000_000,
            both,
            MapFlags::SHARED,
            &f,
            0,
        )
        .unwrap();
        drop(f);
        std::slice::from_raw_parts_mut(p as *mut u8, 2_000_000).fill(6);
        munmap(p, 2_000_000).unwrap();
    }
}

#[test]
fn written_data_survives_unmount() {
    if let Some(file) = std::env::var_os("FUSE_TEST_DIRTY") {
        return make_dirty(std::path::Path::new(&file));
    }
    if !can_mount() {
        return;
    }
    let t = TestMount::new("dirty");
    fs::write(t.path("a"), vec![5u8; 3_000_000]).unwrap();
    let node = fs::metadata(t.path("a")).unwrap().ino();
    // Another process: unmapping writes pages out with the memory of the process locked, and the
    // threads that serve the mount may need that lock to take them.
    let me = std::env::current_exe().unwrap();
    let status = std::process::Command::new(me)
        .args(["--exact", std::thread::current().name().unwrap()])
        .env("FUSE_TEST_DIRTY", t.path("a"))
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let fs = t.finish();
    let mut out = ReadBuf::new(4 << 20);
    fs.read(&Request::default(), node, node, 0, 4 << 20, &mut out)
        .unwrap();
    let data = out.to_vec();
    assert_eq!(data.len(), 3_000_000);
    assert!(data[..2_000_000].iter().all(|&b| b == 6));
    assert!(data[2_000_000..].iter().all(|&b| b == 5));
}

#[test]
fn stop_from_another_thread() {
    if !can_mount() {
        return;
    }
    let mut t = TestMount::new("stop");
    fs::write(t.path("a"), b"x").unwrap();
    t.handle.stop();
    assert!(!t.handle.is_running());
    assert_eq!(t.join().unwrap(), End::Stopped);
    assert_eq!(t.fs.counts.destroyed.load(SeqCst), 1);
    // Its place in the tree is dead until it is unmounted.
    eventually("the connection is gone", || {
        let e = fs::read_dir(&t.dir).unwrap_err().raw_os_error();
        let soon = [Some(libc::ECANCELED), Some(libc::ECONNABORTED)];
        assert!(e == Some(libc::ENOTCONN) || common::over_uring() && soon.contains(&e));
        e == Some(libc::ENOTCONN)
    });
    assert!(!t.notifier.inval_inode(ROOT, 0, 0).unwrap());
    assert!(t.mount.is_mounted().unwrap());
    t.mount.unmount(Unmount::Normal).unwrap();
}

#[test]
fn stop_before_anything() {
    if !can_mount() {
        return;
    }
    let dir = mount_point("early");
    let (fd, m) = mount(&dir, &MountOptions::new("testpool/early")).unwrap();
    let s = Session::new(Arc::new(MemFs::new()), fd, config());
    s.handle().stop();
    assert_eq!(s.run().unwrap(), End::Stopped);
    m.unmount(Unmount::Normal).unwrap();
    fs::remove_dir(dir).unwrap();
}

#[test]
fn threads_grow_with_need() {
    if !can_mount() {
        return;
    }
    for threads in [1, 4] {
        let config = Config {
            threads,
            ..config()
        };
        let t = TestMount::with("threads", MemFs::new(), config);
        std::thread::scope(|s| {
            for i in 0..8 {
                let dir = &t.dir;
                s.spawn(move || {
                    for j in 0..200 {
                        let p = dir.join(format!("{i}-{j}"));
                        fs::write(&p, format!("{i} {j}")).unwrap();
                        assert_eq!(fs::read_to_string(&p).unwrap(), format!("{i} {j}"));
                        fs::remove_file(&p).unwrap();
                    }
                });
            }
        });
        // Over io_uring every core has one beside them, and the device.
        let more = match common::over_uring() {
            true => 1 + threads * std::thread::available_parallelism().unwrap().get(),
            false => 0,
        };
        let now = t.handle.threads();
        assert!((1..=threads + more).contains(&now), "{now} threads");
        t.finish();
    }
}

/// Which threads have served requests.
#[derive(Default)]
struct Servers(Mutex<HashSet<ThreadId>>);

impl Filesystem for Servers {
    fn getattr(&self, _: &Request, _: u64, _: Option<u64>) -> Result<AttrReply> {
        self.0.lock().unwrap().insert(std::thread::current().id());
        let attr = Attr {
            ino: 1,
            mode: 0o40755,
            nlink: 2,
            blksize: 4096,
            ..Attr::default()
        };
        let ttl = Duration::ZERO;
        Ok(AttrReply { attr, ttl })
    }
}

#[test]
fn the_thread_that_runs_a_session_serves_requests_itself() {
    if !can_mount() || common::over_uring() {
        return;
    }
    let dir = mount_point("servers");
    let servers = Arc::new(Servers::default());
    let (fd, mount) = mount(&dir, &MountOptions::new("testpool/servers")).unwrap();
    let session = Session::new(servers.clone(), fd, config());
    let running = std::thread::spawn(move || session.run());
    fs::metadata(&dir).unwrap();
    let own = running.thread().id();
    assert!(servers.0.lock().unwrap().contains(&own));
    mount.unmount(Unmount::Normal).unwrap();
    assert!(common::by_kernel(running.join().unwrap().unwrap()));
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn mount_flags_and_remount() {
    if !can_mount() {
        return;
    }
    let mut o = MountOptions::new("testpool/flags");
    o.nosuid = true;
    o.noexec = true;
    o.atime = Atime::Noatime;
    let t = TestMount::with_options("flags", MemFs::new(), config(), &o);
    let shown = || {
        let all = mounted("zfs").unwrap();
        all.into_iter().find(|m| m.path == t.dir).unwrap().options
    };
    let s = shown();
    for w in [
        "rw",
        "nosuid",
        "noexec",
        "noatime",
        "default_permissions",
        "allow_other",
    ] {
        assert!(s.split(',').any(|x| x == w), "{w} in {s}");
    }
    fs::write(t.path("a"), b"x").unwrap();
    o.read_only = true;
    o.noexec = false;
    o.atime = Atime::Relatime;
    t.mount.remount(&o).unwrap();
    let s = shown();
    assert!(
        s.starts_with("ro,nosuid,") && s.contains("relatime") && !s.contains("noexec"),
        "{s}"
    );
    let e = fs::write(t.path("a"), b"y").unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EROFS));
    o.read_only = false;
    t.mount.remount(&o).unwrap();
    fs::write(t.path("a"), b"y").unwrap();
    t.finish();
}

#[test]
fn something_mounted_over_it() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("under");
    let (fd, over) = mount(&t.dir, &MountOptions::new("testpool/over")).unwrap();
    let e = t.mount.unmount(Unmount::Normal).unwrap_err();
    assert_eq!(e.kind, base::Kind::Busy);
    drop(fd);
    over.unmount(Unmount::Normal).unwrap();
    t.finish();
}

#[test]
fn notifications() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("notify");
    let req = Request::default();
    fs::write(t.path("a"), b"one").unwrap();
    assert_eq!(fs::read(t.path("a")).unwrap(), b"one");
    let node = fs::metadata(t.path("a")).unwrap().ino();
    // Changed beside the mount: the kernel goes on showing what it knows …
    let args = WriteArgs::default();
    t.fs.write(&req, node, 0, 0, b"TWO".into(), args).unwrap();
    assert_eq!(fs::read(t.path("a")).unwrap(), b"one");
    // … until it is told.
    assert!(t.notifier.inval_inode(node, 0, 0).unwrap());
    assert_eq!(fs::read(t.path("a")).unwrap(), b"TWO");
    assert!(t.notifier.store(node, 1, b"xyz").unwrap());
    let b = fs::read(t.path("a")).unwrap();
    assert_eq!(&b[..2], b"Tx");
    assert!(!t.notifier.inval_inode(99_999, 0, 0).unwrap());

    // A name that was not there and now is.
    assert!(!t.path("n").exists());
    t.fs.mkdir(&req, ROOT, b"n", 0o755).unwrap();
    assert!(!t.path("n").exists());
    assert!(t.notifier.inval_entry(ROOT, b"n").unwrap());
    assert!(t.path("n").exists());
    // A name that is gone.
    t.fs.rmdir(&req, ROOT, b"n").unwrap();
    assert!(t.path("n").exists());
    let n = fs::metadata(t.path("n")).unwrap().ino();
    assert!(t.notifier.delete(ROOT, n, b"n").unwrap());
    assert!(!t.path("n").exists());
    // Expiring asks again without tearing down.
    let f = File::open(t.path("a")).unwrap();
    let before = t.fs.counts.lookups.load(SeqCst);
    fs::metadata(t.path("a")).unwrap();
    assert_eq!(t.fs.counts.lookups.load(SeqCst), before);
    assert!(t.notifier.expire_entry(ROOT, b"a").unwrap());
    fs::metadata(t.path("a")).unwrap();
    assert_eq!(t.fs.counts.lookups.load(SeqCst), before + 1);
    if t.handle.negotiated().unwrap().minor >= 44 {
        assert!(t.notifier.inc_epoch().unwrap());
        fs::metadata(t.path("a")).unwrap();
        assert_eq!(t.fs.counts.lookups.load(SeqCst), before + 2);
    }
    drop(f);
    t.finish();
}

/// Fails in every way a method can.
struct Bad;

impl Filesystem for Bad {
    fn getattr(&self, _: &Request, node: u64, _: Option<u64>) -> Result<AttrReply> {
        assert_eq!(node, ROOT);
        Ok(AttrReply {
            attr: Attr {
                ino: 1,
                mode: libc::S_IFDIR | 0o755,
                nlink: 2,
                ..Attr::default()
            },
            ttl: Duration::ZERO,
        })
    }

    fn lookup(&self, _: &Request, _: u64, name: &[u8]) -> Result<Entry> {
        match name {
            b"panic" => panic!("on purpose"),
            b"huge" => Err(Errno(100_000)),
            b"zero" => Err(Errno(0)),
            _ => Err(base::Error::new(base::Kind::Quota, "full").into()),
        }
    }
}

#[test]
fn errors_and_panics_are_answered() {
    if !can_mount() {
        return;
    }
    let dir = mount_point("bad");
    let (fd, m) = mount(&dir, &MountOptions::new("testpool/bad")).unwrap();
    let s = Session::new(Arc::new(Bad), fd, config());
    let j = std::thread::spawn(move || s.run());
    let err = |n: &str| fs::metadata(dir.join(n)).unwrap_err().raw_os_error();
    let got = [
        err("panic"),
        err("huge"),
        err("zero"),
        err("other"),
        err("panic"),
    ];
    let listed = fs::read_dir(&dir).map_or(0, |d| d.filter(|e| e.is_ok()).count());
    m.unmount(Unmount::Normal).unwrap();
    let end = j.join().unwrap().unwrap();
    assert!(common::by_kernel(end), "{end:?}");
    fs::remove_dir(&dir).unwrap();
    let eio = Some(libc::EIO);
    assert_eq!(got, [eio, eio, eio, Some(libc::EDQUOT), eio]);
    assert_eq!(listed, 0);
}

/// A lookup takes some hundreds of microseconds in which there is nothing to do, as from a device.
#[derive(Default)]
struct Slow {
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl Filesystem for Slow {
    fn getattr(&self, r: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        Bad.getattr(r, node, fh)
    }

    fn lookup(&self, _: &Request, _: u64, _: &[u8]) -> Result<Entry> {
        let n = self.inside.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(n, SeqCst);
        std::thread::sleep(Duration::from_micros(300));
        self.inside.fetch_sub(1, SeqCst);
        Err(Errno::ENOENT)
    }
}

#[test]
fn more_wait_for_a_device_than_there_are_processors() {
    if !can_mount() || common::over_uring() {
        return; // over io_uring entries wait, and there are as many as there are
    }
    let dir = mount_point("slow");
    let (fd, m) = mount(&dir, &MountOptions::new("testpool/slow")).unwrap();
    let fs = Arc::new(Slow::default());
    let config = Config {
        threads: 64,
        ..config()
    };
    let s = Session::new(fs.clone(), fd, config);
    let j = std::thread::spawn(move || s.run());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let callers = 3 * processors + 4;
    std::thread::scope(|s| {
        for t in 0..callers {
            let dir = &dir;
            s.spawn(move || {
                for i in 0..400 {
                    fs::metadata(dir.join(format!("{t}-{i}"))).unwrap_err();
                }
            });
        }
    });
    m.unmount(Unmount::Normal).unwrap();
    let end = j.join().unwrap().unwrap();
    assert!(common::by_kernel(end), "{end:?}");
    fs::remove_dir(&dir).unwrap();
    let most = fs.most.load(SeqCst);
    assert!(most > processors + 2, "{most} at once for {callers}");
}

/// A lookup of "wait N" comes back when N others of "go" have.
#[derive(Default)]
struct Stuck {
    gone: std::sync::Mutex<usize>,
    changed: std::sync::Condvar,
    announce: bool,
}

impl Filesystem for Stuck {
    fn getattr(&self, r: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        Bad.getattr(r, node, fh)
    }

    fn lookup(&self, _: &Request, _: u64, name: &[u8]) -> Result<Entry> {
        let mut gone = self.gone.lock().unwrap();
        if name.starts_with(b"wait") {
            if self.announce {
                about_to_block();
            }
            let want = name.len();
            let long = Duration::from_secs(20);
            let (_gone, late) = self
                .changed
                .wait_timeout_while(gone, long, |g| *g < want)
                .unwrap();
            if late.timed_out() {
                return Err(Errno::EIO);
            }
        } else {
            *gone += 1;
            self.changed.notify_all();
        }
        Err(Errno::ENOENT)
    }
}

#[test]
fn a_waiting_request_does_not_stop_the_others() {
    if !can_mount() {
        return;
    }
    // So many are served at once whatever they are and wherever they come from.
    let n = if common::over_uring() { 3 } else { 8 };
    for announce in [false, true] {
        let dir = mount_point("stuck");
        let (fd, m) = mount(&dir, &MountOptions::new("testpool/stuck")).unwrap();
        let fs = Arc::new(Stuck {
            announce,
            ..Stuck::default()
        });
        let s = Session::new(fs, fd, config());
        let j = std::thread::spawn(move || s.run());
        let errs: Vec<_> = std::thread::scope(|s| {
            // All of these wait for something that comes behind them.
            let waiting: Vec<_> = (0..n)
                .map(|i| {
                    let p = dir.join(format!("wait{}", "x".repeat(i)));
                    s.spawn(move || fs::metadata(p).unwrap_err().raw_os_error())
                })
                .collect();
            for i in 0..12 {
                std::thread::sleep(Duration::from_millis(3));
                let _ = fs::metadata(dir.join(format!("go{i}")));
            }
            waiting.into_iter().map(|w| w.join().unwrap()).collect()
        });
        m.unmount(Unmount::Normal).unwrap();
        j.join().unwrap().unwrap();
        fs::remove_dir(&dir).unwrap();
        assert_eq!(errs, vec![Some(libc::ENOENT); n]);
    }
}

/// A file whose read at page N < 8 comes back when N + 4 reads of later pages have.
#[derive(Default)]
struct StuckFile(Stuck);

impl Filesystem for StuckFile {
    fn getattr(&self, r: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        match node {
            ROOT => Bad.getattr(r, node, fh),
            _ => Ok(AttrReply {
                attr: self.lookup(r, ROOT, b"f")?.attr,
                ttl: FOREVER,
            }),
        }
    }

    fn lookup(&self, _: &Request, _: u64, _: &[u8]) -> Result<Entry> {
        Ok(Entry {
            node: 2,
            attr: Attr {
                ino: 2,
                mode: libc::S_IFREG | 0o644,
                nlink: 1,
                size: 1 << 20,
                ..Attr::default()
            },
            entry_ttl: FOREVER,
            attr_ttl: FOREVER,
            ..Entry::default()
        })
    }

    fn open(&self, _: &Request, _: u64, _: OpenArgs) -> Result<Opened> {
        Ok(Opened {
            fh: 0,
            flags: abi::fopen::DIRECT_IO,
        })
    }

    fn read(
        &self,
        r: &Request,
        _: u64,
        _: u64,
        offset: u64,
        size: u32,
        out: &mut ReadBuf,
    ) -> Result<()> {
        let name = match offset / 4096 {
            n @ 0..8 => format!("wait{}", "x".repeat(n as usize)),
            _ => "go".into(),
        };
        match self.0.lookup(r, ROOT, name.as_bytes()) {
            Err(Errno(libc::ENOENT)) => {
                out.zeros(size as usize);
                Ok(())
            }
            r => r.map(|_| ()),
        }
    }
}

/// More than a queue begins with, all from one core.
#[test]
fn waiting_reads_do_not_stop_the_others() {
    use std::os::unix::fs::FileExt;
    if !can_mount() {
        return;
    }
    let dir = mount_point("stuckfile");
    let (fd, m) = mount(&dir, &MountOptions::new("testpool/stuckfile")).unwrap();
    let s = Session::new(Arc::new(StuckFile::default()), fd, config());
    let j = std::thread::spawn(move || s.run());
    let f = File::open(dir.join("f")).unwrap();
    std::thread::sleep(Duration::from_millis(100)); // until the session is complete
    let here = rustix::thread::sched_getcpu();
    let read = &|page: u64| {
        let mut set = rustix::thread::CpuSet::new();
        set.set(here);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        f.read_at(&mut [1; 4096], page * 4096).ok()
    };
    let got: Vec<_> = std::thread::scope(|s| {
        let waiting: Vec<_> = (0..8).map(|i| s.spawn(move || read(i))).collect();
        for i in 0..12 {
            s.spawn(move || read(8 + i)).join().unwrap();
        }
        waiting.into_iter().map(|w| w.join().unwrap()).collect()
    });
    drop(f);
    m.unmount(Unmount::Normal).unwrap();
    j.join().unwrap().unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(got, [Some(4096); 8]);
}

/// Names beginning with `wait` are found when they may be; all others are missing.
#[derive(Default)]
struct Stalled {
    found: Mutex<bool>,
    released: Condvar,
    /// Lookups that wait, and that the kernel has.
    waiting: AtomicUsize,
    held: AtomicUsize,
}

impl Stalled {
    fn attr() -> Attr {
        Attr {
            ino: 2,
            mode: libc::S_IFREG | 0o644,
            nlink: 1,
            ..Attr::default()
        }
    }

    fn release(&self) {
        *self.found.lock().unwrap() = true;
        self.released.notify_all();
    }
}

impl Filesystem for Stalled {
    fn getattr(&self, r: &Request, node: u64, fh: Option<u64>) -> Result<AttrReply> {
        match node {
            ROOT => Bad.getattr(r, node, fh),
            _ => Ok(AttrReply {
                attr: Stalled::attr(),
                ttl: FOREVER,
            }),
        }
    }

    fn lookup(&self, _: &Request, _: u64, name: &[u8]) -> Result<Entry> {
        if !name.starts_with(b"wait") {
            return Err(Errno::ENOENT);
        }
        self.waiting.fetch_add(1, SeqCst);
        let found = self.found.lock().unwrap();
        drop(self.released.wait_while(found, |f| !*f).unwrap());
        self.waiting.fetch_sub(1, SeqCst);
        self.held.fetch_add(1, SeqCst);
        Ok(Entry {
            node: 2,
            attr: Stalled::attr(),
            entry_ttl: FOREVER,
            attr_ttl: FOREVER,
            ..Entry::default()
        })
    }

    fn forget(&self, _: u64, nlookup: u64) {
        self.held.fetch_sub(nlookup as usize, SeqCst);
    }
}

/// More processes than threads wait for something that takes for ever: all of them can be killed,
/// others are served, and what comes too late is undone. Signals that do not kill are no reason.
#[test]
fn whoever_waits_can_be_killed() {
    if !can_mount() {
        return;
    }
    let dir = mount_point("stalled");
    let (fd, m) = mount(&dir, &MountOptions::new("testpool/stalled")).unwrap();
    let fs = Arc::new(Stalled::default());
    let config = Config {
        threads: 4,
        ..config()
    };
    let s = Session::new(fs.clone(), fd, config);
    let j = std::thread::spawn(move || s.run());
    let mut children: Vec<Child> = (0..12)
        .map(|i| {
            let file = dir.join(format!("wait{i}"));
            Command::new("stat")
                .arg(file)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    eventually("all threads wait", || fs.waiting.load(SeqCst) >= 4);
    let (patient, killed) = children.split_at_mut(2);
    for c in killed.iter_mut() {
        c.kill().unwrap();
    }
    for c in killed {
        eventually("a killed process ends", || c.try_wait().unwrap().is_some());
    }
    // Another request than those is served.
    let other = dir.join("other");
    let e = std::thread::spawn(move || fs::metadata(other).unwrap_err());
    eventually("others are served", || e.is_finished());
    assert_eq!(e.join().unwrap().raw_os_error(), Some(libc::ENOENT));
    for c in patient.iter_mut() {
        assert!(c.try_wait().unwrap().is_none());
    }
    fs.release();
    for c in patient {
        assert!(c.wait().unwrap().success());
    }
    m.unmount(Unmount::Normal).unwrap();
    j.join().unwrap().unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(fs.waiting.load(SeqCst), 0);
    assert!(fs.held.load(SeqCst) <= 2, "late lookups are not undone");
}

/// Not a test by itself: a daemon in a process of its own, for the tests below. It mounts where
/// FUSE_TEST_CHILD says, announces it and serves until the end or until its input is closed.
#[test]
#[ignore]
fn child() {
    let Some(dir) = std::env::var_os("FUSE_TEST_CHILD").map(PathBuf::from) else {
        return;
    };
    let (fd, m) = match mount(&dir, &MountOptions::new("testpool/child a,b")) {
        Ok(x) => x,
        Err(e) => {
            println!("\nfailed: {e}");
            return;
        }
    };
    let s = Session::new(Arc::new(MemFs::new()), fd, config());
    let j = std::thread::spawn(move || s.run());
    println!("\nmounted helper={}", m.by_helper());
    let mut line = String::new();
    let mut input = BufReader::new(std::io::stdin());
    while input.read_line(&mut line).unwrap_or(0) > 0 {
        match line.trim() {
            "unmount" => println!("{:?}", m.unmount(Unmount::Normal)),
            "mounted" => println!("{:?}", m.is_mounted()),
            "remount" => println!(
                "{:?}",
                m.remount(&MountOptions::new("x")).map_err(|e| e.kind)
            ),
            "write" => println!("{:?}", fs::write(dir.join("mine"), b"data").is_ok()),
            "read" => println!(
                "{:?}",
                fs::read(dir.join("mine")).unwrap_or_default() == b"data"
            ),
            "join" => break,
            x => println!("what? {x}"),
        }
        line.clear();
    }
    if m.is_mounted().unwrap_or(false) {
        let _ = m.unmount(Unmount::Lazy);
    }
    println!("{:?}", j.join().unwrap());
}

struct ChildDaemon {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    dir: PathBuf,
}

impl ChildDaemon {
    fn start(dir: PathBuf, wrap: &[&str]) -> (ChildDaemon, String) {
        let exe = std::env::current_exe().unwrap();
        // "child" or "lifecycle::child".
        let name = format!("{}::child", module_path!());
        let name = name.split_once("::").unwrap().1;
        let mut args: Vec<_> = wrap.iter().map(std::ffi::OsString::from).collect();
        args.push(exe.into());
        let mut child = Command::new(&args[0])
            .args(&args[1..])
            .args(["--ignored", "--exact", name, "--nocapture"])
            .env("FUSE_TEST_CHILD", &dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut d = ChildDaemon { child, out, dir };
        let said = loop {
            let l = d.line();
            if l.is_empty() || l.starts_with("mounted") || l.starts_with("failed") {
                break l;
            }
        };
        (d, said)
    }

    fn line(&mut self) -> String {
        let mut l = String::new();
        loop {
            l.clear();
            if self.out.read_line(&mut l).unwrap_or(0) == 0 {
                return String::new();
            }
            if !l.trim().is_empty() && !l.starts_with("running") {
                return l.trim().to_string();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.child.stdin.as_ref().unwrap(), "{what}").unwrap();
        self.line()
    }
}

impl Drop for ChildDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for m in mounted("zfs").unwrap_or_default() {
            if m.path == self.dir {
                let _ = Mount::found(&m).unmount(Unmount::Force);
            }
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn daemon_killed() {
    if !can_mount() {
        return;
    }
    let (mut d, said) = ChildDaemon::start(mount_point("killed"), &[]);
    assert_eq!(said, "mounted helper=false");
    fs::write(d.dir.join("a"), b"x").unwrap();
    let f = File::open(d.dir.join("a")).unwrap();
    d.child.kill().unwrap();
    d.child.wait().unwrap();
    let gone = |e: std::io::Error| {
        matches!(
            e.raw_os_error(),
            Some(libc::ENOTCONN) | Some(libc::ECONNABORTED)
        )
    };
    eventually("the connection is gone", || {
        let e = fs::read_dir(&d.dir).unwrap_err();
        let soon = common::over_uring() && e.raw_os_error() == Some(libc::ECANCELED);
        assert!(soon || matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)));
        !soon
    });
    assert!(gone(fs::write(d.dir.join("b"), b"x").unwrap_err()));
    drop(f);
    // The mount it left behind can be found and taken away.
    let info = mounted("zfs").unwrap();
    let info = info.iter().find(|m| m.path == d.dir).unwrap();
    assert_eq!(info.source.to_str(), Some("testpool/child a,b"));
    let m = Mount::found(info);
    assert!(m.is_mounted().unwrap());
    m.unmount(Unmount::Normal).unwrap();
    assert!(!m.is_mounted().unwrap());
}

#[test]
fn unmounted_by_somebody_else() {
    if !can_mount() {
        return;
    }
    let (mut d, _) = ChildDaemon::start(mount_point("umount"), &[]);
    fs::write(d.dir.join("a"), b"x").unwrap();
    let st = Command::new("umount").arg(&d.dir).status().unwrap();
    assert!(st.success());
    assert_eq!(d.ask("mounted"), "Ok(false)");
    let end = d.ask("join");
    assert!(
        ["Ok(Unmounted)", "Ok(Aborted)"].contains(&end.as_str()),
        "{end}"
    );
    eventually("the daemon ends", || d.child.try_wait().unwrap().is_some());
}

#[test]
fn ordinary_user() {
    if !can_mount() {
        return;
    }
    const NOBODY: u32 = 65534;
    let exe = std::env::current_exe().unwrap();
    let wrap = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let reachable = Command::new(wrap[0])
        .args(&wrap[1..])
        .args(["test", "-x"])
        .arg(&exe)
        .status();
    if !reachable.is_ok_and(|s| s.success()) {
        eprintln!(
            "skipped: no setpriv, or {} is out of reach for others",
            exe.display()
        );
        return;
    }
    if !Path::new("/usr/bin/fusermount3").exists() && !Path::new("/bin/fusermount3").exists() {
        eprintln!("skipped: no fusermount3");
        return;
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
        eprintln!("skipped: /dev/fuse is not open to all (mode 0666)");
        return;
    }
    let dir = mount_point("user");
    std::os::unix::fs::chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let (mut d, said) = ChildDaemon::start(dir, &wrap);
    assert_eq!(said, "mounted helper=true");
    let shown = mounted("zfs").unwrap();
    let shown = shown.iter().find(|m| m.path == d.dir).unwrap();
    assert_eq!(shown.source.to_str(), Some("testpool/child a,b"));
    assert!(shown.options.contains("user_id=65534") && shown.options.contains("nosuid"));
    assert_eq!(d.ask("write"), "true");
    assert_eq!(d.ask("read"), "true");
    // Not even root may look into it (no allow_other).
    assert_eq!(
        fs::read(d.dir.join("mine")).unwrap_err().raw_os_error(),
        Some(libc::EACCES)
    );
    assert_eq!(d.ask("remount"), "Err(Unsupported)");
    assert_eq!(d.ask("mounted"), "Ok(true)");
    assert_eq!(d.ask("unmount"), "Ok(())");
    assert_eq!(d.ask("mounted"), "Ok(false)");
    assert_eq!(d.ask("join"), "Ok(Unmounted)");
    let mut rest = String::new();
    d.out.read_to_string(&mut rest).unwrap();
}

#[test]
fn ordinary_user_on_a_foreign_directory() {
    if !can_mount() {
        return;
    }
    let wrap = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let exe = std::env::current_exe().unwrap();
    let reachable = Command::new(wrap[0])
        .args(&wrap[1..])
        .args(["test", "-x"])
        .arg(&exe)
        .status();
    if !reachable.is_ok_and(|s| s.success()) {
        eprintln!("skipped: no setpriv, or the test is out of reach for others");
        return;
    }
    let (_d, said) = ChildDaemon::start(mount_point("foreign"), &wrap);
    assert!(said.starts_with("failed: "), "{said}");
    eprintln!("{said}");
}
