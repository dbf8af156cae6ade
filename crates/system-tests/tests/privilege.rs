//! What users and foreign images may not make root's daemon do.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::time::Duration;
use system_tests::{until, Rig};

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
    rig.zfs(&["set", "-u", &place, "tank/u/child"]);
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
    rig.zfs(&["set", "-u", &place, "tank/u/child"]);
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

#[test]
fn a_pool_another_host_uses_is_refused_also_by_force_until_that_host_is_gone() {
    let (Some(mut a), Some(mut b)) = (Rig::new("mmp-a"), Rig::new("mmp-b")) else {
        return;
    };
    for (rig, id) in [(&mut a, "a1"), (&mut b, "b2")] {
        rig.variable("ZFS_FUSE_HOSTID", id);
        rig.daemon_options(&[
            "--multihost-interval=100",
            // However slow this machine is, no pool is suspended.
            "--multihost-fail-intervals=0",
            "--multihost-import-intervals=10",
        ]);
        rig.start();
    }
    let image = a.image("disk", 96 << 20);
    a.zpool(&["create", "-m", "none", "-o", "multihost=on", "tank", &image]);
    let disks = a.disks();
    let disks = disks.to_str().unwrap();
    for how in ["-N", "-f"] {
        let said = b.try_run("zpool", &["import", "-d", disks, how, "tank"]);
        let said = said.fails(1);
        assert!(
            said.contains("cannot import 'tank': pool is imported on ")
                && said.contains(
                    "(hostid: 0xa1)\nExport the pool on the other system, then run 'zpool import'."
                ),
            "{said}"
        );
    }
    // What another process of this machine has in use is not listed.
    let list = b.zpool(&["import", "-d", disks]);
    assert!(!list.contains("tank"), "{list}");
    // It can be used all the time, and is not taken away.
    a.zfs(&["create", "tank/x"]);
    a.kill();
    b.zpool(&["import", "-d", disks, "-f", "tank"]);
    assert_eq!(b.get("type", "tank/x"), "filesystem");
    let on = b.zpool(&["get", "-H", "-o", "value", "multihost", "tank"]);
    assert_eq!(on.trim(), "on");
    b.zpool(&["export", "tank"]);
    a.zdb_check("tank");
}

#[test]
fn an_image_is_not_used_by_its_path_and_through_a_loop_device() {
    let (Some(mut a), Some(mut b)) = (Rig::as_root("loop-a"), Rig::as_root("loop-b")) else {
        return;
    };
    let image = a.image("disk", 96 << 20);
    a.start();
    b.start();
    a.zpool(&["create", "-m", "none", "tank", &image]);
    let Some(device) = a.loop_on(&image) else {
        return;
    };
    let said = b.try_run("zpool", &["import", "-f", "-d", &device, "tank"]);
    let said = said.fails(1);
    let want = format!("{device}: its file '{image}' is in use by another pool, device or program");
    assert!(said.contains(&want), "{said}");
    for rig in [&a, &b] {
        let said = rig.try_run("zpool", &["create", "-f", "-m", "none", "other", &device]);
        said.fails(1);
    }
    a.zpool(&["export", "tank"]);
    b.zpool(&["import", "-d", &device, "tank"]);
    let said = a.try_run("zpool", &["import", "-f", "-d", &image, "tank"]);
    let said = said.fails(1);
    assert!(said.contains("in use by another program"), "{said}");
    b.zpool(&["export", "tank"]);
    a.zpool(&["import", "-d", &image, "tank"]);
    a.zpool(&["export", "tank"]);
}

#[test]
fn what_a_terminal_would_act_on_is_printed_harmless() {
    let Some(mut rig) = Rig::new("terminal") else {
        return;
    };
    rig.start();
    let said = rig
        .try_run("zpool", &["import", "\x1b]0;title\x07"])
        .fails(1);
    assert!(said.contains("'\\033]0;title\\007'"), "{said}");
    assert!(!said.contains('\x1b'), "{said:?}");
}

/// Processor time of a process in clock ticks.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Threads of a process that serve commands.
fn serving(pid: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |t: fs::DirEntry| fs::read_to_string(t.path().join("comm")).unwrap_or_default();
    tasks
        .flatten()
        .filter(|t| fs::metadata(t.path()).is_ok())
        .map(name)
        .filter(|n| n.trim() == "control")
        .count()
}

#[test]
fn a_key_that_takes_an_hour_holds_up_nobody_and_ends_with_its_command() {
    let Some(mut rig) = Rig::new("slow-key") else {
        return;
    };
    rig.start();
    let image = rig.image("disk", 96 << 20);
    rig.zpool(&["create", "-m", "none", "tank", &image]);
    let word = rig.path().join("word");
    fs::write(&word, "correct horse\n").unwrap();
    let place = format!("keylocation=file://{}", word.display());
    let key = |iterations: &str| {
        let iterations = format!("pbkdf2iters={iterations}");
        [
            "-o",
            "encryption=on",
            "-o",
            "keyformat=passphrase",
            "-o",
            &iterations,
            "-o",
            &place,
        ]
        .map(String::from)
        .to_vec()
    };
    let create = |name: &str, iterations: &str| {
        let mut args = vec!["create".to_string()];
        args.extend(key(iterations));
        args.push(name.into());
        args
    };
    rig.try_run("zfs", &create("tank/quick", "100000")).ok();
    // Keys are not written to swap.
    assert!(rig.memory("VmLck") > 0);
    let (pid, before) = (rig.pid(), ticks(rig.pid()));
    let mut slow = rig
        .command("zfs", &create("tank/slow", "4294967295"))
        .spawn()
        .unwrap();
    until("the key is being made", || ticks(pid) > before + 30);
    assert!(slow.try_wait().unwrap().is_none());
    // Also what needs the pool for itself.
    let patience = Duration::from_secs(60);
    rig.soon(patience, "zfs", &["create", "tank/other"]).ok();
    rig.soon(patience, "zpool", &["export", "tank"]).ok();
    slow.kill().unwrap();
    slow.wait().unwrap();
    until("nobody makes the key any more", || serving(pid) == 0);
    let disks = rig.disks();
    rig.zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    let list = rig.zfs(&["list", "-H", "-o", "name"]);
    assert!(
        list.contains("tank/other") && !list.contains("tank/slow"),
        "{list}"
    );
}
