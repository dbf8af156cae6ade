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

/// A property of accounting, as a number.
fn owned(rig: &Rig, what: &str, fs: &str) -> String {
    rig.zfs(&["get", "-Hpo", "value", what, fs])
}

/// 300 files are user 1234's and group 1235's, all others root's, and all are charged.
fn counted(rig: &Rig, fs: &str) {
    let number = |what: &str| owned(rig, what, fs).trim().parse::<u64>().unwrap();
    assert_eq!(number("userobjused@1234"), 300, "{fs}");
    assert_eq!(number("groupobjused@1235"), 300, "{fs}");
    for (projects, users) in [
        ("projectobjused@0", "userobjused@"),
        ("projectused@0", "userused@"),
    ] {
        let all = ["0", "1234"].map(|id| number(&format!("{users}{id}")));
        assert_eq!(
            number(projects),
            all.iter().sum::<u64>(),
            "{fs}: {projects}"
        );
    }
}

/// File systems of a pool without the features for it are counted once the pool is upgraded.
#[test]
fn files_from_before_an_upgrade_are_charged_to_their_owners() {
    let Some(mut rig) = Rig::as_root("old-accounting") else {
        return;
    };
    let disk = rig.image("d0", 256 << 20);
    rig.start();
    let at = rig.mnt().to_str().unwrap().to_string();
    rig.zpool(&["create", "-d", "-m", &at, "tank", &disk]);
    for fs in ["tank/mounted", "tank/not"] {
        rig.zfs(&["create", fs]);
    }
    for dir in ["", "mounted", "not"] {
        rig.sh(&format!(
            "cd {at}/{dir} && for i in $(seq 3000); do echo $i >f$i; done && chown 1234:1235 f[1-9]*0"
        ));
    }
    rig.zfs(&["unmount", "tank/not"]);
    let not_counted = |fs: &str| {
        let said = rig.zfs(&["userspace", "-Ho", "objused", fs]);
        assert!(said.lines().all(|l| l == "-"), "{fs}: {said}");
    };
    not_counted("tank");
    rig.zpool(&["upgrade", "tank"]);
    rig.zfs(&["mount", "tank/not"]);
    counted(&rig, "tank/not");
    rig.zfs(&["set", "version=current", "tank"]);
    counted(&rig, "tank");
    not_counted("tank/mounted");
    // A limit holds from then on.
    rig.zfs(&["set", "userobjquota@1234=300", "tank/not"]);
    // The daemon dies while the rest is counted, or is done with it.
    rig.kill();
    rig.start();
    for fs in ["tank", "tank/not", "tank/mounted"] {
        counted(&rig, fs);
    }
    rig.sh(&format!("chown 0 {at}/mounted/f10 && rm {at}/mounted/f20"));
    rig.zpool(&["sync", "tank"]);
    assert_eq!(owned(&rig, "userobjused@1234", "tank/mounted"), "298\n");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}
