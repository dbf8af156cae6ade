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

#[test]
fn outlast_caches_and_mounts() {
    let Some(mut rig) = Rig::as_root("handles") else {
        return;
    };
    let source = rig.path().join("handles.c");
    let program = rig.path().join("handles");
    fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .status();
    if !built.is_ok_and(|s| s.success()) {
        eprintln!("skipped: no C compiler");
        return;
    }
    let disk = rig.images(1, 128 << 20).remove(0);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    fs::create_dir(mnt.join("d")).unwrap();
    for f in ["a", "d/b", "gone"] {
        fs::write(mnt.join(f), format!("this is {f}")).unwrap();
    }
    let (p, m) = (program.display(), mnt.display());
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
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}
