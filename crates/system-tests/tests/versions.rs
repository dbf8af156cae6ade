//! File systems of old versions, and `zfs upgrade`.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use system_tests::tree::{self, Kinds};
use system_tests::Rig;

const KINDS: Kinds = Kinds {
    xattrs: false,
    acls: false,
    huge: false,
};

fn tank(name: &str, options: &[&str]) -> Option<(Rig, PathBuf)> {
    let mut rig = Rig::new(name)?;
    let disk = rig.image("d0", 512 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    let mut args = vec!["create", "-m", mnt.to_str().unwrap()];
    args.extend(options);
    args.extend(["tank", &disk]);
    rig.zpool(&args);
    Some((rig, mnt))
}

/// Two of the file systems to version 4, then all to 5, and what is said of it.
fn upgrade(rig: &Rig) {
    let said = rig.zfs(&["upgrade", "-V", "4", "tank/v1", "tank/v4"]);
    assert_eq!(
        said,
        "1 filesystems upgraded\n1 filesystems already at this version\n"
    );
    let said = rig.try_run("zfs", &["upgrade", "-V", "3", "tank/v1"]);
    assert_eq!(
        said.out,
        "tank/v1: can not be downgraded; it is already at version 4\n0 filesystems upgraded\n"
    );
    said.fails(1);
    let said = rig.zfs(&["upgrade", "-a"]);
    assert_eq!(
        said,
        "4 filesystems upgraded\n1 filesystems already at this version\n"
    );
    assert_eq!(
        rig.zfs(&["upgrade"]),
        "This system is currently running ZFS filesystem version 5.\n\n\
         All filesystems are formatted with the current version.\n"
    );
}

/// Files open, without a name or half written, and a working directory, stay what they are; everything reads the same
/// afterwards, and takes what the new version has.
#[test]
fn upgrade_under_use_changes_nothing_but_the_version() {
    let Some((rig, mnt)) = tank("versions", &["-O", "xattr=sa"]) else {
        return;
    };
    for v in 1..=4 {
        let name = format!("tank/v{v}");
        rig.zfs(&["create", "-o", &format!("version={v}"), &name]);
        tree::write(&mnt.join(format!("v{v}")), 40, v, KINDS).unwrap();
        rig.zfs(&["snapshot", &format!("{name}@old")]);
    }
    let listed = rig.zfs(&["upgrade"]);
    assert!(
        listed.ends_with(
            "VER  FILESYSTEM\n---  ------------\n 1   tank/v1\n 2   tank/v2\n 3   tank/v3\n 4   tank/v4\n"
        ),
        "{listed}"
    );
    assert!(rig
        .zfs(&["upgrade", "-v"])
        .contains("\n 5   System attributes\n"));
    let before: Vec<_> = (1..=4)
        .map(|v| tree::describe(&mnt.join(format!("v{v}"))).unwrap())
        .collect();

    let open = |v: u64, name: &str| -> File {
        let at = mnt.join(format!("v{v}")).join(name);
        let mut how = OpenOptions::new();
        how.read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(at)
            .unwrap()
    };
    let mut files: Vec<(u64, File, File)> = Vec::new();
    for v in 1..=4 {
        let mut half = open(v, "half written");
        half.write_all(b"first ").unwrap();
        let nameless = open(v, "nameless");
        nameless.write_all_at(b"kept", 0).unwrap();
        fs::remove_file(mnt.join(format!("v{v}/nameless"))).unwrap();
        files.push((v, half, nameless));
    }
    upgrade(&rig);
    for (v, half, nameless) in &mut files {
        half.write_all(b"second").unwrap();
        half.sync_all().unwrap();
        half.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        half.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first second", "v{v}");
        let mut kept = [0; 4];
        nameless.read_exact_at(&mut kept, 0).unwrap();
        assert_eq!(&kept, b"kept", "v{v}");
        nameless.write_all_at(&vec![7; 300_000], 0).unwrap();
        fs::remove_file(mnt.join(format!("v{v}/half written"))).unwrap();
    }
    drop(files);
    let check = |when: &str| {
        for (v, before) in (1..=4).zip(&before) {
            let now = tree::describe(&mnt.join(format!("v{v}"))).unwrap();
            tree::assert_same(before, &now, &format!("v{v} {when}"));
        }
    };
    check("at once");
    for v in 1..=4 {
        let name = format!("tank/v{v}");
        rig.zfs(&["unmount", &name]);
        rig.zfs(&["mount", &name]);
    }
    check("after another mount");
    for v in 1..=4 {
        let name = format!("tank/v{v}");
        assert_eq!(rig.get("version", &name), "5");
        assert_eq!(rig.get("version", &format!("{name}@old")), v.to_string());
        // Old objects and new ones, with attributes that only the new version has.
        let dir = mnt.join(format!("v{v}"));
        let old = fs::read_dir(&dir).unwrap().flatten().map(|e| e.path());
        let old = old.into_iter().find(|p| p.is_file()).unwrap();
        fs::write(dir.join("new"), "x").unwrap();
        for file in [&old, &dir.join("new"), &dir] {
            let at = file.to_str().unwrap();
            rig.sh(&format!(
                "setfattr -n user.a -v b '{at}' && getfattr -n user.a '{at}'"
            ));
        }
        assert!(rig.zfs(&["diff", &format!("{name}@old")]).contains("new"));
    }
    let said = rig.zpool(&["history", "-i", "tank"]);
    assert!(said.contains("from 4 to 5"), "{said}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    // A snapshot has the version it was made with.
    rig.zfs(&["rollback", "tank/v2@old"]);
    assert_eq!(rig.get("version", "tank/v2"), "2");
    let now = tree::describe(&mnt.join("v2")).unwrap();
    tree::assert_same(&before[1], &now, "v2 gone back");
    rig.zfs(&["set", "version=current", "tank/v2"]);
    assert_eq!(rig.get("version", "tank/v2"), "5");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn version_that_the_pool_does_not_allow_is_refused() {
    let Some((rig, _)) = tank("versions-old", &["-o", "version=14"]) else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    let said = rig.try_run("zfs", &["upgrade", "-r", "tank"]);
    let line = |name: &str| {
        format!(
            "{name}: can not be upgraded; the pool version needs to first be upgraded\nto version 24\n\n"
        )
    };
    let want = format!("{}{}0 filesystems upgraded\n", line("tank"), line("tank/a"));
    assert_eq!(said.out, want);
    said.fails(1);
    let said = rig.try_run("zfs", &["set", "version=5", "tank/a"]).fails(1);
    assert!(said.contains("must be upgraded"), "{said}");
    let said = rig.try_run("zfs", &["set", "version=2", "tank/a"]).fails(1);
    assert!(
        said.contains("Can not downgrade; already at version 3"),
        "{said}"
    );
    assert_eq!(rig.get("version", "tank/a"), "3");
    rig.zpool(&["upgrade", "-V", "24", "tank"]);
    rig.zfs(&["upgrade", "-r", "tank"]);
    assert_eq!(rig.get("version", "tank/a"), "5");
    for bad in [
        &["upgrade", "-r"][..],
        &["upgrade", "-V", "4"],
        &["upgrade", "-v", "tank"],
        &["upgrade", "-a", "tank"],
        &["upgrade", "-V", "6", "tank"],
        &["upgrade", "-V", "x", "tank"],
    ] {
        rig.try_run("zfs", bad).fails(2);
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
