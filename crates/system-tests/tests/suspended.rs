//! A pool whose devices refuse what is written: it waits, nothing is lost, and when they are well
//! again the same txg goes on.

use api::{Fault, Transfer, Trouble};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;
use system_tests::{hash, signal, until, wait, Dice, Rig};

const MIB: u64 = 1 << 20;
/// What takes moments may take this long on a busy machine.
const SOON: Duration = Duration::from_secs(60);
/// What would not have waited is over by then.
const A_WHILE: Duration = Duration::from_millis(1500);

/// Everything a device can refuse.
const ALL: [Transfer; 3] = [Transfer::Read, Transfer::Write, Transfer::Flush];

/// The device fails in these ways and no others; `false` after saying why if the daemon cannot do that.
fn fail(rig: &Rig, device: &str, on: &[Transfer]) -> bool {
    let faults = on
        .iter()
        .map(|&on| Fault {
            device: device.into(),
            on,
            does: Trouble::Error,
            one_of: 1,
        })
        .collect();
    rig.set_faults(faults)
}

struct Pool {
    rig: Rig,
    device: String,
    mnt: PathBuf,
    /// A folder outside of the pool.
    outside: PathBuf,
}

/// A pool `tank` on one device, with some files on disk.
fn pool(name: &str, failmode: &str) -> Option<Pool> {
    let mut rig = Rig::new(name)?;
    let device = rig.image("a", 256 * MIB);
    let mnt = rig.mnt();
    rig.start();
    if !fail(&rig, &device, &[]) {
        return None;
    }
    let failmode = format!("failmode={failmode}");
    let at = mnt.to_str().unwrap().to_string();
    rig.zpool(&["create", "-o", &failmode, "-m", &at, "tank", &device]);
    let outside = rig.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let p = Pool {
        rig,
        device,
        mnt,
        outside,
    };
    p.rig.sh(&format!(
        "cd {at}; for i in 1 2 3 4; do seq $i 20000 >old$i; done; mkdir olddir"
    ));
    p.rig.sh(&format!(
        "zfs snapshot tank@sent; zfs send tank@sent >{}; zfs destroy tank@sent",
        p.outside.join("stream").display()
    ));
    p.rig.zpool(&["sync", "tank"]);
    Some(p)
}

impl Pool {
    /// In the pool, with `OUTSIDE` set.
    fn there(&self, script: &str) -> String {
        let (mnt, outside) = (self.mnt.display(), self.outside.display());
        format!("OUTSIDE={outside}; cd {mnt}; {script}")
    }

    fn begin(&self, script: &str) -> Child {
        let script = self.there(script);
        let mut c = self.rig.command("sh", &["-ec", &script]);
        c.stdout(Stdio::null()).stderr(Stdio::null());
        c.spawn().unwrap()
    }

    fn soon(&self, program: &str, args: &[&str]) -> system_tests::Said {
        self.rig.soon(SOON, program, args)
    }

    fn run(&self, script: &str) -> system_tests::Said {
        let script = self.there(script);
        self.soon("sh", &["-ec", &script])
    }

    fn health(&self) -> String {
        let list = self.soon("zpool", &["list", "-H", "-o", "health", "tank"]);
        list.ok().trim().to_string()
    }

    fn write(&self, path: &Path, seed: u64, len: usize) -> u64 {
        let bytes = Dice::new(seed).bytes(len);
        fs::write(path, &bytes).unwrap();
        hash(&bytes)
    }

    /// Makes the device refuse these transfers, and returns when the pool is suspended. Something is
    /// changed that then waits in memory: the hash of a file `before/file`.
    fn suspend(&self, on: &[Transfer]) -> u64 {
        fail(&self.rig, &self.device, on);
        fs::create_dir(self.mnt.join("before")).unwrap();
        let hash = self.write(&self.mnt.join("before/file"), 77, 3_000_000);
        until("it is suspended", || self.health() == "SUSPENDED");
        hash
    }

    /// The pool is looked at and listed while nothing can be written.
    fn is_told(&self) {
        let status = self.soon("zpool", &["status", "tank"]).ok();
        assert!(status.contains("state: SUSPENDED"), "{status}");
        assert!(status.contains("zpool clear"), "{status}");
        let text = self.soon("zpool", &["get", "-H", "-o", "value", "failmode", "tank"]);
        assert!(!text.ok().is_empty());
        self.soon("zfs", &["list", "-H", "-o", "name,used"]).ok();
        // It has all features: there is nothing to change.
        self.soon("zpool", &["upgrade", "tank"]).ok();
        let stream = self.outside.join("stream");
        let receive = format!("zfs receive tank/received <{}", stream.display());
        for (program, args) in [
            ("zpool", vec!["sync", "tank"]),
            ("zpool", vec!["set", "comment=x", "tank"]),
            ("zfs", vec!["set", "atime=off", "tank"]),
            ("zfs", vec!["create", "tank/new"]),
            ("zfs", vec!["unmount", "tank"]),
            ("sh", vec!["-c", &receive]),
            ("zpool", vec!["export", "tank"]),
            ("zpool", vec!["clear", "tank"]),
        ] {
            let said = self.soon(program, &args).fails(1);
            assert!(said.contains("suspended"), "{program} {args:?}: {said}");
            assert!(said.contains("zpool clear"), "{program} {args:?}: {said}");
        }
    }

    /// What the kernel has in memory of a file that was opened before is read on, and then what the
    /// daemon has or can read. The file is not looked up by its name: the kernel holds the lock of a
    /// directory in which a change waits, and whoever looks up a name there that the kernel does not
    /// know waits with it.
    fn is_read_on(&self, mut file: fs::File, on: &[Transfer]) {
        for pages in ["kept", "dropped"] {
            if pages == "dropped" {
                if on.contains(&Transfer::Read) {
                    return;
                }
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
            file.rewind().unwrap();
            let mut tail = self.rig.command("tail", &["-n", "1"]);
            tail.stdin(file.try_clone().unwrap());
            let mut tail = tail.stdout(Stdio::piped()).spawn().unwrap();
            let ended = wait(&mut tail, SOON);
            assert!(ended.is_some_and(|s| s.success()), "{pages}: {ended:?}");
            let mut last = String::new();
            let mut out = tail.stdout.take().unwrap();
            out.read_to_string(&mut last).unwrap();
            assert_eq!(last, "20000\n", "{pages}");
        }
    }

    fn again(&self) {
        self.soon("zpool", &["export", "tank"]).ok();
        let disks = self.rig.disks();
        self.soon("zpool", &["import", "-d", disks.to_str().unwrap(), "tank"])
            .ok();
    }

    fn end(mut self) {
        self.soon("zpool", &["export", "tank"]).ok();
        self.rig.zdb_check("tank");
        self.rig.stop();
    }
}

/// Changes begun while the pool is suspended: each with what shows that it was done.
const CHANGES: [(&str, &str); 6] = [
    ("mkdir dir", "test -d dir"),
    ("cp old1 copy", "cmp old1 copy"),
    ("mv $OUTSIDE/moved .", "test -s moved"),
    ("rm old2", "test ! -e old2"),
    ("mv old3 renamed", "test -s renamed; test ! -e old3"),
    ("sync before/file", "test -s before/file"),
];

fn waits(name: &str, on: &[Transfer]) {
    let Some(p) = pool(name, "wait") else { return };
    let moved = p.write(&p.outside.join("moved"), 5, 500_000);
    let open = fs::File::open(p.mnt.join("old1")).unwrap();
    let before = p.suspend(on);
    let mut changes: Vec<Child> = CHANGES.iter().map(|(c, _)| p.begin(c)).collect();
    let mut killed = [
        p.begin("mkdir dir2"),
        p.begin("rm old4"),
        p.begin("sync before/file"),
    ];
    std::thread::sleep(A_WHILE);
    for child in changes.iter_mut().chain(&mut killed) {
        assert!(
            child.try_wait().unwrap().is_none(),
            "something did not wait"
        );
    }
    p.is_told();
    p.is_read_on(open, on);
    for child in &killed {
        // The shell and what it started.
        p.rig
            .try_run("pkill", &["-KILL", "-P", &child.id().to_string()]);
        signal(child.id(), Signal::KILL);
    }
    for child in &mut killed {
        assert!(wait(child, SOON).is_some(), "cannot be killed");
    }
    for child in &mut changes {
        assert!(
            child.try_wait().unwrap().is_none(),
            "something did not wait"
        );
    }

    fail(&p.rig, &p.device, &[]);
    p.soon("zpool", &["clear", "tank"]).ok();
    for (child, (what, _)) in changes.iter_mut().zip(CHANGES) {
        let ended = wait(child, SOON);
        assert!(ended.is_some_and(|s| s.success()), "{what}: {ended:?}");
    }
    assert_eq!(p.health(), "ONLINE");
    p.again();
    for (what, shows) in CHANGES {
        let said = p.run(shows);
        assert!(said.status.success(), "{what} is not there: {said}");
    }
    let read = |f: &str| hash(&fs::read(p.mnt.join(f)).unwrap());
    assert_eq!((read("before/file"), read("moved")), (before, moved));
    assert!(!p.outside.join("moved").exists());
    // A killed process that waited in the kernel for the lock of the directory sends its request when it has the lock. What is
    // not taken at once the kernel takes back, so it is done as a whole or not at all.
    let rest = p
        .run("test ! -e old4 || tail -n 1 old4; test ! -e dir2 || rmdir dir2")
        .ok();
    assert!(rest == "20000\n" || rest.is_empty(), "{rest}");
    let status = p.rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    p.end();
}

#[test]
fn changes_wait_for_a_device_that_fails_all_writes_and_nothing_is_lost() {
    waits("susp-writes", &[Transfer::Write]);
}

#[test]
fn changes_wait_for_a_device_that_is_away_and_nothing_is_lost() {
    waits("susp-away", &ALL);
}

#[test]
fn changes_wait_for_a_device_that_fails_to_flush_and_nothing_is_lost() {
    waits("susp-flush", &[Transfer::Flush]);
}

#[test]
fn with_failmode_continue_changes_fail_at_once_and_nothing_is_lost() {
    let Some(p) = pool("susp-continue", "continue") else {
        return;
    };
    p.write(&p.outside.join("moved"), 5, 500_000);
    let before = p.suspend(&[Transfer::Write]);
    for (what, _) in CHANGES {
        let said = p.run(what);
        assert!(!said.status.success(), "{what} was accepted");
        assert!(said.err.contains("Input/output error"), "{what}: {said}");
    }
    assert!(p.outside.join("moved").exists());
    p.is_told();
    assert_eq!(p.run("tail -n 1 old1").ok(), "20000\n");
    fail(&p.rig, &p.device, &[]);
    p.soon("zpool", &["clear", "tank"]).ok();
    p.run("mkdir after; sync after").ok();
    p.again();
    p.run("test -d after; test -s old2; test -s old3; test ! -e dir")
        .ok();
    assert_eq!(hash(&fs::read(p.mnt.join("before/file")).unwrap()), before);
    p.end();
}

#[test]
fn an_export_by_force_ends_the_waiting_and_says_what_is_lost() {
    let Some(p) = pool("susp-export", "wait") else {
        return;
    };
    p.suspend(&[Transfer::Write]);
    let mut changes = [p.begin("exec mkdir dir"), p.begin("exec sync before/file")];
    std::thread::sleep(A_WHILE);
    let said = p.soon("zpool", &["export", "-f", "tank"]);
    assert!(said.status.success(), "{said}");
    assert!(said.err.contains("lost"), "{said}");
    for child in &mut changes {
        let ended = wait(child, SOON);
        assert!(ended.is_some_and(|s| !s.success() && s.signal().is_none()));
    }
    let left = p.rig.zpool(&["list", "-H", "-o", "name"]);
    assert!(!left.contains("tank"), "{left}");
    fail(&p.rig, &p.device, &[]);
    let disks = p.rig.disks();
    p.soon("zpool", &["import", "-d", disks.to_str().unwrap(), "tank"])
        .ok();
    p.run("test ! -e dir; tail -n 1 old1 old2 old3 old4").ok();
    p.end();
}

/// Blocks of a compressed stream go to the devices as they come, outside of txgs. A receive whose devices refuse them waits, and goes
/// on when they are well again; an export by force ends it.
#[test]
fn a_receive_of_stored_blocks_waits_for_its_devices() {
    let Some(p) = pool("susp-receive", "wait") else {
        return;
    };
    p.rig.zfs(&["snapshot", "tank@c"]);
    p.run("zfs send -c tank@c >$OUTSIDE/c").ok();
    // The stream's end comes when it is told to.
    let receive = |to: &str| {
        let child = p.begin(&format!(
            "( head -c 30000 $OUTSIDE/c; touch $OUTSIDE/half; \
               while [ -e $OUTSIDE/half ]; do sleep 0.1; done; tail -c +30001 $OUTSIDE/c ) | \
             zfs receive -u tank/{to}"
        ));
        let half = p.outside.join("half");
        let there = || {
            !p.rig
                .try_run("zfs", &["list", &format!("tank/{to}")])
                .err
                .contains("exist")
        };
        until("the stream has begun", || half.exists() && there());
        p.rig.zpool(&["sync", "tank"]);
        fail(&p.rig, &p.device, &[Transfer::Write]);
        fs::remove_file(half).unwrap();
        until("it is suspended", || p.health() == "SUSPENDED");
        child
    };
    let mut waits = receive("a");
    std::thread::sleep(A_WHILE);
    assert!(waits.try_wait().unwrap().is_none(), "it did not wait");
    fail(&p.rig, &p.device, &[]);
    p.soon("zpool", &["clear", "tank"]).ok();
    assert!(wait(&mut waits, SOON).is_some_and(|s| s.success()));
    p.rig.zfs(&["mount", "tank/a"]);
    p.run("for i in 1 2 3 4; do cmp old$i a/old$i; done").ok();

    let mut ends = receive("b");
    let said = p.soon("zpool", &["export", "-f", "tank"]);
    assert!(said.status.success(), "{said}");
    assert!(wait(&mut ends, SOON).is_some_and(|s| !s.success()));
    fail(&p.rig, &p.device, &[]);
    let disks = p.rig.disks();
    p.soon("zpool", &["import", "-d", disks.to_str().unwrap(), "tank"])
        .ok();
    p.end();
}

#[test]
fn a_destroy_by_force_ends_the_waiting_and_says_what_is_left() {
    let Some(p) = pool("susp-destroy", "wait") else {
        return;
    };
    p.suspend(&[Transfer::Write]);
    let mut change = p.begin("exec mkdir dir");
    std::thread::sleep(A_WHILE);
    let said = p.soon("zpool", &["destroy", "tank"]).fails(1);
    assert!(said.contains("suspended"), "{said}");
    let said = p.soon("zpool", &["destroy", "-f", "tank"]);
    assert!(said.status.success(), "{said}");
    assert!(said.err.contains("not be marked as destroyed"), "{said}");
    assert!(wait(&mut change, SOON).is_some_and(|s| !s.success()));
    assert_eq!(p.rig.zpool(&["list", "-H", "-o", "name"]), "");
    fail(&p.rig, &p.device, &[]);
    let disks = p.rig.disks();
    let import = ["import", "-d", disks.to_str().unwrap(), "tank"];
    p.soon("zpool", &import).ok();
    p.run("test ! -e dir; tail -n 1 old1").ok();
    p.soon("zpool", &["destroy", "tank"]).ok();
    p.soon("zpool", &import).fails(1);
    let Pool { mut rig, .. } = p;
    rig.stop();
}

#[test]
fn the_daemon_ends_although_a_pool_waits_for_its_devices() {
    let Some(mut p) = pool("susp-term", "wait") else {
        return;
    };
    p.suspend(&[Transfer::Write]);
    let mut change = p.begin("exec mkdir dir");
    std::thread::sleep(A_WHILE);
    p.rig.stop();
    assert!(wait(&mut change, SOON).is_some_and(|s| !s.success()));
    p.rig.start();
    p.run("test ! -e dir; tail -n 1 old1").ok();
    p.end();
}

#[test]
fn an_image_that_is_truncated_under_its_pool_is_noticed() {
    let Some(p) = pool("susp-cut", "continue") else {
        return;
    };
    let cut = fs::File::options().write(true).open(&p.device).unwrap();
    cut.set_len(100 * MIB).unwrap();
    // Idle, it is noticed by an export, and before anything is unmounted.
    let said = p.soon("zpool", &["export", "tank"]).fails(1);
    assert!(said.contains("truncated"), "{said}");
    assert_eq!(p.health(), "SUSPENDED");
    let status = p.soon("zpool", &["status", "tank"]).ok();
    assert!(status.contains("truncated"), "{status}");
    let said = p.run("echo x >>old1; sync old1");
    assert!(!said.status.success(), "{said}");
    // It is as long as before, and nothing had been written behind its new end.
    cut.set_len(256 * MIB).unwrap();
    p.soon("zpool", &["clear", "tank"]).ok();
    p.run("echo y >>old2; sync old2").ok();
    cut.set_len(100 * MIB).unwrap();
    let said = p.run("echo z >>old3; sync old3");
    assert!(!said.status.success(), "{said}");
    let said = p.soon("zpool", &["export", "-f", "tank"]);
    assert!(said.status.success() && said.err.contains("lost"), "{said}");
    let mut rig = p.rig;
    rig.stop();
}

/// One write fails while a pool is imported: the import fails, says nothing untrue, and leaves the device free.
#[test]
fn an_import_that_meets_a_write_error_leaves_the_device_free() {
    let Some(p) = pool("susp-import", "wait") else {
        return;
    };
    p.soon("zpool", &["export", "tank"]).ok();
    let disks = p.rig.disks();
    let import = ["import", "-d", disks.to_str().unwrap(), "tank"];
    for on in [Transfer::Write, Transfer::Flush] {
        fail(&p.rig, &p.device, &[on]);
        let said = p.soon("zpool", &import).fails(1);
        assert!(said.contains("cannot import 'tank'"), "{said}");
        for word in ["estroy", "re-create", "in use"] {
            assert!(!said.contains(word), "{said}");
        }
        let none = p.soon("zpool", &["list", "-H", "-o", "name"]).ok();
        assert_eq!(none, "");
        fail(&p.rig, &p.device, &[]);
        p.soon("zpool", &import).ok();
        p.run("tail -n 1 old1; echo x >>old2; sync old2").ok();
        p.soon("zpool", &["export", "tank"]).ok();
    }
    p.soon("zpool", &import).ok();
    p.end();
}

/// An image file that is sparse, on a file system that is full: nothing has to be done but to make room.
#[test]
fn a_pool_on_a_full_host_goes_on_when_there_is_room() {
    let Some(mut rig) = Rig::as_root("susp-full") else {
        return;
    };
    let host = rig.path().join("host");
    fs::create_dir(&host).unwrap();
    let at = host.to_str().unwrap().to_string();
    rig.sh(&format!("mount -t tmpfs -o size=200m none {at}"));
    struct Unmount(String);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount")
                .args(["-l", &self.0])
                .status();
        }
    }
    let mounted = Unmount(at.clone());
    let image = format!("{at}/image");
    rig.sh(&format!("truncate -s 512M {image}"));
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &image]);
    rig.zfs(&["set", "compression=off", "tank"]);
    rig.sh(&format!("seq 1000 >{}/old", mnt.display()));
    rig.zpool(&["sync", "tank"]);
    // All but a few megabytes.
    rig.try_run(
        "dd",
        &["if=/dev/zero", &format!("of={at}/ballast"), "bs=1M"],
    );
    rig.sh(&format!("truncate -s -4M {at}/ballast"));
    let bytes = Dice::new(9).bytes(20_000_000);
    fs::write(mnt.join("new"), &bytes).unwrap();
    let health = || {
        rig.soon(SOON, "zpool", &["list", "-H", "-o", "health", "tank"])
            .ok()
    };
    until("it is suspended", || health() == "SUSPENDED\n");
    let status = rig.soon(SOON, "zpool", &["status", "tank"]).ok();
    assert!(status.contains("No space left"), "{status}");
    // The device is named once.
    let twice = format!("{image}: {image}: ");
    assert!(!status.contains(&twice), "{status}");
    // So many failed transfers put a device out of use; but it is the host that has failed.
    until("there are ten errors", || {
        let status = rig.soon(SOON, "zpool", &["status", "-p", "tank"]).ok();
        let leaf = status.lines().find(|l| l.trim().starts_with(&image));
        let leaf = leaf.unwrap_or_else(|| panic!("{status}"));
        leaf.split_whitespace()
            .nth(3)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= 12
    });
    rig.sh(&format!("rm {at}/ballast"));
    until("it goes on", || health() == "ONLINE\n");
    rig.soon(SOON, "sh", &["-ec", &format!("sync {}/new", mnt.display())])
        .ok();
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", &at, "tank"]);
    assert_eq!(hash(&fs::read(mnt.join("new")).unwrap()), hash(&bytes));
    rig.zpool(&["export", "tank"]);
    rig.sh(&format!(
        "cp --sparse=always {image} {}/image",
        rig.disks().display()
    ));
    rig.zdb_check("tank");
    drop(mounted);
    rig.stop();
}
