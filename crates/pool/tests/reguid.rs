//! A pool gets another guid: judged by OpenZFS, and with the plug pulled at each flush.

use base::Kind;
use pool::OpenOptions;
use sim::rig::{self, Cutter, Layout, FATES};
use vdev::testing::SeededRng;
use vdev::GroupKind;

/// Whatever is left after a power cut is one pool, which has the old guid or the new one, and all of it can be imported.
#[test]
fn after_a_power_cut_the_pool_has_one_of_both_guids() {
    let draid = GroupKind::Draid {
        nparity: 1,
        ndata: 2,
        nspares: 1,
    };
    for (kind, disks) in [
        (GroupKind::Mirror, 2),
        (GroupKind::Raidz { nparity: 1 }, 3),
        (draid, 5),
    ] {
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

/// The old labels of a device that has left would name a pool of the old guid, which is nowhere.
#[test]
fn no_device_leaves_with_the_txg_of_a_new_guid() {
    let layout = Layout {
        bench: 1,
        ..Layout::new(GroupKind::Mirror, 2)
    };
    let (live, pool) = rig::create(&layout, 1);
    let old = pool.tree().leaves()[1].guid();
    let (journal, base) = rig::start_journal(&live);
    let dev = vdev::DevSpec::file("d2");
    pool.attach(old, &dev, vdev::Attach::Replace, None).unwrap();
    for _ in 0..60 {
        match pool.reguid(None) {
            Err(e) if e.kind == Kind::NoDevice => {}
            done => {
                done.unwrap();
            }
        }
        // Then it may leave.
        pool.prove_devices().unwrap();
        if pool.tree().find(old).is_none() {
            break;
        }
    }
    assert!(pool.tree().find(old).is_none());
    pool.reguid(None).unwrap();
    let events = journal.take();
    pool.close().unwrap();
    let flush = |e: &vdev::testing::Event| matches!(e, vdev::testing::Event::Flush { .. });
    let flushes: Vec<usize> = (0..events.len()).filter(|i| flush(&events[*i])).collect();
    let mut cutter = Cutter::new(&base, events);
    let rng = SeededRng::new(7);
    for at in flushes {
        cutter.forward(at);
        let image = cutter.image(FATES[at % FATES.len()], &rng);
        let (env, _) = rig::machine(&image, 3);
        let paths: Vec<String> = (0..image.len()).map(|i| format!("d{i}")).collect();
        let found = vdev::discover(&env, &paths).pools;
        assert_eq!(found.len(), 1, "event {at}");
        let p = rig::open(&image, &found[0].config, 5).unwrap_or_else(|e| panic!("{at}: {e}"));
        p.close().unwrap();
    }
}
