//! Indirect blocks of files that cannot be read: their files give errors, and nothing else notices.

use rustix::fs::{fallocate, FallocateFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use system_tests::{until, Dice, Rig};
use testkit::{or_skip, OpenZfs};

const EIO: i32 = 5;
const RECORD: u64 = 4096;
/// Data below an indirect block of level 1: 1024 pointers.
const SPAN: u64 = 1024 * RECORD;
const SIZE: u64 = 2 * SPAN + SPAN / 2;
/// Where data begins in an image.
const FRONT: u64 = 4 << 20;

/// What `zdb` says of an object: indirect blocks of level 1 and data blocks by offset, with their
/// addresses (offset, allocated size).
type Tree = BTreeMap<(u8, u64), Vec<(u64, u64)>>;

fn tree(rig: &Rig, dataset: &str, object: u64) -> Tree {
    let said = rig
        .try_run(
            "zdb",
            &[
                "-e",
                "-p",
                rig.disks().to_str().unwrap(),
                "-dddddd",
                dataset,
                &object.to_string(),
            ],
        )
        .ok();
    let mut out = Tree::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, level, rest @ ..] = &words[..] else {
            continue;
        };
        let Some(level) = level.strip_prefix('L').and_then(|l| l.parse().ok()) else {
            continue;
        };
        let dvas = rest.iter().filter_map(|w| {
            let mut parts = w.split(':').map(|p| u64::from_str_radix(p, 16));
            match (parts.next()?, parts.next()?, parts.next()?) {
                (Ok(0), Ok(offset), Ok(size)) => Some((offset, size)),
                _ => None,
            }
        });
        let at = u64::from_str_radix(at, 16).unwrap();
        out.insert((level, at), dvas.collect());
    }
    out
}

/// Spoils all copies of the level 1 block number `n`. Returns what lies below.
fn spoil(image: &Path, tree: &Tree, n: u64) -> Vec<(u64, u64)> {
    let f = File::options().write(true).open(image).unwrap();
    let copies = &tree[&(1, n * SPAN)];
    assert_eq!(copies.len(), 2, "metadata has two copies");
    for (offset, _) in copies {
        f.write_all_at(&[0x5a; 512], FRONT + offset).unwrap();
    }
    let below = tree.range((0, n * SPAN)..(0, (n + 1) * SPAN));
    below.flat_map(|(_, dvas)| dvas.clone()).collect()
}

fn is_eio<T>(what: &str, r: io::Result<T>) {
    match r {
        Ok(_) => panic!("{what}: no error"),
        Err(e) => assert_eq!(e.raw_os_error(), Some(EIO), "{what}: {e}"),
    }
}

fn write_synced(path: &Path, at: u64, data: &[u8]) -> io::Result<()> {
    let f = File::options().write(true).open(path)?;
    f.write_all_at(data, at)?;
    f.sync_all()
}

/// Others' files can be written and synced.
fn goes_on(rig: &Rig, dir: &Path, what: &str) {
    for name in ["good", "new"] {
        let path = dir.join(name);
        let f = File::options().create(true).append(true).open(&path);
        let r = f.and_then(|f| {
            f.write_at(b"more", 0)?;
            f.sync_all()
        });
        r.unwrap_or_else(|e| panic!("{name} after {what}: {e}"));
    }
    rig.zpool(&["sync", "tank"]);
    let health = rig.zpool(&["list", "-H", "-o", "health", "tank"]);
    // A device with many wrong checksums is degraded, as OpenZFS has it.
    assert!(
        ["ONLINE", "DEGRADED"].contains(&health.trim()),
        "{health} after {what}"
    );
}

#[test]
fn a_damaged_file_stops_nobody_but_its_readers() {
    let Some(mut rig) = Rig::new("unreadable") else {
        return;
    };
    let image = rig.image("disk", 320 << 20);
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.start();
    rig.zpool(&["create", "-m", at, "tank", &image]);
    for fs in ["tank/f", "tank/d"] {
        rig.zfs(&["create", "-o", "recordsize=4K", "-o", "compression=off", fs]);
    }
    let dir = mnt.join("f");
    let mut dice = Dice::new(7);
    let names = ["rm", "held", "cut", "append", "punch", "over"];
    let mut objects = BTreeMap::new();
    for name in names {
        let path = dir.join(name);
        fs::write(&path, dice.bytes(SIZE as usize)).unwrap();
        objects.insert(name, fs::metadata(&path).unwrap().ino());
    }
    let in_d = mnt.join("d/file");
    fs::write(&in_d, dice.bytes(SIZE as usize)).unwrap();
    let in_d = fs::metadata(&in_d).unwrap().ino();
    fs::write(dir.join("good"), dice.bytes(100_000)).unwrap();
    rig.zpool(&["export", "tank"]);

    let image = Path::new(&image);
    let mut lost = BTreeMap::new();
    for (name, object) in &objects {
        let t = tree(&rig, "tank/f", *object);
        let n = if *name == "append" { 2 } else { 1 };
        lost.insert(*name, spoil(image, &t, n));
    }
    let lost_d = spoil(image, &tree(&rig, "tank/d", in_d), 1);
    assert_eq!(lost_d.len() as u64, SPAN / RECORD);
    rig.zpool(&["import", "-d", disks, "tank"]);

    is_eio("read", fs::read(dir.join("over")));
    let data = dice.bytes(3 * RECORD as usize);
    is_eio(
        "over",
        write_synced(&dir.join("over"), SPAN + RECORD, &data),
    );
    goes_on(&rig, &dir, "overwriting");
    is_eio("append", write_synced(&dir.join("append"), SIZE, &data));
    goes_on(&rig, &dir, "appending");
    is_eio("cut", write_cut(&dir.join("cut"), 0));
    goes_on(&rig, &dir, "truncating");
    // What lies behind the damage can be cut off.
    write_cut(&dir.join("cut"), 2 * SPAN).unwrap();
    let punch = File::options().write(true).open(dir.join("punch")).unwrap();
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    is_eio("punch", fallocate(&punch, how, 0, SIZE).map_err(Into::into));
    fallocate(&punch, how, 0, SPAN).unwrap();
    drop(punch);
    goes_on(&rig, &dir, "punching");
    // Removing a file succeeds, whether somebody has it open or not.
    let held = File::open(dir.join("held")).unwrap();
    fs::remove_file(dir.join("held")).unwrap();
    fs::remove_file(dir.join("rm")).unwrap();
    goes_on(&rig, &dir, "removing");
    drop(held);
    goes_on(&rig, &dir, "closing");
    let status = rig.zpool(&["status", "-v", "tank"]);
    for name in ["over", "append", "cut", "punch"] {
        let path = dir.join(name);
        assert!(status.contains(path.to_str().unwrap()), "{name}: {status}");
    }

    // A file system with such a file is destroyed all the same.
    rig.zfs(&["destroy", "tank/d"]);
    let number = |p: &str| -> u64 {
        let said = rig.zpool(&["get", "-Hp", "-o", "value", p, "tank"]);
        said.trim().parse().unwrap_or(0)
    };
    until("everything to be freed", || {
        rig.zpool(&["sync", "tank"]);
        number("freeing") == 0
    });
    let below: u64 = lost_d.iter().map(|(_, size)| size).sum();
    assert_eq!(number("leaked"), below);
    goes_on(&rig, &dir, "destroying");

    // A restart finds the same.
    rig.kill();
    rig.start();
    goes_on(&rig, &dir, "a restart");
    is_eio("cut again", write_cut(&dir.join("cut"), 0));
    fs::remove_file(dir.join("over")).unwrap();
    goes_on(&rig, &dir, "removing after a restart");
    rig.zpool(&["export", "tank"]);

    // What is not found is what lies below the spoilt blocks, no less and no more.
    let mut want: Vec<(u64, u64)> = lost.into_values().flatten().chain(lost_d).collect();
    want.sort_unstable();
    let ours = rig.try_run("zdb", &["-e", "-p", disks, "-bv", "tank"]);
    assert_eq!(leaks(&ours.out), merged(&want), "our zdb");
    if let Some(oz) = or_skip(OpenZfs::get()) {
        let mut c = oz.command("zdb").unwrap();
        let out = c.args(["-e", "-p", disks, "-b", "tank"]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        assert_eq!(leaks(&text), merged(&want), "OpenZFS's zdb: {text}");
    }
    rig.stop();
}

/// The rest of a block that a write changes in part is read when the txg is written, which is too late to
/// tell the writer.
#[test]
fn a_write_over_part_of_an_unreadable_block_fails_and_loses_nothing() {
    let Some(mut rig) = Rig::new("part") else {
        return;
    };
    let image = rig.image("disk", 128 << 20);
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.start();
    rig.zpool(&["create", "-m", at, "tank", &image]);
    rig.zfs(&["create", "-o", "compression=off", "tank/f"]);
    const BLOCK: u64 = 128 << 10;
    let mut dice = Dice::new(3);
    let mut content = dice.bytes(4 * BLOCK as usize);
    let path = mnt.join("f/file");
    fs::write(&path, &content).unwrap();
    let object = fs::metadata(&path).unwrap().ino();
    rig.zpool(&["export", "tank"]);
    let copies = &tree(&rig, "tank/f", object)[&(0, BLOCK)];
    let f = File::options().write(true).open(&image).unwrap();
    f.write_all_at(&[0x5a; 512], FRONT + copies[0].0).unwrap();
    rig.zpool(&["import", "-d", disks, "tank"]);

    // Whole pages: the kernel reads nothing for that.
    let page = dice.bytes(4096);
    is_eio("part", write_synced(&path, BLOCK + 8192, &page));
    is_eio(
        "end",
        write_synced(&path, BLOCK - 8192, &dice.bytes(4 * 4096)),
    );
    let status = rig.zpool(&["status", "-v", "tank"]);
    assert!(status.contains(path.to_str().unwrap()), "{status}");
    // Beside it, and over all of it, it can be written.
    write_synced(&path, 8192, &page).unwrap();
    content[8192..][..4096].copy_from_slice(&page);
    let block = dice.bytes(BLOCK as usize);
    write_synced(&path, BLOCK, &block).unwrap();
    content[BLOCK as usize..][..BLOCK as usize].copy_from_slice(&block);
    write_synced(&path, BLOCK + 8192, &page).unwrap();
    content[BLOCK as usize + 8192..][..4096].copy_from_slice(&page);
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", disks, "tank"]);
    let got = fs::read(&path).unwrap();
    // What was before the unreadable block in the write that failed may be there or not.
    let edge = BLOCK as usize - 8192..BLOCK as usize;
    assert_eq!(got[..edge.start], content[..edge.start]);
    assert_eq!(got[edge.end..], content[edge.end..]);
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// A write was accepted, and fsync answered from the log, before its txg met the damage: the next fsync tells, once.
#[test]
fn what_a_txg_gives_up_is_told_by_the_next_fsync() {
    let Some(mut rig) = Rig::new("told") else {
        return;
    };
    let image = rig.image("disk", 128 << 20);
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.start();
    rig.zpool(&["create", "-m", at, "tank", &image]);
    let options = ["compression=off", "primarycache=metadata"];
    rig.zfs(&["create", "-o", options[0], "-o", options[1], "tank/f"]);
    const BLOCK: u64 = 128 << 10;
    let mut dice = Dice::new(5);
    let path = mnt.join("f/file");
    fs::write(&path, dice.bytes(4 * BLOCK as usize)).unwrap();
    fs::write(mnt.join("f/other"), dice.bytes(4 * BLOCK as usize)).unwrap();
    let object = fs::metadata(&path).unwrap().ino();
    rig.zpool(&["export", "tank"]);
    let places = tree(&rig, "tank/f", object);
    rig.zpool(&["import", "-d", disks, "tank"]);

    let writable = |name: &str| File::options().write(true).open(mnt.join(name));
    let (f, other) = (writable("f/file").unwrap(), writable("f/other").unwrap());
    let disk = File::options().write(true).open(&image).unwrap();
    // A txg may be written before a block is spoilt, as with the first fsync after an import: then there is nothing to tell,
    // and it is tried with the next block.
    let mut told = None;
    for at in (0..4).map(|n| n * BLOCK) {
        let page = dice.bytes(4096);
        f.write_all_at(&page, at + 8192).unwrap();
        other.write_all_at(&page, at + 8192).unwrap();
        f.sync_all().unwrap();
        other.sync_all().unwrap();
        disk.write_all_at(&[0x5a; 512], FRONT + places[&(0, at)][0].0)
            .unwrap();
        disk.sync_all().unwrap();
        rig.zpool(&["sync", "tank"]);
        if let Err(e) = f.sync_all() {
            assert_eq!(e.raw_os_error(), Some(EIO), "{e}");
            told = Some(at);
            break;
        }
    }
    let at = told.expect("nobody is told");
    f.sync_all().unwrap();
    other.sync_all().unwrap();
    let status = rig.zpool(&["status", "-v", "tank"]);
    assert!(status.contains(path.to_str().unwrap()), "{status}");
    // Over the whole block it can be written, and that is kept.
    let block = dice.bytes(BLOCK as usize);
    f.write_all_at(&block, at).unwrap();
    f.sync_all().unwrap();
    drop((f, other));
    rig.zpool(&["export", "tank"]);
    rig.zpool(&["import", "-d", disks, "tank"]);
    let mut got = vec![0; block.len()];
    let f = File::open(&path).unwrap();
    f.read_exact_at(&mut got, at).unwrap();
    assert!(got == block);
    drop(f);
    rig.zpool(&["export", "tank"]);
    rig.stop();
}

/// A block of the history of which no copy can be read: what is recorded is lost, and nothing else.
#[test]
fn a_damaged_history_stops_no_command() {
    let Some(mut rig) = Rig::new("history") else {
        return;
    };
    let image = rig.image("disk", 128 << 20);
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.start();
    rig.zpool(&["create", "-m", at, "tank", &image]);
    fs::write(mnt.join("file"), "content").unwrap();
    rig.zpool(&["export", "tank"]);
    let spoil = |rig: &Rig| {
        let all = rig.try_run("zdb", &["-e", "-p", disks, "-dd", "tank"]).ok();
        let line = |l: &&str| l.contains("SPA history") && !l.contains("offsets");
        let line = all.lines().find(line).expect("an object of the history");
        let object = line.split_whitespace().next().unwrap().parse().unwrap();
        let copies = &tree(rig, "tank", object)[&(0, 0)];
        assert_eq!(copies.len(), 3, "metadata of the pool have three copies");
        let f = File::options().write(true).open(&image).unwrap();
        for (offset, _) in copies {
            f.write_all_at(&[0x5a; 512], FRONT + offset).unwrap();
        }
    };
    spoil(&rig);
    let import = || rig.zpool(&["import", "-d", disks, "tank"]);
    for force in [&[][..], &["-f"]] {
        import();
        rig.try_run("zpool", &["history", "tank"]).fails(1);
        rig.zpool(&["set", "comment=changed", "tank"]);
        rig.zfs(&["set", "atime=off", "tank"]);
        rig.zfs(&["create", "tank/new"]);
        rig.zfs(&["destroy", "tank/new"]);
        assert_eq!(fs::read(mnt.join("file")).unwrap(), b"content");
        let health = rig.zpool(&["list", "-H", "-o", "health", "tank"]);
        assert_ne!(health, "SUSPENDED\n");
        rig.zpool(&[&["export"], force, &["tank"]].concat());
    }
    import();
    rig.zpool(&["destroy", "tank"]);
    rig.stop();
}

fn write_cut(path: &Path, size: u64) -> io::Result<()> {
    File::options().write(true).open(path)?.set_len(size)
}

/// Ranges that `zdb` found allocated and reached by nothing.
fn leaks(report: &str) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for line in report.lines().filter(|l| l.starts_with("leaked space:")) {
        let number = |key: &str| {
            let (_, rest) = line.split_once(key).unwrap();
            let digits = rest.trim_start().split([',', ' ']).next().unwrap();
            match digits.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => digits.parse().unwrap(),
            }
        };
        all.push((number("offset"), number("size")));
    }
    all.sort_unstable();
    merged(&all)
}

fn merged(sorted: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for &(at, size) in sorted {
        match out.last_mut() {
            Some((a, n)) if *a + *n == at => *n += size,
            _ => out.push((at, size)),
        }
    }
    out
}
