//! Imports of pools of which something is lost: what is damaged is named and left alone, everything else is there; and an
//! import that is refused has written nothing.

mod cancelled;
mod lost_objects;
mod refusals;

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::ROOT;
use admin::datasets::create;
use admin::{pools, Admin, Answer, PoolEntry};
use api::{
    DatasetCreate, ImportScan, Imported, PoolCreate, PoolImport, VdevClass, VdevKind, VdevSpec,
};
use disk::BlkPtr;
use env_sim::MemDisk;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;
use zpl::{Cred, New, Zfs};

const MIB: u64 = 1 << 20;
/// Where data begins on a device.
const FRONT: u64 = 4 * MIB;

/// A machine: its host id, and disks by path.
struct Machine {
    admin: Arc<Admin>,
    disks: Vec<(String, Arc<MemDisk>)>,
    clock: Arc<env_sim::ManualClock>,
}

struct Id(u64);

impl env::Host for Id {
    fn hostid(&self) -> u64 {
        self.0
    }
    fn hostname(&self) -> String {
        format!("host{}", self.0)
    }
}

impl Machine {
    fn new(id: u64, disks: Vec<(String, Arc<MemDisk>)>) -> Machine {
        // Pools of machines with other disks have other guids.
        let (mut env, all) = env_sim::mem_env(7 + disks.len() as u64);
        env.host = Arc::new(Id(id));
        let clock = Arc::new(env_sim::ManualClock::default());
        clock.pass(1_700_000_000_000_000_000);
        env.clock = clock.clone();
        for (path, disk) in &disks {
            all.put(path, disk.clone());
        }
        let process = Alone::new(env.clone(), pool::Tunables::default());
        let door = Arc::new(MemoryDoor::default());
        Machine {
            admin: Admin::new(env, alone::settings(), door, Arc::new(process)),
            disks,
            clock,
        }
    }

    /// With a pool `p` on two disks; `log`: and a log device.
    fn with_pool(log: bool) -> Machine {
        let names: &[&str] = if log { &["a", "b", "log"] } else { &["a", "b"] };
        let disk = |n: &&str| (format!("/dev/{n}"), MemDisk::new(128 * MIB));
        let m = Machine::new(1, names.iter().map(disk).collect());
        let leaf = |(path, _): &(String, Arc<MemDisk>)| VdevSpec {
            kind: VdevKind::Disk,
            class: match path.ends_with("log") {
                true => VdevClass::Log,
                false => VdevClass::Normal,
            },
            path: Some(path.clone()),
            children: Vec::new(),
        };
        let vdevs = m.disks.iter().map(leaf).collect();
        m.create_pool("p", vdevs);
        m
    }

    fn create_pool(&self, name: &str, vdevs: Vec<VdevSpec>) {
        let ask = PoolCreate {
            name: name.into(),
            vdevs,
            props: vec![("cachefile".into(), "none".into())],
            command: format!("zpool create {name}"),
            ..PoolCreate::default()
        };
        pools::create::create(&self.admin, ROOT, ask).unwrap();
    }

    /// Another disk, with a pool of that name on it.
    fn with_another(mut self, path: &str, name: &str) -> Machine {
        self.disks.push((path.into(), MemDisk::new(128 * MIB)));
        let disks = std::mem::take(&mut self.disks);
        let m = Machine::new(1, disks);
        let leaf = VdevSpec {
            kind: VdevKind::Disk,
            class: VdevClass::Normal,
            path: Some(path.into()),
            children: Vec::new(),
        };
        m.create_pool(name, vec![leaf]);
        m
    }

    fn entry(&self) -> Arc<PoolEntry> {
        self.admin.find("p").unwrap()
    }

    fn create(&self, name: &str, props: &[(&str, String)]) {
        let ask = DatasetCreate {
            name: name.into(),
            props: props
                .iter()
                .map(|(n, v)| (n.to_string(), v.clone()))
                .collect(),
            key: props
                .iter()
                .any(|(n, _)| *n == "encryption")
                .then(|| api::Secret::new(vec![7; 32])),
            ..DatasetCreate::default()
        };
        create::create(&self.admin, ROOT, &ask).unwrap();
    }

    fn zfs(&self, name: &str) -> Option<Arc<Zfs>> {
        let entry = self.entry();
        let ds = entry.pool.dsl().dataset(name).ok()?;
        let mounted = entry.mounted(ds.object())?;
        let zfs = mounted.enter().zfs.clone();
        Some(zfs)
    }

    /// A file that is on stable storage.
    fn put(&self, fs: &str, file: &str) {
        let zfs = self.zfs(fs).unwrap();
        let top = zfs.root().unwrap();
        let cred = Cred::root();
        let z = zfs
            .create(&top, file.as_bytes(), &New::file(0o100644, 0), &cred)
            .unwrap();
        zfs.write(&z, 0, file.as_bytes(), Default::default())
            .unwrap();
        zfs.fsync(Some(&z)).unwrap();
    }

    fn has(&self, fs: &str, file: &str) -> bool {
        let Some(zfs) = self.zfs(fs) else {
            return false;
        };
        let top = zfs.root().unwrap();
        let found = zfs.lookup(&top, file.as_bytes(), &Cred::root());
        found.is_ok_and(|z| {
            let mut buf = vec![0; 100];
            let n = zfs.read(&z, 0, &mut buf).unwrap();
            &buf[..n] == file.as_bytes()
        })
    }

    fn ask(&self) -> PoolImport {
        PoolImport {
            pool: "p".into(),
            search: ImportScan {
                places: self.disks.iter().map(|(path, _)| path.clone()).collect(),
                ..ImportScan::default()
            },
            props: vec![("cachefile".into(), "none".into())],
            command: "zpool import p".into(),
            ..PoolImport::default()
        }
    }

    fn import(&self) -> Answer<Imported> {
        self.import_as(self.ask())
    }

    fn import_as(&self, ask: PoolImport) -> Answer<Imported> {
        // An activity check waits by asking whether it is to end.
        let pass = || {
            self.clock.pass(100_000_000);
            false
        };
        pools::import::import(&self.admin, ROOT, ask, &pass)
    }

    fn export(&self) {
        let how = pools::Leave::default();
        pools::leave(&self.admin, ROOT, "p", how, "zpool export p").unwrap();
    }

    /// The machine is switched off, with what its disks hold; `id`: that of the one they are put into.
    fn switched_off(self, id: u64) -> Machine {
        let next = self.forked(id);
        for e in self.admin.pools() {
            e.pool.give_up_waiting();
            self.admin.dismiss(&e);
        }
        next
    }

    /// A machine with copies of the disks as they are.
    fn forked(&self, id: u64) -> Machine {
        let disks = self.disks.iter().map(|(p, d)| (p.clone(), d.fork()));
        Machine::new(id, disks.collect())
    }

    /// Spoils all copies of a block.
    fn spoil(&self, bp: &BlkPtr) {
        assert!(!bp.is_hole() && !bp.is_embedded(), "{bp:?}");
        for dva in bp.dvas() {
            let (_, disk) = &self.disks[dva.vdev() as usize];
            disk.poke(FRONT + dva.offset(), &[0x5a; 512]);
        }
    }

    /// Sums up what is on all disks.
    fn hashes(&self) -> Vec<u64> {
        let hash = |(_, d): &(String, Arc<MemDisk>)| {
            let mut h = DefaultHasher::new();
            d.for_each_chunk(&mut |at, bytes| {
                if bytes.iter().any(|b| *b != 0) {
                    h.write_u64(at);
                    h.write(bytes);
                }
            });
            h.finish()
        };
        self.disks.iter().map(hash).collect()
    }

    /// The import is refused with such words, and nothing is written.
    fn refused(&self, ask: PoolImport, word: &str) {
        let (before, pools) = (self.hashes(), self.admin.pools().len());
        let e = self.import_as(ask).expect_err(word);
        let said = format!("{e:?}");
        assert!(said.contains(word), "{word}: {said}");
        assert_eq!(self.admin.pools().len(), pools, "{word}");
        assert!(
            self.hashes() == before,
            "{word}: the refused import has written"
        );
    }
}
