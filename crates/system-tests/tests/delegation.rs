//! What ordinary users may do through root's daemon once it was delegated to them.

use std::os::unix::fs::{chown, MetadataExt};
use std::path::Path;
use system_tests::{users_can_mount, Rig};

const NOBODY: u32 = 65534;
/// A user whose groups are 777 and 778.
const MEMBER: &str = "54321";

/// A pool with the file system `tank/u`, whose files belong to an ordinary user.
fn tank(name: &str) -> Option<Rig> {
    let mut rig = Rig::as_root(name)?;
    rig.start();
    let image = rig.image("disk", 128 << 20);
    let home = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", home.to_str().unwrap(), "tank", &image]);
    rig.zfs(&["create", "tank/u"]);
    chown(home.join("u"), Some(NOBODY), Some(NOBODY)).unwrap();
    Some(rig)
}

/// `zfs`, as the ordinary user.
fn nobody(rig: &Rig, args: &[&str]) -> String {
    rig.try_run_as(Some(NOBODY), "zfs", args).ok()
}

/// The same, which must not be permitted.
fn denied(rig: &Rig, args: &[&str]) {
    let said = rig.try_run_as(Some(NOBODY), "zfs", args).fails(1);
    assert!(said.contains("permission denied"), "{args:?}: {said}");
}

fn exists(rig: &Rig, name: &str) -> bool {
    rig.try_run("zfs", &["list", "-t", "all", name])
        .status
        .success()
}

/// Options of the mount of a dataset, as the kernel has them.
fn mount_options(name: &str) -> String {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|l| l.contains(&format!(" {name} ")));
    let line = line.unwrap_or_else(|| panic!("{name} is not mounted: {table}"));
    line.split(' ').nth(5).unwrap().to_string()
}

#[test]
fn a_user_does_what_was_delegated_and_nothing_else() {
    let Some(rig) = tank("delegated") else { return };
    let u = rig.mnt().join("tank/u");
    rig.zfs(&["snapshot", "tank/u@old"]);
    for args in [
        &["create", "tank/u/a"][..],
        &["snapshot", "tank/u@x"],
        &["destroy", "tank/u@old"],
        &["rollback", "tank/u@old"],
        &["clone", "tank/u@old", "tank/u/c"],
        &["rename", "tank/u", "tank/v"],
        &["rename", "tank/u@old", "@new"],
        &["bookmark", "tank/u@old", "tank/u#m"],
        &["hold", "keep", "tank/u@old"],
        &["set", "compression=lz4", "tank/u"],
        &["set", "com.example:x=y", "tank/u"],
        &["inherit", "compression", "tank/u"],
        &["set", "userquota@0=1G", "tank/u"],
        &["unmount", "tank/u"],
        &["mount", "-o", "remount,ro", "tank/u"],
        &["allow", "everyone", "mount", "tank/u"],
        &["unallow", "everyone", "tank/u"],
        &["userspace", "tank/u"],
    ] {
        denied(&rig, args);
    }
    // The commands for keys exit with a code of their own.
    let unload = rig.try_run_as(Some(NOBODY), "zfs", &["unload-key", "tank/u"]);
    let said = unload.fails(255);
    assert!(said.contains("permission denied"), "{said}");
    // Local permissions do not reach below, nor to snapshots.
    rig.zfs(&[
        "allow",
        "-l",
        "-u",
        "65534",
        "snapshot,destroy,mount",
        "tank/u",
    ]);
    nobody(&rig, &["snapshot", "tank/u@mine"]);
    denied(&rig, &["destroy", "tank/u@mine"]);
    denied(&rig, &["create", "tank/u/a"]);
    rig.zfs(&["allow", "-d", "-u", "65534", "destroy,mount", "tank/u"]);
    nobody(&rig, &["destroy", "tank/u@mine"]);
    // What a creator makes belongs to the creator, is mounted without danger, and is the creator's.
    rig.zfs(&[
        "allow",
        "-u",
        "65534",
        "create,clone,rename,promote,hold,release",
        "tank/u",
    ]);
    rig.zfs(&["allow", "-s", "@props", "compression,userprop", "tank"]);
    rig.zfs(&["allow", "-c", "rollback,@props", "tank"]);
    denied(&rig, &["create", "-o", "atime=off", "tank/u/a"]);
    nobody(&rig, &["create", "-o", "compression=gzip", "tank/u/a"]);
    let options = mount_options("tank/u/a");
    assert!(
        options.contains("nosuid") && options.contains("nodev"),
        "{options}"
    );
    let meta = std::fs::metadata(u.join("a")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY));
    let file = u.join("a/f");
    let script = format!("echo one >{0}", file.display());
    rig.try_run_as(Some(NOBODY), "sh", &["-c", &script]).ok();
    nobody(&rig, &["set", "com.example:x=y", "tank/u/a"]);
    denied(&rig, &["set", "com.example:x=y", "tank/u"]);
    let shown = rig.zfs(&["allow", "tank/u/a"]);
    let local = "Local permissions:\n\tuser nobody @props,rollback\n";
    assert!(shown.contains(local), "{shown}");
    rig.zfs(&["allow", "-u", "65534", "snapshot", "tank/u"]);
    nobody(
        &rig,
        &["snapshot", "-r", "-o", "com.example:x=z", "tank/u/a@s"],
    );
    std::fs::write(&file, "two").unwrap();
    nobody(&rig, &["rollback", "tank/u/a@s"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
    nobody(&rig, &["clone", "tank/u/a@s", "tank/u/c"]);
    nobody(&rig, &["promote", "tank/u/c"]);
    nobody(&rig, &["rename", "tank/u/c@s", "@t"]);
    nobody(&rig, &["hold", "keep", "tank/u/c@t"]);
    denied(&rig, &["rename", "tank/u/c", "tank/c"]);
    nobody(&rig, &["rename", "tank/u/c", "tank/u/d"]);
    assert!(u.join("d/f").exists());
    nobody(&rig, &["release", "keep", "tank/u/d@t"]);
    nobody(&rig, &["destroy", "-R", "tank/u/d"]);
    assert!(!exists(&rig, "tank/u/d") && !exists(&rig, "tank/u/a"));
    // Nothing counts while the pool says so; then all is as it was, also after an import.
    nobody(&rig, &["create", "tank/u/e"]);
    rig.zpool(&["set", "delegation=off", "tank"]);
    denied(&rig, &["destroy", "tank/u/e"]);
    rig.zpool(&["set", "delegation=on", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    let disks = rig.disks();
    rig.zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    nobody(&rig, &["destroy", "tank/u/e"]);
    // What is taken back no longer counts.
    rig.zfs(&["unallow", "-r", "-u", "65534", "tank/u"]);
    denied(&rig, &["snapshot", "tank/u@x"]);
    rig.zfs(&["unallow", "-c", "tank"]);
    rig.zfs(&["unallow", "-s", "@props", "tank"]);
    assert_eq!(rig.zfs(&["allow", "tank/u"]), "");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn groups_count_and_nobody_gives_more_than_he_has() {
    let Some(rig) = tank("deleg-groups") else {
        return;
    };
    let member = |args: &[&str]| {
        let mut all = vec![
            "--reuid", MEMBER, "--regid", "777", "--groups", "778", "zfs",
        ];
        all.extend(args);
        rig.try_run("setpriv", &all)
    };
    rig.zfs(&["allow", "-g", "778", "snapshot", "tank/u"]);
    member(&["snapshot", "tank/u@a"]).ok();
    rig.zfs(&["unallow", "-g", "778", "tank/u"]);
    assert!(member(&["snapshot", "tank/u@b"])
        .fails(1)
        .contains("permission denied"));
    rig.zfs(&["allow", "-g", "777", "snapshot,allow", "tank/u"]);
    // He gives what he has, but neither what he lacks, nor sets, nor the permission to give.
    member(&["allow", "everyone", "snapshot", "tank/u"]).ok();
    nobody(&rig, &["snapshot", "tank/u@c"]);
    for (to, what) in [
        ("everyone", "mount"),
        ("everyone", "allow"),
        ("everyone", "@x"),
    ] {
        let said = member(&["allow", to, what, "tank/u"]).fails(1);
        assert!(said.contains("permission denied"), "{what}: {said}");
    }
    let said = member(&["unallow", "everyone", "tank/u"]).fails(1);
    assert!(said.contains("permission denied"), "{said}");
    member(&["unallow", "-u", MEMBER, "tank/u"]).ok();
    // Words.
    for (args, want) in [
        (
            &["allow", "everyone", "fly", "tank/u"][..],
            "invalid permission 'fly'",
        ),
        (
            &["allow", "-s", "@a/b", "mount", "tank/u"],
            "invalid permission set name '@a/b'",
        ),
        (
            &["allow", "everyone", "mount", "tank/nope"],
            "dataset does not exist",
        ),
    ] {
        let said = rig.try_run("zfs", args).fails(1);
        assert!(said.contains(want), "{said}");
    }
    let history = rig.zpool(&["history", "-i", "tank"]);
    assert!(
        history.contains("zfs allow -g 778 snapshot tank/u"),
        "{history}"
    );
    assert!(history.contains("permission update tank/u"), "{history}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_user_mounts_on_directories_of_his_own_only() {
    let Some(rig) = tank("deleg-mount") else {
        return;
    };
    rig.zfs(&["create", "-o", "canmount=noauto", "tank/m"]);
    rig.zfs(&["allow", "-u", "65534", "mount", "tank/m"]);
    let place = |name: &str, owner: u32| {
        let dir = rig.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        chown(&dir, Some(owner), Some(owner)).unwrap();
        dir.to_str().unwrap().to_string()
    };
    let (roots, his) = (place("roots", 0), place("his", NOBODY));
    let refused = |dir: &str, want: &str| {
        let args = ["mount", "tank/m", dir];
        let said = rig.try_run_as(Some(NOBODY), "zfs", &args).fails(1);
        assert!(said.contains(want), "{said}");
    };
    refused(&roots, "does not belong to user 65534");
    refused(&format!("{roots}/new"), "failed to create mountpoint");
    refused(&format!("{his}/a/b"), "failed to create mountpoint");
    assert!(!Path::new(&his).join("a").exists());
    let sleeper = [
        "setpriv",
        "--reuid",
        "65534",
        "--clear-groups",
        "sleep",
        "60",
    ];
    let mut process = rig.command(sleeper[0], &sleeper[1..]).spawn().unwrap();
    refused(&format!("/proc/{}/task", process.id()), "");
    process.kill().unwrap();
    process.wait().unwrap();
    for dir in [his.clone(), format!("{his}/new")] {
        nobody(&rig, &["mount", "tank/m", &dir]);
        let options = mount_options("tank/m");
        assert!(
            options.contains("nosuid") && options.contains("nodev"),
            "{options}"
        );
        // Nor does another mount of it bring them back.
        denied(&rig, &["mount", "-o", "remount,suid,dev", "tank/m"]);
        nobody(&rig, &["mount", "-o", "remount,noatime", "tank/m"]);
        let options = mount_options("tank/m");
        assert!(
            options.contains("nosuid") && options.contains("nodev"),
            "{options}"
        );
        nobody(&rig, &["unmount", "tank/m"]);
        assert_eq!(rig.get("mounted", "tank/m"), "no");
    }
    // What root has mounted elsewhere stays.
    rig.zfs(&["mount", "tank/m", &roots]);
    denied(&rig, &["unmount", "tank/m"]);
    denied(&rig, &["mount", "-o", "remount,ro", "tank/m"]);
    denied(&rig, &["unmount", "tank/u"]);
    nobody(&rig, &["unmount", "-a"]);
    assert_eq!(rig.get("mounted", "tank/m"), "yes");
    rig.zfs(&["unmount", "tank/m"]);
    // A mount point that a user may set is obeyed for him only where he may mount.
    rig.zfs(&["allow", "-u", "65534", "mountpoint,canmount", "tank/m"]);
    nobody(&rig, &["set", "canmount=on", "tank/m"]);
    nobody(&rig, &["set", &format!("mountpoint={his}"), "tank/m"]);
    assert_eq!(rig.get("mounted", "tank/m"), "yes");
    let args = ["set", &format!("mountpoint={roots}"), "tank/m"];
    let said = rig.try_run_as(Some(NOBODY), "zfs", &args).fails(1);
    assert!(said.contains("does not belong to user 65534"), "{said}");
    assert_eq!(rig.get("mountpoint", "tank/m"), his);
    assert_eq!(rig.get("mounted", "tank/m"), "yes");
}

#[test]
fn limits_bind_those_who_could_not_change_them() {
    let Some(rig) = tank("deleg-limits") else {
        return;
    };
    let may = "create,mount,snapshot,destroy,rename,clone";
    rig.zfs(&["allow", "-u", "65534", may, "tank/u"]);
    rig.zfs(&["create", "tank/u/a"]);
    rig.zfs(&["create", "tank/u/b"]);
    rig.zfs(&["set", "filesystem_limit=3", "snapshot_limit=3", "tank/u"]);
    assert_eq!(rig.get("filesystem_count", "tank/u"), "2");
    for dir in ["a", "b"] {
        chown(rig.mnt().join("tank/u").join(dir), Some(NOBODY), None).unwrap();
    }
    nobody(&rig, &["create", "tank/u/a/x"]);
    assert_eq!(rig.get("filesystem_count", "tank/u"), "3");
    let refused = |args: &[&str], want: &str| {
        let said = rig.try_run_as(Some(NOBODY), "zfs", args).fails(1);
        assert!(said.contains(want), "{said}");
    };
    refused(&["create", "tank/u/a/y"], "filesystem_limit of 3 reached");
    // The whole request counts, and nothing of it is done.
    refused(
        &["snapshot", "-r", "tank/u@s"],
        "snapshot_limit of 3 reached",
    );
    assert_eq!(rig.get("snapshot_count", "tank/u"), "0");
    nobody(&rig, &["snapshot", "-r", "tank/u/a@s"]);
    nobody(&rig, &["snapshot", "tank/u/b@s"]);
    assert_eq!(rig.get("snapshot_count", "tank/u/a"), "2");
    refused(&["snapshot", "tank/u/b@t"], "snapshot_limit of 3 reached");
    refused(
        &["clone", "tank/u/a@s", "tank/u/c"],
        "filesystem_limit of 3 reached",
    );
    // Moving inside the limit's own tree changes nothing there.
    nobody(&rig, &["rename", "tank/u/a/x", "tank/u/b/x"]);
    assert_eq!(rig.get("filesystem_count", "tank/u/b"), "1");
    assert_eq!(rig.get("snapshot_count", "tank/u/b"), "2");
    // Whoever may change the limit is not bound by it; nor is root.
    rig.zfs(&["allow", "-u", "65534", "snapshot_limit", "tank/u"]);
    nobody(&rig, &["snapshot", "tank/u/b@t"]);
    rig.zfs(&["snapshot", "-r", "tank/u@all"]);
    assert_eq!(rig.get("snapshot_count", "tank/u"), "8");
    nobody(&rig, &["destroy", "tank/u/b@t"]);
    assert_eq!(rig.get("snapshot_count", "tank/u"), "7");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_volume_that_reserves_its_size_needs_the_permission_to_reserve() {
    let Some(rig) = tank("delegated-volume") else {
        return;
    };
    rig.zfs(&["allow", "nobody", "create,mount", "tank/u"]);
    denied(&rig, &["create", "-V", "1M", "tank/u/v"]);
    assert!(!exists(&rig, "tank/u/v"));
    nobody(&rig, &["create", "-s", "-V", "1M", "tank/u/sparse"]);
    rig.zfs(&["allow", "nobody", "reservation", "tank/u"]);
    denied(&rig, &["create", "-V", "1M", "tank/u/v"]);
    rig.zfs(&["allow", "nobody", "refreservation", "tank/u"]);
    nobody(&rig, &["create", "-V", "1M", "tank/u/v"]);
    assert!(exists(&rig, "tank/u/v"));
}

/// An ordinary user who names no socket reaches the pools of root's daemon and those of the own one.
#[test]
fn an_ordinary_user_sees_the_pools_of_both_daemons() {
    if !users_can_mount("both") {
        return;
    }
    let Some(rig) = tank("both-system") else {
        return;
    };
    rig.zfs(&["snapshot", "tank/u@old"]);
    let Some(mut own) = Rig::as_user("both-own") else {
        return;
    };
    own.serve_at(&own.path().join("run/zfs-fuse/control.sock"));
    own.variable("ZFS_FUSE_SOCKET", "");
    let system = rig.socket().to_str().unwrap().to_string();
    own.variable("ZFS_FUSE_SYSTEM_SOCKET", &system);
    let names = |rig: &Rig, args: &[&str]| -> Vec<String> {
        let said = rig.try_run(args[0], &args[1..]).ok();
        said.lines().map(str::to_string).collect()
    };

    // No daemon of the user's own is started for what the system has.
    assert_eq!(names(&own, &["zpool", "list", "-Ho", "name"]), ["tank"]);
    assert_eq!(
        names(&own, &["zfs", "list", "-Ho", "name"]),
        ["tank", "tank/u"]
    );
    let refused = own.try_run("zfs", &["snapshot", "tank/u@new"]).fails(1);
    assert!(refused.contains("permission denied"), "{refused}");
    let refused = own.try_run("zpool", &["export", "tank"]).fails(1);
    assert!(refused.contains("permission denied"), "{refused}");
    rig.zfs(&["allow", "everyone", "snapshot,send,mount", "tank/u"]);
    own.zfs(&["snapshot", "tank/u@new"]);
    assert!(exists(&rig, "tank/u@new"));
    own.zfs(&["mount", "-a"]);
    own.zfs(&["version"]);
    assert!(!own.socket().exists(), "a daemon was started");

    // With a daemon of the user's own: the pools of both, each where it is.
    own.start();
    let image = own.image("disk", 128 << 20);
    own.zpool(&["create", "mine", &image]);
    assert_eq!(
        names(&own, &["zpool", "list", "-Ho", "name"]),
        ["mine", "tank"]
    );
    assert_eq!(
        names(&own, &["zfs", "list", "-Ho", "name", "tank/u", "mine"]),
        ["mine", "tank/u"]
    );
    let mounts = names(&own, &["zfs", "mount"]).join("\n");
    assert!(
        mounts.contains("mine ") && mounts.contains("tank/u "),
        "{mounts}"
    );
    own.zfs(&["snapshot", "tank/u@newer"]);
    own.zfs(&["snapshot", "mine@a"]);
    let stream = own.mnt().join("stream");
    let script = format!(
        "zfs send tank/u@old >{0} && zfs receive mine/u <{0}",
        stream.display()
    );
    own.try_run("sh", &["-c", &script]).ok();
    assert!(exists(&own, "mine/u@old"));
    // A change of both at once is not made by one of them.
    let refused = own.try_run("zfs", &["snapshot", "mine@b", "tank/u@b"]);
    let refused = refused.fails(1);
    assert!(refused.contains("system's daemon"), "{refused}");
    assert!(!exists(&own, "mine@b") && !exists(&rig, "tank/u@b"));
    // A path leads to the daemon that mounted it.
    let of_tank = rig.mnt().join("tank/u");
    let refused = own.try_run("zfs", &["unmount", of_tank.to_str().unwrap()]);
    let refused = refused.fails(1);
    assert!(refused.contains("is not yours"), "{refused}");

    // A pool of the user's own hides one of the system's; without it that one is seen again.
    own.zpool(&["export", "mine"]);
    own.zpool(&[
        "import",
        "-d",
        own.disks().to_str().unwrap(),
        "mine",
        "tank",
    ]);
    own.try_run("zfs", &["list", "tank/u@newer"]).fails(1);
    assert_eq!(names(&own, &["zpool", "list", "-Ho", "name"]), ["tank"]);
    own.zpool(&["export", "tank"]);
    own.zfs(&["list", "tank/u@newer"]);
    // An empty variable: the own daemon only.
    own.variable("ZFS_FUSE_SYSTEM_SOCKET", "");
    own.try_run("zfs", &["list", "tank/u@newer"]).fails(1);
}
