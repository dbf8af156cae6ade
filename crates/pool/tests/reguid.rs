//! A pool gets another guid: judged by OpenZFS, and with the plug pulled at each flush.

use base::Kind;
use pool::OpenOptions;
use sim::rig::{self, Cutter, Layout, FATES};
use vdev::testing::SeededRng;
use vdev::GroupKind;

/// Whatever is left after a power cut is one pool, which has the old guid or the new one, and all of it can be imported.
#[test]
fn after_a_power_cut_the_pool_has_one_of_both_guids() {
    for (kind, disks) in [(GroupKind::Mirror, 2), (GroupKind::Raidz { nparity: 1 }, 3)] {
        let layout = Layout::new(kind, disks);
        let (live, pool) = rig::create(&layout, 1);
        pool.sync().unwrap();
        let old = pool.guid();
        let (journal, base) = rig::start_journal(&live);
        let new = pool.reguid(None).unwrap();
        assert!(new != old && pool.guid() == new && new != 0);
        let events = journal.take();
        pool.close().unwrap();
        let len = events.len();
        let mut cutter = Cutter::new(&base, events);
        let rng = SeededRng::new(7);
        let mut seen = std::collections::BTreeSet::new();
        for at in 0..=len {
            cutter.forward(at);
            for fate in FATES {
                let image = cutter.image(fate, &rng);
                let (env, _) = rig::machine(&image, 3);
                let paths: Vec<String> = (0..image.len()).map(|i| format!("d{i}")).collect();
                let found = vdev::discover(&env, &paths).pools;
                let what = format!("{kind:?}: event {at} of {len}, {fate:?}");
                assert_eq!(found.len(), 1, "{what}");
                let p = rig::open(&image, &found[0].config, 5);
                let p = p.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!([old, new].contains(&p.guid()), "{what}: {}", p.guid());
                seen.insert(p.guid());
                p.close().unwrap();
            }
        }
        assert_eq!(seen.len(), 2);
    }
}

#[test]
fn a_guid_that_cannot_be_is_refused() {
    let layout = Layout::new(GroupKind::Mirror, 2);
    let (disks, pool) = rig::create(&layout, 1);
    let old = pool.guid();
    let leaf = pool.tree().leaves()[0].guid();
    let refused = |guid, kind: Kind| {
        assert_eq!(pool.reguid(guid).unwrap_err().kind, kind);
        assert_eq!(pool.guid(), old);
    };
    refused(Some(0), Kind::Invalid);
    refused(Some(old), Kind::Exists);
    refused(Some(leaf), Kind::Exists);
    pool.take_checkpoint().unwrap();
    refused(None, Kind::Exists);
    pool.discard_checkpoint().unwrap();
    while pool.shares().checkpoint.is_discarding() {
        pool.prove_devices().unwrap();
    }
    let how = pool::Offline {
        temporary: false,
        fault: false,
    };
    pool.offline(leaf, how).unwrap();
    refused(None, Kind::NoDevice);
    pool.online(leaf).unwrap();
    for _ in 0..20 {
        pool.prove_devices().unwrap();
    }
    assert_eq!(pool.reguid(Some(77)).unwrap(), 77);
    pool.export().unwrap();
    let (env, _) = rig::machine(&disks, 3);
    let found = vdev::discover(&env, &["d0".into(), "d1".into()]).pools;
    assert_eq!((found.len(), found[0].guid), (1, 77));
    let pool = pool::Pool::open(env, &found[0].config, OpenOptions::default()).unwrap();
    assert_eq!(pool.guid(), 77);
    pool.close().unwrap();
}
