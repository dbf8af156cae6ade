//! `zfs project`, with the words of OpenZFS 2.3.

use std::fs;
use std::path::PathBuf;
use system_tests::{Rig, Said};

fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    let (rig, mnt) = Rig::new(name)?.with_tank(256 << 20);
    let dir = mnt.join("d");
    fs::create_dir_all(dir.join("e")).unwrap();
    fs::write(dir.join("f"), "f").unwrap();
    fs::write(dir.join("e/g"), "g").unwrap();
    fs::write(mnt.join("outside"), "o").unwrap();
    std::os::unix::fs::symlink("../outside", dir.join("l")).unwrap();
    Some((rig, mnt))
}

/// What `zfs project` prints, with paths from the root of the file system, sorted.
fn project(rig: &Rig, mnt: &std::path::Path, args: &[&str]) -> String {
    let said = try_project(rig, mnt, args).ok();
    let mut lines: Vec<String> = said
        .lines()
        .map(|l| l.replace(&format!("{}/", mnt.display()), ""))
        .collect();
    lines.sort();
    lines.join("\n")
}

/// The last words are paths.
fn try_project(rig: &Rig, mnt: &std::path::Path, args: &[&str]) -> Said {
    let paths = args
        .iter()
        .rposition(|a| a.starts_with('-'))
        .map_or(0, |at| at + 1);
    let mut all = vec!["project".to_string()];
    for (i, a) in args.iter().enumerate() {
        let number = a.parse::<u32>().is_ok();
        all.push(match i >= paths && !number {
            true => mnt.join(a).to_str().unwrap().to_string(),
            false => a.to_string(),
        });
    }
    rig.try_run("zfs", &all)
}

#[test]
fn projects_are_shown_set_checked_and_cleared() {
    let Some((rig, mnt)) = tank("projects") else {
        return;
    };
    let p = |args: &[&str]| project(&rig, &mnt, args);
    assert_eq!(p(&["d"]), "    0 - d\n    0 - d/e\n    0 - d/f");
    assert_eq!(p(&["-d", "d"]), "    0 - d");
    let all = "    0 - d\n    0 - d/e\n    0 - d/e/g\n    0 - d/f";
    assert_eq!(p(&["-r", "d"]), all);
    assert_eq!(p(&["d/f"]), "    0 - d/f");
    p(&["-p", "7", "d"]);
    assert_eq!(p(&["d"]), "    0 - d/e\n    0 - d/f\n    7 - d");
    p(&["-p", "7", "-rs", "d"]);
    let all = "    7 P d\n    7 P d/e\n    7 P d/e/g\n    7 P d/f";
    assert_eq!(p(&["-r", "d"]), all);
    // A link leads out of the tree.
    assert_eq!(p(&["outside"]), "    0 - outside");
    fs::write(mnt.join("d/e/new"), "new").unwrap();
    fs::create_dir(mnt.join("d/sub")).unwrap();
    assert_eq!(p(&["d/e/new"]), "    7 P d/e/new");
    assert_eq!(p(&["-d", "d/sub"]), "    7 P d/sub");

    p(&["-p", "9", "d/e/g"]);
    assert_eq!(p(&["-c", "d"]), "");
    let wrong = "d/e/g - project ID is not set properly (9/7)";
    assert_eq!(p(&["-c", "-r", "d"]), wrong);
    let names = try_project(&rig, &mnt, &["-c", "-r", "-0", "d"]).ok();
    assert_eq!(names, format!("{}\0", mnt.join("d/e/g").display()));
    let wrong = "d - project ID is not set properly (7/8)";
    assert_eq!(p(&["-c", "-d", "-p", "8", "d"]), wrong);
    p(&["-C", "-k", "d/f"]);
    assert_eq!(p(&["-c", "d"]), "d/f - project inherit flag is not set");
    assert_eq!(p(&["d/f"]), "    7 - d/f");
    p(&["-C", "d/f"]);
    assert_eq!(p(&["d/f"]), "    0 - d/f");
    // The project of the directory for all in it.
    p(&["-rs", "d"]);
    assert_eq!(p(&["-c", "-r", "d"]), "");
    rig.zfs(&["set", "projectquota@7=1M", "tank"]);
    let used = rig.zfs(&["projectspace", "-Hp", "-o", "name,quota", "tank"]);
    assert!(used.contains("7\t1048576"), "{used}");
    p(&["-C", "-r", "d"]);
    assert!(!p(&["-r", "d"]).contains('7'));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let Some((rig, mnt)) = tank("projects-options") else {
        return;
    };
    let together = "cannot specify '-C' '-c' '-s' together";
    for (args, words) in [
        (&["-c", "-s", "d"][..], together),
        (&["-C", "-c", "d"], together),
        (&["-k", "d"], "'-k' is only valid together with '-C'"),
        (&["-0", "d"], "'-0' is only valid together with '-c'"),
        (&["-p", "x", "d"], "project ID must be less than 4294967295"),
        (&["-p", "4294967295", "d"], "invalid project ID"),
        (
            &["-C", "-p", "3", "d"],
            "'-p' is useless together with '-C'",
        ),
        (&["-C", "-d", "d"], "'-d' is useless together with '-C'"),
        (
            &["-s", "-d", "d"],
            "'-d' is useless for set project ID and/or inherit flag",
        ),
    ] {
        let err = try_project(&rig, &mnt, args).fails(2);
        assert!(err.contains(words), "{args:?}: {err}");
    }
    rig.try_run("zfs", &["project"]).fails(2);
    let gone = mnt.join("gone").display().to_string();
    let said = try_project(&rig, &mnt, &["-p", "4", "gone", "d/f"]);
    assert_eq!(
        said.fails(1),
        format!("failed to stat {gone}: No such file or directory\n")
    );
    assert_eq!(project(&rig, &mnt, &["d/f"]), "    4 - d/f");
    let err = try_project(&rig, &mnt, &["-r", "d/f"]).fails(1);
    assert!(err.starts_with("'-r' option on non-dir target "), "{err}");
    let err = rig.try_run("zfs", &["project", "/proc/version"]).fails(1);
    assert_eq!(
        err,
        "failed to get xattr for /proc/version: Inappropriate ioctl for device\n"
    );
    rig.zpool(&["export", "tank"]);
}

/// Names of a kind that is not listed.
#[test]
fn delimiters_that_are_not_expected_are_told() {
    let Some((rig, _)) = tank("delimiters") else {
        return;
    };
    rig.zfs(&["snapshot", "tank@s"]);
    rig.zfs(&["bookmark", "tank@s", "tank#m"]);
    let mark = "cannot open 'tank#m': bookmark delimiter '#' is not expected here\n";
    let snap = "cannot open 'tank@s': snapshot delimiter '@' is not expected here\n";
    for (args, words) in [
        (&["list", "tank#m"][..], mark),
        (&["list", "-t", "snapshot", "tank#m"], mark),
        (&["list", "-t", "filesystem", "tank@s"], snap),
        (&["list", "-t", "bookmark", "tank@s"], snap),
    ] {
        assert_eq!(rig.try_run("zfs", args).fails(1), words);
    }
    let list = |args: &[&str]| rig.zfs(&[&["list", "-H", "-o", "name"], args].concat());
    assert_eq!(list(&["tank@s"]), "tank@s\n");
    assert_eq!(list(&["-t", "bookmark", "tank#m"]), "tank#m\n");
    let said = rig.try_run("zfs", &["set", "special_small_blocks=32K", "tank"]);
    assert_eq!(
        said.err,
        "special_small_blocks: property requires a special device in the pool\n"
    );
    assert_eq!(rig.get("special_small_blocks", "tank"), "32768");
    rig.zpool(&["export", "tank"]);
}

/// Who has nothing and a limit of one kind only has no figures of the other, as in OpenZFS 2.3.2.
#[test]
fn limits_of_those_who_have_nothing_are_shown_alone() {
    let Some((rig, _)) = tank("only-limits") else {
        return;
    };
    let bytes = "projectquota@5=40M";
    rig.zfs(&["set", bytes, "projectobjquota@6=100", "tank"]);
    for (exact, five, six) in [
        ("-Hp", "5\t0\t41943040\t-\t-", "6\t-\t-\t0\t100"),
        ("-H", "5\t0B\t40M\t-\t-", "6\t-\t-\t0\t100"),
    ] {
        let fields = "name,used,quota,objused,objquota";
        let said = rig.zfs(&["projectspace", exact, "-o", fields, "tank"]);
        for line in [five, six] {
            assert!(said.lines().any(|l| l == line), "{line:?}: {said}");
        }
    }
}
