//! Changes of a pool's shape change hands half-way: OpenZFS in a virtual machine ends what we began (an expanded RAID-Z, a removed
//! device, a checkpoint, trims), we end what OpenZFS began in its fixtures, and nothing differs or has to be repaired.
//!
//! `ZFS_FUSE_TEST_OZFS_VM` names the folder with the command `ozfs-vm` (see `handed`). Without it nothing is done. A run takes
//! ten minutes and more; `ZFS_FUSE_TEST_SEED` chooses the moments of the cuts.

use std::fs;
use std::time::{Duration, Instant};
use system_tests::handed::{cut, judge, machine, pool, pool_of, slow, sums, unpack};
use system_tests::{number, Dice, Rig};
use testkit::{fixture, or_skip};

const SIZE: u64 = 192 << 20;
/// Bytes that pools have further from which a device is removed.
const MORE: usize = 96 << 20;
/// Milliseconds that each read of a device takes longer while it is copied.
const LONGER: u64 = 60;

/// What is done over there with each pool, a folder each. Ends with 0 only if every change came to its end and nothing differs.
const SCRIPT: &str = r#"
cd /share; failed=0
bad() { echo "FAIL $1: $2"; failed=1; }
for dir in half-* back-* done-* theirs-*; do
	[ -d $dir ] || continue
	p=$(cat $dir/pool)
	how=; case $dir in back-*) how=--rewind-to-checkpoint;; esac
	zpool import -f -N -d /share/$dir -o cachefile=none -R /m $how $p || { bad $p "no import"; continue; }
	echo "== $dir: $(zpool status -ti $p | tr -s ' \t\n' ' ')"
	case $dir in
	half-expand*) zpool wait -t raidz_expand $p || bad $p wait;;
	half-remove*) zpool wait -t remove $p || bad $p wait;;
	half-stop*) zpool remove -s $p || bad $p "cancel";;
	half-check*) zpool checkpoint -d -w $p || bad $p "discard";;
	half-trim*) zpool wait -t trim $p || bad $p wait;;
	half-init*) zpool wait -t initialize $p || bad $p wait;;
	esac
	zpool wait -t scrub,resilver,free,discard $p
	echo "   then: $(zpool status -ti $p | tr -s ' \t\n' ' ')"
	zpool scrub -w $p || bad $p scrub
	zpool status -v $p > /tmp/st
	grep -q "errors: No known data errors" /tmp/st && grep -q "scan: scrub repaired 0B .* with 0 errors" /tmp/st || { bad $p "not clean"; cat /tmp/st; }
	awk '$3 ~ /^[0-9]/ && $2 ~ /^[A-Z]+$/ && ($3 + $4 + $5 > 0)' /tmp/st | grep . && bad $p "errors are counted"
	[ ! -e $dir/sums ] || { zfs mount -a; (cd /m$(cat $dir/mnt) && sha256sum -c --quiet /share/$dir/sums) || bad $p "other bytes"; }
	zpool export $p || bad $p export
	zdb -e -p /share/$dir -bcc $p > /tmp/zdb 2>&1 || { bad $p "zdb"; tail -5 /tmp/zdb; }
	grep -q "No leaks" /tmp/zdb || bad $p "leaks"
done
exit $failed
"#;

/// Pools of ours, cut in the middle of a change.
fn halves(rig: &mut Rig, dice: &mut Dice) {
    for (folder, kind, used) in [("half-expand", "raidz1", 3), ("half-expand2", "raidz2", 4)] {
        let d = pool(rig, folder, &[kind], (used, used + 3), SIZE);
        let name = pool_of(folder);
        let vdev = format!("{kind}-0");
        let begin = |rig: &Rig, turn: u64| {
            let disk = &d[used + turn.min(2) as usize];
            drop(rig.zpool(&["attach", &name, &vdev, disk]));
        };
        let undo = |rig: &Rig, _| drop(rig.zpool(&["wait", "-t", "raidz_expand,scrub", &name]));
        cut(rig, folder, "expansion of", dice, &begin, &undo);
    }
    for folder in ["half-remove", "half-stop"] {
        // The rest must have room for a whole device and slop space, 128 MiB in small pools.
        let d = pool(rig, folder, &[], (2, 8), 4 * SIZE);
        let name = pool_of(folder);
        // So much that a part of it is copied when the daemon is killed.
        let more = rig.mnt().join(folder).join("a/more");
        let random = (0..MORE / 8).flat_map(|_| dice.below(u64::MAX).to_le_bytes());
        fs::write(more, random.collect::<Vec<u8>>()).unwrap();
        rig.zpool(&["sync", &name]);
        sums(rig, folder);
        let disk = |n: u64| &d[n as usize % d.len()];
        let begin = |rig: &Rig, turn: u64| {
            if turn > 0 {
                // It may have left before.
                rig.zpool(&["add", "-f", &name, disk(turn + 1)]);
            }
            slow(rig, &d, LONGER);
            // What was added last stays; the one before it goes.
            drop(rig.zpool(&["remove", &name, disk(turn)]));
        };
        let undo = |rig: &Rig, _| {
            slow(rig, &[], 0);
            rig.zpool(&["wait", "-t", "remove", &name]);
        };
        cut(rig, folder, "in progress", dice, &begin, &undo);
    }
    for (folder, what) in [("half-trim", "trim"), ("half-init", "initialize")] {
        pool(rig, folder, &["mirror"], (2, 2), 4 * SIZE);
        let name = pool_of(folder);
        let begin = |rig: &Rig, _| match what {
            "trim" => drop(rig.zpool(&["trim", "-r", "20M", &name])),
            _ => drop(rig.zpool(&["initialize", &name])),
        };
        let undo = |rig: &Rig, _| {
            if what == "initialize" {
                rig.zpool(&["initialize", "-u", &name]);
            }
        };
        let word = ["% trimmed, started", "% initialized, started"][usize::from(what != "trim")];
        cut(rig, folder, word, dice, &begin, &undo);
    }
    for folder in ["half-check", "back-check"] {
        pool(rig, folder, &["raidz1"], (3, 3), SIZE);
        let name = pool_of(folder);
        rig.zpool(&["checkpoint", &name]);
        rig.zfs(&["destroy", "-r", &format!("{name}/c")]);
        let at = rig.mnt().join(folder);
        fs::write(at.join("a/f"), dice.bytes(3_000_000)).unwrap();
        fs::write(at.join("b/h"), dice.bytes(3_000_000)).unwrap();
        rig.zpool(&["sync", &name]);
        if folder.starts_with("half") {
            sums(rig, folder);
        }
        rig.kill();
        rig.start();
    }
}

/// Changes that came to their end here.
fn ended(rig: &Rig) {
    let export = |folder: &str| drop(rig.zpool(&["export", &pool_of(folder)]));
    let folder = "done-expand";
    let d = pool(rig, folder, &["raidz1"], (3, 4), SIZE);
    rig.zpool(&["attach", "-w", &pool_of(folder), "raidz1-0", &d[3]]);
    export(folder);
    let folder = "done-remove";
    let d = pool(rig, folder, &[], (3, 3), 4 * SIZE);
    rig.zpool(&["remove", "-w", &pool_of(folder), &d[1]]);
    rig.zpool(&["remove", "-w", &pool_of(folder), &d[0]]);
    export(folder);
    let folder = "done-draid";
    let d = pool(rig, folder, &["mirror"], (2, 7), SIZE);
    let name = pool_of(folder);
    let mut add = vec!["add", "-f", &name, "draid1:2d:5c:1s"];
    add.extend(d[2..].iter().map(String::as_str));
    rig.zpool(&add);
    let more = rig.mnt().join(folder).join("a/more");
    fs::write(more, Dice::new(7).bytes(20_000_000)).unwrap();
    rig.zpool(&["sync", &name]);
    sums(rig, folder);
    export(folder);
    let folder = "done-guid";
    pool(rig, folder, &["mirror"], (2, 2), SIZE);
    rig.zpool(&["reguid", &pool_of(folder)]);
    rig.zpool(&["trim", "-w", &pool_of(folder)]);
    export(folder);
}

/// What the files of all mounted file systems below a folder are, but for those that are nearly all hole.
fn all_sums(rig: &Rig, at: &str) -> String {
    rig.sh(&format!(
        "cd {at} && find . -type f -size -65536k -print0 | sort -z | xargs -0 -r sha256sum"
    ))
}

/// Fixtures in which OpenZFS has not finished: gone on with here, with kills, to the end.
fn theirs(rig: &mut Rig, dice: &mut Dice) {
    for (name, done, half) in [
        ("raidz-expanding", "raidz_expand", true),
        ("removal", "remove", false),
        ("removal-stopped", "remove", true),
        ("checkpoint", "discard", false),
    ] {
        let (folder, pool) = unpack(rig, name);
        let dir = rig.disks().join(&folder);
        let root = rig.mnt().join(&folder);
        let root = root.to_str().unwrap().to_string();
        let images: Vec<String> = (0..4)
            .map(|n| dir.join(format!("d{n}.img")).to_str().unwrap().to_string())
            .collect();
        let words = |more: &[&str]| -> Vec<String> {
            let from = dir.to_str().unwrap();
            let options = [
                "import",
                "-f",
                "-R",
                &root,
                "-o",
                "cachefile=none",
                "-d",
                from,
            ];
            let all = [&options[..], more, &[&pool]].concat();
            all.into_iter().map(String::from).collect()
        };
        let import = |rig: &Rig, more: &[&str]| {
            let words = words(more);
            rig.zpool(&words.iter().map(String::as_str).collect::<Vec<_>>());
        };
        import(rig, &["-o", "readonly=on"]);
        let before = all_sums(rig, &root);
        rig.zpool(&["export", &pool]);
        let mut cut_short = false;
        for _ in 0..3 {
            slow(rig, &images, LONGER);
            // What there is to do may be over before the import is: the cut comes at any moment of both.
            let mut begun = rig.command("zpool", &words(&[])).spawn().unwrap();
            let from = Instant::now();
            let longest = Duration::from_millis(500 + dice.below(3000));
            while begun.try_wait().unwrap().is_none() && from.elapsed() < longest {
                std::thread::sleep(Duration::from_millis(20));
            }
            let there = begun.try_wait().unwrap().is_some();
            if name == "checkpoint" && there {
                // The second time there is none any more, or it is being discarded.
                drop(rig.try_run("zpool", &["checkpoint", "-d", &pool]));
            }
            std::thread::sleep(Duration::from_millis(20 + dice.below(400)));
            rig.kill();
            begun.wait().unwrap();
            rig.start();
            // Nobody goes on with it here.
            import(rig, &["-o", "readonly=on"]);
            let status = rig.zpool(&["status", &pool]);
            cut_short |= status.contains("not being continued");
            rig.zpool(&["export", &pool]);
        }
        assert!(cut_short || !half, "{name}: nothing was cut short");
        import(rig, &[]);
        if name == "checkpoint" {
            drop(rig.try_run("zpool", &["checkpoint", "-d", &pool]));
        }
        rig.zpool(&["wait", "-t", done, &pool]);
        rig.zpool(&["wait", "-t", "scrub,resilver,free", &pool]);
        let status = rig.zpool(&["status", &pool]);
        eprintln!("{folder}:\n{status}");
        assert!(status.contains("errors: No known data errors"), "{status}");
        assert_eq!(before, all_sums(rig, &root), "{name}");
        rig.zpool(&["export", &pool]);
    }
}

#[test]
fn shapes_changed_half_way_are_finished_by_the_other_side() {
    let Some(vm) = machine() else {
        return;
    };
    if or_skip(fixture::file("raidz-expanding", "manifest.json")).is_none() {
        return;
    }
    let Some(mut rig) = Rig::as_root("shapes-exchanged") else {
        return;
    };
    let mut dice = Dice::new(number("ZFS_FUSE_TEST_SEED", 1));
    rig.start();
    ended(&rig);
    halves(&mut rig, &mut dice);
    theirs(&mut rig, &mut dice);
    rig.stop();
    judge(&rig, &vm, SCRIPT);
}
