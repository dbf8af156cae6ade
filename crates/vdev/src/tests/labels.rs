//! Labels, uberblocks, discovery.

use super::{pool_keys, rig, stripe, SIZE};
use crate::keys::{self};
use crate::label::{self, LabelSet};
use crate::*;
use base::Txg;
use env::Access;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn labels_uberblocks_discovery_and_reopening() {
    let r = rig(GroupKind::Raidz { nparity: 1 }, 3, 12);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], Txg::new(4)).unwrap();
    let look = || discover(&r.env, &r.mem.paths());
    assert!(look().pools.is_empty(), "txg 0 is not yet a pool");
    assert!(r.tree.best_uberblock(Txg::MAX).is_none());
    r.tree.top(0).unwrap().set_u64(keys::METASLAB_ARRAY, 33);
    r.tree.top(0).unwrap().set_u64(keys::ZAP_TOP, 34);
    for txg in 4..80 {
        r.commit(Txg::new(txg));
    }
    let (ub, config) = r.tree.best_uberblock(Txg::MAX).unwrap();
    assert_eq!(
        (ub.txg, config.unwrap().get_u64("txg")),
        (Txg::new(79), Some(79))
    );
    assert_eq!(
        r.tree.best_uberblock(Txg::new(70)).unwrap().0.txg,
        Txg::new(70)
    );
    // Everything of one device but a single odd label is lost, another device is gone.
    r.disks[0].poke(0, &vec![0; 256 << 10]);
    r.disks[0].poke(SIZE - (512 << 10), &vec![0; 512 << 10]);
    let full = r.tree.config(true);
    let labels = r.tree.label_config(
        &p,
        &r.tree.top(0).unwrap(),
        &r.tree.leaves()[1],
        Txg::new(79),
    );
    let tree = labels.need_nvlist("vdev_tree").unwrap();
    assert!(!tree.contains(keys::ZAP_TOP) && tree.get_u64(keys::METASLAB_ARRAY) == Some(33));
    r.tree.close();
    r.disks[2].gone.store(true, Relaxed);
    r.mem.put("/renamed", r.disks[1].clone());
    let paths: Vec<String> = ["/renamed", "/d0", "/d2"].map(String::from).to_vec();
    let found = discover(&r.env, &paths);
    let [one] = &found.pools[..] else {
        panic!("one pool")
    };
    assert_eq!(
        (one.name.as_str(), one.guid, one.txg),
        ("tank", 77, Txg::new(79))
    );
    assert!(matches!(&one.problems[..], [Problem::MissingLeaf(_, Some(p))] if p == "/d2"));
    let tree = one.tree(&r.env).unwrap();
    assert_eq!(tree.guid_sum(), ub.guid_sum);
    tree.open(Access::Exclusive);
    tree.validate(Txg::MAX, true);
    assert_eq!(tree.state(), (State::Degraded, Aux::None));
    assert_eq!(tree.leaves()[1].path().as_deref(), Some("/renamed"));
    assert_eq!(tree.leaves()[2].aux(), Aux::OpenFailed);
    let best = tree.best_uberblock(Txg::MAX).unwrap();
    assert_eq!(
        (best.0.txg, best.1.unwrap().get_u64("txg")),
        (Txg::new(79), Some(79))
    );
    tree.close();
    // The MOS form comes back as it was, unknown keys included.
    let mut full = full;
    let child = &mut full.get_nvlist_array_mut("children").unwrap()[0];
    child.set("org.example:unknown", vec![1u64, 2]);
    let again = VdevTree::from_config(r.env.clone(), &full).unwrap();
    let config = again.config(true);
    let child = &config.get_nvlist_array("children").unwrap()[0];
    assert_eq!(
        child.get_u64_array("org.example:unknown"),
        Some(&[1, 2][..])
    );
    assert_eq!(child.get_u64(keys::ZAP_TOP), Some(34));
    assert_eq!(child.get_u64("nparity"), Some(1));
    // A device of another pool under the old name is noticed.
    r.disks[2].gone.store(false, Relaxed);
    label::clear(&*r.disks[2]).unwrap();
    again.open(Access::Exclusive);
    again.validate(Txg::MAX, true);
    assert_eq!(again.leaves()[2].aux(), Aux::BadLabel);
    // In use: a second opener gets nothing.
    let second = VdevTree::from_config(r.env.clone(), &full).unwrap();
    second.open(Access::Exclusive);
    assert_eq!(second.state(), (State::CantOpen, Aux::NoReplicas));
}

/// Devices with one guid: the same under another name, a copy, an image of some time ago.
#[test]
fn of_copies_the_newest_is_taken() {
    let r = rig(GroupKind::Mirror, 2, 12);
    r.tree
        .init_labels(&pool_keys(&r.tree), &[0], Txg::new(4))
        .unwrap();
    r.commit(Txg::new(5));
    r.mem.put("/a-old", r.disks[0].fork());
    // The labels stay as they are; the pool goes on.
    r.commit_with(Txg::new(6), false);
    r.mem.put("/b-same", r.disks[0].clone());
    r.mem.put("/c-copy", r.disks[1].fork());
    r.tree.close();
    let paths = ["/a-old", "/b-same", "/c-copy", "/d0", "/d1"].map(String::from);
    let chosen = |paths: &[String]| -> Vec<String> {
        let found = discover(&r.env, paths);
        let [one] = &found.pools[..] else {
            panic!("one pool")
        };
        assert!(one.problems.is_empty());
        let tree = one.tree(&r.env).unwrap();
        tree.leaves().iter().filter_map(|l| l.path()).collect()
    };
    let mut order = paths.to_vec();
    assert_eq!(chosen(&order), ["/d0", "/d1"]);
    order.reverse();
    assert_eq!(chosen(&order), ["/d0", "/d1"]);
    // Where none is in its old place, the first of the newest.
    assert_eq!(chosen(&paths[..3]), ["/b-same", "/c-copy"]);
    // An old one is better than none.
    let only = [paths[0].clone(), paths[4].clone()];
    assert_eq!(chosen(&only), ["/a-old", "/d1"]);
}

/// Labels of old software (pool versions below 19 or so) do not say how many top-level vdevs there
/// are.
#[test]
fn labels_without_vdev_children_are_counted_by_the_highest_id() {
    let r = stripe(3);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0, 1, 2], Txg::new(4)).unwrap();
    for txg in 4..7 {
        r.commit(Txg::new(txg));
    }
    for (id, disk) in r.disks.iter().enumerate() {
        let top = r.tree.top(id as u64).unwrap();
        let mut config = r.tree.label_config(&p, &top, &top.leaves()[0], Txg::new(6));
        config.remove(keys::pool::VDEV_CHILDREN).unwrap();
        label::write_config(&**disk, &config, LabelSet::All).unwrap();
    }
    r.tree.close();
    let tops = |paths: &[&str]| {
        let paths: Vec<String> = paths.iter().map(|p| p.to_string()).collect();
        let found = discover(&r.env, &paths);
        let [one] = &found.pools[..] else {
            panic!("one pool")
        };
        let tree = one.tree(&r.env).unwrap();
        let found: Vec<Option<String>> = tree.tops().iter().map(|t| t.path()).collect();
        (found, one.problems.clone())
    };
    let disk = |n: u64| Some(format!("/d{n}"));
    let (found, problems) = tops(&["/d0", "/d1", "/d2"]);
    assert_eq!((found, problems), (vec![disk(0), disk(1), disk(2)], vec![]));
    let (found, problems) = tops(&["/d2", "/d0"]);
    assert_eq!(found, [disk(0), None, disk(2)]);
    assert_eq!(problems, [Problem::MissingTop(1)]);
}

#[test]
fn clearing_and_boot_environment() {
    let r = rig(GroupKind::Single, 1, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], Txg::new(4)).unwrap();
    r.commit(Txg::new(5));
    let d = &*r.disks[0];
    assert_eq!(label::read_labels(d).good(), 4);
    let boot = disk::label::BootEnv::Raw(b"x=1".to_vec());
    label::write_bootenv(d, &boot).unwrap();
    d.corrupt(0x2000, 100);
    assert_eq!(label::read_bootenv(d).unwrap(), boot);
    let c = label::read_labels(d).best(Txg::MAX).unwrap().clone();
    label::write_config(d, &c, LabelSet::Odd).unwrap();
    assert_eq!(label::clear(d).unwrap(), 4);
    assert_eq!(label::read_labels(d).good(), 0);
    assert_eq!(label::clear(d).unwrap(), 0);
    assert!(label::best_uberblock(d, 9, Txg::MAX).is_none());
}

/// Power was cut while two labels were written, and again when the other two had the configuration of a
/// txg whose uberblock was not there yet: the device is still the pool's.
#[test]
fn labels_of_the_next_group_will_do() {
    let r = rig(GroupKind::Single, 1, 9);
    r.tree
        .init_labels(&pool_keys(&r.tree), &[0], Txg::new(4))
        .unwrap();
    r.commit(Txg::new(5));
    let d = &*r.disks[0];
    let mut c = label::read_labels(d).best(Txg::MAX).unwrap().clone();
    c.set("txg", 6u64);
    label::write_config(d, &c, LabelSet::Even).unwrap();
    for i in [1, 3] {
        let at = disk::label::label_offset(i, SIZE).unwrap();
        d.corrupt(at + disk::label::NVLIST_OFFSET, 100);
    }
    let labels = label::read_labels(d);
    assert!(labels.good() == 2 && labels.best(Txg::new(5)).is_none());
    r.tree.close();
    r.tree.open(Access::Exclusive);
    r.tree.validate(Txg::new(5), true);
    assert_eq!(r.tree.state().0, State::Healthy);
    // One of another pool is not.
    c.set("pool_guid", 1u64);
    label::write_config(d, &c, LabelSet::Even).unwrap();
    r.tree.validate(Txg::new(5), true);
    assert_eq!(r.tree.leaves()[0].aux(), Aux::CorruptData);
}

#[test]
fn growing_moves_the_last_labels() {
    let r = rig(GroupKind::Single, 1, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], Txg::new(4)).unwrap();
    r.commit(Txg::new(5));
    let top = r.tree.top(0).unwrap();
    let before = top.asize();
    assert_eq!(r.tree.expand(0, &p, Txg::new(6)).unwrap(), None);
    r.tree.close();
    r.disks[0].resize(128 << 20);
    r.tree.open(Access::Exclusive);
    let grown = r.tree.expand(0, &p, Txg::new(6)).unwrap().unwrap();
    assert_eq!(grown, before + (64 << 20));
    assert_eq!(top.asize(), grown);
    let labels = label::read_labels(&*r.disks[0]);
    assert_eq!(labels.good(), 4);
    assert_eq!(label::read_uberblocks(&*r.disks[0], 9).len(), 4);
    r.tree.validate(Txg::MAX, true);
    assert_eq!(r.tree.state().0, State::Healthy);
    // And shrinking below what is used is refused.
    r.tree.close();
    r.disks[0].resize(64 << 20);
    r.tree.open(Access::Exclusive);
    assert_eq!(r.tree.leaves()[0].aux(), Aux::BadLabel);
}

/// A device that leaves its pool is nobody's, and its labels can be told from none.
#[test]
fn label_of_a_device_that_left_says_txg_0() {
    let r = rig(GroupKind::Single, 1, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], Txg::new(4)).unwrap();
    let d = &*r.disks[0];
    assert!(label::left(d).is_none(), "it never was a member");
    r.commit(Txg::new(5));
    let left = label::left(d).unwrap();
    assert_eq!(left.get_u64("txg"), Some(0));
    assert_eq!(left.get_u64(keys::GUID), Some(r.tree.leaves()[0].guid()));
    label::init(d, &left).unwrap();
    assert_eq!(label::read_labels(d).good(), 4);
    assert!(label::best_uberblock(d, 9, Txg::MAX).is_none());
}
