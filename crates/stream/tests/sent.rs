//! Pools that OpenZFS sent from: our streams are the same, byte for byte.

use base::Result;
use disk::stream::Record;
use pool::{OpenOptions, Pool};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use stream::send::{measure, send, Base, SendSpec, Source};
use stream::{Item, Reader, Writer};
use testkit::{fixture, or_skip};

/// A base by name: a snapshot, or a bookmark, of the file system `fs` or another one.
fn base_of(pool: &Pool, fs: &str, name: &str) -> Result<Base> {
    let full = match name.starts_with(['@', '#']) {
        true => format!("{fs}{name}"),
        false => name.to_string(),
    };
    let is_origin = !full.starts_with(&format!("{fs}@")) && !full.starts_with(&format!("{fs}#"));
    match full.split_once('#') {
        None => Base::of_snapshot(&*pool.dsl().dataset(&full)?, is_origin),
        Some((of, mark)) => {
            let mark = pool.dsl().dataset(of)?.bookmark(mark)?.unwrap();
            Base::of_bookmark(pool.dsl(), &mark, is_origin)
        }
    }
}

/// What a command of the fixture asks for, if it is the stream of one snapshot.
fn spec_of(pool: &Pool, command: &str, n: &HashMap<String, Vec<u8>>) -> Option<(String, SendSpec)> {
    let words: Vec<&str> = command.strip_prefix("zfs send ")?.split(' ').collect();
    let (target, options) = words.split_last()?;
    let mut spec = SendSpec {
        name: target.to_string(),
        ..SendSpec::default()
    };
    let fs = target.split_once('@')?.0;
    let mut it = options.iter();
    while let Some(o) = it.next() {
        match *o {
            "-i" => spec.base = Some(base_of(pool, fs, it.next()?).unwrap()),
            "-L" => spec.large_blocks = true,
            "-e" => spec.embedded = true,
            "-c" => spec.compressed = true,
            "-w" => spec.raw = true,
            "-D" => {}
            "--redact" => {
                let mark = pool
                    .dsl()
                    .dataset(fs)
                    .unwrap()
                    .bookmark(it.next()?)
                    .unwrap();
                let list = pool.dsl().redaction_list(mark.unwrap().redaction_obj);
                spec.redact = Some(Arc::new(list.unwrap()));
            }
            _ => return None,
        }
    }
    let _ = n;
    Some((target.to_string(), spec))
}

fn records(bytes: &[u8]) -> Vec<Item> {
    let mut reader = Reader::new(bytes);
    let mut out = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        out.push(item);
    }
    out
}

/// OpenZFS sends embedded spill blocks in a way that no receiver understands.
fn is_lost_spill(r: &Record) -> bool {
    matches!(r, Record::WriteEmbedded(w) if w.offset == w.length.wrapping_mul(u64::MAX - 1))
}

/// What differs between our stream and OpenZFS's.
fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (ours, theirs) = (records(ours), records(theirs));
    for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
        match (&a.record, &b.record) {
            (Record::Spill(s), w) if is_lost_spill(w) => assert!(s.length > 0),
            (Record::End(_), Record::End(_)) => {}
            (a_, b_) if a_ == b_ && a.payload == b.payload => {}
            (a_, b_) => {
                let same = a.payload == b.payload;
                return Some(format!("record {i}: {a_:?}\n  theirs {b_:?} {same}"));
            }
        }
    }
    (ours.len() != theirs.len()).then(|| format!("{} records, {}", ours.len(), theirs.len()))
}

/// The order in which OpenZFS put properties into the lists of packages.
#[test]
fn properties_of_packages_come_in_the_order_of_openzfs() {
    let Some((_dir, paths)) = or_skip(fixture::streams("streams")) else {
        return;
    };
    let images = fixture::unpack("streams").unwrap();
    let image = images.path().join("d0.img").to_str().unwrap().to_string();
    let env = env_linux::linux_env();
    let found = vdev::discover(&env, &[image]);
    let options = OpenOptions {
        readonly: true,
        ..OpenOptions::default()
    };
    let pool = Pool::open(env, &found.pools[0].config, options).unwrap();
    let mut compared = 0;
    for file in ["props-d.zstream", "R-r2.zstream"] {
        let path = paths.iter().find(|p| p.ends_with(file)).unwrap();
        let bytes = std::fs::read(path).unwrap();
        let begin = Reader::new(&bytes[..]).next().unwrap().unwrap();
        let list = disk::NvList::unpack(&begin.payload).unwrap();
        for fs in stream::Package::from_list(&list).unwrap().file_systems {
            let Ok(ds) = pool.dsl().dataset(&fs.name) else {
                continue;
            };
            let theirs = fs.props.unwrap();
            let theirs: Vec<&str> = theirs.iter().map(|(name, _)| name).collect();
            let mut ours: Vec<String> = ds
                .own_values(false)
                .unwrap()
                .into_iter()
                .map(|p| p.0)
                .collect();
            ours.retain(|name| theirs.contains(&name.as_str()));
            if ours.len() == theirs.len() {
                compared += theirs.len();
                assert_eq!(ours, theirs, "{}", fs.name);
            }
        }
    }
    assert!(compared >= 5, "{compared}");
}

#[test]
fn streams_of_single_snapshots_are_those_of_openzfs() {
    let mut compared = 0;
    let mut bad = Vec::new();
    for name in ["streams", "streams-more", "streams-old", "streams-heal"] {
        let Some((_dir, paths)) = or_skip(fixture::streams(name)) else {
            return;
        };
        let images = fixture::unpack(name).unwrap();
        let text = std::fs::read(fixture::file(name, "manifest.json").unwrap()).unwrap();
        let manifest: Value = serde_json::from_slice(&text).unwrap();
        let env = env_linux::linux_env();
        let image = images.path().join("d0.img").to_str().unwrap().to_string();
        let found = vdev::discover(&env, &[image]);
        let options = OpenOptions {
            readonly: true,
            ..OpenOptions::default()
        };
        let pool = Pool::open(env, &found.pools[0].config, options).unwrap();
        let files: HashMap<String, Vec<u8>> = paths
            .iter()
            .map(|p| {
                let name = p.file_name().unwrap().to_str().unwrap().to_string();
                (name, std::fs::read(p).unwrap())
            })
            .collect();
        for s in manifest["streams"].as_array().unwrap() {
            let (file, command) = (s["file"].as_str().unwrap(), s["command"].as_str().unwrap());
            let Some((target, spec)) = spec_of(&pool, command, &files) else {
                continue;
            };
            let source = Source::open(&pool.dsl().dataset(&target).unwrap()).unwrap();
            let mut out = Writer::new(Vec::new());
            let features = pool.dsl().features().clone();
            match send(&source, &spec, &*features, &mut out, &mut || Ok(())) {
                Ok(()) => {}
                // The key is not loaded.
                Err(e) if e.kind == base::Kind::Access => continue,
                // Damaged on purpose.
                Err(e) if name == "streams-heal" => {
                    assert_eq!(e.kind, base::Kind::Checksum, "{e}");
                    continue;
                }
                Err(e) => {
                    bad.push(format!("{name} {command}: {e}"));
                    continue;
                }
            }
            out.flush().unwrap();
            let length = measure(&source, &spec, &*features, &mut || Ok(())).unwrap();
            assert_eq!(length, out.written(), "{command}");
            let ours = out.into_inner();
            compared += 1;
            if let Some(d) = difference(&ours, &files[file]) {
                bad.push(format!("{name} {command}: {d}"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(compared >= 30, "{compared}");
}
