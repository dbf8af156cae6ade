//! What snapshots, clones, rollbacks and comparisons refuse: in OpenZFS's words, with its exit codes, and without anything being
//! half done.

use std::fs;
use std::path::PathBuf;
use system_tests::Rig;

/// A pool `tank` of so many MiB, mounted in the rig's place for mounts.
fn tank(name: &str, mib: u64) -> Option<(Rig, PathBuf)> {
    Some(Rig::new(name)?.with_tank(mib << 20))
}

/// Everything there is, with what a half-done change would leave behind.
fn all(rig: &Rig) -> String {
    let columns = "name,guid,userrefs,defer_destroy,origin";
    rig.zfs(&["list", "-H", "-p", "-t", "all", "-o", columns, "-r", "tank"])
}

/// The command fails with this exit code, says each of these, and changes nothing.
fn refused(rig: &Rig, args: &[&str], code: i32, words: &[&str]) {
    let before = all(rig);
    let said = rig.try_run("zfs", args).fails(code);
    for word in words {
        assert!(
            said.contains(word),
            "zfs {args:?} says {said:?}, nothing of {word:?}"
        );
    }
    assert_eq!(all(rig), before, "after zfs {args:?}");
}

#[test]
fn names_that_exist_are_too_long_or_not_allowed() {
    let Some((rig, _)) = tank("bad-names", 128) else {
        return;
    };
    rig.sh(
        "zfs create tank/a; zfs snapshot tank/a@s; zfs bookmark tank/a@s '#b'
         zfs snapshot tank/a@other; zfs clone tank/a@s tank/c",
    );
    let exists = ["dataset already exists"];
    refused(&rig, &["snapshot", "tank/a@s"], 1, &exists);
    refused(&rig, &["snapshot", "tank/a@new", "tank/a@s"], 1, &[]);
    refused(&rig, &["snapshot", "-r", "tank@s"], 1, &exists);
    refused(&rig, &["clone", "tank/a@s", "tank/c"], 1, &exists);
    refused(&rig, &["rename", "tank/a@s", "other"], 1, &["exists"]);
    refused(
        &rig,
        &["bookmark", "tank/a@s", "#b"],
        1,
        &["bookmark exists"],
    );
    // 256 bytes in one part, and in all of them together.
    let part = "x".repeat(256);
    let rest = "x".repeat(252);
    for long in [&part, &rest] {
        let snap = format!("tank/a@{long}");
        refused(&rig, &["snapshot", &snap], 1, &["too long"]);
        refused(&rig, &["rename", "tank/a@s", &snap], 1, &["too long"]);
        refused(
            &rig,
            &["clone", "tank/a@s", &format!("tank/{long}")],
            1,
            &["too long"],
        );
        refused(
            &rig,
            &["bookmark", "tank/a@s", &format!("#{long}")],
            1,
            &["too long"],
        );
    }
    for bad in [
        "tank/a@",
        "tank/a@x@y",
        "tank/a@x/y",
        "tank/a@x y z*",
        "tank/a@x%y",
    ] {
        refused(&rig, &["snapshot", bad], 1, &[]);
        refused(&rig, &["rename", "tank/a@s", bad], 1, &[]);
    }
    for bad in ["tank/", "tank//x", "tank/x*", "tank/%x", "tank/.."] {
        refused(&rig, &["clone", "tank/a@s", bad], 1, &[]);
    }
    for none in [
        &["rollback", "tank/a@none"][..],
        &["clone", "tank/a@none", "tank/d"],
        &["promote", "tank/none"],
        &["hold", "tag", "tank/a@none"],
        &["destroy", "tank/none"],
        &["diff", "tank/a@none", "tank/a"],
    ] {
        refused(&rig, none, 1, &["does not exist"]);
    }
    for (none, subject) in [
        (&["snapshot", "tank/none@x"][..], "tank/none"),
        (&["bookmark", "tank/a@none", "#n"], "tank/a@none"),
    ] {
        let missing = format!("cannot open '{subject}': dataset does not exist");
        refused(&rig, none, 2, &[&missing, "usage:"]);
    }
    // What is missing or too much is a mistake in the command itself.
    for usage in [
        &["snapshot"][..],
        &["rollback"],
        &["clone", "tank/a@s"],
        &["promote"],
        &["bookmark", "tank/a@s"],
        &["hold", "tag"],
        &["rename", "tank/a@s"],
        &["diff"],
    ] {
        refused(&rig, usage, 2, &["usage:"]);
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The first rule of names that is broken is told, about the object that OpenZFS names.
#[test]
fn bad_names_are_refused_in_openzfs_words() {
    let Some((rig, _)) = tank("bad-words", 128) else {
        return;
    };
    rig.sh(
        "zfs create tank/a; zfs create tank/a/b; zfs create tank/n; zfs snapshot tank/a@s
         zfs snapshot tank/a@other; zfs bookmark tank/a@s '#b'; zfs create -s -V 8M tank/v
         zfs snapshot tank/v@s",
    );
    let empty = "empty component or misplaced '@' or '#' delimiter in name";
    let no_at = "missing '@' delimiter in snapshot name";
    let at = "snapshot delimiter '@' is not expected here";
    let hash = "bookmark delimiter '#' is not expected here";
    let none = "dataset does not exist";
    let nothing = "could not find any snapshots to destroy; check snapshot names.";
    let words = |line: &str, code: i32, says: &str| {
        let args: Vec<&str> = line.split(' ').collect();
        let first = rig.try_run("zfs", &args).fails(code);
        assert_eq!(first.lines().next(), Some(says), "zfs {line}");
    };
    let before = all(&rig);
    for (line, code, says) in [
        ("snapshot tank/a@x/y", 1, "cannot create snapshot 'tank/a@x/y': trailing slash in name"),
        ("snapshot tank/a@x%y", 1, "cannot create snapshot 'tank/a@x%y': invalid character % in name"),
        ("snapshot tank//a@x", 2, &format!("cannot open 'tank//a': {empty}")),
        ("snapshot /tank/a@x", 2, "cannot open '/tank/a': leading slash in name"),
        ("snapshot tank/%x@y", 2, &format!("cannot open 'tank/%x': {none}")),
        ("snapshot 1t/a@x", 2, &format!("cannot open '1t/a': {none}")),
        ("bookmark tank/a@s tank/a@x", 2, "invalid bookmark name 'tank/a@x': must contain a '#'"),
        ("bookmark tank/a tank/a#x", 2, "invalid source name 'tank/a': must contain a '@' or '#'"),
        ("bookmark #b #c", 2, "either source or bookmark must be specified as full dataset paths"),
        ("destroy tank/a@", 1, nothing),
        ("destroy tank//a@x", 1, &format!("cannot open 'tank//a': {empty}")),
        ("destroy none/x@y", 1, &format!("cannot open 'none/x': {none}")),
        ("destroy -d tank/a", 1, &format!("cannot open 'tank/a': {no_at}")),
        ("destroy #b", 1, "bookmark '#b' does not exist."),
        ("destroy tank/a#b,c", 1, "bookmark 'tank/a#b,c' does not exist."),
        ("destroy -r tank/a#b", 1, "recursive is not supported with bookmark"),
        ("destroy -d tank/a#b", 1, "defer destroy is not supported with bookmark"),
        ("destroy tank/v", 1, "cannot destroy 'tank/v': volume has children"),
        ("rollback tank/a", 1, &format!("cannot open 'tank/a': {no_at}")),
        ("rollback tank/a#b", 1, &format!("cannot open 'tank/a#b': {no_at}")),
        ("rollback tank/none@s", 1, &format!("cannot open 'tank/none@s': {none}")),
        ("clone tank/a@s tank", 1, "cannot create 'tank': missing dataset name"),
        ("clone tank/a@s tank/a@x@y", 1, &format!("cannot create 'tank/a@x@y': {at}")),
        ("clone tank/a#b tank/c", 1, &format!("cannot open 'tank/a#b': {no_at}")),
        ("promote /tank/a@x", 1, &format!("cannot open '/tank/a@x': {at}")),
        ("rename tank/n tank/", 1, "cannot rename to 'tank/': trailing slash in name"),
        ("rename tank/n tank/a@x", 1, &format!("cannot rename to 'tank/a@x': {at}")),
        ("rename tank/n tank/none/x", 1, "cannot create 'tank/none/x': parent does not exist"),
        ("rename tank/n tank", 1, "cannot create 'tank': missing dataset name"),
        ("rename tank/a@s tank/n@s/t", 1, "cannot rename to 'tank/n@s/t': snapshots must be part of same dataset"),
        ("clone -o a:b tank/a@s tank/c", 1, "missing '=' for property=value argument 'a:b'"),
        ("rename tank/none tank/#c", 1, &format!("cannot open 'tank/none': {none}")),
        ("rename tank/n none/x", 1, "cannot rename to 'none/x': datasets must be within same pool"),
        ("rename none/x tank/x", 1, &format!("cannot open 'none/x': {none}")),
        ("rename tank/a@s tank/n@s", 1, "cannot rename to 'tank/n@s': snapshots must be part of same dataset"),
        ("rename tank/a tank/a/x", 1, "cannot rename to 'tank/a/x': New dataset name cannot be a descendant of current dataset name"),
        ("rename -p tank/a@s tank/a@t", 1, &format!("cannot open 'tank/a@s': {at}")),
        ("rename tank/a#b tank/a#c", 1, &format!("cannot open 'tank/a#b': {hash}")),
        ("hold tag tank/a", 1, "'tank/a' is not a snapshot"),
        ("hold tag tank/a#b", 1, "'tank/a#b' is not a snapshot"),
        ("hold tag tank/a@x,", 1, &format!("cannot hold snapshot 'tank/a@x,': {none}")),
        ("hold tag tank//a@x", 1, &format!("cannot open 'tank//a': {empty}")),
        ("hold .x tank/a@s", 2, "tag may not start with '.'"),
        ("release tag tank/a", 1, "'tank/a' is not a snapshot"),
        ("holds tank/a", 1, "'tank/a' is not a snapshot"),
    ] {
        words(line, code, says);
    }
    // A file system that gets the name it has.
    rig.zfs(&["rename", "tank/a", "tank/a"]);
    assert_eq!(all(&rig), before);
    let said = rig.zfs(&["holds", "tank/a@other"]);
    assert_eq!(said, "NAME          TAG  TIMESTAMP\n");
    rig.zpool(&["export", "tank"]);
}

/// Of several operands the good ones are held, and what is named twice is made once.
#[test]
fn operands_that_are_refused_do_not_keep_others_from_being_held() {
    let Some((rig, _)) = tank("bad-operands", 128) else {
        return;
    };
    rig.sh("zfs create -p tank/a/b; zfs snapshot tank/a@1 tank/a@1");
    rig.zfs(&["snapshot", "-r", "tank/a@2", "tank/a/b@2"]);
    let list = ["list", "-H", "-o", "name", "-t", "snapshot", "-r", "tank"];
    assert_eq!(rig.zfs(&list), "tank/a@1\ntank/a@2\ntank/a/b@2\n");
    let args = ["hold", "k", "tank/a@1", "tank/a@none", "tank/a", "tank/a@2"];
    let said = rig.try_run("zfs", &args).fails(1);
    for words in [
        "cannot hold snapshot 'tank/a@none': dataset does not exist",
        "'tank/a' is not a snapshot",
    ] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(rig.get("userrefs", "tank/a@1"), "1");
    assert_eq!(rig.get("userrefs", "tank/a@2"), "1");
    // All of one operand, or none of it.
    let said = rig
        .try_run("zfs", &["hold", "-r", "k", "tank/a@2"])
        .fails(1);
    let words = "cannot hold snapshot 'tank/a@2': tag already exists on this dataset\n";
    assert_eq!(said, words);
    assert_eq!(rig.get("userrefs", "tank/a/b@2"), "0");
    // Each snapshot that is held is named.
    rig.zfs(&["hold", "k", "tank/a/b@2"]);
    let said = rig.try_run("zfs", &["destroy", "-r", "tank/a"]).fails(1);
    for name in ["tank/a@1", "tank/a@2", "tank/a/b@2"] {
        let line = format!(
            "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see holders."
        );
        assert!(said.lines().any(|l| l == line), "{said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");
    rig.sh("zfs release k tank/a@1 tank/a@2 tank/a/b@2; zfs destroy -r tank/a");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// Everything that would go along is named, in the order in which it would go: clones of clones, too.
#[test]
fn what_depends_on_clones_is_named() {
    let Some((rig, _)) = tank("bad-dependents", 128) else {
        return;
    };
    rig.sh(
        "zfs create tank/a; zfs snapshot tank/a@1; zfs snapshot tank/a@2; zfs clone tank/a@2 tank/c
         zfs snapshot tank/c@x; zfs clone tank/c@x tank/d; zfs clone tank/a@2 tank/e",
    );
    let all = "tank/d\ntank/c@x\ntank/c\ntank/e\n";
    let destroy = "use '-R' to destroy the following datasets:\n";
    let roll = "use '-R' to force deletion of the following clones and dependents:\n";
    for (line, text) in [
        (
            "destroy tank/a@2",
            format!("cannot destroy 'tank/a@2': snapshot has dependent clones\n{destroy}"),
        ),
        (
            "destroy tank/a@1%2",
            format!("cannot destroy 'tank/a@2': snapshot has dependent clones\n{destroy}"),
        ),
        (
            "destroy -r tank/a",
            format!("cannot destroy 'tank/a': filesystem has dependent clones\n{destroy}"),
        ),
        (
            "rollback -r tank/a@1",
            format!("cannot rollback to 'tank/a@1': clones of previous snapshots exist\n{roll}"),
        ),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let said = rig.try_run("zfs", &args).fails(1);
        assert_eq!(said, format!("{text}{all}"), "zfs {line}");
    }
    rig.sh("zfs destroy -R tank/a@1%2");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn snapshots_that_are_held_or_have_clones_stay() {
    let Some((rig, mnt)) = tank("bad-needed", 128) else {
        return;
    };
    rig.sh(
        "zfs create tank/a; zfs snapshot tank/a@1; zfs snapshot tank/a@2; zfs snapshot tank/a@3",
    );
    rig.sh("zfs clone tank/a@2 tank/c; zfs hold keep tank/a@3");
    fs::write(mnt.join("c/file"), "of the clone").unwrap();
    let clones = ["snapshot has dependent clones", "tank/c"];
    let held = ["it's being held"];
    refused(&rig, &["destroy", "tank/a@2"], 1, &clones);
    refused(&rig, &["destroy", "tank/a@1%2"], 1, &clones);
    refused(&rig, &["destroy", "tank/a@1,2"], 1, &clones);
    refused(&rig, &["destroy", "tank/a@3"], 1, &held);
    refused(&rig, &["destroy", "tank/a@3%"], 1, &held);
    refused(&rig, &["destroy", "-R", "tank/a@1%3"], 1, &held);
    refused(&rig, &["destroy", "-R", "tank/a"], 1, &held);
    refused(&rig, &["destroy", "-r", "tank/a"], 1, &["tank/c"]);
    refused(&rig, &["rollback", "-R", "tank/a@1"], 1, &["held"]);
    refused(&rig, &["rollback", "-r", "tank/a@1"], 1, &["tank/c"]);
    refused(
        &rig,
        &["rollback", "tank/a@1"],
        1,
        &["more recent snapshots"],
    );
    assert_eq!(
        fs::read_to_string(mnt.join("c/file")).unwrap(),
        "of the clone"
    );
    rig.sh("zfs release keep tank/a@3; zfs destroy -R tank/a");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn ranges_that_are_empty_or_backwards_destroy_nothing() {
    let Some((rig, _)) = tank("bad-ranges", 128) else {
        return;
    };
    rig.sh("zfs create tank/a; zfs create tank/b");
    rig.sh("zfs snapshot tank/a@1; zfs snapshot tank/a@2; zfs snapshot tank/a@3");
    let nothing = ["could not find any snapshots to destroy; check snapshot names."];
    refused(&rig, &["destroy", "tank/a@3%1"], 1, &nothing);
    refused(&rig, &["destroy", "-n", "tank/a@3%1"], 1, &nothing);
    refused(&rig, &["destroy", "tank/a@none"], 1, &nothing);
    refused(&rig, &["destroy", "tank/b@%"], 1, &nothing);
    refused(&rig, &["destroy", "tank/a@1%none"], 1, &nothing);
    refused(&rig, &["destroy", "tank/a@none%3"], 1, &nothing);
    let before = all(&rig);
    let would = rig.zfs(&["destroy", "-nvp", "tank/a@%"]);
    assert!(
        would.starts_with("destroy\ttank/a@1\ndestroy\ttank/a@2\n"),
        "{would}"
    );
    assert_eq!(all(&rig), before);
    // One and the same end, twice the same name, and names that overlap ranges.
    rig.zfs(&["destroy", "tank/a@2%2,2"]);
    rig.zfs(&["destroy", "tank/a@1%3,%1,3"]);
    assert_eq!(rig.zfs(&["list", "-H", "-t", "snapshot", "-r", "tank"]), "");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn strangers_are_not_compared() {
    let Some((rig, _)) = tank("bad-diff", 128) else {
        return;
    };
    rig.sh(
        "zfs create tank/a; zfs create tank/b; zfs snapshot -r tank@1; zfs snapshot -r tank@2
         zfs clone tank/a@2 tank/c; zfs snapshot tank/c@3",
    );
    let stranger = ["Not an earlier snapshot from the same fs"];
    for (from, to) in [
        ("tank/a@1", "tank/b@2"),
        ("tank/a@1", "tank/b"),
        ("tank/a@2", "tank/a@1"),
        ("tank/a@1", "tank/a@1"),
        ("tank/c@3", "tank/a"),
        ("tank/c@3", "tank/a@2"),
        ("tank@1", "tank/a"),
    ] {
        refused(&rig, &["diff", from, to], 1, &stranger);
    }
    rig.zfs(&["diff", "tank/a@1", "tank/c"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn read_only_pools_refuse_every_change() {
    let Some((rig, _)) = tank("bad-readonly", 128) else {
        return;
    };
    rig.sh(
        "zfs create tank/a; zfs snapshot tank/a@1; zfs snapshot tank/a@2; zfs clone tank/a@1 tank/c
         zfs bookmark tank/a@1 '#b'; zfs hold keep tank/a@2",
    );
    rig.zpool(&["export", "tank"]);
    let dir = rig.disks();
    let dir = dir.to_str().unwrap();
    rig.zpool(&["import", "-o", "readonly=on", "-d", dir, "tank"]);
    for args in [
        &["snapshot", "tank/a@3"][..],
        &["snapshot", "-r", "tank@3"],
        &["rollback", "tank/a@2"],
        &["rollback", "-r", "tank/a@1"],
        &["clone", "tank/a@1", "tank/d"],
        &["promote", "tank/c"],
        &["rename", "tank/a@1", "x"],
        &["rename", "-r", "tank@1", "x"],
        &["destroy", "tank/a@2"],
        &["destroy", "-d", "tank/a@2"],
        &["destroy", "tank/a@%"],
        &["destroy", "-R", "tank/a"],
        &["destroy", "tank/a#b"],
        &["bookmark", "tank/a@1", "#c"],
        &["hold", "x", "tank/a@1"],
        &["release", "keep", "tank/a@2"],
    ] {
        refused(&rig, args, 1, &["read-only"]);
    }
    for (args, words) in [
        (["hold", "x", "tank/a@1"], "cannot hold: pool is read-only"),
        (
            ["release", "keep", "tank/a@2"],
            "cannot release: pool is read-only",
        ),
    ] {
        refused(&rig, &args, 1, &[words]);
    }
    rig.zpool(&["export", "tank"]);
}

#[test]
fn without_its_key_a_file_system_has_snapshots_but_is_not_looked_into() {
    let Some((rig, mnt)) = tank("bad-locked", 128) else {
        return;
    };
    let key = rig.disks().join("key");
    fs::write(&key, [7; 32]).unwrap();
    let key = key.display();
    rig.sh(&format!(
        "zfs create -o encryption=on -o keyformat=raw -o keylocation=file://{key} tank/e"
    ));
    fs::write(mnt.join("e/file"), "first").unwrap();
    rig.zfs(&["snapshot", "tank/e@1"]);
    fs::write(mnt.join("e/file"), "second").unwrap();
    rig.zfs(&["snapshot", "tank/e@2"]);
    fs::write(mnt.join("e/file"), "third").unwrap();
    rig.sh("zfs unmount tank/e; zfs unload-key tank/e");
    refused(&rig, &["diff", "tank/e@1", "tank/e@2"], 1, &["key"]);
    refused(&rig, &["mount", "tank/e"], 1, &["key"]);
    // What does not look at the content goes on.
    rig.sh(
        "zfs snapshot tank/e@3; zfs bookmark tank/e@3 '#b'; zfs hold keep tank/e@3
         zfs rename tank/e@3 three",
    );
    refused(&rig, &["destroy", "tank/e@three"], 1, &["it's being held"]);
    rig.sh("zfs release keep tank/e@three; zfs destroy tank/e@1");
    rig.zfs(&["load-key", "tank/e"]);
    rig.zfs(&["mount", "tank/e"]);
    assert_eq!(fs::read_to_string(mnt.join("e/file")).unwrap(), "third");
    let old = mnt.join("e/.zfs/snapshot/2/file");
    assert_eq!(fs::read_to_string(old).unwrap(), "second");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_full_pool_lets_snapshots_go() {
    let Some((rig, mnt)) = tank("bad-full", 128) else {
        return;
    };
    rig.sh("zfs create -o compression=off tank/a");
    fs::write(mnt.join("a/old"), vec![1; 8 << 20]).unwrap();
    rig.zfs(&["snapshot", "tank/a@1"]);
    fs::remove_file(mnt.join("a/old")).unwrap();
    rig.zfs(&["snapshot", "tank/a@2"]);
    rig.try_run(
        "sh",
        &["-c", &format!("cat /dev/zero > {}/a/filler", mnt.display())],
    );
    rig.zpool(&["sync", "tank"]);
    // A reservation that there is no room for is refused before the clone is there.
    let args = ["clone", "-o", "refreservation=64M", "tank/a@1", "tank/c"];
    refused(&rig, &args, 1, &[]);
    let none = "cannot create snapshots : out of space\n";
    refused(&rig, &["snapshot", "tank/a@3"], 1, &[none]);
    refused(&rig, &["snapshot", "-r", "tank@3"], 1, &[none]);
    let none = "cannot create bookmark 'tank/a#b': out of space";
    refused(&rig, &["bookmark", "tank/a@1", "#b"], 1, &[none]);
    rig.sh("zfs hold keep tank/a@1; zfs release keep tank/a@1; zfs set x:y=1 tank/a");
    // There is no room for another mount point. The rename is done all the same.
    let said = rig.try_run("zfs", &["rename", "tank/a", "tank/b"]);
    assert!(
        said.status.success() && said.err.contains("cannot mount"),
        "{said}"
    );
    rig.try_run("zfs", &["rename", "tank/b", "tank/a"]);
    rig.zfs(&["destroy", "tank/a@1"]);
    rig.zfs(&["destroy", "tank/a@2"]);
    rig.zpool(&["wait", "-t", "free", "tank"]);
    rig.zfs(&["mount", "-a"]);
    fs::write(mnt.join("a/small"), "there is room").unwrap();
    rig.zfs(&["destroy", "-r", "tank/a"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn quotas_and_limits_refuse_before_anything_is_changed() {
    let Some((rig, mnt)) = tank("bad-limits", 128) else {
        return;
    };
    rig.sh("zfs create -o compression=off tank/a");
    fs::write(mnt.join("a/file"), vec![3; 6 << 20]).unwrap();
    rig.sh("zfs snapshot tank/a@1");
    fs::write(mnt.join("a/file"), b"less").unwrap();
    rig.sh("zpool sync tank; zfs set refquota=1M tank/a");
    refused(&rig, &["rollback", "tank/a@1"], 1, &["quota"]);
    assert_eq!(fs::read(mnt.join("a/file")).unwrap(), b"less");
    rig.sh("zfs set refquota=none tank/a; zfs create tank/q; zfs clone tank/a@1 tank/q/c");
    rig.zfs(&["set", "quota=1M", "tank/q"]);
    refused(&rig, &["promote", "tank/q/c"], 1, &["quota"]);
    rig.sh("zfs set quota=none tank/q; zfs promote tank/q/c");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
