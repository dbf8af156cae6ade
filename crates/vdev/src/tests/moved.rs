//! Blocks that are no longer where they were written: RAID-Z that was widened, vdevs that were
//! removed.

use crate::indirect::Moved;
use crate::map::{raidz, Reflow};
use crate::testing::{mem_env, MemDisk, MemDisks, SeededRng};
use crate::*;
use base::{Block, Kind, Result, Txg};
use disk::{NvList, Uberblock, Value};
use env::{Access, Env};
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

const SIZE: u64 = 64 << 20;
const DATA: u64 = disk::label::DATA_START;
/// Where the boot areas begin, and how far before the data areas that is.
const BOOT: u64 = disk::label::BOOT_AREA;
const BOOT_SIZE: u64 = DATA - BOOT;

/// Every sector of a RAID-Z of `width` children moved in order, as the reflow does it, until `done`
/// are at their places among `width + 1`: what lies where.
fn reflow(width: u64, sectors: u64, done: u64) -> HashMap<(u64, u64), u64> {
    let old = (0..sectors).map(|k| ((k % width, k / width), k));
    let mut at: HashMap<(u64, u64), u64> = old.collect();
    let wide = width + 1;
    // Reading comes before writing: what a new place overwrites has been read long ago.
    for k in 0..done {
        at.insert((k % wide, k / wide), k);
    }
    at
}

/// The layout of a block after a widening finds the very sectors that the layout at its birth wrote.
#[test]
fn widened_layouts_against_brute_force() {
    let rng = SeededRng::new(17);
    for ashift in [9u32, 12, 16] {
        for (nparity, width) in (1..=3usize).flat_map(|p| (p + 1..=7).map(move |w| (p, w))) {
            let w = width as u64;
            let sectors = 6 << 20 >> ashift.min(12);
            for part in [None, Some(sectors / 2 + rng.below(50)), Some(sectors / 3)] {
                let done = part.unwrap_or(sectors);
                let at = reflow(w, sectors, done);
                let reflow = part.map(|d| Reflow {
                    done: d << ashift,
                    next: d << ashift,
                    scratch: false,
                });
                for n in 0..120 {
                    let s = 1 + rng.below(60) as usize;
                    // Many where the reflow stands, some where parity and data change places.
                    let near = done.saturating_sub(rng.below(150));
                    let b = match n % 3 {
                        0 => near.min(sectors - 400),
                        1 => (1 << 20 >> ashift) + rng.below(40),
                        _ => rng.below(sectors - 400),
                    };
                    let (offset, len) = (b << ashift, s << ashift);
                    let then = raidz(width, width, nparity, ashift, offset, len, None).unwrap();
                    let now = raidz(width + 1, width, nparity, ashift, offset, len, reflow);
                    let now = now.unwrap();
                    let mut count = 0;
                    for (i, stripe) in now.stripes.iter().enumerate() {
                        for (c, col) in stripe.cols.iter().enumerate() {
                            let first = &then.stripes[0].cols[c];
                            let row = (first.offset >> ashift) + i as u64;
                            let wrote = row * w + first.child as u64;
                            let place = (col.child as u64, col.offset >> ashift);
                            assert_eq!(at.get(&place), Some(&wrote), "{nparity} of {width}, {b}");
                            if c >= nparity {
                                assert_eq!(col.at, first.at + (i << ashift));
                                count += 1;
                            }
                            assert_eq!(now.former_child(i, c, width), Some(first.child));
                        }
                    }
                    assert_eq!(count, s);
                }
            }
        }
    }
}

fn device(path: &str, id: u64, guid: u64) -> NvList {
    let mut n = NvList::new();
    n.set("type", "file").set("id", id).set("guid", guid);
    n.set("path", path);
    n
}

struct Rig {
    env: Env,
    mem: Arc<MemDisks>,
    disks: Vec<Arc<MemDisk>>,
    rng: SeededRng,
    ashift: u32,
}

impl Rig {
    fn new(ashift: u32) -> Rig {
        let (env, mem) = mem_env(u64::from(ashift));
        Rig {
            env,
            mem,
            disks: Vec::new(),
            rng: SeededRng::new(9),
            ashift,
        }
    }

    fn add_disk(&mut self) {
        let n = self.disks.len();
        self.disks.push(self.mem.add(&format!("/d{n}"), SIZE));
    }

    /// A RAID-Z over all disks, with more keys.
    fn raidz(&self, nparity: u64, more: impl FnOnce(&mut NvList)) -> VdevTree {
        let kids: Vec<NvList> = (0..self.disks.len() as u64)
            .map(|i| device(&format!("/d{i}"), i, 100 + i))
            .collect();
        let mut top = NvList::new();
        top.set("type", "raidz").set("id", 0u64).set("guid", 50u64);
        top.set("nparity", nparity);
        top.set("ashift", u64::from(self.ashift));
        top.set("asize", (SIZE - (5 << 20)) * (kids.len() as u64 - 1));
        top.set("children", Value::NvListArray(kids));
        more(&mut top);
        self.tree(vec![top])
    }

    fn tree(&self, tops: Vec<NvList>) -> VdevTree {
        let mut root = NvList::new();
        root.set("type", "root").set("guid", 7u64);
        root.set("children", Value::NvListArray(tops));
        let tree = VdevTree::from_config(self.env.clone(), &root).unwrap();
        tree.open(Access::Exclusive);
        tree
    }

    fn block(&self, len: usize) -> Block {
        let mut b = vec![0; len];
        env::Rng::fill(&self.rng, &mut b);
        Arc::new(b)
    }

    /// Moves the first `sectors` sectors to where they are with one disk more, which is added; with
    /// `scratch` into the boot areas instead.
    fn reflow(&mut self, sectors: u64, scratch: bool) {
        let (old, size) = (self.disks.len() as u64, 1usize << self.ashift);
        self.add_disk();
        let to = if scratch { BOOT } else { DATA };
        let mut all = vec![0; size * sectors as usize];
        for (k, buf) in (0..).zip(all.chunks_mut(size)) {
            self.disks[(k % old) as usize].peek(DATA + ((k / old) << self.ashift), buf);
        }
        for (k, buf) in (0..).zip(all.chunks(size)) {
            let (child, row) = (k % (old + 1), k / (old + 1));
            self.disks[child as usize].poke(to + (row << self.ashift), buf);
        }
    }
}

fn request<R>(
    (vdev, offset): (u64, u64),
    want: &Block,
    birth: u64,
    f: impl FnOnce(ReadReq) -> R,
) -> R {
    let verify = |b: &[u8]| b == &want[..];
    f(ReadReq {
        vdev,
        offset,
        psize: want.len(),
        birth: Txg::new(birth),
        verify: &verify,
    })
}

fn read(tree: &VdevTree, vdev: u64, offset: u64, want: &Block, birth: u64) -> Result<ReadOutcome> {
    request((vdev, offset), want, birth, |r| tree.read(r))
}

fn scrub(tree: &VdevTree, vdev: u64, offset: u64, want: &Block, birth: u64) -> ReadOutcome {
    let done = request((vdev, offset), want, birth, |r| {
        tree.scrub_many(&[r], &|_| true).pop()
    });
    done.unwrap().unwrap()
}

/// Blocks from before, during and after two expansions, whole and with losses.
#[test]
fn raidz_that_grew_twice() {
    for (nparity, width, ashift) in [(1u64, 3, 9), (2, 4, 12), (3, 5, 10)] {
        let mut rig = Rig::new(ashift);
        (0..width).for_each(|_| rig.add_disk());
        let mut blocks: Vec<(u64, Block, u64)> = Vec::new();
        let mut at = 0;
        let mut fill = |rig: &Rig, tree: &VdevTree, birth: u64, end: u64| {
            while at < end {
                let len = 512 * (1 + rig.rng.below(200)) as usize;
                let b = rig.block(len);
                tree.write(0, at, &b, Txg::new(birth)).unwrap();
                blocks.push((at, b, birth));
                at += tree.top(0).unwrap().asize_for(len as u64);
            }
            blocks.clone()
        };
        let tree = rig.raidz(nparity, |_| {});
        fill(&rig, &tree, 10, 3 << 20);
        tree.close();
        // Half-way through the first expansion.
        let half = (2 << 20) >> ashift;
        rig.reflow(half, false);
        let tree = rig.raidz(nparity, |top| {
            top.set_flag("raidz_expanding");
        });
        let mut ub = Uberblock::default();
        assert_eq!(
            read(&tree, 0, 0, &rig.block(512), 10).unwrap_err().kind,
            Kind::Unsupported,
            "nobody said how far"
        );
        ub.set_reflow(half << ashift, 0);
        tree.set_reflow(&ub);
        let list = fill(&rig, &tree, 15, 4 << 20);
        for (at, b, birth) in &list {
            assert!(read(&tree, 0, *at, b, *birth).unwrap().bad.is_empty());
        }
        tree.close();
        // The rest; the sectors that were moved already stay.
        let (old, size) = (width as u64, 1usize << ashift);
        let mut buf = vec![0; size];
        for k in half..(6 << 20 >> ashift) {
            rig.disks[(k % old) as usize].peek(DATA + ((k / old) << ashift), &mut buf);
            let row = DATA + ((k / (old + 1)) << ashift);
            rig.disks[(k % (old + 1)) as usize].poke(row, &buf);
        }
        let tree = rig.raidz(nparity, |top| {
            top.set("raidz_expand_txgs", vec![20u64]);
        });
        fill(&rig, &tree, 20, 5 << 20);
        tree.close();
        // All of the second.
        rig.reflow(8 << 20 >> ashift, false);
        let tree = rig.raidz(nparity, |top| {
            top.set("raidz_expand_txgs", vec![20u64, 30]);
        });
        let list = fill(&rig, &tree, 31, 6 << 20);
        let widths: Vec<usize> = [19, 20, 29, 30, 31]
            .map(|t| tree.top(0).unwrap().raidz_width(Txg::new(t)))
            .to_vec();
        let w = width;
        assert_eq!(widths, [w, w + 1, w + 1, w + 2, w + 2]);
        for (at, b, birth) in &list {
            assert!(read(&tree, 0, *at, b, *birth).unwrap().bad.is_empty());
        }
        // As many disks as there is parity report errors, or lie.
        for (n, (at, b, birth)) in list.iter().enumerate() {
            let lost: Vec<usize> = (0..nparity as usize)
                .map(|i| (n + i * 2) % (w + 2))
                .collect();
            let fail = |on: bool| {
                for d in &lost {
                    rig.disks[*d].fail_reads.store(on, Relaxed);
                }
            };
            fail(true);
            assert!(read(&tree, 0, *at, b, *birth).unwrap().data == **b);
            fail(false);
            if n % 5 == 0 {
                let row = DATA + (((at >> ashift) / (w as u64 + 2)) << ashift);
                for d in &lost {
                    rig.disks[*d].corrupt(row, b.len() / w + (3 << ashift));
                }
                assert!(read(&tree, 0, *at, b, *birth).unwrap().data == **b);
                // Neighbours were hit as well, and parity nobody looked at.
                for (at, b, birth) in &list {
                    scrub(&tree, 0, *at, b, *birth);
                }
            }
        }
    }
}

/// A disk that was bad when there were fewer has spread its damage over all there are now.
#[test]
fn damage_from_before_the_expansion_is_found_by_the_old_width() {
    for (nparity, width) in [(1u64, 3usize), (2, 5), (3, 6)] {
        let mut rig = Rig::new(9);
        (0..width).for_each(|_| rig.add_disk());
        let tree = rig.raidz(nparity, |_| {});
        let b = rig.block(64 << 10);
        tree.write(0, 4096, &b, Txg::new(10)).unwrap();
        tree.close();
        for d in &rig.disks[..nparity as usize] {
            d.corrupt(DATA, 1 << 20);
        }
        rig.reflow(4 << 20 >> 9, false);
        let tree = rig.raidz(nparity, |top| {
            top.set("raidz_expand_txgs", vec![20u64]);
        });
        let o = read(&tree, 0, 4096, &b, 10).unwrap();
        assert!(o.data == *b && !o.bad.is_empty() && o.bad.iter().all(|x| x.repaired));
        assert!(read(&tree, 0, 4096, &b, 10).unwrap().bad.is_empty());
    }
}

/// While the scratch area is in use the beginning is read from the boot areas, and not written.
#[test]
fn scratch_area_of_an_expansion() {
    let mut rig = Rig::new(12);
    (0..4).for_each(|_| rig.add_disk());
    let tree = rig.raidz(2, |_| {});
    let list: Vec<(u64, Block)> = (0..20)
        .map(|i| (i * (1 << 20), rig.block(100_000)))
        .collect();
    for (at, b) in &list {
        tree.write(0, *at, b, Txg::new(10)).unwrap();
    }
    tree.close();
    let sectors = (BOOT_SIZE >> 12) * 5;
    rig.reflow(sectors, true);
    // The real beginning is being overwritten.
    rig.disks.iter().for_each(|d| d.corrupt(DATA, 3 << 20));
    let tree = rig.raidz(2, |top| {
        top.set_flag("raidz_expanding");
    });
    let mut ub = Uberblock::default();
    ub.set_reflow(sectors << 12, disk::uberblock::scratch::VALID);
    tree.set_reflow(&ub);
    assert_eq!(tree.top(0).unwrap().reflow().map(|r| r.scratch), Some(true));
    for (n, (at, b)) in list.iter().enumerate() {
        rig.disks[n % 5].fail_reads.store(true, Relaxed);
        assert!(read(&tree, 0, *at, b, 10).unwrap().data == **b, "{at:#x}");
        rig.disks[n % 5].fail_reads.store(false, Relaxed);
    }
    let e = tree.write(0, 0, &list[0].1, Txg::new(11)).unwrap_err();
    assert_eq!(e.kind, Kind::Unsupported);
    // An uberblock that promises more in the boot areas than fits there is damage, not a panic.
    ub.set_reflow(SIZE * 3, disk::uberblock::scratch::VALID);
    tree.set_reflow(&ub);
    assert!(read(&tree, 0, 20 << 20, &list[0].1, 10).is_err());
}

/// Widths and sector sizes there can be, several top-level vdevs with different ones together.
#[test]
fn every_sector_size_in_one_pool() {
    let mut rig = Rig::new(9);
    let mut tops = Vec::new();
    for (i, ashift) in (9..=16u64).enumerate() {
        let nparity = 1 + ashift % 3;
        let width = nparity + 1 + (ashift * 5) % 11;
        let from = rig.disks.len() as u64;
        (0..width).for_each(|_| rig.add_disk());
        let kids: Vec<NvList> = (0..width)
            .map(|k| device(&format!("/d{}", from + k), k, 1000 * ashift + k))
            .collect();
        let mut top = NvList::new();
        top.set("type", "raidz").set("id", i as u64);
        top.set("guid", ashift).set("nparity", nparity);
        top.set("ashift", ashift);
        top.set("asize", (SIZE - (5 << 20)) * width);
        top.set("children", Value::NvListArray(kids));
        tops.push(top);
    }
    let tree = rig.tree(tops);
    for vdev in 0..8u64 {
        let top = tree.top(vdev).unwrap();
        let unit = 1u64 << top.ashift();
        let mut at = unit * rig.rng.below(50);
        for n in 0..12 {
            let len = match n % 3 {
                0 => 512,
                1 => 512 * (1 + rig.rng.below(64)) as usize,
                _ => 1000 * (1 + rig.rng.below(500)) as usize,
            };
            let b = rig.block(len);
            tree.write(vdev, at, &b, Txg::new(10)).unwrap();
            assert!(read(&tree, vdev, at, &b, 10).unwrap().bad.is_empty());
            let lost = &top.leaves()[n % top.children().len()];
            let path = lost.path().unwrap();
            let d = rig.mem.get(&path).unwrap();
            d.fail_reads.store(true, Relaxed);
            assert!(read(&tree, vdev, at, &b, 10).unwrap().data == *b);
            d.fail_reads.store(false, Relaxed);
            at += top.asize_for(len as u64);
        }
    }
}

/// Removed vdevs on mirrors and on other removed vdevs; blocks cut into pieces; mappings that lie.
#[test]
fn removed_vdevs_upon_removed_vdevs() {
    let mut rig = Rig::new(9);
    (0..4).for_each(|_| rig.add_disk());
    let mirror = |id: u64| {
        let kids = vec![
            device(&format!("/d{}", 2 * id), 0, 100 + 2 * id),
            device(&format!("/d{}", 2 * id + 1), 1, 101 + 2 * id),
        ];
        let mut top = NvList::new();
        top.set("type", "mirror").set("id", id).set("guid", 50 + id);
        top.set("ashift", 9u64).set("asize", SIZE - (5 << 20));
        top.set("children", Value::NvListArray(kids));
        top
    };
    let gone = |id: u64| {
        let mut top = NvList::new();
        top.set("type", "indirect")
            .set("id", id)
            .set("guid", 50 + id);
        top.set("ashift", 9u64).set("asize", SIZE);
        top
    };
    let tree = rig.tree(vec![mirror(0), mirror(1), gone(2), gone(3), gone(4)]);
    let set = |id: u64, list: &[(u64, u64, u64, u64)]| {
        let list = list.iter().map(|&(src, size, vdev, dst)| Moved {
            src,
            size,
            vdev,
            dst,
        });
        let map = IndirectMap::new(list.collect(), vec![]).unwrap();
        tree.top(id).unwrap().set_indirect(Arc::new(map));
    };
    let b = rig.block(8192);
    let part = |from: usize, to: usize| Arc::new(b[from..to].to_vec());
    tree.write(0, 512, &part(0, 1024), Txg::new(5)).unwrap();
    tree.write(1, 4096, &part(1024, 4096), Txg::new(5)).unwrap();
    tree.write(0, 1 << 20, &part(4096, 8192), Txg::new(5))
        .unwrap();
    // 2 was removed first, 3 next, 4 last.
    set(
        2,
        &[(1 << 20, 4096, 3, 0), ((1 << 20) + 4096, 8192, 4, 2048)],
    );
    set(
        3,
        &[
            (0, 1024, 0, 512),
            (1024, 512, 4, 512),
            (1536, 2560, 1, 4608),
        ],
    );
    set(4, &[(512, 512, 1, 4096), (2048, 8192, 0, 1 << 20)]);
    assert!(read(&tree, 2, 1 << 20, &b, 5).unwrap().data == *b);
    // Many at once, in pieces and whole, there and not there.
    let all = |_: &[u8]| true;
    let reqs: Vec<ReadReq> = (0..3000)
        .map(|i| {
            let (vdev, offset, psize) = [
                (2, 1 << 20, 8192),
                (3, 1536, 2560),
                (0, 512, 1024),
                (2, 0, 512),
                // Two ranges that follow each other are one piece.
                (3, 1024, 3072),
            ][i % 5];
            ReadReq {
                vdev,
                offset,
                psize,
                birth: Txg::new(5),
                verify: &all,
            }
        })
        .collect();
    for (i, r) in tree.read_many(&reqs).into_iter().enumerate() {
        match i % 5 {
            0 => assert!(r.unwrap().data == *b),
            1 => assert!(r.unwrap().data == b[1536..4096]),
            2 => assert!(r.unwrap().data == b[..1024]),
            3 => assert_eq!(r.unwrap_err().kind, Kind::Damaged),
            _ => assert!(r.unwrap().data == b[1024..4096]),
        }
    }
    // A bad copy of each of two pieces, on different sides.
    rig.disks[0].corrupt(DATA + 512, 512);
    rig.disks[3].corrupt(DATA + 4096, 1024);
    let o = read(&tree, 2, 1 << 20, &b, 5).unwrap();
    assert!(o.data == *b && o.bad.iter().all(|x| x.repaired));
    scrub(&tree, 2, 1 << 20, &b, 5);
    assert!(scrub(&tree, 2, 1 << 20, &b, 5).bad.is_empty());
    // Outside of a mapping; a mapping out of the device, into nothing, in a circle.
    let kind = |at: u64| read(&tree, 2, at, &b, 5).unwrap_err().kind;
    assert_eq!(kind(0), Kind::Damaged);
    assert_eq!(kind((1 << 20) + 8192), Kind::Damaged);
    for bad in [
        (0, 1 << 20, 0, SIZE),
        (0, 1 << 20, 77, 0),
        (0, 1 << 20, 2, 0),
    ] {
        set(2, &[bad]);
        assert_eq!(kind(0), Kind::Damaged, "{bad:?}");
    }
    set(2, &[(0, 1 << 20, 3, 0)]);
    set(3, &[(0, 512, 2, 512), (512, 1 << 20, 2, 0)]);
    assert_eq!(kind(0), Kind::Damaged);
}
