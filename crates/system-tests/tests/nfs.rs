//! Shared file systems over NFS: by a client that puts its calls together by hand (`testkit::nfs`), and by libnfs's programs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use system_tests::{is_root, number, Dice, Rig};
use testkit::nfs::{Args, Client, Tcp, Transport};

const NOENT: u32 = 2;
const ACCES: u32 = 13;
const ROFS: u32 = 30;
const NOTEMPTY: u32 = 66;
const STALE: u32 = 70;
/// For tests, whose ports are those of an ordinary user.
const SHARED: &str = "sharenfs=rw=127.0.0.1,insecure,no_root_squash";

/// A rig whose daemon serves NFS at the address.
fn rig(name: &str) -> Option<(Rig, SocketAddr)> {
    let mut rig = Rig::new(name)?;
    // Nobody else gets it before the daemon does: the kernel gives out others first.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    rig.daemon_options(&["--nfs-listen", &address.to_string()]);
    Some((rig, address))
}

/// A client, as the user whose files they are.
fn client(at: SocketAddr) -> Client<Tcp> {
    let mut c = Client::new(Tcp::connect(at).unwrap());
    let me = fs::metadata("/proc/self").unwrap();
    c.user = Some((me.uid(), me.gid(), Vec::new()));
    c
}

/// A pool that is shared, a client, and the handle of its root.
fn tank(name: &str) -> Option<(Rig, PathBuf, SocketAddr, Client<Tcp>, Vec<u8>)> {
    let (rig, at) = rig(name)?;
    let (rig, mnt) = rig.with_tank(256 << 20);
    rig.zfs(&["set", SHARED, "tank"]);
    let mut c = client(at);
    let root = c.mount(mnt.to_str().unwrap()).unwrap();
    Some((rig, mnt, at, c, root))
}

#[test]
fn both_doors_see_each_others_changes() {
    let Some((_rig, mnt, _, mut c, root)) = tank("nfs-doors") else {
        return;
    };
    // What a program writes here, closed or not, is read there.
    fs::write(mnt.join("f"), "from here").unwrap();
    let (f, a) = c.lookup(&root, "f").unwrap();
    assert_eq!(a.fileid, fs::metadata(mnt.join("f")).unwrap().ino());
    assert_eq!(c.read_all(&f).unwrap(), b"from here");
    let open = File::options().write(true).open(mnt.join("f")).unwrap();
    open.write_all_at(b"still open, and longer", 0).unwrap();
    assert_eq!(c.getattr(&f).unwrap().size, 22);
    assert_eq!(c.read_all(&f).unwrap(), b"still open, and longer");
    drop(open);
    // And the other way, also what the kernel had in its cache.
    assert_eq!(fs::read(mnt.join("f")).unwrap(), b"still open, and longer");
    c.write(&f, 0, b"STILL", 0).unwrap();
    assert_eq!(fs::read(mnt.join("f")).unwrap(), b"STILL open, and longer");
    c.setattr(&f, Some(0o604), Some(5), None).unwrap();
    let here = fs::metadata(mnt.join("f")).unwrap();
    assert_eq!((here.len(), here.permissions().mode() & 0o777), (5, 0o604));
    // Names, also those that the kernel took for free or for taken.
    assert!(fs::metadata(mnt.join("new")).is_err());
    c.create(&root, "new", 0o644, true).unwrap();
    assert!(fs::metadata(mnt.join("new")).is_ok());
    let names = |mnt: &Path| {
        let mut names: Vec<_> = fs::read_dir(mnt)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&mnt), ["f", "new"]);
    c.rename((&root, "new"), (&root, "renamed")).unwrap();
    assert_eq!(names(&mnt), ["f", "renamed"]);
    assert!(fs::metadata(mnt.join("new")).is_err());
    fs::rename(mnt.join("renamed"), mnt.join("back")).unwrap();
    assert_eq!(c.lookup(&root, "renamed"), Err(NOENT));
    assert!(c.lookup(&root, "back").is_ok());
    c.remove(&root, "back").unwrap();
    assert!(fs::metadata(mnt.join("back")).is_err());
    let (d, _) = c.mkdir(&root, "d", 0o755).unwrap();
    fs::write(mnt.join("d/x"), "x").unwrap();
    let mut list: Vec<String> = c
        .readdir(&d, 4096)
        .unwrap()
        .into_iter()
        .map(|e| e.0)
        .collect();
    list.sort();
    assert_eq!(list, [".", "..", "x"]);
    // What has no name any more stays for the program that has it open.
    let mut open = File::open(mnt.join("d/x")).unwrap();
    c.remove(&d, "x").unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
}

/// With `crossmnt` a client comes into what is mounted inside of what it has mounted, in a view as elsewhere.
#[test]
fn a_client_crosses_into_the_file_systems_inside() {
    for view in ["off", "on"] {
        let Some((mut rig, at)) = rig(&format!("nfs-cross-{view}")) else {
            return;
        };
        let disk = rig.image("d0", 256 << 20);
        let mnt = rig.mnt().join("tank");
        rig.start();
        let view = format!("zfs-fuse:view={view}");
        let share = format!("{SHARED},crossmnt");
        let place = mnt.to_str().unwrap();
        rig.zpool(&[
            "create", "-O", &view, "-O", &share, "-m", place, "tank", &disk,
        ]);
        rig.zfs(&["create", "-p", "tank/photos/old"]);
        fs::create_dir_all(mnt.join("d/e")).unwrap();
        let deep = format!("mountpoint={}", mnt.join("d/e/deep").display());
        rig.zfs(&["create", "-o", &deep, "tank/deep"]);
        for dir in ["", "photos", "photos/old", "d/e/deep"] {
            fs::write(mnt.join(dir).join("f"), format!("in {dir}")).unwrap();
        }
        let mut c = client(at);
        let root = c.mount(place).unwrap();
        let names = |c: &mut Client<Tcp>, dir: &[u8]| {
            let list = c.readdir(dir, 4096).unwrap();
            let mut list: Vec<String> = list.into_iter().map(|e| e.0).collect();
            list.sort();
            list
        };
        for dir in ["photos", "photos/old", "d/e/deep"] {
            let (f, a) = c.walk(&root, &format!("{dir}/f")).unwrap();
            assert_eq!(c.read_all(&f).unwrap(), format!("in {dir}").as_bytes());
            let (d, there) = c.walk(&root, dir).unwrap();
            assert_eq!(a.fsid, there.fsid);
            assert_eq!(d, c.mount(mnt.join(dir).to_str().unwrap()).unwrap());
        }
        let (e, _) = c.walk(&root, "d/e").unwrap();
        assert_eq!(names(&mut c, &root), [".", "..", "d", "f", "photos"]);
        assert_eq!(names(&mut c, &e), [".", "..", "deep"]);
        // Who takes the directory away takes the mount away.
        assert_eq!(c.rmdir(&root, "photos"), Err(ACCES));
        assert_eq!(c.rename((&e, "deep"), (&e, "other")), Err(ACCES));
        // Nor can the directory be removed, or replaced, in which something is mounted: in a view that has no name on the disk.
        let (d, _) = c.walk(&root, "d").unwrap();
        c.mkdir(&root, "empty", 0o755).unwrap();
        let wanted = if view.ends_with("on") {
            ACCES
        } else {
            NOTEMPTY
        };
        assert_eq!(c.rmdir(&d, "e"), Err(wanted), "{view}");
        assert_eq!(c.rename((&root, "empty"), (&d, "e")), Err(wanted), "{view}");
        c.rmdir(&root, "empty").unwrap();
        assert_eq!(rig.get("mounted", "tank/photos"), "yes");
        assert!(mnt.join("photos/old/f").exists() && mnt.join("d/e/deep/f").exists());
        // What is not shared is not there, nor is what lies in it.
        rig.zfs(&["set", "sharenfs=off", "tank/photos"]);
        assert_eq!(c.walk(&root, "photos/f"), Err(NOENT));
        assert_eq!(c.walk(&root, "photos/old"), Err(NOENT));
        rig.zfs(&["inherit", "sharenfs", "tank/photos"]);
        rig.zfs(&["destroy", "tank/photos/old"]);
        assert_eq!(c.walk(&root, "photos/old"), Err(NOENT));
        assert!(c.walk(&root, "photos/f").is_ok());
        rig.zpool(&["export", "tank"]);
        rig.stop();
    }
}

/// What both doors write to one file, a block each after the other, is all there, at both.
#[test]
fn one_file_is_written_through_both_doors() {
    let Some((rig, mnt, _, mut c, root)) = tank("nfs-turns") else {
        return;
    };
    let (f, _) = c.create(&root, "f", 0o644, true).unwrap();
    let mut dice = Dice::new(8);
    let mut model = vec![0; 1 << 20];
    let here = File::options()
        .read(true)
        .write(true)
        .open(mnt.join("f"))
        .unwrap();
    for n in 0..200 * number("ZFS_FUSE_TEST_SCALE", 1) {
        let len = 1 + dice.below(60_000) as usize;
        let at = dice.below((model.len() - len) as u64) as usize;
        let data = dice.bytes(len);
        match n % 2 {
            0 => here.write_all_at(&data, at as u64).unwrap(),
            _ => assert_eq!(c.write(&f, at as u64, &data, 0).unwrap().0, len as u32),
        }
        model[at..at + len].copy_from_slice(&data);
        if dice.below(4) == 0 {
            let at = dice.below(model.len() as u64 - 1000) as usize;
            let mut got = vec![0; 1000];
            let n = here.read_at(&mut got, at as u64).unwrap();
            assert_eq!(got[..n], model[at..at + n], "here, at {at}");
            let (got, _) = c.read(&f, at as u64, 1000).unwrap();
            assert_eq!(got[..], model[at..at + got.len()], "there, at {at}");
        }
    }
    let got = c.read_all(&f).unwrap();
    assert!(got[..] == model[..got.len()]);
    assert!(fs::read(mnt.join("f")).unwrap() == got);
    drop(here);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn what_was_acknowledged_as_stable_survives_a_kill() {
    let Some((mut rig, mnt, at, mut c, root)) = tank("nfs-kill") else {
        return;
    };
    let mut dice = Dice::new(4);
    for round in 0..number("ZFS_FUSE_TEST_KILLS", 3).min(6) {
        // Files with what is stable of them.
        let mut files: Vec<(String, Vec<u8>, Vec<u8>)> = Vec::new();
        let dir = c.mkdir(&root, &format!("d{round}"), 0o755).unwrap().0;
        let mut verifier = None;
        for n in 0..30 {
            let name = format!("f{n}");
            let (f, _) = c.create(&dir, &name, 0o600, true).unwrap();
            let len = 1 + dice.below(200_000) as usize;
            let data = dice.bytes(len);
            let stable = n % 3 == 0;
            let (_, how, v) = c.write(&f, 0, &data, if stable { 2 } else { 0 }).unwrap();
            assert_eq!(how, if stable { 2 } else { 0 });
            assert_eq!(*verifier.get_or_insert(v), v);
            if !stable {
                assert_eq!(c.commit(&f), Ok(v));
            }
            let name = match n % 5 {
                0 => {
                    c.rename((&dir, &name), (&dir, &format!("g{n}"))).unwrap();
                    format!("g{n}")
                }
                _ => name,
            };
            files.push((name, f, data));
        }
        c.remove(&dir, &files.pop().unwrap().0).unwrap();
        c.setattr(&files[1].1, Some(0o640), Some(10), None).unwrap();
        files[1].2.resize(10, 0);
        let lost = c.create(&dir, "unstable", 0o600, true).unwrap().0;
        c.write(&lost, 0, b"not committed", 0).unwrap();
        rig.kill();
        rig.start();
        c = client(at);
        assert_eq!(
            c.mount(mnt.to_str().unwrap()).as_ref(),
            Ok(&root),
            "the handle is the same"
        );
        for (name, f, data) in &files {
            assert!(c.read_all(f).unwrap() == *data, "round {round}: {name}");
            assert_eq!(c.lookup(&dir, name).unwrap().0, *f);
        }
        assert_eq!(c.getattr(&files[1].1).unwrap().mode, 0o640);
        assert_eq!(c.lookup(&dir, "f29"), Err(NOENT));
        let other = c.commit(&lost).unwrap();
        assert_ne!(Some(other), verifier, "the client is to send again");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A daemon that is stopped in order answers nobody with what is not true a moment later.
#[test]
fn clients_go_on_after_a_restart() {
    let Some((mut rig, _, at, mut c, root)) = tank("nfs-restart") else {
        return;
    };
    let (f, _) = c.create(&root, "f", 0o600, true).unwrap();
    c.write(&f, 0, b"then", 2).unwrap();
    rig.zfs(&["snapshot", "tank@s"]);
    let (old, _) = c.walk(&root, ".zfs/snapshot/s/f").unwrap();
    let (dir, _) = c.walk(&root, ".zfs/snapshot").unwrap();
    let stop = std::thread::spawn(move || {
        let mut calls = 0;
        // Until nobody answers.
        loop {
            let message = c.message(testkit::nfs::NFS, 1, &Args::new().bytes(&f));
            let reply = c.to.exchange(&message);
            match c.results(reply) {
                Ok(mut r) => assert_eq!(r.u32(), 0, "after {calls} calls"),
                Err(_) => return (f, calls),
            }
            calls += 1;
        }
    });
    rig.stop();
    let (f, _) = stop.join().unwrap();
    rig.start();
    assert!(client(at).getattr(&f).is_ok());
    assert_eq!(client(at).read_all(&old).unwrap(), b"then");
    assert!(client(at).lookup(&dir, "s").is_ok());
    rig.zfs(&["destroy", "tank@s"]);
    assert_eq!(client(at).getattr(&old), Err(STALE));
}

#[test]
fn handles_after_a_rollback_an_unmount_and_a_destroy() {
    let Some((rig, mnt, at, mut c, _)) = tank("nfs-stale") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    let path = mnt.join("a");
    let path = path.to_str().unwrap();
    let root = c.mount(path).unwrap();
    let (f, _) = c.create(&root, "f", 0o644, true).unwrap();
    c.write(&f, 0, b"old", 2).unwrap();
    rig.zfs(&["snapshot", "tank/a@s"]);
    c.write(&f, 0, b"newer", 2).unwrap();
    let (g, _) = c.create(&root, "g", 0o644, true).unwrap();
    let (old, _) = c.walk(&root, ".zfs/snapshot/s/f").unwrap();
    assert_eq!(c.read_all(&old).unwrap(), b"old");
    assert_eq!(c.write(&old, 0, b"x", 0), Err(ROFS));
    rig.zfs(&["rollback", "tank/a@s"]);
    assert_eq!(c.read_all(&f).unwrap(), b"old");
    assert_eq!(c.getattr(&g), Err(STALE));
    assert_eq!(c.lookup(&root, "g"), Err(NOENT));
    // A snapshot, of which the handle goes on through a restart of nothing but its own.
    rig.zfs(&["unmount", "tank/a"]);
    assert_eq!(c.getattr(&f), Err(STALE));
    assert_eq!(c.mount(path), Err(ACCES));
    rig.zfs(&["mount", "tank/a"]);
    assert_eq!(c.read_all(&f).unwrap(), b"old");
    assert_eq!(c.read_all(&old).unwrap(), b"old");
    rig.zfs(&["rename", "tank/a", "tank/b"]);
    assert_eq!(c.read_all(&f).unwrap(), b"old", "renamed");
    assert_eq!(c.mount(path), Err(ACCES));
    rig.zfs(&["destroy", "tank/b@s"]);
    assert_eq!(c.getattr(&old), Err(STALE));
    rig.zfs(&["destroy", "tank/b"]);
    assert_eq!(c.getattr(&f), Err(STALE));
    // Its objects may be another file system's now.
    rig.zfs(&["create", "tank/a"]);
    fs::write(mnt.join("a/f"), "other").unwrap();
    assert_eq!(c.getattr(&f), Err(STALE));
    rig.zpool(&["export", "tank"]);
    assert_eq!(client(at).mount(path), Err(ACCES));
    let disks = rig.disks();
    rig.zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    assert!(client(at).mount(path).is_ok(), "shared at import");
}

/// Both halves of a pool that was split have datasets of the same guids.
#[test]
fn handles_lead_into_their_own_half_of_a_split_pool() {
    let Some((mut rig, at)) = rig("nfs-split") else {
        return;
    };
    let (d0, d1) = (rig.image("d0", 128 << 20), rig.image("d1", 128 << 20));
    let mnt = rig.mnt().join("tank");
    let (place, alt) = (mnt.to_str().unwrap(), rig.path().join("alt"));
    rig.start();
    rig.zpool(&[
        "create", "-O", SHARED, "-m", place, "tank", "mirror", &d0, &d1,
    ]);
    let mut c = client(at);
    let root = c.mount(place).unwrap();
    let (f, a) = c.create(&root, "f", 0o644, true).unwrap();
    c.write(&f, 0, b"both", 2).unwrap();
    // Its name comes before that of the other half.
    rig.zpool(&["split", "-R", alt.to_str().unwrap(), "tank", "half"]);
    let there = format!("{}{place}", alt.display());
    let other = c.mount(&there).unwrap();
    assert_ne!(other, root);
    let (g, b) = c.lookup(&other, "f").unwrap();
    assert_ne!((a.fsid, f.clone()), (b.fsid, g.clone()));
    c.write(&f, 0, b"tank", 2).unwrap();
    c.write(&g, 0, b"half", 2).unwrap();
    assert_eq!(fs::read(mnt.join("f")).unwrap(), b"tank");
    assert_eq!(fs::read(Path::new(&there).join("f")).unwrap(), b"half");
    rig.zpool(&["export", "half"]);
    assert_eq!(c.getattr(&g), Err(STALE));
    assert_eq!(c.read_all(&f).unwrap(), b"tank");
}

#[test]
fn who_is_given_what() {
    let Some((rig, at)) = rig("nfs-shares") else {
        return;
    };
    let (rig, mnt) = rig.with_tank(256 << 20);
    let path = mnt.to_str().unwrap();
    assert_eq!(rig.get("sharenfs", "tank"), "off");
    let list = || {
        client(at)
            .exports()
            .into_iter()
            .map(|e| e.0)
            .collect::<Vec<_>>()
    };
    let set = |value: &str| rig.try_run("zfs", &["set", &format!("sharenfs={value}"), "tank"]);
    let mount = || client(at).mount(path).map(drop);
    assert!(list().is_empty());
    assert_eq!(mount(), Err(ACCES));
    for wrong in [
        "yes",
        "rw,nonsense",
        "rw=10.0.0.0/99",
        "anonuid=me",
        "sec=md5",
    ] {
        let said = set(wrong).fails(1);
        assert!(
            said.contains("'sharenfs' cannot be set to invalid options"),
            "{said}"
        );
    }
    let said = rig.try_run("zfs", &["share", "tank"]).fails(1);
    assert!(said.contains("cannot share 'tank': legacy share"), "{said}");
    // The port of this client is anybody's.
    set("on").ok();
    assert_eq!(
        client(at).exports(),
        [(path.to_string(), vec!["*".to_string()])]
    );
    assert_eq!(mount(), Err(ACCES));
    set("rw,insecure").ok();
    assert_eq!(mount(), Ok(()));
    set("insecure,rw=10.1.2.3:@192.168.0.0/16").ok();
    assert_eq!(mount(), Err(ACCES));
    set("insecure,rw=localhost").ok();
    assert_eq!(mount(), Ok(()));
    // Another daemon's business, refused with words, and no longer shared as before.
    let said = set("insecure,rw=@staff").ok();
    assert!(list().is_empty(), "{said}");
    set("insecure,ro").ok();
    let mut c = client(at);
    let root = c.mount(path).unwrap();
    assert_eq!(c.mkdir(&root, "d", 0o755), Err(ROFS));
    set("insecure,rw").ok();
    // Root is nobody without no_root_squash.
    if is_root() {
        assert_eq!(c.mkdir(&root, "d", 0o755), Err(ACCES));
    }
    fs::create_dir(mnt.join("open")).unwrap();
    fs::set_permissions(mnt.join("open"), PermissionsExt::from_mode(0o777)).unwrap();
    set("insecure,all_squash,anonuid=77,anongid=78").ok();
    let (open, _) = c.lookup(&root, "open").unwrap();
    if is_root() {
        let (_, a) = c.create(&open, "f", 0o600, true).unwrap();
        assert_eq!((a.uid, a.gid), (77, 78));
    }
}

#[test]
fn sharing_by_command_and_by_property() {
    let Some((rig, mnt, at, mut c, root)) = tank("nfs-commands") else {
        return;
    };
    let path = mnt.to_str().unwrap();
    let list = || {
        client(at)
            .exports()
            .into_iter()
            .map(|e| e.0)
            .collect::<Vec<_>>()
    };
    // Those below have it from above; what is not mounted is not shared.
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "-o", "sharenfs=off", "tank/b"]);
    rig.zfs(&["create", "-o", "canmount=noauto", "tank/c"]);
    let a = mnt.join("a").to_str().unwrap().to_string();
    assert_eq!(list(), [path.to_string(), a.clone()]);
    assert_eq!(
        format!("sharenfs={}", rig.get("sharenfs", "tank/a")),
        SHARED
    );
    let said = rig.try_run("zfs", &["share", "tank/c"]).fails(1);
    assert!(
        said.contains("cannot share 'tank/c': filesystem is not mounted"),
        "{said}"
    );
    let said = rig.try_run("zfs", &["share", "tank/a"]).fails(1);
    assert!(
        said.contains("cannot share 'tank/a': filesystem already shared"),
        "{said}"
    );
    rig.zfs(&["unshare", "tank/a"]);
    assert_eq!(list(), [path.to_string()]);
    let said = rig.try_run("zfs", &["unshare", "tank/a"]).fails(1);
    assert!(
        said.contains("cannot unshare 'tank/a': not currently shared"),
        "{said}"
    );
    rig.zfs(&["share", &a]);
    rig.zfs(&["unshare", "-a"]);
    assert!(list().is_empty());
    assert_eq!(c.getattr(&root), Err(STALE));
    rig.zfs(&["share", "-a", "nfs"]);
    assert_eq!(list(), [path.to_string(), a.clone()]);
    rig.zfs(&["inherit", "sharenfs", "tank"]);
    assert!(list().is_empty());
    rig.zfs(&["set", "-u", "sharenfs=on", "tank"]);
    assert!(list().is_empty());
    // A key that is not loaded.
    let key = rig.path().join("key");
    fs::write(&key, "a long enough word\n").unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let options = [
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        &location,
        "-o",
        "sharenfs=rw,insecure",
    ];
    rig.zfs(&[&["create"], &options[..], &["tank/e"]].concat());
    let e = mnt.join("e").to_str().unwrap().to_string();
    assert!(client(at).mount(&e).is_ok());
    rig.zfs(&["unmount", "tank/e"]);
    rig.zfs(&["unload-key", "tank/e"]);
    assert_eq!(client(at).mount(&e), Err(ACCES));
    assert!(!rig.try_run("zfs", &["share", "tank/e"]).status.success());
    rig.zfs(&["share", "-l", "tank/e"]);
    assert!(client(at).mount(&e).is_ok());
}

/// A daemon without a server says so; the property is stored.
#[test]
fn without_a_server_nothing_is_shared() {
    let Some(rig) = Rig::new("nfs-none") else {
        return;
    };
    let (rig, _) = rig.with_tank(128 << 20);
    let said = rig.try_run("zfs", &["set", "sharenfs=on", "tank"]);
    assert!(said.to_string().contains("--nfs-listen"), "{said}");
    assert!(said.status.success());
    assert_eq!(rig.get("sharenfs", "tank"), "on");
    let said = rig.try_run("zfs", &["share", "tank"]).fails(1);
    assert!(said.contains("--nfs-listen"), "{said}");
}

#[test]
fn an_address_that_is_taken_is_refused() {
    let Some((mut rig, at)) = rig("nfs-taken") else {
        return;
    };
    let _taken = TcpListener::bind(at).unwrap();
    let said = rig
        .try_run("zfs-fuse", &["-n", "--nfs-listen", &at.to_string()])
        .fails(1);
    assert!(
        said.contains("cannot listen at") && said.contains("--nfs-listen"),
        "{said}"
    );
    let said = rig
        .try_run("zfs-fuse", &["-n", "--nfs-listen", "somewhere"])
        .fails(2);
    assert!(said.contains("ADDRESS:PORT"), "{said}");
    rig.daemon_options(&[]);
}

/// Bytes that are no calls, crowds of silent clients and such as vanish do no harm.
#[test]
fn clients_that_misbehave() {
    let Some((rig, mnt, at, mut first, root)) = tank("nfs-wrong") else {
        return;
    };
    let (f, _) = first.create(&root, "f", 0o600, true).unwrap();
    // More than there may be at a time: the one that was silent for longest goes for each new one.
    let silent: Vec<TcpStream> = (0..150).map(|_| TcpStream::connect(at).unwrap()).collect();
    let before = rig.memory("VmRSS");
    let mut dice = Dice::new(5);
    for n in 0..200 {
        let mut wrong = TcpStream::connect(at).unwrap();
        let bytes = match n % 4 {
            // A record of two gigabytes, or one that goes on for ever.
            0 => vec![0xff; 100 + n],
            1 => [&0x0000_0004u32.to_be_bytes()[..], &[1; 4]]
                .concat()
                .repeat(300_000),
            2 => dice.bytes(n * 7),
            _ => {
                let message = first.message(testkit::nfs::NFS, 7, &Args(dice.bytes(n)));
                [
                    &(message.len() as u32 | 1 << 31).to_be_bytes()[..],
                    &message,
                ]
                .concat()
            }
        };
        let _ = wrong.write_all(&bytes);
    }
    // In the middle of a write, and after a call whose reply nobody takes.
    for _ in 0..20 {
        let mut gone = client(at);
        let data = Args::new()
            .bytes(&f)
            .u64(0)
            .u32(400_000)
            .u32(2)
            .bytes(&[7; 400_000]);
        let message = gone.message(testkit::nfs::NFS, 7, &data);
        let head = (message.len() as u32 | 1 << 31).to_be_bytes();
        // A crowded server turns clients away, which a client may notice while it writes.
        let _ = gone.to.0.write_all(&[&head, &message[..200_000]].concat());
        let mut gone = client(at);
        let _ = gone.to.send(&message);
    }
    let mut c = client(at);
    assert_eq!(c.mount(mnt.to_str().unwrap()).unwrap(), root);
    assert!(rig.memory("VmRSS") < before + (300 << 20));
    assert_eq!(c.write(&f, 0, b"well", 2).unwrap().0, 4);
    assert_eq!(c.read(&f, 0, 4).unwrap().0, b"well");
    drop(silent);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// A client that waits keeps nothing from being done, and another is served meanwhile.
#[test]
fn several_clients_at_a_time() {
    let Some((_rig, mnt, at, _, root)) = tank("nfs-several") else {
        return;
    };
    let threads: Vec<_> = (0..6)
        .map(|n| {
            let root = root.clone();
            std::thread::spawn(move || {
                let mut c = client(at);
                let (d, _) = c.mkdir(&root, &format!("d{n}"), 0o755).unwrap();
                let mut dice = Dice::new(n);
                for i in 0..40 {
                    let (f, _) = c.create(&d, &format!("f{i}"), 0o644, true).unwrap();
                    let len = 1 + dice.below(100_000) as usize;
                    let data = dice.bytes(len);
                    c.write(&f, 0, &data, 0).unwrap();
                    c.commit(&f).unwrap();
                    assert!(c.read_all(&f).unwrap() == data);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    for n in 0..6 {
        assert_eq!(fs::read_dir(mnt.join(format!("d{n}"))).unwrap().count(), 40);
    }
}

/// A client that somebody else wrote.
#[test]
fn programs_of_libnfs() {
    if !Path::new("/usr/bin/nfs-cp").exists() {
        eprintln!("skipped: programs_of_libnfs needs libnfs-utils (sh tools/setup.sh tests)");
        return;
    }
    let Some((rig, mnt, at, mut c, root)) = tank("nfs-libnfs") else {
        return;
    };
    let port = at.port();
    let url = |name: &str| {
        format!(
            "'nfs://127.0.0.1{}/{name}?version=3&nfsport={port}&mountport={port}'",
            mnt.display()
        )
    };
    let data = rig.path().join("data");
    fs::write(&data, Dice::new(3).bytes(9_000_001)).unwrap();
    rig.sh(&format!("nfs-cp '{}' {}", data.display(), url("copy")));
    assert!(fs::read(mnt.join("copy")).unwrap() == fs::read(&data).unwrap());
    rig.sh(&format!(
        "nfs-cat {} | cmp - '{}'",
        url("copy"),
        data.display()
    ));
    let names: Vec<String> = (0..500).map(|n| format!("name {n}")).collect();
    for n in &names {
        fs::write(mnt.join(n), "").unwrap();
    }
    // A whole file system is mounted, and its root listed.
    let list = rig.sh(&format!("nfs-ls {}", url("").replace("/?", "?")));
    assert_eq!(
        list.lines().filter(|l| l.contains("name ")).count(),
        500,
        "{list}"
    );
    let (f, _) = c.lookup(&root, "copy").unwrap();
    assert_eq!(c.getattr(&f).unwrap().size, 9_000_001);
}

/// A client in Python, which has nothing of C in it.
const PYTHON: &str = r#"
import sys
from pyNfsClient import Mount, NFSv3
from pyNfsClient.const import MNT3_OK, NFS3_OK, UNCHECKED, GUARDED, FILE_SYNC, UNSTABLE

path, port, uid, gid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
auth = {"flavor": 1, "machine_name": "test", "uid": uid, "gid": gid, "aux_gid": []}
mount = Mount("127.0.0.1", port, 30, auth)
mount.connect()
assert mount.null()["status"] == MNT3_OK
res = mount.mnt(path, auth)
assert res["status"] == MNT3_OK, res
root = res["mountinfo"]["fhandle"]
nfs = NFSv3("127.0.0.1", port, 30, auth)
nfs.connect()

def good(res):
    assert res["status"] == NFS3_OK, res
    return res.get("resok")

def handle(res):
    return good(res)["obj"]["handle"]["data"]

nfs.null()
d = handle(nfs.mkdir(root, "d", 0o755))
f = handle(nfs.create(d, "f", UNCHECKED, mode=0o640))
data = "".join(chr(33 + n % 90) for n in range(200000))
for at in range(0, len(data), 50000):
    piece = data[at:at + 50000]
    res = good(nfs.write(f, at, len(piece), piece, UNSTABLE if at else FILE_SYNC))
    assert res["count"] == len(piece), res
good(nfs.commit(f))
back = b"".join(good(nfs.read(f, at, 50000))["data"] for at in range(0, len(data), 50000))
assert back == data.encode(), len(back)
assert nfs.getattr(f)["attributes"]["size"] == len(data)
assert nfs.create(d, "f", GUARDED, mode=0o640)["status"] == 17
good(nfs.symlink(d, "l", "f"))
l = good(nfs.lookup(d, "l"))["object"]["data"]
assert good(nfs.readlink(l))["data"] == b"f"
good(nfs.link(f, d, "g"))
good(nfs.rename(d, "g", root, "h"))
good(nfs.setattr(f, mode=0o600, size=10))
assert nfs.lookup(d, "none")["status"] == 2
names = set()
entry = good(nfs.readdirplus(d))["reply"]["entries"]
while entry:
    names.add(entry[0]["name"])
    entry = entry[0]["nextentry"]
assert names == {b".", b"..", b"f", b"l"}, names
good(nfs.fsstat(root)); good(nfs.fsinfo(root)); good(nfs.pathconf(root)); good(nfs.access(f, 63))
good(nfs.remove(d, "l"))
old = good(nfs.lookup(root, ".zfs"))["object"]["data"]
old = good(nfs.lookup(old, "snapshot"))["object"]["data"]
old = good(nfs.lookup(old, "s"))["object"]["data"]
old = good(nfs.lookup(old, "before"))["object"]["data"]
assert good(nfs.read(old, 0, 100))["data"] == b"before"
assert nfs.write(old, 0, 1, "x", FILE_SYNC)["status"] == 30
print("good")
mount.umnt()
"#;

#[test]
fn a_client_in_python() {
    let library = match testkit::packages::python("pyNfsClient==0.1.5") {
        Ok(folder) => folder,
        Err(e) => {
            eprintln!("skipped: a_client_in_python: {e}");
            return;
        }
    };
    let Some((rig, mnt, at, ..)) = tank("nfs-python") else {
        return;
    };
    fs::write(mnt.join("before"), "before").unwrap();
    rig.zfs(&["snapshot", "tank@s"]);
    let me = fs::metadata("/proc/self").unwrap();
    let [port, uid, gid] = [u32::from(at.port()), me.uid(), me.gid()].map(|n| n.to_string());
    let ran = std::process::Command::new("python3")
        .args(["-c", PYTHON, mnt.to_str().unwrap(), &port, &uid, &gid])
        .env("PYTHONPATH", library)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(said, "good\n", "{}", String::from_utf8_lossy(&ran.stderr));
    let h = fs::metadata(mnt.join("h")).unwrap();
    assert_eq!((h.len(), h.nlink(), h.mode() & 0o777), (10, 2, 0o600));
}
