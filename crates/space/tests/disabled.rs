//! Metaslabs out of allocation, and what was freed for autotrim.

use base::{Kind, Txg};
use space::{AllocReq, Class, Extent, Space, TopSpec};
use std::sync::mpsc;
use std::time::Duration;

const UNIT: u64 = 4096;

/// Two metaslabs of 1 MiB.
fn space() -> Space {
    let s = Space::new();
    s.add_top(TopSpec {
        id: 0,
        asize: 2 << 20,
        ashift: 12,
        ms_shift: 20,
        class: Class::Normal,
        deflate_ratio: 512,
        children: 1,
        align: 0,
    })
    .unwrap();
    s
}

fn take(space: &Space, txg: u64, size: u64) -> base::Result<Extent> {
    let r = space.alloc(&AllocReq {
        class: Class::Normal,
        copies: 1,
        txg: Txg::new(txg),
        size_on: &|_| size,
        hint: 0,
    });
    r.map(|v| v[0])
}

fn sync(space: &Space, txg: u64) {
    space.take_changes(Txg::new(txg));
    space.sync_done(Txg::new(txg)).unwrap();
}

#[test]
fn nothing_is_allocated_in_a_metaslab_that_is_disabled() {
    let s = space();
    let first = take(&s, 1, UNIT).unwrap();
    let home = first.offset >> 20;
    let guard = s.disable(0, home).unwrap();
    let again = s.disable(0, home).unwrap();
    for _ in 0..10 {
        assert_ne!(take(&s, 1, UNIT).unwrap().offset >> 20, home);
    }
    drop(guard);
    assert_ne!(take(&s, 1, UNIT).unwrap().offset >> 20, home);
    drop(again);
    let all: Vec<_> = (0..400).map(|_| take(&s, 1, UNIT).unwrap()).collect();
    assert!(all.iter().any(|e| e.offset >> 20 == home));
}

/// What is out of allocation is not missing: who finds no other place gets it in a moment.
#[test]
fn a_request_without_another_place_waits() {
    let s = space();
    let other = take(&s, 1, 1 << 20).unwrap();
    let home = 1 - (other.offset >> 20);
    let guard = s.disable(0, home).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(|| tell.send(take(&s, 1, UNIT)).unwrap());
        let early = told.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err(), "{early:?}");
        drop(guard);
        let got = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(got.unwrap().offset >> 20, home);
    });
    let full = take(&s, 1, 2 << 20).unwrap_err();
    assert_eq!(full.kind, Kind::NoSpace);
}

#[test]
fn free_ranges_come_in_pieces_and_leave_out_what_is_deferred() {
    let s = space();
    let got: Vec<_> = (0..256).map(|_| take(&s, 1, UNIT).unwrap()).collect();
    let home = got[0].offset >> 20;
    sync(&s, 1);
    // Every second one.
    for e in got
        .iter()
        .filter(|e| e.offset >> 20 == home && e.offset & UNIT == 0)
    {
        s.free(0, e.offset, UNIT, Txg::new(2)).unwrap();
    }
    let free = |from, bytes, count| {
        s.disable(0, home)
            .unwrap()
            .free(from, bytes, count)
            .unwrap()
    };
    let start = home << 20;
    let before = free(start, u64::MAX, 9999).ranges;
    sync(&s, 2);
    sync(&s, 3);
    assert_eq!(free(start, u64::MAX, 9999).ranges, before, "deferred");
    sync(&s, 4);
    let all = free(start, u64::MAX, 9999);
    assert!(all.ranges.len() > before.len() && all.next == start + (1 << 20));
    let mut pieces = Vec::new();
    let mut at = start;
    while at < start + (1 << 20) {
        let piece = free(at, 5 * UNIT / 2 * 2, 3);
        assert!(piece.ranges.len() <= 3 && piece.next > at);
        pieces.extend(piece.ranges);
        at = piece.next;
    }
    let total = |list: &[(u64, u64)]| list.iter().map(|(s, e)| e - s).sum::<u64>();
    assert_eq!(total(&pieces), total(&all.ranges));
}

#[test]
fn what_is_freed_comes_a_round_later_unless_it_is_allocated_again() {
    let s = space();
    s.collect(true);
    let got: Vec<_> = (0..64).map(|_| take(&s, 1, UNIT).unwrap()).collect();
    let home = got[0].offset >> 20;
    let mine: Vec<_> = got.iter().filter(|e| e.offset >> 20 == home).collect();
    sync(&s, 1);
    for e in &mine[8..12] {
        s.free(0, e.offset, UNIT, Txg::new(2)).unwrap();
    }
    (2..4).for_each(|t| sync(&s, t));
    assert!(!s.has_collected(), "still deferred");
    sync(&s, 4);
    assert!(s.has_collected());
    assert_eq!(s.begin_round(), [], "what is new waits for the next round");
    assert_eq!(s.begin_round(), [(0, home)]);
    let aged = s.disable(0, home).unwrap().aged(UNIT).unwrap();
    let want: u64 = 4 * UNIT;
    assert_eq!(aged.total(), want);
    assert!(aged.contains(mine[8].offset, mine[8].offset + UNIT));
    assert!(!s.has_collected());
    // Widened up to multiples, as far as it is free.
    s.free(0, mine[12].offset, UNIT, Txg::new(5)).unwrap();
    (5..8).for_each(|t| sync(&s, t));
    s.begin_round();
    s.begin_round();
    let aged = s.disable(0, home).unwrap().aged(64 << 10).unwrap();
    assert!(aged.total() > UNIT && aged.contains(mine[9].offset, mine[9].offset + UNIT));
    assert!(!aged.overlaps(mine[0].offset, mine[8].offset));
    // Allocated again before its round.
    s.free(0, mine[20].offset, UNIT, Txg::new(8)).unwrap();
    (8..11).for_each(|t| sync(&s, t));
    s.set_eager(true);
    let again = take(&s, 11, UNIT).unwrap();
    s.begin_round();
    s.begin_round();
    let aged = s.disable(0, home).unwrap().aged(UNIT).unwrap();
    assert!(
        !aged.overlaps(again.offset, again.offset + UNIT),
        "{aged:?}"
    );
    s.collect(false);
    s.free(0, mine[30].offset, UNIT, Txg::new(11)).unwrap();
    (11..14).for_each(|t| sync(&s, t));
    assert!(!s.has_collected());
}
