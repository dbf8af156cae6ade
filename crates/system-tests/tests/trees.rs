//! Files of all kinds on all layouts come back as they were, and OpenZFS finds no fault.

use system_tests::tree::{self, Kinds};
use system_tests::{number, Rig};

const COMPRESSIONS: [&str; 10] = [
    "off",
    "on",
    "lzjb",
    "gzip-1",
    "gzip-9",
    "zle",
    "lz4",
    "zstd",
    "zstd-19",
    "zstd-fast-10",
];
const KINDS: Kinds = Kinds {
    xattrs: true,
    acls: true,
    huge: true,
};

/// A pool with a file system for every compression.
fn check(name: &str, vdevs: &[&str], ashift: u32) {
    let Some(mut rig) = Rig::new(name) else {
        return;
    };
    let count = vdevs.iter().filter(|v| **v == "DISK").count();
    let scale = number("ZFS_FUSE_TEST_SCALE", 1);
    let mut disks = rig.images(count, (192 << 20) * scale).into_iter();
    let words: Vec<String> = vdevs
        .iter()
        .map(|v| {
            if *v == "DISK" {
                disks.next().unwrap()
            } else {
                v.to_string()
            }
        })
        .collect();
    let mnt = rig.mnt();
    let ashift = format!("ashift={ashift}");
    rig.start();
    let mut args = vec![
        "create",
        "-o",
        &ashift,
        "-O",
        "acltype=posix",
        "-O",
        "xattr=sa",
    ];
    args.extend(["-m", mnt.to_str().unwrap(), "tank"]);
    args.extend(words.iter().map(String::as_str));
    rig.zpool(&args);
    let files = 120 * scale;
    for (n, c) in COMPRESSIONS.iter().enumerate() {
        let set = format!("tank/{c}");
        let mut args = vec![
            "create".to_string(),
            "-o".into(),
            format!("compression={c}"),
        ];
        let more = [
            "recordsize=4K",
            "xattr=dir",
            "dnodesize=auto",
            "recordsize=1M",
            "checksum=sha256",
            "copies=2",
            "atime=off",
        ];
        if let Some(m) = more.get(n) {
            args.extend(["-o".into(), m.to_string()]);
        }
        args.push(set.clone());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        rig.zfs(&args);
        tree::write(&mnt.join(c), files, n as u64 + 1, KINDS)
            .unwrap_or_else(|e| panic!("{set}: {e}"));
    }
    let before = tree::describe(&mnt).unwrap();
    assert!(before.len() as u64 > files * 8);
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    tree::assert_same(&before, &tree::describe(&mnt).unwrap(), "after import");
    assert!(
        rig.get("compressratio", "tank/zstd")
            .parse::<f64>()
            .unwrap()
            > 1.2
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.stop();
}

#[test]
fn one_disk_512() {
    check("one-9", &["DISK"], 9);
}

#[test]
fn stripe_4096() {
    check("stripe-12", &["DISK", "DISK"], 12);
}

#[test]
fn mirror_512() {
    check("mirror-9", &["mirror", "DISK", "DISK"], 9);
}

#[test]
fn mirrors_4096() {
    check("mirror-12", &["mirror", "DISK", "DISK", "DISK"], 12);
}

#[test]
fn raidz1_512() {
    check("raidz1-9", &["raidz1", "DISK", "DISK", "DISK"], 9);
}

#[test]
fn raidz1_4096() {
    check("raidz1-12", &["raidz", "DISK", "DISK", "DISK", "DISK"], 12);
}

#[test]
fn raidz2_512() {
    check("raidz2-9", &["raidz2", "DISK", "DISK", "DISK", "DISK"], 9);
}

#[test]
fn raidz2_4096() {
    check(
        "raidz2-12",
        &["raidz2", "DISK", "DISK", "DISK", "DISK", "DISK"],
        12,
    );
}

#[test]
fn raidz3_512() {
    check(
        "raidz3-9",
        &["raidz3", "DISK", "DISK", "DISK", "DISK", "DISK"],
        9,
    );
}

#[test]
fn raidz3_4096() {
    check(
        "raidz3-12",
        &["raidz3", "DISK", "DISK", "DISK", "DISK", "DISK", "DISK"],
        12,
    );
}
