//! Deliberate mistakes, for proving that the tests find them. They are in test builds only (feature
//! `mutations`): without it [`mutated`] is a constant and what depends on it is not compiled in.

/// A mistake the engine can be told to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// No flush before the uberblock.
    FlushOmitted,
    /// Freed blocks are given out one group too early.
    FreeReusedEarly,
    /// The replay of the log leaves out a record.
    ReplaySkips,
    /// Any content has the right checksum.
    ChecksumOff,
    /// A label is believed whatever its checksum.
    TornLabel,
    /// The last parity column is wrong.
    ParityWrong,
    /// A snapshot is made of a head that changes in the same group before it is written.
    SnapshotOfDirtySet,
}

/// All of them.
pub const MUTATIONS: [Mutation; 7] = [
    Mutation::FlushOmitted,
    Mutation::FreeReusedEarly,
    Mutation::ReplaySkips,
    Mutation::ChecksumOff,
    Mutation::TornLabel,
    Mutation::ParityWrong,
    Mutation::SnapshotOfDirtySet,
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
}

#[cfg(feature = "mutations")]
pub use switch::{mutate, mutated};

/// Whether this thread is to make the mistake: never.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn mutated(_which: Mutation) -> bool {
    false
}
