//! Where an ordinary user's file systems are mounted, and the copies he keeps of others'.

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

/// Names, owners, modes, times and content of everything in a snapshot, as root sees it.
fn seen(rig: &Rig, snap: &std::path::Path) -> String {
    let script = format!(
        "cd {0} && find . -printf '%p %U %G %m %s %T@ %y %l\\n' | sort
         getfattr -dR -m - . 2>/dev/null; find . -type f -exec md5sum {{}} + | sort",
        snap.display()
    );
    rig.sh(&script)
}

/// An ordinary user with a daemon of his own keeps copies of what belongs to root and others: owners, modes and devices
/// stay as they are, though he may not use them, and what he gives back is what he got. Of root's pools he gets what he
/// may.
#[test]
fn an_ordinary_user_keeps_copies_of_roots_file_systems_and_gives_them_back() {
    if !users_can_mount("copies") {
        return;
    }
    let Some(mut rig) = Rig::as_root("copies-root") else {
        return;
    };
    let Some(mut own) = Rig::as_user("copies-own") else {
        return;
    };
    let disk = rig.image("disk", 256 << 20);
    let at = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", at.to_str().unwrap(), "tank", &disk]);
    let key = rig.path().join("home/key");
    std::fs::write(&key, "5a".repeat(32)).unwrap();
    let home = own.path().join("home");
    rig.sh(&format!(
        "zfs create tank/s; zfs create tank/s/below
         zfs create -o mountpoint={at}/elsewhere tank/m; echo m >{at}/elsewhere/file; chmod 755 {at}/elsewhere
         zfs create -o encryption=on -o keyformat=hex -o keylocation=file://{key} tank/e
         for fs in s s/below e; do
             cd {at}/$fs; head -c 700000 /dev/urandom >secret; chown 1234:5678 secret; chmod 600 secret
             echo all >open; cp /bin/true suid; chmod 4755 suid; mknod null c 1 3; ln -s secret link
             mkdir dir; chown 65534 dir; setfattr -n user.a -v b open; setfattr -n trusted.t -v u open
         done
         zfs snapshot -r tank@1
         for fs in s s/below e; do cd {at}/$fs; echo more >>open; rm link; head -c 90000 /dev/urandom >new; done
         zfs snapshot -r tank@2
         cd {home}; zfs send tank/s@1 >full; zfs send -i @1 tank/s@2 >more; zfs send -R tank/s@2 >tree
         zfs send -w tank/e@1 >raw; zfs send -w -i @1 tank/e@2 >rawmore
         zfs send -p tank/m@1 >props; head -c 400000 full >part",
        key = key.display(),
        at = at.display(),
        home = home.display()
    ));
    own.serve_at(&own.path().join("run/zfs-fuse/control.sock"));
    own.variable("ZFS_FUSE_SOCKET", "");
    let system = rig.socket().to_str().unwrap().to_string();
    own.variable("ZFS_FUSE_SYSTEM_SOCKET", &system);
    let image = own.image("disk", 256 << 20);
    own.start();
    let place = own.mnt().join("mine");
    own.zpool(&["create", "-m", place.to_str().unwrap(), "mine", &image]);
    own.sh(
        "zfs receive mine/s <full; zfs receive mine/s <more; zfs receive mine/tree <tree
         zfs receive -u mine/e <raw; zfs receive -u mine/e <rawmore
         if zfs receive -s -u mine/part <part 2>told; then exit 1; fi
         grep -q 'Partially received snapshot is saved' told
         zfs get -H -o value receive_resume_token mine/part >token",
    );
    rig.sh(&format!(
        "cd {0}; zfs send -t $(cat token) >rest",
        home.display()
    ));
    own.sh("zfs receive -s -u mine/part <rest");
    // What is not his is not opened to him by his own daemon.
    let copy = own.get("mountpoint", "mine/s");
    let owners = own.sh(&format!(
        "cd {copy}; stat -c '%n %u %g %a' secret suid null dir"
    ));
    assert_eq!(
        owners,
        "secret 1234 5678 600\nsuid 0 0 4755\nnull 0 0 644\ndir 65534 0 755\n"
    );
    own.sh(&format!(
        "fails cat {copy}/secret; fails sh -c 'echo x >>{copy}/open'; fails head -c 1 {copy}/null
         cat {copy}/open; echo mine >{copy}/dir/mine"
    ));
    refused_to_him(&rig, &own);
    // Given back: whole trees, raw, and an increment with what he did.
    own.sh(
        "zfs snapshot mine/s@3; zfs send -I @1 mine/s@3 >back; zfs send mine/s@1 >back1; zfs send mine/part@1 >part1
         zfs send -R mine/tree@2 >backtree; zfs send -w mine/e@1 >backraw; zfs send -w -i @1 mine/e@2 >backrawmore",
    );
    rig.sh(&format!(
        "cd {}; zfs receive -u tank/b <back1; zfs receive -u tank/b <back; zfs receive -u tank/p <part1
         zfs receive -u tank/t <backtree; zfs receive -u tank/r <backraw; zfs receive -u tank/r <backrawmore
         zfs load-key -L file://{} tank/r; zfs mount -a",
        home.display(),
        key.display()
    ));
    let snap = |fs: &str, snap: &str| at.join(fs).join(".zfs/snapshot").join(snap);
    for (back, from, name) in [
        ("b", "s", "1"),
        ("b", "s", "2"),
        ("p", "s", "1"),
        ("t", "s", "1"),
        ("t/below", "s/below", "2"),
        ("r", "e", "1"),
        ("r", "e", "2"),
    ] {
        assert_eq!(
            seen(&rig, &snap(back, name)),
            seen(&rig, &snap(from, name)),
            "{back}@{name}"
        );
    }
    let mine = snap("b", "3").join("dir/mine");
    assert_eq!(std::fs::read_to_string(mine).unwrap(), "mine\n");
    for (rig, pool) in [(&own, "mine"), (&rig, "tank")] {
        rig.zpool(&["export", pool]);
        rig.zdb_check(pool);
    }
}

/// What the user may not do with root's pools, and what his own daemon cannot.
fn refused_to_him(rig: &Rig, own: &Rig) {
    let list = |rig: &Rig| rig.zfs(&["list", "-H", "-t", "all", "-o", "name,guid,used"]);
    let before = (list(rig), list(own));
    let told = |line: &str| {
        let said = own.try_run("sh", &["-c", line]);
        (said.status.code(), said.err)
    };
    let denied = "permission denied\n";
    for (line, words) in [
        (
            "zfs send tank/s@1 >out",
            format!("cannot send 'tank/s@1': {denied}"),
        ),
        (
            "zfs send -R tank/s@1 >out",
            format!("cannot send 'tank/s@1': {denied}"),
        ),
        (
            "zfs receive tank/x <full",
            format!("cannot receive new filesystem stream: {denied}"),
        ),
        (
            "zfs receive -F tank/s <more",
            format!("cannot receive incremental stream: {denied}"),
        ),
        (
            "zfs receive none/x <full",
            "cannot receive: no such pool 'none'\n".into(),
        ),
    ] {
        assert_eq!(told(line), (Some(1), words), "{line}");
    }
    assert_eq!(
        std::fs::metadata(own.path().join("home/out"))
            .unwrap()
            .len(),
        0
    );
    assert_eq!((list(rig), list(own)), before);
    // The place that the stream brings is not one where he may mount: he has the data, and is told.
    let (code, said) = told("zfs receive mine/props <props");
    let begin = "cannot mount 'mine/props': ";
    assert!(
        code == Some(1) && said.starts_with(begin),
        "{code:?}: {said}"
    );
    assert_eq!(own.get("mounted", "mine/props"), "no");
    let there = own.mnt().join("props");
    own.zfs(&[
        "set",
        &format!("mountpoint={}", there.display()),
        "mine/props",
    ]);
    own.zfs(&["mount", "-a"]);
    assert_eq!(own.sh(&format!("cat {}/file", there.display())), "m\n");
}
