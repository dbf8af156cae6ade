//! Streams that cannot be received: OpenZFS's words and exit codes, and nothing is changed.

use disk::stream::Record;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use system_tests::{Dice, Rig};

struct Bad {
    rig: Rig,
    home: PathBuf,
}

impl Bad {
    fn new(name: &str, pools: &[&str]) -> Option<Bad> {
        let mut rig = Rig::new(name)?;
        let disks: Vec<_> = pools.iter().map(|p| rig.image(p, 128 << 20)).collect();
        rig.start();
        for (pool, disk) in pools.iter().zip(&disks) {
            let at = rig.mnt().join(pool);
            rig.zpool(&["create", "-m", at.to_str().unwrap(), pool, disk]);
        }
        let home = rig.path().join("home");
        Some(Bad { rig, home })
    }

    fn send(&self, args: &[&str]) -> PathBuf {
        let path = self
            .home
            .join(format!("stream-{}", args.join("").replace('/', "+")));
        let mut c = self.rig.command("zfs", &[&["send"], args].concat());
        let status = c.stdout(File::create(&path).unwrap()).status().unwrap();
        assert!(status.success(), "{args:?}");
        path
    }

    fn receive(&self, args: &[&str], stream: &Path) -> (Option<i32>, String) {
        let out = self
            .rig
            .command("zfs", &[&["receive"], args].concat())
            .stdin(File::open(stream).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&out.stderr).trim_end().to_string();
        (out.status.code(), err)
    }

    fn all(&self) -> String {
        let what = "name,guid,written,receive_resume_token";
        self.rig.zfs(&["list", "-Hp", "-t", "all", "-o", what])
    }

    /// Status 1, these words, and everything is as it was.
    fn refused(&self, args: &[&str], stream: &Path, words: &str) {
        let before = self.all();
        let (code, err) = self.receive(args, stream);
        assert_eq!((code, err.as_str()), (Some(1), words), "{args:?}");
        assert_eq!(self.all(), before, "{args:?}");
    }

    fn good(&self, args: &[&str], stream: &Path) {
        let (code, err) = self.receive(args, stream);
        assert_eq!(code, Some(0), "{args:?}: {err}");
    }
}

/// A stream with its first record changed, and checksums to match.
fn with_begin(stream: &Path, change: impl Fn(&mut disk::stream::Begin)) -> Vec<u8> {
    let bytes = fs::read(stream).unwrap();
    let mut reader = stream::Reader::new(&bytes[..]);
    let mut writer = stream::Writer::new(Vec::new());
    while let Some(item) = reader.next().unwrap() {
        match item.record {
            Record::Begin(mut b) => {
                change(&mut b);
                writer.begin(&b, &disk::NvList::new()).unwrap();
            }
            Record::End(e) => writer.end(e.to_guid).unwrap(),
            r => writer.write(&r, &item.payload).unwrap(),
        }
    }
    writer.flush().unwrap();
    writer.into_inner()
}

/// A stream with records put in behind one, and checksums to match.
fn with_records(stream: &Path, behind: impl Fn(&Record) -> Vec<(Record, Vec<u8>)>) -> Vec<u8> {
    let bytes = fs::read(stream).unwrap();
    let mut reader = stream::Reader::new(&bytes[..]);
    let mut writer = stream::Writer::new(Vec::new());
    while let Some(item) = reader.next().unwrap() {
        match &item.record {
            Record::End(e) => writer.end(e.to_guid).unwrap(),
            r => writer.write(r, &item.payload).unwrap(),
        }
        for (r, payload) in behind(&item.record) {
            writer.write(&r, &payload).unwrap();
        }
    }
    writer.flush().unwrap();
    writer.into_inner()
}

/// What cannot be stored without the key is refused when it arrives, not met by the txg.
#[test]
fn raw_streams_with_records_that_cannot_be_raw_are_refused_and_stop_nothing() {
    use disk::stream::{Free, Spill, WriteEmbedded};
    let Some(b) = Bad::new("bad-raw", &["src", "dst"]) else {
        return;
    };
    let rig = &b.rig;
    let key = rig.path().join("home/key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let options = ["create", "-o", "encryption=on", "-o", "keyformat=hex", "-o"];
    rig.zfs(&[&options[..], &[&location, "src/a"]].concat());
    let file = rig.mnt().join("src/a/file");
    fs::write(&file, Dice::new(1).bytes(400_000)).unwrap();
    let object = fs::metadata(&file).unwrap().ino();
    rig.zfs(&["snapshot", "src/a@1"]);
    let raw = b.send(&["-w", "src/a@1"]);
    let embedded = |r: &Record| match r {
        Record::Object(r) if r.object == object => {
            let own = WriteEmbedded {
                object,
                length: u64::from(r.block_size),
                to_guid: r.to_guid,
                compression: 2,
                lsize: 8,
                psize: 8,
                ..WriteEmbedded::default()
            };
            vec![(Record::WriteEmbedded(own), vec![7; 8])]
        }
        _ => Vec::new(),
    };
    let free = |offset, length| {
        move |r: &Record| match r {
            Record::Write(r) if (r.object, r.offset) == (object, 0) => {
                let own = Free {
                    object,
                    offset,
                    length,
                    to_guid: r.to_guid,
                };
                vec![(Record::Free(own), Vec::new())]
            }
            _ => Vec::new(),
        }
    };
    // The master node has three block pointers, and no room for another.
    let spill = |r: &Record| match r {
        Record::Object(r) if r.object == 1 => {
            let own = Spill {
                object: 1,
                length: 512,
                to_guid: r.to_guid,
                compression: 2,
                compressed_size: 512,
                ..Spill::default()
            };
            vec![(Record::Spill(own), vec![7; 512])]
        }
        _ => Vec::new(),
    };
    let none = |_: &Record| Vec::new();
    let forged = b.home.join("forged");
    for (name, bytes) in [
        ("embedded", with_records(&raw, embedded)),
        ("free", with_records(&raw, free(100, 1000))),
        ("free to a part", with_records(&raw, free(0, 5000))),
        ("spill", with_records(&raw, spill)),
    ] {
        fs::write(&forged, bytes).unwrap();
        let (code, err) = b.receive(&["dst/x"], &forged);
        assert_eq!(code, Some(1), "{name}: {err}");
        rig.zpool(&["sync", "dst"]);
        let health = rig.zpool(&["list", "-H", "-o", "health", "dst"]);
        assert_eq!(health, "ONLINE\n", "{name}: {err}");
        let there = rig.zfs(&["list", "-H", "-o", "name", "-r", "dst"]);
        assert_eq!(there, "dst\n", "{name}");
    }
    // The way they were made is not what is wrong with them.
    fs::write(&forged, with_records(&raw, none)).unwrap();
    b.good(&["dst/x"], &forged);
}

#[test]
fn streams_that_do_not_fit_are_refused_and_change_nothing() {
    let Some(b) = Bad::new("bad-streams", &["src", "dst"]) else {
        return;
    };
    let rig = &b.rig;
    rig.zfs(&["create", "src/a"]);
    let file = rig.mnt().join("src/a/file");
    fs::write(&file, Dice::new(1).bytes(200_000)).unwrap();
    rig.zfs(&["snapshot", "src/a@1"]);
    fs::write(&file, Dice::new(2).bytes(300_000)).unwrap();
    rig.zfs(&["snapshot", "src/a@2"]);
    fs::write(&file, Dice::new(3).bytes(100_000)).unwrap();
    rig.zfs(&["snapshot", "src/a@3"]);
    let full = b.send(&["src/a@1"]);
    let to_2 = b.send(&["-i", "@1", "src/a@2"]);
    let to_3 = b.send(&["-i", "@2", "src/a@3"]);
    let new = "cannot receive new filesystem stream";
    let more = "cannot receive incremental stream";

    // Cut off, at the beginning, in the middle, before the end.
    let whole = fs::read(&full).unwrap();
    let cut = b.home.join("cut");
    for (len, words) in [
        (0, "cannot receive: failed to read from stream".to_string()),
        (whole.len() / 2, format!("{new}: incomplete stream")),
        (whole.len() - 1, format!("{new}: incomplete stream")),
    ] {
        fs::write(&cut, &whole[..len]).unwrap();
        b.refused(&["dst/x"], &cut, &words);
    }
    // What is no stream.
    fs::write(&cut, vec![b'x'; 5000]).unwrap();
    b.refused(
        &["dst/x"],
        &cut,
        "cannot receive: invalid stream (bad magic number)",
    );
    // Features that nobody knows.
    fs::write(&cut, with_begin(&full, |b| b.features |= 1 << 40)).unwrap();
    let (code, err) = b.receive(&["dst/x"], &cut);
    assert_eq!(code, Some(1));
    let begin = "cannot receive: stream has unsupported feature, feature flags = 100000000";
    assert!(err.starts_with(begin), "{err}");
    assert!(err.ends_with(" (unknown flags = 10000000000)"), "{err}");
    // No parent, or one that is a snapshot's or a volume's place.
    b.refused(
        &["dst/none/x"],
        &full,
        &format!(
            "cannot open 'dst/none': dataset does not exist\n{new}: unable to restore to destination"
        ),
    );
    // Names that are not allowed.
    for name in ["dst/a%b", "dst//a", "dst/a@", "dst/@x"] {
        let before = b.all();
        let (code, err) = b.receive(&[name], &full);
        assert_eq!(code, Some(1), "{name}: {err}");
        assert!(err.starts_with("cannot receive: "), "{name}: {err}");
        assert_eq!(b.all(), before);
    }
    let long = format!("dst/{}", "n".repeat(300));
    assert_eq!(b.receive(&[&long], &full).0, Some(1));
    // Nothing there, then not what it is based on.
    b.refused(
        &["dst/x"],
        &to_2,
        &format!("{more}: destination 'dst/x' does not exist"),
    );
    // A flag of a clone without its origin.
    fs::write(&cut, with_begin(&to_2, |b| b.flags |= 1)).unwrap();
    b.refused(
        &["dst/y"],
        &cut,
        &format!("{new}: local origin for clone does not exist"),
    );
    b.good(&["-u", "dst/x"], &full);
    let unlike =
        format!("{more}: most recent snapshot of dst/x does not\nmatch incremental source");
    b.refused(&["dst/x"], &to_3, &unlike);
    b.refused(&["-F", "dst/x"], &to_3, &unlike);
    b.refused(
        &["dst/x"],
        &full,
        &format!("{new}: destination 'dst/x' exists\nmust specify -F to overwrite it"),
    );
    b.refused(
        &["-F", "dst/x"],
        &full,
        &format!(
            "{new}: destination has snapshots (eg. dst/x@1)\nmust destroy them to overwrite it"
        ),
    );
    onto_changed(&b, &full, &to_2);
    b.good(&["dst/x"], &to_3);

    // A pool that cannot be written.
    rig.zpool(&["export", "dst"]);
    let disks = rig.disks();
    let at = disks.to_str().unwrap();
    rig.zpool(&["import", "-d", at, "-o", "readonly=on", "dst"]);
    let (code, err) = b.receive(&["dst/z"], &full);
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.starts_with("cannot receive") && err.contains("read-only"),
        "{err}"
    );
}

/// Onto `dst/x`, which has `@1` of the increment `to_2` and more; leaves it with `@2`.
fn onto_changed(b: &Bad, full: &Path, to_2: &Path) {
    let rig = &b.rig;
    let more = "cannot receive incremental stream";
    let unlike =
        format!("{more}: most recent snapshot of dst/x does not\nmatch incremental source");
    // A younger snapshot, a change.
    rig.zfs(&["snapshot", "dst/x@own"]);
    b.refused(&["dst/x"], to_2, &unlike);
    rig.zfs(&["destroy", "dst/x@own"]);
    rig.zfs(&["mount", "dst/x"]);
    fs::write(rig.mnt().join("dst/x/own"), "own").unwrap();
    let changed =
        format!("{more}: destination dst/x has been modified\nsince most recent snapshot");
    b.refused(&["dst/x"], to_2, &changed);
    assert_eq!(fs::read(rig.mnt().join("dst/x/own")).unwrap(), b"own");
    // Also where a snapshot holds it.
    rig.zfs(&["snapshot", "dst/x@own"]);
    b.refused(&["dst/x"], to_2, &changed);
    rig.zfs(&["destroy", "dst/x@own"]);
    let there = "cannot restore to dst/x@1: destination already exists";
    b.refused(&["-F", "dst/x@1"], to_2, there);
    for (origin, words) in [
        (
            "dst/x@none",
            "cannot receive: specified origin fs (dst/x@none) does not exist",
        ),
        (
            "none@1",
            "cannot receive: specified origin fs (none@1) does not exist",
        ),
    ] {
        b.refused(&["-o", &format!("origin={origin}"), "dst/y"], to_2, words);
    }
    let at = "cannot receive: invalid argument - snapshot not allowed with -d";
    b.refused(&["-d", "dst/x@1"], full, at);
    let bogus = "cannot receive: invalid property 'bogus'";
    b.refused(&["-x", "bogus", "dst/y"], full, bogus);
    // With -F it is taken, and the change given up.
    b.good(&["-F", "dst/x"], to_2);
    assert!(!rig.mnt().join("dst/x/own").exists());
}

#[test]
fn streams_that_find_no_room_are_refused_and_change_nothing() {
    let Some(b) = Bad::new("bad-room", &["src", "dst"]) else {
        return;
    };
    let rig = &b.rig;
    rig.zfs(&["create", "-o", "compression=off", "src/a"]);
    let file = rig.mnt().join("src/a/file");
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    rig.zfs(&["snapshot", "src/a@1"]);
    let mut noise = vec![0; 40 << 20];
    Dice::new(1)
        .bytes(1 << 20)
        .iter()
        .cycle()
        .zip(&mut noise)
        .for_each(|(a, b)| *b = *a);
    fs::write(&file, &noise).unwrap();
    rig.zfs(&["snapshot", "src/a@2"]);
    let (small, large) = (b.send(&["src/a@1"]), b.send(&["src/a@2"]));
    let more = b.send(&["-i", "@1", "src/a@2"]);
    // Over the quota of a parent, or its own.
    rig.zfs(&[
        "create",
        "-o",
        "quota=20M",
        "-o",
        "compression=off",
        "dst/q",
    ]);
    let over = "cannot receive new filesystem stream: destination dst/q/x space quota exceeded.";
    same(&b, &["dst/q/x"], &large, over);
    b.good(&["-u", "dst/q/x"], &small);
    let over = over.replace("new filesystem", "incremental");
    same(&b, &["dst/q/x"], &more, &over);
    // A limit that does not fit is told, and the stream is received.
    for (limit, why) in [
        ("reservation=1G", "size is greater than available space"),
        (
            "refquota=1K",
            "size is less than current used or reserved space",
        ),
    ] {
        let (name, _) = limit.split_once('=').unwrap();
        let (code, err) = b.receive(&["-u", "-o", limit, "dst/limited"], &small);
        let told = format!("cannot receive {name} property on dst/limited: {why}");
        assert_eq!((code, err), (Some(0), told));
        assert_eq!(rig.get("guid", "dst/limited@1"), rig.get("guid", "src/a@1"));
        rig.zfs(&["destroy", "-r", "dst/limited"]);
    }
    // Into a pool that is full.
    let fill = rig.mnt().join("dst/fill");
    let _ = fs::write(&fill, &noise);
    let _ = fs::write(rig.mnt().join("dst/fill2"), &noise);
    let full = "cannot receive new filesystem stream: out of space";
    same(&b, &["dst/x"], &large, full);
    assert!(fs::metadata(&fill).unwrap().size() > 0);
    rig.zpool(&["export", "dst"]);
    rig.zdb_check("dst");
}

/// As [`Bad::refused`], but what is written meanwhile may make other numbers.
fn same(b: &Bad, args: &[&str], stream: &Path, words: &str) {
    let names = || {
        b.rig.zfs(&[
            "list",
            "-H",
            "-t",
            "all",
            "-o",
            "name,guid,receive_resume_token",
        ])
    };
    let before = names();
    let (code, err) = b.receive(args, stream);
    assert_eq!((code, err.as_str()), (Some(1), words), "{args:?}");
    assert_eq!(names(), before, "{args:?}");
}

#[test]
fn forged_tokens_send_nothing() {
    let Some(b) = Bad::new("bad-tokens", &["src"]) else {
        return;
    };
    let rig = &b.rig;
    rig.zfs(&["create", "src/a"]);
    fs::write(rig.mnt().join("src/a/file"), Dice::new(1).bytes(400_000)).unwrap();
    rig.zfs(&["snapshot", "src/a@1"]);
    let guid: u64 = rig.get("guid", "src/a@1").parse().unwrap();
    let token = stream::ResumeToken {
        object: 2,
        offset: 131_072,
        to_guid: guid,
        to_name: "src/a@1".into(),
        ..stream::ResumeToken::default()
    };
    let good = token.encode();
    let send = |token: &str| {
        let out = rig.command("zfs", &["send", "-t", token]).output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr).trim_end().to_string();
        (out.status.code(), out.stdout.len(), err)
    };
    assert_eq!(send(&good).0, Some(0));
    let mut bent = good.clone().into_bytes();
    let at = bent.len() - 9;
    bent[at] = if bent[at] == b'0' { b'1' } else { b'0' };
    let bent = String::from_utf8(bent).unwrap();
    let other = |change: &dyn Fn(&mut stream::ResumeToken)| {
        let mut t = token.clone();
        change(&mut t);
        t.encode()
    };
    for (what, token, words) in [
        ("no token", "x".to_string(), "resume token is corrupt"),
        (
            "another version",
            good.replacen("1-", "2-", 1),
            "resume token is corrupt",
        ),
        ("a digit", bent, "resume token is corrupt"),
        (
            "its end",
            good[..good.len() - 4].to_string(),
            "resume token is corrupt",
        ),
        ("another guid", other(&|t| t.to_guid = 5), "src/a@1"),
        (
            "no such base",
            other(&|t| t.from_guid = Some(77)),
            "incremental source",
        ),
    ] {
        let (code, sent, err) = send(&token);
        assert_eq!((code, sent), (Some(255), 0), "{what}: {err}");
        assert!(err.contains(words), "{what}: {err}");
    }
    // Behind the end there is nothing more to send.
    let (code, sent, err) = send(&other(&|t| (t.object, t.offset) = (u64::MAX >> 8, 0)));
    assert!(
        code == Some(255) || sent < 2000,
        "{code:?}, {sent} bytes: {err}"
    );
}

/// Status 1, words that begin so, and everything is as it was.
fn refused_with(b: &Bad, args: &[&str], stream: &Path, begin: &str, within: &str) {
    let before = b.all();
    let (code, err) = b.receive(args, stream);
    assert_eq!(code, Some(1), "{args:?}: {err}");
    let fits = err.starts_with(begin) && err.contains(within);
    assert!(fits, "{args:?}: {err}, not {begin} … {within}");
    assert_eq!(b.all(), before, "{args:?}");
}

#[test]
fn names_in_streams_that_are_not_allowed_are_refused() {
    let Some(b) = Bad::new("bad-names", &["src", "dst"]) else {
        return;
    };
    let rig = &b.rig;
    rig.zfs(&["create", "src/a"]);
    fs::write(rig.mnt().join("src/a/file"), Dice::new(1).bytes(50_000)).unwrap();
    rig.zfs(&["snapshot", "src/a@1"]);
    let full = b.send(&["src/a@1"]);
    let named = b.home.join("named");
    let write = |name: &str| {
        let bytes = with_begin(&full, |b| b.to_name = name.as_bytes().to_vec());
        fs::write(&named, bytes).unwrap();
    };
    for name in [
        "src/a%b@1",
        "src//b@1",
        "src/a b/../c@1",
        "src/..@1",
        "src/a@",
        "src/a@b@c",
        "src/a@b/c",
        "src/a",
        "@1",
        "src/a@%recv",
        "src/%recv@1",
        "src/$ORIGIN@1",
    ] {
        write(name);
        refused_with(&b, &["-d", "dst"], &named, "cannot receive", "");
        // The last element alone may be a name.
        if !["src//b@1", "src/a b/../c@1"].contains(&name) {
            refused_with(&b, &["-e", "dst"], &named, "cannot receive", "");
        }
    }
    // Allowed there, too long here.
    rig.zfs(&["create", "dst/below"]);
    write(&format!("src/{}@1", "n".repeat(249)));
    refused_with(&b, &["-d", "dst/below"], &named, "cannot receive", "");
    // Given on the command line the target counts, with the snapshot's name of the stream.
    for name in ["src/a@b@c", "src/a@b/c", "src/a@%x", "src/a@"] {
        write(name);
        refused_with(&b, &["dst/x"], &named, "cannot receive", "");
    }
    // And all of it, where the snapshot has a name on the command line.
    write("src/a%b@1");
    b.good(&["-u", "dst/x@named"], &named);
    assert_eq!(rig.get("guid", "dst/x@named"), rig.get("guid", "src/a@1"));
}

#[test]
fn streams_of_another_kind_than_the_target_are_refused() {
    let Some(b) = Bad::new("bad-kinds", &["src", "dst"]) else {
        return;
    };
    let rig = &b.rig;
    let new = "cannot receive new filesystem stream";
    let more = "cannot receive incremental stream";
    let key = b.home.join("key");
    fs::write(&key, [1; 32]).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    let sealed = [
        "-o",
        "encryption=on",
        "-o",
        "keyformat=raw",
        "-o",
        &location,
    ];
    rig.zfs(&["create", "src/a"]);
    rig.zfs(&[&["create"], &sealed[..], &["src/e"]].concat());
    rig.zfs(&[&["create"], &sealed[..], &["dst/locked"]].concat());
    for step in 1..=2 {
        for fs in ["src/a", "src/e"] {
            let bytes = Dice::new(step).bytes(90_000);
            fs::write(rig.mnt().join(fs).join("file"), bytes).unwrap();
            rig.zfs(&["snapshot", &format!("{fs}@{step}")]);
        }
    }
    let full = b.send(&["src/a@1"]);
    let raw = b.send(&["-w", "src/e@1"]);
    let raw_more = b.send(&["-w", "-i", "@1", "src/e@2"]);
    let open_more = b.send(&["-i", "@1", "src/e@2"]);
    let open = b.send(&["src/e@1"]);
    let forged = b.home.join("forged");

    // Raw onto what is not encrypted, and the other way round.
    b.good(&["-u", "dst/open"], &open);
    refused_with(
        &b,
        &["dst/open"],
        &raw_more,
        more,
        "raw receive on top of existing unencrypted",
    );
    b.good(&["-u", "dst/raw"], &raw);
    refused_with(&b, &["dst/raw"], &open_more, more, "key must be loaded");
    rig.zfs(&["unmount", "dst/locked"]);
    rig.zfs(&["unload-key", "dst/locked"]);
    refused_with(&b, &["dst/locked/x"], &full, new, "key must be loaded");
    rig.zfs(&["create", "dst/there"]);
    refused_with(&b, &["-F", "dst/locked"], &full, new, "");
    refused_with(&b, &["-F", "dst"], &raw, new, "");
    // A volume's stream onto a file system, one of no known kind, one that ends as another.
    let volume = with_begin(&full, |b| b.objset_type = 3);
    fs::write(&forged, volume).unwrap();
    refused_with(&b, &["-F", "dst/there"], &forged, new, "of another type");
    rig.zfs(&["create", "dst/there/below"]);
    let below = "destination has children (eg. dst/there/below)\ncannot overwrite with a ZVOL";
    refused_with(&b, &["-F", "dst/there"], &forged, new, below);
    rig.zfs(&["destroy", "dst/there/below"]);
    for kind in [0, 1, 4, 77] {
        fs::write(&forged, with_begin(&full, |b| b.objset_type = kind)).unwrap();
        refused_with(&b, &["dst/x"], &forged, "cannot receive", "invalid");
    }
    fs::write(&forged, with_begin(&full, |b| b.to_guid ^= 1)).unwrap();
    refused_with(&b, &["dst/x"], &forged, new, "");
    // Below what is no file system's place.
    refused_with(&b, &["dst/there@x/y"], &full, "cannot receive", "");
    // A file system that is read-only for its users takes streams.
    rig.zfs(&["set", "readonly=on", "dst/there"]);
    b.good(&["-u", "dst/there/x"], &full);
    let to_2 = b.send(&["-i", "@1", "src/a@2"]);
    b.good(&["dst/there/x"], &to_2);
    rig.zpool(&["export", "dst"]);
    rig.zdb_check("dst");
}

#[test]
fn streams_beyond_limits_are_refused_and_change_nothing() {
    if !system_tests::is_root() {
        eprintln!("skipped: limits bind those to whom root has delegated");
        return;
    }
    let Some(b) = Bad::new("bad-limits", &["src", "dst"]) else {
        return;
    };
    let rig = &b.rig;
    rig.zfs(&["create", "src/a"]);
    for step in 1..=2 {
        let bytes = Dice::new(step).bytes(90_000);
        fs::write(rig.mnt().join("src/a/file"), bytes).unwrap();
        rig.zfs(&["snapshot", &format!("src/a@{step}")]);
    }
    let full = b.send(&["src/a@1"]);
    let more = b.send(&["-i", "@1", "src/a@2"]);
    rig.zfs(&["create", "dst/u"]);
    rig.zfs(&["allow", "-u", "65534", "receive,create,mount", "dst/u"]);
    let nobody = |args: &[&str], stream: &Path| {
        let before = b.all();
        let out = rig
            .command_as(Some(65_534), "zfs", &[&["receive", "-u"], args].concat())
            .stdin(File::open(stream).unwrap())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&out.stderr).trim_end().to_string();
        (out.status.code(), err, before == b.all())
    };
    rig.zfs(&["set", "filesystem_limit=1", "dst/u"]);
    let (code, err, _) = nobody(&["dst/u/one"], &full);
    assert_eq!(code, Some(0), "{err}");
    let (code, err, same) = nobody(&["dst/u/two"], &full);
    assert!(code == Some(1) && same, "{code:?}: {err}");
    assert!(
        err.starts_with("cannot receive new filesystem stream: "),
        "{err}"
    );
    assert!(err.contains("filesystem_limit of 1 reached"), "{err}");
    rig.zfs(&["set", "snapshot_limit=1", "dst/u"]);
    let (code, err, same) = nobody(&["dst/u/one"], &more);
    assert!(code == Some(1) && same, "{code:?}: {err}");
    assert!(
        err.starts_with("cannot receive incremental stream: "),
        "{err}"
    );
    assert!(err.contains("snapshot_limit of 1 reached"), "{err}");
    // Who is not bound by limits goes beyond them.
    b.good(&["-u", "dst/u/one"], &more);
    b.good(&["-u", "dst/u/two"], &full);
    rig.zpool(&["export", "dst"]);
    rig.zdb_check("dst");
}

#[test]
fn a_stream_that_does_not_go_on_where_the_one_before_ended_is_refused() {
    let Some(b) = Bad::new("bad-resume", &["src", "dst"]) else {
        return;
    };
    let rig = &b.rig;
    rig.zfs(&["create", "-o", "compression=off", "src/a"]);
    let file = rig.mnt().join("src/a/file");
    let mut dice = Dice::new(4);
    let content: Vec<u8> = (0..1 << 19)
        .flat_map(|_| dice.draw().to_le_bytes())
        .collect();
    fs::write(&file, &content).unwrap();
    rig.zfs(&["snapshot", "src/a@1"]);
    fs::write(&file, &content[..3_000_000]).unwrap();
    rig.zfs(&["snapshot", "src/a@2"]);
    let (full, other) = (b.send(&["src/a@1"]), b.send(&["src/a@2"]));
    let part = b.home.join("part");
    let whole = fs::read(&full).unwrap();
    fs::write(&part, &whole[..whole.len() / 2]).unwrap();
    let (code, err) = b.receive(&["-s", "dst/x"], &part);
    assert_eq!(code, Some(1));
    let said = "Partially received snapshot is saved.\nA resuming stream can be generated on the sending system by running:\n    zfs send -t ";
    assert!(err.contains(said), "{err}");
    let text = rig.get("receive_resume_token", "dst/x");
    let token = stream::ResumeToken::decode(&text).unwrap();
    assert!(token.offset > 1 << 20, "{token:?}");
    let resumed = |change: &dyn Fn(&mut stream::ResumeToken)| {
        let mut t = token.clone();
        change(&mut t);
        let path = b.home.join("resumed");
        let mut c = rig.command("zfs", &["send", "-t", &t.encode()]);
        let status = c.stdout(File::create(&path).unwrap()).status().unwrap();
        assert!(status.success());
        path
    };
    let new = "cannot receive new filesystem stream";
    let more = "cannot receive incremental stream";
    // Neither behind nor before, nor for another snapshot, nor where nothing was begun.
    let block = 131_072;
    for by in [block, 4 * block] {
        let late = resumed(&|t| t.offset += by);
        refused_with(&b, &["-s", "dst/x"], &late, more, "does not continue");
        let early = resumed(&|t| t.offset -= by);
        refused_with(&b, &["-s", "dst/x"], &early, more, "does not continue");
    }
    let guid: u64 = rig.get("guid", "src/a@2").parse().unwrap();
    let second = resumed(&|t| (t.to_guid, t.to_name) = (guid, "src/a@2".into()));
    refused_with(&b, &["-s", "dst/x"], &second, more, "does not continue");
    let right = resumed(&|_| {});
    refused_with(
        &b,
        &["-s", "dst/y"],
        &right,
        more,
        "no resumable receive state",
    );
    // Nor one from the beginning, before the first is given up.
    for stream in [&full, &other] {
        refused_with(
            &b,
            &["-s", "dst/x"],
            stream,
            new,
            "partially-complete state",
        );
    }
    b.good(&["-s", "-u", "dst/x"], &resumed(&|_| {}));
    assert_eq!(rig.get("guid", "dst/x@1"), rig.get("guid", "src/a@1"));
    rig.zfs(&["mount", "dst/x"]);
    assert!(fs::read(rig.mnt().join("dst/x/file")).unwrap() == content);
    rig.zpool(&["export", "dst"]);
    rig.zdb_check("dst");
}
