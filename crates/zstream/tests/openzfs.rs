//! Our `zstream` beside OpenZFS's: the same arguments and the same input give the same output and the same status.

use disk::stream::{feature, Begin, Record, WriteByRef};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use stream::{Reader, Writer};
use testkit::{fixture, or_skip, OpenZfs, TempDir};

/// What a program did.
#[derive(PartialEq, Debug)]
struct Done {
    /// None: it died by a signal.
    status: Option<i32>,
    out: Vec<u8>,
    err: String,
}

fn run(mut command: Command, args: &[&str], input: &[u8]) -> Done {
    let mut child = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|s| {
        // A program that ends before it has read all closes the pipe.
        s.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    });
    Done {
        status: output.status.code(),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn ours(args: &[&str], input: &[u8]) -> Done {
    run(Command::new(env!("CARGO_BIN_EXE_zstream")), args, input)
}

struct Pair(OpenZfs);

impl Pair {
    fn theirs(&self, args: &[&str], input: &[u8]) -> Done {
        run(self.0.command("zstream").unwrap(), args, input)
    }

    /// Both do the same.
    fn same(&self, what: &str, args: &[&str], input: &[u8]) -> Done {
        let (a, b) = (self.theirs(args, input), ours(args, input));
        if a != b {
            let text = |d: &Done| String::from_utf8_lossy(&d.out).into_owned();
            let (x, y) = (text(&a), text(&b));
            let line = x.lines().zip(y.lines()).find(|(x, y)| x != y);
            panic!(
                "{what} {args:?}: {:?} and {:?}; {} and {} bytes, first {line:?}; {:?} and {:?}",
                a.status,
                b.status,
                a.out.len(),
                b.out.len(),
                a.err,
                b.err
            );
        }
        b
    }
}

/// All streams of the fixtures that are here.
fn all() -> Vec<(TempDir, Vec<PathBuf>)> {
    ["streams", "streams-more", "streams-heal", "streams-old"]
        .iter()
        .filter_map(|name| or_skip(fixture::streams(name)))
        .collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Every stream that OpenZFS made, the damaged ones as well.
#[test]
fn dump_prints_the_same() {
    let Some(openzfs) = or_skip(OpenZfs::get()) else {
        return;
    };
    let pair = Pair(openzfs);
    for (_dir, paths) in all() {
        for path in paths {
            let bytes = std::fs::read(&path).unwrap();
            pair.same(name(&path), &["dump", "-vv"], &bytes);
            if bytes.len() < 200_000 {
                pair.same(name(&path), &["dump"], &bytes);
                // Of a payload that is not all there OpenZFS prints what its buffer held before.
                let whole = !name(&path).contains("-part");
                let args = if whole { "-Cd" } else { "-Cv" };
                pair.same(name(&path), &["dump", args], &bytes);
                let file = path.to_str().unwrap();
                pair.same(name(&path), &["dump", "-v", file], b"");
            }
        }
    }
}

/// The records of a stream in the other byte order, with new checksums.
fn swapped(bytes: &[u8]) -> Vec<u8> {
    let mut reader = Reader::new(bytes);
    let mut writer = Writer::new_swapped(Vec::new());
    while let Some(item) = reader.next().unwrap() {
        match item.record {
            Record::End(end) => writer.end(end.to_guid).unwrap(),
            r => writer.write(&r, &item.payload).unwrap(),
        }
    }
    writer.flush().unwrap();
    writer.into_inner()
}

/// A stream of some 45 KB without lists.
fn small() -> Option<Vec<u8>> {
    let (_dir, paths) = or_skip(fixture::streams("streams-more"))?;
    let path = paths.iter().find(|p| name(p) == "small.zstream")?;
    Some(std::fs::read(path).unwrap())
}

#[test]
fn dump_prints_the_same_of_foreign_cut_and_spoiled_streams() {
    let (Some(openzfs), Some(small)) = (or_skip(OpenZfs::get()), small()) else {
        return;
    };
    let pair = Pair(openzfs);
    // OpenZFS's program compares and prints the checksums of foreign streams in the wrong byte order.
    let foreign = swapped(&small);
    pair.same("swapped", &["dump", "-Cv"], &foreign);
    let done = ours(&["dump"], &foreign);
    assert_eq!((done.status, done.err.as_str()), (Some(0), ""));
    assert!(!String::from_utf8(done.out).unwrap().contains("ncorrect"));
    for len in [0, 100, 279, 300, 311, 312, 313, 600, 1000, 40_000] {
        pair.same("cut", &["dump", "-vv"], &small[..len]);
        pair.same("cut, no checksums", &["dump", "-Cv"], &small[..len]);
    }
    let mut random = 7u64;
    let mut next = |n: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let mut compared = 0;
    for _ in 0..60 {
        let mut bad = small.clone();
        for _ in 0..1 + next(2) {
            let at = next(6000);
            bad[at] = match next(3) {
                0 => bad[at] ^ 1 << next(8),
                1 => next(12) as u8,
                _ => 255,
            };
        }
        let args = ["dump", ["-v", "-Cv", "-vv"][next(3)]];
        let theirs = pair.theirs(&args, &bad);
        let ours = ours(&args, &bad);
        assert!(ours.status.is_some());
        // OpenZFS takes payloads that no record may have.
        if theirs.status.is_some() && !ours.err.contains("with a payload of") {
            assert_eq!((theirs.status, &theirs.out), (ours.status, &ours.out));
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
}

/// Copying programs give the same bytes.
#[test]
fn redup_and_decompress_write_the_same() {
    let Some(openzfs) = or_skip(OpenZfs::get()) else {
        return;
    };
    let pair = Pair(openzfs);
    for (_dir, paths) in all() {
        for path in paths {
            let bytes = std::fs::read(&path).unwrap();
            // OpenZFS's programs abort at REDACT records, and take a cut stream for a whole one.
            let skip = ["redacted", "part", "redact-inc", "saved"];
            if bytes.len() > 700_000 || skip.iter().any(|s| name(&path).contains(s)) {
                continue;
            }
            let file = path.to_str().unwrap();
            pair.same(name(&path), &["redup", "-v", file], b"");
            pair.same(name(&path), &["decompress"], &bytes);
            if name(&path) != "Lec12.zstream" {
                continue;
            }
            for block in [
                "192,0",
                "192,0,zstd",
                "192,0,foo",
                "x,0",
                "192,x",
                "0xc0,0,gzip",
            ] {
                pair.same("blocks", &["decompress", "-v", block], &bytes);
            }
        }
    }
}

/// The stream with references instead of blocks that were there before.
fn deduplicated(bytes: &[u8]) -> (Vec<u8>, usize) {
    let mut reader = Reader::new(bytes);
    let mut writer = Writer::new(Vec::new());
    let mut seen: Vec<(Vec<u8>, u64, u64)> = Vec::new();
    let mut references = 0;
    while let Some(item) = reader.next().unwrap() {
        match item.record {
            Record::Begin(b) => {
                let features = b.features | feature::DEDUP | feature::DEDUP_PROPS;
                let begin = Begin { features, ..b };
                writer.write(&Record::Begin(begin), &item.payload).unwrap();
            }
            Record::End(end) => writer.end(end.to_guid).unwrap(),
            Record::Write(w) => match seen.iter().find(|s| s.0 == item.payload) {
                Some((_, object, offset)) => {
                    references += 1;
                    let r = WriteByRef {
                        object: w.object,
                        offset: w.offset,
                        length: w.logical_size,
                        to_guid: w.to_guid,
                        ref_guid: w.to_guid,
                        ref_object: *object,
                        ref_offset: *offset,
                        checksum_type: w.checksum_type,
                        flags: w.flags,
                        key: w.key,
                    };
                    writer.write(&Record::WriteByRef(r), &[]).unwrap();
                }
                None => {
                    seen.push((item.payload.clone(), w.object, w.offset));
                    writer.write(&Record::Write(w), &item.payload).unwrap();
                }
            },
            r => writer.write(&r, &item.payload).unwrap(),
        }
    }
    writer.flush().unwrap();
    (writer.into_inner(), references)
}

#[test]
fn redup_puts_data_in_the_place_of_references() {
    let (Some(openzfs), Some((_dir, paths))) = (
        or_skip(OpenZfs::get()),
        or_skip(fixture::streams("streams")),
    ) else {
        return;
    };
    let pair = Pair(openzfs);
    let vol = paths.iter().find(|p| name(p) == "full-a.zstream").unwrap();
    let (bytes, references) = deduplicated(&std::fs::read(vol).unwrap());
    assert!(references > 0);
    let dir = TempDir::new("redup").unwrap();
    let file = dir.path().join("dedup.zstream");
    std::fs::write(&file, &bytes).unwrap();
    let done = pair.same("dedup", &["redup", "-v", file.to_str().unwrap()], b"");
    assert!(done
        .err
        .contains(&format!("including {references} dedup records")));
    pair.same("dedup", &["dump", "-v"], &bytes);
    let mut reader = Reader::new(&done.out[..]);
    while let Some(item) = reader.next().unwrap() {
        assert_ne!(item.record.number(), 6);
    }
    // A reference to nothing is an error, and no crash.
    let missing = WriteByRef {
        ref_object: 1 << 40,
        ..WriteByRef::default()
    };
    let mut writer = Writer::new(Vec::new());
    writer.write(&Record::Begin(Begin::default()), &[]).unwrap();
    writer.write(&Record::WriteByRef(missing), &[]).unwrap();
    writer.flush().unwrap();
    std::fs::write(&file, writer.into_inner()).unwrap();
    let done = ours(&["redup", file.to_str().unwrap()], b"");
    assert_eq!(done.status, Some(1));
    assert!(done
        .err
        .contains("refers to data that is not in the stream"));
}

/// What one program compresses the other decompresses to the same stream.
#[test]
fn recompress_is_undone_by_the_other() {
    let (Some(openzfs), Some((_dir, paths))) = (
        or_skip(OpenZfs::get()),
        or_skip(fixture::streams("streams")),
    ) else {
        return;
    };
    let pair = Pair(openzfs);
    for stream in ["vol.zstream", "R-r2.zstream", "comp-b.zstream"] {
        let path = paths.iter().find(|p| name(p) == stream).unwrap();
        let bytes = std::fs::read(path).unwrap();
        let plain = pair.same(stream, &["recompress", "off"], &bytes).out;
        for args in [
            &["lz4"][..],
            &["gzip-9"],
            &["zle"],
            &["lzjb"],
            &["-l", "3", "zstd"],
        ] {
            let args = [&["recompress"], args].concat();
            let packed = ours(&args, &bytes);
            assert_eq!(packed.status, Some(0), "{args:?}: {}", packed.err);
            assert!(packed.out.len() <= plain.len(), "{args:?}");
            let undone = pair.theirs(&["recompress", "off"], &packed.out);
            assert!(undone.out == plain, "{stream} {args:?}");
            let packed = pair.theirs(&args, &bytes);
            let undone = ours(&["recompress", "off"], &packed.out);
            assert!(undone.out == plain, "{stream} {args:?}, theirs");
        }
    }
    for args in [&["recompress", "foo"][..], &["recompress", "zstd-3"]] {
        pair.same("type", args, b"");
    }
}

/// Bad command lines have the status of OpenZFS's.
#[test]
fn command_lines_without_sense_have_the_same_status() {
    let Some(openzfs) = or_skip(OpenZfs::get()) else {
        return;
    };
    let pair = Pair(openzfs);
    let lines: [&[&str]; 12] = [
        &[],
        &["frob"],
        &["dump", "-x"],
        &["dump", "/nonexistent"],
        &["redup"],
        &["redup", "a", "b"],
        &["redup", "/nonexistent"],
        &["decompress", "7"],
        &["recompress"],
        &["recompress", "lz4", "zle"],
        &["recompress", "-l", "x", "zstd"],
        &["token"],
    ];
    for args in lines {
        let (a, b) = (pair.theirs(args, b""), ours(args, b""));
        assert_eq!(a.status, b.status, "{args:?}: {} and {}", a.err, b.err);
        assert_eq!(a.out, b.out, "{args:?}");
    }
}

/// OpenZFS's program asks the kernel module before it looks at a token; ours needs nothing.
#[test]
fn token_is_shown_or_refused() {
    let token = stream::ResumeToken {
        object: 5,
        to_guid: 6,
        to_name: "tank/home@now".into(),
        embedded: true,
        ..stream::ResumeToken::default()
    };
    let done = ours(&["token", &token.encode()], b"");
    assert_eq!(
        String::from_utf8(done.out).unwrap(),
        "     object: 5\n     offset: 0\n     bytes: 0\n     toguid: 6\n     toname: 'tank/home@now'\n     embedok\n"
    );
    let done = ours(&["token", "1-0-0-"], b"");
    assert_eq!(done.status, Some(1));
    assert_eq!(
        done.err,
        "Unable to parse resume token: resume token is corrupt (decompression failed)\n"
    );
}
