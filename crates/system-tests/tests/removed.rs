//! A device is taken away while processes write to and read from the pool on it.

use rustix::process::Signal;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use system_tests::{signal, until, wait, Rig};

/// What takes moments may take this long on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A shell's loop in the background.
fn work(rig: &Rig, dir: &Path, what: &str) -> Child {
    let script = format!("cd {}; while :; do {what}; done", dir.display());
    let mut c = rig.command("sh", &["-c", &script]);
    quiet(&mut c).spawn().expect("a shell")
}

fn quiet(c: &mut Command) -> &mut Command {
    c.stdout(Stdio::null()).stderr(Stdio::null())
}

/// What a process waits for, for the message of a failure.
fn state(pid: u32) -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    format!("{} {}", read("stat"), read("stack"))
}

/// How a device goes away.
enum Way {
    /// The loop device has no sectors left: every transfer fails.
    NoSectors,
    /// The image file is empty: reads fail, writes do not.
    Emptied,
}

/// Processes that read and write below `at`.
fn loads(rig: &Rig, at: &Path) -> [Child; 4] {
    // What changes a folder may wait for the pool with that folder locked by the kernel, so the
    // loads do so beside the files that are read below.
    let (writes, folders) = (at.join("writes"), at.join("folders"));
    fs::create_dir(&writes).unwrap();
    fs::create_dir(&folders).unwrap();
    [
        work(
            rig,
            &writes,
            "dd if=/dev/zero of=w bs=1M count=16 conv=fsync",
        ),
        work(rig, &at.join("a"), "dd if=/dev/urandom of=w bs=1M count=16"),
        work(rig, at, "cat f* >/dev/null"),
        work(
            rig,
            &folders,
            "mkdir -p d/e; touch d/e/f; sync d; rm -r d; ls -lR",
        ),
    ]
}

/// The pool `other` is as it was, and the daemon takes a new one at `to`; both are exported in the end.
fn the_others_go_on(rig: &mut Rig, other: &Path, to: &str) {
    let more = rig.image("more", 128 * MIB);
    let soon = |program: &str, args: &[&str]| rig.soon(SOON, program, args).ok();
    let said = soon(
        "sh",
        &[
            "-ec",
            &format!("cd {}; tail -n 1 n; cp n m; sync m; rm n", other.display()),
        ],
    );
    assert_eq!(said, "100000\n");
    soon("zpool", &["create", "-m", to, "tank", &more]);
    soon("sh", &["-ec", &format!("cd {to}; seq 1000 >f; sync f")]);
    soon("zpool", &["export", "tank"]);
    soon("zpool", &["export", "other"]);
}

fn removed(name: &str, way: Way, failmode: &str) {
    let mut rig = match way {
        Way::NoSectors => Rig::as_root(name),
        Way::Emptied => Rig::new(name),
    };
    let Some(rig) = &mut rig else { return };
    let image = rig.image("bad", 512 * MIB);
    let device = match way {
        Way::NoSectors => match rig.loop_on(&image) {
            Some(device) => device,
            None => return,
        },
        Way::Emptied => image.clone(),
    };
    let good = rig.image("good", 192 * MIB);
    let mnt = rig.mnt();
    let (at, other) = (mnt.join("tank"), mnt.join("other"));
    // Whatever is read comes from the device.
    rig.daemon_options(&["--max-arc-size=16", "--disable-page-cache"]);
    rig.start();
    let failmode = format!("failmode={failmode}");
    let to = at.to_str().unwrap();
    rig.zpool(&["create", "-o", &failmode, "-m", to, "tank", &device]);
    rig.zfs(&["create", "tank/a"]);
    rig.zpool(&["create", "-m", other.to_str().unwrap(), "other", &good]);
    rig.sh(&format!(
        "cd {to}; for i in $(seq 40); do dd if=/dev/urandom of=f$i bs=1M count=1; done 2>/dev/null; sync f1"
    ));
    rig.sh(&format!("seq 100000 >{}/n", other.display()));
    let loads = loads(rig, &at);
    until("something is written", || {
        fs::metadata(at.join("a/w")).is_ok()
    });

    File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(0)
        .unwrap();
    if let Way::NoSectors = way {
        let said = rig.try_run("losetup", &["--set-capacity", &device]);
        assert!(said.status.success(), "{said}");
    }
    // What cannot be read is an error, and what cannot be written too.
    let fails = |script: &str| {
        let script = format!("cd {to}; {script}");
        !rig.soon(SOON, "sh", &["-c", &script]).status.success()
    };
    until("reading fails", || {
        fails("for f in f*; do cat $f >/dev/null || exit 1; done")
    });
    if let Way::NoSectors = way {
        // With failmode=wait it waits.
        if failmode == "failmode=continue" {
            until("writing fails", || fails("echo x >new && sync new"));
        }
        let health = || {
            rig.soon(SOON, "zpool", &["list", "-H", "-o", "health", "tank"])
                .ok()
        };
        until("it is suspended", || health() == "SUSPENDED\n");
        let said = rig.soon(SOON, "zpool", &["status", "tank"]).ok();
        assert!(said.contains("SUSPENDED"), "{said}");
    }
    for mut child in loads {
        signal(child.id(), Signal::KILL);
        assert!(
            wait(&mut child, SOON).is_some(),
            "cannot be killed: {}\n{}",
            state(child.id()),
            rig.log()
        );
    }
    // Processes that begin now, and hold files and the directory.
    let holder = work(
        rig,
        &at.join("a"),
        "sleep 1; cat ../f* >/dev/null; echo x >>w",
    );
    if let Way::NoSectors = way {
        let said = rig.soon(SOON, "zpool", &["export", "tank"]).fails(1);
        // It is stopped for good if a txg read the image after that was emptied and before the
        // device had lost its sectors: zeros that fail their checksums.
        let reasons = ["suspended", "busy", "the pool is stopped"];
        assert!(reasons.iter().any(|r| said.contains(r)), "{said}");
    }
    rig.soon(SOON, "zpool", &["export", "-f", "tank"]).ok();
    let list = rig.soon(SOON, "zpool", &["list", "-H", "-o", "name"]).ok();
    assert_eq!(list, "other\n");
    let left = rig.mounts();
    assert!(
        left.iter().all(|m| Path::new(m).starts_with(&other)),
        "{left:?}"
    );
    let mut holder = holder;
    signal(holder.id(), Signal::KILL);
    assert!(wait(&mut holder, SOON).is_some(), "{}", state(holder.id()));

    the_others_go_on(rig, &other, to);
    if failmode == "failmode=wait" {
        rig.zdb_check("other");
    }
    rig.stop();
}

#[test]
fn failmode_wait() {
    removed("gone-wait", Way::NoSectors, "wait");
}

#[test]
fn failmode_continue() {
    removed("gone-continue", Way::NoSectors, "continue");
}

/// For everybody: a file in place of the device.
#[test]
fn an_image_is_emptied() {
    removed("gone-emptied", Way::Emptied, "wait");
}

/// A pool of the cache file whose device is not there when the daemon starts: all commands know it, and say
/// what to do, which works.
#[test]
fn a_pool_that_could_not_be_opened_is_known_to_every_command() {
    let Some(mut rig) = Rig::new("unopened") else {
        return;
    };
    let image = rig.image("disk", 128 * MIB);
    let at = rig.mnt().to_str().unwrap().to_string();
    rig.start();
    rig.zpool(&["create", "-m", &at, "tank", &image]);
    rig.sh(&format!("echo content >{at}/file"));
    rig.stop();
    let away = rig.path().join("away");
    fs::rename(&image, &away).unwrap();
    rig.start();
    let list = rig.zpool(&["list", "-H", "-o", "name,health"]);
    assert_eq!(list, "tank\tUNAVAIL\n");
    rig.zpool(&["status", "tank"]);
    for (program, args) in [
        ("zpool", &["clear", "tank"][..]),
        ("zpool", &["online", "tank", &image]),
        ("zpool", &["offline", "tank", &image]),
        ("zpool", &["scrub", "tank"]),
        ("zpool", &["set", "comment=x", "tank"]),
        ("zpool", &["sync", "tank"]),
        ("zpool", &["history", "tank"]),
        ("zpool", &["reopen", "tank"]),
        ("zpool", &["upgrade", "tank"]),
        ("zpool", &["destroy", "tank"]),
    ] {
        let said = rig.try_run(program, args).fails(1);
        assert!(!said.contains("no such pool"), "{args:?}: {said}");
        assert!(said.contains("could not be opened"), "{args:?}: {said}");
    }
    // As they advise.
    fs::rename(&away, &image).unwrap();
    rig.zpool(&["import", "tank"]);
    assert_eq!(rig.sh(&format!("cat {at}/file")), "content\n");
    rig.stop();
    fs::rename(&image, &away).unwrap();
    rig.start();
    rig.zpool(&["export", "tank"]);
    assert_eq!(rig.zpool(&["list", "-H", "-o", "name"]), "");
    rig.stop();
}
