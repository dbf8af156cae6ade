//! Scans cut half-way change hands: OpenZFS in a virtual machine goes on with ours, we go on with those of its fixtures, and it
//! finds nothing to repair in what we repaired.
//!
//! `ZFS_FUSE_TEST_OZFS_VM` names the folder with the command `ozfs-vm` (see `exchange.rs`). Without it nothing is done. A run takes
//! ten minutes and more; `ZFS_FUSE_TEST_SEED` chooses the moments of the cuts, and what is damaged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use system_tests::handed::{cut, import, judge, machine, pool, pool_of, unpack};
use system_tests::{number, Dice, Rig};
use testkit::{fixture, or_skip};

const SIZE: u64 = 128 << 20;

/// What is done over there with each pool, a folder each. Ends with 0 only if nothing is left to be repaired.
const SCRIPT: &str = r#"
cd /share; failed=0
bad() { echo "FAIL $1: $2"; failed=1; }
quiet() {
	zpool status -v $1 > /tmp/st
	grep -q "errors: No known data errors" /tmp/st && grep -q "scan: scrub repaired 0B .* with 0 errors" /tmp/st || { bad $1 "not clean"; cat /tmp/st; }
	awk '$3 ~ /^[0-9]/ && $2 ~ /^[A-Z]+$/ && ($3 + $4 + $5 > 0)' /tmp/st | grep . && bad $1 "errors are counted"
	true
}
for dir in half-* mended-* theirs-*; do
	p=$(cat $dir/pool)
	zpool import -f -N -d /share/$dir -o cachefile=none -R /m $p || { bad $p "no import"; continue; }
	echo "== $dir: $(zpool status $p | grep -A2 scan: | tr -s ' \n' ' ')"
	case $dir in half-*)
		zfs destroy -r $p/c || bad $p "destroy"; zfs destroy $p/d@s || bad $p "destroy a snapshot"
		zpool wait -t resilver,scrub,replace,free $p
		echo "   then: $(zpool status $p | grep -A2 scan: | tr -s ' \n' ' ')"
		zpool scrub $p 2>/dev/null; zpool wait -t scrub $p; zpool clear $p
		zpool status $p | grep -q "errors: No known data errors" || bad $p "damage";;
	esac
	zpool scrub -w $p || bad $p scrub
	quiet $p
	case $dir in theirs-*) ;; *)
		zfs mount -a; (cd /m$(cat $dir/mnt) && grep -v "  c/" /share/$dir/sums | sha256sum -c --quiet) || bad $p "other bytes";;
	esac
	zpool export $p || bad $p export
	zdb -e -p /share/$dir -bcc $p > /tmp/zdb 2>&1 || { bad $p "zdb"; tail -5 /tmp/zdb; }
	grep -q "No leaks" /tmp/zdb || bad $p "leaks"
done
exit $failed
"#;

/// Sectors of an image that hold other bytes from now on.
fn rot(image: &str, count: u64, dice: &mut Dice) {
    let f = File::options().write(true).open(image).unwrap();
    for _ in 0..count {
        let at = (6 << 20) + dice.below(40 << 20) / 512 * 512;
        f.write_all_at(&dice.bytes(512), at).unwrap();
    }
}

/// Four pools of ours, cut.
fn halves(rig: &mut Rig, dice: &mut Dice) {
    for (name, how) in [("half-resilver", &[][..]), ("half-rebuild", &["-s"][..])] {
        let d = pool(rig, name, &["mirror"], (2, 3), SIZE);
        let pool = pool_of(name);
        let begin = |rig: &Rig, turn: u64| {
            let (old, new) = match turn % 2 {
                0 => (&d[1], &d[2]),
                _ => (&d[2], &d[1]),
            };
            let mut args = vec!["replace", "-f"];
            args.extend(how);
            args.extend([&pool, old.as_str(), new]);
            rig.zpool(&args);
        };
        let undo = |rig: &Rig, _| {
            rig.zpool(&["wait", "-t", "scrub,replace", &pool]);
        };
        cut(rig, name, "in progress", dice, &begin, &undo);
    }
    let name = "half-scrub";
    let d = pool(rig, name, &["raidz"], (3, 3), SIZE);
    let pool_name = pool_of(name);
    rig.zpool(&["export", &pool_name]);
    rot(&d[1], 400, dice);
    import(rig, name, &pool_name);
    let begin = |rig: &Rig, _| drop(rig.zpool(&["scrub", &pool_name]));
    cut(rig, name, "in progress", dice, &begin, &|_, _| {});
    let name = "half-spare";
    let d = pool(rig, name, &["draid1:2d:5c:1s"], (5, 5), SIZE);
    let pool_name = pool_of(name);
    let begin = |rig: &Rig, _| {
        let args = ["replace", "-s", &pool_name, &d[1], "draid1-0-0"];
        drop(rig.zpool(&args));
    };
    let undo = |rig: &Rig, _| {
        rig.zpool(&["wait", "-t", "scrub", &pool_name]);
        rig.zpool(&["detach", &pool_name, "draid1-0-0"]);
    };
    cut(rig, name, "in progress", dice, &begin, &undo);
}

/// Random damage, within what the layout can spare, that we repair.
fn mended(rig: &Rig, dice: &mut Dice) {
    for (name, kind, disks, spare) in [
        ("mended-mirror", "mirror", 2, 1),
        ("mended-raidz2", "raidz2", 5, 2),
        ("mended-draid", "draid2:2d:6c:1s", 6, 2),
    ] {
        let d = pool(rig, name, &[kind], (disks, disks), SIZE);
        let pool = pool_of(name);
        rig.zpool(&["export", &pool]);
        let first = dice.below(disks as u64) as usize;
        Rig::ruin(&d[first]);
        if spare > 1 {
            rot(&d[(first + 1) % disks], 2_000, dice);
        }
        import(rig, name, &pool);
        rig.zpool(&["scrub", "-w", &pool]);
        let status = rig.zpool(&["status", &pool]);
        assert!(status.contains("errors: No known data errors"), "{status}");
        rig.zpool(&["export", &pool]);
    }
}

/// Fixtures whose scan OpenZFS has not finished: gone on with here, with kills.
fn theirs(rig: &mut Rig, dice: &mut Dice) {
    for fixture in ["resilvering", "hot-spare", "mirror-degraded", "draid-spare"] {
        let (name, pool) = unpack(rig, fixture);
        let dir = rig.disks().join(&name);
        let at = dir.to_str().unwrap().to_string();
        let import = |rig: &Rig| {
            let options = ["import", "-f", "-N", "-o", "cachefile=none", "-d", &at];
            rig.zpool(&[&options[..], &[&pool]].concat());
        };
        import(rig);
        let extra = format!("{pool}/extra");
        rig.zfs(&["create", "-o", "mountpoint=none", &extra]);
        for n in 0..3 {
            let one = format!("{extra}/e{n}");
            rig.zfs(&["create", "-o", "mountpoint=none", &one]);
            rig.zfs(&["snapshot", &format!("{one}@s")]);
        }
        if fixture == "mirror-degraded" {
            rig.zpool(&["online", &pool, dir.join("d1.img").to_str().unwrap()]);
        }
        for n in 0..3 {
            std::thread::sleep(Duration::from_millis(20 + dice.below(400)));
            rig.zfs(&["destroy", "-r", &format!("{extra}/e{n}")]);
            rig.kill();
            rig.start();
            import(rig);
        }
        rig.zfs(&["destroy", "-r", &extra]);
        rig.zpool(&["wait", "-t", "resilver,replace,free", &pool]);
        let status = rig.zpool(&["status", &pool]);
        eprintln!("{name}:\n{status}");
        assert!(status.contains("errors: No known data errors"), "{status}");
        rig.zpool(&["export", &pool]);
    }
}

#[test]
fn scans_cut_half_way_are_finished_by_the_other_side() {
    let Some(vm) = machine() else {
        return;
    };
    if or_skip(fixture::file("resilvering", "manifest.json")).is_none() {
        return;
    }
    let Some(mut rig) = Rig::as_root("scans-exchanged") else {
        return;
    };
    let mut dice = Dice::new(number("ZFS_FUSE_TEST_SEED", 1));
    rig.start();
    halves(&mut rig, &mut dice);
    mended(&rig, &mut dice);
    theirs(&mut rig, &mut dice);
    rig.stop();
    judge(&rig, &vm, SCRIPT);
}
