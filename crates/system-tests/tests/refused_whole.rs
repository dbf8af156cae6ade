//! Commands for a thousand file systems of which the last one refuses: the others stay as they are.

use std::process::{Command, Stdio};
use system_tests::Rig;

const NOBODY: u32 = 65534;
/// Trees, and file systems in each, one in the other.
const TREES: usize = 21;
const DEEP: usize = 48;

/// `tank/t` with 1,008 file systems below it, none of them mounted; and the name of the last one.
fn thousand(name: &str, as_root: bool) -> Option<(Rig, String)> {
    let mut rig = match as_root {
        true => Rig::as_root(name)?,
        false => Rig::new(name)?,
    };
    let disk = rig.image("d0", 512 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    rig.zfs(&["create", "-o", "mountpoint=none", "tank/t"]);
    let deepest = |tree| format!("tank/t/r{tree:02}{}", "/x".repeat(DEEP - 1));
    for tree in 0..TREES {
        rig.zfs(&["create", "-p", &deepest(tree)]);
    }
    let count = rig.zfs(&["list", "-H", "-o", "name", "-r", "tank/t"]);
    assert_eq!(count.lines().count(), TREES * DEEP + 1);
    Some((rig, deepest(TREES - 1)))
}

/// Everything there is, with what a half-done change would leave behind.
fn all(rig: &Rig) -> String {
    let columns = "name,guid,userrefs,defer_destroy,origin,mounted";
    rig.zfs(&["list", "-H", "-p", "-t", "all", "-o", columns, "-r", "tank"])
}

/// The command fails with 1, says each of these, and changes nothing.
fn refused_as(rig: &Rig, user: Option<u32>, args: &[&str], words: &[&str]) {
    let before = all(rig);
    let said = rig.try_run_as(user, "zfs", args).fails(1);
    for word in words {
        assert!(
            said.contains(word),
            "zfs {args:?} says {said:?}, nothing of {word:?}"
        );
    }
    let after = all(rig);
    let differs = before.lines().zip(after.lines()).find(|(a, b)| a != b);
    assert!(before == after, "after zfs {args:?}: {differs:?}");
}

fn refused(rig: &Rig, args: &[&str], words: &[&str]) {
    refused_as(rig, None, args, words);
}

#[test]
fn snapshots_of_a_thousand_file_systems_are_left_alone_when_the_last_one_refuses() {
    let Some((rig, last)) = thousand("whole-snapshots", false) else {
        return;
    };
    let of_last = |snap: &str| format!("{last}@{snap}");
    rig.zfs(&["snapshot", &of_last("s")]);
    let exists = ["dataset already exists"];
    refused(&rig, &["snapshot", "-r", "tank/t@s"], &exists);
    rig.zfs(&["destroy", &of_last("s")]);
    rig.zfs(&["snapshot", "-r", "tank/t@s"]);
    rig.zfs(&["snapshot", &of_last("other")]);
    refused(&rig, &["rename", "-r", "tank/t@s", "other"], &["exists"]);

    rig.zfs(&["hold", "keep", &of_last("s")]);
    let tag = ["tag already exists on this dataset"];
    refused(&rig, &["hold", "-r", "keep", "tank/t@s"], &tag);
    let held = [of_last("s"), "it's being held".into()];
    let held: Vec<&str> = held.iter().map(String::as_str).collect();
    refused(&rig, &["destroy", "-r", "tank/t@s"], &held);
    refused(&rig, &["destroy", "-r", "tank/t@%"], &held);
    refused(&rig, &["destroy", "-R", "tank/t@s"], &held);
    refused(&rig, &["destroy", "-r", "tank/t"], &held);
    refused(&rig, &["destroy", "-R", "tank/t"], &held);
    rig.zfs(&["release", "keep", &of_last("s")]);

    // Who lacks the tag is passed over, as long as one has it.
    rig.zfs(&["hold", "-r", "keep", "tank/t@s"]);
    rig.zfs(&["release", "keep", &of_last("s")]);
    rig.zfs(&["release", "-r", "keep", "tank/t@s"]);
    let gone = ["no such tag on this dataset"];
    refused(&rig, &["release", "-r", "keep", "tank/t@s"], &gone);

    rig.zfs(&["clone", &of_last("s"), "tank/c"]);
    let cloned = ["dependent clones", "tank/c"];
    refused(&rig, &["destroy", "-r", "tank/t@s"], &cloned);
    refused(&rig, &["destroy", "-r", "tank/t"], &cloned);
    rig.zfs(&["destroy", "tank/c"]);

    rig.zfs(&["set", "zfs-fuse:protect=on", &last]);
    refused(&rig, &["destroy", "-r", "tank/t"], &["protect"]);
    rig.zfs(&["inherit", "zfs-fuse:protect", &last]);

    rig.zfs(&["destroy", "-r", "tank/t@s"]);
    assert_eq!(
        rig.zfs(&["list", "-H", "-o", "name", "-t", "snapshot"]),
        format!("{}\n", of_last("other"))
    );
    rig.zfs(&["destroy", "-r", "tank/t"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_thousand_file_systems_stay_when_the_last_one_is_in_use() {
    let Some((rig, last)) = thousand("whole-busy", false) else {
        return;
    };
    let place = rig.mnt().join("last");
    rig.zfs(&["set", &format!("mountpoint={}", place.display()), &last]);
    let mut sits = Command::new("sleep")
        .arg("600")
        .current_dir(&place)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    refused(&rig, &["destroy", "-r", "tank/t"], &["busy"]);
    refused(&rig, &["destroy", "-R", "tank/t"], &["busy"]);
    std::fs::write(place.join("file"), "still mounted").unwrap();
    sits.kill().unwrap();
    sits.wait().unwrap();
    rig.zfs(&["destroy", "-r", "tank/t"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_user_without_a_permission_at_the_last_one_changes_none() {
    let Some((rig, last)) = thousand("whole-user", true) else {
        return;
    };
    let what = "snapshot,destroy,mount,hold,release,rename,create,rollback";
    let user = NOBODY.to_string();
    rig.zfs(&["allow", "-l", "-u", &user, what, "tank/t"]);
    for tree in 0..TREES - 1 {
        let top = format!("tank/t/r{tree:02}");
        rig.zfs(&["allow", "-u", &user, what, &top]);
    }
    let denied = ["permission denied"];
    let nobody = Some(NOBODY);
    refused_as(&rig, nobody, &["snapshot", "-r", "tank/t@s"], &denied);
    rig.zfs(&["snapshot", "-r", "tank/t@s"]);
    for args in [
        &["rename", "-r", "tank/t@s", "other"][..],
        &["hold", "-r", "keep", "tank/t@s"],
        &["destroy", "-r", "tank/t@s"],
        &["destroy", "-r", "tank/t@%"],
        &["destroy", "-d", "-r", "tank/t@s"],
        &["destroy", "-r", "tank/t"],
        &["destroy", "-R", "tank/t"],
    ] {
        refused_as(&rig, nobody, args, &denied);
    }
    rig.zfs(&["hold", "-r", "keep", "tank/t@s"]);
    let release = ["release", "-r", "keep", "tank/t@s"];
    refused_as(&rig, nobody, &release, &denied);
    // With it, all of them at once.
    rig.zfs(&["allow", "-u", &user, what, "tank/t"]);
    rig.try_run_as(nobody, "zfs", &release).ok();
    rig.try_run_as(nobody, "zfs", &["destroy", "-r", "tank/t@s"])
        .ok();
    assert_eq!(rig.get("type", &last), "filesystem");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
