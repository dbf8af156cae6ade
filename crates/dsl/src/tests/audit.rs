//! Recomputes everything.

use super::*;
use crate::core::is_zapified;
use crate::free::each_block;
use disk::dsl::{BptreeEntry, BptreePhys, Used, BPTREE_ENTRY_SIZE};
use disk::feature::guid;
use disk::BlkPtr;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Something that tells blocks apart: place and birth; embedded ones have none.
pub(super) type Id = (u64, u64, Txg);

pub(super) fn id(bp: &BlkPtr) -> Option<Id> {
    let d = bp.dvas();
    d.first().map(|d| (d.vdev(), d.offset(), bp.birth()))
}

pub(super) fn blocks(p: &Pool, root: &BlkPtr, after: Txg) -> Vec<BlkPtr> {
    let mut out = Vec::new();
    each_block(&p.dsl.core, root, after, &mut |bp| {
        out.push(*bp);
        Ok(())
    })
    .unwrap();
    out
}

fn sum(p: &Pool, b: &[BlkPtr]) -> Triple {
    b.iter()
        .fold(Triple::default(), |s, bp| s + p.dsl.core.triple(bp))
}

struct Refs(HashMap<u64, String>);

impl Refs {
    fn take(&mut self, o: u64, what: &str) {
        if o != 0 {
            if let Some(other) = self.0.insert(o, what.to_string()) {
                panic!("MOS object {o} is {what} and {other}");
            }
        }
    }

    /// The map of what is delegated at a directory, and its entries.
    fn permissions(&mut self, p: &Pool, map: u64) {
        if map == 0 {
            return;
        }
        self.take(map, "permissions");
        let dn = p.rig.os.hold(map).unwrap();
        for e in Zap::new(&dn).iter() {
            let o = e.unwrap().value.as_u64().unwrap();
            self.take(o, "a permission entry");
            let entry = p.rig.os.hold(o).unwrap();
            assert_ne!(Zap::new(&entry).count().unwrap(), 0, "an empty entry");
        }
    }

    fn bpobj(&mut self, p: &Pool, o: u64, what: &str) {
        self.take(o, what);
        let b = Bpobj::open(&p.rig.os, o).unwrap();
        self.take(b.phys.subobjs, "sub-object list");
        if b.phys.subobjs != 0 {
            let mut buf = vec![0; b.phys.num_subobjs as usize * 8];
            p.rig
                .os
                .hold(b.phys.subobjs)
                .unwrap()
                .read(0, &mut buf)
                .unwrap();
            for s in disk::bytes::u64s(&buf) {
                self.bpobj(p, s, "sub-object");
            }
        }
        let mut total = Triple::default();
        b.for_each(&p.rig.os, &mut |bp, _| {
            total += p.dsl.core.triple(bp);
            Ok(())
        })
        .unwrap();
        if !b.phys.has_comp() {
            (total.comp, total.uncomp) = (0, 0);
        }
        assert_eq!(total, b.space(), "bpobj {o}");
    }
}

fn all_dirs(p: &Pool, d: &Arc<Dir>, out: &mut Vec<Arc<Dir>>) {
    out.push(d.clone());
    for e in Zap::new(&d.children_zap().unwrap()).iter() {
        let e = e.unwrap();
        let c = p
            .dsl
            .core
            .dir_named(e.value.as_u64().unwrap(), &e.text(), d)
            .unwrap();
        all_dirs(p, &c, out);
    }
}

/// What is found in a pool on the way.
struct Audit<'a> {
    p: &'a Pool,
    refs: Refs,
    live: HashMap<Id, BlkPtr>,
    sets: Vec<(Arc<Dir>, Vec<Arc<Dataset>>)>,
    /// The blocks of each dataset.
    trees: HashMap<u64, Vec<BlkPtr>>,
    feature_counts: BTreeMap<String, u64>,
    counted: BTreeMap<&'static str, u64>,
    zapified: u64,
    empty_users: u64,
}

pub(super) fn audit(p: &Pool) {
    let mut dirs = Vec::new();
    all_dirs(p, &p.dsl.root().unwrap(), &mut dirs);
    let mut a = Audit {
        p,
        refs: Refs(HashMap::new()),
        live: HashMap::new(),
        sets: Vec::new(),
        trees: HashMap::new(),
        feature_counts: BTreeMap::new(),
        counted: BTreeMap::new(),
        zapified: 0,
        empty_users: 0,
    };
    a.chains(&dirs);
    a.datasets();
    a.deadlists();
    a.bookmarks();
    a.directories();
    a.livelists();
    a.waiting();
    a.space();
    a.objects();
    a.features();
}

impl Audit<'_> {
    /// The heads and snapshots of every directory, oldest first.
    fn chains(&mut self, dirs: &[Arc<Dir>]) {
        let p = self.p;
        let core = &p.dsl.core;
        for d in dirs {
            let dp = d.phys();
            self.refs.take(d.object(), "dir");
            self.zapified += u64::from(is_zapified(&d.dn));
            self.refs.take(dp.child_dir_zapobj, "child map");
            self.refs.take(dp.props_zapobj, "props");
            self.refs.take(dp.clones, "clones");
            self.refs.permissions(p, dp.deleg_zapobj);
            assert!(d.breakdown_is_right(), "breakdown of {}", d.full_name());
            let mut chain = Vec::new();
            if dp.head_dataset_obj != 0 {
                let head = d.head().unwrap();
                let mut at = head.clone();
                loop {
                    chain.push(at.clone());
                    let pp = at.phys();
                    if pp.prev_snap_obj == 0 || pp.prev_snap_obj == dp.origin_obj {
                        break;
                    }
                    let prev = core.dataset(pp.prev_snap_obj).unwrap();
                    assert_eq!(prev.phys().next_snap_obj, at.object());
                    assert_eq!(prev.phys().creation_txg, pp.prev_snap_txg);
                    at = prev;
                }
                chain.reverse();
                let names = p.count_of(head.phys().snapnames_zapobj);
                assert_eq!(
                    names,
                    chain.len() as u64 - 1,
                    "snapshots of {}",
                    d.full_name()
                );
            }
            self.sets.push((d.clone(), chain));
        }
    }

    /// Datasets: objects, chains, sizes.
    fn datasets(&mut self) {
        let p = self.p;
        for (_, chain) in &self.sets {
            for ds in chain {
                let dp = ds.phys();
                let n = ds.full_name();
                self.refs.take(ds.object(), "dataset");
                self.zapified += u64::from(is_zapified(&ds.dn));
                self.refs.take(dp.snapnames_zapobj, "snap map");
                self.refs.take(dp.next_clones_obj, "next clones");
                self.refs.take(dp.props_obj, "snapshot props");
                self.refs.take(dp.userrefs_obj, "holds");
                if let Some(map) = ds.extra(crate::core::BOOKMARKS).unwrap() {
                    self.refs.take(map, "bookmarks");
                    *self.counted.entry(crate::core::BOOKMARKS).or_default() += 1;
                    assert!(p.count_of(map) > 0, "no bookmark in the map of {n}");
                }
                for f in ds.features() {
                    *self.feature_counts.entry(f).or_default() += 1;
                }
                let tree = if dp.bp.is_hole() {
                    Vec::new()
                } else {
                    blocks(p, &dp.bp, Txg::NONE)
                };
                let t = sum(p, &tree);
                assert_eq!(t.used as u64, dp.referenced_bytes, "referenced of {n}");
                assert_eq!(t.comp as u64, dp.compressed_bytes, "compressed of {n}");
                assert_eq!(
                    t.uncomp as u64, dp.uncompressed_bytes,
                    "uncompressed of {n}"
                );
                for bp in &tree {
                    if let Some(i) = id(bp) {
                        self.live.insert(i, *bp);
                    }
                }
                self.trees.insert(ds.object(), tree);
            }
        }
    }

    /// Deadlists: exactly what the predecessor refers to and the dataset does not.
    fn deadlists(&mut self) {
        let p = self.p;
        let core = &p.dsl.core;
        core.check_open_lists();
        let empty = core.empty_bpobj().unwrap();
        for (_, chain) in &self.sets {
            for ds in chain {
                let dp = ds.phys();
                let dl = ds.deadlist().unwrap();
                let old = dl.is_old();
                if old {
                    self.refs.bpobj(p, dl.object(), "old deadlist");
                } else {
                    self.refs.take(dl.object(), "deadlist");
                    for (k, o) in dl.keys() {
                        if o == empty && o != 0 {
                            self.empty_users += 1;
                            continue;
                        }
                        self.refs.bpobj(p, o, "deadlist entry");
                        let next = dl
                            .keys()
                            .range(k.next()..)
                            .next()
                            .map_or(Txg::MAX, |(k, _)| *k);
                        Bpobj::open(&p.rig.os, o)
                            .unwrap()
                            .for_each(&p.rig.os, &mut |bp, _| {
                                assert!(bp.birth() > k && bp.birth() <= next);
                                Ok(())
                            })
                            .unwrap();
                    }
                }
                let mut have = HashSet::new();
                let mut total = Triple::default();
                dl.for_each(&p.rig.os, &mut |bp| {
                    total += core.triple(bp);
                    if let Some(i) = id(bp) {
                        assert!(have.insert(i));
                    }
                    Ok(())
                })
                .unwrap();
                assert_eq!(total.used, dl.space().used);
                let mine: HashSet<Id> = self.trees[&ds.object()].iter().filter_map(id).collect();
                let want: HashSet<Id> = match dp.prev_snap_obj {
                    0 => HashSet::new(),
                    o => self.trees[&o]
                        .iter()
                        .filter_map(id)
                        .filter(|i| !mine.contains(i))
                        .collect(),
                };
                assert_eq!(have, want, "deadlist of {}", ds.full_name());
                // Unique space: clones are not asked, as long as they exist nothing can be destroyed.
                let next: HashSet<Id> = match dp.next_snap_obj {
                    0 => HashSet::new(),
                    o => self.trees[&o].iter().filter_map(id).collect(),
                };
                let unique: u64 = self.trees[&ds.object()]
                    .iter()
                    .filter(|bp| bp.birth() > dp.prev_snap_txg)
                    .filter(|bp| id(bp).is_some_and(|i| !next.contains(&i)))
                    .map(|bp| core.triple(bp).used as u64)
                    .sum();
                assert_eq!(unique, dp.unique_bytes, "unique of {}", ds.full_name());
            }
        }
    }

    /// Bookmarks: what was freed between their snapshot and the next one.
    fn bookmarks(&mut self) {
        let p = self.p;
        for (_, chain) in &self.sets {
            let Some(head) = chain.last() else { continue };
            for (name, m) in head.bookmarks().unwrap() {
                let n = format!("{}#{name}", head.full_name());
                *self.counted.entry(crate::core::BOOKMARK_V2).or_default() += 1;
                *self
                    .counted
                    .entry(crate::core::BOOKMARK_WRITTEN)
                    .or_default() += 1;
                let next = chain
                    .iter()
                    .find(|s| s.is_snapshot() && s.phys().creation_txg > m.creation_txg)
                    .unwrap_or(head);
                let there: HashSet<Id> = self.trees[&next.object()].iter().filter_map(id).collect();
                let freed: i64 = p.marks[&(m.guid, m.creation_txg)]
                    .iter()
                    .filter(|(i, _)| !there.contains(i))
                    .map(|(_, used)| used)
                    .sum();
                assert_eq!(m.freed_before_next[0] as i64, freed, "freed since {n}");
                let exists = chain
                    .iter()
                    .map(|s| s.phys())
                    .any(|s| (s.guid, s.creation_txg) == (m.guid, m.creation_txg));
                let flag = m.flags & disk::dsl::bookmark_flags::SNAPSHOT_EXISTS != 0;
                assert_eq!(flag, exists, "{n}: whether its snapshot exists");
            }
        }
    }

    /// Directories.
    fn directories(&mut self) {
        let p = self.p;
        let core = &p.dsl.core;
        for (d, chain) in &self.sets {
            let name = d.name();
            let Some(head) = chain.last() else { continue };
            let dp = d.phys();
            let origin = d.origin_txg().unwrap();
            let all: HashMap<Id, u64> = chain
                .iter()
                .flat_map(|s| &self.trees[&s.object()])
                .filter(|bp| bp.birth() > origin)
                .filter_map(|bp| id(bp).map(|i| (i, core.triple(bp).used as u64)))
                .collect();
            let own: u64 = self.trees[&head.object()]
                .iter()
                .filter(|bp| bp.birth() > origin)
                .map(|bp| core.triple(bp).used as u64)
                .sum();
            let both: u64 = all.values().sum();
            let kids: Vec<_> = self
                .sets
                .iter()
                .map(|(d, _)| d)
                .filter(|c| c.phys().parent_obj == d.object())
                .collect();
            let child: u64 = kids.iter().map(|c| c.phys().used_bytes).sum();
            let rsrv: u64 = kids.iter().map(|c| c.unused_reservation()).sum();
            let (_, r) = head.ref_limits();
            let refrsrv = r.saturating_sub(head.phys().unique_bytes);
            assert_eq!(
                dp.used_bytes,
                both + child + rsrv + refrsrv,
                "used of {name}"
            );
            if dp.flags & disk::dsl::DIR_USED_BREAKDOWN != 0 {
                assert_eq!(dp.used(Used::Head), own, "HEAD of {name}");
                assert_eq!(dp.used(Used::Snap), both - own, "SNAP of {name}");
                assert_eq!(dp.used(Used::Child), child, "CHILD of {name}");
                assert_eq!(dp.used(Used::ChildRsrv), rsrv, "CHILD_RSRV of {name}");
                assert_eq!(dp.used(Used::RefRsrv), refrsrv, "REFRSRV of {name}");
            }
        }
    }

    /// Livelists: what a clone without snapshots has of its own.
    fn livelists(&mut self) {
        let sets = std::mem::take(&mut self.sets);
        for (d, chain) in &sets {
            let Some(o) = d.livelist().unwrap() else {
                continue;
            };
            let left = self.livelist(o);
            if chain.len() > 1 {
                continue;
            }
            let origin = d.origin_txg().unwrap();
            let have: BTreeSet<Id> = left.iter().filter_map(id).collect();
            let own = &self.trees[&chain[0].object()];
            let own = own.iter().filter(|bp| bp.birth() > origin);
            let want: BTreeSet<Id> = own.filter_map(id).collect();
            assert_eq!(have, want, "livelist of {}", d.name());
        }
        self.sets = sets;
    }

    /// Takes the objects of a livelist and returns the blocks that it says are there.
    fn livelist(&mut self, o: u64) -> Vec<BlkPtr> {
        let p = self.p;
        let core = &p.dsl.core;
        self.refs.take(o, "livelist");
        *self.counted.entry(crate::core::LIVELIST).or_default() += 1;
        let list = crate::Deadlist::open(&p.rig.os, o).unwrap();
        let (mut out, mut total) = (Vec::new(), Triple::default());
        for (_, sub) in list.keys() {
            if sub == core.empty_bpobj().unwrap() && sub != 0 {
                self.empty_users += 1;
                continue;
            }
            self.refs.take(sub, "sub-list");
            let b = Bpobj::open(&p.rig.os, sub).unwrap();
            let mut here: BTreeMap<Id, BlkPtr> = BTreeMap::new();
            let mut freed = 0;
            b.for_each(&p.rig.os, &mut |bp, free| {
                freed += u64::from(free);
                let old = match free {
                    true => here.remove(&id(bp).unwrap()),
                    false => here.insert(id(bp).unwrap(), *bp),
                };
                assert_eq!(
                    old.is_some(),
                    free,
                    "what is freed is there, what comes is not"
                );
                Ok(())
            })
            .unwrap();
            assert_eq!(freed, b.phys.num_freed, "FREEs of sub-list {sub}");
            let left: Vec<BlkPtr> = here.into_values().collect();
            assert_eq!(sum(p, &left), b.space(), "sub-list {sub}");
            total += b.space();
            out.extend(left);
        }
        assert_eq!(total, list.space(), "livelist {o}");
        out
    }

    /// What waits to be freed.
    fn waiting(&mut self) {
        let p = self.p;
        self.refs.take(1, "object directory");
        let mut waiting = Triple::default();
        let mut pending: Vec<BlkPtr> = Vec::new();
        for e in Zap::new(&p.rig.os.hold(1).unwrap()).iter() {
            let e = e.unwrap();
            let o = e.value.as_u64().unwrap();
            match e.text().as_str() {
                "root_dataset" => {}
                "free_bpobj" => {
                    self.refs.bpobj(p, o, "free_bpobj");
                    let b = Bpobj::open(&p.rig.os, o).unwrap();
                    waiting += b.space();
                    b.for_each(&p.rig.os, &mut |bp, _| {
                        pending.push(*bp);
                        Ok(())
                    })
                    .unwrap();
                }
                "bptree_obj" => {
                    self.refs.take(o, "bptree");
                    let dn = p.rig.os.hold(o).unwrap();
                    let b = BptreePhys::decode(&dn.bonus()).unwrap();
                    waiting += Triple {
                        used: b.bytes as i64,
                        comp: b.comp as i64,
                        uncomp: b.uncomp as i64,
                    };
                    for i in b.begin..b.end {
                        let mut raw = [0; BPTREE_ENTRY_SIZE];
                        dn.read(i * BPTREE_ENTRY_SIZE as u64, &mut raw).unwrap();
                        let e = BptreeEntry::decode(&raw).unwrap();
                        let left = p.dsl.blocks_left(&e).unwrap();
                        pending.extend(left);
                    }
                    assert_eq!(
                        p.store.as_ref().unwrap().count(guid::ASYNC_DESTROY),
                        Some(1)
                    );
                }
                disk::mos_keys::DELETED_CLONES => {
                    self.refs.take(o, "destroyed clones");
                    let lists = p.rig.os.hold(o).unwrap();
                    assert_ne!(Zap::new(&lists).count().unwrap(), 0, "no clone is left");
                    for e in Zap::new(&lists).iter() {
                        let left = self.livelist(e.unwrap().value.as_u64().unwrap());
                        waiting += sum(p, &left);
                        pending.extend(left);
                    }
                }
                k => self.refs.take(o, k),
            }
        }
        assert_eq!(sum(p, &pending), waiting);
        assert_eq!(p.dsl.freeing().unwrap(), waiting.used as u64);
        for bp in &pending {
            if let Some(i) = id(bp) {
                assert!(
                    self.live.insert(i, *bp).is_none(),
                    "a block that waits is referenced"
                );
            }
        }
    }

    /// Every byte of the disk.
    fn space(&mut self) {
        let p = self.p;
        let mos = blocks(p, &p.rig.os.root(), Txg::NONE);
        for bp in &mos {
            if let Some(i) = id(bp) {
                assert!(self.live.insert(i, *bp).is_none());
            }
        }
        let allocated: u64 = self
            .live
            .values()
            .flat_map(|bp| bp.dvas())
            .map(|d| d.asize())
            .sum();
        assert_eq!(allocated, p.disk - p.rig.space.free_bytes(), "space leaked");
    }

    /// Every MOS object.
    fn objects(&mut self) {
        let p = self.p;
        let mut have = BTreeSet::new();
        let mut at = 0;
        while let Some(o) = p.rig.os.next_object(at).unwrap() {
            have.insert(o);
            at = o;
        }
        let want: BTreeSet<u64> = self.refs.0.keys().copied().collect();
        assert_eq!(have, want, "MOS objects leaked or missing");
    }

    /// Features.
    fn features(&mut self) {
        let p = self.p;
        let core = &p.dsl.core;
        if let Some(s) = &p.store {
            let count = |g| s.count(g).unwrap_or(0);
            for g in [
                crate::core::BOOKMARKS,
                crate::core::BOOKMARK_V2,
                crate::core::BOOKMARK_WRITTEN,
                crate::core::LIVELIST,
            ] {
                assert_eq!(count(g), self.counted.get(g).copied().unwrap_or(0), "{g}");
            }
            assert_eq!(count(guid::EXTENSIBLE_DATASET), self.zapified);
            assert_eq!(count(guid::EMPTY_BPOBJ), self.empty_users);
            for f in disk::feature::FEATURES
                .iter()
                .filter(|f| f.flags.per_dataset)
            {
                let want = self.feature_counts.get(f.guid).copied().unwrap_or(0);
                assert_eq!(count(f.guid), want, "{}", f.name);
            }
            for (guid, n, _) in s.list() {
                if s.is_enabled(guid::ENABLED_TXG) && guid == guid::ENABLED_TXG {
                    let o = core.directory_get("feature_enabled_txg").unwrap().unwrap();
                    assert_eq!(p.count_of(o), n);
                }
            }
        }
    }
}
