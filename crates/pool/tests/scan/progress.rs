//! What is told of a scan under way, against what it does.

use crate::dates::Dated;
use crate::world::finish;
use disk::scan::{Function, ScanState};
use pool::{Pool, ScanProgress, ScrubRange};
use std::sync::atomic::Ordering::Relaxed;

const SECOND: u64 = 1_000_000_000;

fn command() -> (String, u64) {
    ("zpool scrub tank".into(), 0)
}

fn progress(pool: &Pool) -> ScanProgress {
    pool.scan_progress().unwrap().unwrap()
}

#[test]
fn rates_and_times_of_a_scrub_are_true() {
    let mut d = Dated::new(5000);
    for n in 0..8 {
        d.w.fill(&format!("f{n}"), 40);
    }
    d.reopen();
    let all = ScrubRange::default();
    let begun = d.now();
    d.w.pool.start_scrub(all, command()).unwrap().unwrap();
    // Every request takes a second.
    for disk in &d.w.disks {
        disk.stall(&d.clock, SECOND);
    }
    let reads = || -> u64 { d.w.disks.iter().map(|x| x.reads.load(Relaxed)).sum() };
    let before = reads();
    while progress(&d.w.pool).pass_issued == 0 {
        d.w.pool.sync().unwrap();
    }
    let p = progress(&d.w.pool);
    assert!(reads() > before && p.pass_start == begun);
    assert!(p.issued == p.pass_issued && p.pass_issued <= p.pass_examined);
    assert!(p.pass_examined <= p.state.to_examine);

    // A pause counts as none of the time, also over an import.
    d.w.pool.pause_scrub(command()).unwrap().unwrap();
    let paused = progress(&d.w.pool).paused_at.unwrap();
    assert!((begun..=d.now()).contains(&paused));
    d.pass(60);
    d.w.pool.start_scrub(all, command()).unwrap().unwrap();
    let p = progress(&d.w.pool);
    let spent = d.now() - paused;
    assert!(p.spent_paused >= 3600 && p.spent_paused <= spent, "{p:?}");
    d.w.pool.sync().unwrap();
    let stored = progress(&d.w.pool);
    let imported = d.now();
    d.reopen();
    let p = progress(&d.w.pool);
    assert!(p.pass_start >= imported && p.spent_paused == 0);
    // The import has written txgs, and the scrub has gone on with them. What was issued and not stored is issued again.
    let before = p.issued - p.pass_issued;
    assert!(before > 0 && before <= stored.issued, "{p:?} {stored:?}");

    let s = finish(&d.w.pool);
    assert_eq!((s.state, s.skipped), (ScanState::Finished, 0));
    // What of the MOS is written anew meanwhile is not visited; it is much of so small a pool.
    let close = s.examined <= s.to_examine && s.examined >= s.to_examine / 5 * 4;
    assert!(close, "{s:?}");
}

#[test]
fn a_resilver_tells_what_it_passes_over() {
    let d = Dated::new(5000);
    d.w.fill("a", 400);
    let leaf = d.w.pool.tree().leaves()[1].guid();
    let how = pool::Offline {
        temporary: true,
        fault: false,
    };
    d.w.pool.offline(leaf, how).unwrap();
    d.w.fill("b", 40);
    d.w.pool.online(leaf).unwrap();
    let s = finish(&d.w.pool);
    assert_eq!(
        (s.function, s.state, s.errors),
        (Function::Resilver, ScanState::Finished, 0)
    );
    assert!(s.processed > 0 && s.skipped < s.examined, "{s:?}");
}
