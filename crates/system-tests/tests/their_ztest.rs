//! Pools that OpenZFS's own `ztest` left behind: made by many threads in every way its engine knows, with
//! faults, kills, clones, checkpoints, devices that come and go, and blocks of every form. By chance, so
//! that it is run by hand, again and again: `ZFS_FUSE_TEST_THEIRS=1`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use system_tests::Rig;
use testkit::{or_skip, OpenZfs};

/// How long one run may take before it counts as stuck, which is not our fault.
const PATIENCE: Duration = Duration::from_secs(90);

fn runs(mut c: Command, dir: &Path) -> bool {
    // Where it dumps its memory, too.
    c.current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = c.spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

/// The figures of a report of `zdb -bcc`. Not shares of classes: OpenZFS's counts removed devices as
/// room while it looks for leaks, and of a class without space the newer one shows none.
fn figures(report: &str) -> Vec<String> {
    report
        .lines()
        .map(|l| l.split(" used:").next().unwrap_or_default())
        .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|l| !l.is_empty() && !l.starts_with("Embedded log class"))
        .collect()
}

/// `shape`: options of `ztest`. Returns whether there was something to look at.
fn look(z: &OpenZfs, kind: &str, shape: &[&str]) -> bool {
    let Some(mut rig) = Rig::as_root(&format!("ztest-{kind}")) else {
        return false;
    };
    let dir = rig.disks();
    let at = dir.to_str().unwrap();
    let mut c = z.command("ztest").unwrap();
    c.args(["-T", "4", "-P", "2", "-k", "50", "-f", at])
        .args(shape);
    if !runs(c, &dir) {
        eprintln!("skipped: OpenZFS's ztest did not come back ({kind})");
        return false;
    }
    let args = ["-e", "-p", at, "-bcc", "ztest"];
    let theirs = match z.zdb(&args) {
        Ok(t) => t,
        Err(e) => {
            // It spoils devices, and now and then more of them than parity bears.
            eprintln!("skipped: OpenZFS's zdb does not like what its ztest left ({kind}): {e}");
            return false;
        }
    };
    // Now and then its own kills leave a leak, which its zdb does not count as a failure.
    let sound = !theirs.contains("leaked space");
    let ours = rig.try_run("zdb", &args);
    let ours = if sound { ours.ok() } else { ours.out };
    assert_eq!(figures(&ours), figures(&theirs), "{kind}");

    rig.start();
    rig.zpool(&["import", "-f", "-N", "-d", at, "ztest"]);
    let sets = rig.zfs(&["list", "-H", "-o", "name", "-r", "ztest"]);
    assert!(sets.lines().count() >= 2, "{sets}");
    for set in sets.lines().skip(1) {
        rig.zfs(&["set", "of:ours=seen", set]);
    }
    let status = rig.zpool(&["status", "-v", "ztest"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    rig.zpool(&["export", "ztest"]);
    if sound {
        z.check(&dir, "ztest")
            .unwrap_or_else(|e| panic!("{kind}: {e}"));
    }
    true
}

#[test]
fn what_it_leaves_is_read_and_written() {
    if std::env::var_os("ZFS_FUSE_TEST_THEIRS").is_none() {
        eprintln!("skipped: by chance, and takes minutes; ZFS_FUSE_TEST_THEIRS=1 runs it");
        return;
    }
    let Some(z) = or_skip(OpenZfs::get()) else {
        return;
    };
    if or_skip(z.command("ztest")).is_none() {
        return;
    }
    // Never mirrors of RAID-Z groups, its usual choice: nothing else can make them.
    let shapes = [
        ("mirror", ["-m", "2", "-K", "raidz", "-r", "1"]),
        ("raidz", ["-m", "0", "-K", "raidz", "-r", "4"]),
        ("eraidz", ["-m", "0", "-K", "eraidz", "-r", "4"]),
        ("draid", ["-m", "0", "-K", "draid", "-r", "16"]),
    ];
    for (kind, shape) in shapes {
        if !look(&z, kind, &shape) {
            // Once more: it leaves another pool each time.
            look(&z, kind, &shape);
        }
    }
}
