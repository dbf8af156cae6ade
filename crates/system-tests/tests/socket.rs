//! The control socket: whom it serves, and what comes in there that should not.

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use system_tests::{programs, until, Dice, Rig};

/// What answers at once may take this long on a busy machine.
const SOON: Duration = Duration::from_secs(45);
const MIB: u64 = 1 << 20;
/// Users nobody is.
const STRANGER: u32 = 65533;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn socket(rig: &Rig) -> PathBuf {
    rig.path().join("run/control.sock")
}

/// A call as it travels.
fn call(method: &str, parameters: &str) -> Vec<u8> {
    format!(
        "{{\"method\":\"org.zfsfuse.control1.{method}\",\"parameters\":{parameters},\"more\":true}}\0"
    )
    .into_bytes()
}

/// Allows as many open files as may be, for each connection is one; how many connections of `wanted`
/// that makes.
fn connections(wanted: u64) -> usize {
    let most = getrlimit(Resource::Nofile).maximum;
    let both = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::Nofile, both).unwrap();
    most.map_or(wanted, |m| wanted.min(m / 2)) as usize
}

/// In the tests' own program, started as another user: says what is in a file to a socket, with
/// nothing of a client's manners, and prints what comes back.
#[test]
fn speaker() {
    let Some(socket) = std::env::var_os("ZT_SPEAK_TO") else {
        return;
    };
    let frame = fs::read(std::env::var_os("ZT_SPEAK").unwrap()).unwrap();
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(e) => {
            println!("connect: {e}");
            return;
        }
    };
    // It may be told to stop before the end.
    let _ = stream.write_all(&frame);
    let mut answer = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() == 1 && byte[0] != 0 {
        answer.push(byte[0]);
    }
    println!("answer: {}", String::from_utf8_lossy(&answer));
}

/// What a daemon answers to a raw call of user `uid`.
fn speak_as(rig: &Rig, uid: u32, socket: &Path, frame: &[u8]) -> String {
    let program = rig.path().join("bin/speaker");
    if !program.exists() {
        programs::copy(&std::env::current_exe().unwrap(), &program);
    }
    let file = rig.path().join("speak");
    fs::write(&file, frame).unwrap();
    let mut c = rig.command_as(
        Some(uid),
        "speaker",
        &["--exact", "speaker", "--nocapture", "--test-threads=1"],
    );
    let out = c
        .env("ZT_SPEAK_TO", socket)
        .env("ZT_SPEAK", file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}");
    text
}

#[test]
fn a_stranger_may_look_at_roots_pools_and_no_more() {
    let Some(mut rig) = Rig::as_root("strangers") else {
        return;
    };
    let dir = rig.path().join("run/ctl");
    let at = dir.join("control.sock");
    rig.serve_at(&at);
    let image = rig.image("disk", 128 * MIB);
    let mnt = rig.mnt();
    rig.daemon_prelude("umask 077");
    rig.start();
    assert_eq!((mode(&dir), mode(&at)), (0o755, 0o666));
    assert_eq!(mode(&dir.join("control.sock.lock")), 0o600);
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    rig.zfs(&["create", "tank/a"]);
    let stranger = |program: &str, args: &[&str]| rig.try_run_as(Some(STRANGER), program, args);
    assert!(stranger("zpool", &["list", "-H", "-o", "name"]).ok() == "tank\n");
    assert!(stranger("zfs", &["get", "-H", "all", "tank/a"])
        .ok()
        .contains("compression"));
    stranger("zpool", &["status", "tank"]).ok();
    // Commands others gave, and what others have, are not his business.
    for (program, args) in [
        ("zpool", &["history", "-il", "tank"][..]),
        ("zfs", &["userspace", "tank/a"]),
        ("zfs", &["groupspace", "tank/a"]),
    ] {
        let said = stranger(program, args).fails(1);
        assert!(said.contains("permission denied"), "{said}");
        rig.try_run(program, args).ok();
    }
    // Connections just ended may still be among them.
    let pause = || std::thread::sleep(Duration::from_millis(20));
    let files = (0..20).map(|_| (rig.open_files(), pause()).0).min();
    let other = rig.image("other", 128 * MIB);
    for (program, args) in [
        ("zpool", &["create", "mine", &other][..]),
        ("zpool", &["destroy", "tank"]),
        ("zpool", &["export", "-f", "tank"]),
        ("zpool", &["set", "comment=mine", "tank"]),
        ("zpool", &["clear", "tank"]),
        ("zpool", &["sync", "tank"]),
        ("zpool", &["import"]),
        ("zpool", &["labelclear", "-f", &other]),
        ("zfs", &["create", "tank/mine"]),
        ("zfs", &["destroy", "tank/a"]),
        ("zfs", &["rename", "tank/a", "tank/b"]),
        ("zfs", &["set", "compression=off", "tank/a"]),
        ("zfs", &["inherit", "compression", "tank/a"]),
        ("zfs", &["unmount", "tank/a"]),
        ("zfs", &["snapshot", "tank/a@s"]),
        ("zfs", &["allow", "everyone", "mount", "tank/a"]),
        // Its standard output goes along with the request.
        ("zfs", &["read", "tank/a"]),
    ] {
        let said = stranger(program, args).fails(1);
        assert!(
            said.contains("permission denied"),
            "{program} {args:?}: {said}"
        );
    }
    // What he may not mount is not his.
    rig.zfs(&["unmount", "tank/a"]);
    stranger("zfs", &["mount", "-a"]).ok();
    assert_eq!(rig.get("mounted", "tank/a"), "no");
    // There is nothing to upgrade, which he may know; the daemon does not do it for him either way.
    stranger("zpool", &["upgrade", "tank"]).ok();
    let upgrade = r#"{"pool":"tank","version":null,"command":"zpool upgrade tank"}"#;
    let said = speak_as(&rig, STRANGER, &at, &call("PoolUpgrade", upgrade));
    assert!(said.contains("permission denied"), "{said}");
    let said = speak_as(&rig, STRANGER, &at, &call("Stop", "{}"));
    assert!(said.contains("\"error\""), "{said}");
    // Who asks has not grown beyond what his questions may be.
    let long = call(
        "PoolGet",
        &format!("{{\"pools\":[{}\"\"]}}", "\"\",".repeat(500_000)),
    );
    let said = speak_as(&rig, STRANGER, &at, &long);
    assert!(said.contains("too long"), "{said}");
    assert_eq!(rig.zfs(&["list", "-H", "-o", "name"]), "tank\ntank/a\n");
    until("the descriptors are given back", || {
        Some(rig.open_files()) <= files
    });
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn a_users_daemon_is_the_users_alone() {
    let Some(mut rig) = Rig::as_user("own-socket") else {
        return;
    };
    // Where it is put without being told.
    let dir = rig.path().join("run/zfs-fuse");
    let at = dir.join("control.sock");
    rig.serve_at(&at);
    rig.daemon_prelude("umask 0");
    rig.start();
    assert_eq!((mode(&dir), mode(&at)), (0o700, 0o600));
    assert_eq!(mode(&dir.join("control.sock.lock")), 0o600);
    rig.zpool(&["list"]);
    if !system_tests::is_root() {
        eprintln!("skipped: only root can be another user");
        rig.stop();
        return;
    }
    let stranger = || {
        let said = rig.try_run_as(Some(STRANGER), "zpool", &["list"]).fails(1);
        assert!(
            said.contains("another user") && said.contains("ZFS_FUSE_SOCKET"),
            "{said}"
        );
        speak_as(&rig, STRANGER, &at, &call("PoolGet", "{}"))
    };
    let said = stranger();
    assert!(said.contains("connect: Permission denied"), "{said}");
    // In a place that others can enter, the socket itself refuses; and if somebody opened that, the
    // daemon does.
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
    let said = speak_as(&rig, STRANGER, &at, &call("PoolGet", "{}"));
    assert!(said.contains("connect: Permission denied"), "{said}");
    let said = rig.try_run_as(Some(STRANGER), "zpool", &["list"]).fails(1);
    assert!(said.contains("another user"), "{said}");
    fs::set_permissions(&at, PermissionsExt::from_mode(0o666)).unwrap();
    let said = stranger();
    assert!(
        said.contains("answer: ") && said.contains("\"error\""),
        "{said}"
    );
    let said = speak_as(&rig, STRANGER, &at, &call("Stop", "{}"));
    assert!(said.contains("\"error\""), "{said}");
    rig.zpool(&["list"]);
    rig.stop();
}

/// A command of the owner, and one of somebody else if there can be one, while others misbehave.
fn answered(rig: &Rig) {
    let said = rig.soon(SOON, "zpool", &["list", "-H", "-o", "name"]).ok();
    assert_eq!(said, "tank\n");
}

/// Connections of which each says the beginning of something, and those that are still there are
/// kept.
fn connect(socket: &Path, count: usize, beginning: &[u8]) -> Vec<UnixStream> {
    let mut kept = Vec::new();
    for _ in 0..count {
        // The queue of the listener is short; this waits for a place in it.
        let mut stream = UnixStream::connect(socket).unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        // One that was hung up on, or that nobody reads from, has said enough.
        let _ = stream.write_all(beginning);
        kept.push(stream);
    }
    kept
}

#[test]
fn crowds_do_not_keep_others_out() {
    let Some(mut rig) = Rig::as_user("crowd") else {
        return;
    };
    let (many, some) = (connections(3000), connections(1000));
    let image = rig.image("disk", 128 * MIB);
    rig.start();
    rig.zpool(&["create", "-m", "none", "tank", &image]);
    let at = socket(&rig);
    let before = rig.memory("VmRSS");
    let files = rig.open_files();

    let silent = connect(&at, many, b"");
    answered(&rig);
    let half = connect(&at, some, b"{\"method\":\"org.zfsfuse.control1.Pool");
    answered(&rig);
    assert!(rig.open_files() < files + 1000, "{}", rig.open_files());
    drop((silent, half));
    answered(&rig);
    // Each of these is allowed, all of them together are not.
    let large = vec![b'['; 3 << 20];
    std::thread::scope(|s| {
        let crowd: Vec<_> = (0..8)
            .map(|_| s.spawn(|| connect(&at, 40, &large)))
            .collect();
        answered(&rig);
        for c in crowd {
            let kept = c.join().unwrap();
            answered(&rig);
            drop(kept);
        }
    });
    // Without end.
    let mut endless = UnixStream::connect(&at).unwrap();
    let refused = (0..64).any(|_| endless.write_all(&large).is_err());
    assert!(refused, "an endless call is read");
    answered(&rig);
    let peak = rig.memory("VmHWM");
    assert!(
        peak < before + 128 * MIB,
        "{} MiB before, {} MiB at the peak",
        before >> 20,
        peak >> 20
    );
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

/// Whether a spoilt call is to be sent: not if it ends the daemon, rightly, nor if it names a place
/// beside the rig's folder, where folders would be made.
fn harmless(frame: &[u8], rig: &Path) -> bool {
    let count = |what: &[u8]| frame.windows(what.len()).filter(|w| *w == what).count();
    let path = |p: &Path| format!("{}/", p.display()).into_bytes();
    let beside = rig.parent().map_or(0, |parent| count(&path(parent)));
    count(b"Stop") == 0 && beside == count(&path(rig))
}

/// Good calls, to be spoilt.
fn calls(rig: &Rig) -> Vec<Vec<u8>> {
    let disk = rig.disks().join("more").display().to_string();
    let dir = rig.disks().display().to_string();
    let p = |text: &str| text.replace("DISK", &disk).replace("DIR", &dir);
    [
        ("Ping", "{}".into()),
        ("Version", "{}".into()),
        ("SupportedFeatures", "{}".into()),
        ("MountList", "{}".into()),
        ("PoolGet", p(r#"{"pools":["tank"],"props":"all","tree":true,"error_list":true,"histograms":true}"#)),
        ("PoolGet", p(r#"{"props":{"these":["size","health","nonsense"]}}"#)),
        ("PoolHistory", p(r#"{"pool":"tank","internal":true}"#)),
        ("PoolActivity", p(r#"{"pool":"tank"}"#)),
        ("PoolSync", p(r#"{"pool":"tank"}"#)),
        ("PoolSet", p(r#"{"pool":"tank","props":[["comment","text"],["autotrim","off"]],"command":"x"}"#)),
        ("PoolScrub", p(r#"{"pool":"tank"}"#)),
        ("PoolWear", p(r#"{"pool":"tank"}"#)),
        ("PoolResilver", p(r#"{"pool":"tank"}"#)),
        ("PoolCheckpoint", p(r#"{"pool":"tank"}"#)),
        ("PoolCheckpoint", p(r#"{"pool":"tank","discard":true}"#)),
        ("VdevGet", p(r#"{"pool":"tank","props":"all"}"#)),
        ("VdevGet", p(r#"{"pool":"tank","vdevs":["DISK"],"props":{"these":["size","nonsense"]}}"#)),
        ("VdevSet", p(r#"{"pool":"tank","vdev":"DISK","property":"comment","value":"x"}"#)),
        ("PoolSplit", p(r#"{"pool":"tank","name":"half","devices":["DISK"],"dry_run":true}"#)),
        ("PoolSplit", p(r#"{"pool":"tank","name":"half"}"#)),
        ("PoolReguid", p(r#"{"pool":"tank","guid":77}"#)),
        ("PoolPrefetch", p(r#"{"pool":"tank","table":"ddt"}"#)),
        ("PoolPrune", p(r#"{"pool":"tank","what":{"percent":10}}"#)),
        ("PoolClear", p(r#"{"pool":"tank","device":"DISK"}"#)),
        ("PoolAdd", p(r#"{"pool":"tank","vdevs":[{"kind":"file","class":"spare","path":"DISK"}],"ashift":12,"dry_run":true}"#)),
        ("DeviceRemove", p(r#"{"pool":"tank","device":"DISK"}"#)),
        ("RemovalCancel", p(r#"{"pool":"tank","command":"x"}"#)),
        ("DeviceRemove", p(r#"{"pool":"tank","device":"DISK","estimate":true}"#)),
        ("DeviceOnline", p(r#"{"pool":"tank","device":"DISK","expand":true}"#)),
        ("DeviceOffline", p(r#"{"pool":"tank","device":"DISK","temporary":true}"#)),
        ("DeviceAttach", p(r#"{"pool":"tank","device":"DISK","new":"DISK","replace":true,"ashift":9}"#)),
        ("DeviceDetach", p(r#"{"pool":"tank","device":"DISK"}"#)),
        ("PoolReopen", p(r#"{"pool":"tank"}"#)),
        ("Events", p(r#"{"pool":"tank","after":3}"#)),
        ("EventsClear", "{}".to_string()),
        ("PoolUpgrade", p(r#"{"pool":"tank","version":28}"#)),
        ("PoolCreate", p(r#"{"name":"more","vdevs":[{"kind":"mirror","class":"normal","children":[{"kind":"file","path":"DISK"},{"kind":{"draid":{"parity":1,"data":2,"children":4,"spares":0}},"path":"DISK"}]}],"props":[["ashift","12"]],"fs_props":[["mountpoint","none"]],"dry_run":true}"#)),
        ("ImportScan", p(r#"{"places":["DIR"],"destroyed":true}"#)),
        ("PoolImport", p(r#"{"search":{"places":["DIR"]},"pool":"more","rewind":true,"txg":7,"no_mount":true}"#)),
        ("LabelClear", p(r#"{"path":"DISK"}"#)),
        ("DatasetGet", p(r#"{"roots":["tank"],"depth":2,"kinds":["filesystem","volume","snapshot","bookmark"],"props":"all"}"#)),
        ("DatasetCreate", p(r#"{"name":"tank/c","props":[["compression","gzip-9"],["quota","1M"]],"parents":true,"no_mount":true,"key":"6162"}"#)),
        ("DatasetSet", p(r#"{"dataset":"tank/b","props":[["recordsize","16K"],["user:x","y"]]}"#)),
        ("DatasetInherit", p(r#"{"dataset":"tank/b","property":"recordsize","recursive":true}"#)),
        ("DatasetRename", p(r#"{"from":"tank/c","to":"tank/d/e","parents":true}"#)),
        ("DatasetDestroy", p(r#"{"name":"tank/c","recursive":true}"#)),
        ("KeyLoad", p(r#"{"dataset":"tank/b","key":"78"}"#)),
        ("KeyUnload", p(r#"{"dataset":"tank/b"}"#)),
        ("Mount", p(r#"{"dataset":"tank/b","options":["ro"],"directory":"DIR/at"}"#)),
        ("MountAll", p(r#"{"root":"tank/b"}"#)),
        ("Unmount", p(r#"{"target":"tank/b","force":true}"#)),
        ("UnmountAll", p(r#"{"force":true}"#)),
        ("Share", p(r#"{"target":"tank/b"}"#)),
        ("Unshare", p(r#"{"target":"DIR/at"}"#)),
        ("ShareAll", p(r#"{"share":true}"#)),
        ("VolumeRead", p(r#"{"volume":"tank/b","offset":512,"length":100}"#)),
        ("FileRead", p(r#"{"dataset":"tank/b","path":"/x/y","wanted":"archive"}"#)),
        ("Send", p(r#"{"target":"tank@a","from":"tank@b","replicate":true,"exclude":["tank/b"],"dry_run":true,"sizes":true}"#)),
        ("Send", p(r#"{"token":"1-7-8-789c","redact":"tank#m","progress":true}"#)),
        ("Redact", p(r#"{"snapshot":"tank@a","bookmark":"m","snaps":["tank/c@a"]}"#)),
        ("Holds", p(r#"{"snapshots":["tank@a"],"recursive":true}"#)),
        ("Diff", p(r#"{"from":"tank@a","to":"tank"}"#)),
        ("DatasetActivity", p(r#"{"dataset":"tank/b"}"#)),
        ("SpaceHeld", p(r#"{"dataset":"tank","recursive":true}"#)),
        ("Permissions", p(r#"{"dataset":"tank/b"}"#)),
        ("PermissionsGive", p(r#"{"dataset":"tank/b","list":[{"to":{"user":7},"local":true,"permissions":["mount","@s"]},{"to":{"set":"@s"},"permissions":["hold"]}]}"#)),
        ("PermissionsTake", p(r#"{"dataset":"tank/b","list":[{"to":"everyone"},{"to":"creator","permissions":["hold"]}],"recursive":true}"#)),
        ("SpaceOf", p(r#"{"dataset":"tank/b","who":["user","group","project"]}"#)),
    ]
    .map(|(method, parameters): (&str, String)| call(method, &parameters))
    .to_vec()
}

fn spoil(dice: &mut Dice, seeds: &[Vec<u8>]) -> Vec<u8> {
    const WORDS: [&[u8]; 16] = [
        b"null",
        b"[]",
        b"{}",
        b"\"\"",
        b"-1",
        b"18446744073709551615",
        b"1e999",
        b"[[[[[[[[[[",
        b"\\ud800",
        b"\\u0000",
        b"true",
        b"\"@\"",
        b"\"/\"",
        b"tank",
        b"\xff\xfe",
        b"\0",
    ];
    let mut b = seeds[dice.below(seeds.len() as u64) as usize].clone();
    for _ in 0..1 << dice.below(4) {
        let len = b.len() as u64;
        let at = dice.below(len + 1) as usize;
        match dice.below(8) {
            0 => b.truncate(at),
            1 if at < b.len() => b[at] ^= 1 << dice.below(8),
            2 if at < b.len() => b[at] = dice.draw() as u8,
            3 => {
                let word = WORDS[dice.below(WORDS.len() as u64) as usize];
                b.splice(at..at, word.iter().copied());
            }
            4 => {
                // A part of another one.
                let other = &seeds[dice.below(seeds.len() as u64) as usize];
                let from = dice.below(other.len() as u64) as usize;
                let end = from + dice.below(other.len() as u64 - from as u64) as usize;
                b.splice(at..at, other[from..end].iter().copied());
            }
            5 => {
                let end = at + dice.below(len - at as u64 + 1) as usize;
                b.drain(at..end);
            }
            6 => {
                let end = (at + 40).min(b.len());
                let part = b[at..end].to_vec();
                let many = part.repeat(1 + dice.below(200) as usize);
                b.splice(at..at, many);
            }
            // The value of a field.
            _ => {
                let colons: Vec<usize> = (0..b.len()).filter(|i| b[*i] == b':').collect();
                if let Some(c) = colons.get(dice.below(colons.len() as u64) as usize) {
                    let word = WORDS[dice.below(13) as usize];
                    let end = (c + 1..b.len())
                        .find(|i| matches!(b[*i], b',' | b'}' | b']'))
                        .unwrap_or(b.len());
                    b.splice(c + 1..end, word.iter().copied());
                }
            }
        }
        if b.is_empty() {
            b.push(b'{');
        }
    }
    b.push(0);
    b
}

#[test]
fn nonsense_is_answered_and_forgotten() {
    let Some(mut rig) = Rig::as_user("nonsense") else {
        return;
    };
    let image = rig.image("disk", 256 * MIB);
    let more = rig.image("more", 128 * MIB);
    // What is in the cache is not what is looked for.
    rig.daemon_options(&["--max-arc-size=32"]);
    rig.start();
    rig.zpool(&["create", "-m", "none", "tank", &image]);
    rig.zfs(&["create", "tank/b"]);
    let seeds = calls(&rig);
    let at = socket(&rig);
    // Every one of them is understood as it is.
    for seed in &seeds {
        let answer = ask(&at, seed).expect("an answer");
        assert!(
            !answer.contains("not understood"),
            "{}: {answer}",
            String::from_utf8_lossy(seed)
        );
    }
    let before = rig.memory("VmRSS");
    let files = rig.open_files();
    let rounds = 700 * system_tests::number("ZFS_FUSE_TEST_SCALE", 1);
    let stop = AtomicBool::new(false);
    let told = AtomicU64::new(0);
    std::thread::scope(|s| {
        let speakers: Vec<_> = (0..4)
            .map(|n| {
                let (at, seeds, told, here) = (&at, &seeds, &told, rig.path());
                s.spawn(move || {
                    let mut dice = Dice::new(77 + n);
                    for _ in 0..rounds {
                        let frame = spoil(&mut dice, seeds);
                        if !harmless(&frame, here) {
                            continue;
                        }
                        if let Some(answer) = ask(at, &frame) {
                            told.fetch_add(1, Ordering::Relaxed);
                            assert!(
                                !answer.contains("internal error"),
                                "{}: {answer}",
                                String::from_utf8_lossy(&frame)
                            );
                        }
                    }
                })
            })
            .collect();
        let watch = s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                rig.soon(SOON, "zpool", &["list"]).ok();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let ended: Vec<_> = speakers.into_iter().map(|s| s.join()).collect();
        stop.store(true, Ordering::Relaxed);
        watch.join().unwrap();
        for e in ended {
            e.unwrap_or_else(|e| std::panic::resume_unwind(e));
        }
    });
    let told = told.into_inner();
    assert!(told > rounds * 2, "{told} answers to {} calls", rounds * 4);
    assert!(!rig.log().contains("panicked"), "{}", rig.log());
    rig.soon(SOON, "zpool", &["list"]).ok();
    let peak = rig.memory("VmHWM");
    assert!(
        peak < before + 192 * MIB,
        "{} MiB before, {} MiB at the peak",
        before >> 20,
        peak >> 20
    );
    assert!(
        rig.open_files() <= files + 16,
        "{} files, {files} before",
        rig.open_files()
    );
    // Whatever it did, it did not harm the daemon: a pool can be made, used and checked.
    let _ = fs::remove_file(more);
    let next = rig.image("next", 128 * MIB);
    rig.zpool(&["create", "-f", "-m", "none", "next", &next]);
    rig.zfs(&["create", "next/a"]);
    rig.zpool(&["export", "next"]);
    rig.zdb_check("next");
    rig.stop();
}

/// The last message of the answer to a frame; none if the daemon hangs up, or if nothing that calls
/// for an answer was said.
fn ask(socket: &Path, frame: &[u8]) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(frame).ok()?;
    stream.shutdown(std::net::Shutdown::Write).ok()?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut all = Vec::new();
    if let Err(e) = stream.read_to_end(&mut all) {
        assert_ne!(
            e.kind(),
            std::io::ErrorKind::WouldBlock,
            "{:?} is not answered",
            frame
        );
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    (!text.is_empty()).then_some(text)
}

/// A process that is killed with the value.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        system_tests::signal(self.0.id(), rustix::process::Signal::KILL);
        let ended = system_tests::wait(&mut self.0, SOON).is_some();
        assert!(ended || std::thread::panicking(), "cannot be killed");
    }
}

/// A pipe whose reading end is there and never read from, full.
fn a_full_pipe() -> (std::io::PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader, writer.into())
}

#[test]
fn who_does_not_listen_does_not_stop_others() {
    let Some(mut rig) = Rig::new("deaf") else {
        return;
    };
    let image = rig.image("disk", 256 * MIB);
    let mnt = rig.mnt();
    rig.start();
    let create = ["create", "-m", mnt.to_str().unwrap(), "tank", &image];
    rig.zpool(&create);
    rig.zfs(&["create", "tank/a"]);
    fs::write(mnt.join("a/f"), "content").unwrap();
    // A pool with a volume.
    let more = rig.path().join("more");
    fs::create_dir(&more).unwrap();
    let volumes = match testkit::fixture::unpack_into("zvol", &more) {
        Ok(()) => true,
        Err(e) => {
            eprintln!("skipped: reading of volumes: {e}");
            false
        }
    };
    let at = mnt.join("volumes").display().to_string();
    let import = [
        "import",
        "-f",
        "-d",
        more.to_str().unwrap(),
        "-R",
        &at,
        "amber0",
    ];
    if volumes {
        rig.zpool(&import);
    }

    // Long answers that nobody takes.
    let roots = vec!["\"tank/a\""; 20_000].join(",");
    let long = call(
        "DatasetGet",
        &format!("{{\"roots\":[{roots}],\"kinds\":[\"filesystem\"],\"props\":\"all\"}}"),
    );
    let at = socket(&rig);
    let deaf = connect(&at, 4, &long);
    // A command whose output nobody takes.
    let (_listing, out) = a_full_pipe();
    let names = vec!["tank/a"; 5_000];
    let args: Vec<&str> = ["get", "all"].into_iter().chain(names).collect();
    let list = Killed(rig.command("zfs", &args).stdout(out).spawn().unwrap());
    // The bytes of a volume, which the daemon itself writes into a pipe that nobody reads.
    let (_volume, out) = a_full_pipe();
    let mut read = Killed(
        rig.command("zfs", &["read", "amber0/ext4"])
            .stdout(out)
            .spawn()
            .unwrap(),
    );
    // A process that holds a file, stopped in the middle of writing.
    let held = mnt.join("a/held");
    let script = format!(
        "exec dd if=/dev/zero of={} bs=1M count=100000",
        held.display()
    );
    let writer = Killed(
        rig.command("sh", &["-c", &script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let begun = || fs::metadata(&held).is_ok_and(|m| m.len() > 8 << 20);
    until("something is written", begun);
    system_tests::signal(writer.0.id(), rustix::process::Signal::STOP);

    let soon = |program: &str, args: &[&str]| rig.soon(SOON, program, args).ok();
    let list_of = |pool: &str| {
        soon("zfs", &["list", "-H", "-r", "-o", "name", pool])
            .lines()
            .count()
    };
    assert_eq!(list_of("tank"), 2);
    if volumes {
        assert!(
            system_tests::wait(&mut read.0, Duration::from_secs(1)).is_none(),
            "read to the end"
        );
        soon("zfs", &["create", "-u", "amber0/x"]);
        soon("zpool", &["export", "amber0"]);
        soon("zpool", &import);
        assert_eq!(list_of("amber0"), 12);
        soon("zpool", &["export", "amber0"]);
    }
    soon("zfs", &["create", "tank/b"]);
    soon("zfs", &["set", "compression=off", "tank/a"]);
    soon(
        "sh",
        &[
            "-ec",
            &format!(
                "cd {}; cat a/f; seq 10000 >b/g; sync b/g; rm a/f",
                mnt.display()
            ),
        ],
    );
    // Most of all what has to have the pool for itself.
    let said = rig.soon(SOON, "zpool", &["export", "tank"]).fails(1);
    assert!(said.contains("busy"), "{said}");
    soon("zpool", &["export", "-f", "tank"]);
    soon(
        "zpool",
        &["import", "-d", rig.disks().to_str().unwrap(), "tank"],
    );
    soon(
        "sh",
        &["-ec", &format!("cd {}; tail -n 1 b/g", mnt.display())],
    );

    drop((writer, list, read));
    drop(deaf);
    soon("zpool", &["export", "tank"]);
    rig.stop();
}
