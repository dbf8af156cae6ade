//! Events of the engine's rooms in the daemon's log.

use system_tests::Rig;

const MIB: u64 = 1 << 20;

#[test]
fn rooms_that_are_asked_for_say_what_they_do() {
    let Some(mut rig) = Rig::new("events") else {
        return;
    };
    rig.variable("ZFS_FUSE_LOG", "warn,pool=debug,vdev=debug,dsl=debug");
    rig.start();
    let (a, b) = (rig.image("a", 64 * MIB), rig.image("b", 64 * MIB));
    rig.zpool(&["create", "-O", "mountpoint=none", "tank", "mirror", &a, &b]);
    rig.zfs(&["create", "tank/gone"]);
    rig.zfs(&["destroy", "tank/gone"]);
    rig.zpool(&["export", "tank"]);
    rig.stop();
    let log = rig.log();
    let has = |words: &[&str]| log.lines().any(|l| words.iter().all(|w| l.contains(w)));
    for words in [
        &["zfs-fuse: txg is written pool=tank txg=", "objsets="][..],
        &["zfs-fuse: txg is on disk pool=tank txg="],
        &["zfs-fuse: dataset is destroyed", "dataset=tank/gone txg="],
        &["zfs-fuse: vdev changes its state", &b, "state=Healthy"],
    ] {
        assert!(has(words), "{words:?} is missing in\n{log}");
    }
    // The daemon itself only warns.
    assert!(!has(&["is in service"]), "{log}");
}
