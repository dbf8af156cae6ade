//! All file systems of a pool in one mount, each at its place: root's by `zfs-fuse:view`, an ordinary user's without asking.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{symlink, DirEntryExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use system_tests::{number, until, users_can_mount, Rig};

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

/// What `write` accepted is on the disk, though the kernel had it in its cache, and the file is still open.
#[test]
fn by_force_nothing_that_was_written_gets_lost() {
    let Some((mut rig, mnt)) = view("view-force") else {
        return;
    };
    for fs in ["tank/a", "tank/a/b", "tank/c"] {
        rig.zfs(&["create", fs]);
    }
    let places = ["", "a", "a/b", "c"];
    let write = |text: &str| -> Vec<File> {
        let file = |dir: &&str| {
            let path = mnt.join(dir).join("f");
            let f = OpenOptions::new().create(true).append(true).open(path);
            let mut f = f.unwrap();
            f.write_all(text.as_bytes()).unwrap();
            f
        };
        places.iter().map(file).collect()
    };
    let read = |dir: &str| fs::read_to_string(mnt.join(dir).join("f")).unwrap();
    // One of them.
    let open = write("one.");
    rig.zfs(&["unmount", "-f", "tank/c"]);
    assert!(open[3].metadata().is_err());
    assert!(open[2].metadata().is_ok());
    rig.zfs(&["mount", "tank/c"]);
    assert_eq!(read("c"), "one.");
    drop(open);
    // The root, with all that is in it.
    let open = write("two.");
    let said = rig.try_run("zfs", &["unmount", "tank"]).fails(1);
    assert!(said.contains("busy"), "{said}");
    rig.zfs(&["unmount", "-f", "tank"]);
    assert!(open.iter().all(|f| f.metadata().is_err()));
    drop(open);
    until("everything is unmounted", || rig.zfs(&["mount"]).is_empty());
    rig.zfs(&["mount", "-a"]);
    for dir in places {
        assert_eq!(read(dir), "one.two.", "{dir}");
    }
    // What hangs in a directory of another one goes with it, with what hangs in that.
    fs::create_dir_all(mnt.join("a/d/e")).unwrap();
    let place = |at: &str| format!("mountpoint={}", mnt.join(at).display());
    rig.zfs(&["create", "-o", &place("a/d/e"), "tank/in"]);
    rig.zfs(&["create", "-o", &place("a/d/e/d/x/y"), "tank/deep"]);
    rig.zfs(&["create", "tank/in/below"]);
    let inner = ["a/d/e", "a/d/e/d/x/y", "a/d/e/below"];
    let kept: Vec<File> = inner
        .iter()
        .map(|at| {
            let mut f = File::create(mnt.join(at).join("f")).unwrap();
            f.write_all(b"inside").unwrap();
            f
        })
        .collect();
    let said = rig.try_run("zfs", &["unmount", "tank/a"]).fails(1);
    assert!(said.contains("busy"), "{said}");
    rig.zfs(&["unmount", "-f", "tank/a"]);
    assert!(kept.iter().all(|f| f.metadata().is_err()));
    let left = rig.zfs(&["mount"]);
    assert!(
        !left.contains("tank/in") && !left.contains("tank/deep"),
        "{left}"
    );
    rig.zfs(&["mount", "-a"]);
    drop(kept);
    for at in inner {
        assert_eq!(read(at), "inside", "{at}");
    }
    rig.zfs(&["unmount", "-f", "tank"]);
    until("everything is unmounted", || rig.zfs(&["mount"]).is_empty());
    rig.zfs(&["mount", "-a"]);
    for at in inner {
        assert_eq!(read(at), "inside", "{at}");
    }
    // The pool.
    let open = write("three.");
    rig.try_run("zpool", &["export", "tank"]).fails(1);
    rig.zpool(&["export", "-f", "tank"]);
    assert!(open.iter().all(|f| f.metadata().is_err()));
    drop(open);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    for dir in places {
        assert_eq!(read(dir), "one.two.three.", "{dir}");
    }
    assert_eq!(lines(&rig, &mnt), 1);
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}

/// Device numbers, access control lists and options that change while the view is mounted.
#[test]
fn options_of_one_place_hold_there_alone() {
    if !system_tests::is_root() {
        eprintln!("skipped: view-options needs root");
        return;
    }
    let Some((mut rig, mnt)) = view("view-options") else {
        return;
    };
    for (fs, option) in [
        ("a", "devices=on"),
        ("b", "acltype=posix"),
        ("c", "atime=off"),
    ] {
        rig.zfs(&["create", "-o", option, &format!("tank/{fs}")]);
    }
    // A device: null, which everybody may read where it is one.
    rig.sh(&format!(
        "cd {}; for d in a b; do mknod -m 666 $d/null c 1 3; done; head -c1 a/null",
        mnt.display()
    ));
    rig.zfs(&["set", "devices=off", "tank/a"]);
    // The kernel keeps the number of a node that it knows.
    let rdev = |dir: &str| {
        rig.sh("sync; echo 2 >/proc/sys/vm/drop_caches");
        fs::metadata(mnt.join(dir).join("null")).unwrap().rdev()
    };
    assert_eq!((rdev("a"), rdev("b")), (0, 0x103));
    rig.sh(&format!(
        "fails head -c1 {}/a/null 2>/dev/null",
        mnt.display()
    ));
    rig.zfs(&["set", "devices=on", "tank/a"]);
    assert_eq!(rdev("a"), 0x103);
    // Lists, where they are on.
    let m = mnt.display().to_string();
    for dir in ["a", "b"] {
        fs::write(mnt.join(dir).join("f"), "f").unwrap();
        fs::set_permissions(mnt.join(dir).join("f"), PermissionsExt::from_mode(0o600)).unwrap();
    }
    rig.sh(&format!(
        "setfacl -m u:12345:r {m}/b/f; fails setfacl -m u:12345:r {m}/a/f 2>/dev/null"
    ));
    let read = "setpriv --reuid=12345 --regid=12345 --clear-groups cat";
    assert_eq!(rig.sh(&format!("{read} {m}/b/f")), "f");
    rig.sh(&format!("fails {read} {m}/a/f 2>/dev/null"));
    rig.sh(&format!(
        "setfacl -b {m}/b/f; fails {read} {m}/b/f 2>/dev/null"
    ));
    rig.sh(&format!(
        "setfacl -d -m u:12345:rx {m}/b; touch {m}/b/g; getfacl -c {m}/b/g | grep 12345"
    ));
    // Times, each as it is set there.
    let atime = |dir: &str| {
        let path = mnt.join(dir).join("t");
        if !path.exists() {
            fs::write(&path, "t").unwrap();
            rig.sh(&format!("touch -a -d 2001-01-01 {}", path.display()));
        }
        fs::read(&path).unwrap();
        rig.zpool(&["sync"]);
        fs::metadata(&path).unwrap().atime()
    };
    assert!(atime("a") > 1_000_000_000, "{}", atime("a"));
    assert!(atime("c") < 1_000_000_000, "{}", atime("c"));
    // Another mount of the same options: `remount` of one, and of all.
    let ro = |dir: &str| {
        fs::write(mnt.join(dir).join("new"), "x")
            .err()
            .and_then(|e| e.raw_os_error())
    };
    rig.zfs(&["mount", "-o", "remount,ro", "tank/a"]);
    assert_eq!((ro("a"), ro("b"), ro("")), (Some(EROFS), None, None));
    rig.zfs(&["mount", "-o", "remount,rw", "tank/a"]);
    let open = OpenOptions::new()
        .write(true)
        .open(mnt.join("a/f"))
        .unwrap();
    let said = rig
        .try_run("zfs", &["mount", "-o", "remount,ro", "tank/a"])
        .fails(1);
    assert!(
        said.contains("busy") || said.contains("open for writing"),
        "{said}"
    );
    drop(open);
    assert_eq!(ro("a"), None);
    rig.zfs(&["mount", "-o", "remount,ro", "tank"]);
    assert_eq!((ro("a"), ro("")), (None, Some(EROFS)));
    rig.zfs(&["mount", "-o", "remount,rw", "tank"]);
    // What the whole view forbids nobody in it has.
    rig.zfs(&["mount", "-o", "remount,nodev", "tank"]);
    rig.sh(&format!("fails head -c1 {m}/b/null 2>/dev/null"));
    // A directory that is on no disk can be entered and listed.
    rig.zfs(&["create", "-o", &format!("mountpoint={m}/x/y/z"), "tank/x"]);
    let said = rig.sh(&format!("cd {m}/x && ls && cd y/z && echo z >f && cat ../../y/z/f && ls -id .. ../../y | cut -d' ' -f1 | uniq | wc -l"));
    assert_eq!(said, "y\nz\n1\n");
    rig.sh(&format!(
        "setpriv --reuid=12345 --regid=12345 --clear-groups ls {m}/x/y"
    ));
    // What `..` of a root is, whichever way a listing is asked for.
    for dir in ["a", "x/y/z"] {
        let up = fs::metadata(mnt.join(dir).join("..")).unwrap().ino();
        let said = rig.sh(&format!(
            "cd {m}/{dir} && ls -a -i . | grep ' \\.\\.$' && ls -a -f -i . | grep ' \\.\\.$'"
        ));
        for line in said.lines() {
            assert_eq!(
                line.split_whitespace().next().unwrap(),
                up.to_string(),
                "{dir}: {said}"
            );
        }
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}

/// Twenty file systems with rules of their own, used by everyday programs, while others beside them change.
#[test]
fn twenty_file_systems_in_one_view_under_use() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use system_tests::load::{disturb, Writer};
    let Some((mut rig, mnt)) = view("view-twenty") else {
        return;
    };
    let tank = |n: u32| format!("tank/f{n}");
    for n in 0..8 {
        rig.zfs(&["create", &tank(n)]);
        rig.zfs(&["create", &format!("{}/in", tank(n))]);
    }
    for (fs, options) in [
        ("tank/f0/in/deep", "exec=off"),
        ("tank/f0/in/deep/er", "setuid=off"),
        ("tank/f1/in/deep", "atime=off"),
        ("tank/f2/in/deep", "quota=60M"),
    ] {
        rig.zfs(&["create", "-o", options, fs]);
    }
    let at = |p: &str| mnt.join(p);
    fs::write(at("f3/in/kept"), "kept").unwrap();
    rig.zfs(&["set", "readonly=on", "tank/f3/in"]);
    fs::write(at("f4/f"), "before").unwrap();
    rig.zfs(&["snapshot", "-r", "tank@begin"]);
    assert_eq!(lines(&rig, &mnt), 1);
    let stop = AtomicBool::new(false);
    let scale = number("ZFS_FUSE_TEST_SCALE", 1);
    let places = ["f0/in/deep/er", "f1/in/deep", "f2/in", "f5"];
    let mut writers: Vec<_> = places
        .iter()
        .enumerate()
        .map(|(n, p)| Writer::new(at(p).join("w"), n as u64).unwrap())
        .collect();
    std::thread::scope(|s| {
        for w in &mut writers {
            s.spawn(|| w.work(&stop));
        }
        s.spawn(|| disturb(&at("f2/in/deep"), 7, &stop));
        s.spawn(|| disturb(&at("f1/in"), 8, &stop));
        for round in 0..2 * scale {
            change_others(&rig, &mnt, round);
            use_it(&rig, &mnt, round);
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (w, place) in writers.iter_mut().zip(places) {
        assert!(w.done > 5, "{place}: {}", w.done);
        w.verify().unwrap_or_else(|e| panic!("{place}: {e}"));
    }
    let mut all = HashMap::new();
    inodes(&mnt, &mut all);
    for (ino, files) in &all {
        let links = fs::symlink_metadata(&files[0]).unwrap().nlink();
        assert!(files.len() == 1 || links > 1, "{ino}: {files:?}");
    }
    rig.stop();
    rig.start();
    for (w, place) in writers.iter_mut().zip(places) {
        w.verify().unwrap_or_else(|e| panic!("{place}: {e}"));
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}

/// What an administrator does beside those who work.
fn change_others(rig: &Rig, mnt: &Path, round: u64) {
    let at = |p: &str| mnt.join(p);
    let kept = at("f3/in/.zfs/snapshot/begin/kept");
    assert_eq!(fs::read_to_string(kept).unwrap(), "kept");
    fs::write(at("f4/f"), format!("after {round}")).unwrap();
    rig.zfs(&["rollback", "tank/f4@begin"]);
    assert_eq!(fs::read_to_string(at("f4/f")).unwrap(), "before");
    rig.zfs(&["rename", "tank/f6", "tank/g6"]);
    fs::write(at("g6/in/f"), "moved").unwrap();
    rig.zfs(&["rename", "tank/g6", "tank/f6"]);
    assert_eq!(fs::read_to_string(at("f6/in/f")).unwrap(), "moved");
    // Received into, by a full stream and by an increment.
    let snapshot = format!("tank/f5@r{round}");
    rig.zfs(&["snapshot", &snapshot]);
    match round {
        0 => rig.sh(&format!("zfs send {snapshot} | zfs receive tank/copy")),
        n => rig.sh(&format!(
            "zfs send -i @r{} {snapshot} | zfs receive -F tank/copy",
            n - 1
        )),
    };
    assert!(at("copy/w").exists());
    rig.zfs(&["create", "tank/f7/in/gone"]);
    fs::write(at("f7/in/gone/f"), "x").unwrap();
    rig.zfs(&["destroy", "-f", "tank/f7/in/gone"]);
    assert!(!at("f7/in/gone").exists());
    rig.zfs(&["unmount", "-f", "tank/f7/in"]);
    rig.zfs(&["mount", "tank/f7/in"]);
    rig.zfs(&["set", &format!("quota={}M", 60 + round), "tank/f2/in/deep"]);
    assert_eq!(errno(fs::write(at("f3/in/new"), "")), EROFS);
}

/// What people do.
fn use_it(rig: &Rig, mnt: &Path, round: u64) {
    let m = mnt.display();
    let said = rig.sh(&format!(
        "set -e; cd {m}; \
         git init -q f7/repo{round}; cd f7/repo{round}; git config user.email a@b; git config user.name n; \
         for i in $(seq 60); do echo $i >file$i; done; git add .; git commit -qm one; \
         for i in $(seq 30); do echo more >>file$i; done; git commit -qam two; \
         git clone -q . {m}/f0/clone{round}; cd {m}/f0/clone{round}; git checkout -q HEAD~1; git checkout -q -; \
         git gc -q; git fsck --strict >/dev/null 2>&1; git status --porcelain | wc -l; \
         test $(find {m}/f0/clone{round} -name 'file*' | wc -l) = 60; \
         cp -a {m}/f0/clone{round} {m}/f6/in/clone{round}; diff -r {m}/f0/clone{round} {m}/f6/in/clone{round}; \
         mv {m}/f6/in/clone{round} {m}/f4/moved{round}; diff -r {m}/f0/clone{round} {m}/f4/moved{round}; \
         du -s {m}/f0 >/dev/null 2>&1 || true; find {m}/f4 {m}/f6 {m}/f7 -type f | wc -l >/dev/null; \
         tar -C {m}/f0 -cf - clone{round} | tar -C {m}/f6 -xf -; diff -r {m}/f0/clone{round} {m}/f6/clone{round}; \
         if command -v rsync >/dev/null; then \
         rsync -xaH {m}/f0/clone{round}/ {m}/f6/in/sync{round}/; diff -r {m}/f0/clone{round} {m}/f6/in/sync{round}; fi"
    ));
    assert_eq!(said.trim(), "0");
    // Where programs do not run, they do not.
    fs::copy("/bin/true", mnt.join("f0/in/deep/true")).unwrap();
    rig.sh(&format!("fails {m}/f0/in/deep/true 2>/dev/null"));
}
