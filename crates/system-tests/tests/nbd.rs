//! Volumes as network block devices, through clients that others wrote: libnbd's and QEMU's.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use system_tests::handed::{judge, machine};
use system_tests::{certificates, until, wait, Dice, Rig};

/// The interpreter that Debian's python3-libnbd belongs to.
const PYTHON: &str = "/usr/bin/python3";

/// Whether the clients are there; says what is missing.
fn clients(name: &str) -> bool {
    for program in ["/usr/bin/nbdinfo", "/usr/bin/qemu-io"] {
        if !Path::new(program).exists() {
            eprintln!("skipped: {name} needs {program} (sh tools/setup.sh tests)");
            return false;
        }
    }
    let nbd = Command::new(PYTHON).args(["-c", "import nbd"]).output();
    if !nbd.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: {name} needs python3-libnbd (sh tools/setup.sh tests)");
        return false;
    }
    true
}

fn uri(rig: &Rig, export: &str) -> String {
    let socket = rig.socket().with_file_name("nbd.sock");
    format!("nbd+unix:///{export}?socket={}", socket.display())
}

/// A client that keeps an export open until its input ends.
struct Holder(Child, BufReader<ChildStdout>);

impl Holder {
    fn new(rig: &Rig, export: &str) -> Holder {
        let script = "import nbd, sys\nh = nbd.NBD()\nh.connect_uri(sys.argv[1])\nprint('open', flush=True)\n\
            for line in sys.stdin:\n  try:\n    print(eval(line), flush=True)\n  except Exception as e:\n    print('failed', e, flush=True)\n";
        let mut child = Command::new(PYTHON)
            .args(["-c", script, &uri(rig, export)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Holder(child, out)
    }

    /// What a call of the client's library (`h`) gives.
    fn call(&mut self, what: &str) -> String {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        wait(&mut self.0, Duration::from_secs(45)).expect("the client ends");
    }
}

#[test]
fn small_blocks_of_volumes_lie_on_special_devices() {
    let Some(mut rig) = Rig::new("nbd-special") else {
        return;
    };
    if !clients("small_blocks_of_volumes_lie_on_special_devices") {
        return;
    }
    let disks = rig.images(2, 256 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    let mnt = mnt.to_str().unwrap();
    rig.zpool(&["create", "-m", mnt, "tank", &disks[0], "special", &disks[1]]);
    let on_special = || -> u64 {
        let list = rig.zpool(&["list", "-vHp", "tank"]);
        let row = list.lines().find(|l| l.contains(&disks[1])).unwrap();
        row.trim().split('\t').nth(2).unwrap().parse().unwrap()
    };
    let data = rig.path().join("data");
    rig.sh(&format!("head -c 24M /dev/urandom > {}", data.display()));
    for (volume, limit, expected) in [("large", "0", false), ("small", "8K", true)] {
        let volume = format!("tank/{volume}");
        let limit = format!("special_small_blocks={limit}");
        rig.zfs(&["create", "-b", "8K", "-o", &limit, "-V", "24M", &volume]);
        let before = on_special();
        let to = uri(&rig, &volume);
        rig.sh(&format!("nbdcopy --flush {} '{to}'", data.display()));
        rig.zpool(&["sync", "tank"]);
        let more = on_special() - before;
        assert_eq!(more > 20 << 20, expected, "{volume}: {more}");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn volumes_are_exports() {
    let name = "volumes_are_exports";
    let Some(rig) = Rig::new("nbd-exports") else {
        return;
    };
    if !clients(name) {
        return;
    }
    let (rig, _) = rig.with_tank(512 << 20);
    rig.zfs(&["create", "-V", "64M", "tank/v"]);
    rig.zfs(&[
        "create",
        "-s",
        "-V",
        "1G",
        "-o",
        "volblocksize=4K",
        "tank/thin",
    ]);
    rig.zfs(&["create", "-V", "8M", "-o", "volmode=none", "tank/nowhere"]);
    let socket = rig.socket().with_file_name("nbd.sock");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let list = rig.sh(&format!("nbdinfo --list '{}'", uri(&rig, "")));
    let exports: Vec<&str> = list.lines().filter(|l| l.starts_with("export=")).collect();
    assert_eq!(exports, ["export=\"tank/thin\":", "export=\"tank/v\":"]);
    assert!(list.contains("block_size_preferred: 4096"), "{list}");
    rig.sh(&format!("fails nbdinfo '{}'", uri(&rig, "tank/nowhere")));
    rig.sh(&format!("fails nbdinfo '{}'", uri(&rig, "tank")));
    rig.sh(&format!("fails nbdinfo '{}'", uri(&rig, "none/v")));

    // There and back, several connections at a time.
    let data = rig.path().join("data");
    fs::write(&data, Dice::new(3).bytes(64 << 20)).unwrap();
    let (data, back) = (data.display(), rig.path().join("back"));
    let (v, back) = (uri(&rig, "tank/v"), back.display());
    rig.sh(&format!(
        "nbdcopy --flush {data} '{v}' && nbdcopy '{v}' {back} && cmp {data} {back}"
    ));
    rig.sh(&format!(
        "qemu-img convert -f raw -O qcow2 '{v}' {back}.qcow2 && qemu-img compare -f qcow2 -F raw {back}.qcow2 '{v}'"
    ));

    // Holes are where nothing is.
    let thin = uri(&rig, "tank/thin");
    let io = |commands: &str| rig.sh(&format!("qemu-io -f raw {commands} '{thin}'"));
    io("-c 'write -P 171 1M 64k' -c 'write -P 17 5M 3000' -c flush");
    let map = || {
        let map = rig.sh(&format!("nbdinfo --map '{thin}'"));
        map.split_whitespace()
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    let hole = |a: &str, n: &str| [a, n, "3", "hole,zero"].map(str::to_string);
    let full = |a: &str, n: &str| [a, n, "0", "data"].map(str::to_string);
    let end = 1u64 << 30;
    let wanted = [
        hole("0", "1048576"),
        full("1048576", "65536"),
        hole("1114112", "4128768"),
        full("5242880", "4096"),
        hole("5246976", &(end - 5_246_976).to_string()),
    ];
    assert_eq!(map(), wanted.concat());
    rig.zpool(&["sync", "tank"]);
    assert_eq!(map(), wanted.concat());
    // What is trimmed in part stays; zeros reach as far as they are said to.
    io("-c 'discard 1049600 8192' -c 'read -P 171 1M 4k' -c 'write -z 1060000 100' -c 'read -P 0 1060000 100' -c 'read -P 171 1060100 900'");
    assert!(map().starts_with(
        &[
            hole("0", "1048576"),
            full("1048576", "4096"),
            hole("1052672", "4096"),
        ]
        .concat()
    ));
    io("-c 'write -z -u 1M 64k' -c 'read -P 0 1M 64k' -c flush");
    assert_eq!(map()[..4], hole("0", "5242880"));

    // A snapshot shows what was, to whom it is asked for, and is listed where that is wanted.
    rig.zfs(&["snapshot", "tank/thin@s"]);
    io("-c 'write -P 99 5M 3000' -c flush");
    let old = uri(&rig, "tank/thin@s");
    rig.sh(&format!(
        "qemu-io -r -f raw -c 'read -P 17 5M 3000' '{old}'"
    ));
    rig.sh(&format!("nbdinfo '{old}' | grep -q 'is_read_only: true'"));
    let list = || rig.sh(&format!("nbdinfo --list '{}'", uri(&rig, "")));
    assert!(!list().contains("@s"));
    rig.zfs(&["set", "snapdev=visible", "tank/thin"]);
    assert!(list().contains("export=\"tank/thin@s\""));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn volumes_change_under_their_clients() {
    let name = "volumes_change_under_their_clients";
    let Some(rig) = Rig::new("nbd-changes") else {
        return;
    };
    if !clients(name) {
        return;
    }
    let (rig, _) = rig.with_tank(512 << 20);
    rig.zfs(&["create", "-s", "-V", "64M", "tank/v"]);
    let mut h = Holder::new(&rig, "tank/v");
    assert_eq!(h.call("h.pwrite(b'a' * 65536, 0)"), "None");
    rig.zfs(&["snapshot", "tank/v@one"]);
    assert_eq!(h.call("h.pwrite(b'b' * 65536, 0)"), "None");
    assert_eq!(h.call("h.pread(512, 65024)[-3:]"), "bytearray(b'bbb')");

    // In use: as long as nobody insists.
    let said = rig.try_run("zfs", &["destroy", "-r", "tank/v"]).fails(1);
    assert!(
        said.contains("dataset is busy") && said.contains("in use by 1 client"),
        "{said}"
    );
    let said = rig.try_run("zpool", &["export", "tank"]).fails(1);
    assert!(
        said.contains("volume 'tank/v' is in use by 1 client"),
        "{said}"
    );

    // Back, other names, other sizes, read-only and not.
    rig.zfs(&["rollback", "tank/v@one"]);
    assert_eq!(h.call("h.pread(512, 65024)[-3:]"), "bytearray(b'aaa')");
    rig.zfs(&["rename", "tank/v", "tank/w"]);
    assert_eq!(h.call("h.pwrite(b'c' * 512, 4096)"), "None");
    rig.zfs(&["set", "readonly=on", "tank/w"]);
    assert!(h
        .call("h.pwrite(b'c' * 512, 8192)")
        .contains("Operation not permitted"));
    rig.zfs(&["inherit", "readonly", "tank/w"]);
    assert_eq!(h.call("h.pwrite(b'd' * 512, 33554432)"), "None");
    rig.zfs(&["set", "volsize=32M", "tank/w"]);
    assert!(h
        .call("h.pwrite(b'e' * 512, 33554432)")
        .starts_with("failed"));
    rig.zfs(&["set", "volsize=64M", "tank/w"]);
    assert_eq!(
        h.call("h.pread(512, 33554432)[:3]"),
        "bytearray(b'\\x00\\x00\\x00')"
    );
    // A received increment takes its place.
    rig.sh("zfs send tank/w@one | zfs receive tank/copy");
    rig.zfs(&["snapshot", "tank/w@two"]);
    let mut copy = Holder::new(&rig, "tank/copy");
    assert_eq!(copy.call("h.pread(512, 4096)[:2]"), "bytearray(b'aa')");
    rig.sh("zfs send -i @one tank/w@two | zfs receive -F tank/copy");
    assert_eq!(copy.call("h.pread(512, 4096)[:2]"), "bytearray(b'cc')");
    drop(copy);

    // By force the client is cut off, and nothing of it stays.
    rig.zfs(&["destroy", "-r", "-f", "tank/copy"]);
    let snapshot = Holder::new(&rig, "tank/w@two");
    rig.try_run("zfs", &["destroy", "tank/w@two"]).fails(1);
    drop(snapshot);
    assert_eq!(h.call("h.pwrite(b'f' * 512, 0)"), "None");
    rig.zpool(&["export", "-f", "tank"]);
    assert!(h.call("h.pread(512, 0)[:3]").starts_with("failed"));
    rig.zdb_check("tank");
    drop(h);
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    let mut h = Holder::new(&rig, "tank/w");
    assert_eq!(h.call("h.pread(512, 0)[:2]"), "bytearray(b'ff')");
    assert_eq!(h.call("h.shutdown()"), "None");
    drop(h);
    until("the last client has left", || {
        rig.try_run("zfs", &["destroy", "-r", "tank/w"])
            .status
            .success()
    });
}

/// Two connections write random blocks, flush now and then, and say what was flushed (and what was written with FUA).
const WRITER: &str = r#"
import nbd, sys, random
h = [nbd.NBD(), nbd.NBD()]
for x in h: x.connect_uri(sys.argv[1])
r = random.Random(int(sys.argv[2])); n = 0; open_ = {}
while True:
    n += 1; at = r.randrange(2048) * 4096; x = h[n % 2]; fua = r.random() < 0.1
    if r.random() < 0.1:
        x.zero(4096, at); open_[at] = 0
    else:
        x.pwrite(n.to_bytes(8, 'big') * 512, at, nbd.CMD_FLAG_FUA if fua else 0); open_[at] = n
        if fua: print(at, n, flush=True); del open_[at]
    if r.random() < 0.03:
        h[r.randrange(2)].flush()
        for at in open_: print(at, open_[at], flush=True)
        open_ = {}
        print("flushed", n, flush=True)
"#;

#[test]
fn what_was_flushed_survives_a_kill() {
    let name = "what_was_flushed_survives_a_kill";
    let Some(rig) = Rig::new("nbd-kill") else {
        return;
    };
    if !clients(name) {
        return;
    }
    let (mut rig, _) = rig.with_tank(256 << 20);
    rig.zfs(&[
        "create",
        "-s",
        "-V",
        "8M",
        "-o",
        "volblocksize=16K",
        "tank/v",
    ]);
    // Blocks by place: the newest number that was acknowledged. Numbers grow over all rounds.
    let mut acknowledged = std::collections::BTreeMap::<u64, u64>::new();
    for round in 0..3u64 {
        if round > 0 {
            // What the last round wrote and did not flush may be there, too: every block says what it is now.
            rig.sh(&format!(
                "qemu-io -f raw -c 'write -z 0 8M' -c flush '{}'",
                uri(&rig, "tank/v")
            ));
            acknowledged.clear();
        }
        let mut writer = Command::new(PYTHON)
            .args(["-c", WRITER, &uri(&rig, "tank/v"), &round.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(writer.stdout.take().unwrap());
        let mut flushes = 0;
        for line in out.lines().map_while(Result::ok) {
            match line.split_once(' ').unwrap() {
                ("flushed", _) => flushes += 1,
                (at, n) => {
                    acknowledged.insert(at.parse().unwrap(), n.parse().unwrap());
                }
            }
            if flushes == 6 + 3 * round {
                rig.kill();
                flushes += 1000;
            }
        }
        assert!(flushes >= 1000);
        wait(&mut writer, Duration::from_secs(45)).expect("the writer ends");
        rig.start();
        let copy = rig.path().join("copy");
        rig.sh(&format!(
            "nbdcopy '{}' {}",
            uri(&rig, "tank/v"),
            copy.display()
        ));
        let file = fs::File::open(&copy).unwrap();
        for (at, n) in &acknowledged {
            let mut block = [0; 4096];
            file.read_exact_at(&mut block, *at).unwrap();
            let words: Vec<u64> = block
                .chunks(8)
                .map(|w| u64::from_be_bytes(w.try_into().unwrap()))
                .collect();
            assert!(
                words.iter().all(|w| *w == words[0]),
                "round {round}: torn at {at}"
            );
            // A later zero or write of the same place may have made it, without having been acknowledged.
            assert!(
                words[0] >= *n || words[0] == 0,
                "round {round}: {} at {at}, {n} was acknowledged",
                words[0]
            );
        }
        let lost = acknowledged.iter().filter(|(at, n)| {
            let mut block = [0; 8];
            file.read_exact_at(&mut block, **at).unwrap();
            **n > 0 && u64::from_be_bytes(block) == 0
        });
        // Few zeros come unacknowledged before the kill.
        assert!(lost.count() < 40, "round {round}");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// ext4 on a volume, over a FUSE client and a loop device: what it was told is stable is there when the daemon was killed.
#[test]
fn a_file_system_on_a_volume_survives_a_kill() {
    let name = "a_file_system_on_a_volume_survives_a_kill";
    let Some(mut rig) = Rig::as_root("nbd-ext4") else {
        return;
    };
    if !clients(name) {
        return;
    }
    let (at, disk) = (rig.path().join("at"), rig.path().join("disk"));
    fs::write(&disk, b"").unwrap();
    fs::create_dir(&at).unwrap();
    let image = rig.image("d0", 512 << 20);
    rig.start();
    rig.zpool(&["create", "-O", "mountpoint=none", "tank", &image]);
    rig.zfs(&["create", "-s", "-V", "128M", "tank/v"]);
    let fuse = |rig: &Rig| {
        let child = Command::new("nbdfuse")
            .args(["-C", "1"])
            .arg(&disk)
            .arg(uri(rig, "tank/v"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        until("the file is there", || {
            fs::metadata(&disk).is_ok_and(|m| m.len() == 128 << 20)
        });
        child
    };
    let mut child = fuse(&rig);
    let path = disk.to_str().unwrap().to_string();
    let Some(device) = rig.loop_on(&path) else {
        let _ = child.kill();
        let _ = child.wait();
        return;
    };
    let at = at.display();
    rig.sh(&format!(
        "mkfs.ext4 -q {device} && mount {device} {at} && cp -r /usr/include/linux {at}/ && sync -f {at}/linux"
    ));
    let sums = rig.sh(&format!(
        "cd {at} && find linux -type f | sort | xargs sha256sum"
    ));
    fs::write(rig.path().join("sums"), &sums).unwrap();
    // Under way when the daemon goes.
    rig.sh(&format!("cp -r {at}/linux {at}/more"));
    rig.kill_alone();
    rig.sh(&format!(
        "umount {at} || umount -l {at}; losetup -d {device}"
    ));
    rig.sh(&format!(
        "fusermount3 -u {path} || umount -l {path} || true"
    ));
    wait(&mut child, Duration::from_secs(45)).expect("the client ends");
    rig.start();
    let mut child = fuse(&rig);
    // The journal is replayed; then there is nothing to mend.
    let device = rig.loop_on(&path).unwrap();
    rig.sh(&format!(
        "e2fsck -fp {device} >&2 || [ $? = 1 ]; e2fsck -fn {device} >&2; mount {device} {at}"
    ));
    rig.sh(&format!(
        "cd {at} && sha256sum --quiet -c {}",
        rig.path().join("sums").display()
    ));
    rig.sh(&format!(
        "umount {at} && losetup -d {device} && fusermount3 -u {path}"
    ));
    wait(&mut child, Duration::from_secs(45)).expect("the client ends");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// Bytes that are no NBD, crowds of silent clients and such as vanish do no harm.
#[test]
fn clients_that_misbehave() {
    use std::os::unix::net::UnixStream;
    let name = "clients_that_misbehave";
    let Some(rig) = Rig::new("nbd-wrong") else {
        return;
    };
    if !clients(name) {
        return;
    }
    let (rig, _) = rig.with_tank(256 << 20);
    rig.zfs(&["create", "-V", "16M", "tank/v"]);
    let socket = rig.socket().with_file_name("nbd.sock");
    let silent: Vec<UnixStream> = (0..60)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    let mut dice = Dice::new(5);
    for n in 0..200 {
        let mut wrong = UnixStream::connect(&socket).unwrap();
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend(b"IHAVEOPT");
        bytes.extend(dice.bytes(n * 7));
        let _ = wrong.write_all(&bytes);
    }
    until("there is room for another client", || {
        let v = uri(&rig, "tank/v");
        rig.try_run("sh", &["-c", &format!("nbdinfo '{v}'")])
            .status
            .success()
    });
    // In the middle of a write.
    for _ in 0..20 {
        let mut h = Holder::new(&rig, "tank/v");
        assert_eq!(h.call("h.aio_pwrite(nbd.Buffer(16777216), 0) * 0"), "0");
        let _ = h.0.kill();
    }
    let mut h = Holder::new(&rig, "tank/v");
    assert!(h.call("h.pread(512, 16777216)").starts_with("failed"));
    assert_eq!(h.call("h.pwrite(b'x' * 512, 0)"), "None");
    assert_eq!(h.call("h.flush()"), "None");
    assert_eq!(h.call("h.pread(512, 0)[:2]"), "bytearray(b'xx')");
    drop((h, silent));
    until("all have left", || {
        rig.try_run("zpool", &["export", "tank"]).status.success()
    });
    rig.zdb_check("tank");
}

/// What is done over there: the log is replayed, the bytes compared, written, and the pool checked.
const REPLAYED: &str = r#"
cd /share/vol || exit 1
zpool import -f -d /share/vol -o cachefile=none pool || exit 1
for n in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/zd0 ] && break; sleep 1; done
cmp -n $(stat -c %s expected) expected /dev/zd0 || exit 1
zpool scrub -w pool; zpool status pool | grep -q "repaired 0B .* with 0 errors" || exit 1
dd if=/dev/urandom of=new bs=1M count=4 && dd if=new of=/dev/zd0 bs=64k oflag=direct conv=fsync seek=16 || exit 1
zpool export pool && zdb -e -p /share/vol -bcc pool | grep -q "No leaks"
"#;

/// OpenZFS replays the log of a volume that a kill left here, and we read what it writes.
#[test]
fn a_log_of_a_volume_is_replayed_by_openzfs() {
    let Some(vm) = machine() else { return };
    let Some(mut rig) = Rig::as_root("nbd-exchanged") else {
        return;
    };
    if !clients("a_log_of_a_volume_is_replayed_by_openzfs") {
        return;
    }
    let dir = rig.disks().join("vol");
    fs::create_dir(&dir).unwrap();
    let image = rig.image("vol/d0", 256 << 20);
    rig.start();
    rig.zpool(&[
        "create",
        "-o",
        "cachefile=none",
        "-O",
        "mountpoint=none",
        "pool",
        &image,
    ]);
    rig.zfs(&[
        "create",
        "-s",
        "-V",
        "8M",
        "-o",
        "volblocksize=16K",
        "pool/v",
    ]);
    rig.zpool(&["sync", "pool"]);
    let mut h = Holder::new(&rig, "pool/v");
    let mut expected = vec![0u8; 8 << 20];
    let mut dice = Dice::new(9);
    for n in 1..=60u64 {
        let byte = (n % 200 + 33) as u8;
        let len = (1 + dice.below(40) as usize) * 4096;
        let at = dice.below((8 << 20) - len as u64) as usize / 4096 * 4096;
        let call = match n % 5 {
            0 => {
                expected[at..at + len].fill(0);
                format!("h.zero({len}, {at})")
            }
            k => {
                expected[at..at + len].fill(byte);
                let fua = if k == 1 { ", nbd.CMD_FLAG_FUA" } else { "" };
                format!("h.pwrite(bytes([{byte}]) * {len}, {at}{fua})")
            }
        };
        assert_eq!(h.call(&call), "None");
    }
    assert_eq!(h.call("h.flush()"), "None");
    rig.kill();
    drop(h);
    fs::write(dir.join("expected"), &expected).unwrap();
    judge(&rig, &vm, REPLAYED);
    rig.start();
    rig.zpool(&["import", "-f", "-d", dir.to_str().unwrap(), "pool"]);
    let copy = rig.path().join("copy");
    rig.sh(&format!(
        "nbdcopy '{}' {}",
        uri(&rig, "pool/v"),
        copy.display()
    ));
    let new = fs::read(dir.join("new")).unwrap();
    expected[1 << 20..5 << 20].copy_from_slice(&new);
    assert!(fs::read(&copy).unwrap() == expected);
}

/// `--nbd-listen`: who has no certificate of the authority, or comes from another address, gets nothing.
#[test]
fn other_machines_read_and_write_volumes_over_tls() {
    let name = "other_machines_read_and_write_volumes_over_tls";
    let Some(mut rig) = Rig::new("nbd-tls") else {
        return;
    };
    if !clients(name) {
        return;
    }
    let (known, unknown) = (rig.path().join("known"), rig.path().join("unknown"));
    certificates::make(&known);
    certificates::make(&unknown);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let listen = format!("127.0.0.1:{port}");
    let tls = known.to_str().unwrap();
    rig.daemon_options(&["--nbd-listen", &listen, "--nbd-tls", tls]);
    let (mut rig, _) = rig.with_tank(256 << 20);
    rig.zfs(&["create", "-V", "32M", "tank/v"]);
    let uri = |at: &Path| {
        let at = at.display();
        format!("nbds://localhost:{port}/tank/v?tls-certificates={at}")
    };
    let size = rig.sh(&format!("nbdinfo --size '{}'", uri(&known)));
    assert_eq!(size.trim(), (32 << 20).to_string());
    let (data, back) = (rig.path().join("data"), rig.path().join("back"));
    let (data, back) = (data.display(), back.display());
    rig.sh(&format!("head -c 32M /dev/urandom > {data}"));
    rig.sh(&format!("nbdcopy --flush {data} '{}'", uri(&known)));
    rig.sh(&format!(
        "nbdcopy '{}' {back} && cmp {data} {back}",
        uri(&known)
    ));
    for other in [
        uri(&unknown),
        format!("nbd://localhost:{port}/tank/v"),
        format!("nbd://localhost:{port}/"),
    ] {
        rig.sh(&format!("fails nbdinfo '{other}'"));
        rig.sh(&format!("fails nbdinfo --list '{other}'"));
    }

    rig.stop();
    rig.daemon_options(&["--nbd-listen", &listen, "--nbd-allow", "192.0.2.0/24"]);
    rig.start();
    rig.sh(&format!("fails nbdinfo 'nbd://127.0.0.1:{port}/tank/v'"));
    rig.stop();
    rig.daemon_options(&["--nbd-listen", &listen, "--nbd-allow", "127.0.0.0/8"]);
    rig.start();
    rig.sh(&format!(
        "nbdcopy 'nbd://127.0.0.1:{port}/tank/v' {back} && cmp {data} {back}"
    ));
    let refused = rig.try_run("zfs-fuse", &["-n", "--nbd-listen", "127.0.0.1:1"]);
    assert!(
        !refused.status.success() && refused.to_string().contains("who may come?"),
        "{refused}"
    );
}
