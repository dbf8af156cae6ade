//! Pools with snapshots, clones and bookmarks in both directions: OpenZFS in a virtual machine opens one of ours, counts its
//! space as we do, destroys everything in it, and nothing leaks; and the reverse with one that OpenZFS made.
//!
//! `ZFS_FUSE_TEST_OZFS_VM` names the folder with the command `ozfs-vm`, as in `exchange`. Without it nothing is done. A run
//! takes minutes. `ZFS_FUSE_TEST_SEED` (default 1) draws another life.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use system_tests::{number, Rig};

/// `life POOL ROOT SEED STEPS`: a random mix, the same on both sides. What is refused is passed over.
const LIFE: &str = r##"
heads() { zfs list -H -o name -t filesystem -r $P | grep -v "^$P\$"; }
snaps() { zfs list -H -o name -t snapshot -r $P; }
one() { mapfile -t L; [ ${#L[@]} -gt 0 ] && echo "${L[$(($1 % ${#L[@]}))]}"; }
fill() {
	local at=$M/${1#$P/} k
	for k in 1 2 3; do
		dd if=/dev/urandom of=$at/f$((RANDOM % 6)) bs=16k count=$((RANDOM % 12 + 1)) seek=$((RANDOM % 40)) conv=notrunc 2>/dev/null
	done
	[ $((RANDOM % 3)) = 0 ] && rm -f $at/f$((RANDOM % 6))
	[ $((RANDOM % 3)) = 0 ] && truncate -s $((RANDOM % 9 * 10000)) $at/f$((RANDOM % 6))
	echo some text $RANDOM > $at/small
}
life() {
	P=$1 M=$2 RANDOM=$3
	zfs create $P/a; zfs create $P/a/b; zfs create -o recordsize=8k -o compression=off $P/c; zfs create -o copies=2 $P/d
	for i in $(seq $4); do
		local r1=$RANDOM r2=$RANDOM f s
		f=$(heads | one $r1); s=$(snaps | one $r2)
		case $((RANDOM % 20)) in
		0|1|2|3|4) fill $f;;
		5|6|7) fill $f; zfs snapshot $f@s$i;;
		8) zfs snapshot -r $P/a@r$i;;
		9|10) zfs clone $s $P/k$i && fill $P/k$i;;
		11) zfs promote $f;;
		12) zfs rollback $(zfs list -H -o name -t snapshot -s createtxg -d 1 $f | tail -1);;
		13) zfs rename $s ${s%@*}@x$i;;
		14) zfs hold t$i $s;;
		15) zfs bookmark $s ${s%@*}#b$i;;
		16|17) zfs destroy $s;;
		18) zfs set refreservation=$((RANDOM % 3))M $f;;
		19) zfs destroy -d $s;;
		esac 2>/dev/null
	done
	sync; zpool sync $P
}
# What is counted, of all but the root, of which the pool itself is a part.
count() {
	zfs list -Hp -t filesystem,snapshot -o name,guid,createtxg,used,usedbydataset,usedbysnapshots,usedbychildren,usedbyrefreservation,referenced,written,logicalused,logicalreferenced,compressratio,refcompressratio,userrefs,defer_destroy,origin -r $1 | grep -v "^$1	"
	local f list
	for f in $(zfs list -H -o name -t filesystem,snapshot -r $1 | grep -v "^$1\$"); do
		list=$( { zfs list -H -o name -t snapshot -d 1 ${f%@*} | sed 's/.*@/written@/'; zfs list -H -o name -t bookmark -d 1 ${f%@*} | sed 's/.*#/written#/'; } | paste -sd, )
		[ -n "$list" ] && zfs get -Hp -o name,property,value $list $f
	done
	true
}
destroy_all() {
	local b s t k
	for b in $(zfs list -H -o name -t bookmark -r $1); do zfs destroy $b; done
	for s in $(zfs list -H -o name -t snapshot -r $1); do
		zfs holds -H $s | while read -r n t rest; do zfs release $t $s; done
	done
	# Clones keep their origins: several rounds, each snapshot by itself. A refusal must not end a script under `set -e`.
	for k in 1 2 3 4 5 6 7 8 9; do
		for s in $(snapshots $1); do zfs destroy $s 2>/dev/null || true; done
		for s in $(zfs list -H -o name,origin -t filesystem -r $1 | awk '$2 != "-" { print $1 }'); do zfs destroy $s 2>/dev/null || true; done
	done
	[ -z "$(snapshots $1)" ] || { zfs list -t all -r $1; return 1; }
	for s in $(zfs list -H -o name -t filesystem -d 1 $1 | grep -v "^$1\$"); do zfs destroy -r $s || return 1; done
	zpool sync $1; zpool wait -t free $1
	[ "$(zpool get -Hp -o value freeing $1)$(zpool get -Hp -o value leaked $1)" = 00 ] || { zpool get freeing,leaked $1; return 1; }
}
snapshots() { zfs list -H -o name -t snapshot -r $1 | shuf --random-source=/bin/sh; }
"##;

/// What is done over there.
const THERE: &str = r##"
set -e
cd /share
zpool import -o cachefile=none -f -N -d /share ours
count ours > there-of-ours
destroy_all ours
zpool scrub -w ours; zpool status ours | grep 'No known data errors'
zpool export ours
zdb -e -p /share -bcc ours > there-zdb 2>&1 || { tail -20 there-zdb; exit 3; }
grep -q 'No leaks' there-zdb
truncate -s 512M /share/theirs.img
zpool create -o cachefile=none -O mountpoint=/g -O atime=off theirs /share/theirs.img
set +e
life theirs /g $SEED $STEPS
set -e
count theirs > there-of-theirs
zpool export theirs
"##;

fn bash(rig: &Rig, what: &str) -> String {
    let script = format!("{LIFE}\n{what}");
    rig.try_run("bash", &["-c", &script]).ok()
}

/// Both count the same, of many things.
fn agree(what: &str, there: &str, here: &str) {
    let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<_>>();
    let (there, here) = (lines(there), lines(here));
    let differ: Vec<_> = there
        .iter()
        .filter(|l| !here.contains(l))
        .map(|l| format!("there {l}"))
        .chain(
            here.iter()
                .filter(|l| !there.contains(l))
                .map(|l| format!("here  {l}")),
        )
        .collect();
    assert!(differ.is_empty(), "{what}:\n{}", differ.join("\n"));
    eprintln!("{what}: {} lines alike", there.len());
    assert!(there.len() > 100, "{what}: {} lines", there.len());
}

#[test]
fn snapshots_and_clones_go_both_ways() {
    let Some(vm) = std::env::var_os("ZFS_FUSE_TEST_OZFS_VM").map(PathBuf::from) else {
        eprintln!("skipped: ZFS_FUSE_TEST_OZFS_VM does not name the folder of ozfs-vm");
        return;
    };
    let Some(mut rig) = Rig::as_root("exchange-pools") else {
        return;
    };
    let (seed, steps) = (number("ZFS_FUSE_TEST_SEED", 1), 150);
    let disk = rig.image("ours.img", 512 << 20);
    let share = rig.disks();
    let dir = share.to_str().unwrap().to_string();
    rig.start();
    let at = rig.mnt().join("ours");
    let options = ["-O", "atime=off", "-m", at.to_str().unwrap()];
    rig.zpool(&[&["create"], &options[..], &["ours", &disk]].concat());
    bash(&rig, &format!("life ours {} {seed} {steps}", at.display()));
    let ours = bash(&rig, "count ours");
    rig.zpool(&["export", "ours"]);
    rig.zdb_check("ours");
    // A virtual machine can take longer than a daemon may live in a test.
    rig.stop();

    let script = rig.path().join("script");
    let numbers = format!("SEED={seed} STEPS={steps}");
    fs::write(&script, format!("{LIFE}\n{numbers}\n{THERE}")).unwrap();
    let ended = Command::new(vm.join("ozfs-vm"))
        .args(["run", "--timeout", "2400", "--mem", "1024", "--share"])
        .arg(&share)
        .arg(&script)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    let said = |name: &str| fs::read_to_string(share.join(name)).unwrap();
    if share.join("there-of-ours").exists() {
        agree("ours", &said("there-of-ours"), &ours);
    }
    assert!(ended.success(), "{ended}");

    rig.start();
    rig.zpool(&["import", "-N", "-d", &dir, "theirs"]);
    agree(
        "theirs",
        &said("there-of-theirs"),
        &bash(&rig, "count theirs"),
    );
    bash(&rig, "destroy_all theirs");
    rig.zpool(&["scrub", "-w", "theirs"]);
    rig.zpool(&["export", "theirs"]);
    rig.zdb_check("theirs");
    // What they left of ours.
    rig.zpool(&["import", "-N", "-d", &dir, "ours"]);
    assert_eq!(
        rig.zfs(&["list", "-H", "-o", "name", "-t", "all"]),
        "ours\n"
    );
    rig.zpool(&["scrub", "-w", "ours"]);
    rig.zpool(&["export", "ours"]);
    rig.zdb_check("ours");
}
