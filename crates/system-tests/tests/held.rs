//! Mounts that a mount namespace or an open file keeps after they were unmounted.

use rustix::process::Signal;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use system_tests::{signal, wait, Rig};

/// What takes moments may take this long on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A process that is killed with the value.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        signal(self.0.id(), Signal::KILL);
        let ended = wait(&mut self.0, SOON).is_some();
        assert!(ended || std::thread::panicking(), "cannot be killed");
    }
}

/// A namespace made by one test has the mounts of the others, too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Bench {
    rig: Rig,
    at: String,
    dir: String,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    /// A pool with a file system, and another pool.
    fn new(name: &str) -> Option<Bench> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rig = Rig::as_root(name)?;
        let disk = rig.image("disk", 128 << 20);
        let other = rig.image("other", 128 << 20);
        let (at, beside) = (rig.mnt().join("tank"), rig.mnt().join("other"));
        let at = at.to_str().unwrap().to_string();
        rig.start();
        rig.zpool(&["create", "-m", &at, "tank", &disk]);
        rig.zfs(&["create", "tank/a"]);
        rig.zpool(&["create", "-m", beside.to_str().unwrap(), "other", &other]);
        let dir = rig.disks().to_str().unwrap().to_string();
        Some(Bench {
            rig,
            at,
            dir,
            _alone: alone,
        })
    }

    /// A process that has done something, says so, and stays.
    fn holder(&self, program: &str, args: &[&str]) -> Holder {
        let ready = self.rig.path().join("home/ready");
        let _ = std::fs::remove_file(&ready);
        let child = Holder(self.rig.command(program, args).spawn().unwrap());
        for _ in 0..6000 {
            if ready.exists() {
                return child;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{program} {args:?} does nothing");
    }

    fn soon(&self, program: &str, args: &[&str]) -> String {
        self.rig.soon(SOON, program, args).ok()
    }

    /// While an export waits or is refused, others are served.
    fn refuses(&self, args: &[&str]) {
        std::thread::scope(|s| {
            let export = s.spawn(|| self.rig.soon(SOON, args[0], &args[1..]).fails(1));
            self.soon("zfs", &["list"]);
            self.soon("zfs", &["set", "compression=off", "other"]);
            let said = export.join().unwrap();
            assert!(said.contains("busy") || said.contains("in use"), "{said}");
        });
    }

    fn import(&self) {
        self.soon("zpool", &["import", "-d", &self.dir, "tank"]);
        self.soon("sh", &["-ec", &format!("cat {}/a/f", self.at)]);
    }
}

#[test]
fn unmounted_lazily_under_a_stopped_process() {
    let Some(mut b) = Bench::new("lazy") else {
        return;
    };
    let script = format!(
        "exec 3>{}/a/f; echo content >&3; touch ready; kill -STOP $$",
        b.at
    );
    let hold = |b: &Bench| {
        let child = b.holder("sh", &["-c", &script]);
        b.soon("umount", &["-l", &format!("{}/a", b.at)]);
        child
    };
    let child = hold(&b);
    b.refuses(&["zpool", "export", "tank"]);
    drop(child);
    b.soon("zpool", &["export", "tank"]);
    b.import();
    // By force it goes although somebody holds it.
    let child = hold(&b);
    b.soon("zpool", &["export", "-f", "tank"]);
    b.import();
    drop(child);
    // The daemon ends all the same.
    let child = hold(&b);
    b.rig.stop();
    drop(child);
}

#[test]
fn copied_into_another_namespace() {
    let Some(mut b) = Bench::new("copied") else {
        return;
    };
    let args = [
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        "touch ready; exec sleep 3600",
    ];
    b.soon("sh", &["-ec", &format!("echo content >{}/a/f", b.at)]);
    let child = b.holder("unshare", &args);
    // Nothing is in use there.
    b.soon("zfs", &["unmount", "tank/a"]);
    b.soon("zpool", &["export", "-f", "tank"]);
    b.import();
    drop(child);
    let child = b.holder("unshare", &args);
    b.soon("zpool", &["export", "tank"]);
    b.import();
    drop(child);
    b.soon("zpool", &["export", "tank"]);
    b.import();
    b.rig.stop();
}

#[test]
fn a_file_system_unmounted_lazily_is_not_mounted_and_can_be_mounted_again() {
    let Some(mut b) = Bench::new("again") else {
        return;
    };
    let a = format!("{}/a", b.at);
    // Appends a line whenever it is told to.
    let script = format!(
        "exec 3>{a}/f; echo one >&3; touch ready; while [ ! -e go ]; do sleep 0.05; done; \
         echo two >&3; touch went; exec sleep 3600"
    );
    let child = b.holder("sh", &["-c", &script]);
    b.soon("umount", &["-l", &a]);
    assert_eq!(b.rig.get("mounted", "tank/a"), "no");
    assert!(!b.rig.zfs(&["mount"]).contains("tank/a"));
    let said = b.rig.try_run("zfs", &["unmount", "tank/a"]).to_string();
    assert!(
        said.contains("still in use") && said.contains("(sh)"),
        "{said}"
    );
    // The file that is open and the one that is opened now are the same.
    b.soon("zfs", &["mount", "tank/a"]);
    assert_eq!(b.rig.get("mounted", "tank/a"), "yes");
    b.soon(
        "sh",
        &["-ec", &format!("[ \"$(cat {a}/f)\" = one ]; touch go")],
    );
    let went = b.rig.path().join("home/went");
    system_tests::until("the second line is written", || went.exists());
    let text = b.soon("cat", &[&format!("{a}/f")]);
    assert_eq!(text, "one\ntwo\n");
    let said = b.rig.try_run("zfs", &["mount", "tank/a"]).fails(1);
    assert!(said.contains("already mounted"), "{said}");
    drop(child);
    b.soon("zfs", &["unmount", "tank/a"]);
    b.soon("zfs", &["mount", "tank/a"]);
    assert_eq!(b.soon("cat", &[&format!("{a}/f")]), "one\ntwo\n");
    b.rig.stop();
}

#[test]
fn an_export_that_fails_leaves_mounted_what_says_so() {
    let Some(mut b) = Bench::new("failed-export") else {
        return;
    };
    // A file of the copy is open.
    let script = format!("exec 3<{}/a/f; touch ready; exec sleep 3600", b.at);
    let args = ["--mount", "--propagation=private", "sh", "-c", &script];
    b.soon("sh", &["-ec", &format!("echo content >{}/a/f", b.at)]);
    let child = b.holder("unshare", &args);
    b.refuses(&["zpool", "export", "tank"]);
    for (name, file) in [("tank", "a"), ("tank/a", "a/f")] {
        assert_eq!(b.rig.get("mounted", name), "yes");
        b.soon("ls", &["-d", &format!("{}/{file}", b.at)]);
    }
    assert_eq!(b.soon("cat", &[&format!("{}/a/f", b.at)]), "content\n");
    drop(child);
    b.soon("zpool", &["export", "tank"]);
    b.rig.stop();
}

#[test]
fn a_forced_umount_of_a_file_system_in_use_fails_and_it_stays_usable() {
    let Some(mut b) = Bench::new("umount-f") else {
        return;
    };
    let a = format!("{}/a", b.at);
    let child = b.holder(
        "sh",
        &[
            "-c",
            &format!(
                "cd {a}; exec 3>f; echo content >&3; touch {}/home/ready; exec sleep 3600",
                b.rig.path().display()
            ),
        ],
    );
    b.soon("zpool", &["sync", "tank"]);
    let said = b.rig.soon(SOON, "umount", &["-f", &a]).fails(32);
    assert!(said.contains("busy"), "{said}");
    // The kernel has cut the connection before it looked whether anybody uses it.
    system_tests::until("it is mounted again", || {
        let text = b.rig.soon(SOON, "cat", &[&format!("{a}/f")]);
        text.status.success() && text.out == "content\n"
    });
    assert_eq!(b.rig.get("mounted", "tank/a"), "yes");
    let mounts = b.rig.mounts();
    assert_eq!(mounts.iter().filter(|m| **m == a).count(), 1, "{mounts:?}");
    drop(child);
    b.soon("zfs", &["unmount", "tank/a"]);
    b.soon("zfs", &["mount", "tank/a"]);
    b.rig.stop();
}
