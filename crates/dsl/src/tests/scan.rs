//! Datasets that change while a scan of another system is under way (operations on the record
//! `scan`), and the conditions of snapshots.

use super::*;
use crate::props::PropChange;
use crate::PropValue;
use base::Kind;
use dmu::Dnode;
use zap::Value;

const BOOKMARK: usize = 19;
const FLAGS: usize = 23;
const GONE: u64 = u64::MAX;

/// Begins a scan that is at `at` and has `queue` (dataset, first txg) to visit.
fn begin(p: &mut Pool, at: u64, queue: &[(u64, u64)]) {
    p.sync_with(|p, tx| {
        let q = zap::create_object(&p.rig.os, tx, ObjType(38), 0).unwrap();
        for (o, txg) in queue {
            Zap::new(&q).add_int_key(tx, *o, *txg).unwrap();
        }
        let mut words = [0; 24];
        (words[0], words[1], words[2]) = (2, 1, q.object());
        words[BOOKMARK..BOOKMARK + 4].copy_from_slice(&[at, 7, 1, 3]);
        let dir = p.rig.os.hold(1).unwrap();
        let record = Value::u64s(&words);
        Zap::new(&dir).update(tx, "scan", &record).unwrap();
    });
}

fn record(p: &Pool) -> Vec<u64> {
    let dir: Arc<Dnode> = p.rig.os.hold(1).unwrap();
    Zap::new(&dir).get_value("scan").unwrap().unwrap().ints()
}

fn queue(p: &Pool) -> BTreeMap<u64, u64> {
    let q = p.rig.os.hold(record(p)[2]).unwrap();
    Zap::new(&q)
        .iter()
        .map(|e| {
            let e = e.unwrap();
            (
                zap::parse_hex_key(&e.name).unwrap(),
                e.value.to_u64().unwrap(),
            )
        })
        .collect()
}

fn bookmark(p: &Pool) -> [u64; 4] {
    record(p)[BOOKMARK..BOOKMARK + 4].try_into().unwrap()
}

fn snapshot(p: &mut Pool, head: &Arc<Dataset>, name: &str) -> Arc<Dataset> {
    let mut out = None;
    p.sync_with(|p, tx| out = Some(p.dsl.snapshot(tx, head, name).unwrap()));
    out.unwrap()
}

#[test]
fn a_snapshot_takes_over_the_place_of_its_head_in_a_scan() {
    let mut p = Pool::new(5000, MODERN);
    let (a, b) = (p.create("tank", "a"), p.create("tank", "b"));
    begin(&mut p, a.object(), &[(a.object(), 4), (b.object(), 0)]);
    let s = snapshot(&mut p, &a, "s");
    assert_eq!(
        queue(&p),
        BTreeMap::from([(s.object(), 4), (b.object(), 0)])
    );
    assert_eq!(bookmark(&p), [s.object(), 7, 1, 3]);
    assert_eq!(record(&p)[FLAGS], 0);
}

#[test]
fn the_next_snapshot_takes_over_the_place_of_a_destroyed_one_in_a_scan() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    let s = snapshot(&mut p, &a, "s");
    let t = snapshot(&mut p, &a, "t");
    begin(&mut p, s.object(), &[(s.object(), 3)]);
    let (so, to) = (s.object(), t.object());
    p.sync_with(|p, tx| p.dsl.destroy_snapshot(tx, &s).unwrap());
    assert_eq!(queue(&p), BTreeMap::from([(to, 3)]));
    assert_eq!(bookmark(&p), [to, 7, 1, 3]);
    assert_eq!(record(&p)[FLAGS], 1, "it is visited again");
    assert_ne!(so, to);
    // The head, where there is no other, from the earlier txg of both.
    p.sync_with(|p, tx| {
        let q = p.rig.os.hold(record(p)[2]).unwrap();
        Zap::new(&q).add_int_key(tx, a.object(), 9).unwrap();
    });
    p.sync_with(|p, tx| p.dsl.destroy_snapshot(tx, &t).unwrap());
    assert_eq!(queue(&p), BTreeMap::from([(a.object(), 3)]));
    assert_eq!(bookmark(&p), [a.object(), 7, 1, 3]);
}

#[test]
fn a_destroyed_head_leaves_a_scan() {
    let mut p = Pool::new(5000, MODERN);
    let (a, b) = (p.create("tank", "a"), p.create("tank", "b"));
    begin(&mut p, a.object(), &[(a.object(), 4), (b.object(), 5)]);
    p.sync_with(|p, tx| {
        p.open.remove(&a.object());
        p.dsl.destroy_head(tx, &a).unwrap();
    });
    assert_eq!(queue(&p), BTreeMap::from([(b.object(), 5)]));
    assert_eq!(bookmark(&p), [GONE, 0, 0, 0]);
}

#[test]
fn a_head_that_is_rolled_back_leaves_a_scan_and_its_snapshot_stays() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    let s = snapshot(&mut p, &a, "s");
    p.scribble(&a, &mut Rand(1), 10);
    p.sync();
    begin(&mut p, a.object(), &[(a.object(), 4), (s.object(), 2)]);
    p.sync_with(|p, tx| {
        p.open.remove(&a.object());
        p.dsl.rollback(tx, &a).unwrap();
    });
    assert_eq!(queue(&p), BTreeMap::from([(s.object(), 2)]));
    assert_eq!(bookmark(&p), [GONE, 0, 0, 0]);
}

/// What was received was written in part before the scan began: nothing else leads to it.
#[test]
fn a_head_takes_over_the_place_of_what_was_received_for_it_in_a_scan() {
    for at_filled in [true, false] {
        let mut p = Pool::new(5000, MODERN);
        let a = p.create("tank", "a");
        let s = snapshot(&mut p, &a, "s");
        let mut filled = None;
        p.sync_with(|p, tx| {
            let begin = ReceiveBegin {
                target: ReceiveTarget::Existing(&a),
                base: Some(&s),
                key: None,
                raw: None,
                case_insensitive: false,
                resume: None,
                features: &[],
            };
            filled = Some(p.dsl.receive_begin(tx, &begin).unwrap());
        });
        let filled = filled.unwrap();
        p.scribble(&filled, &mut Rand(1), 10);
        p.sync();
        let at = if at_filled { &filled } else { &a };
        let queued = [(filled.object(), 3), (a.object(), 4)];
        begin(&mut p, at.object(), &queued);
        p.sync();
        drop(p.dsl.take_scan_changes());
        let mut end = None;
        p.sync_with(|p, tx| {
            p.open.remove(&a.object());
            p.open.remove(&filled.object());
            let e = ReceiveEnd {
                filled: &filled,
                target: Some(&a),
                name: "t",
                guid: 77,
                creation_time: 1,
                force: false,
                ivset_guid: None,
                key: None,
            };
            end = Some(p.dsl.receive_end(tx, &e).unwrap());
        });
        let t = end.unwrap().object();
        assert_eq!(queue(&p), BTreeMap::from([(t, 3)]));
        let place = match at_filled {
            true => [t, 7, 1, 3],
            false => [GONE, 0, 0, 0],
        };
        assert_eq!(bookmark(&p), place);
        let moved = ScanChange::Received {
            filled: filled.object(),
            head: a.object(),
        };
        assert!(p.dsl.take_scan_changes().contains(&moved));
    }
}

#[test]
fn a_scan_that_ended_is_left_alone() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    begin(&mut p, a.object(), &[]);
    p.sync_with(|p, tx| {
        let mut words = record(p);
        (words[1], words[2]) = (2, 0);
        let dir = p.rig.os.hold(1).unwrap();
        let done = Value::u64s(&words);
        Zap::new(&dir).update(tx, "scan", &done).unwrap();
    });
    let before = record(&p);
    snapshot(&mut p, &a, "s");
    assert_eq!(record(&p), before);
}

#[test]
fn a_head_that_changed_in_the_group_is_not_snapshotted_before_it_is_written() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    p.sync_with(|p, tx| {
        let os = p.os(&a);
        os.set_os_flags(tx, os.os_flags());
        let e = p.dsl.snapshot(tx, &a, "s").err().unwrap();
        assert_eq!(e.kind, Kind::Again);
        assert_eq!(a.snapshot_count().unwrap(), 0);
    });
    snapshot(&mut p, &a, "s");
}

#[test]
fn a_second_snapshot_of_a_head_waits_for_the_next_group() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    p.sync_with(|p, tx| {
        p.dsl.snapshot(tx, &a, "s").unwrap();
        let e = p.dsl.snapshot(tx, &a, "t").err().unwrap();
        assert_eq!(e.kind, Kind::Again);
    });
    snapshot(&mut p, &a, "t");
    super::audit::audit(&p);
}

#[test]
fn a_dataset_into_which_a_receive_did_not_end_is_not_snapshotted() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    p.sync_with(|p, tx| {
        let flag = disk::dsl::ds_flags::INCONSISTENT;
        a.update(tx, |p| p.flags |= flag).unwrap();
        let e = p.dsl.snapshot(tx, &a, "s").err().unwrap();
        assert_eq!(e.kind, Kind::Busy);
        a.update(tx, |p| p.flags &= !flag).unwrap();
        p.dsl.snapshot(tx, &a, "s").unwrap();
    });
}

#[test]
fn before_version_27_a_head_with_an_intent_log_is_not_snapshotted() {
    for version in [26, 28] {
        let mut p = Pool::new(version, &[]);
        let a = p.create("tank", "a");
        let os = p.os(&a);
        let mut header = [0; 192];
        header[0] = 1;
        p.sync_with(|_, tx| os.set_zil_header(tx, header));
        p.sync_with(|p, tx| {
            let r = p.dsl.snapshot(tx, &a, "s").map(|_| ());
            match version {
                26 => assert_eq!(r.unwrap_err().kind, Kind::Again),
                _ => r.unwrap(),
            }
        });
        p.sync_with(|_, tx| os.set_zil_header(tx, [0; 192]));
        snapshot(&mut p, &a, "t");
    }
}

#[test]
fn limits_and_reservations_of_snapshots_made_together_are_summed() {
    let mut p = Pool::new(5000, MODERN);
    let a = p.create("tank", "a");
    let (b, c) = (p.create("tank/a", "b"), p.create("tank/a", "c"));
    let limit = |n| PropChange::Local(PropValue::Int(n));
    p.sync_with(|p, tx| {
        p.dsl.set_prop(tx, &a, "snapshot_limit", &limit(2)).unwrap();
    });
    let named = |list: &[&Arc<Dataset>]| -> Vec<(Arc<Dataset>, String)> {
        list.iter().map(|d| ((*d).clone(), "s".into())).collect()
    };
    // Each alone would do.
    let all = named(&[&a, &b, &c]);
    for one in &all {
        p.dsl.check_snapshot(&one.0, "s").unwrap();
    }
    let stranger = Caller::default();
    let limits = |list: &[_]| p.dsl.check_snapshot_limits(list, &stranger);
    limits(&all[..2]).unwrap();
    assert_eq!(limits(&all).unwrap_err().kind, Kind::Quota);
    let e = p.dsl.check_snapshots(&named(&[&b, &b])).unwrap_err();
    assert_eq!(e.kind, Kind::Invalid);
    // Reservations: each of two fits into the quota, both do not.
    p.scribble(&b, &mut Rand(1), 200);
    p.scribble(&c, &mut Rand(2), 200);
    p.sync();
    let unique = b.phys().unique_bytes.min(c.phys().unique_bytes);
    let used = a.dir().phys().used_bytes;
    p.sync_with(|p, tx| {
        for ds in [&b, &c] {
            let r = limit(unique);
            p.dsl.set_prop(tx, ds, "refreservation", &r).unwrap();
        }
        let quota = limit(used + unique + unique / 2);
        p.dsl.set_prop(tx, &a, "quota", &quota).unwrap();
    });
    let two = named(&[&b, &c]);
    for one in &two {
        p.dsl.check_snapshot(&one.0, "s").unwrap();
    }
    assert_eq!(p.dsl.check_snapshots(&two).unwrap_err().kind, Kind::NoSpace);
    let one = named(&[&b]);
    p.sync_with(|p, tx| {
        p.dsl.snapshot_all(tx, &one).unwrap();
    });
    super::audit::audit(&p);
}
