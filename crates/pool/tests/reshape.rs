//! Devices of an open pool come, go and are replaced: with the plug pulled at every event, and with the sources taken away after
//! every resilver.

use base::Txg;
use disk::ObjType;
use dmu::{NewObject, Objset};
use env_sim::MemDisk;
use pool::{AuxKind, Offline, OpenOptions, Pool};
use sim::rig::{self, Cutter, Layout, FATES};
use std::sync::Arc;
use testkit::{or_skip, OpenZfs, TempDir};
use vdev::testing::{Event, SeededRng};
use vdev::{Attach, DevSpec, GroupKind, State, TopSpec, VdevKind};

const BLOCK: usize = 64 << 10;

fn byte(seed: u64, n: u64, i: usize) -> u8 {
    (seed as usize * 77 + n as usize * 31 + i * i % 251) as u8
}

/// An object of so many blocks, not on disk yet.
fn write(os: &Arc<Objset>, seed: u64, blocks: u64) -> u64 {
    let tx = os.tx(dmu::Need::bytes(BLOCK as u64)).unwrap();
    let new = NewObject {
        obj_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: BLOCK,
        ..Default::default()
    };
    let dn = os.alloc(&tx, &new).unwrap();
    drop(tx);
    for n in 0..blocks {
        let tx = os.tx(dmu::Need::bytes(BLOCK as u64)).unwrap();
        let data: Vec<u8> = (0..BLOCK).map(|i| byte(seed, n, i)).collect();
        dn.write(&tx, n * BLOCK as u64, &data).unwrap();
    }
    dn.object()
}

fn verify(os: &Arc<Objset>, object: u64, seed: u64, blocks: u64) {
    let dn = os.hold(object).unwrap();
    let mut b = vec![0; BLOCK];
    for n in 0..blocks {
        dn.read(n * BLOCK as u64, &mut b).unwrap();
        let right = b.iter().enumerate().all(|(i, x)| *x == byte(seed, n, i));
        assert!(right, "object {object}, block {n}");
    }
}

/// Writes txgs until nothing is resilvered or replaced any more.
fn settle(pool: &Pool) {
    for _ in 0..2000 {
        if !pool.is_resilvering() && !pool.is_replacing() {
            return;
        }
        pool.sync().unwrap();
    }
    panic!("the resilver does not end: {:?}", pool.tree());
}

fn leaf(pool: &Pool, path: &str) -> u64 {
    let v = pool.tree().find_by_name(path);
    v.unwrap_or_else(|| panic!("{path} in {:?}", pool.tree()))
        .guid()
}

fn dev(path: &str) -> DevSpec {
    DevSpec::file(path)
}

struct World {
    disks: Vec<Arc<MemDisk>>,
    pool: Arc<Pool>,
}

impl World {
    /// A pool on the first `l.disks` of so many disks.
    fn new(l: &Layout, disks: usize) -> World {
        let disks: Vec<_> = (0..disks).map(|_| MemDisk::new(l.size)).collect();
        let (env, _) = rig::machine(&disks, 1);
        let pool = rig::create_in(l, env).unwrap();
        rig::tune(&pool, l);
        World { disks, pool }
    }

    fn fill(&self, seed: u64, blocks: u64) -> u64 {
        let ds = self.pool.dsl().root_dataset().unwrap();
        let set = self.pool.open_dataset(&ds).unwrap();
        write(&set.os, seed, blocks)
    }

    /// The pool of a power cut now, on these disks alone.
    fn only(&self, have: &[usize]) -> Arc<Pool> {
        let disks: Vec<_> = (0..self.disks.len())
            .map(|i| match have.contains(&i) {
                true => self.disks[i].fork(),
                false => MemDisk::new(rig::MIB),
            })
            .collect();
        let (env, _) = rig::machine(&disks, 3);
        let names: Vec<String> = (0..disks.len()).map(|i| format!("d{i}")).collect();
        let found = vdev::discover(&env, &names);
        let config = found.pools.first().expect("a pool").config.clone();
        let opts = OpenOptions {
            readonly: true,
            tunables: rig::tunables(),
            ..OpenOptions::default()
        };
        Pool::open(env, &config, opts).unwrap()
    }

    /// Every block can be read from these disks alone, and is right.
    fn whole_on(&self, have: &[usize]) -> Result<(), String> {
        let pool = self.only(have);
        let done = rig::walk(&pool);
        let bad: u64 = pool.tree().all().iter().map(|v| v.stats.errors().2).sum();
        pool.close().unwrap();
        done.and_then(|()| match bad {
            0 => Ok(()),
            n => Err(format!("{n} checksum errors on {have:?}")),
        })
    }
}

/// Attaches under load, and takes the source away: what was written in the txg of the attach is on the new device, too.
fn attach_and_take_the_source_away() -> Result<(), String> {
    let l = Layout {
        early: true,
        ..Layout::new(GroupKind::Single, 1)
    };
    let w = World::new(&l, 2);
    w.fill(1, 100);
    w.pool.sync().unwrap();
    // Dirty when the device comes.
    w.fill(2, 300);
    let old = leaf(&w.pool, "d0");
    w.pool
        .attach(old, &dev("d1"), Attach::Mirror, None)
        .unwrap();
    w.fill(3, 20);
    settle(&w.pool);
    w.pool.sync().unwrap();
    w.whole_on(&[1])
}

#[test]
fn an_attached_device_has_everything_when_its_resilver_ends() {
    attach_and_take_the_source_away().unwrap();
}

/// Without the txgs in flight the blocks written early are on the source only.
#[test]
fn an_attach_that_leaves_out_the_txgs_in_flight_is_found() {
    base::mutation::mutate(Some(base::mutation::Mutation::AttachedTxgTooFew));
    let done = attach_and_take_the_source_away();
    base::mutation::mutate(None);
    assert!(done.is_err());
}

#[test]
fn a_device_that_was_offline_is_resilvered_and_then_stands_alone() {
    let l = Layout::new(GroupKind::Mirror, 2);
    let w = World::new(&l, 2);
    w.fill(1, 50);
    w.pool.sync().unwrap();
    let (a, b) = (leaf(&w.pool, "d0"), leaf(&w.pool, "d1"));
    let off = Offline {
        temporary: false,
        fault: false,
    };
    w.pool.offline(a, off).unwrap();
    let refused = w.pool.offline(b, off).unwrap_err();
    assert_eq!(refused.to_string(), "no valid replicas");
    assert_eq!(
        w.pool.detach(b).unwrap_err().to_string(),
        "no valid replicas"
    );
    w.fill(2, 50);
    w.pool.sync().unwrap();
    assert_eq!(
        w.only(&[0, 1]).tree().leaf_of(a).unwrap().1.state(),
        State::Offline
    );
    assert_eq!(w.pool.online(a).unwrap(), State::Healthy);
    settle(&w.pool);
    w.pool.sync().unwrap();
    w.whole_on(&[0]).unwrap();
    // One that was put out of use stays so until it is forgiven.
    let fault = Offline { fault: true, ..off };
    w.pool.offline(b, fault).unwrap();
    assert_eq!(w.pool.online(b).unwrap(), State::Faulted);
    w.pool.detach(b).unwrap();
    assert!(w.pool.tree().top(0).unwrap().kind().is_leaf());
    rig::check(&w.pool).unwrap();
}

#[test]
fn a_spare_stands_in_and_goes_back() {
    let l = Layout::new(GroupKind::Raidz { nparity: 1 }, 3);
    let w = World::new(&l, 4);
    w.fill(1, 100);
    w.pool.add_aux(&[(AuxKind::Spare, dev("d3"))]).unwrap();
    let guid = w.pool.aux_devices().spares[0].get_u64("guid").unwrap();
    let victim = leaf(&w.pool, "d1");
    w.pool.fault(victim, false, 0).unwrap();
    w.pool
        .attach(victim, &dev("d3"), Attach::Spare(guid), None)
        .unwrap();
    w.fill(2, 20);
    for _ in 0..300 {
        if !w.pool.is_resilvering() {
            break;
        }
        w.pool.sync().unwrap();
    }
    assert!(!w.pool.is_resilvering() && w.pool.is_replacing());
    // Who waits for replacements does not wait for the device to come back.
    assert!(!w.pool.is_replacement_under_way());
    w.pool.sync().unwrap();
    w.whole_on(&[0, 3]).unwrap();
    assert!(w.pool.remove_aux(guid).is_err(), "it is in use");
    // The device is well again: the spare goes back when it has everything.
    assert!(w.pool.tree().leaf_of(victim).unwrap().1.forgive());
    assert_eq!(w.pool.online(victim).unwrap(), State::Healthy);
    settle(&w.pool);
    w.pool.sync().unwrap();
    assert!(w.pool.tree().find(guid).is_none(), "{:?}", w.pool.tree());
    w.whole_on(&[1, 2]).unwrap();
    let label = vdev::label::read_labels(&*w.disks[3]);
    let label = label.best(Txg::MAX).unwrap();
    assert_eq!(label.get_u64("state"), Some(3), "a spare's label");
    // The other way round the spare stays for good.
    w.pool.fault(victim, false, 0).unwrap();
    w.pool
        .attach(victim, &dev("d3"), Attach::Spare(guid), None)
        .unwrap();
    for _ in 0..300 {
        if !w.pool.is_resilvering() {
            break;
        }
        w.pool.sync().unwrap();
    }
    w.pool.detach(victim).unwrap();
    assert!(w.pool.aux_devices().spares.is_empty());
    rig::check(&w.pool).unwrap();
    w.whole_on(&[0, 3]).unwrap();
}

#[test]
fn a_log_and_devices_beside_the_tree_leave_a_pool_that_openzfs_checks() {
    let l = Layout::new(GroupKind::Single, 1);
    let w = World::new(&l, 6);
    let log = |d: &[&str]| {
        let kind = match d.len() {
            1 => GroupKind::Single,
            _ => GroupKind::Mirror,
        };
        let mut t = TopSpec::new(kind, d.iter().map(|d| dev(d)).collect());
        t.is_log = true;
        t.ashift = Some(l.ashift);
        t
    };
    w.pool
        .add_tops(&[log(&["d1"]), log(&["d2", "d3"])])
        .unwrap();
    w.pool
        .add_aux(&[(AuxKind::Spare, dev("d4")), (AuxKind::Cache, dev("d5"))])
        .unwrap();
    w.fill(1, 100);
    w.pool.sync().unwrap();
    let check = |what: &str, pool: &Arc<Pool>| {
        rig::check(pool).unwrap();
        if let Some(z) = or_skip(OpenZfs::get()) {
            let dir = TempDir::new("reshape").unwrap();
            let disks: Vec<_> = w.disks.iter().map(|d| d.fork()).collect();
            rig::dump(&disks, dir.path()).unwrap();
            if let Err(e) = z.check(dir.path(), "tank") {
                panic!("{what}: {e}");
            }
        }
    };
    check("with all devices", &w.pool);
    w.pool.remove_log(1).unwrap();
    assert_eq!(w.pool.tree().top(1).unwrap().kind(), VdevKind::Hole);
    check("without a log", &w.pool);
    let aux = w.pool.aux_devices();
    for list in [&aux.spares, &aux.l2cache] {
        assert!(w.pool.remove_aux(list[0].get_u64("guid").unwrap()).unwrap());
    }
    w.pool.remove_log(2).unwrap();
    assert_eq!(w.pool.tree().holes(), [1, 2]);
    check("without logs", &w.pool);
    let old = leaf(&w.pool, "d0");
    w.pool
        .attach(old, &dev("d1"), Attach::Mirror, None)
        .unwrap();
    settle(&w.pool);
    check("a mirror", &w.pool);
    w.pool.detach(leaf(&w.pool, "d0")).unwrap();
    check("on another disk", &w.pool);
    w.whole_on(&[1]).unwrap();
}

/// Where the plug was pulled while a device was attached, another replaced and a third detached, the pool is there with all
/// data, and goes on with what was begun.
#[test]
fn a_crash_at_any_event_of_a_change_leaves_a_whole_pool() {
    let w = World::new(&Layout::new(GroupKind::Single, 1), 3);
    let first = w.fill(1, 40);
    w.pool.sync().unwrap();
    let (journal, base) = rig::start_journal(&w.disks);
    let second = w.fill(2, 40);
    let d0 = leaf(&w.pool, "d0");
    w.pool.attach(d0, &dev("d1"), Attach::Mirror, None).unwrap();
    settle(&w.pool);
    let d1 = leaf(&w.pool, "d1");
    w.pool
        .attach(d1, &dev("d2"), Attach::Replace, None)
        .unwrap();
    settle(&w.pool);
    w.pool.detach(leaf(&w.pool, "d0")).unwrap();
    let events = journal.take();
    w.whole_on(&[2]).unwrap();

    let mut moments: Vec<usize> = Vec::new();
    for (i, e) in events.iter().enumerate() {
        if matches!(e, Event::Flush { .. }) {
            moments.extend([i, i + 1]);
        }
    }
    // Every one takes a while; which ones are left out changes with what comes before.
    let step = moments.len().div_ceil(60).max(1);
    let rng = SeededRng::new(7);
    let mut cutter = Cutter::new(&base, events);
    let mut shapes = std::collections::BTreeSet::new();
    for (n, at) in moments.into_iter().step_by(step).enumerate() {
        cutter.forward(at);
        let image = cutter.image(FATES[n % FATES.len()], &rng);
        let (env, _) = rig::machine(&image, 3);
        let names: Vec<String> = (0..3).map(|i| format!("d{i}")).collect();
        let found = vdev::discover(&env, &names);
        let config = found.pools[0].config.clone();
        let pool = rig::open(&image, &config, 4).unwrap_or_else(|e| panic!("at {at}: {e}"));
        let kind = format!("{:?}", pool.tree().top(0).unwrap().kind());
        shapes.insert((kind, pool.tree().leaves().len()));
        let ds = pool.dsl().root_dataset().unwrap();
        let set = pool.open_dataset(&ds).unwrap();
        verify(&set.os, first, 1, 40);
        if set.os.hold(second).is_ok() {
            verify(&set.os, second, 2, 40);
        }
        drop((set, ds));
        settle(&pool);
        pool.sync().unwrap();
        rig::check(&pool).unwrap_or_else(|e| panic!("at {at}: {e}"));
        assert_eq!(
            pool.tree().state().0,
            State::Healthy,
            "at {at}: {:?}",
            pool.tree()
        );
        pool.export().unwrap();
    }
    assert!(shapes.len() >= 3, "{shapes:?}");
}
