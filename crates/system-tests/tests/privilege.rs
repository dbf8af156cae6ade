//! What users and foreign images may not make root's daemon do.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use system_tests::Rig;

const NOBODY: u32 = 65534;

/// A running rig with a pool `tank` mounted below its folder, on a file system `tank/u` that belongs
/// to an ordinary user.
fn rig_of_a_user(name: &str) -> Option<Rig> {
    let mut rig = Rig::as_root(name)?;
    rig.start();
    let image = rig.image("disk", 96 << 20);
    let home = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", home.to_str().unwrap(), "tank", &image]);
    rig.zfs(&["create", "tank/u"]);
    chown(home.join("u"), Some(NOBODY), Some(NOBODY)).unwrap();
    Some(rig)
}

fn as_nobody(rig: &Rig, script: &str) {
    rig.try_run_as(Some(NOBODY), "sh", &["-ec", script]).ok();
}

#[test]
fn a_link_a_user_put_in_place_of_a_mount_point_is_not_followed() {
    let Some(rig) = rig_of_a_user("planted") else {
        return;
    };
    let victim = rig.path().join("victim");
    fs::create_dir(&victim).unwrap();
    let user = rig.mnt().join("tank/u");
    let (u, v) = (user.to_str().unwrap(), victim.to_str().unwrap());
    rig.zfs(&["create", "tank/u/child"]);
    rig.zfs(&["unmount", "tank/u/child"]);
    as_nobody(&rig, &format!("rmdir {u}/child; ln -s {v} {u}/child"));
    let said = rig.try_run("zfs", &["mount", "tank/u/child"]).fails(1);
    let want = format!("the symbolic link '{u}/child' is not followed: it belongs to user 65534");
    assert!(said.contains(&want), "{said}");
    // The same one level up, where the child's directory would be made.
    as_nobody(&rig, &format!("rm {u}/child; ln -s {v} {u}/d"));
    let place = format!("mountpoint={u}/d/child");
    rig.zfs(&["set", &place, "tank/u/child"]);
    let said = rig.try_run("zfs", &["mount", "tank/u/child"]).fails(1);
    assert!(said.contains("is not followed"), "{said}");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    assert!(!rig.mounts().iter().any(|m| m.contains("victim")));
    // A link of root's is followed, but not one that a user may have put where it is.
    as_nobody(&rig, &format!("rm {u}/d"));
    symlink(&victim, user.join("d")).unwrap();
    let said = rig.try_run("zfs", &["mount", "tank/u/child"]).fails(1);
    assert!(said.contains("is not followed"), "{said}");
    let own = rig.path().join("own");
    symlink(&victim, &own).unwrap();
    let place = format!("mountpoint={}/child", own.display());
    rig.zfs(&["set", &place, "tank/u/child"]);
    rig.try_run("zfs", &["mount", "tank/u/child"]);
    assert!(victim.join("child/.zfs").exists());
}

#[test]
fn unmounting_follows_no_link_and_finds_what_was_moved() {
    let Some(rig) = rig_of_a_user("moved") else {
        return;
    };
    let user = rig.mnt().join("tank/u");
    let u = user.to_str().unwrap();
    as_nobody(&rig, &format!("mkdir {u}/d"));
    rig.zfs(&["create", "-o", &format!("mountpoint={u}/d/a"), "tank/a"]);
    // Another file system stands where the user's link leads.
    let other = rig.path().join("other");
    fs::create_dir(&other).unwrap();
    let place = format!("mountpoint={}/a", other.display());
    rig.zfs(&["create", "-o", &place, "tank/b"]);
    let o = other.to_str().unwrap();
    as_nobody(&rig, &format!("mv {u}/d {u}/e; ln -s {o} {u}/d"));
    rig.zfs(&["unmount", "tank/a"]);
    assert_eq!(rig.get("mounted", "tank/a"), "no");
    assert_eq!(rig.get("mounted", "tank/b"), "yes");
    assert!(!user.join("e/a/.zfs").exists());
    assert!(other.join("a/.zfs").exists());
}

#[test]
fn an_imported_image_stays_below_its_alternate_root() {
    let Some(mut rig) = Rig::as_root("altroot") else {
        return;
    };
    rig.start();
    let image = rig.image("disk", 96 << 20);
    let victim = rig.path().join("victim");
    let root = rig.mnt();
    let (v, r) = (victim.to_str().unwrap(), root.to_str().unwrap());
    fs::create_dir(&victim).unwrap();
    rig.zpool(&["create", "-m", "/a", "-R", r, "tank", &image]);
    // Links that root made in the image: absolute, and with more ".." than there are directories.
    symlink(&victim, root.join("a/abs")).unwrap();
    let up = format!("{}{v}", "../".repeat(20));
    symlink(up, root.join("a/rel")).unwrap();
    rig.zfs(&["create", "-o", "canmount=noauto", "tank/x"]);
    rig.zfs(&["create", "-o", "canmount=noauto", "tank/y"]);
    rig.zfs(&["set", "mountpoint=/a/abs/x", "tank/x"]);
    rig.zfs(&["set", "mountpoint=/a/rel/y", "tank/y"]);
    rig.zpool(&["export", "tank"]);
    let disks = rig.disks();
    rig.zpool(&["import", "-d", disks.to_str().unwrap(), "-R", r, "tank"]);
    for name in ["tank/x", "tank/y"] {
        rig.zfs(&["mount", name]);
    }
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    let below = root.join(Path::new(v).strip_prefix("/").unwrap());
    assert!(below.join("x/.zfs").exists() && below.join("y/.zfs").exists());
    let said = rig.try_run("zfs", &["set", "mountpoint=/../b", "tank/x"]);
    let said = said.fails(1);
    assert!(said.contains("must not contain '..'"), "{said}");
    rig.zpool(&["export", "tank"]);
    assert!(rig.mounts().is_empty());
}
