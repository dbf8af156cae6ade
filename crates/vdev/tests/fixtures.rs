//! Pools made by OpenZFS: discovery, best uberblock, and every block reachable from it, with all
//! copies and all parity compared.

use base::{Result, Txg};
use codec::{checksum, compress};
use disk::dnode::objset::ObjsetPhys;
use disk::{BlkPtr, DnodePhys, BP_SIZE};
use env::{Access, Env};
use std::collections::{BTreeMap, HashSet};
use vdev::{discover, Fault, PoolFound, ReadReq, State, VdevKind, VdevTree};

/// Images of a fixture as paths in a temporary folder.
fn images(name: &str) -> Option<(testkit::TempDir, Vec<String>)> {
    let dir = testkit::or_skip(testkit::fixture::unpack(name))?;
    let mut paths: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path().to_str().unwrap().to_string())
        .collect();
    paths.sort();
    Some((dir, paths))
}

#[derive(Default)]
struct Walk {
    seen: HashSet<(u64, u64)>,
    blocks: u64,
    unreadable: u64,
    bad: BTreeMap<u64, (u64, u64)>,
}

impl Walk {
    /// Reads one block with all its copies; the data if the first readable one.
    fn block(&mut self, tree: &VdevTree, bp: &BlkPtr) -> Option<Vec<u8>> {
        if bp.is_embedded() {
            return compress::decompress(bp.compress(), &bp.embedded_payload(), bp.lsize()).ok();
        }
        let plain = !bp.uses_crypt() && bp.checksum_alg().name().is_some();
        let salted = checksum::is_salted(bp.checksum_alg());
        let verify = |b: &[u8]| {
            !plain
                || salted
                || checksum::verify(
                    bp.checksum_alg(),
                    b,
                    !bp.is_little_endian(),
                    &[0; 32],
                    &bp.checksum(),
                )
                .unwrap()
        };
        let mut data = None;
        for d in bp.dvas() {
            if d.is_gang() || !self.seen.insert((d.vdev(), d.offset())) {
                continue;
            }
            let (psize, birth) = (bp.psize(), bp.physical_birth());
            let req = ReadReq {
                vdev: d.vdev(),
                offset: d.offset(),
                psize,
                birth,
                verify: &verify,
            };
            let top = tree.top(d.vdev()).unwrap();
            if top.kind() == VdevKind::Indirect {
                continue;
            }
            let widened =
                top.get("raidz_expand_txgs").is_some() || top.get("raidz_expanding").is_some();
            if !bp.is_dedup() && !widened {
                assert_eq!(top.asize_for(psize as u64), d.asize());
            }
            self.blocks += 1;
            match tree.scrub_many(&[req], &|_| true).pop().unwrap() {
                Ok(o) => {
                    for b in &o.bad {
                        let n = self.bad.entry(b.guid).or_default();
                        match b.fault {
                            Fault::Io => n.0 += 1,
                            Fault::Checksum => n.1 += 1,
                        }
                    }
                    data = data.or(Some(o.data));
                }
                Err(_) => self.unreadable += 1,
            }
        }
        compress::decompress(bp.compress(), &data?, bp.lsize()).ok()
    }

    fn tree(&mut self, tree: &VdevTree, bp: &BlkPtr) {
        if bp.is_hole() || bp.is_redacted() {
            return;
        }
        let Some(data) = self.block(tree, bp) else {
            return;
        };
        if bp.level() > 0 {
            for i in 0..data.len() / BP_SIZE {
                self.tree(tree, &BlkPtr::at(&data, i).unwrap());
            }
            return;
        }
        match bp.obj_type().0 {
            10 if !bp.uses_crypt() => {
                let mut at = 0;
                while at + 512 <= data.len() {
                    match DnodePhys::decode(&data[at..]).unwrap() {
                        Some(d) => {
                            self.dnode(tree, &d);
                            at += 512 * usize::from(d.slots.max(1));
                        }
                        None => at += 512,
                    }
                }
            }
            11 => {
                let os = ObjsetPhys::decode(&data).unwrap();
                self.dnode(tree, &os.meta);
                for d in os.special.iter().flatten() {
                    self.dnode(tree, d);
                }
            }
            _ => {}
        }
    }

    fn dnode(&mut self, tree: &VdevTree, d: &DnodePhys) {
        for bp in d.blkptr.iter().chain(&d.spill) {
            self.tree(tree, bp);
        }
        // The bonus of a DSL dataset holds the pointer to its object set.
        if d.bonus_type.0 == 16 {
            if let Ok(bp) = BlkPtr::read(d.bonus.get(128..256).unwrap_or_default(), false) {
                self.tree(tree, &bp);
            }
        }
    }
}

/// Opens the only pool on the paths read-only.
fn open(env: &Env, pool: &PoolFound) -> VdevTree {
    let tree = pool.tree(env).unwrap();
    tree.open(Access::Read);
    tree.validate(Txg::MAX, true);
    tree
}

fn walk(tree: &VdevTree, check_sum: bool) -> Result<Walk> {
    let (ub, label) = tree.best_uberblock(Txg::MAX).expect("an uberblock");
    if check_sum {
        assert_eq!(ub.guid_sum, tree.guid_sum());
    }
    assert!(label.expect("its label").get_u64("txg").unwrap() <= ub.txg.number());
    tree.set_reflow(&ub);
    let mut w = Walk::default();
    w.tree(tree, &ub.rootbp);
    Ok(w)
}

#[test]
fn every_block_of_healthy_pools_with_all_parity() {
    let env = env_linux::linux_env();
    let healthy = [
        "raidz1-3",
        "raidz1-5",
        "raidz2-5",
        "raidz3-6",
        "raidz3-8",
        "raidz-expanded",
        "mirror2",
        "stripe-mirrors",
        "special",
        "zil-raidz",
        "draid",
        "raidz-expanding",
        "legacy-v6",
        "upgraded",
    ];
    for name in healthy {
        let Some((_dir, paths)) = images(name) else {
            return;
        };
        let found = discover(&env, &paths);
        let [pool] = &found.pools[..] else {
            panic!("{name}: {found:?}")
        };
        assert!(pool.problems.is_empty(), "{name}: {:?}", pool.problems);
        let tree = open(&env, pool);
        assert_eq!(tree.state().0, State::Healthy, "{name}: {tree:?}");
        let w = walk(&tree, true).unwrap();
        println!("{name}: {} blocks", w.blocks);
        assert!(w.blocks > 50, "{name}: only {} blocks", w.blocks);
        assert_eq!((w.unreadable, w.bad.len()), (0, 0), "{name}: {:?}", w.bad);
        for top in tree.tops().iter() {
            // What we would have chosen ourselves, and what the config came from.
            let again = vdev::size::metaslab_shift(top.asize());
            if pool.version == 5000 && name != "upgraded" && !name.starts_with("raidz-exp") {
                assert_eq!(top.metaslab_shift(), again, "{name}");
            }
        }
    }
}

#[test]
fn degraded_and_damaged_pools() {
    let env = env_linux::linux_env();
    for name in [
        "damage-raidz1",
        "damage-raidz2",
        "damage-raidz3",
        "damage-draid",
        "draid-spare",
        "damage-mirror",
        "hot-spare",
        "mirror-degraded",
        "resilvering",
        "damage-uberblocks",
        "damage-labels",
    ] {
        let Some((_dir, paths)) = images(name) else {
            return;
        };
        let found = discover(&env, &paths);
        let [pool] = &found.pools[..] else {
            panic!("{name}: {found:?}")
        };
        let tree = open(&env, pool);
        assert!(tree.state().0.usable(), "{name}: {tree:?}");
        let w = walk(&tree, true).unwrap();
        println!(
            "{name}: {:?} {} blocks, bad {:?}",
            tree.state(),
            w.blocks,
            w.bad
        );
        // Leaves that missed transaction groups say so in the pool, which is not read here.
        assert_eq!(w.unreadable, 0, "{name}");
        if name.starts_with("damage-raidz") || name == "damage-mirror" {
            assert!(!w.bad.is_empty(), "{name} is damaged");
        }
    }
}

#[test]
fn several_pools_and_missing_devices() {
    let env = env_linux::linux_env();
    let Some((_dir, paths)) = images("two-pools") else {
        return;
    };
    let found = discover(&env, &paths);
    assert_eq!(found.pools.len(), 3);
    assert_eq!(
        found.pools.iter().filter(|p| p.state == 2).count(),
        1,
        "one is destroyed"
    );
    let Some((_dir, paths)) = images("missing-toplevel") else {
        return;
    };
    let found = discover(&env, &paths);
    let tree = open(&env, &found.pools[0]);
    assert_eq!(tree.state().0, State::CantOpen);
    assert!(!found.pools[0].problems.is_empty());
    let Some((_dir, paths)) = images("hot-spare") else {
        return;
    };
    let found = discover(&env, &paths);
    println!("hot-spare: {:?}", found.pools[0].problems);
    let Some((_dir, paths)) = images("cache-device") else {
        return;
    };
    assert_eq!(discover(&env, &paths).l2cache.len(), 1);
}

/// The trusted configuration of a real pool survives reading and writing unchanged: the labels that
/// we would write say what those of OpenZFS say.
#[test]
fn label_configs_come_back_as_they_were() {
    let env = env_linux::linux_env();
    for name in [
        "raidz2-5",
        "hot-spare",
        "removal",
        "draid",
        "special",
        "raidz-expanding",
    ] {
        let Some((_dir, paths)) = images(name) else {
            return;
        };
        let found = discover(&env, &paths);
        let tree = VdevTree::from_config(
            env.clone(),
            found.pools[0].config.need_nvlist("vdev_tree").unwrap(),
        )
        .unwrap();
        for path in paths {
            let disk = env.disks.open(&path, Access::Read).unwrap();
            let labels = vdev::label::read_labels(&*disk);
            let Some(label) = labels.best(Txg::MAX) else {
                continue;
            };
            let Some((top, leaf)) = label.get_u64("guid").and_then(|g| tree.leaf_of(g).ok()) else {
                continue;
            };
            if label.get_u64("txg") != Some(found.pools[0].txg.number()) {
                continue;
            }
            let ours =
                tree.label_config(label, &top, &leaf, Txg::new(label.get_u64("txg").unwrap()));
            let plain = |l: &disk::NvList| {
                let mut lines: Vec<String> = l.dump(0).lines().map(str::to_string).collect();
                // Paths are where the images are now.
                lines.retain(|s| !s.contains("path:"));
                lines.sort();
                lines
            };
            assert_eq!(plain(&ours), plain(label), "{name}");
        }
    }
}

/// What zdb says of labels we wrote.
#[test]
fn openzfs_reads_our_labels() {
    use disk::{NvList, Uberblock, Value};
    use vdev::{keys, DevSpec, GroupKind, TopSpec};
    let Some(oz) = testkit::or_skip(testkit::OpenZfs::get()) else {
        return;
    };
    let dir = testkit::TempDir::new("labels").unwrap();
    let paths: Vec<_> = (0..3)
        .map(|i| dir.image(&format!("l{i}.img"), 64 << 20).unwrap())
        .collect();
    let env = env_linux::linux_env();
    let devices = paths
        .iter()
        .map(|p| DevSpec::file(p.to_str().unwrap()))
        .collect();
    let spec = TopSpec::new(GroupKind::Raidz { nparity: 1 }, devices);
    let tree = VdevTree::create(env, 0x1234_5678_9abc, &[spec], Txg::new(4)).unwrap();
    let mut pool = NvList::new();
    pool.set("version", 5000u64)
        .set("name", "lupool")
        .set("state", 0u64);
    pool.set("features_for_read", Value::NvList(NvList::new()));
    tree.init_labels(&pool, &[0], Txg::new(4)).unwrap();
    tree.top(0).unwrap().set_u64(keys::METASLAB_ARRAY, 33);
    let ub = Uberblock {
        version: 5000,
        txg: Txg::new(7),
        guid_sum: tree.guid_sum(),
        timestamp: 1_700_000_000,
        ..Uberblock::default()
    };
    tree.commit(&pool, &ub, &[0], &[0], false).unwrap();
    for p in &paths {
        let text = oz.labels(p).unwrap();
        assert!(
            text.contains("labels = 0 1 2 3") && text.contains("name: 'lupool'"),
            "{text}"
        );
        assert!(
            text.contains("type: 'raidz'") && text.contains("txg: 7"),
            "{text}"
        );
    }
}
