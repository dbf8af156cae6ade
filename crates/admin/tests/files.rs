//! Files are read without a door, with the rights of the caller.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::{Commands, ROOT};
use admin::datasets::{destroy, files, mount, permissions, rights, snapshots};
use admin::pools::import;
use admin::{pools, Admin, Answer};
use api::{DatasetDestroy, Delegate, Delegation, FileWanted, Peer, Rollback};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use zpl::{Cred, New, WriteOpts, Zfs, Znode};

const USER: Peer = Peer {
    uid: 1000,
    gid: 1000,
    pid: 7,
};

fn content() -> Vec<u8> {
    (0..300_000u32).flat_map(u32::to_le_bytes).collect()
}

fn make(zfs: &Zfs, dir: &Arc<Znode>, name: &str, mode: u32, data: &[u8]) -> Arc<Znode> {
    let cred = Cred::root();
    let z = zfs
        .create(dir, name.as_bytes(), &New::file(mode, 0), &cred)
        .unwrap();
    if !data.is_empty() {
        zfs.write(&z, 0, data, WriteOpts::default()).unwrap();
    }
    z
}

/// `p/a`: open/file, open/run (which group 50 may read), shut/secret, and a long name.
fn world() -> Arc<Admin> {
    let (env, disks) = env_sim::mem_env(7);
    disks.add("/dev/a", 128 << 20);
    let process = Arc::new(Alone::new(env.clone(), pool::Tunables::default()));
    let door = Arc::new(MemoryDoor::default());
    let admin = Admin::new(env, alone::settings(), door, process);
    pools::create::create(&admin, ROOT, alone::pool_on("p", "/dev/a")).unwrap();
    Commands(admin.clone()).create("p/a", &[]).unwrap();
    let list = [Delegation {
        to: Delegate::User(u64::from(USER.uid)),
        local: false,
        descendent: false,
        permissions: vec!["mount".into()],
    }];
    permissions::allow(&admin, ROOT, "p/a", &list, String::new()).unwrap();
    let all = admin.find("p").unwrap().all_mounts();
    let m = all.iter().find(|m| m.path == Path::new("/p/a")).unwrap();
    let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
    let inside = m.head.enter();
    let (zfs, root) = (&inside.zfs, inside.zfs.root().unwrap());
    let open = make(zfs, &root, "open", 0o40755, b"");
    make(zfs, &open, "file", 0o100644, &content());
    make(zfs, &open, "empty", 0o100600, b"");
    make(zfs, &open, "line\nbreak", 0o100644, b"x");
    make(zfs, &open, &"n".repeat(200), 0o100644, b"long");
    let shut = make(zfs, &root, "shut", 0o40700, b"");
    make(zfs, &shut, "secret", 0o100644, b"secret");
    drop(inside);
    admin
}

fn read(
    admin: &Arc<Admin>,
    peer: Peer,
    name: &str,
    path: &str,
    wanted: FileWanted,
) -> Answer<Vec<u8>> {
    let mut out = Vec::new();
    files::read(admin, peer, name, path.as_bytes(), wanted, &mut out)?;
    Ok(out)
}

#[test]
fn files_are_read_whether_mounted_or_not_and_in_snapshots() {
    let admin = world();
    let root = |name: &str, path: &str| read(&admin, ROOT, name, path, FileWanted::Content);
    // What no txg has yet is seen.
    assert_eq!(root("p/a", "/open/file").unwrap(), content());
    Commands(admin.clone()).snapshot("p/a@s").unwrap();
    mount::unmount(&admin, ROOT, "p/a", false).unwrap();
    for name in ["p/a", "p/a@s"] {
        assert_eq!(root(name, "open//./file").unwrap(), content(), "{name}");
        assert_eq!(root(name, "/shut/secret").unwrap(), b"secret");
        let names = read(&admin, ROOT, name, "/", FileWanted::Names).unwrap();
        assert_eq!(names, b"open\nshut\n");
    }
    let e = root("p/a", "/open/none").unwrap_err();
    assert_eq!(e.code, 2, "{e:?}");
    assert_eq!(e.message, "'/open/none': no such file or directory");
    assert_eq!(root("p/a", "/open").unwrap_err().code, 21);
    let listed = read(&admin, ROOT, "p/a@s", "/open", FileWanted::Details).unwrap();
    let text = String::from_utf8(listed).unwrap();
    assert!(
        text.contains("\n-rw-r--r--   1      0      0      1200000 "),
        "{text}"
    );
    assert!(text.contains(" line\\012break\n"), "{text}");
}

#[test]
fn who_may_not_mount_reads_nothing() {
    let admin = world();
    let other = Peer {
        uid: 1001,
        gid: 50,
        pid: 7,
    };
    for wanted in [FileWanted::Names, FileWanted::Content, FileWanted::Archive] {
        let e = read(&admin, other, "p/a", "/open/file", wanted).unwrap_err();
        assert_eq!(e.code, base::Kind::NotPermitted.errno(), "{e:?}");
    }
}

#[test]
fn a_caller_needs_the_rights_it_would_need_in_a_mount() {
    let admin = world();
    Commands(admin.clone()).snapshot("p/a@s").unwrap();
    for name in ["p/a", "p/a@s"] {
        let user = |path: &str| read(&admin, USER, name, path, FileWanted::Content);
        assert_eq!(user("/open/file").unwrap(), content());
        for path in ["/open/empty", "/shut/secret"] {
            assert_eq!(user(path).unwrap_err().code, 13, "{name} {path}");
        }
        let list = |path: &str| read(&admin, USER, name, path, FileWanted::Names);
        list("/open").unwrap();
        assert_eq!(list("/shut").unwrap_err().code, 13);
    }
    // In the group of the owner.
    let all = admin.find("p").unwrap().all_mounts();
    let m = all.iter().find(|m| m.path == Path::new("/p/a")).unwrap();
    let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
    {
        let inside = m.head.enter();
        let root = inside.zfs.root().unwrap();
        make(&inside.zfs, &root, "group", 0o100640, b"group");
    }
    let group = || read(&admin, USER, "p/a", "/group", FileWanted::Content);
    assert_eq!(group().unwrap_err().code, 13);
    assert_eq!(rights::with_groups(vec![0], group).unwrap(), b"group");
}

/// A POSIX ACL as its extended attribute: tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

#[test]
fn an_acl_counts_without_a_mount_too() {
    const NOBODY: u32 = u32::MAX;
    let admin = world();
    let commands = Commands(admin.clone());
    commands.set("p/a", "acltype", "posix").unwrap();
    let all = admin.find("p").unwrap().all_mounts();
    let m = all.iter().find(|m| m.path == Path::new("/p/a")).unwrap();
    let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
    {
        let inside = m.head.enter();
        let zfs = &inside.zfs;
        let root = zfs.root().unwrap();
        let put = |name: &str, mode: u32, who: (u16, u16, u32), group: u16| {
            let z = make(zfs, &root, name, mode, b"");
            if mode & 0o40000 == 0 {
                zfs.write(&z, 0, b"closed", WriteOpts::default()).unwrap();
            }
            let list = [
                (1, 7, NOBODY),
                who,
                (4, group, NOBODY),
                (0x10, 5, NOBODY),
                (0x20, 5, NOBODY),
            ];
            let name = b"system.posix_acl_access";
            zfs.setxattr(&z, name, &acl(&list), 0, false, &Cred::root())
                .unwrap();
            z
        };
        // Closed to the user, although the mode has bits for everybody.
        put("user", 0o100755, (2, 0, USER.uid), 5);
        // Closed to the owning group: the mode shows the mask in place of it.
        put("group", 0o100755, (2, 5, 1234), 0);
        let dir = put("dir", 0o40755, (2, 0, USER.uid), 5);
        make(zfs, &dir, "file", 0o100644, b"below");
    }
    drop(all);
    commands.snapshot("p/a@s").unwrap();
    let refused = |name: &str| {
        let user = |path: &str| read(&admin, USER, name, path, FileWanted::Content);
        for path in ["/user", "/dir/file"] {
            assert_eq!(user(path).unwrap_err().code, 13, "{name} {path}");
        }
        let of_group = || rights::with_groups(vec![0], || user("/group"));
        assert_eq!(of_group().unwrap_err().code, 13, "{name}");
        assert_eq!(user("/group").unwrap(), b"closed", "{name}");
        let list = read(&admin, USER, name, "/dir", FileWanted::Names);
        assert_eq!(list.unwrap_err().code, 13, "{name}");
    };
    refused("p/a");
    refused("p/a@s");
    mount::unmount(&admin, ROOT, "p/a", false).unwrap();
    refused("p/a");
}

/// Does something when the first bytes come.
struct Meanwhile<F>(Option<F>, usize);

impl<F: FnOnce()> std::io::Write for Meanwhile<F> {
    fn write(&mut self, b: &[u8]) -> std::io::Result<usize> {
        if let Some(work) = self.0.take() {
            work();
        }
        self.1 += b.len();
        Ok(b.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The blocks of a dataset that is gone belong to others.
#[test]
fn what_is_destroyed_or_replaced_meanwhile_is_read_no_further() {
    let take = |name: &'static str, mounted: bool, work: &dyn Fn(&Arc<Admin>)| {
        let admin = world();
        Commands(admin.clone()).snapshot("p/a@s").unwrap();
        if !mounted {
            mount::unmount(&admin, ROOT, "p/a", false).unwrap();
        }
        let mut out = Meanwhile(Some(|| work(&admin)), 0);
        let path = b"/open/file";
        let done = files::read(&admin, ROOT, name, path, FileWanted::Content, &mut out);
        let e = done.unwrap_err();
        assert_eq!(e.code, base::Kind::Stale.errno(), "{name} {e:?}");
        assert_eq!(out.1, 1 << 20, "{name}");
    };
    let destroyed = |name: &'static str| {
        move |admin: &Arc<Admin>| {
            let ask = DatasetDestroy {
                name: name.into(),
                recursive: true,
                ..DatasetDestroy::default()
            };
            destroy::destroy(admin, ROOT, &ask).unwrap();
        }
    };
    let back = |admin: &Arc<Admin>| {
        let ask = Rollback {
            snapshot: "p/a@s".into(),
            ..Rollback::default()
        };
        snapshots::rollback(admin, ROOT, &ask).unwrap();
    };
    take("p/a", false, &destroyed("p/a"));
    take("p/a", true, &destroyed("p/a"));
    take("p/a@s", false, &destroyed("p/a@s"));
    take("p/a", false, &back);
    take("p/a", true, &back);
    // A mount that only goes away replaces nothing.
    let admin = world();
    let away = || drop(mount::unmount(&admin, ROOT, "p/a", false).unwrap());
    let mut out = Meanwhile(Some(away), 0);
    let path = b"/open/file";
    files::read(&admin, ROOT, "p/a", path, FileWanted::Content, &mut out).unwrap();
    assert_eq!(out.1, content().len());
}

#[test]
fn an_export_by_force_ends_what_is_read() {
    let admin = world();
    let entry = admin.find("p").unwrap();
    let mut out = Meanwhile(Some(|| assert!(entry.users.end_all())), 0);
    let path = b"/open/file";
    let done = files::read(&admin, ROOT, "p/a", path, FileWanted::Content, &mut out);
    assert_eq!(done.unwrap_err().code, base::Kind::Interrupted.errno());
    assert_eq!(out.1, 1 << 20);
}

/// Names are in memory until they are written, and anybody who may mount asks for them.
#[test]
fn so_many_names_are_for_the_owner() {
    let admin = world();
    let all = admin.find("p").unwrap().all_mounts();
    let m = all.iter().find(|m| m.path == Path::new("/p/a")).unwrap();
    let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
    let many = 30_000;
    {
        let inside = m.head.enter();
        let root = inside.zfs.root().unwrap();
        let dir = make(&inside.zfs, &root, "many", 0o40755, b"");
        for n in 0..many {
            let name = format!("{n}{}", "n".repeat(245));
            make(&inside.zfs, &dir, &name, 0o100644, b"");
            // Nobody else writes what is new to disk.
            if n % 1000 == 0 {
                admin.find("p").unwrap().pool.sync().unwrap();
            }
        }
    }
    let list = |peer: Peer, wanted| read(&admin, peer, "p/a", "/many", wanted);
    let names = list(ROOT, FileWanted::Names).unwrap();
    assert_eq!(names.iter().filter(|b| **b == b'\n').count(), many);
    for wanted in [FileWanted::Names, FileWanted::Archive] {
        let e = list(USER, wanted).unwrap_err();
        assert_eq!(e.code, base::Kind::ArgTooBig.errno(), "{e:?}");
    }
    assert_eq!(list(USER, FileWanted::Content).unwrap_err().code, 21);
}

#[test]
fn directories_take_no_stack() {
    let admin = world();
    let all = admin.find("p").unwrap().all_mounts();
    let m = all.iter().find(|m| m.path == Path::new("/p/a")).unwrap();
    let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
    {
        let inside = m.head.enter();
        let mut dir = inside.zfs.root().unwrap();
        for _ in 0..900 {
            dir = make(&inside.zfs, &dir, "deep", 0o40755, b"");
        }
        make(&inside.zfs, &dir, "file", 0o100644, b"at the bottom");
    }
    let thread = std::thread::Builder::new().stack_size(512 << 10);
    let archive = std::thread::scope(|s| {
        let work = || read(&admin, ROOT, "p/a", "/deep", FileWanted::Archive);
        thread.spawn_scoped(s, work).unwrap().join().unwrap()
    });
    let text = b"at the bottom";
    assert!(archive.unwrap().windows(text.len()).any(|w| w == text));
}

#[test]
fn archives_are_what_tar_reads() {
    let admin = world();
    let archive = read(&admin, ROOT, "p/a", "/", FileWanted::Archive).unwrap();
    let dir = std::env::temp_dir().join(format!("zfs-tar-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("archive");
    std::fs::write(&file, &archive).unwrap();
    let tar = Command::new("tar")
        .args(["--no-same-owner", "-xf", "archive"])
        .current_dir(&dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
    let there = |path: &str| std::fs::read(dir.join(path)).unwrap();
    let all = [
        there("open/file") == content(),
        there("open/empty").is_empty(),
        there("open/line\nbreak") == b"x",
        there(&format!("open/{}", "n".repeat(200))) == b"long",
        there("shut/secret") == b"secret",
    ];
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(dir.join("shut"))
        .unwrap()
        .permissions()
        .mode();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!((all, mode & 0o7777), ([true; 5], 0o700));
    // What may not be read is left out, and said.
    let mut out = Vec::new();
    let e = files::read(&admin, USER, "p/a", b"/", FileWanted::Archive, &mut out).unwrap_err();
    assert_eq!(e.message, "'/': ./open/empty: permission denied");
    assert_eq!(e.code, 13);
    let has = |text: &[u8]| out.windows(text.len()).any(|w| w == text);
    assert!(has(b"./open/file") && !has(b"secret"));
}

/// As `zfs cat -d` does: without anything in service.
#[test]
fn files_of_a_pool_that_is_not_imported_are_read() {
    let admin = world();
    let commands = Commands(admin.clone());
    let secret = vec![7; 32];
    let ask = api::DatasetCreate {
        name: "p/e".into(),
        props: [("encryption", "on"), ("keyformat", "raw")]
            .map(|(n, v)| (n.to_string(), v.to_string()))
            .into(),
        key: Some(api::Secret::new(secret.clone())),
        ..api::DatasetCreate::default()
    };
    admin::datasets::create::create(&admin, ROOT, &ask).unwrap();
    {
        let all = admin.find("p").unwrap().all_mounts();
        let m = all.iter().find(|m| m.path == Path::new("/p/e")).unwrap();
        let m: &MemoryMount = m.mount.as_any().downcast_ref().unwrap();
        let inside = m.head.enter();
        let root = inside.zfs.root().unwrap();
        make(&inside.zfs, &root, "hidden", 0o100600, &content());
    }
    commands.snapshot("p/a@s").unwrap();
    let env = admin.env.clone();
    pools::leave(&admin, ROOT, "p", pools::Leave::default(), "zpool export p").unwrap();
    let places = ["/dev/a".to_string()];
    let pool = import::open_unimported(&env, &places, "p/a").unwrap();
    let read = |name: &str, path: &str, wanted: FileWanted, key: &[u8]| {
        let mut asked = Vec::new();
        let mut ask = |k: &files::KeyWanted| {
            asked.push((k.root.clone(), k.format));
            Ok(api::Secret::new(key.to_vec()))
        };
        let mut out = Vec::new();
        files::read_unimported(&pool, name, path.as_bytes(), wanted, &mut ask, &mut out)
            .map(|()| (out, asked))
            .map_err(|e| e.message)
    };
    for name in ["p/a", "p/a@s"] {
        let names = read(name, "", FileWanted::Names, b"").unwrap().0;
        assert_eq!(names, b"open\nshut\n", "{name}");
        // Whoever reads the disk reads everything.
        let secret = read(name, "/shut/secret", FileWanted::Content, b"")
            .unwrap()
            .0;
        assert_eq!(secret, b"secret");
    }
    let wrong = read("p/e", "hidden", FileWanted::Content, &[8; 32]).unwrap_err();
    assert!(wrong.contains("Incorrect key"), "{wrong}");
    let (data, asked) = read("p/e", "hidden", FileWanted::Content, &secret).unwrap();
    assert!(data == content());
    assert_eq!(asked, [("p/e".to_string(), "raw")]);
    let none = read("p/none", "", FileWanted::Names, b"").unwrap_err();
    assert!(none.contains("dataset does not exist"), "{none}");
    let lost = read("p/a", "nothing", FileWanted::Names, b"").unwrap_err();
    assert_eq!(lost, "'nothing': no such file or directory");
    for (places, name) in [(&places[..], "q/a"), (&[], "p/a")] {
        let e = import::open_unimported(&env, places, name).map(drop);
        assert_eq!(e.unwrap_err().message, "no such pool available");
    }
}
