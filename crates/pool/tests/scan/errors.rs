//! Error scrubs.

use crate::world::World;
use disk::scan::{ErrorScrubState, Function, ScanState};
use pool::{ScanRefusal, ScrubRange};
use vdev::GroupKind;

fn command() -> (String, u64) {
    ("zpool scrub -e tank".into(), 0)
}

/// Places on both disks of a mirror at which a block of a file lies.
fn places(w: &World, name: &str, blocks: &[usize]) -> Vec<u64> {
    let all = w.blocks(name);
    let place = |n: &usize| (4 << 20) + all[*n].dva(0).offset();
    blocks.iter().map(place).collect()
}

/// Writes txgs until the error scrub has ended.
fn finish(w: &World) -> pool::ErrorScrubRecord {
    for _ in 0..200 {
        w.pool.sync().unwrap();
        match w.pool.error_scrub().unwrap() {
            Some(s) if s.state != ErrorScrubState::Scanning => return s,
            _ => {}
        }
    }
    panic!("it does not end: {:?}", w.pool.error_scrub());
}

/// A pool with three damaged blocks on record, of which the first is whole again and the last gone.
fn damaged() -> World {
    let mut w = World::with_bench(GroupKind::Mirror, 2, 1);
    w.fill("a", 60);
    w.fill("b", 20);
    let (at, lost) = (places(&w, "a", &[5, 9]), places(&w, "b", &[3])[0]);
    let whole = w.disks[0].fork();
    for d in &w.disks {
        at.iter().chain([&lost]).for_each(|p| d.corrupt(*p, 512));
    }
    w.reopen();
    w.pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap()
        .unwrap();
    assert_eq!(w.finish().errors, 3);
    assert_eq!(w.pool.error_count(), Some(3));
    w.destroy("b");
    for _ in 0..20 {
        w.pool.sync().unwrap();
    }
    // What the first block was comes back on one side.
    let mut right = vec![0; 512];
    whole.peek(at[0], &mut right);
    use env::Disk;
    w.disks[1].write(at[0], &right).unwrap();
    w
}

#[test]
fn an_error_scrub_takes_off_the_list_what_is_whole_or_gone_and_leaves_the_rest() {
    let mut w = damaged();
    w.pool.start_error_scrub(command()).unwrap().unwrap();
    let again = w.pool.start_error_scrub(command()).unwrap();
    assert_eq!(again, Err(ScanRefusal::ErrorScrubbing));
    let s = finish(&w);
    assert_eq!(
        (s.state, s.examined, s.to_examine, s.errors),
        (ErrorScrubState::Finished, 3, 0, 1)
    );
    assert_eq!(w.pool.error_count(), Some(1));
    // The copy that was wrong was written anew from the one that is right.
    let healed: u64 = w.pool.tree().leaves()[0]
        .stats
        .repaired_bytes
        .load(std::sync::atomic::Ordering::Relaxed);
    assert!(healed > 0);
    w.reopen();
    assert_eq!(w.pool.error_count(), Some(1));
    assert_eq!(w.pool.error_scrub().unwrap(), Some(s));
    w.destroy("a");
    for _ in 0..20 {
        w.pool.sync().unwrap();
    }
    w.pool.start_error_scrub(command()).unwrap().unwrap();
    assert_eq!(finish(&w).errors, 0);
    assert_eq!(w.pool.error_count(), Some(0));
    let none = w.pool.start_error_scrub(command()).unwrap();
    assert_eq!(none, Err(ScanRefusal::NoErrors));
}

#[test]
fn an_error_scrub_goes_on_after_a_crash_stays_paused_and_is_stopped() {
    let mut w = damaged();
    w.pool.start_error_scrub(command()).unwrap().unwrap();
    w.pool.pause_scrub(command()).unwrap().unwrap();
    let again = w.pool.pause_scrub(command()).unwrap();
    assert_eq!(again, Err(ScanRefusal::ErrorScrubPaused));
    let scrub = w
        .pool
        .start_scrub(ScrubRange::default(), command())
        .unwrap();
    assert_eq!(scrub, Err(ScanRefusal::ErrorScrubPaused));
    w.reopen();
    for _ in 0..5 {
        w.pool.sync().unwrap();
    }
    let s = w.pool.error_scrub().unwrap().unwrap();
    assert_eq!((s.state, s.paused), (ErrorScrubState::Scanning, true));
    w.pool.start_error_scrub(command()).unwrap().unwrap();
    w.reopen();
    let s = finish(&w);
    assert_eq!(
        (s.state, s.examined, s.errors),
        (ErrorScrubState::Finished, 3, 1)
    );
    w.pool.start_error_scrub(command()).unwrap().unwrap();
    w.pool.pause_scrub(command()).unwrap().unwrap();
    w.pool.stop_scrub(command()).unwrap().unwrap();
    assert_eq!(
        w.pool.error_scrub().unwrap().unwrap().state,
        ErrorScrubState::Canceled
    );
    let none = w.pool.stop_scrub(command()).unwrap();
    assert_eq!(none, Err(ScanRefusal::NoScrub));
    assert_eq!(w.pool.error_count(), Some(1));
}

#[test]
fn a_rebuild_ends_an_error_scrub_and_is_followed_by_a_scrub_of_everything() {
    use crate::rebuild::{dev, leaf, rebuilt};
    let w = damaged();
    w.pool.start_error_scrub(command()).unwrap().unwrap();
    w.pool.pause_scrub(command()).unwrap().unwrap();
    let first = leaf(&w.pool, 0);
    w.pool
        .attach_sequentially(first, &dev(2), vdev::Attach::Mirror, None)
        .unwrap();
    assert_eq!(
        w.pool.error_scrub().unwrap().unwrap().state,
        ErrorScrubState::Canceled
    );
    rebuilt(&w.pool).unwrap();
    let s = w.finish();
    assert_eq!(
        (s.function, s.state, s.errors),
        (Function::Scrub, ScanState::Finished, 1)
    );
    assert_eq!(w.pool.error_count(), Some(1));
}
