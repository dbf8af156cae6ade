//! A flag: whether this process has used a device since the flag was last read.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicBool = AtomicBool::new(false);

/// A transfer or flush of this process.
pub(crate) struct Use(());

/// One begins, and the thread waits for it; it ends when what is returned is dropped.
pub(crate) fn begin() -> Use {
    base::waits::about_to_wait();
    UNDER_WAY.fetch_add(1, Relaxed);
    USED.store(true, Relaxed);
    Use(())
}

impl Drop for Use {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Relaxed);
    }
}

/// Whether this process has read from, written to or flushed a device since the last call, or is
/// doing so. For one caller: asking forgets.
pub fn devices_used() -> bool {
    USED.swap(false, Relaxed) || UNDER_WAY.load(Relaxed) > 0
}
