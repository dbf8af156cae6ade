//! One thing at a time.

use super::audit::audit;
use super::*;
use crate::props::PropChange;
use base::{Kind, Result};
use disk::dsl::DslDatasetPhys;
use disk::feature::guid;
use disk::NvList;

fn int(n: u64) -> PropChange {
    PropChange::Local(PropValue::Int(n))
}

#[test]
fn names_and_listing() {
    let mut p = Pool::new(5000, MODERN);
    for n in ["b", "a", "c d"] {
        p.create("tank", n);
    }
    let deep = p.create("tank/a", "x");
    assert_eq!(deep.full_name(), "tank/a/x");
    let names: Vec<String> = p
        .dsl
        .root()
        .unwrap()
        .children()
        .unwrap()
        .iter()
        .map(|d| d.name())
        .collect();
    assert_eq!(names, ["a", "b", "c d"]);
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &deep, "one").unwrap();
        let root = p.dsl.root().unwrap();
        let again = p.dsl.create_fs(tx, &root, "a", CreateArgs::default());
        assert_eq!(again.err().unwrap().kind, Kind::Exists);
        for bad in ["", "a/b", "$x", "%x", "a@b", "..", "é"] {
            assert_eq!(
                p.dsl.check_create(&root, bad, false).unwrap_err().kind,
                Kind::Invalid
            );
        }
        let long = "x".repeat(251);
        assert_eq!(
            p.dsl.check_create(&root, &long, false).unwrap_err().kind,
            Kind::NameTooLong
        );
        assert!(p.dsl.check_create(&root, &long[1..], false).is_ok());
    });
    p.sync_with(|p, tx| {
        let d = p.dsl.dir("tank/a").unwrap();
        let b = p.dsl.dir("tank/b").unwrap();
        assert_eq!(
            p.dsl.rename(tx, &d, &deep.dir(), "y").unwrap_err().kind,
            Kind::Invalid
        );
        p.dsl.rename(tx, &d, &b, "moved").unwrap();
    });
    audit(&p);
    let p = p.reopen();
    let s = p.dsl.dataset("tank/b/moved/x@one").unwrap();
    assert_eq!(s.full_name(), "tank/b/moved/x@one");
    assert!(s.is_snapshot());
    for gone in [
        "tank/a",
        "tank/b/moved/x@two",
        "pool",
        "tank/nope/x",
        "tank/$MOS",
    ] {
        assert_eq!(
            p.dsl.dataset(gone).err().unwrap().kind,
            Kind::NotFound,
            "{gone}"
        );
    }
}

#[test]
fn properties() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    let b = p.create("tank/a", "b");
    p.sync_with(|p, tx| {
        let root = p.dsl.root_dataset().unwrap();
        p.dsl.set_prop(tx, &root, "compression", &int(15)).unwrap();
        let text = PropChange::Local(PropValue::Str("hello".into()));
        p.dsl.set_prop(tx, &a, "my:prop", &text).unwrap();
        p.dsl
            .set_prop(tx, &a, "redundant_metadata", &int(3))
            .unwrap();
        p.dsl.snapshot(tx, &b, "s").unwrap();
    });
    let get = |ds: &Arc<Dataset>, n: &str| ds.prop(n, true).unwrap();
    let inherited = |v: PropValue, from: &str| Some((v, PropSource::Inherited(from.into())));
    assert_eq!(
        get(&b, "compression"),
        inherited(PropValue::Int(15), "tank")
    );
    assert_eq!(
        get(&b, "my:prop"),
        inherited(PropValue::Str("hello".into()), "tank/a")
    );
    assert_eq!(b.prop("my:prop", false).unwrap(), None);
    let s = p.dsl.dataset("tank/a/b@s").unwrap();
    p.sync_with(|p, tx| {
        p.dsl.set_prop(tx, &b, "compression", &int(2)).unwrap();
        p.dsl
            .set_prop(
                tx,
                &s,
                "x:y",
                &PropChange::Local(PropValue::Str("z".into())),
            )
            .unwrap();
    });
    assert_eq!(
        get(&b, "compression"),
        Some((PropValue::Int(2), PropSource::Local))
    );
    assert_eq!(
        get(&s, "compression"),
        inherited(PropValue::Int(2), "tank/a/b")
    );
    assert_eq!(
        get(&s, "x:y"),
        Some((PropValue::Str("z".into()), PropSource::Local))
    );
    let names: Vec<String> = b
        .props(&|n| n != "quota")
        .unwrap()
        .into_iter()
        .map(|x| x.name)
        .collect();
    assert_eq!(names, ["compression", "my:prop", "redundant_metadata"]);
    audit(&p);

    // Received values.
    p.sync_with(|p, tx| {
        p.dsl.set_has_received(tx, &b).unwrap();
        p.dsl
            .set_prop(tx, &b, "atime", &PropChange::Received(PropValue::Int(0)))
            .unwrap();
        p.dsl
            .set_prop(tx, &b, "compression", &PropChange::Inherit)
            .unwrap();
        p.dsl.set_prop(tx, &s, "x:y", &PropChange::Inherit).unwrap();
    });
    assert_eq!(
        get(&b, "atime"),
        Some((PropValue::Int(0), PropSource::Received))
    );
    assert_eq!(
        get(&b, "compression"),
        inherited(PropValue::Int(15), "tank")
    );
    assert_eq!(s.phys().props_obj, 0);
    p.sync_with(|p, tx| {
        p.dsl
            .set_prop(tx, &b, "atime", &PropChange::Inherit)
            .unwrap();
    });
    assert_eq!(get(&b, "atime"), None);
    assert_eq!(b.received_prop("atime").unwrap(), Some(PropValue::Int(0)));
    p.sync_with(|p, tx| {
        p.dsl
            .set_prop(tx, &b, "atime", &PropChange::RevertToReceived)
            .unwrap();
    });
    let p = p.reopen();
    let b = p.dsl.dataset("tank/a/b").unwrap();
    assert_eq!(
        get(&b, "atime"),
        Some((PropValue::Int(0), PropSource::Received))
    );
    assert_eq!(
        get(&b, "redundant_metadata"),
        inherited(PropValue::Int(3), "tank/a")
    );
    audit(&p);
}

struct Size(u64);

impl PoolSpace for Size {
    fn usable(&self, net_free: bool) -> u64 {
        self.0 + u64::from(net_free) * 1_000_000
    }
}

#[test]
fn quotas_and_reservations() {
    let mut p = Pool::new(5000, MODERN);
    let size: Arc<dyn PoolSpace> = Arc::new(Size(20_000_000));
    p.dsl.set_space(Arc::downgrade(&size));
    let a = p.create("tank", "a");
    let b = p.create("tank/a", "b");
    let c = p.create("tank", "c");
    let mut r = Rand(3);
    p.scribble(&b, &mut r, 200);
    p.sync();
    let used = |d: &Arc<Dataset>| d.dir().phys().used_bytes;
    let total = p.dsl.root().unwrap().phys().used_bytes;
    assert_eq!(c.available().bytes, 20_000_000 - total);
    p.sync_with(|p, tx| {
        let set = |ds, n: &str, v| p.dsl.set_prop(tx, ds, n, &int(v));
        assert_eq!(set(&a, "quota", 1000).unwrap_err().kind, Kind::NoSpace);
        set(&a, "quota", 3_000_000).unwrap();
        assert_eq!(
            set(&a, "reservation", 4_000_000).unwrap_err().kind,
            Kind::NoSpace
        );
        set(&c, "reservation", 5_000_000).unwrap();
        assert_eq!(
            set(&c, "reservation", 50_000_000).unwrap_err().kind,
            Kind::NoSpace
        );
        set(&b, "refquota", 2_000_000).unwrap();
        assert_eq!(
            set(&b, "refreservation", 2_100_000).unwrap_err().kind,
            Kind::NoSpace
        );
        set(&b, "refreservation", 1_900_000).unwrap();
    });
    assert_eq!(used(&b), 1_900_000);
    assert!(a.available().by_quota);
    assert_eq!(a.available().bytes, 3_000_000 - used(&a));
    assert_eq!(b.available().bytes, 2_000_000 - b.phys().referenced_bytes);
    assert_eq!(
        p.dsl
            .root()
            .unwrap()
            .phys()
            .used(disk::dsl::Used::ChildRsrv),
        5_000_000 - used(&c)
    );
    audit(&p);
    let e = a.check_space(dmu::Need::bytes(10_000_000), 0).unwrap_err();
    assert_eq!(e.kind, Kind::Quota);
    let e = c.check_space(dmu::Need::bytes(40_000_000), 0).unwrap_err();
    assert_eq!(e.kind, Kind::NoSpace);
    assert_eq!(
        a.check_space(dmu::Need::bytes(1), 1_000_000)
            .unwrap_err()
            .kind,
        Kind::Again
    );
    assert!(a.check_space(dmu::Need::freeing(), 10).is_ok());
    p.sync_with(|p, tx| {
        p.dsl.set_prop(tx, &c, "reservation", &int(0)).unwrap();
        p.dsl
            .set_prop(tx, &b, "refreservation", &PropChange::Inherit)
            .unwrap();
        p.dsl
            .set_prop(tx, &a, "quota", &PropChange::Inherit)
            .unwrap();
    });
    assert_eq!(a.dir().phys().quota, 0);
    audit(&p);
    let p = p.reopen();
    assert_eq!(
        p.dsl.dataset("tank/a/b").unwrap().ref_limits(),
        (2_000_000, 0)
    );
}

#[test]
fn filesystem_limits() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    p.create("tank/a", "b");
    p.sync_with(|p, tx| {
        p.dsl.set_prop(tx, &a, "filesystem_limit", &int(2)).unwrap();
        p.dsl.set_prop(tx, &a, "snapshot_limit", &int(1)).unwrap();
    });
    p.create("tank/a/b", "c");
    let b = p.dsl.dir("tank/a/b").unwrap();
    let joe = joe();
    let one_more = |p: &Pool, who: &Caller| p.dsl.check_filesystem_limit(&b, 1, who);
    assert_eq!(one_more(&p, &joe).unwrap_err().kind, Kind::Quota);
    one_more(&p, &Caller::root()).unwrap();
    let head = b.head().unwrap();
    let another = [(head.clone(), "t".to_string())];
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &head, "s").unwrap();
        let more = |who: &Caller| p.dsl.check_snapshot_limits(&another, who);
        assert_eq!(more(&joe).unwrap_err().kind, Kind::Quota);
        more(&Caller::root()).unwrap();
        // Whoever may change a limit is not bound by it.
        let entry = |permission: &str| deleg::Entry {
            holder: deleg::Holder::User(joe.uid),
            scope: deleg::Scope::Local,
            permissions: vec![permission.into()],
        };
        p.dsl.allow(tx, &a, &[entry("snapshot_limit")]).unwrap();
        more(&joe).unwrap();
        assert_eq!(one_more(p, &joe).unwrap_err().kind, Kind::Quota);
        p.dsl.unallow(tx, &a, &[entry("snapshot_limit")]).unwrap();
        assert_eq!(more(&joe).unwrap_err().kind, Kind::Quota);
    });
    p.sync_with(|p, tx| {
        let s = p.dsl.dataset("tank/a/b@s").unwrap();
        p.dsl.destroy_snapshot(tx, &s).unwrap();
        let c = p.dsl.dataset("tank/a/b/c").unwrap();
        p.open.remove(&c.object());
        p.dsl.destroy_head(tx, &c).unwrap();
    });
    one_more(&p, &joe).unwrap();
    p.dsl.check_snapshot_limits(&another, &joe).unwrap();
    audit(&p);
}

/// A user with two groups, in a pool in which permissions can be delegated.
fn joe() -> Caller {
    Caller {
        uid: 1000,
        groups: vec![100, 50],
        all: false,
        delegation: true,
    }
}

/// A subtree counts with all it has where it is moved to, and not above what both places share.
#[test]
fn limits_of_a_moved_subtree() {
    let mut p = Pool::new(5000, MODERN);
    let (a, b) = (p.create("tank", "a"), p.create("tank", "b"));
    let c = p.create("tank/a", "c");
    p.create("tank/a/c", "d");
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &c, "s").unwrap();
        for (at, name, n) in [
            ("tank", "filesystem_limit", 4),
            ("tank", "snapshot_limit", 1),
            ("tank/b", "filesystem_limit", 1),
        ] {
            let ds = p.dsl.dataset(at).unwrap();
            p.dsl.set_prop(tx, &ds, name, &int(n)).unwrap();
        }
        let to_b = |p: &Pool| p.dsl.check_rename_limits(&c.dir(), &b.dir(), &joe());
        assert_eq!(to_b(p).unwrap_err().kind, Kind::Quota, "two file systems");
        p.dsl.set_prop(tx, &b, "filesystem_limit", &int(2)).unwrap();
        to_b(p).unwrap();
        p.dsl.set_prop(tx, &b, "snapshot_limit", &int(0)).unwrap();
        assert_eq!(to_b(p).unwrap_err().kind, Kind::Quota, "its snapshot");
        p.dsl.set_prop(tx, &b, "snapshot_limit", &int(1)).unwrap();
        p.dsl.rename(tx, &c.dir(), &b.dir(), "c").unwrap();
    });
    let counts = |name: &str| {
        let d = p.dsl.dir(name).unwrap();
        let n = |key| d.extra(key).unwrap().unwrap();
        (
            n("com.joyent:filesystem_count"),
            n("com.joyent:snapshot_count"),
        )
    };
    assert_eq!((counts("tank"), counts("tank/a")), ((4, 1), (0, 0)));
    assert_eq!((counts("tank/b"), counts("tank/b/c")), ((2, 1), (1, 1)));
    drop(a);
    audit(&p);
}

/// Data format §15: who is granted what, by which level.
#[test]
fn delegated_permissions() {
    use deleg::{Entry, Holder, Scope};
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    let b = p.create("tank/a", "b");
    let e = |holder: Holder, scope, list: &[&str]| Entry {
        holder,
        scope,
        permissions: list.iter().map(|s| s.to_string()).collect(),
    };
    let set = |name: &str| Holder::Set(name.into());
    let (joe, who) = (Holder::User(1000), joe());
    p.sync_with(|p, tx| {
        let root = p.dsl.root_dataset().unwrap();
        let give = |ds, list: &[Entry]| p.dsl.allow(tx, ds, list).unwrap();
        give(&root, &[e(set("@y"), Scope::Neither, &["hold", "rename"])]);
        give(
            &a,
            &[
                e(joe.clone(), Scope::Local, &["destroy", "@x"]),
                e(Holder::Group(50), Scope::Descendent, &["mount"]),
                e(Holder::Everyone, Scope::Local, &["diff"]),
                e(set("@x"), Scope::Neither, &["send", "@y"]),
                e(Holder::Creator, Scope::Neither, &["promote", "@x"]),
            ],
        );
        p.dsl.snapshot(tx, &a, "s").unwrap();
    });
    let snap = p.dsl.dataset("tank/a@s").unwrap();
    let may = |ds: &Dataset, what: &str| ds.permits(what, &who).unwrap();
    assert!(may(&a, "destroy") && !may(&b, "destroy") && !may(&snap, "destroy"));
    assert!(!may(&a, "mount") && may(&b, "mount") && may(&snap, "mount"));
    assert!(may(&a, "diff") && !may(&b, "diff"));
    assert!(may(&a, "send") && may(&a, "hold") && !may(&a, "@x"));
    let stranger = Caller {
        uid: 7,
        groups: vec![7],
        ..who.clone()
    };
    assert!(a.permits("diff", &stranger).unwrap() && !a.permits("send", &stranger).unwrap());
    let off = Caller {
        delegation: false,
        ..who.clone()
    };
    assert!(!a.permits("destroy", &off).unwrap());
    assert!(b.permits("anything", &Caller::root()).unwrap());
    // The nearest definition of a set is the only one.
    p.sync_with(|p, tx| {
        p.dsl
            .allow(tx, &a, &[e(set("@y"), Scope::Neither, &["clone"])])
            .unwrap();
    });
    assert!(may(&a, "clone") && !may(&a, "hold"));
    // Creators get what all levels above give them.
    assert!(a.dir().permits_in_new("promote", &who).unwrap());
    assert!(a.dir().permits_in_new("send", &who).unwrap());
    assert!(a.dir().permits_in_new("mount", &who).unwrap());
    assert!(!a.dir().permits_in_new("destroy", &who).unwrap());
    p.sync_with(|p, tx| p.dsl.give_creator(tx, &b, 1000).unwrap());
    assert!(may(&b, "promote") && may(&b, "send"));
    let given = b.dir().delegated().unwrap();
    assert_eq!(given.len(), 2, "permissions and sets: {given:?}");
    audit(&p);
    // What is taken back leaves nothing behind.
    p.sync_with(|p, tx| {
        let all = a.dir().delegated().unwrap();
        p.dsl
            .unallow(tx, &a, &[e(joe.clone(), Scope::Local, &["destroy"])])
            .unwrap();
        assert!(may(&a, "send") && !may(&a, "destroy"));
        for mut one in all {
            one.permissions.clear();
            p.dsl.unallow(tx, &a, &[one]).unwrap();
        }
        assert_eq!(a.dir().delegated().unwrap(), []);
    });
    audit(&p);
}

#[test]
fn features_are_counted() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    let os = p.os(&a);
    let tx = os.tx(dmu::Need::default()).unwrap();
    let big = NewObject {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: 256 << 10,
        slots: 2,
        ..NewObject::default()
    };
    let dn = os.alloc(&tx, &big).unwrap();
    dn.write(&tx, 0, &[7; 100_000]).unwrap();
    drop(tx);
    p.sync();
    assert!(a.has_feature(guid::LARGE_BLOCKS));
    assert!(a.has_feature(guid::LARGE_DNODE));
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &a, "s").unwrap();
    });
    let store = p.store.clone().unwrap();
    assert_eq!(store.count(guid::LARGE_BLOCKS), Some(2));
    audit(&p);
    let p = p.reopen();
    let a = p.dsl.dataset("tank/a").unwrap();
    assert!(a.has_feature(guid::LARGE_BLOCKS));
    let store = p.store.as_ref().unwrap();
    let mut label = store.label_features();
    label.sort();
    assert_eq!(label, [guid::EMBEDDED_DATA, guid::HOLE_BIRTH]);
    assert_eq!(store.unsupported(), (vec![], vec![]));
    assert_eq!(
        store.enabled_in(guid::HOLE_BIRTH).unwrap(),
        Some(Txg::new(4))
    );
    assert!(store.description(guid::HOLE_BIRTH).unwrap().is_some());
}

#[test]
fn history_ring() {
    let p = Pool::new(5000, MODERN);
    let g = p.rig.dmu.begin_sync().unwrap();
    let tx = p.rig.dmu.syncing_tx(g.txg);
    let h = History::create(&p.rig.os, &tx, 0).unwrap();
    let rec = |n: u64| {
        let mut l = NvList::new();
        l.set(
            "history command",
            format!("zfs create tank/{n} {}", "x".repeat(n as usize % 999)),
        );
        l
    };
    h.append(&tx, &rec(0)).unwrap();
    for n in 1..1000 {
        h.append(&tx, &rec(n)).unwrap();
        let all = h.records().unwrap();
        assert_eq!(all[0], rec(0));
        assert_eq!(*all.last().unwrap(), rec(n));
        let first = n + 2 - all.len() as u64;
        for (i, r) in all[1..].iter().enumerate() {
            assert_eq!(*r, rec(first + i as u64));
        }
        if n == 900 {
            assert!(all.len() < 500);
        }
    }
    let again = History::open(&p.rig.os).unwrap().unwrap();
    assert_eq!(again.records().unwrap(), h.records().unwrap());
}

/// A pool that no command made, as OpenZFS's `ztest` makes them: its ring goes round before the first
/// command comes, which then is no creation to be kept.
#[test]
fn history_without_a_creation() {
    let p = Pool::new(5000, MODERN);
    let g = p.rig.dmu.begin_sync().unwrap();
    let tx = p.rig.dmu.syncing_tx(g.txg);
    let h = History::create(&p.rig.os, &tx, 0).unwrap();
    let rec = |key: &str, n: u64| {
        let mut l = NvList::new();
        l.set(key, format!("{n} {}", "x".repeat(900)));
        l
    };
    for n in 0..400 {
        h.append(&tx, &rec("history internal str", n)).unwrap();
    }
    for n in 400..600 {
        h.append(&tx, &rec("history command", n)).unwrap();
        let again = History::open(&p.rig.os).unwrap().unwrap();
        let all = again.records().unwrap();
        assert_eq!(*all.last().unwrap(), rec("history command", n));
        assert!(all.len() > 100);
    }
}

/// Hundreds of file systems in one txg cost what they should.
#[test]
fn many_datasets() {
    let mut p = Pool::new(5000, MODERN);
    p.sync_with(|p, tx| {
        let root = p.dsl.root().unwrap();
        for i in 0..1500 {
            p.dsl
                .create_fs(tx, &root, &format!("fs{i}"), CreateArgs::default())
                .unwrap();
        }
    });
    assert_eq!(p.dsl.root().unwrap().children().unwrap().len(), 1500);
    let mut p = p.reopen();
    assert_eq!(p.dsl.root().unwrap().children().unwrap().len(), 1500);
    p.sync_with(|p, tx| {
        for i in 0..1500 {
            let ds = p.dsl.dataset(&format!("tank/fs{i}")).unwrap();
            p.dsl.destroy_head(tx, &ds).unwrap();
        }
    });
    audit(&p);
    assert!(p.dsl.root().unwrap().children().unwrap().is_empty());
}

#[test]
fn listed_snapshots_do_not_stay_in_memory() {
    let mut p = Pool::new(5000, MODERN);
    let heads = |p: &Pool| -> Vec<Arc<Dataset>> {
        let all = p.dsl.root().unwrap().children().unwrap();
        all.iter().map(|d| d.head().unwrap()).collect()
    };
    p.sync_with(|p, tx| {
        let root = p.dsl.root().unwrap();
        for i in 0..500 {
            let args = CreateArgs::default();
            p.dsl.create_fs(tx, &root, &format!("fs{i}"), args).unwrap();
        }
    });
    for n in 0..12 {
        p.sync_with(|p, tx| {
            for h in heads(p) {
                p.dsl.snapshot(tx, &h, &format!("s{n}")).unwrap();
            }
        });
    }
    let p = p.reopen();
    let mut seen = 0;
    for h in heads(&p) {
        let list = h.snapshot_list().unwrap();
        let names: Vec<String> = list.iter().map(|e| e.name.clone()).collect();
        let want: Vec<String> = (0..12).map(|n| format!("s{n}")).collect();
        assert_eq!(names, want);
        for e in &list {
            let s = h.named_snapshot(e).unwrap();
            assert_eq!(s.snap_name().unwrap().as_deref(), Some(e.name.as_str()));
            seen += 1;
        }
    }
    assert_eq!(seen, 6000);
    // The heads, and no more snapshots than are kept.
    let held = p.dsl.core.datasets_held();
    assert!(held <= 500 + 4096 + 10, "{held}");
    // One that somebody has stays, and is the same for all.
    let h = heads(&p).remove(7);
    let one = h.snapshot_named("s3").unwrap().unwrap();
    for h in heads(&p) {
        h.snapshot_list().unwrap();
    }
    let again = p.dsl.dataset_by_object(one.object()).unwrap();
    assert!(Arc::ptr_eq(&one, &again));
}

/// Reading goes on while the syncing thread makes, renames and destroys: what stays is listed without an
/// error, what goes is not found, and nothing that is gone stays in memory under a number that is given
/// out again.
#[test]
fn readers_beside_a_name_space_that_changes() {
    let mut p = Pool::new(5000, MODERN);
    let keep = p.create("tank", "keep");
    let root = p.dsl.root().unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let going = || !over.load(std::sync::atomic::Ordering::Relaxed);
    let gone = |e: base::Error| assert_eq!(e.kind, Kind::NotFound, "{e}");
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while going() {
                    keep.snapshots().unwrap();
                    keep.snapshot_list().unwrap();
                    keep.bookmarks().unwrap();
                    for d in root.children().unwrap() {
                        let one = || -> Result<()> {
                            let head = d.head()?;
                            d.children()?;
                            head.snapshots()?;
                            head.bookmarks()?;
                            for (_, snap) in head.snapshots()? {
                                snap.hold_list()?;
                            }
                            Ok(())
                        };
                        one().map_or_else(gone, |()| ());
                    }
                }
            });
        }
        // An even number of turns for each name: all are gone in the end.
        for n in 0..396u64 {
            p.sync_with(|p, tx| {
                let short = format!("short{}", n % 3);
                match p.dsl.dataset(&format!("tank/{short}")) {
                    Err(_) => {
                        let args = CreateArgs::default();
                        let ds = p.dsl.create_fs(tx, &root, &short, args).unwrap();
                        let s = p.dsl.snapshot(tx, &ds, "s").unwrap();
                        let of = BookmarkSource::Snapshot(s);
                        p.dsl.create_bookmark(tx, &ds, "m", &of).unwrap();
                    }
                    Ok(ds) => {
                        let s = ds.snapshot_named("s").unwrap().unwrap();
                        p.dsl.destroy_snapshot(tx, &s).unwrap();
                        p.dsl.destroy_head(tx, &ds).unwrap();
                    }
                }
                match keep.snapshot_named("s").unwrap() {
                    None => {
                        let s = p.dsl.snapshot(tx, &keep, "s").unwrap();
                        let of = BookmarkSource::Snapshot(s);
                        p.dsl.create_bookmark(tx, &keep, "m", &of).unwrap();
                    }
                    Some(s) => {
                        p.dsl.destroy_snapshot(tx, &s).unwrap();
                        p.dsl.destroy_bookmark(tx, &keep, "m").unwrap();
                    }
                }
            });
            for d in root.children().unwrap() {
                let head = d.head().unwrap();
                assert_eq!(head.dir().object(), d.object());
                for (name, s) in head.snapshots().unwrap() {
                    let on_disk = DslDatasetPhys::decode(&s.dn.bonus()).unwrap();
                    assert_eq!(s.phys(), on_disk, "{name}");
                }
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    audit(&p);
}

/// A clone that was written to, `n` blocks in each of four groups, and was destroyed in the last group, nothing of it freed
/// yet; and how many blocks it had.
pub(super) fn destroyed_clone(n: u64) -> (Pool, u64) {
    let mut p = Pool::new(5000, &[MODERN, &["livelist"]].concat());
    let ds = p.create("tank", "a");
    let mut r = Rand(5);
    let mut write = |p: &mut Pool, ds: &Arc<Dataset>, file, blocks| {
        let os = p.os(ds);
        let tx = os.tx(dmu::Need::bytes(blocks * 4096)).unwrap();
        let dn = os.hold(file).unwrap();
        for at in 0..blocks {
            let noise: Vec<u8> = (0..4096).map(|_| (r.next() >> 7) as u8).collect();
            dn.write(&tx, at * 4096, &noise).unwrap();
        }
        drop(tx);
        p.sync();
    };
    for file in 1..=4 {
        write(&mut p, &ds, file, 400);
    }
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &ds, "s").unwrap();
    });
    let mut clone = None;
    p.sync_with(|p, tx| {
        let s = ds.snapshot_named("s").unwrap().unwrap();
        let root = p.dsl.root().unwrap();
        let args = CreateArgs::default();
        clone = Some(p.dsl.create_clone(tx, &root, "c", &s, args).unwrap());
    });
    let clone = clone.unwrap();
    // The same blocks again and again: most of the list are FREEs and their ALLOCs.
    for _ in 0..4 {
        write(&mut p, &clone, 1, n);
    }
    assert!(clone.dir().livelist().unwrap().is_some());
    p.budget = 0;
    p.sync_with(|p, tx| {
        p.open.remove(&clone.object());
        p.dsl.destroy_head(tx, &clone).unwrap();
    });
    audit(&p);
    let left = clone.phys().unique_bytes / 4096;
    (p, left)
}

/// The sub-lists of destroyed clones: the list, the object.
pub(super) fn waiting_sublists(p: &Pool) -> Vec<(u64, u64)> {
    let core = &p.dsl.core;
    let Some(map) = core.directory_get(disk::mos_keys::DELETED_CLONES).unwrap() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for e in Zap::new(&core.hold(map).unwrap()).iter() {
        let list = e.unwrap().value.as_u64().unwrap();
        let subs = Deadlist::open(&core.mos, list).unwrap().keys();
        out.extend(subs.into_values().map(|sub| (list, sub)));
    }
    out
}

#[test]
fn a_destroyed_clone_is_freed_in_steps_and_its_livelist_stays_right_between_them() {
    let (mut p, left) = destroyed_clone(150);
    let entries = |p: &Pool| {
        let sub = waiting_sublists(p).first().map(|(_, sub)| *sub);
        sub.map_or(0, |o| Bpobj::open(&p.rig.os, o).unwrap().phys.num_blkptrs)
    };
    assert!(entries(&p) > left * 4, "{} entries", entries(&p));
    p.budget = 10;
    let mut steps = 0;
    while !waiting_sublists(&p).is_empty() {
        let (freed, before) = (p.freed, entries(&p));
        p.sync();
        steps += 1;
        audit(&p);
        // Two passes of each group free.
        assert!(p.freed - freed <= 20);
        assert!(entries(&p) < before, "{} of {before} entries", entries(&p));
        if steps % 2 == 0 {
            p = p.reopen();
        }
        assert!(steps < 100);
    }
    assert!(steps > 5, "{steps} steps");
    assert_eq!(p.dsl.freeing().unwrap(), 0);
    assert_eq!(p.dsl.leaked().unwrap(), 0);
}
