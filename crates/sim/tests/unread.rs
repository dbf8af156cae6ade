//! Reads that fail while a pool is imported and its intent logs are replayed, at every place: what was promised is there at
//! once or, where the import or a mount was refused, as soon as the device is read again.

use sim::check::BURST;
use sim::points::{self, PROMISED};
use sim::rig::{Layout, MIB};
use vdev::GroupKind;

fn layout(kind: GroupKind, disks: usize) -> Layout {
    Layout {
        size: 64 * MIB,
        eager: true,
        ..Layout::new(kind, disks)
    }
}

fn sweep(layout: Layout, step: u64, counts: &[u64]) {
    let mut places = 0;
    for count in counts {
        places += points::unread(&PROMISED, layout, (count % step, step), *count).unwrap();
    }
    assert!(places > 20, "only {places} places");
}

#[test]
fn of_a_single_device() {
    sweep(layout(GroupKind::Single, 1), 1, &[1, BURST]);
}

#[test]
fn of_a_mirror() {
    sweep(layout(GroupKind::Mirror, 2), 3, &[1, BURST]);
}

#[test]
fn of_raidz() {
    sweep(layout(GroupKind::Raidz { nparity: 1 }, 3), 4, &[1, BURST]);
}

#[test]
fn of_a_log_device() {
    let one = layout(GroupKind::Single, 1);
    sweep(Layout { slog: true, ..one }, 2, &[1, BURST]);
}

#[test]
fn a_claimed_log_outlives_another_import() {
    for l in [
        layout(GroupKind::Single, 1),
        layout(GroupKind::Mirror, 2),
        Layout {
            slog: true,
            ..layout(GroupKind::Single, 1)
        },
    ] {
        points::twice(&PROMISED, l).unwrap_or_else(|e| panic!("{l}: {e}"));
    }
}
