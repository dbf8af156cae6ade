//! Attributes as the kernel shows them and as they are stored.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use system_tests::Rig;

#[test]
fn truncation_to_the_same_size_shows_the_time_that_is_stored() {
    let Some(mut rig) = Rig::new("same-size") else {
        return;
    };
    let disk = rig.image("disk", 128 << 20);
    let at = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    let file = at.join("f");
    std::fs::write(&file, vec![7; 5000]).unwrap();
    let times = || {
        let m = std::fs::metadata(&file).unwrap();
        (
            m.mtime(),
            m.mtime_nsec(),
            m.ctime(),
            m.ctime_nsec(),
            m.len(),
        )
    };
    rig.sh(&format!("touch -d '2001-02-03' {}", file.display()));
    truncate(&rig, &file, 5000);
    let shown = times();
    let export = |rig: &Rig| {
        rig.zpool(&["export", "tank"]);
        let dir = rig.disks().to_str().unwrap().to_string();
        rig.zpool(&["import", "-d", &dir, "tank"]);
    };
    export(&rig);
    assert_eq!(times(), shown);
    // ftruncate(2) changes them in any case.
    let before = times();
    File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_len(5000)
        .unwrap();
    let shown = times();
    assert_ne!(shown, before);
    export(&rig);
    assert_eq!(times(), shown);
    // Another size changes them, too.
    rig.sh(&format!("touch -d '2001-02-03' {}", file.display()));
    let before = times();
    truncate(&rig, &file, 4000);
    let shown = times();
    assert_ne!(shown.0, before.0);
    assert_eq!(shown.4, 4000);
    export(&rig);
    assert_eq!(times(), shown);
    rig.stop();
}

/// truncate(2) by path; `truncate` of coreutils opens the file.
fn truncate(rig: &Rig, file: &std::path::Path, size: u64) {
    let script = format!("truncate('{}', {size}) or die $!", file.display());
    rig.try_run("perl", &["-e", &script]).ok();
}

#[test]
fn sync_of_a_pool_shows_the_space_files_take_at_once() {
    let Some(mut rig) = Rig::new("blocks") else {
        return;
    };
    let disk = rig.image("disk", 128 << 20);
    let at = rig.mnt().join("tank");
    rig.start();
    let create = [
        "create",
        "-O",
        "compression=off",
        "-m",
        at.to_str().unwrap(),
        "tank",
    ];
    rig.zpool(&[&create[..], &[&disk]].concat());
    for n in 0..8u64 {
        let file = at.join(format!("f{n}"));
        std::fs::write(&file, vec![7; 1 << 20]).unwrap();
        // The kernel has attributes that it may keep for a moment.
        std::fs::metadata(&file).unwrap();
        rig.zpool(&["sync", "tank"]);
        let blocks = std::fs::metadata(&file).unwrap().blocks();
        assert!(blocks >= 2048, "{blocks} after the sync");
    }
    rig.stop();
}
