//! ZAPs that are forged, or whose blocks fail while they are changed: no name is lost, nothing goes on for ever, and no
//! operation takes memory without bound.

use base::{Block, Error, Kind, Result};
use disk::ObjType;
use std::cell::Cell;
use std::sync::RwLock;
use zap::mem::MemStore;
use zap::{Indexed, Store, Value, Zap};

const BLOCK: usize = 16 << 10;

/// The name hash: CRC-64, reflected ECMA-182, of which the top 28 bits count.
fn crc(salt: u64, name: &[u8]) -> u64 {
    let step = |h: u64, _| match h & 1 {
        0 => h >> 1,
        _ => (h >> 1) ^ 0xC96C_5795_D787_0F42,
    };
    name.iter()
        .fold(salt, |h, b| (0..8).fold(h ^ u64::from(*b), step))
}

fn salt(store: &MemStore, at: usize) -> u64 {
    let b = store.block(0).unwrap();
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

/// A name whose bytes have six free bits each.
fn name(bits: &[bool]) -> Vec<u8> {
    let low = |b: &[bool]| (0..6).fold(0, |n, i| n | u8::from(b[i]) << i);
    bits.chunks(6).map(|b| 0x40 | low(b)).collect()
}

/// `count` names whose hashes agree in their first `agree` bits. The hash is linear in the bits of a name.
fn alike(salt: u64, agree: u32, count: usize) -> Vec<Vec<u8>> {
    const BITS: usize = 240;
    let zero = crc(salt, &name(&[false; BITS]));
    let mask = !(u64::MAX >> agree);
    // Combinations of bits that change nothing in those: Gauss.
    let mut rows: Vec<(u64, Vec<bool>)> = (0..BITS)
        .map(|i| {
            let mut bits = vec![false; BITS];
            bits[i] = true;
            ((crc(salt, &name(&bits)) ^ zero) & mask, bits)
        })
        .collect();
    let mut kernel = Vec::new();
    while let Some((h, bits)) = rows.pop() {
        if h == 0 {
            kernel.push(bits);
            continue;
        }
        let top = 63 - h.leading_zeros();
        for (other, b) in &mut rows {
            if *other >> top & 1 == 1 {
                *other ^= h;
                b.iter_mut().zip(&bits).for_each(|(a, b)| *a ^= b);
            }
        }
    }
    let sum = |n: usize| {
        let mut bits = vec![false; BITS];
        for (i, k) in kernel.iter().enumerate().take(20) {
            if n >> i & 1 == 1 {
                bits.iter_mut().zip(k).for_each(|(a, b)| *a ^= b);
            }
        }
        name(&bits)
    };
    let out: Vec<_> = (0..count).map(sum).collect();
    let all_alike = out.iter().all(|n| (crc(salt, n) ^ zero) & mask == 0);
    assert!(all_alike);
    out
}

/// A store some of whose blocks cannot be changed.
struct Failing {
    store: MemStore,
    fails: Cell<Option<u64>>,
}

impl Store for Failing {
    type Tx = ();
    fn block_size(&self) -> usize {
        self.store.block_size()
    }
    fn set_block_size(&self, tx: &(), size: usize) -> Result<()> {
        self.store.set_block_size(tx, size)
    }
    fn block(&self, blkid: u64) -> Result<Block> {
        self.store.block(blkid)
    }
    fn modify<R>(&self, tx: &(), blkid: u64, f: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R> {
        if self.fails.get() == Some(blkid) {
            return Err(Error::new(Kind::Io, "made on purpose"));
        }
        self.store.modify(tx, blkid, f)
    }
    fn free_blocks(&self, tx: &(), blkid: u64, n: u64) -> Result<()> {
        self.store.free_blocks(tx, blkid, n)
    }
    fn obj_type(&self) -> ObjType {
        self.store.obj_type()
    }
    fn seed(&self, tx: &()) -> u64 {
        self.store.seed(tx)
    }
    fn lock(&self) -> &RwLock<()> {
        self.store.lock()
    }
    fn index(&self) -> &Indexed {
        self.store.index()
    }
}

#[test]
fn a_microzap_that_cannot_be_converted_keeps_its_names() {
    let store = MemStore::new(512);
    let zap = Zap::new(&store);
    zap.create(&(), 0).unwrap();
    // No pointer table looks at the last two bits of the hash.
    let names = alike(salt(&store, 8), 26, 400);
    for (i, n) in names.iter().enumerate() {
        zap.add_u64(&(), &n[..], i as u64).unwrap();
    }
    let long = [b'l'; 60];
    let e = zap.add_u64(&(), &long[..], 1).unwrap_err();
    assert_eq!(e.kind, Kind::NoSpace, "{e}");
    for (i, n) in names.iter().enumerate() {
        assert_eq!(zap.get(&n[..]).unwrap(), Some(i as u64), "{i}");
    }
    assert_eq!(zap.count().unwrap(), 400);
    // It goes on as it was.
    zap.add_u64(&(), "short", 1).unwrap();
    zap.remove(&(), &names[3][..]).unwrap();
    assert_eq!(zap.iter().count(), 400);
}

#[test]
fn names_with_nearly_the_same_hash_do_not_grow_the_table_without_bound() {
    let store = MemStore::new(BLOCK);
    let zap = Zap::new(&store);
    zap.create_fat(&(), 0, 0).unwrap();
    let names = alike(salt(&store, 80), 24, 400);
    let mut kept = Vec::new();
    for (i, n) in names.iter().enumerate() {
        match zap.add_u64(&(), &n[..], i as u64) {
            Ok(()) => kept.push((n, i as u64)),
            Err(e) => assert_eq!(e.kind, Kind::NoSpace, "{e}"),
        }
        let bytes = store.blocks().len() * BLOCK;
        assert!(bytes < 40 << 20, "{bytes} bytes after {i} names");
    }
    assert!((100..400).contains(&kept.len()), "{}", kept.len());
    for (n, i) in kept {
        assert_eq!(zap.get(&n[..]).unwrap(), Some(i));
    }
    // Others find room.
    for i in 0..3000u64 {
        zap.add_int(&(), i).unwrap();
    }
    assert!((0..3000).all(|i| zap.contains_int(i).unwrap()));
}

#[test]
fn a_leaf_whose_split_fails_keeps_all_its_names() {
    let store = Failing {
        store: MemStore::new(BLOCK),
        fails: Cell::new(None),
    };
    let zap = Zap::new(&store);
    zap.create_fat(&(), 0, 0).unwrap();
    let mut n = 0u64;
    let table = loop {
        zap.add_int(&(), n).unwrap();
        n += 1;
        match salt(&store.store, 16) {
            0 => {}
            table => break table,
        }
    };
    // The table can be read, and not be changed: leaves split, or are to be, all the time.
    store.fails.set(Some(table));
    let first = n;
    let mut failed = 0;
    while failed < 40 {
        match zap.add_int(&(), n) {
            Ok(()) => {}
            Err(e) => {
                assert!(e.is_damage(), "{e}");
                failed += 1;
            }
        }
        n += 1;
    }
    store.fails.set(None);
    assert!((0..first).all(|i| zap.contains_int(i).unwrap()));
    let present = (0..n).filter(|i| zap.contains_int(*i).unwrap()).count();
    assert_eq!(present as u64, n - 40);
    assert_eq!(zap.count().unwrap(), n - 40);
    let seen: Result<Vec<_>> = zap.iter().collect();
    assert_eq!(seen.unwrap().len() as u64, n - 40);
    (n..n + 2000).for_each(|i| zap.add_int(&(), i).unwrap());
    assert_eq!(zap.iter().count() as u64, n - 40 + 2000);
}

/// An entry is changed whole or not at all, also in a leaf whose chains are forged.
#[test]
fn a_value_that_cannot_be_replaced_stays() {
    let store = MemStore::new(BLOCK);
    let zap = Zap::new(&store);
    zap.create_fat(&(), 0, 0).unwrap();
    zap.add(&(), "name", &Value::u64(7)).unwrap();
    // The free list leads to a chunk that is in use: the first one, the entry's.
    store
        .modify(&(), 1, |b| b[34..36].copy_from_slice(&0u16.to_le_bytes()))
        .unwrap();
    let longer = Value {
        size: 1,
        data: vec![1; 100],
    };
    let e = zap.update(&(), "name", &longer).unwrap_err();
    assert!(e.is_damage(), "{e}");
    assert_eq!(zap.get("name").unwrap(), Some(7));
    assert!(zap.add_u64(&(), "other", 1).unwrap_err().is_damage());
    assert_eq!(zap.count().unwrap(), 1);
}

/// Pointers that all lead to one leaf, and entries behind which no cursor comes.
#[test]
fn listing_a_forged_zap_ends() {
    let store = MemStore::new(BLOCK);
    let zap = Zap::new(&store);
    zap.create_fat(&(), 0, 0).unwrap();
    (0..2000).for_each(|i| zap.add_int(&(), i).unwrap());
    let shift = salt(&store, 32);
    assert_eq!(
        (salt(&store, 24), shift),
        (0, 10),
        "the table is in the header"
    );
    // The last leaf, which has the largest hashes, is everywhere.
    store
        .modify(&(), 0, |b| {
            let last = b[BLOCK - 8..].to_vec();
            b[BLOCK / 2..]
                .chunks_mut(8)
                .for_each(|p| p.copy_from_slice(&last));
        })
        .unwrap();
    let listed: Vec<_> = zap.iter().take(3000).collect();
    assert!(listed.len() < 2000, "{}", listed.len());
    assert!(listed.last().unwrap().as_ref().unwrap_err().is_damage());

    let store = MemStore::new(64 << 10);
    let zap = Zap::new(&store);
    zap.create(&(), 0).unwrap();
    store
        .modify(&(), 0, |b| {
            for e in b[64..].chunks_mut(64) {
                e[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
                e[14..18].copy_from_slice(b"same");
            }
        })
        .unwrap();
    assert!(zap.iter().take(5000).count() <= 1023);
    // As a program lists it: each time from the cookie of the entry before.
    let (mut at, mut steps) = (0, 0);
    while let Some(e) = zap.cursor(at).next() {
        at = e.unwrap().next;
        steps += 1;
        assert!(steps <= 1023, "it never ends");
    }
}
