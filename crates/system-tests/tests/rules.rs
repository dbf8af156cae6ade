//! Rules of OpenZFS's commands that are easy to get wrong, as its test suite states them.

use std::path::Path;
use system_tests::Rig;

/// A daemon with a pool `tank` on one image, mounted at the place for mounts.
fn tank(name: &str) -> Option<(Rig, String)> {
    let mut rig = Rig::as_root(name)?;
    let disk = rig.image("d0", 128 << 20);
    rig.start();
    let at = rig.mnt().to_str().unwrap().to_string();
    rig.zpool(&["create", "-m", &at, "tank", &disk]);
    Some((rig, disk))
}

fn feature(rig: &Rig, name: &str) -> String {
    let name = format!("feature@{name}");
    let text = rig.zpool(&["get", "-Ho", "value", &name, "tank"]);
    text.trim().to_string()
}

#[test]
fn setting_a_mountpoint_mounts_what_is_not_mounted() {
    let Some((mut rig, _)) = tank("set-mounts") else {
        return;
    };
    rig.zfs(&["create", "tank/a"]);
    rig.zfs(&["create", "tank/a/below"]);
    rig.zfs(&["create", "-o", "canmount=noauto", "tank/a/noauto"]);
    rig.zfs(&["unmount", "tank/a"]);
    let place = rig.mnt().join("elsewhere");
    let set = format!("mountpoint={}", place.display());
    rig.zfs(&["set", "-u", &set, "tank/a"]);
    assert_eq!(rig.get("mounted", "tank/a"), "no");
    rig.zfs(&["set", &set, "tank/a"]);
    assert_eq!(rig.get("mounted", "tank/a"), "yes");
    assert_eq!(rig.get("mounted", "tank/a/below"), "yes");
    assert_eq!(rig.get("mounted", "tank/a/noauto"), "no");
    rig.sh(&format!("findmnt {}/below", place.display()));
    // What nobody is to mount stays unmounted.
    rig.zfs(&["unmount", "tank/a"]);
    rig.zfs(&["set", "canmount=off", "tank/a"]);
    rig.zfs(&["set", &set, "tank/a"]);
    assert_eq!(rig.get("mounted", "tank/a"), "no");
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn zstd_is_active_as_long_as_a_file_system_has_had_it_set() {
    let Some((mut rig, _)) = tank("zstd") else {
        return;
    };
    assert_eq!(feature(&rig, "zstd_compress"), "enabled");
    rig.zfs(&["create", "-o", "compression=zstd-3", "tank/made"]);
    assert_eq!(feature(&rig, "zstd_compress"), "active");
    rig.zfs(&["create", "tank/set"]);
    rig.zfs(&["set", "compression=zstd", "tank/set"]);
    rig.zfs(&["destroy", "tank/made"]);
    assert_eq!(feature(&rig, "zstd_compress"), "active");
    rig.zfs(&["destroy", "tank/set"]);
    assert_eq!(feature(&rig, "zstd_compress"), "enabled");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn unencrypted_file_system_can_move_below_an_encrypted_one() {
    let Some((mut rig, _)) = tank("moves") else {
        return;
    };
    rig.sh(
        "echo password | zfs create -o encryption=on -o keyformat=passphrase tank/secret
         zfs create tank/plain
         zfs rename tank/plain tank/secret/plain",
    );
    assert_eq!(rig.get("encryption", "tank/secret/plain"), "off");
    std::fs::write(rig.mnt().join("secret/plain/file"), "text").unwrap();
    // The other way round what inherits its key stays where the key is.
    rig.zfs(&["create", "tank/secret/child"]);
    rig.try_run("zfs", &["rename", "tank/secret/child", "tank/child"])
        .fails(1);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn quotas_of_owners_can_be_given_at_creation() {
    let Some(mut rig) = Rig::as_root("quotas-new") else {
        return;
    };
    let disk = rig.image("d0", 128 << 20);
    rig.start();
    let at = rig.mnt().to_str().unwrap().to_string();
    rig.zpool(&["create", "-m", &at, "-O", "userquota@7=3M", "tank", &disk]);
    assert_eq!(rig.get("userquota@7", "tank"), (3 << 20).to_string());
    rig.zfs(&[
        "create",
        "-o",
        "userquota@8=1M",
        "-o",
        "groupobjquota@9=5",
        "-o",
        "projectquota@10=2M",
        "tank/fs",
    ]);
    assert_eq!(rig.get("userquota@8", "tank/fs"), (1 << 20).to_string());
    assert_eq!(rig.get("groupobjquota@9", "tank/fs"), "5");
    assert_eq!(rig.get("projectquota@10", "tank/fs"), (2 << 20).to_string());
    // They hold from the first file.
    rig.sh(&format!(
        "cd {at}/fs
         for i in 1 2 3 4 5; do : >$i; chgrp 9 $i; done; zpool sync
         : >6; fails chgrp 9 6"
    ));
    let old = rig.try_run(
        "zfs",
        &[
            "create",
            "-o",
            "version=3",
            "-o",
            "userquota@8=1M",
            "tank/old",
        ],
    );
    assert!(old.fails(1).contains("upgraded"));
    rig.try_run("zfs", &["list", "tank/old"]).fails(1);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn import_by_cache_file_finds_devices_renamed_in_their_folder() {
    let Some(mut rig) = Rig::as_root("renamed") else {
        return;
    };
    let disks = rig.images(3, 64 << 20);
    rig.start();
    let (at, kept) = (rig.mnt(), rig.path().join("kept.cache"));
    let (at, kept) = (at.to_str().unwrap(), kept.to_str().unwrap());
    rig.zpool(&["create", "-m", at, "tank", "mirror", &disks[0], &disks[1]]);
    rig.zpool(&["create", "-m", "none", "other", &disks[2]]);
    rig.sh(&format!("cp $ZFS_FUSE_CACHE {kept}"));
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["destroy", "other"]);
    // Not among those of the cache file, though in the folder.
    rig.zpool(&["create", "-f", "-m", "none", "third", &disks[2]]);
    rig.zpool(&["export", "third"]);
    for d in &disks[..2] {
        std::fs::rename(d, format!("{d}-new")).unwrap();
    }
    let listed = rig.zpool(&["import", "-c", kept]);
    assert!(
        listed.contains("tank") && !listed.contains("third"),
        "{listed}"
    );
    rig.zpool(&["import", "-c", kept, "tank"]);
    let status = rig.zpool(&["status", "-P", "tank"]);
    assert!(status.contains(&format!("{}-new", disks[1])), "{status}");
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn import_says_what_is_wrong_with_a_pool_in_service_and_with_read_only_files() {
    let Some((mut rig, disk)) = tank("import-says") else {
        return;
    };
    let dir = rig.disks().to_str().unwrap().to_string();
    let guid = rig.zpool(&["get", "-Hpo", "value", "guid", "tank"]);
    for name in ["tank", guid.trim()] {
        let said = rig.try_run("zpool", &["import", "-d", &dir, name]);
        assert!(said.fails(1).contains("already created/imported"));
    }
    rig.zpool(&["export", "tank"]);
    let view = rig.path().join("view");
    std::fs::create_dir(&view).unwrap();
    let view = view.to_str().unwrap().to_string();
    rig.sh(&format!(
        "mount --bind {dir} {view}; mount -o remount,bind,ro {view}"
    ));
    let said = rig.try_run("zpool", &["import", "-d", &view, "tank"]);
    let imported = rig.try_run(
        "zpool",
        &["import", "-d", &view, "-o", "readonly=on", "tank"],
    );
    rig.try_run("zpool", &["export", "tank"]);
    rig.sh(&format!("umount {view}"));
    let why = said.fails(1);
    assert!(
        why.contains("read only") && why.contains("-o readonly=on"),
        "{why}"
    );
    assert!(why.contains(disk.rsplit('/').next().unwrap()), "{why}");
    imported.ok();
    rig.stop();
}

#[test]
fn devices_and_sockets_can_be_named_relative_to_the_current_directory() {
    let Some(mut rig) = Rig::as_root("relative") else {
        return;
    };
    let disk = rig.image("d0", 64 << 20);
    rig.start();
    let (dir, at) = (rig.disks(), rig.mnt());
    let (dir, at) = (dir.to_str().unwrap(), at.to_str().unwrap());
    rig.sh(&format!("cd {dir}; zpool create -m {at} tank ./d0"));
    assert!(rig.zpool(&["status", "-P", "tank"]).contains(&disk));
    rig.zpool(&["destroy", "tank"]);
    rig.sh(&format!("cd {at}; zpool create -m none tank ../disks/d0"));
    assert!(rig.zpool(&["status", "-P", "tank"]).contains(&disk));
    // A daemon in the background leaves the directory.
    rig.sh(&format!(
        "cd {dir}
         export ZFS_FUSE_SOCKET=own.sock ZFS_FUSE_CACHE=own.cache
         zfs-fuse -p {dir}/own.pid
         test \"$(zpool list)\" = 'no pools available'
         test -S {dir}/own.sock
         kill $(cat {dir}/own.pid)"
    ));
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

/// The greatest txg of the uberblocks on a disk.
fn txg(rig: &Rig, disk: &str) -> u64 {
    let text = rig.try_run("zdb", &["-lu", disk]).ok();
    let lines = text.lines().filter_map(|l| l.trim().strip_prefix("txg = "));
    lines
        .filter_map(|n| n.parse().ok())
        .max()
        .expect("an uberblock")
}

#[test]
fn sync_by_force_writes_an_uberblock_though_nothing_changed() {
    let Some((mut rig, disk)) = tank("sync-f") else {
        return;
    };
    for arguments in [&["sync", "-f", "tank"][..], &["sync", "-f"]] {
        rig.zpool(&["sync"]);
        let before = txg(&rig, &disk);
        rig.zpool(arguments);
        assert!(txg(&rig, &disk) > before);
    }
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn export_that_keeps_the_pool_active_is_undone_by_a_restart() {
    let Some((mut rig, disk)) = tank("export-hard") else {
        return;
    };
    std::fs::write(rig.mnt().join("file"), "text").unwrap();
    rig.zpool(&["export", "-F", "tank"]);
    let label = rig.try_run("zdb", &["-l", &disk]).ok();
    assert!(label.contains("state: 0"), "{label}");
    assert!(!rig.zpool(&["list", "-Ho", "name"]).contains("tank"));
    rig.stop();
    rig.start();
    assert_eq!(std::fs::read(rig.mnt().join("file")).unwrap(), b"text");
    rig.zpool(&["export", "tank"]);
    let label = rig.try_run("zdb", &["-l", &disk]).ok();
    assert!(label.contains("state: 1"), "{label}");
    rig.stop();
}

#[test]
fn several_file_systems_are_mounted_with_what_is_below_them() {
    let Some((mut rig, _)) = tank("mount-R") else {
        return;
    };
    for fs in ["a", "a/x", "b", "b/y", "c"] {
        rig.zfs(&["create", &format!("tank/{fs}")]);
    }
    rig.zfs(&["unmount", "-a"]);
    let said = rig.try_run("zfs", &["mount", "-R", "tank/a", "tank/none", "tank/b/y"]);
    assert!(said.fails(1).contains("tank/none"));
    let mounted = |fs: &str| rig.get("mounted", &format!("tank/{fs}"));
    for (fs, want) in [
        ("a", "yes"),
        ("a/x", "yes"),
        ("b", "no"),
        ("b/y", "yes"),
        ("c", "no"),
    ] {
        assert_eq!(mounted(fs), want, "{fs}");
    }
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn alternate_root_can_be_given_as_a_property() {
    let Some(mut rig) = Rig::as_root("altroot") else {
        return;
    };
    let disk = rig.image("d0", 64 << 20);
    rig.start();
    let root = rig.mnt().to_str().unwrap().to_string();
    let altroot = format!("altroot={root}");
    rig.zpool(&["create", "-o", &altroot, "tank", &disk]);
    let get = |p: &str| rig.zpool(&["get", "-Ho", "value", p, "tank"]);
    assert_eq!(get("altroot").trim(), root);
    assert_eq!(get("cachefile").trim(), "none");
    assert!(Path::new(&root).join("tank").is_dir());
    let twice = ["create", "-R", &root, "-o", &altroot, "two", "/dev/null"];
    assert!(rig
        .try_run("zpool", &twice)
        .fails(1)
        .contains("multiple times"));
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn names_of_properties_are_in_lower_case() {
    let Some((mut rig, _)) = tank("case") else {
        return;
    };
    for (tool, arguments) in [
        ("zfs", ["set", "ATIME=off", "tank"]),
        ("zfs", ["get", "Compression", "tank"]),
        ("zfs", ["set", "Recsize=4K", "tank"]),
        ("zpool", ["get", "Health", "tank"]),
        ("zpool", ["set", "Comment=x", "tank"]),
    ] {
        let said = rig.try_run(tool, &arguments);
        assert_ne!(said.status.code(), Some(0), "{said}");
    }
    // Column headings are names, too.
    rig.zfs(&["set", "recsize=4K", "tank"]);
    assert_eq!(rig.get("compress", "tank"), rig.get("compression", "tank"));
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

/// No daemon is needed for it.
#[test]
fn help_letters_after_a_subcommand_exit_with_2() {
    let Some(rig) = Rig::new("help") else {
        return;
    };
    let run = |tool: &str, arguments: &[&str]| {
        let said = rig.try_run(tool, arguments);
        (said.status.code(), said.out, said.err)
    };
    for (tool, sub) in [("zpool", "list"), ("zfs", "create")] {
        for letter in ["-h", "-?"] {
            let (code, out, err) = run(tool, &[sub, letter]);
            assert_eq!((code, out.as_str()), (Some(2), ""), "{tool} {sub} {letter}");
            assert!(err.contains(sub), "{err}");
        }
        let (code, out, _) = run(tool, &[sub, "--help"]);
        assert!(code == Some(0) && out.contains(sub), "{out}");
        assert_eq!(run(tool, &["-h"]).0, Some(0));
    }
}

#[test]
fn read_only_pool_is_not_cleared_but_can_be_destroyed() {
    let Some((mut rig, disk)) = tank("read-only") else {
        return;
    };
    rig.zpool(&["export", "tank"]);
    let dir = rig.disks().to_str().unwrap().to_string();
    rig.zpool(&["import", "-d", &dir, "-o", "readonly=on", "tank"]);
    for arguments in [&["clear", "tank"][..], &["clear", "tank", &disk]] {
        assert!(rig
            .try_run("zpool", arguments)
            .fails(1)
            .contains("read-only"));
    }
    let before = std::fs::read(&disk).unwrap();
    rig.zpool(&["destroy", "tank"]);
    assert!(!rig.zpool(&["list", "-Ho", "name"]).contains("tank"));
    assert!(
        std::fs::read(&disk).unwrap() == before,
        "the disk was written"
    );
    rig.zpool(&["import", "-d", &dir, "tank"]);
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn an_upgrade_names_the_features_it_does_not_enable() {
    let Some((mut rig, _)) = tank("upgrade") else {
        return;
    };
    // Those that a new pool lacks and that can be enabled: two are only read.
    let read_only = ["dynamic_gang_header", "draid_failure_domains"];
    for name in read_only {
        let set = format!("feature@{name}=enabled");
        rig.try_run("zpool", &["set", &set, "tank"]).fails(1);
    }
    let all = rig.zpool(&["get", "-Ho", "property,value", "all", "tank"]);
    let lacking: Vec<&str> = all
        .lines()
        .filter_map(|l| l.strip_prefix("feature@")?.strip_suffix("\tdisabled"))
        .filter(|name| !read_only.contains(name))
        .collect();
    assert!(!lacking.is_empty(), "{all}");
    let line = |names: &[&str]| {
        let names = names.join(", ");
        format!("Not requested, so not enabled on 'tank': {names} (")
    };
    for arguments in [["upgrade", "tank"], ["upgrade", "-a"]] {
        let said = rig.zpool(&arguments);
        assert!(said.contains(&line(&lacking)), "{said}");
    }
    let said = rig.zpool(&["upgrade"]);
    for name in &lacking {
        assert!(said.contains(&format!("      {name}(*)\n")), "{said}");
    }
    let set = format!("feature@{}=enabled", lacking[0]);
    rig.zpool(&["set", &set, "tank"]);
    let said = rig.zpool(&["upgrade", "-a"]);
    assert!(said.contains(&line(&lacking[1..])), "{said}");
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

#[test]
fn create_with_p_takes_only_what_is_of_the_kind_asked_for() {
    let Some((rig, _)) = tank("create-p") else {
        return;
    };
    rig.zfs(&["create", "tank/fs"]);
    rig.zfs(&["create", "-s", "-V", "1M", "tank/vol"]);
    rig.zfs(&["create", "-p", "tank"]);
    rig.zfs(&["create", "-p", "tank/fs"]);
    rig.zfs(&["create", "-p", "-V", "1M", "tank/vol"]);
    for args in [
        &["create", "-p", "tank/vol"][..],
        &["create", "-p", "-V", "1M", "tank/fs"],
        &["create", "-p", "-V", "1M", "tank"],
    ] {
        rig.try_run("zfs", args).fails(1);
    }
}

#[test]
fn create_with_n_needs_no_space() {
    let Some((rig, _)) = tank("create-n") else {
        return;
    };
    assert_eq!(rig.zfs(&["create", "-n", "-V", "100T", "tank/v"]), "");
    let said = rig.zfs(&["create", "-nP", "-s", "-b", "4k", "-V", "1M", "tank/v"]);
    assert_eq!(
        said,
        "create\ttank/v\nproperty\tvolblocksize\t4096\nproperty\tvolsize\t1048576\n"
    );
}

#[test]
fn a_pool_is_imported_by_its_number_with_its_own_name_or_a_new_one() {
    let Some((rig, disk)) = tank("import-by-number") else {
        return;
    };
    let place = rig.disks();
    let place = place.to_str().unwrap();
    let guid = rig.zpool(&["get", "-Hp", "-o", "value", "guid", "tank"]);
    let guid = guid.trim();
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", place, guid]);
    let names = || rig.zpool(&["list", "-H", "-o", "name"]);
    assert_eq!(names(), "tank\n");
    rig.zpool(&["export", "tank"]);
    let said = rig.try_run("zpool", &["import", "-d", place, guid, "9th"]);
    let said = said.fails(1);
    assert!(
        said.contains("cannot import '9th': name must begin with a letter"),
        "{said}"
    );
    rig.zpool(&["import", "-d", &disk, guid, "other"]);
    assert_eq!(names(), "other\n");
    rig.zpool(&["export", "other"]);
}
