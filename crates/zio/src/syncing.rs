//! Which threads are in syncing context: their reads wait for devices that are away, if the pool does.

use std::cell::Cell;

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
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
        Syncing {
            before: HERE.replace(true),
        }
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        HERE.set(self.before);
    }
}
