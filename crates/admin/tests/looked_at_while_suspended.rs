//! A pool whose txg waits for its devices is listed and described all the same, wherever the thread
//! that writes the txg stopped and whatever locks it holds.

use admin::alone::{self, Alone, MemoryDoor};
use admin::commands::{Commands, ROOT};
use admin::datasets::get as datasets;
use admin::pools::{create, get as pools, import};
use admin::Admin;
use api::{DatasetGet, DatasetKind, ImportScan, PoolGet, PoolImport, Select, Value};
use base::Error;
use env_sim::{MemDisk, MemDisks};
use pool::{Patience, Pool, Tunables};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{mpsc, Arc, Mutex, Weak};
use std::time::Duration;

const PATH: &str = "/dev/a";
/// Who has not answered by then waits for a lock.
const LIMIT: Duration = Duration::from_secs(20);
/// Moments at which the device goes away are so many transfers apart.
const EVERY: usize = 3;

/// One process's administration of the disk.
fn start(disk: &Arc<MemDisk>, cache_bytes: u64) -> Arc<Admin> {
    let (env, _) = env_sim::mem_env(7);
    let disks = MemDisks::default();
    disks.put(PATH, disk.clone());
    let env = env::Env {
        disks: Arc::new(disks),
        ..env
    };
    let settings = alone::settings();
    let tunables = Tunables {
        cache_bytes,
        ..Tunables::default()
    };
    let process = Alone::new(env.clone(), tunables);
    let door = MemoryDoor::default();
    Admin::new(env, settings, Arc::new(door), Arc::new(process))
}

/// A disk with an exported pool `p` on it.
fn pool_on_disk() -> Arc<MemDisk> {
    let disk = MemDisk::new(128 << 20);
    let admin = start(&disk, 64 << 20);
    let mut ask = alone::pool_on("p", PATH);
    ask.props.push(("failmode".into(), "continue".into()));
    create::create(&admin, ROOT, ask).unwrap();
    let commands = Commands(admin.clone());
    for name in ["p/a", "p/b", "p/a/c"] {
        commands.create(name, &[("quota", 64 << 20)]).unwrap();
        commands.snapshot(&format!("{name}@s")).unwrap();
    }
    commands.bookmark("p/a@s", "p/a#m").unwrap();
    commands.hold("tag", "p/b@s").unwrap();
    admin::pools::leave(&admin, ROOT, "p", Default::default(), "zpool export p").unwrap();
    disk
}

/// All that is asked of a pool by commands that only look. Each question is told before it is asked.
fn look(admin: &Arc<Admin>, asks: &dyn Fn(&'static str)) {
    let ask = |tree, error_list, props| PoolGet {
        pools: vec!["p".into()],
        tree,
        error_list,
        props,
        ..PoolGet::default()
    };
    asks("zpool list");
    let names = ["size", "health", "freeing", "checkpoint", "dedupratio"].map(String::from);
    let found = pools::get(
        admin,
        ::admin::commands::ROOT,
        &ask(false, false, Select::These(names.into())),
    )
    .found;
    assert_eq!(found[0].health, "SUSPENDED");
    asks("zpool status -v");
    let found = pools::get(
        admin,
        ::admin::commands::ROOT,
        &ask(true, true, Select::Nothing),
    )
    .found;
    assert!(found[0].facts.suspended && found[0].tree.is_some());
    asks("zpool get all");
    let found = pools::get(
        admin,
        ::admin::commands::ROOT,
        &ask(false, false, Select::All),
    )
    .found;
    let failmode = found[0].props.iter().find(|p| p.name == "failmode");
    assert_eq!(failmode.unwrap().value, Value::Text("continue".into()));
    for (words, props) in [("zfs list", false), ("zfs get all", true)] {
        asks(words);
        let used = vec!["used".into(), "mountpoint".into()];
        let ask = DatasetGet {
            roots: vec!["p".into()],
            kinds: vec![
                DatasetKind::Filesystem,
                DatasetKind::Snapshot,
                DatasetKind::Bookmark,
            ],
            depth: None,
            props: match props {
                true => Select::All,
                false => Select::These(used),
            },
            listsnapshots: true,
        };
        let got = datasets::get(admin, ::admin::commands::ROOT, &ask, &mut |_| Ok(())).unwrap();
        assert!(
            !got.found.is_empty() || !got.failed.is_empty(),
            "no answer to {words}"
        );
    }
}

/// Has somebody look when the pool begins to wait, and then the device be well again.
struct Watched {
    admin: Weak<Admin>,
    disk: Arc<MemDisk>,
    looked: AtomicBool,
    stuck: Arc<Mutex<BTreeSet<&'static str>>>,
    waited: Arc<AtomicU64>,
}

impl Patience for Watched {
    fn again(&self, _: &Pool, _: &Error) -> bool {
        if !self.looked.swap(true, Relaxed) {
            self.waited.fetch_add(1, Relaxed);
            let admin = self.admin.upgrade().unwrap();
            let (send, ended) = mpsc::channel();
            let asked = Arc::new(Mutex::new("nothing"));
            let now = asked.clone();
            std::thread::spawn(move || {
                look(&admin, &|words| *now.lock().unwrap() = words);
                let _ = send.send(());
            });
            if ended.recv_timeout(LIMIT).is_err() {
                self.stuck.lock().unwrap().insert(*asked.lock().unwrap());
            }
        }
        self.disk.well();
        true
    }
}

/// The device goes away after so many transfers. True if the pool waited for it.
fn goes_away(base: &MemDisk, transfers: usize, cache_bytes: u64) -> Result<bool, String> {
    let disk = base.fork();
    let admin = start(&disk, cache_bytes);
    let ask = PoolImport {
        pool: "p".into(),
        search: ImportScan {
            places: vec![PATH.into()],
            ..ImportScan::default()
        },
        props: vec![("cachefile".into(), "none".into())],
        command: "zpool import p".into(),
        ..PoolImport::default()
    };
    import::import(&admin, ROOT, ask, &|| false).unwrap();
    let (stuck, waited) = (Arc::default(), Arc::default());
    let entry = admin.find("p").unwrap();
    entry.pool.set_patience(Box::new(Watched {
        admin: Arc::downgrade(&admin),
        disk: disk.clone(),
        looked: AtomicBool::new(false),
        stuck: Arc::clone(&stuck),
        waited: Arc::clone(&waited),
    }));
    disk.dies_after.store(transfers as i64, Relaxed);
    let commands = Commands(admin.clone());
    // What reads first, outside of a txg, may meet the dead device: an error.
    let _ = commands.destroy("p/a@s");
    let _ = commands.create("p/b/new", &[("quota", 32 << 20)]);
    let _ = commands.snapshot("p/b@t");
    disk.well();
    let stuck = stuck.lock().unwrap();
    match stuck.is_empty() {
        true => Ok(waited.load(Relaxed) > 0),
        false => Err(format!("{stuck:?} waited for the txg")),
    }
}

fn everywhere(cache_bytes: u64) {
    let base = pool_on_disk();
    let (mut waited, mut found) = (0, Vec::new());
    for n in (0..400).step_by(EVERY) {
        match goes_away(&base, n, cache_bytes) {
            Ok(true) => waited += 1,
            Ok(false) => {}
            Err(e) => found.push(format!("after {n} transfers: {e}")),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(waited > 10, "the pool waited {waited} times");
}

#[test]
fn a_pool_that_waits_for_its_devices_is_described_from_memory() {
    everywhere(64 << 20);
}

#[test]
fn a_pool_that_waits_in_the_middle_of_a_read_is_described() {
    everywhere(0);
}
