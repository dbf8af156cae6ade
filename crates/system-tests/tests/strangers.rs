//! What users may not make root's daemon do with what they were given, and what they are not told.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use system_tests::{programs, Group, Rig};

const NOBODY: u32 = 65534;
const MIB: u64 = 1 << 20;

/// A pool with the file system `tank/u`, whose files belong to an ordinary user who has these permissions there.
fn tank(name: &str, given: &str) -> Option<Rig> {
    let mut rig = Rig::as_root(name)?;
    rig.start();
    let image = rig.image("disk", 128 * MIB);
    let home = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", home.to_str().unwrap(), "tank", &image]);
    rig.zfs(&["create", "tank/u"]);
    chown(home.join("u"), Some(NOBODY), Some(NOBODY)).unwrap();
    if !given.is_empty() {
        rig.zfs(&["allow", "-u", "65534", given, "tank/u"]);
    }
    Some(rig)
}

/// Has root's daemon take the pool out of service and in again.
fn import_again(rig: &Rig) {
    rig.zpool(&["export", "tank"]);
    let disks = rig.disks();
    let said = rig.try_run("zpool", &["import", "-d", disks.to_str().unwrap(), "tank"]);
    // What cannot be mounted is told, and is no failure of the import.
    assert!(
        said.status.success() || said.err.contains("cannot mount"),
        "{}",
        said.err
    );
}

fn shell(rig: &Rig, script: &str) {
    rig.try_run_as(Some(NOBODY), "sh", &["-ec", script]).ok();
}

/// Place and options of the mount of a dataset, as the kernel has them.
fn mounted(rig: &Rig, name: &str) -> Option<(String, String)> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    // Other tests have pools of the same name.
    let here = rig.path().to_str().unwrap();
    let mut lines = table.lines().filter(|l| l.contains(here));
    let line = lines.find(|l| l.contains(&format!(" {name} ")))?;
    let mut fields = line.split(' ').skip(4);
    Some((fields.next()?.into(), fields.next()?.into()))
}

fn is_powerless(rig: &Rig, name: &str) -> bool {
    let (_, options) = mounted(rig, name).unwrap();
    let has = |o: &str| options.split(',').any(|have| have == o);
    has("nosuid") && has("nodev")
}

#[test]
fn received_programs_and_devices_get_no_power_from_roots_import() {
    let Some(rig) = tank("power", "receive,create,mount") else {
        return;
    };
    rig.zfs(&["create", "tank/src"]);
    let shell_there = rig.mnt().join("tank/src/sh");
    fs::copy("/bin/sh", &shell_there).unwrap();
    fs::set_permissions(&shell_there, PermissionsExt::from_mode(0o4755)).unwrap();
    rig.zfs(&["snapshot", "tank/src@s"]);
    let stream = rig.path().join("stream");
    rig.sh(&format!("zfs send tank/src@s >{}", stream.display()));
    shell(&rig, &format!("zfs receive tank/u/r <{}", stream.display()));
    for name in ["tank/u", "tank/u/r"] {
        assert!(is_powerless(&rig, name), "{name}");
    }
    assert!(!is_powerless(&rig, "tank/src"));
    import_again(&rig);
    assert!(is_powerless(&rig, "tank/u/r") && is_powerless(&rig, "tank/u"));
    // What was received stays so when the permission is taken back.
    rig.zfs(&["unallow", "-r", "-u", "65534", "tank/u"]);
    import_again(&rig);
    assert!(is_powerless(&rig, "tank/u/r"));
    assert!(
        !is_powerless(&rig, "tank/u"),
        "{:?} {}",
        mounted(&rig, "tank/u"),
        rig.zfs(&["allow", "tank/u"])
    );
    rig.zfs(&["set", "setuid=on", "tank/u/r"]);
    let (_, options) = mounted(&rig, "tank/u/r").unwrap();
    assert!(
        !options.contains("nosuid") && options.contains("nodev"),
        "{options}"
    );
}

/// A copy of a mount has options of its own, which do not change with those of the mount.
#[test]
fn copies_of_a_mount_give_received_programs_no_power() {
    let Some(rig) = tank("copies", "") else {
        return;
    };
    let (stream, copy) = (rig.path().join("stream"), rig.path().join("copy"));
    let stream = stream.to_str().unwrap();
    rig.zfs(&["create", "-o", "atime=off", "tank/src"]);
    rig.zfs(&["snapshot", "tank/src@a"]);
    rig.sh(&format!(
        "zfs send tank/src@a >{stream}; zfs receive -o atime=off tank/v <{stream}"
    ));
    fs::create_dir(&copy).unwrap();
    let place = rig.mnt().join("tank/v");
    let copy_of = [place.to_str().unwrap(), copy.to_str().unwrap()];
    rig.sh(&format!("mount --bind {} {}", copy_of[0], copy_of[1]));
    let id = rig.mnt().join("tank/src/id");
    fs::copy("/usr/bin/id", &id).unwrap();
    fs::set_permissions(&id, PermissionsExt::from_mode(0o4755)).unwrap();
    rig.zfs(&["snapshot", "tank/src@b"]);
    let did = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rig.zfs(&["allow", "-u", "65534", "receive,create,mount", "tank/v"]);
        rig.sh(&format!(
            "zfs send -i @a tank/src@b >{stream}; chmod 644 {stream}"
        ));
        shell(&rig, &format!("zfs receive tank/v <{stream}"));
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|l| l.contains(copy_of[1])).unwrap();
        assert!(
            !line.contains("nosuid"),
            "it is the copy that counts: {line}"
        );
        for at in ["id", ".zfs/snapshot/b/id"] {
            let program = copy.join(at);
            let said = rig.try_run_as(Some(NOBODY), program.to_str().unwrap(), &["-u"]);
            assert_eq!(said.ok().trim(), "65534", "{at}");
            let mode = fs::metadata(&program).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o755, "{at}");
        }
        assert!(is_powerless(&rig, "tank/v"));
    }));
    rig.sh(&format!("umount {}", copy_of[1]));
    if let Err(panic) = did {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn root_mounts_no_users_files_over_its_own_directories() {
    let given = "mount,create,mountpoint,canmount,rename";
    let Some(rig) = tank("places", given) else {
        return;
    };
    let dir = |name: &str, owner: u32| {
        let dir = rig.path().join(name);
        fs::create_dir(&dir).unwrap();
        chown(&dir, Some(owner), Some(owner)).unwrap();
        dir.to_str().unwrap().to_string()
    };
    let (roots, his) = (dir("roots", 0), dir("his", NOBODY));
    shell(&rig, "zfs create tank/u/a; zfs create tank/u/b");
    // It is refused at once, also where nothing is to be mounted.
    let place = format!("mountpoint={roots}");
    for args in [
        ["set", "-u", &place, "tank/u/a"].as_slice(),
        &["set", &place, "tank/u/a"],
    ] {
        let said = rig.try_run_as(Some(NOBODY), "zfs", args).fails(1);
        assert!(said.contains("does not belong to user 65534"), "{said}");
    }
    assert_eq!(
        rig.get("mountpoint", "tank/u/a"),
        rig.mnt().join("tank/u/a").to_str().unwrap()
    );
    // The place was the user's when it was set.
    chown(&roots, Some(NOBODY), Some(NOBODY)).unwrap();
    shell(
        &rig,
        &format!("zfs set -u mountpoint={roots} tank/u/a; zfs set mountpoint={his}/b tank/u/b"),
    );
    rig.try_run("zfs", &["unmount", "tank/u/a"]);
    chown(&roots, Some(0), Some(0)).unwrap();
    import_again(&rig);
    assert_eq!(mounted(&rig, "tank/u/a"), None, "over root's directory");
    assert_eq!(mounted(&rig, "tank/u/b").unwrap().0, format!("{his}/b"));
    let said = rig.try_run("zfs", &["mount", "tank/u/a"]).fails(1);
    assert!(said.contains("does not belong to user 65534"), "{said}");
    // The directory is looked at again each time.
    rig.zfs(&["unmount", "tank/u/b"]);
    let b = Path::new(&his).join("b");
    let _ = fs::create_dir(&b);
    chown(&b, Some(0), Some(0)).unwrap();
    fs::write(b.join("roots"), "").unwrap();
    rig.try_run("zfs", &["mount", "tank/u/b"]).fails(1);
    // Where root has set it, it stays root's.
    rig.zfs(&["set", &format!("mountpoint={roots}"), "tank/u/a"]);
    assert_eq!(mounted(&rig, "tank/u/a").unwrap().0, roots);
    // A change does not unmount what `zfs unmount` leaves alone.
    chown(&roots, Some(0), Some(0)).unwrap();
    for script in [
        "zfs set canmount=off tank/u/a",
        &format!("zfs set mountpoint={his}/elsewhere tank/u/a"),
        "zfs rename -f tank/u/a tank/u/c",
    ] {
        shell(&rig, script);
        let name = match script.contains("rename") {
            true => "tank/u/c",
            false => "tank/u/a",
        };
        let place = mounted(&rig, name).or(mounted(&rig, "tank/u/a")).unwrap().0;
        assert_eq!(place, roots, "{script}");
    }
}

/// Children of the daemon that have ended and that it has not waited for.
fn zombies(rig: &Rig) -> usize {
    let parent = format!("PPid:\t{}\n", rig.pid());
    let all = fs::read_dir("/proc").unwrap().flatten();
    let states = all.filter_map(|e| fs::read_to_string(e.path().join("status")).ok());
    let dead = |s: &String| s.contains(&parent) && s.contains("State:\tZ");
    states.filter(dead).count()
}

#[test]
fn paths_that_nobody_can_walk_leave_no_processes_behind() {
    let Some(rig) = tank("long", "mount") else {
        return;
    };
    rig.zfs(&["snapshot", "tank/u@s"]);
    for length in [4095, 4096, 40_000] {
        let path = format!("/{}", "long/".repeat(length / 5 + 1));
        for _ in 0..20 {
            let said = rig.try_run_as(Some(NOBODY), "zfs", &["mount", "tank/u@s", &path[..length]]);
            said.fails(1);
        }
    }
    // One that has just ended is waited for with the next question.
    rig.try_run_as(Some(NOBODY), "zfs", &["mount", "tank/u@s", "/none"])
        .fails(1);
    let left = zombies(&rig);
    assert!(left <= 2, "{left} processes");
}

#[test]
fn strangers_are_told_nothing_of_others() {
    let Some(rig) = tank("told", "mount,create") else {
        return;
    };
    fs::write(rig.mnt().join("tank/u/f"), vec![1; 1 << 20]).unwrap();
    rig.zpool(&["sync"]);
    let as_nobody = |program: &str, args: &[&str]| rig.try_run_as(Some(NOBODY), program, args);
    let get = |what: &str| {
        let said = as_nobody("zfs", &["get", "-Hp", "-o", "value", what, "tank/u"]).ok();
        said.trim().to_string()
    };
    assert_eq!(get("userused@0"), "-");
    assert_eq!(get("groupused@0"), "-");
    assert_eq!(get("userquota@0"), "-");
    assert!(get("userused@65534").parse::<u64>().is_ok());
    assert!(get("groupused@65534").parse::<u64>().is_ok());
    assert!(rig.get("userused@0", "tank/u") != "-");
    rig.zfs(&["allow", "-u", "65534", "userused", "tank/u"]);
    assert!(get("userused@0").parse::<u64>().unwrap() > 0);
    let events = as_nobody("zpool", &["events", "-v"]).ok();
    assert!(events.contains("history_event"), "{events}");
    assert!(!events.contains("history_internal_"), "{events}");
    assert!(rig.zpool(&["events", "-v"]).contains("history_internal_"));
    // Who keeps it busy is root's business.
    shell(&rig, "zfs create tank/u/busy");
    let mut sleeper = rig
        .command("sh", &["-c", "cd tank/u/busy && exec sleep 60"])
        .current_dir(rig.mnt())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pid = sleeper.id().to_string();
    system_tests::until("the sleeper is there", || {
        let cwd = fs::read_link(format!("/proc/{pid}/cwd"));
        cwd.is_ok_and(|d| d.ends_with("busy"))
    });
    let said = as_nobody("zfs", &["unmount", "tank/u/busy"]);
    let roots = rig.try_run("zfs", &["unmount", "tank/u/busy"]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let said = said.fails(1);
    assert!(said.contains("busy") && !said.contains(&pid), "{said}");
    assert!(roots.fails(1).contains(&pid));
}

/// In the tests' own program, started as another user: says what is in a file to a socket, and prints how much comes back.
#[test]
fn speaker() {
    let Some(socket) = std::env::var_os("ZT_SPEAK_TO") else {
        return;
    };
    let frame = fs::read(std::env::var_os("ZT_SPEAK").unwrap()).unwrap();
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(&frame).unwrap();
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    // The last message does not say that another one follows.
    let is_last = |answer: &[u8]| {
        let whole = answer.strip_suffix(b"\0");
        let last = whole.and_then(|a| a.split(|b| *b == 0).next_back());
        last.is_some_and(|m| !String::from_utf8_lossy(m).contains("\"continues\":true"))
    };
    while !is_last(&answer) {
        match stream.read(&mut part).unwrap() {
            0 => break,
            n => answer.extend_from_slice(&part[..n]),
        }
    }
    println!("answer: {} bytes", answer.len());
}

/// Of one who may not receive, and of one who may.
fn a_list_of_64_mib_is_not_read(rig: &Rig) {
    let stream = rig.path().join("stream");
    rig.sh(&format!("zfs send p@s >{}", stream.display()));
    let mut bytes = fs::read(&stream).unwrap();
    bytes[4..8].copy_from_slice(&(64u32 << 20).to_le_bytes());
    bytes.resize(65 << 20, 0);
    fs::write(&stream, bytes).unwrap();
    for (given, want) in [(false, "permission denied"), (true, "more than")] {
        if given {
            rig.zfs(&["allow", "-u", "65534", "receive,create,mount", "p"]);
        }
        fs::write(format!("/proc/{}/clear_refs", rig.pid()), "5").unwrap();
        let before = rig.memory("VmHWM");
        let script = format!("zfs receive p/x <{}", stream.display());
        let said = rig
            .try_run_as(Some(NOBODY), "sh", &["-c", &script])
            .fails(1);
        let more = rig.memory("VmHWM").saturating_sub(before);
        assert!(said.contains(want), "{said}");
        assert!(more <= 16 * MIB, "{more} bytes of memory");
    }
}

#[test]
fn memory_of_strangers() {
    let name = "stranger-memory";
    let Some(mut rig) = Rig::as_root(name) else {
        return;
    };
    let Some(group) = Group::with_memory(name, 256 * MIB) else {
        return;
    };
    let image = rig.image("disk", 128 * MIB);
    rig.daemon_group(&group);
    rig.daemon_options(&["--max-arc-size=16"]);
    rig.start();
    fs::write(format!("/proc/{}/oom_score_adj", rig.pid()), "0").unwrap();
    rig.zpool(&["create", "-m", "none", "p", &image]);
    rig.zfs(&["snapshot", "p@s"]);
    for n in 0..50 {
        rig.zfs(&[
            "hold",
            &format!("a-hold-of-root-with-a-long-tag-{n}"),
            "p@s",
        ]);
    }
    let program = rig.path().join("bin/speaker");
    programs::copy(&std::env::current_exe().unwrap(), &program);
    let many = |word: &str, n: usize| vec![format!("\"{word}\""); n].join(",");
    let props: Vec<String> = (0..5000).map(|n| format!("\"a:{n}\"")).collect();
    let calls = [
        ("PoolGet", format!("{{\"pools\":[{}],\"props\":\"all\",\"tree\":true}}", many("p", 7000))),
        ("Holds", format!("{{\"snapshots\":[{}]}}", many("p@s", 5400))),
        (
            "DatasetGet",
            format!(
                "{{\"roots\":[{}],\"kinds\":[\"filesystem\",\"snapshot\"],\"props\":\"all\"}}",
                many("p", 7000)
            ),
        ),
        (
            "DatasetGet",
            format!(
                "{{\"roots\":[\"p\"],\"kinds\":[\"filesystem\",\"snapshot\"],\"props\":{{\"these\":[{}]}}}}",
                props.join(",")
            ),
        ),
        ("SpaceOf", format!("{{\"dataset\":\"p\",\"who\":[{}]}}", many("user", 6000))),
        ("SnapshotCreate", format!("{{\"names\":[{}]}}", many("p@n", 7000))),
        ("HoldAdd", format!("{{\"tag\":\"t\",\"snapshots\":[{}]}}", many("p@s", 5000))),
    ];
    let asks = |method: &str, parameters: &str, file: &str| {
        let frame = format!(
            "{{\"method\":\"org.zfsfuse.control1.{method}\",\"parameters\":{parameters},\"more\":true}}\0"
        );
        assert!(
            frame.len() < 64 << 10,
            "{method}: it would be refused for its length"
        );
        let file = rig.path().join(file);
        fs::write(&file, frame).unwrap();
        let mut c = rig.command_as(
            Some(NOBODY),
            "speaker",
            &["--exact", "speaker", "--nocapture", "--test-threads=1"],
        );
        c.env("ZT_SPEAK_TO", rig.socket()).env("ZT_SPEAK", file);
        c
    };
    let answer = |method: &str, out: &[u8]| -> u64 {
        let text = String::from_utf8_lossy(out).into_owned();
        let said = text
            .lines()
            .find_map(|l| l.split_once("answer: ")?.1.split(' ').next()?.parse().ok());
        said.unwrap_or_else(|| panic!("{method}: {text}"))
    };
    let speak = |method: &str, parameters: &str| {
        let out = asks(method, parameters, "speak").output().unwrap();
        answer(method, &out.stdout)
    };
    // What the first answer of all costs is no request's.
    let _: u64 = speak("PoolGet", "{\"pools\":[\"p\"]}");
    for (method, parameters) in &calls {
        // The highest mark begins anew.
        fs::write(format!("/proc/{}/clear_refs", rig.pid()), "5").unwrap();
        let before = rig.memory("VmHWM");
        let bytes: u64 = speak(method, parameters);
        let more = rig.memory("VmHWM").saturating_sub(before);
        assert!(bytes < 4 * MIB, "{method}: {bytes} bytes of an answer");
        assert!(more <= 16 * MIB, "{method}: {more} bytes of memory");
    }
    // As many at a time as a user has connections: they take turns.
    fs::write(format!("/proc/{}/clear_refs", rig.pid()), "5").unwrap();
    let before = rig.memory("VmHWM");
    let all: Vec<_> = (0..30)
        .map(|n| {
            let (method, parameters) = &calls[n % calls.len()];
            let mut c = asks(method, parameters, &format!("speak{n}"));
            c.stdout(Stdio::piped());
            (method, c.spawn().unwrap())
        })
        .collect();
    for (method, child) in all {
        let out = child.wait_with_output().unwrap();
        assert!(answer(method, &out.stdout) > 0);
    }
    let more = rig.memory("VmHWM").saturating_sub(before);
    println!("30 requests at a time: {more} bytes of memory");
    assert!(more <= 64 * MIB, "{more} bytes of memory");
    a_list_of_64_mib_is_not_read(&rig);
    assert_eq!(group.oom_kills(), 0);
}
