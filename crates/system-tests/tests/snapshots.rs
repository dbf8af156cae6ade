//! Snapshots, going back, clones, promotion, bookmarks and holds through the commands and a mount.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use system_tests::Rig;

/// A pool `tank` mounted in the rig's place for mounts.
fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    Some(Rig::new(name)?.with_tank(256 << 20))
}

fn list(rig: &Rig, kind: &str) -> Vec<String> {
    let out = rig.zfs(&["list", "-H", "-o", "name", "-r", "-t", kind, "tank"]);
    out.lines().map(str::to_string).collect()
}

fn value(rig: &Rig, property: &str, dataset: &str) -> String {
    let out = rig.zfs(&["get", "-H", "-p", "-o", "value", property, dataset]);
    out.trim().to_string()
}

fn refused(rig: &Rig, args: &[&str], word: &str) {
    let said = rig.try_run("zfs", args).fails(1);
    assert!(
        said.contains(word),
        "zfs {args:?} says {said:?}, nothing of {word:?}"
    );
}

fn in_snapshot(root: &Path, snap: &str, file: &str) -> Vec<u8> {
    let path = root.join(".zfs/snapshot").join(snap).join(file);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What `write` has returned for is in the snapshot, though nobody has synced it and the file is open.
#[test]
fn a_snapshot_has_what_was_written_before_it() {
    let Some((rig, mnt)) = tank("snap-written") else {
        return;
    };
    let mut open = fs::File::create(mnt.join("open")).unwrap();
    for n in 0..5u8 {
        let data = vec![n; 300_000];
        open.write_all(&data).unwrap();
        fs::write(mnt.join(format!("f{n}")), &data).unwrap();
        let name = format!("tank@{n}");
        rig.zfs(&["snapshot", &name]);
        open.write_all(b"after").unwrap();
        fs::write(mnt.join(format!("f{n}")), b"after").unwrap();
        let got = in_snapshot(&mnt, &n.to_string(), &format!("f{n}"));
        assert!(got == data, "f{n}: {} bytes", got.len());
        let len = in_snapshot(&mnt, &n.to_string(), "open").len();
        assert_eq!(len, (usize::from(n) + 1) * 300_000 + usize::from(n) * 5);
    }
    drop(open);
    assert_eq!(
        list(&rig, "snapshot"),
        ["tank@0", "tank@1", "tank@2", "tank@3", "tank@4"]
    );
    rig.zfs(&["destroy", "tank@1%3"]);
    assert_eq!(list(&rig, "snapshot"), ["tank@0", "tank@4"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn snapshots_of_one_command_are_made_together_or_not_at_all() {
    let Some((rig, _)) = tank("snap-together") else {
        return;
    };
    rig.zfs(&["create", "-p", "tank/a/b"]);
    rig.zfs(&["create", "tank/c"]);
    rig.zfs(&["snapshot", "-o", "com.x:y=z", "tank/a/b@one"]);
    assert_eq!(value(&rig, "com.x:y", "tank/a/b@one"), "z");
    let args = ["snapshot", "-r", "tank@one"];
    refused(
        &rig,
        &args,
        "cannot create snapshot 'tank/a/b@one': dataset already exists",
    );
    refused(&rig, &args, "no snapshots were created");
    assert_eq!(list(&rig, "snapshot"), ["tank/a/b@one"]);
    refused(
        &rig,
        &["snapshot", "tank@x", "tank@y"],
        "multiple snapshots",
    );
    let said = rig.try_run("zfs", &["snapshot", "tank/none@x"]).fails(2);
    assert!(said.contains("dataset does not exist"), "{said}");
    rig.zfs(&["snapshot", "-r", "tank@two"]);
    let all = [
        "tank@two",
        "tank/a@two",
        "tank/a/b@one",
        "tank/a/b@two",
        "tank/c@two",
    ];
    assert_eq!(list(&rig, "snapshot"), all);
    let txgs: Vec<String> = ["tank@two", "tank/a/b@two", "tank/c@two"]
        .iter()
        .map(|s| value(&rig, "createtxg", s))
        .collect();
    assert!(txgs.iter().all(|t| *t == txgs[0]), "{txgs:?}");
    rig.zfs(&["rename", "-r", "tank@two", "@three"]);
    assert_eq!(list(&rig, "snapshot").len(), 5);
    assert!(list(&rig, "snapshot").contains(&"tank/a/b@three".to_string()));
    // Limits bind those who could not change them.
    rig.zfs(&["set", "snapshot_limit=1", "tank/c"]);
    rig.zfs(&["snapshot", "tank/c@more"]);
    rig.zfs(&["destroy", "tank/c@more"]);
    rig.zfs(&["destroy", "-r", "tank@three"]);
    assert_eq!(list(&rig, "snapshot"), ["tank/a/b@one"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_file_system_goes_back_to_a_snapshot() {
    let Some((rig, mnt)) = tank("snap-back") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    let at = mnt.join("a");
    fs::write(at.join("kept"), "first").unwrap();
    rig.zfs(&["snapshot", "tank/a@1"]);
    fs::write(at.join("kept"), "second, longer").unwrap();
    fs::write(at.join("new"), vec![7; 2 << 20]).unwrap();
    rig.zfs(&["snapshot", "tank/a@2"]);
    rig.zfs(&["bookmark", "tank/a@2", "#mark"]);
    fs::write(at.join("newest"), "x").unwrap();
    rig.zfs(&["rollback", "tank/a@2"]);
    assert!(!at.join("newest").exists());
    assert_eq!(
        fs::read_to_string(at.join("kept")).unwrap(),
        "second, longer"
    );
    refused(
        &rig,
        &["rollback", "tank/a@1"],
        "more recent snapshots or bookmarks exist",
    );
    refused(&rig, &["rollback", "tank/a@1"], "tank/a#mark");
    rig.zfs(&["clone", "tank/a@2", "tank/clone"]);
    refused(&rig, &["rollback", "-r", "tank/a@1"], "use '-R'");
    assert!(at.join("new").exists());
    let before = list(&rig, "all");
    refused(&rig, &["rollback", "-R", "tank/a@none"], "does not exist");
    assert!(before.contains(&"tank/a@2".to_string()) && before.contains(&"tank/clone".to_string()));
    assert!(before.contains(&"tank/a#mark".to_string()), "{before:?}");
    // What is mounted inside stays, or comes back with its directory.
    rig.zfs(&["create", "tank/a/b"]);
    fs::write(at.join("b/f"), "of the child").unwrap();
    rig.zfs(&["rollback", "-R", "tank/a@1"]);
    assert_eq!(fs::read_to_string(at.join("kept")).unwrap(), "first");
    assert!(!at.join("new").exists());
    assert_eq!(list(&rig, "filesystem"), ["tank", "tank/a", "tank/a/b"]);
    assert_eq!(fs::read_to_string(at.join("b/f")).unwrap(), "of the child");
    assert_eq!(list(&rig, "snapshot,bookmark"), ["tank/a@1"]);
    fs::write(at.join("kept"), "after").unwrap();
    rig.zpool(&["sync", "tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    let dir = rig.disks();
    rig.zpool(&["import", "-d", dir.to_str().unwrap(), "tank"]);
    assert_eq!(fs::read_to_string(at.join("kept")).unwrap(), "after");
    rig.zpool(&["export", "tank"]);
}

#[test]
fn clones_live_are_promoted_and_outlive_what_they_came_from() {
    let Some((rig, mnt)) = tank("snap-clones") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    fs::write(mnt.join("a/f"), "origin").unwrap();
    rig.zfs(&["snapshot", "tank/a@1"]);
    rig.zfs(&["clone", "-p", "-o", "atime=off", "tank/a@1", "tank/x/c"]);
    assert_eq!(value(&rig, "origin", "tank/x/c"), "tank/a@1");
    assert_eq!(value(&rig, "atime", "tank/x/c"), "off");
    assert_eq!(value(&rig, "clones", "tank/a@1"), "tank/x/c");
    let clone = mnt.join("x/c");
    assert_eq!(fs::read_to_string(clone.join("f")).unwrap(), "origin");
    fs::write(clone.join("f"), "changed in the clone").unwrap();
    assert_eq!(fs::read_to_string(mnt.join("a/f")).unwrap(), "origin");
    refused(&rig, &["destroy", "tank/a@1"], "use '-R'");
    refused(&rig, &["promote", "tank/a"], "not a cloned filesystem");
    refused(
        &rig,
        &["clone", "tank/a@1", "tank/x/c"],
        "dataset already exists",
    );
    refused(
        &rig,
        &["clone", "-o", "utf8only=on", "tank/a@1", "tank/y"],
        "utf8only",
    );

    // A name that both have stands in the way; open files do not.
    rig.zfs(&["snapshot", "tank/x/c@1"]);
    refused(
        &rig,
        &["promote", "tank/x/c"],
        "conflicting snapshot '1' from parent 'tank/a@1'",
    );
    rig.zfs(&["rename", "tank/x/c@1", "own"]);
    let open = fs::File::open(mnt.join("a/f")).unwrap();
    rig.zfs(&["promote", "tank/x/c"]);
    assert_eq!(std::io::read_to_string(open).unwrap(), "origin");
    assert_eq!(list(&rig, "snapshot"), ["tank/x/c@1", "tank/x/c@own"]);
    assert_eq!(value(&rig, "origin", "tank/a"), "tank/x/c@1");
    assert_eq!(in_snapshot(&clone, "1", "f"), b"origin");
    rig.zfs(&["destroy", "tank/a"]);
    rig.zfs(&["destroy", "tank/x/c@1"]);
    assert_eq!(
        fs::read_to_string(clone.join("f")).unwrap(),
        "changed in the clone"
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn held_snapshots_stay_and_bookmarks_outlive_them() {
    let Some((rig, mnt)) = tank("snap-held") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    fs::write(mnt.join("a/f"), vec![1; 1 << 20]).unwrap();
    rig.zfs(&["snapshot", "-r", "tank@1"]);
    rig.zfs(&["hold", "-r", "keep", "tank@1"]);
    refused(&rig, &["hold", "keep", "tank/a@1"], "tag already exists");
    refused(&rig, &["hold", "", "tank/a@1"], "tag");
    rig.zfs(&["hold", "-r", "twice", "tank@1", "tank/a@1"]);
    rig.zfs(&["release", "-r", "twice", "tank@1", "tank/a@1"]);
    assert_eq!(value(&rig, "userrefs", "tank/a@1"), "1");
    refused(&rig, &["destroy", "tank/a@1"], "it's being held");
    let holds = rig.zfs(&["holds", "-H", "-r", "tank@1"]);
    assert_eq!(holds.lines().count(), 2, "{holds}");
    refused(&rig, &["release", "other", "tank/a@1"], "no such tag");
    rig.zfs(&["destroy", "-d", "tank/a@1"]);
    assert_eq!(value(&rig, "defer_destroy", "tank/a@1"), "on");
    rig.zfs(&["bookmark", "tank/a@1", "#b"]);
    rig.zfs(&["bookmark", "tank/a#b", "tank/a#copy"]);
    refused(&rig, &["bookmark", "tank/a@1", "#b"], "bookmark exists");
    refused(&rig, &["bookmark", "tank@1", "tank/a#c"], "not an ancestor");
    fs::remove_file(mnt.join("a/f")).unwrap();
    rig.zpool(&["sync", "tank"]);
    rig.zfs(&["release", "-r", "keep", "tank@1"]);
    assert_eq!(list(&rig, "snapshot"), ["tank@1"]);
    assert_eq!(list(&rig, "bookmark"), ["tank/a#b", "tank/a#copy"]);
    rig.zfs(&["destroy", "tank/a#copy"]);
    refused(&rig, &["destroy", "tank/a#copy"], "does not exist");
    assert_eq!(list(&rig, "bookmark"), ["tank/a#b"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn clones_get_their_version_quotas_and_reservation() {
    let Some((rig, mnt)) = tank("clone-props") else {
        return;
    };
    rig.sh("zfs create -o version=3 tank/old; zfs create tank/a");
    fs::write(mnt.join("old/f"), "of version 3").unwrap();
    rig.sh("zfs snapshot tank/old@1; zfs snapshot tank/a@1");
    rig.zfs(&["clone", "-o", "version=5", "tank/old@1", "tank/new"]);
    let versions = [
        value(&rig, "version", "tank/old"),
        value(&rig, "version", "tank/new"),
    ];
    assert_eq!(versions, ["3", "5"]);
    assert_eq!(
        fs::read_to_string(mnt.join("new/f")).unwrap(),
        "of version 3"
    );
    fs::write(mnt.join("new/f"), "of version 5").unwrap();
    rig.zfs(&["clone", "-o", "version=3", "tank/old@1", "tank/same"]);
    refused(
        &rig,
        &["clone", "-o", "version=2", "tank/old@1", "tank/z"],
        "Can not downgrade; already at version 3",
    );
    refused(
        &rig,
        &["clone", "-o", "userquota@7=1M", "tank/old@1", "tank/z"],
        "must be upgraded",
    );
    rig.sh(
        "zfs clone -o userquota@7=5M -o groupobjquota@8=9 -o projectquota@9=3M -o defaultuserquota=2M \
         tank/a@1 tank/q",
    );
    let quotas = "userquota@7,groupobjquota@8,projectquota@9,defaultuserquota";
    let of = |name: &str| rig.zfs(&["get", "-Hp", "-o", "value", quotas, name]);
    let want = "5242880\n9\n3145728\n2097152\n";
    assert_eq!(of("tank/q"), want);
    assert_ne!(of("tank/a"), want);
    assert!(!mnt.join("z").exists());

    rig.sh(
        "zfs create -s -V 16M tank/v; zfs create -V 16M tank/full; zfs snapshot tank/v@1
         zfs clone -o refreservation=auto tank/v@1 tank/w",
    );
    let full = value(&rig, "refreservation", "tank/full");
    assert_eq!(value(&rig, "refreservation", "tank/w"), full);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    let dir = rig.disks();
    rig.zpool(&["import", "-d", dir.to_str().unwrap(), "tank"]);
    assert_eq!(of("tank/q"), want);
    assert_eq!(
        fs::read_to_string(mnt.join("new/f")).unwrap(),
        "of version 5"
    );
    rig.zpool(&["export", "tank"]);
}

/// The clone of an encryption root takes the key over when it is promoted.
#[test]
fn a_promoted_clone_becomes_the_encryption_root() {
    let Some((rig, mnt)) = tank("snap-crypt") else {
        return;
    };
    let key = rig.disks().join("key");
    fs::write(&key, [7; 32]).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    rig.zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
        "tank/e",
    ]);
    rig.zfs(&["create", "tank/e/child"]);
    fs::write(mnt.join("e/f"), "secret").unwrap();
    fs::write(mnt.join("e/child/f"), "secret, too").unwrap();
    rig.zfs(&["snapshot", "tank/e@1"]);
    rig.zfs(&["clone", "tank/e@1", "tank/c"]);
    assert_eq!(fs::read_to_string(mnt.join("c/f")).unwrap(), "secret");
    fs::write(mnt.join("c/new"), "of the clone").unwrap();
    assert_eq!(value(&rig, "encryptionroot", "tank/c"), "tank/e");
    rig.zfs(&["promote", "tank/c"]);
    for ds in ["tank/c", "tank/e", "tank/e/child"] {
        assert_eq!(value(&rig, "encryptionroot", ds), "tank/c", "{ds}");
    }
    let file = format!("file://{}", key.display());
    assert_eq!(value(&rig, "keylocation", "tank/c"), file);
    assert_eq!(value(&rig, "keylocation", "tank/e"), "none");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    let dir = rig.disks();
    rig.zpool(&["import", "-l", "-d", dir.to_str().unwrap(), "tank"]);
    let read = |path: &str| fs::read_to_string(mnt.join(path)).unwrap();
    assert_eq!(read("c/new"), "of the clone");
    assert_eq!(read("e/f"), "secret");
    assert_eq!(read("e/child/f"), "secret, too");
    // A new key is the key of all that used the old one, wherever it lies.
    let other = rig.disks().join("other");
    fs::write(&other, [9; 32]).unwrap();
    let location = format!("keylocation=file://{}", other.display());
    rig.zfs(&["change-key", "-o", &location, "tank/c"]);
    fs::remove_file(&key).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-l", "-d", dir.to_str().unwrap(), "tank"]);
    assert_eq!(read("e/child/f"), "secret, too");
    assert_eq!(read("e/f"), "secret");
    rig.zfs(&["destroy", "-r", "tank/e"]);
    rig.zfs(&["destroy", "tank/c@1"]);
    assert_eq!(read("c/f"), "secret");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// `reclaim` of `zfs destroy -nvp`, bytes.
fn would_reclaim(rig: &Rig, name: &str) -> u64 {
    let out = rig.zfs(&["destroy", "-nvp", name]);
    let line = out.lines().find_map(|l| l.strip_prefix("reclaim\t"));
    line.and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{out}"))
}

fn number(rig: &Rig, property: &str, dataset: &str) -> u64 {
    value(rig, property, dataset).parse().unwrap_or_else(|e| {
        panic!(
            "{property} of {dataset}: {}: {e}",
            value(rig, property, dataset)
        )
    })
}

/// What a dry run says comes free comes free, to the byte; what is said to hold space adds up.
#[test]
fn space_is_explained_to_the_byte() {
    let Some((rig, mnt)) = tank("snap-space") else {
        return;
    };
    rig.zfs(&["create", "-o", "compression=off", "tank/a"]);
    let at = mnt.join("a");
    for n in 0..8u8 {
        // Each file lives through some snapshots and is gone in the next ones.
        fs::write(
            at.join(format!("f{n}")),
            vec![n; 200_000 + usize::from(n) * 50_000],
        )
        .unwrap();
        if n >= 3 {
            fs::remove_file(at.join(format!("f{}", n - 3))).unwrap();
        }
        let name = format!("tank/a@{n}");
        rig.zfs(&["snapshot", &name]);
        if n == 4 {
            rig.zfs(&["bookmark", &name, "#mark"]);
        }
    }
    fs::remove_file(at.join("f7")).unwrap();
    rig.zpool(&["sync", "tank"]);
    rig.zfs(&["hold", "keep", "tank/a@5"]);

    // Since a bookmark as since its snapshot, as long as that is there, and afterwards.
    let since = number(&rig, "written@4", "tank/a");
    assert!(since > 0);
    assert_eq!(number(&rig, "written#mark", "tank/a"), since);
    let at_six = number(&rig, "written@4", "tank/a@6");
    assert_eq!(number(&rig, "written#mark", "tank/a@6"), at_six);
    assert_eq!(value(&rig, "written#mark", "tank/a@3"), "-");
    // Of the same moment: OpenZFS gives none.
    assert_eq!(value(&rig, "written#mark", "tank/a@4"), "-");
    assert_eq!(value(&rig, "written#none", "tank/a"), "-");

    let lines = rig.zfs(&["space", "-Hp", "tank/a"]);
    let rows: Vec<Vec<&str>> = lines.lines().map(|l| l.split('\t').collect()).collect();
    assert_eq!(rows.len(), 9, "{lines}");
    let head: Vec<u64> = rows[0][1..].iter().map(|n| n.parse().unwrap()).collect();
    assert_eq!(head[0], head[1] + head[2] + head[4] + head[5], "{lines}");
    assert_eq!(head[2], number(&rig, "usedbysnapshots", "tank/a"));
    assert_eq!(rows[6][2], "-");
    assert_eq!(rows[6][5], "hold keep");
    let first_run: u64 = rows[5][2].parse().unwrap();
    assert_eq!(first_run, would_reclaim(&rig, "tank/a@%4"));
    let second_run: u64 = rows[8][2].parse().unwrap();
    assert_eq!(second_run, would_reclaim(&rig, "tank/a@6%"));
    assert_eq!(head[3], head[2] - first_run - second_run, "{lines}");

    refused(
        &rig,
        &["destroy", "tank/a@6%5"],
        "could not find any snapshots",
    );
    for spec in ["tank/a@3", "tank/a@1%2,6", "tank/a@%4", "tank/a@7"] {
        let before = number(&rig, "used", "tank/a");
        let said = would_reclaim(&rig, spec);
        rig.zfs(&["destroy", spec]);
        assert_eq!(before - number(&rig, "used", "tank/a"), said, "{spec}");
    }
    assert_eq!(number(&rig, "written#mark", "tank/a"), since);
    rig.zfs(&["release", "keep", "tank/a@5"]);
    let said = would_reclaim(&rig, "tank/a@%");
    assert_eq!(said, number(&rig, "usedbysnapshots", "tank/a"));
    rig.zfs(&["destroy", "tank/a@%"]);
    assert_eq!(number(&rig, "usedbysnapshots", "tank/a"), 0);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn what_is_protected_is_neither_destroyed_nor_rolled_back() {
    let Some((rig, mnt)) = tank("snap-protect") else {
        return;
    };
    rig.zfs(&["create", "-p", "tank/home/a"]);
    rig.zfs(&["create", "tank/other"]);
    rig.zfs(&["snapshot", "-r", "tank@1"]);
    fs::write(mnt.join("home/a/f"), "later").unwrap();
    rig.zfs(&["snapshot", "-r", "tank@2"]);
    rig.zfs(&["set", "zfs-fuse:protect=on", "tank/home"]);
    let word = "protected by property 'zfs-fuse:protect'";
    for args in [
        ["destroy", "tank/home/a@1"].as_slice(),
        &["destroy", "-r", "tank@1"],
        &["destroy", "-r", "tank/home"],
        &["destroy", "-d", "tank/home/a@%"],
        &["rollback", "tank/home/a@2"],
        &["rollback", "-r", "tank/home/a@1"],
    ] {
        refused(&rig, args, word);
        refused(&rig, args, "tank/home");
    }
    // Nothing of a request is done that is refused for one of many.
    assert_eq!(list(&rig, "snapshot").len(), 8);
    rig.zfs(&["destroy", "tank/other@1"]);
    // A snapshot of its own mind, either way.
    rig.zfs(&["set", "zfs-fuse:protect=off", "tank/home/a@1"]);
    rig.zfs(&["destroy", "tank/home/a@1"]);
    rig.zfs(&["set", "zfs-fuse:protect=on", "tank/other@2"]);
    refused(&rig, &["destroy", "-r", "tank/other"], "tank/other@2");
    rig.zfs(&["rollback", "--protected", "tank/home/a@2"]);
    rig.zfs(&["destroy", "-r", "--protected", "tank/home"]);
    rig.zfs(&["destroy", "--yes", "-r", "--protected", "tank/other"]);
    assert_eq!(list(&rig, "all"), ["tank", "tank@1", "tank@2"]);
    rig.zpool(&["export", "tank"]);
}

/// Snapshots are made, renamed and destroyed by mkdir, rename and rmdir, and seen at once.
#[test]
fn the_directory_of_snapshots_is_a_way_to_change_them() {
    let Some((rig, mnt)) = tank("snap-dir") else {
        return;
    };
    fs::write(mnt.join("f"), "one").unwrap();
    let dir = mnt.join(".zfs/snapshot");
    assert!(!dir.join("new").exists());
    rig.zfs(&["snapshot", "tank@new"]);
    assert_eq!(fs::read_to_string(dir.join("new/f")).unwrap(), "one");
    rig.zfs(&["rename", "tank@new", "old"]);
    assert!(!dir.join("new").exists() && dir.join("old/f").exists());

    let mut open = fs::File::create(mnt.join("open")).unwrap();
    open.write_all(&[7; 300_000]).unwrap();
    fs::create_dir(dir.join("made")).unwrap();
    assert_eq!(fs::read(dir.join("made/open")).unwrap(), [7; 300_000]);
    assert_eq!(list(&rig, "snapshot"), ["tank@old", "tank@made"]);
    let errno = |r: std::io::Result<()>| r.unwrap_err().raw_os_error();
    assert_eq!(errno(fs::create_dir(dir.join("made"))), Some(17));
    fs::rename(dir.join("made"), dir.join("renamed")).unwrap();
    assert_eq!(list(&rig, "snapshot"), ["tank@old", "tank@renamed"]);
    assert_eq!(errno(fs::rename(dir.join("old"), mnt.join("x"))), Some(18));

    // A process stands in what goes.
    let inside = fs::File::open(dir.join("old/f")).unwrap();
    let mut standing = std::process::Command::new("sleep")
        .arg("100")
        .current_dir(dir.join("old"))
        .spawn()
        .unwrap();
    fs::remove_dir(dir.join("old")).unwrap();
    assert_eq!(list(&rig, "snapshot"), ["tank@renamed"]);
    assert!(!dir.join("old").exists());
    let names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["renamed"]);
    let cwd = format!("/proc/{}/cwd/f", standing.id());
    assert!(fs::read(cwd).is_err());
    standing.kill().unwrap();
    standing.wait().unwrap();
    drop(inside);
    rig.zfs(&["hold", "keep", "tank@renamed"]);
    assert_eq!(errno(fs::remove_dir(dir.join("renamed"))), Some(16));
    rig.zfs(&["release", "keep", "tank@renamed"]);
    rig.zfs(&["set", "zfs-fuse:protect=on", "tank"]);
    assert_eq!(errno(fs::remove_dir(dir.join("renamed"))), Some(1));
    rig.zfs(&["set", "snapdir=disabled", "tank"]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert!(!mnt.join(".zfs").exists());
    drop(open);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The time of `.zfs/snapshot` is that of the last snapshot made or destroyed, whatever the kernel has seen before.
#[test]
fn the_directory_of_snapshots_shows_when_they_changed() {
    let Some((rig, mnt)) = tank("snap-time") else {
        return;
    };
    let time = || {
        let dir = fs::metadata(mnt.join(".zfs/snapshot")).unwrap();
        std::os::unix::fs::MetadataExt::mtime(&dir)
    };
    let told = || {
        let said = rig.zfs(&["get", "-Hp", "-o", "value", "snapshots_changed", "tank"]);
        said.trim().parse::<i64>().unwrap()
    };
    assert_eq!(time(), 0);
    rig.zfs(&["snapshot", "tank@1"]);
    let first = time();
    assert_eq!(first, told());
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(time(), first);
    rig.zfs(&["destroy", "tank@1"]);
    assert_eq!(time(), told());
    assert_ne!(time(), first);
}

/// What is younger than the snapshot is destroyed of the file system itself. Its descendants keep their snapshots, whatever
/// their names and holds.
#[test]
fn a_rollback_leaves_the_snapshots_of_descendants_alone() {
    let Some((mut rig, _)) = tank("rollback-below") else {
        return;
    };
    rig.sh("zfs create tank/a; zfs create tank/a/b; zfs create tank/b
         zfs snapshot -r tank@one; zfs snapshot -r tank@two; zfs hold keep tank/a/b@two
         zfs clone tank/a@two tank/b/of-child; zfs clone tank@two tank/b/clone
         zfs snapshot tank/b/clone@own; zfs create tank/b/clone/child");
    let before = list(&rig, "all");
    refused(
        &rig,
        &["rollback", "-r", "tank@one"],
        "use '-R' to force deletion of the following clones and dependents:\ntank/b/clone",
    );
    assert_eq!(list(&rig, "all"), before);
    rig.zfs(&["rollback", "-R", "tank@one"]);
    let gone = |n: &&String| *n == "tank@two" || n.starts_with("tank/b/clone");
    let kept: Vec<String> = before.iter().filter(|n| !gone(n)).cloned().collect();
    assert_eq!(list(&rig, "all"), kept);
    // The file system lies below a clone that would have to go.
    rig.sh("zfs snapshot tank/a@three; zfs clone tank/a@three tank/c; zfs rename tank/a tank/c/a");
    let before = list(&rig, "all");
    refused(
        &rig,
        &["rollback", "-R", "tank/c/a@two"],
        "cannot determine dependent datasets: recursive dependency at 'tank/c/a@three'",
    );
    assert_eq!(list(&rig, "all"), before);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

/// Clones go only with `-R`, wherever they lie. What cannot be brought into an order is refused before
/// anything is destroyed.
#[test]
fn snapshots_take_clones_along_only_if_told_to() {
    let Some((mut rig, mnt)) = tank("clones-stay") else {
        return;
    };
    rig.sh(
        "zfs snapshot tank@a; zfs clone tank@a tank/c; zfs create tank/f
         zfs snapshot tank/f@a; zfs clone tank/f@a tank/f/k",
    );
    fs::write(mnt.join("c/file"), "text").unwrap();
    let before = list(&rig, "all");
    // Below the file system of the snapshot.
    for how in [["destroy", "-v"], ["destroy", "-r"], ["destroy", "-n"]] {
        let args = [how[0], how[1], "tank@a"];
        refused(&rig, &args, "snapshot has dependent clones");
        refused(&rig, &args, "\ntank/c");
        let args = [how[0], how[1], "tank/f@%"];
        refused(&rig, &args, "\ntank/f/k");
    }
    assert_eq!(list(&rig, "all"), before);
    rig.zfs(&["destroy", "-d", "tank@a"]);
    assert_eq!(list(&rig, "all"), before);
    assert_eq!(value(&rig, "defer_destroy", "tank@a"), "on");
    assert_eq!(fs::read(mnt.join("c/file")).unwrap(), b"text");
    // The file system itself takes along what is below it.
    rig.zfs(&["destroy", "-r", "tank/f"]);
    // The last clone takes the snapshot along that waited for it.
    rig.zfs(&["destroy", "tank/c"]);
    assert_eq!(list(&rig, "all"), ["tank"]);
    // That is no reason to leave the rest, if all of it is to be destroyed.
    let deferred = "zfs create tank/d; zfs snapshot tank/d@s; zfs clone tank/d@s tank/d/c; zfs destroy -d tank/d@s";
    for (how, left) in [
        (["destroy", "-R", "tank/d@s"], vec!["tank", "tank/d"]),
        (["destroy", "-r", "tank/d"], vec!["tank"]),
        (["destroy", "-R", "tank/d"], vec!["tank"]),
    ] {
        rig.sh(deferred);
        rig.zfs(&how);
        assert_eq!(list(&rig, "all"), left, "{how:?}");
        rig.try_run("zfs", &["destroy", "tank/d"]);
    }

    // A clone above its own origin.
    rig.sh(
        "zfs create tank/e; zfs snapshot tank/e@a; zfs clone tank/e@a tank/e/c
         zfs snapshot tank/e/c@b; zfs promote tank/e/c",
    );
    let before = list(&rig, "all");
    for (args, at) in [
        (["destroy", "-R", "tank/e"], "tank/e"),
        (["destroy", "-r", "tank/e"], "tank/e"),
        (["destroy", "-nR", "tank/e"], "tank/e"),
        (["destroy", "-R", "tank/e/c@a"], "tank/e/c@a"),
        (["destroy", "-R", "tank/e/c"], "tank/e/c"),
    ] {
        let said = format!("cannot determine dependent datasets: recursive dependency at '{at}'\n");
        refused(&rig, &args, &said);
    }
    assert_eq!(list(&rig, "all"), before);
    rig.sh("zfs promote tank/e; zfs destroy -r tank/e");
    assert_eq!(list(&rig, "all"), ["tank"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

/// System calls that make snapshots wait for the command that unmounts their file system, which waits for them.
#[test]
fn a_forced_export_does_not_wait_for_snapshots_made_by_mkdir() {
    let Some((mut rig, mnt)) = tank("mkdir-export") else {
        return;
    };
    let dir = mnt.join(".zfs/snapshot");
    for round in 0..5 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for n in 0..6 {
                let (dir, stop) = (&dir, &stop);
                s.spawn(move || {
                    let name = dir.join(format!("s{round}-{n}"));
                    while !stop.load(Ordering::Relaxed) {
                        let _ = fs::create_dir(&name);
                        let _ = fs::remove_dir(&name);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            let ended = rig.soon(Duration::from_secs(45), "zpool", &["export", "-f", "tank"]);
            stop.store(true, Ordering::Relaxed);
            ended.ok();
        });
        let disks = rig.disks();
        rig.zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
        let left = list(&rig, "snapshot");
        assert!(left.len() <= 6 * (round + 1), "{left:?}");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

/// Only what the key opened is closed: an open file of a snapshot of another file system stays what it is.
#[test]
fn unloading_a_key_leaves_snapshots_of_others_open() {
    let Some((rig, mnt)) = tank("snap-unload") else {
        return;
    };
    let key = rig.disks().join("key");
    fs::write(&key, [7; 32]).unwrap();
    let key = key.display();
    rig.sh(&format!(
        "zfs create tank/plain
         zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{key} tank/secret"
    ));
    for fs_name in ["plain", "secret"] {
        fs::write(mnt.join(fs_name).join("f"), vec![5; 400_000]).unwrap();
    }
    rig.zfs(&["snapshot", "-r", "tank@s"]);
    let of = |fs_name: &str| mnt.join(fs_name).join(".zfs/snapshot/s/f");
    assert_eq!(fs::read(of("secret")).unwrap().len(), 400_000);
    rig.zfs(&["unmount", "tank/secret"]);
    let open = fs::File::open(of("plain")).unwrap();
    let before = open.metadata().unwrap();
    rig.zfs(&["unload-key", "tank/secret"]);
    let mut data = vec![0; 400_000];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut data, 0).unwrap();
    assert!(data.iter().all(|b| *b == 5));
    let after = fs::metadata(of("plain")).unwrap();
    let id = |m: &fs::Metadata| (m.dev(), m.ino());
    assert_eq!(id(&before), id(&after));
    drop(open);
    rig.zpool(&["export", "tank"]);
}
