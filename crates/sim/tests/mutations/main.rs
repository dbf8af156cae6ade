//! The rig is worth something only if it finds mistakes: each of these is made on purpose, and must
//! be found within a few seconds; without them nothing may be.

mod shape;

use base::mutation::{mutate, Mutation};
use sim::alike::AUDIT;
use sim::check::{Care, BURST};
use sim::left_log::{self, Way};
use sim::op::Op;
use sim::points::{self, Count, Effort, Script};
use sim::rig::{Layout, MIB};
use sim::trace::{self, Extra, Trace};
use vdev::GroupKind;

/// Makes the mistake on this thread until dropped.
struct Mistake;

impl Mistake {
    fn make(which: Mutation) -> Mistake {
        mutate(Some(which));
        Mistake
    }
}

impl Drop for Mistake {
    fn drop(&mut self) {
        mutate(None);
    }
}

fn layout(kind: GroupKind, disks: usize) -> Layout {
    Layout {
        size: 64 * MIB,
        eager: true,
        ..Layout::new(kind, disks)
    }
}

fn script(name: &str) -> &'static Script {
    points::SCRIPTS.iter().find(|s| s.name == name).unwrap()
}

/// Crash points of a script until something is found.
fn crash_points(name: &str, layout: Layout, mistake: bool) -> Result<(), String> {
    let effort = Effort {
        subsets: 4,
        // Everything is looked at elsewhere; here it only must not be accused at once.
        every: if mistake { 1 } else { 8 },
        care: Care::Full,
        audit: AUDIT,
        foreign: None,
    };
    let mut count = Count::default();
    points::run(script(name), layout, 1, effort, &mut count, &|| true)
}

/// Runs what must be fine, and the same with the mistake, which must be found.
fn found(which: Mutation, run: &dyn Fn(bool) -> Result<(), String>) {
    {
        let _on = Mistake::make(which);
        let e = run(true).expect_err(&format!("{which:?} was not found"));
        eprintln!(
            "{which:?}: {}",
            e.lines().take(3).collect::<Vec<_>>().join(" ")
        );
    }
    run(false).unwrap_or_else(|e| panic!("accused without a mistake: {e}"));
}

#[test]
fn flush_omitted() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::FlushOmitted, &|on| crash_points("create", l, on));
}

#[test]
fn free_reused_early() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::FreeReusedEarly, &|on| {
        crash_points("many txgs", l, on)
    });
}

#[test]
fn replay_skips_a_record() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::ReplaySkips, &|on| {
        crash_points("rename chain", l, on)
    });
}

#[test]
fn torn_label() {
    let l = layout(GroupKind::Single, 1);
    found(Mutation::TornLabel, &|on| {
        crash_points("export and import", l, on)
    });
}

#[test]
fn parity_wrong() {
    let l = layout(GroupKind::Raidz { nparity: 2 }, 4);
    found(Mutation::ParityWrong, &|on| crash_points("create", l, on));
}

/// Rot on one side of a mirror must not get through.
#[test]
fn checksum_off() {
    let mut ops: Vec<Op> = Vec::new();
    let mut line = |l: &str| ops.push(l.parse().unwrap());
    line("create . a 644");
    line("write . a 0 300000 2");
    line("create . b 644");
    line("write . b 0 5000 3");
    line("sync");
    line("fault 0 garbage");
    line("reimport");
    line("read . a");
    line("read . b");
    line("cut 0 Kept 1");
    let t = Trace {
        seed: 1,
        layout: layout(GroupKind::Mirror, 2),
        ops,
    };
    found(
        Mutation::ChecksumOff,
        &|_| match trace::replay(&t, &Extra::default()).finding {
            Some(f) => Err(f),
            None => Ok(()),
        },
    );
}

/// A clone and a snapshot of it in one txg: the snapshot must have the clone's own root block.
#[test]
fn snapshot_of_a_dirty_set() {
    let mut ops: Vec<Op> = Vec::new();
    let mut line = |l: &str| ops.push(l.parse().unwrap());
    line("create . a 644");
    line("write . a 0 300000 2");
    line("sync");
    line("snapshot . s");
    line("clonesnap . s c");
    line("create c b 644");
    line("sync");
    line("cut 0 Kept 1");
    line("destroysnap c first");
    line("write c b 0 5000 3");
    line("destroyfs c");
    line("sync");
    line("cut 0 Kept 1");
    let t = Trace {
        seed: 1,
        layout: layout(GroupKind::Mirror, 2),
        ops,
    };
    found(
        Mutation::SnapshotOfDirtySet,
        &|_| match trace::replay(&t, &Extra::default()).finding {
            Some(f) => Err(f),
            None => Ok(()),
        },
    );
}

/// What a script of lines finds.
fn replayed(lines: &[&str]) -> Result<(), String> {
    let t = Trace {
        seed: 1,
        layout: layout(GroupKind::Mirror, 2),
        ops: lines.iter().map(|l| l.parse().unwrap()).collect(),
    };
    match trace::replay(&t, &Extra::default()).finding {
        Some(f) => Err(f),
        None => Ok(()),
    }
}

#[test]
fn a_property_that_is_not_stored_is_missed() {
    let lines = ["createfs a", "set a compression 15", "cut 0 Kept 1"];
    found(Mutation::PropertyLost, &|_| replayed(&lines));
}

#[test]
fn a_limit_that_is_not_stored_is_missed() {
    let lines = ["set . quota 67108864", "create . f 644", "cut 0 Kept 1"];
    found(Mutation::PropertyLost, &|_| replayed(&lines));
}

#[test]
fn a_destroyed_file_system_that_is_still_there_is_found() {
    let lines = [
        "createfs a",
        "create a f 644",
        "destroyfs a",
        "cut 0 Kept 1",
    ];
    found(Mutation::DestroyForgets, &|_| replayed(&lines));
}

#[test]
fn a_clone_that_is_destroyed_with_its_origin_is_found() {
    let of_snapshot = ["clone . s1 c", "destroysnap . s1"];
    found(Mutation::DestroyTakesClones, &|_| descent(&of_snapshot));
    let of_file_system = [
        "createfs a",
        "snapshot a s",
        "clone a s c",
        "create c f 644",
        "destroyfs a",
        "read c f",
        "cut 0 Kept 1",
    ];
    replayed(&of_file_system).unwrap();
}

#[test]
fn a_permission_that_is_not_stored_is_missed() {
    let lines = ["createfs a", "allow a 2", "create a f 644", "cut 0 Kept 1"];
    found(Mutation::PermissionLost, &|_| replayed(&lines));
}

#[test]
fn a_user_who_does_what_was_not_delegated_is_found() {
    let lines = [
        "createfs a",
        "allow a 2",
        "snapshotas a s 2",
        "unallow a 2",
        "snapshotas a t 2",
        "cut 0 Kept 1",
        "snapshotas . t 2",
    ];
    found(Mutation::RightsOff, &|_| replayed(&lines));
}

/// A destroyed file system of more blocks than are freed in a txg: the next txg, and the import after a crash, must go
/// on where the one before stopped.
#[test]
fn place_of_freeing_lost() {
    let mut ops: Vec<Op> = Vec::new();
    let mut line = |l: &str| ops.push(l.parse().unwrap());
    line("createfs f");
    line("create f a 644");
    line("write f a 0 800000 2");
    line("sync");
    line("destroyfs f");
    line("cut 0 Kept 1");
    line("sync");
    line("cut 0 Kept 1");
    let t = Trace {
        seed: 1,
        layout: Layout {
            recordsize: 4096,
            ..layout(GroupKind::Mirror, 2)
        },
        ops,
    };
    found(
        Mutation::FreeingPlaceLost,
        &|_| match trace::replay(&t, &Extra::default()).finding {
            Some(f) => Err(f),
            None => Ok(()),
        },
    );
}

/// A clone some of whose blocks were written twice, freed over several groups: what is left of its livelist in between must
/// know what was freed already.
#[test]
fn frees_of_a_livelist_forgotten() {
    let lines = [
        "createfs f",
        "create f a 644",
        "write f a 0 3000000 2",
        "sync",
        "snapshot f s",
        "clone f s c",
        "write c a 0 160000 3",
        "sync",
        "write c a 0 80000 4",
        "sync",
        "destroyfs c",
        "sync",
        "cut 0 Kept 1",
        "sync",
        "cut 0 Kept 1",
    ];
    let t = Trace {
        seed: 1,
        layout: Layout {
            recordsize: 4096,
            ..layout(GroupKind::Mirror, 2)
        },
        ops: lines.iter().map(|l| l.parse().unwrap()).collect(),
    };
    found(
        Mutation::LivelistForgetsFrees,
        &|_| match trace::replay(&t, &Extra::default()).finding {
            Some(f) => Err(f),
            None => Ok(()),
        },
    );
}

/// Objects that are gone with their whole blocks of dnodes must be told by a comparison.
#[test]
fn diff_forgets_holes() {
    let mut lines: Vec<String> = (0..90).map(|n| format!("create . f{n} 644")).collect();
    lines.push("sync".into());
    lines.push("snapshot . s1".into());
    lines.extend((0..90).map(|n| format!("unlink . f{n}")));
    lines.push("release".into());
    lines.push("sync".into());
    lines.push("create . g 644".into());
    lines.push("diff . s1".into());
    let t = Trace {
        seed: 1,
        layout: layout(GroupKind::Single, 1),
        ops: lines.iter().map(|l| l.parse().unwrap()).collect(),
    };
    found(
        Mutation::DiffForgetsHoles,
        &|_| match trace::replay(&t, &Extra::default()).finding {
            Some(f) => Err(f),
            None => Ok(()),
        },
    );
}

const BEGIN: [&str; 4] = [
    "create . a 644",
    "write . a 0 300000 2",
    "snapshot . s1",
    "write . a 0 200000 3",
];

/// Lines after a file system with a snapshot was made, and a power cut.
fn descent(lines: &[&str]) -> Result<(), String> {
    let all: Vec<&str> = BEGIN.iter().chain(lines).copied().collect();
    replayed(&[&all[..], &["cut 0 Kept 1"]].concat())
}

#[test]
fn a_destroyed_bookmark_that_is_still_there_is_found() {
    let lines = ["bookmark . s1 b", "destroymark . b"];
    found(Mutation::BookmarkStays, &|_| descent(&lines));
}

/// It is in the way of going back further.
#[test]
fn a_rollback_that_forgets_a_bookmark_is_found() {
    let lines = ["snapshot . s2", "bookmark . s2 b", "rollbackto . s1"];
    found(Mutation::BookmarkStays, &|_| descent(&lines));
}

#[test]
fn a_forgotten_hold_is_found() {
    found(Mutation::HoldForgotten, &|_| descent(&["hold . s1 t"]));
    let lines = ["hold . s1 t", "destroysnap . s1", "letgo . s1 t"];
    found(Mutation::HoldForgotten, &|_| descent(&lines));
}

#[test]
fn a_deadlist_key_that_is_left_out_is_found() {
    let lines = [
        "snapshot . s2",
        "write . a 0 100000 4",
        "snapshot . s3",
        "destroysnap . s2",
    ];
    found(Mutation::DeadlistKeyLost, &|_| descent(&lines));
}

#[test]
fn a_rollback_that_counts_wrong_is_found() {
    let lines = ["rollback ."];
    found(Mutation::SwapMiscounted, &|_| descent(&lines));
}

#[test]
fn a_clone_that_its_origin_does_not_count_is_found() {
    let lines = ["clone . s1 c", "destroysnap . s1"];
    found(Mutation::CloneUncounted, &|_| descent(&lines));
}

#[test]
fn a_promotion_that_does_not_charge_the_clone_is_found() {
    let lines = ["clone . s1 c", "promote c"];
    found(Mutation::PromotionUncharged, &|_| descent(&lines));
}

#[test]
fn a_snapshot_that_a_recursive_rename_leaves_is_found() {
    let lines = ["createfs a", "snapshot a s1", "renameall . s1 r1"];
    found(Mutation::RenameForgets, &|_| descent(&lines));
}

#[test]
fn a_range_of_which_one_snapshot_stays_is_found() {
    let lines = ["snapshot . s2", "snapshot . s3", "destroyrange . s1 s3"];
    found(Mutation::DestroyForgets, &|_| descent(&lines));
}

#[test]
fn ranges_and_recursive_renames_are_refused_whole() {
    let lines = [
        "snapshot . s2",
        "snapshot . s3",
        "clone . s2 c",
        "destroyrange . s1 s3",
        "destroyrange . s3 s1",
        "snapshot c s1",
        "snapshot c r1",
        "renameall . s1 r1",
        "cut 0 Kept 1",
        "destroyfs c",
        "hold . s3 t",
        "destroyrange . s1 s3",
        "letgo . s3 t",
        "destroyrange . s1 s3",
        "diff . s1",
    ];
    descent(&lines).unwrap();
}

#[test]
fn snapshots_clones_and_bookmarks_live_through_promotion_and_new_names() {
    let lines = [
        "snapshot . s2",
        "bookmark . s2 b",
        "clone . s2 c",
        "snapshot c own",
        "promote c",
        "renamefs c d",
        "renamesnap d s1 r1",
        "hold d r1 t",
        "cut 0 Kept 1",
        "destroysnap d r1",
        "letgo d r1 t",
        "destroysnap d r1",
        "write d a 0 100000 5",
        "rollback d",
        "promote .",
        "rollbackto . s2",
        "destroysnap d own",
        "destroyfs d",
        "destroysnap . s2",
        "destroymark . b",
    ];
    descent(&lines).unwrap();
}

/// A file in which a hole was made between two snapshots: the increment must have the hole.
#[test]
fn a_hole_that_an_increment_leaves_out_is_missed() {
    let lines = [
        "create . a 644",
        "write . a 0 800000 2",
        "sync",
        "snapshot . s1",
        "punch . a 0 524288",
        "sync",
        "snapshot . s2",
        "send .",
    ];
    found(Mutation::SendHolesLeftOut, &|_| replayed(&lines));
}

const WAITS: [&str; 3] = ["create . a 644", "write . a 0 300000 2", "sync"];

/// Lines after a file system with a file was made.
fn waits(lines: &[&str]) -> Result<(), String> {
    replayed(&[&WAITS[..], lines, &["cut 0 Kept 1"]].concat())
}

#[test]
fn a_txg_that_waited_and_is_dropped_is_missed() {
    let lines = [
        "write . a 0 200000 3",
        "refuse writes 2 wait clear",
        "sync",
        "read . a",
    ];
    found(Mutation::WaitingDropped, &|_| waits(&lines));
}

#[test]
fn a_change_that_a_suspended_pool_lets_in_is_found() {
    for mode in ["wait", "continue"] {
        let line = format!("refuse writes 2 {mode} clear");
        let lines = [line.as_str(), "write . a 0 200000 3", "fsync . a", "sync"];
        found(Mutation::AdmittedWhileSuspended, &|_| waits(&lines));
    }
}

#[test]
fn a_change_that_a_stopped_pool_accepts_is_found() {
    let lines = [
        "write . a 0 200000 3",
        "refuse writes 2 wait export",
        "sync",
        "write . a 0 100000 4",
        "sync",
    ];
    found(Mutation::ChangedWhenStopped, &|_| waits(&lines));
}

/// What makes two snapshots between which a file lost its middle.
const PUNCHED: [&str; 7] = [
    "create . a 644",
    "write . a 0 800000 2",
    "sync",
    "snapshot . s1",
    "punch . a 131072 393216",
    "sync",
    "snapshot . s2",
];

fn punched(lines: &[&str]) -> Result<(), String> {
    replayed(&[&PUNCHED, lines].concat())
}

#[test]
fn a_receive_that_keeps_what_the_stream_frees_is_found() {
    let lines = [
        "receive . s1 r0 1000",
        "receive . s2 r0 1000",
        "cut 0 Kept 1",
    ];
    found(Mutation::ReceiveKeepsFreed, &|_| punched(&lines));
}

#[test]
fn a_hole_with_a_wrong_birth_is_found_in_the_copy() {
    let lines = [
        "receive . s1 r0 1000",
        "receive . s2 r0 1000",
        "cut 0 Kept 1",
    ];
    found(Mutation::HolesBornEarly, &|_| punched(&lines));
}

/// The same bytes again, under a checksum that proves it.
#[test]
fn a_kept_block_that_is_freed_is_found() {
    let lines = [
        "create . a 644",
        "set . checksum 8",
        "set . compression 15",
        "write . a 0 800000 2",
        "sync",
        "write . a 0 800000 2",
        "sync",
        "write . a 0 100000 3",
        "sync",
        "cut 0 Kept 1",
    ];
    found(Mutation::KeptBlockFreed, &|_| replayed(&lines));
}

#[test]
fn a_resume_point_that_is_stored_too_early_is_found() {
    let lines = [
        "receive . s1 r0 500",
        "cut 0 Kept 1",
        "receive . s1 r0 1000",
        "cut 0 Kept 1",
    ];
    found(Mutation::ResumePointAhead, &|_| punched(&lines));
}

#[test]
fn a_damaged_block_that_a_stream_does_not_heal_is_found() {
    let lines = ["heal . s1 7", "heal . s1 8", "cut 0 Kept 1"];
    found(Mutation::HealingForgets, &|_| punched(&lines));
}

/// Broken off, gone on with, given up; over changes of the target, and copies of copies.
#[test]
fn copies_live_through_power_cuts() {
    let lines = [
        "receive . s1 r0 300",
        "cut 500 Some 3",
        "receive . s1 r0 800",
        "cut 0 Lost 2",
        "receive . s1 r0 1000",
        "receive r0 s1 r1 1000",
        "write r0 a 1000 50000 9",
        "snapshot r0 own",
        "receive . s2 r0 600",
        "write r0 a 70000 5000 8",
        "cut 900 Torn 4",
        "receive . s2 r0 1000",
        "receive r0 s2 r1 400",
        "rollback r1",
        "receive r0 s2 r1 1000",
        "cut 0 Kept 1",
        "send r1",
        "destroyfs r1",
    ];
    punched(&lines).unwrap();
}

/// Without -F an increment goes where nothing has changed, and nowhere else.
#[test]
fn a_receive_that_takes_changes_away_is_found() {
    let taken = ["receive . s1 r0 1000", "receivekept . s2 r0 1000"];
    punched(&taken).unwrap();
    let refused = [
        "receive . s1 r0 1000",
        "write r0 a 1000 50000 9",
        "sync",
        "receivekept . s2 r0 1000",
        "cut 0 Kept 1",
    ];
    found(Mutation::ChangesUnseen, &|_| punched(&refused));
    let snapped = [
        "receive . s1 r0 1000",
        "snapshot r0 own",
        "receivekept . s2 r0 1000",
        "cut 0 Kept 1",
    ];
    punched(&snapped).unwrap();
}

/// Reads fail at every place of import and replay.
fn unread(count: u64) -> Result<(), String> {
    let l = layout(GroupKind::Single, 1);
    points::unread(&points::PROMISED, l, (0, 1), count).map(|_| ())
}

#[test]
fn a_log_that_ends_where_a_device_fails_is_found() {
    found(Mutation::ErrorEndsLog, &|_| unread(BURST));
}

#[test]
fn a_damaged_file_system_that_takes_the_others_along_is_found() {
    let l = layout(GroupKind::Mirror, 2);
    found(Mutation::DamageRefusesImport, &|_| {
        points::damaged(&points::NEIGHBOURS, l)
    });
}

#[test]
fn a_record_that_is_left_out_because_a_device_fails_is_found() {
    found(Mutation::ReplayDropsUnread, &|_| unread(BURST));
}

/// A log device fails some writes; fsync answers, and the plug is pulled.
#[test]
fn a_log_device_that_fails_and_is_believed_is_found() {
    let lines = [
        "create . a 644",
        "write . a 0 3000 2",
        "fsync . a",
        "sync",
        "fault 1 writeerrors 30",
        "write . a 0 7000 4",
        "fsync . a",
        "cut 0 Lost 1",
    ];
    let t = Trace {
        seed: 1,
        layout: Layout {
            slog: true,
            ..layout(GroupKind::Single, 1)
        },
        ops: lines.iter().map(|l| l.parse().unwrap()).collect(),
    };
    let run = |_| match trace::replay(&t, &Extra::default()).finding {
        Some(f) => Err(f),
        None => Ok(()),
    };
    found(Mutation::DeadLogBelieved, &run);
}

#[test]
fn a_log_that_is_freed_before_what_it_belongs_to_goes_is_found() {
    for (kind, disks) in [(GroupKind::Single, 1), (GroupKind::Mirror, 2)] {
        let l = layout(kind, disks);
        for way in [Way::Back, Way::Received] {
            found(Mutation::LeftLogFreedEarly, &|_| left_log::run(&l, way));
        }
    }
}

#[test]
fn directories_of_version_1_tell_no_kinds() {
    let lines = ["createold a 1", "mkdir a d", "fsyncall a", "cut 0 Kept 1"];
    replayed(&lines).unwrap();
}

/// An encrypted file system with two snapshots, between which blocks, dnodes and whole files changed.
const SEALED: [&str; 13] = [
    "createsealed a 0",
    "create a f 644",
    "write a f 0 800000 2",
    "setxattr a f user.x0 3000 2",
    "createas a e 3 2",
    "write a e 0 9000 2",
    "sync",
    "snapshot a s1",
    "write a f 131072 393216 3",
    "truncate a e 100",
    "create a g 644",
    "sync",
    "snapshot a s2",
];

fn sealed(lines: &[&str]) -> Result<(), String> {
    let all = [&SEALED[..], lines, &["cut 0 Kept 1"]].concat();
    let t = Trace {
        seed: 1,
        layout: Layout {
            projects: true,
            ..layout(GroupKind::Mirror, 2)
        },
        ops: all.iter().map(|l| l.parse().unwrap()).collect(),
    };
    match trace::replay(&t, &Extra::default()).finding {
        Some(f) => Err(f),
        None => Ok(()),
    }
}

#[test]
fn a_raw_block_with_the_seal_of_another_is_found() {
    let lines = ["receiveraw a s1 r0 1000"];
    found(Mutation::RawSealStale, &|_| sealed(&lines));
}

#[test]
fn a_block_of_dnodes_that_keeps_its_old_seal_is_found() {
    let lines = ["receiveraw a s1 r0 1000", "receiveraw a s2 r0 1000"];
    found(Mutation::DnodeSealKept, &|_| sealed(&lines));
}

/// The MACs count the size of blocks that were never written.
#[test]
fn a_raw_copy_of_unwritten_large_blocks_is_readable() {
    let lines = [
        "set a recordsize 1048576",
        "create a z 644",
        "truncate a z 3000000",
        "sync",
        "snapshot a s3",
        "receiveraw a s3 r0 1000",
    ];
    found(Mutation::UnwrittenLargeBlocks, &|_| sealed(&lines));
}

/// What comes back was changed elsewhere, where nobody charged the owners here.
#[test]
fn owners_who_are_not_charged_for_what_came_raw_are_found() {
    let lines = [
        "receiveraw a s1 r0 1000",
        "createas r0 h 3 2",
        "write r0 h 0 70000 3",
        "sync",
        "snapshot r0 s3",
        "receiveraw r0 s3 a 1000",
    ];
    found(Mutation::RawAccountsKept, &|_| sealed(&lines));
}

/// An increment that was read with the key on the way is written with other IVs.
#[test]
fn a_raw_increment_to_another_set_of_ivs_is_refused() {
    let lines = [
        "receiveraw a s1 r0 1000",
        "receive a s2 r0 1000",
        "write a f 0 200000 5",
        "snapshot a s3",
        "receiveraw a s3 r0 1000",
    ];
    found(Mutation::RawBaseUnchecked, &|_| sealed(&lines));
}

/// Raw, read and encrypted anew; broken off and gone on with, with and without the key; there and back.
#[test]
fn encrypted_copies_live_through_power_cuts() {
    let lines = [
        "receiveraw a s1 r0 300",
        "cut 500 Some 3",
        "receiveraw a s1 r0 801",
        "cut 0 Lost 2",
        "receiveraw a s1 r0 1000",
        "write r0 f 1000 50000 9",
        "receiveraw a s2 r0 600",
        "cut 900 Torn 4",
        "receiveraw a s2 r0 701",
        "reimport",
        "receiveraw a s2 r0 1000",
        "receiveraw r0 s2 r1 1000",
        "cut 300 Some 5",
        "write r1 f 70000 5000 8",
        "snapshot r1 back",
        "receiveraw r1 back a 500",
        "receiveraw r1 back a 1000",
        "receiveraw r1 back r0 1000",
        "clone r0 back c",
        "promote c",
        "cut 0 Kept 1",
        "destroyfs r1",
        "snapshot . p",
        "receivesealed . p r1 400",
        "receivesealed . p r1 1000",
        "receive a back r1 1000",
        "create . x 644",
        "write . x 0 300000 7",
        "snapshot . q",
        "receive . q r1 500",
        "cut 700 Some 6",
        "receive . q r1 1000",
        "send a",
        "send r1",
        "heal a s1 7",
    ];
    sealed(&lines).unwrap();
}

/// Scripts that differ in how many txgs are written at `{}`, until something is found.
fn timed(layout: Layout, lines: &str, timings: std::ops::Range<usize>) -> Result<(), String> {
    for n in timings {
        let text = lines.replace("{}", &"sync\n".repeat(n));
        let t = Trace {
            seed: 1,
            layout,
            ops: text.lines().map(|l| l.trim().parse().unwrap()).collect(),
        };
        if let Some(f) = trace::replay(&t, &Extra::default()).finding {
            return Err(format!("{n} txgs: {f}"));
        }
    }
    Ok(())
}

/// Three file systems of many small blocks with a snapshot in between, of which disk 1 has the first part.
const MISSED: &str =
    "createfs a\ncreatefs b\ncreatefs c\ncreate a f 644\ncreate b f 644\ncreate c f 644\n\
    sync\ndevice 1 offline\nwrite a f 0 200000 2\nwrite b f 0 200000 3\nwrite c f 0 200000 4\n\
    snapshot a s\nsnapshot b s\nsnapshot c s\nwrite a f 0 100000 8\nwrite b f 0 100000 9\n\
    write c f 0 100000 10\nsync\ndevice 1 online\n";

fn small_blocks(disks: usize) -> Layout {
    Layout {
        recordsize: 4096,
        ..layout(GroupKind::Mirror, disks)
    }
}

/// Blocks that are written early are on the old device only: the new one must know that it lacks them.
#[test]
fn an_attached_device_that_lacks_a_txg_more_than_it_knows() {
    let l = Layout {
        early: true,
        bench: 1,
        ..layout(GroupKind::Mirror, 2)
    };
    let lines = "create . a 644\nwrite . a 0 690000 2\ndevice 2 attach\nscan finish";
    found(Mutation::AttachedTxgTooFew, &|_| timed(l, lines, 0..1));
}

/// The scrub behind a rebuild must find nothing to repair.
#[test]
fn a_rebuild_that_ends_when_a_part_was_copied() {
    let l = Layout {
        bench: 1,
        ..small_blocks(2)
    };
    let lines = "create . a 644\nwrite . a 0 690000 2\nsync\ndevice 2 attach-s\nscan finish";
    found(Mutation::RebuildEndsEarly, &|_| timed(l, lines, 0..1));
}

#[test]
fn a_resilver_that_stores_its_place_while_blocks_wait() {
    let lines = format!("{MISSED}{{}}cut 0 Kept 3\nscan finish");
    found(Mutation::ScanStoresAhead, &|_| {
        timed(small_blocks(2), &lines, 0..12)
    });
}

#[test]
fn a_resilver_that_forgets_an_entry_when_its_snapshot_is_destroyed() {
    let lines = format!(
        "{MISSED}{{}}destroysnap a s\ndestroysnap b s\ndestroysnap c s\ncut 0 Kept 3\nscan finish"
    );
    found(Mutation::ScanForgetsDestroyed, &|_| {
        timed(small_blocks(2), &lines, 0..12)
    });
}

/// Disk 2 comes back while disk 1 is filled.
#[test]
fn a_resilver_that_takes_more_off_the_dtl_than_it_visited() {
    let missed = MISSED.replace("device 1 offline", "device 1 offline\ndevice 2 offline");
    let lines = format!("{missed}{{}}device 2 online\nscan finish");
    found(Mutation::DtlDropsMore, &|_| {
        timed(small_blocks(3), &lines, 4..16)
    });
}

/// What is freed and written over while a scrub is paused.
#[test]
fn a_scrub_that_looks_at_what_was_freed() {
    let lines =
        "createfs a\ncreate a f 644\nwrite a f 0 400000 2\nsync\nscan scrub\n{}scan pause\n\
                 destroyfs a\nsync\nsync\nsync\nsync\nsync\nsync\nsync\nsync\nsync\nsync\n\
                 createfs b\ncreate b f 644\nwrite b f 0 600000 3\nsync\nscan scrub\nscan finish";
    found(Mutation::ScanKeepsFreed, &|_| {
        timed(small_blocks(2), lines, 0..8)
    });
}

#[test]
fn a_rollback_that_takes_snapshots_below_is_found() {
    let lines = ["createfs a", "snapshotall . s2", "rollbackto . s1"];
    found(Mutation::RollbackTakesBelow, &|_| descent(&lines));
}

#[test]
fn a_version_without_its_tables_is_found() {
    let lines = [
        "createold a 3",
        "create a f 644",
        "write a f 0 5000 2",
        "raise a 5",
        "create a g 644",
    ];
    found(Mutation::UpgradeWithoutTables, &|_| descent(&lines));
}

/// A dRAID with one distributed spare. The first blocks lie before the ends of metaslabs and groups, and reach over them.
fn draid() -> Layout {
    let kind = GroupKind::Draid {
        nparity: 1,
        ndata: 2,
        nspares: 1,
    };
    Layout {
        size: 128 * MIB,
        edges: true,
        ..Layout::new(kind, 5)
    }
}

/// The spare stands in for a disk by a sequential rebuild, and other disks are taken away. The scrub behind the rebuild must find
/// nothing to repair.
#[test]
fn a_rebuild_of_a_draid_that_leaves_out_the_ends_of_metaslabs_is_found() {
    let lines = "create . a 644\nwrite . a 0 690000 2\nsync\ndevice 1 offline\ndevice 1 spare-s 0\nscan finish";
    found(Mutation::RebuildSkipsLastRange, &|_| {
        timed(draid(), lines, 0..1)
    });
}

/// On space that was used before.
#[test]
fn columns_of_a_draid_that_are_not_filled_up_are_found() {
    let lines = "create . a 644\nwrite . a 0 690000 2\nsync\nunlink . a\nrelease\nsync\nsync\nsync\nsync\nset . recordsize 4096\n\
                 create . b 644\nwrite . b 0 690000 3\nsync\ndevice 1 offline\ndevice 1 spare-s 0\nscan finish";
    let l = Layout {
        recordsize: 16 << 10,
        ashift: 12,
        ..draid()
    };
    found(Mutation::PaddingUnwritten, &|_| timed(l, lines, 0..1));
}

#[test]
fn a_resilver_that_passes_over_what_only_a_spare_lacks_is_found() {
    let lines = "create . a 644\nwrite . a 0 690000 2\nsync\ndevice 1 spare 0\nscan finish";
    found(Mutation::SpareUnresilvered, &|_| {
        timed(draid(), lines, 0..1)
    });
}

#[test]
fn a_distributed_spare_that_lacks_a_txg_more_than_it_knows_is_found() {
    let l = Layout {
        early: true,
        ..draid()
    };
    let lines = "create . a 644\nwrite . a 0 690000 2\ndevice 1 spare 0\nscan finish";
    found(Mutation::AttachedTxgTooFew, &|_| timed(l, lines, 0..1));
}
