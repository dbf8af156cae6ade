//! Tools of others that make, prune and browse snapshots, unchanged from their packages, with our commands in PATH.
//! They have a terminal, as if somebody ran them by hand. A package that cannot be fetched skips its test.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use system_tests::Rig;
use testkit::or_skip;
use testkit::packages::{self, Set};

fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    let (rig, mnt) = Rig::new(name)?.with_tank(256 << 20);
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "tank/a/b"]);
    Some((rig, mnt))
}

fn snapshots(rig: &Rig) -> BTreeSet<String> {
    let out = rig.zfs(&["list", "-H", "-o", "name", "-t", "snapshot", "-r", "tank"]);
    out.lines().map(str::to_string).collect()
}

fn count(rig: &Rig, head: &str, word: &str) -> usize {
    let all = snapshots(rig);
    let prefix = format!("{head}@");
    all.iter()
        .filter(|s| s.starts_with(&prefix) && s.contains(word))
        .count()
}

/// It takes snapshots, prunes those that are too many, and finds the pool healthy.
#[test]
fn sanoid_takes_prunes_and_monitors() {
    if !system_tests::is_root() {
        eprintln!("skipped: sanoid's defaults have a fixed place, which only root can put them at");
        return;
    }
    let Some(sanoid) = or_skip(packages::get(Set::Sanoid)) else {
        return;
    };
    let Some((rig, _)) = tank("tool-sanoid") else {
        return;
    };
    let conf = rig.path().join("sanoid");
    for sub in ["conf", "cache", "run"] {
        fs::create_dir_all(conf.join(sub)).unwrap();
    }
    fs::write(
        conf.join("conf/sanoid.conf"),
        "[tank/a]\nuse_template = t\nrecursive = yes\n[template_t]\nfrequently = 0\nhourly = 3\n\
         daily = 1\nmonthly = 0\nyearly = 0\nautosnap = yes\nautoprune = yes\n",
    )
    .unwrap();
    let tree = sanoid.root().display();
    // Two days later, for Perl alone.
    fs::write(
        conf.join("Later.pm"),
        "package Later;\nBEGIN { *CORE::GLOBAL::time = sub { CORE::time() + 2 * 86400 } }\n1;\n",
    )
    .unwrap();
    // The package's files, where it looks for them; nobody else sees that.
    let run_at = |perl: &str, what: &str| {
        let script = format!(
            "mount -t overlay -o lowerdir={tree}/usr/share:/usr/share overlay /usr/share && \
             PERL5LIB={tree}/usr/share/perl5 perl {perl} {tree}/usr/sbin/sanoid {what} --configdir={c}/conf \
             --cache-dir={c}/cache --run-dir={c}/run",
            c = conf.display()
        );
        rig.try_on_terminal("unshare", &["-m", "sh", "-c", &script])
    };
    let run = |what: &str| run_at("", what);
    let later = format!("-I{} -MLater", conf.display());
    let probe =
        format!("mount -t overlay -o lowerdir={tree}/usr/share:/usr/share overlay /usr/share");
    let can = rig.try_run("unshare", &["-m", "sh", "-c", &probe]);
    if !can.status.success() {
        eprintln!("skipped: overlays cannot be mounted here: {}", can.err);
        return;
    }
    run("--take-snapshots --verbose").ok();
    for head in ["tank/a", "tank/a/b"] {
        assert_eq!(count(&rig, head, "_hourly"), 1, "{:?}", snapshots(&rig));
        assert_eq!(count(&rig, head, "_daily"), 1, "{:?}", snapshots(&rig));
    }
    assert_eq!(count(&rig, "tank", ""), 0);
    // Five more, one file system up. Names do not make them old.
    for n in 0..5 {
        let name = format!("tank/a@autosnap_2020-01-01_0{n}:00:00_hourly");
        rig.zfs(&["snapshot", &name]);
    }
    let said = run("--prune-snapshots --verbose --force-update").ok();
    // None is older than its keeping time, which counts from its creation: all stay.
    assert_eq!(count(&rig, "tank/a", "_hourly"), 6, "{said}");
    // In two days all are too old; three hourly ones and the daily one stay, and what was not taken by it.
    rig.zfs(&["snapshot", "tank/a@own"]);
    let said = run_at(&later, "--prune-snapshots --verbose --force-update").ok();
    assert_eq!(count(&rig, "tank/a", "_hourly"), 3, "{said}");
    assert_eq!(count(&rig, "tank/a", "_daily"), 1, "{said}");
    assert_eq!(count(&rig, "tank/a", "own"), 1, "{said}");
    run_at(&later, "--monitor-snapshots --force-update").fails(2);
    let health = run("--monitor-health").ok();
    assert!(health.contains("OK"), "{health}");
    let monitored = run("--monitor-snapshots --force-update").ok();
    assert!(monitored.contains("OK"), "{monitored}");
    let capacity = run("--monitor-capacity").ok();
    assert!(capacity.contains("OK"), "{capacity}");
    rig.zpool(&["export", "tank"]);
}

#[test]
fn zfs_auto_snapshot_keeps_as_many_as_it_is_told() {
    let Some(tool) = or_skip(packages::get(Set::AutoSnapshot)) else {
        return;
    };
    let Some((rig, mnt)) = tank("tool-auto") else {
        return;
    };
    let Some(program) = tool.find("zfs-auto-snapshot") else {
        panic!("the package has no zfs-auto-snapshot")
    };
    let program = program.to_str().unwrap().to_string();
    rig.zfs(&["set", "com.sun:auto-snapshot=true", "tank/a"]);
    rig.zfs(&["set", "com.sun:auto-snapshot=false", "tank/a/b"]);
    for n in 0..4 {
        fs::write(mnt.join("a/f"), format!("{n}")).unwrap();
        let args = [
            "--label=frequent",
            "--keep=2",
            "--prefix=p",
            "--verbose",
            "//",
        ];
        rig.try_on_terminal(&program, &args).ok();
        // Its names have minutes: the next ones need others.
        let made = snapshots(&rig);
        let newest = made
            .iter()
            .find(|s| s.starts_with("tank/a@p_"))
            .unwrap()
            .clone();
        if n < 3 {
            let label = newest.rsplit("frequent-").next().unwrap().to_string();
            let older = format!(
                "tank/a@p_frequent-2020-01-0{}-{}",
                n + 1,
                &label[label.len() - 4..]
            );
            rig.zfs(&["rename", &newest, &older]);
        }
    }
    // One made and two kept before it at most.
    assert!(
        count(&rig, "tank/a", "frequent") <= 3,
        "{:?}",
        snapshots(&rig)
    );
    assert_eq!(count(&rig, "tank/a/b", "frequent"), 0);
    rig.zpool(&["export", "tank"]);
}

/// Without a target it only takes snapshots and thins them out.
#[test]
fn zfs_autobackup_takes_and_thins_snapshots() {
    let Some(modules) = or_skip(packages::python("zfs-autobackup==3.3")) else {
        return;
    };
    let Some((mut rig, mnt)) = tank("tool-autobackup") else {
        return;
    };
    rig.variable("PYTHONPATH", modules.to_str().unwrap());
    rig.zfs(&["set", "autobackup:test=true", "tank/a"]);
    for n in 0..3 {
        fs::write(mnt.join("a/f"), format!("{n}").repeat(300_000)).unwrap();
        let args = [
            "-m",
            "zfs_autobackup.ZfsAutobackup",
            "--verbose",
            "--keep-source=1",
            "--allow-empty",
            "test",
        ];
        rig.try_on_terminal("python3", &args).ok();
        // The names have seconds.
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    for head in ["tank/a", "tank/a/b"] {
        assert_eq!(count(&rig, head, "test-"), 1, "{:?}", snapshots(&rig));
    }
    assert_eq!(count(&rig, "tank", ""), 0);
    rig.zpool(&["export", "tank"]);
}

/// A browser of `.zfs` and reader of `zfs diff`.
#[test]
fn zfslib_finds_versions_and_changes_of_a_file() {
    let Some(modules) = or_skip(packages::python("zfslib==0.13.5")) else {
        return;
    };
    let Some((mut rig, mnt)) = tank("tool-zfslib") else {
        return;
    };
    rig.variable("PYTHONPATH", modules.to_str().unwrap());
    let file = mnt.join("a/a file");
    fs::write(&file, "one").unwrap();
    fs::write(mnt.join("a/goes"), "x").unwrap();
    rig.zfs(&["snapshot", "tank/a@s1"]);
    fs::write(&file, "second").unwrap();
    fs::remove_file(mnt.join("a/goes")).unwrap();
    fs::write(mnt.join("a/comes"), "y").unwrap();
    rig.zfs(&["snapshot", "tank/a@s2"]);
    fs::rename(mnt.join("a/comes"), mnt.join("a/moved")).unwrap();
    let script = r#"
import sys, zfslib
pools = zfslib.Connection(host='localhost').load_poolset()
ds, real, rel = pools.find_dataset_for_path(sys.argv[1])
print(ds.path, rel)
snaps = ds.find_snapshots({})
for snap in snaps:
    found, path = snap.resolve_snap_path(sys.argv[1])
    print(snap.name, found, open(path).read())
for d in ds.get_diffs(snaps[0], snaps[1]) + ds.get_diffs(snaps[1]):
    if d.file_type == 'F':
        print(d.chg_type, d.path_full, d.path_full_new)
"#;
    let out = rig
        .try_run("python3", &["-c", script, file.to_str().unwrap()])
        .ok();
    let at = mnt.display();
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(
        lines.drain(..3).collect::<Vec<_>>(),
        ["tank/a /a file", "s1 True one", "s2 True second"]
    );
    lines.sort_unstable();
    let want = [
        format!("+ {at}/a/comes None"),
        format!("- {at}/a/goes None"),
        format!("M {at}/a/a file None"),
        format!("R {at}/a/comes {at}/a/moved"),
    ];
    assert_eq!(lines, want);
    rig.zpool(&["export", "tank"]);
}
