//! Starting: commands and daemons at the same moment, two daemons with one cache file, what a daemon that
//! was killed leaves mounted, and what a wrong path of the socket may not do.

use rustix::fs::{flock, FlockOperation};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use system_tests::{until, Rig};

const MIB: u64 = 1 << 20;
/// Held while dead mounts are there, which any daemon that starts takes away.
static DEAD: Mutex<()> = Mutex::new(());

fn lock_file(rig: &Rig) -> PathBuf {
    let mut name = rig.socket().as_os_str().to_os_string();
    name.push(".lock");
    name.into()
}

/// Process id of the daemon that serves.
fn owner(rig: &Rig) -> String {
    fs::read_to_string(lock_file(rig))
        .unwrap_or_default()
        .trim()
        .to_string()
}

#[test]
fn a_wrong_path_of_the_socket_changes_nothing_there() {
    let _alone = DEAD.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut rig) = Rig::new("start-path") else {
        return;
    };
    let file = rig.path().join("precious");
    fs::write(&file, "precious").unwrap();
    rig.serve_at(&file);
    for (program, words) in [
        ("zpool", vec!["list"]),
        ("zfs-fuse", vec![]),
        ("zfs-fuse", vec!["-n"]),
    ] {
        let said = rig.try_run(program, &words).fails(1);
        assert!(
            said.contains("other than a socket is there"),
            "{program}: {said}"
        );
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(!lock_file(&rig).exists(), "a lock beside what is not ours");
}

#[test]
fn a_command_waits_for_a_daemon_that_is_starting_and_starts_none() {
    let _alone = DEAD.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut rig) = Rig::new("start-wait") else {
        return;
    };
    rig.variable("ZFS_MODULE_TIMEOUT", "1");
    // A daemon that has got no further than its lock.
    let lock = File::create(lock_file(&rig)).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let said = rig.try_run("zpool", &["list"]).fails(1);
    assert!(said.contains("is starting or ending"), "{said}");
    assert!(!rig.socket().exists());
    drop(lock);
    rig.variable("ZFS_MODULE_TIMEOUT", "60");
    rig.variable("ZFS_FUSE_NO_START", "1");
    let said = rig.try_run("zpool", &["list"]).fails(1);
    assert!(
        said.contains("ZFS_FUSE_NO_START forbids to start it"),
        "{said}"
    );
    assert!(!rig.socket().exists());
    rig.variable("ZFS_FUSE_NO_START", "");
    for _ in 0..4 {
        let mut daemon = rig.command("zfs-fuse", &["--no-daemon"]);
        let mut daemon = daemon.stderr(Stdio::null()).spawn().unwrap();
        let ask = || {
            rig.command("zpool", &["list"])
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        let commands = [ask(), ask(), ask()];
        for mut c in commands {
            assert!(c.wait().unwrap().success());
        }
        assert_eq!(daemon.try_wait().unwrap(), None, "another daemon won");
        assert_eq!(owner(&rig), daemon.id().to_string());
        system_tests::signal(daemon.id(), rustix::process::Signal::TERM);
        assert!(daemon.wait().unwrap().success());
    }
}

/// Whoever starts the daemon reads what it says to the end: no process of the daemon's keeps that open.
#[test]
fn who_starts_the_daemon_does_not_wait_for_what_the_daemon_starts() {
    let _alone = DEAD.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(rig) = Rig::as_root("start-open") else {
        return;
    };
    // A mount walks its path, in a process.
    let (mut rig, _) = rig.with_tank(64 * MIB);
    let walks = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|b| *b == 0).any(|w| w == b"--walk-paths")
    };
    let mut started = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", rig.pid())).unwrap() {
        let list = fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        started.extend(list.split_whitespace().map(|p| p.parse::<u32>().unwrap()));
    }
    started.retain(walks);
    assert!(!started.is_empty(), "nothing walks paths");
    for pid in started {
        for n in [1, 2] {
            let open = fs::read_link(format!("/proc/{pid}/fd/{n}")).unwrap();
            assert_eq!(open, Path::new("/dev/null"), "{n}");
        }
    }
    rig.stop();
    let said = rig.soon(
        Duration::from_secs(60),
        "zpool",
        &["list", "-H", "-o", "name"],
    );
    assert_eq!(said.ok(), "tank\n");
    rig.zpool(&["export", "tank"]);
    let pid = owner(&rig).parse().unwrap();
    system_tests::signal(pid, rustix::process::Signal::TERM);
    until("the daemon ends", || !rig.socket().exists());
}

#[test]
fn daemons_that_share_a_cache_file_leave_each_other_s_pools_in_it() {
    let _alone = DEAD.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(mut one), Some(mut two)) = (Rig::new("cache-one"), Rig::new("cache-two")) else {
        return;
    };
    let cache = one.path().join("shared.cache");
    for rig in [&mut one, &mut two] {
        rig.variable("ZFS_FUSE_CACHE", cache.to_str().unwrap());
    }
    let (a, b, c) = (
        one.image("a", 64 * MIB),
        two.image("b", 64 * MIB),
        two.image("c", 64 * MIB),
    );
    one.start();
    two.start();
    let create = |rig: &Rig, pool: &str, image: &str| {
        rig.zpool(&["create", "-O", "mountpoint=none", pool, image]);
    };
    let pools = |rig: &mut Rig| {
        rig.start();
        let list = rig.zpool(&["list", "-H", "-o", "name"]);
        rig.stop();
        list
    };
    create(&one, "alpha", &a);
    create(&two, "beta", &b);
    create(&two, "gamma", &c);
    // Each writes the file once more.
    one.zpool(&["set", "comment=x", "alpha"]);
    two.zpool(&["export", "gamma"]);
    one.stop();
    two.stop();
    assert_eq!(pools(&mut one), "alpha\nbeta\n");
    one.start();
    one.zpool(&["export", "alpha"]);
    one.stop();
    assert_eq!(pools(&mut two), "beta\n");
}

#[test]
fn what_a_killed_daemon_left_mounted_is_taken_away() {
    let _alone = DEAD.lock().unwrap_or_else(PoisonError::into_inner);
    let (Some(mut rig), Some(mut other)) =
        (Rig::as_root("dead-mounts"), Rig::as_root("dead-mounts-2"))
    else {
        return;
    };
    let images = [rig.image("a", 64 * MIB), rig.image("b", 64 * MIB)];
    let place = |n: usize| rig.path().join(format!("mnt/{n}"));
    let places = [place(0), place(1)];
    let dead = |p: &Path| {
        // The kernel says: transport endpoint is not connected.
        fs::metadata(p).is_err_and(|e| e.raw_os_error() == Some(107))
    };
    rig.start();
    for (n, image) in images.iter().enumerate() {
        let (pool, at) = (format!("dead{n}"), places[n].to_str().unwrap());
        rig.zpool(&["create", "-o", "cachefile=none", "-m", at, &pool, image]);
    }
    other.start();
    rig.kill_alone();
    for p in &places {
        until("the mount is dead", || dead(p));
    }
    // By place and by name, although no pool of that name is imported.
    other.zfs(&["unmount", places[0].to_str().unwrap()]);
    assert!(!dead(&places[0]) && dead(&places[1]));
    other.zfs(&["unmount", "dead1"]);
    assert!(!dead(&places[1]));
    other.stop();
    // And at the start of the next daemon.
    rig.start();
    let disks = rig.disks();
    rig.zpool(&[
        "import",
        "-f",
        "-o",
        "cachefile=none",
        "-d",
        disks.to_str().unwrap(),
        "-a",
    ]);
    rig.kill_alone();
    until("the mount is dead", || dead(&places[1]));
    rig.start();
    assert!(!dead(&places[0]) && !dead(&places[1]), "{}", rig.log());
    rig.stop();
}
