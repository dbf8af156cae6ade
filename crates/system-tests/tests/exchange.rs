//! OpenZFS in a virtual machine receives our streams of every kind, and sends increments back.
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

/// Runs the script over there. Once it has a resume token, the rest of that stream is sent.
fn run_there(rig: &Rig, vm: &Path, share: &Path, script: &Path) -> ExitStatus {
    let mut machine = Command::new(vm.join("ozfs-vm"))
        .args(["run", "--timeout", "1500", "--mem", "2048", "--share"])
        .arg(share)
        .arg(script)
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

#[test]
fn openzfs_takes_our_streams_and_gives_increments_back() {
    let Some(vm) = std::env::var_os("ZFS_FUSE_TEST_OZFS_VM").map(PathBuf::from) else {
        eprintln!("skipped: ZFS_FUSE_TEST_OZFS_VM does not name the folder of ozfs-vm");
        return;
    };
    let Some(mut rig) = Rig::as_root("exchange") else {
        return;
    };
    let disk = rig.image("disk", 2 << 30);
    rig.start();
    let at = rig.mnt().join("tank");
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    let share = rig.path().join("share");
    fs::create_dir(&share).unwrap();
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
    let script = rig.path().join("script");
    fs::write(&script, SCRIPT.replace("half.zs", "half.part")).unwrap();
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
