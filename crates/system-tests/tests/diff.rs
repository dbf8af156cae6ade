//! `zfs diff` through the commands and a mount, judged by a comparison of the two trees.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{symlink, MetadataExt};
use std::path::{Path, PathBuf};
use system_tests::Rig;

fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    Some(Rig::new(name)?.with_tank(256 << 20))
}

/// Lines of `zfs diff`, sorted, without the place of the mount.
fn diff(rig: &Rig, mnt: &Path, args: &[&str]) -> Vec<String> {
    let all: Vec<&str> = ["diff"].iter().chain(args).copied().collect();
    let out = rig.zfs(&all);
    let mnt = mnt.to_str().unwrap();
    let mut lines: Vec<String> = out.lines().map(|l| l.replace(mnt, "")).collect();
    lines.sort();
    lines
}

fn snapshots(rig: &Rig) -> String {
    rig.zfs(&["list", "-H", "-o", "name", "-t", "snapshot", "-r", "tank"])
}

#[test]
fn every_kind_of_change_is_told_once() {
    let Some((rig, mnt)) = tank("diff-kinds") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    let at = mnt.join("a");
    for d in ["d", "other", "gone"] {
        fs::create_dir(at.join(d)).unwrap();
    }
    for f in [
        "kept",
        "changed",
        "removed",
        "d/moved",
        "linked",
        "two names",
        "gone/f",
    ] {
        fs::write(at.join(f), f).unwrap();
    }
    fs::hard_link(at.join("two names"), at.join("other/second")).unwrap();
    symlink("kept", at.join("link")).unwrap();
    rig.zfs(&["snapshot", "tank/a@1"]);
    assert!(diff(&rig, &at, &["tank/a@1"]).is_empty());

    fs::write(at.join("changed"), "other words").unwrap();
    fs::remove_file(at.join("removed")).unwrap();
    fs::rename(at.join("d/moved"), at.join("other/moved")).unwrap();
    fs::hard_link(at.join("linked"), at.join("d/more")).unwrap();
    // Of two names the one goes that the object remembers its directory by.
    fs::remove_file(at.join("other/second")).unwrap();
    fs::write(at.join("new\u{e4}"), "new").unwrap();
    fs::create_dir(at.join("dir")).unwrap();
    fs::remove_dir_all(at.join("gone")).unwrap();
    symlink("there", at.join("second link")).unwrap();
    let wanted = [
        "+\t/\t/dir",
        "+\t@\t/second\\0040link",
        "+\tF\t/new\\0303\\0244",
        "-\t/\t/gone",
        "-\tF\t/gone/f",
        "-\tF\t/removed",
        "M\t/\t/",
        "M\t/\t/d",
        "M\t/\t/other",
        "M\tF\t/changed",
        "M\tF\t/linked\t(+1)",
        "M\tF\t/two\\0040names\t(-1)",
        "R\tF\t/d/moved -> /other/moved",
    ];
    assert_eq!(diff(&rig, &at, &["-F", "tank/a@1"]), wanted);
    // The snapshot made for that is gone.
    assert_eq!(snapshots(&rig), "tank/a@1\n");
    rig.zfs(&["snapshot", "tank/a@2"]);
    assert_eq!(diff(&rig, &at, &["-F", "tank/a@1", "@2"]), wanted);
    let scripted = diff(&rig, &at, &["-H", "-h", "tank/a@1", "tank/a@2"]);
    assert!(
        scripted.contains(&"R\t/d/moved\t/other/moved".to_string()),
        "{scripted:?}"
    );
    assert!(
        scripted.contains(&"+\t/second link".to_string()),
        "{scripted:?}"
    );
    let timed = diff(&rig, &at, &["-t", "tank/a@1", "tank/a@2"]);
    let meta = fs::metadata(at.join("changed")).unwrap();
    let line = format!("{}.{:09}\tM\t/changed", meta.ctime(), meta.ctime_nsec());
    assert!(timed.contains(&line), "{line}: {timed:?}");

    // Into a clone, and a number that is used again.
    rig.zfs(&["clone", "tank/a@2", "tank/c"]);
    let clone = mnt.join("c");
    fs::remove_file(clone.join("kept")).unwrap();
    fs::write(clone.join("in the clone"), "x").unwrap();
    let lines = diff(&rig, &clone, &["tank/a@2", "tank/c"]);
    assert_eq!(lines, ["+\t/in\\0040the\\0040clone", "-\t/kept", "M\t/"]);
    rig.zfs(&["unmount", "tank/c"]);
    assert_eq!(
        diff(&rig, &clone, &["tank/a@1", "tank/c"]).len(),
        wanted.len() + 2
    );

    for (args, word) in [
        (
            ["diff", "tank/a@2", "tank/a@1"],
            "Not an earlier snapshot from the same fs",
        ),
        (
            ["diff", "tank/a@2", "tank"],
            "Not an earlier snapshot from the same fs",
        ),
        (
            ["diff", "tank/a@2", "tank/a@2"],
            "Not an earlier snapshot from the same fs",
        ),
        (["diff", "tank/a@none", "tank/a"], "does not exist"),
    ] {
        let said = rig.try_run("zfs", &args).fails(1);
        assert!(said.contains(word), "{args:?}: {said}");
    }
    assert_eq!(snapshots(&rig), "tank/a@1\ntank/a@2\n");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// What is in a tree: by path, what `zfs diff` can see of it.
fn tree(root: &Path) -> BTreeMap<String, (u64, i64, i64)> {
    let mut out = BTreeMap::new();
    let mut stack = vec![root.to_path_buf()];
    while let Some(dir) = stack.pop() {
        for e in fs::read_dir(&dir).unwrap() {
            let path = e.unwrap().path();
            let m = path.symlink_metadata().unwrap();
            if m.is_dir() {
                stack.push(path.clone());
            }
            let name = format!("/{}", path.strip_prefix(root).unwrap().display());
            out.insert(name, (m.size(), m.ctime(), m.ctime_nsec()));
        }
    }
    out
}

/// More than one block of dnodes, more than one indirect block of them, whole holes in them.
#[test]
fn many_objects_come_and_go_in_blocks() {
    let Some((rig, mnt)) = tank("diff-many") else {
        return;
    };
    let place = |n: usize| mnt.join(format!("d{}/f{n}", n % 7));
    for d in 0..7 {
        fs::create_dir(mnt.join(format!("d{d}"))).unwrap();
    }
    for n in 0..4000 {
        fs::write(place(n), [0; 3]).unwrap();
    }
    rig.zfs(&["snapshot", "tank@1"]);
    let before = tree(&mnt);
    // Blocks of dnodes that become holes, some that are used again, some that change, others new.
    for n in 500..3000 {
        fs::remove_file(place(n)).unwrap();
    }
    rig.zpool(&["sync", "tank"]);
    for n in 0..200 {
        fs::write(place(n * 2), [1; 9]).unwrap();
        fs::write(mnt.join(format!("d{}/again{n}", n % 7)), "x").unwrap();
    }
    for n in 3900..3950 {
        fs::rename(place(n), mnt.join(format!("d0/moved{n}"))).unwrap();
    }
    let after = tree(&mnt);
    let mut told = BTreeSet::new();
    let (mut removed, mut created) = (BTreeSet::new(), BTreeSet::new());
    for line in diff(&rig, &mnt, &["-H", "tank@1"]) {
        assert!(told.insert(line.clone()), "told twice: {line}");
        let parts: Vec<String> = line.split('\t').map(str::to_string).collect();
        match parts[0].as_str() {
            "-" => drop(removed.insert(parts[1].clone())),
            "+" => drop(created.insert(parts[1].clone())),
            "R" => {
                removed.insert(parts[1].clone());
                created.insert(parts[2].clone());
            }
            "M" => assert!(
                parts[1] == "/" || before.get(&parts[1]) != after.get(&parts[1]),
                "{line}"
            ),
            _ => panic!("{line}"),
        }
    }
    let gone: BTreeSet<String> = before
        .keys()
        .filter(|p| !after.contains_key(*p))
        .cloned()
        .collect();
    let new: BTreeSet<String> = after
        .keys()
        .filter(|p| !before.contains_key(*p))
        .cloned()
        .collect();
    assert!(
        gone == removed,
        "{:?}",
        gone.symmetric_difference(&removed)
            .take(9)
            .collect::<Vec<_>>()
    );
    assert!(
        new == created,
        "{:?}",
        new.symmetric_difference(&created)
            .take(9)
            .collect::<Vec<_>>()
    );
    let changed = before
        .iter()
        .filter(|(p, m)| after.get(*p).is_some_and(|a| a != *m));
    for (path, _) in changed {
        assert!(told.contains(&format!("M\t{path}")), "{path}");
    }
    rig.zpool(&["export", "tank"]);
}
