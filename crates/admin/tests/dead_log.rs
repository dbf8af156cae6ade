//! A log device that fails while its pool is in use: the fault agent puts it out of use, the pool is degraded and goes on, and
//! `zpool clear` brings the device back.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::ROOT;
use admin::pools::agent::Agent;
use admin::pools::{create, damage, get, import};
use admin::{Admin, Head, PoolEntry};
use api::{ImportScan, PoolClear, PoolImport, VdevClass, VdevKind, VdevSpec};
use env_sim::MemDisk;
use pool::Tunables;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use vdev::State;

struct World {
    admin: Arc<Admin>,
    log: Arc<MemDisk>,
}

impl World {
    /// A pool `p` on `/dev/a` with the log `/dev/l`.
    fn new() -> World {
        let (env, disks) = env_sim::mem_env(7);
        disks.add("/dev/a", 128 << 20);
        let log = disks.add("/dev/l", 128 << 20);
        let process = Arc::new(Alone::new(env.clone(), Tunables::default()));
        let door = Arc::new(MemoryDoor::default());
        let admin = Admin::new(env, alone::settings(), door, process);
        let mut ask = alone::pool_on("p", "/dev/a");
        ask.vdevs.push(VdevSpec {
            kind: VdevKind::Disk,
            class: VdevClass::Log,
            path: Some("/dev/l".into()),
            children: Vec::new(),
        });
        create::create(&admin, ROOT, ask).unwrap();
        World { admin, log }
    }

    fn entry(&self) -> Arc<PoolEntry> {
        self.admin.find("p").unwrap()
    }

    fn health(&self) -> String {
        get::health(&self.entry())
    }

    fn state(&self) -> State {
        let entry = self.entry();
        let leaf = entry.pool.tree().find_by_name("/dev/l").unwrap();
        leaf.state()
    }

    fn head(&self) -> Arc<Head> {
        let entry = self.entry();
        let ds = entry.pool.dsl().root_dataset().unwrap();
        let mounted = entry.mounted(ds.object()).unwrap();
        let mount = mounted.mount.as_any().downcast_ref::<MemoryMount>();
        mount.unwrap().head.clone()
    }

    /// A file that is on stable storage; true if the intent log was enough for that.
    fn write(&self, name: &str) -> bool {
        let head = self.head();
        let (set, zfs) = (head.set(), head.zfs());
        let fallbacks = || set.zil().unwrap().stats().fallbacks;
        let before = fallbacks();
        let (new, cred) = (zpl::New::file(0o100644, 0), zpl::Cred::root());
        let root = zfs.root().unwrap();
        let z = zfs.create(&root, name.as_bytes(), &new, &cred).unwrap();
        zfs.write(&z, 0, &[7; 5000], Default::default()).unwrap();
        zfs.fsync(Some(&z)).unwrap();
        fallbacks() == before
    }
}

#[test]
fn a_pool_is_degraded_by_a_dead_log_and_goes_on() {
    let w = World::new();
    let mut agent = Agent::default();
    w.write("first");
    assert!(w.write("second"));
    agent.look(&w.admin, &w.entry());
    w.log.fail_flush.store(true, Relaxed);
    for n in 0..40 {
        w.write(&format!("f{n}"));
        agent.look(&w.admin, &w.entry());
        assert_ne!(w.health(), "SUSPENDED");
    }
    assert_eq!((w.state(), &*w.health()), (State::Faulted, "DEGRADED"));
    w.write("third");
    assert!(w.write("fourth"), "it is logged in the pool");
    // It was emptied, so that nobody misses it at the next import.
    let leave = "zpool export p";
    admin::pools::leave(&w.admin, ROOT, "p", Default::default(), leave).unwrap();
    let ask = PoolImport {
        search: ImportScan {
            places: vec!["/dev/a".into(), "/dev/l".into()],
            ..ImportScan::default()
        },
        props: vec![("cachefile".into(), "none".into())],
        pool: "p".into(),
        command: "zpool import p".into(),
        ..PoolImport::default()
    };
    import::import(&w.admin, ROOT, ask, &|| false).unwrap();
    assert_eq!((w.state(), &*w.health()), (State::Faulted, "DEGRADED"));
    w.log.well();
    let ask = PoolClear {
        pool: "p".into(),
        command: "zpool clear p".into(),
        ..PoolClear::default()
    };
    damage::clear(&w.admin, ROOT, &ask).unwrap();
    assert_eq!((w.state(), &*w.health()), (State::Healthy, "ONLINE"));
    w.write("fifth");
    assert!(w.write("sixth"));
}
