//! `zfs send` and `zfs redact` on pools that OpenZFS sent from: our streams are those of OpenZFS.

use disk::stream::{HeaderType, Record};
use disk::NvList;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use stream::{Item, Package, Reader};
use system_tests::{manifest, Rig};
use testkit::{fixture, or_skip, OpenZfs};

/// A pool of a fixture in service, with its keys.
fn serve(rig: &mut Rig, name: &str, writable: bool) -> Value {
    fixture::unpack_into(name, &rig.disks()).unwrap();
    let text = std::fs::read(fixture::file(name, "manifest.json").unwrap()).unwrap();
    let manifest: Value = serde_json::from_slice(&text).unwrap();
    let pool = manifest["pools"][0]["pool"].as_str().unwrap().to_string();
    rig.start();
    let dir = rig.disks();
    let mut import = vec!["import", "-N", "-f", "-d", dir.to_str().unwrap()];
    if !writable {
        import.extend(["-o", "readonly=on"]);
    }
    import.push(&pool);
    rig.zpool(&import);
    for k in manifest["keys"].as_array().into_iter().flatten() {
        let dataset = k["dataset"].as_str().unwrap();
        if !dataset.starts_with(&pool) {
            continue;
        }
        let file = rig.path().join("key");
        let key = match k["key"].as_str() {
            Some(t) => t.as_bytes().to_vec(),
            None => manifest::base64(k["key_b64"].as_str().unwrap()),
        };
        std::fs::write(&file, key).unwrap();
        let place = format!("file://{}", file.display());
        rig.zfs(&["load-key", "-L", &place, dataset]);
    }
    manifest
}

/// The stream of a command, or what it complained.
fn stream_of(rig: &Rig, words: &[&str]) -> Result<Vec<u8>, String> {
    let mut c = rig.command("zfs", words);
    let out = c.stdin(Stdio::null()).output().unwrap();
    match out.status.success() {
        true => Ok(out.stdout),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

/// One stream of a package, or the only one.
type Records = Vec<Item>;

/// The list of the package, and its streams by name.
fn streams(bytes: &[u8]) -> (Option<Package>, BTreeMap<Vec<u8>, Records>) {
    let mut reader = Reader::new(bytes);
    let (mut package, mut out) = (None, BTreeMap::<Vec<u8>, Records>::new());
    let mut now: Option<Vec<u8>> = None;
    while let Some(item) = reader.next().unwrap() {
        match &item.record {
            Record::Begin(b) if b.header_type == HeaderType::Compound => {
                let list = match item.payload.is_empty() {
                    true => NvList::new(),
                    false => NvList::unpack(&item.payload).unwrap(),
                };
                let mut p = Package::from_list(&list).unwrap();
                // Neither file systems nor their properties have an order that means anything.
                p.file_systems.sort_by(|a, b| a.name.cmp(&b.name));
                for fs in &mut p.file_systems {
                    for list in fs.props.iter_mut() {
                        list.pairs.sort_by(|a, b| a.0.cmp(&b.0));
                    }
                }
                package = Some(p);
                now = None;
                continue;
            }
            Record::Begin(b) => now = Some(b.to_name.clone()),
            _ => {}
        }
        if let Some(name) = now.clone() {
            // What comes behind is the end of the package.
            if matches!(item.record, Record::End(_)) {
                now = None;
            }
            out.entry(name).or_default().push(item);
        }
    }
    (package, out)
}

/// OpenZFS sends embedded spill blocks in a way that no receiver understands.
fn is_lost_spill(r: &Record) -> bool {
    matches!(r, Record::WriteEmbedded(w) if w.offset == w.length.wrapping_mul(u64::MAX - 1))
}

fn same(a: &Item, b: &Item) -> bool {
    match (&a.record, &b.record) {
        (Record::Spill(s), w) if is_lost_spill(w) => s.length > 0,
        // The checksums differ if a spill block was sent rightly.
        (Record::End(a), Record::End(b)) => a.to_guid == b.to_guid,
        (x, y) => x == y && a.payload == b.payload,
    }
}

/// What differs between our streams and OpenZFS's.
fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let ((our_list, ours), (their_list, theirs)) = (streams(ours), streams(theirs));
    if our_list != their_list {
        return Some(format!("list {our_list:#?}\n  theirs {their_list:#?}"));
    }
    let names = |m: &BTreeMap<Vec<u8>, Records>| -> Vec<String> {
        m.keys()
            .map(|k| String::from_utf8_lossy(k).into_owned())
            .collect()
    };
    if names(&ours) != names(&theirs) {
        return Some(format!("{:?}, theirs {:?}", names(&ours), names(&theirs)));
    }
    for (a, b) in ours.values().zip(theirs.values()) {
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            if !same(x, y) {
                return Some(format!(
                    "record {i}: {:?}\n  theirs {:?}",
                    x.record, y.record
                ));
            }
        }
        if a.len() != b.len() {
            return Some(format!("{} records, theirs {}", a.len(), b.len()));
        }
    }
    None
}

/// Streams of a state of the pool that is gone: datasets were renamed, destroyed or snapshotted later.
const GONE: [&str; 4] = [
    "T1.zstream",
    "T1h.zstream",
    "dedup.zstream",
    "saved.zstream",
];

#[test]
fn streams_are_those_of_openzfs() {
    let Some(zfs) = or_skip(OpenZfs::get()) else {
        return;
    };
    let (mut compared, mut bad) = (0, Vec::new());
    for name in ["streams", "streams-more", "streams-old"] {
        let Some((_dir, paths)) = or_skip(fixture::streams(name)) else {
            return;
        };
        let Some(mut rig) = Rig::new(&format!("sent-{name}")) else {
            return;
        };
        let manifest = serve(&mut rig, name, false);
        let theirs = |file: &str| {
            let path = paths.iter().find(|p| p.ends_with(file)).unwrap();
            std::fs::read(path).unwrap()
        };
        for s in manifest["streams"].as_array().unwrap() {
            let (file, command) = (s["file"].as_str().unwrap(), s["command"].as_str().unwrap());
            let Some(words) = command.strip_prefix("zfs send ") else {
                continue;
            };
            let mut words: Vec<&str> = words.split(' ').collect();
            if GONE.contains(&file) {
                continue;
            }
            if let Some(w) = words.iter_mut().find(|w| **w == "TOKEN") {
                let mut cases = manifest["cases"].as_array().unwrap().iter();
                *w = cases.find_map(|c| c["resume_token"].as_str()).unwrap();
            }
            words.insert(0, "send");
            let ours = match stream_of(&rig, &words) {
                Ok(ours) => ours,
                Err(e) => {
                    bad.push(format!("{command}: {e}"));
                    continue;
                }
            };
            compared += 1;
            if let Some(d) = difference(&ours, &theirs(file)) {
                bad.push(format!("{name} {file}: {command}: {d}"));
            }
            if compared % 8 == 0 {
                dump(&rig, &zfs, &ours);
            }
        }
        for c in manifest["cases"].as_array().unwrap() {
            let (Some(token), Some(says)) = (c["resume_token"].as_str(), c["token_says"].as_str())
            else {
                continue;
            };
            let ours = rig.zfs(&["send", "-nv", "-t", token]);
            if ours != says {
                bad.push(format!("{ours}\n  theirs {says}"));
            }
        }
        rig.stop();
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(compared >= 50, "{compared}");
}

/// OpenZFS's `zstream dump` takes a stream.
fn dump(rig: &Rig, zfs: &OpenZfs, bytes: &[u8]) {
    let file = rig.path().join("stream");
    std::fs::write(&file, bytes).unwrap();
    let mut c = zfs.command("zstream").unwrap();
    let out = c.args(["dump", "-v"]).arg(&file).output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success() && err.is_empty(), "{err}");
}

#[test]
fn a_redaction_bookmark_lists_what_openzfs_lists() {
    let Some((_dir, paths)) = or_skip(fixture::streams("streams")) else {
        return;
    };
    let Some(mut rig) = Rig::new("sent-redacted") else {
        return;
    };
    serve(&mut rig, "streams", true);
    let (fs, redactor) = ("lagoon2s/fs@b", "lagoon2s/redactor@r");
    rig.zfs(&["redact", fs, "ours", redactor]);
    let path = paths
        .iter()
        .find(|p| p.ends_with("redacted.zstream"))
        .unwrap();
    let theirs = std::fs::read(path).unwrap();
    let ours = stream_of(&rig, &["send", "--redact", "ours", fs]).unwrap();
    assert_eq!(difference(&ours, &theirs), None);
    for (words, why) in [
        (vec!["redact", fs, "ours", redactor], "already exists"),
        (
            vec!["redact", fs, "x", "lagoon2s/fs@a"],
            "must be descendent",
        ),
        (
            vec!["redact", fs, "x", "lagoon2s/fs@nope"],
            "does not exist",
        ),
        (vec!["redact", fs, "a#x", redactor], "must not contain '#'"),
        (vec!["send", "--redact", "nope", fs], "does not exist"),
        (
            vec!["send", "--redact", "ba", "lagoon2s/fs@a"],
            "is not a redaction bookmark",
        ),
    ] {
        let said = rig.try_run("zfs", &words).fails(1);
        assert!(said.contains(why), "{words:?}: {said}");
    }
    rig.zfs(&["destroy", "lagoon2s/fs#ours"]);
    rig.zfs(&["redact", fs, "again", redactor]);
    rig.zpool(&["export", "lagoon2s"]);
    rig.zdb_check("lagoon2s");
}

/// Its guids do not fit into the bonus of the list's object, which was made without room for a spill pointer: the pool
/// stopped.
#[test]
fn a_redaction_list_of_many_snapshots_has_a_spill_block() {
    let Some(mut rig) = Rig::new("redacted-by-many") else {
        return;
    };
    let disk = rig.image("d0", 256 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    rig.zfs(&["create", "-o", "recordsize=4K", "tank/fs"]);
    rig.sh(&format!(
        "head -c 262144 /dev/urandom >{0}/fs/file
         zfs snapshot tank/fs@s
         for i in $(seq 60); do
             zfs clone tank/fs@s tank/c$i
             dd if=/dev/zero of={0}/c$i/file bs=4K count=1 seek=$i conv=notrunc status=none
             zfs snapshot tank/c$i@s
         done",
        mnt.display()
    ));
    let clones: Vec<String> = (1..=60).map(|i| format!("tank/c{i}@s")).collect();
    for many in [36, 37, 60] {
        let name = format!("m{many}");
        let mut words = vec!["redact", "tank/fs@s", &name];
        words.extend(clones[..many].iter().map(String::as_str));
        rig.zfs(&words);
    }
    let spill = |rig: &Rig| {
        rig.zpool(&[
            "get",
            "-Ho",
            "value",
            "feature@redaction_list_spill",
            "tank",
        ])
    };
    assert_eq!(spill(&rig).trim(), "active");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
    rig.zpool(&["import", "-d", rig.disks().to_str().unwrap(), "tank"]);
    rig.sh("zfs send --redact m60 tank/fs@s | zfs receive -u tank/copy");
    let guids = rig.get("redact_snaps", "tank/copy@s");
    assert_eq!(guids.split(',').count(), 60);
    rig.zfs(&["destroy", "tank/fs#m37"]);
    rig.zfs(&["destroy", "tank/fs#m60"]);
    assert_eq!(spill(&rig).trim(), "enabled");
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// The base is a redaction bookmark: what it lists is in the rest, too, though its snapshot has the same guid.
#[test]
fn an_increment_from_a_redaction_bookmark_is_gone_on_with() {
    let Some(mut rig) = Rig::new("redacted-resumed") else {
        return;
    };
    let disk = rig.image("d0", 256 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    rig.sh(&format!(
        "zfs create -o recordsize=4K -o compression=off tank/fs
         head -c 2097152 /dev/urandom >{0}/fs/file
         zfs snapshot tank/fs@1; zfs clone tank/fs@1 tank/c
         dd if=/dev/zero of={0}/c/file bs=4K count=400 seek=100 conv=notrunc status=none
         zfs snapshot tank/c@s; zfs redact tank/fs@1 book tank/c@s
         zfs send --redact book tank/fs@1 | zfs receive -u tank/copy
         head -c 100000 /dev/urandom >{0}/fs/more; zfs snapshot tank/fs@2
         zfs send -i '#book' tank/fs@2 >{0}/stream
         head -c 65536 {0}/stream | fails zfs receive -su tank/copy
         zfs send -t $(zfs get -Ho value receive_resume_token tank/copy) | zfs receive -su tank/copy
         zfs mount tank/copy
         cmp {0}/fs/file {0}/copy/file; cmp {0}/fs/more {0}/copy/more",
        mnt.display()
    ));
    rig.zpool(&["export", "tank"]);
    rig.zdb_check("tank");
}

/// Starts a stream into a pipe that nobody reads yet.
fn begin(rig: &Rig, words: &[&str]) -> Child {
    let mut c = rig.command("zfs", words);
    let piped = c.stdin(Stdio::null()).stdout(Stdio::piped());
    piped.stderr(Stdio::piped()).spawn().unwrap()
}

fn first_bytes(child: &mut Child) {
    let mut b = [0; 312];
    child.stdout.as_mut().unwrap().read_exact(&mut b).unwrap();
}

/// A pool with a snapshot of 64 MiB of data, and small ones of another file system.
fn pool(rig: &mut Rig) -> std::path::PathBuf {
    let disk = rig.image("d0", 512 << 20);
    let mnt = rig.mnt().join("tank");
    rig.start();
    rig.zpool(&["create", "-m", mnt.to_str().unwrap(), "tank", &disk]);
    let mut data = vec![0u8; 64 << 20];
    let mut x = 1u64;
    for w in data.chunks_exact_mut(8) {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        w.copy_from_slice(&x.to_le_bytes());
    }
    std::fs::write(mnt.join("big"), data).unwrap();
    rig.zfs(&["snapshot", "tank@1"]);
    rig.zfs(&["create", "tank/small"]);
    std::fs::write(mnt.join("small/file"), b"hello").unwrap();
    rig.zfs(&["snapshot", "tank/small@1"]);
    mnt
}

#[test]
fn a_stream_keeps_its_snapshot_and_ends_with_its_command() {
    let Some(mut rig) = Rig::new("sent-held") else {
        return;
    };
    let mnt = pool(&mut rig);
    let mut one = begin(&rig, &["send", "tank@1"]);
    first_bytes(&mut one);
    let said = rig.try_run("zfs", &["destroy", "tank@1"]).fails(1);
    assert!(said.contains("dataset is busy"), "{said}");
    let said = rig.try_run("zpool", &["export", "tank"]).fails(1);
    assert!(said.contains("pool is busy"), "{said}");
    // Others go on meanwhile: another stream, and the file system.
    let small = stream_of(&rig, &["send", "tank/small@1"]).unwrap();
    assert!(small.len() > 5000);
    std::fs::write(mnt.join("more"), b"x").unwrap();
    // The command goes, and whoever reads the pipe stays.
    let mut pipe = one.stdout.take().unwrap();
    one.kill().unwrap();
    one.wait().unwrap();
    let gone = || rig.try_run("zfs", &["destroy", "tank@1"]).status.success();
    system_tests::until("the stream has ended", gone);
    let mut rest = Vec::new();
    pipe.read_to_end(&mut rest).unwrap();
    assert!(rest.len() < 64 << 20, "{}", rest.len());
    // A reader that goes ends the command. Nobody misses the rest: nothing is said.
    rig.zfs(&["snapshot", "tank@2"]);
    let mut two = begin(&rig, &["send", "tank@2"]);
    first_bytes(&mut two);
    drop(two.stdout.take());
    let out = two.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert_eq!(err, "");
    rig.zpool(&["export", "tank"]);
}

#[test]
fn what_cannot_be_sent_is_refused_in_openzfs_words() {
    let Some(mut rig) = Rig::new("sent-refused") else {
        return;
    };
    let mnt = pool(&mut rig);
    std::fs::write(mnt.join("small/file"), b"hello again").unwrap();
    rig.zfs(&["snapshot", "tank/small@2"]);
    rig.zfs(&["bookmark", "tank/small@1", "tank/small#b"]);
    for (words, code, why) in [
        ("tank/small@nope", 1, "cannot open 'tank/small@nope': dataset does not exist"),
        (
            "-i @nope tank/small@2",
            1,
            "warning: cannot send 'tank/small@2': incremental source (tank/small@nope) does not exist",
        ),
        (
            "-i @2 tank/small@1",
            1,
            "warning: cannot send 'tank/small@1': not an earlier snapshot from the same fs",
        ),
        (
            "-i tank@1 tank/small@2",
            1,
            "warning: cannot send 'tank/small@2': not an earlier snapshot from the same fs",
        ),
        (
            "-i #nope tank/small@2",
            1,
            "warning: cannot send 'tank/small@2': incremental source (tank/small#nope) does not exist",
        ),
        ("-i #b tank/small@1", 1, "not an earlier snapshot from the same fs"),
        ("tank/small", 1, "warning: cannot send 'tank/small': dataset is busy"),
        ("-I @2 tank/small@1", 1, "is not earlier than it"),
        ("-R tank@1", 0, ""),
        ("-t 1-0-0-00", 1, "cannot resume send: "),
        ("-I #b tank/small@2", 1, "multiple snapshots cannot be sent from a bookmark"),
    ] {
        let mut all = vec!["send"];
        all.extend(words.split(' '));
        match stream_of(&rig, &all) {
            Ok(_) => assert_eq!(code, 0, "{words}"),
            Err(said) => assert!(said.contains(why) && code != 0, "{words}: {said}"),
        }
    }
    let said = rig.zfs(&["send", "-nvP", "-I", "@1", "tank/small@2"]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with("incremental\t1\ttank/small@2\t"),
        "{said}"
    );
    assert!(lines[1].starts_with("size\t"), "{said}");
    // A head that is not in use.
    rig.zfs(&["unmount", "tank/small"]);
    let head = stream_of(&rig, &["send", "-i", "@2", "tank/small"]).unwrap();
    let (_, all) = streams(&head);
    assert_eq!(all.keys().next().unwrap(), b"tank/small@--head--");
    // -v tells what is sent, and that it is being sent.
    let out = rig.path().join("out");
    let mut c = rig.command("zfs", &["send", "-v", "tank@1"]);
    let done = c.stdout(File::create(&out).unwrap()).output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        err.starts_with("full send of tank@1 estimated size is 64"),
        "{err}"
    );
    assert!(err.contains("TIME        SENT   SNAPSHOT tank@1"), "{err}");
    assert!(Path::new(&out).metadata().unwrap().len() > 64 << 20);
    rig.zpool(&["export", "tank"]);
}

/// OpenZFS's `zstream dump` takes the stream, and it is received here, encrypted or not.
#[test]
fn a_stream_of_what_is_encrypted_is_as_short_as_its_data_are_compressed() {
    let Some(mut rig) = Rig::new("sent-encrypted") else {
        return;
    };
    let mnt = pool(&mut rig);
    let key = rig.path().join("home/key");
    std::fs::write(&key, [7; 32]).unwrap();
    let place = format!("keylocation=file://{}", key.display());
    let secret = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", &place];
    for (fs, more) in [("tank/e", &secret[..]), ("tank/clear", &[])] {
        let how = ["create", "-o", "recordsize=1M", "-o", "compression=lz4"];
        rig.zfs(&[&how[..], more, &[fs]].concat());
        let at = mnt.join(fs.split_once('/').unwrap().1);
        rig.sh(&format!("seq 1000000 > {}/numbers", at.display()));
        rig.zfs(&["snapshot", &format!("{fs}@1")]);
        rig.sh(&format!("seq 200000 > {}/more", at.display()));
        rig.zfs(&["snapshot", &format!("{fs}@2")]);
    }
    let zfs = or_skip(OpenZfs::get());
    for (options, from, to) in [
        ("-Lec", None, "1"),
        ("-c", None, "1"),
        ("-Lec", Some("@1"), "2"),
    ] {
        let send = |fs: &str| {
            let target = format!("{fs}@{to}");
            let mut words = vec!["send", options];
            words.extend(from.iter().flat_map(|f| ["-i", f]));
            words.push(&target);
            stream_of(&rig, &words).unwrap()
        };
        let (stream, clear) = (send("tank/e"), send("tank/clear"));
        let more = stream.len().abs_diff(clear.len());
        assert!(more < 16 << 10, "{} {}", stream.len(), clear.len());
        if let Some(zfs) = &zfs {
            dump(&rig, zfs, &stream);
        }
        let file = rig.path().join("stream");
        std::fs::write(&file, &stream).unwrap();
        for to in ["tank/copy", "tank/e/copy"] {
            if from.is_none() {
                let _ = rig.try_run("zfs", &["destroy", "-r", to]);
            }
            let mut c = rig.command("zfs", &["receive", "-F", to]);
            let done = c.stdin(File::open(&file).unwrap()).output().unwrap();
            let err = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(done.status.success(), "{to}: {err}");
        }
    }
    rig.sh(&format!(
        "cd {}; for d in copy e/copy; do for f in numbers more; do cmp e/$f $d/$f; done; done",
        mnt.display()
    ));
    rig.zpool(&["export", "tank"]);
}
