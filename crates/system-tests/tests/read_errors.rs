//! A disk that fails to read now and then, below blocks that are overwritten in part.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use system_tests::faulty_disks::{Fault, On, Trouble, EIO};
use system_tests::{Dice, FaultyDisks, Rig};

const FILES: u64 = 60;
/// Two records, of which a page is overwritten: the kernel reads nothing for that.
const SIZE: usize = 256 << 10;
const PAGE: usize = 4096;
const O_DIRECT: i32 = 0o40000;

/// The block below a change is read when its txg is written, long after the change was acknowledged.
#[test]
fn reads_that_fail_now_and_then_lose_no_acknowledged_write() {
    let Some(disks) = FaultyDisks::new("read-errors") else {
        return;
    };
    let Some(mut rig) = Rig::new("read-errors") else {
        return;
    };
    let disk = disks.disk("d0", 256 << 20);
    let mnt = rig.mnt();
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    rig.zfs(&["set", "compression=off", "tank"]);
    let mut dice = Dice::new(5);
    let mut files: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let path = |n: u64| mnt.join(format!("f{n}"));
    for n in 0..FILES {
        let bytes = dice.bytes(SIZE);
        std::fs::write(path(n), &bytes).unwrap();
        files.insert(n, bytes);
    }
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", disks.folder().to_str().unwrap(), "tank"]);
    // Metadata are in memory, and of each file the second record, not the first.
    for n in 0..FILES {
        let mut o = File::options();
        let f = o.read(true).custom_flags(O_DIRECT).open(path(n)).unwrap();
        f.read_exact_at(&mut [0; PAGE], (SIZE - PAGE) as u64)
            .unwrap();
    }
    for n in 0..3 {
        std::fs::write(mnt.join("other"), dice.bytes(SIZE * n)).unwrap();
        rig.zpool(&["sync", "tank"]);
    }

    disks.fail("d0", Fault::every(On::Read, Trouble::Error(EIO)).one_of(3));
    let mut acknowledged = 0;
    for n in 0..FILES {
        let (page, at) = (dice.bytes(PAGE), PAGE * (1 + dice.below(30) as usize));
        let written = (|| {
            let f = File::options().write(true).open(path(n))?;
            f.write_all_at(&page, at as u64)?;
            f.sync_data()
        })();
        match written {
            Ok(()) => {
                acknowledged += 1;
                files.get_mut(&n).unwrap()[at..at + PAGE].copy_from_slice(&page);
            }
            // Before or after are both right.
            Err(_) => drop(files.remove(&n)),
        }
    }
    assert!(acknowledged > FILES / 4, "{acknowledged}");
    // Whether it says that something failed does not matter here.
    let _ = rig.try_run("zpool", &["sync", "tank"]);
    disks.heal();
    rig.kill();
    rig.start();
    let wrong: Vec<&u64> = files
        .iter()
        .filter(|(n, want)| std::fs::read(path(**n)).ok().as_ref() != Some(*want))
        .map(|(n, _)| n)
        .collect();
    assert!(wrong.is_empty(), "of {acknowledged} writes: {wrong:?}");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
