//! Nothing is accepted and ignored: every option that is not refused is asked about by the command that
//! takes it, and every property that can be set is obeyed by code, or the manual says that it is only
//! stored.

use cli::daemon_table::ENVIRONMENT;
use cli::props::{Class, Info, DATASET, POOL, VDEV};
use cli::table::{Flag, Tool};
use std::path::Path;

/// A source file below `crates` without its tests.
fn source(path: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let file = crates.join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..end].to_string()
}

/// The files of a subcommand, beside those that all of them share.
fn files(tool: &str, sub: &str) -> &'static [&'static str] {
    match (tool, sub) {
        (_, "create") => &["create.rs"],
        (_, "list") => &["list.rs"],
        ("zpool", "iostat") => &["iostat.rs", "scripts.rs"],
        ("zpool", "status") => &["status.rs", "status/json.rs", "scripts.rs"],
        ("zpool", "import") => &["import.rs"],
        ("zpool", "upgrade") => &["upgrade.rs"],
        ("zpool", "scrub" | "resilver" | "checkpoint") => &["scan.rs"],
        ("zpool", "get" | "set") => &["get.rs"],
        (
            "zpool",
            "add" | "attach" | "detach" | "offline" | "online" | "remove" | "reopen" | "replace",
        ) => &["devices.rs"],
        ("zpool", "events") => &["events.rs"],
        ("zpool", "split") => &["split.rs"],
        ("zpool", "ddtprune" | "prefetch") => &["dedup.rs"],
        ("zpool", "trim" | "initialize") => &["wear.rs"],
        ("zpool", _) => &["manage.rs"],
        ("zfs", "destroy") => &["destroy.rs"],
        ("zfs", "allow" | "unallow") => &["allow.rs"],
        (
            "zfs",
            "snapshot" | "rollback" | "clone" | "promote" | "bookmark" | "hold" | "release",
        ) => &["snapshots.rs"],
        ("zfs", "rename" | "set" | "inherit") => &["change.rs"],
        ("zfs", "receive") => &["receive.rs"],
        ("zfs", "get") => &["get.rs"],
        ("zfs", "load-key" | "unload-key" | "change-key") => &["keys.rs"],
        ("zfs", "mount" | "unmount") => &["mount.rs"],
        ("zfs", "share" | "unshare") => &["share.rs"],
        ("zfs", "diff") => &["diff.rs"],
        ("zfs", "space") => &["space.rs"],
        ("zfs", "upgrade") => &["upgrade.rs"],
        ("zfs", "project") => &["project.rs"],
        ("zfs", "ls" | "cat" | "cp" | "tar") => &["files.rs"],
        ("zfs", "send" | "redact") => &["send.rs"],
        _ => &["look.rs"],
    }
}

fn key(flag: &Flag) -> String {
    match (flag.short, flag.long) {
        (Some(c), _) => c.to_string(),
        (None, long) => long.unwrap_or_default().to_string(),
    }
}

fn asks(text: &str, key: &str) -> bool {
    let calls = ["has", "get", "all"];
    let named = |call: &&str| text.contains(&format!("{call}(\"{key}\")"));
    // Options of which the order counts are taken in turn.
    calls.iter().any(named) || text.contains("in_order()") && text.contains(&format!("\"{key}\""))
}

#[test]
fn every_option_that_is_not_refused_is_looked_at() {
    let mut ignored = Vec::new();
    let tools: [&Tool; 2] = [&cli::zpool_table::ZPOOL, &cli::zfs_table::ZFS];
    for tool in tools {
        let of = |f: &str| source(&format!("{}/src/{f}", tool.name));
        let shared = of("common.rs") + &source("cli/src/run.rs");
        for sub in tool.subs.iter().filter(|s| s.built) {
            let own: String = files(tool.name, sub.name).iter().map(|f| of(f)).collect();
            for flag in sub.flags.iter().filter(|f| f.built) {
                let key = key(flag);
                if !asks(&own, &key) && !asks(&shared, &key) {
                    ignored.push(format!("{} {} {}", tool.name, sub.name, flag.spelled()));
                }
            }
        }
    }
    assert!(ignored.is_empty(), "accepted and ignored: {ignored:#?}");
}

#[test]
fn every_option_of_the_daemon_is_looked_at() {
    let text = source("daemon/src/options.rs");
    for flag in cli::daemon_table::DAEMON.flags {
        let key = key(flag);
        let named = text.contains(&format!("\"{key}\""));
        assert!(named, "zfs-fuse {}: accepted and ignored", flag.spelled());
    }
    // What was read must be used elsewhere, too. Devices are opened with O_DIRECT anyway.
    let users: String = ["requests.rs", "main.rs", "startup.rs"]
        .iter()
        .map(|f| source(&format!("daemon/src/{f}")))
        .collect();
    let fields = text.split_once("pub struct Options {").unwrap().1;
    let fields = fields.split_once("\n}").unwrap().0;
    for line in fields.lines().filter_map(|l| l.trim().strip_prefix("pub ")) {
        let field = line.split(':').next().unwrap();
        if field != "direct_devices" {
            let used = users.contains(&format!(".{field}"));
            assert!(
                used,
                "the daemon reads the option for {field} and ignores it"
            );
        }
    }
}

/// Who obeys a property that can be set.
enum By {
    /// Code in this file, which names the property in quotes.
    Code(&'static str),
    /// Nobody here: the manual says so in these words.
    Nobody(&'static str),
}
use By::{Code, Nobody};

const STORED: &str = "Stored for other systems";
const LINUX: &str = "No effect on Linux";

#[rustfmt::skip]
const DATASETS: &[(&str, By)] = &[
    ("quota", Code("dsl/src/props.rs")),
    ("reservation", Code("dsl/src/props.rs")),
    ("volsize", Code("admin/src/datasets/set.rs")),
    ("volblocksize", Nobody("Block size of a volume")),
    ("recordsize", Code("admin/src/head.rs")),
    ("mountpoint", Code("admin/src/datasets/mount.rs")),
    ("sharenfs", Code("admin/src/shares/mod.rs")),
    ("checksum", Code("pool/src/datasets.rs")),
    ("compression", Code("pool/src/datasets.rs")),
    ("atime", Code("admin/src/head.rs")),
    ("devices", Code("admin/src/mounts.rs")),
    ("exec", Code("admin/src/mounts.rs")),
    ("setuid", Code("admin/src/mounts.rs")),
    ("readonly", Code("admin/src/head.rs")),
    ("zoned", Nobody(STORED)),
    ("snapdir", Code("vfs/src/of_head.rs")),
    ("aclmode", Code("admin/src/head.rs")),
    ("aclinherit", Code("admin/src/head.rs")),
    ("canmount", Code("admin/src/datasets/mount.rs")),
    ("xattr", Code("admin/src/head.rs")),
    ("copies", Code("pool/src/datasets.rs")),
    ("version", Code("admin/src/datasets/create.rs")),
    ("utf8only", Code("zpl/src/zfs.rs")),
    ("normalization", Code("zpl/src/zfs.rs")),
    ("casesensitivity", Code("zpl/src/zfs.rs")),
    ("vscan", Nobody(LINUX)),
    ("nbmand", Nobody(LINUX)),
    ("sharesmb", Code("admin/src/shares/smb.rs")),
    ("refquota", Code("dsl/src/dataset.rs")),
    ("refreservation", Code("dsl/src/dataset.rs")),
    ("primarycache", Code("pool/src/datasets.rs")),
    ("secondarycache", Code("pool/src/datasets.rs")),
    ("logbias", Code("admin/src/head.rs")),
    ("dedup", Code("pool/src/datasets.rs")),
    ("mlslabel", Nobody(LINUX)),
    ("sync", Code("admin/src/head.rs")),
    ("dnodesize", Code("admin/src/head.rs")),
    ("volmode", Code("admin/src/volumes.rs")),
    ("filesystem_limit", Code("dsl/src/limits.rs")),
    ("snapshot_limit", Code("dsl/src/limits.rs")),
    ("snapdev", Code("admin/src/volumes.rs")),
    ("acltype", Code("admin/src/head.rs")),
    ("context", Nobody(STORED)),
    ("fscontext", Nobody(STORED)),
    ("defcontext", Nobody(STORED)),
    ("rootcontext", Nobody(STORED)),
    ("relatime", Code("admin/src/head.rs")),
    ("redundant_metadata", Code("pool/src/datasets.rs")),
    ("overlay", Code("admin/src/mounts.rs")),
    ("encryption", Code("admin/src/datasets/keys.rs")),
    ("keylocation", Code("admin/src/datasets/keys.rs")),
    ("keyformat", Code("admin/src/datasets/keys.rs")),
    ("pbkdf2iters", Code("admin/src/datasets/keys.rs")),
    ("special_small_blocks", Code("pool/src/datasets.rs")),
    ("prefetch", Code("pool/src/datasets.rs")),
    ("volthreading", Nobody(STORED)),
    ("direct", Code("admin/src/head.rs")),
    ("longname", Code("admin/src/head.rs")),
    ("defaultuserquota", Code("zpl/src/quota.rs")),
    ("defaultgroupquota", Code("zpl/src/quota.rs")),
    ("defaultprojectquota", Code("zpl/src/quota.rs")),
    ("defaultuserobjquota", Code("zpl/src/quota.rs")),
    ("defaultgroupobjquota", Code("zpl/src/quota.rs")),
    ("defaultprojectobjquota", Code("zpl/src/quota.rs")),
];

#[rustfmt::skip]
const POOLS: &[(&str, By)] = &[
    ("altroot", Code("admin/src/pools/import.rs")),
    ("version", Code("admin/src/pools/set.rs")),
    ("bootfs", Nobody(STORED)),
    ("delegation", Code("admin/src/datasets/rights.rs")),
    ("autoreplace", Code("admin/src/pools/agent.rs")),
    ("autoexpand", Code("admin/src/pools/agent.rs")),
    ("autotrim", Code("pool/src/wear/auto.rs")),
    // Refused, except for what is done anyway.
    ("multihost", Code("admin/src/pools/set.rs")),
    ("cachefile", Code("admin/src/pools/set.rs")),
    ("failmode", Code("admin/src/pools/set.rs")),
    ("listsnapshots", Code("admin/src/datasets/get.rs")),
    ("readonly", Code("admin/src/pools/import.rs")),
    ("ashift", Code("admin/src/pools/create.rs")),
    ("comment", Code("admin/src/pools/get.rs")),
    ("compatibility", Code("admin/src/pools/upgrade.rs")),
    ("dedup_table_quota", Code("pool/src/lib.rs")),
];

#[rustfmt::skip]
const VDEVS: &[(&str, By)] = &[
    ("comment", Code("admin/src/pools/vdev_props.rs")),
    ("path", Code("admin/src/pools/vdev_props.rs")),
    ("allocating", Code("pool/src/props.rs")),
    ("failfast", Nobody(STORED)),
    // With the sort of errors put in front.
    ("checksum_n", Code("admin/src/pools/vdev_props.rs")),
    ("checksum_t", Code("admin/src/pools/vdev_props.rs")),
    ("io_n", Code("admin/src/pools/vdev_props.rs")),
    ("io_t", Code("admin/src/pools/vdev_props.rs")),
    ("slow_io_n", Code("admin/src/pools/vdev_props.rs")),
    ("slow_io_t", Code("admin/src/pools/vdev_props.rs")),
    ("slow_io_events", Code("admin/src/pools/agent.rs")),
    ("sit_out", Code("admin/src/pools/vdev_props.rs")),
    ("autosit", Code("pool/src/props.rs")),
];

fn check(table: &[Info], readers: &[(&str, By)], wrong: &mut Vec<String>) {
    let settable = |p: &&Info| p.visible && p.class != Class::ReadOnly;
    for p in table.iter().filter(settable) {
        match readers.iter().find(|(name, _)| *name == p.name) {
            None => wrong.push(format!("{}: who obeys it?", p.name)),
            Some((_, Code(file))) if !source(file).contains(&format!("\"{}\"", p.name)) => {
                wrong.push(format!("{}: {file} does not know it", p.name));
            }
            Some((_, Nobody(words))) if !p.help.contains(words) => {
                wrong.push(format!("{}: the manual does not say '{words}'", p.name));
            }
            Some(_) => {}
        }
    }
    for (name, _) in readers {
        if !table.iter().any(|p| p.name == *name) {
            wrong.push(format!("{name} is no property"));
        }
    }
}

#[test]
fn every_property_is_obeyed_or_said_to_be_stored_only() {
    let mut wrong = Vec::new();
    check(DATASET, DATASETS, &mut wrong);
    check(POOL, POOLS, &mut wrong);
    check(VDEV, VDEVS, &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Passed from one process of ours to another.
const OWN_VARIABLES: [&str; 2] = ["ZFS_FUSE_STARTED_BY_COMMAND", "ZFS_FUSE_BACKGROUND"];

#[test]
fn every_environment_variable_is_in_the_manual() {
    let documented = |name: &str| {
        let mut names = ENVIRONMENT.iter().flat_map(|(names, _)| names.split(", "));
        names.any(|n| n == name)
    };
    let mut missing = Vec::new();
    let mut seen = 0;
    for room in [
        "cli",
        "control",
        "daemon",
        "env-linux",
        "fuse",
        "logging",
        "zfs",
        "zpool",
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(room);
        for file in std::fs::read_dir(folder.join("src")).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            if !file.ends_with(".rs") {
                continue;
            }
            let text = source(&format!("{room}/src/{file}"));
            // What is between quotation marks and nothing but such a name.
            for name in text.split('"') {
                let ours = name.starts_with("ZFS_FUSE_") || name.starts_with("ZPOOL_");
                let plain = |c: char| c.is_ascii_uppercase() || c == '_';
                if !ours || !name.chars().all(plain) || OWN_VARIABLES.contains(&name) {
                    continue;
                }
                seen += 1;
                if !documented(name) {
                    missing.push(format!("{name} of {room}/src/{file}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(seen > 10, "{seen}");
}
