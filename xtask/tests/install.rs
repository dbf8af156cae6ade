//! `make install` copies what `make` made, to where shells and manual readers look, without cargo; `make
//! uninstall` takes all of it away.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PROGRAMS: [&str; 6] = ["zfs-fuse", "zpool", "zfs", "zdb", "zstream", "ztest"];

struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// As root runs it: with nothing in PATH but the system's own.
fn make(place: &Path, words: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    Command::new("make")
        .arg("-C")
        .arg(root)
        .args(words)
        .arg(format!("DESTDIR={}", place.join("root").display()))
        .arg(format!("TARGET={}", place.join("target").display()))
        .args(["PREFIX=/usr/local", "CARGO=/nonexistent/cargo"])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .expect("make")
}

/// Everything below a folder that is no folder, and whether it is a link.
fn files(dir: &Path, below: &str, out: &mut BTreeSet<String>) {
    let Ok(list) = std::fs::read_dir(dir.join(below)) else {
        return;
    };
    for e in list.map(Result::unwrap) {
        let name = format!("{below}/{}", e.file_name().to_str().unwrap());
        match e.file_type().unwrap().is_dir() {
            true => files(dir, &name, out),
            false => {
                out.insert(name);
            }
        }
    }
}

fn installed(place: &Path) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    files(&place.join("root"), "usr", &mut out);
    files(&place.join("root"), "sbin", &mut out);
    out
}

#[test]
fn installing_takes_no_cargo_and_uninstalling_leaves_nothing() {
    let dir = std::env::temp_dir().join(format!("zfs-install-{}", std::process::id()));
    let place = Place(dir.clone());
    let place = &place.0;
    std::fs::create_dir_all(place.join("target/release")).unwrap();
    // Before `make` has run it says so, and copies nothing.
    let early = make(place, &["install"]);
    assert!(!early.status.success());
    let complaint = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(complaint.contains("run 'make' first"), "{complaint}");
    assert!(installed(place).is_empty());

    for p in PROGRAMS {
        let file = place.join("target/release").join(p);
        std::fs::write(&file, format!("#!/bin/sh\necho {p} \"$@\"\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    for (what, to) in [("manual", "man"), ("completions", "completions")] {
        let done = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg(what)
            .arg(place.join("target").join(to))
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    // What an earlier version had in sbin gives way to links.
    std::fs::create_dir_all(place.join("root/usr/local/sbin")).unwrap();
    std::fs::write(place.join("root/usr/local/sbin/zpool"), "old").unwrap();
    let done = make(place, &["install"]);
    assert!(done.status.success(), "{done:?}");

    let have = installed(place);
    for p in PROGRAMS {
        for folder in ["bin", "sbin"] {
            let path = format!("usr/local/{folder}/{p}");
            assert!(have.contains(&path), "{path}");
            let said = Command::new(place.join("root").join(&path))
                .arg("list")
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), format!("{p} list\n"));
        }
    }
    for path in [
        "bash-completion/completions/zpool",
        "zsh/site-functions/_zfs",
        "fish/vendor_completions.d/zfs-fuse.fish",
        "man/man8/zfs-fuse.8",
        "man/man7/zfsprops.7",
    ] {
        assert!(have.contains(&format!("usr/local/share/{path}")), "{path}");
    }
    // The units, what mount(8) looks for: links to where the program will be, and the old name of zstream.
    const EXTRA: [&str; 8] = [
        "sbin/mount.fuse.zfs",
        "sbin/mount.zfs",
        "usr/local/lib/systemd/system/zfs-fuse.service",
        "usr/local/lib/systemd/system/zfs-scrub@.service",
        "usr/local/lib/systemd/system/zfs-scrub-weekly@.timer",
        "usr/local/lib/systemd/system/zfs-scrub-monthly@.timer",
        "usr/local/lib/systemd/user/zfs-fuse.service",
        "usr/local/bin/zstreamdump",
    ];
    assert!(EXTRA.iter().all(|e| have.contains(*e)), "{have:?}");
    // Everything that is made is installed, and readable by all.
    let mut made = BTreeSet::new();
    files(place, "target", &mut made);
    assert_eq!(
        have.len(),
        made.len() + PROGRAMS.len() + EXTRA.len(),
        "{have:?}\n{made:?}"
    );
    for path in have.iter().filter(|p| !EXTRA[..2].contains(&p.as_str())) {
        let mode = place
            .join("root")
            .join(path)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o444, 0o444, "{path}");
    }
    let unit = "root/usr/local/lib/systemd/system/zfs-fuse.service";
    let unit = std::fs::read_to_string(place.join(unit)).unwrap();
    assert!(
        unit.contains("ExecStart=/usr/local/bin/zfs-fuse --no-daemon"),
        "{unit}"
    );

    for unit in EXTRA[2..7].iter() {
        let text = std::fs::read_to_string(place.join("root").join(unit)).unwrap();
        assert!(!text.contains("@PREFIX@"), "{unit}: {text}");
    }
    let scrub = "root/usr/local/lib/systemd/system/zfs-scrub@.service";
    let scrub = std::fs::read_to_string(place.join(scrub)).unwrap();
    assert!(scrub.contains("ExecStart=/usr/local/bin/zpool scrub %i"));
    verify(place, &EXTRA[2..7]);

    // As `systemctl enable` leaves it: nothing is switched on by installing.
    let wants = place.join("root/etc/systemd/system/local-fs.target.wants");
    assert!(!wants.exists());
    std::fs::create_dir_all(&wants).unwrap();
    for unit in [
        "zfs-fuse.service",
        "zfs-scrub-weekly@tank.timer",
        "other.service",
    ] {
        std::os::unix::fs::symlink("/usr/local/lib/unit", wants.join(unit)).unwrap();
    }
    let done = make(place, &["uninstall"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(installed(place), BTreeSet::new());
    let left: Vec<_> = std::fs::read_dir(&wants).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0].as_ref().unwrap().file_name(), "other.service");
}

/// systemd understands the units, where it is installed.
fn verify(place: &Path, units: &[&str]) {
    let root = place.join("root");
    for unit in units {
        // An instance, of those that are templates. Programs and targets need not be there.
        let path = root.join(unit);
        let verified = Command::new("systemd-analyze")
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(path)
            .output();
        let Ok(verified) = verified else {
            println!("systemd-analyze is not installed: units are not checked");
            return;
        };
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        for wrong in [
            "Unknown key",
            "Unknown section",
            "Failed to parse",
            "Invalid",
        ] {
            assert!(!said.contains(wrong), "{unit}: {said}");
        }
    }
}

/// What OpenZFS has put where mount(8) looks stays, also when we go.
#[test]
fn the_helper_of_openzfs_stays() {
    let dir = std::env::temp_dir().join(format!("zfs-install2-{}", std::process::id()));
    let place = Place(dir.clone());
    let place = &place.0;
    std::fs::create_dir_all(place.join("target/release")).unwrap();
    std::fs::create_dir_all(place.join("root/sbin")).unwrap();
    std::fs::write(place.join("root/sbin/mount.zfs"), "theirs").unwrap();
    for p in PROGRAMS {
        std::fs::write(place.join("target/release").join(p), p).unwrap();
    }
    for (what, to) in [("manual", "man"), ("completions", "completions")] {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        let made = xtask.arg(what).arg(place.join("target").join(to)).output();
        assert!(made.unwrap().status.success());
    }
    for step in ["install", "uninstall"] {
        let done = make(place, &[step]);
        assert!(done.status.success(), "{done:?}");
        let there = std::fs::read_to_string(place.join("root/sbin/mount.zfs"));
        assert_eq!(there.unwrap(), "theirs", "{step}");
    }
}

/// On systems where the two folders are one, links would take the place of the programs.
#[test]
fn one_folder_for_bin_and_sbin_is_no_trap() {
    let dir = std::env::temp_dir().join(format!("zfs-install1-{}", std::process::id()));
    let place = Place(dir.clone());
    let place = &place.0;
    for d in ["target/release", "root/usr/local/bin"] {
        std::fs::create_dir_all(place.join(d)).unwrap();
    }
    std::os::unix::fs::symlink("bin", place.join("root/usr/local/sbin")).unwrap();
    for p in PROGRAMS {
        std::fs::write(place.join("target/release").join(p), p).unwrap();
    }
    for (what, to) in [("manual", "man"), ("completions", "completions")] {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
        assert!(xtask
            .arg(what)
            .arg(place.join("target").join(to))
            .output()
            .unwrap()
            .status
            .success());
    }
    let done = make(place, &["install"]);
    assert!(done.status.success(), "{done:?}");
    for p in PROGRAMS {
        let file = place.join("root/usr/local/bin").join(p);
        assert_eq!(std::fs::read_to_string(file).unwrap(), p);
    }
}
