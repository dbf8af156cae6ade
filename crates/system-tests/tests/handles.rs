//! File handles (name_to_handle_at(2)), which NFS servers live on, outlast caches and mounts.

use std::fs;
use std::process::Command;
use system_tests::Rig;

/// `handles save FILE... >H` writes handles, `handles show DIR <H` prints what they lead to.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static union {
    struct file_handle h;
    char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
} u;

int main(int n, char **a)
{
    if (!strcmp(a[1], "save")) {
        for (int i = 2; i < n; i++) {
            int mount;
            memset(&u, 0, sizeof u);
            u.h.handle_bytes = MAX_HANDLE_SZ;
            if (name_to_handle_at(AT_FDCWD, a[i], &u.h, &mount, 0)) {
                perror(a[i]);
                return 1;
            }
            fwrite(&u, sizeof u, 1, stdout);
        }
        return 0;
    }
    int dir = open(a[2], O_RDONLY | O_DIRECTORY);
    while (fread(&u, sizeof u, 1, stdin) == 1) {
        char text[100];
        int f = open_by_handle_at(dir, &u.h, O_RDONLY);
        if (f < 0) {
            printf("%s\n", errno == ESTALE ? "stale" : strerror(errno));
            continue;
        }
        ssize_t len = read(f, text, sizeof text);
        printf("%.*s\n", len < 0 ? 3 : (int)len, len < 0 ? "dir" : text);
        close(f);
    }
    return 0;
}
"#;

/// A rig with the program built; `None` after saying why.
fn rig(name: &str) -> Option<(Rig, String)> {
    let rig = Rig::as_root(name)?;
    let source = rig.path().join("handles.c");
    let program = rig.path().join("handles");
    fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .status();
    if !built.is_ok_and(|s| s.success()) {
        eprintln!("skipped: no C compiler");
        return None;
    }
    let program = program.to_str().unwrap().to_string();
    Some((rig, program))
}

/// Over a restart file systems come in another order, and others come between; a server of NFS finds its files by what it has of them.
#[test]
fn outlast_restarts_in_a_view_whatever_the_order_of_mounting() {
    let Some((mut rig, p)) = rig("handles-view") else {
        return;
    };
    let disk = rig.images(1, 256 << 20).remove(0);
    let mnt = rig.mnt().join("tank");
    rig.start();
    let m = mnt.display();
    let place = format!("{m}");
    rig.zpool(&[
        "create",
        "-O",
        "zfs-fuse:view=on",
        "-m",
        &place,
        "tank",
        &disk,
    ]);
    for fs in ["tank/a", "tank/b", "tank/b/c"] {
        rig.zfs(&["create", fs]);
    }
    fs::create_dir_all(mnt.join("a/d/e")).unwrap();
    rig.zfs(&[
        "create",
        "-o",
        &format!("mountpoint={m}/a/d/e/in"),
        "tank/in",
    ]);
    let files = ["f", "a/f", "b/f", "b/c/f", "a/d/f", "a/d/e/in/f"];
    for f in files {
        fs::write(mnt.join(f), format!("this is {f}")).unwrap();
    }
    fs::create_dir(mnt.join("a/d/e/in/sub")).unwrap();
    let saved = rig.path().join("saved");
    let saved = saved.display();
    let dirs = format!("{m}/a {m}/b/c {m}/a/d/e {m}/a/d/e/in {m}/a/d/e/in/sub");
    let all: Vec<_> = files.iter().map(|f| format!("{m}/{f}")).collect();
    rig.sh(&format!("{p} save {} {dirs} >{saved}", all.join(" ")));
    // In snapshots, in another order than that in which they are looked into later.
    // The kernel comes from the handle of a directory to its root by the names that directories list.
    rig.zfs(&["set", "snapdir=visible", "tank"]);
    rig.zfs(&["snapshot", "-r", "tank@s"]);
    let old = format!("{m}/.zfs/snapshot/s/f {m}/a/.zfs/snapshot/s/d/f {m}/a/d/e/in/.zfs/snapshot/s/f {m}/b/c/.zfs/snapshot/s");
    rig.sh(&format!("{p} save {old} >{saved}.old"));
    let show_old = format!("{p} show {m} <{saved}.old");
    let good_old = "this is f\nthis is a/d/f\nthis is a/d/e/in/f\ndir\n";
    rig.stop();
    rig.start();
    rig.sh(&format!(
        "cat {m}/b/.zfs/snapshot/s/f {m}/a/d/e/in/.zfs/snapshot/s/f"
    ));
    assert_eq!(rig.sh(&show_old), good_old, "snapshots, after a restart");
    rig.stop();
    rig.start();
    assert_eq!(
        rig.sh(&show_old),
        good_old,
        "snapshots, with nobody in them"
    );
    rig.zfs(&["destroy", "-r", "tank@s"]);
    // The kernel may still have attributes of the directory.
    let gone = rig.sh(&show_old);
    assert!(gone.starts_with(&"stale\n".repeat(3)), "{gone}");
    let show = format!("{p} show {m} <{saved}");
    let mut good: String = files.iter().map(|f| format!("this is {f}\n")).collect();
    good += "dir\ndir\ndir\ndir\ndir\n";
    assert_eq!(rig.sh(&show), good);
    rig.stop();
    rig.start();
    assert_eq!(rig.sh(&show), good, "after a restart");
    rig.zfs(&["unmount", "-a"]);
    for fs in ["tank", "tank/b", "tank/b/c"] {
        rig.zfs(&["mount", fs]);
    }
    rig.zfs(&["create", "tank/new"]);
    rig.zfs(&["create", "-o", &format!("mountpoint={m}/x/y/z"), "tank/x"]);
    rig.zfs(&["mount", "tank/a"]);
    rig.zfs(&["mount", "tank/in"]);
    assert_eq!(rig.sh(&show), good, "in another order");
    rig.sh("sync; echo 2 >/proc/sys/vm/drop_caches");
    assert_eq!(rig.sh(&show), good, "with nothing in the cache");
    // One by one.
    rig.zfs(&["unmount", "tank/b/c"]);
    let stale = good
        .replace("this is b/c/f", "stale")
        .replacen("dir\ndir\n", "dir\nstale\n", 1);
    assert_eq!(rig.sh(&show), stale);
    rig.zfs(&["mount", "tank/b/c"]);
    assert_eq!(rig.sh(&show), good, "one was away");
    rig.zfs(&["destroy", "tank/b/c"]);
    rig.zfs(&["create", "tank/b/c"]);
    fs::write(mnt.join("b/c/f"), "another").unwrap();
    let shown = rig.sh(&show);
    assert_eq!(shown.matches("stale").count(), 2, "{shown}");
    rig.zpool(&["export", "tank"]);
    rig.stop();
    rig.zdb_check("tank");
}

#[test]
fn outlast_caches_and_mounts() {
    let Some((mut rig, p)) = rig("handles") else {
        return;
    };
    let disk = rig.images(1, 128 << 20).remove(0);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    fs::create_dir(mnt.join("d")).unwrap();
    for f in ["a", "d/b", "gone"] {
        fs::write(mnt.join(f), format!("this is {f}")).unwrap();
    }
    let m = mnt.display();
    let saved = rig.path().join("saved");
    let saved = saved.display();
    rig.sh(&format!("{p} save {m}/a {m}/d/b {m}/d {m}/gone >{saved}"));
    fs::remove_file(mnt.join("gone")).unwrap();
    // Another object may take the place of the one that is gone.
    fs::write(mnt.join("new"), "this is new").unwrap();
    let good = "this is a\nthis is d/b\ndir\nstale\n";
    let show = format!("{p} show {m} <{saved}");
    assert_eq!(rig.sh(&show), good);
    rig.sh("sync; echo 2 >/proc/sys/vm/drop_caches");
    assert_eq!(rig.sh(&show), good);
    rig.zfs(&["unmount", "tank"]);
    rig.zfs(&["mount", "tank"]);
    assert_eq!(rig.sh(&show), good);
    // In snapshots, looked into in another order after a restart, or not at all.
    for s in ["one", "two", "three"] {
        fs::write(mnt.join("a"), format!("this is {s}")).unwrap();
        rig.zfs(&["snapshot", &format!("tank@{s}")]);
    }
    let old = |s: &str| format!("{m}/.zfs/snapshot/{s}");
    let (one, two, three) = (old("one"), old("two"), old("three"));
    rig.sh(&format!("{p} save {three}/a {one}/a {two}/d/b >{saved}"));
    let good = "this is three\nthis is one\nthis is d/b\n";
    assert_eq!(rig.sh(&show), good);
    for look in ["true".to_string(), format!("cat {two}/a {three}/d/b")] {
        rig.stop();
        rig.start();
        rig.sh(&look);
        assert_eq!(rig.sh(&show), good, "{look}");
    }
    // What is made of their objects is another one.
    rig.zfs(&["destroy", "tank@one,three"]);
    for s in ["four", "five", "six"] {
        rig.zfs(&["snapshot", &format!("tank@{s}")]);
    }
    let good = "stale\nstale\nthis is d/b\n";
    assert_eq!(rig.sh(&show), good);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}
