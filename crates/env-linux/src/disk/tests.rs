//! Devices and image files as the kernel gives them.

use super::*;
use env::Disks;
use std::fs::OpenOptions;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A sparse file of `size` bytes that is removed at the end.
struct Image(String);
impl Image {
    fn new(name: &str, size: u64) -> Image {
        let path = std::env::temp_dir().join(format!("env-linux-{}-{name}", std::process::id()));
        let f = File::create(&path).unwrap();
        f.set_len(size).unwrap();
        Image(path.to_str().unwrap().to_string())
    }
}
impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn every_way() -> Vec<LinuxDisks> {
    let mut all = Vec::new();
    for io_uring in [IoUring::Files, IoUring::Devices, IoUring::Nothing] {
        for direct in [true, false] {
            all.push(LinuxDisks::with_options(Options { io_uring, direct }));
        }
    }
    all
}

fn kind_of<T>(r: Result<T>) -> Kind {
    match r {
        Ok(_) => panic!("must be refused"),
        Err(e) => e.kind,
    }
}

#[test]
fn an_image_that_was_cut_or_deleted_is_not_flushed() {
    let dir = std::env::temp_dir().join(format!("zt-cut-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("image");
    let name = path.to_str().unwrap();
    let make = || File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let disks = LinuxDisks::new();
    make();
    let disk = disks.open(name, Access::Exclusive).unwrap();
    disk.write(0, &[7; 4096]).unwrap();
    disk.flush().unwrap();
    let cut = |len: u64| {
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(len).unwrap();
    };
    cut(2 << 20);
    disk.flush().unwrap();
    cut(1 << 19);
    let e = disk.flush().unwrap_err();
    assert!(
        e.kind == Kind::Io && e.to_string().contains("truncated"),
        "{e}"
    );
    cut(1 << 20);
    disk.flush().unwrap();
    std::fs::rename(&path, dir.join("other")).unwrap();
    disk.flush().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let e = disk.flush().unwrap_err();
    assert!(e.to_string().contains("deleted"), "{e}");
}

/// Records lie where direct I/O takes them without a copy: the allocator's settings are in
/// force, in these tests as in the daemon.
#[test]
fn records_begin_on_pages() {
    for len in [4096, 16 << 10, 128 << 10, 1 << 20] {
        let records: Vec<Vec<u8>> = (0..9).map(|_| vec![1; len]).collect();
        let starts: Vec<_> = records.iter().map(|r| r.as_ptr()).collect();
        let fit = |s: &*const u8| fits(*s as usize, len, 4096);
        assert!(starts.iter().all(fit), "{len}: {starts:?}");
    }
}

/// Random batches against a byte array, with every combination of engine and cache mode.
#[test]
fn batches_agree_with_memory() {
    const SIZE: usize = 6 << 20;
    for (way, disks) in every_way().into_iter().enumerate() {
        let image = Image::new(&format!("batch{way}"), SIZE as u64);
        let disk = disks.open(&image.0, Access::Exclusive).unwrap();
        assert_eq!(disk.geometry().size, SIZE as u64);
        let mut model = vec![0u8; SIZE];
        let mut seed = 7u64 + way as u64;
        let mut rnd = |n: usize| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        for round in 0..12 {
            // Disjoint writes: a permutation of sector runs.
            let mut ops = Vec::new();
            let mut at = 0;
            while at < SIZE {
                let most = if rnd(4) == 0 { 4000 } else { 40 };
                let len = (512 * (1 + rnd(most))).min(SIZE - at);
                if rnd(3) > 0 {
                    let data: Vec<u8> = (0..len).map(|i| (i / 512 + round + at) as u8).collect();
                    model[at..at + len].copy_from_slice(&data);
                    let mut cut = rnd(len + 1);
                    if rnd(3) > 0 {
                        cut &= !511; // as direct I/O likes it
                    }
                    let bufs = vec![
                        Arc::new(data[..cut].to_vec()),
                        Arc::new(data[cut..].to_vec()),
                    ];
                    ops.insert(
                        rnd(ops.len() + 1),
                        Op::Write {
                            offset: at as u64,
                            bufs,
                        },
                    );
                }
                at += len;
            }
            assert!(disk.batch(ops).iter().all(|(_, r)| r.is_ok()));
            disk.flush().unwrap();
            let ops = (0..100)
                .map(|_| {
                    let at = 512 * rnd(SIZE / 512);
                    let len = (512 * rnd(if round == 0 { 5000 } else { 60 })).min(SIZE - at);
                    Op::Read {
                        offset: at as u64,
                        buf: vec![0xee; len],
                    }
                })
                .collect();
            for (op, r) in disk.batch(ops) {
                r.unwrap();
                let Op::Read { offset, buf } = op else {
                    panic!("a read comes back")
                };
                let at = offset as usize;
                assert!(buf == model[at..at + buf.len()], "way {way} at {at}");
            }
        }
        let mut all = vec![0; SIZE];
        disk.read(0, &mut all).unwrap();
        assert!(all == model);
        disk.write(512, &model[..3 << 20]).unwrap();
        disk.read(512, &mut all[..3 << 20]).unwrap();
        assert!(all[..3 << 20] == model[..3 << 20]);
    }
}

#[test]
fn one_bad_operation_does_not_spoil_its_neighbours() {
    for (way, disks) in every_way().into_iter().enumerate() {
        let image = Image::new(&format!("bad{way}"), 1 << 20);
        let disk = disks.open(&image.0, Access::Write).unwrap();
        let read = |offset, len| Op::Read {
            offset,
            buf: vec![1; len],
        };
        // The middle one is beyond the end and touches its neighbour.
        let r = disk.batch(vec![
            read((1 << 20) - 512, 512),
            read(1 << 20, 512),
            read(0, 512),
        ]);
        let ok: Vec<bool> = r.iter().map(|(_, r)| r.is_ok()).collect();
        assert_eq!(ok, [true, false, true], "way {way}");
        assert!(disk.read(1 << 20, &mut [0; 512]).is_err());
        assert_eq!(
            kind_of(disk.read(u64::MAX - 511, &mut [0; 512])),
            Kind::Invalid
        );
    }
}

/// Every way to drive a disk of this size, as if the kernel took memory and lengths that are
/// multiples of `align`.
fn aligned_ways(name: &str, size: u64, align: usize) -> Vec<(Image, LinuxDisk)> {
    let ways = every_way().into_iter().enumerate();
    ways.map(|(way, disks)| {
        let image = Image::new(&format!("{name}{way}"), size);
        let threads = disks.threads.clone();
        let mut disk = LinuxDisk::open(&image.0, Access::Write, disks.options, threads).unwrap();
        disk.align = align;
        (image, disk)
    })
    .collect()
}

/// The process may not write files beyond this size, which ends within a page. (Other tests
/// have smaller files.)
fn limit_files(size: u64) {
    let limit = libc::rlimit {
        rlim_cur: size,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: reads one `rlimit`; a signal is ignored that nobody waits for.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

/// What ends short goes on behind the last sector, and then is told why it ended there.
#[test]
fn a_short_transfer_tells_the_error_it_ended_at() {
    const PAGE: u64 = 4096;
    const END: u64 = (1 << 30) + 512;
    limit_files(END);
    for (way, (_image, disk)) in aligned_ways("short", PAGE, 4096).into_iter().enumerate() {
        let write = |offset, len| Op::Write {
            offset,
            bufs: vec![Arc::new(vec![7; len])],
        };
        let at = END - 512 - PAGE;
        let done = disk.batch(vec![write(0, 4096), write(at, 8192)]);
        assert!(done[0].1.is_ok(), "way {way}");
        let e = done[1].1.as_ref().unwrap_err();
        assert_eq!(e.kind, Kind::FileTooBig, "way {way}: {e}");
        // All that could be written is there, up to the last sector.
        assert_eq!(disk.geometry().size, END, "way {way}");
        let read = |offset, len| Op::Read {
            offset,
            buf: vec![1; len],
        };
        let done = disk.batch(vec![read(0, 4096), read(at, 4608), read(at, 8192)]);
        let (Op::Read { buf, .. }, Ok(())) = &done[1] else {
            panic!("way {way}: {:?}", done[1].1)
        };
        assert!(buf.iter().all(|b| *b == 7), "way {way}");
        let e = done[2].1.as_ref().unwrap_err();
        assert!(e.to_string().contains("past the end"), "way {way}: {e}");
    }
}

/// Memory that the kernel refuses, whatever it said before, is copied.
#[test]
fn memory_that_is_refused_is_copied() {
    for (way, (_image, disk)) in aligned_ways("odd", 1 << 20, 1).into_iter().enumerate() {
        let data: Vec<u8> = (0..8192).map(|i| (i / 7) as u8).collect();
        let write = |offset, cut| Op::Write {
            offset,
            bufs: vec![
                Arc::new(data[..cut].to_vec()),
                Arc::new(data[cut..].to_vec()),
            ],
        };
        let done = disk.batch(vec![write(0, 4096), write(16384, 1001)]);
        assert!(
            done.iter().all(|(_, r)| r.is_ok()),
            "way {way}: {:?}",
            done[1].1
        );
        let read = |offset| Op::Read {
            offset,
            buf: vec![0; 8192],
        };
        for (op, r) in disk.batch(vec![read(0), read(16384)]) {
            assert!(r.is_ok(), "way {way}: {r:?}");
            assert!(
                matches!(op, Op::Read { buf, .. } if buf == data),
                "way {way}"
            );
        }
    }
}

/// As a process holds it that was killed and whose transfers are still under way.
#[test]
fn who_lets_go_soon_is_waited_for() {
    let image = Image::new("soon", 1 << 20);
    let disks = LinuxDisks::new();
    let first = disks.open(&image.0, Access::Exclusive).unwrap();
    std::thread::scope(|s| {
        let second = s.spawn(|| disks.open(&image.0, Access::Exclusive).map(|_| ()));
        // It is refused at least once.
        while disks.patience.load(Ordering::Relaxed) == WAITS {
            std::thread::yield_now();
        }
        drop(first);
        second.join().unwrap().unwrap();
    });
    assert_eq!(disks.patience.load(Ordering::Relaxed), WAITS);
}

#[test]
fn a_second_exclusive_open_is_refused() {
    let image = Image::new("lock", 1 << 20);
    let disks = LinuxDisks::new();
    let first = disks.open(&image.0, Access::Exclusive).unwrap();
    assert_eq!(kind_of(disks.open(&image.0, Access::Exclusive)), Kind::Busy);
    // Looking is allowed.
    let probe = disks.open(&image.0, Access::Read).unwrap();
    assert_eq!(kind_of(probe.write(0, &[0; 512])), Kind::ReadOnly);
    drop(first);
    disks.open(&image.0, Access::Exclusive).unwrap();
}

#[test]
fn odd_paths_are_refused_and_holes_read_as_zeros() {
    let disks = LinuxDisks::new();
    assert_eq!(
        kind_of(disks.open("/nonexistent/x", Access::Read)),
        Kind::NotFound
    );
    assert_eq!(
        kind_of(disks.open("/dev/null", Access::Read)),
        Kind::Invalid
    );
    assert_eq!(kind_of(disks.open("/tmp", Access::Read)), Kind::Invalid);
    let image = Image::new("hole", 1 << 20);
    let disk = disks.open(&image.0, Access::Write).unwrap();
    disk.write(0, &[7; 65536]).unwrap();
    if disk.discard(0, 32768).is_ok() {
        let mut b = vec![1; 65536];
        disk.read(0, &mut b).unwrap();
        assert!(b[..32768].iter().all(|x| *x == 0) && b[32768..].iter().all(|x| *x == 7));
    }
}

/// A loop device for as long as it lives.
struct Loop(String);
impl Loop {
    /// `None` where the machine does not let us.
    fn on(image: &Image) -> Option<Loop> {
        let mut c = std::process::Command::new("losetup");
        let out = c.args(["-f", "--show", &image.0]).output().ok()?;
        out.status
            .success()
            .then(|| Loop(String::from_utf8_lossy(&out.stdout).trim().to_string()))
    }
}
impl Drop for Loop {
    fn drop(&mut self) {
        let mut c = std::process::Command::new("losetup");
        let _ = c.args(["-d", &self.0]).output();
    }
}

#[test]
fn block_devices() {
    let image = Image::new("loop", 64 << 20);
    let Some(dev) = Loop::on(&image) else {
        println!("skipped: no loop devices");
        return;
    };
    let disks = LinuxDisks::new();
    let disk = disks.open(&dev.0, Access::Exclusive).unwrap();
    let g = disk.geometry();
    assert!(g.is_block && g.size == 64 << 20 && g.logical_sector >= 512);
    assert_eq!(kind_of(disks.open(&dev.0, Access::Exclusive)), Kind::Busy);
    let op = |i: u64| Op::Write {
        offset: i * 8192,
        bufs: vec![Arc::new(vec![i as u8; 4096])],
    };
    assert!(disk
        .batch((0..100).map(op).collect())
        .iter()
        .all(|(_, r)| r.is_ok()));
    disk.flush().unwrap();
    let mut b = vec![0; 8192];
    disk.read(77 * 8192, &mut b).unwrap();
    assert!(b[..4096].iter().all(|x| *x == 77) && b[4096..].iter().all(|x| *x == 0));
    assert_eq!(kind_of(disk.read(100, &mut b)), Kind::Invalid);
    if g.can_discard {
        disk.discard(77 * 8192, 4096).unwrap();
        disk.read(77 * 8192, &mut b).unwrap();
        assert!(b.iter().all(|x| *x == 0));
    }
    let seen = crate::inuse::check(&dev.0).unwrap();
    assert!(seen.busy && seen.is_active() && seen.signature.is_none());
    let behind = crate::inuse::check(&image.0).unwrap();
    assert!(behind.is_active() && !behind.holders.is_empty());
    drop(disk);
    assert!(!crate::inuse::check(&dev.0).unwrap().is_active());
}
