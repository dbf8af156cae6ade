//! What somebody meets on the first days: questions on a terminal, lines of fstab, mount points, pipes that close.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use system_tests::{until, Dice, Rig};

fn tank(name: &str) -> Option<(Rig, PathBuf)> {
    Some(Rig::new(name)?.with_tank(256 << 20))
}

/// A shell with a prompt on a terminal, typed into.
struct Typist {
    shell: Child,
    screen: Arc<Mutex<String>>,
}

impl Typist {
    fn new(rig: &Rig) -> Typist {
        let line = "PS1='> ' exec bash --norc --noprofile -i";
        let mut c = rig.command("script", &["-qec", line, "/dev/null"]);
        c.env("SHELL", "/bin/sh").env("HISTFILE", "");
        c.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = c.spawn().expect("script");
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut out, seen) = (shell.stdout.take().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = out.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
                seen.lock().unwrap().push_str(&text);
            }
        });
        Typist { shell, screen }
    }

    /// Types a line and waits for this text after it.
    fn types(&mut self, line: &str, wanted: &str) -> String {
        let from = self.screen.lock().unwrap().len();
        let input = self.shell.stdin.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
        let after = || self.screen.lock().unwrap()[from..].to_string();
        until(&format!("{line}: {wanted}"), || after().contains(wanted));
        after()
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// A person at a prompt is asked. Whatever a script or tool calls is not, though it has the same terminal.
#[test]
fn only_who_typed_the_command_is_asked() {
    let Some((rig, _)) = tank("asked") else {
        return;
    };
    let there = |name: &str| rig.try_run("zfs", &["list", name]).status.success();
    for fs in ["a", "b", "c", "d"] {
        rig.zfs(&["create", &format!("tank/{fs}")]);
    }
    rig.zfs(&["snapshot", "tank/a@s"]);
    let mut typist = Typist::new(&rig);
    typist.types("zfs destroy tank/b", "Go on? [y/N]");
    typist.types("n", "nothing was changed");
    assert!(there("tank/b"));
    typist.types("zfs rollback tank/a@s", "Go on? [y/N]");
    typist.types("y", "y");
    typist.types("echo en''d", "end");
    // In a script and in a tool nobody waits for an answer.
    let script = "sh -c 'zfs destroy tank/b; zfs rollback tank/a@s; true'; echo en''d";
    let seen = typist.types(script, "end");
    assert!(!seen.contains("Go on?"), "{seen}");
    assert!(!there("tank/b"));
    let seen = typist.types("ZFS_FUSE_ASK=never zfs destroy tank/c; echo en''d", "end");
    assert!(!seen.contains("Go on?") && !there("tank/c"), "{seen}");
    let seen = typist.types("zfs destroy --yes tank/d; echo en''d", "end");
    assert!(!seen.contains("Go on?") && !there("tank/d"), "{seen}");
    typist.types("zpool destroy tank", "Go on? [y/N]");
    typist.types("n", "nothing was changed");
    assert!(there("tank"));
    let seen = typist.types("sh -c 'zpool destroy tank; true'; echo en''d", "end");
    assert!(!seen.contains("Go on?") && !there("tank"), "{seen}");
}

/// `zfs send … | head` and its like: whoever closes the pipe has read enough, and nobody complains.
#[test]
fn a_pipe_that_closes_early_is_no_error_to_tell() {
    let Some((rig, mnt)) = tank("pipes") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    fs::write(mnt.join("a/f"), Dice::new(3).bytes(8 << 20)).unwrap();
    rig.zfs(&["create", "-V", "32M", "tank/v"]);
    for n in 0..40 {
        rig.zfs(&["snapshot", &format!("tank/a@{n:0200}")]);
    }
    let newest = format!("tank/a@{:0200}", 39);
    for command in [
        format!("zfs send {newest}"),
        "zfs read tank/v".to_string(),
        "zfs list -t all".to_string(),
        "zfs get -r all tank".to_string(),
        "zpool history -i tank".to_string(),
    ] {
        let said = rig.try_run("sh", &["-c", &format!("{command} | head -c 1 | wc -c")]);
        assert_eq!((said.out.trim(), said.err.as_str()), ("1", ""), "{said}");
    }
    rig.zpool(&["export", "tank"]);
}

/// The directory that a mount has left, or that lies below a file system that is not mounted, goes with the file system. One
/// that somebody chose stays, and so does one with something in it.
#[test]
fn destroying_what_is_not_mounted_removes_its_empty_directory() {
    let Some((rig, mnt)) = tank("bare") else {
        return;
    };
    let own = rig.path().join("own");
    for fs in ["a", "b", "c"] {
        rig.zfs(&["create", &format!("tank/{fs}")]);
        rig.zfs(&["set", "canmount=noauto", &format!("tank/{fs}")]);
        rig.zfs(&["unmount", &format!("tank/{fs}")]);
        fs::create_dir_all(mnt.join(fs)).unwrap();
    }
    fs::create_dir(&own).unwrap();
    rig.zfs(&["set", &format!("mountpoint={}", own.display()), "tank/b"]);
    fs::write(mnt.join("c/kept"), "x").unwrap();
    for fs in ["a", "b", "c"] {
        rig.zfs(&["destroy", &format!("tank/{fs}")]);
    }
    assert!(!mnt.join("a").exists());
    assert!(own.exists());
    assert_eq!(fs::read(mnt.join("c/kept")).unwrap(), b"x");
    rig.zpool(&["export", "tank"]);
}

/// The mount point of a new file system is made in its parent, whose quotas count it.
#[test]
fn a_parent_over_its_project_quota_says_so() {
    let Some(rig) = Rig::as_root("project-full") else {
        return;
    };
    let (rig, mnt) = rig.with_tank(256 << 20);
    rig.zfs(&["create", "tank/a"]);
    let dir = mnt.join("a");
    rig.zfs(&["project", "-s", "-p", "7", "-r", dir.to_str().unwrap()]);
    for n in 0..4 {
        fs::write(dir.join(format!("{n}")), "x").unwrap();
    }
    rig.zpool(&["sync", "tank"]);
    rig.zfs(&["set", "projectobjquota@7=3", "tank/a"]);
    let said = rig.try_run("zfs", &["create", "tank/a/b"]).fails(1);
    assert!(said.contains("Disk quota exceeded"), "{said}");
    rig.zpool(&["export", "tank"]);
}

/// Two daemons on one machine: what one has in service is not offered by the other.
#[test]
fn a_pool_of_another_daemon_is_not_listed_for_import() {
    let Some((rig, _)) = tank("mine") else {
        return;
    };
    let Some(mut other) = Rig::new("theirs") else {
        return;
    };
    other.start();
    let disks = rig.disks();
    let list = || other.try_run("zpool", &["import", "-d", disks.to_str().unwrap()]);
    let said = list();
    assert!(!said.out.contains("tank"), "{said}");
    // Nor can it be had, of course.
    let taken = ["import", "-d", disks.to_str().unwrap(), "tank"];
    other.try_run("zpool", &taken).fails(1);
    rig.zpool(&["export", "tank"]);
    let said = list();
    assert!(said.out.contains("  pool: tank\n"), "{said}");
    other.stop();
}

/// With `ZFS_COLOR` on a terminal; never in a file or pipe.
#[test]
fn colours_are_for_terminals_that_ask_for_them() {
    let Some((mut rig, _)) = tank("colours") else {
        return;
    };
    let plain = rig.try_on_terminal("zpool", &["status"]).ok();
    assert!(!plain.contains('\x1b'), "{plain}");
    rig.variable("ZFS_COLOR", "1");
    rig.variable("TERM", "xterm");
    let shown = rig.try_on_terminal("zpool", &["status"]).ok();
    assert!(shown.contains("\x1b[1m  pool:\x1b[0m tank"), "{shown}");
    let shown = rig.try_on_terminal("zfs", &["list"]).ok();
    assert!(shown.starts_with("\x1b[1mNAME"), "{shown}");
    assert!(!rig.zpool(&["status"]).contains('\x1b'));
    rig.zpool(&["export", "tank"]);
}

/// What `-X` leaves out need not be sendable.
#[test]
fn a_tree_is_sent_without_its_encrypted_part() {
    let Some((rig, _)) = tank("without") else {
        return;
    };
    let key = rig.path().join("home/key");
    fs::write(&key, [7; 32]).unwrap();
    let place = format!("keylocation=file://{}", key.display());
    rig.zfs(&["create", "tank/a"]);
    let create = ["create", "-o", "encryption=on", "-o", "keyformat=raw", "-o"];
    rig.zfs(&[&create[..], &[&place, "tank/a/secret"]].concat());
    rig.zfs(&["snapshot", "-r", "tank/a@s"]);
    let stream = rig.path().join("home/stream");
    let stream = stream.to_str().unwrap();
    let said = rig.try_run("sh", &["-c", &format!("zfs send -R tank/a@s >{stream}")]);
    assert!(said.fails(1).contains("without the raw flag"));
    rig.sh(&format!("zfs send -R -X tank/a/secret tank/a@s >{stream}"));
    rig.sh(&format!("zfs receive -u tank/b <{stream}"));
    let list = rig.zfs(&["list", "-Hr", "-o", "name", "tank/b"]);
    assert_eq!(list, "tank/b\n");
    rig.zpool(&["export", "tank"]);
}

/// Properties that a volume does not have are refused for its stream; its size may be left out, for it is in the data.
#[test]
fn a_volume_is_received_with_properties_of_volumes() {
    let Some((rig, _)) = tank("volume-props") else {
        return;
    };
    rig.zfs(&["create", "-V", "8M", "tank/v"]);
    rig.zfs(&["snapshot", "tank/v@s"]);
    let stream = rig.path().join("home/stream");
    let stream = stream.to_str().unwrap();
    rig.sh(&format!("zfs send -p tank/v@s >{stream}"));
    let receive = |options: &str, name: &str| {
        let line = format!("zfs receive {options} {name} <{stream}");
        rig.try_run("sh", &["-c", &line])
    };
    let said = receive("-o atime=off", "tank/w").fails(1);
    assert!(said.contains("'atime' does not apply"), "{said}");
    receive("-o compression=off", "tank/w").ok();
    receive("-x volsize", "tank/x").ok();
    assert_eq!(rig.get("volsize", "tank/x"), (8 << 20).to_string());
    rig.zpool(&["export", "tank"]);
}

/// Each complaint names what it is about once, in a few lines.
#[test]
fn complaints_are_short_and_to_the_point() {
    let Some((rig, mnt)) = tank("complaints") else {
        return;
    };
    let err = |program: &str, args: &[&str]| {
        let said = rig.try_run(program, args);
        assert!(!said.status.success(), "{said}");
        said.err
    };
    let said = err("zfs", &["scrub", "tank"]);
    assert!(
        said.contains("did you mean 'zpool scrub'?") && said.lines().count() < 5,
        "{said}"
    );
    let said = err("zfs", &["set", "compression=fast", "tank"]);
    assert!(said.contains("gzip-[1-9]") && said.len() < 320, "{said}");
    let said = err("zfs", &["get", "size", "nopool"]);
    assert!(
        said.starts_with("bad property list: invalid property 'size'\n"),
        "{said}"
    );
    let said = err("zfs", &["get"]);
    assert!(
        said.contains("\nThe following properties are supported:\n"),
        "{said}"
    );
    let off = [
        "create",
        "-o",
        "encryption=off",
        "-o",
        "keyformat=passphrase",
        "tank/x",
    ];
    let said = err("zfs", &off);
    assert!(said.contains("Encryption must be turned on"), "{said}");
    rig.zfs(&["create", "-o", "normalization=formC", "tank/n"]);
    let said = err("zfs", &["create", "-o", "utf8only=off", "tank/n/u"]);
    assert!(said.contains("'utf8only' must be set 'on'"), "{said}");
    assert_eq!(
        rig.get("groupused@", "tank"),
        rig.get("groupused@0", "tank")
    );
    // A quota of a user on a file system that is full.
    rig.zfs(&["create", "-o", "quota=4M", "tank/full"]);
    let _ = fs::write(mnt.join("full/f"), Dice::new(5).bytes(6 << 20));
    let _ = rig.try_run("zpool", &["sync", "tank"]);
    let said = rig.try_run("zfs", &["set", "userquota@1=1M", "tank/full"]);
    if !said.status.success() {
        assert_eq!(said.err.matches("tank/full").count(), 1, "{}", said.err);
    }
    rig.zpool(&["export", "tank"]);
}

/// While nothing is mounted, what is written to the path by mistake fails instead of hiding below the next mount.
#[test]
fn a_closed_mount_point_takes_no_files_while_nothing_is_mounted() {
    if !system_tests::users_can_mount("closed") {
        return;
    }
    let Some(rig) = Rig::as_user("closed") else {
        return;
    };
    let (rig, mnt) = rig.with_tank(128 << 20);
    let place = rig.mnt().join("fs");
    let mode = || fs::metadata(&place).unwrap().permissions().mode() & 0o7777;
    let touch = || rig.try_run("touch", &[place.join("x")]).status.success();
    let set = ["create", "-o", "zfs-fuse:closed-mountpoint=on", "-o"];
    let at = format!("mountpoint={}", place.display());
    rig.zfs(&[&set[..], &[&at, "tank/fs"]].concat());
    assert!(touch(), "it is mounted");
    for _ in 0..2 {
        rig.zfs(&["unmount", "tank/fs"]);
        assert_eq!(mode(), 0o1000);
        assert!(!touch(), "the bare directory took a file");
        rig.zfs(&["mount", "tank/fs"]);
        assert!(touch());
    }
    // Over a restart of the daemon, too.
    let mut rig = rig;
    rig.kill();
    assert_eq!(mode(), 0o1000);
    rig.start();
    let touch = || rig.try_run("touch", &[place.join("x")]).status.success();
    assert!(touch(), "{}", rig.zfs(&["mount"]));
    // Without the property it is a directory like others.
    rig.zfs(&["set", "zfs-fuse:closed-mountpoint=off", "tank/fs"]);
    rig.zfs(&["unmount", "tank/fs"]);
    rig.zfs(&["mount", "tank/fs"]);
    rig.zfs(&["unmount", "tank/fs"]);
    assert_eq!(mode(), 0o755);
    assert!(touch());
    // One that nobody has set stays when the file system is unmounted, closed or not, and goes when the place is given up.
    for closed in ["on", "off"] {
        let set = format!("zfs-fuse:closed-mountpoint={closed}");
        let places = [mnt.with_file_name("tank+g"), mnt.join("g")];
        let there = || places.iter().any(|p| p.exists());
        rig.zfs(&["create", "-o", &set, "tank/g"]);
        rig.zfs(&["unmount", "tank/g"]);
        assert!(there(), "{closed}: unmounted");
        rig.zfs(&["mount", "tank/g"]);
        rig.zfs(&["set", "mountpoint=none", "tank/g"]);
        assert!(!there(), "{closed}: it has no mount point");
        rig.zfs(&["inherit", "mountpoint", "tank/g"]);
        rig.zfs(&["mount", "-a"]);
        assert!(there(), "{closed}: mounted");
        rig.zfs(&["destroy", "tank/g"]);
        assert!(!there(), "{closed}: destroyed");
    }
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// `zfs ls -d` and the like: no daemon runs, and nothing of the image changes.
#[test]
fn files_of_an_image_are_read_without_a_daemon() {
    let Some(rig) = Rig::as_root("everyday-unimported") else {
        return;
    };
    let (mut rig, mnt) = rig.with_tank(256 << 20);
    let image = rig.disks().join("d0");
    let key = rig.path().join("home/key");
    fs::write(&key, [7; 32]).unwrap();
    let place = format!("file://{}", key.display());
    rig.zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &format!("keylocation={place}"),
        "tank/e",
    ]);
    let at = mnt.display();
    rig.sh(&format!(
        "mkdir {at}/d; seq 100000 > {at}/d/n; ln -s n {at}/d/l; cp {at}/d/n {at}/e"
    ));
    rig.zfs(&["snapshot", "tank@s"]);
    rig.sh(&format!(
        "cp {at}/d/n {}/want; rm {at}/d/n",
        rig.path().display()
    ));
    rig.zpool(&["export", "tank"]);
    rig.stop();
    let before = fs::read(&image).unwrap();
    let (d, dir) = (image.to_str().unwrap(), rig.disks());
    let want = fs::read_to_string(rig.path().join("want")).unwrap();
    assert_eq!(rig.zfs(&["ls", "-d", d, "tank"]), "d\ne\n");
    assert_eq!(
        rig.zfs(&["ls", "-d", dir.to_str().unwrap(), "tank@s:/d"]),
        "l\nn\n"
    );
    assert!(rig.zfs(&["cat", "-d", d, "tank@s:d/n"]) == want);
    assert!(rig.zfs(&["cat", "-d", d, "tank/e:n"]) == want);
    fs::rename(&key, rig.path().join("home/moved")).unwrap();
    let said = rig.try_run("zfs", &["cat", "-d", d, "tank/e:n"]).fails(1);
    assert!(said.contains("Failed to open key material file"), "{said}");
    let moved = place.replace("home/key", "home/moved");
    let to = rig.path().join("home/copy");
    let copy = to.to_str().unwrap();
    rig.zfs(&["cp", "-d", d, "-L", &moved, "tank/e:n", copy]);
    assert!(fs::read_to_string(&to).unwrap() == want);
    // What fails leaves the copy that was there.
    rig.try_run("zfs", &["cp", "-d", d, "tank@s:none", copy])
        .fails(1);
    assert!(fs::read_to_string(&to).unwrap() == want);
    let tar = rig
        .command("zfs", &["tar", "-d", d, "tank@s:d"])
        .output()
        .unwrap();
    fs::write(rig.path().join("tar"), tar.stdout).unwrap();
    let listed = rig.sh(&format!("tar -tf {}/tar", rig.path().display()));
    assert_eq!(listed, "d/\nd/l\nd/n\n");
    let said = rig.try_run("zfs", &["ls", "-d", d, "other/x"]).fails(1);
    assert_eq!(
        said,
        "cannot list 'other/x': no such pool available\nFound there: tank.\n"
    );
    let said = rig
        .try_run("zfs", &["cat", "-L", &moved, "tank:d"])
        .fails(2);
    assert!(
        said.contains("-L is only for pools that are not imported"),
        "{said}"
    );
    assert!(!rig.socket().exists());
    assert!(fs::read(&image).unwrap() == before);
}

/// As OpenZFS does it: where zeros compress to nothing, a mapping makes holes as `write` does, and `lseek` finds them at once.
#[test]
fn zeros_written_through_a_mapping_are_holes() {
    let Some((rig, mnt)) = tank("everyday-mapping") else {
        return;
    };
    let script = r#"
import mmap, os, sys
B = 128 << 10
def spans(fd):
    out, at, end = [], 0, os.fstat(fd).st_size
    while at < end:
        try: data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError: break
        at = os.lseek(fd, data, os.SEEK_HOLE)
        out.append((data // B, at // B))
    return out
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644)
os.ftruncate(fd, 8 * B)
with mmap.mmap(fd, 8 * B) as m:
    print(spans(fd))
    m[2 * B:7 * B] = b"x" * (5 * B)
    print(spans(fd))
    m[3 * B:5 * B] = bytes(2 * B)
    print(spans(fd))
    m.flush()
    os.fsync(fd)
    print(spans(fd))
os.close(fd)
"#;
    let file = rig.path().join("map.py");
    fs::write(&file, script).unwrap();
    for (compression, last) in [("lz4", "[(2, 3), (5, 7)]"), ("off", "[(2, 7)]")] {
        rig.zfs(&["set", &format!("compression={compression}"), "tank"]);
        let at = mnt.join(compression);
        let said = rig.sh(&format!("python3 {} {}", file.display(), at.display()));
        assert_eq!(
            said,
            format!("[]\n[(2, 7)]\n{last}\n{last}\n"),
            "{compression}"
        );
        rig.zpool(&["sync", "tank"]);
        let blocks = rig.sh(&format!("stat -c %b {}", at.display()));
        let blocks: u64 = blocks.trim().parse().unwrap();
        // Without compression five blocks of zeros and data are stored.
        let stored = blocks * 512 >= 5 * (128 << 10);
        assert_eq!(stored, compression == "off", "{compression}: {blocks}");
    }
}

/// With `snapdir=visible`, where root mounts: `.zfs` has a device number of its own, and otherwise it is what it was.
#[test]
fn programs_that_stay_on_one_file_system_leave_visible_snapshots_out() {
    let Some(rig) = Rig::as_root("everyday-snapdir") else {
        return;
    };
    let (mut rig, mnt) = rig.with_tank(256 << 20);
    rig.zfs(&["create", "tank/a"]);
    let at = mnt.join("a").display().to_string();
    rig.sh(&format!("mkdir {at}/d; seq 50000 > {at}/d/kept"));
    rig.zfs(&["snapshot", "tank/a@one"]);
    rig.sh(&format!("echo new > {at}/d/young"));
    rig.zfs(&["snapshot", "tank/a@two"]);
    let devices = |rig: &Rig| {
        let said = rig.sh(&format!(
            "stat -c %d {at} {at}/.zfs {at}/.zfs/snapshot/one/d/kept"
        ));
        let all: Vec<String> = said.lines().map(str::to_string).collect();
        (all[0] == all[1], all[1] == all[2])
    };
    assert_eq!(devices(&rig), (true, true));
    // Of the parent: its children follow.
    rig.zfs(&["set", "snapdir=visible", "tank"]);
    assert_eq!(devices(&rig), (false, true));
    let stays = |rig: &Rig| {
        let found = rig.sh(&format!("cd {at}; find . -xdev | sort"));
        assert_eq!(found, ".\n./.zfs\n./d\n./d/kept\n./d/young\n");
        let archived = rig.sh(&format!(
            "cd {at}; tar --one-file-system -cf - . 2>&- | tar -t | sort"
        ));
        assert_eq!(archived, "./\n./.zfs/\n./d/\n./d/kept\n./d/young\n");
        let used = |options: &str| -> u64 {
            let said = rig.sh(&format!("du -s --apparent-size -k {options} {at}"));
            said.split_whitespace().next().unwrap().parse().unwrap()
        };
        let (one, all) = (used("-x"), used(""));
        assert!(one < 400 && all > 3 * one - 100, "{one} {all}");
        let copy = rig.path().join("copy");
        let copy = copy.display();
        let has_rsync = rig.try_run("sh", &["-c", "command -v rsync"]);
        if has_rsync.status.success() {
            rig.sh(&format!(
                "rsync -ax {at}/ {copy}; test ! -e {copy}/.zfs/snapshot; rm -r {copy}"
            ));
        }
    };
    stays(&rig);
    // It is what it was.
    rig.sh(&format!(
        "cmp {at}/d/kept {at}/.zfs/snapshot/two/d/kept; test ! -e {at}/.zfs/snapshot/one/d/young"
    ));
    rig.sh(&format!(
        "mkdir {at}/.zfs/snapshot/three; mv {at}/.zfs/snapshot/three {at}/.zfs/snapshot/3"
    ));
    assert!(rig
        .zfs(&["list", "-H", "-o", "name", "-t", "snapshot", "tank/a"])
        .contains("tank/a@3"));
    rig.sh(&format!(
        "rmdir {at}/.zfs/snapshot/3; test ! -e {at}/.zfs/snapshot/3"
    ));
    for line in [
        format!("echo x > {at}/.zfs/x"),
        format!("chmod 700 {at}/.zfs/snapshot/one/d"),
        format!("touch {at}/.zfs/snapshot/one/d/kept"),
    ] {
        let said = rig.try_run("sh", &["-c", &line]);
        assert!(
            !said.status.success() && said.err.contains("Read-only file system"),
            "{line}: {}",
            said.err
        );
    }
    assert_eq!(
        rig.sh(&format!("ls -a {at}/.zfs/snapshot")),
        ".\n..\none\ntwo\n"
    );
    // Rollback, and a stream into it, go on under it.
    rig.zfs(&["rollback", "tank/a@two"]);
    stays(&rig);
    // Who is in a snapshot keeps the file system from being unmounted, and is named.
    let mut inside = std::process::Command::new("sleep")
        .arg("600")
        .current_dir(format!("{at}/.zfs/snapshot/one"))
        .spawn()
        .unwrap();
    let busy = rig.try_run("zfs", &["unmount", "tank/a"]).fails(1);
    assert!(
        busy.contains("pool or dataset is busy") && busy.contains("sleep"),
        "{busy}"
    );
    assert_eq!(devices(&rig), (false, true));
    rig.zfs(&["unmount", "-f", "tank/a"]);
    assert!(!PathBuf::from(&at).join(".zfs").exists());
    let _ = inside.kill();
    let _ = inside.wait();
    rig.zfs(&["mount", "tank/a"]);
    stays(&rig);
    // The same where the file system itself is in use: `.zfs` is back at its place.
    let held = fs::File::open(format!("{at}/d/kept")).unwrap();
    rig.try_run("zfs", &["unmount", "tank/a"]).fails(1);
    stays(&rig);
    drop(held);
    // Killed, and started again.
    rig.kill();
    rig.start();
    stays(&rig);
    rig.zfs(&["set", "snapdir=hidden", "tank"]);
    assert_eq!(devices(&rig), (true, true));
    assert_eq!(rig.sh(&format!("ls -A {at}")), "d\n");
    rig.zfs(&["set", "snapdir=visible", "tank/a"]);
    stays(&rig);
    rig.zfs(&["rename", "tank/a", "tank/b"]);
    let seen = rig.sh(&format!("find {}/b -xdev -name kept", mnt.display()));
    assert_eq!(seen.lines().count(), 1, "{seen}");
    rig.zpool(&["export", "tank"]);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(mnt.to_str().unwrap()), "{table}");
}
