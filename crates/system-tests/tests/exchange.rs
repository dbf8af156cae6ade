//! OpenZFS in a virtual machine receives our streams of every kind, and sends increments back. Raw ones go there and
//! back several times.
//!
//! `ZFS_FUSE_TEST_OZFS_VM` names the folder with the command `ozfs-vm`, which runs a script in a machine with OpenZFS:
//! `ozfs-vm run --share FOLDER --timeout SECONDS SCRIPT`. Without it nothing is done. A run takes minutes.

use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use system_tests::manifest::{self, Look};
use system_tests::{tree, Dice, Rig};

/// What is done over there. Ends with 0 only if everything was taken.
const SCRIPT: &str = r#"
set -e
cd /share
truncate -s 3G /tmp/p.img
zpool create -o cachefile=none -O mountpoint=/g -O atime=off -O acltype=posix -O xattr=sa g /tmp/p.img
show() {
	mkdir -p /tmp/s; mount -t zfs g/$1@$2 /tmp/s
	python3 /job/bin/manifest.py tree /tmp/s > "/share/out-$(echo $1 | tr / +)@$2.json"
	umount /tmp/s
}
take() { echo "receive $*"; zfs receive "$@"; }
for s in *.zs; do zstream dump $s > /tmp/dump || { echo "dump $s"; tail -3 /tmp/dump; exit 3; }; done
take g/full < full.zs; take g/full < inc.zs; show full 1; show full 3
take g/lec < lec.zs; show lec 3
take g/c < compressed.zs; show c 3
take g/r < tree.zs; show r 1; show r 3; show r/b 2; show r/b 3; show r/clone 3
zfs get -Hp -o name,property,value,source recordsize,compression,com.example:x -t filesystem -r g/r > props
zfs userspace -Hpn -o type,name,used,quota g/r > space
zfs holds -H g/r@3 > holds
take g/raw < raw1.zs; take g/raw < raw2.zs
zfs load-key -L file:///share/key g/raw; zfs mount g/raw; show raw 1; show raw 2
take -u g/red < redacted.zs; zfs get -Hp -o value redact_snaps g/red@1 > redacted
take -s g/res < half.zs && exit 4
zfs get -H -o value receive_resume_token g/res > token.new; mv token.new token
for n in $(seq 600); do [ -e rest.zst ] && break; sleep 1; done
take -s g/res < rest.zst; show res 3
# Back again.
echo "from there" > /g/r/there; rm -rf /g/r/gone; dd if=/dev/urandom of=/g/r/b/noise bs=64k count=9 2>&1; truncate -s 3000 /g/r/big
zfs snapshot -r g/r@back; show r back; show r/b back
zfs send -RL -I @3 g/r@back > back.out
echo "sealed there" > /g/raw/there; zfs snapshot g/raw@back; show raw back
zfs send -w -i @2 g/raw@back > backraw.out
zpool scrub -w g; zpool status g | grep 'No known data errors'
zpool export g
"#;

fn send(rig: &Rig, share: &Path, name: &str, args: &[&str]) {
    let out = File::create(share.join(name)).unwrap();
    let status = rig
        .command("zfs", &[&["send"], args].concat())
        .stdout(out)
        .status();
    assert!(status.unwrap().success(), "{args:?}");
}

/// What OpenZFS saw is what is here.
fn same(share: &Path, name: &str, root: &Path) {
    let text = fs::read(share.join(format!("out-{name}.json"))).unwrap();
    let entries: Value = serde_json::from_slice(&text).unwrap();
    let entries = entries.as_array().unwrap();
    assert!(entries.len() > 2, "{name}: {} entries", entries.len());
    let seen = manifest::compare(root, entries, &Look::default());
    assert!(
        seen.differences.is_empty(),
        "{name}: {:?}",
        seen.differences
    );
    eprintln!("{name}: {} entries, {} bytes", seen.entries, seen.bytes);
}

fn receive(rig: &Rig, args: &[&str], stream: &Path) {
    let mut c = rig.command("zfs", &[&["receive"], args].concat());
    let out = c.stdin(File::open(stream).unwrap()).output().unwrap();
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// The file systems whose streams are sent.
fn sources(rig: &Rig, key: &Path) {
    let at = |fs: &str| rig.mnt().join("tank").join(fs);
    let options = ["-o", "atime=off", "-o", "xattr=sa", "-o", "acltype=posix"];
    rig.zfs(
        &[
            &["create"],
            &options[..],
            &["-o", "recordsize=1M", "tank/a"],
        ]
        .concat(),
    );
    rig.zfs(&["create", "-o", "compression=zstd", "tank/a/b"]);
    rig.zfs(&[
        "set",
        "com.example:x=of the sender",
        "userquota@7=50M",
        "tank/a",
    ]);
    let location = format!("keylocation=file://{}", key.display());
    let sealed = [
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
    ];
    rig.zfs(&[&["create"], &sealed[..], &options, &["tank/sec"]].concat());
    let kinds = tree::Kinds {
        xattrs: true,
        acls: true,
        huge: false,
    };
    let mut dice = Dice::new(5);
    for (n, fs) in ["a", "a/b", "sec"].into_iter().enumerate() {
        fs::create_dir_all(at(fs).join("gone/below")).unwrap();
        fs::create_dir_all(at(fs).join("t")).unwrap();
        tree::write(&at(fs).join("t"), 150, 20 + n as u64, kinds).unwrap();
        fs::write(at(fs).join("big"), dice.bytes(3_000_000)).unwrap();
        fs::write(at(fs).join("secret"), dice.bytes(300_000)).unwrap();
        // Short and compressible: embedded in its pointer.
        fs::write(at(fs).join("tiny"), "tiny ".repeat(40)).unwrap();
    }
    std::os::unix::fs::chown(at("a").join("big"), Some(7), Some(8)).unwrap();
    for (n, snap) in ["1", "2", "3"].into_iter().enumerate() {
        rig.zfs(&["snapshot", "-r", &format!("tank/a@{snap}")]);
        rig.zfs(&["snapshot", &format!("tank/sec@{snap}")]);
        if n == 1 {
            rig.zfs(&["clone", "tank/a/b@2", "tank/a/clone"]);
        }
        for fs in ["a", "a/b", "sec"] {
            let file = File::options()
                .write(true)
                .open(at(fs).join("big"))
                .unwrap();
            use std::os::unix::fs::FileExt;
            file.write_all_at(&dice.bytes(200_000), dice.below(2_000_000))
                .unwrap();
            file.set_len(2_500_000 - n as u64 * 300_000).unwrap();
            let _ = fs::remove_file(at(fs).join(format!("new{n}")));
            fs::write(at(fs).join(format!("new{}", n + 1)), dice.bytes(90_000)).unwrap();
        }
    }
    rig.zfs(&["hold", "kept", "tank/a@3"]);
}

/// The folder of `ozfs-vm`; `None` after saying that there is none.
fn machine() -> Option<PathBuf> {
    let folder = std::env::var_os("ZFS_FUSE_TEST_OZFS_VM").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: ZFS_FUSE_TEST_OZFS_VM does not name the folder of ozfs-vm");
    }
    folder
}

/// Runs the script over there. Once it has a resume token, the rest of that stream is sent.
fn run_there(rig: &Rig, vm: &Path, share: &Path, script: &str) -> ExitStatus {
    let file = rig.path().join("script");
    fs::write(&file, script).unwrap();
    let limit = system_tests::number("ZFS_FUSE_TEST_OZFS_SECONDS", 1500).to_string();
    let mut machine = Command::new(vm.join("ozfs-vm"))
        .args(["run", "--timeout", &limit, "--mem", "2048", "--share"])
        .arg(share)
        .arg(&file)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    loop {
        if let Ok(token) = fs::read_to_string(share.join("token")) {
            let _ = fs::remove_file(share.join("token"));
            send(rig, share, "rest.new", &["-t", token.trim()]);
            fs::rename(share.join("rest.new"), share.join("rest.zst")).unwrap();
        }
        if let Some(status) = machine.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A pool, the place where it is mounted, and the folder that the machine sees.
fn tank(name: &str) -> Option<(Rig, PathBuf, PathBuf)> {
    let mut rig = Rig::as_root(name)?;
    let disk = rig.image("disk", 2 << 30);
    rig.start();
    let at = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    let share = rig.path().join("share");
    fs::create_dir(&share).unwrap();
    Some((rig, at, share))
}

#[test]
fn openzfs_takes_our_streams_and_gives_increments_back() {
    let Some(vm) = machine() else { return };
    let Some((rig, at, share)) = tank("exchange") else {
        return;
    };
    let key = share.join("key");
    fs::write(&key, [9; 32]).unwrap();
    sources(&rig, &key);
    let send = |name: &str, args: &[&str]| send(&rig, &share, name, args);
    send("full.zs", &["tank/a@1"]);
    send("inc.zs", &["-I", "@1", "tank/a@3"]);
    send("lec.zs", &["-Lec", "tank/a@3"]);
    send("compressed.zs", &["-c", "tank/a@3"]);
    send("tree.zs", &["-RLec", "-h", "tank/a@3"]);
    send("raw1.zs", &["-w", "tank/sec@1"]);
    send("raw2.zs", &["-w", "-i", "@1", "tank/sec@2"]);
    rig.zfs(&["clone", "-o", "mountpoint=none", "tank/a@1", "tank/hidden"]);
    rig.zfs(&[
        "set",
        &format!("mountpoint={}", at.join("hidden").display()),
        "tank/hidden",
    ]);
    fs::remove_file(at.join("hidden/secret")).unwrap();
    rig.zfs(&["snapshot", "tank/hidden@r"]);
    rig.zfs(&["redact", "tank/a@1", "book", "tank/hidden@r"]);
    send("redacted.zs", &["--redact", "book", "tank/a@1"]);
    let whole = fs::read(share.join("lec.zs")).unwrap();
    // No dump can be made of half a stream.
    fs::write(share.join("half.part"), &whole[..whole.len() / 2]).unwrap();
    let script = SCRIPT.replace("half.zs", "half.part");
    let ended = run_there(&rig, &vm, &share, &script);
    assert!(ended.success(), "{ended}");
    let snap = |fs: &str, snap: &str| at.join(fs).join(".zfs/snapshot").join(snap);
    for (theirs, fs, of) in [
        ("full@1", "a", "1"),
        ("full@3", "a", "3"),
        ("lec@3", "a", "3"),
        ("c@3", "a", "3"),
        ("r@1", "a", "1"),
        ("r@3", "a", "3"),
        ("r+b@2", "a/b", "2"),
        ("r+b@3", "a/b", "3"),
        ("r+clone@3", "a/clone", "3"),
        ("raw@1", "sec", "1"),
        ("raw@2", "sec", "2"),
        ("res@3", "a", "3"),
    ] {
        same(&share, theirs, &snap(fs, of));
    }
    let said = |name: &str| fs::read_to_string(share.join(name)).unwrap();
    let what = "recordsize,compression,com.example:x";
    let get = [
        "get",
        "-Hp",
        "-o",
        "name,property,value,source",
        what,
        "-t",
        "filesystem",
        "-r",
    ];
    let ours = rig.zfs(&[&get[..], &["tank/a"]].concat());
    let theirs = said("props")
        .replace("g/r", "tank/a")
        .replace("received", "local");
    assert_eq!(ours, theirs);
    let space = [
        "userspace",
        "-Hpn",
        "-o",
        "type,name,used,quota",
        "tank/a@3",
    ];
    // Blocks and objects may take other room there: who has something, and what may be had, is the same.
    let limits = |text: &str| {
        let line = |l: &str| {
            let f: Vec<&str> = l.split('\t').collect();
            (f[0].to_string(), f[1].to_string(), f[3].to_string())
        };
        let mut all: Vec<_> = text.lines().map(line).collect();
        all.sort();
        all
    };
    let here = rig.zfs(&space);
    eprintln!("space there:\n{}space here:\n{here}", said("space"));
    assert_eq!(limits(&said("space")), limits(&here));
    assert!(said("holds").contains("kept"), "{}", said("holds"));
    assert_eq!(said("redacted").trim(), rig.get("guid", "tank/hidden@r"));
    // What they made of it.
    receive(&rig, &["-F", "tank/a"], &share.join("back.out"));
    same(&share, "r@back", &snap("a", "back"));
    same(&share, "r+b@back", &snap("a/b", "back"));
    assert_eq!(
        fs::read_to_string(at.join("a/there")).unwrap(),
        "from there\n"
    );
    rig.zfs(&["rollback", "-r", "tank/sec@2"]);
    receive(&rig, &["tank/sec"], &share.join("backraw.out"));
    same(&share, "raw@back", &snap("sec", "back"));
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("No known data errors"), "{status}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// What both runs over there begin with.
const RAW_TOOLS: &str = r#"
set -e
cd /share
show() { # FILE-SYSTEM SNAPSHOT NAME
	mkdir -p /tmp/s; mount -t zfs $1@$2 /tmp/s
	python3 /job/bin/manifest.py tree /tmp/s > "/share/out-$3@$2.json"
	umount /tmp/s
}
take() { echo "receive $*"; zfs receive "$@"; }
space() { # FILE-SYSTEM NAME
	for what in "user -n" "group -n" project; do
		set -- "$1" "$2" $what; zfs ${3}space $4 -Hp -o type,name,used,quota,objused,objquota $1
	done > "space-$2"
}
unlock() { zfs load-key -L file:///share/key $1; zfs load-key -L file:///share/key2 $1/own; zfs mount -a; }
"#;

/// Everything comes from here, is used there, and goes back.
const RAW_THERE: &str = r#"
truncate -s 2G p.img
zpool create -o cachefile=none -O mountpoint=/g -O acltype=posix g /share/p.img
for s in *.zs; do zstream dump $s > /tmp/dump || { echo "dump $s"; tail -3 /tmp/dump; exit 3; }; done
take -u g/s < tree1.zs; take -u g/s < tree3.zs
zfs get -H -o name,value -r -t filesystem encryptionroot g/s > roots
unlock g/s
show g/s 1 s; show g/s 3 s; show g/s/below 2 below; show g/s/below 3 below; show g/s/own 3 own
space g/s s; space g/s/below below
take -u g/one < one1.zs; take -u g/one < one2.zs; take -u g/one < one3.zs
zfs load-key -L file:///share/key g/one; zfs mount g/one
show g/one 3 one; space g/one one
take -u g/red < redacted.zs; zfs mount g/red 2>/dev/null || true; zfs get -Hp -o value redact_snaps g/red@1 > redacted
take -s -u g/res < half.part && exit 4
zfs get -H -o value receive_resume_token g/res > token.new; mv token.new token
for n in $(seq 900); do [ -e rest.zst ] && break; sleep 1; done
take -s -u g/res < rest.zst; zfs load-key -L file:///share/key g/res; zfs mount g/res; show g/res 3 res
# Back again, the second time with another key.
echo "from there" > /g/s/there; rm -rf /g/s/gone; head -c 400000 /dev/urandom > /g/s/below/noise; truncate -s 3000 /g/s/big
chown 7:8 /g/s/below/noise; cp /g/s/new2 /g/s/own/more; chown 9 /g/s/own/more
zfs set userquota@9=70M groupobjquota@8=900 g/s
zfs snapshot -r g/s@b1; zfs send -wR -I @3 g/s@b1 > back1
zfs change-key -o keylocation=file:///share/key2 g/s
echo "again" > /g/s/below/again; zfs snapshot -r g/s@b2; zfs send -wR -i @b1 g/s@b2 > back2
show g/s b1 s; show g/s b2 s; show g/s/below b2 below; show g/s/own b2 own
zpool sync g; for f in s s/below s/own; do space g/$f back-$(basename $f); done
echo x > /g/one/x; zfs snapshot g/one@b1; zfs send -w -i @3 g/one@b1 > oneback; show g/one b1 one
zpool scrub -w g; zpool status g | grep 'No known data errors'
zpool export g
"#;

/// A further increment comes from here. Owners are not compared: of raw increments to what it has counted before, its own ones too,
/// OpenZFS 2.3.2 counts what is new only when told of the version again, and what is freed stays counted.
const RAW_AGAIN: &str = r#"
zpool import -o cachefile=none -d /share g
zfs load-key -L file:///share/key2 g/s; zfs load-key -L file:///share/key2 g/s/own; zfs mount -a
take -F -u g/s < further.zs
zfs get -H -o name,value -r -t filesystem keystatus g/s
zfs mount -a; show g/s a4 s; show g/s/below a4 below; show g/s/own a4 own
zpool scrub -w g; zpool status g | grep 'No known data errors'
zfs destroy -r g/s; zfs destroy -r g/one; zpool sync g; zpool export g
zdb -e -p /share -bcc g > zdb 2>&1 || { tail -20 zdb; exit 5; }
"#;

/// Files of several owners under two keys, with quotas, in three snapshots.
fn sealed_sources(rig: &Rig, share: &Path) {
    let at = |fs: &str| rig.mnt().join("tank").join(fs);
    let sealed = |key: &str| {
        let key = share.join(key).display().to_string();
        format!("-o encryption=on -o keyformat=raw -o keylocation=file://{key}")
    };
    let options = "-o atime=off -o xattr=sa -o acltype=posix";
    rig.sh(&format!(
        "zfs create {} {options} -o recordsize=1M -o dnodesize=auto tank/s
         zfs create -o compression=zstd -o recordsize=16K tank/s/below
         zfs create {} tank/s/own",
        sealed("key"),
        sealed("key2")
    ));
    let kinds = tree::Kinds {
        xattrs: true,
        acls: true,
        huge: false,
    };
    let mut dice = Dice::new(11);
    let all = ["s", "s/below", "s/own"];
    for (n, fs) in all.into_iter().enumerate() {
        fs::create_dir_all(at(fs).join("gone/below")).unwrap();
        fs::create_dir_all(at(fs).join("t")).unwrap();
        tree::write(&at(fs).join("t"), 60, 40 + n as u64, kinds).unwrap();
        fs::write(at(fs).join("big"), dice.bytes(2_500_000)).unwrap();
        fs::write(at(fs).join("secret"), dice.bytes(200_000)).unwrap();
        fs::write(at(fs).join("tiny"), "tiny ".repeat(40)).unwrap();
        std::os::unix::fs::chown(at(fs).join("big"), Some(7), Some(8)).unwrap();
        std::os::unix::fs::chown(at(fs).join("secret"), Some(9), Some(8)).unwrap();
    }
    rig.sh(
        "zfs set userquota@7=50M groupquota@8=60M userobjquota@7=1000 projectquota@5=40M tank/s
         zfs set userquota@9=30M tank/s/below",
    );
    for (n, snap) in ["1", "2", "3"].into_iter().enumerate() {
        rig.zfs(&["snapshot", "-r", &format!("tank/s@{snap}")]);
        for fs in all {
            use std::os::unix::fs::FileExt;
            let path = at(fs).join("big");
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&dice.bytes(200_000), dice.below(1_500_000))
                .unwrap();
            file.set_len(2_200_000 - n as u64 * 300_000).unwrap();
            let _ = fs::remove_file(at(fs).join(format!("new{n}")));
            fs::write(at(fs).join(format!("new{}", n + 1)), dice.bytes(90_000)).unwrap();
        }
    }
    rig.zfs(&["rollback", "-r", "tank/s@3"]);
    rig.zfs(&["rollback", "-r", "tank/s/below@3"]);
    rig.zfs(&["rollback", "-r", "tank/s/own@3"]);
}

/// What OpenZFS counted for owners, groups and projects is what is counted here, and the same limits are set.
fn same_space(rig: &Rig, share: &Path, name: &str, fs: &str) {
    rig.zpool(&["sync", "tank"]);
    let mut here = String::new();
    for (what, how) in [
        ("userspace", "-Hpn"),
        ("groupspace", "-Hpn"),
        ("projectspace", "-Hp"),
    ] {
        here += &rig.zfs(&[what, how, "-o", "type,name,used,quota,objused,objquota", fs]);
    }
    let there = fs::read_to_string(share.join(format!("space-{name}"))).unwrap();
    assert!(there.lines().count() > 3, "{name}: {there}");
    // Indirect blocks are made at each end, by another LZ4: what an owner uses may differ by some sectors.
    let rows = |text: &str| {
        let row = |l: &str| {
            let mut fields: Vec<String> = l.split('\t').map(str::to_string).collect();
            let used: u64 = fields.remove(2).parse().unwrap_or(0);
            (fields, used)
        };
        let mut rows: Vec<_> = text.lines().map(row).collect();
        rows.sort();
        rows
    };
    let (there, here) = (rows(&there), rows(&here));
    let fits = |((a, used), (b, here)): (&(Vec<String>, u64), &(Vec<String>, u64))| {
        a == b && used.abs_diff(*here) <= used / 100 + 4096
    };
    let same = there.len() == here.len() && there.iter().zip(&here).all(fits);
    assert!(same, "{name}, {fs}: there {there:?}, here {here:?}");
}

/// What is done here with what came back.
fn changed_here(rig: &Rig, at: &Path) {
    fs::write(at.join("s/here"), "from here").unwrap();
    fs::remove_file(at.join("s/there")).unwrap();
    fs::write(at.join("s/own/here"), Dice::new(3).bytes(150_000)).unwrap();
    std::os::unix::fs::chown(at.join("s/own/here"), Some(12), Some(8)).unwrap();
    rig.zfs(&["set", "userquota@12=33M", "tank/s/own"]);
    rig.zfs(&["snapshot", "-r", "tank/s@a4"]);
}

/// Raw streams from here to OpenZFS, from there back, and from here once more: both ends have the keys loaded and use the
/// file systems in between. Content, keys, quotas and what owners use are the same at both ends.
#[test]
fn raw_streams_go_to_openzfs_and_back_and_there_again() {
    let Some(vm) = machine() else { return };
    let Some((rig, at, share)) = tank("exchange-raw") else {
        return;
    };
    fs::write(share.join("key"), [9; 32]).unwrap();
    fs::write(share.join("key2"), [8; 32]).unwrap();
    sealed_sources(&rig, &share);
    let send = |name: &str, args: &[&str]| send(&rig, &share, name, args);
    send("tree1.zs", &["-wR", "tank/s@1"]);
    send("tree3.zs", &["-wR", "-I", "@1", "tank/s@3"]);
    send("one1.zs", &["-wc", "tank/s@1"]);
    send("one2.zs", &["-wL", "-i", "@1", "tank/s@2"]);
    send("one3.zs", &["-wep", "-i", "@2", "tank/s@3"]);
    rig.zfs(&["clone", "tank/s/below@1", "tank/s/hidden"]);
    fs::remove_file(at.join("s/hidden/secret")).unwrap();
    rig.zfs(&["snapshot", "tank/s/hidden@r"]);
    rig.zfs(&["redact", "tank/s/below@1", "book", "tank/s/hidden@r"]);
    send("redacted.zs", &["--redact", "book", "tank/s/below@1"]);
    let by = rig.get("guid", "tank/s/hidden@r");
    rig.zfs(&["destroy", "-r", "tank/s/hidden"]);
    send("whole.part", &["-w", "tank/s@3"]);
    let whole = fs::read(share.join("whole.part")).unwrap();
    fs::write(share.join("half.part"), &whole[..whole.len() / 2]).unwrap();
    let ended = run_there(&rig, &vm, &share, &format!("{RAW_TOOLS}{RAW_THERE}"));
    assert!(ended.success(), "{ended}");
    let snap = |fs: &str, snap: &str| at.join(fs).join(".zfs/snapshot").join(snap);
    for (theirs, fs, of) in [
        ("s@1", "s", "1"),
        ("s@3", "s", "3"),
        ("below@2", "s/below", "2"),
        ("below@3", "s/below", "3"),
        ("own@3", "s/own", "3"),
        ("one@3", "s", "3"),
        ("res@3", "s", "3"),
    ] {
        same(&share, theirs, &snap(fs, of));
    }
    let said = |name: &str| fs::read_to_string(share.join(name)).unwrap();
    assert_eq!(
        said("roots"),
        "g/s\tg/s\ng/s/below\tg/s\ng/s/own\tg/s/own\n"
    );
    assert_eq!(said("redacted").trim(), by);
    for (name, fs) in [
        ("s", "tank/s"),
        ("one", "tank/s"),
        ("below", "tank/s/below"),
    ] {
        same_space(&rig, &share, name, fs);
    }
    // Back, the second time with another key. Counting for owners what came raw is a change of the mounted copy.
    receive(&rig, &["-F", "tank/s"], &share.join("back1"));
    receive(&rig, &["-F", "tank/s"], &share.join("back2"));
    same(&share, "s@b1", &snap("s", "b1"));
    assert_eq!(rig.get("encryptionroot", "tank/s/below"), "tank/s");
    let key2 = format!("file://{}", share.join("key2").display());
    let again = |fs: &str| rig.try_run("zfs", &["load-key", "-L", &key2, fs]);
    if rig.get("keystatus", "tank/s") == "unavailable" {
        assert!(again("tank/s").status.success());
    }
    rig.zfs(&["mount", "-a"]);
    for (theirs, fs, of) in [
        ("s@b2", "s", "b2"),
        ("below@b2", "s/below", "b2"),
        ("own@b2", "s/own", "b2"),
    ] {
        same(&share, theirs, &snap(fs, of));
        same_space(
            &rig,
            &share,
            &format!("back-{}", fs.rsplit('/').next().unwrap()),
            &format!("tank/{fs}"),
        );
    }
    // Another copy, which was never opened here, takes what comes from there.
    receive(
        &rig,
        &["-u", "-o", "acltype=posix", "tank/other"],
        &share.join("whole.part"),
    );
    receive(&rig, &["-u", "tank/other"], &share.join("oneback"));
    rig.zfs(&[
        "load-key",
        "-L",
        &format!("file://{}", share.join("key").display()),
        "tank/other",
    ]);
    rig.zfs(&["mount", "tank/other"]);
    same(&share, "one@b1", &snap("other", "b1"));
    // And once more.
    changed_here(&rig, &at);
    send("further.zs", &["-wR", "-i", "@b2", "tank/s@a4"]);
    let ended = run_there(&rig, &vm, &share, &format!("{RAW_TOOLS}{RAW_AGAIN}"));
    assert!(ended.success(), "{ended}");
    for fs in ["s", "s/below", "s/own"] {
        let name = fs.rsplit('/').next().unwrap();
        same(&share, &format!("{name}@a4"), &snap(fs, "a4"));
    }
    rig.zpool(&["scrub", "-w", "tank"]);
    let status = rig.zpool(&["status", "tank"]);
    assert!(status.contains("No known data errors"), "{status}");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}
