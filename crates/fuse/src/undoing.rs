//! Whether the calling thread undoes what it did for a request whose answer nobody got. That is never given up.

use std::cell::Cell;

thread_local! {
    static UNDOING: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread undoes something from now on, or has a new request.
pub(crate) fn set(undoing: bool) {
    UNDOING.set(undoing);
}

/// Whether it does.
pub(crate) fn is_on() -> bool {
    UNDOING.get()
}
