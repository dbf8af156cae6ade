//! Devices that are told to fail while a pool is in use: the daemon of test builds takes faults through
//! its control socket.

use api::{Fault, Transfer, Trouble};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use system_tests::tree::{self, Kinds};
use system_tests::{hash, signal, until, wait, Dice, Rig};

const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: false,
    huge: false,
};
const MIB: u64 = 1 << 20;
/// What takes moments may take this long on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Gives devices these faults and no others; `false` after saying why if the daemon cannot.
fn set(rig: &Rig, faults: &[(&str, Transfer, Trouble, u64)]) -> bool {
    let faults = faults
        .iter()
        .map(|&(device, on, does, one_of)| Fault {
            device: device.into(),
            on,
            does,
            one_of,
        })
        .collect();
    rig.set_faults(faults)
}

/// A row of `zpool status -p`: state and errors of reading, writing, checksums.
fn row(rig: &Rig, pool: &str, device: &str) -> (String, [u64; 3]) {
    let status = rig.zpool(&["status", "-p", pool]);
    let line = status
        .lines()
        // One that cannot be opened is shown by its number, and by what it was.
        .find(|l| l.split_whitespace().any(|w| w == device))
        .unwrap_or_else(|| panic!("no {device} in {status}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| words[i].parse().unwrap_or_else(|_| panic!("{line}"));
    (words[1].to_string(), [number(2), number(3), number(4)])
}

/// Nothing is left in a cache.
fn cold(rig: &Rig) {
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
}

#[test]
fn one_side_of_a_mirror() {
    let Some(mut rig) = Rig::new("fault-mirror") else {
        return;
    };
    let (a, b) = (rig.image("a", 256 * MIB), rig.image("b", 256 * MIB));
    let (a, b) = (a.as_str(), b.as_str());
    let mnt = rig.mnt();
    rig.start();
    if !set(&rig, &[]) {
        return;
    }
    rig.zpool(&[
        "create",
        "-m",
        mnt.to_str().unwrap(),
        "tank",
        "mirror",
        a,
        b,
    ]);
    tree::write(&mnt, 100, 51, KINDS).unwrap();
    let before = tree::describe(&mnt).unwrap();

    // It reads other bytes than were written: nobody sees them, and they are counted.
    cold(&rig);
    set(&rig, &[(a, Transfer::Read, Trouble::Garbage, 1)]);
    tree::assert_same(
        &before,
        &tree::describe(&mnt).unwrap(),
        "one side reads garbage",
    );
    let (_, [_, _, cksum]) = row(&rig, "tank", a);
    assert!(cksum > 0, "nobody noticed");
    assert_eq!(row(&rig, "tank", b).1, [0; 3], "the other one is blamed");

    // Now and then it does not read or write at all.
    set(&rig, &[]);
    rig.zpool(&["clear", "tank"]);
    cold(&rig);
    set(
        &rig,
        &[
            (a, Transfer::Read, Trouble::Error, 3),
            (a, Transfer::Write, Trouble::Error, 5),
        ],
    );
    tree::assert_same(
        &before,
        &tree::describe(&mnt).unwrap(),
        "one side fails to read",
    );
    let sub = mnt.join("sub");
    fs::create_dir(&sub).unwrap();
    tree::write(&sub, 60, 52, KINDS).unwrap();
    rig.zpool(&["sync", "tank"]);
    let (_, errors) = row(&rig, "tank", a);
    assert!(errors[0] + errors[1] > 0, "nobody noticed");
    let both = tree::describe(&mnt).unwrap();

    // What it missed, or has wrong, is not believed when it is well again.
    set(&rig, &[]);
    rig.zpool(&["clear", "tank"]);
    cold(&rig);
    tree::assert_same(&both, &tree::describe(&mnt).unwrap(), "both are well again");
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");

    // Slow, it does not hold up another pool.
    let other = rig.image("other", 128 * MIB);
    let beside = rig.path().join("beside");
    rig.zpool(&["create", "-m", beside.to_str().unwrap(), "other", &other]);
    set(&rig, &[(b, Transfer::Flush, Trouble::Delay(300), 1)]);
    std::thread::scope(|s| {
        let slow = s.spawn(|| rig.sh(&format!("cd {}; seq 1000 >slow; sync slow", mnt.display())));
        for n in 0..10 {
            let file = beside.join(format!("{n}"));
            rig.soon(
                SOON,
                "sh",
                &["-ec", &format!("echo {n} >{0}; sync {0}", file.display())],
            )
            .ok();
        }
        slow.join().unwrap();
    });
    set(&rig, &[]);
    for pool in ["tank", "other"] {
        rig.zpool(&["export", pool]);
    }
    rig.stop();
}

/// A side of a mirror that was away while something was written is named, in a state that scripts see, until
/// it has everything; then it stands alone.
#[test]
fn a_side_that_missed_writes_is_told_until_it_has_them() {
    let Some(mut rig) = Rig::new("fault-missed") else {
        return;
    };
    let (a, b) = (rig.image("a", 128 * MIB), rig.image("b", 128 * MIB));
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.start();
    // In no cache file, so that nothing is imported, and mended, by itself.
    let create = ["create", "-o", "cachefile=none", "-m", at, "tank", "mirror"];
    rig.zpool(&[&create[..], &[&a, &b]].concat());
    let before = write(&mnt.join("before"), 1).unwrap();
    rig.zpool(&["sync", "tank"]);
    let told = |rig: &Rig, words: &str| {
        let health = rig.zpool(&["list", "-H", "-o", "health", "tank"]);
        assert_eq!(health, "DEGRADED\n");
        for args in [&["status", "tank"][..], &["status", "-x"]] {
            let said = rig.zpool(args);
            assert!(said.contains("state: DEGRADED"), "{args:?}: {said}");
            assert!(said.contains(words), "{args:?}: {said}");
        }
        assert_ne!(row(rig, "tank", &b).0, "ONLINE");
        assert_eq!(row(rig, "tank", &a).0, "ONLINE");
    };
    // Until the daemon ends.
    rig.zpool(&["offline", "-t", "tank", &b]);
    let missed = write(&mnt.join("missed"), 2).unwrap();
    rig.zpool(&["sync", "tank"]);
    told(&rig, "");
    rig.kill();

    // All devices are there and well, and one lacks something.
    rig.start();
    let import = |rig: &Rig, options: &[&str]| {
        let args = [
            &["import", "-f", "-o", "cachefile=none", "-d", disks],
            options,
        ];
        rig.zpool(&[&args.concat()[..], &["tank"]].concat());
    };
    import(&rig, &["-o", "readonly=on"]);
    told(&rig, "lacks data of txg");
    let read = |name: &str| hash(&fs::read(mnt.join(name)).unwrap());
    assert_eq!((read("before"), read("missed")), (before, missed));
    rig.zpool(&["export", "tank"]);

    import(&rig, &[]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    until("it has everything", || {
        rig.zpool(&["list", "-H", "-o", "health", "tank"]) == "ONLINE\n"
    });
    let said = rig.zpool(&["status", "-x", "tank"]);
    assert!(said.contains("is healthy"), "{said}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    fs::rename(&a, rig.path().join("away")).unwrap();
    import(&rig, &[]);
    assert_eq!((read("before"), read("missed")), (before, missed));
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// A command that waits for another one is killed: it is not carried out later.
#[test]
fn a_command_that_is_killed_while_it_waits_is_not_carried_out() {
    let Some(mut rig) = Rig::new("fault-killed") else {
        return;
    };
    let (a, b) = (rig.image("a", 128 * MIB), rig.image("b", 128 * MIB));
    rig.start();
    if !set(&rig, &[]) {
        return;
    }
    rig.zpool(&["create", "-m", "none", "tank", "mirror", &a, &b]);
    let run = |args: &[&str]| {
        let mut c = rig.command("zpool", args);
        c.stdout(Stdio::null()).stderr(Stdio::null());
        c.spawn().unwrap()
    };
    // As long as it takes: until the fault is taken away.
    set(&rig, &[(&a, Transfer::Flush, Trouble::Delay(3_600_000), 1)]);
    let mut first = run(&["offline", "tank", &b]);
    std::thread::sleep(Duration::from_secs(2));
    assert!(first.try_wait().unwrap().is_none(), "nothing stalls");
    let mut second = run(&["detach", "tank", &b]);
    std::thread::sleep(Duration::from_secs(2));
    assert!(second.try_wait().unwrap().is_none(), "it does not wait");
    signal(second.id(), Signal::KILL);
    assert!(wait(&mut second, SOON).is_some());
    std::thread::sleep(Duration::from_secs(1));
    set(&rig, &[]);
    assert!(wait(&mut first, SOON).is_some_and(|s| s.success()));
    // Whoever comes next comes after it.
    rig.soon(SOON, "zpool", &["online", "tank", &b]).ok();
    let status = rig.zpool(&["status", "-P", "tank"]);
    assert!(status.contains(&b), "{status}");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

fn write(path: &Path, seed: u64) -> std::io::Result<u64> {
    let bytes = Dice::new(seed).bytes(400_000);
    fs::write(path, &bytes)?;
    fs::File::open(path)?.sync_all()?;
    Ok(hash(&bytes))
}

/// Of what was acknowledged, everything is there or an error; nothing is anything else.
#[test]
fn the_only_device() {
    let Some(mut rig) = Rig::new("fault-single") else {
        return;
    };
    let a = rig.image("a", 256 * MIB);
    let a = a.as_str();
    let mnt = rig.mnt();
    rig.start();
    if !set(&rig, &[]) {
        return;
    }
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", a]);
    rig.zfs(&["set", "compression=off", "tank"]);
    let mut files: Vec<_> = (0..10)
        .map(|n| {
            (
                format!("f{n}"),
                write(&mnt.join(format!("f{n}")), n).unwrap(),
            )
        })
        .collect();
    rig.zpool(&["sync", "tank"]);

    // Some of the writes are of other bytes: data have one copy and are errors then.
    set(&rig, &[(a, Transfer::Write, Trouble::Garbage, 7)]);
    for n in 10..30 {
        let name = format!("f{n}");
        if let Ok(hash) = write(&mnt.join(&name), n) {
            files.push((name, hash));
        }
    }
    rig.zpool(&["sync", "tank"]);
    set(&rig, &[]);
    cold(&rig);
    let mut wrong = 0;
    for (name, want) in &files {
        match fs::read(mnt.join(name)) {
            Ok(bytes) => assert_eq!(hash(&bytes), *want, "{name} has other bytes"),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(5), "{name}: {e}");
                wrong += 1;
            }
        }
    }
    assert!(wrong > 0, "garbage was written for nothing");
    let (old, _) = files.split_at(10);
    for (name, want) in old {
        assert_eq!(hash(&fs::read(mnt.join(name)).unwrap()), *want, "{name}");
    }
    let status = rig.zpool(&["status", "-v", "tank"]);
    assert!(status.contains("Permanent errors"), "{status}");

    // A flush fails, and nobody waits: what was not acknowledged may be lost, nothing else.
    rig.zpool(&["set", "failmode=continue", "tank"]);
    set(&rig, &[(a, Transfer::Flush, Trouble::Error, 1)]);
    write(&mnt.join("late"), 99).unwrap_err();
    rig.soon(SOON, "zpool", &["sync", "tank"]).fails(1);
    rig.soon(SOON, "zpool", &["export", "tank"]).fails(1);
    rig.soon(SOON, "zpool", &["export", "-f", "tank"]).ok();
    set(&rig, &[]);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    for (name, want) in old {
        assert_eq!(hash(&fs::read(mnt.join(name)).unwrap()), *want, "{name}");
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// The only device answers no more, for as long as anybody cares to wait.
#[test]
fn the_only_device_stalls() {
    let Some(mut rig) = Rig::new("fault-stall") else {
        return;
    };
    let (a, b) = (rig.image("a", 256 * MIB), rig.image("b", 128 * MIB));
    let a = a.as_str();
    let (mnt, beside) = (rig.mnt(), rig.path().join("beside"));
    // Whatever is read comes from the device.
    rig.daemon_options(&["--max-arc-size=16", "--disable-page-cache"]);
    rig.start();
    if !set(&rig, &[]) {
        return;
    }
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", a]);
    rig.zpool(&["create", "-m", beside.to_str().unwrap(), "other", &b]);
    rig.zfs(&["create", "tank/sub"]);
    let name = |n: u64| mnt.join(format!("f{n}"));
    let files: Vec<u64> = (0..40).map(|n| write(&name(n), n).unwrap()).collect();
    cold(&rig);
    let begin = |script: &str| {
        let script = format!("cd {}; exec {script}", mnt.display());
        let mut c = rig.command("sh", &["-c", &script]);
        c.stdout(Stdio::null()).stderr(Stdio::null());
        c.spawn().unwrap()
    };
    let pipe = rig.path().join("pipe");
    rig.sh(&format!("mkfifo {}", pipe.display()));
    let writer = begin(&format!("dd if={} of=w conv=fsync", pipe.display()));
    let mut input = File::options().write(true).open(&pipe).unwrap();
    input.write_all(&[7; 300_000]).unwrap();
    until("something is written", || {
        fs::metadata(mnt.join("w")).is_ok_and(|m| m.len() > 200_000)
    });

    const FOR_EVER: Trouble = Trouble::Delay(3_600_000);
    set(
        &rig,
        &[
            (a, Transfer::Read, FOR_EVER, 1),
            (a, Transfer::Flush, FOR_EVER, 1),
        ],
    );
    // It waits for a flush now.
    drop(input);
    // More than there are threads. All can be killed.
    let mut stuck: Vec<Child> = (0..20).map(|n| begin(&format!("cat f{n}"))).collect();
    stuck.push(writer);
    std::thread::sleep(Duration::from_secs(2));
    for child in &mut stuck {
        assert!(child.try_wait().unwrap().is_none(), "nothing stalls");
    }
    for child in &mut stuck {
        signal(child.id(), Signal::KILL);
    }
    for child in &mut stuck {
        let ended = wait(child, SOON).is_some();
        let read = |f: &str| fs::read_to_string(format!("/proc/{}/{f}", child.id()));
        let seen = ["cmdline", "status", "stack"].map(|f| read(f).unwrap_or_default());
        assert!(ended, "cannot be killed: {}", seen.join("\n"));
    }
    let others_go_on = || {
        let script = "echo x >n; sync n; ls -l; rm n";
        let script = format!("cd {}; {script}", beside.display());
        rig.soon(SOON, "sh", &["-ec", &script]).ok();
        let list = rig.soon(SOON, "zpool", &["list", "-H", "-o", "name", "other"]);
        assert_eq!(list.ok(), "other\n");
    };
    others_go_on();

    // Neither these nor an export that waits keep the pool from being let go.
    let mut left = [begin("cat f30"), begin("mkdir d"), begin("sync f0")];
    let mut waits = rig.command("zpool", &["export", "tank"]);
    let mut waits = waits.stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let said = rig.soon(SOON, "zpool", &["export", "-f", "tank"]);
    assert!(said.status.success() && said.err.contains(a), "{said}");
    assert!(said.err.contains("still under way"), "{said}");
    assert!(wait(&mut waits, SOON).is_some_and(|s| !s.success()));
    for child in &mut left {
        assert!(wait(child, SOON).is_some(), "still waits");
    }
    let list = rig.soon(SOON, "zpool", &["list", "-H", "-o", "name"]);
    assert_eq!(list.ok(), "other\n");
    let mounts = rig.mounts();
    assert_eq!(mounts, [beside.to_str().unwrap()]);
    others_go_on();

    // What was begun may still land: nobody gets the device before.
    let disks = rig.disks();
    let import = |pool: &[&str]| {
        let args = [&["import", "-d", disks.to_str().unwrap()], pool].concat();
        rig.soon(SOON, "zpool", &args)
    };
    let said = import(&["tank"]).fails(1);
    assert!(said.contains("still under way"), "{said}");
    assert!(!import(&[]).out.contains("tank"));
    let said = rig
        .soon(SOON, "zpool", &["create", "-f", "new", a])
        .fails(1);
    assert!(said.contains("still under way"), "{said}");

    set(&rig, &[]);
    until("the device is free", || import(&["tank"]).status.success());
    for (n, want) in files.iter().enumerate() {
        assert_eq!(hash(&fs::read(name(n as u64)).unwrap()), *want, "f{n}");
    }
    for pool in ["tank", "other"] {
        rig.soon(SOON, "zpool", &["export", pool]).ok();
    }
    rig.zdb_check("tank");
    rig.stop();
}

/// What killed processes asked for is done later as a whole or not at all, and the kernel shows what is there then.
fn changes_of_killed_processes(transport: &str) {
    let Some(mut rig) = Rig::new(&format!("fault-changes-{transport}")) else {
        return;
    };
    let (a, mnt) = (rig.image("a", 256 * MIB), rig.mnt());
    rig.daemon_options(&[&format!("--transport={transport}")]);
    rig.start();
    if !set(&rig, &[]) {
        return;
    }
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &a]);
    if rig.log().contains("no requests over io_uring") {
        eprintln!("skipped: {}", rig.log().trim());
        return;
    }
    // Every change waits until the log has it.
    rig.zfs(&["create", "-o", "sync=always", "tank/s"]);
    let at = mnt.join("s");
    let changes = [
        "mkdir d",
        "touch new",
        "ln -s x link",
        "ln there hard",
        "rm -f there",
        "mv there x",
        "chmod 600 there",
        "truncate -s 5 there",
        "dd if=/dev/zero of=there bs=1K count=3 conv=notrunc oflag=direct",
        "dd if=/dev/zero of=there bs=1M count=1 conv=notrunc oflag=direct",
    ];
    for n in 0..changes.len() {
        rig.sh(&format!("cd {}; mkdir {n}; seq 9 >{n}/there", at.display()));
    }
    rig.zpool(&["sync", "tank"]);
    const FOR_EVER: Trouble = Trouble::Delay(3_600_000);
    set(&rig, &[(&a, Transfer::Write, FOR_EVER, 1)]);
    let begin = |(n, what): (usize, &str)| {
        let script = format!("cd {}/{n} && exec {what}", at.display());
        let mut c = rig.command("sh", &["-c", &script]);
        c.stdout(Stdio::null()).stderr(Stdio::null());
        c.spawn().unwrap()
    };
    let mut stuck: Vec<Child> = changes.into_iter().enumerate().map(begin).collect();
    std::thread::sleep(Duration::from_secs(2));
    for (child, what) in stuck.iter_mut().zip(changes) {
        assert!(child.try_wait().unwrap().is_none(), "{what}: did not wait");
        signal(child.id(), Signal::KILL);
    }
    for (child, what) in stuck.iter_mut().zip(changes) {
        assert!(wait(child, SOON).is_some(), "{what}: cannot be killed");
    }
    set(&rig, &[]);
    let listed = |dir: &Path| {
        let find = "find . -mindepth 1 -printf '%P %y %m %s %n %l\\n' | sort";
        rig.sh(&format!("cd {}; {find}; cat */there", dir.display()))
    };
    until("the kernel shows what is there", || {
        rig.zfs(&["snapshot", "tank/s@now"]);
        let same = listed(&at) == listed(&at.join(".zfs/snapshot/now"));
        rig.zfs(&["destroy", "tank/s@now"]);
        same
    });
    let before = listed(&at);
    cold(&rig);
    assert_eq!(listed(&at), before);
    // A change that waits does not keep the pool from being let go, and is not there afterwards.
    set(&rig, &[(&a, Transfer::Write, FOR_EVER, 1)]);
    let mut last = begin((0, "mkdir e"));
    std::thread::sleep(Duration::from_secs(1));
    let started = Instant::now();
    let said = rig.soon(SOON, "zpool", &["export", "-f", "tank"]);
    println!("export -f: {:?}", started.elapsed());
    assert!(said.err.contains("still under way"), "{said}");
    assert!(wait(&mut last, SOON).is_some_and(|s| !s.success()));
    set(&rig, &[]);
    let disks = rig.disks();
    let import = ["import", "-d", disks.to_str().unwrap(), "tank"];
    until("the device is free", || {
        rig.soon(SOON, "zpool", &import).status.success()
    });
    assert_eq!(listed(&at), before);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn changes_of_killed_processes_end_over_the_device() {
    changes_of_killed_processes("dev");
}

#[test]
fn changes_of_killed_processes_end_over_io_uring() {
    changes_of_killed_processes("uring");
}
