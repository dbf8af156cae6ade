//! Block cache, allocator, ZAP: operations a second.

use super::Bench;
use crate::data::Numbers;
use base::{RangeSet, Result, Txg};
use disk::{BlkPtr, Checksum, Compression, Dva, ObjType};
use space::{AllocReq, Class, Space, TopSpec};
use std::hint::black_box;
use std::sync::Arc;
use zap::{mem::MemStore, Value, Zap};
use zio::Cache;

pub fn pointer(n: u64) -> BlkPtr {
    let mut bp = BlkPtr::new(
        ObjType::PLAIN_FILE_CONTENTS,
        0,
        4096,
        4096,
        Compression::OFF,
        Checksum::FLETCHER4,
        Txg::new(5),
    );
    bp.set_dva(0, Dva::new(0, n << 12, 4096, false));
    bp.set_checksum([n, 0, 0, 0]);
    bp
}

const CACHED: u64 = 10_000;
const BATCH: u64 = 1000;

pub fn cache(b: &mut Bench) -> Result<()> {
    let cache = Cache::new(CACHED * 8192, 1, Arc::default());
    let block = Arc::new(vec![0; 4096]);
    let pointers: Vec<BlkPtr> = (0..CACHED).map(pointer).collect();
    pointers.iter().for_each(|p| cache.insert(p, block.clone()));
    let mut numbers = Numbers::new(1);
    b.rate("cache", "hits".into(), "1/s", || {
        for _ in 0..BATCH {
            let p = &pointers[numbers.below(CACHED) as usize];
            black_box(cache.get(p));
        }
        Ok(BATCH as f64)
    })?;
    b.rate("cache", "hits, two threads".into(), "1/s", || {
        std::thread::scope(|s| {
            for t in 0..2 {
                let (cache, pointers) = (&cache, &pointers);
                s.spawn(move || {
                    let mut numbers = Numbers::new(t);
                    // Long enough for the cost of the threads not to matter.
                    for _ in 0..BATCH * 100 {
                        black_box(cache.get(&pointers[numbers.below(CACHED) as usize]));
                    }
                });
            }
        });
        Ok(BATCH as f64 * 200.0)
    })?;
    let mut next = CACHED;
    b.rate(
        "cache",
        "insertions into a full cache".into(),
        "1/s",
        || {
            for _ in 0..BATCH {
                next += 1;
                cache.insert(&pointer(next), block.clone());
            }
            Ok(BATCH as f64)
        },
    )?;
    Ok(())
}

const METASLAB: u32 = 28;
const METASLABS: u64 = 8;

fn top() -> Result<Space> {
    let space = Space::new();
    space.add_top(TopSpec {
        id: 0,
        asize: METASLABS << METASLAB,
        ashift: 12,
        ms_shift: METASLAB,
        class: Class::Normal,
        deflate_ratio: 512,
        children: 1,
        align: 0,
    })?;
    Ok(space)
}

/// Allocates a batch and gives it back within the txg, so that the state stays as it was.
fn allocate(b: &mut Bench, name: &str, space: &Space, sizes: &[u64]) -> Result<()> {
    let mut taken = Vec::new();
    let mut n = 0;
    b.rate("allocator", name.into(), "1/s", || {
        for _ in 0..BATCH {
            n += 1;
            let size = sizes[n % sizes.len()];
            taken.extend(space.alloc(&AllocReq {
                class: Class::Normal,
                copies: 1,
                txg: Txg::new(5),
                size_on: &|_| size,
                hint: 0,
            })?);
        }
        for e in taken.drain(..) {
            space.unalloc(e.vdev, e.offset, e.asize, Txg::new(5))?;
        }
        Ok(BATCH as f64)
    })?;
    Ok(())
}

pub fn allocator(b: &mut Bench) -> Result<()> {
    let empty = top()?;
    allocate(
        b,
        "empty, 128 KiB, taken and given back",
        &empty,
        &[128 << 10],
    )?;
    allocate(b, "empty, 4 KiB", &empty, &[4 << 10])?;
    let full = top()?;
    let mut numbers = Numbers::new(4);
    for m in 0..METASLABS {
        // Free pieces of 4 to 32 KiB, a quarter of all space.
        let mut free = RangeSet::new();
        let mut at = m << METASLAB;
        while at < (m + 1) << METASLAB {
            let len = numbers.between(1, 8) << 12;
            free.insert(at, (at + len).min((m + 1) << METASLAB));
            at += len * 4;
        }
        full.load_metaslab(0, m, free)?;
    }
    let sizes = [4 << 10, 16 << 10, 8 << 10, 12 << 10];
    allocate(
        b,
        "three quarters full, in pieces, 4 to 16 KiB",
        &full,
        &sizes,
    )
}

const NAMES: u64 = 50_000;

pub fn zap(b: &mut Bench) -> Result<()> {
    let names: Vec<String> = (0..NAMES)
        .map(|n| format!("some-file-{n:06}.txt"))
        .collect();
    let fill = |count: usize| -> Result<MemStore> {
        let store = MemStore::new(512);
        let zap = Zap::new(&store);
        zap.create(&(), 0)?;
        for (n, name) in names.iter().take(count).enumerate() {
            zap.add(&(), name.as_str(), &Value::u64(n as u64))?;
        }
        Ok(store)
    };
    for (count, title) in [(1000, "1,000 names"), (NAMES as usize, "50,000 names")] {
        b.rate("zap", format!("{title}: filled"), "1/s", || {
            black_box(fill(count)?);
            Ok(count as f64)
        })?;
        let store = fill(count)?;
        let zap = Zap::new(&store);
        let mut numbers = Numbers::new(6);
        b.rate("zap", format!("{title}: looked up"), "1/s", || {
            for _ in 0..BATCH {
                let name = &names[numbers.below(count as u64) as usize];
                black_box(zap.get(name.as_str())?);
            }
            Ok(BATCH as f64)
        })?;
        b.rate("zap", format!("{title}: removed and added"), "1/s", || {
            for _ in 0..BATCH {
                let name = &names[numbers.below(count as u64) as usize];
                zap.remove(&(), name.as_str())?;
                zap.add(&(), name.as_str(), &Value::u64(1))?;
            }
            Ok(BATCH as f64 * 2.0)
        })?;
        b.rate("zap", format!("{title}: listed"), "1/s", || {
            let mut seen = 0.0;
            for e in zap.iter() {
                black_box(e?);
                seen += 1.0;
            }
            Ok(seen)
        })?;
    }
    Ok(())
}
