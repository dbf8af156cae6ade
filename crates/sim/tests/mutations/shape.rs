//! Mistakes of operations that change what a pool consists of.

use super::*;

/// A layout that grows by so many disks or vdevs.
fn growing(kind: GroupKind, disks: usize, grow: usize) -> Layout {
    Layout {
        grow,
        ..layout(kind, disks)
    }
}

/// What is placed on a new vdev is there after a power cut.
#[test]
fn metaslabs_that_no_configuration_has_are_found() {
    let lines =
        "create . a 644\nwrite . a 0 300000 2\nsync\nshape add 1\nwrite . a 0 3000000 3\nsync\n\
                 sync\ncut 0 Kept 1\nread . a\nshape finish";
    let l = growing(GroupKind::Mirror, 2, 1);
    found(Mutation::MetaslabsBeforeConfig, &|_| timed(l, lines, 0..1));
}

/// What came with a dRAID is there after a power cut.
#[test]
fn an_added_draid_that_nothing_counts_is_found() {
    let lines = "create . a 644\nwrite . a 0 300000 2\nsync\nshape add 1\nwrite . a 0 300000 3\nsync\ncut 0 Kept 1\nread . a\nshape finish";
    let l = Layout { grow: 1, ..draid() };
    found(Mutation::AddedDraidUncounted, &|_| timed(l, lines, 0..1));
}

/// Blocks are freed while the first part of them is copied and the rest is not. A small file before them has pieces that are copied
/// end within blocks.
#[test]
fn a_free_across_the_regions_of_a_removal_that_is_taken_once_is_found() {
    let lines = "create . b 644\nwrite . b 0 1500 2\ncreate . a 644\nwrite . a 0 1500000 2\nsync\nshape add 1\nshape remove 0\n{}\
                 unlink . a\nrelease\nsync\ncut 0 Kept 1\nshape finish\ncut 0 Kept 2";
    let l = growing(GroupKind::Single, 1, 1);
    found(Mutation::RemovalFreesOneRegion, &|_| timed(l, lines, 0..16));
}

/// A side of the mirror that things are copied to is away meanwhile. When it has been resilvered, it is the only one.
#[test]
fn a_resilver_that_forgets_the_copies_of_a_removal_is_found() {
    let lines = "create . a 644\nwrite . a 0 690000 2\nwrite . a 690000 690000 3\nsync\nshape add 1\n\
                 create . b 644\nsync\nshape remove 0\nsync\n{}device 3 offline\nsync\nsync\nwrite . b 0 30000 4\nsync\n\
                 device 3 online\nsync\nsync\nshape finish\nscan finish\ncut 0 Kept 1";
    let l = growing(GroupKind::Mirror, 2, 1);
    found(Mutation::ResilverForgetsCopies, &|_| timed(l, lines, 0..3));
}

/// So much that it reaches far beyond the scratch area.
#[test]
fn an_expansion_that_says_a_row_more_than_it_did_is_found() {
    let lines = "create . a 644\nwrite . a 0 5000000 2\nwrite . a 5000000 5000000 3\n\
                 write . a 10000000 5000000 4\nsync\nshape expand 3\n{}cut 0 Lost 1\nread . a\n\
                 shape finish\nread . a";
    let l = growing(GroupKind::Raidz { nparity: 1 }, 3, 1);
    found(Mutation::ExpansionRowAhead, &|_| timed(l, lines, 5..11));
}

#[test]
fn an_expansion_that_writes_to_the_old_place_only_is_found() {
    let lines = "create . a 644\nwrite . a 0 5000000 2\nwrite . a 5000000 5000000 3\n\
                 write . a 10000000 5000000 4\nsync\nshape expand 3\n{}create . b 644\n\
                 write . b 0 400000 5\nsync\nshape finish\nread . a\nread . b\ncut 0 Kept 1";
    let l = growing(GroupKind::Raidz { nparity: 1 }, 3, 1);
    found(Mutation::ExpansionWritesOnce, &|_| timed(l, lines, 5..11));
}

/// A scratch area that is out of use before its content is at its place.
#[test]
fn a_scratch_area_that_is_given_up_early_is_found() {
    let lines =
        "create . a 644\nwrite . a 0 5000000 2\nsync\nshape expand 3\n{}cut 40 Lost 1\nread . a";
    let l = growing(GroupKind::Raidz { nparity: 1 }, 3, 1);
    found(Mutation::ScratchClearedEarly, &|_| timed(l, lines, 4..8));
}

/// A file is emptied in the txg in which the checkpoint is taken. What was freed of it and not noted is used again.
#[test]
fn a_checkpoint_taken_after_frees_is_found() {
    let lines = [
        "create . a 644",
        "write . a 0 300000 2",
        "create . b 644",
        "write . b 0 300000 3",
        "checkpoint . a",
        "write . b 0 300000 4",
        "sync",
        "write . b 0 300000 5",
        "sync",
        "write . b 0 300000 8",
        "sync",
        "write . b 0 300000 9",
        "sync",
        "create . c 644",
        "write . c 0 600000 10",
        "sync",
        "rewind",
        "read . a",
    ];
    found(Mutation::CheckpointAfterFrees, &|_| replayed(&lines));
}

/// Garbage is in the place of blocks that were written with the txg in which the trim begins.
#[test]
fn a_trim_of_what_was_allocated_in_the_same_txg_is_found() {
    let syncs = "sync\n".repeat(40);
    let lines =
        format!("create . a 644\nwrite . a 0 690000 2\nscan trim\n{syncs}reimport\nread . a");
    found(Mutation::TrimTakesNew, &|_| {
        timed(small_blocks(2), &lines, 0..1)
    });
}

/// Two mirrors are split. The power goes when the new pool has its first txg.
#[test]
fn a_split_that_labels_one_side_only_is_found() {
    const SPLIT: Script = Script {
        name: "split two mirrors",
        create: false,
        text: "create . a 644; write . a 0 300000 2; sync; shape add 1; write . a 0 690000 3; \
               create . b 644; write . b 0 690000 4; sync; --- shape split; write . b 0 3000 5; sync",
    };
    let l = growing(GroupKind::Mirror, 2, 1);
    found(Mutation::SplitLabelsOneSide, &|on| {
        let effort = Effort {
            subsets: 2,
            every: if on { 2 } else { 6 },
            care: Care::Full,
            audit: AUDIT,
            foreign: None,
        };
        let mut count = Count::default();
        points::run(&SPLIT, l, 1, effort, &mut count, &|| true)
    });
}

/// The entry of blocks that two files share goes, and the first of the files takes them along.
#[test]
fn a_pruned_entry_of_shared_blocks_is_found() {
    let lines = [
        "set . dedup 1",
        "create . a 644",
        "create . b 644",
        "write . a 0 300000 2",
        "write . b 0 300000 2",
        "sync",
        "prune 100",
        "unlink . b",
        "sync",
        "sync",
        "sync",
        "sync",
        "create . c 644",
        "write . c 0 600000 10",
        "sync",
        "reimport",
        "read . a",
    ];
    found(Mutation::PruneTakesShared, &|_| replayed(&lines));
}
