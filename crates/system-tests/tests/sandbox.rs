//! The programs in a sandbox such as containers are: namespaces of users, mounts and processes of
//! their own, no privilege outside, none to be gained (so no `fusermount3`), the root file system
//! read-only, and a file system in memory at `/tmp`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use system_tests::Rig;

/// In the sandbox; `RIG` is the folder of the rig.
const SESSION: &str = r#"
mount -t tmpfs -o size=640m none "$RIG/home"
cp "$RIG"/bin/* "$RIG/home"
mount --bind "$RIG/home" /tmp
mount -o remount,bind,ro /
cd /tmp
export PATH="/tmp:$PATH" HOME=/tmp ZFS_FUSE_SOCKET=/tmp/zfs.sock
# Where root's daemon keeps its list of pools cannot be written to.
unset ZFS_FUSE_CACHE XDG_RUNTIME_DIR XDG_STATE_HOME
if touch /etc/zfs-fuse-was-here 2>/dev/null; then echo 'the root file system is writable'; fi
grep NoNewPrivs /proc/self/status
echo "process $$ of user $(id -u)"

truncate -s 128M disk
zpool create -m /tmp/at tank /tmp/disk
zfs create -o compression=zstd tank/a
seq 100000 >at/a/f
mkdir at/a/d; ln at/a/f at/a/d/g; ln -s f at/a/l; chmod 600 at/a/f; sync at/a/f
sha256sum at/a/f >sum
zfs mount
zpool status tank | grep errors:
zpool export tank
echo "mounts: $(zfs mount | wc -l) $(grep -c ' /tmp/at' /proc/self/mounts)"
zpool import -d /tmp tank
sha256sum -c sum
stat -c '%h %a' at/a/d/g
# A second pool, for which there is no place in /.
truncate -s 128M more
if zpool create other /tmp/more; then echo 'mounted in a read-only folder'; fi
zpool list -H -o name
zfs set mountpoint=/tmp/other other
zfs mount other || true
echo x >other/x
zpool destroy other
zpool export tank
# And the daemon ends well.
pid=$(sed -n 1p /tmp/zfs.sock.lock)
kill "$pid"
while [ -e /tmp/zfs.sock ]; do sleep 0.1; done
echo the end
"#;

fn session(rig: &Rig, drop_all: bool) {
    let script = rig.path().join("session");
    fs::write(&script, SESSION).unwrap();
    let mut args = vec!["--no-new-privs"];
    if drop_all {
        // Root needs this one to be root inside; what it has there is worth nothing outside.
        args.extend(["--inh-caps=-all", "--bounding-set=-all,+setfcap"]);
    }
    args.extend([
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    let mut possible = args.clone();
    possible.push("true");
    let said = rig.try_run("setpriv", &possible);
    if !said.status.success() {
        eprintln!("skipped: no namespaces for users here: {}", said.err.trim());
        return;
    }
    let folder = format!("RIG={}", rig.path().display());
    let file = script.display().to_string();
    args.extend(["env", &folder, "sh", "-eu", &file]);
    let said = rig.try_run("setpriv", &args);
    assert!(said.status.success(), "{said}");
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(
        lines.join("\n").replace('\t', " "),
        "NoNewPrivs: 1\n\
         process 1 of user 0\n\
         tank                            /tmp/at\n\
         tank/a                          /tmp/at/a\n\
         errors: No known data errors\n\
         mounts: 0 0\n\
         at/a/f: OK\n\
         2 600\n\
         other\n\
         tank\n\
         the end",
        "{said}"
    );
    assert!(said.err.contains("Read-only file system"), "{said}");
}

#[test]
fn as_an_ordinary_user() {
    let open = fs::metadata("/dev/fuse").is_ok_and(|m| m.mode() & 0o006 == 0o006);
    if !open {
        eprintln!("skipped: /dev/fuse is not open to all (mode 0666)");
        return;
    }
    if let Some(rig) = Rig::as_user("sandbox-user") {
        session(&rig, false);
    }
}

/// As in a container whose root is the root outside, without any of its capabilities.
#[test]
fn as_root_without_capabilities() {
    if let Some(rig) = Rig::as_root("sandbox-root") {
        session(&rig, true);
    }
}
