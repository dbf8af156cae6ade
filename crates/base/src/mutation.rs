//! Deliberate mistakes in the engine, which prove that the tests find such mistakes. They exist with the feature `mutations` only.
//! Without it [`mutated`] is the constant `false`, and the compiler removes what depends on it.

/// A mistake the engine can be told to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// No flush before the uberblock.
    FlushOmitted,
    /// Freed blocks are given out one txg too early.
    FreeReusedEarly,
    /// The replay of the log leaves out a record.
    ReplaySkips,
    /// Any content has the right checksum.
    ChecksumOff,
    /// A label is believed whatever its checksum.
    TornLabel,
    /// The last parity column is wrong.
    ParityWrong,
    /// The engine panics at one of the places marked by `panic_point`; see `panic_at`.
    Panic,
    /// A snapshot is made of a head that changes in the same txg before it is written.
    SnapshotOfDirtySet,
    /// A property that was set is not stored, though the command is recorded.
    PropertyLost,
    /// The last dataset of those to be destroyed stays, though the command is recorded.
    DestroyForgets,
    /// Clones are destroyed with their origin though nobody asked for that (`zfs destroy -R`).
    DestroyTakesClones,
    /// A permission that was given is not stored, though the command is recorded.
    PermissionLost,
    /// Everybody may do everything.
    RightsOff,
    /// How far the freeing of a destroyed file system has come is not stored.
    FreeingPlaceLost,
    /// The DTL of a device that is attached leaves out the txg in which it is attached.
    AttachedTxgTooFew,
    /// A block that was freed stays in the queue of a scan, and is repaired.
    ScanKeepsFreed,
    /// A destroyed snapshot takes its entry of a scan with it.
    ScanForgetsDestroyed,
    /// The place of a scan is stored while blocks wait to be scrubbed.
    ScanStoresAhead,
    /// A resilver takes more txgs off the DTL than it visited.
    DtlDropsMore,
    /// What a device missed of the copies of a removal is forgotten by a resilver, which finds none of them.
    ResilverForgetsCopies,
    /// Holes that were made since its base are left out of an incremental stream.
    SendHolesLeftOut,
    /// A bookmark that is to be destroyed stays, though the command is recorded.
    BookmarkStays,
    /// A hold is recorded in the history only.
    HoldForgotten,
    /// A snapshot that is destroyed hands on its deadlist but for the newest key.
    DeadlistKeyLost,
    /// What a rollback gives back to the snapshot is not taken off its unique space.
    SwapMiscounted,
    /// A clone is neither counted nor listed by the snapshot that it is made of.
    CloneUncounted,
    /// What snapshots take along in a promotion is not charged to the clone.
    PromotionUncharged,
    /// The first of the snapshots that are renamed together keeps its name, though the command is recorded.
    RenameForgets,
    /// A comparison of two states forgets the objects that were where the later one has holes.
    DiffForgetsHoles,
    /// What waited for devices that refused it is taken for written when they are well again.
    WaitingDropped,
    /// A suspended pool lets calls in that change something.
    AdmittedWhileSuspended,
    /// A pool that was stopped for good begins transactions, which never reach its devices.
    ChangedWhenStopped,
    /// A received record that frees a part of an object is passed over.
    ReceiveKeepsFreed,
    /// How far a receive has come is stored one record too far.
    ResumePointAhead,
    /// A hole is given a birth from before it was made.
    HolesBornEarly,
    /// A block that a stream could heal is counted as healed, and stays as it is.
    HealingForgets,
    /// A file system that is raised to version 5 gets no tables of system attributes.
    UpgradeWithoutTables,
    /// A rollback that destroys younger snapshots takes those of the same names from the file systems below.
    RollbackTakesBelow,
    /// What is allocated in the txg in which a trim begins, or later, is trimmed as if it were free.
    TrimTakesNew,
    /// What was freed in the last txgs is trimmed, though states that use it may be needed.
    TrimTakesDeferred,
    /// A rebuild ends when it has copied a part.
    RebuildEndsEarly,
    /// A rebuild leaves out the last allocated range of each metaslab.
    RebuildSkipsLastRange,
    /// What fills up the columns of a dRAID is not written, though parity counts it as zeros.
    PaddingUnwritten,
    /// A resilver passes over the blocks that only a distributed spare lacks.
    SpareUnresilvered,
    /// Of a livelist that is freed in part, the FREEs are forgotten whose ALLOCs are still to come.
    LivelistForgetsFrees,
    /// A block of a raw stream gets the salt, IV and MAC of the block before it.
    RawSealStale,
    /// A block of dnodes that a raw stream changes keeps the seal it had.
    DnodeSealKept,
    /// A raw receive leaves the owners charged as they were.
    RawAccountsKept,
    /// A raw increment is received whatever keys and set of IVs its base has.
    RawBaseUnchecked,
    /// A receive without -F takes a file system for unchanged that was changed since the base.
    ChangesUnseen,
    /// A block that stays where it is, since the same bytes were written, is freed.
    KeptBlockFreed,
    /// A block of a log that its device does not read counts as the end of the log.
    ErrorEndsLog,
    /// One damaged file system keeps the pool from being imported.
    DamageRefusesImport,
    /// A record that a device keeps from being replayed is left out, and the log given up.
    ReplayDropsUnread,
    /// A file with large blocks, none of which was written, does not count as one.
    UnwrittenLargeBlocks,
    /// A log that is given up is left out of the header a txg before the one that has its records.
    HeaderClearedEarly,
    /// Blocks are placed on new metaslabs before the txg that makes them is on disk.
    NewVdevAtOnce,
    /// Blocks are placed on the metaslabs of a new vdev before a configuration on disk has them.
    MetaslabsBeforeConfig,
    /// A new vdev gets the number of a removed one while log space maps on disk still name that.
    HolesFilledAtOnce,
    /// A commit whose round wrote nothing is taken for durable if the log is in order when it wakes up.
    WaitersBelieved,
    /// The table of clones of a vdev that grows is read again, without what the txg has changed.
    TableReadAgain,
    /// A log block that its device failed to write or to flush counts as stable.
    DeadLogBelieved,
    /// No mark is made for an object of which a txg gives up changes, so that fsync succeeds.
    LossUnmarked,
    /// A head that cannot be settled gets a new log, for which the changes that wait are on disk.
    NewLogBelieved,
    /// A rollback, or the end of a receive, frees the log that a crash left behind in a txg of its own, before.
    LeftLogFreedEarly,
    /// A commit promises pieces of blocks whose rest nobody has read.
    RestsUnread,
    /// An exchange of two names takes the pending writes of one file into the log.
    ExchangeTakesOne,
    /// A write to a volume that is to be stable at once is not logged.
    ForcedWriteUnlogged,
    /// The replay of a volume's log frees ranges behind everything else.
    DiscardReplayedLate,
    /// A free on a vdev that is being removed is taken for what is mapped only, though it reaches into the other regions.
    RemovalFreesOneRegion,
    /// A free of what is being copied for a removal frees the old place only.
    RemovalForgetsFlight,
    /// A dRAID that is added is not counted by its feature, and its distributed spares are on no list.
    AddedDraidUncounted,
    /// A checkpoint is taken when its txg has freed blocks.
    CheckpointAfterFrees,
    /// The uberblock says of the expansion of a RAID-Z that it has come one row further than it has.
    ExpansionRowAhead,
    /// The uberblock says that the scratch area of an expansion is out of use before its content is at its place.
    ScratchClearedEarly,
    /// A write to what an expansion has copied goes to the old place only.
    ExpansionWritesOnce,
    /// Of a pool that is split off, only the first side gets labels with its first txg.
    SplitLabelsOneSide,
    /// A prune of dedup tables takes the entries of blocks that are shared.
    PruneTakesShared,
    /// A request is let into a suspended file system.
    GateLetsIn,
    /// A node id leads to whatever has the number of its object by now.
    IdOfAnyGeneration,
    /// `.zfs` keeps a snapshot open that is destroyed.
    ControlKeepsOpen,
    /// Clients are not told of the names that a rollback or a receive has changed.
    NamesUnpublished,
    /// A traversal passes over the first block below each indirect block.
    WalkPassesFirst,
    /// The judge of space says nothing of leaks.
    LeaksPassed,
    /// An activity check goes on though another host has written.
    ActivityPassed,
}

/// All of them.
pub const MUTATIONS: [Mutation; 85] = [
    Mutation::FlushOmitted,
    Mutation::FreeReusedEarly,
    Mutation::ReplaySkips,
    Mutation::ChecksumOff,
    Mutation::TornLabel,
    Mutation::ParityWrong,
    Mutation::Panic,
    Mutation::SnapshotOfDirtySet,
    Mutation::PropertyLost,
    Mutation::DestroyForgets,
    Mutation::DestroyTakesClones,
    Mutation::PermissionLost,
    Mutation::RightsOff,
    Mutation::FreeingPlaceLost,
    Mutation::AttachedTxgTooFew,
    Mutation::ScanKeepsFreed,
    Mutation::ScanForgetsDestroyed,
    Mutation::ScanStoresAhead,
    Mutation::DtlDropsMore,
    Mutation::ResilverForgetsCopies,
    Mutation::SendHolesLeftOut,
    Mutation::BookmarkStays,
    Mutation::HoldForgotten,
    Mutation::DeadlistKeyLost,
    Mutation::SwapMiscounted,
    Mutation::CloneUncounted,
    Mutation::PromotionUncharged,
    Mutation::RenameForgets,
    Mutation::DiffForgetsHoles,
    Mutation::WaitingDropped,
    Mutation::AdmittedWhileSuspended,
    Mutation::ChangedWhenStopped,
    Mutation::ReceiveKeepsFreed,
    Mutation::ResumePointAhead,
    Mutation::HolesBornEarly,
    Mutation::HealingForgets,
    Mutation::UpgradeWithoutTables,
    Mutation::RollbackTakesBelow,
    Mutation::TrimTakesNew,
    Mutation::TrimTakesDeferred,
    Mutation::RebuildEndsEarly,
    Mutation::RebuildSkipsLastRange,
    Mutation::PaddingUnwritten,
    Mutation::SpareUnresilvered,
    Mutation::LivelistForgetsFrees,
    Mutation::RawSealStale,
    Mutation::DnodeSealKept,
    Mutation::RawAccountsKept,
    Mutation::RawBaseUnchecked,
    Mutation::ChangesUnseen,
    Mutation::KeptBlockFreed,
    Mutation::ErrorEndsLog,
    Mutation::ReplayDropsUnread,
    Mutation::DamageRefusesImport,
    Mutation::UnwrittenLargeBlocks,
    Mutation::HeaderClearedEarly,
    Mutation::NewVdevAtOnce,
    Mutation::MetaslabsBeforeConfig,
    Mutation::HolesFilledAtOnce,
    Mutation::WaitersBelieved,
    Mutation::TableReadAgain,
    Mutation::DeadLogBelieved,
    Mutation::LossUnmarked,
    Mutation::NewLogBelieved,
    Mutation::LeftLogFreedEarly,
    Mutation::RestsUnread,
    Mutation::ExchangeTakesOne,
    Mutation::ForcedWriteUnlogged,
    Mutation::DiscardReplayedLate,
    Mutation::RemovalFreesOneRegion,
    Mutation::RemovalForgetsFlight,
    Mutation::AddedDraidUncounted,
    Mutation::CheckpointAfterFrees,
    Mutation::ExpansionRowAhead,
    Mutation::ScratchClearedEarly,
    Mutation::ExpansionWritesOnce,
    Mutation::SplitLabelsOneSide,
    Mutation::PruneTakesShared,
    Mutation::GateLetsIn,
    Mutation::IdOfAnyGeneration,
    Mutation::ControlKeepsOpen,
    Mutation::NamesUnpublished,
    Mutation::WalkPassesFirst,
    Mutation::LeaksPassed,
    Mutation::ActivityPassed,
];

#[cfg(feature = "mutations")]
mod switch {
    use super::Mutation;
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Makes the mistake on this thread from now on; `None`: none.
    pub fn mutate(which: Option<Mutation>) {
        ON.set(which);
    }

    /// Whether this thread is to make the mistake.
    pub fn mutated(which: Mutation) -> bool {
        ON.get() == Some(which)
    }

    thread_local! {
        static POINTS: Cell<u64> = const { Cell::new(0) };
        static FATAL: Cell<u64> = const { Cell::new(0) };
    }

    /// Makes [`Mutation::Panic`] on this thread: the `n`th marked place from now on panics, once; with
    /// 0 they are only counted.
    pub fn panic_at(n: u64) {
        mutate(Some(Mutation::Panic));
        POINTS.set(0);
        FATAL.set(n);
    }

    /// How many marked places this thread has passed since [`panic_at`].
    pub fn points_passed() -> u64 {
        POINTS.get()
    }

    /// A place at which the engine may be made to panic.
    pub fn panic_point(place: &str) {
        // What runs while a panic unwinds must not panic again: that ends the process.
        if !mutated(Mutation::Panic) || std::thread::panicking() {
            return;
        }
        POINTS.set(POINTS.get() + 1);
        if POINTS.get() == FATAL.get() {
            panic!("made on purpose at '{place}'");
        }
    }
}

#[cfg(feature = "mutations")]
pub use switch::{mutate, mutated, panic_at, panic_point, points_passed};

/// A place at which the engine may be made to panic: never.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn panic_point(_place: &str) {}

/// Whether this thread is to make the mistake: never.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn mutated(_which: Mutation) -> bool {
    false
}
