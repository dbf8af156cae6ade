//! A volume with something in it gets another size, and goes back to a snapshot.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::datasets::{create, set, volumes};
use admin::pools;
use admin::{Admin, PoolEntry};
use api::{DatasetCreate, ImportScan, PoolImport};
use dmu::Need;
use env_sim::{MemDisk, MemDisks};
use pool::Tunables;
use std::sync::Arc;

const PATH: &str = "/dev/a";
const MIB: u64 = 1 << 20;

fn start(disk: &Arc<MemDisk>) -> Arc<Admin> {
    let (env, _) = env_sim::mem_env(7);
    let disks = MemDisks::default();
    disks.put(PATH, disk.clone());
    let env = env::Env {
        disks: Arc::new(disks),
        ..env
    };
    let process = Alone::new(env.clone(), Tunables::default());
    let door = MemoryDoor::default();
    Admin::new(env, alone::settings(), Arc::new(door), Arc::new(process))
}

fn resize(admin: &Arc<Admin>, text: &str) {
    let props = vec![("volsize".to_string(), text.to_string())];
    set::set(admin, ROOT, "p/v", &props, false, String::new()).unwrap();
}

/// Size of the volume, bytes it refers to, and whether byte `at` is there: the first of each MiB is 1.
fn state(entry: &PoolEntry, at: u64) -> (u64, u64, bool) {
    let ds = entry.pool.dsl().dataset("p/v").unwrap();
    let set = entry.pool.open_dataset(&ds).unwrap();
    let size = volumes::shape(&set.os).unwrap().size;
    let mut byte = [0];
    set.os
        .hold(disk::volume::DATA)
        .unwrap()
        .read(at, &mut byte)
        .unwrap();
    drop(set);
    entry.pool.close_dataset(ds.object());
    (size, ds.phys().referenced_bytes, byte[0] == 1)
}

#[test]
fn what_is_behind_a_new_end_is_freed_and_a_rollback_brings_it_back() {
    let disk = MemDisk::new(128 * MIB);
    let admin = start(&disk);
    pools::create::create(&admin, ROOT, alone::pool_on("p", PATH)).unwrap();
    let ask = DatasetCreate {
        name: "p/v".into(),
        volume_size: Some("8M".into()),
        props: vec![("compression".into(), "off".into())],
        ..DatasetCreate::default()
    };
    create::create(&admin, ROOT, &ask).unwrap();
    let entry = admin.find("p").unwrap();
    let ds = entry.pool.dsl().dataset("p/v").unwrap();
    {
        let set = entry.pool.open_dataset(&ds).unwrap();
        let data = set.os.hold(disk::volume::DATA).unwrap();
        for n in 0..8 {
            let tx = set.os.tx(Need::bytes(2 * MIB)).unwrap();
            data.write(&tx, n * MIB, &vec![1; MIB as usize]).unwrap();
        }
    }
    entry.pool.sync().unwrap();
    entry.pool.close_dataset(ds.object());
    let full = state(&entry, 7 * MIB);
    assert_eq!((full.0, full.2), (8 * MIB, true));
    let commands = Commands(admin.clone());
    commands.snapshot("p/v@s").unwrap();
    resize(&admin, "2M");
    resize(&admin, "8M");
    let cut = state(&entry, 7 * MIB);
    assert!(cut.0 == 8 * MIB && !cut.2, "{cut:?}");
    assert!(cut.1 < full.1 / 2, "{cut:?} {full:?}");
    assert!(state(&entry, MIB).2);
    resize(&admin, "1M");
    commands.rollback("p/v@s").unwrap();
    assert_eq!(state(&entry, 7 * MIB), full);
    resize(&admin, "4M");
    let four = state(&entry, 3 * MIB);
    drop(entry);
    pools::leave(&admin, ROOT, "p", Default::default(), "zpool export p").unwrap();
    let admin = start(&disk);
    let ask = PoolImport {
        pool: "p".into(),
        search: ImportScan {
            places: vec![PATH.into()],
            ..ImportScan::default()
        },
        props: vec![("cachefile".into(), "none".into())],
        ..PoolImport::default()
    };
    pools::import::import(&admin, ROOT, ask, &|| false).unwrap();
    let entry = admin.find("p").unwrap();
    assert_eq!(state(&entry, 3 * MIB), four);
    ends_without_a_trace(&admin, &entry);
}

/// Everything goes, and nothing is left in use that nobody refers to.
fn ends_without_a_trace(admin: &Arc<Admin>, entry: &PoolEntry) {
    let commands = Commands(admin.clone());
    commands.destroy("p/v@s").unwrap();
    commands.destroy("p/v").unwrap();
    entry.pool.sync().unwrap();
    let found = audit::check(&entry.pool, audit::Verify::Data, true).unwrap();
    found.verdict().unwrap();
    assert!(audit::accounts(&entry.pool).unwrap().is_empty());
}
