//! Mistakes of operations that change what a pool consists of.

use super::*;

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
