//! Cache devices through the programs: blocks that left memory are read from them, whatever happens to them harms nobody, and what
//! is on them is found again; OpenZFS's `zdb` judges headers, logs and the pool.

use api::{PoolGet, Reply, Request, Vdev, VdevClass, VdevState};
use control::Client;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use system_tests::{until, Rig};
use testkit::{or_skip, OpenZfs};

const MIB: u64 = 1 << 20;
/// Bytes of the file that is read.
const FILE: u64 = 48 * MIB;
/// The smallest device whose content is found again after an import.
const PERSISTENT: u64 = 1100 * MIB;

/// The top-level vdevs and cache devices, with their counters.
fn vdevs(rig: &Rig) -> Vec<Vdev> {
    let ask = Request::PoolGet(PoolGet {
        pools: vec!["tank".into()],
        tree: true,
        ..PoolGet::default()
    });
    let mut client = Client::connect_at(rig.socket()).unwrap().unwrap();
    match client.call(&ask).unwrap() {
        Reply::Pools(mut pools) => pools.found.remove(0).tree.unwrap().children,
        other => panic!("{other:?}"),
    }
}

fn cache(rig: &Rig) -> Vdev {
    let mut all = vdevs(rig).into_iter();
    all.rfind(|v| v.class == VdevClass::Cache).unwrap()
}

/// Bytes read from the devices that hold the pool.
fn read_from_pool(rig: &Rig) -> u64 {
    let all = vdevs(rig).into_iter();
    let data = all.filter(|v| v.class != VdevClass::Cache);
    data.map(|v| v.stats.read_bytes).sum()
}

struct Scene {
    rig: Rig,
    mnt: PathBuf,
    cache: String,
}

/// A pool of one disk and a cache device, with a file that is on disk and nowhere in memory.
fn scene(name: &str, size: u64, more: &[&str]) -> Option<Scene> {
    let mut rig = Rig::new(name)?;
    let disk = rig.image("disk", 512 * MIB);
    let cache = rig.image("cache", size);
    let mnt = rig.mnt();
    rig.start();
    let mut args = vec!["create", "-m", mnt.to_str().unwrap()];
    args.extend(more);
    args.extend(["tank", &disk, "cache", &cache]);
    rig.zpool(&args);
    let file = mnt.join("file");
    rig.sh(&format!("head -c {FILE} /dev/urandom > {}", file.display()));
    rig.zpool(&["sync", "tank"]);
    let s = Scene { rig, mnt, cache };
    // The kernel writes the last pages back, and they reach the disk.
    s.forget();
    s.rig.zpool(&["sync", "-f", "tank"]);
    s.forget();
    Some(s)
}

impl Scene {
    fn file(&self) -> PathBuf {
        self.mnt.join("file")
    }

    fn read(&self) -> Vec<u8> {
        fs::read(self.file()).unwrap()
    }

    /// What the kernel has of the file goes.
    fn forget(&self) {
        self.rig.zfs(&["unmount", "tank"]);
        self.rig.zfs(&["mount", "tank"]);
    }

    fn reimport(&self) {
        let disks = self.rig.disks();
        self.rig.zpool(&["export", "tank"]);
        self.rig
            .zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    }

    /// Reads the file, and waits until the cache device has most of it.
    fn warm(&self) -> Vec<u8> {
        let first = self.read();
        until("the cache device has the file", || {
            cache(&self.rig).stats.alloc > FILE * 3 / 4
        });
        self.forget();
        first
    }
}

#[test]
fn what_left_memory_is_read_from_the_cache_device() {
    let Some(s) = scene("l2arc", 256 * MIB, &[]) else {
        return;
    };
    let first = s.warm();
    let (before, pool) = (cache(&s.rig), read_from_pool(&s.rig));
    assert!(before.stats.write_bytes >= FILE * 3 / 4, "{before:?}");
    assert!(s.read() == first);
    let now = cache(&s.rig);
    let served = now.stats.read_bytes - before.stats.read_bytes;
    assert!(
        served > FILE / 2,
        "{served} bytes came from the cache device"
    );
    let missed = read_from_pool(&s.rig) - pool;
    assert!(missed < FILE / 2, "{missed} bytes came from the pool");
    // The commands show it.
    let list = s.rig.zpool(&["list", "-vHp", "tank"]);
    let row = list.lines().find(|l| l.contains("/cache")).unwrap();
    let cells: Vec<&str> = row.trim().split('\t').collect();
    let sizes: Vec<u64> = cells[1..4].iter().map(|c| c.parse().unwrap()).collect();
    assert!(sizes[1] > FILE / 2, "{row}");
    assert!(sizes[1] + sizes[2] <= sizes[0], "{row}");
    let io = s.rig.zpool(&["iostat", "-v", "tank"]);
    assert!(io.contains("cache  "), "{io}");
    s.rig.zpool(&["export", "tank"]);
    s.rig.zdb_check("tank");
}

/// What was on an image before it became a cache device is given back to the host, and `status -t` says so.
#[test]
fn a_new_cache_device_is_trimmed_and_no_command_trims_it() {
    let Some(mut rig) = Rig::new("l2arc-trim") else {
        return;
    };
    let disk = rig.image("disk", 256 * MIB);
    let cache = rig.image("cache", 256 * MIB);
    rig.sh(&format!(
        "dd if=/dev/urandom of={cache} bs=1M count=256 conv=notrunc status=none"
    ));
    let taken = || fs::metadata(&cache).unwrap().blocks() * 512;
    assert!(taken() > 200 * MIB);
    rig.start();
    rig.zpool(&[
        "create",
        "-O",
        "mountpoint=none",
        "tank",
        &disk,
        "cache",
        &cache,
    ]);
    let note = |rig: &Rig| {
        let status = rig.zpool(&["status", "-t", "tank"]);
        let row = status.lines().find(|l| l.contains("/cache"));
        row.unwrap().to_string()
    };
    until("the cache device is trimmed", || {
        note(&rig).contains("(100% trimmed, completed at ")
    });
    assert!(taken() < 32 * MIB, "{}", taken());
    let json = rig.zpool(&["status", "-tj", "tank"]);
    assert!(json.contains("\"trim_state\":\"COMPLETE\""), "{json}");
    let said = rig.try_run("zpool", &["trim", "tank", &cache]).fails(1);
    assert!(said.contains("device is in use as a cache"), "{said}");
    // Where nothing is trimmed by itself, this is not either.
    rig.zpool(&["destroy", "tank"]);
    rig.sh(&format!(
        "dd if=/dev/urandom of={cache} bs=1M count=256 conv=notrunc status=none"
    ));
    rig.zpool(&[
        "create",
        "-f",
        "-o",
        "autotrim=off",
        "-O",
        "mountpoint=none",
        "tank",
        &disk,
        "cache",
        &cache,
    ]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(note(&rig).contains("(untrimmed)"), "{}", note(&rig));
    assert!(taken() > 200 * MIB);
}

/// The names of OpenZFS's `arcstats`, which this software has as properties of the pool.
#[test]
fn hits_and_sizes_of_cache_devices_are_properties_of_the_pool() {
    let Some(s) = scene("l2arc-counters", 256 * MIB, &[]) else {
        return;
    };
    const ALL: &str =
        "l2_hits,l2_misses,l2_read_bytes,l2_write_bytes,l2_asize,l2_hdr_size,l2_cksum_bad";
    let numbers = || -> Vec<u64> {
        let text = s.rig.zpool(&["get", "-Hpo", "value", ALL, "tank"]);
        text.lines().map(|l| l.parse().expect(&text)).collect()
    };
    s.warm();
    let before = numbers();
    s.read();
    let after = numbers();
    let [hits, misses, read, written, asize, header, wrong] = after[..] else {
        panic!("{after:?}");
    };
    // All of it, but for the blocks that memory still had.
    assert!(
        hits > before[0] + FILE / 2 / (128 << 10),
        "{before:?} {after:?}"
    );
    assert!(read > before[2] + FILE / 2, "{before:?} {after:?}");
    assert!(
        read - before[2] >= (hits - before[0]) * 512,
        "{before:?} {after:?}"
    );
    assert!(misses > 0, "the first read: {after:?}");
    assert!((FILE * 3 / 4..=written + MIB).contains(&asize), "{after:?}");
    assert_eq!(asize, cache(&s.rig).stats.alloc);
    assert!(
        (FILE / (128 << 10) * 100 / 2..MIB).contains(&header),
        "{after:?}"
    );
    assert_eq!(wrong, 0);
    let list = s
        .rig
        .zpool(&["list", "-Ho", "name,l2_hits,l2_asize", "tank"]);
    assert!(list.starts_with("tank\t"), "{list}");
    let all = s.rig.zpool(&["get", "all", "tank"]);
    assert!(!all.contains("l2_"), "{all}");
    s.reimport();
    assert_eq!(numbers()[0], 0, "since the import");
}

#[test]
fn secondarycache_says_what_goes_to_cache_devices() {
    let Some(s) = scene("l2arc-second", 256 * MIB, &["-O", "secondarycache=none"]) else {
        return;
    };
    s.read();
    s.rig.zpool(&["sync", "-f", "tank"]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let none = cache(&s.rig).stats.alloc;
    assert!(none < MIB, "{none}");
    s.rig.zfs(&["set", "secondarycache=metadata", "tank"]);
    s.forget();
    s.read();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let metadata = cache(&s.rig).stats.alloc;
    assert!(metadata < 8 * MIB, "{metadata}");
    s.rig.zfs(&["set", "secondarycache=all", "tank"]);
    s.forget();
    s.warm();
}

/// Ruins what is behind the header.
fn ruin(image: &Path) {
    let size = fs::metadata(image).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    let noise = vec![0xa5; MIB as usize];
    let mut at = 5 * MIB;
    while at + 2 * MIB < size {
        file.write_all_at(&noise, at).unwrap();
        at += MIB;
    }
}

#[test]
fn a_cache_device_that_lies_costs_reads_from_the_pool() {
    let Some(s) = scene("l2arc-lies", 256 * MIB, &["-O", "compression=lz4"]) else {
        return;
    };
    let first = s.warm();
    ruin(Path::new(&s.cache));
    assert!(s.read() == first);
    let cache = cache(&s.rig);
    assert!(cache.stats.checksum_errors > 0, "{cache:?}");
    let status = s.rig.zpool(&["status", "tank"]);
    assert!(status.contains("errors: No known data errors"), "{status}");
    s.rig.zpool(&["clear", "tank"]);
    // It is fed again.
    s.forget();
    s.warm();
    s.forget();
    assert!(s.read() == first);
}

#[test]
fn cache_devices_go_come_and_are_taken_out_of_use() {
    let Some(mut s) = scene("l2arc-changes", 256 * MIB, &[]) else {
        return;
    };
    let first = s.warm();
    s.rig.zpool(&["offline", "tank", &s.cache]);
    assert_eq!(cache(&s.rig).state, VdevState::Offline);
    assert!(s.read() == first);
    s.reimport();
    assert_eq!(cache(&s.rig).state, VdevState::Offline);
    let said = s.rig.try_run("zpool", &["online", "-e", "tank", &s.cache]);
    let said = said.fails(1);
    assert!(said.contains("cannot expand cache devices"), "{said}");
    s.rig.zpool(&["online", "tank", &s.cache]);
    assert_eq!(cache(&s.rig).state, VdevState::Online);
    s.forget();
    s.warm();
    // Removed while it is read.
    let (file, stop) = (
        s.file(),
        std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)),
    );
    let end = stop.clone();
    let reader = std::thread::spawn(move || {
        while !end.load(std::sync::atomic::Ordering::Relaxed) {
            let f = fs::File::open(&file).unwrap();
            rustix::fs::fadvise(&f, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            assert_eq!(fs::read(&file).unwrap().len() as u64, FILE);
        }
    });
    for _ in 0..3 {
        s.rig.zpool(&["remove", "tank", &s.cache]);
        s.rig.zpool(&["add", "tank", "cache", &s.cache]);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    reader.join().unwrap();
    s.forget();
    assert!(s.read() == first);
    // An import does without it.
    s.rig.zpool(&["export", "tank"]);
    fs::remove_file(&s.cache).unwrap();
    let disks = s.rig.disks();
    s.rig
        .zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    assert_eq!(cache(&s.rig).state, VdevState::CantOpen);
    assert!(s.read() == first);
    s.rig.zpool(&["export", "tank"]);
    s.rig.zdb_check("tank");
    s.rig.stop();
}

#[test]
fn what_is_on_a_cache_device_is_found_again() {
    let Some(mut s) = scene("l2arc-persistent", PERSISTENT, &["-O", "recordsize=16K"]) else {
        return;
    };
    let first = s.warm();
    s.rig.zpool(&["export", "tank"]);
    if let Some(oz) = or_skip(OpenZfs::get()) {
        let said = oz.zdb(&["-l", &s.cache]).unwrap();
        assert!(said.contains("L2ARC device header"), "{said}");
        let count = |what: &str| -> u64 {
            let line = said.lines().find(|l| l.contains(what)).expect(what);
            let words = line.split_whitespace();
            words.filter_map(|w| w.parse().ok()).next().unwrap()
        };
        assert!(count("with valid cksum") > 10, "{said}");
        assert_eq!(count("with invalid cksum"), 0, "{said}");
    }
    let disks = s.rig.disks();
    let again = |s: &Scene| {
        until("the cache device was read", || {
            cache(&s.rig).stats.alloc > FILE / 2
        });
        let before = cache(&s.rig).stats.read_bytes;
        assert!(s.read() == first);
        let served = cache(&s.rig).stats.read_bytes - before;
        assert!(served > FILE / 2, "{served}");
    };
    s.rig
        .zpool(&["import", "-d", disks.to_str().unwrap(), "tank"]);
    again(&s);
    // The same without an export.
    s.rig.kill();
    s.rig.start();
    again(&s);
    // What it has of another pool's header is nothing.
    s.rig.zpool(&["reguid", "tank"]);
    s.reimport();
    assert!(s.read() == first);
    s.rig.zpool(&["export", "tank"]);
    s.rig.zdb_check("tank");
    s.rig.stop();
}

#[test]
fn encrypted_blocks_stay_encrypted_on_cache_devices() {
    let Some(s) = scene("l2arc-keys", 256 * MIB, &["-O", "compression=off"]) else {
        return;
    };
    let key = s.rig.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    let at = s.mnt.join("sealed");
    s.rig.zfs(&[
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &format!("keylocation=file://{}", key.display()),
        "-o",
        &format!("mountpoint={}", at.display()),
        "tank/sealed",
    ]);
    let at = PathBuf::from(s.rig.get("mountpoint", "tank/sealed"));
    let at = match s.rig.mounts().into_iter().find(|m| m.contains("sealed")) {
        Some(m) => PathBuf::from(m),
        None => at,
    };
    let word = b"nobody may read this sentence on any device ";
    let text: Vec<u8> = word
        .iter()
        .copied()
        .cycle()
        .take(32 * MIB as usize)
        .collect();
    fs::write(at.join("file"), &text).unwrap();
    s.rig.zpool(&["sync", "tank"]);
    let cycle = || {
        s.rig.zfs(&["unmount", "tank/sealed"]);
        s.rig.zfs(&["mount", "tank/sealed"]);
    };
    cycle();
    assert!(fs::read(at.join("file")).unwrap() == text);
    until("the cache device has the file", || {
        cache(&s.rig).stats.alloc > 24 * MIB
    });
    cycle();
    let before = cache(&s.rig).stats.read_bytes;
    assert!(fs::read(at.join("file")).unwrap() == text);
    assert!(cache(&s.rig).stats.read_bytes - before > 16 * MIB);
    let image = fs::read(&s.cache).unwrap();
    assert!(!image.windows(word.len()).any(|w| w == word));
}
