//! Tools that replicate through the commands, from their packages, unchanged: each copies a tree of ten file systems with history, is
//! killed in the middle of a stream, goes on, takes over later changes, and ends with equal snapshots.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use system_tests::tree::{assert_same, describe, Description, Kinds};
use system_tests::{on_terminal, tree, until, wait, Rig};
use testkit::or_skip;
use testkit::packages::{self, Set};

/// File systems below `tank/src`.
const BELOW: [&str; 9] = ["a", "a/b", "a/c", "d", "e", "e/f", "e/g", "h", "i"];
const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: false,
    huge: false,
};
const PATIENCE: Duration = Duration::from_secs(120);

/// In the place of `zfs`: lets the third `zfs receive` have only the beginning of its stream, and kills the tool and all it has started.
const CUT: &str = r#"#!/bin/sh
here=${0%/*}
PATH=${PATH#"$here":}
case "$1" in
receive | recv)
    n=$(($(cat "$here/count" 2>/dev/null || echo 0) + 1))
    echo "$n" > "$here/count"
    if [ "$n" = 3 ]; then
        head -c 60000 | zfs "$@"
        kill -9 -"$(ps -o pgid= $$ | tr -d ' ')"
    fi
    ;;
esac
exec zfs "$@"
"#;

/// Two pools, and in one of them the tree. Each test receives into a name of its own: syncoid looks among all processes of the
/// machine for one that receives into its target.
fn rig(name: &str) -> Option<Rig> {
    if std::env::var_os("ZFS_FUSE_TEST_REPLICATION").is_none() {
        eprintln!(
            "skipped: takes half a minute for each tool; ZFS_FUSE_TEST_REPLICATION=1 runs it"
        );
        return None;
    }
    let mut rig = Rig::as_root(name)?;
    let (from, to) = (rig.image("d0", 384 << 20), rig.image("d1", 384 << 20));
    rig.start();
    for (pool, disk) in [("tank", &from), ("back", &to)] {
        let at = rig.mnt().join(pool);
        rig.zpool(&["create", "-m", at.to_str().unwrap(), pool, disk]);
    }
    rig.zfs(&["create", "tank/src"]);
    for fs in BELOW {
        rig.zfs(&["create", &format!("tank/src/{fs}")]);
    }
    for step in 1..=3 {
        change(&rig, step);
    }
    Some(rig)
}

/// Writes into all file systems, and makes the snapshot `s<step>` of them.
fn change(rig: &Rig, step: u64) {
    let root = rig.mnt().join("tank/src");
    for (i, fs) in [""].iter().chain(&BELOW).enumerate() {
        let dir = root.join(fs).join(format!("step{step}"));
        fs::create_dir(&dir).unwrap();
        tree::write(&dir, 12, step * 100 + i as u64, KINDS).unwrap();
    }
    rig.zfs(&["snapshot", "-r", &format!("tank/src@s{step}")]);
}

/// Runs a tool; `cut`: with the `zfs` that kills it. Otherwise it has a terminal, as if somebody ran it by hand.
fn run(mut tool: Command, cut: Option<&Path>) -> (ExitStatus, String) {
    if let Some(dir) = cut {
        let mut path = dir.as_os_str().to_owned();
        let old = tool
            .get_envs()
            .find(|(k, _)| *k == "PATH")
            .and_then(|e| e.1);
        path.push(":");
        path.push(old.unwrap_or_default());
        tool.env("PATH", path);
    }
    if cut.is_none() {
        tool = on_terminal(&tool);
    }
    // Other tests of this process run tools, too.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let n = RUNS.fetch_add(1, Ordering::Relaxed);
    let log = std::env::temp_dir().join(format!("tool-{}-{n}", std::process::id()));
    let file = fs::File::create(&log).unwrap();
    tool.process_group(0);
    tool.stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let mut child = tool.spawn().unwrap();
    let status = wait(&mut child, PATIENCE).expect("the tool ends");
    let text = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    (status, text)
}

/// What a snapshot has.
fn look(rig: &Rig, snap: &str) -> Description {
    let at = rig.path().join("look");
    fs::create_dir_all(&at).unwrap();
    rig.zfs(&["mount", snap, at.to_str().unwrap()]);
    let seen = describe(&at).unwrap();
    rig.zfs(&["unmount", at.to_str().unwrap()]);
    seen
}

/// Every snapshot of the source is in the target, with its guid and its content.
fn assert_replicated(rig: &Rig, target: &str, step: u64) {
    let list = |of: &str| {
        let text = rig.zfs(&["list", "-Hr", "-t", "snapshot", "-o", "name,guid", of]);
        let lines = text.lines().filter_map(|l| l.strip_prefix(of));
        lines.map(str::to_string).collect::<Vec<_>>()
    };
    let (from, to) = (list("tank/src"), list(target));
    for snap in &from {
        assert!(to.contains(snap), "{snap} is not among {to:?}");
    }
    assert!(from.len() >= 10 * step as usize, "{from:?}");
    for fs in [""].iter().chain(&BELOW) {
        let below = if fs.is_empty() { "" } else { "/" };
        for n in [1, step] {
            let snap = format!("{below}{fs}@s{n}");
            let before = look(rig, &format!("tank/src{snap}"));
            assert!(!before.is_empty());
            assert_same(&before, &look(rig, &format!("{target}{snap}")), &snap);
        }
    }
}

/// A folder with the `zfs` that kills its tool.
fn cut_here(rig: &Rig, text: &str) -> PathBuf {
    let cut = rig.path().join("cut");
    fs::create_dir_all(&cut).unwrap();
    let script = cut.join("zfs");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    cut
}

/// Copies, is killed, goes on, copies what is new.
fn replicates(rig: &Rig, target: &str, tool: &dyn Fn() -> Command) {
    let cut = cut_here(rig, CUT);
    let (status, text) = run(tool(), Some(&cut));
    assert_eq!(status.code(), None, "it was not killed: {text}");
    let (status, text) = run(tool(), None);
    assert!(status.success(), "{text}");
    assert_replicated(rig, target, 3);
    change(rig, 4);
    let (status, text) = run(tool(), None);
    assert!(status.success(), "{text}");
    assert_replicated(rig, target, 4);
}

#[test]
fn syncoid_goes_on_after_it_was_killed() {
    let Some(rig) = rig("syncoid") else { return };
    let Some(sanoid) = or_skip(packages::get(Set::Sanoid)) else {
        return;
    };
    let syncoid = sanoid.find("syncoid").unwrap();
    replicates(&rig, "back/copy", &|| {
        let args = ["-r", "--no-sync-snap", "tank/src", "back/copy"];
        let mut c = rig.command(syncoid.to_str().unwrap(), &args);
        c.env("PERL5LIB", sanoid.root().join("usr/share/perl5"));
        c
    });
}

/// With snapshots of its own, and a stream that is gone on with: the token of what came is used.
#[test]
fn syncoid_resumes_a_stream_and_makes_snapshots_of_its_own() {
    let Some(rig) = rig("syncoid-resume") else {
        return;
    };
    let Some(sanoid) = or_skip(packages::get(Set::Sanoid)) else {
        return;
    };
    let syncoid = sanoid.find("syncoid").unwrap();
    let tool = || {
        // It names its snapshots by the second.
        std::thread::sleep(Duration::from_millis(1100));
        let args = ["-r", "tank/src", "back/own"];
        let mut c = rig.command(syncoid.to_str().unwrap(), &args);
        c.env("PERL5LIB", sanoid.root().join("usr/share/perl5"));
        c
    };
    let cut = cut_here(&rig, CUT);
    let (status, text) = run(tool(), Some(&cut));
    assert_eq!(status.code(), None, "it was not killed: {text}");
    let tokens = || {
        let get = [
            "get",
            "-Hr",
            "-o",
            "name,value",
            "receive_resume_token",
            "back",
        ];
        let all = rig.zfs(&get);
        all.lines().filter(|l| !l.ends_with("\t-")).count()
    };
    until("what came is kept", || tokens() == 1);
    let (status, text) = run(tool(), None);
    assert!(status.success(), "{text}");
    assert!(text.contains("Resuming interrupted"), "{text}");
    assert_eq!(tokens(), 0);
    let (status, text) = run(tool(), None);
    assert!(status.success(), "{text}");
    assert_replicated(&rig, "back/own", 3);
    let own = rig.zfs(&["list", "-Hr", "-t", "snapshot", "-o", "name", "back/own"]);
    assert_eq!(own.matches("@syncoid_").count(), 10, "{own}");
    change(&rig, 4);
    let (status, text) = run(tool(), None);
    assert!(status.success(), "{text}");
    assert_replicated(&rig, "back/own", 4);
}

/// A program of Python, and the folder of its modules.
fn python(rig: &Rig, folder: &Path, program: &str, args: &[&str]) -> Command {
    let path: PathBuf = folder.join("bin").join(program);
    let mut c = rig.command(path.to_str().unwrap(), args);
    c.env("PYTHONPATH", folder);
    c
}

#[test]
fn zfs_autobackup_goes_on_after_it_was_killed() {
    let Some(rig) = rig("autobackup") else { return };
    let Some(folder) = or_skip(packages::python("zfs-autobackup==3.3")) else {
        return;
    };
    rig.zfs(&["create", "back/auto"]);
    rig.zfs(&["set", "autobackup:test=true", "tank/src"]);
    let args = [
        "--other-snapshots",
        "--no-snapshot",
        "--no-thinning",
        "--filter-properties",
        "mountpoint",
        "--strip-path",
        "1",
        "test",
        "back/auto",
    ];
    replicates(&rig, "back/auto/src", &|| {
        python(&rig, &folder, "zfs-autobackup", &args)
    });
}

#[test]
fn bzfs_goes_on_after_it_was_killed() {
    let Some(rig) = rig("bzfs") else { return };
    let Some(folder) = or_skip(packages::python("bzfs==1.25.0")) else {
        return;
    };
    let args = ["tank/src", "back/bzfs", "--recursive"];
    replicates(&rig, "back/bzfs", &|| python(&rig, &folder, "bzfs", &args));
}

/// znapzend is in no package here: `ZFS_FUSE_TEST_ZNAPZEND` names the folder of its sources, unchanged.
#[test]
fn znapzend_goes_on_after_it_was_killed() {
    let Some(sources) = std::env::var_os("ZFS_FUSE_TEST_ZNAPZEND").map(PathBuf::from) else {
        eprintln!("skipped: ZFS_FUSE_TEST_ZNAPZEND does not name the folder of its sources");
        return;
    };
    let Some(rig) = rig("znapzend") else { return };
    let Some(mojo) = or_skip(packages::get(Set::Mojolicious)) else {
        return;
    };
    let tool = |program: &str, args: &[&str]| {
        let path = sources.join("bin").join(program);
        let mut all = vec![path.to_str().unwrap()];
        all.extend(args);
        let mut c = rig.command("perl", &all);
        c.env("PERL5LIB", mojo.root().join("usr/share/perl5"));
        c
    };
    let plan = "1hour=>1second";
    let set = [
        "create",
        "--donotask",
        "--recursive",
        "SRC",
        plan,
        "tank/src",
        "DST:a",
        plan,
        "back/znap",
    ];
    rig.zfs(&["create", "back/znap"]);
    let (status, text) = run(tool("znapzendzetup", &set), None);
    assert!(status.success(), "{text}");
    let once = [
        "--logto=syslog::user",
        "--autoCreation",
        "--runonce=tank/src",
    ];
    let cut = cut_here(&rig, CUT);
    let (status, text) = run(tool("znapzend", &once), Some(&cut));
    assert_eq!(status.code(), None, "it was not killed: {text}");
    for step in [3, 4] {
        let (status, text) = run(tool("znapzend", &once), None);
        assert!(status.success(), "{text}");
        // The newest of its own snapshots is in both, with what the newest of ours has.
        for fs in [""].iter().chain(&BELOW) {
            let below = if fs.is_empty() { "" } else { "/" };
            let copy = format!("back/znap{below}{fs}");
            let list = [
                "list", "-H", "-d1", "-t", "snapshot", "-o", "name", "-s", "creation", &copy,
            ];
            let all = rig.zfs(&list);
            let newest = all.lines().last().unwrap_or_default();
            let name = newest.split('@').nth(1).unwrap_or_default();
            let own = format!("tank/src{below}{fs}@{name}");
            assert_eq!(rig.get("guid", newest), rig.get("guid", &own), "{all}");
            let ours = look(&rig, &format!("tank/src{below}{fs}@s{step}"));
            assert_same(&ours, &look(&rig, newest), newest);
        }
        if step == 3 {
            change(&rig, 4);
        }
    }
}
