//! What goes on beside a pool that waits for its devices.

use admin::alone::{self, Alone, MemoryDoor, MemoryMount};
use admin::commands::ROOT;
use admin::pools::agent::Agent;
use admin::pools::{self, devices};
use admin::{Admin, DeviceUse, Head, PoolEntry, Process};
use api::{PoolCreate, VdevClass, VdevKind, VdevSpec};
use base::mutation::{mutate, Mutation};
use base::{Kind, Result};
use env_sim::MemDisk;
use pool::Tunables;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::sync::Arc;
use std::time::Duration;
use vdev::State;

/// Whatever has not ended by then hangs.
const HANGS: Duration = Duration::from_secs(60);

/// A process in which a thread writes the txgs of each pool, and waits for devices that refuse them.
struct Served(Alone);

impl Process for Served {
    fn in_service(&self, _: &Arc<Admin>, entry: &Arc<PoolEntry>) -> Result<()> {
        let entry = entry.clone();
        std::thread::spawn(move || {
            let serving = entry.pool.serve();
            while !entry.is_leaving() {
                if entry.pool.wait_for_work(Duration::from_millis(20)) && serving.sync().is_err() {
                    return;
                }
            }
        });
        Ok(())
    }
    fn waits_for_devices(&self) -> bool {
        true
    }
    fn command(&self, pid: i32) -> Option<String> {
        self.0.command(pid)
    }
    fn beat(&self, entry: &Arc<PoolEntry>) -> Result<()> {
        self.0.beat(entry)
    }
    fn share(&self, admin: &Admin) {
        self.0.share(admin);
    }
    fn tunables(&self) -> Tunables {
        self.0.tunables()
    }
    fn spawn(&self, _: &str, job: Box<dyn FnOnce() + Send>) -> Result<()> {
        std::thread::spawn(job);
        Ok(())
    }
    fn together(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        self.0.together(jobs, job);
    }
    fn pause(&self, time: Duration, stop: &dyn Fn() -> bool) -> bool {
        self.0.pause(time, stop)
    }
    fn user(&self) -> (u32, u32) {
        self.0.user()
    }
    fn date(&self, seconds: u64) -> String {
        self.0.date(seconds)
    }
    fn no_dumps(&self) {}
    fn devices(&self, folder: Option<&str>) -> Result<Vec<String>> {
        self.0.devices(folder)
    }
    fn identity(&self, path: &str) -> Option<(bool, u64, u64)> {
        self.0.identity(path)
    }
    fn is_held(&self, path: &str) -> bool {
        self.0.is_held(path)
    }
    fn device_use(&self, path: &str) -> Result<DeviceUse> {
        self.0.device_use(path)
    }
}

struct World {
    admin: Arc<Admin>,
    disks: Vec<Arc<MemDisk>>,
}

impl World {
    /// A pool `p` on a mirror of `/dev/a` and `/dev/b`.
    fn new() -> World {
        let (env, disks) = env_sim::mem_env(7);
        let disks = ["/dev/a", "/dev/b"].map(|d| disks.add(d, 128 << 20));
        let settings = alone::settings();
        let process = Served(Alone::new(env.clone(), Tunables::default()));
        let door = Arc::new(MemoryDoor::default());
        let w = World {
            admin: Admin::new(env, settings, door, Arc::new(process)),
            disks: disks.into(),
        };
        let leaf = |path: &str| VdevSpec {
            kind: VdevKind::Disk,
            class: VdevClass::Normal,
            path: Some(path.into()),
            children: Vec::new(),
        };
        let ask = PoolCreate {
            name: "p".into(),
            vdevs: vec![VdevSpec {
                kind: VdevKind::Mirror,
                class: VdevClass::Normal,
                path: None,
                children: vec![leaf("/dev/a"), leaf("/dev/b")],
            }],
            props: vec![("cachefile".into(), "none".into())],
            command: "zpool create p".into(),
            ..PoolCreate::default()
        };
        pools::create::create(&w.admin, ROOT, ask).unwrap();
        w
    }

    /// The file system mounted at `/p`.
    fn head(&self) -> Arc<Head> {
        let entry = self.entry();
        let ds = entry.pool.dsl().root_dataset().unwrap();
        let mounted = entry.mounted(ds.object()).unwrap();
        let mount = mounted.mount.as_any().downcast_ref::<MemoryMount>();
        mount.unwrap().head.clone()
    }

    fn entry(&self) -> Arc<PoolEntry> {
        self.admin.find("p").unwrap()
    }

    fn state(&self, path: &str) -> State {
        self.entry().pool.tree().find_by_name(path).unwrap().state()
    }

    /// The first device has more errors than a device may have.
    fn fail_often(&self) {
        self.disks[0].write_errors.store(40, Relaxed);
        while self.disks[0].write_errors.load(Relaxed) > 0 {
            self.entry().pool.prove_devices().unwrap();
        }
    }

    /// From now on the devices refuse writes.
    fn refuse(&self) {
        self.disks
            .iter()
            .for_each(|d| d.fail_writes.store(true, Relaxed));
    }

    /// The devices take writes again.
    fn mend(&self) {
        self.disks.iter().for_each(|d| d.well());
        self.entry().pool.retry().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.disks.iter().for_each(|d| d.well());
        for e in self.admin.pools() {
            e.pool.give_up_waiting();
            self.admin.dismiss(&e);
        }
    }
}

/// Waits for something that comes about by itself.
fn wait_for(what: &str, is: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is() {
        assert!(begun.elapsed() < HANGS, "{what}: not so far");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a thread returns that must not hang.
fn ends<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    let done = ended.recv_timeout(HANGS);
    done.unwrap_or_else(|_| panic!("{what} hangs"))
}

#[test]
fn the_fault_agent_does_not_wait_along_with_a_suspended_pool() {
    let w = World::new();
    let (admin, entry) = (w.admin.clone(), w.entry());
    let mut agent = Agent::default();
    agent.look(&admin, &entry);
    w.fail_often();
    w.refuse();
    let (a, e) = (admin.clone(), entry.clone());
    let mut agent = ends("the agent", move || {
        agent.look(&a, &e);
        agent
    });
    wait_for("suspended", || entry.pool.suspended().is_some());
    let (a, e) = (admin.clone(), entry.clone());
    let mut agent = ends("another look of the agent", move || {
        agent.look(&a, &e);
        agent
    });
    w.mend();
    wait_for("the change over", || entry.changes.try_lock().is_ok());
    agent.look(&admin, &entry);
    // The device has taken everything since, which settles its errors.
    assert_eq!(w.state("/dev/a"), State::Healthy);
    // The agent goes on with its work.
    w.fail_often();
    agent.look(&admin, &entry);
    wait_for("the change made", || w.state("/dev/a") == State::Faulted);
    assert_eq!(w.state("/dev/b"), State::Healthy);
}

/// A leaf has more errors than it may have, from writes of the txg that is open. Nobody takes the leaf out of use before that txg
/// has shown whether the devices take it: if they do not, the pool waits for them, and when it goes on that settles the errors.
#[test]
fn the_fault_agent_waits_for_the_txg_that_the_errors_are_of() {
    let w = World::new();
    let (admin, entry) = (w.admin.clone(), w.entry());
    let mut agent = Agent::default();
    agent.look(&admin, &entry);
    entry.pool.sync().unwrap();
    let leaf = entry.pool.tree().find_by_name("/dev/a").unwrap();
    leaf.stats.write_errors.fetch_add(40, Relaxed);
    w.refuse();
    agent.look(&admin, &entry);
    wait_for("suspended", || entry.pool.suspended().is_some());
    w.mend();
    wait_for("the change over", || entry.changes.try_lock().is_ok());
    agent.look(&admin, &entry);
    assert_eq!(w.state("/dev/a"), State::Healthy);
    assert_eq!(w.state("/dev/b"), State::Healthy);
}

/// The devices refuse writes, and a head with a file `a` that waits for its txg cannot be settled. What an fsync of the file answers
/// then.
fn promised_of_what_waits(mistake: Option<Mutation>) -> (World, Result<()>) {
    let w = World::new();
    let entry = w.entry();
    let pool = entry.pool.clone();
    let continues = dsl::PropValue::Int(1);
    pool.task(move |pool, tx| pool.store_prop(tx, "failmode", Some(&continues)))
        .unwrap();
    pool.refresh_failmode().unwrap();
    let head = w.head();
    let cred = zpl::Cred::root();
    let new = zpl::New::file(0o100644, 0);
    let zfs = head.zfs();
    let z = zfs.create(&zfs.root().unwrap(), b"a", &new, &cred).unwrap();
    zfs.fsync(Some(&z)).unwrap();
    zfs.write(&z, 0, &[7; 100_000], Default::default()).unwrap();
    drop((z, zfs));
    w.refuse();
    let again = head.clone();
    ends("the suspension of the head", move || {
        mutate(mistake);
        assert!(again.suspend().is_err(), "the devices refuse the txg");
    });
    assert!(pool.suspended().is_some());
    let promised = ends("the fsync", move || {
        let zfs = head.zfs();
        let z = zfs.lookup(&zfs.root()?, b"a", &zpl::Cred::root())?;
        zfs.fsync(Some(&z))
    });
    (w, promised)
}

#[test]
fn a_new_log_that_answers_for_what_waits_is_found() {
    let (_w, promised) = promised_of_what_waits(Some(Mutation::NewLogBelieved));
    promised.unwrap();
}

/// A head that cannot be settled, since the pool waits for its devices, is open again: an fsync there does not answer for what
/// waits.
#[test]
fn a_head_that_cannot_be_settled_promises_nothing_that_waits() {
    let (w, promised) = promised_of_what_waits(None);
    assert!(promised.is_err(), "nothing of it is on a disk");
    w.mend();
    let (head, cred) = (w.head(), zpl::Cred::root());
    let zfs = head.zfs();
    let z = zfs.lookup(&zfs.root().unwrap(), b"a", &cred).unwrap();
    zfs.fsync(Some(&z)).unwrap();
    let image = w.disks[0].fork();
    let (env, disks) = env_sim::mem_env(8);
    disks.put("/dev/a", image);
    disks.put("/dev/b", w.disks[1].fork());
    let found = vdev::discover(&env, &["/dev/a".into(), "/dev/b".into()]);
    let opts = pool::OpenOptions::default();
    let after = pool::Pool::open(env, &found.pools[0].config, opts).unwrap();
    let ds = after.dsl().root_dataset().unwrap();
    let opened = Head::open(&after, &ds, &[]).unwrap();
    let z = opened
        .zfs()
        .lookup(&opened.zfs().root().unwrap(), b"a", &cred);
    let mut bytes = vec![0; 100_000];
    opened.zfs().read(&z.unwrap(), 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|b| *b == 7));
    opened.settle().unwrap();
    after.close().unwrap();
}

#[test]
fn commands_do_not_wait_for_a_change_of_a_suspended_pool() {
    let w = World::new();
    let entry = w.entry();
    let other = entry.changes.lock().unwrap();
    let (send, ended) = mpsc::channel();
    for (n, path) in ["/dev/a", "/dev/b"].into_iter().enumerate() {
        let (admin, send) = (w.admin.clone(), send.clone());
        std::thread::spawn(move || {
            let how = pool::Offline {
                temporary: true,
                fault: false,
            };
            let done = match n {
                0 => devices::offline(&admin, ROOT, "p", path, how, "zpool offline"),
                _ => pools::upgrade::upgrade(&admin, ROOT, "p", None, "zpool upgrade").map(drop),
            };
            let _ = send.send(done);
        });
    }
    let early = ended.recv_timeout(Duration::from_millis(200));
    assert!(
        early.is_err(),
        "{early:?} while another change is under way"
    );
    w.refuse();
    let e = entry.clone();
    std::thread::spawn(move || e.pool.prove_devices());
    for _ in 0..2 {
        let done = ended.recv_timeout(HANGS).expect("a command hangs");
        let refused = done.unwrap_err();
        assert_eq!(refused.code, Kind::Suspended.errno(), "{refused}");
        assert!(refused.message.contains("suspended"), "{refused}");
    }
    drop(other);
    w.mend();
    assert_eq!(w.state("/dev/a"), State::Healthy);
}
