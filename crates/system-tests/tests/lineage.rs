//! Clones of clones and of volumes, bookmarks of what a clone came from, names that get too deep, lists with names that nothing can have.

use std::path::PathBuf;
use system_tests::Rig;
use testkit::{or_skip, OpenZfs};

fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    Some(Rig::new(name)?.with_tank(128 << 20))
}

fn names(rig: &Rig, kind: &str) -> Vec<String> {
    let said = rig.zfs(&["list", "-H", "-o", "name", "-t", kind]);
    said.lines().map(str::to_string).collect()
}

#[test]
fn a_bookmark_is_copied_to_what_was_cloned_later() {
    let Some((rig, _)) = tank("copied-marks") else {
        return;
    };
    rig.sh("zfs create tank/a; zfs snapshot tank/a@1; zfs bookmark tank/a@1 '#m1'");
    rig.sh("zfs snapshot tank/a@2; zfs clone tank/a@2 tank/c; zfs snapshot tank/c@c; zfs clone tank/c@c tank/d");
    rig.sh("zfs snapshot tank/a@3; zfs bookmark tank/a@3 '#m3'; zfs create tank/e");
    rig.zfs(&["bookmark", "tank/a#m1", "tank/c#m"]);
    rig.zfs(&["bookmark", "tank/a#m1", "tank/d#m"]);
    for of in ["tank/c#m", "tank/d#m"] {
        assert_eq!(rig.get("guid", of), rig.get("guid", "tank/a#m1"));
    }
    for (of, to) in [
        ("tank/a#m3", "tank/c#late"),
        ("tank/a#m3", "tank/d#late"),
        ("tank/a#m1", "tank/e#other"),
        ("tank/d#m", "tank/a#back"),
    ] {
        let said = rig.try_run("zfs", &["bookmark", of, to]).fails(1);
        assert!(said.contains("not an ancestor"), "{of} {to}: {said}");
    }
    assert_eq!(names(&rig, "bookmark").len(), 4);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_clone_of_a_clone_lies_where_the_first_one_may() {
    let Some((rig, _)) = tank("clones-of-clones") else {
        return;
    };
    std::fs::write(rig.path().join("key"), "12345678\n").unwrap();
    let key = format!("keylocation=file://{}/key", rig.path().display());
    rig.zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        &key,
        "tank/a",
    ]);
    rig.sh("zfs create tank/a/child; zfs snapshot -r tank/a@1; zfs clone tank/a@1 tank/b");
    rig.sh("zfs snapshot tank/b@2; zfs clone tank/b@2 tank/c; zfs snapshot tank/c@3; zfs clone tank/c@3 tank/a/d");
    for fs in ["tank/b", "tank/c", "tank/a/d"] {
        assert_eq!(rig.get("encryptionroot", fs), "tank/a", "{fs}");
        assert_eq!(rig.get("keystatus", fs), "available", "{fs}");
    }
    // A child's key belongs below the root.
    let said = rig
        .try_run("zfs", &["clone", "tank/a/child@1", "tank/x"])
        .fails(1);
    assert!(said.contains("clone it below 'tank/a'"), "{said}");
    rig.sh("zfs create tank/b/child; zfs create tank/c/child");
    let all = [
        "tank/a",
        "tank/b",
        "tank/c",
        "tank/a/d",
        "tank/a/child",
        "tank/b/child",
        "tank/c/child",
    ];
    for root in ["tank/a", "tank/c"] {
        rig.zfs(&["promote", "tank/c"]);
        for fs in all {
            assert_eq!(rig.get("encryptionroot", fs), root, "{fs}");
        }
    }
    rig.sh("zfs unmount -a; zfs unload-key -a; fails zfs mount tank/b/child; zfs load-key tank/c; zfs mount -a");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_clone_of_a_volume_has_what_volumes_have() {
    let Some((rig, _)) = tank("cloned-volumes") else {
        return;
    };
    rig.sh("zfs create -s -V 1M tank/v; zfs snapshot tank/v@1");
    for prop in [
        "quota=64M",
        "recordsize=8K",
        "mountpoint=/x",
        "canmount=off",
    ] {
        let said = rig
            .try_run("zfs", &["clone", "-o", prop, "tank/v@1", "tank/c"])
            .fails(1);
        assert!(said.contains("does not apply"), "{prop}: {said}");
    }
    let fixed = ["clone", "-o", "volblocksize=8K", "tank/v@1", "tank/c"];
    rig.try_run("zfs", &fixed).fails(1);
    rig.zfs(&["clone", "-o", "compression=off", "tank/v@1", "tank/c"]);
    assert_eq!(rig.get("type", "tank/c"), "volume");
}

#[test]
fn a_rename_makes_nothing_too_deep() {
    let Some((rig, _)) = tank("deep-names") else {
        return;
    };
    let chain = |top: &str, levels: usize| {
        let part = top.chars().last().unwrap().to_string();
        format!("{top}{}", format!("/{part}").repeat(levels - 1))
    };
    rig.zfs(&["create", "-p", "-o", "canmount=off", &chain("tank/a", 30)]);
    rig.zfs(&["create", "-p", "-o", "canmount=off", &chain("tank/b", 20)]);
    let said = rig
        .try_run(
            "zfs",
            &["rename", "tank/a", &format!("{}/a", chain("tank/b", 20))],
        )
        .fails(1);
    assert!(said.contains("nested deeper than 50 levels"), "{said}");
    rig.zfs(&["rename", "tank/a", &format!("{}/a", chain("tank/b", 19))]);
    assert_eq!(names(&rig, "filesystem").len(), 51);
}

#[test]
fn a_list_destroys_what_there_is_of_it() {
    let Some((rig, _)) = tank("lists") else {
        return;
    };
    rig.sh("zfs create tank/a; for n in 1 2 3 4; do zfs snapshot tank/a@$n; done; zfs clone tank/a@4 tank/c");
    rig.zfs(&["destroy", "tank/a@1,@,2,,,none,a/b,,3,"]);
    assert_eq!(names(&rig, "snapshot"), ["tank/a@4"]);
    let long = format!("tank/a@{}", "x".repeat(400));
    for nothing in [
        "tank/a@,",
        "tank/a@@",
        "tank/a@b/c",
        "tank/a@none,%,none%",
        &long,
    ] {
        let said = rig.try_run("zfs", &["destroy", nothing]);
        let said = match nothing.contains('%') {
            // All of them are meant; the clone keeps the only one.
            true => said.fails(1),
            false => {
                let said = said.fails(1);
                assert!(
                    said.contains("could not find any snapshots"),
                    "{nothing}: {said}"
                );
                said
            }
        };
        assert!(!said.is_empty());
    }
    // -f is for what is mounted of the clones.
    rig.zfs(&["destroy", "-Rf", "tank/a@4"]);
    assert_eq!(names(&rig, "all"), ["tank", "tank/a"]);
}

#[test]
fn a_receive_by_the_name_in_the_stream_makes_what_is_above() {
    let Some((rig, mnt)) = tank("ancestors") else {
        return;
    };
    let file = rig.path().join("stream");
    let file = file.to_str().unwrap();
    rig.sh(&format!(
        "zfs create -p tank/a/b/c; zfs snapshot tank/a/b/c@1; zfs send tank/a/b/c@1 > {file}; zfs destroy -r tank/a
         zfs receive -nd tank < {file}; fails zfs list tank/a; zfs receive -d tank < {file}; zfs create tank/t
         fails zfs receive tank/x/y < {file}; fails zfs list tank/x; zfs receive -d tank/t < {file}"
    ));
    let all = [
        "tank",
        "tank/a",
        "tank/a/b",
        "tank/a/b/c",
        "tank/t",
        "tank/t/a",
        "tank/t/a/b",
        "tank/t/a/b/c",
    ];
    assert_eq!(names(&rig, "filesystem"), all);
    assert!(all.iter().all(|fs| rig.get("mounted", fs) == "yes"));
    assert!(mnt.join("t/a/b/c").is_dir());
}

/// What fails leaves a target's properties as they were; what succeeds brings them, and those of the command line.
#[test]
fn a_receive_that_fails_brings_no_properties() {
    let Some((rig, mnt)) = tank("props-of-increments") else {
        return;
    };
    let at = rig.path().to_str().unwrap();
    rig.sh(&format!(
        "zfs create -o compression=gzip-1 tank/f; zfs snapshot tank/f@1; zfs send -p tank/f@1 > {at}/full
         zfs set compression=gzip-2 tank/f; zfs set atime=off tank/f; head -c 3000000 /dev/urandom > {}/f/x
         zfs snapshot tank/f@2; zfs send -p -i tank/f@1 tank/f@2 > {at}/increment; head -c 2000000 {at}/increment > {at}/cut
         zfs receive tank/g < {at}/full; fails zfs receive -F tank/g < {at}/cut",
        mnt.display()
    ));
    assert_eq!(rig.get("compression", "tank/g"), "gzip-1");
    assert_eq!(rig.get("atime", "tank/g"), "on");
    rig.sh(&format!(
        "fails zfs receive -s -o compression=zle tank/g < {at}/cut"
    ));
    assert_eq!(rig.get("compression", "tank/g"), "gzip-1");
    rig.sh(
        "zfs send -t $(zfs get -Hpo value receive_resume_token tank/g) | zfs receive -s -o compression=zle -o recordsize=8K tank/g",
    );
    assert_eq!(rig.get("compression", "tank/g"), "zle");
    assert_eq!(rig.get("recordsize", "tank/g"), "8192");
    rig.sh(&format!(
        "zfs rollback -r tank/g@1; zfs receive -o quota=64M -x atime tank/g < {at}/increment"
    ));
    // What was set here goes before what comes.
    assert_eq!(rig.get("compression", "tank/g"), "zle");
    assert_eq!(rig.get("quota", "tank/g"), "67108864");
    assert_eq!(rig.get("atime", "tank/g"), "on");
    rig.try_run("zfs", &["receive", "-x", "atime=off", "tank/h"])
        .fails(2);
    rig.try_run("zfs", &["send", "-i", "@1", "-i", "@1", "tank/f@2"])
        .fails(2);
}

#[test]
fn a_copy_of_a_redaction_bookmark_is_a_plain_one() {
    let Some((rig, mnt)) = tank("copied-redaction") else {
        return;
    };
    rig.sh(&format!(
        "zfs create tank/a; head -c 300000 /dev/urandom > {0}/a/f; zfs snapshot tank/a@1; zfs clone tank/a@1 tank/c
         rm {0}/c/f; zfs snapshot tank/c@2; zfs redact tank/a@1 book tank/c@2; zfs bookmark tank/a#book '#copy'
         zfs get all tank/a#book | grep -q redact_snaps; zfs get all tank/a#copy | fails grep redact_snaps
         zfs destroy tank/a#book; zfs snapshot tank/a@3; zfs send -i '#copy' tank/a@3 > /dev/null",
        mnt.display()
    ));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The increment from a redaction bookmark to the snapshot it was made of is what was left out.
#[test]
fn what_was_redacted_is_sent_later() {
    let Some((rig, mnt)) = tank("unredacted") else {
        return;
    };
    rig.sh(&format!(
        "zfs create tank/a; head -c 300000 /dev/urandom > {0}/a/f; zfs snapshot tank/a@1; zfs clone tank/a@1 tank/c
         rm {0}/c/f; zfs snapshot tank/c@2; zfs redact tank/a@1 book tank/c@2; zfs bookmark tank/a@1 '#plain'
         zfs send --redact book tank/a@1 | zfs receive tank/r
         zfs send -i '#plain' tank/a@1 2>&1 | grep 'not an earlier snapshot'
         zfs send -i '#book' tank/a@1 | zfs receive tank/r@whole
         zfs mount tank/r; cmp {0}/a/f {0}/r/f",
        mnt.display()
    ));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// An increment that leaves blocks out says so of all blocks of the redaction bookmark, also of those that have not changed since
/// its base, which the receiver has: as in OpenZFS.
#[test]
fn a_redacted_increment_hides_what_the_base_told() {
    let Some((rig, mnt)) = tank("redacted-increment") else {
        return;
    };
    // Blocks 2 and 3 of `f` and 5 of `g` are hidden; `f` is not changed after the base at all, of `g` block 0 is.
    rig.sh(&format!(
        "zfs create -o recordsize=8K -o compression=off tank/a
         for n in f g; do head -c 65536 /dev/urandom > {0}/a/$n; done
         zfs snapshot tank/a@base; zfs send tank/a@base | zfs receive tank/b; zfs unmount tank/b
         printf x | dd of={0}/a/g conv=notrunc status=none; zfs snapshot tank/a@1; zfs clone tank/a@1 tank/c
         head -c 16384 /dev/urandom | dd of={0}/c/f bs=8K seek=2 conv=notrunc status=none
         head -c 8192 /dev/urandom | dd of={0}/c/g bs=8K seek=5 conv=notrunc status=none
         zfs snapshot tank/c@r; zfs redact tank/a@1 book tank/c@r
         zfs send --redact book -i @base tank/a@1 > {0}/stream",
        mnt.display()
    ));
    let Some(openzfs) = or_skip(OpenZfs::get()) else {
        return;
    };
    let mut zstream = openzfs.command("zstream").unwrap();
    let said = zstream
        .args(["dump", "-v"])
        .arg(mnt.join("stream"))
        .output();
    let dump = String::from_utf8(said.unwrap().stdout).unwrap();
    let hidden: Vec<&str> = dump.lines().filter(|l| l.starts_with("REDACT ")).collect();
    let number = |file: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(mnt.join("a").join(file)).unwrap().ino()
    };
    let said = |file: &str, from: u64, bytes: u64| {
        let object = number(file);
        format!("REDACT object = {object} offset = {from} length = {bytes}")
    };
    let expected = [said("f", 16384, 16384), said("g", 40960, 8192)];
    assert_eq!(hidden, expected, "{dump}");
    // The whole of it, and what was cut anywhere and went on.
    for quarters in 1..=4 {
        rig.sh(&format!(
            "size=$(stat -c %s {0}/stream); head -c $((size * {quarters} / 4)) {0}/stream | (zfs receive -s tank/b || true)
             token=$(zfs get -Hpo value receive_resume_token tank/b)
             if [ $token != - ]; then zfs send -t $token | zfs receive tank/b; fi
             zfs mount -f tank/b; cmp -n 16384 {0}/a/f {0}/b/f; cmp -i 32768 {0}/a/f {0}/b/f; cmp -n 40960 {0}/a/g {0}/b/g
             cmp -n 16384 -i 16384:0 {0}/b/f /dev/zero; cmp -n 8192 -i 40960:0 {0}/b/g /dev/zero
             zfs unmount tank/b; zfs rollback -r tank/b@base",
            mnt.display()
        ));
    }
    let said = rig.try_run("zdb", &["-vvvv", "tank/a#book"]).ok();
    let by = rig.get("guid", "tank/c@r");
    assert!(said.contains(&format!("Snapshots: [{by}]")), "{said}");
    let said = rig
        .try_run("zfs", &["redact", "tank/a@1", "book#", "other/c@r"])
        .fails(1);
    assert!(said.contains("full dataset names required"), "{said}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// Properties set on a snapshot after it was replicated come with the next increment of the tree.
#[test]
fn properties_of_snapshots_that_are_there_follow() {
    let Some((rig, _)) = tank("snapshot-properties") else {
        return;
    };
    rig.sh(
        "zfs create tank/a; zfs create tank/a/b; zfs snapshot -r tank/a@1; zfs send -R tank/a@1 | zfs receive -u tank/c
         zfs set my:first=x tank/a@1; zfs set my:below=y tank/a/b@1; zfs snapshot -r tank/a@2; zfs set my:second=z tank/a@2
         zfs send -R -I @1 tank/a@2 | zfs receive -u tank/c",
    );
    let received = |name: &str, of: &str| {
        let said = rig.zfs(&["get", "-Ho", "value,source", name, of]);
        said.trim().to_string()
    };
    assert_eq!(received("my:first", "tank/c@1"), "x\treceived");
    assert_eq!(received("my:below", "tank/c/b@1"), "y\treceived");
    assert_eq!(received("my:second", "tank/c@2"), "z\treceived");
    // What is not set there any more is not here, either.
    rig.sh(
        "zfs inherit my:first tank/a@1; zfs snapshot -r tank/a@3; zfs send -R -I @2 tank/a@3 | zfs receive -u tank/c
         zfs send -R -I @1 tank/a@3 | zfs receive -u tank/c",
    );
    assert_eq!(received("my:first", "tank/c@1"), "-\t-");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
