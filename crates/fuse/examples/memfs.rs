//! A file system in memory, to try and to measure the transport by itself.
//!
//! `memfs serve DIR [threads=N] [writeback=0|1] [noopen] [nocache] [transport=uring]` serves until
//! unmounted;
//! `memfs bench DIR [threads]` measures some operations in a directory, on whatever it lies.

#[path = "../tests/common/memfs/mod.rs"]
#[allow(dead_code)]
mod memfs;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", dir, ref options @ ..] => serve(Path::new(dir), options),
        ["bench", dir] => bench(Path::new(dir), 1),
        ["bench", dir, n] => bench(Path::new(dir), n.parse().expect("number of threads")),
        _ => eprintln!("usage: memfs serve DIR [options] | memfs bench DIR [threads]"),
    }
}

fn serve(dir: &Path, options: &[&str]) {
    let mut config = fuse::Config::default();
    let mut fs = memfs::MemFs::new();
    for o in options {
        match o.split_once('=').unwrap_or((o, "")) {
            ("threads", n) => config.threads = n.parse().expect("threads=N"),
            ("writeback", n) => config.writeback_cache = n == "1",
            ("transport", "uring") => {
                config.transport = fuse::Transport::Uring;
                fuse::enable_uring().expect("io_uring");
            }
            ("max_write", n) => config.max_write = n.parse().expect("max_write=N"),
            ("noopen", _) => {
                config.zero_message_open = true;
                fs.no_open = true;
            }
            ("noflush", _) => fs.open_flags |= fuse::abi::fopen::NOFLUSH,
            ("nocache", _) => fs.ttl = std::time::Duration::ZERO,
            _ => panic!("option {o}"),
        }
    }
    let (fd, mount) = fuse::mount(dir, &fuse::MountOptions::new("memory")).expect("mount");
    let session = fuse::Session::new(Arc::new(fs), fd, config);
    session.tell_carried(|how| println!("{how}"));
    println!("{} ends with {:?}", mount.path().display(), session.run());
}

/// Runs `f(thread, i)` `n` times in each of the threads; prints the rate.
fn timed(what: &str, threads: usize, n: usize, bytes: usize, f: impl Fn(usize, usize) + Sync) {
    let start = Instant::now();
    std::thread::scope(|s| {
        for t in 0..threads {
            let f = &f;
            s.spawn(move || (0..n).for_each(|i| f(t, i)));
        }
    });
    let secs = start.elapsed().as_secs_f64();
    let rate = (n * threads) as f64 / secs;
    let micros = 1e6 / rate;
    if bytes > 0 {
        let mb = rate * bytes as f64 / 1e6;
        println!("{what:<28}{rate:>12.0}/s {micros:>9.2} us {mb:>9.0} MB/s");
    } else {
        println!("{what:<28}{rate:>12.0}/s {micros:>9.2} us");
    }
}

fn bench(base: &Path, threads: usize) {
    let root = base.join("bench");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir(&root).expect("bench directory");
    let dirs: Vec<PathBuf> = (0..threads).map(|t| root.join(format!("t{t}"))).collect();
    dirs.iter().for_each(|d| fs::create_dir(d).unwrap());
    let name = |t: usize, i: usize| dirs[t].join(format!("f{i}"));
    let n = 10_000;
    timed("create+close", threads, n, 0, |t, i| {
        drop(File::create(name(t, i)).unwrap())
    });
    timed("stat, cached", threads, n, 0, |t, i| {
        assert!(fs::metadata(name(t, i)).is_ok())
    });
    timed("open+close", threads, n, 0, |t, i| {
        drop(File::open(name(t, i)).unwrap())
    });
    timed("stat missing", threads, n, 0, |t, i| {
        assert!(fs::metadata(dirs[t].join(format!("none{i}"))).is_err())
    });
    timed("rename", threads, n, 0, |t, i| {
        fs::rename(name(t, i), dirs[t].join(format!("g{i}"))).unwrap()
    });
    timed("readdir+stat of all", threads, 1, 0, |t, _| {
        for e in fs::read_dir(&dirs[t]).unwrap() {
            e.unwrap().metadata().unwrap();
        }
    });
    timed("unlink", threads, n, 0, |t, i| {
        fs::remove_file(dirs[t].join(format!("g{i}"))).unwrap()
    });
    timed("create+write 4k+close", threads, n, 4096, |t, i| {
        fs::write(name(t, i), [1; 4096]).unwrap()
    });
    timed("unlink", threads, n, 0, |t, i| {
        fs::remove_file(name(t, i)).unwrap()
    });
    let big: Vec<PathBuf> = dirs.iter().map(|d| d.join("big")).collect();
    let open = |t: usize, flags| {
        let mut o = File::options();
        o.read(true).write(true).create(true).truncate(false);
        o.custom_flags(flags).open(&big[t]).unwrap()
    };
    let files: Vec<File> = (0..threads).map(|t| open(t, 0)).collect();
    let mega = vec![7u8; 1 << 20];
    for again in ["write 1 MiB, new file", "write 1 MiB, again"] {
        timed(again, threads, 256, 1 << 20, |t, i| {
            files[t].write_all_at(&mega, (i as u64) << 20).unwrap();
            if i == 255 {
                files[t].sync_all().unwrap();
            }
        });
    }
    for f in &files {
        rustix::fs::fadvise(f, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    timed("read 1 MiB, cold", threads, 256, 1 << 20, |t, i| {
        files[t]
            .read_exact_at(&mut vec![0; 1 << 20], (i as u64) << 20)
            .unwrap()
    });
    timed("read 1 MiB, page cache", threads, 256, 1 << 20, |t, i| {
        files[t]
            .read_exact_at(&mut vec![0; 1 << 20], (i as u64) << 20)
            .unwrap()
    });
    let place = |i: usize| ((i * 7919) % 65536) as u64 * 4096;
    let page = [3u8; 4096];
    timed("write 4k random, +fsync", threads, 20_000, 4096, |t, i| {
        files[t].write_all_at(&page, place(i)).unwrap();
        if i == 19_999 {
            files[t].sync_all().unwrap();
        }
    });
    let direct: Vec<File> = (0..threads).map(|t| open(t, libc::O_DIRECT)).collect();
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    timed("read 4k random, direct", threads, 20_000, 4096, |t, i| {
        direct[t]
            .read_exact_at(&mut Page([0; 4096]).0, place(i))
            .unwrap()
    });
    timed("write 4k random, direct", threads, 20_000, 4096, |t, i| {
        direct[t]
            .write_all_at(&Page([1; 4096]).0, place(i))
            .unwrap()
    });
    timed("fsync of nothing", threads, 20_000, 0, |t, _| {
        files[t].sync_all().unwrap()
    });
    drop((files, direct));
    let _ = fs::remove_dir_all(&root);
}
