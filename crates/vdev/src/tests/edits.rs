//! Changes of the tree, and trees that are refused.

use super::{add, attach, pool_keys, rig, SIZE};
use crate::label::{self};
use crate::testing::mem_env;
use crate::*;
use base::{Kind, Result, Txg};
use disk::{NvList, Value};
use env::Access;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

#[test]
fn attach_replace_detach() {
    let r = rig(GroupKind::Single, 1, 9);
    let p = pool_keys(&r.tree);
    r.tree.init_labels(&p, &[0], Txg::new(4)).unwrap();
    r.commit(Txg::new(5));
    let b = r.block(4096);
    r.tree.write(0, 0, &b, Txg::new(5)).unwrap();
    let old = r.tree.leaves()[0].clone();
    let (top_asize, sum) = (old.asize(), r.tree.guid_sum());
    for i in 1..6 {
        r.mem.add(&format!("/d{i}"), SIZE);
    }
    let dev = |i: usize| DevSpec::file(format!("/d{i}"));
    let attach = |guid, i, how| attach(&r.tree, guid, &dev(i), how);
    let second = attach(old.guid(), 1, Attach::Mirror).unwrap();
    let top = r.tree.top(0).unwrap();
    assert_eq!(
        (top.kind(), top.asize(), top.ashift()),
        (VdevKind::Mirror, top_asize, 9)
    );
    assert_eq!(
        r.tree.guid_sum(),
        sum.wrapping_add(top.guid()).wrapping_add(second.guid())
    );
    assert!(top.config(false).get_nvlist_array("children").unwrap()[0]
        .get("asize")
        .is_none());
    // The new one lacks everything: the old one cannot leave yet.
    assert!(second.dtl_contains(Txg::new(5)) && !second.dtl_contains(Txg::new(9)));
    assert_eq!(r.tree.detach(old.guid()).unwrap_err().kind, Kind::Busy);
    assert_eq!(
        r.tree.offline(old.guid(), false).unwrap_err().kind,
        Kind::Busy
    );
    assert!(r.read(0, &b, Txg::new(5)).unwrap().bad.is_empty());
    assert_eq!(r.scrub(0, &b, Txg::new(5)).unwrap().resilvered, 4096);
    second.dtl_remove_range(Txg::NONE, Txg::new(9));
    // A third, by replacing the second.
    let third = attach(second.guid(), 2, Attach::Replace).unwrap();
    assert_eq!(
        r.tree.find_by_name("replacing-1").unwrap().children().len(),
        2
    );
    assert_eq!(
        attach(second.guid(), 3, Attach::Replace).unwrap_err().kind,
        Kind::Unsupported
    );
    assert_eq!(r.scrub(0, &b, Txg::new(5)).unwrap().resilvered, 4096);
    third.dtl_remove_range(Txg::NONE, Txg::new(9));
    let left = r.tree.detach(second.guid()).unwrap();
    let labels = || label::read_labels(&*r.mem.get("/d1").unwrap()).good();
    assert_eq!(labels(), 4, "until its txg is on disk it may be needed");
    r.tree.retire(&left, None);
    assert_eq!(labels(), 0);
    assert_eq!(r.tree.top(0).unwrap().children()[1].guid(), third.guid());
    assert_eq!(third.id(), 1);
    // Down to one: the survivor takes over the group.
    let group = r.tree.top(0).unwrap().guid();
    r.tree.detach(old.guid()).unwrap();
    let top = r.tree.top(0).unwrap();
    assert!(Arc::ptr_eq(&top, &third));
    assert_eq!(
        (top.guid(), top.asize(), top.id(), top.ashift()),
        (group, top_asize, 0, 9)
    );
    assert!(r.read(0, &b, Txg::new(5)).unwrap().data == *b);
    assert_eq!(r.tree.guid_sum(), 77u64.wrapping_add(group));
    // Another top-level vdev, a log; removed again it leaves a hole, which the next one fills.
    let mut spec = TopSpec::new(GroupKind::Single, vec![dev(3)]);
    spec.is_log = true;
    assert_eq!(add(&r.tree, &spec, Txg::new(7)).id(), 1);
    let data = TopSpec::new(GroupKind::Single, vec![dev(4)]);
    let readers = r.tree.tops();
    assert_eq!(add(&r.tree, &data, Txg::new(7)).id(), 2);
    assert_eq!(readers.len(), 2, "who reads keeps the old tree");
    // Of two that were prepared for the same place one comes too late.
    let late = r.tree.new_tops(
        &[TopSpec::new(GroupKind::Single, vec![dev(5)])],
        &p,
        Txg::new(7),
    );
    let late = late.unwrap();
    let remove = |id| {
        let leaves = r.tree.remove_top(id).unwrap();
        leaves.iter().for_each(|l| r.tree.retire(l, None));
    };
    remove(1);
    assert_eq!(r.tree.holes(), [1]);
    assert_eq!(add(&r.tree, &spec, Txg::new(8)).id(), 1);
    assert_eq!(r.tree.holes(), []);
    remove(1);
    remove(2);
    assert_eq!(r.tree.holes(), [1, 2], "holes at the end stay");
    r.tree.append(&late, Txg::new(8)).unwrap();
    assert_eq!(r.tree.holes(), [1, 2], "it was prepared before they were");
    assert_eq!(
        r.tree.append(&late, Txg::new(8)).unwrap_err().kind,
        Kind::Again
    );
    remove(3);
    assert_eq!(r.tree.remove_top(0).unwrap_err().kind, Kind::Busy);
}

#[test]
fn creation_is_refused_when_it_makes_no_sense() {
    let (env, mem) = mem_env(1);
    mem.add("/a", SIZE);
    mem.add("/small", SIZE - 1);
    mem.add("/b", SIZE).logical_sector.store(4096, Relaxed);
    let try_it = |kind, paths: &[&str], ashift, is_log| {
        let devices = paths.iter().map(|p| DevSpec::file(*p)).collect();
        let spec = TopSpec {
            kind,
            devices,
            is_log,
            bias: None,
            ashift,
        };
        VdevTree::create(env.clone(), 1, &[spec], Txg::new(4))
    };
    let kind = |r: Result<VdevTree>| r.unwrap_err().kind;
    assert_eq!(
        kind(try_it(GroupKind::Mirror, &["/a"], None, false)),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(
            GroupKind::Raidz { nparity: 2 },
            &["/a", "/b"],
            None,
            false
        )),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/small"], None, false)),
        Kind::Overflow
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/none"], None, false)),
        Kind::NotFound
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/a"], Some(17), false)),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(GroupKind::Single, &["/a"], None, true)),
        Kind::Invalid
    );
    assert_eq!(
        kind(try_it(GroupKind::Mirror, &["/a", "/a"], None, false)),
        Kind::Busy
    );
    let t = try_it(GroupKind::Mirror, &["/a", "/b"], None, false).unwrap();
    assert_eq!(t.top(0).unwrap().ashift(), 12);
    assert_eq!(t.top(0).unwrap().deflate_ratio(), 512);
}

#[test]
fn what_is_not_built_is_refused_clearly() {
    let (env, _) = mem_env(1);
    let mut draid = NvList::new();
    draid.set("type", "draid");
    draid.set("id", 0u64);
    draid.set("guid", 5u64);
    draid.set("ashift", 12u64);
    draid.set("asize", 1u64 << 40);
    draid.set("nparity", 2u64);
    draid.set("draid_ndata", 3u64);
    draid.set("draid_nspares", 1u64);
    draid.set("draid_ngroups", 1u64);
    let kids: Vec<NvList> = (0..6u64)
        .map(|i| {
            let mut f = NvList::new();
            f.set("type", "file")
                .set("id", i)
                .set("guid", 10 + i)
                .set("path", "/x");
            f
        })
        .collect();
    draid.set("children", Value::NvListArray(kids));
    let mut root = NvList::new();
    root.set("type", "root").set("id", 0u64).set("guid", 9u64);
    root.set("children", Value::NvListArray(vec![draid.clone()]));
    let tree = VdevTree::from_config(env.clone(), &root).unwrap();
    tree.open(Access::Read);
    assert_eq!(tree.top(0).unwrap().name(), "draid2:3d:6c:1s-0");
    let req = ReadReq {
        vdev: 0,
        offset: 0,
        psize: 512,
        birth: Txg::new(1),
        verify: &|_| true,
    };
    assert_eq!(tree.read(req).unwrap_err().kind, Kind::Io);
    assert_eq!(
        tree.read(ReadReq { vdev: 7, ..req }).unwrap_err().kind,
        Kind::Damaged
    );
    // Failure domains: groups of three cannot hold five columns, but three.
    let mut other = draid.clone();
    other.set("draid_nchildren", 3u64);
    root.set("children", Value::NvListArray(vec![other.clone()]));
    assert_eq!(
        VdevTree::from_config(env.clone(), &root).unwrap_err().kind,
        Kind::Damaged
    );
    other.set("draid_ndata", 1u64).set("draid_nspares", 0u64);
    other.set("draid_ngroups", 2u64);
    root.set("children", Value::NvListArray(vec![other]));
    let tree = VdevTree::from_config(env.clone(), &root).unwrap();
    assert_eq!(tree.top(0).unwrap().name(), "draid2:1d:3c:6w:0s-0");
    // Hostile trees.
    let bad = |f: &dyn Fn(&mut NvList)| {
        let mut d = draid.clone();
        f(&mut d);
        root.clone()
            .set("children", Value::NvListArray(vec![d]))
            .clone()
    };
    for config in [
        bad(&|d| {
            d.set("id", 3u64);
        }),
        bad(&|d| {
            d.set("guid", 0u64);
        }),
        bad(&|d| {
            d.set("ashift", 70u64);
        }),
        bad(&|d| {
            d.set("metaslab_shift", 64u64);
        }),
        bad(&|d| {
            d.set("type", "raidz").set("nparity", 6u64);
        }),
        bad(&|d| {
            d.set("type", "mirror").remove("children");
        }),
        bad(&|d| {
            d.set("type", "file");
        }),
        bad(&|d| {
            d.set("draid_ndata", u64::MAX);
        }),
        bad(&|d| drop(d.remove("ashift"))),
    ] {
        assert_eq!(
            VdevTree::from_config(env.clone(), &config)
                .unwrap_err()
                .kind,
            Kind::Damaged
        );
    }
    // Groups in groups are refused as what they are, or as nonsense.
    for (depth, kind) in [(2, Kind::Unsupported), (30, Kind::Damaged)] {
        let mut deep = kids_of_depth(depth);
        deep.set("ashift", 9u64);
        root.set("children", Value::NvListArray(vec![deep]));
        let refused = VdevTree::from_config(env.clone(), &root).unwrap_err();
        assert_eq!(refused.kind, kind, "{refused}");
    }
}

fn kids_of_depth(n: usize) -> NvList {
    let mut l = NvList::new();
    l.set("type", if n == 0 { "file" } else { "mirror" })
        .set("id", 0u64)
        .set("guid", 3u64);
    if n > 0 {
        l.set("children", Value::NvListArray(vec![kids_of_depth(n - 1)]));
    }
    l
}
