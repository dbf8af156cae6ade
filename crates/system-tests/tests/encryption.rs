//! Encrypted file systems through the real programs: keys, crashes, what OpenZFS made and what it
//! says of ours.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use system_tests::Rig;
use testkit::{or_skip, OpenZfs};

fn key_file(rig: &Rig, name: &str, text: &str) -> String {
    let path = rig.path().join("home").join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    format!("file://{}", path.display())
}

/// A pool on one disk.
fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    Some(Rig::new(name)?.with_tank(256 << 20))
}

/// A pool of our own: a crash with an encrypted log, another key, a destroyed file system without its
/// key; zdb finds all of it right and can read it.
#[test]
fn made_here() {
    let Some(mut rig) = Rig::new("encryption") else {
        return;
    };
    let disk = rig.image("disk", 192 << 20);
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    let pass = key_file(&rig, "pass", "correct horse\n");
    let hex = key_file(&rig, "hex", &"5a".repeat(32));
    rig.start();
    rig.zpool(&["create", "-m", at, "tank", &disk]);
    let location = format!("keylocation={pass}");
    let secret = [
        "create",
        "-o",
        "encryption=aes-192-ccm",
        "-o",
        "keyformat=passphrase",
    ];
    let quick = ["-o", "pbkdf2iters=100000", "-o", &location, "tank/s"];
    rig.zfs(&[&secret[..], &quick].concat());
    rig.zfs(&["create", "tank/s/child"]);
    rig.zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=hex",
        "-o",
        &format!("keylocation={hex}"),
        "tank/gone",
    ]);
    assert_eq!(rig.get("encryption", "tank/s/child"), "aes-192-ccm");
    assert_eq!(rig.get("encryptionroot", "tank/s/child"), "tank/s");
    assert_eq!(rig.get("keystatus", "tank/gone"), "available");
    let place = |ds: &str| rig.get("mountpoint", ds);
    let (s, child, gone) = (place("tank/s"), place("tank/s/child"), place("tank/gone"));
    // Small and large, compressible and not, and names that only the key tells.
    rig.sh(&format!(
        "head -c 300000 /dev/urandom > {s}/noise; seq 100000 > {s}/numbers; \
         mkdir {child}/hidden-name; cp {s}/noise {child}/hidden-name; cp {s}/numbers {gone}"
    ));
    let sums = rig.sh(&format!(
        "cd {s}; md5sum noise numbers; cd {child}; md5sum hidden-name/noise"
    ));
    rig.zpool(&["sync", "tank"]);
    rig.sh(&format!(
        "for i in 1 2 3; do head -c 9000 {s}/noise | dd of={child}/log$i conv=fsync 2>/dev/null; done"
    ));
    rig.kill();

    rig.start();
    // The cache file's pool is there again, its keys are not.
    assert_eq!(rig.get("keystatus", "tank/s"), "unavailable");
    let locked = rig.try_run("zfs", &["mount", "tank/s"]).fails(1);
    assert_eq!(locked, "cannot mount 'tank/s': encryption key not loaded\n");
    let wrong = key_file(&rig, "wrong", "battery staple\n");
    let said = rig
        .try_run("zfs", &["load-key", "-L", &wrong, "tank/s"])
        .fails(255);
    assert_eq!(
        said,
        "Key load error: Incorrect key provided for 'tank/s'.\n"
    );
    rig.try_run("zfs", &["load-key", "tank/s/child"]).fails(255);
    rig.zfs(&["destroy", "tank/gone"]);
    rig.zfs(&["mount", "-al"]);
    let again = rig.sh(&format!(
        "cd {s}; md5sum noise numbers; cd {child}; md5sum hidden-name/noise"
    ));
    assert_eq!(sums, again);
    rig.sh(&format!(
        "head -c 9000 {s}/noise > {s}/want; for i in 1 2 3; do cmp {s}/want {child}/log$i; done"
    ));
    let busy = rig.try_run("zfs", &["unload-key", "tank/s"]).fails(255);
    assert_eq!(busy, "Key unload error: 'tank/s' is busy.\n");

    // A key of its own for the child, then the parent's again.
    let own = format!("keylocation={hex}");
    rig.zfs(&[
        "change-key",
        "-o",
        "keyformat=hex",
        "-o",
        &own,
        "tank/s/child",
    ]);
    assert_eq!(rig.get("encryptionroot", "tank/s/child"), "tank/s/child");
    rig.zfs(&["unmount", "-a"]);
    assert_eq!(
        rig.zfs(&["unload-key", "-a"]),
        "2 / 2 key(s) successfully unloaded\n"
    );
    assert_eq!(
        rig.zfs(&["load-key", "-a"]),
        "2 / 2 key(s) successfully loaded\n"
    );
    rig.zfs(&["change-key", "-i", "tank/s/child"]);
    assert_eq!(rig.get("keylocation", "tank/s/child"), "none");
    assert!(!rig.zpool(&["history", "tank"]).contains("correct horse"));
    assert!(!rig.log().contains("correct horse"));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    only_the_key_shows_it(dir, &disk);
}

fn only_the_key_shows_it(dir: &str, disk: &str) {
    if let Some(oz) = or_skip(OpenZfs::get()) {
        let args = [
            "-e",
            "-p",
            dir,
            "-K",
            "correct horse",
            "-dddd",
            "tank/s/child",
        ];
        assert!(oz.zdb(&args).unwrap().contains("hidden-name"));
    }
    // Nothing of it lies open on the disk.
    let image = fs::read(disk).unwrap();
    for word in [&b"hidden-name"[..], b"99999\n100000\n"] {
        assert!(!image.windows(word.len()).any(|w| w == word), "{word:?}");
    }
}

/// A pool that OpenZFS encrypted from its root down.
#[test]
fn made_by_openzfs() {
    let Some(mut rig) = Rig::as_root("encrypted-root") else {
        return;
    };
    if or_skip(testkit::fixture::unpack_into(
        "encrypted-root",
        &rig.disks(),
    ))
    .is_none()
    {
        return;
    }
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, dir) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    let pass = key_file(&rig, "pass", "passwordA-root-1");
    rig.start();
    rig.zpool(&["import", "-d", dir, "-o", "readonly=on", "-R", at, "grove"]);
    assert_eq!(rig.zfs(&["mount"]), "");
    rig.zfs(&["load-key", "-L", &pass, "grove"]);
    rig.zfs(&["mount", "-a"]);
    assert_eq!(rig.zfs(&["mount"]).lines().count(), 3);
    rig.sh(&format!(
        "find {at}/grove -type f -size -256M -exec cat {{}} + > /dev/null"
    ));
    rig.zpool(&["export", "grove"]);
}

/// Of a tree that is sent raw the copy follows every change of keys: also where the tree below keeps, gets, or gives up a
/// key of its own.
#[test]
fn a_raw_copy_follows_the_keys_of_its_tree() {
    for format in ["passphrase", "hex"] {
        raw_copy_follows(format);
    }
}

fn raw_copy_follows(format: &str) {
    let Some(mut rig) = Rig::new(&format!("raw-keys-{format}")) else {
        return;
    };
    let disk = rig.image("d0", 256 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    for i in 1..=3 {
        let key = format!("{i}").repeat(64);
        fs::write(rig.path().join(format!("key{i}")), key).unwrap();
    }
    let at = |i: u32| format!("file://{}/key{i}", rig.path().display());
    let made = format!(
        "zfs create -o encryption=on -o keyformat={format} -o keylocation={}",
        at(1)
    );
    rig.sh(&format!(
        "{made} tank/s && zfs create tank/s/child && zfs snapshot -r tank/s@0"
    ));
    rig.sh("zfs send -wR tank/s@0 | zfs receive -u tank/copy");
    assert_eq!(rig.get("encryptionroot", "tank/copy/child"), "tank/copy");
    let mut step = 0;
    let mut follow = |change: &str, root: &str, keys: &[(&str, u32)]| {
        step += 1;
        rig.sh(&format!(
            "{change}
             echo {step} >{0}/s/file; echo {step} >{0}/s/child/file
             zfs snapshot -r tank/s@{step}
             zfs send -wR -i @{1} tank/s@{step} | zfs receive -uF tank/copy",
            mnt.display(),
            step - 1
        ));
        assert_eq!(
            rig.get("encryptionroot", "tank/copy/child"),
            root,
            "{change}"
        );
        for (name, key) in keys {
            rig.zfs(&["load-key", "-L", &at(*key), name]);
        }
        rig.sh("zfs mount tank/copy && zfs mount tank/copy/child");
        for name in ["copy", "copy/child"] {
            let text = fs::read_to_string(mnt.join(name).join("file")).unwrap();
            assert_eq!(text.trim(), step.to_string());
        }
        rig.sh("zfs unmount tank/copy && zfs unload-key -r tank/copy");
    };
    let change = |i: u32, name: &str| {
        format!(
            "zfs change-key -o keyformat={format} -o keylocation={} {name}",
            at(i)
        )
    };
    follow(&change(2, "tank/s"), "tank/copy", &[("tank/copy", 2)]);
    follow(
        &change(3, "tank/s/child"),
        "tank/copy/child",
        &[("tank/copy", 2), ("tank/copy/child", 3)],
    );
    follow(
        &change(1, "tank/s"),
        "tank/copy/child",
        &[("tank/copy", 1), ("tank/copy/child", 3)],
    );
    follow(
        "zfs change-key -i tank/s/child",
        "tank/copy",
        &[("tank/copy", 1)],
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn an_unmount_can_forget_keys() {
    let Some((rig, mnt)) = tank("unmount-keys") else {
        return;
    };
    let make = "zfs create -o encryption=on -o keyformat=passphrase";
    rig.sh(&format!(
        "echo password | {make} tank/e; echo password | {make} tank/e/own; zfs create tank/e/child"
    ));
    let status = |name: &str| rig.get("keystatus", name);
    rig.zfs(&["unmount", "-u", mnt.join("e/own").to_str().unwrap()]);
    assert_eq!(
        (&*status("tank/e/own"), &*status("tank/e")),
        ("unavailable", "available")
    );
    rig.sh("echo password | zfs mount -l tank/e/own");
    rig.zfs(&["unmount", "-u", "tank/e"]);
    for name in ["tank/e", "tank/e/own", "tank/e/child"] {
        assert_eq!(status(name), "unavailable", "{name}");
    }
    assert_eq!(rig.get("mounted", "tank"), "yes");
    // A clone goes on using the key.
    rig.sh("echo password | zfs mount -l tank/e/own; zfs snapshot tank/e/own@1");
    rig.zfs(&["clone", "tank/e/own@1", "tank/clone"]);
    let said = rig
        .try_run("zfs", &["unmount", "-u", "tank/e/own"])
        .fails(1);
    assert!(said.contains("Key unload error"), "{said}");
    assert_eq!(
        (&*status("tank/e/own"), &*rig.get("mounted", "tank/e/own")),
        ("available", "yes")
    );
    rig.zfs(&["destroy", "tank/clone"]);
    rig.zfs(&["unmount", "-a", "-u"]);
    assert_eq!(status("tank/e/own"), "unavailable");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A raw stream brings no accounting of owners: it is counted when the file system is mounted, which changes it. One that is
/// mounted read-only stays as it is, so that the next increment is taken without -F, as in OpenZFS.
/// The size of blocks is in the MACs, also where none was written; of both kinds of file there is one that has only holes.
#[test]
fn a_raw_copy_has_files_of_large_blocks_that_were_never_written() {
    let Some((rig, mnt)) = tank("unwritten-large") else {
        return;
    };
    let key = key_file(&rig, "pass", "correct horse\n");
    rig.sh(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 -o keylocation={key} \
             -o recordsize=1M -o compression=lz4 tank/a
         zfs snapshot tank/a@0
         head -c 1100000 /dev/zero > {0}/a/f; chmod 640 {0}/a/f; zfs snapshot tank/a@1
         zfs send -w tank/a@0 | zfs receive tank/b
         zfs send -w -i @0 tank/a@1 | zfs receive tank/b
         zfs send -w tank/a@1 | zfs receive tank/c
         zfs load-key -L {key} tank/b; zfs mount tank/b; cmp {0}/a/f {0}/b/f
         zfs load-key -L {key} tank/c; zfs mount tank/c; cmp {0}/a/f {0}/c/f
         test $(stat -c %a {0}/b/f) = 640",
        mnt.display()
    ));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn a_raw_copy_mounted_read_only_takes_the_next_increment() {
    let Some((rig, mnt)) = tank("read-only-copy") else {
        return;
    };
    let key = key_file(&rig, "pass", "correct horse\n");
    rig.sh(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 -o keylocation={key} tank/a
         head -c 300000 /dev/urandom > {0}/a/f; chown 1234 {0}/a/f; zfs snapshot tank/a@1
         head -c 300000 /dev/urandom > {0}/a/g; zfs snapshot tank/a@2
         zfs send -w tank/a@1 | zfs receive -o readonly=on tank/b
         zfs load-key -L {key} tank/b; zfs mount tank/b; cmp {0}/a/f {0}/b/f
         zfs send -w -i @1 tank/a@2 | zfs receive tank/b; cmp {0}/a/g {0}/b/g",
        mnt.display()
    ));
    assert_eq!(rig.get("written", "tank/b"), "0");
    // Owners are charged from when it can be written.
    let used = || {
        let said = rig.zfs(&["userspace", "-Hpn", "-o", "name,used", "tank/b"]);
        said.lines().any(|l| l.starts_with("1234\t"))
    };
    rig.zfs(&["set", "readonly=off", "tank/b"]);
    rig.zpool(&["sync", "tank"]);
    assert!(used());
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A raw increment can bring the keys wrapped under another key. Who has the copy mounted goes on: the keys themselves are the same.
/// The next mount needs the new key.
#[test]
fn a_mounted_raw_copy_goes_on_when_its_key_is_changed_by_a_stream() {
    let Some((rig, mnt)) = tank("key-changed") else {
        return;
    };
    let key = key_file(&rig, "pass", "correct horse\n");
    let key2 = key_file(&rig, "pass2", "battery staple\n");
    let m = mnt.display();
    rig.sh(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 -o keylocation={key} tank/a
         zfs create tank/a/below
         echo one > {m}/a/f; echo one > {m}/a/below/f; echo same > {m}/a/same; zfs snapshot -r tank/a@1
         zfs send -wR tank/a@1 | zfs receive tank/b
         zfs load-key -L {key} tank/b; zfs mount -a; cmp {m}/a/f {m}/b/f; cmp {m}/a/below/f {m}/b/below/f
         zfs change-key -o keylocation={key2} tank/a
         echo two > {m}/a/f; echo two > {m}/a/below/f; zfs snapshot -r tank/a@2"
    ));
    let mut open = fs::File::open(mnt.join("b/same")).unwrap();
    rig.sh("zfs send -wR -i @1 tank/a@2 | zfs receive -F tank/b");
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "same\n");
    drop(open);
    rig.sh(&format!(
        "cmp {m}/a/f {m}/b/f; cmp {m}/a/below/f {m}/b/below/f"
    ));
    assert_eq!(rig.get("keystatus", "tank/b"), "unavailable");
    rig.sh("zfs unmount tank/b");
    let load = |key: &str| rig.try_run("zfs", &["load-key", "-L", key, "tank/b"]);
    load(&key).fails(255);
    load(&key2).ok();
    rig.sh(&format!(
        "zfs mount -a; cmp {m}/a/f {m}/b/f; cmp {m}/a/below/f {m}/b/below/f"
    ));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// What a raw receive says of a property of the key: exit code and words.
fn takes(rig: &Rig, args: &str) -> (Option<i32>, String) {
    let said = rig.try_run("sh", &["-c", &format!("zfs receive -u {args}")]);
    (said.status.code(), said.err)
}

/// Where the key of a raw copy is: `prompt`, unless the stream has the properties of a file system with a key of its own,
/// or `-o` says. It is a local value in any case, and the stream's comes last, as OpenZFS 2.3.2 does it.
#[test]
fn a_raw_copy_has_the_location_of_its_key_from_the_stream_or_the_command() {
    let Some((rig, _)) = tank("key-location") else {
        return;
    };
    let key = key_file(&rig, "key", &"5a".repeat(32));
    let other = key_file(&rig, "other", &"5a".repeat(32));
    let make = format!("zfs create -o encryption=on -o keyformat=hex -o keylocation={key}");
    rig.sh(&format!(
        "{make} tank/f; zfs create tank/f/child; {make} tank/f/own
         zfs snapshot -r tank/f@1; zfs snapshot -r tank/f@2
         zfs send -w tank/f@1 >w1; zfs send -w -i @1 tank/f@2 >w2
         zfs send -wp tank/f@1 >wp1; zfs send -wp -i @1 tank/f@2 >wp2
         zfs send -wR tank/f@1 >wR1; zfs send -wR -i @1 tank/f@2 >wR2
         zfs send -wp tank/f/child@1 >child"
    ));
    let all = "name,value,received,source";
    let mut n = 0;
    let mut new = |args: &str, stream: &str, then: &str| {
        n += 1;
        let name = format!("tank/t{n}");
        assert_eq!(
            takes(&rig, &format!("{args} {name} <{stream}")),
            (Some(0), String::new())
        );
        let said = rig.zfs(&["get", "-H", "-o", all, "keylocation", &name]);
        assert_eq!(
            said,
            format!("{name}\t{then}\t-\tlocal\n"),
            "{args} {stream}"
        );
        name
    };
    let set = format!("-o keylocation={other}");
    for (args, stream, then) in [
        ("", "w1", "prompt"),
        ("-x keylocation", "w1", "prompt"),
        ("-o keylocation=prompt", "w1", "prompt"),
        (&set, "w1", &other),
        (&set, "child", &other),
        ("", "child", "prompt"),
        ("", "wp1", &key),
        ("-x keylocation", "wp1", &key),
        ("-o keylocation=prompt", "wp1", &key),
        (&set, "wp1", &key),
        (&set, "wR1", &key),
    ] {
        new(args, stream, then);
    }
    // The file systems below, by their own list.
    let tree = new("", "wR1", &key);
    let below = |name: &str| rig.zfs(&["get", "-H", "-o", "value,source", "keylocation", name]);
    assert_eq!(below(&format!("{tree}/child")), "none\tdefault\n");
    assert_eq!(below(&format!("{tree}/own")), format!("{key}\tlocal\n"));
    // An increment leaves it alone, or brings it, or is told.
    for (args, stream, then) in [
        ("", "w2", &*other),
        ("-x keylocation", "w2", &other),
        ("-o keylocation=prompt", "w2", "prompt"),
        ("", "wp2", &key),
        ("-o keylocation=prompt", "wp2", &key),
    ] {
        let name = new(&set, "w1", &other);
        assert_eq!(takes(&rig, &format!("{args} {name} <{stream}")).0, Some(0));
        assert_eq!(rig.get("keylocation", &name), then, "{args} {stream}");
    }
    let name = new("", "wp1", &key);
    rig.zfs(&["load-key", &name]);
    rig.zfs(&["unload-key", &name]);
    // The sender has its key elsewhere, and the file system below gets one of its own.
    rig.sh(&format!(
        "zfs set keylocation={other} tank/f; zfs change-key -o keyformat=hex -o keylocation={other} tank/f/child
         zfs snapshot -r tank/f@3; zfs send -wR -I @1 tank/f@3 | zfs receive -u {tree}"
    ));
    for fs in [tree.clone(), format!("{tree}/child")] {
        assert_eq!(below(&fs), format!("{other}\tlocal\n"), "{fs}");
    }
    refused_locations(&rig, &name, &key);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// Locations that a received dataset cannot have; `encrypted` has a snapshot `@1`.
fn refused_locations(rig: &Rig, encrypted: &str, key: &str) {
    let new = "cannot receive new filesystem stream: ";
    let more = "cannot receive incremental stream: ";
    let none = "keylocation must not be 'none' for encrypted datasets\n";
    let plain = "keylocation must be 'none' for unencrypted datasets\n";
    let format = "Keyformat required for new encryption root.\n";
    let off = "Encryption must be turned on to set encryption properties.\n";
    let invalid =
        "invalid keylocation: it must be 'prompt', 'none' or a URI (file:///, https://, http://)\n";
    rig.sh(
        "zfs create tank/p; zfs snapshot tank/p@1; zfs snapshot tank/p@2
         zfs send tank/p@1 >p1; zfs send -i @1 tank/p@2 >p2; zfs receive -u tank/q <p1
         zfs send tank/f@1 >open1; zfs send -i @1 tank/f@2 >open2; zfs receive -u tank/f/in <open1",
    );
    let all = || rig.zfs(&["list", "-H", "-t", "all", "-o", "name,guid,keylocation"]);
    let before = all();
    let at = format!("-o keylocation={key}");
    for (args, stream, begin, why) in [
        ("-o keylocation=none tank/x", "w1", new, none),
        ("-o keylocation=none tank/x", "wR1", new, none),
        (
            &*format!("-o keylocation=none {encrypted}"),
            "w2",
            more,
            none,
        ),
        ("-o keylocation=none tank/f/in", "open2", more, none),
        (&format!("{at} tank/f/in"), "open2", more, format),
        (&format!("{at} tank/f/x"), "open1", new, format),
        (&format!("{at} tank/q"), "p2", more, plain),
        (&format!("{at} tank/x"), "p1", new, off),
        ("-o keylocation=prompt tank/x", "p1", new, off),
        ("-o keylocation=bogus tank/x", "w1", new, invalid),
        ("-o keylocation=file://rel tank/x", "w1", new, invalid),
        ("-o keylocation= tank/x", "w1", new, invalid),
    ] {
        let said = takes(rig, &format!("{args} <{stream}"));
        assert_eq!(said, (Some(1), format!("{begin}{why}")), "{args} {stream}");
        assert_eq!(all(), before, "{args} {stream}");
    }
    rig.sh("zfs receive -u -o keylocation=none tank/q <p2");
    let said = rig
        .try_run("zfs", &["set", "keylocation=none", encrypted])
        .fails(1);
    assert_eq!(
        said,
        format!("cannot set property for '{encrypted}': {none}")
    );
}

/// A full raw stream never takes the place of a file system: its directory would need two keys. It did so where that was
/// not encrypted, and stopped the pool.
#[test]
fn a_raw_stream_takes_the_place_of_no_file_system() {
    let Some((rig, mnt)) = tank("raw-onto") else {
        return;
    };
    let key = key_file(&rig, "key", &"5a".repeat(32));
    let make = format!("zfs create -o encryption=on -o keyformat=hex -o keylocation={key}");
    rig.sh(&format!(
        "{make} tank/f; {make} tank/e; zfs create tank/n; echo kept >{0}/n/file; echo kept >{0}/e/file
         zfs snapshot tank/f@1; zfs send -w tank/f@1 >w; zfs send -wp tank/f@1 >wp; zfs send tank/f@1 >open",
        mnt.display()
    ));
    let words = "cannot receive new filesystem stream: zfs receive -F cannot be used to destroy an encrypted filesystem or \
                 overwrite an unencrypted one with an encrypted one\n";
    for (fs, stream) in [
        ("n", "w"),
        ("n", "wp"),
        ("e", "w"),
        ("e", "wp"),
        ("e", "open"),
    ] {
        let said = takes(&rig, &format!("-F tank/{fs} <{stream}"));
        assert_eq!(said, (Some(1), words.to_string()), "{fs} {stream}");
        let file = fs::read_to_string(mnt.join(fs).join("file")).unwrap();
        assert_eq!(file, "kept\n", "{fs} {stream}");
    }
    rig.zfs(&["snapshot", "tank/n@after"]);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
