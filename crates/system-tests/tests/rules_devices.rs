//! Rules of OpenZFS's commands for devices and pools that its test suite states.

use system_tests::Rig;

const MIB: u64 = 1 << 20;

fn rig(name: &str, images: usize) -> Option<(Rig, Vec<String>)> {
    let mut rig = Rig::as_root(name)?;
    let d = rig.images(images, 128 * MIB);
    rig.start();
    Some((rig, d))
}

/// `zpool create` without mounting anything.
fn create(rig: &Rig, pool: &str, vdevs: &[&str]) {
    let mut args = vec!["create", "-O", "mountpoint=none", pool];
    args.extend(vdevs);
    rig.zpool(&args);
}

#[test]
fn what_left_a_pool_has_labels_that_can_be_cleared_without_force() {
    let Some((mut rig, d)) = rig("left-labels", 6) else {
        return;
    };
    let clear = |dev: &str| {
        rig.zpool(&["labelclear", dev]);
        let said = rig.try_run("zpool", &["labelclear", "-f", dev]).fails(1);
        assert!(said.contains("no label of a pool found"), "{said}");
    };
    create(
        &rig,
        "tank",
        &[
            "mirror", &d[0], &d[1], "log", &d[2], "cache", &d[3], "spare", &d[4],
        ],
    );
    for dev in &d[2..5] {
        rig.zpool(&["remove", "tank", dev]);
        clear(dev);
    }
    rig.zpool(&["detach", "tank", &d[1]]);
    clear(&d[1]);
    rig.zpool(&["replace", "tank", &d[0], &d[5]]);
    rig.zpool(&["wait", "-t", "replace", "tank"]);
    clear(&d[0]);
    // It is nobody's without that, too.
    rig.zpool(&["attach", "tank", &d[5], &d[0]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    rig.zpool(&["detach", "tank", &d[0]]);
    rig.zpool(&["attach", "tank", &d[5], &d[0]]);
    rig.zpool(&["wait", "-t", "resilver", "tank"]);
    rig.zpool(&["detach", "tank", &d[5]]);
    create(&rig, "other", &[&d[5]]);
    for pool in ["other", "tank"] {
        rig.zpool(&["export", pool]);
        rig.zdb_check(pool);
        rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), pool]);
        rig.zpool(&["destroy", pool]);
    }
    rig.stop();
}
