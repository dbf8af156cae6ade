//! Taking from the kernel what was written to open files.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{can_mount, TestMount};
use fuse::*;

const SIZE: usize = 2_000_000;

/// Stores through a shared mapping, says so, and keeps the mapping until the input ends.
fn store(file: &Path) {
    use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
    let f = File::options().read(true).write(true).open(file).unwrap();
    // SAFETY: a fresh shared mapping of part of the file, used within its bounds, unmapped once.
    unsafe {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let p = mmap(std::ptr::null_mut(), SIZE, both, MapFlags::SHARED, &f, 0).unwrap();
        drop(f);
        std::slice::from_raw_parts_mut(p as *mut u8, SIZE).fill(6);
        println!("stored");
        let mut line = String::new();
        let _ = std::io::stdin().read_line(&mut line);
        let _ = munmap(p, SIZE);
    }
}

/// Another process: unmapping writes pages out with the memory of the process locked, and the
/// threads that serve the mount may need that lock.
fn stored(file: &Path) -> (Child, Lines<BufReader<ChildStdout>>) {
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new(me)
        .args([
            "--exact",
            std::thread::current().name().unwrap(),
            "--nocapture",
        ])
        .env("FUSE_TEST_STORE", file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|l| l.unwrap().contains("stored")));
    // It goes on printing when it ends.
    (child, lines)
}

fn content(t: &TestMount, node: u64) -> Vec<u8> {
    let mut out = ReadBuf::new(4 << 20);
    let r =
        t.fs.read(&Request::default(), node, node, 0, 4 << 20, &mut out);
    r.unwrap();
    out.to_vec()
}

#[test]
fn what_was_stored_through_a_mapping_or_written_to_an_open_file_is_taken() {
    if let Some(file) = std::env::var_os("FUSE_TEST_STORE") {
        return store(Path::new(&file));
    }
    if !can_mount() {
        return;
    }
    for pages in [Pages::Keep, Pages::Drop] {
        let t = TestMount::new("writeout");
        fs::write(t.path("a"), vec![5u8; SIZE]).unwrap();
        let (mut child, lines) = stored(&t.path("a"));
        let mut f = File::create(t.path("b")).unwrap();
        f.write_all(&vec![7u8; SIZE]).unwrap();
        let node = |name: &str| fs::metadata(t.path(name)).unwrap().ino();
        let (a, b) = (node("a"), node("b"));
        if pages == Pages::Drop {
            // Out of reach by path.
            t.mount.unmount(Unmount::Lazy).unwrap();
        }
        let told = AtomicUsize::new(0);
        write_out(&t.mount, &t.notifier, &[(a, 1), (b, 1)], pages, &|r| {
            r.unwrap();
            told.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(told.into_inner(), 2);
        assert!(content(&t, a).iter().all(|&x| x == 6), "{pages:?}");
        assert_eq!(content(&t, b), vec![7u8; SIZE], "{pages:?}");
        drop(child.stdin.take());
        assert!(lines.last().is_some_and(|l| l.is_ok()));
        assert!(child.wait().unwrap().success());
        drop(f);
    }
}
