use crate::mem::MemStore;
use crate::table::Hdr;
use crate::*;
use base::Kind;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Checks every invariant of the format; returns the number of entries.
fn check(s: &MemStore) -> u64 {
    let zap = Zap::new(s);
    let head = s.block(0).unwrap();
    if Zap::<MemStore>::is_micro(&head).unwrap() {
        return zap.count().unwrap();
    }
    let h = Hdr::parse(&head).unwrap();
    assert_ne!(h.salt, 0);
    let mut runs: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for i in 0..1u64 << h.zt_shift {
        let p = zap.pointer(&h, i).unwrap();
        assert!(p < h.freeblk);
        let r = runs.entry(p).or_insert((i, 0));
        assert_eq!(r.0 + r.1, i, "pointers to a leaf are consecutive");
        r.1 += 1;
    }
    assert_eq!(runs.len() as u64, h.num_leafs);
    let mut total = 0;
    for (blk, (first, n)) in &runs {
        let b = s.block(*blk).unwrap();
        let (g, lh, all) = leaf::entries(&b).unwrap();
        assert_eq!(*n, 1 << (h.zt_shift - lh.prefix_len));
        assert_eq!(lh.prefix, first >> (h.zt_shift - lh.prefix_len));
        assert_eq!(lh.nentries, all.len());
        let mut used = 0;
        let mut by_hash: HashMap<u64, Vec<u32>> = HashMap::new();
        for e in &all {
            let name = leaf::name(&b, g, e, h.name_int()).unwrap();
            let v = leaf::value(&b, g, e).unwrap();
            used += leaf::chunks_for(name.len(), v.data.len());
            assert_eq!(
                e.hash.checked_shr(64 - lh.prefix_len).unwrap_or(0),
                lh.prefix
            );
            by_hash.entry(e.hash).or_default().push(e.cd);
        }
        for cds in by_hash.values_mut() {
            cds.sort();
            let n = cds.len();
            cds.dedup();
            assert_eq!(cds.len(), n);
        }
        assert_eq!(lh.nfree + used, g.chunks);
        // The free list is as long as the header says.
        let mut c = disk::bytes::u16_at(&b, 34).unwrap();
        let mut free = 0;
        while c != 0xffff {
            let at = 48 + 2 * g.buckets + 24 * c as usize;
            assert_eq!(b[at], 253);
            c = disk::bytes::u16_at(&b, at + 22).unwrap();
            free += 1;
        }
        assert_eq!(free, lh.nfree);
        if h.normflags != 0 {
            assert_eq!(b[36] & 1, 1);
        }
        total += all.len() as u64;
    }
    assert_eq!(total, h.num_entries);
    total
}

fn all(s: &MemStore) -> BTreeMap<Vec<u8>, Value> {
    let mut last = None;
    let mut out = BTreeMap::new();
    for e in Zap::new(s).iter() {
        let e = e.unwrap();
        assert!(last < Some((e.hash, e.cd)), "(hash, cd) ascends");
        last = Some((e.hash, e.cd));
        assert!(out.insert(e.name, e.value).is_none());
    }
    out
}

/// Random operations against a map.
#[test]
fn agrees_with_a_map() {
    for (round, fat_size) in [0usize, 0, 0, 512, 512, 1024, 4096, 16384, 131072]
        .into_iter()
        .enumerate()
    {
        let mut rng = Rng(round as u64);
        let s = MemStore::new(if fat_size == 0 { 512 } else { fat_size });
        let zap = Zap::new(&s);
        let normflags = if round % 2 == 1 { norm::TOUPPER } else { 0 };
        match fat_size {
            0 => zap.create(&(), normflags).unwrap(),
            _ => zap.create_fat(&(), normflags, 0).unwrap(),
        }
        let mut model: BTreeMap<Vec<u8>, Value> = BTreeMap::new();
        let steps = if fat_size == 0 { 9000 } else { 4000 };
        for step in 0..steps {
            // Growing and shrinking phases; names of all lengths.
            let n = rng.below(if round == 1 { 60 } else { 3000 });
            let name = match n % 7 {
                0 => format!("{n:049}"),
                1 if round != 2 => format!("{n:0120}"),
                _ => format!("n{n}"),
            };
            let small = fat_size == 512;
            let v = match rng.below(5) {
                0 if round != 1 && round != 2 => {
                    let len = rng.below(if small { 60 } else { 300 });
                    Value::bytes(&vec![n as u8; len as usize])
                }
                1 if round != 2 => Value::u16s(&[1, 2, n as u16]),
                _ => Value::u64(rng.next()),
            };
            let deleting = (step / 1500) % 2 == 1;
            match rng.below(10) {
                0..=1 => {
                    let r = zap.add(&(), &name, &v);
                    match model.contains_key(name.as_bytes()) {
                        true => assert_eq!(r.unwrap_err().kind, Kind::Exists),
                        false => {
                            r.unwrap();
                            model.insert(name.into_bytes(), v);
                        }
                    }
                }
                2..=7 if !deleting => {
                    zap.update(&(), &name, &v).unwrap();
                    model.insert(name.into_bytes(), v);
                }
                _ => {
                    let had = model.remove(name.as_bytes()).is_some();
                    assert_eq!(zap.remove_if(&(), &name).unwrap(), had);
                }
            }
            let probe = format!("n{}", rng.below(3000));
            assert_eq!(
                zap.get_value(&probe).unwrap().as_ref(),
                model.get(probe.as_bytes())
            );
            if step % 500 == 0 {
                assert_eq!(check(&s), model.len() as u64);
            }
        }
        assert_eq!(check(&s), model.len() as u64);
        assert_eq!(zap.count().unwrap(), model.len() as u64);
        assert_eq!(all(&s), model);
        // Later doublings of the table happen with the smallest blocks.
        assert!(fat_size != 512 || zap.hdr().unwrap().zt_numblks >= 4);
        for name in model.keys() {
            zap.remove(&(), name).unwrap();
        }
        assert_eq!(check(&s), 0);
        if fat_size != 0 {
            // Emptied, all leaves join again unless a table was being built.
            let h = zap.hdr().unwrap();
            assert!(h.num_leafs == 1 || h.zt_nextblk != 0);
        }
    }
}

#[test]
fn micro_grows_then_becomes_fat() {
    let s = MemStore::new(512);
    let zap = Zap::new(&s);
    zap.create(&(), 0).unwrap();
    for i in 0..7u64 {
        zap.add_u64(&(), &format!("e{i}"), i).unwrap();
    }
    assert_eq!(s.block_size(), 512);
    zap.add_u64(&(), "e7", 7).unwrap();
    assert_eq!(s.block_size(), 1024);
    for i in 8..2047u64 {
        zap.add_u64(&(), &format!("e{i}"), i).unwrap();
    }
    assert_eq!(s.block_size(), 128 << 10);
    let before: Vec<_> = zap.iter().map(|e| e.unwrap()).collect();
    zap.add_u64(&(), "e2047", 2047).unwrap();
    assert_eq!(s.block_size(), 16384);
    assert_eq!(check(&s), 2048);
    // Cookies of the microzap lead to the same entries in the fat ZAP.
    for e in &before {
        let mut c = zap.cursor(e.cookie);
        assert_eq!(c.next().unwrap().unwrap(), *e);
    }
    // Long names and other values convert at once; too long ones are refused first.
    for (name, v) in [
        ("x".repeat(50), Value::u64(1)),
        ("y".into(), Value::u16s(&[1])),
    ] {
        let s = MemStore::new(512);
        let zap = Zap::new(&s);
        zap.create(&(), 0).unwrap();
        zap.add_u64(&(), &"z".repeat(49), 5).unwrap();
        assert_eq!(s.block_size(), 512);
        let long = "q".repeat(256);
        let e = zap.add_u64(&(), &long, 5).unwrap_err();
        assert_eq!(e.kind, Kind::NameTooLong);
        assert_eq!(zap.get(&long).unwrap(), None);
        zap.add(&(), &name, &v).unwrap();
        assert_eq!(s.block_size(), 16384);
        assert_eq!(zap.get(&"z".repeat(49)).unwrap(), Some(5));
        assert_eq!(zap.get_value(&name).unwrap(), Some(v));
        assert_eq!(zap.get(&long).unwrap(), None);
        zap.longname(true).add_u64(&(), &long, 6).unwrap();
        assert_eq!(zap.longname(true).get(&long).unwrap(), Some(6));
        check(&s);
    }
}

/// A directory read in pieces while it grows: nothing that stays is missed or seen twice.
#[test]
fn cookies_survive_growth() {
    let s = MemStore::new(512);
    let zap = Zap::new(&s);
    zap.create(&(), 0).unwrap();
    for i in 0..1500u64 {
        zap.add_u64(&(), &format!("old{i}"), i).unwrap();
    }
    let mut cookie = 0;
    let mut seen = BTreeMap::new();
    let mut added = 0u64;
    loop {
        let mut c = zap.cursor(cookie);
        let part: Vec<_> = c.by_ref().take(10).map(|e| e.unwrap()).collect();
        cookie = c.cookie();
        if part.is_empty() {
            assert_eq!(cookie, u64::MAX);
            break;
        }
        for e in part {
            assert!(seen.insert(e.name, ()).is_none());
        }
        for _ in 0..40 {
            zap.add_u64(&(), &format!("new{added}"), added).unwrap();
            added += 1;
        }
        // What was seen may go.
        let gone = seen.keys().next().unwrap().clone();
        zap.remove_if(&(), &gone).unwrap();
    }
    assert!((0..1500).all(|i| seen.contains_key(format!("old{i}").as_bytes())));
    assert!(zap.cursor(u64::MAX).next().is_none());
    check(&s);
}

/// Each operation touches a few blocks however large the ZAP is.
#[test]
fn two_hundred_thousand_entries() {
    let s = MemStore::new(512);
    let zap = Zap::new(&s);
    zap.create(&(), 0).unwrap();
    const N: u64 = 200_000;
    for i in 0..N {
        let before = s.touched.load(Ordering::Relaxed);
        zap.add_u64(&(), &format!("file-{i}.txt"), i).unwrap();
        let cost = s.touched.load(Ordering::Relaxed) - before;
        // The conversion adds all the entries the microzap had.
        assert!(cost < 60 || i == 2047, "{cost} blocks at {i}");
    }
    assert_eq!(zap.count().unwrap(), N);
    assert!(zap.hdr().unwrap().zt_numblks >= 1);
    assert_eq!(check(&s), N);
    assert_eq!(zap.iter().count() as u64, N);
    for i in (0..N).step_by(97) {
        assert_eq!(zap.get(&format!("file-{i}.txt")).unwrap(), Some(i));
    }
    for i in 0..N {
        zap.remove(&(), &format!("file-{i}.txt")).unwrap();
    }
    assert_eq!(check(&s), 0);
    assert!(s.blocks().len() < 40, "{} blocks left", s.blocks().len());
}

#[test]
fn word_keys_and_collisions() {
    let s = MemStore::new(4096);
    let zap = Zap::new(&s);
    zap.create_fat(&(), 0, 7).unwrap();
    let mut rng = Rng(5);
    let keys: Vec<[u64; 5]> = (0..3000)
        .map(|i| {
            // Some share their hash.
            let first = if i % 100 < 3 { 77 << 32 } else { rng.next() };
            [first, i, rng.next(), 1, 2]
        })
        .collect();
    // 26 of equal hash fit one 4 KiB leaf; stay below.
    let keys: Vec<_> = keys
        .into_iter()
        .enumerate()
        .filter(|(i, k)| k[0] != 77 << 32 || *i < 700)
        .map(|(_, k)| k)
        .collect();
    for (i, k) in keys.iter().enumerate() {
        zap.add(&(), &k[..], &Value::u64s(&[i as u64, 9])).unwrap();
    }
    check(&s);
    for (i, k) in keys.iter().enumerate() {
        let v = zap.get_value(&k[..]).unwrap().unwrap();
        assert_eq!(v.ints(), [i as u64, 9]);
    }
    assert_eq!(zap.iter().count(), keys.len());
    assert!(zap.iter().all(|e| keys
        .iter()
        .any(|k| k[..] == e.as_ref().unwrap().words()[..])));
    assert_eq!(zap.get("name").unwrap_err().kind, Kind::Invalid);
    for k in &keys {
        zap.remove(&(), &k[..]).unwrap();
    }
    assert_eq!(check(&s), 0);

    // More collisions than a leaf can hold is an error, not an endless split.
    let err = (0..200u64)
        .map(|i| zap.add(&(), &[1u64, i][..], &Value::u64(1)))
        .find_map(|r| r.err())
        .unwrap();
    assert_eq!(err.kind, Kind::NoSpace);
    check(&s);
}

#[test]
fn normalized_lookups() {
    for fat in [false, true] {
        let s = MemStore::new(512);
        let zap = Zap::new(&s);
        zap.create(&(), norm::FORM_D | norm::TOUPPER).unwrap();
        if fat {
            zap.upgrade(&()).unwrap();
        }
        // Names with one normalized form share a hash and differ by cd.
        for (i, n) in ["Résumé", "RÉSUMÉ", "résume\u{301}"]
            .into_iter()
            .enumerate()
        {
            zap.add_u64(&(), n, i as u64).unwrap();
        }
        check(&s);
        let find = |n: &str, how| zap.find(n, how).unwrap().map(|f| f.value.as_u64().unwrap());
        assert_eq!(find("RÉSUMÉ", Match::Exact), Some(1));
        assert_eq!(find("résumé", Match::Exact), None);
        assert_eq!(find("résumé", Match::Normalized), Some(0));
        assert_eq!(find("résumé", Match::NormalizedCase), Some(2));
        assert_eq!(find("RE\u{301}SUMÉ", Match::NormalizedCase), Some(1));
        zap.remove_match(&(), "rÉsumÉ".as_bytes(), Match::Normalized)
            .unwrap();
        assert_eq!(find("résumé", Match::Normalized), Some(1));
        // The freed cd is used again.
        zap.add_u64(&(), "réSumé", 9).unwrap();
        assert_eq!(find("résumé", Match::Normalized), Some(9));
    }
}

#[test]
fn integer_helpers() {
    let s = MemStore::new(512);
    let zap = Zap::new(&s);
    zap.create(&(), 0).unwrap();
    zap.add_int(&(), 0x1f).unwrap();
    assert_eq!(zap.get("1f").unwrap(), Some(0x1f));
    zap.add_int_key(&(), 0, 5).unwrap();
    assert_eq!(zap.get_int_key(0).unwrap(), Some(5));
    assert_eq!(zap.increment(&(), "c", 5).unwrap(), 5);
    assert_eq!(zap.increment(&(), "c", -5).unwrap(), 0);
    assert!(!zap.contains("c").unwrap());
    assert_eq!(zap.increment(&(), "c", 0).unwrap(), 0);
    assert_eq!(zap.name_of(0x1f, u64::MAX).unwrap(), Some(b"1f".to_vec()));
    assert_eq!(parse_hex_key(b"1f").unwrap(), 0x1f);
    assert!(parse_hex_key(b"xyz").is_err());
    zap.add(&(), "s", &Value::string("text")).unwrap();
    assert_eq!(
        zap.get_value("s").unwrap().unwrap().to_text().unwrap(),
        "text"
    );
    assert_eq!(zap.get("s").unwrap_err().kind, Kind::Invalid);
    zap.remove_int(&(), 0x1f).unwrap();
    assert_eq!(zap.remove_int(&(), 0x1f).unwrap_err().kind, Kind::NotFound);
}

/// Whatever the bytes are, operations end, with an error or without.
#[test]
fn hostile_bytes() {
    let s = MemStore::new(4096);
    let zap = Zap::new(&s);
    zap.create_fat(&(), 0, 0).unwrap();
    for i in 0..400u64 {
        zap.add_u64(&(), &format!("name-{i}"), i).unwrap();
    }
    let m = MemStore::new(2048);
    let zm = Zap::new(&m);
    zm.create(&(), norm::TOUPPER).unwrap();
    for i in 0..30u64 {
        zm.add_u64(&(), &format!("name-{i}"), i).unwrap();
    }
    let mut rng = Rng(11);
    for round in 0..3000 {
        let from = if round % 4 == 0 { &m } else { &s };
        let size = from.block_size();
        let mut blocks: Vec<(u64, Vec<u8>)> = from
            .blocks()
            .into_iter()
            .map(|(i, b)| (i, b.to_vec()))
            .collect();
        for _ in 0..1 + rng.below(6) {
            let k = rng.below(blocks.len() as u64) as usize;
            let at = match rng.below(3) {
                0 => rng.below(128),
                _ => rng.below(size as u64),
            } as usize;
            match rng.below(3) {
                0 => blocks[k].1[at] = rng.next() as u8,
                1 => blocks[k].1[at] = 0xff,
                _ => {
                    let at = at & !7;
                    let w = [0, 1, u64::MAX, 1 << 40, 64, 0xffff][rng.below(6) as usize];
                    blocks[k].1[at..at + 8].copy_from_slice(&w.to_le_bytes());
                }
            }
        }
        let bad = MemStore::from_blocks(size, blocks);
        let zap = Zap::new(&bad);
        let _ = zap.count();
        let _ = zap.iter().take(5000).filter(|e| e.is_ok()).count();
        let _ = zap.int_keys();
        for i in 0..6 {
            let n = format!("name-{}", i * 60);
            let _ = zap.get(&n);
            let _ = zap.update(&(), &n, &Value::bytes(&[1; 100]));
            let _ = zap.add_u64(&(), &format!("new-{i}"), 1);
            let _ = zap.remove_if(&(), &n);
        }
    }
    let empty = MemStore::new(512);
    assert_eq!(Zap::new(&empty).get("x").unwrap_err().kind, Kind::Damaged);
}

#[test]
fn integer_keys_filled_at_once_are_those_added_one_by_one() {
    let mut rng = Rng(5);
    for n in [0, 1, 7, 8, 2046, 2047, 2048, 5_000, 40_000, 400_000u64] {
        let list: Vec<(u64, u64)> = (0..n).map(|i| (i * 3 + rng.below(3), rng.next())).collect();
        let s = MemStore::new(512);
        let zap = Zap::new(&s);
        zap.create(&(), 0).unwrap();
        zap.fill_int_keys(&(), &list).unwrap();
        assert_eq!(check(&s), n);
        let mut read = zap.int_keys().unwrap();
        read.sort_unstable();
        assert_eq!(read, list);
        for (k, v) in list.iter().step_by(997) {
            assert_eq!(zap.get_int_key(*k).unwrap(), Some(*v));
        }
        // It goes on as any other.
        for i in 0..100 {
            zap.add_int_key(&(), 1 << 40 | i, i).unwrap();
        }
        for (k, _) in list.iter().step_by(1009) {
            zap.remove(&(), &hex_key(*k)).unwrap();
        }
        let left = n + 100 - n.div_ceil(1009);
        assert_eq!(check(&s), left);
        assert_eq!(zap.int_keys().unwrap().len() as u64, left);
        assert_eq!(
            zap.fill_int_keys(&(), &[(1, 1)]).unwrap_err().kind,
            Kind::Invalid
        );
    }
    let s = MemStore::new(512);
    let zap = Zap::new(&s);
    zap.create(&(), 0).unwrap();
    let twice = zap.fill_int_keys(&(), &[(1, 1), (1, 2)]);
    assert_eq!(twice.unwrap_err().kind, Kind::Invalid);
}

#[test]
fn a_thread_that_only_looks_reads_nothing_behind_the_back_of_a_change() {
    let s = MemStore::new(512);
    let zap = Zap::new(&s);
    zap.create(&(), 0).unwrap();
    zap.add_int_key(&(), 1, 2).unwrap();
    let changing = s.lock().write().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _unwilling = base::sync::unwilling_when(|| true);
            let suspended = |e: Option<base::Error>| assert_eq!(e.unwrap().kind, Kind::Suspended);
            suspended(zap.int_keys().err());
            suspended(zap.get_int_key(1).err());
            suspended(zap.count().err());
            suspended(zap.iter().next().unwrap().err());
            suspended(zap.stats().err());
        });
    });
    drop(changing);
    assert_eq!(zap.int_keys().unwrap(), [(1, 2)]);
}
