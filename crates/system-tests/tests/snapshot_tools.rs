//! Tools of others that make and prune snapshots, unchanged from their packages, with our commands in PATH.
//! The packages are fetched with apt and pip, so that these tests are run by hand: `ZFS_FUSE_TEST_TOOLS=1`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use system_tests::Rig;
use testkit::or_skip;
use testkit::packages::{self, Set};

/// Whether packages may be fetched. Without it a notice is printed.
fn by_hand() -> bool {
    let asked = std::env::var_os("ZFS_FUSE_TEST_TOOLS").is_some();
    if !asked {
        eprintln!("skipped: fetches packages; ZFS_FUSE_TEST_TOOLS=1 runs it");
    }
    asked
}

fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    let mut rig = Rig::new(name)?;
    let disk = rig.image("d0", 256 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
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
    if !by_hand() {
        return;
    }
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
    // The package's files, where it looks for them; nobody else sees that.
    let run = |what: &str| {
        let script = format!(
            "mount -t overlay -o lowerdir={tree}/usr/share:/usr/share overlay /usr/share && \
             PERL5LIB={tree}/usr/share/perl5 {tree}/usr/sbin/sanoid {what} --configdir={c}/conf \
             --cache-dir={c}/cache --run-dir={c}/run",
            c = conf.display()
        );
        rig.try_run("unshare", &["-m", "sh", "-c", &script])
    };
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
    // Five that are older than three hours. Their names say so; their creation does, too.
    for n in 0..5 {
        let name = format!("tank/a@autosnap_2020-01-01_0{n}:00:00_hourly");
        rig.zfs(&["snapshot", &name]);
    }
    let said = run("--prune-snapshots --verbose --force-update").ok();
    // None is older than its keeping time, which counts from its creation: all stay.
    assert_eq!(count(&rig, "tank/a", "_hourly"), 6, "{said}");
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
    if !by_hand() {
        return;
    }
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
        rig.try_run(&program, &args).ok();
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
    if !by_hand() {
        return;
    }
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
        rig.try_run("python3", &args).ok();
        // The names have seconds.
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    for head in ["tank/a", "tank/a/b"] {
        assert_eq!(count(&rig, head, "test-"), 1, "{:?}", snapshots(&rig));
    }
    assert_eq!(count(&rig, "tank", ""), 0);
    rig.zpool(&["export", "tank"]);
}
