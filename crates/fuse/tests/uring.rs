//! The tests of operations and of lives once more, with requests over io_uring, and tests of what is so there only.
#![allow(clippy::duplicate_mod)]

#[path = "lifecycle.rs"]
mod lifecycle;
#[path = "operations.rs"]
mod operations;

mod common;

use common::{can_mount, TestMount};
use std::fs;

/// Over io_uring FORGETs are left to gather, but not while somebody needs to know what is gone.
#[test]
fn what_the_kernel_has_let_go_of_is_forgotten_when_that_is_waited_for() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("forgotten");
    fs::read_dir(&t.dir).unwrap().count();
    let (nodes, _) = t.fs.usage();
    for round in 0..100 {
        for name in ["a", "b", "c"] {
            std::os::unix::fs::symlink("to", t.path(name)).unwrap();
        }
        assert_eq!(t.fs.usage().0, nodes + 3);
        for name in ["a", "b", "c"] {
            fs::remove_file(t.path(name)).unwrap();
        }
        assert!(t.notifier.collect_forgets());
        assert_eq!(t.fs.usage().0, nodes, "round {round}");
    }
    t.finish();
}

#[test]
fn a_queue_has_one_thread_until_requests_wait() {
    if !can_mount() {
        return;
    }
    let t = TestMount::new("idle");
    let queues = std::thread::available_parallelism().unwrap().get();
    fs::metadata(&t.dir).unwrap();
    // One for each queue and one for the device, and whoever took the first request of a queue.
    let now = t.handle.threads();
    assert!((queues + 1..=2 * queues + 1).contains(&now), "{now}");
    t.finish();
}
