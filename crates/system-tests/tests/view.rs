//! All file systems of a pool in one mount, each at its place: root's by `zfs-fuse:view`, an ordinary user's without asking.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{symlink, DirEntryExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use system_tests::{until, users_can_mount, Rig};

/// A pool `tank` whose mount is a view.
fn view(name: &str) -> Option<(Rig, PathBuf)> {
    let mut rig = Rig::new(name)?;
    let disk = rig.image("d0", 512 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    let place = mnt.to_str().unwrap();
    rig.zpool(&[
        "create",
        "-O",
        "zfs-fuse:view=on",
        "-m",
        place,
        "tank",
        &disk,
    ]);
    Some((rig, mnt))
}

/// Lines in the table of mounts at or below a place.
fn lines(rig: &Rig, at: &Path) -> usize {
    let inside = |m: &&String| Path::new(m.as_str()).starts_with(at);
    rig.mounts().iter().filter(inside).count()
}

fn names(dir: &Path) -> Vec<String> {
    let list = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = list
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn errno(r: std::io::Result<()>) -> i32 {
    r.unwrap_err().raw_os_error().unwrap()
}

/// Every inode number below a place with the files that have it; what a listing says must be what stat says.
fn inodes(at: &Path, all: &mut HashMap<u64, Vec<PathBuf>>) {
    for entry in fs::read_dir(at).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        let stat = fs::symlink_metadata(&path).unwrap();
        assert_eq!(entry.ino(), stat.ino(), "{}", path.display());
        all.entry(stat.ino()).or_default().push(path.clone());
        if stat.is_dir() {
            inodes(&path, all);
        }
    }
}

const EXDEV: i32 = 18;
const EBUSY: i32 = 16;
const EROFS: i32 = 30;

#[test]
fn file_systems_are_where_they_belong_in_one_mount() {
    let Some((mut rig, mnt)) = view("view-places") else {
        return;
    };
    for fs in ["tank/a", "tank/b", "tank/a/sub"] {
        rig.zfs(&["create", fs]);
    }
    assert_eq!(names(&mnt), ["a", "b"]);
    assert_eq!(names(&mnt.join("a")), ["sub"]);
    assert_eq!(lines(&rig, &mnt), 1);
    for (n, dir) in ["", "a", "b", "a/sub"].iter().enumerate() {
        let dir = mnt.join(dir);
        fs::write(dir.join("f"), format!("in {n}")).unwrap();
        fs::create_dir(dir.join("d")).unwrap();
        symlink("f", dir.join("l")).unwrap();
        fs::write(dir.join("d/g"), "g").unwrap();
    }
    // Commands see them as they see any mount.
    let place = |fs: &str| mnt.join(fs).to_str().unwrap().to_string();
    assert_eq!(rig.get("mounted", "tank/a/sub"), "yes");
    assert_eq!(rig.get("mountpoint", "tank/a/sub"), place("a/sub"));
    let listed = rig.zfs(&["mount"]);
    assert!(listed.contains(&place("a/sub")), "{listed}");
    // Inode numbers: one for each file, also in snapshots, and the same after the daemon was started again.
    rig.zfs(&["set", "snapdir=visible", "tank/a"]);
    rig.zfs(&["snapshot", "-r", "tank@s"]);
    let mut before = HashMap::new();
    inodes(&mnt, &mut before);
    let root = fs::metadata(&mnt).unwrap().ino();
    assert!(!before.contains_key(&root));
    for (ino, files) in &before {
        assert_eq!(files.len(), 1, "{ino}: {files:?}");
    }
    assert!(before.len() > 20, "{before:?}");
    rig.stop();
    rig.start();
    let mut after = HashMap::new();
    inodes(&mnt, &mut after);
    assert_eq!(before, after);
    let read = |at: &str| fs::read_to_string(mnt.join(at)).unwrap();
    assert_eq!(read("a/sub/f"), "in 3");
    assert_eq!(read("a/sub/.zfs/snapshot/s/f"), "in 3");
    assert_eq!(read("b/.zfs/snapshot/s/f"), "in 2");
    assert_eq!(lines(&rig, &mnt), 1);
    // One by one they go and come.
    rig.zfs(&["unmount", "tank/a/sub"]);
    assert_eq!(rig.get("mounted", "tank/a/sub"), "no");
    assert_eq!(names(&mnt.join("a")), [".zfs", "d", "f", "l"]);
    assert!(!mnt.join("a/sub").exists());
    rig.zfs(&["mount", "tank/a/sub"]);
    assert_eq!(read("a/sub/f"), "in 3");
    rig.zfs(&["unmount", "tank"]);
    assert_eq!(rig.zfs(&["mount"]), "");
    rig.zfs(&["mount", "-a"]);
    assert_eq!(read("a/sub/f"), "in 3");
    rig.zpool(&["export", "tank"]);
    assert_eq!(lines(&rig, &mnt), 0);
    rig.stop();
    rig.zdb_check("tank");
}

#[test]
fn names_and_links_stay_within_a_file_system_and_bytes_cross() {
    let Some((mut rig, mnt)) = view("view-crossing") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "tank/b"]);
    let at = |p: &str| mnt.join(p);
    let data: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    fs::write(at("a/f"), &data).unwrap();
    for (from, to) in [("a/f", "b/f"), ("a/f", "f"), ("a/f", "b/x/../f")] {
        fs::create_dir_all(at("b/x")).unwrap();
        assert_eq!(errno(fs::rename(at(from), at(to))), EXDEV, "{from} {to}");
        assert_eq!(errno(fs::hard_link(at(from), at(to))), EXDEV);
    }
    fs::rename(at("a/f"), at("a/g")).unwrap();
    fs::hard_link(at("a/g"), at("a/f")).unwrap();
    // std::fs::copy uses copy_file_range.
    assert_eq!(fs::copy(at("a/f"), at("b/f")).unwrap(), data.len() as u64);
    assert_eq!(fs::read(at("b/f")).unwrap(), data);
    rig.sh("cd ../mnt/tank && mv b/f f && cp --reflink=auto f b/h && cmp f b/h && cmp f a/g && test ! -e b/f");
    // What hangs somewhere is as good as mounted there.
    assert_eq!(errno(fs::remove_dir(at("a"))), EBUSY);
    assert_eq!(errno(fs::rename(at("a"), at("c"))), EBUSY);
    fs::create_dir(at("c")).unwrap();
    assert_eq!(errno(fs::rename(at("c"), at("a"))), EBUSY);
    assert_eq!(errno(fs::create_dir(at("a"))), 17);
    // One inside a directory keeps that, which moves with it.
    let inner = format!("mountpoint={}", at("c/d/e").display());
    rig.zfs(&["create", "-o", &inner, "tank/inner"]);
    fs::write(at("c/d/e/f"), "inner").unwrap();
    assert_eq!(names(&at("c")), ["d"]);
    assert_eq!(errno(fs::remove_dir(at("c"))), EBUSY);
    fs::rename(at("c"), at("c2")).unwrap();
    assert_eq!(fs::read_to_string(at("c2/d/e/f")).unwrap(), "inner");
    fs::rename(at("c2"), at("c")).unwrap();
    rig.zfs(&["destroy", "tank/inner"]);
    assert_eq!(names(&at("c")), [""; 0]);
    fs::remove_dir(at("c")).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}

#[test]
fn each_place_has_its_own_room_and_rules() {
    let Some((mut rig, mnt)) = view("view-rules") else {
        return;
    };
    for fs in ["tank/a", "tank/ro", "tank/plain"] {
        rig.zfs(&["create", fs]);
    }
    rig.zfs(&["set", "quota=40M", "tank/a"]);
    let kib = |at: &str| -> u64 {
        let at = mnt.join(at);
        let df = rig.sh(&format!("df -k --output=size {} | tail -1", at.display()));
        df.trim().parse().unwrap()
    };
    assert!(kib("a") <= 40 << 10, "{}", kib("a"));
    assert!(kib("") > 100 << 10 && kib("plain") > 100 << 10);
    fs::write(mnt.join("ro/f"), "f").unwrap();
    rig.zfs(&["set", "readonly=on", "tank/ro"]);
    assert_eq!(errno(fs::write(mnt.join("ro/g"), "g")), EROFS);
    fs::write(mnt.join("plain/g"), "g").unwrap();
    // Programs.
    let program = |dir: &str| {
        let at = mnt.join(dir).join("true");
        if !at.exists() {
            fs::copy("/bin/true", &at).unwrap();
        }
        rig.try_run(at.to_str().unwrap(), &[""; 0]).status.success()
    };
    assert!(program("a") && program("plain"));
    rig.zfs(&["set", "exec=off", "tank/a"]);
    let at = mnt.join("a/true");
    let said = rig.sh(&format!("{} || echo $?", at.display()));
    assert_eq!(said.trim(), "126");
    assert!(program("plain"));
    assert_eq!(
        fs::metadata(&at).unwrap().permissions().mode() & 0o777,
        0o755
    );
    rig.zfs(&["set", "exec=on", "tank/a"]);
    assert!(program("a"));
    // Set-id bits have no effect where they are not to have any.
    fs::set_permissions(&at, PermissionsExt::from_mode(0o4755)).unwrap();
    let mode = || fs::metadata(&at).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o4755);
    rig.zfs(&["set", "setuid=off", "tank/a"]);
    assert_eq!(mode(), 0o755);
    rig.zfs(&["set", "setuid=on", "tank/a"]);
    assert_eq!(mode(), 0o4755);
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn what_is_done_to_a_file_system_shows_at_once() {
    let Some((mut rig, mnt)) = view("view-changes") else {
        return;
    };
    let at = |p: &str| mnt.join(p);
    // Names that the kernel has taken for free.
    assert!(!at("a").exists());
    rig.zfs(&["create", "tank/a"]);
    fs::write(at("a/f"), "one").unwrap();
    rig.zfs(&["snapshot", "tank/a@one"]);
    fs::write(at("a/f"), "two, and more").unwrap();
    fs::write(at("a/g"), "g").unwrap();
    let open = File::open(at("a/f")).unwrap();
    rig.zfs(&["rollback", "tank/a@one"]);
    assert_eq!(fs::read_to_string(at("a/f")).unwrap(), "one");
    assert_eq!(names(&at("a")), ["f"]);
    drop(open);
    // Renamed, with what is below it.
    rig.zfs(&["create", "tank/a/x"]);
    fs::write(at("a/x/f"), "x").unwrap();
    rig.zfs(&["rename", "tank/a", "tank/b"]);
    assert_eq!(names(&mnt), ["b"]);
    assert_eq!(fs::read_to_string(at("b/x/f")).unwrap(), "x");
    // Received beside and into.
    rig.sh("zfs send tank/b@one | zfs receive tank/r");
    assert_eq!(fs::read_to_string(at("r/f")).unwrap(), "one");
    fs::write(at("b/f"), "three").unwrap();
    rig.zfs(&["snapshot", "tank/b@three"]);
    rig.sh("zfs send -i @one tank/b@three | zfs receive -F tank/r");
    assert_eq!(fs::read_to_string(at("r/f")).unwrap(), "three");
    // In use it stays, by force it goes.
    let open = OpenOptions::new().write(true).open(at("r/f")).unwrap();
    let said = rig.try_run("zfs", &["destroy", "-r", "tank/r"]).fails(1);
    assert!(said.contains("busy"), "{said}");
    let said = rig.try_run("zfs", &["unmount", "tank/r"]).fails(1);
    assert!(said.contains("busy"), "{said}");
    open.write_all_at(b"THREE", 0).unwrap();
    assert_eq!(fs::read_to_string(at("r/f")).unwrap(), "THREE");
    rig.zfs(&["destroy", "-r", "-f", "tank/r"]);
    assert!(!at("r").exists());
    assert!(open.metadata().is_err());
    drop(open);
    // Mount points by property.
    let other = rig.mnt().join("other");
    rig.zfs(&[
        "set",
        &format!("mountpoint={}", other.display()),
        "tank/b/x",
    ]);
    assert_eq!(fs::read_to_string(other.join("f")).unwrap(), "x");
    assert_eq!(names(&at("b")), ["f"]);
    rig.zfs(&["inherit", "mountpoint", "tank/b/x"]);
    assert_eq!(fs::read_to_string(at("b/x/f")).unwrap(), "x");
    rig.zfs(&["set", "mountpoint=none", "tank/b/x"]);
    assert_eq!(names(&at("b")), ["f"]);
    rig.zfs(&["inherit", "mountpoint", "tank/b/x"]);
    rig.zfs(&["set", "canmount=off", "tank/b/x"]);
    assert_eq!(names(&at("b")), ["f"]);
    // Below one that is not mounted.
    rig.zfs(&["create", "tank/b/x/y"]);
    fs::write(at("b/x/y/f"), "y").unwrap();
    assert_eq!(names(&at("b")), ["f", "x"]);
    assert_eq!(names(&at("b/x")), ["y"]);
    assert_eq!(errno(fs::write(at("b/x/f"), "")), EROFS);
    rig.zfs(&["set", "canmount=on", "tank/b/x"]);
    for _ in 0..2 {
        rig.zfs(&["mount", "-a"]);
        assert_eq!(names(&at("b/x")), ["f", "y"]);
        assert_eq!(fs::read_to_string(at("b/x/y/f")).unwrap(), "y");
        // The youngest goes first: what is in it stays meanwhile.
        rig.zfs(&["unmount", "tank/b/x"]);
        assert_eq!(names(&at("b")), ["f"]);
    }
    rig.zfs(&["mount", "-a"]);
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}

#[test]
fn a_directory_of_the_same_name_is_hidden_and_the_log_says_so() {
    let Some((mut rig, mnt)) = view("view-shadow") else {
        return;
    };
    fs::create_dir(mnt.join("a")).unwrap();
    fs::write(mnt.join("a/below"), "").unwrap();
    fs::write(mnt.join("file"), "").unwrap();
    rig.zfs(&["create", "tank/a"]);
    assert_eq!(names(&mnt), ["a", "file"]);
    assert_eq!(names(&mnt.join("a")), [""; 0]);
    let log = rig.log();
    assert_eq!(
        log.matches("is not empty; what it holds is hidden").count(),
        1,
        "{log}"
    );
    rig.zfs(&["unmount", "tank/a"]);
    assert_eq!(names(&mnt.join("a")), ["below"]);
    rig.zfs(&["set", "overlay=off", "tank/a"]);
    let said = rig.try_run("zfs", &["mount", "tank/a"]).fails(1);
    assert!(said.contains("directory is not empty"), "{said}");
    let said = rig.try_run("zfs", &["create", "tank/file"]).fails(1);
    assert!(said.contains("is no directory"), "{said}");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

#[test]
fn a_locked_file_system_is_an_empty_directory() {
    let Some((mut rig, mnt)) = view("view-locked") else {
        return;
    };
    let key = rig.disks().join("key");
    fs::write(&key, "a passphrase of some length").unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let how = [
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        &location,
    ];
    rig.zfs(&[&how[..], &["tank/e"]].concat());
    fs::write(mnt.join("e/f"), "secret").unwrap();
    rig.zfs(&["unmount", "tank/e"]);
    rig.zfs(&["unload-key", "tank/e"]);
    rig.try_run("zfs", &["mount", "tank/e"]).fails(1);
    assert_eq!(names(&mnt), ["e"]);
    assert_eq!(names(&mnt.join("e")), [""; 0]);
    assert_eq!(errno(fs::write(mnt.join("e/f"), "")), EROFS);
    assert_eq!(rig.get("mounted", "tank/e"), "no");
    rig.zfs(&["load-key", "tank/e"]);
    rig.zfs(&["mount", "tank/e"]);
    assert_eq!(fs::read_to_string(mnt.join("e/f")).unwrap(), "secret");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// What is written and open when somebody takes the whole view away, or the daemon ends.
#[test]
fn a_view_ends_as_a_mount_does() {
    let Some((mut rig, mnt)) = view("view-ends") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "tank/a/b"]);
    fs::write(mnt.join("a/b/f"), "kept").unwrap();
    rig.sh("umount ../mnt/tank");
    until("everything is unmounted", || rig.zfs(&["mount"]).is_empty());
    rig.zfs(&["mount", "-a"]);
    assert_eq!(fs::read_to_string(mnt.join("a/b/f")).unwrap(), "kept");
    rig.zpool(&["sync"]);
    rig.kill();
    rig.start();
    assert_eq!(fs::read_to_string(mnt.join("a/b/f")).unwrap(), "kept");
    assert_eq!(lines(&rig, &mnt), 1);
    // Without the property each is a mount of its own again.
    rig.zfs(&["inherit", "zfs-fuse:view", "tank"]);
    rig.zfs(&["unmount", "-a"]);
    rig.zfs(&["mount", "-a"]);
    assert_eq!(fs::read_to_string(mnt.join("a/b/f")).unwrap(), "kept");
    assert_eq!(lines(&rig, &mnt), 3);
    rig.zfs(&["unmount", "-a"]);
    rig.zfs(&["mount", "-o", "view", "tank"]);
    rig.zfs(&["mount", "-a"]);
    assert_eq!(lines(&rig, &mnt), 1);
    assert_eq!(fs::read_to_string(mnt.join("a/b/f")).unwrap(), "kept");
    rig.zfs(&["set", "zfs-fuse:view=perhaps", "tank"]);
    rig.zfs(&["unmount", "-a"]);
    let said = rig.try_run("zfs", &["mount", "tank"]).fails(1);
    assert!(said.contains("zfs-fuse:view"), "{said}");
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}

/// The session of the README.
#[test]
fn an_ordinary_users_file_systems_are_inside_their_parents() {
    if !users_can_mount("view-user") {
        return;
    }
    let Some(mut rig) = Rig::as_user("view-user") else {
        return;
    };
    let disk = rig.image("d0", 256 << 20);
    rig.start();
    rig.zpool(&["create", "tank", &disk]);
    rig.zfs(&["create", "tank/photos"]);
    rig.zfs(&["create", "tank/photos/old"]);
    let said = rig.sh(
        "ls ~/zfs; ls ~/zfs/tank; ls ~/zfs/tank/photos; echo x >~/zfs/tank/photos/old/f; cat ~/zfs/tank/photos/old/f; \
         grep -c zt-view-user /proc/mounts; zfs get -H -o value mounted,mountpoint tank/photos/old | sed s,$HOME,~,",
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..5], ["tank", "photos", "old", "x", "1"], "{said}");
    assert!(lines.contains(&"yes"), "{said}");
    assert!(said.contains("zfs/tank/photos/old"), "{said}");
    rig.zfs(&["snapshot", "tank/photos/old@monday"]);
    rig.sh("rm ~/zfs/tank/photos/old/f; ls ~/zfs/tank/photos/old/.zfs/snapshot/monday | grep f");
    rig.zfs(&["rollback", "tank/photos/old@monday"]);
    rig.sh("cat ~/zfs/tank/photos/old/f");
    rig.zfs(&["destroy", "-r", "tank/photos"]);
    rig.sh("test ! -e ~/zfs/tank/photos");
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", &disk, "-o", "readonly=on", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}
