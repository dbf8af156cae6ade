//! Snapshots below `.zfs`, beside the head that is written.

mod common;

use common::{can_mount, Mounted};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};

fn refused<T>(r: io::Result<T>) {
    let e = r.err().and_then(|e| e.raw_os_error());
    assert_eq!(e, Some(Errno::ROFS.raw_os_error()));
}

#[test]
fn a_snapshot_is_read_only_while_its_head_is_written() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("snaps");
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), "then").unwrap();
    m.snapshot("s");
    let head = OpenOptions::new().write(true).open(m.path("d/f")).unwrap();
    head.write_at(b"now!", 0).unwrap();
    let snap = m.path(".zfs/snapshot/s");
    let f = snap.join("d/f");
    assert_eq!(fs::read_to_string(&f).unwrap(), "then");
    refused(OpenOptions::new().write(true).open(&f));
    refused(OpenOptions::new().append(true).open(&f));
    refused(fs::set_permissions(&f, fs::Permissions::from_mode(0o600)));
    refused(fs::remove_file(&f));
    refused(fs::create_dir(snap.join("new")));
    refused(fs::write(snap.join("d/new"), "x"));
    // Nor is the file system in it, whoever asks.
    let zfs = common::open(&m.pool, "tank@s");
    assert!(zfs.is_read_only());
    zfs.set_props(|p| p.readonly = false);
    let root = zfs.root().unwrap();
    let e = zfs.unlink(&root, b"d", &zpl::Cred::root()).unwrap_err();
    assert_eq!(e.kind, base::Kind::ReadOnly);
    head.sync_all().unwrap();
    assert_eq!(fs::read_to_string(m.path("d/f")).unwrap(), "now!");
    assert_eq!(fs::read_to_string(&f).unwrap(), "then");
}
