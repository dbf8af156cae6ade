//! Which threads are in syncing context: their reads wait for devices that are away, if the pool does.

use std::cell::Cell;

/// How long reads of one stay in syncing context pause in all: everybody waits for the txg.
const MOST_PAUSED: u64 = 10_000_000_000;

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
    static PAUSED: Cell<u64> = const { Cell::new(0) };
}

/// Whether the calling thread may pause for so many nanoseconds more. Outside of syncing context it
/// always may.
pub(crate) fn may_pause(ns: u64) -> bool {
    if !here() {
        return true;
    }
    let paused = PAUSED.get() + ns;
    let may = paused <= MOST_PAUSED;
    if may {
        PAUSED.set(paused);
    }
    may
}

/// Whether the calling thread is in syncing context.
pub(crate) fn here() -> bool {
    HERE.get()
}

/// The calling thread is in syncing context until this is dropped.
pub struct Syncing {
    before: bool,
}

impl Syncing {
    /// Puts the calling thread into syncing context. May be nested.
    pub fn begin() -> Syncing {
        let before = HERE.replace(true);
        if !before {
            PAUSED.set(0);
        }
        Syncing { before }
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        HERE.set(self.before);
    }
}
