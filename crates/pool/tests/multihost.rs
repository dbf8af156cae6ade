//! Two hosts and one pool with the property `multihost`.

use base::mutation::{mutate, Mutation};
use base::{Kind, Txg};
use disk::feature;
use dsl::PropValue;
use env::Env;
use env_sim::{mem_env, ManualClock};
use pool::{Activity, ActivityCheck, CreateSpec, Multihost, OpenOptions, Pool, Tunables};
use std::sync::Arc;
use vdev::{DevSpec, GroupKind, PoolFound, TopSpec};
use zpl::{create_fs, FsOptions};

const MS: u64 = 1_000_000;
const RULES: Multihost = Multihost {
    interval_ms: 100,
    fail_intervals: 2,
    import_intervals: 5,
};

struct Host(u64);

impl env::Host for Host {
    fn hostid(&self) -> u64 {
        self.0
    }
    fn hostname(&self) -> String {
        format!("host{}", self.0)
    }
}

struct World {
    env: Env,
    clock: Arc<ManualClock>,
    disks: Arc<env_sim::MemDisks>,
}

impl World {
    fn new() -> World {
        let (mut env, disks) = mem_env(7);
        let clock = Arc::new(ManualClock::default());
        clock.pass(1_700_000_000_000 * MS);
        env.clock = clock.clone();
        disks.add("/d0", 64 << 20);
        disks.add("/d1", 64 << 20);
        World { env, clock, disks }
    }

    fn host(&self, id: u64) -> Env {
        Env {
            host: Arc::new(Host(id)),
            ..self.env.clone()
        }
    }

    fn found(&self, id: u64) -> PoolFound {
        let paths = ["/d0".to_string(), "/d1".into()];
        vdev::discover(&self.host(id), &paths).pools.remove(0)
    }

    fn begin(&self, id: u64, write: bool) -> base::Result<Option<ActivityCheck>> {
        let f = self.found(id);
        let labels = (f.state, f.hostid);
        ActivityCheck::begin(&self.host(id), &f.config, labels, RULES, write)
    }

    /// A whole check; `each` is called while time goes by.
    fn check(&self, id: u64, mut each: impl FnMut()) -> base::Result<Activity> {
        let Some(mut check) = self.begin(id, true)? else {
            return Ok(Activity::Unknown);
        };
        while let Some(next) = check.look()? {
            each();
            self.clock.pass(next.as_nanos() as u64);
        }
        Ok(Activity::Seen(check.seen()))
    }

    fn open(&self, id: u64, activity: Activity) -> base::Result<Arc<Pool>> {
        let options = OpenOptions {
            activity,
            multihost: RULES,
            ..OpenOptions::default()
        };
        Pool::open(self.host(id), &self.found(id).config, options)
    }

    /// A mirror of host 1 with `multihost=on`.
    fn protected(&self) -> Arc<Pool> {
        let sides = vec![DevSpec::file("/d0"), DevSpec::file("/d1")];
        let spec = CreateSpec {
            name: "tank".into(),
            tops: vec![TopSpec::new(GroupKind::Mirror, sides)],
            version: 5000,
            features: feature::FEATURES
                .iter()
                .filter(|f| f.supported && f.default_on)
                .collect(),
            extra: vec![],
            command: "zpool create tank".into(),
            tunables: Tunables::default(),
        };
        let now = zpl::Time {
            sec: 1_700_000_000,
            nsec: 5,
        };
        let pool = Pool::create(self.host(1), spec, &|_, os, tx| {
            create_fs(os, tx, &FsOptions::new(5000, now))
        })
        .unwrap();
        pool.set_multihost_rules(RULES);
        pool.task(|pool, tx| pool.store_prop(tx, "multihost", Some(&PropValue::Int(1))))
            .unwrap();
        assert!(pool.is_multihost());
        pool
    }
}

#[test]
fn a_pool_with_heartbeats_is_refused_until_they_have_ceased() {
    let w = World::new();
    let first = w.protected();
    // While heartbeats go on, and the pool itself does nothing.
    let refused = w.check(2, || {
        first.heartbeat();
    });
    assert_eq!(refused.unwrap_err().kind, Kind::Busy);
    // Without a check the engine does not let anybody write, but look.
    let e = w.open(2, Activity::Unknown).err().unwrap();
    assert_eq!(e.kind, Kind::Busy);
    let look = OpenOptions {
        readonly: true,
        ..OpenOptions::default()
    };
    let pool = Pool::open(w.host(2), &w.found(2).config, look).unwrap();
    pool.close().unwrap();
    // The first host dies: nothing is exported.
    first.close().unwrap();
    drop(first);
    let begin = env::Clock::monotonic_ns(&*w.clock);
    let seen = w.check(2, || {}).unwrap();
    let took = env::Clock::monotonic_ns(&*w.clock) - begin;
    // Twice the time after which the writer gives up, then ten claims.
    assert!((1400 * MS..=1500 * MS).contains(&took), "{took}");
    let second = w.open(2, seen).unwrap();
    // It is the second host's now, and the first must see that.
    let refused = w.check(1, || {
        second.heartbeat();
    });
    assert_eq!(refused.unwrap_err().kind, Kind::Busy);
    second.export().unwrap();
    // Exported by this host: it need not wait for itself.
    assert!(w.begin(2, true).unwrap().is_none());
    assert!(w.begin(1, true).unwrap().is_some());
}

#[test]
fn what_changed_since_the_check_is_not_opened() {
    let w = World::new();
    let first = w.protected();
    first.close().unwrap();
    let seen = w.check(2, || {}).unwrap();
    // A third host was faster.
    let third = w.check(3, || {}).unwrap();
    let third = w.open(3, third).unwrap();
    third.close().unwrap();
    assert_eq!(w.open(2, seen).err().unwrap().kind, Kind::Busy);
}

#[test]
fn of_two_checks_at_the_same_time_at_most_one_ends_well() {
    let w = World::new();
    w.protected().close().unwrap();
    let mut checks = [2, 3].map(|id| Some(w.begin(id, true).unwrap().unwrap()));
    let mut won = 0;
    while checks.iter().any(Option::is_some) {
        for slot in &mut checks {
            match slot.as_mut().map(ActivityCheck::look) {
                Some(Ok(Some(_))) | None => {}
                Some(Ok(None)) => {
                    won += 1;
                    *slot = None;
                }
                Some(Err(e)) => {
                    assert_eq!(e.kind, Kind::Busy);
                    *slot = None;
                }
            }
        }
        w.clock.pass(50 * MS);
    }
    assert!(won <= 1, "{won}");
}

#[test]
fn a_host_without_an_id_does_not_get_it() {
    let w = World::new();
    w.protected().close().unwrap();
    assert_eq!(w.begin(0, true).err().unwrap().kind, Kind::NotPermitted);
}

#[test]
fn a_pool_that_cannot_write_heartbeats_suspends_itself() {
    let w = World::new();
    let pool = w.protected();
    pool.heartbeat();
    pool.watch_heartbeat();
    assert!(pool.suspended().is_none());
    // Heartbeats stop, as when no device answers.
    w.clock.pass(250 * MS);
    pool.watch_heartbeat();
    assert!(pool.is_lost_to_multihost() && pool.suspended().is_some());
    let before = vdev::label::best_uberblock(&*w.disks.get("/d0").unwrap(), 9, Txg::MAX);
    assert!(pool.sync().is_err());
    pool.heartbeat();
    let after = vdev::label::best_uberblock(&*w.disks.get("/d0").unwrap(), 9, Txg::MAX);
    assert_eq!(before.map(|u| u.rank()), after.map(|u| u.rank()));
}

#[test]
fn switched_off_it_leaves_nothing_to_wait_for() {
    let w = World::new();
    let pool = w.protected();
    pool.heartbeat();
    pool.task(|pool, tx| pool.store_prop(tx, "multihost", Some(&PropValue::Int(0))))
        .unwrap();
    pool.close().unwrap();
    assert!(w.begin(2, true).unwrap().is_none());
}

/// A check that does not see what another host writes lets two hosts have the pool.
#[test]
fn a_check_that_overlooks_the_other_host_is_found() {
    let w = World::new();
    let first = w.protected();
    let check = |mistake| {
        mutate(mistake);
        let r = w.check(2, || {
            first.heartbeat();
        });
        mutate(None);
        r.map(|_| ())
    };
    assert_eq!(check(None).unwrap_err().kind, Kind::Busy);
    assert!(check(Some(Mutation::ActivityPassed)).is_ok());
}
