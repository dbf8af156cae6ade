//! Exchange with the zfs-fuse 0.7 of 2013 on pools of version 23.

use std::sync::Mutex;

use base::sync::MutexExt;
use system_tests::tree::{self, Description, Kinds};
use system_tests::Rig;
use testkit::{or_skip, OldZfsFuse};

/// The old one knows extended attributes only when told to, and no ACLs of the POSIX form.
const KINDS: Kinds = Kinds {
    xattrs: false,
    acls: false,
    huge: false,
};

/// The namespace of an old daemon that starts holds copies of what the other test has mounted, until
/// it has dropped them.
static ALONE: Mutex<()> = Mutex::new(());

/// The old one shows whole seconds only, whatever is on disk.
fn coarse(d: Description) -> Description {
    d.into_iter()
        .map(|(path, line)| {
            let (head, tail) = line.split_once(" mtime ").unwrap();
            let (time, rest) = tail.split_once(' ').unwrap_or((tail, ""));
            let seconds = time.split('.').next().unwrap_or(time);
            (path, format!("{head} mtime {seconds} {rest}"))
        })
        .collect()
}

fn assert_same(before: &Description, after: &Description, when: &str) {
    tree::assert_same(&coarse(before.clone()), &coarse(after.clone()), when);
}

#[test]
fn ours_to_theirs_and_back() {
    let _alone = ALONE.acquire();
    let Some(mut rig) = Rig::as_root("to-old") else {
        return;
    };
    let Some(old) = or_skip(OldZfsFuse::start()) else {
        return;
    };
    let disks = rig.images(3, 256 << 20);
    let (mnt, dir) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), dir.to_str().unwrap());
    rig.start();
    rig.zpool(&[
        "create",
        "-o",
        "version=23",
        "-m",
        at,
        "tank",
        "raidz",
        &disks[0],
        &disks[1],
        &disks[2],
    ]);
    assert_eq!(
        rig.zpool(&["get", "-H", "-o", "value", "version", "tank"])
            .trim(),
        "23"
    );
    for c in ["lzjb", "gzip", "zle"] {
        rig.zfs(&[
            "create",
            "-o",
            &format!("compression={c}"),
            &format!("tank/{c}"),
        ]);
        tree::write(&mnt.join(c), 60, 7, KINDS).unwrap();
    }
    tree::write(&mnt, 60, 8, KINDS).unwrap();
    let ours = tree::describe(&mnt).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");

    old.zpool(&["import", "-d", dir, "tank"]).unwrap();
    let theirs = tree::describe(&old.outside(at)).unwrap();
    assert_same(&ours, &theirs, "ours, read by theirs");
    tree::write(&old.outside(at).join("gzip"), 60, 9, KINDS).unwrap_err(); // its folder exists
    old.zfs(&["create", "-o", "compression=gzip-9", "tank/theirs"])
        .unwrap();
    tree::write(&old.outside(at).join("theirs"), 60, 10, KINDS).unwrap();
    old.sh(&format!(
        "rm -rf {at}/zle/f* {at}/many; seq 200000 >{at}/grown"
    ))
    .unwrap();
    let theirs = tree::describe(&old.outside(at)).unwrap();
    old.zpool(&["export", "tank"]).unwrap();
    rig.zdb_check("tank");

    rig.zpool(&["import", "-d", dir, "tank"]);
    assert_same(
        &theirs,
        &tree::describe(&mnt).unwrap(),
        "theirs, read by ours",
    );
    rig.zpool(&["export", "tank"]);
    old.stop().unwrap();
    rig.stop();
}

#[test]
fn theirs_to_ours_and_back() {
    let _alone = ALONE.acquire();
    let Some(mut rig) = Rig::as_root("from-old") else {
        return;
    };
    let Some(old) = or_skip(OldZfsFuse::start()) else {
        return;
    };
    let disks = rig.images(2, 256 << 20);
    let (mnt, dir) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), dir.to_str().unwrap());
    old.zpool(&[
        "create",
        "-o",
        "version=23",
        "-m",
        at,
        "oldtank",
        "mirror",
        &disks[0],
        &disks[1],
    ])
    .unwrap();
    for c in ["on", "gzip-6", "zle"] {
        old.zfs(&[
            "create",
            "-o",
            &format!("compression={c}"),
            &format!("oldtank/{c}"),
        ])
        .unwrap();
        tree::write(&old.outside(at).join(c), 60, 20, KINDS).unwrap();
    }
    old.zfs(&["snapshot", "oldtank/on@before"]).unwrap();
    old.sh(&format!("rm -rf {at}/on/many")).unwrap();
    let theirs = tree::describe(&old.outside(at)).unwrap();
    old.zpool(&["export", "oldtank"]).unwrap();

    rig.start();
    rig.zpool(&["import", "-d", dir, "oldtank", "tank"]);
    assert_same(
        &theirs,
        &tree::describe(&mnt).unwrap(),
        "theirs, read by ours",
    );
    rig.sh(&format!(
        "rm -rf {at}/zle/many; seq 300000 >{at}/gzip-6/grown"
    ));
    rig.zfs(&["create", "tank/new"]);
    tree::write(&mnt.join("new"), 60, 21, KINDS).unwrap();
    let ours = tree::describe(&mnt).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");

    old.zpool(&["import", "-d", dir, "tank"]).unwrap();
    assert_same(
        &ours,
        &tree::describe(&old.outside(at)).unwrap(),
        "ours, read by theirs",
    );
    assert!(old
        .zfs(&["list", "-t", "snapshot"])
        .unwrap()
        .contains("tank/on@before"));
    old.zpool(&["export", "tank"]).unwrap();
    old.stop().unwrap();
    rig.stop();
}

/// Snapshots, clones and what was promoted are the same to both, down to the bytes they account for; each
/// goes on with the other's, and nothing is left of them in the end.
#[test]
fn snapshots_and_clones_go_both_ways() {
    let _alone = ALONE.acquire();
    let Some(mut rig) = Rig::as_root("old-clones") else {
        return;
    };
    let Some(old) = or_skip(OldZfsFuse::start()) else {
        return;
    };
    let disks = rig.images(1, 256 << 20);
    let (mnt, dir) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), dir.to_str().unwrap());
    let accounts = "used,referenced,origin,usedbysnapshots,usedbydataset,usedbychildren";
    let asked = [
        "get",
        "-r",
        "-H",
        "-p",
        "-o",
        "name,property,value",
        accounts,
        "tank",
    ];
    rig.start();
    rig.zpool(&["create", "-o", "version=23", "-m", at, "tank", &disks[0]]);
    rig.zfs(&["create", "tank/a"]);
    tree::write(&mnt.join("a"), 60, 31, KINDS).unwrap();
    rig.zfs(&["snapshot", "-r", "tank@1"]);
    rig.sh(&format!("rm -rf {at}/a/many; seq 50000 >{at}/a/more"));
    rig.zfs(&["snapshot", "tank/a@2"]);
    rig.zfs(&["clone", "tank/a@1", "tank/c"]);
    rig.sh(&format!("seq 90000 >{at}/c/own"));
    rig.zfs(&["promote", "tank/c"]);
    rig.sh(&format!("seq 9000 >{at}/a/after"));
    let ours = tree::describe(&mnt).unwrap();
    rig.zpool(&["sync", "tank"]);
    let said = rig.zfs(&asked);
    assert!(said.contains("tank/a\torigin\ttank/c@1"), "{said}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");

    let lines = |text: &str| -> Vec<String> {
        // Importing and mounting change the pool itself.
        let own = |l: &&str| !l.starts_with("tank\t");
        text.lines().filter(own).map(str::to_string).collect()
    };
    old.zpool(&["import", "-d", dir, "tank"]).unwrap();
    assert_same(
        &ours,
        &tree::describe(&old.outside(at)).unwrap(),
        "ours, read by theirs",
    );
    assert_eq!(lines(&old.zfs(&asked).unwrap()), lines(&said));
    old.zfs(&["rollback", "tank/a@2"]).unwrap();
    old.zfs(&["clone", "tank/a@2", "tank/d"]).unwrap();
    old.sh(&format!("seq 70000 >{at}/d/theirs")).unwrap();
    old.zfs(&["snapshot", "tank/d@3"]).unwrap();
    old.zfs(&["rename", "tank/a@2", "tank/a@two"]).unwrap();
    let theirs = tree::describe(&old.outside(at)).unwrap();
    old.zpool(&["export", "tank"]).unwrap();
    rig.zdb_check("tank");

    rig.zpool(&["import", "-d", dir, "tank"]);
    assert_same(
        &theirs,
        &tree::describe(&mnt).unwrap(),
        "theirs, read by ours",
    );
    rig.zfs(&["promote", "tank/d"]);
    rig.zfs(&["rollback", "-r", "tank/d@two"]);
    for gone in [
        "tank/a",
        "tank/d@two",
        "tank/d",
        "tank/c@1",
        "tank/c",
        "tank@1",
    ] {
        rig.zfs(&["destroy", gone]);
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    old.zpool(&["import", "-d", dir, "tank"]).unwrap();
    let left = old.zfs(&["list", "-H", "-o", "name", "-t", "all"]).unwrap();
    assert_eq!(left.trim(), "tank");
    old.zpool(&["export", "tank"]).unwrap();
    old.stop().unwrap();
    rig.stop();
}

#[test]
fn ours_sent_is_received_by_theirs() {
    let _alone = ALONE.acquire();
    let Some(mut rig) = Rig::as_root("send-to-old") else {
        return;
    };
    let Some(old) = or_skip(OldZfsFuse::start()) else {
        return;
    };
    let disks = rig.images(2, 256 << 20);
    let (ours, theirs) = (rig.mnt().join("ours"), rig.mnt().join("theirs"));
    let (at, to) = (ours.to_str().unwrap(), theirs.to_str().unwrap());
    rig.start();
    rig.zpool(&["create", "-o", "version=23", "-m", at, "tank", &disks[0]]);
    tree::write(&ours, 60, 30, KINDS).unwrap();
    rig.sh(&format!("seq 200000 >{at}/shrunk"));
    rig.zfs(&["snapshot", "tank@1"]);
    rig.sh(&format!(
        "rm -rf {at}/many; seq 200000 >{at}/grown; truncate -s 100 {at}/shrunk"
    ));
    rig.zfs(&["snapshot", "tank@2"]);
    old.zpool(&["create", "-o", "version=23", "-m", to, "oldtank", &disks[1]])
        .unwrap();
    let file = rig.path().join("stream");
    for words in [vec!["send", "tank@1"], vec!["send", "-i", "@1", "tank@2"]] {
        let mut send = rig.command("zfs", &words);
        let out = std::fs::File::create(&file).unwrap();
        assert!(send.stdout(out).status().unwrap().success(), "{words:?}");
        let mut receive = old.command("zfs");
        receive.args(["receive", "-F", "oldtank/got"]);
        let stream = std::fs::File::open(&file).unwrap();
        let out = receive.stdin(stream).output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{words:?}: {err}");
    }
    let sent = tree::describe(&ours).unwrap();
    let got = tree::describe(&old.outside(&format!("{to}/got"))).unwrap();
    assert_same(&sent, &got, "ours, received by theirs");
    old.zpool(&["export", "oldtank"]).unwrap();
    old.stop().unwrap();
    rig.stop();
}

/// What the old one sends, in full and as increments, with snapshots in between and as a tree, is received here; what is sent back
/// goes on from there.
#[test]
fn theirs_sent_is_received_by_ours_and_goes_back() {
    let _alone = ALONE.acquire();
    let Some(mut rig) = Rig::as_root("send-from-old") else {
        return;
    };
    let Some(old) = or_skip(OldZfsFuse::start()) else {
        return;
    };
    let disks = rig.images(2, 256 << 20);
    let (ours, theirs) = (rig.mnt().join("ours"), rig.mnt().join("theirs"));
    let (at, to) = (ours.to_str().unwrap(), theirs.to_str().unwrap());
    old.zpool(&["create", "-o", "version=23", "-m", to, "oldtank", &disks[0]])
        .unwrap();
    for fs in ["oldtank/a", "oldtank/a/b"] {
        old.zfs(&["create", fs]).unwrap();
    }
    tree::write(&old.outside(to).join("a"), 60, 40, KINDS).unwrap();
    tree::write(&old.outside(to).join("a/b"), 20, 41, KINDS).unwrap();
    old.zfs(&["snapshot", "-r", "oldtank/a@1"]).unwrap();
    let change = |n: u64| {
        old.sh(&format!(
            "cd {to}/a; seq {n}00000 >grown; seq {n}0000 >shrunk; truncate -s {n}00 shrunk; rm -rf many; mkdir many; \
             for i in $(seq {n} 2 200); do echo $i >many/$i; done; seq 90000 | dd of=holes bs=1k seek={n}000 2>&1; \
             mv b/many b/moved{n} 2>&1 || true; mkdir -p b/many; echo {n} >b/many/x"
        ))
        .unwrap();
        old.zfs(&["snapshot", "-r", &format!("oldtank/a@{n}")])
            .unwrap();
    };
    change(2);
    change(3);
    rig.start();
    rig.zpool(&["create", "-o", "version=23", "-m", at, "tank", &disks[1]]);
    let file = rig.path().join("stream");
    let receive = |send: &[&str], receive: &[&str]| {
        let mut c = old.command("zfs");
        let out = std::fs::File::create(&file).unwrap();
        let sent = c.arg("send").args(send).stdout(out).status().unwrap();
        assert!(sent.success(), "{send:?}");
        let mut c = rig.command("zfs", &[&["receive"], receive].concat());
        let out = c
            .stdin(std::fs::File::open(&file).unwrap())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{send:?}: {err}");
    };
    receive(&["oldtank/a@1"], &["tank/one"]);
    receive(&["-i", "@1", "oldtank/a@2"], &["tank/one"]);
    receive(&["-i", "@2", "oldtank/a@3"], &["tank/one"]);
    receive(&["oldtank/a@1"], &["tank/all"]);
    receive(&["-I", "@1", "oldtank/a@3"], &["tank/all"]);
    receive(&["-R", "oldtank/a@2"], &["-d", "tank"]);
    receive(&["-R", "-I", "@2", "oldtank/a@3"], &["-F", "-d", "tank"]);
    let without = |d: Description, below: &str| -> Description {
        let own = |(p, _): &(std::path::PathBuf, String)| !p.starts_with(below);
        d.into_iter().filter(own).collect()
    };
    let sent = tree::describe(&old.outside(&format!("{to}/a"))).unwrap();
    // The other file system below is a folder with another owner's numbers, or none.
    for fs in ["one", "all"] {
        let got = tree::describe(&ours.join(fs)).unwrap();
        let what = format!("theirs, received by ours into {fs}");
        assert_same(&without(sent.clone(), "b"), &without(got, "b"), &what);
    }
    let got = tree::describe(&ours.join("a")).unwrap();
    assert_same(&sent, &got, "their tree, received by ours");
    for (snap, fs) in [("2", "one"), ("2", "all"), ("2", "a"), ("1", "a/b")] {
        assert!(rig
            .get("creation", &format!("tank/{fs}@{snap}"))
            .parse::<u64>()
            .is_ok());
    }

    // Back: an increment of ours onto what is there.
    rig.sh(&format!(
        "cd {at}/one; seq 70000 >ours; rm -rf many; truncate -s 5000 grown"
    ));
    rig.zfs(&["snapshot", "tank/one@4"]);
    let mut c = rig.command("zfs", &["send", "-i", "@3", "tank/one@4"]);
    let out = std::fs::File::create(&file).unwrap();
    assert!(c.stdout(out).status().unwrap().success());
    let mut c = old.command("zfs");
    c.args(["receive", "-F", "oldtank/a"]);
    let out = c
        .stdin(std::fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{err}");
    let sent = tree::describe(&ours.join("one")).unwrap();
    let got = tree::describe(&old.outside(&format!("{to}/a"))).unwrap();
    assert_same(
        &without(sent, "b"),
        &without(got, "b"),
        "ours, received by theirs",
    );
    old.zpool(&["export", "oldtank"]).unwrap();
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zdb_check("oldtank");
    old.stop().unwrap();
    rig.stop();
}
