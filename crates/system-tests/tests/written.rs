//! Data that `write(2)` has taken, and the kernel still keeps, when their file system goes away
//! under an open file.

use rustix::process::Signal;
use std::process::Child;
use std::time::Duration;
use system_tests::{signal, until, users_can_mount, wait, Rig};

const SIZE: usize = 1_000_000;

/// A process with a file open that it wrote to; it is killed with the value.
struct Writer(Child);

impl Drop for Writer {
    fn drop(&mut self) {
        signal(self.0.id(), Signal::KILL);
        let ended = wait(&mut self.0, Duration::from_secs(60)).is_some();
        assert!(ended || std::thread::panicking(), "cannot be killed");
    }
}

struct Bench {
    rig: Rig,
    at: String,
}

impl Bench {
    /// A pool with its file system mounted.
    fn new(rig: Option<Rig>) -> Option<Bench> {
        let mut rig = rig?;
        let disk = rig.image("disk", 256 << 20);
        let at = rig.mnt().join("tank").to_str().unwrap().to_string();
        rig.start();
        rig.zpool(&["create", "-m", &at, "tank", &disk]);
        Some(Bench { rig, at })
    }

    /// A process that has written a megabyte of `letter`s to a file and keeps the file open.
    fn writer(&self, name: &str, letter: char) -> Writer {
        let ready = format!("{}/home/ready-{name}", self.rig.path().display());
        let script = format!(
            "exec 3>{}/{name}; head -c {SIZE} /dev/zero | tr '\\0' {letter} >&3; : >{ready}; \
             exec sleep 3600",
            self.at
        );
        let child = Writer(self.rig.command("sh", &["-ec", &script]).spawn().unwrap());
        until("the file is written", || {
            std::path::Path::new(&ready).exists()
        });
        std::fs::remove_file(&ready).unwrap();
        child
    }

    fn import(&self) {
        let dir = self.rig.disks().to_str().unwrap().to_string();
        self.rig.zpool(&["import", "-d", &dir, "tank"]);
    }

    fn holds(&self, name: &str, letter: char) {
        let script = format!(
            "tr -d {letter} <{0}/{name} | wc -c; wc -c <{0}/{name}",
            self.at
        );
        let text = self.rig.sh(&script);
        assert_eq!(text, format!("0\n{SIZE}\n"), "{name}");
    }
}

/// Every way by which a mount ends that is in use, one after the other.
fn every_end(rig: Option<Rig>) {
    let Some(mut b) = Bench::new(rig) else { return };
    let first = b.writer("stopped", 'a');
    b.rig.stop();
    drop(first);
    b.rig.start();
    b.holds("stopped", 'a');

    let second = b.writer("unmounted", 'b');
    b.rig.zfs(&["unmount", "-f", "tank"]);
    drop(second);
    b.rig.zfs(&["mount", "tank"]);
    b.holds("unmounted", 'b');

    let third = b.writer("exported", 'c');
    b.rig.zpool(&["export", "-f", "tank"]);
    drop(third);
    b.import();
    b.holds("exported", 'c');

    let fourth = b.writer("lazy", 'd');
    b.rig.sh(&format!(
        "umount -l {0} 2>/dev/null || fusermount3 -uz {0}",
        b.at
    ));
    b.rig.stop();
    drop(fourth);
    b.rig.start();
    b.holds("lazy", 'd');
    assert!(!b.rig.log().contains("was not taken"), "{}", b.rig.log());
    b.rig.stop();
}

#[test]
fn every_forced_end_of_a_mount_keeps_written_data_of_open_files() {
    every_end(Rig::as_root("written"));
}

#[test]
fn an_ordinary_users_forced_ends_keep_written_data_of_open_files() {
    if users_can_mount("written-user") {
        every_end(Rig::as_user("written-user"));
    }
}

#[test]
fn sync_of_a_pool_takes_what_was_written_to_open_files() {
    let Some(mut b) = Bench::new(Rig::as_root("written-sync")) else {
        return;
    };
    let writer = b.writer("f", 'a');
    b.rig.zpool(&["sync", "tank"]);
    // With the kernel's idea of the space it takes.
    let blocks = b.rig.sh(&format!("stat -c %b {}/f", b.at));
    assert_ne!(blocks.trim(), "1");
    b.rig.kill();
    drop(writer);
    b.rig.start();
    b.holds("f", 'a');
    b.rig.stop();
}

#[test]
fn a_write_after_a_forced_unmount_began_is_refused_not_dropped() {
    let Some(mut b) = Bench::new(Rig::as_root("written-late")) else {
        return;
    };
    // Appends a line at a time and notes outside of the pool how many were taken.
    let count = b.rig.path().join("home/count");
    let script = format!(
        "exec 3>{}/f; n=0; while printf '123456789\\n' >&3; do n=$((n+1)); echo $n >{}; done",
        b.at,
        count.display()
    );
    let writer = Writer(b.rig.command("sh", &["-c", &script]).spawn().unwrap());
    let taken = || {
        let text = std::fs::read_to_string(&count).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    until("some lines are written", || taken() > 100);
    b.rig.zfs(&["unmount", "-f", "tank"]);
    let mut writer = writer;
    assert!(wait(&mut writer.0, Duration::from_secs(60)).is_some());
    b.rig.zfs(&["mount", "tank"]);
    let size = std::fs::metadata(format!("{}/f", b.at)).unwrap().len();
    // The line under way when the writer was refused may or may not have been noted.
    assert!(size >= taken() * 10, "{size} bytes, {} lines", taken());
    b.rig.stop();
}

/// Two files change places (RENAME_EXCHANGE), and another file is synced: either name has its new content whole, or the old.
#[test]
fn names_that_are_exchanged_take_both_contents_along() {
    use rustix::fs::{renameat_with, RenameFlags, CWD};
    use std::fs;
    let Some(mut b) = Bench::new(Rig::new("exchanged")) else {
        return;
    };
    let path = |name: &str| format!("{}/{name}", b.at);
    let (first, second, other) = (path("first"), path("second"), path("other"));
    for round in 0..3u8 {
        for name in [&first, &second, &other] {
            fs::write(name, "").unwrap();
        }
        b.rig.zpool(&["sync", "tank"]);
        let (one, two) = (vec![b'a' + round; 9000], vec![b'A' + round; 5000]);
        fs::write(&first, &one).unwrap();
        fs::write(&second, &two).unwrap();
        renameat_with(CWD, &first, CWD, &second, RenameFlags::EXCHANGE).unwrap();
        fs::File::open(&other).unwrap().sync_all().unwrap();
        b.rig.kill();
        b.rig.start();
        assert!(fs::read(&second).unwrap() == one, "round {round}");
        assert!(fs::read(&first).unwrap() == two, "round {round}");
    }
}
