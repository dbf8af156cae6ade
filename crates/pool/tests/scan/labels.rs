//! A scrub begins with a look at the labels of the devices.

use crate::world::{finish, World};
use disk::label::{label_offset, LABELS, LABEL_SIZE};
use env_sim::MemDisk;
use pool::{ScanRefusal, ScrubRange};
use std::sync::atomic::Ordering::Relaxed;
use vdev::{Aux, GroupKind, State};

/// Overwrites these labels of a disk with zeros.
fn wipe(disk: &MemDisk, labels: impl IntoIterator<Item = usize>) {
    let size = env::Disk::geometry(disk).size;
    for i in labels {
        let at = label_offset(i, size).unwrap();
        disk.poke(at, &vec![0; LABEL_SIZE as usize]);
    }
}

fn good(disk: &MemDisk) -> usize {
    vdev::label::read_labels(disk).good()
}

fn scrub(w: &World) {
    let asked = w
        .pool
        .start_scrub(ScrubRange::default(), (String::new(), 0));
    asked.unwrap().unwrap();
    assert_eq!(finish(&w.pool).errors, 0);
}

fn state(w: &World, disk: usize) -> (State, Aux) {
    let leaf = &w.pool.tree().leaves()[disk];
    (leaf.state(), leaf.aux())
}

#[test]
fn labels_that_are_damaged_are_written_anew() {
    let w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 20);
    wipe(&w.disks[1], [0, 3]);
    assert_eq!(good(&w.disks[1]), LABELS - 2);
    scrub(&w);
    assert_eq!(good(&w.disks[1]), LABELS);
    assert_eq!(state(&w, 1), (State::Healthy, Aux::None));
}

#[test]
fn a_device_that_was_overwritten_is_out_of_use_if_another_has_its_data() {
    for kind in [GroupKind::Mirror, GroupKind::Raidz { nparity: 1 }] {
        let w = World::new(kind, 3);
        w.fill("a", 20);
        wipe(&w.disks[1], 0..LABELS);
        scrub(&w);
        assert_eq!(state(&w, 1), (State::CantOpen, Aux::BadLabel), "{kind:?}");
        assert_eq!(w.pool.tree().tops()[0].state(), State::Degraded);
        // Opening it again does not help: there is still nothing on it.
        w.pool.reopen().unwrap();
        assert_eq!(state(&w, 1), (State::CantOpen, Aux::BadLabel), "{kind:?}");
        w.whole_on(&|disk| disk != 1);
    }
}

#[test]
fn a_device_that_holds_the_only_copy_stays_and_gets_labels() {
    let w = World::new(GroupKind::Single, 1);
    w.fill("a", 20);
    wipe(&w.disks[0], 0..LABELS);
    scrub(&w);
    assert_eq!(state(&w, 0), (State::Healthy, Aux::None));
    assert_eq!(good(&w.disks[0]), LABELS);
    w.whole_on(&|_| true);
}

#[test]
fn labels_that_cannot_be_read_say_nothing_of_the_device() {
    let w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 20);
    w.disks[1].read_errors.store(4, Relaxed);
    scrub(&w);
    assert_eq!(state(&w, 1), (State::Healthy, Aux::None));
}

/// A refused command changes nothing, the state of devices included.
#[test]
fn a_refused_scrub_does_not_look_at_labels() {
    let w = World::new(GroupKind::Mirror, 2);
    w.fill("a", 20);
    let ask = || {
        w.pool
            .start_scrub(ScrubRange::default(), (String::new(), 0))
    };
    ask().unwrap().unwrap();
    wipe(&w.disks[1], 0..LABELS);
    assert_eq!(ask().unwrap(), Err(ScanRefusal::Scrubbing));
    assert_eq!(state(&w, 1), (State::Healthy, Aux::None));
    assert_eq!(finish(&w.pool).errors, 0);
}
