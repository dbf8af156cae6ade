//! Damaged pools made by OpenZFS, through the programs and a mount: what is repairable is read, repaired
//! and repaired on disk; what is not gives errors for exactly the bytes concerned, and is named.

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use system_tests::{until, Rig};
use testkit::{fixture, or_skip, OpenZfs};

const RECORD: u64 = 128 << 10;
const EIO: i32 = 5;

struct Case {
    rig: Rig,
    pool: String,
    manifest: Value,
}

impl Case {
    fn new(name: &str) -> Option<Case> {
        let text = or_skip(fixture::file(name, "manifest.json"))?;
        let manifest: Value = serde_json::from_slice(&fs::read(text).unwrap()).unwrap();
        let mut rig = Rig::new(name)?;
        fixture::unpack_into(name, &rig.disks()).unwrap();
        rig.start();
        let pool = manifest["pools"][0]["pool"].as_str().unwrap().to_string();
        Some(Case {
            rig,
            pool,
            manifest,
        })
    }

    fn import(&self, options: &[&str]) {
        let (disks, root) = (self.rig.disks(), self.rig.mnt());
        let mut args = vec!["import", "-d", disks.to_str().unwrap(), "-f"];
        args.extend(["-R", root.to_str().unwrap()]);
        args.extend(options);
        args.push(&self.pool);
        self.rig.zpool(&args);
    }

    fn export(&self) {
        self.rig.zpool(&["export", &self.pool]);
    }

    /// Reads every byte and attribute of every mounted file; gives those that fail.
    fn read_all(&self) -> Vec<PathBuf> {
        let mut bad = Vec::new();
        let mut files = 0;
        let mut todo = vec![self.rig.mnt()];
        while let Some(dir) = todo.pop() {
            for e in fs::read_dir(&dir).unwrap() {
                let path = e.unwrap().path();
                let kind = fs::symlink_metadata(&path).unwrap().file_type();
                if kind.is_dir() {
                    todo.push(path);
                } else if kind.is_file() {
                    files += 1;
                    if read_data(&path).is_err() {
                        bad.push(path);
                    }
                } else if kind.is_symlink() {
                    fs::read_link(&path).unwrap();
                }
            }
        }
        assert!(files > 5, "{files} files");
        bad
    }

    /// Sum of all checksum errors, by line of the status.
    fn errors(&self) -> u64 {
        let text = self.rig.zpool(&["status", "-p", &self.pool]);
        text.lines()
            .skip_while(|l| !l.contains("READ WRITE CKSUM"))
            .filter_map(|l| l.split_whitespace().nth(4)?.parse::<u64>().ok())
            .sum()
    }
}

/// Reads all of a file that is no hole.
fn read_data(path: &Path) -> std::io::Result<()> {
    use rustix::fs::{seek, SeekFrom};
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        at += file.read_at(&mut buf, at)? as u64;
    }
    Ok(())
}

/// Everything can be read; read-write that also repairs it for who comes next.
fn repairable(name: &str, damaged: bool) {
    let Some(mut c) = Case::new(name) else {
        return;
    };
    c.import(&["-o", "readonly=on"]);
    assert_eq!(c.read_all(), Vec::<PathBuf>::new(), "{name}");
    let seen = c.errors();
    assert_eq!(seen > 0, damaged, "{name}: {seen} errors");
    let text = c.rig.zpool(&["status", &c.pool]);
    assert!(text.contains("errors: No known data errors"), "{text}");
    c.export();
    c.import(&[]);
    assert_eq!(c.read_all(), Vec::<PathBuf>::new(), "{name}");
    let text = c.rig.zpool(&["status", &c.pool]);
    assert_eq!(
        text.contains("ZFS-8000-9P"),
        damaged && !text.contains("2Q"),
        "{text}"
    );
    c.rig.zpool(&["clear", &c.pool]);
    assert_eq!(c.errors(), 0, "{name}: cleared");
    c.export();
    c.import(&[]);
    assert_eq!(c.read_all(), Vec::<PathBuf>::new(), "{name}");
    assert_eq!(c.errors(), 0, "{name}: repaired on disk");
    c.export();
    c.rig.stop();
    if let Some(oz) = or_skip(OpenZfs::get()) {
        oz.check(&c.rig.disks(), &c.pool).unwrap();
    }
}

#[test]
fn second_copies() {
    repairable("damage-metadata", true);
}

#[test]
fn mirror() {
    repairable("damage-mirror", true);
}

#[test]
fn raidz() {
    for n in 1..=3 {
        repairable(&format!("damage-raidz{n}"), true);
    }
}

#[test]
fn labels_and_uberblocks() {
    repairable("damage-labels", false);
    repairable("damage-uberblocks", false);
}

fn unreadable(c: &Case) -> Vec<(PathBuf, u64, u64)> {
    let mut out = Vec::new();
    for u in c.manifest["expect"]["unreadable"].as_array().unwrap() {
        let mut path = c.rig.mnt().join(u["dataset"].as_str().unwrap());
        path.push(u["path"].as_str().unwrap());
        for r in u["ranges"].as_array().unwrap() {
            out.push((path.clone(), r[0].as_u64().unwrap(), r[1].as_u64().unwrap()));
        }
    }
    out
}

fn read_at(file: &File, at: u64, len: u64) -> Result<usize, i32> {
    let mut b = vec![0; len as usize];
    file.read_at(&mut b, at)
        .map_err(|e| e.raw_os_error().unwrap_or(0))
}

/// Only the records named are unreadable; a long read gives what is before.
fn exactly(path: &Path, from: u64, len: u64) {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let end = (from + len).next_multiple_of(RECORD).min(size);
    let mut at = 0;
    while at < size {
        let bad = at >= from && at < end;
        let n = 4096.min(size - at);
        let want = if bad { Err(EIO) } else { Ok(n as usize) };
        assert_eq!(read_at(&file, at, n), want, "{} at {at}", path.display());
        at += 4096;
    }
    if from > 0 {
        assert_eq!(read_at(&file, 0, size), Ok(from as usize));
    }
    assert_eq!(read_at(&file, from, size), Err(EIO));
    if end < size {
        assert_eq!(read_at(&file, end, 1 << 20), Ok((size - end) as usize));
    }
}

/// What is damaged is named as long as somebody has it: a file, then its snapshot, then a clone that was promoted.
#[test]
fn damage_that_is_gone_is_no_longer_listed() {
    let Some(c) = Case::new("damage-one-block") else {
        return;
    };
    c.import(&[]);
    let bad = unreadable(&c);
    let data = c.manifest["expect"]["unreadable"][0]["dataset"]
        .as_str()
        .unwrap()
        .to_string();
    c.read_all();
    let status = || {
        c.rig.zpool(&["sync", &c.pool]);
        c.rig.zpool(&["status", "-v", &c.pool])
    };
    let before = status();
    assert!(!before.contains("No known data errors"), "{before}");
    // Snapshots that the fixture brought would keep it.
    let snaps = c
        .rig
        .zfs(&["list", "-Hr", "-t", "snapshot", "-o", "name", &c.pool]);
    for s in snaps.lines() {
        c.rig.try_run("zfs", &["destroy", "-R", s]);
    }
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    c.rig.zfs(&["snapshot", &format!("{data}@held")]);
    for (path, _, _) in &bad {
        fs::remove_file(path).unwrap();
    }
    // Files are freed in the background.
    let listed = |seen: &str| bad.iter().any(|b| seen.contains(b.0.to_str().unwrap()));
    until("the files are freed", || !listed(&status()));
    let seen = status();
    for (path, _, _) in &bad {
        assert!(seen.contains(&format!("{data}@held:")), "{seen}");
        assert!(seen.contains(&name(path)), "{seen}");
    }
    // The snapshot goes over to the clone, and what it was of goes.
    let clone = format!("{}/heir", c.pool);
    c.rig.zfs(&["clone", &format!("{data}@held"), &clone]);
    c.rig.zfs(&["promote", &clone]);
    c.rig.zfs(&["destroy", "-r", &data]);
    let seen = status();
    assert!(seen.contains(&format!("{clone}@held:")), "{seen}");
    c.rig.zfs(&["destroy", "-r", &clone]);
    let seen = status();
    assert!(seen.contains("errors: No known data errors"), "{seen}");
    let seen = c.rig.zpool(&["status", "-x", &c.pool]);
    assert!(!seen.contains("ZFS-8000-8A"), "{seen}");
    c.export();
    c.import(&[]);
    assert!(status().contains("errors: No known data errors"));
    c.export();
}

#[test]
fn beyond_repair() {
    let Some(mut c) = Case::new("damage-one-block") else {
        return;
    };
    let bad = unreadable(&c);
    let check = |c: &Case| {
        for (path, from, len) in &bad {
            exactly(path, *from, *len);
        }
        let mut seen = c.read_all();
        seen.sort();
        let mut want: Vec<PathBuf> = bad.iter().map(|(p, _, _)| p.clone()).collect();
        want.sort();
        assert_eq!(seen, want);
        let text = c.rig.zpool(&["status", "-v", &c.pool]);
        assert!(text.contains("ZFS-8000-8A"), "{text}");
        for p in &want {
            assert!(
                text.contains(&format!("        {}\n", p.display())),
                "{text}"
            );
        }
        let text = c.rig.zpool(&["status", &c.pool]);
        assert!(
            text.contains("errors: 2 data errors, use '-v' for a list\n"),
            "{text}"
        );
    };
    c.import(&["-o", "readonly=on"]);
    check(&c);
    c.export();
    c.import(&[]);
    check(&c);
    c.export();
    // On record, though nobody has read anything yet; without mounts named by dataset.
    c.import(&["-N"]);
    let text = c.rig.zpool(&["status", "-v", &c.pool]);
    for (path, _, _) in &bad {
        let below = path.strip_prefix(c.rig.mnt()).unwrap().to_str().unwrap();
        let data = c.manifest["expect"]["unreadable"][0]["dataset"]
            .as_str()
            .unwrap();
        let name = below.strip_prefix(data).unwrap();
        assert!(text.contains(&format!("        {data}:{name}\n")), "{text}");
    }
    let json = c.rig.zpool(&["status", "-jv", "--json-int", &c.pool]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["pools"][&c.pool]["error_count"], 2, "{json}");
    c.rig.zpool(&["clear", &c.pool]);
    let text = c.rig.zpool(&["status", "-v", &c.pool]);
    assert!(text.contains("errors: No known data errors"), "{text}");
    // A change of part of a lost record is refused or lost, never makes something of nothing.
    c.rig.zfs(&["mount", "-a"]);
    let (path, from, _) = &bad[0];
    let file = File::options().write(true).open(path).unwrap();
    let _ = file.write_at(b"new", from + 10).map(|_| file.sync_all());
    drop(file);
    c.rig.zpool(&["sync"]);
    c.export();
    c.import(&[]);
    let file = File::open(path).unwrap();
    assert_eq!(read_at(&file, *from, 4096), Err(EIO));
    drop(file);
    // Written anew as a whole it is good again.
    let size = fs::metadata(path).unwrap().len();
    let file = File::options().write(true).open(path).unwrap();
    let n = RECORD.min(size - from) as usize;
    file.write_all_at(&vec![7; n], *from).unwrap();
    drop(file);
    c.export();
    c.import(&[]);
    assert_eq!(fs::read(path).unwrap().len() as u64, size);
    c.export();
    c.rig.stop();
}

/// Gone back to a checkpoint: for a look, and for good.
#[test]
fn checkpoint() {
    let Some(mut c) = Case::new("checkpoint") else {
        return;
    };
    let disks = c.rig.disks();
    let (dir, mnt) = (disks.to_str().unwrap(), c.rig.mnt());
    let now = [
        "import",
        "-d",
        dir,
        "-f",
        "-R",
        mnt.to_str().unwrap(),
        &c.pool,
    ];
    let said = c.rig.try_run("zpool", &now);
    if !said.status.success() {
        // Not written to, and it says what can be done.
        assert!(said.err.contains("--rewind-to-checkpoint"), "{said}");
    } else {
        c.export();
    }
    let text = or_skip(fixture::file("checkpoint", "manifest-checkpoint.json")).unwrap();
    let then: Value = serde_json::from_slice(&fs::read(text).unwrap()).unwrap();
    let names = |v: &Value| -> Vec<String> {
        let list = v["pools"][0]["datasets"].as_array().unwrap().iter();
        let mut out: Vec<String> = list
            .filter(|d| d["type"] == "filesystem")
            .map(|d| d["name"].as_str().unwrap().to_string())
            .collect();
        out.sort();
        out
    };
    let listed = |c: &Case| -> Vec<String> {
        let text = c.rig.zfs(&["list", "-H", "-o", "name", "-t", "filesystem"]);
        let mut out: Vec<String> = text.lines().map(str::to_string).collect();
        out.sort();
        out
    };
    c.import(&["-o", "readonly=on"]);
    assert_eq!(listed(&c), names(&c.manifest));
    c.export();
    c.import(&["-o", "readonly=on", "--rewind-to-checkpoint"]);
    assert_eq!(listed(&c), names(&then));
    assert_eq!(c.read_all(), Vec::<PathBuf>::new());
    c.export();
    c.import(&["-o", "readonly=on"]);
    assert_eq!(listed(&c), names(&c.manifest), "looking changed nothing");
    c.export();
    c.import(&["--rewind-to-checkpoint"]);
    assert_eq!(listed(&c), names(&then));
    c.export();
    c.import(&[]);
    assert_eq!(listed(&c), names(&then));
    assert_eq!(c.read_all(), Vec::<PathBuf>::new());
    c.export();
    c.rig.stop();
    if let Some(oz) = or_skip(OpenZfs::get()) {
        oz.check(&disks, &c.pool).unwrap();
    }
}
