//! Where an ordinary user's file systems are mounted.

use system_tests::{users_can_mount, Rig};

#[test]
fn an_ordinary_users_own_mount_points_have_their_children_beside_them() {
    if !users_can_mount("own-place") {
        return;
    }
    let allowed = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if allowed.lines().any(|l| l.trim() == "user_allow_other") {
        eprintln!("skipped: with user_allow_other they nest");
        return;
    }
    let Some(mut rig) = Rig::as_user("own-place") else {
        return;
    };
    let disk = rig.image("disk", 256 << 20);
    let dir = rig.disks().to_str().unwrap().to_string();
    let m = rig.mnt().join("m").to_str().unwrap().to_string();
    rig.start();
    rig.zpool(&["create", "-m", &m, "tank", &disk]);
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "tank/a/b"]);
    // Set where fusermount3 cannot mount, and beside.
    rig.zfs(&["create", "-o", &format!("mountpoint={m}/in/side"), "tank/c"]);
    let other = rig.mnt().join("other").to_str().unwrap().to_string();
    rig.zfs(&["create", "-o", &format!("mountpoint={other}"), "tank/d"]);
    rig.zfs(&["create", "tank/d/e"]);
    let places = [
        ("tank", m.clone()),
        ("tank/a", format!("{m}+a")),
        ("tank/a/b", format!("{m}+a+b")),
        ("tank/c", format!("{m}+in+side")),
        ("tank/d", other.clone()),
        ("tank/d/e", format!("{other}+e")),
    ];
    let check = |rig: &Rig| {
        let list = rig.zfs(&["mount"]);
        for (name, place) in &places {
            assert_eq!(rig.get("mountpoint", name), *place);
            assert_eq!(rig.get("mounted", name), "yes", "{name}");
            let line = |l: &str| {
                let mut words = l.split_whitespace();
                (words.next(), words.next()) == (Some(*name), Some(place.as_str()))
            };
            assert!(list.lines().any(line), "{name}: {list}");
        }
    };
    check(&rig);
    for (name, place) in &places {
        rig.sh(&format!("echo {name} >{place}/f"));
    }
    rig.zpool(&["export", "tank"]);
    assert!(rig.mounts().is_empty());
    // An import succeeds, and everything is where it was.
    rig.zpool(&["import", "-d", &dir, "tank"]);
    check(&rig);
    for (name, place) in &places {
        assert_eq!(rig.sh(&format!("cat {place}/f")), format!("{name}\n"));
    }
    // A whole tree moves, and the parent goes without its children.
    let moved = rig.mnt().join("n").to_str().unwrap().to_string();
    rig.zfs(&["set", &format!("mountpoint={moved}"), "tank"]);
    assert_eq!(rig.get("mountpoint", "tank/a/b"), format!("{moved}+a+b"));
    assert_eq!(rig.sh(&format!("cat {moved}+a+b/f")), "tank/a/b\n");
    rig.zfs(&["unmount", "tank/a/b"]);
    assert_eq!(rig.get("mounted", "tank/a/b"), "no");
    rig.zfs(&["mount", "tank/a/b"]);
    rig.zfs(&["unmount", "tank"]);
    rig.zfs(&["mount", "-a"]);
    assert_eq!(rig.sh(&format!("cat {moved}+a/f")), "tank/a\n");
    // Who keeps it busy is named, as far as an ordinary user may see.
    let ready = rig.path().join("home/ready");
    let script = format!("cd {moved}+a; : >{}; exec sleep 3600", ready.display());
    let mut inside = rig.command("sh", &["-c", &script]).spawn().unwrap();
    system_tests::until("somebody is inside", || ready.exists());
    let said = rig.try_run("zfs", &["unmount", "tank/a"]).fails(1);
    let pid = inside.id();
    let _ = inside.kill();
    let _ = inside.wait();
    let line = format!("in use by {pid} (sleep): {moved}+a: working directory");
    assert!(said.contains(&line), "{said}");
    assert!(
        said.contains("of other users could not be looked at"),
        "{said}"
    );
    rig.zpool(&["export", "tank"]);
    // Below an alternate root, too.
    let root = rig.mnt().join("root").to_str().unwrap().to_string();
    rig.zpool(&["import", "-R", &root, "-d", &dir, "tank"]);
    assert_eq!(rig.get("mountpoint", "tank/a"), format!("{root}{moved}+a"));
    assert_eq!(rig.get("mounted", "tank/a"), "yes");
    rig.zpool(&["export", "tank"]);
    rig.stop();
}
