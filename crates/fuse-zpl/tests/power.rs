//! A file system that was mounted with power loses it, in all mounts.

mod common;

use common::{can_mount, Mounted};
use rustix::fs::{makedev, mknodat, FileType, Mode, CWD};
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

fn bits(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn set_id_bits_and_device_numbers_are_kept_from_the_kernel() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("power");
    m.served.grant(true, true);
    for name in ["kept", "written", "cut", "copied", "grown"] {
        fs::write(m.path(name), "a program").unwrap();
        fs::set_permissions(m.path(name), Permissions::from_mode(0o6755)).unwrap();
    }
    let (dir, node) = (m.path("dir"), m.path("node"));
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o2755)).unwrap();
    let device = makedev(1, 3);
    mknodat(
        CWD,
        &node,
        FileType::CharacterDevice,
        Mode::from(0o666),
        device,
    )
    .unwrap();
    m.snapshot("s");
    let then = m.path(".zfs/snapshot/s/kept");
    assert_eq!((bits(&m.path("kept")), bits(&then)), (0o6755, 0o6755));
    let number = |at: &Path| fs::symlink_metadata(at).unwrap().rdev();
    assert_eq!(number(&node), device);

    m.served.withhold(true, true);
    assert_eq!(bits(&m.path("kept")), 0o755);
    assert_eq!(bits(&dir), 0o2755);
    // The kernel keeps the number of a node that it knows: it was one that had power.
    assert_eq!(number(&m.path(".zfs/snapshot/s/node")), 0);
    let later = m.path("later");
    mknodat(
        CWD,
        &later,
        FileType::CharacterDevice,
        Mode::from(0o666),
        device,
    )
    .unwrap();
    assert_eq!(number(&later), 0);
    // What was not looked at before, too.
    let again = m.path(".zfs/snapshot/s/written");
    assert_eq!(bits(&again), 0o755);
    fs::write(m.path("new"), "").unwrap();
    fs::set_permissions(m.path("new"), Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(bits(&m.path("new")), 0o755);
    // Who changes a program does not make it one with power for later.
    let open = |name: &str| OpenOptions::new().write(true).open(m.path(name)).unwrap();
    let mut written = open("written");
    written.write_all(b"other").unwrap();
    written.sync_all().unwrap();
    open("cut").set_len(1).unwrap();
    fs::copy(m.path("kept"), m.path("copied")).unwrap();
    rustix::fs::fallocate(open("grown"), rustix::fs::FallocateFlags::empty(), 0, 100).unwrap();

    m.served.withhold(false, false);
    for name in ["written", "cut", "copied", "grown"] {
        assert_eq!(bits(&m.path(name)), 0o755, "{name}");
    }
    assert_eq!(bits(&m.path("kept")), 0o6755);
    assert_eq!(bits(&m.path("new")), 0o4755);
}

#[test]
fn what_was_mounted_without_power_is_shown_as_it_is() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("powerless");
    m.served.withhold(true, true);
    fs::write(m.path("f"), "a program").unwrap();
    fs::set_permissions(m.path("f"), Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(bits(&m.path("f")), 0o4755);
}
