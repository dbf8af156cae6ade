//! Wrong input: one clear complaint, the right exit status, nothing half done.

use std::path::Path;
use system_tests::Rig;

#[test]
fn complaints() {
    let Some(mut rig) = Rig::new("wrong") else {
        return;
    };
    rig.start();
    complaints_of_zpool(&mut rig);
    complaints_of_zfs(&rig);
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

/// Leaves a pool `tank`.
fn complaints_of_zpool(rig: &mut Rig) {
    let disks = rig.images(3, 128 << 20);
    let tiny = rig.image("tiny", 63 << 20);
    let mnt = rig.mnt();
    let mnt = mnt.to_str().unwrap();
    let zpool = |args: &[&str], code: i32| {
        let said = rig.try_run("zpool", args).fails(code);
        assert!(
            !said.trim().is_empty() && !said.contains("panicked"),
            "zpool {args:?}: {said:?}"
        );
        said
    };
    for args in [
        &["create"][..],
        &["create", "-Z", "a"],
        &["frobnicate"],
        &[],
        &["create", "tank"],
        &["list", "-Z"],
        &["get"],
    ] {
        zpool(args, 2);
    }
    let d = disks[0].as_str();
    for (args, word) in [
        (&["create", "mirror", d][..], "mirror"),
        (&["create", "1tank", d], "letter"),
        (&["create", "ta/nk", d], "/"),
        (
            &["create", "-m", mnt, "tank", "/nowhere/disk"],
            "/nowhere/disk",
        ),
        (&["create", "-m", mnt, "tank", &tiny], "64M"),
        (&["create", "-m", mnt, "tank", d, d], ""),
        (&["create", "-m", mnt, "tank", "mirror", d], "2"),
        (
            &["create", "-m", mnt, "-o", "ashift=30", "tank", d],
            "ashift",
        ),
        (
            &["create", "-m", mnt, "-o", "version=99", "tank", d],
            "version",
        ),
        (
            &["create", "-m", mnt, "-O", "compression=best", "tank", d],
            "compression",
        ),
        (
            &["create", "-m", mnt, "-O", "nonsense=1", "tank", d],
            "nonsense",
        ),
        (&["create", "-m", "relative", "tank", d], "absolute"),
        (
            &[
                "create", "-m", mnt, "tank", d, "mirror", &disks[1], &disks[2],
            ],
            "replication",
        ),
        (&["export", "nobody"], "nobody"),
        (&["destroy", "nobody"], "nobody"),
        (&["import", "-d", mnt, "nobody"], "nobody"),
        (&["status", "nobody"], "nobody"),
        (&["get", "size", "nobody"], "nobody"),
    ] {
        let said = zpool(args, 1);
        assert!(
            said.contains(word),
            "zpool {args:?} says {said:?}, nothing of {word:?}"
        );
        let list = rig.try_run("zpool", &["list", "-H"]).ok();
        assert!(!list.contains("tank"), "zpool {args:?} left a pool");
    }
    rig.zpool(&["create", "-m", mnt, "tank", d]);
    std::fs::write(Path::new(mnt).join("file"), "x").unwrap();
    zpool(&["create", "-m", mnt, "tank", &disks[1]], 1);
    zpool(&["create", "-m", mnt, "tank2", d], 1);
    zpool(&["create", "-f", "-m", mnt, "tank2", d], 1);
    let said = zpool(&["create", "-m", mnt, "tank2", &disks[1]], 1);
    assert!(
        said.contains("not empty") || said.contains("in use") || said.contains("busy"),
        "{said}"
    );
}

fn complaints_of_zfs(rig: &Rig) {
    let zfs = |args: &[&str], code: i32| {
        let said = rig.try_run("zfs", args).fails(code);
        assert!(
            !said.trim().is_empty() && !said.contains("panicked"),
            "zfs {args:?}: {said:?}"
        );
        said
    };
    for args in [&["create"][..], &["frobnicate"], &["set"], &["list", "-Z"]] {
        zfs(args, 2);
    }
    rig.zfs(&["create", "tank/a"]);
    for (args, word) in [
        (&["create", "tank/a"][..], "exists"),
        (&["create", "tank/b/c"], "parent"),
        (&["create", "nobody/b"], "nobody"),
        (&["create", "tank/b@c"], "@"),
        (&["create", "-o", "recordsize=1000", "tank/b"], "recordsize"),
        (&["create", "-o", "quota=0.5Q", "tank/b"], ""),
        (&["set", "compression=best", "tank/a"], "compression"),
        (&["set", "used=1", "tank/a"], "used"),
        (&["set", "nonsense=1", "tank/a"], "nonsense"),
        (&["set", "quota=1K", "tank"], ""),
        (&["destroy", "tank/nobody"], "nobody"),
        (&["destroy", "tank"], ""),
        (&["rename", "tank/a", "tank/a/b"], ""),
        (&["rename", "tank/a", "other/a"], ""),
        (&["mount", "tank/a"], "already mounted"),
        (&["unmount", "tank/nobody"], "nobody"),
        (&["list", "tank/nobody"], "nobody"),
        (&["get", "nonsense", "tank"], "nonsense"),
    ] {
        let code = if args[0] == "get" { 2 } else { 1 };
        let said = zfs(args, code);
        assert!(
            said.contains(word),
            "zfs {args:?} says {said:?}, nothing of {word:?}"
        );
    }
    rig.zfs(&["snapshot", "tank/a@s"]);
    rig.zfs(&["hold", "keep", "tank/a@s"]);
    for args in [&["destroy", "tank/a@s"][..], &["destroy", "-r", "tank/a"]] {
        let said = zfs(args, 1);
        let want = "tank/a@s: it's being held. Run 'zfs holds -r tank/a@s' to see holders.";
        assert!(said.contains(want), "{said}");
    }
    rig.zfs(&["release", "keep", "tank/a@s"]);
    rig.zfs(&["destroy", "tank/a@s"]);
    assert_eq!(rig.zfs(&["list", "-H", "-o", "name"]), "tank\ntank/a\n");
}
