//! Files without a name that programs keep open. The limit of znodes is one for the process, so this test
//! has a process of its own.

mod common;

use common::{can_mount, Mounted};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const FILES: usize = 600;
const LIMIT: usize = 32;
/// The node table has 16 shards that keep four znodes each whatever the limit, and requests under way hold
/// a few more.
const MOST: usize = 16 * 4 + 16;

#[test]
fn an_open_file_without_a_name_keeps_no_znode_beyond_the_limit_of_all() {
    if !can_mount() {
        return;
    }
    vfs::set_limit(LIMIT);
    let m = Mounted::new("nameless");
    let zfs = || m.zfs.upgrade().unwrap();
    let mut files = Vec::new();
    for n in 0..FILES {
        let path = m.path(&format!("f{n}"));
        fs::write(&path, format!("content {n}")).unwrap();
        files.push(File::open(&path).unwrap());
        fs::remove_file(path).unwrap();
    }
    assert_eq!(zfs().unlinked_count().unwrap(), FILES as u64);
    let kept = zfs().in_use().len();
    assert!(kept <= MOST, "{kept} znodes for {FILES} files");
    // They are loaded again when they are used, and go again.
    for (n, f) in files.iter().enumerate() {
        let want = format!("content {n}");
        let mut got = vec![0; want.len()];
        f.read_exact_at(&mut got, 0).unwrap();
        assert_eq!(got, want.as_bytes());
        assert_eq!(f.metadata().unwrap().len(), want.len() as u64);
    }
    let kept = zfs().in_use().len();
    assert!(kept <= MOST, "{kept} znodes for {FILES} files");
    drop(files);
    // The kernel tells of closed files when it likes.
    let begin = Instant::now();
    while zfs().unlinked_count().unwrap() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "they stay");
        std::thread::sleep(Duration::from_millis(20));
    }
}
