//! `zfs receive -c`: damaged blocks of a snapshot are healed with a stream of it, and nothing else is changed.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use system_tests::manifest::{self, Look};
use system_tests::{Dice, Rig};
use testkit::fixture;

/// Where data begins in an image.
const FRONT: u64 = 4 << 20;
const EIO: i32 = 5;

fn receive(rig: &Rig, args: &[&str], stream: &Path) -> Output {
    rig.command("zfs", &[&["receive"], args].concat())
        .stdin(File::open(stream).unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap()
}

fn heal(rig: &Rig, args: &[&str], stream: &Path) {
    let out = receive(rig, args, stream);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {err}");
    assert_eq!(err, "", "{args:?}");
}

fn refused(rig: &Rig, args: &[&str], stream: &Path, why: &str) {
    let out = receive(rig, args, stream);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {err}");
    assert!(err.contains(why), "{args:?}: {err}");
}

/// Every case of the fixture: afterwards all is what it was before the damage, and no error is left.
#[test]
fn streams_of_openzfs_heal_the_damaged_pool() {
    const FIXTURE: &str = "streams-heal";
    for case in ["plain", "compressed"] {
        let Some(mut rig) = Rig::as_root(&format!("healing-{case}")) else {
            return;
        };
        let Some((dir, _)) = testkit::or_skip(fixture::streams(FIXTURE)) else {
            return;
        };
        fixture::unpack_into(FIXTURE, &rig.disks()).unwrap();
        let text = fs::read(fixture::file(FIXTURE, "manifest.json").unwrap()).unwrap();
        let manifest: Value = serde_json::from_slice(&text).unwrap();
        rig.start();
        let (disks, mnt) = (rig.disks(), rig.mnt());
        let (disks, mnt) = (disks.to_str().unwrap(), mnt.to_str().unwrap());
        rig.zpool(&["import", "-f", "-R", mnt, "-d", disks, "prairie_x"]);
        let fs = PathBuf::from(rig.get("mountpoint", "prairie_x/data"));
        let read = |name: &str| fs::read(fs.join(name));
        assert_eq!(read("victim").unwrap_err().raw_os_error(), Some(EIO));
        assert_eq!(read("second").unwrap_err().raw_os_error(), Some(EIO));
        let status = || rig.zpool(&["status", "-v", "prairie_x"]);
        assert!(!status().contains("No known data errors"));
        let sub = dir.path().join("streams");
        let place = if sub.is_dir() {
            sub
        } else {
            dir.path().to_path_buf()
        };
        let stream = place.join(format!("{case}.zstream"));
        heal(&rig, &["-c", "prairie_x/data@s"], &stream);
        assert!(status().contains("No known data errors"), "{}", status());
        for d in manifest["pools"][0]["datasets"].as_array().unwrap() {
            let name = d["name"].as_str().unwrap();
            let Some(entries) = d["entries"].as_array() else {
                continue;
            };
            let root = match name.split_once('@') {
                Some((_, snap)) => fs.join(".zfs/snapshot").join(snap),
                None => PathBuf::from(rig.get("mountpoint", name)),
            };
            let seen = manifest::compare(&root, entries, &Look::default());
            assert!(
                seen.differences.is_empty(),
                "{name}: {:?}",
                seen.differences
            );
        }
        rig.zpool(&["scrub", "-w", "prairie_x"]);
        let text = status();
        assert!(text.contains("with 0 errors"), "{text}");
        assert!(text.contains("No known data errors"), "{text}");
        rig.zpool(&["export", "prairie_x"]);
        rig.zdb_check("prairie_x");
        rig.stop();
    }
}

/// Offsets of the data blocks of a file in its image, by offset in the file.
fn places(rig: &Rig, dataset: &str, object: u64) -> BTreeMap<u64, u64> {
    let disks = rig.disks();
    let ask = ["-e", "-p", disks.to_str().unwrap(), "-dddddd", dataset];
    let said = rig.try_run("zdb", &[&ask[..], &[&object.to_string()]].concat());
    let mut out = BTreeMap::new();
    for line in said.ok().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, "L0", dva, ..] = words[..] else {
            continue;
        };
        let parts: Vec<_> = dva.split(':').collect();
        if let ([_, offset, _], Ok(at)) = (&parts[..], u64::from_str_radix(at, 16)) {
            out.insert(at, FRONT + u64::from_str_radix(offset, 16).unwrap());
        }
    }
    out
}

/// What a file system is made with, and the ways its snapshot is sent.
struct Kind {
    name: &'static str,
    options: &'static [&'static str],
    sends: &'static [&'static [&'static str]],
    encrypted: bool,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "off",
        options: &["-o", "compression=off", "-o", "recordsize=8K"],
        sends: &[&[], &["-c"]],
        encrypted: false,
    },
    Kind {
        name: "lz4",
        options: &["-o", "compression=lz4"],
        sends: &[&[], &["-c"], &["-w"]],
        encrypted: false,
    },
    Kind {
        name: "zstd",
        options: &["-o", "compression=zstd-7", "-o", "recordsize=64K"],
        sends: &[&[], &["-c"]],
        encrypted: false,
    },
    // Without -L each block comes in eight records.
    Kind {
        name: "large",
        options: &["-o", "compression=gzip-3", "-o", "recordsize=1M"],
        sends: &[&[], &["-L"], &["-Lc"]],
        encrypted: false,
    },
    Kind {
        name: "sealed",
        options: &["-o", "compression=lz4"],
        sends: &[&[], &["-w"]],
        encrypted: true,
    },
    Kind {
        name: "sealed-plain",
        options: &["-o", "compression=off"],
        sends: &[&[], &["-w"]],
        encrypted: true,
    },
];

/// Spoils blocks of a file in both sides of the mirror. Returns offsets in the file.
fn spoil(images: &[String], places: &BTreeMap<u64, u64>, dice: &mut Dice) -> Vec<u64> {
    let all: Vec<_> = places.iter().collect();
    let mut out = Vec::new();
    for _ in 0..3 {
        let (at, place) = all[dice.below(all.len() as u64) as usize];
        for image in images {
            let f = File::options().write(true).open(image).unwrap();
            f.write_all_at(&[0x5a; 512], *place).unwrap();
        }
        out.push(*at);
    }
    out
}

#[test]
fn blocks_of_every_kind_are_healed_by_streams_of_every_kind() {
    let Some(mut rig) = Rig::new("healing-kinds") else {
        return;
    };
    let images = rig.images(2, 512 << 20);
    rig.start();
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.zpool(&["create", "-m", at, "tank", "mirror", &images[0], &images[1]]);
    let key = rig.path().join("home/key");
    fs::write(&key, [9; 32]).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let sealed = [
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
    ];
    let mut dice = Dice::new(4);
    let home = rig.path().join("home");
    for k in &KINDS {
        let fs = format!("tank/{}", k.name);
        let own: &[&str] = if k.encrypted { &sealed } else { &[] };
        rig.zfs(&[&["create"], own, k.options, &[&fs]].concat());
        let mut data = dice.bytes(1_500_000);
        // Some of it compresses whatever the dice say.
        data.iter_mut()
            .skip(200_000)
            .take(400_000)
            .for_each(|b| *b &= 3);
        fs::write(mnt.join(k.name).join("file"), data).unwrap();
        rig.zfs(&["snapshot", &format!("{fs}@s")]);
        for (n, send) in k.sends.iter().enumerate() {
            let out = File::create(home.join(format!("{}-{n}", k.name))).unwrap();
            let snap = format!("{fs}@s");
            let words = [&["send"], *send, &[&snap]].concat();
            assert!(rig
                .command("zfs", &words)
                .stdout(out)
                .status()
                .unwrap()
                .success());
        }
    }
    let whole = |k: &Kind| fs::read(mnt.join(k.name).join("file")).unwrap();
    let before: Vec<_> = KINDS.iter().map(whole).collect();
    let object = |k: &Kind| fs::metadata(mnt.join(k.name).join("file")).unwrap().ino();
    let objects: Vec<_> = KINDS.iter().map(object).collect();
    for turn in 0..3 {
        rig.zpool(&["export", "tank"]);
        for (k, object) in KINDS.iter().zip(&objects) {
            let found = places(&rig, &format!("tank/{}", k.name), *object);
            assert!(found.len() > 1, "{}: {found:?}", k.name);
            spoil(&images, &found, &mut dice);
        }
        rig.zpool(&["import", "-d", disks, "tank"]);
        for (n, k) in KINDS.iter().enumerate() {
            let way = turn % k.sends.len();
            let raw = k.sends[way].contains(&"-w") && k.encrypted;
            let fs = format!("tank/{}", k.name);
            let stream = home.join(format!("{}-{way}", k.name));
            let snap = format!("{fs}@s");
            if k.encrypted && !raw {
                let why = "key must be loaded to do a non-raw corrective recv";
                refused(&rig, &["-c", &snap], &stream, why);
                rig.zfs(&["load-key", "-L", &format!("file://{}", key.display()), &fs]);
            }
            if !k.encrypted {
                let file = mnt.join(k.name).join("file");
                assert_eq!(
                    fs::read(file).unwrap_err().raw_os_error(),
                    Some(EIO),
                    "{fs}"
                );
            }
            heal(&rig, &["-c", &snap], &stream);
            if raw {
                rig.zfs(&["load-key", "-L", &format!("file://{}", key.display()), &fs]);
            }
            if k.encrypted {
                rig.zfs(&["mount", &fs]);
            }
            assert!(whole(k) == before[n], "{fs} after turn {turn}");
        }
        let status = rig.zpool(&["status", "-v", "tank"]);
        assert!(status.contains("No known data errors"), "{status}");
        rig.zpool(&["scrub", "-w", "tank"]);
        let status = rig.zpool(&["status", "-v", "tank"]);
        assert!(status.contains("with 0 errors"), "{status}");
    }
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

#[test]
fn streams_that_do_not_fit_heal_nothing_and_spoil_nothing() {
    let Some(mut rig) = Rig::new("healing-refused") else {
        return;
    };
    let images = rig.images(1, 256 << 20);
    rig.start();
    let (mnt, disks) = (rig.mnt(), rig.disks());
    let (at, disks) = (mnt.to_str().unwrap(), disks.to_str().unwrap());
    rig.zpool(&["create", "-m", at, "tank", &images[0]]);
    let home = rig.path().join("home");
    for (name, seed) in [("a", 1), ("b", 2)] {
        let fs = format!("tank/{name}");
        let small = ["create", "-o", "recordsize=16K", "-o", "compression=off"];
        rig.zfs(&[&small[..], &[&fs]].concat());
        fs::write(mnt.join(name).join("file"), Dice::new(seed).bytes(300_000)).unwrap();
        rig.zfs(&["snapshot", &format!("{fs}@s")]);
        let out = File::create(home.join(name)).unwrap();
        let snap = format!("{fs}@s");
        let sent = rig.command("zfs", &["send", &snap]).stdout(out).status();
        assert!(sent.unwrap().success());
    }
    let file = mnt.join("a/file");
    let before = fs::read(&file).unwrap();
    let object = fs::metadata(&file).unwrap().ino();
    rig.zpool(&["export", "tank"]);
    let found = places(&rig, "tank/a", object);
    spoil(&images, &found, &mut Dice::new(3));
    rig.zpool(&["import", "-d", disks, "tank"]);
    let (a, b) = (home.join("a"), home.join("b"));
    refused(&rig, &["-c", "tank/a@none"], &a, "does not exist");
    refused(
        &rig,
        &["-c", "tank/a@s"],
        &b,
        "not compatible with the data in the pool",
    );
    refused(
        &rig,
        &["-c", "tank/b@s"],
        &a,
        "not compatible with the data in the pool",
    );
    for flags in [["-c", "-F"], ["-c", "-s"]] {
        let out = receive(&rig, &[&flags[..], &["tank/a@s"]].concat(), &a);
        assert_eq!(out.status.code(), Some(2));
    }
    // The other file system's content under the guid of this one.
    let guid: u64 = rig.get("guid", "tank/a@s").parse().unwrap();
    let forged = home.join("forged");
    fs::write(&forged, with_guid(&fs::read(&b).unwrap(), guid)).unwrap();
    refused(&rig, &["-c", "tank/a@s"], &forged, "could not be healed");
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(EIO));
    // Dry, it tells and does nothing.
    let out = receive(&rig, &["-nvc", "tank/a@s"], &a);
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(
        said,
        "would receive corrective stream of tank/a@s into tank/a@s\n"
    );
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(EIO));
    // A stream that breaks off heals what it can.
    let part = home.join("part");
    let whole = fs::read(&a).unwrap();
    fs::write(&part, &whole[..whole.len() - 1000]).unwrap();
    refused(&rig, &["-c", "tank/a@s"], &part, "incomplete stream");
    let out = receive(&rig, &["-vc", "tank/a@s"], &a);
    assert!(out.status.success());
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(
        fs::read(mnt.join("b/file")).unwrap(),
        Dice::new(2).bytes(300_000)
    );
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The stream with another guid of its snapshot, and checksums to match.
fn with_guid(stream: &[u8], guid: u64) -> Vec<u8> {
    use disk::stream::Record;
    let mut reader = stream::Reader::new(stream);
    let mut writer = stream::Writer::new(Vec::new());
    while let Some(item) = reader.next().unwrap() {
        match item.record {
            Record::Begin(mut b) => {
                b.to_guid = guid;
                assert!(item.payload.is_empty());
                writer.begin(&b, &disk::NvList::new()).unwrap();
            }
            Record::End(_) => writer.end(guid).unwrap(),
            r => writer.write(&r, &item.payload).unwrap(),
        }
    }
    writer.flush().unwrap();
    writer.into_inner()
}
