//! Options of mounts, and what is set on files beyond their modes.

use std::path::Path;
use system_tests::{until, Rig};

/// A pool mounted at a place of the rig.
fn pool(rig: &mut Rig) -> String {
    let disk = rig.image("disk", 256 << 20);
    let at = rig.mnt().join("tank").to_str().unwrap().to_string();
    rig.start();
    rig.zpool(&["create", "-m", &at, "tank", &disk]);
    at
}

/// Options of the mount as the kernel shows them.
fn shown(at: &str) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|l| l.split(' ').nth(4) == Some(at))
        .unwrap();
    let mut words = line.split(' ');
    let own = words.nth(5).unwrap();
    let of_all = words.next_back().unwrap();
    format!("{own},{of_all}")
        .split(',')
        .map(str::to_string)
        .collect()
}

#[test]
fn mount_options_do_what_they_say_or_are_refused() {
    let Some(mut rig) = Rig::as_root("options") else {
        return;
    };
    let at = pool(&mut rig);
    rig.zfs(&["set", "relatime=off", "tank"]);
    let mounted = |options: &str| {
        rig.zfs(&["unmount", "tank"]);
        rig.zfs(&["mount", "-o", options, "tank"]);
        shown(&at)
    };
    let has = |list: Vec<String>, word: &str| {
        assert!(list.iter().any(|o| o == word), "{word}: {list:?}");
    };
    // Listing a directory touches it, unless it is told not to.
    rig.sh(&format!("mkdir {at}/d; touch {at}/d/f"));
    let atime = |rig: &Rig, path: &str| rig.sh(&format!("stat -c %x {at}/{path}"));
    has(mounted("nodiratime"), "nodiratime");
    let before = atime(&rig, "d");
    rig.sh(&format!("ls {at}/d"));
    assert_eq!(atime(&rig, "d"), before);
    mounted("diratime");
    rig.sh(&format!("ls {at}/d"));
    assert_ne!(atime(&rig, "d"), before);
    has(mounted("lazytime"), "lazytime");
    // What was written and made is there after a kill.
    has(mounted("sync"), "sync");
    rig.sh(&format!("exec 3>{at}/s; echo written >&3; mkdir {at}/made"));
    rig.kill();
    rig.start();
    assert_eq!(
        rig.sh(&format!("cat {at}/s; ls -d {at}/made")),
        format!("written\n{at}/made\n")
    );
    let mounted = |options: &str| {
        rig.zfs(&["unmount", "tank"]);
        rig.zfs(&["mount", "-o", options, "tank"]);
        shown(&at)
    };
    has(mounted("dirsync"), "dirsync");
    rig.sh(&format!("mkdir {at}/also"));
    rig.kill();
    rig.start();
    rig.sh(&format!("ls -d {at}/also"));
    // Extended attributes: none, in hidden directories, beside the other attributes.
    let mounted = |options: &str| {
        rig.zfs(&["unmount", "tank"]);
        rig.zfs(&["mount", "-o", options, "tank"]);
    };
    let set = |name: &str| {
        let path = format!("{at}/x");
        let _ = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path);
        rig.try_run("setfattr", &["-n", name, "-v", "v", &path])
    };
    if rig
        .try_run("sh", &["-c", "command -v setfattr"])
        .status
        .success()
    {
        mounted("noxattr");
        assert!(!set("user.a").status.success());
        for options in ["xattr", "saxattr", "dirxattr"] {
            mounted(options);
            set("user.a").ok();
        }
    }
    let refused = |options: &str, why: &str| {
        let args = ["mount", "-o", options, "tank"];
        rig.zfs(&["unmount", "tank"]);
        let said = rig.try_run("zfs", &args).fails(1);
        assert!(said.contains(why), "{said}");
        rig.zfs(&["mount", "tank"]);
    };
    if !Path::new("/sys/fs/selinux/enforce").exists() {
        refused("context=system_u:object_r:tmp_t:s0", "SELinux");
    }
    refused("wonders", "'wonders' is not supported");
    rig.stop();
}

#[test]
fn statfs_below_a_directory_with_a_project_shows_its_quota() {
    let Some(mut rig) = Rig::as_root("project-df") else {
        return;
    };
    let at = pool(&mut rig);
    std::fs::create_dir(format!("{at}/p")).unwrap();
    let script = format!("chattr +P -p 7 {at}/p");
    if !rig.try_run("sh", &["-c", &script]).status.success() {
        eprintln!("skipped: no chattr that knows projects");
        return;
    }
    rig.zfs(&["set", "projectquota@7=20M", "tank"]);
    let size = |dir: &str| -> u64 {
        let text = rig.sh(&format!("stat -f -c '%b %S' {at}/{dir}"));
        let mut words = text.split_whitespace().map(|w| w.parse::<u64>().unwrap());
        words.next().unwrap() * words.next().unwrap()
    };
    assert_eq!(size("p"), 20 << 20);
    assert!(size(".") > 100 << 20);
    rig.stop();
}

#[test]
fn dos_flags_are_shown_set_and_kept() {
    let Some(mut rig) = Rig::as_root("dos-flags") else {
        return;
    };
    let at = pool(&mut rig);
    std::fs::write(format!("{at}/f"), b"content").unwrap();
    let get = |rig: &Rig| {
        let script = format!(
            "open(F, '<', '{at}/f') or die; my $b = pack('Q', 0); \
             ioctl(F, 0x80088301, $b) or die $!; printf('%x', unpack('Q', $b))"
        );
        rig.try_run("perl", &["-e", &script]).ok()
    };
    let set = |rig: &Rig, flags: &str| {
        let script = format!(
            "open(F, '<', '{at}/f') or die; my $b = pack('Q', {flags}); \
             ioctl(F, 0x40088302, $b) or die $!"
        );
        rig.try_run("perl", &["-e", &script])
    };
    let archive = 1u64 << 35;
    assert_eq!(get(&rig), format!("{archive:x}"));
    // Hidden, system and read-only: who opens it for writing from now on is refused, but for root.
    let append = format!("echo x >>{at}/f");
    let writes = |user| {
        let said = rig.try_run_as(user, "sh", &["-c", &append]);
        said.status.success()
    };
    rig.sh(&format!("chmod 666 {at}/f"));
    assert!(writes(Some(65534)), "before");
    set(&rig, "7 << 32").ok();
    assert_eq!(get(&rig), "700000000");
    assert!(!writes(Some(65534)));
    assert!(writes(None));
    // Synced, killed, replayed.
    set(&rig, "6 << 32").ok();
    rig.sh(&format!("sync {at}/f"));
    rig.kill();
    rig.start();
    assert_eq!(get(&rig), "600000000");
    rig.sh(&format!("echo x >>{at}/f"));
    set(&rig, "(6 << 32) | (1 << 37)").ok();
    assert!(!rig
        .try_run("rm", &["-f", &format!("{at}/f")])
        .status
        .success());
    set(&rig, "0").ok();
    // The internal ones cannot be set.
    assert!(set(&rig, "1 << 40").fails(95).contains("not supported"));
    rig.sh(&format!("rm {at}/f"));
    rig.stop();
}

#[test]
fn mount_of_the_system_mounts_and_remounts_through_the_helper() {
    let Some(mut rig) = Rig::as_root("mount-helper") else {
        return;
    };
    let at = pool(&mut rig);
    rig.zfs(&["create", "-o", "mountpoint=legacy", "tank/old"]);
    let there = rig.mnt().join("old");
    std::fs::create_dir(&there).unwrap();
    let there = there.to_str().unwrap().to_string();
    let bin = rig.path().join("bin");
    std::os::unix::fs::symlink("zfs", bin.join("mount.fuse.zfs")).unwrap();
    // As mount(8) calls it, with the options it takes from the table of mounts.
    let helper = |args: &[&str]| rig.try_run("mount.fuse.zfs", args);
    // A line of /etc/fstab has options for mount(8) and systemd, too.
    let fstab =
        "rw,noatime,nofail,users,silent,quiet,mand,_netdev,x-systemd.requires=zfs-fuse.service";
    helper(&["tank/old", &there, "-o", fstab]).ok();
    assert!(shown(&there).contains(&"noatime".to_string()));
    let options = "ro,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount";
    helper(&["tank", &at, "-o", options, "-t", "fuse.zfs"]).ok();
    assert!(shown(&at).contains(&"ro".to_string()));
    assert!(!rig.try_run("touch", &[&format!("{at}/x")]).status.success());
    helper(&["tank", &at, "-o", "remount,rw"]).ok();
    rig.sh(&format!("touch {at}/x"));
    assert!(helper(&["tank", &there, "-o", "remount"])
        .fails(32)
        .contains("mounted at"));
    assert!(helper(&["tank"]).fails(1).contains("directory"));
    // As with OpenZFS, mount(8) and umount(8) belong together.
    let said = rig.try_run("zfs", &["unmount", "tank/old"]).fails(1);
    assert!(said.contains("umount(8)"), "{said}");
    rig.zfs(&["unmount", &there]);
    rig.stop();
}

/// What OpenZFS's event daemon keeps for the generator of mount units, and what that makes of it.
#[test]
fn mount_units_follow_from_the_list_that_the_daemon_keeps() {
    let Some(mut rig) = Rig::as_root("list-cache") else {
        return;
    };
    let folder = rig.path().join("run/zfs-list.cache");
    let file = folder.join("tank");
    std::fs::create_dir(&folder).unwrap();
    let at = pool(&mut rig);
    // Nobody but the administrator begins it.
    rig.zfs(&["create", "tank/a"]);
    assert!(!file.exists());
    std::fs::write(&file, "").unwrap();
    rig.zfs(&["set", "canmount=noauto", "tank/a"]);
    let text = || std::fs::read_to_string(&file).unwrap();
    let line = |name: &str| -> Vec<String> {
        let text = text();
        let found = text.lines().find(|l| l.split('\t').next() == Some(name));
        found.map_or(Vec::new(), |l| l.split('\t').map(str::to_string).collect())
    };
    until("noauto is in the list", || {
        line("tank/a").get(2).is_some_and(|c| c == "noauto")
    });
    assert_eq!(line("tank").len(), 20);
    assert_eq!(line("tank")[..3], ["tank", &at, "on"]);
    rig.zfs(&[
        "set",
        "org.openzfs.systemd:requires=zfs-fuse.service",
        "tank",
    ]);
    rig.zfs(&[
        "create",
        "-o",
        "zfs-fuse:view=on",
        "-o",
        "readonly=on",
        "tank/v",
    ]);
    rig.zfs(&["create", "-p", "tank/v/in/deep"]);
    rig.zfs(&["rename", "tank/a", "tank/b"]);
    until("new names are in the list", || {
        !line("tank/b").is_empty() && !line("tank/v/in/deep").is_empty()
    });
    assert!(line("tank/a").is_empty());
    assert_eq!(line("tank/b")[12], "zfs-fuse.service");
    assert_eq!(
        (line("tank/v")[7].as_str(), line("tank/v")[19].as_str()),
        ("on", "-")
    );
    // No mounts of their own.
    for part in ["tank/v/in", "tank/v/in/deep"] {
        assert_eq!(line(part)[19], "on", "{part}");
    }
    units(&rig, &at);
    let before = text();
    rig.stop();
    assert_eq!(text(), before, "it is for the next start");
    rig.start();
    rig.zpool(&["export", "tank"]);
    until("the list is empty", || text() == "\n");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    until("the list is there", || text() == before);
    rig.zpool(&["destroy", "tank"]);
    until("the list is empty", || text() == "\n");
    rig.stop();
}

/// OpenZFS's generator makes mount units of the list that systemd takes.
fn units(rig: &Rig, at: &str) {
    let set = testkit::packages::get(testkit::packages::Set::OpenZfs);
    let generator = set.and_then(|s| {
        Ok((
            s.file("lib/systemd/system-generators/zfs-mount-generator")?,
            s.libraries(),
        ))
    });
    let (generator, libraries) = match generator {
        Ok(found) => found,
        Err(e) => {
            eprintln!("skipped: no generator: {e}");
            return;
        }
    };
    let libraries = std::env::join_paths(libraries).unwrap();
    let dir = rig.path().display();
    for d in ["etc-new", "etc-work", "units", "early", "late"] {
        std::fs::create_dir(rig.path().join(d)).unwrap();
    }
    rig.sh(&format!(
        "unshare -m sh -ec 'mount -t overlay overlay -o lowerdir=/etc,upperdir={dir}/etc-new,workdir={dir}/etc-work /etc; \
         mkdir -p /etc/zfs/zfs-list.cache; cp {dir}/run/zfs-list.cache/* /etc/zfs/zfs-list.cache/; \
         LD_LIBRARY_PATH={} {} {dir}/units {dir}/early {dir}/late'",
        libraries.to_string_lossy(),
        generator.display()
    ));
    let unit = |place: &str| {
        let name = rig.sh(&format!("systemd-escape -p --suffix=mount {place}"));
        rig.path().join("units").join(name.trim())
    };
    let text = |place: &str| std::fs::read_to_string(unit(place)).unwrap_or_default();
    let own = text(at);
    for word in [
        &format!("Where={at}")[..],
        "What=tank",
        "Type=zfs",
        "zfsutil",
        "zfs-fuse.service",
    ] {
        assert!(own.contains(word), "{word}: {own}");
    }
    assert!(text(&format!("{at}/v")).contains("What=tank/v"));
    assert!(text(&format!("{at}/b")).contains("What=tank/b"));
    assert_eq!(text(&format!("{at}/v/in")), "");
    let unit = unit(at);
    let said = rig.sh(&format!(
        "systemd-analyze verify --man=no --recursive-errors=no {} 2>&1 || true",
        unit.display()
    ));
    for wrong in [
        "Unknown key",
        "Unknown section",
        "Failed to parse",
        "Invalid",
    ] {
        assert!(!said.contains(wrong), "{said}");
    }
}
