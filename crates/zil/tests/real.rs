//! Logs that OpenZFS left on real pools. Needs the fixtures beside the workspace; skipped otherwise.

use base::{bail, Block, Result, Txg};
use disk::{BlkPtr, Checksum, Compression};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use zil::{walk, LogBlocks};

/// Where a vdev's allocatable space begins.
const DATA_START: u64 = 4 << 20;

struct Image(Vec<u8>);

impl LogBlocks for Image {
    fn read_block(&self, bp: &BlkPtr, verify: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Vec<u8>> {
        let at = (bp.dva(0).offset() + DATA_START) as usize;
        match self.0.get(at..at + bp.psize()) {
            Some(b) if verify(b) => Ok(b.to_vec()),
            _ => bail!(Checksum, "not a log block"),
        }
    }
    fn read_data(&self, _: &BlkPtr) -> Result<Block> {
        bail!(Io, "not here")
    }
    fn claim(&self, _: &BlkPtr, _: Txg) -> Result<()> {
        Ok(())
    }
    fn free(&self, _: &BlkPtr, _: Txg) -> Result<()> {
        Ok(())
    }
}

fn unpack(fixture: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let archive = root.join(fixture).join("images.tar.zst");
    if !archive.exists() {
        println!("skipped: no fixture {fixture}");
        return None;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("zil-{fixture}"));
    std::fs::create_dir_all(&dir).ok()?;
    let done = Command::new("tar")
        .arg("--zstd")
        .arg("-xSf")
        .arg(&archive)
        .arg("-C")
        .arg(&dir)
        .status();
    match done {
        Ok(s) if s.success() => Some(dir),
        _ => {
            println!("skipped: cannot unpack {fixture}");
            None
        }
    }
}

/// Finds log blocks by their magic and follows the chains they belong to from the earliest block
/// still there. Gives records per type.
fn records(image: &Image, big: &mut u64) -> BTreeMap<u64, u64> {
    let mut firsts: BTreeMap<[u64; 2], BlkPtr> = BTreeMap::new();
    for at in (DATA_START as usize..image.0.len()).step_by(512) {
        let Some(b) = image.0.get(at..at + 4096) else {
            break;
        };
        let magic = codec::checksum::EMBEDDED_MAGIC.to_le_bytes();
        if b[144..152] != magic {
            continue;
        }
        let Ok(next) = BlkPtr::read(&b[8..], false) else {
            continue;
        };
        let id = next.checksum();
        if id[3] < 2 || next.is_hole() {
            continue;
        }
        // The block that leads to its successor must itself be valid under the number before.
        let mut bp = next;
        bp.set_checksum([id[0], id[1], id[2], id[3] - 1]);
        // Its size is not known here: try what the data allows.
        for size in (1..=32).map(|n| n * 4096) {
            let dva = disk::Dva::new(0, at as u64 - DATA_START, size as u64, false);
            let mut try_bp = BlkPtr::new(
                next.obj_type(),
                0,
                size,
                size,
                Compression::OFF,
                Checksum::ZILOG2,
                Txg::new(1),
            );
            try_bp.set_dva(0, dva);
            try_bp.set_checksum(bp.checksum());
            let end = walk(
                image,
                &try_bp,
                (id[3] - 1, u64::MAX),
                &mut |_| Ok(true),
                &mut |_| Ok(true),
            )
            .unwrap();
            if end.records > 0 {
                let e = firsts.entry([id[0], id[1]]).or_insert(try_bp);
                if e.checksum()[3] > id[3] - 1 {
                    *e = try_bp;
                }
                break;
            }
        }
    }
    let mut out = BTreeMap::new();
    for first in firsts.values() {
        let end = walk(
            image,
            first,
            (u64::MAX, u64::MAX),
            &mut |_| Ok(true),
            &mut |r| {
                let d = r.decode().unwrap();
                assert_eq!(d.body.txtype(), r.ty);
                *out.entry(r.ty).or_insert(0) += 1;
                Ok(true)
            },
        )
        .unwrap();
        *big = end.blocks.max(*big);
    }
    out
}

#[test]
fn real_logs_are_read_whole() {
    for (fixture, image) in [("zil", "d0.img"), ("zil-slog", "d1.img")] {
        let Some(dir) = unpack(fixture) else { continue };
        let bytes = std::fs::read(dir.join(image)).unwrap();
        let mut longest = 0;
        let found = records(&Image(bytes), &mut longest);
        println!("{fixture}: {found:?}, longest chain {longest}");
        let all: u64 = found.values().sum();
        assert!(all > 20 && longest > 3, "{fixture}: {found:?}, {longest}");
        assert!(found.contains_key(&zil::tx::WRITE) && found.contains_key(&zil::tx::CREATE));
        let _ = std::fs::remove_dir_all(dir);
    }
}
