//! Streams made by OpenZFS, read and written again.

use base::Kind;
use disk::stream::{HeaderType, Record};
use std::path::{Path, PathBuf};
use stream::{BeginList, Package, Reader, Writer};
use testkit::{fixture, or_skip};

/// Streams that a flipped bit or a cut has damaged, or that were saved without their end.
fn is_damaged(path: &Path) -> bool {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let suffixes = ["-part", "-bit", "-begin", "-end"];
    ["part1", "corrupt", "short", "saved"].contains(&name)
        || suffixes.iter().any(|s| name.ends_with(s))
}

fn all() -> Vec<(testkit::TempDir, Vec<PathBuf>)> {
    ["streams", "streams-more", "streams-heal", "streams-old"]
        .iter()
        .filter_map(|name| or_skip(fixture::streams(name)))
        .collect()
}

/// Writes again what a reader hands out.
fn copy(bytes: &[u8]) -> base::Result<Vec<u8>> {
    let mut reader = Reader::new(bytes);
    let mut writer = Writer::new(Vec::new());
    let mut packed = None;
    while let Some(item) = reader.next()? {
        match &item.record {
            Record::Begin(b) if b.header_type == HeaderType::Compound => {
                // `send -I` without properties has no list.
                let list = match item.payload.is_empty() {
                    true => disk::NvList::new(),
                    false => disk::NvList::unpack(&item.payload)?,
                };
                packed = Some((b.clone(), list));
            }
            Record::End(end) => match packed.take() {
                Some((begin, list)) => writer.begin_package(&begin, &list)?,
                None if end.checksum == [0; 4] => writer.end_package()?,
                None => writer.end(end.to_guid)?,
            },
            r => writer.write(r, &item.payload)?,
        }
        reader.recycle(item.payload);
    }
    assert_eq!(reader.position(), bytes.len() as u64);
    writer.flush()?;
    assert_eq!(writer.written(), bytes.len() as u64);
    Ok(writer.into_inner())
}

#[test]
fn streams_of_openzfs_are_the_same_after_reading_and_writing() {
    let mut n = 0;
    for (_dir, paths) in all() {
        for path in paths {
            let bytes = std::fs::read(&path).unwrap();
            n += 1;
            match copy(&bytes) {
                Ok(again) => {
                    assert!(again == bytes, "{}", path.display());
                    assert!(!is_damaged(&path), "{}", path.display());
                }
                Err(e) => {
                    assert!(is_damaged(&path), "{}: {e}", path.display());
                    assert!(matches!(e.kind, Kind::NoData | Kind::Checksum), "{e:?}");
                }
            }
        }
    }
    println!("{n} streams");
}

#[test]
fn lists_of_openzfs_are_the_same_after_reading_and_writing() {
    let (mut packages, mut lists) = (0, 0);
    for (_dir, paths) in all() {
        for path in paths {
            let bytes = std::fs::read(&path).unwrap();
            let mut reader = Reader::new(&bytes[..]);
            while let Ok(Some(item)) = reader.next() {
                let Record::Begin(begin) = &item.record else {
                    continue;
                };
                if item.payload.is_empty() {
                    continue;
                }
                let again = match begin.header_type {
                    HeaderType::Compound => {
                        packages += 1;
                        let list = disk::NvList::unpack(&item.payload).unwrap();
                        Package::from_list(&list).unwrap().to_list().pack_xdr()
                    }
                    _ => {
                        lists += 1;
                        let list = BeginList::from_payload(&item.payload).unwrap();
                        list.to_list().pack_native()
                    }
                };
                assert!(again == item.payload, "{}", path.display());
            }
        }
    }
    println!("{packages} packages, {lists} lists of streams");
}
