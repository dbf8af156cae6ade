//! Scrubs.

use crate::world::{finish, World};
use base::Txg;
use pool::ScanRefusal;
use sim::rig;
use vdev::GroupKind;

fn command() -> (String, u64) {
    ("zpool scrub tank".into(), 0)
}

/// Spoils as many disks as the layout can spare, scrubs, and reads everything from them and as few others as possible.
fn repairs(kind: GroupKind, disks: usize, spare: usize) {
    let mut w = World::new(kind, disks);
    w.fill("a", 60);
    w.snapshot("a", "s");
    w.write("a", 20);
    w.fill("b", 40);
    w.spoil(0, &|_| true);
    for n in 1..spare {
        w.spoil(n, &|_| true);
    }
    w.reopen();
    w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
    assert_eq!(
        w.pool.start_scrub(Txg::NONE, command()).unwrap(),
        Err(ScanRefusal::Scrubbing)
    );
    let s = w.finish();
    assert_eq!((s.function, s.state, s.errors), (1, 2, 0));
    assert!(
        s.processed > 100 * 512 && s.examined > 0 && s.end >= s.start,
        "{s:?}"
    );
    assert_eq!(w.pool.error_count(), Some(0));
    assert!(w.pool.last_scrubbed().unwrap().is_some());
    // Those that were spoilt are needed now.
    w.whole_on(&|i| i < disks - spare);
    // A second scrub finds nothing.
    w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
    assert_eq!(w.finish().processed, 0);
    w.pool.export().unwrap();
}

#[test]
fn a_scrub_repairs_every_spoilt_copy_on_a_mirror() {
    repairs(GroupKind::Mirror, 2, 1);
    repairs(GroupKind::Mirror, 3, 2);
}

#[test]
fn a_scrub_repairs_every_spoilt_column_on_raidz() {
    repairs(GroupKind::Raidz { nparity: 1 }, 3, 1);
    repairs(GroupKind::Raidz { nparity: 2 }, 5, 2);
}

#[test]
fn what_cannot_be_repaired_is_counted_and_forgotten_when_it_is_gone() {
    let mut w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 60);
    let bp = w.blocks("a")[5];
    for d in &w.disks {
        d.corrupt((4 << 20) + bp.dva(0).offset(), 512);
    }
    w.reopen();
    w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
    let s = w.finish();
    assert_eq!((s.state, s.errors), (2, 1));
    assert_eq!(w.pool.error_count(), Some(1));
    w.reopen();
    assert_eq!(w.pool.error_count(), Some(1));
    w.destroy("a");
    for _ in 0..20 {
        w.pool.sync().unwrap();
    }
    w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
    assert_eq!(w.finish().errors, 0);
    assert_eq!(w.pool.error_count(), Some(0));
    w.reopen();
    assert_eq!(w.pool.error_count(), Some(0));
}

#[test]
fn a_scrub_that_is_cut_off_goes_on_and_a_paused_one_stays_paused() {
    let mut w = World::new(GroupKind::Mirror, 2);
    for n in 0..6 {
        w.fill(&format!("f{n}"), 40);
        w.snapshot(&format!("f{n}"), "s");
        w.write(&format!("f{n}"), 40);
    }
    w.spoil(1, &|_| true);
    w.reopen();
    w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
    let mut cuts = 0;
    while w.pool.scan_progress().unwrap().unwrap().state.state == 1 && cuts < 500 {
        w.pool.sync().unwrap();
        if cuts % 14 == 6 {
            w.pool.pause_scrub(command()).unwrap().unwrap();
            assert_eq!(
                w.pool.pause_scrub(command()).unwrap(),
                Err(ScanRefusal::Paused)
            );
            w.reopen();
            w.pool.sync().unwrap();
            assert!(w.pool.scan_progress().unwrap().unwrap().state.paused);
            w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
        }
        if cuts % 5 == 4 {
            w.reopen();
        }
        cuts += 1;
    }
    assert!((20..500).contains(&cuts), "{cuts}");
    assert_eq!(w.finish().state, 2);
    w.whole_on(&|i| i == 1);
}

#[test]
fn a_scrub_goes_on_over_changes_of_datasets() {
    let mut w = World::new(GroupKind::Mirror, 2);
    for n in 0..4 {
        w.fill(&format!("f{n}"), 30);
        w.snapshot(&format!("f{n}"), "s");
        w.write(&format!("f{n}"), 30);
        w.snapshot(&format!("f{n}"), "t");
    }
    w.spoil(1, &|_| true);
    w.reopen();
    w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
    let mut n = 0;
    while w.pool.scan_progress().unwrap().unwrap().state.state == 1 {
        match n {
            1 => w.destroy_snapshot("f0@s"),
            2 => w.snapshot("f3", "u"),
            3 => w.destroy_snapshot("f1@t"),
            4 => w.fill("new", 30),
            5 => w.destroy_snapshot("f2@s"),
            6 => w.destroy("new"),
            _ => drop(w.pool.sync().unwrap()),
        }
        assert!(n < 500);
        if n % 5 == 4 {
            w.reopen();
        }
        n += 1;
    }
    assert_eq!(finish(&w.pool).errors, 0);
    w.whole_on(&|i| i == 1);
}

#[test]
fn a_scrub_can_be_stopped() {
    let w = World::new(GroupKind::Mirror, 2);
    assert_eq!(
        w.pool.stop_scrub(command()).unwrap(),
        Err(ScanRefusal::NoScrub)
    );
    w.fill("a", 200);
    w.pool.start_scrub(Txg::NONE, command()).unwrap().unwrap();
    w.pool.stop_scrub(command()).unwrap().unwrap();
    let s = w.finish();
    assert_eq!((s.function, s.state), (1, 3));
    assert_eq!(
        w.pool.stop_scrub(command()).unwrap(),
        Err(ScanRefusal::NoScrub)
    );
    rig::check(&w.pool).unwrap();
}
