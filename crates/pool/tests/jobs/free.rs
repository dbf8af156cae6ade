//! Freeing what was destroyed: over many txgs, with a crash between any two, paused, and cut short by an export.

use crate::world::{but_autotrim, free_all, freeing, World};
use pool::JobState;
use sim::rig;
use std::time::Duration;
use testkit::{or_skip, OpenZfs, TempDir};

const BLOCKS: u64 = 300;

/// OpenZFS finds nothing wrong with an image.
fn openzfs_agrees(disks: &[std::sync::Arc<env_sim::MemDisk>]) {
    let Some(z) = or_skip(OpenZfs::get()) else {
        return;
    };
    let dir = TempDir::new("jobs").unwrap();
    rig::dump(disks, dir.path()).unwrap();
    if let Err(e) = z.check(dir.path(), "tank") {
        panic!("{e}");
    }
}

#[test]
fn a_destroy_over_many_txgs_survives_a_crash_between_any_two() {
    let w = World::new();
    w.fill("a", BLOCKS);
    w.destroy("a");
    let mut left = freeing(&w.pool);
    assert!(left > 0, "one txg does not free all of it");
    let mut txgs = 0;
    while left > 0 {
        let image = w.image();
        if txgs == 3 {
            openzfs_agrees(&image);
        }
        let found = w.open(&image);
        assert!(freeing(&found) <= left);
        rig::check(&found).unwrap();
        free_all(&found);
        rig::check(&found).unwrap();
        found.export().unwrap();

        let jobs = but_autotrim(&w.pool);
        let [job] = &jobs[..] else {
            panic!("{jobs:?}");
        };
        assert_eq!((job.name, job.state), ("free", JobState::Running));
        assert_eq!(job.progress.total - job.progress.done, left);
        assert!(job.ran_done <= job.progress.done);
        w.pool.sync().unwrap();
        let now = freeing(&w.pool);
        assert!(now < left, "a txg frees something");
        left = now;
        txgs += 1;
    }
    assert!(txgs >= BLOCKS / 30, "{txgs} txgs");
    assert_eq!(but_autotrim(&w.pool), []);
    rig::check(&w.pool).unwrap();
    w.pool.export().unwrap();
    openzfs_agrees(&w.disks);
}

#[test]
fn a_paused_destroy_frees_nothing_and_goes_on_where_it_was() {
    let w = World::new();
    w.fill("a", BLOCKS);
    w.destroy("a");
    w.pool.pause_job("free", true).unwrap();
    let left = freeing(&w.pool);
    assert!(left > 0);
    w.fill("other", 10);
    assert_eq!(freeing(&w.pool), left);
    let jobs = but_autotrim(&w.pool);
    assert_eq!(jobs[0].state, JobState::Paused);
    assert_eq!(jobs[0].progress.total - jobs[0].progress.done, left);
    // A pause cannot be stored for this job: it ends with the import.
    let found = w.open(&w.image());
    free_all(&found);
    found.export().unwrap();

    w.pool.pause_job("free", false).unwrap();
    assert!(freeing(&w.pool) < left, "it went on in that txg");
    free_all(&w.pool);
    assert_eq!(but_autotrim(&w.pool), []);
    assert!(w.pool.pause_job("nonsense", true).is_err());
    rig::check(&w.pool).unwrap();
    w.pool.export().unwrap();
}

#[test]
fn an_export_does_not_wait_for_a_destroy_and_the_next_import_goes_on() {
    let w = World::new();
    w.fill("a", BLOCKS);
    w.destroy("a");
    let left = freeing(&w.pool);
    w.pool.export().unwrap();
    let image = w.image();
    openzfs_agrees(&image);
    let readonly = pool::OpenOptions {
        readonly: true,
        tunables: rig::tunables(),
        ..Default::default()
    };
    let (env, _) = rig::machine(&image, 3);
    let look = pool::Pool::open(env, &w.config, readonly).unwrap();
    assert_eq!(freeing(&look), left, "nothing was freed on the way out");
    look.close().unwrap();
    let again = w.open(&image);
    free_all(&again);
    rig::check(&again).unwrap();
    again.export().unwrap();
    openzfs_agrees(&image);
}

#[test]
fn an_idle_pool_writes_nothing_and_wants_no_txg() {
    let w = World::new();
    w.fill("a", 40);
    w.destroy("a");
    free_all(&w.pool);
    // The last txgs give freed space back; behind them the pool is idle.
    while w.pool.wait_for_work(Duration::ZERO) {
        w.pool.sync().unwrap();
    }
    let (journal, _) = rig::start_journal(&w.disks);
    for _ in 0..5 {
        w.pool.sync().unwrap();
        assert!(!w.pool.wait_for_work(Duration::ZERO));
    }
    assert!(journal.is_empty(), "an idle pool touched its disks");
    // Nor does a paused job want anything.
    w.pool.pause_job("free", true).unwrap();
    w.fill("b", 200);
    w.destroy("b");
    assert!(freeing(&w.pool) > 0);
    while w.pool.wait_for_work(Duration::ZERO) {
        w.pool.sync().unwrap();
    }
    journal.take();
    w.pool.sync().unwrap();
    assert!(journal.is_empty());
}
